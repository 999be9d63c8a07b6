//! Reads: the log first, then extents; checked, and looked up again if what was read has been moved meanwhile.

use std::collections::VecDeque;
use std::ops::Range;

use loadline_san_core::ids::Epoch;
use loadline_san_core::layout::BLOCK;
use loadline_san_core::message::{Content, Corrupt, Payload};
use loadline_san_core::rule::{Rule, left_out};
use loadline_san_core::store::{Completion, Tag};
use loadline_san_protocol::slot::BlockState;

use crate::io::{Address, Area, Data, IoRequest, Piece, Reading, Token};
use crate::log::Kind;
use crate::store::{Action, Purpose, Store, merged};

/// How often a read is looked up again before it is reported as corrupt.
const MOST_TRIES: u32 = 8;
/// Extents that are scanned for one answer to `Changed`.
const MOST_SCANNED: u64 = 1 << 16;

/// What is being read.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    waiting: VecDeque<Question>,
    jobs: Vec<Job>,
    free: Vec<u32>,
    under_way: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Question {
    Read { tag: Tag, block: u64, blocks: u32 },
    Map { tag: Tag, block: u64, blocks: u32 },
    Fetch { tag: Tag, number: u64 },
    Changed { tag: Tag, since: Epoch, from: u64 },
    Above(u64),
}

/// What a read is for.
#[derive(Debug, Clone, Copy)]
enum Reader {
    /// A request, which gets the data.
    Request(Tag),
    /// The scrub, which only checks it.
    Scrub,
}

#[derive(Debug)]
struct Job {
    reader: Reader,
    block: u64,
    /// Of the log, instead of what is newest.
    record: Option<u64>,
    tries: u32,
    /// A part of it is read from the read cache.
    from_cache: bool,
    /// Of each block.
    found: Vec<BlockSource>,
}

/// Where the data of a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockSource {
    /// It was never written, or was trimmed.
    Nothing,
    /// Zeroes, which are not stored as data.
    Zeroes,
    /// Data, there, with this checksum.
    Data {
        /// The device that has the data.
        area: Area,
        /// Where on it, in bytes.
        at: u64,
        /// Of the data and its address.
        checksum: u32,
    },
}

impl Reads {
    /// If the same was asked before (`again`), and is still under way, it is not begun anew: a device that is slow would get ever more
    /// to do, and become slower by that.
    pub(crate) fn read(&mut self, tag: Tag, block: u64, blocks: u32, again: bool) {
        let is_it = |job: &Job| (job.record, job.block, job.found.len()) == (None, block, blocks as usize);
        let question = Question::Read { tag, block, blocks };
        if !again || !self.waiting.contains(&question) && !self.is_under_way(tag, is_it) {
            self.waiting.push_back(question);
        }
    }

    /// Whether a job for this request is under way. Jobs that are not in use have found nothing.
    fn is_under_way(&self, tag: Tag, is_it: impl Fn(&Job) -> bool) -> bool {
        let is_its =
            |job: &&Job| matches!(job.reader, Reader::Request(of) if of == tag) && !job.found.is_empty();
        self.jobs.iter().filter(is_its).any(is_it)
    }

    pub(crate) fn map(&mut self, tag: Tag, block: u64, blocks: u32) {
        self.waiting.push_back(Question::Map { tag, block, blocks });
    }

    pub(crate) fn fetch(&mut self, tag: Tag, number: u64, again: bool) {
        let is_it = |job: &Job| job.record == Some(number);
        let question = Question::Fetch { tag, number };
        if !again || !self.waiting.contains(&question) && !self.is_under_way(tag, is_it) {
            self.waiting.push_back(question);
        }
    }

    pub(crate) fn changed(&mut self, tag: Tag, since: Epoch, from: u64) {
        self.waiting.push_back(Question::Changed { tag, since, from });
    }

    pub(crate) fn above(&mut self, question: u64) {
        self.waiting.push_back(Question::Above(question));
    }

    pub(crate) fn are_idle(&self) -> bool {
        self.waiting.is_empty() && self.under_way == 0
    }
}

impl<D: Data> Store<D> {
    /// What is read under this token, if that is what was asked for in `Read`, and for the first time: for what, from which
    /// block on, and what the first of its checksums is of. It may be read to where it is wanted, instead of into a buffer.
    pub fn reads_for(&self, token: Token) -> Option<(Tag, Address)> {
        let Purpose::Read(index) = self.purpose(token) else { return None };
        let job = self.reads.jobs.get(index as usize)?;
        match job.reader {
            Reader::Request(tag) if job.record.is_none() && job.tries == 0 => {
                Some((tag, self.address(job.block)))
            }
            _ => None,
        }
    }

    pub(crate) fn run_reads(&mut self, out: &mut Vec<Action<D>>) {
        while let Some(question) = self.reads.waiting.pop_front() {
            if let Question::Above(_) = question
                && !self.freeze()
            {
                self.reads.waiting.push_front(question);
                return;
            }
            match question {
                Question::Read { tag, block, blocks } => {
                    self.begin(Reader::Request(tag), block, blocks, None, out);
                }
                Question::Map { tag, block, blocks } => {
                    let map = self.map(block..block.saturating_add(u64::from(blocks)));
                    out.push(Action::Complete(Completion::Mapped { tag, map }));
                }
                Question::Fetch { tag, number } => match self.log.get(number) {
                    Some(record) if record.counts() && number <= self.log.durable => {
                        let (block, blocks) = (record.block, record.blocks);
                        self.begin(Reader::Request(tag), block, blocks, Some(number), out);
                    }
                    // Its data must be looked for elsewhere.
                    _ => answer(tag, Err(Corrupt), out),
                },
                Question::Changed { tag, since, from } => {
                    let (ranges, next) = self.changed_since(since, from);
                    out.push(Action::Complete(Completion::Changed { tag, ranges, next }));
                }
                Question::Above(question) => {
                    let above = self.log.above(self.known.commit_point);
                    let above = above.map(|(number, record)| record.mention(number)).collect();
                    out.push(Action::Complete(Completion::Above(question, above)));
                }
            }
        }
    }

    /// What is reported above the commit point is fetched later: so it is not destaged any more, until an owner sends a commit
    /// point again. False while a round is under way that has some of it.
    fn freeze(&mut self) -> bool {
        if !self.destage.is_within(self.known.commit_point) && !self.destage.hold() {
            return false;
        }
        self.known.acknowledged = self.known.commit_point;
        self.destage.go_on();
        true
    }

    /// Reads these blocks to see whether they match their checksums. → [`checked`](Self::checked)
    pub(crate) fn read_to_check(&mut self, block: u64, blocks: u32, out: &mut Vec<Action<D>>) {
        self.begin(Reader::Scrub, block, blocks, None, out);
    }

    fn begin(
        &mut self,
        reader: Reader,
        block: u64,
        blocks: u32,
        record: Option<u64>,
        out: &mut Vec<Action<D>>,
    ) {
        let index = self.reads.free.pop().unwrap_or_else(|| {
            let empty = Job { reader, block, record, tries: 0, from_cache: false, found: Vec::new() };
            self.reads.jobs.push(empty);
            self.reads.jobs.len() as u32 - 1
        });
        let job = &mut self.reads.jobs[index as usize];
        (job.reader, job.block, job.record, job.tries) = (reader, block, record, 0);
        let mut found = std::mem::take(&mut job.found);
        self.resolve(reader, block, blocks, record, &mut found);
        if self.cache.is_there() && record.is_none() && matches!(reader, Reader::Request(_)) {
            let from_cache = self.look_in_cache(block, &mut found);
            self.reads.jobs[index as usize].from_cache = from_cache;
        }
        let nothing = found.iter().all(|found| *found == BlockSource::Nothing);
        if nothing {
            found.clear();
        }
        self.reads.jobs[index as usize].found = found;
        if nothing {
            self.reads.free.push(index);
            match reader {
                Reader::Request(tag) => answer(tag, Ok(Content::Nothing), out),
                Reader::Scrub => self.checked(block, blocks, true, out),
            }
            return;
        }
        self.reads.under_way += 1;
        self.read_on(index, out);
    }

    /// Asks the device for what was found.
    fn read_on(&mut self, index: u32, out: &mut Vec<Action<D>>) {
        let mut pieces = self.memory.pieces();
        let job = &mut self.reads.jobs[index as usize];
        for (first, found) in (0..).zip(&job.found) {
            if let BlockSource::Data { area, at, .. } = *found {
                add_piece(&mut pieces, Piece { area, at, first, blocks: 1 });
            }
        }
        let reading = Reading { blocks: job.found.len() as u32, pieces };
        self.request_io(Purpose::Read(index), IoRequest::Read(reading), out);
    }

    /// What these blocks have now; of a record, if it is still there. The background scrub leaves out blocks whose newest data is in the log.
    fn resolve(
        &self,
        reader: Reader,
        block: u64,
        blocks: u32,
        record: Option<u64>,
        found: &mut Vec<BlockSource>,
    ) {
        found.clear();
        found.extend((block..block + u64::from(blocks)).map(|block| match (record, reader) {
            (Some(number), _) => self.find_in(number, block),
            (None, Reader::Scrub) if self.is_left_to_destaging(block) => BlockSource::Nothing,
            (None, _) => self.find(block),
        }));
    }

    /// What a block has.
    pub(crate) fn find(&self, block: u64) -> BlockSource {
        if let Some(number) = self.index.newest(block) {
            return self.find_in(number, block);
        }
        match self.extents.block(block) {
            None | Some((_, BlockState::Nothing, _)) => BlockSource::Nothing,
            Some((_, BlockState::Zeroes, _)) => BlockSource::Zeroes,
            Some((place, BlockState::Data, checksum)) => {
                let within = self.extents.locate(block).1;
                BlockSource::Data { area: Area::Capacity, at: self.extents.block_at(place, within), checksum }
            }
        }
    }

    fn find_in(&self, number: u64, block: u64) -> BlockSource {
        let Some(record) = self.log.get(number) else { return BlockSource::Nothing };
        match record.kind {
            Kind::Data => BlockSource::Data {
                area: Area::Log,
                at: self.ring_at(record.data_at(block)),
                checksum: self.log.checksum(record, block),
            },
            Kind::Zeroes => BlockSource::Zeroes,
            _ => BlockSource::Nothing,
        }
    }

    /// What was asked for was read, or could not be.
    pub(crate) fn read_done(&mut self, index: u32, data: Option<D>, out: &mut Vec<Action<D>>) {
        let job = &self.reads.jobs[index as usize];
        let (reader, block, record, tries) = (job.reader, job.block, job.record, job.tries);
        let mut found = std::mem::take(&mut self.reads.jobs[index as usize].found);
        let whole = data.and_then(|mut data| {
            let all = (0..).zip(&found).all(|(at, found)| {
                let is = data.take_checksum(at, self.address(block + u64::from(at)));
                !matches!(found, BlockSource::Data { checksum, .. } if *checksum != is)
            });
            all.then_some(data)
        });
        if self.cache.is_there() && record.is_none() && matches!(reader, Reader::Request(_)) {
            match &whole {
                Some(data) => self.offer_to_cache(block, &found, data, out),
                None => (block..).take(found.len()).for_each(|block| self.cache.forget(block)),
            }
        }
        if std::mem::take(&mut self.reads.jobs[index as usize].from_cache) {
            self.cache.was_read();
        }
        let mut gone = false;
        if whole.is_none() && tries < MOST_TRIES {
            // It may have been destaged, or overwritten in its place, since it was looked up.
            let blocks = found.len() as u32;
            let mut now = Vec::with_capacity(found.len());
            self.resolve(reader, block, blocks, record, &mut now);
            gone = record.is_some_and(|number| self.log.get(number).is_none());
            if now != found && !gone {
                let job = &mut self.reads.jobs[index as usize];
                (job.found, job.tries) = (now, tries + 1);
                self.read_on(index, out);
                return;
            }
        }
        let (blocks, is_whole) = (found.len() as u32, whole.is_some());
        let content = whole.map(|data| {
            let (payload, holes) = (Payload { data, first: 0 }, holes_of(&found));
            if holes.is_empty() { Content::Data(payload) } else { Content::Sparse(payload, holes) }
        });
        found.clear();
        self.reads.jobs[index as usize].found = found;
        self.reads.free.push(index);
        self.reads.under_way -= 1;
        match reader {
            Reader::Request(tag) => {
                if !is_whole && !gone {
                    self.found_corrupt(block..block + u64::from(blocks));
                }
                answer(tag, content.ok_or(Corrupt), out);
            }
            Reader::Scrub => self.checked(block, blocks, is_whole, out),
        }
    }

    /// What is stamped with this epoch or a later one (rule C3Stamp), was freed then, or has no stamp yet (rule C3Log).
    fn changed_since(&self, since: Epoch, from: u64) -> (Vec<std::ops::Range<u64>>, Option<u64>) {
        let size = self.extents.blocks();
        let blocks = self.meta.state.blocks;
        let as_blocks =
            |extents: std::ops::Range<u64>| extents.start * size..(extents.end * size).min(blocks);
        let (stored, next) = self.extents.stored_from(from / size, MOST_SCANNED);
        let end = next.map_or(blocks, |extent| extent * size);
        let within = |range: std::ops::Range<u64>| range.start.max(from)..range.end.min(end);
        let stamped = stored.filter(|(_, stamp)| *stamp >= since).map(|(extent, _)| extent..extent + 1);
        let freed = self.meta.tombstones().iter().filter(|(_, stamp)| **stamp >= since);
        let stamped = stamped.chain(freed.map(|(extents, _)| extents.clone())).map(as_blocks);
        let logged = self.log.iter().filter(|(_, record)| record.counts()).map(|(_, record)| record.range());
        let stamped = stamped.filter(|_| !left_out(Rule::C3Stamp));
        let logged = logged.filter(|_| !left_out(Rule::C3Log));
        let all = merged(stamped.chain(logged).map(within).filter(|range| range.start < range.end));
        let mut ranges: Vec<_> = all.iter().collect();
        let mut next = (end < blocks).then_some(end);
        if ranges.len() > self.settings.ranges {
            ranges.truncate(self.settings.ranges);
            next = ranges.last().map(|last| last.end);
        }
        (ranges, next)
    }
}

/// The blocks that are neither in the log nor in an extent.
fn holes_of(found: &[BlockSource]) -> Vec<Range<u32>> {
    let mut holes: Vec<Range<u32>> = Vec::new();
    for (at, _) in (0..).zip(found).filter(|(_, found)| **found == BlockSource::Nothing) {
        match holes.last_mut().filter(|last| last.end == at) {
            Some(last) => last.end += 1,
            None => holes.push(at..at + 1),
        }
    }
    holes
}

fn answer<D>(tag: Tag, content: Result<Content<D>, Corrupt>, out: &mut Vec<Action<D>>) {
    out.push(Action::Complete(Completion::Data { tag, content }));
}

/// Adds a piece; one that goes on where the last one ends becomes a part of it.
pub(crate) fn add_piece(pieces: &mut Vec<Piece>, piece: Piece) {
    if let Some(last) = pieces.last_mut()
        && last.area == piece.area
        && last.first + last.blocks == piece.first
        && last.at + u64::from(last.blocks) * BLOCK == piece.at
    {
        last.blocks += piece.blocks;
    } else {
        pieces.push(piece);
    }
}
