//! The command that puts a node in maintenance. How such a node gives its volumes to others is in `maintenance`, beside this folder.

use loadline_base::figures;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{MOST_NAMED, ManageError, NodeView, StatusView, VolumeView};
use crate::node::Node;

/// A node is in maintenance, or not any more.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Maintain {
    /// The maintenance ends.
    #[serde(default)]
    pub stop: bool,
    /// It begins also if clients of a volume would wait while the node is stopped.
    #[serde(default)]
    pub force: bool,
}

/// The volumes of a status whose clients would wait while this node is stopped, and with it all nodes in maintenance. A node that does not
/// answer has no copy either: its copies may not be excluded yet.
pub fn volumes_that_wait<'a>(status: &'a StatusView, node: &str) -> Vec<&'a str> {
    let counts = |of: &NodeView| of.alive && !of.maintenance;
    let is_away =
        |name: &str| name == node || !status.nodes.iter().any(|other| other.name == name && counts(other));
    let has_copy = |of: &&VolumeView| of.replicas.iter().any(|replica| replica.node == node);
    let wait = status.volumes.iter().filter(has_copy).filter(|volume| volume.waits_without(is_away));
    wait.map(|volume| volume.name.as_str()).collect()
}

impl Node {
    /// Puts a node in maintenance, or ends that. Without `force`, it is refused if clients of a volume would wait while the node is stopped.
    pub async fn maintain_node(&self, name: &str, wanted: Maintain) -> Result<(), ManageError> {
        let is_checked = !wanted.stop && !wanted.force;
        if is_checked {
            self.check_nobody_waits_for(name).await?;
        }
        self.change_node(name, move |node| node.maintenance = !wanted.stop).await?;
        // Of two commands at once, each may have found the other's node still in use: the later one to look finds both.
        if is_checked && let Err(why) = self.check_nobody_waits_for(name).await {
            self.change_node(name, |node| node.maintenance = false).await?;
            return Err(why);
        }
        Ok(())
    }

    async fn check_nobody_waits_for(&self, name: &str) -> Result<(), ManageError> {
        let status = self.status().await?;
        let wait = volumes_that_wait(&status, name);
        match wait.is_empty() {
            true => Ok(()),
            false => Err(ManageError::InUse(format!(
                "node {name} is not put in maintenance: while it is stopped, clients of these volumes would wait, since too few of \
                 their copies are in sync at other nodes: {}. Wait until copies are in sync, add copies, or give --force",
                figures::listed(&wait, MOST_NAMED)
            ))),
        }
    }
}
