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
use loadline_san_store::store::throttle::WriteLimit;
use loadline_san_store::store::{self, Store};

use super::command::{DeviceFault, ReplicaState, Scrub};
use super::counts::{BackEnd, Count};
use super::direct_reads::DirectReads;
use super::held_back::{Begun, Held, HeldBack};
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
    Ring(u32, Devices),
}

impl Io {
    fn devices(&self) -> &Devices {
        match self {
            Io::Direct(direct) => direct.devices(),
            Io::Ring(_, devices) => devices,
        }
    }
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
    /// The ids of the devices that have its log and its extents.
    device_ids: [u32; 2],
    /// The faults of these devices, on purpose.
    faults: [DeviceFault; 2],
    /// Whether a device of it behaves as a model says.
    is_modelled: bool,
    /// What they have done and is to be known later.
    held_back: HeldBack,
    /// Requests of the store to its log, and to its extents.
    counts: [BackEnd; 2],
    /// What devices in memory have done together.
    ended: Vec<Ended>,
    /// When what the ring has of it was begun.
    begun: HashMap<Token, Begun, RandomState>,
    /// The results of its scrub at the time when a full scrub was requested.
    scrub_from: Option<Scrubbed>,
    /// Writes that wait because the log fills up.
    log_waits: LogWaits,
    /// What its start found damaged, if anything.
    damage: Option<String>,
    /// Why it cannot be used, as the control path was last informed.
    unusable: Option<Unusable>,
}

/// How long one write or more has waited because the log fills up.
#[derive(Debug, Default)]
struct LogWaits {
    since: Option<Moment>,
    ended_ns: u64,
}

impl LogWaits {
    /// Whether one waits now.
    fn note(&mut self, waits: bool) {
        // The clock is not read while nothing changes.
        match (waits, self.since) {
            (true, None) => self.since = Some(crate::clock::now()),
            (false, Some(since)) => {
                self.ended_ns += crate::clock::now().since(since);
                self.since = None;
            }
            _ => {}
        }
    }

    /// Until now, in nanoseconds.
    fn until(&self, now: Moment) -> u64 {
        self.ended_ns + self.since.map_or(0, |since| now.since(since))
    }
}

impl ReplicaHost {
    pub(super) fn new(
        replica: Replica,
        store: Store<Blocks>,
        io: Io,
        device_ids: [u32; 2],
        damage: Option<String>,
    ) -> ReplicaHost {
        let (io_requests, store_actions) = (VecDeque::new(), Vec::new());
        let (counts, ended, begun) = (Default::default(), Vec::new(), HashMap::default());
        let is_modelled = io.devices().have_model();
        ReplicaHost {
            replica,
            store,
            io,
            is_modelled,
            io_requests,
            listed: false,
            busy: false,
            store_actions,
            counts,
            ended,
            begun,
            device_ids,
            faults: Default::default(),
            held_back: HeldBack::default(),
            scrub_from: None,
            log_waits: LogWaits::default(),
            damage,
            unusable: None,
        }
    }

    /// Why it cannot be used, or that it can be, if that has changed since it was asked last.
    pub(super) fn unusable(&mut self) -> Option<Option<Unusable>> {
        let now = if self.store.has_failed() {
            let why = self.store.why_failed().unwrap_or("its device has failed").to_owned();
            Some(match self.store.failed_area() {
                Some(area) => Unusable::Failed { device: self.device_ids[number_of(area)], why },
                None => Unusable::NotUsed(why),
            })
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
        self.store.scrub_with_log(true);
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

    /// This device has this fault from now on, on purpose.
    pub(super) fn have_fault(&mut self, device: u32, fault: DeviceFault) {
        for (id, has) in self.device_ids.iter().zip(&mut self.faults) {
            if *id == device {
                *has = fault;
            }
        }
    }

    fn has_fault(&self) -> bool {
        self.faults != <[DeviceFault; 2]>::default()
    }

    /// Its devices have no fault on purpose any more. What was held back by one still comes.
    pub(super) fn have_no_fault(&mut self) {
        self.faults = Default::default();
    }

    /// The ring has done something.
    pub(super) fn done(&mut self, token: Token, done: Done<Blocks>, now: Moment) {
        let begun = self.begun.remove(&token).unwrap_or(Begun { at: now, due: None });
        self.hold_or_tell(Held { token, done, begun }, now);
    }

    /// What has become of a request goes to the store; later, or as a failure, if that is wanted.
    fn hold_or_tell(&mut self, held: Held, now: Moment) {
        let (until, held) = with_fault(self.faults, held, now);
        if until > now {
            self.held_back.hold(until, held);
        } else {
            self.tell_store(held, now);
        }
    }

    fn tell_store(&mut self, held: Held, now: Moment) {
        let Held { token, done, begun } = held;
        let ended = Ended::of(&done);
        ended.iter().flatten().for_each(|ended| ended.count(&mut self.counts, now.since(begun.at)));
        // Of a read from both devices it is not known which one it waited for.
        if let ([Some(ended), None] | [None, Some(ended)], Some(due)) = (ended, begun.due)
            && let Some(model) = self.io.devices().file(ended.area).model()
        {
            model.completed(begun.at, due, now);
        }
        self.store.done(token, done, &mut self.store_actions);
    }

    /// Its devices hold things back, have done so, or will.
    pub(super) fn holds_back(&self) -> bool {
        self.is_modelled || self.has_fault() || !self.held_back.is_empty()
    }

    /// When what is held back is to be known next.
    pub(super) fn next_held(&self) -> Option<Moment> {
        self.held_back.next()
    }

    /// What was held back until now goes to the store. Whether there was anything.
    pub(super) fn tell_held(&mut self, now: Moment) -> bool {
        let mut told = false;
        while let Some(held) = self.held_back.take(now) {
            self.tell_store(held, now);
            told = true;
        }
        told
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
            destaged: fill.destaged,
            slowed: fill.limit == WriteLimit::Destaging,
            log_wait_ns: self.log_waits.until(crate::clock::now()),
            extents: fill.extents,
            full: fill.full,
            failed: self.store.has_failed(),
            damaged: self.store.is_damaged(),
            view: self.replica.view(),
            scrubbed: scrubbed.bytes,
            // They include what the scrub found.
            corrupt: self.store.corrupt(),
            repaired: scrubbed.slots,
            cache: self.store.cache_counts(),
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
        self.log_waits.note(self.store.has_write_that_waits());
        self.act(uring, completions);
        let has_fault = self.has_fault();
        if let Io::Direct(direct) = &mut self.io {
            self.io_requests.iter().take(AT_ONCE).for_each(|(_, io_request)| direct.prepare(io_request));
            let begun = crate::clock::now();
            let mut blocks = 0;
            while blocks < AT_ONCE
                && let Some((token, io_request)) = self.io_requests.pop_front()
            {
                blocks += size(&io_request);
                let due = direct.devices().begin(begun, &io_request);
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
                if due.is_none() && !has_fault {
                    self.ended.extend(Ended::of(&done).into_iter().flatten());
                    self.store.done(token, done, &mut self.store_actions);
                } else {
                    let held = Held { token, done, begun: Begun { at: begun, due } };
                    let (until, held) = with_fault(self.faults, held, crate::clock::now());
                    self.held_back.hold(until, held);
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
                    Io::Ring(number, devices) => {
                        let at = crate::clock::now();
                        self.begun.insert(token, Begun { at, due: devices.begin(at, &io_request) });
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
    /// What the log's device and the other one have done of it.
    fn of(done: &Done<Blocks>) -> [Option<Ended>; 2] {
        match done {
            Done::Read(reading, result) => [Area::Log, Area::Capacity].map(|area| {
                let pieces = reading.pieces.iter().filter(|piece| piece.area == area);
                let bytes = pieces.map(|piece| u64::from(piece.blocks) * BLOCK).sum();
                (bytes > 0).then(|| Ended { area, of: |of| &mut of.read, bytes, well: result.is_ok() })
            }),
            Done::Wrote(writing, result) => {
                let (area, bytes) = (writing.area, writing.length());
                [Some(Ended { area, of: |of| &mut of.write, bytes, well: result.is_ok() }), None]
            }
            Done::Synced(area, result) => {
                [Some(Ended { area: *area, of: |of| &mut of.sync, bytes: 0, well: result.is_ok() }), None]
            }
        }
    }

    /// As many as [`size`] returns.
    fn blocks(&self) -> u64 {
        (self.bytes / BLOCK).max(1)
    }

    fn count(&self, counts: &mut [BackEnd; 2], took_ns: u64) {
        let of = &mut counts[number_of(self.area)];
        (self.of)(of).add(self.bytes, took_ns, self.well);
    }
}

/// The number of a device in what is kept of each of a replica's two.
pub(super) fn number_of(area: Area) -> usize {
    usize::from(area == Area::Capacity)
}

/// When it is to be known what devices with these faults have done, and what it is.
fn with_fault(faults: [DeviceFault; 2], held: Held, now: Moment) -> (Moment, Held) {
    let fault = match &held.done {
        Done::Read(reading, _) => {
            let of_pieces = reading.pieces.iter().map(|piece| faults[number_of(piece.area)]);
            of_pieces.fold(DeviceFault::default(), DeviceFault::and)
        }
        Done::Wrote(writing, _) => faults[number_of(writing.area)],
        Done::Synced(area, _) => faults[number_of(*area)],
    };
    let until = held.begun.due.unwrap_or(now).max(now.after(fault.slow_ns));
    let held = match fault.slow_ns {
        0 => held,
        // What a fault on purpose adds is no lateness of the machine.
        _ => Held { begun: Begun { due: held.begun.due.map(|_| until), ..held.begun }, ..held },
    };
    (until, if fault.fails { Held { done: failed(held.done), ..held } } else { held })
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
