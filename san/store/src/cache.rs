//! Which blocks the read cache has: copies of blocks whose data is on a slow capacity device, on the fast log device.
//!
//! Nothing of it outlives the process, and nothing depends on it. A block that it has is read from it instead of from its extent, and
//! is checked by the same checksum. It has a block of the extents only: what is in the log is read from there, and when a round of destaging
//! brings a new version to the extent, the cache has the block no more.
//!
//! A block is taken when it is read from the extents for the second time within about four times as many others as the cache has places for. So a scan,
//! which reads everything once, neither fills the cache nor writes to the log device. Within a set of places the one goes that was not used
//! for longest, roughly (CLOCK; Corbató, A paging experiment with the Multics system, 1968).

use loadline_san_core::layout::BLOCK;

/// Places that a block may have.
const WAYS: usize = 8;
/// Blocks that are remembered as read lately, for each place: of fewer, too many would take the place of each other.
const SEEN: usize = 4;
/// Blocks that are being written to the cache at most: those that come beside are not taken.
const MOST_WRITING: u32 = 16;

/// Where a cache is: chunks of the log device that nothing else uses as long as the cache is there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Region {
    /// Where each begins, in bytes.
    pub starts: Vec<u64>,
    /// Bytes of each: whole blocks.
    pub chunk_bytes: u64,
}

impl Region {
    fn blocks(&self) -> usize {
        self.starts.len() * (self.chunk_bytes / BLOCK) as usize
    }

    fn at(&self, place: u32) -> u64 {
        let each = self.chunk_bytes / BLOCK;
        self.starts[(u64::from(place) / each) as usize] + u64::from(place) % each * BLOCK
    }
}

/// What a cache has done since the replica was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// Blocks that it has places for.
    pub blocks: u64,
    /// Blocks that were read from it.
    pub hits: u64,
    /// Blocks that were read from the extents instead.
    pub misses: u64,
    /// Blocks that were written to it.
    pub taken: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Empty,
    Writing,
    /// It is being written, and is of no use any more.
    Outdated,
    Whole,
}

/// What a place has: its block; and the checksum, the state, and whether it was read since the hand passed it last. In plain numbers,
/// since a large cache begins with memory that is zero and that nothing has touched yet.
#[derive(Debug, Clone, Copy)]
struct Entry {
    block: u64,
    checksum: u32,
    state: State,
    used: bool,
}

const USED: u64 = 1 << 40;

impl Entry {
    fn unpack([block, rest]: [u64; 2]) -> Entry {
        let state = [State::Empty, State::Writing, State::Outdated, State::Whole][(rest >> 32) as usize & 3];
        Entry { block, checksum: rest as u32, state, used: rest & USED != 0 }
    }

    fn pack(self) -> [u64; 2] {
        let used = if self.used { USED } else { 0 };
        [self.block, u64::from(self.checksum) | (self.state as u64) << 32 | used]
    }
}

/// The cache of one replica. It has no place as long as its region is empty.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    region: Region,
    /// Of each place: `WAYS` after each other are a set.
    entries: Vec<[u64; 2]>,
    /// Blocks that were read lately, by a part of their hash. A later one takes the place of an earlier one.
    seen: Vec<u16>,
    /// The place within a set that the last search for a free one looked at.
    hand: usize,
    /// Writes to the region that are under way.
    writing: u32,
    /// Reads from it that are under way.
    reading: u32,
    counts: CacheCounts,
    /// The region that it is to have, when nothing is written to the present one or read from it any more.
    next: Option<Region>,
    /// The region that it had before, until a caller asks for it.
    given_back: Option<Region>,
}

impl Cache {
    /// Whether it has places.
    pub(crate) fn is_there(&self) -> bool {
        !self.entries.is_empty()
    }

    pub(crate) fn counts(&self) -> CacheCounts {
        CacheCounts { blocks: self.entries.len() as u64, ..self.counts }
    }

    /// It is to have this region, as soon as nothing is written to the one that it has or read from it. → [`given_back`](Self::given_back)
    pub(crate) fn change(&mut self, region: Region) {
        self.next = Some(region);
        self.change_if_quiet();
    }

    /// The region that it had, once, when nothing is written there any more, or read.
    pub(crate) fn given_back(&mut self) -> Option<Region> {
        self.given_back.take()
    }

    fn change_if_quiet(&mut self) {
        if self.writing > 0 || self.reading > 0 {
            return;
        }
        let Some(region) = self.next.take() else { return };
        let sets = region.blocks() / WAYS;
        self.entries = vec![[0; 2]; sets * WAYS];
        let seen = if sets > 0 { (sets * WAYS * SEEN).next_power_of_two() } else { 0 };
        self.seen = vec![0; seen];
        self.given_back = Some(std::mem::replace(&mut self.region, region));
    }

    /// Where the block is, if the cache has it with this checksum. Counts.
    pub(crate) fn get(&mut self, block: u64, checksum: u32) -> Option<u64> {
        let place = self.find(block).filter(|place| {
            let entry = self.entry(*place);
            self.next.is_none() && entry.state == State::Whole && entry.checksum == checksum
        });
        match place {
            Some(place) => {
                self.change_entry(place, |entry| entry.used = true);
                self.counts.hits += 1;
                Some(self.region.at(place as u32))
            }
            None => {
                self.counts.misses += 1;
                None
            }
        }
    }

    /// A block was read from its extent, with this checksum. The place to write it to and where that is, if it is taken: then
    /// [`wrote`](Self::wrote) is to follow.
    pub(crate) fn take(&mut self, block: u64, checksum: u32) -> Option<(u32, u64)> {
        if self.next.is_some() || self.find(block).is_some() || !self.was_seen(block) {
            return None;
        }
        if self.writing >= MOST_WRITING {
            return None;
        }
        let place = self.free(block)?;
        self.entries[place] = Entry { block, checksum, state: State::Writing, used: false }.pack();
        self.writing += 1;
        self.counts.taken += 1;
        Some((place as u32, self.region.at(place as u32)))
    }

    /// What was to be written to a place is there, or could not be written.
    pub(crate) fn wrote(&mut self, place: u32, well: bool) {
        self.writing -= 1;
        self.change_entry(place as usize, |entry| {
            entry.state = if well && entry.state == State::Writing { State::Whole } else { State::Empty };
        });
        self.change_if_quiet();
    }

    /// The block has other data now, or what the cache has of it is not what it should be.
    pub(crate) fn forget(&mut self, block: u64) {
        if let Some(place) = self.find(block) {
            self.change_entry(place, Entry::outdate);
        }
    }

    /// It has no block any more.
    pub(crate) fn clear(&mut self) {
        if self.writing == 0 {
            // Of a large one that is quicker: nothing is touched.
            self.entries = vec![[0; 2]; self.entries.len()];
            return;
        }
        (0..self.entries.len()).for_each(|place| self.change_entry(place, Entry::outdate));
    }

    /// A read of places that [`get`](Self::get) returned begins, and [`was_read`](Self::was_read) is to follow.
    pub(crate) fn reads(&mut self) {
        self.reading += 1;
    }

    /// Such a read has ended.
    pub(crate) fn was_read(&mut self) {
        self.reading -= 1;
        self.change_if_quiet();
    }

    fn entry(&self, place: usize) -> Entry {
        Entry::unpack(self.entries[place])
    }

    fn change_entry(&mut self, place: usize, change: impl FnOnce(&mut Entry)) {
        let mut entry = self.entry(place);
        change(&mut entry);
        self.entries[place] = entry.pack();
    }

    fn find(&self, block: u64) -> Option<usize> {
        let set = self.set_of(block)?;
        let has = |place: &usize| {
            let entry = self.entry(*place);
            entry.block == block && matches!(entry.state, State::Writing | State::Whole)
        };
        set.into_iter().find(has)
    }

    fn set_of(&self, block: u64) -> Option<std::ops::Range<usize>> {
        let sets = self.entries.len() / WAYS;
        // The upper half of the product is evenly spread over the sets.
        let set = (u128::from(hash(block)) * sets as u128) >> 64;
        (sets > 0).then(|| set as usize * WAYS..(set as usize + 1) * WAYS)
    }

    /// Whether a block was read lately. From now on it was.
    fn was_seen(&mut self, block: u64) -> bool {
        if self.seen.is_empty() {
            return false;
        }
        let hash = hash(block ^ 0x5eed);
        // Zero is none.
        let (at, part) = (hash as usize & (self.seen.len() - 1), (hash >> 48) as u16 | 1);
        std::mem::replace(&mut self.seen[at], part) == part
    }

    /// A place in the set of a block that may get another.
    fn free(&mut self, block: u64) -> Option<usize> {
        let set = self.set_of(block)?;
        if let Some(place) = set.clone().find(|place| self.entry(*place).state == State::Empty) {
            return Some(place);
        }
        // Twice around: the first time each one that was used is spared.
        for _ in 0..2 * WAYS {
            self.hand = (self.hand + 1) % WAYS;
            let place = set.start + self.hand;
            let entry = self.entry(place);
            if entry.state == State::Whole && !entry.used {
                return Some(place);
            }
            self.change_entry(place, |entry| entry.used = false);
        }
        None
    }
}

impl Entry {
    fn outdate(&mut self) {
        self.state = match self.state {
            State::Writing | State::Outdated => State::Outdated,
            State::Whole | State::Empty => State::Empty,
        };
    }
}

/// Spreads block numbers (the finalizer of splitmix64; Steele, Lea and Flood, 2014).
fn hash(block: u64) -> u64 {
    let mut mixed = block.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(blocks: u64) -> Cache {
        let mut cache = Cache::default();
        let half = blocks / 2 * BLOCK;
        cache.change(Region { starts: vec![1 << 20, 1 << 30], chunk_bytes: half });
        cache.given_back();
        cache
    }

    /// Reads a block through the cache. Whether it was a hit.
    fn read(cache: &mut Cache, block: u64) -> bool {
        let sum = block as u32 ^ 7;
        if cache.get(block, sum).is_some() {
            return true;
        }
        if let Some((place, _)) = cache.take(block, sum) {
            cache.wrote(place, true);
        }
        false
    }

    #[test]
    fn a_block_that_is_read_twice_is_taken_and_one_that_is_read_once_is_not() {
        let mut cache = cache(1024);
        assert!(!read(&mut cache, 5) && cache.counts().taken == 0);
        assert!(!read(&mut cache, 5) && cache.counts().taken == 1);
        assert!(read(&mut cache, 5));
        assert_eq!(cache.counts(), CacheCounts { blocks: 1024, hits: 1, misses: 2, taken: 1 });
    }

    #[test]
    fn a_scan_takes_nothing_and_what_was_there_stays() {
        let mut cache = cache(1024);
        for _ in 0..3 {
            (0..500).for_each(|block| _ = read(&mut cache, block));
        }
        let before = (0..500).filter(|block| read(&mut cache, *block)).count();
        assert!(before > 400, "{before} of 500 fit into 1024 places");
        let taken = cache.counts().taken;
        (10_000..200_000).for_each(|block| assert!(!read(&mut cache, block)));
        let stray = cache.counts().taken - taken;
        assert!(stray < 20, "a scan had {stray} blocks taken");
        let after = (0..500).filter(|block| read(&mut cache, *block)).count();
        assert!(after + 20 > before, "{after} of {before}");
    }

    #[test]
    fn what_is_read_often_stays_beside_what_is_read_now_and_then() {
        let mut cache = cache(256);
        let mut seed = 1u64;
        let (mut hot, mut hits) = (0, 0);
        for _ in 0..60_000 {
            seed = hash(seed);
            // Four of five reads are of 128 blocks, the others of 100,000.
            let is_hot = !seed.is_multiple_of(5);
            let block = if is_hot { (seed >> 8) % 128 } else { 1000 + (seed >> 8) % 100_000 };
            let hit = read(&mut cache, block);
            hot += u64::from(is_hot);
            hits += u64::from(hit && is_hot);
        }
        assert!(hits * 100 > hot * 95, "{hits} of {hot}");
    }

    #[test]
    fn a_block_that_changes_while_it_is_written_is_not_there() {
        let mut cache = cache(64);
        assert!(cache.take(3, 30).is_none());
        let (place, at) = cache.take(3, 30).unwrap();
        assert!(at >= 1 << 20 && at.is_multiple_of(4096));
        cache.forget(3);
        cache.wrote(place, true);
        assert_eq!(cache.get(3, 30), None);
        // Nor is another version of it.
        let (place, _) = cache.take(3, 31).unwrap();
        cache.wrote(place, true);
        assert_eq!(cache.get(3, 30), None);
        assert!(cache.get(3, 31).is_some());
        // Nor one that could not be written.
        cache.forget(3);
        let (place, _) = cache.take(3, 32).unwrap();
        cache.wrote(place, false);
        assert_eq!(cache.get(3, 32), None);
    }

    #[test]
    fn a_region_is_given_back_when_nothing_is_written_to_it_any_more() {
        let mut cache = cache(64);
        cache.take(3, 30);
        let (place, _) = cache.take(3, 30).unwrap();
        cache.change(Region::default());
        assert_eq!(cache.given_back(), None);
        assert!(cache.take(4, 1).is_none() && cache.take(4, 1).is_none(), "nothing new is written there");
        cache.wrote(place, true);
        let old = cache.given_back().unwrap();
        assert_eq!(old.starts, [1 << 20, 1 << 30]);
        assert!(!cache.is_there() && cache.get(3, 30).is_none());
    }

    #[test]
    fn a_region_that_is_read_is_given_back_afterwards() {
        let mut cache = cache(64);
        (0..2).for_each(|_| _ = read(&mut cache, 3));
        assert!(read(&mut cache, 3));
        cache.reads();
        cache.change(Region { starts: vec![1 << 40], chunk_bytes: 64 * BLOCK });
        assert!(cache.given_back().is_none() && !read(&mut cache, 3), "nothing is found there any more");
        cache.was_read();
        assert!(cache.given_back().is_some());
        (0..2).for_each(|_| _ = read(&mut cache, 3));
        assert!(read(&mut cache, 3), "it is used where it is now");
    }

    #[test]
    fn places_are_apart_and_within_the_region() {
        let region = Region { starts: vec![1 << 20, 1 << 30], chunk_bytes: 32 * BLOCK };
        let places: std::collections::BTreeSet<u64> =
            (0..region.blocks() as u32).map(|place| region.at(place)).collect();
        assert_eq!(places.len(), 64);
        let within = |at: &u64| region.starts.iter().any(|start| (*start..start + 32 * BLOCK).contains(at));
        assert!(places.iter().all(within));
    }
}
