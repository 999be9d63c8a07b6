//! Answers into a study that is read, validated and planned.

use std::time::Duration;

use loadline_study::{Plan, Study, read};
use schemars::JsonSchema;
use serde::Serialize;

use crate::answers::Answers;
use crate::compose;
use crate::fault::Fault;
use crate::field::Field;
use crate::resolved::Resolved;

/// A study that answers a question.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Draft {
    /// Its name. The usual name of its file is this with `.toml`.
    pub name: String,
    /// The file: TOML with comments.
    pub text: String,
    /// The options of `loadline run` that the study needs, in the order in which they are typed.
    pub run_options: Vec<String>,
    /// Whether the run writes to existing disks, so that all data on them is lost.
    pub destroys_data: bool,
    /// How long it takes and how much space it needs.
    pub plan: PlanFigures,
    /// The study, as it was read from the text.
    #[serde(skip)]
    pub study: Study,
}

/// What a plan says before anything is measured. Filling, scans, and warm-ups until the load is steady come on top of its times.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PlanFigures {
    /// The steps that are known, in their order. Searches add steps.
    pub steps: Vec<PlannedStep>,
    /// The length of each step, seconds.
    pub step_seconds: u64,
    /// The length of the known steps, seconds.
    pub seconds: u64,
    /// What is searched after the known steps, in words.
    pub searches: Vec<String>,
    /// The most steps that there can be. Searches usually need fewer than half of theirs.
    pub most_steps: u64,
    /// The length of so many steps, seconds.
    pub most_seconds: u64,
    /// The longest warm-up until the load is steady, seconds; `null` if there is none.
    pub steady_seconds: Option<u64>,
    /// Bytes that are written once before the first step; `null` if nothing is, or if existing disks are.
    pub fill_bytes: Option<u64>,
    /// Bytes that the files of the machines need, or the devices of a cluster that the run starts; 0 if the run makes neither here.
    pub storage_bytes: u64,
    /// Bytes that the run's folder needs for its figures, at most.
    pub folder_bytes: u64,
}

/// A step that is known before the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PlannedStep {
    /// Its number, from 1.
    pub number: u32,
    /// The load and the condition, as the report names them.
    pub label: String,
    /// Which repeat it is, from 1.
    pub repeat: u32,
}

/// The study that answers the question. The errors name the answers that cannot be used, or those that are missing.
pub fn draft(answers: &Answers) -> Result<Draft, Vec<Fault>> {
    let resolved = Resolved::of(answers)?;
    let text = compose::study(&resolved);
    let planned = read::parse(&format!("{}.toml", resolved.name), &text)
        .and_then(|study| Plan::of(&study).map(|plan| (study, plan)));
    // What the checks above leave to those of a study is about the load: a block size that is too large for the disk or the log.
    let (study, plan) = planned.map_err(|why| vec![Fault::wrong(Field::Load, why.message)])?;
    Ok(Draft {
        name: resolved.name.to_string(),
        text,
        run_options: compose::run_options(&resolved),
        destroys_data: compose::gives_up_disks(&resolved),
        plan: PlanFigures::of(&study, &plan),
        study,
    })
}

/// What is wrong with the answers so far; empty if a study can be made.
pub fn faults(answers: &Answers) -> Vec<Fault> {
    draft(answers).err().unwrap_or_default()
}

impl PlanFigures {
    /// The figures of a plan.
    fn of(study: &Study, plan: &Plan) -> PlanFigures {
        let length = |steps: usize| plan.step_length.saturating_mul(u32::try_from(steps).unwrap_or(u32::MAX));
        let is_here = plan.cluster.is_none() || plan.starts_cluster();
        let storage = match plan.cluster {
            Some(_) => plan.cluster_space().0,
            None => plan.file_space().0,
        };
        PlanFigures {
            steps: (plan.steps.iter())
                .map(|step| PlannedStep {
                    number: step.number,
                    label: step.label.clone(),
                    repeat: step.repeat,
                })
                .collect(),
            step_seconds: plan.step_length.as_secs(),
            seconds: length(plan.steps.len()).as_secs(),
            searches: plan.searches.iter().map(|search| search.words()).collect(),
            most_steps: plan.most_steps() as u64,
            most_seconds: plan.length().as_secs(),
            steady_seconds: study.phases.steady.map(|steady| Duration::as_secs(&steady.limit.0)),
            fill_bytes: plan.disk_size.filter(|_| plan.fill).map(|_| plan.file_space().0),
            storage_bytes: if is_here { storage } else { 0 },
            folder_bytes: plan.folder_space().0,
        }
    }
}
