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
