//! The header of a record in a replica's log.
//!
//! ```text
//! first sector: header 116 B │ checksums of the first blocks │ zeroes
//! further sectors, if there are more than 99 blocks: the other checksums │ zeroes
//! data: whole blocks
//! ```
//!
//! The checksum of the first sector has the same place in every version. So a program knows what a newer one wrote from
//! what is corrupt; and a length is believed only when it is known to be as written.

use std::ops::RangeInclusive;

use loadline_san_core::ids::{Epoch, Position, ReplicaId, VolumeId};
use loadline_san_core::layout::{BLOCK, GroupIndex};
use loadline_san_core::message::Entry;
use thiserror::Error;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::field::{FieldError, MOST_DATA_BLOCKS, Wire, count, number, require};
use crate::part::{EntryBytes, PositionBytes};

/// The version of log records that this program writes. There is no other yet.
pub const LOG_VERSION: u16 = 1;
/// What a log record begins with.
pub const MAGIC: [u8; 8] = *b"LLlogrec";
/// Bytes of a sector: the least that is written to a device. Headers are whole sectors.
pub const SECTOR: usize = 512;
/// The most bytes of a header with its checksums.
pub const MOST_HEADER: usize = header_length(MOST_DATA_BLOCKS as usize);

const FIXED: usize = size_of::<LogHeader>();
const _: () = assert!(FIXED == 116);
/// Where the checksum of the first sector begins to count: behind itself.
const COVERED: usize = 12;
const SEQUENCED: u16 = 1;
const OUT_OF_BAND: u16 = 2;
const COMMIT_POINT: u16 = 3;
const WRAP: u16 = 4;

/// Bytes of a header with so many checksums: whole sectors.
pub const fn header_length(checksums: usize) -> usize {
    (FIXED + checksums * size_of::<U32>()).next_multiple_of(SECTOR)
}

/// The checksum of a block: CRC32C of its address (volume 8 bytes, group 4, block in the group 8, little-endian), then
/// of its data, which is [`BLOCK`] bytes long. A block that is at the wrong place does not match. The owner takes it
/// once, and it goes with the data over the wire, into the log, and to where the data stays.
pub fn block_crc(volume: VolumeId, group: GroupIndex, block: u64, data: &[u8]) -> u32 {
    let mut address = [0; 20];
    address[..8].copy_from_slice(&volume.0.to_le_bytes());
    address[8..12].copy_from_slice(&group.0.to_le_bytes());
    address[12..].copy_from_slice(&block.to_le_bytes());
    loadline_base::crc::crc32c_append(loadline_base::crc::crc32c(&address), data)
}

/// The header, where it lies in a buffer: 116 bytes.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct LogHeader {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// CRC32C of the log's key (8 bytes, little-endian), then of the first sector from here on. The key is chosen at random
    /// when the replica is made, and a guest cannot read it. So data of a guest, such as an image of another log, is never
    /// taken for a record.
    pub crc: U32,
    /// [`LOG_VERSION`].
    pub version: U16,
    /// 1: an entry of the sequence. 2: an out-of-band entry. 3: only a commit point. 4: a commit point, and the log continues at the ring's
    /// beginning. In the last two position and entry are zeroes.
    pub kind: U16,
    /// Bytes of the record: header, checksums, data.
    pub length: U32,
    /// CRC32C of the header's further sectors; 0 if there are none.
    pub further_crc: U32,
    /// The replica.
    pub replica: U64,
    /// The log's generation.
    pub generation: U64,
    /// The record's number in the log, from 1.
    pub number: U64,
    /// Up to this number all was known to be synced when this was written.
    pub synced: U64,
    /// Up to here the group's entries are acknowledged.
    pub commit_point: PositionBytes,
    /// The epoch that the commit point came with (rule R8).
    pub epoch: U64,
    /// Where the entry stands among all of the group.
    pub position: PositionBytes,
    /// What it does.
    pub entry: EntryBytes,
    /// The group.
    pub group: U32,
}

/// The content of a record, in the types of core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRecord {
    /// The replica.
    pub replica: ReplicaId,
    /// The group.
    pub group: GroupIndex,
    /// The log's generation: raised durably before the first append of each life of the process (rule R5).
    pub generation: u64,
    /// Its number in the log, from 1.
    pub number: u64,
    /// Up to this number all was known to be synced when this was written.
    pub synced: u64,
    /// Up to here the group's entries are acknowledged.
    pub commit_point: Position,
    /// The epoch that the commit point came with (rule R8).
    pub epoch: Epoch,
    /// What it brings.
    pub what: Recorded,
}

/// The content of a record besides its commit point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recorded {
    /// An entry.
    Entry(Change),
    /// No entry: the record carries only the commit point.
    CommitPoint,
    /// Nothing: the next record is at the beginning of the ring.
    Wrap,
}

/// An entry in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Where it stands among all of the group.
    pub position: Position,
    /// Whether it is the next of its ownership; otherwise it is outside of the sequence.
    pub sequenced: bool,
    /// What it does, without its data.
    pub entry: Entry<()>,
}

/// A header with its checksums, where it lies in a buffer.
#[derive(Debug, Clone, Copy)]
pub struct LogView<'a> {
    /// The header.
    pub header: &'a LogHeader,
    /// The checksums of the data's blocks.
    pub checksums: &'a [U32],
}

/// Which records belong to the log that is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// The replica.
    pub replica: ReplicaId,
    /// The group.
    pub group: GroupIndex,
    /// The log's key.
    pub key: u64,
    /// From that of the record before to the one that was raised durably last: a log holds records of several lives.
    pub generations: RangeInclusive<u64>,
}

/// Why a place of a log has no record that can be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum LogFault {
    /// It ends too early.
    #[error("a log record's header ends after {got} bytes, and needs {needed}: read more")]
    TooShort {
        /// Bytes that the header needs, with its checksums.
        needed: usize,
        /// Bytes that are there.
        got: usize,
    },
    /// Nothing was ever written here.
    #[error("nothing was ever written here")]
    Blank,
    /// It is something else: the middle of a record of a former round, for one.
    #[error("this is not the beginning of a log record")]
    NotARecord,
    /// It was not written whole, or is corrupt.
    #[error(
        "a log record states checksum {stated:#010x}, and has {is:#010x}: it is torn, or the device has changed it"
    )]
    Torn {
        /// The value that is stored.
        stated: u32,
        /// What it has.
        is: u32,
    },
    /// This program is too old for it.
    #[error(
        "a log record of version {stated} was written by a newer Loadline, and this one knows {ours}: upgrade this node"
    )]
    Newer {
        /// The value that is stored.
        stated: u16,
        /// What this program knows.
        ours: u16,
    },
    /// It belongs to another log.
    #[error("a log record is of {stated}, and {ours} is expected: it was left here by another log")]
    OtherReplica {
        /// The value that is stored.
        stated: ReplicaId,
        /// What was expected.
        ours: ReplicaId,
    },
    /// The record is of a former generation of this log, or of one that never existed.
    #[error(
        "a log record is of generation {stated}, and {from} to {to} are expected: it was left here by a former life"
    )]
    OtherGeneration {
        /// The value that is stored.
        stated: u64,
        /// The lowest generation that was expected.
        from: u64,
        /// The highest generation that was expected.
        to: u64,
    },
    /// A value that cannot be.
    #[error("in a log record, {0}: report it, with the record")]
    Field(#[from] FieldError),
}

impl Wire for LogHeader {
    fn check(&self) -> Result<(), FieldError> {
        require(self.version == LOG_VERSION, "the version", self.version, "must be 1")?;
        number("the number", self.number)?;
        let synced = self.synced < self.number;
        require(synced, "the number known to be synced", self.synced, "must be below the record's own")?;
        count("the generation", self.generation)?;
        self.commit_point.check()?;
        count("the epoch of the commit point", self.epoch)?;
        require((SEQUENCED..=WRAP).contains(&self.kind.get()), "the kind", self.kind, "must be 1 to 4")?;
        if self.kind.get() >= COMMIT_POINT {
            let none = self.position.as_bytes().iter().chain(self.entry.as_bytes()).all(|byte| *byte == 0);
            require(
                none,
                "what the entry of a commit point does",
                self.entry.what,
                "must be 0, and all of it",
            )?;
        } else {
            self.position.check()?;
            self.entry.check()?;
        }
        if self.kind == SEQUENCED {
            number("the sequence number", self.position.sequence)?;
        }
        let right = self.header_length() as u64 + u64::from(self.entry.data_blocks()) * BLOCK;
        let holds = u64::from(self.length.get()) == right;
        require(holds, "the length", self.length, "must be that of the header, its checksums and its data")
    }
}

impl LogHeader {
    /// Bytes of the header with its checksums: whole sectors. The data follows.
    pub fn header_length(&self) -> usize {
        header_length(self.entry.data_blocks() as usize)
    }
}

impl LogView<'_> {
    /// As core has it.
    pub fn record(&self) -> LogRecord {
        let head = self.header;
        let what = match head.kind.get() {
            COMMIT_POINT => Recorded::CommitPoint,
            WRAP => Recorded::Wrap,
            kind => Recorded::Entry(Change {
                position: head.position.get(),
                sequenced: kind == SEQUENCED,
                entry: head.entry.get(|| ()),
            }),
        };
        LogRecord {
            replica: ReplicaId(head.replica.get()),
            group: GroupIndex(head.group.get()),
            generation: head.generation.get(),
            number: head.number.get(),
            synced: head.synced.get(),
            commit_point: head.commit_point.get(),
            epoch: Epoch(head.epoch.get()),
            what,
        }
    }
}

/// Writes a header and the checksums of its data over these bytes, of which there must be
/// [`header_length`] of the number of checksums. The data is to be written after it. What it refuses leaves the bytes as
/// they were.
pub fn encode(
    record: &LogRecord,
    key: u64,
    checksums: impl ExactSizeIterator<Item = u32>,
    out: &mut [u8],
) -> Result<(), FieldError> {
    let mut head = LogHeader {
        magic: MAGIC,
        version: LOG_VERSION.into(),
        replica: record.replica.0.into(),
        group: record.group.0.into(),
        generation: record.generation.into(),
        number: record.number.into(),
        synced: record.synced.into(),
        commit_point: record.commit_point.into(),
        epoch: record.epoch.0.into(),
        ..LogHeader::new_zeroed()
    };
    let kind = match &record.what {
        Recorded::CommitPoint => COMMIT_POINT,
        Recorded::Wrap => WRAP,
        Recorded::Entry(Change { position, sequenced, entry }) => {
            head.position = (*position).into();
            head.entry = entry.into();
            head.entry.check()?;
            if *sequenced { SEQUENCED } else { OUT_OF_BAND }
        }
    };
    head.kind = kind.into();
    let (given, blocks) = (checksums.len(), head.entry.data_blocks());
    require(given == blocks as usize, "the number of checksums", given as u64, "must be that of the blocks")?;
    let length = head.header_length();
    require(out.len() == length, "the bytes of a header", out.len() as u64, "must be what it needs")?;
    head.length = (length as u32 + blocks * BLOCK as u32).into();
    head.check()?;
    out[FIXED..].fill(0);
    for (place, crc) in out[FIXED..].chunks_exact_mut(size_of::<U32>()).zip(checksums) {
        place.copy_from_slice(&crc.to_le_bytes());
    }
    let (first, further) = out.split_at_mut(SECTOR);
    head.further_crc = loadline_base::crc::crc32c(further).into();
    first[..FIXED].copy_from_slice(head.as_bytes());
    head.crc = header_crc(key, first).into();
    first[..FIXED].copy_from_slice(head.as_bytes());
    Ok(())
}

fn header_crc(key: u64, first: &[u8]) -> u32 {
    loadline_base::crc::crc32c_append(loadline_base::crc::crc32c(&key.to_le_bytes()), &first[COVERED..])
}

/// The header at the beginning of these bytes. [`LogFault::TooShort`] says how many it needs, at most [`MOST_HEADER`].
pub fn decode<'a>(bytes: &'a [u8], expected: &Expected) -> Result<LogView<'a>, LogFault> {
    let got = bytes.len();
    let first = bytes.get(..SECTOR).ok_or(LogFault::TooShort { needed: SECTOR, got })?;
    let (header, _) =
        LogHeader::ref_from_prefix(first).map_err(|_| LogFault::TooShort { needed: SECTOR, got })?;
    if header.magic != MAGIC {
        let blank = first.iter().all(|byte| *byte == 0);
        return Err(if blank { LogFault::Blank } else { LogFault::NotARecord });
    }
    same(header.crc, header_crc(expected.key, first))?;
    if header.version.get() > LOG_VERSION {
        return Err(LogFault::Newer { stated: header.version.get(), ours: LOG_VERSION });
    }
    let (stated, ours) = (ReplicaId(header.replica.get()), expected.replica);
    if stated != ours {
        return Err(LogFault::OtherReplica { stated, ours });
    }
    let (stated, of) = (header.generation.get(), &expected.generations);
    if !of.contains(&stated) {
        return Err(LogFault::OtherGeneration { stated, from: *of.start(), to: *of.end() });
    }
    require(header.group == expected.group.0, "the group", header.group, "must be that of the replica")?;
    header.check()?;
    let needed = header.header_length();
    let whole = bytes.get(..needed).ok_or(LogFault::TooShort { needed, got })?;
    same(header.further_crc, loadline_base::crc::crc32c(&whole[SECTOR..]))?;
    let short = LogFault::TooShort { needed, got };
    let count = header.entry.data_blocks() as usize;
    let (checksums, padding) =
        <[U32]>::ref_from_prefix_with_elems(&whole[FIXED..], count).map_err(|_| short)?;
    let filled = padding.iter().position(|byte| *byte != 0);
    require(
        filled.is_none(),
        "the place of a byte behind the checksums",
        filled.unwrap_or(0) as u64,
        "must be 0",
    )?;
    Ok(LogView { header, checksums })
}

fn same(stated: U32, is: u32) -> Result<(), LogFault> {
    let stated = stated.get();
    if stated == is { Ok(()) } else { Err(LogFault::Torn { stated, is }) }
}
