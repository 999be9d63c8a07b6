//! The I/Os of a store on its devices, and their results.
//!
//! A store never does I/O while it serves: it hands out [`IoRequest`]s, and gets a [`Done`] for each. The driver may
//! carry them out in any order and complete them in any order. Only to format, open and check it uses a [`Disk`], which
//! waits.

use std::io;

use loadline_san_core::ids::VolumeId;
use loadline_san_core::layout::GroupIndex;
use loadline_san_protocol::log::SECTOR;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Which of a replica's two devices. They may be the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Area {
    /// The fast one: the log, and the metadata of the replica.
    Log,
    /// The large one: extents.
    Capacity,
}

/// The least that is written: 512 bytes, aligned as direct I/O requires. Every offset and length is a multiple of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C, align(512))]
pub struct Sector(pub [u8; SECTOR]);

impl Sector {
    /// All zeroes.
    pub const ZERO: Sector = Sector([0; SECTOR]);

    /// So many, all zeroes.
    pub fn zeroes(count: usize) -> Vec<Sector> {
        vec![Sector::ZERO; count]
    }

    /// These bytes, and zeroes up to a whole sector.
    pub fn of(bytes: &[u8]) -> Vec<Sector> {
        let mut sectors = Sector::zeroes(bytes.len().div_ceil(SECTOR));
        sectors.as_mut_bytes()[..bytes.len()].copy_from_slice(bytes);
        sectors
    }

    /// Sectors as bytes.
    pub fn bytes(sectors: &[Sector]) -> &[u8] {
        sectors.as_bytes()
    }
}

/// Which block a checksum is of: part of what is summed, so that a block at the wrong place does not match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// The volume.
    pub volume: VolumeId,
    /// The group.
    pub group: GroupIndex,
    /// The block, in the group.
    pub block: u64,
}

/// Consecutive blocks of 4 KiB in memory, shared by all that refer to them, each with its checksum.
pub trait Data: Clone {
    /// The checksum of the block of this index, taken when the data came to be (`loadline_san_protocol::log::block_crc`).
    fn checksum(&self, index: u32, of: Address) -> u32;

    /// Whether its bytes are here, so that they can be written elsewhere. They are not if they were read to where a client wants them.
    fn is_here(&self) -> bool {
        true
    }

    /// Takes the checksum of this block anew and keeps it. Only called on what a device has just read: nothing else refers
    /// to it yet.
    fn take_checksum(&mut self, index: u32, of: Address) -> u32;
}

/// A part of a read: where consecutive blocks are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The device that has the blocks.
    pub area: Area,
    /// Where on it, in bytes.
    pub at: u64,
    /// To which block of the buffer.
    pub first: u32,
    /// The number of blocks.
    pub blocks: u32,
}

/// Blocks that are to be read into one new buffer.
#[derive(Debug)]
pub struct Reading {
    /// Blocks of the buffer. What no piece fills is zeroes.
    pub blocks: u32,
    /// In the order of the buffer.
    pub pieces: Vec<Piece>,
}

/// Bytes between two pieces of a read that are read along with them, at most: a device takes less time for them than for another
/// I/O. It is more than the header of a record and a block that is not needed.
pub const MOST_BETWEEN: u64 = 16 << 10;

impl Piece {
    /// The byte after its last.
    pub fn end(&self) -> u64 {
        self.at.saturating_add(u64::from(self.blocks) * loadline_san_core::layout::BLOCK)
    }
}

impl Reading {
    /// The pieces of each I/O: those that follow each other on a device, with no more than [`MOST_BETWEEN`] bytes between two.
    pub fn ios(&self) -> impl Iterator<Item = &[Piece]> {
        self.pieces.chunk_by(|one, next| {
            let between = next.at.checked_sub(one.end());
            one.area == next.area && between.is_some_and(|between| between <= MOST_BETWEEN)
        })
    }
}

/// A part of a write.
#[derive(Debug, Clone)]
pub enum Part<D> {
    /// The next so many sectors of [`Writing::bytes`].
    Bytes(u32),
    /// Blocks of a buffer.
    Data {
        /// The buffer.
        data: D,
        /// The first, in it.
        first: u32,
        /// The number of blocks.
        blocks: u32,
    },
}

/// One write of consecutive bytes, gathered from several places.
#[derive(Debug, Clone)]
pub struct Writing<D> {
    /// The device that is written to.
    pub area: Area,
    /// Where on it, in bytes.
    pub at: u64,
    /// What the store itself brings.
    pub bytes: Vec<Sector>,
    /// In the order in which they are written.
    pub parts: Vec<Part<D>>,
    /// It is done only when it is durable.
    pub durable: bool,
}

impl<D> Writing<D> {
    /// Bytes that are written.
    pub fn length(&self) -> u64 {
        let of = |part: &Part<D>| match part {
            Part::Bytes(sectors) => u64::from(*sectors) * SECTOR as u64,
            Part::Data { blocks, .. } => u64::from(*blocks) * loadline_san_core::layout::BLOCK,
        };
        self.parts.iter().map(of).sum()
    }
}

/// An I/O request of a store to its devices.
#[derive(Debug)]
pub enum IoRequest<D> {
    /// Read this. → [`Done::Read`]
    Read(Reading),
    /// Write this. → [`Done::Wrote`]
    Write(Writing<D>),
    /// Make durable all that was written there, and done, before this was asked. → [`Done::Synced`]
    Sync(Area),
}

/// The number of a request, by which it is completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u32);

/// The completion of an [`IoRequest`]. What was handed out comes back, so that it is used again.
#[derive(Debug)]
pub enum Done<D> {
    /// What was read.
    Read(Reading, Result<D, IoFault>),
    /// What was written.
    Wrote(Writing<D>, Result<(), IoFault>),
    /// Whether it is durable.
    Synced(Area, Result<(), IoFault>),
}

/// A device did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum IoFault {
    /// It could not, here.
    #[error("{area:?} device, byte {at}: {error}")]
    Failed {
        /// The device that failed.
        area: Area,
        /// Where, in bytes.
        at: u64,
        /// The error of the system.
        error: io::Error,
    },
    /// It ended before. It was as long when it was opened.
    #[error(
        "{area:?} device: it ends at byte {at}, and was longer when it was opened: it was made shorter since"
    )]
    Short {
        /// The device that is too short.
        area: Area,
        /// Where it ends.
        at: u64,
    },
}

impl IoFault {
    /// The device that did not do it.
    pub fn area(&self) -> Area {
        match self {
            IoFault::Failed { area, .. } | IoFault::Short { area, .. } => *area,
        }
    }
}

/// Devices that are read and written at once: to format, to open, to check.
pub trait Disk {
    /// How long it is, in bytes.
    fn bytes(&self, area: Area) -> u64;

    /// Fills this, from a byte on that is a multiple of a sector.
    fn read(&mut self, area: Area, at: u64, into: &mut [Sector]) -> Result<(), IoFault>;

    /// Writes this, durably.
    fn write(&mut self, area: Area, at: u64, from: &[Sector]) -> Result<(), IoFault>;

    /// Makes durable all that was written there before, by this process and by those before it.
    fn sync(&mut self, area: Area) -> Result<(), IoFault>;
}

/// Fills this as far as the device can: sectors that it cannot read are zeroes. Which, rising. What the device does not have
/// any more is an error.
pub(crate) fn read_what_can_be(
    disk: &mut impl Disk,
    area: Area,
    at: u64,
    into: &mut [Sector],
) -> Result<Vec<usize>, IoFault> {
    match disk.read(area, at, into) {
        Ok(()) => return Ok(Vec::new()),
        Err(IoFault::Failed { .. }) => {}
        Err(short) => return Err(short),
    }
    let mut unreadable = Vec::new();
    for (index, sector) in into.iter_mut().enumerate() {
        match disk.read(area, at + (index * SECTOR) as u64, std::slice::from_mut(sector)) {
            Ok(()) => {}
            Err(IoFault::Failed { .. }) => {
                *sector = Sector::ZERO;
                unreadable.push(index);
            }
            Err(short) => return Err(short),
        }
    }
    Ok(unreadable)
}
