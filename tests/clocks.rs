//! Hosts whose clocks disagree: what their nodes say, and that they find each other again when the clocks are right.

mod nodes;

use std::path::Path;
use std::time::{Duration, Instant};

use nodes::Cluster;
use nodes::client::Nbd;

const DAY: i64 = 86_400;
const LIMIT: Duration = Duration::from_secs(60);

/// How many connections a node has refused, or lost, for the clocks.
fn refusals(cluster: &Cluster, node: u8) -> f64 {
    let page = cluster.http(node, "/metrics");
    let of = |line: &str| line.strip_prefix("loadline_clock_refusals_total ").map(str::to_owned);
    page.lines().find_map(of).expect("it is counted").parse().expect("a number")
}

/// How many certificates the configuration names for a node.
fn certificates(cluster: &Cluster, node: u32) -> usize {
    let store = Path::new(&cluster.file()).into();
    let catalog = loadline_san_node::cluster::read(&store).expect("it is there");
    catalog.nodes[&node].0.certificates.len()
}

fn wait(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < LIMIT, "{what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A clock that is behind, and one that is so far ahead that the node renews its certificate, which is not valid yet for the others.
#[test]
fn hosts_whose_clocks_disagree_say_so_once_and_find_each_other_again() {
    for seconds in [-3 * DAY, 5 * DAY] {
        let options = ["--transport", "encrypted", "--certificates", "60s"];
        let mut cluster = Cluster::start_with(2, &options, "test_faults = true");
        cluster.loadline(&["volume", "create", "d", "--size", "16MiB", "--copies", "2", "--at", "node-1"]);
        cluster.loadline(&["volume", "attach", "d", "--node", "node-1"]);
        cluster.wait_until("d", "healthy", LIMIT);
        let fault = format!(r#"{{"fault": "clock_off", "seconds": {seconds}}}"#);
        let (status, answer) = cluster.request(2, "POST", "/v1/test-faults", &fault);
        assert_eq!(status, 200, "{answer}");
        if seconds > 0 {
            // Node 2 renews its certificate. Node 1 does not accept it, so the one before stays named, by which connections were proved.
            wait("it is renewed", || cluster.log(2).contains("the certificate of this node is renewed"));
            wait("it is not accepted", || refusals(&cluster, 2) >= 1.0);
            let named = certificates(&cluster, 2);
            assert!(named > 1, "{named}: {}", cluster.log(2));
            cluster.wait_until("d", "healthy", Duration::from_secs(1));
        }
        // Connections that there are stay: all are made anew.
        cluster.kill(1);
        cluster.start_node(1);
        wait("both nodes count", || refusals(&cluster, 1) >= 3.0 && refusals(&cluster, 2) >= 3.0);
        wait("the log names the clock", || cluster.log(2).contains("and the clock of this host says"));
        let said =
            |node: u8, words: &str| cluster.log(node).lines().filter(|line| line.contains(words)).count();
        // Once of connections that are taken, and once of those that are made.
        let line = said(2, "and the clock of this host says");
        assert!((1..=2).contains(&line), "{}", cluster.log(2));
        assert!(said(1, "check the clocks of both hosts") >= 1, "{}", cluster.log(1));
        let (status, answer) = cluster.request(2, "DELETE", "/v1/test-faults", "");
        assert_eq!(status, 200, "{answer}");
        cluster.wait_until("d", "healthy", LIMIT);
        wait("one certificate is named", || certificates(&cluster, 2) == 1);
        let mut client = Nbd::connect(cluster.addresses()[1], "d").expect("node 2 forwards");
        client.write(1, 1).expect("it is written");
    }
}
