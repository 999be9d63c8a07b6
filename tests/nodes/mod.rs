//! A cluster of real processes, in a folder of its own, at addresses of its own.

#![allow(dead_code, reason = "each test uses a part of it")]

pub(crate) mod client;
pub(crate) mod follower;
pub(crate) mod hosts;
#[path = "../support/kernel.rs"]
pub(crate) mod kernel;
pub(crate) mod machine;
pub(crate) mod qmp;
pub(crate) mod threads;
pub(crate) mod tls;

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// Clusters of one process side by side.
static CLUSTERS: AtomicU8 = AtomicU8::new(0);

pub(crate) struct Cluster {
    folder: tempfile::TempDir,
    network: [u8; 3],
    nodes: Vec<Option<Child>>,
    /// Each node is on a host of its own.
    hosts: Option<hosts::Hosts>,
    /// The URL of its configuration store; a file in the folder if there is none.
    store: Option<String>,
}

/// Runs a command, which must succeed within a minute.
pub(crate) fn run(command: &mut Command) -> String {
    let mut limited = Command::new("timeout");
    limited.arg("60").arg(command.get_program()).args(command.get_args());
    limited.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = limited.output().expect("timeout is part of coreutils");
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?} gave {}: {text}", output.status);
    text
}

/// A connection, by the network or by a socket.
trait ReadWrite: std::io::Read + std::io::Write {}
impl<T: std::io::Read + std::io::Write> ReadWrite for T {}

/// The token in what `san init` prints, if the nodes of the cluster authenticate each other.
pub(crate) fn token_in(printed: &str) -> Option<String> {
    printed.split_whitespace().find_map(|word| word.strip_prefix("LOADLINE_JOIN_TOKEN=")).map(str::to_owned)
}

impl Cluster {
    /// So many nodes with a device each.
    pub(crate) fn start(nodes: u8) -> Cluster {
        Cluster::start_with(nodes, &[], "")
    }

    /// The same; made with these options, and each node has this in its node.toml too.
    pub(crate) fn start_with(nodes: u8, options: &[&str], more: &str) -> Cluster {
        Cluster::make(nodes, options, more, None, None).with_devices()
    }

    /// So many nodes without devices.
    pub(crate) fn start_bare(nodes: u8, more: &str) -> Cluster {
        Cluster::make(nodes, &[], more, None, None)
    }

    /// So many nodes with a device each, whose configuration store is at this URL.
    pub(crate) fn start_with_store(nodes: u8, store: String) -> Cluster {
        Cluster::make(nodes, &[], "", None, Some(store)).with_devices()
    }

    /// The same, each node on a host of its own.
    pub(crate) fn start_on_hosts(nodes: u8, options: &[&str], more: &str) -> Cluster {
        Cluster::make(nodes, options, more, Some(hosts::Hosts::new(nodes)), None).with_devices()
    }

    fn make(
        nodes: u8,
        options: &[&str],
        more: &str,
        hosts: Option<hosts::Hosts>,
        store: Option<String>,
    ) -> Cluster {
        let folder = tempfile::tempdir().expect("there is room");
        let process = std::process::id();
        let number = CLUSTERS.fetch_add(1, Ordering::Relaxed);
        let own = [127, (process >> 4) as u8 | 1, (process << 4) as u8 | number];
        let network = hosts.as_ref().map_or(own, |hosts| hosts.network);
        let mut cluster =
            Cluster { folder, network, nodes: (0..nodes).map(|_| None).collect(), hosts, store };
        let file = cluster.file();
        // Beyond one machine nodes always authenticate each other.
        let protects = [&["--transport", "encrypted"][..], &[]][usize::from(cluster.hosts.is_none())];
        let made = cluster.loadline(&[&["san", "init", &file][..], options, protects].concat());
        let mut token = token_in(&made);
        for node in 1..=nodes {
            let (name, folder) = (format!("node-{node}"), cluster.node_folder(node));
            let address = cluster.address(node).to_string();
            let folder = folder.to_str().expect("it is text");
            let joins = ["san", "join", &file, "--name", &name, "--folder", folder, "--address", &address];
            let with: Vec<&str> = token.iter().flat_map(|token| ["--token", token]).collect();
            // 'join' refuses an address that its host does not have.
            cluster.loadline_on(node, &[&joins[..], &with].concat());
            token = token.filter(|_| node < nodes).map(|_| cluster.invite(1));
            let settings = cluster.node_folder(node).join("node.toml");
            let text = std::fs::read_to_string(&settings).expect("it was written");
            let text = text.replace("test_faults = false", "");
            std::fs::write(&settings, format!("{text}\n{more}\n")).expect("it can be");
            cluster.start_node(node);
        }
        cluster
    }

    fn with_devices(self) -> Cluster {
        for node in 1..=self.nodes.len() as u8 {
            // It takes no more room than is written to it.
            let device = self.device(node);
            let file = std::fs::File::create_new(&device).expect("there is room");
            file.set_len(1 << 30).expect("it can be so long");
            self.loadline_at(node, &["device", "add", &device]);
        }
        self
    }

    /// A token by which another node joins, from the host of this one.
    pub(crate) fn invite(&self, node: u8) -> String {
        let settings = self.node_folder(node).join("node.toml");
        self.loadline(&["san", "token", "--config", settings.to_str().expect("it is text")]).trim().into()
    }

    /// The API of a node, as commands take it. Beyond one machine it is the socket on the node's host.
    fn api(&self, node: u8) -> String {
        match self.hosts {
            Some(_) => self.node_folder(node).join("api.sock").to_str().expect("it is text").into(),
            None => format!("{}:7400", self.address(node)),
        }
    }

    /// The URL of the configuration store, or the path of its file.
    pub(crate) fn file(&self) -> String {
        if let Some(store) = &self.store {
            return store.clone();
        }
        self.folder.path().join("cluster.db").to_str().expect("it is text").into()
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn node_folder(&self, node: u8) -> PathBuf {
        self.folder.path().join(format!("node-{node}"))
    }

    /// The settings of a node, as they are in its file.
    pub(crate) fn node_toml(&self, node: u8) -> String {
        std::fs::read_to_string(self.node_folder(node).join("node.toml")).expect("'join' wrote it")
    }

    /// Where a virtual machine comes for a volume.
    pub(crate) fn vhost_socket(&self, node: u8, volume: &str) -> PathBuf {
        self.node_folder(node).join("vhost").join(format!("{volume}.sock"))
    }

    /// The same, for an attachment that waits while that socket is in use.
    pub(crate) fn second_vhost_socket(&self, node: u8, volume: &str) -> PathBuf {
        self.node_folder(node).join("vhost-2").join(format!("{volume}.sock"))
    }

    pub(crate) fn address(&self, node: u8) -> Ipv4Addr {
        let [a, b, c] = self.network;
        Ipv4Addr::new(a, b, c, node)
    }

    pub(crate) fn addresses(&self) -> Vec<Ipv4Addr> {
        (1..=self.nodes.len() as u8).map(|node| self.address(node)).collect()
    }

    /// The configuration store changes nothing until this is dropped.
    pub(crate) fn lock_store(&self) -> rusqlite::Connection {
        let store = rusqlite::Connection::open(self.file()).expect("it is there");
        store.busy_timeout(Duration::from_secs(5)).expect("it may be so long");
        store.execute_batch("BEGIN IMMEDIATE").expect("nodes keep it for a moment only");
        store
    }

    /// Our program, on the host of a node.
    fn program(&self, node: u8) -> Command {
        let program = env!("CARGO_BIN_EXE_loadline");
        self.hosts.as_ref().map_or_else(|| Command::new(program), |hosts| hosts.command(node, program))
    }

    /// The hosts, of a cluster that has some.
    pub(crate) fn hosts(&self) -> &hosts::Hosts {
        self.hosts.as_ref().expect("it was started on hosts")
    }

    /// Runs a command of ours on the host of a node. It must succeed.
    pub(crate) fn loadline_on(&self, node: u8, args: &[&str]) -> String {
        run(self.program(node).args(args).env("LOADLINE_API", self.api(node)))
    }

    /// Starts a node's process, and waits until it answers.
    pub(crate) fn start_node(&mut self, node: u8) {
        let child = self.spawn_node(node);
        self.adopt(node, child);
    }

    /// Starts a node's process.
    pub(crate) fn spawn_node(&self, node: u8) -> Child {
        let log = std::fs::File::options().create(true).append(true).open(self.log_file(node));
        let log = log.expect("there is room");
        self.program(node)
            .args(["san", "serve", "--config"])
            .arg(self.node_folder(node).join("node.toml"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the program is there")
    }

    /// This is the process of a node: waits until it answers.
    pub(crate) fn adopt(&mut self, node: u8, child: Child) {
        self.nodes[node as usize - 1] = Some(child);
        let begun = Instant::now();
        while std::net::TcpStream::connect((self.address(node), 7400)).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(20), "node {node} answers");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn log_file(&self, node: u8) -> PathBuf {
        self.node_folder(node).join("log")
    }

    /// What the processes of a node have logged.
    pub(crate) fn log(&self, node: u8) -> String {
        std::fs::read_to_string(self.log_file(node)).unwrap_or_default()
    }

    /// Kills a node's process, which cannot do anything about it.
    pub(crate) fn kill(&mut self, node: u8) {
        let mut child = self.nodes[node as usize - 1].take().expect("it runs");
        child.kill().expect("it is ours");
        child.wait().expect("it is ours");
    }

    /// Sends a signal to a node's process.
    pub(crate) fn signal(&self, node: u8, signal: &str) {
        let child = self.nodes[node as usize - 1].as_ref().expect("it runs");
        run(Command::new("kill").args([format!("-{signal}"), child.id().to_string()]));
    }

    /// Stops one thread of a node's process, until what is returned is dropped.
    pub(crate) fn stop_thread(&self, node: u8, name: &str) -> threads::Stopped {
        threads::Stopped::stop(self.nodes[node as usize - 1].as_ref().expect("it runs").id(), name)
    }

    /// What a node answers to this request of HTTP, which must succeed.
    pub(crate) fn http(&self, node: u8, path: &str) -> String {
        let (status, body) = self.request(node, "GET", path, "");
        assert_eq!(status, 200, "{body}");
        body
    }

    /// The status and the content of what a node answers.
    pub(crate) fn request(&self, node: u8, method: &str, path: &str, body: &str) -> (u16, String) {
        self.request_with(node, method, path, "Host: localhost", body)
    }

    /// The same, with these lines in the head of the request.
    pub(crate) fn request_with(
        &self,
        node: u8,
        method: &str,
        path: &str,
        lines: &str,
        body: &str,
    ) -> (u16, String) {
        let limit = Some(Duration::from_secs(30));
        let mut stream: Box<dyn ReadWrite> = match self.hosts {
            Some(_) => {
                let stream = std::os::unix::net::UnixStream::connect(self.api(node)).expect("it answers");
                stream.set_read_timeout(limit).expect("it may be so long");
                Box::new(stream)
            }
            None => {
                let stream = std::net::TcpStream::connect((self.address(node), 7400)).expect("it answers");
                stream.set_read_timeout(limit).expect("it may be so long");
                Box::new(stream)
            }
        };
        let length = body.len();
        let head = format!("{lines}\r\nConnection: close\r\nContent-Type: application/json");
        let request = format!("{method} {path} HTTP/1.1\r\n{head}\r\nContent-Length: {length}\r\n\r\n{body}");
        stream.write_all(request.as_bytes()).expect("it listens");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it is text");
        let (head, body) = answer.split_once("\r\n\r\n").expect("it has a head");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        (status.expect("it has a status"), body.into())
    }

    /// Sends a request of HTTP, and does not wait for the answer. The client disconnects when the returned stream is dropped.
    pub(crate) fn begin_request(&self, node: u8, path: &str, body: &str) -> std::net::TcpStream {
        let mut stream = std::net::TcpStream::connect((self.address(node), 7400)).expect("it answers");
        let head = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json");
        let request = format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        std::io::Write::write_all(&mut stream, request.as_bytes()).expect("it listens");
        stream
    }

    /// CPU time that a node's process has used.
    pub(crate) fn cpu(&self, node: u8) -> Duration {
        let child = self.nodes[node as usize - 1].as_ref().expect("it runs");
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).expect("it runs");
        let fields: Vec<&str> = stat.rsplit(')').next().expect("it has a name").split_whitespace().collect();
        let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().expect("a number")).sum();
        Duration::from_millis(ticks * 10)
    }

    /// How many times descriptors are watched by a node's data path (`IORING_OP_POLL_ADD` in `/proc/PID/fdinfo`).
    pub(crate) fn polls(&self, node: u8) -> usize {
        let process = self.nodes[node as usize - 1].as_ref().expect("it runs").id();
        let rings = std::fs::read_dir(format!("/proc/{process}/fd")).expect("it runs").flatten();
        let rings = rings.filter(|fd| {
            std::fs::read_link(fd.path()).is_ok_and(|to| to == Path::new("anon_inode:[io_uring]"))
        });
        let of = |fd: std::fs::DirEntry| {
            let info = format!("/proc/{process}/fdinfo/{}", fd.file_name().to_string_lossy());
            let info = std::fs::read_to_string(info).unwrap_or_default();
            info.lines().filter(|line| line.trim_start().starts_with("op=6,")).count()
        };
        rings.map(of).sum()
    }

    /// Waits until a node's process has ended by itself.
    pub(crate) fn wait_until_gone(&mut self, node: u8) {
        let begun = Instant::now();
        while self.runs(node) {
            assert!(begun.elapsed() < Duration::from_secs(10), "it ends");
            std::thread::sleep(Duration::from_millis(50));
        }
        self.nodes[node as usize - 1] = None;
    }

    /// Whether a node's process runs.
    pub(crate) fn runs(&mut self, node: u8) -> bool {
        matches!(self.nodes[node as usize - 1].as_mut().map(Child::try_wait), Some(Ok(None)))
    }

    /// The node that owns a volume.
    pub(crate) fn owner(&self, volume: &str) -> u8 {
        let shown = self.loadline(&["volume", "show", volume]);
        let owner = shown.lines().find_map(|line| line.strip_prefix("owner     node-"));
        owner.and_then(|number| number.parse().ok()).expect("it has one")
    }

    pub(crate) fn device(&self, node: u8) -> String {
        self.node_folder(node).join("device").to_str().expect("it is text").into()
    }

    /// What lies on the device of a node that does not run.
    pub(crate) fn dump(&self, node: u8) -> serde_json::Value {
        let (_, text) = self.try_loadline(&["san", "dump", &self.device(node), "--json"]);
        serde_json::from_str(&text).expect("it is JSON")
    }

    /// Checks the device of a node that does not run.
    pub(crate) fn verify(&self, node: u8) -> (i32, String) {
        self.try_loadline(&["san", "verify", &self.device(node)])
    }

    /// Changes a byte of it.
    pub(crate) fn flip(&self, node: u8, at: u64) {
        use std::os::unix::fs::FileExt;
        let file =
            std::fs::File::options().read(true).write(true).open(self.device(node)).expect("it is there");
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).expect("it is so long");
        file.write_all_at(&[byte[0] ^ 0x40], at).expect("it is so long");
        file.sync_all().expect("it can be");
    }

    fn asked(&self) -> u8 {
        let alive = self.nodes.iter().position(Option::is_some);
        alive.map_or(1, |index| index as u8 + 1)
    }

    /// Runs a command of ours, at a node that lives. It must succeed.
    pub(crate) fn loadline(&self, args: &[&str]) -> String {
        self.loadline_at(self.asked(), args)
    }

    pub(crate) fn loadline_at(&self, node: u8, args: &[&str]) -> String {
        let (code, text) = self.run_at(node, args);
        assert_eq!(code, 0, "{args:?}: {text}");
        text
    }

    /// Its exit code, and what it said.
    pub(crate) fn try_loadline(&self, args: &[&str]) -> (i32, String) {
        self.run_at(self.asked(), args)
    }

    /// A command of ours, to be run beside what else goes on.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_loadline"));
        command.args(args).env("LOADLINE_API", self.api(self.asked()));
        command
    }

    pub(crate) fn run_at(&self, node: u8, args: &[&str]) -> (i32, String) {
        let output = Command::new("timeout")
            .arg("100")
            .arg(env!("CARGO_BIN_EXE_loadline"))
            .args(args)
            .env("LOADLINE_API", self.api(node))
            .output()
            .expect("timeout is part of coreutils");
        let text =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        (output.status.code().unwrap_or(-1), text)
    }

    /// Waits until a volume is in another state than this.
    pub(crate) fn wait_until_not(&self, volume: &str, state: &str, limit: Duration) {
        let begun = Instant::now();
        loop {
            let shown = self.loadline(&["volume", "show", volume]);
            if !shown.lines().any(|line| line.starts_with("state") && line.ends_with(state)) {
                return;
            }
            assert!(begun.elapsed() < limit, "volume {volume} is not to be {state}: {shown}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until a volume is in this state. What is shown of it.
    pub(crate) fn wait_until(&self, volume: &str, state: &str, limit: Duration) -> String {
        let begun = Instant::now();
        loop {
            let (code, shown) = self.try_loadline(&["volume", "show", volume]);
            let line = shown.lines().find(|line| line.starts_with("state"));
            if code == 0 && line.is_some_and(|line| line.ends_with(state)) {
                return shown;
            }
            assert!(begun.elapsed() < limit, "volume {volume} is to be {state}: {shown}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in self.nodes.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            for node in 1..=self.nodes.len() as u8 {
                eprintln!("---- log of node-{node}\n{}", self.log(node));
            }
        }
    }
}
