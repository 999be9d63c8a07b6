//! `run.json`: what was asked and planned, which files were made, and how far the run came.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::{Path, PathBuf};

use loadline_base::units::ByteSize;
use loadline_fleet::{WorkerId, WorkerInfo};
use loadline_load::FileIdentity;
use loadline_load::host::{DiskInventory, Inventory};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::StudyError;
use crate::file::Study;
use crate::folder::sealed::{self, Format};
use crate::name::Name;
use crate::network::MeasuredLink;
use crate::plan::Plan;
use crate::planned_step::{Purpose, Step};
use crate::read;
use crate::resume::Resume;
use crate::when::When;

/// Its name in the run's folder.
pub const FILE: &str = "run.json";
const FORMAT: Format = Format { name: "loadline-run", version: 1 };

/// A file that this run made, or is about to make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MadeFile {
    /// The worker on whose host it is.
    pub worker: WorkerId,
    /// Where it is.
    pub path: PathBuf,
    /// Its size.
    pub size: ByteSize,
    /// The policy whose disk it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Name>,
    /// Whether it is the scratch file of a ceiling.
    #[serde(default)]
    pub ceiling: bool,
    /// Which file it is. `null`: about to be made. The run's id in its name shows that this run made it.
    pub identity: Option<FileIdentity>,
}

/// How far a run came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// Begun; it may be running now, or wait to be resumed.
    Begun,
    /// Every step is complete, and what was made is removed (unless it was to be kept).
    Finished,
}

/// What was asked and planned, which files were made, and how far the run came.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// `loadline-run`.
    pub format: String,
    /// Version of this format.
    pub version: u64,
    /// The Loadline that began the run.
    pub loadline: String,
    /// Different for every run: date, time, the controller's process, and a random number.
    pub run_id: String,
    /// When it was begun.
    pub begun: When,
    /// When it was finished; `null` if it is not.
    pub finished: Option<When>,
    /// How far it came.
    pub state: RunState,
    /// The folder of the study file: a relative `folder` of its target is relative to it.
    pub study_folder: PathBuf,
    /// The commit that was checked out in the git work tree of the study file when the run began; `null` if the study is in
    /// none.
    #[serde(default)]
    pub commit: Option<String>,
    /// The study, word for word. It is what counts.
    pub study_text: String,
    /// The study, for other programs.
    pub study: Study,
    /// Every step, in the order in which they are measured.
    pub steps: Vec<Step>,
    /// Whether the targets were given up to be written on.
    pub destroy_data: bool,
    /// Whether files that were made are kept when the run is finished.
    pub keep_files: bool,
    /// How the run is continued; missing of a run of a version that did not record it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<Resume>,
    /// The workers, as they introduced themselves when the run began.
    pub workers: Vec<WorkerInfo>,
    /// The controller's host, and what is below the targets there, as it was before the first step; `null` before.
    pub host: Option<Inventory>,
    /// What is below the run's folder, where a cluster of the run's own has its devices: as it was when the run began, and each
    /// time that a resumed run found another storage there. Missing if the run starts no cluster, or if it was begun by a version
    /// that did not record it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub storage: Vec<DiskInventory>,
    /// Files that this run made.
    pub files: Vec<MadeFile>,
    /// The id of the cluster that ran before, in which the run makes its volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// Volumes that this run made, or is about to make, in a cluster that ran before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<String>,
    /// The network between the nodes, of a study with ceilings; `null` before it was measured, or of another study.
    #[serde(default)]
    pub network: Option<Vec<MeasuredLink>>,
    /// Whether all that the profiles use was written once, or as much as the lowest level of filling asks for.
    pub filled: bool,
    /// Percent of each disk that is written, of a study that varies it; `null` before.
    #[serde(default)]
    pub filled_percent: Option<f64>,
}

/// Two containers can each begin a run in the same second with the same process id: the random number tells them apart.
fn new_run_id(begun: &When) -> String {
    // The keys of a hash map are random.
    let random = RandomState::new().build_hasher().finish() as u32;
    format!("{}-{}-{random:08x}", begun.compact(), std::process::id())
}

impl Manifest {
    /// The manifest of a run that begins now.
    pub fn new(study: Study, study_text: String, study_folder: PathBuf) -> Result<Manifest, StudyError> {
        let plan = Plan::of(&study)?;
        let begun = When::now();
        Ok(Manifest {
            format: FORMAT.name.into(),
            version: FORMAT.version,
            loadline: env!("CARGO_PKG_VERSION").into(),
            run_id: new_run_id(&begun),
            begun,
            finished: None,
            state: RunState::Begun,
            study_folder,
            commit: None,
            study_text,
            study,
            steps: plan.steps,
            destroy_data: false,
            keep_files: false,
            resume: None,
            workers: Vec::new(),
            host: None,
            storage: Vec::new(),
            files: Vec::new(),
            cluster: None,
            volumes: Vec::new(),
            network: None,
            filled: false,
            filled_percent: None,
        })
    }

    /// Reads the manifest of a run's folder.
    pub(super) fn read(folder: &Path) -> Result<Manifest, StudyError> {
        let path = folder.join(FILE);
        let advice = "Restore it from a backup, or run the study again; figures of complete steps are in steps/*/result.json";
        let mut manifest: Manifest = sealed::read(&path, FORMAT, advice)?.ok_or_else(|| {
            StudyError::usage(format!(
                "there is no run in {}: it has no {FILE}. Give the folder that `loadline run` made",
                folder.display()
            ))
        })?;
        // The hosts of an inventory are those that it had when the run began.
        let nodes = std::mem::take(&mut manifest.study.fleet.node);
        manifest.study = read::parse(&format!("{} (study_text)", path.display()), &manifest.study_text)?;
        if manifest.study.fleet.inventory.is_some() {
            manifest.study.fleet.node = nodes;
        }
        read::locate_token(&mut manifest.study, &manifest.study_folder)?;
        Ok(manifest)
    }

    /// Writes it into the run's folder.
    pub(super) fn write(&self, folder: &Path) -> Result<(), StudyError> {
        sealed::write(&folder.join(FILE), self)
    }

    /// Whether its steps are those of this plan, and after them only what searches asked for.
    pub(super) fn follows(&self, plan: &Plan) -> bool {
        let same = |(a, b): (&Step, &Step)| {
            (a.number, &a.label, a.repeat, &a.folder) == (b.number, &b.label, b.repeat, &b.folder)
        };
        let searches = plan.searches.len();
        let asked = |step: &Step| match step.purpose {
            Purpose::Search { search, .. } => (1..=searches).contains(&(search as usize)),
            _ => false,
        };
        self.steps.len() >= plan.fixed
            && self.steps.iter().zip(&plan.steps).all(same)
            && self.steps[plan.fixed..].iter().all(asked)
    }

    /// Where files that the run makes are made, given the run's folder and the folder that the study names.
    pub(crate) fn files_folder(&self, run: &Path, named: Option<&PathBuf>) -> PathBuf {
        match named {
            Some(folder) => self.study_folder.join(folder),
            None => run.join("disks"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_runs_of_one_process_in_one_second_have_different_ids() {
        let begun = When::now();
        let (one, other) = (new_run_id(&begun), new_run_id(&begun));
        assert_ne!(one, other);
        assert!(one.starts_with(&format!("{}-{}-", begun.compact(), std::process::id())), "{one}");
    }
}
