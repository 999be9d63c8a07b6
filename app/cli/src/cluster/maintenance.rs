//! `loadline node maintenance`: other nodes take the volumes of a node over, so that a person can stop it.

use std::time::{Duration, Instant};

use loadline_base::figures::listed;
use loadline_san_node::node::manage::{Health, Maintain, StatusView, VolumeView, volumes_that_wait};

use crate::cluster::client::{Api, Failed, escaped};
use crate::output::{eprint_line, print_line};
use crate::process::exit::Exit;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(250);
/// A line about what is waited for, so often.
const EVERY: Duration = Duration::from_secs(10);
/// Volumes that a message names.
const MOST_NAMED: usize = 8;

/// Which node is in maintenance, and since when or until when.
#[derive(clap::Args)]
pub(super) struct Maintenance {
    /// The name of the node.
    name: String,
    /// End the maintenance: the node receives new copies again, and volumes can be attached at it. Volumes stay where they have gone.
    #[arg(long)]
    stop: bool,
    /// Begin the maintenance also if clients of a volume wait while the node is stopped, because too few copies are elsewhere.
    #[arg(long, conflicts_with = "stop")]
    force: bool,
    /// How long other nodes may take until they serve all volumes of the node.
    #[arg(long, value_name = "TIME", default_value = "1m", conflicts_with = "stop")]
    limit: loadline_base::units::TimeSpan,
    #[command(flatten)]
    api: Api,
}

pub(super) fn run(args: &Maintenance) -> Result<Exit, Failed> {
    let (name, api) = (&args.name, &args.api);
    let wanted = Maintain { stop: args.stop, force: args.force };
    let before: StatusView = api.get("/v1/status")?;
    // Volumes whose clients wait for the node, as a person has accepted with --force, stay with it.
    let stay = volumes_that_wait(&before, name);
    let leave = before.volumes.iter().filter(|of| is_of(of, name) && !stay.contains(&&*of.name));
    let leave: Vec<&str> = leave.map(|of| of.name.as_str()).collect();
    let (): () = api.post(&format!("/v1/nodes/{}/maintenance", escaped(name)), wanted)?;
    if args.stop {
        return Ok(api.done(&format!("node {name} is not in maintenance any more: it is used again")));
    }
    let begun = Instant::now();
    let mut said = begun;
    loop {
        let status: StatusView = api.get("/v1/status")?;
        let left = status.volumes.iter().filter(|of| leave.contains(&&*of.name) && waits(of, name));
        let left: Vec<&str> = left.map(|of| of.name.as_str()).collect();
        if left.is_empty() {
            let done = api.done(&format!("node {name} is in maintenance: other nodes serve its volumes"));
            if !api.json {
                print_line!(
                    "next: stop the node, do the work, start it, and then: loadline node maintenance {name} --stop"
                );
            }
            return Ok(done);
        }
        if begun.elapsed() >= args.limit.0 {
            let message = format!(
                "node {name} is in maintenance, but other nodes do not serve {} yet: virtual machines of its host use them, or no other node that answers \
                 has a copy of them that is in sync. Stop or move these virtual machines, or wait for the resync: the volumes are then \
                 handed over by themselves. 'loadline node maintenance {name} --stop' ends the maintenance",
                listed(&left, MOST_NAMED)
            );
            return Err(Failed::new(Exit::Failed, message, false));
        }
        if said.elapsed() >= EVERY {
            said = Instant::now();
            let time = args.limit.0.saturating_sub(begun.elapsed()).as_secs();
            eprint_line!(
                "waiting until other nodes serve {}; at most {time} s more",
                listed(&left, MOST_NAMED)
            );
        }
        std::thread::sleep(LOOK);
    }
}

/// Whether a node is the owner of a volume, or is to be.
fn is_of(volume: &VolumeView, node: &str) -> bool {
    volume.attached.is_some() && volume.owner.as_deref().or(volume.attached.as_deref()) == Some(node)
}

/// Whether a volume that this node had is not served by another one yet.
fn waits(volume: &VolumeView, node: &str) -> bool {
    let is_served = volume.owner.as_deref().is_some_and(|owner| owner != node);
    volume.attached.is_some() && !is_served && volume.health != Some(Health::Blocked)
}
