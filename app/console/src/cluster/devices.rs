//! What is known of the devices: what they did in this second, what has gone wrong since the console follows them, and how they fill.

use std::collections::{BTreeMap, BTreeSet};

use loadline_san_node::node::manage::{DeviceSample, Ios, Sample, StatusView};

use super::causes::{Causes, Part};
use crate::full::{Full, Growth};
use crate::view::{DeviceRow, Flow, MOST_DEVICES, NextFull, Now, Overall};

/// What has gone wrong on a device.
#[derive(Debug, Clone, Copy, Default)]
struct Wrong {
    errors: u64,
    corrupt: u64,
}

/// The devices of a cluster, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Devices {
    /// What they did in this second.
    now: BTreeMap<u32, DeviceSample>,
    /// The nodes that have reported in this second.
    reported: BTreeSet<String>,
    wrong: BTreeMap<u32, Wrong>,
    growth: BTreeMap<u32, Growth>,
    /// The device with the data of each replica.
    replicas: BTreeMap<u64, u32>,
}

fn kinds(of: &DeviceSample) -> [&Ios; 5] {
    [&of.log_reads, &of.log_writes, &of.data_reads, &of.data_writes, &of.syncs]
}

/// I/Os of two kinds together.
fn flow(one: &Ios, other: &Ios) -> Flow {
    let (ios, bytes) = (one.ios + other.ios, one.bytes + other.bytes);
    let mean_us = (ios > 0).then(|| (one.sum_us + other.sum_us) as f64 / ios as f64);
    Flow { ios, bytes, mean_us }
}

impl Devices {
    /// Nothing is known yet of what they do in this second.
    pub(super) fn begin_second(&mut self) {
        self.now.clear();
        self.reported.clear();
    }

    /// A node has sent this. If several come in a second, the last one is shown, and what went wrong is counted of all.
    pub(super) fn add(&mut self, node: &str, sample: &Sample) {
        self.reported.insert(node.to_owned());
        for device in &sample.devices {
            let errors: u64 = kinds(device).iter().map(|of| of.errors).sum();
            if errors > 0 {
                self.wrong.entry(device.id).or_default().errors += errors;
            }
            self.now.insert(device.id, device.clone());
        }
        for replica in sample.replicas.iter().filter(|of| of.corrupt > 0) {
            if let Some(device) = self.replicas.get(&replica.id) {
                self.wrong.entry(*device).or_default().corrupt += replica.corrupt;
            }
        }
    }

    /// A status has come: devices that it does not name were removed.
    pub(super) fn learn(&mut self, status: &StatusView) {
        let replicas = status.volumes.iter().flat_map(|volume| &volume.replicas);
        self.replicas = replicas.map(|replica| (replica.id, replica.device)).collect();
        let is_there = |id: &u32| status.devices.iter().any(|device| device.id == *id);
        self.growth.retain(|id, _| is_there(id));
        self.wrong.retain(|id, _| is_there(id));
    }

    /// Adds the devices to what a page gets, and what is wrong with them to the causes. `second` is that of the console's clock, if the status
    /// is new: then what is taken now is known.
    pub(super) fn show(
        &mut self,
        status: &StatusView,
        second: Option<u64>,
        view: &mut Now,
        causes: &mut Causes,
    ) {
        for of in &status.devices {
            // A device without copies does nothing, and its node does not name it.
            let idle = self.reported.contains(&of.node).then(DeviceSample::default);
            let done = self.now.get(&of.id).or(idle.as_ref());
            let wrong = self.wrong.get(&of.id).copied().unwrap_or_default();
            // That a node does not report is said of the node.
            let is_asked = status.nodes.iter().any(|node| node.name == of.node && node.alive);
            if let Some(fault) = of.fault.as_ref().filter(|_| is_asked) {
                let name = format!("{} of {}", of.id, of.node);
                causes.add(Part::Device, Overall::Degraded, &name, &format!(": {fault}"));
            }
            let growth = self.growth.entry(of.id).or_default();
            if let Some((second, taken)) = second.zip(of.taken) {
                growth.add(second, taken);
            }
            let full = of.taken.map(|taken| growth.full(of.bytes, of.promised, taken));
            let seconds = match full {
                Some(Full::IsFull) => Some(0.0),
                Some(Full::Grows { seconds, .. }) => Some(seconds),
                _ => None,
            };
            if let Some(seconds) =
                seconds.filter(|of| view.next_full.as_ref().is_none_or(|next| *of < next.seconds))
            {
                view.next_full = Some(NextFull { device: of.id, node: of.node.clone(), seconds });
            }
            match of.taken {
                Some(taken) => {
                    view.space[0] += of.bytes;
                    view.space[1] += of.promised;
                    view.space[2] += taken;
                }
                // It is not 0.
                None => view.space_unknown += 1,
            }
            view.devices.push(DeviceRow {
                id: of.id,
                node: of.node.clone(),
                path: of.path.clone(),
                role: of.role.name().into(),
                bytes: of.bytes,
                promised: of.promised,
                taken: of.taken,
                reads: done.map(|of| flow(&of.log_reads, &of.data_reads)),
                writes: done.map(|of| flow(&of.log_writes, &of.data_writes)),
                errors: done.map(|of| kinds(of).iter().map(|of| of.errors).sum()),
                errors_so_far: wrong.errors,
                corrupt_so_far: wrong.corrupt,
                full,
                model: of.model.clone(),
                fault: of.fault.clone(),
            });
        }
        view.devices_total = view.devices.len();
        let worst = |row: &DeviceRow| {
            let mean = |of: &Option<Flow>| of.and_then(|of| of.mean_us).unwrap_or(0.0);
            mean(&row.reads).max(mean(&row.writes))
        };
        view.devices.sort_by(|a, b| {
            let needs_a_person =
                |of: &DeviceRow| (of.fault.is_some(), of.errors_so_far > 0 || of.corrupt_so_far > 0);
            needs_a_person(b)
                .cmp(&needs_a_person(a))
                .then(worst(b).total_cmp(&worst(a)))
                .then(a.id.cmp(&b.id))
        });
        view.devices.truncate(MOST_DEVICES);
    }
}
