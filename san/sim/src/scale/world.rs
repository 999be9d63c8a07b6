//! A cluster of many nodes and volumes: what happens in it, in order.

mod client;
pub(super) mod config;
mod moving;
mod process;
mod question;
mod reach;

use std::collections::{BTreeMap, BTreeSet};

use loadline_san_core::ids::{Epoch, NodeId, ReplicaId};
use loadline_san_core::lease::Moment;
use loadline_san_core::message::{FromOwner, FromReplica, Job, ToOwner, ToReplica};
use loadline_san_core::placement::{Device, DeviceId, Domain, Need, Role, place};
use loadline_san_core::record::{Record, RecordState};
use loadline_san_core::replica;
use loadline_san_core::volume::Event;

use self::client::Client;
use self::config::{Call, Load, bytes_of};
use self::moving::Successor;
use self::process::Process;
use self::question::Reached;
use self::reach::Asked;
use super::Cluster;
use crate::queue::Queue;
use crate::rng::Rng;
use crate::settings::record_of_new;
use crate::store::{Blocks, Store, new_store};
use crate::time::{Clock, MS, Time, US};
use crate::world::wire;

/// Length of leases, as volumes have by default.
pub(super) const LEASE: Time = 600 * MS;
/// Blocks of a volume: it is the work for a volume that is measured, and not the work for its data.
pub(super) const BLOCKS: u64 = 8;
/// What a copy takes of a device: its log is not counted.
pub(super) const NEED: Need = Need { data: BLOCKS, log: 0, cache: 0 };
/// Blocks that a device has room for.
const CAPACITY: u64 = 1 << 20;
/// A message from one node to another takes so long.
const WAY: (Time, Time) = (50 * US, 150 * US);
/// Other nodes notice after so long that a process has ended whose address refuses connections: two attempts, 0.1 s apart.
const REFUSED: (Time, Time) = (100 * MS, 200 * MS);
/// Other nodes connect to a process that has started within this time.
const CONNECTS: Time = 100 * MS;

/// Something that happens.
#[derive(Debug)]
pub(super) enum Happening {
    /// A message arrives at a node.
    ToReplica(usize, FromOwner, ToReplica<Blocks>),
    ToOwner(usize, FromReplica, ToOwner<Blocks>),
    /// A store does its next step.
    Disk(usize, u64, ReplicaId),
    /// A replica has asked to be woken.
    Wake(usize, u64, ReplicaId),
    /// Some time has passed.
    Tick(usize, u64),
    /// Whole blocks have been made of what a client of a volume writes.
    Merged(usize, u64, usize, Epoch, Job, Blocks),
    /// A node finds out that a process runs at another one, or that none does any more.
    Runs(usize, usize, bool),
    /// A call of the configuration store ends, with an answer or without one.
    Called(usize, u64, Call, bool),
    /// A node has had no notice of a change for a while.
    Poll(usize, u64),
    /// The next steps of questions through the store: a node polls again, reports a known answer to volumes that have asked since, or
    /// answers another node.
    Ask(usize, u64),
    Known(usize, u64),
    Answers(usize, u64, Reached),
    /// The client of a volume does something.
    Client(usize),
    /// A node searches for copies that are to move.
    Move(usize, u64),
}

/// A node: its stores stay, its process comes and goes.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) process: Option<Process>,
    pub(super) lives: u64,
    pub(super) stores: BTreeMap<ReplicaId, Store>,
    /// Its host is gone: connections to it are not refused, and nothing answers.
    pub(super) is_gone: bool,
    pub(super) clock: Clock,
}

/// A volume, as the configuration store and its client know it.
#[derive(Debug)]
pub(super) struct Shared {
    /// What the store holds.
    pub(super) record: Record,
    /// Its bytes in the configuration.
    pub(super) bytes: u64,
    pub(super) client: Client,
    /// Commits of the record since the phase began.
    pub(super) writes: u32,
    /// Since when all its copies are in sync.
    pub(super) synced: Option<Time>,
}

/// A message between nodes has so many bytes, without data; and how many there were.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Traffic {
    pub(super) messages: u64,
    pub(super) bytes: u64,
}

/// A simulated cluster.
#[derive(Debug)]
pub(super) struct World {
    pub(super) cluster: Cluster,
    pub(super) rng: Rng,
    pub(super) now: Time,
    queue: Queue<Happening>,
    pub(super) nodes: Vec<Node>,
    pub(super) volumes: Vec<Shared>,
    /// Bytes of all volumes in the configuration.
    pub(super) volume_bytes: u64,
    pub(super) devices: Vec<Device>,
    pub(super) replicas_made: u64,
    /// Links that carry nothing, in both directions.
    pub(super) cut: BTreeSet<(usize, usize)>,
    /// The configuration store does not answer before this moment.
    pub(super) away_until: Time,
    pub(super) asked: Asked,
    /// The volumes whose records were committed, in order.
    pub(super) log: Vec<usize>,
    /// Clients write by themselves.
    pub(super) writes: bool,
    /// A node that is gone for good: its copies are to be made anew elsewhere.
    pub(super) replaced: Option<usize>,
    /// Copies that are made in the stead of others, by volume.
    pub(super) successors: BTreeMap<usize, Successor>,
    /// When the phase began that is measured, and what was counted in it: in all, and by seconds.
    pub(super) phase_began: Time,
    pub(super) load: Load,
    /// Changes with each commit.
    pub(super) revision: u64,
    pub(super) seconds: Vec<Load>,
    /// What each node has sent to others, if that is counted.
    pub(super) traffic: Option<Vec<Traffic>>,
    pub(super) actions: Vec<loadline_san_core::volume::Action<Blocks>>,
    pub(super) replies: Vec<replica::Action<Blocks>>,
    /// What has gone wrong.
    pub(super) violations: Vec<String>,
}

impl World {
    /// A cluster whose volumes have been made, and are owned by no node yet.
    pub(super) fn new(cluster: Cluster) -> World {
        let mut rng = Rng::new(cluster.seed);
        let node = |rng: &mut Rng| Node {
            process: None,
            lives: 0,
            stores: BTreeMap::new(),
            is_gone: false,
            clock: Clock::new(rng),
        };
        let nodes: Vec<Node> = (0..cluster.nodes).map(|_| node(&mut rng)).collect();
        let device = |id: u32| Device {
            id: DeviceId(id),
            node: NodeId(id),
            domain: Domain(id),
            role: Role::Both,
            capacity: CAPACITY,
            promised: 0,
            accepts: true,
        };
        let devices = (0..cluster.nodes as u32).map(device).collect();
        let mut world = World {
            cluster,
            rng,
            now: 0,
            queue: Queue::default(),
            nodes,
            volumes: Vec::new(),
            volume_bytes: 0,
            devices,
            replicas_made: 0,
            cut: BTreeSet::new(),
            away_until: 0,
            asked: Asked::default(),
            log: Vec::new(),
            writes: true,
            replaced: None,
            successors: BTreeMap::new(),
            phase_began: 0,
            load: Load::default(),
            revision: 0,
            seconds: Vec::new(),
            traffic: None,
            actions: Vec::new(),
            replies: Vec::new(),
            violations: Vec::new(),
        };
        let owners = world.owners();
        for owner in &owners {
            world.make_volume(*owner);
        }
        for node in 0..cluster.nodes {
            world.start(node);
        }
        for (volume, node) in owners.into_iter().enumerate() {
            world.step_volume(node, volume, Event::Attach);
            world.volumes[volume].client.comes_to(node);
            let first = world.rng.below(client::PERIOD);
            world.after(first, Happening::Client(volume));
        }
        world
    }

    /// The node at which each volume is attached: all nodes in turn, in another order each time. In one order, the same few nodes would
    /// have the copies of all volumes of a node.
    fn owners(&mut self) -> Vec<usize> {
        let Cluster { nodes, volumes, .. } = self.cluster;
        let mut owners = Vec::new();
        while owners.len() < volumes {
            let mut left: Vec<usize> = (0..nodes).collect();
            while !left.is_empty() && owners.len() < volumes {
                owners.push(left.swap_remove(self.rng.index(left.len())));
            }
        }
        owners
    }

    /// A volume is made where it is to be used.
    fn make_volume(&mut self, owner: usize) {
        let copies = self.cluster.copies;
        let at = NodeId(owner as u32);
        let layout = loadline_san_core::layout::Layout::new(1, BLOCKS, crate::settings::Settings::GROUP)
            .expect("it is small");
        let placed = place(&self.devices, &[NEED], copies, Some(at)).expect("there is room");
        let homes: Vec<NodeId> = placed[0].iter().map(|place| NodeId(place.device.0)).collect();
        for home in &homes {
            self.devices[home.0 as usize].promised += BLOCKS;
        }
        let least = if copies == 3 { 2 } else { 1 };
        let first = self.replicas_made + 1;
        self.replicas_made += copies as u64;
        let record = record_of_new(layout, BLOCKS, least, LEASE, &[homes], first);
        for (replica, home) in &record.homes {
            let store = new_store(*replica, false);
            self.nodes[home.0 as usize].stores.insert(*replica, store);
        }
        let bytes = bytes_of(&record);
        self.volume_bytes += bytes;
        self.volumes.push(Shared { record, bytes, client: Client::default(), writes: 0, synced: Some(0) });
    }

    pub(super) fn after(&mut self, delay: Time, happening: Happening) {
        self.queue.add(self.now + delay, happening);
    }

    pub(super) fn clock(&self, node: usize) -> Moment {
        self.nodes[node].clock.at(self.now)
    }

    pub(super) fn is_alive(&self, node: usize, life: u64) -> bool {
        self.nodes[node].process.as_ref().is_some_and(|process| process.life == life)
    }

    /// Lets things happen until this holds, or for so long. Whether it holds. It is asked every 10 ms.
    pub(super) fn run_until(&mut self, limit: Time, holds: impl Fn(&World) -> bool) -> bool {
        let end = self.now + limit;
        while self.now < end {
            let next = (self.now + 10 * MS).min(end);
            while self.queue.next_at().is_some_and(|at| at <= next) {
                let Some((at, happening)) = self.queue.pop() else { break };
                self.now = at;
                self.happen(happening);
            }
            self.now = next;
            if holds(self) {
                return true;
            }
        }
        false
    }

    /// Lets things happen for so long.
    pub(super) fn run_for(&mut self, length: Time) {
        self.run_until(length, |_| false);
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::ToReplica(node, header, message) => {
                self.step_replica(node, header.replica, replica::Event::Message(header, message));
            }
            Happening::ToOwner(node, header, message) => {
                let volume = header.volume.0 as usize;
                self.step_volume(node, volume, Event::Message(header, message));
            }
            Happening::Disk(node, life, replica) => self.step_store(node, life, replica),
            Happening::Wake(node, life, replica) => {
                if self.is_alive(node, life) {
                    self.step_replica(node, replica, replica::Event::Wake);
                }
            }
            Happening::Tick(node, life) => self.tick(node, life),
            Happening::Merged(node, life, volume, ownership, job, blocks) => {
                if self.is_alive(node, life) {
                    self.step_volume(node, volume, Event::Merged(ownership, job, blocks));
                }
            }
            Happening::Runs(node, other, runs) => {
                // It may have started again before that was noticed.
                if runs == self.nodes[other].process.is_some() {
                    let of = NodeId(other as u32);
                    let event = || if runs { Event::Started(of) } else { Event::Ended(of) };
                    for volume in self.volumes_of(node) {
                        self.step_volume(node, volume, event());
                    }
                }
            }
            Happening::Called(node, life, call, answered) => self.called(node, life, call, answered),
            Happening::Poll(node, life) => self.poll(node, life),
            Happening::Ask(node, life) => self.ask(node, life),
            Happening::Known(node, life) => self.report_known(node, life),
            Happening::Answers(node, life, reached) => {
                if self.is_alive(node, life) {
                    self.call(node, Call::Answer(reached));
                }
            }
            Happening::Client(volume) => self.client_acts(volume),
            Happening::Move(node, life) => self.move_copies(node, life),
        }
    }

    // ---- network ----------------------------------------------------------------------------------------

    pub(super) fn send_to_replica(
        &mut self,
        from: usize,
        to: usize,
        header: FromOwner,
        message: ToReplica<Blocks>,
    ) {
        if self.traffic.is_some() && from != to {
            let bytes = wire::bytes_to_replica(&header, &message).map_or(0, |bytes| bytes.len());
            self.sent(from, bytes as u64);
        }
        self.carry(from, to, Happening::ToReplica(to, header, message));
    }

    pub(super) fn send_to_owner(
        &mut self,
        from: usize,
        to: usize,
        header: FromReplica,
        message: ToOwner<Blocks>,
    ) {
        if self.traffic.is_some() && from != to {
            let bytes = wire::bytes_to_owner(&header, &message).map_or(0, |bytes| bytes.len());
            self.sent(from, bytes as u64);
        }
        self.carry(from, to, Happening::ToOwner(to, header, message));
    }

    fn sent(&mut self, from: usize, bytes: u64) {
        if let Some(traffic) = &mut self.traffic {
            traffic[from].messages += 1;
            traffic[from].bytes += bytes;
        }
    }

    fn carry(&mut self, from: usize, to: usize, message: Happening) {
        if from == to {
            self.after(0, message);
        } else if self.nodes[to].process.is_some() && !self.cut.contains(&(from, to)) {
            let delay = WAY.0 + self.rng.below(WAY.1 - WAY.0);
            self.after(delay, message);
        }
    }

    // ---- faults -----------------------------------------------------------------------------------------

    /// A node's process dies. If its host goes too, connections to it are not refused, and other nodes do not notice.
    pub(super) fn kill(&mut self, node: usize, with_host: bool) {
        let state = &mut self.nodes[node];
        if state.process.take().is_none() {
            return;
        }
        state.is_gone = with_host;
        for store in state.stores.values_mut() {
            store.kill(&mut self.rng);
        }
        for volume in 0..self.volumes.len() {
            self.volumes[volume].client.lose(node);
        }
        if !with_host {
            for other in (0..self.nodes.len()).filter(|other| *other != node) {
                let delay = REFUSED.0 + self.rng.below(REFUSED.1 - REFUSED.0);
                self.after(delay, Happening::Runs(other, node, false));
            }
        }
    }

    /// Other nodes connect to a process that has started.
    pub(super) fn connect(&mut self, node: usize) {
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            let delay = self.rng.below(CONNECTS);
            self.after(delay, Happening::Runs(other, node, true));
        }
    }

    /// Nothing passes between two nodes.
    pub(super) fn cut_link(&mut self, one: usize, other: usize) {
        self.cut.extend([(one, other), (other, one)]);
    }

    pub(super) fn heal_links(&mut self) {
        self.cut.clear();
    }

    // ---- whether all is well ----------------------------------------------------------------------------

    /// Whether a volume is served, its client has come, and no request waits.
    pub(super) fn is_served(&self, volume: usize) -> bool {
        let of = &self.volumes[volume];
        of.record.state == RecordState::Active && of.client.is_content()
    }

    /// Whether all copies of a volume are in sync.
    pub(super) fn is_redundant(&self, volume: usize) -> bool {
        self.volumes[volume].synced.is_some()
    }

    /// Whether this is so of all volumes.
    pub(super) fn is_well(&self) -> bool {
        (0..self.volumes.len()).all(|volume| self.is_served(volume) && self.is_redundant(volume))
    }
}
