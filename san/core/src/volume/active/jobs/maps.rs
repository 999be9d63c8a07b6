//! Answers a client's request for what blocks hold, from the indexes of the members' stores. No data is read.
//!
//! ```text
//! blocks of the volume ─▶ one question for each group ─▶ answers ─▶ joined, up to the first block that none describes
//! ```
//!
//! A map is treated as a read: it shares its blocks with reads and waits for writes (rule W1), goes to a member that may be read,
//! or to another one if that does not answer, and is answered while the leases are held (rules L1 to L5). So if the map shows a
//! block as a hole, a read would have returned zeroes.

use std::ops::Range;

use super::{Active, JobStage};
use crate::ids::ReplicaId;
use crate::layout::{GroupIndex, Layout, MOST_STRIPES, Piece};
use crate::lease::Moment;
use crate::map::Map;
use crate::message::{Job, ToReplica};
use crate::volume::{Action, Context, MOST_MAPPED};

/// The most blocks that the answer to one request describes: 4 GiB.
const MOST_BLOCKS: u64 = 1 << 20;

/// A request to a member of one group: what do these blocks hold?
#[derive(Debug)]
pub(super) struct Question {
    piece: Piece,
    asked: Option<ReplicaId>,
    since: Moment,
    answer: Option<Map>,
}

impl Question {
    /// The group of the blocks.
    pub(super) fn group(&self) -> GroupIndex {
        self.piece.group
    }

    fn blocks(&self) -> Range<u64> {
        self.piece.block..self.piece.block + self.piece.blocks
    }
}

/// The blocks, of these, that the answer to one request describes: those of one span, in which each group has consecutive blocks.
pub(super) fn answered_at_once(layout: &Layout, blocks: Range<u64>) -> Range<u64> {
    let span = layout.group() * u64::from(layout.stripes());
    let end_of_span = (blocks.start / span + 1) * span;
    blocks.start..blocks.end.min(end_of_span).min(blocks.start.saturating_add(MOST_BLOCKS))
}

impl<D: Clone> Active<D> {
    /// Sends a request to a member of each group that has blocks of a job.
    pub(super) fn map(
        &mut self,
        c: &Context,
        now: Moment,
        slot: u32,
        layout: &Layout,
        out: &mut Vec<Action<D>>,
    ) {
        let job = &mut self.jobs.slots[slot as usize];
        job.stage = JobStage::Mapping;
        job.maps.clear();
        for piece in layout.pieces(job.blocks.clone()) {
            match job.maps.iter_mut().find(|question| question.piece.group == piece.group) {
                Some(question) => {
                    assert_eq!(question.blocks().end, piece.block, "the blocks of a group are consecutive");
                    question.piece.blocks += piece.blocks;
                }
                None => job.maps.push(Question { piece, asked: None, since: now, answer: None }),
            }
        }
        job.pending = job.maps.len() as u32;
        for question in 0..self.jobs.slots[slot as usize].maps.len() {
            self.ask_for_map(c, now, slot, question, out);
        }
    }

    /// Sends the request to the next member that answers, after the one that was asked last.
    fn ask_for_map(&mut self, c: &Context, now: Moment, slot: u32, index: usize, out: &mut Vec<Action<D>>) {
        let Question { piece, asked, .. } = self.jobs.slots[slot as usize].maps[index];
        let member = self.next_member(piece.group, asked, &[]);
        let job = &mut self.jobs.slots[slot as usize];
        let question = &mut job.maps[index];
        question.since = now;
        let Some(session) = self.sessions.iter().find(|session| Some(session.replica) == member) else {
            return;
        };
        question.asked = member;
        let job = Job { slot, turn: job.turn, part: index as u32 };
        session.send(c, ToReplica::Map { job, block: piece.block, blocks: piece.blocks as u32 }, out);
    }

    /// Sends requests without an answer again, to another member if there is one.
    pub(super) fn map_again(&mut self, c: &Context, now: Moment, slot: u32, out: &mut Vec<Action<D>>) {
        for index in 0..self.jobs.slots[slot as usize].maps.len() {
            let question = &self.jobs.slots[slot as usize].maps[index];
            if question.answer.is_none() && now.since(question.since) >= c.times.resend_ns {
                let asked = question.asked;
                if let Some(session) = self.sessions.iter_mut().find(|session| Some(session.replica) == asked)
                {
                    session.is_awaited(c, now);
                }
                self.ask_for_map(c, now, slot, index, out);
            }
        }
    }

    /// A member answers. An impossible answer is dropped.
    pub(in crate::volume) fn mapped(
        &mut self,
        c: &mut Context,
        now: Moment,
        id: Job,
        map: Map,
        out: &mut Vec<Action<D>>,
    ) {
        let Some(job) = self.jobs.slots.get_mut(id.slot as usize) else { return };
        if job.turn != id.turn || job.stage != JobStage::Mapping {
            return;
        }
        let Some(question) = job.maps.get_mut(id.part as usize) else { return };
        if question.answer.is_some() || !map.is_answer_to(&question.blocks()) {
            return;
        }
        question.answer = Some(map);
        job.pending -= 1;
        if job.pending == 0 {
            self.has_mapped(c, now, id.slot, out);
        }
        self.go_on(c, now, out);
    }

    /// All groups have answered.
    fn has_mapped(&mut self, c: &Context, now: Moment, slot: u32, out: &mut Vec<Action<D>>) {
        let layout = c.record().expect("it owns the volume").layout;
        let job = &mut self.jobs.slots[slot as usize];
        let map = joined(&layout, job.blocks.clone(), &job.maps);
        job.maps.iter_mut().for_each(|question| question.answer = None);
        job.stage = JobStage::Leases;
        if let crate::volume::active::jobs::Work::Client(request) = &job.work {
            out.push(Action::Map { request: request.id, map });
        }
        if !self.finish_read(now, slot, out) {
            self.jobs.unleased.push(slot);
        }
    }
}

/// What these blocks of a volume hold, counted from the first of them: up to the first block that its group's answer does not
/// describe, or that would need more ranges than allowed.
fn joined(layout: &Layout, blocks: Range<u64>, questions: &[Question]) -> Map {
    let mut joined = Map::from(0);
    let mut looked_at = [0; MOST_STRIPES as usize];
    for piece in layout.pieces(blocks) {
        let index = questions.iter().position(|question| question.piece.group == piece.group);
        let index = index.expect("each group was asked");
        let map = questions[index].answer.as_ref().expect("each group has answered");
        let (first, end) = (joined.until, piece.block + piece.blocks);
        for (until, held) in map.runs(piece.block..end, &mut looked_at[index]) {
            if !joined.describe(first + (until - piece.block), held, MOST_MAPPED) {
                return joined;
            }
        }
        if map.until < end {
            return joined;
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::Held;
    use proptest::prelude::*;

    fn held(block: u64, salt: u64) -> Held {
        match (block / 3).wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ salt) >> 62 {
            0 => Held::Data,
            1 => Held::Zeroes,
            _ => Held::Nothing,
        }
    }

    proptest! {
        /// The joined map has each block as the answer of its group has it, from the first block on, without a gap.
        #[test]
        fn answers_of_groups_are_joined_to_one_of_the_volume(
            stripes in 1..=MOST_STRIPES, unit in 1..9u64, units in 1..9u64, start in 0..300u64, length in 1..300u64,
            salt: u64, cut in 0..24usize, short in 1..20u64,
        ) {
            let layout = Layout::new(stripes, unit, unit * units).unwrap();
            let blocks = answered_at_once(&layout, start..start + length);
            prop_assert!(blocks.start == start && blocks.end > start && blocks.end <= start + length);
            let mut questions: Vec<Question> = Vec::new();
            for piece in layout.pieces(blocks.clone()) {
                match questions.iter_mut().find(|question| question.piece.group == piece.group) {
                    Some(question) => {
                        prop_assert_eq!(question.blocks().end, piece.block);
                        question.piece.blocks += piece.blocks;
                    }
                    None => questions.push(Question { piece, asked: None, since: Moment(0), answer: None }),
                }
            }
            let all = questions.len();
            for (index, question) in questions.iter_mut().enumerate() {
                let Range { start, end } = question.blocks();
                // Some answers describe fewer blocks than were requested.
                let end = if index == cut % all { end.min(start + short) } else { end };
                let mut map = Map::from(start);
                for block in start..end {
                    map.describe(block + 1, held(layout.block_at(question.group(), block), salt), usize::MAX);
                }
                prop_assert!(map.is_answer_to(&question.blocks()));
                question.answer = Some(map);
            }
            let map = joined(&layout, blocks.clone(), &questions);
            prop_assert!(map.is_answer_to(&(0..blocks.end - blocks.start)));
            let mut said = Vec::new();
            for (until, held) in map.runs(0..map.until, &mut 0) {
                said.resize(until as usize, held);
            }
            let expected: Vec<Held> = (start..start + map.until).map(|block| held(block, salt)).collect();
            prop_assert_eq!(said, expected);
            // No block is left out that could have been described.
            if start + map.until < blocks.end {
                let (group, block) = layout.locate(start + map.until);
                let question = questions.iter().find(|question| question.group() == group).unwrap();
                prop_assert_eq!(question.answer.as_ref().unwrap().until, block);
            }
        }
    }
}
