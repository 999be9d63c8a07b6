//! A node is removed while commands plan replicas there.

use super::*;
use crate::config::catalog::{VolumeState, change};
use crate::config::steps::Step;
use crate::node::manage::RemoveVolume;
use crate::node::manage::plan::tests::{GIB, checked, cluster, complete, creation};
use crate::node::under_way::UnderWay;

#[test]
fn a_node_at_which_a_plan_makes_replicas_later_is_not_removed() {
    let mut store = cluster(1 << 50);
    let all = UnderWay::default();
    let (mut plan, _running) = creation(&all, checked("x", 192 * 16 * GIB, 12), 1);
    assert!(matches!(plan.step(&mut store).unwrap(), Step::More), "it has more steps");
    // A status of that moment: the replicas that are there are being removed.
    let catalog = Catalog::read(&mut store).unwrap();
    let here = catalog.replicas.iter().filter(|(_, (replica, _))| replica.node == 3);
    let drops =
        here.map(|(id, (of, version))| change(format!("replica/{id}"), Some(*version), &of.dropped()));
    assert!(steps::each(&mut store, drops.collect()).unwrap());
    let answer = remove(&mut store, "node-3").unwrap();
    assert!(matches!(&answer, Err(ManageError::InUse(why)) if why.contains("more copies")), "{answer:?}");
    assert!(Catalog::read(&mut store).unwrap().node("node-3").is_some());
}

#[test]
fn what_is_planned_while_a_node_is_removed_does_not_come_there() {
    let mut store = cluster(1 << 40);
    let before = Catalog::read(&mut store).unwrap();
    remove(&mut store, "node-3").unwrap().unwrap();
    // A plan that was made of what was read before is not made.
    assert!(!store.commit(&[before.take_ids(4).1]).unwrap());
    let all = UnderWay::default();
    let (mut plan, _running) = creation(&all, checked("x", GIB, 1), 1);
    assert!(complete(&mut store, &mut plan).is_err(), "two nodes have no room for three copies");
}

#[test]
fn a_replica_of_a_node_that_is_gone_goes_with_its_volume() {
    let mut store = cluster(1 << 40);
    let all = UnderWay::default();
    let (mut plan, _running) = creation(&all, checked("x", GIB, 1), 1);
    let id = complete(&mut store, &mut plan).unwrap()[0].id;
    assert_eq!(Catalog::read(&mut store).unwrap().volumes[&id].0.state, VolumeState::Creating);
    let version = Catalog::read(&mut store).unwrap().nodes[&3].1;
    assert!(store.commit(&[Change { key: "node/3".into(), expected: Some(version), value: None }]).unwrap());
    let mut remove = RemoveVolume::unfinished(id);
    assert!(steps::all(&mut store, |store| remove.step(store)).unwrap());
    let nodes: Vec<u32> =
        Catalog::read(&mut store).unwrap().replicas.values().map(|(replica, _)| replica.node).collect();
    assert_eq!(nodes, [1, 2], "no node would remove the third");
}
