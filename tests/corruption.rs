//! What is corrupted on a device of a cluster of real processes is found, read from another copy, and mended.

mod nodes;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nodes::Cluster;
use nodes::client::{self, Writers};

/// Rots every block of the extents of a node's replica. How many extents.
fn rot_extents(cluster: &Cluster, node: u8) -> usize {
    let dump = cluster.dump(node);
    let extents = dump["replicas"][0]["extents"].as_array().expect("it has extents");
    let places: Vec<u64> = extents.iter().filter_map(|extent| extent["at"].as_u64()).collect();
    for at in &places {
        (0..64).for_each(|block| cluster.flip(node, at + block * 4096 + 99));
    }
    places.len()
}

/// A person orders a scrub of every block: corrupt blocks are reported, and are whole at the next scrub.
#[test]
fn a_scrub_finds_what_has_rotted_and_it_is_mended() {
    let mut cluster = Cluster::start(2);
    cluster.loadline(&["volume", "create", "disk", "--size", "64MiB"]);
    cluster.loadline(&["volume", "attach", "disk", "--node", "node-1"]);
    let mut filler = client::Filler::new(&cluster.addresses()[..1], "disk");
    (0..48).for_each(|mib| filler.write(mib).expect("there is room"));
    let clean = cluster.loadline(&["volume", "scrub", "disk"]);
    assert!(clean.contains("all blocks match"), "{clean}");
    // When nothing else is to be done, all is destaged.
    std::thread::sleep(Duration::from_secs(3));
    cluster.kill(2);
    let dump = cluster.dump(2);
    let extents = dump["replicas"][0]["extents"].as_array().expect("it has some").clone();
    // The last: nodes look through all by themselves, 8 MiB a second at the most, and are not to come here before.
    let at = extents.iter().filter_map(|extent| extent["at"].as_u64()).max().expect("one has a place");
    (0..64).for_each(|block| cluster.flip(2, at + block * 4096 + 100));
    cluster.start_node(2);
    cluster.wait_until("disk", "healthy", Duration::from_secs(30));
    let (code, text) = cluster.try_loadline(&["volume", "scrub", "disk"]);
    assert!(code == 3 && text.contains("did not match"), "{code}: {text}");
    let begun = Instant::now();
    while cluster.try_loadline(&["volume", "scrub", "disk"]).0 != 0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "it is mended");
    }
    filler.again().check(48);
}

/// Every block that one copy has in its extents is corrupted: what is read is what the other copy has, and it is mended.
#[test]
fn what_rots_is_read_from_another_copy_and_mended() {
    let mut cluster = Cluster::start(2);
    cluster.loadline(&["volume", "create", "disk", "--size", "16MiB"]);
    cluster.loadline(&["volume", "attach", "disk", "--node", "node-1"]);
    let stop = Arc::new(AtomicBool::new(false));
    let writers = Writers::start(&cluster.addresses(), "disk", 2, stop.clone());
    writers.wait_for(600);
    stop.store(true, Ordering::Relaxed);
    let journal = writers.join();
    // When nothing else is to be done, all is destaged.
    std::thread::sleep(Duration::from_secs(2));
    cluster.kill(1);
    assert!(rot_extents(&cluster, 1) >= 2);
    let (code, text) = cluster.verify(1);
    assert!(code == 1 && text.contains("do not match"), "{code}: {text}");
    cluster.start_node(1);
    cluster.wait_until("disk", "healthy", Duration::from_secs(30));
    cluster.loadline(&["volume", "attach", "disk", "--node", "node-1"]);
    journal.check(&cluster.addresses(), "disk");
    journal.check(&cluster.addresses()[..1], "disk");
    std::thread::sleep(Duration::from_secs(2));
    cluster.kill(1);
    let (code, text) = cluster.verify(1);
    assert_eq!(code, 0, "it was mended: {text}");
}

/// More than the log of a volume takes is read at once, and one copy has none of it whole: it is read from the other one, and what
/// is written anew is written in parts.
#[test]
fn a_long_read_of_what_has_rotted_is_mended_in_parts() {
    let mut cluster = Cluster::start(2);
    cluster.loadline(&["volume", "create", "disk", "--size", "64MiB", "--log", "32MiB"]);
    cluster.loadline(&["volume", "attach", "disk", "--node", "node-1"]);
    let mut filler = client::Filler::new(&cluster.addresses()[..1], "disk");
    (0..32).for_each(|mib| filler.write(mib).expect("there is room"));
    // When nothing else is to be done, all is destaged.
    std::thread::sleep(Duration::from_secs(3));
    cluster.kill(1);
    assert!(rot_extents(&cluster, 1) >= 100);
    cluster.start_node(1);
    cluster.wait_until("disk", "healthy", Duration::from_secs(30));
    cluster.loadline(&["volume", "attach", "disk", "--node", "node-1"]);
    let filler = filler.again();
    filler.check_at_once(32);
    // It goes on, and what was too much at once is mended by other reads.
    filler.check(32);
    cluster.wait_until("disk", "healthy", Duration::from_secs(30));
    std::thread::sleep(Duration::from_secs(3));
    cluster.kill(1);
    let (code, text) = cluster.verify(1);
    assert_eq!(code, 0, "it was mended: {text}");
}

/// A record that was acknowledged is corrupted in the log of one copy: it is not used before it is rebuilt, and the other serves.
#[test]
fn a_copy_whose_log_has_rotted_is_not_used_before_it_is_rebuilt() {
    let mut cluster = Cluster::start(2);
    cluster.loadline(&["volume", "create", "disk", "--size", "16MiB"]);
    cluster.loadline(&["volume", "attach", "disk", "--node", "node-1"]);
    let stop = Arc::new(AtomicBool::new(false));
    let writers = Writers::start(&cluster.addresses(), "disk", 4, stop.clone());
    writers.wait_for(600);
    cluster.kill(1);
    writers.wait_for(50);
    stop.store(true, Ordering::Relaxed);
    let journal = writers.join();
    let dump = cluster.dump(1);
    let log = dump["replicas"][0]["log"].as_array().expect("it has a log").clone();
    let data: Vec<u64> = log
        .iter()
        .filter(|record| record["kind"] == "data")
        .filter_map(|record| record["at"].as_u64())
        .collect();
    assert!(data.len() > 20, "{dump}");
    cluster.flip(1, data[data.len() / 2] + 5000);
    cluster.flip(1, data[data.len() / 2] + 40);
    cluster.start_node(1);
    cluster.loadline(&["volume", "attach", "disk"]);
    journal.check(&cluster.addresses(), "disk");
    cluster.wait_until("disk", "healthy", Duration::from_secs(30));
    journal.check(&cluster.addresses(), "disk");
    cluster.kill(2);
    cluster.loadline(&["volume", "attach", "disk", "--node", "node-1"]);
    journal.check(&cluster.addresses()[..1], "disk");
}
