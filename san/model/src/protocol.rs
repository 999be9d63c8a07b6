//! What is searched: the protocol within bounds, and its steps.

use crate::Rule;
use crate::state::{Left, Set};

/// How large the model is. The search is exhaustive within this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Replicas, all in sync at the beginning.
    pub replicas: usize,
    /// Nodes that may own the volume, from node 0 on, which does at the beginning.
    pub owners: usize,
    /// The number of blocks.
    pub blocks: usize,
    /// How often things happen.
    pub left: Left,
    /// The most steps from the beginning. None: as many as there are.
    pub depth: Option<usize>,
}

/// The protocol within bounds, with one rule left out or none.
#[derive(Debug, Clone, Copy)]
pub struct Protocol {
    /// The size of the model.
    pub bounds: Bounds,
    /// The rule that is left out.
    pub left_out: Option<Rule>,
}

/// One step. The first number is a node: of its owner process, or of its replica. The second is the replica
/// or the block that it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// A client writes a block at this owner.
    Write(usize, usize),
    /// The next entry that a replica lacks reaches it, and its answer the owner.
    Append(usize, usize),
    /// The owner acknowledges its oldest entry.
    Acknowledge(usize),
    /// A replica receives the commit point of the owner.
    SendCommitPoint(usize, usize),
    /// The owner proposes a set without this member.
    Remove(usize, usize),
    /// The proposal of this place in the queue commits. Its proposer does not know yet.
    Commit(usize),
    /// A node sees the record in the store.
    ReadRecord(usize),
    /// A node proposes itself as the owner.
    TakeOver(usize),
    /// A request to be sealed reaches a member: it promises, or, the second time, reports.
    Seal(usize, usize),
    /// A member makes durable what the merge found. The first one ends the reports.
    Equalize(usize, usize),
    /// The second swap of a takeover is proposed, with those of which the owner knows that they are equal.
    Activate(usize, Set),
    /// All members that are needed grant the owner a lease.
    Grant(usize),
    /// The leases run out.
    Expire(usize),
    /// Grants arrive that have run out (L1 left out).
    ArriveLate(usize),
    /// A client reads a block at this owner.
    BeginRead(usize, usize),
    /// The owner reads it from a replica.
    Sample(usize),
    /// The owner answers.
    EndRead(usize),
    /// A replica that comes back lists and drops by itself (ListAfterPromise left out).
    List(usize),
    /// The owner opens a session with a replica that has come back.
    OpenSession(usize, usize),
    /// The owner reads a block that is to be copied.
    ReadCopy(usize, usize),
    /// The copy is durable at the target.
    WriteCopy(usize),
    /// A copy of an older session is durable at its target (OneSession left out).
    WriteLateCopy(usize),
    /// The owner proposes a set with the target of its session.
    Add(usize),
    /// A client's write of an earlier ownership is issued again (T4 left out).
    IssueAgain(usize),
    /// A replica moves what is acknowledged from its log to its extents.
    Destage(usize),
    /// A node dies and starts.
    Crash(usize),
}

impl Protocol {
    /// Whether this rule is left out.
    pub(crate) fn without(&self, rule: Rule) -> bool {
        self.left_out == Some(rule)
    }
}
