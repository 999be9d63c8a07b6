//! Warming up until the load is steady: judges the fleet's seconds, round by round.

use std::collections::BTreeMap;

use loadline_base::histogram::LatencyHistogram;
use loadline_fleet::WorkerId;
use loadline_load::VerifyReport;
use loadline_measure::audit::{Finding, FindingKind};
use loadline_measure::interval::EncodedInterval;
use loadline_measure::steady::{ROUNDS, Steadiness, steadiness};
use loadline_measure::summary::is_deep_enough;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The percentile that is judged beside the IOPS, as advice: its name, and how many in a million lie beyond.
const PERCENTILE: (&str, u64) = ("p99", 10_000);

/// How a warm-up until the load is steady went.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WarmUp {
    /// The step before which it was: steps of one sweep share it.
    pub step: u32,
    /// How long it was, seconds.
    pub seconds: u64,
    /// Whether the load was steady at its end.
    pub steady: bool,
    /// IOPS over the last five rounds; `null` if it ended before there were five.
    pub iops: Option<Steadiness>,
    /// Workers that were lost in it: then the state of their disks is unknown, and no other step shares it.
    #[serde(default)]
    pub lost_workers: u32,
    /// The same of the 99th percentile, microseconds, as advice; `null` if a round had too few I/Os for one.
    pub p99_us: Option<Steadiness>,
}

/// The warm-up that runs.
pub(crate) struct Settling {
    round_s: u64,
    limit_s: u64,
    seconds: u64,
    /// Whether it has ended: what comes until the workers have stopped counts no more.
    ended: bool,
    lost: u32,
    /// Bad blocks that each worker reported.
    pub(crate) bad: BTreeMap<WorkerId, VerifyReport>,
    /// I/Os of the round that has not ended.
    current: f64,
    /// IOPS of each round that has.
    rounds: Vec<f64>,
    /// Response times of the last rounds, by their number.
    responses: BTreeMap<u64, LatencyHistogram>,
}

impl Settling {
    pub(crate) fn new(round_s: u64, limit_s: u64) -> Settling {
        Settling {
            round_s,
            limit_s,
            seconds: 0,
            ended: false,
            lost: 0,
            bad: BTreeMap::new(),
            current: 0.0,
            rounds: Vec::new(),
            responses: BTreeMap::new(),
        }
    }

    /// Takes what a worker measured in a second.
    pub(crate) fn record(&mut self, interval: &EncodedInterval) {
        let Ok(second) = u64::try_from(interval.second) else { return };
        let round = second / self.round_s;
        let ended = self.rounds.len() as u64;
        // What comes far too late or too early is left out: this is advice.
        if second >= self.limit_s || round + (ROUNDS as u64) < ended || round > ended + 1 {
            return;
        }
        let Ok(interval) = interval.decode() else { return };
        let responses = self.responses.entry(round).or_default();
        responses.merge(&interval.read.response);
        responses.merge(&interval.write.response);
    }

    /// A worker is lost. What the others do from here on is another load, so the warm-up ends, and was none.
    pub(crate) fn lose(&mut self) {
        self.lost = self.lost.saturating_add(1);
    }

    /// A second of the fleet has passed with so many I/Os. Says whether that ends the warm-up.
    pub(crate) fn second(&mut self, operations: u64) -> bool {
        if self.ended {
            return true;
        }
        self.seconds += 1;
        self.current += operations as f64;
        if self.seconds.is_multiple_of(self.round_s) {
            self.rounds.push(std::mem::take(&mut self.current) / self.round_s as f64);
            let oldest = (self.rounds.len() as u64).saturating_sub(ROUNDS as u64);
            self.responses.retain(|round, _| *round >= oldest);
        }
        self.ended = self.lost > 0 || steadiness(&self.rounds).is_some_and(|found| found.steady);
        self.ended
    }

    /// How it went, for the steps that share it.
    pub(crate) fn outcome(&self, step: u32) -> WarmUp {
        let iops = steadiness(&self.rounds);
        let last = self.rounds.len().saturating_sub(ROUNDS) as u64..self.rounds.len() as u64;
        let tails: Option<Vec<f64>> = last
            .map(|round| {
                let responses = self.responses.get(&round)?;
                is_deep_enough(responses.count(), PERCENTILE.1)
                    .then(|| responses.quantile(1.0 - PERCENTILE.1 as f64 / 1e6).map(|p| p.as_micros()))
                    .flatten()
            })
            .collect();
        WarmUp {
            step,
            seconds: self.seconds,
            steady: self.lost == 0 && iops.is_some_and(|iops| iops.steady),
            iops,
            lost_workers: self.lost,
            p99_us: tails.and_then(|tails| steadiness(&tails)),
        }
    }
}

/// The finding of a warm-up that reached its limit before the load was steady; `None` if it was steady.
pub(crate) fn not_steady(warm_up: &WarmUp) -> Option<Finding> {
    (!warm_up.steady).then(|| {
        if warm_up.lost_workers > 0 {
            return Finding::doubt(
                FindingKind::NotSteady,
                "every worker to warm up its disks",
                format!("{} were lost in the warm-up, {} s after it began", warm_up.lost_workers, warm_up.seconds),
                "Their disks are measured without the rest of the warm-up: see events.jsonl, and workers/ in the run's folder.",
            );
        }
        let found = match warm_up.iops {
            Some(iops) => format!(
                "after {} s the last five rounds lay {:.0} % apart, and their trend was {:+.0} %",
                warm_up.seconds,
                100.0 * iops.range,
                100.0 * iops.slope
            ),
            None => format!("{} s of warm-up, less than five rounds", warm_up.seconds),
        };
        Finding::doubt(
            FindingKind::NotSteady,
            "IOPS of five rounds within 20 % of their mean, and their trend within 10 % (SNIA PTS)",
            found,
            "The storage still fills a buffer, rebuilds or collects garbage, or something else uses it: allow a longer \
             warm-up ([phases.steady] limit), and look at the series.",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use loadline_base::clock::Nanos;
    use loadline_measure::interval::{Interval, Phase};

    fn run(settling: &mut Settling, seconds: impl IntoIterator<Item = u64>) -> Option<u64> {
        for (at, operations) in seconds.into_iter().enumerate() {
            let mut interval = Interval::new(at as i64, Phase::Measure, 0);
            interval.read.response.record_many(Nanos(1_000_000), operations);
            settling.record(&interval.encode());
            if settling.second(operations) {
                return Some(at as u64 + 1);
            }
        }
        None
    }

    #[test]
    fn it_ends_as_soon_as_five_rounds_are_steady() {
        // A buffer that is full after 20 s, rounds of 4 s: steady after the five rounds from 20 s on.
        let mut settling = Settling::new(4, 100);
        let seconds = (0..100).map(|at| if at < 20 { 30_000 } else { 11_000 });
        assert_eq!(run(&mut settling, seconds), Some(20), "the full speed of the buffer is steady too");
        let falling = (0..100).map(|at| if at < 50 { 60_000 - 900 * at } else { 15_000 });
        let mut settling = Settling::new(4, 100);
        assert_eq!(run(&mut settling, falling), Some(68));
        // What is still on its way when it has ended does not make it unsteady again.
        (0..8).for_each(|_| assert!(settling.second(0)));
        let outcome = settling.outcome(3);
        assert!(outcome.steady && outcome.step == 3 && outcome.seconds == 68, "{outcome:?}");
        assert!((outcome.p99_us.unwrap().mean / 1_000.0 - 1.0).abs() < 0.01, "{outcome:?}");
    }

    #[test]
    fn what_does_not_become_steady_says_so_and_few_ios_have_no_percentile() {
        let mut settling = Settling::new(1, 30);
        assert_eq!(run(&mut settling, (0..30).map(|at| if at % 2 == 0 { 10 } else { 100 })), None);
        let outcome = settling.outcome(1);
        assert!(!outcome.steady && outcome.iops.is_some() && outcome.p99_us.is_none());
        assert!(Settling::new(5, 30).outcome(1).iops.is_none());
        let mut nothing = Settling::new(1, 30);
        assert_eq!(run(&mut nothing, [0; 10]), None, "where nothing is done, nothing is steady");
    }
}
