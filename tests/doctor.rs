//! `loadline doctor`, on this host and on a fleet of two workers of this host.

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use serde_json::Value;
use support::{eventually, finish, folder, loadline, number, refuse_registering, run, signal, start};

const LIMIT: Duration = Duration::from_secs(60);
const TOKEN: &str = "open-sesame-open-sesame";

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).unwrap().count() == 0
}

/// All checks of a report.
fn checks(report: &Value) -> Vec<&Value> {
    let hosts = report["hosts"].as_array().unwrap().iter();
    let of_hosts = hosts.flat_map(|host| host["checks"].as_array().unwrap());
    of_hosts.chain(report["between"].as_array().unwrap()).collect()
}

/// The check of this name.
fn check<'a>(report: &'a Value, name: &str) -> &'a Value {
    let all = checks(report);
    all.iter().find(|check| check["check"] == name).unwrap_or_else(|| panic!("no {name} in {all:#?}"))
}

#[test]
fn this_host_is_examined_for_people_and_for_programs() {
    let said = run(["doctor"]);
    assert!(matches!(said.code, Some(0 | 3)), "{}{}", said.out, said.err);
    for word in ["Linux ", "kernel", "io_uring", "clock: source", "durable write", "--folder", " ok."] {
        assert!(said.out.contains(word), "no {word} in:\n{}", said.out);
    }
    let said = run(["doctor", "--json"]);
    let report = said.json();
    assert_eq!((&report["format"], report["hosts"].as_array().unwrap().len()), (&Value::from(1), 1));
    let mut severities: Vec<&str> = checks(&report).iter().filter_map(|c| c["severity"].as_str()).collect();
    severities
        .sort_by_key(|severity| ["bad", "slow", "note", "ok"].iter().position(|known| known == severity));
    assert_eq!(report["worst"].as_str().unwrap(), severities[0]);
    let expected = if matches!(severities[0], "bad" | "slow") { 3 } else { 0 };
    assert_eq!(said.code, Some(expected), "{severities:?}");
    for check in checks(&report).iter().filter(|check| check["severity"] != "ok") {
        assert!(["expected", "costs", "mend"].iter().all(|part| check[part].is_string()), "{check}");
    }
    assert!(report["network"].as_array().unwrap().is_empty() && report["hosts"][0]["sync_write"].is_null());
    assert_eq!(check(&report, "durable write")["severity"], "note");
    let schema = run(["schema", "doctor"]).json();
    assert_eq!(schema["title"], "Loadline doctor report");
}

#[test]
fn a_durable_write_is_measured_on_a_file_that_is_gone_afterwards() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let said = run(["doctor", "--json", "--folder", text(folder.path())]);
    assert!(matches!(said.code, Some(0 | 3)), "{}", said.err);
    let report = said.json();
    assert!(number(&report, "hosts/0/sync_write/iops") > 0.0);
    assert_eq!(report["hosts"][0]["sync_write"]["folder"], text(folder.path()));
    let found = check(&report, &format!("durable write: {}", text(folder.path())));
    assert!(found["found"].as_str().unwrap().contains("median") || found["severity"] == "bad", "{found}");
    assert!(is_empty(folder.path()), "a file is left");
}

#[test]
fn ctrl_c_leaves_no_file_behind() {
    for signals in [&["INT"][..], &["TERM", "INT"]] {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let child = start(["doctor", "--folder", text(folder.path())]);
        eventually("the file is there", LIMIT, || !is_empty(folder.path()));
        signals.iter().for_each(|name| signal(child.id(), name));
        let said = finish(child, Duration::from_secs(20));
        assert_eq!(said.code, Some(130), "{}", said.err);
        assert!(is_empty(folder.path()), "a file is left");
    }
}

#[test]
fn what_is_not_there_is_refused_before_anything_is_done() {
    let folder = folder();
    run(["doctor", "/dev/none-of-this-name"]).refused(2, &["/dev/none-of-this-name does not exist", "lsblk"]);
    run(["doctor", "/dev/null"]).refused(2, &["/dev/null is no block device"]);
    let gone = folder.path().join("gone");
    run(["doctor", "--folder", text(&gone)]).refused(2, &["gone does not exist", "make it first"]);
    run(["doctor", "--join", "0"]).refused(2, &["--join"]);
    run(["doctor", "--join", "1", "--folder", "data"]).refused(2, &["--folder data", "whole path"]);
    run(["doctor", "--listen", "127.0.0.1:0"]).refused(2, &["--join"]);
    run(["doctor", "--join", "1", "--token", "fifteen letters"]).refused(2, &["16 to 512 bytes"]);
}

#[test]
fn whoever_refuses_io_uring_is_named() {
    use std::os::unix::process::CommandExt;
    let mut command = loadline();
    command.args(["doctor", "--json"]);
    // SAFETY: between fork and exec only system calls are made, and no memory is allocated.
    unsafe { command.pre_exec(refuse_registering) };
    let output = command.output().expect("the program runs");
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{err}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
    let found = check(&report, "io_uring");
    assert_eq!((&found["severity"], &report["worst"]), (&Value::from("bad"), &Value::from("bad")));
    assert!(found["run"].as_str().unwrap().contains("seccomp"), "{found}");
}

#[test]
fn a_limit_of_this_process_is_found() {
    let mut command = Command::new("prlimit");
    let output =
        command.args(["--nofile=512:512", env!("CARGO_BIN_EXE_loadline"), "doctor", "--json"]).output();
    let output = output.expect("prlimit runs");
    assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
    let found = check(&report, "limit: open files");
    assert_eq!((&found["severity"], &found["found"]), (&Value::from("slow"), &Value::from("512")));
}

#[test]
fn a_port_in_use_and_workers_that_never_come_are_said() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    run(["doctor", "--join", "1", "--listen", &address]).refused(2, &["cannot listen", &address]);
    run(["doctor", "--join", "2", "--listen", "127.0.0.1:0", "--wait", "1s"])
        .refused(1, &["0 of 2 workers joined within 1s", "loadline worker --join"]);
}

/// A doctor that waits for workers, and what it says on standard error.
struct Fleet {
    child: Child,
    said: Receiver<String>,
    address: String,
}

impl Fleet {
    fn start(workers: u32, words: &[&str]) -> Fleet {
        let mut command = loadline();
        command.args(["doctor", "--json", "--listen", "127.0.0.1:0", "--token", TOKEN, "--wait", "30s"]);
        command.args(["--join", &workers.to_string()]).args(words);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (tell, said) = mpsc::channel();
        std::thread::spawn(move || {
            // The receiver may be dropped already: then the line is not needed.
            stderr.lines().map_while(Result::ok).for_each(|line| drop(tell.send(line)));
        });
        let mut fleet = Fleet { child, said, address: String::new() };
        let line = fleet.hears("--join ");
        fleet.address = line.split_once("--join ").unwrap().1.to_string();
        fleet
    }

    /// The next line with these words.
    fn hears(&self, words: &str) -> String {
        loop {
            let line = self.said.recv_timeout(LIMIT).unwrap_or_else(|_| panic!("\"{words}\" was never said"));
            if line.contains(words) {
                return line;
            }
        }
    }

    fn worker(&self, name: &str) -> Child {
        start(["worker", "--join", &self.address, "--token", TOKEN, "--name", name])
    }
}

#[test]
fn hosts_of_a_fleet_are_examined_and_the_network_between_them_is_measured() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let fleet = Fleet::start(2, &["--folder", text(folder.path())]);
    let workers = ["left", "right"].map(|name| fleet.worker(name));
    let said = finish(fleet.child, LIMIT);
    assert!(matches!(said.code, Some(0 | 3)), "{}", said.out);
    let report = said.json();
    let names: Vec<&Value> = report["hosts"].as_array().unwrap().iter().map(|host| &host["worker"]).collect();
    assert_eq!(names, ["left", "right"]);
    assert!(number(&report, "hosts/0/sync_write/iops") > 0.0);
    assert!(report["hosts"][1]["sync_write"].is_null(), "two at once would measure each other");
    assert!(number(&report, "hosts/1/clock_ahead_s").abs() < 5.0);
    for way in report["network"].as_array().unwrap() {
        assert!(number(way, "round_trip_us") > 1.0 && number(way, "bytes_per_s") > 1e6, "{way}");
        assert_eq!(way["one_host"], true);
    }
    assert_eq!(report["network"].as_array().unwrap().len(), 2);
    let found = check(&report, "network left to right: round trip");
    assert!(found["found"].as_str().unwrap().contains("loopback"), "{found}");
    assert_eq!(check(&report, "hosts: kernel")["severity"], "ok");
    for worker in workers {
        assert_eq!(finish(worker, Duration::from_secs(15)).code, Some(0));
    }
    assert!(is_empty(folder.path()), "a file is left");
}

#[test]
fn ctrl_c_ends_the_waiting_and_the_examining_of_a_fleet() {
    let waiting = Fleet::start(1, &[]);
    signal(waiting.child.id(), "INT");
    assert_eq!(finish(waiting.child, Duration::from_secs(20)).code, Some(130));

    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let fleet = Fleet::start(1, &["--folder", text(folder.path())]);
    let worker = fleet.worker("left");
    eventually("the file is there", LIMIT, || !is_empty(folder.path()));
    signal(fleet.child.id(), "INT");
    assert_eq!(finish(fleet.child, Duration::from_secs(20)).code, Some(130));
    finish(worker, Duration::from_secs(15));
    assert!(is_empty(folder.path()), "a file is left");
}

#[test]
fn a_worker_that_is_lost_is_named_and_what_the_others_found_stands() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let fleet = Fleet::start(3, &["--folder", text(folder.path())]);
    let workers = ["left", "middle", "right"].map(|name| fleet.worker(name));
    // The first of the host makes the file.
    eventually("the file is there", LIMIT, || !is_empty(folder.path()));
    signal(workers[0].id(), "INT");
    signal(workers[2].id(), "KILL");
    fleet.hears("the findings of the other hosts are valid");
    let said = finish(fleet.child, LIMIT);
    assert_eq!(said.code, Some(1), "{}", said.out);
    let report = said.json();
    let lost: Vec<&Value> = report["lost"].as_array().unwrap().iter().map(|lost| &lost["worker"]).collect();
    assert_eq!(lost, ["left", "right"]);
    let hosts = report["hosts"].as_array().unwrap();
    assert_eq!((hosts.len(), &hosts[0]["worker"]), (1, &Value::from("middle")));
    assert_eq!(check(&report, "kernel")["check"], "kernel");
    for worker in workers {
        finish(worker, Duration::from_secs(15));
    }
    assert!(is_empty(folder.path()), "a file is left");
}

#[test]
fn a_disk_that_one_host_does_not_have_is_a_finding_of_that_host() {
    let fleet = Fleet::start(1, &["/dev/none-of-this-name", "--folder", "/nowhere/at/all"]);
    let worker = fleet.worker("left");
    let said = finish(fleet.child, LIMIT);
    assert_eq!(said.code, Some(3), "{}", said.out);
    let report = said.json();
    assert_eq!(check(&report, "/dev/none-of-this-name: disk")["severity"], "bad");
    let folder = check(&report, "durable write");
    assert!(folder["found"].as_str().unwrap().contains("/nowhere/at/all"), "{folder}");
    assert_eq!(finish(worker, Duration::from_secs(15)).code, Some(0));
}
