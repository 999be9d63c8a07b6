//! A copy that its node finds damaged is named, is left out by a scrub that says so, and is rebuilt from the others.

mod nodes;

use std::fs::File;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nodes::Cluster;
use nodes::client::{Journal, Writers};

/// A volume with a copy at each of two nodes, written to; node 1 is dead, and misses the last of it. What was written.
fn written(cluster: &mut Cluster) -> Journal {
    cluster.loadline(&["volume", "create", "disk", "--size", "16MiB"]);
    cluster.loadline(&["volume", "attach", "disk", "--node", "node-2"]);
    let stop = Arc::new(AtomicBool::new(false));
    let writers = Writers::start(&cluster.addresses()[1..], "disk", 4, stop.clone());
    writers.wait_for(600);
    cluster.kill(1);
    writers.wait_for(50);
    stop.store(true, Ordering::Relaxed);
    writers.join()
}

/// A record in the middle of the log of a node's copy is corrupted, which later ones cover.
fn rot_log(cluster: &Cluster, node: u8) {
    let dump = cluster.dump(node);
    let log = dump["replicas"][0]["log"].as_array().expect("it has a log");
    let data = log.iter().filter(|record| record["kind"] == "data");
    let data: Vec<u64> = data.filter_map(|record| record["at"].as_u64()).collect();
    assert!(data.len() > 20, "{dump}");
    cluster.flip(node, data[data.len() / 2] + 5000);
    cluster.flip(node, data[data.len() / 2] + 40);
}

/// The state and the note of each copy.
fn copies(cluster: &Cluster) -> Vec<(String, String, Option<String>)> {
    let shown = cluster.loadline(&["volume", "show", "disk", "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).expect("it is JSON");
    let copies = shown["replicas"].as_array().expect("it has copies").iter();
    let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
    copies.map(|r| (text(&r["node"]).unwrap(), text(&r["state"]).unwrap(), text(&r["note"]))).collect()
}

/// Waits until the copy at a node is in this state. Its note.
fn wait_for_copy(cluster: &Cluster, node: &str, state: &str) -> Option<String> {
    let begun = Instant::now();
    loop {
        let copies = copies(cluster);
        if let Some((.., note)) = copies.iter().find(|(at, is, _)| at == node && is == state) {
            return note.clone();
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "the copy at {node} is to be {state}: {copies:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Only the copy at node 1 is left, and it has all that was written.
fn check_the_copy_at_node_1(cluster: &mut Cluster, journal: &Journal) {
    cluster.kill(2);
    cluster.loadline(&["volume", "attach", "disk", "--node", "node-1"]);
    journal.check(&cluster.addresses()[..1], "disk");
}

/// The volume is not attached when the damage is found, so that it stays for a while: it is named, at every node, and a scrub ends
/// and leaves the copy out. When the volume is attached the copy is rebuilt, without a command.
#[test]
fn a_copy_found_damaged_is_named_left_out_by_a_scrub_and_rebuilt() {
    let mut cluster = Cluster::start(2);
    let journal = written(&mut cluster);
    let (code, text) = cluster.try_loadline(&["volume", "scrub", "disk"]);
    assert!(code == 3 && text.contains("at node-1 was skipped: its node does not answer"), "{code}: {text}");
    cluster.loadline(&["volume", "detach", "disk"]);
    rot_log(&cluster, 1);
    cluster.start_node(1);
    let note = wait_for_copy(&cluster, "node-1", "damaged").expect("it says what was found");
    assert!(note.contains("were durable and cannot be read"), "{note}");
    assert!(note.contains("when the volume is attached"), "{note}");
    let begun = Instant::now();
    let (code, text) = cluster.try_loadline(&["volume", "scrub", "disk"]);
    assert!(code == 3 && text.contains("at node-1 was skipped: it is damaged: records"), "{code}: {text}");
    assert!(begun.elapsed() < Duration::from_secs(30), "it ends: {text}");
    cluster.loadline(&["volume", "attach", "disk", "--node", "node-2"]);
    cluster.wait_until("disk", "healthy", Duration::from_secs(30));
    wait_for_copy(&cluster, "node-1", "in sync");
    journal.check(&cluster.addresses()[1..], "disk");
    cluster.loadline(&["volume", "scrub", "disk"]);
    check_the_copy_at_node_1(&mut cluster, &journal);
    // What it has now is found whole again.
    std::thread::sleep(Duration::from_secs(1));
    cluster.kill(1);
    let (code, text) = cluster.verify(1);
    assert_eq!(code, 0, "{text}");
}

/// The volume is attached all the time, and is written to: the copy is back without a person.
#[test]
fn a_copy_found_damaged_is_rebuilt_beside_writes() {
    let mut cluster = Cluster::start(2);
    let first = written(&mut cluster);
    rot_log(&cluster, 1);
    cluster.start_node(1);
    let stop = Arc::new(AtomicBool::new(false));
    let writers = Writers::start(&cluster.addresses()[1..], "disk", 2, stop.clone());
    cluster.wait_until("disk", "healthy", Duration::from_secs(30));
    writers.wait_for(50);
    stop.store(true, Ordering::Relaxed);
    let journal = writers.join();
    drop(first);
    journal.check(&cluster.addresses()[1..], "disk");
    check_the_copy_at_node_1(&mut cluster, &journal);
}

/// A damaged copy is made again at its own node if a person orders it; one that is in sync is not.
#[test]
fn a_damaged_copy_may_move_onto_its_own_node() {
    let mut cluster = Cluster::start(2);
    let journal = written(&mut cluster);
    cluster.loadline(&["volume", "detach", "disk"]);
    rot_log(&cluster, 1);
    cluster.start_node(1);
    wait_for_copy(&cluster, "node-1", "damaged");
    let own = ["volume", "move", "disk", "--from", "node-1", "--to", "node-1"];
    cluster.loadline(&own);
    cluster.loadline(&["volume", "attach", "disk", "--node", "node-2"]);
    cluster.wait_until("disk", "healthy", Duration::from_secs(30));
    journal.check(&cluster.addresses()[1..], "disk");
    let (code, text) = cluster.try_loadline(&own);
    assert!(code == 2 && text.contains("is in sync"), "{code}: {text}");
    check_the_copy_at_node_1(&mut cluster, &journal);
}

/// The only copies are both damaged: nothing is rebuilt from nothing. A person goes on with one of them, and the other is rebuilt.
#[test]
fn where_no_copy_is_whole_a_person_decides() {
    let mut cluster = Cluster::start(2);
    let journal = written(&mut cluster);
    drop(journal);
    cluster.kill(2);
    rot_log(&cluster, 1);
    rot_log(&cluster, 2);
    cluster.start_node(1);
    cluster.start_node(2);
    let note = wait_for_copy(&cluster, "node-2", "damaged").expect("it says what was found");
    assert!(note.contains("a person decides"), "{note}");
    wait_for_copy(&cluster, "node-1", "damaged");
    let shown = cluster.wait_until("disk", "waiting", Duration::from_secs(20));
    assert!(shown.contains("volume recover"), "{shown}");
    std::thread::sleep(Duration::from_secs(3));
    wait_for_copy(&cluster, "node-1", "damaged");
    cluster.loadline(&["volume", "recover", "disk", "--from", "node-2", "--force"]);
    cluster.wait_until("disk", "healthy", Duration::from_secs(30));
}

/// What a device begins with cannot be read: that is no damage of a copy, and nothing is rebuilt there. The device is replaced by
/// another one of the same node.
#[test]
fn a_copy_on_a_device_that_has_failed_moves_to_another_device_of_its_node() {
    let mut cluster = Cluster::start(2);
    let journal = written(&mut cluster);
    [100, 4096 + 100].into_iter().for_each(|at| cluster.flip(1, at));
    cluster.start_node(1);
    let note = wait_for_copy(&cluster, "node-1", "failed").expect("it says what was found");
    assert!(note.contains("loadline device replace"), "{note}");
    let (code, text) = cluster.try_loadline(&["volume", "scrub", "disk"]);
    assert!(code == 3 && text.contains("at node-1 was skipped: it is failed"), "{code}: {text}");
    let shown = cluster.loadline(&["volume", "show", "disk", "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).expect("it is JSON");
    let copy = shown["replicas"].as_array().and_then(|all| all.iter().find(|r| r["node"] == "node-1"));
    let device = copy.expect("it has one")["device"].to_string();
    let other = cluster.folder().join("another-device");
    let file = std::fs::File::create_new(&other).expect("there is room");
    file.set_len(1 << 30).expect("it can be so long");
    cluster.loadline(&["device", "replace", &device, "--with", other.to_str().expect("it is text")]);
    cluster.wait_until("disk", "healthy", Duration::from_secs(30));
    wait_for_copy(&cluster, "node-1", "in sync");
    check_the_copy_at_node_1(&mut cluster, &journal);
}

#[test]
fn a_device_with_copies_of_volumes_is_not_overwritten() {
    let mut cluster = Cluster::start(2);
    let journal = written(&mut cluster);
    // Its node does not run, so nothing but its content shows that it is needed.
    let device = cluster.device(1);
    // A node mends the second copy of the first page when it opens the device. To look at the device writes nothing: a node of another host
    // may be using it.
    cluster.flip(1, 4096 + 40);
    let begins = || {
        let mut begins = vec![0; 1 << 20];
        File::open(&device).and_then(|mut file| file.read_exact(&mut begins)).expect("it can be read");
        begins
    };
    let before = begins();
    for options in [&[][..], &["--overwrite"]] {
        let (code, said) = cluster.run_at(2, &[&["device", "add", &device][..], options].concat());
        assert_eq!(code, 2, "{said}");
        assert!(options.is_empty() || said.contains("holds data or logs of 1 copy of a volume"), "{said}");
    }
    assert!(before == begins(), "the device is as it was");
    cluster.start_node(1);
    cluster.wait_until("disk", "healthy", Duration::from_secs(30));
    check_the_copy_at_node_1(&mut cluster, &journal);
}
