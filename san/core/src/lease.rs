//! Leases: how long an owner may answer reads without asking other nodes (rules L1 to L3, L5 and L6 of `docs/explanation/san-rules.md`).
//!
//! ```text
//! owner    ask ─────────────────────── holds it until: asked + length − margin ──┤
//!             ╲                ╱
//! member       ╲── grant ─────╱ ────── is not sealed by another until: granted + length ──────┤
//! ```
//!
//! Each counts on its own clock. The owner counts from when it asked, the member from when it granted, which is later; so
//! the owner's time is over first, however long the messages travel, while the two clocks run equally fast to
//! within [`MOST_DRIFT`]. The length of a volume's leases never changes: a member that has started knows how long it
//! may have granted one for.

use std::collections::BTreeMap;

use crate::ids::{Epoch, Owner, ReplicaId};
use crate::rule::{Rule, left_out};

/// A moment of one node's clock, in nanoseconds. The clock runs on while the node is suspended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(pub u64);

impl Moment {
    /// So much later, nanoseconds.
    pub fn after(self, ns: u64) -> Moment {
        Moment(self.0.saturating_add(ns))
    }

    /// Nanoseconds since an earlier one; 0 if it is later.
    pub fn since(self, earlier: Moment) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Two clocks differ in rate by less than one part in so many. Quartz is ten times better.
pub const MOST_DRIFT: u64 = 1000;

/// The leases that an owner holds, of the members of one group.
#[derive(Debug, Clone)]
pub struct Leases {
    /// How long one is good for, here.
    usable_ns: u64,
    until: BTreeMap<ReplicaId, Moment>,
}

impl Leases {
    /// None yet, of this length.
    pub fn new(length_ns: u64) -> Leases {
        // The drift of the two against each other, rounded up, and one nanosecond for what clocks round away.
        Leases { usable_ns: length_ns.saturating_sub(length_ns / MOST_DRIFT + 2), until: BTreeMap::new() }
    }

    /// A member has granted the lease that was requested at this moment, at which it begins (rule L1).
    pub fn granted(&mut self, by: ReplicaId, asked: Moment) {
        let until = asked.after(self.usable_ns);
        let held = self.until.entry(by).or_insert(until);
        *held = until.max(*held);
    }

    /// Whether the leases of all these members are held at this moment. To be checked when a read completes (rule L2).
    pub fn hold<'a>(&self, of: impl IntoIterator<Item = &'a ReplicaId>, now: Moment) -> bool {
        of.into_iter().all(|replica| self.until.get(replica).is_some_and(|until| now < *until))
    }
}

/// What a member promised: the owner to which it grants leases, and until when it is not to be sealed by another.
#[derive(Debug, Clone)]
pub struct Grants {
    length_ns: u64,
    /// Leases of others than the last owner have ended here, also those that the predecessor of this process may have granted
    /// (rule L3).
    before: Moment,
    /// The last lease granted ends here.
    until: Moment,
    /// The owner that holds the lease, and the epoch of its last request.
    granted: Option<(Owner, Epoch)>,
    /// The owner that has requested a seal: others get no lease any more.
    sealing: Option<Owner>,
}

impl Grants {
    /// Of a process that starts at this moment. It may have granted a lease a moment ago, in its former life.
    pub fn of_new_process(length_ns: u64, now: Moment) -> Grants {
        let before = if left_out(Rule::L3) { now } else { now.after(length_ns) };
        Grants { length_ns, before, until: now, granted: None, sealing: None }
    }

    /// Of a replica that the process of this moment has made itself: no former process can have granted a lease (rule L6).
    pub fn of_new_replica(length_ns: u64, now: Moment) -> Grants {
        Grants { length_ns, before: now, until: now, granted: None, sealing: None }
    }

    /// Grants this owner, which requests at this epoch, a lease, unless another owner is to seal the member. The caller checks
    /// that the member follows this owner.
    pub fn grant(&mut self, to: Owner, epoch: Epoch, now: Moment) -> bool {
        if self.sealing.is_some_and(|other| other != to) {
            return false;
        }
        let asked = self.granted.filter(|(owner, _)| *owner == to);
        if asked.is_none() {
            self.before = self.before.max(self.until);
        }
        self.granted = Some((to, asked.map_or(epoch, |(_, asked)| epoch.max(asked))));
        self.until = self.until.max(now.after(self.length_ns));
        true
    }

    /// A node requests to seal the member: from now on no other owner gets a lease. Returns the moment from which on the member may answer.
    pub fn seal(&mut self, by: Owner) -> Moment {
        self.sealing = Some(by);
        self.end()
    }

    /// When all leases that were granted are over.
    pub fn end(&self) -> Moment {
        self.before.max(self.until)
    }

    /// An owner reports that it has stopped reading at this epoch. If the last lease was granted to this owner, and it has not
    /// requested one at a later epoch since, the member does not wait for the end of its leases (rule L5). Returns whether
    /// that is so.
    pub fn released(&mut self, by: Owner, epoch: Epoch, now: Moment) -> bool {
        let holds =
            left_out(Rule::L5) || self.granted.is_some_and(|(owner, asked)| owner == by && asked <= epoch);
        if holds {
            self.until = self.until.min(now);
        }
        holds
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Incarnation, NodeId};
    use proptest::prelude::*;

    const LENGTH: u64 = 1_000_000;
    const MEMBER: ReplicaId = ReplicaId(1);

    fn owner(node: u32) -> Owner {
        Owner { node: NodeId(node), incarnation: Incarnation(1) }
    }

    #[test]
    fn a_lease_begins_when_it_was_asked_for() {
        let mut leases = Leases::new(LENGTH);
        leases.granted(MEMBER, Moment(100));
        assert!(leases.hold([&MEMBER], Moment(100 + LENGTH - LENGTH / 1000 - 3)));
        assert!(!leases.hold([&MEMBER], Moment(100 + LENGTH - LENGTH / 1000 - 2)));
        leases.granted(MEMBER, Moment(50));
        assert!(leases.hold([&MEMBER], Moment(100)), "an older grant takes nothing away");
        assert!(!leases.hold([&MEMBER, &ReplicaId(2)], Moment(100)), "all are needed");
    }

    #[test]
    fn a_replica_that_one_owner_is_to_seal_grants_nothing_to_another() {
        let mut grants = Grants::of_new_process(LENGTH, Moment(0));
        assert_eq!(grants.clone().seal(owner(1)), Moment(LENGTH));
        assert!(grants.grant(owner(1), Epoch(5), Moment(10)));
        assert_eq!(grants.seal(owner(2)), Moment(10 + LENGTH));
        assert!(!grants.grant(owner(1), Epoch(5), Moment(20)));
        assert_eq!(grants.seal(owner(2)), Moment(10 + LENGTH), "asking again changes nothing");
        assert!(!grants.released(owner(1), Epoch(4), Moment(30)), "it was of a former ownership");
        assert!(!grants.released(owner(3), Epoch(6), Moment(30)), "it has no lease");
        assert_eq!(grants.seal(owner(2)), Moment(10 + LENGTH));
        assert!(grants.released(owner(1), Epoch(5), Moment(30)));
        assert_eq!(
            grants.seal(owner(2)),
            Moment(LENGTH),
            "no owner can give back what its predecessor granted"
        );
    }

    #[test]
    fn a_replica_that_this_process_made_is_sealed_at_once_until_it_grants_a_lease() {
        let mut grants = Grants::of_new_replica(LENGTH, Moment(5));
        assert_eq!(grants.clone().seal(owner(1)), Moment(5));
        assert!(grants.grant(owner(1), Epoch(2), Moment(10)));
        assert_eq!(grants.seal(owner(2)), Moment(10 + LENGTH));
    }

    #[test]
    fn an_owner_gives_back_its_own_leases_only() {
        let mut grants = Grants::of_new_process(LENGTH, Moment(0));
        assert!(grants.grant(owner(1), Epoch(5), Moment(3 * LENGTH)));
        assert!(grants.grant(owner(2), Epoch(7), Moment(3 * LENGTH + 20)));
        assert!(grants.released(owner(2), Epoch(7), Moment(3 * LENGTH + 30)));
        assert_eq!(grants.seal(owner(3)), Moment(4 * LENGTH), "another may read under them still");
        assert!(
            !grants.released(owner(1), Epoch(9), Moment(3 * LENGTH + 40)),
            "it is not known which were its"
        );
    }

    #[derive(Debug, Clone, Copy)]
    enum Step {
        /// Real time passes, nanoseconds.
        Pass(u64),
        /// The owner requests a lease.
        Ask,
        /// A question arrives at the member, and its answer is on its way.
        Arrive(prop::sample::Index),
        /// An answer arrives at the owner.
        Answer(prop::sample::Index),
        /// The member's process dies and another starts.
        Restart,
        /// Another owner requests to seal the member.
        Seal,
        /// The owner stops reading, and reports it; it may be the owner again, later and at another epoch.
        Stop,
        /// That arrives at the member.
        Release(prop::sample::Index),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let pass = prop_oneof![0..LENGTH / 10, LENGTH - 3000..LENGTH + 3000].prop_map(Step::Pass);
        let step = prop_oneof![
            4 => pass,
            3 => Just(Step::Ask),
            3 => any::<prop::sample::Index>().prop_map(Step::Arrive),
            3 => any::<prop::sample::Index>().prop_map(Step::Answer),
            1 => Just(Step::Restart),
            1 => Just(Step::Seal),
            1 => Just(Step::Stop),
            1 => any::<prop::sample::Index>().prop_map(Step::Release),
        ];
        prop::collection::vec(step, 1..60)
    }

    proptest! {
        // A member that another owner has sealed, and an owner that still reads: a read could miss the other's writes.
        #[test]
        fn no_owner_reads_under_a_lease_of_a_member_that_is_sealed(
            steps in steps(), fast_owner in any::<bool>(), phase in 0..1_000_000u64,
        ) {
            // One clock is as much faster than the other as may be, and neither began at zero.
            let fast = |real: u64| Moment(phase + real + real / (MOST_DRIFT + 1));
            let slow = |real: u64| Moment(7 + real);
            let at_owner = |real| if fast_owner { fast(real) } else { slow(real) };
            let at_member = |real| if fast_owner { slow(real) } else { fast(real) };
            let mut real = 0;
            let mut leases = Leases::new(LENGTH);
            let mut grants = Grants::of_new_process(LENGTH, at_member(real));
            // A process that has not started before has nothing to wait for.
            grants.before = at_member(real);
            let (mut asked, mut answers) = (Vec::new(), Vec::new());
            let (mut epoch, mut stopped) = (Epoch(1), Vec::new());
            let mut sealed = None;
            for step in steps {
                match step {
                    Step::Pass(ns) => real += ns,
                    Step::Ask => asked.push((at_owner(real), epoch)),
                    Step::Arrive(which) if !asked.is_empty() => {
                        let (question, of) = asked.remove(which.index(asked.len()));
                        if grants.grant(owner(1), of, at_member(real)) {
                            answers.push((question, of));
                        }
                    }
                    Step::Answer(which) if !answers.is_empty() => {
                        let (question, of) = answers.remove(which.index(answers.len()));
                        if of == epoch {
                            leases.granted(MEMBER, question);
                        }
                    }
                    Step::Stop => {
                        leases = Leases::new(LENGTH);
                        stopped.push(epoch);
                        epoch = Epoch(epoch.0 + 1);
                    }
                    Step::Release(which) if !stopped.is_empty() => {
                        // It may come more than once.
                        _ = grants.released(owner(1), stopped[which.index(stopped.len())], at_member(real));
                    }
                    Step::Restart => {
                        grants = Grants::of_new_process(LENGTH, at_member(real));
                        // The promise to be sealed is durable.
                        if sealed.is_some() {
                            grants.seal(owner(2));
                        }
                    }
                    Step::Seal => sealed = Some(sealed.unwrap_or(false)),
                    Step::Arrive(_) | Step::Answer(_) | Step::Release(_) => {}
                }
                if let Some(answered) = &mut sealed {
                    *answered |= grants.seal(owner(2)) <= at_member(real);
                    prop_assert!(!*answered || !leases.hold([&MEMBER], at_owner(real)));
                }
            }
        }
    }
}
