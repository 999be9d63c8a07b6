//! The volume that `loadline san dev` suggests to make: one that fits its devices.

use std::collections::{BTreeMap, BTreeSet};

use loadline_base::units::ByteSize;
use loadline_san_node::config::catalog::Role;
use loadline_san_node::node::manage::DeviceView;

const MIB: u64 = 1 << 20;
/// The sizes that are suggested, the largest first.
const SIZES: [u64; 8] = [1024, 512, 256, 128, 64, 32, 16, 8];
/// The log that a volume gets if none is named, and the smallest one, for which `room` is stated.
const LOGS: [u64; 2] = [256 * MIB, 32 * MIB];
/// Copies that a volume gets, if there are so many nodes.
const COPIES: usize = 2;

/// The size of a volume that fits, as options of `loadline volume create`. `None` if no size fits.
pub(super) fn size(devices: &[DeviceView]) -> Option<String> {
    let nodes: BTreeSet<&str> = devices.iter().map(|device| device.node.as_str()).collect();
    let mut free_logs: BTreeMap<&str, u64> = BTreeMap::new();
    for device in devices.iter().filter(|device| device.role == Role::Log) {
        // At most a quarter of it is for the checksums of data, which logs do not have.
        let free = device.bytes.saturating_sub(device.promised) / 4 * 3;
        let most = free_logs.entry(&device.node).or_default();
        *most = free.max(*most);
    }
    let fits = |device: &DeviceView, size: u64, log: u64| {
        // Room is stated for the smallest log, in whole chunks.
        let chunk = device.bytes / 128;
        match device.role {
            Role::Both => size + (log - LOGS[1]) + if log > LOGS[1] { chunk } else { 0 } <= device.room,
            Role::Capacity => {
                size <= device.room && free_logs.get(&*device.node).is_some_and(|free| log <= *free)
            }
            Role::Log => false,
        }
    };
    let all = SIZES.iter().flat_map(|size| LOGS.map(|log| (size * MIB, log)));
    let (size, log) = all.into_iter().find(|(size, log)| {
        let with_room = devices.iter().filter(|device| fits(device, *size, *log));
        let with_room: BTreeSet<&str> = with_room.map(|device| device.node.as_str()).collect();
        with_room.len() >= COPIES.min(nodes.len()).max(1)
    })?;
    let log = if log == LOGS[0] { String::new() } else { format!(" --log {}", ByteSize(log)) };
    Some(format!("--size {}{log}", ByteSize(size)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(node: &str, role: &str, mib: u64, room_mib: u64) -> DeviceView {
        serde_json::from_value(serde_json::json!({ "id": 1, "node": node, "path": "/x", "bytes": mib * MIB, "role": role,
            "promised": 0, "taken": 0, "room": room_mib * MIB, "replicas": 0, "draining": false, "replaced_by": null,
            "advice": null, "model": null, "keeps_up": null, "fault": null }))
        .unwrap()
    }

    #[test]
    fn the_largest_that_fits_two_nodes_is_suggested_with_a_smaller_log_if_it_must_be() {
        let both = |of: &[(u64, u64)]| {
            let all: Vec<DeviceView> = of
                .iter()
                .enumerate()
                .map(|(n, (mib, room))| device(&n.to_string(), "both", *mib, *room))
                .collect();
            size(&all)
        };
        assert_eq!(both(&[(4088, 3900); 3]).as_deref(), Some("--size 1GiB"));
        assert_eq!(both(&[(1022, 858); 2]).as_deref(), Some("--size 512MiB"));
        assert_eq!(both(&[(254, 155); 2]).as_deref(), Some("--size 128MiB --log 32MiB"));
        assert_eq!(both(&[(4088, 3900), (254, 155)]).as_deref(), Some("--size 128MiB --log 32MiB"));
        assert_eq!(both(&[(1022, 858)]).as_deref(), Some("--size 512MiB"), "one copy on one node");
        assert_eq!(both(&[(1022, 4); 2]), None);
        let apart = [device("a", "capacity", 4088, 4000), device("a", "log", 254, 0)];
        assert_eq!(size(&apart).as_deref(), Some("--size 1GiB --log 32MiB"));
        assert_eq!(size(&apart[..1]), None, "without a log device");
    }
}
