//! Devices that cannot be used: the error, and that nothing is lost or written over.

mod common;

use std::fs::OpenOptions;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{folder_in, pool};
use loadline_san_core::ids::{Epoch, Incarnation, NodeId, Owner, Position, ReplicaId, Sequence, VolumeId};
use loadline_san_core::layout::{BLOCK, GroupIndex};
use loadline_san_core::message::{Content, Entry, EntryOp, Job, Payload, Promise};
use loadline_san_core::store::{Command, Completion, Tag};
use loadline_san_device::direct::Direct;
use loadline_san_device::file::{DeviceFile, Devices};
use loadline_san_device::pool::{Blocks, Pool};
use loadline_san_protocol::ClusterId;
use loadline_san_protocol::device::{DeviceId, Superblock};
use loadline_san_protocol::state::side_crc;
use loadline_san_store::io::{Address, Area, Disk, Sector};
use loadline_san_store::open::{NewReplica, OpenError, create, open};
use loadline_san_store::space::{Space, SpaceError};
use loadline_san_store::store::{Action, Identity, Settings, Store};
use tempfile::TempDir;

const CLUSTER: ClusterId = ClusterId(77);
const DEVICE: DeviceId = DeviceId(5);
const REPLICA: ReplicaId = ReplicaId(9);
const VOLUME: VolumeId = VolumeId(3);
const GROUP: GroupIndex = GroupIndex(0);
/// Of a chunk, and blocks of an extent: a chunk has some seven extents.
const CHUNK: u64 = 512 << 10;
const EXTENT: u32 = 16;

/// A device of so many bytes in a file of its own; `None` where there is no direct I/O, which is printed.
fn device(bytes: u64) -> Option<(TempDir, Devices)> {
    let folder = folder_in(&std::env::temp_dir());
    match DeviceFile::create(&folder.path().join("device"), bytes) {
        Ok(log) => Some((folder, Devices { log, capacity: None })),
        Err(error) => {
            eprintln!("not tested: {error}");
            None
        }
    }
}

fn format(devices: &mut Devices, bytes: u64) -> Space {
    let superblock = Superblock::fit(CLUSTER, DEVICE, bytes, CHUNK, EXTENT).unwrap();
    Space::format(devices, Area::Log, superblock, false).unwrap()
}

fn new(blocks: u64, log_bytes: u64, most_in_flight: u32) -> NewReplica {
    let id = Identity { volume: VOLUME, group: GROUP, replica: REPLICA };
    let no_owner = Owner { node: NodeId(0), incarnation: Incarnation(0) };
    let promise = Promise { epoch: Epoch(0), owner: no_owner };
    NewReplica { id, blocks, log_bytes, most_in_flight, key: 1, promise }
}

/// A store on a device, whose requests are carried out at once.
struct Rig {
    store: Store<Blocks>,
    direct: Direct,
    pool: Pool,
    completions: Vec<Completion<Blocks>>,
    appended: u64,
}

impl Rig {
    fn new(mut devices: Devices, spare: u64) -> Rig {
        let space = Space::load(&mut devices, Area::Log, Some(CLUSTER)).unwrap();
        let (space, settings) = (Arc::new(Mutex::new(space)), Settings { spare, ..Settings::default() });
        let (store, _, damage) = open(&mut devices, &space, &space, REPLICA, settings).unwrap();
        assert_eq!(damage, []);
        let pool = pool();
        Rig { store, direct: Direct::new(devices, pool.clone()), pool, completions: Vec::new(), appended: 0 }
    }

    fn run(&mut self) {
        let mut actions = Vec::new();
        loop {
            self.store.run(&mut actions);
            if actions.is_empty() {
                return;
            }
            for action in std::mem::take(&mut actions) {
                match action {
                    Action::Submit(token, request) => {
                        let done = self.direct.carry_out(request);
                        self.store.done(token, done, &mut actions);
                    }
                    Action::Complete(completion) => self.completions.push(completion),
                }
            }
        }
    }

    fn append(&mut self, block: u64, blocks: u32, op: EntryOp<Blocks>) {
        self.appended += 1;
        let at = |sequence| Position { ownership: Epoch(1), sequence: Sequence(sequence) };
        self.store.submit(Command::Append {
            number: self.appended,
            position: at(self.appended),
            sequenced: true,
            entry: Entry { block, blocks, op },
            commit_point: at(self.appended - 1),
            acknowledged: at(self.appended - 1),
            epoch: Epoch(1),
        });
        self.run();
    }

    fn write(&mut self, block: u64) {
        let data = self.pool.take_filled(&[block as u8; BLOCK as usize]).unwrap();
        let data = data.freeze(|_| Address { volume: VOLUME, group: GROUP, block });
        self.append(block, 1, EntryOp::Data(Payload { data, first: 0 }));
    }

    fn read(&mut self, block: u64) -> Option<u8> {
        let job = Job { slot: 1, turn: 1, part: 1 };
        self.store.submit(Command::Read { tag: Tag { session: 1, job }, block, blocks: 1, again: false });
        self.run();
        match self.completions.pop() {
            Some(Completion::Data { content: Ok(Content::Data(payload)), .. }) => {
                Some(payload.data.bytes()[7])
            }
            _ => None,
        }
    }

    fn is_full(&self) -> bool {
        let completions = self.completions.iter().rev();
        completions
            .filter_map(|completion| if let Completion::Full(full) = completion { Some(*full) } else { None })
            .next()
            .unwrap_or(false)
    }
}

fn file(folder: &Path) -> std::fs::File {
    OpenOptions::new().write(true).open(folder.join("device")).unwrap()
}

#[test]
fn a_device_or_a_log_that_is_too_small_is_refused_with_what_is_needed() {
    let small = Superblock::fit(CLUSTER, DEVICE, 300 << 10, CHUNK, EXTENT).unwrap_err();
    assert!(small.to_string().contains("chunk"), "{small}");
    let bytes = 8 << 20;
    let Some((_folder, mut devices)) = device(bytes) else { return };
    let mut space = format(&mut devices, bytes);
    let refused = create(&mut devices, &mut space, DEVICE, &new(1000, CHUNK, 1024)).unwrap_err();
    assert!(matches!(refused, OpenError::SmallLog { needed, .. } if needed > CHUNK), "{refused}");
    let refused = create(&mut devices, &mut space, DEVICE, &new(1000, 1 << 30, 64)).unwrap_err();
    assert!(matches!(refused, OpenError::Space(SpaceError::NoRoom { .. })), "{refused}");
    assert_eq!(space.uses().iter().flatten().count(), 0, "nothing was taken");
}

#[test]
fn what_another_cluster_or_a_newer_program_has_written_is_left_as_it_is() {
    let bytes = 8 << 20;
    let Some((_folder, mut devices)) = device(bytes) else { return };
    format(&mut devices, bytes);
    let mut before = Sector::zeroes(64);
    devices.read(Area::Log, 0, &mut before).unwrap();
    let refused = Space::load(&mut devices, Area::Log, Some(ClusterId(78))).unwrap_err();
    assert!(matches!(refused, SpaceError::OtherCluster { found: 77, ours: 78 }), "{refused}");
    let superblock = Superblock::fit(CLUSTER, DEVICE, bytes, CHUNK, EXTENT).unwrap();
    let refused = Space::format(&mut devices, Area::Log, superblock, false).unwrap_err();
    assert!(matches!(refused, SpaceError::NotEmpty), "{refused}");
    let mut after = Sector::zeroes(64);
    devices.read(Area::Log, 0, &mut after).unwrap();
    assert!(before == after, "nothing is written over");

    // Both copies of the first page: behind 8 bytes of magic their checksum, and the version.
    for page in before.chunks_exact_mut(8).take(2) {
        page[0].0[12] += 1;
        let sum = side_crc(&Sector::bytes(page)[12..]);
        page[0].0[8..12].copy_from_slice(&sum.to_le_bytes());
    }
    devices.write(Area::Log, 0, &before).unwrap();
    let refused = Space::load(&mut devices, Area::Log, Some(CLUSTER)).unwrap_err();
    assert!(refused.to_string().contains("newer Loadline"), "{refused}");
}

#[test]
fn a_device_that_has_become_shorter_is_not_used() {
    let bytes = 8 << 20;
    let Some((folder, mut devices)) = device(bytes) else { return };
    let mut space = format(&mut devices, bytes);
    create(&mut devices, &mut space, DEVICE, &new(1000, 2 << 20, 64)).unwrap();
    let mut rig = Rig::new(devices, 4);
    rig.write(3);
    assert!(
        rig.completions.iter().any(|completion| matches!(completion, Completion::Appended(1))),
        "{:?}",
        rig.completions
    );
    // Under a store that serves: it fails, with the reason.
    file(folder.path()).set_len(64 << 10).unwrap();
    assert_eq!(rig.read(3), None);
    assert!(rig.store.has_failed());
    assert!(rig.store.why_failed().unwrap().contains("shorter"), "{:?}", rig.store.why_failed());
    // And at a start.
    drop(rig);
    let log = DeviceFile::open(&folder.path().join("device"), Duration::from_secs(5)).unwrap();
    let mut devices = Devices { log, capacity: None };
    let refused = Space::load(&mut devices, Area::Log, Some(CLUSTER)).unwrap_err();
    assert!(matches!(refused, SpaceError::Shrunk { .. }), "{refused}");
}

#[test]
fn a_full_device_goes_on_with_what_it_has_and_takes_more_when_something_is_trimmed() {
    let bytes = 8 << 20;
    let Some((_folder, mut devices)) = device(bytes) else { return };
    let mut space = format(&mut devices, bytes);
    create(&mut devices, &mut space, DEVICE, &new(100_000, 2 << 20, 64)).unwrap();
    let mut rig = Rig::new(devices, 8);
    let mut extents = 0;
    while !rig.is_full() {
        rig.write(extents * u64::from(EXTENT));
        extents += 1;
        assert!(extents < 200, "it has no room for so many");
    }
    assert!(extents > 20, "{extents}");
    for extent in 0..extents {
        assert_eq!(rig.read(extent * u64::from(EXTENT)), Some((extent * u64::from(EXTENT)) as u8));
        rig.write(extent * u64::from(EXTENT));
    }
    assert!(!rig.store.has_failed(), "{:?}", rig.store.why_failed());
    rig.append(0, 4 * EXTENT, EntryOp::Trim);
    // What comes next brings the commit point.
    rig.write(10 * u64::from(EXTENT));
    for _ in 0..10 {
        rig.store.tick();
        rig.run();
    }
    assert!(!rig.is_full(), "{:?}", rig.store.fill());
}
