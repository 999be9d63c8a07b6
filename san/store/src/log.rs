//! The log in memory: where in its ring each record is, and what it has.
//!
//! ```text
//! ring  │ ░░░░░ │ record n │ n+1 │ n+2 │ … │ last │ ░░░░░ wrap │
//!               ▲ tail                            ▲ head
//! ```
//!
//! Numbers go on for ever; places are used again when the tail has moved past them, durably.

use std::collections::VecDeque;
use std::ops::Range;

use loadline_san_core::ids::Position;
use loadline_san_core::layout::BLOCK;
use loadline_san_core::message::{Entry, EntryOp, Mention, Payload};
use loadline_san_protocol::log::{SECTOR, header_length};

/// What a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An entry, which does this.
    Open,
    Data,
    Zeroes,
    Trim,
    /// No entry.
    CommitPoint,
    /// No entry, and the next is at the beginning of the ring.
    Wrap,
    /// It cannot be read, and is given up.
    Hole,
}

impl Kind {
    pub(crate) fn of<D>(op: &EntryOp<D>) -> Kind {
        match op {
            EntryOp::Open => Kind::Open,
            EntryOp::Data(_) => Kind::Data,
            EntryOp::Zeroes => Kind::Zeroes,
            EntryOp::Trim => Kind::Trim,
        }
    }
}

/// A record of the log, in memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record {
    /// Where in the ring, in bytes.
    pub(crate) at: u64,
    pub(crate) kind: Kind,
    /// The next of its ownership.
    pub(crate) sequenced: bool,
    /// It was dropped by a return: it does not count any more.
    pub(crate) dropped: bool,
    pub(crate) position: Position,
    pub(crate) block: u64,
    pub(crate) blocks: u32,
    /// How many checksums the log had taken before it.
    sums: u64,
}

impl Record {
    /// The blocks that it changes.
    pub(crate) fn range(&self) -> Range<u64> {
        self.block..self.block + u64::from(self.blocks)
    }

    /// Whether it is an entry that counts.
    pub(crate) fn counts(&self) -> bool {
        !self.dropped && matches!(self.kind, Kind::Open | Kind::Data | Kind::Zeroes | Kind::Trim)
    }

    /// Blocks whose data is in it.
    fn data_blocks(&self) -> u32 {
        if self.kind == Kind::Data { self.blocks } else { 0 }
    }

    /// Bytes of it.
    fn length(&self) -> u64 {
        record_length(self.data_blocks())
    }

    /// Where in the ring the data of this block of the group is.
    pub(crate) fn data_at(&self, block: u64) -> u64 {
        self.at + header_length(self.data_blocks() as usize) as u64 + (block - self.block) * BLOCK
    }

    /// As core has it.
    pub(crate) fn mention(&self, number: u64) -> Mention {
        let op = match self.kind {
            Kind::Data => EntryOp::Data(Payload { data: (), first: 0 }),
            Kind::Zeroes => EntryOp::Zeroes,
            Kind::Trim => EntryOp::Trim,
            _ => EntryOp::Open,
        };
        Mention {
            number,
            position: self.position,
            entry: Entry { block: self.block, blocks: self.blocks, op },
        }
    }
}

/// Bytes of a record with so many blocks of data.
pub(crate) fn record_length(blocks: u32) -> u64 {
    header_length(blocks as usize) as u64 + u64::from(blocks) * BLOCK
}

/// The index of the log in memory: one entry for each record in the ring. It does no I/O.
#[derive(Debug)]
pub(crate) struct Log {
    /// Bytes of the ring.
    ring: u64,
    /// Those that are in it, by their numbers.
    records: VecDeque<Record>,
    /// The number of the first of them.
    front: u64,
    /// The checksums of their data, in their order.
    sums: VecDeque<u32>,
    /// Of the same blocks, whether a later record has data too.
    replaced: VecDeque<bool>,
    /// How many there were before.
    sums_before: u64,
    /// Where the first of the records is, durably, and where the next goes.
    tail: u64,
    head: u64,
    /// All up to this number is durable.
    pub(crate) durable: u64,
}

impl Log {
    /// An empty one, whose next record has this number and this place.
    pub(crate) fn new(ring: u64, number: u64, at: u64) -> Log {
        Log {
            ring,
            records: VecDeque::new(),
            front: number,
            sums: VecDeque::new(),
            replaced: VecDeque::new(),
            sums_before: 0,
            tail: at,
            head: at,
            durable: number - 1,
        }
    }

    /// Bytes of the ring.
    pub(crate) fn ring(&self) -> u64 {
        self.ring
    }

    /// The number of the first record, which is that of the next if there is none.
    pub(crate) fn front(&self) -> u64 {
        self.front
    }

    /// The number of the next record.
    pub(crate) fn next(&self) -> u64 {
        self.front + self.records.len() as u64
    }

    /// Where the next record goes, unless it does not fit before the ring's end.
    pub(crate) fn head(&self) -> u64 {
        self.head
    }

    /// Bytes between tail and head.
    pub(crate) fn used(&self) -> u64 {
        (self.head + self.ring - self.tail) % self.ring
    }

    /// Bytes that may be written. One sector stays empty: a full ring would look like an empty one.
    pub(crate) fn room(&self) -> u64 {
        self.ring - self.used() - SECTOR as u64
    }

    /// Bytes up to the ring's end.
    pub(crate) fn before_end(&self) -> u64 {
        self.ring - self.head
    }

    /// A record that is in the log.
    pub(crate) fn get(&self, number: u64) -> Option<&Record> {
        self.records.get(usize::try_from(number.checked_sub(self.front)?).ok()?)
    }

    /// Bytes of the ring that a record takes, to the next one.
    pub(crate) fn length_of(&self, number: u64) -> u64 {
        match self.get(number) {
            Some(Record { kind: Kind::Wrap, at, .. }) => self.ring - at,
            Some(Record { kind: Kind::Hole, .. }) | None => 0,
            Some(record) => record.length(),
        }
    }

    /// All of them, with their numbers.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, &Record)> + ExactSizeIterator {
        // Not a range of numbers: those have no exact size.
        let front = self.front;
        self.records.iter().enumerate().map(move |(at, record)| (front + at as u64, record))
    }

    /// Those that count and are above this position.
    pub(crate) fn above(&self, commit_point: Position) -> impl Iterator<Item = (u64, &Record)> {
        self.iter().filter(move |(_, record)| record.counts() && record.position > commit_point)
    }

    /// The checksum of a block's data in a record.
    pub(crate) fn checksum(&self, record: &Record, block: u64) -> u32 {
        self.sums[self.place_of_sum(record, block)]
    }

    fn place_of_sum(&self, record: &Record, block: u64) -> usize {
        (record.sums - self.sums_before + (block - record.block)) as usize
    }

    /// A later record has data for a block of this one.
    pub(crate) fn replace(&mut self, number: u64, block: u64) {
        if let Some(record) = self.get(number).copied() {
            let place = self.place_of_sum(&record, block);
            self.replaced[place] = true;
        }
    }

    /// Whether a later record had data for a block of this one: it may have been dropped since.
    pub(crate) fn is_replaced(&self, record: &Record, block: u64) -> bool {
        self.replaced[self.place_of_sum(record, block)]
    }

    /// A record goes to the head. Its number.
    pub(crate) fn push(&mut self, mut record: Record, sums: impl Iterator<Item = u32>) -> u64 {
        let number = self.next();
        record.at = self.head;
        record.sums = self.sums_before + self.sums.len() as u64;
        self.sums.extend(sums);
        self.replaced.resize(self.sums.len(), false);
        self.head = match record.kind {
            Kind::Wrap => 0,
            Kind::Hole => self.head,
            _ => (self.head + record.length()) % self.ring,
        };
        self.records.push_back(record);
        number
    }

    /// Whether a record can be at the head: a log is never as long as its ring.
    pub(crate) fn fits(&self, record: &Record) -> bool {
        let length = if record.kind == Kind::Wrap { self.before_end() } else { record.length() };
        length <= self.room()
    }

    /// Continues at this place, because the records between cannot be read.
    pub(crate) fn skip_to(&mut self, at: u64) {
        self.head = at;
    }

    /// Records above this position, of those there are, do not count any more.
    pub(crate) fn drop_above(&mut self, commit_point: Position, below: u64) {
        let most = (below.saturating_sub(self.front) as usize).min(self.records.len());
        for record in self.records.range_mut(..most) {
            record.dropped |= record.position > commit_point;
        }
    }

    /// Where the record of this number is, or will be.
    pub(crate) fn place_of(&self, number: u64) -> u64 {
        self.get(number).map_or(self.head, |record| record.at)
    }

    /// Records below this number are not needed any more, durably: their places are free. Each that goes is shown.
    pub(crate) fn free(&mut self, below: u64, mut gone: impl FnMut(u64, &Record)) {
        self.tail = self.place_of(below);
        while self.front < below {
            let Some(record) = self.records.pop_front() else { break };
            gone(self.front, &record);
            let sums = record.data_blocks() as usize;
            self.sums.drain(..sums);
            self.replaced.drain(..sums);
            self.sums_before += sums as u64;
            self.front += 1;
        }
    }

    /// The last of the sequence, of those from a number on and below another.
    pub(crate) fn last_of_sequence(&self, numbers: Range<u64>) -> Option<Position> {
        let place = |number: u64| (number.saturating_sub(self.front) as usize).min(self.records.len());
        let (from, to) = (place(numbers.start), place(numbers.end));
        if from >= to {
            return None;
        }
        let counts = |record: &&Record| record.sequenced && record.kind != Kind::Hole;
        self.records.range(from..to).rev().find(counts).map(|record| record.position)
    }
}

impl Record {
    /// One that has no place yet.
    pub(crate) fn new(kind: Kind, position: Position, sequenced: bool, block: u64, blocks: u32) -> Record {
        Record { at: 0, kind, sequenced, dropped: false, position, block, blocks, sums: 0 }
    }
}
