//! From the first swap of a takeover to the second (T1 to T3, T5).

use crate::Rule;
use crate::protocol::Protocol;
use crate::state::{Flaw, Owner, Phase, Record, Replica, Set, State};

impl Protocol {
    /// A node proposes itself as the owner of what it sees in the store.
    pub(crate) fn take_over(&self, state: &State, node: usize) -> Option<State> {
        let mut next = state.clone();
        next.left.takeovers -= 1;
        let known = state.record;
        let unfinished = state.owners[node].unfinished;
        next.owners[node] = Owner { phase: Phase::TakingOver, known, unfinished, ..Owner::default() };
        self.propose(&mut next, node, Record { epoch: known.epoch + 1, owner: node, active: false, ..known });
        Some(next)
    }

    /// A member is asked to be sealed. It promises at once. It reports when it is asked again, and no lease
    /// of another runs: so a report may be lost, too.
    pub(crate) fn seal(&self, state: &State, node: usize, member: usize) -> Option<State> {
        let owner = &state.owners[node];
        let epoch = owner.known.epoch;
        let merging = owner.equal.is_empty();
        let possible = owner.undecided.is_none()
            && !owner.reported.has(member)
            && (merging || self.without(Rule::T1))
            && self.accepts(state, member, epoch);
        if !possible {
            return None;
        }
        let mut next = state.clone();
        if state.replicas[member].promise != epoch && !self.without(Rule::T5) {
            let sealed = &mut next.replicas[member];
            sealed.promise = epoch;
            sealed.adopt(epoch);
            return Some(next);
        }
        let mut others = state.owners.iter().enumerate().filter(|(other, _)| *other != node);
        if others.any(|(_, other)| other.lease.bound.has(member)) {
            return None;
        }
        let taker = &mut next.owners[node];
        taker.reported = owner.reported.with(member);
        if merging {
            taker.merge(&state.replicas[member]);
        }
        Some(next)
    }

    /// A member makes durable what the merge found, and reports that. The first report ends the merge: a member that
    /// reports later is excluded (T1).
    pub(crate) fn equalize(&self, state: &State, node: usize, member: usize) -> Option<State> {
        let owner = &state.owners[node];
        let possible = owner.reported.has(member)
            && !owner.equal.has(member)
            && owner.undecided.is_none()
            && self.accepts(state, member, owner.known.epoch);
        if !possible {
            return None;
        }
        let mut next = state.clone();
        let equal = &mut next.replicas[member];
        if equal.last < owner.highest {
            // It has lost something, and is left out. The devices of the model lose nothing, so that is a
            // flaw; a mutant is to be convicted of something worse.
            next.flaw = Some(Flaw::TakenForDamaged);
            return self.left_out.is_none().then_some(next);
        }
        for winner in owner.newest.into_iter().flatten().filter(|entry| entry.at > owner.highest) {
            // They are outside of the sequence: the order of the log decides.
            let newest = equal.log.iter().rev().find(|entry| entry.block == winner.block);
            if newest != Some(&winner) {
                equal.log.push(winner);
            }
        }
        next.owners[node].equal = owner.equal.with(member);
        Some(next)
    }

    /// The second swap is proposed, with these members, of which it is known that they are equal: a
    /// confirmation may have been lost. Serving begins when it is known to have committed (T3).
    pub(crate) fn activate(&self, state: &State, node: usize, equal: Set) -> Option<State> {
        let owner = &state.owners[node];
        if owner.undecided.is_some() {
            return None;
        }
        let old = owner.known;
        let mut new = Record { epoch: old.epoch + 1, active: true, in_sync: equal, ..old };
        for replica in 0..self.bounds.replicas {
            let leaves = old.in_sync.has(replica) && !new.in_sync.has(replica);
            let left_before = !old.in_sync.has(replica);
            if leaves || (left_before && self.without(Rule::T2)) {
                new.departed[replica] = new.epoch;
            }
        }
        let mut next = state.clone();
        self.propose(&mut next, node, new);
        if self.without(Rule::T3) {
            let owner = &mut next.owners[node];
            owner.known = new;
            owner.undecided = None;
            self.become_active(owner);
        }
        Some(next)
    }
}

impl Owner {
    /// A member reports its commit point, and its entries above that.
    fn merge(&mut self, member: &Replica) {
        self.highest = self.highest.max(member.commit_point);
        for entry in member.log.iter().filter(|entry| entry.at > member.commit_point) {
            let newest = &mut self.newest[entry.block];
            if newest.is_none_or(|other| other.at < entry.at) {
                *newest = Some(*entry);
            }
        }
    }
}
