//! Workers that are killed in the middle of a step, and their successors: see [`crate::mid_step`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use loadline_base::clock::Nanos;
use loadline_guest::{MachineOrder, Migrated};
use tokio::time::Instant;

use crate::controller::Controller;
use crate::event::{FleetEvent, LossReason};
use crate::identity::WorkerId;
use crate::launcher::Launcher;
use crate::mid_step::{Manner, MidStepOrder, Restart};
use crate::operation::failure;
use crate::orders::{Answered, Migration, NotMigrated};
use crate::step_state::{Step, Successor};
use crate::wire::{Reply, WorkerOrder};

/// How long a worker that takes a place may take to open its disks.
const PREPARES: Duration = Duration::from_secs(20);
/// How long machines whose kernels crash may take to end. Meanwhile nothing else is heard.
const CRASHES: Duration = Duration::from_millis(4_500);
/// How long a machine may take to be migrated: longer than its keeper and the other host take together.
const MIGRATES: Duration = Duration::from_secs(150);
/// How often a machine is ordered to be migrated that was about to read something just then.
pub const MIGRATION_TRIES: u32 = 4;
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How long a successor holds its records back after the end of a second: the middle of the turns of the others.
const HOLD_BACK: Nanos = Nanos(500_000_000);

/// What a migration was, or why it was not.
async fn answer(answered: Answered) -> Result<Migrated, NotMigrated> {
    match tokio::time::timeout(MIGRATES, answered).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => Err("its keeper has ended".to_string().into()),
        Err(_) => Err(format!("its keeper did not answer within {MIGRATES:?}").into()),
    }
}

impl Controller {
    /// Machines that were migrated in an earlier step are back on their own nodes. One that cannot go back is ended: its worker is started
    /// anew at home when it is needed.
    pub(crate) async fn bring_home(&mut self) {
        for (id, node) in self.launcher.away() {
            let mut back = self.bring_back_home(&id, &node).await;
            for _ in 1..MIGRATION_TRIES {
                if back.as_ref().is_err_and(|not| not.again) {
                    back = self.bring_back_home(&id, &node).await;
                }
            }
            if let Err(NotMigrated { why, .. }) = back
                && self.launcher.exit_of(&id).await.is_none()
            {
                let message = format!("its machine could not go back to its own node, and was ended: {why}");
                self.report_loss(&id, LossReason::Failed, message);
                self.retire(&[id].into()).await;
            }
        }
    }

    async fn bring_back_home(&mut self, id: &WorkerId, node: &str) -> Result<Migrated, NotMigrated> {
        // It has no disks between two steps.
        match self.launcher.migrate(id, Migration { node: node.into(), disks: Vec::new() }).await {
            Ok(answered) => answer(answered).await,
            Err(error) => Err(error.message.into()),
        }
    }

    /// Carries out an order in the middle of the step.
    pub(crate) async fn change(&mut self, step: &mut Step<'_>, change: MidStepOrder) {
        match change {
            MidStepOrder::Kill(workers, manner, killed) => {
                let result = self.kill(step, workers, manner).await;
                // The receiver may not wait any more.
                let _ = killed.send(result);
            }
            MidStepOrder::Pause(workers, length, paused) => {
                let mut result = Ok(());
                for id in &workers {
                    let order =
                        MachineOrder::Pause { ms: u64::try_from(length.as_millis()).unwrap_or(u64::MAX) };
                    let ordered = self.launcher.order(id, order).await;
                    result = result.and(ordered.map_err(|error| error.message));
                }
                let _ = paused.send(result);
            }
            MidStepOrder::Migrate(id, _, done) if !step.running.contains_key(&id) => {
                drop(done.send(Err("its worker does not measure now".to_string().into())));
            }
            MidStepOrder::Migrate(id, migration, done) => match self.launcher.migrate(&id, migration).await {
                // The receiver may not wait any more.
                Ok(answered) => drop(tokio::spawn(async { drop(done.send(answer(answered).await)) })),
                Err(error) => drop(done.send(Err(error.message.into()))),
            },
            MidStepOrder::Start(restarts) => self.start_again(step, restarts).await,
        }
    }

    async fn kill(
        &mut self,
        step: &mut Step<'_>,
        workers: BTreeSet<WorkerId>,
        manner: Manner,
    ) -> Result<(), String> {
        let ours = |id: &WorkerId| self.members.get(id).is_some_and(|member| member.is_launched);
        // A successor that has not begun yet is killed too.
        let works = |step: &mut Step<'_>, id: &WorkerId| {
            step.running.remove(id).is_some() | step.successors.remove(id).is_some()
        };
        let gone: BTreeSet<WorkerId> = workers.into_iter().filter(|id| ours(id) && works(step, id)).collect();
        let result = match manner {
            Manner::Kill => Ok(()),
            Manner::Crash => self.crash(&gone).await,
        };
        self.retire(&gone).await;
        for id in gone {
            let after_s = self.zero.map_or(0.0, |zero| Nanos::now().since(zero).as_secs());
            self.events.emit(FleetEvent::Killed { worker: self.info(&id), after_s });
            if let Some(outcome) = step.outcomes.get_mut(&id) {
                let before = step.before.entry(id.clone()).or_default();
                (before.completed, before.errors) = (outcome.window.completed(), outcome.window.errors());
                if let Some(report) = outcome.verify.take() {
                    before.verify.get_or_insert_default().merge(report);
                }
            }
            step.out.insert(id);
        }
        result
    }

    /// Has the kernels of machines crash, and waits until the machines have ended. The error says which did not.
    async fn crash(&mut self, workers: &BTreeSet<WorkerId>) -> Result<(), String> {
        for id in workers {
            self.launcher.order(id, MachineOrder::Crash).await.map_err(|error| error.message)?;
        }
        let deadline = Instant::now() + CRASHES;
        for id in workers {
            while self.launcher.exit_of(id).await.is_none() {
                if Instant::now() > deadline {
                    return Err(format!(
                        "the machine of worker {id} did not crash within {CRASHES:?}, and was killed"
                    ));
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
        Ok(())
    }

    async fn start_again(&mut self, step: &mut Step<'_>, restarts: BTreeMap<WorkerId, Restart>) {
        for (id, Restart { job, node }) in restarts {
            if !step.out.remove(&id) {
                continue;
            }
            if self.members.get(&id).is_none_or(|member| !member.is_launched) {
                continue;
            }
            let placed = node.map_or(Ok(()), |node| self.launcher.place(&id, &node));
            let launched = match placed {
                Ok(()) => self.launcher.launch(&id).await,
                Err(error) => Err(error),
            };
            match launched {
                Ok(joins_within) => {
                    let successor = Successor { job, task: None, since: Instant::now(), joins_within };
                    step.successors.insert(id, successor);
                }
                Err(error) => {
                    let loss = self.report_loss(&id, LossReason::Absent, error.message);
                    step.lose(&id, loss, true);
                }
            }
        }
    }

    /// A successor has joined: it gets the order to prepare. Other workers that join have no part in this step.
    pub(crate) fn welcome_successor(&mut self, step: &mut Step<'_>, id: &WorkerId) {
        let Some(successor) = step.successors.get_mut(id) else { return };
        let order = WorkerOrder::Prepare { job: Box::new(successor.job.clone()), watch: None };
        (successor.task, successor.since) = (self.order(id, order), Instant::now());
        if let Some(outcome) = step.outcomes.get_mut(id) {
            outcome.worker = self.info(id);
        }
    }

    /// Takes a reply of a successor to its current order; other replies are ignored.
    pub(crate) fn handle_successor_reply(
        &mut self,
        step: &mut Step<'_>,
        id: &WorkerId,
        task: u64,
        reply: Reply,
    ) {
        if step.successors.get(id).is_none_or(|successor| successor.task != Some(task)) {
            return;
        }
        let (reason, why) = match reply {
            Reply::Prepared { clock, .. } => {
                step.successors.remove(id);
                if let Some(outcome) = step.outcomes.get_mut(id) {
                    outcome.clock_error = outcome.clock_error.max(Some(Nanos(clock.error_ns)));
                }
                let start = self.zero.unwrap_or_else(Nanos::now);
                match self
                    .order(id, WorkerOrder::Run { start, hold_back: HOLD_BACK, late: true, clock: None })
                {
                    Some(task) => {
                        step.running.insert(id.clone(), task);
                        return;
                    }
                    None => (LossReason::Hung, "it does not take orders".to_string()),
                }
            }
            Reply::Failed { kind, message } => failure(kind, message),
            reply if !reply.is_last() => return,
            _ => (LossReason::Garbled, "the worker's reply does not match its order".to_string()),
        };
        let loss = self.report_loss(id, reason, why);
        step.lose(id, loss, true);
    }

    /// Gives up successors that do not join in time.
    pub(crate) async fn check_successors(&mut self, step: &mut Step<'_>) {
        for id in step.successors.keys().cloned().collect::<Vec<_>>() {
            let successor = &step.successors[&id];
            let is_here = successor.task.is_some();
            let limit = if is_here { PREPARES } else { successor.joins_within };
            let late = successor.since.elapsed() > limit;
            if !late && (is_here || !self.note_early_end(&id).await) {
                continue;
            }
            let why = match (late, is_here) {
                (true, true) => {
                    format!("it did not open its disks within {limit:?} after it was started again")
                }
                (true, false) => format!("it did not join within {limit:?} of being started again"),
                _ => self.absent(&id).unwrap_or_default(),
            };
            let loss = self.report_loss(&id, LossReason::Hung, why);
            step.lose(&id, loss, true);
        }
    }

    /// When the load is over: workers that were killed and not started again did not measure to the end. What killed workers
    /// had verified counts even if their successor is lost.
    pub(crate) fn count_out(&mut self, step: &mut Step<'_>) {
        let late = std::mem::take(&mut step.successors).into_keys();
        for id in std::mem::take(&mut step.out).into_iter().chain(late) {
            let why = "its host was gone, and it was not started again before the load ended".to_string();
            let loss = self.report_loss(&id, LossReason::Absent, why);
            step.lose(&id, loss, true);
        }
        for (id, before) in std::mem::take(&mut step.before) {
            if let (Some(outcome), Some(report)) = (step.outcomes.get_mut(&id), before.verify) {
                outcome.verify.get_or_insert_default().merge(report);
            }
        }
    }
}
