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
use loadline_profile::Profile;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use known::{Shape, known};
use machines::MachineCount;
use neighbours::{Candidate, Neighbours};

/// What a reader must know first.
pub const CAVEAT: &str = "data sheets state a new drive at its best depth, without copies; clusters differ in \
    everything else. See docs/orientation.md";

/// What loads compare with.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Orientation {
    /// What a reader must know first, in a sentence.
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
    /// The latency limit within which it was carried; `null` if none was asked for.
    pub within: Option<Within>,
    /// Whether more was not asked for, so that the storage carries this at least.
    pub at_least: bool,
    /// Nodes of the storage, by which it is divided before it is compared with clusters; `null` if they are not known, and it is
    /// taken as one node.
    pub nodes: Option<u32>,
    /// Why it is compared with nothing; `null` if it is compared.
    pub refused: Option<String>,
    /// The comparison in words, a line each; empty if it is compared with nothing.
    pub sentences: Vec<String>,
    /// The nearest drives with a published figure of a like load, for the load as a whole.
    pub drives: Neighbours,
    /// The nearest clusters with a published figure of a like load, for each node.
    pub clusters: Neighbours,
    /// For how many machines of each kind it is enough: those first that need a like load.
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
    /// Whether more was not asked for, so that the storage carries this at least.
    pub at_least: bool,
    /// Its 99th percentile, microseconds, if there is one.
    pub p99_us: Option<f64>,
    /// Nodes of the storage, if they are known.
    pub nodes: Option<u32>,
    /// Why it cannot be compared, if so.
    pub refused: Option<String>,
}

/// What loads compare with, in their order.
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
    let nothing = load.iops.is_nan() || load.iops <= 0.0;
    let Some(shape) = Shape::of(&load.profile).filter(|_| !nothing) else {
        let why = if nothing {
            "nothing completed"
        } else {
            "published figures are of evenly random or of sequential loads, and it is neither"
        };
        found.refused.get_or_insert(why.into());
        return found;
    };
    if found.refused.is_some() {
        return found;
    }
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

fn sentences(found: &LoadOrientation) -> Vec<String> {
    let mut sentences = Vec::new();
    sentences.extend(found.drives.sentence("").map(|said| format!("data sheets of drives: {said}")));
    let each = match found.nodes {
        Some(nodes) if nodes > 1 => format!("clusters, each of {nodes} nodes against a node of theirs"),
        _ => "clusters, as if it were one node".into(),
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
    // A load that is compared with nothing needs no caution.
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
