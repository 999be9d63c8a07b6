//! What a replica does by itself: what it accepts, destage, and a start after a crash (R1 to R3, R8, L3, P3).

use crate::Rule;
use crate::protocol::Protocol;
use crate::state::{Extent, Owner, Phase, REPLICAS, Replica, State};

impl Protocol {
    /// Whether a replica takes a message of this epoch.
    pub(crate) fn accepts(&self, state: &State, replica: usize, epoch: u8) -> bool {
        epoch >= state.replicas[replica].epoch || self.without(Rule::Refusal)
    }

    /// All that the commit point allows goes from the log to the extents, and the log is freed.
    pub(crate) fn destage(&self, state: &State, which: usize) -> Option<State> {
        let replica = &state.replicas[which];
        // Only a return reads stamps; without a return they have no effect.
        if self.bounds.left.returns == 0 && !self.without(Rule::R1) {
            return None;
        }
        let ready = |at| at <= replica.commit_point || self.without(Rule::R1);
        if !replica.log.iter().any(|entry| ready(entry.at)) {
            return None;
        }
        let mut next = state.clone();
        let destaged = &mut next.replicas[which];
        for entry in replica.log.iter().filter(|entry| ready(entry.at)) {
            let stamp = match self.left_out {
                Some(Rule::R2) => entry.at.epoch,
                Some(Rule::R3) => 0,
                _ => replica.epoch,
            };
            destaged.extents[entry.block] = Extent { value: entry.value, stamp };
        }
        destaged.log.retain(|entry| !ready(entry.at));
        Some(next)
    }

    /// A node dies and starts. A node that does not start again sends nothing any more.
    pub(crate) fn crash(&self, state: &State, node: usize) -> Option<State> {
        if state.left.crashes == 0 {
            return None;
        }
        let mut next = state.clone();
        next.left.crashes -= 1;
        let replica = &mut next.replicas[node];
        // A lost commit point has the effect of one that never arrived; so it is kept.
        let stored = if self.without(Rule::R8) { 0 } else { replica.commit_point_epoch };
        replica.epoch = replica.promise.max(stored);
        if self.without(Rule::L3) {
            for owner in &mut next.owners {
                owner.lease.bound = owner.lease.bound.without(node);
            }
        }
        next.owners[node] = Owner::default();
        if self.without(Rule::P3) && state.record.owner == node && state.record.active {
            // It trusts its own replica.
            let replica = &state.replicas[node];
            next.owners[node] = Owner {
                phase: Phase::Active,
                known: state.record,
                ownership: replica.ownership,
                issued: replica.last.number,
                acked: replica.last,
                confirmed: [replica.last.number; REPLICAS],
                ..Owner::default()
            };
        }
        Some(next)
    }
}

impl Replica {
    /// Follows the owner to a higher epoch.
    pub(crate) fn adopt(&mut self, epoch: u8) {
        self.epoch = self.epoch.max(epoch);
    }
}
