//! How long I/Os of a load occupy a device of a model, and how long they take there.

use loadline_base::device_model::{DeviceModel, Speed};

use super::Load;

/// The unit of the store, bytes.
const BLOCK: u64 = 4096;
/// The blocks of an extent: what lies together on a device.
const EXTENT: u64 = 64;
/// Checksums in the first sector of a log record's header; each further sector has room for [`MORE_SUMS`].
const SUMS: u64 = 99;
const MORE_SUMS: u64 = 128;
const SECTOR: u64 = 512;
/// What the store destages together (its setting `round`), bytes: at most a quarter of the log.
const ROUND: u64 = 64 << 20;
/// Slots, pages and syncs add so much to destaging, at the most.
const SLOTS: f64 = 0.1;
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
    /// One of the writes that a destage is made of occupies it so long.
    pub(super) piece: f64,
    /// An append completes so much later than it has occupied the device.
    pub(super) append_latency: f64,
    write: Speed,
    record: u64,
}

impl Costs {
    pub(super) fn of(model: &DeviceModel, load: &Load, end: End) -> Costs {
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
        let destage = match end {
            End::High { destaged } => destaged * destage(model, blocks, load, false),
            End::Low => destage(model, blocks, load, true) * (1.0 + SLOTS),
        };
        Costs {
            read: pieces as f64 * model.read.cost(part).as_secs_f64(),
            read_latency: mean_latency(model.read),
            destage,
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

/// How long the write of a client occupies the device when it is destaged. A round takes what many writes have brought: the last version of
/// each block, and adjacent blocks of an extent in one write.
fn destage(model: &DeviceModel, blocks: u64, load: &Load, is_low: bool) -> f64 {
    let extents = blocks.div_ceil(EXTENT);
    let alone =
        |extents: u64| extents as f64 * model.write.cost((blocks * BLOCK).div_ceil(extents)).as_secs_f64();
    if is_low {
        return alone(extents + u64::from(load.is_random && blocks > 1));
    }
    if !load.is_random {
        // Neighbours come one after the other: a whole extent in one write.
        let whole = model.write.cost(EXTENT * BLOCK).as_secs_f64() * blocks as f64 / EXTENT as f64;
        return whole.min(alone(extents));
    }
    // Blocks thrown at random into as many places as the working set has: how many are hit, and how many of these begin a run.
    let places = (load.working_set / BLOCK).max(1) as f64;
    let thrown = (ROUND.min(load.log / 4) / record_length(blocks)).max(1) as f64 * blocks as f64;
    let hit = places * (1.0 - (-thrown / places).exp());
    let runs = (hit * (1.0 - hit / places)).max(hit / EXTENT as f64) / blocks as f64;
    let run = (hit / blocks as f64 / runs).max(1.0);
    let writes = thrown / blocks as f64;
    (runs / writes * model.write.cost((run * (blocks * BLOCK) as f64) as u64).as_secs_f64())
        .min(alone(extents))
}
