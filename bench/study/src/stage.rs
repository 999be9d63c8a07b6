//! The cluster that a study starts for itself, on a thread of its own: what is asked of it waits, and a study that is
//! stopped does not.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use loadline_base::units::ByteSize;
use loadline_fleet::{WorkerId, WorkerInfo};
use loadline_load::Target;
use loadline_target::error::ErrorKind;
use loadline_target::{Cluster, ClusterSpec, Health, TargetError, VolumeSpec};
use tokio::sync::{oneshot, watch};

use crate::conditions::Condition;
use crate::error::StudyError;
use crate::file::{Access, Study};
use crate::plan::{Plan, node_names};
use crate::stop::or_stop;

/// The name of its folder in the run's folder.
pub(crate) const FOLDER: &str = "san";
/// How long copies are waited for after everything was taken back, before conditions begin anew.
const HEALED: Duration = Duration::from_secs(600);

/// What the thread is asked.
type Ask = Box<dyn FnOnce(&mut Cluster, &AtomicBool) + Send>;

/// The disks of each worker.
pub(crate) type Volumes = BTreeMap<WorkerId, Vec<Target>>;
/// How long the thread may take to stop its nodes. They end with this process in any case.
const STOPS: Duration = Duration::from_secs(15);

/// A cluster that runs. When this is dropped its nodes are stopped.
pub(crate) struct Stage {
    asks: Option<mpsc::Sender<Ask>>,
    /// Ends when the thread has.
    ended: mpsc::Receiver<()>,
    leave: Arc<AtomicBool>,
}

impl Stage {
    /// Starts the study's cluster, or goes on with the one in the run's folder.
    pub(crate) async fn start(
        study: &Study,
        plan: &Plan,
        run: &Path,
        stop: &mut watch::Receiver<bool>,
    ) -> Result<Stage, StudyError> {
        let spec = ClusterSpec {
            program: "/proc/self/exe".into(),
            folder: run.join(FOLDER),
            nodes: node_names(study),
            device: plan.cluster.map_or(ByteSize(0), |cluster| cluster.device),
        };
        let leave = Arc::new(AtomicBool::new(false));
        let (asks, to_do) = mpsc::channel::<Ask>();
        let (started, when_started) = oneshot::channel();
        let is_over = leave.clone();
        // Nodes end with the thread that has started them.
        let (ends, ended) = mpsc::channel::<()>();
        let thread = std::thread::Builder::new().name("cluster".into()).spawn(move || {
            // Dropped when the thread ends, even by a panic.
            let _ends = ends;
            let mut cluster = match Cluster::start(spec, &is_over) {
                Ok(cluster) => cluster,
                Err(error) => return drop(started.send(Err(error))),
            };
            if started.send(Ok(())).is_ok() {
                while let Ok(ask) = to_do.recv() {
                    ask(&mut cluster, &is_over);
                }
            }
            cluster.stop();
        });
        thread.map_err(|e| StudyError::failed(format!("cannot start the cluster's thread: {e}")))?;
        // From here on, dropping this ends the thread.
        let stage = Stage { asks: Some(asks), ended, leave };
        or_stop(stop, when_started).await?.map_err(|_| died())??;
        Ok(stage)
    }

    /// The disks of these workers: each a volume, owned by the worker's node, or by who has taken it over. And whether one of
    /// them was not there before.
    pub(crate) async fn volumes(
        &self,
        study: &Study,
        plan: &Plan,
        workers: &[WorkerInfo],
        stop: &mut watch::Receiver<bool>,
    ) -> Result<(Volumes, bool), StudyError> {
        let san = study.target.san.clone().unwrap_or_default();
        let size = plan.disk_size.unwrap_or(ByteSize::GIB);
        let disks = plan.disks_per_worker;
        let wanted = workers.iter().flat_map(|worker| (0..disks).map(move |disk| (worker, disk)));
        let wanted: Vec<(WorkerId, VolumeSpec)> = wanted
            .map(|(worker, disk)| {
                let volume = VolumeSpec {
                    name: format!("{}-{disk}", worker.id.0.replace('/', "-")),
                    size,
                    copies: san.copies(),
                    stripes: san.stripes.unwrap_or(1),
                    node: worker.node.clone(),
                };
                (worker.id.clone(), volume)
            })
            .collect();
        let made = self.ask(stop, move |cluster, leave| {
            let (mut volumes, mut any_new) = (Volumes::new(), false);
            for (worker, volume) in wanted {
                if leave.load(Ordering::Relaxed) {
                    return Err(TargetError { kind: ErrorKind::Interrupted, message: "interrupted".into() });
                }
                let disk = cluster.placed(&volume, leave)?;
                any_new |= disk.is_new;
                let target = match san.access {
                    Access::Local => disk.local,
                    Access::Nbd => disk.nbd,
                };
                volumes.entry(worker).or_default().push(target);
            }
            Ok((volumes, any_new))
        });
        Ok(made.await??)
    }

    /// Leads the cluster into a condition: with `heal` whatever was done before is taken back first; then these are done one
    /// after another, each with its waiting.
    pub(crate) async fn enter(
        &self,
        heal: bool,
        conditions: Vec<Condition>,
        stop: &mut watch::Receiver<bool>,
    ) -> Result<(), StudyError> {
        let entered = self.ask(stop, move |cluster, leave| {
            if heal {
                cluster.heal(leave)?;
                if !cluster.await_redundancy(HEALED, leave)? {
                    let left = cluster.health()?.left_bytes;
                    return Err(TargetError::failed(format!(
                        "the cluster's copies are not in sync {} s after everything was taken back, and {left} bytes are left",
                        HEALED.as_secs()
                    )));
                }
            }
            for condition in conditions {
                for fault in &condition.actions {
                    cluster.inject(fault, leave)?;
                }
                if let Some(limit) = condition.wait_redundant
                    && !cluster.await_redundancy(limit.0, leave)?
                {
                    let left = cluster.health()?.left_bytes;
                    return Err(TargetError::failed(format!(
                        "condition {}: the copies are not in sync within {limit}, and {left} bytes are left: give it longer",
                        condition.name
                    )));
                }
                wait(condition.wait.map_or(Duration::ZERO, |wait| wait.0), leave)?;
            }
            Ok(())
        });
        Ok(entered.await??)
    }

    /// How well the cluster is.
    pub(crate) async fn health(&self, stop: &mut watch::Receiver<bool>) -> Result<Health, StudyError> {
        Ok(self.ask(stop, |cluster, _| cluster.health()).await??)
    }

    /// The nodes that have ended though nobody asked them to.
    pub(crate) async fn ended_unasked(
        &self,
        stop: &mut watch::Receiver<bool>,
    ) -> Result<Vec<String>, StudyError> {
        Ok(self.ask(stop, |cluster, _| Ok(cluster.ended_unasked())).await??)
    }

    /// Asks the cluster something.
    async fn ask<T: Send + 'static>(
        &self,
        stop: &mut watch::Receiver<bool>,
        what: impl FnOnce(&mut Cluster, &AtomicBool) -> Result<T, TargetError> + Send + 'static,
    ) -> Result<Result<T, TargetError>, StudyError> {
        let (answer, answered) = oneshot::channel();
        let ask: Ask = Box::new(move |cluster, leave| drop(answer.send(what(cluster, leave))));
        self.asks.as_ref().ok_or_else(died)?.send(ask).map_err(|_| died())?;
        or_stop(stop, answered).await?.map_err(|_| died())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.leave.store(true, Ordering::Relaxed);
        self.asks = None;
        // Nothing is ever sent: it ends when the thread has stopped its nodes.
        let _ = self.ended.recv_timeout(STOPS);
    }
}

/// Waits so long, unless it is to leave.
fn wait(span: Duration, leave: &AtomicBool) -> Result<(), TargetError> {
    let begun = Instant::now();
    while begun.elapsed() < span {
        if leave.load(Ordering::Relaxed) {
            return Err(TargetError { kind: ErrorKind::Interrupted, message: "interrupted".into() });
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn died() -> StudyError {
    StudyError::failed("the cluster's thread has died: this is a mistake of Loadline")
}

impl From<TargetError> for StudyError {
    fn from(error: TargetError) -> StudyError {
        StudyError { kind: error.kind, message: error.message }
    }
}
