//! A volume, its replicas and a configuration store in one thread, where everything completes at once: what is left is core's
//! own work.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use loadline_san_core::history::History;
use loadline_san_core::ids::{Epoch, Incarnation, NodeId, Owner, Position, ProposalId, ReplicaId, VolumeId};
use loadline_san_core::layout::Layout;
use loadline_san_core::lease::Moment;
use loadline_san_core::map::Map;
use loadline_san_core::message::{Content, FromOwner, FromReplica, Payload, Promise, ToOwner, ToReplica};
use loadline_san_core::record::{Group, Record, RecordState};
use loadline_san_core::replica::{self, Replica};
use loadline_san_core::store::{Command, Completion, DurableState};
use loadline_san_core::swap::Answer;
use loadline_san_core::volume::{Action, Event, Request, RequestId, RequestOp, Status, Times, Volume};

/// Blocks of the volume.
pub(crate) const BLOCKS: u64 = 1 << 20;
const VOLUME: VolumeId = VolumeId(1);
const LEASE_NS: u64 = 1_000_000_000;

enum Message {
    ToReplica(FromOwner, ToReplica<u32>),
    ToOwner(FromReplica, ToOwner<u32>),
    Stored(usize, Completion<u32>),
}

/// A volume with its replicas and a configuration store, in which every message and command completes at once.
pub(crate) struct Instant {
    volume: Volume<u32>,
    replicas: Vec<Replica>,
    record: Record,
    now: Moment,
    messages: VecDeque<Message>,
    actions: Vec<Action<u32>>,
    replies: Vec<replica::Action<u32>>,
    requests: u64,
    /// Requests that have ended.
    pub(crate) done: u64,
}

impl Instant {
    /// A volume of so many copies and stripes, active.
    pub(crate) fn new(copies: u64, stripes: u32) -> Instant {
        let no_owner = Owner { node: NodeId(0), incarnation: Incarnation(0) };
        let layout = Layout::new(stripes, 256, BLOCKS).expect("within bounds");
        let mut homes = BTreeMap::new();
        let groups = (0..u64::from(stripes)).map(|group| {
            let ids: BTreeSet<ReplicaId> = (0..copies).map(|copy| ReplicaId(group * copies + copy)).collect();
            homes.extend(ids.iter().map(|id| (*id, NodeId((id.0 % copies) as u32))));
            Group { in_sync: ids, ..Group::default() }
        });
        let groups = groups.collect();
        let record = Record {
            epoch: Epoch(1),
            made_by: ProposalId { by: no_owner, number: 0 },
            owner: no_owner,
            state: RecordState::TakingOver,
            attachment: 0,
            fence: 0,
            lease_ns: LEASE_NS,
            blocks: BLOCKS,
            layout,
            least: 1,
            history: History::default(),
            homes,
            groups,
        };
        let now = Moment(1);
        let found = DurableState {
            promise: Promise { epoch: Epoch(0), owner: no_owner },
            commit_point: Position::START,
            epoch: Epoch(0),
            end: Position::START,
            damaged: false,
        };
        let replica = |id: u64| Replica::new(VOLUME, ReplicaId(id), Incarnation(1), LEASE_NS, &found, now);
        let me = Owner { node: NodeId(0), incarnation: Incarnation(1) };
        let mut instant = Instant {
            volume: Volume::new(me, VOLUME, Times::of_lease(LEASE_NS), 1, now),
            replicas: (0..copies * u64::from(stripes)).map(replica).collect(),
            record,
            now,
            messages: VecDeque::new(),
            actions: Vec::new(),
            replies: Vec::new(),
            requests: 0,
            done: 0,
        };
        instant.step(Event::Attach);
        while instant.volume.status() != Status::Active {
            instant.pass(LEASE_NS / 16);
        }
        instant.pass(LEASE_NS / 3);
        instant
    }

    /// Some time passes.
    pub(crate) fn pass(&mut self, ns: u64) {
        self.now = self.now.after(ns);
        for index in 0..self.replicas.len() {
            if self.replicas[index].wake_at().is_some_and(|at| at <= self.now) {
                self.step_replica(index, replica::Event::Wake);
            }
        }
        self.step(Event::Wake);
        self.settle();
    }

    /// A client asks for one block.
    pub(crate) fn ask(&mut self, op: RequestOp<u32>, block: u64) {
        self.requests += 1;
        let request = Request { id: RequestId(self.requests), op, sector: block * 8, sectors: 8 };
        self.step(Event::Request(request));
    }

    /// All that was asked for is carried out.
    pub(crate) fn settle(&mut self) {
        while let Some(message) = self.messages.pop_front() {
            match message {
                Message::ToReplica(header, message) => {
                    let index = header.replica.0 as usize;
                    self.step_replica(index, replica::Event::Message(header, message));
                }
                Message::ToOwner(header, message) => self.step(Event::Message(header, message)),
                Message::Stored(index, completion) => {
                    self.step_replica(index, replica::Event::Store(completion));
                }
            }
        }
    }

    fn step(&mut self, event: Event<u32>) {
        let mut actions = std::mem::take(&mut self.actions);
        self.volume.step(self.now, event, &mut actions);
        for action in actions.drain(..) {
            match action {
                Action::Send { header, message, .. } => {
                    self.messages.push_back(Message::ToReplica(header, message));
                }
                Action::ReadRecord { asked_at } => {
                    let record = self.record.clone();
                    self.step(Event::Seen(record, asked_at));
                }
                Action::Propose { record, replaces } => {
                    let made_by = record.made_by;
                    self.record = *record;
                    self.step(Event::Swapped(made_by, Answer::Committed, replaces));
                }
                // All answer at once, however far the clock leaps.
                Action::QueryNodes { .. } => {}
                Action::Complete(_, result) => {
                    assert_eq!(result, Ok(()));
                    self.done += 1;
                }
                Action::Fill { .. } | Action::Map { .. } => {}
                Action::Attached => continue,
                Action::Merge { .. } | Action::Detached | Action::Done(_) => {
                    unreachable!("no request needs that")
                }
            }
        }
        self.actions = actions;
    }

    fn step_replica(&mut self, index: usize, event: replica::Event<u32>) {
        let mut replies = std::mem::take(&mut self.replies);
        self.replicas[index].step(self.now, event, &mut replies).expect("it is for this one");
        for reply in replies.drain(..) {
            let completion = match reply {
                replica::Action::Send(_, header, answer) => {
                    self.messages.push_back(Message::ToOwner(header, answer));
                    continue;
                }
                replica::Action::Store(command) => match command {
                    Command::Append { number, .. } => Completion::Appended(number),
                    Command::Read { tag, .. } => {
                        Completion::Data { tag, content: Ok(Content::Data(Payload { data: 0, first: 0 })) }
                    }
                    Command::Map { tag, block, blocks } => {
                        let until = block + u64::from(blocks);
                        Completion::Mapped { tag, map: Map { ranges: Vec::new(), until } }
                    }
                    Command::Promise(promise) => Completion::Promised(promise),
                    Command::Above(question) => Completion::Above(question, Vec::new()),
                    Command::Return { .. } | Command::Discard { .. } => Completion::Listed(Vec::new()),
                    Command::CommitPoint { .. } | Command::ForgetTombstones(_) | Command::Joined => continue,
                    Command::Fetch { .. } | Command::Changed { .. } | Command::Salvage => {
                        unreachable!("no replica returns, and nothing is damaged")
                    }
                },
            };
            self.messages.push_back(Message::Stored(index, completion));
        }
        self.replies = replies;
    }
}
