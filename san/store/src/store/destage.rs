//! From the log to the extents.
//!
//! ```text
//! choose ─▶ slices: recall from the log, spread over extents ─▶ slots ─▶ sync ─▶ page with the new tail ─▶ free
//! ```
//!
//! A round takes the oldest records, none above what is acknowledged (rule R1), and brings the last version of each block to its
//! place, extent by extent. Places are written over: until the round's end the log has all that it brings, reads find it
//! there, and a start does it again. So a slot may come before its data. What a later acknowledged record brings anyway
//! is left out.
//!
//! What is not in memory any more is recalled: read in the log's order, in large reads, a slice of the round at a time, while the
//! slice before is spread. To read each extent's blocks where they are in the log would cost a read for each write. A
//! slice ends before the next begins, because both may have a version of one block.

mod recall;
mod slots;
mod spread;

use loadline_san_core::ids::Position;
use loadline_san_core::rule::{Rule, left_out};
use loadline_san_core::store::Completion;
use loadline_san_protocol::log::SECTOR;
use loadline_san_protocol::slot::BlockState;

use crate::extents::Place;
use crate::io::{Area, Data, IoRequest, Piece, Reading};
use crate::log::Kind;
use crate::store::read::add_piece;
use crate::store::{Action, Purpose, Settings, Store};

use recall::Recall;
pub(crate) use spread::Spreads;

/// What a device is asked to write at the same time when much is to be destaged: fewer would let the log fill up.
const MOST_AT_ONCE: u64 = 32;
/// A round begins with so many bytes, or what is chosen for one if that is less, while there is no memory to hold more.
const EARLY: u64 = 8 << 20;
/// The most pairs of record and extent of a round, unless one record has more.
const MOST_PAIRS: usize = 1 << 16;
/// A key of a pair has its slice above so many bits, and its extent in them: a group has fewer extents by far.
const SLICE: u32 = 48;

/// The state of destaging: the round in progress, and what decides when the next one begins.
#[derive(Debug, Default)]
pub(crate) struct Destage {
    phase: Phase,
    /// It is to begin even if the log is nearly empty.
    hurry: bool,
    /// No round may begin.
    held: bool,
    /// Nor while slots are written outside of any.
    mending: bool,
    /// Rounds that have ended.
    rounds: u64,
    /// Bytes of the log that they have freed.
    freed: u64,
    /// Records below this number are destaged by this round.
    below: u64,
    /// The last of their positions, if any of them is an entry.
    last: Option<Position>,
    /// Their bytes.
    bytes: u64,
    /// What was earned for writers of these, and what a write of the round earns that costs 1.
    earned: u64,
    worth: u64,
    /// Which extent each of them touches, as a key with its slice: in the order of the slices, then the extents, then the log.
    pairs: Vec<(u64, u64)>,
    /// Those before this one are in the works.
    next: usize,
    recall: Recall,
    /// The first record of the slice that is spread.
    slice_front: u64,
    /// The round ends without freeing anything: a return waits. The log has all that the round has brought, as after a crash.
    cut: bool,
    works: Vec<Work>,
    free_works: Vec<u32>,
    /// Places whose slots change, and extents that are not there and were trimmed.
    touched: Vec<Place>,
    /// The slots of those before this one are in the works.
    next_slot: usize,
    trimmed: Vec<u64>,
    /// What was asked of the device and is not done, and writes that wait to be asked.
    out: usize,
    /// It was written to since it was last synced.
    dirty: bool,
    /// Slots between two that change are written along with them if there are fewer than this.
    apart: Place,
    /// The change that frees the log.
    change: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    #[default]
    Idle,
    Data,
    Slots,
    Sync,
    Tail,
}

/// An extent that is worked on.
#[derive(Debug, Default)]
struct Work {
    extent: u64,
    place: Place,
    /// Blocks that get data, rising: which one, its checksum, and the record that has it.
    blocks: Vec<(u32, u32, u64)>,
    writes: usize,
    /// Of the round.
    pairs: usize,
}

impl Destage {
    fn take_work(&mut self) -> u32 {
        self.free_works.pop().unwrap_or_else(|| {
            self.works.push(Work::default());
            self.works.len() as u32 - 1
        })
    }

    /// A round is to begin if there is anything to do.
    pub(crate) fn hurry(&mut self) {
        self.hurry = true;
    }

    /// Whether a round is under way.
    pub(crate) fn is_active(&self) -> bool {
        self.phase != Phase::Idle
    }

    /// Whether a round is to begin, as soon as there is anything to do.
    pub(crate) fn is_to_begin(&self) -> bool {
        self.hurry && self.is_quiet()
    }

    /// No round is to begin. Whether none is under way, nor anything else that writes slots.
    pub(crate) fn hold(&mut self) -> bool {
        self.held = true;
        !self.is_active() && !self.mending
    }

    /// Nothing writes slots, and nothing has asked for writes of slots to be held.
    pub(crate) fn is_quiet(&self) -> bool {
        !self.is_active() && !self.held && !self.mending
    }

    /// Slots are being written outside of any round, or have been.
    pub(crate) fn mend(&mut self, mending: bool) {
        self.mending = mending;
    }

    /// Whether slots are being written outside of any round.
    pub(crate) fn is_mending(&self) -> bool {
        self.mending
    }

    /// Rounds that have ended.
    pub(crate) fn rounds(&self) -> u64 {
        self.rounds
    }

    /// Bytes of the log that all rounds have freed.
    pub(crate) fn freed(&self) -> u64 {
        self.freed
    }

    /// Bytes of this round that writers were given credit for.
    pub(crate) fn earned(&self) -> u64 {
        self.earned
    }

    /// Whether no round is under way that frees entries above this position.
    pub(crate) fn is_within(&self, position: Position) -> bool {
        !self.is_active() || self.last <= Some(position)
    }

    /// Rounds may begin again.
    pub(crate) fn go_on(&mut self) {
        self.held = false;
    }
}

impl<D: Data> Store<D> {
    /// Whether the oldest record could be destaged.
    pub(crate) fn can_destage(&self) -> bool {
        self.log.get(self.log.front()).is_some() && self.may_go(self.log.front())
    }

    /// Whether a record can go: it is durable, and acknowledged or not needed.
    fn may_go(&self, number: u64) -> bool {
        let Some(record) = self.log.get(number) else { return false };
        number <= self.log.durable
            && (!record.counts() || record.position <= self.known.acknowledged || left_out(Rule::R1))
    }

    /// Goes on with the round, or begins one.
    pub(crate) fn run_destage(&mut self, out: &mut Vec<Action<D>>) {
        loop {
            match self.destage.phase {
                Phase::Idle => {
                    let wanted = self.destage.hurry || self.log.used() > self.enough();
                    if !self.destage.is_quiet() || !wanted || !self.choose() {
                        return;
                    }
                }
                Phase::Data => {
                    if !self.run_slices(out) {
                        return;
                    }
                    if left_out(Rule::R1Free) && !self.destage.cut {
                        self.move_tail();
                    }
                    self.destage.phase = Phase::Slots;
                    self.change_slots();
                }
                Phase::Slots => {
                    if self.write_slots(out) || self.destage.out > 0 {
                        return;
                    }
                    if self.destage.cut {
                        self.destage.give_up();
                        return;
                    }
                    self.destage.phase = Phase::Sync;
                    if self.destage.dirty {
                        self.sync(out);
                    }
                }
                Phase::Sync if self.destage.out > 0 => return,
                Phase::Sync => {
                    self.destage.phase = Phase::Tail;
                    if !left_out(Rule::R1Free) {
                        self.move_tail();
                    }
                }
                Phase::Tail => {
                    if !self.meta.is_durable(self.destage.change) && !left_out(Rule::DRing) {
                        return;
                    }
                    self.end_round();
                }
            }
        }
    }

    /// Bytes of the log that are destaged together.
    pub(crate) fn round_bytes(&self) -> u64 {
        round_bytes(&self.settings, self.log.ring())
    }

    /// A round begins when the log has more than this. Together they cost less: a slot is written once for all blocks of an
    /// extent.
    fn enough(&self) -> u64 {
        let low = self.log.ring() / 100 * u64::from(self.settings.low);
        let enough = low.min(self.settings.begin) + self.round_bytes();
        if self.settings.held == 0 { enough.min(EARLY) } else { enough }
    }

    /// What the device is asked to write at the same time: the more, the more is to be destaged.
    fn at_once(&self) -> usize {
        let (enough, backlog) = (self.enough(), self.backlog());
        let span = self.throttle.high().saturating_sub(enough).max(1);
        let above = backlog.saturating_sub(enough).min(span);
        if self.destage.held {
            // A request waits for the round's end.
            return MOST_AT_ONCE as usize;
        }
        if backlog < enough && !self.reads.are_idle() {
            // The log has room, and a read waits for the device.
            return 1;
        }
        let least = self.settings.at_once.max(1);
        (least + MOST_AT_ONCE.saturating_sub(least) * above / span) as usize
    }

    fn sync(&mut self, out: &mut Vec<Action<D>>) {
        self.destage.out += 1;
        self.destage.dirty = false;
        self.request_io(Purpose::Destage, IoRequest::Sync(Area::Capacity), out);
    }

    /// Chooses the records of a round. False if there are none.
    fn choose(&mut self) -> bool {
        self.destage.hurry = false;
        let most = self.round_bytes();
        let front = self.log.front();
        let mut pairs = std::mem::take(&mut self.destage.pairs);
        pairs.clear();
        let mut ends = std::mem::take(&mut self.destage.recall.ends);
        ends.clear();
        let (mut below, mut bytes, mut last, mut recalled) = (front, 0, None, 0);
        while bytes < most && pairs.len() < MOST_PAIRS && self.may_go(below) {
            let record = self.log.get(below).expect("it may go");
            if record.counts() {
                last = last.max(Some(record.position));
                let slice = (ends.len() as u64) << SLICE;
                pairs.extend(self.extents.extents_of(record.range()).map(|extent| (slice | extent, below)));
                if self.is_to_be_recalled(below, record) {
                    recalled += recall::bytes_of(record);
                }
            }
            bytes += self.log.length_of(below);
            below += 1;
            if recalled >= self.settings.recall.max(1) {
                ends.push(below);
                recalled = 0;
            }
        }
        if ends.last() != Some(&below) {
            ends.push(below);
        }
        self.destage.recall.ends = ends;
        self.destage.recall.begin(front);
        pairs.sort_unstable();
        self.destage.pairs = pairs;
        if below == front {
            return false;
        }
        let round = &mut self.destage;
        (round.phase, round.below, round.last, round.bytes) = (Phase::Data, below, last, bytes);
        (round.earned, round.next, round.cut, round.slice_front) = (0, 0, false, front);
        round.touched.clear();
        round.trimmed.clear();
        self.destage.worth = bytes / self.expected_cost();
        true
    }

    /// Takes the next extent of the round.
    fn begin_work(&mut self, out: &mut Vec<Action<D>>) {
        let (key, _) = self.destage.pairs[self.destage.next];
        let extent = extent_of(key);
        let pairs = self.destage.pairs[self.destage.next..].iter().take_while(|pair| pair.0 == key).count();
        let range = self.destage.next..self.destage.next + pairs;
        self.destage.next = range.end;
        // Which record each block gets its content of: the last one of the round.
        let size = self.extents.blocks();
        let first = extent * size;
        let (mut last, mut written) = ([0u64; 64], 0u64);
        for (_, number) in &self.destage.pairs[range] {
            let record = self.log.get(*number).expect("it is in the round");
            let blocks = record.range();
            for block in blocks.start.max(first)..blocks.end.min(first + size) {
                last[(block - first) as usize] = *number;
                written |= 1 << (block - first);
            }
        }
        let index = self.destage.take_work();
        let mut blocks = std::mem::take(&mut self.destage.works[index as usize].blocks);
        blocks.clear();
        let place = self.extents.place(extent);
        let mut changes = false;
        while written != 0 {
            let within = written.trailing_zeros();
            written &= written - 1;
            let number = last[within as usize];
            let block = first + u64::from(within);
            let record = self.log.get(number).expect("it is in the round");
            let is_newest = record.kind == Kind::Data && !self.log.is_replaced(record, block);
            if !is_newest || self.index.has_others() {
                let newest = self.index.newest(block).expect("the log has it");
                if newest >= self.destage.recall.end() && self.may_go(newest) {
                    continue;
                }
            }
            changes = true;
            let (state, sum) = match record.kind {
                Kind::Data => {
                    let sum = self.log.checksum(record, block);
                    blocks.push((within, sum, number));
                    (BlockState::Data, sum)
                }
                Kind::Zeroes => (BlockState::Zeroes, 0),
                _ => (BlockState::Nothing, 0),
            };
            if let Some(place) = place {
                self.cache.forget(block);
                self.extents.at_mut(place).slot.set(within, state, sum);
            }
        }
        match place {
            _ if !changes => {}
            Some(place) => self.destage.touched.push(place),
            None => self.destage.trimmed.push(extent),
        }
        let work = &mut self.destage.works[index as usize];
        *work = Work { extent, place: place.unwrap_or(0), blocks, writes: 0, pairs };
        let blocks = std::mem::take(&mut work.blocks);
        if blocks.is_empty() {
            self.end_work(index);
        } else if blocks.iter().all(|(_, _, number)| self.held.get(*number).is_some()) {
            self.spread(index, &blocks, None, out);
        } else {
            self.gather(index, &blocks, out);
        }
        self.destage.works[index as usize].blocks = blocks;
    }

    /// Reads blocks of an extent from the log.
    fn gather(&mut self, index: u32, blocks: &[(u32, u32, u64)], out: &mut Vec<Action<D>>) {
        let extent = self.destage.works[index as usize].extent;
        let mut pieces = self.memory.pieces();
        for (first, (within, _, number)) in (0..).zip(blocks) {
            let record = self.log.get(*number).expect("it is in the round");
            let at = self.ring_at(record.data_at(extent * self.extents.blocks() + u64::from(*within)));
            add_piece(&mut pieces, Piece { area: Area::Log, at, first, blocks: 1 });
        }
        let reading = Reading { blocks: blocks.len() as u32, pieces };
        self.destage.out += 1;
        self.request_io(Purpose::Gather(index), IoRequest::Read(reading), out);
    }

    /// The data of an extent was read from the log, or could not be.
    pub(crate) fn gathered(&mut self, index: u32, data: Option<D>, out: &mut Vec<Action<D>>) {
        self.destage.out -= 1;
        let work = &mut self.destage.works[index as usize];
        let (extent, place, blocks) = (work.extent, work.place, std::mem::take(&mut work.blocks));
        let Some(mut data) = data else {
            if blocks.len() > 1 {
                // Most of it may be readable: each is read alone.
                for block in &blocks {
                    let one = self.destage.take_work();
                    let work = &mut self.destage.works[one as usize];
                    (work.extent, work.place, work.writes, work.pairs) = (extent, place, 0, 0);
                    let mut alone = std::mem::take(&mut work.blocks);
                    alone.clear();
                    alone.push(*block);
                    self.gather(one, &alone, out);
                    self.destage.works[one as usize].blocks = alone;
                }
                self.destage.works[index as usize].blocks = blocks;
                self.end_work(index);
                return;
            }
            // What is at its place has another checksum than the slot will have: it is found to be corrupt when it is read.
            let block = extent * self.extents.blocks() + u64::from(blocks[0].0);
            self.found_corrupt(block..block + 1);
            out.push(Action::Complete(Completion::Corrupt { block }));
            self.destage.works[index as usize].blocks = blocks;
            self.end_work(index);
            return;
        };
        let first = extent * self.extents.blocks();
        for (at, (within, sum, _)) in (0..).zip(&blocks) {
            let is = data.take_checksum(at, self.address(first + u64::from(*within)));
            if is != *sum {
                // It goes to its place as it is, and its checksum stays what it was.
                let block = first + u64::from(*within);
                self.found_corrupt(block..block + 1);
                out.push(Action::Complete(Completion::Corrupt { block }));
                if left_out(Rule::DBad) {
                    self.extents.at_mut(place).slot.set(*within, BlockState::Data, is);
                }
            }
        }
        self.spread(index, &blocks, Some(&data), out);
        self.destage.works[index as usize].blocks = blocks;
    }

    fn end_work(&mut self, index: u32) {
        let pairs = self.destage.works[index as usize].pairs;
        self.destage.free_works.push(index);
        // A part of another has none.
        if pairs > 0 {
            self.earn_for(cost_of_blocks(pairs));
        }
    }

    /// A write of the round is done that costs the device so much: writers get what that is worth, together no more than the round
    /// frees.
    fn earn_for(&mut self, cost: u64) {
        let bytes = (self.destage.worth * cost).min(self.destage.bytes - self.destage.earned);
        self.destage.earned += bytes;
        self.earn(bytes);
    }
}

/// Bytes of a log of so many that are destaged together.
pub(crate) fn round_bytes(settings: &Settings, ring: u64) -> u64 {
    settings.round.min(ring / 4).max(SECTOR as u64)
}

/// About what a write of so many blocks costs a device, where one of few bytes is 1.
fn cost_of_blocks(blocks: usize) -> u64 {
    1 + blocks as u64 / 8
}

/// The extent of a pair's key.
fn extent_of(key: u64) -> u64 {
    key & ((1 << SLICE) - 1)
}
