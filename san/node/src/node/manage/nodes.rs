//! Nodes and devices that are to be empty, and copies that are to be elsewhere.

use loadline_san_core::placement::place_one;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::volumes::unknown_node;
use super::{AddDevice, ManageError, listed, no_room, room};
use crate::config::catalog::{Catalog, Device, Node as NodeEntry, Replica, ReplicaState, change};
use crate::config::steps;
use crate::config::{Change, ConfigError, ConfigStore};
use crate::node::moving::is_in_sync;
use crate::node::{Node, NodeError, allocation, reach};

/// A node is to be empty, or not any more.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Drain {
    /// It is not to be empty any more: what has not left stays.
    #[serde(default)]
    pub stop: bool,
}

/// The copies of a volume that one node has are to be at another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Move {
    /// The node that has them.
    pub from: String,
    /// The one that is to have them.
    pub to: String,
}

impl Node {
    /// Renews the certificate of this node. What an older one has proved ends a few seconds later.
    pub async fn renew_node(&self, name: &str) -> Result<(), ManageError> {
        self.refresh().await?;
        let catalog = self.state().catalog.clone();
        let (id, node) = catalog.node(name).ok_or_else(|| unknown_node(&catalog, name))?;
        if id != self.id() {
            return Err(ManageError::Elsewhere { name: node.name.clone(), api: node.api });
        }
        if self.trust().is_none() {
            return Err(ManageError::Wrong(
                "the nodes of this cluster have no certificates, since it was made for one machine".into(),
            ));
        }
        match self.renew_certificate().await {
            Ok(()) => Ok(()),
            Err(NodeError::Config(error)) => Err(error.into()),
            Err(error) => Err(ManageError::Wrong(format!("the certificate is not renewed: {error}"))),
        }
    }

    /// This node is to be restarted: it hands its volumes over, and then its process is replaced by a new one of the program that is installed
    /// now. The order is carried out when this has been answered. Returns the incarnation of the process that ends.
    pub async fn restart_node(&self, name: &str) -> Result<u64, ManageError> {
        self.refresh().await?;
        let catalog = self.state().catalog.clone();
        let (id, node) = catalog.node(name).ok_or_else(|| unknown_node(&catalog, name))?;
        if id != self.id() {
            return Err(ManageError::Elsewhere { name: node.name.clone(), api: node.api });
        }
        for (_, (of, _)) in catalog.nodes.iter().filter(|(other, (of, _))| **other != id && of.stopping) {
            if self.answers(of.peer).await {
                return Err(ManageError::InUse(format!(
                    "node {name} is not restarted: node {} is stopping or restarting. Wait until it is back",
                    of.name
                )));
            }
        }
        self.0.restart.notify_one();
        Ok(self.0.me.incarnation.0)
    }

    /// A node is to be empty: what it has goes elsewhere, and nothing new comes.
    pub async fn drain_node(&self, name: &str, drain: Drain) -> Result<(), ManageError> {
        self.change_node(name, move |node| node.draining = !drain.stop).await
    }

    /// Changes the entry of a node.
    pub(super) async fn change_node(
        &self,
        name: &str,
        change_it: impl Fn(&mut NodeEntry) + Send + 'static,
    ) -> Result<(), ManageError> {
        self.refresh().await?;
        let wanted = name.to_owned();
        let set = self.config().call(move |store| {
            for _ in 0..16 {
                let catalog = Catalog::read(store)?;
                let Some((id, _)) = catalog.node(&wanted) else {
                    return Ok(Err(unknown_node(&catalog, &wanted)));
                };
                let (mut next, version) = catalog.nodes[&id].clone();
                change_it(&mut next);
                if store.commit(&[change(format!("node/{id}"), Some(version), &next)])? {
                    return Ok(Ok(()));
                }
            }
            Err(ConfigError::Contended)
        });
        set.await??;
        self.reconcile_soon();
        Ok(())
    }

    /// A node that has nothing is no part of the cluster any more.
    pub async fn remove_node(&self, name: &str) -> Result<(), ManageError> {
        let name = name.to_owned();
        let removed = self.config().call(move |store| remove(store, &name));
        removed.await??;
        self.reconcile_soon();
        Ok(())
    }

    /// What a device of this node has goes to a new one, whatever it was to be replaced by before; when it has nothing any more, it is no part of the cluster. The new
    /// one's id.
    pub async fn replace_device(&self, id: u32, with: AddDevice) -> Result<u32, ManageError> {
        self.refresh().await?;
        let (device, node) = {
            let state = self.state();
            let devices = &state.catalog.devices;
            let device =
                devices.get(&id).map(|(device, _)| device.clone()).ok_or_else(|| ManageError::Unknown {
                    kind: "device",
                    name: id.to_string(),
                    are: listed(devices.keys().map(ToString::to_string)),
                })?;
            let node = state.catalog.nodes.get(&device.node).map(|(node, _)| node.clone());
            (device, node)
        };
        if let Some(node) = node.filter(|_| device.node != self.id()) {
            return Err(ManageError::Elsewhere { name: node.name, api: node.api });
        }
        if with.role.is_some_and(|role| role != device.role) {
            return Err(ManageError::Wrong(format!(
                "device {id} has the role {}, and a device that replaces it has the same role: leave out the role",
                device.role.name()
            )));
        }
        let by = self.add_device(AddDevice { role: Some(device.role), ..with }).await?;
        let set = self.config().call(move |store| {
            for _ in 0..16 {
                let catalog = Catalog::read(store)?;
                let Some((device, version)) = catalog.devices.get(&id) else { return Ok(()) };
                let next = Device { draining: true, replaced_by: Some(by), ..device.clone() };
                if store.commit(&[change(format!("device/{id}"), Some(*version), &next)])? {
                    return Ok(());
                }
            }
            Err(ConfigError::Contended)
        });
        set.await?;
        self.reconcile_soon();
        Ok(by)
    }

    /// The copies of a volume that one node has are to be at another.
    pub async fn move_volume(&self, name: &str, to: Move) -> Result<(), ManageError> {
        self.refresh().await?;
        let (id, _) = self.volume(name)?;
        let name = name.to_owned();
        let set = self.config().call(move |store| {
            for _ in 0..16 {
                let catalog = Catalog::read(store)?;
                let ids = [&to.from, &to.to].map(|name| catalog.node(name).map(|(id, _)| id).ok_or(name));
                let (from, into) = match ids {
                    [Ok(from), Ok(into)] => (from, into),
                    [Err(name), _] | [_, Err(name)] => return Ok(Err(unknown_node(&catalog, name))),
                };
                let of = |node: u32| {
                    let replicas =
                        catalog.replicas.iter().filter(move |(_, (r, _))| r.volume == id && r.node == node);
                    replicas.filter(|(_, (r, _))| r.state == ReplicaState::Ready)
                };
                let wrong = |why: String| Ok(Err(ManageError::Wrong(why)));
                if of(from).next().is_none() {
                    return wrong(format!("node {} has no copy of volume {name}", to.from));
                }
                let record = catalog.record(id);
                // At the node where it is, only a copy is made anew that is no good.
                let moves = |(id, (r, _)): &(&u64, &(Replica, u64))| {
                    from != into
                        || r.unusable.is_some()
                        || record.as_ref().is_some_and(|record| !is_in_sync(record, **id, r))
                };
                let Some((_, (one, _))) = of(from).find(moves) else {
                    return wrong(format!(
                        "the copy at node {} is in sync, so the node does not make it anew: a node makes a copy anew only if \
                         the copy is damaged, failed or away. To move the copy, name another node with --to",
                        to.from
                    ));
                };
                if from != into
                    && let Some((_, (there, _))) =
                        of(into).find(|(_, (r, _))| of(from).any(|(_, (o, _))| o.group == r.group))
                {
                    return wrong(format!(
                        "node {} already has a copy of volume {name} (of its group {}), and the copies of the same data must be on \
                         different nodes: name another node with --to",
                        to.to, there.group
                    ));
                }
                let mut devices = allocation::devices(&catalog, |_| true);
                devices.iter_mut().for_each(|device| device.accepts &= device.node.0 == into);
                let blocks = allocation::blocks_of(&catalog, one);
                let Some((volume, _)) = catalog.volumes.get(&id) else { return Ok(Ok(())) };
                let need = room::need_of(&catalog, volume, blocks);
                if let Err(why) = place_one(&devices, one.group as usize, need, &[]) {
                    let why = no_room::of_copy(&why, one.log_bytes);
                    return wrong(format!("there is no place for the copy at node {}: {why}", to.to));
                }
                let leave = |(id, (r, version)): (&u64, &(Replica, u64))| {
                    let next = Replica { leave_to: Some(into), refused: None, ..r.clone() };
                    change(format!("replica/{id}"), Some(*version), &next)
                };
                let changes: Vec<Change> = of(from).filter(moves).map(leave).collect();
                if steps::each(store, changes)? {
                    return Ok(Ok(()));
                }
            }
            Err(ConfigError::Contended)
        });
        set.await??;
        self.reconcile_soon();
        Ok(())
    }
}

/// Removes a node that has no replicas, and gets none by a plan.
fn remove(store: &mut dyn ConfigStore, name: &str) -> Result<Result<(), ManageError>, ConfigError> {
    for _ in 0..16 {
        let catalog = Catalog::read(store)?;
        let Some((id, _)) = catalog.node(name) else { return Ok(Err(unknown_node(&catalog, name))) };
        let here: Vec<_> = catalog.replicas.iter().filter(|(_, (r, _))| r.node == id).collect();
        let left = here.iter().filter(|(_, (r, _))| r.state != ReplicaState::Dropping).count();
        let is_here = |device: &u32| catalog.devices.get(device).is_some_and(|(device, _)| device.node == id);
        let planned = catalog.plans.values().flat_map(|(plan, _)| &plan.replicas);
        let planned =
            planned.filter(|of| is_here(&of.device) && !catalog.replicas.contains_key(&of.id)).count();
        if planned > 0 {
            let copies = if planned == 1 { "copy" } else { "copies" };
            return Ok(Err(ManageError::InUse(format!(
                "a command makes {planned} more {copies} at node {name}: wait until the volume is ready, and run \
                 'loadline node drain {name}' then"
            ))));
        }
        if left > 0 {
            let left =
                if left == 1 { "1 copy of a volume".into() } else { format!("{left} copies of volumes") };
            return Ok(Err(ManageError::InUse(format!(
                "node {name} still has {left}: run 'loadline node drain {name}' first, which also works if \
                 the node does not answer"
            ))));
        }
        let attached: Vec<String> = catalog
            .volumes
            .values()
            .filter(|(volume, _)| volume.attached == Some(id))
            .map(|(volume, _)| volume.name.clone())
            .collect();
        if !attached.is_empty() {
            return Ok(Err(ManageError::InUse(format!(
                "node {name} cannot be removed while volumes are attached at it (there {}): detach these volumes, or \
                 attach them at another node",
                listed(attached)
            ))));
        }
        let removed = |key: String, version: u64| Change { key, expected: Some(version), value: None };
        // Whoever plans at the same time finds that the ids were taken, and reads that the devices are gone.
        let mut parts = vec![catalog.take_ids(0).1];
        let devices = catalog.devices.iter().filter(|(_, (device, _))| device.node == id);
        parts.extend(devices.map(|(id, (_, version))| removed(format!("device/{id}"), *version)));
        parts.extend(here.iter().map(|(id, (_, v))| removed(format!("replica/{id}"), *v)));
        parts.extend(reach::forget(store, id)?);
        parts.extend(catalog.makers.get(&id).map(|version| removed(format!("maker/{id}"), *version)));
        let node = removed(format!("node/{id}"), catalog.nodes[&id].1);
        if steps::each(store, parts)? && store.commit(&[node])? {
            return Ok(Ok(()));
        }
    }
    Err(ConfigError::Contended)
}

#[cfg(test)]
mod tests;
