//! The data path: one thread, one ring, and all volumes, replicas and clients that belong to it.
//!
//! ```text
//!   ring: sockets ready, devices done ─▶ clients ─▶ volumes ─▶ replicas ─▶ stores ─▶ devices
//!    ▲                                      ▲          │  ▲       │ │                   │
//!    │                                      └──────────┘  └───────┘ └─▶ peers           │
//!    └──────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Nothing is shared with other threads or locked but what devices begin with, and nothing waits but for that, and for the
//! opening of a replica. What comes in together is carried out together: all requests that are there go into one append, all
//! answers into one message.
//!
//! | module | idea |
//! | --- | --- |
//! | [`order`] | what the control path tells a loop, and is told |
//! | `control` | does what it is told by the control path |
//! | `sockets` | reads from clients and nodes, and writes to them |
//! | `served` | a volume, with the requests of its clients |
//! | `kept` | a replica, with its store and its devices |
//! | `client` | a connection of a client |
//! | `leave` | connections of clients end, each for a reason |
//! | [`confirmed`] | hosts that do not confirm what they are sent |
//! | `guests` | clients that ask by their memory |
//! | [`peer`] | what is said to another node |
//! | `heard` | what it says |
//! | [`counts`] | what is counted of I/O |
//! | `rest` | what it does when there is nothing to do |
//! | `unread` | clients that have not read what they were told |
//! | `blocks` | whole blocks of what clients write |

mod blocks;
mod client;
pub mod confirmed;
mod control;
pub mod counts;
mod guests;
mod heard;
mod kept;
mod leave;
pub mod order;
pub mod peer;
mod rest;
mod served;
mod sockets;
mod unread;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, HashSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use foldhash::fast::RandomState;
use loadline_base::limits;
use loadline_san_core::ids::{Epoch, NodeId, Owner, ReplicaId, VolumeId};
use loadline_san_core::lease::Moment;
use loadline_san_core::message::{FromOwner, FromReplica, Job, ToOwner, ToReplica};
use loadline_san_core::replica;
use loadline_san_core::store::Completion;
use loadline_san_core::volume::{self, Event, Failure, RequestId, Status};
use loadline_san_device::pool::{BLOCK_BYTES, Blocks, Class, Pool};
use loadline_san_device::uring::{For, Uring, UringError, UringOptions};
use loadline_san_export::asked::Asked;
use loadline_san_protocol::ClusterId;
use nix::sys::eventfd::{EfdFlags, EventFd};
use thiserror::Error;

use client::Client;
use guests::Guests;
use heard::Hearing;
use kept::Kept;
use leave::Why;
use order::{Order, Report};
use peer::Outgoing;
use served::Served;
use unread::Told;

pub(crate) use served::MOST_EXTENTS;
pub use served::most_in_flight;

/// The key of what wakes the loop.
const WAKE: u32 = 0;
/// Between two ticks of the stores.
const STORE_TICK_NS: u64 = 100_000_000;
/// What nobody uses of the pool's spare memory goes back to the system after so many of these ticks, or twice as many.
const LET_GO_TICKS: u64 = 50;
/// A loop that has not looked at the clock for so long was stopped.
const STOPPED_NS: u64 = 1_000_000_000;
/// Clients that wait for too long are looked for in each of so many ticks.
const WAITS_TICKS: u64 = 5;
/// What nobody uses gets one tick of so many: as many as there are in the time between two heartbeats.
const IDLE_TICKS: u64 = 4;
/// Replicas on devices that are not in memory.
const MOST_STORES: u32 = 4096;
/// What devices have done is taken in parts: a share of all that they were asked, at the least so many. Some complete all that they
/// have together, and have nothing to do until somebody asks again, who is to be answered soon for that. With 32 outstanding,
/// parts of 4 and 8 were slower than these.
const DONE_SHARE: usize = 16;
const LEAST_DONE: usize = 2;
/// Times that stores do what they can before sockets are looked at again: a client that asks by one would have to wait until
/// a round is destaged. 64 made a tenth fewer writes by NBD.
const RUNS: usize = 4;

/// How a loop is made.
#[derive(Debug, Clone, Copy)]
pub struct LoopOptions {
    /// This life of the node's process.
    pub me: Owner,
    /// The cluster that it is in.
    pub cluster: ClusterId,
    /// Which of the node's loops this is.
    pub number: u32,
    /// How long it looks for what comes before it sleeps; nothing, where loops outnumber cores.
    pub spin: Duration,
    /// What random numbers are made from.
    pub seed: u64,
    /// How long a client's request waits while its volume is not served.
    pub client_wait: Duration,
}

/// Why a loop cannot be.
#[derive(Debug, Error)]
pub enum LoopError {
    /// io_uring.
    #[error(transparent)]
    Ring(#[from] UringError),
    /// Memory, or what wakes it.
    #[error("a thread for the data path cannot be made: {0}")]
    Io(#[from] io::Error),
}

/// What goes between volumes and replicas of this loop.
#[derive(Debug)]
enum Local {
    ToReplica(FromOwner, ToReplica<Blocks>),
    ToOwner(FromReplica, ToOwner<Blocks>),
    Merged(VolumeId, Epoch, Job, Blocks),
    /// More clients have come to a volume.
    Attach(VolumeId),
    /// The client that asked for this has gone.
    Cancel(VolumeId, RequestId),
    /// A process runs at a node, or none does any more.
    Node(NodeId, bool),
    /// A node has answered that it runs, and reaches these; or it did not answer in time.
    Reaches(NodeId, Option<BTreeSet<NodeId>>),
}

/// To give orders to a loop, from any thread.
#[derive(Debug, Clone)]
pub struct Orders {
    sender: Sender<Order>,
    wake: Arc<EventFd>,
}

impl Orders {
    /// Gives an order. False if the loop has ended.
    pub fn give(&self, order: Order) -> bool {
        // It wakes at the latest when it would have woken anyway.
        self.sender.send(order).is_ok() && self.wake.write(1).is_ok()
    }
}

/// See the module.
pub struct EventLoop {
    options: LoopOptions,
    pool: Pool,
    uring: Uring,
    wake: Arc<EventFd>,
    orders: Receiver<Order>,
    tell: Box<dyn Fn(Report)>,
    volumes: HashMap<VolumeId, Served, RandomState>,
    replicas: HashMap<ReplicaId, Kept, RandomState>,
    /// The replica of each store that the ring knows.
    of_ring: HashMap<u32, ReplicaId, RandomState>,
    clients: HashMap<u32, Client, RandomState>,
    peers: HashMap<NodeId, Outgoing, RandomState>,
    /// Connections from other nodes, and those to them, by their keys.
    hearings: HashMap<u32, Hearing, RandomState>,
    to_peers: HashMap<u32, NodeId, RandomState>,
    next_key: u32,
    /// Replicas that are to be given up.
    closing: Vec<ReplicaId>,
    local: VecDeque<Local>,
    /// Replicas whose stores have something to do.
    listed: VecDeque<ReplicaId>,
    /// Clients from whom something came, and those for whom there may be something.
    readable: VecDeque<u32>,
    answered: Vec<u32>,
    /// Clients that wait until there is memory for what they ask.
    starved: Vec<u32>,
    /// Those that are to be disconnected, and why.
    broken: Vec<(u32, Why)>,
    /// Clients whose queues are looked at: they need not say that there is something.
    guests: Vec<u32>,
    /// By which keys their queues are watched, when they are not looked at.
    kicks: HashMap<u32, (u32, u16), RandomState>,
    /// Clients that have begun to say something, or wait for what is in flight.
    late: Vec<u32>,
    /// What they ask, on its way.
    asked: Vec<Asked>,
    /// Something was said to another node, and is not sent.
    said: bool,
    /// Clients that were told something since it waited.
    told_something: Told,
    /// Something was said to another node, or heard, since it waited.
    talked: bool,
    /// Bytes that the requests and answers of all clients take.
    taken: usize,
    /// Requests of clients that were begun since it waited, and messages for replicas.
    begun: usize,
    /// How many those are, on average of late.
    together: f32,
    /// Volumes whose waiting requests may begin.
    to_begin: VecDeque<VolumeId>,
    wakes: BinaryHeap<Reverse<(Moment, ReplicaId)>>,
    /// A moment that is no earlier than that at which anything that is being carried out was received: the clock is not asked
    /// for each step. That it may be a little late in coming is as if the thread had been stopped for so long; leases that are
    /// asked for or kept then end the earlier for who asks, and not for who grants.
    now: Moment,
    next_tick: Moment,
    next_store_tick: Moment,
    ticks: u64,
    store_ticks: u64,
    tick_ns: u64,
    /// Nodes to which nothing is said, and that are not heard, on purpose.
    dropped: HashSet<NodeId>,
    /// Devices have, or had, faults on purpose.
    has_faults: bool,
    /// Some replica is looked through for a person.
    scrubs: bool,
    stopped: bool,
    // Vectors that are used again.
    of_volume: Vec<volume::Action<Blocks>>,
    of_replica: Vec<replica::Action<Blocks>>,
    sent: Vec<replica::Action<Blocks>>,
    told: Vec<Completion<Blocks>>,
}

/// Replicas that a loop can have. A ring has places for two files of each, and the system allows no more places than the process
/// may have open files.
fn most_stores() -> u32 {
    u32::try_from(limits::open_files() / 2).unwrap_or(MOST_STORES).clamp(1, MOST_STORES)
}

impl EventLoop {
    /// A loop with nothing to do, to be run on this thread, and how to give it orders. What it has to tell it tells by
    /// `tell`, which is not to wait.
    pub fn new(
        options: LoopOptions,
        orders: (Orders, Receiver<Order>),
        tell: Box<dyn Fn(Report)>,
    ) -> Result<EventLoop, LoopError> {
        // 88 MiB, which the kernel pins where it may; and 224 MiB for what waits to be destaged, while it does.
        let classes = [(1, 8192), (4, 512), (16, 256), (64, 64), (256, 16)];
        let classes = classes.map(|(blocks, buffers)| Class { blocks, buffers });
        let pool = Pool::with_spare(&classes, Class { blocks: 1, buffers: 56 << 10 })?;
        let mut uring = Uring::new(
            UringOptions { spin: options.spin, stores: most_stores(), in_flight: 256 },
            pool.clone(),
        )?;
        let (Orders { wake, .. }, orders) = orders;
        uring.watch(wake.as_fd().as_raw_fd(), WAKE, For::Input)?;
        let now = crate::clock::now();
        Ok(EventLoop {
            options,
            pool,
            uring,
            wake,
            orders,
            tell,
            volumes: HashMap::default(),
            replicas: HashMap::default(),
            of_ring: HashMap::default(),
            clients: HashMap::default(),
            peers: HashMap::default(),
            hearings: HashMap::default(),
            to_peers: HashMap::default(),
            next_key: 1,
            closing: Vec::new(),
            local: VecDeque::new(),
            listed: VecDeque::new(),
            readable: VecDeque::new(),
            answered: Vec::new(),
            starved: Vec::new(),
            broken: Vec::new(),
            guests: Vec::new(),
            kicks: HashMap::default(),
            late: Vec::new(),
            asked: Vec::new(),
            said: false,
            told_something: Told::default(),
            talked: false,
            taken: 0,
            begun: 0,
            together: 0.0,
            to_begin: VecDeque::new(),
            wakes: BinaryHeap::new(),
            now,
            next_tick: now,
            next_store_tick: now,
            ticks: 0,
            store_ticks: 0,
            tick_ns: STORE_TICK_NS,
            dropped: HashSet::new(),
            has_faults: false,
            scrubs: false,
            stopped: false,
            of_volume: Vec::new(),
            of_replica: Vec::new(),
            sent: Vec::new(),
            told: Vec::new(),
        })
    }

    /// What gives orders to a loop that is to be made.
    pub fn orders() -> io::Result<(Orders, Receiver<Order>)> {
        let (sender, receiver) = std::sync::mpsc::channel();
        let wake = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?);
        Ok((Orders { sender, wake }, receiver))
    }

    /// Runs until it is told to stop. Fails if the kernel refuses to serve the ring.
    pub fn run(mut self) -> io::Result<()> {
        // What is waited for is shorter than the 50 us by which the kernel may be late otherwise. Where it refuses, it is.
        let _ = nix::sys::prctl::set_timerslack(1);
        while !self.stopped {
            self.look_at_guests();
            let more = self.uring.has_news()
                || !self.listed.is_empty()
                || !self.readable.is_empty()
                || !self.local.is_empty()
                || !self.to_begin.is_empty();
            if more {
                self.uring.poll()?;
            } else {
                self.rest()?;
                self.look_at_guests();
            }
            while let Some((key, what)) = self.uring.ready() {
                self.ready(key, what)?;
            }
            if self.uring.has_news() {
                self.now = crate::clock::now();
            }
            for _ in 0..(self.uring.not_taken() / DONE_SHARE).max(LEAST_DONE) {
                let Some((number, token, done)) = self.uring.take() else { break };
                if let Some(id) = self.of_ring.get(&number).copied() {
                    self.replicas.get_mut(&id).expect("it is there").done(token, done, self.now);
                    self.list(id);
                }
            }
            if crate::clock::now().since(self.now) >= STOPPED_NS {
                // This process was stopped: clients may have gone long before others have sent what is read first.
                self.disconnect_closed(|_| true);
            }
            for _ in 0..self.readable.len() {
                let key = self.readable.pop_front().expect("there are so many");
                self.read(key);
            }
            self.now = crate::clock::now();
            self.work_off();
            self.pass_time();
            self.answer();
            self.speak();
        }
        Ok(())
    }

    fn ready(&mut self, key: u32, what: For) -> io::Result<()> {
        if key == WAKE {
            let _ = self.wake.read();
            self.uring.watch(self.wake.as_fd().as_raw_fd(), WAKE, For::Input)?;
            while let Ok(order) = self.orders.try_recv() {
                self.now = crate::clock::now();
                self.order(order);
            }
        } else if let Some(client) = self.clients.get_mut(&key) {
            match what {
                For::Input => {
                    client.watched = false;
                    self.readable.push_back(key);
                }
                For::Room => {
                    (client.watched_for_room, client.blocked) = (false, false);
                    self.answered.push(key);
                }
            }
        } else if self.hearings.contains_key(&key) {
            self.readable.push_back(key);
        } else if let Some((client, queue)) = self.kicks.get(&key).copied() {
            self.kicked(client, queue);
        } else if let Some(node) = self.to_peers.get(&key)
            && let Some(peer) = self.peers.get_mut(node)
            && peer.key == key
        {
            peer.ready(what);
        }
        Ok(())
    }

    fn list(&mut self, id: ReplicaId) {
        if let Some(kept) = self.replicas.get_mut(&id)
            && !std::mem::replace(&mut kept.listed, true)
        {
            self.listed.push_back(id);
        }
    }

    // ---- volumes and replicas --------------------------------------------------------------------------

    /// Carries out all that can be done now.
    fn work_off(&mut self) {
        for _ in 0..RUNS {
            loop {
                // Not from within a step: each that ends at once would begin the next one a call deeper.
                while let Some(id) = self.to_begin.pop_front() {
                    self.begin(id);
                }
                let Some(local) = self.local.pop_front() else { break };
                match local {
                    Local::ToReplica(from, message) => {
                        self.step_replica(from.replica, replica::Event::Message(from, message));
                    }
                    Local::ToOwner(from, message) => {
                        self.step_volume(from.volume, Event::Message(from, message));
                    }
                    Local::Merged(id, ownership, job, data) => {
                        self.step_volume(id, Event::Merged(ownership, job, data));
                    }
                    Local::Reaches(node, reaches) => {
                        let volumes: Vec<VolumeId> = self.volumes.keys().copied().collect();
                        let event = || match &reaches {
                            Some(reaches) => Event::Reaches(node, reaches.clone()),
                            None => Event::Silent(node),
                        };
                        volumes.into_iter().for_each(|id| self.step_volume(id, event()));
                    }
                    Local::Node(node, runs) => {
                        let volumes: Vec<VolumeId> = self.volumes.keys().copied().collect();
                        let event = || if runs { Event::Started(node) } else { Event::Ended(node) };
                        volumes.into_iter().for_each(|id| self.step_volume(id, event()));
                    }
                    Local::Cancel(id, request) => self.step_volume(id, Event::Cancel(request)),
                    Local::Attach(id) => {
                        if self.volumes.get(&id).is_some_and(|served| !served.announced.is_empty()) {
                            self.step_volume(id, Event::Attach);
                        }
                    }
                }
            }
            let Some(id) = self.listed.pop_front() else { return };
            // Clients and other nodes go on while the rest is done.
            if !self.answered.is_empty() {
                self.answer();
            }
            self.read_guests();
            if std::mem::take(&mut self.said) {
                self.speak();
            }
            let kept = self.replicas.get_mut(&id).expect("those that are listed are there");
            kept.listed = false;
            let mut told = std::mem::take(&mut self.told);
            kept.store.hold(if self.pool.is_short() { 0 } else { u64::MAX });
            let guests = Guests { volumes: &self.volumes, clients: &self.clients, me: self.options.me };
            let more = kept.run(&mut self.uring, &guests, &mut told);
            self.now = crate::clock::now();
            if told.iter().any(|told| matches!(told, Completion::Failed)) {
                let why = kept.store.why_failed().unwrap_or("it was found damaged").to_owned();
                eprintln!("loadline: the device of replica {} has failed: {why}", id.0);
            }
            for completion in told.drain(..) {
                self.step_replica(id, replica::Event::Store(completion));
            }
            self.told = told;
            self.tell_unusable(id);
            if more {
                self.list(id);
            }
        }
    }

    fn step_replica(&mut self, id: ReplicaId, event: replica::Event<Blocks>) {
        let Some(kept) = self.replicas.get_mut(&id) else { return };
        let (mut actions, mut sent) = (std::mem::take(&mut self.of_replica), std::mem::take(&mut self.sent));
        let wanted = kept.step(self.now, event, &mut actions, &mut sent);
        if let Some(at) = kept.replica.wake_at() {
            self.wakes.push(Reverse((at, id)));
        }
        for action in sent.drain(..) {
            let replica::Action::Send(node, from, answer) = action else { continue };
            if node == self.options.me.node {
                self.local.push_back(Local::ToOwner(from, answer));
            } else if let Some(peer) = self.peers.get_mut(&node)
                && !self.dropped.contains(&node)
            {
                peer.say_to_owner(&from, &answer);
                (self.said, self.talked) = (true, true);
            }
        }
        (self.of_replica, self.sent) = (actions, sent);
        if wanted {
            if let Some(kept) = self.replicas.get_mut(&id) {
                kept.busy = true;
            }
            self.list(id);
        }
    }

    fn step_volume(&mut self, id: VolumeId, event: Event<Blocks>) {
        let Some(served) = self.volumes.get_mut(&id) else { return };
        let mut actions = std::mem::take(&mut self.of_volume);
        let now = self.now;
        if let Event::Request(request) = &event {
            served.begins(request.id, now);
        }
        served.volume.step(now, event, &mut actions);
        let (mut ended, mut again, mut admission) = (false, false, false);
        for action in actions.drain(..) {
            let Some(served) = self.volumes.get_mut(&id) else { break };
            match action {
                volume::Action::Send { to, header, message } => {
                    if let ToReplica::Read { blocks, .. } = &message {
                        let front = &mut served.front_end;
                        let here = to == self.options.me.node;
                        let bytes = if here { &mut front.read_here } else { &mut front.read_elsewhere };
                        *bytes += u64::from(*blocks) * BLOCK_BYTES as u64;
                    }
                    if to == self.options.me.node {
                        self.local.push_back(Local::ToReplica(header, message));
                    } else if let Some(peer) = self.peers.get_mut(&to)
                        && !self.dropped.contains(&to)
                    {
                        peer.say_to_replica(&header, &message);
                        (self.said, self.talked) = (true, true);
                    }
                }
                volume::Action::Look { asked_at } => (self.tell)(Report::Look(id, asked_at)),
                volume::Action::Ask { nodes, within_ns } => (self.tell)(Report::Ask(nodes, within_ns)),
                volume::Action::Propose { record, replaces } => {
                    (self.tell)(Report::Propose(id, record, replaces));
                }
                volume::Action::Fill { request, at, blocks, content } => {
                    if let Some(at_work) = served.at_work.get(&request)
                        && let Some(client) = self.clients.get_mut(&at_work.client)
                    {
                        client.fill(at_work.slot, at, blocks, content);
                    }
                }
                volume::Action::Map { request, map } => {
                    if let Some(at_work) = served.at_work.get(&request)
                        && let Some(client) = self.clients.get_mut(&at_work.client)
                    {
                        client.map(at_work.slot, map);
                    }
                }
                volume::Action::Merge { ownership, job, request, head, tail } => {
                    let merged = served.merge(&self.pool, &request, (head.as_ref(), tail.as_ref()));
                    self.local.push_back(Local::Merged(id, ownership, job, merged));
                }
                volume::Action::Attached => {
                    served.attached = true;
                    admission = true;
                    self.attached_anew(id);
                    (self.tell)(Report::Attached(id));
                    again |= self.let_in(id);
                }
                volume::Action::Detached => {
                    admission = true;
                    self.detached(id, &Why::Elsewhere);
                }
                volume::Action::Complete(request, result) => {
                    ended = true;
                    if let Some(at_work) = served.ended(request, result.is_ok(), now)
                        && let Some(client) = self.clients.get_mut(&at_work.client)
                    {
                        let key = at_work.client;
                        match result {
                            // A client that connects again finds the volume where it is served. A front-end has kept
                            // what is in flight.
                            Err(Failure::Deposed | Failure::NotAttached) => {
                                self.broken.push((key, Why::NotServed));
                            }
                            result => {
                                if let Err(why) = client.complete(at_work.slot, result) {
                                    self.broken.push((key, Why::Protocol(why.to_string())));
                                }
                                if self.answered.last() != Some(&key) {
                                    self.answered.push(key);
                                }
                            }
                        }
                    }
                }
                volume::Action::Done(result) => {
                    if let Some(number) = served.order_of(&result) {
                        (self.tell)(Report::Ordered(number, result));
                    }
                }
            }
        }
        self.of_volume = actions;
        if let Some(served) = self.volumes.get_mut(&id).filter(|served| served.claims) {
            served.claims = !matches!(served.volume.status(), Status::Active | Status::Changing);
        }
        if admission {
            self.give_way(id);
        }
        if let Some(served) = self.volumes.get_mut(&id)
            && served.volume.blocked().is_some() != served.blocked
        {
            served.blocked = !served.blocked;
            (self.tell)(Report::Blocked(id, served.volume.blocked().map(ToString::to_string)));
        }
        if again {
            self.local.push_back(Local::Attach(id));
        }
        if ended {
            self.begin_soon(id);
        }
    }

    // ---- time ------------------------------------------------------------------------------------------

    fn pass_time(&mut self) {
        let now = self.now;
        if self.has_faults {
            self.has_faults = self.replicas.values().any(Kept::has_fault);
            let late: Vec<ReplicaId> =
                self.replicas.iter().filter(|(_, kept)| kept.is_late(now)).map(|(id, _)| *id).collect();
            for id in late {
                self.replicas.get_mut(&id).expect("it is there").take_late(now);
                self.list(id);
            }
        }
        while let Some(Reverse((at, id))) = self.wakes.peek().copied()
            && at <= now
        {
            self.wakes.pop();
            self.step_replica(id, replica::Event::Wake);
        }
        if now >= self.next_tick {
            self.next_tick = now.after(self.tick_ns);
            self.ticks += 1;
            let turn = self.ticks % IDLE_TICKS;
            let due = |(id, served): (&VolumeId, &Served)| {
                (served.is_busy() || id.0 % IDLE_TICKS == turn).then_some(*id)
            };
            let ids: Vec<VolumeId> = self.volumes.iter().filter_map(due).collect();
            ids.into_iter().for_each(|id| self.step_volume(id, Event::Wake));
        }
        if now >= self.next_store_tick {
            self.next_store_tick = now.after(STORE_TICK_NS);
            self.store_ticks += 1;
            if self.store_ticks.is_multiple_of(LET_GO_TICKS) {
                self.pool.let_go();
            }
            let turn = self.store_ticks % IDLE_TICKS;
            let (mut ticked, mut scrubs) = (Vec::new(), false);
            for (id, kept) in &mut self.replicas {
                let fast = kept.scrubs_fast();
                scrubs |= fast;
                let active = std::mem::take(&mut kept.busy) || kept.store.is_destaging();
                if active || fast || id.0 % IDLE_TICKS == turn {
                    kept.store.tick();
                    ticked.push(*id);
                }
            }
            ticked.into_iter().for_each(|id| self.list(id));
            if scrubs || self.scrubs {
                self.scrubs = scrubs;
                self.share_out_scrub();
            }
            self.close_replicas();
            self.take_late();
            if self.store_ticks.is_multiple_of(WAITS_TICKS) {
                self.end_waits();
            }
        }
        self.work_off();
    }
}

impl std::fmt::Debug for EventLoop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("EventLoop");
        shown.field("volumes", &self.volumes.len()).field("replicas", &self.replicas.len());
        shown.field("clients", &self.clients.len()).finish()
    }
}
