//! Members from which nothing comes, and whose processes have ended: when a node serves a volume without them, and when it takes one
//! over (rules S1 and S1Ended).

mod common;

use common::{Driven, LEASE, owner, record};
use loadline_san_core::ids::NodeId;
use loadline_san_core::record::Record;
use loadline_san_core::volume::{Event, RequestId, Status};

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

/// Node 1 serves a volume, and each of these nodes is found to have ended, a moment after the one before. Nodes answer through the
/// store that they reach these.
fn ended(nodes: &[u32], of: &[u32], reach: &[(u32, &[u32])]) -> Driven {
    let mut driven = Driven::active(record(1, of));
    for (node, others) in reach {
        driven.reach.insert(NodeId(*node), others.iter().map(|node| NodeId(*node)).collect());
    }
    driven.silent.extend(nodes.iter().map(|node| NodeId(*node)));
    driven.pass(LEASE / 8);
    for node in nodes {
        driven.step(Event::Ended(NodeId(*node)));
        driven.tick();
    }
    driven
}

#[test]
fn one_member_that_has_ended_is_excluded_at_once() {
    for of in [&[1, 2][..], &[1, 2, 3]] {
        let driven = ended(&[2], of, &[(2, &[3]), (3, &[2])]);
        assert_eq!(driven.members().len(), of.len() - 1, "of {of:?}");
        assert!(driven.asked.is_empty(), "of {of:?}: {:?}", driven.asked);
    }
}

#[test]
fn two_of_three_that_seem_to_have_ended_and_reach_each_other_keep_the_volume() {
    let mut driven = ended(&[2, 3], &[1, 2, 3], &[(2, &[3]), (3, &[2])]);
    driven.pass(8 * LEASE);
    assert_eq!(driven.members(), [1, 2, 3]);
    assert_eq!(
        driven.volume.status(),
        Status::Watching,
        "it has stepped down, and does not take it over again"
    );
}

#[test]
fn an_owner_that_reaches_no_copy_steps_down_for_a_node_that_runs_and_has_one() {
    for of in [&[2][..], &[2, 3]] {
        let mut driven = Driven::active(record(1, of));
        driven.silent.extend([NodeId(2), NodeId(3)]);
        driven.reach.insert(NodeId(2), [NodeId(3)].into());
        driven.reach.insert(NodeId(3), [NodeId(2)].into());
        driven.pass(4 * LEASE);
        assert_eq!(driven.volume.status(), Status::Watching, "of {of:?}");
        assert_eq!(driven.members(), of, "no member is excluded");
    }
    // If no node answers, the owner waits for the first that does.
    let mut driven = Driven::active(record(1, &[2]));
    driven.silent.insert(NodeId(2));
    driven.pass(8 * LEASE);
    assert_eq!((driven.volume.status(), driven.members()), (Status::Active, vec![2]));
}

#[test]
fn two_of_three_that_have_ended_are_excluded_when_they_have_not_answered() {
    let mut driven = ended(&[2, 3], &[1, 2, 3], &[]);
    assert_eq!(driven.members(), [1, 2, 3], "they are asked");
    driven.pass(2 * LEASE);
    assert_eq!(driven.members(), [1]);
    driven.read(1);
    assert_eq!(driven.completed, [(RequestId(1), Ok(()))]);
}

#[test]
fn a_node_that_all_refuse_does_not_take_a_volume_over() {
    let mut driven = Driven::new(record(1, &[1, 2, 3]));
    driven.silent.extend([NodeId(2), NodeId(3)]);
    driven.reach.extend([(NodeId(2), [NodeId(3)].into()), (NodeId(3), [NodeId(2)].into())]);
    driven.step(Event::Ended(NodeId(2)));
    driven.step(Event::Ended(NodeId(3)));
    driven.step(Event::Attach);
    driven.pass(8 * LEASE);
    assert_eq!(driven.record.owner, owner(2));
}

#[test]
fn a_question_that_did_not_reach_the_store_is_asked_again() {
    let mut driven = Driven::active(record(1, &[1, 2]));
    driven.silent.insert(NodeId(2));
    driven.store_is_away = true;
    driven.pass(20 * LEASE);
    let asked = driven.asked.len();
    assert!((5..=8).contains(&asked), "each three leases: {asked}");
    assert_eq!(driven.volume.status(), Status::Active, "nothing is known, and nothing could be changed");
    driven.store_is_away = false;
    driven.pass(5 * LEASE);
    assert_eq!(driven.members(), [1]);
}

#[test]
fn an_owner_that_stepped_down_for_two_others_continues_soon_when_one_of_them_has_ended() {
    let mut driven = Driven::active(record(1, &[1, 2, 3]));
    driven.silent.extend([NodeId(2), NodeId(3)]);
    driven.reach.extend([(NodeId(2), [NodeId(3)].into()), (NodeId(3), [NodeId(2)].into())]);
    driven.pass(LEASE * 3 / 2);
    assert_eq!(driven.volume.status(), Status::Watching, "they have more copies, and reach each other");
    // The process of one ends, and nothing tells this node so.
    driven.reach.remove(&NodeId(2));
    driven.reach.insert(NodeId(3), [].into());
    driven.pass(7 * LEASE);
    assert_eq!((driven.volume.status(), driven.members()), (Status::Active, vec![1]));
}

/// Node 1 has one of three copies and watches a volume of another owner. The nodes of the two others are gone, and refuse nothing.
#[test]
fn nodes_that_were_asked_before_a_takeover_and_are_silent_since_are_not_asked_again_in_it() {
    let mut driven = Driven::new(Record { owner: owner(2), ..record(1, &[1, 2, 3]) });
    driven.quiet_ns = 100 * LEASE;
    driven.silent.extend([NodeId(2), NodeId(3)]);
    driven.step(Event::Watch(true));
    // For two leases nothing is heard. Then the nodes have four leases to answer, and then their replicas have one and a half to report.
    driven.pass(LEASE * 17 / 2);
    assert_eq!(driven.volume.status(), Status::Active);
}

#[test]
fn a_member_that_has_fallen_silent_since_it_was_probed_does_not_count_as_reached() {
    let mut driven = Driven::new(Record { owner: owner(2), ..record(1, &[1, 2, 3]) });
    driven.silent.extend([NodeId(2), NodeId(3)]);
    driven.reach.extend([(NodeId(2), [NodeId(3)].into()), (NodeId(3), [NodeId(2)].into())]);
    driven.step(Event::Attach);
    driven.pass(LEASE * 3 / 8);
    // While it leaves the volume to them for the time of a lease, they answer it for a moment.
    driven.silent.clear();
    driven.pass(LEASE * 5 / 16);
    assert_eq!(driven.volume.status(), Status::Watching);
    driven.silent.extend([NodeId(2), NodeId(3)]);
    driven.pass(6 * LEASE);
    assert_eq!(driven.record.owner, owner(2), "they run, reach each other, and have more copies");
}

#[test]
fn a_member_whose_process_is_about_to_end_leaves_the_set_although_it_still_answers() {
    let mut driven = Driven::active(record(1, &[1, 2, 3]));
    driven.step(Event::Ended(NodeId(2)));
    driven.pass(LEASE / 8);
    assert_eq!(driven.members(), [1, 3]);
}

#[test]
fn a_member_that_is_about_to_end_is_excluded_although_it_answers_while_others_are_asked() {
    let mut driven = Driven::active(record(1, &[1, 2, 3]));
    // It was heard a moment ago, so the other one is asked first.
    driven.pass(LEASE / 4);
    driven.step(Event::Ended(NodeId(2)));
    driven.pass(LEASE / 4);
    assert_eq!(driven.members(), [1, 3]);
}

#[test]
fn a_node_that_takes_over_from_an_owner_that_is_about_to_end_excludes_its_copy_soon() {
    for of in [&[1, 2][..], &[1, 2, 3]] {
        let mut driven = Driven::new(record(1, of));
        driven.step(Event::Ended(NodeId(2)));
        driven.step(Event::Fence);
        driven.tick();
        assert_eq!(driven.volume.status(), Status::Active);
        let others: Vec<u32> = of.iter().copied().filter(|node| *node != 2).collect();
        assert_eq!(driven.members(), others);
    }
}
