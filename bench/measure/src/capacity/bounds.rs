//! The two ends of the interval: how many I/Os a second volumes with fixed numbers of outstanding I/Os get of devices.

use super::costs::{Costs, record_length};
use super::{Load, Software, Volume};

/// Rounds after which the low end has settled, with each round half of the one before.
const ROUNDS: usize = 200;
/// A device that is busy for all but this share of the time is full.
const FULL: f64 = 1e-9;
/// What writers may have in a log.
const ROOM: f64 = 7.0 / 8.0;

/// A volume whose nodes are numbers.
#[derive(Debug, Clone)]
pub(super) struct Placed {
    pub(super) outstanding: f64,
    pub(super) most_iops: f64,
    /// The share of its I/Os whose reads are served by this node.
    readers: Vec<(usize, f64)>,
    /// The nodes with copies of each stripe.
    stripes: Vec<Vec<usize>>,
}

impl Placed {
    /// `None` if a stripe has no copy, or a node is not known.
    pub(super) fn of(volume: &Volume, index: impl Fn(&String) -> Option<usize>) -> Option<Placed> {
        let owner = index(&volume.owner);
        let mut stripes = Vec::new();
        let mut readers: Vec<(usize, f64)> = Vec::new();
        let share = 1.0 / volume.stripes.len().max(1) as f64;
        for copies in &volume.stripes {
            let nodes: Vec<usize> = copies.iter().map(&index).collect::<Option<_>>()?;
            // The owner reads from its own copy; from one of the others, if it has none.
            match owner.filter(|owner| nodes.contains(owner)) {
                Some(owner) => readers.push((owner, share)),
                None => readers.extend(nodes.iter().map(|node| (*node, share / nodes.len() as f64))),
            }
            stripes.push(nodes);
        }
        let is_whole = !stripes.is_empty() && stripes.iter().all(|copies| !copies.is_empty());
        let most_iops = volume.most_iops.unwrap_or(f64::INFINITY);
        is_whole.then_some(Placed { outstanding: volume.outstanding, most_iops, readers, stripes })
    }

    /// Each copy of each stripe: its node, and the share of the volume's writes that it takes.
    fn copies(&self) -> impl Iterator<Item = (usize, f64)> {
        let share = 1.0 / self.stripes.len() as f64;
        self.stripes.iter().flatten().map(move |node| (*node, share))
    }
}

/// One end of the interval.
#[derive(Debug)]
pub(super) struct Found {
    /// I/Os a second of all volumes.
    pub(super) iops: f64,
    /// Writes in one append, the mean of all volumes.
    pub(super) batch: f64,
    each: Vec<f64>,
    /// What of each node's time is reads, appends and destaging.
    busy: Vec<[f64; 3]>,
    /// What stopped the volumes, and the I/Os a second of those that it stopped.
    stopped: [f64; 3],
}

/// What stops a volume: a device that is full, what it has outstanding, or its own most.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Stop {
    Device,
    Outstanding,
    Most,
}

/// The upper end: all volumes grow together, each in proportion to what it has outstanding, until it is stopped or one of its devices is full.
pub(super) fn high(costs: &[Costs], load: &Load, volumes: &[Placed], software: Software) -> Found {
    let (reads, writes) = (1.0 - load.write_share, load.write_share);
    let demands: Vec<Vec<[f64; 3]>> = volumes
        .iter()
        .map(|volume| {
            let mut demand = vec![[0.0; 3]; costs.len()];
            for (node, share) in &volume.readers {
                demand[*node][0] += reads * share * costs[*node].read;
            }
            for (node, share) in volume.copies().filter(|_| writes > 0.0) {
                // All that the volume has outstanding goes with one append.
                let batch = volume.outstanding.max(1.0);
                demand[node][1] += writes * share * costs[node].append(batch) / batch;
                demand[node][2] += writes * share * costs[node].destage;
            }
            demand
        })
        .collect();
    let caps: Vec<(f64, Stop)> = volumes
        .iter()
        .map(|volume| {
            let of_nodes = |nodes: &mut dyn Iterator<Item = usize>, time: &dyn Fn(&Costs) -> f64| {
                nodes.map(|node| time(&costs[node])).fold(0.0, f64::max)
            };
            let read =
                of_nodes(&mut volume.readers.iter().map(|(node, _)| *node), &|c| c.read + c.read_latency);
            let write =
                of_nodes(&mut volume.copies().map(|(node, _)| node), &|c| c.append(1.0) + c.append_latency);
            let time = reads * (read + software.read_s) + writes * (write + software.write_s);
            let by_time = volume.outstanding / time.max(f64::MIN_POSITIVE);
            if volume.most_iops < by_time {
                (volume.most_iops, Stop::Most)
            } else {
                (by_time, Stop::Outstanding)
            }
        })
        .collect();
    let mut each = vec![0.0; volumes.len()];
    let mut left: Vec<f64> = vec![1.0; costs.len()];
    let mut grows = vec![true; volumes.len()];
    let mut stopped = [0.0; 3];
    while grows.contains(&true) {
        let growing = || (0..volumes.len()).filter(|v| grows[*v]);
        let need: Vec<f64> = (0..costs.len())
            .map(|node| {
                growing().map(|v| volumes[v].outstanding * demands[v][node].iter().sum::<f64>()).sum()
            })
            .collect();
        let to_full = left.iter().zip(&need).filter(|(_, need)| **need > 0.0).map(|(left, need)| left / need);
        let to_cap = growing().map(|v| (caps[v].0 - each[v]) / volumes[v].outstanding);
        let step = to_full.chain(to_cap).fold(f64::INFINITY, f64::min).max(0.0);
        if !step.is_finite() {
            break;
        }
        growing().collect::<Vec<_>>().into_iter().for_each(|v| each[v] += step * volumes[v].outstanding);
        left.iter_mut().zip(&need).for_each(|(left, need)| *left -= step * need);
        let is_full = |node: usize| left[node] <= FULL;
        for v in growing().collect::<Vec<_>>() {
            let device =
                (0..costs.len()).any(|node| is_full(node) && demands[v][node].iter().sum::<f64>() > 0.0);
            let stop = match each[v] >= caps[v].0 * (1.0 - FULL) {
                _ if device => Stop::Device,
                true => caps[v].1,
                false => continue,
            };
            grows[v] = false;
            stopped[stop as usize] += each[v];
        }
    }
    let busy = (0..costs.len())
        .map(|node| {
            [0, 1, 2].map(|kind| each.iter().zip(&demands).map(|(iops, of)| iops * of[node][kind]).sum())
        })
        .collect();
    let batch = volumes.iter().map(|volume| volume.outstanding.max(1.0)).sum::<f64>() / volumes.len() as f64;
    Found { iops: each.iter().sum(), batch, each, busy, stopped }
}

/// The lower end: each I/O finds all others in front of it.
///
/// `queued`: so many writes of a destage each copy has at its device at the least, as while its log is full: writers get what destaging
/// frees, so that it never ends.
pub(super) fn low(
    costs: &[Costs],
    load: &Load,
    volumes: &[Placed],
    software: Software,
    queued: f64,
) -> Found {
    let (reads, writes) = (1.0 - load.write_share, load.write_share);
    let mut each: Vec<f64> = vec![0.0; volumes.len()];
    // I/Os that are reads, and writes that each copy has to append.
    let mut reading: Vec<f64> = volumes.iter().map(|volume| volume.outstanding * reads).collect();
    let mut batches: Vec<f64> = volumes.iter().map(|volume| volume.outstanding * writes).collect();
    for _ in 0..ROUNDS {
        let mut work = vec![0.0; costs.len()];
        for (volume, (reading, batch)) in volumes.iter().zip(reading.iter().zip(&batches)) {
            for (node, share) in &volume.readers {
                work[*node] += reading * share * costs[*node].read;
            }
            for (node, share) in volume.copies().filter(|_| writes > 0.0) {
                let of_stripe = batch * share;
                work[node] += of_stripe * costs[node].append(1.0);
                work[node] += (of_stripe * costs[node].destage).max(queued * costs[node].piece);
            }
        }
        for (v, volume) in volumes.iter().enumerate() {
            let read: f64 = volume
                .readers
                .iter()
                .map(|(node, share)| share * (work[*node].max(costs[*node].read) + costs[*node].read_latency))
                .sum();
            let append = volume
                .copies()
                .map(|(node, _)| work[node].max(costs[node].append(1.0)) + costs[node].append_latency)
                .fold(0.0, f64::max);
            // Before its own append a write waits for the one that is under way.
            let appends = if volume.outstanding > 1.0 { 2.0 } else { 1.0 };
            let (read, write) = (read + software.read_s, appends * append + software.write_s);
            each[v] = volume.outstanding / (reads * read + writes * write);
            reading[v] = f64::midpoint(reading[v], each[v] * reads * read);
            batches[v] = f64::midpoint(batches[v], each[v] * writes * append);
        }
    }
    let capped: Vec<f64> =
        each.iter().zip(volumes).map(|(iops, volume)| iops.min(volume.most_iops)).collect();
    Found { iops: capped.iter().sum(), batch: 1.0, each: capped, busy: Vec::new(), stopped: [0.0; 3] }
}

/// The share of what is written that is destaged at the least until the window ends: what the logs do not take, if they are empty when the
/// load begins.
pub(super) fn destaged_at_least(found: &Found, load: &Load, volumes: &[Placed]) -> f64 {
    let record = record_length(load.block.div_ceil(4096).max(1)) as f64;
    let (mut written, mut room) = (0.0, 0.0);
    for (iops, volume) in found.each.iter().zip(volumes) {
        written += iops * load.write_share * load.seconds * record;
        room += ROOM * load.log as f64 * volume.stripes.len() as f64;
    }
    if written > room { 1.0 - room / written } else { 0.0 }
}

impl Found {
    /// What limits the load, in words: what stopped most of it.
    pub(super) fn binds(&self, nodes: &[&String], load: &Load) -> String {
        let [device, outstanding, most] = self.stopped;
        if device < outstanding.max(most) {
            return match outstanding >= most {
                true => "what is outstanding: more at once would be more a second".into(),
                false => "what is offered, or the limit of the volumes".into(),
            };
        }
        let total = |busy: &[f64; 3]| busy.iter().sum::<f64>();
        let fullest = self.busy.iter().map(total).fold(0.0, f64::max);
        let full: Vec<usize> =
            (0..nodes.len()).filter(|node| total(&self.busy[*node]) > 0.999 * fullest).collect();
        let Some(first) = full.first() else { return "the devices".into() };
        let names: Vec<&str> = full.iter().map(|node| nodes[*node].as_str()).collect();
        let device = if full.len() == 1 { "the device" } else { "the devices" };
        let shares = ["reads", "appends to logs", "destaging"].into_iter().zip(self.busy[*first]);
        let shares: Vec<String> = shares
            .filter(|(_, share)| *share > 0.005)
            .map(|(what, share)| format!("{what} {:.0} %", 100.0 * share))
            .collect();
        match load.write_share > 0.0 {
            true => format!("{device} of {} ({})", names.join(", "), shares.join(", ")),
            false => format!("{device} of {}", names.join(", ")),
        }
    }
}
