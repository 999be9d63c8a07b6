//! A worker's whole life: join, obey, leave.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use loadline_base::clock::Nanos;
use loadline_load::host::Inventory;
use nix::sys::signal::{SigSet, Signal};
use tokio::io::{ReadHalf, WriteHalf};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::clock_offset::{ClockOffset, Exchange, estimate};
use crate::error::FleetError;
use crate::frame::{self, FrameReader, parse};
use crate::host_cpu::HostCpuWatch;
use crate::host_seconds::HostSeconds;
use crate::identity::WorkerId;
use crate::join::{WorkerOptions, join};
use crate::load_thread::{LoadThread, Work};
use crate::outside::Outside;
use crate::process::{given_host_ip, is_orphan};
use crate::started::FirstWorker;
use crate::tls::EncryptedStream;
use crate::token::check_token;
use crate::wire::{FailureKind, HEARTBEAT, Reply, SILENCE_LIMIT, ToController, ToWorker, WorkerOrder};

/// How long an I/O in flight is waited for when the worker ends; then the process ends with it.
const LEAVE_LIMIT: Duration = Duration::from_secs(3);
/// Questions for the controller's time before each run, at least: the shortest round trip of eight is usually good enough.
const CLOCK_QUESTIONS: usize = 8;
/// If it is not as good as this, more are asked: other workers of a busy host ask at the same time.
const GOOD_CLOCK_ERROR: Nanos = Nanos(100_000);
/// For so long, from the first question on.
const CLOCK_LIMIT: Nanos = Nanos(500_000_000);
/// The shortest pause between two of those, and by how much a pause may be longer.
const CLOCK_PAUSE: (Nanos, Nanos) = (Nanos(2_000_000), Nanos(10_000_000));

/// Joins a fleet and works until the controller dismisses it (`Ok`), is gone, refuses it, or until a signal. `tell`
/// gets messages for a person at the terminal. To be called before the process starts any thread. Threads may be
/// left behind in an I/O that hangs: end the process when it returns.
pub fn run_worker(options: WorkerOptions, tell: &mut dyn FnMut(&str)) -> Result<(), FleetError> {
    check_token(&options.token)?;
    confine(&options)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // For looking up a name.
        .max_blocking_threads(1)
        .build()
        .map_err(|e| FleetError::failed(format!("cannot start a worker: {e}")))?;
    let result = runtime.block_on(async {
        let mut interrupted = Interruption::watch()?;
        let (reader, writer, id, ip) = tokio::select! {
            joined = join(&options, tell) => joined?,
            _ = interrupted.recv() => return Err(FleetError::interrupted()),
        };
        tell(&format!("joined {} as {id}", options.join));
        let outside = options.inside.as_ref().map(Outside::connect).transpose().map_err(|e| {
            FleetError::failed(format!("worker {id} does not reach the keeper of its virtual machine: {e}"))
        })?;
        let load = LoadThread::start(given_host_ip().unwrap_or(ip), outside, FirstWorker::here())
            .map_err(|e| FleetError::failed(format!("worker {id} cannot start its thread: {e}")))?;
        let mut session = Session::new(options.join, id, writer, load);
        let result = session.obey(reader, &mut interrupted).await;
        session.end().await;
        result
    });
    // A name that is still being looked up must not keep the process.
    runtime.shutdown_background();
    result
}

/// Takes on the limits of the worker's node, before there is anything that they would not reach.
pub(crate) fn confine(options: &WorkerOptions) -> Result<(), FleetError> {
    // A child inherits what its controller's threads have blocked, and Ctrl-C is often among it.
    SigSet::all()
        .thread_unblock()
        .map_err(|e| FleetError::failed(format!("cannot unblock this worker's signals: {e}")))?;
    if options.child {
        // With kill -9 on the controller, a worker that is stopped (SIGSTOP) could not see the connection end.
        nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).map_err(|e| {
            FleetError::failed(format!("cannot bind this worker's life to its controller's: {e}"))
        })?;
        // The signal comes only for a death that is still ahead.
        if is_orphan() {
            return Err(FleetError::failed("the controller that started this worker is gone"));
        }
    }
    for group in &options.cgroups {
        let procs = group.join("cgroup.procs");
        // 0 stands for the process that writes it.
        std::fs::write(&procs, "0").map_err(|e| {
            FleetError::usage(format!("cannot move into the control group {}: {e}", procs.display()))
        })?;
    }
    if let Some(cpus) = &options.cpus {
        cpus.apply().map_err(|e| {
            FleetError::usage(format!("cannot run on the CPUs {cpus}: {e}; see which there are with nproc"))
        })?;
    }
    Ok(())
}

/// Ctrl-C, or a polite kill.
struct Interruption {
    int: tokio::signal::unix::Signal,
    term: tokio::signal::unix::Signal,
}

impl Interruption {
    fn watch() -> Result<Interruption, FleetError> {
        let watch =
            |kind| signal(kind).map_err(|e| FleetError::failed(format!("cannot watch for signals: {e}")));
        Ok(Interruption { int: watch(SignalKind::interrupt())?, term: watch(SignalKind::terminate())? })
    }

    async fn recv(&mut self) {
        tokio::select! {
            _ = self.int.recv() => {}
            _ = self.term.recv() => {}
        }
    }
}

/// One worker in a fleet.
struct Session {
    controller: String,
    id: WorkerId,
    writer: WriteHalf<EncryptedStream>,
    load: LoadThread,
    /// Tells the load thread to leave off what it does.
    stop: Arc<AtomicBool>,
    exchanges: Vec<Exchange>,
    /// When the next question for the controller's time is due.
    ask_at: Option<Nanos>,
    offset: Option<ClockOffset>,
    /// The order to prepare whose disks are ready, while the clock is not agreed yet.
    prepared: Option<u64>,
    /// Warm-up, window and cool-down of what is being prepared.
    phases: (Nanos, Nanos, Nanos),
    host: Option<HostCpuWatch>,
    /// What the host is, if this worker is to watch it while what is prepared runs.
    inventory: Option<Box<Inventory>>,
    /// The number of the order to run, and the watch over the host.
    seconds: Option<(u64, HostSeconds)>,
}

impl Session {
    fn new(
        controller: String,
        id: WorkerId,
        writer: WriteHalf<EncryptedStream>,
        load: LoadThread,
    ) -> Session {
        Session {
            controller,
            id,
            writer,
            load,
            stop: Arc::default(),
            exchanges: Vec::new(),
            ask_at: None,
            offset: None,
            prepared: None,
            phases: (Nanos(0), Nanos(0), Nanos(0)),
            host: None,
            inventory: None,
            seconds: None,
        }
    }

    /// Carries out orders until the controller dismisses the worker or is gone.
    async fn obey(
        &mut self,
        mut reader: FrameReader<ReadHalf<EncryptedStream>>,
        interrupted: &mut Interruption,
    ) -> Result<(), FleetError> {
        let mut tick = interval(HEARTBEAT);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Ticks without a word, and not a span of time: a worker that was itself stopped for a while finds what was
        // said meanwhile before it has counted far.
        let mut silent_ticks = 0;
        loop {
            let next_second = self.seconds.as_ref().and_then(|(_, seconds)| seconds.next());
            let look_at_host =
                self.host.as_ref().and_then(HostCpuWatch::next).into_iter().chain(next_second).min();
            tokio::select! {
                read = reader.next() => {
                    silent_ticks = 0;
                    let frame = read.map_err(|e| self.gone(&e.to_string()))?;
                    let frame = frame.ok_or_else(|| self.gone("it closed the connection"))?;
                    match parse(&frame).map_err(|e| self.gone(&e.to_string()))? {
                        ToWorker::Bye => return Ok(()),
                        message => self.handle(message).await?,
                    }
                }
                reply = self.load.replies.recv() => match reply {
                    Some((task, reply)) => self.reply(task, reply).await?,
                    None => {
                        let why = "the worker's load thread has died; its message is on standard error".to_string();
                        self.send(&ToController::Leaving { why: why.clone() }).await?;
                        return Err(FleetError::failed(format!("worker {}: {why}", self.id)));
                    }
                },
                _ = tick.tick() => {
                    silent_ticks += 1;
                    if silent_ticks > SILENCE_LIMIT.as_secs() / HEARTBEAT.as_secs() {
                        return Err(self.gone(&format!("no message arrived for {SILENCE_LIMIT:?}")));
                    }
                    self.send(&ToController::Heartbeat).await?;
                }
                _ = sleep_until(look_at_host), if look_at_host.is_some() => {
                    self.host.iter_mut().for_each(|host| host.poll(Nanos::now()));
                    self.say_host_second().await?;
                }
                _ = sleep_until(self.ask_at), if self.ask_at.is_some() => {
                    self.ask_at = None;
                    self.send(&ToController::Ping { sent: Nanos::now() }).await?;
                }
                _ = interrupted.recv() => {
                    self.stop.store(true, Ordering::Relaxed);
                    self.send(&ToController::Leaving { why: "it was interrupted on its host".into() }).await?;
                    return Err(FleetError::interrupted());
                }
            }
        }
    }

    async fn handle(&mut self, message: ToWorker) -> Result<(), FleetError> {
        match message {
            ToWorker::Do { task, order } => self.start(task, order).await,
            ToWorker::Stop { task } => {
                self.stop.store(true, Ordering::Relaxed);
                (self.prepared, self.host, self.seconds) = (None, None, None);
                self.give(task, Work::Discard).await
            }
            ToWorker::Pong { sent, at } => {
                self.exchanges.push(Exchange { sent, at, received: Nanos::now() });
                if self.exchanges.len() < CLOCK_QUESTIONS {
                    return self.send(&ToController::Ping { sent: Nanos::now() }).await;
                }
                self.offset = estimate(&self.exchanges);
                if let Some(pause) = self.pause_before_more_questions() {
                    self.ask_at = Some(Nanos::now() + pause);
                    self.offset = None;
                    return Ok(());
                }
                match self.prepared.take() {
                    Some(task) => self.say_prepared(task).await,
                    None => Ok(()),
                }
            }
            ToWorker::Heartbeat | ToWorker::Bye => Ok(()),
            ToWorker::Challenge { .. } | ToWorker::Welcome { .. } | ToWorker::Refused { .. } => {
                Err(self.gone("it greets a worker that it has greeted"))
            }
        }
    }

    /// How long to wait before the controller is asked for its time again. `None` if the clock is known well enough, or if the
    /// controller was asked for long enough.
    fn pause_before_more_questions(&self) -> Option<Nanos> {
        let (first, last) = (self.exchanges.first()?, self.exchanges.last()?);
        let is_good = estimate(&self.exchanges).is_some_and(|offset| offset.error <= GOOD_CLOCK_ERROR);
        let (least, more) = CLOCK_PAUSE;
        // The last digits of a clock differ between workers.
        let pause = Nanos(least.0 + last.received.0 % more.0);
        (!is_good && last.received.since(first.sent) < CLOCK_LIMIT).then_some(pause)
    }

    async fn start(&mut self, task: u64, order: WorkerOrder) -> Result<(), FleetError> {
        if let WorkerOrder::Run { clock: Some(clock), .. } = &order {
            self.offset = Some(ClockOffset::told(clock));
        }
        let order = match order {
            WorkerOrder::Prepare { job, watch } => {
                self.phases = (job.warm_up.0.into(), job.measure.0.into(), job.cool_down.0.into());
                (self.host, self.inventory, self.seconds) = (None, None, None);
                // The clock is agreed on while the disks are opened.
                (self.exchanges, self.offset, self.ask_at) =
                    (Vec::with_capacity(CLOCK_QUESTIONS), None, None);
                self.send(&ToController::Ping { sent: Nanos::now() }).await?;
                WorkerOrder::Prepare { job, watch }
            }
            WorkerOrder::Run { start, hold_back, late: true, clock } => {
                // Its host's CPUs were not watched from the beginning.
                (self.host, self.seconds, self.inventory) = (None, None, None);
                match self.offset.and_then(|offset| offset.to_local(start)) {
                    Some(start) => WorkerOrder::Run { start, hold_back, late: true, clock },
                    None => {
                        let message = "the controller's clock makes no sense".to_string();
                        let failed = Reply::Failed { kind: FailureKind::Failed, message };
                        return self.send(&ToController::Reply { task, reply: failed }).await;
                    }
                }
            }
            WorkerOrder::Run { start, hold_back, late: false, clock } => {
                let now = Nanos::now();
                match self.offset.and_then(|offset| offset.to_local(start)) {
                    Some(start) if start > now => {
                        let begin = Nanos(start.0.saturating_add(self.phases.0.0));
                        let end = Nanos(begin.0.saturating_add(self.phases.1.0));
                        self.host = Some(HostCpuWatch::new(begin, end));
                        let over = Nanos(end.0.saturating_add(self.phases.2.0));
                        let watch = |host: Box<Inventory>| HostSeconds::new(*host, start, begin, over);
                        self.seconds = self.inventory.take().map(|host| (task, watch(host)));
                        WorkerOrder::Run { start, hold_back, late: false, clock }
                    }
                    late => {
                        let late = late.map_or(0.0, |start| now.since(start).as_millis());
                        let message = format!("the start message arrived {late:.0} ms after the start time");
                        let failed = Reply::Failed { kind: FailureKind::Failed, message };
                        return self.send(&ToController::Reply { task, reply: failed }).await;
                    }
                }
            }
            other => other,
        };
        self.stop = Arc::default();
        self.give(task, Work::Do(order)).await
    }

    async fn give(&mut self, task: u64, work: Work) -> Result<(), FleetError> {
        if self.load.give(task, work, self.stop.clone()) {
            return Ok(());
        }
        let message = "it is still busy with earlier orders".to_string();
        let reply = Reply::Failed { kind: FailureKind::Failed, message };
        self.send(&ToController::Reply { task, reply }).await
    }

    /// Passes on what the load thread replies, with what only the connection knows.
    async fn reply(&mut self, task: u64, mut reply: Reply) -> Result<(), FleetError> {
        match &mut reply {
            Reply::Prepared { host, .. } => {
                self.inventory = host.take();
                if self.offset.is_none() {
                    self.prepared = Some(task);
                    return Ok(());
                }
                return self.say_prepared(task).await;
            }
            Reply::Failed { .. } => self.seconds = None,
            Reply::Measured(measured) => {
                measured.host_cpu = self.host.take().and_then(|mut host| {
                    // The end of the window and of the load are often one.
                    host.poll(Nanos::now());
                    host.result()
                });
                // The last second has ended too, and is reported before the order ends.
                self.say_host_second().await?;
                self.seconds = None;
            }
            _ => {}
        }
        self.send(&ToController::Reply { task, reply }).await
    }

    async fn say_prepared(&mut self, task: u64) -> Result<(), FleetError> {
        let reply = match self.offset.and_then(ClockOffset::known) {
            Some(clock) => Reply::Prepared { clock, host: self.inventory.clone() },
            None => Reply::Failed {
                kind: FailureKind::Failed,
                message: "the controller's clock makes no sense".into(),
            },
        };
        self.send(&ToController::Reply { task, reply }).await
    }

    /// Tells what the host did in the last second, if this worker watches it and it is time.
    async fn say_host_second(&mut self) -> Result<(), FleetError> {
        let sent =
            self.seconds.as_mut().and_then(|(task, seconds)| Some((*task, seconds.poll(Nanos::now())?)));
        match sent {
            Some((task, second)) => {
                let reply = Reply::HostSecond(Box::new(second));
                self.send(&ToController::Reply { task, reply }).await
            }
            None => Ok(()),
        }
    }

    async fn send(&mut self, message: &ToController) -> Result<(), FleetError> {
        frame::send(&mut self.writer, message).await.map_err(|e| self.gone(&e.to_string()))
    }

    fn gone(&self, why: &str) -> FleetError {
        FleetError::failed(format!(
            "worker {}: the controller at {} is gone ({why}); the load was stopped",
            self.id, self.controller
        ))
    }

    /// Stops the load and waits, for a while, until no I/O is in flight.
    async fn end(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let LoadThread { work, mut replies } = self.load;
        drop(work);
        let _ = timeout(LEAVE_LIMIT, async { while replies.recv().await.is_some() {} }).await;
        let _ = timeout(LEAVE_LIMIT, tokio::io::AsyncWriteExt::shutdown(&mut self.writer)).await;
    }
}

async fn sleep_until(moment: Option<Nanos>) {
    match moment {
        Some(moment) => sleep(moment.since(Nanos::now()).into()).await,
        None => std::future::pending().await,
    }
}
