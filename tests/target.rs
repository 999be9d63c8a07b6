//! A cluster of the virtual SAN as a target: made, harmed in every way, healed, found again; and a study's own one.

#[path = "target/groups.rs"]
mod groups;
mod nodes;
mod support;

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use loadline_base::units::{ByteSize, TimeSpan};
use loadline_target::error::ErrorKind;
use loadline_target::{Cluster, ClusterSpec, Disk, Fault, FaultKind, VolumeSpec};
use serde_json::Value;
use support::{eventually, finish, folder, nodes_in, run, signal, start};

const LIMIT: Duration = Duration::from_secs(30);

fn spec(folder: &Path) -> ClusterSpec {
    ClusterSpec {
        program: env!("CARGO_BIN_EXE_loadline").into(),
        folder: folder.to_path_buf(),
        nodes: (1..=3).map(|n| format!("node-{n}")).collect(),
        // Room for three replicas with their logs: it is reserved, and disks of test machines are small.
        device: ByteSize(5 << 28),
        model: None,
        log_model: None,
        cores: None,
        network_per_second: None,
    }
}

fn volume(number: u32) -> VolumeSpec {
    VolumeSpec {
        name: format!("disk-{number}"),
        size: ByteSize(32 << 20),
        copies: 2,
        least: None,
        stripes: 1,
        log: None,
        node: format!("node-{number}"),
    }
}

fn fault(what: FaultKind, node: &str) -> Fault {
    Fault::of(what, node)
}

#[test]
fn a_node_with_a_log_device_has_logs_there_and_its_data_on_the_other() {
    let folder = folder();
    let stop = AtomicBool::new(false);
    let model = |name| Some(loadline_target::device_models::published(name).unwrap());
    let nodes = vec!["node-1".into(), "node-2".into()];
    let (device, spec) = (ByteSize(1 << 29), spec(folder.path()));
    let hybrid =
        ClusterSpec { nodes, device, model: model("intel-s4500"), log_model: model("intel-p4800x"), ..spec };
    let mut cluster = Cluster::start(hybrid, &stop).unwrap();
    let disk = cluster.volume(&volume(1)).unwrap();
    let names: Vec<String> = cluster.modelled().unwrap().into_iter().map(|device| device.model).collect();
    assert_eq!(names.iter().filter(|name| name.contains("P4800X")).count(), 2, "{names:?}");
    assert_eq!(names.len(), 4, "{names:?}");
    let words = ["bench", &disk.local.to_string(), "-p", "B4-T1-O8-W100-PR", "--destroy-data", "--for", "1s"];
    let said = run(words);
    assert!(matches!(said.code, Some(0 | 3)), "{}", said.err);
    // Of the node that fails, both devices do.
    cluster.inject(&fault(FaultKind::FailDevice, "node-2"), &stop).unwrap();
    eventually("the fault is seen", LIMIT, || cluster.health().is_ok_and(|health| !health.is_redundant()));
    cluster.inject(&fault(FaultKind::Return, "node-2"), &stop).unwrap();
    assert!(cluster.await_redundancy(LIMIT, &stop).unwrap(), "{:?}", cluster.health());
    cluster.stop();
}

#[test]
fn every_fault_is_seen_and_taken_back_and_none_takes_the_last_copy() {
    let folder = folder();
    let stop = AtomicBool::new(false);
    let mut cluster = Cluster::start(spec(folder.path()), &stop).unwrap();
    assert_eq!(cluster.nodes().collect::<Vec<_>>(), ["node-1", "node-2", "node-3"]);
    for number in 1..=3 {
        let disk = cluster.volume(&volume(number)).unwrap();
        let local = disk.local.to_string();
        assert!(
            local.starts_with("vhost-user:") && disk.nbd.to_string().starts_with("nbd://") && disk.is_new
        );
        let again = cluster.volume(&volume(number)).unwrap();
        assert_eq!(again, Disk { is_new: false, ..disk }, "what is there is used as it is");
        let words = ["bench", &local, "-p", "B4-T1-O8-W100-PR", "--destroy-data", "--for", "1s"];
        let said = run(words);
        assert!(matches!(said.code, Some(0 | 3)), "{}", said.err);
    }
    assert!(cluster.await_redundancy(LIMIT, &stop).unwrap());

    let slow = FaultKind::SlowDevice { by: TimeSpan(Duration::from_millis(5)) };
    for what in [FaultKind::Kill, FaultKind::Freeze, FaultKind::Cut, FaultKind::FailDevice, slow] {
        cluster.inject(&fault(what, "node-2"), &stop).unwrap();
        if what != slow {
            eventually(&format!("{what:?} is seen"), LIMIT, || {
                cluster.health().is_ok_and(|health| !health.is_redundant())
            });
        }
        let twice = cluster.inject(&fault(FaultKind::Kill, "node-2"), &stop).unwrap_err();
        assert!(twice.kind == ErrorKind::Usage && twice.message.contains("return first"), "{twice}");
        cluster.inject(&fault(FaultKind::Return, "node-2"), &stop).unwrap();
        assert!(cluster.await_redundancy(LIMIT, &stop).unwrap(), "{what:?}: {:?}", cluster.health());
    }

    cluster.inject(&fault(FaultKind::Kill, "node-1"), &stop).unwrap();
    let last = cluster.inject(&fault(FaultKind::Kill, "node-2"), &stop).unwrap_err();
    assert!(last.kind == ErrorKind::Usage && last.message.contains("no copy of volume"), "{last}");
    let forced = Fault { force: true, ..fault(FaultKind::Kill, "node-2") };
    cluster.inject(&forced, &stop).unwrap();
    assert_eq!((cluster.pid("node-1"), cluster.pid("node-2")), (None, None));
    let unknown = cluster.inject(&fault(FaultKind::Kill, "node-9"), &stop).unwrap_err();
    assert!(unknown.message.contains("no node node-9") && unknown.message.contains("node-3"), "{unknown}");
    let up = cluster.inject(&fault(FaultKind::Return, "node-3"), &stop).unwrap_err();
    assert!(up.message.contains("the node has no fault"), "{up}");
    cluster.stop();

    // Found again, all of it is whole again.
    let cluster = Cluster::start(spec(folder.path()), &stop).unwrap();
    cluster.volume(&volume(1)).unwrap();
    assert!(cluster.await_redundancy(LIMIT, &stop).unwrap(), "{:?}", cluster.health());
    let pids: Vec<u32> = (1..=3).filter_map(|n| cluster.pid(&format!("node-{n}"))).collect();
    assert_eq!(pids.len(), 3);
    drop(cluster);
    for pid in pids {
        assert!(!Path::new(&format!("/proc/{pid}")).exists(), "{pid} is left");
    }
}

#[test]
fn a_node_is_filled_and_emptied_and_the_rest_goes_on() {
    let folder = folder();
    let stop = AtomicBool::new(false);
    let mut cluster = Cluster::start(spec(folder.path()), &stop).unwrap();
    let disks: Vec<Disk> = (1..=2).map(|number| cluster.volume(&volume(number)).unwrap()).collect();
    let more = VolumeSpec { name: "more".into(), copies: 3, ..volume(1) };
    let whole = cluster.health().unwrap();
    cluster.inject(&fault(FaultKind::Fill, "node-2"), &stop).unwrap();
    assert_eq!(cluster.health().unwrap(), whole, "what fills the device is not a volume of the cluster");
    let full = cluster.volume(&more).unwrap_err();
    assert!(full.message.contains("add a device"), "{full}");
    let twice = cluster.inject(&fault(FaultKind::Kill, "node-2"), &stop).unwrap_err();
    assert!(twice.kind == ErrorKind::Usage && twice.message.contains("return first"), "{twice}");
    // It owns what it owns, and has room for what it was promised.
    for disk in &disks {
        let local = disk.local.to_string();
        let load = ["-p", "B64-T1-O8-W100-PS", "--destroy-data", "--warm-up", "0s", "--for", "2s"];
        let said = run([&["bench", &*local][..], &load].concat());
        assert!(matches!(said.code, Some(0 | 3)), "{}{}", said.out, said.err);
    }
    // Another fault beside it is not refused for the one copy of what fills it.
    cluster.inject(&fault(FaultKind::Kill, "node-3"), &stop).unwrap();
    cluster.inject(&fault(FaultKind::Return, "node-3"), &stop).unwrap();
    assert!(cluster.await_redundancy(LIMIT, &stop).unwrap(), "{:?}", cluster.health());
    cluster.inject(&fault(FaultKind::Return, "node-2"), &stop).unwrap();
    cluster.volume(&more).unwrap();
    // What a run left behind that was stopped is gone at the next start.
    cluster.inject(&fault(FaultKind::Fill, "node-3"), &stop).unwrap();
    cluster.stop();
    let mut cluster = Cluster::start(spec(folder.path()), &stop).unwrap();
    assert!(cluster.await_redundancy(LIMIT, &stop).unwrap(), "{:?}", cluster.health());
    let none = cluster.inject(&fault(FaultKind::Return, "node-3"), &stop).unwrap_err();
    assert!(none.message.contains("the node has no fault"), "{none}");
    cluster.stop();
}

#[test]
fn a_cluster_waits_for_the_nodes_of_a_run_that_was_killed() {
    let folder = folder();
    let stop = AtomicBool::new(false);
    let nodes = vec!["node-1".into(), "node-2".into()];
    let small = ClusterSpec { nodes, device: ByteSize(1 << 29), ..spec(folder.path()) };
    Cluster::start(small.clone(), &stop).unwrap().stop();
    let network: Ipv4Addr =
        std::fs::read_to_string(folder.path().join("network")).unwrap().trim().parse().unwrap();
    let node = Ipv4Addr::from_bits(network.to_bits() + 1);
    let other = TcpListener::bind((node, 7400)).unwrap();
    let ends = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        drop(other);
    });
    Cluster::start(small, &stop).unwrap().stop();
    ends.join().unwrap();
}

#[test]
fn a_volume_that_does_not_follow_its_machine_is_attached_where_the_machine_is() {
    let folder = folder();
    let stop = AtomicBool::new(false);
    let cluster = Cluster::start(spec(folder.path()), &stop).unwrap();
    let disk = cluster.volume(&volume(1)).unwrap();
    // It waits there for a machine that never starts.
    let there = cluster.at_destination(&volume(1), &disk.local, "node-2").unwrap();
    assert_ne!(there, disk.local);
    cluster.await_owner(&volume(1), &there, "node-2", &stop).unwrap();
    let words = [
        "bench",
        &there.to_string(),
        "-p",
        "B4-T1-O8-W100-PR",
        "--destroy-data",
        "--warm-up",
        "0s",
        "--for",
        "1s",
    ];
    let said = run(words);
    assert!(matches!(said.code, Some(0 | 3)), "{}{}", said.out, said.err);
    // A machine that reaches it by something else is not helped by that, and it is said.
    let wrong = cluster.await_owner(&volume(1), &disk.local, "node-3", &stop).unwrap_err();
    assert!(
        wrong.message.contains("did not follow its machine to node-3")
            && wrong.message.contains("reaches it by"),
        "{wrong}"
    );
    drop(cluster);
}

#[test]
fn what_the_nodes_count_is_what_was_asked_and_each_copy_is_logged_once() {
    let folder = folder();
    let stop = AtomicBool::new(false);
    let mut cluster = Cluster::start(spec(folder.path()), &stop).unwrap();
    let disk = cluster.volume(&volume(1)).unwrap();
    let before = cluster.counters().unwrap();
    let local = disk.local.to_string();
    let load = ["-p", "B4-T1-O8-W50-PR", "--destroy-data", "--warm-up", "0s", "--for", "2s"];
    let said = run([&["bench", &*local][..], &load].concat());
    assert!(matches!(said.code, Some(0 | 3)), "{}{}", said.out, said.err);
    let counted = cluster.counters().unwrap().since(&before).unwrap();
    let total = counted.total();
    assert_eq!(counted.nodes["node-1"].front_reads, total.front_reads, "only its owner counts what is asked");
    assert!(total.front_reads > 0 && total.front_errors == 0, "{total:?}");
    assert_eq!(total.front_write_bytes, 4096 * total.front_writes);
    // Two copies, each with a header of a sector; and beside them what replicas keep of themselves.
    let least = 2 * (total.front_write_bytes + 512 * total.front_writes);
    let over = total.log_write_bytes as f64 / least as f64;
    assert!((1.0..1.05).contains(&over), "{over}: {total:?}");
    cluster.inject(&fault(FaultKind::Kill, "node-1"), &stop).unwrap();
    let without = cluster.counters().unwrap();
    assert!(!without.nodes.contains_key("node-1") && without.since(&before).is_none());
    cluster.stop();
}

const STUDY: &str = r#"
name = "own"
profiles = ["B4-T1-O4-W50-PR"]
[target]
san = { copies = 2 }
[fleet]
nodes = 3
disk_size = "16MiB"
[phases]
warm_up = "1s"
measure = "3s"
cool_down = "0s"
[run]
repeats = 2
verify = true
"#;

/// Starts the study, and waits until so many of its steps are complete and its next one is being measured.
fn started(folder: &Path, steps: usize) -> (Child, PathBuf) {
    let (study, out) = (folder.join("own.toml"), folder.join("run"));
    std::fs::write(&study, STUDY).unwrap();
    let child = start(["run".as_ref(), study.as_os_str(), "--out".as_ref(), out.as_os_str()]);
    let begun = || std::fs::read_to_string(out.join("events.jsonl")).unwrap_or_default();
    eventually("its step is measured", Duration::from_secs(90), || {
        begun().matches("\"event\":\"starting\"").count() > steps
    });
    assert_eq!(nodes_in(folder), 3, "its nodes run");
    (child, out)
}

#[test]
fn a_study_starts_a_cluster_of_its_own_goes_on_with_it_and_leaves_nothing_behind() {
    let folder = folder();
    let (child, out) = started(folder.path(), 0);
    signal(child.id(), "INT");
    let said = finish(child, LIMIT);
    assert_eq!(said.code, Some(130), "{}", said.err);
    assert_eq!(nodes_in(folder.path()), 0, "no node is left running");
    assert!(out.join("san/cluster.db").exists(), "what was written is kept, to go on with");

    let said = run(["run".as_ref(), "--resume".as_ref(), out.as_os_str()]);
    assert!(matches!(said.code, Some(0 | 3)), "{}{}", said.out, said.err);
    assert!(said.out.contains("0 lost, 0 corrupt"), "{}", said.out);
    assert_eq!(nodes_in(folder.path()), 0);
    assert!(!out.join("san").exists(), "and removed at the end");
}

#[test]
fn a_study_that_is_killed_takes_its_nodes_with_it_and_can_be_resumed() {
    let folder = folder();
    let (mut child, out) = started(folder.path(), 1);
    child.kill().unwrap();
    child.wait().unwrap();
    eventually("its nodes end too", LIMIT, || nodes_in(folder.path()) == 0);
    let said = run(["run".as_ref(), "--resume".as_ref(), out.as_os_str()]);
    assert!(matches!(said.code, Some(0 | 3)), "{}{}", said.out, said.err);
    let events = std::fs::read_to_string(out.join("events.jsonl")).unwrap();
    assert_eq!(events.matches("\"event\":\"fill_began\"").count(), 1, "what was filled is filled: {events}");
}

#[test]
fn every_load_is_measured_healthy_with_a_node_down_and_back_again_and_no_write_is_lost() {
    let folder = folder();
    let (study, out) = (folder.path().join("three.toml"), folder.path().join("run"));
    let conditions = r#"
[[condition]]
name = "healthy"
[[condition]]
name = "one-down"
do = [{ do = "kill", node = "node-3" }]
[[condition]]
name = "recovered"
do = [{ do = "return", node = "node-3" }]
wait_redundant = "60s"
[[published]]
load = "B4-T1-O4-W50-PR"
condition = "one-down"
change = "-36%"
source = "elsewhere"
"#;
    let text = STUDY.replace("repeats = 2", "repeats = 1") + conditions;
    let modelled =
        |name: &str| text.replace("copies = 2", &format!("copies = 2, node = {{ model = \"{name}\" }}"));
    std::fs::write(&study, modelled("intel-s3600")).unwrap();
    run(["run".as_ref(), study.as_os_str(), "--plan".as_ref()])
        .refused(2, &["san.node.model", "Did you mean intel-s3500?"]);
    std::fs::write(&study, modelled("intel-s3500")).unwrap();
    let said = run(["run".as_ref(), study.as_os_str(), "--out".as_ref(), out.as_os_str()]);
    assert!(matches!(said.code, Some(0 | 3)), "{}{}", said.out, said.err);
    assert!(said.out.contains("0 lost, 0 corrupt"), "{}", said.out);
    let report: Value =
        serde_json::from_slice(&std::fs::read(out.join("report/report.json")).unwrap()).unwrap();
    let row = &report["conditions"][0]["conditions"];
    let names: Vec<&str> = row.as_array().unwrap().iter().filter_map(|one| one["name"].as_str()).collect();
    assert_eq!(names, ["healthy", "one-down", "recovered"]);
    for step in report["steps"].as_array().unwrap() {
        let is_said = |finding: &Value| {
            finding["kind"] == "modelled" && finding["found"].as_str().unwrap().contains("S3500")
        };
        assert!(step["findings"].as_array().unwrap().iter().any(is_said), "{step}");
        // Before it was measured: from the model, and from where the volumes were.
        let predicted = &step["prediction"]["iops"];
        assert!(
            predicted["low"].as_f64().unwrap() > 0.0
                && predicted["high"].as_f64() >= predicted["low"].as_f64(),
            "{predicted}"
        );
    }
    let capacity = report["capacity"].as_array().unwrap();
    assert_eq!((capacity.len(), capacity[1]["published_change"].as_f64()), (3, Some(0.64)), "{capacity:?}");
    assert!(
        said.out.contains("change predicted") && said.out.contains("Published: elsewhere."),
        "{}",
        said.out
    );
    assert!(
        row[1]["iops_ratio"]["estimate"].as_f64().unwrap() > 0.1,
        "all three workers still do I/O: {row}"
    );
    assert_eq!(report["steps"][1]["errors"], 0, "{}", report["steps"][1]);
    assert_eq!(report["steps"][1]["lost_workers"], 0);
    let events = std::fs::read_to_string(out.join("events.jsonl")).unwrap();
    let entered = events.lines().filter(|line| line.contains("condition_entered"));
    let entered: Vec<Value> = entered.map(|line| serde_json::from_str(line).unwrap()).collect();
    let alive: Vec<u64> = entered.iter().filter_map(|event| event["nodes_alive"].as_u64()).collect();
    assert_eq!(alive, [3, 2, 3]);
    assert!(entered[1]["degraded"].as_u64().unwrap() > 0 && entered[2]["degraded"] == 0, "{entered:?}");
}

#[test]
fn loads_go_on_with_a_node_that_is_slow_without_its_device_or_cut_off() {
    let folder = folder();
    let (study, out) = (folder.path().join("harmed.toml"), folder.path().join("run"));
    let conditions: String = [
        ("slow", "{ slow-device = { by = \"2ms\" } }"),
        ("without", "\"fail-device\""),
        ("cut", "\"cut\""),
        ("frozen", "\"freeze\""),
    ]
    .map(|(name, what)| {
        format!(
            "[[condition]]\nname = \"{name}\"\ndo = [{{ do = {what}, node = \"node-2\" }}]\n[[condition]]\n\
             name = \"after-{name}\"\ndo = [{{ do = \"return\", node = \"node-2\" }}]\nwait_redundant = \"60s\"\n"
        )
    })
    .concat();
    let text = STUDY.replace("repeats = 2", "repeats = 1").replace("measure = \"3s\"", "measure = \"2s\"");
    std::fs::write(&study, text + &conditions).unwrap();
    let said = run(["run".as_ref(), study.as_os_str(), "--out".as_ref(), out.as_os_str()]);
    assert!(matches!(said.code, Some(0 | 3)), "{}{}", said.out, said.err);
    assert!(said.out.contains("0 lost, 0 corrupt"), "{}", said.out);
    let report: Value =
        serde_json::from_slice(&std::fs::read(out.join("report/report.json")).unwrap()).unwrap();
    assert_eq!(report["complete"], 8);
    for step in report["steps"].as_array().unwrap() {
        assert!(step["errors"] == 0 && step["iops"].as_f64().unwrap() > 0.0, "{step}");
    }
}

/// A study of volumes of two copies in a cluster that runs already.
fn running_study(cluster: &nodes::Cluster, more: &str, run: &str) -> String {
    format!(
        "name = \"running\"\nprofiles = [\"B4-T1-O4-W50-PR\"]\n{more}\n[target]\nsan = {{ api = \"{}:7400\", log = \"32MiB\" }}\n\
         [fleet]\nnodes = 3\ndisk_size = \"32MiB\"\n[phases]\nwarm_up = \"0s\"\nmeasure = \"3s\"\ncool_down = \"0s\"\n[run]\n{run}\n",
        cluster.address(3)
    )
}

/// The results of a run's complete steps, in their order.
fn results(run: &Path) -> Vec<Value> {
    let mut steps: Vec<_> =
        std::fs::read_dir(run.join("steps")).unwrap().flatten().map(|step| step.path()).collect();
    steps.sort();
    let files = steps.iter().map(|step| step.join("result.json")).filter(|file| file.exists());
    files.map(|file| serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()).collect()
}

fn volumes_of(cluster: &nodes::Cluster) -> Vec<(String, String)> {
    let status: Value = serde_json::from_str(&cluster.http(1, "/v1/status")).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    let volumes = status["volumes"].as_array().unwrap();
    volumes.iter().map(|one| (text(&one["name"]), text(&one["owner"]))).collect()
}

#[test]
fn a_study_measures_a_cluster_that_runs_already_and_leaves_it_as_it_was() {
    let cluster = nodes::Cluster::start_with(3, &[], "test_faults = true");
    cluster.loadline(&[
        "volume",
        "create",
        "of-others",
        "--size",
        "16MiB",
        "--log",
        "32MiB",
        "--copies",
        "2",
    ]);
    let folder = folder();
    let file = folder.path().join("study.toml");
    let slow = "faults = [{ at = \"1s\", do = { slow-device = { by = \"5ms\" } }, node = \"node-2\" }]";
    std::fs::write(&file, running_study(&cluster, slow, "repeats = 1\nverify = true")).unwrap();
    let out = folder.path().join("run");
    let said = run(["run", file.to_str().unwrap(), "--out", out.to_str().unwrap()]);
    assert!(matches!(said.code, Some(0 | 3)), "{}{}", said.out, said.err);
    let step = &results(&out)[0];
    assert!(step["timeline"]["events"][0]["failed"].is_null(), "{}", step["timeline"]);
    assert!(step["verify"]["bad"].is_null() || step["verify"]["bad"] == 0, "{}", step["verify"]);
    assert_eq!(step["workers"].as_array().unwrap().len(), 3);
    let left: Vec<String> = volumes_of(&cluster).into_iter().map(|(name, _)| name).collect();
    assert_eq!(left, ["of-others"]);
    assert!(!out.join("cluster").exists(), "it starts no cluster");

    volumes_that_others_move_or_remove(&cluster, folder.path());
}

/// The limit of each volume of the cluster: requests a second, if it is limited.
fn limits_of(cluster: &nodes::Cluster) -> Vec<Option<u64>> {
    // Whatever the health is: volumes are being made meanwhile.
    let status: Value = serde_json::from_str(&cluster.http(1, "/v1/status")).unwrap();
    status["volumes"].as_array().unwrap().iter().map(|one| one["limit"]["iops"].as_u64()).collect()
}

#[test]
fn a_study_varies_the_limit_of_its_volumes_and_leaves_none_limited() {
    let cluster = nodes::Cluster::start_with(3, &[], "");
    let folder = folder();
    let (file, out) = (folder.path().join("study.toml"), folder.path().join("run"));
    let varied = "[matrix]\nvolume_limit = [\"none\", { iops = 50 }]";
    std::fs::write(&file, running_study(&cluster, varied, "repeats = 1\nverify = true")).unwrap();
    let child = start(["run", file.to_str().unwrap(), "--out", out.to_str().unwrap()]);
    eventually("its volumes are limited", LIMIT, || limits_of(&cluster) == [Some(50); 3]);
    signal(child.id(), "INT");
    let said = finish(child, LIMIT);
    assert_eq!(said.code, Some(130), "{}", said.err);
    assert_eq!(limits_of(&cluster), [None; 3], "the volumes are kept to go on with, and none is limited");

    let said = run(["run".as_ref(), "--resume".as_ref(), out.as_os_str()]);
    assert!(matches!(said.code, Some(0 | 3)), "{}{}", said.out, said.err);
    assert!(said.out.contains("limited to 50 requests a second"), "{}", said.out);
    assert_eq!(limits_of(&cluster), []);
    let results = results(&out);
    let iops = |at: usize| results[at]["figures"]["total"]["iops"].as_f64().unwrap();
    // Three volumes, and a tenth of a second of 3 s that may be caught up.
    assert!(iops(1) <= 155.0 * 1.01 && iops(0) > iops(1), "{} {}", iops(0), iops(1));
    assert_eq!(results[1]["step"]["volume_limit"]["iops"], 50);
    assert!(results[0]["step"]["volume_limit"].is_null());
}

/// Starts a run, and returns it with one of its volumes when its first step is complete.
fn begun(cluster: &nodes::Cluster, study: &Path, out: &Path) -> (Child, String) {
    let child = start(["run", study.to_str().unwrap(), "--out", out.to_str().unwrap()]);
    let events = || std::fs::read_to_string(out.join("events.jsonl")).unwrap_or_default();
    eventually("a step is complete", LIMIT, || events().contains("step_complete"));
    let volumes = volumes_of(cluster);
    let (name, _) = volumes.iter().find(|(_, owner)| owner == "node-1").expect("one is there");
    (child, name.clone())
}

/// A volume of the run that someone moves is moved back before the next step; without one that someone removed the run ends.
fn volumes_that_others_move_or_remove(cluster: &nodes::Cluster, folder: &Path) {
    let file = folder.join("three.toml");
    std::fs::write(&file, running_study(cluster, "", "repeats = 3")).unwrap();
    let out = folder.join("moved");
    let (child, name) = begun(cluster, &file, &out);
    cluster.loadline(&["volume", "attach", &name, "--node", "node-2"]);
    let said = finish(child, LIMIT);
    assert!(matches!(said.code, Some(0 | 3)), "{}{}", said.out, said.err);
    let last = &results(&out)[2];
    assert!(
        last["workers"].as_array().unwrap().iter().all(|one| one["lost"].is_null()),
        "{}",
        last["workers"]
    );
    assert_eq!(last["figures"]["errors"], 0);

    let out = folder.join("removed");
    let (child, name) = begun(cluster, &file, &out);
    cluster.loadline(&["volume", "detach", &name, "--force"]);
    cluster.loadline(&["volume", "delete", &name, "--confirm", &name]);
    let said = finish(child, LIMIT);
    said.refused(1, &[&name, "was removed by someone else"]);
}
