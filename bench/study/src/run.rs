//! A study, run or resumed: files, fill, steps, scans. After each step the run's folder is complete as far as it
//! goes; a crash or Ctrl-C costs the step that was being measured, and nothing else.

use std::collections::BTreeSet;

use loadline_base::figures::counted;
use loadline_fleet::{Fleet, FleetKind, FleetSpec, random_token};
use loadline_load::error::ErrorKind;
use tokio::sync::watch;

use crate::error::StudyError;
use crate::folder::events::RunEvent;
use crate::folder::manifest::{Manifest, RunState};
use crate::folder::{CLUSTER, OwnedFolder, RunFolder};
use crate::harness::Harness;
use crate::live::LiveFile;
use crate::progress::{Progress, Update};
use crate::record::Shared;
use crate::runner::Runner;
use crate::success::Candidates;
use loadline_fleet::or_stop;

/// How a run ended, as counts from which the exit code follows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RunVerdict {
    /// Steps that are complete.
    pub complete: usize,
    /// Steps in all.
    pub planned: usize,
    /// Checks that found a block that was not what it should be, in all steps.
    pub bad_blocks: u64,
    /// Limits that were missed, in sentences.
    pub missed: Vec<String>,
    /// Findings that make a figure doubtful, searches that are undecided, and criteria that are met in a closed loop only.
    pub doubts: usize,
}

impl RunVerdict {
    /// Judges the complete steps of a run. The error says which result cannot be read.
    pub fn of(folder: &RunFolder) -> Result<RunVerdict, StudyError> {
        let mut verdict = RunVerdict { planned: folder.plan.steps.len(), ..RunVerdict::default() };
        let mut candidates = Candidates::default();
        // One step at a time: a result of many workers is large.
        for step in &folder.plan.steps {
            let Some(result) = folder.result(step)? else { continue };
            verdict.complete += 1;
            verdict.bad_blocks += result.verify.as_ref().map_or(0, |report| report.bad());
            verdict.doubts += result
                .findings
                .iter()
                .filter(|finding| finding.severity == loadline_measure::audit::Severity::Doubt)
                .count();
            let missed = result.verdicts.iter().filter(|verdict| !verdict.held);
            verdict.missed.extend(missed.map(|missed| {
                format!(
                    "step {} ({}): {} was found, and the limit is {}",
                    step.number, step.label, missed.found, missed.limit
                )
            }));
            candidates.add(&result);
        }
        let searches = folder.searches()?;
        verdict.doubts += searches.iter().filter(|search| search.done && !search.is_decided()).count();
        let complete = verdict.complete == verdict.planned && searches.iter().all(|search| search.done);
        let judged = candidates.judge(&folder.manifest.study, &folder.plan.fleet, complete);
        verdict.doubts += judged.iter().filter(|decision| decision.open_loop_missed.is_some()).count();
        let missed = judged.into_iter().filter(|decision| decision.held == Some(false));
        verdict.missed.extend(missed.map(|missed| format!("{}: found {}", missed.criterion, missed.found)));
        Ok(verdict)
    }
}

/// Runs what a run's folder still lacks. `stop` turning true, or a request in the folder ([`crate::live::STOP`]), ends it within seconds,
/// with an error of kind `Interrupted`; the folder can then be resumed. `token` is what joining workers need (a random one if not given).
pub async fn run(
    mut owned: OwnedFolder,
    progress: Box<dyn Progress>,
    token: Option<String>,
    mut stop: watch::Receiver<bool>,
) -> Result<RunFolder, StudyError> {
    let (stopper, mut ended) = watch::channel(*stop.borrow());
    let live = LiveFile::start(owned.folder.path(), stopper.clone());
    let shared = Shared::new(owned.events.try_clone()?, live.beside(progress));
    let complete = owned.folder.complete()?;
    let RunFolder { plan, manifest, .. } = &owned.folder;
    shared.lock().show(Update::Begin { plan, phases: &manifest.study.phases, complete });
    if owned.folder.manifest.state == RunState::Finished {
        // What a process that ended in the middle of it left.
        remove_cluster(&owned, &shared);
        return Ok(owned.folder);
    }
    let manifest = &owned.folder.manifest;
    let began = if complete == 0 && manifest.workers.is_empty() {
        RunEvent::RunBegan { run_id: manifest.run_id.clone(), loadline: manifest.loadline.clone() }
    } else {
        RunEvent::RunResumed { complete: u32::try_from(complete).unwrap_or(u32::MAX) }
    };
    owned.events.run(&began)?;
    let passed_on = async move {
        if stop.wait_for(|is_told| *is_told).await.is_ok() {
            let _ = stopper.send(true);
        }
        std::future::pending::<std::convert::Infallible>().await
    };
    let outcome = tokio::select! {
        outcome = attempt(&mut owned, &shared, token, &mut ended) => outcome,
        never = passed_on => match never {},
    };
    drop(live);
    match outcome {
        Ok(()) => Ok(owned.folder),
        Err(error) => {
            // That it could not even be noted must not hide why it ended.
            let _ = owned.events.run(&RunEvent::RunStopped { why: error.message.clone() });
            if error.kind == ErrorKind::Usage {
                owned.abandon()?;
            }
            Err(error)
        }
    }
}

/// Starts the fleet, does everything with it, and stops it, however it went.
async fn attempt(
    owned: &mut OwnedFolder,
    shared: &Shared,
    token: Option<String>,
    stop: &mut watch::Receiver<bool>,
) -> Result<(), StudyError> {
    let spec = spec(owned, token)?;
    if spec.placement.makes_hosts() {
        // The machines of an attempt before are deleted, and all that was on them: files are made and filled anew.
        let manifest = &mut owned.folder.manifest;
        manifest.files.iter_mut().for_each(|file| file.identity = None);
        (manifest.filled, manifest.filled_percent) = (false, None);
        owned.save()?;
    }
    if let (Some(places), Some(token)) = (spec.placement.open_places(), &spec.token) {
        shared.lock().await_workers(token.clone(), places.workers);
    }
    let harness = harness(owned, shared, stop).await?;
    if let Some(id) = harness.as_ref().and_then(|harness| harness.cluster.clone()) {
        same_cluster(owned, id)?;
    }
    let fleet = or_stop(stop, Fleet::start(spec, shared.sink())).await??;
    let mut runner = Runner::new(owned, fleet, shared.clone(), stop.clone());
    // A person is not asked again after Ctrl-C: the person who was asked knows what was done.
    let external = runner.owned.folder.manifest.study.target.external.as_ref();
    let is_running = runner.owned.folder.manifest.study.running_cluster().is_some();
    let is_taken_back = external.map_or(is_running, |external| !external.prompt);
    runner.harness = harness;
    let outcome = runner.all().await;
    let outcome = match outcome {
        Err(error) if error.kind == ErrorKind::Usage => {
            let left =
                runner.undo().await.err().map(|left| format!("\n{}", left.message)).unwrap_or_default();
            Err(StudyError { message: format!("{}{left}", error.message), ..error })
        }
        other => other,
    };
    runner.workers.stop().await;
    runner.owned.remove_left_copies();
    // What was done to storage that is not ours is not left to its owner.
    if let Some(harness) = runner.harness.as_ref().filter(|_| is_taken_back) {
        let harmed = harness.harmed().await.unwrap_or_default();
        let limit = match runner.owned.folder.manifest.study.running_cluster() {
            // Each may take as long as its command may.
            Some(_) if !harmed.is_empty() => {
                let notice = format!("undoing the faults of {}", harmed.join(", "));
                shared.lock().show(Update::Notice(&notice));
                let each = runner.owned.folder.manifest.study.node_commands().limit().0;
                HEALED + 2 * each * u32::try_from(harmed.len()).unwrap_or(u32::MAX)
            }
            _ => HEALED,
        };
        let back = tokio::time::timeout(limit, harness.heal_all()).await;
        if let Some(why) = back.map_or(Some("it takes too long".into()), |back| back.err().map(|e| e.message))
        {
            let of = if harmed.is_empty() { "the storage".into() } else { harmed.join(", ") };
            let notice = format!(
                "the faults of {of} could not be undone ({why}): undo them by hand, or resume the run"
            );
            shared.lock().show(Update::Notice(&notice));
        }
    }
    if let Some(harness) = runner.harness.as_ref().filter(|_| outcome.is_err()) {
        leave_unlimited(&runner.owned.folder.manifest, harness, shared).await;
    }
    // Its nodes end here, and when the run is finished their data is not needed any more.
    if runner.harness.take().is_some() && owned.folder.manifest.state == RunState::Finished {
        remove_cluster(owned, shared);
    }
    outcome
}

/// Removes the limits of the volumes that a run leaves in a cluster that ran before, also after Ctrl-C. A run that finished has done it.
async fn leave_unlimited(manifest: &Manifest, harness: &Harness, shared: &Shared) {
    let names: BTreeSet<String> = manifest.volumes.iter().cloned().collect();
    if names.is_empty() || !manifest.study.limits_volumes() {
        return;
    }
    let (_never, mut stop) = watch::channel(false);
    let removed = tokio::time::timeout(HEALED, harness.limit_volumes(names, None, &mut stop)).await;
    let why = match removed {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.message,
        Err(_) => "it takes too long".into(),
    };
    let notice = format!(
        "the limits of the run's volumes could not be removed ({why}): remove them by hand ('loadline volume limit NAME --none'), or \
         resume the run"
    );
    shared.lock().show(Update::Notice(&notice));
}

/// A run goes on in the cluster in which it began.
fn same_cluster(owned: &mut OwnedFolder, id: String) -> Result<(), StudyError> {
    let manifest = &mut owned.folder.manifest;
    if manifest.study.running_cluster().is_none() {
        return Ok(());
    }
    match &manifest.cluster {
        Some(known) if *known != id => Err(StudyError::usage(format!(
            "the run began in the cluster {known}, and its api leads to the cluster {id} now: steps of two clusters do not belong in one \
             run"
        ))),
        Some(_) => Ok(()),
        None => {
            manifest.cluster = Some(id);
            owned.save()
        }
    }
}

/// The cluster that the study asks for, started.
async fn harness(
    owned: &OwnedFolder,
    shared: &Shared,
    stop: &mut watch::Receiver<bool>,
) -> Result<Option<Harness>, StudyError> {
    let RunFolder { plan, manifest, .. } = &owned.folder;
    if plan.cluster.is_none() && manifest.study.target.external.is_none() {
        return Ok(None);
    }
    if plan.starts_cluster() {
        let notice =
            format!("starting a cluster of {} for the run", counted(plan.fleet.node_count().into(), "node"));
        shared.lock().show(Update::Notice(&notice));
    }
    let mut harness = Harness::start(manifest, plan, owned.folder.path(), stop).await?;
    if plan.starts_cluster() {
        harness.announce(shared);
    }
    Ok(Some(harness))
}

/// Removes the cluster's folder, which the run made, unless files are to be kept.
fn remove_cluster(owned: &OwnedFolder, shared: &Shared) {
    let folder = owned.folder.path().join(CLUSTER);
    if owned.folder.manifest.keep_files || !folder.exists() {
        return;
    }
    if let Err(e) = std::fs::remove_dir_all(&folder) {
        shared
            .lock()
            .show(Update::Notice(&format!("cannot remove {}: {e}; remove it by hand", folder.display())));
    }
}

/// The fleet that the study asks for, as this run starts it.
fn spec(owned: &OwnedFolder, token: Option<String>) -> Result<FleetSpec, StudyError> {
    let mut spec = owned.folder.plan.fleet.spec();
    spec.worker_log_dir = Some(owned.folder.path().join("workers"));
    // A person who starts workers elsewhere must know it beforehand.
    spec.token = Some(token.map_or_else(random_token, Ok)?);
    Ok(spec)
}

/// How long it is tried to take back what was done to storage of others, when the run ends.
const HEALED: std::time::Duration = std::time::Duration::from_secs(60);
