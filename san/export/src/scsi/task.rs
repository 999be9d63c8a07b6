//! A command that is carried out, step by step.

use loadline_base::scsi::{Sense, Status, key};
use loadline_san_core::map::Map;
use loadline_san_core::message::Content;
use loadline_san_core::volume::Failure;
use loadline_san_device::pool::{Blocks, BlocksMut, Pool};

use super::reservations::Reservations;
use super::unit::{NexusId, Unit};
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
    /// So many bytes of what the initiator sends, then [`Task::data`]: at most [`Command::data_out`], never 0.
    Data(usize),
    /// The volume is to carry this out, then [`Task::carried_out`].
    Block {
        /// What it does.
        operation: Operation,
        /// The first sector of 512 bytes.
        sector: u64,
        /// The number of sectors.
        sectors: u32,
    },
    /// The configuration is to be changed, then [`Task::changed`].
    Change(Change),
    /// Another task is in the way: [`Task::resume`] when [`Unit::take_resumed`] names the ticket.
    Wait,
    /// The task is over.
    Done(Answer),
}

/// A change of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The volume's reservations become others, if they are still `from`.
    Reserve {
        /// What they must be.
        from: Reservations,
        /// What they become.
        to: Reservations,
    },
    /// The volume is to be reached by this target port group: it is moved to its node.
    Activate(u16),
}

/// Why a change was not made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeFailed {
    /// The reservations are others than `from`. [`Unit::learn`] was called with what they are.
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

/// A command that is carried out. Whatever happens, a task ends with [`Step::Done`] or with [`Task::end`].
#[derive(Debug)]
pub struct Task {}

impl Task {
    /// Begins a command of this session.
    pub fn begin(_unit: &mut Unit, _nexus: NexusId, _command: &Command) -> (Task, Step) {
        (Task {}, stub())
    }

    /// What [`Step::Data`] needed is here: so many bytes from the first byte of `data` on.
    pub fn data(&mut self, _unit: &mut Unit, _pool: &Pool, _data: BlocksMut) -> Step {
        stub()
    }

    /// The volume has carried out what [`Step::Block`] says. `read` is what a read gave, in rising order without gaps or overlaps, and `map`
    /// what a map gave.
    pub fn carried_out(
        &mut self,
        _unit: &mut Unit,
        _pool: &Pool,
        _result: Result<(), Failure>,
        _read: &[Fill],
        _map: Option<Map>,
    ) -> Step {
        stub()
    }

    /// The configuration was changed as [`Step::Change`] says, or not.
    pub fn changed(&mut self, _unit: &mut Unit, _result: Result<(), ChangeFailed>) -> Step {
        stub()
    }

    /// The task that was in the way has ended.
    pub fn resume(&mut self, _unit: &mut Unit, _pool: &Pool) -> Step {
        stub()
    }

    /// The task is aborted, or its session is gone. If it has a block step under way, this is called once that is complete: what it has
    /// locked is free afterwards.
    pub fn end(self, _unit: &mut Unit) {}
}

fn stub() -> Step {
    let sense = Some(Sense::new(key::ILLEGAL_REQUEST, 0x20, 0x00));
    Step::Done(Answer { status: Status::CheckCondition, sense, data: DataIn::Nothing, transfer: 0 })
}

/// The answer to a command for a logical unit that is not there: any but LUN 0. REPORT LUNS is carried out for any.
pub fn wrong_lun(_command: &Command) -> Answer {
    let sense = Some(Sense::new(key::ILLEGAL_REQUEST, 0x25, 0x00));
    Answer { status: Status::CheckCondition, sense, data: DataIn::Nothing, transfer: 0 }
}
