//! A scrub that was begun from the page is followed to its end, which is an event.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use loadline_san_node::node::manage::ScrubView;

use crate::carry_out::NodeApi;

/// Between two questions.
const POLL: Duration = Duration::from_secs(1);
/// A scrub of which nothing is checked for so long is followed no more.
const STALLED: Duration = Duration::from_secs(60);

/// Waits until these nodes have checked their copies of a volume, or nothing of them is checked for a minute. `not_begun` are nodes that do
/// not check their copies, and why. Returns whether something is wrong, and what was found.
pub(crate) fn wait(
    volume: &str,
    path: &str,
    nodes: &[(String, NodeApi)],
    mut not_begun: Vec<(String, String)>,
) -> (bool, String) {
    let mut seen: BTreeMap<u64, ScrubView> = BTreeMap::new();
    // Of a node that has not answered yet nothing is known.
    let mut unheard: BTreeSet<&str> = nodes.iter().map(|(name, _)| name.as_str()).collect();
    let (mut moved, mut checked) = (Instant::now(), 0);
    loop {
        for (name, node) in nodes {
            let views =
                node.get(path).ok().and_then(|views| serde_json::from_value::<Vec<ScrubView>>(views).ok());
            if views.is_some() {
                unheard.remove(name.as_str());
            }
            seen.extend(views.into_iter().flatten().map(|view| (view.replica, view)));
        }
        let sum = seen.values().map(|view| view.done).sum::<u64>();
        if sum != checked {
            (checked, moved) = (sum, Instant::now());
        }
        let has_ended = !seen.is_empty() && seen.values().all(|view| view.ended || view.left_out.is_some());
        if (has_ended && unheard.is_empty()) || moved.elapsed() > STALLED {
            not_begun
                .extend(unheard.iter().map(|name| ((*name).to_owned(), "it does not answer".to_owned())));
            return verdict(volume, seen.values(), &not_begun);
        }
        std::thread::sleep(POLL);
    }
}

/// What was found.
fn verdict<'a>(
    volume: &str,
    seen: impl Iterator<Item = &'a ScrubView> + Clone,
    not_begun: &[(String, String)],
) -> (bool, String) {
    let corrupt: u64 = seen.clone().map(|view| view.corrupt).sum();
    let skipped: Vec<String> = seen
        .filter(|view| !view.ended)
        .map(|view| {
            let why = view.left_out.as_deref().unwrap_or("nothing of it was checked for a minute");
            format!("the copy at node {} was not checked to its end: {why}", view.node)
        })
        .chain(
            not_begun
                .iter()
                .map(|(node, why)| format!("it is not known of the copies at node {node}: {why}")),
        )
        .collect();
    let found = match corrupt {
        0 => "no block differs from its checksum".to_owned(),
        1 => "1 block did not match its checksum".into(),
        more => format!("{more} blocks did not match their checksums"),
    };
    let text = [vec![found], skipped.clone()].concat().join("; ");
    (corrupt > 0 || !skipped.is_empty(), format!("the scrub of volume {volume} has ended: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_skipped_or_is_corrupt_is_named() {
        let view = |corrupt, ended, left_out: Option<&str>| ScrubView {
            replica: 1,
            node: "n".into(),
            bytes: 9,
            done: 9,
            corrupt,
            ended,
            left_out: left_out.map(Into::into),
        };
        let of = |views: &[ScrubView]| verdict("a", views.iter(), &[]);
        let fine = "the scrub of volume a has ended: no block differs from its checksum";
        assert_eq!(of(&[view(0, true, None)]), (false, fine.into()));
        let (is_wrong, text) = of(&[view(2, true, None), view(0, false, Some("it is away"))]);
        assert!(
            is_wrong
                && text.contains("2 blocks")
                && text.contains("node n was not checked to its end: it is away"),
            "{text}"
        );
        assert!(of(&[view(0, false, None)]).0);
        let silent = [("m".to_owned(), "it does not answer".to_owned())];
        let (is_wrong, text) = verdict("a", [view(0, true, None)].iter(), &silent);
        assert!(is_wrong && text.contains("node m: it does not answer"), "{text}");
    }
}
