//! What consecutive blocks hold, as far as a store knows without reading them.
//!
//! ```text
//! blocks  │ data │ hole │ zeroes │ data │ not described
//!         ▲      └ in no range           ▲
//!         the first that was asked for   `until`
//! ```

use std::ops::Range;

/// Consecutive blocks that are allocated, all with data or all with zeroes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocated {
    /// The blocks: at least one.
    pub blocks: Range<u64>,
    /// Whether the blocks read as zeroes. If not, they may read as anything.
    pub zeroes: bool,
}

/// What the blocks from the first requested one to [`until`](Map::until) hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Map {
    /// The allocated blocks, in rising order. Two ranges that touch differ in what they hold. A block in none of them is a hole:
    /// it was never written, or was trimmed, and reads as zeroes.
    pub ranges: Vec<Allocated>,
    /// The first block that is not described.
    pub until: u64,
}

/// What a block holds, by a [`Map`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// Nothing: it reads as zeroes.
    Nothing,
    /// Zeroes that were written.
    Zeroes,
    /// Data, or it is not known what.
    Data,
}

impl Map {
    /// A map that describes nothing yet. The first block that it will describe is this one.
    pub fn from(first: u64) -> Map {
        Map { ranges: Vec::new(), until: first }
    }

    /// Describes the blocks up to this one, which all hold the same. Returns false, and describes nothing, if that would take
    /// more ranges than `most` allows.
    pub fn describe(&mut self, until: u64, held: Held, most: usize) -> bool {
        let blocks = self.until..until;
        let zeroes = held == Held::Zeroes;
        if held != Held::Nothing && !blocks.is_empty() {
            let count = self.ranges.len();
            match self.ranges.last_mut() {
                Some(last) if last.blocks.end == blocks.start && last.zeroes == zeroes => {
                    last.blocks.end = blocks.end;
                }
                _ if count >= most => return false,
                _ => self.ranges.push(Allocated { blocks, zeroes }),
            }
        }
        self.until = self.until.max(until);
        true
    }

    /// What these blocks hold, one after the other: for each run of blocks that hold the same its end, and what they hold. Blocks
    /// that are not described are not among them. The first range that may have to do with it is at `from` in
    /// [`ranges`](Map::ranges), which is advanced: calls with rising blocks visit each range once.
    pub fn runs<'m>(
        &'m self,
        blocks: Range<u64>,
        from: &'m mut usize,
    ) -> impl Iterator<Item = (u64, Held)> + use<'m> {
        let (mut at, end) = (blocks.start, blocks.end.min(self.until));
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            while self.ranges.get(*from).is_some_and(|range| range.blocks.end <= at) {
                *from += 1;
            }
            let held = |range: &Allocated| if range.zeroes { Held::Zeroes } else { Held::Data };
            let (until, held) = match self.ranges.get(*from) {
                Some(range) if range.blocks.start <= at => (range.blocks.end.min(end), held(range)),
                Some(range) => (range.blocks.start.min(end), Held::Nothing),
                None => (end, Held::Nothing),
            };
            at = until;
            Some((until, held))
        })
    }

    /// Whether it can be an answer to a question about these blocks: it describes the first of them, none beyond the last, and its
    /// ranges are as [`ranges`](Map::ranges) says.
    pub fn is_answer_to(&self, blocks: &Range<u64>) -> bool {
        let mut end = blocks.start;
        let rise = self.ranges.iter().all(|range| {
            let after = std::mem::replace(&mut end, range.blocks.end);
            after <= range.blocks.start && range.blocks.start < range.blocks.end
        });
        rise && end <= self.until && blocks.start < self.until && self.until <= blocks.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn held() -> impl Strategy<Value = Vec<Held>> {
        let one = prop_oneof![Just(Held::Nothing), Just(Held::Zeroes), Just(Held::Data)];
        prop::collection::vec((one, 1..9usize), 1..20)
            .prop_map(|runs| runs.iter().flat_map(|(held, blocks)| vec![*held; *blocks]).collect())
    }

    proptest! {
        #[test]
        fn a_map_says_of_each_block_what_was_described(
            held in held(), first in 0..9u64, steps in prop::collection::vec(1..7u64, 40),
        ) {
            let mut map = Map::from(first);
            for (block, held) in (first..).zip(&held) {
                prop_assert!(map.describe(block + 1, *held, usize::MAX));
            }
            let end = first + held.len() as u64;
            prop_assert!(map.is_answer_to(&(first..end)) && map.is_answer_to(&(first..end + 1)));
            prop_assert!(!map.is_answer_to(&(first..end - 1)));
            let same = |pair: &[Allocated]| pair[0].blocks.end == pair[1].blocks.start && pair[0].zeroes == pair[1].zeroes;
            prop_assert!(!map.ranges.windows(2).any(same), "two ranges could be one");
            // Asked for in portions, and beyond the end.
            let (mut from, mut at, mut said) = (0, first, Vec::new());
            for step in steps {
                let mut last = at;
                for (until, held) in map.runs(at..at + step, &mut from) {
                    prop_assert!(until > last && until <= at + step);
                    said.extend((last..until).map(|_| held));
                    last = until;
                }
                at += step;
            }
            said.truncate(held.len());
            prop_assert!(held.starts_with(&said) && (at < end || said.len() == held.len()));
        }

        #[test]
        fn a_map_with_no_room_describes_no_more(held in held(), most in 1..4usize) {
            let mut map = Map::from(0);
            for (block, held) in (0..).zip(&held) {
                if !map.describe(block + 1, *held, most) {
                    prop_assert_eq!((map.ranges.len(), map.until), (most, block));
                    prop_assert!(block > 0, "it makes progress");
                    break;
                }
            }
            prop_assert!(map.ranges.len() <= most);
        }
    }

    #[test]
    fn what_does_not_answer_a_question_is_found() {
        let map = |ranges: &[(u64, u64)], until| Map {
            ranges: ranges
                .iter()
                .map(|(start, end)| Allocated { blocks: *start..*end, zeroes: false })
                .collect(),
            until,
        };
        assert!(map(&[(4, 5), (7, 9)], 9).is_answer_to(&(4..10)));
        let wrong: [(&[(u64, u64)], u64); 8] = [
            (&[], 4),
            (&[], 11),
            (&[(3, 5)], 6),
            (&[(4, 5)], 4),
            (&[(5, 7)], 6),
            (&[(6, 7), (5, 6)], 8),
            (&[(5, 7), (6, 8)], 8),
            (&[(5, 5)], 8),
        ];
        for (ranges, until) in wrong {
            assert!(!map(ranges, until).is_answer_to(&(4..10)), "{ranges:?}, {until}");
        }
    }
}
