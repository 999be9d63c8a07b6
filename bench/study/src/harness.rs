//! The storage that a study controls, its own cluster or external storage, on a thread of its own: calls to the storage
//! block that thread, and a study that is stopped does not wait for them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use loadline_base::limits::STACK;
use loadline_base::units::ByteSize;
use loadline_fleet::{FleetKind, WorkerId, WorkerInfo};
use loadline_target::error::ErrorKind;
use loadline_target::{
    ApiAddress, Cluster, ClusterSpec, CpuPeriods, External, FaultKind, Health, LimitOfVolume, ModelledDevice,
    PlacedVolume, RunningSpec, Storage, TargetError, terminal_prompt,
};
use tokio::sync::{oneshot, watch};

use crate::error::StudyError;
use crate::file::{Access, Condition, Disks};
use crate::folder::CLUSTER;
use crate::folder::manifest::Manifest;
use crate::node_network;
use crate::own_cluster;
use crate::plan::Plan;
use crate::progress::Update;
use crate::record::Shared;
use crate::running_cluster::{access, api, volume_prefix};
use crate::volumes::{MadeVolumes, apart, place, target, volumes_of};
use crate::window_monitor::{WindowMonitor, WindowObservations};
use crate::worker_order::in_circle;
use loadline_fleet::or_stop;

/// How long copies are waited for after everything was healed, before conditions begin anew.
const HEALED: Duration = Duration::from_secs(600);

/// The file in a run's folder in which faults of a cluster that ran before are written down.
const FAULTS: &str = "faults.json";

/// A call on the storage, for its thread.
type StorageCall = Box<dyn FnOnce(&mut Storage, &AtomicBool) + Send>;

/// How long the thread may take to stop its nodes. They end with this process in any case.
const STOPS: Duration = Duration::from_secs(15);

/// The storage, and the thread that calls it. When this is dropped, the nodes of the run's own cluster are stopped.
pub(crate) struct Harness {
    calls: Option<mpsc::Sender<StorageCall>>,
    /// Ends when the thread has.
    ended: mpsc::Receiver<()>,
    leave: Arc<AtomicBool>,
    /// The id of a cluster of the SAN.
    pub(crate) cluster: Option<String>,
    /// The addresses of the APIs of its nodes.
    apis: Vec<ApiAddress>,
    /// Where it is announced that the run's own cluster ends, once its start was announced.
    announced: Option<Shared>,
    /// Ends the call that is under way.
    current: Mutex<Arc<AtomicBool>>,
}

/// Ends a call when its caller does not wait for the answer any more.
struct EndsCall(Arc<AtomicBool>);

impl Drop for EndsCall {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Harness {
    /// Starts the study's cluster, or goes on with the one in the run's folder, or finds the one that ran before.
    pub(crate) async fn start(
        manifest: &Manifest,
        plan: &Plan,
        run: &Path,
        stop: &mut watch::Receiver<bool>,
    ) -> Result<Harness, StudyError> {
        let running = running_spec(plan, manifest, run)?;
        let spec = ClusterSpec {
            program: "/proc/self/exe".into(),
            folder: run.join(CLUSTER),
            nodes: plan.fleet.nodes.clone(),
            model: own_cluster::device_model(&manifest.study)?,
            log_model: own_cluster::log_model(&manifest.study)?,
            cores: manifest.study.nodes().and_then(|node| node.cpu_limit),
            network_per_second: node_network::per_second(&manifest.study),
            device: plan.cluster.and_then(|cluster| cluster.device).unwrap_or(ByteSize(0)),
        };
        let external = manifest.study.target.external.clone();
        let leave = Arc::new(AtomicBool::new(false));
        let (calls, to_do) = mpsc::channel::<StorageCall>();
        let (started, when_started) = oneshot::channel();
        let is_over = leave.clone();
        // Nodes end with the thread that has started them.
        let (ends, ended) = mpsc::channel::<()>();
        let thread = std::thread::Builder::new().name("cluster".into()).stack_size(STACK).spawn(move || {
            // Dropped when the thread ends, even by a panic.
            let _ends = ends;
            let found = match (running, external) {
                (Some(running), _) => Cluster::find(running, &is_over).map(Storage::Own),
                (None, None) => Cluster::start(spec, &is_over).map(Storage::Own),
                (None, Some(external)) => {
                    let prompt = external.prompt.then(terminal_prompt);
                    External::new(external, prompt).map(Storage::Foreign)
                }
            };
            let mut storage = match found {
                Ok(storage) => storage,
                Err(error) => return drop(started.send(Err(error))),
            };
            let found = storage.own().map(|cluster| (cluster.id().to_string(), cluster.apis()));
            if started.send(Ok(found)).is_ok() {
                while let Ok(call) = to_do.recv() {
                    call(&mut storage, &is_over);
                }
            }
            storage.stop();
        });
        thread.map_err(|e| StudyError::failed(format!("cannot start the cluster's thread: {e}")))?;
        // From here on, dropping this ends the thread.
        let current = Mutex::default();
        let (cluster, apis, announced) = (None, Vec::new(), None);
        let mut harness = Harness { calls: Some(calls), ended, leave, cluster, apis, announced, current };
        if let Some((id, apis)) = or_stop(stop, when_started).await?.map_err(|_| died())?? {
            (harness.cluster, harness.apis) = (Some(id), apis);
        }
        Ok(harness)
    }

    /// Announces that the cluster of the run runs; and, as soon as this is dropped, that it ends.
    pub(crate) fn announce(&mut self, shared: &Shared) {
        shared.lock().show(Update::ClusterRuns(&self.apis));
        self.announced = Some(shared.clone());
    }

    /// The disks of these workers: each a volume, owned by the worker's node, or by the node that has taken it over. Each worker is
    /// to run where its first volume is owned, unless it is to be apart from its volumes.
    pub(crate) async fn volumes(
        &self,
        manifest: &Manifest,
        plan: &Plan,
        workers: &[WorkerInfo],
        unaligned_percent: u8,
        stop: &mut watch::Receiver<bool>,
    ) -> Result<MadeVolumes, StudyError> {
        let study = &manifest.study;
        let prefix = volume_prefix(study, &manifest.run_id);
        let are_hosts = !plan.fleet.placement.runs_here();
        let nodes = plan.fleet.nodes.clone();
        // In a circle over the nodes: the second copy of each volume is then at the next node, and so on.
        let order: Vec<WorkerId> =
            in_circle(workers).into_iter().map(|index| workers[index].id.clone()).collect();
        let mut wanted = Vec::new();
        for Disks { name, san, .. } in study.targets() {
            let access = san.map_or(Access::Local, |san| san.access);
            let mut of_workers = volumes_of(study, plan, &prefix, workers, name);
            for worker in &order {
                for volume in of_workers.remove(worker).unwrap_or_default() {
                    wanted.push((name.cloned(), worker.clone(), volume, access));
                }
            }
        }
        let away = apart(workers, unaligned_percent);
        let made = self.call(stop, move |storage, leave| {
            let cluster =
                storage.own().ok_or_else(|| TargetError::failed("there is no cluster for volumes"))?;
            let mut made = MadeVolumes::default();
            for (policy, worker, volume, access) in wanted {
                if leave.load(Ordering::Relaxed) {
                    return Err(TargetError { kind: ErrorKind::Interrupted, message: "interrupted".into() });
                }
                let is_away = away.contains(&worker);
                let (owner, disk) = match is_away {
                    true => cluster.placed_away(&volume, leave)?,
                    false => cluster.placed(&volume, leave)?,
                };
                if disk.is_new {
                    made.new = Some(volume.name.clone());
                }
                made.owners.insert(volume.name.clone(), owner.clone());
                let mut is_at_owner = true;
                if are_hosts {
                    let places = made.places.entry(policy.clone()).or_default();
                    let place = if is_away { volume.node } else { place(cluster, &nodes, &owner) };
                    is_at_owner = *places.entry(worker.clone()).or_insert(place) == owner;
                }
                // A worker that is apart from its volume shares no memory with its owner.
                let access = if is_away { Access::Nbd } else { access };
                let of_policy = made.volumes.entry(policy).or_default();
                of_policy.entry(worker).or_default().push(target(access, &disk, is_at_owner));
            }
            Ok(made)
        });
        Ok(made.await??)
    }

    /// Leads the storage into a condition: with `heal`, all faults done before are healed first; then these are done one
    /// after another, each with its waiting.
    pub(crate) async fn enter(
        &self,
        heal: bool,
        conditions: Vec<Condition>,
        stop: &mut watch::Receiver<bool>,
    ) -> Result<(), StudyError> {
        let entered = self.call(stop, move |storage, leave| {
            if heal {
                storage.heal(leave)?;
                if !storage.await_redundancy(HEALED, leave)? {
                    return Err(TargetError::failed(format!(
                        "the copies are not in sync {} s after all faults were undone{}",
                        HEALED.as_secs(),
                        left(storage, leave)
                    )));
                }
            }
            for condition in conditions {
                for fault in &condition.actions {
                    storage.inject(fault, leave)?;
                }
                if let Some(limit) = condition.wait_redundant
                    && !storage.await_redundancy(limit.0, leave)?
                {
                    return Err(TargetError::failed(format!(
                        "condition {}: the copies are not in sync within {limit}{}: give it longer",
                        condition.name,
                        left(storage, leave)
                    )));
                }
                wait(condition.wait.map_or(Duration::ZERO, |wait| wait.0), leave)?;
            }
            Ok(())
        });
        Ok(entered.await??)
    }

    /// Watches a window until it ends, and returns what was seen in it.
    pub(crate) async fn watch(
        &self,
        monitor: WindowMonitor,
        stop: &mut watch::Receiver<bool>,
    ) -> Result<WindowObservations, StudyError> {
        Ok(self.call(stop, move |storage, leave| monitor.run(storage, leave)).await??)
    }

    /// Takes back all faults, at the end of a run that finished or failed.
    pub(crate) async fn heal_all(&self) -> Result<(), StudyError> {
        let (_never, mut stop) = watch::channel(false);
        Ok(self.call(&mut stop, |storage, leave| storage.heal(leave)).await??)
    }

    /// The node that owns each volume of the cluster, if it has an owner; empty if no node answers now, or of external storage.
    pub(crate) async fn owners(
        &self,
        stop: &mut watch::Receiver<bool>,
    ) -> Result<BTreeMap<String, Option<String>>, StudyError> {
        let owners = self.call(stop, |storage, _| {
            Ok(storage.own().and_then(|cluster| cluster.owners().ok()).unwrap_or_default())
        });
        Ok(owners.await??)
    }

    /// Removes volumes of the run from a cluster that ran before, once all faults are undone.
    pub(crate) async fn remove_volumes(
        &self,
        names: BTreeSet<String>,
        stop: &mut watch::Receiver<bool>,
    ) -> Result<(), StudyError> {
        let removed = self.call(stop, move |storage, leave| {
            storage.heal(leave)?;
            storage.own().map_or(Ok(()), |cluster| cluster.remove_volumes(&names, leave))
        });
        Ok(removed.await??)
    }

    /// Gives volumes of the run this limit, or removes theirs, and waits until the cluster reports it.
    pub(crate) async fn limit_volumes(
        &self,
        names: BTreeSet<String>,
        limit: Option<LimitOfVolume>,
        stop: &mut watch::Receiver<bool>,
    ) -> Result<(), StudyError> {
        let limited = self.call(stop, move |storage, leave| {
            storage.own().map_or(Ok(()), |cluster| cluster.limit_volumes(&names, limit, leave))
        });
        Ok(limited.await??)
    }

    /// The nodes of the cluster that have faults now.
    pub(crate) async fn harmed(&self) -> Result<Vec<String>, StudyError> {
        let (_never, mut stop) = watch::channel(false);
        let harmed =
            self.call(&mut stop, |storage, _| Ok(storage.own().map(Cluster::harmed).unwrap_or_default()));
        Ok(harmed.await??)
    }

    /// The health of the run's volumes and of its cluster; `None` of external storage.
    pub(crate) async fn health(
        &self,
        stop: &mut watch::Receiver<bool>,
    ) -> Result<Option<Health>, StudyError> {
        Ok(self.call(stop, |storage, _| storage.own().map(Cluster::health).transpose()).await??)
    }

    /// The nodes whose process has ended though no fault ended it.
    pub(crate) async fn ended_unasked(
        &self,
        stop: &mut watch::Receiver<bool>,
    ) -> Result<Vec<String>, StudyError> {
        Ok(self.call(stop, |storage, _| Ok(storage.ended_unasked())).await??)
    }

    /// Where each volume of the cluster is; `None` if no node answers, or of external storage.
    pub(crate) async fn placement(
        &self,
        stop: &mut watch::Receiver<bool>,
    ) -> Result<Option<BTreeMap<String, PlacedVolume>>, StudyError> {
        let placed =
            self.call(stop, |storage, _| Ok(storage.own().and_then(|cluster| cluster.placement().ok())));
        Ok(placed.await??)
    }

    /// The devices that behave as a model says; `None` if no node answers.
    pub(crate) async fn modelled(
        &self,
        stop: &mut watch::Receiver<bool>,
    ) -> Result<Option<Vec<ModelledDevice>>, StudyError> {
        Ok(self.call(stop, |storage, _| storage.modelled()).await?.ok())
    }

    /// How often each node used up the cores that the run gave it. Nothing of nodes without a limit of cores.
    pub(crate) async fn cpu_periods(
        &self,
        stop: &mut watch::Receiver<bool>,
    ) -> Result<BTreeMap<String, CpuPeriods>, StudyError> {
        let periods = self.call(stop, |storage, _| {
            Ok(storage.own().map(|cluster| cluster.cpu_periods()).unwrap_or_default())
        });
        Ok(periods.await??)
    }

    /// Has the thread make a call, and waits for its result.
    async fn call<T: Send + 'static>(
        &self,
        stop: &mut watch::Receiver<bool>,
        what: impl FnOnce(&mut Storage, &AtomicBool) -> Result<T, TargetError> + Send + 'static,
    ) -> Result<Result<T, TargetError>, StudyError> {
        let (answer, answered) = oneshot::channel();
        let leave = Arc::new(AtomicBool::new(false));
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = leave.clone();
        // Also when this future is dropped: the next call, which undoes faults, must not wait for what this one waits for.
        let _ends = EndsCall(leave.clone());
        let call: StorageCall = Box::new(move |storage, is_over| {
            leave.fetch_or(is_over.load(Ordering::Relaxed), Ordering::Relaxed);
            drop(answer.send(what(storage, &leave)));
        });
        self.calls.as_ref().ok_or_else(died)?.send(call).map_err(|_| died())?;
        or_stop(stop, answered).await?.map_err(|_| died())
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        if let Some(shared) = self.announced.take() {
            shared.lock().show(Update::ClusterEnds);
        }
        self.leave.store(true, Ordering::Relaxed);
        self.current.get_mut().unwrap_or_else(PoisonError::into_inner).store(true, Ordering::Relaxed);
        self.calls = None;
        // Nothing is ever sent: it ends when the thread has stopped its nodes.
        let _ = self.ended.recv_timeout(STOPS);
    }
}

/// What a run needs of a cluster that ran before; `None` if it measures none.
fn running_spec(plan: &Plan, manifest: &Manifest, run: &Path) -> Result<Option<RunningSpec>, StudyError> {
    let study = &manifest.study;
    let Some(san) = study.running_cluster() else { return Ok(None) };
    let commands = study.node_commands();
    let by_nodes = study
        .all_faults()
        .filter(|fault| fault.what != FaultKind::Return && !fault.what.is_of_machines())
        .filter(|fault| commands.place_of(fault.what).is_none());
    Ok(Some(RunningSpec {
        api: api(san)?,
        access: access(san, &manifest.study_folder),
        nodes: plan.fleet.nodes.clone(),
        prefix: volume_prefix(study, &manifest.run_id),
        made: manifest.volumes.iter().cloned().collect(),
        noted: run.join(FAULTS),
        test_faults: by_nodes.map(|fault| fault.node).collect(),
        commands,
    }))
}

/// What is left to be copied, in words, if that is known.
fn left(storage: &Storage, leave: &AtomicBool) -> String {
    let left = storage.copies(leave).and_then(|copies| copies.left_bytes);
    left.map(|left| format!(", and {left} bytes are left")).unwrap_or_default()
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
    StudyError::failed("the cluster's thread has died: this is a bug of Loadline")
}

impl From<TargetError> for StudyError {
    fn from(error: TargetError) -> StudyError {
        StudyError { kind: error.kind, message: error.message }
    }
}
