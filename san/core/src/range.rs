//! What overlaps what: a request waits for every earlier one that overlaps it, unless both only read (rule W1 of
//! `docs/explanation/san-rules.md`).
//!
//! A request runs exactly when no earlier one that is still here conflicts with it. So requests to the same blocks run
//! in the order in which they came, and none waits for ever on a stream of others.
//!
//! Most requests overlap nothing. A small table counts, for each part of the volume, the requests here that touch it; where
//! it counts none the answer needs no search. Nothing is allocated but room for more requests at once than ever before.

use std::ops::Range;

/// Which request: the caller's number for it, small, used again after [`Exclusion::leave`].
pub type Slot = u32;

/// Whether requests to the same blocks disturb each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Any number at once.
    Shared,
    /// No other request at the same time.
    Exclusive,
}

/// Blocks that are counted together.
const PART: u64 = 8;
/// Counters; parts of the volume share them. With a thousand requests here, one in sixteen searches in vain.
const COUNTERS: usize = 1 << 14;
/// A request that touches more parts is not counted; while one is here, every request searches.
const MOST_PARTS: u64 = 64;
/// No request.
const NONE: Slot = Slot::MAX;

/// The requests that are here, running or waiting.
#[derive(Debug)]
pub struct Exclusion {
    requests: Vec<Request>,
    newest: Slot,
    counters: Vec<u32>,
    /// Requests that are not in the counters.
    wide: usize,
}

#[derive(Debug, Clone)]
struct Request {
    blocks: Range<u64>,
    access: Access,
    here: bool,
    /// In the order of coming.
    older: Slot,
    newer: Slot,
    /// Those that wait for this one, and the next that waits for the same as this one.
    first_waiter: Slot,
    last_waiter: Slot,
    next_waiter: Slot,
}

impl Request {
    /// An empty slot.
    const fn none() -> Request {
        Request {
            blocks: 0..0,
            access: Access::Shared,
            here: false,
            older: NONE,
            newer: NONE,
            first_waiter: NONE,
            last_waiter: NONE,
            next_waiter: NONE,
        }
    }

    fn conflicts(&self, blocks: &Range<u64>, access: Access) -> bool {
        let both_read = self.access == Access::Shared && access == Access::Shared;
        !both_read && self.blocks.start < blocks.end && blocks.start < self.blocks.end
    }
}

impl Default for Exclusion {
    fn default() -> Self {
        Exclusion { requests: Vec::new(), newest: NONE, counters: vec![0; COUNTERS], wide: 0 }
    }
}

impl Exclusion {
    /// A request comes. Whether it may run now; if not, a later [`leave`](Self::leave) names it.
    ///
    /// # Panics
    /// If its slot is taken already, or it touches no block.
    pub fn enter(&mut self, slot: Slot, blocks: Range<u64>, access: Access) -> bool {
        assert!(blocks.start < blocks.end, "a request touches blocks");
        if self.requests.len() <= slot as usize {
            self.requests.resize(slot as usize + 1, Request::none());
        }
        assert!(!self.requests[slot as usize].here, "slot {slot} is taken");
        let blocker =
            if self.may_overlap(&blocks) { self.conflict(self.newest, &blocks, access) } else { NONE };
        self.count(&blocks, true);
        let older = std::mem::replace(&mut self.newest, slot);
        self.requests[slot as usize] = Request { blocks, access, here: true, older, ..Request::none() };
        if older != NONE {
            self.requests[older as usize].newer = slot;
        }
        self.wait(slot, blocker);
        blocker == NONE
    }

    /// A request goes. Those that may run now are added to `ready`; they do not conflict with each other.
    ///
    /// # Panics
    /// If there is none in this slot.
    pub fn leave(&mut self, slot: Slot, ready: &mut Vec<Slot>) {
        let gone = std::mem::replace(&mut self.requests[slot as usize], Request::none());
        assert!(gone.here, "slot {slot} is empty");
        self.count(&gone.blocks, false);
        if gone.older != NONE {
            self.requests[gone.older as usize].newer = gone.newer;
        }
        match gone.newer {
            NONE => self.newest = gone.older,
            newer => self.requests[newer as usize].older = gone.older,
        }
        let mut waiter = gone.first_waiter;
        while waiter != NONE {
            let request = &mut self.requests[waiter as usize];
            let next = std::mem::replace(&mut request.next_waiter, NONE);
            let (older, blocks, access) = (request.older, request.blocks.clone(), request.access);
            let blocker = self.conflict(older, &blocks, access);
            self.wait(waiter, blocker);
            if blocker == NONE {
                ready.push(waiter);
            }
            waiter = next;
        }
    }

    /// Whether no request is here.
    pub fn is_empty(&self) -> bool {
        self.newest == NONE
    }

    /// The newest request, from this one back, that conflicts.
    fn conflict(&self, mut from: Slot, blocks: &Range<u64>, access: Access) -> Slot {
        while from != NONE {
            let request = &self.requests[from as usize];
            if request.conflicts(blocks, access) {
                break;
            }
            from = request.older;
        }
        from
    }

    fn wait(&mut self, slot: Slot, blocker: Slot) {
        if blocker == NONE {
            return;
        }
        let blocking = &mut self.requests[blocker as usize];
        match std::mem::replace(&mut blocking.last_waiter, slot) {
            NONE => blocking.first_waiter = slot,
            last => self.requests[last as usize].next_waiter = slot,
        }
    }

    fn may_overlap(&self, blocks: &Range<u64>) -> bool {
        self.wide > 0
            || is_wide(blocks) && self.newest != NONE
            || counters(blocks).any(|counter| self.counters[counter] > 0)
    }

    fn count(&mut self, blocks: &Range<u64>, comes: bool) {
        let change = |n: &mut u32| *n = if comes { *n + 1 } else { *n - 1 };
        if is_wide(blocks) {
            self.wide = if comes { self.wide + 1 } else { self.wide - 1 };
        } else {
            counters(blocks).for_each(|counter| change(&mut self.counters[counter]));
        }
    }
}

fn parts(blocks: &Range<u64>) -> Range<u64> {
    blocks.start / PART..(blocks.end - 1) / PART + 1
}

fn is_wide(blocks: &Range<u64>) -> bool {
    let parts = parts(blocks);
    parts.end - parts.start > MOST_PARTS
}

/// The counters of a request that is not wide. Two parts of one request have two counters, since they are neighbours.
fn counters(blocks: &Range<u64>) -> impl Iterator<Item = usize> + use<> {
    let parts = parts(blocks);
    let end = parts.end.min(parts.start + MOST_PARTS);
    (parts.start..end).map(|part| (part % COUNTERS as u64) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn reads_run_together_and_a_write_waits_for_all_of_them() {
        let mut exclusion = Exclusion::default();
        let mut ready = Vec::new();
        assert!(exclusion.enter(0, 0..8, Access::Shared));
        assert!(exclusion.enter(1, 4..12, Access::Shared));
        assert!(!exclusion.enter(2, 7..8, Access::Exclusive));
        assert!(!exclusion.enter(3, 0..8, Access::Shared), "it came after the write");
        assert!(exclusion.enter(4, 12..13, Access::Exclusive), "it touches none of them");
        exclusion.leave(1, &mut ready);
        assert_eq!(ready, [], "the other read is still here");
        exclusion.leave(0, &mut ready);
        assert_eq!(ready, [2]);
        exclusion.leave(2, &mut ready);
        assert_eq!(ready, [2, 3]);
    }

    #[test]
    fn a_request_over_the_whole_volume_waits_for_all_and_stops_all() {
        let mut exclusion = Exclusion::default();
        let mut ready = Vec::new();
        assert!(exclusion.enter(0, 1_000_000..1_000_001, Access::Exclusive));
        assert!(!exclusion.enter(1, 0..1 << 40, Access::Exclusive));
        assert!(!exclusion.enter(2, 5..6, Access::Shared));
        exclusion.leave(0, &mut ready);
        exclusion.leave(1, &mut ready);
        exclusion.leave(2, &mut ready);
        assert_eq!(ready, [1, 2]);
        assert!(exclusion.is_empty());
        assert!(exclusion.counters.iter().all(|n| *n == 0), "nothing is counted when no request is here");
    }

    /// What each step does: a request of some blocks, or the end of one that runs.
    #[derive(Debug, Clone)]
    enum Step {
        Enter { start: u64, length: u64, shared: bool },
        Leave(prop::sample::Index),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        // Few places, so that they meet; some far apart share a counter; some are wide.
        let start = prop_oneof![0..40u64, (0..3u64).prop_map(|n| n * PART * COUNTERS as u64)];
        let length = prop_oneof![8 => 1..20u64, 1 => Just(PART * (MOST_PARTS + 2))];
        let enter = (start, length, any::<bool>()).prop_map(|(start, length, shared)| Step::Enter {
            start,
            length,
            shared,
        });
        prop::collection::vec(prop_oneof![enter, any::<prop::sample::Index>().prop_map(Step::Leave)], 1..200)
    }

    proptest! {
        #[test]
        fn a_request_runs_exactly_when_no_earlier_one_conflicts(steps in steps()) {
            let mut exclusion = Exclusion::default();
            // By order of coming: slot, blocks, access, running.
            let mut here: BTreeMap<u64, (Slot, Range<u64>, Access, bool)> = BTreeMap::new();
            let mut free: Vec<Slot> = (0..200).collect();
            for (number, step) in (0..).zip(steps) {
                match step {
                    Step::Enter { start, length, shared } => {
                        let (slot, blocks) = (free.pop().unwrap(), start..start + length);
                        let access = if shared { Access::Shared } else { Access::Exclusive };
                        let running = exclusion.enter(slot, blocks.clone(), access);
                        here.insert(number, (slot, blocks, access, running));
                    }
                    Step::Leave(which) => {
                        let running: Vec<u64> = here.iter().filter(|(_, r)| r.3).map(|(n, _)| *n).collect();
                        if running.is_empty() {
                            continue;
                        }
                        let (slot, ..) = here.remove(which.get(&running)).unwrap();
                        free.push(slot);
                        let mut ready = Vec::new();
                        exclusion.leave(slot, &mut ready);
                        for slot in ready {
                            let request = here.values_mut().find(|r| r.0 == slot).unwrap();
                            prop_assert!(!request.3, "told once");
                            request.3 = true;
                        }
                    }
                }
                for (number, (slot, blocks, access, running)) in &here {
                    let blocked = here.range(..number).any(|(_, (_, other, their, _))| {
                        let both_read = *access == Access::Shared && *their == Access::Shared;
                        !both_read && other.start < blocks.end && blocks.start < other.end
                    });
                    prop_assert_eq!(*running, !blocked, "slot {}", slot);
                }
            }
        }
    }
}
