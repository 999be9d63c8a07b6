//! The commands of a replica to the store that keeps it on a device, and the completions of the store.
//!
//! The store keeps the log, the extents and what was promised; it destages by itself, up to the last commit point that it
//! received. The replica decides what is appended, in which order, and what is reported to which owner.

use std::ops::Range;

use crate::ids::{Epoch, Position};
use crate::map::Map;
use crate::message::{Content, Corrupt, Entry, Job, Mention, Promise};

/// The request and the session that a completion answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag {
    /// The session.
    pub session: u64,
    /// The question.
    pub job: Job,
}

/// A command of a replica to its store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command<D> {
    /// Make this durable. → [`Completion::Promised`]
    Promise(Promise),
    /// Append to the log, durably, in the order of the numbers. → [`Completion::Appended`]
    Append {
        /// Appends are numbered from 1, for each life of the process.
        number: u64,
        /// Where it stands among all entries of the group.
        position: Position,
        /// Whether it is the next of its ownership; otherwise it is outside of the sequence.
        sequenced: bool,
        /// What it does.
        entry: Entry<D>,
        /// All entries up to this position are acknowledged and in this log, as in [`Command::CommitPoint`].
        commit_point: Position,
        /// Entries up to this position are acknowledged, and need not all be in this log, as in [`Command::CommitPoint`].
        acknowledged: Position,
        /// The replica's epoch, with which destage stamps extents.
        epoch: Epoch,
    },
    /// How far entries are acknowledged, and what the replica's epoch is: destage stamps what it writes with it. Commit point and
    /// epoch are kept together (rule R8), some time. No answer.
    CommitPoint {
        /// All entries up to this position are acknowledged, and are here.
        commit_point: Position,
        /// What is in the log up to this position is acknowledged, and not all of that need be here: a copy may come before
        /// the entries that it is as new as. Destage may go so far (rule R1).
        acknowledged: Position,
        /// The replica's epoch.
        epoch: Epoch,
    },
    /// What is in these blocks, the log counted in? → [`Completion::Data`]
    Read {
        /// Names the request: the completion carries the same value.
        tag: Tag,
        /// The first block, in the group.
        block: u64,
        /// The number of blocks.
        blocks: u32,
        /// It was asked before: if it is still under way, it does not begin anew, and has one completion.
        again: bool,
    },
    /// What do these blocks hold, the log counted in? Nothing is read for that. What the store is not sure of counts as data.
    /// → [`Completion::Mapped`]
    Map {
        /// Names the request: the completion carries the same value.
        tag: Tag,
        /// The first block, in the group.
        block: u64,
        /// The number of blocks, at least 1.
        blocks: u32,
    },
    /// What is in this entry of the log? → [`Completion::Data`]
    Fetch {
        /// Names the request: the completion carries the same value.
        tag: Tag,
        /// Its number in the log.
        number: u64,
        /// It was asked before.
        again: bool,
    },
    /// Which blocks are in an extent that is stamped with this epoch or a later one, or are mentioned in the log?
    /// → [`Completion::Changed`]
    Changed {
        /// Names the request: the completion carries the same value.
        tag: Tag,
        /// The epoch.
        since: Epoch,
        /// The first block of the group that the answer covers.
        from: u64,
    },
    /// What is in the log above the commit point? The completion carries the number back. → [`Completion::Above`]
    Above(u64),
    /// List, durably, the blocks that the log mentions above the commit point, adding to the list that is there; then drop these
    /// entries, durably. The log continues after this position. → [`Completion::Listed`]
    Return {
        /// Entries of this ownership come next, after this number.
        after: Position,
        /// Everything else is forgotten too, the list with it: nothing is left that would have to be copied or freed.
        empty: bool,
    },
    /// It was found damaged when it was opened, and is copied in full by the owner of this promise. In one change the store
    /// keeps the promise and forgets everything else: a start finds either the damage, or this promise and nothing more
    /// (rule DDiscard). Nothing that it cannot read is needed for that. → [`Completion::Listed`], of nothing
    Discard {
        /// The owner that the replica follows from now on.
        promise: Promise,
        /// Entries of this ownership come next, after this number.
        after: Position,
    },
    /// Of extents that were freed under a stamp below this epoch no tombstone is needed any more (rule R3). No answer.
    ForgetTombstones(Epoch),
    /// Drop the list. No completion.
    Joined,
    /// The store was found damaged when it was opened, and a person continues with what is left: records of the log that
    /// cannot be read are dropped. A damaged store accepts no other command before this or `Discard`. There is no completion;
    /// later commands are answered after it is done.
    Salvage,
}

/// What the store answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Completion<D> {
    /// This promise is durable, and those before it.
    Promised(Promise),
    /// All appends up to this number are durable.
    Appended(u64),
    /// Answer to `Read` and `Fetch`.
    Data {
        /// The tag of the command that this answers.
        tag: Tag,
        /// What is there.
        content: Result<Content<D>, Corrupt>,
    },
    /// Answer to `Map`.
    Mapped {
        /// The tag of the command that this answers.
        tag: Tag,
        /// What the blocks hold: at least the first of them, and as many as the store describes at once.
        map: Map,
    },
    /// Answer to `Changed`.
    Changed {
        /// The tag of the command that this answers.
        tag: Tag,
        /// Blocks, in rising order.
        ranges: Vec<Range<u64>>,
        /// The block at which the next request begins; `None` if these ranges are the last.
        next: Option<u64>,
    },
    /// Answer to the `Above` of this number, in the order of the log.
    Above(u64, Vec<Mention>),
    /// A block that no read has requested does not match its checksum: found by a scrub, or by destaging.
    Corrupt {
        /// The block, in its group.
        block: u64,
    },
    /// The device has room for what an owner has in flight, and for no more; or it has more again. Told before the appends
    /// are answered that made it so.
    Full(bool),
    /// Answer to `Return` and `Discard`: the whole list, in rising order, apart from each other.
    Listed(Vec<Range<u64>>),
    /// A write or a sync has failed. Nothing is tried again (rule R6).
    Failed,
}

/// The durable state of a replica, as the store read it when it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DurableState {
    /// The owner that the replica follows.
    pub promise: Promise,
    /// The commit point.
    pub commit_point: Position,
    /// The highest epoch that is kept: of the promise, or beside a commit point (rule R8).
    pub epoch: Epoch,
    /// The last entry of the unbroken sequence.
    pub end: Position,
    /// The store has lost something: the replica may not be used, unless a person continues with it, or an owner that
    /// copies it in full has emptied it.
    pub damaged: bool,
}
