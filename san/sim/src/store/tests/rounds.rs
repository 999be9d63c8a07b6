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
