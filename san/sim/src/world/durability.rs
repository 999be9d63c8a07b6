//! What each store has reported to be durable, and for which owner its replica acts. A start must find all that was reported, and
//! an owner below a durable promise must change nothing.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use loadline_san_core::ids::{Incarnation, Position, ReplicaId};
use loadline_san_core::lease::Moment;
use loadline_san_core::message::{FromOwner, Promise, ToReplica};
use loadline_san_core::replica::Replica;
use loadline_san_core::store::{Command, Completion, DurableState};

use super::World;
use crate::settings::VOLUME;
use crate::store::{Blocks, Store};
use crate::violation::Violation;

/// What a replica's store was asked for, and what it has reported.
#[derive(Debug)]
pub(crate) struct Durability {
    /// The promise that it has reported to be durable.
    promise: Promise,
    /// The last of the sequence that is durable. Not known while a return is under way.
    end: Option<Position>,
    /// What is to be copied to it.
    list: Vec<Range<u64>>,
    /// The newest promise that it was asked to keep, and up to where what it has is acknowledged.
    asked: Promise,
    commit_point: Position,
    /// Appends of the sequence that it has not confirmed, by their numbers.
    appends: VecDeque<(u64, Position)>,
    /// A return is under way: where the sequence goes on after it.
    after: Option<Position>,
    /// And what is dropped by it, unless it is below a commit point that came since.
    dropped: Vec<(Position, Range<u64>)>,
    /// The owners that have ordered this process to return.
    ordered: BTreeSet<Promise>,
}

fn is_within(range: &Range<u64>, list: &[Range<u64>]) -> bool {
    range.is_empty() || list.iter().any(|one| one.start <= range.start && range.end <= one.end)
}

fn promise_to(from: &FromOwner) -> Promise {
    Promise { epoch: from.epoch, owner: from.owner }
}

impl Durability {
    /// All that a start finds is durable.
    fn found(found: &DurableState, store: &Store) -> Durability {
        Durability {
            promise: found.promise,
            end: Some(found.end),
            list: store.list(),
            asked: found.promise,
            commit_point: found.commit_point,
            appends: VecDeque::new(),
            after: None,
            dropped: Vec::new(),
            ordered: BTreeSet::new(),
        }
    }

    /// A store that was found damaged is emptied: what it is to find then.
    fn discards(promise: Promise, after: Position, store: &Store) -> Durability {
        Durability {
            promise: store.durable_promise(),
            end: None,
            list: Vec::new(),
            asked: promise,
            commit_point: store.commit_point(),
            appends: VecDeque::new(),
            after: Some(after),
            dropped: Vec::new(),
            ordered: BTreeSet::new(),
        }
    }

    /// What a start does not find of what was reported; `None` if it finds all.
    fn forgotten(&self, found: &DurableState, store: &Store) -> Option<&'static str> {
        let is_in_log = |position: Position, range: &Range<u64>| {
            store.log().any(|record| record.position == position && record.entry.range() == *range)
        };
        let is_lost = |(position, range): &(Position, Range<u64>)| {
            *position > self.commit_point && !is_within(range, &store.list()) && !is_in_log(*position, range)
        };
        if found.promise < self.promise {
            Some("a promise")
        } else if self.end.is_some_and(|end| found.end < end) {
            Some("entries")
        } else if !self.list.iter().all(|range| is_within(range, &store.list())) {
            Some("its list")
        } else if self.dropped.iter().any(is_lost) {
            Some("blocks that a return dropped")
        } else {
            None
        }
    }

    fn submitted(&mut self, command: &Command<Blocks>, store: &Store) {
        match command {
            Command::Promise(promise) => self.asked = *promise,
            Command::Append { number, position, sequenced, acknowledged, .. } => {
                self.commit_point = self.commit_point.max(*acknowledged);
                if *sequenced {
                    self.appends.push_back((*number, *position));
                }
            }
            Command::CommitPoint { acknowledged, .. } => {
                self.commit_point = self.commit_point.max(*acknowledged)
            }
            Command::Return { after, empty } => {
                (self.end, self.after) = (None, Some(*after));
                if *empty {
                    self.list.clear();
                } else {
                    let above = store.log().filter(|record| record.position > store.commit_point());
                    self.dropped = above.map(|record| (record.position, record.entry.range())).collect();
                }
            }
            Command::Joined => self.list.clear(),
            _ => {}
        }
    }

    /// Takes a completion of the store. Returns what is missing of what was durable before.
    fn completed(&mut self, completion: &Completion<Blocks>) -> Option<&'static str> {
        match completion {
            Completion::Promised(promise) => self.promise = self.promise.max(*promise),
            Completion::Appended(through) => {
                while let Some((number, position)) = self.appends.front().copied()
                    && number <= *through
                {
                    self.appends.pop_front();
                    self.end = Some(position);
                }
            }
            Completion::Listed(ranges) => {
                let commit_point = self.commit_point;
                let lost =
                    |(position, range): &(Position, _)| *position > commit_point && !is_within(range, ranges);
                let missing = self.dropped.iter().any(lost);
                self.dropped.clear();
                (self.end, self.list) = (self.after.take(), ranges.clone());
                self.promise = self.promise.max(self.asked);
                return missing.then_some("blocks that a return dropped");
            }
            _ => {}
        }
        None
    }
}

impl World {
    /// A process opens a replica at a moment of its node's clock. The first process that does so has made the replica (rule L6).
    pub(crate) fn open_replica(&mut self, node: usize, id: ReplicaId, life: u64, now: Moment) -> Replica {
        let lease_ns = self.record().lease_ns;
        let is_new = self.nodes[node].stores[&id].is_new();
        let found = self.open_store(node, id);
        let make = if is_new { Replica::made } else { Replica::new };
        make(VOLUME, id, Incarnation(life), lease_ns, &found, now)
    }

    /// A store is opened. Devices that lie, or are dead, are held to nothing.
    pub(crate) fn open_store(&mut self, node: usize, id: ReplicaId) -> DurableState {
        let store = self.nodes[node].stores.get_mut(&id).expect("it is there");
        let found = store.open();
        if found.damaged || self.lost_writes.contains(&id) || self.went_back.contains_key(&id) {
            self.durability.remove(&id);
            return found;
        }
        let store = &self.nodes[node].stores[&id];
        let now = Durability::found(&found, store);
        let forgotten = self.durability.get(&id).and_then(|known| known.forgotten(&found, store));
        self.durability.insert(id, now);
        if let Some(what) = forgotten {
            self.fail(Violation::Forgot(id, what));
        }
        found
    }

    /// A replica is about to receive a message.
    pub(crate) fn receives(&mut self, from: &FromOwner, message: &ToReplica<Blocks>) {
        self.received_from = Some(*from);
        if matches!(message, ToReplica::Return { .. })
            && let Some(known) = self.durability.get_mut(&from.replica)
        {
            known.ordered.insert(promise_to(from));
        }
    }

    /// A replica submits a command to its store. It must act for the owner that it has durably promised to follow.
    pub(crate) fn submitted(&mut self, node: usize, id: ReplicaId, command: &Command<Blocks>) {
        let store = &self.nodes[node].stores[&id];
        if let Command::Discard { promise, after } = command {
            let follows =
                self.received_from.is_some_and(|from| from.replica == id && promise_to(&from) == *promise);
            if !follows || *promise < store.durable_promise() {
                self.fail(Violation::BrokenPromise(id));
                return;
            }
            self.durability.insert(id, Durability::discards(*promise, *after, store));
            return;
        }
        let Some(known) = self.durability.get_mut(&id) else { return };
        let durable = store.durable_promise();
        let may = |from: &Promise| {
            [durable, known.asked].iter().all(|p| from.owner == p.owner && from.epoch >= p.epoch)
        };
        let well = match command {
            Command::Append { .. } | Command::CommitPoint { .. } => {
                self.received_from.is_some_and(|from| from.replica == id && may(&promise_to(&from)))
            }
            Command::Return { .. } => known.ordered.iter().any(may),
            _ => true,
        };
        known.submitted(command, store);
        if !well {
            self.fail(Violation::BrokenPromise(id));
        }
    }

    /// A store reports a completion.
    pub(crate) fn store_reports(&mut self, id: ReplicaId, completion: &Completion<Blocks>) {
        let missing = self.durability.get_mut(&id).and_then(|known| known.completed(completion));
        if let Some(what) = missing {
            self.fail(Violation::Forgot(id, what));
        }
    }
}
