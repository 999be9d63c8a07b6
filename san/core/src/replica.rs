//! A replica: whom it follows, what it appends and in which order, what it tells.
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
//! It does not know whether it is a member: the owner's record does. The rules are in `docs/explanation/san-rules.md`, *What a replica
//! accepts*.

pub mod view;

use std::collections::VecDeque;
use std::ops::Range;

use thiserror::Error;

use crate::ids::{Epoch, Incarnation, NodeId, Owner, Position, ReplicaId, Sequence, VolumeId};
use crate::lease::{Grants, Moment};
use crate::message::{Entry, FromOwner, FromReplica, Progress, Promise, Report, ToOwner, ToReplica, What};
use crate::range_set::coarse;
use crate::rule::{Rule, left_out};
use crate::store::{Command, Completion, Found, Tag};

mod damaged;

/// The most ranges of a list that it tells.
const MOST_LISTED: usize = 16_384;

/// What happens to a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event<D> {
    /// A message came.
    Message(FromOwner, ToReplica<D>),
    /// The store answered.
    Store(Completion<D>),
    /// The moment has come for which it asked by [`Replica::wake_at`].
    Wake,
}

/// What a replica wants done.
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
        /// Who got it.
        replica: ReplicaId,
        /// Its volume.
        volume: u64,
    },
    /// For another replica.
    #[error("a message for {said} came to {replica}")]
    Replica {
        /// Whom it names.
        said: ReplicaId,
        /// Who got it.
        replica: ReplicaId,
    },
}

/// See the module.
#[derive(Debug)]
pub struct Replica {
    volume: VolumeId,
    id: ReplicaId,
    process: Incarnation,
    promise: Promise,
    /// The highest epoch of the owner that it follows.
    epoch: Epoch,
    grants: Grants,
    /// When it last granted a lease or was asked to be sealed.
    busy: Moment,
    session: Option<Session>,
    sessions: u64,
    /// Up to where it has everything, and durably.
    received: Position,
    durable: Sequence,
    mark: Position,
    /// What its log has up to here is acknowledged: at least the mark.
    acknowledged: Position,
    /// Tombstones below this epoch are not needed.
    keep: Epoch,
    /// Appends that were asked for, and are not durable yet.
    appends: u64,
    pending: VecDeque<Pending>,
    /// What is durable of its promises.
    promised: Promise,
    /// Questions to the store about what is above the mark.
    questions: u64,
    work: Work,
    failed: bool,
    /// The store was found damaged. A person may go on with what it has, and an owner that copies it in full empties it
    /// (rule C12).
    damaged: bool,
    /// A record says that it had promised more than it has: its device went back in time. It is not used before it is emptied.
    went_back: bool,
    /// Its device has room for no more than what is in flight.
    full: bool,
}

/// A talk with an owner.
#[derive(Debug)]
struct Session {
    /// Its name here: two owners may number theirs alike.
    key: u64,
    owner: Owner,
    epoch: Epoch,
    number: u64,
    beside_received: u64,
    beside_durable: u64,
    /// A gap was told, and has not been filled since.
    gap_told: Option<(Position, u64)>,
    /// It has returned in this session: after which entry, and the list.
    listed: Option<(Position, Vec<Range<u64>>)>,
    /// And is a member since: what tells it to return now is late.
    joined: bool,
}

#[derive(Debug, Clone, Copy)]
enum Pending {
    Sequenced(Position),
    Beside { key: u64, number: u64 },
}

/// What it is told to drop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Drop {
    /// Everything above its mark; it gets what comes after this.
    after: Position,
    /// And all the rest.
    empty: bool,
}

/// What it is about, beside its daily work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    None,
    /// Sealed, and its report waits for what is not durable yet, and for the end of the last lease.
    Sealing(Moment),
    /// The store looks up what is above the mark.
    Reporting,
    /// It is told to return, and waits for what is not durable yet.
    Draining(Drop),
    /// The store lists and drops, for the session of this key.
    Dropping(Drop, u64),
}

impl Replica {
    /// A process starts, and the store was opened. `lease_ns`: the length of the volume's leases.
    pub fn new(
        volume: VolumeId,
        id: ReplicaId,
        process: Incarnation,
        lease_ns: u64,
        found: &Found,
        now: Moment,
    ) -> Replica {
        let epoch =
            if left_out(Rule::R8) { found.promise.epoch } else { found.epoch.max(found.promise.epoch) };
        Replica {
            volume,
            id,
            process,
            promise: found.promise,
            epoch,
            grants: Grants::of_new_process(lease_ns, now),
            busy: now,
            session: None,
            sessions: 0,
            received: found.end,
            durable: found.end.sequence,
            mark: found.mark,
            acknowledged: found.mark,
            keep: Epoch(0),
            appends: 0,
            pending: VecDeque::new(),
            promised: found.promise,
            questions: 0,
            work: Work::None,
            failed: false,
            damaged: found.damaged,
            went_back: false,
            full: false,
        }
    }

    /// Who asked what this is for, and in which of its sessions; if that still goes on.
    pub fn asked_by(&self, tag: Tag) -> Option<(Owner, u64)> {
        let session = self.session.as_ref().filter(|session| session.key == tag.session)?;
        Some((session.owner, session.number))
    }

    /// When it wants to be woken.
    pub fn wake_at(&self) -> Option<Moment> {
        match self.work {
            Work::Sealing(until) if self.pending.is_empty() && self.promised == self.promise => Some(until),
            _ => None,
        }
    }

    /// Which one.
    pub fn id(&self) -> ReplicaId {
        self.id
    }

    /// Whom it follows.
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
            // A late message of a deposed owner does not know what was promised since.
            let knows = follows.epoch <= from.epoch && !left_out(Rule::R11);
            if knows && history.contradicts(&follows).is_some() {
                // Nothing of it may be dropped, sealed or written over before a person has decided which history holds.
                self.answer(from, ToOwner::Refused(follows), out);
                return Ok(());
            }
            // A message of a deposed owner cannot say more than was promised then.
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
        if let ToReplica::Read { job, block, blocks } = message
            && left_out(Rule::L2)
        {
            // It reads for whoever asks, and does not look again when it answers.
            let owner = u64::from(from.owner.node.0) << 32 | from.owner.incarnation.0;
            let tag = Tag { session: 1 << 63 | owner << 20 | from.session, job };
            out.push(Action::Store(Command::Read { tag, block, blocks }));
            return Ok(());
        }
        if matches!(message, ToReplica::Release) {
            // Also of who was deposed: that is whom the next owner waits for.
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
        // Who wants to be the next owner has an epoch above all that were ever committed.
        from.epoch < self.promise.epoch || from.owner != self.promise.owner && from.epoch <= self.epoch
    }

    /// Whom it follows, and how far it has.
    fn follows(&self) -> Promise {
        Promise { epoch: self.epoch.max(self.promise.epoch), owner: self.promise.owner }
    }

    /// Whether the session that a message names is the last one; opens it if it is new.
    fn open_session(&mut self, from: &FromOwner) -> bool {
        if let Some(last) = &self.session {
            if last.owner == from.owner && last.number == from.session {
                return true;
            }
            // Numbers are of one owner. Two owners share an epoch only in two histories (rule R11); the one that asks is there.
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
            beside_received: 0,
            beside_durable: 0,
            gap_told: None,
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
            self.return_to(now, from, Drop { after, empty }, out);
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
            ToReplica::Entry { ownership, sequence, mark, entry } => {
                self.entry(from, Position { ownership, sequence }, mark, entry, out);
            }
            ToReplica::Beside { number, position, entry } => self.beside(from, number, position, entry, out),
            ToReplica::Heartbeat { ownership, mark, asked, keep } => {
                if keep > self.keep {
                    self.keep = keep;
                    out.push(Action::Store(Command::Keep(keep)));
                }
                if self.take_mark(Position { ownership, sequence: mark }) {
                    let (mark, acknowledged, epoch) = (self.mark, self.acknowledged, self.epoch);
                    out.push(Action::Store(Command::Mark { mark, acknowledged, epoch }));
                }
                let granted = self.grants.grant(from.owner, from.epoch, now);
                if granted {
                    self.busy = now;
                }
                self.answer(from, ToOwner::Alive { asked, granted, progress: self.progress(false) }, out);
            }
            ToReplica::Read { job, block, blocks } => {
                let tag = Tag { session: self.sessions, job };
                out.push(Action::Store(Command::Read { tag, block, blocks }));
            }
            ToReplica::Map { job, block, blocks } => {
                let tag = Tag { session: self.sessions, job };
                out.push(Action::Store(Command::Map { tag, block, blocks }));
            }
            ToReplica::Fetch { job, number } => {
                out.push(Action::Store(Command::Fetch { tag: Tag { session: self.sessions, job }, number }));
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
            ToReplica::Hello { .. }
            | ToReplica::Seal { .. }
            | ToReplica::Probe
            | ToReplica::Release
            | ToReplica::Return { .. } => unreachable!("they were taken before"),
        }
    }

    /// The next entry is appended; one that is there already is confirmed; after a gap it says what it has.
    fn entry<D>(
        &mut self,
        from: &FromOwner,
        position: Position,
        mark: Sequence,
        entry: Entry<D>,
        out: &mut Vec<Action<D>>,
    ) {
        if matches!(self.work, Work::Draining(_) | Work::Dropping(..)) {
            return;
        }
        let opens = matches!(entry.what, What::Open)
            && position.ownership > self.received.ownership
            && position.sequence == Sequence(1);
        let follows = position.ownership == self.received.ownership
            && (position.sequence == self.received.sequence.next()
                || left_out(Rule::W5) && position.sequence > self.received.sequence);
        if !opens && !follows {
            let there = position <= self.received;
            let new = !there && self.tell_gap();
            if there || new {
                self.answer(from, ToOwner::Durable(self.progress(new)), out);
            }
            return;
        }
        if opens {
            self.durable = Sequence(0);
        }
        self.received = position;
        self.take_mark(Position { ownership: position.ownership, sequence: mark });
        self.append(Pending::Sequenced(position), position, entry, out);
    }

    fn beside<D>(
        &mut self,
        from: &FromOwner,
        number: u64,
        position: Position,
        entry: Entry<D>,
        out: &mut Vec<Action<D>>,
    ) {
        if matches!(self.work, Work::Draining(_) | Work::Dropping(..)) {
            return;
        }
        let received = self.session.as_ref().map_or(0, |s| s.beside_received);
        if number != received + 1 {
            let there = number <= received;
            let new = !there && self.tell_gap();
            if there || new {
                self.answer(from, ToOwner::Durable(self.progress(new)), out);
            }
            return;
        }
        if let Some(session) = &mut self.session {
            session.beside_received = number;
        }
        self.append(Pending::Beside { key: self.sessions, number }, position, entry, out);
    }

    fn append<D>(&mut self, what: Pending, position: Position, entry: Entry<D>, out: &mut Vec<Action<D>>) {
        self.appends += 1;
        self.pending.push_back(what);
        out.push(Action::Store(Command::Append {
            number: self.appends,
            position,
            sequenced: matches!(what, Pending::Sequenced(_)),
            entry,
            mark: self.mark,
            acknowledged: self.acknowledged,
            epoch: self.epoch,
        }));
    }

    /// Whether this gap has not been told yet: many entries can come after one that was lost.
    fn tell_gap(&mut self) -> bool {
        let received = self.received;
        let Some(session) = &mut self.session else { return false };
        let here = Some((received, session.beside_received));
        std::mem::replace(&mut session.gap_told, here) != here
    }

    /// The owner says what is acknowledged. As a mark it counts as far as it is durable here: a replica that has just begun
    /// to get entries may have less. Whether that is news.
    fn take_mark(&mut self, said: Position) -> bool {
        if said.ownership != self.received.ownership {
            return false;
        }
        if said.sequence == Sequence(0) {
            // Nothing of this ownership is acknowledged: as a mark it would be above those of others, and prove nothing.
            return false;
        }
        let mut mark = Position { sequence: said.sequence.min(self.durable), ..said };
        if mark.sequence == Sequence(0) {
            mark = self.mark;
        }
        let news = mark > self.mark || said > self.acknowledged;
        self.mark = self.mark.max(mark);
        self.acknowledged = self.acknowledged.max(said);
        news
    }

    fn seal<D>(&mut self, now: Moment, from: &FromOwner, out: &mut Vec<Action<D>>) {
        if left_out(Rule::T5) {
            // It reports, and goes on following whom it follows.
            self.work = Work::Sealing(now);
            self.work_on(now, out);
            return;
        }
        if matches!(self.work, Work::Dropping(..)) {
            // It will be asked again.
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

    fn return_to<D>(&mut self, now: Moment, from: &FromOwner, what: Drop, out: &mut Vec<Action<D>>) {
        let Some(session) = &self.session else { return };
        if session.joined && !left_out(Rule::C7) {
            return;
        }
        if let Some((after, ranges)) = session.listed.clone().filter(|_| !session.joined) {
            self.answer(from, ToOwner::Listed { after, ranges }, out);
            return;
        }
        if matches!(self.work, Work::Draining(_) | Work::Dropping(..)) {
            return;
        }
        self.grants.seal(from.owner);
        self.promise_to(from, out);
        self.went_back &= !what.empty;
        self.work = Work::Draining(what);
        self.work_on(now, out);
    }

    /// Goes on with what it is about, if nothing is left to wait for.
    fn work_on<D>(&mut self, now: Moment, out: &mut Vec<Action<D>>) {
        let drained = self.pending.is_empty() && self.promised == self.promise;
        match self.work {
            Work::Sealing(until) if (drained || left_out(Rule::T9)) && now >= until => {
                self.work = Work::Reporting;
                self.questions += 1;
                out.push(Action::Store(Command::Above(self.questions)));
            }
            Work::Draining(what) if drained => {
                self.work = Work::Dropping(what, self.sessions);
                let Drop { after, empty } = what;
                out.push(Action::Store(Command::Return { after, empty }));
            }
            _ => {}
        }
    }

    fn stored<D>(&mut self, now: Moment, completion: Completion<D>, out: &mut Vec<Action<D>>) {
        match completion {
            Completion::Promised(promise) => self.promised = promise,
            Completion::Appended(through) => self.appended(through, out),
            Completion::Data { tag, content } if left_out(Rule::L2) && tag.session >> 63 == 1 => {
                let owner = tag.session << 1 >> 21;
                let owner = Owner {
                    node: NodeId((owner >> 32) as u32),
                    incarnation: Incarnation(owner & 0xffff_ffff),
                };
                self.send(owner, tag.session & 0xf_ffff, ToOwner::Data { job: tag.job, content }, out);
            }
            Completion::Data { tag, content } => {
                self.answer_session(tag.session, ToOwner::Data { job: tag.job, content }, out);
            }
            Completion::Mapped { tag, map } => {
                self.answer_session(tag.session, ToOwner::Mapped { job: tag.job, map }, out);
            }
            Completion::Changed { tag, ranges, next } => {
                self.answer_session(tag.session, ToOwner::Changed { job: tag.job, ranges, next }, out);
            }
            Completion::Above(question, above) => {
                if self.work == Work::Reporting && question == self.questions {
                    self.work = Work::None;
                    let end = Position { sequence: self.durable, ..self.received };
                    let report = Report { mark: self.mark, end, full: self.full, above };
                    self.answer_session(self.sessions, ToOwner::Sealed(report), out);
                }
            }
            Completion::Listed(ranges) => {
                // What is listed is copied, and more does no harm.
                let ranges = coarse(ranges, MOST_LISTED);
                if let Work::Dropping(Drop { after, .. }, key) = self.work {
                    self.work = Work::None;
                    if std::mem::take(&mut self.damaged) {
                        self.promised = self.promise;
                    }
                    (self.received, self.durable) = (after, after.sequence);
                    if let Some(session) = self.session.as_mut().filter(|s| s.key == key) {
                        session.listed = Some((after, ranges.clone()));
                        self.answer_session(key, ToOwner::Listed { after, ranges }, out);
                    }
                }
            }
            Completion::Spoilt { block } => {
                self.answer_session(self.sessions, ToOwner::Spoilt { block }, out);
            }
            Completion::Full(full) => self.full = full,
            Completion::Failed => {
                self.failed = true;
                self.answer_session(self.sessions, ToOwner::Failed, out);
            }
        }
        self.work_on(now, out);
    }

    fn appended<D>(&mut self, through: u64, out: &mut Vec<Action<D>>) {
        let done = self.appends - self.pending.len() as u64;
        for _ in done..through {
            match self.pending.pop_front().expect("the store confirms what was appended") {
                Pending::Sequenced(position) if position.ownership == self.received.ownership => {
                    self.durable = position.sequence;
                }
                // Of the ownership before: nobody asks any more.
                Pending::Sequenced(_) => {}
                Pending::Beside { key, number } => {
                    if let Some(now) = self.session.as_mut().filter(|s| s.key == key) {
                        now.beside_durable = number;
                    }
                }
            }
        }
        if through > done
            && let Some(session) = &self.session
            && session.owner == self.promise.owner
        {
            self.answer_session(session.key, ToOwner::Durable(self.progress(false)), out);
        }
    }

    fn progress(&self, gap: bool) -> Progress {
        let beside = self.session.as_ref().map_or((0, 0), |s| (s.beside_received, s.beside_durable));
        Progress {
            ownership: self.received.ownership,
            received: self.received.sequence,
            durable: self.durable,
            beside_received: beside.0,
            beside_durable: beside.1,
            returned: self.session.as_ref().is_some_and(|s| s.listed.is_some()),
            gap,
            full: self.full,
        }
    }

    /// Answers in a session, if it is still the last: what was read before another began one must not be told after.
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
