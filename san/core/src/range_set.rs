//! A set of block numbers, kept as ranges.

use std::collections::BTreeMap;
use std::ops::Range;

/// See the module. Ranges that touch are one.
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn it_holds_what_was_added_and_not_taken_out(
            steps in prop::collection::vec((any::<bool>(), 0..60u64, 0..20u64), 0..60),
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
                prop_assert_eq!(set.first().map(|r| r.start), model.first().copied());
            }
        }
    }
}
