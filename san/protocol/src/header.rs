//! The header of a frame, what can be wrong with a frame, and how a frame is written.

use std::fmt;

use loadline_san_core::ids::{Epoch, Incarnation, NodeId, Owner, ReplicaId, VolumeId};
use loadline_san_core::layout::BLOCK;
use loadline_san_core::message::{FromOwner, FromReplica};
use thiserror::Error;
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::field::{FieldError, MOST_DATA_BLOCKS, Wire, count, require};
use crate::kind::Kind;
use crate::part::{MentionBytes, RangeBytes};

/// The version of the protocol that this program speaks. There is no other yet.
pub const PROTOCOL_VERSION: u16 = 1;
/// What a frame begins with.
pub const MAGIC: [u8; 4] = *b"LLsn";
/// The most entries in a report: those of 65,536 requests in flight, and of as many again that each of some takeovers
/// that were cut short has made equal.
pub const MOST_MENTIONS: usize = 1 << 20;
/// The most ranges in a list.
pub const MOST_RANGES: usize = 65_536;
/// Bytes of a header.
pub const HEADER: usize = size_of::<Header>();
/// The most bytes of a frame, without its payload: those of a report.
pub const MOST_FRAME: usize = HEADER + MOST_BODY;
/// The most bytes of a payload.
pub const MOST_PAYLOAD: u32 = MOST_DATA_BLOCKS * BLOCK as u32;

const MOST_BODY: usize = 64 + MOST_MENTIONS * size_of::<MentionBytes>();
// Messages to people name these two.
const _: () = assert!(MOST_BODY == 41_943_104 && MOST_PAYLOAD == 33_554_432);
const _: () = assert!(64 + MOST_RANGES * size_of::<RangeBytes>() <= MOST_BODY);
const _: () = assert!(64 + MOST_DATA_BLOCKS as usize * size_of::<U32>() <= MOST_BODY);

/// A cluster. Nodes of different clusters do not exchange messages, whatever their ids are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterId(pub u128);

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// What every frame of every version begins with: 16 bytes.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Begin {
    /// [`MAGIC`].
    pub magic: [u8; 4],
    /// [`PROTOCOL_VERSION`].
    pub version: U16,
    /// A [`Kind`].
    pub kind: U16,
    /// Bytes between the header and the payload.
    pub body: U32,
    /// Bytes after that: whole blocks.
    pub payload: U32,
}

impl Begin {
    pub(crate) fn check(&self) -> Result<(), DecodeError> {
        if self.magic != MAGIC {
            return Err(DecodeError::NotOurs { stated: u32::from_le_bytes(self.magic) });
        }
        if self.version.get() != PROTOCOL_VERSION {
            return Err(DecodeError::Version { stated: self.version.get(), ours: PROTOCOL_VERSION });
        }
        let fits = self.body.get() as usize <= MOST_BODY;
        require(fits, "the length of a body", self.body, "must be at most 41943104")?;
        let fits = self.payload.get() <= MOST_PAYLOAD;
        Ok(require(fits, "the length of a payload", self.payload, "must be at most 33554432")?)
    }

    /// Bytes of the frame.
    pub(crate) fn length(&self) -> usize {
        HEADER + self.body.get() as usize
    }
}

/// The header of a frame.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// What does not depend on the version.
    pub begin: Begin,
    /// The cluster.
    pub cluster: U128,
    /// The volume.
    pub volume: U64,
    /// The replica that speaks, or is spoken to.
    pub replica: U64,
    /// The life of the owner's process.
    pub incarnation: U64,
    /// The owner's epoch when it was sent; 0 in a message of a replica.
    pub epoch: U64,
    /// The owner's session with this replica.
    pub session: U64,
    /// The life of the replica's process.
    pub process: U64,
    /// The owner's node.
    pub node: U32,
    /// CRC32C of all before it in the header, and the body.
    pub crc: U32,
}

impl Header {
    fn owner(&self) -> Owner {
        Owner { node: NodeId(self.node.get()), incarnation: Incarnation(self.incarnation.get()) }
    }

    pub(crate) fn said_by_owner(&self) -> FromOwner {
        FromOwner {
            volume: VolumeId(self.volume.get()),
            replica: ReplicaId(self.replica.get()),
            owner: self.owner(),
            epoch: Epoch(self.epoch.get()),
            session: self.session.get(),
            process: Incarnation(self.process.get()),
        }
    }

    pub(crate) fn said_by_replica(&self) -> FromReplica {
        FromReplica {
            volume: VolumeId(self.volume.get()),
            replica: ReplicaId(self.replica.get()),
            process: Incarnation(self.process.get()),
            owner: self.owner(),
            session: self.session.get(),
        }
    }

    pub(crate) fn checksum(&self, body: &[u8]) -> u32 {
        let header = self.as_bytes();
        loadline_base::crc::crc32c_append(
            loadline_base::crc::crc32c(&header[..HEADER - size_of::<U32>()]),
            body,
        )
    }
}

/// Why bytes are no frame that can be taken. The connection that they came by is to be closed: what follows cannot be
/// read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// It ends too early.
    #[error("a frame ends after {got} bytes, and needs {needed}: read on, or connect again if nothing comes")]
    TooShort {
        /// Bytes that it needs, as far as is known by now.
        needed: usize,
        /// Bytes that are there.
        got: usize,
    },
    /// It is something else.
    #[error("a frame begins with {stated:#010x}: this is no Loadline node; check the address and the port")]
    NotOurs {
        /// What is there in place of the magic.
        stated: u32,
    },
    /// A version that this program does not speak.
    #[error("a node speaks version {stated} of the protocol, and this one {ours}: upgrade the older node")]
    Version {
        /// The value in the frame.
        stated: u16,
        /// What this program speaks.
        ours: u16,
    },
    /// A node of another cluster.
    #[error(
        "a node of cluster {stated} has sent this, and this is cluster {ours}: correct the address that one of the two has for the other"
    )]
    Cluster {
        /// The value in the frame.
        stated: ClusterId,
        /// What was expected.
        ours: ClusterId,
    },
    /// There is no such message.
    #[error("a frame is of kind {stated}, and version {PROTOCOL_VERSION} has none such: report it")]
    Kind {
        /// The value in the frame.
        stated: u16,
    },
    /// It has changed on the way.
    #[error(
        "a frame states checksum {stated:#010x}, and has {is:#010x}: the network or a memory changes data; check both"
    )]
    Checksum {
        /// The value in the frame.
        stated: u32,
        /// What it has.
        is: u32,
    },
    /// A length that the content contradicts.
    #[error("{what} of a frame of kind {kind:?} states {stated} bytes, and its content {right}: report it")]
    Length {
        /// The name of the length that is wrong.
        what: &'static str,
        /// The kind of the frame.
        kind: Kind,
        /// Bytes, by the header.
        stated: u64,
        /// Bytes, by the content.
        right: u64,
    },
    /// A value that cannot be.
    #[error("in a frame, {0}: report it, with the logs of both nodes")]
    Field(#[from] FieldError),
}

/// A body with nothing behind it.
pub(crate) fn whole<B: Wire>(kind: Kind, bytes: &[u8]) -> Result<&B, DecodeError> {
    let (stated, right) = (bytes.len() as u64, size_of::<B>() as u64);
    let wrong = DecodeError::Length { what: "the body", kind, stated, right };
    let body = B::ref_from_bytes(bytes).map_err(|_| wrong)?;
    body.check()?;
    Ok(body)
}

/// Nothing at all.
pub(crate) fn empty(kind: Kind, bytes: &[u8]) -> Result<(), DecodeError> {
    let wrong = DecodeError::Length { what: "the body", kind, stated: bytes.len() as u64, right: 0 };
    if bytes.is_empty() { Ok(()) } else { Err(wrong) }
}

/// A body with a table behind it, as long as the rest is. The caller checks that it may have so many.
pub(crate) fn with_table<B: Wire, T: Wire>(kind: Kind, bytes: &[u8]) -> Result<(&B, &[T]), DecodeError> {
    let count = bytes.len().saturating_sub(size_of::<B>()) / size_of::<T>();
    let right = (size_of::<B>() + count * size_of::<T>()) as u64;
    let wrong = DecodeError::Length { what: "the body", kind, stated: bytes.len() as u64, right };
    let (body, rest) = B::ref_from_prefix(bytes).map_err(|_| wrong)?;
    let table = <[T]>::ref_from_bytes(rest).map_err(|_| wrong)?;
    body.check()?;
    table.iter().try_for_each(T::check)?;
    Ok((body, table))
}

/// As many checksums as blocks of data.
pub(crate) fn same_count(kind: Kind, checksums: usize, blocks: u32) -> Result<(), DecodeError> {
    let (stated, right) = (checksums as u64 * 4, u64::from(blocks) * 4);
    let wrong = DecodeError::Length { what: "the table of checksums", kind, stated, right };
    if stated == right { Ok(()) } else { Err(wrong) }
}

/// Adds a frame to bytes. What it refuses leaves them as they were.
pub(crate) struct Writer<'o> {
    out: &'o mut Vec<u8>,
    payload: u32,
}

impl Writer<'_> {
    pub(crate) fn frame(
        out: &mut Vec<u8>,
        mut header: Header,
        body: impl FnOnce(&mut Writer<'_>) -> Result<Kind, FieldError>,
    ) -> Result<(), FieldError> {
        let start = out.len();
        count("an epoch", header.epoch)?;
        out.extend_from_slice(header.as_bytes());
        let mut writer = Writer { out, payload: 0 };
        let kind = body(&mut writer);
        let Writer { out, payload } = writer;
        let kind = kind.inspect_err(|_| out.truncate(start))?;
        let (place, body) = out[start..].split_at_mut(HEADER);
        header.begin.kind = kind.code().into();
        // Tables have their limits, and those add up to no more than a frame may have.
        header.begin.body = u32::try_from(body.len()).expect("a body within its limits").into();
        header.begin.payload = payload.into();
        header.crc = header.checksum(body).into();
        place.copy_from_slice(header.as_bytes());
        Ok(())
    }

    /// Adds a part, if it can be.
    pub(crate) fn part<T: Wire>(&mut self, part: &T) -> Result<(), FieldError> {
        part.check()?;
        self.out.extend_from_slice(part.as_bytes());
        Ok(())
    }

    /// Adds the checksums of so many blocks, whose data is the payload.
    pub(crate) fn checksums(&mut self, checksums: &[u32], blocks: usize) -> Result<(), FieldError> {
        let given = checksums.len();
        require(given == blocks, "the number of checksums", given as u64, "must be that of the blocks")?;
        crate::field::data_blocks("the number of checksums", given as u64)?;
        checksums.iter().for_each(|crc| self.out.extend_from_slice(&crc.to_le_bytes()));
        self.payload = given as u32 * BLOCK as u32;
        Ok(())
    }
}

/// The header of a message of an owner, still without what depends on its body.
pub(crate) fn header_from_owner(cluster: ClusterId, from: &FromOwner) -> Header {
    Header {
        begin: Begin { magic: MAGIC, version: PROTOCOL_VERSION.into(), ..Begin::new_zeroed() },
        cluster: cluster.0.into(),
        volume: from.volume.0.into(),
        replica: from.replica.0.into(),
        node: from.owner.node.0.into(),
        incarnation: from.owner.incarnation.0.into(),
        epoch: from.epoch.0.into(),
        session: from.session.into(),
        process: from.process.0.into(),
        ..Header::new_zeroed()
    }
}

/// The same of a message of a replica.
pub(crate) fn header_from_replica(cluster: ClusterId, from: &FromReplica) -> Header {
    let FromReplica { volume, replica, process, owner, session } = *from;
    header_from_owner(cluster, &FromOwner { volume, replica, owner, epoch: Epoch(0), session, process })
}
