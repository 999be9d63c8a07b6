//! Which replica is on which devices.
//!
//! A replica has its log and its extents on one device, or its log on a log device and its extents on a capacity device of the same
//! node. Copies of one group are never in one failure domain, so that the failure of a domain takes one copy. Beyond that: the
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

/// What a device has of replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Their extents and their logs.
    Both,
    /// Logs of replicas whose extents are on capacity devices of its node.
    Log,
    /// Extents of replicas whose logs are on log devices of its node.
    Capacity,
}

/// A device as placement sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// The device, as the configuration numbers it.
    pub id: DeviceId,
    /// The node that has the device.
    pub node: NodeId,
    /// The failure domain of the device.
    pub domain: Domain,
    /// What it has of replicas.
    pub role: Role,
    /// Blocks that it can hold.
    pub capacity: u64,
    /// Blocks of them that are promised to replicas, written or not.
    pub promised: u64,
    /// Whether new replicas may come here: it is healthy, and is not being emptied.
    pub accepts: bool,
}

impl Device {
    /// Blocks that are promised to no replica.
    pub fn free(&self) -> u64 {
        self.capacity.saturating_sub(self.promised)
    }
}

/// Blocks that a replica takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// On the device with its extents.
    pub data: u64,
    /// On the device with its log. On a device that has both, the two add up.
    pub log: u64,
    /// On a log device, beside the log: its read cache. There is none on a device that has both.
    pub cache: u64,
}

impl Need {
    /// Blocks on one device that has both.
    pub fn both(self) -> u64 {
        self.data + self.log
    }

    /// Blocks that it takes of a device, in which it has its extents, of this role.
    fn on(self, role: Role) -> u64 {
        if role == Role::Both { self.both() } else { self.data }
    }
}

/// The devices of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The one with its extents.
    pub device: DeviceId,
    /// The one with its log: the same, or a log device of the same node.
    pub log: DeviceId,
}

/// The most copies of a group.
pub const MOST_COPIES: usize = 3;

/// Why so many nodes are not enough for so many copies.
fn too_few(copies: usize, domains: usize) -> String {
    let with = "with a device in service that stores data";
    if copies == 1 {
        return format!("1 copy needs a node {with}, and there is none: add a node, or a device");
    }
    let there = if domains == 1 { "is" } else { "are" };
    format!(
        "{copies} copies need {copies} nodes {with}, and there {there} {domains}: add a node, or ask for fewer copies"
    )
}

/// Why there is no place.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NoPlace {
    /// The number of copies is out of range.
    #[error("{0} copies: a group has 1 to {MOST_COPIES}")]
    Copies(usize),
    /// There are too few failure domains, however empty they are.
    #[error("{}", too_few(*copies, *domains))]
    Domains {
        /// The number of copies that was requested.
        copies: usize,
        /// Domains that have a device with extents in service.
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
    /// A capacity device has enough room, and no log device of such a node has.
    #[error(
        "the log of copy {copy} of group {group} needs {blocks} blocks on a log device of a node with a capacity device that \
         has room, and {}: add a log device",
        free.map_or("these nodes have no log device in service".into(), |free| format!("the emptiest has {free}"))
    )]
    Log {
        /// Which group of the volume.
        group: usize,
        /// Which copy of it, from 1.
        copy: usize,
        /// Blocks that the log needs.
        blocks: u64,
        /// Free blocks of the emptiest log device of these nodes. `None` if they have none in service.
        free: Option<u64>,
    },
}

/// Places the groups of a new volume, which need so much each: for each group, a place for each copy. `at`: where the
/// volume is to be used.
pub fn place(
    devices: &[Device],
    groups: &[Need],
    copies: usize,
    at: Option<NodeId>,
) -> Result<Vec<Vec<Place>>, NoPlace> {
    if !(1..=MOST_COPIES).contains(&copies) {
        return Err(NoPlace::Copies(copies));
    }
    let with_data = devices.iter().filter(|device| device.accepts && device.role != Role::Log);
    let domains: BTreeSet<Domain> = with_data.map(|device| device.domain).collect();
    if domains.len() < copies {
        return Err(NoPlace::Domains { copies, domains: domains.len() });
    }
    let mut room = Room { devices: devices.to_vec(), of_volume: BTreeMap::new() };
    let mut placed = Vec::with_capacity(groups.len());
    for (group, need) in groups.iter().enumerate() {
        let mut taken: BTreeSet<Domain> = BTreeSet::new();
        let mut replicas = Vec::with_capacity(copies);
        for copy in 1..=copies {
            let local = at.filter(|_| copy == 1);
            let found = local
                .and_then(|node| room.best(*need, &taken, |d| d.node == node).ok())
                .map_or_else(|| room.best(*need, &taken, |_| true), Ok)
                .map_err(|lack| lack.of(*need, group, copy))?;
            taken.insert(room.take(found, *need));
            replicas.push(room.place(found));
        }
        placed.push(replicas);
    }
    Ok(placed)
}

/// A place for one more copy of a group, which needs so much, and has copies on these devices already.
pub fn place_one(devices: &[Device], group: usize, need: Need, kept: &[DeviceId]) -> Result<Place, NoPlace> {
    let taken: BTreeSet<Domain> = devices.iter().filter(|d| kept.contains(&d.id)).map(|d| d.domain).collect();
    let room = Room { devices: devices.to_vec(), of_volume: BTreeMap::new() };
    let found = room.best(need, &taken, |_| true);
    found.map(|found| room.place(found)).map_err(|lack| lack.of(need, group, kept.len() + 1))
}

/// What is missing for a replica.
enum Lack {
    /// Room for its extents: the emptiest device has so many blocks free.
    Data(u64),
    /// Room for its log: the emptiest log device of a node with room for the extents has so many, if there is one.
    Log(Option<u64>),
}

impl Lack {
    fn of(self, need: Need, group: usize, copy: usize) -> NoPlace {
        match self {
            Lack::Data(free) => NoPlace::Room { group, copy, blocks: need.both(), free },
            Lack::Log(free) => NoPlace::Log { group, copy, blocks: need.log + need.cache, free },
        }
    }
}

/// The devices as they fill.
struct Room {
    devices: Vec<Device>,
    /// How many replicas of this volume each has already.
    of_volume: BTreeMap<DeviceId, u32>,
}

impl Room {
    /// The best device that has so much room, outside these domains, and the one for the log. By their indices.
    fn best(
        &self,
        need: Need,
        taken: &BTreeSet<Domain>,
        wanted: impl Fn(&Device) -> bool,
    ) -> Result<(usize, usize), Lack> {
        let (mut most, mut without_log) = (0, None);
        let mut best: Option<(usize, usize)> = None;
        for (index, device) in self.devices.iter().enumerate() {
            if !device.accepts
                || device.role == Role::Log
                || taken.contains(&device.domain)
                || !wanted(device)
            {
                continue;
            }
            most = most.max(device.free());
            if device.free() < need.on(device.role) {
                continue;
            }
            let log = match device.role {
                Role::Capacity => self.best_log(device.node, need.log + need.cache),
                Role::Both | Role::Log => Ok(index),
            };
            match log {
                Err(free) => without_log = without_log.max(Some(free)),
                Ok(log) if best.is_none_or(|(other, _)| self.is_better(device, &self.devices[other])) => {
                    best = Some((index, log));
                }
                Ok(_) => {}
            }
        }
        best.ok_or(without_log.map_or(Lack::Data(most), Lack::Log))
    }

    /// The emptiest log device of a node, if it has so much room; else the room that it has, if there is one.
    fn best_log(&self, node: NodeId, blocks: u64) -> Result<usize, Option<u64>> {
        let is_log = |device: &Device| device.accepts && device.role == Role::Log && device.node == node;
        let logs = self.devices.iter().enumerate().filter(|(_, device)| is_log(device));
        let fits = logs.clone().filter(|(_, device)| device.free() >= blocks);
        let best = fits.reduce(|best, next| if self.is_better(next.1, best.1) { next } else { best });
        best.map(|(index, _)| index).ok_or_else(|| logs.map(|(_, device)| device.free()).max())
    }

    fn is_better(&self, one: &Device, other: &Device) -> bool {
        let replicas = |d: &Device| self.of_volume.get(&d.id).copied().unwrap_or(0);
        // Shares are compared by multiplying across, which loses nothing.
        let share = |d: &Device, of: &Device| u128::from(d.promised) * u128::from(of.capacity);
        (replicas(one), share(one, other), one.id) < (replicas(other), share(other, one), other.id)
    }

    fn take(&mut self, (device, log): (usize, usize), need: Need) -> Domain {
        self.devices[device].promised += need.data;
        self.devices[log].promised += need.log + if device == log { 0 } else { need.cache };
        for id in BTreeSet::from([self.devices[device].id, self.devices[log].id]) {
            *self.of_volume.entry(id).or_insert(0) += 1;
        }
        self.devices[device].domain
    }

    fn place(&self, (device, log): (usize, usize)) -> Place {
        Place { device: self.devices[device].id, log: self.devices[log].id }
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
            role: Role::Both,
            capacity,
            promised: 0,
            accepts: true,
        };
        (0..nodes * each).map(device).collect()
    }

    /// One that takes so much of a device with both.
    fn need(blocks: u64) -> Need {
        Need { data: blocks, log: 0, cache: 0 }
    }

    fn both(id: u32) -> Place {
        Place { device: DeviceId(id), log: DeviceId(id) }
    }

    #[test]
    fn copies_are_in_different_domains_and_the_first_is_where_it_is_used() {
        let devices = cluster(4, 2, 1000);
        let placed = place(&devices, &[need(10); 4], 2, Some(NodeId(2))).unwrap();
        let nodes: Vec<Vec<u32>> =
            placed.iter().map(|group| group.iter().map(|p| p.device.0 / 2).collect()).collect();
        assert!(nodes.iter().all(|group| group[0] == 2 && group[1] != 2), "{nodes:?}");
        let firsts: Vec<u32> = placed.iter().map(|group| group[0].device.0).collect();
        assert_eq!(firsts, [4, 5, 4, 5], "over both devices of the node");
        let others: BTreeSet<u32> = placed.iter().map(|group| group[1].device.0).collect();
        assert_eq!(others.len(), 4, "the other copies are spread: {placed:?}");
    }

    #[test]
    fn a_full_node_gets_no_replica_although_the_volume_is_used_there() {
        let mut devices = cluster(3, 1, 1000);
        devices[0].promised = 995;
        let placed = place(&devices, &[need(10)], 2, Some(NodeId(0))).unwrap();
        assert_eq!(placed, [[both(1), both(2)]]);
    }

    #[test]
    fn what_has_no_place_is_refused_with_what_is_missing() {
        let devices = cluster(2, 3, 100);
        assert_eq!(place(&devices, &[need(1)], 0, None), Err(NoPlace::Copies(0)));
        assert_eq!(place(&devices, &[need(1)], 4, None), Err(NoPlace::Copies(4)));
        assert_eq!(place(&devices, &[need(1)], 3, None), Err(NoPlace::Domains { copies: 3, domains: 2 }));
        let error = place(&devices, &[need(100); 4], 2, None).unwrap_err();
        assert_eq!(error, NoPlace::Room { group: 3, copy: 1, blocks: 100, free: 0 });
        let mut leaving = cluster(2, 1, 100);
        leaving[1].accepts = false;
        assert_eq!(place(&leaving, &[need(1)], 2, None), Err(NoPlace::Domains { copies: 2, domains: 1 }));
    }

    #[test]
    fn a_replacement_goes_where_no_other_copy_is() {
        let mut devices = cluster(3, 2, 100);
        let kept = [DeviceId(0), DeviceId(4)];
        assert_eq!(place_one(&devices, 0, need(10), &kept), Ok(both(2)));
        devices[2].promised = 95;
        assert_eq!(place_one(&devices, 0, need(10), &kept), Ok(both(3)));
        devices[3].accepts = false;
        let error = place_one(&devices, 7, need(10), &kept).unwrap_err();
        assert_eq!(error, NoPlace::Room { group: 7, copy: 3, blocks: 10, free: 5 });
    }

    /// A node with a log device and two capacity devices, of so many blocks; and another with one that has both.
    fn hybrid(log: u64, capacity: u64) -> Vec<Device> {
        let mut devices = cluster(2, 3, capacity);
        devices.truncate(4);
        (devices[0].role, devices[0].capacity) = (Role::Log, log);
        (devices[1].role, devices[2].role) = (Role::Capacity, Role::Capacity);
        devices
    }

    #[test]
    fn a_log_is_on_a_log_device_of_the_node_and_extents_on_its_capacity_devices() {
        let need = Need { data: 10, log: 2, cache: 1 };
        let placed = place(&hybrid(12, 100), &[need; 4], 2, Some(NodeId(0))).unwrap();
        for copies in &placed {
            assert_eq!(copies[0].log, DeviceId(0), "{placed:?}");
            assert!([1, 2].contains(&copies[0].device.0), "{placed:?}");
            assert_eq!(copies[1], both(3));
        }
        let on_first = placed.iter().filter(|copies| copies[0].device.0 == 1).count();
        assert_eq!(on_first, 2, "over both capacity devices: {placed:?}");
    }

    #[test]
    fn a_full_log_device_is_named_as_what_is_missing() {
        let need = Need { data: 10, log: 2, cache: 1 };
        let mut devices = hybrid(12, 100);
        devices.truncate(3);
        let full = place(&devices, &[need; 5], 1, None).unwrap_err();
        assert_eq!(full, NoPlace::Log { group: 4, copy: 1, blocks: 3, free: Some(0) });
        devices[0].accepts = false;
        let none = place(&devices, &[need], 1, None).unwrap_err();
        assert_eq!(none, NoPlace::Log { group: 0, copy: 1, blocks: 3, free: None });
        devices.remove(0);
        assert_eq!(place_one(&devices, 0, need, &[]), Err(none));
        // A log device alone has no extents.
        let alone = place(&hybrid(12, 100)[..1], &[need], 1, None).unwrap_err();
        assert_eq!(alone, NoPlace::Domains { copies: 1, domains: 0 });
    }

    #[test]
    fn too_few_nodes_are_said_in_the_words_for_one_and_for_several() {
        let said = |copies, domains| NoPlace::Domains { copies, domains }.to_string();
        let with = "with a device in service that stores data";
        let one = said(1, 0);
        assert!(one.starts_with(&format!("1 copy needs a node {with}, and there is none")), "{one}");
        let two = said(2, 1);
        assert!(two.starts_with(&format!("2 copies need 2 nodes {with}, and there is 1:")), "{two}");
        let three = said(3, 2);
        assert!(three.starts_with(&format!("3 copies need 3 nodes {with}, and there are 2:")), "{three}");
    }

    #[test]
    fn logs_are_spread_over_the_log_devices_of_a_node() {
        let mut devices = hybrid(100, 100);
        devices[2].role = Role::Log;
        let placed = place(&devices[..3], &[Need { data: 1, log: 3, cache: 0 }; 6], 1, None).unwrap();
        let on_first = placed.iter().filter(|copies| copies[0].log.0 == 0).count();
        assert_eq!(on_first, 3, "{placed:?}");
    }

    proptest! {
        #[test]
        fn no_domain_has_two_copies_and_no_device_is_overfull(
            sizes in prop::collection::vec((0..6u32, 1..200u64, 0..100u64, any::<bool>(), 0..3u8), 1..12),
            groups in prop::collection::vec((1..60u64, 0..10u64, 0..5u64), 1..12),
            copies in 1..=MOST_COPIES,
            at in prop::option::of((0..6u32).prop_map(NodeId)),
        ) {
            let groups: Vec<Need> = groups.into_iter().map(|(data, log, cache)| Need { data, log, cache }).collect();
            let devices: Vec<Device> = (0..)
                .zip(sizes)
                .map(|(id, (node, capacity, promised, accepts, role))| Device {
                    id: DeviceId(id),
                    node: NodeId(node),
                    domain: Domain(node / 2),
                    role: [Role::Both, Role::Log, Role::Capacity][usize::from(role)],
                    capacity,
                    promised: promised.min(capacity),
                    accepts,
                })
                .collect();
            let Ok(placed) = place(&devices, &groups, copies, at) else { return Ok(()) };
            let mut promised: BTreeMap<DeviceId, u64> = devices.iter().map(|d| (d.id, d.promised)).collect();
            for (replicas, need) in placed.iter().zip(&groups) {
                let of = |id: DeviceId| devices.iter().find(|d| d.id == id).unwrap();
                let domains: BTreeSet<Domain> = replicas.iter().map(|p| of(p.device).domain).collect();
                prop_assert_eq!(domains.len(), copies);
                for place in replicas {
                    let (device, log) = (of(place.device), of(place.log));
                    prop_assert!(device.accepts && log.accepts && device.node == log.node);
                    let roles = (device.role, log.role, device.id == log.id);
                    let fit = [(Role::Both, Role::Both, true), (Role::Capacity, Role::Log, false)];
                    prop_assert!(fit.contains(&roles), "{:?}", roles);
                    *promised.get_mut(&place.device).unwrap() += need.data;
                    let cache = if place.device == place.log { 0 } else { need.cache };
                    *promised.get_mut(&place.log).unwrap() += need.log + cache;
                }
            }
            for device in &devices {
                prop_assert!(promised[&device.id] <= device.capacity);
            }
            prop_assert_eq!(place(&devices, &groups, copies, at), Ok(placed), "the same places again");
        }
    }
}
