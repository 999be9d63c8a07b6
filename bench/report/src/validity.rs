//! Whether the figures of a run can be believed: one check for each thing that makes them doubtful.

use std::collections::BTreeMap;

use loadline_base::figures::listed;
use loadline_measure::audit::{Finding, FindingKind, Severity};
use loadline_measure::spread::REPEATS_FOR_A_LEVEL;
use loadline_profile::Extent;
use loadline_study::RunFolder;
use loadline_study::folder::result::StepResult;
use loadline_study::plan::{Purpose, Step};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rows::{LoadRow, StepRow, verified};

/// So many steps are named.
const MOST_NAMED: usize = 8;

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

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// What.
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

/// What is needed to tell whether a run's load fits into caches.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Memory {
    /// The most bytes that a load of the study works on, all disks together; `None` if it is not known.
    working_set: Option<u64>,
    /// Memory of each host of workers, bytes, by its name; `None` if it is not known.
    hosts: BTreeMap<String, Option<u64>>,
}

impl Memory {
    /// What the plan says.
    pub(crate) fn of(folder: &RunFolder) -> Memory {
        let plan = &folder.plan;
        let disks = u64::from(plan.disks_per_worker) * u64::from(plan.workers);
        let on_each = |step: &Step| match (step.profile.working_set, plan.disk_size) {
            (Some(Extent::Bytes(bytes)), _) => Some(bytes.0),
            (Some(Extent::Percent(percent)), Some(disk)) => Some((disk.0 as f64 * percent / 100.0) as u64),
            (None, Some(disk)) => Some(disk.0.saturating_sub(step.profile.base_offset.0)),
            (_, None) => None,
        };
        let loads = plan.steps.iter().filter(|step| step.purpose != Purpose::Ceiling);
        let sizes: Option<Vec<u64>> = loads.map(on_each).collect();
        let working_set = sizes.and_then(|sizes| sizes.into_iter().max());
        Memory { working_set: working_set.map(|one| one.saturating_mul(disks)), hosts: BTreeMap::new() }
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
    checks.extend([steady(steps), repeats(steps, loads), generator(steps), workers(steps), cache(memory)]);
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
        0 if finished => check("complete", Standing::Sound, format!("all {planned} steps are complete")),
        0 => {
            let found = format!("{complete} steps are complete, and the run is not finished");
            check("complete", Standing::Open, found)
        }
        missing => check(
            "complete",
            Standing::Doubtful,
            format!("missing: {missing} of {planned} steps; what is below is of the other {complete}"),
        ),
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
            || step.steadiness.is_some_and(|steadiness| !steadiness.steady)
    });
    let short = numbers(steps, |step| step.steadiness.is_none());
    match (unsteady.is_empty(), short.len()) {
        (false, _) => check(
            "steady",
            Standing::Doubtful,
            format!("not steady over the window: {}", in_words(&unsteady)),
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
    let ceilings: Vec<&str> = (steps.iter())
        .filter(|step| step.purpose == Purpose::Ceiling)
        .map(|step| step.label.as_str())
        .collect();
    let loads = loads.iter().filter(|load| !ceilings.contains(&load.label.as_str()));
    match loads.map(|load| load.repeats).min() {
        None => check("interval", Standing::Open, "no load has an interval: only searches were measured"),
        Some(repeats) if repeats >= REPEATS_FOR_A_LEVEL => check(
            "interval",
            Standing::Sound,
            format!("{repeats} repeats of each load: intervals are those of 95 %"),
        ),
        Some(1) => {
            check("interval", Standing::Open, "a load was measured once: how much it varies is not known")
        }
        Some(repeats) => check(
            "interval",
            Standing::Open,
            format!(
                "{repeats} repeats: the range is shown, and an interval of 95 % needs {REPEATS_FOR_A_LEVEL}"
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
    let found = "the generator was the bottleneck";
    match (doubts.is_empty(), notes.is_empty()) {
        (false, _) => check("generator", Standing::Doubtful, format!("{found}: {}", in_words(&doubts))),
        (true, false) => {
            check("generator", Standing::Open, format!("{found}, as a note: {}", in_words(&notes)))
        }
        (true, true) => check("generator", Standing::Sound, "the generator kept up"),
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
    let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64);
    match (memory.working_set, memory.of_all()) {
        (Some(set), Some(hosts)) if set <= hosts => check(
            "cache",
            Standing::Open,
            format!(
                "the working set, {}, fits into the memory of the workers' hosts, {}: caches may answer more than in production",
                gib(set),
                gib(hosts)
            ),
        ),
        (Some(set), Some(hosts)) => check(
            "cache",
            Standing::Sound,
            format!(
                "the working set, {}, is larger than the memory of the workers' hosts, {}",
                gib(set),
                gib(hosts)
            ),
        ),
        _ => check("cache", Standing::Open, "how much of the working set fits into caches is not known"),
    }
}

fn integrity(steps: &[StepRow]) -> Option<Check> {
    let verified = verified(steps)?;
    Some(match verified.bad() {
        0 => check(
            "data",
            Standing::Sound,
            format!("{} blocks were checked, and no acknowledged write is lost", verified.checked),
        ),
        bad => check(
            "data",
            Standing::Doubtful,
            format!("the storage failed: {bad} blocks are not what was written"),
        ),
    })
}

/// What the checks above have not said.
fn others(steps: &[StepRow]) -> Check {
    let said = [
        FindingKind::NotSteady,
        FindingKind::LevelChange,
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
