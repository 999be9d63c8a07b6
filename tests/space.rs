//! The space of devices, and copies that move from one to another.

mod nodes;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nodes::Cluster;
use nodes::client::Writers;

/// Volumes take what they have and their logs, and no reserve: as many as a device promises room for can all be written full at
/// the same time, grown ones too, and none of them is refused anything.
#[test]
fn a_device_is_promised_to_many_small_volumes() {
    const VOLUMES: usize = 5;
    let cluster = Cluster::start(1);
    let names: Vec<String> = (0..VOLUMES).map(|number| format!("disk-{number}")).collect();
    for name in &names {
        // The device has chunks of 1022 MiB, which have room for 894 MiB of data and logs.
        cluster.loadline(&["volume", "create", name, "--size", "100MiB", "--copies", "1", "--log", "32MiB"]);
        cluster.loadline(&["volume", "attach", name]);
    }
    let devices = cluster.loadline(&["device", "list", "--json"]);
    let devices: serde_json::Value = serde_json::from_str(&devices).expect("it is JSON");
    let promised = devices[0]["promised"].as_u64().expect("it is a number") >> 20;
    assert!((151 * VOLUMES as u64..160 * VOLUMES as u64).contains(&promised), "{promised} MiB");
    cluster.loadline(&["volume", "resize", &names[0], "--size", "240MiB"]);
    std::thread::scope(|scope| {
        for (number, name) in names.iter().enumerate() {
            let addresses = cluster.addresses();
            scope.spawn(move || {
                let mib = if number == 0 { 240 } else { 100 };
                let mut filler = nodes::client::Filler::new(&addresses, name);
                (0..mib)
                    .for_each(|at| filler.write(at).unwrap_or_else(|e| panic!("MiB {at} of {name}: {e}")));
                filler.check(mib);
            });
        }
    });
    // Size, promise and what is taken are in one unit, in each view.
    let devices: serde_json::Value =
        serde_json::from_str(&cluster.loadline(&["device", "list", "--json"])).expect("it is JSON");
    let shown = ["bytes", "promised", "taken"].map(|of| devices[0][of].as_u64().expect("it is a number"));
    assert!(shown[2] <= shown[1] && shown[1] <= shown[0] && shown[2] > shown[0] / 10 * 8, "{devices}");
    let (_, metrics) = cluster.request(1, "GET", "/metrics", "");
    for (name, bytes) in ["bytes", "promised_bytes", "taken_bytes"].into_iter().zip(shown) {
        let line = metrics.lines().find(|line| line.starts_with(&format!("loadline_device_{name}{{")));
        let value = line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        assert_eq!(value, Some(bytes as f64), "{line:?}");
    }
    let lines = cluster.loadline(&["watch", "--json", "--for", "4s"]);
    let now: serde_json::Value =
        serde_json::from_str(lines.lines().last().expect("there are some")).expect("it is JSON");
    assert_eq!(now["space"], serde_json::json!(shown), "{now}");
    assert_eq!(now["devices"][0]["full"], "within_promises", "{now}");
}

#[test]
fn every_byte_that_a_device_promises_can_be_written() {
    let cluster = Cluster::start(1);
    cluster.loadline(&["volume", "create", "small", "--size", "16MiB", "--copies", "1"]);
    let devices: serde_json::Value =
        serde_json::from_str(&cluster.loadline(&["device", "list", "--json"])).expect("it is JSON");
    let room = devices[0]["room"].as_u64().unwrap_or_else(|| panic!("{devices}"));
    assert!((256 << 20..768 << 20).contains(&room), "{room} of 1 GiB");
    let more = format!("{}KiB", (room >> 10) + 256);
    // The listed room is that for a volume with the smallest log.
    let create = ["volume", "create", "all", "--copies", "1", "--log", "32MiB", "--size"];
    let (code, text) = cluster.try_loadline(&[&create[..], &[&more]].concat());
    assert!(code != 0 && text.contains("add a device"), "{text}");
    let size = format!("{}KiB", room >> 10);
    cluster.loadline(&[&create[..], &[&size]].concat());
    for (volume, mib) in [("all", room >> 20), ("small", 16)] {
        cluster.loadline(&["volume", "attach", volume]);
        let mut filler = nodes::client::Filler::new(&cluster.addresses()[..1], volume);
        (0..mib).for_each(|at| filler.write(at).unwrap_or_else(|e| panic!("MiB {at} of {volume}: {e}")));
        filler.check(mib);
    }
}

/// More was promised than there is: writes are refused when a device is full, nothing that was acknowledged is lost, and what is
/// trimmed makes room.
#[test]
fn a_device_is_filled() {
    let mut cluster = Cluster::start_with(2, &["--overcommit", "400"], "");
    cluster.loadline(&["volume", "create", "disk", "--size", "2GiB"]);
    cluster.loadline(&["volume", "attach", "disk", "--node", "node-1"]);
    let mut filler = nodes::client::Filler::new(&cluster.addresses()[..1], "disk");
    let taken = filler.fill(2048);
    assert!((64..1024).contains(&taken), "{taken} MiB of a device of 1 GiB");
    filler.check(taken);
    // All of what was there goes; then there is room for others.
    filler.trim(0, taken / 2);
    let begun = Instant::now();
    while filler.write(2000).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(30), "there is room again");
        std::thread::sleep(Duration::from_millis(100));
    }
    // Both nodes find it so when they start again.
    (1..=2).for_each(|node| cluster.kill(node));
    (1..=2).for_each(|node| cluster.start_node(node));
    cluster.wait_until("disk", "healthy", Duration::from_secs(30));
    let filler = filler.again();
    filler.check_from(taken / 2, taken);
    filler.check_from(2000, 2001);
}

/// Copies move while they are written to: to another node, away from a node that is drained, to another device; and a node that
/// died goes for good.
#[test]
fn copies_move_while_they_are_used() {
    let mut cluster = Cluster::start(4);
    cluster.loadline(&["volume", "create", "disk", "--size", "32MiB", "--stripes", "2", "--at", "node-1"]);
    cluster.loadline(&["volume", "attach", "disk", "--node", "node-1"]);
    // A volume that no client uses moves too.
    cluster.loadline(&["volume", "create", "idle", "--size", "16MiB", "--copies", "1", "--at", "node-1"]);
    let stop = Arc::new(AtomicBool::new(false));
    let writers = Writers::start(&cluster.addresses(), "disk", 2, stop.clone());
    writers.wait_for(200);
    let homes = |cluster: &Cluster, volume: &str| {
        let shown = cluster.loadline(&["volume", "show", volume, "--json"]);
        let shown: serde_json::Value = serde_json::from_str(&shown).expect("it is JSON");
        let replicas = shown["replicas"].as_array().expect("it has some");
        let node = |replica: &serde_json::Value| replica["node"].as_str().expect("it has one").to_owned();
        replicas.iter().map(node).collect::<Vec<String>>()
    };
    let has = |homes: &[String], name: &str| homes.iter().any(|home| home == name);
    // What has left is listed until its room is given back.
    let leaves = |cluster: &Cluster, volume: &str, name: &str| {
        let begun = Instant::now();
        while has(&homes(cluster, volume), name) {
            assert!(begun.elapsed() < Duration::from_secs(20), "{volume} has a copy at {name}");
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    let before = homes(&cluster, "disk");
    let (from, to) = ("node-1", (2..=4).map(|node| format!("node-{node}")).find(|node| !has(&before, node)));
    // With two stripes on four nodes each may have a copy: then one is moved after another was drained.
    if let Some(to) = &to {
        cluster.loadline(&["volume", "move", "disk", "--from", from, "--to", to]);
        assert!(has(&homes(&cluster, "disk"), to));
        leaves(&cluster, "disk", from);
        writers.wait_for(100);
    }
    let said = cluster.loadline(&["node", "drain", "node-1"]);
    assert!(said.contains("drain of node node-1: done"), "{said}");
    ["disk", "idle"].iter().for_each(|volume| leaves(&cluster, volume, "node-1"));
    writers.wait_for(100);
    cluster.loadline(&["volume", "attach", "disk", "--node", "node-2"]);
    cluster.loadline(&["node", "remove", "node-1"]);
    cluster.wait_until_gone(1);
    writers.wait_for(100);
    // The device of node 2 is replaced.
    let status = cluster.loadline(&["san", "status", "--json"]);
    let status: serde_json::Value = serde_json::from_str(&status).expect("it is JSON");
    let devices = status["devices"].as_array().expect("there are some");
    let of_two = devices.iter().find(|device| device["node"] == "node-2").expect("it has one");
    let id = of_two["id"].to_string();
    let new = cluster.folder().join("new-device").to_str().expect("it is text").to_owned();
    cluster.loadline(&["device", "replace", &id, "--with", &new, "--create", "1GiB"]);
    let listed = cluster.loadline(&["device", "list"]);
    assert!(listed.contains("new-device"), "{listed}");
    writers.wait_for(100);
    // Node 3 dies, and is made up for from the copies that are left; with two nodes left there is no place for three copies.
    cluster.kill(3);
    cluster.loadline(&["node", "drain", "node-3"]);
    cluster.loadline(&["node", "remove", "node-3"]);
    cluster.wait_until("disk", "healthy", Duration::from_secs(30));
    let (code, text) = cluster.try_loadline(&["node", "drain", "node-4"]);
    assert!(
        code == 1 && text.contains("copies that cannot move now") && text.contains("has no other copy"),
        "{text}"
    );
    cluster.loadline(&["node", "drain", "node-4", "--stop"]);
    stop.store(true, Ordering::Relaxed);
    writers.join().check(&cluster.addresses()[1..], "disk");
}

/// A device has a copy that a restored configuration does not know, so it has less room than is promised. A volume for which there is none is
/// refused writes, as by any full device; the others have their room, and no copy fails.
#[test]
fn a_copy_that_a_restored_configuration_does_not_know_takes_no_room_of_others_by_surprise() {
    let mut cluster = Cluster::start(1);
    let create = |cluster: &Cluster, name: &str, size: &str, log: &str| {
        let kind = ["--size", size, "--copies", "1", "--log", log, "--attach"];
        cluster.try_loadline(&[&["volume", "create", name][..], &kind].concat())
    };
    assert_eq!(create(&cluster, "early", "64MiB", "32MiB").0, 0);
    let backup = cluster.folder().join("backup.db");
    let store = rusqlite::Connection::open(cluster.file()).expect("it is there");
    store.execute("VACUUM INTO ?1", [backup.to_str().expect("it is text")]).expect("there is room");
    drop(store);
    // A log takes its room at once.
    assert_eq!(create(&cluster, "late", "1MiB", "720MiB").0, 0);
    cluster.kill(1);
    for end in ["-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{end}", cluster.file()));
    }
    std::fs::copy(&backup, cluster.file()).expect("it is there");
    cluster.start_node(1);
    cluster.wait_until("early", "healthy", Duration::from_secs(20));
    // The first id that is free is that of the copy which is not known.
    let made = (0..4).map(|_| create(&cluster, "new", "190MiB", "32MiB")).find(|(code, _)| *code == 0);
    assert!(made.is_some(), "{}", cluster.log(1));
    let mut filler = nodes::client::Filler::new(&cluster.addresses(), "new");
    let taken = filler.fill(190);
    filler.check(taken);
    let mut early = nodes::client::Filler::new(&cluster.addresses(), "early");
    (0..64).for_each(|mib| early.write(mib).unwrap_or_else(|why| panic!("MiB {mib} after {taken}: {why}")));
    early.check(64);
    filler.check(taken);
    cluster.wait_until("new", "healthy", Duration::from_secs(20));
    let (code, text) = cluster.try_loadline(&["san", "status"]);
    assert_eq!(code, 0, "{text}");
}
