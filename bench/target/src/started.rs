//! A cluster that this process starts, on this machine, without root, but for nodes with a part of the cores or a network of their own.
//!
//! Everything of it lies in one folder. Started again on the same folder it goes on where it was.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use loadline_api_client::ApiAddress;
use loadline_base::device_model::DeviceModel;
use loadline_base::units::ByteSize;
use loadline_cgroup::{CpuPeriods, Limits, NodeGroups, RunPrefix};
use serde_json::{Value, json};

use crate::api::Api;
use crate::cluster::{Cluster, Node, Origin, pause};
use crate::error::TargetError;
use crate::network::{NodeNetwork, Traffic};
use crate::node_state::NodeState;
use crate::process::NodeProcess;

/// How long nodes of a run that was killed may take to end.
const END: Duration = Duration::from_secs(20);
/// Ports at each node's address: the API, other nodes, NBD, iSCSI.
const PORTS: [u16; 4] = [7400, 7401, 10809, 3260];
/// Networks that are tried before it is given up.
const MOST_NETWORKS: u32 = 200;
/// Where the next search of this process for a network begins.
static STARTED: AtomicU32 = AtomicU32::new(0);

/// What a cluster is to be.
#[derive(Debug, Clone, PartialEq)]
pub struct ClusterSpec {
    /// The `loadline` program, of which nodes are processes.
    pub program: PathBuf,
    /// Where everything is; made if it is not there.
    pub folder: PathBuf,
    /// The names of its nodes, 1 to 32.
    pub nodes: Vec<String>,
    /// The size of each node's device, a file.
    pub device: ByteSize,
    /// What each node's device behaves as; `None`: as the file that it is.
    pub model: Option<DeviceModel>,
    /// What a log device of each node behaves as, of the same size; `None`: logs are on the one device.
    pub log_model: Option<DeviceModel>,
    /// Cores that the process of each node may use, by a control group of its own; `None`: all of this machine.
    pub cores: Option<f64>,
    /// Bytes that each node may send a second to other nodes, and receive from them; `None`: as fast as this machine's loopback device.
    pub network_per_second: Option<ByteSize>,
}

impl Cluster {
    /// Makes it, or goes on with what is in its folder, and waits until every node answers. `stop` turning true ends the
    /// waiting, with an error of kind `Interrupted`. If nodes are to have a part of the cores and no control groups can be made, or a
    /// network of their own and this machine cannot make it, it returns an error of kind `Usage`, and has written nothing.
    pub fn start(spec: ClusterSpec, stop: &AtomicBool) -> Result<Cluster, TargetError> {
        if !(1..=32).contains(&spec.nodes.len()) {
            return Err(TargetError::usage(format!("{} nodes: 1 to 32 are possible", spec.nodes.len())));
        }
        let groups = groups(&spec)?;
        let address_file = spec.folder.join("network");
        let network = network(&address_file, &spec.nodes)?;
        if address_file.exists() && spec.network_per_second.is_none() {
            await_free(network, &spec.nodes, stop)?;
        }
        let own_network = own_network(&spec, network)?;
        fs::create_dir_all(&spec.folder).map_err(|e| TargetError::io("make", &spec.folder, &e))?;
        fs::write(&address_file, format!("{network}\n"))
            .map_err(|e| TargetError::io("write", &address_file, &e))?;
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
        for ((name, groups), number) in spec.nodes.iter().cloned().zip(groups).zip(1..) {
            let address = addresses(network, number);
            let config = spec.folder.join(&name).join("node.toml");
            if !config.exists() {
                let mut join = Command::new(&spec.program);
                join.args(["san", "join"]).arg(&cluster).args(["--name", &name, "--folder"]);
                run(join.arg(spec.folder.join(&name)).args(["--address", &address.to_string()]))?;
                allow_faults(&config)?;
            }
            lies_here(&config, &spec.folder.join(&name))?;
            let address = SocketAddr::from((address, PORTS[0]));
            let api = Api::new(ApiAddress::Http(address), None);
            nodes.push(Node {
                name,
                api,
                address,
                process: None,
                groups,
                state: NodeState::Up,
                fault: None,
                by_command: None,
            });
        }
        let id = fs::read_to_string(&id_file).map_err(|e| TargetError::io("read", &id_file, &e))?;
        let mut cluster =
            Cluster { origin: Origin::Started(Box::new(spec)), nodes, network: own_network, id };
        for index in 0..cluster.nodes.len() {
            cluster.launch(index)?;
        }
        for index in 0..cluster.nodes.len() {
            cluster.await_answer(index, stop)?;
            cluster.give_devices(index)?;
        }
        // Nothing is done to any node yet, whatever was when it ended.
        cluster.remove_fillers(stop)?;
        Ok(cluster)
    }

    /// The process of a node, if it runs.
    pub fn pid(&self, node: &str) -> Option<u32> {
        let node = self.nodes.iter().find(|one| one.name == node)?;
        node.process.as_ref().map(NodeProcess::pid)
    }

    /// How often each node used up the cores that it may use, by its name. Nothing of nodes that may use all of the machine.
    pub fn cpu_periods(&self) -> BTreeMap<String, CpuPeriods> {
        let of = |node: &Node| Some((node.name.clone(), node.groups.cpu_periods()?));
        self.nodes.iter().filter_map(of).collect()
    }

    /// What the network of each node has carried to and from other nodes, by the node's name. Nothing if nodes have no network of their
    /// own.
    pub fn traffic(&self) -> Result<BTreeMap<String, Traffic>, TargetError> {
        let Some(network) = &self.network else { return Ok(BTreeMap::new()) };
        Ok(self.nodes.iter().map(|node| node.name.clone()).zip(network.traffic()?).collect())
    }

    /// Tells every node that it has started to end, waits, and kills those that do not. Removes their control groups.
    pub fn stop(mut self) {
        let asked = Instant::now();
        let processes = || self.nodes.iter().filter_map(|node| node.process.as_ref());
        processes().for_each(NodeProcess::ask_to_stop);
        for node in &mut self.nodes {
            if let Some(process) = &mut node.process {
                process.stop(asked);
            }
            std::mem::take(&mut node.groups).remove();
        }
    }

    /// Starts a node's process. Nothing is done in a cluster that ran before.
    pub(crate) fn launch(&mut self, index: usize) -> Result<(), TargetError> {
        let Origin::Started(spec) = &self.origin else { return Ok(()) };
        let node = &mut self.nodes[index];
        let log = spec.folder.join(format!("{}.log", node.name));
        let config = spec.folder.join(&node.name).join("node.toml");
        node.process =
            Some(NodeProcess::start(&spec.program, &config, &log, &node.groups, self.network.as_ref())?);
        Ok(())
    }

    /// Gives the cluster a node's devices, if it has none yet.
    fn give_devices(&self, index: usize) -> Result<(), TargetError> {
        let (node, Origin::Started(spec)) = (&self.nodes[index], &self.origin) else { return Ok(()) };
        if !self.devices(index)?.is_empty() {
            return Ok(());
        }
        let folder = spec.folder.join(&node.name);
        let mut device =
            json!({ "path": folder.join("device"), "create": spec.device.0, "model": spec.model });
        if let Some(model) = &spec.log_model {
            device["role"] = "capacity".into();
            let path = folder.join("log-device");
            let log = json!({ "path": path, "create": spec.device.0, "model": model, "role": "log" });
            node.api.post::<Value>("/v1/devices", &log)?;
        }
        node.api.post::<Value>("/v1/devices", &device).map(drop)
    }
}

/// The control groups of each node, in the order of the nodes.
fn groups(spec: &ClusterSpec) -> Result<Vec<NodeGroups>, TargetError> {
    if let Some(cores) = spec.cores {
        Limits::check_cores(cores)?;
    }
    let limits = Limits { cores: spec.cores, memory: None };
    let prefix = RunPrefix::new()?;
    spec.nodes.iter().map(|node| Ok(NodeGroups::make(node, &limits, &prefix)?)).collect()
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

/// The network of their own that nodes with these addresses are to have, if so.
fn own_network(spec: &ClusterSpec, network: Ipv4Addr) -> Result<Option<NodeNetwork>, TargetError> {
    // The nodes' number is checked before.
    let nodes = u32::try_from(spec.nodes.len()).unwrap_or(u32::MAX);
    // Workers share memory with the nodes: only what this process asks of the nodes' APIs comes from outside.
    let make = |per_second| NodeNetwork::make(per_second, network, nodes, &PORTS[..1]);
    spec.network_per_second.map(make).transpose()
}

/// Whether nothing listens where so many nodes of a network are to.
fn is_free(network: Ipv4Addr, nodes: &[String]) -> bool {
    (1..).zip(nodes).all(|(number, _)| {
        PORTS.iter().all(|port| TcpListener::bind((addresses(network, number), *port)).is_ok())
    })
}

/// Waits until the nodes of a killed run have ended, which they do soon after it, and no longer than [`END`]. If another program still
/// listens at an address then, the node that needs the address fails, and its log says so.
fn await_free(network: Ipv4Addr, nodes: &[String], stop: &AtomicBool) -> Result<(), TargetError> {
    let begun = Instant::now();
    while !is_free(network, nodes) && begun.elapsed() < END {
        pause(stop)?;
    }
    Ok(())
}

/// The network of the cluster whose file for it this is: where it was, or an unused one within 127.0.0.0/8.
fn network(file: &Path, nodes: &[String]) -> Result<Ipv4Addr, TargetError> {
    if let Ok(text) = fs::read_to_string(file) {
        let wrong = |e| TargetError::failed(format!("{} names no network: {e}", file.display()));
        return text.trim().parse().map_err(wrong);
    }
    // Two that this process starts at the same time find the same ones free.
    let first = std::process::id().wrapping_add(STARTED.fetch_add(MOST_NETWORKS, Ordering::Relaxed));
    let candidates = (0..MOST_NETWORKS).map(|n| {
        let mixed = (first.wrapping_add(n)).wrapping_mul(2_654_435_761) >> 16;
        Ipv4Addr::new(127, 10 + (mixed % 200) as u8, 1 + ((mixed >> 8) % 250) as u8, 0)
    });
    candidates.into_iter().find(|network| is_free(*network, nodes)).ok_or_else(|| {
        TargetError::failed(format!(
            "no free network for a cluster within 127.0.0.0/8 in {MOST_NETWORKS} tries: does something listen at every \
             address on one of the ports {PORTS:?}?"
        ))
    })
}
