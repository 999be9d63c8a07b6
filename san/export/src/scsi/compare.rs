//! Commands that compare: VERIFY with data, WRITE AND VERIFY with data, COMPARE AND WRITE.
//!
//! The comparison of COMPARE AND WRITE and its write are one: it has its blocks alone from before its read until its write is complete.

use loadline_base::scsi::{Sense, key};
use loadline_san_core::message::Content;
use loadline_san_device::pool::{BLOCK_BYTES, BlocksMut, Pool};

use super::SECTOR;
use super::cdb::Extent;
use super::locks::Sharing;
use super::step::{Fill, Next, Outcome};
use crate::block::Operation;

/// What is done with the data that the initiator sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// They must be what the blocks hold.
    Verify,
    /// Their one block must be what each block holds.
    VerifyEach,
    /// They are written, and then must be what the blocks hold.
    WriteAndVerify,
    /// The first half must be what the blocks hold: then the second half is written.
    CompareAndWrite,
}

/// A command that compares.
#[derive(Debug)]
pub(super) struct Compare {
    purpose: Purpose,
    extent: Extent,
    data: Option<BlocksMut>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Begun,
    Reading,
    Writing,
}

impl Compare {
    pub(super) fn new(purpose: Purpose, extent: Extent) -> Compare {
        Compare { purpose, extent, data: None, state: State::Begun }
    }

    /// Bytes that the initiator sends for it.
    pub(super) fn bytes(&self) -> usize {
        match self.purpose {
            Purpose::Verify | Purpose::WriteAndVerify => self.extent.bytes(),
            Purpose::VerifyEach => SECTOR as usize,
            Purpose::CompareAndWrite => 2 * self.extent.bytes(),
        }
    }

    /// Whether its last block step writes.
    pub(super) fn is_writing(&self) -> bool {
        self.state == State::Writing
    }

    pub(super) fn data(&mut self, data: BlocksMut) -> Outcome {
        self.data = Some(data);
        Ok(match self.purpose {
            Purpose::Verify | Purpose::VerifyEach => self.read(),
            Purpose::WriteAndVerify | Purpose::CompareAndWrite => {
                Next::Lock(self.extent.range(), Sharing::Alone)
            }
        })
    }

    pub(super) fn locked(&mut self, pool: &Pool) -> Outcome {
        match self.purpose {
            Purpose::WriteAndVerify => Ok(self.write(pool, 0)),
            _ => Ok(self.read()),
        }
    }

    pub(super) fn carried_out(&mut self, pool: &Pool, read: &[Fill]) -> Outcome {
        let is_write = self.is_writing();
        match self.purpose {
            Purpose::WriteAndVerify if is_write => return Ok(self.read()),
            Purpose::CompareAndWrite if is_write => return Ok(Next::good()),
            _ => {}
        }
        let data = self.data.as_ref().map_or(&[][..], BlocksMut::bytes);
        let length = if self.purpose == Purpose::VerifyEach { SECTOR as usize } else { self.extent.bytes() };
        if let Some(offset) = differs(read, self.extent, &data[..length])? {
            return Err(Sense::new(key::MISCOMPARE, 0x1d, 0x00).with_information(offset as u64));
        }
        match self.purpose {
            Purpose::CompareAndWrite => Ok(self.write(pool, self.extent.bytes())),
            _ => Ok(Next::good()),
        }
    }

    fn read(&mut self) -> Next {
        self.state = State::Reading;
        Next::Block(Operation::Read, self.extent)
    }

    /// Writes a copy of the data from this byte on.
    fn write(&mut self, pool: &Pool, from: usize) -> Next {
        let data = self.data.as_ref().map_or(&[][..], BlocksMut::bytes);
        let bytes = self.extent.bytes();
        let Ok(mut copy) = pool.take(bytes.div_ceil(BLOCK_BYTES) as u32) else { return Next::busy() };
        copy.bytes_mut()[..bytes].copy_from_slice(&data[from..from + bytes]);
        self.state = State::Writing;
        Next::Block(Operation::Write(copy), self.extent)
    }
}

/// The first byte of what was read that is not as expected. What is expected is repeated.
fn differs(read: &[Fill], extent: Extent, expected: &[u8]) -> Result<Option<usize>, Sense> {
    const ZEROES: [u8; SECTOR as usize] = [0; SECTOR as usize];
    let skip = (extent.sector * u64::from(SECTOR)) as usize % BLOCK_BYTES;
    let (mut at, end) = (0, extent.bytes());
    for fill in read {
        let start = fill.at as usize * BLOCK_BYTES;
        let until = (start + fill.blocks as usize * BLOCK_BYTES).saturating_sub(skip).min(end);
        if start > skip + at {
            break;
        }
        while at < until {
            let length = (until - at).min(SECTOR as usize - at % SECTOR as usize);
            let found = match &fill.content {
                Content::Nothing => &ZEROES[..length],
                Content::Data(payload) | Content::Sparse(payload, _) => {
                    let from = payload.first as usize * BLOCK_BYTES + skip + at - start;
                    &payload.data.bytes()[from..from + length]
                }
            };
            let from = at % expected.len();
            let expected = &expected[from..from + length];
            if found != expected {
                let same =
                    found.iter().zip(expected).take_while(|(found, expected)| found == expected).count();
                return Ok(Some(at + same));
            }
            at += length;
        }
    }
    // Not all of it was read: the caller is at fault.
    if at < end { Err(Sense::new(key::HARDWARE_ERROR, 0x44, 0x00)) } else { Ok(None) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scsi::testing::{filled, pool};

    #[test]
    fn the_first_byte_that_differs_is_found_across_parts_and_holes() {
        let pool = pool();
        // Sectors 3 to 20: blocks 0 to 2, of which the second is a hole.
        let extent = Extent { sector: 3, sectors: 18 };
        let mut bytes = vec![0x11; 3 * BLOCK_BYTES];
        bytes[BLOCK_BYTES..2 * BLOCK_BYTES].fill(0);
        let read = filled(&pool, &bytes, &[(0, 1), (1, 1), (2, 1)], &[1]);
        let mut expected = bytes[3 * 512..21 * 512].to_vec();
        assert_eq!(differs(&read, extent, &expected), Ok(None));
        for wrong in [0, 5 * 512 + 7, 13 * 512, 18 * 512 - 1] {
            expected[wrong] ^= 1;
            assert_eq!(differs(&read, extent, &expected), Ok(Some(wrong)));
            expected[wrong] ^= 1;
        }
        assert!(differs(&read[..2], extent, &expected).is_err(), "a part is missing");
        assert!(differs(&read[1..], extent, &expected).is_err(), "a part is missing");
    }
}
