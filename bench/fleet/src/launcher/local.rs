//! A fleet of processes of this program on this machine, each a failure domain of its own, on nodes that are names with
//! limits.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use loadline_cgroup::{NodeGroups, RunPrefix};
use loadline_guest::MachineOrder;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::{
    CpuShare, FleetKind, FleetOptions, LaunchContext, LaunchedWorker, Launcher, OpenPlaces, WorkerExit,
};
use crate::elsewhere::Receiver;
use crate::error::FleetError;
use crate::identity::{WorkerId, WorkerInfo};
use crate::machine::{check_room, machine_limit};
use crate::node::NodeSpec;
use crate::orders::{Answered, KeeperOrder, Migration};
use crate::process::{Launch, LocalWorker};

/// How long a process that was started may take to join: 64 at once on two cores take a second or two.
const JOIN_LIMIT: Duration = Duration::from_secs(30);
/// How long killed processes may take to be gone, all together.
const REAP_LIMIT: Duration = Duration::from_secs(2);
/// The most nodes that are counted out from `nodes`, so that a slip of many zeros does not fill the memory; more workers than a
/// fleet may have.
const MOST_NODES: u32 = 4097;

/// Processes of this program on this machine. Their names are `NODE/0`, `NODE/1`, ...
#[derive(Debug, Clone, PartialEq)]
pub struct LocalProcesses {
    /// The nodes, of different names. At least one.
    pub nodes: Vec<NodeSpec>,
    /// Workers on each. At least one.
    pub workers_per_node: u32,
}

impl FleetKind for LocalProcesses {
    fn from_options(options: &FleetOptions) -> Result<Option<LocalProcesses>, FleetError> {
        if options.nodes.is_some() && !options.node.is_empty() {
            return Err(FleetError::usage(
                "[fleet] says nodes and has [[fleet.node]] tables: give one of the two",
            ));
        }
        if options.listen.is_some() || options.wait.is_some() {
            return Err(FleetError::usage(
                "[fleet] says listen or wait without join: say how many workers join",
            ));
        }
        let mut nodes: Vec<NodeSpec> = if options.node.is_empty() {
            let count = options.nodes.unwrap_or(1);
            let width = count.to_string().len();
            let named = |n: u32| NodeSpec::named(format!("node-{n:0width$}"));
            (1..=count.min(MOST_NODES)).map(named).collect()
        } else {
            options.node.clone()
        };
        for node in &mut nodes {
            node.machine = node.machine.take().or_else(|| options.machine.clone());
        }
        Ok(Some(LocalProcesses { nodes, workers_per_node: options.workers_per_node }))
    }

    fn validate(&self) -> Result<(), FleetError> {
        NodeSpec::validate_all(&self.nodes)
    }

    fn workers(&self) -> u32 {
        u32::try_from(self.nodes.len()).unwrap_or(u32::MAX).saturating_mul(self.workers_per_node)
    }

    fn nodes(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.name.clone()).collect()
    }

    fn summary(&self) -> String {
        let counted = |number: usize, what: &str| match number {
            1 => format!("1 {what}"),
            more => format!("{more} {what}s"),
        };
        let machines = || self.nodes.iter().filter_map(|node| node.machine.as_ref());
        let what = if machines().next().is_some() { "virtual machine" } else { "worker" };
        let by =
            if machines().any(|machine| machine.libvirt.is_some()) { ", started by libvirt" } else { "" };
        let workers = counted(self.workers_per_node as usize, what);
        format!("{} × {workers}{by}", counted(self.nodes.len(), "node"))
    }

    fn runs_here(&self) -> bool {
        true
    }

    fn cpu_share<'a>(&'a self, worker: &'a WorkerInfo) -> CpuShare<'a> {
        let node = self.nodes.iter().find(|node| node.name == worker.node);
        CpuShare { name: &worker.node, limit: node.and_then(|node| node.cpu_limit) }
    }

    fn listen_on(&self, wanted: SocketAddr) -> SocketAddr {
        // All workers are on this machine: the controller need not be reachable from elsewhere.
        match wanted.ip().is_loopback() {
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
}

/// A worker, and its process while it runs or its end has not been noted.
struct LocalSlot {
    launch: Launch,
    process: Option<LocalWorker>,
}

/// Starts the processes, and owns them and the control groups of their nodes.
pub(crate) struct LocalLauncher {
    fleet: LocalProcesses,
    slots: BTreeMap<WorkerId, LocalSlot>,
    groups: Vec<NodeGroups>,
    /// Processes that receive machines of other hosts, by the worker that such a machine is.
    receivers: BTreeMap<WorkerId, LocalWorker>,
}

impl LocalLauncher {
    pub(crate) fn new(fleet: &LocalProcesses) -> LocalLauncher {
        let (slots, receivers) = (BTreeMap::new(), BTreeMap::new());
        LocalLauncher { fleet: fleet.clone(), slots, groups: Vec::new(), receivers }
    }

    /// Starts a process on this host, with the limits of its first node, that receives the machine of a worker of another host at this
    /// address; `key` is what the keeper of the machine proves to know. Returns what gets the process's own address; it gets none if the process
    /// ends before.
    pub(crate) fn receive(
        &mut self,
        id: &WorkerId,
        ip: IpAddr,
        key: &str,
    ) -> Result<oneshot::Receiver<SocketAddr>, FleetError> {
        let first = self.slots.values().find(|slot| slot.launch.node.machine.is_some());
        let launch = first.map(|slot| &slot.launch).ok_or_else(|| {
            FleetError::failed(
                "its workers are processes, and it receives no machines: give its node a machine",
            )
        })?;
        let launch = Launch {
            id: id.clone(),
            token: key.into(),
            log_dir: None,
            receive: Some(ip),
            machine: None,
            ..launch.clone()
        };
        let receiver = launch.start()?;
        let address = receiver.address();
        // One that was there has no machine any more.
        if let Some(mut before) = self.receivers.insert(id.clone(), receiver) {
            before.kill();
        }
        Ok(address)
    }

    /// How the process ended that was to receive the machine of a worker; it may take a moment until that is known.
    pub(crate) async fn receiver_exit(&mut self, id: &WorkerId) -> Option<WorkerExit> {
        self.receivers.get_mut(id)?.ends_now().await
    }

    /// Orders that the machine of a worker is migrated to a receiver of another host, which is of this node.
    pub(crate) async fn migrate_there(
        &mut self,
        id: &WorkerId,
        migration: Migration,
        receiver: Receiver,
    ) -> Result<Answered, FleetError> {
        let Migration { node, disks } = migration;
        let order = KeeperOrder::Migrate { disks, cpus: None, cgroups: Vec::new(), to: Some(receiver) };
        self.running(id)?.migrate(&node, &order).await
    }

    /// The process of a worker, which runs or has ended a moment ago.
    fn running(&mut self, id: &WorkerId) -> Result<&mut LocalWorker, FleetError> {
        let process = self.slots.get_mut(id).and_then(|slot| slot.process.as_mut());
        process.ok_or_else(|| FleetError::failed(format!("worker {id} does not run")))
    }

    /// Takes a worker of another host's node: it can be launched as those of the first node here are.
    pub(crate) fn adopt(&mut self, id: &WorkerId) {
        let Some(slot) = self.slots.values().next().filter(|_| !self.slots.contains_key(id)) else { return };
        let launch = Launch { id: id.clone(), ..slot.launch.clone() };
        self.slots.insert(id.clone(), LocalSlot { launch, process: None });
    }
}

impl Launcher for LocalLauncher {
    async fn prepare(&mut self, context: LaunchContext) -> Result<Vec<LaunchedWorker>, FleetError> {
        check_room(&self.fleet.nodes, self.fleet.workers_per_node)?;
        let prefix = RunPrefix::new()?;
        let mut workers = Vec::new();
        for node in &self.fleet.nodes {
            let groups = NodeGroups::make(&node.name, &node.limits(), &prefix)?;
            for i in 0..self.fleet.workers_per_node {
                let id = WorkerId(format!("{}/{i}", node.name));
                let launch = Launch {
                    program: context.program.clone(),
                    id: id.clone(),
                    node: node.clone(),
                    cgroups: groups.folders().to_vec(),
                    controller: context.controller,
                    token: context.token.clone(),
                    log_dir: context.log_dir.clone(),
                    host_ip: context.host_ip,
                    // It is the first worker that says how long the machine took.
                    machine: context.machine.clone().filter(|_| i == 0),
                    receive: None,
                };
                workers.push(LaunchedWorker { id: id.clone(), node: node.name.clone() });
                self.slots.insert(id, LocalSlot { launch, process: None });
            }
            self.groups.push(groups);
        }
        Ok(workers)
    }

    async fn launch(&mut self, id: &WorkerId) -> Result<Duration, FleetError> {
        let machines = self.slots.values().filter(|slot| slot.launch.node.machine.is_some()).count();
        let slot = self
            .slots
            .get_mut(id)
            .ok_or_else(|| FleetError::failed(format!("there is no worker {id} to start")))?;
        if let Some(before) = slot.process.take() {
            // Its QEMU may outlive a keeper that was killed by somebody else.
            kill_all(vec![before]).await;
        }
        slot.process = Some(slot.launch.start()?);
        slot.launch.machine = None;
        Ok(match slot.launch.node.machine {
            Some(_) => machine_limit(machines),
            None => JOIN_LIMIT,
        })
    }

    async fn exit_of(&mut self, id: &WorkerId) -> Option<WorkerExit> {
        self.slots.get_mut(id)?.process.as_mut()?.ended().await
    }

    async fn exit_of_lost(&mut self, id: &WorkerId) -> Option<WorkerExit> {
        let slot = self.slots.get_mut(id)?;
        let mut exit = slot.process.as_mut()?.ends_now().await?;
        if slot.launch.node.memory_limit.is_some() && exit.message.contains("signal: 9") {
            exit.message.push_str("; perhaps the memory_limit of its node killed it");
        }
        Some(exit)
    }

    async fn order(&mut self, id: &WorkerId, order: MachineOrder) -> Result<(), FleetError> {
        self.running(id)?.order(&KeeperOrder::Machine(order)).await
    }

    async fn migrate(&mut self, id: &WorkerId, migration: Migration) -> Result<Answered, FleetError> {
        let Migration { node, disks } = migration;
        let there = self.slots.values().map(|slot| &slot.launch).find(|launch| launch.node.name == node);
        let (cpus, cgroups) =
            there.map(|launch| (launch.node.cpus.clone(), launch.cgroups.clone())).unwrap_or_default();
        let order = KeeperOrder::Migrate { disks, cpus, cgroups, to: None };
        self.running(id)?.migrate(&node, &order).await
    }

    fn away(&self) -> Vec<(WorkerId, String)> {
        let away = self.slots.iter().filter_map(|(id, slot)| {
            let (home, at) = (&slot.launch.node.name, slot.process.as_ref()?.node()?);
            (at != *home).then(|| (id.clone(), home.clone()))
        });
        away.collect()
    }

    async fn end(&mut self, workers: &BTreeSet<WorkerId>) {
        let (slots, receivers) = (&mut self.slots, &mut self.receivers);
        let processes = workers.iter().filter_map(|id| slots.get_mut(id)?.process.take());
        let mut processes: Vec<LocalWorker> = processes.collect();
        processes.extend(workers.iter().filter_map(|id| receivers.remove(id)));
        kill_all(processes).await;
    }

    async fn end_all(&mut self, deadline: Instant) {
        let mut processes: Vec<LocalWorker> =
            self.slots.values_mut().filter_map(|slot| slot.process.take()).collect();
        for process in &mut processes {
            process.wait(deadline.duration_since(Instant::now())).await;
        }
        processes.extend(std::mem::take(&mut self.receivers).into_values());
        kill_all(processes).await;
        for groups in self.groups.drain(..).filter(|groups| !groups.folders().is_empty()) {
            // It fails only if the runtime is being shut down; then the groups are dropped, which tries to remove them too.
            let _ = spawn_blocking(|| groups.remove()).await;
        }
    }
}

/// Kills processes and waits until they are gone, up to a limit for all together: one whose I/O hangs in the kernel
/// is left to the kernel.
async fn kill_all(mut processes: Vec<LocalWorker>) {
    processes.iter_mut().for_each(LocalWorker::kill);
    let deadline = Instant::now() + REAP_LIMIT;
    for process in &mut processes {
        process.wait(deadline.duration_since(Instant::now())).await;
    }
}
