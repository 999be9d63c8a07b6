//! What is corrupted on a device, and what cannot be read of it.

use super::*;

#[test]
fn corruption_in_an_extent_is_found_without_a_read_and_reported_block_by_block() {
    let mut rig = Rig::new(64);
    (0..8).for_each(|block| rig.write(block));
    rig.destage();
    ticks(&mut rig, 4);
    let whole = rig.store.scrubbed();
    assert!(whole.passes >= 1 && whole.corrupt == 0 && whole.slots == 0, "{whole:?}");
    let read::BlockSource::Data { area, at, .. } = rig.store.look_up(5) else { panic!("it is destaged") };
    rig.disk.corrupt_at(area, at + 512);
    ticks(&mut rig, 4);
    let completions: Vec<_> = rig
        .completions
        .iter()
        .filter(|completion| matches!(completion, Completion::Corrupt { .. }))
        .collect();
    assert!(
        !completions.is_empty()
            && completions.iter().all(|completion| **completion == Completion::Corrupt { block: 5 }),
        "{completions:?}"
    );
    // Its owner writes it anew.
    rig.write(5);
    rig.destage();
    rig.completions.clear();
    ticks(&mut rig, 4);
    assert!(
        !rig.has_reported(|completion| matches!(completion, Completion::Corrupt { .. })),
        "{:?}",
        rig.store.scrubbed()
    );
}

#[test]
fn what_a_return_dropped_during_its_destage_is_not_reported_as_corrupt() {
    let mut rig = Rig::new(64);
    (0..8).for_each(|block| rig.write(block));
    rig.destage();
    let read::BlockSource::Data { area, at: place, .. } = rig.store.look_up(5) else {
        panic!("it is destaged")
    };
    rig.write(5);
    // A round of a former life has brought it half to its place, and its commit point was lost.
    rig.disk.corrupt_at(area, place + 512);
    rig.submit(Command::Return { after: at(rig.appended + 1), empty: false });
    rig.settle();
    assert!(rig.store.list().any(|range| range.contains(&5)), "it is to be brought again");
    ticks(&mut rig, 8);
    let (completions, scrubbed) = (
        rig.has_reported(|completion| matches!(completion, Completion::Corrupt { .. })),
        rig.store.scrubbed(),
    );
    assert!(!completions && scrubbed.corrupt == 0 && scrubbed.passes > 1, "{scrubbed:?}");
}

#[test]
fn a_corrupt_slot_is_written_again_while_its_content_is_known() {
    let mut rig = Rig::new(64);
    (0..8).for_each(|block| rig.write(block));
    rig.destage();
    let place = rig.store.slot_of(5).unwrap();
    rig.disk.corrupt_at(Area::Capacity, place);
    let (_, found, _) = opened_on(&mut rig.disk.clone()).unwrap();
    assert!(found.damaged, "a start would not find the extent");
    ticks(&mut rig, 4);
    assert!(rig.store.scrubbed().slots > 0);
    let (_, found, damage) = opened_on(&mut rig.disk).unwrap();
    assert!(!found.damaged, "{damage:?}");
}

#[test]
fn what_cannot_be_read_of_one_copy_is_taken_from_the_other_and_mended() {
    let mut rig = Rig::new(64);
    (0..8).for_each(|block| rig.write(block));
    rig.destage();
    let space = Space::load(&mut rig.disk, Area::Log, Some(CLUSTER)).unwrap();
    let (log, table) = (space.log_of(REPLICA).unwrap().0, |copy| space.superblock().table_at(copy));
    let page = PAGE as u64;
    for sector in [0, 512, page, table(0), table(1) + 512, log, log + 512, log + page] {
        let mut disk = Dies { disk: rig.disk.clone(), left: 100, unreadable: [sector].into() };
        let (_, found, damage) = opened_on(&mut disk).unwrap_or_else(|why| panic!("byte {sector}: {why}"));
        assert_eq!((found.end, damage), (at(8), Vec::new()), "byte {sector}");
        assert!(disk.unreadable.is_empty(), "byte {sector} is written again");
    }
    // Of both: it cannot be known what is there.
    for both in [[0, page], [table(0), table(1)], [log, log + page]] {
        let mut disk = Dies { disk: rig.disk.clone(), left: 100, unreadable: both.into() };
        let why = opened_on(&mut disk).err().unwrap_or_default();
        assert!(why.contains("cannot read"), "{both:?}: {why}");
    }
}

#[test]
fn a_slot_that_cannot_be_read_is_damage_and_the_others_are_found() {
    let mut rig = Rig::new(64);
    (0..8).for_each(|block| rig.write(block));
    rig.destage();
    let slot = rig.store.slot_of(5).unwrap();
    let mut disk = Dies { disk: rig.disk, left: 100, unreadable: [slot].into() };
    let (store, found, damage) = opened_on(&mut disk).unwrap();
    assert!(found.damaged && matches!(damage[..], [Damage::Slot { .. }]), "{damage:?}");
    assert!(matches!(store.look_up(0), read::BlockSource::Data { .. }));
}

#[test]
fn of_what_is_destaged_together_only_what_cannot_be_read_is_lost() {
    let mut rig = Rig::new(64);
    (0..4).for_each(|block| rig.write(block));
    let read::BlockSource::Data { at: place, .. } = rig.store.look_up(2) else { panic!("it is in the log") };
    rig.unreadable.insert(place + 1024);
    rig.destage();
    assert_eq!(rig.store.entries().count(), 0, "nothing stays in the log for it");
    for block in [0, 1, 3] {
        assert_eq!(read_one(&mut rig, block), Ok([block + 100; 8]));
    }
    assert_eq!(read_one(&mut rig, 2), Err(Corrupt));
}

#[test]
fn a_record_that_cannot_be_read_is_damage_if_a_later_one_covers_it() {
    let mut rig = Rig::new(64);
    (0..6).for_each(|block| rig.write(block));
    let (place, bytes) = rig.store.record_at(3).unwrap();
    let (last, _) = rig.store.record_at(6).unwrap();
    for sector in [place, place + bytes - 512] {
        let mut disk = Dies { disk: rig.disk.clone(), left: 100, unreadable: [sector].into() };
        let (_, found, damage) = opened_on(&mut disk).unwrap();
        assert!(found.damaged && matches!(damage[..], [Damage::Log { from: 3, to: 3, .. }]), "{damage:?}");
    }
    // No later record shows that the last one was durable.
    let mut disk = Dies { disk: rig.disk, left: 100, unreadable: [last].into() };
    let (_, found, damage) = opened_on(&mut disk).unwrap();
    assert_eq!((found.end, damage), (at(5), Vec::new()));
}
