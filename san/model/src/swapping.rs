//! The store and its record: proposals, commits, and what a node concludes from what it sees (P1, P2).

use crate::Rule;
use crate::protocol::Protocol;
use crate::state::{Entry, Owner, Phase, Position, Record, Set, State};

impl Protocol {
    /// The members that a write needs before it is acknowledged, and whose leases a read needs.
    pub(crate) fn required(&self, owner: &Owner) -> Set {
        let old = owner.known.in_sync;
        match owner.undecided {
            None => old,
            Some(_) if self.without(Rule::P1) => old,
            Some(new) if self.without(Rule::W3) => new.in_sync,
            Some(new) => old.or(new.in_sync),
        }
    }

    /// Sends a proposal to the store. It may commit at any time, or never.
    pub(crate) fn propose(&self, state: &mut State, node: usize, new: Record) {
        state.owners[node].undecided = Some(new);
        // A proposal that compares with an epoch that is gone never commits: it need not be kept.
        if new.epoch == state.record.epoch + 1 && !state.queue.contains(&new) {
            state.queue.push(new);
            state.queue.sort_by_key(|record| (record.owner, record.active, record.in_sync.0));
        }
    }

    /// The owner proposes a set without this member, which does not answer.
    pub(crate) fn remove(&self, state: &State, node: usize, replica: usize) -> Option<State> {
        let owner = &state.owners[node];
        let old = owner.known;
        let possible = state.left.departures > 0
            && owner.undecided.is_none()
            && old.in_sync.has(replica)
            && old.in_sync.len() > 1;
        possible.then(|| {
            let mut next = state.clone();
            next.left.departures -= 1;
            self.propose(&mut next, node, old.without(replica));
            next
        })
    }

    /// A proposal commits. The answer is on its way, or lost: its proposer reads the record, or does not.
    pub(crate) fn commit(&self, state: &State, which: usize) -> Option<State> {
        let new = *state.queue.get(which)?;
        let mut next = state.clone();
        for replica in new.in_sync.iter().filter(|replica| !state.record.in_sync.has(*replica)) {
            next.replicas[replica].returned = true;
        }
        next.record = new;
        next.queue.clear();
        Some(next)
    }

    /// A node sees the record.
    pub(crate) fn read_record(&self, state: &State, node: usize) -> Option<State> {
        let owner = &state.owners[node];
        let actual = state.record;
        if actual == owner.known {
            // The old record proves nothing (P2).
            return (self.without(Rule::P2) && owner.undecided.is_some()).then(|| {
                let mut next = state.clone();
                next.owners[node].undecided = None;
                if owner.known.owner != node {
                    next.owners[node] = Owner::default();
                }
                next
            });
        }
        if actual.epoch < owner.known.epoch {
            return None;
        }
        let mut next = state.clone();
        if owner.undecided == Some(actual) {
            let ours = &mut next.owners[node];
            ours.known = actual;
            ours.undecided = None;
            if ours.phase == Phase::TakingOver && actual.active {
                self.become_active(ours);
            }
            if ours.session.is_some_and(|session| actual.in_sync.has(session.target)) {
                ours.session = None;
            }
            ours.trim();
        } else {
            // Another owner's record: this process owns nothing any more, and drops what it had not finished (T4).
            let unfinished = owner.unacknowledged().find(|entry| entry.value > 0).copied();
            let unfinished = unfinished.filter(|_| self.without(Rule::T4));
            next.owners[node] = Owner { unfinished, ..Owner::default() };
        }
        Some(next)
    }

    /// The second swap has committed: a new ownership begins with its opening entry.
    pub(crate) fn become_active(&self, owner: &mut Owner) {
        let at = Position { epoch: owner.known.epoch, number: 1 };
        *owner = Owner {
            phase: Phase::Active,
            known: owner.known,
            ownership: owner.known.epoch,
            issued: 1,
            pipeline: vec![Entry { at, block: 0, value: 0 }],
            unfinished: owner.unfinished,
            ..Owner::default()
        };
    }
}

impl Owner {
    /// Forgets the entries that are acknowledged, and that the target of a session has.
    pub(crate) fn trim(&mut self) {
        let target_has = self.session.map_or(u8::MAX, |session| self.confirmed[session.target]);
        let done = self.acked.number.min(target_has);
        self.pipeline.retain(|entry| entry.at.number > done);
    }
}
