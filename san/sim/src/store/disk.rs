//! What is on the disk: as the operating system has it, and as a loss of power leaves it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use loadline_san_core::ids::{Epoch, Position, Sequence};
use loadline_san_core::message::{Content, Entry, Mention, Payload, Promise, Rotten, What};
use loadline_san_core::rule::{Rule, left_out};

use super::{Block, Blocks, EXTENT, MOST_RANGES, ZERO};
use crate::rng::Rng;

/// A record of the log.
#[derive(Debug, Clone)]
pub struct Record {
    /// Its number in the log: never used again, not even when the record is lost.
    pub number: u64,
    /// Where its entry stands among all of the group.
    pub position: Position,
    /// Whether it is the next of its ownership.
    pub sequenced: bool,
    /// What it does.
    pub entry: Entry<Blocks>,
    /// What the replica knew when it was appended.
    pub known: Known,
    /// It cannot be read any more.
    pub rotten: bool,
}

impl Record {
    /// What it makes of one of its blocks. `None`: the space is given back.
    fn value(&self, block: u64) -> Option<Block> {
        match &self.entry.what {
            What::Data(payload) => {
                Some(payload.data[payload.first as usize + (block - self.entry.block) as usize])
            }
            What::Zeroes => Some(ZERO),
            What::Open | What::Trim => None,
        }
    }
}

/// A mark, and beside it the epoch that it came with (rule R8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// All entries up to this position are acknowledged.
    pub mark: Position,
    /// The replica's epoch.
    pub epoch: Epoch,
}

impl Default for Known {
    fn default() -> Known {
        Known { mark: Position::START, epoch: Epoch(0) }
    }
}

impl Known {
    /// Neither goes back.
    pub(super) fn raise(&mut self, other: Known) {
        self.mark = self.mark.max(other.mark);
        self.epoch = self.epoch.max(other.epoch);
    }
}

/// Something that is written as a whole.
#[derive(Debug)]
pub(super) struct Cached<T> {
    pub(super) written: T,
    synced: T,
    /// The two may differ.
    dirty: bool,
}

impl<T: Clone> Cached<T> {
    fn new(value: T) -> Cached<T> {
        Cached { written: value.clone(), synced: value, dirty: false }
    }

    pub(super) fn synced(&self) -> &T {
        &self.synced
    }

    pub(super) fn write(&mut self, change: impl FnOnce(&mut T)) {
        change(&mut self.written);
        self.dirty = true;
    }

    fn sync(&mut self) {
        if std::mem::take(&mut self.dirty) {
            self.synced = self.written.clone();
        }
    }

    fn power_loss(&mut self, rng: &mut Rng) {
        if self.dirty && rng.chance(2) {
            self.written = self.synced.clone();
        }
        self.sync();
    }
}

/// Which of the two views of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum View {
    /// As the operating system shows it.
    Written,
    /// As it is when all that is not synced is lost.
    Synced,
}

/// Which records of the log count. Written as a whole, so that entries are dropped all or none.
#[derive(Debug, Clone)]
struct Span {
    /// Those below are freed.
    tail: u64,
    /// These were dropped by a return.
    dropped: BTreeSet<u64>,
    /// The end of the sequence before the record of this number.
    end: Position,
    end_before: u64,
}

impl Span {
    fn has(&self, number: u64) -> bool {
        number >= self.tail && !self.dropped.contains(&number)
    }
}

/// Consecutive blocks that are allocated together.
#[derive(Debug)]
struct Extent {
    stamp: Epoch,
    /// Nothing in a tombstone.
    blocks: Option<[Block; EXTENT as usize]>,
}

/// A change of the map of extents that is written and not synced.
#[derive(Debug)]
pub(super) struct Commit {
    /// What it brings, and with which stamps.
    pub(super) records: Vec<(Record, Epoch)>,
    /// Stored in the same write.
    pub(super) known: Known,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Disk {
    pub(super) blocks: u64,
    pub(super) promise: Cached<Promise>,
    pub(super) known: Cached<Known>,
    /// What a returning replica listed: in order, apart from each other.
    pub(super) list: Cached<Vec<Range<u64>>>,
    /// What is written and not synced. Its records are in the log until it is.
    pub(super) commits: Vec<Commit>,
    /// By their numbers.
    log: VecDeque<Record>,
    span: Cached<Span>,
    /// The number of the next record, and of the first that is not synced.
    next: u64,
    unsynced: u64,
    extents: BTreeMap<u64, Extent>,
    /// Blocks of extents.
    rotten: BTreeSet<u64>,
}

impl Disk {
    pub(super) fn new(blocks: u64, promise: Promise) -> Disk {
        let span = Span { tail: 1, dropped: BTreeSet::new(), end: Position::START, end_before: 1 };
        Disk {
            blocks,
            promise: Cached::new(promise),
            known: Cached::new(Known::default()),
            list: Cached::new(Vec::new()),
            commits: Vec::new(),
            log: VecDeque::new(),
            span: Cached::new(span),
            next: 1,
            unsynced: 1,
            extents: BTreeMap::new(),
            rotten: BTreeSet::new(),
        }
    }

    /// The records that count.
    pub(super) fn log(&self, view: View) -> impl DoubleEndedIterator<Item = &Record> {
        let (span, limit) = match view {
            View::Written => (&self.span.written, u64::MAX),
            View::Synced => (&self.span.synced, self.unsynced),
        };
        self.log.iter().filter(move |record| record.number < limit && span.has(record.number))
    }

    pub(super) fn is_synced(&self, record: &Record) -> bool {
        record.number < self.unsynced
    }

    /// The last of the sequence that is written, also if its record is freed.
    pub(super) fn end(&self) -> Position {
        self.end_before(u64::MAX)
    }

    fn end_before(&self, number: u64) -> Position {
        let span = &self.span.written;
        let counts =
            |record: &&Record| record.sequenced && record.number >= span.end_before && record.number < number;
        self.log.iter().rev().find(counts).map_or(span.end, |record| record.position)
    }

    /// The highest mark and epoch that are written anywhere.
    pub(super) fn known(&self) -> Known {
        let mut known = self.known.written;
        let commits = self.commits.iter().map(|commit| commit.known);
        for mut other in self.log(View::Written).map(|record| record.known).chain(commits) {
            if left_out(Rule::R8) {
                other.epoch = known.epoch;
            }
            known.raise(other);
        }
        known
    }

    /// What is stored of this: the mark and its epoch (rule R8).
    pub(super) fn to_keep(&self, known: Known) -> Known {
        if left_out(Rule::R8) { Known { epoch: self.known.written.epoch, ..known } } else { known }
    }

    /// A record is written at the end of the log, and gets its number.
    pub(super) fn append(&mut self, mut record: Record) {
        record.number = self.next;
        self.next += 1;
        self.log.push_back(record);
    }

    /// Records up to this one are not needed any more.
    pub(super) fn free(&mut self, through: u64) {
        let end = self.end_before(through + 1);
        self.span.write(|span| {
            span.tail = span.tail.max(through + 1);
            (span.end, span.end_before) = (end, span.end_before.max(through + 1));
        });
    }

    /// The list gains what the log mentions above the mark.
    pub(super) fn list_above(&mut self, mark: Position) {
        let above = self.log(View::Written).filter(|record| record.position > mark);
        let ranges: Vec<_> =
            above.map(|record| record.entry.range()).chain(self.list.written.clone()).collect();
        self.list.write(|list| *list = merge(ranges));
    }

    /// Forgets the last of the sequence, which was synced, and the extent of the first block: a device that lies.
    pub(super) fn lose_last(&mut self) {
        let end = self.end();
        self.log.retain(|record| record.position != end);
        let before = Sequence(end.sequence.0.saturating_sub(1));
        let next = self.next;
        self.span.write(|span| (span.end, span.end_before) = (Position { sequence: before, ..end }, next));
        self.extents.remove(&0);
    }

    /// Forgets everything. If that is cut short it is done again: whoever asked for it has not been told.
    pub(super) fn empty(&mut self, after: Position) {
        self.log.clear();
        self.commits.clear();
        self.extents.clear();
        self.rotten.clear();
        self.list.write(Vec::clear);
        let next = self.next;
        self.span.write(|span| (span.end, span.end_before) = (after, next));
    }

    /// Drops the records above the mark. The sequence goes on after this position.
    pub(super) fn drop_above(&mut self, mark: Position, after: Position) {
        let above = self.log(View::Written).filter(|record| record.position > mark);
        let numbers: Vec<u64> = above.map(|record| record.number).collect();
        let next = self.next;
        self.span.write(|span| {
            span.dropped.extend(numbers);
            (span.end, span.end_before) = (after, next);
        });
    }

    /// All that is written becomes durable, but commits: they are on another device.
    pub(super) fn sync_log(&mut self) {
        self.unsynced = self.next;
        self.promise.sync();
        self.known.sync();
        self.list.sync();
        if self.span.dirty {
            self.span.sync();
            self.forget_records();
        }
    }

    /// Commits become durable.
    pub(super) fn sync_extents(&mut self) {
        for commit in std::mem::take(&mut self.commits) {
            self.apply(commit);
        }
    }

    /// Of what is not synced each write is lost or not. What follows a lost record in the log is not readable.
    pub(super) fn power_loss(&mut self, rng: &mut Rng) {
        let lost = self.log.iter().position(|record| record.number >= self.unsynced && rng.chance(2));
        self.log.truncate(lost.unwrap_or(self.log.len()));
        self.unsynced = self.next;
        self.promise.power_loss(rng);
        self.known.power_loss(rng);
        self.list.power_loss(rng);
        self.span.power_loss(rng);
        self.forget_records();
        for commit in std::mem::take(&mut self.commits) {
            if rng.chance(2) {
                self.apply(commit);
            }
        }
    }

    /// Those that do not count any more, durably, are as good as overwritten.
    fn forget_records(&mut self) {
        let span = &self.span.synced;
        self.log.retain(|record| span.has(record.number));
        self.span.written.dropped.clear();
        self.span.synced.dropped.clear();
    }

    fn apply(&mut self, commit: Commit) {
        for (record, stamp) in &commit.records {
            self.apply_record(record, *stamp);
        }
        self.known.written.raise(commit.known);
        self.known.synced.raise(commit.known);
    }

    fn apply_record(&mut self, record: &Record, stamp: Epoch) {
        let range = record.entry.range();
        if range.is_empty() {
            return;
        }
        for number in range.start / EXTENT..range.end.div_ceil(EXTENT) {
            let whole = self.extent_range(number);
            let part = range.start.max(whole.start)..range.end.min(whole.end);
            if matches!(record.entry.what, What::Trim) {
                self.trim(number, part == whole, part, stamp);
                continue;
            }
            let extent = self.extents.entry(number).or_insert(Extent { stamp, blocks: None });
            extent.stamp = stamp;
            let blocks = extent.blocks.get_or_insert([ZERO; EXTENT as usize]);
            for block in part {
                blocks[(block % EXTENT) as usize] = record.value(block).unwrap_or(ZERO);
                // Nothing makes a good checksum for bad data.
                if record.rotten {
                    self.rotten.insert(block);
                } else {
                    self.rotten.remove(&block);
                }
            }
        }
    }

    /// A whole extent is freed, and leaves a tombstone (rule R3); a part of one becomes zeroes. One that is not there gets
    /// a tombstone too: another copy may have it, and this trim is the only trace of its end.
    fn trim(&mut self, number: u64, whole: bool, part: Range<u64>, stamp: Epoch) {
        part.clone().for_each(|block| _ = self.rotten.remove(&block));
        if whole {
            self.extents.remove(&number);
        }
        match self.extents.get_mut(&number) {
            Some(extent) => {
                extent.stamp = stamp;
                if let Some(blocks) = &mut extent.blocks {
                    part.for_each(|block| blocks[(block % EXTENT) as usize] = ZERO);
                }
            }
            None if left_out(Rule::R3) => {}
            None => _ = self.extents.insert(number, Extent { stamp, blocks: None }),
        }
    }

    /// Tombstones with lower stamps are not needed any more.
    pub(super) fn forget_tombstones(&mut self, below: Epoch) {
        self.extents.retain(|_, extent| extent.blocks.is_some() || extent.stamp >= below);
    }

    /// The last extent may be shorter than the others.
    fn extent_range(&self, number: u64) -> Range<u64> {
        number * EXTENT..((number + 1) * EXTENT).min(self.blocks)
    }

    pub(super) fn stamp(&self, block: u64) -> Option<Epoch> {
        self.extents.get(&(block / EXTENT)).map(|extent| extent.stamp)
    }

    /// A block of an extent rots.
    pub(super) fn rot_block(&mut self, block: u64) {
        self.rotten.insert(block);
    }

    /// Whether a block can be read.
    pub(super) fn is_whole(&self, block: u64) -> bool {
        self.read(block, 1).is_ok()
    }

    /// Whether any block is rotten.
    pub(super) fn is_rotten(&self) -> bool {
        !self.rotten.is_empty() || self.log.iter().any(|record| record.rotten)
    }

    /// What is in a block, the log counted in, and whether it is rotten.
    pub(super) fn block(&self, block: u64, view: View) -> (Option<Block>, bool) {
        if let Some(record) = self.log(view).rev().find(|record| record.entry.range().contains(&block)) {
            return (record.value(block), record.rotten);
        }
        let blocks = self.extents.get(&(block / EXTENT)).and_then(|extent| extent.blocks.as_ref());
        (blocks.map(|blocks| blocks[(block % EXTENT) as usize]), self.rotten.contains(&block))
    }

    /// Whether a record of the log cannot be read.
    pub(super) fn has_rotten_log(&self) -> bool {
        self.log(View::Written).any(|record| record.rotten)
    }

    /// Gives up what cannot be read of the log.
    pub(super) fn salvage(&mut self) {
        self.log.retain(|record| !record.rotten);
    }

    /// What is in a block if what cannot be read of the log is given up.
    pub(super) fn value_without_rot(&self, block: u64) -> Option<Block> {
        let there = |record: &&Record| !record.rotten && record.entry.range().contains(&block);
        match self.log(View::Written).rev().find(there) {
            Some(record) => record.value(block),
            None => {
                let blocks = self.extents.get(&(block / EXTENT)).and_then(|extent| extent.blocks.as_ref());
                blocks.map(|blocks| blocks[(block % EXTENT) as usize])
            }
        }
    }

    /// Answers `Read`.
    pub(super) fn read(&self, block: u64, blocks: u32) -> Result<Content<Blocks>, Rotten> {
        let mut values = Vec::with_capacity(blocks as usize);
        for block in block..block + u64::from(blocks) {
            match self.block(block, View::Written) {
                (_, true) => return Err(Rotten),
                (value, false) => values.push(value),
            }
        }
        Ok(content(&values))
    }

    /// Answers `Fetch`. A record that is not there any more is as good as rotten: its data must be looked for elsewhere.
    pub(super) fn fetch(&self, number: u64) -> Result<Content<Blocks>, Rotten> {
        let record = self.log(View::Written).find(|record| record.number == number).ok_or(Rotten)?;
        if record.rotten {
            return Err(Rotten);
        }
        match &record.entry.what {
            What::Data(payload) => Ok(Content::Data(payload.clone())),
            _ => Ok(content(&record.entry.range().map(|block| record.value(block)).collect::<Vec<_>>())),
        }
    }

    /// Answers `Above`.
    pub(super) fn above(&self, mark: Position) -> Vec<Mention> {
        let above = self.log(View::Written).filter(|record| record.position > mark);
        above
            .map(|record| {
                let Entry { block, blocks, ref what } = record.entry;
                let what = match what {
                    What::Open => What::Open,
                    What::Data(_) => What::Data(Payload { data: (), first: 0 }),
                    What::Zeroes => What::Zeroes,
                    What::Trim => What::Trim,
                };
                let (number, position) = (record.number, record.position);
                Mention { number, position, entry: Entry { block, blocks, what } }
            })
            .collect()
    }

    /// Answers `Changed`: what is stamped (rule C3Stamp), and what has no stamp yet (rule C3Log).
    pub(super) fn changed(&self, since: Epoch, from: u64) -> (Vec<Range<u64>>, Option<u64>) {
        let mut ranges = Vec::new();
        if !left_out(Rule::C3Stamp) {
            let stamped = self.extents.iter().filter(|(_, extent)| extent.stamp >= since);
            ranges.extend(stamped.map(|(number, _)| self.extent_range(*number)));
        }
        if !left_out(Rule::C3Log) {
            ranges.extend(self.log(View::Written).map(|record| record.entry.range()));
        }
        let mut ranges = merge(ranges);
        ranges.retain_mut(|range| {
            range.start = range.start.max(from);
            !range.is_empty()
        });
        let more = ranges.len() > MOST_RANGES;
        ranges.truncate(MOST_RANGES);
        let next = ranges.last().map(|last| last.end).filter(|_| more);
        (ranges, next)
    }

    /// A block of an extent rots.
    pub(super) fn rot(&mut self, rng: &mut Rng) -> bool {
        let allocated: Vec<u64> =
            self.extents.iter().filter(|(_, e)| e.blocks.is_some()).map(|(n, _)| *n).collect();
        if allocated.is_empty() {
            return false;
        }
        let range = self.extent_range(allocated[rng.index(allocated.len())]);
        self.rotten.insert(rng.range(range));
        true
    }

    /// A durable record rots.
    pub(super) fn rot_log(&mut self, rng: &mut Rng) -> bool {
        let synced = self.log.iter().filter(|record| record.number < self.unsynced).count();
        if synced == 0 {
            return false;
        }
        self.log[rng.index(synced)].rotten = true;
        true
    }
}

fn content(values: &[Option<Block>]) -> Content<Blocks> {
    if values.iter().all(Option::is_none) {
        return Content::Nothing;
    }
    let data = Rc::new(values.iter().map(|value| value.unwrap_or(ZERO)).collect());
    Content::Data(Payload { data, first: 0 })
}

/// In order, and those that touch each other as one.
fn merge(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_unstable_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}
