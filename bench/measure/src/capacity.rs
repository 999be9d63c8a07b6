//! How many I/Os a second a cluster carries, predicted from models of its devices: before anything is measured.
//!
//! The cluster is a closed network of devices. Each volume keeps a fixed number of I/Os outstanding. A read costs one device time: that of
//! the copy on the owner's node. A write costs every copy in sync: an append to the log, of several writes together, and later a write to where
//! the data stays (destage), unless a later write of the same block is in the log by then. A node has one device for both, or a log device
//! for the appends and a capacity device for the rest. The result is an interval:
//!
//! - **High**: nothing waits until a device is busy all the time. A volume does at most N / R I/Os a second, with N outstanding and R the time
//!   of one I/O that finds all devices idle; a device with the demand D for each I/O carries at most 1 / D. These are the asymptotic bounds of
//!   closed networks (P. J. Denning, J. P. Buzen, *The Operational Analysis of Queueing Network Models*, ACM Computing Surveys 10(3), 1978).
//!   Devices serve I/Os in the order of their arrival, so volumes at a busy device get shares in proportion to what they have outstanding.
//! - **Low**: each I/O finds all others that can be at its device in front of it, and a write waits for the append that is under way and for
//!   its own, which has no other write: a full log takes each as soon as there is room for it. With Little's law (J. D. C. Little,
//!   Operations Research 9(3), 1961), N = X · R, that time R gives the least X.
//!
//! What is not modelled: the machine's processors and network, but for an allowance in the low end ([`Software`]), and what loads before
//! have left in the logs.

use std::collections::BTreeMap;

use loadline_base::device_model::DeviceModel;
use loadline_base::figures::thousands;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use bounds::{Found, Placed};
use costs::End;
use servers::Servers;

mod bounds;
mod costs;
mod servers;

/// The writes of a destage that each copy keeps at its device at the least while its log is full.
const QUEUED: f64 = 4.0;
/// A measured figure may be outside of the interval by so much, for the chance of a window.
const TOLERANCE: f64 = 0.05;

/// Halvings after which a share is exact enough.
const HALVINGS: usize = 30;

/// Shares of the reads from log devices that are tried for the upper end, beside none.
const IN_LOG_STEPS: u32 = 8;

/// A load on each volume of a cluster.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// Bytes of each I/O.
    pub block: u64,
    /// The share of the I/Os that are writes, 0 to 1.
    pub write_share: f64,
    /// Whether I/Os go to places drawn at random.
    pub is_random: bool,
    /// Bytes of each volume that the load uses.
    pub working_set: u64,
    /// Bytes of the log of each replica.
    pub log: u64,
    /// How long the load runs until the end of its window, seconds,
    pub seconds: f64,
    /// and how much of that is before the window.
    pub warm_up: f64,
    /// Whether the volumes may have small random writes in their logs, so that a large read is made of many pieces.
    pub is_scattered: bool,
}

/// The devices of a node.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeDevices {
    /// The device with the data, and with the logs too if there is no log device.
    pub capacity: DeviceModel,
    /// The device with the logs.
    pub log: Option<DeviceModel>,
}

/// A volume, where its copies are, and what is asked of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Volume {
    /// The node that owns it.
    pub owner: String,
    /// The nodes of the copies in sync of each of its stripes.
    pub stripes: Vec<Vec<String>>,
    /// I/Os that its clients keep outstanding.
    pub outstanding: f64,
    /// I/Os a second that its clients offer, or that a limit allows: it carries no more.
    pub most_iops: Option<f64>,
}

/// What software and network add to a device's time at the most, seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Software {
    /// To a read.
    pub read_s: f64,
    /// To a write, which goes to other nodes too.
    pub write_s: f64,
    /// I/Os a second of all clients that the machine carries without models; `None`: not known.
    pub most_iops: Option<f64>,
}

impl Software {
    /// Nothing is added, and the machine carries any load.
    pub const NONE: Software = Software { read_s: 0.0, write_s: 0.0, most_iops: None };
}

/// A figure between two ends.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Range {
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

/// What a load on a cluster is predicted to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Prediction {
    /// I/Os a second of all volumes together.
    pub iops: Range,
    /// The mean response time, microseconds: what is outstanding divided by the I/Os a second; `null` of a load with a rate.
    pub mean_us: Option<Range>,
    /// The resource that limits the load, in words.
    pub binds: String,
    /// What the lower end assumes, in words.
    pub low_if: String,
    /// What the upper end assumes, in words.
    pub high_if: String,
}

impl Prediction {
    /// Whether a measured figure is within the interval, or outside of it by 5 % at the most, for the chance of a window.
    pub fn agrees(&self, iops: f64) -> bool {
        (self.departure(iops) - 1.0).abs() <= TOLERANCE
    }

    /// How a measured figure lies to the interval: 1 within it, below 1 the share of the lower end, above 1 the multiple of the upper end.
    pub fn departure(&self, iops: f64) -> f64 {
        if iops < self.iops.low {
            iops / self.iops.low
        } else if iops > self.iops.high {
            iops / self.iops.high
        } else {
            1.0
        }
    }
}

/// Predicts a load on these volumes. `None` if nothing is asked, if the devices of a node with a copy are not modelled, or if a volume has no
/// copy in sync.
pub fn predict(
    nodes: &BTreeMap<String, NodeDevices>,
    load: &Load,
    volumes: &[Volume],
    software: Software,
) -> Option<Prediction> {
    let servers = Servers::of(nodes);
    let mut placed = Vec::new();
    for volume in volumes {
        placed.push(Placed::of(volume, load, |node| servers.home(node))?);
    }
    if placed.is_empty() || load.block == 0 || placed.iter().any(|volume| volume.outstanding <= 0.0) {
        return None;
    }
    let (destaged, high) = highest(&servers, load, &placed, software);
    let low = lowest(&servers, load, &placed, software);
    let most = software.most_iops.unwrap_or(f64::INFINITY);
    let top = high.iops.min(most);
    let iops = Range { low: low.iops.min(top), high: top };
    let outstanding: f64 = placed.iter().map(|volume| volume.outstanding).sum();
    let is_closed = placed.iter().all(|volume| volume.most_iops.is_infinite());
    let mean_us =
        is_closed.then(|| Range { low: 1e6 * outstanding / iops.high, high: 1e6 * outstanding / iops.low });
    let binds = match top < high.iops {
        true => format!("the machine, which carries {} I/Os a second", thousands(most)),
        false => high.binds(&servers, load),
    };
    let writes = load.write_share > 0.0;
    let share = |end, destaged: f64| 100.0 * destaged * costs::survivors(load, end);
    let [low_if, high_if] = [
        (low.batch, share(End::Low, 1.0)),
        (high.batch, share(End::High { destaged }, destaged)),
    ]
    .map(|(batch, percent)| match writes {
        true => format!(
            "{batch:.1} writes in each append to a log, and {percent:.0} % of what is written destaged"
        ),
        false => String::new(),
    });
    let joined = |first: &str, more: String| {
        [first, &more].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")
    };
    Some(Prediction {
        iops,
        mean_us,
        binds,
        low_if: joined(
            "each I/O waits for all others at its device, and software and network add their most",
            low_if,
        ),
        high_if: joined("no I/O waits until a device is busy all the time", high_if),
    })
}

/// The upper end, and the share of what is written that must have left the logs when the window ends.
fn highest(servers: &Servers, load: &Load, placed: &[Placed], software: Software) -> (f64, Found) {
    let free = Software::NONE;
    let steps = if servers.have_logs() && load.write_share < 1.0 { IN_LOG_STEPS } else { 0 };
    let mut most: Option<(f64, Found)> = None;
    // What is still in a log is read from the log's device. How much that is depends on the past: the share that gives the most.
    for step in 0..=steps {
        let in_log = f64::from(step) / f64::from(steps.max(1));
        let with = |destaged| {
            let costs = servers.costs(load, End::High { destaged });
            bounds::high(&costs, load, placed, free, in_log)
        };
        // What the logs take need not be destaged in the window. The more is destaged, the less is written, and the less need be destaged:
        // the share at which both agree is found by halving.
        let (mut below, mut above) = (0.0, 1.0);
        let is_enough =
            |destaged| bounds::destaged_at_least(&with(destaged), load, placed, costs::ROOM) <= destaged;
        if is_full_before_window(servers, load, placed, software, in_log) {
            below = above;
        } else if is_enough(below) {
            above = below;
        }
        for _ in 0..HALVINGS {
            if below == above {
                break;
            }
            let middle = f64::midpoint(below, above);
            if is_enough(middle) { above = middle } else { below = middle }
        }
        let found = with(above);
        if most.as_ref().is_none_or(|(_, most)| found.iops > most.iops) {
            most = Some((above, found));
        }
    }
    most.expect("there is a first step")
}

/// Whether each log is surely full when the window begins: the least that is written in the warm-up is more than the log takes and the most that
/// destaging frees meanwhile.
fn is_full_before_window(
    servers: &Servers,
    load: &Load,
    placed: &[Placed],
    software: Software,
    in_log: f64,
) -> bool {
    if load.write_share == 0.0 {
        return false;
    }
    let written = bounds::low(&servers.costs(load, End::Low), load, placed, software, QUEUED, in_log);
    let only_writes = Load { write_share: 1.0, ..*load };
    let costs = servers.costs(&only_writes, End::High { destaged: 1.0 });
    let freed = bounds::high(&costs, &only_writes, placed, Software::NONE, in_log);
    bounds::are_full(&written, &freed, load, placed)
}

/// The lower end.
fn lowest(servers: &Servers, load: &Load, placed: &[Placed], software: Software) -> Found {
    let costs = servers.costs(load, End::Low);
    let ends = if servers.have_logs() && load.write_share < 1.0 { 1 } else { 0 };
    let of = |in_log| {
        let low = bounds::low(&costs, load, placed, software, 0.0, in_log);
        let room = if servers.have_logs() { bounds::SLOW } else { costs::ROOM };
        if bounds::destaged_at_least(&low, load, placed, room) == 0.0 {
            return low;
        }
        let low = bounds::low(&costs, load, placed, software, QUEUED, in_log);
        match servers.have_logs() {
            // Writers get what the capacity devices destage, beside the reads.
            true => low.at_most(&bounds::high(&costs, load, placed, software, in_log)),
            false => low,
        }
    };
    (0..=ends)
        .map(|end| of(f64::from(end)))
        .min_by(|a, b| a.iops.total_cmp(&b.iops))
        .expect("there is one end")
}

#[cfg(test)]
mod tests;
