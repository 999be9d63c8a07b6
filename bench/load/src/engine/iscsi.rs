//! What an iSCSI initiator says and understands, once it is logged in and knows its logical unit.
//!
//! | part | idea |
//! | --- | --- |
//! | `tasks` | the I/Os: their tags, how far they have come, how they ended |
//! | `sender` | commands, data and answers to pings, as PDUs |
//! | `receiver` | what arrives, cut into PDUs |
//!
//! A read is complete when its last byte is in its slot and the target has said that it is good. A write is good only if the target
//! says so after all its data was sent.

mod receiver;
mod sender;
mod tasks;

use std::collections::VecDeque;
use std::io;
use std::time::Instant;

use loadline_base::iscsi::{Header, NO_TAG, field, flag, opcode};
use nix::libc;

use self::receiver::{Pdu, Receiver};
use self::sender::Sender;
use self::tasks::{Answer, Next, Tasks};
use super::stream::{Missing, Protocol, StreamEngine};
use super::uring::Waiting;
use super::{Io, Kind, Memory};
use crate::iscsi::{Connected, Session, broken, ended_by, has_status, rejected, sense};

/// A logical unit of an iSCSI target.
pub(crate) type IscsiEngine = StreamEngine<IscsiProtocol>;

pub(crate) struct IscsiProtocol {
    tasks: Tasks,
    sender: Sender,
    receiver: Receiver,
    /// The most bytes that the target may ask for at once.
    burst: u32,
    /// The unit makes writes durable by an order only.
    flushes: bool,
}

impl IscsiEngine {
    /// An engine for `slots` I/Os in this session. `through`: writes are durable when they are answered.
    pub(crate) fn new(
        connected: Connected,
        memory: Memory,
        slots: usize,
        through: bool,
        waiting: Waiting,
    ) -> io::Result<IscsiEngine> {
        let Connected { socket, session } = connected;
        StreamEngine::over(socket, IscsiProtocol::new(&session, slots, through), memory, waiting)
    }
}

impl IscsiProtocol {
    fn new(session: &Session, slots: usize, through: bool) -> IscsiProtocol {
        IscsiProtocol {
            tasks: Tasks::new(slots),
            sender: Sender::new(session, through && session.unit.asks_durable(), slots),
            receiver: Receiver::new(&session.parameters),
            burst: session.parameters.burst,
            flushes: session.unit.has_cache,
        }
    }

    fn pdu(&mut self, pdu: &Pdu<'_>) -> io::Result<()> {
        let (header, data) = match pdu {
            Pdu::Data { header, .. } => (header, &[][..]),
            Pdu::Other { header, data } => (header, *data),
        };
        self.sender.numbers.learn(header, has_status(header));
        if let Pdu::Data { slot, bytes, .. } = *pdu {
            self.tasks.task(slot).moved += bytes;
        }
        match header.opcode() {
            opcode::DATA_IN => {
                let slot = self.sent(header)?;
                if header.has(flag::STATUS) {
                    self.answered(slot, &Answer::of(header, 0, None));
                }
                Ok(())
            }
            opcode::SCSI_RESPONSE => {
                let slot = self.sent(header)?;
                self.answered(slot, &Answer::of(header, header.0[2], sense(data)));
                Ok(())
            }
            opcode::R2T => self.asked(header),
            opcode::NOP_IN if header.task_tag() == NO_TAG => {
                let transfer = header.u32(field::TRANSFER_TAG);
                if transfer != NO_TAG && !self.sender.answer_ping(transfer, header.lun()) {
                    return Err(broken("sends one ping after the other, and reads no answer"));
                }
                Ok(())
            }
            opcode::ASYNC => ended_by(header).map_or(Ok(()), Err),
            opcode::REJECT => Err(rejected(header)),
            _ => Err(broken("sent something that is no answer to a request")),
        }
    }

    /// The slot whose command this belongs to.
    fn sent(&self, header: &Header) -> io::Result<u32> {
        let slot = self.tasks.of_tag(header.task_tag());
        slot.ok_or_else(|| broken("answered a request that was not sent"))
    }

    fn answered(&mut self, slot: u32, answer: &Answer) {
        match self.tasks.answered(slot, answer) {
            Next::Done => {}
            Next::Again => self.sender.send(slot),
            Next::Later => self.sender.send_later(slot),
        }
    }

    /// The target asks for data of a write.
    fn asked(&mut self, header: &Header) -> io::Result<()> {
        let slot = self.sent(header)?;
        let task = self.tasks.task(slot);
        let (transfer, at) = (header.u32(field::TRANSFER_TAG), header.u32(field::OFFSET));
        let bytes = header.u32(field::DESIRED_LENGTH);
        // Data are asked for in their order, one part at a time: so it was agreed on.
        let is_next = task.kind == Kind::Write && at == task.asked && !task.is_asked;
        let end = at.checked_add(bytes).filter(|end| *end <= task.length);
        let fits = is_next && transfer != NO_TAG && bytes > 0 && bytes <= self.burst;
        let Some(end) = end.filter(|_| fits) else {
            return Err(broken("asked for data that it may not ask for"));
        };
        (task.asked, task.is_asked) = (end, true);
        self.sender.send_data(header.task_tag(), transfer, at, end);
        Ok(())
    }
}

// SAFETY: slices refer to slots and to the frames of the sender, whose vector never grows.
unsafe impl Protocol for IscsiProtocol {
    const SERVER: &'static str = "iSCSI target";

    fn push(&mut self, io: Io, _memory: &Memory) {
        self.tasks.begin(io);
        if io.kind == Kind::Flush && !self.flushes {
            self.tasks.complete(io.slot, 0);
            return;
        }
        self.sender.send(io.slot);
    }

    fn queued(&self) -> usize {
        self.sender.queued()
    }

    fn gather(&mut self, memory: &mut Memory, slices: &mut Vec<libc::iovec>) {
        self.sender.gather(&mut self.tasks, memory, slices);
    }

    fn due(&self) -> Option<Instant> {
        self.sender.due()
    }

    fn expects(&self) -> bool {
        // A target pings whenever it likes.
        true
    }

    fn missing(&self) -> Option<Missing> {
        self.receiver.missing()
    }

    fn filled(&mut self, memory: &mut Memory, bytes: usize) -> io::Result<()> {
        self.receiver.filled(bytes);
        // Without padding and digest nothing more belongs to it.
        self.take(memory, &[]).map(drop)
    }

    fn take(&mut self, memory: &mut Memory, received: &[u8]) -> io::Result<usize> {
        let mut rest = received;
        while let Some(pdu) = self.receiver.next(&mut self.tasks, memory, &mut rest)? {
            self.pdu(&pdu)?;
        }
        Ok(received.len() - rest.len())
    }

    fn in_flight(&self) -> usize {
        self.tasks.in_flight()
    }

    fn done(&mut self) -> &mut VecDeque<(u32, i32)> {
        &mut self.tasks.done
    }

    fn good_bye(&mut self) -> Option<Vec<u8>> {
        self.sender.logout()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iscsi::{Numbers, Parameters, Unit};
    use loadline_base::iscsi::HEADER;
    use rand_core::{Rng, SeedableRng};
    use rand_xoshiro::Xoshiro256PlusPlus;

    const BLOCK: usize = 8192;
    const SLOTS: usize = 4;

    fn protocol(digest: bool) -> (IscsiProtocol, Memory) {
        let parameters =
            Parameters { header_digest: digest, data_digest: digest, segment: 512, ..Parameters::DEFAULT };
        let numbers = Numbers { next: u32::MAX, last: 1000, status: 3 };
        let session = Session { numbers, parameters, lun: [0; 8], unit: Unit::of_bytes(1 << 20) };
        (IscsiProtocol::new(&session, SLOTS, true), Memory::new(BLOCK, SLOTS, true, true).unwrap())
    }

    /// Begins I/Os in free slots, and has sent what is to be sent. Returns how many bytes that is.
    fn go_on(
        protocol: &mut IscsiProtocol,
        memory: &mut Memory,
        free: &mut Vec<u32>,
        rng: &mut Xoshiro256PlusPlus,
    ) -> usize {
        for slot in free.drain(..) {
            let kind = [Kind::Read, Kind::Write, Kind::Flush][rng.next_u32() as usize % 3];
            let length = if kind == Kind::Flush { 0 } else { BLOCK as u32 };
            protocol.push(Io { slot, kind, offset: 4096, length }, memory);
        }
        let mut slices = Vec::new();
        protocol.gather(memory, &mut slices);
        slices.iter().map(|slice| slice.iov_len).sum()
    }

    #[test]
    fn whatever_a_target_sends_nothing_panics_and_no_slot_completes_twice() {
        let seed = std::env::var("LOADLINE_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| loadline_base::clock::Nanos::now().0);
        println!("LOADLINE_SEED={seed}");
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        for _ in 0..3000 {
            let (mut protocol, mut memory) = protocol(rng.next_u32().is_multiple_of(4));
            let mut free: Vec<u32> = (0..SLOTS as u32).collect();
            let mut received = Vec::new();
            for _ in 0..40 {
                go_on(&mut protocol, &mut memory, &mut free, &mut rng);
                received.extend(something(&protocol, &mut rng));
                let Ok(taken) = protocol.take(&mut memory, &received) else { break };
                received.drain(..taken);
                assert!(received.len() < 64 << 10, "what is left fits into the stage");
                assert!(protocol.missing().is_none() || received.is_empty());
                while let Some((slot, _)) = protocol.done().pop_front() {
                    assert!(!free.contains(&slot));
                    free.push(slot);
                }
                assert_eq!(protocol.in_flight() + free.len(), SLOTS);
            }
        }
    }

    /// A PDU that may be right, or wrong anywhere.
    fn something(protocol: &IscsiProtocol, rng: &mut Xoshiro256PlusPlus) -> Vec<u8> {
        let codes = [opcode::DATA_IN, opcode::DATA_IN, opcode::SCSI_RESPONSE, opcode::R2T, opcode::NOP_IN];
        let mut header =
            Header::new(codes[rng.next_u32() as usize % codes.len()], flag::FINAL | rng.next_u32() as u8 & 7);
        let slot = rng.next_u32() % SLOTS as u32;
        header.set_u32(
            field::TASK_TAG,
            if header.opcode() == opcode::NOP_IN { NO_TAG } else { protocol.tasks.tag(slot) },
        );
        header.0[3] = [0, 0, 0, 2, 8][rng.next_u32() as usize % 5];
        header.set_u32(field::OFFSET, [0, 0, 4096, 512, rng.next_u32()][rng.next_u32() as usize % 5]);
        header.set_u32(field::DESIRED_LENGTH, [512, 4096, rng.next_u32()][rng.next_u32() as usize % 3]);
        let bytes =
            if header.opcode() == opcode::DATA_IN { [4096, 8192, 3][rng.next_u32() as usize % 3] } else { 0 };
        header.set_data_bytes(bytes);
        if rng.next_u32().is_multiple_of(8) {
            header.0[rng.next_u32() as usize % HEADER] = rng.next_u32() as u8;
        }
        let mut all = header.0.to_vec();
        all.resize(HEADER + bytes, rng.next_u32() as u8);
        if rng.next_u32().is_multiple_of(4) {
            // In parts, as a network has them.
            all.truncate(rng.next_u32() as usize % all.len());
        }
        all
    }

    #[test]
    fn a_write_is_sent_in_parts_as_a_target_takes_them() {
        let (mut protocol, mut memory) = protocol(true);
        protocol.push(Io { slot: 1, kind: Kind::Write, offset: 4096, length: BLOCK as u32 }, &memory);
        let mut slices = Vec::new();
        protocol.gather(&mut memory, &mut slices);
        // A header with its digest, 512 bytes, and their digest: the target asks for all else.
        assert_eq!(slices.iter().map(|slice| slice.iov_len).collect::<Vec<_>>(), [52, 512, 4]);
        let tag = protocol.tasks.tag(1);
        let mut asked = Header::new(opcode::R2T, flag::FINAL);
        asked.set_u32(field::TASK_TAG, tag);
        asked.set_u32(field::OFFSET, 512);
        asked.set_u32(field::DESIRED_LENGTH, 514);
        protocol.asked(&asked).unwrap();
        protocol.asked(&asked).unwrap_err();
        slices.clear();
        protocol.gather(&mut memory, &mut slices);
        // The last two bytes have two of padding.
        assert_eq!(slices.iter().map(|slice| slice.iov_len).collect::<Vec<_>>(), [52, 512, 4, 52, 2, 6]);
        assert_eq!(protocol.tasks.task(1).moved, 1026);
    }
}
