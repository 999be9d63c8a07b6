//! The configuration store, as a node uses it: one call at a time, on a thread of its own, records before everything else.
//!
//! The order of calls and what each of them reads and commits are those of `san/node/src/config/service.rs`, `node/reconcile.rs` and
//! `node/reach.rs`. How long a call takes is an assumption ([`READ`], [`COMMIT`], [`BYTES_A_SECOND`]). The store itself answers any number
//! of nodes at once; how much it is asked for is counted.

use std::collections::{BTreeSet, VecDeque};

use loadline_san_core::ids::Epoch;
use loadline_san_core::record::Record;
use loadline_san_core::swap::Answer;
use loadline_san_core::volume::{Event, Status};
use loadline_san_protocol::record;

use super::question::{Question, Reached};
use super::{Happening, World};
use crate::time::{MS, Time, US};

/// A read of one key, from the call to its answer.
pub const READ: Time = 500 * US;
/// A commit, from the call to its answer.
pub const COMMIT: Time = 2 * MS;
/// How fast a node receives and parses the whole configuration.
pub const BYTES_A_SECOND: u64 = 100_000_000;
/// How long a call waits for a store that does not answer.
const LIMIT: Time = 3_000 * MS;
/// How long after the configuration was read it is read again, if there was no notice of a change.
pub(in crate::scale) const UNNOTICED: Time = 1_000 * MS;
/// Bytes of the configuration beside records: the entry of a volume, of a replica, and of a node with its device.
const VOLUME_BYTES: u64 = 250;
const REPLICA_BYTES: u64 = 200;
const NODE_BYTES: u64 = 500;

/// A call of a node.
#[derive(Debug, Clone)]
pub(in crate::scale) enum Call {
    /// The record of a volume.
    Read(usize, Epoch),
    /// Records of several volumes that wait at once: the revision, and those records that were not read at it before.
    ReadMany(Vec<(usize, Epoch)>),
    /// A compare-and-swap of the record of a volume.
    Propose(usize, Box<Record>, Epoch),
    /// The revision, and the whole configuration: there was a notice.
    Catalog,
    /// The revision, and the questions of all nodes: there was a notice.
    Questions,
    /// The revision: there was no notice for a while.
    Revision,
    /// A question is written, if there is a new one, and the answers of these nodes are read.
    Ask(Option<Question>, Vec<usize>),
    /// An answer is written.
    Answer(Reached),
    /// A place for a copy of a volume is chosen and written.
    Plan(usize),
    /// A change of the catalog that concerns a copy of a volume: it has been made, or it is gone.
    Note(usize),
}

/// The calls of one node.
#[derive(Debug, Default)]
pub(in crate::scale) struct Calls {
    records: VecDeque<Call>,
    jobs: VecDeque<Call>,
    /// A call is under way.
    busy: bool,
    known: Known,
}

/// Volumes whose records a node has read at a revision of the store.
#[derive(Debug, Default)]
struct Known {
    revision: u64,
    records: BTreeSet<usize>,
}

impl Known {
    /// Reads records at a revision. Returns how many of them are read from the store.
    fn read(&mut self, revision: u64, reads: &[(usize, Epoch)]) -> u64 {
        if self.revision != revision {
            *self = Known { revision, records: BTreeSet::new() };
        }
        reads.iter().filter(|(volume, _)| self.records.insert(*volume)).count() as u64
    }
}

/// What the store was asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::scale) struct Load {
    /// Calls that read: of one record or key, or of the whole configuration.
    pub(in crate::scale) reads: u64,
    /// Those of them that read the whole configuration.
    pub(in crate::scale) catalogs: u64,
    /// Bytes that were read with whole configurations.
    pub(in crate::scale) bytes: u64,
    /// Commits of records.
    pub(in crate::scale) records: u64,
    /// Commits of questions and answers.
    pub(in crate::scale) questions: u64,
    /// Commits of the catalog.
    pub(in crate::scale) notes: u64,
}

impl Load {
    pub(in crate::scale) fn commits(&self) -> u64 {
        self.records + self.questions + self.notes
    }

    pub(in crate::scale) fn add(&mut self, other: &Load) {
        self.reads += other.reads;
        self.catalogs += other.catalogs;
        self.bytes += other.bytes;
        self.records += other.records;
        self.questions += other.questions;
        self.notes += other.notes;
    }
}

/// Bytes of a volume in the configuration: of its record, its entry and those of its copies.
pub(in crate::scale) fn bytes_of(record: &Record) -> u64 {
    record_bytes(record) + VOLUME_BYTES + record.homes.len() as u64 * REPLICA_BYTES
}

/// Bytes of a record.
pub(in crate::scale) fn record_bytes(record: &Record) -> u64 {
    record::encode(record).expect("what core proposes has bytes").len() as u64
}

impl Calls {
    /// Adds a call. If a volume repeats a call that waits already, it gets one answer.
    fn add(&mut self, call: Call) {
        let queue = match &call {
            Call::Read(..) | Call::Propose(..) => &mut self.records,
            _ => &mut self.jobs,
        };
        for waits in queue.iter_mut() {
            match (waits, &call) {
                (Call::Read(of, old), Call::Read(volume, new)) if of == volume => {
                    *old = *new;
                    return;
                }
                (Call::Propose(of, _, old), Call::Propose(volume, _, new)) if of == volume && old == new => {
                    return;
                }
                (Call::Catalog, Call::Catalog) | (Call::Questions, Call::Questions) => return,
                (Call::Revision, Call::Revision) => return,
                (Call::Plan(of), Call::Plan(volume)) if of == volume => return,
                _ => {}
            }
        }
        queue.push_back(call);
    }

    /// The next call: records come first, and reads that wait one behind the other are one call.
    fn take(&mut self) -> Option<Call> {
        let mut reads = Vec::new();
        while let Some(Call::Read(volume, asked_at)) = self.records.front() {
            reads.push((*volume, *asked_at));
            self.records.pop_front();
        }
        match reads[..] {
            [] => self.records.pop_front().or_else(|| self.jobs.pop_front()),
            [(volume, asked_at)] => Some(Call::Read(volume, asked_at)),
            _ => Some(Call::ReadMany(reads)),
        }
    }
}

impl World {
    /// A node calls the store.
    pub(in crate::scale) fn call(&mut self, node: usize, call: Call) {
        let Some(process) = &mut self.nodes[node].process else { return };
        process.calls.add(call);
        self.next_call(node);
    }

    fn next_call(&mut self, node: usize) {
        let Some(process) = &mut self.nodes[node].process else { return };
        if process.calls.busy {
            return;
        }
        let calls = &mut process.calls;
        let Some(call) = calls.take() else { return };
        calls.busy = true;
        let known = &calls.known;
        let unknown = |reads: &[(usize, Epoch)]| match known.revision == self.revision {
            true => reads.iter().filter(|(volume, _)| !known.records.contains(volume)).count(),
            false => reads.len(),
        };
        let life = process.life;
        let takes = match &call {
            Call::Read(..) | Call::Revision => READ,
            Call::ReadMany(reads) => READ * (1 + unknown(reads) as u64),
            Call::Questions => 2 * READ,
            Call::Propose(..) | Call::Answer(_) => READ + COMMIT,
            Call::Note(_) => COMMIT,
            Call::Catalog => 2 * READ + self.catalog_ns(),
            Call::Plan(_) => READ + self.catalog_ns() + COMMIT,
            Call::Ask(question, of) => {
                let asks = if question.is_some() { READ + COMMIT } else { 0 };
                asks + READ * of.len() as u64
            }
        };
        let waits = self.away_until.saturating_sub(self.now);
        match waits < LIMIT {
            true => self.after(waits + takes, Happening::Called(node, life, call, true)),
            false => self.after(LIMIT, Happening::Called(node, life, call, false)),
        }
    }

    /// Bytes of the whole configuration.
    pub(in crate::scale) fn catalog_bytes(&self) -> u64 {
        self.volume_bytes + self.nodes.len() as u64 * NODE_BYTES
    }

    fn catalog_ns(&self) -> Time {
        self.catalog_bytes() * 1_000_000_000 / BYTES_A_SECOND
    }

    /// A call has ended, with an answer or without one.
    pub(in crate::scale) fn called(&mut self, node: usize, life: u64, call: Call, answered: bool) {
        if !self.is_alive(node, life) {
            return;
        }
        if let Some(process) = &mut self.nodes[node].process {
            process.calls.busy = false;
        }
        if answered {
            self.answered(node, call);
        } else if let Call::Ask(question, _) = call {
            self.not_asked(node, question);
        } else if let Call::Plan(_) | Call::Note(_) | Call::Answer(_) | Call::Catalog = call {
            self.call(node, call);
        }
        self.next_call(node);
    }

    fn answered(&mut self, node: usize, call: Call) {
        let whole = self.catalog_bytes();
        let load = |reads| Load { reads, ..Load::default() };
        match call {
            Call::Read(volume, asked_at) => {
                self.count(load(1));
                let record = self.volumes[volume].record.clone();
                self.step_volume(node, volume, Event::Seen(record, asked_at));
            }
            Call::ReadMany(reads) => {
                let Some(process) = &mut self.nodes[node].process else { return };
                let asked = process.calls.known.read(self.revision, &reads);
                self.count(load(1 + asked));
                for (volume, asked_at) in reads {
                    let record = self.volumes[volume].record.clone();
                    self.step_volume(node, volume, Event::Seen(record, asked_at));
                }
            }
            Call::Propose(volume, record, replaces) => {
                let (made_by, now) = (record.made_by, self.volumes[volume].record.clone());
                let answer = if now.made_by == made_by && now.epoch == record.epoch {
                    self.count(load(1));
                    Answer::Committed
                } else if now.epoch != replaces {
                    self.count(load(1));
                    Answer::Refused(now)
                } else {
                    self.count(Load { records: 1, ..load(1) });
                    self.commit(volume, *record);
                    Answer::Committed
                };
                self.step_volume(node, volume, Event::Swapped(made_by, answer, replaces));
            }
            Call::Catalog => {
                self.count(Load { catalogs: 1, bytes: whole, ..load(2) });
                self.learn(node);
            }
            Call::Questions => {
                self.count(load(2));
                self.read_questions(node);
            }
            Call::Revision => self.count(load(1)),
            Call::Ask(question, of) => {
                let asks = u64::from(question.is_some());
                self.count(Load { questions: asks, ..load(asks + of.len() as u64) });
                self.asked(node, question, &of);
            }
            Call::Answer(reached) => {
                self.count(Load { questions: 1, ..load(1) });
                self.write_answer(node, reached);
            }
            Call::Plan(volume) => {
                self.count(Load { catalogs: 1, bytes: whole, notes: 1, ..load(1) });
                self.planned(node, volume);
                self.notice();
            }
            Call::Note(volume) => {
                self.count(Load { notes: 1, ..Load::default() });
                self.noted(node, volume);
                self.notice();
            }
        }
    }

    fn count(&mut self, load: Load) {
        self.load.add(&load);
        let second = ((self.now - self.phase_began) / (1_000 * MS)) as usize;
        if self.seconds.len() <= second {
            self.seconds.resize(second + 1, Load::default());
        }
        self.seconds[second].add(&load);
    }

    fn commit(&mut self, volume: usize, new: Record) {
        let of = &mut self.volumes[volume];
        let bytes = bytes_of(&new);
        self.volume_bytes = self.volume_bytes - of.bytes + bytes;
        (of.record, of.bytes) = (new, bytes);
        of.writes += 1;
        let is_whole = |group: &loadline_san_core::record::Group| {
            group.departed.is_empty() && group.in_sync.len() == self.cluster.copies
        };
        let whole = of.record.groups.iter().all(is_whole);
        if !whole {
            of.synced = None;
        } else if of.synced.is_none() {
            of.synced = Some(self.now);
        }
        self.log.push(volume);
        self.notice();
    }

    /// All nodes notice that something has changed.
    pub(in crate::scale) fn notice(&mut self) {
        self.revision += 1;
        for node in 0..self.nodes.len() {
            self.call(node, Call::Catalog);
            self.call(node, Call::Questions);
        }
    }

    /// A node has read the whole configuration: its volumes learn of records that are newer than theirs.
    fn learn(&mut self, node: usize) {
        let Some(process) = &mut self.nodes[node].process else { return };
        let from = std::mem::replace(&mut process.learnt, self.log.len());
        for at in from..self.log.len() {
            let volume = self.log[at];
            let record = &self.volumes[volume].record;
            let is_news = self.nodes[node].process.as_ref().and_then(|process| process.volumes.get(&volume));
            let is_news = is_news.is_some_and(|known| {
                known.status() != Status::Watching
                    && known.record().is_some_and(|known| known.epoch < record.epoch)
            });
            if is_news {
                // When it was read is not known: an older one proves nothing.
                let record = record.clone();
                self.step_volume(node, volume, Event::Seen(record, Epoch(0)));
            }
        }
    }

    /// A node that has had no notice for a while asks all the same: for its configuration, and for questions of others.
    pub(in crate::scale) fn poll(&mut self, node: usize, life: u64) {
        if self.is_alive(node, life) {
            self.call(node, Call::Revision);
            self.call(node, Call::Questions);
            self.after(UNNOTICED, Happening::Poll(node, life));
        }
    }
}
