//! Which replica is on which device.
//!
//! Copies of one group are never in one failure domain, so that the failure of a domain takes one copy. Beyond that: the
//! first copy is at the node where the volume is to be used, if it has room, so that reads are local; the groups of a
//! volume are spread, so that its stripes are; and the emptiest device comes first. The same input gives the same places.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use crate::ids::NodeId;

/// A file or block device that a node gives. Never used again for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u32);

/// Things that fail together: by default a node; or a rack, a room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Domain(pub u32);

/// A device as placement sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// The device, as the configuration numbers it.
    pub id: DeviceId,
    /// The node that has the device.
    pub node: NodeId,
    /// The failure domain of the device.
    pub domain: Domain,
    /// Blocks that it can hold.
    pub capacity: u64,
    /// Blocks of them that are promised to replicas, written or not.
    pub promised: u64,
    /// Whether new replicas may come here: it is healthy, and is not being emptied.
    pub accepts: bool,
}

impl Device {
    fn free(&self) -> u64 {
        self.capacity.saturating_sub(self.promised)
    }
}

/// The most copies of a group.
pub const MOST_COPIES: usize = 3;

/// Why there is no place.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NoPlace {
    /// The number of copies is out of range.
    #[error("{0} copies: a group has 1 to {MOST_COPIES}")]
    Copies(usize),
    /// There are too few failure domains, however empty they are.
    #[error(
        "{copies} copies need {copies} nodes with a device in service, and there are {domains}: add a node, or \
         ask for fewer copies"
    )]
    Domains {
        /// The number of copies that was requested.
        copies: usize,
        /// Domains that have a device in service.
        domains: usize,
    },
    /// No device has enough room.
    #[error(
        "copy {copy} of group {group} needs {blocks} blocks on a device of a node that has no other copy of the group, and \
         the emptiest has {free}: add a device, or make the volume smaller"
    )]
    Room {
        /// Which group of the volume.
        group: usize,
        /// Which copy of it, from 1.
        copy: usize,
        /// Blocks that it needs.
        blocks: u64,
        /// Free blocks of the emptiest device that may have it; 0 if there is none.
        free: u64,
    },
}

/// Places the groups of a new volume, of so many blocks each: for each group, a device for each copy. `at`: where the
/// volume is to be used.
pub fn place(
    devices: &[Device],
    groups: &[u64],
    copies: usize,
    at: Option<NodeId>,
) -> Result<Vec<Vec<DeviceId>>, NoPlace> {
    if !(1..=MOST_COPIES).contains(&copies) {
        return Err(NoPlace::Copies(copies));
    }
    let domains: BTreeSet<Domain> = devices.iter().filter(|d| d.accepts).map(|d| d.domain).collect();
    if domains.len() < copies {
        return Err(NoPlace::Domains { copies, domains: domains.len() });
    }
    let mut room = Room { devices: devices.to_vec(), of_volume: BTreeMap::new() };
    let mut placed = Vec::with_capacity(groups.len());
    for (group, blocks) in groups.iter().enumerate() {
        let mut taken: BTreeSet<Domain> = BTreeSet::new();
        let mut replicas = Vec::with_capacity(copies);
        for copy in 1..=copies {
            let local = at.filter(|_| copy == 1);
            let device = local
                .and_then(|node| room.best(*blocks, &taken, |d| d.node == node).ok())
                .map_or_else(|| room.best(*blocks, &taken, |_| true), Ok)
                .map_err(|free| NoPlace::Room { group, copy, blocks: *blocks, free })?;
            taken.insert(room.take(device, *blocks));
            replicas.push(room.devices[device].id);
        }
        placed.push(replicas);
    }
    Ok(placed)
}

/// A device for one more copy of a group, of so many blocks, which has copies on these already.
pub fn place_one(
    devices: &[Device],
    group: usize,
    blocks: u64,
    kept: &[DeviceId],
) -> Result<DeviceId, NoPlace> {
    let taken: BTreeSet<Domain> = devices.iter().filter(|d| kept.contains(&d.id)).map(|d| d.domain).collect();
    let room = Room { devices: devices.to_vec(), of_volume: BTreeMap::new() };
    match room.best(blocks, &taken, |_| true) {
        Ok(device) => Ok(devices[device].id),
        Err(free) => Err(NoPlace::Room { group, copy: kept.len() + 1, blocks, free }),
    }
}

/// The devices as they fill.
struct Room {
    devices: Vec<Device>,
    /// How many replicas of this volume each has already.
    of_volume: BTreeMap<DeviceId, u32>,
}

impl Room {
    /// The best device that has so much room, outside these domains; else the room of the emptiest.
    fn best(
        &self,
        blocks: u64,
        taken: &BTreeSet<Domain>,
        wanted: impl Fn(&Device) -> bool,
    ) -> Result<usize, u64> {
        let mut most = 0;
        let mut best: Option<(usize, &Device)> = None;
        for (index, device) in self.devices.iter().enumerate() {
            if !device.accepts || taken.contains(&device.domain) || !wanted(device) {
                continue;
            }
            most = most.max(device.free());
            if device.free() >= blocks && best.is_none_or(|(_, other)| self.is_better(device, other)) {
                best = Some((index, device));
            }
        }
        best.map(|(index, _)| index).ok_or(most)
    }

    fn is_better(&self, one: &Device, other: &Device) -> bool {
        let replicas = |d: &Device| self.of_volume.get(&d.id).copied().unwrap_or(0);
        // Shares are compared by multiplying across, which loses nothing.
        let share = |d: &Device, of: &Device| u128::from(d.promised) * u128::from(of.capacity);
        (replicas(one), share(one, other), one.id) < (replicas(other), share(other, one), other.id)
    }

    fn take(&mut self, device: usize, blocks: u64) -> Domain {
        let device = &mut self.devices[device];
        device.promised += blocks;
        *self.of_volume.entry(device.id).or_insert(0) += 1;
        device.domain
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// So many nodes with so many equal devices each; a node is a domain.
    fn cluster(nodes: u32, each: u32, capacity: u64) -> Vec<Device> {
        let device = |number: u32| Device {
            id: DeviceId(number),
            node: NodeId(number / each),
            domain: Domain(number / each),
            capacity,
            promised: 0,
            accepts: true,
        };
        (0..nodes * each).map(device).collect()
    }

    #[test]
    fn copies_are_in_different_domains_and_the_first_is_where_it_is_used() {
        let devices = cluster(4, 2, 1000);
        let placed = place(&devices, &[10; 4], 2, Some(NodeId(2))).unwrap();
        let nodes: Vec<Vec<u32>> =
            placed.iter().map(|group| group.iter().map(|d| d.0 / 2).collect()).collect();
        assert!(nodes.iter().all(|group| group[0] == 2 && group[1] != 2), "{nodes:?}");
        let firsts: Vec<u32> = placed.iter().map(|group| group[0].0).collect();
        assert_eq!(firsts, [4, 5, 4, 5], "over both devices of the node");
        let others: BTreeSet<u32> = placed.iter().map(|group| group[1].0).collect();
        assert_eq!(others.len(), 4, "the other copies are spread: {placed:?}");
    }

    #[test]
    fn a_full_node_gets_no_replica_although_the_volume_is_used_there() {
        let mut devices = cluster(3, 1, 1000);
        devices[0].promised = 995;
        let placed = place(&devices, &[10], 2, Some(NodeId(0))).unwrap();
        assert_eq!(placed, [[DeviceId(1), DeviceId(2)]]);
    }

    #[test]
    fn what_has_no_place_is_refused_with_what_is_missing() {
        let devices = cluster(2, 3, 100);
        assert_eq!(place(&devices, &[1], 0, None), Err(NoPlace::Copies(0)));
        assert_eq!(place(&devices, &[1], 4, None), Err(NoPlace::Copies(4)));
        assert_eq!(place(&devices, &[1], 3, None), Err(NoPlace::Domains { copies: 3, domains: 2 }));
        let error = place(&devices, &[100, 100, 100, 100], 2, None).unwrap_err();
        assert_eq!(error, NoPlace::Room { group: 3, copy: 1, blocks: 100, free: 0 });
        let mut leaving = cluster(2, 1, 100);
        leaving[1].accepts = false;
        assert_eq!(place(&leaving, &[1], 2, None), Err(NoPlace::Domains { copies: 2, domains: 1 }));
    }

    #[test]
    fn a_replacement_goes_where_no_other_copy_is() {
        let mut devices = cluster(3, 2, 100);
        let kept = [DeviceId(0), DeviceId(4)];
        assert_eq!(place_one(&devices, 0, 10, &kept), Ok(DeviceId(2)));
        devices[2].promised = 95;
        assert_eq!(place_one(&devices, 0, 10, &kept), Ok(DeviceId(3)));
        devices[3].accepts = false;
        let error = place_one(&devices, 7, 10, &kept).unwrap_err();
        assert_eq!(error, NoPlace::Room { group: 7, copy: 3, blocks: 10, free: 5 });
    }

    proptest! {
        #[test]
        fn no_domain_has_two_copies_and_no_device_is_overfull(
            sizes in prop::collection::vec((0..6u32, 1..200u64, 0..100u64, any::<bool>()), 1..12),
            groups in prop::collection::vec(1..60u64, 1..12),
            copies in 1..=MOST_COPIES,
            at in prop::option::of((0..6u32).prop_map(NodeId)),
        ) {
            let devices: Vec<Device> = (0..)
                .zip(sizes)
                .map(|(id, (node, capacity, promised, accepts))| Device {
                    id: DeviceId(id),
                    node: NodeId(node),
                    domain: Domain(node / 2),
                    capacity,
                    promised: promised.min(capacity),
                    accepts,
                })
                .collect();
            let Ok(placed) = place(&devices, &groups, copies, at) else { return Ok(()) };
            let mut promised: BTreeMap<DeviceId, u64> = BTreeMap::new();
            for (replicas, blocks) in placed.iter().zip(&groups) {
                let of = |id: &DeviceId| devices.iter().find(|d| d.id == *id).unwrap();
                let domains: BTreeSet<Domain> = replicas.iter().map(|id| of(id).domain).collect();
                prop_assert_eq!(domains.len(), copies);
                prop_assert!(replicas.iter().all(|id| of(id).accepts));
                replicas.iter().for_each(|id| *promised.entry(*id).or_insert(of(id).promised) += blocks);
            }
            for device in &devices {
                prop_assert!(promised.get(&device.id).is_none_or(|p| *p <= device.capacity));
            }
            prop_assert_eq!(place(&devices, &groups, copies, at), Ok(placed), "the same places again");
        }
    }
}
