//! A cluster of the virtual SAN on this machine: started, given volumes, asked how it is, stopped. What is done
//! to its nodes is in `harm`.
//!
//! Everything of it lies in one folder. Started again on the same folder it goes on where it was.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use loadline_base::units::ByteSize;
use loadline_load::Target;
use serde_json::{Value, json};

use crate::api::{Api, CreateVolume, NOT_SERVED, Use, Volume};
use crate::error::TargetError;
use crate::filler_name::is_filler;
use crate::health::Health;
use crate::node_state::NodeState;
use crate::process::NodeProcess;

/// How long a node that was started may take to answer.
const ANSWERS: Duration = Duration::from_secs(20);
/// After so long every node knows which nodes are gone or back: some leases of 0.6 s.
const KNOWN_AFTER: Duration = Duration::from_millis(1_500);
/// How often a node that was started is asked.
const ASK_EVERY: Duration = Duration::from_millis(50);
/// Ports at each node's address: the API, other nodes, NBD.
const PORTS: [u16; 3] = [7400, 7401, 10809];
/// Networks that are tried before it is given up.
const MOST_NETWORKS: u32 = 200;

/// What a cluster is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterSpec {
    /// The `loadline` program, of which nodes are processes.
    pub program: PathBuf,
    /// Where everything is; made if it is not there.
    pub folder: PathBuf,
    /// The names of its nodes, 1 to 32.
    pub nodes: Vec<String>,
    /// The size of each node's device, a file.
    pub device: ByteSize,
}

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

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) api: Api,
    config: PathBuf,
    pub(crate) process: Option<NodeProcess>,
    pub(crate) state: NodeState,
}

/// A cluster that runs. Its nodes are killed when this is dropped.
#[derive(Debug)]
pub struct Cluster {
    spec: ClusterSpec,
    pub(crate) nodes: Vec<Node>,
    /// What the cluster calls itself.
    id: String,
}

impl Cluster {
    /// Makes it, or goes on with what is in its folder, and waits until every node answers. `stop` turning true ends the
    /// waiting, with an error of kind `Interrupted`.
    pub fn start(spec: ClusterSpec, stop: &AtomicBool) -> Result<Cluster, TargetError> {
        if !(1..=32).contains(&spec.nodes.len()) {
            return Err(TargetError::usage(format!("{} nodes: 1 to 32 are possible", spec.nodes.len())));
        }
        fs::create_dir_all(&spec.folder).map_err(|e| TargetError::io("make", &spec.folder, &e))?;
        let network = network(&spec.folder, &spec.nodes)?;
        let cluster = spec.folder.join("cluster.db");
        let id_file = spec.folder.join("id");
        if !cluster.exists() {
            let mut init = Command::new(&spec.program);
            let said = run(init.args(["san", "init"]).arg(&cluster))?;
            // "cluster ID is made, in PATH"
            let id = said.split_whitespace().nth(1).unwrap_or_default().to_string();
            fs::write(&id_file, id).map_err(|e| TargetError::io("write", &id_file, &e))?;
        }
        let mut nodes = Vec::new();
        for (name, number) in spec.nodes.iter().cloned().zip(1..) {
            let address = addresses(network, number);
            let config = spec.folder.join(&name).join("node.toml");
            if !config.exists() {
                let mut join = Command::new(&spec.program);
                join.args(["san", "join"]).arg(&cluster).args(["--name", &name, "--folder"]);
                run(join.arg(spec.folder.join(&name)).args(["--address", &address.to_string()]))?;
                allow_faults(&config)?;
            }
            lies_here(&config, &spec.folder.join(&name))?;
            let api = Api(SocketAddr::from((address, PORTS[0])));
            nodes.push(Node { name, api, config, process: None, state: NodeState::Up });
        }
        let id = fs::read_to_string(&id_file).map_err(|e| TargetError::io("read", &id_file, &e))?;
        let mut cluster = Cluster { spec, nodes, id };
        for index in 0..cluster.nodes.len() {
            cluster.launch(index)?;
        }
        for index in 0..cluster.nodes.len() {
            cluster.await_answer(index, stop)?;
            cluster.give_device(index)?;
        }
        // Nothing is done to any node yet, whatever was when it ended.
        cluster.remove_fillers(stop)?;
        Ok(cluster)
    }

    /// Its nodes, in their order.
    pub fn nodes(&self) -> impl Iterator<Item = &str> {
        self.nodes.iter().map(|node| node.name.as_str())
    }

    /// The process of a node, if it runs.
    pub fn pid(&self, node: &str) -> Option<u32> {
        let node = self.nodes.iter().find(|one| one.name == node)?;
        node.process.as_ref().map(NodeProcess::pid)
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

    /// The nodes that have ended without a request, and how.
    pub fn ended_unasked(&mut self) -> Vec<String> {
        let nodes = self.nodes.iter_mut().filter(|node| node.state != NodeState::Killed);
        let ended = |node: &mut Node| {
            let how = node.process.as_mut().and_then(NodeProcess::ended)?;
            Some(format!("{} has ended: {how}", node.name))
        };
        nodes.filter_map(ended).collect()
    }

    /// How well it is, as a node that answers sees it.
    pub fn health(&self) -> Result<Health, TargetError> {
        let status = self.alive()?.status()?;
        let gone = self.nodes.iter().filter(|node| node.state.is_gone()).count();
        // What fills a device has one copy, and its data is not needed.
        let volumes = || status.volumes.iter().filter(|volume| !is_filler(&volume.name));
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

    /// Waits until every volume has all its copies in sync and has had them for a while, at most so long. Whether it has. A
    /// node that has just gone or come is not known of at once.
    pub fn await_redundancy(&self, limit: Duration, stop: &AtomicBool) -> Result<bool, TargetError> {
        let begun = Instant::now();
        let mut since: Option<Instant> = None;
        loop {
            let is_so = self.health().is_ok_and(|health| health.is_redundant());
            since = since.filter(|_| is_so).or_else(|| is_so.then(Instant::now));
            if since.is_some_and(|since| since.elapsed() >= KNOWN_AFTER) {
                return Ok(true);
            }
            if since.is_none() && begun.elapsed() > limit {
                return Ok(false);
            }
            pause(stop)?;
        }
    }

    /// Tells every node to end, waits, and kills those that do not.
    pub fn stop(mut self) {
        let asked = Instant::now();
        let processes = || self.nodes.iter().filter_map(|node| node.process.as_ref());
        processes().for_each(NodeProcess::ask_to_stop);
        for node in &mut self.nodes {
            if let Some(process) = &mut node.process {
                process.stop(asked);
            }
        }
    }

    pub(crate) fn launch(&mut self, index: usize) -> Result<(), TargetError> {
        let log = self.spec.folder.join(format!("{}.log", self.nodes[index].name));
        let node = &mut self.nodes[index];
        node.process = Some(NodeProcess::start(&self.spec.program, &node.config, &log)?);
        Ok(())
    }

    pub(crate) fn await_answer(&mut self, index: usize, stop: &AtomicBool) -> Result<(), TargetError> {
        let begun = Instant::now();
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
            if begun.elapsed() > ANSWERS {
                return Err(TargetError::failed(format!(
                    "{} of the cluster does not answer within {} s: {why}",
                    node.name,
                    ANSWERS.as_secs()
                )));
            }
            pause(stop)?;
        }
    }

    /// Gives the cluster a node's device, if it has none yet.
    fn give_device(&self, index: usize) -> Result<(), TargetError> {
        let node = &self.nodes[index];
        if !self.devices(index)?.is_empty() {
            return Ok(());
        }
        let path = self.spec.folder.join(&node.name).join("device");
        let add = json!({ "path": path, "create": self.spec.device.0 });
        node.api.post::<Value>("/v1/devices", &add).map(drop)
    }

    /// A node's devices.
    pub(crate) fn devices(&self, index: usize) -> Result<Vec<u32>, TargetError> {
        let node = &self.nodes[index];
        let devices = node.api.status()?.devices;
        Ok(devices.into_iter().filter(|device| device.node == node.name).map(|device| device.id).collect())
    }

    /// A node that answers, at best one to which nothing was done.
    pub(crate) fn alive(&self) -> Result<Api, TargetError> {
        let up = self.nodes.iter().find(|node| node.state == NodeState::Up);
        let any = up.or_else(|| self.nodes.iter().find(|node| node.state.serves()));
        any.map(|node| node.api)
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

/// Runs a command to its end. Returns its output.
fn run(command: &mut Command) -> Result<String, TargetError> {
    let output = command.stdin(Stdio::null()).output();
    let output = match output {
        Ok(output) => output,
        Err(e) => return Err(TargetError::failed(format!("{command:?} cannot be run: {e}"))),
    };
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(TargetError::failed(format!(
        "{command:?} failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    )))
}

/// Lets a node have faults on purpose.
fn allow_faults(config: &Path) -> Result<(), TargetError> {
    let text = fs::read_to_string(config).map_err(|e| TargetError::io("read", config, &e))?;
    // They have one machine together: none is to spin while another has work.
    let (none, some) = ("test_faults = false", "test_faults = true\nspin_us = 0");
    if text.matches(none).count() != 1 {
        let what = format!("{} does not say \"{none}\" once: it is of another version", config.display());
        return Err(TargetError::failed(what));
    }
    let text = text.replace(none, some);
    fs::write(config, text).map_err(|e| TargetError::io("write", config, &e))
}

/// That a node's configuration is of this folder, and not of one that this is a copy of.
fn lies_here(config: &Path, folder: &Path) -> Result<(), TargetError> {
    let text = fs::read_to_string(config).map_err(|e| TargetError::io("read", config, &e))?;
    let folder = std::path::absolute(folder).map_err(|e| TargetError::io("find", folder, &e))?;
    let named = format!("folder = {:?}", folder.display().to_string());
    match text.lines().any(|line| line.trim() == named) {
        true => Ok(()),
        false => Err(TargetError::usage(format!(
            "{} is of a cluster in another folder: a run with a cluster cannot be copied or moved. Run the study anew",
            config.display()
        ))),
    }
}

fn addresses(network: Ipv4Addr, number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(network.to_bits() + number)
}

/// The network of the cluster in this folder: where it was, or an unused one within 127.0.0.0/8.
fn network(folder: &Path, nodes: &[String]) -> Result<Ipv4Addr, TargetError> {
    let file = folder.join("network");
    if let Ok(text) = fs::read_to_string(&file) {
        let wrong = |e| TargetError::failed(format!("{} names no network: {e}", file.display()));
        return text.trim().parse().map_err(wrong);
    }
    let first = std::process::id();
    let candidates = (0..MOST_NETWORKS).map(|n| {
        let mixed = (first.wrapping_add(n)).wrapping_mul(2_654_435_761) >> 16;
        Ipv4Addr::new(127, 10 + (mixed % 200) as u8, 1 + ((mixed >> 8) % 250) as u8, 0)
    });
    let is_free = |network: &Ipv4Addr| {
        (1..).zip(nodes).all(|(number, _)| {
            PORTS.iter().all(|port| TcpListener::bind((addresses(*network, number), *port)).is_ok())
        })
    };
    let network = candidates.into_iter().find(is_free).ok_or_else(|| {
        TargetError::failed(format!(
            "no free network for a cluster within 127.0.0.0/8 in {MOST_NETWORKS} tries: does something listen at every \
             address on one of the ports {PORTS:?}?"
        ))
    })?;
    fs::write(&file, format!("{network}\n")).map_err(|e| TargetError::io("write", &file, &e))?;
    Ok(network)
}
