//! What a fleet is to be: how many workers, where, and who may join.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use loadline_base::units::{ByteSize, TimeSpan};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cpus::CpuList;
use crate::error::FleetError;

/// More workers than this are refused: each costs the controller a connection and a process slot.
pub const MOST_WORKERS: usize = 4096;
/// The longest time that a fleet waits for its workers to join.
pub const LONGEST_WAIT: TimeSpan = TimeSpan::seconds(7 * 86_400);
/// The longest name of a worker or a node, in bytes.
pub const LONGEST_NAME: usize = 100;

/// Which worker: `node-a/0` for a process that the fleet started, its own name for one that joined. Unique in a
/// fleet, and kept when the worker is started anew.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct WorkerId(pub String);

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A worker, as it introduced itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkerInfo {
    /// Which worker.
    pub id: WorkerId,
    /// The node that it is placed on: a label on one machine.
    pub node: String,
    /// The name of its host.
    pub host: String,
    /// Its process id there.
    pub pid: u32,
    /// The version of its program.
    pub version: String,
}

/// A place for workers on this machine: a name, and limits that its workers share.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeSpec {
    /// Its name: letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// The CPUs that its workers may run on, such as `0-3,6`. All, if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<String>,
    /// How much CPU its workers may use together, in cores (`1.5`). Needs the right to make control groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_limit: Option<f64>,
    /// How much memory its workers may use together. Needs the right to make control groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<ByteSize>,
}

impl NodeSpec {
    /// A node without limits.
    pub fn named(name: impl Into<String>) -> NodeSpec {
        NodeSpec { name: name.into(), ..NodeSpec::default() }
    }

    /// The rules that need no system to be checked.
    pub fn validate(&self) -> Result<(), FleetError> {
        let NodeSpec { name, cpus, cpu_limit, memory_limit } = self;
        if !is_name(name) {
            return Err(FleetError::usage(format!(
                "\"{name}\" is no name for a node: use letters, digits, '-', '_' and '.', at most {LONGEST_NAME}"
            )));
        }
        if let Some(cpus) = cpus {
            cpus.parse::<CpuList>().map_err(|e| FleetError::usage(format!("node {name}: cpus: {e}")))?;
        }
        // The kernel takes no quota below 1 ms in a period of 100 ms.
        if let Some(cores) = cpu_limit
            && !(0.01..=4096.0).contains(cores)
        {
            return Err(FleetError::usage(format!(
                "node {name}: a cpu_limit of {cores} cores cannot be set: give 0.01 to 4096"
            )));
        }
        if let Some(limit) = memory_limit
            && *limit < ByteSize(16 << 20)
        {
            return Err(FleetError::usage(format!(
                "node {name}: a memory_limit of {limit} is less than one worker needs: give 16MiB for each, and \
                 its I/O buffers"
            )));
        }
        Ok(())
    }
}

/// Where the workers of a fleet come from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Placement {
    /// Processes of this program on this machine, each a failure domain of its own. Their names are
    /// `NODE/0`, `NODE/1`, ...
    Processes {
        /// The nodes. At least one.
        nodes: Vec<NodeSpec>,
        /// Workers on each.
        workers_per_node: u32,
    },
    /// Workers that are started elsewhere with `loadline worker --join HOST:PORT --token T`.
    Joined {
        /// How many.
        workers: u32,
        /// How long all of them are waited for.
        wait: TimeSpan,
    },
}

/// What a fleet is to be.
#[derive(Debug, Clone, PartialEq)]
pub struct FleetSpec {
    /// Where the workers come from.
    pub placement: Placement,
    /// Where the controller listens. Beyond this machine only if told so.
    pub listen: SocketAddr,
    /// What worker and controller prove to each other that they have; at least 8 bytes. A random one, if nothing is
    /// said: the proofs let whoever connects try guesses at leisure, so one of one's own must be as hard to guess.
    pub token: Option<String>,
    /// The `loadline` program, of which local workers are processes.
    pub program: PathBuf,
    /// A folder for what local workers print, one file each. It must exist.
    pub worker_log_dir: Option<PathBuf>,
}

impl FleetSpec {
    /// A fleet that listens on this machine only, on a free port, with a random token, and of which local workers
    /// are processes of the running program.
    pub fn new(placement: Placement) -> FleetSpec {
        FleetSpec {
            placement,
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            token: None,
            // The link, and not the file's path: it leads to the running program even if that file was replaced.
            program: PathBuf::from("/proc/self/exe"),
            worker_log_dir: None,
        }
    }

    /// The rules that need no system to be checked.
    pub fn validate(&self) -> Result<(), FleetError> {
        if let Some(token) = &self.token
            && !(8..=512).contains(&token.len())
        {
            return Err(FleetError::usage("a token has 8 to 512 bytes: leave it out for a random one"));
        }
        let workers = match &self.placement {
            Placement::Joined { wait, .. } if *wait > LONGEST_WAIT => {
                return Err(FleetError::usage(format!(
                    "nobody waits {wait} for workers: at most {LONGEST_WAIT}"
                )));
            }
            Placement::Joined { workers, .. } => *workers as usize,
            Placement::Processes { nodes, workers_per_node } => {
                for (i, node) in nodes.iter().enumerate() {
                    node.validate()?;
                    if nodes[..i].iter().any(|other| other.name == node.name) {
                        return Err(FleetError::usage(format!("there are two nodes named {}", node.name)));
                    }
                }
                nodes.len().saturating_mul(*workers_per_node as usize)
            }
        };
        if workers == 0 || workers > MOST_WORKERS {
            return Err(FleetError::usage(format!("a fleet has 1 to {MOST_WORKERS} workers, not {workers}")));
        }
        Ok(())
    }
}

/// Whether this can be (a part of) a worker's name: it stands in file names, group names and tables.
pub(crate) fn is_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=LONGEST_NAME).contains(&name.len()) && name.chars().all(allowed) && !name.starts_with('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn processes(nodes: Vec<NodeSpec>, workers_per_node: u32) -> FleetSpec {
        FleetSpec::new(Placement::Processes { nodes, workers_per_node })
    }

    #[test]
    fn a_fleet_listens_on_this_machine_only_unless_told_otherwise() {
        let spec = processes(vec![NodeSpec::named("a")], 1);
        assert!(spec.listen.ip().is_loopback());
        assert_eq!(spec.validate(), Ok(()));
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_name() {
        let node = NodeSpec::named("node-a");
        let bad = [
            (processes(vec![], 1), "1 to 4096 workers"),
            (processes(vec![node.clone()], 5000), "5000"),
            (processes(vec![node.clone(), node.clone()], 1), "two nodes named node-a"),
            (processes(vec![NodeSpec::named("a/b")], 1), "a/b"),
            (processes(vec![NodeSpec { cpus: Some("3-1".into()), ..node.clone() }], 1), "3-1"),
            (processes(vec![NodeSpec { cpu_limit: Some(f64::NAN), ..node.clone() }], 1), "cpu_limit"),
            (
                processes(vec![NodeSpec { memory_limit: Some(ByteSize::MIB), ..node.clone() }], 1),
                "memory_limit",
            ),
            (FleetSpec { token: Some("short".into()), ..processes(vec![node.clone()], 1) }, "8 to 512 bytes"),
            (
                FleetSpec::new(Placement::Joined { workers: 1, wait: TimeSpan::seconds(u64::MAX / 2) }),
                "nobody waits",
            ),
        ];
        for (spec, word) in bad {
            let error = spec.validate().unwrap_err();
            assert!(error.message.contains(word), "{error}");
        }
    }
}
