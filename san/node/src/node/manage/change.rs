//! What people decide about a volume that is there: a greater size.

use loadline_base::units::ByteSize;
use loadline_san_core::ids::{NodeId, ReplicaId};
use loadline_san_core::layout::{BLOCK, GroupIndex, Layout};
use loadline_san_core::placement::{Device as Place, place};
use loadline_san_core::record::Record;
use loadline_san_core::volume::{CommandError, VolumeCommand};
use loadline_san_protocol::record;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::no_room::{self, Wanted};
use super::{ManageError, room};
use crate::config::ConfigError;
use crate::config::catalog::{Catalog, Replica, ReplicaState, Volume, VolumeState, change};
use crate::config::steps::{self, Made};
use crate::node::allocation::{blocks_of, devices, new_replica};
use crate::node::{CONFIG_POLL, Node};

/// A size that a volume is to have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Resize {
    /// Bytes: more than it has.
    pub bytes: u64,
}

impl Node {
    pub(super) fn record_of(&self, id: u64) -> Result<Record, ManageError> {
        let stored = self.state().catalog.records.get(&id).cloned();
        let stored = stored.ok_or_else(|| ManageError::Wrong("the volume is being made".into()))?;
        record::decode(&stored.value)
            .map_err(|why| ManageError::Wrong(format!("its record cannot be: {why}")))
    }

    /// The owner of a volume does this.
    pub(super) async fn at_owner(&self, name: &str, record: &Record) -> Result<(), ManageError> {
        if record.owner == self.0.me {
            return Ok(());
        }
        let owner = self.state().catalog.nodes.get(&record.owner.node.0).map(|(node, _)| node.clone());
        match owner {
            Some(owner) if owner.name != self.name() && self.answers(owner.peer).await => {
                Err(ManageError::Elsewhere { name: owner.name, api: owner.api })
            }
            _ => Err(ManageError::InUse(format!("no node owns volume {name} now: attach the volume first"))),
        }
    }

    pub(super) async fn carry_out_command(&self, id: u64, command: VolumeCommand) -> Result<(), ManageError> {
        match self.command(id, command).await {
            Some(result) => Ok(result?),
            None => Err(ManageError::TimedOut(
                "the outcome is not known: check the volume with 'loadline volume show'".into(),
            )),
        }
    }

    /// Makes a volume larger. Its clients see that when they connect again.
    pub async fn resize_volume(&self, name: &str, resize: Resize) -> Result<(), ManageError> {
        self.refresh().await?;
        let (id, _) = self.volume(name)?;
        let record = self.record_of(id)?;
        self.at_owner(name, &record).await?;
        let blocks = resize.bytes.div_ceil(BLOCK);
        if blocks <= record.blocks {
            return Err(ManageError::Wrong(format!(
                "volume {name} has {}, and cannot have {}: a volume only grows",
                ByteSize(record.blocks * BLOCK),
                ByteSize(resize.bytes)
            )));
        }
        let layout = record.layout;
        let groups = layout.groups(blocks).map_err(|why| ManageError::Wrong(why.to_string()))?;
        let old = record.groups.len() as u32;
        let planned = self.plan_groups(id, layout, old..groups, blocks).await?;
        self.reconcile_soon();
        let ids: Vec<u64> = planned.iter().flatten().map(|(replica, _)| replica.0).collect();
        let made = self.made(|_| ids.clone()).await;
        if let Err(why) = made {
            self.grows_no_more(id, blocks).await?;
            self.drop_replicas(ids).await?;
            return Err(why);
        }
        // Nodes read the configuration, and their stores count with the new size, before anything is written there.
        tokio::time::sleep(2 * CONFIG_POLL).await;
        if let Err(why) = self.carry_out_command(id, VolumeCommand::Grow { blocks, added: planned }).await {
            // Where it is not known, they may be members.
            if !matches!(why, ManageError::TimedOut(_) | ManageError::Command(CommandError::Superseded)) {
                self.grows_no_more(id, blocks).await?;
                self.drop_replicas(ids).await?;
            }
            return Err(why);
        }
        self.reconcile_soon();
        Ok(())
    }

    /// A volume that was to grow to so many blocks did not: what it was promised is free again.
    async fn grows_no_more(&self, id: u64, blocks: u64) -> Result<(), ManageError> {
        let taken_back = self.config().call(move |store| {
            for _ in 0..16 {
                let catalog = Catalog::read(store)?;
                let Some((volume, version)) = catalog.volumes.get(&id) else { return Ok(()) };
                let record = catalog.records.get(&id).and_then(|stored| record::decode(&stored.value).ok());
                let Some(record) = record.filter(|_| volume.blocks == blocks) else { return Ok(()) };
                let next = Volume { blocks: record.blocks, ..volume.clone() };
                if store.commit(&[change(format!("volume/{id}"), Some(*version), &next)])? {
                    return Ok(());
                }
            }
            Err(ConfigError::Contended)
        });
        Ok(taken_back.await?)
    }

    /// These replicas are not needed: their nodes remove them.
    pub(super) async fn drop_replicas(&self, ids: Vec<u64>) -> Result<(), ManageError> {
        let dropped = self.config().call(move |store| {
            for _ in 0..16 {
                let catalog = Catalog::read(store)?;
                let mut changes = Vec::new();
                for id in &ids {
                    if let Some((replica, version)) = catalog.replicas.get(id)
                        && replica.state != ReplicaState::Dropping
                    {
                        let dropping = Replica { state: ReplicaState::Dropping, ..replica.clone() };
                        changes.push(change(format!("replica/{id}"), Some(*version), &dropping));
                    }
                }
                if steps::each(store, &changes)? {
                    return Ok(());
                }
            }
            Err(ConfigError::Contended)
        });
        self.reconcile_soon();
        Ok(dropped.await?)
    }

    /// Writes down which replicas new groups are to have.
    async fn plan_groups(
        &self,
        id: u64,
        layout: Layout,
        groups: std::ops::Range<u32>,
        blocks: u64,
    ) -> Result<Vec<Vec<(ReplicaId, NodeId)>>, ManageError> {
        let alive = self.alive().await;
        let at = NodeId(self.id());
        let planned = self.config().call(move |store| {
            for _ in 0..16 {
                let catalog = Catalog::read(store)?;
                let Some((volume, version)) = catalog.volumes.get(&id) else {
                    return Ok(Err(ManageError::Wrong("the volume was deleted meanwhile".into())));
                };
                let devices = devices(&catalog, |node| alive.get(&node) == Some(&true));
                let devices = match with_growth(&catalog, devices, id, layout, blocks) {
                    Ok(devices) => devices,
                    Err(why) => return Ok(Err(why)),
                };
                // From here on the room is promised, and nodes count with it. Not if the volume is deleted at the same time.
                let larger = Volume { blocks: volume.blocks.max(blocks), ..volume.clone() };
                let grows = change(format!("volume/{id}"), Some(*version), &larger);
                if groups.is_empty() {
                    if store.commit(&[grows])? {
                        return Ok(Ok(Vec::new()));
                    }
                    continue;
                }
                let log = volume.log_bytes;
                let of_groups: Vec<u64> =
                    groups.clone().map(|index| layout.blocks_in(GroupIndex(index), blocks)).collect();
                let sizes: Vec<u64> =
                    of_groups.iter().map(|blocks| room::need_anywhere(&catalog, *blocks, log)).collect();
                let placed = match place(&devices, &sizes, volume.copies as usize, Some(at)) {
                    Ok(placed) => placed,
                    Err(why) => {
                        let copies = volume.copies as usize;
                        let wanted =
                            Wanted { name: &volume.name, copies, groups: &of_groups, log_bytes: log };
                        return Ok(Err(no_room::of_volume(why, &catalog, &devices, wanted)));
                    }
                };
                let (mut ids, take) = catalog.take_ids(placed.iter().map(Vec::len).sum::<usize>() as u64);
                let (first, mut replicas) = (vec![take, grows], Vec::new());
                let mut planned = Vec::new();
                for (group, devices) in groups.clone().zip(&placed) {
                    let mut of_group = Vec::new();
                    for device in devices {
                        let replica = ids.next().expect("as many were taken");
                        replicas.push(new_replica(&catalog, id, volume, replica, (group, *device), None));
                        of_group.push((ReplicaId(replica), NodeId(catalog.devices[&device.0].0.node)));
                    }
                    planned.push(of_group);
                }
                match steps::extend(store, first, replicas, &format!("volume/{id}"), VolumeState::may_grow)? {
                    Made::All => return Ok(Ok(planned)),
                    Made::Nothing => {}
                    Made::Stopped => {
                        return Ok(Err(ManageError::Wrong("the volume was deleted meanwhile".into())));
                    }
                }
            }
            Err(ConfigError::Contended)
        });
        planned.await?
    }
}

/// The devices as they are when the replicas of a volume have grown with it to so many blocks; an error if they have no room
/// for that.
fn with_growth(
    catalog: &Catalog,
    mut devices: Vec<Place>,
    id: u64,
    layout: Layout,
    blocks: u64,
) -> Result<Vec<Place>, ManageError> {
    let stays = |replica: &Replica| replica.volume == id && replica.state != ReplicaState::Dropping;
    for (replica, _) in catalog.replicas.values().filter(|(replica, _)| stays(replica)) {
        let Some((device, _)) = catalog.devices.get(&replica.device) else { continue };
        let Some(place) = devices.iter_mut().find(|place| place.id.0 == replica.device) else { continue };
        let need = |blocks| room::need(blocks, replica.log_bytes, device.bytes);
        let now = need(blocks_of(catalog, replica));
        let more = need(layout.blocks_in(GroupIndex(replica.group), blocks)).saturating_sub(now);
        let free = place.capacity.saturating_sub(place.promised);
        if more > free {
            return Err(ManageError::NoRoom(format!(
                "the copy on device {} would need {} more, but the device has only {} free: add a device and move the copy to \
                 it, or choose a smaller size",
                replica.device,
                no_room::size(more * BLOCK),
                no_room::size(free * BLOCK)
            )));
        }
        place.promised += more;
    }
    Ok(devices)
}
