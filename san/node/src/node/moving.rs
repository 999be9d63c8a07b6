//! Copies move away from nodes and devices that are drained or replaced, and to nodes that a person names. And what an interrupted command
//! has left of a volume that was to grow is taken back: like a move, only the volume's owner can do that.
//!
//! ```text
//!   a replica is to leave ─▶ another is made in its stead ─▶ becomes a member ─▶ has everything ─▶ the old one leaves
//! ```
//!
//! What is to be done next follows from the configuration and the volume's record, so that a move that a crash interrupted
//! continues, at the node that owns the volume by then. Of a volume one replica moves at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use loadline_san_core::ids::{NodeId, ReplicaId, VolumeId};
use loadline_san_core::layout::GroupIndex;
use loadline_san_core::placement::{self, DeviceId, NoPlace, Role, place_one};
use loadline_san_core::record::{Record, RecordState};
use loadline_san_core::volume;

use super::Node;
use super::allocation::{blocks_of, devices, new_replica};
use super::manage::{ManageError, growth, no_room, room};
use crate::config::catalog::{Catalog, Device, Replica, ReplicaState, VolumeState, change};
use crate::config::{Change, ConfigError};
use crate::event_loop::command::LoopCommand;
use crate::unusable::Unusable;

/// How long to wait before the next search for a place, after no place was found.
const WAITS: Duration = Duration::from_secs(30);
/// Between two steps.
const STEP: Duration = Duration::from_millis(300);

/// How long after an attempt to take back an interrupted growth the next one is made.
const GROWTH: Duration = Duration::from_secs(5);

/// Volumes that were promised more than their records have, as of a revision: they are searched for only when something has changed.
#[derive(Debug, Default)]
struct Growing {
    revision: Option<u64>,
    volumes: BTreeSet<u64>,
}

impl Growing {
    fn volumes(&mut self, catalog: &Catalog) -> &BTreeSet<u64> {
        if self.revision != Some(catalog.revision) {
            let volumes =
                catalog.volumes.keys().copied().filter(|id| growth::is_left(catalog, *id)).collect();
            *self = Growing { revision: Some(catalog.revision), volumes };
        }
        &self.volumes
    }
}

/// Where a replica may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum To {
    Anywhere,
    Node(u32),
    /// To these devices: with its data, with its log. Where none is named, to any that fits.
    Devices {
        data: Option<u32>,
        log: Option<u32>,
    },
}

impl To {
    /// Whether the replica may have its data, or its log if that is the device's role, on this device. `node_of`: the node of a device.
    fn fits(self, device: &placement::Device, node_of: impl Fn(u32) -> Option<u32>) -> bool {
        match self {
            To::Anywhere => true,
            To::Node(node) => device.node.0 == node,
            To::Devices { log: Some(log), .. } if device.role == Role::Log => device.id.0 == log,
            To::Devices { data: Some(data), .. } if device.role != Role::Log => device.id.0 == data,
            // A log is used by capacity devices of its own node, and its replacement too.
            To::Devices { log: Some(log), .. } => {
                device.role == Role::Capacity && node_of(log) == Some(device.node.0)
            }
            To::Devices { .. } => true,
        }
    }
}

/// The replicas that are to leave where they are, and where to.
pub(super) fn leaving(catalog: &Catalog) -> BTreeMap<u64, To> {
    let replaced: BTreeSet<u64> = catalog.replicas.values().filter_map(|(new, _)| new.instead_of).collect();
    let mut leaving = BTreeMap::new();
    for (id, (replica, _)) in &catalog.replicas {
        if replica.state != ReplicaState::Ready && !replica.gives_way {
            continue;
        }
        let devices = [replica.device, replica.log_device];
        let devices = devices.map(|id| catalog.devices.get(&id).map(|(device, _)| device));
        let by = devices.map(|device| match device {
            Some(Device { draining: true, replaced_by, .. }) => *replaced_by,
            _ => None,
        });
        let drains = devices.iter().flatten().any(|device| device.draining);
        let of_node = catalog.nodes.get(&replica.node).is_some_and(|(node, _)| node.draining);
        let to = if let Some(node) = replica.leave_to {
            To::Node(node)
        } else if by != [None; 2] {
            To::Devices { data: by[0], log: by[1] }
        } else if of_node || drains || replaced.contains(id) {
            To::Anywhere
        } else {
            continue;
        };
        leaving.insert(*id, to);
    }
    leaving
}

/// The replica that is made in the stead of this one, and the version of its entry.
fn successor(catalog: &Catalog, id: u64) -> Option<(u64, &Replica, u64)> {
    let mut of = catalog.replicas.iter().filter(|(_, (new, _))| new.instead_of == Some(id));
    let found = of.find(|(_, (new, _))| new.state != ReplicaState::Dropping);
    found.map(|(id, (new, version))| (*id, new, *version))
}

pub(super) fn is_in_sync(record: &Record, id: u64, replica: &Replica) -> bool {
    record.groups.get(replica.group as usize).is_some_and(|g| g.in_sync.contains(&ReplicaId(id)))
}

/// A replica that is made in the stead of another will not come to be: it cannot be made, or is to leave itself.
fn is_hopeless(catalog: &Catalog, replica: &Replica) -> bool {
    let leaves = |id: u32| catalog.devices.get(&id).is_none_or(|(device, _)| device.draining);
    let node = catalog.nodes.get(&replica.node).map(|(node, _)| node);
    replica.refused.is_some()
        || leaves(replica.device)
        || leaves(replica.log_device)
        || node.is_none_or(|node| node.draining)
}

/// Whether a replica on a device has found that the device has failed.
fn has_failed(catalog: &Catalog, of: u32) -> bool {
    let mut all = catalog.replicas.values();
    all.any(|(replica, _)| matches!(replica.unusable, Some(Unusable::Failed { device, .. }) if device == of))
}

/// Whether what a replica has on one device is of no use without what it had on the other: that one has failed and is to be replaced, and the
/// volume does without the replica.
fn is_useless(catalog: &Catalog, record: &Record, id: u64, replica: &Replica) -> bool {
    let Some(Unusable::Failed { device, .. }) = replica.unusable else { return false };
    let is_replaced = catalog.devices.get(&device).is_none_or(|(device, _)| device.replaced_by.is_some());
    replica.device != replica.log_device && is_replaced && !is_in_sync(record, id, replica)
}

/// Whether a replica is one of its volume's, in sync or not.
fn is_member(record: &Record, id: u64, replica: &Replica) -> bool {
    let group = record.groups.get(replica.group as usize);
    group.is_some_and(|g| g.in_sync.contains(&ReplicaId(id)) || g.departed.contains_key(&ReplicaId(id)))
}

impl Node {
    /// Goes on until the node ends.
    pub(super) async fn move_for_ever(&self) {
        let mut growing = Growing::default();
        let mut tried: BTreeMap<u64, Instant> = BTreeMap::new();
        loop {
            tokio::time::sleep(STEP).await;
            if self.state().store.went_back() {
                continue;
            }
            let (moving, growing, claimed) = {
                let state = self.state();
                let moving = leaving(&state.catalog);
                let volume = |id: &u64| state.catalog.replicas.get(id).map(|(replica, _)| replica.volume);
                let moving: BTreeSet<u64> = moving.keys().filter_map(volume).collect();
                (moving, growing.volumes(&state.catalog).clone(), state.claimed.clone())
            };
            let left = growing.iter().filter(|id| !self.0.under_way.has(**id));
            let volumes: BTreeSet<u64> = left.chain(&moving).copied().collect();
            tried.retain(|_, when| when.elapsed() < GROWTH);
            for id in volumes.union(&claimed) {
                // As it is now: steps before this one may have taken long.
                let catalog = self.state().catalog.clone();
                let Some((volume, _)) = catalog.volumes.get(id) else {
                    self.state().claimed.remove(id);
                    continue;
                };
                let stored = catalog.record(*id);
                let Some(record) = stored.filter(|_| volume.state == VolumeState::Ready) else { continue };
                let moves = volumes.contains(id);
                self.claim(&catalog, *id, moves && volume.attached.is_none(), &record).await;
                let is_owner = record.owner == self.0.me && record.state == RecordState::Active;
                if is_owner && growing.contains(id) && !tried.contains_key(id) {
                    tried.insert(*id, Instant::now());
                    self.end_interrupted_growth(*id, &volume.name).await;
                }
                if moving.contains(id)
                    && is_owner
                    && let Err(why) = self.move_on(&catalog, *id, &record).await
                {
                    tracing::warn!(
                        volume = volume.name,
                        "a copy of volume {} does not move: {why}; the node tries again",
                        volume.name
                    );
                }
            }
            if self.state().catalog.devices.values().all(|(device, _)| device.replaced_by.is_none()) {
                continue;
            }
            let catalog = self.state().catalog.clone();
            if let Err(why) = self.remove_empty_devices(&catalog).await {
                tracing::warn!("{why}");
            }
        }
    }

    /// Takes back what an interrupted command has left of a volume that was to grow, unless a command runs.
    async fn end_interrupted_growth(&self, id: u64, name: &str) {
        let running = self.0.under_way.begin();
        // From here on no command makes it larger.
        if !running.claim().add(id)
            || self.refresh().await.is_err()
            || !growth::is_left(&self.state().catalog, id)
        {
            return;
        }
        match self.end_growth(id).await {
            Ok(()) => tracing::warn!(
                volume = name,
                "volume {name} has not grown, since the command was interrupted: what was made for it is removed"
            ),
            Err(why) => tracing::warn!(
                volume = name,
                "what is left of a command that was to make volume {name} larger cannot be removed: {why}; the node tries again"
            ),
        }
    }

    /// A volume that is not attached is owned by one of its nodes while its copies move.
    async fn claim(&self, catalog: &Catalog, id: u64, wanted: bool, record: &Record) {
        let claimed = self.state().claimed.contains(&id);
        if wanted && !claimed {
            let mut homes: Vec<u32> = record.members().map(|(_, node)| node.0).collect();
            homes.sort_unstable();
            for node in homes {
                if node == self.id() {
                    self.state().claimed.insert(id);
                    self.reopen_volume(id);
                    return;
                }
                let Some((other, _)) = catalog.nodes.get(&node) else { continue };
                if self.answers(other.peer).await {
                    return;
                }
            }
        } else if !wanted && claimed {
            self.state().claimed.remove(&id);
            // A person may have attached it meanwhile.
            let known = self.refresh().await.is_ok();
            let attached = self.state().catalog.volumes.get(&id).is_none_or(|(v, _)| v.attached.is_some());
            if known && !attached {
                self.loop_of(id).give(LoopCommand::Detach(VolumeId(id)));
            }
            self.reopen_volume(id);
        }
    }

    /// Takes the next step of the first replica of a volume that is to leave and can.
    async fn move_on(&self, catalog: &Catalog, id: u64, record: &Record) -> Result<(), ManageError> {
        for (old_id, to) in leaving(catalog) {
            let Some((old, version)) = catalog.replicas.get(&old_id).filter(|(old, _)| old.volume == id)
            else {
                continue;
            };
            let version = *version;
            let moves = match (successor(catalog, old_id), is_member(record, old_id, old)) {
                (None, true) if old.gives_way && is_in_sync(record, old_id, old) => {
                    // It has come back before it was forgotten.
                    let stays = Replica { gives_way: false, ..old.clone() };
                    let stays = change(format!("replica/{old_id}"), Some(version), &stays);
                    self.config().call(move |store| store.commit(&[stays])).await?;
                    false
                }
                (None, true) if old.gives_way => {
                    let (group, replica) = (GroupIndex(old.group), ReplicaId(old_id));
                    self.give_command(id, volume::VolumeCommand::Forget { group, replica }).await?;
                    true
                }
                (None, false) if old.gives_way => self.plan_successor(old_id, to).await?,
                // It has left, and another is there in its stead.
                (Some(new), false) if is_in_sync(record, new.0, new.1) => {
                    self.let_go((old_id, old, version), new).await?;
                    true
                }
                (Some(new), false) if old.gives_way => {
                    self.follow(catalog, record, (old_id, old, version), new).await?
                }
                // It is no member yet: it is being made one.
                (_, false) => false,
                (Some(new), true) => self.follow(catalog, record, (old_id, old, version), new).await?,
                (None, true) => self.plan_successor(old_id, to).await?,
            };
            if moves {
                break;
            }
        }
        Ok(())
    }

    /// Takes the next step of a replica that replaces another. Returns whether the move continues.
    async fn follow(
        &self,
        catalog: &Catalog,
        record: &Record,
        (old_id, old, version): (u64, &Replica, u64),
        (new_id, new, new_version): (u64, &Replica, u64),
    ) -> Result<bool, ManageError> {
        let (group, replica) = (GroupIndex(old.group), ReplicaId(new_id));
        let Some(of_group) = record.groups.get(old.group as usize) else { return Ok(false) };
        if of_group.in_sync.contains(&replica) {
            let old = ReplicaId(old_id);
            let command = match of_group.in_sync.contains(&old) {
                true => volume::VolumeCommand::Remove { group, replica: old, instead: Some(replica) },
                false => volume::VolumeCommand::Forget { group, replica: old },
            };
            self.give_command(new.volume, command).await?;
            return Ok(true);
        }
        let departed = of_group.departed.contains_key(&replica);
        if is_hopeless(catalog, new) {
            if departed {
                self.give_command(new.volume, volume::VolumeCommand::Forget { group, replica }).await?;
                return Ok(true);
            }
            if let Some(why) = &new.refused {
                self.cannot_leave(old_id, old, version, why).await?;
            }
            // Searches for another place, but not at once: it may be the same.
            self.state().waits.insert(old_id, Instant::now());
            let gone = change(format!("replica/{new_id}"), Some(new_version), &new.dropped());
            self.config().call(move |store| store.commit(&[gone])).await?;
            self.reconcile_soon();
            return Ok(false);
        }
        match new.state {
            ReplicaState::Ready if !departed => {
                let home = NodeId(new.node);
                self.give_command(old.volume, volume::VolumeCommand::Add { group, replica, home }).await?;
                Ok(true)
            }
            // It is being copied to. If its node does not answer, others need not wait for it.
            _ => match catalog.nodes.get(&new.node) {
                Some((node, _)) => Ok(self.answers(node.peer).await),
                None => Ok(false),
            },
        }
    }

    async fn give_command(&self, id: u64, command: volume::VolumeCommand) -> Result<(), ManageError> {
        match self.command(id, command).await {
            Some(result) => Ok(result?),
            None => Err(ManageError::TimedOut("the volume does not answer".into())),
        }
    }

    /// Another replica is to be made in the stead of this one. Whether there is a place for it.
    async fn plan_successor(&self, old_id: u64, to: To) -> Result<bool, ManageError> {
        if self.state().waits.get(&old_id).is_some_and(|since| since.elapsed() < WAITS) {
            return Ok(false);
        }
        let alive = self.alive().await;
        let planned = self.config().call(move |store| {
            let catalog = Catalog::read(store)?;
            let Some((old, version)) = catalog.replicas.get(&old_id) else { return Ok(Ok(())) };
            let Some((volume, _)) = catalog.volumes.get(&old.volume) else { return Ok(Ok(())) };
            // What was known when this was decided may be old.
            let record = catalog.record(old.volume);
            let member = record.as_ref().is_some_and(|record| is_member(record, old_id, old));
            if member == old.gives_way
                || successor(&catalog, old_id).is_some()
                || !leaving(&catalog).contains_key(&old_id)
            {
                return Ok(Ok(()));
            }
            let mut devices = devices(&catalog, |node| alive.get(&node) == Some(&true));
            // Made anew at its own node, or because its log leaves, it may have its data on the same device, if that is well.
            let again = matches!(to, To::Devices { data: None, .. }) || to == To::Node(old.node);
            let node_of = |id: u32| catalog.devices.get(&id).map(|(device, _)| device.node);
            for device in &mut devices {
                let may = again || device.id.0 != old.device;
                device.accepts &= to.fits(device, node_of) && may && !has_failed(&catalog, device.id.0);
            }
            let others = catalog.replicas.iter().filter(|(id, (other, _))| {
                let same = other.volume == old.volume && other.group == old.group;
                same && **id != old_id && other.state != ReplicaState::Dropping
            });
            let kept: Vec<DeviceId> = others.map(|(_, (other, _))| DeviceId(other.device)).collect();
            let need = room::need_of(&catalog, volume, blocks_of(&catalog, old));
            // If the old one gives way, what it has on the device that is well is room for the other.
            let find = |gives_way: bool| {
                let mut devices = devices.clone();
                for device in devices.iter_mut().filter(|_| gives_way) {
                    let data = if device.id.0 == old.device { need.data } else { 0 };
                    let log = if device.id.0 == old.log_device { need.log + need.cache } else { 0 };
                    device.promised = device.promised.saturating_sub(data + log);
                }
                place_one(&devices, old.group as usize, need, &kept)
            };
            let is_useless = || record.is_some_and(|record| is_useless(&catalog, &record, old_id, old));
            let place = match find(old.gives_way) {
                Ok(place) => place,
                Err(_) if !old.gives_way && is_useless() && find(true).is_ok() => {
                    let next = Replica { gives_way: true, refused: None, ..old.clone() };
                    store.commit(&[change(format!("replica/{old_id}"), Some(*version), &next)])?;
                    return Ok(Ok(()));
                }
                Err(why) => return Ok(Err(why)),
            };
            let (mut ids, take) = catalog.take_ids(1);
            let id = ids.next().expect("one was taken");
            // The old one stays as it is, or gives way: if it does not, this is planned anew.
            let state = if old.gives_way { ReplicaState::Dropping } else { old.state };
            let unchanged = change(
                format!("replica/{old_id}"),
                Some(*version),
                &Replica { state, refused: None, ..old.clone() },
            );
            let made = new_replica(&catalog, old.volume, volume, id, (old.group, place), Some(old_id));
            store.commit(&[take, unchanged, made])?;
            Ok(Ok(()))
        });
        let planned: Result<(), NoPlace> = planned.await?;
        if let Err(why) = &planned {
            let old = self.state().catalog.replicas.get(&old_id).cloned();
            if let Some((old, version)) = old {
                self.cannot_leave(old_id, &old, version, &no_room::of_copy(why, old.log_bytes)).await?;
            }
        }
        self.reconcile_soon();
        Ok(planned.is_ok())
    }

    /// Records why a replica stays where it is, for a status.
    async fn cannot_leave(&self, id: u64, old: &Replica, version: u64, why: &str) -> Result<(), ManageError> {
        if old.refused.as_deref() != Some(why) {
            let next = Replica { refused: Some(why.to_owned()), ..old.clone() };
            let recorded = change(format!("replica/{id}"), Some(version), &next);
            self.config().call(move |store| store.commit(&[recorded])).await?;
        }
        Ok(())
    }

    /// A replica is no member any more: its node removes it, and the other is one like all.
    async fn let_go(
        &self,
        (old_id, old, version): (u64, &Replica, u64),
        (new_id, new, new_version): (u64, &Replica, u64),
    ) -> Result<(), ManageError> {
        let gone = old.dropped();
        let next = Replica { instead_of: None, ..new.clone() };
        let changes = [
            change(format!("replica/{old_id}"), Some(version), &gone),
            change(format!("replica/{new_id}"), Some(new_version), &next),
        ];
        self.config().call(move |store| store.commit(&changes)).await?;
        self.reconcile_soon();
        Ok(())
    }

    /// A device of this node that was replaced, and has nothing any more, is given back.
    async fn remove_empty_devices(&self, catalog: &Catalog) -> Result<(), ConfigError> {
        for (id, (device, version)) in &catalog.devices {
            let device_id = *id;
            if device.node != self.id() || device.replaced_by.is_none() {
                continue;
            }
            let here: Vec<_> = catalog.replicas.iter().filter(|(_, (r, _))| r.is_on(device_id)).collect();
            // Where nothing can be removed from it any more, that it is there no more is enough; and that its other device has nothing of it.
            let cannot = |id: &u64, replica: &Replica| {
                let state = self.state();
                let mut others =
                    [replica.device, replica.log_device].into_iter().filter(|of| *of != device_id);
                let is_left = others.any(|of| state.may_hold(of, *id, replica.key));
                !is_left && (state.broken.contains_key(&device_id) || state.unopened.contains_key(id))
            };
            let is_dropped = |r: &Replica| r.state == ReplicaState::Dropping && !r.gives_way;
            let gone = here.iter().all(|(id, (r, _))| is_dropped(r) && cannot(id, r));
            if !gone {
                continue;
            }
            let removed = |key: String, version: u64| Change { key, expected: Some(version), value: None };
            let changes: Vec<Change> =
                here.iter().map(|(id, (_, version))| removed(format!("replica/{id}"), *version)).collect();
            let device = removed(format!("device/{id}"), *version);
            if self.config().each(changes).await? {
                self.config().call(move |store| store.commit(&[device])).await?;
            }
            self.reconcile_soon();
        }
        Ok(())
    }
}
