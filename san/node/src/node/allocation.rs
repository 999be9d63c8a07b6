//! Where replicas of volumes are allocated: devices as placement sees them, and the change that orders a replica there.

use std::collections::BTreeMap;

use loadline_san_core::ids::NodeId;
use loadline_san_core::layout::{GroupIndex, Layout};
use loadline_san_core::placement::{self, DeviceId, Domain};

use super::manage::room;
use crate::config::Change;
use crate::config::catalog::{self, Catalog, Replica, ReplicaState, Volume, VolumeState, change};

/// The change that orders a new replica of a volume, for one of its groups, on a device.
pub(super) fn new_replica(
    catalog: &Catalog,
    volume: u64,
    of: &Volume,
    id: u64,
    (group, device): (u32, DeviceId),
    instead_of: Option<u64>,
) -> Change {
    let replica = Replica {
        volume,
        group,
        blocks: of.group_blocks,
        node: catalog.devices[&device.0].0.node,
        device: device.0,
        log_bytes: of.log_bytes,
        key: u64::from_ne_bytes(crate::identity::random_bytes()),
        state: ReplicaState::Wanted,
        refused: None,
        unusable: None,
        instead_of,
        leave_to: None,
        unless_used: false,
    };
    change(format!("replica/{id}"), None, &replica)
}

/// Devices as placement sees them. Room is promised to each replica, and to each one that a plan has not made yet.
pub(super) fn devices(catalog: &Catalog, alive: impl Fn(u32) -> bool) -> Vec<placement::Device> {
    let overcommit = catalog.cluster.as_ref().map_or(100, |(cluster, _)| u64::from(cluster.overcommit));
    let planned = planned(catalog);
    let device = |(id, (device, _)): (&u32, &(catalog::Device, u64))| {
        let here = catalog.replicas.values().filter(|(replica, _)| replica.device == *id);
        let need = |(replica, _): &(Replica, u64)| {
            room::need(blocks_of(catalog, replica), replica.log_bytes, device.bytes)
        };
        let promised: u64 = here.map(need).sum::<u64>() + planned.get(id).copied().unwrap_or(0);
        let draining = catalog.nodes.get(&device.node).is_none_or(|(node, _)| node.draining);
        placement::Device {
            id: DeviceId(*id),
            node: NodeId(device.node),
            domain: Domain(device.node),
            capacity: room::capacity(device.bytes) * overcommit / 100,
            promised,
            accepts: !device.draining && !draining && alive(device.node),
        }
    };
    catalog.devices.iter().map(device).collect()
}

/// Blocks that devices have promised to replicas that plans name and later commits make, by the device.
fn planned(catalog: &Catalog) -> BTreeMap<u32, u64> {
    let mut promised = BTreeMap::new();
    for (id, (plan, _)) in &catalog.plans {
        let of = catalog.volumes.get(id).map(|(volume, _)| volume);
        let Some(volume) = of.filter(|volume| volume.state != VolumeState::Deleting) else { continue };
        for planned in plan.replicas.iter().filter(|planned| !catalog.replicas.contains_key(&planned.id)) {
            let Some((device, _)) = catalog.devices.get(&planned.device) else { continue };
            let need = room::need(blocks_in(volume, planned.group), volume.log_bytes, device.bytes);
            *promised.entry(planned.device).or_default() += need;
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
