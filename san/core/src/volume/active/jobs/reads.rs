//! The reads of a job: from which member, again if it does not answer, and with a repair where a checksum does not match.
//!
//! A block whose checksum does not match is read again under exclusion, from one member after the other, and written anew
//! (rule R7).

use std::ops::Range;

use super::{Active, JobStage, JobState, Part, Work, maps};
use crate::ids::ReplicaId;
use crate::layout::{GroupIndex, Layout, Piece};
use crate::lease::Moment;
use crate::message::{Content, Corrupt, Job, ToReplica};
use crate::range::Access;
use crate::rule::{Rule, left_out};
use crate::volume::{Action, Context, Failure, Request, RequestId, RequestOp};

/// Blocks of a read that are written anew together if one of them is corrupt: 64 KiB.
const MENDED_TOGETHER: u64 = 16;
/// Blocks that reads have written anew at a time, 2 MiB: beside what clients have in flight it is little, in the smallest log too.
const MOST_MENDED: u64 = 512;

impl<D: Clone> Active<D> {
    /// Reads these blocks of the volume.
    pub(super) fn read(
        &mut self,
        c: &Context,
        now: Moment,
        slot: u32,
        layout: &Layout,
        what: &[Range<u64>],
        out: &mut Vec<Action<D>>,
    ) {
        let job = &mut self.jobs.slots[slot as usize];
        job.stage = JobStage::Reading;
        job.parts.clear();
        for blocks in what {
            let mut at = blocks.start - job.blocks.start;
            for piece in layout.pieces(blocks.clone()) {
                let (corrupt, content) = (Vec::new(), None);
                job.parts.push(Part { piece, at, asked: None, since: now, done: false, corrupt, content });
                at += piece.blocks;
            }
        }
        job.pending = job.parts.len() as u32;
        if left_out(Rule::L2) {
            let groups = self.jobs.slots[slot as usize].parts.iter();
            let held = groups.map(|part| part.piece.group).all(|group| self.may_read(group, now));
            self.jobs.slots[slot as usize].was_leased = held;
        }
        for part in 0..self.jobs.slots[slot as usize].parts.len() {
            self.ask(c, now, slot, part, out);
        }
    }

    /// Reads a block that one of the members has not got whole.
    pub(super) fn read_but_from(
        &mut self,
        c: &mut Context,
        now: Moment,
        slot: u32,
        layout: &Layout,
        at: ReplicaId,
        out: &mut Vec<Action<D>>,
    ) {
        let blocks = self.jobs.slots[slot as usize].blocks.clone();
        let (group, block) = layout.locate(blocks.start);
        let job = &mut self.jobs.slots[slot as usize];
        (job.stage, job.pending) = (JobStage::Reading, 1);
        job.parts.clear();
        job.parts.push(Part {
            piece: Piece { group, block, blocks: 1 },
            at: 0,
            asked: None,
            since: now,
            done: false,
            corrupt: vec![at],
            content: None,
        });
        match self.is_hopeless(slot, 0) {
            true => self.split_or_end(c, now, slot, 0, out),
            false => self.ask(c, now, slot, 0, out),
        }
    }

    /// Requests a part from the next member that answers, after the one that was asked last.
    fn ask(&mut self, c: &Context, now: Moment, slot: u32, index: usize, out: &mut Vec<Action<D>>) {
        let job = &mut self.jobs.slots[slot as usize];
        let part = &mut job.parts[index];
        part.since = now;
        let part = &self.jobs.slots[slot as usize].parts[index];
        let Some(replica) = self.next_member(part.piece.group, part.asked, &part.corrupt) else { return };
        self.ask_of(c, slot, index, replica, out);
    }

    /// The member of a group that is asked next: the first that answers, after the one that was asked last, and none of those that
    /// are left out.
    pub(super) fn next_member(
        &self,
        group: GroupIndex,
        last: Option<ReplicaId>,
        left_out: &[ReplicaId],
    ) -> Option<ReplicaId> {
        let readable = &self.groups[group.0 as usize].readable;
        let last = readable.iter().position(|replica| Some(*replica) == last);
        let (before, after) = readable.split_at(last.map_or(0, |last| last + 1));
        let mut candidates = after.iter().chain(before).filter(|replica| !left_out.contains(replica));
        let open = |replica: &&ReplicaId| {
            self.sessions.iter().any(|session| session.replica == **replica && session.is_open())
        };
        candidates.find(open).copied()
    }

    /// Requests a part from this member.
    fn ask_of(&mut self, c: &Context, slot: u32, index: usize, replica: ReplicaId, out: &mut Vec<Action<D>>) {
        let job = &mut self.jobs.slots[slot as usize];
        let part = &mut job.parts[index];
        let again = part.asked.replace(replica).is_some();
        let (block, blocks) = (part.piece.block, part.piece.blocks as u32);
        let job = Job { slot, turn: job.turn, part: index as u32 };
        let message = ToReplica::Read { job, block, blocks, again };
        if let Some(session) = self.sessions.iter().find(|session| session.replica == replica) {
            session.send(c, message, out);
        }
    }

    /// The client's read that a request to a member serves, which in this session reads blocks from this one on; and where
    /// these blocks are in the read, counted from the block with its first sector. `None` if no read waits for them any more,
    /// or not for that alone.
    pub(in crate::volume) fn awaited(
        &self,
        from: ReplicaId,
        number: u64,
        id: Job,
        block: u64,
    ) -> Option<(RequestId, u64)> {
        let job = self.jobs.slots.get(id.slot as usize)?;
        let Work::Client(Request { id: request, op: RequestOp::Read, .. }) = &job.work else { return None };
        let part = job.parts.get(id.part as usize)?;
        let session = self.sessions.iter().find(|session| session.replica == from)?;
        let waits = job.turn == id.turn
            && (job.stage, job.careful) == (JobStage::Reading, false)
            && (part.done, part.asked) == (false, Some(from))
            && part.corrupt.is_empty()
            && part.piece.block == block
            && session.number == number;
        waits.then_some((*request, part.at))
    }

    /// Sends requests without an answer again, to another member if there is one.
    pub(in crate::volume) fn read_again(&mut self, c: &mut Context, now: Moment, out: &mut Vec<Action<D>>) {
        for slot in 0..self.jobs.slots.len() {
            let job = &self.jobs.slots[slot];
            if job.stage == JobStage::Mapping && !matches!(job.work, Work::Nothing) {
                self.map_again(c, now, slot as u32, out);
                continue;
            }
            if job.stage != JobStage::Reading || matches!(job.work, Work::Nothing) {
                continue;
            }
            for part in 0..job.parts.len() {
                let state = &self.jobs.slots[slot].parts[part];
                if !state.done && now.since(state.since) >= c.times.resend_ns {
                    if self.is_hopeless(slot as u32, part) {
                        self.split_or_end(c, now, slot as u32, part, out);
                        break;
                    }
                    let asked = state.asked;
                    if let Some(session) =
                        self.sessions.iter_mut().find(|session| Some(session.replica) == asked)
                    {
                        session.is_awaited(c, now);
                    }
                    self.ask(c, now, slot as u32, part, out);
                }
            }
        }
    }

    /// Handles the answer of a member.
    pub(in crate::volume) fn data(
        &mut self,
        c: &mut Context,
        now: Moment,
        from: ReplicaId,
        id: Job,
        content: Result<Content<D>, Corrupt>,
        out: &mut Vec<Action<D>>,
    ) {
        let Some(job) = self.jobs.slots.get_mut(id.slot as usize) else { return };
        if job.turn != id.turn || job.stage != JobStage::Reading {
            return;
        }
        let Some(part) = job.parts.get_mut(id.part as usize).filter(|part| !part.done) else { return };
        match content {
            Ok(content) => {
                part.done = true;
                // A reader does not need to know how zeroes are stored; a copy must take no more room than its source.
                let copies = matches!(job.work, Work::Copy { .. });
                part.content = Some(if copies { content } else { content.filled() });
                job.pending -= 1;
                if job.pending == 0 {
                    self.repair(c, now, id.slot, out);
                }
            }
            Err(Corrupt) => self.corrupt(c, now, from, id, out),
        }
        self.go_on(c, now, out);
    }

    fn corrupt(&mut self, c: &mut Context, now: Moment, from: ReplicaId, id: Job, out: &mut Vec<Action<D>>) {
        let job = &mut self.jobs.slots[id.slot as usize];
        let alone = !matches!(&job.work, Work::Client(request) if matches!(request.op, RequestOp::Read));
        let part = &mut job.parts[id.part as usize];
        if part.asked != Some(from) {
            return;
        }
        if !alone && !job.careful && !left_out(Rule::R7) {
            // A write may just have been under way: once more, alone.
            job.careful = true;
            job.turn = job.turn.wrapping_add(1);
            job.stage = JobStage::Waiting;
            self.leave(id.slot);
            self.enter(id.slot, Access::Exclusive);
            return;
        }
        if part.piece.blocks > MENDED_TOGETHER {
            // Finds the corrupt block: only the blocks near it are written again, and not everything that was requested.
            self.ask_in_parts(c, now, id, from, out);
            return;
        }
        part.corrupt.push(from);
        if self.is_hopeless(id.slot, id.part as usize) {
            self.split_or_end(c, now, id.slot, id.part as usize, out);
        } else {
            self.ask(c, now, id.slot, id.part as usize, out);
        }
    }

    /// A member does not have all of a part whole: the part is requested from it again, some blocks at a time.
    fn ask_in_parts(&mut self, c: &Context, now: Moment, id: Job, from: ReplicaId, out: &mut Vec<Action<D>>) {
        let (slot, index) = (id.slot, id.part as usize);
        let Piece { group, block, blocks } = self.jobs.slots[slot as usize].parts[index].piece;
        self.split(now, slot, index, MENDED_TOGETHER);
        for part in 0..self.jobs.slots[slot as usize].parts.len() {
            let state = &self.jobs.slots[slot as usize].parts[part];
            let is_new = (block..block + blocks).contains(&state.piece.block) && state.piece.group == group;
            match (state.done, is_new) {
                (true, _) => {}
                (false, true) => self.ask_of(c, slot, part, from, out),
                (false, false) => self.ask(c, now, slot, part, out),
            }
        }
    }

    /// Puts parts of at most so many blocks in the place of one. All of them have other numbers then, and answers to the former
    /// requests are dropped.
    fn split(&mut self, now: Moment, slot: u32, index: usize, most: u64) {
        let job = &mut self.jobs.slots[slot as usize];
        let (Piece { group, block, blocks }, at) = (job.parts[index].piece, job.parts[index].at);
        let each = (0..blocks).step_by(most as usize).map(|n| Part {
            piece: Piece { group, block: block + n, blocks: most.min(blocks - n) },
            at: at + n,
            asked: None,
            since: now,
            done: false,
            corrupt: Vec::new(),
            content: None,
        });
        job.parts.splice(index..=index, each);
        job.pending += blocks.div_ceil(most) as u32 - 1;
        job.turn = job.turn.wrapping_add(1);
    }

    /// Whether no member has a part whole. Members may have left since it was requested.
    fn is_hopeless(&self, slot: u32, part: usize) -> bool {
        let part = &self.jobs.slots[slot as usize].parts[part];
        let group = &self.groups[part.piece.group.0 as usize];
        group.readable.iter().all(|replica| part.corrupt.contains(replica))
    }

    /// No member has a part whole. Each of its blocks may still be whole somewhere.
    fn split_or_end(
        &mut self,
        c: &mut Context,
        now: Moment,
        slot: u32,
        index: usize,
        out: &mut Vec<Action<D>>,
    ) {
        let job = &self.jobs.slots[slot as usize];
        let part = &job.parts[index];
        if part.piece.blocks == 1 {
            match job.work {
                // It stays on the list: its return does not end before the block is mended.
                Work::Copy { to, piece } => {
                    self.free(slot);
                    self.not_copied(c, now, to, piece);
                }
                _ => self.complete(slot, Err(Failure::Corrupt), out),
            }
            self.go_on(c, now, out);
            return;
        }
        self.split(now, slot, index, 1);
        for part in 0..self.jobs.slots[slot as usize].parts.len() {
            if !self.jobs.slots[slot as usize].parts[part].done {
                self.ask(c, now, slot, part, out);
            }
        }
    }

    /// All is read. What was found corrupt somewhere is written anew, to all; what would be too much at once is left as it is, for
    /// the next read or the scrub that finds it.
    fn repair(&mut self, c: &mut Context, now: Moment, slot: u32, out: &mut Vec<Action<D>>) {
        // This is the usual case, in which the other jobs need no check.
        if self.jobs.slots[slot as usize].parts.iter().all(|part| part.corrupt.is_empty()) {
            self.has_read(c, now, slot, out);
            return;
        }
        let under_way = |job: &JobState<D>| match job.stage {
            JobStage::Repairing => u64::from(job.pending) * MENDED_TOGETHER,
            _ => 0,
        };
        let others: u64 = self.jobs.slots.iter().map(under_way).sum();
        let job = &mut self.jobs.slots[slot as usize];
        // All other jobs that read under exclusion read a few blocks only, and do so to repair them.
        let is_read = matches!(&job.work, Work::Client(request) if matches!(request.op, RequestOp::Read));
        let mut room = if is_read { MOST_MENDED.saturating_sub(others) } else { u64::MAX };
        let mut entries = Vec::new();
        for part in job.parts.iter_mut().filter(|part| !part.corrupt.is_empty()) {
            if room < part.piece.blocks {
                break;
            }
            room -= part.piece.blocks;
            let content = part.content.clone().expect("all is read");
            let corrupt = std::mem::take(&mut part.corrupt);
            for entry in content.entries(part.piece.block, part.piece.blocks as u32) {
                entries.push((part.piece.group, entry, corrupt.clone()));
            }
        }
        if entries.is_empty() {
            self.has_read(c, now, slot, out);
            return;
        }
        if left_out(Rule::R7) {
            for (group, entry, corrupt) in entries {
                let position = self.acknowledged(group);
                for session in self.sessions.iter_mut().filter(|session| corrupt.contains(&session.replica)) {
                    session.send_out_of_band(c, position, entry.clone(), out);
                }
            }
            self.has_read(c, now, slot, out);
            return;
        }
        job.stage = JobStage::Repairing;
        job.pending = entries.len() as u32;
        for (group, entry, _) in entries {
            self.issue(c, group, entry, Some(slot), out);
        }
    }

    /// Ends a read or a map if the leases are held.
    pub(super) fn finish_read(&mut self, now: Moment, slot: u32, out: &mut Vec<Action<D>>) -> bool {
        let job = &self.jobs.slots[slot as usize];
        let groups = job.parts.iter().map(|part| part.piece.group);
        let mut groups = groups.chain(job.maps.iter().map(maps::Question::group));
        let held = groups.all(|group| self.may_read(group, now));
        let ends = held || left_out(Rule::L2) && job.was_leased;
        if ends {
            self.complete(slot, Ok(()), out);
        }
        ends
    }

    /// Leases have come: ends the reads and maps that were waiting for them.
    pub(in crate::volume) fn finish_reads(&mut self, c: &mut Context, now: Moment, out: &mut Vec<Action<D>>) {
        if self.jobs.unleased.is_empty() {
            return;
        }
        let mut waiting = std::mem::take(&mut self.jobs.unleased);
        waiting.retain(|slot| !self.finish_read(now, *slot, out));
        self.jobs.unleased = waiting;
        self.go_on(c, now, out);
    }
}
