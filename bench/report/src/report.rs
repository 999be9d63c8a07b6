//! What a run's folder says, as one value: rows, verdict, and what is missing.

use std::collections::BTreeMap;

use loadline_base::figures::thousands;
use loadline_load::VerifyReport;
use loadline_measure::analysis::{Group, Options, analyse};
use loadline_measure::audit::{Finding, FindingKind};
use loadline_profile::Profile;
use loadline_study::ceilings::{is_of, share};
use loadline_study::network::{self, MeasuredLink};
use loadline_study::planned_step::Purpose;
use loadline_study::searches::{MeasuredStep, SearchResult};
use loadline_study::success::{Candidates, Decision};
use loadline_study::when::When;
use loadline_study::{RunFolder, StudyError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::answers;
use crate::capacity::{self, CapacityRow};
use crate::conditions::{self, ConditionRow};
use crate::curves::{self, Curve};
use crate::faults::{self, FaultsRow};
use crate::kind::StudyKind;
use crate::machines::{self, MachineStart};
use crate::names;
use crate::orientation::Orientation;
use crate::orientation::subject::{self, Storage};
use crate::points;
use crate::rows::{LoadRow, StepRow, loads, verified};
use crate::tiles::{Parts, Tiles};
use crate::validity::{self, Check, Memory, Progress};
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
    /// The question that it is to answer.
    pub asks: Option<String>,
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
    /// The verdict in three short texts.
    pub tiles: Tiles,
    /// What the study is about: which chart comes first.
    pub kind: StudyKind,
    /// Loads by the names that people use: of each label, and of each family.
    pub names: BTreeMap<String, String>,
    /// The conditions of the study, in its order.
    pub condition_names: Vec<String>,
    /// What the cluster carries, and what limits it.
    pub verdict: Verdict,
    /// Whether the figures can be believed.
    pub validity: Vec<Check>,
    /// Every complete step, in the order in which they were measured.
    pub steps: Vec<StepRow>,
    /// Every load, over its complete repeats; ceilings among them, steps of searches not.
    pub loads: Vec<LoadRow>,
    /// Loads that were measured in more than one condition, side by side.
    pub conditions: Vec<ConditionRow>,
    /// What was predicted, measured and published of each load; empty if nothing was predicted or published.
    pub capacity: Vec<CapacityRow>,
    /// What was done to the storage in the windows of each load, and what followed.
    pub faults: Vec<FaultsRow>,
    /// Each load's sweeps: what grows, where it saturates, where the knee is.
    pub sweeps: Vec<Group>,
    /// Each load's sweeps as points of a chart.
    pub curves: Vec<Curve>,
    /// The network between the nodes, measured before the fleet; empty if the study asks for no ceilings.
    pub network: Vec<MeasuredLink>,
    /// Each start of a virtual machine that the run started to be a worker; empty if its workers are processes.
    #[serde(default)]
    pub machines: Vec<MachineStart>,
    /// What the study's searches came to.
    pub searches: Vec<SearchResult>,
    /// How the study's criteria of success are met.
    pub criteria: Vec<Decision>,
    /// What the load lines, or else the largest loads, compare with: orientation, not a verdict.
    pub orientation: Orientation,
    /// Steps that are not complete: their number, load and repeat, in words.
    pub missing: Vec<String>,
    /// What is wrong with files that no figure comes from.
    pub notices: Vec<String>,
    /// Steps whose results are there and cannot be read; each is among the missing, and a notice says why.
    #[serde(skip)]
    pub unreadable: usize,
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
            asks: manifest.study.asks.clone(),
            run_id: manifest.run_id.clone(),
            loadline: manifest.loadline.clone(),
            begun: manifest.begun.clone(),
            finished: manifest.finished.clone(),
            complete: 0,
            planned: steps.len(),
            tiles: Tiles::default(),
            kind: StudyKind::default(),
            names: BTreeMap::new(),
            condition_names: manifest.study.condition.iter().map(|one| one.name.to_string()).collect(),
            verdict: Verdict::default(),
            validity: Vec::new(),
            steps: Vec::new(),
            loads: Vec::new(),
            conditions: Vec::new(),
            capacity: Vec::new(),
            faults: Vec::new(),
            sweeps: Vec::new(),
            curves: Vec::new(),
            network: manifest.network.clone().unwrap_or_default(),
            machines: Vec::new(),
            searches: Vec::new(),
            criteria: Vec::new(),
            orientation: Orientation::default(),
            missing: Vec::new(),
            notices: Vec::new(),
            unreadable: 0,
        };
        let mut candidates = Candidates::default();
        let mut measured = Vec::new();
        let mut points = Vec::new();
        let mut memory = Memory::of(folder);
        let mut storage = Storage::of(folder);
        // One step at a time: a result of many workers is large.
        for step in steps {
            let missing = format!("{} ({}, repeat {})", step.number, step.label, step.repeat);
            match folder.result(step) {
                Ok(Some(result)) => {
                    report.notices.extend(folder.damaged_series(step, &result));
                    candidates.add(&result);
                    memory.of_hosts(&result);
                    storage.of_hosts(&result);
                    machines::add(&mut report.machines, &result);
                    if step.purpose != Purpose::Ceiling {
                        points.push(points::point(&result, Some(folder.plan.fleet.disks_per_worker)));
                    }
                    if !folder.plan.searches.is_empty() {
                        measured.push(MeasuredStep::of(&result));
                    }
                    report.steps.push(StepRow::of(result, folder.plan.fleet.disks_per_worker));
                }
                Ok(None) => report.missing.push(missing),
                Err(error) => {
                    report.missing.push(missing);
                    report.notices.push(error.message);
                    report.unreadable += 1;
                }
            }
        }
        report.complete = report.steps.len();
        report.hold_to_ceilings(manifest.study.ceilings.device_writes.unwrap_or(1.0));
        report.hold_to_network(manifest.study.ceilings.network());
        report.loads = loads(&report.steps);
        report.names = names::all(&report.steps);
        report.curves = curves::curves(&report.steps);
        report.searches = folder.plan.searches.iter().map(|search| search.result(&measured)).collect();
        let complete = report.missing.is_empty() && report.searches.iter().all(|search| search.done);
        report.criteria = candidates.judge(&manifest.study, &folder.plan.fleet, complete);
        report.conditions = conditions::rows(&report.steps);
        report.capacity = capacity::rows(steps, &manifest.study.published, &report.steps);
        report.faults = faults::rows(&report.steps);
        // What was found of each step when it was measured stands with the step.
        report.sweeps = analyse(points, &Options { audited: true, ..Options::default() }).groups;
        let progress = Progress {
            planned: report.planned,
            missing: report.missing.len(),
            finished: report.finished.is_some(),
        };
        report.validity = validity::checks(progress, &report.steps, &report.loads, &memory);
        report.verdict =
            Verdict::of(&report.steps, &report.loads, &report.searches, &report.criteria, &report.conditions);
        report.orientation = subject::of_run(&report.steps, &report.loads, &report.searches, &storage);
        report.verdict.carries.extend(answers::growth(&report.steps, &report.sweeps));
        report.verdict.beside.extend(answers::two_variables(&manifest.study));
        report.verdict.beside.extend(answers::one_machine(&manifest.study));
        report.verdict.beside.extend(answers::counted(&report.steps));
        report.verdict.beside.extend(machines::sentence(&report.machines));
        report.verdict.carries.extend(faults::sentences(&report.faults));
        report.verdict.carries.extend(report.verified().map(|verified| integrity(&verified)));
        report.kind = StudyKind::of(&report.faults, &report.conditions, &report.curves);
        report.tiles = Tiles::of(&Parts {
            steps: &report.steps,
            loads: &report.loads,
            searches: &report.searches,
            criteria: &report.criteria,
            conditions: &report.conditions,
            faults: &report.faults,
            sweeps: &report.sweeps,
            capacity: &report.capacity,
            verdict: &report.verdict,
            validity: &report.validity,
            names: &report.names,
            kind: report.kind,
        });
        Ok(report)
    }

    /// What the checks of blocks found in all steps together; `None` if none was verified.
    pub fn verified(&self) -> Option<VerifyReport> {
        verified(&self.steps)
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

/// What the checks of blocks say, in a sentence.
fn integrity(verified: &VerifyReport) -> String {
    let judged = verified.checked.saturating_sub(verified.unjudged);
    match (verified.bad(), judged) {
        (0, 0) => "Whether writes were lost is not known: no block could be judged".into(),
        (0, 1) => "No acknowledged write was lost and no read was old: 1 block was checked".into(),
        (0, _) => format!(
            "No acknowledged write was lost and no read was old: {} blocks were checked",
            thousands(judged as f64)
        ),
        _ => format!(
            "DATA WERE LOST: blocks checked: {}; of these {} older than acknowledged, {} corrupt, {} from elsewhere, {} unreadable",
            thousands(verified.checked as f64),
            thousands(verified.lost as f64),
            thousands(verified.corrupt as f64),
            thousands(verified.foreign as f64),
            thousands(verified.unreadable as f64)
        ),
    }
}
