//! One host of a fleet: a task that owns its connection, opens it (again), and carries out what the launcher asks.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::messages::{AgentOrder, FromAgent, HostAnswer, HostQuestion, KEEP_ALIVE, ToAgent};
use super::program::Programs;
use super::session::{HostAddress, Session};
use crate::error::{ErrorKind, FleetError};
use crate::identity::WorkerId;
use crate::launcher::WorkerExit;
use crate::node::NodeSpec;
use crate::orders::KeeperAnswer;
use crate::started::StartedMachine;

/// How long an agent may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);
/// How long an agent may take to end workers: longer than it waits for processes that hang.
const END_LIMIT: Duration = Duration::from_secs(4);
/// How long `ssh` may take to end once its agent has.
const CLOSE_LIMIT: Duration = Duration::from_millis(500);
/// A host that could not be reached is not tried again for so long: all its workers ask at once.
const RETRY_AFTER: Duration = Duration::from_secs(10);
/// Requests of the launcher that wait: one for each worker, and some more.
const REQUESTS_WAITING: usize = 4096 + 16;

/// What an agent needs for starting workers.
#[derive(Debug, Clone)]
pub(crate) struct Begin {
    pub(crate) node: NodeSpec,
    pub(crate) workers: u32,
    pub(crate) controller: SocketAddr,
    /// Whether workers dial the controller's own address, and not a forwarded port of their host.
    pub(crate) direct: bool,
    pub(crate) token: Arc<str>,
    /// What runs the virtual machine that the host is, and how long it took until SSH reached it, until its agent knows.
    pub(crate) started: Option<(String, Duration)>,
}

/// A request to the task.
pub(crate) enum HostRequest {
    /// Be connected, and ready to start workers.
    Prepare(oneshot::Sender<Result<(), FleetError>>),
    /// Start a worker. Its end, or why it cannot be started, is among the exits.
    Launch(WorkerId),
    /// End these workers.
    End(BTreeSet<WorkerId>, oneshot::Sender<()>),
    /// Do something about a machine. Without an answer, the connection has ended.
    Order(AgentOrder, oneshot::Sender<KeeperAnswer>),
    /// Examine disks and folders.
    Inspect(HostQuestion, oneshot::Sender<Result<HostAnswer, FleetError>>),
    /// Wait so long for the workers, end all, and close the connection.
    EndAll(Duration, oneshot::Sender<()>),
}

/// The exits of a host's workers that are not started again yet.
#[derive(Debug, Default)]
pub(crate) struct Exits {
    all: Mutex<BTreeMap<WorkerId, WorkerExit>>,
    changed: Notify,
}

impl Exits {
    pub(crate) fn of(&self, worker: &WorkerId) -> Option<WorkerExit> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).get(worker).cloned()
    }

    /// The same, waiting so long for it.
    pub(crate) async fn of_within(&self, worker: &WorkerId, limit: Duration) -> Option<WorkerExit> {
        let exit = async {
            loop {
                let changed = self.changed.notified();
                if let Some(exit) = self.of(worker) {
                    return exit;
                }
                changed.await;
            }
        };
        timeout(limit, exit).await.ok()
    }

    fn add(&self, worker: WorkerId, exit: WorkerExit) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).insert(worker, exit);
        self.changed.notify_waiters();
    }

    pub(crate) fn forget(&self, worker: &WorkerId) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).remove(worker);
    }
}

/// The launcher's end of the task. Dropping it ends the connection, the agent and its workers.
pub(crate) struct Host {
    pub(crate) requests: mpsc::Sender<HostRequest>,
    pub(crate) exits: Arc<Exits>,
    connected: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Host {
    pub(crate) fn start(address: HostAddress, programs: Programs, begin: Option<Begin>) -> Host {
        let (requests, receive) = mpsc::channel(REQUESTS_WAITING);
        let exits = Arc::<Exits>::default();
        let connected = Arc::<AtomicBool>::default();
        let task = HostTask {
            address,
            programs,
            begin,
            session: None,
            running: BTreeSet::new(),
            ordered: BTreeMap::new(),
            orders: 0,
            failure: None,
            exits: Arc::clone(&exits),
            connected: Arc::clone(&connected),
        };
        Host { requests, exits, connected, task: tokio::spawn(task.run(receive)) }
    }

    /// Hands a request to the task. `false` if too many wait.
    pub(crate) fn ask(&self, request: HostRequest) -> bool {
        self.requests.try_send(request).is_ok()
    }

    /// Orders something about a machine. The answer is an error if the connection ends before.
    pub(crate) fn order(&self, order: AgentOrder) -> oneshot::Receiver<KeeperAnswer> {
        let (answer, answered) = oneshot::channel();
        // If too many requests wait, this one is dropped, and so is its answer.
        self.ask(HostRequest::Order(order, answer));
        answered
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct HostTask {
    address: HostAddress,
    programs: Programs,
    begin: Option<Begin>,
    session: Option<Session>,
    /// Workers that were started, and of whose end nothing is known.
    running: BTreeSet<WorkerId>,
    /// Who waits for the answer to an order, by its number.
    ordered: BTreeMap<u64, oneshot::Sender<KeeperAnswer>>,
    /// The number of the last order.
    orders: u64,
    /// When the host could not be reached last, and why.
    failure: Option<(Instant, FleetError)>,
    exits: Arc<Exits>,
    connected: Arc<AtomicBool>,
}

impl HostTask {
    async fn run(mut self, mut requests: mpsc::Receiver<HostRequest>) {
        let mut tick = interval(KEEP_ALIVE);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                request = requests.recv() => match request {
                    None => return,
                    Some(request) => if self.handle(request).await { return },
                },
                message = receive(&mut self.session) => match message {
                    Some(message) => self.take(message),
                    None => self.lose("the connection to its host ended").await,
                },
                _ = tick.tick() => drop(self.send(&ToAgent::KeepAlive).await),
            }
        }
    }

    /// Carries out one request. `true`: it was the last one.
    async fn handle(&mut self, request: HostRequest) -> bool {
        // Whoever asked may have gone.
        match request {
            HostRequest::Prepare(answer) => drop(answer.send(self.connect().await)),
            HostRequest::Launch(worker) => self.launch(worker).await,
            HostRequest::Order(order, answer) => {
                self.orders += 1;
                if self.send(&ToAgent::Order { number: self.orders, order }).await {
                    self.ordered.insert(self.orders, answer);
                }
            }
            HostRequest::Inspect(question, answer) => drop(answer.send(self.inspect(question).await)),
            HostRequest::End(workers, done) => {
                self.running.retain(|worker| !workers.contains(worker));
                let is_sent = self.send(&ToAgent::End(workers.into_iter().collect())).await;
                if is_sent
                    && self.answer(END_LIMIT, |m| matches!(m, FromAgent::Ended).then_some(())).await.is_none()
                {
                    // What it does not end, the end of the connection does.
                    self.lose("its host does not answer").await;
                }
                let _ = done.send(());
            }
            HostRequest::EndAll(wait, done) => {
                if self.send(&ToAgent::EndAll { wait }).await {
                    let ended = |m| matches!(m, FromAgent::Ended).then_some(());
                    self.answer(wait + END_LIMIT, ended).await;
                    if let Some(session) = &mut self.session {
                        session.ends_within(CLOSE_LIMIT).await;
                    }
                }
                self.session = None;
                let _ = done.send(());
                return true;
            }
        }
        false
    }

    /// Connects if there is no connection, and gets the agent ready.
    async fn connect(&mut self) -> Result<(), FleetError> {
        if self.session.is_some() {
            return Ok(());
        }
        if let Some((at, error)) = &self.failure
            && at.elapsed() < RETRY_AFTER
        {
            return Err(error.clone());
        }
        let result = self.connect_anew().await;
        self.failure = result.as_ref().err().map(|error| (Instant::now(), error.clone()));
        self.connected.store(result.is_ok(), Ordering::Relaxed);
        if result.is_err() {
            self.session = None;
        }
        result
    }

    async fn connect_anew(&mut self) -> Result<(), FleetError> {
        let begun = Instant::now();
        let forward = self.begin.as_ref().filter(|begin| !begin.direct).map(|begin| begin.controller);
        let mut session = Session::open(&self.address, &self.programs, forward).await?;
        let Some(begin) = self.begin.clone() else {
            self.session = Some(session);
            return Ok(());
        };
        let controller = match (begin.direct, session.ready.client) {
            (false, _) => SocketAddr::from(([127, 0, 0, 1], session.forwarded_port().await?)),
            (true, Some(client)) if begin.controller.ip().is_unspecified() => {
                SocketAddr::new(client, begin.controller.port())
            }
            (true, None) if begin.controller.ip().is_unspecified() => {
                return Err(self.address.usage(
                    "it does not know the address of this machine: write it in [fleet] listen, such as \"192.168.7.1:7400\"",
                ));
            }
            (true, _) => begin.controller,
        };
        let Begin { node, workers, token, started, .. } = begin;
        self.session = Some(session);
        let machine =
            started.map(|(what, took)| Box::new(StartedMachine::new(&what, took + begun.elapsed())));
        let message =
            ToAgent::Begin { node: Box::new(node), workers, controller, token: token.to_string(), machine };
        let answer = match self.send(&message).await {
            true => {
                self.answer(ANSWER_LIMIT, |message| match message {
                    FromAgent::Begun => Some(Ok(())),
                    FromAgent::Refused(why) => Some(Err(why)),
                    _ => None,
                })
                .await
            }
            false => None,
        };
        match answer {
            Some(Ok(())) => {
                // A worker that is started again says nothing of the machine's start.
                self.begin.iter_mut().for_each(|begin| begin.started = None);
                Ok(())
            }
            Some(Err(why)) => Err(self.address.usage(why)),
            None => Err(self.address.failed("the program there does not answer")),
        }
    }

    async fn launch(&mut self, worker: WorkerId) {
        if let Err(error) = self.connect().await {
            let usage = error.kind == ErrorKind::Usage;
            self.exits.add(worker, WorkerExit { message: error.message, usage });
            return;
        }
        self.running.insert(worker.clone());
        if !self.send(&ToAgent::Launch(worker)).await {
            self.lose("the connection to its host ended").await;
        }
    }

    async fn inspect(&mut self, question: HostQuestion) -> Result<HostAnswer, FleetError> {
        self.connect().await?;
        let answer = match self.send(&ToAgent::Inspect(question)).await {
            true => {
                self.answer(ANSWER_LIMIT, |message| match message {
                    FromAgent::Inspected(answer) => Some(answer),
                    _ => None,
                })
                .await
            }
            false => None,
        };
        answer.ok_or_else(|| self.address.failed("the program there does not answer"))
    }

    async fn send(&mut self, message: &ToAgent) -> bool {
        match &mut self.session {
            Some(session) => session.send(message).await,
            None => false,
        }
    }

    /// The first message that `is` takes; others are taken as they come. `None`: the connection ended, or not in time.
    async fn answer<T>(&mut self, limit: Duration, is: impl Fn(FromAgent) -> Option<T>) -> Option<T> {
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let message = timeout(left, self.session.as_mut()?.receive()).await.ok()??;
            if let Some(answer) = is(message.clone()) {
                return Some(answer);
            }
            self.take(message);
        }
    }

    fn take(&mut self, message: FromAgent) {
        match message {
            FromAgent::Exited { worker, message, usage } if self.running.remove(&worker) => {
                self.exits.add(worker, WorkerExit { message, usage });
            }
            // Whoever ordered it may not wait any more.
            FromAgent::Answered { number, answer } => {
                drop(self.ordered.remove(&number).map(|waits| waits.send(answer)));
            }
            _ => {}
        }
    }

    /// Gives the connection up: whatever ran there ends.
    async fn lose(&mut self, what: &str) {
        let Some(mut session) = self.session.take() else { return };
        self.connected.store(false, Ordering::Relaxed);
        self.ordered.clear();
        let why = session.why_ended().await;
        for worker in std::mem::take(&mut self.running) {
            let message = self.address.failed(format!("{what} ({why})")).message;
            self.exits.add(worker, WorkerExit { message, usage: false });
        }
    }
}

/// The next message of a connection; waits for ever if there is none.
async fn receive(session: &mut Option<Session>) -> Option<FromAgent> {
    match session {
        Some(session) => session.receive().await,
        None => std::future::pending().await,
    }
}
