//! Growths that are taken back while others are planned.

use loadline_san_core::ids::{Incarnation, ProposalId, VolumeId};

use super::*;
use crate::config::memory::MemoryStore;
use crate::config::service::{read_record, record_change};
use crate::node::manage::plan::MakeRecords;
use crate::node::manage::plan::tests::{GIB, checked, cluster, complete, creation};
use crate::node::under_way::{Running, UnderWay};

fn owner(node: u32) -> Owner {
    Owner { node: NodeId(node), incarnation: Incarnation(1) }
}

/// A cluster with a volume that is ready. Returns its id.
fn with_volume() -> (MemoryStore, u64, Layout) {
    with_volume_on(1 << 40)
}

/// The same, with devices of so many bytes.
fn with_volume_on(bytes: u64) -> (MemoryStore, u64, Layout) {
    let (mut store, all) = (cluster(bytes), UnderWay::default());
    let of = checked("x", GIB, 1);
    let layout = of.layout;
    let (mut plan, _running) = creation(&all, of, 1);
    let planned = complete(&mut store, &mut plan).unwrap();
    let id = planned[0].id;
    let mut records = MakeRecords::new(planned, layout, false);
    assert!(steps::all(&mut store, |store| records.step(store)).unwrap().is_empty());
    (store, id, layout)
}

/// A node takes the volume over. Returns the epoch of the record.
fn take_over(store: &mut MemoryStore, id: u64, node: u32) -> Epoch {
    let (record, version) = read_record(store, VolumeId(id)).unwrap().unwrap();
    let by = ProposalId { by: owner(node), number: record.epoch.0 };
    let next = record.taken_over(by, true, true);
    assert!(store.commit(&[record_change(VolumeId(id), Some(version), &next).unwrap()]).unwrap());
    next.epoch
}

/// A command at a node plans a growth by one group.
fn grow(
    store: &mut MemoryStore,
    of: &UnderWay,
    (id, layout): (u64, Layout),
    node: u32,
) -> (Result<PlannedGrowth, ManageError>, Running) {
    let running = of.begin();
    let alive = (1..=3).map(|node| (node, true)).collect();
    let blocks = 17 * GIB / 4096;
    let mut grow = GrowVolume::new(id, layout, 1..2, blocks, alive, (owner(node), running.claim()));
    (steps::all(store, |store| grow.step(store)).unwrap(), running)
}

fn undo(store: &mut MemoryStore, id: u64, of: Undone) {
    let mut undo = UndoGrowth::new(id, of);
    steps::all(store, |store| undo.step(store)).unwrap();
}

fn replicas(store: &mut MemoryStore, planned: &PlannedGrowth) -> Vec<(ReplicaState, bool)> {
    let catalog = Catalog::read(store).unwrap();
    let ids = planned.added.iter().flatten();
    ids.map(|(id, _)| &catalog.replicas[&id.0].0).map(|of| (of.state, of.unless_used)).collect()
}

/// What a person has to add is stated for the whole volume: the groups that it has, and all new ones.
#[test]
fn the_room_that_a_larger_volume_needs_is_stated_in_full() {
    let refused = |device: u64, gib: u64| {
        let (mut store, id, layout) = with_volume_on(device * GIB);
        let running = UnderWay::default().begin();
        let blocks = gib * GIB / 4096;
        let alive = (1..=3).map(|node| (node, true)).collect();
        let groups = 1..layout.groups(blocks).unwrap();
        let mut grow = GrowVolume::new(id, layout, groups, blocks, alive, (owner(1), running.claim()));
        steps::all(&mut store, |store| grow.step(store)).unwrap().expect_err("there is no room").to_string()
    };
    // The first group has room to grow, and six more have none.
    let said = refused(30, 100);
    assert!(said.contains("99GiB for data, 192MiB for logs"), "{said}");
    assert!(said.contains("evice 1 of node-1 has"), "{said}");
    // The first group has no room to grow by 15 GiB. The message also states that one more group is needed.
    let said = refused(10, 17);
    assert!(said.contains("16GiB for data, 32MiB for logs"), "{said}");
    assert!(said.contains("of node-1 would have to take 15GiB of that"), "{said}");
}

#[test]
fn a_command_takes_back_its_own_growth_only() {
    let (mut store, id, layout) = with_volume();
    let all = UnderWay::default();
    take_over(&mut store, id, 1);
    let (first, _running) = grow(&mut store, &all, (id, layout), 1);
    let first = first.unwrap();
    let (refused, _) = grow(&mut store, &all, (id, layout), 2);
    assert!(matches!(refused, Err(ManageError::InUse(_))), "one at a time: {refused:?}");
    // Another node owns the volume now, takes the growth back, and plans its own.
    let epoch = take_over(&mut store, id, 2);
    undo(&mut store, id, Undone::At(epoch));
    assert_eq!(replicas(&mut store, &first), [(ReplicaState::Dropping, true); 3]);
    let (second, _running) = grow(&mut store, &all, (id, layout), 2);
    let second = second.unwrap();
    let before = store.list("").unwrap();
    // The first command finds that its replicas are gone.
    undo(&mut store, id, Undone::Own(first.command));
    assert_eq!(order(&mut store, id, first.command, owner(1)).unwrap(), None);
    assert_eq!(order(&mut store, id, first.command, owner(2)).unwrap(), None);
    assert_eq!(store.list("").unwrap(), before, "it changes nothing of the second");
    assert_eq!(order(&mut store, id, second.command, owner(2)).unwrap(), Some(epoch));
    undo(&mut store, id, Undone::Own(second.command));
    assert_eq!(replicas(&mut store, &second), [(ReplicaState::Dropping, true); 3]);
    assert!(!is_left(&Catalog::read(&mut store).unwrap(), id));
}

#[test]
fn an_owner_of_the_past_takes_nothing_back_and_no_order_follows_what_was_taken_back() {
    let (mut store, id, layout) = with_volume();
    let all = UnderWay::default();
    let past = take_over(&mut store, id, 1);
    let now = take_over(&mut store, id, 2);
    let (planned, _running) = grow(&mut store, &all, (id, layout), 2);
    let planned = planned.unwrap();
    undo(&mut store, id, Undone::At(past));
    assert_eq!(replicas(&mut store, &planned), [(ReplicaState::Wanted, false); 3]);
    // The order is stated in a claim. When the node owns the volume again later, that is another claim.
    assert_eq!(order(&mut store, id, planned.command, owner(2)).unwrap(), Some(now));
    let other = take_over(&mut store, id, 1);
    undo(&mut store, id, Undone::At(other));
    assert_eq!(replicas(&mut store, &planned), [(ReplicaState::Dropping, true); 3]);
    take_over(&mut store, id, 2);
    let (record, _) = read_record(&mut store, VolumeId(id)).unwrap().unwrap();
    assert_ne!(record.history.claims().last().map(|claim| claim.epoch), Some(now));
    assert_eq!(order(&mut store, id, planned.command, owner(2)).unwrap(), None);
}
