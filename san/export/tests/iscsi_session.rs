//! A session against a small volume in memory: what an initiator sends comes in any portions, and the volume completes in any order.

mod initiator;

use initiator::{
    BYTES, FAILS, GOOD, READ, Received, Target, UNSOLICITED, Volume, WRITE, cdb16, command, data_out, encode,
    pattern, ready, status, usual, wanted, write,
};
use loadline_base::iscsi::{Header, IMMEDIATE, NO_TAG, field, flag, logout, opcode, reject};
use loadline_base::scsi::{Status, operation};
use loadline_san_export::iscsi::parameters::Parameters;
use loadline_san_export::session::{Session as _, SessionEnd};

/// All data is asked for, in small sequences.
fn asked_for() -> Parameters {
    Parameters {
        immediate_data: false,
        burst: 4096,
        first_burst: 4096,
        outstanding: 2,
        ..Parameters::default()
    }
}

/// The data of a read, which is put together from its parts; and the last PDU.
fn read(target: &mut Target, volume: &mut Volume, sector: u64, sectors: u32) -> (Vec<u8>, Received) {
    let received = target.ask(volume, &cdb16(operation::READ_16, sector, sectors), READ, sectors * 512);
    let mut data = Vec::new();
    for (number, pdu) in (0..).zip(received.iter().filter(|pdu| pdu.opcode() == opcode::DATA_IN)) {
        assert_eq!(pdu.header.u32(field::DATA_NUMBER), number);
        assert_eq!(pdu.header.u32(field::OFFSET), data.len() as u32);
        data.extend(&pdu.data);
    }
    (data, received.last().expect("it is answered").clone())
}

#[test]
fn what_is_written_is_read_with_digests_and_without() {
    for (header_digest, data_digest) in [(false, false), (true, false), (false, true), (true, true)] {
        let parameters = Parameters { header_digest, data_digest, sends: 8192, burst: 20 << 10, ..usual() };
        let (mut target, mut volume) = ready(parameters);
        for (sector, sectors) in [(0, 1), (8, 8), (3, 7), (1000, 160), (BYTES as u64 / 512 - 1, 1)] {
            let data = pattern(sectors * 512, sectors as u8);
            assert_eq!(status(&write(&mut target, &mut volume, sector, &data)), GOOD);
            let from = sector as usize * 512;
            assert!(volume.bytes[from..from + data.len()] == data);
            let (read, last) = read(&mut target, &mut volume, sector, sectors as u32);
            assert!(read == data, "sectors {sectors} from {sector}");
            // The status comes with the last data.
            assert!(last.header.has(flag::FINAL | flag::STATUS));
        }
        let (zeroes, _) = read(&mut target, &mut volume, 4000, 100);
        assert!(zeroes.iter().all(|byte| *byte == 0) && zeroes.len() == 51200);
    }
}

#[test]
fn data_comes_in_segments_and_sequences_of_the_agreed_lengths() {
    let (mut target, mut volume) = ready(Parameters { sends: 1024, burst: 4096, ..usual() });
    let received = target.ask(&mut volume, &cdb16(operation::READ_16, 8, 18), READ, 18 * 512);
    let lengths: Vec<_> = received.iter().map(|pdu| (pdu.data.len(), pdu.header.has(flag::FINAL))).collect();
    let four = [(1024, false), (1024, false), (1024, false), (1024, true)];
    assert_eq!(lengths, [&four[..], &four, &[(1024, true)]].concat());
    assert!(received[..8].iter().all(|pdu| !pdu.header.has(flag::STATUS)));
}

#[test]
fn a_write_is_asked_for_in_windows() {
    let (mut target, mut volume) = ready(asked_for());
    let data = pattern(5 * 4096 - 512, 7);
    let number = target.next();
    let cdb = cdb16(operation::WRITE_16, 1, data.len() as u32 / 512);
    target.send(command(&cdb, WRITE, number, number, data.len() as u32), &[]);
    let mut wants: Vec<_> = target.received().iter().map(wanted).collect();
    for round in 0..5 {
        // Two at once, until no more is missing.
        assert_eq!(wants.len(), if round < 4 { 2 } else { 1 });
        let (tag, offset, bytes) = wants.remove(0);
        assert_eq!((offset, bytes), (round * 4096, if round < 4 { 4096 } else { 3584 }));
        let from = offset as usize;
        let half = bytes as usize / 2;
        target.send(data_out(number, tag, 0, offset, false), &data[from..from + half]);
        assert!(target.received().is_empty() && target.requests.is_empty());
        target.send(
            data_out(number, tag, 1, offset + half as u32, true),
            &data[from + half..from + bytes as usize],
        );
        if round < 4 {
            let received = target.received();
            wants.extend(received.iter().map(wanted));
            assert!(received.iter().all(|pdu| pdu.header.u32(field::DATA_NUMBER) == round + 2));
        }
    }
    target.work(&mut volume);
    let received = target.received();
    assert_eq!(status(&received), GOOD);
    assert_eq!(received[0].header.u32(field::DATA_NUMBER), 5, "so often it was asked for");
    assert!(volume.bytes[512..512 + data.len()] == data);
}

#[test]
fn data_comes_with_the_command_behind_it_and_when_it_is_asked_for() {
    // As ESXi writes 34 blocks: 8 KiB with the command, the rest of the first burst behind it.
    let parameters = Parameters { receives: 8192, first_burst: 16384, burst: 4096, ..usual() };
    let (mut target, mut volume) = ready(parameters);
    let data = pattern(40 * 512, 3);
    let number = target.next();
    let mut header = command(&cdb16(operation::WRITE_16, 16, 40), WRITE, number, number, data.len() as u32);
    header.0[1] &= !flag::FINAL;
    target.send(header, &data[..8192]);
    assert!(target.received().is_empty(), "nothing is asked for before what comes by itself is there");
    target.send(data_out(number, UNSOLICITED, 0, 8192, false), &data[8192..12288]);
    target.send(data_out(number, UNSOLICITED, 1, 12288, true), &data[12288..16384]);
    let (tag, offset, bytes) = wanted(&target.received()[0]);
    assert_eq!((offset, bytes), (16384, 4096));
    target.send(data_out(number, tag, 0, offset, true), &data[16384..]);
    target.work(&mut volume);
    let received = target.received();
    assert_eq!(status(&received), GOOD);
    assert_eq!(received[0].header.flags() & (flag::UNDERFLOW | flag::OVERFLOW), 0, "and no residual");
    assert!(volume.bytes[8192..8192 + data.len()] == data);
}

#[test]
fn writes_are_sent_byte_by_byte_of_which_each_is_a_segment() {
    let (mut target, mut volume) = ready(asked_for());
    let data = pattern(32 << 10, 9);
    let number = target.next();
    target.send(command(&cdb16(operation::WRITE_16, 0, 64), WRITE, number, number, 32 << 10), &[]);
    let mut wants: Vec<_> = target.received().iter().map(wanted).collect();
    while !wants.is_empty() {
        let (tag, offset, bytes) = wants.remove(0);
        for at in 0..bytes {
            let place = (offset + at) as usize;
            target.send(data_out(number, tag, at, offset + at, at + 1 == bytes), &data[place..=place]);
        }
        wants.extend(target.received().iter().filter(|pdu| pdu.opcode() == opcode::R2T).map(wanted));
    }
    target.work(&mut volume);
    assert_eq!(status(&target.received()), GOOD);
    assert!(volume.bytes[..data.len()] == data);
}

#[test]
fn a_stream_may_come_in_any_portions() {
    for portion in [1, 7, 47, 48, 49, 53, 4096, 5000] {
        let parameters = Parameters { header_digest: true, data_digest: true, ..usual() };
        let (mut target, mut volume) = ready(parameters.clone());
        let mut stream = Vec::new();
        for count in 1..=12_u32 {
            let number = target.next();
            let data = pattern(count as usize * 512, count as u8);
            let cdb = cdb16(operation::WRITE_16, u64::from(count) * 64, count);
            stream.extend(encode(&parameters, command(&cdb, WRITE, number, number, count * 512), &data));
        }
        for some in stream.chunks(portion) {
            target.send_all(some);
        }
        target.work(&mut volume);
        let received = target.received();
        assert_eq!(received.len(), 12);
        assert!(received.iter().all(|pdu| pdu.status() == GOOD));
        for count in 1..=12 {
            assert!(volume.bytes[count * 64 * 512..][..count * 512] == pattern(count * 512, count as u8));
        }
    }
}

#[test]
fn residual_counts_are_exact() {
    let (mut target, mut volume) = ready(usual());
    let residual = |received: &[Received]| {
        let header = received.last().expect("it is answered").header;
        (header.flags() & (flag::UNDERFLOW | flag::OVERFLOW), header.u32(field::RESIDUAL))
    };
    let cdb = cdb16(operation::READ_16, 0, 2);
    for (expected, flags, bytes) in
        [(1024, 0, 0), (10_000, flag::UNDERFLOW, 8976), (200, flag::OVERFLOW, 824), (0, flag::OVERFLOW, 1024)]
    {
        let flag = if expected > 0 { READ } else { 0 };
        let received = target.ask(&mut volume, &cdb, flag, expected);
        assert_eq!(residual(&received), (flags, bytes), "{expected} bytes are expected");
        let data: usize =
            received.iter().filter(|pdu| pdu.opcode() == opcode::DATA_IN).map(|pdu| pdu.data.len()).sum();
        assert_eq!(data, expected.min(1024) as usize);
    }
    // An initiator that has more to send than the command writes.
    let number = target.next();
    target.send(command(&cdb16(operation::WRITE_16, 0, 1), WRITE, number, number, 4096), &pattern(4096, 1));
    target.work(&mut volume);
    let received = target.received();
    assert_eq!((status(&received), residual(&received)), (GOOD, (flag::UNDERFLOW, 3584)));
    assert!(volume.bytes[..512] == pattern(4096, 1)[..512] && volume.bytes[512] == 0);
}

#[test]
fn a_failure_is_answered_with_what_it_is() {
    let (mut target, mut volume) = ready(usual());
    let beyond = target.ask(&mut volume, &cdb16(operation::READ_16, BYTES as u64 / 512, 1), READ, 512);
    assert_eq!(status(&beyond), (2, Some((5, 0x21, 0))));
    let number = target.next();
    target.send(command(&cdb16(operation::READ_16, 0, 8), READ, number, number, 4096), &[]);
    let slot = target.requests.remove(0).slot;
    target.connection().complete(slot, Err(FAILS)).expect("the session goes on");
    target.turn().expect("the session goes on");
    let (status, sense) = status(&target.received());
    assert_eq!((status, sense.map(|sense| sense.0)), (Status::CheckCondition as u8, Some(3)));
    // Of a unit that is not there.
    let number = target.next();
    let mut header = command(&cdb16(operation::READ_16, 0, 8), READ, number, number, 4096);
    header.0[9] = 3;
    target.send(header, &[]);
    assert_eq!(self::status(&target.received()), (2, Some((5, 0x25, 0))));
}

#[test]
fn wrong_data_fails_its_command_only() {
    let sequence = |target: &mut Target, pdus: &[(Header, Vec<u8>)]| {
        for (header, data) in pdus {
            target.send(*header, data);
        }
        let received: Vec<_> =
            target.received().into_iter().filter(|pdu| pdu.opcode() != opcode::R2T).collect();
        assert_eq!(received.len(), 1, "{received:?}");
        assert!(target.requests.is_empty(), "nothing is written");
        received[0].status()
    };
    let (mut target, mut volume) = ready(asked_for());
    // Data of a command that was asked for: what differs from what it should be.
    let wrongs: [(u32, u32, usize); 4] = [(1, 0, 4096), (0, 512, 3584), (0, 0, 3584), (u32::MAX, 0, 4096)];
    for (number, offset, bytes) in wrongs {
        let tag = target.next();
        target.send(command(&cdb16(operation::WRITE_16, 0, 8), WRITE, tag, tag, 4096), &[]);
        let (transfer, ..) = wanted(&target.received()[0]);
        let pdu = (data_out(tag, transfer, number, offset, true), pattern(bytes, 1));
        assert_eq!(sequence(&mut target, &[pdu]), (2, Some((0xb, 0x0c, 0x0d))));
    }
    // More than was asked for, and the rest of it after that.
    let tag = target.next();
    target.send(command(&cdb16(operation::WRITE_16, 0, 8), WRITE, tag, tag, 4096), &[]);
    let (transfer, ..) = wanted(&target.received()[0]);
    target.send(data_out(tag, transfer, 0, 0, false), &pattern(4608, 1));
    assert!(target.received().is_empty(), "its end is waited for");
    let pdu = (data_out(tag, transfer, 1, 4608, true), pattern(512, 1));
    assert_eq!(sequence(&mut target, &[pdu]), (2, Some((0xb, 0x0c, 0x0d))));
    // All of it is there, but the second part says that it is the first again.
    let tag = target.next();
    target.send(command(&cdb16(operation::WRITE_16, 0, 8), WRITE, tag, tag, 4096), &[]);
    let (transfer, ..) = wanted(&target.received()[0]);
    target.send(data_out(tag, transfer, 0, 0, false), &pattern(2048, 1));
    let pdu = (data_out(tag, transfer, 1, 0, true), pattern(2048, 1));
    assert_eq!(sequence(&mut target, &[pdu]), (2, Some((0xb, 0x0c, 0x0d))));
    // The second of two sequences comes first.
    let tag = target.next();
    target.send(command(&cdb16(operation::WRITE_16, 0, 16), WRITE, tag, tag, 8192), &[]);
    let received = target.received();
    let (first, second) = (wanted(&received[0]).0, wanted(&received[1]).0);
    target.send(data_out(tag, second, 0, 0, true), &pattern(4096, 1));
    assert!(target.received().is_empty(), "the other one is waited for");
    let pdu = (data_out(tag, first, 0, 4096, true), pattern(4096, 1));
    assert_eq!(sequence(&mut target, &[pdu]), (2, Some((0xb, 0x0c, 0x0d))));
    // What nothing asks for: with the command, and behind it.
    let tag = target.next();
    let with = (command(&cdb16(operation::WRITE_16, 0, 1), WRITE, tag, tag, 512), pattern(512, 1));
    assert_eq!(sequence(&mut target, &[with]), (2, Some((0xb, 0x0c, 0x0c))));
    let tag = target.next();
    let mut header = command(&cdb16(operation::WRITE_16, 0, 1), WRITE, tag, tag, 512);
    header.0[1] &= !flag::FINAL;
    let behind = (data_out(tag, UNSOLICITED, 0, 0, true), pattern(512, 1));
    assert_eq!(sequence(&mut target, &[(header, Vec::new()), behind]), (2, Some((0xb, 0x0c, 0x0c))));
    // Of no command, or of another transfer: nothing happens.
    let tag = target.next();
    target.send(command(&cdb16(operation::WRITE_16, 0, 8), WRITE, tag, tag, 4096), &[]);
    let (transfer, ..) = wanted(&target.received()[0]);
    target.send(data_out(999, transfer, 0, 0, true), &pattern(4096, 1));
    target.send(data_out(tag, transfer + 1000, 0, 0, true), &pattern(4096, 1));
    assert!(target.received().is_empty() && target.requests.is_empty());
    target.send(data_out(tag, transfer, 0, 0, false), &pattern(4096, 5));
    assert!(target.requests.is_empty(), "the initiator has not ended its sequence");
    target.send(data_out(tag, transfer, 1, 4096, true), &[]);
    target.work(&mut volume);
    assert_eq!(status(&target.received()), GOOD);
    assert!(volume.bytes[..4096] == pattern(4096, 5));
}

#[test]
fn more_than_the_first_burst_fails_its_command() {
    let (mut target, _) = ready(Parameters { first_burst: 1024, ..usual() });
    let tag = target.next();
    target.send(command(&cdb16(operation::WRITE_16, 0, 4), WRITE, tag, tag, 2048), &pattern(2048, 1));
    assert_eq!(status(&target.received()), (2, Some((0xb, 0x0c, 0x0d))));
    let tag = target.next();
    let mut header = command(&cdb16(operation::WRITE_16, 0, 4), WRITE, tag, tag, 2048);
    header.0[1] &= !flag::FINAL;
    target.send(header, &pattern(1024, 1));
    target.send(data_out(tag, UNSOLICITED, 0, 1024, true), &pattern(512, 1));
    let received: Vec<_> = target.received();
    assert_eq!(status(&received), (2, Some((0xb, 0x0c, 0x0d))));
    assert!(target.requests.is_empty());
}

#[test]
fn a_wrong_data_digest_fails_the_command_and_a_wrong_header_digest_the_connection() {
    let parameters = Parameters { header_digest: true, data_digest: true, ..usual() };
    let (mut target, mut volume) = ready(parameters.clone());
    let tag = target.next();
    let mut pdu = encode(
        &parameters,
        command(&cdb16(operation::WRITE_16, 0, 1), WRITE, tag, tag, 512),
        &pattern(512, 1),
    );
    pdu[100] ^= 1;
    target.send_all(&pdu);
    let received = target.received();
    assert_eq!((received[0].opcode(), received[0].header.0[2]), (opcode::REJECT, reject::DATA_DIGEST));
    assert_eq!(received[0].data[..48], pdu[..48]);
    assert_eq!(status(&received), (2, Some((0xb, 0x47, 0x05))));
    assert!(target.requests.is_empty() && volume.bytes[0] == 0);
    // The session goes on.
    assert_eq!(status(&write(&mut target, &mut volume, 0, &pattern(512, 2))), GOOD);
    // Data behind its command.
    let tag = target.next();
    let mut header = command(&cdb16(operation::WRITE_16, 0, 2), WRITE, tag, tag, 1024);
    header.0[1] &= !flag::FINAL;
    target.send(header, &[]);
    let mut pdu = encode(&parameters, data_out(tag, UNSOLICITED, 0, 0, false), &pattern(512, 1));
    *pdu.last_mut().unwrap() ^= 1;
    target.send_all(&pdu);
    target.send(data_out(tag, UNSOLICITED, 1, 512, true), &pattern(512, 1));
    let received = target.received();
    assert_eq!(received[0].opcode(), opcode::REJECT);
    assert_eq!(status(&received), (2, Some((0xb, 0x47, 0x05))));
    let mut pdu = encode(&parameters, command(&[0; 6], 0, 99, target.number, 0), &[]);
    pdu[20] ^= 1;
    target.send_bytes(&pdu);
    assert!(matches!(target.turn(), Err(SessionEnd::Protocol(why)) if why.contains("digest")));
}

#[test]
fn pings_are_answered() {
    let (mut target, _) = ready(Parameters { sends: 512, ..usual() });
    let mut ping = Header::new(opcode::NOP_OUT | IMMEDIATE, flag::FINAL);
    ping.set_u32(field::TASK_TAG, 55);
    ping.set_u32(field::TRANSFER_TAG, NO_TAG);
    ping.set_u32(field::COMMAND_NUMBER, target.number);
    target.send(ping, &[7; 1001]);
    let received = target.received();
    assert_eq!((received[0].opcode(), received[0].header.task_tag()), (opcode::NOP_IN, 55));
    assert_eq!(received[0].data, [7; 512], "as much as the initiator takes");
    ping.set_u32(field::TASK_TAG, NO_TAG);
    target.send(ping, &[]);
    assert!(target.received().is_empty(), "that was an answer");
}

#[test]
fn what_is_no_request_is_rejected() {
    let (mut target, mut volume) = ready(usual());
    let mut rejected = |header: Header| {
        target.send(header, &[]);
        let received = target.received();
        assert_eq!((received.len(), received[0].opcode()), (1, opcode::REJECT));
        assert_eq!((received[0].header.task_tag(), &received[0].data[..]), (NO_TAG, &header.0[..]));
        received[0].header.0[2]
    };
    assert_eq!(rejected(Header::new(opcode::SNACK, flag::FINAL)), reject::SNACK);
    assert_eq!(rejected(Header::new(opcode::LOGIN | IMMEDIATE, flag::FINAL)), reject::PROTOCOL);
    assert_eq!(rejected(Header::new(0x1d, flag::FINAL)), reject::NOT_SUPPORTED);
    assert_eq!(rejected(Header::new(opcode::SCSI_RESPONSE, flag::FINAL)), reject::NOT_SUPPORTED);
    let number = target.next();
    target.send(command(&cdb16(operation::READ_16, 0, 1), READ, 5, number, 512), &[]);
    let number = target.next();
    target.send(command(&cdb16(operation::READ_16, 0, 1), READ, 5, number, 512), &[]);
    let received = target.received();
    assert_eq!(received[0].header.0[2], reject::TASK_IN_PROGRESS);
    let number = target.next();
    target.send(command(&cdb16(operation::READ_16, 0, 1), READ, NO_TAG, number, 512), &[]);
    assert_eq!(target.received()[0].header.0[2], reject::INVALID_FIELD);
    target.work(&mut volume);
    assert_eq!(status(&target.received()), GOOD);
}

#[test]
fn a_text_is_answered_in_a_session() {
    let (mut target, _) = ready(usual());
    let mut text = Header::new(opcode::TEXT, flag::FINAL);
    text.set_u32(field::TASK_TAG, 8);
    text.set_u32(field::TRANSFER_TAG, NO_TAG);
    text.set_u32(field::COMMAND_NUMBER, target.next());
    target.send(text, b"SendTargets=\0X=1\0");
    let received = target.received();
    assert_eq!(received[0].opcode(), opcode::TEXT_RESPONSE);
    assert_eq!(received[0].data, b"TargetName=iqn.2026-01.org.loadline:vol\0X=Reject\0");
}

#[test]
fn an_initiator_that_leaves_gets_its_answers_first() {
    let (mut target, mut volume) = ready(usual());
    let number = target.next();
    target.send(command(&cdb16(operation::READ_16, 0, 1), READ, number, number, 512), &[]);
    let waits = target.next();
    target.send(command(&cdb16(operation::WRITE_16, 0, 8), WRITE, waits, waits, 4096), &[]);
    let mut leave = Header::new(opcode::LOGOUT | IMMEDIATE, flag::FINAL | logout::CLOSE_SESSION);
    leave.set_u32(field::TASK_TAG, 66);
    leave.set_u32(field::COMMAND_NUMBER, target.number);
    target.send(leave, &[]);
    assert!(target.connection().is_leaving());
    let before: Vec<_> = target.received().iter().map(Received::opcode).collect();
    assert_eq!(before, [opcode::R2T], "a read is under way");
    let request = target.requests.remove(0);
    volume.carry_out(target.connection(), request, 1).unwrap();
    assert_eq!(target.turn(), Err(SessionEnd::Closed));
    let received = target.received();
    let opcodes: Vec<_> = received.iter().map(Received::opcode).collect();
    assert_eq!(opcodes, [opcode::DATA_IN, opcode::LOGOUT_RESPONSE]);
    assert_eq!(received[1].header.0[2], 0);
}

#[test]
fn what_commands_take_has_a_bound() {
    let (mut target, mut volume) = ready(usual());
    // Reads of 4 MiB: 32 MiB are under way at once, and what is not read is not added to.
    let cdb = cdb16(operation::READ_16, 0, 8192);
    for _ in 0..20 {
        let number = target.next();
        target.send(command(&cdb, READ, number, number, 4 << 20), &[]);
    }
    assert_eq!(target.requests.len(), 8);
    assert!(target.connection().bytes() <= 33 << 20);
    let mut answered = 0;
    while !target.requests.is_empty() {
        let request = target.requests.remove(0);
        volume.carry_out(target.connection(), request, 16).unwrap();
        target.turn().unwrap();
        assert!(target.connection().bytes() <= 33 << 20, "{}", target.connection().bytes());
        answered += target.received().iter().filter(|pdu| pdu.header.has(flag::STATUS)).count();
    }
    assert_eq!(answered, 20);
    assert_eq!(target.connection().bytes(), 0);
}

#[test]
fn an_initiator_that_closes_its_connection_has_gone() {
    let (mut target, _) = ready(usual());
    let number = target.next();
    let bytes = encode(&target.parameters, command(&[0; 6], 0, number, number, 0), &[]);
    target.send_bytes(&bytes[..20]);
    target.turn().unwrap();
    target.close();
    assert_eq!(target.turn(), Err(SessionEnd::Closed));
}
