//! The first owner of a new replica waits for no lease, and every other owner does (rules L3 and L6).

use loadline_san_core::history::History;
use loadline_san_core::ids::{Epoch, Incarnation, NodeId, Owner, Position, ReplicaId, Sequence, VolumeId};
use loadline_san_core::lease::Moment;
use loadline_san_core::message::{FromOwner, Promise, ToOwner, ToReplica};
use loadline_san_core::replica::{Action, Event, Replica};
use loadline_san_core::store::{Command, Completion, DurableState};

const VOLUME: VolumeId = VolumeId(7);
const REPLICA: ReplicaId = ReplicaId(3);
const LEASE: u64 = 1_000_000;
const START: Moment = Moment(5 * LEASE);

fn owner(node: u32) -> Owner {
    Owner { node: NodeId(node), incarnation: Incarnation(1) }
}

fn from(node: u32, epoch: u64) -> FromOwner {
    FromOwner {
        volume: VOLUME,
        replica: REPLICA,
        owner: owner(node),
        epoch: Epoch(epoch),
        session: epoch,
        process: Incarnation(5),
    }
}

/// What the device of a new replica holds.
fn nothing() -> DurableState {
    let no_owner = Owner { node: NodeId(0), incarnation: Incarnation(0) };
    DurableState {
        promise: Promise { epoch: Epoch(0), owner: no_owner },
        commit_point: Position::START,
        epoch: Epoch(0),
        end: Position::START,
        damaged: false,
    }
}

/// Gives the replica a message, and carries out all its commands to the store at once. Returns whether the replica has reported that it is
/// sealed.
fn step(replica: &mut Replica, now: Moment, event: Event<u8>) -> bool {
    let (mut sealed, mut events) = (false, vec![event]);
    while let Some(event) = events.pop() {
        let mut out = Vec::new();
        replica.step(now, event, &mut out).expect("it is for this replica");
        for action in out {
            match action {
                Action::Send(_, _, answer) => sealed |= matches!(answer, ToOwner::Sealed(_)),
                Action::Store(Command::Promise(promise)) => {
                    events.push(Event::Store(Completion::Promised(promise)));
                }
                Action::Store(Command::Above(question)) => {
                    events.push(Event::Store(Completion::Above(question, Vec::new())));
                }
                Action::Store(_) => {}
            }
        }
    }
    sealed
}

fn is_sealed_at_once(replica: &mut Replica, now: Moment, by: FromOwner) -> bool {
    let seal = ToReplica::Seal { member_since: Epoch(0), history: History::default(), salvage: false };
    step(replica, now, Event::Message(by, seal))
}

fn heartbeat(replica: &mut Replica, now: Moment, of: FromOwner) {
    let message =
        ToReplica::Heartbeat { ownership: of.epoch, commit_point: Sequence(0), asked: now, keep: Epoch(0) };
    step(replica, now, Event::Message(of, message));
}

fn made() -> Replica {
    Replica::made(VOLUME, REPLICA, Incarnation(5), LEASE, &nothing(), START)
}

#[test]
fn a_replica_that_its_process_made_is_sealed_at_once() {
    assert!(is_sealed_at_once(&mut made(), START, from(1, 2)));
}

#[test]
fn a_replica_that_another_process_made_waits_for_a_lease_also_if_it_holds_nothing() {
    let mut replica = Replica::new(VOLUME, REPLICA, Incarnation(5), LEASE, &nothing(), START);
    assert!(!is_sealed_at_once(&mut replica, START, from(1, 2)));
    assert!(!step(&mut replica, Moment(START.0 + LEASE - 1), Event::Wake));
    assert!(step(&mut replica, START.after(LEASE), Event::Wake));
}

#[test]
fn a_first_owner_that_crashes_before_it_is_active_has_no_lease_to_wait_for() {
    let mut replica = made();
    assert!(is_sealed_at_once(&mut replica, START, from(1, 2)));
    assert!(is_sealed_at_once(&mut replica, START.after(1), from(2, 3)));
}

#[test]
fn the_lease_of_the_first_owner_is_waited_for() {
    let mut replica = made();
    assert!(is_sealed_at_once(&mut replica, START, from(1, 2)));
    heartbeat(&mut replica, START.after(10), from(1, 2));
    assert!(!is_sealed_at_once(&mut replica, START.after(20), from(2, 3)));
    assert!(step(&mut replica, START.after(10 + LEASE), Event::Wake));
}
