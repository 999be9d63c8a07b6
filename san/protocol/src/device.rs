//! What a device begins with, and where everything on it is.
//!
//! ```text
//! superblock 4 KiB │ its copy │ chunk table: a sector for each chunk │ its copy │ chunks
//! chunk of extents: a slot of one sector for each extent │ extents
//! ```
//!
//! The table is padded to whole pages, and so are the slots of a chunk. Magic, checksum and version have the same
//! place in everything that lies on a device, and in every version. So a program knows what a newer one wrote from what
//! is corrupt.

use std::fmt;

use loadline_san_core::ids::ReplicaId;
use loadline_san_core::layout::BLOCK;
use thiserror::Error;
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::field::{FieldError, Wire, require};
use crate::header::ClusterId;
use crate::log::SECTOR;

/// Bytes of a page: a superblock has one, and so has the metadata of a replica.
pub const PAGE: usize = 4096;
/// The version of superblocks and chunk tables that this program writes. In version 1 a chunk's entry had no key.
pub const DEVICE_VERSION: u16 = 2;
/// The most blocks of an extent: a slot has room for the checksums of so many.
pub const MOST_EXTENT_BLOCKS: u32 = 64;
/// The most bytes of a device: far from overflowing an address.
pub const MOST_DEVICE_BYTES: u64 = 1 << 62;
/// The most bytes of a chunk.
pub const MOST_CHUNK_BYTES: u64 = 1 << 40;
/// What a superblock begins with.
pub const DEVICE_MAGIC: [u8; 8] = *b"LLdevice";
/// What a sector of the chunk table begins with.
pub const CHUNK_MAGIC: [u8; 8] = *b"LLchunks";

const PAGE_BYTES: u64 = PAGE as u64;
const SECTOR_BYTES: u64 = SECTOR as u64;
/// Where the checksum is, and where it begins to count: behind itself.
const CRC: usize = 8;
const COVERED: usize = 12;
const FREE: u16 = 0;
const LOG: u16 = 1;
const CAPACITY: u16 = 2;

/// A device. Chosen at random when it is made, and never used again for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u64);

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "d{:016x}", self.0)
    }
}

/// Why a place of a device has nothing that can be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum DiskFault {
    /// There are too few bytes.
    #[error("{what} ends after {got} bytes, and needs {needed}: read more")]
    Short {
        /// What was looked for.
        what: &'static str,
        /// Bytes that it needs.
        needed: usize,
        /// Bytes that are there.
        got: usize,
    },
    /// The device cannot read it.
    #[error("the device cannot read it")]
    Unreadable,
    /// Nothing was ever written here.
    #[error("nothing was ever written here")]
    Blank,
    /// It is something else.
    #[error("this is something else, and not what Loadline writes to this place: check what uses the device")]
    NotOurs,
    /// It was not written whole, or is corrupt.
    #[error(
        "{what} states checksum {stated:#010x}, and has {is:#010x}: it is torn, or the device has changed it"
    )]
    Torn {
        /// What was looked for.
        what: &'static str,
        /// The value that is stored.
        stated: u32,
        /// What it has.
        is: u32,
    },
    /// This program is too old for it.
    #[error(
        "{what} of version {stated} was written by a newer Loadline, and this one knows {ours}: upgrade this node"
    )]
    Newer {
        /// What was looked for.
        what: &'static str,
        /// The value that is stored.
        stated: u16,
        /// What this program knows.
        ours: u16,
    },
    /// This program cannot read it any more.
    #[error(
        "{what} of version {stated} was written by an older Loadline, and this one knows only version {ours}: use the older program, or \
         blank the device if its data is not needed"
    )]
    Older {
        /// What was looked for.
        what: &'static str,
        /// The value that is stored.
        stated: u16,
        /// What this program knows.
        ours: u16,
    },
    /// A sector of the chunk table that belongs to another place.
    #[error(
        "the chunk table speaks of chunk {stated_chunk} of device {stated}, and this is chunk {our_chunk} of {ours}: the device was copied, or has written to a wrong place"
    )]
    Other {
        /// The device in the entry.
        stated: DeviceId,
        /// The chunk in the entry.
        stated_chunk: u32,
        /// The device that was expected.
        ours: DeviceId,
        /// The chunk that was expected.
        our_chunk: u32,
    },
    /// A value that cannot be.
    #[error("on a device, {0}: report it, with what lies there")]
    Field(#[from] FieldError),
}

/// What everything on a device begins with, in every version: 14 bytes.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Begin {
    magic: [u8; 8],
    /// CRC32C of all from here on.
    crc: U32,
    version: U16,
}

impl Begin {
    /// Without the checksum, which [`seal`] adds.
    pub(crate) fn new(magic: [u8; 8], version: u16) -> Begin {
        Begin { magic, crc: 0.into(), version: version.into() }
    }

    pub(crate) fn check(&self, ours: u16) -> Result<(), FieldError> {
        require(self.version == ours, "the version", self.version, "must be the one that this program writes")
    }
}

/// A kind of structure on a device: its name, its first bytes, the version that this program knows, and its length in bytes.
pub(crate) struct Kind {
    pub(crate) what: &'static str,
    pub(crate) magic: [u8; 8],
    pub(crate) version: u16,
    pub(crate) bytes: usize,
}

impl Kind {
    /// What lies there, whole and of a version that is known, and the bytes behind its fields. Its values are not
    /// checked yet.
    pub(crate) fn open<'a, T>(&self, bytes: &'a [u8]) -> Result<(&'a T, &'a [u8]), DiskFault>
    where
        T: FromBytes + KnownLayout + Immutable + Unaligned,
    {
        let short = self.short(bytes);
        let whole = bytes.get(..self.bytes).ok_or(short)?;
        let (begin, _) = Begin::ref_from_prefix(whole).map_err(|_| short)?;
        if begin.magic != self.magic {
            let blank = whole.iter().all(|byte| *byte == 0);
            return Err(if blank { DiskFault::Blank } else { DiskFault::NotOurs });
        }
        let (stated, is) = (begin.crc.get(), loadline_base::crc::crc32c(&whole[COVERED..]));
        if stated != is {
            return Err(DiskFault::Torn { what: self.what, stated, is });
        }
        let stated = begin.version.get();
        if stated > self.version {
            return Err(DiskFault::Newer { what: self.what, stated, ours: self.version });
        }
        // No version has the number 0: that is no older one, but wrong.
        if (1..self.version).contains(&stated) {
            return Err(DiskFault::Older { what: self.what, stated, ours: self.version });
        }
        T::ref_from_prefix(whole).map_err(|_| short)
    }

    pub(crate) fn short(&self, bytes: &[u8]) -> DiskFault {
        DiskFault::Short { what: self.what, needed: self.bytes, got: bytes.len() }
    }
}

/// Puts the fields at the beginning of a page or sector, and the checksum of all of it into its place.
pub(crate) fn seal(fields: &[u8], out: &mut [u8]) {
    out[..fields.len()].copy_from_slice(fields);
    let crc = loadline_base::crc::crc32c(&out[COVERED..]);
    out[CRC..COVERED].copy_from_slice(&crc.to_le_bytes());
}

/// Nothing may lie behind the fields.
pub(crate) fn padding(bytes: &[u8]) -> Result<(), FieldError> {
    let filled = bytes.iter().find(|byte| **byte != 0);
    require(filled.is_none(), "a byte behind the fields", filled.copied().unwrap_or(0), "must be 0")
}

const SUPERBLOCK: Kind =
    Kind { what: "a superblock", magic: DEVICE_MAGIC, version: DEVICE_VERSION, bytes: PAGE };
const CHUNK: Kind =
    Kind { what: "a sector of the chunk table", magic: CHUNK_MAGIC, version: DEVICE_VERSION, bytes: SECTOR };

/// What a device is, and how it is divided. It lies on the device twice: in its first page and in its second.
///
/// The fields can be set to anything. Methods that compute places hold only for a superblock that
/// [`Superblock::fit`] or [`Superblock::decode`] has made, or [`Superblock::encode`] has accepted. For others
/// they return wrong places, or panic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Superblock {
    /// The cluster that the device belongs to.
    pub cluster: ClusterId,
    /// The device.
    pub device: DeviceId,
    /// Bytes of the device when it was made, at most [`MOST_DEVICE_BYTES`].
    pub bytes: u64,
    /// Bytes of a chunk: whole pages, at most [`MOST_CHUNK_BYTES`], enough for one extent and its slot.
    pub chunk_bytes: u64,
    /// How many chunks there are, at least 1.
    pub chunks: u32,
    /// Blocks of an extent, 1 to [`MOST_EXTENT_BLOCKS`].
    pub extent_blocks: u32,
}

/// A superblock as bytes: 62 bytes.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct SuperblockBytes {
    begin: Begin,
    cluster: U128,
    device: U64,
    bytes: U64,
    chunk_bytes: U64,
    chunks: U32,
    extent_blocks: U32,
}

const _: () = assert!(size_of::<SuperblockBytes>() == 62);

impl Wire for SuperblockBytes {
    fn check(&self) -> Result<(), FieldError> {
        self.begin.check(DEVICE_VERSION)?;
        self.get().check()
    }
}

impl SuperblockBytes {
    fn get(&self) -> Superblock {
        Superblock {
            cluster: ClusterId(self.cluster.get()),
            device: DeviceId(self.device.get()),
            bytes: self.bytes.get(),
            chunk_bytes: self.chunk_bytes.get(),
            chunks: self.chunks.get(),
            extent_blocks: self.extent_blocks.get(),
        }
    }
}

impl Superblock {
    /// With as many chunks as fit on a device of so many bytes.
    pub fn fit(
        cluster: ClusterId,
        device: DeviceId,
        bytes: u64,
        chunk_bytes: u64,
        extent_blocks: u32,
    ) -> Result<Superblock, FieldError> {
        let mut made = Superblock { cluster, device, bytes, chunk_bytes, chunks: 1, extent_blocks };
        made.check()?;
        // More cannot be, since each chunk takes two sectors of the tables too. That these are padded to whole pages
        // takes less than another chunk, which has two pages at least.
        let most = (bytes - 2 * PAGE_BYTES) / (chunk_bytes + 2 * SECTOR_BYTES);
        made.chunks = u32::try_from(most).unwrap_or(u32::MAX);
        if made.end().is_none_or(|end| end > bytes) {
            made.chunks -= 1;
        }
        made.check()?;
        Ok(made)
    }

    /// Where the chunk table begins on the device, or its copy: bytes. One sector of 512 bytes for each chunk.
    ///
    /// # Panics
    /// If `copy` is neither 0 nor 1.
    pub fn table_at(&self, copy: u32) -> u64 {
        assert!(copy < 2, "there are two chunk tables, 0 and 1, and not {copy}");
        2 * PAGE_BYTES + u64::from(copy) * padded(self.chunks)
    }

    /// Where a chunk begins on the device: bytes, a multiple of [`PAGE`].
    ///
    /// # Panics
    /// If there is no such chunk.
    pub fn chunk_at(&self, chunk: u32) -> u64 {
        assert!(chunk < self.chunks, "there are {} chunks, and no chunk {chunk}", self.chunks);
        2 * PAGE_BYTES + 2 * padded(self.chunks) + u64::from(chunk) * self.chunk_bytes
    }

    /// How many extents a chunk of extents has.
    pub fn extents_in_chunk(&self) -> u32 {
        // As above: one fewer has room for the padding.
        let most = self.chunk_bytes / (SECTOR_BYTES + self.extent_bytes());
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        if self.used(most) > self.chunk_bytes { most - 1 } else { most }
    }

    /// Where the slot of an extent lies on the device: bytes, a multiple of 512.
    ///
    /// # Panics
    /// If there is no such chunk, or a chunk has no such slot.
    pub fn slot_at(&self, chunk: u32, slot: u32) -> u64 {
        self.slot_in_chunk(slot);
        self.chunk_at(chunk) + u64::from(slot) * SECTOR_BYTES
    }

    /// Where an extent lies on the device: bytes, a multiple of [`PAGE`].
    ///
    /// # Panics
    /// As [`Superblock::slot_at`].
    pub fn extent_at(&self, chunk: u32, slot: u32) -> u64 {
        let extents = self.slot_in_chunk(slot);
        self.chunk_at(chunk) + padded(extents) + u64::from(slot) * self.extent_bytes()
    }

    /// Bytes of an extent.
    pub fn extent_bytes(&self) -> u64 {
        u64::from(self.extent_blocks) * BLOCK
    }

    /// As bytes, for either of the two places.
    pub fn encode(&self) -> Result<[u8; PAGE], FieldError> {
        let fields = SuperblockBytes {
            begin: Begin::new(DEVICE_MAGIC, DEVICE_VERSION),
            cluster: self.cluster.0.into(),
            device: self.device.0.into(),
            bytes: self.bytes.into(),
            chunk_bytes: self.chunk_bytes.into(),
            chunks: self.chunks.into(),
            extent_blocks: self.extent_blocks.into(),
        };
        fields.check()?;
        let mut out = [0; PAGE];
        seal(fields.as_bytes(), &mut out);
        Ok(out)
    }

    /// The superblock in the first page of these bytes.
    pub fn decode(bytes: &[u8]) -> Result<Superblock, DiskFault> {
        let (fields, rest) = SUPERBLOCK.open::<SuperblockBytes>(bytes)?;
        fields.check()?;
        padding(rest)?;
        Ok(fields.get())
    }

    /// How many extents a chunk has, of which this is one.
    fn slot_in_chunk(&self, slot: u32) -> u32 {
        let extents = self.extents_in_chunk();
        assert!(slot < extents, "a chunk has {extents} slots, and no slot {slot}");
        extents
    }

    /// Bytes of so many slots and extents.
    fn used(&self, extents: u32) -> u64 {
        padded(extents) + u64::from(extents) * self.extent_bytes()
    }

    /// Where the last chunk ends, in bytes.
    fn end(&self) -> Option<u64> {
        let chunks = u64::from(self.chunks).checked_mul(self.chunk_bytes)?;
        (2 * PAGE_BYTES + 2 * padded(self.chunks)).checked_add(chunks)
    }

    fn check(&self) -> Result<(), FieldError> {
        let (blocks, chunk) = (self.extent_blocks, self.chunk_bytes);
        let holds = (1..=MOST_EXTENT_BLOCKS).contains(&blocks);
        require(holds, "the blocks of an extent", blocks, "must be 1 to 64")?;
        let holds = chunk.is_multiple_of(PAGE_BYTES) && chunk <= MOST_CHUNK_BYTES;
        require(holds, "the bytes of a chunk", chunk, "must be a multiple of 4096, at most 2^40")?;
        let rule = "must hold at least one extent and its slot: take larger chunks";
        require(self.used(1) <= chunk, "the bytes of a chunk", chunk, rule)?;
        let holds = self.bytes <= MOST_DEVICE_BYTES;
        require(holds, "the bytes of a device", self.bytes, "must be at most 2^62")?;
        let least = Superblock { chunks: 1, ..*self }.end().unwrap_or(u64::MAX);
        let rule = "must hold at least one chunk: take smaller chunks, or a larger device";
        require(least <= self.bytes, "the bytes of a device", self.bytes, rule)?;
        require(self.chunks != 0, "the number of chunks", self.chunks, "must be at least 1")?;
        let holds = self.end().is_some_and(|end| end <= self.bytes);
        require(holds, "the number of chunks", self.chunks, "must be no more than the device has room for")
    }
}

/// Bytes of so many sectors, padded to whole pages.
fn padded(sectors: u32) -> u64 {
    (u64::from(sectors) * SECTOR_BYTES).next_multiple_of(PAGE_BYTES)
}

/// What a chunk is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A part of the ring of a log.
    Log,
    /// Extents and their slots.
    Capacity,
}

/// The user of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkUse {
    /// The replica.
    pub replica: ReplicaId,
    /// The key of the replica: it distinguishes it from another one that had its id. A free chunk has 0.
    pub key: u64,
    /// The part of the replica for which the chunk is used.
    pub role: Role,
    /// Of a log: which of its chunks, from 0. Of extents: 0.
    pub index: u32,
    /// Of a log: how many chunks it has. Of extents: 0.
    pub of: u32,
}

/// A sector of the chunk table as bytes: 52 bytes.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ChunkBytes {
    begin: Begin,
    /// 0 free, 1 log, 2 extents.
    role: U16,
    device: U64,
    replica: U64,
    chunk: U32,
    index: U32,
    of: U32,
    key: U64,
}

const _: () = assert!(size_of::<ChunkBytes>() == 52);

impl Wire for ChunkBytes {
    fn check(&self) -> Result<(), FieldError> {
        self.begin.check(DEVICE_VERSION)?;
        let (role, index, of) = (self.role.get(), self.index.get(), self.of.get());
        require(role <= CAPACITY, "the role of a chunk", role, "must be at most 2")?;
        if role == LOG {
            require(of != 0, "the chunks of a log", of, "must be at least 1")?;
            return require(index < of, "the index of a chunk of a log", index, "must be below their number");
        }
        let none = role != FREE || self.replica == 0;
        require(none, "the replica of a free chunk", self.replica, "must be 0")?;
        let none = role != FREE || self.key == 0;
        require(none, "the key of a free chunk", self.key, "must be 0")?;
        require(index == 0, "the index of a chunk of no log", index, "must be 0")?;
        require(of == 0, "the chunks of a log that is none", of, "must be 0")
    }
}

/// The sector of a chunk in the chunk table. None: the chunk is free.
pub fn encode_use(of: Option<&ChunkUse>, device: DeviceId, chunk: u32) -> Result<[u8; SECTOR], FieldError> {
    let mut fields = ChunkBytes {
        begin: Begin::new(CHUNK_MAGIC, DEVICE_VERSION),
        device: device.0.into(),
        chunk: chunk.into(),
        ..ChunkBytes::new_zeroed()
    };
    if let Some(used) = of {
        fields.role = match used.role {
            Role::Log => LOG,
            Role::Capacity => CAPACITY,
        }
        .into();
        fields.replica = used.replica.0.into();
        fields.key = used.key.into();
        fields.index = used.index.into();
        fields.of = used.of.into();
    }
    fields.check()?;
    let mut out = [0; SECTOR];
    seal(fields.as_bytes(), &mut out);
    Ok(out)
}

/// The user of this chunk of this device, by the sector at the beginning of these bytes. None: it is free, or nothing was
/// ever written of it.
pub fn decode_use(bytes: &[u8], device: DeviceId, chunk: u32) -> Result<Option<ChunkUse>, DiskFault> {
    let (fields, rest) = match CHUNK.open::<ChunkBytes>(bytes) {
        Err(DiskFault::Blank) => return Ok(None),
        found => found?,
    };
    let (stated, stated_chunk) = (DeviceId(fields.device.get()), fields.chunk.get());
    if (stated, stated_chunk) != (device, chunk) {
        return Err(DiskFault::Other { stated, stated_chunk, ours: device, our_chunk: chunk });
    }
    fields.check()?;
    padding(rest)?;
    let role = match fields.role.get() {
        FREE => return Ok(None),
        LOG => Role::Log,
        // There is no other: it was checked.
        _ => Role::Capacity,
    };
    let (replica, key) = (ReplicaId(fields.replica.get()), fields.key.get());
    Ok(Some(ChunkUse { replica, key, role, index: fields.index.get(), of: fields.of.get() }))
}
