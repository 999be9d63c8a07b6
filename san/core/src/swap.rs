//! Changing a volume's record when the store may answer late, or not at all (rules P1 and P2).
//!
//! ```text
//!            propose                    committed, or a record of ours is seen
//!   settled ────────▶ undecided ───────────────────────────────────────────────▶ settled on ours
//!                       │    ▲ │
//!                       └────┘ └──────────────────────────────────────────────▶ settled on theirs
//!       no answer, or the old record is seen: ask again      a higher record of another node
//! ```
//!
//! While it is undecided both records count: a member of either is needed for a write, and for a read.

use std::collections::BTreeSet;

use thiserror::Error;

use crate::ids::{Epoch, Owner, Promise, ProposalId, ReplicaId};
use crate::layout::GroupIndex;
use crate::record::Record;
use crate::rule::{Rule, left_out};

/// The answer of the configuration store to a compare-and-swap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The proposed record is the record now.
    Committed,
    /// The record was another one: this.
    Refused(Record),
}

/// The outcome of a proposal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The proposal is the record, or was.
    Committed,
    /// Another node's proposal is the record. A proposal of this process that has not committed never will, because it compares
    /// with an epoch that has passed.
    Superseded,
    /// The outcome is not known yet: propose it again.
    Undecided,
    /// There is no proposal, and the record that was read is not new.
    Settled,
}

/// The store does not hold what it held before: it was restored from an old copy, or is not a store. The volume is
/// blocked until a person decides.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum WentBack {
    /// A lower epoch than one that was seen.
    #[error("the store holds epoch {seen} of a volume that had reached epoch {known}: it went back in time")]
    Lower {
        /// The epoch that the store holds now.
        seen: u64,
        /// The epoch that was seen before.
        known: u64,
    },
    /// Another record of the same epoch.
    #[error("the store holds another record of epoch {0} than it held before: it went back in time")]
    Other(u64),
    /// A record in whose history another owner had the volume at an epoch that a replica promised to an owner (rule R11).
    #[error(
        "a copy, {replica}, follows {follows} at epoch {epoch}, and by the record that the store holds {owner} owned the volume \
         then: it went back in time"
    )]
    Forked {
        /// The replica that promised it.
        replica: ReplicaId,
        /// The owner that it follows.
        follows: Owner,
        /// At which epoch.
        epoch: u64,
        /// The owner at that epoch, by the record.
        owner: Owner,
    },
    /// A record of a later epoch that does not come from the one that was known (rule R11).
    #[error(
        "the store held epoch {known}, of {owner}, and the record that it holds now has {other} as the owner then: it went back in time, \
         and was changed since"
    )]
    Lineage {
        /// The epoch that was known.
        known: u64,
        /// The owner at that epoch, as it was known.
        owner: Owner,
        /// The owner by the record that the store holds.
        other: Owner,
    },
    /// A record that no swap makes.
    #[error("the store holds an impossible record: {0}")]
    Broken(String),
}

/// A volume's record, as one process has read and proposed it.
#[derive(Debug, Clone)]
pub struct Swap {
    settled: Record,
    proposed: Option<Record>,
}

impl Swap {
    /// Begins with a record that was read from the store.
    pub fn new(record: Record) -> Result<Swap, WentBack> {
        check(&record)?;
        Ok(Swap { settled: record, proposed: None })
    }

    /// Begins with the first record that a process sees, when it knew from others that the store had reached this epoch.
    pub fn first_seen(record: Record, asked_at: Epoch) -> Result<Swap, WentBack> {
        if record.epoch < asked_at {
            return Err(WentBack::Lower { seen: record.epoch.0, known: asked_at.0 });
        }
        Swap::new(record)
    }

    /// The last record that is known to have been committed.
    pub fn settled(&self) -> &Record {
        &self.settled
    }

    /// What is proposed, and may or may not be the record.
    pub fn undecided(&self) -> Option<&Record> {
        self.proposed.as_ref()
    }

    /// Proposes a record made from the settled one. It is to be sent to the store, to replace the settled one's epoch, and
    /// again, the very same, for as long as it is not known ([`Outcome::Undecided`]).
    ///
    /// # Panics
    /// If another is undecided (swaps of one volume are made one at a time), or it is of no higher epoch.
    pub fn propose(&mut self, record: Record) -> &Record {
        assert!(self.proposed.is_none(), "swaps of one volume are made one at a time");
        assert!(record.epoch > self.settled.epoch, "a swap goes to a higher epoch");
        assert_eq!(record.broken(), None);
        self.proposed.insert(record)
    }

    /// The store answered a proposal, this one or one of those before: answers may come late, and twice. `asked_at` is
    /// the epoch that was settled when it was sent.
    pub fn answered(
        &mut self,
        proposal: &ProposalId,
        answer: Answer,
        asked_at: Epoch,
    ) -> Result<Outcome, WentBack> {
        match answer {
            Answer::Refused(actual) => self.seen(actual, asked_at),
            Answer::Committed => match self.proposed.take_if(|record| record.made_by == *proposal) {
                Some(record) => {
                    self.settled = record;
                    Ok(Outcome::Committed)
                }
                // An answer about what was decided before.
                None => Ok(self.undecided_or_settled()),
            },
        }
    }

    /// A record was read from the store, or came as the reason of a refusal. `asked_at` is the epoch that was settled
    /// when the question was sent (0 for an unsolicited hint): an answer may be older than what became known since, but
    /// never older than what was known then.
    pub fn seen(&mut self, actual: Record, asked_at: Epoch) -> Result<Outcome, WentBack> {
        check(&actual)?;
        let known = &self.settled;
        if actual.epoch < asked_at {
            return Err(WentBack::Lower { seen: actual.epoch.0, known: asked_at.0 });
        }
        if actual.epoch < known.epoch {
            return Ok(self.undecided_or_settled());
        }
        if actual.epoch == known.epoch {
            // The old record proves nothing: a proposal may yet commit (rule P2).
            if left_out(Rule::P2) && actual == *known {
                self.proposed = None;
            }
            return match actual == *known {
                true => Ok(self.undecided_or_settled()),
                false => Err(WentBack::Other(actual.epoch.0)),
            };
        }
        if let Some(other) = self.no_ancestor_of(&actual) {
            return Err(WentBack::Lineage { known: self.settled.epoch.0, owner: self.settled.owner, other });
        }
        let ours = self.proposed.take();
        let committed = ours.is_some_and(|record| record.made_by == actual.made_by);
        self.settled = actual;
        Ok(if committed { Outcome::Committed } else { Outcome::Superseded })
    }

    /// The owner at the epoch of the settled record, by a record of a higher epoch that does not come from it (rule R11). A recovery by
    /// force may have made that record.
    pub fn no_ancestor_of(&self, record: &Record) -> Option<Owner> {
        let known = &self.settled;
        let decided = self.was_decided(record);
        let by = Promise { epoch: known.epoch, owner: known.owner };
        record
            .history
            .contradicts(&by)
            .filter(|_| record.epoch > known.epoch && !decided && !left_out(Rule::R11))
    }

    /// Whether a group was recovered by force since the settled record.
    pub fn was_decided(&self, record: &Record) -> bool {
        record.groups.iter().any(|group| group.recovered > self.settled.epoch)
    }

    fn undecided_or_settled(&self) -> Outcome {
        if self.proposed.is_some() { Outcome::Undecided } else { Outcome::Settled }
    }

    /// The replicas of a group that must have a write before it is acknowledged, and whose leases a read needs (P1).
    pub fn required(&self, group: GroupIndex) -> BTreeSet<ReplicaId> {
        let of = |record: &Record| record.groups.get(group.0 as usize).map(|g| g.in_sync.clone());
        let mut required = of(&self.settled).unwrap_or_default();
        required.extend(self.proposed.as_ref().and_then(of).unwrap_or_default());
        required
    }

    /// The replicas of a group that are members whatever becomes of the proposal: reads go to them.
    pub fn certain(&self, group: GroupIndex) -> BTreeSet<ReplicaId> {
        let of = |record: &Record| record.groups.get(group.0 as usize).map(|g| g.in_sync.clone());
        let mut certain = of(&self.settled).unwrap_or_default();
        if let Some(proposed) = self.proposed.as_ref().and_then(of) {
            certain.retain(|replica| proposed.contains(replica));
        }
        certain
    }
}

fn check(record: &Record) -> Result<(), WentBack> {
    record.broken().map_or(Ok(()), |what| Err(WentBack::Broken(what)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::History;
    use crate::ids::{Incarnation, NodeId, Owner, Position, Sequence};
    use crate::layout::Layout;
    use crate::record::{Departed, Group, RecordState};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn proposal(node: u32, number: u64) -> ProposalId {
        ProposalId { by: Owner { node: NodeId(node), incarnation: Incarnation(1) }, number }
    }

    fn set(replicas: &[u64]) -> BTreeSet<ReplicaId> {
        replicas.iter().map(|r| ReplicaId(*r)).collect()
    }

    fn homes(count: u64) -> BTreeMap<ReplicaId, NodeId> {
        (1..=count).map(|id| (ReplicaId(id), NodeId(id as u32))).collect()
    }

    fn record(replicas: &[u64]) -> Record {
        Record {
            epoch: Epoch(7),
            made_by: proposal(1, 0),
            owner: proposal(1, 0).by,
            state: RecordState::Active,
            attachment: 1,
            fence: 0,
            lease_ns: 1_000_000_000,
            blocks: 64,
            layout: Layout::new(1, 64, 64).unwrap(),
            least: 1,
            history: History::default(),
            homes: homes(4),
            groups: vec![Group { in_sync: set(replicas), ..Group::default() }],
        }
    }

    const HAD: Position = Position { ownership: Epoch(6), sequence: Sequence(40) };

    fn at(epoch: u64) -> Departed {
        Departed { epoch: Epoch(epoch), had: HAD }
    }

    const GROUP: GroupIndex = GroupIndex(0);
    const THEN: Epoch = Epoch(7);

    #[test]
    fn while_a_removal_is_undecided_the_one_to_be_removed_is_still_needed() {
        let mut swap = Swap::new(record(&[1, 2])).unwrap();
        let smaller = swap.settled().without(proposal(1, 1), &[(GROUP, ReplicaId(2), HAD)]).unwrap();
        swap.propose(smaller.clone());
        assert_eq!(swap.required(GROUP), set(&[1, 2]));
        assert_eq!(swap.seen(record(&[1, 2]), THEN), Ok(Outcome::Undecided), "the old record proves nothing");
        assert_eq!(swap.required(GROUP), set(&[1, 2]));
        assert_eq!(swap.answered(&proposal(1, 1), Answer::Committed, THEN), Ok(Outcome::Committed));
        assert_eq!(swap.required(GROUP), set(&[1]));
        assert_eq!(swap.settled().groups[0].departed, [(ReplicaId(2), at(8))].into());
    }

    #[test]
    fn while_an_addition_is_undecided_the_new_one_is_needed_already() {
        let mut old = record(&[1]);
        old.groups[0].departed.insert(ReplicaId(2), at(5));
        let mut swap = Swap::new(old).unwrap();
        let larger = swap.settled().with(proposal(1, 1), GROUP, ReplicaId(2), Epoch(0)).unwrap();
        swap.propose(larger.clone());
        assert_eq!(swap.required(GROUP), set(&[1, 2]));
        assert_eq!(swap.seen(larger, THEN), Ok(Outcome::Committed));
        assert_eq!(swap.settled().groups[0].departed, [].into());
    }

    #[test]
    fn a_refusal_may_be_ones_own_first_try() {
        let mut swap = Swap::new(record(&[1, 2])).unwrap();
        let smaller = swap.settled().without(proposal(1, 1), &[(GROUP, ReplicaId(2), HAD)]).unwrap();
        swap.propose(smaller.clone());
        let answer = Answer::Refused(smaller);
        assert_eq!(swap.answered(&proposal(1, 1), answer.clone(), THEN), Ok(Outcome::Committed));
        assert_eq!(swap.answered(&proposal(1, 1), answer, THEN), Ok(Outcome::Settled), "and again, late");
    }

    #[test]
    fn a_takeover_by_another_ends_a_proposal() {
        let mut swap = Swap::new(record(&[1, 2])).unwrap();
        let smaller = swap.settled().without(proposal(1, 1), &[(GROUP, ReplicaId(2), HAD)]).unwrap();
        let taken = swap.settled().taken_over(proposal(2, 9), true, false);
        swap.propose(smaller);
        assert_eq!(
            swap.answered(&proposal(1, 1), Answer::Refused(taken.clone()), THEN),
            Ok(Outcome::Superseded)
        );
        assert_eq!((swap.settled(), swap.undecided()), (&taken, None));
        assert_eq!(taken.attachment, 2);
    }

    #[test]
    fn a_fence_is_above_all_attachments_and_fences_before_it() {
        let mut known = record(&[1, 2]);
        let (mut fence, mut number) = (known.fence, 0);
        // Another node takes it over for no client; then an attach is ordered there; clients come; and so on.
        for (node, attached, fences) in [
            (2, false, false),
            (2, true, true),
            (2, true, false),
            (3, false, false),
            (3, false, true),
            (1, true, false),
        ] {
            number += 1;
            let next = known.taken_over(proposal(node, number), attached, fences);
            let rises = fences || next.owner.node != known.owner.node;
            assert_eq!(next.fence > fence, rises, "{number}");
            assert!(!rises || next.fence > known.attachment, "what was attached before is below it");
            assert!(!attached || next.attachment >= next.fence && next.attachment > known.attachment);
            let came = next.attached(proposal(node, number + 100));
            assert!(came.attachment >= came.fence && came.attachment > next.attachment);
            (fence, known) = (next.fence, if number % 2 == 0 { came } else { next });
        }
    }

    #[test]
    fn a_takeover_keeps_the_epochs_of_those_that_left_before() {
        let mut old = record(&[1, 2, 3]);
        old.groups[0].departed.insert(ReplicaId(4), at(3));
        let taken = old.taken_over(proposal(2, 1), false, false);
        let active = taken.activated(proposal(2, 2), &[set(&[2, 3])], &[HAD]).unwrap();
        assert_eq!(active.groups[0].departed, [(ReplicaId(1), at(9)), (ReplicaId(4), at(3))].into());
        assert_eq!(active.groups[0].in_sync, set(&[2, 3]));
        let empty = taken.activated(proposal(2, 2), &[set(&[])], &[HAD]);
        assert!(empty.unwrap_err().to_string().contains("never removed"));
    }

    #[test]
    fn the_last_member_is_never_removed() {
        let gone = [(GROUP, ReplicaId(1), HAD), (GROUP, ReplicaId(2), HAD)];
        let error = record(&[1, 2]).without(proposal(1, 1), &gone).unwrap_err();
        assert_eq!(error, crate::record::RecordError::LastMember(ReplicaId(2), 0));
    }

    #[test]
    fn a_store_that_went_back_in_time_is_noticed_and_changes_nothing() {
        let mut swap = Swap::new(record(&[1, 2])).unwrap();
        let older = Record { epoch: Epoch(6), ..record(&[1, 2]) };
        assert_eq!(swap.seen(older, THEN), Err(WentBack::Lower { seen: 6, known: 7 }));
        assert_eq!(swap.seen(record(&[1]), THEN), Err(WentBack::Other(7)));
        let broken = Record { epoch: Epoch(8), ..record(&[]) };
        assert!(matches!(swap.seen(broken, THEN), Err(WentBack::Broken(_))));
        assert_eq!(swap.settled(), &record(&[1, 2]));
    }

    #[test]
    fn an_answer_that_was_overtaken_is_no_store_that_went_back() {
        let mut swap = Swap::new(record(&[1, 2])).unwrap();
        let taken = swap.settled().taken_over(proposal(2, 1), false, false);
        assert_eq!(swap.seen(taken.clone(), THEN), Ok(Outcome::Superseded));
        assert_eq!(swap.seen(record(&[1, 2]), THEN), Ok(Outcome::Settled), "it was asked before");
        let back = swap.seen(record(&[1, 2]), taken.epoch);
        assert_eq!(back, Err(WentBack::Lower { seen: 7, known: 8 }));
    }

    #[derive(Debug, Clone, Copy)]
    enum Event {
        /// A process proposes, if it can; its request goes on its way.
        Propose(usize),
        /// A request on its way arrives at the store.
        Arrive(prop::sample::Index),
        /// An answer on its way arrives, and may arrive again.
        Answer(prop::sample::Index, bool),
        /// A process sends again a request without an answer.
        Again(usize),
        /// The store answers a process that has read the record.
        Read(usize),
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let event = prop_oneof![
            (0..2usize).prop_map(Event::Propose),
            any::<prop::sample::Index>().prop_map(Event::Arrive),
            (any::<prop::sample::Index>(), any::<bool>()).prop_map(|(i, again)| Event::Answer(i, again)),
            (0..2usize).prop_map(Event::Again),
            (0..2usize).prop_map(Event::Read),
        ];
        prop::collection::vec(event, 1..80)
    }

    proptest! {
        // Requests and answers that arrive late, twice, in any order, or never.
        #[test]
        fn no_process_ever_believes_in_a_record_that_was_not_committed(events in events()) {
            let first = record(&[1, 2, 3]);
            let mut history = vec![first.clone()];
            let mut processes: Vec<Swap> = (0..2).map(|_| Swap::new(first.clone()).unwrap()).collect();
            let mut requests: Vec<(usize, Epoch, Record)> = Vec::new();
            let mut answers: Vec<(usize, Epoch, Option<ProposalId>, Answer)> = Vec::new();
            let mut number = 0;
            for event in events {
                match event {
                    Event::Propose(at) if processes[at].undecided().is_none() => {
                        number += 1;
                        let old = processes[at].settled().clone();
                        let new = old.taken_over(proposal(at as u32 + 1, number), false, false);
                        processes[at].propose(new.clone());
                        requests.push((at, old.epoch, new));
                    }
                    Event::Again(at) => {
                        if let Some(new) = processes[at].undecided().cloned() {
                            requests.push((at, processes[at].settled().epoch, new));
                        }
                    }
                    Event::Arrive(which) if !requests.is_empty() => {
                        let (at, expected, new) = requests.remove(which.index(requests.len()));
                        let now = history.last().unwrap().clone();
                        let made_by = Some(new.made_by);
                        if now.epoch == expected {
                            history.push(new);
                            answers.push((at, expected, made_by, Answer::Committed));
                        } else {
                            answers.push((at, expected, made_by, Answer::Refused(now)));
                        }
                    }
                    Event::Read(at) => {
                        let now = history.last().unwrap().clone();
                        answers.push((at, processes[at].settled().epoch, None, Answer::Refused(now)));
                    }
                    Event::Answer(which, again) if !answers.is_empty() => {
                        let index = which.index(answers.len());
                        let (at, asked_at, made_by, answer) = answers[index].clone();
                        if !again {
                            answers.remove(index);
                        }
                        let outcome = match (made_by, answer) {
                            (Some(made_by), answer) => processes[at].answered(&made_by, answer, asked_at),
                            (None, Answer::Refused(now)) => processes[at].seen(now, asked_at),
                            (None, Answer::Committed) => unreachable!("a read proposes nothing"),
                        };
                        prop_assert!(outcome.is_ok(), "this store never goes back: {:?}", outcome);
                    }
                    Event::Propose(_) | Event::Arrive(_) | Event::Answer(..) => {}
                }
                for (node, swap) in (1..).zip(&processes) {
                    let settled = swap.settled();
                    prop_assert!(history.contains(settled), "it believes in a record that never was");
                    let now = history.last().unwrap();
                    // If no other process changed it since, the record is one of the two that this process expects.
                    let theirs = |r: &Record| r.epoch > settled.epoch && r.made_by.by.node != NodeId(node);
                    let others = history.iter().any(theirs);
                    prop_assert!(others || now == settled || swap.undecided() == Some(now));
                }
            }
        }
    }
}
