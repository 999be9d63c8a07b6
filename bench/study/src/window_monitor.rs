//! Watches one window: does faults to the storage at their times, starts workers of a node that is gone again where their
//! volumes are, and reads the storage's own counters at both ends of the window.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use loadline_base::figures::counted;
use loadline_fleet::{Manner, MidStepOrder, Restart, WorkerId};
use loadline_load::Job;
use loadline_target::error::ErrorKind;
use loadline_target::{Counters, Fault, FaultKind, Storage, TargetError, Traffic, VolumeSpec};
use tokio::sync::{mpsc, oneshot};

use crate::file::{Access, TimedFault};
use crate::migrations::{self, MigratedMachine, Outcome};
use crate::orders::{Asked, Inbox, MoveAnswer, MoveOrder, Which};
use crate::timeline::{DoneFault, Moved};
use crate::volumes::{place, target};

/// How often the cluster is polled while something is awaited there. Each poll is a request to every node.
const POLL_EVERY: Duration = Duration::from_millis(50);
/// How often the clock is read.
const TICK: Duration = Duration::from_millis(5);
/// Copies that have been in sync for so long stay so: a node that has just come is not known of at once.
const STAYS: Duration = Duration::from_millis(1_500);
/// No machine is migrated in the last moments of a window.
const MIGRATES_BEFORE: Duration = Duration::from_secs(2);
/// The same between hosts, where a process is started first.
const MIGRATES_BETWEEN_HOSTS_BEFORE: Duration = Duration::from_secs(5);
/// How long the fleet may take to kill workers.
const KILLED_WITHIN: Duration = Duration::from_secs(10);

/// What is done and watched in one window.
pub(crate) struct WindowMonitor {
    /// When the window begins.
    pub(crate) begin: Instant,
    /// The window's length.
    pub(crate) length: Duration,
    pub(crate) faults: Vec<TimedFault>,
    /// Whether the storage's own counters are read at both ends.
    pub(crate) counts: bool,
    /// Each worker's volumes, in the order of its disks.
    pub(crate) volumes: BTreeMap<WorkerId, Vec<VolumeSpec>>,
    /// The node on whose host each worker runs; `None` if all are on this machine.
    pub(crate) places: Option<BTreeMap<WorkerId, String>>,
    /// The nodes of the fleet.
    pub(crate) nodes: Vec<String>,
    /// What each worker does in the step.
    pub(crate) jobs: BTreeMap<WorkerId, Job>,
    pub(crate) access: Access,
    /// To the fleet.
    pub(crate) changes: mpsc::Sender<MidStepOrder>,
    /// Orders of people, for this window.
    pub(crate) orders: Option<Inbox>,
    /// The nodes to which machines were migrated, by worker.
    pub(crate) migrated: BTreeMap<WorkerId, String>,
    /// Set when the step is over, also after an error.
    pub(crate) over: Arc<AtomicBool>,
}

/// What was seen in a window.
#[derive(Default)]
pub(crate) struct WindowObservations {
    /// What was done, in the order of time.
    pub(crate) events: Vec<DoneFault>,
    /// What the nodes of the run's own cluster counted, and in how many seconds.
    pub(crate) counted: Option<(Counters, f64)>,
    /// What the network of each of these nodes carried, if each has one of its own, and in how many seconds.
    pub(crate) carried: Option<(BTreeMap<String, Traffic>, f64)>,
    /// Whether every copy was in sync at the beginning and at the end.
    pub(crate) in_sync: bool,
}

/// What the nodes have counted so far, and when they were asked.
fn count(storage: &Storage) -> Option<(Counters, Instant)> {
    let begun = Instant::now();
    let counters = storage.own()?.counters().ok()?;
    Some((counters, begun + begun.elapsed() / 2))
}

/// What the network of each node has carried so far, and when that was read; `None` if nodes have no network of their own.
fn carried(storage: &Storage) -> Option<(BTreeMap<String, Traffic>, Instant)> {
    let traffic = storage.own()?.traffic().ok()?;
    (!traffic.is_empty()).then(|| (traffic, Instant::now()))
}

/// The node that follows on another one, in a circle.
fn next_node(nodes: &[String], node: &str) -> Option<String> {
    let at = nodes.iter().position(|name| name == node)?;
    Some(nodes[(at + 1) % nodes.len()].clone())
}

/// How workers end with a fault.
fn manner(what: FaultKind) -> Manner {
    if what == FaultKind::CrashMachine { Manner::Crash } else { Manner::Kill }
}

/// A worker whose host is gone, on its way to where its volumes are.
struct WorkerMove {
    worker: WorkerId,
    /// The fault that it is counted with.
    event: usize,
    since: Instant,
}

/// What is awaited of the last fault that was done.
#[derive(Default)]
struct AwaitedEffect {
    /// Its place among the events.
    event: usize,
    detection: bool,
    redundancy: bool,
    /// Since when every copy is in sync.
    redundant: Option<Instant>,
}

impl WindowMonitor {
    /// Watches the window until it ends.
    pub(crate) fn run(
        mut self,
        storage: &mut Storage,
        leave: &AtomicBool,
    ) -> Result<WindowObservations, TargetError> {
        let (mut before, mut carried_before, mut began_in_sync) = (None, None, false);
        let mut events: Vec<DoneFault> = Vec::new();
        let mut moves: Vec<WorkerMove> = Vec::new();
        let mut awaited = AwaitedEffect::default();
        let mut polled = Instant::now();
        let mut to_do = std::mem::take(&mut self.faults).into_iter().peekable();
        while !self.is_over(leave)? {
            let now = Instant::now();
            if carried_before.is_none() && now >= self.begin {
                carried_before = Some(carried(storage));
            }
            // Where things are done to it, what its nodes count begins anew.
            if before.is_none() && self.counts && now >= self.begin {
                before = Some(count(storage));
                began_in_sync = storage.copies(leave).is_some_and(|copies| copies.in_sync);
            }
            if let Some(fault) = to_do.next_if(|fault| now >= self.begin + fault.at.0) {
                let was_in_sync = storage.copies(leave).is_some_and(|copies| !copies.is_missing);
                let event = self.do_to(storage, &fault, leave)?;
                // Workers that were killed for it are started again, also where it could not be done.
                moves.retain(|one| !event.moved.iter().any(|moved| moved.worker == one.worker));
                let gone = event.moved.iter().map(|moved| WorkerMove {
                    worker: moved.worker.clone(),
                    event: events.len(),
                    since: now,
                });
                moves.extend(gone);
                if event.failed.is_none() {
                    let is_return = fault.what == FaultKind::Return;
                    // A node that is slow or full misses no copy; and where a copy was missing before, which fault was
                    // detected cannot be distinguished.
                    let is_seen = !matches!(
                        fault.what,
                        FaultKind::SlowDevice { .. } | FaultKind::Fill | FaultKind::Return
                    ) && !fault.what.is_of_machines();
                    awaited = AwaitedEffect {
                        event: events.len(),
                        detection: is_seen && was_in_sync,
                        redundancy: is_return,
                        redundant: None,
                    };
                }
                events.push(event);
                continue;
            }
            if let Some(asked) = self.orders.as_ref().filter(|_| now >= self.begin).and_then(Inbox::take) {
                events.extend(self.obey(storage, asked, leave)?);
                continue;
            }
            let is_idle = moves.is_empty() && !awaited.detection && !awaited.redundancy;
            if !is_idle && polled.elapsed() >= POLL_EVERY {
                let event = events.get_mut(awaited.event);
                self.poll(storage, &mut awaited, event, leave);
                self.follow(storage, &mut moves, &mut events);
                polled = Instant::now();
            }
            std::thread::sleep(TICK);
        }
        // A step that was over before its window was has no end of the window. It may be over while the ends are read.
        let is_whole = !self.over.load(Ordering::Relaxed);
        let carried = carried_before.flatten().filter(|_| is_whole).and_then(|(first, from)| {
            let (mut last, to) = carried(storage)?;
            for (node, traffic) in &mut last {
                *traffic = traffic.since(first.get(node).copied().unwrap_or_default());
            }
            Some((last, (to - from).as_secs_f64()))
        });
        let counted = before.flatten().filter(|_| is_whole).and_then(|(first, from)| {
            let (last, to) = count(storage)?;
            Some((last.since(&first)?, (to - from).as_secs_f64()))
        });
        let in_sync = began_in_sync && storage.copies(leave).is_some_and(|copies| copies.in_sync);
        Ok(WindowObservations { events, counted, carried, in_sync })
    }

    fn is_over(&self, leave: &AtomicBool) -> Result<bool, TargetError> {
        if leave.load(Ordering::Relaxed) {
            return Err(TargetError { kind: ErrorKind::Interrupted, message: "interrupted".into() });
        }
        Ok(self.over.load(Ordering::Relaxed) || Instant::now() >= self.begin + self.length)
    }

    /// Does one fault to the storage. If it cannot be done, `failed` of the returned event says why.
    fn do_to(
        &mut self,
        storage: &mut Storage,
        fault: &TimedFault,
        leave: &AtomicBool,
    ) -> Result<DoneFault, TargetError> {
        // Workers on a node that is gone are gone with it: they end before the node, or they would see its end.
        let takes_workers = storage.takes_workers(&fault.fault());
        let refused = storage.refuses(&fault.fault()).err();
        let gone: BTreeSet<WorkerId> = match takes_workers && refused.is_none() {
            true if storage.cuts_host(&fault.fault()) => {
                let mut gone = self.on_node(&fault.node);
                gone.extend(self.kept_on(&fault.node));
                gone
            }
            true => self.on_node(&fault.node),
            false => BTreeSet::new(),
        };
        let mut begun = Instant::now();
        let mut migrated = Vec::new();
        let mut fault = fault.clone();
        if fault.what == FaultKind::Migrate {
            fault.to = fault.to.or_else(|| next_node(&self.nodes, &fault.node));
        }
        let of_workers = match fault.what {
            FaultKind::PauseMachine { by } => self.pause(&self.on_node(&fault.node), by.0),
            FaultKind::Migrate => {
                let to = fault.to.clone().unwrap_or_default();
                self.migrate(storage, self.on_node(&fault.node), &to, &mut migrated, leave)?
            }
            _ if gone.is_empty() => Ok(()),
            what => self.kill(&gone, manner(what), leave)?,
        };
        let failed = match refused {
            Some(why) => Some(why.message),
            None if of_workers.is_err() => of_workers.err(),
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
        Ok(DoneFault {
            fault: fault.fault(),
            planned_s: fault.at.0.as_secs_f64(),
            at_s: begun.saturating_duration_since(self.begin).as_secs_f64(),
            took_s: begun.elapsed().as_secs_f64(),
            failed,
            detected_s: None,
            moved: moved.collect(),
            migrated,
            by_hand: false,
            resync_bytes: None,
            redundant_s: None,
        })
    }

    /// Migrates machines because a person has ordered it. `None` if the order cannot be carried out: nothing was done.
    fn obey(
        &mut self,
        storage: &Storage,
        asked: Asked,
        leave: &AtomicBool,
    ) -> Result<Option<DoneFault>, TargetError> {
        let MoveOrder { which, to } = &asked.order;
        let at = Instant::now();
        let answer = |answer: MoveAnswer| {
            // Whoever ordered it may have gone.
            let _ = asked.answer.send(answer);
        };
        let is_on = |node: &String, worker: &WorkerId| self.on_node(node).contains(worker);
        let (node, workers) = match which {
            Which::OnNode(node) => (Some(node.clone()), self.on_node(node)),
            Which::Worker(worker) => {
                let node = self.nodes.iter().find(|node| is_on(node, worker)).cloned();
                (node, BTreeSet::from([worker.clone()]))
            }
        };
        let nodes = self.nodes.join(", ");
        let refused = match (&node, which) {
            _ if !self.nodes.contains(to) => Some(format!("there is no node {to}; the fleet has {nodes}")),
            (Some(node), _) if node == to => {
                Some(format!("{to} is where the machines are: give another node"))
            }
            (Some(node), _) if !self.nodes.contains(node) => {
                Some(format!("there is no node {node}; the fleet has {nodes}"))
            }
            (Some(node), _) if workers.is_empty() => Some(format!("no machine measures on {node} now")),
            (None, Which::Worker(worker)) => Some(format!("no worker {worker} measures now")),
            _ => None,
        };
        let Some(node) = node.filter(|_| refused.is_none()) else {
            answer(MoveAnswer::refused(refused.unwrap_or_default()));
            return Ok(None);
        };
        let mut migrated = Vec::new();
        let failed = self.migrate(storage, workers, to, &mut migrated, leave)?.err();
        answer(MoveAnswer { migrated: migrated.clone(), failed: failed.clone(), is_refused: false });
        let at_s = at.saturating_duration_since(self.begin).as_secs_f64();
        Ok(Some(DoneFault {
            fault: Fault { to: Some(to.clone()), ..Fault::of(FaultKind::Migrate, &node) },
            planned_s: at_s,
            at_s,
            took_s: at.elapsed().as_secs_f64(),
            failed,
            detected_s: None,
            moved: Vec::new(),
            migrated,
            by_hand: true,
            resync_bytes: None,
            redundant_s: None,
        }))
    }

    /// Migrates the machines of these workers to a node, one after the other. The inner error says which were not.
    fn migrate(
        &mut self,
        storage: &Storage,
        workers: BTreeSet<WorkerId>,
        to: &str,
        migrated: &mut Vec<MigratedMachine>,
        leave: &AtomicBool,
    ) -> Result<Result<(), String>, TargetError> {
        let mut failed = Vec::new();
        if workers.is_empty() {
            failed.push("no machine measures there".to_string());
        }
        for worker in workers {
            // A machine whose copy is not done when the window ends would keep its worker from ending in time.
            let between_hosts = self.places.is_some();
            let before = if between_hosts { MIGRATES_BETWEEN_HOSTS_BEFORE } else { MIGRATES_BEFORE };
            let until = self.begin + self.length - before;
            if self.is_over(leave)? || Instant::now() > until {
                failed.push(format!("{worker}: the window is about to end"));
                continue;
            }
            let Some(job) = self.jobs.get_mut(&worker) else {
                failed.push(format!("{worker}: it does not measure"));
                continue;
            };
            let volumes = self.volumes.entry(worker.clone()).or_default();
            match migrations::migrate(&worker, to, (job, volumes), (storage, &self.changes), (leave, until))?
            {
                Ok(Outcome::Migrated(machine, wrong)) => {
                    failed.extend(wrong.map(|wrong| format!("{worker} is on {to} now, but {wrong}")));
                    self.migrated.insert(worker, to.to_string());
                    migrated.push(machine);
                }
                Ok(Outcome::Over) => failed.push(format!("{worker}: the step has ended")),
                Err(why) => failed.push(format!("{worker}: {why}")),
            }
        }
        Ok(if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) })
    }

    /// The workers that run on a node. Those that were started again run where their volumes are.
    fn on_node(&self, node: &str) -> BTreeSet<WorkerId> {
        let runs = self
            .places
            .iter()
            .flatten()
            .filter(|(worker, at)| *at == node && self.jobs.contains_key(*worker));
        let there = self.volumes.iter().filter(|(_, volumes)| volumes.iter().any(|one| one.node == node));
        let came = self.migrated.iter().filter(|(_, to)| *to == node).map(|(worker, _)| worker);
        let left = |worker: &&WorkerId| self.migrated.get(*worker).is_none_or(|to| to == node);
        there
            .map(|(worker, _)| worker)
            .chain(runs.map(|(worker, _)| worker))
            .filter(left)
            .chain(came)
            .cloned()
            .collect()
    }

    /// The workers that were started on the host of a node: the keepers of their machines are there, wherever the machines are.
    fn kept_on(&self, node: &str) -> BTreeSet<WorkerId> {
        let places = self.places.iter().flatten();
        let here = places.filter(|(worker, at)| *at == node && self.jobs.contains_key(*worker));
        here.map(|(worker, _)| worker.clone()).collect()
    }

    /// Has machines stand still for so long. The error says why they do not.
    fn pause(&self, workers: &BTreeSet<WorkerId>, length: Duration) -> Result<(), String> {
        let (done, paused) = oneshot::channel();
        // If the fleet does not take orders any more, the step is over.
        if self.changes.blocking_send(MidStepOrder::Pause(workers.clone(), length, done)).is_err() {
            return Ok(());
        }
        paused.blocking_recv().unwrap_or(Ok(()))
    }

    /// Kills workers. The inner error says that they were killed in another manner.
    fn kill(
        &self,
        workers: &BTreeSet<WorkerId>,
        manner: Manner,
        leave: &AtomicBool,
    ) -> Result<Result<(), String>, TargetError> {
        let (done, mut killed) = oneshot::channel();
        let begun = Instant::now();
        // If the fleet does not take orders any more, the step is over.
        if self.changes.blocking_send(MidStepOrder::Kill(workers.clone(), manner, done)).is_err() {
            return Ok(Ok(()));
        }
        while !self.is_over(leave)? {
            match killed.try_recv() {
                Ok(result) => return Ok(result),
                Err(oneshot::error::TryRecvError::Closed) => break,
                Err(oneshot::error::TryRecvError::Empty) => {}
            }
            if begun.elapsed() > KILLED_WITHIN {
                return Err(TargetError::failed(format!(
                    "the fleet did not kill {} within {} s",
                    counted(workers.len() as u64, "worker"),
                    KILLED_WITHIN.as_secs()
                )));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(Ok(()))
    }

    /// Polls the state of the cluster, for the last fault that was done.
    fn poll(
        &self,
        storage: &Storage,
        awaited: &mut AwaitedEffect,
        event: Option<&mut DoneFault>,
        leave: &AtomicBool,
    ) {
        let Some(event) = event else { return };
        // A node that does not answer now is asked again.
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

    /// Starts workers again whose volumes another node has taken over.
    fn follow(&mut self, storage: &Storage, moves: &mut Vec<WorkerMove>, events: &mut [DoneFault]) {
        let Some(cluster) = storage.own() else { return };
        moves.retain(|one| {
            let (Some(volumes), Some(job)) =
                (self.volumes.get_mut(&one.worker), self.jobs.get_mut(&one.worker))
            else {
                return false;
            };
            // All of them anew each time: the owner of a moment ago may be gone. A node that does not answer now is asked again.
            let found = volumes.iter().map(|volume| cluster.taken_over(volume).ok().flatten());
            let Some(found) = found.collect::<Option<Vec<_>>>() else { return true };
            let first = found.first().filter(|_| self.places.is_some());
            let place = first.map(|(owner, _)| place(cluster, &self.nodes, owner));
            for ((disk, volume), (owner, now)) in job.disks.iter_mut().zip(volumes).zip(&found) {
                // A worker runs where its first volume is.
                let is_at_owner = place.as_ref().is_none_or(|place| place == owner);
                disk.target = target(self.access, now, is_at_owner);
                volume.node.clone_from(owner);
            }
            if let (Some(places), Some(place)) = (&mut self.places, &place) {
                places.insert(one.worker.clone(), place.clone());
            }
            // It is started where it is placed.
            self.migrated.remove(&one.worker);
            if let Some(moved) = events[one.event].moved.iter_mut().find(|moved| moved.worker == one.worker) {
                moved.to = found.into_iter().map(|(owner, _)| owner).collect();
                moved.to.dedup();
                moved.started_s = Some(one.since.elapsed().as_secs_f64());
            }
            // If the fleet does not take orders any more, the step is over.
            let ready = BTreeMap::from([(one.worker.clone(), Restart { job: job.clone(), node: place })]);
            let _ = self.changes.blocking_send(MidStepOrder::Start(ready));
            false
        });
    }
}
