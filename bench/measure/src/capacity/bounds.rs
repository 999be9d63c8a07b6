//! The two ends of the interval: how many I/Os a second volumes with fixed numbers of outstanding I/Os get of devices.

use super::costs::{BLOCK, Costs, ROOM, record_length, slowing};
use super::servers::{Home, Servers};
use super::{Load, Software, Volume};

/// Rounds after which the low end has settled, with each round half of the one before.
const ROUNDS: usize = 200;
/// A device that is busy for all but this share of the time is full.
const FULL: f64 = 1e-9;
/// While destaging frees so many times the backlog within which writers are slowed down, their rate comes within 2 % of what destaging frees:
/// with the price p, dp/dt = E / span (1 / p - 1), so E t / span = -p - ln(1 - p), which is 2.9 for p = 0.98. One more, because the least that
/// is freed is not known.
const SETTLES: f64 = 4.0;
/// What a log has at the least when writers are slowed down (`san/store/src/store/throttle.rs`), of its size.
pub(super) const SLOW: f64 = 0.5;

/// A volume whose devices are numbers.
#[derive(Debug, Clone)]
pub(super) struct Placed {
    pub(super) outstanding: f64,
    pub(super) most_iops: f64,
    /// The share of its reads that are served by the copy there.
    readers: Vec<(Home, f64)>,
    /// The copies of each stripe.
    stripes: Vec<Vec<Home>>,
    /// The most of its reads that can be of what a log has and extents do not have yet.
    in_log: f64,
}

impl Placed {
    /// `None` if a stripe has no copy, or a node is not known.
    pub(super) fn of(volume: &Volume, load: &Load, home: impl Fn(&String) -> Option<Home>) -> Option<Placed> {
        let owner = &volume.owner;
        home(owner)?;
        let mut stripes = Vec::new();
        let mut readers: Vec<(Home, f64)> = Vec::new();
        let share = 1.0 / volume.stripes.len().max(1) as f64;
        for copies in &volume.stripes {
            let homes: Vec<Home> = copies.iter().map(&home).collect::<Option<_>>()?;
            // The owner reads from its own copy; from one of the others, if it has none.
            match copies.iter().position(|node| node == owner) {
                Some(own) => readers.push((homes[own], share)),
                None => readers.extend(homes.iter().map(|home| (*home, share / homes.len() as f64))),
            }
            stripes.push(homes);
        }
        let is_whole = !stripes.is_empty() && stripes.iter().all(|copies| !copies.is_empty());
        let most_iops = volume.most_iops.unwrap_or(f64::INFINITY);
        let room = ROOM * load.log as f64 * stripes.len() as f64;
        let in_log = (room / load.working_set.max(BLOCK) as f64).min(1.0);
        let outstanding = volume.outstanding;
        is_whole.then_some(Placed { outstanding, most_iops, readers, stripes, in_log })
    }

    /// Each device that serves reads, and its share of them, if this share of what can be in the log is read from there.
    fn readers(&self, in_log: f64) -> impl Iterator<Item = (usize, f64)> {
        let in_log = in_log * self.in_log;
        self.readers
            .iter()
            .flat_map(move |(home, share)| {
                let of_log = if home.log == home.capacity { 0.0 } else { in_log };
                [(home.capacity, share * (1.0 - of_log)), (home.log, share * of_log)]
            })
            .filter(|(_, share)| *share > 0.0)
    }

    /// Each copy of each stripe, and the share of the volume's writes that it takes.
    fn copies(&self) -> impl Iterator<Item = (Home, f64)> {
        let share = 1.0 / self.stripes.len() as f64;
        self.stripes.iter().flatten().map(move |home| (*home, share))
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
    /// What of each device's time is reads, appends and destaging.
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
///
/// `in_log`: the share of what can be in a log that is read from there.
pub(super) fn high(
    costs: &[Costs],
    load: &Load,
    volumes: &[Placed],
    software: Software,
    in_log: f64,
) -> Found {
    let (reads, writes) = (1.0 - load.write_share, load.write_share);
    let demands: Vec<Vec<[f64; 3]>> = volumes
        .iter()
        .map(|volume| {
            let mut demand = vec![[0.0; 3]; costs.len()];
            for (device, share) in volume.readers(in_log) {
                demand[device][0] += reads * share * costs[device].read;
            }
            for (home, share) in volume.copies().filter(|_| writes > 0.0) {
                let Home { log, capacity } = home;
                // All that the volume has outstanding goes with one append.
                let batch = volume.outstanding.max(1.0);
                demand[log][1] += writes * share * costs[log].append(batch) / batch;
                demand[capacity][2] += writes * share * costs[capacity].destage;
                demand[log][2] += writes * share * costs[log].recall;
            }
            demand
        })
        .collect();
    let caps: Vec<(f64, Stop)> = volumes
        .iter()
        .map(|volume| {
            let read: f64 = volume
                .readers(in_log)
                .map(|(device, share)| share * (costs[device].read + costs[device].read_latency))
                .sum();
            let append = |home: Home| costs[home.log].append(1.0) + costs[home.log].append_latency;
            let write = volume.copies().map(|(home, _)| append(home)).fold(0.0, f64::max);
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
/// frees, so that it never ends. `in_log`: as in [`high`].
pub(super) fn low(
    costs: &[Costs],
    load: &Load,
    volumes: &[Placed],
    software: Software,
    queued: f64,
    in_log: f64,
) -> Found {
    let (reads, writes) = (1.0 - load.write_share, load.write_share);
    let mut each: Vec<f64> = vec![0.0; volumes.len()];
    // I/Os that are reads, and writes that each copy has to append.
    let mut reading: Vec<f64> = volumes.iter().map(|volume| volume.outstanding * reads).collect();
    let mut batches: Vec<f64> = volumes.iter().map(|volume| volume.outstanding * writes).collect();
    for _ in 0..ROUNDS {
        let mut work = vec![0.0; costs.len()];
        for (volume, (reading, batch)) in volumes.iter().zip(reading.iter().zip(&batches)) {
            for (device, share) in volume.readers(in_log) {
                work[device] += reading * share * costs[device].read;
            }
            for (home, share) in volume.copies().filter(|_| writes > 0.0) {
                let Home { log, capacity } = home;
                let of_stripe = batch * share;
                let at_once = queued * costs[capacity].piece;
                if log == capacity {
                    work[log] += of_stripe * costs[log].append(1.0);
                    work[log] += (of_stripe * (costs[log].destage + costs[log].recall)).max(at_once);
                } else {
                    // While the log has room, one append takes all that have arrived; what is destaged is no part of what writers wait for.
                    work[log] += costs[log].append(volume.outstanding * writes * share);
                    work[log] += if queued > 0.0 { costs[log].recalls } else { 0.0 };
                    work[capacity] += at_once;
                }
            }
        }
        for (v, volume) in volumes.iter().enumerate() {
            let read: f64 = volume
                .readers(in_log)
                .map(|(at, share)| share * (work[at].max(costs[at].read) + costs[at].read_latency))
                .sum();
            let append = volume
                .copies()
                .map(|(Home { log, .. }, _)| {
                    work[log].max(costs[log].append(1.0)) + costs[log].append_latency
                })
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

/// The share of what is written that leaves the logs at the least until the window ends: what they do not take, if they are empty when the
/// load begins. `room`: what a log takes, of its size.
pub(super) fn destaged_at_least(found: &Found, load: &Load, volumes: &[Placed], room: f64) -> f64 {
    let record = record(load);
    let (mut written, mut taken) = (0.0, 0.0);
    for (iops, volume) in found.each.iter().zip(volumes) {
        written += iops * load.write_share * load.seconds * record;
        taken += room * load.log as f64 * volume.stripes.len() as f64;
    }
    if written > taken { 1.0 - taken / written } else { 0.0 }
}

/// Whether the logs of all volumes are full when the window begins, if so much is written and so much is freed by destaging, in writes a
/// second; and writers had been slowed down for so long by then that they get no more than is freed.
pub(super) fn are_full(written: &Found, freed: &Found, load: &Load, volumes: &[Placed]) -> bool {
    let each = written.each.iter().zip(&freed.each).zip(volumes);
    each.into_iter().all(|((iops, freed), volume)| {
        let logs = load.log as f64 * volume.stripes.len() as f64;
        let (slow, high) = slowing(load.log as f64);
        let share = |backlog: f64| backlog / load.log as f64 * logs;
        let fills = (iops * load.write_share - freed) * record(load);
        let slowed_s = load.warm_up - share(slow) / fills;
        let settles = freed * record(load) * slowed_s >= SETTLES * share(high - slow).max(0.0);
        fills * load.warm_up >= ROOM * logs && settles
    })
}

fn record(load: &Load) -> f64 {
    record_length(load.block.div_ceil(BLOCK).max(1)) as f64
}

impl Found {
    /// The same, with each volume at no more than in the other.
    pub(super) fn at_most(mut self, other: &Found) -> Found {
        for (iops, most) in self.each.iter_mut().zip(&other.each) {
            *iops = iops.min(*most);
        }
        self.iops = self.each.iter().sum();
        self
    }

    /// What limits the load, in words: what stopped most of it.
    pub(super) fn binds(&self, servers: &Servers, load: &Load) -> String {
        let [device, outstanding, most] = self.stopped;
        if device < outstanding.max(most) {
            return match outstanding >= most {
                true => "what is outstanding: more at once would be more a second".into(),
                false => "what is offered, or the limit of the volumes".into(),
            };
        }
        let total = |busy: &[f64; 3]| busy.iter().sum::<f64>();
        let fullest = self.busy.iter().map(total).fold(0.0, f64::max);
        let mut full: Vec<usize> =
            (0..self.busy.len()).filter(|device| total(&self.busy[*device]) > 0.999 * fullest).collect();
        let Some(first) = full.first().copied() else { return "the devices".into() };
        full.retain(|device| servers.kind(*device) == servers.kind(first));
        let names: Vec<&str> = full.iter().map(|device| servers.node(*device)).collect();
        let plural = if full.len() == 1 { "" } else { "s" };
        let device = format!("the {}device{plural}", servers.kind(first));
        let shares = ["reads", "appends to logs", "destaging"].into_iter().zip(self.busy[first]);
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
