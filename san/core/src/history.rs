//! The owners of a volume, and since which epoch: what a replica's promise is compared with (rule R11).
//!
//! A replica promises an epoch to an owner only after the swap by which that owner claimed the volume has committed. Claims are
//! swaps, so they are totally ordered, and in the history of one configuration store the last claim at or below the epoch of a
//! promise is the claim of the owner that the promise names. If the store went back to an older record and another node claimed the
//! volume from there, two histories exist, and their epochs cannot be compared; the owners can.
//!
//! ```text
//!                 ┌─ 65: a ── 66: c departs        a and b promised (66, a)
//!  … ── 64: c ────┤
//!                 └─ 65: c ── 66 ── 67 ── 68       by this history c owned the volume at epoch 66
//! ```

use std::sync::Arc;

use crate::ids::{Epoch, Incarnation, Owner, Promise};

/// The most claims that a history keeps.
pub const MOST_CLAIMS: usize = 64;

/// A node, and the epoch of the swap by which it claimed the volume. Of a history that is full, what lives of one process claimed one
/// after the other may be one claim: a process that ends again and again leaves the claims of others known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// The epoch of the first swap of its first takeover, or of a recovery by force.
    pub epoch: Epoch,
    /// The life of the node's process that claimed the volume first.
    pub first: Incarnation,
    /// The node, and the life of its process that claimed the volume last.
    pub owner: Owner,
}

impl Claim {
    /// The claim of one life of a process.
    pub fn of(epoch: Epoch, owner: Owner) -> Claim {
        Claim { epoch, first: owner.incarnation, owner }
    }

    fn is_of(&self, owner: Owner) -> bool {
        owner.node == self.owner.node && (self.first..=self.owner.incarnation).contains(&owner.incarnation)
    }
}

/// The last claims of a volume, at most [`MOST_CLAIMS`], in rising order of their epochs. It has no claim for epochs below the
/// first of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct History {
    /// Shared: a copy goes with each greeting.
    claims: Arc<[Claim]>,
}

impl History {
    /// A history of these claims. `None` if there are more than [`MOST_CLAIMS`], their epochs do not rise, or a claim's lives do not.
    pub fn of(claims: Vec<Claim>) -> Option<History> {
        let rises = claims.is_sorted_by(|one, next| one.epoch < next.epoch);
        let lives = claims.iter().all(|claim| claim.first <= claim.owner.incarnation);
        (rises && lives && claims.len() <= MOST_CLAIMS).then(|| History { claims: claims.into() })
    }

    /// The claims, in rising order of their epochs.
    pub fn claims(&self) -> &[Claim] {
        &self.claims
    }

    /// An owner claims the volume. If the last claim is its own already, nothing is added: that claim continues. If there are too many, the
    /// two oldest neighbours of one node become one claim; if there are none, the oldest claim is dropped.
    ///
    /// # Panics
    /// If a claim of this epoch or a higher one is there already.
    pub fn claim(&mut self, epoch: Epoch, owner: Owner) {
        let last = self.claims.last();
        assert!(last.is_none_or(|last| last.epoch < epoch), "a claim is a swap to a higher epoch");
        if last.is_none_or(|last| last.owner != owner) {
            self.add(Claim::of(epoch, owner));
        }
    }

    /// An owner claims the volume by a recovery by force: this claim is always added, so that [`History::since`] finds it.
    ///
    /// # Panics
    /// If a claim of this epoch or a higher one is there already.
    pub fn recovered(&mut self, epoch: Epoch, owner: Owner) {
        assert!(
            self.claims.last().is_none_or(|last| last.epoch < epoch),
            "a claim is a swap to a higher epoch"
        );
        self.add(Claim::of(epoch, owner));
    }

    fn add(&mut self, claim: Claim) {
        let mut claims: Vec<Claim> = self.claims.iter().copied().chain([claim]).collect();
        if claims.len() > MOST_CLAIMS {
            // As long as there is room each life is known: two histories may differ in nothing else.
            let follows = |pair: &[Claim]| {
                pair[0].owner.node == pair[1].owner.node && pair[0].owner.incarnation <= pair[1].first
            };
            match claims[..MOST_CLAIMS].windows(2).position(follows) {
                Some(at) => {
                    let later = claims.remove(at + 1);
                    claims[at].owner = later.owner;
                }
                None => _ = claims.remove(0),
            }
        }
        self.claims = claims.into();
    }

    /// The same history without the claims below an epoch.
    pub fn since(&self, epoch: Epoch) -> History {
        match self.claims.partition_point(|claim| claim.epoch < epoch) {
            0 => self.clone(),
            first => History { claims: self.claims[first..].into() },
        }
    }

    /// The last owner of the claim that covers the epoch of a promise, if that is known and the promise names none of its owners. Then the
    /// promise was made in another history. A promise above the epoch of the record that this history is of must be judged by
    /// that epoch first: what it was made of may be still unknown here.
    pub fn contradicts(&self, promise: &Promise) -> Option<Owner> {
        let covers = self.claims.iter().rev().find(|claim| claim.epoch <= promise.epoch);
        covers.filter(|claim| !claim.is_of(promise.owner)).map(|claim| claim.owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::NodeId;

    fn owner(node: u32) -> Owner {
        Owner { node: NodeId(node), incarnation: Incarnation(1) }
    }

    fn promise(epoch: u64, node: u32) -> Promise {
        Promise { epoch: Epoch(epoch), owner: owner(node) }
    }

    fn history(claims: &[(u64, u32)]) -> History {
        let claims = claims.iter().map(|(epoch, node)| Claim::of(Epoch(*epoch), owner(*node)));
        History::of(claims.collect()).unwrap()
    }

    #[test]
    fn a_promise_agrees_with_the_last_claim_at_or_below_its_epoch() {
        let history = history(&[(60, 3), (65, 1), (70, 2)]);
        for (epoch, node) in [(60, 3), (64, 3), (65, 1), (69, 1), (70, 2), (99, 2)] {
            assert_eq!(history.contradicts(&promise(epoch, node)), None, "{epoch} {node}");
        }
        assert_eq!(history.contradicts(&promise(65, 3)), Some(owner(1)));
        assert_eq!(history.contradicts(&promise(66, 3)), Some(owner(1)));
        assert_eq!(history.contradicts(&promise(64, 1)), Some(owner(3)));
    }

    #[test]
    fn another_life_of_the_same_process_is_another_owner() {
        let mut history = history(&[(65, 1)]);
        let later = Owner { incarnation: Incarnation(2), ..owner(1) };
        assert_eq!(history.contradicts(&Promise { epoch: Epoch(66), owner: later }), Some(owner(1)));
        history.claim(Epoch(67), later);
        assert_eq!(history.contradicts(&Promise { epoch: Epoch(68), owner: later }), None);
        assert_eq!(history.contradicts(&promise(68, 1)), Some(later));
    }

    #[test]
    fn lives_of_one_node_become_one_claim_before_a_claim_is_dropped() {
        let life = |life: u64| Owner { incarnation: Incarnation(life), ..owner(1) };
        let mut history = history(&[(60, 3)]);
        (0..200).for_each(|more| history.claim(Epoch(65 + more), life(5 + more)));
        assert_eq!(history.claims().len(), MOST_CLAIMS);
        assert_eq!(history.contradicts(&promise(64, 1)), Some(owner(3)));
        let of = |epoch: u64, of: u64| history.contradicts(&Promise { epoch: Epoch(epoch), owner: life(of) });
        assert_eq!((of(65, 5), of(70, 7), of(264, 204)), (None, None, None));
        assert!(of(66, 4).is_some() && of(66, 205).is_some());
        assert!(of(264, 203).is_some(), "the newest are known one by one");
    }

    #[test]
    fn nothing_is_known_of_epochs_below_the_first_claim() {
        assert_eq!(History::default().contradicts(&promise(5, 1)), None);
        let history = history(&[(60, 3), (65, 1)]);
        assert_eq!(history.contradicts(&promise(59, 2)), None);
        assert_eq!(history.since(Epoch(61)).contradicts(&promise(64, 2)), None);
        assert_eq!(history.since(Epoch(65)).contradicts(&promise(65, 2)), Some(owner(1)));
    }

    #[test]
    fn the_oldest_claims_are_dropped() {
        let mut history = History::default();
        for epoch in 1..=200 {
            history.claim(Epoch(epoch), owner(epoch as u32));
        }
        assert_eq!(history.claims().len(), MOST_CLAIMS);
        let oldest = 201 - MOST_CLAIMS as u64;
        assert_eq!(history.contradicts(&promise(oldest - 1, 7)), None);
        assert_eq!(history.contradicts(&promise(oldest, 7)), Some(owner(oldest as u32)));
    }

    #[test]
    fn an_owner_that_claims_again_leaves_the_claims_of_others_known() {
        let mut history = history(&[(60, 3)]);
        (65..200).for_each(|epoch| history.claim(Epoch(epoch), owner(1)));
        assert_eq!(history.claims().len(), 2);
        assert_eq!(history.contradicts(&promise(64, 1)), Some(owner(3)));
        assert_eq!(history.contradicts(&promise(150, 1)), None);
        history.recovered(Epoch(300), owner(1));
        assert_eq!(history.since(Epoch(300)).contradicts(&promise(301, 2)), Some(owner(1)));
        assert_eq!(history.since(Epoch(300)).contradicts(&promise(299, 2)), None);
    }

    #[test]
    fn claims_that_do_not_rise_or_are_too_many_are_no_history() {
        let claim = |epoch| Claim::of(Epoch(epoch), owner(1));
        assert_eq!(History::of(vec![claim(2), claim(2)]), None);
        assert_eq!(History::of(vec![Claim { first: Incarnation(2), ..claim(2) }]), None);
        let most = MOST_CLAIMS as u64;
        assert_eq!(History::of((0..=most).map(claim).collect()), None);
        assert!(History::of((0..most).map(claim).collect()).is_some());
    }
}
