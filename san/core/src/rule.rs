//! The rules of `docs/explanation/san-rules.md` that can be left out, one at a time, to check that the simulator finds the violation.
//!
//! Without the feature `mutants` nothing can be left out, and [`left_out`] is `false` at compile time.

/// A rule, by its name in the design.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// While a swap is undecided the members of both records are needed, for writes.
    P1Writes,
    /// While a swap is undecided the leases of the members of both records are needed.
    P1Reads,
    /// The old record proves nothing.
    P2,
    /// A starting process owns nothing.
    P3,
    /// Before its first swap a node asks the members which owner they follow.
    P4,
    /// Before its first swap a node also asks the replicas that have departed which owner they follow.
    P4All,
    /// When the volume has grown, the members of the first group keep the epoch durably.
    P5,
    /// A request waits for earlier ones that overlap it.
    W1,
    /// A commit point is accepted only with the epoch that it came with.
    W2,
    /// The swap comes before the acknowledgement.
    W3,
    /// All members have a write before it is acknowledged.
    W4,
    /// Entries are appended without a gap.
    W5,
    /// No write is accepted with fewer replicas in sync than the policy requires.
    W6,
    /// Nothing that may need more room is issued while a member that must have it is full.
    W7,
    /// A lease counts from when it was requested.
    L1,
    /// Leases are checked when the read completes.
    L2,
    /// A member that has just started refuses to be sealed for the length of a lease.
    L3,
    /// A read needs leases at all.
    L4,
    /// An owner releases only the leases that it was granted before it sent the release.
    L5,
    /// Only a replica that its process has made itself is sealed without the wait of L3. That a replica holds nothing proves nothing.
    L6,
    /// A replica that is sealed after the reports were merged is excluded.
    T1,
    /// A replica that departed earlier keeps the epoch of its departure.
    T2,
    /// Nothing is served before the second swap is known to have committed.
    T3,
    /// Requests of an ownership end with it.
    T4,
    /// A sealed member refuses the old owner.
    T5,
    /// Members are made equal.
    T6,
    /// Of two entries to a block the one with the higher position wins.
    T7,
    /// A report waits until what was accepted before is durable.
    T9,
    /// A member whose log ends below the highest commit point is left out.
    T10,
    /// The answer to a request of a former ownership is dropped.
    T11,
    /// A waiting request is carried out only if the volume was not attached elsewhere since.
    T12,
    /// A request from before an ordered attach is never carried out after it, and neither is one that waits for a client that
    /// has gone.
    T13,
    /// Half of a group's members or more are not excluded for silence before their nodes were asked through the
    /// configuration store, and not if those nodes have more of the group.
    S1,
    /// A member from which nothing has arrived for half of the time counts as silent when the silent members are counted: a node that is
    /// cut off does not lose all others at the same moment.
    S1Soon,
    /// The answer of a node from before it fell silent does not count: the node is asked again.
    S1Anew,
    /// If more than half of a group's members are silent or their processes seem to have ended, those that seem to have ended are
    /// asked as well. Otherwise a node whose connections are all refused would exclude the others, each as ended.
    S1Ended,
    /// Destage does not go above the commit point.
    R1,
    /// The log is freed only after the extents, their checksums and stamps are durable.
    R1Free,
    /// An extent's stamp is the replica's epoch at destage.
    R2,
    /// A freed extent leaves a tombstone.
    R3,
    /// Tombstones are kept while a replica has departed.
    R3Keep,
    /// The log is synced before anything in it is reported.
    R4,
    /// A record of a former generation does not continue the log.
    R5,
    /// A failed write or sync is final.
    R6,
    /// A repair is an ordinary write, under exclusion.
    R7,
    /// A commit point is stored with the epoch that it came with.
    R8,
    /// A member with an older promise than the record states for it is damaged.
    R9,
    /// A map includes what is in the log.
    R10,
    /// A promise to an owner that did not own the volume at that epoch, by the record, blocks the volume.
    R11,
    /// An append is durable before it is reported.
    DSync,
    /// A record that does not verify, and that a later record covers, is damage, and not the end of the log.
    DCorrupt,
    /// An idle log gets a closing record.
    DClose,
    /// A record whose data does not match its checksums does not count.
    DSum,
    /// A place in the ring is used again only after the tail has moved past it, durably.
    DRing,
    /// The page with a replica's own metadata is written twice.
    DPages,
    /// The commit point up to which a round destaged is durable before the log is freed.
    DCommitPoint,
    /// A chunk is the replica's, durably, before anything is put there.
    DChunk,
    /// The slots of a chunk are empty, durably, before the chunk is the replica's.
    DSlots,
    /// Bad data never gets a checksum that matches.
    DBad,
    /// A store is opened only after the writes of the process before it have reached the device.
    DWait,
    /// Emptying a damaged store keeps the promise and drops everything else, in one change.
    DDiscard,
    /// The list of a returning replica comes first.
    C1,
    /// Forwarding begins before the copy list is made.
    C2,
    /// What the source's log mentions is copied.
    C3Log,
    /// Every extent that was stamped since the departure is copied.
    C3Stamp,
    /// What the returning replica listed is copied.
    C3List,
    /// A copy holds the block's exclusion.
    C4,
    /// Everything that was acknowledged is durable at the target before the swap that adds it.
    C5,
    /// Destructive orders name the process that they are meant for.
    C6,
    /// A replica that has become a member accepts no order to return in the session in which it became one.
    C7,
    /// What a replica reported before it dropped its entries is ignored afterwards.
    C8,
    /// A replica that has lost something is copied in full.
    C9,
    /// The answer to a request of a former attempt is dropped.
    C10,
    /// What a target had no room for is copied later.
    C11,
    /// A damaged replica is emptied only by an owner whose record says that it is to be copied in full.
    C12,
}

impl Rule {
    /// The rules of a store on its device. The tests that cut a store at every write show that they are needed.
    pub const OF_STORES: &[Rule] = &[
        Rule::R5,
        Rule::R6,
        Rule::DSync,
        Rule::DCorrupt,
        Rule::DClose,
        Rule::DSum,
        Rule::DRing,
        Rule::DPages,
        Rule::DCommitPoint,
        Rule::DChunk,
        Rule::DSlots,
        Rule::DBad,
        Rule::DWait,
        Rule::DDiscard,
    ];

    /// All others: clusters show that they are needed.
    pub const OF_CLUSTERS: &[Rule] = &[
        Rule::P1Writes,
        Rule::P1Reads,
        Rule::P2,
        Rule::P3,
        Rule::P4,
        Rule::P4All,
        Rule::P5,
        Rule::W1,
        Rule::W2,
        Rule::W3,
        Rule::W4,
        Rule::W5,
        Rule::W6,
        Rule::W7,
        Rule::L1,
        Rule::L2,
        Rule::L3,
        Rule::L4,
        Rule::L5,
        Rule::L6,
        Rule::T1,
        Rule::T2,
        Rule::T3,
        Rule::T4,
        Rule::T5,
        Rule::T6,
        Rule::T7,
        Rule::T9,
        Rule::T10,
        Rule::T11,
        Rule::T12,
        Rule::T13,
        Rule::S1,
        Rule::S1Soon,
        Rule::S1Anew,
        Rule::S1Ended,
        Rule::R1,
        Rule::R1Free,
        Rule::R2,
        Rule::R3,
        Rule::R3Keep,
        Rule::R4,
        Rule::R7,
        Rule::R8,
        Rule::R9,
        Rule::R10,
        Rule::R11,
        Rule::C1,
        Rule::C2,
        Rule::C3Log,
        Rule::C3Stamp,
        Rule::C3List,
        Rule::C4,
        Rule::C5,
        Rule::C6,
        Rule::C7,
        Rule::C8,
        Rule::C9,
        Rule::C10,
        Rule::C11,
        Rule::C12,
    ];
}

#[cfg(feature = "mutants")]
thread_local! {
    static LEFT_OUT: std::cell::Cell<Option<Rule>> = const { std::cell::Cell::new(None) };
}

/// Leaves a rule out in this thread, or none.
#[cfg(feature = "mutants")]
pub fn leave_out(rule: Option<Rule>) {
    LEFT_OUT.set(rule);
}

/// Whether this rule is left out.
#[cfg(feature = "mutants")]
pub fn left_out(rule: Rule) -> bool {
    LEFT_OUT.get() == Some(rule)
}

/// Whether this rule is left out: never.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn left_out(_: Rule) -> bool {
    false
}
