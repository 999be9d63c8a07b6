//! What clients did and devices did in a second: of a volume, of a node, of a cluster. Figures add up, and become rates at the end.

use loadline_san_node::node::manage::{Ios, Sample, VolumeSample};
use schemars::JsonSchema;
use serde::Serialize;

use crate::latency::{Classes, Latency};

/// Requests of one kind.
#[derive(Debug, Clone, Default)]
struct Requests {
    ios: Ios,
    classes: Classes,
}

/// What was done in some time, to be added up.
#[derive(Debug, Clone, Default)]
pub struct Done {
    read: Requests,
    write: Requests,
    other: Ios,
    read_here: u64,
    read_elsewhere: u64,
    log: Ios,
    destage: Ios,
    data_reads: Ios,
    resync: u64,
    scrub: u64,
}

/// What was done each second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, JsonSchema)]
pub struct Rates {
    /// Reads of clients.
    pub reads: f64,
    /// Writes of clients.
    pub writes: f64,
    /// Bytes that clients read.
    pub read_bytes: f64,
    /// Bytes that clients wrote.
    pub write_bytes: f64,
    /// Other requests of clients: trims, writes of zeroes, flushes, block statuses.
    pub others: f64,
    /// Requests of clients that failed.
    pub errors: f64,
    /// How long reads took, if there were any.
    pub read_latency: Option<Latency>,
    /// How long writes took, if there were any.
    pub write_latency: Option<Latency>,
    /// The share of the bytes that were read from a copy on the volume's own node; nothing if none were read.
    pub read_here: Option<f64>,
    /// Bytes that were written to logs.
    pub log_bytes: f64,
    /// Bytes that were destaged from logs to data.
    pub destage_bytes: f64,
    /// Bytes that devices read of data: for clients, the scrub, resyncs and destaging.
    pub data_read_bytes: f64,
    /// Bytes that were copied to returning copies.
    pub resync_bytes: f64,
    /// Bytes that the scrub checked.
    pub scrub_bytes: f64,
}

fn add(to: &mut Ios, more: &Ios) {
    to.ios += more.ios;
    to.bytes += more.bytes;
    to.sum_us += more.sum_us;
    to.errors += more.errors;
}

impl Requests {
    fn add(&mut self, ios: &Ios, classes: &[(u8, u32)]) {
        add(&mut self.ios, ios);
        self.classes.add(classes);
    }

    fn merge(&mut self, other: &Requests) {
        add(&mut self.ios, &other.ios);
        self.classes.merge(&other.classes);
    }
}

impl Done {
    /// What clients of a volume did, and what was copied for it.
    pub fn of_volume(sample: &VolumeSample) -> Done {
        let mut done = Done::default();
        done.read.add(&sample.read, &sample.read_classes);
        done.write.add(&sample.write, &sample.write_classes);
        done.other = sample.other;
        (done.read_here, done.read_elsewhere) = (sample.read_here, sample.read_elsewhere);
        done.resync = sample.resynced;
        done
    }

    /// What a node did.
    pub fn of_node(sample: &Sample) -> Done {
        let mut done = Done::default();
        sample.volumes.iter().for_each(|volume| done.merge(&Done::of_volume(volume)));
        for device in &sample.devices {
            add(&mut done.log, &device.log_writes);
            add(&mut done.destage, &device.data_writes);
            add(&mut done.data_reads, &device.data_reads);
        }
        done.scrub = sample.replicas.iter().map(|replica| replica.scrubbed).sum();
        done
    }

    /// Adds what something else did, or the same in another time.
    pub fn merge(&mut self, other: &Done) {
        self.read.merge(&other.read);
        self.write.merge(&other.write);
        add(&mut self.other, &other.other);
        self.read_here += other.read_here;
        self.read_elsewhere += other.read_elsewhere;
        add(&mut self.log, &other.log);
        add(&mut self.destage, &other.destage);
        add(&mut self.data_reads, &other.data_reads);
        self.resync += other.resync;
        self.scrub += other.scrub;
    }

    /// The rates, if that was done in so many seconds.
    pub fn rates(&self, seconds: f64, bounds_ns: &[u64]) -> Rates {
        let a_second = |count: u64| count as f64 / seconds;
        let latency = |of: &Requests| of.classes.latency(bounds_ns, of.ios.sum_us);
        let read = self.read_here + self.read_elsewhere;
        Rates {
            reads: a_second(self.read.ios.ios),
            writes: a_second(self.write.ios.ios),
            read_bytes: a_second(self.read.ios.bytes),
            write_bytes: a_second(self.write.ios.bytes),
            others: a_second(self.other.ios),
            errors: a_second(self.read.ios.errors + self.write.ios.errors + self.other.errors),
            read_latency: latency(&self.read),
            write_latency: latency(&self.write),
            read_here: (read > 0).then(|| self.read_here as f64 / read as f64),
            log_bytes: a_second(self.log.bytes),
            destage_bytes: a_second(self.destage.bytes),
            data_read_bytes: a_second(self.data_reads.bytes),
            resync_bytes: a_second(self.resync),
            scrub_bytes: a_second(self.scrub),
        }
    }
}

impl Rates {
    /// The worst p99 of reads and writes, microseconds: what volumes are sorted by. 0 without any.
    pub fn worst_p99(&self) -> f64 {
        [self.read_latency, self.write_latency].iter().flatten().map(|of| of.p99).fold(0.0, f64::max)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A sample of a node with one volume, which has done so many reads, each of 4 KiB and in this class.
    pub(crate) fn sample(number: u64, volume: &str, reads: u64, class: u8) -> Sample {
        let read = Ios { ios: reads, bytes: reads * 4096, sum_us: reads * 100, errors: 0 };
        let json = serde_json::json!({
            "number": number, "at_ms": 1_000 * number, "covers_us": 1_000_000, "silent_loops": 0, "clients": 1,
            "cpu_us": 250_000, "memory": 1 << 20,
            "volumes": [{ "id": 1, "name": volume, "clients": 1, "unanswered": 0, "read": read,
                "read_classes": if reads > 0 { vec![(class, reads)] } else { vec![] }, "read_here": reads * 4096 }],
            "replicas": [{ "id": 3, "volume": 1, "log": 100, "log_used": 25, "scrubbed": 7 }],
            "devices": [{ "id": 2, "log_writes": Ios { ios: 1, bytes: 512, sum_us: 3, errors: 0 } }],
        });
        serde_json::from_value(json).expect("it is a sample")
    }

    #[test]
    fn what_nodes_did_adds_up_and_becomes_rates() {
        let mut done = Done::of_node(&sample(1, "a", 100, 0));
        done.merge(&Done::of_node(&sample(1, "b", 300, 2)));
        let rates = done.rates(2.0, &[10_000, 20_000, 40_000]);
        assert_eq!((rates.reads, rates.read_bytes, rates.writes), (200.0, 200.0 * 4096.0, 0.0));
        let latency = rates.read_latency.expect("there were some");
        assert!(latency.mean == 100.0 && latency.p50 > 20.0 && latency.p50 < 40.0, "{latency:?}");
        assert_eq!((rates.write_latency, rates.read_here), (None, Some(1.0)));
        assert_eq!((rates.log_bytes, rates.scrub_bytes), (512.0, 7.0));
        assert_eq!(rates.worst_p99(), latency.p99);
    }
}
