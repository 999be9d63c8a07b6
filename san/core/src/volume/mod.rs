//! A volume at one node that owns it, takes it over, or watches it.
//!
//! ```text
//!          attached, or its owner     first swap, seals,        second swap
//!          has been quiet             equal members             committed
//!  watch ───────────────────────▶ takeover ───────────────▶ active
//!    ▲                                │                        │
//!    └────────────────────────────────┴────────────────────────┘
//!          another node's swap committed, or a swap stays undecided
//! ```
//!
//! | module | idea |
//! | --- | --- |
//! | `interface` | events and actions |
//! | `context` | what all parts of a volume need |
//! | `clients` | which clients may request |
//! | `commands` | commands of an operator |
//! | `watch` | no node is known to serve it: take it over |
//! | `takeover` | from the first swap to the second |
//! | `merge` | what sealed members must be made equal in |
//! | `active` | serving: entries, acknowledgements, members that leave |
//! | `jobs` | requests of clients, and copies: from the first step to the last |
//! | `returning` | replicas that return |
//! | `membership` | which members leave the in-sync set, and which replicas join it |
//! | `replica_session` | the session with one replica |
//! | `silence` | what may be concluded from the silence of others |
//! | [`view`] | what a node reports of it |

mod active;
mod clients;
mod commands;
mod context;
mod interface;
mod membership;
pub mod merge;
mod replica_session;
mod returning;
mod silence;
mod takeover;
pub mod view;
mod watch;

use std::collections::{BTreeMap, VecDeque};

use crate::ids::{Epoch, Owner, ProposalId, ReplicaId, VolumeId};
use crate::layout::GroupIndex;
use crate::lease::Moment;
use crate::message::{FromReplica, Job, ToOwner};
use crate::record::{Record, RecordState};
use crate::rule::{Rule, left_out};
use crate::swap::{Outcome, Swap, WentBack};

pub use interface::*;
pub use returning::ReturnProgress;

use active::Active;
use clients::Clients;
use context::Context;
use silence::Silence;
use takeover::Takeover;
use watch::Watch;

#[derive(Debug)]
enum Role<D> {
    Watch(Watch),
    Takeover(Takeover<D>),
    Active(Box<Active<D>>),
}

/// One volume at one node, as a state machine that watches the volume, takes it over or serves it.
#[derive(Debug)]
pub struct Volume<D> {
    c: Context,
    role: Role<D>,
    clients: Clients,
    watching: bool,
    /// This node served the volume, and does not for now. Another node may do so meanwhile.
    stepped_down: bool,
    /// Requests that arrived before the volume was active.
    waiting: VecDeque<Request<D>>,
    /// The proposal of the command that is under way.
    command_proposal: Option<ProposalId>,
}

impl<D: Clone> Volume<D> {
    /// The state of a process that starts. `seed` makes its random delays.
    pub fn new(me: Owner, volume: VolumeId, times: Times, seed: u64, now: Moment) -> Volume<D> {
        let c = Context {
            me,
            volume,
            times,
            swap: None,
            mine: Epoch(0),
            proposed: None,
            stuck: None,
            last_read: None,
            promised: Epoch(0),
            reported: BTreeMap::new(),
            blocked: None,
            ended: BTreeMap::new(),
            reserved: 0,
            silence: Silence::new(me.node),
            passed: Epoch(0),
            sessions: 0,
            proposals: 0,
            chance: seed,
        };
        let role = Role::Watch(Watch::new(now));
        let (clients, waiting) = (Clients::default(), VecDeque::new());
        Volume { c, role, clients, watching: false, stepped_down: false, waiting, command_proposal: None }
    }

    /// The last record that this node has read, if any.
    pub fn record(&self) -> Option<&Record> {
        self.c.record()
    }

    /// What this node does with the volume.
    pub fn status(&self) -> Status {
        match &self.role {
            _ if self.c.blocked.is_some() => Status::Blocked,
            Role::Watch(_) => Status::Watching,
            Role::Takeover(takeover) => takeover.status(),
            Role::Active(_) if self.c.is_undecided() => Status::Changing,
            Role::Active(_) => Status::Active,
        }
    }

    /// Whether reads of all groups may be answered now (rule L4).
    pub fn may_read(&self, now: Moment) -> bool {
        match &self.role {
            Role::Active(active) => {
                (0..active.groups.len()).all(|index| active.may_read(GroupIndex(index as u32), now))
            }
            Role::Watch(_) | Role::Takeover(_) => false,
        }
    }

    /// The reason why the volume is blocked, if it is.
    pub fn blocked(&self) -> Option<&WentBack> {
        self.c.blocked.as_ref()
    }

    /// Blocks that were copied to returning replicas since this node serves the volume. A block that was copied again counts again.
    pub fn copied(&self) -> u64 {
        match &self.role {
            Role::Active(active) => active.copied,
            _ => 0,
        }
    }

    /// How far replicas are that return.
    pub fn returning(&self) -> Vec<ReturnProgress> {
        match &self.role {
            Role::Active(active) => active.returning(),
            _ => Vec::new(),
        }
    }

    /// The number of the current attachment, and the record's fence, if this node owns the volume: what was begun at the fence
    /// or later, and was not answered when the process died, may be begun anew (rule T4).
    pub fn attachment(&self) -> Option<(u64, u64)> {
        let record = self.c.record().filter(|record| record.owner.node == self.c.me.node)?;
        Some((record.attachment, record.fence))
    }

    /// The client's read that a request to a replica serves, which in this session reads blocks from this one on; and where
    /// these blocks are in the read, counted from the block with its first sector. `None` if no read waits for them any more,
    /// or not for that alone.
    pub fn awaited(&self, from: ReplicaId, session: u64, job: Job, block: u64) -> Option<(RequestId, u64)> {
        let Role::Active(active) = &self.role else { return None };
        active.awaited(from, session, job, block)
    }

    /// Requests that wait, for whatever reason.
    pub fn unanswered(&self) -> usize {
        let at_work = if let Role::Active(active) = &self.role { active.unanswered() } else { 0 };
        self.waiting.len() + at_work
    }

    /// Handles an event, and adds the actions to `out`.
    pub fn step(&mut self, now: Moment, event: Event<D>, out: &mut Vec<Action<D>>) {
        match event {
            Event::Request(request) => self.request(now, request, out),
            Event::Message(from, message) => self.message(now, &from, message, out),
            Event::Merged(ownership, job, data) => {
                // Jobs are numbered anew in each ownership (rule T11).
                if let Role::Active(active) = &mut self.role
                    && (active.ownership == ownership || left_out(Rule::T11))
                {
                    active.merged(&mut self.c, now, job, data, out);
                }
            }
            Event::Attach => self.attach(now, out),
            Event::Fence => self.fence(now, out),
            Event::Detach => {
                self.clients = Clients::default();
                // A recovery by force continues, whichever replicas come or go; no client was let in since.
                if !matches!(&self.role, Role::Takeover(takeover) if takeover.is_forced()) {
                    self.retire(now, Failure::NotAttached, out);
                }
            }
            Event::Cancel(request) => self.cancel(request, out),
            Event::Watch(watching) => self.watching = watching,
            Event::Reserve(percent) => self.c.reserved = percent.min(99),
            Event::Seen(record, _) if self.c.blocked.is_some() => {
                // A record above all that was known and promised was made by a recovery by force. If the known record is
                // there again, the store was put right.
                let known = self.c.promised.max(self.c.epoch());
                let back = match self.c.blocked {
                    Some(WentBack::Lower { .. }) => {
                        record.epoch == known
                            && self.c.record().is_none_or(|old| old.epoch < known || *old == record)
                    }
                    // The record that was known is of a history that was given up.
                    Some(WentBack::Forked { .. }) => true,
                    Some(WentBack::Lineage { .. }) => self.c.record().is_some_and(|old| *old == record),
                    _ => false,
                };
                let knew = self.c.swap.as_ref();
                let later = match self.c.blocked {
                    // That its epoch grows, or that its history does not go back so far any more, proves nothing.
                    Some(WentBack::Lineage { .. }) => knew.is_some_and(|swap| swap.was_decided(&record)),
                    Some(WentBack::Forked { .. }) => record.epoch > known,
                    _ => {
                        record.epoch > known && knew.is_none_or(|swap| swap.no_ancestor_of(&record).is_none())
                    }
                };
                if (later || back)
                    && self.c.agrees(&record)
                    && let Ok(swap) = Swap::new(record)
                {
                    (self.c.blocked, self.c.swap, self.c.proposed) = (None, Some(swap), None);
                    // The attachment number may be of a record that no longer exists.
                    self.turn_out(out);
                    self.retire(now, Failure::Deposed, out);
                    if let Some(id) = self.command_proposal.take() {
                        let carried_out = self.c.record().is_some_and(|record| record.made_by == id);
                        let done = if carried_out { Ok(()) } else { Err(CommandError::Superseded) };
                        out.push(Action::Done(done));
                    }
                }
            }
            Event::Seen(record, asked_at) => {
                let asked_at = self.c.judged_by(asked_at);
                let outcome = match &mut self.c.swap {
                    Some(swap) => swap.seen(record, asked_at),
                    None => Swap::first_seen(record, asked_at).map(|swap| {
                        self.c.swap = Some(swap);
                        Outcome::Settled
                    }),
                };
                self.decided(now, outcome, out);
            }
            Event::Swapped(proposal, answer, asked_at) => {
                let asked_at = self.c.judged_by(asked_at);
                if let Some(swap) = &mut self.c.swap {
                    let outcome = swap.answered(&proposal, answer, asked_at);
                    self.decided(now, outcome, out);
                }
            }
            Event::Command(command) => {
                if let Err(why) = self.command(now, command, out) {
                    out.push(Action::Done(Err(why)));
                }
            }
            Event::Ended(node) => {
                self.c.ended.entry(node).or_insert(now);
                match &mut self.role {
                    Role::Active(active) => active.ended(&self.c, now, node),
                    Role::Takeover(takeover) => takeover.ended(&mut self.c, now, node, out),
                    Role::Watch(_) => {}
                }
                self.tick(now, out);
            }
            Event::Reaches(node, reaches) => {
                self.c.silence.answered(node, reaches);
                self.tick(now, out);
            }
            Event::Silent(node) => {
                self.c.silence.not_answered(node);
                self.tick(now, out);
            }
            Event::Started(node) => _ = self.c.ended.remove(&node),
            Event::Wake => self.tick(now, out),
        }
    }

    fn request(&mut self, now: Moment, request: Request<D>, out: &mut Vec<Action<D>>) {
        if self.unanswered() >= MOST_REQUESTS {
            out.push(Action::Complete(request.id, Err(Failure::TooMany)));
            return;
        }
        let here = self.clients.are_here() || left_out(Rule::T12);
        match &mut self.role {
            Role::Active(active) if here => active.request(&mut self.c, now, request, out),
            _ if here && self.c.blocked.is_none() => self.waiting.push_back(request),
            _ => out.push(Action::Complete(request.id, Err(Failure::NotAttached))),
        }
    }

    /// The client of a request has gone: the request does not begin any more (rule T13). If it is under way, it is finished, because
    /// requests that overlap it wait for it.
    fn cancel(&mut self, id: RequestId, out: &mut Vec<Action<D>>) {
        if left_out(Rule::T13) {
            return;
        }
        let waiting = self.waiting.len();
        self.waiting.retain(|request| request.id != id);
        let held = match &mut self.role {
            Role::Active(active) => active.cancel(id),
            Role::Watch(_) | Role::Takeover(_) => false,
        };
        if held || self.waiting.len() < waiting {
            out.push(Action::Complete(id, Err(Failure::Deposed)));
        }
    }

    fn message(&mut self, now: Moment, from: &FromReplica, message: ToOwner<D>, out: &mut Vec<Action<D>>) {
        let known = self.c.record().is_some_and(|record| record.homes.contains_key(&from.replica));
        if from.volume != self.c.volume || from.owner != self.c.me || !known {
            return;
        }
        if let ToOwner::Refused(promise) | ToOwner::Probed { promise, .. } = &message {
            self.c.reported.insert(from.replica, *promise);
            if let Some(why) = self.c.forked(from.replica, promise) {
                self.block(now, why, out);
                return;
            }
        }
        if let ToOwner::Refused(promise) = message {
            self.c.promised = self.c.promised.max(promise.epoch);
            let mine = self.c.record().is_some_and(|record| record.owner == self.c.me);
            if promise.epoch > self.c.epoch() {
                self.c.read_record(now, out);
            } else if promise.epoch == self.c.epoch() && promise.owner != self.c.me && mine {
                // No two owners ever share an epoch.
                self.block(now, WentBack::Other(promise.epoch.0), out);
            }
            return;
        }
        if let ToOwner::Probed { promise, .. } = &message
            && !matches!(self.role, Role::Active(_))
        {
            // This holds also for a replica that is no member, and for a late message.
            self.c.promised = self.c.promised.max(promise.epoch);
        }
        match &mut self.role {
            Role::Watch(watch) => {
                watch.message(now, from, &message);
                // Clients wait for the volume: also those of one that was handed over, which are not let in yet.
                if self.clients.claim_it() {
                    self.tick(now, out);
                }
            }
            Role::Takeover(takeover) => takeover.message(&mut self.c, now, from, message, out),
            Role::Active(active) => active.message(&mut self.c, now, from, message, out),
        }
    }

    /// Handles an answer of the configuration store about the record.
    fn decided(&mut self, now: Moment, outcome: Result<Outcome, WentBack>, out: &mut Vec<Action<D>>) {
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(why) => {
                self.block(now, why, out);
                return;
            }
        };
        if let Some(why) =
            self.c.reported.iter().find_map(|(replica, promise)| self.c.forked(*replica, promise))
        {
            self.block(now, why, out);
            return;
        }
        if !self.c.is_undecided() {
            (self.c.proposed, self.c.stuck) = (None, None);
        }
        if let Some(record) = self.c.record() {
            self.clients.fenced(record.made_by);
        }
        if let Some(record) = self.c.record().filter(|record| record.owner == self.c.me) {
            let (epoch, number) = (record.epoch, record.attachment);
            self.c.mine = epoch;
            self.clients.count(number);
        }
        if let Some(id) = self.command_proposal
            && matches!(outcome, Outcome::Committed | Outcome::Superseded)
        {
            let carried_out = self.c.record().is_some_and(|record| record.made_by == id);
            self.command_proposal = None;
            out.push(Action::Done(if carried_out { Ok(()) } else { Err(CommandError::Superseded) }));
        }
        match outcome {
            Outcome::Committed => match &mut self.role {
                Role::Watch(_) => {}
                Role::Takeover(takeover) => {
                    if takeover.committed(&mut self.c, now, out) {
                        self.activate(now, out);
                    }
                }
                Role::Active(active) => active.committed(&mut self.c, now, out),
            },
            Outcome::Superseded => {
                // The record of another node, which makes that node the owner: the swaps of an owner are its own. A node that
                // has only just begun to claim it did not know the newest record, and tries again.
                let claims = match &self.role {
                    Role::Watch(_) => !self.stepped_down,
                    Role::Takeover(takeover) => takeover.status() == Status::Claiming,
                    Role::Active(_) => false,
                };
                if !claims {
                    self.turn_out(out);
                }
                self.give_way(out);
                self.retire(now, Failure::Deposed, out);
            }
            Outcome::Undecided | Outcome::Settled => {}
        }
        self.let_in(now, out);
        self.tick(now, out);
    }

    /// The store holds an impossible record. The volume is blocked until a person decides.
    fn block(&mut self, now: Moment, why: WentBack, out: &mut Vec<Action<D>>) {
        self.c.blocked = Some(why);
        self.retire(now, Failure::Deposed, out);
    }

    /// Handles a tick.
    fn tick(&mut self, now: Moment, out: &mut Vec<Action<D>>) {
        if self.c.blocked.is_some() {
            // A person may have recovered the volume at another node.
            self.c.read_record(now, out);
            return;
        }
        if let Some((since, sent)) = self.c.proposed {
            let patience = self.c.times.undecided_ns;
            let in_the_way = match &self.role {
                Role::Watch(_) => false,
                // The survivors that a person chose must not be forgotten: the swap may have committed.
                Role::Takeover(takeover) => !takeover.is_forced(),
                // While all replicas that must have a write answer, it delays nothing.
                Role::Active(active) => !active.all_answer(&self.c, now),
            };
            let stuck = self.c.stuck.filter(|_| in_the_way).or(in_the_way.then_some(now));
            self.c.stuck = stuck;
            if stuck.is_some_and(|then| now.since(then.max(since)) >= patience) {
                self.step_down(now, out);
            }
            if now.since(sent) >= self.c.times.resend_ns {
                self.c.proposed = Some((since, now));
                self.c.send_proposal(out);
                self.c.read_record(now, out);
            }
        }
        match &mut self.role {
            Role::Watch(watch) => {
                if self.clients.want_the_record() {
                    self.c.read_record(now, out);
                }
                let attached = self.clients.claim_it();
                if watch.tick(&mut self.c, now, attached, self.watching, out) {
                    self.take_over(now, out);
                }
            }
            Role::Takeover(takeover) => {
                takeover.tick(&mut self.c, now, out);
                if takeover.yields() {
                    self.step_down(now, out);
                    self.wait_for_others(now);
                    return;
                }
                if takeover.may_activate() {
                    self.activate(now, out);
                }
            }
            Role::Active(active) => {
                active.tick(&mut self.c, now, out);
                if active.yields() {
                    self.step_down(now, out);
                    self.wait_for_others(now);
                    return;
                }
                self.let_in(now, out);
            }
        }
    }

    fn take_over(&mut self, now: Moment, out: &mut Vec<Action<D>>) {
        let id = self.c.proposal();
        let Some(record) = self.c.record() else { return };
        if left_out(Rule::P3) && record.owner.node == self.c.me.node && record.state == RecordState::Active {
            // The mutant assumes to be the owner because the record names its node.
            (self.c.mine, self.c.me) = (record.epoch, record.owner);
            self.c.sessions = 1 << 32;
            let takeover = Takeover::believing(&self.c, now);
            self.role = Role::Takeover(takeover);
            self.activate(now, out);
            return;
        }
        let fences = self.clients.fences_by(id);
        let next = record.taken_over(id, self.clients.claim_it(), fences);
        self.c.propose(now, next, out);
        let takeover = match &self.role {
            Role::Watch(watch) => Takeover::watched(now, watch.heard()),
            Role::Takeover(_) | Role::Active(_) => Takeover::new(now),
        };
        self.role = Role::Takeover(takeover);
    }

    fn activate(&mut self, now: Moment, out: &mut Vec<Action<D>>) {
        let Role::Takeover(takeover) = std::mem::replace(&mut self.role, Role::Watch(Watch::new(now))) else {
            unreachable!("only a takeover activates")
        };
        let (sessions, commit_points) = takeover.into_sessions(&self.c);
        let mut active = Active::new(&mut self.c, sessions, &commit_points, now, out);
        for request in self.waiting.drain(..) {
            active.request(&mut self.c, now, request, out);
        }
        self.role = Role::Active(Box::new(active));
        self.stepped_down = false;
        if self.clients.fence_waits() {
            // It arrived while a recovery by force was carried out.
            self.fence(now, out);
        }
    }

    /// The node only watches the volume from now on. Returns what it did before.
    fn watch_from(&mut self, now: Moment) -> Role<D> {
        let watch = match &self.role {
            Role::Active(active) => Watch::after(now, active.heard()),
            Role::Watch(_) | Role::Takeover(_) => Watch::new(now),
        };
        std::mem::replace(&mut self.role, Role::Watch(watch))
    }

    /// Stops serving the volume for now; this node will claim it again as soon as it can. Requests of clients wait here, and begin
    /// again if the volume was not attached elsewhere until then (rule T12). Requests that were carried out already do not: other
    /// clients may have written there since.
    fn step_down(&mut self, now: Moment, out: &mut Vec<Action<D>>) {
        let role = self.watch_from(now);
        if let Role::Active(active) = role {
            self.stepped_down = true;
            let (mut unfinished, withheld) = active.end(&self.c, out);
            // In the order in which they came.
            unfinished.sort_by_key(|request| std::cmp::Reverse(request.id));
            unfinished.into_iter().for_each(|request| self.waiting.push_front(request));
            out.extend(withheld.into_iter().map(|id| Action::Complete(id, Err(Failure::Deposed))));
        }
        if !self.clients.are_here() {
            self.retire(now, Failure::Deposed, out);
        }
    }

    /// Lets other nodes serve the volume, and gives them time to begin.
    fn wait_for_others(&mut self, now: Moment) {
        let until = now.after(self.c.times.quiet_ns);
        if let Role::Watch(watch) = &mut self.role {
            watch.leave_alone(until);
        }
    }

    /// Stops owning the volume, for good or for now. None of its requests is ever issued again (rule T4).
    fn retire(&mut self, now: Moment, why: Failure, out: &mut Vec<Action<D>>) {
        let role = self.watch_from(now);
        let mut again = Vec::new();
        if let Role::Active(active) = role {
            let (unfinished, withheld) = active.end(&self.c, out);
            if left_out(Rule::T4) {
                // The mutant completes the request as failed, and issues it again nevertheless.
                let nameless = |request: &Request<D>| Request { id: RequestId(u64::MAX), ..request.clone() };
                again.extend(unfinished.iter().filter(|r| r.id != RequestId(u64::MAX)).map(nameless));
            }
            let ended = unfinished.into_iter().map(|request| request.id).chain(withheld);
            out.extend(ended.map(|id| Action::Complete(id, Err(why))));
        }
        if !self.clients.are_here() {
            let waiting = self.waiting.drain(..);
            out.extend(waiting.map(|request| Action::Complete(request.id, Err(why))));
        }
        self.waiting.extend(again);
    }
}
