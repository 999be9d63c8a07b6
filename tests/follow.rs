//! Followers of a node: what it does each second, and the lines of its log.

mod nodes;

use std::time::{Duration, Instant};

use loadline_san_node::node::manage::{Followed, Ios, Sample};
use nodes::Cluster;
use nodes::client::Nbd;
use nodes::follower::Follower;

const LIMIT: Duration = Duration::from_secs(30);

/// What all samples together have of a volume.
fn total(samples: &[Sample], of: fn(&loadline_san_node::node::manage::VolumeSample) -> u64) -> u64 {
    samples.iter().flat_map(|sample| &sample.volumes).map(of).sum()
}

#[test]
fn a_follower_gets_every_request_once_with_its_latency_and_what_devices_do() {
    let cluster = Cluster::start(2);
    cluster.loadline(&["volume", "create", "disk", "--size", "16MiB"]);
    cluster.loadline(&["volume", "attach", "disk", "--node", "node-1"]);
    let mut client = Nbd::connect(cluster.addresses()[0], "disk").expect("it is served");
    client.write(1, 1).expect("it is written before anyone follows");
    let mut follower = Follower::connect(cluster.addresses()[0], None);
    let mut other = Follower::connect(cluster.addresses()[0], None);
    assert_eq!(follower.hello.node, "node-1");
    let first = follower.sample();
    assert_eq!(
        first.volumes.iter().map(|of| (of.name.as_str(), of.write.ios)).collect::<Vec<_>>(),
        [("disk", 0)]
    );
    for number in 0..40 {
        client.write(number, 7).expect("it is written");
        client.read(number).expect("it is read");
    }
    let mut samples =
        follower.until(LIMIT, |sample| sample.volumes[0].read.ios == 0 && sample.number > first.number + 1);
    samples.insert(0, first);
    assert_eq!((total(&samples, |of| of.write.ios), total(&samples, |of| of.read.ios)), (40, 40));
    assert_eq!(total(&samples, |of| of.write.bytes), 40 * 4096);
    let classes = |samples: &[Sample]| -> u64 {
        let all = samples.iter().flat_map(|sample| &sample.volumes).flat_map(|of| &of.write_classes);
        all.map(|(_, count)| u64::from(*count)).sum()
    };
    assert_eq!(classes(&samples), 40, "each is in one class");
    let largest = samples
        .iter()
        .flat_map(|s| &s.volumes)
        .flat_map(|of| of.write_classes.last())
        .map(|(class, _)| *class);
    assert!(usize::from(largest.max().expect("there are some")) <= follower.hello.bounds_ns.len());
    let log: u64 = samples.iter().flat_map(|sample| &sample.devices).map(|of| of.log_writes.bytes).sum();
    assert!(log >= 40 * 4096, "{samples:#?}");
    // The other follower gets the same.
    let same: Vec<Sample> = std::iter::repeat_with(|| other.sample()).take(samples.len()).collect();
    assert_eq!(
        same.iter().map(|of| &of.volumes).collect::<Vec<_>>(),
        samples.iter().map(|of| &of.volumes).collect::<Vec<_>>()
    );
    assert!(samples.iter().all(|of| of.silent_loops == 0 && of.memory > 0), "{samples:#?}");
    let idle = samples.last().expect("there is one");
    assert_eq!((idle.volumes[0].write, idle.volumes[0].clients), (Ios::default(), 1));
}

#[test]
fn a_follower_sees_a_resync_and_goes_on_from_the_last_line_of_the_log_that_it_has() {
    let mut cluster = Cluster::start(2);
    cluster.loadline(&["volume", "create", "disk", "--size", "64MiB"]);
    cluster.loadline(&["volume", "attach", "disk", "--node", "node-1"]);
    let mut client = Nbd::connect(cluster.addresses()[0], "disk").expect("it is served");
    client.write(1, 1).expect("it is written");
    cluster.kill(2);
    nodes::client::write_at_once(cluster.addresses()[0], "disk", 32).expect("one copy is enough");
    let mut follower = Follower::connect(cluster.addresses()[0], None);
    cluster.start_node(2);
    let (mut resynced, mut said, begun) = (0, Vec::new(), Instant::now());
    while resynced < 32 << 20 {
        assert!(begun.elapsed() < LIMIT, "{resynced} bytes: {said:#?}");
        match follower.next().expect("it goes on") {
            Followed::Sample(sample) => resynced += sample.volumes.iter().map(|of| of.resynced).sum::<u64>(),
            Followed::Log(line) => said.push(line),
            Followed::Hello(_) => panic!("only once"),
        }
    }
    cluster.wait_until("disk", "healthy", LIMIT);
    assert!(said.iter().any(|line| line.volume.as_deref() == Some("disk")), "{said:#?}");
    let numbers: Vec<u64> = said.iter().map(|line| line.number).collect();
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{numbers:?}");
    // One that connects again goes on where it was. A line of another process is none of this one.
    let last = follower.last_id.clone().expect("lines have ids");
    let number: u64 = last.rsplit('-').next().and_then(|number| number.parse().ok()).expect("a number");
    let mut again = Follower::connect(cluster.addresses()[0], Some(&last));
    match again.next().expect("it goes on") {
        Followed::Log(line) => assert!(line.number > number, "{} after {number}", line.number),
        Followed::Sample(_) => {}
        Followed::Hello(_) => panic!("only once"),
    }
    let mut another = Follower::connect(cluster.addresses()[0], Some("1-1000000"));
    assert!(matches!(another.next(), Some(Followed::Log(line)) if line.number == 1));
    // A node that ends, ends the stream.
    cluster.signal(1, "TERM");
    let begun = Instant::now();
    while follower.next().is_some() {
        assert!(begun.elapsed() < LIMIT, "it ends");
    }
}

#[test]
fn a_client_that_may_come_back_is_reported_and_one_that_has_announced_its_end_is_not() {
    let mut cluster = Cluster::start(3);
    let addresses = cluster.addresses();
    cluster.loadline(&["volume", "create", "disk", "--size", "16MiB", "--copies", "2"]);
    let attach = || cluster.loadline(&["volume", "attach", "disk", "--node", "node-1"]);
    attach();
    let mut follower = Follower::connect(addresses[0], None);
    let mut wait_for = |clients: usize, is_lost: bool| {
        let is_so = |sample: &Sample| {
            let of = sample.volumes.iter().find(|of| of.name == "disk");
            of.is_some_and(|of| of.clients == clients && of.lost_client_ms.is_some() == is_lost)
        };
        let samples = follower.until(LIMIT, is_so);
        let last = samples.last().and_then(|sample| sample.volumes.first()).expect("the volume");
        assert!(last.lost_client_ms.is_none_or(|ms| ms < 5000), "{last:?}");
    };
    wait_for(0, false);
    let client = Nbd::connect(addresses[0], "disk").expect("it is served");
    wait_for(1, false);
    client.leave();
    wait_for(0, false);
    // By way of another node.
    let client = Nbd::connect(addresses[1], "disk").expect("it is served");
    wait_for(1, false);
    drop(client);
    wait_for(0, true);
    // No client comes back to a volume that was detached.
    cluster.loadline(&["volume", "detach", "disk"]);
    attach();
    wait_for(0, false);
    let client = Nbd::connect(addresses[0], "disk").expect("it is served");
    wait_for(1, false);
    // An attach disconnects it, and it may connect again.
    attach();
    wait_for(0, true);
    drop(client);
    // A client of an owner that is gone may connect to the next one.
    cluster.loadline(&["volume", "detach", "disk"]);
    attach();
    wait_for(0, false);
    cluster.kill(1);
    let begun = Instant::now();
    while cluster.owner("disk") == 1 {
        assert!(begun.elapsed() < LIMIT, "another node takes it over");
    }
    let mut follower = Follower::connect(addresses[usize::from(cluster.owner("disk")) - 1], None);
    follower.until(LIMIT, |sample| sample.volumes.iter().any(|of| of.lost_client_ms.is_some()));
}
