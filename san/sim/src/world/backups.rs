//! Devices that go back in time: a copy of one is made, and later put in its place.
//!
//! What it shows is an older state than the replica had. That it is older can be seen if the replica has become a member, or
//! was made equal to the others, since the copy was made: the record knows what it had promised by then (rule R9).

use loadline_san_core::ids::{Epoch, ReplicaId};
use loadline_san_core::record::RecordState;

use super::World;
use crate::violation::Violation;

impl World {
    /// A node's process dies, and its devices are copied before it starts again.
    pub(crate) fn devices_are_copied(&mut self, node: usize) {
        self.crash(node);
        self.copy_devices(node);
    }

    /// The devices of a node that does not run are copied.
    pub(crate) fn copy_devices(&mut self, node: usize) {
        if self.nodes[node].process.is_some() {
            return;
        }
        let epoch = self.record().epoch;
        let copied = self.nodes[node].stores.iter().filter(|(_, store)| !store.is_dead());
        let copies: Vec<_> = copied.map(|(replica, store)| (*replica, (store.backup(), epoch))).collect();
        for (replica, copy) in copies {
            self.trace_event(|| format!("the device of {replica} is copied at e{}", epoch.0));
            self.backups.insert(replica, copy);
        }
    }

    /// A node's process dies, and the copy of a device is put in its place, if another member is whole.
    pub(crate) fn device_goes_back(&mut self, node: usize) {
        let Some(replica) = self.spare(node, |other| !other.is_dead() && !other.is_corrupt()) else { return };
        // Of a store that went back no member is left that shows it, if that of a group does not show it either.
        let store_holds = self.restored.is_none();
        if store_holds && self.went_back.is_empty() && self.lost_writes.is_empty() && self.is_older(replica) {
            self.crash(node);
            self.put_back(node, replica);
        }
    }

    /// Whether the record knows that a copy of its device is older than what the replica has.
    fn is_older(&self, replica: ReplicaId) -> bool {
        let since = self.record().groups.iter().map(|group| group.member_since(replica)).max();
        let copied = self.backups.get(&replica).map(|(_, epoch)| *epoch);
        copied.is_some_and(|copied| since.unwrap_or(Epoch(0)) > copied)
    }

    /// The copy of a device is put in its place.
    pub(crate) fn put_back(&mut self, node: usize, replica: ReplicaId) {
        if self.nodes[node].process.is_some() {
            return;
        }
        let Some((copy, epoch)) = self.backups.remove(&replica) else { return };
        self.trace_event(|| format!("the device of {replica} is as it was at e{}", epoch.0));
        self.coverage.count("disk", "goes back");
        self.nodes[node].stores.get_mut(&replica).expect("it has one").put_back(copy);
        self.durability.remove(&replica);
        self.went_back.insert(replica, self.record().epoch);
        self.corrupted.insert(replica);
    }

    /// The record has changed. A member whose device went back leaves at the next takeover, if not before.
    pub(crate) fn check_went_back(&mut self) {
        let [.., before, now] = &self.config[..] else { return };
        let is_member = |replica: &ReplicaId| now.groups.iter().any(|group| group.in_sync.contains(replica));
        let equal = before.state == RecordState::TakingOver && now.state == RecordState::Active;
        // One that went back after it had reported is found out later.
        let kept = self
            .went_back
            .iter()
            .find(|(replica, since)| equal && is_member(replica) && before.epoch > **since);
        let kept = kept.map(|(replica, _)| *replica);
        let members: Vec<ReplicaId> = self.went_back.keys().copied().filter(is_member).collect();
        self.went_back.retain(|replica, _| members.contains(replica));
        if let Some(replica) = kept {
            self.fail(Violation::Kept(replica));
        }
    }
}
