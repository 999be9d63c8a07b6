//! A request of a client that has gone, or from before an attach, is never carried out later: nodes on hosts of their own, whose
//! links are cut.

mod nodes;

use std::time::{Duration, Instant};

use nodes::Cluster;
use nodes::client::Nbd;
use nodes::hosts::{self, Hosts};

const OLD: u8 = 0xaa;
const NEW: u8 = 0xbb;

/// Three hosts, and a volume that node 2 owns alone: the links of others do not disturb it.
fn cluster_of_node_2() -> Cluster {
    let cluster = Cluster::start_on_hosts(3, &[], "");
    cluster.loadline(&["volume", "create", "d", "--size", "16MiB", "--copies", "1", "--at", "node-2"]);
    cluster.loadline(&["volume", "attach", "d", "--node", "node-2"]);
    assert_eq!(cluster.owner("d"), 2);
    cluster
}

/// Reads a block by each of these nodes again and again: it is always this.
fn stays(cluster: &Cluster, through: &[u8], block: u64, byte: u8, how_long: Duration) {
    let addresses = cluster.addresses();
    let mut clients: Vec<Nbd> = through.iter().map(|node| reconnect(addresses[*node as usize - 1])).collect();
    let begun = Instant::now();
    while begun.elapsed() < how_long {
        for (client, node) in clients.iter_mut().zip(through) {
            let read = client.read(block).expect("it is served");
            assert_eq!(
                read,
                byte,
                "what was written last is read by node {node} after {:?}",
                begun.elapsed()
            );
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A connection, as soon as there can be one.
fn reconnect(address: std::net::Ipv4Addr) -> Nbd {
    let begun = Instant::now();
    loop {
        match Nbd::connect(address, "d") {
            Ok(nbd) => return nbd,
            Err(why) => assert!(begun.elapsed() < Duration::from_secs(20), "it connects again: {why}"),
        }
    }
}

#[test]
fn what_a_client_sent_that_is_cut_off_is_carried_out_within_5_s_or_never() {
    if !hosts::possible() {
        return;
    }
    let cluster = cluster_of_node_2();
    let addresses = cluster.addresses();
    // The last answer is confirmed before the link is cut, or not.
    for (block, pause) in [(1, 300), (2, 0)] {
        let mut first = reconnect(addresses[1]);
        first.write(block, 1).expect("it is written");
        std::thread::sleep(Duration::from_millis(pause));
        cluster.hosts().cut(Hosts::TEST, 2);
        let begun = Instant::now();
        first.send_write(block, OLD);
        let mut second = Nbd::connect(addresses[2], "d").expect("node 3 forwards");
        while begun.elapsed() < Duration::from_secs(6) {
            second.write(block, NEW).expect("it is written");
            std::thread::sleep(Duration::from_millis(50));
        }
        cluster.hosts().mend(Hosts::TEST, 2);
        stays(&cluster, &[2, 1, 3], block, NEW, Duration::from_secs(5));
    }
    let logged = cluster.log(2);
    assert!(logged.contains("of volume d is disconnected: its connection is broken: ETIMEDOUT"), "{logged}");
}

#[test]
fn what_a_forwarder_has_queued_for_a_client_that_has_gone_is_never_carried_out() {
    if !hosts::possible() {
        return;
    }
    let cluster = cluster_of_node_2();
    let addresses = cluster.addresses();
    // Shorter and longer than the session of the two nodes lives without answers.
    for (block, cut) in [(1, 1500), (2, 3000), (3, 8000)] {
        let mut first = reconnect(addresses[0]);
        first.write(block, 1).expect("it is forwarded");
        cluster.hosts().cut(1, 2);
        let begun = Instant::now();
        first.send_write(block, OLD);
        // It lies at node 1 by now.
        std::thread::sleep(Duration::from_millis(300));
        drop(first);
        let mut second = Nbd::connect(addresses[1], "d").expect("node 2 serves it");
        second.write(block, NEW).expect("it is written");
        assert_eq!(second.read(block).expect("it is read"), NEW);
        std::thread::sleep(Duration::from_millis(cut).saturating_sub(begun.elapsed()));
        cluster.hosts().mend(1, 2);
        stays(&cluster, &[2, 1, 3], block, NEW, Duration::from_secs(4));
    }
}

#[test]
fn what_a_client_sent_to_a_forwarder_that_is_stopped_is_not_carried_out_when_it_goes_on() {
    let cluster = Cluster::start(3);
    cluster.loadline(&["volume", "create", "d", "--size", "16MiB", "--copies", "1", "--at", "node-2"]);
    cluster.loadline(&["volume", "attach", "d", "--node", "node-2"]);
    let addresses = cluster.addresses();
    // Within the time in which the owner gives the session up, and after it.
    for (block, stopped) in [(1, 1000), (2, 1500), (3, 5000)] {
        let mut first = reconnect(addresses[0]);
        first.write(block, 1).expect("it is forwarded");
        cluster.signal(1, "STOP");
        first.send_write(block, OLD);
        drop(first);
        let mut second = reconnect(addresses[1]);
        second.write(block, NEW).expect("it is written");
        std::thread::sleep(Duration::from_millis(stopped));
        cluster.signal(1, "CONT");
        stays(&cluster, &[2, 1, 3], block, NEW, Duration::from_secs(2));
    }
}

#[test]
fn an_attach_also_to_the_same_node_fences_what_came_before_it() {
    if !hosts::possible() {
        return;
    }
    let cluster = cluster_of_node_2();
    let addresses = cluster.addresses();
    // Straight from the client's kernel; and through node 1, whose client stays.
    for (block, from, to) in [(1, Hosts::TEST, 2), (2, 1, 2)] {
        let entrance = if from == Hosts::TEST { 2 } else { from };
        let mut first = reconnect(addresses[entrance as usize - 1]);
        first.write(block, 1).expect("it is written");
        cluster.hosts().cut(from, to);
        first.send_write(block, OLD);
        std::thread::sleep(Duration::from_millis(300));
        cluster.loadline_on(3, &["volume", "attach", "d", "--node", "node-2"]);
        let mut second = Nbd::connect(addresses[2], "d").expect("node 3 forwards");
        second.write(block, NEW).expect("it is written");
        cluster.hosts().mend(from, to);
        stays(&cluster, &[2, 1, 3], block, NEW, Duration::from_secs(4));
        assert!(first.read(block).is_err(), "its connection is over");
    }
    let logged = cluster.log(2);
    let cut: Vec<&str> =
        logged.lines().filter(|line| line.ends_with("the volume was attached again")).collect();
    assert!(
        cut.iter().any(|line| line.contains("client 10.77.") && line.contains("of volume d")),
        "{logged}"
    );
    assert!(cut.iter().any(|line| line.contains(" through node-1 of volume d")), "{logged}");
}

#[test]
fn a_forwarded_client_is_answered_or_disconnected_within_5_s_and_one_that_comes_is_refused_with_a_reason() {
    if !hosts::possible() {
        return;
    }
    let cluster = cluster_of_node_2();
    let (addresses, hosts) = (cluster.addresses(), cluster.hosts());
    let limit = Duration::from_secs(5);
    // What the forwarder sends is lost, what it is sent, or both.
    for cut in [&[(1, 2)][..], &[(2, 1)], &[(1, 2), (2, 1)]] {
        let mut idle = reconnect(addresses[0]);
        let mut client = reconnect(addresses[0]);
        client.wait_for(Duration::from_secs(30));
        client.write(1, 1).expect("it is forwarded");
        cut.iter().for_each(|(from, to)| hosts.cut(*from, *to));
        let begun = Instant::now();
        assert!(client.write(1, 2).is_err(), "it cannot be answered");
        assert!(begun.elapsed() < limit, "{cut:?}: {:?}", begun.elapsed());
        let begun = Instant::now();
        let refused = Nbd::connect(addresses[0], "d").err().expect("node 2 is not reached").to_string();
        assert!(begun.elapsed() < limit, "{cut:?}: {:?}: {refused}", begun.elapsed());
        assert!(refused.contains("node-2, which owns the volume, is not reachable"), "{refused}");
        idle.wait_for(limit);
        assert!(idle.read(1).is_err());
        cut.iter().for_each(|(from, to)| hosts.mend(*from, *to));
        let mut again = reconnect(addresses[0]);
        again.write(1, 3).expect("it is forwarded again");
    }
    let logged = cluster.log(1);
    assert!(
        logged.contains("disconnected: node-2, which owns the volume, has not answered for 4 s"),
        "{logged}"
    );
    // A link that comes and goes.
    let mut client = reconnect(addresses[0]);
    client.wait_for(Duration::from_secs(30));
    let flapping = Instant::now();
    std::thread::scope(|scope| {
        let flaps = scope.spawn(|| {
            for flap in 0..12 {
                hosts.cut(1, 2);
                std::thread::sleep(Duration::from_millis(400 + 211 * flap % 1700));
                hosts.mend(1, 2);
                std::thread::sleep(Duration::from_millis(300 + 157 * flap % 900));
            }
        });
        let mut longest = Duration::ZERO;
        while !flaps.is_finished() {
            let begun = Instant::now();
            let done = client.write(1, 4);
            longest = longest.max(begun.elapsed());
            assert!(begun.elapsed() < limit, "{done:?} after {:?}", begun.elapsed());
            if done.is_err() {
                let begun = Instant::now();
                match Nbd::connect(addresses[0], "d") {
                    Ok(nbd) => client = nbd,
                    Err(why) => assert!(begun.elapsed() < limit, "{why} after {:?}", begun.elapsed()),
                }
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        println!("flapped for {:?}; the longest write took {longest:?}", flapping.elapsed());
    });
}
