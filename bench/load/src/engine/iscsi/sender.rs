//! What an engine sends: commands, data and answers to pings, each in its PDU.
//!
//! A PDU has a frame for its header, its digests and its padding. The frames are made once; those in use belong to what the kernel
//! sends, and are used again for what is gathered next. Data is sent from where it lies.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use loadline_base::iscsi::{HEADER, Header, NO_TAG, digest, field, flag, opcode, padding};
use loadline_base::scsi::operation;
use nix::libc;

use super::tasks::{State, Tasks};
use crate::engine::stream::SLICES;
use crate::engine::{Kind, Memory};
use crate::iscsi::{Numbers, Parameters, Session, command, logout, pong};

/// PDUs that are sent at once, at most.
const FRAMES: usize = 256;
/// Slices of one PDU at most: what is before its data, its data, what is behind it.
const SLICES_OF_ONE: usize = 3;
/// The most pings that are answered at once.
const MOST_PINGS: usize = 16;
/// How soon a command is sent again of which the target says that it has too much to do.
const RETRY_AFTER: Duration = Duration::from_millis(1);
/// Makes a write durable before it is answered: of byte 1 of its command.
const FORCE_UNIT_ACCESS: u8 = 0x08;

/// What of a PDU is not data.
#[derive(Debug, Clone, Copy)]
struct Frame {
    head: [u8; HEADER + 4],
    tail: [u8; 3 + 4],
}

/// Data of a write that are to be sent.
#[derive(Debug, Clone, Copy)]
struct DataOut {
    /// Of the command.
    tag: u32,
    /// The target's, or [`NO_TAG`] of what it has not asked for.
    transfer: u32,
    at: u32,
    end: u32,
    /// Of the next PDU.
    number: u32,
}

pub(super) struct Sender {
    pub(super) numbers: Numbers,
    parameters: Parameters,
    lun: [u8; 8],
    /// Bytes of a block of the unit.
    block: u32,
    /// Writes are durable when they are answered.
    durable: bool,
    /// Slots whose commands are to be sent.
    commands: VecDeque<u32>,
    data: VecDeque<DataOut>,
    pings: VecDeque<(u32, [u8; 8])>,
    /// Slots whose commands are to be sent later, and when.
    later: Vec<u32>,
    later_at: Instant,
    /// It never grows: the kernel reads from it.
    frames: Vec<Frame>,
    /// How many frames what is gathered uses.
    used: usize,
}

impl Sender {
    /// A sender in this session. `durable`: writes ask for being durable before they are answered.
    pub(super) fn new(session: &Session, durable: bool, slots: usize) -> Sender {
        let Session { numbers, parameters, lun, unit } = *session;
        let frame = Frame { head: [0; HEADER + 4], tail: [0; 3 + 4] };
        Sender {
            numbers,
            parameters,
            lun,
            block: unit.block,
            durable,
            commands: VecDeque::with_capacity(slots),
            // What is sent without being asked for, and what was asked for first.
            data: VecDeque::with_capacity(2 * slots),
            pings: VecDeque::with_capacity(MOST_PINGS),
            later: Vec::with_capacity(slots),
            later_at: Instant::now(),
            frames: vec![frame; FRAMES],
            used: 0,
        }
    }

    /// Has the command of a slot sent.
    pub(super) fn send(&mut self, slot: u32) {
        self.commands.push_back(slot);
    }

    /// Has the command of a slot sent a little later.
    pub(super) fn send_later(&mut self, slot: u32) {
        self.later.push(slot);
        self.later_at = Instant::now() + RETRY_AFTER;
    }

    /// When commands are to be sent that wait for their time.
    pub(super) fn due(&self) -> Option<Instant> {
        (!self.later.is_empty()).then_some(self.later_at)
    }

    /// Has this part of a write's data sent, which the target has asked for.
    pub(super) fn send_data(&mut self, tag: u32, transfer: u32, at: u32, end: u32) {
        self.data.push_back(DataOut { tag, transfer, at, end, number: 0 });
    }

    /// Has a ping answered. `false` if too many wait for that already.
    pub(super) fn answer_ping(&mut self, transfer: u32, lun: [u8; 8]) -> bool {
        let has_room = self.pings.len() < MOST_PINGS;
        if has_room {
            self.pings.push_back((transfer, lun));
        }
        has_room
    }

    /// How many slices wait to be sent, about.
    pub(super) fn queued(&self) -> usize {
        2 * (self.commands.len() + self.data.len()) + self.pings.len()
    }

    /// The PDU that ends the session; `None` if data would be missing before it.
    pub(super) fn logout(&self) -> Option<Vec<u8>> {
        self.data.is_empty().then(|| logout(&self.numbers, self.parameters.header_digest))
    }

    /// Adds what is to be sent next. All frames are free for it.
    pub(super) fn gather(&mut self, tasks: &mut Tasks, memory: &mut Memory, slices: &mut Vec<libc::iovec>) {
        if !self.later.is_empty() && Instant::now() >= self.later_at {
            self.commands.extend(self.later.drain(..));
        }
        self.used = 0;
        while self.used < FRAMES && slices.len() + SLICES_OF_ONE <= SLICES {
            if let Some((transfer, lun)) = self.pings.pop_front() {
                let header = pong(transfer, lun, &self.numbers);
                self.frame(header, &[], slices);
            } else if let Some(data) = self.data.pop_front() {
                self.gather_data(data, tasks, memory, slices);
            } else if let Some(slot) = self.commands.front().copied().filter(|_| self.numbers.has_room()) {
                self.commands.pop_front();
                self.gather_command(slot, tasks, memory, slices);
            } else {
                break;
            }
        }
    }

    /// The most bytes of data in one PDU. A multiple of four: only what ends where a target wants it to has padding.
    fn segment(&self) -> u32 {
        self.parameters.segment & !3
    }

    fn gather_command(
        &mut self,
        slot: u32,
        tasks: &mut Tasks,
        memory: &mut Memory,
        slices: &mut Vec<libc::iovec>,
    ) {
        let tag = tasks.tag(slot);
        let task = tasks.task(slot);
        task.state = State::Sent;
        let length = task.length;
        let mut cdb = [0; 16];
        if task.kind != Kind::Flush {
            cdb[2..10].copy_from_slice(&(task.offset / u64::from(self.block)).to_be_bytes());
            cdb[10..14].copy_from_slice(&(length / self.block).to_be_bytes());
        }
        let (code, mut flags) = match task.kind {
            Kind::Read => (operation::READ_16, flag::FINAL | flag::READ),
            Kind::Write => (operation::WRITE_16, flag::FINAL | flag::WRITE),
            // Of no blocks from the first one on: all that the unit has.
            Kind::Flush => (operation::SYNCHRONIZE_CACHE_16, flag::FINAL),
        };
        cdb[0] = code;
        let mut immediate = 0;
        if task.kind == Kind::Write {
            if self.durable {
                cdb[1] |= FORCE_UNIT_ACCESS;
            }
            let Parameters { asks_first, first_burst, .. } = self.parameters;
            if self.parameters.immediate {
                immediate = length.min(first_burst).min(self.segment());
            }
            let unasked = if asks_first { immediate } else { length.min(first_burst) };
            (task.moved, task.asked) = (immediate, unasked);
            if unasked > immediate {
                flags &= !flag::FINAL;
                self.data.push_back(DataOut {
                    tag,
                    transfer: NO_TAG,
                    at: immediate,
                    end: unasked,
                    number: 0,
                });
            }
        }
        let mut header = command(flags, self.lun, tag, length, cdb);
        header.set_u32(field::COMMAND_NUMBER, self.numbers.next);
        header.set_u32(field::EXPECTED_STATUS_NUMBER, self.numbers.status);
        self.numbers.next = self.numbers.next.wrapping_add(1);
        let data: &[u8] = match immediate {
            0 => &[],
            some => &memory.slot(slot, Kind::Write)[..some as usize],
        };
        self.frame(header, data, slices);
    }

    fn gather_data(
        &mut self,
        mut data: DataOut,
        tasks: &mut Tasks,
        memory: &mut Memory,
        slices: &mut Vec<libc::iovec>,
    ) {
        // A command that was answered meanwhile takes no more data.
        let Some(slot) = tasks.of_tag(data.tag) else { return };
        let part = (data.end - data.at).min(self.segment());
        let is_last = data.at + part == data.end;
        let mut header = Header::new(opcode::DATA_OUT, if is_last { flag::FINAL } else { 0 });
        header.0[8..16].copy_from_slice(&self.lun);
        header.set_u32(field::TASK_TAG, data.tag);
        header.set_u32(field::TRANSFER_TAG, data.transfer);
        header.set_u32(field::EXPECTED_STATUS_NUMBER, self.numbers.status);
        header.set_u32(field::DATA_NUMBER, data.number);
        header.set_u32(field::OFFSET, data.at);
        let bytes = &memory.slot(slot, Kind::Write)[data.at as usize..(data.at + part) as usize];
        self.frame(header, bytes, slices);
        let task = tasks.task(slot);
        task.moved += part;
        if !is_last {
            (data.at, data.number) = (data.at + part, data.number + 1);
            self.data.push_front(data);
        } else if data.transfer != NO_TAG {
            task.is_asked = false;
        }
    }

    /// Adds a PDU with this data, which stays where it is until it was sent.
    fn frame(&mut self, mut header: Header, data: &[u8], slices: &mut Vec<libc::iovec>) {
        header.set_data_bytes(data.len());
        let frame = &mut self.frames[self.used];
        self.used += 1;
        frame.head[..HEADER].copy_from_slice(&header.0);
        let mut head = HEADER;
        if self.parameters.header_digest {
            frame.head[HEADER..].copy_from_slice(&digest(&header.0));
            head += 4;
        }
        slices.push(libc::iovec { iov_base: frame.head.as_mut_ptr().cast(), iov_len: head });
        if data.is_empty() {
            return;
        }
        slices.push(libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() });
        let mut tail = padding(data.len());
        frame.tail = [0; 3 + 4];
        if self.parameters.data_digest {
            frame.tail[tail..tail + 4].copy_from_slice(&digest(data));
            tail += 4;
        }
        if tail > 0 {
            slices.push(libc::iovec { iov_base: frame.tail.as_mut_ptr().cast(), iov_len: tail });
        }
    }
}
