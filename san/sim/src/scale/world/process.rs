//! A node's process: a state machine for each volume of which it has a copy, one for each copy, and the actions of these.

use std::collections::{BTreeMap, BTreeSet};

use loadline_san_core::ids::{Incarnation, NodeId, Owner, ReplicaId, VolumeId};
use loadline_san_core::lease::Moment;
use loadline_san_core::replica::{self, Replica};
use loadline_san_core::volume::{self, Event, Status, Times, Volume};

use super::config::{Call, Calls, UNNOTICED};
use super::moving::STEP;
use super::reach::Asking;
use super::{Happening, LEASE, World};
use crate::store::Blocks;
use crate::time::{Time, US};
use crate::world::tenant::merge;

/// Volumes that wait for nothing get one tick of so many, as in a node's event loop.
const IDLE_TICKS: u64 = 4;
/// A store gets one tick of so many. A node gives it more; nothing that is measured depends on it.
const STORE_TICKS: u64 = 32;
/// A step of a store on its device takes less than this.
const DISK: Time = 60 * US;
/// A timer fires late by less than this.
const LATE: Time = 100 * US;
/// Making whole blocks of what a client writes takes so long.
const MERGE: Time = 5 * US;

/// A life of a node's process.
#[derive(Debug)]
pub(in crate::scale) struct Process {
    pub(in crate::scale) life: u64,
    pub(in crate::scale) volumes: BTreeMap<usize, Volume<Blocks>>,
    pub(in crate::scale) replicas: BTreeMap<ReplicaId, Replica>,
    /// Stores whose next step is in the queue.
    stepping: BTreeSet<ReplicaId>,
    /// When each replica is to be woken.
    waking: BTreeMap<ReplicaId, Moment>,
    ticks: u64,
    pub(in crate::scale) calls: Calls,
    pub(in crate::scale) asking: Asking,
    /// How many of the commits of records it knows.
    pub(in crate::scale) learnt: usize,
}

impl World {
    /// A node's process starts.
    pub(in crate::scale) fn start(&mut self, node: usize) {
        let learnt = self.log.len();
        let state = &mut self.nodes[node];
        state.lives += 1;
        state.is_gone = false;
        let life = state.lives;
        state.process = Some(Process {
            life,
            volumes: BTreeMap::new(),
            replicas: BTreeMap::new(),
            stepping: BTreeSet::new(),
            waking: BTreeMap::new(),
            ticks: 0,
            calls: Calls::default(),
            asking: Asking::default(),
            learnt,
        });
        for volume in 0..self.volumes.len() {
            let homes = &self.volumes[volume].record.homes;
            let here: Vec<ReplicaId> = homes
                .iter()
                .filter(|(_, home)| home.0 as usize == node)
                .map(|(replica, _)| *replica)
                .collect();
            for replica in here {
                self.open(node, volume, replica);
            }
        }
        self.connect(node);
        let (tick, poll) = (self.rng.below(LEASE / 16), self.rng.below(UNNOTICED));
        self.after(tick, Happening::Tick(node, life));
        self.after(poll, Happening::Poll(node, life));
        self.after(poll % STEP, Happening::Move(node, life));
        self.call(node, Call::Catalog);
    }

    /// A copy of a volume is opened, and the volume is watched.
    pub(in crate::scale) fn open(&mut self, node: usize, volume: usize, id: ReplicaId) {
        let (now, seed) = (self.clock(node), self.rng.bits());
        let state = &mut self.nodes[node];
        let Some(process) = &mut state.process else { return };
        let incarnation = Incarnation(process.life);
        let me = Owner { node: NodeId(node as u32), incarnation };
        let store = state.stores.get_mut(&id).expect("a copy has a store");
        let name = VolumeId(volume as u64);
        process.replicas.insert(id, Replica::new(name, id, incarnation, LEASE, &store.open(), now));
        process
            .volumes
            .entry(volume)
            .or_insert_with(|| Volume::new(me, name, Times::of_lease(LEASE), seed, now));
        self.step_volume(node, volume, Event::Watch(true));
    }

    pub(in crate::scale) fn volumes_of(&self, node: usize) -> Vec<usize> {
        let process = self.nodes[node].process.as_ref();
        process.map(|process| process.volumes.keys().copied().collect()).unwrap_or_default()
    }

    /// A volume takes a step.
    pub(in crate::scale) fn step_volume(&mut self, node: usize, volume: usize, event: Event<Blocks>) {
        let now = self.clock(node);
        let Some(process) = &mut self.nodes[node].process else { return };
        let life = process.life;
        let Some(of) = process.volumes.get_mut(&volume) else { return };
        let mut actions = std::mem::take(&mut self.actions);
        of.step(now, event, &mut actions);
        for action in actions.drain(..) {
            self.act(node, life, volume, action);
        }
        self.actions = actions;
    }

    fn act(&mut self, node: usize, life: u64, volume: usize, action: volume::Action<Blocks>) {
        match action {
            volume::Action::Send { to, header, message } => {
                self.send_to_replica(node, to.0 as usize, header, message);
            }
            volume::Action::ReadRecord { asked_at } => self.call(node, Call::Read(volume, asked_at)),
            volume::Action::Propose { record, replaces } => {
                self.call(node, Call::Propose(volume, record, replaces));
            }
            volume::Action::QueryNodes { nodes, within_ns } => self.want(node, &nodes, within_ns),
            volume::Action::Merge { ownership, job, request, head, tail } => {
                let blocks = merge(&request, head.as_ref(), tail.as_ref());
                self.after(MERGE, Happening::Merged(node, life, volume, ownership, job, blocks));
            }
            volume::Action::Attached => self.client_comes(volume, node),
            volume::Action::Detached => self.volumes[volume].client.lose(node),
            volume::Action::Complete(id, result) => self.completed(volume, node, id, result),
            volume::Action::Done(Err(why)) => {
                self.violations.push(format!("a command for volume {volume} was refused: {why}"));
            }
            // Clients only write; what a command has done is seen in the record.
            volume::Action::Done(Ok(())) | volume::Action::Fill { .. } | volume::Action::Map { .. } => {}
        }
    }

    /// A replica takes a step.
    pub(in crate::scale) fn step_replica(
        &mut self,
        node: usize,
        id: ReplicaId,
        event: replica::Event<Blocks>,
    ) {
        let now = self.clock(node);
        let Some(process) = &mut self.nodes[node].process else { return };
        let Some(replica) = process.replicas.get_mut(&id) else { return };
        let mut replies = std::mem::take(&mut self.replies);
        replica.step(now, event, &mut replies).expect("nothing is misdirected here");
        let (life, wakes) = (process.life, replica.wake_at());
        let is_new = wakes.is_some() && process.waking.get(&id) != wakes.as_ref();
        if let Some(at) = wakes.filter(|_| is_new) {
            process.waking.insert(id, at);
            let delay = self.nodes[node].clock.when(at).saturating_sub(self.now);
            self.after(delay, Happening::Wake(node, life, id));
        }
        for action in replies.drain(..) {
            match action {
                replica::Action::Send(to, header, answer) => {
                    self.send_to_owner(node, to.0 as usize, header, answer);
                }
                replica::Action::Store(command) => {
                    let store = self.nodes[node].stores.get_mut(&id).expect("a replica has a store");
                    store.submit(command);
                    self.wake_store(node, id);
                }
            }
        }
        self.replies = replies;
    }

    fn wake_store(&mut self, node: usize, id: ReplicaId) {
        let Some(process) = &mut self.nodes[node].process else { return };
        let life = process.life;
        if process.stepping.insert(id) {
            let delay = self.rng.below(DISK);
            self.after(delay, Happening::Disk(node, life, id));
        }
    }

    /// A store does its next step.
    pub(in crate::scale) fn step_store(&mut self, node: usize, life: u64, id: ReplicaId) {
        if !self.is_alive(node, life) {
            return;
        }
        let mut completions = Vec::new();
        let state = &mut self.nodes[node];
        let store = state.stores.get_mut(&id).expect("stores stay");
        let more = store.step(&mut self.rng, &mut completions);
        if let Some(process) = &mut state.process {
            process.stepping.remove(&id);
        }
        if more {
            self.wake_store(node, id);
        }
        for completion in completions {
            self.step_replica(node, id, replica::Event::Store(completion));
        }
    }

    /// Volumes that wait for something take each tick, all others together one of four. Stores take ticks in turn, less often.
    pub(in crate::scale) fn tick(&mut self, node: usize, life: u64) {
        if !self.is_alive(node, life) {
            return;
        }
        let Some(process) = &mut self.nodes[node].process else { return };
        let number = process.ticks;
        process.ticks += 1;
        let is_settled =
            |volume: &Volume<Blocks>| matches!(volume.status(), Status::Active | Status::Watching);
        let is_due =
            |of: &Volume<Blocks>| !is_settled(of) || of.unanswered() > 0 || number.is_multiple_of(IDLE_TICKS);
        let due = process.volumes.iter().filter(|(_, of)| is_due(of));
        let due: Vec<usize> = due.map(|(volume, _)| *volume).collect();
        for volume in due {
            self.step_volume(node, volume, Event::Wake);
        }
        let (rng, state) = (&mut self.rng, &mut self.nodes[node]);
        let stores = state.stores.iter_mut().filter(|(id, _)| id.0 % STORE_TICKS == number % STORE_TICKS);
        let busy = stores.filter_map(|(id, store)| store.tick(rng, true).then_some(*id));
        for id in busy.collect::<Vec<_>>() {
            self.wake_store(node, id);
        }
        // A timer of the node's clock, which fires a little late.
        let clock = self.nodes[node].clock;
        let next = clock.when(clock.at(self.now).after(LEASE / 16)).saturating_sub(self.now);
        let late = self.rng.below(LATE);
        self.after(next + late, Happening::Tick(node, life));
    }
}
