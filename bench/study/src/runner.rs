//! Does what a run still lacks, with a fleet that has started: files, fill, steps, scans, and the end.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use loadline_base::figures::{are, counted};
use loadline_fleet::{FleetKind, LossReason, Placement, StepOutcome, WorkerId, WorkerInfo};
use loadline_load::VerifyReport;
use loadline_load::error::ErrorKind;
use loadline_load::host::Inventory;
use loadline_load::target::remove_file;
use loadline_load::{FileIdentity, Job};
use loadline_measure::audit::{Finding, FindingKind, Severity};
use tokio::sync::watch;

use crate::error::StudyError;
use crate::folder::OwnedFolder;
use crate::folder::events::RunEvent;
use crate::folder::manifest::RunState;
use crate::folder::result::StepResult;
use crate::folder::series::SeriesWriter;
use crate::harness::Harness;
use crate::jobs::Jobs;
use crate::limited_volumes;
use crate::modelled::Modelled;
use crate::node_network;
use crate::orders::OrdersSocket;
use crate::planned_step::{Purpose, Step};
use crate::predicted;
use crate::progress::Update;
use crate::record::Shared;
use crate::searches::MeasuredStep;
use crate::settle::{WarmUp, not_steady};
use crate::step::{collect, integrity};
use crate::volumes::{Places, Volumes};
use crate::when::When;
use crate::worker_order::in_order;
use crate::workers::Workers;
use loadline_fleet::or_stop;

/// So many steps in a row that no worker finished end the run: the cause does not pass by itself.
const MOST_IN_VAIN: u32 = 3;

/// A run's folder, and workers to go on with it.
pub(crate) struct Runner<'a, W> {
    pub(crate) owned: &'a mut OwnedFolder,
    pub(crate) workers: W,
    pub(crate) shared: Shared,
    pub(crate) stop: watch::Receiver<bool>,
    /// Workers whose job was taken once, since this process began: what they are asked can be done.
    taken: BTreeSet<WorkerId>,
    /// The last steps that no worker finished, in a row.
    in_vain: u32,
    /// The numbers of the steps that are complete.
    complete: BTreeSet<u32>,
    /// What they measured, if searches need it.
    measured: Vec<MeasuredStep>,
    /// The last warm-up until the load was steady, and of which step; of this process, since what was between two is not
    /// known.
    pub(crate) warm: Option<(Step, WarmUp)>,
    /// What checks of blocks found in the warm-up of the step that comes.
    pub(crate) found_before: Vec<VerifyReport>,
    /// The cluster that the study starts for itself, if it does.
    pub(crate) harness: Option<Harness>,
    /// Where the run takes orders, if machines of it can be migrated.
    pub(crate) orders: Option<OrdersSocket>,
    /// Whether volumes are elsewhere than they were placed, since a person had machines migrated.
    pub(crate) is_displaced: bool,
    /// The disks that it makes for each worker.
    pub(crate) volumes: Volumes,
    /// The node on whose host each worker is to run, of a fleet of hosts.
    pub(crate) places: Places,
    /// The node that owns each volume.
    pub(crate) owners: BTreeMap<String, String>,
    /// Percent of the workers that are apart from their volumes now.
    pub(crate) unaligned_percent: u8,
    /// The repeat and the condition in which its cluster is, by the condition's place.
    pub(crate) entered: Option<(u32, usize)>,
    /// Whether that condition was begun anew, without the loads of those before it.
    pub(crate) out_of_turn: bool,
    /// What is modelled of the storage.
    pub(crate) modelled: Modelled,
}

impl<'a, W> Runner<'a, W> {
    pub(crate) fn new(
        owned: &'a mut OwnedFolder,
        workers: W,
        shared: Shared,
        stop: watch::Receiver<bool>,
    ) -> Runner<'a, W> {
        Runner {
            owned,
            workers,
            shared,
            stop,
            taken: BTreeSet::new(),
            in_vain: 0,
            complete: BTreeSet::new(),
            measured: Vec::new(),
            warm: None,
            found_before: Vec::new(),
            harness: None,
            orders: None,
            is_displaced: false,
            volumes: Volumes::new(),
            places: Places::new(),
            owners: BTreeMap::new(),
            unaligned_percent: 0,
            entered: None,
            out_of_turn: false,
            modelled: Modelled::default(),
        }
    }
}

impl<W: Workers> Runner<'_, W> {
    /// Everything that is still to be done.
    pub(crate) async fn all(&mut self) -> Result<(), StudyError> {
        self.look_back()?;
        self.adopt()?;
        let folder = &self.owned.folder;
        if folder.plan.cluster.is_some() && folder.plan.fleet.has_own_machines(&folder.manifest.study) {
            self.orders = Some(OrdersSocket::open(folder.path())?);
        }
        self.make_volumes().await?;
        self.make_files().await?;
        if self.owned.folder.manifest.host.is_none() {
            self.owned.folder.manifest.host = Some(Inventory::collect(&self.jobs().targets()));
            self.owned.save()?;
        }
        self.fill().await?;
        self.measure_network().await?;
        while let Some(step) = self.next_step()? {
            if let Err(error) = self.step(&step).await {
                let bad = self.shared.lock().drop_step();
                // What the step's warm-up found is in no result either.
                let before = self.found_before.iter().fold(0, |all: u64, one| all.saturating_add(one.bad()));
                return Err(and_bad_blocks(error, bad.saturating_add(before)));
            }
        }
        self.finish().await
    }

    /// What is complete already, one step at a time: a result of many workers is large.
    fn look_back(&mut self) -> Result<(), StudyError> {
        let folder = &self.owned.folder;
        for step in &folder.plan.steps {
            let Some(result) = folder.result(step)? else { continue };
            self.complete.insert(step.number);
            if !folder.plan.searches.is_empty() {
                self.measured.push(MeasuredStep::of(&result));
            }
        }
        Ok(())
    }

    /// The first step that is not complete, or the next one that a search asks for; `None` if all is measured.
    fn next_step(&mut self) -> Result<Option<Step>, StudyError> {
        let folder = &self.owned.folder;
        if let Some(step) = folder.plan.steps.iter().find(|step| !self.complete.contains(&step.number)) {
            return Ok(Some(step.clone()));
        }
        let number = u32::try_from(folder.plan.steps.len() + 1).unwrap_or(u32::MAX);
        let next = folder.plan.searches.iter().find_map(|search| search.next(&self.measured, number));
        if let Some(step) = &next {
            self.owned.add_step(step.clone())?;
        }
        Ok(next)
    }

    /// Takes back what was made for a run in which nothing was begun. Only files that this run made.
    pub(crate) async fn undo(&mut self) -> Result<(), StudyError> {
        let begun = self.owned.folder.complete()? > 0;
        if begun || !self.owned.is_fresh() {
            return Ok(());
        }
        self.remove_volumes().await?;
        self.remove_files().await
    }

    pub(crate) fn jobs(&self) -> Jobs<'_> {
        let folder = &self.owned.folder;
        Jobs { manifest: &folder.manifest, plan: &folder.plan, run: folder.path(), volumes: &self.volumes }
    }

    /// The workers of the run are those that it began with: files and journals are theirs.
    fn adopt(&mut self) -> Result<(), StudyError> {
        let found = in_order(self.workers.workers());
        let placement = self.owned.folder.plan.fleet.placement.clone();
        let manifest = &mut self.owned.folder.manifest;
        if manifest.workers.is_empty() {
            manifest.workers = found;
            if manifest.study.run.verify && manifest.workers.iter().any(|worker| !is_here(&placement, worker))
            {
                return Err(StudyError::usage(
                    "[run] verify: journals are kept in the run's folder, so every worker must be on this machine; \
                     say verify = false, or start the workers here",
                ));
            }
            return self.owned.save();
        }
        let names =
            |workers: &[WorkerInfo]| workers.iter().map(|worker| worker.id.0.clone()).collect::<Vec<_>>();
        let (before, now) = (names(&manifest.workers), names(&found));
        if before != now {
            return Err(StudyError::usage(format!(
                "the run began with the workers {}, and now there are {}: start them under the same names \
                 (`loadline worker --name`)",
                before.join(", "),
                now.join(", ")
            )));
        }
        Ok(())
    }

    /// Makes the files that are not there yet. Which they will be is written down before, and which they are after:
    /// whenever the process ends, no file of the run is forgotten, and no other is taken for one.
    async fn make_files(&mut self) -> Result<(), StudyError> {
        // What is left of a run that only lacks its end is to be removed, and not made again.
        if self.jobs().files().is_empty() || self.is_measured() {
            return Ok(());
        }
        if self.owned.folder.manifest.files.is_empty() {
            self.owned.folder.manifest.files = self.jobs().files();
            self.owned.save()?;
        }
        if self.owned.folder.manifest.study.targets().any(|target| target.folder.is_none())
            && self.owned.folder.plan.disk_size.is_some()
            && self.owned.folder.plan.cluster.is_none()
        {
            let folder = self.owned.folder.path().join("disks");
            fs::create_dir_all(&folder).map_err(|e| StudyError::io("make", &folder, &e))?;
        }
        let lacking = self.lacking_files()?;
        if lacking.is_empty() {
            return Ok(());
        }
        let files = &self.owned.folder.manifest.files;
        let mut wanted: BTreeMap<WorkerId, Vec<_>> = BTreeMap::new();
        for index in &lacking {
            let file = &files[*index];
            wanted.entry(file.worker.clone()).or_default().push((file.path.clone(), file.size));
        }
        let mut made = or_stop(&mut self.stop, self.workers.make_files(&wanted)).await??;
        // Behind the last file of each worker first, as they were asked for from the first on.
        for index in lacking.iter().rev() {
            let file = &mut self.owned.folder.manifest.files[*index];
            file.identity = made.get_mut(&file.worker).and_then(Vec::pop);
        }
        self.owned.folder.manifest.filled = false;
        self.owned.save()?;
        self.owned
            .events
            .run(&RunEvent::FilesMade { files: u32::try_from(lacking.len()).unwrap_or(u32::MAX) })
    }

    /// Which files must be made, by their place in the manifest: those that were never made, or are gone.
    fn lacking_files(&mut self) -> Result<Vec<usize>, StudyError> {
        let folder = &self.owned.folder;
        let placement = &folder.plan.fleet.placement;
        let mut lacking = Vec::new();
        for (index, file) in folder.manifest.files.iter().enumerate() {
            let here = folder
                .manifest
                .workers
                .iter()
                .any(|worker| worker.id == file.worker && is_here(placement, worker));
            let metadata = fs::symlink_metadata(&file.path).ok();
            // A file system gives an inode's number away again, and not all know when a file was made: another may
            // carry it, hardly of the same size.
            let whole = metadata.as_ref().is_some_and(|m| m.is_file() && m.len() == file.size.0);
            let found = metadata.map(|m| FileIdentity::of(&m));
            match (file.identity, found) {
                // Another host's: the worker looks when it opens it.
                (Some(_), _) if !here => continue,
                (Some(made), Some(found)) if made.is_same_file(&found) && whole => continue,
                (Some(_), Some(_)) => {
                    return Err(StudyError::usage(format!(
                        "{} is not the file that this run made: move it away, and resume again",
                        file.path.display()
                    )));
                }
                // Made, and the process ended before it could write down which: the run's id in its name says so.
                (None, Some(found)) if here => remove_file(&file.path, found)?,
                (_, _) => {}
            }
            // What a journal says of a file that is gone would be said of the new one.
            if let Some(journal) = self.jobs().journal_of(file) {
                let _ = fs::remove_file(journal);
            }
            lacking.push(index);
        }
        Ok(lacking)
    }

    /// Whether nothing is left to be measured.
    pub(crate) fn is_measured(&self) -> bool {
        let plan = &self.owned.folder.plan;
        plan.steps.iter().all(|step| self.complete.contains(&step.number))
            && plan.searches.iter().all(|search| search.next(&self.measured, 0).is_none())
    }

    /// Measures one step and completes it.
    async fn step(&mut self, step: &Step) -> Result<(), StudyError> {
        self.enter(step).await?;
        if step.purpose != Purpose::Ceiling {
            self.place_workers(step.policy.as_ref()).await?;
        }
        self.fill_to(step).await?;
        self.limit_volumes(step).await?;
        let warm_up = self.warm_up(step).await?;
        let folder = self.owned.begin_step(step)?;
        let study = self.owned.folder.manifest.study.clone();
        let seconds =
            |span: loadline_base::units::TimeSpan| i64::try_from(span.0.as_secs()).unwrap_or(i64::MAX);
        let series = SeriesWriter::create(&folder, seconds(study.phases.warm_up))?;
        let event = RunEvent::StepBegan { step: step.number, label: step.label.clone(), repeat: step.repeat };
        self.owned.events.run(&event)?;
        {
            let mut recorder = self.shared.lock();
            recorder.begin_step(series, seconds(study.phases.measure));
            recorder.show(Update::StepBegan { step, of: self.owned.folder.plan.steps.len() });
        }
        let began = When::now();
        let jobs = self.jobs().of_step(step)?;
        let prediction = self.prediction(step, &jobs).await?;
        let periods = self.cpu_periods().await?;
        let (outcome, seen) = self.measured(step, &jobs).await?;
        let (series, dropped) = self.shared.lock().end_step()?;
        self.accept(step, &outcome)?;
        let in_vain = outcome.lost().next().filter(|_| outcome.lost().count() == outcome.workers.len());
        let in_vain = in_vain.map(|(worker, loss)| format!("the first was {worker}: {}", loss.message));

        let mut result = StepResult::empty(&self.owned.folder.manifest.run_id, step, began);
        if let Some(job) = jobs.values().next() {
            let fleet = &self.owned.folder.plan.fleet;
            collect(&mut result, &study, fleet, outcome, &self.owned.folder.manifest.workers, job);
        }
        if dropped > 0 {
            result.findings.push(Finding::note(
                FindingKind::MissingIntervals,
                "every second of every disk in the series",
                format!("{} {} missing in it", counted(dropped, "record"), are(dropped)),
                "The run's folder was too slow to write to. No figure of this table comes from the series.",
            ));
        }
        if self.owned.folder.plan.cluster.is_some() && self.owned.folder.manifest.filled {
            // The disks were written by the run itself, so it does not matter whether they report unwritten parts.
            let is_reported = |finding: &Finding| finding.kind == FindingKind::UnwrittenReads;
            result.findings.retain(|finding| !(is_reported(finding) && finding.severity == Severity::Note));
        }
        self.count_in(&mut result, seen);
        result.prediction = prediction;
        result.findings.extend(predicted::finding(&result));
        let volumes = result.workers.len() * self.owned.folder.plan.fleet.disks_per_worker as usize;
        result.findings.extend(limited_volumes::findings(&result, volumes));
        result.findings.extend(node_network::findings(&study, result.network.as_ref()));
        result.findings.extend(self.condition_findings(step, &periods).await?);
        // What was measured is not thrown away because what was done cannot be healed.
        let restored = self.restore(step).await;
        if let Err(error) = &restored {
            if error.kind == ErrorKind::Interrupted {
                return restored;
            }
            result.findings.push(Finding::doubt(
                FindingKind::Fault,
                "all faults of the storage to be undone after the window",
                error.message.clone(),
                "The run ends here, because the next load would run on faulty storage. Repair the storage, and resume the run.",
            ));
        }
        result.findings.extend(warm_up.as_ref().and_then(not_steady));
        result.warm_up = warm_up;
        for report in std::mem::take(&mut self.found_before) {
            result.verify.get_or_insert_default().merge(report);
        }
        let is_written = step.profile.write_percent > 0 && step.purpose != Purpose::Ceiling;
        if study.run.verify && is_written && restored.is_ok() {
            self.scan(&jobs, &mut result).await?;
        }
        result.findings.extend(result.verify.as_ref().and_then(integrity));
        if let Some(series) = series {
            result.series = series.finish()?;
        }
        result.ended = When::now();
        self.owned.complete_step(step, &result)?;
        self.complete.insert(step.number);
        if !self.owned.folder.plan.searches.is_empty() {
            self.measured.push(MeasuredStep::of(&result));
        }
        self.shared.lock().show(Update::StepComplete(&result));
        self.owned.events.run(&RunEvent::StepComplete {
            step: step.number,
            iops: result.figures.total.iops,
            errors: result.figures.errors,
            lost: u32::try_from(result.lost()).unwrap_or(u32::MAX),
        })?;
        restored?;
        self.count_vain(step, in_vain)
    }

    /// A job that is refused the first time cannot be done as asked: the study is wrong, and nothing is lost by ending.
    /// One that was taken before is refused because of what happened meanwhile, such as a stalled disk that a lost
    /// process still holds: then that worker is lost for the step, and the run goes on.
    pub(crate) fn accept(&mut self, step: &Step, outcome: &StepOutcome) -> Result<(), StudyError> {
        let refused = outcome.lost().filter(|(_, loss)| loss.reason == LossReason::Refused);
        if let Some((worker, loss)) = refused.into_iter().find(|(worker, _)| !self.taken.contains(worker)) {
            return Err(StudyError::usage(format!(
                "step {} ({}): worker {worker}: {}",
                step.number, step.label, loss.message
            )));
        }
        self.taken.extend(outcome.workers.keys().cloned());
        Ok(())
    }

    /// Takes down whether any worker finished the step; `why` if none did. After too many in a row the run ends.
    fn count_vain(&mut self, step: &Step, why: Option<String>) -> Result<(), StudyError> {
        let Some(why) = why else {
            self.in_vain = 0;
            return Ok(());
        };
        self.in_vain += 1;
        if self.in_vain < MOST_IN_VAIN {
            return Ok(());
        }
        Err(StudyError::failed(format!(
            "step {} ({}): no worker finished it, nor the {} before; {why}. See workers/ in the run's folder and the \
             kernel log",
            step.number,
            step.label,
            MOST_IN_VAIN - 1
        )))
    }

    /// Reads and checks every block that was ever written, those of a lost worker by another worker that can.
    async fn scan(
        &mut self,
        jobs: &BTreeMap<WorkerId, Job>,
        result: &mut StepResult,
    ) -> Result<(), StudyError> {
        self.unlimit_volumes().await?;
        self.shared.lock().begin_sweep();
        let scanned = or_stop(&mut self.stop, self.workers.scan(jobs)).await??;
        let mut reports: Vec<VerifyReport> = Vec::new();
        let mut left: Vec<WorkerId> = Vec::new();
        let mut able: Option<WorkerId> = None;
        for (worker, report) in scanned {
            match report {
                Ok(report) => {
                    reports.push(report);
                    able = Some(worker);
                }
                Err(_) => left.push(worker),
            }
        }
        for worker in left {
            // All workers of a verified run are on this machine, so any of them can open the lost one's disks.
            let job = able
                .as_ref()
                .and_then(|able| Some(BTreeMap::from([(able.clone(), jobs.get(&worker)?.clone())])));
            let second = match &job {
                Some(job) => or_stop(&mut self.stop, self.workers.scan(job)).await?.ok(),
                None => None,
            };
            match second.and_then(|report| report.into_values().next()) {
                Some(Ok(report)) => reports.push(report),
                _ => result.findings.push(Finding::doubt(
                    FindingKind::Integrity,
                    format!("the disks of {worker} to be scanned"),
                    "no worker could read them",
                    "Whether its acknowledged writes are there is not known. See workers/ in the run's folder.",
                )),
            }
        }
        let total = result.verify.get_or_insert_default();
        reports.into_iter().for_each(|report| total.merge(report));
        Ok(())
    }

    /// Every step is complete: removes what was made, and reports it. A run of which files are left is not finished:
    /// resuming it removes them, once the worker that has them is back.
    async fn finish(&mut self) -> Result<(), StudyError> {
        self.unlimit_volumes().await?;
        if !self.owned.folder.manifest.keep_files {
            if let Err(error) = self.remove_volumes().await {
                let why = format!("every step is complete, and {error}");
                self.owned.events.run(&RunEvent::RunStopped { why })?;
                return Err(error);
            }
            self.remove_files().await?;
            let left = self.owned.folder.manifest.files.len();
            if left > 0 {
                let why = format!(
                    "every step is complete, and {} that the run made could not be removed",
                    counted(left as u64, "file")
                );
                return self.owned.events.run(&RunEvent::RunStopped { why });
            }
        }
        if let [first, ..] = self.owned.folder.manifest.volumes.as_slice() {
            let notice =
                format!("the volumes of the run are kept in the cluster, as {first}: run.json names them");
            self.shared.lock().show(Update::Notice(&notice));
        }
        let manifest = &mut self.owned.folder.manifest;
        manifest.state = RunState::Finished;
        manifest.finished = Some(When::now());
        self.owned.save()?;
        self.owned.events.run(&RunEvent::RunFinished)
    }

    /// Removes the files that this run made, by their identity; what else is there stays.
    async fn remove_files(&mut self) -> Result<(), StudyError> {
        let manifest = &self.owned.folder.manifest;
        let mut made: BTreeMap<WorkerId, Vec<(PathBuf, FileIdentity)>> = BTreeMap::new();
        for file in &manifest.files {
            if let Some(identity) = file.identity {
                made.entry(file.worker.clone()).or_default().push((file.path.clone(), identity));
            }
        }
        if made.is_empty() {
            return Ok(());
        }
        let removed = self.workers.remove_files(&made).await?;
        for (worker, outcome) in &removed {
            if let Err(loss) = outcome {
                let files: Vec<String> =
                    made[worker].iter().map(|(path, _)| path.display().to_string()).collect();
                let notice = format!("{worker} could not remove {}: {}", files.join(", "), loss.message);
                self.shared.lock().show(Update::Notice(&notice));
            }
        }
        let journals: Vec<PathBuf> =
            self.owned.folder.manifest.files.iter().filter_map(|file| self.jobs().journal_of(file)).collect();
        for journal in journals {
            let _ = fs::remove_file(journal);
        }
        // Only if nothing else is in it.
        let _ = fs::remove_dir(self.owned.folder.path().join("disks"));
        let is_left = |worker: &WorkerId| removed.get(worker).is_none_or(Result::is_err);
        self.owned.folder.manifest.files.retain(|file| is_left(&file.worker));
        self.owned.folder.manifest.filled = false;
        self.owned.save()
    }
}

/// Whether a worker is on this machine.
fn is_here(placement: &Placement, worker: &WorkerInfo) -> bool {
    placement.runs_here()
        || nix::unistd::gethostname().is_ok_and(|name| name.to_string_lossy() == worker.host)
}

/// A step that ends early has no result, and what it found of the storage must not be lost with it: a block that is
/// not what was written is worse than a limit that was passed.
fn and_bad_blocks(error: StudyError, bad: u64) -> StudyError {
    if bad == 0 {
        return error;
    }
    let kind = if error.kind == ErrorKind::Limit { ErrorKind::Failed } else { error.kind };
    let read = match bad {
        1 => "1 block was read that does not hold the written data".to_owned(),
        _ => format!("{bad} blocks were read that do not hold the written data"),
    };
    let message =
        format!("{}\nthe storage failed: {read}; see events.jsonl in the run's folder", error.message);
    StudyError { kind, message }
}
