//! The order of commands, their window, and what ends them: task management, and sessions that take the place of others.

mod initiator;

use initiator::{
    GOOD, READ, Received, Target, Volume, WRITE, cdb16, command, data_out, encode, management, pattern, pool,
    ready, status, unit, usual, wanted, write,
};
use loadline_base::iscsi::{NO_TAG, attribute, field, function, function_response, opcode};
use loadline_base::scsi::operation;
use loadline_san_export::block::Operation;
use loadline_san_export::iscsi::parameters::MOST_COMMANDS;
use loadline_san_export::scsi::task::{Change, ChangeFailed};
use loadline_san_export::session::{Attachment, Session as _, SessionEnd};

#[test]
fn commands_outside_the_window_are_ignored_and_a_gap_ends_the_session() {
    let (mut target, mut volume) = ready(usual());
    let ready = [operation::TEST_UNIT_READY, 0, 0, 0, 0, 0];
    let last = target.ask(&mut volume, &ready, 0, 0)[0].header.u32(field::LAST_COMMAND_NUMBER);
    assert_eq!(last, target.number + MOST_COMMANDS - 1);
    for number in [last + 1, last + 1000, target.number - 1, target.number.wrapping_sub(1 << 30)] {
        target.send(command(&ready, 0, 77, number, 0), &[]);
        assert!(target.received().is_empty(), "command {number}");
    }
    assert_eq!(status(&target.ask(&mut volume, &ready, 0, 0)), GOOD);
    let bytes = encode(&target.parameters, command(&ready, 0, 78, target.number + 1, 0), &[]);
    target.send_bytes(&bytes);
    assert!(matches!(target.turn(), Err(SessionEnd::Protocol(why)) if why.contains("left out")));
}

#[test]
fn the_window_closes_with_commands_and_opens_with_answers() {
    let (mut target, mut volume) = ready(usual());
    let cdb = cdb16(operation::READ_16, 0, 8);
    for _ in 0..MOST_COMMANDS {
        let number = target.next();
        target.send(command(&cdb, READ, number, number, 4096), &[]);
    }
    assert_eq!(target.requests.len(), MOST_COMMANDS as usize);
    let beyond = target.number;
    target.send(command(&cdb, READ, beyond, beyond, 4096), &[]);
    assert_eq!(target.requests.len(), MOST_COMMANDS as usize, "it is not allowed");
    let request = target.requests.pop().unwrap();
    volume.carry_out(target.connection(), request, 1).unwrap();
    target.turn().unwrap();
    let allowed = target.received()[0].header.u32(field::LAST_COMMAND_NUMBER);
    assert_eq!(allowed, beyond, "one more is");
    target.send(command(&cdb, READ, beyond, beyond, 4096), &[]);
    assert_eq!(target.requests.len(), MOST_COMMANDS as usize);
    target.requests.reverse();
    target.work(&mut volume);
    let answered: Vec<_> = target.received().iter().map(|pdu| pdu.header.task_tag()).collect();
    assert_eq!(answered.len(), MOST_COMMANDS as usize);
    assert_eq!(answered[0], beyond, "answers come in any order");
}

#[test]
fn an_ordered_command_waits_and_lets_none_pass() {
    let (mut target, mut volume) = ready(usual());
    let send = |target: &mut Target, attribute: u8, sector: u64| {
        let number = target.next();
        let mut header = command(&cdb16(operation::READ_16, sector, 1), READ, number, number, 512);
        header.0[1] = header.0[1] & !attribute::MASK | attribute;
        target.send(header, &[]);
    };
    send(&mut target, attribute::SIMPLE, 1);
    send(&mut target, attribute::ORDERED, 2);
    send(&mut target, attribute::SIMPLE, 3);
    send(&mut target, attribute::SIMPLE, 4);
    for expected in [vec![1], vec![2], vec![3, 4]] {
        let under_way: Vec<u64> = target.requests.iter().map(|request| request.sector).collect();
        assert_eq!(under_way, expected);
        for request in std::mem::take(&mut target.requests) {
            volume.carry_out(target.connection(), request, 1).unwrap();
        }
        target.turn().unwrap();
    }
    assert_eq!(target.received().len(), 4);
}

/// The response of a function, and what came before it.
fn responded(target: &mut Target) -> (Vec<Received>, Option<u8>) {
    let mut received = target.received();
    match received.last().map(Received::opcode) {
        Some(opcode::TASK_MANAGEMENT_RESPONSE) => {
            let response = received.pop().map(|pdu| pdu.header.0[2]);
            (received, response)
        }
        _ => (received, None),
    }
}

#[test]
fn an_aborted_write_is_over_when_the_abort_is_answered() {
    let (mut target, mut volume) = ready(usual());
    let tag = target.next();
    target.send(command(&cdb16(operation::WRITE_16, 0, 1), WRITE, tag, tag, 512), &pattern(512, 1));
    assert_eq!(target.requests.len(), 1);
    let number = target.number;
    target.send(management(function::ABORT_TASK, 500, tag, number), &[]);
    assert_eq!(responded(&mut target), (vec![], None), "the volume is still at it");
    // Its tag may be used again.
    let again = target.next();
    target.send(command(&cdb16(operation::READ_16, 0, 1), READ, tag, again, 512), &[]);
    let request = target.requests.remove(0);
    volume.carry_out(target.connection(), request, 1).unwrap();
    target.turn().unwrap();
    assert_eq!(
        responded(&mut target),
        (vec![], Some(function_response::COMPLETE)),
        "and the command is not answered"
    );
    target.work(&mut volume);
    let received = target.received();
    assert_eq!((received.len(), received[0].header.task_tag()), (1, tag));
    // One that waits for data is over at once; one that is not there is none.
    let tag = target.next();
    target.send(command(&cdb16(operation::WRITE_16, 0, 8), WRITE, tag, tag, 4096), &[]);
    let (transfer, ..) = wanted(&target.received()[0]);
    let number = target.number;
    target.send(management(function::ABORT_TASK, 501, tag, number), &[]);
    assert_eq!(responded(&mut target).1, Some(function_response::COMPLETE));
    target.send(data_out(tag, transfer, 0, 0, true), &pattern(4096, 1));
    assert!(target.received().is_empty() && target.requests.is_empty(), "its data is dropped");
    target.send(management(function::ABORT_TASK, 502, tag, number), &[]);
    assert_eq!(responded(&mut target).1, Some(function_response::NO_TASK));
    assert!(!target.connection().is_always_watched());
}

#[test]
fn functions_of_task_management_are_answered_as_the_standard_says() {
    let (mut target, _) = ready(usual());
    let mut ask = |function: u8, lun: u8| {
        let mut header = management(function, 600, NO_TAG, target.number);
        header.0[9] = lun;
        target.send(header, &[]);
        responded(&mut target).1.expect("nothing is under way")
    };
    for function in [function::ABORT_TASK_SET, function::CLEAR_TASK_SET, function::LUN_RESET] {
        assert_eq!(ask(function, 0), function_response::COMPLETE);
        assert_eq!(ask(function, 1), function_response::NO_LUN);
    }
    assert_eq!(ask(function::TARGET_WARM_RESET, 0), function_response::COMPLETE);
    assert_eq!(ask(function::TARGET_COLD_RESET, 0), function_response::COMPLETE);
    assert_eq!(ask(function::CLEAR_ACA, 0), function_response::NOT_SUPPORTED);
    assert_eq!(ask(function::TASK_REASSIGN, 0), function_response::NO_REASSIGNMENT);
    assert_eq!(ask(77, 0), function_response::NOT_SUPPORTED);
}

#[test]
fn a_node_that_stands_by_rejects_what_would_end_commands_at_the_owner() {
    let mut target = Target::at(&unit(), usual(), 1, false);
    let mut ask = |function: u8| {
        let header = management(function, 600, NO_TAG, target.number);
        target.send(header, &[]);
        responded(&mut target).1.expect("nothing is under way")
    };
    assert_eq!(ask(function::ABORT_TASK_SET), function_response::COMPLETE, "only its own end");
    for function in [
        function::CLEAR_TASK_SET,
        function::LUN_RESET,
        function::TARGET_WARM_RESET,
        function::TARGET_COLD_RESET,
    ] {
        assert_eq!(ask(function), function_response::REJECTED);
    }
}

#[test]
fn a_reset_ends_the_commands_of_all_sessions() {
    let unit = unit();
    let mut one = Target::of(&unit, usual(), 1);
    let mut other = Target::of(&unit, usual(), 2);
    let mut volume = Volume::new(&pool());
    one.get_ready(&mut volume);
    other.get_ready(&mut volume);
    let number = other.next();
    other.send(command(&cdb16(operation::WRITE_16, 0, 1), WRITE, number, number, 512), &pattern(512, 1));
    let number = other.next();
    other.send(command(&cdb16(operation::WRITE_16, 8, 8), WRITE, number, number, 4096), &[]);
    other.received();
    let number = one.number;
    one.send(management(function::LUN_RESET, 700, NO_TAG, number), &[]);
    assert_eq!(responded(&mut one).1, None, "a write of the other one is under way");
    assert!(one.connection().take_wakes(), "the other one gets a turn");
    other.turn().unwrap();
    assert!(!other.connection().is_always_watched(), "its data is not waited for any more");
    one.turn().unwrap();
    assert_eq!(responded(&mut one).1, None);
    let request = other.requests.remove(0);
    assert!(matches!(request.operation, Operation::Write(_)));
    volume.carry_out(other.connection(), request, 1).unwrap();
    other.turn().unwrap();
    assert!(other.received().is_empty(), "its commands are not answered");
    assert!(other.connection().take_wakes());
    one.turn().unwrap();
    assert_eq!(responded(&mut one).1, Some(function_response::COMPLETE));
    // The other one is told.
    let received = other.ask(&mut volume, &[operation::TEST_UNIT_READY, 0, 0, 0, 0, 0], 0, 0);
    assert_eq!(status(&received).1.map(|sense| (sense.0, sense.1)), Some((6, 0x29)));
    // And what the resetting one sends right behind its reset is none of what was ended.
    one.get_ready(&mut volume);
    let number = one.next();
    one.send(command(&cdb16(operation::READ_16, 0, 1), READ, number, number, 512), &[]);
    let number = one.next();
    let mut stream = encode(&one.parameters, management(function::LUN_RESET, 701, NO_TAG, number), &[]);
    stream.extend(encode(&one.parameters, command(&[0; 6], 0, number, number, 0), &[]));
    one.send_all(&stream);
    let received = one.received();
    assert_eq!((received.len(), received[0].header.task_tag()), (1, number), "a read is under way");
    let request = one.requests.remove(0);
    volume.carry_out(one.connection(), request, 1).unwrap();
    one.turn().unwrap();
    assert_eq!(responded(&mut one), (vec![], Some(function_response::COMPLETE)));
    one.get_ready(&mut volume);
    assert_eq!(status(&write(&mut one, &mut volume, 0, &pattern(512, 3))), GOOD);
}

#[test]
fn a_session_of_the_same_name_takes_the_place_of_a_former_one() {
    let unit = unit();
    let mut volume = Volume::new(&pool());
    let mut old = Target::of(&unit, usual(), 1);
    old.get_ready(&mut volume);
    let tag = old.next();
    old.send(command(&cdb16(operation::WRITE_16, 0, 1), WRITE, tag, tag, 512), &pattern(512, 1));
    let mut new = Target::of(&unit, usual(), 1);
    let number = new.next();
    new.send(command(&cdb16(operation::READ_16, 0, 1), READ, number, number, 512), &[]);
    assert!(new.requests.is_empty() && new.received().is_empty(), "it waits until the old one has gone");
    assert!(new.connection().take_wakes());
    assert!(matches!(old.turn(), Err(SessionEnd::Protocol(why)) if why.contains("takes its place")));
    new.turn().unwrap();
    let received = new.received();
    // It is a new session, and is told so.
    assert_eq!(status(&received).1.map(|sense| (sense.0, sense.1)), Some((6, 0x29)));
    new.get_ready(&mut volume);
    // One with another identifier stays beside it.
    let mut beside = Target::of(&unit, usual(), 2);
    beside.get_ready(&mut volume);
    new.turn().expect("it is left alone");
}

#[test]
fn a_session_stands_by_until_its_node_serves_the_volume() {
    let mut target = Target::at(&unit(), usual(), 1, false);
    let mut volume = Volume::new(&pool());
    let test = [operation::TEST_UNIT_READY, 0, 0, 0, 0, 0];
    let mut told = Vec::new();
    while told.last() != Some(&(2, 0x04, 0x0b)) {
        let (_, sense) = status(&target.ask(&mut volume, &test, 0, 0));
        told.push(sense.expect("it is not ready"));
        assert!(told.len() < 8, "{told:x?}");
    }
    let inquiry = target.ask(&mut volume, &[operation::INQUIRY, 0, 0, 0, 96, 0], READ, 96);
    assert_eq!(status(&inquiry).0, 0);
    let number = target.next();
    let cdb = cdb16(operation::WRITE_16, 0, 1);
    target.send(command(&cdb, WRITE, number, number, 512), &pattern(512, 1));
    assert_eq!(status(&target.received()).1, Some((2, 0x04, 0x0b)));
    assert!(target.requests.is_empty(), "nothing is carried out");
    target.connection().attached(Attachment { cluster: 7, volume: 1, number: 2, alone_since: 2 });
    assert_eq!(status(&target.ask(&mut volume, &test, 0, 0)).1, Some((6, 0x2a, 0x06)));
    assert_eq!(status(&write(&mut target, &mut volume, 0, &pattern(512, 1))), GOOD);
}

#[test]
fn a_change_of_the_configuration_is_awaited() {
    let (mut target, mut volume) = ready(usual());
    // PERSISTENT RESERVE OUT, REGISTER.
    let mut cdb = [0; 16];
    (cdb[0], cdb[8]) = (operation::PERSISTENT_RESERVE_OUT, 24);
    let mut parameters = [0; 24];
    parameters[15] = 7;
    let number = target.next();
    target.send(command(&cdb[..10], WRITE, number, number, 24), &parameters);
    let changes = std::mem::take(&mut target.changes);
    assert!(matches!(&changes[..], [(_, Change::Reserve { .. })]), "{changes:?}");
    assert!(target.received().is_empty());
    // It is aborted meanwhile: it is over when the change is, and not answered.
    let next = target.number;
    target.send(management(function::ABORT_TASK, 800, number, next), &[]);
    assert_eq!(responded(&mut target), (vec![], None));
    target.connection().changed(changes[0].0, Ok(()));
    target.turn().unwrap();
    assert_eq!(responded(&mut target), (vec![], Some(function_response::COMPLETE)));
    let number = target.next();
    target.send(command(&cdb[..10], WRITE, number, number, 24), &parameters);
    let ticket = target.changes.remove(0).0;
    target.connection().changed(ticket, Err(ChangeFailed::Unavailable));
    target.turn().unwrap();
    assert_ne!(status(&target.received()).0, 0, "it was not made");
    target.get_ready(&mut volume);
}
