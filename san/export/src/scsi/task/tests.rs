mod random;

use loadline_base::scsi::operation::*;

use super::*;
use crate::block::Operation;
use crate::scsi::reservations::Reservations;
use crate::scsi::testing::{Bench, about, command, name};
use crate::scsi::unit::About;

fn code(sense: Option<Sense>) -> (u8, (u8, u8)) {
    sense.map(|sense| (sense.key, sense.code)).unwrap_or_default()
}

/// A command of 16 bytes with a block address and a length.
fn long(opcode: u8, flags: u8, sector: u64, sectors: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (opcode, flags);
    cdb[2..10].copy_from_slice(&sector.to_be_bytes());
    cdb[10..14].copy_from_slice(&sectors.to_be_bytes());
    cdb
}

fn short(opcode: u8, flags: u8, sector: u32, sectors: u16) -> [u8; 10] {
    let mut cdb = [0; 10];
    (cdb[0], cdb[1]) = (opcode, flags);
    cdb[2..6].copy_from_slice(&sector.to_be_bytes());
    cdb[7..9].copy_from_slice(&sectors.to_be_bytes());
    cdb
}

/// Bytes of which each sector has others.
fn data(sectors: u32, seed: u8) -> Vec<u8> {
    (0..sectors as usize * 512).map(|at| (at / 512 * 7 + at % 251) as u8 ^ seed).collect()
}

#[test]
fn what_was_written_is_read_with_commands_of_each_length() {
    let mut bench = Bench::new();
    let written = data(3, 1);
    for (write, read) in [
        (vec![WRITE_6, 0, 0, 5, 3, 0], vec![READ_6, 0, 0, 5, 3, 0]),
        (short(WRITE_10, 0x18, 21, 3).to_vec(), short(READ_10, 0x18, 21, 3).to_vec()),
        (long(WRITE_16, 0, 47, 3).to_vec(), long(READ_16, 0, 47, 3).to_vec()),
        (vec![WRITE_12, 0, 0, 0, 0, 80, 0, 0, 0, 3], vec![READ_12, 0, 0, 0, 0, 80, 0, 0, 0, 3]),
        (short(WRITE_AND_VERIFY_10, 0, 90, 3).to_vec(), short(READ_10, 0, 90, 3).to_vec()),
        (long(WRITE_AND_VERIFY_16, 0x02, 97, 3).to_vec(), long(READ_16, 0, 97, 3).to_vec()),
    ] {
        let answer = bench.run(&write, &written, 0);
        assert_eq!((answer.status, answer.transfer), (Status::Good, 1536), "{write:02x?}");
        let answer = bench.run(&read, &[], 1536);
        assert_eq!((answer.status, answer.transfer), (Status::Good, 1536));
        assert!(answer.data == written, "{read:02x?}");
    }
    assert!(bench.unit.is_idle());
}

#[test]
fn no_more_is_transferred_than_initiator_and_command_say_and_the_rest_can_be_counted() {
    let mut bench = Bench::new();
    let read = |bench: &mut Bench, takes| bench.run(&short(READ_10, 0, 0, 2), &[], takes);
    bench.run(&short(WRITE_10, 0, 0, 2), &data(2, 3), 0);
    for (takes, gets) in [(0, 0), (200, 200), (512, 512), (1024, 1024), (10_000, 1024)] {
        let answer = read(&mut bench, takes);
        assert_eq!((answer.status, answer.data.len(), answer.transfer), (Status::Good, gets, 1024));
        assert_eq!(answer.data, data(2, 3)[..gets]);
    }
    // One block comes for two: one is written.
    let answer = bench.run(&short(WRITE_10, 0, 0, 2), &data(1, 9), 0);
    assert_eq!((answer.status, answer.transfer), (Status::Good, 1024));
    let two = read(&mut bench, 1024).data;
    assert_eq!((&two[..512], &two[512..]), (&data(1, 9)[..], &data(2, 3)[512..]));
    let answer = bench.run(&short(WRITE_AND_VERIFY_10, 0x02, 0, 2), &data(1, 9), 0);
    assert_eq!((answer.status, answer.transfer), (Status::Good, 1024));
    assert_eq!(read(&mut bench, 1024).data, two);
    // Nothing comes, or less than a block.
    let answer = bench.run(&short(WRITE_10, 0, 0, 2), &[], 0);
    assert_eq!((answer.status, answer.transfer), (Status::Good, 1024));
    let answer = bench.run(&short(WRITE_10, 0, 0, 2), &[0; 200], 0);
    assert_eq!((code(answer.sense), answer.transfer), ((key::ILLEGAL_REQUEST, (0x0e, 3)), 1024));
    assert_eq!(read(&mut bench, 1024).data, two);
}

#[test]
fn blocks_beyond_the_end_are_refused_and_none_at_the_end_are_not() {
    let mut bench = Bench::new();
    let end = bench.unit.about().sectors();
    for opcode in [READ_16, WRITE_16, VERIFY_16, WRITE_AND_VERIFY_16, PREFETCH_16, SYNCHRONIZE_CACHE_16] {
        for (sector, sectors) in [(end - 1, 2), (end + 1, 0), (1 << 63, 1), (u64::MAX, 0), (end, 1)] {
            let answer = bench.run(&long(opcode, 0, sector, sectors), &data(2, 0), 1024);
            assert_eq!(
                code(answer.sense),
                (key::ILLEGAL_REQUEST, (0x21, 0)),
                "{opcode:02x} {sector} {sectors}"
            );
        }
        assert_eq!(bench.run(&long(opcode, 0, end, 0), &[], 0).status, Status::Good, "{opcode:02x}");
    }
    let most = about().most / 512;
    let answer = bench.run(&long(READ_16, 0, 0, most + 1), &[], 1 << 20);
    assert_eq!(answer.sense, Some(Sense::in_command(10)));
}

#[test]
fn what_is_not_supported_is_refused_before_anything_is_done() {
    let mut bench = Bench::new();
    for (cdb, byte) in [
        (short(READ_10, 0x20, 0, 1), 1),
        (short(WRITE_10, 0x60, 0, 1), 1),
        (short(WRITE_SAME_10, 0x10, 0, 1), 1),
        (short(VERIFY_10, 0x80, 0, 1), 1),
        ([UNMAP, 0x01, 0, 0, 0, 0, 0, 0, 24, 0], 1),
        ([READ_10, 0, 0, 0, 0, 0, 0, 0, 1, 0x04], 9),
    ] {
        assert_eq!(bench.run(&cdb, &[1; 512], 512).sense, Some(Sense::in_command(byte)), "{cdb:02x?}");
    }
    assert_eq!(bench.disk.bytes, [0; 64 * 4096]);
}

#[test]
fn compare_and_write_writes_if_all_is_equal_and_says_where_it_is_not() {
    let mut bench = Bench::new();
    bench.run(&long(WRITE_16, 0, 8, 3), &data(3, 5), 0);
    let mut cdb = [0; 16];
    (cdb[0], cdb[9], cdb[13]) = (COMPARE_AND_WRITE, 9, 1);
    let now = data(3, 5)[512..1024].to_vec();
    let mut wrong = now.clone();
    wrong[485] ^= 1;
    let answer = bench.run(&cdb, &[&wrong[..], &[7; 512]].concat(), 0);
    assert_eq!(code(answer.sense), (key::MISCOMPARE, (0x1d, 0)));
    assert_eq!(answer.sense.unwrap().information, Some(485));
    let read = bench.run(&long(READ_16, 0, 8, 3), &[], 1536).data;
    assert!(read == data(3, 5), "nothing was written");
    let answer = bench.run(&cdb, &[&now[..], &[7; 512]].concat(), 0);
    assert_eq!((answer.status, answer.transfer), (Status::Good, 1024));
    let read = bench.run(&long(READ_16, 0, 8, 3), &[], 1536).data;
    assert_eq!(
        (&read[..512], &read[512..1024], &read[1024..]),
        (&data(3, 5)[..512], &[7; 512][..], &data(3, 5)[1024..])
    );
    for out in [0, 512, 1536, 2048] {
        assert_eq!(bench.run(&cdb, &vec![0; out], 0).status, Status::CheckCondition, "{out}");
    }
    cdb[13] = 2;
    assert_eq!(bench.run(&cdb, &[0; 2048], 0).sense, Some(Sense::in_command(13)));
    cdb[13] = 0;
    assert_eq!(bench.run(&cdb, &[], 0).status, Status::Good);
    let wrapped = bench.run(&cdb, &vec![0; 2 * 256 * 512], 0);
    assert_eq!(wrapped.sense, Some(Sense::in_command(13)), "it means 256 blocks");
}

#[test]
fn verify_compares_only_if_it_is_told_to() {
    let mut bench = Bench::new();
    bench.run(&short(WRITE_10, 0, 7, 4), &data(4, 1), 0);
    let mut other = data(4, 1);
    other[1500] ^= 4;
    assert_eq!(bench.run(&short(VERIFY_10, 0, 7, 4), &other, 0).status, Status::Good);
    assert_eq!(bench.run(&short(VERIFY_10, 0x02, 7, 4), &data(4, 1), 0).status, Status::Good);
    let answer = bench.run(&short(VERIFY_10, 0x02, 7, 4), &other, 0);
    assert_eq!(answer.sense.map(|sense| (sense.key, sense.information)), Some((key::MISCOMPARE, Some(1500))));
    bench.run(&short(WRITE_SAME_10, 0, 7, 4), &data(1, 2), 0);
    assert_eq!(bench.run(&short(VERIFY_10, 0x06, 7, 4), &data(1, 2), 0).status, Status::Good);
    assert_eq!(bench.run(&short(VERIFY_10, 0x04, 7, 4), &other, 0).sense, Some(Sense::in_command(1)));
}

#[test]
fn what_is_given_back_reads_as_zeroes_and_is_said_to_hold_nothing() {
    let mut bench = Bench::new();
    bench.run(&short(WRITE_10, 0, 0, 64), &data(64, 1), 0);
    let mut list = vec![0; 24];
    (list[1], list[3], list[15], list[19]) = (22, 16, 3, 20);
    let unmap = [UNMAP, 0, 0, 0, 0, 0, 0, 0, 24, 0];
    assert_eq!(bench.run(&unmap, &list, 0).status, Status::Good);
    let read = bench.run(&short(READ_10, 0, 0, 64), &[], 1 << 15).data;
    let mut expected = data(64, 1);
    expected[3 * 512..23 * 512].fill(0);
    assert!(read == expected);
    let mut cdb = long(SERVICE_ACTION_IN_16, 0x12, 0, 0);
    cdb[13] = 56;
    let status = bench.run(&cdb, &[], 56);
    let runs: Vec<(u8, u8, u8)> = status.data[8..].chunks(16).map(|of| (of[7], of[11], of[12])).collect();
    assert_eq!(runs, [(0, 8, 0), (8, 8, 1), (16, 48, 0)]);
    // Zeroes without a block of data.
    let same = long(WRITE_SAME_16, 0x01, 30, 4);
    assert_eq!((bench.run(&same, &[], 0).status, bench.run(&same, &[], 0).transfer), (Status::Good, 0));
    assert_eq!(bench.run(&short(READ_10, 0, 30, 4), &[], 2048).data, [0; 2048]);
    assert_eq!(bench.run(&unmap, &list[..23], 0).status, Status::CheckCondition);
    for wrong in [0, 256, 1024] {
        let answer = bench.run(&short(WRITE_SAME_10, 0x08, 0, 1), &vec![0; wrong], 0);
        assert_eq!(code(answer.sense), (key::ILLEGAL_REQUEST, (0x0e, 3)), "{wrong}");
    }
    assert_eq!(bench.run(&[UNMAP, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[], 0).status, Status::Good);
}

#[test]
fn a_port_on_standby_says_what_it_is_and_touches_no_data() {
    let mut bench = Bench::new();
    bench.unit.deactivate_all();
    let told = bench.run(&[TEST_UNIT_READY, 0, 0, 0, 0, 0], &[], 0);
    assert_eq!(code(told.sense), (key::UNIT_ATTENTION, (0x2a, 0x06)));
    for cdb in [&[INQUIRY, 0, 0, 0, 96, 0][..], &[REPORT_LUNS, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0]] {
        assert_eq!(bench.run(cdb, &[], 96).status, Status::Good, "{cdb:02x?}");
    }
    for (cdb, is_good) in [
        (&[MAINTENANCE_IN, 0x0a, 0, 0, 0, 0, 0, 0, 0, 255, 0, 0][..], true),
        (&[MAINTENANCE_IN, 0x0c, 0, 0, 0, 0, 0, 0, 0, 255, 0, 0], true),
        (&[PERSISTENT_RESERVE_IN, 0, 0, 0, 0, 0, 0, 0, 255, 0], true),
        (&[READ_CAPACITY_10, 0, 0, 0, 0, 0, 0, 0, 0, 0], true),
        (&[MODE_SENSE_6, 0, 0x3f, 0, 255, 0], true),
        (&[TEST_UNIT_READY, 0, 0, 0, 0, 0], false),
        (&[READ_6, 0, 0, 0, 1, 0], false),
        (&[WRITE_6, 0, 0, 0, 1, 0], false),
        (&[RESERVE_6, 0, 0, 0, 0, 0], false),
    ] {
        let answer = bench.run(cdb, &[], 255);
        let expected = if is_good { (0, (0, 0)) } else { (key::NOT_READY, (0x04, 0x0b)) };
        assert_eq!(code(answer.sense), expected, "{cdb:02x?}");
    }
    // It registers, so that what is written by it later is let through; it prevents nothing.
    let nexus = bench.nexus;
    assert_eq!(reserve(&mut bench, nexus, 0, 0, (0, 11)), Status::Good);
    assert_eq!(reserve(&mut bench, nexus, 1, 5, (11, 0)), Status::Good);
    // It has the reservation already, as far as it is known here: the owner is asked anyway.
    let cdb = [PERSISTENT_RESERVE_OUT, 1, 5, 0, 0, 0, 0, 0, 24, 0];
    let (mut task, step) = Task::begin(&mut bench.unit, nexus, &command(&cdb, 24, 0, 1));
    assert!(matches!(step, Step::Data(24)));
    let mut data = bench.pool.take(1).unwrap();
    data.bytes_mut()[..24].copy_from_slice(&[&11u64.to_be_bytes()[..], &[0; 16]].concat());
    let step = task.data(&mut bench.unit, &bench.pool, data);
    assert!(
        matches!(&step, Step::Change(Change::Reserve { from, to, restricts: true }) if from == to),
        "{step:?}"
    );
    task.end(&mut bench.unit);
    assert_eq!(reserve(&mut bench, nexus, 6, 0, (0, 0)), Status::Good);
    let sense = bench.run(&[REQUEST_SENSE, 0, 0, 0, 18, 0], &[], 18);
    assert_eq!((sense.status, sense.data[2], sense.data[12], sense.data[13]), (Status::Good, 2, 4, 0x0b));
    // SET TARGET PORT GROUPS is what activates it.
    let set = [MAINTENANCE_OUT, 0x0a, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0];
    let list = [0, 0, 0, 0, 0, 0, 0, 1];
    let (mut task, step) = Task::begin(&mut bench.unit, bench.nexus, &command(&set, 8, 0, 1));
    assert!(matches!(step, Step::Data(8)));
    let mut data = bench.pool.take(1).unwrap();
    data.bytes_mut()[..8].copy_from_slice(&list);
    let step = task.data(&mut bench.unit, &bench.pool, data);
    assert!(matches!(step, Step::Change(Change::Activate(1))), "{step:?}");
    let step = task.changed(&mut bench.unit, Ok(()));
    assert!(matches!(step, Step::Done(Answer { status: Status::Good, .. })));
    let failed = bench.run(&set, &list, 0);
    assert_eq!(failed.sense, Some(ports::FAILED));
}

#[test]
fn a_unit_attention_comes_before_anything_but_inquiry_and_is_told_once() {
    let mut bench = Bench::new();
    bench.unit.change(About { bytes: 1 << 17, ..about() });
    assert_eq!(bench.run(&[INQUIRY, 0, 0, 0, 96, 0], &[], 96).status, Status::Good);
    let answer = bench.run(&short(READ_10, 0, 0, 1), &[], 512);
    assert_eq!(code(answer.sense), (key::UNIT_ATTENTION, (0x2a, 0x09)));
    assert_eq!(bench.run(&short(READ_10, 0, 0, 1), &[], 512).status, Status::Good);
    // REQUEST SENSE takes it.
    bench.unit.change(about());
    let sense = bench.run(&[REQUEST_SENSE, 1, 0, 0, 252, 0], &[], 252);
    assert_eq!((sense.status, &sense.data[..4]), (Status::Good, &[0x72, 6, 0x2a, 0x09][..]));
    let sense = bench.run(&[REQUEST_SENSE, 0, 0, 0, 252, 0], &[], 252);
    assert_eq!((sense.data[0], sense.data[2]), (0x70, 0));
    // Also before what no command is.
    bench.unit.change(About { bytes: 1 << 17, ..about() });
    assert_eq!(code(bench.run(&[0xc0], &[], 0).sense).0, key::UNIT_ATTENTION);
    assert_eq!(code(bench.run(&[0xc0], &[], 0).sense), (key::ILLEGAL_REQUEST, (0x20, 0)));
}

#[test]
fn a_unit_that_is_write_protected_reads_and_writes_nothing() {
    let mut bench = Bench::new();
    let mut list = vec![0; 16];
    (list[4], list[5], list[4 + 3], list[4 + 4]) = (0x0a, 10, 0x10, 0x08);
    let select = [MODE_SELECT_6, 0x10, 0, 0, 16, 0];
    assert_eq!(bench.run(&select, &list, 0).status, Status::Good);
    assert_eq!(bench.run(&[MODE_SENSE_6, 8, 0x0a, 0, 255, 0], &[], 255).data[2] & 0x80, 0x80);
    assert_eq!(bench.run(&short(READ_10, 0, 0, 1), &[], 512).status, Status::Good);
    for cdb in [short(WRITE_10, 0, 0, 1).to_vec(), long(WRITE_SAME_16, 0x01, 0, 1).to_vec()] {
        assert_eq!(code(bench.run(&cdb, &[0; 512], 0).sense), (key::DATA_PROTECT, (0x27, 0x02)));
    }
    list[8] = 0;
    assert_eq!(bench.run(&select, &list, 0).status, Status::Good);
    assert_eq!(bench.run(&short(WRITE_10, 0, 0, 1), &[0; 512], 0).status, Status::Good);
}

/// PERSISTENT RESERVE OUT by a session.
fn reserve(bench: &mut Bench, by: NexusId, action: u8, kind: u8, keys: (u64, u64)) -> Status {
    let cdb = [PERSISTENT_RESERVE_OUT, action, kind, 0, 0, 0, 0, 0, 24, 0];
    let list = [&keys.0.to_be_bytes()[..], &keys.1.to_be_bytes(), &[0; 8]].concat();
    bench.run_by(by, &cdb, &list, 0).status
}

#[test]
fn a_persistent_reservation_keeps_others_from_writing_until_it_is_released() {
    let mut bench = Bench::new();
    let (a, b) = (bench.nexus, bench.enter(name(2, 1)));
    assert_eq!(reserve(&mut bench, a, 0, 0, (0, 11)), Status::Good);
    assert_eq!(reserve(&mut bench, a, 1, 1, (11, 0)), Status::Good);
    let write = short(WRITE_10, 0, 0, 1);
    assert_eq!(bench.run_by(a, &write, &[1; 512], 0).status, Status::Good);
    assert_eq!(bench.run_by(b, &write, &[2; 512], 0).status, Status::ReservationConflict);
    assert_eq!(bench.run_by(b, &short(READ_10, 0, 0, 1), &[], 512).data, [1; 512]);
    assert_eq!(bench.run_by(b, &[TEST_UNIT_READY, 0, 0, 0, 0, 0], &[], 0).status, Status::Good);
    assert_eq!(reserve(&mut bench, b, 1, 1, (0, 0)), Status::ReservationConflict);
    let keys = bench.run_by(b, &[PERSISTENT_RESERVE_IN, 0, 0, 0, 0, 0, 0, 1, 0, 0], &[], 256);
    assert_eq!(keys.data, [0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 11]);
    assert_eq!(reserve(&mut bench, a, 2, 1, (11, 0)), Status::Good);
    assert_eq!(bench.run_by(b, &write, &[2; 512], 0).status, Status::Good);
    // RESERVE(6) is not for those that use the other kind, and the other way round.
    let (reserve_6, release_6) = ([RESERVE_6, 0, 0, 0, 0, 0], [RELEASE_6, 0, 0, 0, 0, 0]);
    assert_eq!(bench.run_by(b, &reserve_6, &[], 0).status, Status::ReservationConflict);
    assert_eq!(reserve(&mut bench, a, 0, 0, (11, 0)), Status::Good);
    assert_eq!(bench.run_by(b, &reserve_6, &[], 0).status, Status::Good);
    assert_eq!(reserve(&mut bench, a, 0, 0, (0, 11)), Status::ReservationConflict);
    assert_eq!(
        bench.run_by(a, &[TEST_UNIT_READY, 0, 0, 0, 0, 0], &[], 0).status,
        Status::ReservationConflict
    );
    assert_eq!(bench.run_by(a, &release_6, &[], 0).status, Status::Good);
    assert_eq!(bench.run_by(a, &write, &[1; 512], 0).status, Status::ReservationConflict);
    assert_eq!(bench.run_by(b, &release_6, &[], 0).status, Status::Good);
    assert_eq!(bench.run_by(a, &write, &[1; 512], 0).status, Status::Good);
    assert!(bench.unit.is_idle());
}

#[test]
fn a_preemption_that_does_not_abort_leaves_tasks_as_they_are() {
    let mut bench = Bench::new();
    let (a, b) = (bench.nexus, bench.enter(name(2, 1)));
    assert_eq!(reserve(&mut bench, a, 0, 0, (0, 11)), Status::Good);
    assert_eq!(reserve(&mut bench, b, 0, 0, (0, 22)), Status::Good);
    assert_eq!(reserve(&mut bench, b, 1, 1, (22, 0)), Status::Good);
    let write = short(WRITE_10, 0, 0, 1);
    let (theirs, step) = Task::begin(&mut bench.unit, b, &command(&write, 512, 0, 5));
    assert_eq!(reserve(&mut bench, a, 4, 1, (11, 22)), Status::Good);
    assert!(!bench.unit.take_ended(b) && !bench.unit.is_ending());
    assert_eq!(bench.finish(theirs, step, &[3; 512]).status, Status::Good);
    // What comes after it is prevented, once the session has been told.
    assert_eq!(code(bench.run_by(b, &write, &[4; 512], 0).sense), (key::UNIT_ATTENTION, (0x2a, 0x05)));
    assert_eq!(bench.run_by(b, &write, &[4; 512], 0).status, Status::ReservationConflict);
    assert_eq!(bench.disk.bytes[..512], [3; 512]);
}

#[test]
fn a_preemption_that_aborts_is_answered_when_the_tasks_of_the_other_are_gone() {
    let mut bench = Bench::new();
    let (a, b) = (bench.nexus, bench.enter(name(2, 1)));
    assert_eq!(reserve(&mut bench, a, 0, 0, (0, 11)), Status::Good);
    assert_eq!(reserve(&mut bench, b, 0, 0, (0, 22)), Status::Good);
    let compare = {
        let mut cdb = [0; 16];
        (cdb[0], cdb[13]) = (COMPARE_AND_WRITE, 1);
        cdb
    };
    // The other has read what it compares, and is about to write.
    let (mut theirs, _) = Task::begin(&mut bench.unit, b, &command(&compare, 1024, 0, 5));
    let mut data = bench.pool.take(1).unwrap();
    data.bytes_mut().fill(0);
    let step = theirs.data(&mut bench.unit, &bench.pool, data);
    assert!(matches!(step, Step::Block { operation: Operation::Read, .. }));
    let cdb = [PERSISTENT_RESERVE_OUT, 5, 1, 0, 0, 0, 0, 0, 24, 0];
    let (mut ours, _) = Task::begin(&mut bench.unit, a, &command(&cdb, 24, 0, 6));
    let mut list = bench.pool.take(1).unwrap();
    list.bytes_mut().fill(0);
    (list.bytes_mut()[7], list.bytes_mut()[15]) = (11, 22);
    let step = ours.data(&mut bench.unit, &bench.pool, list);
    assert!(matches!(step, Step::Change(Change::Reserve { .. })));
    let step = ours.changed(&mut bench.unit, Ok(()));
    assert!(matches!(step, Step::Wait), "{step:?}");
    assert!(bench.unit.take_ended(b) && bench.unit.is_ending());
    let (result, read, map) = bench.disk.carry_out(&bench.pool, Operation::Read, 0, 1);
    let step = theirs.carried_out(&mut bench.unit, &bench.pool, result, &read, map);
    assert!(matches!(step, Step::Done(Answer { status: Status::TaskAborted, .. })), "it does not write");
    assert_eq!(bench.unit.take_resumed(a), Some(6));
    let step = ours.resume(&mut bench.unit, &bench.pool);
    assert!(matches!(step, Step::Done(Answer { status: Status::Good, .. })));
    assert_eq!(bench.unit.reservations().key_of(&name(2, 1)), None);
    let told = bench.run_by(b, &[TEST_UNIT_READY, 0, 0, 0, 0, 0], &[], 0);
    assert_eq!(code(told.sense), (key::UNIT_ATTENTION, (0x2a, 0x05)));
    assert!(bench.unit.is_idle());
}

#[test]
fn a_preemption_whose_outcome_is_not_known_aborts_once_it_is_learned() {
    for is_made_elsewhere in [false, true] {
        let mut bench = Bench::new();
        let (a, b) = (bench.nexus, bench.enter(name(2, 1)));
        assert_eq!(reserve(&mut bench, a, 0, 0, (0, 11)), Status::Good);
        assert_eq!(reserve(&mut bench, b, 0, 0, (0, 22)), Status::Good);
        let write = short(WRITE_10, 0, 0, 1);
        let (mut theirs, step) = Task::begin(&mut bench.unit, b, &command(&write, 512, 0, 5));
        assert!(matches!(step, Step::Data(512)), "the initiator is asked for it");
        let cdb = [PERSISTENT_RESERVE_OUT, 5, 1, 0, 0, 0, 0, 0, 24, 0];
        let (mut ours, _) = Task::begin(&mut bench.unit, a, &command(&cdb, 24, 0, 6));
        let mut list = bench.pool.take(1).unwrap();
        list.bytes_mut().fill(0);
        (list.bytes_mut()[7], list.bytes_mut()[15]) = (11, 22);
        let step = ours.data(&mut bench.unit, &bench.pool, list);
        let Step::Change(Change::Reserve { to, .. }) = step else { panic!("{step:?}") };
        if is_made_elsewhere {
            // The session by which it was requested is at another node, or has ended.
            ours.end(&mut bench.unit);
        } else {
            let step = ours.changed(&mut bench.unit, Err(ChangeFailed::Unavailable));
            assert!(matches!(step, Step::Done(Answer { status: Status::Busy, .. })));
        }
        assert!(!bench.unit.take_ended(b), "it may not have been made");
        bench.unit.learn(to);
        assert!(bench.unit.take_ended(b) && bench.unit.is_ending());
        let mut data = bench.pool.take(1).unwrap();
        data.bytes_mut().fill(3);
        let step = theirs.data(&mut bench.unit, &bench.pool, data);
        assert!(matches!(step, Step::Done(Answer { status: Status::TaskAborted, .. })), "it does not write");
        assert!(bench.unit.is_idle());
    }
}

#[test]
fn a_change_that_met_another_one_is_made_again_of_what_is_kept_then() {
    let mut bench = Bench::new();
    let cdb = [PERSISTENT_RESERVE_OUT, 6, 0, 0, 0, 0, 0, 0, 24, 0];
    let (mut task, _) = Task::begin(&mut bench.unit, bench.nexus, &command(&cdb, 24, 0, 1));
    let mut list = bench.pool.take(1).unwrap();
    list.bytes_mut().fill(0);
    list.bytes_mut()[15] = 7;
    let step = task.data(&mut bench.unit, &bench.pool, list);
    assert!(matches!(step, Step::Change(_)));
    bench.unit.learn(Reservations { generation: 5, ..Reservations::default() });
    let step = task.changed(&mut bench.unit, Err(ChangeFailed::Differs));
    let Step::Change(Change::Reserve { from, to, restricts }) = step else { panic!("{step:?}") };
    assert_eq!((from.generation, to.generation, restricts), (5, 6, false));
    let step = task.changed(&mut bench.unit, Err(ChangeFailed::Unavailable));
    assert!(matches!(step, Step::Done(Answer { status: Status::Busy, .. })));
    assert_eq!(bench.unit.reservations().key_of(&name(1, 1)), None);
    assert!(bench.unit.is_idle());
}

#[test]
fn each_failure_of_the_volume_has_its_sense() {
    for (failure, read, write) in [
        (Failure::Corrupt, (3, (0x11, 0)), (3, (0x0c, 0))),
        (Failure::NoSpace, (7, (0x27, 7)), (7, (0x27, 7))),
        (Failure::Deposed, (2, (4, 0x0b)), (2, (4, 0x0b))),
        (Failure::NotAttached, (2, (4, 0x0b)), (2, (4, 0x0b))),
        (Failure::OutOfRange, (5, (0x21, 0)), (5, (0x21, 0))),
        (Failure::TooLong, (5, (0x24, 0)), (5, (0x24, 0))),
        (Failure::TooMany, (0, (0, 0)), (0, (0, 0))),
    ] {
        let mut bench = Bench::new();
        let (mut reads, _) =
            Task::begin(&mut bench.unit, bench.nexus, &command(&short(READ_10, 0, 0, 1), 0, 512, 1));
        let Step::Done(answer) = reads.carried_out(&mut bench.unit, &bench.pool, Err(failure), &[], None)
        else {
            panic!("{failure:?}")
        };
        assert_eq!((code(answer.sense), answer.transfer), (read, 0), "{failure:?}");
        let (mut writes, _) =
            Task::begin(&mut bench.unit, bench.nexus, &command(&short(WRITE_10, 0, 0, 1), 512, 0, 1));
        let data = bench.pool.take(1).unwrap();
        assert!(matches!(writes.data(&mut bench.unit, &bench.pool, data), Step::Block { .. }));
        let Step::Done(answer) = writes.carried_out(&mut bench.unit, &bench.pool, Err(failure), &[], None)
        else {
            panic!("{failure:?}")
        };
        assert_eq!((code(answer.sense), answer.transfer), (write, 512), "{failure:?}");
        assert_eq!(answer.status == Status::TaskSetFull, failure == Failure::TooMany);
        // What compares has only read.
        let verify = command(&short(VERIFY_10, 0x02, 0, 1), 512, 0, 1);
        let (mut verifies, _) = Task::begin(&mut bench.unit, bench.nexus, &verify);
        let data = bench.pool.take(1).unwrap();
        assert!(matches!(verifies.data(&mut bench.unit, &bench.pool, data), Step::Block { .. }));
        let Step::Done(answer) = verifies.carried_out(&mut bench.unit, &bench.pool, Err(failure), &[], None)
        else {
            panic!("{failure:?}")
        };
        assert_eq!((code(answer.sense), answer.transfer), (read, 512), "{failure:?}");
        assert!(bench.unit.is_idle());
    }
}

#[test]
fn a_lun_that_is_not_there_is_told_apart_from_a_disk() {
    let answer = wrong_lun(&command(&[INQUIRY, 0, 0, 0, 96, 0], 0, 96, 1));
    assert!(matches!(answer.data, DataIn::Bytes(data) if data[0] == 0x7f));
    assert_eq!(code(wrong_lun(&command(&[TEST_UNIT_READY], 0, 0, 1)).sense), (5, (0x25, 0)));
    let luns = wrong_lun(&command(&[REPORT_LUNS, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0], 0, 16, 1));
    assert!(matches!(luns.data, DataIn::Bytes(data) if data.len() == 16 && data[3] == 8));
}

#[test]
fn start_and_prevention_do_nothing_and_nothing_is_ejected() {
    let mut bench = Bench::new();
    for (byte, is_good) in [(0x01, true), (0x00, true), (0x02, false), (0x03, false), (0x20, false)] {
        let answer = bench.run(&[START_STOP_UNIT, 0, 0, 0, byte, 0], &[], 0);
        assert_eq!(answer.sense, (!is_good).then_some(Sense::in_command(4)), "{byte:02x}");
    }
    for prevent in [1, 0] {
        assert_eq!(
            bench.run(&[PREVENT_ALLOW_MEDIUM_REMOVAL, 0, 0, 0, prevent, 0], &[], 0).status,
            Status::Good
        );
    }
    for allocation in 0..16 {
        let mut cdb = long(SERVICE_ACTION_IN_16, 0x10, 0, 0);
        cdb[13] = allocation;
        let answer = bench.run(&cdb, &[], 32);
        assert_eq!((answer.data.len(), answer.transfer), (allocation.into(), allocation.into()));
    }
}
