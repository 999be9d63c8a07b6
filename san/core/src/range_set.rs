//! A set of block numbers, kept as ranges.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of block numbers. Ranges that touch are merged into one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RangeSet {
    /// First block → the one after the last.
    ranges: BTreeMap<u64, u64>,
}

impl RangeSet {
    /// Adds these blocks.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let Range { mut start, mut end } = range;
        while let Some((first, last)) = self.ranges.range(..=end).next_back().map(|(f, l)| (*f, *l))
            && last >= start
        {
            self.ranges.remove(&first);
            (start, end) = (start.min(first), end.max(last));
        }
        self.ranges.insert(start, end);
    }

    /// Takes these blocks out.
    pub fn remove(&mut self, range: &Range<u64>) {
        if range.is_empty() {
            return;
        }
        while let Some((first, last)) = self.ranges.range(..range.end).next_back().map(|(f, l)| (*f, *l))
            && last > range.start
        {
            self.ranges.remove(&first);
            if last > range.end {
                self.ranges.insert(range.end, last);
            }
            if first < range.start {
                self.ranges.insert(first, range.start);
            }
        }
    }

    /// The first range, without taking it out.
    pub fn first(&self) -> Option<Range<u64>> {
        self.ranges.first_key_value().map(|(start, end)| *start..*end)
    }

    /// What of these blocks is in it: ranges, rising.
    pub fn within(&self, blocks: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let first = self.ranges.range(..=blocks.start).next_back().map_or(blocks.start, |(start, _)| *start);
        let end = blocks.end.max(first);
        let cut = move |(start, end): (&u64, &u64)| (*start).max(blocks.start)..(*end).min(blocks.end);
        self.ranges.range(first..end).map(cut).filter(|range| !range.is_empty())
    }

    /// Whether there is no block in it.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// How many blocks.
    pub fn count(&self) -> u64 {
        self.ranges.iter().map(|(start, end)| end - start).sum()
    }

    /// The ranges, rising.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        self.ranges.iter().map(|(start, end)| *start..*end)
    }
}

/// At most so many ranges (one at least) that hold all of these, which rise and do not touch: those with the smallest gaps
/// between them become one.
pub fn coarse(mut ranges: Vec<Range<u64>>, most: usize) -> Vec<Range<u64>> {
    let too_many = ranges.len().saturating_sub(most.max(1));
    if too_many == 0 {
        return ranges;
    }
    let mut gaps: Vec<(u64, usize)> =
        ranges.windows(2).map(|pair| pair[1].start - pair[0].end).zip(0..).collect();
    gaps.select_nth_unstable(too_many - 1);
    // From the end, so that what is still to be done keeps its place.
    let mut closed: Vec<usize> = gaps[..too_many].iter().map(|(_, at)| *at).collect();
    closed.sort_unstable_by(|a, b| b.cmp(a));
    let mut kept = Vec::with_capacity(ranges.len() - too_many);
    let mut closed = closed.into_iter().peekable();
    while let Some(range) = ranges.pop() {
        let start_of_next = ranges.len();
        match kept.last_mut() {
            Some(Range { start, .. }) if closed.next_if_eq(&start_of_next).is_some() => *start = range.start,
            _ => kept.push(range),
        }
    }
    kept.reverse();
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn coarse_ranges_hold_all_and_close_the_smallest_gaps(
            gaps in prop::collection::vec((1..50u64, 1..9u64), 1..40),
            most in 0..45usize,
        ) {
            let mut end = 0;
            let ranges: Vec<Range<u64>> = gaps.iter().map(|(gap, count)| {
                let start = end + gap;
                end = start + count;
                start..end
            }).collect();
            let coarse = coarse(ranges.clone(), most);
            prop_assert_eq!(coarse.len(), ranges.len().min(most.max(1)));
            let is_held = |range: &Range<u64>| coarse.iter().any(|c| c.start <= range.start && range.end <= c.end);
            prop_assert!(ranges.iter().all(is_held));
            let blocks = |ranges: &[Range<u64>]| ranges.iter().map(|r| r.end - r.start).sum::<u64>();
            let mut sizes: Vec<u64> = gaps[1..].iter().map(|(gap, _)| *gap).collect();
            sizes.sort_unstable();
            let closed: u64 = sizes[..ranges.len() - coarse.len()].iter().sum();
            prop_assert_eq!(blocks(&coarse), blocks(&ranges) + closed);
        }

        #[test]
        fn it_holds_what_was_added_and_not_taken_out(
            steps in prop::collection::vec((any::<bool>(), 0..60u64, 0..20u64), 0..60), some in 0..70u64, more in 0..20u64,
        ) {
            let mut set = RangeSet::default();
            let mut model = BTreeSet::new();
            for (adds, start, count) in steps {
                let range = start..start + count;
                if adds {
                    set.insert(range.clone());
                    model.extend(range);
                } else {
                    set.remove(&range);
                    model.retain(|block| !range.contains(block));
                }
                let ranges: Vec<_> = set.iter().collect();
                prop_assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start), "{:?}", ranges);
                prop_assert!(ranges.iter().flat_map(Clone::clone).eq(model.iter().copied()));
                prop_assert_eq!(set.count(), model.len() as u64);
                let within = set.within(some..some + more).flatten();
                prop_assert!(within.eq(model.range(some..some + more).copied()));
                prop_assert_eq!(set.first().map(|r| r.start), model.first().copied());
            }
        }
    }
}
