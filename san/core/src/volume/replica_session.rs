//! An owner's session with one replica: what was sent, and what must be sent again.

use std::collections::VecDeque;

use super::returning::Returning;
use super::{Action, Context};
use crate::ids::{Epoch, Incarnation, NodeId, Position, ReplicaId, Sequence};
use crate::layout::GroupIndex;
use crate::lease::Moment;
use crate::message::{Entry, EntryOp, FromOwner, FromReplica, Progress, ToReplica};
use crate::pipeline::Pipeline;
use crate::rule::{Rule, left_out};

/// An entry that was issued.
#[derive(Debug)]
pub(super) struct Issued<D> {
    pub(super) entry: Entry<D>,
    /// The job that waits for it; none of an opening entry.
    pub(super) job: Option<u32>,
}

/// The state of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionState {
    /// A session was requested with `Hello`.
    Greeting,
    /// A session was requested with `Seal`, and the report has not arrived.
    Sealing,
    /// The session is open, and the replica answers.
    Open,
    /// The replica's device has failed, or it has lost something. The state stays so.
    Failed,
}

/// An owner's session with one replica: what was sent, what was acknowledged, and what must be sent again.
#[derive(Debug)]
pub(super) struct ReplicaSession<D> {
    pub(super) replica: ReplicaId,
    pub(super) node: NodeId,
    pub(super) group: GroupIndex,
    pub(super) state: SessionState,
    pub(super) number: u64,
    process: Incarnation,
    /// When the session was last requested.
    asked: Moment,
    /// When the replica last answered.
    pub(super) last_answer: Moment,
    /// When the last heartbeat was sent that the replica has answered.
    pub(super) alive: Moment,
    /// When the replica last carried out a request, or had nothing to do.
    moved: Moment,
    /// When the replica was first and last found late with an answer, with no answer between the two.
    unanswered: Option<(Moment, Moment)>,
    /// A person continues with the replica, whatever it has lost.
    pub(super) forced: bool,
    /// The life of the replica's process that was ordered in this session to continue although it is damaged.
    salvages: bool,
    /// Up to where the replica had everything, by its seal report.
    pub(super) end: Position,
    /// The replica has dropped what it had, in this session.
    pub(super) returned: bool,
    /// The replica's device has room for no more than what is in flight.
    pub(super) full: bool,
    /// The last entry that the replica reported in this session. A report of less is late.
    received: Sequence,
    /// The next entry to send.
    pub(super) next: Sequence,
    /// The out-of-band entries that are not confirmed, and the number of the first of them.
    out_of_band: VecDeque<(Position, Entry<D>)>,
    first_out_of_band: u64,
    /// The number of out-of-band entries that were confirmed over all sessions, for the jobs that wait for them.
    pub(super) confirmed: u64,
    /// The last heartbeat: when, and what had been sent then.
    beat: Option<(Moment, Sequence, u64)>,
    beaten: Option<Moment>,
}

impl<D: Clone> ReplicaSession<D> {
    pub(super) fn new(replica: ReplicaId, node: NodeId, group: GroupIndex, now: Moment) -> ReplicaSession<D> {
        ReplicaSession {
            replica,
            node,
            group,
            state: SessionState::Greeting,
            number: 0,
            process: Incarnation(0),
            asked: now,
            last_answer: now,
            alive: Moment(0),
            moved: now,
            unanswered: None,
            forced: false,
            salvages: false,
            end: Position::START,
            returned: false,
            full: false,
            received: Sequence(0),
            next: Sequence(1),
            out_of_band: VecDeque::new(),
            first_out_of_band: 1,
            confirmed: 0,
            beat: None,
            beaten: None,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.state == SessionState::Open
    }

    fn header(&self, c: &Context) -> FromOwner {
        FromOwner {
            volume: c.volume,
            replica: self.replica,
            owner: c.me,
            epoch: c.mine,
            session: self.number,
            process: self.process,
        }
    }

    pub(super) fn send(&self, c: &Context, message: ToReplica<D>, out: &mut Vec<Action<D>>) {
        out.push(Action::Send { to: self.node, header: self.header(c), message });
    }

    /// Begins a session.
    pub(super) fn greet(
        &mut self,
        c: &mut Context,
        now: Moment,
        state: SessionState,
        out: &mut Vec<Action<D>>,
    ) {
        c.sessions += 1;
        self.number = c.sessions;
        (self.process, self.salvages) = (Incarnation(0), false);
        self.state = state;
        (self.beat, self.beaten, self.returned) = (None, None, false);
        self.ask(c, now, out);
    }

    /// The replica reports that it has failed, or is damaged. If a person continues with it, this life of its process is
    /// ordered to continue, unless the report is its answer to that order: a later life may have lost more. Returns
    /// whether the order was sent.
    pub(super) fn salvage(
        &mut self,
        c: &mut Context,
        from: &FromReplica,
        now: Moment,
        out: &mut Vec<Action<D>>,
    ) -> bool {
        // A session that was opened, or that salvages, names the process.
        if !self.forced || self.process == from.process {
            return false;
        }
        self.salvages = true;
        c.sessions += 1;
        (self.number, self.process, self.state) = (c.sessions, from.process, SessionState::Sealing);
        self.ask(c, now, out);
        true
    }

    /// Requests the session, again.
    fn ask(&mut self, c: &Context, now: Moment, out: &mut Vec<Action<D>>) {
        self.asked = now;
        let group = c.record().and_then(|record| record.groups.get(self.group.0 as usize));
        let member_since = group.map_or(Epoch(0), |group| group.member_since(self.replica));
        let history =
            c.record().zip(group).map(|(record, group)| record.history_of(group)).unwrap_or_default();
        let message = match self.state {
            SessionState::Sealing => ToReplica::Seal { member_since, history, salvage: self.salvages },
            _ => ToReplica::Hello { member_since, history },
        };
        self.send(c, message, out);
    }

    /// Whether the last session was requested so long ago that another life of the process may have begun.
    pub(super) fn was_asked_long_ago(&self, c: &Context, now: Moment) -> bool {
        now.since(self.asked) >= c.times.stalled_ns
    }

    /// Requests again a session that has not been answered for a while.
    pub(super) fn ask_again(&mut self, c: &Context, now: Moment, out: &mut Vec<Action<D>>) {
        let waiting = matches!(self.state, SessionState::Greeting | SessionState::Sealing);
        if waiting && now.since(self.asked) >= c.times.resend_ns {
            self.ask(c, now, out);
        }
    }

    /// Whether a message belongs to this session. Another life of the process is another session.
    pub(super) fn is_ours(&self, from: &FromReplica) -> bool {
        from.session == self.number
            && (matches!(self.state, SessionState::Greeting | SessionState::Sealing)
                || from.process == self.process)
    }

    /// Whether it comes from this session, and from a later life of the process than the one that opened it.
    pub(super) fn has_restarted(&self, from: &FromReplica) -> bool {
        self.is_open() && from.session == self.number && from.process > self.process
    }

    /// The session is open. What was sent out of band in former ones is sent again.
    pub(super) fn opened(&mut self, c: &Context, from: &FromReplica, now: Moment, out: &mut Vec<Action<D>>) {
        self.state = SessionState::Open;
        self.process = from.process;
        self.heard(c, now);
        (self.moved, self.unanswered) = (now, None);
        (self.received, self.first_out_of_band) = (Sequence(0), 1);
        self.resend_out_of_band(c, 1, out);
    }

    /// Sends entries of this ownership from `self.next` on: those that are issued. To a returning replica that is full, an entry with
    /// nothing in it takes the place of data, which is copied when there is room (rule C11).
    pub(super) fn send_entries(
        &mut self,
        c: &Context,
        ownership: Epoch,
        pipeline: &Pipeline<Issued<D>>,
        mut returning: Option<&mut Returning>,
        out: &mut Vec<Action<D>>,
    ) {
        let commit_point = pipeline.acknowledged();
        while let Some(issued) = pipeline.entry(self.next) {
            let has_data = matches!(issued.entry.op, EntryOp::Data(_));
            let entry = match &mut returning {
                Some(returning) if has_data && self.full && returning.puts_off() => {
                    if !left_out(Rule::C11) {
                        returning.put_off(issued.entry.range());
                    }
                    Entry { block: 0, blocks: 0, op: EntryOp::Open }
                }
                _ => issued.entry.clone(),
            };
            self.send(c, ToReplica::Entry { ownership, sequence: self.next, commit_point, entry }, out);
            self.next = self.next.next();
        }
    }

    /// Sends an entry out of band. Returns what [`ReplicaSession::confirmed`] will be when it is durable.
    pub(super) fn send_out_of_band(
        &mut self,
        c: &Context,
        position: Position,
        entry: Entry<D>,
        out: &mut Vec<Action<D>>,
    ) -> u64 {
        let number = self.first_out_of_band + self.out_of_band.len() as u64;
        self.out_of_band.push_back((position, entry.clone()));
        if self.is_open() {
            self.send(c, ToReplica::OutOfBand { number, position, entry }, out);
        }
        self.confirmed + self.out_of_band.len() as u64
    }

    /// Sends what was sent out of band again, from this number on.
    fn resend_out_of_band(&self, c: &Context, from: u64, out: &mut Vec<Action<D>>) {
        for (number, (position, entry)) in (self.first_out_of_band..).zip(&self.out_of_band) {
            if number >= from {
                let (position, entry) = (*position, entry.clone());
                self.send(c, ToReplica::OutOfBand { number, position, entry }, out);
            }
        }
    }

    /// Drops all out-of-band entries that were sent and not confirmed.
    pub(super) fn drop_out_of_band(&mut self) {
        self.first_out_of_band += self.out_of_band.len() as u64;
        self.out_of_band.clear();
    }

    /// The replica has carried out a request, or nothing is left to do.
    pub(super) fn moves(&mut self, now: Moment) {
        self.moved = now;
    }

    /// This process was stopped: what the replica has sent meanwhile is still to be read.
    pub(super) fn wait_anew(&mut self, now: Moment) {
        (self.last_answer, self.moved, self.unanswered) = (now, now, None);
    }

    /// A message of the replica has arrived. A process that ends soon still answers: it counts as ended.
    pub(super) fn heard(&mut self, c: &Context, now: Moment) {
        if !c.ended.contains_key(&self.node) {
            self.last_answer = now;
        }
    }

    /// The replica will send nothing more. From now on it counts as silent for too long.
    pub(super) fn is_silent(&mut self, c: &Context, now: Moment) {
        self.last_answer = self.last_answer.min(Moment(now.0.saturating_sub(c.times.silent_ns)));
    }

    /// The replica has not answered a request in time.
    pub(super) fn is_awaited(&mut self, c: &Context, now: Moment) {
        // A request from long ago, for which others were asked since, proves nothing.
        let goes_on = |(_, last): &(Moment, Moment)| now.since(*last) < c.times.silent_ns;
        let first = self.unanswered.filter(goes_on).map_or(now, |(first, _)| first);
        self.unanswered = Some((first, now));
    }

    /// The replica has answered a request.
    pub(super) fn answers(&mut self) {
        self.unanswered = None;
    }

    /// Whether the replica answers, and does not carry out its requests.
    pub(super) fn is_stalled(&self, c: &Context, now: Moment) -> bool {
        let limit = c.times.stalled_ns;
        let mute = self.unanswered.is_some_and(|(first, last)| last.since(first) >= limit);
        self.is_open() && (mute || now.since(self.moved) >= limit)
    }

    /// Whether all that was sent out of band is durable.
    pub(super) fn out_of_band_is_durable(&self) -> bool {
        self.out_of_band.is_empty()
    }

    /// Orders a member to keep the record's epoch durably, if it is one of the first group (rule P5).
    pub(super) fn remember(&self, c: &Context, out: &mut Vec<Action<D>>) {
        if self.group == GroupIndex(0) && !left_out(Rule::P5) {
            self.send(c, ToReplica::Remember, out);
        }
    }

    /// It is time for a heartbeat: what was granted in a takeover is no lease.
    pub(super) fn beat_at_once(&mut self) {
        self.beaten = None;
    }

    /// If a heartbeat is due, sends it: with the commit point, and a request for a lease and for the replica's progress.
    pub(super) fn heartbeat(
        &mut self,
        c: &Context,
        now: Moment,
        ownership: Epoch,
        commit_point: Sequence,
        out: &mut Vec<Action<D>>,
    ) {
        if !self.is_open() || self.beaten.is_some_and(|then| now.since(then) < c.times.heartbeat_ns) {
            return;
        }
        let keep = c.record().map_or(Epoch(0), |record| record.keep(self.group));
        self.beaten = Some(now);
        self.beat = Some((now, self.next, self.first_out_of_band + self.out_of_band.len() as u64));
        self.send(c, ToReplica::Heartbeat { ownership, commit_point, asked: now, keep }, out);
    }

    /// The replica reports its progress, in answer to the heartbeat of `asked` if that is given. Returns whether entries
    /// of this ownership must be sent again, because a gap was reported or what was sent before the heartbeat has not
    /// arrived. `None` if the message is late: it reports less than is known, or a state from before the replica dropped
    /// what it had (rule C8).
    pub(super) fn progress(
        &mut self,
        c: &Context,
        now: Moment,
        progress: &Progress,
        asked: Option<Moment>,
        ownership: Epoch,
        out: &mut Vec<Action<D>>,
    ) -> Option<bool> {
        if progress.returned != self.returned && !left_out(Rule::C8) {
            return None;
        }
        self.full = progress.full;
        while self.first_out_of_band <= progress.out_of_band_durable && self.out_of_band.pop_front().is_some()
        {
            self.first_out_of_band += 1;
            self.confirmed += 1;
            self.moved = now;
        }
        let received = if progress.ownership == ownership { progress.received } else { Sequence(0) };
        if received < self.received {
            return None;
        }
        self.received = received;
        let (mut again, mut out_of_band_again) = (progress.gap, progress.gap);
        if let Some((sent, next, next_out_of_band)) = self.beat
            && asked == Some(sent)
        {
            again |= received.next() < next;
            out_of_band_again |= progress.out_of_band_received + 1 < next_out_of_band;
            self.beat = None;
        }
        if out_of_band_again {
            self.resend_out_of_band(c, progress.out_of_band_received + 1, out);
        }
        again &= received.next() < self.next;
        if again {
            self.next = received.next();
        }
        Some(again)
    }
}
