//! A recovery by force, and an attach that is ordered meanwhile.

mod common;

use common::{Driven, EPOCH, LEASE, record};
use loadline_san_core::ids::{NodeId, ReplicaId};
use loadline_san_core::layout::GroupIndex;
use loadline_san_core::volume::{Event, Status, VolumeCommand};

fn recovery(driven: &Driven) -> VolumeCommand {
    let survivors = [(GroupIndex(0), ReplicaId(1))].into();
    VolumeCommand::Recover { record: Box::new(driven.record.clone()), survivors, promised: EPOCH }
}

fn is_attached(driven: &Driven, before: u64) {
    assert_eq!(driven.done, [Ok(())], "the recovery is carried out");
    assert_eq!(driven.members(), [1]);
    assert_eq!(driven.volume.status(), Status::Active);
    assert!(driven.record.fence > before, "the fence has risen: {}", driven.record.fence);
    assert_eq!(driven.attached, 1, "clients may come");
}

#[test]
fn an_attach_that_is_ordered_during_a_recovery_raises_the_fence_afterwards() {
    let mut driven = Driven::new(record(1, &[1, 2]));
    driven.silent.insert(NodeId(1));
    let command = recovery(&driven);
    driven.command(command);
    driven.pass(LEASE / 4);
    assert_eq!(driven.volume.status(), Status::Sealing);
    // The recovery has raised it itself, before the attach was ordered.
    let before = driven.record.fence;
    driven.step(Event::Fence);
    driven.pass(LEASE / 4);
    assert_eq!(driven.record.fence, before, "the decision is carried out first");
    driven.silent.clear();
    driven.pass(4 * LEASE);
    is_attached(&driven, before);
}

#[test]
fn an_attach_that_was_ordered_before_a_recovery_raises_the_fence_afterwards() {
    let mut driven = Driven::new(record(1, &[1, 2]));
    driven.silent.extend([NodeId(1), NodeId(2)]);
    let before = driven.record.fence;
    driven.step(Event::Fence);
    driven.pass(LEASE / 4);
    let command = recovery(&driven);
    driven.command(command);
    driven.silent.clear();
    driven.pass(4 * LEASE);
    is_attached(&driven, before);
}
