//! What reviews have found wrong with the store, one at a time. It is run after each command and each answer of its device,
//! and at no other time.

mod asked_again;
mod given_up;
mod maps;
mod rounds;
mod unreadable;

use std::collections::BTreeSet;

use loadline_san_core::ids::{Incarnation, NodeId, Owner, Sequence};
use loadline_san_core::message::{Content, Corrupt, Entry, EntryOp, Job, Payload};
use loadline_san_core::store::Tag;
use loadline_san_protocol::device::{ChunkUse, PAGE, Role, encode_use};
use loadline_san_store::io::{Done, IoFault, Piece};

use super::*;

const REPLICA: ReplicaId = ReplicaId(9);
const OWNERSHIP: Epoch = Epoch(2);

fn promise(epoch: u64) -> Promise {
    Promise { epoch: Epoch(epoch), owner: Owner { node: NodeId(1), incarnation: Incarnation(1) } }
}

fn at(sequence: u64) -> Position {
    Position { ownership: OWNERSHIP, sequence: Sequence(sequence) }
}

fn opened_on(disk: &mut impl Disk) -> Result<(Real, DurableState, Vec<Damage>), String> {
    open_disk(disk, false, REPLICA, Settings { held: 0, ..SETTINGS })
}

/// A store with its disk.
struct Rig {
    store: Real,
    disk: SimDisk,
    submitted: Vec<(Token, IoRequest<Blocks>)>,
    completions: Vec<Completion<Blocks>>,
    appended: u64,
    /// Sectors that cannot be read.
    unreadable: BTreeSet<u64>,
}

impl Rig {
    /// An empty replica, on a device with room for so many blocks, and a little more.
    fn new(blocks: u64) -> Rig {
        Rig::on(format(REPLICA, false, blocks, promise(1), 12)).0
    }

    fn on(mut disk: SimDisk) -> (Rig, DurableState) {
        let (store, found, _) = opened_on(&mut disk).unwrap();
        (
            Rig {
                store,
                disk,
                submitted: Vec::new(),
                completions: Vec::new(),
                appended: 0,
                unreadable: BTreeSet::new(),
            },
            found,
        )
    }

    fn run(&mut self) {
        let mut out = Vec::new();
        self.store.run(&mut out);
        self.take(out);
    }

    fn take(&mut self, actions: Vec<Action<Blocks>>) {
        for action in actions {
            match action {
                Action::Submit(token, request) => self.submitted.push((token, request)),
                Action::Complete(completion) => self.completions.push(completion),
            }
        }
    }

    fn submit(&mut self, command: Command<Blocks>) {
        self.store.submit(command);
        self.run();
    }

    /// The device does all that it is asked for.
    fn settle(&mut self) {
        while !self.submitted.is_empty() {
            let (token, request) = self.submitted.remove(0);
            let moment = self.disk.moment();
            let is_unreadable = |piece: &Piece| {
                let bytes = u64::from(piece.blocks) * BLOCK;
                self.unreadable.range(piece.at..piece.at + bytes).next().is_some()
            };
            let done = match request {
                IoRequest::Read(reading) if reading.pieces.iter().any(is_unreadable) => {
                    Done::Read(reading, Err(refused(Area::Log, 0)))
                }
                request => self.disk.carry_out(request, moment),
            };
            let mut out = Vec::new();
            self.store.done(token, done, &mut out);
            self.take(out);
            self.run();
        }
    }

    fn append(&mut self, position: Position, sequenced: bool, entry: Entry<Blocks>) {
        self.appended += 1;
        let commit_point = self.store.commit_point();
        let (number, acknowledged, epoch) = (self.appended, commit_point, OWNERSHIP);
        self.submit(Command::Append {
            number,
            position,
            sequenced,
            entry,
            commit_point,
            acknowledged,
            epoch,
        });
    }

    /// The next write of the sequence, of one block.
    fn write(&mut self, block: u64) {
        let position = at(self.appended + 1);
        self.append(position, true, data(block, block + 100));
        self.settle();
    }

    fn commit_point(&mut self, commit_point: Position, acknowledged: Position) {
        self.submit(Command::CommitPoint { commit_point, acknowledged, epoch: OWNERSHIP });
        self.settle();
    }

    fn destage(&mut self) {
        let commit_point = at(self.appended);
        self.commit_point(commit_point, commit_point);
        for _ in 0..20 {
            self.store.destage_soon();
            self.run();
            self.settle();
        }
    }

    fn has_reported(&self, what: impl Fn(&Completion<Blocks>) -> bool) -> bool {
        self.completions.iter().any(what)
    }
}

/// Time passes, and the device does what it is asked for.
fn ticks(rig: &mut Rig, count: u32) {
    for _ in 0..count {
        rig.store.tick();
        rig.run();
        rig.settle();
    }
}

fn read_one(rig: &mut Rig, block: u64) -> Result<Block, Corrupt> {
    rig.completions.clear();
    let tag = Tag { session: 1, job: Job { slot: 0, turn: 0, part: 0 } };
    rig.submit(Command::Read { tag, block, blocks: 1, again: false });
    rig.settle();
    match rig.completions.pop() {
        Some(Completion::Data { content: Ok(Content::Data(payload)), .. }) => Ok(payload.data[0]),
        Some(Completion::Data { content: Err(Corrupt), .. }) => Err(Corrupt),
        other => panic!("{other:?}"),
    }
}

fn data(block: u64, value: u64) -> Entry<Blocks> {
    let data = Blocks::new(vec![[value; 8]]);
    Entry { block, blocks: 1, op: EntryOp::Data(Payload { data, first: 0 }) }
}

/// Writes in the table which replica has a chunk.
fn use_chunk(disk: &mut SimDisk, superblock: &Superblock, chunk: u32, of: ChunkUse) {
    let entry = Sector(encode_use(Some(&of), superblock.device, chunk).unwrap());
    for copy in 0..2 {
        let at = superblock.table_at(copy) + u64::from(chunk) * SECTOR as u64;
        disk.write(Area::Log, at, &[entry]).unwrap();
    }
}

fn refused(area: Area, at: u64) -> IoFault {
    IoFault::Failed { area, at, error: std::io::Error::other("it is simulated") }
}

/// A device that takes so many writes, and then no more; and cannot read some sectors before they are written again.
struct Dies {
    disk: SimDisk,
    left: u32,
    unreadable: BTreeSet<u64>,
}

impl Disk for Dies {
    fn bytes(&self, area: Area) -> u64 {
        self.disk.bytes(area)
    }

    fn read(&mut self, area: Area, at: u64, into: &mut [Sector]) -> Result<(), IoFault> {
        match self.unreadable.range(at..at + (into.len() * SECTOR) as u64).next() {
            Some(at) => Err(refused(area, *at)),
            None => self.disk.read(area, at, into),
        }
    }

    fn write(&mut self, area: Area, at: u64, from: &[Sector]) -> Result<(), IoFault> {
        if self.left == 0 {
            return Err(refused(area, at));
        }
        self.left -= 1;
        (0..from.len()).for_each(|sector| _ = self.unreadable.remove(&(at + (sector * SECTOR) as u64)));
        self.disk.write(area, at, from)
    }

    fn sync(&mut self, area: Area) -> Result<(), IoFault> {
        self.disk.sync(area)
    }
}

#[test]
fn a_start_that_is_cut_short_again_and_again_finds_its_page() {
    let mut rig = Rig::new(64);
    rig.write(3);
    let mut dies = Dies { disk: rig.disk, left: 0, unreadable: BTreeSet::new() };
    for left in [1, 1, 2, 1, 3, 1] {
        dies.left = left;
        let _ = opened_on(&mut dies);
    }
    dies.left = 100;
    let (_, found, damage) = opened_on(&mut dies).unwrap();
    assert_eq!((found.end, damage), (at(1), Vec::new()));
}

/// A device of whose chunks another replica has all but one.
fn crowded() -> SimDisk {
    let mut disk = format(REPLICA, false, 64, promise(1), 12);
    let space = Space::load(&mut disk, Area::Log, Some(CLUSTER)).unwrap();
    let free = (0..).zip(space.uses()).filter(|(_, of)| of.is_none()).map(|(chunk, _)| chunk);
    for chunk in free.skip(1).collect::<Vec<u32>>() {
        let of = ChunkUse { replica: ReplicaId(50), key: 0, role: Role::Capacity, index: 0, of: 0 };
        use_chunk(&mut disk, space.superblock(), chunk, of);
    }
    disk
}

#[test]
fn on_a_full_device_trims_that_are_acknowledged_make_room() {
    let (mut rig, _) = Rig::on(crowded());
    (0..CHUNK).for_each(|extent| rig.write(extent * u64::from(EXTENT)));
    rig.destage();
    let trim = Entry { block: 0, blocks: 2 * EXTENT, op: EntryOp::Trim };
    rig.append(at(rig.appended + 1), true, trim);
    rig.settle();
    rig.commit_point(at(rig.appended), at(rig.appended));
    // Nothing but the trims, which are not destaged, can make room for this.
    rig.write(CHUNK * u64::from(EXTENT));
    assert!(
        rig.has_reported(|completion| *completion == Completion::Appended(CHUNK + 2)),
        "{:?}",
        rig.store.fill()
    );
}

#[test]
fn a_replica_with_a_place_for_each_extent_of_its_volume_is_never_full() {
    let full = |rig: &Rig| {
        rig.completions.iter().filter(|completion| matches!(completion, Completion::Full(_))).count()
    };
    let mut rig = Rig::with(crowded(), Settings { extents: CHUNK - 1, ..SETTINGS });
    (0..CHUNK - 1).for_each(|extent| rig.write(extent * u64::from(EXTENT)));
    assert_eq!(full(&rig), 0);
    // The volume has grown, and this replica does not have its new size yet: the device has no room for more than this one.
    rig.write((CHUNK - 1) * u64::from(EXTENT));
    assert!(rig.has_reported(|completion| *completion == Completion::Appended(CHUNK)));
    assert!(rig.has_reported(|completion| *completion == Completion::Full(true)));
    rig.store.resize(CHUNK);
    rig.run();
    assert!(rig.has_reported(|completion| *completion == Completion::Full(false)));
    rig.store.resize(CHUNK + 1);
    rig.run();
    assert_eq!(full(&rig), 3);
}

#[test]
fn a_replica_that_was_promised_its_room_takes_it_when_the_volume_is_written() {
    let extents = 5 * CHUNK;
    let disk = format(REPLICA, false, extents * u64::from(EXTENT), promise(1), 12);
    let left = |rig: &mut Rig| Space::load(&mut rig.disk, Area::Log, Some(CLUSTER)).unwrap().free();
    let mut rig = Rig::with(disk, Settings { is_promised: true, ..SETTINGS });
    let all = left(&mut rig);
    ticks(&mut rig, 10);
    assert_eq!(left(&mut rig), all, "an empty replica takes nothing beside its log");
    rig.write(0);
    assert!(rig.has_reported(|completion| *completion == Completion::Appended(1)));
    assert_eq!(left(&mut rig), all - 1);
    (1..extents).for_each(|extent| rig.write(extent * u64::from(EXTENT)));
    assert!(rig.has_reported(|completion| *completion == Completion::Appended(extents)));
    assert!(!rig.has_reported(|completion| matches!(completion, Completion::Full(_))));
}

#[test]
fn a_replica_that_does_not_find_what_it_was_promised_reports_that_its_device_is_full() {
    let mut rig = Rig::with(crowded(), Settings { is_promised: true, ..SETTINGS });
    (0..CHUNK - SPARE).for_each(|extent| rig.write(extent * u64::from(EXTENT)));
    ticks(&mut rig, 1);
    assert!(!rig.has_reported(|completion| matches!(completion, Completion::Full(_))));
    rig.write((CHUNK - SPARE) * u64::from(EXTENT));
    assert!(rig.has_reported(|completion| *completion == Completion::Full(true)));
}

#[test]
fn a_device_is_reported_full_while_what_is_in_flight_still_fits() {
    let (mut rig, _) = Rig::on(crowded());
    let full_reports = |rig: &Rig| {
        let full = rig
            .completions
            .iter()
            .filter_map(|completion| if let Completion::Full(is) = completion { Some(*is) } else { None });
        full.collect::<Vec<bool>>()
    };
    (0..CHUNK - SPARE).for_each(|extent| rig.write(extent * u64::from(EXTENT)));
    assert!(full_reports(&rig).is_empty());
    rig.write((CHUNK - SPARE) * u64::from(EXTENT));
    assert_eq!(full_reports(&rig), [true]);
    let place = |what: fn(&Completion<Blocks>) -> bool| rig.completions.iter().position(what).unwrap();
    let (full, last) = (
        place(|completion| *completion == Completion::Full(true)),
        place(|completion| *completion == Completion::Appended(CHUNK - SPARE + 1)),
    );
    assert!(full < last, "the device was reported full after the append was acknowledged");
    // Appends that are in flight when that is reported.
    (CHUNK - SPARE + 1..CHUNK).for_each(|extent| rig.write(extent * u64::from(EXTENT)));
    assert!(rig.has_reported(|completion| *completion == Completion::Appended(CHUNK)));
    rig.submit(Command::Promise(promise(7)));
    rig.settle();
    assert!(rig.has_reported(|completion| *completion == Completion::Promised(promise(7))));
    let trim = Entry { block: 0, blocks: 5 * EXTENT, op: EntryOp::Trim };
    rig.append(at(rig.appended + 1), true, trim);
    rig.settle();
    rig.destage();
    assert_eq!(full_reports(&rig), [true, false]);
}

#[test]
fn what_an_owner_should_not_have_written_to_a_full_device_fails_it_and_blocks_nothing() {
    let (mut rig, _) = Rig::on(crowded());
    (0..=CHUNK).for_each(|extent| rig.write(extent * u64::from(EXTENT)));
    assert!(rig.has_reported(|completion| *completion == Completion::Appended(CHUNK)));
    assert!(!rig.has_reported(|completion| *completion == Completion::Appended(CHUNK + 1)));
    // Nothing in the log is acknowledged, so nothing of it can make room. That may change, but is not waited for for ever.
    assert!(!rig.has_reported(|completion| *completion == Completion::Failed));
    ticks(&mut rig, 60);
    assert!(rig.has_reported(|completion| *completion == Completion::Failed), "{:?}", rig.store.fill());
    assert!(rig.store.why_failed().unwrap().contains("full"), "{:?}", rig.store.why_failed());
    let (again, found) = Rig::on(rig.disk);
    assert_eq!((found.end, found.damaged, again.store.has_failed()), (at(CHUNK), false, false));
}

#[test]
fn a_map_separates_blocks_that_were_never_written_from_written_neighbours() {
    let mut rig = Rig::new(64);
    rig.write(1);
    let tag = Tag { session: 1, job: Job { slot: 0, turn: 0, part: 0 } };
    rig.submit(Command::Read { tag, block: 0, blocks: 3, again: false });
    rig.settle();
    let sparse = |completion: &Completion<Blocks>| match completion {
        Completion::Data { content: Ok(Content::Sparse(payload, holes)), .. } => {
            *holes == [0..1, 2..3] && payload.data[1] == [101; 8] && payload.data[2] == ZERO
        }
        _ => false,
    };
    assert!(rig.has_reported(sparse), "{:?}", rig.completions);
}

#[test]
fn what_stands_behind_an_entry_that_is_there_already_is_done() {
    let mut rig = Rig::new(64);
    let long_ago = |sequence| Position { ownership: Epoch(1), sequence: Sequence(sequence) };
    rig.append(long_ago(1), false, data(0, 8));
    rig.settle();
    // While a batch is being written: the first once more, as a takeover brings it that was cut short, and a promise.
    rig.append(long_ago(2), false, data(9, 16));
    rig.append(long_ago(1), false, data(0, 8));
    rig.submit(Command::Promise(promise(3)));
    rig.settle();
    assert!(rig.has_reported(|completion| *completion == Completion::Appended(3)));
    assert!(
        rig.has_reported(|completion| *completion == Completion::Promised(promise(3))),
        "and nothing is asked of the device"
    );
}

#[test]
fn a_replica_returns_each_time_it_is_ordered_to() {
    let mut rig = Rig::new(64);
    for sequence in 1..100 {
        rig.submit(Command::Return { after: at(sequence), empty: false });
        rig.settle();
        rig.commit_point(at(sequence), at(sequence));
    }
    let listed =
        rig.completions.iter().filter(|completion| matches!(completion, Completion::Listed(_))).count();
    assert_eq!(listed, 99);
}

#[test]
fn what_one_copy_of_the_table_has_lost_is_mended_from_the_other() {
    let mut rig = Rig::new(64);
    rig.write(3);
    rig.destage();
    let mut disk = rig.disk;
    let space = Space::load(&mut disk, Area::Log, Some(CLUSTER)).unwrap();
    let superblock = *space.superblock();
    let chunk = (0..).zip(space.uses()).find(|(_, of)| of.is_some_and(|of| of.role == Role::Capacity));
    let (chunk, _) = chunk.expect("it has extents");
    let entry = |copy| superblock.table_at(copy) + chunk * SECTOR as u64;
    // The process had died between the two; and then the other copy is lost.
    disk.write(Area::Log, entry(1), &[Sector::ZERO]).unwrap();
    let (rig, _) = Rig::on(disk);
    let mut disk = rig.disk;
    disk.corrupt_at(Area::Log, entry(0));
    let (rig, found) = Rig::on(disk);
    assert!(!found.damaged);
    assert_eq!(value(&rig.store, &rig.disk, 3, false), Some([103; 8]));
}

#[test]
fn an_emptied_replica_needs_no_list() {
    let mut rig = Rig::new(64);
    rig.write(3);
    rig.submit(Command::Return { after: at(5), empty: false });
    rig.settle();
    let mut disk = rig.disk;
    let space = Space::load(&mut disk, Area::Log, Some(CLUSTER)).unwrap();
    let (start, _) = space.log_of(REPLICA).unwrap();
    // What lies beside the two pages: both halves of it begin somewhere here.
    let bytes = disk.bytes(Area::Log).min(start + 200_000);
    for sector in (start + 2 * PAGE as u64..bytes).step_by(SECTOR) {
        disk.corrupt_at(Area::Log, sector);
    }
    let (mut rig, found) = Rig::on(disk);
    assert!(found.damaged);
    rig.submit(Command::Salvage);
    rig.settle();
    rig.submit(Command::Return { after: at(9), empty: true });
    rig.settle();
    let (_, found) = Rig::on(rig.disk);
    assert!(!found.damaged, "it has nothing that could be lost");
}

#[test]
fn a_replica_that_is_forgotten_half_way_has_no_log() {
    let mut disk = format(REPLICA, false, 256, promise(1), 12);
    let superblock = *Space::load(&mut disk, Area::Log, Some(CLUSTER)).unwrap().superblock();
    // Another, with a chunk of extents before its log.
    let other = ReplicaId(11);
    let last = superblock.chunks - 1;
    for (chunk, role, index, of) in
        [(last - 2, Role::Capacity, 0, 0), (last - 1, Role::Log, 0, 2), (last, Role::Log, 1, 2)]
    {
        use_chunk(&mut disk, &superblock, chunk, ChunkUse { replica: other, key: 5, role, index, of });
    }
    let mut space = Space::load(&mut disk, Area::Log, Some(CLUSTER)).unwrap();
    assert!(space.log_of(other).is_some());
    let mut dies = Dies { disk, left: 2, unreadable: BTreeSet::new() };
    space.forget(&mut dies, Area::Log, other, 5).unwrap_err();
    let space = Space::load(&mut dies.disk, Area::Log, Some(CLUSTER)).unwrap();
    assert_eq!(space.log_of(other), None);
}

#[test]
fn what_is_reported_above_the_mark_can_be_fetched() {
    let mut rig = Rig::new(64);
    rig.write(3);
    rig.commit_point(at(1), at(9));
    // A copy, newer than what is here, and acknowledged.
    rig.append(at(7), false, data(5, 77));
    rig.settle();
    rig.submit(Command::Above(1));
    rig.settle();
    let reported = rig.completions.iter().find_map(|completion| match completion {
        Completion::Above(1, above) => Some(above.iter().map(|mention| mention.number).collect::<Vec<_>>()),
        _ => None,
    });
    let number = reported.expect("it is answered")[0];
    for _ in 0..20 {
        rig.store.destage_soon();
        rig.store.tick();
        rig.run();
        rig.settle();
    }
    let tag = Tag { session: 1, job: Job { slot: 1, turn: 1, part: 1 } };
    rig.submit(Command::Fetch { tag, number, again: false });
    rig.settle();
    let is_it = |completion: &Completion<Blocks>| matches!(completion, Completion::Data { content: Ok(Content::Data(payload)), .. } if payload.data[0] == [77; 8]);
    assert!(rig.has_reported(is_it), "{:?}", rig.completions.last());
}
