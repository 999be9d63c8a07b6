//! Each load's sweeps as points of a chart: IOPS, latencies and the busiest host's CPUs of each place, over its repeats.

use std::collections::BTreeMap;

use loadline_base::figures::thousands;
use loadline_measure::spread::Spread;
use loadline_measure::summary::PERCENTILES;
use loadline_study::planned_step::Purpose;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names;
use crate::rows::StepRow;

/// What varies from point to point of a curve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CurveAxis {
    /// The number of workers.
    Workers,
    /// I/Os outstanding in all.
    Outstanding,
    /// The rate that was offered to the fleet, I/Os a second.
    Rate,
    /// Nothing: loads that belong to no sweep.
    Nothing,
}

/// Loads of one family in which one thing varies, ascending; or those of it that belong to no such sweep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Curve {
    /// What the loads have in common: their family.
    pub family: String,
    /// The load without its policy and condition, by its name: curves with the same one can lie over each other.
    pub load: String,
    /// The policy, if the study compares policies.
    pub policy: Option<String>,
    /// The condition, if the study has some.
    pub condition: Option<String>,
    /// What varies.
    pub axis: CurveAxis,
    /// What is the same in all points, in words: `2 outstanding each`, `4 workers`; empty if that is not one thing.
    pub at: String,
    /// The points.
    pub points: Vec<CurvePoint>,
}

/// One load of a curve, over its complete repeats.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CurvePoint {
    /// The load.
    pub label: String,
    /// The load, by its name.
    pub name: String,
    /// Its place on the axis; 0 where nothing varies.
    pub at: f64,
    /// Complete repeats.
    pub repeats: usize,
    /// How many of them are doubtful.
    pub doubtful: usize,
    /// I/Os a second.
    pub iops: Spread,
    /// Mean response time, microseconds.
    pub mean_us: Option<Spread>,
    /// Percentiles of the response times by name, microseconds: those that every repeat has.
    pub percentiles_us: BTreeMap<String, Spread>,
    /// Share of its CPUs' time that the busiest host used (0 to 1); `null` if a repeat does not state it.
    pub host_busy: Option<Spread>,
}

/// One load of a family, with its repeats.
struct Level<'a> {
    steps: Vec<&'a StepRow>,
    workers: usize,
    /// What each worker has outstanding, or offers.
    each: f64,
    /// What is outstanding or offered in all.
    all: f64,
    is_paced: bool,
}

/// The curves of all loads but ceilings, in the order in which they were first measured.
pub(crate) fn curves(steps: &[StepRow]) -> Vec<Curve> {
    let mut families: Vec<(&str, Vec<&StepRow>)> = Vec::new();
    let is_drawn = |step: &&StepRow| step.purpose != Purpose::Ceiling && step.iops > 0.0;
    for step in steps.iter().filter(is_drawn) {
        let family = if step.family.is_empty() { &step.label } else { &step.family };
        match families.iter_mut().find(|(known, _)| known == family) {
            Some((_, all)) => all.push(step),
            None => families.push((family, vec![step])),
        }
    }
    families.into_iter().flat_map(|(family, steps)| of_family(family, &steps)).collect()
}

fn of_family(family: &str, steps: &[&StepRow]) -> Vec<Curve> {
    let mut by_label: Vec<(&str, Vec<&StepRow>)> = Vec::new();
    for step in steps {
        match by_label.iter_mut().find(|(label, _)| *label == step.label) {
            Some((_, repeats)) => repeats.push(step),
            None => by_label.push((&step.label, vec![step])),
        }
    }
    let levels: Vec<Level<'_>> = by_label.into_iter().map(|(_, steps)| Level::of(steps)).collect();
    let mut taken = vec![false; levels.len()];
    let mut found = Vec::new();
    // Closed loops and rates are apart. First growth by workers, at the same depth of each; then depths and rates of as many workers.
    for is_paced in [false, true] {
        let by_depth = grouped(&levels, is_paced, |level| format!("{:.6e}", level.each));
        let by_workers = grouped(&levels, is_paced, |level| level.workers.to_string());
        let axis = if is_paced { CurveAxis::Rate } else { CurveAxis::Outstanding };
        let growth = by_depth.into_iter().map(|of| (CurveAxis::Workers, of));
        for (axis, mut of) in growth.chain(by_workers.into_iter().map(|of| (axis, of))) {
            let place = |at: &usize| match axis {
                CurveAxis::Workers => levels[*at].workers as f64,
                _ => levels[*at].all,
            };
            of.sort_by(|a, b| place(a).total_cmp(&place(b)));
            if !of.windows(2).any(|two| place(&two[0]) != place(&two[1])) {
                continue;
            }
            of.iter().for_each(|at| taken[*at] = true);
            let first = &levels[of[0]];
            let at = match axis {
                CurveAxis::Workers if is_paced => format!("{} IOPS from each worker", thousands(first.each)),
                CurveAxis::Workers => format!("{} outstanding each", thousands(first.each)),
                _ if first.workers == 1 => "1 worker".into(),
                _ => format!("{} workers", first.workers),
            };
            let points = of.iter().filter_map(|at| levels[*at].point(place(at))).collect();
            found.push(curve(family, first.steps[0], axis, at, points));
        }
    }
    let single = (0..levels.len()).filter(|at| !taken[*at]);
    let points: Vec<CurvePoint> = single.filter_map(|at| levels[at].point(0.0)).collect();
    if !points.is_empty() {
        found.push(curve(family, steps[0], CurveAxis::Nothing, String::new(), points));
    }
    found
}

/// The levels with a rate, or without, that have the same key, in the order of the first of each.
fn grouped(levels: &[Level<'_>], is_paced: bool, key: impl Fn(&Level<'_>) -> String) -> Vec<Vec<usize>> {
    let mut groups: Vec<(String, Vec<usize>)> = Vec::new();
    for (at, level) in levels.iter().enumerate().filter(|(_, level)| level.is_paced == is_paced) {
        let key = key(level);
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, of)) => of.push(at),
            None => groups.push((key, vec![at])),
        }
    }
    groups.into_iter().map(|(_, of)| of).collect()
}

fn curve(family: &str, first: &StepRow, axis: CurveAxis, at: String, points: Vec<CurvePoint>) -> Curve {
    let plain = StepRow { policy: None, condition: None, ..first.clone() };
    Curve {
        family: family.to_string(),
        load: names::of_family(&plain),
        policy: first.policy.as_ref().map(ToString::to_string),
        condition: first.condition.as_ref().map(ToString::to_string),
        axis,
        at,
        points,
    }
}

impl<'a> Level<'a> {
    /// Of the repeats of one load; there is at least one.
    fn of(steps: Vec<&'a StepRow>) -> Level<'a> {
        let first = steps[0];
        let all = first.rate_iops.or(first.outstanding).unwrap_or(0.0);
        let workers = first.workers;
        Level { workers, each: all / workers.max(1) as f64, all, is_paced: first.rate_iops.is_some(), steps }
    }

    fn point(&self, at: f64) -> Option<CurvePoint> {
        // Of all repeats or of none: those that have the figure would be the lucky ones.
        let over = |figure: &dyn Fn(&StepRow) -> Option<f64>| {
            let figures: Option<Vec<f64>> = self.steps.iter().map(|step| figure(step)).collect();
            let whole = self.steps.iter().all(|step| step.lost_workers == 0);
            figures.and_then(|figures| if whole { Spread::of(&figures) } else { Spread::range_of(&figures) })
        };
        let percentile = |(name, _): &(&str, u64)| {
            Some((name.to_string(), over(&|step| step.latency_us.percentile(name))?))
        };
        Some(CurvePoint {
            label: self.steps[0].label.clone(),
            name: names::of(self.steps[0]),
            at,
            repeats: self.steps.len(),
            doubtful: self.steps.iter().filter(|step| step.is_doubtful()).count(),
            iops: over(&|step| Some(step.iops))?,
            mean_us: over(&|step| step.latency_us.mean),
            percentiles_us: PERCENTILES.iter().filter_map(percentile).collect(),
            host_busy: over(&|step| step.host_busy),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(label: &str, workers: usize, outstanding: Option<f64>, rate: Option<f64>, iops: f64) -> StepRow {
        StepRow {
            label: label.into(),
            family: "4k".into(),
            workers,
            outstanding,
            rate_iops: rate,
            iops,
            ..StepRow::none()
        }
    }

    #[test]
    fn growth_depths_and_rates_are_curves_of_their_own_and_repeats_are_one_point() {
        let closed =
            |label: &str, workers: usize, all: f64, iops| step(label, workers, Some(all), None, iops);
        let steps = [
            closed("w4", 4, 8.0, 40.0),
            closed("w2", 2, 4.0, 20.0),
            closed("w4", 4, 8.0, 44.0),
            closed("deep", 2, 16.0, 30.0),
            step("r1", 2, None, Some(10.0), 10.0),
        ];
        let found = curves(&steps);
        type Shown<'s> = (CurveAxis, &'s str, Vec<(f64, f64)>);
        let shown: Vec<Shown<'_>> = found
            .iter()
            .map(|c| (c.axis, c.at.as_str(), c.points.iter().map(|p| (p.at, p.iops.median)).collect()))
            .collect();
        assert_eq!(
            shown,
            [
                (CurveAxis::Workers, "2 outstanding each", vec![(2.0, 20.0), (4.0, 42.0)]),
                (CurveAxis::Outstanding, "2 workers", vec![(4.0, 20.0), (16.0, 30.0)]),
                (CurveAxis::Nothing, "", vec![(0.0, 10.0)]),
            ]
        );
        assert_eq!((found[0].points[1].iops.low, found[0].points[1].iops.high), (40.0, 44.0));
    }

    #[test]
    fn curves_of_policies_have_the_same_load_and_a_percentile_is_of_all_repeats_or_of_none() {
        let of = |policy: &str| StepRow {
            family: format!("4k-{policy}"),
            policy: policy.parse().ok(),
            ..step(&format!("4k-{policy}"), 1, Some(1.0), None, 5.0)
        };
        let mut steps = [of("one"), of("two"), of("two")];
        steps[1].latency_us.p99 = Some(7.0);
        let found = curves(&steps);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].load, found[1].load);
        assert_eq!(found[1].policy.as_deref(), Some("two"));
        assert!(found[1].points[0].percentiles_us.is_empty(), "one of two repeats lacks it");
    }
}
