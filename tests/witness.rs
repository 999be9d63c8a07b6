//! The how-to of two nodes and a witness, followed to the letter on hosts in namespaces, while what it describes is lost.

mod nodes;
#[path = "witness/page.rs"]
mod page;
#[path = "witness/rack.rs"]
mod rack;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nodes::client::{Journal, Writers};
use nodes::hosts;
use page::Section;
use rack::Rack;

const PAGE: &str = include_str!("../docs/how-to/two-nodes-and-a-witness.md");
/// A volume beside that of the page, which clients use without TLS.
const LOAD: &str = "load";
/// Writes that must be acknowledged after each fault.
const WRITES: u64 = 100;
/// How long it may take until the status is as expected.
const CHANGES: Duration = Duration::from_secs(120);
/// Exit codes of `loadline san status`: all volumes are healthy and all nodes report; a node or a copy is missing.
const HEALTHY: i32 = 0;
const DEGRADED: i32 = 3;

/// A reader of the page.
struct Reader {
    page: Vec<Section>,
    /// The section that is read next.
    at: usize,
    rack: Rack,
}

impl Reader {
    /// Does what the next sections say, up to the end of this one.
    fn follow_to(&mut self, heading: &str) {
        loop {
            let section = self.page.get(self.at).unwrap_or_else(|| panic!("a section '{heading}' comes"));
            eprintln!("## {}", section.heading);
            self.rack.follow(&self.page, section);
            self.at += 1;
            if self.page[self.at - 1].heading == heading {
                return;
            }
        }
    }

    /// Types a command on a host. What it prints; it must succeed.
    fn run(&mut self, host: &str, command: &str) -> String {
        let (code, printed) = self.rack.type_on(host, command);
        assert_eq!(code, 0, "{command}: {printed}");
        printed
    }

    /// Has node-1 own the volumes, as the page assumes: on a busy machine another node may have taken one over.
    fn own_by_node_1(&mut self) {
        self.wait_for_status("node-1", HEALTHY);
        for volume in ["vm-7", LOAD] {
            self.run("node-1", &format!("loadline volume attach {volume} --node node-1"));
        }
        self.wait_for_status("node-1", HEALTHY);
    }

    /// Waits until `loadline san status` on a host ends with this exit code.
    fn wait_for_status(&mut self, host: &str, code: i32) {
        let begun = Instant::now();
        loop {
            let (is, printed) = self.rack.type_on(host, "loadline san status");
            if is == code {
                return;
            }
            assert!(begun.elapsed() < CHANGES, "status {code} is to come: {printed}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Clients that write to the volume, and check what they read, until they are stopped.
struct Load {
    addresses: Vec<Ipv4Addr>,
    stop: Arc<AtomicBool>,
    writers: Writers,
}

impl Load {
    fn start(addresses: &[Ipv4Addr]) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let writers = Writers::start(addresses, LOAD, 2, stop.clone());
        let load = Load { addresses: addresses.to_vec(), stop, writers };
        load.goes_on();
        load
    }

    /// Waits until more writes are acknowledged.
    fn goes_on(&self) {
        self.writers.wait_for(WRITES);
    }

    /// Stops, and reads everything that was acknowledged.
    fn stop(self) -> Journal {
        self.stop.store(true, Ordering::Relaxed);
        let journal = self.writers.join();
        journal.check(&self.addresses, LOAD);
        journal
    }
}

#[test]
fn the_how_to_of_two_nodes_and_a_witness_works_to_the_letter() {
    if !hosts::possible() {
        return;
    }
    let hosts =
        [("node-1", 1), ("node-2", 2), ("witness", 3), ("witness-2", 4), ("client", 5), ("node-3", 6)];
    let rack = Rack::start(&hosts);
    for host in ["node-1", "node-2", "node-3", "client"] {
        rack.put(host, "loadline_0.1.0_amd64.deb", "");
    }
    let addresses = ["node-1", "node-2", "node-3"].map(|node| rack.address(node));
    let mut reader = Reader { page: page::read(PAGE), at: 0, rack };

    reader.follow_to("Manage the cluster from another computer");
    let tls = "tls-certificates=/root/loadline";
    reader.run("client", "openssl rand -out /root/written 8388608");
    reader.run("client", &format!("nbdcopy /root/written 'nbds://10.0.0.1/vm-7?{tls}'"));
    reader.run("node-1", &format!("loadline volume create {LOAD} --size 64MiB --at node-1"));
    reader.run("node-1", &format!("loadline volume attach {LOAD} --node node-1"));
    let load = Load::start(&addresses);

    let served =
        "openssl s_client -connect 10.0.0.3:2379 </dev/null 2>/dev/null | openssl x509 -noout -serial";
    let before = reader.run("node-1", served);
    reader.follow_to("Renew the certificates of etcd");
    assert_ne!(reader.run("node-1", served), before, "the member shows its new certificate");
    load.goes_on();

    reader.rack.unplug("witness");
    reader.follow_to("The witness is lost");
    load.goes_on();
    reader.run(
        "node-1",
        "loadline volume create other --size 64MiB && loadline volume delete other --confirm other",
    );
    reader.rack.plug("witness");

    // Its volumes go on at node-1, and node-2 serves nothing.
    reader.own_by_node_1();
    reader.rack.unplug("node-2");
    load.goes_on();
    reader.follow_to("node-2 is lost");
    load.goes_on();
    reader.rack.plug("node-2");
    reader.follow_to("node-2 is back");

    reader.own_by_node_1();
    reader.rack.connect("node-1", "node-2", false);
    load.goes_on();
    // The owner excludes the other copy for a request only.
    reader.run("client", &format!("nbdcopy 'nbds://10.0.0.1/vm-7?{tls}' /root/read"));
    reader.follow_to("The link between the nodes is lost");
    reader.rack.connect("node-1", "node-2", true);
    reader.own_by_node_1();

    // All its processes end, and it starts again by itself when the power is back.
    reader.rack.power_off("node-1");
    load.goes_on();
    reader.follow_to("node-1 is lost");
    load.goes_on();
    reader.rack.boot("node-1");
    reader.follow_to("node-1 is back");
    load.goes_on();
    load.stop();

    // Nothing is served without a majority, and all goes on with one of the two.
    reader.own_by_node_1();
    reader.rack.unplug("witness");
    reader.rack.unplug("node-2");
    reader.follow_to("Two of the three hosts are lost");
    reader.rack.plug("witness");
    reader.wait_for_status("node-1", DEGRADED);
    let load = Load::start(&addresses);
    reader.rack.plug("node-2");

    // Its machine never comes back, and another one takes its place.
    reader.own_by_node_1();
    load.goes_on();
    reader.rack.power_off("witness");
    reader.follow_to("Replace the witness");
    load.goes_on();
    reader.own_by_node_1();
    reader.rack.power_off("node-2");
    load.goes_on();
    reader.follow_to("Replace a node");
    load.goes_on();

    // Both volumes have two copies, and any one of the three machines may be lost.
    reader.run("node-1", "etcdctl endpoint health");
    for (lost, status_at) in [("witness-2", "node-1"), ("node-3", "node-1"), ("node-1", "node-3")] {
        reader.own_by_node_1();
        let status = reader.run("node-1", "loadline san status");
        assert_eq!(status.matches("2 of 2").count(), 2, "{status}");
        reader.rack.unplug(lost);
        reader.wait_for_status(status_at, DEGRADED);
        load.goes_on();
        reader.rack.plug(lost);
    }
    reader.own_by_node_1();
    load.stop();
    reader.run("client", &format!("nbdcopy 'nbds://10.0.0.6/vm-7?{tls}' /root/read"));
    reader.run("client", "cmp -n 8388608 /root/written /root/read");
}
