//! Logical units of SCSI: what the loops know of each volume that initiators reach, and changes of the configuration that they ask for.
//!
//! Persistent reservations are kept in the configuration under `reservation/<volume>`, so they survive the owner. See rule U1 in
//! `event_loop/units` for how an owner has all of them before it serves.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use loadline_san_core::ids::VolumeId;
use loadline_san_core::layout::BLOCK;
use loadline_san_export::front_ends::Protocol;
use loadline_san_export::scsi::reservations::Reservations;
use loadline_san_export::scsi::task::{Change, ChangeFailed, LONGEST_CHANGE};
use loadline_san_export::scsi::unit::{About, AccessState, Port};

use super::Node;
use crate::config::ConfigError;
use crate::config::catalog::{Catalog, VolumeState, change};
use crate::event_loop::command::LoopCommand;
use crate::event_loop::most_bytes;

/// How long after a read of the configuration has failed the next one begins.
const RETRY: Duration = Duration::from_millis(100);
/// Numbers of target port groups: one less than this, a prime, so that nodes seldom have the same.
const GROUPS: u32 = 65_521;

/// What loops know of logical units, as they were told.
pub(super) type KnownUnits = BTreeMap<u64, (About, (Reservations, u64))>;

/// The target port group of a node, and the tag of its portal group.
pub(super) fn group_of(node: u32) -> u16 {
    (node % GROUPS) as u16 + 1
}

/// The portals at which initiators reach volumes, each with its group.
pub(super) fn portals(catalog: &Catalog) -> Vec<(SocketAddr, u16)> {
    let nodes = catalog.nodes.iter();
    nodes.filter_map(|(id, (node, _))| Some((node.endpoint(Protocol::Iscsi)?, group_of(*id)))).collect()
}

/// The reservations of a volume, and their version; none, if nothing is kept.
fn reservations_of(catalog: &Catalog, id: u64) -> (Reservations, u64) {
    catalog.reservations.get(&id).cloned().unwrap_or_default()
}

/// The logical unit of a volume as a catalog has it, at this node; `None` if initiators do not reach it.
fn unit_of(catalog: &Catalog, id: u64, me: u32) -> Option<(About, (Reservations, u64))> {
    let (cluster, _) = catalog.cluster.as_ref()?;
    let (volume, _) = catalog.volumes.get(&id)?;
    if volume.attached.is_none() || volume.state != VolumeState::Ready {
        return None;
    }
    let record = catalog.record(id)?;
    let ports = catalog.nodes.keys().map(|node| {
        let owns = record.owner.node.0 == *node;
        let state = if owns { AccessState::ActiveOptimized } else { AccessState::Standby };
        (group_of(*node), Port { group: group_of(*node), state })
    });
    // Two nodes with one number are one group.
    let ports: BTreeMap<u16, Port> = ports.collect();
    let about = About {
        cluster: u128::from_str_radix(&cluster.id, 16).ok()?,
        volume: id,
        name: volume.name.clone(),
        bytes: record.blocks * BLOCK,
        most: most_bytes(volume.log_bytes),
        ports: ports.into_values().collect(),
        here: group_of(me),
    };
    Some((about, reservations_of(catalog, id)))
}

impl Node {
    /// Tells the loops about logical units that have changed.
    pub(super) fn follow_units(&self) {
        let ids: Vec<u64> = {
            let state = self.state();
            state.catalog.volumes.keys().chain(state.units.keys()).copied().collect()
        };
        ids.into_iter().for_each(|id| self.tell_unit(id, None));
    }

    /// Tells the loop of a volume about its logical unit, if it has changed, or if the loop has asked for it by this number.
    pub(super) fn tell_unit(&self, id: u64, wanted: Option<u64>) {
        // While the state is locked: what is told later was known later.
        let mut state = self.state();
        let now = unit_of(&state.catalog, id, self.id());
        let is_known = state.units.get(&id) == now.as_ref();
        if is_known && (wanted.is_none() || now.is_none()) {
            return;
        }
        let orders = self.loop_of(id);
        match now {
            Some((about, reservations)) => {
                state.units.insert(id, (about.clone(), reservations.clone()));
                let (about, reservations) = (Box::new(about), Box::new(reservations));
                orders.give(LoopCommand::Unit(VolumeId(id), about, reservations, wanted));
            }
            None => {
                state.units.remove(&id);
                orders.give(LoopCommand::NoUnit(VolumeId(id)));
            }
        }
    }

    /// A loop owns a volume, and asks by this number for the reservations of its logical unit.
    pub(super) fn unit_wanted(&self, id: u64, number: u64) {
        let this = self.clone();
        tokio::spawn(async move {
            while this.refresh().await.is_err() {
                if !this.state().volumes.contains_key(&id) {
                    return;
                }
                tokio::time::sleep(RETRY).await;
            }
            this.tell_unit(id, Some(number));
        });
    }

    /// A client of a logical unit wants a change.
    pub(super) fn unit_change(&self, id: u64, client: u32, ticket: u32, change: Change) {
        let this = self.clone();
        tokio::spawn(async move {
            // One that takes longer is answered as if it were not made, and may still be made: by a compare with all that was there before, so
            // never over what is newer.
            let changed = tokio::time::timeout(LONGEST_CHANGE, this.change_unit(id, change)).await;
            let result = changed.unwrap_or(Err(ChangeFailed::Unavailable));
            this.loop_of(id).give(LoopCommand::UnitChanged(client, ticket, result));
        });
    }

    async fn change_unit(&self, id: u64, change: Change) -> Result<(), ChangeFailed> {
        match change {
            Change::Reserve { from, to, restricts } => {
                self.change_reservations(id, from, to, restricts).await
            }
            Change::Activate(group) if group == group_of(self.id()) => {
                let name = self.state().catalog.volumes.get(&id).map(|(volume, _)| volume.name.clone());
                let name = name.ok_or(ChangeFailed::Unavailable)?;
                self.refresh().await.map_err(|_| ChangeFailed::Unavailable)?;
                // An attach would end the connections of all clients.
                if self.record(id).is_some_and(|record| record.owner == self.0.me) {
                    return Ok(());
                }
                if !self.all_clients_follow(id).await {
                    tracing::info!(
                        volume = name,
                        "an initiator wants volume {name} at this node, and the volume stays: other clients of its owner have no session here"
                    );
                    return Err(ChangeFailed::Unavailable);
                }
                let own = self.name().to_owned();
                tracing::info!(volume = name, "an initiator moves volume {name} to this node");
                let attached = self.attach_volume(&name, Some(&own), None).await;
                attached.map(drop).map_err(|_| ChangeFailed::Unavailable)
            }
            Change::Activate(_) => Err(ChangeFailed::Unavailable),
        }
    }

    /// Changes the reservations of a volume. A change that takes something from other sessions is confirmed only if this node owned the
    /// volume after the configuration had it (rule U1), or if the owner obeys it (rule U3).
    async fn change_reservations(
        &self,
        id: u64,
        from: Reservations,
        to: Reservations,
        restricts: bool,
    ) -> Result<(), ChangeFailed> {
        let committed = self.config().call(move |store| {
            let catalog = Catalog::read(store)?;
            if reservations_of(&catalog, id).0 != from || !catalog.volumes.contains_key(&id) {
                return Ok(false);
            }
            // It may be asked for again, since it could not be confirmed.
            if from == to {
                return Ok(true);
            }
            let version = catalog.reservations.get(&id).map(|(_, version)| *version);
            store.commit(&[change(format!("reservation/{id}"), version, &to)])
        });
        let committed = committed.await.map_err(|_: ConfigError| ChangeFailed::Unavailable)?;
        self.refresh().await.map_err(|_| ChangeFailed::Unavailable)?;
        self.tell_unit(id, None);
        if !committed {
            return Err(ChangeFailed::Differs);
        }
        if restricts {
            let (_, version) = reservations_of(&self.state().catalog, id);
            self.until_obeyed(id, version).await?;
        }
        Ok(())
    }

    /// Waits until each command that is under way at the owner of a volume began when this version of the reservations was known. To be
    /// called when the configuration has it, and with a limit.
    async fn until_obeyed(&self, id: u64, version: u64) -> Result<(), ChangeFailed> {
        loop {
            let owner = self.record(id).ok_or(ChangeFailed::Unavailable)?.owner;
            if owner == self.0.me {
                return Ok(());
            }
            // Its report is of the life that owned the volume, or of a later one, which is no owner.
            if let Some(Ok(there)) = self.report_of(owner.node.0).await
                && there.incarnation == owner.incarnation.0
                && there
                    .volume(id)
                    .is_some_and(|volume| volume.obeyed.is_some_and(|obeyed| obeyed >= version))
            {
                return Ok(());
            }
            tokio::time::sleep(RETRY).await;
            self.refresh().await.map_err(|_| ChangeFailed::Unavailable)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_groups_that_are_not_zero() {
        for node in [0, 1, 7, GROUPS - 1, GROUPS, u32::MAX] {
            assert_ne!(group_of(node), 0);
        }
        assert_ne!(group_of(1), group_of(2));
    }
}
