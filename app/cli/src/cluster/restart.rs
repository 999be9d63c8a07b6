//! `loadline node restart`: nodes are restarted one after the other, each only while all volumes have all their copies.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use loadline_san_node::api::Attach;
use loadline_san_node::node::manage::{Health, NodeView, StatusView, Use, VolumeView};

use crate::cluster::client::{Api, Failed, escaped};
use crate::output::{eprint_line, print_line};
use crate::process::exit::Exit;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(250);
/// A line about what is waited for, so often.
const EVERY: Duration = Duration::from_secs(10);
/// A status is asked again if no node answers for a moment: the one that was asked may be the one that restarts.
const NO_ANSWER: Duration = Duration::from_secs(10);

/// Which nodes are restarted, and how.
#[derive(clap::Args)]
pub(super) struct Restart {
    /// The nodes, in this order.
    #[arg(value_name = "NODE", required_unless_present = "all", conflicts_with = "all")]
    names: Vec<String>,
    /// All nodes of the cluster.
    #[arg(long)]
    all: bool,
    /// Restart a node also if clients of a volume then wait until the node is back, because too few copies are elsewhere.
    #[arg(long)]
    force: bool,
    /// Leave volumes where they have gone. Otherwise the volumes of a node are attached at the node again when it is back.
    #[arg(long)]
    leave_volumes: bool,
    /// How long a node may take to come back, and then its volumes until all their copies are in sync.
    #[arg(long, value_name = "TIME", default_value = "30m")]
    limit: loadline_base::units::TimeSpan,
    #[command(flatten)]
    api: Api,
}

/// A restart of some nodes of a cluster.
struct Rolling<'a> {
    args: &'a Restart,
    limit: Duration,
    /// The APIs of all nodes, by name: any of them is asked.
    apis: BTreeMap<String, Api>,
    done: Vec<String>,
}

pub(super) fn run(args: &Restart) -> Result<Exit, Failed> {
    let status: StatusView = args.api.get("/v1/status")?;
    let known: Vec<&str> = status.nodes.iter().map(|node| node.name.as_str()).collect();
    if let Some(name) = args.names.iter().find(|name| !known.contains(&name.as_str())) {
        let message = format!("no node is named {name}: the nodes are {}", known.join(", "));
        return Err(Failed::new(Exit::Usage, message, false));
    }
    let mut seen = BTreeSet::new();
    if let Some(name) = args.names.iter().find(|name| !seen.insert(name.as_str())) {
        return Err(Failed::new(
            Exit::Usage,
            format!("node {name} is named twice: name each node once"),
            false,
        ));
    }
    let names: Vec<String> = match args.all {
        true => known.iter().map(ToString::to_string).collect(),
        false => args.names.clone(),
    };
    let api = |node: &NodeView| Some((node.name.clone(), args.api.of_other(node.api.parse().ok()?)));
    let mut rolling = Rolling {
        args,
        limit: args.limit.0,
        apis: status.nodes.iter().filter_map(api).collect(),
        done: Vec::new(),
    };
    for (number, name) in (1..).zip(&names) {
        rolling.restart(name, number, names.len()).map_err(|why| rolling.after(why))?;
        rolling.done.push(name.clone());
    }
    let what = match names.as_slice() {
        [name] => format!("node {name} was restarted"),
        names => format!("{} nodes were restarted, one after the other", names.len()),
    };
    Ok(args.api.done_with(&what, &[("nodes", names.len() as u64)]))
}

impl Rolling<'_> {
    /// A failure, with what was done before it.
    fn after(&self, why: Failed) -> Failed {
        match self.done.as_slice() {
            [] => why,
            done => why.after(&format!("restarted before: {}", done.join(", "))),
        }
    }

    /// The status, as a node reports it that is not this one.
    fn status(&self, but: &str) -> Result<StatusView, Failed> {
        let begun = Instant::now();
        // The only node of a cluster answers when it is back.
        let patience = if self.apis.len() == 1 { self.limit } else { NO_ANSWER };
        loop {
            let mut failed = None;
            for (_, api) in self.apis.iter().filter(|(name, _)| *name != but || self.apis.len() == 1) {
                match api.get::<StatusView>("/v1/status") {
                    Ok(status) => return Ok(status),
                    Err(why) => failed = Some(why),
                }
            }
            match failed {
                Some(why) if begun.elapsed() >= patience => return Err(why),
                _ => std::thread::sleep(LOOK),
            }
        }
    }

    fn restart(&self, name: &str, number: usize, of: usize) -> Result<(), Failed> {
        let before = self.wait(name, |status| missing(status, Some(name)))?;
        find(&before, name)?;
        let wait: Vec<&str> = before
            .volumes
            .iter()
            .filter(|volume| volume.waits_without(|node| node == name))
            .map(|v| v.name.as_str())
            .collect();
        if !wait.is_empty() && !self.args.force {
            let message = format!(
                "node {name} is not restarted: without it, clients of these volumes wait, since too few of their copies are at other nodes: \
                 {}. Add copies, or give --force",
                wait.join(", ")
            );
            return Err(Failed::new(Exit::Failed, message, false));
        }
        let at_it = |volume: &&VolumeView| volume.attached.is_some() && volume.owner.as_deref() == Some(name);
        let volumes: Vec<&str> =
            before.volumes.iter().filter(at_it).map(|volume| volume.name.as_str()).collect();
        let api = self.apis.get(name).ok_or_else(|| {
            Failed::new(Exit::Failed, format!("the address of node {name} cannot be read"), false)
        })?;
        print_line!("restart of node {name} ({number} of {of})");
        let old: u64 = api.post(&format!("/v1/nodes/{}/restart", escaped(name)), ())?;
        // Since when its new process is known to run.
        let mut runs: Option<Instant> = None;
        let after = self.wait(name, |status| match status.nodes.iter().find(|node| node.name == name) {
            Some(node) if node.incarnation > old && !node.stopping && node.alive => {
                runs.get_or_insert_with(Instant::now);
                missing(status, None)
            }
            Some(node) => {
                runs = None;
                let stops = node.alive && (node.incarnation <= old || node.stopping);
                Some(if stops { "it has stopped".into() } else { "it answers again".into() })
            }
            None => missing(status, None),
        })?;
        if self.args.leave_volumes {
            return Ok(());
        }
        // A temporary attachment stays where it went: it may end just now, and must not be made again.
        let gone = |volume: &VolumeView| {
            let is_here = |node: &Option<String>| node.as_deref() == Some(name);
            let is_back = is_here(&volume.attached) && is_here(&volume.owner);
            volume.attached.is_some() && volume.attach_key.is_none() && !is_back
        };
        // A copy whose process has just started waits for one lease before it follows a new owner.
        let lease = after.volumes.iter().map(|volume| volume.lease_ms).max().unwrap_or(0);
        let waited = runs.map_or(Duration::ZERO, |since| since.elapsed());
        std::thread::sleep(Duration::from_millis(lease).saturating_sub(waited));
        for volume in
            after.volumes.iter().filter(|volume| volumes.contains(&volume.name.as_str()) && gone(volume))
        {
            let attach = Attach { node: Some(name.to_owned()), when_started: false, key: None };
            let attached: Result<Use, Failed> =
                api.post(&format!("/v1/volumes/{}/attach", escaped(&volume.name)), attach);
            attached.map_err(|why| why.after(&format!("node {name} was restarted")))?;
        }
        Ok(())
    }

    /// Waits until this has nothing to wait for any more, and returns the status of then.
    fn wait(
        &self,
        name: &str,
        mut waits_for: impl FnMut(&StatusView) -> Option<String>,
    ) -> Result<StatusView, Failed> {
        let begun = Instant::now();
        let mut reported: Option<Instant> = None;
        loop {
            let status = self.status(name)?;
            let Some(waits) = waits_for(&status) else { return Ok(status) };
            if begun.elapsed() >= self.limit {
                let message = format!(
                    "restart of node {name}: it has waited for {} until {waits}. The nodes that come after it are not restarted. \
                     'loadline san status' shows the cause",
                    self.args.limit
                );
                return Err(Failed::new(Exit::Failed, message, false));
            }
            if begun.elapsed() >= EVERY && reported.is_none_or(|at| at.elapsed() >= EVERY) {
                let (seconds, limit) = (begun.elapsed().as_secs(), self.args.limit);
                eprint_line!(
                    "restart of node {name} waits until {waits} ({seconds} s so far, {limit} at most)"
                );
                reported = Some(Instant::now());
            }
            std::thread::sleep(LOOK);
        }
    }
}

fn find<'a>(status: &'a StatusView, name: &str) -> Result<&'a NodeView, Failed> {
    let found = status.nodes.iter().find(|node| node.name == name);
    found.ok_or_else(|| {
        Failed::new(Exit::Failed, format!("node {name} was removed from the cluster meanwhile"), false)
    })
}

/// What is missing before a node may be stopped: another node that does not answer, or copies that are not in sync. `but`: this node need not
/// answer.
fn missing(status: &StatusView, but: Option<&str>) -> Option<String> {
    let silent = status.nodes.iter().find(|node| !node.alive && Some(node.name.as_str()) != but);
    if let Some(node) = silent {
        return Some(format!("node {} answers again", node.name));
    }
    // Nothing is copied for a volume that no node owns.
    let ill = |volume: &&VolumeView| {
        volume.attached.is_some() && volume.health.is_some_and(|health| health != Health::Healthy)
    };
    let ill: Vec<&VolumeView> = status.volumes.iter().filter(ill).collect();
    let left: u64 =
        ill.iter().flat_map(|volume| &volume.replicas).filter_map(|replica| replica.left_bytes).sum();
    let first = ill.first()?;
    let more = if ill.len() > 1 { format!(" and {} more volumes", ill.len() - 1) } else { String::new() };
    let bytes = if left > 0 {
        format!(", {:.1} MiB to be copied", left as f64 / f64::from(1 << 20))
    } else {
        String::new()
    };
    Some(format!("all copies of volume {}{more} are in sync{bytes}", first.name))
}
