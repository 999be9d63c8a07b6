//! What passes between a task and those that carry it out: commands in, steps out.

use std::ops::Range;
use std::time::Duration;

use loadline_base::scsi::{Sense, Status};
use loadline_san_core::message::Content;
use loadline_san_device::pool::Blocks;

use super::cdb::Extent;
use super::locks::Sharing;
use super::reservations::Reservations;
use crate::block::Operation;

/// A command as it arrived.
#[derive(Debug, Clone, Copy)]
pub struct Command {
    /// The command descriptor block, with zeroes behind it.
    pub cdb: [u8; 16],
    /// Bytes that the initiator sends.
    pub data_out: u32,
    /// The most bytes that the initiator takes.
    pub data_in: u32,
    /// Names the task in its session.
    pub ticket: u32,
}

/// What a task needs next.
#[derive(Debug)]
pub enum Step {
    /// So many bytes of what the initiator sends, then [`Task::data`](super::task::Task::data): at most [`Command::data_out`], never 0.
    Data(usize),
    /// The volume is to carry this out, then [`Task::carried_out`](super::task::Task::carried_out).
    Block {
        /// What it does.
        operation: Operation,
        /// The first sector of 512 bytes.
        sector: u64,
        /// The number of sectors.
        sectors: u32,
    },
    /// The configuration is to be changed, then [`Task::changed`](super::task::Task::changed).
    Change(Change),
    /// Another task is in the way: [`Task::resume`](super::task::Task::resume) when [`Unit::take_resumed`](super::unit::Unit::take_resumed) names the ticket.
    Wait,
    /// The task is over.
    Done(Answer),
}

/// How long a [`Change`] may take. Who makes it answers by then.
pub const LONGEST_CHANGE: Duration = Duration::from_secs(9);

/// A change of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The volume's reservations become others, if they are still `from`.
    Reserve {
        /// What they must be.
        from: Reservations,
        /// What they become.
        to: Reservations,
        /// It takes something from other sessions. So the node confirms it only if it owned the volume once the configuration had it.
        restricts: bool,
    },
    /// The volume is to be reached by this target port group: it is moved to its node.
    Activate(u16),
}

/// Why a change was not made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeFailed {
    /// The reservations are others than `from`. [`Unit::learn`](super::unit::Unit::learn) was called with what they are.
    Differs,
    /// It cannot be made now, or whether it was made is not known.
    Unavailable,
}

/// How a task ended.
#[derive(Debug)]
pub struct Answer {
    /// The status.
    pub status: Status,
    /// What a [`Status::CheckCondition`] says.
    pub sense: Option<Sense>,
    /// What the initiator gets.
    pub data: DataIn,
    /// Bytes that the command transfers by its CDB, in either direction: what residual counts are computed from.
    pub transfer: u64,
}

/// What the initiator gets. If it takes less, the rest is not sent.
#[derive(Debug)]
pub enum DataIn {
    /// No data.
    Nothing,
    /// These bytes.
    Bytes(Vec<u8>),
    /// What the last block step read, from its first sector on.
    Read {
        /// So many bytes of it.
        bytes: usize,
    },
}

/// A part of what is read: blocks of 4 KiB, counted from the block that has the request's first sector.
#[derive(Debug)]
pub struct Fill {
    /// The first.
    pub at: u64,
    /// How many.
    pub blocks: u32,
    /// What they hold.
    pub content: Content<Blocks>,
}

/// What a command needs next.
#[derive(Debug)]
pub(super) enum Next {
    Data(usize),
    Block(Operation, Extent),
    Lock(Range<u64>, Sharing),
    LockReservations,
    AwaitEnd,
    Change(Change),
    /// It is over, with this status and these data.
    Done(Status, DataIn),
}

/// What a command needs next, or why it fails.
pub(super) type Outcome = Result<Next, Sense>;

impl Next {
    pub(super) fn good() -> Next {
        Next::Done(Status::Good, DataIn::Nothing)
    }

    /// It is to be sent again later.
    pub(super) fn busy() -> Next {
        Next::Done(Status::Busy, DataIn::Nothing)
    }

    pub(super) fn conflict() -> Next {
        Next::Done(Status::ReservationConflict, DataIn::Nothing)
    }

    /// These data, cut to the allocation length.
    pub(super) fn bytes(mut data: Vec<u8>, allocation: usize) -> Outcome {
        data.truncate(allocation);
        Ok(Next::Done(Status::Good, DataIn::Bytes(data)))
    }
}
