//! Answers to commands: data, status, and how much of either is left over (RFC 7143, 11.4 and 11.7).

use loadline_base::iscsi::{Header, NO_TAG, field, flag, opcode};
use loadline_base::scsi::Status;

use super::sender::{ReadData, Sender};
use crate::scsi::task::{Answer, Command, DataIn};

/// An answer, and what it is sent with.
#[derive(Debug)]
pub(super) struct Reply<'a> {
    /// The tag of the task.
    pub(super) tag: u32,
    pub(super) command: &'a Command,
    pub(super) answer: Answer,
    /// What was read.
    pub(super) read: ReadData<'a>,
    /// How often data was asked for.
    pub(super) requests: u32,
    /// The most bytes of a sequence of data.
    pub(super) burst: u32,
    /// Sense data are sent as descriptors.
    pub(super) sends_descriptors: bool,
}

impl Reply<'_> {
    /// Sends it.
    pub(super) fn send(&self, sender: &mut Sender) {
        let takes = self.command.data_in as usize;
        let bytes = match &self.answer.data {
            DataIn::Nothing => 0,
            DataIn::Bytes(data) => data.len(),
            DataIn::Read { bytes } => *bytes,
        };
        let bytes = bytes.min(takes);
        let is_good = self.answer.status == Status::Good && self.answer.sense.is_none();
        let parts = self.data(sender, bytes, is_good);
        if bytes > 0 && is_good {
            return;
        }
        let mut header = self.header(opcode::SCSI_RESPONSE, flag::FINAL);
        header.0[3] = self.answer.status as u8;
        self.residual(&mut header);
        header.set_u32(field::DATA_NUMBER, self.requests + parts);
        let sense = self.answer.sense.map(|sense| sense.encode(self.sends_descriptors)).unwrap_or_default();
        let mut data = Vec::new();
        if !sense.is_empty() {
            data.extend((sense.len() as u16).to_be_bytes());
            data.extend(sense);
        }
        sender.status(header, &data);
    }

    /// Sends so much data, and the status with the last part if that is good. In how many parts.
    fn data(&self, sender: &mut Sender, bytes: usize, is_good: bool) -> u32 {
        let (mut parts, mut at, mut left_of_burst) = (0, 0, self.burst as usize);
        while at < bytes {
            let some = sender.most.min(left_of_burst).min(bytes - at);
            left_of_burst -= some;
            let is_last = at + some == bytes;
            let mut header = self.header(opcode::DATA_IN, 0);
            header.set_u32(field::TRANSFER_TAG, NO_TAG);
            header.set_u32(field::DATA_NUMBER, parts);
            header.set_u32(field::OFFSET, at as u32);
            if is_last || left_of_burst == 0 {
                header.0[1] |= flag::FINAL;
                left_of_burst = self.burst as usize;
            }
            if is_last && is_good {
                header.0[1] |= flag::STATUS;
                header.0[3] = Status::Good as u8;
                self.residual(&mut header);
            }
            match &self.answer.data {
                DataIn::Bytes(data) => sender.data_in_bytes(header, &data[at..at + some]),
                DataIn::Read { .. } | DataIn::Nothing => sender.data_in(header, self.read, at, some),
            }
            (parts, at) = (parts + 1, at + some);
        }
        parts
    }

    /// States how many bytes were expected and not transferred, or the other way round.
    fn residual(&self, header: &mut Header) {
        let expected = u64::from(self.command.data_out.max(self.command.data_in));
        let (flags, bytes) = match self.answer.transfer {
            some if some < expected => (flag::UNDERFLOW, expected - some),
            some if some > expected => (flag::OVERFLOW, some - expected),
            _ => return,
        };
        header.0[1] |= flags;
        header.set_u32(field::RESIDUAL, u32::try_from(bytes).unwrap_or(u32::MAX));
    }

    fn header(&self, opcode: u8, flags: u8) -> Header {
        let mut header = Header::new(opcode, flags);
        header.set_u32(field::TASK_TAG, self.tag);
        header
    }
}
