//! A fleet of workers on hosts that the system's `ssh` reaches: keys, agents, jump hosts and `ssh_config` work as they do for a person.
//!
//! On each host an agent, a process of this program, starts the workers of a node and ends them; the program is copied there where
//! it is missing. Only the port of `ssh` must be reachable: workers dial a port of their own host that `ssh` forwards to the
//! controller, unless the study names an address with `listen`.
//!
//! | module | idea |
//! | --- | --- |
//! | `session` | one connection: the copy of the program, the agent |
//! | `moves` | machines migrated between hosts |
//! | `host` | one host: its connection opened, used, and opened again |
//! | `agent` | what runs on the host |
//! | `messages` | what the two send each other |
//! | `program` | the program for each architecture |
//! | `reach` | whether a host lets us in, before anything else |
//! | `failure` | what the words of `ssh` mean |

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use loadline_base::figures::counted;
use loadline_guest::MachineOrder;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout, timeout_at};

use super::{
    CpuShare, FleetKind, FleetOptions, LaunchContext, LaunchedWorker, Launcher, OpenPlaces, WorkerExit,
};
use crate::copies::ProgramCopies;
use crate::error::{ErrorKind, FleetError};
use crate::identity::{WorkerId, WorkerInfo};
use crate::machine::machine_limit;
use crate::node::NodeSpec;
use crate::orders::{Answered, KeeperAnswer, Migration};

mod agent;
mod failure;
mod host;
mod messages;
mod moves;
mod program;
mod reach;
mod session;

pub use agent::run_host_agent;
pub use messages::{DiskQuestion, FoundDisk, HostAnswer, HostQuestion};
pub use program::PROGRAMS_VARIABLE;
pub use session::ssh_shell;

pub(super) use reach::reach;
pub(super) use session::HostAddress;

use host::{Begin, Host, HostRequest};
use messages::AgentOrder;
use moves::Away;
use program::Programs;

/// How long a worker may take to join whose host is connected.
const JOIN_LIMIT: Duration = Duration::from_secs(30);
/// The same, if its host must be connected first.
const CONNECT_LIMIT: Duration = Duration::from_secs(75);
/// How long a host may take to pass an order on.
const ORDER_LIMIT: Duration = Duration::from_secs(5);
/// How long the end of workers is waited for.
const END_LIMIT: Duration = Duration::from_secs(5);
/// How much longer than workers may take to end, the removal of what was made on hosts is waited for.
const CLEAN_LIMIT: Duration = Duration::from_secs(5);
/// How long the exit of a worker is waited for whose connection has ended.
const EXIT_LIMIT: Duration = Duration::from_secs(1);

/// Workers on hosts that `ssh` reaches. Their names are `NODE/0`, `NODE/1`, ...
#[derive(Debug, Clone, PartialEq)]
pub struct SshHosts {
    /// The nodes, of different names, each with `ssh`. At least one.
    pub nodes: Vec<NodeSpec>,
    /// Workers on each. At least one.
    pub workers_per_node: u32,
    /// Whether workers dial the controller's address, and not a port that `ssh` forwards.
    pub direct: bool,
}

impl FleetKind for SshHosts {
    fn from_options(options: &FleetOptions) -> Result<Option<SshHosts>, FleetError> {
        if options.node.iter().all(|node| node.ssh.is_none()) {
            return Ok(None);
        }
        if let Some(node) = options.node.iter().find(|node| node.ssh.is_none()) {
            return Err(FleetError::usage(format!(
                "[[fleet.node]] {} has no ssh, and another node has: either all nodes are hosts, or none is",
                node.name
            )));
        }
        if options.nodes.is_some() {
            return Err(FleetError::usage(
                "[fleet] says nodes and has [[fleet.node]] tables: give one of the two",
            ));
        }
        if options.wait.is_some() {
            return Err(FleetError::usage("[fleet] says wait without join: workers on hosts are started"));
        }
        let machine = |node: &NodeSpec| node.machine.clone().or_else(|| options.machine.clone());
        let nodes = options.node.iter().map(|node| NodeSpec { machine: machine(node), ..node.clone() });
        Ok(Some(SshHosts {
            nodes: nodes.collect(),
            workers_per_node: options.workers_per_node,
            direct: options.listen.is_some(),
        }))
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
        let (hosts, workers) = (self.nodes.len() as u64, self.workers_per_node.into());
        format!("{} × {}", counted(hosts, "host"), counted(workers, "worker"))
    }

    fn runs_here(&self) -> bool {
        false
    }

    fn cpu_share<'a>(&'a self, worker: &'a WorkerInfo) -> CpuShare<'a> {
        let node = self.nodes.iter().find(|node| node.name == worker.node);
        CpuShare { name: &worker.node, limit: node.and_then(|node| node.cpu_limit) }
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
}

impl SshHosts {
    fn address(node: &NodeSpec) -> HostAddress {
        HostAddress {
            node: node.name.clone(),
            destination: node.ssh.clone().unwrap_or_default(),
            key: node.ssh_key.clone(),
            known_hosts: None,
        }
    }
}

/// Hosts that another launcher has made: how they are known, and how long each took from the request to start it until SSH reached it.
#[derive(Debug, Clone)]
pub(super) struct MadeHosts {
    /// The file with the keys of their SSH servers, as `known_hosts`.
    pub(super) known_hosts: PathBuf,
    /// What runs them, in words.
    pub(super) what: String,
    /// By the names of their nodes.
    pub(super) took: BTreeMap<String, Duration>,
}

/// Starts workers by the agents of their hosts, and owns the connections.
pub(crate) struct SshLauncher {
    fleet: SshHosts,
    hosts: BTreeMap<String, Host>,
    /// The node on whose host each worker is launched.
    workers: BTreeMap<WorkerId, String>,
    made: Option<MadeHosts>,
    /// Where machines are that are not on the hosts of their keepers.
    away: Away,
}

impl SshLauncher {
    pub(crate) fn new(fleet: &SshHosts) -> SshLauncher {
        let (hosts, workers, away) = (BTreeMap::new(), BTreeMap::new(), Away::default());
        SshLauncher { fleet: fleet.clone(), hosts, workers, made: None, away }
    }

    /// For hosts that another launcher has made.
    pub(super) fn of_made(fleet: SshHosts, made: MadeHosts) -> SshLauncher {
        SshLauncher { made: Some(made), ..SshLauncher::new(&fleet) }
    }

    fn host_of(&self, worker: &WorkerId) -> Option<&Host> {
        self.hosts.get(self.workers.get(worker)?)
    }
}

impl Launcher for SshLauncher {
    async fn prepare(&mut self, context: LaunchContext) -> Result<Vec<LaunchedWorker>, FleetError> {
        let with_machines = self.fleet.nodes.iter().any(|node| node.machine.is_some());
        let programs =
            Programs::new(context.program.clone(), context.copies.clone()).with_first(with_machines);
        let mut workers = Vec::new();
        let mut answers = Vec::new();
        for node in &self.fleet.nodes {
            let begin = Begin {
                node: agent::limits_of(node),
                workers: self.fleet.workers_per_node,
                controller: context.controller,
                direct: self.fleet.direct,
                token: context.token.clone(),
                started: self
                    .made
                    .as_ref()
                    .and_then(|made| Some((made.what.clone(), *made.took.get(&node.name)?))),
            };
            let known_hosts = self.made.as_ref().map(|made| made.known_hosts.clone());
            let address = HostAddress { known_hosts, ..SshHosts::address(node) };
            let host = Host::start(address, programs.clone(), Some(begin));
            let (answer, answered) = oneshot::channel();
            host.ask(HostRequest::Prepare(answer));
            answers.push(answered);
            self.hosts.insert(node.name.clone(), host);
            for number in 0..self.fleet.workers_per_node {
                let id = WorkerId(format!("{}/{number}", node.name));
                self.workers.insert(id.clone(), node.name.clone());
                workers.push(LaunchedWorker { id, node: node.name.clone() });
            }
        }
        // All are asked at once, and all that fail are named.
        let mut failures = Vec::new();
        for answered in answers {
            match answered.await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => failures.push(error),
                Err(_) => {
                    failures.push(FleetError::failed("a host's task has died: this is a bug of Loadline"))
                }
            }
        }
        match all_failures(failures) {
            Some(error) if !context.goes_on_without => Err(error),
            _ => Ok(workers),
        }
    }

    async fn launch(&mut self, id: &WorkerId) -> Result<Duration, FleetError> {
        // Its machine may not know yet that its keeper is gone.
        self.end_away(id).await;
        let host = self
            .host_of(id)
            .ok_or_else(|| FleetError::failed(format!("there is no worker {id} to start")))?;
        host.exits.forget(id);
        if !host.ask(HostRequest::Launch(id.clone())) {
            return Err(FleetError::failed(format!("worker {id}: its host is busy with earlier requests")));
        }
        let has_machine =
            |node: &NodeSpec| Some(&node.name) == self.workers.get(id) && node.machine.is_some();
        let limit = match self.fleet.nodes.iter().any(has_machine) {
            true => machine_limit(self.fleet.workers_per_node as usize),
            false => JOIN_LIMIT,
        };
        Ok(if host.is_connected() { limit } else { CONNECT_LIMIT.max(limit) })
    }

    fn place(&mut self, id: &WorkerId, node: &str) -> Result<(), FleetError> {
        if !self.hosts.contains_key(node) {
            return Err(FleetError::usage(format!("worker {id}: the fleet has no host of a node {node}")));
        }
        self.workers.insert(id.clone(), node.into());
        Ok(())
    }

    fn place_of(&self, id: &WorkerId) -> Option<&str> {
        self.workers.get(id).map(String::as_str)
    }

    async fn exit_of(&mut self, id: &WorkerId) -> Option<WorkerExit> {
        self.host_of(id)?.exits.of(id)
    }

    async fn exit_of_lost(&mut self, id: &WorkerId) -> Option<WorkerExit> {
        self.host_of(id)?.exits.of_within(id, EXIT_LIMIT).await
    }

    async fn order(&mut self, id: &WorkerId, order: MachineOrder) -> Result<(), FleetError> {
        let host = self.host_of(id).ok_or_else(|| FleetError::failed(format!("there is no worker {id}")))?;
        let answered = host.order(AgentOrder::Machine { worker: id.clone(), order });
        match timeout(ORDER_LIMIT, answered).await {
            Ok(Ok(KeeperAnswer::Done)) => Ok(()),
            Ok(Ok(KeeperAnswer::Failed(why))) => Err(FleetError::failed(why)),
            Ok(Ok(other)) => Err(FleetError::failed(format!("worker {id}: its host answers {other:?}"))),
            Ok(Err(_)) => Err(FleetError::failed(format!("worker {id}: the connection to its host ended"))),
            Err(_) => Err(FleetError::failed(format!("worker {id}: its host does not answer"))),
        }
    }

    async fn migrate(&mut self, id: &WorkerId, migration: Migration) -> Result<Answered, FleetError> {
        self.move_machine(id, migration)
    }

    fn away(&self) -> Vec<(WorkerId, String)> {
        let home = |id: WorkerId| Some((id.clone(), self.workers.get(&id)?.clone()));
        self.away.workers().into_iter().filter_map(home).collect()
    }

    async fn end(&mut self, workers: &BTreeSet<WorkerId>) {
        let mut by_host: BTreeMap<String, BTreeSet<WorkerId>> = BTreeMap::new();
        for id in workers {
            for node in self.workers.get(id).cloned().into_iter().chain(self.away.forget(id)) {
                by_host.entry(node).or_default().insert(id.clone());
            }
        }
        let mut ends = Vec::new();
        for (node, workers) in by_host {
            let Some(host) = self.hosts.get(&node).filter(|host| host.is_connected()) else { continue };
            let (done, ended) = oneshot::channel();
            if host.ask(HostRequest::End(workers, done)) {
                ends.push(ended);
            }
        }
        let deadline = Instant::now() + END_LIMIT;
        for ended in ends {
            let _ = timeout_at(deadline, ended).await;
        }
    }

    async fn end_all(&mut self, deadline: Instant) {
        let wait = deadline.saturating_duration_since(Instant::now());
        let mut ends = Vec::new();
        // A host that is being connected is let go at once: its connection ends, and with it all that was begun there.
        for host in self.hosts.values().filter(|host| host.is_connected()) {
            let (done, ended) = oneshot::channel();
            if host.ask(HostRequest::EndAll(wait, done)) {
                ends.push(ended);
            }
        }
        for ended in ends {
            let _ = timeout_at(deadline + CLEAN_LIMIT, ended).await;
        }
        self.hosts.clear();
    }

    async fn inspect(
        &mut self,
        program: PathBuf,
        copies: watch::Sender<ProgramCopies>,
        questions: BTreeMap<String, HostQuestion>,
    ) -> BTreeMap<String, Result<HostAnswer, FleetError>> {
        let programs = Programs::new(program, copies);
        let mut answers = Vec::new();
        for (node, question) in questions {
            let Some(spec) = self.fleet.nodes.iter().find(|spec| spec.name == node) else { continue };
            let host = Host::start(SshHosts::address(spec), programs.clone(), None);
            let (answer, answered) = oneshot::channel();
            host.ask(HostRequest::Inspect(question, answer));
            self.hosts.insert(node.clone(), host);
            answers.push((node, answered));
        }
        let mut found = BTreeMap::new();
        for (node, answered) in answers {
            let died = || FleetError::failed("a host's task has died: this is a bug of Loadline");
            found.insert(node, answered.await.unwrap_or_else(|_| Err(died())));
        }
        let ended = timeout(CLEAN_LIMIT, self.end_all(Instant::now())).await;
        drop(ended);
        found
    }
}

/// All failures as one error, `None` without any; of kind `Usage` if one of them is.
pub(super) fn all_failures(failures: Vec<FleetError>) -> Option<FleetError> {
    let usage = failures.iter().any(|error| error.kind == ErrorKind::Usage);
    let messages: Vec<String> = failures.into_iter().map(|error| error.message).collect();
    let message = messages.join("\n");
    (!message.is_empty())
        .then(|| if usage { FleetError::usage(message) } else { FleetError::failed(message) })
}
