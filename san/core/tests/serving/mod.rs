//! A volume at node 1 with one replica there, step by step on its way to serve.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::collections::{BTreeMap, BTreeSet};

use loadline_san_core::history::History;
use loadline_san_core::ids::{
    Epoch, Incarnation, NodeId, Owner, Position, ProposalId, ReplicaId, Sequence, VolumeId,
};
use loadline_san_core::layout::Layout;
use loadline_san_core::lease::Moment;
use loadline_san_core::message::{FromReplica, Progress, Promise, SealReport, ToOwner, ToReplica};
use loadline_san_core::record::{Group, Record, RecordState};
use loadline_san_core::swap::Answer;
use loadline_san_core::volume::{Action, Event, Status, Times, Volume};

pub(crate) const VOLUME: VolumeId = VolumeId(7);
pub(crate) const REPLICA: ReplicaId = ReplicaId(3);
pub(crate) const LEASE_NS: u64 = 1_000_000;
pub(crate) const NOW: Moment = Moment(10 * LEASE_NS);

pub(crate) fn owner(node: u32) -> Owner {
    Owner { node: NodeId(node), incarnation: Incarnation(1) }
}

pub(crate) fn record() -> Record {
    Record {
        epoch: Epoch(9),
        made_by: ProposalId { by: owner(2), number: 1 },
        owner: owner(2),
        state: RecordState::Active,
        attachment: 1,
        fence: 0,
        lease_ns: LEASE_NS,
        blocks: 64,
        layout: Layout::new(1, 64, 64).unwrap(),
        least: 1,
        history: History::default(),
        homes: BTreeMap::from([(REPLICA, NodeId(1))]),
        groups: vec![Group { in_sync: BTreeSet::from([REPLICA]), ..Group::default() }],
    }
}

/// A volume at node 1, which has requested the record.
pub(crate) fn volume() -> (Volume<u8>, Vec<Action<u8>>) {
    let mut volume = Volume::new(owner(1), VOLUME, Times::of_lease(LEASE_NS), 1, NOW);
    let mut out = Vec::new();
    volume.step(NOW, Event::Attach, &mut out);
    assert_eq!(out, [Action::ReadRecord { asked_at: Epoch(0) }]);
    out.clear();
    (volume, out)
}

/// The header of a message from a replica to node 1, in a session of this number.
pub(crate) fn said(session: u64) -> FromReplica {
    FromReplica { volume: VOLUME, replica: REPLICA, process: Incarnation(5), owner: owner(1), session }
}

/// A volume at node 1, which has asked which owner the members follow.
pub(crate) fn asking() -> (Volume<u8>, Vec<Action<u8>>) {
    asking_of(record())
}

pub(crate) fn asking_of(record: Record) -> (Volume<u8>, Vec<Action<u8>>) {
    let (mut volume, mut out) = volume();
    volume.step(NOW, Event::Seen(record, Epoch(0)), &mut out);
    assert!(matches!(out[..], [Action::Attached, Action::Send { message: ToReplica::Probe, .. }, ..]));
    out.clear();
    (volume, out)
}

/// A volume at node 1, whose first swap is on its way.
pub(crate) fn claiming() -> (Volume<u8>, Vec<Action<u8>>) {
    claiming_of(record())
}

pub(crate) fn claiming_of(record: Record) -> (Volume<u8>, Vec<Action<u8>>) {
    let (mut volume, mut out) = asking_of(record);
    let promise = Promise { epoch: Epoch(9), owner: owner(2) };
    volume.step(NOW, Event::Message(said(0), ToOwner::Probed { promise, quiet_ns: 0 }), &mut out);
    assert_eq!(volume.status(), Status::Claiming);
    out.clear();
    (volume, out)
}

/// A volume at node 1 that serves: its one member has reported what it has, and has the opening entry.
pub(crate) fn serving() -> (Volume<u8>, Vec<Action<u8>>) {
    serving_of(record())
}

pub(crate) fn serving_of(record: Record) -> (Volume<u8>, Vec<Action<u8>>) {
    let (mut volume, mut out) = claiming_of(record);
    let swapped = |volume: &mut Volume<u8>, number, out: &mut Vec<Action<u8>>| {
        let id = ProposalId { by: owner(1), number };
        volume.step(NOW, Event::Swapped(id, Answer::Committed, Epoch(9)), out);
    };
    swapped(&mut volume, 1, &mut out);
    let report =
        SealReport { commit_point: Position::START, end: Position::START, full: false, above: Vec::new() };
    volume.step(NOW, Event::Message(said(1), ToOwner::Sealed(report)), &mut out);
    swapped(&mut volume, 2, &mut out);
    assert_eq!(volume.status(), Status::Active);
    out.clear();
    (volume, out)
}

/// A volume of a TiB that serves, and its opening entry is acknowledged.
pub(crate) fn large() -> (Volume<u8>, Vec<Action<u8>>) {
    let blocks = 1 << 28;
    serving_of(Record { blocks, layout: Layout::new(1, blocks, blocks).unwrap(), ..record() })
}

/// How far the replica is that has all entries up to this one.
pub(crate) fn progress(volume: &Volume<u8>, through: u64, full: bool) -> Progress {
    Progress {
        ownership: volume.record().expect("it serves").epoch,
        received: Sequence(through),
        durable: Sequence(through),
        out_of_band_received: 0,
        out_of_band_durable: 0,
        returned: false,
        gap: false,
        full,
    }
}

/// The replica has all entries up to this one.
pub(crate) fn has(volume: &mut Volume<u8>, through: u64, full: bool, out: &mut Vec<Action<u8>>) {
    let progress = progress(volume, through, full);
    volume.step(NOW, Event::Message(said(1), ToOwner::Durable(progress)), out);
}
