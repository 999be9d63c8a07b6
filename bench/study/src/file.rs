//! The study file: what is measured, by whom, how, how long and how often. Its comments are the descriptions that
//! an editor shows (`loadline schema study`).

use std::net::SocketAddr;
use std::path::PathBuf;

use loadline_base::units::{ByteSize, TimeSpan};
use loadline_fleet::NodeSpec;
use loadline_load::{Engine, StopIf, Target};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::limit::Limit;
use crate::name::{Name, ProfileName};
use crate::profiles::{Matrix, ProfileEntry};

/// A study: loads on disks, measured by a fleet of workers. Write profiles as a list of names, as `[[profile]]`
/// tables, or both; a `[matrix]` then measures each of them in every combination.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Study {
    /// What the study is called: letters, digits, dots, hyphens and underscores. Run folders are named after it.
    pub name: Name,
    /// What it is for, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Loads by name, such as `B4-T2-O32-W0-PR`: block size in KiB, threads on each disk, outstanding I/Os of
    /// each thread, percent of writes, pattern (R random, S sequential, SI sequential interleaved).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub profiles: Vec<ProfileName>,
    /// What is measured.
    #[serde(default)]
    pub target: TargetSection,
    /// Who measures.
    #[serde(default)]
    pub fleet: FleetSection,
    /// How long each part of a step is.
    #[serde(default)]
    pub phases: Phases,
    /// Loads as tables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub profile: Vec<ProfileEntry>,
    /// Values that each profile is measured with, in every combination.
    #[serde(default, skip_serializing_if = "Matrix::is_empty")]
    pub matrix: Matrix,
    /// How it is run.
    #[serde(default)]
    pub run: RunSection,
}

/// What is measured: files that are created for the run, or devices that exist.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TargetSection {
    /// Files are created in this folder, which must exist, one for each disk of each worker; relative to the
    /// study file. Not given, they are created in the run's own folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folder: Option<PathBuf>,
    /// Existing block devices or files (or `null:1GiB`, which measures the generator itself), as many as there
    /// are disks. Workers get them in the order of their names: those of nodes in the order `a/0`, `a/1`, `b/0`, and
    /// those that join by the names that they bring; therefore workers that join only read them. Writing to them needs
    /// `--destroy-data`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<Target>,
}

/// Who measures: worker processes on nodes of this machine, or workers that join from other machines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FleetSection {
    /// How many nodes; 1 if nothing is said. For nodes with names and limits write `[[fleet.node]]` instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub nodes: Option<u32>,
    /// The nodes, one table for each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub node: Vec<NodeSpec>,
    /// Worker processes on each node.
    #[schemars(range(min = 1, max = 1024))]
    pub workers_per_node: u32,
    /// Disks of each worker. Each disk gets the profile's threads.
    #[schemars(range(min = 1, max = 256))]
    pub disks_per_worker: u32,
    /// Size of each file that is created; 1GiB if nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_size: Option<ByteSize>,
    /// Start no workers, but wait until this many have joined from other machines (`loadline worker`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub join: Option<u32>,
    /// Where workers join: an address and port of this machine, such as `0.0.0.0:7400`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub listen: Option<SocketAddr>,
    /// How long to wait for workers that join; 5m if nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<TimeSpan>,
}

impl Default for FleetSection {
    fn default() -> FleetSection {
        FleetSection {
            nodes: None,
            node: Vec::new(),
            workers_per_node: 1,
            disks_per_worker: 1,
            disk_size: None,
            join: None,
            listen: None,
            wait: None,
        }
    }
}

impl FleetSection {
    /// Size of each file that is created.
    pub fn file_size(&self) -> ByteSize {
        self.disk_size.unwrap_or(ByteSize::GIB)
    }

    /// How many nodes workers are started on; 0 if workers join.
    pub fn node_count(&self) -> u32 {
        match (self.join, self.node.len()) {
            (Some(_), _) => 0,
            (None, 0) => self.nodes.unwrap_or(1),
            (None, tables) => u32::try_from(tables).unwrap_or(u32::MAX),
        }
    }

    /// How many workers there are in all. Saturates; what is too many is refused by the plan.
    pub fn workers(&self) -> u32 {
        self.join.unwrap_or_else(|| self.node_count().saturating_mul(self.workers_per_node))
    }

    /// How many disks there are in all.
    pub fn disks(&self) -> u32 {
        self.workers().saturating_mul(self.disks_per_worker)
    }
}

/// How long each part of a step is. Whole seconds, since series are kept by the second.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Phases {
    /// Write all that the profiles use once, before the first step, with data that cannot be compressed: a block
    /// that was never written costs nothing to read. Not given: yes for files that are created, no for devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fill: Option<bool>,
    /// Load before it is measured.
    pub warm_up: TimeSpan,
    /// The measured window of each step.
    pub measure: TimeSpan,
    /// Load after it was measured, so that workers which end a little later are measured under the whole load.
    pub cool_down: TimeSpan,
    /// How long I/Os of the window that have not completed are waited for.
    pub drain: TimeSpan,
}

impl Default for Phases {
    fn default() -> Phases {
        Phases {
            fill: None,
            warm_up: TimeSpan::seconds(5),
            measure: TimeSpan::seconds(30),
            cool_down: TimeSpan::seconds(1),
            drain: TimeSpan::seconds(30),
        }
    }
}

/// How it is run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RunSection {
    /// How often each point is measured. All points are measured once before any is measured again, so that a
    /// drift of the storage reaches all of them. With six or more the report states a confidence level.
    #[schemars(range(min = 1, max = 1000))]
    pub repeats: u32,
    /// Where the random numbers begin. Every worker of every step gets its own, derived from this.
    pub seed: u64,
    /// Who hands I/Os to the kernel.
    pub engine: Engine,
    /// Spin on the completion queue instead of sleeping: the lowest latency, for a whole core a thread.
    pub poll: bool,
    /// Write blocks that say who wrote them, check every block read, and scan the disks after each step that
    /// writes: acknowledged writes that are lost are found.
    pub verify: bool,
    /// Limits that every step must keep; a run that misses one exits with 99.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<Limit>,
    /// The brake for storage in production: when one second of one worker is worse than this, the load of all workers
    /// ends, and the run with 99. That step counts for nothing; `--resume` measures it anew.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stop_if: Vec<StopIf>,
}

impl Default for RunSection {
    fn default() -> RunSection {
        RunSection {
            repeats: 6,
            seed: 1,
            engine: Engine::Auto,
            poll: false,
            verify: false,
            limits: Vec::new(),
            stop_if: Vec::new(),
        }
    }
}
