//! What should progress does: in a calm every request is answered, and in the end nothing is left to wait for.

use loadline_san_core::ids::ReplicaId;
use loadline_san_core::layout::GroupIndex;
use loadline_san_core::record::Group;
use loadline_san_core::volume::Status;

use super::World;
use super::tenant::Outstanding;
use crate::store::Store;
use crate::time::{MS, Time};
use crate::violation::Violation;

/// In a calm no request waits for so long.
const SOON: Time = 2_500 * MS;

impl World {
    /// The node that serves the volume, if one does. It may have been deposed by a node that died right after, and not know that: its
    /// members still follow it.
    fn owner(&self) -> Option<usize> {
        let serves = |node: &usize| {
            let process = self.nodes[*node].process.as_ref();
            !self.is_out(*node) && process.is_some_and(|p| p.volume.status() == Status::Active)
        };
        (0..self.nodes.len()).find(serves)
    }

    /// Whether no member has some block whole: then it cannot be copied.
    fn has_hole(&self, index: GroupIndex, group: &Group) -> bool {
        let record = self.record();
        let has = |block: u64| {
            let whole = |store: &Store| !store.is_dead() && store.is_whole(block);
            group.in_sync.iter().any(|replica| self.store(*replica).is_some_and(whole))
        };
        !(0..record.layout.blocks_in(index, record.blocks)).all(has)
    }

    /// Everything has been well for long enough. Whether nothing is left to wait for.
    pub(crate) fn is_settled(&self) -> Result<(), String> {
        let record = self.record();
        let owner = self.owner().ok_or("no node serves the volume")?;
        for (index, group) in (0..).zip(&record.groups) {
            let reachable = |replica: &&ReplicaId| {
                let home = record.homes[replica].0 as usize;
                self.is_to_come_back(replica) && !self.lasting.cut.contains(&(owner, home))
            };
            let damaged = |replica: &&ReplicaId| {
                reachable(replica) && self.store(**replica).is_some_and(Store::is_damaged)
            };
            if let Some(damaged) = group.in_sync.iter().find(damaged) {
                return Err(format!("{damaged} of group {index} was found damaged, and is a member still"));
            }
            if let Some(gone) = group.departed.keys().find(reachable)
                && !self.has_hole(GroupIndex(index), group)
            {
                return Err(format!("{gone} of group {index} has not come back"));
            }
        }
        // Writes wait for copies that no person replaces: as they should.
        let mut asked = self.tenants.iter().flat_map(|tenant| &tenant.outstanding);
        match asked.find(|(_, asked)| !asked.is_held(record)) {
            Some((_, asked)) => Err(format!("{} is not answered", asked.describe())),
            None => Ok(()),
        }
    }

    /// No request has waited for long in this calm, but those that were held at some moment of it.
    pub(crate) fn check_patience(&mut self) {
        if self.is_lost() || self.restored.is_some() {
            return;
        }
        let (began, records) = self.calm_began;
        let waits = |since: Time| self.now - since.max(began) > SOON;
        let held =
            |asked: &Outstanding| self.config[records - 1..].iter().any(|record| asked.is_held(record));
        let asked = self.tenants.iter().flat_map(|tenant| &tenant.outstanding);
        let mut late = asked.filter(|(_, asked)| waits(asked.since) && !held(asked));
        if let Some((_, asked)) = late.next() {
            let calm = (self.now - began) / MS;
            let why = format!("{} is not answered in a calm of {calm} ms", asked.describe());
            self.fail(Violation::Stuck(why));
        }
    }
}
