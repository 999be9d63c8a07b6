//! Entries of an owner: accepted in order, or out of band, and appended by the store.

use super::{Action, Pending, Replica, Work};
use crate::ids::{Position, Sequence};
use crate::message::{Entry, EntryOp, FromOwner, ToOwner};
use crate::rule::{Rule, left_out};
use crate::store::Command;

impl Replica {
    /// Appends the next entry, confirms an entry that is there already, and after a gap reports what the replica has.
    pub(super) fn entry<D>(
        &mut self,
        from: &FromOwner,
        position: Position,
        commit_point: Sequence,
        entry: Entry<D>,
        out: &mut Vec<Action<D>>,
    ) {
        if matches!(self.work, Work::Draining(_) | Work::Truncating(..)) {
            return;
        }
        let opens = matches!(entry.op, EntryOp::Open)
            && position.ownership > self.received.ownership
            && position.sequence == Sequence(1);
        let follows = position.ownership == self.received.ownership
            && (position.sequence == self.received.sequence.next()
                || left_out(Rule::W5) && position.sequence > self.received.sequence);
        if !opens && !follows {
            let there = position <= self.received;
            let new = !there && self.tell_gap();
            if there || new {
                self.answer(from, ToOwner::Durable(self.progress(new)), out);
            }
            return;
        }
        if opens {
            self.durable = Sequence(0);
        }
        self.received = position;
        self.take_commit_point(Position { ownership: position.ownership, sequence: commit_point });
        self.append(Pending::Sequenced(position), position, entry, out);
    }

    pub(super) fn out_of_band<D>(
        &mut self,
        from: &FromOwner,
        number: u64,
        position: Position,
        entry: Entry<D>,
        out: &mut Vec<Action<D>>,
    ) {
        if matches!(self.work, Work::Draining(_) | Work::Truncating(..)) {
            return;
        }
        let received = self.session.as_ref().map_or(0, |s| s.out_of_band_received);
        if number != received + 1 {
            let there = number <= received;
            let new = !there && self.tell_gap();
            if there || new {
                self.answer(from, ToOwner::Durable(self.progress(new)), out);
            }
            return;
        }
        if let Some(session) = &mut self.session {
            session.out_of_band_received = number;
        }
        self.append(Pending::OutOfBand { key: self.sessions, number }, position, entry, out);
    }

    pub(super) fn append<D>(
        &mut self,
        what: Pending,
        position: Position,
        entry: Entry<D>,
        out: &mut Vec<Action<D>>,
    ) {
        self.appends += 1;
        self.pending.push_back(what);
        out.push(Action::Store(Command::Append {
            number: self.appends,
            position,
            sequenced: matches!(what, Pending::Sequenced(_)),
            entry,
            commit_point: self.commit_point,
            acknowledged: self.acknowledged,
            epoch: self.epoch,
        }));
    }

    /// Whether this gap has not been reported yet: many entries can come after one that was lost.
    pub(super) fn tell_gap(&mut self) -> bool {
        let received = self.received;
        let Some(session) = &mut self.session else { return false };
        let here = Some((received, session.out_of_band_received));
        std::mem::replace(&mut session.gap_reported, here) != here
    }

    /// The owner reports what is acknowledged. As a commit point it counts as far as it is durable here: a replica that has just
    /// begun to get entries may have less. Returns whether that is new.
    pub(super) fn take_commit_point(&mut self, said: Position) -> bool {
        if said.ownership != self.received.ownership {
            return false;
        }
        if said.sequence == Sequence(0) {
            // Nothing of this ownership is acknowledged: as a commit point it would be above those of others, and prove nothing.
            return false;
        }
        let mut commit_point = Position { sequence: said.sequence.min(self.durable), ..said };
        if commit_point.sequence == Sequence(0) {
            commit_point = self.commit_point;
        }
        let news = commit_point > self.commit_point || said > self.acknowledged;
        self.commit_point = self.commit_point.max(commit_point);
        self.acknowledged = self.acknowledged.max(said);
        news
    }
}
