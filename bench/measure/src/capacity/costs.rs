//! How long I/Os of a load occupy a device of a model, and how long they take there.

use loadline_base::device_model::{DeviceModel, Speed};

use super::Load;

/// The unit of the store, bytes.
pub(super) const BLOCK: u64 = 4096;
/// What writers may have in a log, of its size.
pub(super) const ROOM: f64 = 7.0 / 8.0;
/// The blocks of an extent: what lies together on a device.
const EXTENT: u64 = 64;
/// Checksums in the first sector of a log record's header; each further sector has room for [`MORE_SUMS`].
const SUMS: u64 = 99;
const MORE_SUMS: u64 = 128;
const SECTOR: u64 = 512;
/// What the store destages together (its setting `round`), bytes: at most a quarter of the log.
const ROUND: u64 = 64 << 20;
/// Destaging begins when the log has this share of its size, or so many bytes if that is less, and a round more (its settings `low` and
/// `begin`).
const BEGIN_SHARE: f64 = 0.3;
const BEGIN: f64 = (64 << 20) as f64;
/// When the log has this share of its size, or a round less than all that writers may have there, they get no more than what destaging
/// frees (its setting `high`). They may have saved up this part of a round (`san/store/src/store/throttle.rs`).
const HIGH_SHARE: f64 = 0.7;
const SAVED: f64 = 1.0 / 16.0;
/// What is read back from the log at once to be destaged: so many blocks with their headers (`san/store/src/store/destage/recall.rs`).
const RECALLED: u64 = 64;
/// Such reads of each copy that are under way at once.
const RECALLS: f64 = 2.0;
/// Slots, pages and syncs add so much to destaging, at the most.
const SLOTS: f64 = 0.1;
/// The scrub of a node in use reads so many extents a second at the most: 10 MiB (`share_out_scrub` in `san/node/src/event_loop/replicas.rs`).
const SCRUBBED: f64 = 40.0;
/// The scrub takes no more of a device than this.
const MOST_SCRUBBED: f64 = 0.5;
/// The 99th percentile of the normal distribution, in standard deviations.
const Z99: f64 = 2.326_347_874;

/// Which end of the interval the costs are of.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum End {
    /// The least that can be, with this share of what is written destaged in the window.
    High { destaged: f64 },
    /// The most that can be.
    Low,
}

/// What I/Os of a load cost a device, seconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Costs {
    /// A read occupies it so long,
    pub(super) read: f64,
    /// and completes so much later.
    pub(super) read_latency: f64,
    /// A write to a place that is not the log occupies it so long, for each write of a client.
    pub(super) destage: f64,
    /// Reading it back from the log for that, if memory did not hold it: each write of a client occupies the log's device so long,
    pub(super) recall: f64,
    /// and the reads of a copy that are under way at once so long.
    pub(super) recalls: f64,
    /// One of the writes that a destage is made of occupies it so long.
    pub(super) piece: f64,
    /// An append completes so much later than it has occupied the device.
    pub(super) append_latency: f64,
    write: Speed,
    record: u64,
}

impl Costs {
    /// Of a device of this model, which has data or only logs.
    pub(super) fn of(model: &DeviceModel, has_data: bool, load: &Load, end: End) -> Costs {
        let blocks = load.block.div_ceil(BLOCK).max(1);
        let is_low = end == End::Low;
        let extents = blocks.div_ceil(EXTENT) + u64::from(is_low && load.is_random && blocks > 1);
        let pieces = match is_low && load.is_scattered {
            true => extents.max(scattered(blocks, load)),
            false => extents,
        };
        let part = (load.block / pieces).max(SECTOR);
        let cache = model.cache;
        let needs_flush = cache.is_none_or(|cache| cache.volatile);
        let into = cache.map_or_else(|| mean_latency(model.write), |cache| cache.latency.0.as_secs_f64());
        let (destage, recall) = match end {
            End::High { destaged } => (destaged * destage(model, blocks, load, end), 0.0),
            End::Low => {
                let read = model.read.cost(RECALLED * record_length(1)).as_secs_f64();
                let of_write = blocks as f64 / RECALLED as f64 * read;
                (destage(model, blocks, load, end) * (1.0 + SLOTS), survivors(load, end) * of_write)
            }
        };
        // What the scrub takes of the device is not there for the rest: all of it takes so much longer.
        let scrub =
            if is_low && has_data { SCRUBBED * model.read.cost(EXTENT * BLOCK).as_secs_f64() } else { 0.0 };
        let longer = 1.0 / (1.0 - scrub.min(MOST_SCRUBBED));
        Costs {
            read: longer * pieces as f64 * model.read.cost(part).as_secs_f64(),
            read_latency: mean_latency(model.read),
            destage: longer * destage,
            recall,
            recalls: RECALLS * model.read.cost(RECALLED * record_length(1)).as_secs_f64(),
            piece: model.write.cost(blocks.min(EXTENT) * BLOCK).as_secs_f64(),
            append_latency: into + if needs_flush { model.flush.0.as_secs_f64() } else { 0.0 },
            write: model.write,
            record: record_length(blocks),
        }
    }

    /// How long an append of so many writes together occupies the device.
    pub(super) fn append(&self, batch: f64) -> f64 {
        self.write.cost((batch.max(1.0) * self.record as f64) as u64).as_secs_f64()
    }
}

/// Bytes of a log record of so many blocks.
pub(super) fn record_length(blocks: u64) -> u64 {
    blocks * BLOCK + SECTOR * (1 + blocks.saturating_sub(SUMS).div_ceil(MORE_SUMS))
}

/// The mean of a latency that is log-normal by its median and its 99th percentile, seconds.
fn mean_latency(speed: Speed) -> f64 {
    let median = speed.latency.0.as_secs_f64();
    let Some(p99) = speed.p99.map(|p99| p99.0.as_secs_f64()).filter(|p99| *p99 > median && median > 0.0)
    else {
        return median;
    };
    let sigma = (p99 / median).ln() / Z99;
    median * (sigma * sigma / 2.0).exp()
}

/// How many pieces a read of so many blocks is made of, if the log has small random writes of these blocks: runs of blocks that are in the
/// log, and runs that are not.
fn scattered(blocks: u64, load: &Load) -> u64 {
    let in_log = (load.log as f64 / load.working_set.max(1) as f64).min(0.5);
    let changes = 2.0 * in_log * (1.0 - in_log) * blocks.saturating_sub(1) as f64;
    1 + changes.round() as u64
}

/// Between which backlogs of a log of so many bytes a write gets dearer, from nothing to what destaging frees
/// (`san/store/src/store/throttle.rs`).
pub(super) fn slowing(log: f64) -> (f64, f64) {
    let round = (ROUND as f64).min(log / 4.0);
    let high = (HIGH_SHARE * log).min(ROOM * log - round);
    let low = BEGIN_SHARE * log + round;
    (low + (high - low).max(0.0) / 2.0, high)
}

/// Writes of clients in a round of destaging, and those that are in the log after one when it is destaged: at the most, those with which
/// writers get no more than what is freed; at the least, those with which destaging begins.
fn round_and_behind(load: &Load, end: End) -> (f64, f64) {
    let record = record_length(load.block.div_ceil(BLOCK).max(1)) as f64;
    let log = load.log as f64;
    let round = (ROUND as f64).min(log / 4.0);
    let behind = match end {
        End::High { .. } => (HIGH_SHARE * log).min(ROOM * log - round) + round * SAVED,
        End::Low => (BEGIN_SHARE * log).min(BEGIN) + round,
    };
    (round / record, behind / record)
}

/// The share of the writes leaving the log that are destaged: the log has a later write of the same blocks for the others.
///
/// Writes at random to P places: one is not followed by another of the same place within N writes with the probability exp(−N / P).
/// Destaging frees the log in its order while writers append as much, so N is what the log has. In a round of T writes that memory
/// holds, extents are destaged in their own order, which the least N allows for: with a = T / P, ((1 − exp(−a)) / a)² · exp(a) times as many.
pub(super) fn survivors(load: &Load, end: End) -> f64 {
    let places = places(load);
    let (round, behind) = round_and_behind(load, end);
    match (load.is_random, end) {
        (true, End::High { .. }) => (-behind / places).exp(),
        (true, End::Low) => {
            let of_round = round / places;
            let distinct = (1.0 - (-of_round).exp()) / of_round;
            distinct * distinct * ((round - behind) / places).exp()
        }
        // One place after the other, and over again.
        (false, End::High { .. }) if places <= behind => 0.0,
        (false, _) => 1.0,
    }
}

/// The places of a load's writes.
fn places(load: &Load) -> f64 {
    (load.working_set as f64 / load.block.max(1) as f64).max(1.0)
}

/// How long the write of a client occupies the device when it leaves the log: the last version of each block is written, unless the log has
/// a later one, and adjacent blocks of an extent go together.
fn destage(model: &DeviceModel, blocks: u64, load: &Load, end: End) -> f64 {
    let extents = blocks.div_ceil(EXTENT);
    let survivors = survivors(load, end);
    let alone =
        |extents: u64| extents as f64 * model.write.cost((blocks * BLOCK).div_ceil(extents)).as_secs_f64();
    if end == End::Low {
        return survivors * alone(extents + u64::from(load.is_random && blocks > 1));
    }
    if !load.is_random {
        // Neighbours come one after the other: a whole extent in one write.
        let whole = model.write.cost(EXTENT * BLOCK).as_secs_f64() * blocks as f64 / EXTENT as f64;
        return survivors * whole.min(alone(extents));
    }
    // Of the places that are destaged in a round, those whose neighbour before is not begin a run.
    let places = places(load);
    let (round, _) = round_and_behind(load, end);
    let hit = survivors * round;
    let runs = (hit * (1.0 - hit / places)).max(hit * blocks as f64 / EXTENT as f64);
    let run = (hit / runs.max(f64::MIN_POSITIVE)).max(1.0);
    (runs / round * model.write.cost((run * (blocks * BLOCK) as f64) as u64).as_secs_f64())
        .min(survivors * alone(extents))
}
