//! A volume at one node: who owns it, takes it over, or watches it.
//!
//! ```text
//!          attached, or its owner     first swap, seals,        second swap
//!          has been quiet             equal members             committed
//!  watch ───────────────────────▶ takeover ───────────────▶ active
//!    ▲                                │                        │
//!    └────────────────────────────────┴────────────────────────┘
//!          somebody else's swap committed, or a swap stays undecided
//! ```
//!
//! | module | idea |
//! | --- | --- |
//! | `watch` | nobody serves it, as far as one can see: take it over |
//! | `takeover` | from the first swap to the second |
//! | `merge` | what sealed members must be made equal in |
//! | `active` | it serves: entries, acknowledgements, members that go |
//! | `jobs` | requests of clients, and copies: from the first step to the last |
//! | `returning` | replicas that come back |
//! | `link` | the talk with one replica |

mod active;
mod jobs;
mod link;
pub mod merge;
mod returning;
mod takeover;
mod watch;

use std::collections::{BTreeMap, VecDeque};

use thiserror::Error;

use crate::ids::{Epoch, NodeId, Owner, ProposalId, ReplicaId, VolumeId};
use crate::layout::GroupIndex;
use crate::lease::Moment;
use crate::message::{Content, FromOwner, FromReplica, Job, ToOwner, ToReplica};
use crate::record::{Record, RecordError, State};
use crate::rule::{Rule, left_out};
use crate::swap::{Answer, Outcome, Swap, WentBack};

use active::Active;
use takeover::Takeover;
use watch::Watch;

/// A client's request, by the name that its export gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// The most requests that a volume has at once, at work or waiting. Exports have far lower bounds of their own.
pub const MOST_REQUESTS: usize = 65_536;

/// Sectors in a block. A sector has 512 bytes.
pub const SECTORS: u64 = 8;

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask<D> {
    /// Read.
    Read,
    /// Write this: sector by sector, from the first of the request on.
    Write(D),
    /// Make it read as zeroes; the space stays reserved.
    WriteZeroes,
    /// Make it read as zeroes, and give the space back. What does not fill a block is left as it is.
    Trim,
    /// All that was acknowledged before is durable. It has no sectors.
    Flush,
}

/// A client's request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request<D> {
    /// Its name.
    pub id: RequestId,
    /// What it asks for.
    pub ask: Ask<D>,
    /// The first sector.
    pub sector: u64,
    /// How many.
    pub sectors: u32,
}

/// Why a request was not carried out. Whether a write that failed is on the volume is not known, unless said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Failure {
    /// This node does not own the volume any more: its clients' sessions end.
    #[error("this node does not own the volume any more: connect to the node that does")]
    Deposed,
    /// It is not attached here.
    #[error("the volume is not attached at this node: attach it first")]
    NotAttached,
    /// There are [`MOST_REQUESTS`] already. Nothing was done.
    #[error("the volume has {MOST_REQUESTS} requests waiting: ask again when some have been answered")]
    TooMany,
    /// It goes beyond the end. Nothing was done.
    #[error("the request goes beyond the end of the volume")]
    OutOfRange,
    /// No copy in sync has the data that its checksum was made of.
    #[error("no copy of these blocks matches its checksum: restore them from a backup, or write them anew")]
    Rotten,
}

/// Something that a person decides about a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// A new, empty replica is to become a member. It is durable on its device.
    Add {
        /// The group.
        group: GroupIndex,
        /// The replica.
        replica: ReplicaId,
        /// Its node.
        home: NodeId,
    },
    /// A replica that has departed will not come back.
    Forget {
        /// The group.
        group: GroupIndex,
        /// The replica.
        replica: ReplicaId,
    },
    /// A member is to leave for good: its node is being emptied, or its device replaced.
    Remove {
        /// The group.
        group: GroupIndex,
        /// The replica.
        replica: ReplicaId,
    },
    /// The volume is to have so many blocks. The replicas of groups that are new are durable on their devices.
    Grow {
        /// Blocks.
        blocks: u64,
        /// The replicas of each new group.
        added: Vec<Vec<(ReplicaId, NodeId)>>,
    },
    /// These are what is left, whatever they have missed. Only where the volume is not active. With none named, the sets stay
    /// as they are, and only a store that went back in time is taken for what it is now.
    Recover {
        /// The record, as the store holds it now.
        record: Box<Record>,
        /// What is left of groups.
        survivors: BTreeMap<GroupIndex, ReplicaId>,
    },
}

/// What happens to a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event<D> {
    /// Its clients are here: it is to be owned here.
    Attach,
    /// Its clients have gone. What they asked for is dropped.
    Detach,
    /// It is to be taken over if nobody serves it.
    Watch(bool),
    /// A client asks.
    Request(Request<D>),
    /// A replica says something.
    Message(FromReplica, ToOwner<D>),
    /// The configuration store was asked what the record is; this is it. `asked_at` as in the action.
    Seen(Record, Epoch),
    /// The configuration store answered a proposal.
    Swapped(ProposalId, Answer, Epoch),
    /// What [`Action::Merge`] asked for.
    Merged(Job, D),
    /// A person decides.
    Order(Order),
    /// Some time has passed: to come every [`Times::tick_ns`], or nearly so.
    Wake,
}

/// What a volume wants done, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action<D> {
    /// A message to a replica.
    Send {
        /// Its node.
        to: NodeId,
        /// What it names.
        header: FromOwner,
        /// What it says.
        message: ToReplica<D>,
    },
    /// Ask the configuration store what the record is.
    Look {
        /// To be told with the answer: what is known when this is asked.
        asked_at: Epoch,
    },
    /// Ask the configuration store to make this the record, if it is at this epoch.
    Propose {
        /// The record.
        record: Box<Record>,
        /// What it replaces. To be told with the answer.
        replaces: Epoch,
    },
    /// A part of what a client reads: whole blocks. It may come again with other content before the completion.
    Fill {
        /// Who reads.
        request: RequestId,
        /// Where it belongs, in blocks from the one with the request's first sector.
        at: u64,
        /// How many blocks.
        blocks: u32,
        /// What is there.
        content: Content<D>,
    },
    /// Make whole blocks of what a client writes and what is around it. → [`Event::Merged`]
    ///
    /// Of a write: all its blocks. Of zeroes: its first block if `head` is given, then its last if `tail` is.
    Merge {
        /// To be told with the answer.
        job: Job,
        /// What is written.
        request: Request<D>,
        /// The block with its first sector, if it does not fill that.
        head: Option<Content<D>>,
        /// The block with its last sector, if that is another and it does not fill it.
        tail: Option<Content<D>>,
    },
    /// It is attached elsewhere: the sessions of its clients here are to be closed.
    Detached,
    /// A request has ended.
    Complete(RequestId, Result<(), Failure>),
    /// An order was carried out: the record says so. Or it cannot be, or nobody knows.
    Done(Result<(), OrderError>),
}

/// Why an order is not carried out. Nothing was changed by it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum OrderError {
    /// Somebody else owns it, or nobody.
    #[error("this node does not own the volume: ask the one that does")]
    NotOwner,
    /// It is in use here.
    #[error("the volume is active: nothing is to be recovered")]
    Active,
    /// Without it, nobody answers.
    #[error("no other replica of its group answers beside {0}: wait until another is in sync and reachable")]
    Needed(ReplicaId),
    /// Somebody else has taken the volume over. Whether the change was made is to be seen in its record.
    #[error(
        "another node has taken the volume over: look at the volume, and give the order there if need be"
    )]
    Superseded,
    /// Another change has not been decided yet.
    #[error("another change of the volume is under way: try again")]
    Busy,
    /// It makes no sense.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The store's record cannot be.
    #[error(transparent)]
    Broken(#[from] WentBack),
}

/// How long things take. All in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// Between two [`Event::Wake`].
    pub tick_ns: u64,
    /// Between heartbeats to a member: several in the length of a lease.
    pub heartbeat_ns: u64,
    /// What has not been answered for so long is asked again.
    pub resend_ns: u64,
    /// A member that has said nothing for so long is removed.
    pub silent_ns: u64,
    /// A swap that stays undecided for so long makes an owner step down.
    pub undecided_ns: u64,
    /// A takeover waits so long for members that do not answer, if others do: longer than a lease.
    pub seal_ns: u64,
    /// A volume for which no member has granted a lease for so long, nor was asked to be sealed, is taken over.
    pub quiet_ns: u64,
}

impl Times {
    /// What goes with leases of this length.
    pub fn of_lease(lease_ns: u64) -> Times {
        Times {
            tick_ns: lease_ns / 16,
            heartbeat_ns: lease_ns / 4,
            resend_ns: lease_ns / 4,
            silent_ns: lease_ns,
            undecided_ns: 2 * lease_ns,
            seal_ns: lease_ns * 3 / 2,
            quiet_ns: 2 * lease_ns,
        }
    }
}

/// What a volume does, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Status {
    /// Not owned here.
    Watching,
    /// A takeover waits for its first swap.
    Claiming,
    /// It waits for members to be sealed: of some group there may be none.
    Sealing,
    /// It makes them equal.
    Equalizing,
    /// It waits for its second swap.
    Activating,
    /// It serves.
    Active,
    /// It serves, and a swap is undecided.
    Changing,
    /// The configuration store went back in time. Nothing is done until a person decides.
    Blocked,
}

/// What all parts of a volume need.
#[derive(Debug)]
struct Context {
    me: Owner,
    volume: VolumeId,
    times: Times,
    swap: Option<Swap>,
    /// The last epoch at which it was the owner: what it says is of that one. A record that makes somebody else the owner
    /// gives it no right to speak at its epoch.
    mine: Epoch,
    /// Since when a proposal is undecided, and when it was last sent.
    proposed: Option<(Moment, Moment)>,
    /// When the record was last asked for.
    looked: Option<Moment>,
    /// The highest epoch that a replica said it had promised.
    promised: Epoch,
    blocked: Option<WentBack>,
    sessions: u64,
    proposals: u64,
    /// What the next random number is made from.
    chance: u64,
}

impl Context {
    fn record(&self) -> Option<&Record> {
        self.swap.as_ref().map(Swap::settled)
    }

    fn epoch(&self) -> Epoch {
        self.record().map_or(Epoch(0), |record| record.epoch)
    }

    fn is_undecided(&self) -> bool {
        self.swap.as_ref().is_some_and(|swap| swap.undecided().is_some())
    }

    /// The id of the next proposal.
    fn proposal(&mut self) -> ProposalId {
        self.proposals += 1;
        ProposalId { by: self.me, number: self.proposals }
    }

    fn propose<D>(&mut self, now: Moment, record: Record, out: &mut Vec<Action<D>>) {
        let swap = self.swap.as_mut().expect("a record is made from another");
        swap.propose(record);
        self.proposed = Some((now, now));
        self.send_proposal(out);
    }

    fn send_proposal<D>(&self, out: &mut Vec<Action<D>>) {
        let Some(swap) = &self.swap else { return };
        if let Some(record) = swap.undecided() {
            out.push(Action::Propose { record: Box::new(record.clone()), replaces: swap.settled().epoch });
        }
    }

    /// Asks for the record, unless that was done a moment ago.
    fn look<D>(&mut self, now: Moment, out: &mut Vec<Action<D>>) {
        if self.looked.is_none_or(|then| now.since(then) >= self.times.resend_ns) {
            self.looked = Some(now);
            // The store holds at least what made a replica promise: a takeover swaps first.
            out.push(Action::Look { asked_at: self.epoch().max(self.promised) });
        }
    }

    /// A number below `limit`.
    fn random(&mut self, limit: u64) -> u64 {
        // SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
        self.chance = self.chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.chance;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit.max(1)
    }

    /// The members of a group that must have a write.
    fn required(&self, group: GroupIndex) -> Vec<ReplicaId> {
        let Some(swap) = &self.swap else { return Vec::new() };
        if left_out(Rule::P1Writes) {
            return swap.settled().groups[group.0 as usize].in_sync.iter().copied().collect();
        }
        swap.required(group).into_iter().collect()
    }
}

#[derive(Debug)]
enum Role<D> {
    Watch(Watch),
    Takeover(Takeover<D>),
    Active(Box<Active<D>>),
}

/// See the module.
#[derive(Debug)]
pub struct Volume<D> {
    c: Context,
    role: Role<D>,
    attached: bool,
    watching: bool,
    /// Requests that came before it was active.
    waiting: VecDeque<Request<D>>,
    /// The number of the attachment under which it last claimed the volume for its clients.
    claimed: Option<u64>,
    /// The swap of an order that is under way.
    ordered: Option<ProposalId>,
}

impl<D: Clone> Volume<D> {
    /// Of a process that starts. `seed` makes its random delays.
    pub fn new(me: Owner, volume: VolumeId, times: Times, seed: u64, now: Moment) -> Volume<D> {
        let c = Context {
            me,
            volume,
            times,
            swap: None,
            mine: Epoch(0),
            proposed: None,
            looked: None,
            promised: Epoch(0),
            blocked: None,
            sessions: 0,
            proposals: 0,
            chance: seed,
        };
        let role = Role::Watch(Watch::new(now));
        let (waiting, claimed, ordered) = (VecDeque::new(), None, None);
        Volume { c, role, attached: false, watching: false, waiting, claimed, ordered }
    }

    /// The record, as far as it is known here.
    pub fn record(&self) -> Option<&Record> {
        self.c.record()
    }

    /// What it does.
    pub fn status(&self) -> Status {
        match &self.role {
            _ if self.c.blocked.is_some() => Status::Blocked,
            Role::Watch(_) => Status::Watching,
            Role::Takeover(takeover) => takeover.status(),
            Role::Active(_) if self.c.is_undecided() => Status::Changing,
            Role::Active(_) => Status::Active,
        }
    }

    /// Why nothing is done, if so.
    pub fn blocked(&self) -> Option<&WentBack> {
        self.c.blocked.as_ref()
    }

    /// Replicas that are coming back, with the blocks that are still to be copied, as far as they are known.
    pub fn returning(&self) -> Vec<(ReplicaId, u64)> {
        match &self.role {
            Role::Active(active) => active.returning(),
            _ => Vec::new(),
        }
    }

    /// Requests that wait, for whatever reason.
    pub fn unanswered(&self) -> usize {
        let at_work = if let Role::Active(active) = &self.role { active.unanswered() } else { 0 };
        self.waiting.len() + at_work
    }

    /// Something happened; what is to be done is added to `out`.
    pub fn step(&mut self, now: Moment, event: Event<D>, out: &mut Vec<Action<D>>) {
        match event {
            Event::Request(request) => self.request(now, request, out),
            Event::Message(from, message) => self.message(now, &from, message, out),
            Event::Merged(job, data) => {
                if let Role::Active(active) = &mut self.role {
                    active.merged(&mut self.c, now, job, data, out);
                }
            }
            Event::Attach => {
                (self.attached, self.claimed) = (true, None);
                self.tick(now, out);
            }
            Event::Detach => {
                self.attached = false;
                self.retire(now, Failure::NotAttached, out);
            }
            Event::Watch(watching) => self.watching = watching,
            Event::Seen(record, _) if self.c.blocked.is_some() => {
                // A record above all that was known and promised is one that a person has made.
                let known = self.c.promised.max(self.c.epoch());
                if record.epoch > known
                    && let Ok(swap) = Swap::new(record)
                {
                    (self.c.blocked, self.c.swap, self.c.proposed) = (None, Some(swap), None);
                }
            }
            Event::Seen(record, asked_at) => {
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
                if let Some(swap) = &mut self.c.swap {
                    let outcome = swap.answered(&proposal, answer, asked_at);
                    self.decided(now, outcome, out);
                }
            }
            Event::Order(order) => {
                if let Err(why) = self.order(now, order, out) {
                    out.push(Action::Done(Err(why)));
                }
            }
            Event::Wake => self.tick(now, out),
        }
    }

    fn request(&mut self, now: Moment, request: Request<D>, out: &mut Vec<Action<D>>) {
        if self.unanswered() >= MOST_REQUESTS {
            out.push(Action::Complete(request.id, Err(Failure::TooMany)));
            return;
        }
        match &mut self.role {
            Role::Active(active) => active.request(&mut self.c, now, request, out),
            _ if self.attached && self.c.blocked.is_none() => self.waiting.push_back(request),
            _ => out.push(Action::Complete(request.id, Err(Failure::NotAttached))),
        }
    }

    fn message(&mut self, now: Moment, from: &FromReplica, message: ToOwner<D>, out: &mut Vec<Action<D>>) {
        if from.volume != self.c.volume || from.owner != self.c.me {
            return;
        }
        if let ToOwner::Refused(promise) = message {
            self.c.promised = self.c.promised.max(promise.epoch);
            let mine = self.c.record().is_some_and(|record| record.owner == self.c.me);
            if promise.epoch > self.c.epoch() {
                self.c.look(now, out);
            } else if promise.epoch == self.c.epoch() && promise.owner != self.c.me && mine {
                // No two owners ever share an epoch.
                self.block(now, WentBack::Other(promise.epoch.0), out);
            }
            return;
        }
        match &mut self.role {
            Role::Watch(watch) => watch.message(&mut self.c, from, &message),
            Role::Takeover(takeover) => takeover.message(&mut self.c, now, from, message, out),
            Role::Active(active) => active.message(&mut self.c, now, from, message, out),
        }
    }

    /// The store has said something about the record.
    fn decided(&mut self, now: Moment, outcome: Result<Outcome, WentBack>, out: &mut Vec<Action<D>>) {
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(why) => {
                self.block(now, why, out);
                return;
            }
        };
        if !self.c.is_undecided() {
            self.c.proposed = None;
        }
        if let Some(record) = self.c.record().filter(|record| record.owner == self.c.me) {
            self.c.mine = record.epoch;
        }
        if let Some(id) = self.ordered
            && matches!(outcome, Outcome::Committed | Outcome::Superseded)
        {
            let carried_out = self.c.record().is_some_and(|record| record.made_by == id);
            self.ordered = None;
            out.push(Action::Done(if carried_out { Ok(()) } else { Err(OrderError::Superseded) }));
        }
        match outcome {
            Outcome::Committed => match &mut self.role {
                Role::Watch(_) => {}
                Role::Takeover(takeover) => {
                    self.claimed = self.c.record().map(|record| record.attachment);
                    if takeover.committed(&mut self.c, now, out) {
                        self.activate(now, out);
                    }
                }
                Role::Active(active) => active.committed(&mut self.c, now, out),
            },
            Outcome::Superseded => {
                // Somebody else's record, which makes somebody else the owner: the swaps of an owner are its own. Who
                // has only just begun to claim it did not know the newest record, and tries again.
                let claims = match &self.role {
                    Role::Watch(_) => true,
                    Role::Takeover(takeover) => takeover.status() == Status::Claiming,
                    Role::Active(_) => false,
                };
                // Unless its clients had the volume already, and others have attached it since.
                let attachment = self.c.record().map(|record| record.attachment);
                let moved = self.claimed.is_some() && attachment > self.claimed;
                if self.attached && (!claims || moved) {
                    self.attached = false;
                    out.push(Action::Detached);
                }
                self.retire(now, Failure::Deposed, out);
            }
            Outcome::Undecided | Outcome::Settled => {}
        }
        self.tick(now, out);
    }

    /// What the store holds cannot be. Nothing is done before a person has decided.
    fn block(&mut self, now: Moment, why: WentBack, out: &mut Vec<Action<D>>) {
        self.c.blocked = Some(why);
        self.retire(now, Failure::Deposed, out);
    }

    /// Some time has passed.
    fn tick(&mut self, now: Moment, out: &mut Vec<Action<D>>) {
        if self.c.blocked.is_some() {
            // A person may have decided elsewhere.
            self.c.look(now, out);
            return;
        }
        if let Some((since, sent)) = self.c.proposed {
            let patience = self.c.times.undecided_ns;
            if now.since(since) >= patience && !matches!(self.role, Role::Watch(_)) {
                self.retire(now, Failure::Deposed, out);
            }
            if now.since(sent) >= self.c.times.resend_ns {
                self.c.proposed = Some((since, now));
                self.c.send_proposal(out);
                self.c.look(now, out);
            }
        }
        match &mut self.role {
            Role::Watch(watch) => {
                if watch.tick(&mut self.c, now, self.attached, self.watching, out) {
                    self.take_over(now, out);
                }
            }
            Role::Takeover(takeover) => {
                takeover.tick(&mut self.c, now, out);
                if takeover.may_activate() {
                    self.activate(now, out);
                }
            }
            Role::Active(active) => active.tick(&mut self.c, now, out),
        }
    }

    fn take_over(&mut self, now: Moment, out: &mut Vec<Action<D>>) {
        let id = self.c.proposal();
        let Some(record) = self.c.record() else { return };
        if left_out(Rule::P3) && record.owner.node == self.c.me.node && record.state == State::Active {
            // It believes what the record says of its node.
            (self.c.mine, self.c.me) = (record.epoch, record.owner);
            self.c.sessions = 1 << 32;
            let takeover = Takeover::believing(&self.c, now);
            self.role = Role::Takeover(takeover);
            self.activate(now, out);
            return;
        }
        let next = record.taken_over(id, self.attached);
        self.c.propose(now, next, out);
        self.role = Role::Takeover(Takeover::new(now));
    }

    fn activate(&mut self, now: Moment, out: &mut Vec<Action<D>>) {
        let Role::Takeover(takeover) = std::mem::replace(&mut self.role, Role::Watch(Watch::new(now))) else {
            unreachable!("only a takeover activates")
        };
        let (links, marks) = takeover.into_links(&self.c);
        let mut active = Active::new(&mut self.c, links, &marks, now, out);
        for request in self.waiting.drain(..) {
            active.request(&mut self.c, now, request, out);
        }
        self.role = Role::Active(Box::new(active));
    }

    /// It is not to own the volume any more, or not for now. Nothing of it is ever issued again (rule T4).
    fn retire(&mut self, now: Moment, why: Failure, out: &mut Vec<Action<D>>) {
        let role = std::mem::replace(&mut self.role, Role::Watch(Watch::new(now)));
        let mut again = Vec::new();
        if let Role::Active(active) = role {
            let unfinished = active.end(&self.c, out);
            if left_out(Rule::T4) {
                // Its clients are told, and it is issued again all the same.
                let nameless = |request: &Request<D>| Request { id: RequestId(u64::MAX), ..request.clone() };
                again.extend(unfinished.iter().filter(|r| r.id != RequestId(u64::MAX)).map(nameless));
            }
            out.extend(unfinished.into_iter().map(|request| Action::Complete(request.id, Err(why))));
        }
        if !self.attached {
            let waiting = self.waiting.drain(..);
            out.extend(waiting.map(|request| Action::Complete(request.id, Err(why))));
        }
        self.waiting.extend(again);
    }

    fn order(&mut self, now: Moment, order: Order, out: &mut Vec<Action<D>>) -> Result<(), OrderError> {
        let id = self.c.proposal();
        let active = matches!(self.role, Role::Active(_));
        if let Order::Recover { record, survivors } = order {
            return if active {
                Err(OrderError::Active)
            } else {
                self.recover(now, *record, &survivors, id, out)
            };
        }
        if self.c.is_undecided() {
            return Err(OrderError::Busy);
        }
        let record = self.c.record().ok_or(OrderError::NotOwner)?;
        let next = match order {
            _ if !active => return Err(OrderError::NotOwner),
            Order::Recover { .. } => unreachable!("it was taken before"),
            Order::Add { group, replica, home } => record.with_new(id, group, replica, home)?,
            Order::Forget { group, replica } => record.forgotten(id, group, replica)?,
            Order::Remove { group, replica } => {
                let Role::Active(active) = &self.role else { return Err(OrderError::NotOwner) };
                if !active.can_spare(&self.c, now, group, replica) {
                    return Err(OrderError::Needed(replica));
                }
                record.removed(id, group, replica)?
            }
            Order::Grow { blocks, added } => record.grown(id, blocks, &added)?,
        };
        self.ordered = Some(id);
        self.c.propose(now, next, out);
        Ok(())
    }

    /// A person says what is left. It is taken over from there.
    fn recover(
        &mut self,
        now: Moment,
        record: Record,
        survivors: &BTreeMap<GroupIndex, ReplicaId>,
        id: ProposalId,
        out: &mut Vec<Action<D>>,
    ) -> Result<(), OrderError> {
        // All that anybody has promised or known is passed.
        let passed = self.c.promised.max(self.c.epoch());
        let next = record.recovered(id, survivors, passed)?;
        self.c.swap = Some(Swap::new(record)?);
        self.c.blocked = None;
        self.role = Role::Takeover(Takeover::new(now));
        self.ordered = Some(id);
        self.c.propose(now, next, out);
        Ok(())
    }
}
