//! Hosts as network namespaces: each has one address and a link of its own to every other host, and each direction of each link can
//! be cut. It needs root and `ip`, and no kernel module but veth.
//!
//! A direction is cut without a sound by sending its packets to an Ethernet address that no host has: the receiver drops them, the
//! sender learns nothing, and established connections keep what they have queued. Names carry the process id, so that a later run
//! removes what a killed run has left.

use std::fs::File;
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sched::{CloneFlags, setns};

const PREFIX: &str = "loadline-hosts-";

/// What becomes of the packets that one host sends to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passage {
    /// They arrive.
    Open,
    /// They are lost, and the sender gets no error.
    Silent,
    /// The sender gets an error at once: the host is unreachable.
    Refused,
    /// The sender's interface is down. The other direction loses its packets too.
    Down,
}

/// Hosts 0 to `hosts - 1`. Dropping it removes them and ends every process that runs in them.
pub(crate) struct Network {
    prefix: String,
    hosts: usize,
}

impl Network {
    /// Makes the namespaces and their links. `number` tells apart the networks of one process.
    pub(crate) fn new(number: usize, hosts: usize) -> Network {
        let network = Network { prefix: format!("{PREFIX}{}-{number}-", std::process::id()), hosts };
        let mut lines = String::new();
        for host in 0..hosts {
            lines += &format!("netns add {}\n", network.name(host));
        }
        for a in 0..hosts {
            for b in a + 1..hosts {
                lines += &format!(
                    "link add {} netns {} address {} type veth peer name {} netns {} address {}\n",
                    link(b),
                    network.name(a),
                    ethernet(a, b),
                    link(a),
                    network.name(b),
                    ethernet(b, a),
                );
            }
        }
        ip(&[], &lines);
        for host in 0..hosts {
            let mut lines = format!("link set lo up\naddr add {}/32 dev lo\n", address(host));
            for peer in network.peers(host) {
                lines += &open(host, peer);
            }
            ip(&["-n", &network.name(host)], &lines);
        }
        network
    }

    /// The name of a host's namespace.
    pub(crate) fn name(&self, host: usize) -> String {
        format!("{}{host}", self.prefix)
    }

    /// All hosts but this one.
    pub(crate) fn peers(&self, host: usize) -> impl Iterator<Item = usize> + use<> {
        (0..self.hosts).filter(move |peer| *peer != host)
    }

    /// Decides what becomes of the packets from one host to another, from now on.
    pub(crate) fn set(&self, from: usize, to: usize, path: Passage) {
        ip(&["-n", &self.name(from)], &self.lines(from, to, path));
    }

    /// Lines for `ip -batch` in the namespace of `from`, which decide it.
    pub(crate) fn lines(&self, from: usize, to: usize, path: Passage) -> String {
        let (device, to_address) = (link(to), address(to));
        match path {
            Passage::Open => open(from, to),
            Passage::Silent => {
                format!("neigh replace {to_address} lladdr 02:ff:ff:ff:ff:ff dev {device} nud permanent\n")
            }
            Passage::Refused => format!("route replace unreachable {to_address}\n"),
            Passage::Down => format!("link set {device} down\n"),
        }
    }

    /// A command that runs in a host's namespace. Its process id is that of the program.
    pub(crate) fn command(&self, host: usize, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name(host)]).arg(program).stdin(Stdio::null());
        command
    }

    /// Moves the calling thread into a host's network, for good.
    pub(crate) fn enter(&self, host: usize) -> io::Result<()> {
        let namespace = File::open(PathBuf::from("/run/netns").join(self.name(host)))?;
        setns(namespace, CloneFlags::CLONE_NEWNET).map_err(io::Error::from)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        (0..self.hosts).for_each(|host| remove(&self.name(host)));
    }
}

/// The address of a host, in its namespace.
pub(crate) fn address(host: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, host as u8 + 1)
}

/// The interface to a peer, in every host's namespace.
pub(crate) fn link(peer: usize) -> String {
    format!("to{peer}")
}

/// The Ethernet address of `host` on its link to `peer`.
fn ethernet(host: usize, peer: usize) -> String {
    format!("02:00:00:00:{host:02x}:{peer:02x}")
}

/// Lines for `ip` after which packets from one host to another arrive, whatever was before.
fn open(from: usize, to: usize) -> String {
    let (device, to_address, own) = (link(to), address(to), address(from));
    let ethernet = ethernet(to, from);
    format!(
        "link set {device} up\nroute replace {to_address} dev {device} src {own}\n\
         neigh replace {to_address} lladdr {ethernet} dev {device} nud permanent\n"
    )
}

/// Has `ip` with these arguments carry out these lines.
pub(crate) fn ip(arguments: &[&str], lines: &str) {
    let mut child = Command::new("ip")
        .args(arguments)
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("ip is part of iproute2, which ./dev setup --tests installs");
    child.stdin.take().expect("it is a pipe").write_all(lines.as_bytes()).expect("ip reads it");
    let output = child.wait_with_output().expect("it is a child");
    assert!(output.status.success(), "ip: {}\n{lines}", String::from_utf8_lossy(&output.stderr));
}

/// Ends the processes of a namespace and removes it.
fn remove(name: &str) {
    if let Ok(output) = Command::new("ip").args(["netns", "pids", name]).output() {
        for process in String::from_utf8_lossy(&output.stdout).split_whitespace() {
            // It is in a namespace that this program has made.
            let _ = Command::new("kill").args(["-9", process]).stderr(Stdio::null()).status();
        }
    }
    let _ = Command::new("ip").args(["netns", "del", name]).stderr(Stdio::null()).status();
}

/// Where a run keeps what is gone with it: in memory, if there is a place.
fn place() -> PathBuf {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory.into() } else { std::env::temp_dir() }
}

/// An empty folder for a network's files.
pub(crate) fn folder(number: usize) -> PathBuf {
    let folder = place().join(format!("{PREFIX}{}-{number}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("there is room");
    folder
}

/// Removes the namespaces and folders of runs whose process is dead.
pub(crate) fn remove_leftovers() {
    let dead = |name: &str| {
        let process = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        process.is_some_and(|process| !Path::new("/proc").join(process).exists())
    };
    let names = |folder: &Path| -> Vec<String> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    };
    names(Path::new("/run/netns")).iter().filter(|name| dead(name)).for_each(|name| remove(name));
    for name in names(&place()).iter().filter(|name| dead(name)) {
        let _ = std::fs::remove_dir_all(place().join(name));
    }
}
