//! Nodes that end by order, and nodes that are restarted one after the other, while clients write.

mod nodes;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nodes::Cluster;
use nodes::client::Writers;

/// A volume without an owner is taken over after two of them. A node that stops waits for less than that until its volumes are served elsewhere.
const LEASE: &str = "2s";
const LIMIT: Duration = Duration::from_secs(60);

fn count(text: &str, part: &str) -> usize {
    text.matches(part).count()
}

/// The longest time in which no write of each volume was acknowledged while something else is done.
fn longest_pauses(writers: &[Writers], during: impl FnOnce()) -> Vec<Duration> {
    let stop = Arc::new(AtomicBool::new(false));
    let watch = |writers: &Writers| {
        let (done, until) = (writers.done(), stop.clone());
        std::thread::spawn(move || {
            let (mut last, mut at, mut longest) = (0, Instant::now(), Duration::ZERO);
            while !until.load(Ordering::Relaxed) {
                let now = done.load(Ordering::Relaxed);
                if now != last {
                    longest = longest.max(at.elapsed());
                    (last, at) = (now, Instant::now());
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            longest.max(at.elapsed())
        })
    };
    let watches: Vec<_> = writers.iter().map(watch).collect();
    during();
    stop.store(true, Ordering::Relaxed);
    watches.into_iter().map(|watch| watch.join().expect("it only counts")).collect()
}

#[test]
fn a_node_that_is_stopped_hands_its_volumes_over_and_no_client_waits_for_leases() {
    let mut cluster = Cluster::start_with(3, &["--lease", LEASE], "");
    for (copies, node) in [("2", "node-1"), ("3", "node-1"), ("3", "node-2")] {
        let name = format!("disk-{copies}-{node}");
        cluster.loadline(&["volume", "create", &name, "--size", "32MiB", "--copies", copies, "--at", node]);
        cluster.loadline(&["volume", "attach", &name, "--node", node]);
    }
    let stop = Arc::new(AtomicBool::new(false));
    let volumes = ["disk-2-node-1", "disk-3-node-1", "disk-3-node-2"];
    let writers: Vec<Writers> =
        volumes.iter().map(|name| Writers::start(&cluster.addresses(), name, 2, stop.clone())).collect();
    writers.iter().for_each(|writers| writers.wait_for(200));
    let begun = Instant::now();
    let pause = longest_pauses(&writers[..1], || {
        cluster.signal(1, "TERM");
        cluster.wait_until_gone(1);
        writers.iter().for_each(|writers| writers.wait_for(200));
    });
    let log = cluster.log(1);
    assert_eq!(count(&log, "2 volumes were handed over"), 1, "{log}");
    println!("{pause:?} without a write, {:?} for all: {log}", begun.elapsed());
    for name in volumes {
        assert!(!cluster.loadline_at(2, &["volume", "show", name]).contains("owner     node-1"));
    }
    cluster.start_node(1);
    volumes.iter().for_each(|name| _ = cluster.wait_until(name, "healthy", LIMIT));
    stop.store(true, Ordering::Relaxed);
    for (name, writers) in volumes.iter().zip(writers) {
        writers.join().check(&cluster.addresses(), name);
    }
}

#[test]
fn all_nodes_are_restarted_one_after_the_other_and_no_write_is_lost() {
    let cluster = Cluster::start_with(4, &["--lease", LEASE], "");
    for node in ["node-1", "node-2", "node-3", "node-4"] {
        let name = format!("of-{node}");
        cluster.loadline(&["volume", "create", &name, "--size", "32MiB", "--copies", "3", "--at", node]);
        cluster.loadline(&["volume", "attach", &name, "--node", node]);
    }
    let stop = Arc::new(AtomicBool::new(false));
    let volumes = ["of-node-1", "of-node-2", "of-node-3", "of-node-4"];
    let writers: Vec<Writers> =
        volumes.iter().map(|name| Writers::start(&cluster.addresses(), name, 2, stop.clone())).collect();
    writers.iter().for_each(|writers| writers.wait_for(200));
    let mut printed = String::new();
    let pauses = longest_pauses(&writers, || printed = cluster.loadline(&["node", "restart", "--all"]));
    println!("{pauses:?} without a write of each volume: {printed}");
    assert!(
        pauses.iter().all(|pause| *pause < Duration::from_secs(2)),
        "{pauses:?}: no client waits until a lease runs out"
    );
    assert!(printed.contains("4 nodes were restarted, one after the other"), "{printed}");
    for (node, name) in (1..=4).zip(volumes) {
        let log = cluster.log(node);
        assert_eq!(count(&log, "1 volume was handed over"), 1, "{log}");
        log.lines()
            .filter(|line| line.contains("handed over in"))
            .for_each(|line| println!("{node}: {line}"));
        assert_eq!(cluster.owner(name), node, "it is attached there again");
    }
    writers.iter().for_each(|writers| writers.wait_for(200));
    stop.store(true, Ordering::Relaxed);
    for (name, writers) in volumes.iter().zip(writers) {
        writers.join().check(&cluster.addresses(), name);
    }
}

#[test]
fn a_node_is_not_restarted_while_clients_would_wait_for_it() {
    let mut cluster = Cluster::start(3);
    cluster.loadline(&["volume", "create", "one", "--size", "16MiB", "--copies", "1", "--at", "node-1"]);
    cluster.loadline(&["volume", "attach", "one", "--node", "node-1"]);
    let (code, text) = cluster.try_loadline(&["node", "restart", "node-1"]);
    assert!(code == 1 && text.contains("one") && text.contains("--force"), "{code}: {text}");
    let (code, text) = cluster.try_loadline(&["node", "restart", "node-9"]);
    assert!(code == 2 && text.contains("node-1, node-2, node-3"), "{code}: {text}");
    let (code, text) = cluster.try_loadline(&["node", "restart", "node-1", "node-1"]);
    assert!(code == 2 && text.contains("named twice"), "{code}: {text}");
    let (code, _) = cluster.try_loadline(&["node", "restart"]);
    assert_eq!(code, 2);
    // It comes back with the volume.
    cluster.loadline(&["node", "restart", "node-1", "--force"]);
    cluster.wait_until("one", "healthy", LIMIT);
    // Another node is away.
    cluster.kill(3);
    let (code, text) = cluster.try_loadline(&["node", "restart", "node-2", "--limit", "1s"]);
    assert!(code == 1 && text.contains("node node-3 answers again"), "{code}: {text}");
}

fn eventually_owned(cluster: &Cluster, volume: &str, is_so: impl Fn(u8) -> bool) {
    let begun = Instant::now();
    while !is_so(cluster.owner(volume)) {
        assert!(begun.elapsed() < LIMIT, "volume {volume} is owned by node {}", cluster.owner(volume));
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_node_in_maintenance_is_stopped_and_comes_back_and_no_client_waits_for_leases() {
    let mut cluster = Cluster::start_with(3, &["--lease", LEASE], "");
    let volumes = ["two", "three"];
    for (name, copies) in volumes.into_iter().zip(["2", "3"]) {
        cluster
            .loadline(&["volume", "create", name, "--size", "32MiB", "--copies", copies, "--at", "node-1"]);
        cluster.loadline(&["volume", "attach", name, "--node", "node-1"]);
    }
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<Writers> =
        volumes.iter().map(|name| Writers::start(&cluster.addresses(), name, 2, stop.clone())).collect();
    writers.iter().for_each(|writers| writers.wait_for(200));
    let refused = |code: i32, words: &[&str], parts: &[&str]| {
        let (is, text) = cluster.try_loadline(words);
        assert!(is == code && parts.iter().all(|part| text.contains(part)), "{words:?}: {is}: {text}");
    };
    let mut said = String::new();
    let pauses = longest_pauses(&writers, || {
        said = cluster.loadline(&["node", "maintenance", "node-1"]);
        volumes.iter().for_each(|name| assert_ne!(cluster.owner(name), 1, "{said}"));
        writers.iter().for_each(|writers| writers.wait_for(100));
    });
    println!("{pauses:?} without a write of each volume");
    assert!(pauses.iter().all(|pause| *pause < Duration::from_secs(2)), "{pauses:?}");
    assert!(said.contains("--stop"), "{said}");
    assert!(cluster.loadline(&["node", "list"]).contains("maintenance"));
    // It gets nothing, and nothing more is taken away.
    refused(2, &["volume", "attach", "two", "--node", "node-1"], &["is in maintenance", "--stop"]);
    let other = ["volume", "create", "other", "--size", "16MiB", "--copies", "1", "--at", "node-1"];
    refused(2, &other, &["is in maintenance"]);
    let second = cluster.loadline(&["volume", "show", "two"]);
    let second = if second.contains("node-2") { "node-2" } else { "node-3" };
    refused(2, &["node", "maintenance", second], &["would wait", "two", "--force"]);
    refused(2, &["node", "maintenance", "node-9"], &["node-1, node-2 and node-3"]);
    // While the other node with a copy is lost, it serves the volume all the same, and gives it away again.
    let other = cluster.owner("two");
    cluster.kill(other);
    eventually_owned(&cluster, "two", |owner| owner == 1);
    writers.iter().for_each(|writers| writers.wait_for(50));
    cluster.start_node(other);
    volumes.iter().for_each(|name| _ = cluster.wait_until(name, "healthy", LIMIT));
    eventually_owned(&cluster, "two", |owner| owner != 1);
    // Its process ends and starts, and the maintenance lasts.
    cluster.signal(1, "TERM");
    cluster.wait_until_gone(1);
    writers.iter().for_each(|writers| writers.wait_for(200));
    cluster.start_node(1);
    volumes.iter().for_each(|name| _ = cluster.wait_until(name, "healthy", LIMIT));
    assert!(cluster.loadline(&["node", "list"]).contains("maintenance"));
    volumes.iter().for_each(|name| assert_ne!(cluster.owner(name), 1));
    // It is used again, and can give volumes away again.
    cluster.loadline(&["node", "maintenance", "node-1", "--stop"]);
    for _ in 0..2 {
        cluster.loadline(&["volume", "attach", "two", "--node", "node-1"]);
        assert_eq!(cluster.owner("two"), 1);
        cluster.loadline(&["node", "maintenance", "node-1"]);
        assert_ne!(cluster.owner("two"), 1);
        cluster.loadline(&["node", "maintenance", "node-1", "--stop"]);
    }
    stop.store(true, Ordering::Relaxed);
    for (name, writers) in volumes.iter().zip(writers) {
        writers.join().check(&cluster.addresses(), name);
    }
}
