//! What blocks hold, from the index of the log and the slots of extents: nothing is read.
//!
//! ```text
//! extent ─▶ its slot, if it has a place ─▶ trims and zeroes in the log ─▶ data in the log, if newer ─▶ what is doubtful: data
//! ```
//!
//! What a map reports of a block is what a read would find, the log counted in (rule R10). Blocks that are to be copied here, and those
//! that did not match their checksums, count as data: then they are not taken for zeroes.

use std::ops::Range;

use loadline_san_core::map::{Held, Map};
use loadline_san_core::rule::{Rule, left_out};
use loadline_san_protocol::slot::BlockState;

use crate::io::Data;
use crate::log::Kind;
use crate::store::Store;

/// What one map scans at the most: extents that have all been destaged, single blocks of others, and records. As many
/// extents as 4 GiB have, of 256 KiB each.
const MOST_SCANNED: u64 = 1 << 14;
/// Allocated ranges of one map.
const MOST_RANGES: usize = 1024;
/// Blocks of the largest extent.
const EXTENT: usize = 64;

impl<D: Data> Store<D> {
    /// What these blocks hold: at least the first of them, and as many as there is room and time for.
    ///
    /// # Panics
    /// If there is no block.
    pub(crate) fn map(&self, blocks: Range<u64>) -> Map {
        assert!(!blocks.is_empty(), "a map is of at least one block");
        let size = self.extents.blocks();
        let (mut map, mut scanned) = (Map::from(blocks.start), 0);
        while map.until < blocks.end && scanned < MOST_SCANNED {
            let extent = map.until / size;
            // Most of a large volume may never have been written.
            let absent = map.until..self.extents.absent_from(extent).saturating_mul(size).min(blocks.end);
            scanned += 1;
            if !absent.is_empty() && self.is_untouched(&absent) {
                map.describe(absent.end, Held::Nothing, MOST_RANGES);
                continue;
            }
            let end = blocks.end.min((extent + 1).saturating_mul(size));
            scanned += self.scan(map.until..end, &mut map);
            if map.until < end {
                break;
            }
        }
        map
    }

    /// Whether nothing in the log but data, and nothing doubtful, has to do with these blocks.
    fn is_untouched(&self, blocks: &Range<u64>) -> bool {
        let has_others = self.index.has_others() && self.index.others(blocks).next().is_some();
        !has_others && self.doubtful(blocks).next().is_none()
    }

    /// Which of these blocks are not known to be as they should be.
    fn doubtful(&self, blocks: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
        self.meta.list().within(blocks.clone()).chain(self.corrupt_blocks.within(blocks.clone()))
    }

    /// Describes blocks of one extent. Returns how much was scanned besides the extent itself.
    fn scan(&self, blocks: Range<u64>, map: &mut Map) -> u64 {
        let (extent, first) = self.extents.locate(blocks.start);
        let found = self.extents.place(extent).map(|place| self.extents.at(place));
        let length = (blocks.end - blocks.start) as usize;
        let all = match found {
            Some(found) => found.slot.state_of_all(first..first + length as u32),
            None => Some(BlockState::Nothing),
        };
        let is_pending = found.is_some_and(|found| found.pending > 0);
        if let Some(all) = all
            && (!is_pending && self.is_untouched(&blocks) || left_out(Rule::R10))
        {
            // Nearly always: extents are full or empty, and destaged.
            map.describe(blocks.end, held_by(all), MOST_RANGES);
            return 0;
        }
        let mut scanned = 0;
        let mut held = [Held::Nothing; EXTENT];
        let held = &mut held[..length];
        if let Some(found) = found.filter(|found| !found.slot.is_empty()) {
            for (held, within) in held.iter_mut().zip(first..) {
                *held = held_by(found.slot.state(within));
            }
        }
        let at =
            |range: &Range<u64>| (range.start - blocks.start) as usize..(range.end - blocks.start) as usize;
        if !left_out(Rule::R10) {
            // Of each block the number of the record that has its newest change; numbers begin with 1.
            let mut newest = [0; EXTENT];
            if self.index.has_others() {
                for (range, number) in self.index.others(&blocks) {
                    let is = match self.log.get(number).map(|record| record.kind) {
                        Some(Kind::Zeroes) => Held::Zeroes,
                        _ => Held::Nothing,
                    };
                    held[at(&range)].fill(is);
                    newest[at(&range)].fill(number);
                    // One that goes on over many extents counts once.
                    scanned += u64::from(range.start > blocks.start);
                }
            }
            // Whatever data the log has, its extent has a place, and knows that something is pending.
            if is_pending {
                scanned += length as u64;
                for ((held, newest), block) in held.iter_mut().zip(newest).zip(blocks.clone()) {
                    if self.index.newest_data(block).is_some_and(|number| number > newest) {
                        *held = Held::Data;
                    }
                }
            }
        }
        for range in self.doubtful(&blocks) {
            held[at(&range)].fill(Held::Data);
        }
        let mut until = blocks.start;
        for run in held.chunk_by(|one, next| one == next) {
            until += run.len() as u64;
            if !map.describe(until, run[0], MOST_RANGES) {
                break;
            }
        }
        scanned
    }
}

/// What a block holds, by its slot.
fn held_by(state: BlockState) -> Held {
    match state {
        BlockState::Nothing => Held::Nothing,
        BlockState::Zeroes => Held::Zeroes,
        BlockState::Data => Held::Data,
    }
}
