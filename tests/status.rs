//! What a status shows is so at that moment.

mod nodes;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use nodes::{Cluster, client};

/// The health of each volume, as a node shows it.
fn healthy(cluster: &Cluster, node: u8) -> BTreeSet<String> {
    let (status, body) = cluster.request(node, "GET", "/v1/status", "");
    assert_eq!(status, 200, "{body}");
    let shown: serde_json::Value = serde_json::from_str(&body).expect("it is JSON");
    let volumes = shown["volumes"].as_array().expect("there are some");
    let healthy = volumes.iter().filter(|volume| volume["health"] == "healthy");
    healthy.map(|volume| volume["name"].as_str().expect("it has one").to_owned()).collect()
}

/// After all nodes were killed and started, a volume is healthy only when it is read from at once.
#[test]
fn a_volume_is_not_healthy_before_it_is_served() {
    let mut cluster = Cluster::start(3);
    let names: Vec<String> = (1..=6).map(|number| format!("disk-{number}")).collect();
    for (name, node) in names.iter().zip([1, 2, 3, 1, 2, 3]) {
        let copies = if node == 3 { "3" } else { "2" };
        cluster
            .loadline(&["volume", "create", name, "--size", "16MiB", "--copies", copies, "--log", "32MiB"]);
        cluster.loadline(&["volume", "attach", name, "--node", &format!("node-{node}")]);
    }
    for _ in 0..2 {
        (1..=3).for_each(|node| cluster.kill(node));
        (1..=3).for_each(|node| cluster.start_node(node));
        let begun = Instant::now();
        let mut seen = BTreeSet::new();
        let mut asked = 0;
        while seen.len() < names.len() {
            asked = asked % 3 + 1;
            for name in healthy(&cluster, asked) {
                if seen.insert(name.clone()) {
                    let took = client::read_once(cluster.addresses()[0], &name).expect("it is served");
                    let after = begun.elapsed();
                    println!("{name}: healthy and read in {took:?}, {after:?} after the start");
                    assert!(took < Duration::from_millis(400), "{name} was not served: {took:?}");
                }
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "only {seen:?} are healthy");
        }
    }
    let (code, shown) = cluster.try_loadline(&["san", "status", "--probe"]);
    assert!(code == 0 && shown.matches("probe of disk-").count() == names.len(), "{code}: {shown}");
    assert!(!shown.contains("not read"), "{shown}");
    let (_, json) = cluster.try_loadline(&["san", "status", "--probe", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("it is JSON");
    assert!(json["probes"][0]["milliseconds"].as_f64().is_some_and(|took| took > 0.0), "{json}");
}

/// Waits until the status ends with this code. What it shows.
fn wait_for_exit(cluster: &Cluster, code: i32) -> String {
    let begun = Instant::now();
    loop {
        let (ended, shown) = cluster.try_loadline(&["san", "status"]);
        if ended == code {
            return shown;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "it is to end with {code}: {ended}: {shown}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A node that does not find its device, or finds another one there, does not use the copies that should be on it; and that is what is
/// shown of them.
#[test]
fn copies_on_missing_and_exchanged_devices_are_shown_as_what_they_are() {
    let mut cluster = Cluster::start(3);
    // One copy at each node, and both copies of the second volume on what is exchanged.
    cluster.loadline(&["volume", "create", "three", "--size", "16MiB", "--copies", "3"]);
    cluster.loadline(&["volume", "create", "two", "--size", "16MiB", "--copies", "1", "--at", "node-1"]);
    for name in ["three", "two"] {
        cluster.loadline(&["volume", "attach", name, "--node", "node-1"]);
    }
    wait_for_exit(&cluster, 0);
    (1..=3).for_each(|node| cluster.kill(node));
    exchange_devices(&cluster);
    (1..=3).for_each(|node| cluster.start_node(node));
    let begun = Instant::now();
    let mut last = String::new();
    while begun.elapsed() < Duration::from_secs(6) {
        let (code, shown) = cluster.try_loadline(&["san", "status"]);
        assert!(code == 1 || code == 3, "a copy is missing: {code}: {shown}");
        assert!(!shown.contains("healthy"), "{shown}");
        last = shown;
    }
    assert!(last.contains("of the cluster, and not"), "it says which: {last}");
    assert!(last.contains(&cluster.device(1)) && last.contains(&cluster.device(2)), "{last}");
    assert!(
        last.contains("every write of the volume is stored only at node-1 (device"),
        "what is waited for: {last}"
    );
    let (code, _) = cluster.try_loadline(&["san", "status"]);
    assert_eq!(code, 1, "one volume waits");
    // The third copy serves alone.
    client::read_once(cluster.addresses()[2], "three").expect("it has everything");
    (1..=3).for_each(|node| cluster.kill(node));
    exchange_devices(&cluster);
    (1..=3).for_each(|node| cluster.start_node(node));
    wait_for_exit(&cluster, 0);

    // One that is missing.
    cluster.kill(2);
    let away = format!("{}.away", cluster.device(2));
    std::fs::rename(cluster.device(2), &away).expect("it is there");
    cluster.start_node(2);
    let begun = Instant::now();
    let not_used = format!("{} does not exist", cluster.device(2));
    loop {
        let (_, shown) = cluster.try_loadline(&["volume", "show", "three"]);
        assert!(!shown.contains("returning") && !shown.contains("healthy"), "it does not come back: {shown}");
        if shown.contains("is not used") && shown.contains(&not_used) {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "{shown}");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(wait_for_exit(&cluster, 3).contains(&not_used));
    std::fs::rename(&away, cluster.device(2)).expect("it is there");
    wait_for_exit(&cluster, 0);
}

/// A node waits for a device that another process holds, as it does for one that hangs. Its store is well, and no status says anything else.
#[test]
fn a_device_that_is_waited_for_is_no_store_that_is_away() {
    let mut cluster = Cluster::start(2);
    cluster.loadline(&["volume", "create", "disk", "--size", "16MiB", "--copies", "2", "--at", "node-1"]);
    cluster.loadline(&["volume", "attach", "disk", "--node", "node-1"]);
    wait_for_exit(&cluster, 0);
    cluster.kill(2);
    let device = std::fs::File::options().read(true).write(true).open(cluster.device(2));
    let device = device.expect("it is there");
    device.lock().expect("its node has ended");
    cluster.start_node(2);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(8) {
        let (_, shown) = cluster.run_at(2, &["san", "status"]);
        assert!(!shown.contains("configuration"), "{shown}");
        // Longer than a store may be silent, if only reads of a status and of the configuration counted.
        std::thread::sleep(Duration::from_millis(2_600));
    }
    drop(device);
    wait_for_exit(&cluster, 0);
}

fn exchange_devices(cluster: &Cluster) {
    let between = format!("{}.between", cluster.device(1));
    let [one, other] = [cluster.device(1), cluster.device(2)];
    for (from, to) in [(&one, &between), (&other, &one), (&between, &other)] {
        std::fs::rename(from, to).expect("it is there");
    }
}
