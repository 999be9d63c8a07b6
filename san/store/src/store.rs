//! A store while it serves: what it is ordered to do, what it orders of its devices, what it reports.
//!
//! ```text
//!            submit                     run                             report
//! replica ──────────▶ queue ─▶ batch ─▶ log ──────────────────────────▶ replica
//!            │                           │ destage, up to the commit point
//!            └─▶ reads ◀── index ◀───────┴──▶ extents, slots ─▶ page ─▶ log freed
//! ```
//!
//! Commands that change something are carried out one after the other, in the order in which they arrived. Appends
//! that wait go together in one write. Reads overtake them. Destaging continues meanwhile.

pub(crate) mod append;
mod cached;
mod destage;
mod discard;
mod growth;
pub mod read;
mod returns;
pub mod scrub;
mod settings;
pub mod throttle;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use loadline_san_core::ids::{Epoch, Position, ReplicaId, VolumeId};
use loadline_san_core::layout::{BLOCK, GroupIndex};
use loadline_san_core::message::Promise;
use loadline_san_core::range_set::RangeSet;
use loadline_san_core::rule::{Rule, left_out};
use loadline_san_core::store::{Command, Completion};
use loadline_san_protocol::state::{MOST_TRUNCATIONS, Truncation};

use crate::cache::Cache;
use crate::extents::Extents;
use crate::held::Held;
use crate::index::Index;
use crate::io::{Address, Area, Data, Done, IoFault, IoRequest, Part, Piece, Sector, Token, Writing};
use crate::log::{Kind, Log, Record};
use crate::replica_meta::{Places, ReplicaMeta};
use crate::space::Space;
use crate::store::append::Batch;
use crate::store::destage::{Destage, Spreads};
use crate::store::growth::Growth;
use crate::store::read::Reads;
use crate::store::scrub::Scrub;
use crate::store::throttle::Throttle;

pub use settings::Settings;

/// The identity of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The volume.
    pub volume: VolumeId,
    /// The group.
    pub group: GroupIndex,
    /// The replica.
    pub replica: ReplicaId,
}

/// A commit point, and the epoch that it came with (rule R8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) commit_point: Position,
    /// Entries up to here are acknowledged, and not all of them need be in this log.
    pub(crate) acknowledged: Position,
    pub(crate) epoch: Epoch,
}

impl Known {
    /// Advances all three. None of them ever moves back.
    pub(crate) fn raise(&mut self, commit_point: Position, epoch: Epoch) {
        self.commit_point = self.commit_point.max(commit_point);
        self.acknowledged = self.acknowledged.max(commit_point);
        self.epoch = self.epoch.max(epoch);
    }
}

/// An action of a store, to be carried out by its caller.
#[derive(Debug)]
pub enum Action<D> {
    /// An I/O for a device.
    Submit(Token, IoRequest<D>),
    /// A completion for the replica.
    Complete(Completion<D>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Health {
    Well,
    /// The store was found damaged: it accepts only commands to salvage or to empty it.
    Damaged,
    /// A write or a sync has failed, or the store received more than the device has room for. It does nothing any more.
    Failed,
}

/// The purpose of an I/O, by which its result is handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    None,
    Batch,
    Meta,
    /// A read of this number.
    Read(u32),
    /// A part of destaging: this extent of the round.
    Gather(u32),
    Spread(u32),
    /// Records of the round are read in the order of the log.
    Recall(u32),
    Destage,
    /// So many slots of the round.
    RoundSlots(u32),
    Growth,
    /// A block that the read cache takes, for this place of it.
    Cache(u32),
    /// A part of a scrub: the slots from this place on.
    Slots(u32),
    Mend,
}

/// The change that is under way.
#[derive(Debug)]
pub(crate) enum Current<D> {
    Nothing,
    /// A batch is being written.
    Batch(Batch),
    /// When this change is durable, this completion is reported.
    WriteMeta(u64, Option<Completion<D>>),
    /// The same, for a return. A salvage is a change without a completion.
    Return {
        change: u64,
        truncation: Option<Truncation>,
    },
}

/// The store of one replica while it serves. It does no I/O itself: it returns I/Os for its devices, and receives
/// their results.
#[derive(Debug)]
pub struct Store<D> {
    pub(crate) id: Identity,
    pub(crate) settings: Settings,
    pub(crate) places: Places,
    pub(crate) space: Arc<Mutex<Space>>,
    pub(crate) log: Log,
    pub(crate) index: Index,
    pub(crate) held: Held<D>,
    pub(crate) extents: Extents,
    pub(crate) meta: ReplicaMeta,
    pub(crate) known: Known,
    /// The content number that is durable. During a return that empties the store, the state has the next number already.
    pub(crate) content: u64,
    pub(crate) health: Health,
    /// The reason of the failure, if the store has failed.
    pub(crate) why: Option<String>,
    /// The device that has failed, if that is the reason.
    pub(crate) failed_area: Option<Area>,
    /// The failure was reported.
    pub(crate) failure_reported: bool,
    pub(crate) queue: VecDeque<Command<D>>,
    pub(crate) current: Current<D>,
    pub(crate) reads: Reads,
    pub(crate) destage: Destage,
    pub(crate) spreads: Spreads<D>,
    pub(crate) growth: Growth,
    pub(crate) scrub: Scrub,
    pub(crate) cache: Cache,
    pub(crate) throttle: Throttle,
    /// A later durable record states that the records up to this number are durable.
    pub(crate) covered: u64,
    /// The commit point that the log's last record has.
    pub(crate) recorded: Position,
    /// The last batch is covered by a later record, or there is none since it was opened; and the last record has the commit point.
    pub(crate) closed: bool,
    /// A closing record is to be written.
    pub(crate) closing: bool,
    /// Something was appended since the last tick.
    pub(crate) busy: bool,
    pub(crate) memory: Memory<D>,
    purposes: Vec<Purpose>,
    free_tokens: Vec<u32>,
    /// Blocks that did not match their checksums, since it was opened; and those that were not written anew since.
    pub(crate) corrupt: u64,
    pub(crate) corrupt_blocks: RangeSet,
}

/// Vectors that are used again.
#[derive(Debug)]
pub(crate) struct Memory<D> {
    bytes: Vec<Vec<Sector>>,
    parts: Vec<Vec<Part<D>>>,
    pieces: Vec<Vec<Piece>>,
}

impl<D> Memory<D> {
    pub(crate) fn writing(&mut self, area: Area, at: u64, durable: bool) -> Writing<D> {
        let (bytes, parts) = (self.bytes.pop().unwrap_or_default(), self.parts.pop().unwrap_or_default());
        Writing { area, at, bytes, parts, durable }
    }

    pub(crate) fn pieces(&mut self) -> Vec<Piece> {
        self.pieces.pop().unwrap_or_default()
    }

    pub(crate) fn wrote(&mut self, mut writing: Writing<D>) {
        writing.bytes.clear();
        writing.parts.clear();
        self.bytes.push(writing.bytes);
        self.parts.push(writing.parts);
    }

    pub(crate) fn read(&mut self, mut pieces: Vec<Piece>) {
        pieces.clear();
        self.pieces.push(pieces);
    }
}

impl<D: Data> Store<D> {
    #[allow(clippy::too_many_arguments, reason = "these are its parts")]
    pub(crate) fn new(
        id: Identity,
        settings: Settings,
        places: Places,
        space: Arc<Mutex<Space>>,
        log: Log,
        extents: Extents,
        meta: ReplicaMeta,
        known: Known,
    ) -> Store<D> {
        let ring = log.ring();
        let throttle = Throttle::new(&settings, ring, destage::round_bytes(&settings, ring));
        Store {
            content: meta.state.content,
            id,
            settings,
            places,
            space,
            log,
            index: Index::default(),
            held: Held::new(1),
            extents,
            meta,
            known,
            health: Health::Well,
            why: None,
            failed_area: None,
            failure_reported: false,
            queue: VecDeque::new(),
            current: Current::Nothing,
            reads: Reads::default(),
            destage: Destage::default(),
            spreads: Spreads::default(),
            growth: Growth::default(),
            scrub: Scrub::default(),
            cache: Cache::default(),
            throttle,
            covered: 0,
            recorded: known.commit_point,
            closed: true,
            closing: false,
            busy: false,
            memory: Memory { bytes: Vec::new(), parts: Vec::new(), pieces: Vec::new() },
            purposes: Vec::new(),
            free_tokens: Vec::new(),
            corrupt: 0,
            corrupt_blocks: RangeSet::default(),
        }
    }

    /// Queues a command, which [`run`](Self::run) carries out.
    pub fn submit(&mut self, command: Command<D>) {
        if matches!(command, Command::Salvage) && self.health == Health::Damaged {
            self.health = Health::Well;
            self.begin_generation();
            let corrupt = self.extents.give_up_corrupt(u64::MAX);
            self.scrub.write_again(corrupt, self.extents.per_chunk());
        }
        if let (Command::Discard { promise, after }, Health::Damaged) = (&command, self.health) {
            self.begin_discard(*promise, *after);
            return;
        }
        if self.health != Health::Well {
            return;
        }
        match &command {
            Command::Append { commit_point, acknowledged, epoch, .. }
            | Command::CommitPoint { commit_point, acknowledged, epoch } => {
                self.known.raise(*commit_point, *epoch);
                self.known.acknowledged = self.known.acknowledged.max(*acknowledged);
            }
            _ => {}
        }
        match command {
            // An idle log gets the last commit point too.
            Command::CommitPoint { commit_point, .. } => self.closed &= commit_point <= self.recorded,
            Command::ForgetTombstones(epoch) => {
                // A start that finds some of them again does no harm.
                self.meta.forget_tombstones(epoch);
            }
            Command::Read { tag, block, blocks, again } => self.reads.read(tag, block, blocks, again),
            Command::Fetch { tag, number, again } => self.reads.fetch(tag, number, again),
            Command::Map { tag, block, blocks } => self.reads.map(tag, block, blocks),
            Command::Changed { tag, since, from } => self.reads.changed(tag, since, from),
            Command::Above(question) => self.reads.above(question),
            _ => self.queue.push_back(command),
        }
    }

    /// Handles the result of an I/O, done or failed.
    ///
    /// # Panics
    /// If no such I/O is under way.
    pub fn done(&mut self, token: Token, done: Done<D>, out: &mut Vec<Action<D>>) {
        let purpose = std::mem::replace(&mut self.purposes[token.0 as usize], Purpose::None);
        assert_ne!(purpose, Purpose::None, "nothing was asked for under {token:?}");
        self.free_tokens.push(token.0);
        match done {
            Done::Read(reading, result) => {
                self.memory.read(reading.pieces);
                if let Err(fault @ IoFault::Short { .. }) = &result {
                    // What was there when it was opened is gone: nothing here can be relied on.
                    self.fail_by(fault);
                } else if self.health == Health::Well {
                    match purpose {
                        Purpose::Read(job) => self.read_done(job, result.ok(), out),
                        Purpose::Gather(work) => self.gathered(work, result.ok(), out),
                        Purpose::Recall(recall) => self.recalled(recall, result.ok()),
                        Purpose::Slots(place) => self.slots_read(place, result.ok(), out),
                        _ => unreachable!("{purpose:?} reads nothing"),
                    }
                }
            }
            Done::Wrote(writing, result) => {
                // Those of the page bring vectors of their own.
                if purpose != Purpose::Meta {
                    self.memory.wrote(writing);
                }
                // A block that the cache does not get is read from its extent.
                if let Purpose::Cache(place) = purpose {
                    self.cache.wrote(place, result.is_ok());
                    return;
                }
                if self.succeeded(result) {
                    self.wrote(purpose, out);
                }
            }
            Done::Synced(_, result) => {
                if self.succeeded(result) {
                    self.destage_wrote();
                }
            }
        }
    }

    fn wrote(&mut self, purpose: Purpose, out: &mut Vec<Action<D>>) {
        match purpose {
            Purpose::Batch => self.batch_done(out),
            Purpose::Meta => self.meta.wrote(),
            Purpose::Spread(work) => self.spread_done(work, out),
            Purpose::Destage => self.destage_wrote(),
            Purpose::RoundSlots(slots) => self.destage_wrote_slots(slots as usize),
            Purpose::Growth => self.growth_wrote(out),
            Purpose::Mend => self.slots_mended(),
            _ => unreachable!("{purpose:?} writes nothing"),
        }
    }

    /// Returns whether to continue. A write or a sync that has failed is final (rule R6).
    fn succeeded(&mut self, result: Result<(), IoFault>) -> bool {
        if let Err(fault) = result
            && !left_out(Rule::R6)
        {
            self.fail_by(&fault);
        }
        self.health == Health::Well
    }

    fn fail_by(&mut self, fault: &IoFault) {
        if self.why.is_none() {
            self.failed_area = Some(fault.area());
        }
        self.fail(fault.to_string());
    }

    pub(crate) fn fail(&mut self, why: String) {
        self.health = Health::Failed;
        self.why.get_or_insert(why);
    }

    /// To be called about ten times a second, for work that no request waits for.
    pub fn tick(&mut self) {
        let idle = self.queue.is_empty() && matches!(self.current, Current::Nothing) && !self.busy;
        self.busy = false;
        self.growth_tick();
        self.throttle.tick();
        self.scrub.earn(self.settings.scrub, self.extents.blocks() * BLOCK);
        if idle && self.health == Health::Well {
            if self.settings.when_idle {
                self.destage.hurry();
            }
            if !self.closed && !left_out(Rule::DClose) {
                self.close();
            }
        }
    }

    /// Starts all work that can start, and adds the actions and completions to `out`.
    pub fn run(&mut self, out: &mut Vec<Action<D>>) {
        if self.health == Health::Failed {
            if !self.failure_reported {
                self.failure_reported = true;
                out.push(Action::Complete(Completion::Failed));
            }
            return;
        }
        if self.health == Health::Damaged {
            return;
        }
        self.run_reads(out);
        loop {
            self.run_destage(out);
            self.run_reads(out);
            while self.run_changes(out) {}
            // An append that found no room is a reason to begin.
            if !self.destage.is_to_begin() || !self.can_destage() {
                break;
            }
        }
        self.run_scrub(out);
        self.run_growth(out);
        if let Some(writing) = self.meta.write() {
            self.request_io(Purpose::Meta, IoRequest::Write(writing), out);
        }
    }

    pub(crate) fn purpose(&self, token: Token) -> Purpose {
        self.purposes.get(token.0 as usize).copied().unwrap_or(Purpose::None)
    }

    pub(crate) fn request_io(&mut self, purpose: Purpose, request: IoRequest<D>, out: &mut Vec<Action<D>>) {
        let token = self.free_tokens.pop().unwrap_or_else(|| {
            self.purposes.push(Purpose::None);
            self.purposes.len() as u32 - 1
        });
        self.purposes[token as usize] = purpose;
        out.push(Action::Submit(Token(token), request));
    }

    /// Begins the next change. Returns false if the change has to wait, or there is none.
    fn run_changes(&mut self, out: &mut Vec<Action<D>>) -> bool {
        match std::mem::replace(&mut self.current, Current::Nothing) {
            Current::Nothing => {}
            Current::WriteMeta(change, completion)
                if self.meta.is_durable(change) && !self.has_slots_to_write() =>
            {
                out.extend(completion.map(Action::Complete));
            }
            Current::Return { change, truncation } if self.meta.is_durable(change) => {
                self.returned(truncation);
                // The return is not reported either before the slots are written that could not be read.
                let listed = Completion::Listed(self.meta.list().iter().collect());
                self.current = Current::WriteMeta(change, Some(listed));
                return true;
            }
            waits => {
                self.current = waits;
                return false;
            }
        }
        let Some(command) = self.queue.front() else { return self.write_closing(out) };
        match command {
            Command::Append { .. } => return self.append(out),
            Command::Promise(promise) => {
                let promise: Promise = *promise;
                self.meta.state.promise = promise;
                let change = self.changed();
                self.current = Current::WriteMeta(change, Some(Completion::Promised(promise)));
            }
            Command::Return { after, empty } => {
                let (after, empty) = (*after, *empty);
                if !self.destage.hold() {
                    return false;
                }
                if self.meta.state.truncations.len() >= MOST_TRUNCATIONS && !empty {
                    // Destaging goes past the oldest of them.
                    self.destage.hurry();
                    if self.can_destage() {
                        self.destage.go_on();
                        return false;
                    }
                }
                self.begin_return(after, empty);
            }
            Command::Discard { promise, after } => {
                let (promise, after) = (*promise, *after);
                if !self.destage.hold() {
                    return false;
                }
                self.meta.state.promise = promise;
                self.begin_return(after, true);
            }
            Command::Joined => {
                self.meta.forget_list();
                self.changed();
            }
            Command::Salvage => {
                let change = self.changed();
                self.current = Current::WriteMeta(change, None);
            }
            _ => unreachable!("it is not queued"),
        }
        self.queue.pop_front();
        true
    }

    /// Sets how many extents the volume has in this group now, as in [`Settings::extents`].
    pub fn resize(&mut self, extents: u64) {
        self.settings.extents = extents;
    }

    /// Extents of the volume in this group that have no place yet.
    pub(crate) fn missing(&self) -> u64 {
        let most = self.meta.state.blocks.div_ceil(self.extents.blocks()).min(self.settings.extents);
        most.saturating_sub(self.extents.mapped())
    }

    /// Writes the replica's page, with the present state.
    pub(crate) fn changed(&mut self) -> u64 {
        let state = &mut self.meta.state;
        state.commit_point = self.known.commit_point;
        if !left_out(Rule::R8) {
            state.epoch = self.known.epoch;
        }
        state.durable = self.log.durable;
        self.meta.changed()
    }

    /// Builds the index from the records of the log.
    pub(crate) fn rebuild_index(&mut self) {
        self.index.clear();
        for number in self.log.front()..self.log.next() {
            if let Some(record) = self.log.get(number).copied().filter(Record::counts) {
                self.index_record(number, &record);
            }
        }
    }

    /// Enters a record as the newest version of its blocks.
    pub(crate) fn index_record(&mut self, number: u64, record: &Record) {
        let log = &mut self.log;
        let replaces = |old, block| log.replace(old, block);
        self.index.insert(record.range(), number, record.kind == Kind::Data, replaces);
    }

    /// Notes that these blocks do not match their checksums.
    pub(crate) fn found_corrupt(&mut self, blocks: std::ops::Range<u64>) {
        self.corrupt += 1;
        self.corrupt_blocks.insert(blocks);
    }

    pub(crate) fn address(&self, block: u64) -> Address {
        Address { volume: self.id.volume, group: self.id.group, block }
    }

    /// Where on the log's device a place of the ring is.
    pub(crate) fn ring_at(&self, at: u64) -> u64 {
        self.places.ring_at + at
    }
}

/// Whether the extents of such a record need a place on the device. Those that have none are zeroes anyway.
pub(crate) fn needs_place(kind: Kind) -> bool {
    kind == Kind::Data
}

/// Ranges in order, those that touch as one.
pub(crate) fn merged(ranges: impl Iterator<Item = std::ops::Range<u64>>) -> RangeSet {
    let mut set = RangeSet::default();
    ranges.for_each(|range| set.insert(range));
    set
}
