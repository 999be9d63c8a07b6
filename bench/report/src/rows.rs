//! The rows of a report: one for each complete step, one for each load over its repeats.

use std::collections::BTreeMap;

use loadline_fleet::HostCpu;
use loadline_load::VerifyReport;
use loadline_measure::audit::{Finding, Severity};
use loadline_measure::capacity::Prediction;
use loadline_measure::spread::Spread;
use loadline_measure::steady::Steadiness;
use loadline_measure::summary::LatencySummary;
use loadline_profile::Profile;
use loadline_study::folder::result::{NodeFigures, StartSpread, StepResult};
use loadline_study::limit::Verdict;
use loadline_study::name::Name;
use loadline_study::node_network::NetworkUse;
use loadline_study::planned_step::Purpose;
#[cfg(test)]
use loadline_study::planned_step::Step;
use loadline_study::settle::WarmUp;
use loadline_study::storage_counts::StorageCounts;
use loadline_study::timeline::Timeline;
use loadline_study::volume_limit::VolumeLimit;
#[cfg(test)]
use loadline_study::when::When;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::points;

/// One complete step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StepRow {
    /// Its number.
    pub step: u32,
    /// Its load.
    pub label: String,
    /// The repeat, from 1 on.
    pub repeat: u32,
    /// The load on each disk.
    pub profile: Profile,
    /// What the loads of one sweep have in common.
    pub family: String,
    /// What it was measured for.
    pub purpose: Purpose,
    /// The policy on whose disks it was measured, if the study compares policies.
    pub policy: Option<Name>,
    /// The condition of the storage in which it was measured, if the study has some.
    pub condition: Option<Name>,
    /// Percent of each disk that was written before, if the study varies it.
    pub fill_level: Option<f64>,
    /// Percent of the workers whose volumes were owned by another node.
    pub unaligned_percent: u8,
    /// How much the clients of each volume might do a second; `null`: no limit.
    pub volume_limit: Option<VolumeLimit>,
    /// How many workers were to take part, if the study varies that; `null`: all, but those that rest in its condition.
    pub asked_workers: Option<u32>,
    /// Workers that took part, the lost ones included.
    pub workers: usize,
    /// What the workers of each node did.
    pub nodes: BTreeMap<String, NodeFigures>,
    /// What share of the ceiling that was measured before the fleet it reached (1 is all of it), each write counted as
    /// often as it costs one below; `null` without such a ceiling.
    pub of_ceiling: Option<f64>,
    /// What share of the slowest measured link between nodes it used (1 is all of it), counted as the study says that the
    /// storage sends; `null` if it does not say, or no link was measured.
    pub of_network: Option<f64>,
    /// What was done to the storage in the window, and what followed; `null` if nothing was.
    pub timeline: Option<Timeline>,
    /// What the storage counted itself over the window; `null` if it is not a cluster of the run's own.
    pub storage: Option<StorageCounts>,
    /// What the networks of the nodes carried over the window; `null` if nodes have no network of their own.
    pub network: Option<NetworkUse>,
    /// What it was predicted to do, before it was measured; `null` if a node was not modelled.
    pub prediction: Option<Prediction>,
    /// How steady the window was, in five equal parts; `null` if it is shorter than ten seconds.
    pub steadiness: Option<Steadiness>,
    /// How far apart the workers began; `null` if fewer than two finished.
    pub start: Option<StartSpread>,
    /// The warm-up until the load was steady; `null` if the study asks for none.
    pub warm_up: Option<WarmUp>,
    /// I/Os that the fleet kept outstanding; `null` of a load with a rate.
    pub outstanding: Option<f64>,
    /// I/Os a second that were offered to the fleet; `null` of a closed loop.
    pub rate_iops: Option<f64>,
    /// Share of its CPUs' time that the busiest host used in the window, by everything that ran there (0 to 1).
    pub host_busy: Option<f64>,
    /// Share of it that the hypervisor gave to others, on the host where it was most (0 to 1).
    pub host_steal: Option<f64>,
    /// I/Os a second of the whole fleet.
    pub iops: f64,
    /// Bytes a second.
    pub bytes_per_s: f64,
    /// CPU cores that all workers used together, those that were lost not included.
    pub cpu_cores: f64,
    /// Response times of the whole fleet, microseconds.
    pub latency_us: LatencySummary,
    /// The longest time in which no worker completed anything, milliseconds.
    pub longest_stall_ms: u64,
    /// The longest time in which one worker completed nothing, milliseconds, of the workers that finished; `null` if
    /// none did.
    pub longest_worker_stall_ms: Option<u64>,
    /// I/Os that failed.
    pub errors: u64,
    /// Workers that did not finish.
    pub lost_workers: usize,
    /// What a reader of these figures should know.
    pub findings: Vec<Finding>,
    /// What the checks of blocks found; `null` if not verifying.
    pub verify: Option<VerifyReport>,
    /// How it did against the study's limits.
    pub verdicts: Vec<Verdict>,
}

/// One load, over its complete repeats.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LoadRow {
    /// The load.
    pub label: String,
    /// Complete repeats.
    pub repeats: usize,
    /// How many of them are doubtful: they lost workers, had errors, or have another finding that makes a figure so.
    pub doubtful: usize,
    /// I/Os a second.
    pub iops: Option<Spread>,
    /// Bytes a second.
    pub bytes_per_s: Option<Spread>,
    /// Mean response time of each repeat, microseconds.
    pub mean_us: Option<Spread>,
    /// 99th percentile of each repeat, microseconds; `null` if a repeat has too few I/Os for one.
    pub p99_us: Option<Spread>,
}

impl StepRow {
    /// A row in which nothing was measured, for tests.
    #[cfg(test)]
    pub(crate) fn none() -> StepRow {
        let step = Step {
            number: 1,
            label: String::new(),
            repeat: 1,
            folder: String::new(),
            profile: Profile::default(),
            family: String::new(),
            workers: None,
            fill_level: None,
            unaligned_percent: 0,
            volume_limit: None,
            policy: None,
            condition: None,
            purpose: Purpose::Load,
            table: None,
        };
        StepRow::of(StepResult::empty("", &step, When::now()), 1)
    }

    /// Whether something makes a figure of it doubtful.
    pub fn is_doubtful(&self) -> bool {
        let doubt = |finding: &Finding| finding.severity == Severity::Doubt;
        self.lost_workers > 0 || self.errors > 0 || self.findings.iter().any(doubt)
    }

    pub(crate) fn of(result: StepResult, disks_per_worker: u32) -> StepRow {
        let most = |share: fn(&HostCpu) -> f64| {
            result.workers.iter().filter_map(|worker| worker.host_cpu.as_ref().map(share)).reduce(f64::max)
        };
        let point = points::point(&result, Some(disks_per_worker));
        StepRow {
            step: result.step.number,
            repeat: result.step.repeat,
            asked_workers: result.step.workers,
            workers: result.workers.len(),
            outstanding: point.outstanding,
            rate_iops: point.rate_iops,
            host_busy: most(|cpu| cpu.busy),
            host_steal: most(|cpu| cpu.steal),
            iops: result.figures.total.iops,
            bytes_per_s: result.figures.total.bytes_per_s,
            cpu_cores: result.cores(),
            longest_stall_ms: result.figures.longest_stall_ms,
            // A lost worker completes nothing from then on: that is reported as its loss.
            longest_worker_stall_ms: (result.workers.iter().filter(|worker| worker.lost.is_none()))
                .map(|worker| worker.figures.longest_stall_ms)
                .max(),
            errors: result.figures.errors,
            lost_workers: result.lost(),
            latency_us: result.figures.total.latency_us,
            label: result.step.label,
            profile: result.step.profile,
            family: result.step.family,
            purpose: result.step.purpose,
            policy: result.step.policy,
            condition: result.step.condition,
            fill_level: result.step.fill_level,
            unaligned_percent: result.step.unaligned_percent,
            volume_limit: result.step.volume_limit,
            nodes: result.nodes,
            of_ceiling: None,
            of_network: None,
            timeline: result.timeline,
            storage: result.storage,
            network: result.network,
            prediction: result.prediction,
            steadiness: result.steadiness,
            start: result.start,
            warm_up: result.warm_up,
            findings: result.findings,
            verify: result.verify,
            verdicts: result.verdicts,
        }
    }
}

/// One row for each load, in the order in which they were first measured.
pub fn loads(steps: &[StepRow]) -> Vec<LoadRow> {
    let mut order: Vec<&str> = Vec::new();
    let mut by_label: BTreeMap<&str, Vec<&StepRow>> = BTreeMap::new();
    for step in steps.iter().filter(|step| !matches!(step.purpose, Purpose::Search { .. })) {
        let repeats = by_label.entry(&step.label).or_default();
        if repeats.is_empty() {
            order.push(&step.label);
        }
        repeats.push(step);
    }
    let row = |label: &str| {
        let repeats = &by_label[label];
        // Where workers were lost, the load was another: such repeats are not drawn from one distribution.
        let whole = repeats.iter().all(|step| step.lost_workers == 0);
        // Of all repeats or of none: a spread over some of them would be of the lucky ones.
        let over = |figure: &dyn Fn(&StepRow) -> Option<f64>| {
            let figures: Option<Vec<f64>> = repeats.iter().map(|step| figure(step)).collect();
            figures.and_then(|figures| if whole { Spread::of(&figures) } else { Spread::range_of(&figures) })
        };
        LoadRow {
            label: label.to_string(),
            repeats: repeats.len(),
            doubtful: repeats.iter().filter(|step| step.is_doubtful()).count(),
            iops: over(&|step| Some(step.iops)),
            bytes_per_s: over(&|step| Some(step.bytes_per_s)),
            mean_us: over(&|step| step.latency_us.mean),
            p99_us: over(&|step| step.latency_us.p99),
        }
    };
    order.into_iter().map(row).collect()
}

/// What the checks of blocks found in all steps together; `None` if none was verified. What every scan finds again counts
/// each time.
pub fn verified(steps: &[StepRow]) -> Option<VerifyReport> {
    steps.iter().filter_map(|step| step.verify.clone()).reduce(|mut all, one| {
        all.merge(one);
        all
    })
}
