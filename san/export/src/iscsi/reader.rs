//! PDUs are taken from the stream: headers with their digests, and data where it stays.

use std::io::IoSliceMut;

use loadline_base::crc::{crc32c, crc32c_append};
use loadline_base::iscsi::{HEADER, Header, digest, padding};
use loadline_san_device::pool::{BlocksMut, Pool};
use loadline_san_device::receive_buffer::ReceiveBuffer;
use loadline_san_device::shape::Shape;

use super::error::SessionError;
use super::parameters::Parameters;

/// Bytes of a digest.
const DIGEST: usize = 4;

/// A PDU. Additional header segments are dropped: nothing here has a use for them.
#[derive(Debug)]
pub(super) struct Pdu {
    pub(super) header: Header,
    /// The data segment, if it has one.
    pub(super) data: Option<BlocksMut>,
    /// The data is as its digest says.
    pub(super) is_intact: bool,
}

impl Pdu {
    /// The bytes of the data.
    pub(super) fn bytes(&self) -> &[u8] {
        self.data.as_ref().map_or(&[], |data| &data.bytes()[..self.header.data_bytes()])
    }
}

#[derive(Debug)]
enum Reading {
    Header,
    /// The data of this PDU.
    Data(Header),
    /// What is behind the data: padding, and its digest.
    Trailer(Header, BlocksMut),
}

/// Takes PDUs from the bytes that are received.
#[derive(Debug)]
pub(super) struct Reader {
    buffer: ReceiveBuffer,
    reading: Reading,
    header_digest: bool,
    data_digest: bool,
    /// The most bytes of data of a PDU.
    most: u32,
}

impl Reader {
    /// With these parameters. These bytes have come already.
    ///
    /// # Panics
    /// If they are more than are received at once.
    pub(super) fn new(parameters: &Parameters, rest: &[u8]) -> Reader {
        Reader {
            buffer: ReceiveBuffer::new(rest),
            reading: Reading::Header,
            header_digest: parameters.header_digest,
            data_digest: parameters.data_digest,
            most: parameters.receives,
        }
    }

    /// Receives the next bytes: see [`ReceiveBuffer::receive`].
    pub(super) fn receive(
        &mut self,
        pool: &Pool,
        receive: impl FnOnce(&mut [IoSliceMut<'_>]) -> Option<usize>,
    ) -> bool {
        self.buffer.receive(pool, receive)
    }

    /// The next PDU, if all of it is there.
    pub(super) fn next(&mut self, pool: &Pool) -> Result<Option<Pdu>, SessionError> {
        loop {
            match std::mem::replace(&mut self.reading, Reading::Header) {
                Reading::Header => {
                    let Some(header) = self.header(pool)? else { return Ok(None) };
                    if header.data_bytes() == 0 {
                        return Ok(Some(Pdu { header, data: None, is_intact: true }));
                    }
                    self.reading = Reading::Data(header);
                }
                Reading::Data(header) => {
                    let Some(data) = self.buffer.data() else {
                        self.reading = Reading::Data(header);
                        return Ok(None);
                    };
                    if self.trailer(&header) == 0 {
                        return Ok(Some(Pdu { header, data: Some(data), is_intact: true }));
                    }
                    self.reading = Reading::Trailer(header, data);
                }
                Reading::Trailer(header, data) => {
                    let length = self.trailer(&header);
                    let head = self.buffer.head(|_| Ok::<_, SessionError>(Some(length)))?;
                    let Some(trailer) = head else {
                        self.reading = Reading::Trailer(header, data);
                        return Ok(None);
                    };
                    let (padding, digest) = trailer.split_at(padding(header.data_bytes()));
                    let crc = crc32c_append(crc32c(&data.bytes()[..header.data_bytes()]), padding);
                    let is_intact = digest.is_empty() || digest == crc.to_le_bytes();
                    let shape = Shape { head: length, data: 0 };
                    self.buffer.take(shape, pool).map_err(|_| SessionError::Memory(0))?;
                    return Ok(Some(Pdu { header, data: Some(data), is_intact }));
                }
            }
        }
    }

    /// The next header, if it is there; its data is received from then on.
    fn header(&mut self, pool: &Pool) -> Result<Option<Header>, SessionError> {
        let digests = if self.header_digest { DIGEST } else { 0 };
        let length = |there: &[u8]| {
            let header = there.first_chunk().map(|header: &[u8; HEADER]| Header(*header));
            Ok::<_, SessionError>(header.map(|header| HEADER + header.additional_bytes() + digests))
        };
        let Some(head) = self.buffer.head(length)? else { return Ok(None) };
        let (segments, sent) = head.split_at(head.len() - digests);
        if self.header_digest && sent != digest(segments) {
            return Err(SessionError::HeaderDigest);
        }
        let header = Header(*segments.first_chunk().expect("a head is so long"));
        let (head, data) = (head.len(), header.data_bytes());
        if data > self.most as usize {
            return Err(SessionError::TooLong { bytes: data, most: self.most });
        }
        self.buffer.take(Shape { head, data }, pool).map_err(|_| SessionError::Memory(data))?;
        Ok(Some(header))
    }

    /// Bytes behind the data of a PDU.
    fn trailer(&self, header: &Header) -> usize {
        padding(header.data_bytes()) + if self.data_digest { DIGEST } else { 0 }
    }
}
