//! The store as an etcd of three members, each on a host of its own, and a host that no fault cuts, from which the test reads it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use loadline_san_node::config;
use loadline_san_node::config::catalog::Catalog;
use loadline_san_node::config::url::StoreUrl;

use super::netns::{self, Network, Passage};

const MEMBERS: usize = 3;
/// How long the etcd may take to serve.
const STARTS: Duration = Duration::from_secs(30);

pub(crate) struct Etcd {
    /// The host of the first member.
    first: usize,
    folder: PathBuf,
    members: Vec<Option<Child>>,
    /// Members that are stopped.
    stopped: Vec<usize>,
}

impl Etcd {
    /// Hosts that it needs.
    pub(crate) const HOSTS: usize = MEMBERS + 1;

    /// Starts it on hosts from this one on, and waits until it serves.
    pub(crate) fn start(network: &Network, first: usize, folder: &Path) -> Etcd {
        let members = (0..MEMBERS).map(|_| None).collect();
        let mut etcd = Etcd { first, folder: folder.into(), members, stopped: Vec::new() };
        (0..MEMBERS).for_each(|member| etcd.spawn(network, member));
        let begun = Instant::now();
        while etcd.leader(network).is_none() {
            assert!(begun.elapsed() < STARTS, "etcd serves: {}", etcd.log(0));
            std::thread::sleep(Duration::from_millis(50));
        }
        etcd
    }

    fn endpoint(&self, member: usize) -> String {
        format!("{}:2379", netns::address(self.first + member))
    }

    fn endpoints(&self) -> String {
        (0..MEMBERS).map(|member| self.endpoint(member)).collect::<Vec<_>>().join(",")
    }

    /// The hosts of its members.
    pub(crate) fn hosts(&self) -> std::ops::Range<usize> {
        self.first..self.first + MEMBERS
    }

    pub(crate) fn url(&self) -> String {
        format!("etcd://{}/cluster", self.endpoints())
    }

    fn log(&self, member: usize) -> String {
        std::fs::read_to_string(self.folder.join(format!("etcd-{member}.log"))).unwrap_or_default()
    }

    fn spawn(&mut self, network: &Network, member: usize) {
        let peers = |member: usize| format!("http://{}:2380", netns::address(self.first + member));
        let all: Vec<String> = (0..MEMBERS).map(|at| format!("m{at}={}", peers(at))).collect();
        let clients = format!("http://{}", self.endpoint(member));
        let log = self.folder.join(format!("etcd-{member}.log"));
        let log = std::fs::File::options().create(true).append(true).open(log).expect("there is room");
        let mut command = network.command(self.first + member, Path::new("etcd"));
        command.args(["--name", &format!("m{member}"), "--data-dir"]);
        command.arg(self.folder.join(format!("etcd-{member}")));
        command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
        command.args(["--listen-peer-urls", &peers(member), "--initial-advertise-peer-urls", &peers(member)]);
        command.args(["--initial-cluster", &all.join(","), "--logger", "zap"]);
        let child = command.stdout(Stdio::null()).stderr(log).spawn();
        self.members[member] = Some(child.expect("etcd is installed: './dev setup --tests' does that"));
    }

    /// The member that leads, if all that run agree on one.
    pub(crate) fn leader(&self, network: &Network) -> Option<usize> {
        let mut command = network.command(self.first + MEMBERS, Path::new("etcdctl"));
        command.env("ETCDCTL_API", "3").args(["--endpoints", &self.endpoints(), "--command-timeout", "2s"]);
        let output =
            command.args(["endpoint", "status", "-w", "json"]).output().expect("etcdctl is beside etcd");
        let all: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
        let led = |one: &serde_json::Value| one["Status"]["leader"].as_u64();
        let is_leader = |one: &&serde_json::Value| {
            led(one).is_some_and(|id| Some(id) == one["Status"]["header"]["member_id"].as_u64())
        };
        let endpoint = all.as_array()?.iter().find(is_leader)?["Endpoint"].as_str()?;
        (0..MEMBERS).find(|member| self.endpoint(*member) == endpoint)
    }

    fn signal(&self, member: usize, signal: &str) {
        if let Some(child) = &self.members[member] {
            let _ = Command::new("kill").args([&format!("-{signal}"), &child.id().to_string()]).status();
        }
    }

    /// Two members do nothing any more: none of the others can change anything.
    pub(crate) fn stop_majority(&mut self) {
        self.stopped = vec![0, 1];
        self.stopped.iter().for_each(|member| self.signal(*member, "STOP"));
    }

    /// They go on.
    pub(crate) fn go_on(&mut self) {
        for member in std::mem::take(&mut self.stopped) {
            self.signal(member, "CONT");
        }
    }

    /// Kills a member.
    pub(crate) fn kill(&mut self, member: usize) {
        if let Some(mut child) = self.members[member].take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts a member again that was killed.
    pub(crate) fn start_again(&mut self, network: &Network) {
        for member in 0..MEMBERS {
            if self.members[member].is_none() {
                self.spawn(network, member);
            }
        }
    }

    /// Cuts a member from the other members, or not any more.
    pub(crate) fn cut_member(&self, network: &Network, member: usize, passage: Passage) {
        for other in (0..MEMBERS).filter(|other| *other != member) {
            network.set(self.first + member, self.first + other, passage);
            network.set(self.first + other, self.first + member, passage);
        }
    }

    /// What the configuration is; nothing while too few members run, or none of them leads.
    pub(crate) fn catalog(&self, network: &Network) -> Option<Catalog> {
        if !self.stopped.is_empty() {
            return None;
        }
        let url: StoreUrl = self.url().parse().expect("it is one");
        let reads = || {
            network.enter(self.first + MEMBERS).expect("the namespace is there, and this is root");
            let mut store = config::open(&url).ok()?;
            Catalog::read(&mut *store).ok()
        };
        std::thread::scope(|scope| scope.spawn(reads).join().expect("it does not panic"))
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.go_on();
        (0..MEMBERS).for_each(|member| self.kill(member));
    }
}
