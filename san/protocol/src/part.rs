//! What several messages, and the log, are made of.

use std::ops::Range;

use loadline_san_core::history::{Claim, History, MOST_CLAIMS};
use loadline_san_core::ids::{Epoch, Incarnation, NodeId, Owner, Position, Sequence};
use loadline_san_core::layout::MOST_BLOCKS;
use loadline_san_core::map::Allocated;
use loadline_san_core::message::{Entry, EntryOp, Job, Mention, Payload, Progress, Promise};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::field::{FieldError, MOST_DATA_BLOCKS, Wire, count, number, require, span};

/// A [`Position`]: 16 bytes.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct PositionBytes {
    /// The epoch of the swap that made the owner the active one.
    pub ownership: U64,
    /// The number in that ownership.
    pub sequence: U64,
}

impl From<Position> for PositionBytes {
    fn from(position: Position) -> Self {
        Self { ownership: position.ownership.0.into(), sequence: position.sequence.0.into() }
    }
}

impl PositionBytes {
    /// As core has it.
    pub fn get(&self) -> Position {
        Position { ownership: Epoch(self.ownership.get()), sequence: Sequence(self.sequence.get()) }
    }
}

impl Wire for PositionBytes {
    fn check(&self) -> Result<(), FieldError> {
        count("an ownership", self.ownership)?;
        count("a sequence number", self.sequence)
    }
}

/// A [`Job`]: 12 bytes. Any value can be: the owner looks it up in its table.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct JobBytes {
    /// Its place in the owner's table.
    pub slot: U32,
    /// How often that place was used before.
    pub turn: U32,
    /// Which part of it.
    pub part: U32,
}

impl From<Job> for JobBytes {
    fn from(job: Job) -> Self {
        Self { slot: job.slot.into(), turn: job.turn.into(), part: job.part.into() }
    }
}

impl JobBytes {
    /// As core has it.
    pub fn get(&self) -> Job {
        Job { slot: self.slot.get(), turn: self.turn.get(), part: self.part.get() }
    }
}

/// A [`Claim`]: 28 bytes.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ClaimBytes {
    /// The epoch of the swap.
    pub epoch: U64,
    /// The life of the node's process that claimed first.
    pub first: U64,
    /// The life of the node's process that claimed last.
    pub incarnation: U64,
    /// The id of the node.
    pub node: U32,
}

impl From<&Claim> for ClaimBytes {
    fn from(claim: &Claim) -> Self {
        let (incarnation, node) = (claim.owner.incarnation.0.into(), claim.owner.node.0.into());
        Self { epoch: claim.epoch.0.into(), first: claim.first.0.into(), incarnation, node }
    }
}

impl ClaimBytes {
    /// As core has it.
    pub fn get(&self) -> Claim {
        let owner = Owner { node: NodeId(self.node.get()), incarnation: Incarnation(self.incarnation.get()) };
        Claim { epoch: Epoch(self.epoch.get()), first: Incarnation(self.first.get()), owner }
    }
}

impl Wire for ClaimBytes {
    fn check(&self) -> Result<(), FieldError> {
        count("the epoch of a claim", self.epoch)?;
        require(
            self.first.get() <= self.incarnation.get(),
            "the first life of a claim",
            self.first,
            "must not be above the last",
        )
    }
}

/// The history that these claims make. They rise, and there are at most [`MOST_CLAIMS`].
pub(crate) fn history(claims: &[ClaimBytes]) -> Result<History, FieldError> {
    require(claims.len() <= MOST_CLAIMS, "the number of claims", claims.len() as u64, "must be at most 64")?;
    claims.iter().try_for_each(Wire::check)?;
    let last = claims.last().map_or(0, |claim| claim.epoch.get());
    let rule = "must be above the one before it";
    History::of(claims.iter().map(ClaimBytes::get).collect()).ok_or(FieldError {
        what: "the epoch of a claim",
        value: last,
        rule,
    })
}

const OPEN: u32 = 1;
const DATA: u32 = 2;
const ZEROES: u32 = 3;
const TRIM: u32 = 4;

/// An [`Entry`] without its data: 16 bytes.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct EntryBytes {
    /// The first block, in the group. 0 in an opening entry.
    pub block: U64,
    /// How many. 0 in an opening entry; at most [`MOST_DATA_BLOCKS`] in one with data.
    pub blocks: U32,
    /// 1 opens an ownership, 2 has data, 3 is zeroes, 4 is trim.
    pub what: U32,
}

impl<D> From<&Entry<D>> for EntryBytes {
    fn from(entry: &Entry<D>) -> Self {
        let op = match entry.op {
            EntryOp::Open => OPEN,
            EntryOp::Data(_) => DATA,
            EntryOp::Zeroes => ZEROES,
            EntryOp::Trim => TRIM,
        };
        Self { block: entry.block.into(), blocks: entry.blocks.into(), what: op.into() }
    }
}

impl EntryBytes {
    /// As core has it; asks for the data if it has some.
    pub fn get<D>(&self, data: impl FnOnce() -> D) -> Entry<D> {
        let op = match self.what.get() {
            OPEN => EntryOp::Open,
            DATA => EntryOp::Data(Payload { data: data(), first: 0 }),
            ZEROES => EntryOp::Zeroes,
            // There is no other: it was checked when it was decoded.
            _ => EntryOp::Trim,
        };
        Entry { block: self.block.get(), blocks: self.blocks.get(), op }
    }

    /// How many blocks of data belong to it.
    pub fn data_blocks(&self) -> u32 {
        if self.what.get() == DATA { self.blocks.get() } else { 0 }
    }
}

impl Wire for EntryBytes {
    fn check(&self) -> Result<(), FieldError> {
        let (block, blocks, what) = (self.block.get(), self.blocks.get(), self.what.get());
        require((OPEN..=TRIM).contains(&what), "what an entry does", what, "must be 1 to 4")?;
        if what == OPEN {
            require(blocks == 0, "the blocks of an opening entry", blocks, "must be 0")?;
            return require(block == 0, "the first block of an opening entry", block, "must be 0");
        }
        require(blocks != 0, "the blocks of an entry", blocks, "must be at least 1")?;
        let fits = self.data_blocks() <= MOST_DATA_BLOCKS;
        require(fits, "the blocks of an entry with data", blocks, "must be at most 8192: split the request")?;
        span(block, block.checked_add(u64::from(blocks)))
    }
}

/// Consecutive blocks of a group, at least one: 16 bytes.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RangeBytes {
    /// The first.
    pub start: U64,
    /// The one after the last.
    pub end: U64,
}

impl From<&Range<u64>> for RangeBytes {
    fn from(range: &Range<u64>) -> Self {
        Self { start: range.start.into(), end: range.end.into() }
    }
}

impl RangeBytes {
    /// As core has it.
    pub fn get(&self) -> Range<u64> {
        self.start.get()..self.end.get()
    }
}

impl Wire for RangeBytes {
    fn check(&self) -> Result<(), FieldError> {
        span(self.start.get(), Some(self.end.get()))
    }
}

const HOLDS_DATA: u32 = 1;
const HOLDS_ZEROES: u32 = 2;

/// An [`Allocated`]: 20 bytes.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct AllocatedBytes {
    /// The blocks.
    pub blocks: RangeBytes,
    /// 1 is data, 2 is zeroes.
    pub holds: U32,
}

impl From<&Allocated> for AllocatedBytes {
    fn from(allocated: &Allocated) -> Self {
        let holds = if allocated.zeroes { HOLDS_ZEROES } else { HOLDS_DATA };
        Self { blocks: (&allocated.blocks).into(), holds: holds.into() }
    }
}

impl AllocatedBytes {
    /// As core has it.
    pub fn get(&self) -> Allocated {
        Allocated { blocks: self.blocks.get(), zeroes: self.holds == HOLDS_ZEROES }
    }
}

impl Wire for AllocatedBytes {
    fn check(&self) -> Result<(), FieldError> {
        let holds = (HOLDS_DATA..=HOLDS_ZEROES).contains(&self.holds.get());
        require(holds, "what allocated blocks hold", self.holds, "must be 1 or 2")?;
        self.blocks.check()
    }
}

/// A [`Mention`]: 40 bytes.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct MentionBytes {
    /// The entry's number in the log of that replica, from 1.
    pub number: U64,
    /// Where it stands among all entries of the group.
    pub position: PositionBytes,
    /// What it does.
    pub entry: EntryBytes,
}

impl From<&Mention> for MentionBytes {
    fn from(mention: &Mention) -> Self {
        Self {
            number: mention.number.into(),
            position: mention.position.into(),
            entry: (&mention.entry).into(),
        }
    }
}

impl MentionBytes {
    /// As core has it.
    pub fn get(&self) -> Mention {
        Mention { number: self.number.get(), position: self.position.get(), entry: self.entry.get(|| ()) }
    }
}

impl Wire for MentionBytes {
    fn check(&self) -> Result<(), FieldError> {
        number("the number of an entry in a log", self.number)?;
        self.position.check()?;
        self.entry.check()
    }
}

const RETURNED: u32 = 1;
const GAP: u32 = 2;
const FULL: u32 = 4;

/// A [`Progress`]: 44 bytes.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ProgressBytes {
    /// The ownership that the log is in.
    pub ownership: U64,
    /// It has everything up to this entry.
    pub received: U64,
    /// Durably up to this one.
    pub durable: U64,
    /// It has received all out-of-band entries up to this number.
    pub out_of_band_received: U64,
    /// All out-of-band entries up to this number are durable.
    pub out_of_band_durable: U64,
    /// 1: it has returned in this session. 2: something is missing. 4: its device is full.
    pub flags: U32,
}

impl From<&Progress> for ProgressBytes {
    fn from(progress: &Progress) -> Self {
        let returned = if progress.returned { RETURNED } else { 0 };
        let gap = if progress.gap { GAP } else { 0 };
        let full = if progress.full { FULL } else { 0 };
        Self {
            ownership: progress.ownership.0.into(),
            received: progress.received.0.into(),
            durable: progress.durable.0.into(),
            out_of_band_received: progress.out_of_band_received.into(),
            out_of_band_durable: progress.out_of_band_durable.into(),
            flags: (returned | gap | full).into(),
        }
    }
}

impl ProgressBytes {
    /// As core has it.
    pub fn get(&self) -> Progress {
        Progress {
            ownership: Epoch(self.ownership.get()),
            received: Sequence(self.received.get()),
            durable: Sequence(self.durable.get()),
            out_of_band_received: self.out_of_band_received.get(),
            out_of_band_durable: self.out_of_band_durable.get(),
            returned: self.flags.get() & RETURNED != 0,
            gap: self.flags.get() & GAP != 0,
            full: self.flags.get() & FULL != 0,
        }
    }
}

impl Wire for ProgressBytes {
    fn check(&self) -> Result<(), FieldError> {
        count("an ownership", self.ownership)?;
        for sequence in [self.received, self.durable] {
            count("a sequence number", sequence)?;
        }
        for out_of_band in [self.out_of_band_received, self.out_of_band_durable] {
            count("a number of out-of-band entries", out_of_band)?;
        }
        require(
            self.flags.get() <= RETURNED | GAP | FULL,
            "the flags of a progress",
            self.flags,
            "must be at most 7",
        )
    }
}

/// A [`Promise`]: 20 bytes.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct PromiseBytes {
    /// Everything lower is refused.
    pub epoch: U64,
    /// The life of the owner's process.
    pub incarnation: U64,
    /// The owner's node.
    pub node: U32,
}

impl From<&Promise> for PromiseBytes {
    fn from(promise: &Promise) -> Self {
        Self {
            epoch: promise.epoch.0.into(),
            incarnation: promise.owner.incarnation.0.into(),
            node: promise.owner.node.0.into(),
        }
    }
}

impl PromiseBytes {
    /// As core has it.
    pub fn get(&self) -> Promise {
        let owner = Owner { node: NodeId(self.node.get()), incarnation: Incarnation(self.incarnation.get()) };
        Promise { epoch: Epoch(self.epoch.get()), owner }
    }
}

impl Wire for PromiseBytes {
    fn check(&self) -> Result<(), FieldError> {
        count("the epoch of a promise", self.epoch)
    }
}

/// A block to ask on from, or [`NOWHERE`].
pub(crate) fn place(what: &'static str, block: u64) -> Result<(), FieldError> {
    require(block <= MOST_BLOCKS, what, block, "must be at most 2^44")
}

/// In the place of a block: there is none.
pub const NOWHERE: u64 = u64::MAX;
