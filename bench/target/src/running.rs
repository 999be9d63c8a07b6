//! A cluster that ran before, and goes on running: found by its API. Only volumes of the run's own are made and removed in it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use loadline_api_client::ApiAddress;
use loadline_base::units::ByteSize;
use serde_json::{Value, json};

use crate::api::{Api, Status};
use crate::cluster::{Cluster, Node, Origin, pause};
use crate::error::TargetError;
use crate::filler_name::is_filler;
use crate::node_commands::NodeCommands;
use crate::node_state::NodeState;

/// How long a node may take to restart.
const RESTARTS: Duration = Duration::from_secs(60);

/// Which cluster, and what of it is the run's.
#[derive(Debug, Clone)]
pub struct RunningSpec {
    /// The API of one of its nodes.
    pub api: ApiAddress,
    /// The file that proves the access, of an API at an https address.
    pub access: Option<PathBuf>,
    /// The nodes that the run needs.
    pub nodes: Vec<String>,
    /// What the names of the run's volumes begin with.
    pub prefix: String,
    /// The volumes that the run has made or was about to make. No others whose names begin so may be there.
    pub made: BTreeSet<String>,
    /// How nodes are harmed and brought back.
    pub commands: NodeCommands,
    /// The nodes that are to cause faults in themselves. They must allow it (`test_faults = true` in `node.toml`).
    pub test_faults: BTreeSet<String>,
}

/// What a cluster that ran before says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundCluster {
    /// Its id.
    pub id: String,
    /// How many nodes it has.
    pub nodes: usize,
    /// Bytes of all devices that are not promised to replicas.
    pub free: ByteSize,
}

/// What is known of such a cluster.
#[derive(Debug)]
pub(crate) struct Running {
    prefix: String,
    pub(crate) commands: NodeCommands,
    /// The life of each node's process that is expected.
    lives: BTreeMap<String, u64>,
}

impl Running {
    /// Whether a volume is the run's.
    pub(crate) fn is_of_run(&self, volume: &str) -> bool {
        volume.starts_with(&self.prefix)
    }

    /// The nodes to which nothing was done, and which do not answer, or were started anew.
    pub(crate) fn ended_unasked(&self, cluster: &Cluster) -> Vec<String> {
        let status = match cluster.alive().and_then(|api| api.status()) {
            Ok(status) => status,
            Err(error) => return vec![error.message],
        };
        let up = cluster.nodes.iter().filter(|node| node.state == NodeState::Up);
        let ended = |node: &Node| {
            let now = status.nodes.iter().find(|now| now.name == node.name);
            match now {
                Some(now) if !now.alive => Some(format!("{} does not answer the other nodes", node.name)),
                Some(now) if self.lives.get(&node.name).is_some_and(|life| *life != now.incarnation) => {
                    Some(format!("{} has ended, and was started anew", node.name))
                }
                Some(_) => None,
                None => Some(format!("{} is not in the cluster any more", node.name)),
            }
        };
        up.filter_map(ended).collect()
    }
}

/// The nodes that a run needs and that are not in the cluster, or do not run, as an error of kind `Usage`.
fn has_nodes(status: &Status, needed: &[String]) -> Result<(), TargetError> {
    let mut problems = Vec::new();
    for name in needed {
        match status.nodes.iter().find(|node| node.name == *name) {
            None => problems.push(format!("has no node {name}")),
            Some(node) if !node.alive => problems.push(format!("has a node {name} that does not run")),
            Some(_) => {}
        }
    }
    match problems.is_empty() {
        true => Ok(()),
        false => {
            let all: Vec<&str> = status.nodes.iter().map(|node| node.name.as_str()).collect();
            Err(TargetError::usage(format!(
                "the cluster {} ({}). Give the nodes of the fleet the names of the cluster's nodes, which are {}",
                problems.join(", and "),
                status.cluster,
                all.join(", ")
            )))
        }
    }
}

impl FoundCluster {
    /// Asks the cluster at this address what it has. An error of kind `Usage` if one of these nodes is not there or does not run.
    pub fn look(
        api: ApiAddress,
        access: Option<PathBuf>,
        nodes: &[String],
    ) -> Result<FoundCluster, TargetError> {
        let status = Api::new(api, access).status()?;
        has_nodes(&status, nodes)?;
        let free = status.devices.iter().map(|device| device.bytes.saturating_sub(device.promised)).sum();
        Ok(FoundCluster { id: status.cluster, nodes: status.nodes.len(), free: ByteSize(free) })
    }
}

impl Cluster {
    /// Finds the cluster at this address. An error of kind `Usage` if a node is missing that the run needs, or if there is a volume
    /// whose name begins as those of the run, and which the run has not made.
    pub fn find(spec: RunningSpec, stop: &AtomicBool) -> Result<Cluster, TargetError> {
        let api = Api::new(spec.api, spec.access);
        let status = api.status()?;
        has_nodes(&status, &spec.nodes)?;
        let foreign = |name: &&String| name.starts_with(&spec.prefix) && !spec.made.contains(*name);
        if let Some(foreign) = status.volumes.iter().map(|volume| &volume.name).find(foreign) {
            return Err(TargetError::usage(format!(
                "the cluster has a volume {foreign}, which this run has not made: remove it, or run the study anew"
            )));
        }
        let lives = status.nodes.iter().map(|node| (node.name.clone(), node.incarnation)).collect();
        let node = |node: &crate::api::Node| Node {
            name: node.name.clone(),
            api: api.of_other(node.api),
            address: node.api,
            process: None,
            state: NodeState::Up,
            by_command: None,
        };
        let nodes = status.nodes.iter().map(node).collect();
        let origin = Origin::Running(Running { prefix: spec.prefix, commands: spec.commands, lives });
        let cluster = Cluster { origin, nodes, id: status.cluster };
        for node in cluster.nodes.iter().filter(|node| spec.test_faults.contains(&node.name)) {
            // There are none yet: this finds out whether there may be some.
            node.api.delete::<Value>("/v1/test-faults").map_err(|error| {
                TargetError::usage(format!(
                    "{} cannot cause faults in itself: {error}. Set test_faults = true in its node.toml and restart it, or add \
                     commands that cause them",
                    node.name
                ))
            })?;
        }
        // What an earlier process of this run has left.
        if !spec.made.is_empty() && status.volumes.iter().any(|volume| is_filler(&volume.name)) {
            cluster.remove_fillers(stop)?;
        }
        Ok(cluster)
    }

    /// Removes these volumes, those that are there. The error names what is left.
    pub fn remove_volumes(&self, names: &BTreeSet<String>, stop: &AtomicBool) -> Result<(), TargetError> {
        let api = self.alive()?;
        let volumes = api.status()?.volumes;
        let mut left = Vec::new();
        let mut why = None;
        for volume in volumes.iter().filter(|volume| names.contains(&volume.name)) {
            let name = &volume.name;
            let detach = format!("/v1/volumes/{name}/detach");
            let removed = pause(stop)
                .and_then(|()| api.post::<Value>(&detach, &json!({ "force": true })))
                .and_then(|_| api.delete::<Value>(&format!("/v1/volumes/{name}")));
            if let Err(error) = removed {
                left.push(name.as_str());
                why = why.or(Some(error));
            }
        }
        match why {
            None => Ok(()),
            Some(error) => Err(TargetError {
                message: format!("the volumes {} are left in the cluster: {error}", left.join(", ")),
                ..error
            }),
        }
    }

    /// Waits until another process of a node answers than that of this life.
    pub(crate) fn await_other_life(
        &mut self,
        index: usize,
        old: u64,
        stop: &AtomicBool,
    ) -> Result<(), TargetError> {
        let begun = Instant::now();
        loop {
            self.await_answer(index, stop)?;
            let life = self.note_life(index);
            if life.is_some_and(|life| life != old) {
                return Ok(());
            }
            if begun.elapsed() > RESTARTS {
                return Err(TargetError::failed(format!(
                    "{} was told to restart, and has not within {} s",
                    self.nodes[index].name,
                    RESTARTS.as_secs()
                )));
            }
            pause(stop)?;
        }
    }

    /// Notes the life of a node's process that runs now, after a fault of it was undone, and returns it. `None` if it does not answer.
    pub(crate) fn note_life(&mut self, index: usize) -> Option<u64> {
        let name = self.nodes[index].name.clone();
        let status = self.nodes[index].api.status().ok()?;
        let life = status.nodes.into_iter().find(|node| node.name == name)?.incarnation;
        if let Origin::Running(running) = &mut self.origin {
            running.lives.insert(name, life);
        }
        Some(life)
    }
}
