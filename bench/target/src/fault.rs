//! What can happen to a node, and be healed.

use std::fmt;

use loadline_base::units::TimeSpan;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The kind of a fault, or the end of all faults of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// The node's process is killed, as by a power cut.
    Kill,
    /// The node's process is stopped, and its connections stay open.
    Freeze,
    /// The node receives nothing from other nodes, and they receive nothing from it.
    Cut,
    /// Each I/O of the node's devices fails.
    FailDevice,
    /// Each I/O of the node's devices takes this much longer.
    SlowDevice {
        /// By how much.
        by: TimeSpan,
    },
    /// The free space of the node's devices is used up.
    Fill,
    /// All faults of the node are undone.
    Return,
    /// The virtual machines that are workers on the node are killed, and started again.
    KillMachine,
    /// The kernels of these machines crash, and the machines are started again.
    CrashMachine,
    /// These machines stand still, and go on by themselves.
    PauseMachine {
        /// For how long: at most 4s, since a worker that says nothing for longer is lost.
        by: TimeSpan,
    },
    /// These machines are migrated to another node while they run. Volumes that they reach as local disks go with them.
    Migrate,
}

impl FaultKind {
    /// Whether it is done to workers that are virtual machines, and not to the storage.
    pub fn is_of_machines(self) -> bool {
        self.ends_machines() || matches!(self, FaultKind::PauseMachine { .. } | FaultKind::Migrate)
    }

    /// Whether machines end by it, and are started again.
    pub fn ends_machines(self) -> bool {
        matches!(self, FaultKind::KillMachine | FaultKind::CrashMachine)
    }
}

/// A fault that begins at a node, or `return`, which ends the node's faults.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// The fault.
    #[serde(rename = "do")]
    pub what: FaultKind,
    /// The name of the node.
    pub node: String,
    /// Of `migrate`: the node to which its machines go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Cause the fault even if it leaves a volume without a copy that has all data.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

impl Fault {
    /// That fault of a node, not forced.
    pub fn of(what: FaultKind, node: &str) -> Fault {
        Fault { what, node: node.into(), to: None, force: false }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let node = &self.node;
        match self.what {
            FaultKind::Kill => write!(f, "{node} is killed"),
            FaultKind::Freeze => write!(f, "{node} is frozen"),
            FaultKind::Cut => write!(f, "{node} is cut off"),
            FaultKind::FailDevice => write!(f, "the devices of {node} fail"),
            FaultKind::SlowDevice { by } => write!(f, "the devices of {node} are slowed by {by}"),
            FaultKind::Fill => write!(f, "the devices of {node} are filled"),
            FaultKind::Return => write!(f, "{node} is back"),
            FaultKind::KillMachine => write!(f, "the machines on {node} are killed"),
            FaultKind::CrashMachine => write!(f, "the machines on {node} crash"),
            FaultKind::PauseMachine { by } => write!(f, "the machines on {node} are paused for {by}"),
            FaultKind::Migrate => {
                let to = self.to.as_deref().unwrap_or("the next node");
                write!(f, "the machines on {node} are migrated to {to}")
            }
        }
    }
}
