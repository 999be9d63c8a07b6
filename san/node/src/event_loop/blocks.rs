//! Whole blocks of what clients write, with their checksums.

use loadline_san_core::ids::VolumeId;
use loadline_san_core::layout::Layout;
use loadline_san_core::message::Content;
use loadline_san_core::volume::{Request, RequestOp, SECTORS};
use loadline_san_device::pool::{BLOCK_BYTES, Blocks, Pool};
use loadline_san_store::io::Address;

const SECTOR: usize = 512;

/// Where a block of a volume is: what its checksum is seeded with.
pub(super) fn address(volume: VolumeId, layout: &Layout, block: u64) -> Address {
    let (group, block) = layout.locate(block);
    Address { volume, group, block }
}

/// Whether a request is of whole blocks: nothing is to be read for it.
pub(super) fn is_whole(sector: u64, sectors: u32) -> bool {
    sector.is_multiple_of(SECTORS) && u64::from(sectors).is_multiple_of(SECTORS)
}

/// Whole blocks of what a client writes and what is around it: all blocks of a write; of zeroes its first if there is a
/// head, then its last if there is a tail.
///
/// # Panics
/// If the system has no memory.
pub(super) fn merge(
    pool: &Pool,
    volume: VolumeId,
    layout: &Layout,
    request: &Request<Blocks>,
    (head, tail): (Option<&Content<Blocks>>, Option<&Content<Blocks>>),
) -> Blocks {
    let (start, end) = (request.sector, request.sector + u64::from(request.sectors));
    let (first, last) = (start / SECTORS, (end - 1) / SECTORS);
    let numbers: Vec<u64> = match &request.op {
        RequestOp::Write(_) => (first..=last).collect(),
        _ => {
            [(head, first), (tail, last)].iter().filter(|(old, _)| old.is_some()).map(|(_, at)| *at).collect()
        }
    };
    let mut merged = pool.take(numbers.len() as u32).expect("there is memory for a few blocks");
    for (into, number) in merged.bytes_mut().chunks_mut(BLOCK_BYTES).zip(&numbers) {
        let old = match *number {
            at if at == first && head.is_some() => head,
            at if at == last => tail,
            _ => None,
        };
        match old {
            Some(Content::Data(old)) => into.copy_from_slice(old.data.block(old.first)),
            Some(Content::Sparse(old, holes)) if holes.is_empty() => {
                into.copy_from_slice(old.data.block(old.first));
            }
            _ => into.fill(0),
        }
        let (from, to) = (start.max(number * SECTORS), end.min((number + 1) * SECTORS));
        let place = (from - number * SECTORS) as usize * SECTOR..(to - number * SECTORS) as usize * SECTOR;
        match &request.op {
            RequestOp::Write(data) => {
                let from = (from - start) as usize * SECTOR;
                into[place.clone()].copy_from_slice(&data.bytes()[from..from + place.len()]);
            }
            _ => into[place].fill(0),
        }
    }
    merged.freeze(|index| address(volume, layout, numbers[index as usize]))
}
