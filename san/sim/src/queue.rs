//! What is to happen, in the order of simulated time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::time::Time;

/// A queue of what is to happen. Of two things at the same moment, the one that was added first happens first.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    /// When, the number of the addition, and the place in `items`.
    order: BinaryHeap<Reverse<(Time, u64, usize)>>,
    items: Vec<Option<T>>,
    free: Vec<usize>,
    added: u64,
}

impl<T> Default for Queue<T> {
    fn default() -> Queue<T> {
        Queue { order: BinaryHeap::new(), items: Vec::new(), free: Vec::new(), added: 0 }
    }
}

impl<T> Queue<T> {
    /// Adds what happens at this moment.
    pub(crate) fn add(&mut self, at: Time, item: T) {
        self.added += 1;
        let place = match self.free.pop() {
            Some(place) => {
                self.items[place] = Some(item);
                place
            }
            None => {
                self.items.push(Some(item));
                self.items.len() - 1
            }
        };
        self.order.push(Reverse((at, self.added, place)));
    }

    /// When the next thing happens; `None` if nothing is left.
    pub(crate) fn next_at(&self) -> Option<Time> {
        self.order.peek().map(|Reverse((at, ..))| *at)
    }

    /// Removes the next thing.
    pub(crate) fn pop(&mut self) -> Option<(Time, T)> {
        let Reverse((at, _, place)) = self.order.pop()?;
        self.free.push(place);
        Some((at, self.items[place].take().expect("each place in the order has an item")))
    }

    /// All that is to happen, in no order.
    pub(crate) fn items_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.items.iter_mut().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_added_first_happens_first_at_the_same_moment() {
        let mut queue = Queue::default();
        for (at, name) in [(5, "c"), (3, "a"), (3, "b")] {
            queue.add(at, name);
        }
        assert_eq!((queue.next_at(), queue.pop()), (Some(3), Some((3, "a"))));
        queue.add(5, "d");
        queue.items_mut().filter(|name| **name == "c").for_each(|name| *name = "C");
        let rest: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(rest, [(3, "b"), (5, "C"), (5, "d")]);
    }
}
