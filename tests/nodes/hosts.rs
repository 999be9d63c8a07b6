//! Nodes on hosts of their own: network namespaces at a bridge, in a namespace of the test's thread. Links between them are cut one way
//! at a time, without an error: packets go to an address that no host has.
//!
//! It needs root; tests that use it are left out without ([`possible`]).

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};

use nix::sched::{CloneFlags, unshare};

/// Hosts of tests of one process, side by side.
static NETWORKS: AtomicU8 = AtomicU8::new(0);
/// The address of the test on the network of the hosts.
const TEST: u8 = 254;
/// The names of the namespaces begin so, and go on with the id of the process that made them.
const PREFIX: &str = "loadline-test-";
/// A link address that no host has.
const NOWHERE: &str = "02:00:00:00:00:99";

pub(crate) struct Hosts {
    names: Vec<String>,
    pub(crate) network: [u8; 3],
}

/// Whether there can be hosts.
pub(crate) fn possible() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        eprintln!("network namespaces need root: not tested");
    }
    root
}

fn ip(args: &str) {
    super::run(Command::new("ip").args(args.split(' ')));
}

impl Hosts {
    /// So many hosts, each with an address that ends with its number, from 1. This thread, and those that it starts, are on their
    /// network from now on.
    pub(crate) fn new(count: u8) -> Hosts {
        let number = NETWORKS.fetch_add(1, Ordering::Relaxed);
        Hosts::make([10, 77, number], number, count)
    }

    /// The same, with the addresses of this network.
    pub(crate) fn in_network(network: [u8; 3], count: u8) -> Hosts {
        Hosts::make(network, NETWORKS.fetch_add(1, Ordering::Relaxed), count)
    }

    fn make(network: [u8; 3], number: u8, count: u8) -> Hosts {
        remove_leftovers();
        let process = std::process::id();
        unshare(CloneFlags::CLONE_NEWNET).expect("this test needs root");
        ip("link set lo up");
        ip("link add hub type bridge");
        ip(&format!("addr add {} dev hub", with_prefix(network, TEST)));
        ip("link set hub up");
        let mut hosts = Hosts { names: Vec::new(), network };
        for host in 1..=count {
            let name = format!("{PREFIX}{process}-{number}-{host}");
            ip(&format!("netns add {name}"));
            hosts.names.push(name.clone());
            ip(&format!("link add host{host} type veth peer name eth0 netns {name}"));
            ip(&format!("link set host{host} master hub up"));
            ip(&format!("-n {name} addr add {} dev eth0", with_prefix(network, host)));
            ip(&format!("-n {name} link set lo up"));
            ip(&format!("-n {name} link set eth0 up"));
        }
        hosts
    }

    /// Where a program runs that is to be on a host, by its number; or on that of the test.
    pub(crate) fn command(&self, host: u8, program: &str) -> Command {
        match self.names.get(usize::from(host).wrapping_sub(1)) {
            Some(name) => {
                let mut command = Command::new("nsenter");
                command.arg(format!("--net=/run/netns/{name}")).arg(program);
                command
            }
            None => Command::new(program),
        }
    }

    fn neighbour(&self, from: u8, what: &str) {
        let device = if from == TEST { "hub" } else { "eth0" };
        let args = format!("neigh {what} dev {device}");
        super::run(self.command(from, "ip").args(args.split(' ')));
    }

    fn address(&self, host: u8) -> Ipv4Addr {
        let [a, b, c] = self.network;
        Ipv4Addr::new(a, b, c, host)
    }

    /// What one host sends to another does not arrive any more.
    pub(crate) fn cut(&self, from: u8, to: u8) {
        self.neighbour(from, &format!("replace {} lladdr {NOWHERE} nud permanent", self.address(to)));
    }

    /// It arrives again.
    pub(crate) fn mend(&self, from: u8, to: u8) {
        self.neighbour(from, &format!("del {}", self.address(to)));
    }

    /// Takes the host's cable out: nothing that it sends arrives, and nothing arrives there.
    pub(crate) fn unplug(&self, host: u8) {
        ip(&format!("link set host{host} down"));
    }

    /// Puts the cable in again.
    pub(crate) fn plug(&self, host: u8) {
        ip(&format!("link set host{host} up"));
    }

    /// The number of the host of the test.
    pub(crate) const TEST: u8 = TEST;
}

/// Removes the namespaces of runs whose process is dead.
fn remove_leftovers() {
    let names = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    for name in names.map(|entry| entry.file_name().to_string_lossy().into_owned()) {
        let process = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            let _ = Command::new("ip").args(["netns", "del", &name]).stderr(Stdio::null()).status();
        }
    }
}

fn with_prefix([a, b, c]: [u8; 3], host: u8) -> String {
    format!("{a}.{b}.{c}.{host}/24")
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}
