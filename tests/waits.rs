//! Clients wait while their volume is not served, and are disconnected rather than answered with an error when this node loses it.

mod nodes;

use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use loadline_san_core::ids::{Incarnation, NodeId, Owner, ProposalId};
use loadline_san_protocol::record;
use nodes::Cluster;
use nodes::client::{Nbd, meanwhile};

/// A client that goes on by itself: it writes to one of these nodes, and connects again when its connection has ended. An answer
/// that is an error is a failure.
fn goes_on(cluster: &Cluster, number: u64, stop: &AtomicBool, writes: &AtomicU64) {
    let addresses = cluster.addresses();
    let (mut client, mut turn) = (None, number);
    while !stop.load(Ordering::Relaxed) {
        turn += 1;
        let nbd = match &mut client {
            Some(nbd) => nbd,
            None => match Nbd::connect(addresses[turn as usize % addresses.len()], "d") {
                Ok(nbd) => client.insert(nbd),
                Err(_) => {
                    std::thread::sleep(Duration::from_millis(5));
                    continue;
                }
            },
        };
        nbd.wait_for(Duration::from_secs(90));
        match nbd.write(number, turn as u8) {
            Ok(()) => _ = writes.fetch_add(1, Ordering::Relaxed),
            Err(why) => {
                let ended = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
                assert!(ended.contains(&why.kind()), "a client is disconnected, not answered: {why}");
                client = None;
            }
        }
    }
}

/// What a line of `volume show` says.
fn shown<'a>(text: &'a str, what: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(what)).map(str::trim)
}

#[test]
fn a_volume_that_is_detached_and_attached_elsewhere_is_owned_there_whoever_reconnects() {
    let cluster = Cluster::start(3);
    cluster.loadline(&["volume", "create", "d", "--size", "16MiB", "--copies", "2"]);
    cluster.loadline(&["volume", "attach", "d", "--node", "node-1"]);
    let (stop, writes) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for number in 0..8 {
            let (cluster, stop, writes) = (&cluster, &stop, &writes);
            scope.spawn(move || goes_on(cluster, number, stop, writes));
        }
        meanwhile(&stop, || {
            for round in 0..40 {
                let target = format!("node-{}", (round + 1) % 3 + 1);
                if round % 4 != 3 {
                    cluster.loadline(&["volume", "detach", "d", "--force"]);
                }
                cluster.loadline(&["volume", "attach", "d", "--node", &target]);
                let until = Instant::now() + Duration::from_millis(300);
                while Instant::now() < until {
                    let text = cluster.loadline(&["volume", "show", "d"]);
                    assert_eq!(shown(&text, "attached"), Some(&*target), "round {round}: {text}");
                    assert_eq!(shown(&text, "owner"), Some(&*target), "round {round}: {text}");
                }
            }
        });
    });
    assert!(writes.load(Ordering::Relaxed) > 40, "clients went on");
}

#[test]
fn clients_see_no_error_while_the_store_is_away_and_a_copy_dies() {
    let mut cluster = Cluster::start(3);
    cluster.loadline(&["volume", "create", "d", "--size", "64MiB", "--copies", "2", "--at", "node-1"]);
    cluster.loadline(&["volume", "attach", "d", "--node", "node-1"]);
    let copies = cluster.loadline(&["volume", "show", "d"]);
    let other = if copies.contains("node-2") { 2 } else { 3 };
    // The client has a volume of its own, with its copies at the same nodes: the generator checks every block of the other.
    let own = (1..9).map(|number| format!("e{number}")).find(|name| {
        cluster.loadline(&["volume", "create", name, "--size", "16MiB", "--at", "node-1", "--log", "32MiB"]);
        cluster.loadline(&["volume", "show", name]).contains(&format!("node-{other}"))
    });
    let own = own.expect("copies go to each node in turn");
    cluster.loadline(&["volume", "attach", &own, "--node", "node-1"]);
    let address = cluster.addresses()[0];
    let mut client = Nbd::connect(address, &own).expect("it is served");
    client.wait_for(Duration::from_secs(60));
    client.write(1, 1).expect("it is served");
    let guest = format!("vhost-user:{}", cluster.vhost_socket(1, "d").display());
    let bench = ["bench", &guest, "-p", "B8-T1-O16-W70-PR", "--for", "9s", "--warm-up", "0s"];
    let more = ["--destroy-data", "--verify", "--drain", "20s"];
    let command = cluster.command(&[&bench[..], &more].concat());
    let guest = std::thread::spawn(move || {
        let mut command = command;
        let output = command.output().expect("the program is there");
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    });
    std::thread::sleep(Duration::from_millis(1500));
    let store = cluster.lock_store();
    cluster.kill(other);
    let begun = Instant::now();
    let unlock = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(5));
        drop(store);
    });
    client.write(1, 2).expect("it waits, and is done");
    assert!(begun.elapsed() > Duration::from_secs(4), "the copy could not be left out before");
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    assert_eq!(client.read(1).expect("it is served"), 2);
    unlock.join().expect("it ends");
    let said = guest.join().expect("it ends");
    assert!(said.contains(" 0 errors") && said.contains(" 0 lost, 0 corrupt, 0 foreign"), "{said}");
}

#[test]
fn a_front_end_is_disconnected_and_not_answered_when_its_volume_goes_elsewhere() {
    let cluster = Cluster::start(2);
    cluster.loadline(&["volume", "create", "d", "--size", "64MiB", "--copies", "2"]);
    cluster.loadline(&["volume", "attach", "d", "--node", "node-1"]);
    let guest = format!("vhost-user:{}", cluster.vhost_socket(1, "d").display());
    let bench =
        ["bench", &guest, "-p", "B8-T1-O16-W70-PR", "--for", "9s", "--warm-up", "0s", "--destroy-data"];
    let mut command = cluster.command(&bench);
    let guest = std::thread::spawn(move || command.output().expect("the program is there"));
    std::thread::sleep(Duration::from_millis(1500));
    cluster.loadline(&["volume", "attach", "d", "--node", "node-2"]);
    let output = guest.join().expect("it ends");
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("closed the connection") && !said.to_lowercase().contains("i/o error"), "{said}");
    let logged = cluster.log(1);
    assert!(logged.contains("client at a unix socket of volume d is disconnected: "), "{logged}");
}

#[test]
fn a_client_is_disconnected_when_its_request_has_waited_for_as_long_as_is_set() {
    let mut cluster = Cluster::start_with(2, &[], "client_wait_s = 3");
    cluster.loadline(&["volume", "create", "d", "--size", "16MiB", "--copies", "2"]);
    cluster.loadline(&["volume", "attach", "d", "--node", "node-1"]);
    let address = cluster.addresses()[0];
    // A node that is stopped says nothing; one that has ended refuses connections.
    for stopped in [true, false] {
        let mut client = Nbd::connect(address, "d").expect("it is served");
        let mut idle = Nbd::connect(address, "d").expect("it is served");
        client.wait_for(Duration::from_secs(60));
        // It is let in.
        idle.read(1).expect("it is served");
        let store = cluster.lock_store();
        match stopped {
            true => cluster.signal(2, "STOP"),
            false => cluster.kill(2),
        }
        let begun = Instant::now();
        let why = client.write(1, 2).expect_err("it cannot be done");
        assert_eq!(why.kind(), ErrorKind::UnexpectedEof, "it is disconnected, not answered: {why}");
        let waited = begun.elapsed();
        assert!((Duration::from_secs(3)..Duration::from_secs(8)).contains(&waited), "{waited:?}");
        let logged = cluster.log(1);
        let line = "of volume d is disconnected: a request has waited for 3 s, and no node serves the volume";
        assert_eq!(logged.matches(line).count(), if stopped { 1 } else { 2 }, "{logged}");
        drop(store);
        // A client without a request has waited for nothing.
        idle.wait_for(Duration::from_secs(20));
        idle.write(2, 3).expect("it is served again");
        if stopped {
            cluster.signal(2, "CONT");
            cluster.wait_until("d", "healthy", Duration::from_secs(30));
        }
    }
}

/// A node that claims a volume while its owner is stopped, and then dies, leaves an owner that has no reason to read the configuration.
#[test]
fn an_owner_that_missed_a_claim_of_another_node_finds_it_in_the_configuration() {
    let cluster = Cluster::start(2);
    cluster.loadline(&["volume", "create", "d", "--size", "16MiB", "--copies", "2"]);
    cluster.loadline(&["volume", "attach", "d", "--node", "node-1"]);
    let mut client = Nbd::connect(cluster.addresses()[0], "d").expect("it is served");
    client.write(1, 7).expect("it is served");
    let store = cluster.lock_store();
    let read = "SELECT key, value, version FROM entry WHERE key LIKE 'record/%'";
    let columns = |row: &rusqlite::Row| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
    let (key, value, version): (String, Vec<u8>, u64) =
        store.query_row(read, [], columns).expect("it has one");
    let claimant =
        Owner { node: NodeId(if cluster.owner("d") == 1 { 2 } else { 1 }), incarnation: Incarnation(1) };
    let claimed = record::decode(&value).expect("it is a record");
    assert_ne!(claimed.owner.node, claimant.node, "it is claimed by the other node");
    let claimed = claimed.taken_over(ProposalId { by: claimant, number: 1 }, false, false);
    let value = record::encode(&claimed).expect("it is a record");
    store
        .execute("UPDATE entry SET value = ?1, version = ?2 WHERE key = ?3", (value, version + 1, key))
        .expect("it is ours");
    store.execute("UPDATE revision SET number = number + 1", []).expect("it is ours");
    store.execute_batch("COMMIT").expect("it is ours");
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < Duration::from_secs(30), "no node lets clients in");
        if let Ok(mut late) = Nbd::connect(cluster.addresses()[0], "d") {
            late.wait_for(Duration::from_secs(10));
            if late.read(1).is_ok_and(|value| value == 7) {
                break;
            }
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}
