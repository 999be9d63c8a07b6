//! How long a session waits: for its initiator, and for what its commands need.

mod initiator;

use std::time::Duration;

use initiator::{
    GOOD, READ, Target, Volume, WRITE, cdb16, command, data_out, management, pattern, ready, status, unit,
    usual, wanted, write,
};
use loadline_base::iscsi::{Header, IMMEDIATE, NO_TAG, field, flag, function, opcode};
use loadline_base::scsi::{Status, operation};
use loadline_san_core::volume::Failure;
use loadline_san_export::iscsi::parameters::Parameters;
use loadline_san_export::scsi::task::ChangeFailed;
use loadline_san_export::session::{Session as _, SessionEnd};

/// Time passes in such steps.
const STEP: Duration = Duration::from_millis(500);
/// Within so many steps, each command is answered, or the session ends.
const STEPS: usize = 24;

/// A step passes, and what the session has to send is sent.
fn pass(target: &mut Target) -> Result<(), SessionEnd> {
    if let Err(end) = target.connection().pass_time(STEP) {
        target.connection = None;
        return Err(end);
    }
    target.turn()
}

/// Time passes until the session ends: why it does.
fn end(target: &mut Target) -> String {
    for _ in 0..STEPS {
        if let Err(end) = pass(target) {
            return end.to_string();
        }
    }
    panic!("it has not ended after {STEPS} steps");
}

/// The answer of the initiator to a ping.
fn pong(ping: &Header, number: u32) -> Header {
    let mut header = Header::new(opcode::NOP_OUT | IMMEDIATE, flag::FINAL);
    header.set_u32(field::TASK_TAG, NO_TAG);
    header.set_u32(field::TRANSFER_TAG, ping.u32(field::TRANSFER_TAG));
    header.set_u32(field::COMMAND_NUMBER, number);
    header
}

#[test]
fn an_initiator_with_nothing_to_do_is_pinged_and_stays() {
    for digest in [false, true] {
        let (mut target, mut volume) =
            ready(Parameters { header_digest: digest, data_digest: digest, ..usual() });
        let last = target.ask(&mut volume, &[operation::TEST_UNIT_READY, 0, 0, 0, 0, 0], 0, 0);
        let status_number = last[0].header.u32(field::STATUS_NUMBER);
        let mut pings = 0;
        for _ in 0..10 * STEPS {
            pass(&mut target).expect("it answers");
            for ping in target.received() {
                assert_eq!(ping.opcode(), opcode::NOP_IN);
                assert_eq!(ping.header.task_tag(), NO_TAG);
                assert_ne!(ping.header.u32(field::TRANSFER_TAG), NO_TAG, "an answer is wanted");
                // It shows the next status, and has none.
                assert_eq!(ping.header.u32(field::STATUS_NUMBER), status_number + 1);
                let number = target.number;
                target.send(pong(&ping.header, number), &[]);
                pings += 1;
            }
        }
        // 120 s, and a ping 5 s after the last answer.
        assert_eq!(pings, 24);
        assert!(target.received().is_empty(), "an answer to a ping is not answered");
        assert_eq!(status(&write(&mut target, &mut volume, 0, &pattern(512, 1))), GOOD);
    }
}

#[test]
fn an_initiator_that_answers_no_ping_is_ended_and_leaves_the_unit() {
    for is_serving in [true, false] {
        let unit = unit();
        let mut target = Target::at(&unit, usual(), 1, is_serving);
        target.turn().expect("it enters");
        assert_eq!(unit.borrow().initiators().count(), 1);
        let why = end(&mut target);
        assert!(why.contains("has not answered a ping"), "{why}");
        assert_eq!(target.received().len(), 1, "one ping was sent");
        assert_eq!(unit.borrow().initiators().count(), 0);
    }
}

#[test]
fn an_initiator_that_reads_nothing_is_ended_whatever_it_sends() {
    let (mut target, _) = ready(usual());
    let mut ends = None;
    for round in 0..STEPS + 1 {
        // Its socket takes no more, as if it had not read: of what is sent, nothing leaves.
        let number = target.number;
        let mut ping = Header::new(opcode::NOP_OUT | IMMEDIATE, flag::FINAL);
        ping.set_u32(field::TASK_TAG, round as u32);
        ping.set_u32(field::TRANSFER_TAG, NO_TAG);
        ping.set_u32(field::COMMAND_NUMBER, number);
        let bytes = initiator::encode(&target.parameters.clone(), ping, b"are you there");
        assert_eq!(target.send_bytes(&bytes), bytes.len());
        target.receive_only().expect("it goes on");
        if let Err(end) = target.connection().pass_time(STEP) {
            ends = Some(end.to_string());
            break;
        }
    }
    let why = ends.expect("it has ended");
    assert!(why.contains("has read nothing"), "{why}");
}

#[test]
fn a_command_that_the_volume_does_not_carry_out_ends_the_session_in_time() {
    for (cdb, flags, bytes) in [
        (cdb16(operation::READ_16, 0, 8), READ, 4096),
        (cdb16(operation::WRITE_16, 0, 8), WRITE, 4096),
        (cdb16(operation::SYNCHRONIZE_CACHE_16, 0, 0), 0, 0),
    ] {
        let (mut target, _) = ready(usual());
        let number = target.next();
        let data = if flags == WRITE { pattern(4096, 1) } else { Vec::new() };
        target.send(command(&cdb, flags, number, number, bytes), &data);
        assert_eq!(target.requests.len(), 1, "the volume has it");
        let mut why = None;
        for step in 0..STEPS {
            // The initiator lives: it answers, and sends commands that are answered.
            let inquiry = [operation::INQUIRY, 0, 0, 0, 36, 0];
            let number = target.next();
            target.send(command(&inquiry, READ, number, number, 36), &[]);
            assert_eq!(target.received().len(), 1, "step {step}: it is answered, and the command is not");
            if let Err(end) = pass(&mut target) {
                why = Some(end.to_string());
                break;
            }
        }
        assert!(why.as_ref().is_some_and(|why| why.contains("has waited for")), "{cdb:?}: {why:?}");
        assert!(
            target.received().is_empty(),
            "what is not known to be done or to have failed is not answered"
        );
    }
}

#[test]
fn a_command_that_was_aborted_ends_the_session_too_if_it_never_ends() {
    let (mut target, _) = ready(usual());
    let number = target.next();
    target.send(command(&cdb16(operation::WRITE_16, 0, 1), WRITE, number, number, 512), &pattern(512, 1));
    let next = target.number;
    target.send(management(function::ABORT_TASK, 77, number, next), &[]);
    assert!(target.received().is_empty(), "it is answered when the write has ended");
    let why = end(&mut target);
    assert!(why.contains("has waited for"), "{why}");
}

#[test]
fn a_command_that_waits_for_blocks_of_another_session_goes_on_when_that_has_ended() {
    let unit = unit();
    let mut sessions = [1, 2].map(|isid| Target::of(&unit, usual(), isid));
    let mut volume = Volume::new(&sessions[0].pool);
    for target in &mut sessions {
        target.get_ready(&mut volume);
    }
    let [first, second] = &mut sessions;
    let compare = |target: &mut Target, number: u32| {
        let mut cdb = cdb16(operation::COMPARE_AND_WRITE, 0, 0);
        cdb[10..14].fill(0);
        cdb[13] = 1;
        let data = [vec![0; 512], pattern(512, 3)].concat();
        target.send(command(&cdb, WRITE, number, number, 1024), &data);
    };
    let number = first.next();
    compare(first, number);
    assert_eq!(first.requests.len(), 1, "it reads");
    for _ in 0..4 {
        pass(first).expect("it goes on");
        pass(second).expect("it goes on");
    }
    // It waits for less than the first.
    let number = second.next();
    compare(second, number);
    assert!(second.requests.is_empty(), "it waits for the blocks");
    let why = loop {
        if let Err(end) = pass(first) {
            break end.to_string();
        }
        pass(second).expect("it goes on");
    };
    assert!(why.contains("has waited for"), "{why}");
    second.turn().expect("it goes on");
    assert_eq!(second.requests.len(), 1, "the blocks are free");
    second.work(&mut volume);
    assert!(
        second.received().iter().any(|pdu| pdu.opcode() == opcode::SCSI_RESPONSE && pdu.status() == GOOD)
    );
}

#[test]
fn a_command_that_has_not_begun_is_refused_and_may_be_sent_again() {
    let (mut target, mut volume) = ready(usual());
    let number = target.next();
    target.send(command(&cdb16(operation::WRITE_16, 0, 1), WRITE, number, number, 512), &pattern(512, 1));
    let request = target.requests.pop().expect("the volume has it");
    assert!(target.connection().longest_wait(request.slot).is_some());
    target.connection().complete(request.slot, Err(Failure::TooMany)).expect("the session goes on");
    target.turn().expect("the session goes on");
    assert_eq!(status(&target.received()), (Status::TaskSetFull as u8, None));
    assert_eq!(status(&write(&mut target, &mut volume, 0, &pattern(512, 1))), GOOD);
}

#[test]
fn a_command_of_several_steps_that_takes_too_long_fails_and_its_session_goes_on() {
    let (mut target, mut volume) = ready(usual());
    let ranges = 6;
    let mut list = [[0, 6 + 16 * ranges], [0, 16 * ranges], [0; 2], [0; 2]].concat();
    for range in 0..u64::from(ranges) {
        list.extend([&(16 * range).to_be_bytes()[..], &[0, 0, 0, 8], &[0; 4]].concat());
    }
    let cdb = [operation::UNMAP, 0, 0, 0, 0, 0, 0, 0, list.len() as u8, 0];
    let number = target.next();
    target.send(command(&cdb, WRITE, number, number, list.len() as u32), &list);
    // Each step takes two and a half seconds.
    let mut waits = Vec::new();
    while let Some(request) = target.requests.pop() {
        waits.push(target.connection().longest_wait(request.slot).expect("it has a limit").as_millis());
        for _ in 0..5 {
            pass(&mut target).expect("the session goes on");
        }
        volume.carry_out(target.connection(), request, 1).expect("the session goes on");
        target.turn().expect("the session goes on");
    }
    assert_eq!(waits, [9000, 6500, 4000, 1500]);
    assert_eq!(status(&target.received()), (2, Some((0x0b, 0, 0))), "a part was given back");
    assert_eq!(status(&write(&mut target, &mut volume, 0, &pattern(512, 1))), GOOD);
}

#[test]
fn what_has_waited_before_the_session_could_begin_counts() {
    let (mut target, mut volume) = ready(usual());
    target.connection().has_waited(Duration::from_secs(6));
    let read = |target: &mut Target| {
        let number = target.next();
        target.send(command(&cdb16(operation::READ_16, 0, 1), READ, number, number, 512), &[]);
        target.requests.pop().expect("it reads")
    };
    let first = read(&mut target);
    assert_eq!(target.connection().longest_wait(first.slot), Some(Duration::from_secs(3)));
    pass(&mut target).expect("the session goes on");
    let second = read(&mut target);
    assert_eq!(target.connection().longest_wait(second.slot), Some(Duration::from_secs(9)));
    volume.carry_out(target.connection(), first, 1).expect("the session goes on");
    assert!(end(&mut target).contains("has waited for"), "the other one is not carried out");
}

#[test]
fn a_change_of_reservations_for_which_no_time_is_left_is_refused() {
    let (mut target, _) = ready(usual());
    let (cdb, mut keys) = ([operation::PERSISTENT_RESERVE_OUT, 6, 0, 0, 0, 0, 0, 0, 24, 0], [0; 24]);
    keys[15] = 7;
    for _ in 0..2 {
        let number = target.next();
        target.send(command(&cdb, WRITE, number, number, 24), &keys);
    }
    let (ticket, _) = target.changes.pop().expect("the first one changes them");
    assert!(target.changes.is_empty(), "the other one waits for it");
    for _ in 0..6 {
        pass(&mut target).expect("the session goes on");
    }
    target.connection().changed(ticket, Err(ChangeFailed::Unavailable));
    target.turn().expect("the session goes on");
    let statuses: Vec<u8> = target.received().iter().map(|pdu| pdu.status().0).collect();
    assert_eq!(statuses, [Status::Busy as u8, Status::TaskSetFull as u8]);
    assert!(target.changes.is_empty());
}

#[test]
fn what_is_refused_after_a_part_was_carried_out_has_failed() {
    let (mut target, mut volume) = ready(usual());
    let number = target.next();
    let cdb = cdb16(operation::WRITE_AND_VERIFY_16, 0, 1);
    target.send(command(&cdb, WRITE, number, number, 512), &pattern(512, 1));
    let request = target.requests.pop().expect("it writes");
    volume.carry_out(target.connection(), request, 1).expect("the session goes on");
    target.turn().expect("the session goes on");
    let request = target.requests.pop().expect("it verifies");
    target.connection().complete(request.slot, Err(Failure::TooMany)).expect("the session goes on");
    target.turn().expect("the session goes on");
    assert_eq!(status(&target.received()), (2, Some((0x0b, 0, 0))));
}

#[test]
fn without_memory_a_session_takes_data_that_it_has_asked_for_and_little_else() {
    let parameters = Parameters { first_burst: 64 << 10, ..usual() };
    let (mut target, mut volume) = ready(parameters);
    let data = pattern(128 << 10, 5);
    let waits = target.next();
    let cdb = cdb16(operation::WRITE_16, 0, 256);
    target.send(command(&cdb, WRITE, waits, waits, 128 << 10), &data[..64 << 10]);
    let (tag, offset, _) = wanted(&target.received()[0]);
    target.has_memory = false;
    let refused = Status::TaskSetFull as u8;
    let (mut statuses, mut commands) = (Vec::new(), Vec::new());
    for _ in 0..100 {
        let number = target.next();
        let cdb = cdb16(operation::WRITE_16, 256, 128);
        target.send(command(&cdb, WRITE, number, number, 64 << 10), &data[..64 << 10]);
        commands.push(number);
        statuses.extend(target.received().iter().map(|pdu| pdu.status().0));
    }
    assert_eq!(statuses, [refused; 84], "16 wait: 1 MiB");
    target.send(data_out(waits, tag, 0, offset, true), &data[64 << 10..]);
    target.has_memory = true;
    target.turn().expect("the session goes on");
    target.work(&mut volume);
    let answered = target.received();
    let good = answered.iter().filter(|pdu| pdu.opcode() == opcode::SCSI_RESPONSE && pdu.status() == GOOD);
    assert_eq!(good.count(), 17);
    assert!(volume.bytes[..data.len()] == data);
}

#[test]
fn an_initiator_that_sends_its_data_slowly_is_waited_for() {
    let parameters = Parameters { immediate_data: false, burst: 4096, first_burst: 4096, ..usual() };
    let parameters = Parameters { initial_r2t: true, ..parameters };
    let (mut target, mut volume) = ready(parameters);
    let data = pattern(40 * 4096, 5);
    let number = target.next();
    let length = data.len() as u32;
    target.send(command(&cdb16(operation::WRITE_16, 0, length / 512), WRITE, number, number, length), &[]);
    // Another one that waits for it.
    let behind = target.next();
    let mut ordered = command(&[operation::TEST_UNIT_READY, 0, 0, 0, 0, 0], 0, behind, behind, 0);
    ordered.0[1] = flag::FINAL | 2;
    target.send(ordered, &[]);
    for part in 0..40 {
        let (tag, offset, bytes) = wanted(&target.received()[0]);
        assert_eq!(offset, part * 4096);
        for _ in 0..2 {
            pass(&mut target).expect("the initiator is slow, and lives");
        }
        let some = offset as usize..(offset + bytes) as usize;
        target.send(data_out(number, tag, 0, offset, true), &data[some]);
    }
    target.work(&mut volume);
    let received = target.received();
    assert_eq!(received.iter().filter(|pdu| pdu.opcode() == opcode::SCSI_RESPONSE).count(), 2);
    assert!(volume.bytes[..data.len()] == data);
}

#[test]
fn an_initiator_that_was_asked_for_data_and_sends_none_is_ended() {
    let parameters = Parameters { immediate_data: false, initial_r2t: true, ..usual() };
    let (mut target, _) = ready(parameters);
    let number = target.next();
    target.send(command(&cdb16(operation::WRITE_16, 0, 8), WRITE, number, number, 4096), &[]);
    let why = end(&mut target);
    assert!(why.contains("has not answered a ping"), "{why}");
}
