//! The data path: one thread, one ring, and all volumes, replicas and clients that belong to it.
//!
//! ```text
//!   ring: sockets ready, devices done ─▶ clients ─▶ volumes ─▶ replicas ─▶ stores ─▶ devices
//!    ▲                                      ▲          │  ▲       │ │                   │
//!    │                                      └──────────┘  └───────┘ └─▶ peers           │
//!    └──────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Nothing blocks, nothing is shared with other threads, nothing is locked but what devices begin with. What comes in
//! together is carried out together: all requests that are there go into one append, all answers into one message.
//!
//! | module | idea |
//! | --- | --- |
//! | [`order`] | what the control path tells a loop, and is told |
//! | `served` | a volume, with the requests of its clients |
//! | `kept` | a replica, with its store and its devices |
//! | `client` | a connection of a client |
//! | [`peer`] | what is said to another node |
//! | `heard` | what it says |
//! | `blocks` | whole blocks of what clients write |

mod blocks;
mod client;
mod heard;
mod kept;
pub mod order;
pub mod peer;
mod served;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use foldhash::fast::RandomState;
use loadline_san_core::ids::{Epoch, NodeId, Owner, ReplicaId, VolumeId};
use loadline_san_core::lease::Moment;
use loadline_san_core::message::{FromOwner, FromReplica, Job, ToOwner, ToReplica};
use loadline_san_core::replica::{self, Replica};
use loadline_san_core::store::Completion;
use loadline_san_core::volume::{self, Event, Times, Volume};
use loadline_san_device::direct::Direct;
use loadline_san_device::pool::{Blocks, Class, Pool};
use loadline_san_device::uring::{Uring, UringError, UringOptions};
use loadline_san_export::nbd::session::Session;
use loadline_san_protocol::ClusterId;
use loadline_san_store::open::open;
use nix::sys::eventfd::{EfdFlags, EventFd};
use thiserror::Error;

use client::{Client, Received};
use heard::{Heard, Hearing};
use kept::{Io, Kept};
use order::{LoopState, NewClient, OpenReplica, OpenVolume, Order, Report, VolumeState};
use peer::{Outgoing, Preamble};
use served::Served;

pub use served::MOST_BLOCKS_IN_FLIGHT;

/// The key of what wakes the loop.
const WAKE: u32 = 0;
/// Connections of clients at most.
const MOST_CLIENTS: usize = 4096;
/// Between two ticks of the stores.
const STORE_TICK_NS: u64 = 100_000_000;
/// Bytes that all stores look through for what has rotted in each of these: 2 MiB a second, a TiB in six days.
const SCRUB: u64 = 200 << 10;
/// What nobody uses gets one tick of so many: as many as there are in the time between two heartbeats.
const IDLE_TICKS: u64 = 4;
/// It sleeps no longer than this.
const LONGEST: Duration = Duration::from_millis(500);
/// Times that stores do what they can before sockets are looked at again.
const RUNS: usize = 64;

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
    wakes: BinaryHeap<Reverse<(Moment, ReplicaId)>>,
    next_tick: Moment,
    next_store_tick: Moment,
    ticks: u64,
    store_ticks: u64,
    tick_ns: u64,
    stopped: bool,
    // Vectors that are used again.
    of_volume: Vec<volume::Action<Blocks>>,
    of_replica: Vec<replica::Action<Blocks>>,
    sent: Vec<replica::Action<Blocks>>,
    told: Vec<Completion<Blocks>>,
}

impl EventLoop {
    /// A loop with nothing to do, to be run on this thread, and how to give it orders. What it has to tell it tells by
    /// `tell`, which is not to wait.
    pub fn new(
        options: LoopOptions,
        orders: (Orders, Receiver<Order>),
        tell: Box<dyn Fn(Report)>,
    ) -> Result<EventLoop, LoopError> {
        // 72 MiB, which the kernel pins where it may.
        let classes = [(1, 4096), (4, 512), (16, 256), (64, 64), (256, 16)];
        let pool = Pool::new(&classes.map(|(blocks, buffers)| Class { blocks, buffers }))?;
        let mut uring =
            Uring::new(UringOptions { spin: options.spin, ..UringOptions::default() }, pool.clone())?;
        let (Orders { wake, .. }, orders) = orders;
        uring.watch(wake.as_fd().as_raw_fd(), WAKE, false)?;
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
            wakes: BinaryHeap::new(),
            next_tick: now,
            next_store_tick: now,
            ticks: 0,
            store_ticks: 0,
            tick_ns: STORE_TICK_NS,
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
        while !self.stopped {
            let more = !self.listed.is_empty() || !self.readable.is_empty() || !self.local.is_empty();
            if more {
                self.uring.poll()?;
            } else {
                let limit = self.time_to_next();
                self.uring.wait(limit)?;
            }
            while let Some(key) = self.uring.ready() {
                self.ready(key)?;
            }
            while let Some((number, token, done)) = self.uring.take() {
                if let Some(id) = self.of_ring.get(&number).copied() {
                    self.replicas.get_mut(&id).expect("it is there").done(token, done);
                    self.list(id);
                }
            }
            for _ in 0..self.readable.len() {
                let key = self.readable.pop_front().expect("there are so many");
                self.read(key);
            }
            self.work_off();
            self.pass_time();
            self.answer();
            self.speak();
        }
        Ok(())
    }

    fn time_to_next(&self) -> Duration {
        let mut next = self.next_tick.min(self.next_store_tick);
        if let Some(Reverse((at, _))) = self.wakes.peek() {
            next = next.min(*at);
        }
        Duration::from_nanos(next.since(crate::clock::now())).min(LONGEST)
    }

    fn ready(&mut self, key: u32) -> io::Result<()> {
        if key == WAKE {
            let _ = self.wake.read();
            self.uring.watch(self.wake.as_fd().as_raw_fd(), WAKE, false)?;
            while let Ok(order) = self.orders.try_recv() {
                self.order(order);
            }
        } else if let Some(client) = self.clients.get_mut(&key) {
            (client.watched, client.watched_for_room, client.blocked) = (false, false, false);
            self.readable.push_back(key);
            self.answered.push(key);
        } else if self.hearings.contains_key(&key) {
            self.readable.push_back(key);
        } else if let Some(node) = self.to_peers.get(&key)
            && let Some(peer) = self.peers.get_mut(node)
            && peer.key == key
        {
            peer.ready(crate::clock::now());
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

    // ---- orders ----------------------------------------------------------------------------------------

    fn order(&mut self, order: Order) {
        match order {
            Order::OpenReplica(open) => {
                let id = open.id.replica;
                let opened = self.open_replica(*open);
                (self.tell)(Report::Opened(id, opened));
            }
            Order::CloseReplica(id) => {
                self.closing.push(id);
                self.close_replicas();
            }
            Order::OpenVolume(open) => self.open_volume(open),
            Order::CloseVolume(id) => {
                self.step_volume(id, Event::Detach);
                self.detached(id);
                self.volumes.remove(&id);
            }
            Order::Watch(id, watch) => self.step_volume(id, Event::Watch(watch)),
            Order::Attach(id) => self.step_volume(id, Event::Attach),
            Order::Detach(id) => {
                self.step_volume(id, Event::Detach);
                self.detached(id);
            }
            Order::Volume(id, order) => self.step_volume(id, Event::Order(order)),
            Order::Seen(id, record, asked_at) => self.step_volume(id, Event::Seen(*record, asked_at)),
            Order::Swapped(id, proposal, answer, asked_at) => {
                self.step_volume(id, Event::Swapped(proposal, answer, asked_at));
            }
            Order::Client(new) => self.new_client(*new),
            Order::Peer(node, address) => {
                let now = crate::clock::now();
                let LoopOptions { me, cluster, number, .. } = self.options;
                let preamble = Preamble { cluster, from: me.node, to: node, to_loop: number };
                let peer = self.peers.entry(node).or_insert_with(|| Outgoing::new(address, preamble, now));
                peer.moved(address, now);
            }
            Order::Hear(socket, from) => {
                let key = self.key();
                self.hearings.insert(key, Hearing::new(socket, from, self.options.cluster));
                self.readable.push_back(key);
            }
            Order::Look => (self.tell)(Report::State(self.state())),
            Order::Stop => self.stopped = true,
        }
    }

    fn open_replica(&mut self, new: OpenReplica) -> Result<(), String> {
        let OpenReplica { id, lease_ns, mut devices, log, capacity, settings, process } = new;
        let (store, found, damage) =
            open(&mut devices, &log, &capacity, id.replica, settings).map_err(|why| why.to_string())?;
        if let Some(damage) = damage.first() {
            eprintln!("loadline: replica {} is damaged, and is not used: {damage}", id.replica.0);
        }
        let io = match devices.are_in_memory() {
            true => Io::Direct(Box::new(Direct::new(devices, self.pool.clone()))),
            false => {
                let capacity = devices.capacity.as_ref().map(AsFd::as_fd);
                let number = self.uring.add(devices.log.as_fd(), capacity).map_err(|why| why.to_string())?;
                self.of_ring.insert(number, id.replica);
                Io::Ring(number, devices)
            }
        };
        let now = crate::clock::now();
        let replica = Replica::new(id.volume, id.replica, process, lease_ns, &found, now);
        self.replicas.insert(id.replica, Kept::new(replica, store, io));
        self.share_out_scrub();
        self.list(id.replica);
        Ok(())
    }

    /// However many stores there are, together they look through no more.
    fn share_out_scrub(&mut self) {
        // Idle ones have fewer ticks.
        let each = SCRUB * IDLE_TICKS / self.replicas.len().max(1) as u64;
        self.replicas.values_mut().for_each(|kept| kept.store.scrub_at(each));
    }

    /// Those that are to be given up go when their devices do nothing for them any more.
    fn close_replicas(&mut self) {
        for id in std::mem::take(&mut self.closing) {
            let busy = match self.replicas.get(&id).map(|kept| &kept.io) {
                Some(Io::Ring(number, _)) => self.uring.remove(*number).is_err(),
                Some(Io::Direct(_)) | None => false,
            };
            if busy {
                self.closing.push(id);
                continue;
            }
            if let Some(kept) = self.replicas.remove(&id)
                && let Io::Ring(number, _) = kept.io
            {
                self.of_ring.remove(&number);
            }
            self.listed.retain(|listed| *listed != id);
            self.share_out_scrub();
            (self.tell)(Report::Closed(id));
        }
    }

    fn open_volume(&mut self, open: OpenVolume) {
        let times = Times::of_lease(open.lease_ns);
        self.tick_ns = self.tick_ns.min(times.tick_ns);
        if let Some(served) = self.volumes.get_mut(&open.id) {
            served.open = open;
        } else {
            let seed = self.options.seed ^ open.id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let volume = Volume::new(self.options.me, open.id, times, seed, crate::clock::now());
            self.volumes.insert(open.id, Served::new(volume, open));
        }
        self.step_volume(open.id, Event::Watch(open.watch));
    }

    fn state(&self) -> LoopState {
        let volumes = self.volumes.iter().map(|(id, served)| VolumeState {
            id: *id,
            status: served.volume.status(),
            clients: served.clients,
            unanswered: served.volume.unanswered(),
            returning: served.volume.returning(),
        });
        LoopState { volumes: volumes.collect(), clients: self.clients.len() }
    }

    // ---- clients ---------------------------------------------------------------------------------------

    fn new_client(&mut self, new: NewClient) {
        let NewClient { socket, volume, bytes, choice, rest } = new;
        if self.clients.len() >= MOST_CLIENTS {
            eprintln!("loadline: a client of volume {} is hung up on: {MOST_CLIENTS} are there", volume.0);
            return;
        }
        // Who is not let in is hung up on: the volume has moved since.
        let Some(served) = self.volumes.get_mut(&volume).filter(|served| served.let_in) else { return };
        served.clients += 1;
        let key = self.key();
        let session = Session::new(choice, bytes, &rest);
        self.clients.insert(
            key,
            Client {
                socket,
                session,
                volume,
                watched: false,
                watched_for_room: false,
                blocked: false,
                paused: false,
            },
        );
        self.readable.push_back(key);
    }

    /// A key that no connection has had.
    fn key(&mut self) -> u32 {
        let key = self.next_key;
        self.next_key =
            self.next_key.checked_add(1).expect("fewer than 2^32 connections in a process's life");
        key
    }

    /// Takes what a client has sent, or a node.
    fn read(&mut self, key: u32) {
        if self.hearings.contains_key(&key) {
            self.hear(key);
            return;
        }
        let Some(client) = self.clients.get_mut(&key) else { return };
        let Some(served) = self.volumes.get_mut(&client.volume) else { return };
        let mut received = Received::Nothing;
        if client.session.wants_bytes() {
            received = client::receive(&client.socket, client.session.space());
            if let Received::Some(bytes) = received {
                client.session.received(bytes);
            }
        }
        loop {
            match client.session.next(&self.pool) {
                Ok(Some(asked)) => served.ask(key, asked),
                Ok(None) => break,
                Err(why) => {
                    eprintln!("loadline: a client of volume {} is hung up on: {why}", client.volume.0);
                    received = Received::End;
                    break;
                }
            }
        }
        let volume = client.volume;
        client.paused = !client.session.wants_bytes();
        if received == Received::End {
            self.hang_up(key);
        } else {
            // What is refused is answered at once.
            self.answered.push(key);
        }
        self.begin(volume);
    }

    /// Begins requests of clients, as many as may be at work.
    fn begin(&mut self, id: VolumeId) {
        while let Some(request) = self.volumes.get_mut(&id).and_then(Served::begin) {
            self.step_volume(id, Event::Request(request));
        }
    }

    fn hang_up(&mut self, key: u32) {
        let Some(client) = self.clients.remove(&key) else { return };
        client::shut_down(&client.socket);
        if let Some(served) = self.volumes.get_mut(&client.volume) {
            served.leave(key);
        }
    }

    /// Sends what clients are to be told, and waits for what they say next.
    fn answer(&mut self) {
        let mut answered = std::mem::take(&mut self.answered);
        for key in answered.drain(..) {
            let Some(client) = self.clients.get_mut(&key) else { continue };
            if client.session.out.bytes() > 0 && !client.blocked {
                match client::send_all(&client.socket, &mut client.session.out) {
                    Ok(room) => client.blocked = !room,
                    Err(_) => {
                        self.hang_up(key);
                        continue;
                    }
                }
            }
            if client.session.is_over() {
                self.hang_up(key);
                continue;
            }
            // One that asks for more than it may, or does not read, is not listened to until it is answered.
            if client.paused && client.session.wants_bytes() {
                client.paused = false;
                self.readable.push_back(key);
                continue;
            }
            let waits = !client.paused && !client.watched || client.blocked && !client.watched_for_room;
            if waits {
                (client.watched, client.watched_for_room) = (true, client.blocked);
                if self.uring.watch(client.socket.as_raw_fd(), key, client.blocked).is_err() {
                    self.hang_up(key);
                }
            }
        }
        self.answered = answered;
    }

    // ---- other nodes -----------------------------------------------------------------------------------

    fn hear(&mut self, key: u32) {
        let Some(hearing) = self.hearings.get_mut(&key) else { return };
        let mut over = hearing.receive() == Received::End;
        loop {
            let group_of = |id| self.replicas.get(&id).map(|kept: &Kept| kept.store.identity().group);
            match hearing.next(&self.pool, group_of) {
                Ok(Some(Heard::ToReplica(from, message))) => {
                    self.local.push_back(Local::ToReplica(from, message));
                }
                Ok(Some(Heard::ToOwner(from, message))) => {
                    self.local.push_back(Local::ToOwner(from, message));
                }
                Ok(None) => break,
                Err(why) => {
                    eprintln!("loadline: what node {} says is not taken: {why}", hearing.from.0);
                    over = true;
                    break;
                }
            }
        }
        let fd = hearing.socket.as_raw_fd();
        if over || self.uring.watch(fd, key, false).is_err() {
            client::shut_down(&hearing.socket);
            self.hearings.remove(&key);
        }
    }

    /// Sends what other nodes are to be told.
    fn speak(&mut self) {
        let now = crate::clock::now();
        for (node, peer) in &mut self.peers {
            peer.send(now);
            if peer.connect(now) {
                self.to_peers.remove(&peer.key);
                peer.key = self.next_key;
                self.next_key += 1;
                self.to_peers.insert(peer.key, *node);
            }
            if let Some((fd, for_room)) = peer.is_to_be_watched()
                && self.uring.watch(fd, peer.key, for_room).is_err()
            {
                peer.down(now);
            }
        }
    }

    // ---- volumes and replicas --------------------------------------------------------------------------

    /// Carries out all that can be done now.
    fn work_off(&mut self) {
        for _ in 0..RUNS {
            while let Some(local) = self.local.pop_front() {
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
                }
            }
            let Some(id) = self.listed.pop_front() else { return };
            let kept = self.replicas.get_mut(&id).expect("those that are listed are there");
            kept.listed = false;
            let mut told = std::mem::take(&mut self.told);
            let more = kept.run(&mut self.uring, &mut told);
            if told.iter().any(|told| matches!(told, Completion::Failed)) {
                let why = kept.store.why_failed().unwrap_or("it was found damaged").to_owned();
                eprintln!("loadline: the device of replica {} has failed: {why}", id.0);
            }
            for completion in told.drain(..) {
                self.step_replica(id, replica::Event::Store(completion));
            }
            self.told = told;
            if more {
                self.list(id);
            }
        }
    }

    fn step_replica(&mut self, id: ReplicaId, event: replica::Event<Blocks>) {
        let Some(kept) = self.replicas.get_mut(&id) else { return };
        let (mut actions, mut sent) = (std::mem::take(&mut self.of_replica), std::mem::take(&mut self.sent));
        let wanted = kept.step(crate::clock::now(), event, &mut actions, &mut sent);
        if let Some(at) = kept.replica.wake_at() {
            self.wakes.push(Reverse((at, id)));
        }
        for action in sent.drain(..) {
            let replica::Action::Send(node, from, answer) = action else { continue };
            if node == self.options.me.node {
                self.local.push_back(Local::ToOwner(from, answer));
            } else if let Some(peer) = self.peers.get_mut(&node) {
                peer.say_to_owner(&from, &answer);
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
        served.volume.step(crate::clock::now(), event, &mut actions);
        let mut ended = false;
        for action in actions.drain(..) {
            let Some(served) = self.volumes.get_mut(&id) else { break };
            match action {
                volume::Action::Send { to, header, message } => {
                    if to == self.options.me.node {
                        self.local.push_back(Local::ToReplica(header, message));
                    } else if let Some(peer) = self.peers.get_mut(&to) {
                        peer.say_to_replica(&header, &message);
                    }
                }
                volume::Action::Look { asked_at } => (self.tell)(Report::Look(id, asked_at)),
                volume::Action::Propose { record, replaces } => {
                    (self.tell)(Report::Propose(id, record, replaces));
                }
                volume::Action::Fill { request, at, blocks, content } => {
                    if let Some(at_work) = served.at_work.get(&request)
                        && let Some(client) = self.clients.get_mut(&at_work.client)
                    {
                        client.session.fill(at_work.slot, at, blocks, content);
                    }
                }
                volume::Action::Merge { ownership, job, request, head, tail } => {
                    let merged = served.merge(&self.pool, &request, (head.as_ref(), tail.as_ref()));
                    self.local.push_back(Local::Merged(id, ownership, job, merged));
                }
                volume::Action::Attached => {
                    served.let_in = true;
                    (self.tell)(Report::Attached(id));
                }
                volume::Action::Detached => self.detached(id),
                volume::Action::Complete(request, result) => {
                    ended = true;
                    if let Some(at_work) = served.ended(request)
                        && let Some(client) = self.clients.get_mut(&at_work.client)
                    {
                        client.session.complete(at_work.slot, result);
                        self.answered.push(at_work.client);
                    }
                }
                volume::Action::Done(result) => (self.tell)(Report::Ordered(id, result)),
            }
        }
        self.of_volume = actions;
        if ended {
            self.begin(id);
        }
    }

    /// Clients of a volume are not let in any more: those that are here go.
    fn detached(&mut self, id: VolumeId) {
        let Some(served) = self.volumes.get_mut(&id) else { return };
        served.let_in = false;
        let gone: Vec<u32> =
            self.clients.iter().filter(|(_, client)| client.volume == id).map(|(key, _)| *key).collect();
        gone.into_iter().for_each(|key| self.hang_up(key));
        (self.tell)(Report::Detached(id));
    }

    // ---- time ------------------------------------------------------------------------------------------

    fn pass_time(&mut self) {
        let now = crate::clock::now();
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
            let turn = self.store_ticks % IDLE_TICKS;
            let mut ticked = Vec::new();
            for (id, kept) in &mut self.replicas {
                if std::mem::take(&mut kept.busy) || id.0 % IDLE_TICKS == turn {
                    kept.store.tick();
                    ticked.push(*id);
                }
            }
            ticked.into_iter().for_each(|id| self.list(id));
            self.close_replicas();
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
