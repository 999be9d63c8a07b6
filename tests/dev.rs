//! `loadline san dev`: a cluster to try, which is alone at its addresses and leaves nothing behind.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const PROGRAM: &str = env!("CARGO_BIN_EXE_loadline");

/// A network of this process and test, so that tests side by side have others.
fn network(test: u8) -> String {
    format!("127.{}.{}.0", std::process::id() as u8 | 1, test)
}

/// The command, whose temporary folder is this one. It ends after a minute, whatever happens.
fn dev(temporary: &Path, network: &str, more: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--foreground", "60", PROGRAM, "san", "dev", "--nodes", "2"]);
    if !more.contains(&"--size") {
        command.args(["--size", "256MiB"]);
    }
    command.args(["--network", network]).args(more).env("TMPDIR", temporary);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Starts it, and waits until it is ready. What it has printed until then.
fn ready(command: &mut Command) -> (Running, String) {
    let mut child = Running(command.stderr(Stdio::null()).spawn().expect("timeout is part of coreutils"));
    let mut lines = BufReader::new(child.0.stdout.take().expect("it is piped")).lines();
    let mut printed = String::new();
    loop {
        let line = lines.next().expect("it gets ready").expect("it is text");
        printed.push_str(&line);
        printed.push('\n');
        if line.contains("volume attach") {
            // What it prints later is not read, and is little.
            std::mem::forget(lines);
            return (child, printed);
        }
    }
}

/// One that runs. It is ended as a service manager does it, also by a test that fails.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.0.id() as i32), Signal::SIGTERM);
        let _ = self.0.wait();
    }
}

fn ask(network: &str, arguments: &[&str]) -> Output {
    ask_at(network, 1, arguments)
}

fn ask_at(network: &str, node: u8, arguments: &[&str]) -> Output {
    let api = format!("{}{node}:7400", network.strip_suffix('0').expect("it ends so"));
    Command::new(PROGRAM).args(arguments).args(["--api", &api]).output().expect("it runs")
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn a_second_cluster_at_the_same_addresses_is_refused_and_one_that_ends_removes_what_it_made() {
    let temporary = tempfile::tempdir().expect("there is room");
    let network = network(1);
    let (first, printed) = ready(&mut dev(temporary.path(), &network, &[]));
    let id =
        printed.split_whitespace().nth(1).expect("it names the cluster").trim_end_matches(',').to_owned();

    let begun = Instant::now();
    let second = dev(temporary.path(), &network, &[]).output().expect("it runs");
    let said = text(&second);
    assert_eq!(second.status.code(), Some(2), "{said}");
    assert!(said.contains("--network") && said.contains(":7400"), "{said}");
    assert!(!said.contains("reports"), "that would be the status of the first: {said}");
    assert!(begun.elapsed() < Duration::from_secs(5), "at once");

    // What is done, and what is not, names the cluster.
    let made = text(&ask(&network, &["volume", "create", "disk", "--size", "16MiB", "--log", "32MiB"]));
    assert!(made.contains(&id[..8]) && made.contains("is made"), "{made}");
    let refused = text(&ask(&network, &["volume", "attach", "dusk"]));
    assert!(refused.contains(&id[..8]), "{refused}");
    let json = ask(&network, &["volume", "delete", "disk", "--confirm", "disk", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).expect("it is JSON");
    assert_eq!(json["cluster"], id.as_str());

    drop(first);
    let left: Vec<_> = std::fs::read_dir(temporary.path()).expect("it is there").collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn the_volume_that_is_suggested_fits() {
    let temporary = tempfile::tempdir().expect("there is room");
    for (number, size) in [(17, "256MiB"), (18, "1GiB")] {
        let (running, printed) = ready(&mut dev(temporary.path(), &network(number), &["--size", size]));
        for command in ["volume create", "volume attach"] {
            let line = printed.lines().find(|line| line.trim().starts_with(&format!("loadline {command}")));
            let line = line.expect("it is suggested");
            let said = Command::new(PROGRAM).args(line.split_whitespace().skip(1)).output().expect("it runs");
            assert!(said.status.success(), "{line}: {}", text(&said));
        }
        drop(running);
    }
}

#[test]
fn a_folder_goes_on_where_it_was_and_only_at_its_own_addresses() {
    let temporary = tempfile::tempdir().expect("there is room");
    let folder = temporary.path().join("cluster");
    let named = ["--folder", folder.to_str().expect("it is text")];
    let (ours, other) = (network(2), network(3));
    let (first, _) = ready(&mut dev(temporary.path(), &ours, &named));
    text(&ask(&ours, &["volume", "create", "disk", "--size", "16MiB", "--log", "32MiB"]));
    drop(first);
    let files = ["cluster.db", "cluster.db-wal", "cluster.db-shm"].map(|file| folder.join(file).exists());
    assert_eq!(files, [true, false, false], "the configuration is one file, which can be copied");

    let elsewhere = dev(temporary.path(), &other, &named).output().expect("it runs");
    let said = text(&elsewhere);
    assert!(
        elsewhere.status.code() == Some(2) && said.contains("--network") && said.contains("node-1"),
        "{said}"
    );

    let (again, printed) = ready(&mut dev(temporary.path(), &ours, &named));
    assert!(printed.contains("disk"), "{printed}");
    drop(again);
}

/// A node that was killed and started by hand has its files as long as it runs.
#[test]
fn a_folder_that_a_node_uses_still_is_kept() {
    let temporary = tempfile::tempdir().expect("there is room");
    let network = network(4);
    let (cluster, printed) = ready(&mut dev(temporary.path(), &network, &[]));
    let id = printed.split("node-2 is process ").nth(1).expect("it names processes");
    let id: i32 = id.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().expect("a number");
    kill(Pid::from_raw(id), Signal::SIGKILL).expect("it runs");
    // Its addresses are in use until its last thread has ended.
    let begun = Instant::now();
    while Path::new(&format!("/proc/{id}")).exists() {
        assert!(begun.elapsed() < Duration::from_secs(20), "it ends");
        std::thread::sleep(Duration::from_millis(10));
    }
    let folder = std::fs::read_dir(temporary.path()).expect("it is there").next().unwrap().unwrap().path();
    let config = folder.join("node-2/node.toml");
    let mut command = Command::new(PROGRAM);
    command.args(["san", "serve", "--config"]).arg(&config).stderr(Stdio::null()).stdout(Stdio::null());
    let by_hand = Running(command.spawn().expect("it starts"));
    let begun = Instant::now();
    while !text(&ask_at(&network, 2, &["san", "status"])).contains("as node node-2 sees it") {
        assert!(begun.elapsed() < Duration::from_secs(20), "it serves its API");
        std::thread::sleep(Duration::from_millis(100));
    }
    drop(cluster);
    assert!(config.exists() && folder.join("node-2/device").exists(), "the node uses them");
    drop(by_hand);
}

/// Nodes with a fast log device and a slow capacity device, as their models say.
#[test]
fn nodes_have_log_devices_if_a_model_of_one_is_given() {
    let temporary = tempfile::tempdir().expect("there is room");
    let network = network(5);
    let models = ["--model", "intel-s4500", "--log-model", "intel-p4800x", "--log-size", "128MiB"];
    let wrong = dev(temporary.path(), &network, &["--log-size", "1GiB"]).output().expect("it runs");
    assert!(wrong.status.code() == Some(2) && text(&wrong).contains("--log-model"), "{}", text(&wrong));
    let (running, _) = ready(&mut dev(temporary.path(), &network, &models));
    let listed = ask(&network, &["device", "list", "--json"]);
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).expect("it is JSON");
    let kinds = listed.as_array().expect("there are some").iter();
    let kinds: Vec<(&str, &str)> = kinds
        .map(|device| (device["role"].as_str().unwrap_or("?"), device["model"].as_str().unwrap_or("?")))
        .collect();
    let (fast, slow) = (("log", "Intel Optane SSD DC P4800X"), ("capacity", "Intel SSD DC S4500"));
    assert_eq!(kinds, [fast, slow, fast, slow], "{listed}");
    let made = text(&ask(&network, &["volume", "create", "disk", "--size", "16MiB", "--log", "32MiB"]));
    assert!(made.contains("is made"), "{made}");
    drop(running);
}
