//! Requests of clients, and copies to returning replicas, from the first step to the last.
//!
//! ```text
//!            ┌─ read ───────────── leases held? ─────────────────────▶ complete
//!            ├─ map ──▶ asks ───── leases held? ─────────────────────▶ complete
//!  waits for │
//!  what it ──┼─ write ──▶ (reads what it does not fill, merges) ─▶ entries ─▶ all members ─▶ complete
//!  overlaps  │
//!            ├─ copy ──▶ reads ─▶ target ─▶ durable there
//!            └─ mend ──▶ reads elsewhere ─▶ entry ─▶ all members
//! ```
//!
//! Reading is in `reads`, and what blocks hold in `maps`.

mod maps;
mod reads;

use std::collections::VecDeque;
use std::ops::Range;

use crate::ids::ReplicaId;
use crate::layout::{GroupIndex, Layout, Piece};
use crate::lease::Moment;
use crate::message::{Content, Entry, EntryOp, Job, Payload};
use crate::range::Access;
use crate::rule::{Rule, left_out};
use crate::volume::active::Active;
use crate::volume::{Action, Context, Failure, Request, RequestId, RequestOp, SECTORS};

/// Blocks that are written anew at the same time since they were found corrupt.
const MENDS: usize = 16;

/// Blocks that one request turns to zeroes, or trims, at a time: a replica takes an entry in one step.
const MOST_ZEROES: u64 = 1 << 14;
const MOST_TRIMMED: u64 = 1 << 18;

/// The jobs, in slots that are used again.
#[derive(Debug)]
pub(in crate::volume) struct Jobs<D> {
    slots: Vec<JobState<D>>,
    free: Vec<u32>,
    /// Those that may begin, and those all of whose entries are acknowledged.
    ready: VecDeque<u32>,
    finished: VecDeque<u32>,
    /// Reads and maps that are done but for the leases.
    unleased: Vec<u32>,
    /// Requests of clients that are at work.
    clients: usize,
    /// Made once, for what [`crate::range::Exclusion::leave`] returns.
    leaving: Vec<u32>,
}

impl<D> Default for Jobs<D> {
    fn default() -> Jobs<D> {
        Jobs {
            slots: Vec::new(),
            free: Vec::new(),
            ready: VecDeque::new(),
            finished: VecDeque::new(),
            unleased: Vec::new(),
            clients: 0,
            leaving: Vec::new(),
        }
    }
}

#[derive(Debug)]
struct JobState<D> {
    /// How often the slot was used.
    turn: u32,
    work: Work<D>,
    stage: JobStage,
    /// The blocks of the volume that it touches.
    blocks: Range<u64>,
    /// What it has not written yet, of a request that has no data.
    rest: Range<u64>,
    /// What it reads.
    parts: Vec<Part<D>>,
    /// Its requests to members for what blocks hold.
    maps: Vec<maps::Question>,
    /// Parts that have not been read, or entries that are not acknowledged.
    pending: u32,
    /// It reads under exclusion, from one member after the other.
    careful: bool,
    /// Its client has gone.
    is_gone: bool,
    /// Leases were held when it began (used only with rule L2 left out).
    was_leased: bool,
}

#[derive(Debug)]
enum Work<D> {
    Nothing,
    Client(Request<D>),
    Copy {
        to: ReplicaId,
        piece: Piece,
    },
    /// A block that was found corrupt is to be written anew.
    Mend {
        at: ReplicaId,
    },
    /// It waits for what it overlaps, or for its entries, and then does nothing more.
    Cancelled,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JobStage {
    Waiting,
    Reading,
    Mapping,
    Leases,
    Merging,
    Repairing,
    Writing,
    /// Waits until so many out-of-band entries are confirmed by the target.
    Copying(u64),
}

/// Consecutive blocks that are read from one replica.
#[derive(Debug)]
struct Part<D> {
    piece: Piece,
    /// Where the part begins in the request, in blocks.
    at: u64,
    asked: Option<ReplicaId>,
    since: Moment,
    done: bool,
    /// The replicas where its checksum does not match.
    corrupt: Vec<ReplicaId>,
    content: Option<Content<D>>,
}

impl<D> Jobs<D> {
    /// Requests of clients that are at work.
    pub(in crate::volume) fn clients(&self) -> usize {
        self.clients
    }

    /// The requests of clients that were not carried out, and the ids of those whose clients have gone.
    pub(in crate::volume) fn unfinished(&mut self) -> (Vec<Request<D>>, Vec<RequestId>) {
        let (mut unfinished, mut gone) = (Vec::new(), Vec::new());
        for job in &mut self.slots {
            match std::mem::replace(&mut job.work, Work::Nothing) {
                Work::Client(request) if job.is_gone => gone.push(request.id),
                Work::Client(request) => unfinished.push(request),
                _ => {}
            }
        }
        (unfinished, gone)
    }

    /// The client of a request has gone. A request that waits for others which it overlaps never begins. One that has begun is
    /// finished here, and never begins again (rule T13). Returns whether the request had not begun.
    pub(in crate::volume) fn cancel(&mut self, id: RequestId) -> bool {
        let is_it = |job: &&mut JobState<D>| matches!(&job.work, Work::Client(of) if of.id == id);
        let Some(job) = self.slots.iter_mut().find(is_it) else { return false };
        if job.stage != JobStage::Waiting {
            job.is_gone = true;
            return false;
        }
        job.work = Work::Cancelled;
        self.clients -= 1;
        true
    }

    /// An entry of this job is acknowledged.
    pub(in crate::volume) fn written(&mut self, slot: u32) {
        let job = &mut self.slots[slot as usize];
        job.pending -= 1;
        if job.pending == 0 {
            self.finished.push_back(slot);
        }
    }

    fn take(&mut self, work: Work<D>, blocks: Range<u64>) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(JobState {
                turn: 0,
                work: Work::Nothing,
                stage: JobStage::Waiting,
                blocks: 0..0,
                rest: 0..0,
                parts: Vec::new(),
                maps: Vec::new(),
                pending: 0,
                careful: false,
                is_gone: false,
                was_leased: false,
            });
            self.slots.len() as u32 - 1
        });
        self.clients += usize::from(matches!(work, Work::Client(_)));
        let job = &mut self.slots[slot as usize];
        (job.work, job.stage, job.blocks) = (work, JobStage::Waiting, blocks);
        (job.rest, job.pending) = (0..0, 0);
        (job.careful, job.was_leased, job.is_gone) = (false, false, false);
        job.parts.clear();
        job.maps.clear();
        slot
    }
}

/// The blocks that a request touches, and whether it fills its first and its last.
struct Span {
    blocks: Range<u64>,
    head: bool,
    tail: bool,
}

fn span<D>(request: &Request<D>) -> Span {
    let end = request.sector + u64::from(request.sectors);
    let blocks = request.sector / SECTORS..end.div_ceil(SECTORS);
    let (head, tail) = (!request.sector.is_multiple_of(SECTORS), !end.is_multiple_of(SECTORS));
    match blocks.end - blocks.start {
        // One block is read once.
        1 => Span { blocks, head: head || tail, tail: false },
        _ => Span { blocks, head, tail },
    }
}

impl<D: Clone> Active<D> {
    /// Accepts a request of a client.
    pub(in crate::volume) fn request(
        &mut self,
        c: &mut Context,
        now: Moment,
        request: Request<D>,
        out: &mut Vec<Action<D>>,
    ) {
        let record = c.record().expect("it owns the volume");
        let end = request.sector.checked_add(u64::from(request.sectors));
        if end.is_none_or(|end| end > record.blocks * SECTORS) {
            out.push(Action::Complete(request.id, Err(Failure::OutOfRange)));
            return;
        }
        let mut blocks = span(&request).blocks;
        if matches!(request.op, RequestOp::Trim) {
            // Sectors that do not fill a block are left as they are.
            let end = request.sector + u64::from(request.sectors);
            blocks = request.sector.div_ceil(SECTORS)..end / SECTORS;
        }
        if matches!(request.op, RequestOp::Flush) || blocks.is_empty() {
            // What was acknowledged is durable.
            out.push(Action::Complete(request.id, Ok(())));
            return;
        }
        let reads = matches!(request.op, RequestOp::Read | RequestOp::Map);
        let layout = record.layout;
        let maps = matches!(request.op, RequestOp::Map);
        blocks = if maps { maps::answered_at_once(&layout, blocks) } else { blocks };
        let mut groups = layout.pieces(blocks.clone()).map(|piece| piece.group);
        if !reads && groups.any(|group| self.has_too_few(c, group)) {
            self.held.push_back(request);
            return;
        }
        let slot = self.jobs.take(Work::Client(request), blocks);
        self.enter(slot, if reads { Access::Shared } else { Access::Exclusive });
        self.go_on(c, now, out);
    }

    /// Whether fewer replicas of a group are in sync than the policy requires (rule W6).
    fn has_too_few(&self, c: &Context, group: GroupIndex) -> bool {
        let least = c.record().map_or(0, |record| record.least as usize);
        self.groups[group.0 as usize].in_sync < least && !left_out(Rule::W6)
    }

    /// All entries of a job are acknowledged. If too few members are left by then, the client gets no answer until there are
    /// more. Requests that overlap the job continue; otherwise the return of a copy would never end (rule W6).
    fn complete_write(&mut self, c: &Context, slot: u32, out: &mut Vec<Action<D>>) {
        let job = &self.jobs.slots[slot as usize];
        if let Work::Client(request) = &job.work {
            let layout = c.record().expect("it owns the volume").layout;
            let groups = || layout.pieces(job.blocks.clone()).map(|piece| piece.group);
            if groups().any(|group| self.has_too_few(c, group)) {
                let groups = groups().collect();
                self.withheld.push((request.id, groups));
                self.free(slot);
                return;
            }
        }
        self.complete(slot, Ok(()), out);
    }

    /// Writes that were waiting for more replicas in sync.
    pub(in crate::volume) fn retry_held(&mut self, c: &mut Context, now: Moment, out: &mut Vec<Action<D>>) {
        for (id, groups) in std::mem::take(&mut self.withheld) {
            match groups.iter().any(|group| self.has_too_few(c, *group)) {
                true => self.withheld.push((id, groups)),
                false => out.push(Action::Complete(id, Ok(()))),
            }
        }
        for request in std::mem::take(&mut self.held) {
            self.request(c, now, request, out);
        }
    }

    fn enter(&mut self, slot: u32, access: Access) {
        let blocks = self.jobs.slots[slot as usize].blocks.clone();
        if self.is_let_through(slot) || self.exclusion.enter(slot, blocks, access) {
            self.jobs.ready.push_back(slot);
        }
    }

    /// Whether it waits for nothing: rule W1 or C4 is left out.
    fn is_let_through(&self, slot: u32) -> bool {
        let is_copy = || matches!(self.jobs.slots[slot as usize].work, Work::Copy { .. });
        left_out(Rule::W1) || left_out(Rule::C4) && is_copy()
    }

    fn leave(&mut self, slot: u32) {
        if self.is_let_through(slot) {
            return;
        }
        let mut ready = std::mem::take(&mut self.jobs.leaving);
        self.exclusion.leave(slot, &mut ready);
        for waiter in ready.drain(..) {
            self.jobs.ready.push_back(waiter);
        }
        self.jobs.leaving = ready;
    }

    /// A job has ended.
    fn free(&mut self, slot: u32) {
        self.leave(slot);
        let job = &mut self.jobs.slots[slot as usize];
        self.jobs.clients -= usize::from(matches!(job.work, Work::Client(_)));
        job.work = Work::Nothing;
        // Answers that are still in flight are dropped.
        job.turn = job.turn.wrapping_add(1);
        self.jobs.free.push(slot);
    }

    fn complete(&mut self, slot: u32, result: Result<(), Failure>, out: &mut Vec<Action<D>>) {
        if let Work::Client(request) = &self.jobs.slots[slot as usize].work {
            out.push(Action::Complete(request.id, result));
        }
        self.free(slot);
    }

    /// Begins what may begin, and ends what has been acknowledged, until there is nothing of either.
    pub(in crate::volume) fn go_on(&mut self, c: &mut Context, now: Moment, out: &mut Vec<Action<D>>) {
        loop {
            if let Some(slot) = self.jobs.finished.pop_front() {
                let job = &self.jobs.slots[slot as usize];
                match job.stage {
                    _ if matches!(job.work, Work::Cancelled) => self.free(slot),
                    JobStage::Repairing => self.has_read(c, now, slot, out),
                    JobStage::Writing if !job.rest.is_empty() => {
                        self.write_parts(c, slot, [None, None, None], out);
                    }
                    _ => self.complete_write(c, slot, out),
                }
            } else if let Some(slot) = self.jobs.ready.pop_front() {
                self.begin(c, now, slot, out);
            } else {
                return;
            }
        }
    }

    fn begin(&mut self, c: &mut Context, now: Moment, slot: u32, out: &mut Vec<Action<D>>) {
        let layout = c.record().expect("it owns the volume").layout;
        let job = &mut self.jobs.slots[slot as usize];
        let blocks = job.blocks.clone();
        match &job.work {
            Work::Client(request) => match &request.op {
                RequestOp::Read => self.read(c, now, slot, &layout, &[blocks], out),
                RequestOp::Write(_) | RequestOp::WriteZeroes => {
                    let span = span(request);
                    let (first, last) = (blocks.start..blocks.start + 1, blocks.end - 1..blocks.end);
                    match (span.head, span.tail) {
                        (true, true) => self.read(c, now, slot, &layout, &[first, last], out),
                        (true, false) => self.read(c, now, slot, &layout, &[first], out),
                        (false, true) => self.read(c, now, slot, &layout, &[last], out),
                        (false, false) => self.write(c, slot, None, out),
                    }
                }
                RequestOp::Trim => self.write(c, slot, None, out),
                RequestOp::Map => self.map(c, now, slot, &layout, out),
                RequestOp::Flush => unreachable!("it has no blocks"),
            },
            Work::Copy { .. } => self.read(c, now, slot, &layout, &[blocks], out),
            Work::Mend { at } => {
                let at = *at;
                self.read_but_from(c, now, slot, &layout, at, out);
            }
            Work::Cancelled => self.free(slot),
            Work::Nothing => unreachable!("it was given something to do"),
        }
    }

    /// All is read and whole.
    fn has_read(&mut self, c: &mut Context, now: Moment, slot: u32, out: &mut Vec<Action<D>>) {
        let job = &mut self.jobs.slots[slot as usize];
        match &job.work {
            Work::Client(request) if matches!(request.op, RequestOp::Read) => {
                for part in &mut job.parts {
                    let blocks = part.piece.blocks as u32;
                    if let Some(content) = part.content.take() {
                        out.push(Action::Fill { request: request.id, at: part.at, blocks, content });
                    }
                }
                job.stage = JobStage::Leases;
                if !self.finish_read(now, slot, out) {
                    self.jobs.unleased.push(slot);
                }
            }
            Work::Client(request) => {
                let span = span(request);
                let mut contents = job.parts.iter_mut().map(|part| part.content.take());
                let head = if span.head { contents.next().flatten() } else { None };
                let tail = if span.tail { contents.next().flatten() } else { None };
                job.stage = JobStage::Merging;
                let id = Job { slot, turn: job.turn, part: 0 };
                let (ownership, request) = (self.ownership, request.clone());
                out.push(Action::Merge { ownership, job: id, request, head, tail });
            }
            Work::Copy { to, piece } => {
                let (to, piece, group) = (*to, *piece, piece.group);
                let has_data = |part: &Part<D>| !matches!(part.content, Some(Content::Nothing) | None);
                let needs_room = job.parts.iter().any(has_data);
                if needs_room && self.puts_off(to) {
                    self.free(slot);
                    self.put_off(c, to, piece);
                    return;
                }
                let position = self.acknowledged(group);
                let job = &mut self.jobs.slots[slot as usize];
                let session = self.sessions.iter_mut().find(|session| session.replica == to);
                let session = session.expect("its copies end with the session");
                for part in &mut job.parts {
                    let content = part.content.take().expect("all is read");
                    for entry in content.entries(part.piece.block, part.piece.blocks as u32) {
                        job.stage = JobStage::Copying(session.send_out_of_band(c, position, entry, out));
                    }
                }
            }
            Work::Mend { .. } => self.free(slot),
            Work::Cancelled | Work::Nothing => unreachable!("it was given something to do"),
        }
    }

    /// Whole blocks have been made of what a client writes.
    pub(in crate::volume) fn merged(
        &mut self,
        c: &mut Context,
        now: Moment,
        id: Job,
        data: D,
        out: &mut Vec<Action<D>>,
    ) {
        let job = self.jobs.slots.get(id.slot as usize);
        if job.is_some_and(|job| job.turn == id.turn && job.stage == JobStage::Merging) {
            self.write(c, id.slot, Some(data), out);
            self.go_on(c, now, out);
        }
    }

    /// Issues the entries of a request. `merged`: see [`Action::Merge`].
    fn write(&mut self, c: &mut Context, slot: u32, merged: Option<D>, out: &mut Vec<Action<D>>) {
        let job = &mut self.jobs.slots[slot as usize];
        let blocks = job.blocks.clone();
        let Work::Client(request) = &job.work else { unreachable!("copies write nothing") };
        // Ranges of blocks, and what they get: data begins in its buffer where the range does.
        let mut parts: [Option<(Range<u64>, EntryOp<D>)>; 3] = [None, None, None];
        let rest;
        match &request.op {
            RequestOp::Write(data) => {
                let data = merged.unwrap_or_else(|| data.clone());
                rest = blocks.end..blocks.end;
                parts[0] = Some((blocks, EntryOp::Data(Payload { data, first: 0 })));
            }
            RequestOp::Trim => rest = blocks,
            RequestOp::WriteZeroes => {
                let span = span(request);
                let (mut start, mut end) = (blocks.start, blocks.end);
                if let Some(data) = merged {
                    if span.head {
                        let first = Payload { data: data.clone(), first: 0 };
                        parts[0] = Some((start..start + 1, EntryOp::Data(first)));
                        start += 1;
                    }
                    if span.tail {
                        let last = Payload { data, first: u32::from(span.head) };
                        parts[2] = Some((end - 1..end, EntryOp::Data(last)));
                        end -= 1;
                    }
                }
                rest = start..end;
            }
            RequestOp::Read | RequestOp::Map | RequestOp::Flush => unreachable!("they write nothing"),
        }
        job.rest = rest;
        self.write_parts(c, slot, parts, out);
    }

    /// Issues entries: these, and the next of what has no data and is a part of its request.
    fn write_parts(
        &mut self,
        c: &mut Context,
        slot: u32,
        mut parts: [Option<(Range<u64>, EntryOp<D>)>; 3],
        out: &mut Vec<Action<D>>,
    ) {
        let layout = c.record().expect("it owns the volume").layout;
        let job = &mut self.jobs.slots[slot as usize];
        job.stage = JobStage::Writing;
        let trims = matches!(&job.work, Work::Client(request) if matches!(request.op, RequestOp::Trim));
        if !job.rest.is_empty() {
            let (most, op) =
                if trims { (MOST_TRIMMED, EntryOp::Trim) } else { (MOST_ZEROES, EntryOp::Zeroes) };
            let end = job.rest.end.min(job.rest.start + most);
            parts[1] = Some((job.rest.start..end, op));
            job.rest.start = end;
        }
        let entries = || parts.iter().flatten().flat_map(|(range, _)| layout.pieces(range.clone()));
        let count = entries().count() as u32;
        let with_data = parts.iter().flatten().filter(|(_, op)| matches!(op, EntryOp::Data(_)));
        let mut with_data = with_data.flat_map(|(range, _)| layout.pieces(range.clone()));
        if with_data.any(|piece| !self.has_room(piece.group)) {
            self.complete(slot, Err(Failure::NoSpace), out);
            return;
        }
        self.jobs.slots[slot as usize].pending = count;
        for (range, op) in parts.iter().flatten() {
            let mut at = 0;
            for piece in layout.pieces(range.clone()) {
                let op = match op {
                    EntryOp::Data(payload) => {
                        let first = payload.first + at;
                        EntryOp::Data(Payload { data: payload.data.clone(), first })
                    }
                    other => other.clone(),
                };
                at += piece.blocks as u32;
                let entry = Entry { block: piece.block, blocks: piece.blocks as u32, op };
                self.issue(c, piece.group, entry, Some(slot), out);
            }
        }
    }

    /// Copies a piece to a returning replica.
    pub(in crate::volume) fn copy(&mut self, to: ReplicaId, piece: Piece, layout: &Layout) {
        let first = layout.block_at(piece.group, piece.block);
        let slot = self.jobs.take(Work::Copy { to, piece }, first..first + piece.blocks);
        self.enter(slot, Access::Exclusive);
    }

    /// A member has found a block corrupt that no read has requested: it is written anew, if another has it (rule R7).
    pub(in crate::volume) fn found_corrupt(
        &mut self,
        c: &mut Context,
        now: Moment,
        at: ReplicaId,
        block: u64,
        out: &mut Vec<Action<D>>,
    ) {
        let record = c.record().expect("it owns the volume");
        let Some(session) = self.sessions.iter().find(|session| session.replica == at) else { return };
        let group = session.group;
        let is_mended = |job: &JobState<D>| matches!(job.work, Work::Mend { .. });
        let busy = self.jobs.slots.iter().filter(|job| is_mended(job)).count();
        // A replica that returns gets the newest data anyway. Corruption that is not mended here is found again.
        let is_member = self.groups[group.0 as usize].readable.contains(&at);
        if !is_member || busy >= MENDS || block >= record.layout.blocks_in(group, record.blocks) {
            return;
        }
        let first = record.layout.block_at(group, block);
        let slot = self.jobs.take(Work::Mend { at }, first..first + 1);
        self.enter(slot, Access::Exclusive);
        self.go_on(c, now, out);
    }

    /// Ends the copies that are durable at their target; or all of them. Returns how many.
    pub(in crate::volume) fn end_copies(&mut self, to: ReplicaId, confirmed: Option<u64>) -> u32 {
        let mut ended = 0;
        for slot in 0..self.jobs.slots.len() {
            let job = &mut self.jobs.slots[slot];
            let ours = matches!(job.work, Work::Copy { to: target, .. } if target == to);
            let durable = match (job.stage, confirmed) {
                (JobStage::Copying(until), Some(confirmed)) => until <= confirmed,
                (_, None) => true,
                _ => false,
            };
            if ours && durable {
                job.turn = job.turn.wrapping_add(1);
                ended += 1;
                let waits = job.stage == JobStage::Waiting && !left_out(Rule::W1) && !left_out(Rule::C4);
                // Its entries are acknowledged before other jobs may touch these blocks.
                if waits || job.stage == JobStage::Repairing {
                    job.work = Work::Cancelled;
                } else {
                    self.free(slot as u32);
                }
            }
        }
        ended
    }
}
