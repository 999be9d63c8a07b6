//! Replicas that return (rules C1 to C6 of `docs/explanation/san-rules.md`).
//!
//! ```text
//!  Greeting ─▶ Ordered ───────▶ Copying ────────────────▶ Joining ─────▶ member
//!  session     it lists and     what has changed since    acknowledgements
//!              drops; entries   it left, and what it      wait for it; swap
//!              are kept for it  listed
//! ```

mod steps;

use std::ops::Range;

use crate::ids::{Epoch, ReplicaId, Sequence};
use crate::layout::GroupIndex;
use crate::lease::Moment;
use crate::range_set::RangeSet;
use crate::record::Departed;

/// When the next return of a replica may begin, after former ones have failed.
#[derive(Debug)]
pub(super) struct Retry {
    /// No return begins before this moment.
    not_before: Moment,
    /// How often in a row the replica answered, and did not carry out its requests.
    stalls: u32,
}

/// How far the return of a replica is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReturnProgress {
    /// The replica.
    pub replica: ReplicaId,
    /// Blocks that are still to be copied, as far as is known.
    pub left: u64,
    /// Blocks of copies that were begun in this return. A block that is copied again counts again.
    pub copied: u64,
    /// Everything is copied, and not only what was changed while the replica was away.
    pub is_full: bool,
}

/// A returning replica.
#[derive(Debug)]
pub(super) struct Returning {
    group: GroupIndex,
    /// What was changed since this epoch has to be copied.
    departed: Departed,
    stage: ReturnStage,
    to_copy: RangeSet,
    /// Blocks that no member has whole, and when that was last found. A client may write them again.
    unreadable: Option<(RangeSet, Moment)>,
    /// Blocks with data for which the replica has no room now: trims go first. And since when nothing else is left.
    put_off: RangeSet,
    waits: Option<Moment>,
    /// These blocks are copied nevertheless, because they are few.
    squeezes: bool,
    /// The block from which on the source has not listed its changes yet; `None` if it has listed all.
    scan: Option<u64>,
    /// The request to the source that is under way.
    scanning: Option<Scan>,
    copying: u32,
    /// Blocks of the copies that were begun.
    copied: u64,
    /// The last entry because of which a block was not copied.
    spared: Sequence,
    /// The epoch of the order to return, which the replica promises to follow before it answers.
    promised: Epoch,
}

/// A request to a member: which blocks have changed?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Scan {
    /// The number of the request. No number is used again; otherwise a late answer to a former attempt would be taken for one to this (rule C10).
    number: u32,
    source: ReplicaId,
    asked: Moment,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReturnStage {
    Greeting,
    Ordered(Moment),
    Copying,
    Joining,
}

impl Returning {
    pub(super) fn group(&self) -> GroupIndex {
        self.group
    }

    /// The entry that the replica must have before it is a member, beside what is acknowledged.
    pub(super) fn spared(&self) -> Sequence {
        self.spared
    }

    /// The least epoch that the replica has durably promised, once it has returned.
    pub(super) fn promised(&self) -> Epoch {
        self.promised
    }

    /// Whether the replica is still to list and drop what it has.
    pub(super) fn is_ordered(&self) -> bool {
        matches!(self.stage, ReturnStage::Ordered(_))
    }

    /// Whether blocks with data wait until the replica reports that it has room. They do not when acknowledgements wait for the replica.
    pub(super) fn puts_off(&self) -> bool {
        !self.squeezes && !self.is_joining()
    }

    /// Puts off these blocks, which have data for which the replica has no room.
    pub(super) fn put_off(&mut self, blocks: Range<u64>) {
        self.put_off.insert(blocks);
    }

    pub(super) fn is_joining(&self) -> bool {
        self.stage == ReturnStage::Joining
    }

    /// How far the return is.
    pub(super) fn progress(&self, replica: ReplicaId) -> ReturnProgress {
        let unreadable = self.unreadable.as_ref().map_or(0, |(blocks, _)| blocks.count());
        let left = self.to_copy.count() + self.put_off.count() + unreadable;
        ReturnProgress { replica, left, copied: self.copied, is_full: self.departed.epoch == Epoch(0) }
    }

    /// An entry was issued, and the replica will get it: its blocks need not be copied. But until the replica has the
    /// entry, it holds something older there (rule C5).
    pub(super) fn written(&mut self, sequence: Sequence, blocks: &Range<u64>) {
        let overlaps = |set: &RangeSet| set.iter().any(|r| r.start < blocks.end && blocks.start < r.end);
        if overlaps(&self.to_copy) || overlaps(&self.put_off) || self.unreadable.is_some() {
            self.spared = sequence;
        }
        self.to_copy.remove(blocks);
        self.put_off.remove(blocks);
        if let Some((unreadable, _)) = &mut self.unreadable {
            unreadable.remove(blocks);
        }
    }
}
