//! What a state of the model is made of: the store, the owners, the replicas, and what clients have seen.

/// Replicas at most. Replica `i` is on node `i`.
pub const REPLICAS: usize = 3;
/// Blocks of the one group.
pub const BLOCKS: usize = 2;

/// A set of replicas, or of blocks: one bit each.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Set(pub u8);

impl Set {
    /// The first so many.
    pub fn first(count: usize) -> Set {
        Set((1 << count) - 1)
    }

    /// Whether it is in the set.
    pub fn has(self, which: usize) -> bool {
        self.0 & (1 << which) != 0
    }

    /// The set and this one.
    pub fn with(self, which: usize) -> Set {
        Set(self.0 | (1 << which))
    }

    /// The set but for this one.
    pub fn without(self, which: usize) -> Set {
        Set(self.0 & !(1 << which))
    }

    /// What is in either.
    pub fn or(self, other: Set) -> Set {
        Set(self.0 | other.0)
    }

    /// Whether all of it is in the other.
    pub fn within(self, other: Set) -> bool {
        self.0 & !other.0 == 0
    }

    /// How many are in it.
    pub fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether nothing is in it.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// What is in it, in order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..8).filter(move |which| self.has(*which))
    }
}

impl std::fmt::Debug for Set {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// The pair that orders entries: birth epoch, then number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position {
    /// Birth epoch of the entry.
    pub epoch: u8,
    /// Its sequence number within its ownership.
    pub number: u8,
}

/// A sequenced write of one block. Value 0 is that of an opening entry, which writes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Where it is in the order.
    pub at: Position,
    /// What it writes to.
    pub block: usize,
    /// Unique for each write of a client, and rising in the order in which they were issued.
    pub value: u8,
}

/// The record in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Record {
    /// Raised by every swap.
    pub epoch: u8,
    /// The node of the owner.
    pub owner: usize,
    /// Whether it serves, or is taking over.
    pub active: bool,
    /// The replicas that hold every acknowledged write.
    pub in_sync: Set,
    /// For the others: the epoch of the swap that removed them.
    pub departed: [u8; REPLICAS],
}

impl Record {
    /// The next one, without this member.
    pub fn without(self, member: usize) -> Record {
        let mut next = Record { epoch: self.epoch + 1, in_sync: self.in_sync.without(member), ..self };
        next.departed[member] = next.epoch;
        next
    }

    /// The next one, with this replica, which has come back.
    pub fn with(self, replica: usize) -> Record {
        let mut next = Record { epoch: self.epoch + 1, in_sync: self.in_sync.with(replica), ..self };
        next.departed[replica] = 0;
        next
    }
}

/// What is durable of a block outside of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Extent {
    /// The value, 0 at the beginning.
    pub value: u8,
    /// The epoch under which it was destaged.
    pub stamp: u8,
}

/// A replica.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Replica {
    /// Durable: lower epochs are refused.
    pub promise: u8,
    /// The epoch that it has adopted, at least what it promised. Forgotten in a crash.
    pub epoch: u8,
    /// What is acknowledged up to here.
    pub commit_point: Position,
    /// The epoch that the commit point came with, stored with it (R8).
    pub commit_point_epoch: u8,
    /// The ownership that its log is in.
    pub ownership: u8,
    /// The last entry of this ownership that it has.
    pub last: Position,
    /// The entries that are not destaged, in the order of the log.
    pub log: Vec<Entry>,
    /// What is destaged.
    pub extents: [Extent; BLOCKS],
    /// The blocks of entries that it dropped when it came back.
    pub list: Set,
    /// Only with [`crate::Rule::ListAfterPromise`] left out: it has listed by itself.
    pub listed: bool,
    /// It was a member, and departed, and is a member again.
    pub returned: bool,
}

impl Replica {
    /// What a read of this block returns.
    pub fn content(&self, block: usize) -> u8 {
        let newest = self.log.iter().rev().find(|entry| entry.block == block);
        newest.map_or(self.extents[block].value, |entry| entry.value)
    }
}

/// What an owner process is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Phase {
    /// It owns nothing.
    #[default]
    Idle,
    /// It takes over, from the first proposal until the second is known to have committed.
    TakingOver,
    /// This process acts as the owner.
    Active,
}

/// The leases of an owner. They are granted together and run out together: to hold only some is as good as
/// none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Lease {
    /// The members whose lease the owner holds by its own clock.
    pub held: Set,
    /// The members that know of it, and are not sealed by another while it runs. Differs from `held` only in
    /// mutants.
    pub bound: Set,
    /// Grants that are still travelling when they have run out. Worth nothing, but for a mutant.
    pub late: Set,
}

/// A read that has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Read {
    /// What it reads.
    pub block: usize,
    /// What it must return at least: what had been acknowledged or seen when it began.
    pub floor: u8,
    /// What it found.
    pub value: Option<u8>,
}

/// A replica that is being brought back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Session {
    /// The index of the replica.
    pub target: usize,
    /// The blocks that are still to be copied.
    pub todo: Set,
    /// A copy that is under way: the block and what was read of it.
    pub copying: Option<(usize, u8)>,
}

/// The owner process of a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Owner {
    /// What it does.
    pub phase: Phase,
    /// The last record that it knows to have been committed.
    pub known: Record,
    /// What it proposed, and may or may not be the record.
    pub undecided: Option<Record>,
    /// The epoch of the swap that made it active.
    pub ownership: u8,
    /// The last number that it gave.
    pub issued: u8,
    /// What it has acknowledged up to here: the commit point that it sends. Its epoch is 0 until the opening entry is
    /// acknowledged.
    pub acked: Position,
    /// The entries that are not acknowledged, or that the target of the session does not have.
    pub pipeline: Vec<Entry>,
    /// Up to which number each replica has confirmed.
    pub confirmed: [u8; REPLICAS],
    /// Taking over: the replicas that were sealed and have reported.
    pub reported: Set,
    /// Taking over: the highest commit point that was reported.
    pub highest: Position,
    /// Taking over: of each block the last entry that was reported.
    pub newest: [Option<Entry>; BLOCKS],
    /// Taking over: the replicas that have confirmed to hold what was merged.
    pub equal: Set,
    /// The leases that the owner holds, and those that members have granted to it.
    pub lease: Lease,
    /// The read that has begun and not ended, if there is one.
    pub read: Option<Read>,
    /// The session with the replica that is being brought back, if there is one.
    pub session: Option<Session>,
    /// Only with [`crate::Rule::T4`] left out: what it will issue again.
    pub unfinished: Option<Entry>,
    /// Only with [`crate::Rule::OneSession`] left out: a copy of an older session that is under way, with
    /// target, block and value.
    pub late_copy: Option<(usize, usize, u8)>,
}

impl Owner {
    /// The entries that are not acknowledged.
    pub fn unacknowledged(&self) -> impl Iterator<Item = &Entry> {
        self.pipeline.iter().filter(|entry| entry.at.number > self.acked.number)
    }

    /// Whether it serves I/O: it is active, and its opening entry is acknowledged.
    pub fn serves(&self) -> bool {
        self.phase == Phase::Active && self.acked.epoch > 0
    }
}

/// What may still happen. Each number is spent as things happen, so that there is an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Left {
    /// Writes of clients.
    pub writes: u8,
    /// Reads of clients.
    pub reads: u8,
    /// Crashes of a node, at once followed by a start.
    pub crashes: u8,
    /// Takeovers begun.
    pub takeovers: u8,
    /// Members removed because they do not answer.
    pub departures: u8,
    /// Sessions opened for a replica that comes back.
    pub returns: u8,
}

/// What must never happen and is seen in a step, not in a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Flaw {
    /// A read returned less than was acknowledged or seen before it began.
    StaleRead,
    /// A replica took an entry from below its promise.
    PromiseBroken,
    /// A member was taken for damaged, although no device of the model ever loses anything.
    TakenForDamaged,
}

/// A state of the whole.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// The record in the store.
    pub record: Record,
    /// Proposals that have reached the store, or will, and can still commit.
    pub queue: Vec<Record>,
    /// The owner process of each node.
    pub owners: [Owner; REPLICAS],
    /// The replica of each node.
    pub replicas: [Replica; REPLICAS],
    /// The highest acknowledged value of each block.
    pub acked: [u8; BLOCKS],
    /// The highest value of each block that a read returned.
    pub seen: [u8; BLOCKS],
    /// The value of the last write.
    pub last_value: u8,
    /// What may still happen.
    pub left: Left,
    /// What should not have happened.
    pub flaw: Option<Flaw>,
}
