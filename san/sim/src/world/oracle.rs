//! What must never happen, checked as it goes.

use loadline_san_core::ids::{NodeId, ReplicaId};
use loadline_san_core::layout::GroupIndex;
use loadline_san_core::record::{Departed, Record, RecordState};
use loadline_san_core::volume::{Failure, Status};

use super::World;
use super::tenant::{BEYOND, Outstanding};
use crate::store::{Store, ZERO};
use crate::violation::Violation;

impl World {
    pub(crate) fn fail(&mut self, violation: Violation) {
        self.trace_event(|| format!("VIOLATION {violation}"));
        self.violation.get_or_insert(violation);
    }

    pub(crate) fn store(&self, replica: ReplicaId) -> Option<&Store> {
        let home = self.record().homes.get(&replica)?;
        self.nodes[home.0 as usize].stores.get(&replica)
    }

    /// Every member has what was acknowledged, and they have the same.
    pub(crate) fn check_members(&mut self) {
        let blocks = self.record().blocks;
        self.check_blocks(0..blocks);
    }

    /// A write was acknowledged: every member has it.
    pub(crate) fn check_written(&mut self, sector: u64, sectors: u64) {
        self.check_blocks(sector / 8..(sector + sectors).div_ceil(8));
    }

    fn check_blocks(&mut self, blocks: std::ops::Range<u64>) {
        let record = self.record();
        let unknown = |replica: &ReplicaId| {
            self.lost_writes.contains(replica) && record.state == RecordState::TakingOver
                || self.went_back.contains_key(replica)
        };
        for block in blocks {
            let (group, within) = record.layout.locate(block);
            let mut first = None;
            for replica in &record.groups[group.0 as usize].in_sync {
                let Some(store) = self.store(*replica).filter(|store| !store.is_dead()) else { continue };
                if unknown(replica) {
                    continue;
                }
                if store.was_corrupted() && !store.is_whole(within) {
                    // What a read would find out.
                    continue;
                }
                let values = store.durable_value(within).unwrap_or(ZERO);
                for (sector, value) in (block * 8..).zip(values) {
                    if let Err(impossible) = self.history.may_hold(sector, value) {
                        self.fail(Violation::Missing(*replica, impossible));
                        return;
                    }
                }
                let (one, of_one) = *first.get_or_insert((*replica, values));
                let mut differ = (0..8).filter(|at| of_one[*at as usize] != values[*at as usize]);
                if let Some(at) = differ.find(|at| self.history.is_settled(block * 8 + at)) {
                    self.fail(Violation::Apart(one, *replica, block * 8 + at));
                    return;
                }
            }
        }
    }

    /// A node acknowledges a write: the groups that it touches have enough replicas in sync, by the record that the node knows
    /// (rule W6).
    pub(crate) fn check_least(&mut self, node: usize, sector: u64, sectors: u64) {
        let enough = |record: &Record| {
            (sector / 8..(sector + sectors).div_ceil(8)).all(|block| {
                let (group, _) = record.layout.locate(block);
                let group = record.groups.get(group.0 as usize);
                group.is_some_and(|group| group.in_sync.len() >= record.least as usize)
            })
        };
        let Some(process) = &self.nodes[node].process else { return };
        if !process.volume.record().is_some_and(enough) {
            self.fail(Violation::TooFew(sector));
        }
    }

    /// A request at a node has ended so: whether it may.
    pub(crate) fn check_end(&mut self, asked: &Outstanding, end: Result<(), Failure>) {
        let (node, sector) = (asked.node, asked.sector);
        let Some(process) = &self.nodes[node].process else { return };
        let serves = matches!(process.volume.status(), Status::Active | Status::Changing);
        let size = process.volume.record().map_or(0, |record| record.blocks * 8);
        let may = match end {
            Ok(()) => sector < BEYOND,
            Err(Failure::OutOfRange) => asked.end > size,
            Err(Failure::TooMany | Failure::TooLong) => false,
            Err(Failure::NotAttached) => !process.let_in || process.volume.status() == Status::Blocked,
            Err(Failure::Deposed) => !serves,
            Err(Failure::NoSpace) => self.some_store_was_full(),
            Err(Failure::Corrupt) => {
                self.check_corrupt(node, sector, asked.sectors);
                true
            }
        };
        if !may {
            self.fail(Violation::Unfounded(sector, end));
        }
    }

    fn some_store_was_full(&self) -> bool {
        self.nodes.iter().any(|node| node.stores.values().any(Store::was_full))
    }

    /// A request at a node has failed since no copy is whole: so it must be, of one of its blocks. Members of which the owner
    /// does not know yet do not count.
    fn check_corrupt(&mut self, node: usize, sector: u64, sectors: u64) {
        let record = self.record();
        let Some(process) = &self.nodes[node].process else { return };
        let knows = process.volume.record().is_some_and(|known| known.epoch == record.epoch);
        if !knows || process.volume.status() != Status::Active {
            return;
        }
        let is_lost = |block: u64| {
            let (group, within) = record.layout.locate(block);
            let members = &record.groups[group.0 as usize].in_sync;
            members
                .iter()
                .all(|replica| self.store(*replica).is_none_or(|s| s.is_dead() || !s.is_whole(within)))
        };
        if !(sector / 8..(sector + sectors).div_ceil(8)).any(is_lost) {
            self.fail(Violation::NotCorrupt(sector));
        }
    }

    /// No replica is emptied that was a member and whose device is well.
    pub(crate) fn check_emptied(&mut self) {
        let [.., before, now] = &self.config[..] else { return };
        for (old, new) in before.groups.iter().zip(&now.groups) {
            let emptied = new.departed.iter().filter(|(_, departed)| **departed == Departed::EMPTY);
            for (replica, _) in emptied {
                let had = old
                    .departed
                    .get(replica)
                    .map_or(old.in_sync.contains(replica), |d| *d != Departed::EMPTY);
                let well = self.store(*replica).is_some_and(|store| !store.is_dead());
                let well = well && !self.corrupted.contains(replica);
                if had && well && !self.lost_writes.contains(replica) && !self.forced {
                    let replica = *replica;
                    self.fail(Violation::Emptied(replica));
                    return;
                }
            }
        }
    }

    /// Only one owner is active at an epoch.
    pub(crate) fn check_owner(&mut self, node: usize) {
        let Some(process) = &self.nodes[node].process else { return };
        let Some(epoch) = process.volume.record().map(|record| record.epoch) else { return };
        if self.is_on_branch(node) {
            // Another may have owned the volume at that epoch.
            return;
        }
        let owner = loadline_san_core::ids::Owner {
            node: NodeId(node as u32),
            incarnation: loadline_san_core::ids::Incarnation(process.life),
        };
        if *self.owners.entry(epoch).or_insert(owner) != owner {
            self.fail(Violation::TwoOwners(epoch.0));
        }
    }

    /// Nothing is under way: members do not differ.
    pub(crate) fn check_rest(&mut self) {
        let record = self.record().clone();
        for (index, group) in (0..).zip(&record.groups) {
            let blocks = record.layout.blocks_in(GroupIndex(index), record.blocks);
            let members: Vec<ReplicaId> = group.in_sync.iter().copied().collect();
            for pair in members.windows(2) {
                let is_whole = |replica: &ReplicaId, block| {
                    self.store(*replica).is_none_or(|store| !store.was_corrupted() || store.is_whole(block))
                };
                for block in (0..blocks).filter(|block| pair.iter().all(|one| is_whole(one, *block))) {
                    let value = |replica| self.store(replica).and_then(|s| s.value(block)).unwrap_or(ZERO);
                    if value(pair[0]) != value(pair[1]) {
                        self.fail(Violation::Differ(pair[0], pair[1], block));
                        return;
                    }
                }
            }
        }
    }
}
