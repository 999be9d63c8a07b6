//! The block status of a volume as other tools show it (`nbdinfo --map`): exactly what is allocated, without reading data.

mod nodes;

use std::process::Command;
use std::time::Duration;

use nodes::{Cluster, run};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// What a tool shows a range to be.
const DATA: u64 = 0;
const ZERO: u64 = 2;
const HOLE: u64 = 3;

fn uri(cluster: &Cluster, node: u8, volume: &str) -> String {
    format!("nbd://{}:10809/{volume}", cluster.addresses()[usize::from(node) - 1])
}

fn qemu_io(uri: &str, commands: &[&str]) {
    let commands = commands.iter().flat_map(|command| ["-c", command]);
    // Trims and zeroes as they are, and nothing made of data that is zeroes.
    run(Command::new("qemu-io").args(["-f", "raw", "-d", "unmap"]).args(commands).arg(uri));
}

/// First byte, bytes, and what they are.
fn map(uri: &str) -> Vec<(u64, u64, u64)> {
    let said = run(Command::new("nbdinfo").args(["--map", "--json", uri]));
    let said: serde_json::Value = serde_json::from_str(&said).expect("it is JSON");
    let number = |range: &serde_json::Value, what: &str| range[what].as_u64().expect("it is a number");
    let ranges = said.as_array().expect("there are some").iter();
    ranges.map(|range| (number(range, "offset"), number(range, "length"), number(range, "type"))).collect()
}

/// The ranges of a volume of so many bytes, from those that are no holes.
fn with_holes(bytes: u64, allocated: &[(u64, u64, u64)]) -> Vec<(u64, u64, u64)> {
    let (mut ranges, mut at) = (Vec::new(), 0);
    for range in allocated.iter().copied().chain([(bytes, 0, DATA)]) {
        if at < range.0 {
            ranges.push((at, range.0 - at, HOLE));
        }
        at = range.0 + range.1;
        ranges.push(range);
    }
    ranges.pop();
    ranges
}

/// The sum of a metric of a volume at a node, of those whose labels have this.
fn counted(cluster: &Cluster, node: u8, metric: &str, label: &str) -> f64 {
    let page = cluster.http(node, "/metrics");
    let lines = page.lines().filter(|line| line.starts_with(&format!("{metric}{{")) && line.contains(label));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

fn read_bytes(cluster: &Cluster, node: u8) -> f64 {
    counted(cluster, node, "loadline_volume_read_bytes_total", "volume=")
}

fn statuses(cluster: &Cluster, node: u8) -> f64 {
    counted(cluster, node, "loadline_frontend_seconds_count", r#"op="block_status""#)
}

/// Three nodes, the first two with a device of so many bytes, and a volume that the first one owns and for which the small devices
/// have no room.
fn cluster(device: u64, create: &[&str]) -> Cluster {
    let cluster = Cluster::start(3);
    for node in [1, 2] {
        let file = cluster.folder().join(format!("large-{node}"));
        std::fs::File::create_new(&file).and_then(|file| file.set_len(device)).expect("it takes no room");
        cluster.loadline_at(node, &["device", "add", file.to_str().expect("it is text")]);
    }
    let create = [&["volume", "create", "disk", "--at", "node-1"][..], create].concat();
    cluster.loadline(&create);
    cluster.loadline(&["volume", "attach", "disk", "--node", "node-1"]);
    cluster
}

/// Waits until nothing is left in the log of a node's copies.
fn wait_for_destage(cluster: &Cluster) {
    let begun = std::time::Instant::now();
    while (1..=2).any(|node| counted(cluster, node, "loadline_log_used_bytes", "volume=") > 16384.0) {
        assert!(begun.elapsed() < Duration::from_secs(30), "an idle log is destaged");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_map_shows_what_was_written_zeroed_and_trimmed_and_reads_nothing() {
    let mut cluster = cluster(12 * GIB, &["--size", "6GiB", "--log", "64MiB"]);
    let (owner, other) = (uri(&cluster, 1, "disk"), uri(&cluster, 3, "disk"));
    assert_eq!(map(&owner), [(0, 6 * GIB, HOLE)]);
    assert_eq!(statuses(&cluster, 1), 2.0, "6 GiB need two requests of less than 4 GiB");
    qemu_io(
        &owner,
        &[
            "write -P 1 0 64k",
            // Parts of two blocks, the first of them at 1 MiB.
            "write -P 2 1052160 4608",
            "write -P 3 3g 256k",
            "write -z 3145792k 64k",
            "discard 3145856k 32k",
            // Over the place where the second request begins.
            "write -P 4 4194302k 8k",
            "write -P 5 6143M 1M",
            // Written, and trimmed again.
            "write -P 6 5g 4M",
            "discard 5g 4M",
            "discard 1g 1g",
        ],
    );
    let allocated = [
        (0, 64 * KIB, DATA),
        (MIB, 8 * KIB, DATA),
        (3 * GIB, 64 * KIB, DATA),
        (3 * GIB + 64 * KIB, 64 * KIB, ZERO),
        (3 * GIB + 160 * KIB, 96 * KIB, DATA),
        (4 * GIB - 4 * KIB, 12 * KIB, DATA),
        (6 * GIB - MIB, MIB, DATA),
    ];
    let expected = with_holes(6 * GIB, &allocated);
    let (read, asked) = (read_bytes(&cluster, 1), statuses(&cluster, 1));
    for uri in [&owner, &other] {
        assert_eq!(map(uri), expected, "from the log, by {uri}");
    }
    assert_eq!(statuses(&cluster, 1), asked + 4.0);
    wait_for_destage(&cluster);
    for uri in [&owner, &other] {
        assert_eq!(map(uri), expected, "from the extents, by {uri}");
    }
    assert_eq!(read_bytes(&cluster, 1), read, "nothing was read");
    // A copying client reads the ranges that have data, and no more.
    let back = cluster.folder().join("back");
    run(Command::new("nbdcopy").arg(&other).arg(&back));
    let data: u64 = allocated.iter().filter(|range| range.2 == DATA).map(|range| range.1).sum();
    let took = read_bytes(&cluster, 1) - read;
    assert!(took >= data as f64 && took < 4.0 * data as f64, "{took} bytes were read to copy {data}");
    // Processes that start know it from their devices.
    (1..=3).for_each(|node| cluster.kill(node));
    (1..=3).for_each(|node| cluster.start_node(node));
    cluster.wait_until("disk", "healthy", Duration::from_secs(30));
    for uri in [&owner, &other] {
        assert_eq!(map(uri), expected, "after a start, by {uri}");
    }
}

#[test]
fn one_request_tells_of_a_striped_volume_and_of_one_with_a_copy_less() {
    let mut cluster =
        cluster(6 * GIB, &["--size", "3840MiB", "--stripes", "4", "--least", "1", "--log", "64MiB"]);
    let (owner, other) = (uri(&cluster, 1, "disk"), uri(&cluster, 3, "disk"));
    let bytes = 3840 * MIB;
    let asked = statuses(&cluster, 1);
    assert_eq!(map(&owner), [(0, bytes, HOLE)]);
    assert_eq!(statuses(&cluster, 1), asked + 1.0);
    qemu_io(&owner, &["write -P 1 100M 20M", "discard 110M 1M", "write -P 2 3839M 1M"]);
    let expected = with_holes(
        bytes,
        &[(100 * MIB, 10 * MIB, DATA), (111 * MIB, 9 * MIB, DATA), (bytes - MIB, MIB, DATA)],
    );
    let asked = statuses(&cluster, 1);
    assert_eq!(map(&other), expected);
    assert_eq!(statuses(&cluster, 1), asked + 1.0);
    // Also while the other copy is away, by a node that has none.
    cluster.kill(2);
    qemu_io(&other, &["write -P 3 1000M 64k", "discard 100M 1M"]);
    let expected = with_holes(
        bytes,
        &[
            (101 * MIB, 9 * MIB, DATA),
            (111 * MIB, 9 * MIB, DATA),
            (1000 * MIB, 64 * KIB, DATA),
            (bytes - MIB, MIB, DATA),
        ],
    );
    assert_eq!(map(&other), expected);
    assert_eq!(read_bytes(&cluster, 1), 0.0, "nothing was read");
}
