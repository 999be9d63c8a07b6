//! A command of a session: what came with it, how far it is, and how long it has waited.

use std::time::Duration;

use loadline_base::iscsi::{attribute, field, flag};
use loadline_san_core::map::Map;

use super::liveness::{LONGEST, UNBEGUN};
use super::parameters::Parameters;
use super::reader::Pdu;
use super::transfer::Transfer;
use crate::scsi::task::{Answer, Command, Fill, LONGEST_CHANGE, Task, wrong_lun};

/// How far a command is.
#[derive(Debug)]
pub(super) enum State {
    /// It has not begun.
    Waits,
    /// It needs data of the initiator.
    Needs(Task),
    /// The volume carries something out, or the configuration is changed.
    AtWork(Task),
    /// Another task is in its way.
    Blocked(Task),
    /// It is over. The answer is sent when the initiator has sent what it has begun to send.
    Over(Answer),
}

/// A command.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) tag: u32,
    pub(super) command: Command,
    pub(super) is_ordered: bool,
    pub(super) transfer: Transfer,
    pub(super) state: State,
    /// It is not answered.
    pub(super) is_ended: bool,
    /// How long it has waited for anything but the initiator: until now, and until its step began that is under way.
    waited: Duration,
    waited_before: Duration,
    /// What the last read gave, and its first sector.
    pub(super) fills: Vec<Fill>,
    pub(super) sector: u64,
    pub(super) map: Option<Map>,
    /// Bytes that it is counted with, and whether it is counted among those with data to come.
    pub(super) counted: (usize, bool),
}

/// The command of a PDU.
pub(super) fn command_of(pdu: &Pdu, ticket: u32) -> Command {
    let header = pdu.header;
    let length = header.u32(field::EXPECTED_LENGTH);
    Command {
        cdb: header.cdb(),
        data_out: if header.has(flag::WRITE) { length } else { 0 },
        data_in: if header.has(flag::READ) && !header.has(flag::WRITE) { length } else { 0 },
        ticket,
    }
}

impl Slot {
    /// Of a command that has just come, and may have waited so long before. If it is of another LUN, it is over.
    pub(super) fn new(pdu: Pdu, ticket: u32, parameters: &Parameters, waited: Duration) -> Slot {
        let (header, command) = (pdu.header, command_of(&pdu, ticket));
        Slot {
            tag: header.task_tag(),
            command,
            is_ordered: header.flags() & attribute::MASK == attribute::ORDERED,
            transfer: Transfer::new(pdu, parameters),
            state: if header.lun() == [0; 8] { State::Waits } else { State::Over(wrong_lun(&command)) },
            is_ended: false,
            waited,
            waited_before: Duration::ZERO,
            fills: Vec::new(),
            sector: 0,
            map: None,
            counted: (0, false),
        }
    }

    /// Bytes that the command may take once it has begun.
    pub(super) fn cost(&self, most: u32) -> usize {
        (self.command.data_in.max(self.command.data_out).min(most) as usize).max(self.transfer.bytes())
    }

    /// Time passes. `is_held_up`: the initiator keeps the session from going on. Returns how long the command has waited for anything but
    /// the initiator.
    pub(super) fn pass(&mut self, passed: Duration, is_held_up: bool) -> Duration {
        let awaits_initiator = match self.state {
            State::Needs(_) | State::Over(_) => true,
            State::Waits => is_held_up,
            State::AtWork(_) | State::Blocked(_) => false,
        };
        self.waited = if awaits_initiator { Duration::ZERO } else { self.waited + passed };
        self.waited
    }

    /// A step of it is to begin. Whether it still may: it has not waited for too long.
    pub(super) fn begin_step(&mut self) -> bool {
        self.waited_before = self.waited;
        self.waited < UNBEGUN
    }

    /// The configuration is to be changed for it. Whether there is time for that.
    pub(super) fn may_change(&self) -> bool {
        self.waited + LONGEST_CHANGE <= LONGEST
    }

    /// How long its step may wait until it begins.
    pub(super) fn longest_wait(&self) -> Duration {
        UNBEGUN.saturating_sub(self.waited_before)
    }
}
