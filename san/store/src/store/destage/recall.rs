//! What is to be destaged and is not in memory any more is read in the order of the log, a slice of the round at a time.

use loadline_san_core::layout::BLOCK;
use loadline_san_core::message::Payload;

use crate::io::{Area, Data, IoRequest, Piece, Reading};
use crate::log::{Kind, Record};
use crate::store::read::add_piece;
use crate::store::{Action, Purpose, Store};

/// Blocks of one read, unless one record has more.
const MOST_BLOCKS: u32 = 64;
/// Reads that are under way at once: appends wait behind them.
const MOST_READS: usize = 2;

/// The slices of a round, and how far they are.
#[derive(Debug, Default)]
pub(super) struct Recall {
    /// The number of the record after the last, of each slice.
    pub(super) ends: Vec<u64>,
    /// The slice that is spread.
    slice: usize,
    /// Records before this one are in memory, or are being read; and the slice that it is in.
    next: u64,
    next_slice: usize,
    /// Reads that are under way of this slice and of the next: those of even slices, and of odd ones.
    out: [usize; 2],
    reads: Vec<Read>,
    free_reads: Vec<u32>,
}

/// Records that are read together: their numbers, and where in what is read each begins.
#[derive(Debug, Default)]
struct Read {
    slice: usize,
    records: Vec<(u64, u32)>,
}

impl Recall {
    /// A round begins, with this record.
    pub(super) fn begin(&mut self, front: u64) {
        (self.slice, self.next, self.next_slice) = (0, front, 0);
    }

    /// The number of the record after the last of the slice that is spread.
    pub(super) fn end(&self) -> u64 {
        self.ends[self.slice]
    }

    fn take_read(&mut self, slice: usize) -> u32 {
        let index = self.free_reads.pop().unwrap_or_else(|| {
            self.reads.push(Read::default());
            self.reads.len() as u32 - 1
        });
        self.reads[index as usize].slice = slice;
        index
    }

    /// Nothing is being read.
    pub(super) fn is_quiet(&self) -> bool {
        self.out == [0, 0]
    }

    /// What can be read of the slice that is spread was read.
    fn is_ready(&self) -> bool {
        self.next_slice > self.slice && self.out[self.slice % 2] == 0
    }
}

impl<D: Data> Store<D> {
    /// Whether the data of a record is neither in memory nor written over.
    pub(super) fn is_to_be_recalled(&self, number: u64, record: &Record) -> bool {
        record.kind == Kind::Data
            && self.held.get(number).is_none()
            && (self.index.has_others() || record.range().any(|block| !self.log.is_replaced(record, block)))
    }

    /// Goes on with the slices of the round. True when the last has ended, or the round is cut short.
    pub(super) fn run_slices(&mut self, out: &mut Vec<Action<D>>) -> bool {
        loop {
            // A return waits: what was begun is ended.
            let cut = self.destage.held && self.destage.next < self.destage.pairs.len();
            if !cut {
                self.recall_slices(out);
                if self.destage.recall.is_ready() {
                    self.spread_slice(out);
                }
            }
            if self.destage.out > 0
                || !self.destage.recall.is_quiet() && (cut || !self.destage.recall.is_ready())
            {
                return false;
            }
            if cut || self.destage.next == self.destage.pairs.len() {
                self.destage.cut = cut;
                return true;
            }
            let done = self.destage.slice_front..self.destage.recall.end();
            self.held.let_go(done.clone());
            self.destage.slice_front = done.end;
            self.destage.recall.slice += 1;
        }
    }

    /// Begins works of the slice that is in memory, as many as the device gets at once.
    fn spread_slice(&mut self, out: &mut Vec<Action<D>>) {
        let at_once = self.at_once();
        // Many together cost a device less than one after the other.
        if self.destage.out > at_once / 2 {
            return;
        }
        let slice = self.destage.recall.slice as u64;
        while self.destage.out < at_once
            && let Some((key, _)) = self.destage.pairs.get(self.destage.next)
            && key >> super::SLICE == slice
        {
            self.begin_work(out);
        }
    }

    /// Reads what is not in memory of the slice that is spread and of the next.
    fn recall_slices(&mut self, out: &mut Vec<Action<D>>) {
        loop {
            let recall = &self.destage.recall;
            let slice = recall.next_slice;
            if slice >= recall.ends.len().min(recall.slice + 2) || recall.out[0] + recall.out[1] >= MOST_READS
            {
                return;
            }
            if self.settings.recall == 0 || !self.recall_some(slice, out) {
                let recall = &mut self.destage.recall;
                (recall.next, recall.next_slice) = (recall.ends[slice], slice + 1);
            }
        }
    }

    /// Begins the next read of a slice. False if nothing is left to be read of it.
    fn recall_some(&mut self, slice: usize, out: &mut Vec<Action<D>>) -> bool {
        let (mut next, end) = (self.destage.recall.next, self.destage.recall.ends[slice]);
        let index = self.destage.recall.take_read(slice);
        let mut records = std::mem::take(&mut self.destage.recall.reads[index as usize].records);
        records.clear();
        let mut reading = Reading { blocks: 0, pieces: self.memory.pieces() };
        while next < end && reading.blocks < MOST_BLOCKS {
            let record = self.log.get(next).expect("it is in the round");
            if record.counts() && self.is_to_be_recalled(next, record) {
                let (first, blocks) = (reading.blocks, record.blocks);
                if first > 0 && first + blocks > MOST_BLOCKS {
                    break;
                }
                let at = self.ring_at(record.data_at(record.block));
                add_piece(&mut reading.pieces, Piece { area: Area::Log, at, first, blocks });
                reading.blocks += blocks;
                records.push((next, first));
            }
            next += 1;
        }
        let recall = &mut self.destage.recall;
        recall.next = next;
        recall.reads[index as usize].records = records;
        if reading.blocks == 0 {
            recall.free_reads.push(index);
            self.memory.read(reading.pieces);
            return false;
        }
        recall.out[slice % 2] += 1;
        self.request_io(Purpose::Recall(index), IoRequest::Read(reading), out);
        true
    }

    /// Records were read, or could not be. One that is not whole is read again with its extents, block by block, and reported
    /// then.
    pub(crate) fn recalled(&mut self, index: u32, data: Option<D>) {
        let read = &mut self.destage.recall.reads[index as usize];
        let (slice, mut records) = (read.slice, std::mem::take(&mut read.records));
        self.destage.recall.out[slice % 2] -= 1;
        if let Some(mut data) = data {
            records.retain(|(number, first)| {
                let record = *self.log.get(*number).expect("it is in the round");
                (*first..).zip(record.range()).all(|(at, block)| {
                    data.take_checksum(at, self.address(block)) == self.log.checksum(&record, block)
                })
            });
            for (number, first) in &records {
                let blocks = self.log.get(*number).expect("it is in the round").blocks;
                self.held.put(*number, Payload { data: data.clone(), first: *first }, blocks);
            }
        }
        let recall = &mut self.destage.recall;
        recall.reads[index as usize].records = records;
        recall.free_reads.push(index);
    }
}

/// Bytes that a record has in memory when it is recalled.
pub(super) fn bytes_of(record: &Record) -> u64 {
    u64::from(record.blocks) * BLOCK
}
