//! What a run's folder says, as one value: a row for each step, one for each load, and what is missing.

use std::collections::BTreeMap;

use loadline_fleet::HostCpu;
use loadline_load::VerifyReport;
use loadline_measure::analysis::{Group, Options, analyse};
use loadline_measure::audit::{Finding, FindingKind, Severity};
use loadline_measure::steady::Steadiness;
use loadline_measure::summary::LatencySummary;
use loadline_profile::Profile;
use loadline_study::ceilings::{is_of, share};
use loadline_study::folder::result::{NodeFigures, StepResult};
use loadline_study::limit::Verdict as LimitVerdict;
use loadline_study::name::Name;
use loadline_study::network::{self, MeasuredLink};
use loadline_study::plan::Purpose;
use loadline_study::searches::{Measured, SearchResult};
use loadline_study::settle::WarmUp;
use loadline_study::success::{Candidates, Decision};
use loadline_study::when::When;
use loadline_study::{RunFolder, StudyError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use loadline_measure::spread::Spread;

use crate::conditions::{self, ConditionRow};
use crate::points;
use crate::validity::{self, Check, Memory};
use crate::verdict::Verdict;

/// What a run came to. Every key is always there; `null` where there is no honest figure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// `loadline-report`.
    pub format: String,
    /// Version of this format.
    pub version: u64,
    /// The study's name.
    pub study: String,
    /// What the study is for, in words.
    pub description: Option<String>,
    /// The run's id.
    pub run_id: String,
    /// The version of the Loadline that measured.
    pub loadline: String,
    /// When the run began.
    pub begun: When,
    /// When it was finished; `null` if it is not.
    pub finished: Option<When>,
    /// Steps that are complete.
    pub complete: usize,
    /// Steps in all.
    pub planned: usize,
    /// What the cluster carries, in a sentence, and what limits it.
    pub verdict: Verdict,
    /// Whether the figures can be believed.
    pub validity: Vec<Check>,
    /// Every complete step, in the order in which they were measured.
    pub steps: Vec<StepRow>,
    /// Every load, over its complete repeats; ceilings among them, steps of searches not.
    pub loads: Vec<LoadRow>,
    /// Loads that were measured in more than one condition, side by side.
    pub conditions: Vec<ConditionRow>,
    /// Each load's sweeps: what grows, where it saturates, where the knee is.
    pub sweeps: Vec<Group>,
    /// The network between the nodes, measured before the fleet; empty if the study asks for no ceilings.
    pub network: Vec<MeasuredLink>,
    /// What the study's searches came to.
    pub searches: Vec<SearchResult>,
    /// How the study's criteria of success are met.
    pub criteria: Vec<Decision>,
    /// Steps that are not complete: their number, load and repeat, in words.
    pub missing: Vec<String>,
    /// What is wrong with files that no figure comes from.
    pub notices: Vec<String>,
}

/// One complete step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StepRow {
    /// Its number.
    pub step: u32,
    /// Its load.
    pub label: String,
    /// Which repeat.
    pub repeat: u32,
    /// The load on each disk.
    pub profile: Profile,
    /// What the loads of one sweep have in common.
    pub family: String,
    /// What it was measured for.
    pub purpose: Purpose,
    /// The policy on whose disks it was measured, if the study compares policies.
    pub policy: Option<Name>,
    /// Percent of each disk that was written before, if the study varies it.
    pub fill_level: Option<f64>,
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
    /// How steady the window was, in five equal parts; `null` if it is shorter than ten seconds.
    pub steadiness: Option<Steadiness>,
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
    pub verdicts: Vec<LimitVerdict>,
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

/// The format of a report.
pub const FORMAT: &str = "loadline-report";
/// Its version.
pub const VERSION: u64 = 1;

impl Report {
    /// Reads what there is to report.
    pub fn of(folder: &RunFolder) -> Result<Report, StudyError> {
        let manifest = &folder.manifest;
        let steps = &folder.plan.steps;
        let mut report = Report {
            format: FORMAT.into(),
            version: VERSION,
            study: manifest.study.name.to_string(),
            description: manifest.study.description.clone(),
            run_id: manifest.run_id.clone(),
            loadline: manifest.loadline.clone(),
            begun: manifest.begun.clone(),
            finished: manifest.finished.clone(),
            complete: 0,
            planned: steps.len(),
            verdict: Verdict::default(),
            validity: Vec::new(),
            steps: Vec::new(),
            loads: Vec::new(),
            conditions: Vec::new(),
            sweeps: Vec::new(),
            network: manifest.network.clone().unwrap_or_default(),
            searches: Vec::new(),
            criteria: Vec::new(),
            missing: Vec::new(),
            notices: Vec::new(),
        };
        let mut candidates = Candidates::default();
        let mut measured = Vec::new();
        let mut points = Vec::new();
        let mut memory = Memory::of(folder);
        // One step at a time: a result of many workers is large.
        for step in steps {
            match folder.result(step)? {
                Some(result) => {
                    report.notices.extend(folder.damaged_series(step, &result));
                    candidates.add(&result);
                    memory.of_hosts(&result);
                    if step.purpose != Purpose::Ceiling {
                        points.push(points::point(&result, folder.plan.disks_per_worker));
                    }
                    if !folder.plan.searches.is_empty() {
                        measured.push(Measured::of(&result));
                    }
                    report.steps.push(StepRow::of(result, folder.plan.disks_per_worker));
                }
                None => {
                    report.missing.push(format!("{} ({}, repeat {})", step.number, step.label, step.repeat))
                }
            }
        }
        report.complete = report.steps.len();
        report.hold_to_ceilings(manifest.study.ceilings.device_writes.unwrap_or(1.0));
        report.hold_to_network(manifest.study.ceilings.network());
        report.loads = loads(&report.steps);
        report.searches = folder.plan.searches.iter().map(|search| search.result(&measured)).collect();
        let complete = report.missing.is_empty() && report.searches.iter().all(|search| search.done);
        report.criteria = candidates.judge(&manifest.study, complete);
        report.conditions = conditions::rows(&report.steps);
        // What was found of each step when it was measured stands with the step.
        report.sweeps = analyse(points, &Options { audited: true, ..Options::default() }).groups;
        report.validity = validity::checks(&report, &memory);
        report.verdict = Verdict::of(&report);
        Ok(report)
    }

    /// What the checks of blocks found in all steps together; `None` if none was verified. What every scan finds again
    /// counts each time.
    pub fn verified(&self) -> Option<VerifyReport> {
        self.steps.iter().filter_map(|step| step.verify.clone()).reduce(|mut all, one| {
            all.merge(one);
            all
        })
    }

    /// States each load's share of the ceiling with its blocks, mix and pattern.
    fn hold_to_ceilings(&mut self, device_writes: f64) {
        let ceilings = self.steps.iter().filter(|step| step.purpose == Purpose::Ceiling);
        let (sound, doubtful): (Vec<&StepRow>, Vec<&StepRow>) =
            ceilings.partition(|step| !step.is_doubtful());
        self.notices.extend(
            doubtful.iter().map(|step| format!("{} is doubtful, so that no load is held to it", step.label)),
        );
        let ceilings: Vec<(Profile, f64)> =
            (sound.into_iter()).map(|step| (step.profile.clone(), step.iops)).collect();
        for step in self.steps.iter_mut().filter(|step| step.purpose != Purpose::Ceiling) {
            let ceiling = ceilings.iter().find(|(profile, _)| is_of(profile, &step.profile));
            let Some((_, ceiling)) = ceiling else { continue };
            step.of_ceiling = share(step.iops, *ceiling, &step.profile, device_writes);
            if let Some(share) = step.of_ceiling.filter(|share| *share > 1.0) {
                step.findings.push(Finding::doubt(
                    FindingKind::Ceiling,
                    "no more than the devices below can do",
                    format!("{:.0} % of what was measured of them bare", 100.0 * share),
                    "Something else answers: a cache in memory, blocks that were never written, data that compress; or the \
                     devices were not full when they were measured ([ceilings] threads, outstanding).",
                ));
            }
        }
    }

    /// States each load's share of the slowest link between nodes.
    fn hold_to_network(&mut self, sent: Option<(f64, f64)>) {
        let Some(sent) = sent else { return };
        for step in self.steps.iter_mut().filter(|step| step.purpose != Purpose::Ceiling) {
            step.of_network = network::share(step.bytes_per_s, &step.profile, sent, &self.network);
            if let Some(share) = step.of_network.filter(|share| *share > 1.0) {
                step.findings.push(Finding::doubt(
                    FindingKind::Ceiling,
                    "no more than the network between the nodes carries",
                    format!("{:.0} % of the slowest link that was measured bare", 100.0 * share),
                    "The storage sends less than [ceilings] network_writes and network_reads say, or over another network                      than the one that was measured (address of [[ceilings.node]]), or the nodes send unevenly.",
                ));
            }
        }
    }

    /// Whether any load was measured more than once.
    pub fn has_repeats(&self) -> bool {
        self.loads.iter().any(|load| load.repeats > 1)
    }
}

impl StepRow {
    /// Whether something makes a figure of it doubtful.
    pub fn is_doubtful(&self) -> bool {
        let doubt = |finding: &Finding| finding.severity == Severity::Doubt;
        self.lost_workers > 0 || self.errors > 0 || self.findings.iter().any(doubt)
    }

    fn of(result: StepResult, disks_per_worker: u32) -> StepRow {
        let most = |share: fn(&HostCpu) -> f64| {
            result.workers.iter().filter_map(|worker| worker.host_cpu.as_ref().map(share)).reduce(f64::max)
        };
        let point = points::point(&result, disks_per_worker);
        StepRow {
            step: result.step.number,
            repeat: result.step.repeat,
            workers: result.workers.len(),
            outstanding: point.outstanding,
            rate_iops: point.rate_iops,
            host_busy: most(|cpu| cpu.busy),
            host_steal: most(|cpu| cpu.steal),
            iops: result.figures.total.iops,
            bytes_per_s: result.figures.total.bytes_per_s,
            cpu_cores: result.cores(),
            longest_stall_ms: result.figures.longest_stall_ms,
            // A lost worker completes nothing from then on: that is told as its loss.
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
            fill_level: result.step.fill_level,
            nodes: result.nodes,
            of_ceiling: None,
            of_network: None,
            steadiness: result.steadiness,
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
