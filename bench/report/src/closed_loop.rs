//! Where a closed loop flatters the verdict: the same load, or the same criterion, measured with a rate, came out worse. In a closed loop
//! a slow I/O delays the next one, so that less is offered just when the storage is slow.

use loadline_base::figures::{latency, thousands};
use loadline_measure::stats::median;
use loadline_study::planned_step::Purpose;
use loadline_study::searches::{SearchOver, SearchResult};
use loadline_study::success::Decision;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names;
use crate::rows::StepRow;

/// If a closed loop carries this much more than the load line within the same limit, the report says so.
const FAR_MORE: f64 = 1.2;

/// A verdict that a closed loop flatters, with both figures in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClosedLoop {
    /// The criterion, or the load and its limit.
    pub about: String,
    /// What was measured in a closed loop.
    pub closed: String,
    /// What was measured with a rate.
    pub rate: String,
}

impl ClosedLoop {
    /// Of a criterion that is met in a closed loop only; `None` if no load with a rate misses it.
    pub(crate) fn of_criterion(decision: &Decision) -> Option<ClosedLoop> {
        Some(ClosedLoop {
            about: decision.criterion.clone(),
            closed: decision.found.clone(),
            rate: decision.open_loop_missed.clone()?,
        })
    }

    /// Of a search over rates whose load carried far more in a closed loop within the same limit; `None` if it did not, or was not
    /// measured so.
    pub(crate) fn of_search(steps: &[StepRow], search: &SearchResult) -> Option<ClosedLoop> {
        let line = search.iops.filter(|_| search.over == SearchOver::Rate)?;
        let same = |step: &&StepRow| step.label == search.label && step.purpose == Purpose::Load;
        let closed: Vec<&StepRow> = steps.iter().filter(same).collect();
        let values: Option<Vec<f64>> =
            closed.iter().map(|step| step.latency_us.percentile(&search.percentile)).collect();
        // By the median of the repeats, as a criterion is judged.
        let reached = median(&values?).filter(|value| *value <= search.limit_us)?;
        let carried = median(&closed.iter().map(|step| step.iops).collect::<Vec<_>>())?;
        let figures = |iops: f64, us: Option<f64>| {
            let at = us.map(|us| format!(" at {} {}", search.percentile, latency(us))).unwrap_or_default();
            format!("{} IOPS{at}", thousands(iops))
        };
        (carried > FAR_MORE * line).then(|| ClosedLoop {
            about: format!(
                "{} within {} <= {}",
                closed.first().map_or_else(|| search.label.clone(), |step| names::of(step)),
                search.percentile,
                latency(search.limit_us)
            ),
            closed: figures(carried, Some(reached)),
            rate: figures(line, search.latency_us),
        })
    }

    /// Both figures in a sentence, and why they differ.
    pub(crate) fn sentence(&self) -> String {
        format!(
            "A closed loop flatters this: {}: {} in a closed loop, {} with a rate. In a closed loop a worker that waits offers less; \
             with a rate each I/O is charged for its waiting",
            self.about, self.closed, self.rate
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search() -> SearchResult {
        SearchResult {
            label: "B4".into(),
            over: SearchOver::Rate,
            percentile: "p99".into(),
            limit_us: 2_000.0,
            done: true,
            held: Some(10_000.0),
            missed: Some(10_400.0),
            iops: Some(9_900.0),
            latency_us: Some(900.0),
            steps: 12,
            found: String::new(),
        }
    }

    fn step(iops: f64, p99: f64) -> StepRow {
        let mut step = StepRow { label: "B4".into(), iops, ..StepRow::none() };
        step.latency_us.p99 = Some(p99);
        step
    }

    #[test]
    fn a_closed_loop_that_carried_far_more_within_the_limit_is_told_with_both_figures() {
        let found =
            ClosedLoop::of_search(&[step(70_000.0, 800.0), step(72_000.0, 900.0)], &search()).unwrap();
        assert_eq!(found.closed, "71,000 IOPS at p99 850.0 us");
        assert_eq!(found.rate, "9,900 IOPS at p99 900.0 us");
        let said = found.sentence();
        assert!(said.contains("71,000 IOPS") && said.contains("9,900 IOPS"), "{said}");
        assert!(said.contains("4K random read, 32 outstanding within p99 <= 2.00 ms"), "{said}");
        assert_eq!(
            ClosedLoop::of_search(&[step(70_000.0, 2_500.0)], &search()),
            None,
            "not within the limit"
        );
        assert_eq!(ClosedLoop::of_search(&[step(11_000.0, 800.0)], &search()), None, "not far more");
        assert_eq!(ClosedLoop::of_search(&[], &search()), None, "not measured");
    }
}
