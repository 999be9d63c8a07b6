//! Replicas of this node that cannot be used are named in the configuration, so that every node can show them and a person sees
//! them also when this node does not answer.

use super::{Node, NodeState};
use crate::config::catalog::{Replica, ReplicaState, change};
use crate::unusable::Unusable;

impl NodeState {
    /// The device of a replica of this node that is not used, and why.
    pub(super) fn broken_of(&self, replica: &Replica) -> Option<(u32, String)> {
        let broken = |device: u32| {
            let why = self.broken.get(&device)?;
            Some((device, format!("device {device} is not used: {why}")))
        };
        broken(replica.device).or_else(|| broken(replica.log_device))
    }

    /// Why a replica of this node cannot be used. None if that is not known yet; `Some(None)` if it can be.
    pub(crate) fn unusable(&self, id: u64, replica: &Replica) -> Option<Option<Unusable>> {
        if let Some((device, why)) = self.broken_of(replica) {
            return Some(Some(Unusable::Failed { device, why }));
        }
        if let Some((_, why, failed)) = self.unopened.get(&id) {
            let why = why.clone();
            return Some(Some(match *failed {
                Some(device) => Unusable::Failed { device, why },
                None => Unusable::NotUsed(why),
            }));
        }
        self.opened.get(&id).cloned()
    }
}

impl Node {
    /// A replica, for messages: what it has of which volume, as far as that is known.
    pub(super) fn name_replica(&self, id: u64) -> String {
        let state = self.state();
        let known = state.catalog.replicas.get(&id).and_then(|(replica, _)| {
            let (volume, _) = state.catalog.volumes.get(&replica.volume)?;
            Some(format!("the copy of volume {}, group {} (replica {id})", volume.name, replica.group))
        });
        known.unwrap_or_else(|| format!("replica {id}"))
    }

    /// Writes down which replicas of this node cannot be used, where that has changed: all of a device that fails in one commit, or in few.
    pub(super) async fn tell_unusable(&self) {
        let changes: Vec<_> = {
            let state = self.state();
            if state.store.went_back() {
                return;
            }
            let here = state.catalog.replicas.iter();
            let here = here.filter(|(_, (r, _))| r.node == self.id() && r.state == ReplicaState::Ready);
            here.filter_map(|(id, (replica, version))| {
                let unusable = state.unusable(*id, replica)?;
                let next = Replica { unusable, ..replica.clone() };
                (next != *replica).then(|| change(format!("replica/{id}"), Some(*version), &next))
            })
            .collect()
        };
        // If another change came first, those that are not made are made when the configuration is read next.
        if !changes.is_empty() && self.config().each(changes).await.is_ok() {
            self.reconcile_soon();
        }
    }
}
