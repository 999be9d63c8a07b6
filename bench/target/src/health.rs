//! How well a cluster is.

use serde::{Deserialize, Serialize};

/// How well a cluster is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Health {
    /// Nodes that answer.
    pub nodes_alive: usize,
    /// Nodes in all.
    pub nodes: usize,
    /// Volumes that are attached and that no node serves.
    pub waiting: usize,
    /// Volumes that lack a copy.
    pub degraded: usize,
    /// Volumes in all.
    pub volumes: usize,
    /// Bytes that are still to be copied, as far as it is known.
    pub left_bytes: u64,
}

impl Health {
    /// Whether every volume has all its copies in sync.
    pub fn is_redundant(&self) -> bool {
        self.waiting == 0 && self.degraded == 0
    }

    /// Whether every volume is served.
    pub fn is_serving(&self) -> bool {
        self.waiting == 0
    }
}
