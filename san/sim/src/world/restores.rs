//! The configuration store goes back in time: it holds an older record than it held. Later it holds the newest one again, or a
//! person recovers the volume by force.
//!
//! What happens in between is judged by all that is checked anyway, against the newest record: an owner that runs may serve
//! on, since its members follow it and no swap can take them from it. But no swap may commit on the older record (rule P4).
//!
//! **A stale copy alone.** An older record is put back while all are stopped, and one member of it that has missed writes since starts
//! first. It cannot know, takes the volume over, and serves: the record goes on from the older one, on a *branch*. What is read there is
//! not judged. When the others start, nothing of what they hold may be dropped or written over, before a person recovers the volume
//! by force (rule R11): members of the newest record are judged by that, whatever the branch holds of them.
//!
//! **What the protocol cannot see.** A member promises an epoch durably when it is sealed, and adopts the epochs of later swaps
//! without a durable promise. If no member that answers has durably promised more than the older record's epoch, the older record looks
//! like the newest one. So only records are put back of which some group has only members that have promised more: no node can
//! propose anything before one of these has reported.

use std::collections::BTreeMap;

use loadline_san_core::ids::{Epoch, ReplicaId};
use loadline_san_core::layout::GroupIndex;
use loadline_san_core::record::Record;
use loadline_san_core::volume::{Event, Status, VolumeCommand};

use super::{Happening, World, show};
use crate::store::Store;
use crate::time::{MS, Time};
use crate::violation::Violation;

/// A store that went back in time.
#[derive(Debug)]
pub(crate) struct Restored {
    /// The record that it holds.
    holds: Record,
    /// A person has ordered a recovery by force.
    recovering: bool,
    /// A stale member continues from the older record.
    branch: bool,
}

/// One storm in so many has a store that goes back, in the runs that have any.
const STORMS: u64 = 2;
/// The longest time until it is put right.
const LONGEST: Time = 1_200 * MS;
/// A person orders a recovery again after this time.
const AGAIN: Time = 400 * MS;

impl World {
    /// What the configuration store holds. [`World::record`] is what was committed last.
    pub(crate) fn held(&self) -> &Record {
        self.restored.as_ref().map_or_else(|| self.record(), |restored| &restored.holds)
    }

    /// Whether a person has ordered a recovery by force that is not carried out yet.
    pub(crate) fn is_being_recovered(&self) -> bool {
        self.restored.as_ref().is_some_and(|restored| restored.recovering)
    }

    /// A storm begins: the store may go back in it, and is put right later, in the storm or in the calm.
    pub(crate) fn plan_restore(&mut self) {
        if self.settings.restores && self.restored.is_none() && self.rng.chance(STORMS) {
            let when = self.rng.below(800 * MS);
            self.after(when, Happening::StoreGoesBack);
        }
    }

    /// Whether a takeover by the members of this record would have to ask one that has promised more: all members of some group
    /// have, durably.
    fn is_seen_to_be_old(&self, record: &Record) -> bool {
        let has_promised_more = |replica: &ReplicaId| {
            !self.went_back.contains_key(replica)
                && self.store(*replica).is_some_and(|store| store.durable_promise().epoch > record.epoch)
        };
        record.groups.iter().any(|group| group.in_sync.iter().all(has_promised_more))
    }

    /// Whether each process that runs knows a newer record than this: then no proposal that it has made can commit.
    fn is_old_to_all(&self, record: &Record) -> bool {
        self.nodes
            .iter()
            .filter_map(|node| node.process.as_ref())
            .all(|process| process.volume.record().is_some_and(|known| known.epoch > record.epoch))
    }

    /// The store goes back to an older record: while no process runs, or under those that run.
    pub(crate) fn store_goes_back(&mut self) {
        if self.calm || self.restored.is_some() || self.forced || self.is_lost() {
            return;
        }
        if self.settings.least >= 2 && !self.settings.disks {
            if self.a_stale_member_starts_first() {
                return;
            }
            if self.settings.nodes > 2 && !self.rng.chance(5) {
                // One misses what comes now, and others take the volume over: then there is such a record.
                let count = self.nodes.len();
                let node = self.rng.index(count);
                let other = (node + 1 + self.rng.index(count - 1)) % count;
                self.kill(node, false);
                self.attach_at(0, other);
                let wait = 100 * MS + self.rng.below(300 * MS);
                self.after(wait, Happening::StoreGoesBack);
                return;
            }
        }
        let running = self.rng.chance(3);
        let fits = |record: &&Record| {
            record.epoch < self.record().epoch
                && self.is_seen_to_be_old(record)
                && (!running || self.is_old_to_all(record))
        };
        let older: Vec<&Record> = self.config.iter().filter(fits).collect();
        if older.is_empty() {
            return;
        }
        // The newer ones are harder to tell from the newest.
        let from = if self.rng.chance(2) { older.len().saturating_sub(4) } else { 0 };
        let holds = older[from + self.rng.index(older.len() - from)].clone();
        self.trace_event(|| format!("the configuration store goes back to {}", show(&holds)));
        self.coverage.count("store", if running { "goes back under nodes that run" } else { "goes back" });
        if !running {
            self.stop_all();
        }
        self.restore(Some(Restored { holds, recovering: false, branch: false }));
        if !running {
            self.start_all();
        }
        let length = 20 * MS + self.rng.below(LONGEST);
        self.after(length, Happening::StorePutRight);
    }

    /// The store goes back to an older record while all are stopped, and a node starts first that has a member of each group by that
    /// record, has missed writes since, and cannot know. All others have promised more. Whether there is such a record.
    fn a_stale_member_starts_first(&mut self) -> bool {
        let now = self.record();
        let promised = |replica: &ReplicaId| self.store(*replica).map(|store| store.durable_promise().epoch);
        let fits = |old: &Record, node: usize| {
            let here = |replica: &&ReplicaId| old.homes[*replica].0 as usize == node;
            // A record from before a growth cannot be recovered by force: its members know that the volume is larger (rule P5).
            old.epoch < now.epoch
                && old.blocks == now.blocks
                && old.homes == now.homes
                && old.groups.len() == now.groups.len()
                && old.groups.iter().zip(&now.groups).all(|(group, now)| {
                    let stale = group.in_sync.iter().find(here);
                    let is_stale = |stale: &ReplicaId| {
                        !now.in_sync.contains(stale) && promised(stale) <= Some(old.epoch)
                    };
                    let mut others = group.in_sync.iter().chain(group.departed.keys()).filter(|r| !here(r));
                    stale.is_some_and(is_stale) && others.all(|other| promised(other) > Some(old.epoch))
                })
        };
        let nodes = 0..self.nodes.len();
        let all = self.config.iter().flat_map(|old| nodes.clone().map(move |node| (old, node)));
        let found: Vec<(Record, usize)> =
            all.filter(|(old, node)| fits(old, *node)).map(|(old, node)| (old.clone(), node)).collect();
        if found.is_empty() {
            return false;
        }
        let (old, node) = found[self.rng.index(found.len())].clone();
        self.branch_from(old);
        self.start(node);
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            let wait = 150 * MS + self.rng.below(600 * MS);
            self.after(wait, Happening::Start(other));
        }
        let length = 600 * MS + self.rng.below(LONGEST);
        self.after(length, Happening::StorePutRight);
        true
    }

    /// While all nodes are stopped, an older record is put back; the node that starts first continues from it.
    pub(crate) fn branch_from(&mut self, holds: Record) {
        self.trace_event(|| {
            format!("the configuration store holds {}, and a stale member starts first", show(&holds))
        });
        self.coverage.count("store", "a stale member goes on from an older record");
        self.branches.insert(holds.made_by);
        self.stop_all();
        self.restore(Some(Restored { holds, recovering: false, branch: true }));
    }

    /// Whether the record that a node knows is of a branch.
    pub(crate) fn is_on_branch(&self, node: usize) -> bool {
        let record = self.nodes[node].process.as_ref().and_then(|process| process.volume.record());
        record.is_some_and(|record| self.branches.contains(&record.made_by))
    }

    /// A record is about to be committed. Checks whether it continues a branch: no acknowledged write may be lost by it.
    pub(crate) fn goes_on_with_branch(&mut self, record: &Record) -> bool {
        let Some(Restored { holds, recovering, branch: true }) = &mut self.restored else { return false };
        // A recovery ends it.
        if *recovering && record.groups.iter().any(|group| group.recovered == record.epoch) {
            return false;
        }
        self.branches.insert(record.made_by);
        *holds = record.clone();
        self.check_members();
        true
    }

    /// Requests to the store as it was are lost: their connections have ended.
    fn restore(&mut self, restored: Option<Restored>) {
        self.restored = restored;
        self.drop_all(|happening| matches!(happening, Happening::Config(..)));
    }

    fn stop_all(&mut self) {
        for node in 0..self.nodes.len() {
            self.kill(node, false);
        }
    }

    fn start_all(&mut self) {
        for node in 0..self.nodes.len() {
            let wait = [MS, 100 * MS][self.rng.index(2)];
            let wait = self.rng.below(wait);
            self.after(wait, Happening::Start(node));
        }
    }

    /// A person continues with this replica of the first group.
    pub(crate) fn recover_from(&mut self, node: usize, survivor: ReplicaId) {
        self.forced = true;
        self.restored.as_mut().expect("it went back").recovering = true;
        self.order_recovery(node, BTreeMap::from([(GroupIndex(0), survivor)]));
    }

    /// A person puts it right: the newest record is put back, or the volume is recovered by force.
    pub(crate) fn put_right(&mut self) {
        let Some(Restored { recovering, branch, .. }) = self.restored else { return };
        if branch && self.survivors().is_none() {
            self.after(AGAIN, Happening::StorePutRight);
            return;
        }
        if recovering && self.survivors().is_some() {
            self.recover_by_force();
            return;
        }
        let seen = |status| {
            let is = |node: &crate::world::Node| {
                node.process.as_ref().is_some_and(|p| p.volume.status() == status)
            };
            self.nodes.iter().any(is)
        };
        if seen(Status::Blocked) {
            self.coverage.count("store", "seen to have gone back");
        }
        if branch || !recovering && self.survivors().is_some() && self.rng.chance(3) {
            self.trace_event(|| "a person recovers the volume by force".to_owned());
            self.stop_all();
            self.forced = true;
            self.restored.as_mut().expect("it went back").recovering = true;
            self.restore_again();
            self.start_all();
            self.after(150 * MS, Happening::StorePutRight);
            return;
        }
        let stopped = self.rng.chance(2);
        self.trace_event(|| {
            format!("the configuration store holds the newest record again, stopped: {stopped}")
        });
        self.coverage.count("store", if stopped { "put right" } else { "put right under nodes that run" });
        if stopped {
            self.stop_all();
        }
        self.restore(None);
        if stopped {
            self.start_all();
        }
        self.calm_began = (self.now(), self.config.len());
    }

    fn restore_again(&mut self) {
        let restored = self.restored.take();
        self.restore(restored);
    }

    /// For each group a member of now, with all that was acknowledged, which the older record knows too; if there is one for
    /// each.
    fn survivors(&self) -> Option<BTreeMap<GroupIndex, ReplicaId>> {
        let (now, old) = (self.record(), self.held());
        if now.groups.len() != old.groups.len() || now.blocks != old.blocks || !self.lost_writes.is_empty() {
            return None;
        }
        let mut survivors = BTreeMap::new();
        for (index, (group, old)) in (0..).zip(now.groups.iter().zip(&old.groups)) {
            let is_known = |replica: &&ReplicaId| {
                let departed = old.departed.get(*replica);
                old.in_sync.contains(*replica) || departed.is_some_and(|departed| departed.epoch > Epoch(0))
            };
            let is_well = |replica: &&ReplicaId| {
                self.is_usable(replica)
                    && self.store(**replica).is_some_and(|s| !s.is_corrupt() && !s.was_corrupted())
            };
            survivors.insert(GroupIndex(index), *group.in_sync.iter().find(|r| is_known(r) && is_well(r))?);
        }
        Some(survivors)
    }

    /// The order is given at a node that runs, again and again until it is carried out.
    fn recover_by_force(&mut self) {
        self.after(AGAIN, Happening::StorePutRight);
        let runs = |node: &usize| self.nodes[*node].process.is_some() && self.nodes[*node].paused.is_none();
        let running: Vec<usize> = (0..self.nodes.len()).filter(runs).collect();
        let Some(survivors) = self.survivors().filter(|_| !running.is_empty()) else { return };
        let node = running[self.rng.index(running.len())];
        self.order_recovery(node, survivors);
    }

    fn order_recovery(&mut self, node: usize, survivors: BTreeMap<GroupIndex, ReplicaId>) {
        let stores = self.nodes.iter().flat_map(|node| node.stores.values());
        let promised = stores.map(|store: &Store| store.durable_promise().epoch).max().unwrap_or(Epoch(0));
        let promised = promised.max(self.record().epoch);
        let record = Box::new(self.held().clone());
        self.trace_event(|| format!("n{node} is ordered to recover the volume with {survivors:?}"));
        self.step_volume(node, Event::Command(VolumeCommand::Recover { record, survivors, promised }));
    }

    /// A record is about to be committed, while the store holds an older one.
    pub(crate) fn check_restored(&mut self, record: &Record) {
        let Some(restored) = &self.restored else { return };
        if !restored.recovering || record.epoch <= self.record().epoch {
            self.fail(Violation::OnOld(record.epoch.0));
            return;
        }
        self.coverage.count("store", "recovered by force");
        self.restored = None;
        self.calm_began = (self.now(), self.config.len());
    }
}
