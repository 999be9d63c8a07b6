//! What an extent has: one sector of 512 bytes, which is written with it.
//!
//! A slot does not state the place of its extent: that follows from the place of the slot. One that is of another
//! replica, or of a time before its replica forgot everything, does not count; so chunks are given away without
//! being erased.

use std::ops::Range;

use loadline_san_core::ids::{Epoch, ReplicaId};
use loadline_san_core::layout::MOST_BLOCKS;
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::device::{Begin, DiskFault, Kind, MOST_EXTENT_BLOCKS, padding, seal};
use crate::field::{FieldError, Wire, count, require};
use crate::log::SECTOR;

/// The version of slots that this program writes. There is no other yet.
pub const SLOT_VERSION: u16 = 1;
/// What a slot begins with.
pub const SLOT_MAGIC: [u8; 8] = *b"LLextent";

const SLOT: Kind =
    Kind { what: "the slot of an extent", magic: SLOT_MAGIC, version: SLOT_VERSION, bytes: SECTOR };
const BLOCKS: usize = MOST_EXTENT_BLOCKS as usize;
const FREE: u16 = 0;
const USED: u16 = 1;
const NOTHING: u8 = 0;
const DATA: u8 = 1;
const ZEROES: u8 = 2;
/// The lower bit of each block's two.
const LOWER: u128 = u128::MAX / 3;

/// What an extent has. This is kept in memory as it is: 288 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// Which of the group's extents it is, from 0.
    pub extent: u64,
    /// The replica's epoch when it was destaged last (rule R2).
    pub stamp: Epoch,
    /// Two bits for each block, the lowest for block 0: 0 nothing, 1 data, 2 zeroes. 3 is refused.
    pub states: u128,
    /// Checksums of the blocks that have data; of the others 0.
    pub checksums: [u32; BLOCKS],
}

const _: () = assert!(size_of::<Slot>() == 288);

/// What a block of an extent has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockState {
    /// It was never written, or was trimmed.
    Nothing,
    /// What lies in the extent, with a checksum.
    Data,
    /// Zeroes, whatever lies in the extent.
    Zeroes,
}

/// The replica and the place that a slot belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// The replica.
    pub replica: ReplicaId,
    /// How often the replica had forgotten everything.
    pub content: u64,
    /// Where on the device it lies, in bytes: a slot that was written to another's place is none.
    pub at: u64,
}

impl Slot {
    /// Of an extent that has nothing.
    pub const fn new(extent: u64) -> Slot {
        Slot { extent, stamp: Epoch(0), states: 0, checksums: [0; BLOCKS] }
    }

    /// What a block has.
    ///
    /// # Panics
    /// If the block is not below 64.
    pub fn state(&self, block: u32) -> BlockState {
        assert!(block < MOST_EXTENT_BLOCKS, "an extent has at most 64 blocks, and no block {block}");
        match (self.states >> (2 * block)) as u8 & 3 {
            NOTHING => BlockState::Nothing,
            DATA => BlockState::Data,
            // There is no other: neither `decode` nor `set` makes one.
            _ => BlockState::Zeroes,
        }
    }

    /// What all of these blocks have, if they have the same.
    ///
    /// # Panics
    /// If there is no block, or one is not below 64.
    pub fn state_of_all(&self, blocks: Range<u32>) -> Option<BlockState> {
        assert!(
            blocks.start < blocks.end && blocks.end <= MOST_EXTENT_BLOCKS,
            "{blocks:?}: blocks of an extent"
        );
        let all = u128::MAX >> (128 - 2 * (blocks.end - blocks.start)) << (2 * blocks.start);
        let first = self.states >> (2 * blocks.start) & 3;
        (self.states & all == (LOWER * first) & all).then(|| self.state(blocks.start))
    }

    /// A block has this from now on. The checksum is that of data, and matters for nothing else.
    ///
    /// # Panics
    /// If the block is not below 64.
    pub fn set(&mut self, block: u32, state: BlockState, checksum: u32) {
        assert!(block < MOST_EXTENT_BLOCKS, "an extent has at most 64 blocks, and no block {block}");
        let (bits, checksum) = match state {
            BlockState::Nothing => (NOTHING, 0),
            BlockState::Data => (DATA, checksum),
            BlockState::Zeroes => (ZEROES, 0),
        };
        self.states = (self.states & !(3 << (2 * block))) | (u128::from(bits) << (2 * block));
        self.checksums[block as usize] = checksum;
    }

    /// Whether no block has data or zeroes.
    pub fn is_empty(&self) -> bool {
        self.states == 0
    }
}

/// A slot as bytes: 328 bytes.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct SlotBytes {
    begin: Begin,
    /// 0 free, 1 used.
    kind: U16,
    replica: U64,
    content: U64,
    at: U64,
    extent: U64,
    stamp: U64,
    states: U128,
    checksums: [U32; BLOCKS],
}

const _: () = assert!(size_of::<SlotBytes>() == 328);

impl Wire for SlotBytes {
    fn check(&self) -> Result<(), FieldError> {
        self.begin.check(SLOT_VERSION)?;
        require(self.kind.get() <= USED, "the kind of a slot", self.kind, "must be 0 or 1")?;
        if self.kind == FREE {
            require(self.extent == 0, "the extent of a free slot", self.extent, "must be 0")?;
            require(self.stamp == 0, "the stamp of a free slot", self.stamp, "must be 0")?;
            require(self.states == 0, "the states of a free slot", self.states.get() as u64, "must be 0")?;
        }
        let extent = self.extent.get();
        require(extent < MOST_BLOCKS, "the extent of a slot", extent, "must be below 2^44")?;
        count("the stamp of a slot", self.stamp)?;
        let states = self.states.get();
        let wrong = states & (states >> 1) & LOWER;
        let block = wrong.trailing_zeros() / 2;
        require(wrong == 0, "a block whose state is 3", block, "must have state 0, 1 or 2")?;
        for (block, checksum) in self.checksums.iter().enumerate() {
            let data = (states >> (2 * block)) as u8 & 3 == DATA;
            let holds = data || *checksum == 0;
            require(holds, "the checksum of a block without data", *checksum, "must be 0")?;
        }
        Ok(())
    }
}

/// Puts a slot into a sector. None: the extent is free. What this writes of a slot with states that cannot be, or with
/// blocks beyond the extent, is refused when it is read: [`Slot::set`] makes no such states.
pub fn encode(slot: Option<&Slot>, of: Holder, out: &mut [u8; SECTOR]) {
    let mut fields = SlotBytes {
        begin: Begin::new(SLOT_MAGIC, SLOT_VERSION),
        replica: of.replica.0.into(),
        content: of.content.into(),
        at: of.at.into(),
        ..SlotBytes::new_zeroed()
    };
    if let Some(slot) = slot {
        fields.kind = USED.into();
        fields.extent = slot.extent.into();
        fields.stamp = slot.stamp.0.into();
        fields.states = slot.states.into();
        fields.checksums = slot.checksums.map(U32::new);
    }
    out[size_of::<SlotBytes>()..].fill(0);
    seal(fields.as_bytes(), out);
}

/// The slot at the beginning of these bytes, on a device whose extents have so many blocks. None: it is free, or of
/// an earlier content, or nothing was ever written here.
pub fn decode(bytes: &[u8], of: Holder, extent_blocks: u32) -> Result<Option<Slot>, DiskFault> {
    let (fields, rest) = match SLOT.open::<SlotBytes>(bytes) {
        Err(DiskFault::Blank) => return Ok(None),
        found => found?,
    };
    let (replica, content) = (ReplicaId(fields.replica.get()), fields.content.get());
    require(replica == of.replica, "the replica of a slot", fields.replica, "must be that of its chunk")?;
    require(fields.at == of.at, "the place of a slot", fields.at, "must be where it lies")?;
    if content < of.content {
        return Ok(None);
    }
    require(content == of.content, "the content of a slot", content, "must be at most that of its replica")?;
    fields.check()?;
    padding(rest)?;
    let states = fields.states.get();
    let beyond = states.checked_shr(extent_blocks.saturating_mul(2)).unwrap_or(0);
    let rule = "must be 0: the extent ends before";
    require(beyond == 0, "the states of the blocks behind an extent", beyond as u64, rule)?;
    if fields.kind == FREE {
        return Ok(None);
    }
    let checksums = fields.checksums.map(U32::get);
    Ok(Some(Slot { extent: fields.extent.get(), stamp: Epoch(fields.stamp.get()), states, checksums }))
}
