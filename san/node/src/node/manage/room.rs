//! What replicas take of a device, and how much of it there is for them.
//!
//! A device is cut into chunks. A chunk of a log is a log's whole; of a chunk of data a part is for the slots that describe
//! its extents. A replica is promised its log and a place for each extent that the volume has in its group, and takes no more:
//! what it holds free for writes in flight ([`SPARE`]) is part of that, as it holds no more free than it has extents left. So a
//! device that is not promised twice (`--overcommit`) never becomes full, and needs no reserve besides the promises. Code
//! that promises by another count promises room that is not there.

use loadline_san_core::layout::BLOCK;
use loadline_san_core::placement::Need;
use loadline_san_protocol::log::SECTOR;

use crate::config::catalog::{Catalog, Volume};
use crate::event_loop::MOST_EXTENTS;

/// Blocks of an extent: 256 KiB, which have their checksums in one place.
pub(crate) const EXTENT_BLOCKS: u32 = 64;
/// Extents that a return copies to a replica that is full: each of its 1024 blocks may be in another.
const SQUEEZED: u64 = 1024;
/// Free extents below which a replica reports that its device is full, unless it has a place for each extent of the volume:
/// what one owner has in flight, and what a return copies all the same. Of two owners in a row the second one knows that the
/// device is full before it serves: a replica reports that with its answer to what the takeover brings.
pub(crate) const SPARE: u64 = MOST_EXTENTS + SQUEEZED;
/// The chunks of a replica's log that are not full, and those of its data.
const BROKEN: u64 = 1;

/// Bytes of the chunks of a device of so many bytes. A log takes whole chunks, so a chunk is no larger than a small log: an empty
/// volume takes little of a large device. Smaller ones would cost: a node reads the table of chunks when it starts, which has 512
/// bytes for each.
pub(crate) fn chunk_bytes(device: u64) -> u64 {
    (device / 512).clamp(1 << 20, 32 << 20).next_power_of_two()
}

/// Blocks of data that a chunk has room for.
fn chunk_blocks(device: u64) -> u64 {
    let extent = u64::from(EXTENT_BLOCKS);
    chunk_bytes(device) / (extent * BLOCK + SECTOR as u64) * extent
}

/// Blocks that replicas can take of a device of so many bytes.
pub(crate) fn capacity(device: u64) -> u64 {
    device / chunk_bytes(device) * chunk_blocks(device)
}

/// What is shown of a device's space, in bytes of whole chunks, as what is taken of it: a replica's data with its slots, and logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Space {
    /// Bytes of all chunks.
    pub(crate) bytes: u64,
    /// Bytes of the chunks that are promised to replicas.
    pub(crate) promised: u64,
}

/// The space of a device of so many bytes that has promised so many blocks. Status, metrics and console show no other figures of it.
pub(crate) fn space(device: u64, promised: u64) -> Space {
    Space { bytes: in_chunks(capacity(device), device), promised: in_chunks(promised, device) }
}

/// Bytes of the chunks that so many blocks of replicas take of a device of so many bytes.
fn in_chunks(blocks: u64, device: u64) -> u64 {
    blocks * (chunk_bytes(device) / BLOCK) / chunk_blocks(device) * BLOCK
}

/// Blocks that the extents of a replica of so many blocks take of a device of so many bytes.
pub(crate) fn data(blocks: u64, device: u64) -> u64 {
    let extents = blocks.div_ceil(u64::from(EXTENT_BLOCKS));
    extents * u64::from(EXTENT_BLOCKS) + BROKEN * chunk_blocks(device)
}

/// Blocks that a log of so many bytes takes of a device of so many bytes.
pub(crate) fn log(log_bytes: u64, device: u64) -> u64 {
    log_bytes.div_ceil(BLOCK) + BROKEN * chunk_blocks(device)
}

/// Blocks that a read cache of so many bytes takes of a log device of so many bytes.
pub(crate) fn cache(cache_bytes: u64, device: u64) -> u64 {
    if cache_bytes == 0 { 0 } else { log(cache_bytes, device) }
}

/// Blocks that a replica of so many blocks, with such a log, takes of devices of so many bytes at most.
pub(crate) fn need(blocks: u64, log_bytes: u64, device: u64) -> Need {
    Need { data: data(blocks, device), log: log(log_bytes, device), cache: 0 }
}

/// The same of a replica without a read cache whose devices are not chosen yet.
pub(crate) fn need_anywhere(catalog: &Catalog, blocks: u64, log_bytes: u64) -> Need {
    need(blocks, log_bytes, largest_device(catalog))
}

/// What another replica of a volume needs, of so many blocks, whose devices are not chosen yet.
pub(crate) fn need_of(catalog: &Catalog, volume: &Volume, blocks: u64) -> Need {
    let largest = largest_device(catalog);
    Need { cache: cache(volume.cache_bytes, largest), ..need(blocks, volume.log_bytes, largest) }
}

fn largest_device(catalog: &Catalog) -> u64 {
    catalog.devices.values().map(|(device, _)| device.bytes).max().unwrap_or(0)
}

/// Bytes of the largest group of which a replica with such a log fits into so many free blocks of a device of so many bytes; 0
/// if none does.
pub(crate) fn largest(free: u64, log_bytes: u64, device: u64) -> u64 {
    let extent = u64::from(EXTENT_BLOCKS);
    free.saturating_sub(need(0, log_bytes, device).both()) / extent * extent * BLOCK
}

/// The same of a device that has no logs.
pub(crate) fn largest_data(free: u64, device: u64) -> u64 {
    let extent = u64::from(EXTENT_BLOCKS);
    free.saturating_sub(data(0, device)) / extent * extent * BLOCK
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_slots_and_logs_take_is_counted_and_nothing_is_promised_twice() {
        // 640 chunks of 2 MiB, with 7 extents each of 8.
        let device = 1280 * MIB;
        assert_eq!(chunk_bytes(device), 4 * MIB);
        assert_eq!(capacity(device), 320 * 15 * 64);
        let small = need(64 * MIB / BLOCK, 256 * MIB, device).both();
        assert_eq!(small, (256 + 64) * MIB / BLOCK + 2 * 15 * 64);
        let large = need(16 << 18, 256 * MIB, 1 << 40).both();
        assert_eq!(large, (16 << 18) + 256 * MIB / BLOCK + 2 * 127 * 64);
    }

    #[test]
    fn what_fills_a_device_takes_all_its_chunks() {
        for gib in [1u64, 7, 64, 1024, 100 << 10] {
            let device = (gib << 30) / chunk_bytes(gib << 30) * chunk_bytes(gib << 30);
            assert_eq!(in_chunks(capacity(device), device), device, "a device of {gib} GiB");
        }
        assert_eq!(in_chunks(0, 1 << 30), 0);
    }

    #[test]
    fn what_full_replicas_have_taken_is_no_more_than_what_is_shown_as_promised() {
        for device in [1u64, 7, 64, 1024].map(|gib| gib << 30) {
            let chunk = chunk_bytes(device);
            let chunks_of = |blocks: u64| {
                blocks
                    .div_ceil(u64::from(EXTENT_BLOCKS))
                    .div_ceil(chunk_blocks(device) / u64::from(EXTENT_BLOCKS))
            };
            for (size, log_bytes) in
                [(1, 32), (64, 64), (256, 64), (700, 100)].map(|(a, b)| (a * MIB, b * MIB))
            {
                let taken = (chunks_of(size / BLOCK) + log_bytes.div_ceil(chunk)) * chunk;
                let shown = space(device, need(size / BLOCK, log_bytes, device).both());
                assert!(taken <= shown.promised, "{size} and {log_bytes} on {device}: {taken} of {shown:?}");
                assert_eq!(shown.bytes % chunk, 0);
            }
        }
    }

    #[test]
    fn a_log_of_32_mib_takes_32_mib_of_any_device() {
        for gib in [1u64, 7, 8, 12, 16, 17, 100, 1024, 100 << 10] {
            let taken = (32 * MIB).next_multiple_of(chunk_bytes(gib << 30));
            assert_eq!(taken, 32 * MIB, "a device of {gib} GiB");
        }
    }

    #[test]
    fn the_largest_that_fits_fits_and_an_extent_more_does_not() {
        for (free, device) in [(100_000u64, 1280 * MIB), (1 << 22, 1 << 40), (300_000, 1 << 31)] {
            let bytes = largest(free, 256 * MIB, device);
            assert!(bytes > 0);
            assert!(need(bytes / BLOCK, 256 * MIB, device).both() <= free, "{free}");
            assert!(need(bytes / BLOCK + 64, 256 * MIB, device).both() > free, "{free}");
        }
        assert_eq!(largest(65_000, 256 * MIB, 1 << 40), 0);
    }
}
