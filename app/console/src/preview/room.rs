//! Whether a volume that is to be made can have room, as far as the status shows it.
//!
//! A node decides where copies are placed, and counts more exactly. What is refused here certainly has no room.

use std::collections::BTreeMap;

use loadline_base::units::ByteSize;
use loadline_san_node::config::catalog::Role;
use loadline_san_node::node::manage::{CreateVolume, DeviceView, StatusView};

use super::{LOG, copies, takers};

/// The log with which [`DeviceView::room`] is counted, bytes.
const LEAST_LOG: u64 = 32 << 20;
/// The most bytes of a volume that are placed together, with one log.
const GROUP: u64 = 16 << 30;

/// What the nodes that take new copies have room for.
struct Nodes {
    /// By name: bytes of all devices of the node, logs of data devices included, and bytes of the largest group that one of them can have
    /// with the least log.
    rooms: BTreeMap<String, (u64, u64)>,
    /// Whether logs are on the devices that are counted, and not on log devices.
    has_logs: bool,
}

impl Nodes {
    fn of(status: &StatusView) -> Nodes {
        let takers = takers(status);
        let takes = |device: &&DeviceView| {
            let is_free = !device.draining && device.replaced_by.is_none() && device.fault.is_none();
            is_free && device.role != Role::Log && takers.contains(&device.node.as_str())
        };
        let mut rooms = BTreeMap::new();
        let mut has_logs = true;
        for device in status.devices.iter().filter(takes) {
            let (all, most): &mut (u64, u64) = rooms.entry(device.node.clone()).or_default();
            *all += if device.room > 0 { device.room + LEAST_LOG } else { 0 };
            *most = (*most).max(device.room);
            has_logs &= device.role == Role::Both;
        }
        Nodes { rooms, has_logs }
    }

    /// Whether such a volume of so many bytes may have room.
    fn may_fit(&self, of: &CreateVolume, bytes: u64) -> bool {
        let log = if self.has_logs { of.log_bytes.unwrap_or(LOG).max(LEAST_LOG) } else { 0 };
        let stripe = bytes.div_ceil(u64::from(of.stripes));
        let groups = u64::from(of.stripes) * stripe.div_ceil(GROUP);
        let needed = bytes + groups * log;
        let fits = |(_, most): &(u64, u64)| stripe.min(GROUP) + log.saturating_sub(LEAST_LOG) <= *most;
        let is_first = of.at.as_ref().is_none_or(|at| self.rooms.get(at).is_some_and(fits));
        let nodes = self.rooms.values().filter(|room| fits(room)).count();
        // A node has one copy of the same data at most.
        let all: u64 = self.rooms.values().map(|(all, _)| (*all).min(needed)).sum();
        is_first && nodes >= of.copies as usize && all >= needed.saturating_mul(u64::from(of.copies))
    }
}

/// Whether the volume may have room. The error is for people.
pub(super) fn check(status: &StatusView, of: &CreateVolume) -> Result<(), String> {
    // Without a node that reports its devices nothing is known.
    if status.devices.is_empty() {
        return Ok(());
    }
    let nodes = Nodes::of(status);
    if nodes.may_fit(of, of.bytes) {
        return Ok(());
    }
    const MIB: u64 = 1 << 20;
    let (mut fits, mut too_large) = (0, of.bytes.div_ceil(MIB));
    while too_large - fits > 1 {
        let middle = fits + (too_large - fits) / 2;
        match nodes.may_fit(of, middle * MIB) {
            true => fits = middle,
            false => too_large = middle,
        }
    }
    let wanted = format!("{} of {}", copies(of.copies as usize), ByteSize(of.bytes).rounded());
    let log = ByteSize(of.log_bytes.unwrap_or(LOG)).rounded();
    Err(match fits {
        0 => format!(
            "there is no room for {wanted}, not even for a small volume with logs of {log}: give smaller logs, or add a device"
        ),
        _ => format!(
            "there is no room for {wanted}, each with a log of {log}: at most {} fit. Choose a smaller size, smaller logs or fewer copies, or add a \
             device",
            ByteSize(fits * MIB).rounded()
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preview::tests::{device_of, new, status};

    fn said(rooms: &[(&str, u64)], wanted: &CreateVolume) -> Result<(), String> {
        let devices = rooms.iter().map(|(node, mib)| device_of(node, mib << 20)).collect();
        check(&StatusView { devices, ..status() }, wanted)
    }

    fn of(mib: u64, copies: u32) -> CreateVolume {
        CreateVolume { bytes: mib << 20, ..new("vm", copies) }
    }

    #[test]
    fn what_is_larger_than_the_room_that_the_status_shows_is_refused_with_what_fits() {
        let rooms = [("a", 3584), ("b", 3000), ("c", 1000)];
        // A log of 256 MiB takes 224 MiB more than the least one.
        assert_eq!(said(&rooms, &of(3584 - 224, 1)), Ok(()));
        assert_eq!(said(&rooms, &of(3000 - 224, 2)), Ok(()));
        let why = said(&rooms, &of(10 << 10, 2)).unwrap_err();
        assert!(
            why.contains("no room for 2 copies of 10GiB") && why.contains("at most 2.71GiB fit"),
            "{why}"
        );
        let small = CreateVolume { log_bytes: Some(32 << 20), ..of(3000, 2) };
        assert_eq!(said(&rooms, &small), Ok(()), "a smaller log leaves more");
        let at = |node: &str| CreateVolume { at: Some(node.into()), ..of(2000, 2) };
        assert_eq!(said(&rooms, &at("a")), Ok(()));
        assert!(said(&rooms, &at("c")).unwrap_err().contains("at most 776MiB fit"));
        // Nodes that take no copies, and full ones.
        assert!(said(&[("a", 9000), ("d", 9000)], &of(100, 2)).is_err());
        assert!(said(&[("a", 0), ("b", 0)], &of(100, 2)).unwrap_err().contains("not even"));
        assert_eq!(said(&[], &of(100 << 10, 2)), Ok(()), "nothing is known of devices");
    }

    #[test]
    fn a_volume_of_several_groups_may_be_on_several_devices_of_a_node() {
        let rooms = [("a", 20 << 10), ("a", 20 << 10), ("b", 20 << 10), ("b", 20 << 10)];
        assert_eq!(said(&rooms, &of(32 << 10, 2)), Ok(()));
        assert!(said(&rooms, &of(48 << 10, 2)).is_err());
        let stripes = CreateVolume { stripes: 4, ..of(36 << 10, 2) };
        assert_eq!(said(&rooms, &stripes), Ok(()));
    }
}
