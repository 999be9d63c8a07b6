//! A cluster that ran before, and goes on running: found by its API. Only volumes of the run's own are made and removed in it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use loadline_api_client::ApiAddress;
use loadline_base::units::ByteSize;
use loadline_cgroup::NodeGroups;
use serde_json::{Value, json};

use crate::api::{Api, Status};
use crate::cluster::{Cluster, Node, Origin, pause};
use crate::error::TargetError;
use crate::node_commands::NodeCommands;
use crate::node_state::NodeState;
use crate::noted::{self, NotedFault};

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
    /// The file in which faults are written down before they are caused.
    pub noted: PathBuf,
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
    noted: PathBuf,
    /// The life of each node's process that is expected.
    lives: BTreeMap<String, u64>,
}

impl Running {
    /// The file in which faults are written down.
    pub(crate) fn noted(&self) -> &PathBuf {
        &self.noted
    }

    /// Whether a volume is the run's.
    pub(crate) fn is_of_run(&self, volume: &str) -> bool {
        volume.starts_with(&self.prefix)
    }

    /// The nodes that are not as their faults, or none, would have them: that do not answer, or do, or were started anew.
    pub(crate) fn ended_unasked(&self, cluster: &Cluster) -> Vec<String> {
        let status = match cluster.alive().and_then(|api| api.status()) {
            Ok(status) => status,
            Err(error) => return vec![error.message],
        };
        let ended = |node: &Node| {
            let now = status.nodes.iter().find(|now| now.name == node.name);
            let is_gone = node.state.is_gone();
            match now {
                Some(now) if is_gone && now.alive => {
                    Some(format!("{} runs, although a fault is to keep it from running", node.name))
                }
                Some(_) if is_gone => None,
                Some(now) if !now.alive => Some(format!("{} does not answer the other nodes", node.name)),
                Some(now) if self.lives.get(&node.name).is_some_and(|life| *life != now.incarnation) => {
                    Some(format!("{} has ended, and was started anew", node.name))
                }
                Some(_) => None,
                None => Some(format!("{} is not in the cluster any more", node.name)),
            }
        };
        cluster.nodes.iter().filter_map(ended).collect()
    }
}

/// The nodes that a run needs and that are not in the cluster, or do not run, as an error of kind `Usage`.
fn has_nodes(status: &Status, needed: &[String]) -> Result<(), TargetError> {
    let mut problems = Vec::new();
    let all: Vec<&str> = status.nodes.iter().map(|node| node.name.as_str()).collect();
    for name in needed {
        match status.nodes.iter().find(|node| node.name == *name) {
            None => problems.push(format!(
                "it has no node {name}: give the nodes of the fleet the names of the cluster's nodes, which are {}",
                all.join(", ")
            )),
            Some(node) if !node.alive => problems.push(format!("its node {name} does not run: start it")),
            Some(_) => {}
        }
    }
    match problems.is_empty() {
        true => Ok(()),
        false => Err(TargetError::usage(format!("the cluster {}: {}", status.cluster, problems.join("; ")))),
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
        let noted = noted::read(&spec.noted)?;
        let is_noted = |name: &String| noted.iter().any(|fault| fault.node == *name);
        let needed: Vec<String> = spec.nodes.iter().filter(|name| !is_noted(name)).cloned().collect();
        has_nodes(&status, &needed)?;
        let foreign = |name: &&String| name.starts_with(&spec.prefix) && !spec.made.contains(*name);
        if let Some(foreign) = status.volumes.iter().map(|volume| &volume.name).find(foreign) {
            return Err(TargetError::usage(format!(
                "the cluster has a volume {foreign}, which this run has not made: remove it, or run the study anew"
            )));
        }
        let lives = status.nodes.iter().map(|node| (node.name.clone(), node.incarnation)).collect();
        let node = |node: &crate::api::Node| {
            let fault = noted.iter().find(|fault| fault.node == node.name);
            Node {
                name: node.name.clone(),
                api: api.of_other(node.api),
                address: node.api,
                process: None,
                groups: NodeGroups::default(),
                state: fault.map_or(NodeState::Up, NotedFault::state),
                fault: fault.map(|fault| fault.what),
                by_command: fault.and_then(|fault| fault.by_command),
            }
        };
        // Others that do not run are no part of the run.
        let is_part = |node: &&crate::api::Node| node.alive || is_noted(&node.name);
        let nodes = status.nodes.iter().filter(is_part).map(node).collect();
        let running = Running { prefix: spec.prefix, commands: spec.commands, noted: spec.noted, lives };
        let mut cluster =
            Cluster { origin: Origin::Running(running), nodes, network: None, id: status.cluster };
        // What an earlier process of this run has left.
        cluster.heal(stop)?;
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
