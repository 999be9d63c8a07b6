//! The metadata of a replica, besides its log and its extents: one page, and side pages for lists that are too long for it.
//!
//! ```text
//! page: fields 204 B │ truncations │ holes │ zeroes
//! side pages: the list of a returning replica │ tombstones │ zeroes, to whole sectors
//! ```
//!
//! The page lies on the device twice. Each change writes both, one after the other, so one of them is always whole, and
//! of two that are whole the one with the higher version counts. The side pages have no beginning of their own:
//! the page has their length and their checksum.

use std::ops::Range;

use loadline_san_core::ids::{Epoch, Position, ReplicaId, VolumeId};
use loadline_san_core::layout::{GroupIndex, MOST_BLOCKS};
use loadline_san_core::message::Promise;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::device::{Begin, DeviceId, DiskFault, Kind, PAGE, padding, seal};
use crate::field::{FieldError, Wire, count, number, require};
use crate::log::SECTOR;
use crate::part::{PositionBytes, PromiseBytes, RangeBytes};

/// The version of pages that this program writes. There is no other yet.
pub const STATE_VERSION: u16 = 1;
/// What a page begins with.
pub const STATE_MAGIC: [u8; 8] = *b"LLrstate";
/// The most returns of which a page knows.
pub const MOST_TRUNCATIONS: usize = 64;
/// The most holes of a log of which a page knows.
pub const MOST_HOLES: usize = 16;
/// The most ranges in the list of the side pages.
pub const MOST_LISTED: u32 = 16_384;
/// The most tombstones in the side pages.
pub const MOST_TOMBSTONES: u32 = 16_384;

const STATE: Kind =
    Kind { what: "the page of a replica", magic: STATE_MAGIC, version: STATE_VERSION, bytes: PAGE };
const SIDE: &str = "the side pages of a replica";

/// The durable state of a replica, apart from its log and its extents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaState {
    /// How often it was written, from 1.
    pub version: u64,
    /// The volume.
    pub volume: VolumeId,
    /// The group.
    pub group: GroupIndex,
    /// The replica.
    pub replica: ReplicaId,
    /// Blocks of the group, at least 1.
    pub blocks: u64,
    /// Chosen at random when the replica was made; seeds the checksums of its log's headers.
    pub key: u64,
    /// The device that its extents are on.
    pub capacity: DeviceId,
    /// The owner that it follows.
    pub promise: Promise,
    /// Up to here the group's entries are acknowledged. The log may know more.
    pub commit_point: Position,
    /// The epoch that the commit point came with (rule R8).
    pub epoch: Epoch,
    /// The log's generation (rule R5).
    pub generation: u64,
    /// The number of the first record of this generation, from 1.
    pub first: u64,
    /// Where the log begins.
    pub tail: Tail,
    /// Records up to this number were durable when this was written.
    pub durable: u64,
    /// The last of the sequence before the record of number [`ReplicaState::end_before`], if no record states it.
    pub end: Position,
    /// The number of the first record that [`ReplicaState::end`] does not count in.
    pub end_before: u64,
    /// What returns have dropped, oldest first; at most [`MOST_TRUNCATIONS`].
    pub truncations: Vec<Truncation>,
    /// What of the log cannot be read and is given up: rising, none overlaps another; at most [`MOST_HOLES`].
    pub holes: Vec<Hole>,
    /// How often everything was forgotten: slots of an earlier content do not count.
    pub content: u64,
    /// The side pages.
    pub side: Side,
}

/// Where a log begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tail {
    /// Bytes from the beginning of the ring, a multiple of 512.
    pub at: u64,
    /// The number of the record there, from 1.
    pub number: u64,
}

/// Records below a number whose position is above another do not count any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Truncation {
    /// The number, from 1.
    pub below: u64,
    /// The position.
    pub above: Position,
}

/// Records that cannot be read and are given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hole {
    /// The number of the first of them, from 1.
    pub from: u64,
    /// The number of the record after the last, above `from`.
    pub to: u64,
    /// Where that record begins: bytes from the beginning of the ring, a multiple of 512.
    pub at: u64,
}

/// The side pages: the lists that are too long for the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Side {
    /// How often it was written.
    pub version: u64,
    /// Ranges in the list of a returning replica, at most [`MOST_LISTED`].
    pub ranges: u32,
    /// Tombstones, at most [`MOST_TOMBSTONES`].
    pub tombstones: u32,
    /// [`side_crc`] of it; 0 if there is nothing.
    pub crc: u32,
}

/// Extents that were freed: a replica that had departed before may have them still (rule R3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tombstone {
    /// Which of the group's extents, from 0.
    pub extents: Range<u64>,
    /// The replica's epoch when they were freed.
    pub stamp: Epoch,
}

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct TailBytes {
    at: U64,
    number: U64,
}

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DropBytes {
    below: U64,
    above: PositionBytes,
}

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct HoleBytes {
    from: U64,
    to: U64,
    at: U64,
}

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct SideBytes {
    version: U64,
    ranges: U32,
    tombstones: U32,
    crc: U32,
}

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct TombstoneBytes {
    start: U64,
    end: U64,
    stamp: U64,
}

/// What a page begins with: 204 bytes. The truncations follow, then the holes.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct StateBytes {
    begin: Begin,
    truncations: u8,
    holes: u8,
    version: U64,
    volume: U64,
    replica: U64,
    group: U32,
    blocks: U64,
    key: U64,
    capacity: U64,
    promise: PromiseBytes,
    commit_point: PositionBytes,
    epoch: U64,
    generation: U64,
    first: U64,
    tail: TailBytes,
    durable: U64,
    end: PositionBytes,
    end_before: U64,
    content: U64,
    side: SideBytes,
}

const FIXED: usize = size_of::<StateBytes>();
const _: () = assert!(FIXED == 204);
const _: () =
    assert!(FIXED + MOST_TRUNCATIONS * size_of::<DropBytes>() + MOST_HOLES * size_of::<HoleBytes>() <= PAGE);

/// Bytes from the beginning of a ring.
fn place(what: &'static str, at: U64) -> Result<(), FieldError> {
    require(at.get().is_multiple_of(SECTOR as u64), what, at, "must be a multiple of 512")?;
    count(what, at)
}

impl Wire for DropBytes {
    fn check(&self) -> Result<(), FieldError> {
        number("the number below which records were dropped", self.below)?;
        self.above.check()
    }
}

impl Wire for HoleBytes {
    fn check(&self) -> Result<(), FieldError> {
        number("the first number of a hole", self.from)?;
        require(self.from < self.to, "the number behind a hole", self.to, "must be above its first")?;
        count("the number behind a hole", self.to)?;
        place("the place behind a hole", self.at)
    }
}

impl Wire for TombstoneBytes {
    fn check(&self) -> Result<(), FieldError> {
        require(self.start < self.end, "the end of a tombstone", self.end, "must be above its start")?;
        require(self.end <= MOST_BLOCKS, "the end of a tombstone", self.end, "must be at most 2^44")?;
        count("the stamp of a tombstone", self.stamp)
    }
}

impl Wire for SideBytes {
    fn check(&self) -> Result<(), FieldError> {
        count("the version of the side pages", self.version)?;
        let most = self.ranges <= MOST_LISTED;
        require(most, "the ranges in the side pages", self.ranges, "must be at most 16384")?;
        let most = self.tombstones <= MOST_TOMBSTONES;
        require(most, "the tombstones in the side pages", self.tombstones, "must be at most 16384")?;
        let holds = self.ranges != 0 || self.tombstones != 0 || self.crc == 0;
        require(holds, "the checksum of empty side pages", self.crc, "must be 0")
    }
}

impl Wire for StateBytes {
    fn check(&self) -> Result<(), FieldError> {
        self.begin.check(STATE_VERSION)?;
        let most = usize::from(self.truncations) <= MOST_TRUNCATIONS;
        require(most, "the number of truncations", self.truncations, "must be at most 64")?;
        let most = usize::from(self.holes) <= MOST_HOLES;
        require(most, "the number of holes", self.holes, "must be at most 16")?;
        number("how often a page was written", self.version)?;
        let holds = (1..=MOST_BLOCKS).contains(&self.blocks.get());
        require(holds, "the blocks of a group", self.blocks, "must be 1 to 2^44")?;
        self.promise.check()?;
        self.commit_point.check()?;
        count("the epoch of the commit point", self.epoch)?;
        count("the generation", self.generation)?;
        number("the first number of a generation", self.first)?;
        place("the place of the tail", self.tail.at)?;
        number("the number at the tail", self.tail.number)?;
        count("the number known to be durable", self.durable)?;
        self.end.check()?;
        count("the number that the end is before", self.end_before)?;
        count("the content", self.content)?;
        self.side.check()
    }
}

impl ReplicaState {
    /// As bytes, for either of the two places.
    pub fn encode(&self) -> Result<[u8; PAGE], FieldError> {
        let (truncations, holes) = (self.truncations.len(), self.holes.len());
        // What does not fit is too many anyway, and is refused as such.
        let short = |count: usize| u8::try_from(count).unwrap_or(u8::MAX);
        let fields = StateBytes {
            begin: Begin::new(STATE_MAGIC, STATE_VERSION),
            truncations: short(truncations),
            holes: short(holes),
            version: self.version.into(),
            volume: self.volume.0.into(),
            replica: self.replica.0.into(),
            group: self.group.0.into(),
            blocks: self.blocks.into(),
            key: self.key.into(),
            capacity: self.capacity.0.into(),
            promise: (&self.promise).into(),
            commit_point: self.commit_point.into(),
            epoch: self.epoch.0.into(),
            generation: self.generation.into(),
            first: self.first.into(),
            tail: TailBytes { at: self.tail.at.into(), number: self.tail.number.into() },
            durable: self.durable.into(),
            end: self.end.into(),
            end_before: self.end_before.into(),
            content: self.content.into(),
            side: (&self.side).into(),
        };
        fields.check()?;
        let mut out = [0; PAGE];
        let mut at = FIXED;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        for drop in &self.truncations {
            let drop = DropBytes { below: drop.below.into(), above: drop.above.into() };
            drop.check()?;
            put(drop.as_bytes());
        }
        let mut before = None;
        for hole in &self.holes {
            let hole = HoleBytes { from: hole.from.into(), to: hole.to.into(), at: hole.at.into() };
            follows_hole(&mut before, &hole)?;
            put(hole.as_bytes());
        }
        seal(fields.as_bytes(), &mut out);
        Ok(out)
    }

    /// Decodes the page at the beginning of these bytes.
    pub fn decode(bytes: &[u8]) -> Result<ReplicaState, DiskFault> {
        let (fields, rest) = STATE.open::<StateBytes>(bytes)?;
        fields.check()?;
        // Both are there: the page has room for the most of them.
        let short = STATE.short(bytes);
        let (truncations, rest) = table::<DropBytes>(rest, fields.truncations.into()).ok_or(short)?;
        let (holes, rest) = table::<HoleBytes>(rest, fields.holes.into()).ok_or(short)?;
        truncations.iter().try_for_each(Wire::check)?;
        let mut before = None;
        holes.iter().try_for_each(|hole| follows_hole(&mut before, hole))?;
        padding(rest)?;
        Ok(ReplicaState {
            version: fields.version.get(),
            volume: VolumeId(fields.volume.get()),
            group: GroupIndex(fields.group.get()),
            replica: ReplicaId(fields.replica.get()),
            blocks: fields.blocks.get(),
            key: fields.key.get(),
            capacity: DeviceId(fields.capacity.get()),
            promise: fields.promise.get(),
            commit_point: fields.commit_point.get(),
            epoch: Epoch(fields.epoch.get()),
            generation: fields.generation.get(),
            first: fields.first.get(),
            tail: Tail { at: fields.tail.at.get(), number: fields.tail.number.get() },
            durable: fields.durable.get(),
            end: fields.end.get(),
            end_before: fields.end_before.get(),
            truncations: truncations
                .iter()
                .map(|d| Truncation { below: d.below.get(), above: d.above.get() })
                .collect(),
            holes: (holes.iter())
                .map(|h| Hole { from: h.from.get(), to: h.to.get(), at: h.at.get() })
                .collect(),
            content: fields.content.get(),
            side: fields.side.get(),
        })
    }
}

impl From<&Side> for SideBytes {
    fn from(side: &Side) -> Self {
        Self {
            version: side.version.into(),
            ranges: side.ranges.into(),
            tombstones: side.tombstones.into(),
            crc: side.crc.into(),
        }
    }
}

impl SideBytes {
    fn get(&self) -> Side {
        Side {
            version: self.version.get(),
            ranges: self.ranges.get(),
            tombstones: self.tombstones.get(),
            crc: self.crc.get(),
        }
    }
}

/// The list of a returning replica and its tombstones as bytes, padded to whole sectors of 512. Nothing if both are
/// empty. The ranges are of blocks of the group; they rise and do not touch. The tombstones rise, and none overlaps
/// another.
pub fn encode_side(ranges: &[Range<u64>], tombstones: &[Tombstone]) -> Result<Vec<u8>, FieldError> {
    // What does not fit is too many anyway, and is refused as such.
    let short = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let side = Side { ranges: short(ranges.len()), tombstones: short(tombstones.len()), ..Side::default() };
    SideBytes::from(&side).check()?;
    let length = side_length(side.ranges, side.tombstones) as usize;
    let mut out = Vec::with_capacity(length);
    let mut before = None;
    for range in ranges {
        let range = RangeBytes::from(range);
        follows_range(&mut before, &range)?;
        out.extend_from_slice(range.as_bytes());
    }
    let mut before = None;
    for Tombstone { extents, stamp } in tombstones {
        let (start, end, stamp) = (extents.start.into(), extents.end.into(), stamp.0.into());
        let tombstone = TombstoneBytes { start, end, stamp };
        follows_tombstone(&mut before, &tombstone)?;
        out.extend_from_slice(tombstone.as_bytes());
    }
    out.resize(length, 0);
    Ok(out)
}

/// The checksum of the side pages: CRC32C of all of it; 0 if it is nothing.
pub fn side_crc(bytes: &[u8]) -> u32 {
    loadline_base::crc::crc32c(bytes)
}

/// How long so many ranges and tombstones are: bytes, a multiple of 512.
pub fn side_length(ranges: u32, tombstones: u32) -> u64 {
    let ranges = u64::from(ranges) * size_of::<RangeBytes>() as u64;
    let tombstones = u64::from(tombstones) * size_of::<TombstoneBytes>() as u64;
    (ranges + tombstones).next_multiple_of(SECTOR as u64)
}

/// The ranges and tombstones at the beginning of these bytes, as many as the page states.
pub fn decode_side(bytes: &[u8], side: &Side) -> Result<(Vec<Range<u64>>, Vec<Tombstone>), DiskFault> {
    SideBytes::from(side).check()?;
    let needed = side_length(side.ranges, side.tombstones) as usize;
    let short = DiskFault::Short { what: SIDE, needed, got: bytes.len() };
    let whole = bytes.get(..needed).ok_or(short)?;
    let (stated, is) = (side.crc, side_crc(whole));
    if stated != is {
        return Err(DiskFault::Torn { what: SIDE, stated, is });
    }
    let (ranges, rest) = table::<RangeBytes>(whole, side.ranges).ok_or(short)?;
    let (tombstones, rest) = table::<TombstoneBytes>(rest, side.tombstones).ok_or(short)?;
    let mut before = None;
    ranges.iter().try_for_each(|range| follows_range(&mut before, range))?;
    let mut before = None;
    tombstones.iter().try_for_each(|tombstone| follows_tombstone(&mut before, tombstone))?;
    padding(rest)?;
    let tombstones = tombstones
        .iter()
        .map(|one| Tombstone { extents: one.start.get()..one.end.get(), stamp: Epoch(one.stamp.get()) });
    Ok((ranges.iter().map(RangeBytes::get).collect(), tombstones.collect()))
}

fn table<T: Wire>(bytes: &[u8], count: u32) -> Option<(&[T], &[u8])> {
    <[T]>::ref_from_prefix_with_elems(bytes, count as usize).ok()
}

/// A hole, and that it follows the one before it.
fn follows_hole(before: &mut Option<U64>, hole: &HoleBytes) -> Result<(), FieldError> {
    hole.check()?;
    let rises = before.replace(hole.to).is_none_or(|end| hole.from >= end);
    require(rises, "the first number of a hole", hole.from, "must not be in the hole before it")
}

/// A range, and that it follows the one before it.
fn follows_range(before: &mut Option<U64>, range: &RangeBytes) -> Result<(), FieldError> {
    range.check()?;
    let rises = before.replace(range.end).is_none_or(|end| range.start > end);
    require(
        rises,
        "the start of a range of blocks",
        range.start,
        "must be above the end of the one before it",
    )
}

/// A tombstone, and that it follows the one before it.
fn follows_tombstone(before: &mut Option<U64>, tombstone: &TombstoneBytes) -> Result<(), FieldError> {
    tombstone.check()?;
    let rises = before.replace(tombstone.end).is_none_or(|end| tombstone.start >= end);
    require(rises, "the start of a tombstone", tombstone.start, "must not be in the one before it")
}
