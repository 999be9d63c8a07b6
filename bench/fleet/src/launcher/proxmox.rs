//! A fleet of virtual machines of a Proxmox VE cluster: they are made by the cluster's API when the fleet starts, and deleted when it ends.
//! In between they are hosts that SSH reaches, as any others.
//!
//! The calls of the API block, so a thread makes the machines. The end of the fleet, also after Ctrl-C, tells the thread to stop, waits for
//! it, and deletes what it made.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use loadline_base::figures::counted;
use loadline_guest::MachineOrder;
use loadline_load::Target;
use loadline_proxmox::{
    Api, ErrorKind, MachinePlan, Provisioner, Proxmox, ProxmoxError, REMOVAL_LIMIT, ReachedMachine,
    ReadyMachine, Record, Stop, clean,
};
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::ssh::{HostAddress, MadeHosts, SshHosts, SshLauncher, all_failures, reach};
use super::{
    CpuShare, FleetKind, FleetOptions, LaunchContext, LaunchedWorker, Launcher, OpenPlaces, WorkerExit,
};
use crate::error::FleetError;
use crate::identity::{WorkerId, WorkerInfo};
use crate::node::NodeSpec;
use crate::token::random_token;

/// How long the end of the fleet may take: calls and clones that go on are ended, and all machines are stopped and deleted.
const END_LIMIT: Duration = Duration::from_secs(300).saturating_add(REMOVAL_LIMIT);
/// The most machines of a fleet.
const MOST_MACHINES: u32 = 1024;

/// Workers in virtual machines that are made for the fleet. Their names are `NODE/0`, `NODE/1`, ...
#[derive(Debug, Clone, PartialEq)]
pub struct ProxmoxMachines {
    /// The cluster, and what the machines are like.
    pub cluster: Box<Proxmox>,
    /// The names of the nodes: each is a machine.
    pub names: Vec<String>,
    /// Workers on each. At least one.
    pub workers_per_node: u32,
    /// Disks of each worker.
    pub disks_per_worker: u32,
    /// Whether workers dial the controller's address, and not a port that `ssh` forwards.
    pub direct: bool,
}

impl ProxmoxMachines {
    fn disks_per_machine(&self) -> u32 {
        self.workers_per_node.saturating_mul(self.disks_per_worker)
    }

    fn count(&self) -> u32 {
        u32::try_from(self.names.len()).unwrap_or(u32::MAX)
    }
}

impl FleetKind for ProxmoxMachines {
    fn from_options(options: &FleetOptions) -> Result<Option<ProxmoxMachines>, FleetError> {
        let Some(cluster) = &options.proxmox else { return Ok(None) };
        let others = [
            ("[[fleet.node]] tables or an inventory", !options.node.is_empty()),
            ("join", options.join.is_some()),
            ("wait", options.wait.is_some()),
            ("machine (or --fleet vm)", options.machine.is_some()),
        ];
        if let Some((what, _)) = others.iter().find(|(_, is_there)| *is_there) {
            return Err(FleetError::usage(format!(
                "[fleet.proxmox] makes the nodes of the fleet, as many as [fleet] nodes says, and [fleet] has {what} too: leave one of the two \
                 out"
            )));
        }
        let count = options.nodes.unwrap_or(1).min(MOST_MACHINES + 1);
        let width = count.to_string().len();
        Ok(Some(ProxmoxMachines {
            cluster: Box::new(cluster.clone()),
            names: (1..=count).map(|number| format!("vm-{number:0width$}")).collect(),
            workers_per_node: options.workers_per_node,
            disks_per_worker: options.disks_per_worker,
            direct: options.listen.is_some(),
        }))
    }

    fn validate(&self) -> Result<(), FleetError> {
        if self.count() > MOST_MACHINES {
            return Err(FleetError::usage(format!(
                "[fleet.proxmox] makes at most {MOST_MACHINES} machines: lower nodes"
            )));
        }
        self.cluster.check()?;
        Ok(self.cluster.check_disks(self.disks_per_machine())?)
    }

    fn workers(&self) -> u32 {
        self.count().saturating_mul(self.workers_per_node)
    }

    fn nodes(&self) -> Vec<String> {
        self.names.clone()
    }

    fn summary(&self) -> String {
        format!(
            "{} of Proxmox VE × {}",
            counted(self.count().into(), "virtual machine"),
            counted(self.workers_per_node.into(), "worker")
        )
    }

    fn runs_here(&self) -> bool {
        false
    }

    fn cpu_share<'a>(&'a self, worker: &'a WorkerInfo) -> CpuShare<'a> {
        CpuShare { name: &worker.node, limit: None }
    }

    fn listen_on(&self, wanted: SocketAddr) -> SocketAddr {
        match self.direct || wanted.ip().is_loopback() {
            true => wanted,
            false => SocketAddr::new(Ipv4Addr::LOCALHOST.into(), wanted.port()),
        }
    }

    fn default_port(&self) -> u16 {
        0
    }

    fn open_places(&self) -> Option<OpenPlaces> {
        None
    }

    fn one_worker_each(&mut self) {
        self.workers_per_node = 1;
    }

    fn makes_hosts(&self) -> bool {
        true
    }

    fn made_disks(&self) -> Vec<Target> {
        self.cluster.disk_paths(self.disks_per_machine()).into_iter().map(Target::Path).collect()
    }

    fn end_limit(&self) -> Duration {
        END_LIMIT
    }
}

/// The machines of one fleet, once there are any.
type Machines = Arc<OnceLock<Arc<Provisioner>>>;

/// What the thread that makes machines has come to.
struct MadeMachines {
    /// What runs them, in words.
    what: String,
    /// One for each name.
    machines: Vec<Result<ReadyMachine, ProxmoxError>>,
}

/// Makes the machines, and starts workers in them by SSH.
pub(crate) struct ProxmoxLauncher {
    fleet: ProxmoxMachines,
    machines: Machines,
    stop: Stop,
    thread: Option<JoinHandle<()>>,
    notices: Option<mpsc::Sender<String>>,
    /// The machines that are there.
    hosts: Option<Box<SshLauncher>>,
    /// Why a node has no machine.
    missing: BTreeMap<String, FleetError>,
}

impl ProxmoxLauncher {
    pub(crate) fn new(fleet: &ProxmoxMachines) -> ProxmoxLauncher {
        ProxmoxLauncher {
            fleet: fleet.clone(),
            machines: Machines::default(),
            stop: Stop::default(),
            thread: None,
            notices: None,
            hosts: None,
            missing: BTreeMap::new(),
        }
    }

    /// Starts the thread that makes the machines. It sends the result, unless the receiver is gone.
    fn start_making(
        &mut self,
        context: &LaunchContext,
    ) -> Result<oneshot::Receiver<Result<MadeMachines, ProxmoxError>>, FleetError> {
        let (send, made) = oneshot::channel();
        let (fleet, machines, stop) = (self.fleet.clone(), self.machines.clone(), self.stop.clone());
        let run = random_token()?[..8].to_string();
        let (notices, goes_on) = (context.notices.clone(), context.goes_on_without);
        let thread = std::thread::Builder::new().name("proxmox".into()).spawn(move || {
            // Whoever waited may have gone.
            let _ = send.send(make(&fleet, &machines, stop, &run, goes_on, &notices));
        });
        let failed = |e| FleetError::failed(format!("cannot start a thread for the API of Proxmox VE: {e}"));
        self.thread = Some(thread.map_err(failed)?);
        Ok(made)
    }
}

/// Deletes what dead runs left, and makes the machines.
fn make(
    fleet: &ProxmoxMachines,
    machines: &Machines,
    stop: Stop,
    run: &str,
    goes_on: bool,
    notices: &mpsc::Sender<String>,
) -> Result<MadeMachines, ProxmoxError> {
    let tell = {
        let notices = notices.clone();
        // If too many wait, this one is not shown.
        move |text: String| drop(notices.try_send(text))
    };
    let cluster: &Proxmox = &fleet.cluster;
    let api = Api::new(cluster, stop)?;
    let cleaned = clean(&api, cluster, None, &tell)?;
    cleaned.left.iter().for_each(|left| tell(left.clone()));
    let plan = MachinePlan::of(&api, cluster, fleet.count(), fleet.disks_per_machine())?;
    tell(format!("making machines: {}", plan.summary()));
    let record = Record::begin(run, &cluster.api)?;
    let known = KnownHosts { file: record.known_hosts(), keys: Mutex::default() };
    let (key, user) = (record.key(), cluster.user.clone());
    let provisioner =
        Arc::new(Provisioner::new(api, cluster.clone(), fleet.disks_per_machine(), record, Box::new(tell)));
    let provisioner = machines.get_or_init(|| provisioner);
    let reach_machine = |machine: &ReachedMachine| {
        known.add(machine.address, &machine.host_key)?;
        reach(&HostAddress {
            node: machine.name.clone(),
            destination: format!("{user}@{}", machine.address),
            key: Some(key.clone()),
            known_hosts: Some(known.file.clone()),
        })
    };
    let made = provisioner.make(&plan, &fleet.names, goes_on, &reach_machine);
    Ok(MadeMachines { what: format!("Proxmox VE {}", plan.version), machines: made })
}

/// The keys of the machines' SSH servers, in a file for `ssh`.
struct KnownHosts {
    file: PathBuf,
    keys: Mutex<BTreeMap<IpAddr, String>>,
}

impl KnownHosts {
    /// Adds the key of a machine, in place of one that it had: cloud-init makes new ones at the first boot.
    fn add(&self, address: IpAddr, key: &str) -> Result<(), String> {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        keys.insert(address, key.into());
        let text: String = keys.iter().map(|(address, key)| format!("{address} {key}\n")).collect();
        let new = self.file.with_extension("new");
        // Others read it meanwhile.
        let written = fs::write(&new, text).and_then(|()| fs::rename(&new, &self.file));
        written.map_err(|e| format!("cannot write {}: {e}", self.file.display()))
    }
}

impl Launcher for ProxmoxLauncher {
    async fn prepare(&mut self, context: LaunchContext) -> Result<Vec<LaunchedWorker>, FleetError> {
        self.notices = Some(context.notices.clone());
        let made = self.start_making(&context)?.await;
        let made = made.map_err(|_| {
            FleetError::failed("the thread that makes machines has died: this is a bug of Loadline")
        })??;
        let mut failures = Vec::new();
        let (mut nodes, mut took) = (Vec::new(), BTreeMap::new());
        let record =
            self.machines.get().map(|machines| (machines.record().key(), machines.record().known_hosts()));
        let (key, known_hosts) = record.unwrap_or_default();
        for (name, machine) in self.fleet.names.iter().zip(made.machines) {
            match machine {
                Ok(machine) => {
                    took.insert(name.clone(), machine.took);
                    nodes.push(NodeSpec {
                        ssh: Some(format!("{}@{}", self.fleet.cluster.user, machine.address)),
                        ssh_key: Some(key.clone()),
                        ..NodeSpec::named(name)
                    });
                }
                Err(error) => {
                    let is_consequence = error.kind == ErrorKind::Interrupted;
                    let error = FleetError::from(error);
                    self.missing.insert(name.clone(), error.clone());
                    // The others are stopped after a failure: that says nothing more.
                    if !is_consequence {
                        failures.push(error);
                    }
                }
            }
        }
        if !self.missing.is_empty() && (!context.goes_on_without || nodes.is_empty()) {
            return Err(all_failures(failures).unwrap_or_else(FleetError::interrupted));
        }
        let hosts =
            SshHosts { nodes, workers_per_node: self.fleet.workers_per_node, direct: self.fleet.direct };
        let made = MadeHosts { known_hosts, what: made.what, took };
        let hosts = self.hosts.insert(Box::new(SshLauncher::of_made(hosts, made)));
        let mut workers = hosts.prepare(context).await?;
        for node in self.missing.keys() {
            workers.extend((0..self.fleet.workers_per_node).map(|number| LaunchedWorker {
                id: WorkerId(format!("{node}/{number}")),
                node: node.clone(),
            }));
        }
        Ok(workers)
    }

    async fn launch(&mut self, id: &WorkerId) -> Result<Duration, FleetError> {
        let node = id.0.split('/').next().unwrap_or_default();
        match (self.missing.get(node), &mut self.hosts) {
            (Some(error), _) => Err(error.clone()),
            (None, Some(hosts)) => hosts.launch(id).await,
            (None, None) => Err(FleetError::failed(format!("there is no machine for worker {id}"))),
        }
    }

    async fn exit_of(&mut self, id: &WorkerId) -> Option<WorkerExit> {
        self.hosts.as_mut()?.exit_of(id).await
    }

    async fn exit_of_lost(&mut self, id: &WorkerId) -> Option<WorkerExit> {
        self.hosts.as_mut()?.exit_of_lost(id).await
    }

    async fn order(&mut self, id: &WorkerId, _order: MachineOrder) -> Result<(), FleetError> {
        Err(FleetError::failed(format!(
            "worker {id} is in a machine of Proxmox VE, which takes no orders from Loadline"
        )))
    }

    async fn end(&mut self, workers: &BTreeSet<WorkerId>) {
        if let Some(hosts) = &mut self.hosts {
            hosts.end(workers).await;
        }
    }

    async fn end_all(&mut self, deadline: Instant) {
        if let Some(hosts) = &mut self.hosts {
            hosts.end_all(deadline).await;
        }
        self.stop.request();
        let (thread, machines) = (self.thread.take(), self.machines.clone());
        let removed = spawn_blocking(move || {
            // If it panicked, what it made is removed all the same.
            let _ = thread.map(JoinHandle::join);
            machines.get().map(|machines| machines.remove()).unwrap_or_default()
        });
        for left in removed.await.unwrap_or_default() {
            if let Some(notices) = &self.notices {
                // They are shown meanwhile, so that there is room for each.
                let _ = notices.send(left).await;
            }
        }
    }

    async fn check(&mut self) -> Result<Option<String>, FleetError> {
        let (fleet, stop) = (self.fleet.clone(), self.stop.clone());
        let (send, checked) = oneshot::channel();
        // A thread of its own. After Ctrl-C it is not waited for: it only asks, and changes nothing.
        let thread = std::thread::Builder::new().name("proxmox".into()).spawn(move || {
            let plan = Api::new(&fleet.cluster, stop).and_then(|api| {
                MachinePlan::of(&api, &fleet.cluster, fleet.count(), fleet.disks_per_machine())
            });
            let _ = send.send(plan);
        });
        thread.map_err(|e| {
            FleetError::failed(format!("cannot start a thread for the API of Proxmox VE: {e}"))
        })?;
        let died = |_| FleetError::failed("the check of Proxmox VE has died: this is a bug of Loadline");
        Ok(Some(checked.await.map_err(died)??.summary()))
    }
}

impl Drop for ProxmoxLauncher {
    fn drop(&mut self) {
        self.stop.request();
    }
}

impl From<ProxmoxError> for FleetError {
    fn from(error: ProxmoxError) -> FleetError {
        match error.kind {
            ErrorKind::Usage => FleetError::usage(error.message),
            ErrorKind::Failed => FleetError::failed(error.message),
            ErrorKind::Interrupted => FleetError::interrupted(),
        }
    }
}
