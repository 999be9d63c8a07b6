//! How everything is.

use std::collections::BTreeMap;

use loadline_san_core::ids::ReplicaId;
use loadline_san_core::layout::BLOCK;
use loadline_san_core::record::{Record, State as RecordState};
use loadline_san_core::volume::Status;
use loadline_san_protocol::record;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::volumes::LEAST_LOG;
use super::{ManageError, room};
use crate::config::catalog::{Catalog, ReplicaState, Volume, VolumeState};
use crate::node::Node;
use crate::node::moving::{To, leaving};

/// How well something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// All copies that it is to have are in sync.
    Healthy,
    /// Copies are missing, and are coming back.
    Resyncing,
    /// Copies are missing.
    Degraded,
    /// It is attached, and no node serves it; or its writes wait, as fewer copies are in sync than its policy asks for.
    Waiting,
}

/// A volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VolumeView {
    /// Its name.
    pub name: String,
    /// Bytes.
    pub bytes: u64,
    /// Copies that it is to have.
    pub copies: u32,
    /// Copies that must be in sync for a write to begin.
    pub least: u32,
    /// Stripes.
    pub stripes: u32,
    /// How well it is; nothing while it is being made.
    pub health: Option<Health>,
    /// Copies in sync, of the group that has the fewest.
    pub in_sync: u32,
    /// Where it is attached.
    pub attached: Option<String>,
    /// The node that owns it.
    pub owner: Option<String>,
    /// The epoch of its record.
    pub epoch: u64,
    /// Its replicas.
    pub replicas: Vec<ReplicaView>,
    /// What people should know.
    pub note: Option<String>,
}

/// A replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReplicaView {
    /// Its id.
    pub id: u64,
    /// The group of the volume that it has.
    pub group: u32,
    /// Its node.
    pub node: String,
    /// Its device.
    pub device: u32,
    /// In sync; away; or being made, or removed.
    pub state: String,
    /// Bytes that are still to be copied to it, where that is known: at the volume's owner.
    pub left_bytes: Option<u64>,
    /// It is to leave where it is.
    pub leaving: bool,
    /// Why it is not made, or does not leave.
    pub note: Option<String>,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeView {
    /// Its name.
    pub name: String,
    /// Whether its process answers.
    pub alive: bool,
    /// Where its API is.
    pub api: String,
    /// Where clients of NBD come.
    pub nbd: String,
    /// New replicas do not come here.
    pub draining: bool,
    /// Its devices.
    pub devices: usize,
    /// Replicas that it has.
    pub replicas: usize,
}

/// A device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceView {
    /// Its id.
    pub id: u32,
    /// Its node.
    pub node: String,
    /// Where it is there.
    pub path: String,
    /// Bytes that it has for replicas: their data and their logs.
    pub bytes: u64,
    /// Bytes of them that are promised to replicas.
    pub promised: u64,
    /// Bytes of the largest replica with the least log for which it has room.
    pub room: u64,
    /// Replicas that it has.
    pub replicas: usize,
    /// They leave, for this device if one is named.
    pub draining: bool,
    /// See there.
    pub replaced_by: Option<u32>,
    /// What is wrong with it, as far as the node that was asked knows.
    pub fault: Option<String>,
}

/// All of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StatusView {
    /// The cluster's id.
    pub cluster: String,
    /// The node that was asked.
    pub asked: String,
    /// Nodes.
    pub nodes: Vec<NodeView>,
    /// Devices.
    pub devices: Vec<DeviceView>,
    /// Volumes.
    pub volumes: Vec<VolumeView>,
}

impl Node {
    /// How everything is.
    pub async fn status(&self) -> Result<StatusView, ManageError> {
        self.refresh().await?;
        let catalog = self.state().catalog.clone();
        let alive = self.alive().await;
        self.look_at_loops().await;
        let nodes = catalog.nodes.iter().map(|(id, (node, _))| NodeView {
            name: node.name.clone(),
            alive: alive.get(id) == Some(&true),
            api: node.api.to_string(),
            nbd: node.nbd.to_string(),
            draining: node.draining,
            devices: catalog.devices.values().filter(|(device, _)| device.node == *id).count(),
            replicas: catalog.replicas.values().filter(|(replica, _)| replica.node == *id).count(),
        });
        let broken = self.state().broken.clone();
        let promised = super::volumes::devices(&catalog, |_| true);
        let devices = catalog.devices.iter().zip(promised).map(|((id, (device, _)), placed)| DeviceView {
            id: *id,
            node: catalog.nodes.get(&device.node).map_or("?".into(), |(node, _)| node.name.clone()),
            path: device.path.display().to_string(),
            bytes: room::capacity(device.bytes) * BLOCK,
            promised: placed.promised * BLOCK,
            room: room::largest(placed.capacity.saturating_sub(placed.promised), LEAST_LOG, device.bytes),
            replicas: catalog.replicas.values().filter(|(replica, _)| replica.device == *id).count(),
            draining: device.draining,
            replaced_by: device.replaced_by,
            fault: broken.get(id).cloned(),
        });
        let leaving = leaving(&catalog);
        let volumes =
            catalog.volumes.iter().map(|(id, (v, _))| self.view((&catalog, &leaving), *id, v, &alive));
        let cluster = catalog.cluster.as_ref().map_or(String::new(), |(cluster, _)| cluster.id.clone());
        Ok(StatusView {
            cluster,
            asked: self.name().into(),
            nodes: nodes.collect(),
            devices: devices.collect(),
            volumes: volumes.collect(),
        })
    }

    /// A volume.
    pub async fn show_volume(&self, name: &str) -> Result<VolumeView, ManageError> {
        let status = self.status().await?;
        let found = status.volumes.into_iter().find(|volume| volume.name == name);
        match found {
            Some(view) => Ok(view),
            None => Err(self
                .volume(name)
                .err()
                .unwrap_or_else(|| ManageError::Wrong("it was made just now".into()))),
        }
    }

    fn view(
        &self,
        (catalog, leaving): (&Catalog, &BTreeMap<u64, To>),
        id: u64,
        volume: &Volume,
        alive: &BTreeMap<u32, bool>,
    ) -> VolumeView {
        let record: Option<Record> =
            catalog.records.get(&id).and_then(|stored| record::decode(&stored.value).ok());
        let name = |node: u32| catalog.nodes.get(&node).map(|(node, _)| node.name.clone());
        let here = {
            let state = self.state();
            state.loops.iter().flat_map(|of| &of.volumes).find(|of| of.id.0 == id).cloned()
        };
        let home = |replica: &ReplicaId| catalog.replicas.get(&replica.0).map(|(replica, _)| replica.node);
        // Who is greeted and does not answer is not coming back.
        let lives = |replica: &ReplicaId| home(replica).is_some_and(|node| alive.get(&node) == Some(&true));
        let returning = here.iter().flat_map(|here| here.returning.iter().copied());
        let returning: BTreeMap<ReplicaId, u64> = returning.filter(|(replica, _)| lives(replica)).collect();
        let in_sync = |id: u64| {
            record.as_ref().is_some_and(|r| r.groups.iter().any(|g| g.in_sync.contains(&ReplicaId(id))))
        };
        let unopened = self.state().unopened.clone();
        let replicas: Vec<ReplicaView> = catalog
            .replicas
            .iter()
            .filter(|(_, (replica, _))| replica.volume == id)
            .map(|(replica_id, (replica, _))| ReplicaView {
                id: *replica_id,
                group: replica.group,
                node: name(replica.node).unwrap_or("?".into()),
                device: replica.device,
                state: match replica.state {
                    ReplicaState::Wanted | ReplicaState::Ready if unopened.contains_key(replica_id) => {
                        format!("not used: {}", unopened[replica_id].1)
                    }
                    ReplicaState::Wanted => "being made".into(),
                    ReplicaState::Dropping => "being removed".into(),
                    ReplicaState::Ready if in_sync(*replica_id) => "in sync".into(),
                    ReplicaState::Ready if returning.contains_key(&ReplicaId(*replica_id)) => {
                        "returning".into()
                    }
                    ReplicaState::Ready => "away".into(),
                },
                left_bytes: returning.get(&ReplicaId(*replica_id)).map(|blocks| blocks * BLOCK),
                leaving: leaving.contains_key(replica_id),
                note: replica
                    .refused
                    .clone()
                    .filter(|_| replica.state == ReplicaState::Wanted || leaving.contains_key(replica_id)),
            })
            .collect();
        let fewest = record.as_ref().and_then(|r| r.groups.iter().map(|group| group.in_sync.len()).min());
        let in_sync = fewest.unwrap_or(0) as u32;
        let owner_lives = record.as_ref().is_some_and(|r| alive.get(&r.owner.node.0) == Some(&true));
        let served = record.as_ref().is_some_and(|r| r.state == RecordState::Active) && owner_lives;
        let least = record.as_ref().map_or(volume.least, |record| record.least);
        let writes_wait = served && volume.attached.is_some() && in_sync < least;
        let health = match &record {
            None => None,
            Some(_) if volume.attached.is_some() && !served => Some(Health::Waiting),
            Some(_) if writes_wait => Some(Health::Waiting),
            Some(_) if in_sync >= volume.copies => Some(Health::Healthy),
            Some(_) if !returning.is_empty() => Some(Health::Resyncing),
            Some(_) => Some(Health::Degraded),
        };
        let note = match health {
            None if volume.state == VolumeState::Creating => Some("its replicas are being made".into()),
            Some(Health::Waiting) if writes_wait => Some(format!(
                "writes wait: {in_sync} of {} copies in sync, policy asks for {least}; reads go on",
                volume.copies
            )),
            Some(Health::Waiting) => Some(self.why(catalog, id, record.as_ref(), alive)),
            _ => None,
        };
        VolumeView {
            name: volume.name.clone(),
            bytes: record.as_ref().map_or(volume.blocks, |record| record.blocks) * BLOCK,
            copies: volume.copies,
            least,
            stripes: volume.stripes,
            health,
            in_sync,
            attached: volume.attached.and_then(name),
            owner: record.as_ref().filter(|_| volume.attached.is_some()).and_then(|r| name(r.owner.node.0)),
            epoch: record.as_ref().map_or(0, |record| record.epoch.0),
            replicas,
            note,
        }
    }

    /// Why a volume is not served.
    fn why(
        &self,
        catalog: &Catalog,
        id: u64,
        record: Option<&Record>,
        alive: &BTreeMap<u32, bool>,
    ) -> String {
        let name =
            |node: u32| catalog.nodes.get(&node).map_or(format!("node {node}"), |(n, _)| n.name.clone());
        for (index, group) in record.iter().flat_map(|r| r.groups.iter().enumerate()) {
            let homes: Vec<u32> = group
                .in_sync
                .iter()
                .filter_map(|replica| catalog.replicas.get(&replica.0))
                .map(|(replica, _)| replica.node)
                .collect();
            if !homes.iter().any(|node| alive.get(node) == Some(&true)) {
                let homes: Vec<String> = homes.into_iter().map(name).collect();
                return format!(
                    "every write of group {index} is only on {}, which does not answer: start it again",
                    homes.join(" and ")
                );
            }
        }
        let here = {
            let state = self.state();
            state.loops.iter().flat_map(|of| &of.volumes).find(|of| of.id.0 == id).map(|of| of.status)
        };
        match here {
            Some(Status::Blocked) => {
                "the configuration went back in time: 'loadline volume recover' decides what holds".into()
            }
            _ => "a node is taking it over".into(),
        }
    }

    pub(super) async fn why_not_served(&self, id: u64) -> String {
        let Ok(status) = self.status().await else { return "the configuration store does not answer".into() };
        let state = self.state();
        let name = state.catalog.volumes.get(&id).map(|(volume, _)| volume.name.clone());
        let view = status.volumes.into_iter().find(|volume| Some(&volume.name) == name.as_ref());
        view.and_then(|view| view.note).unwrap_or("it is being taken over".into())
    }
}
