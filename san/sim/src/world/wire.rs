//! What goes between nodes, and into the configuration store, goes as bytes.

use loadline_san_core::message::{
    Content, Entry, EntryOp, FromOwner, FromReplica, Payload, ToOwner, ToReplica,
};
use loadline_san_core::record::Record;
use loadline_san_protocol::{Body, ClusterId, decode, encode_to_owner, encode_to_replica, record};

use super::Happening;
use crate::store::{Block, Blocks};

const CLUSTER: ClusterId = ClusterId(0x10ad);

/// What arrives of a message, or why it cannot be sent. Its data goes beside the bytes, to a buffer of its own.
pub(crate) fn carried(message: &Happening) -> Result<Happening, String> {
    let (node, bytes, data) = match message {
        Happening::ToReplica(node, from, message) => {
            (*node, bytes_to_replica(from, message)?, data_of(message))
        }
        Happening::ToOwner(node, from, message) => {
            (*node, bytes_to_owner(from, message)?, data_of_answer(message))
        }
        _ => unreachable!("only these go between nodes"),
    };
    let arrived = || -> Blocks { Blocks::new(data.to_vec()) };
    Ok(match decode(&bytes, CLUSTER).expect("what was encoded is decoded").body {
        Body::ToReplica(from, body) => Happening::ToReplica(node, from, body.message(arrived)),
        Body::ToOwner(from, body) => Happening::ToOwner(node, from, body.message(arrived)),
    })
}

/// A message to a replica as bytes, without its data, or why it has none.
pub(crate) fn bytes_to_replica(from: &FromOwner, message: &ToReplica<Blocks>) -> Result<Vec<u8>, String> {
    let (mut bytes, sums) = (Vec::new(), vec![0; data_of(message).len()]);
    encode_to_replica(CLUSTER, from, message, |_| &sums, &mut bytes).map_err(|e| e.to_string())?;
    Ok(bytes)
}

/// A message to an owner as bytes, without its data, or why it has none.
pub(crate) fn bytes_to_owner(from: &FromReplica, message: &ToOwner<Blocks>) -> Result<Vec<u8>, String> {
    let (mut bytes, sums) = (Vec::new(), vec![0; data_of_answer(message).len()]);
    encode_to_owner(CLUSTER, from, message, |_| &sums, &mut bytes).map_err(|e| e.to_string())?;
    Ok(bytes)
}

/// What is kept of a record, or why it cannot be.
pub(crate) fn kept(record: &Record) -> Result<Record, String> {
    let bytes = record::encode(record).map_err(|e| e.to_string())?;
    record::decode(&bytes).map_err(|e| e.to_string())
}

fn data_of(message: &ToReplica<Blocks>) -> &[Block] {
    match message {
        ToReplica::Entry { entry, .. } | ToReplica::OutOfBand { entry, .. } => match entry {
            Entry { op: EntryOp::Data(payload), blocks, .. } => &from_first(payload)[..*blocks as usize],
            _ => &[],
        },
        _ => &[],
    }
}

fn data_of_answer(message: &ToOwner<Blocks>) -> &[Block] {
    match message {
        ToOwner::Data { content: Ok(Content::Data(payload) | Content::Sparse(payload, _)), .. } => {
            from_first(payload)
        }
        _ => &[],
    }
}

fn from_first(payload: &Payload<Blocks>) -> &[Block] {
    &payload.data[payload.first as usize..]
}
