//! What stays broken when all else has healed. The volume must be served all the same, if one live node reaches the
//! configuration store and a member of every group.

use std::collections::BTreeSet;

use loadline_san_core::ids::ReplicaId;

use super::World;
use crate::store::Store;

/// Faults that last until the end of a run. By default there are none.
#[derive(Debug, Default)]
pub(crate) struct Lasting {
    /// This node is not to be counted on: it is dead, or no node reaches it.
    pub(crate) out: Option<usize>,
    /// Its process never starts again.
    pub(crate) dead: bool,
    /// It does not reach the configuration store either.
    pub(crate) cut_from_config: bool,
    /// Links that never carry anything again.
    pub(crate) cut: BTreeSet<(usize, usize)>,
    /// A node that reaches the configuration store and no other node, while the others have more members of each group: they
    /// are to serve the volume (rule S1).
    pub(crate) outnumbered: Option<usize>,
}

impl World {
    /// A node stays out, or a link between two does.
    pub(crate) fn leave_broken(&mut self) {
        let nodes = self.nodes.len();
        let one = self.rng.index(nodes);
        let others: Vec<usize> = (0..nodes).filter(|node| *node != one).collect();
        let what = match self.rng.below(4) {
            0 => {
                self.lasting = Lasting { out: Some(one), dead: true, ..Lasting::default() };
                let power = self.rng.chance(2);
                self.kill(one, power);
                "a node is gone"
            }
            // A client at one of the two could not be served, nor at a node that reaches no other.
            1 if nodes > 2 => {
                let other = others[self.rng.index(others.len())];
                self.lasting.cut = [(one, other), (other, one)].into();
                let third = (0..nodes).find(|node| *node != one && *node != other);
                self.move_clients(third.expect("there are three"));
                "a link is gone"
            }
            kind => {
                // Nodes yield to one that has more members of a group than they have, and it may have no client.
                let kind = if self.has_most(one) { 2 } else { kind };
                let cut = others.iter().flat_map(|other| [(one, *other), (*other, one)]).collect();
                let outnumbered = Some(one).filter(|_| kind != 2 && self.is_outnumbered(one));
                self.lasting =
                    Lasting { out: Some(one), dead: false, cut_from_config: kind == 2, cut, outnumbered };
                if self.tenants.iter().any(|tenant| tenant.node == Some(one)) {
                    self.detach(one);
                }
                if kind == 2 { "a node is alone" } else { "a node reaches the configuration store only" }
            }
        };
        self.trace_event(|| format!("{what}: n{one}, for good"));
        self.coverage.count("lasting", what);
    }

    /// Whether the other nodes have more members of each group than this one.
    fn is_outnumbered(&self, node: usize) -> bool {
        let record = self.record();
        record.groups.iter().all(|group| {
            let here =
                group.in_sync.iter().filter(|replica| record.homes[replica].0 as usize == node).count();
            let usable = |replica: &&ReplicaId| {
                record.homes[*replica].0 as usize != node
                    && self.is_usable(replica)
                    && !self.store(**replica).is_some_and(Store::has_corrupt_log)
            };
            group.in_sync.iter().filter(usable).count() > here
        })
    }

    /// Whether this node has more members of some group than the other nodes together.
    fn has_most(&self, node: usize) -> bool {
        let record = self.record();
        let here = |replica: &&ReplicaId| record.homes[*replica].0 as usize == node;
        record.groups.iter().any(|group| 2 * group.in_sync.iter().filter(here).count() > group.in_sync.len())
    }

    /// All clients attach the volume at this node.
    fn move_clients(&mut self, node: usize) {
        for index in 0..self.tenants.len() {
            if let Some(now) = self.tenants[index].node.filter(|now| *now != node) {
                self.detach(now);
            }
        }
        self.attach_at(0, node);
    }

    /// Whether no message ever arrives from this node.
    pub(crate) fn is_out(&self, node: usize) -> bool {
        self.lasting.out == Some(node)
    }

    /// Whether a replica answers.
    pub(crate) fn is_usable(&self, replica: &ReplicaId) -> bool {
        let home = self.record().homes.get(replica).map(|home| home.0 as usize);
        home.is_some_and(|home| !self.is_out(home))
            && !self.store(*replica).is_none_or(Store::is_dead)
            && !self.went_back.contains_key(replica)
    }

    /// Whether a replica is to be in sync in the end, where another is: it answers, or it was found damaged, and is emptied and
    /// copied in full.
    pub(crate) fn is_to_come_back(&self, replica: &ReplicaId) -> bool {
        let home = self.record().homes.get(replica).map(|home| home.0 as usize);
        let may = |store: &Store| !store.is_dead() || store.is_damaged();
        home.is_some_and(|home| !self.is_out(home)) && self.store(*replica).is_some_and(may)
    }

    /// Whether some group has no member that can be reached and whose log is whole: then nothing can be asked of it.
    pub(crate) fn is_lost(&self) -> bool {
        let counts = |replica: &ReplicaId| {
            self.is_usable(replica) && !self.store(*replica).is_some_and(Store::has_corrupt_log)
        };
        self.record().groups.iter().any(|group| !group.in_sync.iter().any(counts))
    }
}
