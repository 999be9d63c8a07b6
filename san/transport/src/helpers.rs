//! Threads that compute what handshakes need. A handshake costs as much as a hundred requests of a client, and everyone who reaches a port
//! can begin one. So those of strangers are computed by threads of low priority, few of them: however many are begun, they take no time from
//! the threads that serve volumes and the configuration, and little more of the processors than is left. Those of nodes have a thread of
//! their own, which strangers cannot delay.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use nix::libc;
use tokio::sync::oneshot;

/// How nice the threads are to others (`setpriority`, see sched(7)): the others get about ten times as much of a processor.
const NICE: libc::c_int = 10;

/// Computations for strangers that wait at most. For a further one, the oldest is dropped.
const MOST_OF_STRANGERS: usize = 4096;

/// Who waits for a handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precedence {
    /// This side has connected, or the other side is where a node is: computed at once.
    Known,
    /// Anyone.
    Stranger,
}

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queues {
    known: VecDeque<Job>,
    strangers: VecDeque<Job>,
    ended: bool,
}

#[derive(Default)]
struct Shared {
    queues: Mutex<Queues>,
    given: Condvar,
}

impl Shared {
    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next job of a thread that computes for nodes alone, or for all; `None` when there will be none.
    fn next(&self, for_nodes: bool) -> Option<Job> {
        let mut queues = self.queues();
        loop {
            if queues.ended {
                return None;
            }
            if let Some(job) = queues.known.pop_front() {
                return Some(job);
            }
            if let Some(job) = (!for_nodes).then(|| queues.strangers.pop_front()).flatten() {
                return Some(job);
            }
            queues = self.given.wait(queues).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The threads. They end when this is dropped.
pub struct Helpers {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Helpers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Helpers").finish_non_exhaustive()
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        self.shared.queues().ended = true;
        self.shared.given.notify_all();
    }
}

impl Helpers {
    /// Starts a thread for nodes, and so many for all, each with a stack of so many bytes. Fails if the system has none.
    pub fn start(threads: usize, stack: usize) -> io::Result<Helpers> {
        let helpers = Helpers { shared: Arc::default() };
        for number in 0..=threads {
            let for_nodes = number == 0;
            let shared = helpers.shared.clone();
            let thread = std::thread::Builder::new().name("handshakes".into()).stack_size(stack);
            thread.spawn(move || {
                if !for_nodes {
                    // SAFETY: the call reads its numbers alone: 0 is the calling thread, for which Linux has a priority of its own.
                    let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
                }
                while let Some(job) = shared.next(for_nodes) {
                    job();
                }
            })?;
        }
        Ok(helpers)
    }

    /// Has a thread compute this, and waits for the result. If that is not waited for any more, and the computation was not begun, it never
    /// is. `None` if the threads do not keep up with what strangers ask for, or if the computation panics.
    pub(crate) async fn compute<T: Send + 'static>(
        &self,
        precedence: Precedence,
        compute: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (answer, answered) = oneshot::channel();
        let job = Box::new(move || {
            if !answer.is_closed() {
                let _ = answer.send(compute());
            }
        });
        self.give(precedence, job);
        answered.await.ok()
    }

    fn give(&self, precedence: Precedence, job: Job) {
        let mut queues = self.shared.queues();
        match precedence {
            Precedence::Known => queues.known.push_back(job),
            Precedence::Stranger => {
                if queues.strangers.len() >= MOST_OF_STRANGERS {
                    queues.strangers.pop_front();
                }
                queues.strangers.push_back(job);
            }
        }
        drop(queues);
        // The one that is notified alone might not be one that may compute it.
        self.shared.given.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::tests::run;

    #[test]
    fn strangers_do_not_delay_nodes() {
        let helpers = Helpers::start(1, 1 << 20).unwrap();
        let (begun, begins) = mpsc::channel();
        let (go, goes) = mpsc::channel::<()>();
        let order = Arc::new(Mutex::new(Vec::new()));
        let note = |what: &'static str| {
            let order = order.clone();
            move || order.lock().unwrap().push(what)
        };
        run(async {
            // The one thread for strangers is busy.
            let busy = helpers.compute(Precedence::Stranger, move || {
                begun.send(()).unwrap();
                goes.recv().unwrap();
            });
            let others = async {
                begins.recv().unwrap();
                let gone = helpers.compute(Precedence::Stranger, note("gone"));
                assert!(tokio::time::timeout(std::time::Duration::ZERO, gone).await.is_err());
                let stranger = helpers.compute(Precedence::Stranger, note("stranger"));
                let node = async {
                    helpers.compute(Precedence::Known, note("node")).await.unwrap();
                    go.send(()).unwrap();
                };
                // The first of them is polled first.
                tokio::join!(biased; stranger, node);
            };
            tokio::join!(biased; busy, others);
        });
        assert_eq!(*order.lock().unwrap(), ["node", "stranger"]);
    }

    #[test]
    fn the_threads_give_way_to_others() {
        let helpers = Helpers::start(1, 1 << 20).unwrap();
        // SAFETY: the call reads its numbers alone.
        let nice = || unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        for _ in 0..20 {
            let known = run(helpers.compute(Precedence::Known, nice)).unwrap();
            assert!(known == nice() || known == NICE.max(nice()), "any of the threads");
            assert_eq!(run(helpers.compute(Precedence::Stranger, nice)), Some(NICE.max(nice())));
        }
    }
}
