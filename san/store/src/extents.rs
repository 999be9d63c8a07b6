//! Extents: consecutive blocks that are allocated and freed together, with what is kept of each.
//!
//! ```text
//! extent of the group ─ map ─▶ place ─▶ slot: stamp, states, checksums ─▶ blocks on the device
//! ```
//!
//! A place is taken when the log gets the first record with data for it: so what the log has can always be destaged.

use loadline_san_core::ids::Epoch;
use loadline_san_core::layout::BLOCK;
use loadline_san_protocol::device::Superblock;
use loadline_san_protocol::slot::{BlockState, Slot};

/// No extent, and no place.
const NONE: u32 = u32::MAX;
/// Extents in a page of the map.
const PAGE: usize = 4096;

/// A place for an extent: a number that counts the slots of all chunks of the replica.
pub(crate) type Place = u32;

/// What is at a place.
#[derive(Debug, Clone)]
pub(crate) struct Extent {
    pub(crate) slot: Slot,
    /// Records in the log, with data for it, that are not destaged.
    pub(crate) pending: u32,
    /// The device has a slot for it that counts.
    pub(crate) stored: bool,
    /// Its slot cannot be read: nothing is put there.
    corrupt: bool,
}

/// The extents of one replica: which place on the device each has, and which places are free.
#[derive(Debug)]
pub(crate) struct Extents {
    device: Superblock,
    per_chunk: u32,
    map: Vec<Option<Box<[Place; PAGE]>>>,
    chunks: Vec<Chunk>,
    /// The last is taken first.
    free: Vec<Place>,
    mapped: u64,
}

#[derive(Debug)]
struct Chunk {
    number: u32,
    extents: Box<[Extent]>,
}

impl Extents {
    pub(crate) fn new(device: Superblock) -> Extents {
        let per_chunk = device.extents_in_chunk();
        Extents { device, per_chunk, map: Vec::new(), chunks: Vec::new(), free: Vec::new(), mapped: 0 }
    }

    /// Blocks of an extent.
    pub(crate) fn blocks(&self) -> u64 {
        u64::from(self.device.extent_blocks)
    }

    /// Which extent a block is in, and where in it.
    pub(crate) fn locate(&self, block: u64) -> (u64, u32) {
        (block / self.blocks(), (block % self.blocks()) as u32)
    }

    /// Slots of a chunk.
    pub(crate) fn per_chunk(&self) -> u32 {
        self.per_chunk
    }

    /// Places that are free.
    pub(crate) fn free(&self) -> u64 {
        self.free.len() as u64
    }

    /// Extents that have a place.
    pub(crate) fn mapped(&self) -> u64 {
        self.mapped
    }

    /// A chunk that the replica has: all of its places are free.
    pub(crate) fn add_chunk(&mut self, number: u32) {
        let first = self.chunks.len() as u32 * self.per_chunk;
        let free = Extent { slot: Slot::new(u64::MAX), pending: 0, stored: false, corrupt: false };
        self.chunks.push(Chunk { number, extents: vec![free; self.per_chunk as usize].into() });
        // Extents that are written one after the other lie one after the other.
        self.free.extend((first..first + self.per_chunk).rev());
    }

    /// A chunk as it was found on the device; of each slot what is in it, or nothing if it cannot be read. Extents that are
    /// there already: two slots cannot have the same.
    pub(crate) fn load_chunk(
        &mut self,
        number: u32,
        slots: impl Iterator<Item = Result<Option<Slot>, ()>>,
    ) -> Vec<u64> {
        let mut doubles = Vec::new();
        let first = self.chunks.len() as u32 * self.per_chunk;
        self.add_chunk(number);
        self.free.truncate(self.free.len() - self.per_chunk as usize);
        for (place, slot) in (first..).zip(slots) {
            let corrupt = match slot {
                Ok(Some(slot)) if self.place(slot.extent).is_some() => {
                    doubles.push(slot.extent);
                    true
                }
                Ok(Some(slot)) => {
                    let extent = self.at_mut(place);
                    (extent.slot, extent.stored) = (slot, true);
                    self.set(slot.extent, place);
                    false
                }
                Ok(None) => {
                    self.free.push(place);
                    false
                }
                Err(()) => true,
            };
            self.at_mut(place).corrupt = corrupt;
        }
        doubles
    }

    /// Those with low places are taken first.
    pub(crate) fn sort_free(&mut self) {
        self.free.sort_unstable_by(|a, b| b.cmp(a));
    }

    /// All places, rising.
    pub(crate) fn places(&self) -> impl Iterator<Item = Place> {
        0..self.all_places()
    }

    /// How many places there are, free or not.
    pub(crate) fn all_places(&self) -> Place {
        self.chunks.len() as u32 * self.per_chunk
    }

    /// Whether the slot of a place could not be read.
    pub(crate) fn is_corrupt(&self, place: Place) -> bool {
        self.at(place).corrupt
    }

    /// Where an extent is.
    pub(crate) fn place(&self, extent: u64) -> Option<Place> {
        let page = self.map.get(usize::try_from(extent).ok()? / PAGE)?.as_ref()?;
        let place = page[extent as usize % PAGE];
        (place != NONE).then_some(place)
    }

    /// Extents from this one on, up to the one that is returned, have no place. The result may be this extent itself although it has
    /// no place: only whole pages of the table are checked.
    pub(crate) fn absent_from(&self, extent: u64) -> u64 {
        let page = usize::try_from(extent).ok().map(|extent| extent / PAGE);
        match page.and_then(|page| Some((page, self.map.get(page)?))) {
            None => u64::MAX,
            Some((page, None)) => (page as u64 + 1) * PAGE as u64,
            Some((_, Some(_))) => extent,
        }
    }

    fn set(&mut self, extent: u64, place: Place) {
        let (page, at) = (extent as usize / PAGE, extent as usize % PAGE);
        if self.map.len() <= page {
            self.map.resize(page + 1, None);
        }
        let entry = &mut self.map[page].get_or_insert_with(|| Box::new([NONE; PAGE]))[at];
        self.mapped = self.mapped + u64::from(place != NONE) - u64::from(*entry != NONE);
        *entry = place;
    }

    /// What is at a place.
    pub(crate) fn at(&self, place: Place) -> &Extent {
        &self.chunks[(place / self.per_chunk) as usize].extents[(place % self.per_chunk) as usize]
    }

    /// The same, to change it.
    pub(crate) fn at_mut(&mut self, place: Place) -> &mut Extent {
        &mut self.chunks[(place / self.per_chunk) as usize].extents[(place % self.per_chunk) as usize]
    }

    /// Whether two places are in one chunk, and nothing between them is to be left alone.
    pub(crate) fn are_together(&self, one: Place, other: Place) -> bool {
        one / self.per_chunk == other / self.per_chunk && (one..other).all(|place| !self.at(place).corrupt)
    }

    /// Where on the device the slot of a place is, in bytes.
    pub(crate) fn slot_at(&self, place: Place) -> u64 {
        let chunk = self.chunks[(place / self.per_chunk) as usize].number;
        self.device.slot_at(chunk, place % self.per_chunk)
    }

    /// Where on the device a block of an extent at a place is, in bytes.
    pub(crate) fn block_at(&self, place: Place, block: u32) -> u64 {
        let chunk = self.chunks[(place / self.per_chunk) as usize].number;
        self.device.extent_at(chunk, place % self.per_chunk) + u64::from(block) * BLOCK
    }

    /// How many of the extents of these blocks have no place yet.
    pub(crate) fn missing(&self, blocks: std::ops::Range<u64>) -> u64 {
        self.extents_of(blocks).filter(|extent| self.place(*extent).is_none()).count() as u64
    }

    /// The extents of these blocks.
    pub(crate) fn extents_of(&self, blocks: std::ops::Range<u64>) -> std::ops::Range<u64> {
        if blocks.is_empty() {
            0..0
        } else {
            blocks.start / self.blocks()..blocks.end.div_ceil(self.blocks())
        }
    }

    /// The log has a record with data for these blocks: each of their extents gets a place, if it has none. There
    /// must be as many.
    pub(crate) fn reserve(&mut self, blocks: std::ops::Range<u64>) {
        for extent in self.extents_of(blocks) {
            let place = match self.place(extent) {
                Some(place) => place,
                None => {
                    let place = self.free.pop().expect("it was looked whether there is room");
                    self.at_mut(place).slot = Slot::new(extent);
                    self.set(extent, place);
                    place
                }
            };
            self.at_mut(place).pending += 1;
        }
    }

    /// Such a record is destaged, or does not count any more. An extent that is nowhere else loses its place.
    pub(crate) fn release(&mut self, extent: u64) {
        let place = self.place(extent).expect("what is pending has a place");
        self.at_mut(place).pending -= 1;
        self.free_if_empty(place);
    }

    /// An extent that the device has not, and the log neither, loses its place. Whether it does.
    pub(crate) fn free_if_empty(&mut self, place: Place) -> bool {
        let extent = self.at(place);
        let goes = extent.pending == 0 && !extent.stored && !extent.corrupt && extent.slot.extent != u64::MAX;
        if goes {
            let number = extent.slot.extent;
            self.at_mut(place).slot = Slot::new(u64::MAX);
            self.set(number, NONE);
            self.free.push(place);
        }
        goes
    }

    /// Places whose slots could not be read are free: what was there is given up. Which they are, at most so many: they are
    /// to be written again, or the next start would be none the wiser.
    pub(crate) fn give_up_corrupt(&mut self, most: u64) -> Vec<Place> {
        let corrupt = self.places().filter(|place| self.is_corrupt(*place));
        let corrupt: Vec<Place> = corrupt.take(usize::try_from(most).unwrap_or(usize::MAX)).collect();
        for place in &corrupt {
            self.at_mut(*place).corrupt = false;
            self.free.push(*place);
        }
        corrupt
    }

    /// All are forgotten: what the device has of them does not count any more.
    pub(crate) fn clear(&mut self) {
        self.map.clear();
        self.mapped = 0;
        self.free.clear();
        for place in 0..self.chunks.len() as u32 * self.per_chunk {
            let extent = self.at_mut(place);
            let corrupt = extent.corrupt;
            *extent = Extent { slot: Slot::new(u64::MAX), pending: 0, stored: false, corrupt };
            if !corrupt {
                self.free.push(place);
            }
        }
        self.sort_free();
    }

    /// What a block's slot holds: the place, the state, and the checksum, which counts if the state is data. None if the extent is
    /// not there.
    pub(crate) fn block(&self, block: u64) -> Option<(Place, BlockState, u32)> {
        let (extent, within) = self.locate(block);
        let place = self.place(extent)?;
        let slot = &self.at(place).slot;
        Some((place, slot.state(within), slot.checksums[within as usize]))
    }

    /// Extents from this one on, at most so many of the group scanned, that the device has, with their stamps. Also returns
    /// where to continue.
    pub(crate) fn stored_from(
        &self,
        from: u64,
        most: u64,
    ) -> (impl Iterator<Item = (u64, Epoch)>, Option<u64>) {
        let end = (self.map.len() * PAGE) as u64;
        let until = from.saturating_add(most).min(end);
        let stored = (from..until).filter_map(|extent| {
            let found = self.at(self.place(extent)?);
            found.stored.then_some((extent, found.slot.stamp))
        });
        (stored, (until < end).then_some(until))
    }
}
