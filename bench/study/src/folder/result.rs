//! `result.json`: the result of one step. It is there if, and only if, the step is complete.

use std::collections::BTreeMap;
use std::path::Path;

use loadline_fleet::outcome::HostCpu;
use loadline_fleet::{Loss, WorkerInfo};
use loadline_load::host::Inventory;
use loadline_load::{CpuTime, VerifyReport};
use loadline_measure::audit::Finding;
use loadline_measure::capacity::Prediction;
use loadline_measure::heat::HeatMap;
use loadline_measure::steady::Steadiness;
use loadline_measure::summary::LatencySummary;
use loadline_measure::window::{Figures, Histograms, WindowSecond};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::StudyError;
use crate::folder::sealed::{self, Format};
use crate::limit::Verdict;
use crate::node_network::NetworkUse;
use crate::planned_step::Step;
use crate::settle::WarmUp;
use crate::storage_counts::StorageCounts;
use crate::timeline::Timeline;
use crate::when::When;

const FORMAT: Format = Format { name: "loadline-step", version: 1 };

/// What to do about a result that is damaged.
const ADVICE: &str =
    "Move the step's folder out of the run's folder; `loadline run --resume` then measures this step again";

/// What one worker measured in a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkerResult {
    /// The worker, as it introduced itself.
    pub worker: WorkerInfo,
    /// Its figures; of a lost worker, of what it measured before.
    pub figures: Figures,
    /// How far its start may have been from the agreed instant, by the uncertainty of clocks, nanoseconds; `null` if
    /// it could not begin.
    pub clock_error_ns: Option<u64>,
    /// How long after the agreed instant it began, by its own clock, nanoseconds; `null` of a lost worker, or in results of versions
    /// that did not state it.
    #[serde(default)]
    pub began_late_ns: Option<u64>,
    /// CPU time of its process in the window; `null` of a lost worker.
    pub cpu: Option<CpuTime>,
    /// Its host's CPUs in the window, by everything that ran there.
    pub host_cpu: Option<HostCpu>,
    /// Which engine ran; `null` of a lost worker.
    pub engine: Option<String>,
    /// What a reader of its figures should know.
    pub findings: Vec<Finding>,
    /// Why it does not count as a success, if it does not.
    pub lost: Option<Loss>,
}

/// The result of one step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StepResult {
    /// `loadline-step`.
    pub format: String,
    /// Version of this format.
    pub version: u64,
    /// The run that it belongs to.
    pub run_id: String,
    /// The step, as it was planned.
    pub step: Step,
    /// When its warm-up began.
    pub began: When,
    /// When it was complete.
    pub ended: When,
    /// Figures of the whole fleet: every worker's counts added, and percentiles of the merged histograms.
    pub figures: Figures,
    /// The merged histograms of the whole fleet.
    pub histograms: Histograms,
    /// How far apart the workers began; `null` if fewer than two finished, or in results of versions that did not state it.
    #[serde(default)]
    pub start: Option<StartSpread>,
    /// CPU time of all workers in the window.
    pub cpu: CpuTime,
    /// Each worker, in the fleet's order.
    pub workers: Vec<WorkerResult>,
    /// What a reader of the figures should know: the audit's findings and the workers'.
    pub findings: Vec<Finding>,
    /// What the checks of blocks found, by reads of the load and by the scan after it; `null` if not verifying.
    pub verify: Option<VerifyReport>,
    /// How it did against the study's limits.
    pub verdicts: Vec<Verdict>,
    /// The series beside it, and how many bytes each has.
    pub series: BTreeMap<String, u64>,
    /// What each host of the workers is, by its name.
    #[serde(default)]
    pub hosts: BTreeMap<String, Inventory>,
    /// What the workers of each node did, by its name: their counts added.
    #[serde(default)]
    pub nodes: BTreeMap<String, NodeFigures>,
    /// What the whole fleet completed in each second of the window.
    #[serde(default)]
    pub seconds: Vec<WindowSecond>,
    /// How many I/Os of the fleet took how long, over the window; `null` in results of versions that did not keep it.
    #[serde(default)]
    pub heat: Option<HeatMap>,
    /// How steady the window was, in five equal parts; `null` if it is shorter than ten seconds.
    #[serde(default)]
    pub steadiness: Option<Steadiness>,
    /// What was done to the storage in the window, and what followed; `null` if nothing was.
    #[serde(default)]
    pub timeline: Option<Timeline>,
    /// What the storage counted itself over the window; `null` if it is not a cluster of the run's own, or things were done to
    /// it.
    #[serde(default)]
    pub storage: Option<StorageCounts>,
    /// What the networks of the nodes carried over the window; `null` if nodes have no network of their own.
    #[serde(default)]
    pub network: Option<NetworkUse>,
    /// The warm-up until the load was steady; `null` if the study asks for none.
    #[serde(default)]
    pub warm_up: Option<WarmUp>,
    /// What the step was predicted to do, before it was measured; `null` if a node was not modelled.
    #[serde(default)]
    pub prediction: Option<Prediction>,
}

/// How far apart the workers of a step began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StartSpread {
    /// The greatest difference between the instants at which two workers began, each by its own clock, nanoseconds.
    pub spread_ns: u64,
    /// The greatest uncertainty of a worker's clock against the controller's, nanoseconds: two workers of different hosts may have
    /// begun by twice as much further apart.
    pub clock_error_ns: u64,
}

impl StartSpread {
    /// Of workers that finished; `None` of fewer than two.
    pub(crate) fn of(workers: &[WorkerResult]) -> Option<StartSpread> {
        let finished = workers.iter().filter(|worker| worker.lost.is_none());
        let late: Vec<u64> = finished.clone().filter_map(|worker| worker.began_late_ns).collect();
        let (first, last) = (late.iter().min()?, late.iter().max()?);
        let clock_error_ns = finished.filter_map(|worker| worker.clock_error_ns).max().unwrap_or(0);
        (late.len() > 1).then_some(StartSpread { spread_ns: last - first, clock_error_ns })
    }
}

/// What the workers of one node did.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeFigures {
    /// How many of them took part.
    pub workers: u32,
    /// I/Os a second.
    pub iops: f64,
    /// Bytes a second.
    pub bytes_per_s: f64,
    /// Their response times, microseconds.
    pub latency_us: LatencySummary,
}

impl StepResult {
    /// A result with nothing in it yet.
    pub fn empty(run_id: &str, step: &Step, began: When) -> StepResult {
        StepResult {
            format: FORMAT.name.into(),
            version: FORMAT.version,
            run_id: run_id.into(),
            step: step.clone(),
            ended: began.clone(),
            began,
            figures: Figures::default(),
            histograms: Histograms::default(),
            start: None,
            cpu: CpuTime::default(),
            workers: Vec::new(),
            findings: Vec::new(),
            verify: None,
            verdicts: Vec::new(),
            series: BTreeMap::new(),
            hosts: BTreeMap::new(),
            nodes: BTreeMap::new(),
            seconds: Vec::new(),
            heat: None,
            steadiness: None,
            timeline: None,
            storage: None,
            network: None,
            warm_up: None,
            prediction: None,
        }
    }

    pub(super) fn read(path: &Path) -> Result<Option<StepResult>, StudyError> {
        sealed::read(path, FORMAT, ADVICE)
    }

    /// The result that is in `text`; `path` is its file's name in errors. The error is one of usage: what is damaged is never
    /// read in part.
    pub fn parse(path: &Path, text: String) -> Result<StepResult, StudyError> {
        sealed::parse(path, text, FORMAT, ADVICE)
    }

    pub(super) fn write(&self, path: &Path) -> Result<(), StudyError> {
        sealed::write(path, self)
    }

    /// Whether it is of this step of this run.
    pub(super) fn is_of(&self, run_id: &str, step: &Step) -> bool {
        self.run_id == run_id && self.step.folder == step.folder && self.step.number == step.number
    }

    /// Workers that did not finish.
    pub fn lost(&self) -> usize {
        self.workers.iter().filter(|worker| worker.lost.is_some()).count()
    }

    /// CPU cores that all workers used together, on average over the window.
    pub fn cores(&self) -> f64 {
        self.cpu.used_s() / self.figures.window_s
    }
}
