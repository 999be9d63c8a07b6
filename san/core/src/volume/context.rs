//! What all parts of a volume need: the record with a proposal that may be undecided, and what replicas and nodes have reported.

use std::collections::BTreeMap;

use super::silence::Silence;
use super::{Action, Times};
use crate::ids::{Epoch, NodeId, Owner, ProposalId, ReplicaId, VolumeId};
use crate::layout::GroupIndex;
use crate::lease::Moment;
use crate::message::Promise;
use crate::record::Record;
use crate::rule::{Rule, left_out};
use crate::swap::{Swap, WentBack};

/// What all parts of a volume need.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) me: Owner,
    pub(super) volume: VolumeId,
    pub(super) times: Times,
    pub(super) swap: Option<Swap>,
    /// The last epoch at which this process was the owner, which its messages carry. A record that makes another node
    /// the owner gives this process no right to send at that record's epoch.
    pub(super) mine: Epoch,
    /// Since when a proposal is undecided, and when it was last sent.
    pub(super) proposed: Option<(Moment, Moment)>,
    /// Since when that proposal delays writes.
    pub(super) stuck: Option<Moment>,
    /// When the record was last requested.
    pub(super) last_read: Option<Moment>,
    /// The highest epoch that a replica reported as promised.
    pub(super) promised: Epoch,
    /// The promise that each replica reported last.
    pub(super) reported: BTreeMap<ReplicaId, Promise>,
    pub(super) blocked: Option<WentBack>,
    /// Nodes whose processes have ended and that have accepted no connection since, so no request reaches them; and when that
    /// was found.
    pub(super) ended: BTreeMap<NodeId, Moment>,
    /// Per cent of what is in flight that are copies to returning replicas, at the least.
    pub(super) reserved: u32,
    /// The answers of nodes that were asked through the configuration store.
    pub(super) silence: Silence,
    /// The highest epoch that was known when a person decided: a lower one in the store is expected.
    pub(super) passed: Epoch,
    pub(super) sessions: u64,
    pub(super) proposals: u64,
    /// What the next random number is made from.
    pub(super) chance: u64,
}

impl Context {
    pub(super) fn record(&self) -> Option<&Record> {
        self.swap.as_ref().map(Swap::settled)
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.record().map_or(Epoch(0), |record| record.epoch)
    }

    pub(super) fn is_undecided(&self) -> bool {
        self.swap.as_ref().is_some_and(|swap| swap.undecided().is_some())
    }

    /// The id of the next proposal.
    pub(super) fn proposal(&mut self) -> ProposalId {
        self.proposals += 1;
        ProposalId { by: self.me, number: self.proposals }
    }

    pub(super) fn propose<D>(&mut self, now: Moment, record: Record, out: &mut Vec<Action<D>>) {
        let swap = self.swap.as_mut().expect("a record is made from another");
        swap.propose(record);
        self.proposed = Some((now, now));
        self.send_proposal(out);
    }

    pub(super) fn send_proposal<D>(&self, out: &mut Vec<Action<D>>) {
        let Some(swap) = &self.swap else { return };
        if let Some(record) = swap.undecided() {
            out.push(Action::Propose { record: Box::new(record.clone()), replaces: swap.settled().epoch });
        }
    }

    /// Requests the record, unless that was done a moment ago.
    pub(super) fn read_record<D>(&mut self, now: Moment, out: &mut Vec<Action<D>>) {
        if self.last_read.is_none_or(|then| now.since(then) >= self.times.resend_ns) {
            self.last_read = Some(now);
            // The store holds at least what made a replica promise: a takeover swaps first.
            out.push(Action::ReadRecord { asked_at: self.epoch().max(self.promised) });
        }
    }

    /// The least epoch that an answer of the configuration store must have, if this was known when the request was sent.
    pub(super) fn judged_by(&self, asked_at: Epoch) -> Epoch {
        if asked_at <= self.passed { Epoch(0) } else { asked_at }
    }

    /// The reason for a block, if a replica's promise was made in another history than the record's (rule R11). An undecided recovery
    /// by force goes above that promise, and continues.
    pub(super) fn forked(&self, replica: ReplicaId, promise: &Promise) -> Option<WentBack> {
        let swap = self.swap.as_ref()?;
        let owner = swap.settled().contradicts(replica, promise)?;
        swap.undecided().map_or(Some(owner), |proposed| proposed.contradicts(replica, promise))?;
        Some(WentBack::Forked { replica, follows: promise.owner, epoch: promise.epoch.0, owner })
    }

    /// Whether all promises that replicas have reported are of this record's history. A block does not end only because the epochs
    /// of another history have passed the promises (rule R11).
    pub(super) fn agrees(&self, record: &Record) -> bool {
        let agrees = |(replica, promise): (&ReplicaId, &Promise)| {
            promise.epoch <= record.epoch && record.contradicts(*replica, promise).is_none()
        };
        self.reported.iter().all(agrees) || left_out(Rule::R11)
    }

    /// A number below `limit`.
    pub(super) fn random(&mut self, limit: u64) -> u64 {
        // SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
        self.chance = self.chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.chance;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit.max(1)
    }

    /// The members of a group that must have a write.
    pub(super) fn required(&self, group: GroupIndex) -> Vec<ReplicaId> {
        let Some(swap) = &self.swap else { return Vec::new() };
        if left_out(Rule::P1Writes) {
            return swap.settled().groups[group.0 as usize].in_sync.iter().copied().collect();
        }
        swap.required(group).into_iter().collect()
    }
}
