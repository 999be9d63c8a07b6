//! Data that the initiator sends for a command: with it, behind it, and when it is asked for.
//!
//! ```text
//!  command ─▶ immediate data ─▶ unsolicited data, to its final PDU ─▶ asked for: one sequence after the other
//!             └──── together at most the first burst ────┘           └─ each at most a burst ─┘
//! ```
//!
//! Data comes in its order, so what is there is always a first part of all. What is wrong with it fails the command; its answer waits until
//! what the initiator has begun to send is over (RFC 7143, 7.8).

use std::collections::VecDeque;

use loadline_base::iscsi::{NO_TAG, field, flag};
use loadline_base::scsi::{Sense, key};
use loadline_san_device::pool::{BLOCK_BYTES, BlocksMut, Pool};

use super::error::SessionError;
use super::parameters::Parameters;
use super::reader::Pdu;

/// Data that was not asked for.
const UNEXPECTED: Sense = Sense::new(key::ABORTED_COMMAND, 0x0c, 0x0c);
/// More or less data than there should be, or at another place.
const AMOUNT: Sense = Sense::new(key::ABORTED_COMMAND, 0x0c, 0x0d);
/// Data that is not as its digest says.
pub(super) const DIGEST: Sense = Sense::new(key::ABORTED_COMMAND, 0x47, 0x05);

/// Data that was asked for.
#[derive(Debug)]
struct Sequence {
    tag: u32,
    /// The byte behind its last.
    end: u32,
    /// The number of its next PDU.
    number: u32,
}

/// A request for data: R2T.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wanted {
    /// The number of the request within the command.
    pub(super) number: u32,
    /// Where the data begins.
    pub(super) offset: u32,
    /// Its bytes.
    pub(super) bytes: u32,
}

/// The data of a command.
#[derive(Debug, Default)]
pub(super) struct Transfer {
    /// Bytes that have come.
    received: u32,
    /// The command needs so many; 0 as long as that is not known.
    wanted: usize,
    data: Option<BlocksMut>,
    /// The number of the next PDU of unsolicited data, if there are more.
    unsolicited: Option<u32>,
    /// The most bytes that come unsolicited.
    first: u32,
    /// What was asked for and is not all there.
    sequences: VecDeque<Sequence>,
    /// Bytes up to which data was asked for.
    requested: u32,
    /// How often it was asked for.
    requests: u32,
    failed: Option<Sense>,
}

/// Bytes of data that a command brings with it, or may bring without being asked.
pub(super) fn announced_by(command: &Pdu, parameters: &Parameters) -> usize {
    let header = &command.header;
    let more = match header.has(flag::WRITE) && !header.has(flag::FINAL) {
        true => parameters.first_burst.min(header.u32(field::EXPECTED_LENGTH)) as usize,
        false => 0,
    };
    more.max(header.data_bytes())
}

impl Transfer {
    /// Of a command that has just come, with what comes with it.
    pub(super) fn new(pdu: Pdu, parameters: &Parameters) -> Transfer {
        let (header, bytes) = (pdu.header, pdu.header.data_bytes() as u32);
        let expected = if header.has(flag::WRITE) { header.u32(field::EXPECTED_LENGTH) } else { 0 };
        let has_more = header.has(flag::WRITE) && !header.has(flag::FINAL);
        let mut transfer = Transfer {
            unsolicited: has_more.then_some(0),
            first: parameters.first_burst.min(expected),
            ..Transfer::default()
        };
        if !pdu.is_intact {
            transfer.fail(DIGEST);
        } else if bytes > 0 && !parameters.immediate_data || has_more && parameters.initial_r2t {
            transfer.fail(UNEXPECTED);
        } else if bytes > transfer.first {
            transfer.fail(AMOUNT);
        } else {
            (transfer.received, transfer.data) = (bytes, pdu.data);
        }
        transfer
    }

    /// The command needs so many bytes.
    pub(super) fn want(&mut self, bytes: usize) {
        self.wanted = bytes;
    }

    /// What is wrong with the data, if anything is.
    pub(super) fn failed(&self) -> Option<Sense> {
        self.failed
    }

    /// Whether the initiator has no more to send, as far as it was asked and has announced.
    pub(super) fn is_settled(&self) -> bool {
        self.unsolicited.is_none() && self.sequences.is_empty()
    }

    /// How often data was asked for.
    pub(super) fn requests(&self) -> u32 {
        self.requests
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        self.data.as_ref().map_or(0, |data| data.blocks() as usize * BLOCK_BYTES)
    }

    /// Bytes that it has, or may get without asking.
    pub(super) fn announced(&self) -> usize {
        let more = if self.unsolicited.is_some() { self.first } else { 0 };
        self.bytes().max(more as usize)
    }

    fn fail(&mut self, why: Sense) {
        self.failed.get_or_insert(why);
        self.data = None;
    }

    /// Takes data behind the command. What nothing has asked for any more is dropped.
    pub(super) fn take(&mut self, pdu: Pdu, pool: &Pool) -> Result<(), SessionError> {
        let header = pdu.header;
        let (tag, is_final) = (header.u32(field::TRANSFER_TAG), header.has(flag::FINAL));
        let (place, number, limit) = match (tag, self.unsolicited) {
            (NO_TAG, Some(number)) => (None, number, self.first),
            (NO_TAG, None) => {
                self.fail(UNEXPECTED);
                return Ok(());
            }
            (tag, _) => {
                let place = self.sequences.iter().position(|sequence| sequence.tag == tag);
                // An order that was taken back, or another command's.
                let Some(place) = place else { return Ok(()) };
                (Some(place), self.sequences[place].number, self.sequences[place].end)
            }
        };
        let (offset, bytes) = (header.u32(field::OFFSET), header.data_bytes() as u32);
        if !pdu.is_intact {
            self.fail(DIGEST);
        } else if place.is_some_and(|place| place > 0)
            || header.u32(field::DATA_NUMBER) != number
            || offset != self.received
            || bytes > limit.saturating_sub(offset)
        {
            self.fail(AMOUNT);
        } else if self.failed.is_none() {
            self.store(pdu, pool)?;
            self.received += bytes;
            if place.is_some() && is_final && self.received < limit {
                self.fail(AMOUNT);
            }
        }
        match place {
            None => self.unsolicited = (!is_final).then_some(number.wrapping_add(1)),
            Some(place) if is_final => _ = self.sequences.remove(place),
            Some(place) => self.sequences[place].number = number.wrapping_add(1),
        }
        Ok(())
    }

    /// Keeps data behind what is there.
    fn store(&mut self, pdu: Pdu, pool: &Pool) -> Result<(), SessionError> {
        let (from, bytes) = (self.received as usize, pdu.header.data_bytes());
        // What the command does not need is dropped.
        let all = if self.wanted > 0 { self.wanted } else { self.first as usize };
        let some = bytes.min(all.saturating_sub(from));
        if some == 0 {
            return Ok(());
        }
        if from == 0 && some == all && pdu.data.as_ref().is_some_and(|data| is_for(data, all)) {
            self.data = pdu.data;
            return Ok(());
        }
        self.grow(all, pool)?;
        if let Some(data) = &mut self.data {
            data.bytes_mut()[from..from + some].copy_from_slice(&pdu.bytes()[..some]);
        }
        Ok(())
    }

    /// The buffer has just the blocks for so many bytes, with what is there.
    fn grow(&mut self, bytes: usize, pool: &Pool) -> Result<(), SessionError> {
        if self.data.as_ref().is_some_and(|data| is_for(data, bytes)) {
            return Ok(());
        }
        let blocks = u32::try_from(bytes.div_ceil(BLOCK_BYTES)).map_err(|_| SessionError::Memory(bytes))?;
        let mut buffer = pool.take(blocks).map_err(|_| SessionError::Memory(bytes))?;
        if let Some(old) = self.data.take() {
            let there = (self.received as usize).min(bytes);
            buffer.bytes_mut()[..there].copy_from_slice(&old.bytes()[..there]);
        }
        self.data = Some(buffer);
        Ok(())
    }

    /// All that the command needs, once it is there: in a buffer of just its blocks.
    pub(super) fn finish(&mut self, pool: &Pool) -> Result<Option<BlocksMut>, SessionError> {
        let is_there = self.wanted > 0 && self.received as usize >= self.wanted;
        if self.failed.is_some() || !is_there || !self.is_settled() {
            return Ok(None);
        }
        self.grow(self.wanted, pool)?;
        Ok(self.data.take())
    }

    /// The next data to ask for by this tag, if there is room for more at once.
    pub(super) fn request(&mut self, tag: u32, parameters: &Parameters) -> Option<Wanted> {
        let is_full = self.sequences.len() >= parameters.outstanding as usize;
        if self.failed.is_some() || self.unsolicited.is_some() || is_full {
            return None;
        }
        let offset = self.requested.max(self.received);
        let missing = u32::try_from(self.wanted).ok()?.checked_sub(offset).filter(|missing| *missing > 0)?;
        let bytes = missing.min(parameters.burst);
        self.requested = offset + bytes;
        self.sequences.push_back(Sequence { tag, end: offset + bytes, number: 0 });
        let wanted = Wanted { number: self.requests, offset, bytes };
        self.requests += 1;
        Some(wanted)
    }
}

/// Whether a buffer has just the blocks for so many bytes.
fn is_for(data: &BlocksMut, bytes: usize) -> bool {
    data.blocks() as usize == bytes.div_ceil(BLOCK_BYTES)
}
