//! Devices with roles: logs on log devices, data on capacity devices.

mod nodes;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nodes::Cluster;
use nodes::client::{Nbd, Writers};
use serde_json::Value;

const HEALTHY: Duration = Duration::from_secs(30);

/// The path of a device, as nothing has it yet.
fn path(cluster: &Cluster, node: u8, name: &str) -> String {
    cluster.node_folder(node).join(name).to_str().expect("it is text").into()
}

/// Adds a device with a role to a node. Its id, and what the command said.
fn add(cluster: &Cluster, node: u8, name: &str, size: &str, role: &str) -> (u64, String) {
    let path = path(cluster, node, name);
    let said = cluster.loadline_at(node, &["device", "add", &path, "--create", size, "--role", role]);
    (device(cluster, &path)["id"].as_u64().expect("it has one"), said)
}

fn devices(cluster: &Cluster) -> Vec<Value> {
    serde_json::from_str(&cluster.loadline(&["device", "list", "--json"])).expect("it is JSON")
}

fn device(cluster: &Cluster, path: &str) -> Value {
    devices(cluster).into_iter().find(|device| device["path"] == path).expect("it was added")
}

/// The copies of a volume.
fn copies(cluster: &Cluster, volume: &str) -> Vec<Value> {
    let shown: Value =
        serde_json::from_str(&cluster.loadline(&["volume", "show", volume, "--json"])).unwrap();
    shown["replicas"].as_array().expect("it has some").clone()
}

/// The device with the data and the device with the log of the copy of a volume at a node.
fn home(cluster: &Cluster, volume: &str, node: u8) -> (u64, u64) {
    let name = format!("node-{node}");
    let copies = copies(cluster, volume);
    let copy = copies.iter().find(|copy| copy["node"] == name.as_str()).expect("it has one there");
    let of = |what: &str| copy[what].as_u64().expect("it has one");
    (of("device"), of("log_device"))
}

/// A device that was replaced is removed when it has nothing any more.
fn wait_until_removed(cluster: &Cluster, id: u64) {
    let begun = Instant::now();
    while devices(cluster).iter().any(|device| device["id"] == id) {
        assert!(begun.elapsed() < HEALTHY, "device {id} is removed: {:?}", devices(cluster));
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn create(cluster: &Cluster, name: &str, more: &[&str]) -> (i32, String) {
    let kind = ["volume", "create", name, "--size", "64MiB", "--log", "32MiB"];
    cluster.try_loadline(&[&kind[..], more].concat())
}

fn writers(cluster: &Cluster, volume: &str, stop: &Arc<AtomicBool>) -> Writers {
    let writers = Writers::start(&cluster.addresses(), volume, 4, stop.clone());
    writers.wait_for(200);
    writers
}

/// The state of the copy of a volume at a node, when it is another than `in sync`.
fn state_when_lost(cluster: &Cluster, volume: &str, node: u8) -> String {
    cluster.wait_until_not(volume, "healthy", Duration::from_secs(15));
    let name = format!("node-{node}");
    let copies = copies(cluster, volume);
    let copy = copies.iter().find(|copy| copy["node"] == name.as_str()).expect("it has one there");
    copy["state"].as_str().expect("it has one").into()
}

#[test]
fn a_copy_has_its_log_on_a_log_device_and_its_data_on_a_capacity_device() {
    let mut cluster = Cluster::start_bare(2, "test_faults = true");
    // Data alone is of no use.
    let (capacity, said) = add(&cluster, 1, "capacity", "1GiB", "capacity");
    assert!(said.contains("no log device"), "{said}");
    assert!(
        cluster.loadline(&["device", "list"]).contains("it gets no copies, since its node has no log device")
    );
    let (code, said) = create(&cluster, "disk", &["--copies", "1"]);
    assert!(code == 2 && said.contains("no node with room for the data has a log device"), "{code}: {said}");
    // Nor is a log alone.
    let (log, said) = add(&cluster, 2, "logs", "256MiB", "log");
    assert!(said.contains("no capacity device"), "{said}");
    assert_eq!(create(&cluster, "disk", &["--copies", "1", "--at", "node-2"]).0, 2);
    let ((first, _), (second, _)) =
        (add(&cluster, 1, "log-a", "256MiB", "log"), add(&cluster, 1, "log-b", "256MiB", "log"));
    let (other, _) = add(&cluster, 2, "capacity", "1GiB", "capacity");
    let roles: Vec<Value> = devices(&cluster).iter().map(|device| device["role"].clone()).collect();
    assert_eq!(roles, ["capacity", "log", "log", "log", "capacity"]);

    // What is given twice, by any name and by any node, is refused.
    let link = cluster.folder().join("another-name");
    let original = path(&cluster, 1, "log-a");
    std::os::unix::fs::symlink(&original, &link).expect("there is room");
    for (node, path) in [(1, PathBuf::from(&original)), (1, link.clone()), (2, link)] {
        let path = path.to_str().expect("it is text");
        let add = ["device", "add", path, "--role", "log", "--overwrite"];
        let (code, said) = cluster.run_at(node, &add);
        assert!(
            code != 0 && (said.contains("is device") || said.contains("in use")),
            "{path}: {code}: {said}"
        );
    }

    // Two volumes share a capacity device, and each has a log device of its own.
    for name in ["one", "two"] {
        let (code, said) = create(&cluster, name, &["--copies", "2", "--at", "node-1", "--attach"]);
        assert_eq!(code, 0, "{said}");
    }
    assert_eq!(home(&cluster, "one", 1), (capacity, first));
    assert_eq!(home(&cluster, "two", 1), (capacity, second));
    assert_eq!([home(&cluster, "one", 2), home(&cluster, "two", 2)], [(other, log); 2]);
    assert!(cluster.loadline(&["volume", "show", "one"]).contains(&format!("{capacity} (log {first})")));
    let stop = Arc::new(AtomicBool::new(false));
    let of_one = writers(&cluster, "one", &stop);
    let of_two = writers(&cluster, "two", &stop);

    // A node that is killed finds both parts of its copies again.
    cluster.kill(2);
    of_one.wait_for(100);
    cluster.start_node(2);
    ["one", "two"].iter().for_each(|volume| _ = cluster.wait_until(volume, "healthy", HEALTHY));

    // A log device that fails costs those copies whose logs it has.
    let fault = format!(r#"{{"fault": "fail_device", "device": {first}}}"#);
    assert_eq!(cluster.request(1, "POST", "/v1/test-faults", &fault).0, 200);
    of_one.wait_for(100);
    assert_eq!(state_when_lost(&cluster, "one", 1), "failed");
    let shown = cluster.loadline(&["volume", "show", "one"]);
    assert!(shown.contains(&format!("loadline device replace {first}")), "{shown}");
    of_two.wait_for(100);
    assert!(cluster.loadline(&["volume", "show", "two"]).contains("state     healthy"));

    // Its replacement has its role, and gets the logs; the data has to come from the other copy.
    let new = path(&cluster, 1, "log-c");
    let said = cluster
        .loadline_at(1, &["device", "replace", &first.to_string(), "--with", &new, "--create", "256MiB"]);
    cluster.wait_until("one", "healthy", HEALTHY);
    let new = device(&cluster, &new);
    assert_eq!(new["role"], "log", "{said}");
    wait_until_removed(&cluster, first);
    assert_eq!(home(&cluster, "one", 1), (capacity, new["id"].as_u64().unwrap()));
    assert_eq!(home(&cluster, "two", 1), (capacity, second));

    // A capacity device is replaced under load, and its copies keep their log devices.
    let new = path(&cluster, 1, "capacity-b");
    cluster.loadline_at(1, &["device", "replace", &capacity.to_string(), "--with", &new, "--create", "1GiB"]);
    let new = device(&cluster, &new)["id"].as_u64().unwrap();
    wait_until_removed(&cluster, capacity);
    assert_eq!([home(&cluster, "one", 1).0, home(&cluster, "two", 1).0], [new; 2]);
    of_one.wait_for(100);
    of_two.wait_for(100);
    stop.store(true, Ordering::Relaxed);
    let (of_one, of_two) = (of_one.join(), of_two.join());
    of_one.check(&cluster.addresses(), "one");
    of_two.check(&cluster.addresses(), "two");

    // What is on the devices of a node that does not run.
    cluster.kill(2);
    let (log, capacity) = (path(&cluster, 2, "logs"), path(&cluster, 2, "capacity"));
    let (code, said) = cluster.try_loadline(&["san", "verify", &log, "--capacity", &capacity]);
    assert!(code == 0 && said.matches("replica ").count() >= 2, "{code}: {said}");
    let (code, said) = cluster.try_loadline(&["san", "verify", &log]);
    assert!(code == 1 && said.contains("--capacity"), "{code}: {said}");
    let (code, said) = cluster.try_loadline(&["san", "dump", &capacity]);
    assert!(code == 0 && said.contains("whose logs are on a log device"), "{code}: {said}");
}

/// The data of a copy is of no use without its log. If a capacity device has no room for another copy beside it, it gives way.
#[test]
fn a_log_device_that_fails_is_replaced_although_its_capacity_device_has_no_room_for_another_copy() {
    let cluster = Cluster::start_bare(2, "test_faults = true");
    for node in [1, 2] {
        add(&cluster, node, "logs", "128MiB", "log");
        add(&cluster, node, "capacity", "128MiB", "capacity");
    }
    let (code, said) = create(&cluster, "disk", &["--copies", "2", "--at", "node-2", "--attach"]);
    assert_eq!(code, 0, "{said}");
    let (capacity, log) = home(&cluster, "disk", 1);
    let (code, said) = create(&cluster, "other", &["--copies", "1"]);
    assert!(code == 2 && said.contains("there is no room"), "{code}: {said}");
    let stop = Arc::new(AtomicBool::new(false));
    let writers = writers(&cluster, "disk", &stop);
    let fault = format!(r#"{{"fault": "fail_device", "device": {log}}}"#);
    assert_eq!(cluster.request(1, "POST", "/v1/test-faults", &fault).0, 200);
    assert_eq!(state_when_lost(&cluster, "disk", 1), "failed");
    let new = path(&cluster, 1, "new-logs");
    cluster.loadline_at(1, &["device", "replace", &log.to_string(), "--with", &new, "--create", "128MiB"]);
    cluster.wait_until("disk", "healthy", HEALTHY);
    let new = device(&cluster, &new)["id"].as_u64().unwrap();
    wait_until_removed(&cluster, log);
    assert_eq!(home(&cluster, "disk", 1), (capacity, new));
    writers.wait_for(100);
    stop.store(true, Ordering::Relaxed);
    writers.join().check(&cluster.addresses(), "disk");
}

/// A figure of the read cache of the copy of a volume at a node.
fn cache_figure(cluster: &Cluster, node: u8, name: &str, volume: &str) -> u64 {
    let metrics = cluster.http(node, "/metrics");
    let begins = format!("loadline_cache_{name}{{volume=\"{volume}\"");
    let line = metrics.lines().find(|line| line.starts_with(&begins));
    let value = line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    value.unwrap_or_else(|| panic!("{begins} is among {metrics}")) as u64
}

fn wait_for_cache(cluster: &Cluster, volume: &str, is: impl Fn(u64) -> bool) {
    let begun = Instant::now();
    while !is(cache_figure(cluster, 1, "bytes", volume)) {
        assert!(begun.elapsed() < HEALTHY, "the cache has {}", cache_figure(cluster, 1, "bytes", volume));
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_read_cache_has_what_is_read_again_and_is_given_back() {
    let mut cluster = Cluster::start_bare(1, "");
    add(&cluster, 1, "logs", "128MiB", "log");
    add(&cluster, 1, "capacity", "1GiB", "capacity");
    for name in ["disk", "other"] {
        let (code, said) = create(&cluster, name, &["--copies", "1", "--attach"]);
        assert_eq!(code, 0, "{said}");
    }
    for (size, says) in [
        (&["--size", "1MiB"][..], "at least 4MiB"),
        (&["--size", "0"], "--none"),
        (&["--size", "100MiB"], "no room for the read cache"),
        (&["--size", "8MiB", "--none"], "cannot be used with"),
        (&[], "required"),
    ] {
        let (code, said) = cluster.try_loadline(&[&["volume", "cache", "disk"][..], size].concat());
        assert!(code == 2 && said.contains(says), "{size:?}: {code}: {said}");
    }
    let free = |cluster: &Cluster| devices(cluster)[0]["taken"].as_u64().unwrap();
    let before = free(&cluster);
    cluster.loadline(&["volume", "cache", "disk", "--size", "16MiB"]);
    assert!(cluster.loadline(&["volume", "show", "disk"]).contains("cache     16MiB of each copy"));
    wait_for_cache(&cluster, "disk", |bytes| bytes >= 16 << 20);
    cluster.loadline(&["volume", "cache", "disk", "--size", "8MiB"]);
    wait_for_cache(&cluster, "disk", |bytes| (8 << 20..16 << 20).contains(&bytes));
    cluster.loadline(&["volume", "cache", "disk", "--size", "16MiB"]);
    wait_for_cache(&cluster, "disk", |bytes| bytes >= 16 << 20);
    // No other cache is promised its room.
    let (code, said) = cluster.try_loadline(&["volume", "cache", "other", "--size", "24MiB"]);
    assert!(code == 2 && said.contains("no room for the read cache"), "{code}: {said}");

    let mut client = Nbd::connect(cluster.address(1), "disk").unwrap();
    let blocks = || 0..200u64;
    blocks().for_each(|block| client.write(block, block as u8 + 1).unwrap());
    // An idle node destages: from then on reads come from the capacity device.
    let begun = Instant::now();
    while cache_figure(&cluster, 1, "misses_total", "disk") == 0 {
        assert!(begun.elapsed() < HEALTHY, "the log is destaged");
        assert_eq!(client.read(0).unwrap(), 1);
        std::thread::sleep(Duration::from_millis(50));
    }
    let begun = Instant::now();
    while cache_figure(&cluster, 1, "hits_total", "disk") < 400 {
        assert!(begun.elapsed() < HEALTHY, "{}", cluster.http(1, "/metrics"));
        blocks().for_each(|block| assert_eq!(client.read(block).unwrap(), block as u8 + 1));
    }
    // What is written is newer than what the cache has, also when it is destaged.
    for round in 2..5 {
        blocks().for_each(|block| client.write(block, block as u8 + round).unwrap());
        for _ in 0..3 {
            blocks().for_each(|block| assert_eq!(client.read(block).unwrap(), block as u8 + round));
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    // It is lost without harm, and comes back empty.
    cluster.kill(1);
    cluster.start_node(1);
    let mut client = Nbd::connect(cluster.address(1), "disk").unwrap();
    wait_for_cache(&cluster, "disk", |bytes| bytes >= 16 << 20);
    for _ in 0..3 {
        blocks().for_each(|block| assert_eq!(client.read(block).unwrap(), block as u8 + 4));
    }
    cluster.loadline(&["volume", "cache", "disk", "--none"]);
    wait_for_cache(&cluster, "disk", |bytes| bytes == 0);
    blocks().for_each(|block| assert_eq!(client.read(block).unwrap(), block as u8 + 4));
    assert_eq!(free(&cluster), before);
    cluster.loadline(&["volume", "cache", "other", "--size", "24MiB"]);
    wait_for_cache(&cluster, "other", |bytes| bytes >= 24 << 20);
}
