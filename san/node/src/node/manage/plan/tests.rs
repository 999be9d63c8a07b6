//! Creations that run at the same time, or end in between.

use super::*;
use crate::config::catalog::{self, Cluster, ReplicaState};
use crate::config::memory::MemoryStore;
use crate::node::under_way::{Running, UnderWay};

pub(in crate::node::manage) const GIB: u64 = 1 << 30;

/// A cluster of three nodes, with a device each of so many bytes.
pub(in crate::node::manage) fn cluster(bytes: u64) -> MemoryStore {
    let mut store = MemoryStore::default();
    let cluster = Cluster {
        reserve: catalog::Reserve::default(),
        id: "c1".into(),
        next_id: 100,
        lease_ms: 600,
        loops: 1,
        overcommit: 100,
        transport: catalog::Transport::Open,
        certificate_s: 86400,
    };
    let mut changes = vec![change("cluster", None, &cluster)];
    for id in 1..=3u32 {
        let address = format!("127.0.0.{id}:7400").parse().unwrap();
        let node = catalog::Node {
            name: format!("node-{id}"),
            api: address,
            peer: address,
            endpoints: BTreeMap::new(),
            incarnation: 1,
            certificates: Vec::new(),
            draining: false,
            maintenance: false,
            stopping: false,
            keeps: Default::default(),
        };
        let path = format!("/dev/{id}").into();
        let device = catalog::Device {
            node: id,
            path,
            bytes,
            role: catalog::Role::Both,
            write_us: 1,
            draining: false,
            replaced_by: None,
            model: None,
        };
        changes.push(change(format!("node/{id}"), None, &node));
        changes.push(change(format!("device/{id}"), None, &device));
    }
    assert!(store.commit(&changes).unwrap());
    store
}

pub(in crate::node::manage) fn checked(name: &str, bytes: u64, stripes: u32) -> Checked {
    let wanted = CreateVolumes {
        names: vec![name.into()],
        bytes,
        copies: 3,
        least: None,
        stripes,
        at: None,
        log_bytes: Some(32 << 20),
        requires_tls: false,
        attach: false,
    };
    check(wanted).unwrap()
}

/// A creation at a node, and the command that it is of.
pub(in crate::node::manage) fn creation(
    of: &UnderWay,
    checked: Checked,
    node: u32,
) -> (PlanVolumes, Running) {
    creation_with(of, checked, node, [true; 3])
}

fn creation_with(of: &UnderWay, checked: Checked, node: u32, alive: [bool; 3]) -> (PlanVolumes, Running) {
    let alive = (1..=3).zip(alive).collect();
    let running = of.begin();
    let me = Owner { node: NodeId(node), incarnation: Incarnation(1) };
    (PlanVolumes::new(checked, 0, alive, me, running.claim()), running)
}

pub(in crate::node::manage) fn complete(
    store: &mut MemoryStore,
    plan: &mut PlanVolumes,
) -> Result<Vec<Planned>, ManageError> {
    steps::all(store, |store| plan.step(store)).unwrap()
}

/// Bytes that a device of each node needs for a volume.
fn need(of: &Checked) -> u64 {
    let blocks: u64 = of.sizes.iter().map(|size| room::need(*size, of.log_bytes, 1 << 40).both()).sum();
    blocks * 4096
}

#[test]
fn two_creations_at_once_are_not_promised_the_same_room() {
    // Room for one of them and a half.
    let of = checked("x", 192 * 16 * GIB, 12);
    assert!(of.sizes.len() * 3 > MOST_CHANGES, "several commits: {}", of.sizes.len());
    let mut store = cluster(need(&of) / 2 * 3);
    let (mine, theirs) = (UnderWay::default(), UnderWay::default());
    let (mut first, _first) = creation(&mine, Checked { wanted: named(&of, "first"), ..of.clone() }, 1);
    let (mut second, _second) = creation(&theirs, Checked { wanted: named(&of, "second"), ..of.clone() }, 2);
    assert!(matches!(first.step(&mut store).unwrap(), Step::More), "it has more steps");
    let answer = complete(&mut store, &mut second);
    assert!(matches!(answer, Err(ManageError::NoRoom(_) | ManageError::NoPlace(_))), "{answer:?}");
    assert_eq!(complete(&mut store, &mut first).unwrap().len(), 1);
    let catalog = Catalog::read(&mut store).unwrap();
    for device in devices(&catalog, |_| true) {
        assert!(device.promised <= device.capacity, "{device:?}");
    }
}

fn named(of: &Checked, name: &str) -> CreateVolumes {
    CreateVolumes { names: vec![name.into()], ..of.wanted.clone() }
}

#[test]
fn a_creation_whose_caller_has_gone_ends_at_a_step_and_what_it_was_promised_is_free_again() {
    let of = checked("x", 192 * 16 * GIB, 12);
    let mut store = cluster(need(&of) / 2 * 3);
    let all = UnderWay::default();
    let (mut plan, running) = creation(&all, of.clone(), 1);
    assert!(matches!(plan.step(&mut store).unwrap(), Step::More));
    drop(running);
    let revision = store.revision().unwrap();
    assert!(complete(&mut store, &mut plan).is_err());
    assert_eq!(store.revision().unwrap(), revision, "nothing more is done for a caller that has gone");
    let catalog = Catalog::read(&mut store).unwrap();
    let id = *catalog.volumes.keys().next().unwrap();
    assert!(!all.has(id));
    let mut remove = RemoveVolume::unfinished(id);
    assert!(steps::all(&mut store, |store| remove.step(store)).unwrap());
    let catalog = Catalog::read(&mut store).unwrap();
    assert!(catalog.volumes.is_empty() && catalog.plans.is_empty() && catalog.volume("x").is_none());
    assert_eq!(store.list("name/").unwrap().1, []);
    // Their nodes remove the replicas that were ordered; nothing else is promised.
    assert!(catalog.replicas.values().all(|(replica, _)| replica.state == ReplicaState::Dropping));
}

#[test]
fn a_name_that_an_interrupted_creation_has_left_can_be_used_at_once() {
    for (maker, at, alive, again, expected) in [
        // Its node does not answer this one, but may use the store: so the command may run.
        (1, 2, [false, true, true], false, false),
        (1, 2, [true; 3], false, false),
        // Its node has started again, so the command has ended.
        (1, 2, [true; 3], true, true),
        // At the same node the command is known to have ended.
        (2, 2, [true; 3], false, true),
    ] {
        let mut store = cluster(1 << 40);
        let mine = UnderWay::default();
        let (mut plan, running) = creation(&mine, checked("x", GIB, 1), maker);
        let old = complete(&mut store, &mut plan).unwrap()[0].id;
        drop(running);
        if again {
            start_again(&mut store, maker);
        }
        let mut of = checked("x", GIB, 1);
        of.wanted.copies = 2;
        let (mut again, _running) = creation_with(&mine, of, at, alive);
        let made = complete(&mut store, &mut again);
        assert_eq!(made.is_ok(), expected, "{made:?}");
        match made {
            Ok(made) => assert_ne!(made[0].id, old),
            Err(why) => {
                assert!(why.to_string().contains("is being made by a command at node node-1"), "{why}")
            }
        }
    }
}

#[test]
fn a_volume_that_has_its_record_is_never_taken_back() {
    let mut store = cluster(1 << 40);
    let all = UnderWay::default();
    let of = checked("x", GIB, 1);
    let (mut plan, running) = creation(&all, of.clone(), 1);
    let planned = complete(&mut store, &mut plan).unwrap();
    let mut records = MakeRecords::new(planned.clone(), of.layout, false);
    assert!(steps::all(&mut store, |store| records.step(store)).unwrap().is_empty());
    drop(running);
    let before = store.list("").unwrap().1;
    let mut remove = RemoveVolume::unfinished(planned[0].id);
    assert!(!steps::all(&mut store, |store| remove.step(store)).unwrap());
    assert_eq!(store.list("").unwrap().1, before);
    assert!(Catalog::read(&mut store).unwrap().plans.is_empty(), "the plan goes with the record");
    // And one that is taken back gets no record.
    let (mut plan, _running) = creation(&all, checked("y", GIB, 1), 1);
    let planned = complete(&mut store, &mut plan).unwrap();
    let mut remove = RemoveVolume::unfinished(planned[0].id);
    assert!(steps::all(&mut store, |store| remove.step(store)).unwrap());
    let mut records = MakeRecords::new(planned.clone(), of.layout, false);
    assert_eq!(steps::all(&mut store, |store| records.step(store)).unwrap(), BTreeSet::from([planned[0].id]));
    assert_eq!(store.list(&format!("record/{}", planned[0].id)).unwrap().1, []);
}

#[test]
fn a_deletion_that_was_interrupted_is_completed() {
    let mut store = cluster(1 << 50);
    let all = UnderWay::default();
    let of = checked("x", 192 * 16 * GIB, 12);
    let (mut plan, _running) = creation(&all, of.clone(), 1);
    let planned = complete(&mut store, &mut plan).unwrap();
    let id = planned[0].id;
    let mut records = MakeRecords::new(planned, of.layout, false);
    assert!(steps::all(&mut store, |store| records.step(store)).unwrap().is_empty());
    let mut remove = RemoveVolume::any(id);
    assert!(matches!(remove.step(&mut store).unwrap(), Step::More));
    drop(remove);
    assert_eq!(Catalog::read(&mut store).unwrap().volumes[&id].0.state, VolumeState::Deleting);
    let mut remove = RemoveVolume::unfinished(id);
    assert!(steps::all(&mut store, |store| remove.step(store)).unwrap());
    let catalog = Catalog::read(&mut store).unwrap();
    assert!(catalog.volumes.is_empty() && catalog.records.is_empty());
    assert!(catalog.replicas.values().all(|(replica, _)| replica.state == ReplicaState::Dropping));
    assert_eq!(store.list("name/").unwrap().1, []);
}

#[test]
fn what_is_taken_back_is_removed_only_if_unused_and_what_a_person_deletes_in_any_case() {
    for (has_record, deletes, unless_used) in
        [(false, false, true), (false, true, false), (true, true, false)]
    {
        let mut store = cluster(1 << 40);
        let all = UnderWay::default();
        let of = checked("x", GIB, 1);
        let (mut plan, _running) = creation(&all, of.clone(), 1);
        let planned = complete(&mut store, &mut plan).unwrap();
        let id = planned[0].id;
        if has_record {
            let mut records = MakeRecords::new(planned, of.layout, false);
            assert!(steps::all(&mut store, |store| records.step(store)).unwrap().is_empty());
        }
        let mut remove = if deletes { RemoveVolume::any(id) } else { RemoveVolume::unfinished(id) };
        assert!(steps::all(&mut store, |store| remove.step(store)).unwrap());
        let catalog = Catalog::read(&mut store).unwrap();
        assert_eq!(catalog.replicas.len(), 3);
        for (replica, _) in catalog.replicas.values() {
            assert_eq!((replica.state, replica.unless_used), (ReplicaState::Dropping, unless_used));
        }
    }
}

#[test]
fn a_claim_of_a_commit_that_was_lost_is_given_up_and_the_last_claimer_has_the_id() {
    let mut store = cluster(1 << 40);
    let all = UnderWay::default();
    // Both read the same next id: the other one changes the configuration after the first has planned.
    let (mut first, running) = creation(&all, checked("x", GIB, 1), 1);
    let read = Catalog::read(&mut store).unwrap();
    first.made = first.plan(&read).unwrap();
    let (_, take) = read.take_ids(0);
    assert!(store.commit(&[take]).unwrap());
    let (mut second, _running) = creation(&all, checked("y", GIB, 1), 1);
    let made = complete(&mut store, &mut second).unwrap();
    assert!(matches!(first.step(&mut store).unwrap(), Step::More), "its commit is lost");
    drop(running);
    assert!(all.has(made[0].id), "the command that makes the volume runs");
    // Without another command, the claim of a lost commit ends with the commit.
    let (mut third, _third) = creation(&all, checked("z", GIB, 1), 1);
    let read = Catalog::read(&mut store).unwrap();
    third.made = third.plan(&read).unwrap();
    let id = third.made.as_ref().unwrap().0[0].id;
    let (_, take) = read.take_ids(0);
    assert!(store.commit(&[take]).unwrap() && all.has(id));
    assert!(matches!(third.step(&mut store).unwrap(), Step::More));
    assert!(!all.has(id));
}

/// The process of a node starts again.
fn start_again(store: &mut MemoryStore, node: u32) {
    let (of, version) = Catalog::read(store).unwrap().nodes[&node].clone();
    let next = catalog::Node { incarnation: of.incarnation + 1, ..of };
    assert!(store.commit(&[change(format!("node/{node}"), Some(version), &next)]).unwrap());
}

#[test]
fn a_volume_of_a_node_that_shows_that_it_runs_is_not_removed_by_another() {
    let mut store = cluster(1 << 40);
    let all = UnderWay::default();
    let (mut plan, _running) = creation(&all, checked("x", GIB, 1), 1);
    let id = complete(&mut store, &mut plan).unwrap()[0].id;
    let show = |store: &mut MemoryStore, expected| {
        let maker = catalog::Maker { incarnation: 1 };
        assert!(store.commit(&[change("maker/1", expected, &maker)]).unwrap());
        Catalog::read(store).unwrap().makers[&1]
    };
    // Another node has seen nothing for a while. Meanwhile the maker has shown that it runs.
    let seen = Catalog::read(&mut store).unwrap().makers.get(&1).copied();
    let first = show(&mut store, None);
    let second = show(&mut store, Some(first));
    for silent in [seen, Some(first)] {
        let mut remove = RemoveVolume::left(id, Some((1, silent)));
        assert!(!steps::all(&mut store, |store| remove.step(store)).unwrap());
    }
    assert!(Catalog::read(&mut store).unwrap().volume("x").is_some());
    let mut remove = RemoveVolume::left(id, Some((1, Some(second))));
    assert!(steps::all(&mut store, |store| remove.step(store)).unwrap());
    assert!(Catalog::read(&mut store).unwrap().volume("x").is_none());
}

#[test]
fn first_copies_of_volumes_without_a_wanted_node_are_spread_over_all_nodes() {
    for copies in [1, 2, 3] {
        let mut store = cluster(64 * GIB);
        let wanted = CreateVolumes { copies, ..named(&checked("x", GIB, 1), "x") };
        let names = (1..=9).map(|number| format!("disk-{number}")).collect();
        let of = check(CreateVolumes { names, ..wanted }).unwrap();
        let under_way = UnderWay::default();
        let (mut creation, _running) = creation(&under_way, of, 1);
        let mut planned = Vec::new();
        while planned.is_empty() {
            if let Step::Done(some) = creation.step(&mut store).unwrap() {
                planned = some.unwrap();
            }
        }
        let mut firsts = BTreeMap::new();
        planned.iter().for_each(|volume| *firsts.entry(volume.first).or_insert(0) += 1);
        assert_eq!(firsts, BTreeMap::from([(1, 3), (2, 3), (3, 3)]), "{copies} copies");
        assert_eq!(first_copies(&Catalog::read(&mut store).unwrap()), firsts);
    }
}
