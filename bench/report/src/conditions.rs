//! The same load in several conditions, on several policies, or with one variable changed, side by side: what changed against
//! the first one, and how sure that is.

use loadline_base::figures::counted;
use loadline_measure::difference::{Ratio, ratio};
use loadline_measure::spread::Spread;
use loadline_profile::{Extent, Profile};
use loadline_study::planned_step::Purpose;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rows::StepRow;

/// One load in every condition in which it was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConditionRow {
    /// The load, with what else is the same in the row.
    pub load: String,
    /// The same, the load by its name.
    pub name: String,
    /// What differs: `condition`, `policy`, `fill level`, `working set`, `placement` or `limit`.
    pub over: String,
    /// How many workers put it on, where the study varies that; `null`: all.
    pub workers: Option<u32>,
    /// The conditions, in the order in which they were first measured; the first one is the baseline.
    pub conditions: Vec<Condition>,
}

/// One load in one condition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Condition {
    /// The condition's name, or the storage policy's, or the variable's value in words.
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
type Places<'a> = Vec<(String, Vec<&'a StepRow>)>;

/// In what the steps of a row differ. Depths, rates and numbers of workers are sweeps, and have charts of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variable {
    Policy,
    Condition,
    FillLevel,
    WorkingSet,
    Unaligned,
    VolumeLimit,
}

impl Variable {
    const ALL: [Variable; 6] = [
        Variable::Policy,
        Variable::Condition,
        Variable::FillLevel,
        Variable::WorkingSet,
        Variable::Unaligned,
        Variable::VolumeLimit,
    ];

    fn in_words(self) -> &'static str {
        match self {
            Variable::Policy => "policy",
            Variable::Condition => "condition",
            Variable::FillLevel => "fill level",
            Variable::WorkingSet => "working set",
            Variable::Unaligned => "placement",
            Variable::VolumeLimit => "limit",
        }
    }

    /// What a step has of it, in words; `None` if the study does not vary it.
    fn of(self, step: &StepRow) -> Option<String> {
        match self {
            Variable::Policy => step.policy.as_ref().map(ToString::to_string),
            Variable::Condition => step.condition.as_ref().map(ToString::to_string),
            Variable::FillLevel => step.fill_level.map(|percent| format!("{percent} % full")),
            Variable::WorkingSet => Some(match &step.profile.working_set {
                None => "all of the disk".into(),
                Some(Extent::Percent(percent)) => format!("{percent} % of the disk"),
                Some(Extent::Bytes(size)) => format!("{size} of the disk"),
            }),
            Variable::Unaligned => Some(match step.unaligned_percent {
                0 => "at their volumes".into(),
                percent => format!("{percent} % apart"),
            }),
            Variable::VolumeLimit => Some(match step.volume_limit {
                None => "no limit".into(),
                Some(limit) => format!("limit of {limit}"),
            }),
        }
    }
}

/// The loads of which there are several that differ in one variable only, side by side. Where a study has policies and
/// conditions, policies are compared within each condition, and conditions on each policy.
pub(crate) fn rows(steps: &[StepRow]) -> Vec<ConditionRow> {
    Variable::ALL.into_iter().flat_map(|variable| compared(steps, variable)).collect()
}

/// Whether the study varies the limit of its volumes, and does not only state one for each policy.
fn varies_limit(steps: &[StepRow]) -> bool {
    let first =
        |step: &StepRow| steps.iter().find(|one| one.policy == step.policy).map(|one| one.volume_limit);
    steps.iter().any(|step| first(step) != Some(step.volume_limit))
}

/// What a row's steps have in common: all but its variable.
#[derive(PartialEq)]
struct Common {
    profile: Profile,
    /// By what was asked for: workers that rest where their node is gone are fewer of the same load.
    workers: Option<u32>,
    of_storage: Vec<String>,
}

impl Common {
    fn of(step: &StepRow, variable: Variable, varies_limit: bool) -> Common {
        let mut profile = step.profile.clone();
        profile.working_set = profile.working_set.filter(|_| variable != Variable::WorkingSet);
        // The working set is the profile's, and the placement of volumes is as everywhere.
        let others = Variable::ALL.into_iter().filter(|one| *one != variable && *one != Variable::WorkingSet);
        let others = others.filter(|one| *one != Variable::Unaligned || step.unaligned_percent > 0);
        // Policies may differ in the limit of their volumes.
        let others = others.filter(|one| *one != Variable::VolumeLimit || varies_limit);
        Common {
            profile,
            workers: step.asked_workers,
            of_storage: others.filter_map(|one| one.of(step)).collect(),
        }
    }

    fn label(&self) -> String {
        self.with(self.profile.label())
    }

    fn name(&self) -> String {
        self.with(self.profile.words())
    }

    fn with(&self, load: String) -> String {
        let workers = self.workers.map(|workers| counted(workers.into(), "worker"));
        let parts = [load].into_iter().chain(self.of_storage.iter().cloned()).chain(workers);
        parts.collect::<Vec<_>>().join(", ")
    }
}

/// What is the same but for one variable, side by side.
fn compared(steps: &[StepRow], variable: Variable) -> Vec<ConditionRow> {
    let mut loads: Vec<(Common, Places<'_>)> = Vec::new();
    let varies_limit = varies_limit(steps);
    for step in steps.iter().filter(|step| step.purpose == Purpose::Load) {
        let Some(name) = variable.of(step) else { continue };
        let common = Common::of(step, variable, varies_limit);
        match loads.iter_mut().find(|(known, _)| *known == common) {
            None => loads.push((common, vec![(name, vec![step])])),
            Some((_, places)) => match places.iter_mut().find(|(known, _)| *known == name) {
                Some((_, repeats)) => repeats.push(step),
                None => places.push((name, vec![step])),
            },
        }
    }
    let several = loads.iter().filter(|(_, places)| places.len() > 1);
    several.map(|(common, places)| row(common, places, variable)).collect()
}

fn row(common: &Common, load: &Places<'_>, variable: Variable) -> ConditionRow {
    let (_, first) = &load[0];
    let iops = |steps: &[&StepRow]| steps.iter().map(|step| step.iops).collect::<Vec<f64>>();
    // Of all repeats or of none: some of them would be the lucky ones.
    let p99 = |steps: &[&StepRow]| steps.iter().map(|step| step.latency_us.p99).collect::<Option<Vec<f64>>>();
    let condition = |(at, (name, steps)): (usize, &(String, Vec<&StepRow>))| {
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
        load: common.label(),
        name: common.name(),
        over: variable.in_words().into(),
        workers: common.workers,
        conditions: load.iter().enumerate().map(condition).collect(),
    }
}

#[cfg(test)]
mod tests {
    use loadline_study::volume_limit::VolumeLimit;

    use super::*;

    fn step(policy: &str, condition: &str, iops: f64, change: impl Fn(&mut StepRow)) -> StepRow {
        let name = |text: &str| (!text.is_empty()).then(|| text.parse().unwrap());
        let mut step = StepRow { policy: name(policy), condition: name(condition), iops, ..StepRow::none() };
        change(&mut step);
        step
    }

    /// A place in a row, its repeats, and the change against the first, in percent.
    type Place = (String, usize, Option<f64>);

    /// Each row: its load, and what it says.
    fn shown(steps: &[StepRow]) -> Vec<(String, Vec<Place>)> {
        let change = |one: &Condition| one.iops_ratio.map(|ratio| (100.0 * (ratio.estimate - 1.0)).round());
        let places = |row: &ConditionRow| {
            row.conditions.iter().map(|one| (one.name.clone(), one.repeats, change(one))).collect()
        };
        rows(steps).iter().map(|row| (row.load.clone(), places(row))).collect()
    }

    fn place(name: &str, repeats: usize, change: Option<f64>) -> Place {
        (name.into(), repeats, change)
    }

    #[test]
    fn policies_are_compared_within_a_condition_and_conditions_on_a_policy() {
        let none = |_: &mut StepRow| {};
        let steps = [
            step("one", "healthy", 100.0, none),
            step("two", "healthy", 50.0, none),
            step("one", "down", 80.0, none),
            step("two", "down", 60.0, none),
        ];
        let label = Profile::default().label();
        assert_eq!(
            shown(&steps),
            [
                (format!("{label}, healthy"), vec![place("one", 1, None), place("two", 1, Some(-50.0))]),
                (format!("{label}, down"), vec![place("one", 1, None), place("two", 1, Some(-25.0))]),
                (format!("{label}, one"), vec![place("healthy", 1, None), place("down", 1, Some(-20.0))]),
                (format!("{label}, two"), vec![place("healthy", 1, None), place("down", 1, Some(20.0))]),
            ]
        );
    }

    #[test]
    fn limits_that_are_varied_are_compared_and_those_of_policies_are_the_policies() {
        let limited = |iops| {
            move |step: &mut StepRow| {
                step.volume_limit = Some(VolumeLimit { iops: Some(iops), ..VolumeLimit::default() })
            }
        };
        let label = Profile::default().label();
        let of_policies = [step("one", "", 100.0, limited(100)), step("two", "", 50.0, limited(50))];
        assert_eq!(
            shown(&of_policies),
            [(label.clone(), vec![place("one", 1, None), place("two", 1, Some(-50.0))])]
        );
        let varied = [step("", "", 100.0, |_| {}), step("", "", 50.0, limited(50))];
        let wanted = vec![place("no limit", 1, None), place("limit of 50 requests a second", 1, Some(-50.0))];
        assert_eq!(shown(&varied), [(label, wanted)]);
        let both: Vec<StepRow> = ["one", "two"]
            .into_iter()
            .flat_map(|policy| [5, 10].map(|iops| step(policy, "", 10.0, limited(iops))))
            .collect();
        assert!(shown(&both).iter().all(|(_, places)| places.iter().all(|(_, repeats, _)| *repeats == 1)));
        assert_eq!(shown(&both).len(), 4, "two policies at each limit, and two limits on each policy");
    }

    #[test]
    fn what_differs_in_one_variable_is_set_side_by_side_and_sweeps_are_not() {
        let full = |percent| move |step: &mut StepRow| step.fill_level = Some(percent);
        let apart = |percent| move |step: &mut StepRow| step.unaligned_percent = percent;
        let set =
            |percent| move |step: &mut StepRow| step.profile.working_set = Some(Extent::Percent(percent));
        let label = Profile::default().label();
        let levels = [17.0, 75.0, 17.0].map(|percent| step("", "", percent, full(percent)));
        let wanted = vec![place("17 % full", 2, None), place("75 % full", 1, Some(341.0))];
        assert_eq!(shown(&levels), [(label.clone(), wanted)]);
        let wanted = vec![place("at their volumes", 1, None), place("50 % apart", 1, Some(-10.0))];
        let steps = [step("", "", 100.0, apart(0)), step("", "", 90.0, apart(50))];
        assert_eq!(shown(&steps), [(label.clone(), wanted)]);
        let wanted = vec![place("10 % of the disk", 1, None), place("all of the disk", 1, Some(-10.0))];
        let steps = [step("", "", 100.0, set(10.0)), step("", "", 90.0, |_| {})];
        assert_eq!(shown(&steps), [(label, wanted)]);
        let deeper = |outstanding| move |step: &mut StepRow| step.profile.outstanding = outstanding;
        assert_eq!(shown(&[step("", "", 1.0, deeper(1)), step("", "", 2.0, deeper(2))]), []);
    }
}
