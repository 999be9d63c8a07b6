//! A front-end's connection: its messages are carried out, requests are taken from its queues, and answered there.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use loadline_san_core::lease::Moment;
use loadline_san_core::map::Map;
use loadline_san_core::message::Content;
use loadline_san_core::volume::Failure;
use loadline_san_device::direct_read::DirectRead;
use loadline_san_device::pool::{BLOCK_BYTES, Blocks, BlocksMut, Pool};
use thiserror::Error;
use vhost::vhost_user::BackendReqHandler;
use vhost::vhost_user::message::FrontendReq;
use virtio_queue::QueueT;
use vm_memory::GuestAddress;

use super::answer::Answered;
use super::backend::{Backend, BackendState};
use super::dirty::DirtyLog;
use super::memory::Mapped;
use super::queue::{Queue, Unwritten};
use super::request::{Chain, ID, MOST_DATA, Parsed, Place, SECTOR, Verb, status};
use super::socket::{HEADER, has_room, peek, take_log_bell, waiting};
use super::spans::{write, zero};
use crate::block::{BlockRequest, Operation};
use crate::session::{Attachment, Next, QueueWatch, Receiving, Sent, SessionEnd};

/// The most requests of a front-end that are not answered. More wait in its queues.
pub const MOST_REQUESTS: usize = 1024;
/// The most bytes that these write and read; one request of any length is always taken.
const MOST_BYTES: usize = 2 * MOST_DATA;
/// Messages that are carried out before others have their turn; and pieces of memory that requests may refer to.
const MESSAGES: usize = 32;
const BUDGET: usize = 8192;
/// Bytes of the longest message.
const MOST_MESSAGE: usize = 4096;
/// How long the rest of a message may take to come, nanoseconds.
const REST_NS: u64 = 1_000_000_000;
/// How long a front-end that ends a queue waits for what is in flight, nanoseconds.
const DRAIN_NS: u64 = 30_000_000_000;

/// Why a front-end is disconnected.
#[derive(Debug, Error)]
pub enum SessionError {
    /// A message of the front-end that is refused.
    #[error("its message is refused: {0}")]
    Message(String),
    /// Something in its queues.
    #[error("{0}")]
    Queue(&'static str),
    /// Its memory is gone.
    #[error("memory that it shared has gone: the file behind it was made shorter")]
    Lost,
    /// The front-end has not sent the rest of a message.
    #[error("it began a message, and did not send the rest in time")]
    Rest,
    /// What is in flight takes too long.
    #[error(
        "it ends a queue, and requests in flight are not done after 30 s: it finds them when it connects again"
    )]
    Drain,
    /// The system has no memory.
    #[error("there is no memory for {0} bytes that it writes")]
    Memory(usize),
    /// The socket.
    #[error("its socket: {0}")]
    Socket(#[from] io::Error),
}

impl From<Unwritten> for SessionError {
    fn from(Unwritten(why): Unwritten) -> SessionError {
        SessionError::Queue(why)
    }
}

/// What has come of listening to a front-end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listened {
    /// All is carried out that was there: its socket is to be watched.
    Watch,
    /// There may be more: it is to be listened to again at once.
    More,
    /// Something is to be carried out later: it is to be listened to again soon.
    Again,
    /// It has gone.
    End,
}

/// What a request is, and where its answer goes.
#[derive(Debug)]
struct Slot {
    queue: u16,
    head: u16,
    parsed: Parsed,
    place: Place,
    /// What the place refers to, as long as the request is not answered.
    mapped: Option<Rc<Mapped>>,
}

/// A vhost-user connection: it owns the socket, the mapped memory of the guest and the queues.
pub struct Session {
    socket: OwnedFd,
    handler: BackendReqHandler<Backend>,
    backend: Arc<Backend>,
    /// What the disk is called.
    id: [u8; ID],
    sectors: u64,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Bytes of requests that are not answered.
    taken: usize,
    /// Nothing is taken from its queues: they are to end.
    drains: bool,
    /// Since when a message of the front-end has not been carried out.
    late: Option<Moment>,
    /// The queue to begin with.
    turn: usize,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("vhost::Session").field("in_flight", &self.in_flight()).finish_non_exhaustive()
    }
}

impl Session {
    /// Of a front-end that has connected, for a disk of so many bytes, which is called so.
    pub fn new(socket: OwnedFd, bytes: u64, name: &str, attachment: Attachment) -> io::Result<Session> {
        let stream = UnixStream::from(socket.try_clone()?);
        // A message is read only when all of it is there, and what it is answered always has room.
        stream.set_nonblocking(false)?;
        #[allow(
            clippy::arc_with_non_send_sync,
            reason = "the vhost crate wants one; it stays in this thread"
        )]
        let backend = Arc::new(Backend::new(bytes, attachment));
        let handler = BackendReqHandler::from_stream(stream, Arc::clone(&backend));
        let mut id = [0; ID];
        let length = name.len().min(ID);
        id[..length].copy_from_slice(&name.as_bytes()[..length]);
        Ok(Session {
            socket,
            handler,
            backend,
            id,
            sectors: bytes / SECTOR,
            slots: Vec::new(),
            free: Vec::new(),
            taken: 0,
            drains: false,
            late: None,
            turn: 0,
        })
    }

    /// Whether there is room for one more request.
    fn has_room(&self) -> bool {
        self.in_flight() < MOST_REQUESTS && self.taken < MOST_BYTES
    }

    /// Whether requests that a former process has taken wait to begin again.
    fn has_again(&self) -> bool {
        self.backend.0.borrow().queues.iter().any(Queue::has_again)
    }

    /// Whether every request that was taken is answered (rule H2).
    fn is_drained(&self) -> bool {
        self.in_flight() == 0 && !self.has_again()
    }

    /// Requests that are not answered.
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    // ---- messages of the front-end --------------------------------------------------------------------

    /// Carries out the messages that have arrived, or a part of them.
    pub fn listen(&mut self, now: Moment) -> Result<Listened, SessionError> {
        for _ in 0..MESSAGES {
            let mut head = [0; HEADER];
            let there = match peek(&self.socket, &mut head)? {
                Some(0) => return Ok(Listened::End),
                Some(there) => there,
                None => return Ok(Listened::Watch),
            };
            let number = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
            let length = if there < HEADER { 0 } else { number(8) as usize };
            if length > MOST_MESSAGE {
                return Err(SessionError::Message("a message is too long".into()));
            }
            let whole = there >= HEADER && waiting(&self.socket)? >= HEADER + length;
            let ends_queues = whole
                && [
                    FrontendReq::GET_VRING_BASE as u32,
                    FrontendReq::RESET_DEVICE as u32,
                    FrontendReq::RESET_OWNER as u32,
                ]
                .contains(&number(0));
            self.drains = ends_queues;
            let drained = !ends_queues || self.is_drained();
            if !whole || !drained || !has_room(&self.socket)? {
                let since = *self.late.get_or_insert(now);
                let limit = if drained { REST_NS } else { DRAIN_NS };
                if now.since(since) > limit {
                    return Err(if drained { SessionError::Rest } else { SessionError::Drain });
                }
                return Ok(Listened::Again);
            }
            (self.late, self.drains) = (None, false);
            if number(0) == FrontendReq::SET_LOG_FD as u32 {
                // The vhost crate does not know this message.
                let mut state = self.backend.0.borrow_mut();
                let bell = take_log_bell(&self.socket, length, state.answers_all)?;
                state.log_bell = bell.map(super::queue::bell).transpose().map_err(SessionError::Message)?;
                continue;
            }
            let handled = self.handler.handle_request();
            if let Some(reason) = self.backend.0.borrow_mut().refused.take() {
                return Err(SessionError::Message(reason));
            }
            handled.map_err(|error| SessionError::Message(error.to_string()))?;
            self.check()?;
        }
        // Others have their turn.
        Ok(Listened::More)
    }

    /// Queues that run must still be where the front-end has placed them.
    fn check(&self) -> Result<(), SessionError> {
        let state = self.backend.0.borrow();
        let all_there = state
            .queues
            .iter()
            .filter(|queue| queue.running)
            .all(|queue| state.memory.mapped().is_some_and(|mapped| queue.ring.is_valid(&**mapped)));
        match all_there {
            true => Ok(()),
            false => Err(SessionError::Message("it takes back memory in which there are queues".into())),
        }
    }

    // ---- what it asks ----------------------------------------------------------------------------------

    /// Takes what is in its queues, as much as it may. What is wrong is answered. One that does not follow the rules is to be
    /// disconnected.
    pub fn take(&mut self, pool: &Pool, asked: &mut Vec<BlockRequest>) -> Result<(), SessionError> {
        let backend = Arc::clone(&self.backend);
        let mut state = backend.0.borrow_mut();
        let Some(mapped) = state.memory.mapped().cloned() else { return Ok(()) };
        let is_kept_lost = state.kept.as_ref().is_some_and(super::inflight::InFlight::is_lost);
        if mapped.is_lost() || is_kept_lost || state.log().is_some_and(DirtyLog::is_lost) {
            return Err(SessionError::Lost);
        }
        if state.lacks_log() {
            return Ok(());
        }
        let count = state.queues.len();
        let mut budget = BUDGET;
        for turn in 0..count {
            let number = (self.turn + turn) % count;
            self.take_from(&mut state, number as u16, (&mapped, pool), &mut budget, asked)?;
        }
        self.turn = (self.turn + 1) % count;
        Ok(())
    }

    fn take_from(
        &mut self,
        state: &mut BackendState,
        number: u16,
        (mapped, pool): (&Rc<Mapped>, &Pool),
        budget: &mut usize,
        asked: &mut Vec<BlockRequest>,
    ) -> Result<(), SessionError> {
        let (queues, notes) = state.split();
        let queue = &mut queues[number as usize];
        if !queue.has_more(mapped, self.drains) {
            return Ok(());
        }
        let (table, size) = (GuestAddress(queue.ring.desc_table()), queue.ring.size());
        queue.wants_no_kicks(mapped, notes.log);
        while self.has_room() && *budget > 0 {
            // Of a queue that is to end, what a former process has taken is still to be answered (rule H2).
            if self.drains && queue.again.is_empty() {
                break;
            }
            let again = queue.again.pop_front();
            let head = match again {
                Some(again) => again.head,
                None => match next_head(&mut queue.ring, mapped)? {
                    Some(head) => head,
                    None => break,
                },
            };
            if head >= size {
                return Err(SessionError::Queue("a queue has a head that is not in its table"));
            }
            let slot = self.slot(number, head);
            let chain = Chain::new(mapped, table, size, head);
            let place = &mut self.slots[slot as usize].place;
            let parsed = match place.read(chain, self.sectors) {
                Ok(parsed) => parsed,
                Err(no_chain) => {
                    self.free.push(slot);
                    return Err(SessionError::Queue(no_chain.0));
                }
            };
            *budget = budget.saturating_sub(place.pieces());
            if let Some(kept) = notes.kept
                && again.is_none()
            {
                kept.begin(number, head, queue.order);
                queue.order = queue.order.wrapping_add(1);
            }
            let parsed = match parsed {
                // Whether it was carried out is unknown, and it is too late to do it now.
                Ok(Parsed { verb, .. }) if verb.changes() && again.is_some_and(|again| again.fails) => {
                    Err(status::IO)
                }
                parsed => parsed,
            };
            match parsed {
                Err(status) => {
                    let place = &self.slots[slot as usize].place;
                    let answered = Answered { number, head, place, status, moved: 0, written: &[] };
                    notes.answer(queue, mapped, &answered)?;
                    self.free.push(slot);
                }
                Ok(Parsed { verb: Verb::Id, .. }) => {
                    let place = &self.slots[slot as usize].place;
                    write(&place.data, 0, &self.id);
                    let written = &place.data[..];
                    let answered = Answered { number, head, place, status: status::OK, moved: ID, written };
                    notes.answer(queue, mapped, &answered)?;
                    self.free.push(slot);
                }
                Ok(parsed) => {
                    let this = &mut self.slots[slot as usize];
                    this.parsed = parsed;
                    this.mapped = Some(Rc::clone(mapped));
                    asked.push(this.ask(slot, pool)?);
                    self.taken += this.place.length;
                }
            }
        }
        Ok(())
    }

    fn slot(&mut self, queue: u16, head: u16) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            let parsed = Parsed { verb: Verb::Flush, sector: 0, sectors: 0 };
            self.slots.push(Slot { queue, head, parsed, place: Place::new(), mapped: None });
            self.slots.len() as u32 - 1
        });
        let this = &mut self.slots[slot as usize];
        (this.queue, this.head) = (queue, head);
        slot
    }
}

/// What the data path does with a session.
impl crate::session::Session for Session {
    fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    fn receive(&mut self, from: &mut Receiving<'_>) -> Result<Next, SessionEnd> {
        let listened = if from.is_ready { self.listen(from.now) } else { Ok(Listened::Watch) };
        let next = match listened.map_err(end)? {
            Listened::End => return Err(SessionEnd::Closed),
            Listened::Watch => Next::Watch,
            Listened::More => Next::More,
            Listened::Again => Next::Later,
        };
        if from.accepts {
            self.take(from.pool, from.requests).map_err(end)?;
        }
        Ok(next)
    }

    fn fill(&mut self, slot: u32, at: u64, blocks: u32, content: Content<Blocks>) {
        let this = &self.slots[slot as usize];
        let skip = (this.parsed.sector * SECTOR) as usize % BLOCK_BYTES;
        // Of the bytes that are read: where these blocks begin and end. The first may begin before.
        let start = at as usize * BLOCK_BYTES;
        let end = (start + blocks as usize * BLOCK_BYTES).saturating_sub(skip).min(this.place.length);
        let begin = start.saturating_sub(skip);
        let cut = skip.saturating_sub(start);
        match &content {
            Content::Nothing => zero(&this.place.data, begin, end - begin),
            Content::Data(payload) | Content::Sparse(payload, _) => {
                if payload.data.are_elsewhere() {
                    return;
                }
                let from = payload.first as usize * BLOCK_BYTES + cut;
                write(&this.place.data, begin, &payload.data.bytes()[from..from + end - begin]);
            }
        }
    }

    fn map(&mut self, _slot: u32, _map: Map) {
        unreachable!("a front-end cannot request a map");
    }

    fn complete(&mut self, slot: u32, result: Result<(), Failure>) -> Result<(), SessionEnd> {
        let backend = Arc::clone(&self.backend);
        let mut state = backend.0.borrow_mut();
        let (queues, notes) = state.split();
        let this = &mut self.slots[slot as usize];
        let mapped = this.mapped.take().expect("a request that is not answered has its memory");
        let queue = &mut queues[this.queue as usize];
        let (reads, place) = (this.parsed.verb == Verb::Read, &this.place);
        let moved = if reads && result.is_ok() { place.length } else { 0 };
        let status = if result.is_ok() { status::OK } else { status::IO };
        // Of a read that has failed, a part may have been written.
        let written = if reads { &place.data[..] } else { &[] };
        self.taken -= place.length;
        let answered = Answered { number: this.queue, head: this.head, place, status, moved, written };
        let answered = notes.answer(queue, &mapped, &answered);
        this.place.done();
        self.free.push(slot);
        answered.map_err(|why| end(why.into()))
    }

    /// Notifies the front-end of answers, in the queues for which it has requested notifications.
    fn send(&mut self, has_room: bool, mut ring: impl FnMut(RawFd)) -> Result<Sent, SessionEnd> {
        let mut state = self.backend.0.borrow_mut();
        if let Some(mapped) = state.memory.mapped().cloned() {
            state.queues.iter_mut().for_each(|queue| queue.ring(&mapped, &mut ring));
        }
        if let Some(bell) = state.log_bell.as_ref().filter(|_| state.log().is_some_and(DirtyLog::take_news)) {
            ring(bell.as_raw_fd());
        }
        Ok(Sent { is_full: !has_room, ..Sent::default() })
    }

    fn bytes(&self) -> usize {
        self.taken
    }

    fn wants_requests(&self) -> bool {
        self.has_room() && (!self.drains || self.has_again())
    }

    /// Of a queue that is to end: everything in flight is complete.
    fn wants_turn(&self) -> bool {
        self.drains && self.is_drained()
    }

    /// Messages need no memory.
    fn is_always_watched(&self) -> bool {
        true
    }

    fn attached(&mut self, attachment: Attachment) {
        self.backend.0.borrow_mut().attached(attachment);
    }

    fn has_queues(&self) -> bool {
        true
    }

    fn has_started(&self) -> bool {
        self.backend.0.borrow().queues.iter().any(|queue| queue.running && queue.enabled)
    }

    fn has_queued(&self) -> bool {
        let state = self.backend.0.borrow();
        let Some(mapped) = state.memory.mapped().filter(|_| self.wants_requests()) else { return false };
        !state.lacks_log() && state.queues.iter().any(|queue| queue.has_more(mapped, self.drains))
    }

    fn arm_queues(&mut self) -> bool {
        if !self.wants_requests() {
            return false;
        }
        let mut state = self.backend.0.borrow_mut();
        let Some(mapped) = state.memory.mapped().cloned() else { return false };
        if state.lacks_log() {
            return false;
        }
        let (queues, notes) = state.split();
        queues.iter_mut().fold(false, |some, queue| queue.wants_kicks(&mapped, notes.log) | some)
    }

    fn next_queue_watch(&mut self) -> Option<(u16, QueueWatch)> {
        let mut state = self.backend.0.borrow_mut();
        (0..).zip(&mut state.queues).find_map(|(number, queue)| Some((number, queue.unwatched()?)))
    }

    fn queue_notified(&mut self, queue: u16) {
        if let Some(queue) = self.backend.0.borrow_mut().queues.get_mut(queue as usize) {
            queue.kicked();
        }
    }

    /// `None` also if a block would lie in two places.
    fn direct_read(&self, slot: u32, at: u64, blocks: u32) -> Option<DirectRead> {
        let this = &self.slots[slot as usize];
        let first = this.parsed.sector * SECTOR;
        if this.parsed.verb != Verb::Read || !first.is_multiple_of(BLOCK_BYTES as u64) {
            return None;
        }
        let keep: Rc<Mapped> = Rc::clone(this.mapped.as_ref()?);
        let mut direct_read = DirectRead::new(keep);
        let mut skip = at as usize * BLOCK_BYTES;
        let mut left = blocks as usize * BLOCK_BYTES;
        for span in &this.place.data {
            if left == 0 {
                break;
            }
            let from = skip.min(span.bytes);
            skip -= from;
            let bytes = (span.bytes - from).min(left);
            if bytes == 0 {
                continue;
            }
            if !bytes.is_multiple_of(BLOCK_BYTES) {
                return None;
            }
            left -= bytes;
            // SAFETY: `from` is less than the span's length, and the bytes lie within it. It is mapped as long as `keep` is there,
            // and it is a front-end's memory, to which there is no reference here.
            unsafe { direct_read.add(span.start.add(from), bytes / BLOCK_BYTES) };
        }
        (left == 0).then_some(direct_read)
    }
}

fn end(why: SessionError) -> SessionEnd {
    SessionEnd::Protocol(why.to_string())
}

impl Slot {
    /// What is asked of the volume. What is written is copied, once: the guest may change it meanwhile, and copies must not
    /// differ.
    fn ask(&self, slot: u32, pool: &Pool) -> Result<BlockRequest, SessionError> {
        let Parsed { verb, sector, sectors } = self.parsed;
        let whole = sector.is_multiple_of(8) && sectors.is_multiple_of(8);
        let operation = match verb {
            Verb::Write => Operation::Write(self.copy(pool)?),
            Verb::Flush => Operation::Flush,
            Verb::Discard => Operation::Trim,
            // What does not fill a block is left as it is by a trim.
            Verb::WriteZeroes { unmap } if unmap && whole => Operation::Trim,
            Verb::WriteZeroes { .. } => Operation::WriteZeroes,
            Verb::Read | Verb::Id => Operation::Read,
        };
        Ok(BlockRequest { slot, operation, sector, sectors })
    }

    fn copy(&self, pool: &Pool) -> Result<BlocksMut, SessionError> {
        let length = self.place.length;
        let mut into =
            pool.take(length.div_ceil(BLOCK_BYTES) as u32).map_err(|_| SessionError::Memory(length))?;
        let mut at = 0;
        for span in &self.place.data {
            // SAFETY: the request keeps what is mapped.
            unsafe { span.slice() }.copy_to(&mut into.bytes_mut()[at..at + span.bytes]);
            at += span.bytes;
        }
        Ok(into)
    }
}

/// The next head, if there is one.
fn next_head(ring: &mut virtio_queue::Queue, mapped: &Mapped) -> Result<Option<u16>, SessionError> {
    use virtio_queue::QueueOwnedT;
    let before = ring.next_avail();
    let there = ring.avail_idx(mapped, Ordering::Acquire);
    let mut heads = ring
        .iter(mapped)
        .map_err(|_| SessionError::Queue("a queue claims more requests than it has room for"))?;
    let head = heads.next().map(|chain| chain.head_index());
    if head.is_none() && there.is_ok_and(|there| there.0 != before) {
        return Err(SessionError::Queue("a queue's entry cannot be read"));
    }
    Ok(head)
}
