//! What is done to a run's own cluster while a step is measured on it, and what is seen of it: faults at their times, workers
//! of a node that is gone started again where their volumes are, the storage's own counters at both ends of the window.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use loadline_fleet::{MidStepChanges, MidStepOrder, StepOutcome, WorkerId};
use loadline_load::{Job, Target};
use loadline_measure::audit::{Finding, FindingKind};
use loadline_target::error::ErrorKind;
use loadline_target::{Counters, Disk, FaultKind, Storage, TargetError, VolumeSpec};
use tokio::sync::{mpsc, oneshot};

use crate::error::StudyError;
use crate::file::{Access, SanSection, Study, TimedFault};
use crate::folder::RunFolder;
use crate::folder::result::StepResult;
use crate::planned_step::{Purpose, Step};
use crate::runner::Runner;
use crate::stage::volumes_of;
use crate::storage_counts::StorageCounts;
use crate::timeline::{Happened, Moved, Timeline};
use crate::workers::Workers;
use loadline_fleet::or_stop;

/// How often the cluster is looked at while something is awaited there. Each look is a question to every node.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often there is a look at the clock.
const TICK: Duration = Duration::from_millis(5);
/// Copies that have been in sync for so long stay so: a node that has just come is not known of at once.
const STAYS: Duration = Duration::from_millis(1_500);
/// Changes that may wait for the fleet.
const CHANGES_WAITING: usize = 16;
/// How long the fleet may take to kill workers.
const KILLED_WITHIN: Duration = Duration::from_secs(10);

/// What accompanies one window.
pub(crate) struct Escort {
    /// When the window begins.
    pub(crate) begin: Instant,
    /// The window's length.
    pub(crate) length: Duration,
    pub(crate) faults: Vec<TimedFault>,
    /// Whether the storage's own counters are read at both ends.
    pub(crate) counts: bool,
    /// Each worker's volumes, in the order of its disks.
    pub(crate) volumes: BTreeMap<WorkerId, Vec<VolumeSpec>>,
    /// What each worker does in the step.
    pub(crate) jobs: BTreeMap<WorkerId, Job>,
    pub(crate) access: Access,
    /// To the fleet.
    pub(crate) changes: mpsc::Sender<MidStepOrder>,
    /// The step is over, in whatever way.
    pub(crate) over: Arc<AtomicBool>,
}

/// What was seen in a window.
#[derive(Default)]
pub(crate) struct Escorted {
    /// What was done, in the order of time.
    events: Vec<Happened>,
    /// What the nodes of the run's own cluster counted, and in how many seconds.
    counted: Option<(Counters, f64)>,
    /// Whether every copy was in sync at the beginning and at the end.
    in_sync: bool,
}

/// What the nodes have counted so far, and when they were asked.
fn count(storage: &Storage) -> Option<(Counters, Instant)> {
    let begun = Instant::now();
    let counters = storage.own()?.counters().ok()?;
    Some((counters, begun + begun.elapsed() / 2))
}

/// A worker whose host is gone, on its way to where its volumes are.
struct Move {
    worker: WorkerId,
    /// The fault that it is counted with.
    event: usize,
    since: Instant,
}

/// What is awaited of the last fault that was done.
#[derive(Default)]
struct Awaited {
    /// Its place among the events.
    event: usize,
    detection: bool,
    redundancy: bool,
    /// Since when every copy is in sync.
    redundant: Option<Instant>,
}

impl Escort {
    /// Goes along with the window until it ends.
    pub(crate) fn go(mut self, storage: &mut Storage, leave: &AtomicBool) -> Result<Escorted, TargetError> {
        let (mut before, mut began_in_sync) = (None, false);
        let mut events: Vec<Happened> = Vec::new();
        let mut moves: Vec<Move> = Vec::new();
        let mut awaited = Awaited::default();
        let mut looked = Instant::now();
        let mut to_do = std::mem::take(&mut self.faults).into_iter().peekable();
        while !self.is_over(leave)? {
            let now = Instant::now();
            // Where things are done to it, what its nodes count begins anew.
            if before.is_none() && self.counts && now >= self.begin {
                before = Some(count(storage));
                began_in_sync = storage.copies(leave).is_some_and(|copies| copies.in_sync);
            }
            if let Some(fault) = to_do.next_if(|fault| now >= self.begin + fault.at.0) {
                let was_in_sync = storage.copies(leave).is_some_and(|copies| !copies.is_missing);
                let event = self.do_to(storage, &fault, leave)?;
                // Whoever was killed for it goes on, also where it could not be done.
                moves.retain(|one| !event.moved.iter().any(|moved| moved.worker == one.worker));
                let gone = event.moved.iter().map(|moved| Move {
                    worker: moved.worker.clone(),
                    event: events.len(),
                    since: now,
                });
                moves.extend(gone);
                if event.failed.is_none() {
                    let is_return = fault.what == FaultKind::Return;
                    // Nothing is missing of who is slow or full; and where a copy was missing before, who noticed what is
                    // not to be told apart.
                    let is_seen = !matches!(
                        fault.what,
                        FaultKind::SlowDevice { .. } | FaultKind::Fill | FaultKind::Return
                    );
                    awaited = Awaited {
                        event: events.len(),
                        detection: is_seen && was_in_sync,
                        redundancy: is_return,
                        redundant: None,
                    };
                }
                events.push(event);
                continue;
            }
            let is_idle = moves.is_empty() && !awaited.detection && !awaited.redundancy;
            if !is_idle && looked.elapsed() >= LOOK_EVERY {
                let event = events.get_mut(awaited.event);
                self.look(storage, &mut awaited, event, leave);
                self.follow(storage, &mut moves, &mut events);
                looked = Instant::now();
            }
            std::thread::sleep(TICK);
        }
        let counted = match before.flatten() {
            Some((first, from)) if !self.over.load(Ordering::Relaxed) => {
                count(storage).and_then(|(last, to)| Some((last.since(&first)?, (to - from).as_secs_f64())))
            }
            _ => None,
        };
        let in_sync = began_in_sync && storage.copies(leave).is_some_and(|copies| copies.in_sync);
        Ok(Escorted { events, counted, in_sync })
    }

    fn is_over(&self, leave: &AtomicBool) -> Result<bool, TargetError> {
        if leave.load(Ordering::Relaxed) {
            return Err(TargetError { kind: ErrorKind::Interrupted, message: "interrupted".into() });
        }
        Ok(self.over.load(Ordering::Relaxed) || Instant::now() >= self.begin + self.length)
    }

    /// Does one thing to the cluster. That it cannot be done is told in what it returns.
    fn do_to(
        &self,
        storage: &mut Storage,
        fault: &TimedFault,
        leave: &AtomicBool,
    ) -> Result<Happened, TargetError> {
        // Whoever runs on a node that is gone is gone with it: before the node, or they would see its end.
        let takes_workers =
            matches!(fault.what, FaultKind::Kill | FaultKind::Freeze) || storage.restarts(&fault.fault());
        let refused = storage.refuses(&fault.fault()).err();
        let gone: BTreeSet<WorkerId> = match takes_workers && refused.is_none() {
            true => self.on_node(&fault.node),
            false => BTreeSet::new(),
        };
        let mut begun = Instant::now();
        if !gone.is_empty() {
            self.kill(&gone, leave)?;
        }
        let failed = match refused {
            Some(why) => Some(why.message),
            None => match storage.inject(&fault.fault(), leave) {
                Err(error) if error.kind == ErrorKind::Interrupted => return Err(error),
                done => done.err().map(|error| error.message),
            },
        };
        if storage.asks_for(&fault.fault()) {
            // A person says that it is done, and not when it is begun.
            begun = Instant::now();
        }
        let moved =
            gone.into_iter().map(|worker| Moved { worker, to: Vec::new(), started_s: None, out_s: None });
        Ok(Happened {
            fault: fault.fault(),
            planned_s: fault.at.0.as_secs_f64(),
            at_s: begun.saturating_duration_since(self.begin).as_secs_f64(),
            took_s: begun.elapsed().as_secs_f64(),
            failed,
            detected_s: None,
            moved: moved.collect(),
            resync_bytes: None,
            redundant_s: None,
        })
    }

    /// The workers that run on a node. Those that were started again run where their volumes are.
    fn on_node(&self, node: &str) -> BTreeSet<WorkerId> {
        let there = self.volumes.iter().filter(|(_, volumes)| volumes.iter().any(|one| one.node == node));
        there.map(|(worker, _)| worker.clone()).collect()
    }

    fn kill(&self, workers: &BTreeSet<WorkerId>, leave: &AtomicBool) -> Result<(), TargetError> {
        let (told, mut killed) = oneshot::channel();
        let begun = Instant::now();
        // Where nobody listens any more the step is over.
        if self.changes.blocking_send(MidStepOrder::Kill(workers.clone(), told)).is_err() {
            return Ok(());
        }
        while matches!(killed.try_recv(), Err(oneshot::error::TryRecvError::Empty)) && !self.is_over(leave)? {
            if begun.elapsed() > KILLED_WITHIN {
                return Err(TargetError::failed(format!(
                    "the fleet did not kill {} workers within {} s",
                    workers.len(),
                    KILLED_WITHIN.as_secs()
                )));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Looks at how the cluster is, for the last thing that was done to it.
    fn look(
        &self,
        storage: &Storage,
        awaited: &mut Awaited,
        event: Option<&mut Happened>,
        leave: &AtomicBool,
    ) {
        let Some(event) = event else { return };
        // Who does not answer now is asked again.
        let Some(copies) = storage.copies(leave) else { return };
        let since = Instant::now().saturating_duration_since(self.begin).as_secs_f64() - event.at_s;
        if awaited.detection && copies.is_missing {
            event.detected_s = Some(since);
            awaited.detection = false;
        }
        if !awaited.redundancy {
            return;
        }
        event.resync_bytes = event.resync_bytes.max(copies.left_bytes);
        if !copies.in_sync {
            awaited.redundant = None;
            return;
        }
        let redundant = *awaited.redundant.get_or_insert_with(Instant::now);
        if redundant.elapsed() >= STAYS {
            let at = redundant.saturating_duration_since(self.begin).as_secs_f64();
            event.redundant_s = Some(at - event.at_s);
            awaited.redundancy = false;
        }
    }

    /// Starts workers again whose volumes somebody has taken over.
    fn follow(&mut self, storage: &Storage, moves: &mut Vec<Move>, events: &mut [Happened]) {
        let Some(cluster) = storage.own() else { return };
        moves.retain(|one| {
            let (Some(volumes), Some(job)) =
                (self.volumes.get_mut(&one.worker), self.jobs.get_mut(&one.worker))
            else {
                return false;
            };
            // All of them anew each time: who had one a moment ago may be gone. Who does not answer now is asked again.
            let found = volumes.iter().map(|volume| cluster.taken_over(volume).ok().flatten());
            let Some(found) = found.collect::<Option<Vec<_>>>() else { return true };
            for ((disk, volume), (owner, now)) in job.disks.iter_mut().zip(volumes).zip(&found) {
                disk.target = target(self.access, now);
                volume.node.clone_from(owner);
            }
            if let Some(moved) = events[one.event].moved.iter_mut().find(|moved| moved.worker == one.worker) {
                moved.to = found.into_iter().map(|(owner, _)| owner).collect();
                moved.to.dedup();
                moved.started_s = Some(one.since.elapsed().as_secs_f64());
            }
            // Where nobody listens any more the step is over.
            let ready = BTreeMap::from([(one.worker.clone(), job.clone())]);
            let _ = self.changes.blocking_send(MidStepOrder::Start(ready));
            false
        });
    }
}

impl<W: Workers> Runner<'_, W> {
    /// Has the fleet measure a step, and goes along with it if something is done to the storage meanwhile.
    pub(crate) async fn measured(
        &mut self,
        step: &Step,
        jobs: &BTreeMap<WorkerId, Job>,
    ) -> Result<(StepOutcome, Accompaniment), StudyError> {
        let RunFolder { manifest, plan, .. } = &self.owned.folder;
        let study = &manifest.study;
        let is_harmed = has_faults(study, step);
        let counts = plan.cluster.is_some() && !is_harmed && step.purpose != Purpose::Ceiling;
        let Some(stage) = self.stage.as_ref().filter(|_| is_harmed || counts) else {
            let measured = or_stop(&mut self.stop, self.workers.measure(jobs, None)).await??;
            return Ok((measured, Accompaniment::default()));
        };
        let begins = self.shared.lock().begin_escort(is_harmed);
        let (changes, orders) = mpsc::channel(CHANGES_WAITING);
        let over = Arc::new(AtomicBool::new(false));
        // However this ends: nothing more is to be done to the storage then.
        let _over = SetAtEnd(over.clone());
        let mut escort = Escort {
            begin: Instant::now(),
            length: study.phases.measure.0,
            faults: if is_harmed { study.faults.clone() } else { Vec::new() },
            counts,
            // Where workers run that use somebody else's storage has nothing to do with its nodes.
            volumes: match plan.cluster {
                Some(_) => volumes_of(study, plan, &manifest.workers, step.policy.as_ref()),
                None => BTreeMap::new(),
            },
            jobs: jobs.clone(),
            access: study.san(step.policy.as_ref()).map_or(Access::Local, |san| san.access),
            changes,
            over: over.clone(),
        };
        escort.volumes.retain(|worker, _| jobs.contains_key(worker));
        let harmed = |node: &str| {
            let takes = |fault: &&TimedFault| {
                matches!(fault.what, FaultKind::Kill | FaultKind::Freeze | FaultKind::FailDevice)
            };
            study.faults.iter().filter(takes).any(|fault| fault.node == node)
        };
        let may_go = manifest.workers.iter().filter(|worker| plan.cluster.is_some() && harmed(&worker.node));
        let changes = MidStepChanges { may_go: may_go.map(|worker| worker.id.clone()).collect(), orders };
        let warm_up = study.phases.warm_up.0;
        let (shared, mut stop) = (self.shared.clone(), self.stop.clone());
        let measuring = async {
            let measured = self.workers.measure(jobs, Some(changes)).await;
            over.store(true, Ordering::Relaxed);
            shared.lock().end_waiting();
            measured
        };
        let escorting = async {
            // Where nobody could begin, nothing is done to the storage.
            let Ok(unix_ms) = begins.await else { return Ok(Escorted::default()) };
            let from_now = UNIX_EPOCH + Duration::from_millis(unix_ms);
            let lead = from_now.duration_since(SystemTime::now()).unwrap_or_default();
            escort.begin = Instant::now() + lead + warm_up;
            stage.escort(escort, &mut stop).await
        };
        let both = async { tokio::join!(measuring, escorting) };
        let (measured, escorted) = or_stop(&mut self.stop, both).await?;
        let (measured, Escorted { events, counted, in_sync }) = (measured?, escorted?);
        let trace = self.shared.lock().end_timeline();
        let copies = study.san(step.policy.as_ref()).map(SanSection::copies).filter(|_| in_sync);
        let accompaniment = Accompaniment {
            timeline: is_harmed.then(|| Timeline::of(&trace, events, study.phases.measure.0.as_secs())),
            counts: counted
                .map(|(counted, seconds)| StorageCounts::of(&counted, seconds, &step.profile, copies)),
        };
        Ok((measured, accompaniment))
    }

    /// Takes what was seen of the storage into a step's result, with what a reader should know of it.
    pub(crate) fn count_in(&self, result: &mut StepResult, seen: Accompaniment) {
        if let Some(counts) = &seen.counts {
            // Of a fleet that lost workers nobody knows what they did last.
            if result.lost() == 0 {
                result.findings.extend(counts.findings(result.figures.total.iops));
            }
        }
        result.storage = seen.counts;
        let Some(timeline) = seen.timeline else { return };
        let planned = self.owned.folder.manifest.study.faults.len();
        let not_done = timeline.events.iter().filter_map(|event| {
            Some(format!("at {:.1} s, {}: {}", event.at_s, event.fault, event.failed.as_ref()?))
        });
        let mut not_done: Vec<String> = not_done.collect();
        if timeline.events.len() < planned {
            not_done
                .push(format!("{} were not begun before the window ended", planned - timeline.events.len()));
        }
        if !not_done.is_empty() {
            result.findings.push(Finding::doubt(
                FindingKind::Fault,
                format!("{planned} things to be done to the storage"),
                not_done.join("; "),
                "The window is not what the study says. See the nodes' logs in the run's folder.",
            ));
        }
        result.timeline = Some(timeline);
    }

    /// After a window in which things were done to the storage: takes all of it back, and waits until every copy is in sync,
    /// so that the next load finds what this one found.
    pub(crate) async fn restore(&mut self, step: &Step) -> Result<(), StudyError> {
        let manifest = &self.owned.folder.manifest;
        let Some(stage) = self.stage.as_ref().filter(|_| has_faults(&manifest.study, step)) else {
            return Ok(());
        };
        stage.enter(true, Vec::new(), &mut self.stop).await?;
        self.place(step.unaligned_percent, step.condition.as_ref()).await
    }
}

/// Sets a flag when it is dropped.
struct SetAtEnd(Arc<AtomicBool>);

impl Drop for SetAtEnd {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What was seen of the storage while a step was measured.
#[derive(Default)]
pub(crate) struct Accompaniment {
    timeline: Option<Timeline>,
    counts: Option<StorageCounts>,
}

/// Whether things are done to the storage in this step: in what the study asks for, and not in ceilings and searches.
pub(crate) fn has_faults(study: &Study, step: &Step) -> bool {
    !study.faults.is_empty() && step.purpose == Purpose::Load
}

/// How a worker reaches a volume.
pub(crate) fn target(access: Access, disk: &Disk) -> Target {
    match access {
        Access::Local => disk.local.clone(),
        Access::Nbd => disk.nbd.clone(),
    }
}
