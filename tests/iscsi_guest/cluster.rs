//! A cluster of the SAN with a node on each of the first hosts of a network.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::fs::File;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::netns::{Network, address};
use crate::nodes::token_in;

/// How long a node may take to answer.
const ANSWERS: Duration = Duration::from_secs(30);
/// Bytes of a node's device. Its file takes no more room than what is written.
const DEVICE: u64 = 1 << 30;

/// The nodes: those that run end with this.
pub(crate) struct San<'a> {
    network: &'a Network,
    folder: PathBuf,
    nodes: Vec<Option<Child>>,
}

impl San<'_> {
    /// So many nodes, with a device each.
    pub(crate) fn start<'a>(network: &'a Network, nodes: usize, folder: &Path) -> San<'a> {
        let folder = folder.join("san");
        std::fs::create_dir(&folder).expect("there is room");
        let mut san = San { network, folder, nodes: (0..nodes).map(|_| None).collect() };
        let store = san.folder.join("cluster.db").display().to_string();
        let made = san.on(0, &["san", "init", &store, "--transport", "authenticated", "--lease", "600ms"]);
        let mut token = token_in(&made).expect("nodes prove their identity");
        for host in 0..nodes {
            let (name, at) = (format!("node-{host}"), address(host).to_string());
            let folder = san.node_folder(host).display().to_string();
            let join = ["san", "join", &store, "--name", &name, "--folder", &folder, "--address", &at];
            san.on(host, &[&join[..], &["--token", &token]].concat());
            san.start_node(host);
            if host + 1 < nodes {
                token = san.on(0, &["san", "token", "--config", &san.settings(0)]).trim().into();
            }
            let device = san.node_folder(host).join("device");
            File::create_new(&device).and_then(|file| file.set_len(DEVICE)).expect("there is room");
            san.at(host, &["device", "add", device.to_str().expect("it is text")]);
        }
        san
    }

    fn node_folder(&self, host: usize) -> PathBuf {
        self.folder.join(format!("node-{host}"))
    }

    fn settings(&self, host: usize) -> String {
        self.node_folder(host).join("node.toml").display().to_string()
    }

    fn command(&self, host: usize, words: &[&str]) -> Command {
        let mut command = self.network.command(host, Path::new(env!("CARGO_BIN_EXE_loadline")));
        command.args(words).env("LOADLINE_API", self.node_folder(host).join("api.sock"));
        command
    }

    /// Runs a command on a host, which must succeed.
    fn on(&self, host: usize, words: &[&str]) -> String {
        let output = self.command(host, words).output().expect("the program is there");
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{words:?}: {out}{err}");
        out.into_owned()
    }

    /// Runs a command of the cluster at a node.
    pub(crate) fn at(&self, host: usize, words: &[&str]) -> String {
        self.on(host, words)
    }

    pub(crate) fn start_node(&mut self, host: usize) {
        let log =
            File::options().create(true).append(true).open(self.folder.join(format!("node-{host}.log")));
        let log = log.expect("there is room");
        let mut command = self.command(host, &["san", "serve", "--config", &self.settings(host)]);
        let child = command.stdout(Stdio::null()).stderr(log).spawn().expect("the program is there");
        self.nodes[host] = Some(child);
        let begun = Instant::now();
        let answers = || self.command(host, &["san", "status"]).output();
        while !answers().is_ok_and(|of| of.stdout.starts_with(b"cluster")) {
            assert!(begun.elapsed() < ANSWERS, "node-{host} does not answer: {}", self.log(host));
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Kills a node, as a power cut would.
    pub(crate) fn kill(&mut self, host: usize) {
        if let Some(mut child) = self.nodes[host].take() {
            child.kill().and_then(|()| child.wait()).expect("it can be killed");
        }
    }

    /// Waits until all copies of a volume are in sync.
    pub(crate) fn await_healthy(&self, host: usize, volume: &str) {
        let begun = Instant::now();
        while !self.at(host, &["volume", "show", volume, "--json"]).contains("\"health\": \"healthy\"") {
            assert!(begun.elapsed() < 2 * ANSWERS, "{}", self.at(host, &["volume", "show", volume]));
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// The host of the node that owns a volume.
    pub(crate) fn owner(&self, host: usize, volume: &str) -> usize {
        let shown = self.at(host, &["volume", "show", volume]);
        let owner = shown.lines().find_map(|line| line.strip_prefix("owner     node-"));
        owner.and_then(|number| number.parse().ok()).expect("it has one")
    }

    pub(crate) fn log(&self, host: usize) -> String {
        std::fs::read_to_string(self.folder.join(format!("node-{host}.log"))).unwrap_or_default()
    }

    /// The addresses of the nodes.
    pub(crate) fn addresses(&self) -> Vec<Ipv4Addr> {
        (0..self.nodes.len()).map(address).collect()
    }
}

impl Drop for San<'_> {
    fn drop(&mut self) {
        (0..self.nodes.len()).for_each(|host| self.kill(host));
        if std::thread::panicking() {
            (0..self.nodes.len()).for_each(|host| eprintln!("---- node-{host}\n{}", self.log(host)));
        }
    }
}
