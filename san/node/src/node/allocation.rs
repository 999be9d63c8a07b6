//! Where replicas of volumes are allocated: devices as placement sees them, and the change that orders a replica there.

use loadline_san_core::ids::NodeId;
use loadline_san_core::layout::{GroupIndex, Layout};
use loadline_san_core::placement::{self, DeviceId, Domain};

use super::manage::room;
use crate::config::Change;
use crate::config::catalog::{self, Catalog, Replica, ReplicaState, Volume, change};

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
        key: crate::node::random(),
        state: ReplicaState::Wanted,
        refused: None,
        unusable: None,
        instead_of,
        leave_to: None,
    };
    change(format!("replica/{id}"), None, &replica)
}

/// Devices as placement sees them.
pub(super) fn devices(catalog: &Catalog, alive: impl Fn(u32) -> bool) -> Vec<placement::Device> {
    let overcommit = catalog.cluster.as_ref().map_or(100, |(cluster, _)| u64::from(cluster.overcommit));
    let device = |(id, (device, _)): (&u32, &(catalog::Device, u64))| {
        let here = catalog.replicas.values().filter(|(replica, _)| replica.device == *id);
        let need = |(replica, _): &(Replica, u64)| {
            room::need(blocks_of(catalog, replica), replica.log_bytes, device.bytes)
        };
        let promised = here.map(need).sum();
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

/// Blocks that a replica can have of its volume as it is now.
pub(super) fn blocks_of(catalog: &Catalog, replica: &Replica) -> u64 {
    let volume = catalog.volumes.get(&replica.volume).map(|(volume, _)| volume);
    let layout =
        volume.and_then(|v| Layout::new(v.stripes, v.unit_blocks, v.group_blocks).ok().map(|l| (v, l)));
    let group = GroupIndex(replica.group);
    layout.map_or(0, |(volume, layout)| layout.blocks_in(group, volume.blocks))
}
