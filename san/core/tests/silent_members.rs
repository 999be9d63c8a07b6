//! Members from which nothing comes, and whose processes have ended: when a node serves a volume without them, and when it takes one
//! over (rules S1 and S1Ended).

mod common;

use common::{Driven, LEASE, owner, record};
use loadline_san_core::ids::NodeId;
use loadline_san_core::record::Record;
use loadline_san_core::volume::Event;

/// A node with one of two copies watches the volume. The other copy is cut off from it, runs, and does not reach it; nothing has
/// asked its own copy for a lease for long. Whether it takes the volume over from this owner, which runs or does not.
fn takes_over_from(owning: u32, runs: bool) -> (bool, bool) {
    let mut driven = Driven::new(Record { owner: owner(owning), ..record(1, &[1, 2]) });
    driven.quiet_ns = 100 * LEASE;
    driven.silent.insert(NodeId(2));
    driven.reach.insert(NodeId(2), [NodeId(9)].into());
    if runs {
        driven.reach.insert(NodeId(owning), [NodeId(2)].into());
    }
    driven.step(Event::Watch(true));
    driven.pass(30 * LEASE);
    let asked = driven.asked.iter().any(|(nodes, _)| nodes.contains(&NodeId(owning)));
    (driven.record.owner == owner(1), asked)
}

#[test]
fn a_tie_is_not_taken_over_unasked_from_an_owner_that_runs_also_if_it_has_no_copy() {
    assert_eq!(takes_over_from(2, true), (false, true), "an owner that has a copy");
    assert_eq!(takes_over_from(9, true), (false, true), "an owner that has none");
    assert_eq!(takes_over_from(9, false), (true, true), "an owner that has none and does not run");
}
