//! The names by which the workers of a fleet are known.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    /// The id of the worker.
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

/// Whether this can be (a part of) a worker's name: it stands in file names, group names and tables.
pub(crate) fn is_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=LONGEST_NAME).contains(&name.len()) && name.chars().all(allowed) && !name.starts_with('.')
}
