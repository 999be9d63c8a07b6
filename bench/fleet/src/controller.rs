//! The controller: which workers belong to the fleet, which are connected, and which event comes next.
//!
//! It lives on a thread of its own and does one thing after another. Operations ([`crate::operation`],
//! [`crate::step`]) are written as what they are, a sequence, and ask [`Controller::next`] for the next thing that
//! happens; what concerns the fleet as a whole (a worker asks to join, a connection ends) is handled there.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use loadline_base::clock::Nanos;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};
use tokio_rustls::TlsAcceptor;

use crate::connection::{MESSAGES_WAITING, WorkerConnection, accept};
use crate::copies::{ProgramCopies, shown_while};
use crate::error::FleetError;
use crate::event::{FleetEvent, Loss, LossReason};
use crate::event_queue::EventQueue;
use crate::identity::{LONGEST_NAME, WorkerId, WorkerInfo, is_name};
use crate::inbound::{ConnectionNumber, Inbound, Refusal};
use crate::launcher::{AnyLauncher, FleetKind, LaunchContext, LaunchedWorker, Launcher, OpenPlaces};
use crate::mid_step::MidStepOrder;
use crate::spec::FleetSpec;
use crate::tls::controller_config;
use crate::token::random_token;
use crate::wire::{Hello, Reply, ToWorker, WorkerOrder};

/// The version of this program: its workers have the same.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Messages of a launcher for people that wait.
const NOTICES_WAITING: usize = 256;
/// So many refused connections are reported one by one; then each time their number has doubled.
const REFUSALS_REPORTED: u64 = 20;

/// A worker of the fleet, there or not.
pub(crate) struct Member {
    pub(crate) info: WorkerInfo,
    pub(crate) connection: Option<WorkerConnection>,
    /// Whether the fleet's launcher starts it; otherwise it took an open place.
    pub(crate) is_launched: bool,
    /// Whether it has ever been there.
    pub(crate) known: bool,
    /// Whether it was waited for since it was lost.
    pub(crate) waited: bool,
    /// Why it is not there.
    pub(crate) absent: String,
    /// Whether the cause is what was asked of it (a usage error).
    pub(crate) misasked: bool,
}

/// An event that the controller waits for.
#[derive(Debug)]
pub(crate) enum ControllerEvent {
    /// A worker replied to an order.
    Reply { id: WorkerId, task: u64, reply: Reply },
    /// A worker is there.
    Joined(WorkerId),
    /// A worker is lost; the event has been emitted.
    Lost(WorkerId, Loss),
    /// The deadline passed to [`Controller::next`] has come.
    Tick,
    /// Workers are to be killed or started again while they measure.
    MidStep(MidStepOrder),
    /// The caller does not wait for the operation any more.
    Cancelled,
}

/// The controller of one fleet, owned by its thread.
pub(crate) struct Controller {
    pub(crate) address: SocketAddr,
    pub(crate) token: Arc<str>,
    /// What starts and ends the workers that the fleet launches.
    pub(crate) launcher: AnyLauncher,
    /// The places that other workers may take.
    pub(crate) open_places: Option<OpenPlaces>,
    pub(crate) members: BTreeMap<WorkerId, Member>,
    pub(crate) connections: HashMap<ConnectionNumber, WorkerId>,
    /// The workers of the fleet, for the handle to read.
    roster: Arc<Mutex<Vec<WorkerInfo>>>,
    inbox: mpsc::Receiver<Inbound>,
    pub(crate) events: EventQueue,
    /// Ends when the caller does not wait for the operation any more.
    pub(crate) alive: Option<oneshot::Receiver<()>>,
    /// What is to be done to workers in the step that runs.
    pub(crate) mid_step: Option<mpsc::Receiver<MidStepOrder>>,
    /// The agreed instant of start of the step that runs.
    pub(crate) zero: Option<Nanos>,
    last_task: u64,
    /// Refused connections that were reported.
    refusals_reported: u64,
    /// The count of refused connections at which the next one is reported, once [`REFUSALS_REPORTED`] were.
    next_reported: u64,
    pub(crate) leaving: bool,
    /// Messages of the launcher for people.
    noticed: Option<mpsc::Receiver<String>>,
}

impl Controller {
    /// Listens. No worker is connected yet.
    pub(crate) async fn listen(
        spec: &FleetSpec,
        mut events: EventQueue,
        roster: Arc<Mutex<Vec<WorkerInfo>>>,
    ) -> Result<Controller, FleetError> {
        let listen = spec.placement.listen_on(spec.listen);
        allow_open_files();
        let listener = TcpListener::bind(listen).await.map_err(|e| {
            FleetError::usage(format!(
                "the controller cannot listen on {listen}: {e}; give another address, or port 0 for a free one"
            ))
        })?;
        let address = listener
            .local_addr()
            .map_err(|e| FleetError::failed(format!("the controller's address on {listen}: {e}")))?;
        let token: Arc<str> = match &spec.token {
            Some(token) => token.as_str().into(),
            None => random_token()?.into(),
        };
        let (to_inbox, inbox) = mpsc::channel(MESSAGES_WAITING);
        tokio::spawn(accept(listener, token.clone(), TlsAcceptor::from(controller_config()?), to_inbox));
        events.emit(FleetEvent::Listening { address });
        Ok(Controller {
            address,
            token,
            launcher: spec.placement.launcher(),
            open_places: spec.placement.open_places(),
            members: BTreeMap::new(),
            connections: HashMap::new(),
            roster,
            inbox,
            events,
            alive: None,
            mid_step: None,
            zero: None,
            last_task: 0,
            refusals_reported: 0,
            next_reported: 0,
            leaving: false,
            noticed: None,
        })
    }

    /// Prepares the hosts of the workers that the fleet launches. None of them runs yet.
    pub(crate) async fn prepare_launcher(&mut self, spec: &FleetSpec) -> Result<(), FleetError> {
        let (copies, copied) = watch::channel(ProgramCopies::default());
        let (notices, noticed) = mpsc::channel(NOTICES_WAITING);
        let context = LaunchContext {
            controller: self.address,
            token: self.token.clone(),
            program: spec.program.clone(),
            copies,
            log_dir: spec.worker_log_dir.clone(),
            host_ip: None,
            goes_on_without: spec.goes_on_without,
            machine: None,
            notices,
        };
        let prepare = self.launcher.prepare(context);
        let noticed = self.noticed.insert(noticed);
        let events = RefCell::new(&mut self.events);
        let show = |copies| events.borrow_mut().emit(FleetEvent::Copying(copies));
        let prepare = telling(shown_while(prepare, copied, show), noticed, &events);
        // It may copy programs or make machines, for minutes.
        let prepared = tokio::select! {
            prepared = prepare => prepared?,
            () = gone(&mut self.alive) => return Err(FleetError::interrupted()),
        };
        for LaunchedWorker { id, node } in prepared {
            self.add_member(id, node, true);
        }
        Ok(())
    }

    /// Has the launcher end all workers and remove what it made, and emits what it tells meanwhile.
    pub(crate) async fn end_launcher(&mut self, deadline: Instant) {
        let end = self.launcher.end_all(deadline);
        match &mut self.noticed {
            Some(noticed) => telling(end, noticed, &RefCell::new(&mut self.events)).await,
            None => end.await,
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn token(&self) -> &str {
        &self.token
    }

    /// An operation begins; `alive` ends when the caller does not wait for it any more.
    pub(crate) fn begin(&mut self, alive: oneshot::Receiver<()>) {
        (self.alive, self.mid_step, self.zero) = (Some(alive), None, None);
    }

    fn add_member(&mut self, id: WorkerId, node: String, is_launched: bool) {
        let info = WorkerInfo { id: id.clone(), node, host: String::new(), pid: 0, version: String::new() };
        let absent = "it has not joined yet".into();
        self.members.insert(
            id,
            Member {
                info,
                connection: None,
                is_launched,
                known: false,
                waited: false,
                absent,
                misasked: false,
            },
        );
    }

    /// Waits for the next thing that happens, until a moment.
    pub(crate) async fn next(&mut self, until: Instant) -> ControllerEvent {
        loop {
            // Only the waiting is in the select: what has been received is dealt with as a whole.
            let inbound = tokio::select! {
                Some(inbound) = self.inbox.recv() => inbound,
                () = sleep_until(until) => return ControllerEvent::Tick,
                change = changed(&mut self.mid_step) => match change {
                    Some(change) => return ControllerEvent::MidStep(change),
                    // The other end is gone: nothing more can be ordered.
                    None => {
                        self.mid_step = None;
                        continue;
                    }
                },
                () = gone(&mut self.alive) => {
                    self.alive = None;
                    return ControllerEvent::Cancelled;
                }
            };
            if let Some(happening) = self.take(inbound).await {
                return happening;
            }
        }
    }

    /// Between operations: deals with one thing that happens.
    pub(crate) async fn idle(&mut self, inbound: Inbound) {
        self.take(inbound).await;
    }

    /// The next message of a connection, of whatever kind.
    pub(crate) async fn receive(&mut self) -> Option<Inbound> {
        self.inbox.recv().await
    }

    async fn take(&mut self, inbound: Inbound) -> Option<ControllerEvent> {
        match inbound {
            Inbound::JoinRequest { connection, hello, outgoing, answer } => {
                let joined = self.admit(&hello);
                let received = answer.send(joined.clone()).is_ok();
                let id = joined.ok()?;
                if !received {
                    // The connection has ended meanwhile: it never joined, and takes no place.
                    self.forget_unknown(&id);
                    return None;
                }
                self.settle_in(&id, hello, WorkerConnection { number: connection, outgoing });
                Some(ControllerEvent::Joined(id))
            }
            Inbound::Rejected { from, why, count } => {
                // Not every refusal is reported: the first one past each doubling is.
                if self.refusals_reported < REFUSALS_REPORTED || count >= self.next_reported {
                    self.refusals_reported += 1;
                    self.next_reported = (count + 1).next_power_of_two();
                    self.events.emit(FleetEvent::Rejected { from: from.to_string(), why, count });
                }
                None
            }
            Inbound::Reply { connection, task, reply } => {
                let id = self.connections.get(&connection)?.clone();
                Some(ControllerEvent::Reply { id, task, reply })
            }
            Inbound::Gone { connection, reason, why } => {
                let id = self.connections.get(&connection)?.clone();
                let loss = self.lose(&id, reason, why).await;
                Some(ControllerEvent::Lost(id, loss))
            }
        }
    }

    /// Gives the place of a joined worker free that was never there.
    fn forget_unknown(&mut self, id: &WorkerId) {
        if self.members.get(id).is_some_and(|m| !m.known && !m.is_launched) {
            self.members.remove(id);
        }
    }

    /// Whether this worker may join, and under which name.
    fn admit(&mut self, hello: &Hello) -> Result<WorkerId, Refusal> {
        let id = WorkerId(hello.name.clone());
        let refusal = |why: String, retry| Err(Refusal { why, retry });
        if self.leaving {
            return refusal("the fleet is over".into(), false);
        }
        // Figures of two generators do not belong in one result.
        if hello.version != VERSION {
            let why = format!(
                "it is loadline {}, and its controller is loadline {VERSION}: use the same version of loadline for both",
                hello.version.escape_default()
            );
            return refusal(why, false);
        }
        match (self.members.get(&id), self.open_places) {
            (Some(member), _) if member.connection.is_some() => {
                refusal(format!("a worker named {id} has joined already; give another --name"), true)
            }
            (Some(_), _) => Ok(id),
            (None, None) => refusal("this fleet starts its own workers and takes no others".into(), false),
            (None, Some(OpenPlaces { workers, .. })) => {
                let taken = self.members.values().filter(|member| !member.is_launched).count();
                if !id.0.split('/').all(is_name) || id.0.len() > LONGEST_NAME || !is_name(&hello.node) {
                    let why = "the name of the worker or of its node is invalid: use letters, digits, '-', '_' and '.'";
                    refusal(why.into(), false)
                } else if taken >= workers as usize {
                    let joined = match workers {
                        1 => "the only worker of this fleet has joined".into(),
                        _ => format!("all {workers} workers of this fleet have joined"),
                    };
                    refusal(joined, false)
                } else {
                    self.add_member(id.clone(), hello.node.clone(), false);
                    Ok(id)
                }
            }
        }
    }

    fn settle_in(&mut self, id: &WorkerId, hello: Hello, connection: WorkerConnection) {
        let Some(member) = self.members.get_mut(id) else { return };
        self.connections.insert(connection.number, id.clone());
        member.connection = Some(connection);
        member.waited = false;
        let Hello { host, pid, version, .. } = hello;
        member.info = WorkerInfo { host, pid, version, ..member.info.clone() };
        let worker = member.info.clone();
        let again = std::mem::replace(&mut member.known, true);
        self.events.emit(if again {
            FleetEvent::Restarted { worker }
        } else {
            FleetEvent::Joined { worker }
        });
        self.publish();
    }

    fn publish(&self) {
        let roster =
            self.members.values().filter(|m| m.known || m.is_launched).map(|m| m.info.clone()).collect();
        *self.roster.lock().unwrap_or_else(PoisonError::into_inner) = roster;
    }

    /// Notes that the connection of a worker has ended, and emits its loss.
    async fn lose(&mut self, id: &WorkerId, reason: LossReason, why: String) -> Loss {
        let leaving = self.leaving;
        let mut message = why;
        if let Some(member) = self.members.get_mut(id) {
            if let Some(connection) = member.connection.take() {
                self.connections.remove(&connection.number);
            }
            if reason == LossReason::Died
                && !leaving
                && let Some(exit) = self.launcher.exit_of_lost(id).await
            {
                message = exit.message;
            }
            member.absent = format!("it was lost: {message}");
        }
        self.report_loss(id, reason, message)
    }

    /// Emits the loss of a worker that did not do its part.
    pub(crate) fn report_loss(&mut self, id: &WorkerId, reason: LossReason, message: String) -> Loss {
        let after_s = self.zero.map(|zero| (Nanos::now().0 as f64 - zero.0 as f64) / 1e9);
        let loss = Loss { reason, message, unix_ms: unix_ms(), after_s };
        if !self.leaving {
            self.events.emit(FleetEvent::Lost { worker: self.info(id), loss: loss.clone() });
        }
        loss
    }

    /// A worker of the fleet, there or not.
    pub(crate) fn info(&self, id: &WorkerId) -> WorkerInfo {
        self.members.get(id).map_or_else(
            || WorkerInfo {
                id: id.clone(),
                node: String::new(),
                host: String::new(),
                pid: 0,
                version: String::new(),
            },
            |m| m.info.clone(),
        )
    }

    /// Whether this worker belongs to the fleet.
    pub(crate) fn has(&self, id: &WorkerId) -> bool {
        self.members.contains_key(id)
    }

    /// Why a worker is not there; `None` if it is.
    pub(crate) fn absent(&self, id: &WorkerId) -> Option<String> {
        match self.members.get(id) {
            Some(member) => member.connection.is_none().then(|| member.absent.clone()),
            None => Some("it does not belong to the fleet".into()),
        }
    }

    /// All workers of the fleet.
    pub(crate) fn ids(&self) -> BTreeSet<WorkerId> {
        self.members.keys().cloned().collect()
    }

    /// Sends an order and returns its number. `None`: the worker is not connected, or does not read; then its loss follows.
    pub(crate) fn order(&mut self, id: &WorkerId, order: WorkerOrder) -> Option<u64> {
        let task = self.new_task();
        self.send(id, ToWorker::Do { task, order }).then_some(task)
    }

    /// Orders a worker to stop what it does; it replies `Stopped` with this number.
    pub(crate) fn send_stop(&mut self, id: &WorkerId) -> Option<u64> {
        let task = self.new_task();
        self.send(id, ToWorker::Stop { task }).then_some(task)
    }

    fn new_task(&mut self) -> u64 {
        self.last_task += 1;
        self.last_task
    }

    pub(crate) fn send(&mut self, id: &WorkerId, word: ToWorker) -> bool {
        let connection = self.members.get(id).and_then(|m| m.connection.as_ref());
        connection.is_some_and(|connection| connection.outgoing.try_send(word).is_ok())
    }
}

/// Does `work`, and emits what the launcher tells people meanwhile.
async fn telling<T>(
    work: impl Future<Output = T>,
    noticed: &mut mpsc::Receiver<String>,
    events: &RefCell<&mut EventQueue>,
) -> T {
    tokio::pin!(work);
    loop {
        let told = tokio::select! {
            // What was told before the end comes first.
            biased;
            Some(told) = noticed.recv() => told,
            result = &mut work => {
                while let Ok(told) = noticed.try_recv() {
                    events.borrow_mut().emit(FleetEvent::Notice(told));
                }
                return result;
            }
        };
        events.borrow_mut().emit(FleetEvent::Notice(told));
    }
}

/// Waits until the caller does not wait for the operation any more; for ever if there is no operation.
async fn gone(alive: &mut Option<oneshot::Receiver<()>>) {
    match alive {
        // It carries nothing: either way the other end is gone.
        Some(alive) => drop(alive.await),
        None => std::future::pending().await,
    }
}

/// Waits for something that is to be done in the middle of a step; for ever if there is no channel for it.
async fn changed(mid_step: &mut Option<mpsc::Receiver<MidStepOrder>>) -> Option<MidStepOrder> {
    match mid_step {
        Some(changes) => changes.recv().await,
        None => std::future::pending().await,
    }
}

/// Lets this process open as many files as it may: each worker's connection is one, and the series and the processes
/// of local workers take more. The usual soft limit of 1024 is less than a large fleet needs.
fn allow_open_files() {
    // Where it fails, the limit stays: should it be too low, what cannot be opened says so.
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
    {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// Milliseconds since 1970 (UTC).
pub(crate) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_controller_may_open_as_many_files_as_it_is_allowed_at_all() {
        allow_open_files();
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        assert_eq!(soft, hard);
    }
}
