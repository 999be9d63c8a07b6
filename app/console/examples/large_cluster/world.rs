//! What the nodes of the large cluster report: functions of the second and of numbers, so that each run is the same.

use loadline_san_node::node::manage::{
    DeviceSample, Followed, Hello, Ios, ReplicaSample, Sample, StatusView, VolumeSample,
};
use loadline_san_node::recent::LogLine;
use serde_json::json;

const GIB: u64 = 1 << 30;
/// Bytes of a device for replicas.
const DEVICE: u64 = 4096 * GIB;
/// Bytes of a volume.
const VOLUME: u64 = 300 * GIB;
/// Bytes of a log.
const LOG: u64 = GIB;
/// Seconds from one line of a node's log to the next.
const LINE: u64 = 300;

/// A cluster of so many nodes and volumes: volume `v` is served by node `v % nodes`, and has its other copy on the node after it. Each node
/// has one device for logs and one for data.
pub(crate) struct World {
    pub(crate) nodes: usize,
    pub(crate) volumes: usize,
    pub(crate) port: u16,
}

/// A number that looks like chance, between 0 and 1: the same one for the same arguments (splitmix64).
fn chance(seed: u64, salt: u64) -> f64 {
    let mut of =
        seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(salt.wrapping_mul(0xbf58_476d_1ce4_e5b9));
    of = (of ^ (of >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    of = (of ^ (of >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((of ^ (of >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

/// So many requests in classes around one, and how long they took together: microseconds.
fn classes(count: u64, middle: u8) -> (Vec<(u8, u32)>, u64) {
    // Shares of a bell with a long tail to the slow side.
    const SHARES: [(i8, f64); 12] = [
        (-4, 0.02),
        (-3, 0.06),
        (-2, 0.14),
        (-1, 0.20),
        (0, 0.21),
        (1, 0.15),
        (2, 0.09),
        (3, 0.05),
        (5, 0.04),
        (8, 0.025),
        (12, 0.01),
        (17, 0.005),
    ];
    let (mut left, mut classes, mut sum) = (count, Vec::new(), 0.0);
    for (n, (offset, share)) in SHARES.iter().enumerate() {
        let here = if n + 1 == SHARES.len() { left } else { ((count as f64 * share) as u64).min(left) };
        left -= here;
        let class = middle.saturating_add_signed(*offset).min(120);
        if here > 0 {
            classes.push((class, here as u32));
            sum += here as f64 * 10f64.powf(1.0 + f64::from(class) / 20.0);
        }
    }
    (classes, sum as u64)
}

impl World {
    /// The address of a node.
    pub(crate) fn address(&self, node: usize) -> [u8; 4] {
        [127, 77, (node / 250) as u8, (node % 250 + 1) as u8]
    }

    pub(crate) fn node_name(&self, node: usize) -> String {
        format!("node-{:03}", node + 1)
    }

    pub(crate) fn volume_name(&self, volume: usize) -> String {
        format!("volume-{:04}", volume + 1)
    }

    fn volumes_of(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        (node..self.volumes).step_by(self.nodes)
    }

    /// The replicas of a node: the volume, and whether it is the volume's second copy.
    fn replicas_of(&self, node: usize) -> Vec<(usize, bool)> {
        let before = (node + self.nodes - 1) % self.nodes;
        let own = self.volumes_of(node).map(|volume| (volume, false));
        own.chain(self.volumes_of(before).map(|volume| (volume, true))).collect()
    }

    pub(crate) fn hello(&self, node: usize) -> Hello {
        // The bounds of a node: twenty a decade, from 10 us to 10 s.
        let bounds_ns = (0..=120).map(|of| 10f64.powf(4.0 + f64::from(of) / 20.0) as u64).collect();
        let (node, cluster) = (self.node_name(node), "large".to_owned());
        Hello { node, cluster, incarnation: 1, version: env!("CARGO_PKG_VERSION").into(), bounds_ns }
    }

    /// A line of the log of a node, in one second of [`LINE`].
    pub(crate) fn line(&self, node: usize, wall_ms: u64, number: u64) -> Option<LogLine> {
        if !(wall_ms / 1000 + node as u64 * 7).is_multiple_of(LINE) {
            return None;
        }
        let volume = self.volume_name(node);
        let message = format!(
            "client 10.0.0.{} of volume {volume} is disconnected: it closed the connection",
            node % 250
        );
        let text = format!("{wall_ms} info {message}");
        Some(LogLine {
            number,
            text,
            at_ms: wall_ms,
            level: "info".into(),
            message,
            volume: Some(volume),
            ..LogLine::default()
        })
    }

    /// What a volume does in a second: reads, writes, and the class of its usual latency. One of eight does nothing.
    fn load(&self, volume: usize, second: u64) -> (u64, u64, u8) {
        let of = volume as u64;
        if of % 8 == 7 {
            return (0, 0, 0);
        }
        let size = 20.0 * 60f64.powf(chance(of, 1));
        let wave = 1.0 + 0.4 * ((second as f64 / (60.0 + 600.0 * chance(of, 2))).sin());
        let noise = 0.8 + 0.4 * chance(of, second);
        let total = size * wave * noise;
        let reads = total * (0.3 + 0.6 * chance(of, 3));
        let class = 24.0 + 10.0 * chance(of, 4) + 4.0 * wave + 2.0 * chance(of, second + 1);
        (reads as u64, (total - reads) as u64, class as u8)
    }

    pub(crate) fn sample(&self, node: usize, number: u64, wall_ms: u64) -> Sample {
        let second = wall_ms / 1000;
        let volume = |volume: usize| {
            let (reads, writes, class) = self.load(volume, second);
            let ((read_classes, read_us), (write_classes, write_us)) =
                (classes(reads, class), classes(writes, class + 4));
            VolumeSample {
                id: volume as u64,
                name: self.volume_name(volume),
                clients: 1,
                lost_client_ms: None,
                unanswered: (reads + writes) as usize / 400,
                read: Ios { ios: reads, bytes: reads * 8192, sum_us: read_us, errors: 0 },
                write: Ios { ios: writes, bytes: writes * 8192, sum_us: write_us, errors: 0 },
                other: Ios::default(),
                read_classes,
                write_classes,
                read_here: reads * 8192,
                read_elsewhere: 0,
                resynced: 0,
                resync_left: 0,
            }
        };
        let replicas = self.replicas_of(node);
        let writes: u64 = replicas.iter().map(|(volume, _)| self.load(*volume, second).1).sum();
        let reads: u64 = self.volumes_of(node).map(|volume| self.load(volume, second).0).sum();
        let ios = |ios: u64, bytes: u64, each_us: u64| Ios {
            ios,
            bytes: ios * bytes,
            sum_us: ios * each_us,
            errors: 0,
        };
        let replica = |(volume, second_copy): &(usize, bool)| ReplicaSample {
            id: (2 * volume + usize::from(*second_copy)) as u64,
            volume: *volume as u64,
            log: LOG,
            log_used: (LOG as f64 * 0.4 * chance(*volume as u64, second / 30)) as u64,
            destaged: self.load(*volume, second).1 * 8192,
            scrubbed: 1 << 20,
            corrupt: 0,
            slowed: false,
        };
        let (id, each_us) = (2 * node as u32, 60 + (80.0 * chance(node as u64, second)) as u64);
        let log = DeviceSample {
            id,
            log_writes: ios(writes / 2 + 1, 16_384, each_us),
            syncs: ios(writes / 4, 0, 2 * each_us),
            ..DeviceSample::default()
        };
        let data = DeviceSample {
            id: id + 1,
            data_writes: ios(writes / 3 + 1, 24_576, 3 * each_us),
            data_reads: ios(reads + 8, 8192, 2 * each_us),
            ..DeviceSample::default()
        };
        Sample {
            number,
            at_ms: wall_ms,
            covers_us: 1_000_000,
            silent_loops: 0,
            clients: self.volumes_of(node).count(),
            cpu_us: 200_000 + 100 * (reads + writes),
            memory: 600 << 20,
            volumes: self.volumes_of(node).map(volume).collect(),
            replicas: replicas.iter().map(replica).collect(),
            devices: vec![log, data],
        }
    }

    pub(crate) fn status(&self, asked: usize, second: u64) -> StatusView {
        let nodes: Vec<_> = (0..self.nodes)
            .map(|node| {
                let [a, b, c, d] = self.address(node);
                json!({ "name": self.node_name(node), "alive": true, "api": format!("{a}.{b}.{c}.{d}:{}", self.port),
                    "endpoints": {}, "draining": false, "maintenance": false, "stopping": false, "incarnation": 1, "devices": 2,
                    "replicas": self.replicas_of(node).len(), "fault": null })
            })
            .collect();
        let devices: Vec<_> = (0..2 * self.nodes)
            .map(|id| {
                let (node, is_log) = (id / 2, id % 2 == 0);
                let replicas = self.replicas_of(node).len();
                let promised = replicas as u64 * if is_log { LOG } else { VOLUME };
                // Data grows by 1 to 20 MiB a second, in chunks of 64 MiB; logs are taken as a whole.
                let grown = (chance(id as u64, 5) * 19.0 + 1.0) * (1u64 << 20) as f64 * (second % 86_400) as f64;
                let taken = if is_log { promised } else { DEVICE / 4 + (grown as u64 >> 26 << 26) };
                json!({ "id": id, "node": self.node_name(node), "path": format!("/dev/disk/by-id/nvme-{id:04}"),
                    "bytes": if is_log { DEVICE / 16 } else { DEVICE }, "role": if is_log { "log" } else { "capacity" },
                    "promised": promised, "taken": taken.min(DEVICE), "room": GIB, "replicas": replicas, "draining": false,
                    "replaced_by": null, "advice": null, "model": null, "keeps_up": null, "fault": null })
            })
            .collect();
        let volumes: Vec<_> = (0..self.volumes)
            .map(|volume| {
                let owner = volume % self.nodes;
                let replica = |copy: usize| {
                    let node = (owner + copy) % self.nodes;
                    json!({ "id": 2 * volume + copy, "group": 0, "node": self.node_name(node), "device": 2 * node + 1,
                        "log_device": 2 * node, "state": "in sync", "epoch": 3, "left_bytes": null, "copied_bytes": null,
                        "full_resync": null, "leaving": false, "note": null })
                };
                json!({ "name": self.volume_name(volume), "bytes": VOLUME, "copies": 2, "least": 1, "stripes": 1, "lease_ms": 600,
                    "requires_tls": false, "cache_bytes": 0, "limit": null, "health": "healthy", "in_sync": 2,
                    "attached": self.node_name(owner), "owner": self.node_name(owner), "epoch": 3,
                    "replicas": [replica(0), replica(1)], "note": null })
            })
            .collect();
        let status = json!({ "cluster": "large", "asked": self.node_name(asked), "store_fault": null, "reserve": {}, "store": [],
            "nodes": nodes, "devices": devices, "volumes": volumes });
        serde_json::from_value(status).expect("it is a status")
    }

    /// The hello of a node and a sample, as a follower receives them.
    pub(crate) fn followed(&self, node: usize, second: u64) -> [Followed; 2] {
        let sample = self.sample(node, second, second * 1000);
        [Followed::Hello(self.hello(node)), Followed::Sample(Box::new(sample))]
    }
}
