//! What must never happen, as values.

use std::fmt;

use loadline_san_core::ids::ReplicaId;
use loadline_san_core::volume::Failure;

use crate::history::Impossible;

/// What has happened that must never happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Violation {
    /// A read returned what cannot be.
    Read(Impossible),
    /// A map reported sectors as zeroes that cannot be zeroes.
    Map(Impossible),
    /// A member does not have what was acknowledged.
    Missing(ReplicaId, Impossible),
    /// Two members differ in a sector that no client is writing.
    Apart(ReplicaId, ReplicaId, u64),
    /// Two owners were active at one epoch.
    TwoOwners(u64),
    /// A replica took an entry, a commit point or an order from an owner that it had not promised to follow.
    BrokenPromise(ReplicaId),
    /// A start did not find what the store had reported as durable.
    Forgot(ReplicaId, &'static str),
    /// A request failed since no copy was whole, and each of its blocks is whole somewhere.
    NotCorrupt(u64),
    /// A request ended so, and could not.
    Unfounded(u64, Result<(), Failure>),
    /// A replica is to be copied in full that has lost nothing.
    Emptied(ReplicaId),
    /// At rest, two members differ.
    Differ(ReplicaId, ReplicaId, u64),
    /// A takeover has kept a member whose device went back in time.
    Kept(ReplicaId),
    /// A request was completed that no client waits for.
    TwiceCompleted(u64),
    /// Core returned a message or a command that has no encoding.
    NotSendable(String),
    /// A write was taken, and too few replicas have been in sync since.
    TooFew(u64),
    /// A swap has committed on a record that was put back into the configuration store, and that members know to be old.
    OnOld(u64),
    /// An assertion did not hold.
    Panicked(String),
    /// Everything is well, and still something waits.
    Stuck(String),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::Read(impossible) => write!(f, "a read: {impossible}"),
            Violation::Map(impossible) => write!(f, "a map: {impossible}"),
            Violation::Missing(replica, impossible) => write!(f, "member {replica}: {impossible}"),
            Violation::Apart(one, other, sector) => {
                write!(f, "members {one} and {other} differ in sector {sector}, and no client is writing it")
            }
            Violation::TwoOwners(epoch) => write!(f, "two owners are active at epoch {epoch}"),
            Violation::BrokenPromise(replica) => {
                write!(f, "{replica} obeyed an owner that it had not promised to follow")
            }
            Violation::Forgot(replica, what) => {
                write!(f, "the store of {replica} has lost {what}, after it had reported that as durable")
            }
            Violation::NotCorrupt(sector) => {
                write!(
                    f,
                    "the request at sector {sector} failed as corrupt, and each block is whole somewhere"
                )
            }
            Violation::Unfounded(sector, Ok(())) => {
                write!(f, "the request at sector {sector}, beyond the end, was carried out")
            }
            Violation::Unfounded(sector, Err(why)) => {
                write!(f, "the request at sector {sector} failed without reason: {why}")
            }
            Violation::Emptied(replica) => {
                write!(f, "{replica} is to be copied in full, and has lost nothing")
            }
            Violation::Differ(one, other, block) => {
                write!(f, "at rest, {one} and {other} differ in block {block} of their group")
            }
            Violation::Kept(replica) => {
                write!(f, "a takeover has kept {replica}, whose device went back in time")
            }
            Violation::TwiceCompleted(id) => write!(f, "request #{id} was completed again"),
            Violation::NotSendable(why) => write!(f, "what core returned cannot be sent or stored: {why}"),
            Violation::TooFew(sector) => {
                write!(
                    f,
                    "a write of sector {sector} was taken with fewer replicas in sync than the policy asks for"
                )
            }
            Violation::OnOld(epoch) => {
                write!(f, "epoch {epoch} has committed on a record that the store went back to")
            }
            Violation::Panicked(what) => write!(f, "panic: {what}"),
            Violation::Stuck(what) => write!(f, "it should go on, and does not: {what}"),
        }
    }
}
