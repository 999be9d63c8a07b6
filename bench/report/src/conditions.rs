//! The same load in several conditions, side by side: what changed against the first one, and how sure that is.

use loadline_measure::difference::{Ratio, ratio};
use loadline_measure::spread::Spread;
use loadline_study::name::Name;
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

/// One load in each of what is compared, with its repeats.
type Places<'a> = Vec<(Name, Vec<&'a StepRow>)>;

/// The loads that were measured on more than one policy, or in more than one condition. Where a study has both, policies are
/// compared within each condition, and conditions on each policy.
pub(crate) fn rows(steps: &[StepRow]) -> Vec<ConditionRow> {
    let policy = |step: &'_ StepRow| step.policy.clone();
    let condition = |step: &'_ StepRow| step.condition.clone();
    let mut rows = compared(steps, policy, condition);
    rows.extend(compared(steps, condition, policy));
    rows
}

/// What is the same but for one thing, side by side.
fn compared(
    steps: &[StepRow],
    by: impl Fn(&StepRow) -> Option<Name>,
    apart: impl Fn(&StepRow) -> Option<Name>,
) -> Vec<ConditionRow> {
    let mut loads: Vec<(Option<Name>, Places<'_>)> = Vec::new();
    for step in steps.iter().filter(|step| step.purpose == Purpose::Load) {
        let Some(name) = by(step) else { continue };
        let same = |other: &&StepRow| {
            // By what was asked for: workers that rest where their node is gone are fewer of the same load.
            (&other.profile, other.asked_workers, other.fill_level, other.unaligned_percent)
                == (&step.profile, step.asked_workers, step.fill_level, step.unaligned_percent)
        };
        let within = apart(step);
        let is_it = |(known, places): &&mut (Option<Name>, Places<'_>)| {
            *known == within && places[0].1.first().is_some_and(same)
        };
        match loads.iter_mut().find(is_it) {
            None => loads.push((within, vec![(name, vec![step])])),
            Some((_, places)) => match places.iter_mut().find(|(known, _)| *known == name) {
                Some((_, repeats)) => repeats.push(step),
                None => places.push((name, vec![step])),
            },
        }
    }
    let several = loads.iter().filter(|(_, places)| places.len() > 1);
    let with_name = |(within, places): &(Option<Name>, Places<'_>)| {
        let row = row(places);
        match within {
            Some(within) => ConditionRow { load: format!("{}, {within}", row.load), ..row },
            None => row,
        }
    };
    several.map(with_name).collect()
}

fn row(load: &[(Name, Vec<&StepRow>)]) -> ConditionRow {
    let (_, first) = &load[0];
    let iops = |steps: &[&StepRow]| steps.iter().map(|step| step.iops).collect::<Vec<f64>>();
    // Of all repeats or of none: some of them would be the lucky ones.
    let p99 = |steps: &[&StepRow]| steps.iter().map(|step| step.latency_us.p99).collect::<Option<Vec<f64>>>();
    let condition = |(at, (name, steps)): (usize, &(Name, Vec<&StepRow>))| {
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
            name: name.to_string(),
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
