//! The same load in several conditions, side by side: what changed against the first one, and how sure that is.

use loadline_measure::difference::{Ratio, ratio};
use loadline_measure::spread::Spread;
use loadline_study::plan::Purpose;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rows::StepRow;

/// One load in every condition in which it was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConditionRow {
    /// The load, by its label in the first condition.
    pub load: String,
    /// The conditions, in the order in which they were first measured; the first one is the baseline.
    pub conditions: Vec<Condition>,
}

/// One load in one condition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Condition {
    /// The condition's name, or the storage policy's.
    pub name: String,
    /// Complete repeats.
    pub repeats: usize,
    /// How many of them are doubtful.
    pub doubtful: usize,
    /// I/Os a second, over the repeats.
    pub iops: Option<Spread>,
    /// 99th percentile of the response times, microseconds; `null` if a repeat has too few I/Os for one.
    pub p99_us: Option<Spread>,
    /// IOPS here ÷ IOPS in the first condition; `null` in the first itself.
    pub iops_ratio: Option<Ratio>,
    /// The same of the 99th percentile.
    pub p99_ratio: Option<Ratio>,
}

/// The loads that were measured in more than one condition.
pub(crate) fn rows(steps: &[StepRow]) -> Vec<ConditionRow> {
    let mut loads: Vec<Vec<(&str, Vec<&StepRow>)>> = Vec::new();
    for step in steps.iter().filter(|step| step.purpose == Purpose::Load) {
        let Some(condition) = step.policy.as_ref().or(step.condition.as_ref()) else { continue };
        let same = |other: &&StepRow| {
            (&other.profile, other.workers, other.fill_level, other.unaligned_percent)
                == (&step.profile, step.workers, step.fill_level, step.unaligned_percent)
        };
        let known = loads.iter_mut().find(|load| load[0].1.first().is_some_and(same));
        let load = match known {
            Some(load) => load,
            None => {
                loads.push(vec![(condition.as_str(), vec![step])]);
                continue;
            }
        };
        match load.iter_mut().find(|(name, _)| *name == condition.as_str()) {
            Some((_, repeats)) => repeats.push(step),
            None => load.push((condition.as_str(), vec![step])),
        }
    }
    loads.into_iter().filter(|load| load.len() > 1).map(|load| row(&load)).collect()
}

fn row(load: &[(&str, Vec<&StepRow>)]) -> ConditionRow {
    let (_, first) = &load[0];
    let iops = |steps: &[&StepRow]| steps.iter().map(|step| step.iops).collect::<Vec<f64>>();
    // Of all repeats or of none: some of them would be the lucky ones.
    let p99 = |steps: &[&StepRow]| steps.iter().map(|step| step.latency_us.p99).collect::<Option<Vec<f64>>>();
    let condition = |(at, (name, steps)): (usize, &(&str, Vec<&StepRow>))| {
        // Where workers were lost the load was another: such repeats are not drawn from one distribution.
        let whole = |steps: &[&StepRow]| steps.iter().all(|step| step.lost_workers == 0);
        let against = |figures: Option<Vec<f64>>, base: Option<Vec<f64>>| {
            let found =
                figures.zip(base).filter(|_| at > 0).and_then(|(figures, base)| ratio(&base, &figures));
            let is_whole = whole(steps) && whole(first);
            found.map(|ratio| if is_whole { ratio } else { Ratio { low: None, high: None, ..ratio } })
        };
        let spread =
            |figures: &[f64]| if whole(steps) { Spread::of(figures) } else { Spread::range_of(figures) };
        Condition {
            name: (*name).to_string(),
            repeats: steps.len(),
            doubtful: steps.iter().filter(|step| step.is_doubtful()).count(),
            iops: spread(&iops(steps)),
            p99_us: p99(steps).and_then(|figures| spread(&figures)),
            iops_ratio: against(Some(iops(steps)), Some(iops(first))),
            p99_ratio: against(p99(steps), p99(first)),
        }
    };
    ConditionRow {
        load: first[0].profile.label(),
        conditions: load.iter().enumerate().map(condition).collect(),
    }
}
