//! What can happen to a node, and be taken back.

use std::fmt;

use loadline_base::units::TimeSpan;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// Its process is killed, as by a power cut.
    Kill,
    /// It stands still, and its connections stay open.
    Freeze,
    /// Nothing that it says reaches another node, nor the other way.
    Cut,
    /// Its devices do nothing any more.
    FailDevice,
    /// Its devices take longer, each I/O by so much.
    SlowDevice {
        /// By how much.
        by: TimeSpan,
    },
    /// What is free on its devices is taken.
    Fill,
    /// Whatever was done to it is taken back.
    Return,
}

/// Something that is done to a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// What is done to the node.
    #[serde(rename = "do")]
    pub what: FaultKind,
    /// To which node.
    pub node: String,
    /// Even if it leaves a volume without a copy that has everything.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
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
        }
    }
}
