//! The seconds of the whole fleet, for watching. Only the last few are kept: records that come later than shown
//! still count in the result, which is made elsewhere.

use std::collections::{BTreeMap, BTreeSet};

use loadline_base::clock::Nanos;
use loadline_base::histogram::LatencyHistogram;
use loadline_measure::interval::{Interval, Phase};
use loadline_measure::summary::LatencySummary;

use crate::event::LiveSecond;
use crate::identity::WorkerId;

/// A second is shown so long after it ended: by then the records of all workers that are in time have come.
const SHOWN_AFTER: Nanos = Nanos(1_250_000_000);
/// Seconds kept at the most; each takes some 37 KiB.
const SECONDS_KEPT: usize = 16;

#[derive(Default)]
struct Second {
    workers: BTreeSet<WorkerId>,
    iops: u64,
    bytes: u64,
    errors: u64,
    response: LatencyHistogram,
}

/// Merges the records of all workers by second.
pub(crate) struct Live {
    /// When second 0 begins, on the controller's clock.
    begin: Nanos,
    /// The seconds of the window, and those of all load.
    measured: i64,
    all: i64,
    /// The next second to be shown.
    next: i64,
    seconds: BTreeMap<i64, Second>,
}

impl Live {
    /// For a step whose window begins at this instant, with phases of these lengths in whole seconds.
    pub(crate) fn new(begin: Nanos, warm_up: u64, measure: u64, cool_down: u64) -> Live {
        let (warm_up, measure, cool_down) = (warm_up as i64, measure as i64, cool_down as i64);
        Live { begin, measured: measure, all: measure + cool_down, next: -warm_up, seconds: BTreeMap::new() }
    }

    /// Counts a record.
    pub(crate) fn add(&mut self, worker: &WorkerId, interval: &Interval) {
        let n = interval.second;
        let known = self.seconds.contains_key(&n);
        if n < self.next || n >= self.all || (!known && self.seconds.len() >= SECONDS_KEPT) {
            return;
        }
        let second = self.seconds.entry(n).or_default();
        if !second.workers.contains(worker) {
            second.workers.insert(worker.clone());
        }
        for ops in [&interval.read, &interval.write] {
            second.iops += ops.completed();
            second.bytes = second.bytes.saturating_add(ops.bytes);
            second.errors = second.errors.saturating_add(ops.errors);
            second.response.merge(&ops.response);
        }
    }

    /// The seconds that have ended by now: when no more records will come.
    pub(crate) fn ended(&mut self, now: Nanos) -> Vec<LiveSecond> {
        self.due(Nanos(now.0.saturating_add(SHOWN_AFTER.0)))
    }

    /// The seconds that are to be shown by now. A second in which nothing completed is shown too.
    pub(crate) fn due(&mut self, now: Nanos) -> Vec<LiveSecond> {
        let passed = i128::from(now.0) - i128::from(self.begin.0) - i128::from(SHOWN_AFTER.0);
        let ended = passed.div_euclid(i128::from(Nanos::SECOND.0)).clamp(-1 << 40, 1 << 40) as i64;
        let mut due = Vec::new();
        while self.next < ended.min(self.all) {
            let second = self.seconds.remove(&self.next).unwrap_or_default();
            due.push(LiveSecond {
                second: self.next,
                phase: match self.next {
                    n if n < 0 => Phase::WarmUp,
                    n if n < self.measured => Phase::Measure,
                    _ => Phase::CoolDown,
                },
                workers: second.workers.len() as u32,
                iops: second.iops,
                bytes: second.bytes,
                errors: second.errors,
                latency_us: LatencySummary::of(&second.response),
            });
            self.next += 1;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(second: i64, reads: u64) -> Interval {
        let mut interval = Interval::new(second, Phase::Measure, 0);
        for _ in 0..reads {
            interval.read.response.record(Nanos(1_000));
            interval.read.bytes += 4096;
        }
        interval
    }

    #[test]
    fn seconds_of_all_workers_are_merged_and_shown_once_in_order_even_the_empty_ones() {
        let begin = Nanos(100 * Nanos::SECOND.0);
        let mut live = Live::new(begin, 1, 2, 1);
        live.add(&WorkerId("a".into()), &record(0, 300));
        live.add(&WorkerId("b".into()), &record(0, 200));
        live.add(&WorkerId("b".into()), &record(0, 10));
        assert_eq!(live.due(begin), []);
        let shown = live.due(Nanos(begin.0 + 2_300_000_000));
        assert_eq!(shown.iter().map(|s| s.second).collect::<Vec<_>>(), [-1, 0]);
        assert_eq!((shown[0].phase, shown[0].iops), (Phase::WarmUp, 0));
        assert_eq!((shown[1].workers, shown[1].iops, shown[1].bytes), (2, 510, 510 * 4096));
        assert!(shown[1].latency_us.p50.is_some() && shown[1].latency_us.p99.is_none());
        live.add(&WorkerId("a".into()), &record(0, 1));
        assert_eq!(live.ended(Nanos(begin.0 + 1_900_000_000)), [], "second 1 has not ended");
        let rest = live.ended(Nanos(u64::MAX));
        assert_eq!(rest.iter().map(|s| s.phase).collect::<Vec<_>>(), [Phase::Measure, Phase::CoolDown]);
    }

    #[test]
    fn records_of_absurd_seconds_take_no_memory() {
        let mut live = Live::new(Nanos(0), 0, 1_000, 0);
        for second in (0..1_000).chain([i64::MIN, i64::MAX]) {
            live.add(&WorkerId("a".into()), &record(second, 1));
        }
        assert!(live.seconds.len() <= SECONDS_KEPT);
    }
}
