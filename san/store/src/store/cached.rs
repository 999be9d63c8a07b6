//! Reads by way of the read cache: blocks that it has are read from there, and others are offered to it.

use crate::cache::{CacheCounts, Region};
use crate::io::{Area, Data, IoRequest, Part};
use crate::store::read::BlockSource;
use crate::store::{Action, Purpose, Store};

/// Blocks of a read that is offered to the cache at most: a capacity device reads more than that in one piece well enough.
const MOST_OFFERED: usize = 16;

impl<D: Data> Store<D> {
    /// The read cache is to be there, and nowhere if the region is empty. Where it was before is free when
    /// [`cache_given_back`](Self::cache_given_back) says so.
    pub fn change_cache(&mut self, region: Region) {
        self.cache.change(region);
    }

    /// The region that the cache had before it was changed, once, when nothing is written there any more.
    pub fn cache_given_back(&mut self) -> Option<Region> {
        self.cache.given_back()
    }

    /// What the cache has done since the replica was opened.
    pub fn cache_counts(&self) -> CacheCounts {
        self.cache.counts()
    }

    /// Blocks whose data is in extents are read from the cache, if it has them.
    /// Returns whether it has some: then `was_read` of the cache is to follow the read.
    pub(crate) fn look_in_cache(&mut self, block: u64, found: &mut [BlockSource]) -> bool {
        let mut any = false;
        for (block, found) in (block..).zip(found) {
            if let BlockSource::Data { area: area @ Area::Capacity, at, checksum } = found
                && let Some(cached) = self.cache.get(block, *checksum)
            {
                (*area, *at) = (Area::Log, cached);
                any = true;
            }
        }
        if any {
            self.cache.reads();
        }
        any
    }

    /// Blocks that were read from extents, and are still what the extents have, are written to the cache, if it takes them.
    pub(crate) fn offer_to_cache(
        &mut self,
        block: u64,
        found: &[BlockSource],
        data: &D,
        out: &mut Vec<Action<D>>,
    ) {
        if found.len() > MOST_OFFERED || !data.is_here() {
            return;
        }
        for (index, (block, source)) in (0..).zip((block..).zip(found)) {
            let BlockSource::Data { area: Area::Capacity, checksum, .. } = *source else { continue };
            // A round of destaging may have brought another version since the read began.
            if self.find(block) != *source {
                continue;
            }
            let Some((place, at)) = self.cache.take(block, checksum) else { continue };
            let mut writing = self.memory.writing(Area::Log, at, false);
            writing.parts.push(Part::Data { data: data.clone(), first: index, blocks: 1 });
            self.request_io(Purpose::Cache(place), IoRequest::Write(writing), out);
        }
    }
}
