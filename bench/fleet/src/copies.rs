//! How far the copies of the program to hosts are, for watching.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::timeout;

/// The shortest time between two views.
const SHORTEST: Duration = Duration::from_millis(100);
/// The longest time between two views while a copy goes on, so that a copy that stands still is seen too.
const LONGEST: Duration = Duration::from_secs(1);

/// The copy of the program to one host.
#[derive(Debug, Clone, PartialEq)]
pub struct ProgramCopy {
    /// Bytes that were sent.
    pub sent: u64,
    /// Bytes of the program.
    pub total: u64,
    /// When the copy began.
    pub began: Instant,
    /// Whether the host has checked the copy and starts it.
    pub is_complete: bool,
}

/// The copies of the program that go on, by the names of the nodes, and those that became complete meanwhile.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ProgramCopies(pub BTreeMap<String, ProgramCopy>);

impl ProgramCopies {
    /// Whether no copy goes on.
    pub fn are_complete(&self) -> bool {
        self.0.values().all(|copy| copy.is_complete)
    }
}

/// Reports one copy. If it is dropped before the copy is complete, the copy has failed, and is not shown any more.
pub(crate) struct CopyReporter<'a> {
    copies: &'a watch::Sender<ProgramCopies>,
    node: &'a str,
}

impl<'a> CopyReporter<'a> {
    pub(crate) fn begin(copies: &'a watch::Sender<ProgramCopies>, node: &'a str, total: u64) -> Self {
        copies.send_modify(|copies| {
            // Those before it have been shown as complete.
            if copies.are_complete() {
                copies.0.clear();
            }
            let copy = ProgramCopy { sent: 0, total, began: Instant::now(), is_complete: false };
            copies.0.insert(node.into(), copy);
        });
        CopyReporter { copies, node }
    }

    /// So many more bytes were sent.
    pub(crate) fn sent(&self, bytes: u64) {
        self.change(|copy| copy.sent = copy.sent.saturating_add(bytes));
    }

    pub(crate) fn complete(self) {
        self.change(|copy| copy.is_complete = true);
    }

    fn change(&self, change: impl FnOnce(&mut ProgramCopy)) {
        self.copies.send_modify(|copies| copies.0.get_mut(self.node).map_or((), change));
    }
}

impl Drop for CopyReporter<'_> {
    fn drop(&mut self) {
        self.copies.send_if_modified(|copies| {
            let has_failed = copies.0.get(self.node).is_some_and(|copy| !copy.is_complete);
            if has_failed {
                copies.0.remove(self.node);
            }
            has_failed
        });
    }
}

/// Does `work`, which reports its copies to the other end of `copies`, and shows meanwhile how far they are. If the work copies
/// nothing, nothing is shown.
pub(crate) async fn shown_while<T>(
    work: impl Future<Output = T>,
    mut copies: watch::Receiver<ProgramCopies>,
    mut show: impl FnMut(ProgramCopies),
) -> T {
    tokio::pin!(work);
    let mut shown = ProgramCopies::default();
    loop {
        let result = tokio::select! {
            view = next_view(&mut copies, &shown) => {
                shown = view;
                show(shown.clone());
                continue;
            }
            result = &mut work => result,
        };
        // What was reported last.
        let last = copies.borrow().clone();
        if last != shown {
            show(last);
        }
        return result;
    }
}

/// The next view that is worth showing after the one that is shown. Nothing is lost if the future is dropped.
async fn next_view(copies: &mut watch::Receiver<ProgramCopies>, shown: &ProgramCopies) -> ProgramCopies {
    let is_idle = copies.borrow().are_complete();
    if is_idle {
        if copies.changed().await.is_err() {
            return std::future::pending().await;
        }
    } else {
        let goes_on = timeout(SHORTEST, copies.wait_for(ProgramCopies::are_complete)).await.is_err();
        let is_shown = *copies.borrow_and_update() == *shown;
        if goes_on && is_shown {
            let _ = timeout(LONGEST.saturating_sub(SHORTEST), copies.changed()).await;
        }
    }
    copies.borrow_and_update().clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is shown while this work is done, on a clock that a loaded machine does not delay.
    fn shown(work: impl AsyncFnOnce(watch::Sender<ProgramCopies>)) -> Vec<ProgramCopies> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let (sender, receiver) = watch::channel(ProgramCopies::default());
        let mut views = Vec::new();
        runtime.block_on(shown_while(work(sender), receiver, |view| views.push(view)));
        views
    }

    #[test]
    fn the_last_view_has_every_copy_complete_and_none_that_failed() {
        let views = shown(async |copies| {
            let [one, two] = ["one", "two"].map(|node| CopyReporter::begin(&copies, node, 10));
            one.sent(4);
            tokio::time::sleep(2 * SHORTEST).await;
            drop(two);
            one.sent(6);
            one.complete();
        });
        let known = |view: &ProgramCopies| -> Vec<(String, u64, bool)> {
            view.0.iter().map(|(node, copy)| (node.clone(), copy.sent, copy.is_complete)).collect()
        };
        assert!(views.iter().any(|view| known(view) == [("one".into(), 4, false), ("two".into(), 0, false)]));
        assert_eq!(known(views.last().unwrap()), [("one".into(), 10, true)]);
        assert!(!views[..views.len() - 1].iter().any(ProgramCopies::are_complete));
    }

    #[test]
    fn nothing_is_shown_if_nothing_is_copied() {
        assert_eq!(shown(async |_| tokio::time::sleep(2 * SHORTEST).await), []);
    }
}
