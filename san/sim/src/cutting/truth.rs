//! What a store was asked to keep, and so what may be found of it.

use loadline_san_core::ids::{Epoch, Owner, Position};
use loadline_san_core::ids::{Incarnation, NodeId};
use loadline_san_core::message::{Entry, EntryOp, Promise};
use loadline_san_core::store::DurableState;
use loadline_san_store::io::{Address, Data as _};
use loadline_san_store::read;

use crate::store::{Block, Blocks, Real, SimDisk, ZERO};

/// Blocks of the group.
pub(super) const BLOCKS: u64 = 96;

/// Something that a store was asked to keep. It does them one after the other.
#[derive(Debug, Clone)]
pub(super) enum Change {
    Promise(Promise),
    Append {
        position: Position,
        sequenced: bool,
        entry: Entry<Blocks>,
    },
    /// `acknowledged`: the highest commit point that the store ever received.
    Return {
        after: Position,
        empty: bool,
        commit_point: Position,
        acknowledged: Option<Position>,
    },
    /// It was found damaged, and is emptied.
    Discard {
        promise: Promise,
        after: Position,
    },
    Joined,
}

/// All of it, from the first life on.
#[derive(Debug, Clone, Default)]
pub(super) struct Truth {
    pub(super) changes: Vec<Change>,
    /// So many of them are durable, as the store has reported.
    pub(super) reported: usize,
    /// The highest commit point that it was given in any life.
    pub(super) acknowledged: Option<Position>,
    /// Commit points that it was given, each with its epoch, as they rose.
    pub(super) commit_points: Vec<(Position, Epoch)>,
    /// The highest epoch.
    pub(super) epochs: u64,
    /// Entries of long ago are counted.
    pub(super) out_of_band: u64,
}

/// What there is after some changes.
#[derive(Debug, Clone)]
struct Content {
    promise: Promise,
    end: Position,
    entries: Vec<(Position, Entry<Blocks>)>,
    listed: Vec<bool>,
    /// What else blocks may have that are on the list, unless an entry from this one on has something for them. What a return
    /// drops may have been destaged in a life that knew more than was found: it was acknowledged then, and is brought again
    /// before the replica counts.
    instead: Vec<(usize, u64, Block)>,
}

/// A promise to no owner, which a new store has.
pub(super) fn no_promise() -> Promise {
    Promise { epoch: Epoch(0), owner: Owner { node: NodeId(0), incarnation: Incarnation(0) } }
}

impl Content {
    fn after<'a>(changes: impl Iterator<Item = &'a Change>) -> Content {
        let mut content = Content {
            promise: no_promise(),
            end: Position::START,
            entries: Vec::new(),
            listed: vec![false; BLOCKS as usize],
            instead: Vec::new(),
        };
        changes.for_each(|change| content.apply(change));
        content
    }

    fn apply(&mut self, change: &Change) {
        match change {
            Change::Promise(promise) => self.promise = *promise,
            Change::Append { position, sequenced, entry } => {
                if *sequenced {
                    self.end = *position;
                }
                self.entries.push((*position, entry.clone()));
            }
            Change::Discard { promise, after } => {
                self.promise = *promise;
                self.entries.clear();
                self.instead.clear();
                self.listed.fill(false);
                self.end = *after;
            }
            Change::Return { after, empty: true, .. } => {
                self.entries.clear();
                self.instead.clear();
                self.listed.fill(false);
                self.end = *after;
            }
            Change::Return { after, empty: false, commit_point, acknowledged } => {
                for (position, entry) in self.entries.iter().filter(|(position, _)| position > commit_point) {
                    for block in entry.range() {
                        self.listed[block as usize] = true;
                        if Some(*position) <= *acknowledged {
                            self.instead.push((self.entries.len(), block, value_in(entry, block)));
                        }
                    }
                }
                for (from, ..) in &mut self.instead {
                    *from =
                        self.entries[..*from].iter().filter(|(position, _)| position <= commit_point).count();
                }
                self.entries.retain(|(position, _)| position <= commit_point);
                self.end = *after;
            }
            Change::Joined => self.listed.fill(false),
        }
    }

    fn value(&self, block: u64) -> Block {
        let has = |(_, entry): &&(Position, Entry<Blocks>)| entry.range().contains(&block);
        match self.entries.iter().rev().find(has) {
            Some((_, entry)) => value_in(entry, block),
            None => ZERO,
        }
    }

    fn instead_of(&self, block: u64) -> impl Iterator<Item = Block> {
        let hides =
            move |from: usize| self.entries[from..].iter().any(|(_, entry)| entry.range().contains(&block));
        let of = self.instead.iter().filter(move |(_, of, _)| *of == block && self.listed[block as usize]);
        of.filter(move |(from, ..)| !hides(*from)).map(|(_, _, value)| *value)
    }

    /// It may have been destaged without its slot.
    fn may_be_corrupt(&self, block: u64) -> bool {
        self.instead_of(block).next().is_some()
    }

    fn allows(&self, block: u64, value: Block) -> bool {
        value == self.value(block) || self.instead_of(block).any(|instead| instead == value)
    }
}

/// What a block has with an entry that has something for it.
fn value_in(entry: &Entry<Blocks>, block: u64) -> Block {
    match &entry.op {
        EntryOp::Data(payload) => payload.data[payload.first as usize + (block - entry.block) as usize],
        _ => ZERO,
    }
}

/// What a block has, by the store's index and the disk. None: its checksum does not match.
pub(super) fn value(store: &Real, disk: &SimDisk, block: u64) -> Option<Block> {
    match store.look_up(block) {
        read::BlockSource::Nothing | read::BlockSource::Zeroes => Some(ZERO),
        read::BlockSource::Data { area, at, checksum } => {
            let id = store.identity();
            let value = disk.as_read(area, at);
            let of = Address { volume: id.volume, group: id.group, block };
            (Blocks::new(vec![value]).checksum(0, of) == checksum).then_some(value)
        }
    }
}

impl Truth {
    /// How many changes the opened store has. They must be at least those that were reported as durable, with none missing between.
    pub(super) fn matching(
        &self,
        found: &DurableState,
        store: &Real,
        disk: &SimDisk,
    ) -> Result<usize, String> {
        self.check_commit_point(found)?;
        let mut first = None;
        let mut content = Content::after(self.changes[..self.reported].iter());
        for kept in self.reported..=self.changes.len() {
            if kept > self.reported {
                content.apply(&self.changes[kept - 1]);
            }
            match content.differs(found, store, disk) {
                None => return Ok(kept),
                Some(why) => first = first.or(Some(why)),
            }
        }
        let (reported, all) = (self.reported, self.changes.len());
        Err(format!(
            "none of {reported} to {all} changes: with {reported}, {}",
            first.expect("it was compared")
        ))
    }

    /// The same, of a device of which a sector is corrupt: blocks may be corrupt, and none is wrong.
    pub(super) fn matching_but_corrupt(
        &self,
        found: &DurableState,
        store: &Real,
        disk: &SimDisk,
    ) -> Result<(), String> {
        self.check_commit_point(found)?;
        let content = Content::after(self.changes.iter());
        if found.promise != content.promise || found.end != content.end {
            return Err(format!("it follows {:?}, and ends at {}", found.promise, found.end));
        }
        for block in 0..BLOCKS {
            let (expected, is) = (content.value(block), value(store, disk, block));
            if is.is_some_and(|is| !content.allows(block, is)) {
                return Err(format!("block {block} is {is:?} instead of {expected:?}"));
            }
            if content.listed[block as usize] && !store.list().any(|range| range.contains(&block)) {
                return Err(format!("block {block} is not on its list"));
            }
        }
        Ok(())
    }

    /// Whether some of these blocks may be corrupt after all that was asked for.
    pub(super) fn may_be_corrupt(&self, mut blocks: std::ops::Range<u64>) -> bool {
        let content = Content::after(self.changes.iter());
        blocks.any(|block| content.may_be_corrupt(block))
    }

    /// What is read after all that was asked for, unless that is what it may be.
    pub(super) fn differs(&self, block: u64, is: Block) -> Option<Block> {
        let content = Content::after(self.changes.iter());
        (!content.allows(block, is)).then(|| content.value(block))
    }

    /// A commit point is one that it was given, or none, with the epoch that this had (rule R8).
    fn check_commit_point(&self, found: &DurableState) -> Result<(), String> {
        if found.commit_point == Position::START {
            return Ok(());
        }
        match self.commit_points.iter().find(|(commit_point, _)| *commit_point == found.commit_point) {
            None => Err(format!("it has commit point {}, which it was never given", found.commit_point)),
            Some((_, epoch)) if found.epoch < *epoch => Err(format!(
                "commit point {} came with epoch {}, and it has {}",
                found.commit_point, epoch.0, found.epoch.0
            )),
            Some(_) => Ok(()),
        }
    }
}

impl Content {
    fn differs(&self, found: &DurableState, store: &Real, disk: &SimDisk) -> Option<String> {
        if found.promise != self.promise {
            return Some(format!("it follows {:?} instead of {:?}", found.promise, self.promise));
        }
        if found.end != self.end {
            return Some(format!("it ends at {} instead of {}", found.end, self.end));
        }
        let above = self.entries.iter().filter(|(position, _)| *position > found.commit_point);
        let mut above: Vec<_> = above.map(|(position, entry)| (*position, entry.range())).collect();
        let reported = store.entries().filter(|mention| mention.position > found.commit_point);
        let mut reported: Vec<_> =
            reported.map(|mention| (mention.position, mention.entry.range())).collect();
        // What it has already it does not append again.
        for all in [&mut above, &mut reported] {
            all.sort_by_key(|(position, range)| (*position, range.start));
            all.dedup();
        }
        if above != reported {
            return Some(format!("above {} it has {reported:?} instead of {above:?}", found.commit_point));
        }
        for block in 0..BLOCKS {
            let (expected, is) = (self.value(block), value(store, disk, block));
            if !is.map_or(self.may_be_corrupt(block), |is| self.allows(block, is)) {
                return Some(format!("block {block} is {is:?} instead of {expected:?}"));
            }
            let listed = store.list().any(|range| range.contains(&block));
            if self.listed[block as usize] && !listed {
                return Some(format!("block {block} is not on its list"));
            }
        }
        None
    }
}
