//! Delivers the actions of volumes and replicas: to each other, to other nodes, to clients, and to the control path.

use std::collections::BTreeSet;

use loadline_san_core::ids::{Epoch, NodeId, ReplicaId, VolumeId};
use loadline_san_core::layout::GroupIndex;
use loadline_san_core::message::{FromOwner, FromReplica, Job, ToOwner, ToReplica};
use loadline_san_core::replica;
use loadline_san_core::volume::{self, Event, Failure, RequestId, Status};
use loadline_san_device::pool::{BLOCK_BYTES, Blocks};
use loadline_san_export::session::Session as _;

use super::EventLoop;
use super::command::LoopEvent;
use super::direct_reads::LocalReads;
use super::volume_host::{Begun, VolumeHost};
use super::why::Why;

/// How often stores do what they can before sockets are polled again. Otherwise a client at a socket would wait until a
/// round is destaged. 64 made a tenth fewer writes by NBD.
const RUNS: usize = 4;

/// What goes between volumes and replicas of a loop.
#[derive(Debug)]
pub(super) enum Local {
    ToReplica(FromOwner, ToReplica<Blocks>),
    ToOwner(FromReplica, ToOwner<Blocks>),
    Merged(VolumeId, Epoch, Job, Blocks),
    /// More clients have come to a volume.
    Attach(VolumeId),
    /// The client of this request has gone.
    Cancel(VolumeId, RequestId),
    /// A process runs at a node, or none does any more.
    Node(NodeId, bool),
    /// A node has answered that it runs, and reaches these; or it did not answer in time.
    Reaches(NodeId, Option<BTreeSet<NodeId>>),
}

impl EventLoop {
    /// Carries out all that can be done now.
    pub(super) fn work_off(&mut self) {
        for _ in 0..RUNS {
            loop {
                // Not from within a step: each that ends at once would begin the next one a call deeper.
                while let Some(id) = self.volumes.next_to_begin() {
                    self.begin(id);
                }
                let Some(local) = self.local.pop_front() else { break };
                self.deliver(local);
            }
            let Some(id) = self.replicas.next_listed() else { return };
            // Clients and other nodes go on while the rest is done.
            if self.front_ends.have_answers() {
                self.answer();
            }
            self.receive_queued();
            if self.peers.has_unsent() {
                self.flush_peers();
            }
            self.run_store(id);
        }
    }

    fn deliver(&mut self, local: Local) {
        match local {
            Local::ToReplica(from, message) => {
                self.step_replica(from.replica, replica::Event::Message(from, message));
            }
            Local::ToOwner(from, message) => self.step_volume(from.volume, Event::Message(from, message)),
            Local::Merged(id, ownership, job, data) => {
                self.step_volume(id, Event::Merged(ownership, job, data));
            }
            Local::Reaches(node, reaches) => {
                let event = || match &reaches {
                    Some(reaches) => Event::Reaches(node, reaches.clone()),
                    None => Event::Silent(node),
                };
                self.volumes.ids().into_iter().for_each(|id| self.step_volume(id, event()));
            }
            Local::Node(node, runs) => {
                let event = || if runs { Event::Started(node) } else { Event::Ended(node) };
                self.volumes.ids().into_iter().for_each(|id| self.step_volume(id, event()));
            }
            Local::Cancel(id, request) => self.step_volume(id, Event::Cancel(request)),
            Local::Attach(id) => {
                let is_announced = |host: &VolumeHost| !host.announced.is_empty();
                if self.announce_standby(id) || self.volumes.get(id).is_some_and(is_announced) {
                    self.step_volume(id, Event::Attach);
                }
            }
        }
    }

    /// The store of a listed replica does what it can do now.
    fn run_store(&mut self, id: ReplicaId) {
        let reads = LocalReads { volumes: &self.volumes, front_ends: &self.front_ends, me: self.options.me };
        let (mut completions, more) = self.replicas.run(id, &mut self.uring, self.pool.is_short(), &reads);
        self.now = crate::clock::now();
        for completion in completions.drain(..) {
            self.step_replica(id, replica::Event::Store(completion));
        }
        self.replicas.give_back(completions);
        self.report_unusable(id);
        self.report_cache(id);
        if more {
            self.replicas.list(id);
        }
    }

    /// Reports whether an open replica can be used, if that has changed.
    pub(super) fn report_unusable(&mut self, id: ReplicaId) {
        if let Some(unusable) = self.replicas.unusable(id) {
            (self.report)(LoopEvent::Unusable(id, unusable));
        }
    }

    /// Reports that the read cache of a replica is not where it was any more, once.
    pub(super) fn report_cache(&mut self, id: ReplicaId) {
        if self.replicas.has_given_back_cache(id) {
            (self.report)(LoopEvent::CacheGivenBack(id));
        }
    }

    pub(super) fn step_replica(&mut self, id: ReplicaId, event: replica::Event<Blocks>) {
        let EventLoop { replicas, peers, local, .. } = self;
        let me = self.options.me.node;
        replicas.step(id, event, self.now, |node, from, answer| match node == me {
            true => local.push_back(Local::ToOwner(from, answer)),
            false => peers.send_to_owner(node, &from, &answer),
        });
    }

    /// Begins requests of clients, as many as may be at work.
    fn begin(&mut self, id: VolumeId) {
        let now = self.now;
        while let Some(begun) = self.volumes.get_mut(id).and_then(|host| host.begin(now)) {
            match begun {
                Begun::Request(request) => {
                    self.begun += 1;
                    self.worked = self.now;
                    self.step_volume(id, Event::Request(request));
                }
                Begun::TooLong(key, slot) => {
                    let Some(client) = self.front_ends.get_mut(key) else { continue };
                    let completed = client.session.complete(slot, Err(Failure::TooLong));
                    self.front_ends.has_answers(key);
                    if let Err(end) = completed {
                        self.disconnect(key, &Why::Ended(end));
                    }
                }
            }
        }
    }

    pub(super) fn step_volume(&mut self, id: VolumeId, event: Event<Blocks>) {
        let Some(host) = self.volumes.get_mut(id) else { return };
        let mut actions = std::mem::take(&mut self.of_volume);
        let now = self.now;
        if let Event::Request(request) = &event {
            host.begins(request.id, now);
        }
        if let (Event::Message(from, message), Some(tracer)) = (&event, &mut host.tracer) {
            tracer.received(from.replica, message);
        }
        host.volume.step(now, event, &mut actions);
        host.note_service(now);
        let (mut ended, mut again, mut admission) = (false, false, false);
        for action in actions.drain(..) {
            let Some(host) = self.volumes.get_mut(id) else { break };
            match action {
                volume::Action::Send { to, header, message } => {
                    let here = to == self.options.me.node;
                    if let Some(tracer) = &mut host.tracer {
                        let groups = host.volume.record().map_or(&[][..], |record| &record.groups);
                        let group = groups.iter().position(|group| group.in_sync.contains(&header.replica));
                        tracer.sent(
                            header.replica,
                            to,
                            &message,
                            group.map(|index| GroupIndex(index as u32)),
                        );
                    }
                    if let ToReplica::Read { blocks, .. } = &message {
                        let front = &mut host.front_end;
                        let bytes = if here { &mut front.read_here } else { &mut front.read_elsewhere };
                        *bytes += u64::from(*blocks) * BLOCK_BYTES as u64;
                    }
                    match here {
                        true => self.local.push_back(Local::ToReplica(header, message)),
                        false => self.peers.send_to_replica(to, &header, &message),
                    }
                }
                volume::Action::ReadRecord { asked_at } => (self.report)(LoopEvent::ReadRecord(id, asked_at)),
                volume::Action::QueryNodes { nodes, within_ns } => {
                    (self.report)(LoopEvent::QueryNodes(nodes, within_ns));
                }
                volume::Action::Propose { record, replaces } => {
                    (self.report)(LoopEvent::Propose(id, record, replaces));
                }
                volume::Action::Fill { request, at, blocks, content } => {
                    if let Some(at_work) = host.at_work.get(&request)
                        && let Some(client) = self.front_ends.get_mut(at_work.client)
                    {
                        client.session.fill(at_work.slot, at, blocks, content);
                    }
                }
                volume::Action::Map { request, map } => {
                    if let Some(at_work) = host.at_work.get(&request)
                        && let Some(client) = self.front_ends.get_mut(at_work.client)
                    {
                        client.session.map(at_work.slot, map);
                    }
                }
                volume::Action::Merge { ownership, job, request, head, tail } => {
                    let merged = host.merge(&self.pool, &request, (head.as_ref(), tail.as_ref()));
                    self.local.push_back(Local::Merged(id, ownership, job, merged));
                }
                volume::Action::Attached => {
                    host.attached = true;
                    admission = true;
                    if let Some(attachment) = self.volumes.attachment(id) {
                        self.front_ends.attached(id, attachment);
                        self.promote_waiting(id, attachment);
                    }
                    (self.report)(LoopEvent::Attached(id));
                    again |= self.let_in(id);
                }
                volume::Action::Detached => {
                    admission = true;
                    self.detached(id, &Why::Elsewhere);
                }
                volume::Action::Complete(request, result) => {
                    ended = true;
                    if let Some(at_work) = host.ended(request, result.is_ok(), now) {
                        if let Some(tracer) = &mut host.tracer {
                            let client = self.front_ends.get(at_work.client);
                            let from = client.map_or("", |client| &client.origin.from);
                            if tracer.completed(request, from, result.is_ok()) {
                                self.traced.push(id);
                            }
                        }
                        let (key, slot) = (at_work.client, at_work.slot);
                        self.complete(key, slot, result);
                    }
                }
                volume::Action::Done(result) => {
                    if let Some(number) = host.command_of(&result) {
                        (self.report)(LoopEvent::CommandDone(number, result));
                    }
                }
            }
        }
        self.of_volume = actions;
        if let Some(tracer) = self.volumes.get_mut(id).and_then(|host| host.tracer.as_mut()) {
            tracer.stepped();
        }
        if let Some(host) = self.volumes.get_mut(id).filter(|host| host.claims) {
            host.claims = !matches!(host.volume.status(), Status::Active | Status::Changing);
        }
        if admission {
            self.give_way(id);
        }
        if let Some(host) = self.volumes.get_mut(id)
            && host.volume.blocked().is_some() != host.blocked
        {
            host.blocked = !host.blocked;
            (self.report)(LoopEvent::Blocked(id, host.volume.blocked().map(ToString::to_string)));
        }
        if again {
            self.local.push_back(Local::Attach(id));
        }
        self.follow_owner(id);
        if self.has_unannounced(id) {
            // Not from within a step: this may be one.
            self.local.push_back(Local::Attach(id));
        }
        if ended {
            self.volumes.begin_soon(id);
        }
    }

    /// A request of a client is complete.
    fn complete(&mut self, key: u32, slot: u32, result: Result<(), Failure>) {
        let Some(client) = self.front_ends.get_mut(key) else { return };
        match result {
            // A client that connects again finds the volume where it is served. A front-end has kept what is in flight.
            Err(Failure::Deposed | Failure::NotAttached) => self.front_ends.break_off(key, Why::NotServed),
            result => {
                if let Err(end) = client.session.complete(slot, result) {
                    self.front_ends.break_off(key, Why::Ended(end));
                }
                self.front_ends.has_answers(key);
            }
        }
    }
}
