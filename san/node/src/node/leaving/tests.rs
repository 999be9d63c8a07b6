use loadline_san_core::ids::{Incarnation, ReplicaId};

use super::*;
use crate::config::Stored;
use crate::node::manage::health::tests::{Cluster, cluster};

pub(crate) const VOLUME: u64 = 10;

/// The catalog of three nodes with a volume, of which node 1 is the owner, and these have copies in sync.
pub(crate) fn catalog(in_sync: &[u64]) -> Catalog {
    let Cluster { mut catalog, volume, mut record, .. } = cluster();
    record.groups[0].in_sync = in_sync.iter().map(|node| ReplicaId(10 + node)).collect();
    catalog.volumes.insert(VOLUME, (volume, 1));
    catalog.records.insert(VOLUME, Stored { value: record::encode(&record).unwrap(), version: 1 });
    catalog
}

fn heirs_of(catalog: &Catalog, incarnation: u64, bound: &[u64], dead: &[u32]) -> BTreeMap<u64, u32> {
    let me = Owner { node: NodeId(1), incarnation: Incarnation(incarnation) };
    let alive = (1..=3).map(|node| (node, !dead.contains(&node))).collect();
    heirs(catalog, me, &bound.iter().copied().collect(), &alive)
}

#[test]
fn a_volume_goes_to_a_node_that_runs_and_has_a_copy_in_sync() {
    let of = |node| BTreeMap::from([(VOLUME, node)]);
    assert_eq!(heirs_of(&catalog(&[1, 2, 3]), 5, &[], &[]), of(2));
    assert_eq!(heirs_of(&catalog(&[1, 2, 3]), 5, &[], &[2]), of(3), "2 does not run");
    assert_eq!(heirs_of(&catalog(&[1, 3]), 5, &[], &[]), of(3), "the copy of 2 is not in sync");
}

#[test]
fn a_volume_stays_that_no_other_node_can_serve_or_whose_clients_cannot_leave() {
    assert_eq!(heirs_of(&catalog(&[1]), 5, &[], &[]), BTreeMap::new());
    assert_eq!(heirs_of(&catalog(&[1, 2, 3]), 5, &[VOLUME], &[]), BTreeMap::new());
    assert_eq!(heirs_of(&catalog(&[1, 2, 3]), 6, &[], &[]), BTreeMap::new(), "a former life owns it");
    let mut two_stop = catalog(&[1, 2]);
    two_stop.nodes.get_mut(&2).unwrap().0.stopping = true;
    assert_eq!(heirs_of(&two_stop, 5, &[], &[]), BTreeMap::new());
}

#[test]
fn volumes_are_spread_over_the_nodes_that_have_as_much_of_them() {
    let mut many = catalog(&[1, 2, 3]);
    for id in 11..=13 {
        many.volumes.insert(id, many.volumes[&VOLUME].clone());
        many.records.insert(id, many.records[&VOLUME].clone());
    }
    let heirs = heirs_of(&many, 5, &[], &[]);
    let given = |node| heirs.values().filter(|heir| **heir == node).count();
    assert_eq!((given(2), given(3)), (2, 2));
}

#[test]
fn the_last_copy_in_sync_cannot_be_spared() {
    let record = |in_sync: &[u64]| {
        let stored = catalog(in_sync).records[&VOLUME].value.clone();
        record::decode(&stored).unwrap()
    };
    assert!(can_be_spared(&record(&[1, 2]), NodeId(1)));
    assert!(!can_be_spared(&record(&[1]), NodeId(1)));
    assert!(!can_be_spared(&record(&[2, 3]), NodeId(1)), "it has none in sync");
}

#[test]
fn a_volume_is_kept_for_the_next_process_until_that_owns_it() {
    let kept = |id: u64, incarnation: u64, stopping: bool| {
        let mut catalog = catalog(&[1, 2]);
        let (node, _) = catalog.nodes.get_mut(&1).unwrap();
        *node = catalog::Node { incarnation, stopping, keeps: [VOLUME].into(), ..node.clone() };
        kept_by(&catalog, id)
    };
    assert_eq!(kept(VOLUME, 5, true), Some(1), "the life that owns it stops");
    assert_eq!(kept(VOLUME, 6, false), Some(1), "the next one has begun");
    assert_eq!(kept(VOLUME, 6, true), Some(1), "the next one stops before it owns it");
    assert_eq!(kept(VOLUME, 5, false), None, "the next one owns it, and may die");
    assert_eq!(kept(VOLUME + 1, 5, true), None, "there is none");
}
