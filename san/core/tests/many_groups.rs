//! What a tick costs of a volume with many groups.

mod common;
mod counting;

use std::time::{Duration, Instant};

use common::{Driven, LEASE, record};
use counting::ALLOCATIONS;
use loadline_san_core::ids::NodeId;

/// What 16 ticks allocate, and how long one takes.
fn ticks(driven: &mut Driven) -> (u64, Duration) {
    let (mut allocated, mut spent) = (0, Duration::ZERO);
    for _ in 0..16 {
        driven.tick_in(|tick| {
            let (before, began) = (ALLOCATIONS.get(), Instant::now());
            tick();
            spent += began.elapsed();
            allocated += ALLOCATIONS.get() - before;
        });
    }
    (allocated, spent / 16)
}

/// Copies that have left the sets are no reason to check their groups in each tick, or to copy the record: the time of a tick
/// would grow with the square of the groups. `-- --nocapture` prints how long it takes.
#[test]
fn a_tick_allocates_nothing_while_a_copy_of_each_group_is_away() {
    for groups in [64, 256, 1024] {
        let mut driven = Driven::active(record(groups, &[1, 2, 3]));
        let (well, well_takes) = ticks(&mut driven);
        driven.silent.insert(NodeId(3));
        driven.pass(6 * LEASE);
        assert_eq!(driven.members(), [1, 2], "it has left");
        let (away, away_takes) = ticks(&mut driven);
        println!(
            "{groups} groups: a tick takes {well_takes:?}, and {away_takes:?} while a copy of each is away"
        );
        assert_eq!((well, away), (0, 0), "allocations of 16 ticks, {groups} groups");
    }
}
