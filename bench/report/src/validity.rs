//! Whether the figures of a run can be believed: one check for each thing that makes them doubtful.

use std::collections::BTreeMap;

use loadline_base::figures::{are, counted, listed, thousands};
use loadline_measure::audit::{Finding, FindingKind, Severity};
use loadline_measure::spread::REPEATS_FOR_A_LEVEL;
use loadline_profile::Extent;
use loadline_study::RunFolder;
use loadline_study::folder::result::StepResult;
use loadline_study::planned_step::{Purpose, Step};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rows::{LoadRow, StepRow, verified};

/// So many steps are named.
const MOST_NAMED: usize = 8;

/// Workers that begin further apart than this did not begin together, nanoseconds.
const ONE_START_NS: u64 = 1_000_000;

/// What a check came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// Nothing speaks against the figures.
    Sound,
    /// It is not known, or worth knowing.
    Open,
    /// Figures are doubtful.
    Doubtful,
}

/// One point that was checked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// The name of the check.
    pub name: String,
    /// What it came to.
    pub standing: Standing,
    /// In a sentence.
    pub found: String,
}

/// How far a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Steps in all.
    pub(crate) planned: usize,
    /// Steps that are not complete.
    pub(crate) missing: usize,
    /// Whether the run is finished.
    pub(crate) finished: bool,
}

/// What is needed to decide whether a run's loads fit into caches.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Memory {
    /// The bytes that each load works on, all disks together; `None` if one of them is not known.
    working_sets: Option<BTreeMap<String, u64>>,
    /// Memory of each host of workers, bytes, by its name; `None` if it is not known.
    hosts: BTreeMap<String, Option<u64>>,
}

impl Memory {
    /// What the plan says.
    pub(crate) fn of(folder: &RunFolder) -> Memory {
        let plan = &folder.plan;
        let on_each = |step: &Step| match (step.profile.working_set, plan.disk_size) {
            (Some(Extent::Bytes(bytes)), _) => Some(bytes.0),
            (Some(Extent::Percent(percent)), Some(disk)) => Some((disk.0 as f64 * percent / 100.0) as u64),
            (None, Some(disk)) => Some(disk.0.saturating_sub(step.profile.base_offset.0)),
            (_, None) => None,
        };
        let loads = plan.steps.iter().filter(|step| step.purpose != Purpose::Ceiling);
        let set = |step: &Step| {
            let disks = u64::from(step.workers.unwrap_or(plan.fleet.workers))
                * u64::from(plan.fleet.disks_per_worker);
            Some((step.label.clone(), on_each(step)?.saturating_mul(disks)))
        };
        Memory { working_sets: loads.map(set).collect(), hosts: BTreeMap::new() }
    }

    /// Takes down what the hosts of a step have.
    pub(crate) fn of_hosts(&mut self, result: &StepResult) {
        self.hosts.extend(result.hosts.iter().map(|(name, host)| (name.clone(), host.memory)));
    }

    /// The memory of all hosts together.
    fn of_all(&self) -> Option<u64> {
        let all: Option<Vec<u64>> = self.hosts.values().copied().collect();
        all.filter(|all| !all.is_empty()).map(|all| all.iter().sum())
    }
}

/// Every check, in the order in which a reader asks.
pub(crate) fn checks(
    progress: Progress,
    steps: &[StepRow],
    loads: &[LoadRow],
    memory: &Memory,
) -> Vec<Check> {
    let mut checks = vec![complete(progress)];
    if steps.is_empty() {
        return checks;
    }
    checks.extend([steady(steps), repeats(steps, loads), generator(steps), workers(steps)]);
    checks.extend(start(steps));
    checks.push(cache(memory));
    checks.extend(integrity(steps));
    checks.push(others(steps));
    checks
}

fn check(name: &str, standing: Standing, found: impl Into<String>) -> Check {
    Check { name: name.into(), standing, found: found.into() }
}

fn complete(Progress { planned, missing, finished }: Progress) -> Check {
    let complete = planned - missing;
    match missing {
        0 if finished => check(
            "complete",
            Standing::Sound,
            match planned {
                1 => "the only step is complete".into(),
                _ => format!("all {planned} steps are complete"),
            },
        ),
        0 => {
            let found = format!(
                "{} {} complete, and the run is not finished",
                counted(complete as u64, "step"),
                are(complete as u64)
            );
            check("complete", Standing::Open, found)
        }
        missing => {
            let below = match complete {
                0 => "no step is complete".to_owned(),
                complete => format!("what is below is of the other {complete}"),
            };
            check("complete", Standing::Doubtful, format!("missing: {missing} of {planned} steps; {below}"))
        }
    }
}

/// The numbers of steps, in words.
fn in_words(numbers: &[u32]) -> String {
    match numbers {
        [one] => format!("step {one}"),
        many => format!("steps {}", listed(many, MOST_NAMED)),
    }
}

fn numbers(steps: &[StepRow], is: impl Fn(&StepRow) -> bool) -> Vec<u32> {
    steps.iter().filter(|step| is(step)).map(|step| step.step).collect()
}

fn steady(steps: &[StepRow]) -> Check {
    let found = |step: &StepRow, kind| step.findings.iter().any(|finding| finding.kind == kind);
    let unsteady = numbers(steps, |step| {
        found(step, FindingKind::NotSteady)
            || found(step, FindingKind::LevelChange)
            || found(step, FindingKind::Stall)
            || step.steadiness.is_some_and(|steadiness| !steadiness.steady)
    });
    // In a window with faults the level is to change.
    let harmed = numbers(steps, |step| step.timeline.is_some());
    let short = numbers(steps, |step| step.steadiness.is_none() && step.timeline.is_none());
    match (unsteady.is_empty(), short.len()) {
        (false, _) => check(
            "steady",
            Standing::Doubtful,
            format!("not steady over the window: {}", in_words(&unsteady)),
        ),
        (true, 0) if harmed.len() == steps.len() => check(
            "steady",
            Standing::Open,
            "something was done to the storage in every window: what is before, between and after is judged under Faults",
        ),
        (true, 0) => check(
            "steady",
            Standing::Sound,
            "every window was steady (SNIA PTS: range within 20 %, slope within 10 %)",
        ),
        (true, short) => check(
            "steady",
            Standing::Open,
            format!("{short} of {} windows are shorter than ten seconds, too short to tell", steps.len()),
        ),
    }
}

fn repeats(steps: &[StepRow], loads: &[LoadRow]) -> Check {
    let is_load = |load: &&LoadRow| {
        steps.iter().any(|step| step.label == load.label && step.purpose != Purpose::Ceiling)
    };
    let loads: Vec<&LoadRow> = loads.iter().filter(is_load).collect();
    let with_level = loads.iter().filter(|load| load.iops.is_some_and(|iops| iops.level.is_some())).count();
    match (loads.iter().map(|load| load.repeats).min(), loads.len() - with_level) {
        (None, _) => {
            check("interval", Standing::Open, "no load has an interval: only searches were measured")
        }
        (Some(repeats), 0) => check(
            "interval",
            Standing::Sound,
            format!("{repeats} repeats of each load or more: every median has an interval of 95 %"),
        ),
        (Some(repeats), without) if repeats >= REPEATS_FOR_A_LEVEL => check(
            "interval",
            Standing::Doubtful,
            format!(
                "{without} of {} loads lost workers in a repeat: their range is shown, without a level",
                loads.len()
            ),
        ),
        (Some(1), _) => {
            check("interval", Standing::Open, "a load was measured once: how much it varies is not known")
        }
        (Some(repeats), _) => check(
            "interval",
            Standing::Open,
            format!(
                "{repeats} repeats: the range is shown, and a median has an interval of 95 % with {REPEATS_FOR_A_LEVEL}"
            ),
        ),
    }
}

fn generator(steps: &[StepRow]) -> Check {
    let of = |severity: Severity| {
        let is =
            |finding: &Finding| finding.severity == severity && finding.kind == FindingKind::GeneratorBound;
        numbers(steps, |step| step.findings.iter().any(is))
    };
    let (doubts, notes) = (of(Severity::Doubt), of(Severity::Note));
    // With a rate, the lateness decides; in a closed loop, the CPU that its host has to spare, if the host reports it.
    let blind = numbers(steps, |step| step.rate_iops.is_none() && step.host_busy.is_none());
    let found = "the generator was the bottleneck";
    match (doubts.is_empty(), notes.is_empty(), blind.is_empty()) {
        (false, ..) => check("generator", Standing::Doubtful, format!("{found}: {}", in_words(&doubts))),
        (true, false, _) => {
            check("generator", Standing::Open, format!("{found}, as a note: {}", in_words(&notes)))
        }
        (true, true, false) => {
            let what = format!("whether the generator kept up could not be seen: {}", in_words(&blind));
            check("generator", Standing::Open, what)
        }
        (true, true, true) => check("generator", Standing::Sound, "the generator kept up"),
    }
}

fn workers(steps: &[StepRow]) -> Check {
    let lost: usize = steps.iter().map(|step| step.lost_workers).sum();
    let errors = steps.iter().fold(0u64, |all, step| all.saturating_add(step.errors));
    let which = numbers(steps, |step| step.lost_workers > 0 || step.errors > 0);
    match (lost, errors) {
        (0, 0) => check("workers", Standing::Sound, "no worker was lost, and no I/O failed"),
        _ => check(
            "workers",
            Standing::Doubtful,
            format!("workers lost: {lost}, I/Os failed: {errors}, in {}", in_words(&which)),
        ),
    }
}

/// More in the cache than in production?
fn cache(memory: &Memory) -> Check {
    let gib = |bytes: u64| match bytes {
        0..0x4000_0000 => format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20)),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    };
    let (Some(sets), Some(hosts)) = (&memory.working_sets, memory.of_all()) else {
        return check("cache", Standing::Open, "how much of the working set fits into caches is not known");
    };
    let fit: Vec<&String> =
        sets.iter().filter(|(_, bytes)| **bytes <= hosts).map(|(label, _)| label).collect();
    let range = || {
        let (least, most) = (sets.values().min().copied(), sets.values().max().copied());
        let (least, most) = (gib(least.unwrap_or(0)), gib(most.unwrap_or(0)));
        if least == most { least } else { format!("{least} to {most}") }
    };
    match fit.len() {
        0 => check(
            "cache",
            Standing::Sound,
            format!(
                "every working set, {}, is larger than the memory of the workers' hosts, {}",
                range(),
                gib(hosts)
            ),
        ),
        all if all == sets.len() => check(
            "cache",
            Standing::Open,
            format!(
                "every working set, {}, fits into the memory of the workers' hosts, {}: caches may answer more than in \
                 production",
                range(),
                gib(hosts)
            ),
        ),
        _ => check(
            "cache",
            Standing::Open,
            format!(
                "the working sets of these fit into the memory of the workers' hosts, {}, and caches may answer more than \
                 in production: {}",
                gib(hosts),
                listed(&fit, MOST_NAMED)
            ),
        ),
    }
}

/// Whether the workers of each step began together; `None` if no step had two.
fn start(steps: &[StepRow]) -> Option<Check> {
    let all = || steps.iter().filter_map(|step| Some((step.step, step.start?)));
    let (worst, start) = all().max_by_key(|(_, start)| start.spread_ns)?;
    let error = all().map(|(_, start)| start.clock_error_ns).max()?;
    let ms = |ns: u64| format!("{:.3} ms", ns as f64 / 1e6);
    let apart =
        all().filter(|(_, start)| start.spread_ns > ONE_START_NS).map(|(step, _)| step).collect::<Vec<_>>();
    let clocks = format!("the clocks of their hosts are known within {}", ms(error));
    Some(match apart.is_empty() {
        true => check(
            "start",
            if error > ONE_START_NS { Standing::Open } else { Standing::Sound },
            format!("the workers of each step began within {} of each other; {clocks}", ms(start.spread_ns)),
        ),
        false => check(
            "start",
            Standing::Open,
            format!(
                "workers began more than 1 ms apart in {}, at most {} in step {worst}; {clocks}",
                in_words(&apart),
                ms(start.spread_ns)
            ),
        ),
    })
}

fn integrity(steps: &[StepRow]) -> Option<Check> {
    let found = verified(steps)?;
    let is_doubt =
        |finding: &Finding| finding.kind == FindingKind::Integrity && finding.severity == Severity::Doubt;
    let doubtful = numbers(steps, |step| step.findings.iter().any(is_doubt));
    let judged = found.checked.saturating_sub(found.unjudged);
    Some(if found.bad() > 0 {
        let what = format!(
            "the storage failed: {} {} not what was written",
            counted(found.bad(), "block"),
            are(found.bad())
        );
        check("data", Standing::Doubtful, what)
    } else if !doubtful.is_empty() {
        let what = format!("whether every acknowledged write is there is not known: {}", in_words(&doubtful));
        check("data", Standing::Doubtful, what)
    } else if judged == 0 {
        check("data", Standing::Open, "no block could be judged")
    } else {
        let unjudged = match found.unjudged {
            0 => String::new(),
            some => format!(" ({some} more could not be judged)"),
        };
        check(
            "data",
            Standing::Sound,
            match judged {
                1 => format!("1 block was checked, and no acknowledged write is lost{unjudged}"),
                _ => format!(
                    "{} blocks were checked, and no acknowledged write is lost{unjudged}",
                    thousands(judged as f64)
                ),
            },
        )
    })
}

/// What the checks above have not said.
fn others(steps: &[StepRow]) -> Check {
    let said = [
        FindingKind::NotSteady,
        FindingKind::LevelChange,
        FindingKind::Stall,
        FindingKind::GeneratorBound,
        FindingKind::LostWorkers,
        FindingKind::Errors,
        FindingKind::Integrity,
    ];
    let doubtful = numbers(steps, |step| {
        step.findings.iter().any(|f| f.severity == Severity::Doubt && !said.contains(&f.kind))
    });
    match doubtful.is_empty() {
        true => check("audit", Standing::Sound, "the audit has no other doubts"),
        false => check(
            "audit",
            Standing::Doubtful,
            format!("other findings make figures doubtful: {}", in_words(&doubtful)),
        ),
    }
}
