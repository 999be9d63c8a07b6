//! What sealed members must be made equal in (rules T6 to T10 of `docs/explanation/san-rules.md`).
//!
//! Above the highest commit point that any of them reports, an entry may have been acknowledged or not, and the members may differ.
//! For each block the entry with the highest position wins, and is written to all.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::ids::{Position, ReplicaId};
use crate::message::{Mention, SealReport};
use crate::rule::{Rule, left_out};

/// Blocks, and the entry that they are to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Winner {
    /// The blocks: a part of the entry's.
    pub blocks: Range<u64>,
    /// The entry, as the one that has it reports it.
    pub entry: Mention,
    /// The replica that has it.
    pub holder: ReplicaId,
}

/// What has come of the reports of one group.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Merged {
    /// Those that are made equal.
    pub members: Vec<ReplicaId>,
    /// Those that have lost something: their logs end below what is acknowledged.
    pub damaged: Vec<ReplicaId>,
    /// What is written to all members. No two overlap.
    pub winners: Vec<Winner>,
}

/// Merges the seal reports of replicas into what all members must hold, by the rules above. `known` is the highest commit point that any
/// replica has reported, also one that has no report here: every write up to it is acknowledged.
pub fn merge(reports: &BTreeMap<ReplicaId, SealReport>, known: Position) -> Merged {
    let highest = reports.values().map(|report| report.commit_point).fold(known, Position::max);
    let (whole, damaged): (Vec<_>, Vec<_>) =
        reports.iter().partition(|(_, report)| report.end >= highest || left_out(Rule::T10));
    let mut entries: Vec<(ReplicaId, &Mention)> = Vec::new();
    for (replica, report) in &whole {
        let above = report.above.iter().filter(|mention| mention.position > highest);
        entries.extend(above.map(|mention| (**replica, mention)));
    }
    entries.sort_by_key(|(_, mention)| mention.position);
    if left_out(Rule::T7) {
        entries.reverse();
    }
    // The last one painted over a block is seen.
    let mut painted: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
    for (index, (_, mention)) in entries.iter().enumerate() {
        let range = mention.entry.range();
        if !range.is_empty() {
            paint(&mut painted, range, index);
        }
    }
    let winners = painted.into_iter().map(|(start, (end, index))| {
        let (holder, mention) = entries[index];
        Winner { blocks: start..end, entry: mention.clone(), holder }
    });
    Merged {
        winners: winners.collect(),
        members: whole.into_iter().map(|(replica, _)| *replica).collect(),
        damaged: damaged.into_iter().map(|(replica, _)| *replica).collect(),
    }
}

fn paint(painted: &mut BTreeMap<u64, (u64, usize)>, range: Range<u64>, index: usize) {
    let overlapping: Vec<(u64, u64, usize)> = painted
        .range(..range.end)
        .rev()
        .take_while(|(_, (end, _))| *end > range.start)
        .map(|(start, (end, index))| (*start, *end, *index))
        .collect();
    for (start, end, other) in overlapping {
        painted.remove(&start);
        if start < range.start {
            painted.insert(start, (range.start, other));
        }
        if end > range.end {
            painted.insert(range.end, (end, other));
        }
    }
    painted.insert(range.start, (range.end, index));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Epoch, Sequence};
    use crate::message::{Entry, EntryOp};
    use proptest::prelude::*;

    const A: ReplicaId = ReplicaId(1);
    const B: ReplicaId = ReplicaId(2);

    fn at(ownership: u64, sequence: u64) -> Position {
        Position { ownership: Epoch(ownership), sequence: Sequence(sequence) }
    }

    fn mention(position: Position, blocks: Range<u64>) -> Mention {
        let entry =
            Entry { block: blocks.start, blocks: (blocks.end - blocks.start) as u32, op: EntryOp::Trim };
        Mention { number: position.sequence.0, position, entry }
    }

    fn report(commit_point: u64, end: u64, above: &[(u64, Range<u64>)]) -> SealReport {
        let above =
            above.iter().map(|(sequence, blocks)| mention(at(3, *sequence), blocks.clone())).collect();
        SealReport { commit_point: at(3, commit_point), end: at(3, end), full: false, above }
    }

    #[test]
    fn the_newest_entry_of_each_block_is_written_to_all() {
        let a = report(4, 6, &[(5, 0..4), (6, 2..3)]);
        let b = report(4, 5, &[(5, 0..4)]);
        let merged = merge(&[(A, a), (B, b)].into(), Position::START);
        let seen: Vec<_> =
            merged.winners.iter().map(|w| (w.blocks.clone(), w.entry.position.sequence.0)).collect();
        assert_eq!(seen, [(0..2, 5), (2..3, 6), (3..4, 5)]);
        assert_eq!((merged.members, merged.damaged), (vec![A, B], vec![]));
    }

    #[test]
    fn what_is_known_to_be_acknowledged_by_one_is_not_brought_back_by_another() {
        // B's commit point lags: its entry 5 is acknowledged, and A has destaged a later one over it.
        let merged = merge(
            &[(A, report(6, 6, &[])), (B, report(4, 6, &[(5, 0..1), (6, 0..1)]))].into(),
            Position::START,
        );
        assert_eq!(merged.winners, []);
    }

    #[test]
    fn a_member_that_ends_below_the_highest_commit_point_has_lost_something() {
        let merged =
            merge(&[(A, report(6, 6, &[])), (B, report(4, 5, &[(5, 0..1)]))].into(), Position::START);
        assert_eq!((merged.members, merged.damaged, merged.winners), (vec![A], vec![B], vec![]));
    }

    proptest! {
        #[test]
        fn each_block_has_its_highest_entry(
            entries in prop::collection::vec((0..2u64, 1..30u64, 0..20u64, 1..8u64), 0..40),
            commit_points in (0..8u64, 0..8u64),
        ) {
            let of = |replica: u64, commit_point: u64| {
                let mut above: Vec<_> = entries
                    .iter()
                    .filter(|(r, sequence, ..)| *r == replica && *sequence > commit_point)
                    .map(|(_, sequence, start, count)| (*sequence, *start..*start + *count))
                    .collect();
                above.sort_by_key(|(sequence, _)| *sequence);
                report(commit_point, 40, &above)
            };
            let reports: BTreeMap<_, _> = [(A, of(0, commit_points.0)), (B, of(1, commit_points.1))].into();
            let merged = merge(&reports, Position::START);
            let highest = at(3, commit_points.0.max(commit_points.1));
            for block in 0..40 {
                let expected = reports
                    .values()
                    .flat_map(|r| &r.above)
                    .filter(|m| m.position > highest && m.entry.range().contains(&block))
                    .map(|m| m.position)
                    .max();
                let mut found = merged.winners.iter().filter(|w| w.blocks.contains(&block));
                prop_assert_eq!(found.next().map(|w| w.entry.position), expected);
                prop_assert!(found.next().is_none(), "each block once");
            }
        }
    }
}
