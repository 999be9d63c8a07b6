//! A cluster of real nodes on this machine.

use std::fs::File;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::folder_in;

/// How long a command or a start of a node may take.
const LIMIT: Duration = Duration::from_secs(60);

/// Nodes that run on loopback addresses of this machine, with their folders and devices. Dropping it kills the nodes and removes the
/// folders.
pub(crate) struct Cluster {
    program: PathBuf,
    folder: tempfile::TempDir,
    network: [u8; 3],
    nodes: Vec<Option<Child>>,
}

impl Cluster {
    /// So many nodes, each with a device of so many MiB in a folder of its own below this one. Their connections are open.
    pub(crate) fn start(program: &Path, place: &Path, nodes: u8, mib: u64) -> Result<Cluster, String> {
        Cluster::start_with(program, place, nodes, mib, &[])
    }

    /// The same, with these options of `loadline san init`.
    pub(super) fn start_with(
        program: &Path,
        place: &Path,
        nodes: u8,
        mib: u64,
        options: &[&str],
    ) -> Result<Cluster, String> {
        static CLUSTERS: AtomicU8 = AtomicU8::new(0);
        let process = std::process::id();
        // Several clusters of one process have networks of their own.
        let network = [
            127,
            (process >> 8) as u8 | 1,
            (process as u8).wrapping_add(CLUSTERS.fetch_add(1, Ordering::Relaxed)),
        ];
        let nodes = (0..nodes).map(|_| None).collect();
        let mut cluster = Cluster { program: program.into(), folder: folder_in(place)?, network, nodes };
        let file = cluster.path("cluster.db");
        let made = cluster.loadline(&[&["san", "init", &file], options].concat())?;
        let mut words = made.split_whitespace();
        let mut token = words.find_map(|word| word.strip_prefix("LOADLINE_JOIN_TOKEN=")).map(str::to_owned);
        for node in 1..=cluster.nodes.len() as u8 {
            let (name, folder) = (format!("node-{node}"), cluster.path(&format!("node-{node}")));
            let address = cluster.address(node).to_string();
            let join = ["--name", &name, "--folder", &folder, "--address", &address];
            let with: Vec<&str> = token.iter().flat_map(|token| ["--token", token]).collect();
            cluster.loadline(&[&["san", "join", &file][..], &join, &with].concat())?;
            cluster.start_node(node)?;
            if token.is_some() {
                token =
                    Some(cluster.loadline(&["san", "token", "--config", &cluster.settings()])?.trim().into());
            }
            let device = format!("{folder}/device");
            let made = File::create_new(&device).and_then(|file| file.set_len(mib << 20));
            made.map_err(|e| format!("{device}: {e}"))?;
            cluster.at(node, &["device", "add", &device])?;
        }
        Ok(cluster)
    }

    /// The settings of the first node, by which commands on its host find the cluster.
    fn settings(&self) -> String {
        self.path("node-1/node.toml")
    }

    /// Gives an access to volumes by TLS. The folder of its certificate.
    pub(super) fn access(&self, name: &str) -> Result<PathBuf, String> {
        let (out, settings) = (self.path(name), self.settings());
        self.loadline(&[
            "san", "access", "add", name, "--role", "client", "--out", &out, "--config", &settings,
        ])?;
        Ok(out.into())
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    pub(crate) fn address(&self, node: u8) -> Ipv4Addr {
        let [a, b, c] = self.network;
        Ipv4Addr::new(a, b, c, node)
    }

    pub(super) fn start_node(&mut self, node: u8) -> Result<(), String> {
        let child = Command::new(&self.program)
            .args(["san", "serve", "--config", &self.path(&format!("node-{node}/node.toml"))])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| format!("{}: {e}", self.program.display()))?;
        self.nodes[node as usize - 1] = Some(child);
        let begun = Instant::now();
        while std::net::TcpStream::connect((self.address(node), 7400)).is_err() {
            if begun.elapsed() > LIMIT {
                return Err(format!("node {node} does not answer"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Kills a node's process, which cannot do anything about it. When that was.
    pub(super) fn kill(&mut self, node: u8) -> Instant {
        let mut child = self.nodes[node as usize - 1].take().expect("it runs");
        child.kill().expect("it is ours");
        let killed = Instant::now();
        let _ = child.wait();
        killed
    }

    /// Process numbers of all nodes that run.
    pub(super) fn processes(&self) -> Vec<u32> {
        self.nodes.iter().flatten().map(Child::id).collect()
    }

    /// Runs a command of ours, at the first node that runs.
    pub(super) fn loadline(&self, arguments: &[&str]) -> Result<String, String> {
        let first = self.nodes.iter().position(Option::is_some).unwrap_or(0);
        self.at(first as u8 + 1, arguments)
    }

    /// What a command prints at the first node, whatever its exit code says of the cluster.
    pub(super) fn shown(&self, arguments: &[&str]) -> Result<String, String> {
        Ok(String::from_utf8_lossy(&self.output(1, arguments)?.stdout).into_owned())
    }

    fn output(&self, node: u8, arguments: &[&str]) -> Result<Output, String> {
        Command::new(&self.program)
            .args(arguments)
            .env("LOADLINE_API", format!("{}:7400", self.address(node)))
            .output()
            .map_err(|e| format!("{}: {e}", self.program.display()))
    }

    fn at(&self, node: u8, arguments: &[&str]) -> Result<String, String> {
        let output = self.output(node, arguments)?;
        if !output.status.success() {
            return Err(format!("{arguments:?}: {}", String::from_utf8_lossy(&output.stderr)));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Makes a volume, attaches it at a node, and writes all of it. How it is reached there.
    pub(crate) fn volume(&self, name: &str, mib: u64, copies: u8, at: u8) -> Result<String, String> {
        let (size, copies, node) = (format!("{mib}MiB"), copies.to_string(), format!("node-{at}"));
        self.loadline(&["volume", "create", name, "--size", &size, "--copies", &copies, "--at", &node])?;
        self.loadline(&["volume", "attach", name, "--node", &node])?;
        let socket = format!("nbd+unix:///{name}?socket={}", self.path(&format!("{node}/nbd.sock")));
        let fill = [
            "--destroy-data",
            "--fill",
            "--warm-up",
            "0s",
            "--for",
            "1s",
            "--profile",
            "B1024-T1-O2-W100-PS",
        ];
        self.loadline(&[&["bench", &socket][..], &fill].concat())?;
        Ok(socket)
    }

    /// How a volume that is attached at a node is reached there by memory that both sides see.
    pub(crate) fn vhost(&self, name: &str, at: u8) -> String {
        format!("vhost-user:{}", self.path(&format!("node-{at}/vhost/{name}.sock")))
    }

    /// Waits until a volume has all its copies.
    pub(super) fn wait_until_healthy(&self, name: &str) -> Result<Value, String> {
        let begun = Instant::now();
        loop {
            let shown = self.loadline(&["volume", "show", name, "--json"])?;
            let shown: Value = serde_json::from_str(&shown).map_err(|e| e.to_string())?;
            if shown["health"] == "healthy" {
                return Ok(shown);
            }
            if begun.elapsed() > LIMIT {
                return Err(format!("volume {name} does not become healthy: {shown}"));
            }
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
    }
}
