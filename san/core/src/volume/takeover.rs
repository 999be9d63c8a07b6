//! Taking a volume over: from the first swap to the second (rules T1 to T10 of `docs/explanation/san-rules.md`).
//!
//! ```text
//!  Claiming ──────▶ Sealing ───────────▶ Equalizing ──────────▶ Activating ───▶
//!  first swap       members promise      the newest entries     second swap
//!                   and report           are made durable       with those that
//!                      ▲                 on all of them         are equal
//!                      └──── a member is lost: again, without it ────┘
//! ```

use std::collections::{BTreeMap, BTreeSet};

use super::merge::{Merged, Winner, merge};
use super::replica_session::{ReplicaSession, SessionState};
use super::silence::{Members, Verdict, last_heard};
use super::{Action, Context, Status};
use crate::ids::{Epoch, NodeId, Position, ReplicaId, Sequence};
use crate::layout::GroupIndex;
use crate::lease::Moment;
use crate::message::{Content, Entry, EntryOp, FromReplica, Job, Payload, SealReport, ToOwner, ToReplica};
use crate::record::Group;
use crate::rule::{Rule, left_out};

/// In [`Job::part`], of requests that do not serve a client: the session continues after the takeover, so an answer
/// may arrive then.
const FETCH: u32 = u32::MAX;

/// A takeover in progress, from its first swap until its second swap is committed.
#[derive(Debug)]
pub(super) struct Takeover<D> {
    stage: TakeoverStage,
    /// When the stage began.
    since: Moment,
    /// When members were first sealed, and when each replica was last heard before that: one that has not answered since may have been
    /// silent for longer, and what its node answered about that counts (rule S1Anew).
    begun: Moment,
    heard: BTreeMap<ReplicaId, Moment>,
    pub(super) sessions: Vec<ReplicaSession<D>>,
    pub(super) reports: BTreeMap<ReplicaId, SealReport>,
    /// Members that have lost something.
    damaged: BTreeSet<ReplicaId>,
    /// Members that answered and did not carry out the takeover's requests, while others of their groups did. They take no further part.
    left_out: BTreeSet<ReplicaId>,
    /// The content of the entries that are written to all members, as far as it was fetched.
    fetches: Vec<Fetch>,
    /// Groups for which a person has chosen the surviving replica, which is used as it is.
    forced: BTreeSet<GroupIndex>,
    /// The highest commit point that any replica reported of each group, and the highest end of each replica: a replica that has less, now
    /// or when it is sealed again, has lost something.
    commit_points: BTreeMap<GroupIndex, Position>,
    ends: BTreeMap<ReplicaId, Position>,
    /// The time of the last step.
    ticked: Moment,
    /// Other nodes have more of the volume, and are to take it over.
    yields: bool,
    /// How often it began to seal: answers to requests of an earlier try are dropped.
    turn: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum TakeoverStage {
    Claiming,
    Sealing,
    /// The members of each group that are made equal.
    Equalizing(Vec<Vec<ReplicaId>>),
    Activating(Vec<Vec<ReplicaId>>),
}

#[derive(Debug)]
struct Fetch {
    group: GroupIndex,
    winner: Winner,
    asked: Moment,
    done: bool,
}

impl<D: Clone> Takeover<D> {
    pub(super) fn new(now: Moment) -> Takeover<D> {
        Takeover {
            stage: TakeoverStage::Claiming,
            since: now,
            begun: now,
            heard: BTreeMap::new(),
            sessions: Vec::new(),
            reports: BTreeMap::new(),
            damaged: BTreeSet::new(),
            left_out: BTreeSet::new(),
            fetches: Vec::new(),
            forced: BTreeSet::new(),
            commit_points: BTreeMap::new(),
            ends: BTreeMap::new(),
            ticked: now,
            yields: false,
            turn: 0,
        }
    }

    /// For a node that has watched the volume: when it last heard of each replica.
    pub(super) fn watched(now: Moment, heard: &BTreeMap<ReplicaId, Moment>) -> Takeover<D> {
        Takeover { heard: heard.clone(), ..Takeover::new(now) }
    }

    /// For a recovery by force: a person has chosen the survivors of these groups.
    pub(super) fn forced(now: Moment, groups: impl Iterator<Item = GroupIndex>) -> Takeover<D> {
        Takeover { forced: groups.collect(), ..Takeover::new(now) }
    }

    /// For a process that assumes to be the owner because the record names it (rule P3 left out).
    pub(super) fn believing(c: &Context, now: Moment) -> Takeover<D> {
        let mut takeover = Takeover::new(now);
        takeover.make_links(c, now);
        takeover
    }

    /// Whether a person has chosen the survivors of a group.
    pub(super) fn is_forced(&self) -> bool {
        !self.forced.is_empty()
    }

    pub(super) fn status(&self) -> Status {
        match self.stage {
            TakeoverStage::Claiming => Status::Claiming,
            TakeoverStage::Sealing => Status::Sealing,
            TakeoverStage::Equalizing(_) => Status::Equalizing,
            TakeoverStage::Activating(_) => Status::Activating,
        }
    }

    /// The sessions, which continue when the volume is active, and the highest commit point of each group.
    pub(super) fn into_sessions(self, c: &Context) -> (Vec<ReplicaSession<D>>, Vec<Position>) {
        let groups = c.record().map_or(0, |record| record.groups.len() as u32);
        let commit_points = (0..groups).map(|group| self.highest(GroupIndex(group))).collect();
        (self.sessions, commit_points)
    }

    /// Whether the takeover is to end, because nodes that this one does not reach have more of the volume.
    pub(super) fn yields(&self) -> bool {
        self.yields
    }

    /// Whether it begins to serve without waiting for its second swap (rule T3 left out).
    pub(super) fn may_activate(&self) -> bool {
        left_out(Rule::T3) && matches!(self.stage, TakeoverStage::Activating(_))
    }

    /// A swap of ours has committed. Whether it was the second one.
    pub(super) fn committed(&mut self, c: &mut Context, now: Moment, out: &mut Vec<Action<D>>) -> bool {
        match self.stage {
            TakeoverStage::Claiming => {
                self.make_links(c, now);
                self.seal(c, now, out);
                false
            }
            TakeoverStage::Activating(_) => true,
            TakeoverStage::Sealing | TakeoverStage::Equalizing(_) => false,
        }
    }

    fn make_links(&mut self, c: &Context, now: Moment) {
        let Some(record) = c.record() else { return };
        self.begun = now;
        for (index, group) in (0..).zip(&record.groups) {
            for replica in &group.in_sync {
                let mut session =
                    ReplicaSession::new(*replica, record.homes[replica], GroupIndex(index), now);
                session.forced = self.forced.contains(&session.group);
                self.sessions.push(session);
            }
        }
    }

    /// Seals all members, from the beginning.
    fn seal(&mut self, c: &mut Context, now: Moment, out: &mut Vec<Action<D>>) {
        (self.stage, self.since, self.ticked) = (TakeoverStage::Sealing, now, now);
        self.turn += 1;
        self.reports.clear();
        self.fetches.clear();
        for session in &mut self.sessions {
            session.drop_out_of_band();
            if session.state != SessionState::Failed && !self.left_out.contains(&session.replica) {
                session.greet(c, now, SessionState::Sealing, out);
            }
        }
    }

    pub(super) fn message(
        &mut self,
        c: &mut Context,
        now: Moment,
        from: &FromReplica,
        message: ToOwner<D>,
        out: &mut Vec<Action<D>>,
    ) {
        let Some(index) = self.sessions.iter().position(|session| session.replica == from.replica) else {
            return;
        };
        if self.left_out.contains(&from.replica) {
            return;
        }
        let session = &mut self.sessions[index];
        if session.has_restarted(from) || session.is_ours(from) && matches!(message, ToOwner::Stranger) {
            self.lost(c, now, index, out);
            return;
        }
        if !session.is_ours(from) {
            return;
        }
        session.last_answer = now;
        match message {
            ToOwner::Sealed(report) if session.state == SessionState::Sealing => {
                session.opened(c, from, now, out);
                (session.end, session.full) = (report.end, report.full);
                let commit_point = self.commit_points.entry(session.group).or_insert(report.commit_point);
                *commit_point = report.commit_point.max(*commit_point);
                let end = self.ends.entry(from.replica).or_insert(report.end);
                *end = report.end.max(*end);
                self.reports.insert(from.replica, report);
                self.sealed(c, now, index, out);
            }
            ToOwner::Data { job, content } => {
                session.answers();
                self.fetched(c, now, job, content, out);
            }
            ToOwner::Durable(progress) => {
                session.progress(c, now, &progress, None, Epoch(0), out);
                self.go_on(c, now, out);
            }
            ToOwner::Alive { asked, progress, .. } => {
                session.progress(c, now, &progress, Some(asked), Epoch(0), out);
                self.go_on(c, now, out);
            }
            ToOwner::Failed | ToOwner::Damaged => {
                let salvaged = session.salvage(c, from, now, out);
                if salvaged {
                    return;
                }
                session.state = SessionState::Failed;
                self.lost(c, now, index, out);
            }
            _ => {}
        }
    }

    /// A member that counts is lost, or another process runs there: everything is compared again.
    fn lost(&mut self, c: &mut Context, now: Moment, index: usize, out: &mut Vec<Action<D>>) {
        match self.stage {
            // Its second swap is on the way and names it. It will be removed when that is decided.
            TakeoverStage::Claiming | TakeoverStage::Activating(_) => {}
            // The reports of the others still hold.
            TakeoverStage::Sealing => {
                let session = &mut self.sessions[index];
                self.reports.remove(&session.replica);
                if session.state != SessionState::Failed {
                    session.greet(c, now, SessionState::Sealing, out);
                }
                self.compare(c, now, out);
            }
            TakeoverStage::Equalizing(_) => self.seal(c, now, out),
        }
    }

    /// One more member has reported.
    fn sealed(&mut self, c: &mut Context, now: Moment, index: usize, out: &mut Vec<Action<D>>) {
        let (replica, group) = (self.sessions[index].replica, self.sessions[index].group);
        match &mut self.stage {
            TakeoverStage::Sealing => self.compare(c, now, out),
            // What it holds was not compared: it is left out (rule T1).
            TakeoverStage::Equalizing(equal) | TakeoverStage::Activating(equal) => {
                let equal = &mut equal[group.0 as usize];
                if left_out(Rule::T1) {
                    equal.push(replica);
                    return;
                }
                // But the replica that is to be kept may have less than it knows to be acknowledged (rule T10).
                let commit_point = self.commit_points[&group];
                let lost =
                    |kept: &ReplicaId| self.reports.get(kept).is_some_and(|report| report.end < commit_point);
                if equal.iter().any(lost) && matches!(self.stage, TakeoverStage::Equalizing(_)) {
                    self.seal(c, now, out);
                }
            }
            TakeoverStage::Claiming => {}
        }
    }

    /// Whether the takeover may continue without the members that have not reported (rules S1 and S1Ended). `decides`: they have had
    /// time to, or have ended.
    fn may_exclude(&mut self, c: &mut Context, now: Moment, decides: bool, out: &mut Vec<Action<D>>) -> bool {
        if !self.forced.is_empty() || !decides && now.since(self.since) < c.times.seal_ns / 2 {
            return true;
        }
        let has_said = |session: &ReplicaSession<D>| {
            self.reports.contains_key(&session.replica)
                || self.left_out.contains(&session.replica)
                || session.state == SessionState::Failed
        };
        let mut groups: BTreeMap<GroupIndex, Members> = BTreeMap::new();
        for session in &self.sessions {
            let members = groups.entry(session.group).or_default();
            members.all.push(session.node);
            if !has_said(session) {
                members.without(session.node, self.last_heard(c, session), &c.ended);
            }
        }
        for members in groups.into_values() {
            if !decides {
                c.silence.expect(now, &c.times, &members, out);
                continue;
            }
            match c.silence.judge(now, &c.times, &members, out) {
                Verdict::Wait => return false,
                // It has claimed the volume since it was to, or since no other node would.
                Verdict::Tie | Verdict::Without => {}
                Verdict::Yield => {
                    self.yields = true;
                    return false;
                }
            }
        }
        true
    }

    /// When the last message of a member arrived, in this takeover or before.
    fn last_heard(&self, c: &Context, session: &ReplicaSession<D>) -> Moment {
        if session.last_answer > self.begun {
            return session.last_answer;
        }
        self.heard.get(&session.replica).copied().unwrap_or(last_heard(self.begun, &c.times))
    }

    /// Compares the reports, if all have arrived that will arrive.
    fn compare(&mut self, c: &mut Context, now: Moment, out: &mut Vec<Action<D>>) {
        let waited = now.since(self.since) >= c.times.seal_ns;
        if c.promised > c.epoch() && !left_out(Rule::P4) {
            // A member has promised more than the record says: another node is the owner by now, or what the store holds is old.
            c.read_record(now, out);
            return;
        }
        let Some(record) = c.record() else { return };
        let reported = |replica: &ReplicaId| self.reports.contains_key(replica);
        let failed = |replica: &ReplicaId| {
            self.left_out.contains(replica)
                || self
                    .sessions
                    .iter()
                    .any(|session| session.replica == *replica && session.state == SessionState::Failed)
        };
        let ended = |replica: &ReplicaId| c.ended.contains_key(&record.homes[replica]);
        let all = |group: &Group| group.in_sync.iter().all(|r| reported(r) || failed(r) || ended(r));
        let decides = waited || record.groups.iter().all(all);
        let enough = decides && record.groups.iter().all(|group| group.in_sync.iter().any(reported));
        if !self.may_exclude(c, now, decides, out) || !enough {
            return;
        }
        let Some(record) = c.record() else { return };
        let of_group = |(index, group): (u32, &Group)| {
            if self.forced.contains(&GroupIndex(index)) {
                // There is no other replica to compare it with: what it has lost is lost.
                return Merged { members: group.in_sync.iter().copied().collect(), ..Merged::default() };
            }
            let commit_point = self.highest(GroupIndex(index));
            let reports = self.reports.iter().filter(|(replica, _)| group.in_sync.contains(replica));
            // Its own log had more when it was sealed before.
            let (whole, shorter): (BTreeMap<_, _>, BTreeMap<_, _>) = reports
                .map(|(replica, report)| (*replica, report.clone()))
                .partition(|(replica, report)| self.ends.get(replica).is_none_or(|end| report.end >= *end));
            let mut merged = merge(&whole, commit_point);
            merged.damaged.extend(shorter.into_keys());
            merged
        };
        let merged: Vec<Merged> = (0..).zip(&record.groups).map(of_group).collect();
        if merged.iter().any(|group| group.members.is_empty()) {
            // No replica that reports has what is known to be acknowledged. Others may report, or a person must decide.
            return;
        }
        let failed = self
            .sessions
            .iter()
            .filter(|session| session.state == SessionState::Failed)
            .map(|session| session.replica);
        self.damaged = merged.iter().flat_map(|group| group.damaged.iter().copied()).chain(failed).collect();
        (self.since, self.ticked) = (now, now);
        self.stage = TakeoverStage::Equalizing(merged.iter().map(|group| group.members.clone()).collect());
        if !left_out(Rule::T6) {
            for (group, merged) in (0..).zip(merged) {
                let fetch = |winner| Fetch { group: GroupIndex(group), winner, asked: now, done: false };
                self.fetches.extend(merged.winners.into_iter().map(fetch));
            }
        }
        for index in 0..self.fetches.len() {
            self.fetch(c, now, index, false, out);
        }
        self.go_on(c, now, out);
    }

    /// The highest commit point that members of a group reported: everything up to there is on all of them.
    fn highest(&self, group: GroupIndex) -> Position {
        self.commit_points.get(&group).copied().unwrap_or(Position::START)
    }

    /// Requests the data of an entry, or writes the entry at once if it has no data.
    fn fetch(&mut self, c: &Context, now: Moment, index: usize, again: bool, out: &mut Vec<Action<D>>) {
        let fetch = &mut self.fetches[index];
        fetch.asked = now;
        let winner = &fetch.winner;
        let op = match winner.entry.entry.op {
            EntryOp::Data(_) => {
                let job = Job { slot: index as u32, turn: self.turn, part: FETCH };
                let (holder, number) = (winner.holder, winner.entry.number);
                if let Some(session) = self.sessions.iter().find(|session| session.replica == holder) {
                    session.send(c, ToReplica::Fetch { job, number, again }, out);
                }
                return;
            }
            EntryOp::Zeroes => EntryOp::Zeroes,
            EntryOp::Trim => EntryOp::Trim,
            EntryOp::Open => unreachable!("it has no blocks"),
        };
        self.write(c, index, op, out);
    }

    fn fetched(
        &mut self,
        c: &mut Context,
        now: Moment,
        job: Job,
        content: Result<Content<D>, crate::message::Corrupt>,
        out: &mut Vec<Action<D>>,
    ) {
        let index = job.slot as usize;
        if job.part != FETCH
            || job.turn != self.turn
            || self.fetches.get(index).is_none_or(|fetch| fetch.done)
        {
            return;
        }
        let winner = &self.fetches[index].winner;
        match content.map(Content::filled) {
            Ok(Content::Data(payload)) => {
                let skip = (winner.blocks.start - winner.entry.entry.block) as u32;
                let op = EntryOp::Data(Payload { data: payload.data, first: payload.first + skip });
                self.write(c, index, op, out);
                self.go_on(c, now, out);
            }
            // The member's log is corrupt: it has lost what it had.
            Ok(_) | Err(_) => {
                let holder = winner.holder;
                if let Some(at) = self.sessions.iter().position(|session| session.replica == holder) {
                    self.sessions[at].state = SessionState::Failed;
                    self.lost(c, now, at, out);
                }
            }
        }
    }

    /// Writes the entries that have won to all members that are made equal.
    fn write(&mut self, c: &Context, index: usize, op: EntryOp<D>, out: &mut Vec<Action<D>>) {
        let fetch = &mut self.fetches[index];
        fetch.done = true;
        let TakeoverStage::Equalizing(equal) = &self.stage else { return };
        let Winner { blocks, entry, .. } = &fetch.winner;
        let count = (blocks.end - blocks.start) as u32;
        let members = &equal[fetch.group.0 as usize];
        for session in self.sessions.iter_mut().filter(|session| members.contains(&session.replica)) {
            let entry_of = Entry { block: blocks.start, blocks: count, op: op.clone() };
            session.send_out_of_band(c, entry.position, entry_of, out);
        }
    }

    /// Makes the second swap when all are equal.
    fn go_on(&mut self, c: &mut Context, now: Moment, out: &mut Vec<Action<D>>) {
        let TakeoverStage::Equalizing(equal) = &self.stage else { return };
        let equalized = self.fetches.iter().all(|fetch| fetch.done)
            && self.sessions.iter().all(|session| {
                let counts = equal[session.group.0 as usize].contains(&session.replica);
                !counts || session.out_of_band_is_durable()
            });
        if !equalized || c.is_undecided() {
            return;
        }
        let sets: Vec<BTreeSet<ReplicaId>> = equal.iter().map(|set| set.iter().copied().collect()).collect();
        let id = c.proposal();
        let record = c.record().expect("its first swap has committed");
        let groups = record.groups.len() as u32;
        let commit_points: Vec<Position> = (0..groups).map(|group| self.highest(GroupIndex(group))).collect();
        match record.activated(id, &sets, &commit_points) {
            Ok(mut next) => {
                if !left_out(Rule::C9) {
                    next = next.copied_in_full(&self.damaged);
                }
                (self.stage, self.since) = (TakeoverStage::Activating(equal.clone()), now);
                c.propose(now, next, out);
            }
            Err(_) => unreachable!("members of the record, at least one of each group"),
        }
    }

    /// Excludes a replica that answers and does not do what is requested: its device may hang. Whether there is one; the others are
    /// compared again without it, if there are others of its group; and if not, with those that were left out before.
    fn leave_out_stalled(&mut self, c: &Context, now: Moment) -> bool {
        let TakeoverStage::Equalizing(equal) = &self.stage else { return false };
        let mut stalled = Vec::new();
        let mut alone = false;
        for session in self.sessions.iter_mut() {
            let equal = &equal[session.group.0 as usize];
            if !equal.contains(&session.replica) {
                continue;
            }
            if session.out_of_band_is_durable() {
                session.moves(now);
            }
            let others = equal.iter().any(|other| *other != session.replica && !stalled.contains(other));
            if session.is_stalled(c, now) && others {
                stalled.push(session.replica);
            }
            alone |= session.is_stalled(c, now) && !others;
        }
        if alone && !self.left_out.is_empty() {
            // The others may be well again.
            self.left_out.clear();
            return true;
        }
        self.left_out.extend(stalled.iter().copied());
        !stalled.is_empty()
    }

    /// A node's process has ended: those that are made equal are compared again, without what it has.
    pub(super) fn ended(&mut self, c: &mut Context, now: Moment, node: NodeId, out: &mut Vec<Action<D>>) {
        let TakeoverStage::Equalizing(equal) = &self.stage else { return };
        let counts = |session: &ReplicaSession<D>| equal[session.group.0 as usize].contains(&session.replica);
        if self.sessions.iter().any(|session| session.node == node && counts(session)) {
            self.seal(c, now, out);
        }
    }

    pub(super) fn tick(&mut self, c: &mut Context, now: Moment, out: &mut Vec<Action<D>>) {
        match &self.stage {
            TakeoverStage::Claiming | TakeoverStage::Activating(_) => {}
            TakeoverStage::Sealing => {
                if now.since(self.since) >= c.times.stalled_ns && !self.left_out.is_empty() {
                    // No other replica has reported: these are all that is left.
                    self.left_out.clear();
                    self.seal(c, now, out);
                    return;
                }
                for session in &mut self.sessions {
                    if session.state == SessionState::Failed && session.was_asked_long_ago(c, now) {
                        // Another life of its process may find its device well.
                        session.greet(c, now, SessionState::Sealing, out);
                    }
                    session.ask_again(c, now, out);
                }
                self.compare(c, now, out);
            }
            TakeoverStage::Equalizing(_) => {
                if now.since(std::mem::replace(&mut self.ticked, now)) >= c.times.silent_ns {
                    // It was stopped itself.
                    self.sessions.iter_mut().for_each(|session| session.wait_anew(now));
                }
                if self.leave_out_stalled(c, now) {
                    self.seal(c, now, out);
                    return;
                }
                let TakeoverStage::Equalizing(equal) = &self.stage else { return };
                let counts = |session: &&mut ReplicaSession<D>| {
                    equal[session.group.0 as usize].contains(&session.replica)
                };
                let silent = self
                    .sessions
                    .iter_mut()
                    .filter(counts)
                    .any(|session| now.since(session.last_answer.max(self.since)) >= c.times.silent_ns);
                if silent {
                    self.seal(c, now, out);
                    return;
                }
                // Requests from all members how far they are: what they have missed is sent again.
                for session in self.sessions.iter_mut().filter(counts) {
                    session.heartbeat(c, now, Epoch(0), Sequence(0), out);
                }
                for index in 0..self.fetches.len() {
                    let fetch = &self.fetches[index];
                    if !fetch.done && now.since(fetch.asked) >= c.times.resend_ns {
                        let holder = fetch.winner.holder;
                        if let Some(session) =
                            self.sessions.iter_mut().find(|session| session.replica == holder)
                        {
                            session.is_awaited(c, now);
                        }
                        self.fetch(c, now, index, true, out);
                    }
                }
            }
        }
    }
}
