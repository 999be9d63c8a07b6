//! A cluster in one thread: nodes with their processes and disks, the network between them, the configuration store.
//!
//! ```text
//!  tenant ─ requests ─▶ volume ─┬─ messages ─▶ network ─▶ replica ─ commands ─▶ store ─▶ disk
//!         ◀ completions ─       └─ swaps ────▶ configuration store
//! ```
//!
//! Everything that happens is an entry of one queue, in the order of simulated time. What it leads to is put into the queue
//! with a delay from the seed. So a run is a function of its seed.

use std::collections::{BTreeMap, BTreeSet};

use loadline_san_core::ids::{Epoch, Incarnation, NodeId, Owner, ProposalId, ReplicaId};
use loadline_san_core::lease::Moment;
use loadline_san_core::message::{FromOwner, FromReplica, Job, ToOwner, ToReplica};
use loadline_san_core::record::{Record, RecordState};
use loadline_san_core::replica::{self, Replica};
use loadline_san_core::swap::Answer;
use loadline_san_core::volume::{self, Event, RequestId, Times, Volume};

mod backups;
mod config;
mod durability;
mod faults;
pub mod forwarder;
mod lasting;
mod liveness;
mod network;
mod oracle;
mod restores;
mod steps;
pub(crate) mod tenant;
pub(crate) mod wire;

use self::durability::Durability;
use self::forwarder::{Forwarders, Step};
use self::lasting::Lasting;
use self::restores::Restored;
use self::tenant::Tenant;
use crate::coverage::Coverage;
use crate::queue::Queue;
use crate::rng::Rng;
use crate::settings::{Settings, VOLUME};
use crate::store::{Blocks, SimDisk, Store};
use crate::time::{Clock, MS, Time, US};
use crate::violation::Violation;

/// Something that happens.
#[derive(Debug, Clone)]
pub(crate) enum Happening {
    /// A message arrives at a node.
    ToReplica(usize, FromOwner, ToReplica<Blocks>),
    ToOwner(usize, FromReplica, ToOwner<Blocks>),
    /// A store does its next step, for this life of the process.
    Store(usize, ReplicaId, u64),
    /// A question arrives at the configuration store, from this life of a node's process.
    Config(usize, u64, Question),
    /// An answer of it.
    ConfigAnswer(usize, u64, Question, Result<Record, Answer>),
    /// A node asks others through the configuration store whether they run. The question arrives at one of them, and its answer
    /// at the one that asked.
    ReachAsked(usize, u64, usize),
    Reaches(usize, u64, usize, BTreeSet<NodeId>),
    /// The node that has asked reads the configuration store when there was time for an answer.
    NoAnswer(usize, u64, usize),
    /// Whole blocks have been made of what a client writes.
    Merged(usize, u64, Epoch, Job, Blocks),
    /// A node receives a report that a process runs at another node, or that none does any more.
    Runs(usize, usize, bool),
    /// A node finds that another one's address refuses connections, if no process runs there by then.
    Refuses(usize, usize),
    /// Some time has passed.
    Tick(usize, u64),
    /// A node's process starts.
    Start(usize),
    /// A paused process goes on.
    Resume(usize),
    /// Time for a tenant to act.
    Tenant(usize),
    /// Time for another fault, or its end.
    Fault,
    /// A link heals.
    Heal(usize, usize),
    /// A device that hung goes on.
    Unhang(ReplicaId),
    /// The configuration store goes back in time, and is put right.
    StoreGoesBack,
    StorePutRight,
    /// Something between a forwarding node and an owner.
    Forwarding(Step),
    /// It was on its way, and is lost.
    Lost,
}

#[derive(Debug, Clone)]
pub(crate) enum Question {
    Read(Epoch),
    Propose(Box<Record>, Epoch),
}

/// A node: its disks stay, its process comes and goes.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) process: Option<Process>,
    pub(crate) lives: u64,
    pub(crate) stores: BTreeMap<ReplicaId, Store>,
    /// What comes while the process is stopped.
    pub(crate) paused: Option<Vec<Happening>>,
    /// A start is under way.
    pub(crate) starting: bool,
    clock: Clock,
}

/// A life of a node's process.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) life: u64,
    pub(crate) volume: Volume<Blocks>,
    pub(crate) replicas: BTreeMap<ReplicaId, Replica>,
    /// Its clients may ask.
    pub(crate) let_in: bool,
    /// The command that it received last.
    pub(crate) last_command: &'static str,
    /// Stores whose next step is in the queue.
    pub(crate) stepping: BTreeSet<ReplicaId>,
}

/// A simulated cluster with its clients. A run is a function of the settings and the seed.
#[derive(Debug)]
pub struct World {
    pub(crate) settings: Settings,
    pub(crate) rng: Rng,
    pub(crate) now: Time,
    queue: Queue<Happening>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) config: Vec<Record>,
    pub(crate) tenants: Vec<Tenant>,
    pub(crate) history: crate::history::History,
    pub(crate) writes: u64,
    /// Requests of clients that have gone.
    pub(crate) gone: BTreeSet<RequestId>,
    pub(crate) requests: u64,
    /// Links that carry nothing, from and to.
    pub(crate) cut: BTreeSet<(usize, usize)>,
    /// The configuration store cannot be reached from these.
    pub(crate) cut_from_config: BTreeSet<usize>,
    /// Replicas whose devices have lost what they had reported as durable. A takeover has to exclude them.
    pub(crate) lost_writes: BTreeSet<ReplicaId>,
    /// Replicas of whose log a record is corrupt: they have lost something.
    pub(crate) corrupted: BTreeSet<ReplicaId>,
    /// Copies of devices, and the epoch of the record when each was made.
    pub(crate) backups: BTreeMap<ReplicaId, (SimDisk, Epoch)>,
    /// Members whose devices hold an older state than they had, and the record's epoch when that began.
    pub(crate) went_back: BTreeMap<ReplicaId, Epoch>,
    /// A person decides what is left.
    pub(crate) forced: bool,
    /// The configuration store holds an older record than was committed last.
    pub(crate) restored: Option<Restored>,
    /// The swaps of stale members that went on from an older record, before a person recovered the volume by force.
    pub(crate) branches: BTreeSet<ProposalId>,
    pub(crate) forwarders: Forwarders,
    /// Answers of the configuration store do not reach these nodes.
    pub(crate) without_config_answers: BTreeSet<usize>,
    /// What goes over these links takes so much longer.
    pub(crate) slow: BTreeMap<(usize, usize), Time>,
    /// No entry goes over these links.
    pub(crate) without_entries: BTreeSet<(usize, usize)>,
    /// Messages over these links are delivered again after this time.
    pub(crate) repeats: BTreeMap<(usize, usize), Time>,
    /// Devices that do nothing, while the processes that use them answer.
    pub(crate) hung: BTreeSet<ReplicaId>,
    /// Nothing is destaged but when a log is full.
    pub(crate) keeps_log: bool,
    /// How long it takes to make whole blocks of what a client writes.
    pub(crate) merge_delay: Time,
    /// What never heals.
    pub(crate) lasting: Lasting,
    pub(crate) weather: Weather,
    pub(crate) calm: bool,
    /// Clients ask for little.
    pub(crate) quiet: bool,
    /// When it last became calm, and how many records there had been.
    pub(crate) calm_began: (Time, usize),
    pub(crate) violation: Option<Violation>,
    /// What was seen, of what the protocol can do.
    pub coverage: Coverage,
    /// Client requests that have ended.
    pub done: u64,
    /// What stores have reported to be durable.
    pub(crate) durability: BTreeMap<ReplicaId, Durability>,
    /// The header of the message that a replica is receiving; `None` between messages.
    pub(crate) received_from: Option<FromOwner>,
    /// The owner that was seen active at each epoch.
    pub(crate) owners: BTreeMap<Epoch, Owner>,
    /// Prints everything that happens.
    pub(crate) trace: bool,
    pub(crate) replicas_made: u64,
    pub(crate) actions: Vec<volume::Action<Blocks>>,
    pub(crate) replies: Vec<replica::Action<Blocks>>,
}

/// How bad things are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Weather {
    /// One message in so many is lost, or comes twice.
    pub(crate) loses: u64,
    pub(crate) doubles: u64,
    /// The longest that one takes.
    pub(crate) slowest: Time,
    /// One answer of the configuration store in so many is lost, and its longest delay.
    pub(crate) config_loses: u64,
    pub(crate) config_slowest: Time,
    /// The longest step of a disk.
    pub(crate) disk_slowest: Time,
}

impl Weather {
    pub(crate) const CALM: Weather = Weather {
        loses: u64::MAX,
        doubles: u64::MAX,
        slowest: 200 * US,
        config_loses: u64::MAX,
        config_slowest: 2 * MS,
        disk_slowest: 60 * US,
    };
}

impl World {
    /// A cluster, with one empty volume, from a seed.
    pub fn new(settings: Settings, seed: u64) -> World {
        let mut rng = Rng::new(seed);
        let record = crate::settings::first_record(&settings, &mut rng);
        let nodes = (0..settings.nodes).map(|_| Node {
            process: None,
            lives: 0,
            stores: BTreeMap::new(),
            paused: None,
            starting: false,
            clock: Clock::new(&mut rng),
        });
        let nodes: Vec<Node> = nodes.collect();
        let mut world = World {
            history: crate::history::History::new(record.blocks * 8),
            settings,
            rng,
            now: 0,
            queue: Queue::default(),
            nodes,
            config: Vec::new(),
            tenants: Vec::new(),
            writes: 0,
            gone: BTreeSet::new(),
            requests: 0,
            cut: BTreeSet::new(),
            cut_from_config: BTreeSet::new(),
            lost_writes: BTreeSet::new(),
            corrupted: BTreeSet::new(),
            backups: BTreeMap::new(),
            went_back: BTreeMap::new(),
            forced: false,
            restored: None,
            branches: BTreeSet::new(),
            forwarders: Forwarders::default(),
            without_config_answers: BTreeSet::new(),
            slow: BTreeMap::new(),
            without_entries: BTreeSet::new(),
            repeats: BTreeMap::new(),
            hung: BTreeSet::new(),
            keeps_log: false,
            merge_delay: 5 * US,
            lasting: Lasting::default(),
            weather: Weather::CALM,
            calm: true,
            quiet: false,
            calm_began: (0, 1),
            violation: None,
            coverage: Coverage::default(),
            done: 0,
            durability: BTreeMap::new(),
            received_from: None,
            owners: BTreeMap::new(),
            trace: false,
            replicas_made: record.homes.len() as u64,
            actions: Vec::new(),
            replies: Vec::new(),
        };
        for group in &record.groups {
            for replica in &group.in_sync {
                let node = record.homes[replica].0 as usize;
                world.nodes[node]
                    .stores
                    .insert(*replica, crate::store::new_store(*replica, world.settings.tight));
            }
        }
        world.config.push(record);
        for node in 0..world.nodes.len() {
            world.start(node);
        }
        for tenant in 0..world.settings.tenants {
            world.tenants.push(Tenant::new());
            if world.settings.operations > 0 {
                world.after(MS, Happening::Tenant(tenant));
            }
        }
        world
    }

    /// The record that was committed last. The configuration store holds it, unless it went back in time.
    pub fn record(&self) -> &Record {
        self.config.last().expect("the volume was made")
    }

    /// What has gone wrong, if anything.
    pub fn violation(&self) -> Option<&Violation> {
        self.violation.as_ref()
    }

    /// Simulated nanoseconds since the beginning.
    pub fn now(&self) -> Time {
        self.now
    }

    pub(crate) fn trace_event(&self, text: impl FnOnce() -> String) {
        if self.trace {
            let (ms, us) = (self.now / MS, self.now / US % 1000);
            crate::print_line!("{ms:>7}.{us:03} ms  {}", text());
        }
    }

    pub(crate) fn after(&mut self, delay: Time, happening: Happening) {
        self.queue.add(self.now + delay, happening);
    }

    /// What is on its way, and for which this holds, is lost.
    pub(crate) fn drop_all(&mut self, holds: impl Fn(&Happening) -> bool) {
        self.queue.items_mut().filter(|one| holds(one)).for_each(|one| *one = Happening::Lost);
    }

    /// What a node's clock shows.
    pub(crate) fn clock(&self, node: usize) -> Moment {
        self.nodes[node].clock.at(self.now)
    }

    /// Lets the next thing happen. False if something has gone wrong.
    pub fn step(&mut self) -> bool {
        let Some((time, happening)) = self.queue.pop() else { return false };
        self.now = time;
        self.happen(happening);
        self.violation.is_none()
    }

    /// Lets things happen until this moment. False if something has gone wrong.
    pub fn run_until(&mut self, until: Time) -> bool {
        while self.queue.next_at().is_some_and(|time| time <= until) {
            if !self.step() {
                return false;
            }
        }
        self.now = self.now.max(until);
        true
    }

    fn happen(&mut self, happening: Happening) {
        let node = match &happening {
            Happening::ToReplica(node, ..)
            | Happening::ToOwner(node, ..)
            | Happening::Store(node, ..)
            | Happening::ConfigAnswer(node, ..)
            | Happening::Merged(node, ..)
            | Happening::ReachAsked(_, _, node)
            | Happening::Reaches(node, ..)
            | Happening::NoAnswer(node, ..)
            | Happening::Runs(node, ..)
            | Happening::Refuses(node, ..)
            | Happening::Tick(node, _) => Some(*node),
            Happening::Forwarding(step) => self.node_of(step),
            _ => None,
        };
        if let Some(node) = node
            && let Some(waiting) = &mut self.nodes[node].paused
        {
            waiting.push(happening);
            return;
        }
        match happening {
            Happening::ToReplica(node, header, message) => self.deliver(node, &header, message),
            Happening::ToOwner(node, header, message) => {
                self.step_volume(node, Event::Message(header, message));
            }
            Happening::Store(node, replica, life) => self.step_store(node, replica, life),
            Happening::Config(node, life, question) => self.ask_config(node, life, question),
            Happening::ConfigAnswer(node, life, question, answer) => {
                if self.is_alive(node, life) {
                    let event = match (question, answer) {
                        (Question::Read(asked_at), Ok(record)) => Event::Seen(record, asked_at),
                        (Question::Propose(record, replaces), Err(answer)) => {
                            Event::Swapped(record.made_by, answer, replaces)
                        }
                        _ => unreachable!("each question has its answer"),
                    };
                    self.step_volume(node, event);
                }
            }
            Happening::ReachAsked(by, life, node) => self.reach_asked(by, life, node),
            Happening::Reaches(node, life, other, reaches) => {
                if self.is_alive(node, life) {
                    self.trace_event(|| {
                        format!("n{node} receives a report that n{other} runs, and reaches {reaches:?}")
                    });
                    self.step_volume(node, Event::Reaches(NodeId(other as u32), reaches));
                }
            }
            Happening::NoAnswer(node, life, other) => {
                if self.is_alive(node, life) && !self.is_cut_from_config(node) {
                    self.step_volume(node, Event::Silent(NodeId(other as u32)));
                }
            }
            Happening::Merged(node, life, ownership, job, blocks) => {
                if self.is_alive(node, life) {
                    self.step_volume(node, Event::Merged(ownership, job, blocks));
                }
            }
            Happening::Runs(node, other, runs) => {
                if self.nodes[node].process.is_some() {
                    self.trace_event(|| format!("n{node} receives a report that n{other} runs: {runs}"));
                    let other = NodeId(other as u32);
                    let event = if runs { Event::Started(other) } else { Event::Ended(other) };
                    self.step_volume(node, event);
                }
            }
            Happening::Refuses(node, other) => {
                if self.nodes[other].process.is_none() {
                    self.after(0, Happening::Runs(node, other, false));
                }
            }
            Happening::Tick(node, life) => self.tick(node, life),
            Happening::Start(node) => self.start(node),
            Happening::Resume(node) => self.resume(node),
            Happening::Tenant(tenant) => self.tenant_acts(tenant),
            Happening::Fault => self.fault(),
            Happening::Heal(from, to) => {
                self.cut.remove(&(from, to));
                self.slow.remove(&(from, to));
                self.repeats.remove(&(from, to));
            }
            Happening::Unhang(replica) => _ = self.hung.remove(&replica),
            Happening::StoreGoesBack => self.store_goes_back(),
            Happening::StorePutRight => self.put_right(),
            Happening::Forwarding(step) => self.forwarding(step),
            Happening::Lost => {}
        }
    }

    pub(crate) fn is_alive(&self, node: usize, life: u64) -> bool {
        self.nodes[node].process.as_ref().is_some_and(|process| process.life == life)
    }

    // ---- processes ------------------------------------------------------------------------------------

    /// A node's process starts, if none runs.
    pub(crate) fn start(&mut self, node: usize) {
        if self.nodes[node].process.is_some() || self.is_out(node) && self.lasting.dead {
            return;
        }
        let now = self.clock(node);
        let lease_ns = self.record().lease_ns;
        let state = &mut self.nodes[node];
        state.starting = false;
        state.lives += 1;
        let life = state.lives;
        let process = Incarnation(life);
        let ids: Vec<ReplicaId> = state.stores.keys().copied().collect();
        let open = |id| (id, self.open_replica(node, id, life, now));
        let replicas = ids.into_iter().map(open).collect();
        let me = Owner { node: NodeId(node as u32), incarnation: process };
        let seed = self.rng.bits();
        let mut times = Times::of_lease(lease_ns);
        if self.settings.hasty {
            (times.seal_ns, times.answer_ns, times.most_answer_ns) =
                (lease_ns / 8, lease_ns / 8, lease_ns / 8);
        }
        if !self.settings.answers {
            (times.answer_ns, times.most_answer_ns) = (0, 0);
        }
        let mut volume = Volume::new(me, VOLUME, times, seed, now);
        if self.settings.watch {
            volume.step(now, Event::Watch(true), &mut Vec::new());
        }
        self.nodes[node].process = Some(Process {
            life,
            volume,
            replicas,
            let_in: false,
            last_command: "",
            stepping: BTreeSet::new(),
        });
        self.trace_event(|| format!("n{node} starts, life {life}"));
        // The connections of clients have ended with the process before.
        let theirs = |tenant: &&mut Tenant| tenant.node == Some(node) && tenant.through.is_none();
        self.tenants.iter_mut().filter(theirs).for_each(|tenant| tenant.node = None);
        self.coverage.count("process", "starts");
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            let delay = self.rng.below(60 * MS);
            self.after(delay, Happening::Runs(other, node, true));
        }
        let first = self.rng.below(self.record().lease_ns / 16);
        self.after(first, Happening::Tick(node, life));
    }

    /// It dies; with the power, what is not synced may be lost.
    pub(crate) fn kill(&mut self, node: usize, power: bool) {
        let state = &mut self.nodes[node];
        let Some(process) = state.process.take() else { return };
        state.paused = None;
        for store in state.stores.values_mut() {
            match power {
                true => store.power_loss(&mut self.rng),
                false => store.kill(&mut self.rng),
            }
        }
        let life = process.life;
        self.trace_event(|| format!("n{node}.{life} {}", if power { "loses power" } else { "is killed" }));
        self.coverage.count("process", if power { "power loss" } else { "kill" });
        self.clients_die(node);
        self.forwarding_dies(node, power);
    }

    /// It stops, and goes on later as if nothing had been.
    pub(crate) fn pause(&mut self, node: usize, length: Time) {
        let state = &mut self.nodes[node];
        if state.process.is_none() || state.paused.is_some() {
            return;
        }
        state.paused = Some(Vec::new());
        self.trace_event(|| format!("n{node} stops for {} ms", length / MS));
        self.coverage.count("process", "pause");
        self.after(length, Happening::Resume(node));
    }

    fn resume(&mut self, node: usize) {
        let Some(waiting) = self.nodes[node].paused.take() else { return };
        self.trace_event(|| format!("n{node} goes on, with {} things waiting", waiting.len()));
        for happening in waiting {
            self.happen(happening);
            if self.violation.is_some() {
                return;
            }
        }
    }

    fn tick(&mut self, node: usize, life: u64) {
        if !self.is_alive(node, life) {
            return;
        }
        let now = self.clock(node);
        let process = self.nodes[node].process.as_ref().expect("it is alive");
        let due: Vec<ReplicaId> = process
            .replicas
            .iter()
            .filter(|(_, replica)| replica.wake_at().is_some_and(|at| at <= now))
            .map(|(id, _)| *id)
            .collect();
        for replica in due {
            self.step_replica(node, replica, replica::Event::Wake);
        }
        self.step_volume(node, Event::Wake);
        let (rng, state) = (&mut self.rng, &mut self.nodes[node]);
        let (mut busy, keeps_log) = (Vec::new(), self.keeps_log);
        for (replica, store) in state.stores.iter_mut().filter(|(replica, _)| !self.hung.contains(replica)) {
            if store.tick(rng, !keeps_log) {
                busy.push(*replica);
            }
        }
        busy.into_iter().for_each(|replica| self.wake_store(node, replica, life));
        let lease_ns = self.record().lease_ns;
        let next = lease_ns / 16 + self.rng.below(lease_ns / 64);
        self.after(next, Happening::Tick(node, life));
    }
}

/// One line of a record.
pub(crate) fn show(record: &Record) -> String {
    let sets = record.groups.iter().map(|group| {
        let members: Vec<String> = group.in_sync.iter().map(ToString::to_string).collect();
        let gone: Vec<String> = group.departed.iter().map(|(r, e)| format!("{r}@{}", e.epoch.0)).collect();
        format!("[{} | {}]", members.join(" "), gone.join(" "))
    });
    let ProposalId { by, number } = record.made_by;
    let state = if record.state == RecordState::Active { "active" } else { "taking over" };
    format!("e{} {} {state} {} (by {by}#{number})", record.epoch.0, record.owner, sets.collect::<String>())
}
