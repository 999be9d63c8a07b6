//! A message as bytes.
//!
//! ```text
//! header │ fixed body of its kind │ table │ payload
//!  88 B  │                        │       │ whole blocks of data
//!  └────────── the frame ─────────────────┘
//! ```
//!
//! The table has what there are several of: checksums of the payload's blocks, entries of a log, ranges. The payload
//! follows the frame in the stream and is no part of it: it is written from, and read to, a buffer of its own. The
//! frame's checksum does not cover it. The table's checksums do, and they are those that the owner took when it copied
//! the data from its client ([`crate::log::block_crc`]), all the way to the disk.

use loadline_san_core::layout::BLOCK;
use loadline_san_core::message::{FromOwner, FromReplica};
use zerocopy::FromBytes;

use crate::field::{count, require};
use crate::header::{Begin, ClusterId, DecodeError, HEADER, Header};
use crate::kind::Kind;
use crate::to_owner::ToOwnerBody;
use crate::to_replica::ToReplicaBody;

/// A frame, where it lies in a buffer.
#[derive(Debug, Clone, Copy)]
pub struct Frame<'a> {
    /// The header of the frame.
    pub header: &'a Header,
    /// The sender and its message.
    pub body: Body<'a>,
}

/// The sender and its message.
#[derive(Debug, Clone, Copy)]
pub enum Body<'a> {
    /// An owner, to a replica.
    ToReplica(FromOwner, ToReplicaBody<'a>),
    /// A replica, to an owner.
    ToOwner(FromReplica, ToOwnerBody<'a>),
}

impl Frame<'_> {
    /// Bytes of the frame: the payload begins after so many.
    pub fn length(&self) -> usize {
        self.header.begin.length()
    }

    /// Bytes of the payload that follows: a block for each checksum in the table.
    pub fn payload(&self) -> usize {
        self.header.begin.payload.get() as usize
    }
}

/// How many bytes the frame has that begins here, without its payload: at most [`MOST_FRAME`](crate::header::MOST_FRAME). `None` if the
/// first 16 bytes, which state it, have not all arrived. Bytes that are no frame are refused; the checksum is not checked.
pub fn needed(bytes: &[u8]) -> Result<Option<usize>, DecodeError> {
    match Begin::ref_from_prefix(bytes) {
        Err(_) => Ok(None),
        Ok((begin, _)) => begin.check().map(|()| Some(begin.length())),
    }
}

/// The frame at the beginning of these bytes; others may follow it.
pub fn decode(bytes: &[u8], ours: ClusterId) -> Result<Frame<'_>, DecodeError> {
    let got = bytes.len();
    let needed = needed(bytes)?.unwrap_or(HEADER);
    let short = DecodeError::TooShort { needed, got };
    let (header, body) =
        bytes.get(..needed).and_then(|frame| Header::ref_from_prefix(frame).ok()).ok_or(short)?;
    let (stated, is) = (header.crc.get(), header.checksum(body));
    if stated != is {
        return Err(DecodeError::Checksum { stated, is });
    }
    let cluster = ClusterId(header.cluster.get());
    if cluster != ours {
        return Err(DecodeError::Cluster { stated: cluster, ours });
    }
    let kind = Kind::from_code(header.begin.kind.get())
        .ok_or(DecodeError::Kind { stated: header.begin.kind.get() })?;
    count("an epoch", header.epoch)?;
    let (body, blocks) = if kind.is_to_replica() {
        let body = ToReplicaBody::decode(kind, body)?;
        (Body::ToReplica(header.said_by_owner(), body), body.checksums().len())
    } else {
        require(header.epoch == 0, "the epoch of a replica's message", header.epoch, "must be 0")?;
        let body = ToOwnerBody::decode(kind, body)?;
        (Body::ToOwner(header.said_by_replica(), body), body.checksums().len())
    };
    let (stated, right) = (u64::from(header.begin.payload.get()), blocks as u64 * BLOCK);
    if stated != right {
        return Err(DecodeError::Length { what: "the payload", kind, stated, right });
    }
    Ok(Frame { header, body })
}
