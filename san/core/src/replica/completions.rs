//! The completions of the store, and what a replica then answers to its owner.

use super::{Action, MOST_LISTED, Pending, Replica, Truncation, Work};
use crate::ids::{Incarnation, NodeId, Owner, Position};
use crate::lease::Moment;
use crate::message::{SealReport, ToOwner};
use crate::range_set::coarse;
use crate::rule::{Rule, left_out};
use crate::store::Completion;

impl Replica {
    pub(super) fn stored<D>(&mut self, now: Moment, completion: Completion<D>, out: &mut Vec<Action<D>>) {
        match completion {
            Completion::Promised(promise) => self.promised = promise,
            Completion::Appended(through) => self.appended(through, out),
            Completion::Data { tag, content } if left_out(Rule::L2) && tag.session >> 63 == 1 => {
                let owner = tag.session << 1 >> 21;
                let owner = Owner {
                    node: NodeId((owner >> 32) as u32),
                    incarnation: Incarnation(owner & 0xffff_ffff),
                };
                self.send(owner, tag.session & 0xf_ffff, ToOwner::Data { job: tag.job, content }, out);
            }
            Completion::Data { tag, content } => {
                self.answer_session(tag.session, ToOwner::Data { job: tag.job, content }, out);
            }
            Completion::Mapped { tag, map } => {
                self.answer_session(tag.session, ToOwner::Mapped { job: tag.job, map }, out);
            }
            Completion::Changed { tag, ranges, next } => {
                self.answer_session(tag.session, ToOwner::Changed { job: tag.job, ranges, next }, out);
            }
            Completion::Above(question, above) => {
                if self.work == Work::Reporting && question == self.questions {
                    self.work = Work::None;
                    let end = Position { sequence: self.durable, ..self.received };
                    let report = SealReport { commit_point: self.commit_point, end, full: self.full, above };
                    self.answer_session(self.sessions, ToOwner::Sealed(report), out);
                }
            }
            Completion::Listed(ranges) => {
                // What is listed is copied, and more does no harm.
                let ranges = coarse(ranges, MOST_LISTED);
                if let Work::Truncating(Truncation { after, .. }, key) = self.work {
                    self.work = Work::None;
                    if std::mem::take(&mut self.damaged) {
                        self.promised = self.promise;
                    }
                    (self.received, self.durable) = (after, after.sequence);
                    if let Some(session) = self.session.as_mut().filter(|s| s.key == key) {
                        session.listed = Some((after, ranges.clone()));
                        self.answer_session(key, ToOwner::Listed { after, ranges }, out);
                    }
                }
            }
            Completion::Corrupt { block } => {
                self.answer_session(self.sessions, ToOwner::Corrupt { block }, out);
            }
            Completion::Full(full) => self.full = full,
            Completion::Failed => {
                self.failed = true;
                self.answer_session(self.sessions, ToOwner::Failed, out);
            }
        }
        self.work_on(now, out);
    }

    pub(super) fn appended<D>(&mut self, through: u64, out: &mut Vec<Action<D>>) {
        let done = self.appends - self.pending.len() as u64;
        for _ in done..through {
            match self.pending.pop_front().expect("the store confirms what was appended") {
                Pending::Sequenced(position) if position.ownership == self.received.ownership => {
                    self.durable = position.sequence;
                }
                // An entry of the ownership before: no owner waits for it any more.
                Pending::Sequenced(_) => {}
                Pending::OutOfBand { key, number } => {
                    if let Some(now) = self.session.as_mut().filter(|s| s.key == key) {
                        now.out_of_band_durable = number;
                    }
                }
            }
        }
        if through > done
            && let Some(session) = &self.session
            && session.owner == self.promise.owner
        {
            self.answer_session(session.key, ToOwner::Durable(self.progress(false)), out);
        }
    }
}
