//! The configuration store: an older one that is put back, and a file that is deleted or replaced under running nodes.

mod nodes;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nodes::client::{self, Journal, Nbd, Writers};
use nodes::{Cluster, run};
use rusqlite::OptionalExtension;

/// Writes so often, with two clients.
fn write(cluster: &Cluster, writes: u64) -> Journal {
    let stop = Arc::new(AtomicBool::new(false));
    let writers = Writers::start(&cluster.addresses(), "disk", 2, stop.clone());
    writers.wait_for(writes);
    stop.store(true, Ordering::Relaxed);
    writers.join()
}

/// A copy of the configuration as SQLite's own tool makes it.
fn back_up(cluster: &Cluster, name: &str) {
    let to = cluster.folder().join(name);
    run(Command::new("sqlite3").arg(cluster.file()).arg(format!(".backup {}", to.display())));
}

/// Puts a copy in the place of the configuration. No node runs.
fn put_back(cluster: &Cluster, name: &str) {
    for end in ["-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{end}", cluster.file()));
    }
    std::fs::copy(cluster.folder().join(name), cluster.file()).expect("there is room");
}

/// Waits until this command ends with this code and prints this.
fn wait_for(cluster: &Cluster, args: &[&str], code: i32, text: &str, limit: Duration) -> String {
    let begun = Instant::now();
    loop {
        let (ended, shown) = cluster.try_loadline(args);
        if ended == code && shown.contains(text) {
            return shown;
        }
        assert!(
            begun.elapsed() < limit,
            "{args:?} is to end with {code} and print {text:?}: {ended}: {shown}"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn count(text: &str, part: &str) -> usize {
    text.matches(part).count()
}

/// A backup that was made while a volume was being made has the volume as unfinished. It is put back after clients have written to the volume:
/// the nodes take the volume back and keep its copies, so that it is served again with the newest configuration.
#[test]
fn a_backup_of_a_volume_that_is_being_made_removes_no_copy_that_was_used() {
    let mut cluster = Cluster::start(3);
    let wanted =
        r#"{"names": ["disk"], "bytes": 16777216, "copies": 3, "log_bytes": 33554432, "attach": true}"#;
    // A node that is stopped makes no copies, so the command waits.
    cluster.signal(3, "STOP");
    let _client = cluster.begin_request(1, "/v1/volume-batch", wanted);
    let limit = Duration::from_secs(20);
    wait_for(&cluster, &["volume", "list"], 0, "disk", limit);
    back_up(&cluster, "older.db");
    cluster.signal(3, "CONT");
    cluster.wait_until("disk", "healthy", limit);
    let journal = write(&cluster, 100);
    (1..=3).for_each(|node| cluster.kill(node));
    back_up(&cluster, "newer.db");
    put_back(&cluster, "older.db");
    (1..=3).for_each(|node| cluster.start_node(node));
    let begun = Instant::now();
    loop {
        let (code, shown) = cluster.try_loadline(&["device", "list"]);
        if code == 0 && count(&shown, "1 copy is not removed") == 3 {
            break;
        }
        assert!(begun.elapsed() < limit, "all copies stay: {shown}");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(!cluster.loadline(&["volume", "list"]).contains("disk"));
    (1..=3).for_each(|node| cluster.kill(node));
    put_back(&cluster, "newer.db");
    (1..=3).for_each(|node| cluster.start_node(node));
    cluster.wait_until("disk", "healthy", Duration::from_secs(30));
    journal.check(&cluster.addresses(), "disk");
}

/// An older configuration names a copy as in sync that has missed writes since. No copy serves before a person has decided, and one
/// command decides it.
#[test]
fn an_older_configuration_blocks_a_volume_until_a_person_decides() {
    let mut cluster = Cluster::start(3);
    cluster.loadline(&["volume", "create", "disk", "--size", "16MiB", "--copies", "3"]);
    cluster.loadline(&["volume", "attach", "disk", "--node", "node-1"]);
    write(&cluster, 50);
    back_up(&cluster, "older.db");
    cluster.kill(3);
    write(&cluster, 200);
    cluster.start_node(3);
    cluster.wait_until("disk", "healthy", Duration::from_secs(30));
    // The third node misses the last writes for good.
    cluster.kill(3);
    let journal = write(&cluster, 200);
    back_up(&cluster, "newer.db");
    (1..=2).for_each(|node| cluster.kill(node));
    put_back(&cluster, "older.db");
    (1..=3).for_each(|node| cluster.start_node(node));

    let limit = Duration::from_secs(15);
    let begun = Instant::now();
    loop {
        let (code, shown) = cluster.try_loadline(&["san", "status"]);
        assert!(code == 1 && !shown.contains("healthy"), "it is never well: {code}: {shown}");
        if shown.contains("blocked") && shown.contains("--force") {
            break;
        }
        assert!(begun.elapsed() < limit, "{shown}");
        std::thread::sleep(Duration::from_millis(100));
    }
    let shown = cluster.wait_until("disk", "blocked", Duration::from_secs(1));
    for node in ["node-1 follows node-", "node-2 follows node-", "node-3 follows node-"] {
        assert!(shown.contains(node), "{shown}");
    }
    // The data path has found it out too, and has logged it once.
    while !(1..=3).all(|node| count(&cluster.log(node), "volume disk is blocked") == 1) {
        assert!(begun.elapsed() < limit, "each node logs it");
        std::thread::sleep(Duration::from_millis(100));
    }
    client::read_once(cluster.addresses()[0], "disk").expect_err("no copy serves");
    let (_, shown) = cluster.try_loadline(&["san", "status", "--probe"]);
    assert!(shown.contains("probe of disk: not read"), "{shown}");

    // The newer one is found: the volume is served again without a decision.
    (1..=3).for_each(|node| cluster.kill(node));
    put_back(&cluster, "newer.db");
    (1..=3).for_each(|node| cluster.start_node(node));
    cluster.wait_until("disk", "healthy", Duration::from_secs(30));
    journal.check(&cluster.addresses(), "disk");
    let journal = write(&cluster, 100);

    // It is lost: a person decides.
    (1..=3).for_each(|node| cluster.kill(node));
    put_back(&cluster, "older.db");
    (1..=3).for_each(|node| cluster.start_node(node));
    cluster.wait_until("disk", "blocked", limit);
    let (code, text) = cluster.try_loadline(&["volume", "recover", "disk", "--from", "node-2"]);
    assert!(code == 2 && text.contains("older configuration") && text.contains("add --force"), "{text}");
    // The nodes have found it out too. (A decision may also come before that.)
    let begun = Instant::now();
    while !(1..=3).all(|node| count(&cluster.log(node), "volume disk is blocked") == 2) {
        assert!(begun.elapsed() < limit, "each node logs it once more");
        std::thread::sleep(Duration::from_millis(100));
    }
    cluster.loadline(&["volume", "recover", "disk", "--from", "node-2", "--force"]);
    cluster.wait_until("disk", "healthy", Duration::from_secs(30));
    journal.check(&cluster.addresses(), "disk");
    wait_for(&cluster, &["san", "status", "--probe"], 0, "probe of disk: read through", limit);
    // Each copy has it.
    for alone in 1..=3 {
        (1..=3).filter(|node| *node != alone).for_each(|node| cluster.kill(node));
        journal.check(&cluster.addresses(), "disk");
        (1..=3).filter(|node| *node != alone).for_each(|node| cluster.start_node(node));
        cluster.wait_until("disk", "healthy", Duration::from_secs(30));
    }
}

/// How the configuration was when the backup was made.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Resizing {
    /// The new copies are being made.
    Planned,
    /// The owner is ordered to change the record.
    Ordered,
}

/// Where clients write after the resize.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Writes {
    /// In the new group only: copies of the old group get no write after it.
    NewGroup,
    /// In the new part of the old group as well.
    Both,
}

const GIB_BLOCKS: u64 = 1 << 18;

/// The backup of a configuration in which a volume is being made larger is put back after clients have written to its new part.
fn a_backup_that_was_made_during_a_resize(resizing: Resizing, writes: Writes) {
    let mut cluster = Cluster::start(3);
    for node in 1..=3 {
        // It takes no more room than is written to it. A group has 16 GiB at most.
        let device = cluster.node_folder(node).join("large");
        let file = std::fs::File::create_new(&device).expect("there is room");
        file.set_len(24 << 30).expect("it can be so long");
        cluster.loadline_at(node, &["device", "add", device.to_str().expect("it is text")]);
    }
    let kind = ["--size", "1GiB", "--copies", "3", "--log", "32MiB", "--at", "node-1", "--attach"];
    cluster.loadline(&[&["volume", "create", "disk"][..], &kind].concat());
    let limit = Duration::from_secs(30);
    cluster.wait_until("disk", "healthy", limit);
    let mut written: Vec<(u64, u8)> = Vec::new();
    let write = |cluster: &Cluster, blocks: &[u64], written: &mut Vec<(u64, u8)>| {
        let mut client = Nbd::connect(cluster.address(1), "disk").expect("it is served");
        for block in blocks {
            let byte = written.len() as u8 + 1;
            client.write(*block, byte).expect("it is written");
            written.push((*block, byte));
        }
    };
    let check = |cluster: &Cluster, written: &[(u64, u8)]| {
        let mut client = Nbd::connect(cluster.address(1), "disk").expect("it is served");
        for (block, byte) in written {
            assert_eq!(client.read(*block).expect("it is read"), *byte, "block {block}");
        }
    };
    write(&cluster, &[0, GIB_BLOCKS - 1], &mut written);
    // A node that is stopped makes no copies, so the command waits.
    cluster.signal(3, "STOP");
    let _client = cluster.begin_request(1, "/v1/volumes/disk/resize", r#"{"bytes": 18253611008}"#);
    let plan = |cluster: &Cluster| -> Option<(String, String)> {
        let store = rusqlite::Connection::open(cluster.file()).expect("it is there");
        let row = "SELECT key, CAST(value AS TEXT) FROM entry WHERE key LIKE 'plan/%'";
        store.query_row(row, [], |row| Ok((row.get(0)?, row.get(1)?))).optional().expect("it can be read")
    };
    let begun = Instant::now();
    while plan(&cluster).is_none() {
        assert!(begun.elapsed() < limit, "it is planned");
        std::thread::sleep(Duration::from_millis(20));
    }
    back_up(&cluster, "older.db");
    if resizing == Resizing::Ordered {
        let (key, value) = plan(&cluster).expect("the command waits");
        let ordered = value.replace(r#""ordered":false"#, r#""ordered":true"#);
        assert_ne!(ordered, value);
        let store = rusqlite::Connection::open(cluster.folder().join("older.db")).expect("it is there");
        let row = "UPDATE entry SET value = CAST(?1 AS BLOB) WHERE key = ?2";
        assert_eq!(store.execute(row, [&ordered, &key]).expect("it can be changed"), 1);
    }
    cluster.signal(3, "CONT");
    wait_for(&cluster, &["volume", "show", "disk"], 0, "17GiB", limit);
    cluster.wait_until("disk", "healthy", limit);
    let begun = Instant::now();
    while plan(&cluster).is_some() {
        assert!(begun.elapsed() < limit, "the command ends");
        std::thread::sleep(Duration::from_millis(20));
    }
    write(&cluster, &[16 * GIB_BLOCKS + 7, 17 * GIB_BLOCKS - 1], &mut written);
    if writes == Writes::Both {
        write(&cluster, &[GIB_BLOCKS, 9 * GIB_BLOCKS], &mut written);
    }
    (1..=3).for_each(|node| cluster.kill(node));
    back_up(&cluster, "newer.db");
    put_back(&cluster, "older.db");
    (1..=3).for_each(|node| cluster.start_node(node));

    // The copies of the former part keep that the record has changed, also if nothing was written there since (rule P5).
    cluster.wait_until("disk", "blocked", limit);
    let shown = wait_for(&cluster, &["volume", "show", "disk"], 0, "--force", limit);
    println!("{resizing:?} {writes:?}: {shown}");

    // With the newest configuration everything is there again.
    (1..=3).for_each(|node| cluster.kill(node));
    put_back(&cluster, "newer.db");
    (1..=3).for_each(|node| cluster.start_node(node));
    cluster.wait_until("disk", "healthy", limit);
    check(&cluster, &written);
}

#[test]
fn a_backup_of_a_resize_that_was_planned_loses_nothing_of_the_new_group() {
    a_backup_that_was_made_during_a_resize(Resizing::Planned, Writes::NewGroup);
}

#[test]
fn a_backup_of_a_resize_that_was_planned_loses_nothing_of_the_new_part() {
    a_backup_that_was_made_during_a_resize(Resizing::Planned, Writes::Both);
}

#[test]
fn a_backup_of_a_resize_that_was_ordered_loses_nothing() {
    a_backup_that_was_made_during_a_resize(Resizing::Ordered, Writes::NewGroup);
}

/// An older copy is written into the store while nodes run, and its revision grows above the one that they know before they read it. They find that
/// out, and from then on propose no record: it would replace one of another history.
#[test]
fn an_older_configuration_that_has_grown_is_noticed_by_running_nodes_and_no_record_is_changed() {
    let cluster = Cluster::start(3);
    cluster.loadline(&["volume", "create", "disk", "--size", "16MiB", "--copies", "2"]);
    cluster.loadline(&["volume", "attach", "disk", "--node", "node-1"]);
    let limit = Duration::from_secs(30);
    cluster.wait_until("disk", "healthy", limit);
    let mut client = Nbd::connect(cluster.address(1), "disk").expect("it is served");
    client.write(0, 1).expect("two copies are in sync");
    back_up(&cluster, "older.db");
    cluster.loadline(&["volume", "create", "other", "--size", "16MiB", "--copies", "2"]);
    let open = |cluster: &Cluster| {
        let store = rusqlite::Connection::open(cluster.file()).expect("it is there");
        store.busy_timeout(Duration::from_secs(5)).expect("it may be so long");
        store
    };
    let older = cluster.folder().join("older.db");
    let begun = Instant::now();
    loop {
        // Nodes read it only when it has grown.
        (1..=3).for_each(|node| cluster.signal(node, "STOP"));
        let mut restore = Command::new("sqlite3");
        restore.arg(cluster.file()).arg(format!(".restore {}", older.display()));
        let restored = restore.output().expect("it is installed");
        if restored.status.success() {
            break;
        }
        // A node was stopped while it used the file.
        assert!(begun.elapsed() < limit, "{}", String::from_utf8_lossy(&restored.stderr));
        (1..=3).for_each(|node| cluster.signal(node, "CONT"));
        std::thread::sleep(Duration::from_millis(20));
    }
    open(&cluster).execute("UPDATE revision SET number = number + 100", []).expect("it can be changed");
    (1..=3).for_each(|node| cluster.signal(node, "CONT"));
    let begun = Instant::now();
    while !(1..=3).all(|node| count(&cluster.log(node), "the configuration store went back") == 1) {
        assert!(begun.elapsed() < limit, "each node logs it: {}", cluster.log(1));
        std::thread::sleep(Duration::from_millis(50));
    }
    let shown = wait_for(&cluster, &["san", "status"], 1, "an older copy was put back", limit);
    assert!(shown.contains("restarted"), "{shown}");
    let (code, text) = cluster.try_loadline(&["volume", "create", "third", "--size", "16MiB"]);
    assert!(code != 0 && text.contains("an older copy was put back"), "{code}: {text}");
    // A node with a copy dies: the other one would be alone in the record.
    let revision = || -> u64 {
        open(&cluster).query_row("SELECT number FROM revision", [], |row| row.get(0)).expect("it has one")
    };
    let before = revision();
    let copies = cluster.loadline(&["volume", "show", "disk"]);
    let victim = (2..=3).find(|node| copies.contains(&format!("node-{node}"))).expect("there are two copies");
    cluster.signal(victim, "KILL");
    // Longer than a node waits before it proposes to go on without the other copy.
    client.wait_for(Duration::from_secs(5));
    client.write(0, 2).expect_err("no write is acknowledged by one copy");
    assert_eq!(revision(), before, "nothing is changed in the older copy");
}

/// What is written into a file that was unlinked is lost when the last process closes it. It is noticed, and what needs no change
/// of the configuration goes on.
#[test]
fn a_configuration_file_that_is_deleted_or_replaced_is_noticed() {
    let cluster = Cluster::start(2);
    cluster.loadline(&["volume", "create", "disk", "--size", "16MiB"]);
    cluster.loadline(&["volume", "attach", "disk", "--node", "node-1"]);
    let stop = Arc::new(AtomicBool::new(false));
    let writers = Writers::start(&cluster.addresses(), "disk", 2, stop.clone());
    writers.wait_for(50);
    let file = cluster.file();
    let away = cluster.folder().join("away.db");
    let kept = cluster.folder().join("kept.db");
    std::fs::hard_link(&file, &kept).expect("it is there");
    back_up(&cluster, "other.db");
    let create = |name: &str| cluster.try_loadline(&["volume", "create", name, "--size", "16MiB"]);
    let refused = |what: &str| {
        let begun = Instant::now();
        let (code, text) = create("one");
        assert!(code == 1 && text.contains(what) && text.contains(&file), "{code}: {text}");
        let other = "node node-2: the file of";
        let shown = wait_for(&cluster, &["san", "status"], 1, other, Duration::from_secs(3));
        assert!(shown.contains("node node-1: the file of") && shown.contains(what), "{shown}");
        let (_, shown) = cluster.try_loadline(&["volume", "show", "disk"]);
        assert!(shown.contains("state     unknown"), "a failure would not be handled: {shown}");
        assert!(shown.contains("the configuration store is not used"), "{shown}");
        for node in [1, 2] {
            while count(&cluster.log(node), what) == 0 {
                assert!(begun.elapsed() < Duration::from_secs(5), "node {node} logs it");
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        // Long enough to be logged again.
        writers.wait_for(200);
        std::thread::sleep(Duration::from_secs(1));
        for node in [1, 2] {
            assert_eq!(count(&cluster.log(node), what), 1, "node {node} logs it once");
        }
        // A new client needs a change of the record.
        client::read_once(cluster.addresses()[0], "disk").expect_err("it is not let in");
    };
    // It is moved away, and comes back: nothing was done in it meanwhile.
    std::fs::rename(&file, &away).expect("it is there");
    refused("was deleted or moved away");
    std::fs::rename(&away, &file).expect("it is there");
    wait_for(&cluster, &["san", "status"], 0, "healthy", Duration::from_secs(5));
    let (code, text) = create("two");
    assert_eq!(code, 0, "{text}");
    let (code, text) = create("one");
    assert_eq!(code, 0, "it was not made before: {text}");
    // Another one is put over it.
    assert!(Path::new(&file).exists());
    std::fs::rename(cluster.folder().join("other.db"), &file).expect("it is there");
    refused("was replaced by another file");
    // The one that they had opened comes back.
    std::fs::rename(&kept, &file).expect("it is there");
    wait_for(&cluster, &["san", "status"], 0, "healthy", Duration::from_secs(5));
    stop.store(true, Ordering::Relaxed);
    writers.join().check(&cluster.addresses(), "disk");
}
