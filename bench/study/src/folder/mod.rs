//! A run's folder: everything that a run was asked, did and measured, readable without Loadline.
//!
//! ```text
//! run.json                 what was asked and planned, which files were made, how far it came (sealed)
//! study.toml               the study, word for word
//! events.jsonl             what happened, one line each
//! lock                     held while a controller works here
//! steps/001-LABEL-r1/
//!     result.json          figures and merged histograms (sealed); there if, and only if, the step is complete
//!     intervals.hlog       HdrHistogram interval log, tags WORKER/DISK/OPERATION/PHASE
//!     seconds.jsonl        what such a log cannot carry: counts, bytes, errors, exact sums, by second and disk
//!     host.jsonl           what the hosts did: CPU, pressure, disks, by second and host
//! steps/...-interrupted-1/ what a step had measured when it was interrupted; it is in no figure
//! verify/  workers/  disks/  report/
//! ```
//!
//! A crash may come between any two instructions. So a step counts when its `result.json` is there, which comes
//! into being by a rename, after all that it speaks of is on the disk; and what was begun without one is moved
//! aside, never continued.

pub mod events;
pub mod lock;
pub mod manifest;
pub mod regular;
pub mod result;
pub mod sealed;
pub mod series;

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use loadline_load::host::DiskInventory;
use nix::fcntl::Flock;

use crate::error::StudyError;
use crate::folder::events::EventLog;
use crate::folder::lock::{LOCK, lock};
use crate::folder::manifest::{Manifest, RunState};
use crate::folder::result::StepResult;
use crate::plan::Plan;
use crate::planned_step::Step;
use crate::searches::{MeasuredStep, SearchResult};

const STUDY: &str = "study.toml";
const EVENTS: &str = "events.jsonl";
/// The folder of the cluster that a run starts for itself, in the run's folder.
pub(crate) const CLUSTER: &str = "san";
const STEPS: &str = "steps";
const RESULT: &str = "result.json";
const INTERRUPTED: &str = "-interrupted-";
/// A step that was interrupted more often than this has another trouble.
const MOST_INTERRUPTIONS: u32 = 10_000;

/// A run's folder, as it is read.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    /// What was asked and planned, and how far it came.
    pub manifest: Manifest,
    /// The plan that follows from the study.
    pub plan: Plan,
}

impl RunFolder {
    /// Reads a run's folder, finished or not. Another program may be working in it.
    pub fn open(path: &Path) -> Result<RunFolder, StudyError> {
        let path = path
            .canonicalize()
            .map_err(|e| StudyError::usage(format!("there is no run in {}: {e}", path.display())))?;
        let manifest = Manifest::read(&path)?;
        let mut plan = Plan::of(&manifest.study)?;
        if !manifest.follows(&plan) {
            return Err(StudyError::usage(format!(
                "run folder {}: the steps in run.json are not those of its study: it was made by another version \
                 of Loadline, or changed. Read it with {}, or run the study anew",
                path.display(),
                manifest.loadline
            )));
        }
        plan.steps.extend_from_slice(&manifest.steps[plan.fixed..]);
        Ok(RunFolder { path, manifest, plan })
    }

    /// What the steps are that a search has asked for, and how each search stands.
    pub fn searches(&self) -> Result<Vec<SearchResult>, StudyError> {
        let mut measured = Vec::new();
        if !self.plan.searches.is_empty() {
            for step in &self.plan.steps {
                measured.extend(self.result(step)?.as_ref().map(MeasuredStep::of));
            }
        }
        Ok(self.plan.searches.iter().map(|search| search.result(&measured)).collect())
    }

    /// Where it is: an absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A step's folder.
    pub fn step_path(&self, step: &Step) -> PathBuf {
        self.path.join(STEPS).join(&step.folder)
    }

    /// The result of a step; `None` if it is not complete. A result that is there and cannot be trusted is an
    /// error, and never a missing one.
    pub fn result(&self, step: &Step) -> Result<Option<StepResult>, StudyError> {
        let path = self.step_path(step).join(RESULT);
        let Some(result) = StepResult::read(&path)? else { return Ok(None) };
        if !result.is_of(&self.manifest.run_id, step) {
            return Err(StudyError::usage(format!(
                "{} belongs to another run or step: it was copied here. Move the folder {} out of the run; \
                 `loadline run --resume` then measures this step anew",
                path.display(),
                self.step_path(step).display()
            )));
        }
        Ok(Some(result))
    }

    /// How many steps are complete. Each result is read: one that cannot be trusted is an error.
    pub fn complete(&self) -> Result<usize, StudyError> {
        let mut complete = 0;
        for step in &self.plan.steps {
            complete += usize::from(self.result(step)?.is_some());
        }
        Ok(complete)
    }

    /// The result of every step, in the order of the plan; `None` for those that are not complete. Takes the memory of
    /// all of them: a figure over a large run is made from one [`result`](RunFolder::result) after another.
    pub fn results(&self) -> Result<Vec<(Step, Option<StepResult>)>, StudyError> {
        self.plan.steps.iter().map(|step| Ok((step.clone(), self.result(step)?))).collect()
    }

    /// Files of complete steps that are shorter than when the step was completed, in sentences. No figure comes
    /// from them.
    pub fn damaged_series(&self, step: &Step, result: &StepResult) -> Vec<String> {
        let folder = self.step_path(step);
        let shorter = |(name, bytes): (&String, &u64)| {
            let found = fs::metadata(folder.join(name)).map_or(0, |m| m.len());
            (found != *bytes).then(|| {
                format!(
                    "{} has {found} of {bytes} bytes: it was cut off or changed",
                    folder.join(name).display()
                )
            })
        };
        result.series.iter().filter_map(shorter).collect()
    }
}

/// A run's folder in which this process works, alone.
#[derive(Debug)]
pub struct OwnedFolder {
    /// What is read from it.
    pub folder: RunFolder,
    /// What happens is written here.
    pub events: EventLog,
    /// Whether this process made it: then no other process relies on it yet.
    fresh: bool,
    _lock: Flock<File>,
}

impl OwnedFolder {
    /// Makes a run's folder where nothing is yet, or in an empty folder.
    pub fn create(path: &Path, mut manifest: Manifest) -> Result<OwnedFolder, StudyError> {
        let plan = Plan::of(&manifest.study)?;
        let occupied = |why: &str| {
            StudyError::usage(format!(
                "--out {}: {why}. Give a folder that does not exist yet, or --resume to continue a run",
                path.display()
            ))
        };
        match fs::read_dir(path) {
            Ok(mut entries) => {
                if entries.next().is_some() {
                    return Err(occupied("is not empty"));
                }
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                fs::create_dir_all(path).map_err(|e| StudyError::io("make the run's folder", path, &e))?;
            }
            Err(e) => return Err(occupied(&e.to_string())),
        }
        let path = path.canonicalize().map_err(|e| StudyError::io("find", path, &e))?;
        let lock = lock(&path)?;
        for folder in [STEPS, "verify", "workers"] {
            let folder = path.join(folder);
            fs::create_dir(&folder).map_err(|e| StudyError::io("make", &folder, &e))?;
        }
        sealed::write_durably(&path.join(STUDY), manifest.study_text.as_bytes())?;
        let events = EventLog::open(&path.join(EVENTS))?;
        if plan.starts_cluster() {
            manifest.storage.push(storage_of(&path));
        }
        // Last: a folder without it is no run yet.
        manifest.write(&path)?;
        Ok(OwnedFolder { folder: RunFolder { path, manifest, plan }, events, fresh: true, _lock: lock })
    }

    /// Takes a run's folder over, to go on in it.
    pub fn resume(path: &Path) -> Result<OwnedFolder, StudyError> {
        let manifest_is_there = path.join(manifest::FILE).is_file();
        // Locked before it is read: what another controller is writing is not ours to judge.
        let lock = if manifest_is_there { Some(lock(path)?) } else { None };
        let folder = RunFolder::open(path)?;
        let lock = lock.ok_or_else(|| StudyError::usage(format!("there is no run in {}", path.display())))?;
        let manifest = &folder.manifest;
        if manifest.loadline != env!("CARGO_PKG_VERSION") {
            return Err(StudyError::usage(format!(
                "run folder {} was begun by loadline {}, and this is {}: figures of two generators do not belong \
                 in one run. Go on with loadline {}, or run the study anew",
                folder.path.display(),
                manifest.loadline,
                env!("CARGO_PKG_VERSION"),
                manifest.loadline
            )));
        }
        let copy = folder.path.join(STUDY);
        match fs::read(&copy) {
            Ok(bytes) if bytes == manifest.study_text.as_bytes() => {}
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                sealed::write_durably(&copy, manifest.study_text.as_bytes())?;
            }
            Err(e) => return Err(StudyError::io("read", &copy, &e)),
            Ok(_) => {
                return Err(StudyError::usage(format!(
                    "{} is no longer the study that this run began with, and steps of two studies do not belong in \
                     one run. Move that file away to go on with the study as it was, or run the changed one anew",
                    copy.display()
                )));
            }
        }
        // Every complete step must be readable before anything is added to the run.
        let complete = folder.complete()?;
        let events = EventLog::open(&folder.path.join(EVENTS))?;
        let mut owned = OwnedFolder { folder, events, fresh: false, _lock: lock };
        // If it was not recorded when the run began, the storage of the complete steps is not known, and stays so.
        if complete == 0 || !owned.folder.manifest.storage.is_empty() {
            owned.add_storage(storage_of(&owned.folder.path))?;
        }
        owned.remove_left_copies();
        Ok(owned)
    }

    /// Removes copies of journals that are left of migrations whose keepers were killed.
    pub(crate) fn remove_left_copies(&self) {
        loadline_fleet::remove_left_copies(&self.folder.path.join("verify"));
    }

    /// Records the storage of a cluster of the run's own, unless it is the last one that was recorded.
    fn add_storage(&mut self, found: DiskInventory) -> Result<(), StudyError> {
        let RunFolder { plan, manifest, .. } = &mut self.folder;
        let is_known = manifest.storage.last().is_some_and(|last| is_same(last, &found));
        if !plan.starts_cluster() || manifest.state == RunState::Finished || is_known {
            return Ok(());
        }
        manifest.storage.push(found);
        self.save()
    }

    /// Whether this process made it.
    pub(crate) fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Takes the folder away again, if this process made it and no step is complete: nothing was begun.
    pub(crate) fn abandon(self) -> Result<(), StudyError> {
        let complete = self.folder.complete()? > 0;
        if !self.fresh
            || complete
            || !self.folder.manifest.volumes.is_empty()
            || self.folder.manifest.files.iter().any(|file| file.identity.is_some())
        {
            return Ok(());
        }
        let path = &self.folder.path;
        for name in [STEPS, "verify", "workers", "disks", CLUSTER] {
            let _ = fs::remove_dir_all(path.join(name));
        }
        for name in [manifest::FILE, STUDY, EVENTS, LOCK] {
            let _ = fs::remove_file(path.join(name));
        }
        // Whatever else is in it is not ours, and then the folder stays.
        let _ = fs::remove_dir(path);
        Ok(())
    }

    /// Writes the manifest as it is now.
    pub fn save(&self) -> Result<(), StudyError> {
        self.folder.manifest.write(&self.folder.path)
    }

    /// Makes a new, empty folder for a step; what an interrupted attempt left is moved aside.
    pub fn begin_step(&self, step: &Step) -> Result<PathBuf, StudyError> {
        let path = self.folder.step_path(step);
        if path.exists() {
            let aside = (1..=MOST_INTERRUPTIONS)
                .map(|n| path.with_file_name(format!("{}{INTERRUPTED}{n}", step.folder)))
                .find(|aside| !aside.exists())
                .ok_or_else(|| {
                    StudyError::usage(format!(
                        "{} was interrupted {MOST_INTERRUPTIONS} times: move the folders \"{}{INTERRUPTED}...\" out of \
                         the run",
                        path.display(),
                        step.folder
                    ))
                })?;
            fs::rename(&path, &aside).map_err(|e| StudyError::io("move aside", &path, &e))?;
        }
        fs::create_dir(&path).map_err(|e| StudyError::io("make", &path, &e))?;
        sealed::sync_folder(&self.folder.path.join(STEPS))?;
        Ok(path)
    }

    /// Adds a step that a search asks for.
    pub(crate) fn add_step(&mut self, step: Step) -> Result<(), StudyError> {
        self.folder.manifest.steps.push(step.clone());
        self.folder.plan.steps.push(step);
        self.save()
    }

    /// Completes a step: from here on it counts as measured, also after a crash.
    pub fn complete_step(&self, step: &Step, result: &StepResult) -> Result<(), StudyError> {
        result.write(&self.folder.step_path(step).join(RESULT))
    }
}

/// What is below the devices of a cluster that the run in this folder starts.
fn storage_of(run: &Path) -> DiskInventory {
    let devices = run.join(CLUSTER);
    DiskInventory::of_folder(if devices.exists() { &devices } else { run })
}

/// Whether two records are of one storage: the same file system on the same device.
fn is_same(one: &DiskInventory, other: &DiskInventory) -> bool {
    let facts = |disk: &DiskInventory| {
        let model = disk.settings.get("model").cloned();
        (disk.kind.clone(), disk.file_system.clone(), disk.device.clone(), disk.memory.clone(), model)
    };
    facts(one) == facts(other)
}

/// The folder for a run without `--out`: `runs/NAME-DATE-TIME` in the current one, with a number if that is taken.
pub fn default_path(study: &str, now: &crate::when::When) -> PathBuf {
    let base = format!("{study}-{}", now.compact());
    let first = Path::new("runs").join(&base);
    let numbered = (2..1000).map(|n| Path::new("runs").join(format!("{base}-{n}")));
    std::iter::once(first.clone()).chain(numbered).find(|path| !path.exists()).unwrap_or(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read;

    const OWN: &str =
        "name = \"s\"\nprofiles = [\"B4-T1-O8-W0-PR\"]\n[target]\nsan = {}\n[fleet]\nnodes = 2\n";

    fn made(place: &Path, study: &str) -> OwnedFolder {
        let manifest =
            Manifest::new(read::parse("s.toml", study).unwrap(), study.into(), place.into()).unwrap();
        OwnedFolder::create(&place.join("run"), manifest).unwrap()
    }

    #[test]
    fn the_storage_of_an_own_cluster_is_recorded_when_the_run_begins() {
        let memory = Path::new("/dev/shm");
        let place = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
        let owned = made(place.path(), OWN);
        let recorded = owned.folder.manifest.storage.clone();
        let path = owned.folder.path.clone();
        drop(owned);
        let [one] = recorded.as_slice() else { panic!("{recorded:?}") };
        if memory.is_dir() {
            assert_eq!(one.memory.as_deref(), Some("tmpfs"), "{one:?}");
        }
        assert_eq!(RunFolder::open(&path).unwrap().manifest.storage, recorded, "it is in run.json");
        // On the same storage nothing is added, wherever the folder is.
        let moved = place.path().join("moved");
        fs::rename(&path, &moved).unwrap();
        assert_eq!(OwnedFolder::resume(&moved).unwrap().folder.manifest.storage, recorded);
        // On another storage that is added, and what was recorded stays.
        let mut owned = OwnedFolder::resume(&moved).unwrap();
        let other = DiskInventory {
            kind: "file".into(),
            file_system: Some("other (rw)".into()),
            ..DiskInventory::default()
        };
        owned.add_storage(other.clone()).unwrap();
        drop(owned);
        assert_eq!(RunFolder::open(&moved).unwrap().manifest.storage, [one.clone(), other]);
        // A run on files of its workers has none.
        let place = tempfile::tempdir().unwrap();
        let files = made(place.path(), "name = \"s\"\nprofiles = [\"B4-T1-O8-W0-PR\"]\n");
        assert!(files.folder.manifest.storage.is_empty());
    }
}
