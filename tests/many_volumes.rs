//! Many volumes are made, attached, shown and found again like one; and what interrupted commands leave is removed.

mod nodes;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nodes::{Cluster, client};
use serde_json::Value;

/// The volumes that node 1 shows.
fn volumes(cluster: &Cluster) -> Vec<Value> {
    let (status, body) = cluster.request(1, "GET", "/v1/status", "");
    assert_eq!(status, 200, "{body}");
    let mut shown: Value = serde_json::from_str(&body).expect("it is JSON");
    serde_json::from_value(shown["volumes"].take()).expect("they are a list")
}

fn wait_until_all_are_healthy(cluster: &Cluster, count: usize) {
    let begun = Instant::now();
    loop {
        let shown = volumes(cluster);
        let healthy = shown.iter().filter(|volume| volume["health"] == "healthy").count();
        if healthy == count {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{healthy} of {count} are healthy: {shown:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn one_command_makes_and_attaches_many_volumes_and_all_of_them_come_back() {
    const COUNT: usize = 24;
    let mut cluster = Cluster::start(3);
    let kind = ["--size", "1MiB", "--log", "32MiB", "--attach", "--json"];
    let made = cluster.loadline(&[&["volume", "create", "db-{01..24}"][..], &kind].concat());
    let made: Vec<Value> = serde_json::from_str(&made).expect("it is JSON");
    assert_eq!(made.len(), COUNT);
    assert!(made.iter().all(|volume| volume["served"] == true), "{made:?}");
    let mut nodes: BTreeMap<&str, usize> = BTreeMap::new();
    made.iter().for_each(|volume| *nodes.entry(volume["node"].as_str().unwrap()).or_default() += 1);
    assert_eq!(nodes.len(), 3, "first copies are spread over the nodes: {nodes:?}");
    client::read_once(cluster.addresses()[0], "db-17").expect("it is served");

    // Any name that is taken: nothing is made.
    let (code, said) = cluster
        .try_loadline(&["volume", "create", "new", "db-07", "other", "--size", "1MiB", "--log", "32MiB"]);
    assert!(code == 2 && said.contains("there is a volume db-07 already"), "{code}: {said}");
    assert_eq!(volumes(&cluster).len(), COUNT);
    // A message does not list a hundred names.
    let (code, said) = cluster.try_loadline(&["volume", "attach", "db-99"]);
    assert!(code == 2 && said.contains(" more") && said.len() < 300, "{code}: {said}");

    // What an empty volume takes of its devices is its log, beside what is promised to it.
    let (_, status) = cluster.request(1, "GET", "/v1/status", "");
    let status: Value = serde_json::from_str(&status).unwrap();
    for device in status["devices"].as_array().unwrap() {
        let taken = device["taken"].as_u64().expect("its node reports it");
        let replicas = device["replicas"].as_u64().unwrap();
        assert!(taken <= replicas * (48 << 20), "{device}");
        assert!(taken <= device["promised"].as_u64().unwrap(), "{device}");
    }

    (1..=3).for_each(|node| cluster.kill(node));
    (1..=3).for_each(|node| cluster.start_node(node));
    wait_until_all_are_healthy(&cluster, COUNT);
    for volume in &made {
        client::read_once(cluster.addresses()[0], volume["volume"].as_str().unwrap()).expect("it is served");
    }
}

/// Commands for volumes that exist take the names that 'create' takes.
#[test]
fn many_volumes_are_attached_detached_resized_and_deleted_by_one_command() {
    let cluster = Cluster::start(2);
    let all = "db-{1..6}";
    let kind = ["--size", "1MiB", "--log", "32MiB"];
    cluster.loadline(&[&["volume", "create", all][..], &kind].concat());
    let said = cluster.loadline(&["volume", "attach", all]);
    assert!(said.contains("6 volumes (db-1, db-2, db-3 and 3 more) are attached"), "{said}");
    let said = cluster.loadline(&["volume", "resize", all, "--size", "2MiB"]);
    assert!(said.contains("have 2MiB each"), "{said}");
    assert!(
        volumes(&cluster).iter().all(|volume| volume["bytes"] == 2 << 20 && volume["attached"].is_string())
    );
    let said = cluster.loadline(&["volume", "detach", "db-{1..2}", "db-4"]);
    assert!(said.contains("3 volumes (db-1, db-2, db-4) are detached"), "{said}");
    // Some are attached still: the others are deleted, and the exit code says that it is not all.
    let (code, said) = cluster.try_loadline(&["volume", "delete", all, "--confirm", "db-{1..5}"]);
    assert!(
        code == 2 && said.contains("nothing is deleted") && said.contains("--confirm 'db-{1..6}'"),
        "{code}: {said}"
    );
    let (code, said) = cluster.try_loadline(&["volume", "delete", all, "--confirm", all]);
    assert!(
        code == 1 && said.contains("of 6 volumes 3 are deleted, 3 are not: volume db-3 is attached"),
        "{code}: {said}"
    );
    wait_for(&cluster, 1, "three are left", |shown| {
        let left = shown["volumes"].as_array().expect("it is a list").iter().map(|volume| &volume["name"]);
        left.eq(["db-3", "db-5", "db-6"].iter())
    });
    let (code, said) = cluster.try_loadline(&["volume", "detach", "db-{1..2}"]);
    assert!(code == 2 && said.contains("of 2 volumes 0 are detached, 2 are not"), "{code}: {said}");
    let (code, said) = cluster.try_loadline(&["volume", "detach", "db-{2..1}"]);
    assert!(code == 2 && said.contains("the range ends before it begins"), "{code}: {said}");
    let (code, said) = cluster.try_loadline(&["volume", "detach", "db-3", "db-5", "db-6", "--json"]);
    assert!(code == 0 && said.contains("3 volumes (db-3, db-5, db-6) are detached"), "{code}: {said}");
}

#[test]
fn a_volume_that_is_made_attached_stays_at_its_node_until_it_is_attached_elsewhere() {
    let cluster = Cluster::start(3);
    let kind = ["--size", "1MiB", "--log", "32MiB", "--at", "node-2", "--attach"];
    let said = cluster.loadline(&[&["volume", "create", "disk"][..], &kind].concat());
    assert!(said.contains("made and attached: to node node-2"), "{said}");
    assert_eq!(cluster.owner("disk"), 2);
    cluster.loadline(&["volume", "attach", "disk", "--node", "node-1"]);
    assert_eq!(cluster.owner("disk"), 1);
    cluster.loadline(&["volume", "detach", "disk"]);
    let (code, said) = cluster.try_loadline(&["volume", "create", "a{1..}", "--size", "1MiB"]);
    assert!(code == 2 && said.contains("a{1..}"), "{code}: {said}");
}

/// All copies of a device that fails are named in one commit, so that other changes wait for no more than that.
#[test]
fn a_device_that_fails_is_written_down_for_all_its_copies_at_once() {
    const COUNT: usize = 24;
    let mut cluster = Cluster::start(2);
    cluster.loadline(&["volume", "create", "db-{01..24}", "--size", "1MiB", "--log", "32MiB"]);
    let revision = |cluster: &Cluster| -> u64 {
        let store = rusqlite::Connection::open(cluster.file()).expect("it is there");
        store.query_row("SELECT number FROM revision", [], |row| row.get(0)).expect("it has one")
    };
    cluster.kill(2);
    let device = cluster.device(2);
    std::fs::rename(&device, format!("{device}-away")).expect("it is there");
    let before = revision(&cluster);
    cluster.start_node(2);
    let is_failed = |volume: &Value| {
        let replicas = volume["replicas"].as_array().expect("it is a list");
        replicas.iter().any(|of| of["node"] == "node-2" && of["state"] == "failed")
    };
    wait_for(&cluster, 1, "all copies are named", |shown| {
        shown["volumes"].as_array().expect("it is a list").iter().filter(|of| is_failed(of)).count() == COUNT
    });
    // One for the start of the node's process.
    let commits = revision(&cluster) - before;
    assert!((2..=4).contains(&commits), "{commits} commits for {COUNT} copies");
}

/// Waits until this holds of what a node shows of everything.
fn wait_for(cluster: &Cluster, node: u8, what: &str, holds: impl Fn(&Value) -> bool) {
    let begun = Instant::now();
    loop {
        let (_, body) = cluster.request(node, "GET", "/v1/status", "");
        let shown: Value = serde_json::from_str(&body).expect("it is JSON");
        if holds(&shown) {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{what}: {body}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn names(shown: &Value) -> Vec<&str> {
    shown["volumes"].as_array().expect("it is a list").iter().filter_map(|of| of["name"].as_str()).collect()
}

#[test]
fn what_an_interrupted_creation_leaves_is_removed_and_its_name_can_be_used_again() {
    let mut cluster = Cluster::start(3);
    let wanted = r#"{"names": ["db-1", "db-2"], "bytes": 1048576, "copies": 3, "log_bytes": 33554432}"#;
    let being_made = |shown: &Value| names(shown) == ["db-1", "db-2"];
    // A node that is stopped makes no copies, so the command waits.
    cluster.signal(3, "STOP");
    let client = cluster.begin_request(1, "/v1/volume-batch", wanted);
    wait_for(&cluster, 2, "they are being made", being_made);
    let (code, said) =
        cluster.try_loadline(&["volume", "create", "db-1", "--size", "1MiB", "--log", "32MiB"]);
    assert!(code != 0 && said.contains("is being made by a command at node node-1"), "{code}: {said}");
    // The client disconnects.
    drop(client);
    wait_for(&cluster, 2, "they are removed", |shown| names(shown).is_empty());
    // The node that makes them dies. Another node waits until it is sure of that, and removes what is left.
    let _client = cluster.begin_request(1, "/v1/volume-batch", wanted);
    wait_for(&cluster, 2, "they are being made", being_made);
    cluster.kill(1);
    cluster.signal(3, "CONT");
    let create = ["volume", "create", "db-1", "--size", "1MiB", "--log", "32MiB", "--attach"];
    let (code, said) = cluster.try_loadline(&create);
    assert!(code != 0 && said.contains("another node removes what was made"), "{code}: {said}");
    wait_for(&cluster, 2, "they are removed", |shown| names(shown).is_empty());
    cluster.loadline_at(2, &create);
    client::read_once(cluster.addresses()[1], "db-1").expect("it is served");
    cluster.start_node(1);
    cluster.wait_until("db-1", "healthy", Duration::from_secs(20));
}

/// A node does nothing for so long that another node takes its command for one that has ended. Its client gets to know which node.
#[test]
fn a_creation_that_another_node_has_removed_names_that_node() {
    let cluster = Cluster::start(3);
    cluster.signal(3, "STOP");
    let wanted = r#"{"names": ["db-1"], "bytes": 1048576, "copies": 3, "log_bytes": 33554432}"#;
    let mut client = cluster.begin_request(1, "/v1/volume-batch", wanted);
    wait_for(&cluster, 2, "it is being made", |shown| names(shown) == ["db-1"]);
    cluster.signal(1, "STOP");
    wait_for(&cluster, 2, "it is removed", |shown| names(shown).is_empty());
    cluster.signal(1, "CONT");
    client.set_read_timeout(Some(Duration::from_secs(30))).expect("it may be so long");
    let (mut answer, mut part) = (String::new(), [0; 4096]);
    while !answer.ends_with('}') {
        let length = std::io::Read::read(&mut client, &mut part).expect("it answers");
        assert!(length > 0, "it answers whole: {answer}");
        answer.push_str(&String::from_utf8_lossy(&part[..length]));
    }
    assert!(answer.contains("node node-2 removed what was made, because node node-1"), "{answer}");
    cluster.signal(3, "CONT");
}

/// A command that was to make a volume larger is interrupted: what was promised for that is free again, and the volume can grow later.
#[test]
fn what_an_interrupted_growth_leaves_is_free_again() {
    // Beyond 16 GiB a volume has another group. The devices have 1 GiB each, and promise more than they have.
    let mut cluster = Cluster::start_with(3, &["--overcommit", "10000"], "");
    let kind = ["--size", "1GiB", "--copies", "3", "--log", "32MiB", "--at", "node-1", "--attach"];
    cluster.loadline(&[&["volume", "create", "disk"][..], &kind].concat());
    cluster.wait_until("disk", "healthy", Duration::from_secs(20));
    let promised = |shown: &Value| -> Vec<u64> {
        let devices = shown["devices"].as_array().expect("it is a list").iter();
        devices.map(|device| device["promised"].as_u64().expect("it is a number")).collect()
    };
    let (_, status) = cluster.request(1, "GET", "/v1/status", "");
    let before = promised(&serde_json::from_str(&status).expect("it is JSON"));
    let grow = r#"{"bytes": 18253611008}"#;
    // A node that is stopped makes no copies, so the command waits.
    cluster.signal(3, "STOP");
    let client = cluster.begin_request(1, "/v1/volumes/disk/resize", grow);
    wait_for(&cluster, 2, "room is promised", |shown| promised(shown)[1] > before[1]);
    let (code, said) = cluster.try_loadline(&["volume", "resize", "disk", "--size", "18GiB"]);
    assert!(code != 0 && said.contains("another command changes the size"), "{code}: {said}");
    drop(client);
    wait_for(&cluster, 2, "it is free again", |shown| promised(shown)[1] == before[1]);
    cluster.signal(3, "CONT");
    wait_for(&cluster, 2, "also at the other node", |shown| promised(shown) == before);
    // The owner dies. The next owner does the same.
    cluster.wait_until("disk", "healthy", Duration::from_secs(20));
    cluster.signal(3, "STOP");
    let _client = cluster.begin_request(1, "/v1/volumes/disk/resize", grow);
    wait_for(&cluster, 2, "room is promised", |shown| promised(shown)[1] > before[1]);
    cluster.kill(1);
    cluster.signal(3, "CONT");
    wait_for(&cluster, 2, "it is free again", |shown| promised(shown)[1..] == before[1..]);
    cluster.start_node(1);
    wait_for(&cluster, 2, "also at the former owner", |shown| promised(shown) == before);
    cluster.wait_until("disk", "healthy", Duration::from_secs(20));
    let owner = cluster.owner("disk");
    cluster.loadline_at(owner, &["volume", "resize", "disk", "--size", "18GiB"]);
    cluster.wait_until("disk", "healthy", Duration::from_secs(20));
    assert!(
        cluster.loadline(&["volume", "show", "disk"]).contains("18GiB"),
        "{}",
        cluster.loadline(&["volume", "show", "disk"])
    );
}
