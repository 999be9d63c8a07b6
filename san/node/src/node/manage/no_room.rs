//! Why a volume or a copy has no place, in bytes and by device, as a person needs it to decide what to do.

use std::cmp::Reverse;

use loadline_base::figures::counted;
use loadline_base::units::ByteSize;
use loadline_san_core::ids::NodeId;
use loadline_san_core::layout::BLOCK;
use loadline_san_core::placement::{Device, MOST_COPIES, Need, NoPlace, Role, place_one};

use super::{ManageError, room};
use crate::config::catalog::Catalog;

/// Devices that a message lists.
const MOST_LISTED: usize = 8;

/// A volume, or the part by which it grows, that was to be placed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted<'a> {
    /// The volume's name.
    pub(super) name: &'a str,
    /// Copies of each group.
    pub(super) copies: usize,
    /// Blocks of data of each group.
    pub(super) groups: &'a [u64],
    /// Bytes of the log of each replica.
    pub(super) log_bytes: u64,
}

/// The error for a volume that could not be placed on these devices.
pub(super) fn of_volume(
    why: NoPlace,
    catalog: &Catalog,
    devices: &[Device],
    wanted: Wanted<'_>,
) -> ManageError {
    match why {
        NoPlace::Room { .. } => {}
        NoPlace::Log { blocks, free, .. } => return ManageError::NoRoom(of_log(wanted.name, blocks, free)),
        NoPlace::Copies(copies) => return wrong_copies(copies),
        NoPlace::Domains { .. } => return why.into(),
    }
    let Wanted { name, copies, groups, log_bytes } = wanted;
    let data = groups.iter().sum::<u64>() * BLOCK;
    let logs = log_bytes * groups.len() as u64;
    let need = |blocks: &u64| room::need_anywhere(catalog, *blocks, log_bytes).both() * BLOCK;
    let all: u64 = groups.iter().map(need).sum();
    let parts = match groups.len() {
        1 => "in one group".to_owned(),
        count => format!("in {count} groups of at most {}", size(groups.iter().map(need).max().unwrap_or(0))),
    };
    ManageError::NoRoom(format!(
        "there is no room for volume {name} with {}: each copy needs {} ({parts}): {} for data, {} for logs, and \
         {} because a device allocates whole chunks. The copies of a group must be on different nodes. {}: add a device, make \
         the volume smaller, or give it a smaller log",
        counted(copies as u64, "copy"),
        size(all),
        size(data),
        size(logs),
        size(all.saturating_sub(data + logs)),
        free(catalog, devices),
    ))
}

/// Why a copy of a volume has no place for its log, which needs so many blocks, although a capacity device has room for its data. The emptiest
/// log device of such nodes has so much free, if there is one.
fn of_log(name: &str, blocks: u64, free: Option<u64>) -> String {
    let why = match free {
        None => "but no node with room for the data has a log device in service".to_owned(),
        Some(free) => {
            format!(
                "but the emptiest log device of the nodes with room for the data has only {} free",
                size(free * BLOCK)
            )
        }
    };
    format!(
        "there is no room for the logs of volume {name}: the log of a copy whose data is on a capacity device needs {}, with its read cache, on a log device of \
         the same node, {why}. Add a log device ('loadline device add --role log'), or give the volume a smaller log",
        size(blocks * BLOCK)
    )
}

/// A device without room for the growth of the copies that it has.
#[derive(Debug, Clone)]
pub(super) struct Lacks {
    /// The device.
    pub(super) device: Device,
    /// Blocks by which these copies grow.
    pub(super) more: u64,
}

/// The error for a volume that has no room to grow. Each copy needs so many blocks (`present`) for the groups that the volume has, beside its
/// new groups, which are those that are `wanted`.
pub(super) fn of_growth(
    catalog: &Catalog,
    devices: &[Device],
    wanted: Wanted<'_>,
    present: u64,
    lacks: Option<Lacks>,
) -> ManageError {
    let Wanted { name, copies, groups, log_bytes } = wanted;
    let new: u64 = groups.iter().map(|blocks| room::need_anywhere(catalog, *blocks, log_bytes).both()).sum();
    let all = (present + new) * BLOCK;
    let data = (present + groups.iter().sum::<u64>()) * BLOCK;
    let logs = log_bytes * groups.len() as u64;
    let and_what = match lacks {
        None => format!("{}: add a device, or choose a smaller size", free(catalog, devices)),
        Some(Lacks { device, more }) => {
            let node = catalog.nodes.get(&device.node.0).map_or("?", |(node, _)| &node.name);
            format!(
                "Device {} of {node} would have to take {} of that, beside the copies that it has, and has only {} free: add a device and move \
                 the copies to it, or choose a smaller size",
                device.id.0,
                size(more * BLOCK),
                size(device.free() * BLOCK)
            )
        }
    };
    ManageError::NoRoom(format!(
        "there is no room to make volume {name} so large: {} needs {} more: {} for data, {} for logs, and {} because \
         a device allocates whole chunks. {and_what}",
        if copies == 1 { "its copy".into() } else { format!("each of its {copies} copies") },
        size(all),
        size(data),
        size(logs),
        size(all.saturating_sub(data + logs)),
    ))
}

/// The error for a copy that needs so much, and for which a node has no room although the volume is to be used there.
pub(super) fn at_node(catalog: &Catalog, devices: &[Device], node: NodeId, need: Need) -> ManageError {
    let name = catalog.nodes.get(&node.0).map_or("?", |(node, _)| &node.name);
    let mut here = devices.to_vec();
    here.iter_mut().for_each(|device| device.accepts &= device.node == node);
    let why = match place_one(&here, 0, need, &[]) {
        _ if here.iter().all(|device| !device.accepts || device.role == Role::Log) => {
            "it has no device in service that stores data".to_owned()
        }
        Err(NoPlace::Log { blocks, free: Some(free), .. }) => format!(
            "the log of a copy needs {}, with its read cache, and its emptiest log device has {} free",
            size(blocks * BLOCK),
            size(free * BLOCK)
        ),
        Err(NoPlace::Log { free: None, .. }) => "it has no log device in service".to_owned(),
        _ => {
            let free = here.iter().filter(|device| device.accepts && device.role != Role::Log);
            let free = free.map(Device::free).max().unwrap_or(0);
            format!(
                "a copy needs {}, and its emptiest device has {} free",
                size(need.both() * BLOCK),
                size(free * BLOCK)
            )
        }
    };
    ManageError::NoRoom(format!(
        "node {name} has no room for the volume's first copy: {why}. Add a device to the node, name another node with --at, or leave out --at"
    ))
}

/// The message for one more copy of a group, which has a log of so many bytes, that could not be placed.
pub(crate) fn of_copy(why: &NoPlace, log_bytes: u64) -> String {
    match why {
        NoPlace::Room { blocks, free, .. } => format!(
            "a copy needs {} (including {} for its log) on a node that has no other copy of the same data, but the emptiest \
             device of these nodes has only {} free: add a device",
            size(blocks * BLOCK),
            size(log_bytes),
            size(free * BLOCK)
        ),
        NoPlace::Log { blocks, free: Some(free), .. } => format!(
            "the log of a copy needs {}, with its read cache, on a log device, but the emptiest log device of the nodes with room for the data has only {} free: add a \
             log device",
            size(blocks * BLOCK),
            size(free * BLOCK)
        ),
        NoPlace::Log { free: None, .. } => {
            "no node with room for the data on a capacity device has a log device in service: add a log device".into()
        }
        other => other.to_string(),
    }
}

/// The error for a number of copies that is not possible.
pub(super) fn wrong_copies(copies: usize) -> ManageError {
    ManageError::Wrong(format!("{copies} copies are not possible: a volume has 1 to {MOST_COPIES} copies"))
}

/// Bytes, rounded for people.
pub(super) fn size(bytes: u64) -> String {
    ByteSize(bytes).rounded()
}

/// What each device has free, the emptiest first.
fn free(catalog: &Catalog, devices: &[Device]) -> String {
    let mut devices: Vec<&Device> =
        devices.iter().filter(|device| device.accepts && device.role != Role::Log).collect();
    devices.sort_by_key(|device| (Reverse(device.free()), device.id));
    let listed = devices.iter().take(MOST_LISTED).map(|device| {
        let node = catalog.nodes.get(&device.node.0).map_or("?", |(node, _)| &node.name);
        let free = device.free() * BLOCK;
        let kind = match device.role {
            Role::Both => "device",
            Role::Log => "log device",
            Role::Capacity => "capacity device",
        };
        format!(
            "{kind} {} of {node} has {} of {} free",
            device.id.0,
            size(free),
            size(device.capacity * BLOCK)
        )
    });
    let mut text = listed.collect::<Vec<_>>().join(", ");
    match devices.len() {
        0 => text.push_str("no device that stores data is in service"),
        more if more > MOST_LISTED => text.push_str(&format!(", and {} more have less", more - MOST_LISTED)),
        _ => {}
    }
    let rest = text.split_off(text.len().min(1));
    text.to_uppercase() + &rest
}
