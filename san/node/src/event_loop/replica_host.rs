//! A replica with its store and its devices.

use std::collections::{HashMap, VecDeque};

use foldhash::fast::RandomState;
use loadline_san_core::ids::ReplicaId;
use loadline_san_core::layout::BLOCK;

use loadline_san_core::lease::Moment;
use loadline_san_core::replica::{Action, Event, Replica};
use loadline_san_core::store::Completion;
use loadline_san_device::direct::Direct;
use loadline_san_device::direct_read::DirectRead;
use loadline_san_device::file::Devices;
use loadline_san_device::pool::Blocks;
use loadline_san_device::uring::Uring;
use loadline_san_store::io::{Address, Area, Done, IoFault, IoRequest, Reading, Token};
use loadline_san_store::scrub::Scrubbed;
use loadline_san_store::store::{self, Store};

use super::command::{ReplicaFault, ReplicaState, Scrub};
use super::counts::{BackEnd, Count};
use super::direct_reads::DirectReads;
use crate::unusable::Unusable;

/// Blocks that a device in memory writes or reads before other replicas have their turn and clients get answers.
pub(super) const AT_ONCE: usize = 16;

/// How the I/O of a store is carried out.
#[derive(Debug)]
pub(super) enum Io {
    /// At once: devices in memory.
    Direct(Box<Direct>),
    /// By the ring, under this number.
    /// The devices stay open, and locked, as long as the store is here.
    Ring(u32, #[allow(dead_code, reason = "it is kept open")] Devices),
}

/// An open replica of one loop: it owns the replica's state machine, its store and its devices.
#[derive(Debug)]
pub(super) struct ReplicaHost {
    pub(super) replica: Replica,
    pub(super) store: Store<Blocks>,
    pub(super) io: Io,
    /// Requests of the store to devices in memory.
    io_requests: VecDeque<(Token, IoRequest<Blocks>)>,
    /// It is in the list of those that have something to do.
    pub(super) listed: bool,
    /// A request has arrived since the last tick.
    pub(super) busy: bool,
    store_actions: Vec<store::Action<Blocks>>,
    /// Its devices' fault, on purpose, and what they have done and is held back by it.
    pub(super) fault: ReplicaFault,
    late: VecDeque<(Moment, Token, Done<Blocks>)>,
    /// Requests of the store to its log, and to its extents.
    counts: [BackEnd; 2],
    /// What devices in memory have done together.
    ended: Vec<Ended>,
    /// When what the ring has of it was begun.
    begun: HashMap<Token, Moment, RandomState>,
    /// The results of its scrub at the time when a full scrub was requested.
    scrub_from: Option<Scrubbed>,
    /// What its start found damaged, if anything.
    damage: Option<String>,
    /// Why it cannot be used, as the control path was last informed.
    unusable: Option<Unusable>,
}

impl ReplicaHost {
    pub(super) fn new(replica: Replica, store: Store<Blocks>, io: Io, damage: Option<String>) -> ReplicaHost {
        let (io_requests, store_actions) = (VecDeque::new(), Vec::new());
        let (counts, ended, begun) = (Default::default(), Vec::new(), HashMap::default());
        ReplicaHost {
            replica,
            store,
            io,
            io_requests,
            listed: false,
            busy: false,
            store_actions,
            counts,
            ended,
            begun,
            fault: ReplicaFault::default(),
            late: VecDeque::new(),
            scrub_from: None,
            damage,
            unusable: None,
        }
    }

    /// Why it cannot be used, or that it can be, if that has changed since it was asked last.
    pub(super) fn unusable(&mut self) -> Option<Option<Unusable>> {
        let now = if self.store.has_failed() {
            Some(Unusable::Failed(self.store.why_failed().unwrap_or("its device has failed").to_owned()))
        } else if self.store.is_damaged() {
            Some(Unusable::Damaged(self.damage.clone().unwrap_or_default()))
        } else {
            None
        };
        (now != self.unusable).then(|| {
            self.unusable.clone_from(&now);
            now
        })
    }

    /// The replica takes a step. Its commands go to its store, and messages to send are added to `out`. Returns whether the
    /// store has work.
    pub(super) fn step(
        &mut self,
        now: Moment,
        event: Event<Blocks>,
        actions: &mut Vec<Action<Blocks>>,
        out: &mut Vec<Action<Blocks>>,
    ) -> bool {
        if let Err(misdirected) = self.replica.step(now, event, actions) {
            tracing::error!("{misdirected}");
        }
        let mut wanted = false;
        for action in actions.drain(..) {
            match action {
                Action::Store(command) => {
                    self.store.submit(command);
                    wanted = true;
                }
                send => out.push(send),
            }
        }
        wanted
    }

    /// A full scrub was requested, as fast as its device permits.
    pub(super) fn scrub(&mut self) {
        self.store.scrub_anew();
        self.scrub_from = Some(self.store.scrubbed());
    }

    /// How far that is.
    pub(super) fn scrubs(&self) -> Option<Scrub> {
        let from = self.scrub_from?;
        let now = self.store.scrubbed();
        let bytes = self.store.extent_bytes();
        let ended = now.passes > from.passes || bytes == 0;
        let done = if ended { bytes } else { (now.bytes - from.bytes).min(bytes) };
        Some(Scrub { bytes, done, corrupt: now.corrupt - from.corrupt, ended })
    }

    /// It scrubs all extents as fast as its device permits, until all are checked.
    pub(super) fn scrubs_fast(&self) -> bool {
        self.scrubs().is_some_and(|scrub| !scrub.ended)
    }

    /// The ring has done something.
    pub(super) fn done(&mut self, token: Token, done: Done<Blocks>, now: Moment) {
        let begun = self.begun.remove(&token).unwrap_or(now);
        Ended::of(&done).count(&mut self.counts, now.since(begun));
        self.tell_store(token, done, now);
    }

    /// What has become of an ask goes to the store; later, or as a failure, if that is wanted on purpose.
    fn tell_store(&mut self, token: Token, done: Done<Blocks>, now: Moment) {
        let ReplicaFault { fails, slow_ns } = self.fault;
        let done = if fails { failed(done) } else { done };
        if slow_ns > 0 {
            self.late.push_back((now.after(slow_ns), token, done));
        } else {
            self.store.done(token, done, &mut self.store_actions);
        }
    }

    /// It has a fault on purpose, or what was held back by one.
    pub(super) fn has_fault(&self) -> bool {
        self.fault != ReplicaFault::default() || !self.late.is_empty()
    }

    /// Something that was held back is due.
    pub(super) fn is_late(&self, now: Moment) -> bool {
        self.late.front().is_some_and(|(at, ..)| *at <= now)
    }

    /// It goes to the store.
    pub(super) fn take_late(&mut self, now: Moment) {
        while self.is_late(now)
            && let Some((_, token, done)) = self.late.pop_front()
        {
            self.store.done(token, done, &mut self.store_actions);
        }
    }

    /// How it is.
    pub(super) fn state(&self, id: ReplicaId) -> ReplicaState {
        let (fill, scrubbed) = (self.store.fill(), self.store.scrubbed());
        ReplicaState {
            id,
            log: self.counts[0],
            capacity: self.counts[1],
            log_bytes: fill.log_bytes,
            log_used: fill.log_used,
            extents: fill.extents,
            full: fill.full,
            failed: self.store.has_failed(),
            damaged: self.store.is_damaged(),
            view: self.replica.view(),
            scrubbed: scrubbed.bytes,
            // They include what the scrub found.
            corrupt: self.store.corrupt(),
            repaired: scrubbed.slots,
        }
    }

    /// The store does what it can do now. Its completions are appended to `completions`. Returns whether
    /// there is more that it can do at once.
    pub(super) fn run(
        &mut self,
        uring: &mut Uring,
        reads: &impl DirectReads,
        completions: &mut Vec<Completion<Blocks>>,
    ) -> bool {
        self.store.run(&mut self.store_actions);
        self.act(uring, completions);
        if let Io::Direct(direct) = &mut self.io {
            self.io_requests.iter().take(AT_ONCE).for_each(|(_, io_request)| direct.prepare(io_request));
            let begun = crate::clock::now();
            let mut blocks = 0;
            while blocks < AT_ONCE
                && let Some((token, io_request)) = self.io_requests.pop_front()
            {
                blocks += size(&io_request);
                if let Some((_, next)) = self.io_requests.front() {
                    direct.prepare_next(next);
                }
                let done = match io_request {
                    IoRequest::Read(reading) => {
                        match direct_read(&self.replica, &self.store, reads, token, &reading) {
                            Some((into, of)) => direct
                                .read_direct(reading, &into, of)
                                .unwrap_or_else(|reading| direct.carry_out(IoRequest::Read(reading))),
                            None => direct.carry_out(IoRequest::Read(reading)),
                        }
                    }
                    io_request => direct.carry_out(io_request),
                };
                self.ended.push(Ended::of(&done));
                if self.fault == ReplicaFault::default() {
                    self.store.done(token, done, &mut self.store_actions);
                } else {
                    let done = if self.fault.fails { failed(done) } else { done };
                    self.late.push_back((crate::clock::now().after(self.fault.slow_ns), token, done));
                }
                if self.io_requests.is_empty() {
                    self.store.run(&mut self.store_actions);
                    for action in self.store_actions.drain(..) {
                        match action {
                            store::Action::Submit(token, io_request) => {
                                self.io_requests.push_back((token, io_request))
                            }
                            store::Action::Complete(completion) => completions.push(completion),
                        }
                    }
                }
            }
            direct.settle();
            // To read the clock after each would cost a twentieth of a write: of what was done together, each block took as long.
            let took_ns = crate::clock::now().since(begun);
            for ended in self.ended.drain(..) {
                ended.count(&mut self.counts, took_ns * ended.blocks() / blocks as u64);
            }
            self.act(uring, completions);
            return !self.io_requests.is_empty();
        }
        false
    }

    fn act(&mut self, uring: &mut Uring, completions: &mut Vec<Completion<Blocks>>) {
        for action in self.store_actions.drain(..) {
            match action {
                store::Action::Submit(token, io_request) => match &self.io {
                    Io::Direct(_) => self.io_requests.push_back((token, io_request)),
                    Io::Ring(number, _) => {
                        self.begun.insert(token, crate::clock::now());
                        uring.start(*number, token, io_request);
                    }
                },
                store::Action::Complete(completion) => completions.push(completion),
            }
        }
    }
}

/// Where a client waits for what is read, if it can be put there; and what the first of its checksums is of.
fn direct_read(
    replica: &Replica,
    store: &Store<Blocks>,
    reads: &impl DirectReads,
    token: Token,
    reading: &Reading,
) -> Option<(DirectRead, Address)> {
    let (tag, of) = store.reads_for(token)?;
    let (owner, session) = replica.asked_by(tag)?;
    let into = reads.direct_read(store.identity(), (owner, session), tag.job, of.block, reading.blocks)?;
    Some((into, of))
}

/// Blocks that an ask writes or reads; at least one.
fn size(io_request: &IoRequest<Blocks>) -> usize {
    match io_request {
        IoRequest::Read(reading) => reading.blocks.max(1) as usize,
        IoRequest::Write(writing) => (writing.length() / BLOCK).max(1) as usize,
        IoRequest::Sync(_) => 1,
    }
}

/// What a device has done, to be counted when it is known how long that took.
#[derive(Debug, Clone, Copy)]
struct Ended {
    area: Area,
    of: fn(&mut BackEnd) -> &mut Count,
    bytes: u64,
    well: bool,
}

impl Ended {
    fn of(done: &Done<Blocks>) -> Ended {
        match done {
            Done::Read(reading, result) => {
                let area = reading.pieces.first().map_or(Area::Log, |piece| piece.area);
                let bytes = u64::from(reading.blocks) * BLOCK;
                Ended { area, of: |of| &mut of.read, bytes, well: result.is_ok() }
            }
            Done::Wrote(writing, result) => {
                let (area, bytes) = (writing.area, writing.length());
                Ended { area, of: |of| &mut of.write, bytes, well: result.is_ok() }
            }
            Done::Synced(area, result) => {
                Ended { area: *area, of: |of| &mut of.sync, bytes: 0, well: result.is_ok() }
            }
        }
    }

    /// As many as [`size`] returns.
    fn blocks(&self) -> u64 {
        (self.bytes / BLOCK).max(1)
    }

    fn count(&self, counts: &mut [BackEnd; 2], took_ns: u64) {
        let of = &mut counts[usize::from(self.area == Area::Capacity)];
        (self.of)(of).add(self.bytes, took_ns, self.well);
    }
}

/// As if the device had not done it.
fn failed(done: Done<Blocks>) -> Done<Blocks> {
    let fault = |area, at| IoFault::Failed { area, at, error: std::io::Error::other("it fails on purpose") };
    match done {
        Done::Read(reading, _) => {
            let (area, at) = reading.pieces.first().map_or((Area::Log, 0), |piece| (piece.area, piece.at));
            Done::Read(reading, Err(fault(area, at)))
        }
        Done::Wrote(writing, _) => {
            let fault = fault(writing.area, writing.at);
            Done::Wrote(writing, Err(fault))
        }
        Done::Synced(area, _) => Done::Synced(area, Err(fault(area, 0))),
    }
}
