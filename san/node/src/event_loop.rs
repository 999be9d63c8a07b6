//! The data path: one thread, one ring, and all volumes, replicas and clients that belong to it.
//!
//! ```text
//!   ring: sockets ready, devices done ─▶ front ends ─▶ volumes ─▶ replicas ─▶ stores ─▶ devices
//!    ▲                                      ▲            │  ▲       │ │                   │
//!    │                                      └────────────┘  └───────┘ └─▶ peers           │
//!    └────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! The loop owns four parts, each with its own state, and routes requests between them. Nothing is shared with other threads or
//! locked but what devices begin with, and nothing waits but for that, and for the opening of a replica. What comes in together
//! is carried out together: all requests that are there go into one append, all answers into one message.
//!
//! | module | idea |
//! | --- | --- |
//! | [`command`] | what the control path has a loop do, and what a loop reports |
//! | `control` | carries out these commands |
//! | `front_ends`, `client` | clients: their sessions receive requests and send answers |
//! | `units` | logical units of SCSI, and sessions that stand by at a node that does not own their volume |
//! | `admission`, `leave` | clients are let in, and their connections end, each for a reason |
//! | `volumes`, `volume_host` | volumes, each with the requests of its clients |
//! | `replicas`, `replica_host` | replicas, each with its store and its devices |
//! | `peers`, [`peer_sender`], `peer_receiver` | other nodes |
//! | `route` | delivers the actions of each part |
//! | `direct_reads` | reads into the memory of clients |
//! | [`tracer`] | follows single requests from their arrival to their answer |
//! | `rest` | what the loop does when there is nothing to do |
//! | [`confirmed`], `backlog` | hosts that do not confirm what they are sent; clients that have many answers to read |
//! | [`counts`], [`latencies`] | what is counted of I/O |
//! | `blocks`, `keys` | whole blocks of what clients write; keys of connections |

mod admission;
mod backlog;
mod blocks;
mod client;
pub mod command;
pub mod confirmed;
mod control;
pub mod counts;
mod direct_reads;
mod front_ends;
mod held_back;
mod keys;
pub mod latencies;
mod leave;
mod limiter;
mod peer_receiver;
pub mod peer_sender;
mod peers;
mod replica_host;
mod replicas;
mod rest;
mod route;
pub mod tracer;
mod units;
mod volume_host;
mod volumes;
mod waiting;
mod why;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use loadline_base::limits;
use loadline_san_core::ids::{Owner, VolumeId};
use loadline_san_core::lease::Moment;
use loadline_san_core::message::ToReplica;
use loadline_san_core::replica;
use loadline_san_core::volume::{self, Event};
use loadline_san_device::pool::{Blocks, Class, Pool};
use loadline_san_device::uring::{For, Uring, UringError, UringOptions};
use loadline_san_export::block::BlockRequest;
use loadline_san_protocol::ClusterId;
use nix::sys::eventfd::{EfdFlags, EventFd};
use thiserror::Error;

use command::{LoopCommand, LoopEvent};
use front_ends::{FrontEnds, Ring};
use keys::Keys;
use peer_receiver::PeerMessage;
use peers::Peers;
use replicas::Replicas;
use route::Local;
use units::Units;
use volumes::Volumes;

pub(crate) use volume_host::MOST_EXTENTS;
pub use volume_host::{most_bytes, most_in_flight};

/// The key of what wakes the loop.
const WAKE: u32 = 0;
/// Between two ticks of the stores.
const STORE_TICK_NS: u64 = 100_000_000;
/// Unused memory of the pool goes back to the system after so many of these ticks, or twice as many.
const LET_GO_TICKS: u64 = 50;
/// So many of these ticks come at once, if the loop was idle when they were due.
const LATE_TICKS: u32 = 3;
/// A loop that has not read the clock for so long was stopped.
const STOPPED_NS: u64 = 1_000_000_000;
/// Clients that wait for too long are searched for in each of so many ticks.
const WAITS_TICKS: u64 = 5;
/// Idle volumes and replicas get one tick of so many: as many as there are in the time between two heartbeats. All idle volumes get
/// the same one, so that their heartbeats go to a node together, and wake it once.
const IDLE_TICKS: u64 = 4;
/// Replicas on devices that are not in memory.
const MOST_STORES: u32 = 4096;
/// Completions of devices are handled in parts: a share of all I/Os in flight, and at least this many. Some devices complete all
/// their I/Os together, and then are idle until a client sends its next request, so clients get their answers soon. With 32
/// outstanding, parts of 4 and 8 were slower than these.
const DONE_SHARE: usize = 16;
const LEAST_DONE: usize = 2;
/// How a loop is made.
#[derive(Debug, Clone, Copy)]
pub struct LoopOptions {
    /// This life of the node's process.
    pub me: Owner,
    /// The address at which the node listens for other nodes, from which it connects to them if it is a specific one.
    pub own: SocketAddr,
    /// The cluster that it is in.
    pub cluster: ClusterId,
    /// Which of the node's loops this is.
    pub number: u32,
    /// How long it polls before it sleeps; 0 if loops outnumber cores.
    pub spin: Duration,
    /// What random numbers are made from.
    pub seed: u64,
    /// How long a client's request waits while its volume is not served.
    pub client_wait: Duration,
    /// How often all initiators that stand by are reported, whatever has become of earlier reports.
    pub sweep: Duration,
    /// Connections between nodes are protected: each begins with a handshake.
    pub is_protected: bool,
}

/// Why a loop cannot be.
#[derive(Debug, Error)]
pub enum LoopError {
    /// The ring could not be set up.
    #[error(transparent)]
    Ring(#[from] UringError),
    /// Memory, or what wakes it.
    #[error("a thread for the data path cannot be made: {0}")]
    Io(#[from] io::Error),
}

/// Gives commands to a loop, from any thread.
#[derive(Debug, Clone)]
pub struct LoopSender {
    sender: Sender<LoopCommand>,
    wake: Arc<EventFd>,
}

impl LoopSender {
    /// Gives a command. False if the loop has ended.
    pub fn give(&self, command: LoopCommand) -> bool {
        // It wakes at the latest when it would have woken anyway.
        self.sender.send(command).is_ok() && self.wake.write(1).is_ok()
    }

    /// Gives several commands, for which it wakes once. False if the loop has ended.
    pub fn give_all(&self, commands: Vec<LoopCommand>) -> bool {
        commands.into_iter().all(|command| self.sender.send(command).is_ok()) && self.wake.write(1).is_ok()
    }

    /// Whether it gives commands to the same loop.
    pub fn is_same(&self, other: &LoopSender) -> bool {
        Arc::ptr_eq(&self.wake, &other.wake)
    }
}

/// A thread of the data path. See the module.
pub struct EventLoop {
    options: LoopOptions,
    pool: Pool,
    uring: Uring,
    wake: Arc<EventFd>,
    commands: Receiver<LoopCommand>,
    report: Box<dyn Fn(LoopEvent)>,
    front_ends: FrontEnds,
    volumes: Volumes,
    units: Units,
    replicas: Replicas,
    /// Per cent of what volumes have in flight that are copies to returning replicas, at the least.
    reserved: u32,
    peers: Peers,
    /// What goes between volumes and replicas, and is not carried out yet.
    local: VecDeque<Local>,
    keys: Keys,
    /// Requests of clients that were begun since the loop has waited, and messages for replicas.
    begun: usize,
    /// How many those were between two waits, on average of late.
    together: f32,
    /// A moment that is no earlier than that at which anything that is being carried out was received: the clock is not asked
    /// for each step. That it may be a little late is as if the thread had been stopped for so long: a stale clock can only shorten
    /// a lease for its holder, never for its grantor.
    now: Moment,
    next_tick: Moment,
    next_idle_tick: Moment,
    next_store_tick: Moment,
    store_ticks: u64,
    /// When a client's request was last begun here, or a replica here was last asked for more than a lease.
    worked: Moment,
    stopped: bool,
    // Vectors that are used again.
    requests: Vec<BlockRequest>,
    of_volume: Vec<volume::Action<Blocks>>,
    /// Volumes with a request that is followed, is complete, and is not known to be answered.
    traced: Vec<VolumeId>,
}

/// Replicas that a loop can have. A ring has places for two files of each, and the system allows no more places than the process
/// may have open files.
fn most_stores() -> u32 {
    u32::try_from(limits::open_files() / 2).unwrap_or(MOST_STORES).clamp(1, MOST_STORES)
}

impl EventLoop {
    /// A loop with nothing to do, to be run on this thread, with its commands. What it has to report it reports by `report`,
    /// which is not to wait.
    pub fn new(
        options: LoopOptions,
        commands: (LoopSender, Receiver<LoopCommand>),
        report: Box<dyn Fn(LoopEvent)>,
    ) -> Result<EventLoop, LoopError> {
        // 88 MiB, which the kernel pins where it may; and 224 MiB for what waits to be destaged, while it does.
        let classes = [(1, 8192), (4, 512), (16, 256), (64, 64), (256, 16)];
        let classes = classes.map(|(blocks, buffers)| Class { blocks, buffers });
        let pool = Pool::with_spare(&classes, Class { blocks: 1, buffers: 56 << 10 })?;
        let mut uring = Uring::new(
            UringOptions { spin: options.spin, stores: most_stores(), in_flight: 256 },
            pool.clone(),
        )?;
        let (LoopSender { wake, .. }, commands) = commands;
        uring.watch(wake.as_fd().as_raw_fd(), WAKE, For::Input)?;
        let now = crate::clock::now();
        Ok(EventLoop {
            options,
            pool,
            uring,
            wake,
            commands,
            report,
            front_ends: FrontEnds::default(),
            volumes: Volumes::new(options),
            units: Units::default(),
            replicas: Replicas::default(),
            reserved: 0,
            peers: Peers::new(options),
            local: VecDeque::new(),
            keys: Keys::from(WAKE + 1),
            begun: 0,
            together: 0.0,
            now,
            next_tick: now,
            next_idle_tick: now,
            next_store_tick: now,
            store_ticks: 0,
            worked: now,
            stopped: false,
            requests: Vec::new(),
            of_volume: Vec::new(),
            traced: Vec::new(),
        })
    }

    /// What gives commands to a loop that is to be made.
    pub fn commands() -> io::Result<(LoopSender, Receiver<LoopCommand>)> {
        let (sender, receiver) = std::sync::mpsc::channel();
        let wake = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?);
        Ok((LoopSender { sender, wake }, receiver))
    }

    /// Runs until [`LoopCommand::Stop`]. Fails if the kernel refuses to serve the ring.
    pub fn run(mut self) -> io::Result<()> {
        // What is waited for is shorter than the 50 us by which the kernel may be late otherwise. Where it refuses, it is.
        let _ = nix::sys::prctl::set_timerslack(1);
        while !self.stopped {
            self.poll_queues();
            let more = self.uring.has_news()
                || self.replicas.have_work()
                || self.front_ends.have_readable()
                || self.peers.have_readable()
                || !self.local.is_empty()
                || self.volumes.have_waiting();
            if more {
                self.uring.poll()?;
            } else {
                self.rest()?;
                self.poll_queues();
            }
            while let Some((key, what)) = self.uring.ready() {
                self.ready(key, what)?;
            }
            if self.uring.has_news() {
                self.now = crate::clock::now();
            }
            for _ in 0..(self.uring.not_taken() / DONE_SHARE).max(LEAST_DONE) {
                let Some((number, token, done)) = self.uring.take() else { break };
                self.replicas.done(number, token, done, self.now);
            }
            if crate::clock::now().since(self.now) >= STOPPED_NS {
                // This process was stopped: clients may have gone long before others have sent what is read first.
                self.disconnect_closed(|_| true);
            }
            self.receive();
            self.now = crate::clock::now();
            self.work_off();
            self.pass_time();
            self.answer();
            self.flush_peers();
        }
        Ok(())
    }

    fn ready(&mut self, key: u32, what: For) -> io::Result<()> {
        if key == WAKE {
            let _ = self.wake.read();
            self.uring.watch(self.wake.as_fd().as_raw_fd(), WAKE, For::Input)?;
            while let Ok(command) = self.commands.try_recv() {
                self.now = crate::clock::now();
                self.carry_out(command);
            }
        } else if !self.front_ends.ready(key, what) {
            self.peers.ready(key, what);
        }
        Ok(())
    }

    // ---- sockets and queues ----------------------------------------------------------------------------

    /// Receives from all clients and nodes that are ready now.
    fn receive(&mut self) {
        let EventLoop { peers, replicas, local, begun, worked, now, .. } = self;
        let group_of = |id| replicas.group_of(id);
        peers.receive(&mut self.uring, &self.pool, group_of, |message| match message {
            PeerMessage::ToReplica(from, message) => {
                if !matches!(message, ToReplica::Heartbeat { .. } | ToReplica::Probe) {
                    *begun += 1;
                    *worked = *now;
                }
                local.push_back(Local::ToReplica(from, message));
            }
            PeerMessage::ToOwner(from, message) => local.push_back(Local::ToOwner(from, message)),
        });
        for _ in 0..self.front_ends.count_readable() {
            let Some(key) = self.front_ends.next_readable() else { break };
            self.receive_from(key);
        }
    }

    /// A client's session receives, and its volume gets its requests.
    fn receive_from(&mut self, key: u32) {
        let mut requests = std::mem::take(&mut self.requests);
        let EventLoop { uring, pool, keys, now, .. } = self;
        let volume = self.front_ends.receive(key, &mut Ring { uring, pool, keys, now: *now }, &mut requests);
        if let Some(volume) = volume {
            if let Some(host) = self.volumes.get_mut(volume) {
                requests.drain(..).for_each(|request| host.ask(key, request, *now));
            }
            self.volumes.begin_soon(volume);
        }
        requests.clear();
        self.requests = requests;
        self.front_ends.note_start(key);
        self.drop_gone();
    }

    /// Takes what is in queues while other things are done for long, such as destaging: of clients whose volumes carry nothing out.
    /// (Otherwise more comes together, which costs less.)
    fn receive_queued(&mut self) {
        let mut place = 0;
        while let Some((key, volume)) = self.front_ends.queued(place) {
            place += 1;
            let is_idle = |volume| self.volumes.get(volume).is_some_and(|host| host.at_work.is_empty());
            if volume.is_some_and(is_idle) {
                self.receive_from(key);
            }
        }
    }

    fn poll_queues(&mut self) {
        self.front_ends.poll_queues(&mut self.uring);
        self.drop_gone();
    }

    /// Sends what clients are to be answered.
    fn answer(&mut self) {
        let EventLoop { uring, pool, keys, now, .. } = self;
        self.front_ends.answer(&mut Ring { uring, pool, keys, now: *now });
        if !self.traced.is_empty() {
            self.answer_traced();
        }
        self.report_changes();
        self.drop_gone();
    }

    /// Sends what other nodes are to be sent.
    fn flush_peers(&mut self) {
        let EventLoop { uring, keys, local, .. } = self;
        let mut unproved = Vec::new();
        let news = |node, runs| local.push_back(Local::Node(node, runs));
        self.peers.flush(uring, keys, self.now, news, |node, connection| unproved.push((node, connection)));
        unproved.into_iter().for_each(|(node, connection)| (self.report)(LoopEvent::Prove(node, connection)));
    }

    // ---- time ------------------------------------------------------------------------------------------

    fn pass_time(&mut self) {
        let now = self.now;
        self.replicas.tell_held(now);
        self.volumes.begin_limited(now);
        while let Some(id) = self.replicas.take_due(now) {
            self.step_replica(id, replica::Event::Wake);
        }
        let idle_too = now >= self.next_idle_tick;
        if idle_too || now >= self.next_tick {
            let tick_ns = self.volumes.tick_ns();
            self.next_tick = now.after(tick_ns);
            if idle_too {
                self.next_idle_tick = now.after(IDLE_TICKS * tick_ns);
            }
            let due = self.volumes.due(idle_too);
            due.into_iter().for_each(|id| self.step_volume(id, Event::Wake));
        }
        // An idle loop comes late, and makes up for it. One that was stopped does not.
        for _ in 0..LATE_TICKS {
            if now >= self.next_store_tick {
                self.next_store_tick = self.next_store_tick.after(STORE_TICK_NS);
                self.tick_stores();
            }
        }
        if now >= self.next_store_tick {
            self.next_store_tick = now.after(STORE_TICK_NS);
        }
        self.work_off();
    }

    fn tick_stores(&mut self) {
        self.store_ticks += 1;
        if self.store_ticks.is_multiple_of(LET_GO_TICKS) {
            self.pool.let_go();
        }
        self.replicas.tick(self.store_ticks);
        self.end_closing();
        self.end_traces();
        self.front_ends.take_late();
        if self.store_ticks.is_multiple_of(WAITS_TICKS) {
            self.end_waits();
        }
    }

    /// Replicas that are to be given up go when their devices do nothing for them any more.
    fn end_closing(&mut self) {
        let report = &self.report;
        self.replicas.end_closing(&mut self.uring, |id| report(LoopEvent::Closed(id)));
    }
}

impl std::fmt::Debug for EventLoop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventLoop").field("number", &self.options.number).finish_non_exhaustive()
    }
}
