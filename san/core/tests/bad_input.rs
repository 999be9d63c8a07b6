//! Input that cannot be meant, or cannot occur: it is reported as an error, and nothing changes.

mod serving;

use std::collections::BTreeMap;

use loadline_san_core::history::{Claim, History};
use loadline_san_core::ids::{
    Epoch, Incarnation, NodeId, Owner, Position, ProposalId, ReplicaId, Sequence, VolumeId,
};
use loadline_san_core::layout::GroupIndex;
use loadline_san_core::lease::Moment;
use loadline_san_core::message::{Entry, EntryOp, FromOwner, FromReplica, Promise, ToOwner, ToReplica};
use loadline_san_core::record::{Record, RecordError};
use loadline_san_core::replica::{self, Misdirected, Replica};
use loadline_san_core::store::{Command, Completion, DurableState};
use loadline_san_core::swap::Answer;
use loadline_san_core::volume::{
    Action, CommandError, Event, Failure, Request, RequestId, RequestOp, Status, Times, Volume, VolumeCommand,
};
use serving::*;

fn from(owner: Owner, epoch: u64, session: u64) -> FromOwner {
    FromOwner {
        volume: VOLUME,
        replica: REPLICA,
        owner,
        epoch: Epoch(epoch),
        session,
        process: Incarnation(5),
    }
}

fn entry(sequence: u64) -> ToReplica<u8> {
    let op = if sequence == 1 { EntryOp::Open } else { EntryOp::Trim };
    let blocks = u32::from(sequence > 1);
    let entry = Entry { block: 0, blocks, op };
    ToReplica::Entry { ownership: Epoch(4), sequence: Sequence(sequence), commit_point: Sequence(0), entry }
}

fn hello() -> ToReplica<u8> {
    ToReplica::Hello { member_since: Epoch(0), history: History::default() }
}

fn seal(salvage: bool) -> ToReplica<u8> {
    ToReplica::Seal { member_since: Epoch(0), history: History::default(), salvage }
}

/// Claims: epoch and node.
fn history(claims: &[(u64, u32)]) -> History {
    let claims = claims.iter().map(|(epoch, node)| Claim::of(Epoch(*epoch), owner(*node)));
    History::of(claims.collect()).unwrap()
}

/// A replica that follows node 1, whose first entries it has.
struct Bench {
    replica: Replica,
    out: Vec<replica::Action<u8>>,
}

impl Bench {
    fn new() -> Bench {
        let found = DurableState {
            promise: Promise { epoch: Epoch(3), owner: owner(1) },
            commit_point: Position::START,
            epoch: Epoch(3),
            end: Position::START,
            damaged: false,
        };
        let replica = Replica::new(VOLUME, REPLICA, Incarnation(5), LEASE_NS, &found, Moment(0));
        let mut bench = Bench { replica, out: Vec::new() };
        bench.say(from(owner(1), 4, 8), hello());
        bench.say(from(owner(1), 4, 8), entry(1));
        bench.say(from(owner(1), 4, 8), entry(2));
        bench
    }

    /// What comes of a message.
    fn say(&mut self, from: FromOwner, message: ToReplica<u8>) -> Vec<replica::Action<u8>> {
        self.out.clear();
        self.replica.step(NOW, replica::Event::Message(from, message), &mut self.out).expect("it is for it");
        self.out.clone()
    }

    /// What it answers, if it does nothing but answer.
    fn answer(&mut self, from: FromOwner, message: ToReplica<u8>) -> Option<ToOwner<u8>> {
        match &self.say(from, message)[..] {
            [] => None,
            [replica::Action::Send(_, _, answer)] => Some(answer.clone()),
            more => panic!("it does {more:?}"),
        }
    }
}

#[test]
fn a_message_for_another_volume_or_replica_is_an_error_that_says_so() {
    let mut bench = Bench::new();
    let mut step = |from: FromOwner| {
        let event = replica::Event::Message(from, entry(3));
        let result = bench.replica.step(NOW, event, &mut bench.out);
        (result.unwrap_err(), bench.out.len())
    };
    let before = step(FromOwner { volume: VolumeId(8), ..from(owner(1), 4, 8) });
    assert!(matches!(before.0, Misdirected::Volume { said: 8, .. }), "{}", before.0);
    let (error, after) = step(FromOwner { replica: ReplicaId(4), ..from(owner(1), 4, 8) });
    assert!(matches!(error, Misdirected::Replica { said: ReplicaId(4), .. }), "{error}");
    assert_eq!(before.1, after, "nothing is done");
}

#[test]
fn a_message_from_below_the_promise_is_refused_with_the_promise() {
    let mut bench = Bench::new();
    // The refusal carries the highest epoch of the owner that the replica follows.
    let refused = ToOwner::Refused(Promise { epoch: Epoch(4), owner: owner(1) });
    for message in [hello(), seal(false), entry(3)] {
        assert_eq!(
            bench.answer(from(owner(1), 2, 9), message.clone()),
            Some(refused.clone()),
            "an old epoch"
        );
        assert_eq!(bench.answer(from(owner(2), 3, 9), message), Some(refused.clone()), "another owner's");
        assert_eq!(
            bench.answer(from(owner(2), 4, 9), seal(false)),
            Some(refused.clone()),
            "an epoch that is gone"
        );
    }
}

#[test]
fn a_replica_of_another_history_opens_no_session_and_promises_nothing() {
    let refused = Some(ToOwner::Refused(Promise { epoch: Epoch(4), owner: owner(1) }));
    let other = history(&[(3, 2), (9, 3)]);
    for damaged in [false, true] {
        let mut bench = if damaged { damaged_at_4() } else { Bench::new() };
        let hello = ToReplica::Hello { member_since: Epoch(0), history: other.clone() };
        assert_eq!(bench.answer(from(owner(3), 9, 9), hello), refused);
        // Also if it would count as one that went back in time, which is emptied.
        let older = ToReplica::Hello { member_since: Epoch(8), history: other.clone() };
        assert_eq!(bench.answer(from(owner(3), 9, 10), older), refused);
        for salvage in [false, true] {
            let seal = ToReplica::Seal { member_since: Epoch(0), history: other.clone(), salvage };
            assert_eq!(bench.answer(from(owner(3), 9, 11), seal), refused);
        }
        for empty in [false, true] {
            let answer = bench.answer(from(owner(3), 9, 11), return_empty(empty));
            assert!(matches!(answer, None | Some(ToOwner::Stranger | ToOwner::Damaged)), "{answer:?}");
        }
        assert_eq!(bench.replica.promise().owner, owner(1));
    }
    let mut bench = Bench::new();
    let same = ToReplica::Hello { member_since: Epoch(0), history: history(&[(3, 1), (9, 3)]) };
    assert!(matches!(bench.answer(from(owner(3), 9, 9), same), Some(ToOwner::Welcome(_))));
}

/// A message from an owner of another history may arrive late, and its numbers do not relate to those of another owner.
#[test]
fn a_late_greeting_of_another_owner_at_the_same_epoch_does_not_shut_an_owner_out() {
    let mut bench = Bench::new();
    let greeting =
        |claims: &[(u64, u32)]| ToReplica::Hello { member_since: Epoch(0), history: history(claims) };
    let late = bench.answer(from(owner(1), 9, 50), greeting(&[(3, 1)]));
    assert!(matches!(late, Some(ToOwner::Welcome(_))), "{late:?}");
    let answer = bench.answer(from(owner(3), 9, 2), greeting(&[(3, 1), (9, 3)]));
    assert!(matches!(answer, Some(ToOwner::Welcome(_))), "{answer:?}");
    // Of one owner they do.
    assert_eq!(bench.answer(from(owner(3), 9, 1), greeting(&[(3, 1), (9, 3)])), None);
}

/// A damaged replica that follows node 1 at epoch 4.
fn damaged_at_4() -> Bench {
    let found = DurableState {
        promise: Promise { epoch: Epoch(4), owner: owner(1) },
        commit_point: Position::START,
        epoch: Epoch(4),
        end: Position::START,
        damaged: true,
    };
    let replica = Replica::new(VOLUME, REPLICA, Incarnation(5), LEASE_NS, &found, Moment(0));
    Bench { replica, out: Vec::new() }
}

#[test]
fn a_promise_of_another_history_blocks_the_volume_however_high_the_record_is() {
    let answers = |promise| [ToOwner::Refused(promise), ToOwner::Probed { promise, quiet_ns: 0 }];
    let promise = Promise { epoch: Epoch(8), owner: owner(4) };
    for (message, newest_is_put_back) in
        answers(promise).into_iter().flat_map(|m| [(m.clone(), true), (m, false)])
    {
        let (mut volume, mut out) = volume();
        let forked = Record { history: history(&[(2, 4), (7, 2)]), ..record() };
        volume.step(NOW, Event::Seen(forked.clone(), Epoch(0)), &mut out);
        volume.step(NOW, Event::Message(said(1), message), &mut out);
        assert_eq!(volume.status(), Status::Blocked);
        let why = volume.blocked().unwrap().to_string();
        assert!(
            why.contains("replica 3, follows node 4 (life 1) at epoch 8, and by the record that the store holds node 2 (life 1)"),
            "{why}"
        );
        for epoch in [10, 11, 500] {
            let later = Record { epoch: Epoch(epoch), ..forked.clone() };
            volume.step(NOW, Event::Seen(later, Epoch(0)), &mut out);
            assert_eq!(volume.status(), Status::Blocked, "swaps of the other history prove nothing");
        }
        // The newest record is put back, although its epoch is lower than what was seen; or a person recovers by force.
        let newest = Record { epoch: Epoch(8), history: history(&[(2, 4)]), ..record() };
        let id = ProposalId { by: owner(7), number: 1 };
        let survivors = BTreeMap::from([(GroupIndex(0), REPLICA)]);
        let recovered = forked.recovered(id, &survivors, Epoch(8)).unwrap();
        assert_eq!(recovered.broken(), None);
        let right = if newest_is_put_back { newest } else { recovered };
        volume.step(NOW, Event::Seen(right, Epoch(0)), &mut out);
        assert_eq!(volume.status(), Status::Watching);
    }
}

#[test]
fn a_record_that_does_not_come_from_the_one_that_was_known_blocks_the_volume() {
    let (mut volume, mut out) = volume();
    let known = Record { epoch: Epoch(8), owner: owner(4), history: history(&[(2, 4)]), ..record() };
    let other = |epoch| Record {
        epoch: Epoch(epoch),
        owner: owner(2),
        history: history(&[(2, 4), (7, 2)]),
        ..record()
    };
    let id = ProposalId { by: owner(7), number: 1 };
    let survivors = BTreeMap::from([(GroupIndex(0), REPLICA)]);
    volume.step(NOW, Event::Seen(known.clone(), Epoch(0)), &mut out);
    for right in [known, other(9).recovered(id, &survivors, Epoch(8)).unwrap()] {
        for epoch in [9, 10, 500] {
            volume.step(NOW, Event::Seen(other(epoch), Epoch(0)), &mut out);
            assert_eq!(volume.status(), Status::Blocked);
        }
        let why = volume.blocked().unwrap().to_string();
        assert!(
            why.contains("the store held epoch 8, of node 4 (life 1)") && why.contains("has node 2 (life 1)"),
            "{why}"
        );
        volume.step(NOW, Event::Seen(right, Epoch(0)), &mut out);
        assert_eq!(volume.status(), Status::Watching);
    }
}

#[test]
fn a_recovery_by_force_that_is_undecided_is_not_blocked_by_what_it_passes() {
    let (mut volume, mut out) = volume();
    let forked = Record { history: history(&[(2, 4), (7, 2)]), ..record() };
    volume.step(NOW, Event::Seen(forked.clone(), Epoch(0)), &mut out);
    let promise = Promise { epoch: Epoch(8), owner: owner(4) };
    volume.step(NOW, Event::Message(said(1), ToOwner::Refused(promise)), &mut out);
    assert_eq!(volume.status(), Status::Blocked);
    let survivors = BTreeMap::from([(GroupIndex(0), REPLICA)]);
    let command = VolumeCommand::Recover { record: Box::new(forked.clone()), survivors, promised: Epoch(8) };
    volume.step(NOW, Event::Command(command), &mut out);
    volume.step(NOW, Event::Message(said(1), ToOwner::Refused(promise)), &mut out);
    volume.step(NOW, Event::Seen(forked, Epoch(0)), &mut out);
    assert_eq!(volume.status(), Status::Claiming);
    let id = out.iter().rev().find_map(|action| match action {
        Action::Propose { record, .. } => Some(record.made_by),
        _ => None,
    });
    out.clear();
    volume.step(NOW, Event::Swapped(id.unwrap(), Answer::Committed, Epoch(9)), &mut out);
    assert_eq!(volume.status(), Status::Sealing);
    let seals = out.iter().any(|action| match action {
        Action::Send { message: ToReplica::Seal { history, .. }, .. } => {
            history.contradicts(&promise).is_none()
        }
        _ => false,
    });
    assert!(seals, "{out:?}");
}

#[test]
fn a_doubled_entry_is_confirmed_again_and_appended_once() {
    let mut bench = Bench::new();
    let answer = bench.answer(from(owner(1), 4, 8), entry(2));
    assert!(matches!(answer, Some(ToOwner::Durable(p)) if p.received == Sequence(2) && !p.gap), "{answer:?}");
}

#[test]
fn a_gap_is_told_once() {
    let mut bench = Bench::new();
    let answer = bench.answer(from(owner(1), 4, 8), entry(4));
    assert!(matches!(answer, Some(ToOwner::Durable(p)) if p.received == Sequence(2) && p.gap), "{answer:?}");
    assert_eq!(bench.answer(from(owner(1), 4, 8), entry(5)), None);
}

#[test]
fn what_a_former_session_says_or_is_meant_for_a_former_process_is_not_taken() {
    let mut bench = Bench::new();
    assert_eq!(bench.answer(from(owner(1), 4, 7), entry(3)), None, "a former session");
    assert_eq!(
        bench.answer(from(owner(1), 4, 9), entry(3)),
        Some(ToOwner::Stranger),
        "one that it does not know"
    );
    assert_eq!(bench.answer(from(owner(1), 4, 7), hello()), None, "a late greeting opens nothing");
    let answer = bench.answer(from(owner(1), 4, 8), entry(2));
    assert!(matches!(answer, Some(ToOwner::Durable(_))), "the session goes on: {answer:?}");
    let former = FromOwner { process: Incarnation(4), ..from(owner(1), 4, 8) };
    for message in [entry(3), ToReplica::Return { ownership: Epoch(4), from: Sequence(3), empty: true }] {
        assert_eq!(bench.answer(former, message), Some(ToOwner::Stranger), "a former process");
    }
}

#[test]
fn a_replica_follows_no_owner_that_has_not_sealed_it() {
    let mut bench = Bench::new();
    assert!(matches!(bench.answer(from(owner(2), 6, 1), hello()), Some(ToOwner::Welcome(_))));
    let refused = bench.answer(from(owner(2), 6, 1), entry(3));
    assert!(matches!(refused, Some(ToOwner::Refused(_))), "{refused:?}");
    assert_eq!(bench.replica.promise().owner, owner(1));
}

#[test]
fn a_device_that_has_failed_answers_nothing_else() {
    let mut bench = Bench::new();
    let failed = replica::Event::Store(Completion::Failed);
    bench.replica.step(NOW, failed, &mut bench.out).unwrap();
    for message in [hello(), seal(false), entry(3), ToReplica::Probe] {
        assert_eq!(bench.answer(from(owner(1), 4, 9), message), Some(ToOwner::Failed));
    }
}

/// A replica whose store was found damaged, and which follows owner 1 since epoch 4.
fn damaged() -> Bench {
    let found = DurableState {
        promise: Promise { epoch: Epoch(4), owner: owner(1) },
        commit_point: Position { ownership: Epoch(3), sequence: Sequence(7) },
        epoch: Epoch(4),
        end: Position { ownership: Epoch(3), sequence: Sequence(2) },
        damaged: true,
    };
    Bench {
        replica: Replica::new(VOLUME, REPLICA, Incarnation(5), LEASE_NS, &found, Moment(0)),
        out: Vec::new(),
    }
}

fn return_empty(empty: bool) -> ToReplica<u8> {
    ToReplica::Return { ownership: Epoch(6), from: Sequence(3), empty }
}

#[test]
fn a_damaged_replica_takes_nothing_but_the_order_to_be_emptied() {
    let mut bench = damaged();
    let of = from(owner(2), 6, 9);
    let no_answer = bench.answer(of, return_empty(true));
    assert_eq!(no_answer, None, "no session is open");
    let all = [entry(3), ToReplica::Probe, seal(false), ToReplica::Joined, return_empty(false)];
    assert_eq!(bench.answer(of, hello()), Some(ToOwner::Damaged));
    for message in all {
        assert_eq!(bench.answer(of, message.clone()), Some(ToOwner::Damaged), "{message:?}");
    }
    let other_life = FromOwner { process: Incarnation(4), ..of };
    assert_eq!(bench.answer(other_life, return_empty(true)), Some(ToOwner::Damaged), "for a former process");
    let other_session = FromOwner { session: 8, ..of };
    assert_eq!(bench.answer(other_session, return_empty(true)), None, "of a former session");
    for below in [from(owner(1), 3, 10), from(owner(2), 4, 10)] {
        let refused = bench.answer(below, return_empty(true));
        assert!(matches!(refused, Some(ToOwner::Refused(_))), "{refused:?}");
        let refused = bench.answer(below, hello());
        assert!(matches!(refused, Some(ToOwner::Refused(_))), "{refused:?}");
    }
    assert_eq!(bench.replica.promise().owner, owner(1), "it follows the owner that it followed");
}

#[test]
fn a_damaged_replica_that_is_emptied_promises_in_the_same_change_and_is_told_of_once() {
    let mut bench = damaged();
    let of = from(owner(2), 6, 9);
    bench.say(of, hello());
    let promise = Promise { epoch: Epoch(6), owner: owner(2) };
    let after = Position { ownership: Epoch(6), sequence: Sequence(2) };
    let discards = replica::Action::Store(Command::Discard { promise, after });
    assert_eq!(bench.say(of, return_empty(true)), [discards]);
    // The order comes again, and a person's order to go on with what it had: it has begun.
    assert_eq!(bench.say(of, return_empty(true)), []);
    assert_eq!(bench.say(FromOwner { session: 10, ..of }, seal(true)), []);
    assert_eq!(bench.answer(of, entry(3)), Some(ToOwner::Damaged), "it is not empty yet");
    bench.out.clear();
    let listed = replica::Event::Store(Completion::Listed(Vec::new()));
    bench.replica.step(NOW, listed, &mut bench.out).unwrap();
    let is_listed = matches!(&bench.out[..], [replica::Action::Send(_, _, ToOwner::Listed { after: a, ranges })] if *a == after && ranges.is_empty());
    assert!(is_listed, "{:?}", bench.out);
    let again = bench.answer(of, return_empty(true));
    assert!(matches!(again, Some(ToOwner::Listed { .. })), "{again:?}");
}

#[test]
fn an_order_to_return_promises_before_it_drops() {
    let mut bench = Bench::new();
    bench.say(from(owner(2), 6, 1), hello());
    let command = ToReplica::Return { ownership: Epoch(6), from: Sequence(1), empty: false };
    let promise = Promise { epoch: Epoch(6), owner: owner(2) };
    assert_eq!(bench.say(from(owner(2), 6, 1), command), [replica::Action::Store(Command::Promise(promise))]);
    bench.out.clear();
    bench.replica.step(NOW, replica::Event::Store(Completion::Appended(2)), &mut bench.out).unwrap();
    let drops = bench.out.iter().any(|action| matches!(action, replica::Action::Store(_)));
    assert!(!drops, "the promise is not durable");
    bench.out.clear();
    bench.replica.step(NOW, replica::Event::Store(Completion::Promised(promise)), &mut bench.out).unwrap();
    assert!(matches!(bench.out[..], [replica::Action::Store(Command::Return { empty: false, .. })]));
}

#[test]
fn nothing_is_proposed_while_a_member_follows_an_owner_above_the_record() {
    let (mut volume, mut out) = asking();
    let promise = Promise { epoch: Epoch(10), owner: owner(2) };
    volume.step(NOW, Event::Message(said(0), ToOwner::Probed { promise, quiet_ns: 0 }), &mut out);
    assert!(out.is_empty(), "it asked for the record a moment ago: {out:?}");
    let later = NOW.after(LEASE_NS);
    volume.step(later, Event::Wake, &mut out);
    assert_eq!(out, [Action::ReadRecord { asked_at: Epoch(10) }]);
    volume.step(later, Event::Seen(record(), Epoch(10)), &mut out);
    assert_eq!(volume.status(), Status::Blocked);
}

#[test]
fn a_store_that_went_back_in_time_stops_the_volume_and_says_why() {
    let (mut volume, mut out) = claiming();
    let older = Record { epoch: Epoch(5), ..record() };
    let id = ProposalId { by: owner(1), number: 1 };
    volume.step(NOW, Event::Swapped(id, Answer::Refused(older), Epoch(9)), &mut out);
    assert_eq!((volume.status(), &out[..]), (Status::Blocked, &[][..]));
    assert_eq!(
        volume.blocked().unwrap().to_string(),
        "the store holds epoch 5 of a volume that had reached epoch 9: it went back in time"
    );
    volume.step(NOW.after(100 * LEASE_NS), Event::Wake, &mut out);
    assert_eq!(
        out,
        [Action::ReadRecord { asked_at: Epoch(9) }],
        "it only checks whether a person has decided"
    );
    let still = Record { epoch: Epoch(7), ..record() };
    volume.step(NOW, Event::Seen(still, Epoch(9)), &mut out);
    assert_eq!(volume.status(), Status::Blocked);
    let decided = Record { epoch: Epoch(12), ..record() };
    volume.step(NOW, Event::Seen(decided, Epoch(9)), &mut out);
    assert_eq!(volume.status(), Status::Watching, "a record above all that was known is a person's");
}

#[test]
fn a_recovery_that_is_ordered_again_goes_above_what_was_known_before_the_first() {
    let (mut volume, mut out) = asking();
    let older = Record { epoch: Epoch(5), ..record() };
    volume.step(NOW, Event::Seen(older.clone(), Epoch(9)), &mut out);
    assert_eq!(volume.status(), Status::Blocked);
    for _ in 0..2 {
        out.clear();
        let command = VolumeCommand::Recover {
            record: Box::new(older.clone()),
            survivors: BTreeMap::new(),
            promised: Epoch(0),
        };
        volume.step(NOW, Event::Command(command), &mut out);
        let proposed = out.iter().find_map(|action| match action {
            Action::Propose { record, .. } => Some(record.epoch),
            _ => None,
        });
        assert_eq!(proposed, Some(Epoch(10)));
    }
}

#[test]
fn no_client_is_let_in_while_the_volume_is_blocked() {
    let (mut volume, mut out) = claiming();
    let id = ProposalId { by: owner(1), number: 1 };
    let older = Record { epoch: Epoch(5), ..record() };
    volume.step(NOW, Event::Swapped(id, Answer::Refused(older), Epoch(9)), &mut out);
    assert_eq!(volume.status(), Status::Blocked);
    volume.step(NOW, Event::Detach, &mut out);
    volume.step(NOW, Event::Attach, &mut out);
    // The answer to another try of the same.
    volume.step(NOW, Event::Swapped(id, Answer::Committed, Epoch(9)), &mut out);
    assert!(!out.contains(&Action::Attached), "{out:?}");
}

#[test]
fn a_promise_above_the_record_is_a_store_that_went_back_in_time() {
    let (mut volume, mut out) = claiming();
    let id = ProposalId { by: owner(1), number: 1 };
    volume.step(NOW, Event::Swapped(id, Answer::Committed, Epoch(9)), &mut out);
    out.clear();
    let promise = Promise { epoch: Epoch(30), owner: owner(4) };
    let later = NOW.after(LEASE_NS);
    volume.step(later, Event::Message(said(1), ToOwner::Refused(promise)), &mut out);
    let reads = out.iter().find(|action| matches!(action, Action::ReadRecord { .. }));
    assert_eq!(reads, Some(&Action::ReadRecord { asked_at: Epoch(30) }));
    let now = volume.record().unwrap().clone();
    volume.step(later, Event::Seen(now, Epoch(30)), &mut out);
    assert_eq!(volume.status(), Status::Blocked);
}

#[test]
fn a_record_that_cannot_be_stops_the_volume() {
    let (mut volume, mut out) = volume();
    let broken = Record { homes: BTreeMap::new(), ..record() };
    volume.step(NOW, Event::Seen(broken, Epoch(0)), &mut out);
    assert_eq!(volume.status(), Status::Blocked);
    assert_eq!(
        volume.blocked().unwrap().to_string(),
        "the store holds an impossible record: replica 3 of group 0 is at no node"
    );
}

#[test]
fn what_a_stranger_says_to_an_owner_is_nothing() {
    let (mut volume, mut out) = asking();
    let strangers = [
        FromReplica { volume: VolumeId(8), ..said(0) },
        FromReplica { owner: owner(2), ..said(0) },
        FromReplica { replica: ReplicaId(9), ..said(0) },
    ];
    for header in strangers {
        let promise = Promise { epoch: Epoch(9), owner: owner(2) };
        for message in [ToOwner::Refused(promise), ToOwner::Probed { promise, quiet_ns: 0 }, ToOwner::Failed]
        {
            volume.step(NOW, Event::Message(header, message), &mut out);
            assert_eq!((volume.status(), &out[..]), (Status::Watching, &[][..]));
        }
    }
}

#[test]
fn a_request_beyond_the_end_or_where_it_is_not_attached_fails() {
    let mut volume: Volume<u8> = Volume::new(owner(1), VOLUME, Times::of_lease(LEASE_NS), 1, NOW);
    let mut out = Vec::new();
    let request = Request { id: RequestId(1), op: RequestOp::Read, sector: 0, sectors: 8 };
    let refused = [Action::Complete(RequestId(1), Err(Failure::NotAttached))];
    volume.step(NOW, Event::Request(request.clone()), &mut out);
    assert_eq!(out, refused);
    // Nor before it is known how often the volume has been attached.
    volume.step(NOW, Event::Attach, &mut out);
    out.clear();
    volume.step(NOW, Event::Request(request), &mut out);
    assert_eq!(out, refused);
}

#[test]
fn a_replica_that_the_volume_has_is_not_taken_for_a_new_one() {
    let (mut volume, mut out) = serving();
    let epoch = volume.record().unwrap().epoch;
    let twice = vec![vec![(ReplicaId(8), NodeId(2))], vec![(ReplicaId(8), NodeId(3))]];
    let commands = [
        (VolumeCommand::Add { group: GroupIndex(0), replica: REPLICA, home: NodeId(2) }, REPLICA),
        (VolumeCommand::Grow { blocks: 128, added: vec![vec![(REPLICA, NodeId(2))]] }, REPLICA),
        (VolumeCommand::Grow { blocks: 192, added: twice }, ReplicaId(8)),
    ];
    for (command, known) in commands {
        out.clear();
        volume.step(NOW, Event::Command(command), &mut out);
        assert_eq!(out, [Action::Done(Err(CommandError::Record(RecordError::Known(known))))]);
    }
    assert_eq!(volume.record().unwrap().epoch, epoch);
}

#[test]
fn the_last_sector_can_be_asked_for_and_the_next_cannot() {
    let (mut volume, mut out) = serving();
    let last = 64 * 8 - 1;
    let read = |sector| Request { id: RequestId(sector), op: RequestOp::Read, sector, sectors: 1 };
    volume.step(NOW, Event::Request(read(last)), &mut out);
    assert!(matches!(out[..], [Action::Send { message: ToReplica::Read { block: 63, blocks: 1, .. }, .. }]));
    out.clear();
    volume.step(NOW, Event::Request(read(last + 1)), &mut out);
    assert_eq!(out, [Action::Complete(RequestId(last + 1), Err(Failure::OutOfRange))]);
}
