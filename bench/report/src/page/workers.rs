//! The workers of a step, and which of them stand out from the others.

use loadline_measure::stats::median;
use loadline_study::folder::result::WorkerResult;
use schemars::JsonSchema;
use serde::Serialize;

/// A worker stands out if it differs from the median of all by more than this many deviations.
const DEVIATIONS: f64 = 3.5;
/// And by more than this share of the median: where all are much alike, a tiny difference is none.
const LEAST: f64 = 0.1;
/// So many workers are needed for one to stand out from.
const FEWEST: usize = 4;
/// The median absolute deviation × this is the standard deviation of a normal distribution.
const NORMAL: f64 = 1.4826;

/// One worker of a step.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkerRow {
    /// Its name.
    pub worker: String,
    /// Its node.
    pub node: String,
    /// Its host.
    pub host: String,
    /// I/Os a second.
    pub iops: f64,
    /// Mean response time, microseconds.
    pub mean_us: Option<f64>,
    /// 99th percentile, microseconds; `null` if it has too few I/Os for one.
    pub p99_us: Option<f64>,
    /// The longest time in which it completed nothing, milliseconds.
    pub longest_stall_ms: u64,
    /// I/Os that failed.
    pub errors: u64,
    /// Why it did not finish, if it did not.
    pub lost: Option<String>,
}

impl WorkerRow {
    /// Of its result.
    pub(crate) fn of(worker: &WorkerResult) -> WorkerRow {
        let figures = &worker.figures;
        WorkerRow {
            worker: worker.worker.id.to_string(),
            node: worker.worker.node.clone(),
            host: worker.worker.host.clone(),
            iops: figures.total.iops,
            mean_us: figures.total.latency_us.mean,
            p99_us: figures.total.latency_us.p99,
            longest_stall_ms: figures.longest_stall_ms,
            errors: figures.errors,
            lost: worker.lost.as_ref().map(|loss| loss.message.clone()),
        }
    }
}

/// A worker that stands out, for the worse.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Straggler {
    /// Its name.
    pub worker: String,
    /// Its node.
    pub node: String,
    /// In what: `iops` or `p99`.
    pub what: String,
    /// Its figure ÷ the median of all workers.
    pub ratio: f64,
}

/// The workers with far fewer IOPS, or a far larger 99th percentile, than the others: further from the median than 3.5
/// times the scaled median absolute deviation (Iglewicz and Hoaglin 1993) and a tenth. Lost workers are reported
/// elsewhere.
pub fn stragglers(workers: &[WorkerRow]) -> Vec<Straggler> {
    let whole: Vec<&WorkerRow> = workers.iter().filter(|worker| worker.lost.is_none()).collect();
    let iops = |worker: &WorkerRow| Some(worker.iops);
    let mut found = far(&whole, "iops", iops, |value, limit| value < -limit);
    found.extend(far(&whole, "p99", |worker| worker.p99_us, |value, limit| value > limit));
    found
}

/// `is_worse` is asked with the distance from the median and how far is far.
fn far(
    workers: &[&WorkerRow],
    what: &str,
    figure: impl Fn(&WorkerRow) -> Option<f64>,
    is_worse: impl Fn(f64, f64) -> bool,
) -> Vec<Straggler> {
    let figures: Vec<f64> = workers.iter().filter_map(|worker| figure(worker)).collect();
    let Some(middle) = median(&figures).filter(|middle| *middle > 0.0 && figures.len() >= FEWEST) else {
        return Vec::new();
    };
    let distances: Vec<f64> = figures.iter().map(|value| (value - middle).abs()).collect();
    let limit = (DEVIATIONS * NORMAL * median(&distances).unwrap_or(0.0)).max(LEAST * middle);
    let worker = |worker: &&&WorkerRow| figure(worker).is_some_and(|value| is_worse(value - middle, limit));
    let straggler = |worker: &&WorkerRow| {
        Some(Straggler {
            worker: worker.worker.clone(),
            node: worker.node.clone(),
            what: what.into(),
            ratio: figure(worker)? / middle,
        })
    };
    workers.iter().filter(worker).filter_map(straggler).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(name: &str, iops: f64, p99_us: f64) -> WorkerRow {
        WorkerRow {
            worker: name.into(),
            node: "n".into(),
            host: "h".into(),
            iops,
            mean_us: None,
            p99_us: Some(p99_us),
            longest_stall_ms: 0,
            errors: 0,
            lost: None,
        }
    }

    #[test]
    fn one_that_does_far_less_is_named_and_one_that_does_more_is_not() {
        let mut workers: Vec<WorkerRow> =
            (0..8).map(|i| worker(&format!("w{i}"), 1_000.0 + f64::from(i), 500.0)).collect();
        assert_eq!(stragglers(&workers), []);
        workers[3].iops = 600.0;
        workers[4].iops = 2_000.0;
        workers[5].p99_us = Some(5_000.0);
        let found = stragglers(&workers);
        let named: Vec<(&str, &str)> = found.iter().map(|s| (s.worker.as_str(), s.what.as_str())).collect();
        assert_eq!(named, [("w3", "iops"), ("w5", "p99")]);
        assert!((found[1].ratio - 10.0).abs() < 1e-9);
        workers[3].lost = Some("killed".into());
        assert_eq!(stragglers(&workers).len(), 1, "that it was lost is told elsewhere");
    }

    #[test]
    fn where_all_differ_much_no_worker_stands_out_and_of_three_none_can() {
        let spread: Vec<WorkerRow> =
            (1..9).map(|i| worker(&format!("w{i}"), 200.0 * f64::from(i), 1.0)).collect();
        assert_eq!(stragglers(&spread), []);
        assert_eq!(stragglers(&[worker("a", 9.0, 1.0), worker("b", 9.0, 1.0), worker("c", 1.0, 1.0)]), []);
    }
}
