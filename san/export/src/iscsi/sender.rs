//! PDUs that are sent: numbers and digests are filled in, and data goes out from where it lies.

use std::convert::Infallible;

use loadline_base::crc::crc32c_append;
use loadline_base::iscsi::{Header, digest, field, flag, padding};
use loadline_san_core::message::Content;
use loadline_san_device::outbox::Outbox;
use loadline_san_device::pool::BLOCK_BYTES;

use super::numbers::Numbers;
use super::parameters::Parameters;
use crate::scsi::task::Fill;

/// Zeroes, for digests.
static ZEROES: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];

/// Bytes that an initiator reads: a part of what blocks hold, in rising order.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReadData<'f> {
    pub(super) fills: &'f [Fill],
    /// Where the first byte is in the first block.
    pub(super) skip: usize,
}

/// What is sent to the initiator, in order.
#[derive(Debug)]
pub(super) struct Sender {
    pub(super) out: Outbox,
    pub(super) numbers: Numbers,
    header_digest: bool,
    data_digest: bool,
    /// The most bytes of data of a PDU.
    pub(super) most: usize,
}

impl Sender {
    pub(super) fn new(parameters: &Parameters, numbers: Numbers) -> Sender {
        Sender {
            out: Outbox::default(),
            numbers,
            header_digest: parameters.header_digest,
            data_digest: parameters.data_digest,
            most: parameters.sends as usize,
        }
    }

    /// Sends a PDU that has a status.
    pub(super) fn status(&mut self, mut header: Header, data: &[u8]) {
        self.numbers.stamp(&mut header);
        self.pdu(header, data);
    }

    /// Sends a PDU that shows the number of the next status, and has none.
    pub(super) fn request(&mut self, mut header: Header) {
        self.numbers.stamp_next(&mut header);
        self.pdu(header, &[]);
    }

    /// Sends a PDU of data with these bytes.
    pub(super) fn data_in_bytes(&mut self, mut header: Header, data: &[u8]) {
        self.stamp_data(&mut header);
        self.pdu(header, data);
    }

    /// Sends a PDU of data with these bytes of what was read.
    ///
    /// # Panics
    /// If not all of them were filled.
    pub(super) fn data_in(&mut self, mut header: Header, read: ReadData<'_>, from: usize, bytes: usize) {
        self.stamp_data(&mut header);
        header.set_data_bytes(bytes);
        self.header(&header);
        let (mut next, end, mut crc) = (from, from + bytes, 0);
        for Fill { at, blocks, content } in read.fills {
            let first = *at as usize * BLOCK_BYTES;
            let until = (first + *blocks as usize * BLOCK_BYTES).saturating_sub(read.skip).min(end);
            if until <= next {
                continue;
            }
            let part = next..until;
            next = until;
            match content {
                Content::Nothing => {
                    self.out.zeroes(part.len());
                    if self.data_digest {
                        crc = crc_of_zeroes(crc, part.len());
                    }
                }
                Content::Data(payload) | Content::Sparse(payload, _) => {
                    let start = payload.first as usize * BLOCK_BYTES + part.start + read.skip - first;
                    let range = start..start + part.len();
                    if self.data_digest {
                        crc = crc32c_append(crc, &payload.data.bytes()[range.clone()]);
                    }
                    self.out.data(payload.data.clone(), range);
                }
            }
        }
        assert_eq!(next, end, "all that is read was filled");
        let padding = &ZEROES[..padding(bytes)];
        let crc = crc32c_append(crc, padding).to_le_bytes();
        let crc = if self.data_digest && bytes > 0 { &crc[..] } else { &[] };
        self.bytes(&[padding, crc]);
    }

    /// Data has the number of a status only if it has a status.
    fn stamp_data(&mut self, header: &mut Header) {
        match header.has(flag::STATUS) {
            true => self.numbers.stamp(header),
            false => self.numbers.stamp_commands(header),
        }
    }

    /// Sends a PDU with these bytes, whose numbers are filled in.
    pub(super) fn pdu(&mut self, mut header: Header, data: &[u8]) {
        header.set_data_bytes(data.len());
        self.header(&header);
        let padding = &ZEROES[..padding(data.len())];
        let crc = if self.data_digest && !data.is_empty() { &digest(data)[..] } else { &[] };
        self.bytes(&[data, padding, crc]);
    }

    fn header(&mut self, header: &Header) {
        let crc = if self.header_digest { &digest(&header.0)[..] } else { &[] };
        self.bytes(&[&header.0, crc]);
    }

    fn bytes(&mut self, parts: &[&[u8]]) {
        let written = self.out.write(|bytes| {
            parts.iter().for_each(|part| bytes.extend_from_slice(part));
            Ok::<_, Infallible>(())
        });
        written.expect("nothing refuses");
    }
}

fn crc_of_zeroes(mut crc: u32, mut bytes: usize) -> u32 {
    while bytes > 0 {
        let some = bytes.min(ZEROES.len());
        crc = crc32c_append(crc, &ZEROES[..some]);
        bytes -= some;
    }
    crc
}

/// The header of a PDU that answers this one.
pub(super) fn answer_to(request: &Header, opcode: u8) -> Header {
    let mut header = Header::new(opcode, flag::FINAL);
    header.set_u32(field::TASK_TAG, request.task_tag());
    header
}
