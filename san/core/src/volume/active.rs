//! A volume that is served: its entries, the replicas that have them, and the members that leave.
//!
//! Requests of clients are in `jobs`, and returning replicas in `returning`.

mod jobs;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::replica_session::{Issued, ReplicaSession, SessionState};
use super::returning::{Retry, Returning};
use super::{Action, Context, Request, RequestId};
use crate::ids::{Epoch, NodeId, Position, ReplicaId, Sequence};
use crate::layout::GroupIndex;
use crate::lease::{Leases, Moment};
use crate::message::{Entry, EntryOp, FromReplica, Progress, ToOwner, ToReplica};
use crate::pipeline::Pipeline;
use crate::range::Exclusion;
use crate::rule::{Rule, left_out};
use jobs::Jobs;

/// A group, at its owner.
#[derive(Debug)]
pub(super) struct Group<D> {
    pub(super) pipeline: Pipeline<Issued<D>>,
    leases: Leases,
    /// The replicas that must have a write, and whose lease a read needs.
    pub(super) required: Vec<ReplicaId>,
    lenders: Vec<ReplicaId>,
    /// Where a read may go: the local one first.
    pub(super) readable: Vec<ReplicaId>,
    /// Replicas that are in sync whatever the outcome of a proposal is. The policy counts these.
    pub(super) in_sync: usize,
    /// The position up to which entries were acknowledged before this ownership.
    before: Position,
    /// Blocks of data in entries that are kept because a replica has not received them yet.
    pub(super) kept: u64,
}

/// The state of a volume while this node serves it: groups, sessions with replicas, client requests and returning replicas.
#[derive(Debug)]
pub(super) struct Active<D> {
    pub(super) ownership: Epoch,
    pub(super) groups: Vec<Group<D>>,
    /// The volume's size, in blocks, when members last were told to keep the epoch (rule P5).
    remembered: u64,
    pub(super) sessions: Vec<ReplicaSession<D>>,
    pub(super) jobs: Jobs<D>,
    pub(super) exclusion: Exclusion,
    /// Writes that wait for more replicas in sync.
    pub(super) held: VecDeque<Request<D>>,
    /// Writes that were carried out, and on too few replicas to be acknowledged, with the groups that they touch (rule W6).
    pub(super) withheld: Vec<(RequestId, Vec<GroupIndex>)>,
    pub(super) returning: BTreeMap<ReplicaId, Returning>,
    /// The number of requests for changed blocks so far.
    pub(super) scans: u32,
    /// Blocks of all copies that were begun to returning replicas.
    pub(super) copied: u64,
    /// The time of the last step.
    ticked: Moment,
    /// Replicas that have departed, and have less than they had then: the record is to say so before anything else.
    pub(super) lost: BTreeSet<ReplicaId>,
    /// When the next return of each departed replica may begin, if a former one has failed.
    pub(super) retries: BTreeMap<ReplicaId, Retry>,
    /// Nodes that this one does not reach have more of the volume, and are to serve it (rule S1).
    pub(super) yields: bool,
    /// Groups of a node whose process has ended, and of which another member has not answered since (rule S1Ended).
    pub(super) unconfirmed: BTreeSet<GroupIndex>,
}

/// Blocks of data in an entry.
fn data_blocks<D>(entry: &Entry<D>) -> u64 {
    if matches!(entry.op, EntryOp::Data(_)) { u64::from(entry.blocks) } else { 0 }
}

impl<D: Clone> Active<D> {
    /// The state after the second swap has committed. The members are the replicas with which it has sessions.
    pub(super) fn new(
        c: &mut Context,
        mut sessions: Vec<ReplicaSession<D>>,
        commit_points: &[Position],
        now: Moment,
        out: &mut Vec<Action<D>>,
    ) -> Active<D> {
        let swap = c.swap.as_ref().expect("it has taken over");
        let record = swap.undecided().unwrap_or(swap.settled());
        let ownership = record.epoch;
        // A replica that was sealed too late to be compared gets nothing of this ownership: a commit point would commit entries that only
        // this replica holds (rule T1).
        sessions.retain(|session| record.groups[session.group.0 as usize].in_sync.contains(&session.replica));
        for session in &mut sessions {
            session.beat_at_once();
            // Its process ends soon, and has reported all the same.
            if c.ended.contains_key(&session.node) {
                session.is_silent(c, now);
            }
        }
        let mut active = Active {
            ownership,
            groups: Vec::new(),
            remembered: record.blocks,
            sessions,
            jobs: Jobs::default(),
            exclusion: Exclusion::default(),
            held: VecDeque::new(),
            withheld: Vec::new(),
            returning: BTreeMap::new(),
            scans: 0,
            copied: 0,
            ticked: now,
            lost: BTreeSet::new(),
            retries: BTreeMap::new(),
            yields: false,
            unconfirmed: BTreeSet::new(),
        };
        active.follow_record(c, now, out);
        for (group, commit_point) in active.groups.iter_mut().zip(commit_points) {
            group.before = *commit_point;
        }
        active
    }

    /// When the last message of each replica arrived.
    pub(super) fn heard(&self) -> impl Iterator<Item = (ReplicaId, Moment)> {
        self.sessions.iter().map(|session| (session.replica, session.last_answer))
    }

    /// Ends the service. Returns the requests that were not carried out, and the ids of those that must not begin again: requests
    /// that were carried out and not acknowledged, and requests of clients that have gone.
    pub(super) fn end(mut self, c: &Context, out: &mut Vec<Action<D>>) -> (Vec<Request<D>>, Vec<RequestId>) {
        for session in self.sessions.iter().filter(|session| session.is_open()) {
            session.send(c, ToReplica::Release, out);
        }
        let (mut unfinished, mut over) = self.jobs.unfinished();
        unfinished.extend(self.held);
        over.extend(self.withheld.into_iter().map(|(id, _)| id));
        (unfinished, over)
    }

    /// The client of a request has gone. Returns whether the request had not begun, or its answer waits.
    pub(super) fn cancel(&mut self, id: RequestId) -> bool {
        let waiting = self.held.len() + self.withheld.len();
        self.held.retain(|request| request.id != id);
        self.withheld.retain(|(withheld, _)| *withheld != id);
        self.held.len() + self.withheld.len() < waiting || self.jobs.cancel(id)
    }

    pub(super) fn unanswered(&self) -> usize {
        self.jobs.clients() + self.held.len() + self.withheld.len()
    }

    /// The record has changed, or a change was proposed: the sets of replicas that must have entries follow from both.
    pub(super) fn follow_record(&mut self, c: &mut Context, now: Moment, out: &mut Vec<Action<D>>) {
        let swap = c.swap.as_ref().expect("it owns the volume");
        let record = swap.settled();
        // Groups that a proposal adds are not used before it has committed.
        for index in self.groups.len()..record.groups.len() {
            self.open_group(c, GroupIndex(index as u32), now, out);
        }
        let record = c.record().expect("it owns the volume").clone();
        for (index, group) in (0..).zip(&mut self.groups) {
            let index = GroupIndex(index);
            let swap = c.swap.as_ref().expect("it owns the volume");
            let certain = swap.certain(index);
            group.in_sync = certain.len();
            group.readable = certain.into_iter().collect();
            group.readable.sort_by_key(|replica| record.homes.get(replica) != Some(&c.me.node));
            group.required = c.required(index);
            group.lenders.clone_from(&group.required);
            if left_out(Rule::L2) {
                group.lenders.retain(|replica| record.homes.get(replica) != Some(&c.me.node));
            }
            if left_out(Rule::P1Reads) {
                group.lenders = record.groups[index.0 as usize].in_sync.iter().copied().collect();
            }
            let joining = self.returning.iter().filter(|(_, r)| r.group() == index && r.is_joining());
            let joining = joining.map(|(replica, _)| *replica);
            group.pipeline.require(group.required.iter().copied().chain(joining));
        }
        // A member without a session is one whose return was given up while the swap that adds it was undecided.
        for (index, group) in (0..).zip(&self.groups) {
            for replica in &group.required {
                if !self.sessions.iter().any(|session| session.replica == *replica) {
                    let mut session =
                        ReplicaSession::new(*replica, record.homes[replica], GroupIndex(index), now);
                    session.greet(c, now, SessionState::Greeting, out);
                    self.sessions.push(session);
                }
            }
        }
        // A replica that is not in the record any more gets nothing more.
        let named = |session: &ReplicaSession<D>| {
            self.groups[session.group.0 as usize].required.contains(&session.replica)
                || self.returning.contains_key(&session.replica)
        };
        let (stay, go): (Vec<_>, Vec<_>) = std::mem::take(&mut self.sessions).into_iter().partition(named);
        self.sessions = stay;
        for session in go {
            self.groups[session.group.0 as usize].pipeline.forget(session.replica);
        }
        for index in 0..self.groups.len() {
            self.acknowledge(c, now, index, out);
        }
        self.retry_held(c, now, out);
        self.finish_reads(c, now, out);
    }

    /// Begins the sequence of a group.
    fn open_group(&mut self, c: &mut Context, index: GroupIndex, now: Moment, out: &mut Vec<Action<D>>) {
        let record = c.record().expect("it owns the volume");
        let members = record.groups[index.0 as usize].in_sync.clone();
        let mut pipeline = Pipeline::new();
        pipeline.require(members.iter().copied());
        self.groups.push(Group {
            pipeline,
            leases: Leases::new(record.lease_ns),
            required: members.iter().copied().collect(),
            lenders: members.iter().copied().collect(),
            readable: Vec::new(),
            in_sync: members.len(),
            before: Position::START,
            kept: 0,
        });
        for replica in members {
            if !self.sessions.iter().any(|session| session.replica == replica) {
                let home = c.record().expect("it owns the volume").homes[&replica];
                let mut session = ReplicaSession::new(replica, home, index, now);
                session.greet(c, now, SessionState::Sealing, out);
                self.sessions.push(session);
            }
        }
        let open = Entry { block: 0, blocks: 0, op: EntryOp::Open };
        self.issue(c, index, open, None, out);
    }

    /// Issues an entry, and sends it to all replicas that get entries.
    pub(super) fn issue(
        &mut self,
        c: &Context,
        index: GroupIndex,
        entry: Entry<D>,
        job: Option<u32>,
        out: &mut Vec<Action<D>>,
    ) {
        let group = &mut self.groups[index.0 as usize];
        let sequence = group.pipeline.issued().next();
        for returning in self.returning.values_mut().filter(|r| r.group() == index) {
            returning.written(sequence, &entry.range());
        }
        group.kept += data_blocks(&entry);
        let sequence = group.pipeline.issue(Issued { entry, job });
        for session in self.sessions.iter_mut().filter(|session| session.group == index) {
            // A replica that lacks earlier entries gets all of them when it has those.
            if session.is_open() && session.next == sequence {
                let returning = self.returning.get_mut(&session.replica);
                session.send_entries(c, self.ownership, &group.pipeline, returning, out);
            }
        }
    }

    /// Up to where every member of a group has everything.
    pub(super) fn had(&self, index: GroupIndex) -> Position {
        match self.acknowledged(index) {
            // The opening entry is on its way: a member that has not got it has lost nothing.
            Position { sequence: Sequence(0), .. } => self.groups[index.0 as usize].before,
            acknowledged => acknowledged,
        }
    }

    /// Whether a member of a group answers.
    pub(super) fn answers(&self, c: &Context, now: Moment, session: &ReplicaSession<D>) -> bool {
        session.is_open() && now.since(session.last_answer) < c.times.silent_ns && !session.is_stalled(c, now)
    }

    /// Whether all replicas answer that must have a write, also those that an undecided proposal requires.
    pub(super) fn all_answer(&self, c: &Context, now: Moment) -> bool {
        self.groups.iter().flat_map(|group| &group.required).all(|replica| {
            let session = self.sessions.iter().find(|session| session.replica == *replica);
            session.is_some_and(|session| self.answers(c, now, session))
        })
    }

    /// Whether a group has a member that answers beside this one.
    pub(super) fn can_spare(
        &self,
        c: &Context,
        now: Moment,
        index: GroupIndex,
        replica: ReplicaId,
        instead: Option<ReplicaId>,
    ) -> bool {
        let group = self.groups.get(index.0 as usize);
        group.is_some_and(|group| {
            let meant =
                |session: &&ReplicaSession<D>| instead.is_none_or(|instead| session.replica == instead);
            let others = self.sessions.iter().filter(|session| session.replica != replica).filter(meant);
            others
                .filter(|session| group.readable.contains(&session.replica))
                .any(|session| self.answers(c, now, session))
        })
    }

    /// Whether all that must have a write have room for it (rule W7).
    pub(super) fn has_room(&self, index: GroupIndex) -> bool {
        let required = &self.groups[index.0 as usize].required;
        let must_have = |session: &&ReplicaSession<D>| {
            let joins = || self.returning.get(&session.replica).is_some_and(Returning::is_joining);
            session.group == index && (required.contains(&session.replica) || joins())
        };
        !self.sessions.iter().filter(must_have).any(|session| session.full) || left_out(Rule::W7)
    }

    pub(super) fn acknowledged(&self, index: GroupIndex) -> Position {
        Position {
            ownership: self.ownership,
            sequence: self.groups[index.0 as usize].pipeline.acknowledged(),
        }
    }

    /// Acknowledges what all have.
    pub(super) fn acknowledge(
        &mut self,
        c: &mut Context,
        now: Moment,
        index: usize,
        out: &mut Vec<Action<D>>,
    ) {
        while let Some(issued) = self.groups[index].pipeline.acknowledge() {
            if let Some(job) = issued.job {
                self.jobs.written(job);
            }
        }
        let group = &mut self.groups[index];
        while let Some(released) = group.pipeline.release() {
            group.kept -= data_blocks(&released.entry);
        }
        self.go_on(c, now, out);
    }

    /// Whether reads of this group may be answered now (rules L1, L2, P1).
    pub(super) fn may_read(&self, index: GroupIndex, now: Moment) -> bool {
        let group = &self.groups[index.0 as usize];
        left_out(Rule::L4) || group.leases.hold(&group.lenders, now)
    }

    pub(super) fn message(
        &mut self,
        c: &mut Context,
        now: Moment,
        from: &FromReplica,
        message: ToOwner<D>,
        out: &mut Vec<Action<D>>,
    ) {
        let Some(at) = self.sessions.iter().position(|session| session.replica == from.replica) else {
            return;
        };
        let session = &mut self.sessions[at];
        let stranger = session.is_ours(from) && matches!(message, ToOwner::Stranger);
        if session.has_restarted(from) || stranger {
            self.greet_again(c, now, at, out);
            return;
        }
        if !session.is_ours(from) || session.state == SessionState::Failed {
            return;
        }
        session.heard(c, now);
        match message {
            ToOwner::Welcome(progress) => {
                if session.state == SessionState::Greeting {
                    self.welcomed(c, now, at, from, &progress, out);
                }
            }
            ToOwner::Sealed(report) => {
                // A replica of a group that is new.
                if session.state == SessionState::Sealing {
                    let progress = Progress {
                        ownership: report.end.ownership,
                        received: report.end.sequence,
                        durable: report.end.sequence,
                        out_of_band_received: 0,
                        out_of_band_durable: 0,
                        returned: false,
                        gap: false,
                        full: report.full,
                    };
                    self.welcomed(c, now, at, from, &progress, out);
                }
            }
            ToOwner::Durable(progress) => self.progress(c, now, at, &progress, None, out),
            ToOwner::Alive { asked, granted, progress } => {
                let group = session.group;
                session.alive = session.alive.max(asked);
                if granted {
                    let replica = session.replica;
                    let began = if left_out(Rule::L1) { now } else { asked };
                    self.groups[session.group.0 as usize].leases.granted(replica, began);
                }
                self.progress(c, now, at, &progress, Some(asked), out);
                self.finish_reads(c, now, out);
                if self.unconfirmed.remove(&group) && self.unconfirmed.is_empty() {
                    self.change_members(c, now, out);
                }
            }
            ToOwner::Data { job, content } => {
                session.answers();
                self.data(c, now, from.replica, job, content, out);
            }
            ToOwner::Mapped { job, map } => {
                session.answers();
                self.mapped(c, now, job, map, out);
            }
            ToOwner::Listed { after, ranges } => self.listed(c, now, at, after, ranges, out),
            ToOwner::Changed { job, ranges, next } => {
                session.answers();
                self.changed(c, now, from.replica, job, (ranges, next), out);
            }
            ToOwner::Corrupt { block } => self.found_corrupt(c, now, from.replica, block, out),
            ToOwner::Failed => {
                session.state = SessionState::Failed;
                self.abandon(c, now, from.replica, out);
                self.change_members(c, now, out);
            }
            ToOwner::Damaged => self.damaged(c, now, at, from, out),
            ToOwner::Refused(_) | ToOwner::Stranger | ToOwner::Probed { .. } => {}
        }
    }

    /// A session has ended: another is begun, or the return from the beginning.
    fn greet_again(&mut self, c: &mut Context, now: Moment, at: usize, out: &mut Vec<Action<D>>) {
        let replica = self.sessions[at].replica;
        if self.returning.contains_key(&replica) {
            self.abandon(c, now, replica, out);
        } else {
            self.sessions[at].greet(c, now, SessionState::Greeting, out);
        }
    }

    /// A member, or a returning replica, answers in a new session.
    pub(super) fn welcomed(
        &mut self,
        c: &mut Context,
        now: Moment,
        at: usize,
        from: &FromReplica,
        progress: &Progress,
        out: &mut Vec<Action<D>>,
    ) {
        let session = &mut self.sessions[at];
        session.opened(c, from, now, out);
        session.full = progress.full;
        if self.returning.contains_key(&from.replica) {
            self.order_return(c, now, at, progress, out);
            return;
        }
        let here = progress.ownership == self.ownership;
        let durable = if here { progress.durable } else { Sequence(0) };
        let pipeline = &mut self.groups[session.group.0 as usize].pipeline;
        if left_out(Rule::P3) && durable > pipeline.issued() {
            pipeline.believe(durable);
        }
        let end = Position { ownership: progress.ownership, sequence: progress.durable };
        if pipeline.connected(from.replica, durable).is_err() || !here && end < session.end {
            // The replica has lost entries that it had reported as durable.
            session.state = SessionState::Failed;
            self.change_members(c, now, out);
            return;
        }
        session.next = if here { progress.received.next() } else { Sequence(1) };
        // Not one whose joining is undecided: it needs its list if it comes to nothing.
        let record = c.record().expect("it owns the volume");
        if record.groups[session.group.0 as usize].in_sync.contains(&session.replica) {
            session.send(c, ToReplica::Joined, out);
            session.remember(c, out);
        }
        session.send_entries(c, self.ownership, pipeline, None, out);
        self.acknowledge(c, now, self.sessions[at].group.0 as usize, out);
    }

    fn progress(
        &mut self,
        c: &mut Context,
        now: Moment,
        at: usize,
        progress: &Progress,
        asked: Option<Moment>,
        out: &mut Vec<Action<D>>,
    ) {
        let session = &mut self.sessions[at];
        let drops = self.returning.contains_key(&session.replica) && !session.returned;
        if !session.is_open() || drops && !left_out(Rule::C8) {
            return;
        }
        let index = session.group.0 as usize;
        let group = &mut self.groups[index];
        let Some(again) = session.progress(c, now, progress, asked, self.ownership, out) else { return };
        if progress.ownership == self.ownership {
            let before = group.pipeline.durable_on(session.replica);
            if group.pipeline.durable(session.replica, progress.durable).is_err() {
                session.state = SessionState::Failed;
                return;
            }
            if group.pipeline.durable_on(session.replica) > before {
                session.moves(now);
            }
        }
        let replica = session.replica;
        if again {
            let returning = self.returning.get_mut(&replica);
            session.send_entries(c, self.ownership, &group.pipeline, returning, out);
        }
        self.acknowledge(c, now, index, out);
        if self.returning.contains_key(&replica) {
            self.return_on(c, now, replica, out);
        }
    }

    /// A swap of ours has committed.
    pub(super) fn committed(&mut self, c: &mut Context, now: Moment, out: &mut Vec<Action<D>>) {
        let record = c.record().expect("it owns the volume");
        let is_member = |group: GroupIndex, replica: &ReplicaId| {
            record.groups[group.0 as usize].in_sync.contains(replica)
        };
        // A replica that has joined is a member; one that a person has removed is none.
        let departed = |returning: &Returning, replica: &ReplicaId| {
            record.groups[returning.group().0 as usize].departed.contains_key(replica)
        };
        let struck: Vec<ReplicaId> = self
            .returning
            .iter()
            .filter(|(replica, r)| !is_member(r.group(), replica) && !departed(r, replica))
            .map(|(replica, _)| *replica)
            .collect();
        self.returning.retain(|replica, returning| !is_member(returning.group(), replica));
        self.retries
            .retain(|replica, _| record.groups.iter().any(|group| group.departed.contains_key(replica)));
        for session in self
            .sessions
            .iter()
            .filter(|session| session.is_open() && is_member(session.group, &session.replica))
        {
            session.send(c, ToReplica::Joined, out);
            if record.blocks > self.remembered {
                session.remember(c, out);
            }
        }
        self.remembered = record.blocks;
        for replica in struck {
            self.abandon(c, now, replica, out);
        }
        self.follow_record(c, now, out);
    }

    /// Whether this owner is to step down, because nodes that it does not reach have more of the volume.
    pub(super) fn yields(&self) -> bool {
        self.yields
    }

    /// A node's process has ended: its replicas count as silent. The other members get a heartbeat at once.
    pub(super) fn ended(&mut self, c: &Context, now: Moment, node: NodeId) {
        self.sessions.iter_mut().for_each(ReplicaSession::beat_at_once);
        self.sessions
            .iter_mut()
            .filter(|session| session.node == node)
            .for_each(|session| session.is_silent(c, now));
    }

    pub(super) fn tick(&mut self, c: &mut Context, now: Moment, out: &mut Vec<Action<D>>) {
        if now.since(std::mem::replace(&mut self.ticked, now)) >= c.times.silent_ns {
            // This process was stopped: messages that the members sent meanwhile are still unread.
            self.sessions.iter_mut().for_each(|session| session.wait_anew(now));
        }
        for session in &mut self.sessions {
            let pipeline = &self.groups[session.group.0 as usize].pipeline;
            let has_all =
                pipeline.durable_on(session.replica).is_none_or(|through| through >= pipeline.issued());
            let ordered = self.returning.get(&session.replica).is_some_and(Returning::is_ordered);
            if has_all && session.out_of_band_is_durable() && !ordered {
                session.moves(now);
            }
            // The replica's process may have started again, and its answer to that may have been lost. One that ends soon still answers.
            let silent = session.is_open()
                && now.since(session.last_answer) >= c.times.silent_ns
                && !c.ended.contains_key(&session.node);
            if silent && !self.returning.contains_key(&session.replica) {
                session.greet(c, now, SessionState::Greeting, out);
            }
            if session.state == SessionState::Failed && session.was_asked_long_ago(c, now) {
                // Another life of the process may find the device usable: then what it has is compared.
                session.greet(c, now, SessionState::Greeting, out);
            }
            session.ask_again(c, now, out);
            let commit_point = self.groups[session.group.0 as usize].pipeline.acknowledged();
            session.heartbeat(c, now, self.ownership, commit_point, out);
        }
        self.read_again(c, now, out);
        self.look_for_departed(c, now, out);
        self.change_members(c, now, out);
    }
}
