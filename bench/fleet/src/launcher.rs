//! The kinds of fleet: where workers come from, and how they are started, watched and ended.
//!
//! A kind is one file below this module and one line in the list at its end. It implements two contracts:
//!
//! - [`FleetKind`], a value that a study plans with: how many workers there are, on which nodes, whether they see this
//!   machine's files, how they reach the controller. Its methods read nothing and start nothing.
//! - `Launcher`, which acts while the fleet runs: it prepares hosts, launches a worker (again), reports how a worker
//!   ended, and removes at the end what it left on the hosts.
//!
//! A worker either is launched (the launcher names it in `prepare`, and may end and start it at any time), or takes one
//! of the open places of the fleet ([`FleetKind::open_places`]); the controller only waits for those. No other module
//! asks which kind a fleet is.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use loadline_base::units::TimeSpan;
use loadline_guest::{Machine, MachineOrder};
use loadline_load::Target;
use loadline_proxmox::Proxmox;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::copies::ProgramCopies;
use crate::error::FleetError;
use crate::identity::{WorkerId, WorkerInfo};
use crate::node::NodeSpec;
use crate::orders::{Answered, Migration};
use crate::started::StartedMachine;

mod joining;
mod local;
mod proxmox;
mod ssh;

pub use joining::{DEFAULT_WAIT, JoiningWorkers, LONGEST_WAIT};
pub use local::LocalProcesses;
pub use proxmox::ProxmoxMachines;
pub use ssh::{
    DiskQuestion, FoundDisk, HostAnswer, HostQuestion, PROGRAMS_VARIABLE, SshHosts, run_host_agent, ssh_shell,
};

/// The options of a study's `[fleet]` table that decide its kind. A kind that needs others adds its own here.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FleetOptions {
    /// `nodes`: how many nodes of this machine.
    pub nodes: Option<u32>,
    /// `[[fleet.node]]`: the nodes, with names and limits: of this machine, or hosts.
    pub node: Vec<NodeSpec>,
    /// `workers_per_node`: workers on each node.
    pub workers_per_node: u32,
    /// `machine`: the virtual machine that each worker is, of nodes that do not say it themselves.
    pub machine: Option<Machine>,
    /// `join`: how many workers join from elsewhere.
    pub join: Option<u32>,
    /// `wait`: how long the controller waits for workers that join.
    pub wait: Option<TimeSpan>,
    /// `listen`: the address at which workers reach the controller.
    pub listen: Option<SocketAddr>,
    /// `proxmox`: the virtual machines of a cluster that are the nodes.
    pub proxmox: Option<Proxmox>,
    /// `disks_per_worker`: disks of each worker.
    pub disks_per_worker: u32,
}

/// Places of a fleet for workers that are started elsewhere, with `loadline worker --join`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenPlaces {
    /// The number of places, at least 1.
    pub workers: u32,
    /// How long the controller waits at its start until all are taken.
    pub wait: TimeSpan,
}

/// The CPUs that some workers of one host share.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CpuShare<'a> {
    /// Workers of one host with the same name here share these CPUs.
    pub name: &'a str,
    /// How much CPU these workers may use together, in cores; `None`: as much as there is.
    pub limit: Option<f64>,
}

/// One kind of fleet, as a study asks for it. Pure: nothing is read or started.
pub trait FleetKind: Sized {
    /// The fleet of this kind that these options ask for; `None` if they ask for another kind. An error (of kind
    /// `Usage`) if they ask for this kind and contradict each other.
    fn from_options(options: &FleetOptions) -> Result<Option<Self>, FleetError>;

    /// Checks the rules of this kind that need no system. The error is of kind `Usage`.
    fn validate(&self) -> Result<(), FleetError>;

    /// How many workers there are in all, launched ones and open places. Saturates.
    fn workers(&self) -> u32;

    /// The names of the nodes, in their order; empty if workers bring the names of their nodes (and their own) along, so
    /// that a plan cannot know which worker gets which disk.
    fn nodes(&self) -> Vec<String>;

    /// The fleet in words for a plan, such as "2 nodes × 1 worker".
    fn summary(&self) -> String;

    /// Whether every worker runs on the controller's machine and sees its files, so that the space for files and the
    /// devices can be checked before the run.
    fn runs_here(&self) -> bool;

    /// Which CPUs a worker shares with others of its host.
    fn cpu_share<'a>(&'a self, worker: &'a WorkerInfo) -> CpuShare<'a>;

    /// Where the controller listens if the user wants `wanted`: not beyond this machine unless workers need it.
    fn listen_on(&self, wanted: SocketAddr) -> SocketAddr;

    /// The port that the controller listens on if the user names none; 0: any that is free.
    fn default_port(&self) -> u16;

    /// The places for workers that the fleet does not launch; `None` if the fleet launches all of its workers.
    fn open_places(&self) -> Option<OpenPlaces>;

    /// Leaves one worker on each node, where the fleet says how many there are.
    fn one_worker_each(&mut self) {}

    /// Whether the hosts are made when the fleet starts, and deleted with all that is on them when it ends.
    fn makes_hosts(&self) -> bool {
        false
    }

    /// The disks that are made for each node when the fleet starts, by their names there. They hold nothing that could be lost.
    fn made_disks(&self) -> Vec<Target> {
        Vec::new()
    }

    /// How long the end of the fleet may take.
    fn end_limit(&self) -> Duration {
        END_LIMIT
    }
}

/// How long the end of a fleet may take: a little more than dismissing and killing the workers may.
const END_LIMIT: Duration = Duration::from_secs(10);

/// What a launcher needs to know of the controller.
#[derive(Debug, Clone)]
pub(crate) struct LaunchContext {
    /// Where the controller listens.
    pub(crate) controller: SocketAddr,
    /// The token that workers must have. It must not be on a command line, which every user of a host can read.
    pub(crate) token: Arc<str>,
    /// The `loadline` program of this machine.
    pub(crate) program: PathBuf,
    /// Where copies of the program to hosts are reported.
    pub(crate) copies: watch::Sender<ProgramCopies>,
    /// A folder of this machine for what workers print, one file each.
    pub(crate) log_dir: Option<PathBuf>,
    /// The address at which other hosts reach the hosts of the workers, if their connections to the controller do not say it.
    pub(crate) host_ip: Option<IpAddr>,
    /// Whether hosts that cannot be prepared are left out: their workers do not start, and say why.
    pub(crate) goes_on_without: bool,
    /// The virtual machine that this host is, if it was started for this fleet and its workers are to say how long that took.
    pub(crate) machine: Option<StartedMachine>,
    /// Where messages for people go, while hosts are prepared and when they are removed.
    pub(crate) notices: mpsc::Sender<String>,
}

/// A worker that a launcher can start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LaunchedWorker {
    pub(crate) id: WorkerId,
    /// The node that it is placed on.
    pub(crate) node: String,
}

/// How a worker ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WorkerExit {
    /// In words, the last lines that the worker printed included.
    pub(crate) message: String,
    /// Whether the worker refused its command line or what it was asked for (exit code 2): starting it again does not
    /// help.
    pub(crate) usage: bool,
}

/// Starts, places, watches and ends the workers of one fleet. Every method is called by the controller's thread, one at a time. The
/// defaults are those of a fleet that launches none of its workers.
pub(crate) trait Launcher {
    /// Prepares the hosts, and returns the workers that can be launched. Called once, before everything else. What was made
    /// until an error is removed by [`end_all`](Self::end_all).
    async fn prepare(&mut self, _context: LaunchContext) -> Result<Vec<LaunchedWorker>, FleetError> {
        Ok(Vec::new())
    }

    /// Starts a worker that does not run, the first time or again, and returns without waiting for it: it must join within
    /// the time returned.
    async fn launch(&mut self, id: &WorkerId) -> Result<Duration, FleetError> {
        Err(FleetError::failed(format!("worker {id} is started elsewhere, and not by this fleet")))
    }

    /// Says on which node's host a worker is launched next; one that runs goes on where it is. The error is of kind `Usage`: the fleet
    /// has no such node.
    fn place(&mut self, _id: &WorkerId, _node: &str) -> Result<(), FleetError> {
        Ok(())
    }

    /// The node on whose host a worker is launched, if the fleet has several hosts.
    fn place_of(&self, _id: &WorkerId) -> Option<&str> {
        None
    }

    /// How a launched worker ended; `None` if it runs, or was not launched. Does not wait.
    async fn exit_of(&mut self, _id: &WorkerId) -> Option<WorkerExit> {
        None
    }

    /// The same for a worker whose connection has just ended: it may take a moment (at most 1 s) until its exit is known.
    async fn exit_of_lost(&mut self, _id: &WorkerId) -> Option<WorkerExit> {
        None
    }

    /// Orders something of the machine that a worker is, and returns without waiting until it is done.
    async fn order(&mut self, id: &WorkerId, _order: MachineOrder) -> Result<(), FleetError> {
        Err(FleetError::failed(format!(
            "worker {id} is no virtual machine of this host, and takes no orders"
        )))
    }

    /// Orders that the machine which a worker is be migrated. Returns what gets the answer.
    async fn migrate(&mut self, id: &WorkerId, _migration: Migration) -> Result<Answered, FleetError> {
        Err(FleetError::failed(format!(
            "worker {id} is no virtual machine of this host, and is not migrated"
        )))
    }

    /// The machines that were migrated to other nodes than their own, each with its own.
    fn away(&self) -> Vec<(WorkerId, String)> {
        Vec::new()
    }

    /// Ends these workers at once, if they run, and waits until they are gone, for a few seconds at most. Workers that were
    /// not launched are left alone.
    async fn end(&mut self, _workers: &BTreeSet<WorkerId>) {}

    /// Waits until `deadline` for all workers to end by themselves, ends the others, and removes what the launcher made on
    /// the hosts.
    async fn end_all(&mut self, _deadline: Instant) {}

    /// Checks whether the hosts can be made that the fleet makes, and says in words what was found. Called instead of `prepare`; makes
    /// nothing. `None` for a fleet that makes no hosts.
    async fn check(&mut self) -> Result<Option<String>, FleetError> {
        Ok(None)
    }

    /// Asks the hosts of these nodes about disks and folders, without anything else. Called instead of `prepare`, and leaves
    /// nothing running. Empty for a fleet that asks no hosts.
    async fn inspect(
        &mut self,
        _program: PathBuf,
        _copies: watch::Sender<ProgramCopies>,
        _questions: BTreeMap<String, HostQuestion>,
    ) -> BTreeMap<String, Result<HostAnswer, FleetError>> {
        BTreeMap::new()
    }
}

/// Lists the kinds: `Variant(kind, its launcher)`. Generates [`Placement`] and `AnyLauncher`, which pass each method of the two
/// contracts on.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident($spec:ty, $launcher:ty),)+) => {
        /// Where the workers of a fleet come from: a fleet of one of the kinds.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Placement {
            $($(#[$doc])* $kind($spec),)+
        }

        impl Placement {
            /// The fleet that a study's options ask for. The error is of kind `Usage`.
            pub fn of(options: &FleetOptions) -> Result<Placement, FleetError> {
                Placement::from_options(options)?
                    .ok_or_else(|| FleetError::usage("[fleet] names no workers: set nodes (workers on this machine), [[fleet.node]] with ssh \
                     (workers on hosts), [fleet.proxmox] or join (workers that connect to the controller)"))
            }

            /// What acts for it.
            pub(crate) fn launcher(&self) -> AnyLauncher {
                match self { $(Placement::$kind(fleet) => AnyLauncher::$kind(<$launcher>::new(fleet)),)+ }
            }
        }

        impl FleetKind for Placement {
            fn from_options(options: &FleetOptions) -> Result<Option<Placement>, FleetError> {
                $(if let Some(fleet) = <$spec>::from_options(options)? {
                    return Ok(Some(Placement::$kind(fleet)));
                })+
                Ok(None)
            }
            fn validate(&self) -> Result<(), FleetError> {
                match self { $(Placement::$kind(fleet) => fleet.validate(),)+ }
            }
            fn workers(&self) -> u32 {
                match self { $(Placement::$kind(fleet) => fleet.workers(),)+ }
            }
            fn nodes(&self) -> Vec<String> {
                match self { $(Placement::$kind(fleet) => fleet.nodes(),)+ }
            }
            fn summary(&self) -> String {
                match self { $(Placement::$kind(fleet) => fleet.summary(),)+ }
            }
            fn runs_here(&self) -> bool {
                match self { $(Placement::$kind(fleet) => fleet.runs_here(),)+ }
            }
            fn cpu_share<'a>(&'a self, worker: &'a WorkerInfo) -> CpuShare<'a> {
                match self { $(Placement::$kind(fleet) => fleet.cpu_share(worker),)+ }
            }
            fn listen_on(&self, wanted: SocketAddr) -> SocketAddr {
                match self { $(Placement::$kind(fleet) => fleet.listen_on(wanted),)+ }
            }
            fn default_port(&self) -> u16 {
                match self { $(Placement::$kind(fleet) => fleet.default_port(),)+ }
            }
            fn open_places(&self) -> Option<OpenPlaces> {
                match self { $(Placement::$kind(fleet) => fleet.open_places(),)+ }
            }
            fn one_worker_each(&mut self) {
                match self { $(Placement::$kind(fleet) => fleet.one_worker_each(),)+ }
            }
            fn makes_hosts(&self) -> bool {
                match self { $(Placement::$kind(fleet) => fleet.makes_hosts(),)+ }
            }
            fn made_disks(&self) -> Vec<Target> {
                match self { $(Placement::$kind(fleet) => fleet.made_disks(),)+ }
            }
            fn end_limit(&self) -> Duration {
                match self { $(Placement::$kind(fleet) => fleet.end_limit(),)+ }
            }
        }

        /// The launcher of a fleet of one of the kinds.
        pub(crate) enum AnyLauncher {
            $($kind($launcher),)+
        }

        impl Launcher for AnyLauncher {
            async fn prepare(&mut self, context: LaunchContext) -> Result<Vec<LaunchedWorker>, FleetError> {
                match self { $(AnyLauncher::$kind(launcher) => launcher.prepare(context).await,)+ }
            }
            async fn launch(&mut self, id: &WorkerId) -> Result<Duration, FleetError> {
                match self { $(AnyLauncher::$kind(launcher) => launcher.launch(id).await,)+ }
            }
            fn place(&mut self, id: &WorkerId, node: &str) -> Result<(), FleetError> {
                match self { $(AnyLauncher::$kind(launcher) => launcher.place(id, node),)+ }
            }
            fn place_of(&self, id: &WorkerId) -> Option<&str> {
                match self { $(AnyLauncher::$kind(launcher) => launcher.place_of(id),)+ }
            }
            async fn exit_of(&mut self, id: &WorkerId) -> Option<WorkerExit> {
                match self { $(AnyLauncher::$kind(launcher) => launcher.exit_of(id).await,)+ }
            }
            async fn exit_of_lost(&mut self, id: &WorkerId) -> Option<WorkerExit> {
                match self { $(AnyLauncher::$kind(launcher) => launcher.exit_of_lost(id).await,)+ }
            }
            async fn order(&mut self, id: &WorkerId, order: MachineOrder) -> Result<(), FleetError> {
                match self { $(AnyLauncher::$kind(launcher) => launcher.order(id, order).await,)+ }
            }
            async fn migrate(&mut self, id: &WorkerId, migration: Migration) -> Result<Answered, FleetError> {
                match self { $(AnyLauncher::$kind(launcher) => launcher.migrate(id, migration).await,)+ }
            }
            fn away(&self) -> Vec<(WorkerId, String)> {
                match self { $(AnyLauncher::$kind(launcher) => launcher.away(),)+ }
            }
            async fn end(&mut self, workers: &BTreeSet<WorkerId>) {
                match self { $(AnyLauncher::$kind(launcher) => launcher.end(workers).await,)+ }
            }
            async fn end_all(&mut self, deadline: Instant) {
                match self { $(AnyLauncher::$kind(launcher) => launcher.end_all(deadline).await,)+ }
            }
            async fn check(&mut self) -> Result<Option<String>, FleetError> {
                match self { $(AnyLauncher::$kind(launcher) => launcher.check().await,)+ }
            }
            async fn inspect(
                &mut self,
                program: PathBuf,
                copies: watch::Sender<ProgramCopies>,
                questions: BTreeMap<String, HostQuestion>,
            ) -> BTreeMap<String, Result<HostAnswer, FleetError>> {
                match self { $(AnyLauncher::$kind(launcher) => launcher.inspect(program, copies, questions).await,)+ }
            }
        }
    };
}

// Options are offered to the kinds in this order; the last one is what a study gets that says nothing.
kinds! {
    /// Processes of this program in virtual machines of a Proxmox VE cluster.
    Proxmox(ProxmoxMachines, proxmox::ProxmoxLauncher),
    /// Workers that are started elsewhere and join.
    Joined(JoiningWorkers, joining::JoiningLauncher),
    /// Processes of this program on hosts that `ssh` reaches.
    Ssh(SshHosts, ssh::SshLauncher),
    /// Processes of this program on this machine.
    Processes(LocalProcesses, local::LocalLauncher),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fleet(change: impl Fn(&mut FleetOptions)) -> Result<Placement, String> {
        let mut options = FleetOptions { workers_per_node: 2, ..FleetOptions::default() };
        change(&mut options);
        Placement::of(&options).map_err(|error| error.message)
    }

    #[test]
    fn options_decide_the_kind_and_contradictions_are_refused() {
        let local = fleet(|_| {}).unwrap();
        assert_eq!((local.workers(), local.nodes()), (2, vec!["node-1".to_string()]));
        assert_eq!(fleet(|o| o.nodes = Some(10)).unwrap().nodes()[0], "node-01");
        let joined = fleet(|o| o.join = Some(3)).unwrap();
        assert_eq!((joined.workers(), joined.nodes()), (3, Vec::new()));
        let both = fleet(|o| (o.join, o.nodes) = (Some(3), Some(1)));
        assert!(both.unwrap_err().contains("both nodes and join"));
        let twice = fleet(|o| (o.node, o.nodes) = (vec![NodeSpec::named("a")], Some(1)));
        assert!(twice.unwrap_err().contains("one of the two"));
        let wait = fleet(|o| o.wait = Some(TimeSpan::seconds(1)));
        assert!(wait.unwrap_err().contains("without join"));
    }

    #[test]
    fn nodes_with_ssh_are_hosts_and_only_listen_lets_them_dial_the_controller() {
        let host = |name: &str| NodeSpec { ssh: Some(format!("root@{name}")), ..NodeSpec::named(name) };
        let hosts = fleet(|o| o.node = vec![host("a"), host("b")]).unwrap();
        assert_eq!((hosts.workers(), hosts.summary().as_str()), (4, "2 hosts × 2 workers"));
        assert!(!hosts.runs_here() && hosts.open_places().is_none());
        let anywhere: SocketAddr = "0.0.0.0:7400".parse().unwrap();
        assert!(hosts.listen_on(anywhere).ip().is_loopback());
        let direct = fleet(|o| (o.node, o.listen) = (vec![host("a")], Some(anywhere))).unwrap();
        assert_eq!(direct.listen_on(anywhere), anywhere);
        let mixed = fleet(|o| o.node = vec![host("a"), NodeSpec::named("b")]);
        assert!(mixed.unwrap_err().contains("[[fleet.node]] b has no ssh"));
        for ssh in ["", "-oProxyCommand=x", "a b"] {
            let node = NodeSpec { ssh: Some(ssh.into()), ..NodeSpec::named("a") };
            assert!(fleet(|o| o.node = vec![node.clone()]).unwrap().validate().is_err(), "{ssh}");
        }
    }

    #[test]
    fn only_a_fleet_with_open_places_is_reachable_from_other_machines() {
        let anywhere: SocketAddr = "0.0.0.0:7400".parse().unwrap();
        let local = fleet(|_| {}).unwrap();
        assert_eq!((local.listen_on(anywhere).ip().is_loopback(), local.open_places()), (true, None));
        let joined = fleet(|o| o.join = Some(3)).unwrap();
        assert_eq!(joined.listen_on(anywhere), anywhere);
        assert_eq!(joined.open_places(), Some(OpenPlaces { workers: 3, wait: DEFAULT_WAIT }));
        assert_ne!(joined.default_port(), 0, "the port must be known before the fleet starts");
    }

    #[test]
    fn workers_of_a_local_node_share_its_cpus_and_workers_that_join_do_not() {
        let worker = WorkerInfo {
            id: WorkerId("a/0".into()),
            node: "a".into(),
            host: String::new(),
            pid: 0,
            version: String::new(),
        };
        let node = NodeSpec { cpu_limit: Some(1.5), ..NodeSpec::named("a") };
        let local = fleet(|o| o.node = vec![node.clone()]).unwrap();
        assert_eq!(local.cpu_share(&worker), CpuShare { name: "a", limit: Some(1.5) });
        let joined = fleet(|o| o.join = Some(1)).unwrap();
        assert_eq!(joined.cpu_share(&worker), CpuShare { name: "a/0", limit: None });
    }
}
