//! The faults of a cluster that ran before, written down before they are caused: whenever the run's process ends, the run that goes on
//! undoes them first.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::cluster::{Cluster, Node, Origin};
use crate::error::TargetError;
use crate::fault::FaultKind;
use crate::node_commands::Place;
use crate::node_state::NodeState;

/// A fault that is not undone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NotedFault {
    pub(crate) node: String,
    #[serde(rename = "do")]
    pub(crate) what: FaultKind,
    /// Where the command ran that has caused it; `None`: the node itself has.
    pub(crate) by_command: Option<Place>,
}

impl NotedFault {
    /// The state of the node.
    pub(crate) fn state(&self) -> NodeState {
        NodeState::after(self.what, self.by_command.is_some())
    }
}

/// The faults of this file; none if it is not there.
pub(crate) fn read(path: &Path) -> Result<Vec<NotedFault>, TargetError> {
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|e| {
            TargetError::failed(format!(
                "{} has no list of faults ({e}): undo the faults by hand, and remove it",
                path.display()
            ))
        }),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(TargetError::io("read", path, &e)),
    }
}

/// Writes them, so that they are on the disk when this returns; removes the file if there are none.
fn write(path: &PathBuf, faults: &[NotedFault]) -> Result<(), TargetError> {
    if faults.is_empty() {
        return match fs::remove_file(path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(TargetError::io("remove", path, &e)),
            _ => Ok(()),
        };
    }
    let new = path.with_extension("new");
    let written = || {
        let mut file = fs::File::create(&new)?;
        file.write_all(&serde_json::to_vec_pretty(faults).map_err(std::io::Error::other)?)?;
        file.sync_all()?;
        fs::rename(&new, path)?;
        path.parent().map_or(Ok(()), |folder| fs::File::open(folder)?.sync_all())
    };
    written().map_err(|e| TargetError::io("write", path, &e))
}

impl Cluster {
    /// Writes down which nodes have faults now; nothing for a cluster that this process has started, whose nodes end with it.
    pub(crate) fn note_faults(&self) -> Result<(), TargetError> {
        let Origin::Running(running) = &self.origin else { return Ok(()) };
        let path = running.noted();
        let of = |node: &Node| {
            Some(NotedFault { node: node.name.clone(), what: node.fault?, by_command: node.by_command })
        };
        let faults: Vec<NotedFault> = self.nodes.iter().filter_map(of).collect();
        write(path, &faults)
    }

    /// The names of the nodes that have faults now.
    pub fn harmed(&self) -> Vec<String> {
        let harmed = self.nodes.iter().filter(|node| node.state != NodeState::Up);
        harmed.map(|node| node.name.clone()).collect()
    }
}
