//! Nodes with a network of their own: what they send each other takes as long as its bandwidth says, faults and the API work as without
//! it, and nothing is left of it.
//!
//! Only root can make such a network; without root the tests check that it is refused before anything is made.

mod support;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use loadline_base::units::ByteSize;
use loadline_target::error::ErrorKind;
use loadline_target::{Cluster, ClusterSpec, Fault, FaultKind, Traffic, VolumeSpec};
use serde_json::Value;
use support::{eventually, finish, folder, nodes_in, number, run, signal, start};

const MIB: u64 = 1 << 20;
/// The bandwidth of each node: less than any machine's disk, and more than the commands between nodes take.
const PER_SECOND: ByteSize = ByteSize(20 * MIB);
const LIMIT: Duration = Duration::from_secs(30);

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// The network namespace of a process, as `net:[4026532345]`; `None` if there is no such process.
fn network_of(process: u32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{process}/ns/net")).ok()
}

/// Processes in a network namespace, and descriptors of this process that hold it.
fn users_of(network: &Path) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let inside = ids.filter(|id| network_of(*id).as_deref() == Some(network)).count();
    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    inside + open.filter(|entry| std::fs::read_link(entry.path()).is_ok_and(|to| to == network)).count()
}

fn fault(what: FaultKind, node: &str) -> Fault {
    Fault::of(what, node)
}

/// Writes for some seconds with many outstanding. Bytes a second.
fn write(disk: &str, seconds: u32) -> f64 {
    let time = format!("{seconds}s");
    let words =
        ["bench", disk, "--profile", "B64-T1-O16-W100-PR", "--for", &time, "--destroy-data", "--json", "-"];
    let said = run(words);
    assert!(matches!(said.code, Some(0 | 3)), "{}{}", said.out, said.err);
    number(&said.json(), "total/iops") * 65536.0
}

#[test]
fn writes_are_as_fast_as_the_network_between_the_copies_also_after_a_node_returned() {
    let folder = folder();
    let stop = AtomicBool::new(false);
    let home = folder.path().join("cluster");
    let spec = ClusterSpec {
        program: env!("CARGO_BIN_EXE_loadline").into(),
        folder: home.clone(),
        nodes: (1..=3).map(|n| format!("node-{n}")).collect(),
        device: ByteSize(1 << 30),
        model: None,
        log_model: None,
        cores: None,
        network_per_second: Some(PER_SECOND),
    };
    let mut cluster = match Cluster::start(spec, &stop) {
        Ok(cluster) => cluster,
        Err(error) => {
            assert!(!is_root() && error.kind == ErrorKind::Usage, "{error}");
            assert!(error.message.contains("need root") && !home.exists(), "{error}");
            return;
        }
    };
    let network = network_of(cluster.pid("node-1").unwrap()).unwrap();
    let ours = network_of(std::process::id()).unwrap();
    assert_ne!(network, ours);
    let volume = VolumeSpec {
        name: "disk-1".into(),
        size: ByteSize(128 * MIB),
        copies: 2,
        least: None,
        stripes: 1,
        log: None,
        node: "node-1".into(),
    };
    let disk = cluster.volume(&volume).unwrap();

    let before = cluster.traffic().unwrap();
    let begun = Instant::now();
    let rate = write(&disk.local.to_string(), 5);
    let traffic = since(&cluster.traffic().unwrap(), &before);
    // The second copy of each write goes over the network. A busy machine writes less.
    let most = PER_SECOND.0 as f64;
    assert!((0.4 * most..1.1 * most).contains(&rate), "{rate} bytes a second");
    let sent = traffic["node-1"].sent as f64;
    let possible = 1.05 * most * begun.elapsed().as_secs_f64();
    assert!((0.9 * 5.0 * rate..possible).contains(&sent), "{traffic:?}, {possible} are possible");
    let received: Vec<u64> = ["node-2", "node-3"].map(|node| traffic[node].received).into();
    assert!(received.iter().sum::<u64>() as f64 > 0.9 * sent, "{traffic:?}");
    assert!(traffic["node-1"].received as f64 <= 0.2 * sent, "only answers came back: {traffic:?}");

    // A node that returns is in the same network, and what it missed comes over that.
    let other = if received[0] > received[1] { "node-2" } else { "node-3" };
    for what in [FaultKind::Kill, FaultKind::Freeze, FaultKind::Cut] {
        cluster.inject(&fault(what, other), &stop).unwrap();
        assert!(write(&disk.local.to_string(), 2) > 0.0);
        let before = cluster.traffic().unwrap();
        cluster.inject(&fault(FaultKind::Return, other), &stop).unwrap();
        assert!(cluster.await_redundancy(LIMIT, &stop).unwrap(), "after {what:?}");
        let copied = since(&cluster.traffic().unwrap(), &before)[other].received;
        assert!(copied > MIB, "after {what:?}: {copied} bytes");
        assert_eq!(network_of(cluster.pid(other).unwrap()), Some(network.clone()));
    }
    assert!(cluster.counters().unwrap().nodes.len() == 3, "their pages of counters are read");

    cluster.stop();
    assert_eq!(nodes_in(&home), 0);
    // The kernel removes the namespace a moment after the last process.
    eventually("nothing holds the network", LIMIT, || users_of(&network) == 0);
    assert!(!Path::new("/sys/class/net/receives").exists(), "it never was in this network");
    assert_eq!(network_of(std::process::id()), Some(ours));
}

fn since(now: &BTreeMap<String, Traffic>, before: &BTreeMap<String, Traffic>) -> BTreeMap<String, Traffic> {
    now.iter().map(|(node, now)| (node.clone(), now.since(before[node]))).collect()
}

const STUDY: &str = r#"
name = "own"
profiles = ["B64-T1-O16-W100-PR"]
[target]
san = { copies = 2, log = "32MiB", node = { network = { per_second = "8MiB" } } }
[fleet]
nodes = 3
disk_size = "32MiB"
[phases]
warm_up = "2s"
measure = "10s"
cool_down = "0s"
[run]
repeats = 1
"#;

#[test]
fn a_study_says_the_bandwidth_and_that_it_was_used_up_in_all_its_results() {
    let folder = folder();
    let (study, out) = (folder.path().join("own.toml"), folder.path().join("run"));
    std::fs::write(&study, STUDY).unwrap();
    let plan = run(["run".as_ref(), study.as_os_str(), "--plan".as_ref()]);
    assert!(plan.out.contains("each of them sends at most 8MiB a second"), "{}{}", plan.out, plan.err);
    let child = start(["run".as_ref(), study.as_os_str(), "--out".as_ref(), out.as_os_str()]);
    let said = finish(child, Duration::from_secs(120));
    if !is_root() {
        said.refused(2, &["need root"]);
        assert!(!out.exists(), "and nothing is left");
        return;
    }
    assert!(matches!(said.code, Some(0 | 3)), "{}{}", said.out, said.err);
    let limit = "each node sends and receives at most 8MiB a second";
    let used_up = "3 of 3 nodes that sent or received at least 90 % of its bandwidth in the window";
    let one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    for file in ["steps/001-B64-T1-O16-W100-PR-r1/result.json", "report/report.json", "report/report.md"] {
        let text = std::fs::read_to_string(out.join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        let text = one_line(&text);
        assert!(text.contains(limit) && text.contains(used_up), "{file}");
    }
    let said = one_line(&said.out);
    let of_study = 8.0 * MIB as f64;
    assert!(said.contains(limit) && said.contains(used_up), "{said}");
    let limited = "limited by the network of the nodes: node-";
    assert!(said.contains(limited), "{said}");
    // The page has its findings packed, and its verdict as text too.
    assert!(std::fs::read_to_string(out.join("report/report.html")).unwrap().contains(limited));
    // Each node sends one copy of what its worker writes, and receives one.
    let result = std::fs::read_to_string(out.join("steps/001-B64-T1-O16-W100-PR-r1/result.json")).unwrap();
    let result: Value = serde_json::from_str(&result).unwrap();
    let rate = number(&result, "figures/total/bytes_per_s");
    let most = 3.0 * of_study;
    assert!((0.4 * most..1.1 * most).contains(&rate), "{rate} bytes a second");
    let sent = number(&result, "network/nodes/node-1/sent_bytes_per_s");
    assert!((0.9..1.05).contains(&(sent / of_study)), "{sent} bytes a second");
    assert_eq!(number(&result, "network/limit_bytes_per_s"), of_study);
}

#[test]
fn a_run_that_is_killed_leaves_neither_a_node_nor_a_network() {
    if !is_root() {
        return;
    }
    let folder = folder();
    let (study, out) = (folder.path().join("own.toml"), folder.path().join("run"));
    std::fs::write(&study, STUDY).unwrap();
    let mut child = start(["run".as_ref(), study.as_os_str(), "--out".as_ref(), out.as_os_str()]);
    let is_measured = || {
        let events = std::fs::read_to_string(out.join("events.jsonl")).unwrap_or_default();
        events.contains("\"event\":\"starting\"")
    };
    eventually("its step is measured", Duration::from_secs(90), || {
        is_measured() || child.try_wait().unwrap().is_some()
    });
    let network = network_of(nodes_of(&out)[0]).unwrap();
    assert!(users_of(&network) >= 3, "the nodes are in it");
    signal(child.id(), "KILL");
    let _ = child.wait();
    eventually("all nodes end", LIMIT, || nodes_in(&out) == 0);
    eventually("nothing holds the network", LIMIT, || users_of(&network) == 0);
}

/// The processes of nodes whose configuration is in this folder.
fn nodes_of(folder: &Path) -> Vec<u32> {
    let own = |entry: std::fs::DirEntry| {
        let id = entry.file_name().to_str()?.parse().ok()?;
        let line = std::fs::read(entry.path().join("cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).into_owned();
        (line.contains("serve") && line.contains(folder.to_str()?)).then_some(id)
    };
    std::fs::read_dir("/proc").unwrap().flatten().filter_map(own).collect()
}

/// `san dev` with two nodes. It ends after a minute, whatever happens.
fn dev(folder: &Path, network: &str, more: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--foreground", "60", env!("CARGO_BIN_EXE_loadline"), "san", "dev", "--nodes", "2"]);
    command.args(["--size", "512MiB", "--network", network, "--folder"]).arg(folder).args(more);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A process that is ended by SIGTERM.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        signal(self.0.id(), "TERM");
        let _ = self.0.wait();
    }
}

#[test]
fn a_cluster_for_trials_has_such_a_network_too_and_is_reached_as_without() {
    let folder = folder();
    let home = folder.path().join("cluster");
    let base = format!("127.{}.5.", std::process::id() as u8 | 1);
    let network = format!("{base}0");
    for (wrong, part) in [("1KiB", "give 1MiB to 100GiB"), ("fast", "--node-network")] {
        let output = dev(&home, &network, &["--node-network", wrong]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains(part) && !home.exists(), "{said}");
    }
    let mut command = dev(&home, &network, &["--node-network", "20MiB"]);
    if !is_root() {
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains("need root") && !home.exists(), "{said}");
        return;
    }
    let mut running = Running(command.stderr(Stdio::null()).spawn().unwrap());
    let mut lines = BufReader::new(running.0.stdout.take().unwrap()).lines();
    let ready: Vec<String> =
        lines.by_ref().map_while(Result::ok).take_while(|line| !line.contains("volume attach")).collect();
    assert!(
        ready.iter().any(|line| line == "each node sends and receives at most 20MiB a second"),
        "{ready:?}"
    );
    // A node that has not the volume refers to one that has it, or forwards.
    let api = format!("{base}2:7400");
    let ask = |words: &[&str]| {
        let said = run(words.iter().copied().chain(["--api", &api]));
        assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
        said.out
    };
    ask(&["volume", "create", "disk", "--size", "64MiB", "--copies", "2", "--log", "32MiB"]);
    ask(&["volume", "attach", "disk", "--node", "node-1"]);
    assert!(ask(&["san", "status"]).contains("healthy"));
    let rate = write(&format!("nbd://{base}2:10809/disk"), 3);
    let most = PER_SECOND.0 as f64;
    assert!((0.1 * most..1.1 * most).contains(&rate), "{rate} bytes a second");
    let inside = network_of(nodes_of(&home)[0]).unwrap();
    drop(running);
    assert_eq!(nodes_in(&home), 0);
    eventually("nothing holds the network", LIMIT, || users_of(&inside) == 0);
}

#[test]
fn root_without_the_capability_is_refused_with_what_is_missing() {
    let folder = folder();
    let home = folder.path().join("cluster");
    let network = format!("127.{}.6.0", std::process::id() as u8 | 1);
    let refused = |bounding: &str, part: &str| {
        let dev = dev(&home, &network, &["--node-network", "20MiB"]);
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set", bounding, "--inh-caps", bounding]).arg(dev.get_program());
        let output = command.args(dev.get_args()).output().expect("setpriv is part of util-linux");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains(part) && !home.exists(), "{said}");
    };
    if is_root() {
        refused("-sys_admin", "CAP_SYS_ADMIN");
        refused("-net_admin", "CAP_NET_ADMIN");
    }
}
