//! Where replicas of volumes are allocated: devices as placement sees them, and the change that orders a replica there.

use std::collections::BTreeMap;

use loadline_san_core::ids::NodeId;
use loadline_san_core::layout::{GroupIndex, Layout};
use loadline_san_core::placement::{self, DeviceId, Domain, Place};

use super::manage::room;
use crate::config::Change;
use crate::config::catalog::{Catalog, Replica, ReplicaState, Volume, VolumeState, change};

/// The change that orders a new replica of a volume, for one of its groups, at a place.
pub(super) fn new_replica(
    catalog: &Catalog,
    volume: u64,
    of: &Volume,
    id: u64,
    (group, place): (u32, Place),
    instead_of: Option<u64>,
) -> Change {
    let replica = Replica {
        volume,
        group,
        blocks: of.group_blocks,
        node: catalog.devices[&place.device.0].0.node,
        device: place.device.0,
        log_device: place.log.0,
        log_bytes: of.log_bytes,
        key: u64::from_ne_bytes(crate::identity::random_bytes()),
        state: ReplicaState::Wanted,
        refused: None,
        unusable: None,
        instead_of,
        leave_to: None,
        gives_way: false,
        unless_used: false,
    };
    change(format!("replica/{id}"), None, &replica)
}

/// Devices as placement sees them. Room is promised to each replica, and to each one that a plan has not made yet.
pub(crate) fn devices(catalog: &Catalog, alive: impl Fn(u32) -> bool) -> Vec<placement::Device> {
    let overcommit = catalog.cluster.as_ref().map_or(100, |(cluster, _)| u64::from(cluster.overcommit));
    let promised = promised(catalog);
    let devices = catalog.devices.iter().map(|(id, (device, _))| {
        let leaves =
            catalog.nodes.get(&device.node).is_none_or(|(node, _)| node.draining || node.maintenance);
        placement::Device {
            id: DeviceId(*id),
            node: NodeId(device.node),
            domain: Domain(device.node),
            role: device.role.into(),
            capacity: room::capacity(device.bytes) * overcommit / 100,
            promised: promised.get(id).copied().unwrap_or(0),
            accepts: !device.draining && !leaves && alive(device.node),
        }
    });
    devices.collect()
}

/// Blocks that devices have promised to replicas, and to those that plans name and later commits make, by the device.
fn promised(catalog: &Catalog) -> BTreeMap<u32, u64> {
    let mut promised = BTreeMap::new();
    let mut promise = |(data, log): (u32, u32), blocks: u64, log_bytes: u64, cache_bytes: u64| {
        let bytes = |id: u32| catalog.devices.get(&id).map(|(device, _)| device.bytes);
        if let Some(device) = bytes(data) {
            *promised.entry(data).or_default() += room::data(blocks, device);
        }
        if let Some(device) = bytes(log) {
            let cache_bytes = if data == log { 0 } else { cache_bytes };
            *promised.entry(log).or_default() +=
                room::log(log_bytes, device) + room::cache(cache_bytes, device);
        }
    };
    let cache_of = |volume: u64| catalog.volumes.get(&volume).map_or(0, |(volume, _)| volume.cache_bytes);
    for (replica, _) in catalog.replicas.values() {
        let blocks = blocks_of(catalog, replica);
        let devices = (replica.device, replica.log_device);
        promise(devices, blocks, replica.log_bytes, cache_of(replica.volume));
    }
    for (id, (plan, _)) in &catalog.plans {
        let of = catalog.volumes.get(id).map(|(volume, _)| volume);
        let Some(volume) = of.filter(|volume| volume.state != VolumeState::Deleting) else { continue };
        for planned in plan.replicas.iter().filter(|planned| !catalog.replicas.contains_key(&planned.id)) {
            let blocks = blocks_in(volume, planned.group);
            promise((planned.device, planned.log_device), blocks, volume.log_bytes, volume.cache_bytes);
        }
    }
    promised
}

/// Blocks that a volume has in one of its groups.
fn blocks_in(volume: &Volume, group: u32) -> u64 {
    let layout = Layout::new(volume.stripes, volume.unit_blocks, volume.group_blocks);
    layout.map_or(0, |layout| layout.blocks_in(GroupIndex(group), volume.blocks))
}

/// Blocks that a replica can have of its volume as it is now.
pub(super) fn blocks_of(catalog: &Catalog, replica: &Replica) -> u64 {
    let volume = catalog.volumes.get(&replica.volume);
    volume.map_or(0, |(volume, _)| blocks_in(volume, replica.group))
}
