//! A cluster whose nodes run on hosts of their own. The configuration is a file, which they share by the file system, so a cut network
//! does not cut them from it; or an etcd with members on hosts of their own. Either has faults of its own.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use loadline_san_node::config;
use loadline_san_node::config::catalog::Catalog;
use loadline_san_protocol::record;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

use super::etcd::Etcd;
use super::netns::{self, Network};
use super::script::{Script, Volume};
use crate::nodes::token_in;

/// Bytes of a node's device. Its file takes no more room than what is written.
const DEVICE: u64 = 4 << 30;
/// How long a command may take.
const COMMAND: &str = "15";
/// How long a node may take to end after SIGTERM.
const ENDS: Duration = Duration::from_secs(10);
/// After how long a node that has ended by itself is started again, as a supervisor does.
const RESTARTS: Duration = Duration::from_millis(500);
/// How long the election of a leader may take.
const ELECTED: Duration = Duration::from_secs(10);
/// How long a lock of the store may be waited for.
const LOCKS_WITHIN: Duration = Duration::from_secs(1);
/// The bytes of SQLite's `-shm` file that are its locks: writer, checkpoint, recovery, readers.
const LOCKS: std::ops::Range<i64> = 120..128;

/// What the configuration says of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sample {
    /// Hosts that have an in-sync copy, for each group.
    pub(crate) in_sync: Vec<BTreeSet<usize>>,
    /// Hosts that have any copy.
    pub(crate) homes: BTreeSet<usize>,
    /// The host of the owner.
    pub(crate) owner: usize,
    /// In-sync copies that new writes need.
    pub(crate) least: usize,
}

#[derive(Default)]
struct Node {
    child: Option<Child>,
    /// When it ended by itself.
    ended: Option<Instant>,
}

pub(crate) struct Cluster {
    pub(crate) network: Arc<Network>,
    pub(crate) folder: PathBuf,
    nodes: Vec<Node>,
    /// Holds the locks of the store while it is away.
    locked: Option<File>,
    /// The store, if it is an etcd.
    pub(crate) etcd: Option<Etcd>,
    /// Nodes that ended though no script wanted it, and how.
    pub(crate) crashes: Vec<String>,
}

impl Cluster {
    /// The cluster of a script, with its volumes attached.
    pub(crate) fn start(number: usize, script: &Script) -> Cluster {
        let (nodes, volumes) = (script.nodes, &script.volumes);
        let hosts = nodes + if script.etcd { Etcd::HOSTS } else { 0 };
        let network = Arc::new(Network::new(number, hosts));
        let etcd = script.etcd.then(|| Etcd::start(&network, nodes, &netns::folder(number)));
        let mut cluster = Cluster {
            etcd,
            network,
            folder: netns::folder(number),
            nodes: (0..nodes).map(|_| Node::default()).collect(),
            locked: None,
            crashes: Vec::new(),
        };
        let store = cluster.etcd.as_ref().map(Etcd::url);
        let store = store.unwrap_or_else(|| cluster.store().to_str().expect("it is text").into());
        let store = store.as_str();
        // Beyond one machine nodes always authenticate each other. In every second cluster everything is encrypted as well.
        let protection = if number.is_multiple_of(2) { "encrypted" } else { "authenticated" };
        let lease = std::env::var("LOADLINE_HOSTS_LEASE").ok().filter(|lease| !lease.is_empty());
        let lease = lease.unwrap_or_else(|| "600ms".into());
        let made = cluster.must(0, &["san", "init", store, "--transport", protection, "--lease", &lease]);
        let mut token = token_in(&made);
        for host in 0..nodes {
            let (name, folder) = (name(host), cluster.folder.join(name(host)));
            let address = netns::address(host).to_string();
            let folder = folder.to_str().expect("it is text");
            let arguments =
                ["san", "join", store, "--name", &name, "--folder", folder, "--address", &address];
            let with: Vec<&str> = token.iter().flat_map(|token| ["--token", token]).collect();
            cluster.must(host, &[&arguments[..], &with].concat());
            let settings = cluster.folder.join(self::name(0)).join("node.toml");
            let settings = settings.to_str().expect("it is text");
            let more = || cluster.must(0, &["san", "token", "--config", settings]).trim().to_owned();
            token = (host + 1 < nodes).then(more);
            cluster.start_node(host);
        }
        for host in 0..nodes {
            cluster.wait_for_api(host);
            let device = cluster.device(host);
            File::create_new(&device).and_then(|file| file.set_len(DEVICE)).expect("there is room");
            cluster.must(host, &["device", "add", device.to_str().expect("it is text")]);
        }
        for volume in volumes {
            let (name, size) = (&volume.name, format!("{}MiB", volume.mib));
            let (copies, stripes) = (volume.copies.to_string(), volume.stripes.to_string());
            let mut arguments = vec!["volume", "create", name, "--size", &size, "--log", "32MiB"];
            arguments.extend(["--copies", &copies, "--stripes", &stripes]);
            cluster.must(0, &arguments);
            cluster.must(0, &["volume", "attach", name]);
        }
        cluster
    }

    fn store(&self) -> PathBuf {
        self.folder.join("cluster.db")
    }

    pub(crate) fn device(&self, host: usize) -> PathBuf {
        self.folder.join(name(host)).join("device")
    }

    fn log(&self, host: usize) -> PathBuf {
        self.folder.join(format!("{}.log", name(host)))
    }

    /// What a node has printed.
    pub(crate) fn printed(&self, host: usize) -> String {
        std::fs::read(self.log(host))
            .map(|text| String::from_utf8_lossy(&text).into_owned())
            .unwrap_or_default()
    }

    /// Starts a node's process; does not wait for it.
    pub(crate) fn start_node(&mut self, host: usize) {
        let log = File::options().create(true).append(true).open(self.log(host)).expect("there is room");
        let mut command = self.network.command(host, Path::new(env!("CARGO_BIN_EXE_loadline")));
        command.args(["san", "serve", "--config"]).arg(self.folder.join(name(host)).join("node.toml"));
        command.stdout(log.try_clone().expect("it is open")).stderr(log);
        let child = command.spawn().expect("the program is there");
        self.nodes[host] = Node { child: Some(child), ended: None };
    }

    fn wait_for_api(&self, host: usize) {
        let begun = Instant::now();
        while self.command(host, &["san", "status"]).0 == 1 {
            assert!(begun.elapsed() < Duration::from_secs(20), "node {host} answers: {}", self.printed(host));
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Starts nodes that ended by themselves again, and takes down that they did.
    pub(crate) fn supervise(&mut self) {
        for host in 0..self.nodes.len() {
            let node = &mut self.nodes[host];
            if node.ended.is_some_and(|at| at.elapsed() > RESTARTS) {
                self.start_node(host);
                continue;
            }
            let Some(status) = node.child.as_mut().and_then(|child| child.try_wait().expect("it is ours"))
            else {
                continue;
            };
            (node.child, node.ended) = (None, Some(Instant::now()));
            // A node that cannot start because the store is away says so and ends: that is its right.
            if status.signal().is_some() || status.code() == Some(101) {
                self.crashes.push(format!("node {host} ended by itself: {status}"));
            }
        }
    }

    /// Sends a signal to a node's process.
    pub(crate) fn signal(&self, host: usize, signal: &str) {
        if let Some(child) = &self.nodes[host].child {
            // It may have ended by itself.
            let _ = Command::new("kill").args([&format!("-{signal}"), &child.id().to_string()]).status();
        }
    }

    /// Stops a node's process, but not in the middle of using the store: that would take the store away from the others too.
    pub(crate) fn freeze(&mut self, host: usize) {
        let away = self.locked.is_some() || self.etcd.is_some();
        if !away {
            self.lock_store();
        }
        self.signal(host, "STOP");
        if !away {
            self.unlock_store();
        }
    }

    /// Kills a node's process.
    pub(crate) fn kill(&mut self, host: usize) {
        let node = std::mem::take(&mut self.nodes[host]);
        if let Some(mut child) = node.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Kills nodes at once: none of them learns that another one has ended.
    pub(crate) fn kill_together(&mut self, hosts: &[usize]) {
        let mut children: Vec<_> =
            hosts.iter().filter_map(|host| std::mem::take(&mut self.nodes[*host]).child).collect();
        for child in &mut children {
            let _ = child.kill();
        }
        for mut child in children {
            let _ = child.wait();
        }
    }

    /// Ends a node's process by SIGTERM. Whether it ended in time.
    pub(crate) fn terminate(&mut self, host: usize) -> bool {
        self.signal(host, "TERM");
        let begun = Instant::now();
        let Some(child) = &mut self.nodes[host].child else { return true };
        let mut ended = false;
        while !ended && begun.elapsed() < ENDS {
            ended = child.try_wait().expect("it is ours").is_some();
            std::thread::sleep(Duration::from_millis(5));
        }
        self.kill(host);
        ended
    }

    /// Takes the store away from all nodes: they can neither read nor change it. Waits until no node is in the middle of using it.
    pub(crate) fn lock_store(&mut self) {
        if let Some(etcd) = &mut self.etcd {
            return etcd.stop_majority();
        }
        let path = self.folder.join("cluster.db-shm");
        let file =
            File::options().read(true).write(true).open(path).expect("SQLite keeps it while it is used");
        for byte in LOCKS {
            // SAFETY: all fields of the structure are numbers.
            let mut lock: libc::flock = unsafe { std::mem::zeroed() };
            lock.l_type = libc::F_WRLCK as i16;
            (lock.l_start, lock.l_len) = (byte, 1);
            let begun = Instant::now();
            // A node that is stopped while it holds a lock keeps the store from the others as well.
            while fcntl(&file, FcntlArg::F_OFD_SETLK(&lock)).is_err() && begun.elapsed() < LOCKS_WITHIN {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        self.locked = Some(file);
    }

    /// Waits until the members of an etcd that run again have elected a leader, for some seconds at the most: before that the store
    /// cannot be reached by anyone, and how long an election takes is etcd's own affair.
    pub(crate) fn await_leader(&self) {
        let Some(etcd) = &self.etcd else { return };
        let begun = Instant::now();
        while etcd.leader(&self.network).is_none() && begun.elapsed() < ELECTED {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Gives the store back.
    pub(crate) fn unlock_store(&mut self) {
        if let Some(etcd) = &mut self.etcd {
            etcd.go_on();
        }
        self.locked = None;
    }

    /// Copies the configuration as it is now to a file that is not there.
    pub(crate) fn back_up_store(&self, to: &Path) {
        let connection = rusqlite::Connection::open(self.store()).expect("it is there");
        connection.busy_timeout(Duration::from_secs(5)).expect("it may be so long");
        connection.execute("VACUUM INTO ?1", [to.to_str().expect("it is text")]).expect("it can be read");
    }

    /// Replaces the configuration by a copy. No node may run.
    pub(crate) fn restore_store(&self, from: &Path) {
        for ending in ["-wal", "-shm"] {
            let _ = std::fs::remove_file(self.folder.join(format!("cluster.db{ending}")));
        }
        std::fs::copy(from, self.store()).expect("it is there");
    }

    /// Copies a device whose node does not run, or puts such a copy back.
    pub(crate) fn copy_device(&self, from: &Path, to: &Path) {
        let status = Command::new("cp").arg("--sparse=always").args([from, to]).status();
        assert!(status.expect("cp is part of coreutils").success(), "{from:?} to {to:?}");
    }

    /// What the configuration says of each of these volumes; nothing while the store is away.
    pub(crate) fn sample(&self, volumes: &[Volume]) -> Option<Vec<Sample>> {
        let catalog = match &self.etcd {
            Some(etcd) => etcd.catalog(&self.network)?,
            None if self.locked.is_some() => return None,
            None => {
                let mut store = config::open(&self.store().as_path().into()).ok()?;
                Catalog::read(&mut *store).ok()?
            }
        };
        let host = |node: u32| catalog.nodes.get(&node)?.0.name.strip_prefix("node-")?.parse::<usize>().ok();
        let sample = |volume: &Volume| {
            let (id, _) = catalog.volume(&volume.name)?;
            let record = record::decode(&catalog.records.get(&id)?.value).ok()?;
            let homes = |replica| host(record.homes.get(replica)?.0).map(|number| number - 1);
            Some(Sample {
                in_sync: record
                    .groups
                    .iter()
                    .map(|of| of.in_sync.iter().filter_map(homes).collect())
                    .collect(),
                homes: record.homes.keys().filter_map(homes).collect(),
                owner: host(record.owner.node.0)?.checked_sub(1)?,
                least: record.least as usize,
            })
        };
        volumes.iter().map(sample).collect()
    }

    /// Runs a command of ours on a host; its exit code and what it printed. 124: it did not end in time.
    pub(crate) fn command(&self, host: usize, arguments: &[&str]) -> (i32, String) {
        let output = self
            .network
            .command(host, Path::new("timeout"))
            .arg(COMMAND)
            .arg(env!("CARGO_BIN_EXE_loadline"))
            .args(arguments)
            .env("LOADLINE_API", self.folder.join(name(host)).join("api.sock"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .output()
            .expect("timeout is part of coreutils");
        let text =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        (output.status.code().unwrap_or(-1), text)
    }

    fn must(&self, host: usize, arguments: &[&str]) -> String {
        let (code, text) = self.command(host, arguments);
        assert_eq!(code, 0, "{arguments:?}: {text}");
        text
    }

    /// Waits until every volume has all its copies in sync. What a volume lacks, if the time is over.
    pub(crate) fn wait_in_sync(&mut self, volumes: &[Volume], limit: Duration) -> Result<(), String> {
        let begun = Instant::now();
        loop {
            self.supervise();
            let samples = self.sample(volumes);
            let whole = |(volume, sample): (&Volume, &Sample)| {
                sample.in_sync.iter().all(|group| group.len() == volume.copies)
            };
            if samples.as_ref().is_some_and(|samples| volumes.iter().zip(samples).all(whole)) {
                return Ok(());
            }
            if begun.elapsed() > limit {
                return Err(format!("not in sync within {} s: {samples:?}", limit.as_secs()));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        (0..self.nodes.len()).for_each(|host| self.kill(host));
        self.etcd = None;
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The name of the node on a host.
pub(crate) fn name(host: usize) -> String {
    format!("node-{}", host + 1)
}
