//! What an active owner does for clients: writes, commit points, leases and reads (W1 to W3, L1, L2).

use crate::Rule;
use crate::protocol::Protocol;
use crate::state::{Entry, Flaw, Lease, Owner, Phase, Position, Read, Set, State};

impl Protocol {
    /// A client writes. What overlaps it is waited for first (W1, and C4 for copies).
    pub(crate) fn write(&self, state: &State, node: usize, block: usize) -> Option<State> {
        let possible = state.left.writes > 0
            // The blocks are alike: the first write is to the first one.
            && (state.last_value > 0 || block == 0)
            && self.may_write(&state.owners[node], block);
        possible.then(|| {
            let mut next = state.clone();
            next.left.writes -= 1;
            next.last_value += 1;
            next.owners[node].issue(block, next.last_value);
            next
        })
    }

    fn may_write(&self, owner: &Owner, block: usize) -> bool {
        let overlaps = owner.unacknowledged().any(|entry| entry.block == block)
            || owner.read.is_some_and(|read| read.block == block);
        let copied = owner.session.and_then(|session| session.copying).is_some_and(|copy| copy.0 == block);
        owner.serves() && (!overlaps || self.without(Rule::W1)) && (!copied || self.without(Rule::C4))
    }

    /// A write of an earlier ownership is issued once more: a mutant only.
    pub(crate) fn issue_again(&self, state: &State, node: usize) -> Option<State> {
        let owner = &state.owners[node];
        let entry = owner.unfinished.filter(|entry| self.may_write(owner, entry.block))?;
        let mut next = state.clone();
        next.owners[node].unfinished = None;
        next.owners[node].issue(entry.block, entry.value);
        Some(next)
    }

    /// The next entry that a replica lacks is appended, if the replica takes it, and the owner receives its
    /// answer at once: to acknowledge is a step of its own, so a late answer makes no difference.
    pub(crate) fn append(&self, state: &State, node: usize, target: usize) -> Option<State> {
        let owner = &state.owners[node];
        let replica = &state.replicas[target];
        let in_session = owner.session.is_some_and(|session| session.target == target);
        if !self.required(owner).has(target) && !in_session {
            return None;
        }
        if !self.accepts(state, target, owner.known.epoch) {
            return None;
        }
        // Only an opening entry begins another ownership.
        let number = if replica.ownership == owner.ownership { replica.last.number + 1 } else { 1 };
        let entry = *owner.pipeline.iter().find(|entry| entry.at.number == number)?;
        let mut next = state.clone();
        if owner.known.epoch < replica.promise {
            next.flaw = Some(Flaw::PromiseBroken);
        }
        let appended = &mut next.replicas[target];
        appended.adopt(owner.known.epoch);
        appended.ownership = owner.ownership;
        appended.last = entry.at;
        if entry.value > 0 {
            appended.log.push(entry);
        }
        if owner.known.in_sync.has(target) {
            appended.list = Set::default();
        }
        let owner = &mut next.owners[node];
        owner.confirmed[target] = number;
        if let Some(session) = owner.session.as_mut().filter(|_| in_session && entry.value > 0) {
            // What was forwarded is not copied (C4).
            session.todo = session.todo.without(entry.block);
        }
        owner.trim();
        Some(next)
    }

    /// The owner acknowledges its oldest entry: every member that is needed has it.
    pub(crate) fn acknowledge(&self, state: &State, node: usize) -> Option<State> {
        let owner = &state.owners[node];
        let entry = *owner.unacknowledged().next()?;
        let durable = self.required(owner).iter().all(|member| owner.confirmed[member] >= entry.at.number);
        durable.then(|| {
            let mut next = state.clone();
            let acked = &mut next.acked[entry.block];
            *acked = entry.value.max(*acked);
            next.owners[node].acked = entry.at;
            next.owners[node].trim();
            next
        })
    }

    /// A replica receives the commit point, with a message of the owner's epoch (W2).
    pub(crate) fn send_commit_point(&self, state: &State, node: usize, target: usize) -> Option<State> {
        let owner = &state.owners[node];
        let replica = &state.replicas[target];
        let commit_point = owner.acked.max(replica.commit_point);
        if self.without(Rule::W2) {
            return (commit_point != replica.commit_point).then(|| {
                let mut next = state.clone();
                next.replicas[target].commit_point = commit_point;
                next
            });
        }
        let follows =
            self.required(owner).has(target) || owner.session.is_some_and(|session| session.target == target);
        let follows = follows && replica.ownership == owner.ownership && owner.serves();
        let news = commit_point != replica.commit_point || owner.known.epoch != replica.commit_point_epoch;
        (follows && news && self.accepts(state, target, owner.known.epoch)).then(|| {
            let mut next = state.clone();
            let replica = &mut next.replicas[target];
            replica.adopt(owner.known.epoch);
            replica.commit_point = commit_point;
            replica.commit_point_epoch = owner.known.epoch;
            if owner.known.in_sync.has(target) {
                replica.list = Set::default();
            }
            next
        })
    }

    /// The members whose leases a read needs: all but the one on the owner's node, which the owner reads directly.
    fn lenders(&self, owner: &Owner, node: usize) -> Set {
        self.required(owner).without(node)
    }

    /// The members grant a lease, all at once.
    pub(crate) fn grant(&self, state: &State, node: usize) -> Option<State> {
        let owner = &state.owners[node];
        let lenders = self.lenders(owner, node);
        let wanted = state.left.reads > 0 || owner.read.is_some();
        let granted = lenders.iter().all(|member| state.replicas[member].promise <= owner.known.epoch);
        (wanted && granted && owner.serves() && !lenders.within(owner.lease.held)).then(|| {
            let mut next = state.clone();
            let lease = &mut next.owners[node].lease;
            *lease = Lease { held: lenders.or(lease.held), bound: lenders.or(lease.bound), ..*lease };
            next
        })
    }

    /// The leases run out, at the owner and at the members. It is over at the owner first, but in between it
    /// only reads less, so that is one step.
    pub(crate) fn expire(&self, state: &State, node: usize) -> Option<State> {
        let lease = state.owners[node].lease;
        (!lease.held.is_empty()).then(|| {
            let mut next = state.clone();
            // A grant that is renewed may still be travelling. Counted from when it was asked for, it has run
            // out too.
            let late = if self.without(Rule::L1) { lease.held } else { Set::default() };
            next.owners[node].lease = Lease { late, ..Lease::default() };
            next
        })
    }

    /// A grant arrives that has run out, and the owner counts from now: a mutant only.
    pub(crate) fn arrive_late(&self, state: &State, node: usize) -> Option<State> {
        let lease = state.owners[node].lease;
        (!lease.late.is_empty()).then(|| {
            let mut next = state.clone();
            next.owners[node].lease = Lease { held: lease.late, ..Lease::default() };
            next
        })
    }

    /// Whether the owner may answer a read: it has all leases, and its own replica is not promised to
    /// another.
    fn may_read(&self, state: &State, node: usize) -> bool {
        let owner = &state.owners[node];
        let own_is_ours =
            !self.required(owner).has(node) || state.replicas[node].promise <= owner.known.epoch;
        own_is_ours && self.lenders(owner, node).within(owner.lease.held)
    }

    /// A client reads. What overlaps it is waited for first (W1).
    pub(crate) fn begin_read(&self, state: &State, node: usize, block: usize) -> Option<State> {
        let owner = &state.owners[node];
        let overlaps = owner.unacknowledged().any(|entry| entry.block == block);
        let possible = state.left.reads > 0
            && owner.serves()
            && owner.read.is_none()
            && (!overlaps || self.without(Rule::W1))
            && (!self.without(Rule::L2) || self.may_read(state, node));
        possible.then(|| {
            let mut next = state.clone();
            next.left.reads -= 1;
            let floor = state.acked[block].max(state.seen[block]);
            next.owners[node].read = Some(Read { block, floor, value: None });
            next
        })
    }

    /// The replica that an owner reads: its own if that is a member, and otherwise another.
    pub(crate) fn source(&self, owner: &Owner, node: usize) -> Option<usize> {
        let members = owner.known.in_sync;
        if members.has(node) { Some(node) } else { members.iter().next() }
    }

    /// The owner reads a replica.
    pub(crate) fn sample(&self, state: &State, node: usize) -> Option<State> {
        let owner = &state.owners[node];
        let read = owner.read.filter(|read| read.value.is_none())?;
        let value = state.replicas[self.source(owner, node)?].content(read.block);
        let mut next = state.clone();
        next.owners[node].read = Some(Read { value: Some(value), ..read });
        Some(next)
    }

    /// The owner answers, if it may at this moment (L2).
    pub(crate) fn end_read(&self, state: &State, node: usize) -> Option<State> {
        let read = state.owners[node].read?;
        let value = read.value?;
        (self.without(Rule::L2) || self.may_read(state, node)).then(|| {
            let mut next = state.clone();
            if value < read.floor {
                next.flaw = Some(Flaw::StaleRead);
            }
            next.seen[read.block] = value.max(state.seen[read.block]);
            let owner = &mut next.owners[node];
            owner.read = None;
            if state.left.reads == 0 {
                owner.lease = Lease::default();
            }
            next
        })
    }
}

impl Owner {
    /// Gives a write its place in the order.
    fn issue(&mut self, block: usize, value: u8) {
        debug_assert_eq!(self.phase, Phase::Active);
        self.issued += 1;
        let at = Position { epoch: self.known.epoch, number: self.issued };
        self.pipeline.push(Entry { at, block, value });
    }
}
