//! A cluster of the virtual SAN: given volumes, asked how it is. Where it comes from is in `started` and `running`, what is done to
//! its nodes in `harm`.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use loadline_api_client::ApiAddress;
use loadline_base::units::ByteSize;
use loadline_cgroup::NodeGroups;
use loadline_load::Target;
use serde_json::{Value, json};

use crate::api::{Api, CreateVolume, Device, KeepsUp, NOT_SERVED, Use, Volume};
use crate::error::TargetError;
use crate::fault::FaultKind;
use crate::filler_name::is_filler;
use crate::health::Health;
use crate::network::NodeNetwork;
use crate::node_commands::Place;
use crate::node_state::NodeState;
use crate::process::NodeProcess;
use crate::running::Running;
use crate::started::ClusterSpec;

/// How long a node that was started may take to answer.
const ANSWERS: Duration = Duration::from_secs(20);
/// After so long every node knows which nodes are gone or back: some leases of 0.6 s.
const KNOWN_AFTER: Duration = Duration::from_millis(1_500);
/// How long a node of a cluster that ran before may take to take a connection, before another one is asked.
const CONNECTS: Duration = Duration::from_secs(1);
/// How often a node that was started is asked.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// A volume that is to be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeSpec {
    /// The name of the volume, unique in the cluster.
    pub name: String,
    /// The size of the volume.
    pub size: ByteSize,
    /// Copies of every block, each on another node.
    pub copies: u32,
    /// Copies that must be in sync for a write to begin; `None`: what the SAN thinks right.
    pub least: Option<u32>,
    /// Stripes that it is cut into.
    pub stripes: u32,
    /// The log of each replica; `None`: what the SAN thinks right.
    pub log: Option<ByteSize>,
    /// The node that owns it, and has a copy.
    pub node: String,
}

/// The addresses at which a volume is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// Through shared memory, for programs on the host of the node that owns the volume.
    pub local: Target,
    /// Through NBD over TCP, for any host.
    pub nbd: Target,
    /// Whether it was not there before: nothing was ever written to it.
    pub is_new: bool,
}

/// A device that behaves as a model says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelledDevice {
    /// Its id.
    pub id: u32,
    /// What it is a model of.
    pub model: String,
    /// How well its machine keeps up, if its node reports.
    pub keeps_up: Option<KeepsUp>,
}

/// A node.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) api: Api,
    /// Where its API is.
    pub(crate) address: SocketAddr,
    /// Its process, if this process has started it.
    pub(crate) process: Option<NodeProcess>,
    /// The control groups of its process; none if it may use all of the machine. Dropped after the process, which has ended then.
    pub(crate) groups: NodeGroups,
    pub(crate) state: NodeState,
    /// The fault that it has.
    pub(crate) fault: Option<FaultKind>,
    /// Where the command ran that has caused it; `None`: no command has.
    pub(crate) by_command: Option<Place>,
}

/// Where a cluster comes from.
#[derive(Debug)]
pub(crate) enum Origin {
    /// This process has started it.
    Started(Box<ClusterSpec>),
    /// It ran before, and goes on running.
    Running(Running),
}

/// A cluster that runs. Nodes that this process has started are killed when this is dropped.
#[derive(Debug)]
pub struct Cluster {
    pub(crate) origin: Origin,
    pub(crate) nodes: Vec<Node>,
    /// The network of the nodes, if this process has made one for them. Dropped after their processes.
    pub(crate) network: Option<NodeNetwork>,
    /// The id of the cluster.
    pub(crate) id: String,
}

impl Cluster {
    /// The id of the cluster.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Its nodes, in their order.
    pub fn nodes(&self) -> impl Iterator<Item = &str> {
        self.nodes.iter().map(|node| node.name.as_str())
    }

    /// The addresses of its nodes' APIs, in the order of the nodes.
    pub fn apis(&self) -> Vec<ApiAddress> {
        self.nodes.iter().map(|node| node.api.address().clone()).collect()
    }

    /// Whether there is a node of this name, and no fault keeps its host from being reached.
    pub fn is_reached(&self, name: &str) -> bool {
        self.nodes.iter().any(|node| node.name == name && !node.state.is_gone())
    }

    /// Makes sure that a volume is there and attached at its node, and returns how it is used.
    pub fn volume(&self, volume: &VolumeSpec) -> Result<Disk, TargetError> {
        let api = self.alive()?;
        let known = api.status()?.volumes.into_iter().find(|known| known.name == volume.name);
        if known.is_none() {
            let wanted = CreateVolume {
                name: &volume.name,
                bytes: volume.size.0,
                copies: volume.copies,
                least: volume.least,
                stripes: volume.stripes,
                at: &volume.node,
                log_bytes: volume.log.map(|log| log.0),
            };
            api.post::<Value>("/v1/volumes", &wanted)?;
        }
        let attach = format!("/v1/volumes/{}/attach", volume.name);
        let is_new = known.is_none();
        let here = known.is_some_and(|known| {
            // Attached here, it may be served by another one since this node's process is a new one.
            [&known.attached, &known.owner].iter().all(|at| at.as_deref() == Some(volume.node.as_str()))
        });
        // If it is attached there already, the answer states how; if elsewhere, it is taken over.
        let body = if here { json!({}) } else { json!({ "node": volume.node }) };
        let used: Use = api.post(&attach, &body)?;
        let target = |text: String| {
            let parsed: Result<Target, _> = text.parse();
            parsed.map_err(|e| TargetError::failed(format!("volume {}: {e}", volume.name)))
        };
        let missing = |what: &str| {
            TargetError::failed(format!("volume {}: node {} serves no {what}", volume.name, volume.node))
        };
        let local = used.vhost_user().ok_or_else(|| missing("vhost-user-blk"))?;
        let nbd = used.nbd().ok_or_else(|| missing("NBD"))?;
        Ok(Disk { local: target(format!("vhost-user:{local}"))?, nbd: target(nbd.into())?, is_new })
    }

    /// The node that owns each volume, if it has an owner.
    pub fn owners(&self) -> Result<BTreeMap<String, Option<String>>, TargetError> {
        let volumes = self.alive()?.status()?.volumes;
        Ok(volumes.into_iter().map(|volume| (volume.name, volume.owner)).collect())
    }

    /// How well it is, as a node that answers sees it.
    pub fn health(&self) -> Result<Health, TargetError> {
        let status = self.alive()?.status()?;
        // The others of a cluster that this process has started find out a moment later.
        let gone = match &self.origin {
            Origin::Started(_) => self.nodes.iter().filter(|node| node.state.is_gone()).count(),
            Origin::Running(_) => 0,
        };
        let volumes = || status.volumes.iter().filter(|volume| self.counts(&volume.name));
        let of = |words: &[&str]| {
            let is =
                |volume: &&Volume| volume.health.as_deref().is_some_and(|health| words.contains(&health));
            volumes().filter(is).count()
        };
        let replicas = volumes().flat_map(|volume| &volume.replicas);
        Ok(Health {
            nodes_alive: status.nodes.iter().filter(|node| node.alive).count().min(self.nodes.len() - gone),
            nodes: status.nodes.len(),
            waiting: of(NOT_SERVED),
            degraded: of(&[&["degraded", "resyncing"], NOT_SERVED].concat()),
            volumes: volumes().count(),
            left_bytes: replicas.filter_map(|replica| replica.left_bytes).sum(),
        })
    }

    /// Whether the health and the load of a volume count for the run: not those of a volume that only fills a device, and in a
    /// cluster that ran before not those of volumes that the run has not made.
    pub(crate) fn counts(&self, volume: &str) -> bool {
        let is_ours = match &self.origin {
            Origin::Started(_) => true,
            Origin::Running(running) => running.is_of_run(volume),
        };
        is_ours && !is_filler(volume)
    }

    /// The nodes that have ended, or were started anew, though no fault has done it; and how.
    pub fn ended_unasked(&mut self) -> Vec<String> {
        if let Origin::Running(running) = &self.origin {
            return running.ended_unasked(self);
        }
        let nodes = self.nodes.iter_mut().filter(|node| node.state != NodeState::Killed);
        let ended = |node: &mut Node| {
            let how = node.process.as_mut().and_then(NodeProcess::ended)?;
            Some(format!("{} has ended: {how}", node.name))
        };
        nodes.filter_map(ended).collect()
    }

    /// The devices that behave as a model says.
    pub fn modelled(&self) -> Result<Vec<ModelledDevice>, TargetError> {
        let devices = self.alive()?.status()?.devices.into_iter();
        let modelled = |device: Device| {
            let Device { id, model, keeps_up, .. } = device;
            Some(ModelledDevice { id, model: model?, keeps_up })
        };
        Ok(devices.filter_map(modelled).collect())
    }

    /// Waits until every volume has all its copies in sync and has had them for a while, at most so long. Whether it has. A
    /// node that has just gone or come is not known of at once.
    pub fn await_redundancy(&self, limit: Duration, stop: &AtomicBool) -> Result<bool, TargetError> {
        let begun = Instant::now();
        let mut since: Option<Instant> = None;
        loop {
            let health = self.health();
            let is_so = health.as_ref().is_ok_and(Health::is_redundant);
            since = since.filter(|_| is_so).or_else(|| is_so.then(Instant::now));
            if since.is_some_and(|since| since.elapsed() >= KNOWN_AFTER) {
                return Ok(true);
            }
            if since.is_none() && begun.elapsed() > limit {
                // If no node answers, whether the copies are in sync is not known: that is an error.
                return health.map(|_| false);
            }
            pause(stop)?;
        }
    }

    /// Waits until a node answers that was started. The error says why it does not.
    pub(crate) fn await_answer(&mut self, index: usize, stop: &AtomicBool) -> Result<(), TargetError> {
        let begun = Instant::now();
        let limit = match &self.origin {
            Origin::Started(_) => ANSWERS,
            Origin::Running(running) => running.commands.limit().0,
        };
        let node = &mut self.nodes[index];
        loop {
            let answer = node.api.status();
            // A process that answers at its address is another cluster's.
            if let Some(how) = node.process.as_mut().and_then(NodeProcess::ended) {
                return Err(TargetError::failed(format!("{} of the cluster has ended: {how}", node.name)));
            }
            let why = match answer {
                Ok(status) if status.cluster == self.id && status.asked == node.name => return Ok(()),
                Ok(status) => {
                    format!("{} of another cluster, {}, answers there", status.asked, status.cluster)
                }
                Err(error) => error.message,
            };
            if begun.elapsed() > limit {
                return Err(TargetError::failed(format!(
                    "{} of the cluster does not answer within {} s: {why}",
                    node.name,
                    limit.as_secs()
                )));
            }
            pause(stop)?;
        }
    }

    /// A node's devices.
    pub(crate) fn devices(&self, index: usize) -> Result<Vec<u32>, TargetError> {
        let node = &self.nodes[index];
        let devices = node.api.status()?.devices;
        Ok(devices.into_iter().filter(|device| device.node == node.name).map(|device| device.id).collect())
    }

    /// A node that answers, at best one to which nothing was done.
    pub(crate) fn alive(&self) -> Result<Api, TargetError> {
        // A node of a cluster that ran before may have ended by itself.
        let takes = |node: &&Node| match &self.origin {
            Origin::Started(_) => true,
            Origin::Running(_) => TcpStream::connect_timeout(&node.address, CONNECTS).is_ok(),
        };
        let up = self.nodes.iter().filter(|node| node.state == NodeState::Up).find(takes);
        let any = up.or_else(|| self.nodes.iter().filter(|node| node.state.serves()).find(takes));
        any.map(|node| node.api.clone())
            .ok_or_else(|| TargetError::failed("no node of the cluster is left to be asked"))
    }
}

/// Waits until it is time to check again; an error when it is to leave.
pub(crate) fn pause(stop: &AtomicBool) -> Result<(), TargetError> {
    if stop.load(Ordering::Relaxed) {
        return Err(TargetError::interrupted());
    }
    std::thread::sleep(ASK_EVERY);
    Ok(())
}
