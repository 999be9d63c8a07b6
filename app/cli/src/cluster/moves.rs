//! Copies that move: what a person sees while they do.

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use loadline_base::units::ByteSize;
use loadline_san_node::node::manage::{ReplicaView, StatusView, VolumeView};
use loadline_study::check::human;

use crate::cluster::client::{Api, Failed};
use crate::output::text::{are, counted};
use crate::output::{alike, eprint_line, print_error, print_line};
use crate::process::exit::Exit;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(500);
/// Without a terminal, a line so often.
const EVERY: Duration = Duration::from_secs(10);
/// If for so long nothing can move, there is nothing to wait for.
const STUCK: Duration = Duration::from_secs(6);

/// Reasons that a message lists.
const MOST_REASONS: usize = 3;

/// How it is waited.
#[derive(clap::Args)]
pub(crate) struct Wait {
    /// Do not wait until the copies have moved. 'loadline san status' shows the progress.
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    pub(crate) api: Api,
}

/// What is left to be moved.
#[derive(Default, PartialEq, Eq)]
struct Left {
    copies: usize,
    /// Bytes that are still to be copied of what is being copied now.
    bytes: u64,
    /// Volumes whose copies stay, and why.
    stays: Vec<(String, String)>,
}

/// Waits until no replica that is meant leaves any more.
pub(crate) fn wait(
    wait: &Wait,
    what: &str,
    is_meant: impl Fn(&VolumeView, &ReplicaView) -> bool,
) -> Result<Exit, Failed> {
    if wait.no_wait {
        print_line!("{what}: the move has begun; 'loadline san status' shows the progress");
        return Ok(Exit::Done);
    }
    let bar = std::io::stderr().is_terminal().then(bar);
    let (mut all, mut most, mut reported, mut moved) = (0, 0, None, Instant::now());
    let mut last = Left::default();
    let mut begun = Instant::now();
    loop {
        let left = look(&wait.api, &is_meant)?;
        if left.copies == 0 {
            if let Some(bar) = bar {
                bar.finish_and_clear();
            }
            print_line!("{what}: done");
            return Ok(Exit::Done);
        }
        if left.bytes > last.bytes || left.copies != last.copies {
            (most, begun) = (left.bytes, Instant::now());
        }
        if left != last || left.stays.len() < left.copies {
            moved = Instant::now();
        }
        all = all.max(left.copies);
        let text = words(&left, all, most, begun.elapsed());
        match &bar {
            Some(bar) => {
                bar.set_length(most.max(1));
                bar.set_position(most - left.bytes);
                bar.set_message(text);
            }
            None if reported.is_none_or(|at: Instant| at.elapsed() > EVERY) => {
                eprint_line!("{what}: {text}");
                reported = Some(Instant::now());
            }
            None => {}
        }
        if moved.elapsed() > STUCK {
            if let Some(bar) = bar {
                bar.finish_and_clear();
            }
            let why = reasons(&left.stays);
            let message = format!(
                "{what}: copies that cannot move now: {} ({why}). These copies move as soon as the cause is gone",
                left.copies
            );
            return Ok(print_error(Exit::Failed, &message));
        }
        last = left;
        std::thread::sleep(LOOK);
    }
}

fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:16} {wide_msg}").expect("a valid template");
    ProgressBar::new(1).with_style(style.progress_chars("=> "))
}

/// How far it is, in words.
fn words(left: &Left, all: usize, most: u64, since: Duration) -> String {
    let mut text =
        format!("{} of {} {} to leave", left.copies, counted(all as u64, "copy"), are(left.copies as u64));
    if left.bytes > 0 {
        let done = (most - left.bytes) as f64 / since.as_secs_f64().max(0.001);
        text += &format!(", {} to be copied", human(ByteSize(left.bytes)));
        if done > 0.0 {
            text += &format!(", {:.0} s", left.bytes as f64 / done);
        }
    }
    text
}

/// Why copies stay: a few reasons, each once, with a few of the volumes that have it.
fn reasons(stays: &[(String, String)]) -> String {
    let groups = alike::grouped(stays.iter().map(|(name, why)| (name.as_str(), why.as_str())));
    let more: BTreeSet<&str> =
        groups.iter().skip(MOST_REASONS).flat_map(|(_, names)| names).copied().collect();
    let listed = groups.into_iter().take(MOST_REASONS).map(|(why, names)| match names.as_slice() {
        [name] => format!("volume {name}: {why}"),
        names => format!("{}: {why}", alike::volumes(names)),
    });
    let mut text = listed.collect::<Vec<_>>().join("; ");
    if !more.is_empty() {
        text += &format!(
            "; and further reasons for {}, which 'loadline volume show NAME' shows",
            counted(more.len() as u64, "volume")
        );
    }
    text
}

/// What is left, as all nodes that answer say: only a volume's owner knows how much is to be copied.
fn look(api: &Api, is_meant: &impl Fn(&VolumeView, &ReplicaView) -> bool) -> Result<Left, Failed> {
    let status: StatusView = api.get("/v1/status")?;
    let mut left = Left::default();
    for volume in &status.volumes {
        let meant: Vec<_> =
            volume.replicas.iter().filter(|replica| replica.leaving && is_meant(volume, replica)).collect();
        left.copies += meant.len();
        let stays = meant.iter().filter_map(|replica| replica.note.clone());
        left.stays.extend(stays.map(|why| (volume.name.clone(), why)));
    }
    for node in status.nodes.iter().filter(|node| node.alive) {
        let Ok(address) = node.api.parse() else { continue };
        let there = api.of_other(address);
        if let Ok(status) = there.get::<StatusView>("/v1/status") {
            let volumes = status.volumes.iter().filter(|v| v.replicas.iter().any(|r| r.leaving));
            left.bytes += volumes.flat_map(|v| &v.replicas).filter_map(|r| r.left_bytes).sum::<u64>();
        }
    }
    Ok(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hundred_volumes_that_stay_are_a_short_message() {
        let stay = |count: usize, why: &dyn Fn(usize) -> String| -> Vec<(String, String)> {
            (1..=count).map(|number| (format!("disk-{number:03}"), why(number))).collect()
        };
        assert_eq!(
            reasons(&stay(100, &|_| "there is no room".into())),
            "100 volumes (disk-001, disk-002, disk-003 and 97 more): there is no room"
        );
        assert_eq!(reasons(&stay(1, &|_| "there is no room".into())), "volume disk-001: there is no room");
        let each_its_own = reasons(&stay(100, &|number| format!("it needs {number} GiB")));
        assert!(
            each_its_own.contains("further reasons for 97 volumes") && each_its_own.len() < 300,
            "{each_its_own}"
        );
    }

    #[test]
    fn progress_is_shown_with_the_time_that_is_left() {
        let left = Left { copies: 2, bytes: 300 << 20, stays: Vec::new() };
        let text = words(&left, 5, 400 << 20, Duration::from_secs(10));
        assert_eq!(text, "2 of 5 copies are to leave, 300 MiB to be copied, 30 s");
        assert_eq!(
            words(&Left { copies: 1, ..Left::default() }, 5, 0, Duration::ZERO),
            "1 of 5 copies is to leave"
        );
    }
}
