//! Nodes of the SAN on hosts that SSH reaches, one on each, in one cluster.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::etcd::Etcd;
use crate::netns::{Passage, address};
use crate::ssh_hosts::{FURTHER, HOSTS, Hosts, LIMIT};
use crate::support::{eventually, finish};

/// Bytes of a node's device. Its file takes no more room than what is written.
const DEVICE: u64 = 2 << 30;

/// A cluster with a node on each host, called as its host is. Its nodes end with the hosts.
pub(crate) struct San<'a> {
    hosts: &'a Hosts,
    folder: PathBuf,
    /// The nodes as they were started first.
    nodes: Vec<Child>,
    /// The configuration store, on hosts of its own: a host that is cut off is cut off from it too.
    _etcd: Etcd,
}

impl San<'_> {
    pub(crate) fn start(hosts: &Hosts) -> San<'_> {
        let folder = hosts.folder.join("san");
        fs::create_dir(&folder).unwrap();
        let etcd = Etcd::start(&hosts.network, HOSTS + 1, &folder);
        let store = etcd.url();
        let mut san = San { hosts, folder, nodes: Vec::new(), _etcd: etcd };
        let init = ["san", "init", &store, "--transport", "authenticated", "--lease", "600ms"];
        let mut token = token_in(&san.on(1, &init));
        for host in 1..=HOSTS {
            let (name, folder) = (format!("h{host}"), san.of(host).display().to_string());
            let address = address(host).to_string();
            let join = ["san", "join", &store, "--name", &name, "--folder", &folder, "--address", &address];
            san.on(host, &[&join[..], &["--token", &token]].concat());
            if host < HOSTS {
                token =
                    san.on(1, &["san", "token", "--config", san.settings(1).to_str().unwrap()]).trim().into();
            }
            let log = fs::File::create(san.folder.join(format!("h{host}.log"))).unwrap();
            let mut node = hosts.network.command(host, Path::new(env!("CARGO_BIN_EXE_loadline")));
            node.args(["san", "serve", "--config"]).arg(san.settings(host)).stdout(Stdio::null()).stderr(log);
            san.nodes.push(node.spawn().expect("the program is there"));
            let answers = || san.command(host, &["san", "status"]).status().unwrap().success();
            eventually("the node answers", LIMIT, answers);
            let device = san.of(host).join("device");
            fs::File::create_new(&device).and_then(|file| file.set_len(DEVICE)).unwrap();
            san.on(host, &["device", "add", device.to_str().unwrap()]);
        }
        let access = san.access().display().to_string();
        let (settings, add) = (san.settings(1), ["san", "access", "add", "tests", "--role", "operator"]);
        san.must(&[&add[..], &["--out", &access, "--config", settings.to_str().unwrap()]].concat());
        san
    }

    fn of(&self, host: usize) -> PathBuf {
        self.folder.join(format!("h{host}"))
    }

    fn settings(&self, host: usize) -> PathBuf {
        self.of(host).join("node.toml")
    }

    /// The address of a node's API.
    pub(crate) fn api(&self, host: usize) -> String {
        format!("https://{}:7400", address(host))
    }

    /// The file that proves access to the API.
    pub(crate) fn access(&self) -> PathBuf {
        self.folder.join("access.pem")
    }

    fn command(&self, host: usize, words: &[&str]) -> std::process::Command {
        let mut command = self.hosts.network.command(host, Path::new(env!("CARGO_BIN_EXE_loadline")));
        command.args(words).env("LOADLINE_API", self.of(host).join("api.sock"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs a command on a host that must succeed, and returns what it printed.
    fn on(&self, host: usize, words: &[&str]) -> String {
        self.ends_on(host, words, &[0])
    }

    /// Runs a command on a host that must end with one of these codes, and returns what it printed.
    fn ends_on(&self, host: usize, words: &[&str], codes: &[i32]) -> String {
        let said = finish(self.command(host, words).spawn().unwrap(), LIMIT);
        assert!(said.code.is_some_and(|code| codes.contains(&code)), "{words:?}: {}{}", said.out, said.err);
        said.out
    }

    /// The same on the first host.
    pub(crate) fn must(&self, words: &[&str]) -> String {
        self.on(1, words)
    }

    fn status(&self) -> Value {
        // The code says more: whether a node does not run, and whether a volume waits.
        serde_json::from_str(&self.ends_on(1, &["san", "status", "--json"], &[0, 1, 3])).unwrap()
    }

    /// The names of all volumes.
    pub(crate) fn volumes(&self) -> Vec<String> {
        let status = self.status();
        status["volumes"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().into()).collect()
    }

    /// How many nodes run.
    pub(crate) fn alive(&self) -> usize {
        self.status()["nodes"].as_array().unwrap().iter().filter(|node| node["alive"] == true).count()
    }

    /// A line that kills the node `$NODE`.
    pub(crate) fn kill(&self) -> String {
        format!("pkill -KILL -f \"san serve --config {}/$NODE/node.toml\"", self.folder.display())
    }

    /// A line that starts the node `$NODE` again on its host.
    pub(crate) fn start_again(&self) -> String {
        let (program, folder) = (env!("CARGO_BIN_EXE_loadline"), self.folder.display());
        format!("setsid {program} san serve --config {folder}/$NODE/node.toml >> {folder}/$NODE.log 2>&1 &")
    }

    /// Lines for a shell on the controller's machine: one takes down every link of a host, one brings them up again.
    pub(crate) fn link_of(&self, host: usize) -> (String, String) {
        let network = &self.hosts.network;
        let line = |passage, name: &str| {
            let mut all = Vec::new();
            for peer in (0..=HOSTS + FURTHER).filter(|peer| *peer != host) {
                for (from, to) in [(host, peer), (peer, host)] {
                    let file = self.folder.join(format!("{name}-{from}-{to}"));
                    fs::write(&file, network.lines(from, to, passage)).unwrap();
                    all.push(format!("ip -n {} -batch {}", network.name(from), file.display()));
                }
            }
            all.join(" && ")
        };
        (line(Passage::Down, "down"), line(Passage::Open, "up"))
    }
}

impl Drop for San<'_> {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            let _ = node.kill();
            let _ = node.wait();
        }
    }
}

/// The token in what `san init` printed.
fn token_in(said: &str) -> String {
    let token = said.split_whitespace().find_map(|word| word.strip_prefix("LOADLINE_JOIN_TOKEN="));
    token.expect("it prints the command for the next node").to_string()
}
