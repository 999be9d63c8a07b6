//! Appends: several go to the log in one write, and are reported when it is durable.

use loadline_san_core::ids::Position;
use loadline_san_core::message::{Entry, EntryOp, Payload};
use loadline_san_core::rule::{Rule, left_out};
use loadline_san_core::store::{Command, Completion};
use loadline_san_protocol::log::{Change, LogRecord, Recorded, SECTOR, encode, header_length};
use zerocopy::IntoBytes;

use crate::io::{Address, Area, Data, IoRequest, Part, Sector, Writing};
use crate::log::{Kind, Record, record_length};
use crate::store::{Action, Current, Purpose, Store, needs_place};

/// The most bytes of data that are written together, unless one entry has more.
const MOST_BYTES: u64 = 4 << 20;

/// A share of the log that writers leave free for what makes copies equal.
pub(crate) const KEPT_FREE: u64 = 8;

/// Records that are being written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Batch {
    /// The first and the last.
    first: u64,
    last: u64,
    /// Appends up to this one are reported when they are durable. None: the batch has only commit points.
    through: Option<u64>,
}

/// Whether the log takes a record now.
#[derive(Debug, PartialEq, Eq)]
enum Admission {
    Here,
    /// At the beginning of the ring.
    Wrapped,
    Waits,
}

impl<D: Data> Store<D> {
    /// Writes as many appends as there are and the log takes. False if it takes none.
    pub(crate) fn append(&mut self, out: &mut Vec<Action<D>>) -> bool {
        self.throttle.wait(false);
        let first = self.log.next();
        let mut writing = self.memory.writing(Area::Log, self.ring_at(self.log.head()), true);
        let (mut through, mut bytes, mut count, mut skipped) = (None, 0, 0, false);
        while count < self.settings.together && bytes < MOST_BYTES {
            let Some(Command::Append { position, sequenced, entry, .. }) = self.queue.front() else { break };
            let (position, sequenced) = (*position, *sequenced);
            let (kind, range) = (Kind::of(&entry.op), entry.range());
            if count == 0 && !sequenced && self.has_already(position, kind, range.clone()) {
                let Some(Command::Append { number, .. }) = self.queue.pop_front() else {
                    unreachable!("it was there")
                };
                out.push(Action::Complete(Completion::Appended(number)));
                skipped = true;
                continue;
            }
            let length = record_length(data_blocks(entry));
            match self.admit(kind, sequenced, length, range) {
                Admission::Waits => break,
                Admission::Wrapped if self.log.before_end() > 0 && self.log.head() > 0 => {
                    self.record(&mut writing, Recorded::Wrap, None);
                    break;
                }
                Admission::Here | Admission::Wrapped => {}
            }
            let Some(Command::Append { number, position, sequenced, entry, .. }) = self.queue.pop_front()
            else {
                unreachable!("it was there")
            };
            bytes += length;
            count += 1;
            through = Some(number);
            let Entry { block, blocks, op } = entry;
            let (payload, op) = match op {
                EntryOp::Data(payload) => {
                    (Some((payload, block, blocks)), EntryOp::Data(Payload { data: (), first: 0 }))
                }
                EntryOp::Open => (None, EntryOp::Open),
                EntryOp::Zeroes => (None, EntryOp::Zeroes),
                EntryOp::Trim => (None, EntryOp::Trim),
            };
            if needs_place(kind) {
                self.extents.reserve(block..block + u64::from(blocks));
            }
            let entry = Entry { block, blocks, op };
            self.record(&mut writing, Recorded::Entry(Change { position, sequenced, entry }), payload);
            if self.log.head() == 0 {
                // It ends where the ring does.
                break;
            }
        }
        if writing.parts.is_empty() {
            self.memory.wrote(writing);
            return skipped;
        }
        self.write_batch(Batch { first, last: self.log.next() - 1, through }, writing, out);
        true
    }

    /// Whether this entry is the newest of all of its blocks already: takeovers that are cut short bring it again and again.
    fn has_already(&self, position: Position, kind: Kind, mut blocks: std::ops::Range<u64>) -> bool {
        let is_newest = |block| {
            let record = self.index.newest(block).and_then(|number| self.log.get(number));
            record.is_some_and(|record| record.position == position && record.kind == kind)
        };
        // It may be brought because what is here is corrupt.
        let corrupts = self
            .corrupt_blocks
            .iter()
            .any(|corrupt| corrupt.start < blocks.end && blocks.start < corrupt.end);
        !corrupts && !blocks.is_empty() && blocks.all(is_newest)
    }

    fn write_batch(&mut self, batch: Batch, mut writing: Writing<D>, out: &mut Vec<Action<D>>) {
        writing.durable = !left_out(Rule::DSync);
        self.current = Current::Batch(batch);
        self.busy = true;
        self.request_io(Purpose::Batch, IoRequest::Write(writing), out);
    }

    /// Adds a record to a write, and to the log.
    fn record(&mut self, writing: &mut Writing<D>, what: Recorded, payload: Option<(Payload<D>, u64, u32)>) {
        let (volume, group) = (self.id.volume, self.id.group);
        let sum = |block: u64| match &payload {
            Some((payload, first, _)) => {
                let of = Address { volume, group, block };
                payload.data.checksum(payload.first + (block - first) as u32, of)
            }
            None => unreachable!("what has no data has no checksums"),
        };
        let (block, blocks) = payload.as_ref().map_or((0, 0), |(_, block, blocks)| (*block, *blocks));
        let sums = (0..blocks).map(|index| sum(block + u64::from(index)));
        let record = LogRecord {
            replica: self.id.replica,
            group,
            generation: self.meta.state.generation,
            number: self.log.next(),
            synced: self.log.durable,
            commit_point: self.known.commit_point,
            epoch: self.known.epoch,
            what,
        };
        self.recorded = record.commit_point;
        let sectors = header_length(blocks as usize) / SECTOR;
        let start = writing.bytes.len();
        writing.bytes.resize(start + sectors, Sector::ZERO);
        let header = writing.bytes[start..].as_mut_bytes();
        encode(&record, self.meta.state.key, sums.clone(), header)
            .expect("core asks for what can be written");
        self.log.push(in_memory(&record.what), sums);
        match writing.parts.last_mut() {
            Some(Part::Bytes(count)) => *count += sectors as u32,
            _ => writing.parts.push(Part::Bytes(sectors as u32)),
        }
        if let Some((Payload { data, first }, _, blocks)) = &payload {
            writing.parts.push(Part::Data { data: data.clone(), first: *first, blocks: *blocks });
        }
        self.held.push(payload.map(|(payload, _, blocks)| (payload, blocks)), self.settings.held);
    }

    /// Whether the log has room for a record, and the device for its extents.
    fn admit(&mut self, kind: Kind, sequenced: bool, length: u64, blocks: std::ops::Range<u64>) -> Admission {
        let wraps = length > self.log.before_end();
        let needed = length + if wraps { self.log.before_end() } else { 0 };
        let writes = sequenced && matches!(kind, Kind::Data | Kind::Zeroes);
        // Entries that make copies equal continue when writers have to wait, and trims when nothing else can.
        let kept_free = match kind {
            _ if writes => self.log.ring() / KEPT_FREE,
            Kind::Data | Kind::Zeroes => self.log.ring() / 64,
            _ => 0,
        };
        let drains = self.destage.is_active() || self.can_destage();
        if needed + if drains { kept_free } else { 0 } > self.log.room() {
            self.throttle.wait(true);
            self.destage.hurry();
            return Admission::Waits;
        }
        if needs_place(kind) {
            if self.extents.extents_of(blocks.clone()).end > self.settings.extents {
                self.settings.extents = u64::MAX;
            }
            let missing = self.extents.missing(blocks);
            if missing > self.extents.free() {
                // A trim that is acknowledged may give some back.
                self.growth.want(missing);
                self.destage.hurry();
                return Admission::Waits;
            }
            self.growth.want_nothing();
        }
        // An append that moves to the ring's beginning is checked again when it is there.
        let price = if wraps && self.log.head() > 0 { needed - length } else { length };
        if writes && drains && !self.pay(price) {
            self.throttle.wait(true);
            return Admission::Waits;
        }
        if wraps { Admission::Wrapped } else { Admission::Here }
    }

    /// The batch is durable.
    pub(crate) fn batch_done(&mut self, out: &mut Vec<Action<D>>) {
        let Current::Batch(batch) = std::mem::replace(&mut self.current, Current::Nothing) else {
            unreachable!("a batch was being written")
        };
        for number in batch.first..=batch.last {
            let record = *self.log.get(number).expect("it was written just now");
            self.index_record(number, &record);
            if !self.corrupt_blocks.is_empty() {
                self.corrupt_blocks.remove(&record.range());
            }
        }
        // As it was when the batch was made: its records have that.
        self.covered = self.covered.max(self.log.durable);
        self.log.durable = batch.last;
        if let Some(through) = batch.through {
            self.closed = false;
            out.push(Action::Complete(Completion::Appended(through)));
        }
    }

    /// A commit point that covers the last batch: a start that does not find it knows that it was there.
    pub(crate) fn close(&mut self) {
        self.closing = true;
    }

    /// Writes the closing record, if the log has room.
    pub(crate) fn write_closing(&mut self, out: &mut Vec<Action<D>>) -> bool {
        if !std::mem::take(&mut self.closing) || self.log.room() < SECTOR as u64 {
            return false;
        }
        let first = self.log.next();
        let mut writing = self.memory.writing(Area::Log, self.ring_at(self.log.head()), true);
        self.record(&mut writing, Recorded::CommitPoint, None);
        self.closed = true;
        self.write_batch(Batch { first, last: first, through: None }, writing, out);
        true
    }
}

fn data_blocks<T>(entry: &Entry<T>) -> u32 {
    if matches!(entry.op, EntryOp::Data(_)) { entry.blocks } else { 0 }
}

/// A record as the log in memory has it.
pub(crate) fn in_memory(what: &Recorded) -> Record {
    match what {
        Recorded::CommitPoint => Record::new(Kind::CommitPoint, Position::START, false, 0, 0),
        Recorded::Wrap => Record::new(Kind::Wrap, Position::START, false, 0, 0),
        Recorded::Entry(Change { position, sequenced, entry }) => {
            Record::new(Kind::of(&entry.op), *position, *sequenced, entry.block, entry.blocks)
        }
    }
}
