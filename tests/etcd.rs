//! Clusters whose configuration is in an etcd: what they write to it, and what happens while it is away.

#[path = "../san/node/src/config/etcd/tests/server.rs"]
mod etcd;
mod nodes;
#[path = "../san/node/src/config/etcd/tests/proxy.rs"]
mod proxy;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use etcd::Server;
use nodes::Cluster;
use nodes::client::{Nbd, Writers};
use proxy::Proxy;

const PREFIX: &str = "cluster";

fn start(server: &Server) -> Cluster {
    start_at(&server.endpoints())
}

fn start_at(endpoints: &str) -> Cluster {
    let cluster = Cluster::start_with_store(3, format!("etcd://{endpoints}/{PREFIX}"));
    cluster.loadline(&["volume", "create", "disk", "--size", "64MiB"]);
    cluster.loadline(&["volume", "attach", "disk", "--node", "node-1"]);
    cluster.wait_until("disk", "healthy", Duration::from_secs(20));
    cluster
}

/// The revision of an etcd: one more after each commit.
fn revision(server: &Server) -> u64 {
    let text = server.output(&["--endpoints", &server.endpoint(0), "get", "x", "-w", "json"]);
    let answer: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
    answer["header"]["revision"].as_u64().expect("it is a number")
}

/// The keys that were changed last after a revision, each with its number of changes since it was made.
fn changed(server: &Server, revision: u64) -> Vec<String> {
    let text = server.output(&["--endpoints", &server.endpoint(0), "get", "", "--prefix", "-w", "fields"]);
    let mut changed = Vec::new();
    let mut key = String::new();
    for line in text.lines() {
        match line.split_once(" : ") {
            Some(("\"Key\"", name)) => key = name.to_owned(),
            Some(("\"ModRevision\"", at)) if at.parse().is_ok_and(|at: u64| at > revision) => {
                changed.push(format!("{key} at {at}"));
            }
            _ => {}
        }
    }
    changed
}

/// Nothing is written to etcd while nothing changes; and few times when a node dies and returns.
#[test]
fn a_cluster_writes_to_etcd_only_when_something_changes() {
    let server = Server::start(1);
    let mut cluster = start(&server);
    let stop = Arc::new(AtomicBool::new(false));
    let writers = Writers::start(&cluster.addresses(), "disk", 1, stop.clone());
    writers.wait_for(200);
    let before = revision(&server);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(6) {
        writers.wait_for(200);
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(revision(&server), before, "the steady state writes nothing");
    // Of a node with a copy that dies: the volume goes on without it, with at most three writes.
    let owner = cluster.owner("disk");
    let copies = cluster.loadline(&["volume", "show", "disk"]);
    let other = (1..=3).find(|node| *node != owner && copies.contains(&format!("node-{node}")));
    let victim = other.expect("there are two copies");
    cluster.kill(victim);
    writers.wait_for(400);
    cluster.wait_until_not("disk", "healthy", Duration::from_secs(20));
    std::thread::sleep(Duration::from_secs(2));
    let writes = revision(&server) - before;
    assert!(
        (1..=3).contains(&writes),
        "{writes} writes for a copy that is lost: {:?}",
        changed(&server, before)
    );
    cluster.start_node(victim);
    cluster.wait_until("disk", "healthy", Duration::from_secs(30));
    // Of the owner: two for the takeover. (Clients that connect again raise the number of the attachment.)
    stop.store(true, Ordering::Relaxed);
    let journal = writers.join();
    let before = revision(&server);
    cluster.kill(owner);
    cluster.wait_until_not("disk", "healthy", Duration::from_secs(20));
    cluster.wait_until("disk", "degraded", Duration::from_secs(20));
    std::thread::sleep(Duration::from_secs(2));
    let writes = revision(&server) - before;
    assert!(
        (1..=3).contains(&writes),
        "{writes} writes for an owner that is lost: {:?}",
        changed(&server, before)
    );
    cluster.start_node(owner);
    cluster.wait_until("disk", "healthy", Duration::from_secs(30));
    journal.check(&cluster.addresses(), "disk");
}

/// For how many seconds the test is without a majority. A test by hand may be longer.
fn without_majority() -> u64 {
    std::env::var("LOADLINE_TEST_WITHOUT_MAJORITY_S").map_or(8, |text| text.parse().expect("it is a number"))
}

/// Without a majority of etcd nothing changes, and clients do not notice. It is said since when. All goes on by itself when the members are
/// there again.
#[test]
fn losing_etcd_stops_changes_and_not_clients() {
    let server = Server::start(3);
    let mut cluster = start(&server);
    let stop = Arc::new(AtomicBool::new(false));
    let writers = Writers::start(&cluster.addresses(), "disk", 2, stop.clone());
    writers.wait_for(200);
    // The cluster works on while one member of three is gone.
    server.kill(0);
    writers.wait_for(200);
    // If it was the leader, the others elect one first: on a busy machine that takes longer than one command waits.
    let begun = Instant::now();
    loop {
        let (code, text) = cluster.try_loadline(&["volume", "create", "other", "--size", "16MiB"]);
        if code == 0 || text.contains("there is a volume other already") {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{text}");
    }
    server.kill(1);
    let begun = Instant::now();
    let seconds = without_majority();
    while begun.elapsed() < Duration::from_secs(seconds) {
        writers.wait_for(200);
    }
    let begun = Instant::now();
    let (code, text) = cluster.try_loadline(&["san", "status"]);
    assert!(begun.elapsed() < Duration::from_secs(3), "a status waits for etcd: {:?}", begun.elapsed());
    println!("a status takes {:?}: {text}", begun.elapsed());
    assert!(
        code == 1 && text.contains("Nothing in the configuration can be changed (for "),
        "{code}: {text}"
    );
    let shown =
        text.split("can be changed (for ").nth(1).and_then(|text| text.split(' ').next()?.parse().ok());
    assert!(shown.is_some_and(|shown: u64| (seconds - 2..seconds + 12).contains(&shown)), "{text}");
    assert!(text.contains("stays usable as long as all its copies in sync answer"), "{text}");
    // Equal notes are printed once, and no state is called healthy beside those that are not known.
    let notes = text.lines().filter(|line| line.contains("this is the last known state")).count();
    assert!(notes == 1 && text.contains("2 volumes (disk, other): the configuration"), "{text}");
    assert!(!text.contains("healthy"), "{text}");
    let begun = Instant::now();
    let (code, text) = cluster.try_loadline(&["volume", "create", "third", "--size", "16MiB"]);
    assert!(code != 0 && text.contains("etcd"), "{code}: {text}");
    assert!(
        begun.elapsed() < Duration::from_secs(15),
        "a command ends within a limit: {:?}",
        begun.elapsed()
    );
    // A client that comes to the owner meanwhile is not refused: it waits until etcd answers.
    let owner = cluster.owner("disk");
    let connected = Nbd::connect_within(cluster.address(owner), "disk", Duration::from_secs(15));
    let mut waiting = connected.expect("it may choose the volume");
    // A node with a copy dies: writes wait, since the set of copies cannot change.
    let copies = cluster.loadline(&["volume", "show", "other"]);
    assert!(!copies.is_empty());
    let victim = (1..=3).find(|node| *node != owner).expect("there are three");
    cluster.kill(victim);
    server.restart(0);
    server.restart(1);
    let begun = Instant::now();
    writers.wait_for(400);
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    waiting.read(16_000).expect("a client that has waited is served");
    cluster.start_node(victim);
    cluster.wait_until("disk", "healthy", Duration::from_secs(30));
    cluster.loadline(&["volume", "create", "fourth", "--size", "16MiB"]);
    stop.store(true, Ordering::Relaxed);
    writers.join().check(&cluster.addresses(), "disk");
}

/// An etcd that needs a second for each commit. Volumes are served, faults are survived, and commands wait for their commits only.
#[test]
fn a_slow_etcd_delays_changes_and_nothing_is_lost() {
    let server = Server::start(1);
    let proxy = Proxy::start(server.endpoint(0));
    let mut cluster = start_at(proxy.endpoint());
    proxy.delay_commits(Duration::from_secs(1));
    let stop = Arc::new(AtomicBool::new(false));
    let writers = Writers::start(&cluster.addresses(), "disk", 2, stop.clone());
    writers.wait_for(200);
    let begun = Instant::now();
    cluster.loadline(&["volume", "create", "other", "--size", "16MiB"]);
    let took = begun.elapsed();
    assert!(
        (Duration::from_secs(2)..Duration::from_secs(20)).contains(&took),
        "it is slow, and ends: {took:?}"
    );
    // It answers reads at once. On a busy machine one may take longer than status waits.
    let begun = Instant::now();
    loop {
        let (code, text) = cluster.try_loadline(&["san", "status"]);
        if code == 0 {
            break;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "an etcd that is slow is not away: {code}, {text}"
        );
    }
    // A node with a copy dies, and then the owner: each change of the record takes a second or more.
    let owner = cluster.owner("disk");
    let copies = cluster.loadline(&["volume", "show", "disk"]);
    let victim = (1..=3).find(|node| *node != owner && copies.contains(&format!("node-{node}")));
    let victim = victim.expect("there are two copies");
    for (victim, is_owner) in [(victim, false), (owner, true)] {
        if is_owner {
            // A takeover needs two commits, and then each client one: clients wait 4 s for it.
            proxy.delay_commits(Duration::from_millis(500));
        }
        cluster.kill(victim);
        let begun = Instant::now();
        writers.wait_for(400);
        println!("clients go on after {:?}", begun.elapsed());
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
        if is_owner {
            proxy.delay_commits(Duration::ZERO);
        }
        let begun = Instant::now();
        cluster.start_node(victim);
        println!("the node has started after {:?}", begun.elapsed());
        cluster.wait_until("disk", "healthy", Duration::from_secs(40));
        println!("the copy is back after {:?}", begun.elapsed());
    }
    let begun = Instant::now();
    cluster.loadline(&["volume", "create", "third", "--size", "16MiB"]);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    stop.store(true, Ordering::Relaxed);
    writers.join().check(&cluster.addresses(), "disk");
}

/// A node that starts while etcd is away waits for it, and says so once.
#[test]
fn a_node_that_starts_without_etcd_waits_for_it() {
    let server = Server::start(1);
    let mut cluster = start(&server);
    cluster.kill(3);
    server.kill(0);
    let mut node = cluster.spawn_node(3);
    std::thread::sleep(Duration::from_secs(5));
    assert!(node.try_wait().expect("it is ours").is_none(), "it waits: {}", cluster.log(3));
    server.restart(0);
    cluster.adopt(3, node);
    let log = cluster.log(3);
    assert_eq!(
        log.matches("waits for the configuration store: no member of etcd answers").count(),
        1,
        "{log}"
    );
}

/// Twelve stripes of three copies: as many replicas as a volume of moderate size may have.
#[test]
fn a_wide_volume_is_made_used_and_deleted() {
    let server = Server::start(1);
    let cluster = Cluster::start_with_store(3, format!("etcd://{}/{PREFIX}", server.endpoints()));
    let options = ["--size", "96MiB", "--copies", "3", "--stripes", "12", "--log", "32MiB"];
    cluster.loadline(&[&["volume", "create", "wide"][..], &options].concat());
    cluster.loadline(&["volume", "attach", "wide", "--node", "node-1"]);
    cluster.wait_until("wide", "healthy", Duration::from_secs(20));
    cluster.loadline(&["volume", "detach", "wide"]);
    cluster.loadline(&["volume", "delete", "wide", "--confirm", "wide"]);
    assert!(!cluster.loadline(&["volume", "list"]).contains("wide"));
}

/// A cluster moves from a SQLite file to an etcd while its volumes are in use. The nodes follow, and need the file no more.
#[test]
fn a_cluster_moves_from_sqlite_to_etcd_while_it_is_used() {
    let server = Server::start(3);
    let mut cluster = Cluster::start(3);
    cluster.loadline(&["volume", "create", "disk", "--size", "64MiB"]);
    cluster.loadline(&["volume", "attach", "disk", "--node", "node-1"]);
    let stop = Arc::new(AtomicBool::new(false));
    let writers = Writers::start(&cluster.addresses(), "disk", 2, stop.clone());
    writers.wait_for(200);
    let (file, url) = (cluster.file(), format!("etcd://{}/{PREFIX}", server.endpoints()));
    let said = cluster.loadline(&["san", "move-store", &file, &url]);
    assert!(said.contains("keys) is in etcd://"), "{said}");
    writers.wait_for(200);
    let begun = Instant::now();
    for node in 1..=3 {
        while !cluster.node_toml(node).contains("etcd://") {
            assert!(begun.elapsed() < Duration::from_secs(20), "{}", cluster.log(node));
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    ["", "-wal", "-shm"].iter().for_each(|end| _ = std::fs::remove_file(format!("{file}{end}")));
    cluster.wait_until("disk", "healthy", Duration::from_secs(20));
    cluster.loadline(&["volume", "create", "other", "--size", "16MiB"]);
    for victim in [2, 1] {
        cluster.kill(victim);
        writers.wait_for(200);
        cluster.start_node(victim);
        cluster.wait_until("disk", "healthy", Duration::from_secs(30));
    }
    stop.store(true, Ordering::Relaxed);
    writers.join().check(&cluster.addresses(), "disk");
    let (code, text) = cluster.try_loadline(&["san", "move-store", &file, &url]);
    assert!(code == 2 && text.contains("there is no cluster"), "{text}");
}

#[test]
fn what_is_not_there_or_is_wrong_is_named() {
    let server = Server::start(1);
    let cluster = Cluster::start_with_store(1, format!("etcd://{}/{PREFIX}", server.endpoints()));
    for (url, named) in [
        (format!("etcd://{}/{PREFIX}", server.endpoints()), "there is a cluster at"),
        ("etcd://127.0.0.1:1".into(), "refused"),
        ("etcd://a b".into(), "does not name a member of etcd"),
        (format!("etcd://{}/x?user=root&password-file=/nowhere", server.endpoints()), "/nowhere"),
        (format!("etcd://{}/x?ca=/nowhere", server.endpoints()), "/nowhere"),
    ] {
        let (code, text) = cluster.try_loadline(&["san", "init", &url]);
        assert!(code == 2 && text.contains(named), "{url}: {code}: {text}");
    }
    // Without authentication nothing may be beyond one machine.
    let open = |url: &str| cluster.try_loadline(&["san", "init", url, "--transport", "open"]);
    let (code, text) = open("etcd://10.0.0.1");
    assert!(code == 2 && text.contains("10.0.0.1:2379 is not named by a loopback address"), "{code}: {text}");
    let (code, text) = open(&format!("etcd://{}/open", server.endpoints()));
    assert!(code == 0 && text.contains("all nodes must run on this machine"), "{code}: {text}");
}

/// A member that is gone, and one whose database is full, are named in the status, with what helps.
#[test]
fn the_status_names_members_that_are_gone_and_alarms() {
    let server = Server::with(3, &["--quota-backend-bytes", "4194304"]);
    let cluster = start(&server);
    let (code, text) = cluster.try_loadline(&["san", "status"]);
    assert_eq!(code, 0, "{text}");
    let count = |text: &str, what: &str| text.matches(what).count();
    assert!(count(&text, "leads (etcd 3") == 1 && count(&text, "follows (etcd 3") == 2, "{text}");
    assert!(text.contains(" ms\n"), "how long writes to the log take: {text}");
    let value = "x".repeat(100_000);
    for number in 0..80 {
        server.etcdctl(&["--endpoints", &server.endpoint(0), "put", &format!("filler/{number}"), &value]);
    }
    let (code, text) = cluster.try_loadline(&["san", "status"]);
    assert!(
        code == 3 && text.contains("alarm NOSPACE") && text.contains("etcdctl alarm disarm"),
        "{code}: {text}"
    );
    server.kill(2);
    let (code, text) = cluster.try_loadline(&["san", "status"]);
    assert!(code == 3 && text.contains("does not answer"), "{code}: {text}");
}
