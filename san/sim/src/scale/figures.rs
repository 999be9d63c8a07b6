//! What was measured, for people and for programs.

use serde::Serialize;

use super::Cluster;
use super::world::config::{Load, record_bytes};
use super::world::{Shared, Traffic, World};
use crate::time::{MS, Time};

/// What a volume has to do with a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// What has failed owned it, or one end of the link did.
    Owner,
    /// What has failed had a copy of it, or both ends of the link did, and another node owned it.
    Copy,
    /// It is about other nodes.
    Other,
}

/// A cluster, and what was measured on it. All times are simulated seconds.
#[derive(Debug, Clone, Serialize)]
pub struct Measured {
    /// The cluster.
    pub cluster: Cluster,
    /// Figures of the time until all volumes were attached and served.
    pub attach: Attach,
    /// Figures of a time in which no client sends a request.
    pub steady: Steady,
    /// Each fault.
    pub faults: Vec<Fault>,
    /// Rules that were violated; empty if the cluster is correct.
    pub violations: Vec<String>,
}

/// What attaching all volumes at once took.
#[derive(Debug, Clone, Serialize)]
pub struct Attach {
    /// Seconds until all volumes were served.
    pub served_s: f64,
    /// Commits of records.
    pub writes: u64,
}

/// What a cluster without faults and without I/O sends and stores.
#[derive(Debug, Clone, Serialize)]
pub struct Steady {
    /// The length of the measured time, seconds.
    pub seconds: f64,
    /// Commits to the configuration store.
    pub commits: u64,
    /// Reads of the configuration store a second, over all nodes.
    pub reads_a_second: f64,
    /// Messages that a node sends to other nodes a second: the mean of all nodes.
    pub messages_a_second: f64,
    /// Messages that the busiest node sends to other nodes a second.
    pub messages_a_second_most: f64,
    /// Bytes of these messages a second, before they are framed for the network: the mean of all nodes.
    pub bytes_a_second: f64,
    /// Bytes of the whole configuration.
    pub configuration_bytes: u64,
    /// Bytes of the largest record of a volume.
    pub record_bytes: u64,
}

/// A fault.
#[derive(Debug, Clone, Serialize)]
pub struct Fault {
    /// What went wrong.
    pub name: &'static str,
    /// The indices of the nodes that it was done to.
    pub nodes: Vec<usize>,
    /// How long its cause lasted, seconds.
    pub lasts_s: f64,
    /// Figures of the time in which the cause lasted.
    pub during: Phase,
    /// Figures of the time from the end of the cause until all volumes were served and redundant.
    pub after: Phase,
}

/// A part of a fault.
#[derive(Debug, Clone, Serialize)]
pub struct Phase {
    /// Volumes, by what they had to do with it. Those without any volume are left out.
    pub volumes: Vec<Volumes>,
    /// Seconds until all volumes were served and redundant again; `None` while the cause lasts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redundant_s: Option<f64>,
    /// The calls of all nodes to the configuration store.
    pub store: Store,
}

/// Volumes of a role.
#[derive(Debug, Clone, Serialize)]
pub struct Volumes {
    /// The role.
    pub role: Role,
    /// The number of volumes.
    pub count: usize,
    /// Commits of the records of all these volumes.
    pub writes: u64,
    /// Commits of the record of the volume with the most.
    pub writes_most: u32,
    /// The longest wait of a client's write, seconds: the median of the volumes.
    pub stall_median_s: f64,
    /// The longest wait of a client's write, seconds: the volume with the longest.
    pub stall_most_s: f64,
    /// Seconds until all copies of a volume were in sync: the median of the volumes that had a copy out of sync. `None` while the cause
    /// lasts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redundant_median_s: Option<f64>,
    /// Seconds until all copies of a volume were in sync: the slowest volume. `None` while the cause lasts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redundant_most_s: Option<f64>,
}

/// Calls of nodes to the configuration store.
#[derive(Debug, Clone, Serialize)]
pub struct Store {
    /// Commits of records.
    pub record_commits: u64,
    /// Commits of questions between nodes, and of their answers.
    pub question_commits: u64,
    /// Commits of the catalog of copies.
    pub catalog_commits: u64,
    /// Calls that read, `whole_reads` included.
    pub reads: u64,
    /// Calls that read the whole configuration.
    pub whole_reads: u64,
    /// Bytes of whole configurations that were read.
    pub whole_bytes: u64,
    /// The most commits in one second.
    pub commits_a_second_most: u64,
    /// The most reads in one second.
    pub reads_a_second_most: u64,
    /// The most bytes of whole configurations that were read in one second.
    pub bytes_a_second_most: u64,
}

/// Nanoseconds as seconds, to the millisecond.
pub(super) fn seconds(time: Time) -> f64 {
    ((time + MS / 2) / MS) as f64 / 1000.0
}

fn median(sorted: &[Time]) -> Time {
    sorted.get(sorted.len() / 2).copied().unwrap_or(0)
}

impl Store {
    fn of(load: &Load, each: &[Load]) -> Store {
        let most = |of: fn(&Load) -> u64| each.iter().map(of).max().unwrap_or(0);
        Store {
            record_commits: load.records,
            question_commits: load.questions,
            catalog_commits: load.notes,
            reads: load.reads,
            whole_reads: load.catalogs,
            whole_bytes: load.bytes,
            commits_a_second_most: most(Load::commits),
            reads_a_second_most: most(|load| load.reads),
            bytes_a_second_most: most(|load| load.bytes),
        }
    }
}

impl Phase {
    /// The phase that ends now. `redundant`: when all was well, if that was waited for.
    pub(super) fn of<'w>(
        world: &'w World,
        of_role: impl Fn(Role) -> Vec<&'w Shared>,
        redundant: Option<Time>,
    ) -> Phase {
        let began = world.phase_began;
        let volumes = [Role::Owner, Role::Copy, Role::Other].into_iter().filter_map(|role| {
            let volumes = of_role(role);
            if volumes.is_empty() {
                return None;
            }
            let stall = |volume: &&Shared| volume.client.stall.max(volume.client.waits(world.now));
            let mut stalls: Vec<Time> = volumes.iter().map(stall).collect();
            stalls.sort_unstable();
            let synced = volumes.iter().filter_map(|volume| volume.synced.filter(|at| *at > began));
            let mut synced: Vec<Time> = synced.map(|at| at - began).collect();
            synced.sort_unstable();
            let is_known = redundant.is_some() && !synced.is_empty();
            Some(Volumes {
                role,
                count: volumes.len(),
                writes: volumes.iter().map(|volume| u64::from(volume.writes)).sum(),
                writes_most: volumes.iter().map(|volume| volume.writes).max().unwrap_or(0),
                stall_median_s: seconds(median(&stalls)),
                stall_most_s: seconds(stalls.last().copied().unwrap_or(0)),
                redundant_median_s: is_known.then(|| seconds(median(&synced))),
                redundant_most_s: is_known.then(|| seconds(synced.last().copied().unwrap_or(0))),
            })
        });
        Phase {
            volumes: volumes.collect(),
            redundant_s: redundant.map(|at| seconds(at - began)),
            store: Store::of(&world.load, &world.seconds),
        }
    }
}

impl Steady {
    /// Of what was counted since the phase began.
    pub(super) fn of(world: &World, traffic: &[Traffic]) -> Steady {
        let length = (world.now - world.phase_began) as f64 / 1e9;
        let rate = |count: u64| (count as f64 / length * 10.0).round() / 10.0;
        let (messages, bytes) =
            traffic.iter().fold((0, 0), |(messages, bytes), of| (messages + of.messages, bytes + of.bytes));
        let nodes = traffic.len() as u64;
        Steady {
            seconds: length,
            commits: world.load.commits(),
            reads_a_second: rate(world.load.reads),
            messages_a_second: rate(messages / nodes),
            messages_a_second_most: rate(traffic.iter().map(|of| of.messages).max().unwrap_or(0)),
            bytes_a_second: rate(bytes / nodes),
            configuration_bytes: world.catalog_bytes(),
            record_bytes: world.volumes.iter().map(|volume| record_bytes(&volume.record)).max().unwrap_or(0),
        }
    }
}
