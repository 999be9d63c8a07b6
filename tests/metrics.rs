//! What a node counts is what the documentation lists.

#[path = "support/metrics.rs"]
mod metrics;
mod nodes;

use std::time::Duration;

use metrics::{Metrics, of_page, of_reference};
use nodes::Cluster;

#[test]
fn the_reference_lists_every_metric_with_its_type_and_labels() {
    let mut cluster = Cluster::start(3);
    cluster.loadline(&["volume", "create", "disk", "--size", "64MiB", "--copies", "2"]);
    cluster.loadline(&["volume", "attach", "disk", "--node", "node-1"]);
    let device = cluster.folder().join("modelled");
    let add = ["device", "add", device.to_str().expect("it is text"), "--create", "256MiB", "--model"];
    cluster.loadline(&[&add[..], &["intel-s4500"]].concat());
    let found = of_page(&cluster.http(1, "/metrics"));
    let listed = of_reference();
    let all = |metrics: &Metrics| metrics.keys().cloned().collect::<Vec<_>>();
    assert_eq!(all(&found), {
        let mut sorted = all(&listed);
        sorted.sort();
        sorted
    });
    for (name, (kind, labels)) in &found {
        let (listed_kind, listed_labels) = &listed[name];
        assert_eq!(kind, listed_kind, "{name}");
        // No copy comes back here.
        if name != "loadline_resync_left_bytes" {
            assert_eq!(labels, listed_labels, "{name}");
        }
    }
    // A node that is gone is still a node of the cluster. When it comes back, its incarnation and its start are later than before.
    let life = |page: &str| {
        let lines = page.lines().filter(|line| {
            line.starts_with("loadline_node_incarnation ") || line.starts_with("process_start_time_seconds ")
        });
        lines
            .map(|line| line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a number"))
            .collect()
    };
    let before: Vec<f64> = life(&cluster.http(3, "/metrics"));
    cluster.kill(3);
    assert!(cluster.http(1, "/metrics").contains(r#",node="node-3"} 1"#));
    // The kernel counts the start of a process in hundredths of a second.
    std::thread::sleep(Duration::from_millis(20));
    cluster.start_node(3);
    let now: Vec<f64> = life(&cluster.http(3, "/metrics"));
    assert!(before.len() == 2 && now[0] > before[0] && now[1] > before[1], "{before:?} {now:?}");
}
