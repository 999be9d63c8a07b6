//! A volume at node 1, and everything around it: replicas that answer at once and have all that they are sent, and a
//! configuration store that commits what is proposed.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use loadline_san_core::history::History;
use loadline_san_core::ids::*;
use loadline_san_core::layout::Layout;
use loadline_san_core::lease::Moment;
use loadline_san_core::message::*;
use loadline_san_core::record::{Group, Record, RecordState};
use loadline_san_core::swap::Answer;
use loadline_san_core::volume::{
    Action, CommandError, Event, Failure, Request, RequestId, RequestOp, Status, Times, Volume, VolumeCommand,
};

pub(crate) const VOLUME: VolumeId = VolumeId(7);
pub(crate) const LEASE: u64 = 1_000_000;
/// Replicas have promised this, to the owner before.
pub(crate) const EPOCH: Epoch = Epoch(9);
const BEGIN: u64 = 10 * LEASE;

pub(crate) fn owner(node: u32) -> Owner {
    Owner { node: NodeId(node), incarnation: Incarnation(1) }
}

/// Each group has a copy at each of these nodes: replica `100 * group + node`.
pub(crate) fn record(groups: u64, nodes: &[u32]) -> Record {
    let id = |group: u64, node: u32| ReplicaId(100 * group + u64::from(node));
    let homes = (0..groups).flat_map(|group| nodes.iter().map(move |node| (id(group, *node), NodeId(*node))));
    let in_sync = |group| nodes.iter().map(move |node| id(group, *node)).collect();
    Record {
        epoch: EPOCH,
        made_by: ProposalId { by: owner(2), number: 1 },
        owner: owner(2),
        state: RecordState::Active,
        attachment: 1,
        fence: 0,
        lease_ns: LEASE,
        blocks: 64 * groups,
        layout: Layout::new(1, 64, 64).unwrap(),
        least: 1,
        history: History::default(),
        homes: homes.collect(),
        groups: (0..groups).map(|group| Group { in_sync: in_sync(group), ..Group::default() }).collect(),
    }
}

/// A volume at node 1, with simulated replicas and a configuration store that commits every proposal.
pub(crate) struct Driven {
    pub(crate) volume: Volume<u8>,
    pub(crate) record: Record,
    /// Nodes from which nothing comes, and that receive nothing.
    pub(crate) silent: BTreeSet<NodeId>,
    /// The store does not answer.
    pub(crate) store_is_away: bool,
    /// For how long no owner has asked the replicas for a lease.
    pub(crate) quiet_ns: u64,
    /// What nodes answer that are asked through the store whether they run; the others do not answer.
    pub(crate) reach: BTreeMap<NodeId, BTreeSet<NodeId>>,
    /// Which nodes were asked so, and how long they had.
    pub(crate) asked: Vec<(Vec<NodeId>, u64)>,
    pub(crate) completed: Vec<(RequestId, Result<(), Failure>)>,
    pub(crate) done: Vec<Result<(), CommandError>>,
    pub(crate) attached: u32,
    time: u64,
    queue: VecDeque<Event<u8>>,
    out: Vec<Action<u8>>,
    received: BTreeMap<ReplicaId, (Epoch, Sequence)>,
    /// The nodes that have had time to answer, and the end of that time.
    late: Vec<(u64, NodeId)>,
}

impl Driven {
    pub(crate) fn new(record: Record) -> Driven {
        Driven {
            volume: Volume::new(owner(1), VOLUME, Times::of_lease(LEASE), 1, Moment(BEGIN)),
            record,
            silent: BTreeSet::new(),
            store_is_away: false,
            quiet_ns: 0,
            reach: BTreeMap::new(),
            asked: Vec::new(),
            completed: Vec::new(),
            done: Vec::new(),
            attached: 0,
            time: BEGIN,
            queue: VecDeque::new(),
            out: Vec::with_capacity(1 << 16),
            received: BTreeMap::new(),
            late: Vec::new(),
        }
    }

    /// The same, taken over by node 1.
    pub(crate) fn active(record: Record) -> Driven {
        let mut driven = Driven::new(record);
        driven.step(Event::Attach);
        driven.pass(LEASE);
        assert_eq!(driven.volume.status(), Status::Active);
        driven
    }

    /// Members of the first group.
    pub(crate) fn members(&self) -> Vec<u32> {
        self.record.groups[0].in_sync.iter().map(|replica| self.record.homes[replica].0).collect()
    }

    pub(crate) fn read(&mut self, id: u64) {
        self.step(Event::Request(Request { id: RequestId(id), op: RequestOp::Read, sector: 0, sectors: 8 }));
    }

    pub(crate) fn write(&mut self, id: u64) {
        self.step(Event::Request(Request {
            id: RequestId(id),
            op: RequestOp::Write(1),
            sector: 0,
            sectors: 8,
        }));
    }

    pub(crate) fn command(&mut self, command: VolumeCommand) {
        self.step(Event::Command(command));
    }

    /// Time passes, with ticks.
    pub(crate) fn pass(&mut self, ns: u64) {
        let until = self.time + ns;
        while self.time < until {
            self.tick();
        }
    }

    /// A sixteenth of a lease passes. `around` is given the volume's own part of the tick, to measure it.
    pub(crate) fn tick_in<T>(&mut self, around: impl FnOnce(&mut dyn FnMut()) -> T) -> T {
        self.time += LEASE / 16;
        let (volume, out, now) = (&mut self.volume, &mut self.out, Moment(self.time));
        let result = around(&mut || volume.step(now, Event::Wake, out));
        let late = self.late.extract_if(.., |(until, _)| *until <= self.time);
        self.queue.extend(late.map(|(_, node)| Event::Silent(node)));
        self.settle();
        result
    }

    pub(crate) fn tick(&mut self) {
        self.tick_in(|tick| tick());
    }

    /// Something happens, and all that follows at once.
    pub(crate) fn step(&mut self, event: Event<u8>) {
        self.queue.push_back(event);
        self.settle();
    }

    fn settle(&mut self) {
        loop {
            for action in std::mem::take(&mut self.out) {
                self.act(action);
            }
            self.out = Vec::with_capacity(1 << 16);
            let Some(event) = self.queue.pop_front() else { return };
            self.volume.step(Moment(self.time), event, &mut self.out);
        }
    }

    fn act(&mut self, action: Action<u8>) {
        match action {
            Action::ReadRecord { asked_at } if !self.store_is_away => {
                self.queue.push_back(Event::Seen(self.record.clone(), asked_at));
            }
            Action::Propose { record, replaces } if !self.store_is_away => {
                let made_by = record.made_by;
                assert_eq!(self.record.epoch, replaces, "no other node changes it");
                self.record = *record;
                self.queue.push_back(Event::Swapped(made_by, Answer::Committed, replaces));
            }
            Action::QueryNodes { nodes, within_ns } => {
                for node in nodes.iter().filter(|_| !self.store_is_away) {
                    match self.reach.get(node) {
                        Some(reach) => self.queue.push_back(Event::Reaches(*node, reach.clone())),
                        None => self.late.push((self.time + within_ns, *node)),
                    }
                }
                self.asked.push((nodes, within_ns));
            }
            Action::Send { to, header, message } if !self.silent.contains(&to) => {
                if let Some(answer) = self.answer(header.replica, message) {
                    let from = FromReplica {
                        volume: VOLUME,
                        replica: header.replica,
                        process: Incarnation(5),
                        owner: owner(1),
                        session: header.session,
                    };
                    self.queue.push_back(Event::Message(from, answer));
                }
            }
            Action::Complete(id, result) => self.completed.push((id, result)),
            Action::Done(result) => self.done.push(result),
            Action::Attached => self.attached += 1,
            _ => {}
        }
    }

    fn answer(&mut self, replica: ReplicaId, message: ToReplica<u8>) -> Option<ToOwner<u8>> {
        let received = self.received.entry(replica).or_insert((Epoch(0), Sequence(0)));
        if let ToReplica::Entry { ownership, sequence, .. } = message {
            *received = (ownership, sequence);
        }
        let progress = Progress {
            ownership: received.0,
            received: received.1,
            durable: received.1,
            out_of_band_received: 0,
            out_of_band_durable: 0,
            returned: false,
            gap: false,
            full: false,
        };
        Some(match message {
            ToReplica::Probe => {
                let promise = Promise { epoch: EPOCH, owner: self.record.owner };
                ToOwner::Probed { promise, quiet_ns: self.quiet_ns }
            }
            ToReplica::Seal { .. } => {
                let (commit_point, end, above) = (Position::START, Position::START, Vec::new());
                ToOwner::Sealed(SealReport { commit_point, end, full: false, above })
            }
            ToReplica::Hello { .. } => ToOwner::Welcome(progress),
            ToReplica::Entry { .. } => ToOwner::Durable(progress),
            ToReplica::Heartbeat { asked, .. } => ToOwner::Alive { asked, granted: true, progress },
            ToReplica::Read { job, .. } => ToOwner::Data { job, content: Ok(Content::Nothing) },
            _ => return None,
        })
    }
}
