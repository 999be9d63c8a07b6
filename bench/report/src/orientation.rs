//! What a load compares with: published drives and clusters, and how many machines of a kind it is enough for. Orientation, not a
//! verdict: it needs no criterion, decides nothing, and is left out wherever a figure is doubtful.
//!
//! | module | idea |
//! | --- | --- |
//! | [`mod@known`] | the published figures, each with its source (`known.toml`) |
//! | [`neighbours`] | the nearest published figures of a like load, below and above |
//! | [`machines`] | for how many machines of a kind it is enough |
//! | [`subject`] | which loads of a run or a bench are compared, and why one is not |

pub mod known;
pub mod machines;
pub mod neighbours;
pub mod subject;

use std::fmt;

use loadline_base::figures::{latency, megabytes, thousands};
use loadline_base::units::ByteSize;
use loadline_profile::Profile;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use known::{Shape, known};
use machines::MachineCount;
use neighbours::{Candidate, Neighbours};

/// What limits every comparison, for the reader, in one sentence.
pub const CAVEAT: &str = "data sheets state what a new drive does at its best queue depth, without copies; \
    clusters differ in everything else. See docs/explanation/orientation.md";

/// A load is compared if it works on so many bytes for each node of the storage, or on more: caches of drives have up to 512 MiB or so.
const LEAST_WORKING_SET: u64 = 1 << 30;

/// What loads compare with.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Orientation {
    /// What limits every comparison, in a sentence; empty if there is no load.
    pub caveat: String,
    /// The load lines that searches found, or else the largest load of each family; three at the most.
    pub loads: Vec<LoadOrientation>,
}

/// What one load compares with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LoadOrientation {
    /// The load.
    pub label: String,
    /// I/Os a second of the whole load.
    pub iops: f64,
    /// Bytes a second of the whole load.
    pub bytes_per_s: f64,
    /// The latency limit within which it was carried; `null` if the study sets none.
    pub within: Option<Within>,
    /// Whether no larger load was tried, so that the storage carries this at least.
    pub at_least: bool,
    /// Nodes of the storage: the load is divided by them before it is compared with clusters. `null` if they are not known: the load
    /// is then compared as if it were of one node.
    pub nodes: Option<u32>,
    /// Why it is compared with nothing; `null` if it is compared.
    pub refused: Option<String>,
    /// The comparison in words, a line each; empty if it is compared with nothing.
    pub sentences: Vec<String>,
    /// The nearest drives with a published figure of a like load, for the load as a whole.
    pub drives: Neighbours,
    /// The nearest clusters with a published figure of a like load, for each node.
    pub clusters: Neighbours,
    /// For how many machines of each kind the load is enough; kinds that need a like load come first.
    pub machines: Vec<MachineCount>,
}

/// A latency limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Within {
    /// The percentile, by its name.
    pub percentile: String,
    /// The limit, microseconds.
    pub limit_us: f64,
}

impl fmt::Display for Within {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} <= {}", self.percentile, latency(self.limit_us))
    }
}

/// A load to compare.
#[derive(Debug, Clone, PartialEq)]
pub struct Load {
    /// What it is called.
    pub label: String,
    /// What is asked of each disk.
    pub profile: Profile,
    /// I/Os a second of the whole load.
    pub iops: f64,
    /// Bytes a second of the whole load.
    pub bytes_per_s: f64,
    /// The limit that it was carried within: a load line.
    pub within: Option<Within>,
    /// Whether no larger load was tried, so that the storage carries this at least.
    pub at_least: bool,
    /// Its 99th percentile, microseconds, if there is one.
    pub p99_us: Option<f64>,
    /// Nodes of the storage, if they are known.
    pub nodes: Option<u32>,
    /// Bytes that it works on, all disks together, if they are known.
    pub working_set: Option<u64>,
    /// Why the load is not compared; `None` if nothing is known against it.
    pub refused: Option<String>,
}

/// Compares loads, in their order.
pub fn of(loads: &[Load]) -> Orientation {
    let loads: Vec<LoadOrientation> = loads.iter().map(of_load).collect();
    let caveat = if loads.is_empty() { String::new() } else { CAVEAT.into() };
    Orientation { caveat, loads }
}

fn of_load(load: &Load) -> LoadOrientation {
    let mut found = LoadOrientation {
        label: load.label.clone(),
        iops: load.iops,
        bytes_per_s: load.bytes_per_s,
        within: load.within.clone(),
        at_least: load.at_least,
        nodes: load.nodes,
        refused: load.refused.clone(),
        sentences: Vec::new(),
        drives: Neighbours::default(),
        clusters: Neighbours::default(),
        machines: Vec::new(),
    };
    let shape = match why_not(load) {
        Ok(shape) => shape,
        Err(why) => {
            found.refused = Some(why);
            return found;
        }
    };
    let value = if shape.in_bytes() { load.bytes_per_s } else { load.iops };
    let drives = known().drive.iter().flat_map(|drive| {
        let like = drive.load.iter().filter(|figure| shape.is_like(figure));
        like.filter_map(|figure| Candidate::of(&drive.name, figure, 1, &drive.conditions, &drive.sources))
    });
    found.drives = Neighbours::of(value, drives, shape.in_bytes());
    let nodes = f64::from(load.nodes.unwrap_or(1).max(1));
    let clusters = known().cluster.iter().flat_map(|cluster| {
        let like = cluster.load.iter().filter(|figure| shape.is_like(figure));
        like.filter_map(|figure| {
            Candidate::of(&cluster.name, figure, cluster.nodes, &cluster.conditions, &cluster.sources)
        })
    });
    found.clusters = Neighbours::of(value / nodes, clusters, shape.in_bytes());
    found.machines = machines::counts(shape, load);
    found.sentences = sentences(&found);
    found
}

/// The shape by which a load is compared. The error is why it is compared with nothing.
fn why_not(load: &Load) -> Result<Shape, String> {
    if let Some(why) = &load.refused {
        return Err(why.clone());
    }
    if load.iops.is_nan() || load.iops <= 0.0 {
        return Err("nothing completed".into());
    }
    let shape = Shape::of(&load.profile)?;
    let bytes = load.working_set.ok_or("the size of its working set is not known")?;
    let least = LEAST_WORKING_SET.saturating_mul(u64::from(load.nodes.unwrap_or(1).max(1)));
    if bytes < least {
        return Err(format!(
            "its working set of {} is less than {}{}: the caches of the drives may hold it",
            ByteSize(bytes),
            ByteSize(LEAST_WORKING_SET),
            if least > LEAST_WORKING_SET { " for each node" } else { "" },
        ));
    }
    Ok(shape)
}

fn sentences(found: &LoadOrientation) -> Vec<String> {
    let mut sentences = Vec::new();
    sentences.extend(found.drives.sentence("").map(|said| format!("data sheets of drives: {said}")));
    let each = match found.nodes {
        Some(nodes) => format!("clusters, by node ({nodes} here)"),
        None => "clusters, as if this storage were one node".into(),
    };
    sentences.extend(found.clusters.sentence(" a node").map(|said| format!("{each}: {said}")));
    if sentences.is_empty() {
        sentences.push("no figure of a load like this is among the published ones".into());
    }
    sentences.extend(machines::sentence(&found.machines, found.within.as_ref()));
    sentences
}

/// As lines for a terminal, with a title; empty if there is nothing to compare.
pub fn text(orientation: &Orientation) -> String {
    let lines = lines(orientation);
    // If no load is compared, the caveat has nothing to limit.
    if orientation.loads.iter().all(|load| load.refused.is_some()) {
        return lines.iter().map(|line| format!("orientation: {line}\n")).collect();
    }
    let lines: String = lines.iter().map(|line| format!("  {line}\n")).collect();
    format!("orientation only: {}\n{lines}", orientation.caveat)
}

/// The comparison of every load, four lines each at the most.
fn lines(orientation: &Orientation) -> Vec<String> {
    let mut lines = Vec::new();
    for load in &orientation.loads {
        match &load.refused {
            Some(why) => lines.push(format!("{}: not compared: {why}", load.label)),
            None => {
                lines.push(title(load));
                lines.extend(load.sentences.iter().map(|sentence| format!("  {sentence}")));
            }
        }
    }
    lines
}

/// The load, and how much it is.
pub fn title(load: &LoadOrientation) -> String {
    let within = load.within.as_ref().map_or(String::new(), |within| format!(" within {within}"));
    let least = if load.at_least { "at least " } else { "" };
    let (iops, mb) = (thousands(load.iops), megabytes(load.bytes_per_s));
    format!("{}: {least}{iops} IOPS, {mb} MB/s{within}", load.label)
}

#[cfg(test)]
mod tests;
