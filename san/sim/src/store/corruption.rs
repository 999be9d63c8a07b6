//! Sectors of a store's devices are corrupted, on purpose.

use super::*;

impl Store {
    /// A block of an extent is corrupted: it cannot be read until it is overwritten. False if there is none.
    pub fn corrupt_at(&mut self, rng: &mut Rng) -> bool {
        let blocks: Vec<u64> = self.seen(false).destaged().collect();
        if blocks.is_empty() {
            return false;
        }
        self.corrupt_block(blocks[rng.index(blocks.len())]);
        true
    }

    /// A durable record of the log is corrupted, of which a later one knows. What it covers cannot be read, and a start finds the
    /// store damaged. False if there is none.
    pub fn corrupt_log(&mut self, rng: &mut Rng) -> bool {
        let store = self.seen(false);
        let covered = store.covered();
        let numbers: Vec<u64> =
            store.entries().map(|entry| entry.number).filter(|number| *number <= covered).collect();
        if numbers.is_empty() {
            return false;
        }
        let (at, bytes) = store.record_at(numbers[rng.index(numbers.len())]).expect("it is in the log");
        let sector = rng.below(bytes / SECTOR as u64) * SECTOR as u64;
        self.disk.corrupt_at(Area::Log, at + sector);
        self.was_corrupted = true;
        true
    }

    /// The slot of an extent is corrupted, or of a place that is free. A start finds the store damaged, unless a scrub has written the
    /// slot again before. False if there is none.
    pub fn corrupt_slot(&mut self, rng: &mut Rng) -> bool {
        let slots: Vec<u64> = self.seen(false).slots().collect();
        if slots.is_empty() {
            return false;
        }
        self.disk.corrupt_at(Area::Capacity, slots[rng.index(slots.len())]);
        self.was_corrupted = true;
        true
    }

    /// What a block has does not match its checksum any more.
    pub fn corrupt_block(&mut self, block: u64) {
        if let read::BlockSource::Data { area, at, .. } = self.seen(false).look_up(block) {
            self.disk.corrupt_at(area, at + (block % 8) * SECTOR as u64);
            self.was_corrupted = true;
        }
    }
}
