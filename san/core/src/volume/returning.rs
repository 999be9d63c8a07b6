//! Replicas that come back (rules C1 to C6 of `docs/explanation/san-rules.md`).
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
    /// How often in a row it answered, and did not do what it was told.
    stalls: u32,
}

/// A replica on its way back.
#[derive(Debug)]
pub(super) struct Returning {
    group: GroupIndex,
    /// What was changed since then has to be copied.
    departed: Departed,
    stage: ReturnStage,
    to_copy: RangeSet,
    /// What no member has whole, and when that was last seen. A client may write it anew.
    unreadable: Option<(RangeSet, Moment)>,
    /// What has data, and the replica has no room for now: what is to be trimmed goes first. And since when nothing else is
    /// left.
    put_off: RangeSet,
    waits: Option<Moment>,
    /// It is copied all the same: it is little.
    squeezes: bool,
    /// What the source has not been asked for yet begins here; nowhere, if it has told everything.
    scan: Option<u64>,
    /// The question that is under way.
    scanning: Option<Scan>,
    copying: u32,
    /// The last entry in whose place something was not copied.
    spared: Sequence,
    /// The epoch of the order to return: it promises to follow that before it answers.
    promised: Epoch,
}

/// A question to a member: what has changed?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Scan {
    /// Its number. None is used again, or a late answer to a former attempt would be taken for this one's (rule C10).
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

    /// What it must have before it is a member, beside what is acknowledged.
    pub(super) fn spared(&self) -> Sequence {
        self.spared
    }

    /// What it has durably promised at the least, once it has returned.
    pub(super) fn promised(&self) -> Epoch {
        self.promised
    }

    /// Whether it is to list and drop what it has.
    pub(super) fn is_ordered(&self) -> bool {
        matches!(self.stage, ReturnStage::Ordered(_))
    }

    /// Whether what has data waits until it says that it has room. Not when acknowledgements wait for it.
    pub(super) fn puts_off(&self) -> bool {
        !self.squeezes && !self.is_joining()
    }

    /// These have data, and the replica has no room for it.
    pub(super) fn put_off(&mut self, blocks: Range<u64>) {
        self.put_off.insert(blocks);
    }

    pub(super) fn is_joining(&self) -> bool {
        self.stage == ReturnStage::Joining
    }

    /// Blocks that are still to be copied, as far as is known.
    pub(super) fn left(&self) -> u64 {
        self.to_copy.count()
            + self.put_off.count()
            + self.unreadable.as_ref().map_or(0, |(blocks, _)| blocks.count())
    }

    /// An entry was issued, and the replica will get it: its blocks need not be copied. But until it has it, it holds
    /// something older there (rule C5).
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
