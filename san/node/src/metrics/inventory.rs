//! What a node is, and what the configuration contains: nodes, devices, volumes, copies. With these metrics a dashboard shows what is
//! missing, and not only what reports.

use loadline_san_core::layout::BLOCK;
use loadline_san_core::volume::Status;

use super::page::Page;
use crate::config::catalog::{ReplicaState, VolumeState};
use crate::event_loop::command::{LoopState, ReplicaState as LoopReplica};
use crate::node::manage::room;
use crate::node::{Node, allocation};

/// Name, help, and the value of each labelled thing, if it is known.
type Gauge<T> = (&'static str, &'static str, fn(&T) -> Option<f64>);

/// Writes gauges of things that have labels.
fn gauges<T>(page: &mut Page, gauges: &[Gauge<T>], things: &[(Vec<(&str, String)>, T)]) {
    for (name, help, value) in gauges {
        page.metric(name, "gauge", help);
        for (labels, thing) in things {
            let labels: Vec<(&str, &str)> = labels.iter().map(|(name, value)| (*name, &**value)).collect();
            if let Some(value) = value(thing) {
                page.value(name, &labels, value);
            }
        }
    }
}

impl Node {
    /// All of it.
    pub(super) fn of_inventory(&self, loops: &[LoopState], page: &mut Page) {
        self.of_nodes(page);
        self.of_space(page);
        self.of_copies(loops, page);
    }

    fn of_nodes(&self, page: &mut Page) {
        let state = self.state();
        let cluster = self.cluster_id().to_string();
        let name = "loadline_node_info";
        page.metric(name, "gauge", "1: this node reports. Its labels say which node it is.");
        let labels = [("cluster", &*cluster), ("node", self.name()), ("version", env!("CARGO_PKG_VERSION"))];
        page.value(name, &labels, 1.0);
        let name = "loadline_cluster_node";
        page.metric(name, "gauge", "1 for each node of the cluster, as this node knows the configuration.");
        for (node, _) in state.catalog.nodes.values() {
            page.value(name, &[("cluster", &*cluster), ("node", &*node.name)], 1.0);
        }
        let name = "loadline_node_incarnation";
        page.metric(name, "gauge", "A number that is larger each time the process of the node starts.");
        page.value(name, &[], self.incarnation() as f64);
        let name = "loadline_store_fault";
        page.metric(name, "gauge", "1 if the node does not use the configuration store.");
        page.value(name, &[], f64::from(state.store.fault().is_some()));
    }

    fn of_space(&self, page: &mut Page) {
        struct Space {
            room: room::Space,
            taken: Option<u64>,
            fault: bool,
        }
        let state = self.state();
        let placed = allocation::devices(&state.catalog, |_| true);
        let here = state.catalog.devices.iter().zip(placed).filter(|((_, (of, _)), _)| of.node == self.id());
        let devices: Vec<_> = here
            .map(|((id, (device, _)), placed)| {
                let labels = vec![
                    ("device", id.to_string()),
                    ("path", device.path.display().to_string()),
                    ("role", device.role.name().to_owned()),
                ];
                let space = Space {
                    room: room::space(device.bytes, placed.promised),
                    taken: state.taken_of(*id),
                    fault: state.broken.contains_key(id),
                };
                (labels, space)
            })
            .collect();
        let all: [Gauge<Space>; 4] = [
            ("loadline_device_bytes", "Bytes that a device has for replicas.", |of| {
                Some(of.room.bytes as f64)
            }),
            ("loadline_device_promised_bytes", "Bytes of a device that are promised to replicas.", |of| {
                Some(of.room.promised as f64)
            }),
            ("loadline_device_taken_bytes", "Bytes of a device that replicas have taken.", |of| {
                of.taken.map(|taken| taken as f64)
            }),
            ("loadline_device_fault", "1 if the node does not use the device.", |of| {
                Some(f64::from(of.fault))
            }),
        ];
        gauges(page, &all, &devices);
    }

    fn of_copies(&self, loops: &[LoopState], page: &mut Page) {
        struct Wanted {
            bytes: u64,
            copies: u32,
            attached: bool,
        }
        let catalog = self.state().catalog.clone();
        let ready = catalog.volumes.iter().filter(|(_, (volume, _))| volume.state == VolumeState::Ready);
        let volumes: Vec<_> = ready
            .map(|(_, (volume, _))| {
                let wanted = Wanted {
                    bytes: volume.blocks * BLOCK,
                    copies: volume.copies,
                    attached: volume.attached.is_some(),
                };
                (vec![("volume", volume.name.clone())], wanted)
            })
            .collect();
        let all: [Gauge<Wanted>; 3] = [
            ("loadline_volume_bytes", "Size of a volume.", |of| Some(of.bytes as f64)),
            ("loadline_volume_copies", "Copies that a volume is to have.", |of| Some(f64::from(of.copies))),
            ("loadline_volume_attached", "1 if a node is to serve the volume.", |of| {
                Some(f64::from(of.attached))
            }),
        ];
        gauges(page, &all, &volumes);

        let name = |id: u64| Some(catalog.volumes.get(&id)?.0.name.clone());
        let served: Vec<_> = loops
            .iter()
            .flat_map(|of| &of.volumes)
            .filter_map(|of| {
                let serves = matches!(of.view.status, Status::Active | Status::Changing);
                Some((vec![("volume", name(of.id.0)?)], serves))
            })
            .collect();
        let all: [Gauge<bool>; 1] =
            [("loadline_volume_served", "1 if this node serves the volume.", |serves| {
                Some(f64::from(*serves))
            })];
        gauges(page, &all, &served);

        let open = |id: u64| loops.iter().flat_map(|of| &of.replicas).find(|of| of.id.0 == id);
        let here = catalog.replicas.iter().filter(|(_, (replica, _))| replica.node == self.id());
        let replicas: Vec<_> = here
            .filter(|(_, (replica, _))| replica.state == ReplicaState::Ready)
            .map(|(id, (replica, _))| {
                let volume = name(replica.volume).unwrap_or_default();
                (vec![("volume", volume), ("replica", id.to_string())], open(*id).is_some_and(is_usable))
            })
            .collect();
        let all: [Gauge<bool>; 1] =
            [("loadline_replica_usable", "1 if the node uses the replica.", |usable| {
                Some(f64::from(*usable))
            })];
        gauges(page, &all, &replicas);
    }
}

/// Whether a replica that is open is used.
fn is_usable(replica: &LoopReplica) -> bool {
    let view = &replica.view;
    !(replica.failed || replica.damaged || view.failed || view.damaged || view.went_back)
}

/// When this process has started, seconds since 1970, as the kernel counts it.
pub(super) fn process_started() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let ticks: f64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    let booted = std::fs::read_to_string("/proc/stat").ok()?;
    let booted: f64 = booted.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(booted + ticks / 100.0)
}

#[cfg(test)]
mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;

    #[test]
    fn this_process_has_started_a_moment_ago() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        let age = now - process_started().unwrap();
        // The kernel states the time of the boot in whole seconds.
        assert!((-2.0..600.0).contains(&age), "{age}");
    }
}
