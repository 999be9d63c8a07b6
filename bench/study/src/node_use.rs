//! What each node of the run's own cluster has used of what the study gave it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use loadline_target::{Cluster, CpuPeriods, TargetError, Traffic};

/// What each node has used, by its name, since the cluster began, or since an earlier moment.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NodeUse {
    /// How often each node used up the cores that the run gave it; empty if it has given all of them to all nodes.
    pub(crate) cpu: BTreeMap<String, CpuPeriods>,
    /// What the network of each node has carried; empty if nodes have no network of their own.
    pub(crate) traffic: BTreeMap<String, Traffic>,
    /// When this was counted.
    at: Instant,
}

impl NodeUse {
    /// Of nodes without limits.
    pub(crate) fn none() -> NodeUse {
        NodeUse { cpu: BTreeMap::new(), traffic: BTreeMap::new(), at: Instant::now() }
    }

    /// Of the nodes of a cluster, now.
    pub(crate) fn of(cluster: &Cluster) -> Result<NodeUse, TargetError> {
        Ok(NodeUse { cpu: cluster.cpu_periods(), traffic: cluster.traffic()?, at: Instant::now() })
    }

    /// What was used since `before`, and in what time.
    pub(crate) fn since(mut self, before: &NodeUse) -> (NodeUse, Duration) {
        for (node, now) in &mut self.cpu {
            *now = now.since(before.cpu.get(node).copied().unwrap_or_default());
        }
        for (node, now) in &mut self.traffic {
            *now = now.since(before.traffic.get(node).copied().unwrap_or_default());
        }
        let took = self.at.saturating_duration_since(before.at);
        (self, took)
    }
}
