//! The devices of all nodes in one list: those that have logs, data or both.

use std::collections::BTreeMap;

use loadline_base::device_model::DeviceModel;

use super::costs::{Costs, End};
use super::{Load, NodeDevices};

/// What a device is that has only logs.
const LOG: &str = "log ";

/// Where a copy is: the places of its devices in the list. They are the same if one device has both its log and its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Home {
    pub(super) log: usize,
    pub(super) capacity: usize,
}

/// All devices.
#[derive(Debug)]
pub(super) struct Servers<'a> {
    /// The name of the node, what of its devices it is ("log ", "capacity ", or nothing), and its model.
    devices: Vec<(&'a str, &'static str, &'a DeviceModel)>,
    homes: BTreeMap<&'a str, Home>,
}

impl<'a> Servers<'a> {
    pub(super) fn of(nodes: &'a BTreeMap<String, NodeDevices>) -> Servers<'a> {
        let (mut devices, mut homes) = (Vec::new(), BTreeMap::new());
        for (node, of_node) in nodes {
            let capacity = devices.len();
            let kind = if of_node.log.is_some() { "capacity " } else { "" };
            devices.push((node.as_str(), kind, &of_node.capacity));
            if let Some(model) = &of_node.log {
                devices.push((node.as_str(), LOG, model));
            }
            homes.insert(node.as_str(), Home { log: devices.len() - 1, capacity });
        }
        Servers { devices, homes }
    }

    /// The devices of a node; `None` if the node is not known.
    pub(super) fn home(&self, node: &str) -> Option<Home> {
        self.homes.get(node).copied()
    }

    /// Whether a node has a log device.
    pub(super) fn have_logs(&self) -> bool {
        self.homes.values().any(|home| home.log != home.capacity)
    }

    /// What I/Os of a load cost each device, in the order of the list.
    pub(super) fn costs(&self, load: &Load, end: End) -> Vec<Costs> {
        let of_device =
            |(_, kind, model): &(_, &str, &DeviceModel)| Costs::of(model, *kind != LOG, load, end);
        self.devices.iter().map(of_device).collect()
    }

    /// The node of a device.
    pub(super) fn node(&self, device: usize) -> &str {
        self.devices[device].0
    }

    /// What of its node's devices a device is: "log ", "capacity ", or nothing.
    pub(super) fn kind(&self, device: usize) -> &'static str {
        self.devices[device].1
    }
}
