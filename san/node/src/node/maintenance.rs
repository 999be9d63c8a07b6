//! A node in maintenance is about to be stopped by a person: other nodes serve its volumes, and it gets no new copies. Its copies stay.
//!
//! ```text
//!  in maintenance ─▶ each volume that it owns is attached at a node that has a copy in sync ─▶ that node takes the volume over
//! ```
//!
//! What is to be done follows from the configuration alone, so it continues after a crash, and a volume that could not be handed over
//! (its clients share memory with the node, or no other copy was in sync) goes as soon as it can.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use loadline_san_core::ids::Owner;
use loadline_san_protocol::record;

use super::Node;
use super::leaving::{AT_ONCE, heirs};
use crate::config::catalog::{self, Catalog, VolumeState, change};
use crate::config::{Change, ConfigError};

/// Between two looks for volumes that can be handed over.
const LOOK: Duration = Duration::from_millis(500);

impl Node {
    /// Hands volumes over while this node is in maintenance. Goes on until the node ends.
    pub(super) async fn give_volumes_up_for_ever(&self) {
        let mut complained = false;
        loop {
            tokio::time::sleep(LOOK).await;
            if *self.0.leaving.borrow() || self.state().store.went_back() {
                continue;
            }
            match self.give_volumes_up().await {
                Ok(()) => complained = false,
                Err(why) if !std::mem::replace(&mut complained, true) => {
                    tracing::warn!(
                        "this node is in maintenance, and its volumes are not handed over: {why}; it tries again"
                    );
                }
                Err(_) => {}
            }
        }
    }

    async fn give_volumes_up(&self) -> Result<(), ConfigError> {
        let me = self.0.me;
        let owns = {
            let state = self.state();
            let catalog = &state.catalog;
            catalog.in_maintenance(self.id())
                && catalog.records.iter().any(|(id, stored)| {
                    let is_served = |(volume, _): &(catalog::Volume, u64)| {
                        volume.state == VolumeState::Ready && volume.attached.is_some()
                    };
                    catalog.volumes.get(id).is_some_and(is_served)
                        && record::decode(&stored.value).is_ok_and(|record| record.owner == me)
                })
        };
        // Which volumes have clients that cannot leave is not known while a thread of the data path does not respond.
        if !owns || !self.refresh_loops().await {
            return Ok(());
        }
        let (bound, alive) = (self.bound(), self.alive().await);
        let ordered = self.config().call(move |store| {
            let catalog = Catalog::read(store)?;
            let orders = orders(&catalog, me, &bound, &alive);
            let count = orders.len();
            for some in orders.chunks(AT_ONCE) {
                // Something has changed meanwhile: the next look sees it.
                if !store.commit(some)? {
                    return Ok(0);
                }
            }
            Ok(count)
        });
        match ordered.await? {
            0 => {}
            1 => tracing::info!("in maintenance: 1 volume is handed over"),
            count => tracing::info!("in maintenance: {count} volumes are handed over"),
        }
        self.reconcile_soon();
        Ok(())
    }
}

/// The changes that attach volumes of a node in maintenance elsewhere: never at another one in maintenance, which would give them back.
fn orders(catalog: &Catalog, me: Owner, bound: &BTreeSet<u64>, alive: &BTreeMap<u32, bool>) -> Vec<Change> {
    if !catalog.in_maintenance(me.node.0) {
        return Vec::new();
    }
    let heirs = heirs(catalog, me, bound, alive);
    let heirs = heirs.into_iter().filter(|(_, heir)| !catalog.in_maintenance(*heir));
    let orders = heirs.filter_map(|(id, heir)| {
        let (volume, version) = &catalog.volumes[&id];
        let next = volume.attached_at(Some(heir));
        (volume.attached != Some(heir)).then(|| change(format!("volume/{id}"), Some(*version), &next))
    });
    orders.collect()
}

#[cfg(test)]
mod tests {
    use loadline_san_core::ids::{Incarnation, NodeId};

    use super::*;
    use crate::node::leaving::tests::{VOLUME, catalog};

    const ME: Owner = Owner { node: NodeId(1), incarnation: Incarnation(5) };

    fn ordered(catalog: &Catalog, bound: &[u64]) -> usize {
        let alive = (1..=3).map(|node| (node, true)).collect();
        orders(catalog, ME, &bound.iter().copied().collect(), &alive).len()
    }

    fn maintained(in_sync: &[u64], nodes: &[u32]) -> Catalog {
        let mut catalog = catalog(in_sync);
        for node in nodes {
            catalog.nodes.get_mut(node).unwrap().0.maintenance = true;
        }
        catalog
    }

    #[test]
    fn a_volume_is_handed_over_once_to_a_node_with_a_copy_in_sync() {
        assert_eq!(ordered(&maintained(&[1, 2, 3], &[]), &[]), 0, "it is not in maintenance");
        let mut catalog = maintained(&[1, 2, 3], &[1]);
        assert_eq!(ordered(&catalog, &[]), 1);
        catalog.volumes.get_mut(&VOLUME).unwrap().0.attached = Some(2);
        assert_eq!(ordered(&catalog, &[]), 0, "it is ordered already");
    }

    #[test]
    fn a_volume_stays_that_only_this_node_or_another_in_maintenance_can_serve() {
        assert_eq!(ordered(&maintained(&[1], &[1]), &[]), 0);
        assert_eq!(ordered(&maintained(&[1, 2], &[1, 2]), &[]), 0, "they would hand it over for ever");
        assert_eq!(ordered(&maintained(&[1, 2, 3], &[1, 2]), &[]), 1, "to node 3");
        assert_eq!(
            ordered(&maintained(&[1, 2, 3], &[1]), &[VOLUME]),
            0,
            "its clients share memory with the node"
        );
    }
}
