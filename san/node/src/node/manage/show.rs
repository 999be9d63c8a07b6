//! How everything is.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use loadline_san_core::ids::ReplicaId;
use loadline_san_core::layout::BLOCK;
use loadline_san_core::record::Record;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::health::Judge;
use super::limit::LimitVolume;
use super::local::{LocalDevice, LocalReturn, ModelView, OLDER, Reports, Usable};
use super::paths::{self, PathsView, ReservationsView};
use super::volumes::LEAST_LOG;
use super::{InitiatorView, ManageError, room, speed};
use crate::config::ConfigError;
use crate::config::catalog::{Catalog, Limit, Replica, ReplicaState, Reserve, Role, Volume, VolumeState};
use crate::config::health::{self, StoreMember};
use crate::node::moving::{To, leaving};
use crate::node::store_state::StoreFault;
use crate::node::{Node, allocation};
use crate::unusable::Unusable;

/// How well something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// All copies that it is to have are in sync, and their nodes report just now that they are in use.
    Healthy,
    /// Copies are missing, and are coming back.
    Resyncing,
    /// Copies are missing.
    Degraded,
    /// Whether it is served, or whether a copy is used, is not known.
    Unknown,
    /// It is attached, and no node serves all of it; or its writes wait, since fewer copies are in sync than its policy asks for.
    Waiting,
    /// The configuration store holds an older record of it than its copies have promised. A person decides.
    Blocked,
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
    /// The length of its leases, milliseconds.
    pub lease_ms: u64,
    /// Clients over the network are let in only by TLS.
    pub requires_tls: bool,
    /// Initiators that may use it by iSCSI from beyond a node's own machine.
    #[serde(default)]
    pub initiators: Vec<InitiatorView>,
    /// The paths of the iSCSI initiators that have sessions with it.
    #[serde(default)]
    pub paths: PathsView,
    /// Its persistent reservations; `null` if they are not known, since the configuration store could not be read.
    #[serde(default)]
    pub reservations: Option<ReservationsView>,
    /// Bytes of the read cache of each copy whose data is on a capacity device.
    pub cache_bytes: u64,
    /// How much its clients may do a second, if that is limited.
    pub limit: Option<LimitVolume>,
    /// How well it is; nothing while it is being made.
    pub health: Option<Health>,
    /// Copies in sync, of the group that has the fewest; 0 while the volume is blocked, since that is undecided then.
    pub in_sync: u32,
    /// Where it is attached.
    pub attached: Option<String>,
    /// The key with which it was attached, if it was attached for a while only: `loadline guest shell` does that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attach_key: Option<String>,
    /// The node that owns it.
    pub owner: Option<String>,
    /// The epoch of its record.
    pub epoch: u64,
    /// Its replicas.
    pub replicas: Vec<ReplicaView>,
    /// What people should know.
    pub note: Option<String>,
}

impl VolumeView {
    /// Whether clients of the volume wait while these nodes are away: some group has too few copies in sync at other nodes.
    pub fn waits_without(&self, is_away: impl Fn(&str) -> bool) -> bool {
        let groups: BTreeSet<u32> = self.replicas.iter().map(|replica| replica.group).collect();
        let elsewhere = |group: u32| {
            let others =
                self.replicas.iter().filter(|replica| replica.group == group && !is_away(&replica.node));
            others.filter(|replica| replica.state == "in sync").count()
        };
        self.attached.is_some()
            && self.replicas.iter().any(|replica| is_away(&replica.node))
            && groups.into_iter().any(|group| elsewhere(group) < self.least.max(1) as usize)
    }
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
    /// The device with its data.
    pub device: u32,
    /// The device with its log: the same, or a log device of the node.
    pub log_device: u32,
    /// `in sync`; `returning`: it is being copied to; `away`: it is not in sync, and is not being copied to; `undecided`: the volume is
    /// blocked; `damaged`: its start has found that it has lost something; `failed`: its device has; `not used`; `being made`; `being
    /// removed`.
    pub state: String,
    /// The highest epoch that it follows or has promised, as its node reports.
    pub epoch: Option<u64>,
    /// Bytes that are still to be copied to it, as the volume's owner reports.
    pub left_bytes: Option<u64>,
    /// Bytes that this resync has copied to it, if one is under way.
    pub copied_bytes: Option<u64>,
    /// Whether the resync copies everything, and not only what was changed while it was away; if one is under way.
    pub full_resync: Option<bool>,
    /// It is to leave where it is.
    pub leaving: bool,
    /// Why it is not made, does not leave, or cannot be used, and what becomes of it.
    pub note: Option<String>,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeView {
    /// Its name.
    pub name: String,
    /// Whether it reports of itself.
    pub alive: bool,
    /// Where its API is.
    pub api: String,
    /// Where clients connect, by the name of their protocol.
    pub endpoints: BTreeMap<String, String>,
    /// New replicas do not come here.
    pub draining: bool,
    /// It is in maintenance: new replicas do not come here, and other nodes own its volumes.
    pub maintenance: bool,
    /// Its process ends by order, soon, or has ended so.
    pub stopping: bool,
    /// A number that is larger each time its process starts.
    pub incarnation: u64,
    /// Its devices.
    pub devices: usize,
    /// Replicas that it has.
    pub replicas: usize,
    /// Why it does not report; or why it does not use the configuration store.
    pub fault: Option<String>,
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
    /// Bytes of its chunks, which it has for replicas: their data with the checksums, and their logs.
    pub bytes: u64,
    /// What it has of replicas.
    pub role: Role,
    /// Bytes of the chunks that are promised to replicas: they take no more. More than `bytes` if the cluster promises more than it has.
    pub promised: u64,
    /// Bytes that replicas have taken of it, in whole chunks: their logs, and room for what was written, and as much again. `null`
    /// if its node does not report it.
    pub taken: Option<u64>,
    /// Bytes of the largest replica with the least log for which it has room; of a capacity device, wherever the log is. 0 of a log device.
    pub room: u64,
    /// Replicas that it has.
    pub replicas: usize,
    /// They leave, for this device if one is named.
    pub draining: bool,
    /// See there.
    pub replaced_by: Option<u32>,
    /// What should be changed about it, if anything: a capacity device without a log device, a log device that is slower than capacity devices.
    pub advice: Option<String>,
    /// What it is a model of, if it behaves as a model says and not as what is behind it.
    pub model: Option<String>,
    /// How well its machine keeps up with the model, if its node reports.
    pub keeps_up: Option<ModelView>,
    /// Why its node does not use it, if it does not; or why copies stay there that were to be removed.
    pub fault: Option<String>,
}

/// All of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StatusView {
    /// The cluster's id.
    pub cluster: String,
    /// The node that was asked.
    pub asked: String,
    /// Why that node does not use the configuration store, if it does not: what is shown of the configuration may be old.
    pub store_fault: Option<String>,
    /// What resyncs and scrubs get at the least.
    pub reserve: Reserve,
    /// The members of the configuration store, if it has any, as that node reaches them.
    pub store: Vec<StoreMember>,
    /// Nodes.
    pub nodes: Vec<NodeView>,
    /// Devices.
    pub devices: Vec<DeviceView>,
    /// Volumes.
    pub volumes: Vec<VolumeView>,
}

/// Why a replica cannot be used, and what becomes of it.
fn note(
    catalog: &Catalog,
    (record, id, replica, attached): (Option<&Record>, u64, &Replica, bool),
) -> Option<String> {
    let unusable = replica.unusable.as_ref().filter(|_| replica.state == ReplicaState::Ready)?;
    let usable = |other: &ReplicaId| {
        other.0 != id && catalog.replicas.get(&other.0).is_some_and(|(other, _)| other.unusable.is_none())
    };
    let group = record.and_then(|record| record.groups.get(replica.group as usize));
    let spared = group.is_some_and(|group| group.in_sync.iter().any(usable));
    let then = match unusable {
        Unusable::Damaged(_) if !spared => {
            "no other usable copy has this copy's data: this copy stays as it is until another copy with the data is usable, or a person decides"
        }
        Unusable::Damaged(_) if attached => {
            "the copy is emptied, and all data is copied from the other copies"
        }
        Unusable::Damaged(_) => {
            "when the volume is attached, the copy is emptied and all data is copied from the other copies"
        }
        Unusable::Failed { device, .. } => {
            &format!("replace the device ('loadline device replace {device}'), or move the copy elsewhere")
        }
        Unusable::NotUsed(_) => "the node tries again",
    };
    Some(format!("{}; {then}", unusable.why()))
}

/// If records change while the nodes report, all are asked again, within this time.
const AGAIN: Duration = Duration::from_millis(600);

/// How long the configuration store may not answer before a status shows what is known.
const PATIENCE: Duration = Duration::from_millis(2500);

/// Why copies stay on a device that were to be removed, since they may have data that is not to be lost. `None` if there are none.
fn kept(catalog: &Catalog, device: u32) -> Option<String> {
    let mut kept = catalog.replicas.values().filter(|(replica, _)| replica.is_on(device));
    let (count, why) = (
        kept.clone().filter(|(replica, _)| replica.kept().is_some()).count(),
        kept.find_map(|(of, _)| of.kept())?,
    );
    let copies = if count == 1 { "1 copy is".to_owned() } else { format!("{count} copies are") };
    Some(format!("{copies} not removed: {why}"))
}

impl Node {
    /// How everything is: what all nodes report of themselves just now.
    pub async fn status(&self) -> Result<StatusView, ManageError> {
        let url = self.store();
        let ((catalog, reports, store_fault), store) = tokio::join!(self.collect(), health::members(&url));
        let nodes = catalog.nodes.iter().map(|(id, (node, _))| {
            let fault = match reports.get(id) {
                Some(Ok(view)) => view.store_fault.clone(),
                Some(Err(silent)) => Some(silent.why().into()),
                None => Some("was not asked".into()),
            };
            NodeView {
                name: node.name.clone(),
                alive: matches!(reports.get(id), Some(Ok(_))),
                api: node.api.to_string(),
                endpoints: node.endpoints.iter().map(|(name, at)| (name.clone(), at.to_string())).collect(),
                draining: node.draining,
                maintenance: node.maintenance,
                stopping: node.stopping,
                incarnation: node.incarnation,
                devices: catalog.devices.values().filter(|(device, _)| device.node == *id).count(),
                replicas: catalog.replicas.values().filter(|(replica, _)| replica.node == *id).count(),
                fault,
            }
        });
        let devices_of = reports.values().flatten().flat_map(|view| &view.devices);
        let reported: BTreeMap<u32, &LocalDevice> = devices_of.map(|device| (device.id, device)).collect();
        let promised = allocation::devices(&catalog, |_| true);
        let promised = catalog.devices.iter().zip(promised);
        let spaces =
            promised.map(|(of, placed)| (of, room::space(of.1.0.bytes, placed.promised), placed.free()));
        let devices = spaces.map(|((id, (device, _)), space, free)| DeviceView {
            id: *id,
            node: catalog.nodes.get(&device.node).map_or("?".into(), |(node, _)| node.name.clone()),
            path: device.path.display().to_string(),
            bytes: space.bytes,
            role: device.role,
            promised: space.promised,
            taken: reported.get(id).and_then(|device| device.taken),
            room: match device.role {
                Role::Both => room::largest(free, LEAST_LOG, device.bytes),
                Role::Capacity => room::largest_data(free, device.bytes),
                Role::Log => 0,
            },
            replicas: catalog.replicas.values().filter(|(replica, _)| replica.is_on(*id)).count(),
            draining: device.draining,
            replaced_by: device.replaced_by,
            advice: speed::advice(&catalog, *id),
            model: device.model.as_ref().map(|model| model.name.clone()),
            keeps_up: reported.get(id).and_then(|device| device.model.clone()),
            fault: match reports.get(&device.node) {
                Some(Ok(_)) => {
                    reported.get(id).and_then(|device| device.fault.clone()).or_else(|| kept(&catalog, *id))
                }
                _ => Some("its node does not report".into()),
            },
        });
        let kind = store_fault.as_ref().map(|fault| fault.kind);
        let judge = Judge { catalog: &catalog, reports: &reports, store_fault: kind };
        let leaving = leaving(&catalog);
        let volumes = catalog.volumes.iter().map(|(id, (volume, _))| view(&judge, &leaving, *id, volume));
        let cluster = catalog.cluster.as_ref().map_or(String::new(), |(cluster, _)| cluster.id.clone());
        Ok(StatusView {
            cluster,
            asked: self.name().into(),
            reserve: catalog.cluster.as_ref().map(|(cluster, _)| cluster.reserve).unwrap_or_default(),
            store,
            nodes: nodes.collect(),
            devices: devices.collect(),
            volumes: volumes.collect(),
            store_fault: store_fault.map(|fault| fault.text),
        })
    }

    /// What all nodes report, and the configuration as it is after that. If that cannot be read: as it was known, and why. A store that has
    /// not answered this node for [`PATIENCE`] is not waited for.
    pub(super) async fn collect(&self) -> (Catalog, Reports, Option<StoreFault>) {
        let mut fault = self.refresh_soon().await;
        let begun = Instant::now();
        loop {
            let before = self.state().catalog.clone();
            let reports = self.reports().await;
            if fault.is_none() {
                fault = self.refresh_soon().await;
            }
            let catalog = self.state().catalog.clone();
            // What was reported amid a change of a record may be of either.
            if before.records == catalog.records || begun.elapsed() > AGAIN {
                return (catalog, reports, fault);
            }
        }
    }

    /// The configuration is read now. Returns why not, if it cannot be read.
    ///
    /// A read waits for its turn behind other operations of this node, for records and for other tasks. As long as the store answers these, the
    /// read is waited for. That the store is away is shown only if the store itself has not answered for [`PATIENCE`]; then the status waits
    /// no longer.
    async fn refresh_soon(&self) -> Option<StoreFault> {
        let health = self.config().health();
        match health.while_it_answers(PATIENCE, self.refresh()).await {
            Some(Ok(())) => None,
            Some(Err(why)) => Some(self.state().store.shown(&why)),
            None => {
                let state = self.state();
                let late = || ConfigError::Unavailable("it has not answered in time".into());
                Some(state.store.fault().unwrap_or_else(|| state.store.shown(&late())))
            }
        }
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

    pub(super) async fn why_not_served(&self, id: u64) -> String {
        let Ok(status) = self.status().await else { return "the configuration store does not answer".into() };
        let state = self.state();
        let name = state.catalog.volumes.get(&id).map(|(volume, _)| volume.name.clone());
        let view = status.volumes.into_iter().find(|volume| Some(&volume.name) == name.as_ref());
        view.and_then(|view| view.note).unwrap_or("it is being taken over".into())
    }
}

fn view(judge: &Judge, leaving: &BTreeMap<u64, To>, id: u64, volume: &Volume) -> VolumeView {
    let catalog = judge.catalog;
    let record: Option<Record> = catalog.record(id);
    let name = |node: u32| catalog.nodes.get(&node).map(|(node, _)| node.name.clone());
    let served = record.as_ref().and_then(|record| judge.serving(id, record));
    let returning: BTreeMap<u64, LocalReturn> = served
        .map(|(_, served)| served.returning.iter().map(|of| (of.replica, *of)).collect())
        .unwrap_or_default();
    let is_blocked = record.as_ref().is_some_and(|record| judge.blocked(id, record).is_some());
    let in_sync = |id: u64| {
        record.as_ref().is_some_and(|r| r.groups.iter().any(|g| g.in_sync.contains(&ReplicaId(id))))
    };
    let of_volume = catalog.replicas.iter().filter(|(_, (replica, _))| replica.volume == id);
    let replicas: Vec<ReplicaView> = of_volume
        .map(|(replica_id, (replica, _))| {
            let reported = judge.replica(*replica_id);
            // Of one that is being opened nothing is wrong.
            let unused = reported.filter(|of| !matches!(of.state, Usable::Open | Usable::Opening));
            let older = record.as_ref().is_some_and(|record| judge.is_older(*replica_id, record));
            let went_back = older || unused.is_some_and(|of| of.why.as_deref() == Some(OLDER));
            let is_open = reported.is_some_and(|of| of.state == Usable::Open);
            let unusable = replica.unusable.as_ref().filter(|_| !is_open);
            let leaves = leaving.contains_key(replica_id);
            // Of one that leaves, a note says why it stays.
            let of = (record.as_ref(), *replica_id, replica, volume.attached.is_some());
            let unusable_note = unusable.filter(|_| !leaves).and_then(|_| note(catalog, of));
            // Of one that is away nothing is being copied.
            let resync = reported.and(returning.get(replica_id)).filter(|_| !in_sync(*replica_id));
            ReplicaView {
                id: *replica_id,
                group: replica.group,
                node: name(replica.node).unwrap_or("?".into()),
                device: replica.device,
                log_device: replica.log_device,
                state: match (replica.state, unused) {
                    (ReplicaState::Wanted, _) => match &replica.refused {
                        Some(why) => format!("not used: {why}"),
                        None => "being made".into(),
                    },
                    (ReplicaState::Dropping, _) => match replica.kept() {
                        Some(why) => format!("not removed: {why}"),
                        None => "being removed".into(),
                    },
                    (ReplicaState::Ready, _) if unusable.is_some() => {
                        unusable.map_or("not used", Unusable::state).into()
                    }
                    (ReplicaState::Ready, _) if went_back => "damaged".into(),
                    (ReplicaState::Ready, Some(of)) => {
                        let why = of.why.clone().unwrap_or_else(|| "it is not known why".into());
                        format!("not used: {why}")
                    }
                    (ReplicaState::Ready, None) if is_blocked => "undecided".into(),
                    (ReplicaState::Ready, None) if in_sync(*replica_id) => "in sync".into(),
                    (ReplicaState::Ready, None) if resync.is_some() => "returning".into(),
                    (ReplicaState::Ready, None) => "away".into(),
                },
                epoch: reported.and_then(|of| of.epoch),
                left_bytes: resync.map(|of| of.left * BLOCK),
                copied_bytes: resync.map(|of| of.copied * BLOCK),
                full_resync: resync.map(|of| of.full),
                leaving: leaves,
                note: replica
                    .refused
                    .clone()
                    .filter(|_| replica.state == ReplicaState::Wanted || leaves)
                    .or(unusable_note)
                    .or_else(|| went_back.then(|| OLDER.into())),
            }
        })
        .collect();
    let fewest = record.as_ref().and_then(|r| r.groups.iter().map(|group| group.in_sync.len()).min());
    let (health, note) = match &record {
        None if volume.state == VolumeState::Creating => (None, Some("its copies are being made".into())),
        None if volume.state == VolumeState::Deleting => (None, Some("its copies are being removed".into())),
        None => (Some(Health::Unknown), Some("the volume's record is missing or cannot be read".into())),
        Some(record) => {
            let (health, note) = judge.volume(id, volume, record);
            (Some(health), note)
        }
    };
    // Of a volume that is blocked, the record names an owner of the past.
    let owner = record.as_ref().filter(|_| volume.attached.is_some() && (!is_blocked || served.is_some()));
    let paths = paths::paths(catalog, judge.reports, id);
    // Of a volume that no node serves, the reason for that is what matters.
    let single = paths.note(catalog.nodes.len()).filter(|_| served.is_some());
    let notes: Vec<String> = note.into_iter().chain(single).collect();
    VolumeView {
        name: volume.name.clone(),
        bytes: record.as_ref().map_or(volume.blocks, |record| record.blocks) * BLOCK,
        copies: volume.copies,
        least: record.as_ref().map_or(volume.least, |record| record.least),
        stripes: volume.stripes,
        lease_ms: volume.lease_ms,
        requires_tls: volume.requires_tls,
        initiators: volume.initiators.iter().map(InitiatorView::from).collect(),
        paths,
        reservations: judge.store_fault.is_none().then(|| paths::reservations(catalog, id)),
        cache_bytes: volume.cache_bytes,
        limit: volume.limit.map(|Limit { iops, bytes_per_s, burst_ms }| LimitVolume {
            iops,
            bytes_per_s,
            burst_ms: Some(burst_ms),
        }),
        health,
        in_sync: fewest.filter(|_| !is_blocked).unwrap_or(0) as u32,
        attached: volume.attached.and_then(name),
        attach_key: volume.attach_key.clone(),
        owner: owner.and_then(|record| name(record.owner.node.0)),
        epoch: record.as_ref().map_or(0, |record| record.epoch.0),
        replicas,
        note: (!notes.is_empty()).then(|| notes.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use loadline_san_protocol::record;

    use super::*;
    use crate::config::Stored;
    use crate::node::manage::health::tests::cluster;
    use crate::node::manage::local::InitiatorAt;
    use crate::node::store_state::StoreFaultKind;

    #[test]
    fn a_single_path_is_a_note_of_a_healthy_volume_and_reservations_are_unknown_without_the_store() {
        let mut cluster = cluster();
        let value = record::encode(&cluster.record).unwrap();
        cluster.catalog.records.insert(10, Stored { value, version: 1 });
        let at = InitiatorAt { volume: 10, name: "iqn.a".into(), is_active: true };
        cluster.node(1).initiators.push(at);
        let shown = |store_fault| {
            let judge = Judge { catalog: &cluster.catalog, reports: &cluster.reports, store_fault };
            view(&judge, &BTreeMap::new(), 10, &cluster.volume)
        };
        let volume = shown(None);
        assert_eq!((volume.health, volume.paths.sessions()), (Some(Health::Healthy), 1));
        assert!(volume.note.as_ref().is_some_and(|note| note.contains("iqn.a, at node-1")), "{volume:?}");
        assert_eq!(volume.reservations, Some(ReservationsView::default()));
        let volume = shown(Some(StoreFaultKind::Silent));
        assert_eq!(volume.reservations, None);
        assert_eq!(volume.paths.sessions(), 1, "the nodes report");
    }
}
