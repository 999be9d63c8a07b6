//! Operations that give each worker one order and wait for its end: files, fill, prepare, scan.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::controller::{Controller, ControllerEvent};
use crate::error::FleetError;
use crate::event::{FleetEvent, LossReason, Operation};
use crate::identity::WorkerId;
use crate::outcome::PerWorker;
use crate::wire::{FailureKind, Reply, WorkerOrder};

/// How long an order without progress may take: opening disks, making files.
pub(crate) const SHORT_ORDER: Duration = Duration::from_secs(60);
/// How long a fill or a scan may make no progress: a flush of what a large cache has taken can take minutes.
pub(crate) const NO_PROGRESS: Duration = Duration::from_secs(600);
/// How long workers may take to leave off what they do; then they are given up.
const STOP_LIMIT: Duration = Duration::from_secs(5);
/// How often limits are checked.
const POLL_EVERY: Duration = Duration::from_millis(250);

/// A worker's part of an operation.
struct Part {
    task: u64,
    progress: Instant,
}

/// The reason of a loss, and its message, for a failure that a worker reports itself.
pub(crate) fn failure(kind: FailureKind, message: String) -> (LossReason, String) {
    match kind {
        FailureKind::Usage => (LossReason::Refused, message),
        FailureKind::Limit => (LossReason::StopCondition, message),
        FailureKind::Failed | FailureKind::Interrupted => (LossReason::Failed, message),
    }
}

impl Controller {
    /// Gives each worker its order and waits until all have ended. `finish` takes what an order of this kind ends
    /// with, or gives back what it does not.
    pub(crate) async fn carry_out<T>(
        &mut self,
        orders: BTreeMap<WorkerId, WorkerOrder>,
        limit: Duration,
        operation: Option<Operation>,
        finish: impl Fn(Reply) -> Option<T>,
    ) -> Result<PerWorker<T>, FleetError> {
        if let Some(unknown) = orders.keys().find(|id| !self.has(id)) {
            return Err(FleetError::usage(format!("there is no worker {unknown} in this fleet")));
        }
        self.bring_back(&orders.keys().cloned().collect()).await?;
        let mut results: PerWorker<T> = BTreeMap::new();
        let mut parts: BTreeMap<WorkerId, Part> = BTreeMap::new();
        let mut useless = BTreeSet::new();
        for (id, order) in orders {
            if let Some(why) = self.absent(&id) {
                results.insert(id.clone(), Err(self.report_loss(&id, LossReason::Absent, why)));
            } else if let Some(task) = self.order(&id, order) {
                parts.insert(id, Part { task, progress: Instant::now() });
            } else {
                let loss = self.report_loss(&id, LossReason::Hung, "it does not take orders".into());
                results.insert(id.clone(), Err(loss));
                useless.insert(id);
            }
        }
        while !parts.is_empty() {
            match self.next(Instant::now() + POLL_EVERY).await {
                ControllerEvent::Reply { id, task, reply } => {
                    let Some(part) = parts.get_mut(&id).filter(|part| part.task == task) else { continue };
                    match reply {
                        Reply::Progress { done, total } => {
                            part.progress = Instant::now();
                            if let Some(operation) = operation {
                                let event = FleetEvent::Progress { worker: id, operation, done, total };
                                self.events.emit(event);
                            }
                        }
                        reply if !reply.is_last() => {}
                        last => {
                            parts.remove(&id);
                            let result = match last {
                                Reply::Failed { kind, message } => Err(failure(kind, message)),
                                other => finish(other).ok_or_else(|| {
                                    useless.insert(id.clone());
                                    (
                                        LossReason::Garbled,
                                        "the worker's reply does not match its order".into(),
                                    )
                                }),
                            };
                            let result = result.map_err(|(reason, why)| self.report_loss(&id, reason, why));
                            results.insert(id, result);
                        }
                    }
                }
                ControllerEvent::Lost(id, loss) => {
                    if parts.remove(&id).is_some() {
                        results.insert(id.clone(), Err(loss));
                        useless.insert(id);
                    }
                }
                ControllerEvent::Tick => {
                    let late = |part: &Part| part.progress.elapsed() > limit;
                    for id in
                        parts.iter().filter(|(_, p)| late(p)).map(|(id, _)| id.clone()).collect::<Vec<_>>()
                    {
                        parts.remove(&id);
                        let why = format!("it made no progress for {limit:?}");
                        results.insert(id.clone(), Err(self.report_loss(&id, LossReason::Hung, why)));
                        useless.insert(id);
                    }
                }
                ControllerEvent::Cancelled => {
                    let busy = parts.into_keys().collect();
                    self.stop_work(busy).await;
                    return Err(FleetError::interrupted());
                }
                ControllerEvent::Joined(_) | ControllerEvent::MidStep(_) => {}
            }
        }
        self.retire(&useless).await;
        Ok(results)
    }

    /// Orders workers to stop what they do, and gives up those that do not within a limit.
    pub(crate) async fn stop_work(&mut self, workers: BTreeSet<WorkerId>) {
        let mut stopping = BTreeMap::new();
        let mut useless = BTreeSet::new();
        for id in workers {
            match self.send_stop(&id) {
                Some(task) => drop(stopping.insert(id, task)),
                None => drop(useless.insert(id)),
            }
        }
        let deadline = Instant::now() + STOP_LIMIT;
        while !stopping.is_empty() {
            match self.next(deadline).await {
                ControllerEvent::Reply { id, task, reply: Reply::Stopped }
                    if stopping.get(&id) == Some(&task) =>
                {
                    stopping.remove(&id);
                }
                ControllerEvent::Lost(id, _) => {
                    stopping.remove(&id);
                    useless.insert(id);
                }
                ControllerEvent::Tick => break,
                ControllerEvent::Reply { .. }
                | ControllerEvent::Joined(_)
                | ControllerEvent::MidStep(_)
                | ControllerEvent::Cancelled => {}
            }
        }
        useless.extend(stopping.into_keys());
        self.retire(&useless).await;
    }
}
