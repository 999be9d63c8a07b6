//! What a node did between two moments, for those who follow it: differences of what its loops count.

use std::collections::BTreeMap;

use loadline_san_core::layout::BLOCK;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Doing;
use crate::config::catalog::Catalog;
use crate::event_loop::command::{LoopState, ReplicaState, VolumeState};
use crate::event_loop::counts::{BackEnd, Count, FrontEnd};
use crate::event_loop::latencies::Latencies;

/// What a node did since the sample before, and how it is now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Sample {
    /// One more than that of the sample before. A number that is missing was not sent, because the follower had not read those before.
    pub number: u64,
    /// When it was taken, by the node's clock: milliseconds since 1970.
    pub at_ms: u64,
    /// The time since the sample before, microseconds.
    pub covers_us: u64,
    /// Threads of the data path that did not report in time. What they did is missing here, and is in the next sample, beside what they did
    /// in the time of that one.
    pub silent_loops: usize,
    /// Connections of clients.
    pub clients: usize,
    /// CPU time of the process since the sample before, microseconds.
    pub cpu_us: u64,
    /// Resident memory of the process, bytes.
    pub memory: u64,
    /// Volumes that the node serves, by rising id.
    pub volumes: Vec<VolumeSample>,
    /// Its replicas, by rising id.
    pub replicas: Vec<ReplicaSample>,
    /// Its devices with replicas, by rising id.
    pub devices: Vec<DeviceSample>,
}

/// A volume at its owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VolumeSample {
    /// Its id.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// Connections of clients.
    pub clients: usize,
    /// How long ago the last connection ended whose client may come back, because it did not announce its end; or for how long this node
    /// has served the volume, if clients of the owner before may come back. Milliseconds. It is left out if there is no such client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_client_ms: Option<u64>,
    /// Requests without an answer now.
    pub unanswered: usize,
    /// Reads of data.
    #[serde(default, skip_serializing_if = "Ios::is_idle")]
    pub read: Ios,
    /// Writes of data.
    #[serde(default, skip_serializing_if = "Ios::is_idle")]
    pub write: Ios,
    /// All other requests: trims, writes of zeroes, flushes, block statuses.
    #[serde(default, skip_serializing_if = "Ios::is_idle")]
    pub other: Ios,
    /// How many reads succeeded in each class of `bounds_ns` ([`Hello`](super::follow::Hello)): the number of the class, and the count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub read_classes: Vec<(u8, u32)>,
    /// The same of writes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub write_classes: Vec<(u8, u32)>,
    /// Bytes that were read from the copy on this node.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub read_here: u64,
    /// Bytes that were read from copies on other nodes.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub read_elsewhere: u64,
    /// Bytes that were copied to returning replicas.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub resynced: u64,
    /// Bytes that are still to be copied to returning replicas.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub resync_left: u64,
}

/// A replica at its node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReplicaSample {
    /// Its id.
    pub id: u64,
    /// The id of its volume.
    pub volume: u64,
    /// Bytes of its log.
    pub log: u64,
    /// Bytes of the log that are not destaged.
    pub log_used: u64,
    /// Bytes of the log that were destaged and freed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub destaged: u64,
    /// Bytes that the scrub has checked.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub scrubbed: u64,
    /// Corrupt blocks that were found.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub corrupt: u64,
    /// Writes have waited a moment ago, because the log fills up.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub slowed: bool,
}

/// A device, as its replicas use it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceSample {
    /// Its id.
    pub id: u32,
    /// Writes to logs.
    #[serde(default, skip_serializing_if = "Ios::is_idle")]
    pub log_writes: Ios,
    /// Reads from logs.
    #[serde(default, skip_serializing_if = "Ios::is_idle")]
    pub log_reads: Ios,
    /// Writes of destaged data.
    #[serde(default, skip_serializing_if = "Ios::is_idle")]
    pub data_writes: Ios,
    /// Reads of data: of clients, of the scrub, and for destaging.
    #[serde(default, skip_serializing_if = "Ios::is_idle")]
    pub data_reads: Ios,
    /// What makes writes durable. These have no bytes.
    #[serde(default, skip_serializing_if = "Ios::is_idle")]
    pub syncs: Ios,
}

/// I/Os of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Ios {
    /// Those that succeeded.
    pub ios: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How long they took together, microseconds.
    pub sum_us: u64,
    /// Those that failed. They are in nothing else.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub errors: u64,
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

impl Ios {
    fn is_idle(&self) -> bool {
        *self == Ios::default()
    }

    /// What was counted since before. If what was counted is new, it has counted from 0.
    fn between(before: &Count, now: &Count) -> Ios {
        let is_new = now.ios < before.ios || now.errors < before.errors;
        let before = if is_new { &Count::default() } else { before };
        Ios {
            ios: now.ios - before.ios,
            bytes: now.bytes.saturating_sub(before.bytes),
            sum_us: now.sum_ns.saturating_sub(before.sum_ns) / 1000,
            errors: now.errors - before.errors,
        }
    }

    fn add(&mut self, more: Ios) {
        self.ios += more.ios;
        self.bytes += more.bytes;
        self.sum_us += more.sum_us;
        self.errors += more.errors;
    }
}

/// What the loops of a node had counted at a moment.
#[derive(Debug, Default)]
pub(super) struct Counted {
    /// Each volume, with the blocks that were copied.
    volumes: BTreeMap<u64, (FrontEnd, u64)>,
    replicas: BTreeMap<u64, (BackEnd, BackEnd, [u64; 3])>,
}

impl Counted {
    /// What loops have counted. What is not in them, because a loop is silent, stays as it was.
    fn take(&mut self, loops: &[Option<LoopState>]) {
        let all_reported = loops.iter().all(Option::is_some);
        if all_reported {
            *self = Counted::default();
        }
        for of in loops.iter().flatten() {
            for volume in &of.volumes {
                self.volumes.insert(volume.id.0, (volume.front_end, volume.copied));
            }
            for replica in &of.replicas {
                let counts = [replica.destaged, replica.scrubbed, replica.corrupt];
                self.replicas.insert(replica.id.0, (replica.log, replica.capacity, counts));
            }
        }
    }
}

/// What the loops have done since what was counted before, which becomes what they have counted now. Everything else of the sample is
/// its caller's.
pub(super) fn since(before: &mut Counted, loops: &[Option<LoopState>], catalog: &Catalog) -> Sample {
    let mut sample = Sample {
        number: 0,
        at_ms: 0,
        covers_us: 0,
        silent_loops: loops.iter().filter(|of| of.is_none()).count(),
        clients: loops.iter().flatten().map(|of| of.clients).sum(),
        cpu_us: 0,
        memory: 0,
        volumes: Vec::new(),
        replicas: Vec::new(),
        devices: Vec::new(),
    };
    let mut devices: BTreeMap<u32, DeviceSample> = BTreeMap::new();
    for of in loops.iter().flatten() {
        for volume in of.volumes.iter().filter(|of| Doing::of(of.view.status).serves()) {
            let Some((named, _)) = catalog.volumes.get(&volume.id.0) else { continue };
            sample.volumes.push(of_volume(before, volume, named.name.clone()));
        }
        for replica in &of.replicas {
            let Some((placed, _)) = catalog.replicas.get(&replica.id.0) else { continue };
            let new = Default::default();
            let (log, capacity, counts) = before.replicas.get(&replica.id.0).unwrap_or(&new);
            let on_log = devices.entry(placed.log_device).or_default();
            on_log.log_writes.add(Ios::between(&log.write, &replica.log.write));
            on_log.log_reads.add(Ios::between(&log.read, &replica.log.read));
            on_log.syncs.add(Ios::between(&log.sync, &replica.log.sync));
            let on_data = devices.entry(placed.device).or_default();
            on_data.data_writes.add(Ios::between(&capacity.write, &replica.capacity.write));
            on_data.data_reads.add(Ios::between(&capacity.read, &replica.capacity.read));
            on_data.syncs.add(Ios::between(&capacity.sync, &replica.capacity.sync));
            sample.replicas.push(of_replica(counts, replica, placed.volume));
        }
    }
    sample.devices = devices.into_iter().map(|(id, of)| DeviceSample { id, ..of }).collect();
    sample.volumes.sort_by_key(|of| of.id);
    sample.replicas.sort_by_key(|of| of.id);
    before.take(loops);
    sample
}

fn of_volume(before: &Counted, now: &VolumeState, name: String) -> VolumeSample {
    let new = Default::default();
    let (front, copied) = before.volumes.get(&now.id.0).unwrap_or(&new);
    let counts = &now.front_end;
    let mut other = Ios::default();
    for (before, now) in [
        (&front.map, &counts.map),
        (&front.zero, &counts.zero),
        (&front.trim, &counts.trim),
        (&front.flush, &counts.flush),
    ] {
        other.add(Ios::between(before, now));
    }
    let (read, read_classes) =
        timed((&front.read, &front.read_latencies), (&counts.read, &counts.read_latencies));
    let (write, write_classes) =
        timed((&front.write, &front.write_latencies), (&counts.write, &counts.write_latencies));
    VolumeSample {
        id: now.id.0,
        name,
        clients: now.clients,
        lost_client_ms: now.lost_ns.map(|since| since / 1_000_000),
        unanswered: now.unanswered,
        read,
        write,
        other,
        read_classes,
        write_classes,
        read_here: grown(front.read_here, counts.read_here),
        read_elsewhere: grown(front.read_elsewhere, counts.read_elsewhere),
        resynced: grown(*copied, now.copied) * BLOCK,
        resync_left: now.returning.iter().map(|of| of.left).sum::<u64>() * BLOCK,
    }
}

/// What was counted since before, with its latencies: each I/O is in one class. If it is not so, the volume was opened again meanwhile,
/// and has counted from 0.
fn timed(before: (&Count, &Latencies), now: (&Count, &Latencies)) -> (Ios, Vec<(u8, u32)>) {
    let (ios, classes) = (Ios::between(before.0, now.0), now.1.since(before.1));
    match classes.iter().map(|(_, count)| u64::from(*count)).sum::<u64>() == ios.ios {
        true => (ios, classes),
        false => (Ios::between(&Count::default(), now.0), now.1.since(&Latencies::default())),
    }
}

fn grown(was: u64, is: u64) -> u64 {
    if is < was { is } else { is - was }
}

fn of_replica([destaged, scrubbed, corrupt]: &[u64; 3], now: &ReplicaState, volume: u64) -> ReplicaSample {
    ReplicaSample {
        id: now.id.0,
        volume,
        log: now.log_bytes,
        log_used: now.log_used,
        destaged: grown(*destaged, now.destaged),
        scrubbed: grown(*scrubbed, now.scrubbed),
        corrupt: grown(*corrupt, now.corrupt),
        slowed: now.slowed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(latencies: &[u64]) -> (Count, Latencies) {
        let mut counted = (Count::default(), Latencies::default());
        for took in latencies {
            counted.0.add(4096, *took, true);
            counted.1.add(*took);
        }
        counted
    }

    #[test]
    fn a_sample_has_what_was_done_since_the_one_before() {
        let (before, now) = (counted(&[5_000]), counted(&[5_000, 20_000, 20_000]));
        let (ios, classes) = timed((&before.0, &before.1), (&now.0, &now.1));
        assert_eq!((ios.ios, ios.bytes, ios.sum_us, ios.errors), (2, 8192, 40, 0));
        assert_eq!(classes.iter().map(|(_, count)| count).sum::<u32>(), 2);
        assert_eq!(timed((&now.0, &now.1), (&now.0, &now.1)), (Ios::default(), Vec::new()));
    }

    #[test]
    fn a_volume_that_was_opened_again_counts_from_0_also_if_it_has_done_more_than_before() {
        let (before, now) = (counted(&[5_000, 5_000]), counted(&[20_000, 20_000, 20_000]));
        let (ios, classes) = timed((&before.0, &before.1), (&now.0, &now.1));
        assert_eq!((ios.ios, ios.sum_us, classes.len()), (3, 60, 1));
        let fewer = counted(&[20_000]);
        assert_eq!(timed((&before.0, &before.1), (&fewer.0, &fewer.1)).0.ios, 1);
    }
}
