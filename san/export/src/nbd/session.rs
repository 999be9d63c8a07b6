//! Requests are taken from the stream, and answered.
//!
//! What is written is received where it stays: its blocks go to the log and over the network as they are. What is read is
//! sent from where it lies.

use std::io::IoSliceMut;

use loadline_base::nbd::{
    MOST_DATA, Request, chunk, chunk_head, command, command_flag, error, simple_reply, state,
};
use loadline_san_core::map::{Held, Map};
use loadline_san_core::message::Content;
use loadline_san_core::volume::{Failure, MOST_MAPPED};
use loadline_san_device::pool::{BLOCK_BYTES, Blocks, Pool};
use thiserror::Error;

use super::handshake::{ALLOCATION_ID, Choice, SECTOR};
use crate::block::{BlockRequest, Operation};
use loadline_san_device::outbox::Outbox;
use loadline_san_device::receive_buffer::ReceiveBuffer;
use loadline_san_device::shape::Shape;

/// The most requests of a connection that are not answered. More wait in its socket.
pub const MOST_REQUESTS: usize = 256;
/// The most bytes that are written, read and not sent of a connection; one request of any length is always taken.
const MOST_BYTES: usize = 2 * MOST_DATA as usize;
/// Bytes of an extent in the answer to a block status.
const EXTENT: usize = 8;
/// The most bytes of the answer to a block status: the context, and each allocated range with a hole before it, and one behind the
/// last.
const MOST_STATUS: usize = 4 + EXTENT * (2 * MOST_MAPPED + 1);

/// Why a client is disconnected.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SessionError {
    /// It does not follow the protocol.
    #[error("a request does not begin as NBD's do")]
    Magic,
    /// It would write too much at once.
    #[error("it writes {0} bytes at once; {MOST_DATA} are the most")]
    TooLong(u32),
    /// The system has no memory.
    #[error("there is no memory for {0} bytes that it writes")]
    Memory(u32),
}

/// A part of what is read: blocks from this one on, counted from that with the first byte.
#[derive(Debug)]
struct Fill {
    at: u64,
    blocks: u32,
    content: Content<Blocks>,
}

#[derive(Debug)]
struct Slot {
    request: Request,
    fills: Vec<Fill>,
    map: Option<Map>,
}

#[derive(Debug)]
enum Reading {
    Requests,
    /// Data of a write.
    Data(Request),
    /// Data of a write that is refused.
    Refused {
        left: usize,
    },
}

/// An NBD session in its transmission phase: it turns received bytes into block requests, and completions into replies.
#[derive(Debug)]
pub struct Session {
    choice: Choice,
    bytes: u64,
    receive_buffer: ReceiveBuffer,
    reading: Reading,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Bytes of requests that are not complete.
    taken: usize,
    leaving: bool,
    /// Requests that were answered since the last call.
    answered: usize,
    /// Replies that are to be sent to the client.
    pub out: Outbox,
}

impl Session {
    /// Of a client that has chosen an export of so many bytes, and sent this since.
    ///
    /// # Panics
    /// If it has sent more than is received at once.
    pub fn new(choice: Choice, bytes: u64, rest: &[u8]) -> Session {
        Session {
            choice,
            bytes,
            receive_buffer: ReceiveBuffer::new(rest),
            reading: Reading::Requests,
            slots: Vec::new(),
            free: Vec::new(),
            taken: 0,
            leaving: false,
            answered: 0,
            out: Outbox::default(),
        }
    }

    /// Requests that were answered since this was last called.
    pub fn take_answered(&mut self) -> usize {
        std::mem::take(&mut self.answered)
    }

    /// Requests that are not complete.
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether the client has taken its leave. What it asked for before is still done, and answered if it listens.
    pub fn is_leaving(&self) -> bool {
        self.leaving
    }

    /// Whether the client has sent its farewell, and everything is answered and sent.
    pub fn is_over(&self) -> bool {
        self.leaving && self.in_flight() == 0 && self.out.bytes() == 0
    }

    /// Whether the client may send more now.
    pub fn wants_bytes(&self) -> bool {
        !self.leaving && !self.is_full()
    }

    fn is_full(&self) -> bool {
        self.in_flight() >= MOST_REQUESTS || self.taken() >= MOST_BYTES
    }

    /// Bytes that what it asked for, and answers that were not sent, take, or may.
    pub fn taken(&self) -> usize {
        self.taken + self.out.bytes()
    }

    /// Receives the client's next bytes: `receive` gets the places for them, in their order, and returns how many came, if
    /// any did. Whether there may be more: to be called only if the session [wants](Self::wants_bytes) some, and
    /// [`next`](Self::next) is to be called afterwards, until it gives nothing.
    pub fn receive(
        &mut self,
        pool: &Pool,
        receive: impl FnOnce(&mut [IoSliceMut<'_>]) -> Option<usize>,
    ) -> bool {
        self.receive_buffer.receive(pool, receive)
    }

    /// The next request, if all of it is there. What is wrong is answered. A client that does not follow the protocol is to
    /// be disconnected.
    pub fn next(&mut self, pool: &Pool) -> Result<Option<BlockRequest>, SessionError> {
        const HEAD: Result<Option<usize>, SessionError> = Ok(Some(Request::BYTES));
        loop {
            match &mut self.reading {
                Reading::Requests => {
                    if !self.wants_bytes() {
                        return Ok(None);
                    }
                    let Some(head) = self.receive_buffer.head(|_| HEAD)? else { return Ok(None) };
                    let head = head.first_chunk().expect("a head is so long");
                    let request = Request::decode(head).ok_or(SessionError::Magic)?;
                    if let Some(asked) = self.request(request, pool)? {
                        return Ok(Some(asked));
                    }
                }
                Reading::Data(request) => {
                    let request = *request;
                    let Some(data) = self.receive_buffer.data() else { return Ok(None) };
                    self.reading = Reading::Requests;
                    return Ok(Some(self.take(request, Operation::Write(data))));
                }
                Reading::Refused { left } => {
                    *left -= self.receive_buffer.skip(*left);
                    if *left > 0 {
                        return Ok(None);
                    }
                    self.reading = Reading::Requests;
                }
            }
        }
    }

    fn request(&mut self, request: Request, pool: &Pool) -> Result<Option<BlockRequest>, SessionError> {
        if request.command == command::DISC {
            self.leaving = true;
            return Ok(None);
        }
        if request.command == command::WRITE && request.length > MOST_DATA {
            return Err(SessionError::TooLong(request.length));
        }
        let checked = self.check(&request);
        let is_write = request.command == command::WRITE && checked.is_ok();
        let shape = Shape { head: Request::BYTES, data: if is_write { request.length as usize } else { 0 } };
        self.receive_buffer.take(shape, pool).map_err(|_| SessionError::Memory(request.length))?;
        if let Err((code, why)) = checked {
            self.fail(&request, code, why);
            if request.command == command::WRITE {
                self.reading = Reading::Refused { left: request.length as usize };
            }
            return Ok(None);
        }
        let operation = match request.command {
            command::WRITE => {
                self.reading = Reading::Data(request);
                return Ok(None);
            }
            command::FLUSH => Operation::Flush,
            command::TRIM => Operation::Trim,
            command::WRITE_ZEROES => Operation::WriteZeroes,
            command::BLOCK_STATUS => Operation::Map,
            _ => Operation::Read,
        };
        Ok(Some(self.take(request, operation)))
    }

    /// What is wrong with a request, if anything is.
    fn check(&self, request: &Request) -> Result<(), (u32, &'static str)> {
        use command_flag::{DF, FUA, NO_HOLE, REQ_ONE};
        let Request { flags, command, offset, length, .. } = *request;
        let (known, behind) = match command {
            command::READ => (FUA | DF, error::INVAL),
            command::WRITE => (FUA, error::NOSPC),
            command::WRITE_ZEROES => (FUA | NO_HOLE, error::NOSPC),
            command::TRIM => (FUA, error::INVAL),
            command::BLOCK_STATUS if self.choice.allocation => (FUA | REQ_ONE, error::INVAL),
            command::BLOCK_STATUS => return Err((error::INVAL, "no context was chosen for block status")),
            command::FLUSH => return Ok(()),
            _ => return Err((error::INVAL, "this server does not know the command")),
        };
        if flags & !known != 0 {
            return Err((error::INVAL, "the command has a flag that it cannot have"));
        }
        if !offset.is_multiple_of(SECTOR.into()) || !length.is_multiple_of(SECTOR) || length == 0 {
            return Err((error::INVAL, "offset and length must be multiples of 512, and not nothing"));
        }
        if command == command::READ && length > MOST_DATA {
            return Err((error::INVAL, "at most 32 MiB are read at once"));
        }
        if offset.checked_add(length.into()).is_none_or(|end| end > self.bytes) {
            return Err((behind, "the request goes beyond the end of the export"));
        }
        Ok(())
    }

    fn take(&mut self, mut request: Request, operation: Operation) -> BlockRequest {
        if request.command == command::FLUSH {
            (request.offset, request.length) = (0, 0);
        }
        let (sector, sectors) = (request.offset / u64::from(SECTOR), request.length / SECTOR);
        self.taken += cost(&request);
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize].request = request;
                slot
            }
            None => {
                self.slots.push(Slot { request, fills: Vec::new(), map: None });
                self.slots.len() as u32 - 1
            }
        };
        BlockRequest { slot, operation, sector, sectors }
    }

    /// A part of what is read: whole blocks, from this one on, counted from that with the request's first sector. It may come
    /// again.
    pub fn fill(&mut self, slot: u32, at: u64, blocks: u32, content: Content<Blocks>) {
        let fills = &mut self.slots[slot as usize].fills;
        fills.retain(|old| old.at + u64::from(old.blocks) <= at || old.at >= at + u64::from(blocks));
        fills.push(Fill { at, blocks, content });
    }

    /// What blocks hold, counted from the one with the request's first sector: at least that one, in at most [`MOST_MAPPED`] ranges.
    /// It may come again.
    pub fn map(&mut self, slot: u32, map: Map) {
        self.slots[slot as usize].map = Some(map);
    }

    /// A request is complete: it is answered.
    ///
    /// # Panics
    /// If it succeeded, and not all that is read was filled, or the map of its blocks has not arrived.
    pub fn complete(&mut self, slot: u32, result: Result<(), Failure>) {
        let Slot { request, fills, map } = &mut self.slots[slot as usize];
        let (request, mut fills, map) = (*request, std::mem::take(fills), map.take());
        self.taken -= cost(&request);
        fills.sort_unstable_by_key(|fill| fill.at);
        match result {
            Err(why) => {
                let code = match why {
                    Failure::NoSpace => error::NOSPC,
                    Failure::OutOfRange | Failure::TooLong => error::INVAL,
                    Failure::Deposed | Failure::NotAttached => error::SHUTDOWN,
                    Failure::TooMany | Failure::Corrupt => error::IO,
                };
                self.fail(&request, code, &why.to_string());
            }
            Ok(()) => match request.command {
                command::READ if self.choice.structured => self.chunks(&request, &fills),
                command::READ => {
                    self.out.head(&simple_reply(0, request.cookie));
                    self.data(&request, &fills);
                }
                command::BLOCK_STATUS => {
                    self.status(&request, &map.expect("the map of its blocks has arrived"))
                }
                _ if self.choice.structured => {
                    self.out.head(&chunk_head(chunk::DONE, chunk::NONE, request.cookie, 0));
                }
                _ => self.out.head(&simple_reply(0, request.cookie)),
            },
        }
        self.answered += 1;
        fills.clear();
        // Its memory is used again.
        self.slots[slot as usize].fills = fills;
        self.free.push(slot);
    }

    fn fail(&mut self, request: &Request, code: u32, why: &str) {
        if !self.choice.structured {
            self.out.head(&simple_reply(code, request.cookie));
            return;
        }
        let length = 6 + why.len() as u32;
        self.out.head(&chunk_head(chunk::DONE, chunk::ERROR, request.cookie, length));
        let mut reply = code.to_be_bytes().to_vec();
        reply.extend((why.len() as u16).to_be_bytes());
        reply.extend_from_slice(why.as_bytes());
        self.out.text(reply);
    }

    /// All that is read, without anything between.
    fn data(&mut self, request: &Request, fills: &[Fill]) {
        let mut next = 0;
        for (fill, part) in parts(request, fills) {
            assert_eq!(part.start, next, "all of it is filled");
            next = part.end;
            self.part(request, fill, part);
        }
        assert_eq!(next, request.length as usize, "all of it is filled");
    }

    fn part(&mut self, request: &Request, fill: &Fill, part: std::ops::Range<usize>) {
        match &fill.content {
            Content::Nothing => self.out.zeroes(part.len()),
            Content::Data(payload) | Content::Sparse(payload, _) => {
                let skip = request.offset as usize % BLOCK_BYTES;
                let first = payload.first as usize * BLOCK_BYTES;
                let from = first + skip + part.start - fill.at as usize * BLOCK_BYTES;
                self.out.data(payload.data.clone(), from..from + part.len());
            }
        }
    }

    fn chunks(&mut self, request: &Request, fills: &[Fill]) {
        let whole = request.flags & command_flag::DF != 0;
        if whole || fills.len() == 1 && !matches!(fills[0].content, Content::Nothing) {
            self.data_head(request, chunk::DONE, 0..request.length as usize);
            self.data(request, fills);
            return;
        }
        let mut next = 0;
        for (fill, part) in parts(request, fills) {
            assert_eq!(part.start, next, "all of it is filled");
            next = part.end;
            let flags = if next == request.length as usize { chunk::DONE } else { 0 };
            match fill.content {
                Content::Nothing => {
                    let mut head = [0; 32];
                    head[..20].copy_from_slice(&chunk_head(flags, chunk::OFFSET_HOLE, request.cookie, 12));
                    head[20..28].copy_from_slice(&(request.offset + part.start as u64).to_be_bytes());
                    head[28..].copy_from_slice(&(part.len() as u32).to_be_bytes());
                    self.out.head(&head);
                }
                _ => {
                    self.data_head(request, flags, part.clone());
                    self.part(request, fill, part);
                }
            }
        }
        assert_eq!(next, request.length as usize, "all of it is filled");
    }

    fn data_head(&mut self, request: &Request, flags: u16, part: std::ops::Range<usize>) {
        let mut head = [0; 28];
        let length = 8 + part.len() as u32;
        head[..20].copy_from_slice(&chunk_head(flags, chunk::OFFSET_DATA, request.cookie, length));
        head[20..].copy_from_slice(&(request.offset + part.start as u64).to_be_bytes());
        self.out.head(&head);
    }

    /// What blocks hold: extents from the request's first byte on, up to its end or what the map describes.
    fn status(&mut self, request: &Request, map: &Map) {
        let skip = request.offset % BLOCK_BYTES as u64;
        let end = (skip + u64::from(request.length)).min(map.until * BLOCK_BYTES as u64);
        let mut reply = ALLOCATION_ID.to_be_bytes().to_vec();
        let mut at = skip;
        for (until, held) in map.runs(0..end.div_ceil(BLOCK_BYTES as u64), &mut 0) {
            let flags = match held {
                Held::Data => 0,
                Held::Zeroes => state::ZERO,
                Held::Nothing => state::HOLE | state::ZERO,
            };
            let until = (until * BLOCK_BYTES as u64).min(end);
            reply.extend(((until - at) as u32).to_be_bytes());
            reply.extend(flags.to_be_bytes());
            at = until;
            if request.flags & command_flag::REQ_ONE != 0 {
                break;
            }
        }
        assert!(
            at > skip && reply.len() <= MOST_STATUS,
            "{request:?} is answered with {at} bytes in {}",
            reply.len()
        );
        let head = chunk_head(chunk::DONE, chunk::BLOCK_STATUS, request.cookie, reply.len() as u32);
        self.out.head(&head);
        self.out.text(reply);
    }
}

/// Bytes of memory that a request may need.
fn cost(request: &Request) -> usize {
    match request.command {
        command::READ | command::WRITE => request.length as usize,
        command::BLOCK_STATUS => MOST_STATUS,
        _ => 0,
    }
}

/// Of each fill, which bytes of the request are in it.
fn parts<'f>(
    request: &Request,
    fills: &'f [Fill],
) -> impl Iterator<Item = (&'f Fill, std::ops::Range<usize>)> + use<'f> {
    let skip = request.offset as usize % BLOCK_BYTES;
    let length = request.length as usize;
    fills.iter().map(move |fill| {
        let start = fill.at as usize * BLOCK_BYTES;
        let end = start + fill.blocks as usize * BLOCK_BYTES;
        (fill, start.saturating_sub(skip).min(length)..end.saturating_sub(skip).min(length))
    })
}
