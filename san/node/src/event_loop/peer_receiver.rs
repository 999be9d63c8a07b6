//! The messages of another node, decoded from its bytes.

use loadline_san_core::ids::{NodeId, ReplicaId};
use loadline_san_core::layout::GroupIndex;
use loadline_san_core::message::{Entry, FromOwner, FromReplica, ToOwner, ToReplica};
use loadline_san_device::pool::{Blocks, BlocksMut, Pool};
use loadline_san_device::receive_buffer::ReceiveBuffer;
use loadline_san_device::shape::Shape;
use loadline_san_protocol::{Body, ClusterId, DecodeError, decode, needed};
use loadline_san_store::io::{Address, Data};
use thiserror::Error;

use loadline_san_transport::channel::Channel;
use loadline_san_transport::socket::Received;

/// Memory of a longer frame is given back.
const LONG: usize = 64 << 10;

/// A message.
#[derive(Debug)]
pub(super) enum PeerMessage {
    ToReplica(FromOwner, ToReplica<Blocks>),
    ToOwner(FromReplica, ToOwner<Blocks>),
}

/// Why a connection is closed.
#[derive(Debug, Error)]
pub(super) enum ReceiveError {
    /// A frame that is none.
    #[error(transparent)]
    Frame(#[from] DecodeError),
    /// Data that is not what was sent.
    #[error(
        "block {block} for replica {replica} does not match the checksum that was sent with it: the network or the memory of a node corrupts data; check both"
    )]
    Data { replica: u64, block: u64 },
    /// No memory.
    #[error("there is not enough memory for {0} bytes of data")]
    Memory(usize),
}

/// A connection from a node.
#[derive(Debug)]
pub(super) struct PeerReceiver {
    pub(super) channel: Channel,
    pub(super) from: NodeId,
    /// The fingerprint of the node's certificate, if the connection is protected.
    pub(super) certificate: Option<String>,
    cluster: ClusterId,
    receive_buffer: ReceiveBuffer,
    /// The frame of the message that is being received, without its data.
    frame: Vec<u8>,
}

impl PeerReceiver {
    pub(super) fn new(
        channel: Channel,
        from: NodeId,
        certificate: Option<String>,
        cluster: ClusterId,
    ) -> PeerReceiver {
        let receive_buffer = ReceiveBuffer::new(&[]);
        PeerReceiver { channel, from, certificate, cluster, receive_buffer, frame: Vec::new() }
    }

    /// Receives what is there, as far as there is room.
    pub(super) fn receive(&mut self, pool: &Pool) -> Received {
        let mut received = Received::Nothing;
        let PeerReceiver { channel, receive_buffer, .. } = self;
        receive_buffer.receive(pool, |spaces| {
            received = channel.receive_to(spaces);
            if let Received::Some(bytes) = received { Some(bytes) } else { None }
        });
        received
    }

    /// The next message, if all of it is there. `group_of`: of a replica that is here.
    pub(super) fn next(
        &mut self,
        pool: &Pool,
        group_of: impl Fn(ReplicaId) -> Option<GroupIndex>,
    ) -> Result<Option<PeerMessage>, ReceiveError> {
        let is_new = self.frame.is_empty();
        if is_new {
            let Some(head) = self.receive_buffer.head(needed)? else { return Ok(None) };
            self.frame.extend_from_slice(head);
        }
        let frame = decode(&self.frame, self.cluster)?;
        let shape = Shape { head: frame.length(), data: frame.payload() };
        if is_new {
            self.receive_buffer.take(shape, pool).map_err(|_| ReceiveError::Memory(shape.data))?;
        }
        let data = self.receive_buffer.data();
        if shape.data > 0 && data.is_none() {
            return Ok(None);
        }
        let whole = |checksums: &mut dyn Iterator<Item = u32>, data: Option<BlocksMut>| {
            data.map(|data| data.freeze_with(checksums).expect("a frame has one for each block"))
        };
        const HAS: &str = "a frame has data where its message has";
        let received = match frame.body {
            Body::ToReplica(from, body) => {
                let blocks = whole(&mut body.checksums().iter().map(|sum| sum.get()), data);
                let message = body.message(|| blocks.expect(HAS));
                if let ToReplica::Entry { entry, .. } | ToReplica::OutOfBand { entry, .. } = &message
                    && let Some(group) = group_of(from.replica)
                {
                    verify(&from, group, entry)?;
                }
                PeerMessage::ToReplica(from, message)
            }
            Body::ToOwner(from, body) => {
                let blocks = whole(&mut body.checksums().iter().map(|sum| sum.get()), data);
                PeerMessage::ToOwner(from, body.message(|| blocks.expect(HAS)))
            }
        };
        self.frame.clear();
        self.frame.shrink_to(LONG);
        Ok(Some(received))
    }
}

/// What is appended is what the owner has taken the checksums of.
fn verify(from: &FromOwner, group: GroupIndex, entry: &Entry<Blocks>) -> Result<(), ReceiveError> {
    let loadline_san_core::message::EntryOp::Data(payload) = &entry.op else { return Ok(()) };
    for index in 0..entry.blocks {
        let block = entry.block + u64::from(index);
        let of = Address { volume: from.volume, group, block };
        let (said, mut data) = (payload.data.checksum(payload.first + index, of), payload.data.clone());
        if data.take_checksum(payload.first + index, of) != said {
            return Err(ReceiveError::Data { replica: from.replica.0, block });
        }
    }
    Ok(())
}
