//! How many I/Os completed in each tenth of one second: fine enough to see where a stall begins and ends.

use loadline_base::clock::Nanos;

/// Tenths of a second in a second.
pub const TENTHS: usize = 10;
/// More completions in one tenth of a second on one disk cannot have been measured.
const MOST: u32 = 1_000_000_000;

/// Completions in each tenth of one second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TenthCounts([u32; TENTHS]);

impl TenthCounts {
    /// Counts a completion at `within`, the time since the second began (below one second).
    #[inline]
    pub fn add(&mut self, within: Nanos) {
        let count = &mut self.0[(within.0 / 100_000_000) as usize];
        *count = count.saturating_add(1);
    }

    /// Adds the counts of another record of the same second.
    pub fn merge(&mut self, other: &TenthCounts) {
        self.0.iter_mut().zip(other.0).for_each(|(a, b)| *a = a.saturating_add(b));
    }

    /// The counts from the first tenth on, without the zeros at the end.
    pub fn encode(&self) -> Vec<u32> {
        let used = TENTHS - self.0.iter().rev().take_while(|count| **count == 0).count();
        self.0[..used].to_vec()
    }

    /// The counts that were encoded; `None` if there are more than ten, or one of them cannot have been measured.
    pub fn decode(counts: &[u32]) -> Option<TenthCounts> {
        let mut all = [0; TENTHS];
        let is_possible = counts.len() <= TENTHS && counts.iter().all(|count| *count <= MOST);
        is_possible.then(|| {
            all[..counts.len()].copy_from_slice(counts);
            TenthCounts(all)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_are_counted_in_their_tenth_and_come_back_from_the_wire() {
        let mut counts = TenthCounts::default();
        for millis in [0, 99, 100, 350] {
            counts.add(Nanos(millis * 1_000_000));
        }
        let mut twice = counts;
        twice.merge(&counts);
        assert_eq!((counts.encode(), twice.encode()), (vec![2, 1, 0, 1], vec![4, 2, 0, 2]));
        assert_eq!(TenthCounts::decode(&[2, 1, 0, 1]), Some(counts));
        assert_eq!(TenthCounts::default().encode(), Vec::<u32>::new());
        assert_eq!((TenthCounts::decode(&[0; 11]), TenthCounts::decode(&[u32::MAX])), (None, None));
    }
}
