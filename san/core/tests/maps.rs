//! Maps: what blocks hold, reported from what a replica knows: when a replica is asked, which answer counts, and when a client gets it.

mod serving;

use loadline_san_core::ids::ReplicaId;
use loadline_san_core::lease::Moment;
use loadline_san_core::map::{Allocated, Map};
use loadline_san_core::message::{FromOwner, Job, ToOwner, ToReplica};
use loadline_san_core::volume::{Action, Event, Failure, Request, RequestId, RequestOp, Volume};
use serving::{LEASE_NS, NOW, REPLICA, has, large, progress, said, serving};

fn request(id: u64, op: RequestOp<u8>, block: u64, blocks: u32) -> Event<u8> {
    Event::Request(Request { id: RequestId(id), op, sector: block * 8, sectors: blocks * 8 })
}

/// The questions that are sent: for what, and about which blocks.
fn questions(out: &[Action<u8>]) -> Vec<(Job, u64, u32)> {
    let of = |action: &Action<u8>| match action {
        Action::Send { message: ToReplica::Map { job, block, blocks }, .. } => Some((*job, *block, *blocks)),
        _ => None,
    };
    out.iter().filter_map(of).collect()
}

/// Of ranges with data: of each the first block and the one after the last.
fn map(ranges: &[(u64, u64)], until: u64) -> Map {
    let ranges =
        ranges.iter().map(|(start, end)| Allocated { blocks: *start..*end, zeroes: false }).collect();
    Map { ranges, until }
}

/// The replica answers a question.
fn answer(volume: &mut Volume<u8>, job: Job, map: Map, out: &mut Vec<Action<u8>>) {
    out.clear();
    volume.step(NOW, Event::Message(said(1), ToOwner::Mapped { job, map }), out);
}

/// The replica has the opening entry and grants a lease.
fn granted(volume: &mut Volume<u8>, out: &mut Vec<Action<u8>>) {
    has(volume, 1, false, out);
    let alive = ToOwner::Alive { asked: NOW, granted: true, progress: progress(volume, 1, false) };
    volume.step(NOW, Event::Message(said(1), alive), out);
    out.clear();
}

#[test]
fn a_client_is_told_what_a_replica_knows_while_leases_are_held() {
    let (mut volume, mut out) = serving();
    volume.step(NOW, request(1, RequestOp::Map, 3, 20), &mut out);
    let [(job, 3, 20)] = questions(&out)[..] else { panic!("one question: {out:?}") };
    // Less than was asked about, and counted from the first block of the request.
    answer(&mut volume, job, map(&[(4, 6), (9, 13)], 13), &mut out);
    let expected = Action::Map { request: RequestId(1), map: map(&[(1, 3), (6, 10)], 10) };
    assert_eq!(out, [expected], "and no completion before there is a lease");
    let alive = ToOwner::Alive { asked: NOW, granted: true, progress: progress(&volume, 1, false) };
    out.clear();
    volume.step(NOW, Event::Message(said(1), alive), &mut out);
    assert_eq!(out, [Action::Complete(RequestId(1), Ok(()))]);
    // A second answer to the same request is dropped.
    answer(&mut volume, job, map(&[], 23), &mut out);
    assert_eq!(out, []);
}

#[test]
fn a_map_waits_for_a_write_before_it_and_a_write_for_a_map() {
    let (mut volume, mut out) = large();
    granted(&mut volume, &mut out);
    volume.step(NOW, request(1, RequestOp::Write(7), 100, 1), &mut out);
    out.clear();
    volume.step(NOW, request(2, RequestOp::Map, 0, 1000), &mut out);
    volume.step(NOW, request(3, RequestOp::Write(7), 500, 1), &mut out);
    assert_eq!(out, [], "they wait for what overlaps them");
    has(&mut volume, 2, false, &mut out);
    let [(job, 0, 1000)] = questions(&out)[..] else { panic!("one question: {out:?}") };
    assert!(
        !out.iter().any(|a| matches!(a, Action::Send { message: ToReplica::Entry { .. }, .. })),
        "{out:?}"
    );
    answer(&mut volume, job, map(&[(100, 101)], 1000), &mut out);
    assert!(out.contains(&Action::Complete(RequestId(2), Ok(()))), "{out:?}");
    let wrote = |action: &Action<u8>| matches!(action, Action::Send { message: ToReplica::Entry { .. }, .. });
    assert!(out.iter().any(wrote), "the write begins: {out:?}");
}

#[test]
fn what_cannot_be_an_answer_is_not_taken_and_the_question_is_asked_again() {
    let (mut volume, mut out) = large();
    granted(&mut volume, &mut out);
    volume.step(NOW, request(1, RequestOp::Map, 10, 10), &mut out);
    let [(job, 10, 10)] = questions(&out)[..] else { panic!("one question: {out:?}") };
    for wrong in [
        map(&[], 10),
        map(&[], 21),
        map(&[(9, 11)], 20),
        map(&[(12, 11)], 20),
        map(&[(15, 18), (11, 12)], 20),
        map(&[(12, 16)], 14),
    ] {
        answer(&mut volume, job, wrong, &mut out);
        assert_eq!(out, []);
    }
    for other in [Job { slot: 9, ..job }, Job { turn: 9, ..job }, Job { part: 9, ..job }] {
        answer(&mut volume, other, map(&[], 20), &mut out);
        assert_eq!(out, []);
    }
    let later = Moment(NOW.0 + LEASE_NS / 2);
    volume.step(later, Event::Wake, &mut out);
    assert_eq!(questions(&out), [(job, 10, 10)]);
    answer(&mut volume, job, map(&[], 20), &mut out);
    assert_eq!(out[0], Action::Map { request: RequestId(1), map: map(&[], 10) });
}

#[test]
fn no_request_asks_about_more_than_four_gib_or_beyond_the_end() {
    let (mut volume, mut out) = large();
    let all = Request { id: RequestId(1), op: RequestOp::Map, sector: 3, sectors: 1 << 30 };
    volume.step(NOW, Event::Request(all), &mut out);
    assert!(matches!(questions(&out)[..], [(_, 0, 1_048_576)]), "{out:?}");
    out.clear();
    volume.step(NOW, request(2, RequestOp::Map, (1 << 28) - 1, 2), &mut out);
    assert_eq!(out, [Action::Complete(RequestId(2), Err(Failure::OutOfRange))]);
    let last = Request { id: RequestId(3), op: RequestOp::Map, sector: (1 << 31) - 1, sectors: 1 };
    out.clear();
    volume.step(NOW, Event::Request(last), &mut out);
    assert!(matches!(questions(&out)[..], [(_, 268_435_455, 1)]), "{out:?}");
}

#[test]
fn a_map_whose_client_has_gone_is_not_begun_if_it_waits() {
    let (mut volume, mut out) = large();
    granted(&mut volume, &mut out);
    volume.step(NOW, request(1, RequestOp::Write(7), 0, 1), &mut out);
    volume.step(NOW, request(2, RequestOp::Map, 0, 10), &mut out);
    out.clear();
    volume.step(NOW, Event::Cancel(RequestId(2)), &mut out);
    assert_eq!(out, [Action::Complete(RequestId(2), Err(Failure::Deposed))]);
    out.clear();
    has(&mut volume, 2, false, &mut out);
    assert_eq!(questions(&out), []);
}

#[test]
fn a_question_names_the_session_and_the_process_that_it_is_meant_for() {
    let (mut volume, mut out) = large();
    volume.step(NOW, request(1, RequestOp::Map, 0, 10), &mut out);
    let header = out.iter().find_map(|action| match action {
        Action::Send { header, message: ToReplica::Map { .. }, .. } => Some(*header),
        _ => None,
    });
    let FromOwner { replica, session, process, .. } = header.expect("it asks");
    assert_eq!((replica, session, process), (REPLICA, said(1).session, said(1).process));
    assert_eq!(replica, ReplicaId(3));
}
