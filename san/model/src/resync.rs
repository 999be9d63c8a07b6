//! How a replica comes back (C1 to C4).

use crate::Rule;
use crate::protocol::Protocol;
use crate::state::{Extent, Position, Replica, Session, State};

impl Protocol {
    /// A replica outside the set lists and drops before an owner spoke to it: a mutant only.
    pub(crate) fn list(&self, state: &State, which: usize) -> Option<State> {
        let replica = &state.replicas[which];
        (!state.record.in_sync.has(which) && !replica.listed && state.left.returns > 0).then(|| {
            let mut next = state.clone();
            next.replicas[which].list_and_drop(true);
            next.replicas[which].listed = true;
            next
        })
    }

    /// The owner opens a session. The replica promises, lists and drops; the owner begins to forward, and
    /// makes the list of what is to be copied. The order within this step is C1, C2, C3.
    pub(crate) fn open_session(&self, state: &State, node: usize, target: usize) -> Option<State> {
        let owner = &state.owners[node];
        let epoch = owner.known.epoch;
        let possible = state.left.returns > 0
            && owner.serves()
            && (owner.undecided.is_none() || self.without(Rule::DecidedBeforeSession))
            && !owner.known.in_sync.has(target)
            && self.accepts(state, target, epoch);
        if !possible {
            return None;
        }
        let mut next = state.clone();
        next.left.returns -= 1;
        let replica = &mut next.replicas[target];
        if !self.without(Rule::DurableSession) {
            replica.promise = epoch;
        }
        replica.adopt(epoch);
        if !replica.listed {
            replica.list_and_drop(!self.without(Rule::C1));
        }
        replica.listed = false;
        replica.ownership = owner.ownership;
        replica.last = owner.acked;
        if self.without(Rule::C2) {
            replica.last = Position { epoch, number: owner.issued };
        }
        let from = replica.last.number;
        let mut todo = replica.list;
        let source = &state.replicas[self.source(owner, node)?];
        for (block, extent) in source.extents.iter().enumerate() {
            let logged = source.log.iter().any(|entry| entry.block == block);
            let stamped = extent.stamp >= owner.known.departed[target];
            if stamped || (logged && !self.without(Rule::C3)) {
                todo = todo.with(block);
            }
        }
        let owner = &mut next.owners[node];
        if let Some(older) = owner.session.filter(|_| self.without(Rule::OneSession)) {
            owner.late_copy = older.copying.map(|(block, value)| (older.target, block, value));
        }
        owner.session = Some(Session { target, todo, copying: None });
        owner.confirmed[target] = from;
        owner.trim();
        Some(next)
    }

    /// A block that is to be copied is read. What overlaps it is waited for first (C4).
    pub(crate) fn read_copy(&self, state: &State, node: usize, block: usize) -> Option<State> {
        let owner = &state.owners[node];
        let session = owner.session.filter(|session| session.copying.is_none() && session.todo.has(block))?;
        if owner.unacknowledged().any(|entry| entry.block == block) && !self.without(Rule::C4) {
            return None;
        }
        let value = state.replicas[self.source(owner, node)?].content(block);
        let mut next = state.clone();
        next.owners[node].session = Some(Session { copying: Some((block, value)), ..session });
        Some(next)
    }

    /// The copy is durable at the target, above all that its log has of the block. It is acknowledged, so it
    /// may as well be in the extents.
    pub(crate) fn write_copy(&self, state: &State, node: usize) -> Option<State> {
        let owner = &state.owners[node];
        let session = owner.session?;
        let (block, value) = session.copying?;
        self.accepts(state, session.target, owner.known.epoch).then(|| {
            let mut next = state.clone();
            next.replicas[session.target].take_copy(owner.known.epoch, block, value);
            let todo = session.todo.without(block);
            next.owners[node].session = Some(Session { todo, copying: None, ..session });
            next
        })
    }

    /// A copy of an older session reaches its target: a mutant only.
    pub(crate) fn write_late_copy(&self, state: &State, node: usize) -> Option<State> {
        let owner = &state.owners[node];
        let (target, block, value) = owner.late_copy?;
        self.accepts(state, target, owner.known.epoch).then(|| {
            let mut next = state.clone();
            next.replicas[target].take_copy(owner.known.epoch, block, value);
            next.owners[node].late_copy = None;
            next
        })
    }

    /// All is copied, and what was acknowledged since is there: the swap that adds it is proposed.
    pub(crate) fn add(&self, state: &State, node: usize) -> Option<State> {
        let owner = &state.owners[node];
        let session = owner.session?;
        let ready = owner.undecided.is_none()
            && session.todo.is_empty()
            && session.copying.is_none()
            && owner.confirmed[session.target] >= owner.acked.number;
        ready.then(|| {
            let mut next = state.clone();
            self.propose(&mut next, node, owner.known.with(session.target));
            next
        })
    }
}

impl Replica {
    /// Drops the entries above the commit point, of which it is not known whether they were acknowledged.
    fn list_and_drop(&mut self, list: bool) {
        for entry in self.log.iter().filter(|entry| entry.at > self.commit_point && list) {
            self.list = self.list.with(entry.block);
        }
        let commit_point = self.commit_point;
        self.log.retain(|entry| entry.at <= commit_point);
        self.last = self.last.min(commit_point);
    }

    /// Makes a copy durable.
    fn take_copy(&mut self, epoch: u8, block: usize, value: u8) {
        self.adopt(epoch);
        self.log.retain(|entry| entry.block != block);
        self.extents[block] = Extent { value, stamp: self.epoch };
    }
}
