//! The rules that can be left out. Each is a rule of `docs/explanation/san-rules.md`, by its name there. Those that have
//! no name there have a longer one here.

/// A rule of the design. A search with a rule left out must find a counterexample: that is how we know that
/// the rule is needed, and that the model can see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rule {
    /// While a swap is undecided, the members of both sets are needed. Left out: it is taken for refused.
    P1,
    /// Seeing the old record proves nothing. Left out: a node that sees it takes the swap for refused, and forgets
    /// it.
    P2,
    /// A starting process owns nothing. Left out: it continues as the owner that the record names.
    P3,
    /// Requests that overlap wait for each other until they are acknowledged. Left out: they do not.
    W1,
    /// A member takes a commit point only from an epoch that it has adopted. Left out: from any message, adopting
    /// nothing.
    W2,
    /// Swap before acknowledging. Left out: a member that is about to be removed is not waited for any more.
    W3,
    /// A lease counts from when it was asked for. Left out: from when the grant arrives, which may be late.
    L1,
    /// A lease is checked when a read completes. Left out: when it begins.
    L2,
    /// A member that has started refuses to be sealed for one lease. Left out: it has forgotten what it
    /// granted.
    L3,
    /// A replica that is sealed after the merge is excluded from the set. Left out: it is kept.
    T1,
    /// `departed` stays as it was. Left out: each takeover raises it to its own epoch.
    T2,
    /// Nothing is served until the second swap is known to have committed. Left out: it is served at once.
    T3,
    /// What a deposed owner had not finished is never issued again. Left out: it is, when it takes over the
    /// next time.
    T4,
    /// The seal. Left out: members report, and promise nothing.
    T5,
    /// What comes from below the promise is refused. Left out: it is taken.
    Refusal,
    /// Destage never goes above the commit point. Left out: it takes the whole log.
    R1,
    /// A stamp is the epoch of the replica at destage. Left out: the birth epoch of the entry.
    R2,
    /// A freed extent leaves a stamped tombstone. Left out: every write is taken for a trim, and leaves no
    /// stamp.
    R3,
    /// A commit point is stored with the epoch that it came with. Left out: a start knows the commit point and only what was
    /// promised.
    R8,
    /// A replica that comes back lists what it drops. Left out: it only drops.
    C1,
    /// Forwarding begins at the lowest unacknowledged number. Left out: at the next that is issued.
    C2,
    /// The copy list has what the log of the source mentions. Left out: only stamps, and the list of the
    /// replica.
    C3,
    /// A copy excludes writes to its block. Left out: it does not.
    C4,
    /// A replica that returns lists and drops only when it has promised the epoch of the owner that orders
    /// it for it. Left out: it lists by itself, and the owner's session comes later.
    ListAfterPromise,
    /// The promise to the owner that opens a session is durable before anything is dropped. Left out: the
    /// epoch is adopted, and forgotten in a crash; then a deposed owner opens a session.
    DurableSession,
    /// No session is opened with a replica while the swap that adds it is undecided: it may be a member, and
    /// would drop what it needs. Left out: one is opened.
    DecidedBeforeSession,
    /// A target refuses what comes from an older session. Left out: it takes a late copy.
    OneSession,
}
