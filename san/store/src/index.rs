//! Which blocks the log holds, and the newest record of each.

use std::collections::HashMap;
use std::ops::Range;

use rangemap::RangeMap;

/// Data is indexed by the block, which costs the same for any pattern; what has no data, by ranges, since a trim of a whole
/// volume is a few records.
#[derive(Debug, Default)]
pub(crate) struct Index {
    data: HashMap<u64, u64, foldhash::fast::RandomState>,
    others: RangeMap<u64, u64>,
}

impl Index {
    /// A record has these blocks now. It is newer than all that are here; records whose data it replaces are shown.
    pub(crate) fn insert(
        &mut self,
        blocks: Range<u64>,
        number: u64,
        has_data: bool,
        mut replaces: impl FnMut(u64, u64),
    ) {
        if has_data {
            for block in blocks {
                if let Some(old) = self.data.insert(block, number) {
                    replaces(old, block);
                }
            }
        } else if !blocks.is_empty() {
            self.others.insert(blocks, number);
        }
    }

    /// Whether there are records that have no data.
    pub(crate) fn has_others(&self) -> bool {
        !self.others.is_empty()
    }

    /// The newest record of a block.
    pub(crate) fn newest(&self, block: u64) -> Option<u64> {
        let data = self.data.get(&block).copied();
        if self.others.is_empty() {
            return data;
        }
        // None is less than any number.
        data.max(self.others.get(&block).copied())
    }

    /// The newest record of a block among those that have data.
    pub(crate) fn newest_data(&self, block: u64) -> Option<u64> {
        self.data.get(&block).copied()
    }

    /// Which of these blocks have records that have no data, and the newest of these records: ranges, rising.
    pub(crate) fn others(&self, blocks: &Range<u64>) -> impl Iterator<Item = (Range<u64>, u64)> {
        let within = |(range, number): (&Range<u64>, &u64)| {
            (range.start.max(blocks.start)..range.end.min(blocks.end), *number)
        };
        self.others.overlapping(blocks).map(within)
    }

    /// A record is not in the log any more.
    pub(crate) fn remove(&mut self, blocks: Range<u64>, number: u64, has_data: bool) {
        if has_data {
            for block in blocks {
                if let std::collections::hash_map::Entry::Occupied(entry) = self.data.entry(block)
                    && *entry.get() == number
                {
                    entry.remove();
                }
            }
        } else if !blocks.is_empty() {
            let own = |(range, of): (&Range<u64>, &u64)| {
                (*of == number).then(|| range.start.max(blocks.start)..range.end.min(blocks.end))
            };
            let gone: Vec<Range<u64>> = self.others.overlapping(&blocks).filter_map(own).collect();
            gone.into_iter().for_each(|range| self.others.remove(range));
        }
    }

    pub(crate) fn clear(&mut self) {
        self.data.clear();
        self.others.clear();
    }
}
