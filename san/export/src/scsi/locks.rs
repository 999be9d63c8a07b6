//! Blocks that a task has for itself while others wait: what makes COMPARE AND WRITE atomic.
//!
//! A task that writes shares its blocks with others that write; a task that compares and writes has them alone. Who comes first goes
//! first: a task waits for each earlier one that overlaps it, if one of the two is alone.

use std::ops::Range;

use super::about::NexusId;

/// A lock that was entered. No other ever has the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LockId(u64);

/// How a lock has its blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sharing {
    /// With others that share.
    Shared,
    /// No other has them.
    Alone,
}

/// Who is to be resumed once a lock is held.
pub(super) type Owner = (NexusId, u32);

#[derive(Debug)]
struct Lock {
    id: LockId,
    blocks: Range<u64>,
    sharing: Sharing,
    owner: Owner,
    is_held: bool,
}

/// All locks of a unit.
#[derive(Debug, Default)]
pub(super) struct Locks {
    /// In the order in which they came.
    locks: Vec<Lock>,
    /// Those of them that are alone.
    alone: usize,
    next: u64,
}

impl Lock {
    fn excludes(&self, other: &Lock) -> bool {
        let overlaps = self.blocks.start < other.blocks.end && other.blocks.start < self.blocks.end;
        overlaps && (self.sharing == Sharing::Alone || other.sharing == Sharing::Alone)
    }
}

impl Locks {
    /// Enters a lock. Whether it is held at once: otherwise [`leave`](Self::leave) of another one returns its owner when it is.
    pub(super) fn enter(&mut self, blocks: Range<u64>, sharing: Sharing, owner: Owner) -> (LockId, bool) {
        self.next += 1;
        self.alone += usize::from(sharing == Sharing::Alone);
        let mut lock = Lock { id: LockId(self.next), blocks, sharing, owner, is_held: true };
        if self.alone > 0 {
            lock.is_held = !self.locks.iter().any(|earlier| earlier.excludes(&lock));
        }
        let entered = (lock.id, lock.is_held);
        self.locks.push(lock);
        entered
    }

    /// A lock ends, or is not waited for any more. Adds the owners of those that are held from now on.
    pub(super) fn leave(&mut self, id: LockId, freed: &mut Vec<Owner>) {
        let Ok(index) = self.locks.binary_search_by_key(&id, |lock| lock.id) else { return };
        let left = self.locks.remove(index);
        if self.alone == 0 {
            return;
        }
        self.alone -= usize::from(left.sharing == Sharing::Alone);
        for waiting in index..self.locks.len() {
            let (earlier, rest) = self.locks.split_at_mut(waiting);
            let lock = &mut rest[0];
            if !lock.is_held && left.excludes(lock) && !earlier.iter().any(|earlier| earlier.excludes(lock)) {
                lock.is_held = true;
                freed.push(lock.owner);
            }
        }
    }

    /// All locks of a nexus end.
    pub(super) fn leave_all(&mut self, nexus: NexusId, freed: &mut Vec<Owner>) {
        let of = |lock: &&Lock| lock.owner.0 == nexus;
        while let Some(id) = self.locks.iter().find(of).map(|lock| lock.id) {
            self.leave(id, freed);
        }
        freed.retain(|(owner, _)| *owner != nexus);
    }

    /// Whether there is none.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.locks.is_empty() && self.alone == 0
    }
}

#[cfg(test)]
mod tests {
    use super::Sharing::{Alone, Shared};
    use super::*;
    use crate::scsi::testing::{Random, nexus};

    #[test]
    fn one_that_is_alone_waits_for_all_before_it_and_later_ones_wait_for_it() {
        let mut locks = Locks::default();
        let (first, held) = locks.enter(0..8, Shared, (nexus(1), 1));
        assert!(held);
        let (second, held) = locks.enter(4..5, Shared, (nexus(1), 2));
        assert!(held);
        let (alone, held) = locks.enter(4..5, Alone, (nexus(2), 3));
        assert!(!held);
        let (later, held) = locks.enter(4..6, Shared, (nexus(1), 4));
        assert!(!held, "otherwise writes could keep it waiting for ever");
        assert!(locks.enter(8..9, Shared, (nexus(1), 5)).1, "it overlaps none");
        let mut freed = Vec::new();
        locks.leave(first, &mut freed);
        assert!(freed.is_empty());
        locks.leave(second, &mut freed);
        assert_eq!(std::mem::take(&mut freed), [(nexus(2), 3)]);
        locks.leave(alone, &mut freed);
        assert_eq!(freed, [(nexus(1), 4)]);
        locks.leave(later, &mut freed);
        locks.leave(later, &mut freed);
        assert_eq!(locks.locks.len(), 1);
    }

    #[test]
    fn locks_that_exclude_each_other_are_never_held_at_once_and_all_are_held_in_the_end() {
        let seed = Random::any_seed();
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let mut locks = Locks::default();
        let mut waiting = std::collections::BTreeSet::new();
        for round in 0..5000 {
            if random.below(5) < 3 && round < 4000 {
                let start = random.below(20);
                let sharing = if random.below(2) == 0 { Alone } else { Shared };
                let blocks = start..start + 1 + random.below(6);
                let (id, held) = locks.enter(blocks, sharing, (nexus(1), round as u32));
                if !held {
                    waiting.insert((id, round as u32));
                }
            } else if !locks.locks.is_empty() {
                let index = random.below(locks.locks.len() as u64) as usize;
                // Mostly one that is held; now and then one that gives up waiting.
                let lock = &locks.locks[index];
                if lock.is_held || random.below(8) == 0 {
                    let id = lock.id;
                    waiting.retain(|(waits, _)| *waits != id);
                    let mut freed = Vec::new();
                    locks.leave(id, &mut freed);
                    for (_, ticket) in freed {
                        waiting.retain(|(_, waits)| *waits != ticket);
                    }
                }
            }
            let held: Vec<&Lock> = locks.locks.iter().filter(|lock| lock.is_held).collect();
            for (index, lock) in held.iter().enumerate() {
                assert!(held[index + 1..].iter().all(|other| !lock.excludes(other)), "round {round}");
            }
            assert_eq!(
                locks.locks.iter().filter(|lock| !lock.is_held).count(),
                waiting.len(),
                "round {round}"
            );
        }
        while let Some(lock) = locks.locks.iter().find(|lock| lock.is_held) {
            let id = lock.id;
            locks.leave(id, &mut Vec::new());
        }
        assert!(locks.is_empty(), "one waits for ever");
    }
}
