//! Rounds of destaging: all of what is chosen, and no more of it at once than appends can wait for.

use loadline_san_store::io::Part;

use super::*;

#[test]
fn a_round_with_more_slots_than_are_written_at_once_writes_all_of_them() {
    // More than are written at once; each is in a chunk of its own, so that no slot is written with another.
    let chunks = 9;
    let extents = chunks * CHUNK;
    let settings = Settings { round: u64::MAX, begin: u64::MAX, ..SETTINGS };
    let mut rig = Rig::with(format(REPLICA, false, extents * u64::from(EXTENT), promise(1), 12), settings);
    for extent in 0..extents {
        rig.write(extent * u64::from(EXTENT));
        rig.destage();
    }
    let blocks: Vec<u64> = (0..chunks).map(|chunk| chunk * CHUNK * u64::from(EXTENT)).collect();
    for block in &blocks {
        rig.append(at(rig.appended + 1), true, data(*block, block + 200));
        rig.settle();
    }
    let commit_point = at(rig.appended);
    rig.commit_point(commit_point, commit_point);
    rig.store.destage_soon();
    rig.run();
    let is_slots = |(_, request): &&(Token, IoRequest<Blocks>)| matches!(request, IoRequest::Write(writing) if writing.area == Area::Capacity && matches!(writing.parts[0], Part::Bytes(_)));
    let (mut most, mut slots, mut syncs) = ([0, 0], 0, 0);
    while !rig.submitted.is_empty() {
        let now = [rig.submitted.len(), rig.submitted.iter().filter(is_slots).count()];
        most = [most[0].max(now[0]), most[1].max(now[1])];
        slots += rig.submitted.iter().take(1).filter(is_slots).count();
        syncs += usize::from(matches!(rig.submitted[0].1, IoRequest::Sync(_)));
        rig.do_one(|_| true);
    }
    assert_eq!((slots, syncs), (chunks as usize, 1), "one round");
    assert_eq!(most, [4, 4], "at once");
    let (mut again, _) = Rig::on(rig.disk);
    for block in blocks {
        assert_eq!(read_one(&mut again, block).unwrap(), [block + 200; 8]);
    }
}

/// A round begins only when a test asks for it. No record is held in memory, and each slice of a round has two records.
const SLICED: Settings = Settings {
    low: 90,
    begin: u64::MAX,
    high: 95,
    round: u64::MAX,
    held: 0,
    recall: 2 * BLOCK,
    scrub: 0,
    ..SETTINGS
};

fn is_data(request: &IoRequest<Blocks>) -> bool {
    matches!(request, IoRequest::Write(writing) if writing.area == Area::Capacity && matches!(writing.parts[0], Part::Data { .. }))
}

/// So many blocks, each in an extent of its own and written with this more than its number, acknowledged and not destaged.
fn appended(rig: &mut Rig, blocks: u64, more: u64) {
    for block in 0..blocks {
        rig.append(at(rig.appended + 1), true, data(block * u64::from(EXTENT), block + more));
        rig.settle();
    }
    let commit_point = at(rig.appended);
    rig.commit_point(commit_point, commit_point);
}

fn are(rig: &mut Rig, blocks: u64, more: u64) {
    for block in 0..blocks {
        assert_eq!(read_one(rig, block * u64::from(EXTENT)).unwrap(), [block + more; 8], "{block}");
    }
}

#[test]
fn a_return_cuts_a_round_short_and_the_log_keeps_what_the_round_had() {
    let mut rig = Rig::with(format(REPLICA, false, 32 * u64::from(EXTENT), promise(1), 12), SLICED);
    appended(&mut rig, 16, 100);
    rig.destage();
    appended(&mut rig, 16, 200);
    rig.store.destage_soon();
    rig.run();
    while !rig.do_one(is_data) {
        rig.do_one(|_| true);
    }
    rig.submit(Command::Return { after: at(rig.appended), empty: false });
    let mut written = 1;
    while !rig.has_reported(|completion| matches!(completion, Completion::Listed(_))) {
        written += usize::from(rig.submitted.first().is_some_and(|(_, request)| is_data(request)));
        assert!(rig.do_one(|_| true), "the return goes on");
    }
    assert!(written < 8, "{written} of 16 extents were written before the return");
    assert_eq!(rig.store.entries().count(), 16, "nothing is freed");
    are(&mut rig, 16, 200);
    let (mut again, _) = Rig::on(rig.disk.clone());
    are(&mut again, 16, 200);
    rig.destage();
    assert_eq!(rig.store.entries().count(), 0);
    are(&mut rig, 16, 200);
    let (mut again, _) = Rig::on(rig.disk);
    are(&mut again, 16, 200);
}

#[test]
fn of_a_block_in_several_slices_the_last_acknowledged_version_gets_to_its_place() {
    let mut rig = Rig::with(format(REPLICA, false, 32 * u64::from(EXTENT), promise(1), 12), SLICED);
    // With such a record in the log, it is not known without a search which data is replaced.
    let zeroes = Entry { block: 20 * u64::from(EXTENT), blocks: 1, op: EntryOp::Zeroes };
    rig.append(at(1), true, zeroes);
    rig.settle();
    for more in [100, 200] {
        appended(&mut rig, 4, more);
    }
    // A version that is not acknowledged keeps neither of the two from being written.
    for block in 0..4 {
        rig.append(at(rig.appended + 1), true, data(block * u64::from(EXTENT), block + 300));
        rig.settle();
    }
    rig.store.destage_soon();
    rig.run();
    let mut written = 0;
    // The device does the latest first, as far as it has it.
    while let Some((token, request)) = rig.submitted.pop() {
        written += usize::from(is_data(&request));
        rig.submitted.insert(0, (token, request));
        rig.do_one(|_| true);
    }
    assert_eq!((written, rig.store.entries().count()), (8, 4));
    are(&mut rig, 4, 300);
    let (mut again, found) = Rig::on(rig.disk);
    assert!(!found.damaged);
    again.submit(Command::Return { after: at(9), empty: false });
    again.settle();
    are(&mut again, 4, 200);
}

#[test]
fn what_is_above_the_commit_point_is_reported_while_a_round_of_what_is_below_goes_on() {
    let mut rig = Rig::with(format(REPLICA, false, 32 * u64::from(EXTENT), promise(1), 12), SLICED);
    appended(&mut rig, 8, 100);
    rig.append(at(9), true, data(0, 200));
    rig.settle();
    rig.store.destage_soon();
    rig.run();
    assert!(rig.store.is_destaging());
    rig.submit(Command::Above(1));
    let reported = |completion: &Completion<Blocks>| matches!(completion, Completion::Above(1, entries) if entries.len() == 1);
    assert!(rig.has_reported(reported));
    rig.settle();
    assert_eq!(rig.store.entries().count(), 1);
}
