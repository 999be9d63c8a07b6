//! What things are called.

use std::fmt;

/// A virtual disk. Never used again for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeId(pub u64);

/// A host of the cluster. Never used again for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// One life of a node's process: a number that is larger for each later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

/// One copy of a group on one device. Never used again for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId(pub u64);

/// How often a volume's record has been changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The one that the next swap makes.
    ///
    /// # Panics
    /// After 2⁶⁴ swaps.
    pub fn next(self) -> Epoch {
        Epoch(self.0.checked_add(1).expect("a volume's record changes less often"))
    }
}

/// The owner, which orders a volume's I/O: a process, and not its node, since the next process there does not know what this one
/// had in flight (rule P3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    /// The node.
    pub node: NodeId,
    /// The life of its process.
    pub incarnation: Incarnation,
}

/// One proposal to change a record (rule P1): no two are the same, not even of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProposalId {
    /// The proposer.
    pub by: Owner,
    /// Its proposals, counted.
    pub number: u64,
}

/// The owner that a replica follows. It is durable before it is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Promise {
    /// Everything lower is refused.
    pub epoch: Epoch,
    /// At the promised epoch, messages of other owners are refused.
    pub owner: Owner,
}

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "replica {}", self.0)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {} (life {})", self.node.0, self.incarnation.0)
    }
}

/// The place of an entry among those of one ownership of a group, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Sequence(pub u64);

impl Sequence {
    /// The one after it.
    ///
    /// # Panics
    /// After 2⁶⁴ entries.
    pub fn next(self) -> Sequence {
        Sequence(self.0.checked_add(1).expect("an ownership has fewer entries"))
    }
}

/// Where an entry stands among all entries of a group: entries of a later ownership come after those of an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The epoch of the swap that made its owner the active one.
    pub ownership: Epoch,
    /// Its number in that ownership.
    pub sequence: Sequence,
}

impl Position {
    /// Before every entry.
    pub const START: Position = Position { ownership: Epoch(0), sequence: Sequence(0) };
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.ownership.0, self.sequence.0)
    }
}
