//! What cannot be read and is given up does no harm a second time.

use super::*;

impl Rig {
    pub(super) fn with(mut disk: SimDisk, settings: Settings) -> Rig {
        let (store, _, _) = open_disk(&mut disk, false, REPLICA, settings).unwrap();
        let unreadable = BTreeSet::new();
        Rig { store, disk, submitted: Vec::new(), completions: Vec::new(), appended: 0, unreadable }
    }

    /// The device carries out its first waiting I/O of this kind. Returns false if there is none.
    pub(super) fn do_one(&mut self, which: impl Fn(&IoRequest<Blocks>) -> bool) -> bool {
        let Some(index) = self.submitted.iter().position(|(_, request)| which(request)) else { return false };
        let (token, request) = self.submitted.remove(index);
        let moment = self.disk.moment();
        let done = self.disk.carry_out(request, moment);
        let mut out = Vec::new();
        self.store.done(token, done, &mut out);
        self.take(out);
        self.run();
        true
    }
}

fn is_read(request: &IoRequest<Blocks>) -> bool {
    matches!(request, IoRequest::Read(_))
}

/// A replica with a slot that is corrupt, salvaged and ordered to be empty, as far as that goes without reading.
fn emptied(settings: Settings) -> Rig {
    let mut rig = Rig::new(64);
    (0..8).for_each(|block| rig.write(block));
    rig.destage();
    let slot = rig.store.slot_of(5).unwrap();
    rig.disk.corrupt_at(Area::Capacity, slot);
    let mut rig = Rig::with(rig.disk, settings);
    rig.submit(Command::Salvage);
    rig.settle();
    rig.submit(Command::Return { after: at(9), empty: true });
    while rig.do_one(|request| !is_read(request)) {}
    assert!(
        rig.has_reported(|completion| *completion == Completion::Listed(Vec::new())),
        "{:?}",
        rig.completions
    );
    rig
}

#[test]
fn a_replica_that_is_emptied_and_dies_at_once_is_whole() {
    let mut rig = emptied(Settings { held: 0, ..SETTINGS });
    let (_, found, damage) = opened_on(&mut rig.disk).unwrap();
    assert_eq!((found.damaged, damage), (false, Vec::new()));
}

#[test]
fn a_slot_that_was_given_up_is_written_again_also_during_rounds_and_without_a_scrub() {
    let mut rig = emptied(Settings { held: 0, scrub: 0, ..SETTINGS });
    rig.append(at(9), false, data(40, 3));
    while rig.do_one(|request| !is_read(request)) {}
    rig.submit(Command::CommitPoint { commit_point: at(9), acknowledged: at(9), epoch: OWNERSHIP });
    rig.store.destage_soon();
    rig.run();
    rig.settle();
    rig.submit(Command::Joined);
    rig.settle();
    ticks(&mut rig, 200);
    let (_, found, damage) = opened_on(&mut rig.disk).unwrap();
    assert_eq!((found.damaged, damage), (false, Vec::new()));
}

#[test]
fn a_chunk_that_is_taken_during_an_emptying_return_is_no_damage() {
    let disk = format(REPLICA, false, 256, promise(1), 12);
    let mut rig = Rig::with(disk, Settings { held: 0, spare: 2 * CHUNK, ..SETTINGS });
    rig.run();
    let space = Space::load(&mut rig.disk, Area::Log, Some(CLUSTER)).unwrap();
    let log = space.log_of(REPLICA).unwrap().0;
    let is_page = |request: &IoRequest<Blocks>| matches!(request, IoRequest::Write(one) if one.area == Area::Log && (log..log + 200_000).contains(&one.at));
    rig.submit(Command::Return { after: at(9), empty: true });
    // The page is slow, growth is not.
    for _ in 0..6 {
        assert!(rig.do_one(|request| !is_page(request)), "{:?}", rig.submitted);
    }
    assert!(!rig.has_reported(|completion| matches!(completion, Completion::Listed(_))));
    let (_, found, damage) = opened_on(&mut rig.disk).unwrap();
    assert_eq!((found.damaged, damage), (false, Vec::new()));
}

#[test]
fn a_slot_that_cannot_be_read_on_a_full_device_is_damage_that_can_be_salvaged() {
    let (mut rig, _) = Rig::on(crowded());
    (0..CHUNK).for_each(|extent| rig.write(extent * u64::from(EXTENT)));
    rig.destage();
    // One more, to an extent that is there: it needs no room.
    let block = 5 * u64::from(EXTENT);
    rig.write(block);
    let slot = rig.store.slot_of(block).unwrap();
    rig.disk.corrupt_at(Area::Capacity, slot);
    let (mut rig, found) = Rig::on(rig.disk);
    assert!(found.damaged);
    rig.submit(Command::Salvage);
    rig.settle();
    assert_eq!(read_one(&mut rig, block), Ok([block + 100; 8]), "the log has it");
    assert_eq!(read_one(&mut rig, 0), Ok([100; 8]));
    let (_, found, damage) = opened_on(&mut rig.disk).unwrap();
    assert_eq!((found.damaged, damage), (false, Vec::new()));
}

#[test]
fn an_emptied_replica_is_whole_again_also_if_its_slots_could_not_be_read() {
    let mut rig = Rig::new(64);
    (0..8).for_each(|block| rig.write(block));
    rig.destage();
    let slot = rig.store.slot_of(5).unwrap();
    rig.disk.corrupt_at(Area::Capacity, slot);
    let (mut rig, found) = Rig::on(rig.disk);
    assert!(found.damaged);
    rig.submit(Command::Salvage);
    rig.settle();
    rig.submit(Command::Return { after: at(9), empty: true });
    rig.settle();
    assert!(
        rig.has_reported(|completion| *completion == Completion::Listed(Vec::new())),
        "{:?}",
        rig.completions
    );
    let (_, found, damage) = opened_on(&mut rig.disk).unwrap();
    assert_eq!((found.damaged, damage), (false, Vec::new()));
}
