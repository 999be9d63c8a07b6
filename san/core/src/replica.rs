//! A replica: the owner that it follows, what it appends and in which order, what it reports.
//!
//! ```text
//!              Seal                       opening entry
//!  following ───────▶ sealing ─▶ sealed ────────────────▶ following
//!      ▲              (nothing more of      (what makes it
//!      │               the old owner)        equal)
//!      └── Joined ── returning ◀── Return, from an owner in whose record it is no member
//!                        ▲
//!                        └─────── Return, empty ── damaged: found so by a start
//! ```
//!
//! A replica does not know whether it is a member; only the owner's record states that. The rules are in
//! `docs/explanation/san-rules.md`, *What a replica accepts*.

pub mod view;

use std::collections::VecDeque;
use std::ops::Range;

use thiserror::Error;

use crate::ids::{Epoch, Incarnation, NodeId, Owner, Position, ReplicaId, Sequence, VolumeId};
use crate::lease::{Grants, Moment};
use crate::message::{FromOwner, FromReplica, Progress, Promise, ToOwner, ToReplica};
use crate::rule::{Rule, left_out};
use crate::store::{Command, Completion, DurableState, Tag};

mod completions;
mod damaged;
mod entries;

/// The most ranges of a list that a replica reports.
const MOST_LISTED: usize = 16_384;

/// What happens to a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event<D> {
    /// A message came.
    Message(FromOwner, ToReplica<D>),
    /// The store answered.
    Store(Completion<D>),
    /// The moment of [`Replica::wake_at`] has come.
    Wake,
}

/// An action of a replica, to be carried out in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action<D> {
    /// A message to a node.
    Send(NodeId, FromReplica, ToOwner<D>),
    /// For the store. The order matters.
    Store(Command<D>),
}

/// A message that cannot be meant for this replica. It changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Misdirected {
    /// Of another volume.
    #[error("a message for a replica of volume {said}, and {replica} is one of volume {volume}")]
    Volume {
        /// The volume that it names.
        said: u64,
        /// The owner that got it.
        replica: ReplicaId,
        /// The volume of the replica.
        volume: u64,
    },
    /// For another replica.
    #[error("a message for {said} came to {replica}")]
    Replica {
        /// The owner that it names.
        said: ReplicaId,
        /// The owner that got it.
        replica: ReplicaId,
    },
}

/// One replica of a group as a state machine. The owner's record, and not the replica, decides whether the replica is a member.
#[derive(Debug)]
pub struct Replica {
    volume: VolumeId,
    id: ReplicaId,
    process: Incarnation,
    promise: Promise,
    /// The highest epoch of the owner that it follows.
    epoch: Epoch,
    grants: Grants,
    /// When the replica last granted a lease or received a seal request.
    busy: Moment,
    session: Option<Session>,
    sessions: u64,
    /// Up to where it has everything, and durably.
    received: Position,
    durable: Sequence,
    commit_point: Position,
    /// What its log has up to here is acknowledged: at least the commit point.
    acknowledged: Position,
    /// Tombstones below this epoch are not needed.
    keep: Epoch,
    /// Appends that the store has not reported as durable yet.
    appends: u64,
    pending: VecDeque<Pending>,
    /// What is durable of its promises.
    promised: Promise,
    /// Questions to the store about what is above the commit point.
    questions: u64,
    work: Work,
    failed: bool,
    /// The store was found damaged. A person may continue with what it has, and an owner that copies it in full empties
    /// it (rule C12).
    damaged: bool,
    /// A record states a higher promise than the replica has: its device went back in time. The replica is not used before it is emptied.
    went_back: bool,
    /// Its device has room for no more than what is in flight.
    full: bool,
}

/// A session with an owner.
#[derive(Debug)]
struct Session {
    /// Its name here: two owners may number theirs alike.
    key: u64,
    owner: Owner,
    epoch: Epoch,
    number: u64,
    out_of_band_received: u64,
    out_of_band_durable: u64,
    /// A gap was reported, and has not been filled since.
    gap_reported: Option<(Position, u64)>,
    /// The replica has returned in this session: the entry after which, and its list.
    listed: Option<(Position, Vec<Range<u64>>)>,
    /// The replica became a member after its return: an order to return is late now.
    joined: bool,
}

#[derive(Debug, Clone, Copy)]
enum Pending {
    Sequenced(Position),
    OutOfBand { key: u64, number: u64 },
}

/// What an order to return drops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Truncation {
    /// Everything above the commit point. The replica gets the entries after this one.
    after: Position,
    /// Everything.
    empty: bool,
}

/// What the replica waits for, beside its ordinary work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    None,
    /// Sealed, and its report waits for what is not durable yet, and for the end of the last lease.
    Sealing(Moment),
    /// The store is reading what is above the commit point.
    Reporting,
    /// It was ordered to return, and waits until its appends are durable.
    Draining(Truncation),
    /// The store lists and drops, for the session of this key.
    Truncating(Truncation, u64),
}

impl Replica {
    /// A process has made this replica, and opens its store for the first time. No lease of a former process is waited for, since
    /// there was none (rule L6). Of a replica that any process had open before, [`Replica::new`] is to be used.
    pub fn made(
        volume: VolumeId,
        id: ReplicaId,
        process: Incarnation,
        lease_ns: u64,
        state: &DurableState,
        now: Moment,
    ) -> Replica {
        let grants = Grants::of_new_replica(lease_ns, now);
        Replica { grants, ..Replica::new(volume, id, process, lease_ns, state, now) }
    }

    /// A process starts, and the store was opened. `lease_ns`: the length of the volume's leases.
    pub fn new(
        volume: VolumeId,
        id: ReplicaId,
        process: Incarnation,
        lease_ns: u64,
        state: &DurableState,
        now: Moment,
    ) -> Replica {
        let epoch =
            if left_out(Rule::R8) { state.promise.epoch } else { state.epoch.max(state.promise.epoch) };
        let grants = match left_out(Rule::L6) && state.commit_point == Position::START {
            true => Grants::of_new_replica(lease_ns, now),
            false => Grants::of_new_process(lease_ns, now),
        };
        Replica {
            volume,
            id,
            process,
            promise: state.promise,
            epoch,
            grants,
            busy: now,
            session: None,
            sessions: 0,
            received: state.end,
            durable: state.end.sequence,
            commit_point: state.commit_point,
            acknowledged: state.commit_point,
            keep: Epoch(0),
            appends: 0,
            pending: VecDeque::new(),
            promised: state.promise,
            questions: 0,
            work: Work::None,
            failed: false,
            damaged: state.damaged,
            went_back: false,
            full: false,
        }
    }

    /// The owner that requested this, and its session, if that session is still open.
    pub fn asked_by(&self, tag: Tag) -> Option<(Owner, u64)> {
        let session = self.session.as_ref().filter(|session| session.key == tag.session)?;
        Some((session.owner, session.number))
    }

    /// The next moment at which the replica needs an [`Event::Wake`], if there is one.
    pub fn wake_at(&self) -> Option<Moment> {
        match self.work {
            Work::Sealing(until) if self.pending.is_empty() && self.promised == self.promise => Some(until),
            _ => None,
        }
    }

    /// The id of this replica.
    pub fn id(&self) -> ReplicaId {
        self.id
    }

    /// The owner that it follows.
    pub fn promise(&self) -> Promise {
        self.promise
    }

    /// Something happened; what is to be done is added to `out`.
    pub fn step<D: Clone>(
        &mut self,
        now: Moment,
        event: Event<D>,
        out: &mut Vec<Action<D>>,
    ) -> Result<(), Misdirected> {
        match event {
            Event::Message(from, message) => self.message(now, &from, message, out)?,
            Event::Store(completion) => self.stored(now, completion, out),
            Event::Wake => self.work_on(now, out),
        }
        Ok(())
    }

    fn message<D: Clone>(
        &mut self,
        now: Moment,
        from: &FromOwner,
        message: ToReplica<D>,
        out: &mut Vec<Action<D>>,
    ) -> Result<(), Misdirected> {
        if from.volume != self.volume {
            let (said, volume) = (from.volume.0, self.volume.0);
            return Err(Misdirected::Volume { said, replica: self.id, volume });
        }
        if from.replica != self.id {
            return Err(Misdirected::Replica { said: from.replica, replica: self.id });
        }
        if let ToReplica::Hello { member_since, history } | ToReplica::Seal { member_since, history, .. } =
            &message
        {
            let follows = self.follows();
            // A late message of a deposed owner may come after a higher promise.
            let knows = follows.epoch <= from.epoch && !left_out(Rule::R11);
            if knows && history.contradicts(&follows).is_some() {
                // Nothing of it may be dropped, sealed or written over before a person has decided which history holds.
                self.answer(from, ToOwner::Refused(follows), out);
                return Ok(());
            }
            // A message of a deposed owner cannot carry more than was promised then.
            if *member_since > follows.epoch && !left_out(Rule::R9) {
                self.went_back = true;
                self.answer(from, ToOwner::Damaged, out);
                return Ok(());
            }
        }
        if self.failed {
            self.answer(from, ToOwner::Failed, out);
            return Ok(());
        }
        if self.damaged && !self.takes_damaged(from, &message, out) {
            return Ok(());
        }
        if matches!(message, ToReplica::Probe) {
            let quiet_ns = now.since(self.busy);
            self.answer(from, ToOwner::Probed { promise: self.follows(), quiet_ns }, out);
            return Ok(());
        }
        if let ToReplica::Read { job, block, blocks, again } = message
            && left_out(Rule::L2)
        {
            // The mutant reads for any sender, and does not check the session again before it answers.
            let owner = u64::from(from.owner.node.0) << 32 | from.owner.incarnation.0;
            let tag = Tag { session: 1 << 63 | owner << 20 | from.session, job };
            out.push(Action::Store(Command::Read { tag, block, blocks, again }));
            return Ok(());
        }
        if matches!(message, ToReplica::Release) {
            // Also of an owner that was deposed: the next owner waits for its lease.
            let released = self.grants.released(from.owner, from.epoch, now);
            if released && let Work::Sealing(until) = &mut self.work {
                *until = self.grants.end().min(*until);
                self.work_on(now, out);
            }
            return Ok(());
        }
        if self.is_below_promise(from) {
            self.answer(from, ToOwner::Refused(self.follows()), out);
            return Ok(());
        }
        match message {
            ToReplica::Hello { .. } => {
                if self.open_session(from) {
                    self.answer(from, ToOwner::Welcome(self.progress(false)), out);
                }
            }
            ToReplica::Seal { .. } => {
                if self.open_session(from) {
                    self.seal(now, from, out);
                }
            }
            message => {
                let ours =
                    self.session.as_ref().is_some_and(|s| s.owner == from.owner && s.number == from.session)
                        && (from.process == self.process || left_out(Rule::C6));
                if ours {
                    self.in_session(now, from, message, out);
                } else if self
                    .session
                    .as_ref()
                    .is_none_or(|s| (s.epoch, s.number) <= (from.epoch, from.session))
                {
                    self.answer(from, ToOwner::Stranger, out);
                }
            }
        }
        Ok(())
    }

    fn is_below_promise(&self, from: &FromOwner) -> bool {
        // A node that is to be the next owner has an epoch above all that were ever committed.
        from.epoch < self.promise.epoch || from.owner != self.promise.owner && from.epoch <= self.epoch
    }

    /// The owner that it follows, and its progress.
    fn follows(&self) -> Promise {
        Promise { epoch: self.epoch.max(self.promise.epoch), owner: self.promise.owner }
    }

    /// Whether the session that a message names is the last one; opens it if it is new.
    fn open_session(&mut self, from: &FromOwner) -> bool {
        if let Some(last) = &self.session {
            if last.owner == from.owner && last.number == from.session {
                return true;
            }
            // Numbers are of one owner. Two owners share an epoch only in two histories (rule R11); the one that sent this message is
            // there.
            let is_later = match last.owner == from.owner {
                true => (last.epoch, last.number) > (from.epoch, from.session),
                false => last.epoch > from.epoch,
            };
            if is_later {
                return false;
            }
        }
        self.sessions += 1;
        self.session = Some(Session {
            key: self.sessions,
            owner: from.owner,
            epoch: from.epoch,
            number: from.session,
            out_of_band_received: 0,
            out_of_band_durable: 0,
            gap_reported: None,
            listed: None,
            joined: false,
        });
        if matches!(self.work, Work::Draining(_)) {
            self.work = Work::None;
        }
        true
    }

    fn in_session<D: Clone>(
        &mut self,
        now: Moment,
        from: &FromOwner,
        message: ToReplica<D>,
        out: &mut Vec<Action<D>>,
    ) {
        if let ToReplica::Return { ownership, from: first, empty } = message {
            let after = Position { ownership, sequence: Sequence(first.0.saturating_sub(1)) };
            self.return_to(now, from, Truncation { after, empty }, out);
            return;
        }
        if self.promise.owner != from.owner {
            // It must be sealed by this owner first.
            self.answer(from, ToOwner::Refused(self.follows()), out);
            return;
        }
        if !(left_out(Rule::W2) && matches!(message, ToReplica::Heartbeat { .. } | ToReplica::Entry { .. })) {
            self.epoch = self.epoch.max(from.epoch);
        }
        match message {
            ToReplica::Entry { ownership, sequence, commit_point, entry } => {
                self.entry(from, Position { ownership, sequence }, commit_point, entry, out);
            }
            ToReplica::OutOfBand { number, position, entry } => {
                self.out_of_band(from, number, position, entry, out)
            }
            ToReplica::Heartbeat { ownership, commit_point, asked, keep } => {
                if keep > self.keep {
                    self.keep = keep;
                    out.push(Action::Store(Command::ForgetTombstones(keep)));
                }
                if self.take_commit_point(Position { ownership, sequence: commit_point }) {
                    let (commit_point, acknowledged, epoch) =
                        (self.commit_point, self.acknowledged, self.epoch);
                    out.push(Action::Store(Command::CommitPoint { commit_point, acknowledged, epoch }));
                }
                let granted = self.grants.grant(from.owner, from.epoch, now);
                if granted {
                    self.busy = now;
                }
                self.answer(from, ToOwner::Alive { asked, granted, progress: self.progress(false) }, out);
            }
            ToReplica::Read { job, block, blocks, again } => {
                let tag = Tag { session: self.sessions, job };
                out.push(Action::Store(Command::Read { tag, block, blocks, again }));
            }
            ToReplica::Map { job, block, blocks } => {
                let tag = Tag { session: self.sessions, job };
                out.push(Action::Store(Command::Map { tag, block, blocks }));
            }
            ToReplica::Fetch { job, number, again } => {
                let tag = Tag { session: self.sessions, job };
                out.push(Action::Store(Command::Fetch { tag, number, again }));
            }
            ToReplica::Changed { job, since, from: first } => {
                let tag = Tag { session: self.sessions, job };
                out.push(Action::Store(Command::Changed { tag, since, from: first }));
            }
            ToReplica::Joined => {
                if let Some(session) = &mut self.session {
                    session.joined = true;
                }
                out.push(Action::Store(Command::Joined));
            }
            ToReplica::Remember => self.promise_to(from, out),
            ToReplica::Hello { .. }
            | ToReplica::Seal { .. }
            | ToReplica::Probe
            | ToReplica::Release
            | ToReplica::Return { .. } => unreachable!("they were taken before"),
        }
    }

    fn seal<D>(&mut self, now: Moment, from: &FromOwner, out: &mut Vec<Action<D>>) {
        if left_out(Rule::T5) {
            // It reports, and follows the same owner as before.
            self.work = Work::Sealing(now);
            self.work_on(now, out);
            return;
        }
        if matches!(self.work, Work::Truncating(..)) {
            // The owner will send it again.
            return;
        }
        self.busy = now;
        let until = self.grants.seal(from.owner);
        self.promise_to(from, out);
        // An entry that is accepted and not durable may become durable, and would be in no report.
        self.work = Work::Sealing(until);
        self.work_on(now, out);
    }

    fn promise_to<D>(&mut self, from: &FromOwner, out: &mut Vec<Action<D>>) {
        self.epoch = self.epoch.max(from.epoch);
        if self.promise.owner != from.owner || self.promise.epoch < from.epoch {
            self.promise = Promise { epoch: from.epoch, owner: from.owner };
            out.push(Action::Store(Command::Promise(self.promise)));
        }
    }

    fn return_to<D>(&mut self, now: Moment, from: &FromOwner, what: Truncation, out: &mut Vec<Action<D>>) {
        let Some(session) = &self.session else { return };
        if session.joined && !left_out(Rule::C7) {
            return;
        }
        if let Some((after, ranges)) = session.listed.clone().filter(|_| !session.joined) {
            self.answer(from, ToOwner::Listed { after, ranges }, out);
            return;
        }
        if matches!(self.work, Work::Draining(_) | Work::Truncating(..)) {
            return;
        }
        self.grants.seal(from.owner);
        self.promise_to(from, out);
        self.went_back &= !what.empty;
        self.work = Work::Draining(what);
        self.work_on(now, out);
    }

    /// Continues what the replica waits for, if nothing is left to wait for.
    fn work_on<D>(&mut self, now: Moment, out: &mut Vec<Action<D>>) {
        let drained = self.pending.is_empty() && self.promised == self.promise;
        match self.work {
            Work::Sealing(until) if (drained || left_out(Rule::T9)) && now >= until => {
                self.work = Work::Reporting;
                self.questions += 1;
                out.push(Action::Store(Command::Above(self.questions)));
            }
            Work::Draining(what) if drained => {
                self.work = Work::Truncating(what, self.sessions);
                let Truncation { after, empty } = what;
                out.push(Action::Store(Command::Return { after, empty }));
            }
            _ => {}
        }
    }

    fn progress(&self, gap: bool) -> Progress {
        let out_of_band =
            self.session.as_ref().map_or((0, 0), |s| (s.out_of_band_received, s.out_of_band_durable));
        Progress {
            ownership: self.received.ownership,
            received: self.received.sequence,
            durable: self.durable,
            out_of_band_received: out_of_band.0,
            out_of_band_durable: out_of_band.1,
            returned: self.session.as_ref().is_some_and(|s| s.listed.is_some()),
            gap,
            full: self.full,
        }
    }

    /// Answers in a session, if it is still the last: data that was read before another session began must not be sent after that.
    fn answer_session<D>(&self, key: u64, answer: ToOwner<D>, out: &mut Vec<Action<D>>) {
        let Some(session) = self.session.as_ref().filter(|s| s.key == key) else { return };
        self.send(session.owner, session.number, answer, out);
    }

    fn answer<D>(&self, from: &FromOwner, answer: ToOwner<D>, out: &mut Vec<Action<D>>) {
        self.send(from.owner, from.session, answer, out);
    }

    fn send<D>(&self, owner: Owner, session: u64, answer: ToOwner<D>, out: &mut Vec<Action<D>>) {
        let header =
            FromReplica { volume: self.volume, replica: self.id, process: self.process, owner, session };
        out.push(Action::Send(owner.node, header, answer));
    }
}
