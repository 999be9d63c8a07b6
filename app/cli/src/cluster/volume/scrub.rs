//! `loadline volume scrub`: every block of every copy is checked, within a limit; what is left out is named.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use loadline_base::units::ByteSize;
use loadline_san_node::node::manage::{ScrubView, StatusView, VolumeView};
use loadline_study::check::human;

use crate::cluster::client::{Api, Failed, escaped, print_json, table};
use crate::output::{eprint_line, print_error, print_line, write};
use crate::process::exit::Exit;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(500);
/// Without a terminal, a line so often.
const EVERY: Duration = Duration::from_secs(10);
/// A copy of which nothing is checked for so long is left out.
const STALLED: Duration = Duration::from_secs(60);
/// All of it takes no longer than this, and a second for each of so many bytes, where no limit is given.
const LEAST_LIMIT: Duration = Duration::from_secs(60);
const SLOWEST: u64 = 1 << 20;

/// The nodes that have copies of the volume, in the order in which they are asked; and what is known of each copy.
struct Scrub {
    path: String,
    nodes: Vec<(String, Api)>,
    seen: BTreeMap<u64, ScrubView>,
    /// When more of a copy had been checked, for the last time.
    moved: BTreeMap<u64, Instant>,
}

impl Scrub {
    /// Names a copy that is left out.
    fn leave_out(&mut self, replica: u64, node: &str, why: &str) {
        let unknown = ScrubView {
            replica,
            node: node.into(),
            bytes: 0,
            done: 0,
            corrupt: 0,
            ended: false,
            left_out: None,
        };
        let view = self.seen.entry(replica).or_insert(unknown);
        if !view.ended {
            view.left_out.get_or_insert_with(|| why.to_owned());
        }
    }

    /// A node does not answer: its copies are left out, and it is not asked again.
    fn lose(&mut self, node: &str, volume: &VolumeView) {
        self.nodes.retain(|(name, _)| name != node);
        for replica in volume.replicas.iter().filter(|replica| replica.node == node) {
            self.leave_out(replica.id, node, "its node does not answer");
        }
    }

    /// Begins at all nodes that answer.
    fn begin(any: &Api, volume: &VolumeView, status: &StatusView) -> Scrub {
        let path = format!("/v1/volumes/{}/scrub", escaped(&volume.name));
        let mut scrub = Scrub { path, nodes: Vec::new(), seen: BTreeMap::new(), moved: BTreeMap::new() };
        for node in status.nodes.iter().filter(|node| volume.replicas.iter().any(|r| r.node == node.name)) {
            let api = node.api.parse().ok().filter(|_| node.alive).map(|address| any.of_other(address));
            let begun = api.filter(|api| api.post::<_, ()>(&scrub.path, ()).is_ok());
            match begun {
                Some(api) => scrub.nodes.push((node.name.clone(), api)),
                None => scrub.lose(&node.name, volume),
            }
        }
        scrub
    }

    /// Asks all nodes how far they are.
    fn look(&mut self, volume: &VolumeView) {
        for (name, node) in std::mem::take(&mut self.nodes) {
            let Ok(views) = node.get::<Vec<ScrubView>>(&self.path) else {
                self.lose(&name, volume);
                continue;
            };
            self.nodes.push((name, node));
            for mut view in views {
                let before = self.seen.get(&view.replica);
                // What was left out once was not checked to the end, whatever became of it.
                let was_left_out = before.and_then(|before| before.left_out.clone());
                if before.is_none_or(|before| before.done != view.done) {
                    self.moved.insert(view.replica, Instant::now());
                }
                view.left_out = was_left_out.or(view.left_out.take());
                self.seen.insert(view.replica, view);
            }
        }
        let stalled = |replica: &u64| self.moved.get(replica).is_some_and(|at| at.elapsed() > STALLED);
        let stalled: Vec<(u64, String)> =
            self.seen.values().filter(|v| stalled(&v.replica)).map(|v| (v.replica, v.node.clone())).collect();
        for (replica, node) in stalled {
            self.leave_out(replica, &node, "the check made no progress for a minute");
        }
    }

    /// Bytes that were checked, and all.
    fn bytes(&self) -> (u64, u64) {
        let counts = || self.seen.values().filter(|view| view.left_out.is_none());
        (counts().map(|view| view.done).sum(), counts().map(|view| view.bytes).sum())
    }

    fn has_ended(&self) -> bool {
        self.seen.values().all(|view| view.ended || view.left_out.is_some())
    }
}

/// Scrubs all copies of a volume, and waits until all are checked, or the limit has passed.
pub(crate) fn run(name: &str, limit: Option<Duration>, api: &Api) -> Result<Exit, Failed> {
    let status: StatusView = api.get("/v1/status")?;
    let Some(volume) = status.volumes.iter().find(|volume| volume.name == name) else {
        // The node's own error, as for every other request.
        return api.get(&format!("/v1/volumes/{}", escaped(name))).map(|(): ()| Exit::Failed);
    };
    let begun = Instant::now();
    let mut scrub = Scrub::begin(api, volume, &status);
    scrub.look(volume);
    let all = scrub.bytes().1;
    let limit = limit.unwrap_or(LEAST_LIMIT + Duration::from_secs(all / SLOWEST));
    if !api.json {
        eprint_line!(
            "{} of volume {name} are being checked; the check ends after at most {} seconds",
            human(ByteSize(all)),
            limit.as_secs()
        );
    }
    follow(&mut scrub, volume, begun + limit);
    let seen: Vec<ScrubView> = scrub.seen.into_values().collect();
    match api.json {
        true => _ = print_json(&seen),
        false => {
            let row = |s: &ScrubView| {
                let checked = human(ByteSize(s.done.min(s.bytes)));
                let skipped = s.left_out.as_deref().map_or("-".to_owned(), |why| format!("skipped: {why}"));
                vec![s.replica.to_string(), s.node.clone(), checked, s.corrupt.to_string(), skipped]
            };
            let rows: Vec<Vec<String>> = seen.iter().map(row).collect();
            write(table(&["copy", "node", "checked", "corrupt blocks", "note"], &rows).as_bytes());
        }
    }
    Ok(verdict(&seen, volume, api))
}

/// Waits until all has ended, at most until this moment. What has not is left out.
fn follow(scrub: &mut Scrub, volume: &VolumeView, until: Instant) {
    let style =
        ProgressStyle::with_template("{bar:16} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left")
            .expect("a valid template");
    let bar = ProgressBar::new(1).with_style(style.progress_chars("=> "));
    if !std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    let mut reported = Instant::now();
    while !scrub.has_ended() && Instant::now() < until {
        let (done, all) = scrub.bytes();
        bar.set_length(all);
        bar.set_position(done);
        if bar.is_hidden() && reported.elapsed() > EVERY {
            eprint_line!("{} of {} were checked", human(ByteSize(done)), human(ByteSize(all)));
            reported = Instant::now();
        }
        std::thread::sleep(LOOK);
        scrub.look(volume);
    }
    bar.finish_and_clear();
    let late: Vec<(u64, String)> = scrub
        .seen
        .values()
        .filter(|view| !view.ended)
        .map(|view| (view.replica, view.node.clone()))
        .collect();
    for (replica, node) in late {
        scrub.leave_out(replica, &node, "the limit has passed");
    }
}

/// What it means that so many blocks are corrupt, at least one.
fn mismatches(corrupt: u64, is_attached: bool) -> String {
    let found = match corrupt {
        1 => "1 block did not match its checksum".to_owned(),
        _ => format!("{corrupt} blocks did not match their checksums"),
    };
    let then = match is_attached {
        true => {
            "the owner of the volume repairs what is corrupt from other copies; scrub again to check the repair"
        }
        false => "attach the volume and scrub again: only the owner of an attached volume repairs blocks",
    };
    format!("{found}: {then}")
}

/// Says what was found, and what was left out.
fn verdict(seen: &[ScrubView], volume: &VolumeView, api: &Api) -> Exit {
    let corrupt: u64 = seen.iter().map(|scrub| scrub.corrupt).sum();
    let left_out = seen.iter().filter_map(|scrub| {
        let why = scrub.left_out.as_ref()?;
        Some(format!("copy {} at {} was skipped: {why}", scrub.replica, scrub.node))
    });
    let mut found: Vec<String> = left_out.collect();
    if corrupt > 0 {
        found.insert(0, mismatches(corrupt, volume.attached.is_some()));
    }
    if !found.is_empty() {
        return print_error(Exit::Findings, &found.join("\n"));
    }
    if !api.json {
        print_line!("all blocks match their checksums");
    }
    Exit::Done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_corrupt_block_has_the_words_for_one() {
        let one = mismatches(1, true);
        assert!(one.starts_with("1 block did not match its checksum: the owner"), "{one}");
        let two = mismatches(2, false);
        assert!(two.starts_with("2 blocks did not match their checksums: attach the volume"), "{two}");
    }
}
