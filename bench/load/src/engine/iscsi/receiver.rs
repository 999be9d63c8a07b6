//! What an engine receives, cut into PDUs. Data of reads go where they belong; what else there is waits until it is whole.

use std::io;

use loadline_base::iscsi::{HEADER, Header, digest, field, opcode, padding};

use super::tasks::Tasks;
use crate::engine::stream::Missing;
use crate::engine::{Kind, Memory};
use crate::iscsi::{Parameters, SEGMENT, broken};

/// The most bytes of data of a PDU that is no data of a read. Sense data have fewer.
const MOST_DATA: usize = 16 << 10;

/// The data of a read that are being received.
#[derive(Debug, Clone, Copy)]
struct Segment {
    header: Header,
    slot: u32,
    /// Where in the slot they begin and end, and up to where they are there.
    begin: usize,
    end: usize,
    at: usize,
}

/// A PDU that is whole.
pub(super) enum Pdu<'a> {
    /// Data of the read in this slot, which lie there from its first missing byte on; `bytes` of them.
    Data { header: Header, slot: u32, bytes: u32 },
    /// Anything else.
    Other { header: Header, data: &'a [u8] },
}

pub(super) struct Receiver {
    header_digest: bool,
    data_digest: bool,
    segment: Option<Segment>,
}

impl Receiver {
    pub(super) fn new(parameters: &Parameters) -> Receiver {
        let Parameters { header_digest, data_digest, .. } = *parameters;
        Receiver { header_digest, data_digest, segment: None }
    }

    /// The data that come next, if a read is being received.
    pub(super) fn missing(&self) -> Option<Missing> {
        let Segment { slot, at, end, .. } = self.segment?;
        (at < end).then_some(Missing { slot, from: at, bytes: end - at })
    }

    /// So many of the missing bytes are there.
    pub(super) fn filled(&mut self, bytes: usize) {
        if let Some(segment) = &mut self.segment {
            segment.at += bytes;
        }
    }

    /// Takes the next PDU from the front of what was received; `None` if it is not whole.
    pub(super) fn next<'a>(
        &mut self,
        tasks: &mut Tasks,
        memory: &mut Memory,
        received: &mut &'a [u8],
    ) -> io::Result<Option<Pdu<'a>>> {
        if self.segment.is_none() {
            let Some((header, rest)) = self.header(received)? else { return Ok(None) };
            if header.opcode() != opcode::DATA_IN || header.data_bytes() == 0 {
                return self.other(header, rest, received);
            }
            *received = rest;
            self.segment = Some(begin(header, tasks)?);
        }
        let Some(segment) = &mut self.segment else { return Ok(None) };
        let bytes = *received;
        let (some, rest) = bytes.split_at((segment.end - segment.at).min(bytes.len()));
        let slot = memory.slot(segment.slot, Kind::Read);
        slot[segment.at..segment.at + some.len()].copy_from_slice(some);
        segment.at += some.len();
        *received = rest;
        if segment.at < segment.end {
            return Ok(None);
        }
        let Segment { header, slot, begin, end, .. } = *segment;
        let Some((tail, rest)) = rest.split_at_checked(self.tail(end - begin)) else { return Ok(None) };
        self.check(&memory.slot(slot, Kind::Read)[begin..end], tail)?;
        *received = rest;
        self.segment = None;
        Ok(Some(Pdu::Data { header, slot, bytes: (end - begin) as u32 }))
    }

    /// The header that what was received begins with, and what is behind it; `None` if it is not whole.
    fn header<'a>(&self, received: &'a [u8]) -> io::Result<Option<(Header, &'a [u8])>> {
        let Some(header) = received.first_chunk::<HEADER>() else { return Ok(None) };
        let header = Header(*header);
        let digest_bytes = if self.header_digest { 4 } else { 0 };
        let Some((head, rest)) = received.split_at_checked(HEADER + digest_bytes) else { return Ok(None) };
        if self.header_digest && head[HEADER..] != digest(&header.0) {
            return Err(broken("sent a header whose digest is wrong"));
        }
        if header.additional_bytes() > 0 {
            return Err(broken("sent a header with an addition, which no target has"));
        }
        Ok(Some((header, rest)))
    }

    /// A PDU that is no data of a read. `rest` is what is behind its header.
    fn other<'a>(
        &self,
        header: Header,
        rest: &'a [u8],
        received: &mut &'a [u8],
    ) -> io::Result<Option<Pdu<'a>>> {
        let bytes = header.data_bytes();
        if bytes > MOST_DATA {
            return Err(broken(&format!("announced {bytes} bytes where it may send {MOST_DATA}")));
        }
        let Some((whole, behind)) = rest.split_at_checked(bytes + self.tail(bytes)) else { return Ok(None) };
        let (data, tail) = whole.split_at(bytes);
        self.check(data, tail)?;
        *received = behind;
        Ok(Some(Pdu::Other { header, data }))
    }

    /// Bytes behind data of so many: padding, and a digest.
    fn tail(&self, bytes: usize) -> usize {
        padding(bytes) + if self.data_digest && bytes > 0 { 4 } else { 0 }
    }

    fn check(&self, data: &[u8], tail: &[u8]) -> io::Result<()> {
        if self.data_digest && !data.is_empty() && tail[padding(data.len())..] != digest(data) {
            return Err(io::Error::other(
                "the iSCSI target sent data whose digest is wrong: the network, or the target, has changed them",
            ));
        }
        Ok(())
    }
}

/// Data of a read begin: they are those that follow what is there already.
fn begin(header: Header, tasks: &mut Tasks) -> io::Result<Segment> {
    let slot =
        tasks.of_tag(header.task_tag()).ok_or_else(|| broken("answered a request that was not sent"))?;
    let task = tasks.task(slot);
    let bytes = header.data_bytes();
    let fits =
        task.kind == Kind::Read && bytes <= SEGMENT as usize && header.u32(field::OFFSET) == task.moved;
    let (begin, end) = (task.moved as usize, task.moved as usize + bytes);
    if !fits || end > task.length as usize {
        return Err(broken("sent data that was not asked for"));
    }
    Ok(Segment { header, slot, begin, end, at: begin })
}
