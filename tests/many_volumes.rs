//! Many volumes are made, attached, shown and found again like one.

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
