//! Measures a step while its window is watched, and takes what was seen of the storage into the step's result.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use loadline_base::figures::counted;
use loadline_fleet::{MidStepChanges, StepOutcome, WorkerId, or_stop};
use loadline_load::Job;
use loadline_measure::audit::{Finding, FindingKind};
use loadline_target::FaultKind;
use tokio::sync::mpsc;

use crate::error::StudyError;
use crate::faults::has_faults;
use crate::file::{SanSection, TimedFault};
use crate::folder::RunFolder;
use crate::folder::result::StepResult;
use crate::node_network::{self, NetworkUse};
use crate::planned_step::{Purpose, Step};
use crate::runner::Runner;
use crate::running_cluster::volume_prefix;
use crate::storage_counts::StorageCounts;
use crate::timeline::Timeline;
use crate::volumes::volumes_of;
use crate::window_monitor::{WindowMonitor, WindowObservations};
use crate::workers::Workers;

/// Changes that may wait for the fleet.
const CHANGES_WAITING: usize = 16;

impl<W: Workers> Runner<'_, W> {
    /// Has the fleet measure a step, and watches its window if faults are done to the storage or its counters are read.
    pub(crate) async fn measured(
        &mut self,
        step: &Step,
        jobs: &BTreeMap<WorkerId, Job>,
    ) -> Result<(StepOutcome, StepObservations), StudyError> {
        let RunFolder { manifest, plan, .. } = &self.owned.folder;
        let study = &manifest.study;
        let is_harmed = has_faults(study, step);
        let counts = plan.cluster.is_some() && !is_harmed && step.purpose != Purpose::Ceiling;
        let Some(harness) = self.harness.as_ref().filter(|_| is_harmed || counts) else {
            let measured = or_stop(&mut self.stop, self.workers.measure(jobs, None)).await??;
            return Ok((measured, StepObservations::default()));
        };
        let asked =
            self.orders.as_ref().filter(|_| step.purpose == Purpose::Load).map(|orders| orders.inbox.clone());
        let begins = self.shared.lock().await_window(is_harmed || asked.is_some());
        let (changes, orders) = mpsc::channel(CHANGES_WAITING);
        let over = Arc::new(AtomicBool::new(false));
        // However this ends: nothing more is to be done to the storage then.
        let _over = SetAtEnd(over.clone());
        let mut monitor = WindowMonitor {
            begin: Instant::now(),
            length: study.phases.measure.0,
            faults: if is_harmed { study.faults.clone() } else { Vec::new() },
            counts,
            // The hosts of workers that use external storage are no nodes of that storage.
            volumes: match plan.cluster {
                Some(_) => {
                    let prefix = volume_prefix(study, &manifest.run_id);
                    volumes_of(study, plan, &prefix, &manifest.workers, step.policy.as_ref())
                }
                None => BTreeMap::new(),
            },
            nodes: plan.fleet.nodes.clone(),
            places: self.places.get(&step.policy).cloned(),
            jobs: jobs.clone(),
            access: study.access(step.policy.as_ref()),
            changes,
            orders: asked,
            migrated: BTreeMap::new(),
            over: over.clone(),
        };
        monitor.volumes.retain(|worker, _| jobs.contains_key(worker));
        let harmed = |node: &str| {
            let takes = |fault: &&TimedFault| {
                let is_cut = fault.what == FaultKind::Cut && study.cuts_hosts();
                is_cut || matches!(fault.what, FaultKind::Kill | FaultKind::Freeze | FaultKind::FailDevice)
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
        let monitoring = async {
            // If no worker could begin, nothing is done to the storage.
            let Ok(unix_ms) = begins.await else { return Ok(WindowObservations::default()) };
            let from_now = UNIX_EPOCH + Duration::from_millis(unix_ms);
            let lead = from_now.duration_since(SystemTime::now()).unwrap_or_default();
            monitor.begin = Instant::now() + lead + warm_up;
            harness.watch(monitor, &mut stop).await
        };
        let both = async { tokio::join!(measuring, monitoring) };
        let (measured, observed) = or_stop(&mut self.stop, both).await?;
        let (measured, WindowObservations { events, counted, carried, in_sync }) = (measured?, observed?);
        let trace = self.shared.lock().end_timeline();
        let copies = study.san(step.policy.as_ref()).map(SanSection::copies).filter(|_| in_sync);
        let limit = node_network::per_second(study);
        self.is_displaced |= events.iter().any(|event| event.by_hand);
        let is_told = is_harmed || !events.is_empty();
        let observations = StepObservations {
            timeline: is_told.then(|| Timeline::of(&trace, events, study.phases.measure.0.as_secs())),
            counts: counted
                .map(|(counted, seconds)| StorageCounts::of(&counted, seconds, &step.profile, copies)),
            network: limit
                .zip(carried)
                .map(|(limit, (carried, seconds))| NetworkUse::of(limit, &carried, seconds)),
        };
        Ok((measured, observations))
    }

    /// Takes what was seen of the storage into a step's result, with what a reader should know of it.
    pub(crate) fn count_in(&self, result: &mut StepResult, seen: StepObservations) {
        if let Some(counts) = &seen.counts {
            // What lost workers did last is not known.
            if result.lost() == 0 {
                result.findings.extend(counts.findings(result.figures.total.iops));
            }
        }
        result.storage = seen.counts;
        result.network = seen.network;
        let Some(timeline) = seen.timeline else { return };
        let planned = self.owned.folder.manifest.study.faults.len();
        let not_done = timeline.events.iter().filter_map(|event| {
            Some(format!("at {:.1} s, {}: {}", event.at_s, event.fault, event.failed.as_ref()?))
        });
        let mut not_done: Vec<String> = not_done.collect();
        let by_hand = timeline.events.iter().filter(|event| event.by_hand).count();
        let begun = timeline.events.len() - by_hand;
        if begun < planned {
            not_done.push(format!(
                "{} {} not begun before the window ended",
                planned - begun,
                if planned - begun == 1 { "was" } else { "were" }
            ));
        }
        if by_hand > 0 {
            result.findings.push(Finding::doubt(
                FindingKind::Fault,
                "a window in which nothing is done but what the study says",
                format!("machines were migrated by order, {}", counted(by_hand as u64, "time")),
                "The figures contain what that took. They compare with no other run.",
            ));
        }
        if !not_done.is_empty() {
            result.findings.push(Finding::doubt(
                FindingKind::Fault,
                format!("{planned} faults and returns of the storage"),
                not_done.join("; "),
                "The window differs from the study. See the nodes' logs in the run's folder.",
            ));
        }
        result.timeline = Some(timeline);
    }

    /// After a window in which things were done to the storage: takes all of it back, and waits until every copy is in sync,
    /// so that the next load finds what this one found.
    pub(crate) async fn restore(&mut self, step: &Step) -> Result<(), StudyError> {
        let manifest = &self.owned.folder.manifest;
        let is_displaced = std::mem::take(&mut self.is_displaced);
        let Some(harness) = self.harness.as_ref().filter(|_| has_faults(&manifest.study, step)) else {
            return match is_displaced {
                true => self.place(step.unaligned_percent, step.condition.as_ref()).await,
                false => Ok(()),
            };
        };
        harness.enter(true, Vec::new(), &mut self.stop).await?;
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
pub(crate) struct StepObservations {
    timeline: Option<Timeline>,
    counts: Option<StorageCounts>,
    network: Option<NetworkUse>,
}
