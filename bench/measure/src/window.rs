//! The measured window: intervals of many disks, workers and seconds, merged.

use loadline_base::clock::Nanos;
use loadline_base::histogram::{EncodedHistogram, LatencyHistogram};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::heat::HeatMap;
use crate::interval::{Interval, Operations, Phase};
use crate::stall::Completions;
use crate::summary::LatencySummary;

/// The seconds of a window are kept one by one up to so many, a day; what is longer has its series beside it.
const MOST_SECONDS: u64 = 86_400;

/// I/Os that completed inside the window, whenever they were intended: the throughput.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Throughput {
    /// I/Os that succeeded.
    pub operations: u64,
    /// Bytes that they moved.
    pub bytes: u64,
}

/// What completed in one second of a window, of all operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct SecondTotals {
    reads: u64,
    writes: u64,
    bytes: u64,
    errors: u64,
    /// Sum of the response times, nanoseconds, and of how many.
    response_ns: u128,
    responses: u64,
}

impl SecondTotals {
    fn merge(&mut self, other: &SecondTotals) {
        self.reads = self.reads.saturating_add(other.reads);
        self.writes = self.writes.saturating_add(other.writes);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.errors = self.errors.saturating_add(other.errors);
        self.response_ns = self.response_ns.saturating_add(other.response_ns);
        self.responses = self.responses.saturating_add(other.responses);
    }
}

/// What was measured in a window of a known length, by any number of disks and workers.
#[derive(Debug, Clone, PartialEq)]
pub struct Window {
    length: Nanos,
    /// The reads intended inside the window.
    pub read: Operations,
    /// The writes intended inside the window.
    pub write: Operations,
    /// Completed − issued, of a rate-driven load.
    pub service: LatencyHistogram,
    /// The generator's own delay, of a rate-driven load.
    pub lateness: LatencyHistogram,
    read_done: Throughput,
    write_done: Throughput,
    completions: Completions,
    seconds: Vec<SecondTotals>,
    heat: HeatMap,
}

impl Window {
    /// An empty window of this length, which must be whole seconds: intervals are.
    pub fn new(length: Nanos) -> Window {
        assert!(length.0 > 0 && length.0.is_multiple_of(Nanos::SECOND.0), "a window has whole seconds");
        Window {
            length,
            read: Operations::default(),
            write: Operations::default(),
            service: LatencyHistogram::new(),
            lateness: LatencyHistogram::new(),
            read_done: Throughput::default(),
            write_done: Throughput::default(),
            completions: Completions::default(),
            seconds: vec![SecondTotals::default(); (length.0 / Nanos::SECOND.0).min(MOST_SECONDS) as usize],
            heat: HeatMap::new(length.0 / Nanos::SECOND.0),
        }
    }

    /// The length of the window.
    pub fn length(&self) -> Nanos {
        self.length
    }

    /// Counts one record, if the window has a part in it.
    pub fn add(&mut self, interval: &Interval) {
        if interval.phase == Phase::Measure {
            self.read.merge(&interval.read);
            self.write.merge(&interval.write);
            self.service.merge(&interval.service);
            self.lateness.merge(&interval.lateness);
        }
        if (0..(self.length.0 / Nanos::SECOND.0) as i64).contains(&interval.second) {
            for (done, ops) in
                [(&mut self.read_done, &interval.read), (&mut self.write_done, &interval.write)]
            {
                done.operations = done.operations.saturating_add(ops.completed());
                done.bytes = done.bytes.saturating_add(ops.bytes);
            }
            for ops in [&interval.read, &interval.write] {
                self.heat.add(interval.second as u64, &ops.response);
            }
            self.completions.add(interval.second, &interval.completions);
            let mut totals = SecondTotals {
                reads: interval.read.completed(),
                writes: interval.write.completed(),
                ..SecondTotals::default()
            };
            for ops in [&interval.read, &interval.write] {
                totals.bytes = totals.bytes.saturating_add(ops.bytes);
                totals.errors = totals.errors.saturating_add(ops.errors);
                totals.response_ns = totals.response_ns.saturating_add(ops.response.sum_ns());
                totals.responses = totals.responses.saturating_add(ops.response.count());
            }
            let second = usize::try_from(interval.second).ok().and_then(|n| self.seconds.get_mut(n));
            second.into_iter().for_each(|second| second.merge(&totals));
        }
    }

    /// Shortens it, where measuring ended early: nothing past `length` may have been added.
    pub fn cut(&mut self, length: Nanos) {
        assert!(length <= self.length && length.0 > 0 && length.0.is_multiple_of(Nanos::SECOND.0));
        self.length = length;
        self.heat.cut(length.0 / Nanos::SECOND.0);
        self.seconds.truncate((length.0 / Nanos::SECOND.0).min(MOST_SECONDS) as usize);
    }

    /// Adds what another measured in the same window.
    pub fn merge(&mut self, other: &Window) {
        assert_eq!(self.length, other.length, "windows of two lengths are not one window");
        self.read.merge(&other.read);
        self.write.merge(&other.write);
        self.service.merge(&other.service);
        self.lateness.merge(&other.lateness);
        for (mine, theirs) in
            [(&mut self.read_done, other.read_done), (&mut self.write_done, other.write_done)]
        {
            mine.operations = mine.operations.saturating_add(theirs.operations);
            mine.bytes = mine.bytes.saturating_add(theirs.bytes);
        }
        self.heat.merge(&other.heat);
        self.completions.merge(&other.completions);
        self.seconds.iter_mut().zip(&other.seconds).for_each(|(mine, theirs)| mine.merge(theirs));
    }

    /// What completed in each of its seconds, in order; of a window longer than a day, in those of its first day.
    pub fn seconds(&self) -> Vec<WindowSecond> {
        let second = |totals: &SecondTotals| WindowSecond {
            reads: totals.reads,
            writes: totals.writes,
            bytes: totals.bytes,
            errors: totals.errors,
            mean_us: (totals.responses > 0)
                .then(|| totals.response_ns as f64 / totals.responses as f64 / 1e3),
        };
        self.seconds.iter().map(second).collect()
    }

    /// How many I/Os that completed in it took how long, over time.
    pub fn heat(&self) -> &HeatMap {
        &self.heat
    }

    /// The longest time inside the window without any completion, in whole milliseconds.
    pub fn longest_stall_ms(&self) -> u64 {
        self.completions.longest_stall_ms(self.length.0 / Nanos::MILLISECOND.0)
    }

    /// I/Os that failed.
    pub fn errors(&self) -> u64 {
        self.read.errors.saturating_add(self.write.errors)
    }

    /// I/Os intended in the window that did not complete before waiting for them ended.
    pub fn censored(&self) -> u64 {
        self.read.censored.saturating_add(self.write.censored)
    }

    /// I/Os that completed inside the window, reads and writes.
    pub fn completed(&self) -> u64 {
        self.read_done.operations.saturating_add(self.write_done.operations)
    }

    /// The figures of the window.
    pub fn figures(&self) -> Figures {
        let mut total = self.read.clone();
        total.merge(&self.write);
        let done = Throughput {
            operations: self.completed(),
            bytes: self.read_done.bytes.saturating_add(self.write_done.bytes),
        };
        let figures = |done: Throughput, ops: &Operations| OperationFigures {
            iops: done.operations as f64 / self.length.as_secs(),
            bytes_per_s: done.bytes as f64 / self.length.as_secs(),
            latency_us: LatencySummary::of(&ops.response),
            censored: ops.censored,
            errors: ops.errors,
        };
        let rate_driven = |h: &LatencyHistogram| (!h.is_empty()).then(|| LatencySummary::of(h));
        Figures {
            window_s: self.length.as_secs(),
            total: figures(done, &total),
            read: figures(self.read_done, &self.read),
            write: figures(self.write_done, &self.write),
            service_us: rate_driven(&self.service),
            lateness_us: rate_driven(&self.lateness),
            longest_stall_ms: self.longest_stall_ms(),
            errors: self.errors(),
        }
    }

    /// Its histograms, as they are stored.
    pub fn histograms(&self) -> Histograms {
        let some = |h: &LatencyHistogram| (!h.is_empty()).then(|| h.encode());
        Histograms {
            read: some(&self.read.response),
            write: some(&self.write.response),
            service: some(&self.service),
            lateness: some(&self.lateness),
        }
    }
}

/// What completed in one second of a window.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WindowSecond {
    /// Reads that succeeded.
    pub reads: u64,
    /// Writes that succeeded.
    pub writes: u64,
    /// Bytes that both moved.
    pub bytes: u64,
    /// I/Os that failed.
    pub errors: u64,
    /// Mean response time of those that completed in it, microseconds; `null` if none did.
    pub mean_us: Option<f64>,
}

impl WindowSecond {
    /// I/Os that succeeded: in one second, so I/Os a second.
    pub fn iops(&self) -> f64 {
        self.reads.saturating_add(self.writes) as f64
    }
}

/// The figures of reads, of writes, or of both.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OperationFigures {
    /// I/Os a second that completed with success inside the window.
    pub iops: f64,
    /// Bytes a second that they moved.
    pub bytes_per_s: f64,
    /// Response times (completed − intended) of the I/Os intended inside the window, microseconds.
    pub latency_us: LatencySummary,
    /// I/Os among them that never completed: their age is in the latencies, as a lower bound.
    pub censored: u64,
    /// I/Os that failed; they are in no other figure.
    pub errors: u64,
}

/// The figures of a measured window.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Figures {
    /// The window's length, seconds.
    pub window_s: f64,
    /// Reads and writes.
    pub total: OperationFigures,
    /// Reads.
    pub read: OperationFigures,
    /// Writes.
    pub write: OperationFigures,
    /// Service times (completed − issued), microseconds; `null` in a closed loop, where they are the latencies.
    pub service_us: Option<LatencySummary>,
    /// The generator's own lateness, microseconds; `null` in a closed loop, which has no schedule.
    pub lateness_us: Option<LatencySummary>,
    /// The longest time without any completion, whole milliseconds.
    pub longest_stall_ms: u64,
    /// I/Os that failed.
    pub errors: u64,
}

/// The merged histograms of a measured window.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Histograms {
    /// Response times of the reads; `null` if there were none.
    pub read: Option<EncodedHistogram>,
    /// Response times of the writes; `null` if there were none.
    pub write: Option<EncodedHistogram>,
    /// Service times, of a rate-driven load.
    pub service: Option<EncodedHistogram>,
    /// The generator's lateness, of a rate-driven load.
    pub lateness: Option<EncodedHistogram>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reads(second: i64, phase: Phase, count: u64, latency: Nanos) -> Interval {
        let mut interval = Interval::new(second, phase, 0);
        for i in 0..count {
            interval.read.response.record(latency);
            interval.read.bytes += 4096;
            interval.completions.set(Nanos(i * 1_000_000));
        }
        interval
    }

    #[test]
    fn throughput_counts_completions_inside_and_latency_those_intended_inside() {
        let mut window = Window::new(Nanos(2 * Nanos::SECOND.0));
        window.add(&reads(-1, Phase::WarmUp, 5, Nanos(100)));
        window.add(&reads(0, Phase::WarmUp, 10, Nanos(200)));
        window.add(&reads(1, Phase::Measure, 20, Nanos(300)));
        window.add(&reads(7, Phase::Measure, 1, Nanos(5_000_000_000)));
        window.add(&reads(2, Phase::CoolDown, 9, Nanos(400)));
        let figures = window.figures();
        assert_eq!(figures.total.iops, 15.0, "10 that came late out of warm-up, and 20, in 2 s");
        assert_eq!(window.read.response.count(), 21, "the stalled one belongs to the window");
        assert_eq!(figures.total.latency_us.max, Some(5e6));
        let seconds: Vec<(u64, u64)> = window.seconds().iter().map(|s| (s.reads, s.bytes)).collect();
        assert_eq!(seconds, [(10, 40_960), (20, 81_920)], "by the second of completion");
        assert_eq!(window.seconds()[0].mean_us, Some(0.2));
    }

    #[test]
    fn windows_of_workers_merge_to_the_window_of_the_fleet() {
        let one = Nanos::SECOND;
        let (a, b) = (reads(0, Phase::Measure, 30, Nanos(100)), reads(0, Phase::Measure, 50, Nanos(900)));
        let mut fleet = Window::new(one);
        fleet.add(&a);
        fleet.add(&b);
        let (mut worker_a, mut worker_b) = (Window::new(one), Window::new(one));
        worker_a.add(&a);
        worker_b.add(&b);
        worker_a.merge(&worker_b);
        assert_eq!(worker_a, fleet);
        assert_eq!(fleet.figures().total.iops, 80.0);
        assert_eq!(fleet.longest_stall_ms(), 950);
    }
}
