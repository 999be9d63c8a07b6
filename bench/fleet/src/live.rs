//! The seconds of the whole fleet, for watching. Only the last few are kept: records that come later than shown
//! still count in the result, which is made elsewhere.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use loadline_base::clock::Nanos;
use loadline_base::histogram::LatencyHistogram;
use loadline_measure::interval::{Interval, Phase};
use loadline_measure::summary::LatencySummary;

use crate::event::{LiveSecond, WorkerSecond};
use crate::identity::WorkerId;

/// A second is shown so long after it ended: by then the records of all workers that are in time have come.
const SHOWN_AFTER: Nanos = Nanos(1_250_000_000);
/// Seconds kept at the most; each takes some 37 KiB.
const SECONDS_KEPT: usize = 16;

/// Classes of response times for each power of ten.
const CLASSES: f64 = 8.0;

/// What a worker did in a second.
#[derive(Default)]
struct OfWorker {
    iops: u64,
    errors: u64,
    sum_ns: u128,
    max: Nanos,
    oldest: Nanos,
}

#[derive(Default)]
struct Second {
    workers: BTreeMap<WorkerId, OfWorker>,
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
        if !second.workers.contains_key(worker) {
            second.workers.insert(worker.clone(), OfWorker::default());
        }
        let of = second.workers.get_mut(worker).expect("it was inserted");
        of.oldest = of.oldest.max(interval.oldest);
        for ops in [&interval.read, &interval.write] {
            second.iops += ops.completed();
            second.bytes = second.bytes.saturating_add(ops.bytes);
            second.errors = second.errors.saturating_add(ops.errors);
            second.response.merge(&ops.response);
            of.iops += ops.completed();
            of.errors = of.errors.saturating_add(ops.errors);
            of.sum_ns += ops.response.sum_ns();
            of.max = of.max.max(ops.response.max().unwrap_or(Nanos(0)));
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
                oldest_us: second.workers.values().map(|of| of.oldest.0 / 1000).max().unwrap_or(0),
                classes: classes(&second.response),
                worst: worst(second.workers),
            });
            self.next += 1;
        }
        due
    }
}

/// How many response times are in each class.
fn classes(response: &LatencyHistogram) -> Vec<u32> {
    let mut classes = Vec::new();
    for (latency, count) in response.buckets() {
        let class = (CLASSES * (latency.0.max(1000) as f64 / 1000.0).log10()) as usize;
        if classes.len() <= class {
            classes.resize(class + 1, 0u32);
        }
        classes[class] = classes[class].saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
    }
    classes
}

/// The workers with the longest waits, the worst first.
fn worst(workers: BTreeMap<WorkerId, OfWorker>) -> Vec<WorkerSecond> {
    let mut rows: Vec<(WorkerId, OfWorker)> = workers.into_iter().collect();
    rows.sort_by_key(|(_, of)| Reverse(of.max.max(of.oldest)));
    rows.truncate(LiveSecond::WORST);
    let shown = |(worker, of): (WorkerId, OfWorker)| WorkerSecond {
        worker,
        iops: of.iops,
        errors: of.errors,
        mean_us: (of.sum_ns / 1000).checked_div(u128::from(of.iops)).unwrap_or(0) as u64,
        max_us: of.max.0 / 1000,
        oldest_us: of.oldest.0 / 1000,
    };
    rows.into_iter().map(shown).collect()
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
    fn a_second_names_the_workers_that_wait_longest_and_counts_response_times_by_class() {
        let begin = Nanos(100 * Nanos::SECOND.0);
        let mut live = Live::new(begin, 0, 1, 0);
        for n in 0..20_u64 {
            let mut interval = Interval::new(0, Phase::Measure, 0);
            interval.read.response.record(Nanos(1_000 * (n + 1)));
            interval.read.response.record(Nanos(1_000 * (n + 1)));
            live.add(&WorkerId(format!("w{n:02}")), &interval);
        }
        let mut stuck = Interval::new(0, Phase::Measure, 0);
        stuck.oldest = Nanos(3_000_000_000);
        live.add(&WorkerId("w03".into()), &stuck);
        let shown = live.due(Nanos(u64::MAX)).remove(0);
        assert_eq!((shown.workers, shown.oldest_us), (20, 3_000_000));
        let names: Vec<&str> = shown.worst.iter().map(|of| of.worker.0.as_str()).collect();
        assert_eq!(names[..3], ["w03", "w19", "w18"]);
        assert_eq!(shown.worst.len(), LiveSecond::WORST);
        let first = &shown.worst[0];
        assert_eq!((first.iops, first.oldest_us, first.longest_us()), (2, 3_000_000, 3_000_000));
        assert_eq!(shown.worst[1].mean_us, 20);
        assert_eq!(shown.classes.iter().sum::<u32>(), 40);
        assert_eq!((shown.classes[0], shown.classes[8]), (2, 8), "{:?}", shown.classes);
    }

    #[test]
    fn what_is_shown_of_a_thousand_workers_is_no_more_than_of_twenty() {
        let shown = |workers: u64| {
            let mut live = Live::new(Nanos(0), 0, 1, 0);
            for n in 0..workers {
                let mut interval = record(0, 10);
                // From a microsecond to a second: all classes.
                (0..7).for_each(|power| interval.read.response.record(Nanos(1_000 * 10u64.pow(power))));
                live.add(&WorkerId(format!("w{n:04}")), &interval);
            }
            let second = live.due(Nanos(u64::MAX)).remove(0);
            assert_eq!(u64::from(second.workers), workers);
            serde_json::to_vec(&second).expect("it is numbers and texts").len()
        };
        let (few, many) = (shown(20), shown(1000));
        assert!(many < few + 100, "{few} and {many} bytes");
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
