//! What another node says, from its bytes.

use std::os::fd::OwnedFd;

use loadline_san_core::ids::{NodeId, ReplicaId};
use loadline_san_core::layout::GroupIndex;
use loadline_san_core::message::{Entry, FromOwner, FromReplica, ToOwner, ToReplica};
use loadline_san_device::pool::{BLOCK_BYTES, Blocks, BlocksMut, Pool};
use loadline_san_protocol::{Body, ClusterId, DecodeError, decode, needed};
use loadline_san_store::io::{Address, Data};
use thiserror::Error;

use super::client::{Received, receive};

/// Bytes that are received and not taken, at most. A longer frame gets room for itself.
const STAGE: usize = 256 << 10;
/// Bytes that are received at once: some 16 blocks with their frames, which are written and answered while the rest is received.
const TOGETHER: usize = 66 << 10;
/// Of data that is longer than this, the rest is received where it stays.
const DIRECT: usize = 16 << 10;

/// A message.
#[derive(Debug)]
pub(super) enum Heard {
    ToReplica(FromOwner, ToReplica<Blocks>),
    ToOwner(FromReplica, ToOwner<Blocks>),
}

/// Why a connection is closed.
#[derive(Debug, Error)]
pub(super) enum HearError {
    /// A frame that is none.
    #[error(transparent)]
    Frame(#[from] DecodeError),
    /// Data that is not what was sent.
    #[error(
        "block {block} for replica {replica} came with another checksum than its data has: the network or a memory changes data; check both"
    )]
    Data { replica: u64, block: u64 },
    /// No memory.
    #[error("there is no memory for {0} bytes of data")]
    Memory(usize),
}

/// The data that follows a frame.
#[derive(Debug)]
struct Payload {
    into: BlocksMut,
    filled: usize,
}

impl Payload {
    fn left(&self) -> usize {
        self.into.bytes().len() - self.filled
    }
}

/// A connection from a node.
#[derive(Debug)]
pub(super) struct Hearing {
    pub(super) socket: OwnedFd,
    pub(super) from: NodeId,
    cluster: ClusterId,
    stage: Vec<u8>,
    start: usize,
    end: usize,
    payload: Option<Payload>,
}

impl Hearing {
    pub(super) fn new(socket: OwnedFd, from: NodeId, cluster: ClusterId) -> Hearing {
        Hearing { socket, from, cluster, stage: vec![0; STAGE], start: 0, end: 0, payload: None }
    }

    /// Receives what is there, as far as there is room.
    pub(super) fn receive(&mut self) -> Received {
        // While data is missing, its frame is all that is staged.
        if let Some(payload) = &mut self.payload
            && payload.left() >= DIRECT
        {
            let filled = payload.filled;
            let received = receive(&self.socket, &mut payload.into.bytes_mut()[filled..]);
            if let Received::Some(bytes) = received {
                payload.filled += bytes;
            }
            return received;
        }
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.stage.len() - self.end < STAGE / 4 {
            self.stage.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            if self.stage.len() - self.end < STAGE / 4 {
                // At most as long as a frame can be.
                self.stage.resize(self.stage.len() * 2, 0);
            }
        }
        let end = self.stage.len().min(self.end + TOGETHER);
        let received = receive(&self.socket, &mut self.stage[self.end..end]);
        if let Received::Some(bytes) = received {
            self.end += bytes;
        }
        received
    }

    /// The next message, if all of it is there. `group_of`: of a replica that is here.
    pub(super) fn next(
        &mut self,
        pool: &Pool,
        group_of: impl Fn(ReplicaId) -> Option<GroupIndex>,
    ) -> Result<Option<Heard>, HearError> {
        let bytes = &self.stage[self.start..self.end];
        let Some(length) = needed(bytes)? else { return Ok(None) };
        if bytes.len() < length {
            return Ok(None);
        }
        let frame = decode(bytes, self.cluster)?;
        let expected = frame.payload();
        if expected > 0 {
            if self.payload.is_none() {
                let into = pool.take((expected / BLOCK_BYTES) as u32);
                let into = into.map_err(|_| HearError::Memory(expected))?;
                self.payload = Some(Payload { into, filled: 0 });
            }
            let payload = self.payload.as_mut().expect("it was put there");
            let behind = &self.stage[self.start + length..self.end];
            let some = behind.len().min(payload.left());
            payload.into.bytes_mut()[payload.filled..payload.filled + some].copy_from_slice(&behind[..some]);
            payload.filled += some;
            // What was copied is taken out of the stage, and the frame stays before what follows.
            if some > 0 {
                let frame = self.start..self.start + length;
                self.stage.copy_within(frame, self.start + some);
                self.start += some;
            }
            if payload.left() > 0 {
                return Ok(None);
            }
        }
        let frame = decode(&self.stage[self.start..self.end], self.cluster)?;
        let whole = |checksums: &mut dyn Iterator<Item = u32>, payload: Option<Payload>| {
            payload
                .map(|payload| payload.into.freeze_with(checksums).expect("a frame has one for each block"))
        };
        let payload = self.payload.take();
        const HAS: &str = "a frame has data where its message has";
        let heard = match frame.body {
            Body::ToReplica(from, body) => {
                let blocks = whole(&mut body.checksums().iter().map(|sum| sum.get()), payload);
                let message = body.message(|| blocks.expect(HAS));
                if let ToReplica::Entry { entry, .. } | ToReplica::Beside { entry, .. } = &message
                    && let Some(group) = group_of(from.replica)
                {
                    verify(&from, group, entry)?;
                }
                Heard::ToReplica(from, message)
            }
            Body::ToOwner(from, body) => {
                let blocks = whole(&mut body.checksums().iter().map(|sum| sum.get()), payload);
                Heard::ToOwner(from, body.message(|| blocks.expect(HAS)))
            }
        };
        self.start += length;
        Ok(Some(heard))
    }
}

/// What is appended is what the owner has taken the checksums of.
fn verify(from: &FromOwner, group: GroupIndex, entry: &Entry<Blocks>) -> Result<(), HearError> {
    let loadline_san_core::message::What::Data(payload) = &entry.what else { return Ok(()) };
    for index in 0..entry.blocks {
        let block = entry.block + u64::from(index);
        let of = Address { volume: from.volume, group, block };
        let (said, mut data) = (payload.data.checksum(payload.first + index, of), payload.data.clone());
        if data.take_checksum(payload.first + index, of) != said {
            return Err(HearError::Data { replica: from.replica.0, block });
        }
    }
    Ok(())
}
