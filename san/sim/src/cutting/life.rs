//! One life of a process with a store: what it is asked for, in which order its device does what it is asked for.

use std::rc::Rc;

use loadline_san_core::ids::{Epoch, Incarnation, NodeId, Owner, Position, Sequence};
use loadline_san_core::message::{Content, Entry, EntryOp, Job, Payload, Promise};
use loadline_san_core::store::{Command, Completion, DurableState, Tag};
use loadline_san_protocol::device::PAGE;
use loadline_san_store::io::{Area, IoRequest, Token, Writing};
use loadline_san_store::store::Action;

use super::tape::{Event, Recorder};
use super::truth::{BLOCKS, Change, Truth};
use crate::rng::Rng;
use crate::store::{Blocks, Real, SimDisk, ZERO};

/// Blocks that are not acknowledged, at most.
pub(super) const MOST_IN_FLIGHT: u32 = 12;

/// One life of a process that uses a store. It draws commands from the seed, and records what the device is asked for.
pub(super) struct Life<'a> {
    pub(super) store: Real,
    pub(super) recorder: Recorder,
    pub(super) truth: Truth,
    rng: &'a mut Rng,
    submitted: Vec<(Token, IoRequest<Blocks>, u64, u64)>,
    requests: u64,
    appends: u64,
    /// For each append in flight: how many changes there were with it.
    unconfirmed: Vec<(u64, usize)>,
    /// The end of its sequence; durably; the commit point; its epoch.
    end: Position,
    durable: Position,
    commit_point: Position,
    epoch: Epoch,
    promise: Promise,
    /// A return, or a promise, is under way: the changes with it.
    waits: Option<usize>,
    /// A read of these blocks, and its number: its answer is judged if nothing has changed since.
    reading: Option<(u64, u32)>,
    reads: u32,
    values: u64,
    /// The next write or sync fails after so many.
    fails_after: Option<u64>,
    failed: bool,
    /// It destages when the log is full, and not before.
    lazy: bool,
    /// The metadata of the replica takes long to be written.
    slow_pages: bool,
    /// Writes of a former life that land in this one. With rule DWait there are none.
    pub(super) late: Vec<Rc<Writing<Blocks>>>,
}

impl<'a> Life<'a> {
    pub(super) fn new(
        store: Real,
        recorder: Recorder,
        found: &DurableState,
        truth: Truth,
        rng: &'a mut Rng,
    ) -> Life<'a> {
        let fails_after = rng.chance(5).then(|| rng.below(120));
        let (values, slow_pages) = (1 + rng.below(1 << 40), rng.chance(2));
        let recorder_is_two = recorder.disk.is_two();
        let mut life = Life {
            store,
            recorder,
            truth,
            submitted: Vec::new(),
            requests: 0,
            appends: 0,
            unconfirmed: Vec::new(),
            end: found.end,
            durable: found.end,
            commit_point: found.commit_point,
            epoch: found.epoch,
            promise: found.promise,
            waits: None,
            reading: None,
            reads: 0,
            values: values << 8,
            fails_after,
            failed: false,
            lazy: !recorder_is_two,
            slow_pages,
            late: Vec::new(),
            rng,
        };
        life.note();
        life
    }

    fn note(&mut self) {
        self.recorder.tape.push(Event::Truth(Rc::new(self.truth.clone())));
    }

    /// Lives: so many commands, and what is done meanwhile.
    pub(super) fn live(&mut self, commands: u64) -> Result<(), String> {
        let mut left = commands;
        while left > 0 && !self.failed {
            if self.waits.is_none() && self.rng.chance(2) {
                self.command();
                left -= 1;
                if left <= commands / 2 {
                    self.land_late();
                }
            }
            let steps = self.rng.below(4);
            for step in 0..steps {
                if !self.step()? && step == 0 && self.waits.is_some() {
                    return Err(format!("it waits for nothing: {:?}", self.store.fill()));
                }
            }
        }
        Ok(())
    }

    fn land_late(&mut self) {
        for writing in self.late.drain(..) {
            self.recorder.disk.land(&writing, true, || true);
            self.recorder.tape.push(Event::WroteNow(writing));
        }
    }

    /// Two entries of one block each are in flight together.
    pub(super) fn write_two_at_once(&mut self) -> Result<(), String> {
        self.open();
        self.write_one()?;
        self.rest()?;
        for _ in 0..2 {
            self.write_block();
        }
        self.act(&mut Vec::new()).map(|_| ())
    }

    /// An entry of one block is appended, and reported.
    pub(super) fn write_one(&mut self) -> Result<(), String> {
        self.write_block();
        while !self.unconfirmed.is_empty() {
            self.step()?;
        }
        Ok(())
    }

    fn write_block(&mut self) {
        self.end.sequence = self.end.sequence.next();
        self.values += 8;
        let data = Blocks::new(vec![[self.values; 8]]);
        let entry = Entry { block: 3, blocks: 1, op: EntryOp::Data(Payload { data, first: 0 }) };
        self.append(self.end, true, entry);
    }

    /// Owners have so much in flight, and no more: a log that is full of what is not acknowledged takes nothing.
    fn is_full(&self) -> bool {
        let above = self.store.entries().filter(|mention| mention.position > self.commit_point);
        let blocks: u32 = above.map(|mention| mention.entry.blocks).sum();
        blocks > MOST_IN_FLIGHT
    }

    /// Everything that was asked for is done, and the log is closed.
    pub(super) fn rest(&mut self) -> Result<(), String> {
        for round in 0..4 {
            let mut steps = 0;
            while !self.failed && self.step()? {
                steps += 1;
                if steps > 20_000 {
                    return Err("it does not come to rest".into());
                }
            }
            if round < 3 {
                self.store.tick();
            }
        }
        match self.store.is_idle() || self.failed {
            true => Ok(()),
            false => Err(format!("it stopped, and has something to do: {:?}", self.store.fill())),
        }
    }

    /// All that it has is acknowledged, and goes to its extents.
    pub(super) fn destage_all(&mut self) -> Result<(), String> {
        self.raise_commit_point(self.durable);
        for _ in 0..64 {
            self.store.destage_soon();
            self.rest()?;
        }
        Ok(())
    }

    /// What the store maps these blocks to now. None: corrupt.
    pub(super) fn read(&mut self, block: u64, blocks: u32) -> Result<Option<Vec<[u64; 8]>>, String> {
        let mut got = None;
        let job = Job { slot: 1, turn: 1, part: 1 };
        self.store.submit(Command::Read { tag: Tag { session: 2, job }, block, blocks, again: false });
        while got.is_none() {
            let mut completions = Vec::new();
            if !self.act(&mut completions)? {
                return Err("a read is not answered".into());
            }
            for completion in completions {
                if let Completion::Data { content, .. } = completion {
                    got = Some(content);
                }
            }
        }
        Ok(match got.expect("it was answered") {
            Ok(Content::Nothing) => Some(vec![ZERO; blocks as usize]),
            Ok(Content::Data(payload) | Content::Sparse(payload, _)) => {
                Some(payload.data[payload.first as usize..].to_vec())
            }
            Err(_) => None,
        })
    }

    fn entry(&mut self) -> Entry<Blocks> {
        let most = if self.rng.chance(8) { 12 } else { 4 };
        // Some are written again and again.
        let within = if self.rng.chance(2) { 12 } else { BLOCKS };
        let block = self.rng.below(within);
        let blocks = (1 + self.rng.below(most)).min(BLOCKS - block) as u32;
        let op = match self.rng.below(10) {
            0 => EntryOp::Zeroes,
            1 | 2 => EntryOp::Trim,
            _ => {
                let mut new = || -> [u64; 8] {
                    self.values += 8;
                    std::array::from_fn(|sector| self.values + sector as u64)
                };
                let data = Blocks::new((0..blocks).map(|_| new()).collect());
                EntryOp::Data(Payload { data, first: 0 })
            }
        };
        Entry { block, blocks, op }
    }

    fn command(&mut self) {
        if self.is_full() {
            self.raise_commit_point(self.durable);
            return;
        }
        if self.end == Position::START {
            self.open();
            return;
        }
        match self.rng.below(24) {
            0..=12 => {
                self.end.sequence = self.end.sequence.next();
                let entry = self.entry();
                self.append(self.end, true, entry);
            }
            13 => {
                // What makes copies equal has the position of an entry of long ago.
                let entry = self.entry();
                self.truth.out_of_band += 1;
                let position = Position { ownership: Epoch(0), sequence: Sequence(self.truth.out_of_band) };
                self.append(position, false, entry);
            }
            14 => {
                // Or of one that it may have.
                let again = self.truth.changes.iter().rev().take(6).find_map(|change| match change {
                    Change::Append { position, entry, .. } if self.rng.chance(3) => {
                        Some((*position, entry.clone()))
                    }
                    _ => None,
                });
                if let Some((position, entry)) = again {
                    self.append(position, false, entry);
                }
            }
            15..=18 => {
                let far = self.durable.sequence.0;
                let near = if self.commit_point.ownership == self.durable.ownership {
                    self.commit_point.sequence.0
                } else {
                    0
                };
                if far > near {
                    let sequence = Sequence(near + 1 + self.rng.below(far - near));
                    self.raise_commit_point(Position { sequence, ..self.durable });
                }
            }
            19 => self.open(),
            20 => {
                self.epoch = self.next_epoch();
                let owner = Owner { node: NodeId(1), incarnation: Incarnation(self.epoch.0) };
                self.promise = Promise { epoch: self.epoch, owner };
                self.change(Change::Promise(self.promise));
                self.waits = Some(self.truth.changes.len());
                self.store.submit(Command::Promise(self.promise));
            }
            21 if self.unconfirmed.is_empty() => {
                self.epoch = self.next_epoch();
                let after = Position { ownership: self.epoch, sequence: Sequence(self.rng.below(3)) };
                let empty = self.rng.chance(6);
                let acknowledged = self.truth.acknowledged;
                self.change(Change::Return { after, empty, commit_point: self.commit_point, acknowledged });
                (self.end, self.durable) = (after, after);
                self.waits = Some(self.truth.changes.len());
                self.store.submit(Command::Return { after, empty });
            }
            // An owner sees to it first that what is on the list is brought.
            22 if self.rng.chance(3) && !self.truth.may_be_corrupt(0..BLOCKS) => {
                self.change(Change::Joined);
                self.store.submit(Command::Joined);
            }
            22 | 23 if self.unconfirmed.is_empty() && self.reading.is_none() => {
                let block = self.rng.below(BLOCKS);
                let blocks = (1 + self.rng.below(9)).min(BLOCKS - block) as u32;
                self.reading = Some((block, blocks));
                self.reads += 1;
                let job = Job { slot: 0, turn: self.reads, part: 0 };
                self.store.submit(Command::Read {
                    tag: Tag { session: 1, job },
                    block,
                    blocks,
                    again: false,
                });
            }
            _ if self.lazy => {}
            _ => match self.rng.below(4) {
                0 => self.store.tick(),
                _ => self.store.destage_soon(),
            },
        }
    }

    /// A store that was found damaged is emptied.
    pub(super) fn discard(&mut self, promise: Promise, after: Position) {
        self.fails_after = self.rng.chance(4).then(|| self.rng.below(6));
        self.change(Change::Discard { promise, after });
        (self.end, self.durable, self.promise, self.epoch) = (after, after, promise, promise.epoch);
        self.waits = Some(self.truth.changes.len());
        self.store.submit(Command::Discard { promise, after });
    }

    /// Another owner opens its sequence.
    fn open(&mut self) {
        self.epoch = self.next_epoch();
        self.end = Position { ownership: self.epoch, sequence: Sequence(1) };
        self.append(self.end, true, Entry { block: 0, blocks: 0, op: EntryOp::Open });
    }

    /// An epoch that no owner has had, in any life.
    fn next_epoch(&mut self) -> Epoch {
        self.truth.epochs += 1;
        Epoch(self.truth.epochs)
    }

    fn change(&mut self, change: Change) {
        self.reading = None;
        self.truth.changes.push(change);
        self.note();
    }

    fn append(&mut self, position: Position, sequenced: bool, entry: Entry<Blocks>) {
        self.change(Change::Append { position, sequenced, entry: entry.clone() });
        self.appends += 1;
        self.unconfirmed.push((self.appends, self.truth.changes.len()));
        let (number, commit_point, epoch) = (self.appends, self.commit_point, self.epoch);
        self.give_commit_point();
        self.store.submit(Command::Append {
            number,
            position,
            sequenced,
            entry,
            commit_point,
            acknowledged: commit_point,
            epoch,
        });
    }

    fn raise_commit_point(&mut self, commit_point: Position) {
        self.commit_point = self.commit_point.max(commit_point);
        self.give_commit_point();
        self.store.submit(Command::CommitPoint {
            commit_point: self.commit_point,
            acknowledged: self.commit_point,
            epoch: self.epoch,
        });
    }

    fn give_commit_point(&mut self) {
        let given = (self.commit_point, self.epoch);
        if self.truth.commit_points.last().is_none_or(|last| last.0 < given.0) {
            self.truth.commit_points.push(given);
            self.truth.acknowledged = self.truth.acknowledged.max(Some(self.commit_point));
            self.note();
        }
    }

    /// The device does one thing, if it is asked for any. Whether anything was done.
    fn step(&mut self) -> Result<bool, String> {
        let mut completions = Vec::new();
        let done = self.act(&mut completions)?;
        for completion in completions {
            self.completed(completion)?;
        }
        Ok(done)
    }

    fn act(&mut self, completions: &mut Vec<Completion<Blocks>>) -> Result<bool, String> {
        let mut actions = Vec::new();
        let mut done = false;
        if !self.submitted.is_empty() {
            let mut next = self.rng.index(self.submitted.len());
            for _ in 0..if self.slow_pages { 6 } else { 0 } {
                if is_page(&self.submitted[next].1) {
                    next = self.rng.index(self.submitted.len());
                }
            }
            let (token, request, moment, id) = self.submitted.swap_remove(next);
            let writes = !matches!(request, IoRequest::Read(_));
            let fails = writes && self.fails_after == Some(0);
            if let Some(after) = self.fails_after.as_mut().filter(|_| writes) {
                *after = after.wrapping_sub(1);
            }
            let answer = if fails {
                SimDisk::refuse(request)
            } else {
                match &request {
                    IoRequest::Write(_) => self.recorder.tape.push(Event::Wrote(id)),
                    IoRequest::Sync(area) => self.recorder.tape.push(Event::Synced(*area, moment)),
                    IoRequest::Read(_) => {}
                }
                self.recorder.disk.carry_out(request, moment)
            };
            self.store.done(token, answer, &mut actions);
            done = true;
        }
        self.store.run(&mut actions);
        done |= !actions.is_empty();
        let moment = self.recorder.disk.moment();
        for action in actions {
            match action {
                Action::Submit(token, request) => {
                    self.requests += 1;
                    if let IoRequest::Write(writing) = &request {
                        self.recorder.tape.push(Event::Asked(self.requests, Rc::new(writing.clone())));
                    }
                    self.submitted.push((token, request, moment, self.requests));
                }
                Action::Complete(completion) => completions.push(completion),
            }
        }
        Ok(done)
    }

    fn completed(&mut self, completion: Completion<Blocks>) -> Result<(), String> {
        match completion {
            Completion::Appended(through) => {
                let confirmed = self.unconfirmed.iter().take_while(|(number, _)| *number <= through).count();
                for (_, changes) in self.unconfirmed.drain(..confirmed) {
                    self.truth.reported = self.truth.reported.max(changes);
                    if let Change::Append { position, sequenced: true, .. } = &self.truth.changes[changes - 1]
                    {
                        self.durable = *position;
                    }
                }
                self.note();
            }
            Completion::Promised(_) | Completion::Listed(_) => {
                self.truth.reported = self.waits.take().expect("it was asked for");
                self.note();
            }
            Completion::Data { tag, content } => {
                let Some((block, blocks)) = self.reading.filter(|_| tag.job.turn == self.reads) else {
                    return Ok(());
                };
                self.reading = None;
                let data = match content {
                    Err(_) if self.truth.may_be_corrupt(block..block + u64::from(blocks)) => return Ok(()),
                    Err(_) => {
                        return Err(format!(
                            "blocks {block} and {blocks} more are corrupt, and nothing is corrupted"
                        ));
                    }
                    Ok(Content::Nothing) => vec![ZERO; blocks as usize],
                    Ok(Content::Data(payload) | Content::Sparse(payload, _)) => {
                        payload.data[payload.first as usize..].to_vec()
                    }
                };
                for (at, is) in (block..).zip(data) {
                    if let Some(expected) = self.truth.differs(at, is) {
                        return Err(format!("block {at} is read as {is:?} instead of {expected:?}"));
                    }
                }
            }
            Completion::Failed => self.failed = true,
            _ => {}
        }
        Ok(())
    }
}

/// Whether it writes a page of the metadata of the replica.
fn is_page(request: &IoRequest<Blocks>) -> bool {
    let is_page = |writing: &Writing<Blocks>| writing.area == Area::Log && writing.length() == PAGE as u64;
    matches!(request, IoRequest::Write(writing) if is_page(writing))
}
