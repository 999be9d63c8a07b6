//! The handle that a study holds.
//!
//! Its methods hand an operation to the controller's thread and wait for what it came to. One operation runs at a
//! time. Dropping the future of an operation ends the operation: all workers are ordered to stop, and the next
//! operation (or [`Fleet::stop`]) begins when they have, within seconds.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc as std_mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use loadline_base::limits::STACK;
use loadline_base::units::ByteSize;
use loadline_doctor::Examination;
use loadline_load::VerifyReport;
use loadline_load::{FileIdentity, Job};
use tokio::sync::{mpsc, oneshot};

use crate::controller::{Controller, unix_ms};
use crate::error::FleetError;
use crate::event::{EventSink, LossReason, Operation};
use crate::event_queue::EventQueue;
use crate::identity::{WorkerId, WorkerInfo};
use crate::launcher::FleetKind;
use crate::mid_step::MidStepChanges;
use crate::network::NetworkPathSpeed;
use crate::network_path::NetworkPath;
use crate::operation::{NO_PROGRESS, SHORT_ORDER};
use crate::outcome::{PerWorker, StepOutcome};
use crate::spec::FleetSpec;
use crate::wire::{FileToMake, FileToRemove, Reply, WorkerOrder};

/// Files on workers' hosts, and which files they are.
pub type MadeFiles = BTreeMap<WorkerId, Vec<FileIdentity>>;

/// Where the result of an operation goes.
type Answer<T> = oneshot::Sender<Result<T, FleetError>>;

/// A request to the controller.
enum Request {
    Ensure(Answer<Vec<WorkerId>>),
    Place(BTreeMap<WorkerId, String>, Answer<()>),
    MakeFiles(BTreeMap<WorkerId, Vec<FileToMake>>, Answer<MadeFiles>),
    RemoveFiles(BTreeMap<WorkerId, Vec<FileToRemove>>, Answer<PerWorker<()>>),
    Fill(BTreeMap<WorkerId, Job>, Answer<PerWorker<()>>),
    Measure(BTreeMap<WorkerId, Job>, Option<MidStepChanges>, Answer<StepOutcome>),
    Scan(BTreeMap<WorkerId, Job>, Answer<PerWorker<VerifyReport>>),
    MeasurePath(NetworkPath, Answer<Result<NetworkPathSpeed, String>>),
    Examine(BTreeMap<WorkerId, ToExamine>, Answer<PerWorker<ExaminedHost>>),
}

/// What a worker is to examine of its host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ToExamine {
    /// Disks, by their paths there; none: every whole disk.
    pub devices: Vec<PathBuf>,
    /// A folder there in which durable writes are measured.
    pub folder: Option<PathBuf>,
}

/// What a worker found on its host.
#[derive(Debug, Clone, PartialEq)]
pub struct ExaminedHost {
    /// What it found.
    pub examination: Examination,
    /// How far the host's wall clock is ahead of the controller's, seconds, less what the message took.
    pub clock_ahead_s: f64,
}

/// A request, and a channel that ends when the caller does not wait for the answer any more.
type PendingRequest = (Request, oneshot::Receiver<()>);

/// A fleet of workers, and the controller that they have joined.
#[derive(Debug)]
pub struct Fleet {
    requests: Option<mpsc::Sender<PendingRequest>>,
    /// Ends when the controller's thread has.
    ended: std_mpsc::Receiver<()>,
    /// The same, to be awaited.
    ended_async: Option<oneshot::Receiver<()>>,
    roster: Arc<Mutex<Vec<WorkerInfo>>>,
    address: SocketAddr,
    token: String,
    /// How long dropping it may block.
    end_limit: Duration,
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Request")
    }
}

impl Fleet {
    /// Listens, launches workers, and waits until all workers have joined. Dropping the future undoes all of it.
    pub async fn start(spec: FleetSpec, events: EventSink) -> Result<Fleet, FleetError> {
        spec.validate()?;
        let cannot =
            |e: std::io::Error| FleetError::failed(format!("cannot start the controller's thread: {e}"));
        let (requests, to_do) = mpsc::channel(1);
        let (started, when_started) = oneshot::channel();
        let (_ends, ended) = std_mpsc::channel::<()>();
        let (_ends_async, ended_async) = oneshot::channel::<()>();
        let roster = Arc::new(Mutex::new(Vec::new()));
        let queue = EventQueue::start(events).map_err(cannot)?;
        // From here on, dropping the future drops the handle, which waits for the thread to undo what it did.
        let mut fleet = Fleet {
            requests: Some(requests),
            ended,
            ended_async: Some(ended_async),
            roster: roster.clone(),
            address: spec.listen,
            token: String::new(),
            end_limit: spec.placement.end_limit(),
        };
        // Declared after the handle, so dropped before it: the thread must know that it is not wanted any more
        // before the handle waits for its end.
        let (alive, wanted) = oneshot::channel();
        thread::Builder::new()
            .name("fleet".into())
            .stack_size(STACK)
            .spawn(move || {
                // Dropped when the thread ends, even by a panic.
                let _ended = (_ends, _ends_async);
                let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                    Ok(runtime) => runtime,
                    Err(e) => return drop(started.send(Err(cannot(e)))),
                };
                runtime.block_on(live(spec, queue, roster, wanted, started, to_do));
                runtime.shutdown_background();
            })
            .map_err(cannot)?;
        let result = when_started.await;
        drop(alive);
        (fleet.address, fleet.token) = result.map_err(|_| thread_died())??;
        Ok(fleet)
    }

    /// All workers of the fleet in the order of their names, those included that are lost at the moment.
    pub fn workers(&self) -> Vec<WorkerInfo> {
        self.roster.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Where the controller listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The token that a worker proves to have when it joins.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Brings back workers that were lost: launched ones are launched again; joined ones are waited for, up to a limit
    /// and once for each loss. Returns the workers that are still missing. Every other operation begins with this for its workers.
    pub async fn ensure_workers(&mut self) -> Result<Vec<WorkerId>, FleetError> {
        self.ask(Request::Ensure).await
    }

    /// Has each of these workers run on the host of a node, those that run elsewhere are ended and launched there. One that cannot be
    /// launched there is missing, as if it were lost. Does nothing in a fleet whose workers have no hosts of their own. An error of
    /// kind `Usage` if the fleet has no such node.
    pub async fn place(&mut self, places: &BTreeMap<WorkerId, String>) -> Result<(), FleetError> {
        let places = places.clone();
        self.ask(|answer| Request::Place(places, answer)).await
    }

    /// Makes files of these sizes, sparse, on the workers' hosts, and returns their identities, in the order
    /// given. If one cannot be made, those that were made are removed, and it is an error.
    pub async fn make_files(
        &mut self,
        files: &BTreeMap<WorkerId, Vec<(PathBuf, ByteSize)>>,
    ) -> Result<MadeFiles, FleetError> {
        let make = |(path, size): &(PathBuf, ByteSize)| FileToMake { path: path.clone(), size: *size };
        let files = files.iter().map(|(id, list)| (id.clone(), list.iter().map(make).collect())).collect();
        self.ask(|answer| Request::MakeFiles(files, answer)).await
    }

    /// Removes files that [`make_files`](Self::make_files) made, if they are still those files.
    pub async fn remove_files(
        &mut self,
        files: &BTreeMap<WorkerId, Vec<(PathBuf, FileIdentity)>>,
    ) -> Result<PerWorker<()>, FleetError> {
        let remove =
            |(path, id): &(PathBuf, FileIdentity)| FileToRemove { path: path.clone(), identity: *id };
        let files = files.iter().map(|(id, list)| (id.clone(), list.iter().map(remove).collect())).collect();
        self.ask(|answer| Request::RemoveFiles(files, answer)).await
    }

    /// Writes the working set of every disk of every job once.
    pub async fn fill(&mut self, jobs: &BTreeMap<WorkerId, Job>) -> Result<PerWorker<()>, FleetError> {
        let jobs = jobs.clone();
        self.ask(|answer| Request::Fill(jobs, answer)).await
    }

    /// Runs the jobs, all from one agreed instant. Their warm-up, window and cool-down must be the same. Workers
    /// that could not begin or are lost on the way are in the outcome, even if all are. When a stop condition (`stop_if`) of
    /// one ends its load, all are stopped, and it is an error of kind `Limit`.
    pub async fn measure(&mut self, jobs: &BTreeMap<WorkerId, Job>) -> Result<StepOutcome, FleetError> {
        self.measure_through(jobs, None).await
    }

    /// The same; while they measure, workers may be killed and started again.
    pub async fn measure_through(
        &mut self,
        jobs: &BTreeMap<WorkerId, Job>,
        changes: Option<MidStepChanges>,
    ) -> Result<StepOutcome, FleetError> {
        let jobs = jobs.clone();
        self.ask(|answer| Request::Measure(jobs, changes, answer)).await
    }

    /// Reads and checks every block that the jobs' journals know.
    pub async fn scan(
        &mut self,
        jobs: &BTreeMap<WorkerId, Job>,
    ) -> Result<PerWorker<VerifyReport>, FleetError> {
        let jobs = jobs.clone();
        self.ask(|answer| Request::Scan(jobs, answer)).await
    }

    /// Measures the network from one worker to another, for some three seconds. The inner error says why that cannot be.
    pub async fn measure_path(
        &mut self,
        path: &NetworkPath,
    ) -> Result<Result<NetworkPathSpeed, String>, FleetError> {
        let path = path.clone();
        self.ask(|answer| Request::MeasurePath(path, answer)).await
    }

    /// Has each of these workers examine its host, all at once. If a worker is lost, the others go on.
    pub async fn examine(
        &mut self,
        hosts: &BTreeMap<WorkerId, ToExamine>,
    ) -> Result<PerWorker<ExaminedHost>, FleetError> {
        let hosts = hosts.clone();
        self.ask(|answer| Request::Examine(hosts, answer)).await
    }

    /// Dismisses the workers, waits for them up to a limit, ends launched ones that are left, and removes what was made on
    /// their hosts. Dropping the fleet does the same, blocking for as long.
    pub async fn stop(mut self) {
        self.requests = None;
        if let Some(ended) = self.ended_async.take() {
            // It carries nothing: either way the thread has ended.
            let _ = ended.await;
        }
    }

    async fn ask<T>(&mut self, request: impl FnOnce(Answer<T>) -> Request) -> Result<T, FleetError> {
        let (answer, answered) = oneshot::channel();
        // Dropped with this future: the controller then ends the operation.
        let (_alive, wanted) = oneshot::channel();
        let requests = self.requests.as_ref().ok_or_else(thread_died)?;
        requests.send((request(answer), wanted)).await.map_err(|_| thread_died())?;
        answered.await.map_err(|_| thread_died())?
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.requests = None;
        // Nothing is ever sent: it ends when the thread does.
        let _ = self.ended.recv_timeout(self.end_limit);
    }
}

fn thread_died() -> FleetError {
    FleetError::failed("the controller's thread has died: this is a bug of Loadline")
}

/// The controller's whole life.
async fn live(
    spec: FleetSpec,
    queue: EventQueue,
    roster: Arc<Mutex<Vec<WorkerInfo>>>,
    wanted: oneshot::Receiver<()>,
    started: oneshot::Sender<Result<(SocketAddr, String), FleetError>>,
    mut requests: mpsc::Receiver<PendingRequest>,
) {
    let mut controller = match Controller::listen(&spec, queue, roster).await {
        Ok(controller) => controller,
        Err(error) => return drop(started.send(Err(error))),
    };
    controller.begin(wanted);
    let gathered = controller.gather(&spec).await;
    controller.events.flush().await;
    let here = (controller.address(), controller.token().to_string());
    match gathered {
        Ok(()) => {
            if started.send(Ok(here)).is_ok() {
                serve(&mut controller, &mut requests).await;
            }
            controller.shut_down().await;
        }
        Err(error) => {
            // The error is reported when all is undone.
            controller.shut_down().await;
            let _ = started.send(Err(error));
        }
    }
}

/// Does what the handle asks, until it is dropped.
async fn serve(controller: &mut Controller, requests: &mut mpsc::Receiver<PendingRequest>) {
    loop {
        let asked = tokio::select! {
            asked = requests.recv() => asked,
            Some(inbound) = controller.receive() => {
                controller.idle(inbound).await;
                continue;
            }
        };
        let Some((request, wanted)) = asked else { return };
        controller.begin(wanted);
        match request {
            Request::Ensure(answer) => {
                let result = ensure(controller).await;
                reply(controller, answer, result).await;
            }
            Request::Place(places, answer) => {
                let result = controller.place(places).await;
                reply(controller, answer, result).await;
            }
            Request::MakeFiles(files, answer) => {
                let result = make_files(controller, files).await;
                reply(controller, answer, result).await;
            }
            Request::RemoveFiles(files, answer) => {
                let orders =
                    files.into_iter().map(|(id, list)| (id, WorkerOrder::RemoveFiles(list))).collect();
                let done = |reply| matches!(reply, Reply::FilesRemoved).then_some(());
                let result = controller.carry_out(orders, SHORT_ORDER, None, done).await;
                reply(controller, answer, result).await;
            }
            Request::Fill(jobs, answer) => {
                controller.bring_home().await;
                let orders =
                    jobs.into_iter().map(|(id, job)| (id, WorkerOrder::Fill(Box::new(job)))).collect();
                let done = |reply| matches!(reply, Reply::Filled).then_some(());
                let result = controller.carry_out(orders, NO_PROGRESS, Some(Operation::Fill), done).await;
                reply(controller, answer, result).await;
            }
            Request::Measure(jobs, changes, answer) => {
                let result = controller.measure(&jobs, changes).await;
                reply(controller, answer, result).await;
            }
            Request::MeasurePath(path, answer) => {
                let result = controller.measure_path(&path).await;
                reply(controller, answer, result).await;
            }
            Request::Examine(hosts, answer) => {
                let order = |ToExamine { devices, folder }| WorkerOrder::Examine { devices, folder };
                let orders = hosts.into_iter().map(|(id, host)| (id, order(host))).collect();
                let result = controller.carry_out(orders, SHORT_ORDER, None, examined).await;
                reply(controller, answer, result).await;
            }
            Request::Scan(jobs, answer) => {
                controller.bring_home().await;
                let orders =
                    jobs.into_iter().map(|(id, job)| (id, WorkerOrder::Scan(Box::new(job)))).collect();
                let done = |reply| match reply {
                    Reply::Scanned(report) => Some(report),
                    _ => None,
                };
                let result = controller.carry_out(orders, NO_PROGRESS, Some(Operation::Scan), done).await;
                reply(controller, answer, result).await;
            }
        }
    }
}

/// Hands over a result once the sink has taken the events before it.
async fn reply<T>(controller: &mut Controller, answer: Answer<T>, result: Result<T, FleetError>) {
    controller.events.flush().await;
    // The caller may have gone.
    let _ = answer.send(result);
}

fn examined(reply: Reply) -> Option<ExaminedHost> {
    let Reply::Examined { examination, unix_ms: there } = reply else { return None };
    let clock_ahead_s = (there as f64 - unix_ms() as f64) / 1e3;
    Some(ExaminedHost { examination: *examination, clock_ahead_s })
}

async fn ensure(controller: &mut Controller) -> Result<Vec<WorkerId>, FleetError> {
    let all = controller.ids();
    controller.bring_back(&all).await?;
    Ok(all.into_iter().filter(|id| controller.absent(id).is_some()).collect())
}

async fn make_files(
    controller: &mut Controller,
    files: BTreeMap<WorkerId, Vec<FileToMake>>,
) -> Result<MadeFiles, FleetError> {
    let orders = files.iter().map(|(id, list)| (id.clone(), WorkerOrder::MakeFiles(list.clone()))).collect();
    let done = |reply| match reply {
        Reply::FilesMade(identities) => Some(identities),
        _ => None,
    };
    let results = controller.carry_out(orders, SHORT_ORDER, None, done).await?;
    let count = |id| files.get(id).map_or(0, Vec::len);
    let failed = results.iter().find_map(|(id, result)| match result {
        Err(loss) => Some((id.clone(), loss.reason, loss.message.clone())),
        Ok(made) if made.len() != count(id) => {
            let why = format!("it made {} files of {}", made.len(), count(id));
            Some((id.clone(), LossReason::Garbled, why))
        }
        Ok(_) => None,
    });
    let Some((id, reason, why)) = failed else {
        return Ok(results.into_iter().filter_map(|(id, made)| Some((id, made.ok()?))).collect());
    };
    let mut orders = BTreeMap::new();
    for (id, made) in results {
        let (Ok(made), Some(asked)) = (made, files.get(&id)) else { continue };
        let remove =
            asked.iter().zip(made).map(|(file, identity)| FileToRemove { path: file.path.clone(), identity });
        orders.insert(id, WorkerOrder::RemoveFiles(remove.collect()));
    }
    let done = |reply| matches!(reply, Reply::FilesRemoved).then_some(());
    let removed = controller.carry_out(orders, SHORT_ORDER, None, done).await?;
    let left: BTreeSet<String> =
        removed.iter().filter(|(_, r)| r.is_err()).map(|(id, _)| id.to_string()).collect();
    let left = match left.is_empty() {
        true => String::new(),
        false => format!("; and files made by {left:?} could not be removed again"),
    };
    let message = format!("worker {id} cannot make its files: {why}{left}");
    Err(if reason == LossReason::Refused { FleetError::usage(message) } else { FleetError::failed(message) })
}
