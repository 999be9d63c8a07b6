//! The I/Os of an engine as tasks of a session: which tag each one has, how far it has come, and how it ended.

use std::collections::VecDeque;

use loadline_base::iscsi::{Header, field, flag};
use loadline_base::scsi::{Sense, Status, key};
use nix::libc;

use crate::engine::{Io, Kind};

/// The most unit attentions for which one I/O is sent again.
const MOST_ATTENTIONS: u32 = 16;

/// How far an I/O has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// The slot has none.
    Free,
    /// Its command waits to be sent.
    Waits,
    /// Its command was handed to the kernel.
    Sent,
}

/// One I/O.
#[derive(Debug, Clone, Copy)]
pub(super) struct Task {
    pub(super) kind: Kind,
    pub(super) offset: u64,
    /// Bytes that it moves.
    pub(super) length: u32,
    pub(super) state: State,
    /// How often the slot was used: an answer that comes twice, or late, is told from the next one.
    turn: u32,
    /// Bytes of a read that were received, or of a write that were handed to the kernel, from the first one on.
    pub(super) moved: u32,
    /// Bytes of a write that the target has asked for, or lets be sent without that, from the first one on.
    pub(super) asked: u32,
    /// The target has asked for bytes that were not handed to the kernel yet.
    pub(super) is_asked: bool,
    attentions: u32,
}

/// How a target ended a command.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answer {
    /// Whether the target could carry it out at all: 0 if so.
    pub(super) response: u8,
    pub(super) status: u8,
    pub(super) sense: Option<Sense>,
    /// Bytes that were not moved.
    underflow: u32,
    /// There was more to be moved.
    overflow: bool,
}

impl Answer {
    /// What a response says, or the last data of a read.
    pub(super) fn of(header: &Header, response: u8, sense: Option<Sense>) -> Answer {
        let underflow = if header.has(flag::UNDERFLOW) { header.u32(field::RESIDUAL) } else { 0 };
        Answer { response, status: header.0[3], sense, underflow, overflow: header.has(flag::OVERFLOW) }
    }
}

/// What follows from an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// The I/O has completed.
    Done,
    /// It was not carried out: it is to be sent again, at once.
    Again,
    /// The target has too much to do: it is to be sent again a little later.
    Later,
}

/// The I/Os of all slots.
pub(super) struct Tasks {
    tasks: Vec<Task>,
    /// How many bits of a tag are the slot; the others, but for the highest, are its turn.
    bits: u32,
    in_flight: usize,
    pub(super) done: VecDeque<(u32, i32)>,
}

impl Tasks {
    /// Tasks of so many slots.
    pub(super) fn new(slots: usize) -> Tasks {
        let free = Task {
            kind: Kind::Read,
            offset: 0,
            length: 0,
            state: State::Free,
            turn: 0,
            moved: 0,
            asked: 0,
            is_asked: false,
            attentions: 0,
        };
        let bits = usize::BITS - slots.leading_zeros();
        assert!(bits < 24, "{slots} slots leave too few bits of a tag");
        Tasks { tasks: vec![free; slots], bits, in_flight: 0, done: VecDeque::with_capacity(slots) }
    }

    /// I/Os that have not completed.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Begins an I/O in a free slot. Its command is to be sent.
    pub(super) fn begin(&mut self, io: Io) {
        let task = &mut self.tasks[io.slot as usize];
        assert_eq!(task.state, State::Free, "a slot has one I/O at a time");
        (task.kind, task.offset, task.length, task.attentions) = (io.kind, io.offset, io.length, 0);
        self.in_flight += 1;
        self.renew(io.slot);
    }

    /// Puts an I/O before its first byte, under another tag.
    fn renew(&mut self, slot: u32) {
        let task = &mut self.tasks[slot as usize];
        (task.state, task.moved, task.asked, task.is_asked) = (State::Waits, 0, 0, false);
        task.turn = task.turn.wrapping_add(1);
    }

    pub(super) fn task(&mut self, slot: u32) -> &mut Task {
        &mut self.tasks[slot as usize]
    }

    /// The tag of a slot's command. It is never `NO_TAG`.
    pub(super) fn tag(&self, slot: u32) -> u32 {
        let turns = (1 << (31 - self.bits)) - 1;
        (self.tasks[slot as usize].turn & turns) << self.bits | slot
    }

    /// The slot whose command was sent with this tag, and has not been answered.
    pub(super) fn of_tag(&self, tag: u32) -> Option<u32> {
        let slot = tag & ((1 << self.bits) - 1);
        let task = self.tasks.get(slot as usize)?;
        (task.state == State::Sent && self.tag(slot) == tag).then_some(slot)
    }

    /// The command of a slot was answered.
    pub(super) fn answered(&mut self, slot: u32, answer: &Answer) -> Next {
        let task = &mut self.tasks[slot as usize];
        let result = match Status::of_number(answer.status) {
            _ if answer.response != 0 => -libc::EIO,
            Some(Status::Good) if answer.overflow => -libc::EIO,
            Some(Status::Good) => task.moved.min(task.length.saturating_sub(answer.underflow)) as i32,
            Some(Status::Busy | Status::TaskSetFull) => {
                self.renew(slot);
                return Next::Later;
            }
            Some(Status::CheckCondition) => match answer.sense {
                Some(Sense { key: key::UNIT_ATTENTION, .. }) if task.attentions < MOST_ATTENTIONS => {
                    task.attentions += 1;
                    self.renew(slot);
                    return Next::Again;
                }
                sense => -sense.map_or(libc::EIO, |sense| errno(&sense)),
            },
            Some(Status::ReservationConflict) => -libc::EBUSY,
            Some(Status::TaskAborted) => -libc::ECANCELED,
            None => -libc::EIO,
        };
        self.complete(slot, result);
        Next::Done
    }

    /// An I/O has completed, with so many bytes or `-errno`.
    pub(super) fn complete(&mut self, slot: u32, result: i32) {
        self.tasks[slot as usize].state = State::Free;
        self.in_flight -= 1;
        self.done.push_back((slot, result));
    }
}

/// The number of Linux for what sense data say.
fn errno(sense: &Sense) -> i32 {
    match (sense.key, sense.code) {
        (_, (0x27, 0x07)) => libc::ENOSPC,
        (key::DATA_PROTECT, _) => libc::EROFS,
        (key::NOT_READY, _) => libc::EAGAIN,
        (key::ILLEGAL_REQUEST, (0x20, 0x00)) => libc::EOPNOTSUPP,
        (key::ILLEGAL_REQUEST, (0x25, _)) => libc::ENODEV,
        (key::ILLEGAL_REQUEST, _) => libc::EINVAL,
        (key::ABORTED_COMMAND, _) => libc::ECANCELED,
        _ => libc::EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Answer = Answer { response: 0, status: 0, sense: None, underflow: 0, overflow: false };

    fn sent(length: u32, moved: u32) -> Tasks {
        let mut tasks = Tasks::new(4);
        tasks.begin(Io { slot: 3, kind: Kind::Write, offset: 0, length });
        (tasks.task(3).state, tasks.task(3).moved) = (State::Sent, moved);
        tasks
    }

    #[test]
    fn a_write_is_as_long_as_what_was_sent_and_not_given_back() {
        for (moved, underflow, result) in
            [(4096, 0, 4096), (4096, 512, 3584), (512, 0, 512), (0, u32::MAX, 0)]
        {
            let mut tasks = sent(4096, moved);
            assert_eq!(tasks.answered(3, &Answer { underflow, ..GOOD }), Next::Done);
            assert_eq!((tasks.done.pop_front(), tasks.in_flight()), (Some((3, result)), 0));
        }
    }

    #[test]
    fn what_a_target_did_not_do_yet_is_sent_again_under_another_tag() {
        let mut tasks = sent(4096, 4096);
        let tag = tasks.tag(3);
        assert_eq!(tasks.of_tag(tag), Some(3));
        assert_eq!(tasks.answered(3, &Answer { status: 0x28, ..GOOD }), Next::Later);
        assert!(tasks.tag(3) != tag && tasks.of_tag(tag).is_none());
        assert_eq!(tasks.of_tag(tasks.tag(3)), None, "it was not sent, so that it cannot be answered");
        let attention = Answer { status: 2, sense: Some(Sense::new(6, 0x29, 0)), ..GOOD };
        for _ in 0..MOST_ATTENTIONS {
            assert_eq!(tasks.answered(3, &attention), Next::Again);
        }
        assert_eq!(tasks.answered(3, &attention), Next::Done, "it does not go on for ever");
        assert_eq!(tasks.done, [(3, -libc::EIO)]);
    }

    #[test]
    fn errors_have_the_number_that_says_most() {
        for (answer, errno) in [
            (Answer { response: 1, ..GOOD }, libc::EIO),
            (Answer { overflow: true, ..GOOD }, libc::EIO),
            (Answer { status: 0x77, ..GOOD }, libc::EIO),
            (Answer { status: 2, ..GOOD }, libc::EIO),
            (Answer { status: 0x18, ..GOOD }, libc::EBUSY),
            (Answer { status: 2, sense: Some(Sense::new(7, 0x27, 0)), ..GOOD }, libc::EROFS),
            (Answer { status: 2, sense: Some(Sense::new(7, 0x27, 7)), ..GOOD }, libc::ENOSPC),
        ] {
            let mut tasks = sent(4096, 4096);
            assert_eq!(tasks.answered(3, &answer), Next::Done);
            assert_eq!(tasks.done, [(3, -errno)], "{answer:?}");
        }
    }

    #[test]
    fn tags_are_never_the_one_of_no_task() {
        for slots in [1, 2, 255, 256, 65_536] {
            let mut tasks = Tasks::new(slots);
            let last = slots as u32 - 1;
            tasks.task(last).turn = u32::MAX;
            tasks.task(last).state = State::Sent;
            assert!(tasks.tag(last) < 1 << 31);
            assert_eq!(tasks.of_tag(tasks.tag(last)), Some(last));
            assert_eq!(tasks.of_tag(u32::MAX), None);
        }
    }
}
