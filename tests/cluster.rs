//! Clusters of real processes: killed, started again, alone; and the tools of others on their volumes.

mod nodes;

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nodes::client::{self, Nbd, Writers};
use nodes::{Cluster, run};

/// No acknowledged write is lost and no old data is read, whichever node is killed.
#[test]
fn acknowledged_writes_survive_the_death_of_any_node() {
    let mut cluster = Cluster::start(3);
    cluster.loadline(&["volume", "create", "disk", "--size", "64MiB"]);
    cluster.loadline(&["volume", "attach", "disk", "--node", "node-1"]);
    let stop = Arc::new(AtomicBool::new(false));
    let writers = Writers::start(&cluster.addresses(), "disk", 4, stop.clone());
    writers.wait_for(500);
    for victim in [2, 1, 2] {
        cluster.kill(victim);
        // They go on without it.
        writers.wait_for(500);
        cluster.start_node(victim);
        cluster.wait_until("disk", "healthy", Duration::from_secs(30));
        writers.wait_for(200);
    }
    stop.store(true, Ordering::Relaxed);
    let journal = writers.join();
    journal.check(&cluster.addresses(), "disk");
    // All of them at once.
    (1..=3).for_each(|node| cluster.kill(node));
    (1..=3).for_each(|node| cluster.start_node(node));
    cluster.wait_until("disk", "healthy", Duration::from_secs(30));
    journal.check(&cluster.addresses(), "disk");
}

/// A node that hands a volume over returns its leases, and a process that has ended is recognised by its address, which refuses
/// connections: no node waits until leases end.
#[test]
fn a_volume_moves_and_a_killed_node_is_done_without_before_leases_are_over() {
    const LEASE: Duration = Duration::from_secs(8);
    let mut cluster = Cluster::start_with(3, &["--lease", "8s"], "");
    cluster.loadline(&["volume", "create", "disk", "--size", "64MiB", "--copies", "3"]);
    cluster.loadline(&["volume", "attach", "disk", "--node", "node-1"]);
    let stop = Arc::new(AtomicBool::new(false));
    let writers = Writers::start(&cluster.addresses(), "disk", 4, stop.clone());
    writers.wait_for(500);
    // Its owner hands it over.
    let begun = Instant::now();
    cluster.loadline(&["volume", "attach", "disk", "--node", "node-2"]);
    writers.wait_for(500);
    assert!(begun.elapsed() < LEASE, "{:?}", begun.elapsed());
    for victim in [1, 3] {
        cluster.kill(victim);
        let begun = Instant::now();
        writers.wait_for(500);
        assert!(begun.elapsed() < LEASE, "{:?}", begun.elapsed());
        cluster.start_node(victim);
        cluster.wait_until("disk", "healthy", Duration::from_secs(60));
    }
    stop.store(true, Ordering::Relaxed);
    writers.join().check(&cluster.addresses(), "disk");
}

/// A log of an eighth of the usual size: less is in flight, longer writes are refused, and nothing is lost.
#[test]
fn a_small_log_takes_less_at_once_and_loses_nothing() {
    let mut cluster = Cluster::start(3);
    let (code, text) =
        cluster.try_loadline(&["volume", "create", "disk", "--size", "64MiB", "--log", "31MiB"]);
    assert!(code == 2 && text.contains("too small"), "{text}");
    cluster.loadline(&["volume", "create", "disk", "--size", "64MiB", "--log", "32MiB"]);
    cluster.loadline(&["volume", "attach", "disk", "--node", "node-1"]);
    let addresses = cluster.addresses();
    let said = run(Command::new("nbdinfo").args(["--json", &format!("nbd://{}:10809/disk", addresses[0])]));
    assert!(said.contains("\"block_size_maximum\": 4194304"), "{said}");
    let refused =
        client::write_at_once(addresses[0], "disk", 5).expect_err("it is longer than the log takes");
    assert!(refused.to_string().contains("error 22"), "{refused}");
    client::write_at_once(addresses[0], "disk", 4).expect("it is as long as was said");
    // A client in shared memory does not learn the limit beforehand: only its I/O fails.
    let socket = format!("vhost-user:{}", cluster.vhost_socket(1, "disk").display());
    let bench = |profile: &str| {
        cluster.try_loadline(&["bench", &socket, "--profile", profile, "--destroy-data", "--for", "1s"])
    };
    let (code, text) = bench("B5120-T1-O2-W100-PS");
    assert!(code == 1 && text.contains("nothing completed") && text.contains("i/o error"), "{code}: {text}");
    let (code, text) = bench("B4096-T1-O2-W100-PS");
    assert!(code != 1 && text.contains("; 0 errors"), "{code}: {text}");
    let stop = Arc::new(AtomicBool::new(false));
    let writers = Writers::start(&addresses, "disk", 4, stop.clone());
    writers.wait_for(500);
    for victim in [2, 1] {
        cluster.kill(victim);
        writers.wait_for(500);
        cluster.start_node(victim);
        cluster.wait_until("disk", "healthy", Duration::from_secs(30));
    }
    stop.store(true, Ordering::Relaxed);
    writers.join().check(&addresses, "disk");
}

/// With three copies two nodes may die at once, whichever they are, and come back in any order.
#[test]
fn two_of_three_nodes_die_at_once_and_come_back_in_any_order() {
    let seed = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(7, |now| now.as_nanos() as u64);
    println!("seed {seed}");
    let mut cluster = Cluster::start(3);
    cluster.loadline(&["volume", "create", "disk", "--size", "16MiB", "--copies", "3", "--least", "1"]);
    cluster.loadline(&["volume", "attach", "disk", "--node", "node-1"]);
    let stop = Arc::new(AtomicBool::new(false));
    let writers = Writers::start(&cluster.addresses(), "disk", 3, stop.clone());
    for round in 0..3u64 {
        writers.wait_for(200);
        let drawn = (seed >> (8 * round)) as u8;
        // The seed chooses the node that is left, and which of the others returns first.
        let left = drawn % 3 + 1;
        let mut dead: Vec<u8> = (1..=3).filter(|node| *node != left).collect();
        if drawn & 64 != 0 {
            dead.reverse();
        }
        println!("round {round}: node {left} is left, {dead:?} come back");
        dead.iter().for_each(|node| cluster.kill(*node));
        writers.wait_for(200);
        for node in dead {
            cluster.start_node(node);
            writers.wait_for(50);
        }
        cluster.wait_until("disk", "healthy", Duration::from_secs(30));
    }
    stop.store(true, Ordering::Relaxed);
    writers.join().check(&cluster.addresses(), "disk");
}

/// With fewer copies in sync than its policy asks for, a volume takes no new writes, says so, and reads go on.
#[test]
fn writes_wait_while_fewer_copies_are_in_sync_than_the_policy_asks_for() {
    let mut cluster = Cluster::start(3);
    for (copies, least) in [("3", "0"), ("3", "4"), ("2", "3"), ("1", "2")] {
        let create = ["volume", "create", "x", "--size", "1MiB", "--copies", copies, "--least", least];
        let (code, text) = cluster.try_loadline(&create);
        assert!(code == 2 && text.contains(&format!("give 1 to {copies}")), "{code}: {text}");
    }
    for (copies, least) in [("1", "1"), ("2", "1"), ("3", "2")] {
        let name = format!("disk-{copies}");
        cluster
            .loadline(&["volume", "create", &name, "--size", "4MiB", "--copies", copies, "--log", "32MiB"]);
        let shown = cluster.loadline(&["volume", "show", &name]);
        assert!(shown.contains(&format!("writes need {least}")), "{shown}");
    }
    cluster.loadline(&["volume", "attach", "disk-3", "--node", "node-1"]);
    let addresses = cluster.addresses();
    let mut filler = client::Filler::new(&addresses[..1], "disk-3");
    filler.write(0).expect("three copies are in sync");
    cluster.kill(2);
    filler.write(1).expect("two copies are in sync");
    cluster.kill(3);
    cluster.wait_until("disk-3", "waiting", Duration::from_secs(10));
    let shown = cluster.loadline(&["volume", "show", "disk-3"]);
    assert!(
        shown.contains("wait: 1 of 3 copies are in sync, and a write needs 2 (--least); reads continue"),
        "{shown}"
    );
    let (code, text) = cluster.try_loadline(&["san", "status"]);
    assert!(code == 1 && text.contains("wait: 1 of 3"), "{code}: {text}");
    filler.check_from(0, 2);
    // Its client waits for longer than this, and the write is carried out when a second copy is in sync again.
    let begun = Instant::now();
    let mut writer = client::Filler::new(&addresses[..1], "disk-3");
    std::thread::scope(|scope| {
        let write = scope.spawn(move || writer.write(3).map(|()| begun.elapsed()));
        std::thread::sleep(Duration::from_secs(1));
        assert!(!write.is_finished(), "no write is carried out with one copy");
        cluster.start_node(2);
        let took = write.join().expect("it ends").expect("it is written");
        assert!(took > Duration::from_secs(1), "{took:?}");
    });
}

/// Two of three nodes are killed at once, the owner among them or not. They are asked through the configuration store before they are
/// excluded (rule S1Ended), and the third then reads: within 5 s where no other tests run.
#[test]
fn the_last_of_three_nodes_reads_soon_after_the_others_are_killed_at_once() {
    for owner in ["node-3", "node-1"] {
        let cluster = Cluster::start(3);
        cluster.loadline(&["volume", "create", "disk", "--size", "16MiB", "--copies", "3"]);
        cluster.loadline(&["volume", "attach", "disk", "--node", owner]);
        let last = &cluster.addresses()[2..];
        let mut filler = client::Filler::new(last, "disk");
        filler.write(0).expect("all copies are in sync");
        cluster.signal(1, "KILL");
        cluster.signal(2, "KILL");
        let begun = Instant::now();
        // The leases that the dead have granted end.
        std::thread::sleep(Duration::from_millis(700));
        // A connection that node 1 served through node 3 has ended.
        let filler = if owner == "node-3" { filler } else { client::Filler::new(last, "disk") };
        filler.check_from(0, 1);
        let took = begun.elapsed();
        println!("the volume was attached at {owner}: node-3 reads after {took:?}");
        assert!(took < Duration::from_secs(10), "{owner}: {took:?}");
    }
}

/// An owner that is stopped for longer than its lease finds another in its place when it goes on.
#[test]
fn an_owner_that_was_stopped_serves_nothing_old() {
    let cluster = Cluster::start(3);
    cluster.loadline(&["volume", "create", "disk", "--size", "16MiB"]);
    cluster.loadline(&["volume", "attach", "disk", "--node", "node-1"]);
    let stop = Arc::new(AtomicBool::new(false));
    let writers = Writers::start(&cluster.addresses(), "disk", 4, stop.clone());
    for _ in 0..2 {
        writers.wait_for(200);
        let owner = cluster.owner("disk");
        cluster.signal(owner, "STOP");
        writers.wait_for(200);
        cluster.signal(owner, "CONT");
        cluster.wait_until("disk", "healthy", Duration::from_secs(30));
        assert_ne!(cluster.owner("disk"), owner, "another has taken over");
    }
    stop.store(true, Ordering::Relaxed);
    writers.join().check(&cluster.addresses(), "disk");
}

/// A stops, B is written to and stops, A starts alone: it has not everything, so the volume waits.
#[test]
fn a_copy_that_missed_something_does_not_serve_alone() {
    let mut cluster = Cluster::start(2);
    cluster.loadline(&["volume", "create", "disk", "--size", "16MiB"]);
    cluster.loadline(&["volume", "attach", "disk", "--node", "node-2"]);
    // It is served when that is said.
    assert!(cluster.loadline(&["volume", "show", "disk"]).contains("healthy"));
    cluster.kill(1);
    let stop = Arc::new(AtomicBool::new(false));
    let writers = Writers::start(&cluster.addresses(), "disk", 2, stop.clone());
    writers.wait_for(100);
    stop.store(true, Ordering::Relaxed);
    let journal = writers.join();
    cluster.kill(2);
    cluster.start_node(1);
    let shown = cluster.wait_until("disk", "waiting", Duration::from_secs(10));
    assert!(shown.contains("only at node-2"), "it says why: {shown}");
    std::thread::sleep(Duration::from_secs(4));
    let shown = cluster.wait_until("disk", "waiting", Duration::from_secs(1));
    assert!(shown.contains("only at node-2"), "it still waits: {shown}");
    cluster.start_node(2);
    cluster.wait_until("disk", "healthy", Duration::from_secs(30));
    journal.check(&cluster.addresses(), "disk");
}

/// The nodes that have every write will never come back: a person goes on with what another has.
#[test]
fn what_is_left_can_be_recovered_by_force() {
    let mut cluster = Cluster::start(3);
    cluster.loadline(&["volume", "create", "disk", "--size", "16MiB", "--at", "node-1"]);
    cluster.loadline(&["volume", "attach", "disk", "--node", "node-1"]);
    let write = |cluster: &Cluster, writes| {
        let stop = Arc::new(AtomicBool::new(false));
        let writers = Writers::start(&cluster.addresses(), "disk", 1, stop.clone());
        writers.wait_for(writes);
        stop.store(true, Ordering::Relaxed);
        writers.join()
    };
    let before = write(&cluster, 20);
    let shown = cluster.loadline(&["volume", "show", "disk"]);
    let other = if shown.contains("node-2  ") { 2 } else { 3 };
    cluster.kill(other);
    write(&cluster, 20);
    cluster.kill(1);
    cluster.start_node(other);
    cluster.wait_until("disk", "waiting", Duration::from_secs(10));
    let from = format!("node-{other}");
    let (code, text) = cluster.try_loadline(&["volume", "recover", "disk", "--from", "node-1", "--force"]);
    assert!(
        code == 2
            && text.contains("node node-1 does not answer")
            && text.contains(&format!("volume: {from}")),
        "{code}: {text}"
    );
    let (code, text) = cluster.try_loadline(&["volume", "recover", "disk", "--from", &from]);
    assert!(
        code == 2
            && text.contains("the volume would continue with one copy")
            && text.contains("lacks all writes since epoch"),
        "{text}"
    );
    cluster.loadline(&["volume", "recover", "disk", "--from", &from, "--force"]);
    cluster.wait_until("disk", "degraded", Duration::from_secs(10));
    before.check(&cluster.addresses(), "disk");
    // What comes back is overwritten.
    cluster.start_node(1);
    cluster.wait_until("disk", "healthy", Duration::from_secs(30));
    before.check(&cluster.addresses(), "disk");
}

#[test]
fn a_volume_grows_while_it_is_used() {
    let cluster = Cluster::start(2);
    cluster.loadline(&["volume", "create", "disk", "--size", "16MiB"]);
    let (code, text) = cluster.try_loadline(&["volume", "resize", "disk", "--size", "32MiB"]);
    assert!(code == 2 && text.contains("attach the volume first"), "{text}");
    cluster.loadline(&["volume", "attach", "disk"]);
    let stop = Arc::new(AtomicBool::new(false));
    let writers = Writers::start(&cluster.addresses(), "disk", 2, stop.clone());
    writers.wait_for(50);
    cluster.loadline(&["volume", "resize", "disk", "--size", "32MiB"]);
    writers.wait_for(50);
    stop.store(true, Ordering::Relaxed);
    writers.join().check(&cluster.addresses(), "disk");
    for address in cluster.addresses() {
        let uri = format!("nbd://{address}:10809/disk");
        assert_eq!(run(Command::new("nbdinfo").args(["--size", &uri])).trim(), "33554432");
        run(Command::new("qemu-io")
            .args(["-f", "raw", "-c", "write -P 9 31M 1M", "-c", "read -P 9 31M 1M"])
            .arg(uri));
    }
    let (code, text) = cluster.try_loadline(&["volume", "resize", "disk", "--size", "16MiB"]);
    assert!(code == 2 && text.contains("a volume only grows"), "{text}");
    // Each of the two devices has 1 GiB.
    let (code, text) = cluster.try_loadline(&["volume", "resize", "disk", "--size", "800MiB"]);
    assert!(code == 2 && text.contains("add a device"), "{text}");
}

/// Clients and nodes that say nothing, stop half way, lie, or say something else.
#[test]
fn bad_company_harms_nobody_but_itself() {
    let cluster = Cluster::start(2);
    cluster.loadline(&["volume", "create", "disk", "--size", "16MiB"]);
    cluster.loadline(&["volume", "attach", "disk", "--node", "node-1"]);
    let stop = Arc::new(AtomicBool::new(false));
    let writers = Writers::start(&cluster.addresses(), "disk", 2, stop.clone());
    writers.wait_for(20);
    let silent = nodes::client::silent(&cluster.addresses(), 1000);
    writers.wait_for(100);
    nodes::client::misbehave(&cluster.addresses(), "disk");
    writers.wait_for(100);
    // A new client is let in all the same.
    run(Command::new("nbdinfo").args(["--size", &format!("nbd://{}:10809/disk", cluster.addresses()[0])]));
    drop(silent);
    stop.store(true, Ordering::Relaxed);
    writers.join().check(&cluster.addresses(), "disk");
    cluster.wait_until("disk", "healthy", Duration::from_secs(5));
}

/// Of connections that say nothing, more than may have proved nothing: they displace each other. Clients get in at once, by the network and
/// by a socket, and those that were in stay.
#[test]
fn connections_that_say_nothing_keep_nobody_out() {
    let cluster = Cluster::start(1);
    cluster.loadline(&["volume", "create", "disk", "--size", "16MiB", "--copies", "1"]);
    cluster.loadline(&["volume", "attach", "disk"]);
    let address = cluster.addresses()[0];
    let mut before = Nbd::connect(address, "disk").expect("it is served");
    let mut silent = nodes::client::silent(&[address], 2300);
    // The node may be late: it has not accepted all of these connections when the last of them is made.
    nodes::client::connect(&[address], "disk").write(1, 1).expect("it is written");
    let socket = cluster.node_folder(1).join("nbd.sock");
    run(Command::new("nbdinfo").args(["--size", &format!("nbd+unix:///disk?socket={}", socket.display())]));
    assert_eq!(before.read(1).expect("it stays"), 1);
    silent[0].set_read_timeout(Some(Duration::from_secs(5))).expect("it may be so long");
    let mut said = Vec::new();
    let ended = std::io::Read::read_to_end(&mut silent[0], &mut said);
    let waits = |error: &std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
    assert!(!ended.as_ref().is_err_and(waits), "the oldest is displaced: {ended:?}");
}

/// Faults on purpose: a slow device, one that fails, and a node whose messages are lost.
#[test]
fn faults_on_purpose_are_survived() {
    let mut cluster = Cluster::start_with(3, &[], "test_faults = true");
    cluster.loadline(&["volume", "create", "disk", "--size", "16MiB", "--at", "node-1"]);
    cluster.loadline(&["volume", "attach", "disk", "--node", "node-1"]);
    let stop = Arc::new(AtomicBool::new(false));
    let writers = Writers::start(&cluster.addresses(), "disk", 2, stop.clone());
    writers.wait_for(100);
    let devices = cluster.loadline(&["device", "list", "--json"]);
    let devices: serde_json::Value = serde_json::from_str(&devices).expect("it is JSON");
    let shown = cluster.loadline(&["volume", "show", "disk", "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).expect("it is JSON");
    let mut homes = shown["replicas"].as_array().expect("it has some").iter().map(|r| r["node"].clone());
    let other = homes.find(|home| home != "node-1").expect("it has two copies");
    let node: u8 =
        other.as_str().and_then(|name| name.strip_prefix("node-")?.parse().ok()).expect("a number");
    let device = devices.as_array().expect("there are some").iter().find(|d| d["node"] == other);
    let device = device.expect("it has one")["id"].clone();
    let fault = |body: String| {
        let (status, answer) = cluster.request(node, "POST", "/v1/test-faults", &body);
        assert_eq!(status, 200, "{answer}");
    };
    // Slow: everything waits for it.
    fault(format!(r#"{{"fault": "slow_device", "device": {device}, "milliseconds": 20}}"#));
    let begun = Instant::now();
    writers.wait_for(20);
    assert!(begun.elapsed() > Duration::from_millis(100), "{:?}", begun.elapsed());
    assert_eq!(cluster.request(node, "DELETE", "/v1/test-faults", "").0, 200);
    // No answer: it is excluded, and comes back.
    fault(r#"{"fault": "drop_peer", "node": "node-1"}"#.into());
    writers.wait_for(100);
    cluster.wait_until_not("disk", "healthy", Duration::from_secs(10));
    assert_eq!(cluster.request(node, "DELETE", "/v1/test-faults", "").0, 200);
    cluster.wait_until("disk", "healthy", Duration::from_secs(30));
    // Failed: it is excluded for as long as its node runs.
    fault(format!(r#"{{"fault": "fail_device", "device": {device}}}"#));
    writers.wait_for(100);
    cluster.wait_until_not("disk", "healthy", Duration::from_secs(10));
    cluster.kill(node);
    cluster.start_node(node);
    cluster.wait_until("disk", "healthy", Duration::from_secs(30));
    stop.store(true, Ordering::Relaxed);
    writers.join().check(&cluster.addresses(), "disk");
}

/// What a client does not take, and what many ask for at once, is no work for the node.
#[test]
fn clients_that_do_not_read_or_ask_for_very_much_take_no_more_than_their_share() {
    let mut cluster = Cluster::start(1);
    cluster.loadline(&["volume", "create", "disk", "--size", "64MiB", "--copies", "1"]);
    cluster.loadline(&["volume", "attach", "disk"]);
    nodes::client::many_behind_one(&cluster.addresses(), "disk", 24);
    assert!(cluster.runs(1));
    // More than one may ask at once are taken little by little; that there is more is not waited for more than once.
    let _much = nodes::client::many_reads(&cluster.addresses(), "disk", 1000);
    // The kernel does not show it while the ring is at work.
    let found = (0..50).map(|_| cluster.polls(1)).find(|polls| {
        std::thread::sleep(Duration::from_millis(20));
        *polls > 0
    });
    let polls = found.unwrap_or(0);
    assert!((1..16).contains(&polls), "two connections and the node's own are watched, {polls} times");
    let _silent = nodes::client::one_that_does_not_read(&cluster.addresses(), "disk");
    std::thread::sleep(Duration::from_secs(2));
    let before = cluster.cpu(1);
    std::thread::sleep(Duration::from_secs(2));
    let used = cluster.cpu(1) - before;
    assert!(used < Duration::from_millis(500), "it does nothing, and used {used:?} in 2 s");
    run(Command::new("nbdinfo").args(["--size", &format!("nbd://{}:10809/disk", cluster.addresses()[0])]));
}

/// The configuration is put back from a copy that knows nothing of a volume; the next one gets the same ids.
#[test]
fn what_an_older_configuration_does_not_know_is_not_overwritten() {
    let mut cluster = Cluster::start(1);
    let folder = cluster.folder().to_owned();
    let copy = |from: &str, to: &str| {
        for end in ["", "-wal", "-shm"] {
            let [from, to] = [from, to].map(|name| folder.join(format!("{name}{end}")));
            let _ = std::fs::remove_file(&to);
            if from.exists() {
                std::fs::copy(from, to).expect("there is room");
            }
        }
    };
    cluster.kill(1);
    copy("cluster.db", "older.db");
    cluster.start_node(1);
    cluster.loadline(&["volume", "create", "precious", "--size", "16MiB", "--copies", "1"]);
    cluster.loadline(&["volume", "attach", "precious"]);
    let stop = Arc::new(AtomicBool::new(false));
    let writers = Writers::start(&cluster.addresses(), "precious", 1, stop.clone());
    writers.wait_for(100);
    stop.store(true, Ordering::Relaxed);
    let journal = writers.join();
    cluster.kill(1);
    copy("cluster.db", "newer.db");
    copy("older.db", "cluster.db");
    cluster.start_node(1);
    let another = ["volume", "create", "another", "--size", "16MiB", "--copies", "1"];
    let (code, text) = cluster.try_loadline(&another);
    assert!(code != 0 && text.contains("an older copy of the configuration was put back"), "{text}");
    // The newer one is found.
    cluster.kill(1);
    copy("newer.db", "cluster.db");
    cluster.start_node(1);
    cluster.wait_until("precious", "healthy", Duration::from_secs(30));
    journal.check(&cluster.addresses(), "precious");
}

#[test]
fn the_tools_of_others_find_what_they_wrote() {
    let cluster = Cluster::start(2);
    cluster.loadline(&["volume", "create", "disk", "--size", "64MiB", "--stripes", "2"]);
    cluster.loadline(&["volume", "attach", "disk", "--node", "node-1"]);
    // By the owner, and by the other node.
    let uris: Vec<String> =
        cluster.addresses().iter().map(|address| format!("nbd://{address}:10809/disk")).collect();
    let image = cluster.folder().join("image");
    let back = cluster.folder().join("back");
    let (image, back) = (image.to_str().expect("it is text"), back.to_str().expect("it is text"));
    run(Command::new("truncate").args(["--size", "64M", image]));
    run(Command::new("mkfs.ext4").args(["-q", "-d", "/etc/ssl", image]));
    for uri in &uris {
        run(Command::new("nbdinfo").arg(uri));
        run(Command::new("qemu-img").args(["convert", "-n", "-f", "raw", "-O", "raw", image, uri]));
        run(Command::new("qemu-img").args(["compare", "-f", "raw", "-F", "raw", image, uri]));
        run(Command::new("nbdcopy").args([uri, back]));
        run(Command::new("cmp").args([image, back]));
        run(Command::new("e2fsck").args(["-f", "-n", back]));
        run(Command::new("qemu-io")
            .args(["-f", "raw", "-c", "write -P 7 513k 3584", "-c", "read -P 7 513k 3584"])
            .arg(uri));
        run(Command::new("qemu-io")
            .args(["-f", "raw", "-c", "discard 0 64M", "-c", "read -P 0 0 64M"])
            .arg(uri));
        let map = run(Command::new("nbdinfo").args(["--map", uri]));
        assert!(map.contains("hole,zero") && !map.contains("data"), "all was trimmed: {map}");
        run(Command::new("fio")
            .args(["--name=x", "--ioengine=nbd", "--rw=randwrite", "--bsrange=512-64k"])
            .args([
                "--iodepth=16",
                "--size=32m",
                "--verify=crc32c",
                "--verify_state_save=0",
                &format!("--uri={uri}"),
            ]));
    }
}

#[test]
fn what_cannot_be_is_said_and_nothing_changes() {
    let cluster = Cluster::start(2);
    let refused = |args: &[&str], why: &str| {
        let (code, text) = cluster.try_loadline(args);
        assert!(code == 2 && text.contains(why), "{args:?} gave {code}: {text}");
    };
    refused(
        &["volume", "create", "disk", "--size", "1GiB", "--copies", "3"],
        "add a node, or ask for fewer copies",
    );
    // In bytes, for the whole volume, with what is log, and what each device has free.
    for part in [
        "with 2 copies: each copy needs 1.59TiB (in 100 groups of at most 16.3GiB): 1.56TiB for data, 25GiB for logs",
        "evice 3 of node-1 has 894MiB of 894MiB free",
        "evice 4 of node-2 has 894MiB of 894MiB free",
        "add a device, make the volume smaller",
    ] {
        refused(&["volume", "create", "disk", "--size", "1600GiB"], part);
    }
    refused(&["volume", "create", "disk", "--size", "1MiB", "--tls"], "this cluster has no certificates");
    refused(&["volume", "create", "disk", "--size", "1MiB", "--log", "1MiB"], "a log of 1MiB is too small");
    for copies in ["0", "4", "255"] {
        let why = format!("{copies} copies are not possible: a volume has 1 to 3");
        refused(&["volume", "create", "disk", "--size", "1MiB", "--copies", copies], &why);
    }
    let body = r#"{"name": "disk", "bytes": 4096, "copies": 4}"#;
    let (status, answer) = cluster.request(1, "POST", "/v1/volumes", body);
    assert!(status == 400 && answer.contains("\"wrong\""), "{status} {answer}");
    for name in ["a/b", "..", ".x", "-x", "--help"] {
        refused(&["volume", "create", "--size", "1MiB", "--", name], "cannot be a name");
        let why = "cannot be a name";
        let (folder, file) = (cluster.folder().join("other"), cluster.folder().join("cluster.db"));
        let (folder, file) = (folder.to_str().expect("it is text"), file.to_str().expect("it is text"));
        let name = format!("--name={name}");
        refused(&["san", "join", file, &name, "--folder", folder, "--address", "127.0.0.1"], why);
    }
    refused(&["volume", "attach", "disk"], "there is no volume disk; there are none");
    cluster.loadline(&["volume", "create", "disk", "--size", "16MiB"]);
    refused(&["volume", "create", "disk", "--size", "16MiB"], "there is a volume disk already");
    refused(&["volume", "attach", "disk", "--node", "node-9"], "there are node-1 and node-2");
    cluster.loadline(&["volume", "attach", "disk"]);
    refused(&["volume", "delete", "disk", "--confirm", "disk"], "detach it first");
    refused(&["volume", "delete", "disk", "--confirm", "disc"], "nothing is deleted");
    let stop = Arc::new(AtomicBool::new(false));
    let writers = Writers::start(&cluster.addresses(), "disk", 1, stop.clone());
    writers.wait_for(10);
    refused(&["volume", "detach", "disk"], "stop its clients first");
    stop.store(true, Ordering::Relaxed);
    writers.join();
    cluster.loadline(&["volume", "detach", "disk"]);
    cluster.loadline(&["volume", "delete", "disk", "--confirm", "disk"]);
    let begun = Instant::now();
    while cluster.loadline(&["device", "list", "--json"]).contains("\"replicas\": 1") {
        assert!(begun.elapsed() < Duration::from_secs(10), "its replicas are removed");
        std::thread::sleep(Duration::from_millis(100));
    }
}
