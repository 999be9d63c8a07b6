use loadline_san_core::ids::{Epoch, Incarnation, NodeId, Owner};

use super::*;
use crate::config::catalog::{Node, Replica, ReplicaState, SocketPlace, VolumeState};
use crate::config::example;
use crate::node::manage::local::{LocalGroup, LocalMember, LocalReturn};

const VOLUME: u64 = 10;

/// Three nodes, each with a copy (11 to 13) of a volume that node 1 owns at epoch 7, and what they report when all is well.
pub(in crate::node) struct Cluster {
    pub(in crate::node) catalog: Catalog,
    pub(in crate::node) volume: Volume,
    pub(in crate::node) record: Record,
    pub(in crate::node) reports: Reports,
}

pub(in crate::node) fn cluster() -> Cluster {
    let mut catalog = Catalog::default();
    let address = "127.0.0.1:1".parse().unwrap();
    let owner = Owner { node: NodeId(1), incarnation: Incarnation(5) };
    let volume = Volume {
        cache_bytes: 0,
        name: "disk".into(),
        copies: 3,
        least: 2,
        stripes: 1,
        unit_blocks: 64,
        group_blocks: 64,
        blocks: 64,
        lease_ms: 600,
        log_bytes: 32 << 20,
        attached: Some(1),
        attach_key: None,
        handed_at: None,
        socket: SocketPlace::First,
        initiators: Vec::new(),
        requires_tls: false,
        limit: None,
        state: VolumeState::Ready,
    };
    let copies = [(11, 1), (12, 2), (13, 3)];
    let record = Record { least: 2, ..example::record(7, owner, &copies) };
    let mut reports = Reports::new();
    for (id, node) in copies {
        let name = format!("node-{node}");
        let of = Node {
            name: name.clone(),
            api: address,
            peer: address,
            endpoints: BTreeMap::new(),
            incarnation: 5,
            certificates: Vec::new(),
            draining: false,
            maintenance: false,
            stopping: false,
            keeps: Default::default(),
        };
        catalog.nodes.insert(node, (of, 1));
        let replica = Replica {
            volume: VOLUME,
            group: 0,
            blocks: 64,
            node,
            device: node,
            log_device: node,
            log_bytes: 32 << 20,
            key: 1,
            state: ReplicaState::Ready,
            refused: None,
            instead_of: None,
            leave_to: None,
            gives_way: false,
            unless_used: false,
            unusable: None,
        };
        catalog.replicas.insert(id, (replica, 1));
        let copy =
            LocalReplica { id, state: Usable::Open, why: None, epoch: Some(7), owner: Some(owner.into()) };
        let member = |replica| LocalMember { replica, required: true, session: SessionView::Answers };
        let serves = node == 1;
        let of = LocalVolume {
            id: VOLUME,
            doing: if serves { Doing::Active } else { Doing::Watching },
            clients: 0,
            obeyed: None,
            blocked: None,
            epoch: 7,
            owner: Some(owner.into()),
            groups: serves
                .then_some(LocalGroup { in_sync: 3, least: 2, reads: true, room: true })
                .into_iter()
                .collect(),
            members: (11..=13).filter(|_| serves).map(member).collect(),
            returning: Vec::new(),
        };
        let view = LocalView {
            node: name,
            incarnation: 5,
            store_fault: None,
            silent_loops: 0,
            volumes: vec![of],
            replicas: vec![copy],
            devices: Vec::new(),
            initiators: Vec::new(),
            lost_initiators: Vec::new(),
            taken_back: Vec::new(),
        };
        reports.insert(node, Ok(view));
    }
    Cluster { catalog, volume, record, reports }
}

impl Cluster {
    pub(in crate::node::manage) fn node(&mut self, node: u32) -> &mut LocalView {
        self.reports.get_mut(&node).unwrap().as_mut().unwrap()
    }

    fn judged(&self) -> (Health, String) {
        self.judged_with(None)
    }

    fn judged_with(&self, store_fault: Option<StoreFaultKind>) -> (Health, String) {
        let judge = Judge { catalog: &self.catalog, reports: &self.reports, store_fault };
        let (health, note) = judge.volume(VOLUME, &self.volume, &self.record);
        (health, note.unwrap_or_default())
    }

    fn must(&self, health: Health, part: &str) {
        let (is, note) = self.judged();
        assert!(is == health && note.contains(part), "{is:?}: {note}");
    }
}

#[test]
fn what_all_report_is_healthy_and_whatever_is_missing_is_not() {
    cluster().must(Health::Healthy, "");
    type Change = fn(&mut Cluster);
    let cases: [(Change, Health, &str); 16] = [
        (|c| c.node(1).incarnation = 6, Health::Waiting, "names another owner"),
        (|c| c.node(1).volumes[0].doing = Doing::Watching, Health::Waiting, "no node serves the volume yet"),
        (|c| c.node(1).volumes.clear(), Health::Waiting, "no node serves the volume yet"),
        (|c| c.node(1).volumes[0].groups[0].reads = false, Health::Waiting, "leases"),
        (|c| c.node(1).volumes[0].groups[0].in_sync = 1, Health::Waiting, "a write needs 2"),
        (|c| c.node(1).volumes[0].groups.clear(), Health::Unknown, "all parts"),
        (|c| c.node(1).volumes[0].members[2].session = SessionView::Silent, Health::Degraded, "node-3"),
        (|c| c.node(1).volumes[0].members.truncate(2), Health::Degraded, "no session"),
        (|c| c.node(1).volumes[0].groups[0].in_sync = 2, Health::Degraded, ""),
        (|c| c.node(3).replicas[0].state = Usable::Damaged, Health::Degraded, "node-3"),
        (|c| c.node(3).replicas[0].state = Usable::Opening, Health::Unknown, "node-3"),
        (|c| c.node(3).replicas.clear(), Health::Unknown, "node-3"),
        (|c| c.node(3).replicas[0].owner = None, Health::Unknown, "does not follow node-1"),
        (|c| c.node(3).replicas[0].epoch = Some(8), Health::Blocked, "recover disk --from NODE"),
        (|c| _ = c.reports.insert(3, Err(Silent::Gone("x".into()))), Health::Degraded, "node-3 (x)"),
        (|c| _ = c.reports.insert(3, Err(Silent::Mute("x".into()))), Health::Unknown, "node-3 (x)"),
    ];
    for (change, health, part) in cases {
        let mut cluster = cluster();
        change(&mut cluster);
        cluster.must(health, part);
    }
}

const RETURNING: LocalReturn = LocalReturn { replica: 13, left: 5, copied: 2, full: false };

#[test]
fn a_copy_that_comes_back_is_counted_only_if_its_node_uses_it() {
    let mut cluster = cluster();
    cluster.record.groups[0].in_sync.remove(&ReplicaId(13));
    let of = &mut cluster.node(1).volumes[0];
    (of.groups[0].in_sync, of.members[2].required, of.returning) = (2, false, vec![RETURNING]);
    cluster.must(Health::Resyncing, "");
    cluster.node(3).replicas[0].state = Usable::NotOpened;
    cluster.must(Health::Degraded, "");
}

#[test]
fn a_copy_whose_device_went_back_is_not_healthy_although_no_owner_has_greeted_it() {
    let rolled_back = |attached: bool, older: &[u32]| {
        let mut cluster = cluster();
        for node in 1..=3u32 {
            cluster.record.groups[0].since.insert(ReplicaId(10 + u64::from(node)), Epoch(6));
            if !attached {
                cluster.node(node).volumes[0].doing = Doing::Watching;
            }
        }
        if !attached {
            cluster.volume.attached = None;
        }
        cluster.must(Health::Healthy, "");
        for node in older {
            cluster.node(*node).replicas[0].epoch = Some(5);
        }
        cluster
    };
    for attached in [false, true] {
        let cluster = rolled_back(attached, &[3]);
        cluster.must(Health::Degraded, "node-3 (the device of the copy holds an older state");
    }
    let cluster = rolled_back(false, &[1, 2, 3]);
    cluster.must(Health::Waiting, "node-1 (the device of the copy holds an older state");
    cluster.must(Health::Waiting, "volume recover");
}

#[test]
fn what_is_waited_for_is_named() {
    let mut cluster = cluster();
    let gone = || Err(Silent::Gone("does not answer".into()));
    cluster.reports.insert(1, gone());
    cluster.must(Health::Waiting, "node-1, which owned the volume, does not answer");
    let of = &mut cluster.node(2).volumes[0];
    of.doing = Doing::Sealing;
    // In each of two groups.
    of.members =
        [13, 13].map(|replica| LocalMember { replica, required: true, session: SessionView::Asked }).into();
    cluster.must(Health::Waiting, "node-2 takes the volume over, and waits for the answer of node-3;");
    for node in [2, 3] {
        cluster.reports.insert(node, gone());
    }
    cluster.must(
        Health::Waiting,
        "every write of the volume is stored only at node-1 (does not answer) and node-2 (does",
    );
    cluster.reports.insert(2, Err(Silent::Mute("is mute".into())));
    cluster.must(Health::Waiting, "and node-2 (is mute)");
    cluster.volume.attached = None;
    cluster.must(Health::Waiting, "every write of the volume is stored only at");
}

#[test]
fn while_the_store_does_not_answer_no_takeover_is_promised() {
    let away = |change: fn(&mut Cluster)| {
        let mut cluster = cluster();
        change(&mut cluster);
        cluster.judged_with(Some(StoreFaultKind::Silent))
    };
    let (health, note) = away(|_| {});
    assert!(health == Health::Unknown && note.contains("last known state"), "{health:?}: {note}");
    // Without the store no record changes, so no other node becomes the owner, and no copy is left out.
    let unserved: [fn(&mut Cluster); 2] = [
        |c| c.node(1).volumes[0].doing = Doing::Watching,
        |c| _ = c.reports.insert(1, Err(Silent::Gone("does not answer".into()))),
    ];
    for change in unserved {
        let (health, note) = away(change);
        assert!(health == Health::Waiting && note.contains("until it does no owner can be chosen"), "{note}");
        assert!(!note.contains("takes the volume over"), "{note}");
    }
    let missing: [fn(&mut Cluster); 2] = [
        |c| c.node(1).volumes[0].members[2].session = SessionView::Silent,
        |c| _ = c.reports.insert(3, Err(Silent::Gone("does not answer".into()))),
    ];
    for change in missing {
        let (health, note) = away(change);
        assert!(health == Health::Waiting && note.contains("this copy cannot be excluded"), "{note}");
    }
}

/// A store that went back, and one that cannot be used, do not end by themselves: the notes say what ends each, and do not call it silent.
#[test]
fn a_store_that_answers_is_not_called_silent_and_has_advice_of_its_own() {
    let cases: [fn(&mut Cluster); 5] = [
        |_| {},
        |c| c.node(1).volumes[0].doing = Doing::Watching,
        |c| _ = c.reports.insert(1, Err(Silent::Gone("does not answer".into()))),
        |c| c.node(1).volumes[0].members[2].session = SessionView::Silent,
        |c| c.node(1).volumes[0].doing = Doing::Claiming,
    ];
    for (case, change) in cases.into_iter().enumerate() {
        let mut cluster = cluster();
        change(&mut cluster);
        let least = if case == 0 { Health::Unknown } else { Health::Waiting };
        let (health, note) = cluster.judged_with(Some(StoreFaultKind::WentBack));
        assert_eq!(health, least, "{case}: {note}");
        assert!(note.contains("an older copy of the configuration store was put back"), "{case}: {note}");
        assert!(note.contains("put it back first. Then restart the nodes"), "{case}: {note}");
        let (health, other) = cluster.judged_with(Some(StoreFaultKind::Unusable));
        assert_eq!(health, least, "{case}: {other}");
        let named = match case {
            0 => "the configuration store is not used",
            4 => "waits for the configuration store",
            _ => "the configuration store cannot be used",
        };
        assert!(other.contains(named), "{case}: {other}");
        for note in [note, other] {
            let is_silence = ["store does not answer", "by itself", "when the store answers"];
            assert!(is_silence.iter().all(|words| !note.contains(words)), "{case}: {note}");
        }
    }
}

#[test]
fn copies_of_a_volume_that_is_not_attached_are_to_be_in_use() {
    let mut cluster = cluster();
    cluster.volume.attached = None;
    cluster.node(1).volumes[0].doing = Doing::Watching;
    cluster.must(Health::Healthy, "");
    cluster.node(2).replicas[0].state = Usable::Failed;
    cluster.must(Health::Degraded, "node-2");
    // The store holds less than one of them has promised.
    cluster.node(1).replicas[0].epoch = Some(9);
    cluster.must(Health::Blocked, "node-1 follows node-1 at epoch 9, node-2 follows node-1 at epoch 7");
}

#[test]
fn a_copy_that_follows_an_owner_that_is_not_in_the_record_blocks_the_volume_also_while_it_is_served() {
    let mut cluster = cluster();
    let owner = cluster.record.owner;
    cluster.record.history.claim(Epoch(5), owner);
    cluster.must(Health::Healthy, "");
    let other = OwnerView { node: 3, incarnation: 99 };
    cluster.node(2).replicas[0].owner = Some(other);
    cluster.node(2).replicas[0].epoch = Some(6);
    cluster.must(
        Health::Blocked,
        "the copy at node-2 follows node-3 at epoch 6, but according to the configuration store node-1 owned the volume at that epoch",
    );
    cluster.must(Health::Blocked, "an older configuration was put back");
    // A person has decided since.
    cluster.record.groups[0].recovered = Epoch(7);
    cluster.record.history.recovered(Epoch(7), owner);
    cluster.node(2).replicas[0].epoch = Some(6);
    let (health, _) = cluster.judged();
    assert_ne!(health, Health::Blocked);
}

#[test]
fn a_node_that_blocks_what_another_serves_is_heard() {
    let mut cluster = cluster();
    let of = &mut cluster.node(2).volumes[0];
    (of.doing, of.blocked) = (Doing::Blocked, Some("the store held epoch 8".into()));
    cluster.must(
        Health::Unknown,
        "node-2 reports: the store held epoch 8. If the copies that node-1 serves are the right ones, restart node-2",
    );
}

/// The configuration is one from the middle of a resize, and the resize was completed.
#[test]
fn a_volume_that_was_larger_than_its_record_is_not_healthy() {
    let mut cluster = cluster();
    let (mut replica, _) = cluster.catalog.replicas[&11].clone();
    replica.group = 1;
    cluster.catalog.replicas.insert(21, (replica.clone(), 1));
    let mut copy = cluster.node(1).replicas[0].clone();
    let nobody = OwnerView { node: 0, incarnation: 0 };
    (copy.id, copy.epoch, copy.owner) = (21, Some(0), Some(nobody));
    cluster.node(1).replicas.push(copy);
    // It is being made larger.
    cluster.must(Health::Healthy, "");
    cluster.node(1).replicas[1].owner = cluster.node(1).replicas[0].owner;
    cluster.must(Health::Unknown, "the volume was larger, and copies of its last part were used (node-1)");
    let refused =
        |why: &str| Replica { state: ReplicaState::Wanted, refused: Some(why.into()), ..replica.clone() };
    cluster.catalog.replicas.insert(21, (refused("there is no room"), 1));
    cluster.must(Health::Healthy, "");
    cluster.catalog.replicas.insert(21, (refused(Replica::USED_BEFORE), 1));
    cluster.must(Health::Unknown, "put the newest configuration back");
    cluster.catalog.replicas.insert(21, (replica.taken_back(), 1));
    cluster.must(Health::Degraded, "are being removed (node-1)");
    let kept = Replica { refused: Some("it was used".into()), ..replica.taken_back() };
    cluster.catalog.replicas.insert(21, (kept, 1));
    cluster.must(Health::Healthy, "");
}
