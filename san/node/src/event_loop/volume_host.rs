//! A volume at this node, with the requests of its clients.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use foldhash::fast::RandomState;
use loadline_san_core::layout::{BLOCK, Layout, MOST_TOGETHER};
use loadline_san_core::lease::Moment;
use loadline_san_core::volume::{CommandError, Request, RequestId, RequestOp, SECTORS, Status, Volume};
use loadline_san_device::pool::{Blocks, Pool};
use loadline_san_export::block::{BlockRequest, Operation};
use loadline_san_export::front_ends::Endpoint;

use super::blocks::{address, is_whole};
use super::command::{NewClient, OpenVolume};
use super::counts::FrontEnd;
use super::limiter::Limiter;
use super::tracer::Tracer;
use crate::config::catalog::Limit;
use crate::node::manage::room::EXTENT_BLOCKS;

/// Bytes that a block takes in a log at the most, with its header.
const LOGGED: u64 = 4096 + 512;
/// A log has this many times the size of what is in flight, and more than a store requires
/// ([`NewReplica::most_in_flight`](loadline_san_store::open::NewReplica)): copies that are made anew pass through it too.
const LOG_TIMES: u64 = 7;

/// Blocks of data that an owner has in flight for a volume whose replicas have logs of so many bytes. What is longer than that
/// is not begun.
pub fn most_in_flight(log_bytes: u64) -> u64 {
    (log_bytes / (LOG_TIMES * LOGGED)).clamp(1, MOST_TOGETHER)
}

/// How many bytes a client is told to write at once at most. `log_bytes`: how large the log of each replica is. It is a power of two: clients
/// expect that.
pub fn most_bytes(log_bytes: u64) -> u32 {
    (BLOCK as u32) << most_in_flight(log_bytes).ilog2()
}

/// Blocks of a piece of what has no data, and how many of their headers are as long as a block.
const PIECE: u64 = 256;
const PIECES_OF_BLOCK: u64 = 8;
/// Blocks that the pieces of one request are counted as at the most: of a trim 1 GiB is under way at a time.
const MOST_OF_PIECES: u64 = 128;

/// No request that has waited to begin for less is searched for.
const LEAST_WAIT_NS: u64 = 1_000_000_000;

/// What comes of a client's request.
pub(super) enum Begun {
    /// It may begin.
    Request(Request<Blocks>),
    /// It is not begun: the client to answer, and which of its requests this is.
    TooLong(u32, u32),
}
/// The part of what an owner may have in flight that is kept for requests which change nothing: a block that is read may have to be
/// mended. So a volume has up to an eighth more than [`most_in_flight`] in flight, and [`LOG_TIMES`] has room for it.
const FOR_READS: u64 = 8;
/// Requests of either kind that are at work at once. More wait in their sessions.
const MOST_AT_WORK: usize = 2048;
/// Block statuses that are at work at once. For each a store scans up to 16,384 extents at a time, which takes it one or two
/// milliseconds.
const MOST_MAPS: usize = 2;
/// Extents that requests at work may need a place for, on each device that has a copy: a device that reports that it is full has
/// places for so many left.
pub(crate) const MOST_EXTENTS: u64 = 1024;

/// A request at work, and its client.
#[derive(Debug, Clone, Copy)]
pub(super) struct AtWork {
    pub(super) client: u32,
    pub(super) slot: u32,
    /// Blocks that it may have in flight, and extents that these may be in.
    blocks: u64,
    extents: u64,
    kind: Kind,
    bytes: u64,
    since: Moment,
}

/// A request of a client that has not begun.
#[derive(Debug)]
struct Waits {
    /// Its number in the order of arrival.
    number: u64,
    client: u32,
    request: BlockRequest,
    since: Moment,
}

/// Requests of one kind, in order. Those that change something need room in the logs, and are held until enough copies are in sync:
/// that does not keep others from reading. No protocol of clients promises an order between requests that are outstanding together.
#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Waits>,
    /// Those at work: how many, and what they may have in flight.
    at_work: usize,
    blocks: u64,
    extents: u64,
}

/// What a request is counted as.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Read,
    Map,
    Write,
    Zero,
    Trim,
    Flush,
}

/// A volume of one loop: it owns the volume's state machine, and the queued and outstanding requests of its clients.
#[derive(Debug)]
pub(super) struct VolumeHost {
    pub(super) volume: Volume<Blocks>,
    pub(super) open: OpenVolume,
    /// Clients may come: it was attached here, and not detached since.
    pub(super) attached: bool,
    /// This life of the node owns it, by the record that core knows.
    pub(super) owned: bool,
    /// Clients that were announced, and may send requests when core reports that they were let in; and since when they wait.
    pub(super) announced: Vec<(NewClient, Moment)>,
    /// Clients that have come since.
    pub(super) arriving: Vec<(NewClient, Moment)>,
    pub(super) at_work: HashMap<RequestId, AtWork, RandomState>,
    /// Requests that change something, those that do not, and block statuses.
    changes: Queue,
    reads: Queue,
    maps: Queue,
    /// How many requests have arrived so far.
    arrived: u64,
    /// Since when it is not served.
    unserved: Option<Moment>,
    /// An attach was ordered here, and this node does not own the volume yet.
    pub(super) claims: bool,
    next: u64,
    pub(super) clients: usize,
    /// When a client was lost last that may come back, because it has not announced its end; or since when the volume is served here, if
    /// clients of the owner before may come back.
    pub(super) lost: Option<Moment>,
    /// It is attached nowhere before the attach that is to come: no client may come back.
    pub(super) is_fresh: bool,
    serves: bool,
    /// The control path knows that it is blocked.
    pub(super) blocked: bool,
    /// Their requests.
    pub(super) front_end: FrontEnd,
    /// The number of the order that is being given, and of the one that is being carried out.
    pub(super) given_command: Option<u64>,
    pub(super) pending_command: Option<u64>,
    /// Follows requests, if a trace was requested.
    pub(super) tracer: Option<Box<Tracer>>,
    /// Limits what its clients do a second, if it has a limit.
    limiter: Option<Limiter>,
    /// Until when its requests wait for that.
    pub(super) limited: Option<Moment>,
}

impl VolumeHost {
    pub(super) fn new(volume: Volume<Blocks>, open: OpenVolume) -> VolumeHost {
        VolumeHost {
            volume,
            open,
            attached: false,
            owned: false,
            announced: Vec::new(),
            arriving: Vec::new(),
            at_work: HashMap::default(),
            changes: Queue::default(),
            reads: Queue::default(),
            maps: Queue::default(),
            arrived: 0,
            unserved: None,
            claims: false,
            next: 1,
            clients: 0,
            lost: None,
            is_fresh: false,
            serves: false,
            blocked: false,
            front_end: FrontEnd::default(),
            given_command: None,
            pending_command: None,
            tracer: None,
            limiter: None,
            limited: None,
        }
    }

    /// What its clients may do a second from now on. What began under the limit before does not count: one large request under a very low
    /// limit would keep the volume waiting for hours after the limit was raised.
    pub(super) fn limit(&mut self, limit: Option<Limit>) {
        self.limiter = limit.map(Limiter::new);
    }

    /// The number of the command whose result this is. A command may be refused at once, or supersede the one before.
    pub(super) fn command_of(&mut self, result: &Result<(), CommandError>) -> Option<u64> {
        match result {
            Err(CommandError::Superseded) => self.pending_command.take(),
            _ => self.given_command.take().or_else(|| self.pending_command.take()),
        }
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.open.layout
    }

    /// Whether something is waited for here, so that every tick counts.
    pub(super) fn is_busy(&self) -> bool {
        let settled = matches!(self.volume.status(), Status::Active | Status::Watching);
        let clients_wait = !self.arriving.is_empty() || !self.announced.is_empty();
        !settled || clients_wait || !self.at_work.is_empty()
    }

    /// Clients that are not let in yet, and reach the volume at this node only.
    pub(super) fn bound_coming(&self) -> usize {
        let is_bound =
            |(new, _): &&(NewClient, Moment)| matches!(new.protocol.endpoint(), Endpoint::Volume { .. });
        self.arriving.iter().chain(&self.announced).filter(is_bound).count()
    }

    /// A request of a client arrives.
    pub(super) fn ask(&mut self, client: u32, request: BlockRequest, now: Moment) {
        self.arrived += 1;
        if let Some(tracer) = &mut self.tracer {
            tracer.arrives(self.arrived, client, &request, self.open.layout);
        }
        let waits = Waits { number: self.arrived, client, request, since: now };
        let queue = match waits.request.operation {
            Operation::Write(_) | Operation::WriteZeroes | Operation::Trim => &mut self.changes,
            Operation::Read | Operation::Flush => &mut self.reads,
            Operation::Map => &mut self.maps,
        };
        queue.waiting.push_back(waits);
    }

    /// Whether a client chose the volume before an attach.
    pub(super) fn is_old(&self, new: &NewClient) -> bool {
        self.volume.record().is_some_and(|record| new.fence < record.fence)
    }

    /// Adds the clients whose requests have waited for longer than this limit while the volume is not served.
    pub(super) fn find_late(&mut self, now: Moment, limit_ns: u64, late: &mut Vec<u32>) {
        // Writes may be held for as long as the policy requires more copies. An owner that may not read serves no client.
        if self.volume.status() == Status::Active && self.volume.may_read(now) {
            self.unserved = None;
            return;
        }
        let unserved = *self.unserved.get_or_insert(now);
        let is_late = |since: Moment| now.since(since.max(unserved)) >= limit_ns;
        if is_late(unserved) {
            let at_work = self.at_work.values().map(|at_work| (at_work.client, at_work.since));
            let queues = [&self.changes, &self.reads, &self.maps];
            let waiting = queues.into_iter().flat_map(|queue| &queue.waiting);
            let waiting = waiting.map(|waits| (waits.client, waits.since));
            late.extend(
                at_work.chain(waiting).filter(|(_, since)| is_late(*since)).map(|(client, _)| client),
            );
        }
    }

    /// Takes away requests that have waited to begin for longer than their clients wait: `longest` is how long a client does. They never
    /// begin. Adds each client, and which of its requests it is.
    pub(super) fn take_unbegun(
        &mut self,
        now: Moment,
        mut longest: impl FnMut(u32, u32) -> Option<Duration>,
        taken: &mut Vec<(u32, u32)>,
    ) {
        for queue in [&mut self.changes, &mut self.reads, &mut self.maps] {
            // Requests are in the order in which they came.
            if queue.waiting.front().is_none_or(|first| now.since(first.since) < LEAST_WAIT_NS) {
                continue;
            }
            queue.waiting.retain(|waits| {
                let longest = longest(waits.client, waits.request.slot);
                let is_late =
                    longest.is_some_and(|longest| now.since(waits.since) >= longest.as_nanos() as u64);
                if is_late {
                    taken.push((waits.client, waits.request.slot));
                    if let Some(tracer) = &mut self.tracer {
                        tracer.refused(waits.number);
                    }
                }
                !is_late
            });
        }
    }

    /// The next request that may begin, or is not to. If the limit of the volume keeps it from beginning, `limited` is when it may.
    pub(super) fn begin(&mut self, now: Moment) -> Option<Begun> {
        self.limited = None;
        let most = self.open.most_in_flight;
        // One that begins in the middle of a block has one more.
        let is_too_long = |waits: &Waits| {
            matches!(waits.request.operation, Operation::Write(_)) && blocks_of(&waits.request) > most + 1
        };
        if self.changes.waiting.front().is_some_and(is_too_long) {
            let Waits { number, client, request, .. } = self.changes.waiting.pop_front()?;
            self.front_end.write.errors += 1;
            if let Some(tracer) = &mut self.tracer {
                tracer.refused(number);
            }
            return Some(Begun::TooLong(client, request.slot));
        }
        let for_reads = most / FOR_READS;
        let VolumeHost { reads, changes, maps, limiter, .. } = self;
        // One alone begins whatever it needs.
        let change = changes.waiting.front().filter(|waits| {
            let fits = changes.blocks + blocks_of(&waits.request) + reads.blocks.min(for_reads) <= most
                && changes.extents + extents_of(&waits.request) <= MOST_EXTENTS
                && changes.at_work < MOST_AT_WORK;
            fits || changes.at_work == 0
        });
        let read = reads.waiting.front().filter(|waits| {
            let room = most.saturating_sub(changes.blocks).max(for_reads);
            let fits = reads.blocks + blocks_of(&waits.request) <= room && reads.at_work < MOST_AT_WORK;
            fits || reads.at_work == 0
        });
        let map = maps.waiting.front().filter(|_| maps.at_work < MOST_MAPS);
        // Which came first, of those that may begin.
        let first = [change, read, map].into_iter().flatten().map(|waits| waits.number).min()?;
        let of = |queue: &Queue| queue.waiting.front().is_some_and(|waits| waits.number == first);
        let queue = [changes, reads, maps].into_iter().find(|queue| of(queue))?;
        if let (Some(limiter), Some(waits)) = (limiter, queue.waiting.front()) {
            let bytes = match waits.request.operation {
                Operation::Read | Operation::Write(_) => Some(u64::from(waits.request.sectors) * 512),
                Operation::WriteZeroes | Operation::Trim => Some(0),
                // They read and write nothing.
                Operation::Flush | Operation::Map => None,
            };
            if let Some(bytes) = bytes {
                if limiter.next() > now {
                    self.limited = Some(limiter.next());
                    return None;
                }
                limiter.begins(bytes, now);
            }
        }
        let Waits { number, client, request, .. } = queue.waiting.pop_front()?;
        let (blocks, extents) = (blocks_of(&request), extents_of(&request));
        queue.at_work += 1;
        queue.blocks += blocks;
        queue.extents += extents;
        let BlockRequest { slot, operation, sector, sectors } = request;
        let id = RequestId(self.next);
        self.next += 1;
        if let Some(tracer) = &mut self.tracer {
            tracer.named(number, id);
        }
        let kind = match &operation {
            Operation::Read => Kind::Read,
            Operation::Map => Kind::Map,
            Operation::Write(_) => Kind::Write,
            Operation::WriteZeroes => Kind::Zero,
            Operation::Trim => Kind::Trim,
            Operation::Flush => Kind::Flush,
        };
        let (bytes, since) = (u64::from(sectors) * 512, Moment(0));
        self.at_work.insert(id, AtWork { client, slot, blocks, extents, kind, bytes, since });
        let op = match operation {
            Operation::Read => RequestOp::Read,
            Operation::Map => RequestOp::Map,
            Operation::WriteZeroes => RequestOp::WriteZeroes,
            Operation::Trim => RequestOp::Trim,
            Operation::Flush => RequestOp::Flush,
            Operation::Write(data) if is_whole(sector, sectors) => {
                let (volume, first) = (self.open.id, sector / SECTORS);
                let layout = self.open.layout;
                RequestOp::Write(data.freeze(|index| address(volume, &layout, first + u64::from(index))))
            }
            // Whole blocks are made of it later, with their checksums.
            Operation::Write(data) => RequestOp::Write(data.freeze_without()),
        };
        Some(Begun::Request(Request { id, op, sector, sectors }))
    }

    /// A request begins now.
    pub(super) fn begins(&mut self, id: RequestId, now: Moment) {
        if let Some(at_work) = self.at_work.get_mut(&id) {
            at_work.since = now;
        }
        if let Some(tracer) = &mut self.tracer {
            tracer.begins(id);
        }
    }

    /// A request has ended. Returns the request, or None if it is not at work.
    pub(super) fn ended(&mut self, id: RequestId, succeeded: bool, now: Moment) -> Option<AtWork> {
        let at_work = self.at_work.remove(&id)?;
        let queue = match at_work.kind {
            Kind::Write | Kind::Zero | Kind::Trim => &mut self.changes,
            Kind::Read | Kind::Flush => &mut self.reads,
            Kind::Map => &mut self.maps,
        };
        queue.at_work -= 1;
        queue.blocks -= at_work.blocks;
        queue.extents -= at_work.extents;
        let counts = &mut self.front_end;
        let took_ns = now.since(at_work.since);
        match at_work.kind {
            Kind::Read if succeeded => counts.read_latencies.add(took_ns),
            Kind::Write if succeeded => counts.write_latencies.add(took_ns),
            _ => {}
        }
        let count = match at_work.kind {
            Kind::Read => &mut counts.read,
            Kind::Map => &mut counts.map,
            Kind::Write => &mut counts.write,
            Kind::Zero => &mut counts.zero,
            Kind::Trim => &mut counts.trim,
            Kind::Flush => &mut counts.flush,
        };
        count.add(at_work.bytes, took_ns, succeeded);
        Some(at_work)
    }

    /// Notes whether this node serves the volume now. If it has begun to, clients of the owner before may come back.
    pub(super) fn note_service(&mut self, now: Moment) {
        let serves = matches!(self.volume.status(), Status::Active | Status::Changing);
        if serves && !self.serves {
            self.lost = Some(now).filter(|_| !self.is_fresh);
            self.is_fresh = false;
        }
        self.serves = serves;
    }

    /// A client has gone, after it has announced that or without: its requests that are not at work are dropped. What is at work is returned.
    pub(super) fn leave(
        &mut self,
        client: u32,
        has_announced: bool,
        now: Moment,
    ) -> impl Iterator<Item = RequestId> {
        if !has_announced {
            self.lost = Some(now);
        }
        for queue in [&mut self.changes, &mut self.reads, &mut self.maps] {
            queue.waiting.retain(|waits| waits.client != client);
        }
        self.clients -= 1;
        if let Some(tracer) = &mut self.tracer {
            tracer.left(client);
        }
        self.at_work.iter().filter(move |(_, at_work)| at_work.client == client).map(|(id, _)| *id)
    }

    /// Makes whole blocks of what a client writes.
    pub(super) fn merge(
        &self,
        pool: &Pool,
        request: &Request<Blocks>,
        around: (
            Option<&loadline_san_core::message::Content<Blocks>>,
            Option<&loadline_san_core::message::Content<Blocks>>,
        ),
    ) -> Blocks {
        super::blocks::merge(pool, self.open.id, self.layout(), request, around)
    }
}

/// Blocks that a request may have in flight.
fn blocks_of(request: &BlockRequest) -> u64 {
    match request.operation {
        Operation::Write(_) => u64::from(request.sectors).div_ceil(SECTORS) + 1,
        Operation::Read => 2,
        Operation::Map => 0,
        // What has no data is in a log as a header for each piece, and of a very long one not all at once.
        Operation::WriteZeroes | Operation::Trim => {
            2 + (u64::from(request.sectors) / SECTORS / PIECE / PIECES_OF_BLOCK).min(MOST_OF_PIECES)
        }
        Operation::Flush => 0,
    }
}

/// Extents that may need a place for a request. A stripe unit has whole extents, so extents of the volume are extents of its
/// groups.
fn extents_of(request: &BlockRequest) -> u64 {
    const SECTORS_OF_EXTENT: u64 = EXTENT_BLOCKS as u64 * SECTORS;
    match request.operation {
        Operation::Write(_) => {
            let end = request.sector + u64::from(request.sectors);
            end.div_ceil(SECTORS_OF_EXTENT) - request.sector / SECTORS_OF_EXTENT
        }
        // The first block and the last are written as data if the request has only a part of them.
        Operation::WriteZeroes | Operation::Trim => 2,
        Operation::Read | Operation::Map | Operation::Flush => 0,
    }
}
