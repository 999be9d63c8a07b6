//! The real program prints and checks what is on a device of the virtual SAN.

mod support;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use loadline_san_core::ids::{Epoch, Incarnation, NodeId, Owner, Position, ReplicaId, Sequence, VolumeId};
use loadline_san_core::layout::GroupIndex;
use loadline_san_core::message::{Entry, EntryOp, Payload, Promise};
use loadline_san_core::store::{Command, Completion};
use loadline_san_device::direct::Direct;
use loadline_san_device::file::{DeviceFile, Devices};
use loadline_san_device::pool::{Blocks, Class, Pool};
use loadline_san_protocol::ClusterId;
use loadline_san_protocol::device::{DeviceId, Superblock};
use loadline_san_store::io::{Address, Area, Disk};
use loadline_san_store::open::{NewReplica, create, open};
use loadline_san_store::space::Space;
use loadline_san_store::store::{Action, Identity, Settings, Store};
use support::{folder, run};

const CLUSTER: ClusterId = ClusterId(0xc1);
const REPLICA: ReplicaId = ReplicaId(7);
const VOLUME: VolumeId = VolumeId(3);
const GROUP: GroupIndex = GroupIndex(0);
const BLOCK: u64 = 4096;

/// A file with a replica that has written so many blocks, and destaged the first half of them. Where on the file the data of
/// its first block is.
fn replica(path: &Path, blocks: u64) -> u64 {
    let log = DeviceFile::create(path, 48 << 20).expect("it can be made");
    let mut devices = Devices { log, capacity: None };
    let superblock = Superblock::fit(CLUSTER, DeviceId(1), devices.bytes(Area::Log), 4 << 20, 64).unwrap();
    let mut space = Space::format(&mut devices, Area::Log, superblock, false).unwrap();
    let promise = Promise { epoch: Epoch(2), owner: Owner { node: NodeId(1), incarnation: Incarnation(5) } };
    let id = Identity { volume: VOLUME, group: GROUP, replica: REPLICA };
    let new = NewReplica { id, blocks: 4096, log_bytes: 16 << 20, most_in_flight: 256, key: 9, promise };
    create(&mut devices, &mut space, DeviceId(1), &new).unwrap();
    let space = Arc::new(Mutex::new(space));
    let opened = open::<Blocks>(&mut devices, &space, &space, REPLICA, Settings::default());
    let (mut store, _, _) = opened.unwrap();
    let pool = Pool::new(&[Class { blocks: 1, buffers: 64 }, Class { blocks: 64, buffers: 8 }]).unwrap();
    let mut driver = Direct::new(devices, pool.clone());
    for block in 0..blocks {
        append(&mut store, &pool, block, blocks / 2);
        drive(&mut store, &mut driver, block + 1);
    }
    store.destage_soon();
    drive(&mut store, &mut driver, 0);
    let at = store.held().next().expect("some are destaged").at;
    // It is closed, as an idle one is.
    store.tick();
    store.tick();
    drive(&mut store, &mut driver, 0);
    at
}

fn append(store: &mut Store<Blocks>, pool: &Pool, block: u64, acknowledged: u64) {
    let mut data = pool.take(1).unwrap();
    data.bytes_mut().fill(block as u8 + 1);
    let data = data.freeze(|_| Address { volume: VOLUME, group: GROUP, block });
    let at = |sequence| Position { ownership: Epoch(2), sequence: Sequence(sequence) };
    let commit_point = at((block + 1).min(acknowledged));
    store.submit(Command::Append {
        number: block + 1,
        position: at(block + 1),
        sequenced: true,
        entry: Entry { block, blocks: 1, op: EntryOp::Data(Payload { data, first: 0 }) },
        commit_point: if block == 0 { Position::START } else { commit_point },
        acknowledged: if block == 0 { Position::START } else { commit_point },
        epoch: Epoch(2),
    });
}

/// Runs until nothing is left to do; by then this many appends were reported.
fn drive(store: &mut Store<Blocks>, driver: &mut Direct, appended: u64) {
    let (mut actions, mut completed) = (Vec::new(), 0);
    store.run(&mut actions);
    while !actions.is_empty() {
        for action in std::mem::take(&mut actions) {
            match action {
                Action::Submit(token, request) => store.done(token, driver.carry_out(request), &mut actions),
                Action::Complete(Completion::Appended(through)) => completed = through,
                Action::Complete(other) => panic!("{other:?}"),
            }
        }
        store.run(&mut actions);
    }
    assert!(completed == appended || appended == 0, "{completed} of {appended} appends are durable");
}

#[test]
fn a_stopped_replica_is_checked_and_what_has_rotted_is_named() {
    let folder = folder();
    let path = folder.path().join("device");
    let first = replica(&path, 100);
    let name = path.to_str().unwrap();
    let before = fs::read(&path).unwrap();

    let well = run(["san", "verify", name]);
    assert_eq!(well.code, Some(0), "{}{}", well.out, well.err);
    assert!(well.out.contains("replica 7: volume 3, group 0"), "{}{}", well.out, well.err);
    assert!(well.out.contains("50 read, 0 do not match"), "{}{}", well.out, well.err);
    let dump = run(["san", "dump", name, "--replica", "7", "--json"]);
    assert_eq!(dump.code, Some(0), "{}{}", dump.out, dump.err);
    assert!(dump.out.contains("\"kind\": \"data\""), "{}{}", dump.out, dump.err);
    assert!(dump.out.contains("\"promise_incarnation\": 5"), "{}{}", dump.out, dump.err);
    assert_eq!(before, fs::read(&path).unwrap(), "nothing is written");

    // A bit of the third block changes.
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[0xff], first + 2 * BLOCK + 9).unwrap();
    let corrupt = run(["san", "verify", name]);
    assert_eq!(corrupt.code, Some(1), "{}{}", corrupt.out, corrupt.err);
    assert!(corrupt.out.contains("1 do not match"), "{}{}", corrupt.out, corrupt.err);
    assert!(corrupt.out.contains("CORRUPT:   blocks [2]"), "{}{}", corrupt.out, corrupt.err);
}

#[test]
fn a_log_that_has_lost_a_record_is_damaged_and_says_which() {
    let folder = folder();
    let path = folder.path().join("device");
    replica(&path, 20);
    let name = path.to_str().unwrap();
    let dump = run(["san", "dump", name]).out;
    let line = dump.lines().find(|line| line.contains(" data ")).expect("the log has data");
    let at: u64 = line.split_whitespace().nth(3).and_then(|word| word.parse().ok()).expect("its place");
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[0xff], at + 40).unwrap();
    let damaged = run(["san", "verify", name]);
    assert_eq!(damaged.code, Some(1), "{}{}", damaged.out, damaged.err);
    assert!(damaged.out.contains("DAMAGED: records "), "{}{}", damaged.out, damaged.err);
    assert!(damaged.out.contains("were durable and cannot be read"), "{}{}", damaged.out, damaged.err);
}

#[test]
fn what_is_no_device_is_said_to_be_none() {
    let folder = folder();
    let missing = run(["san", "verify", folder.path().join("nothing").to_str().unwrap()]);
    missing.refused(2, &["does not exist"]);

    let other = folder.path().join("other");
    fs::write(&other, vec![7; 1 << 20]).unwrap();
    let other = run(["san", "verify", other.to_str().unwrap()]);
    other.refused(2, &["the first pages of the device"]);

    let path = folder.path().join("device");
    replica(&path, 4);
    let name = path.to_str().unwrap();
    let missing = run(["san", "dump", name, "--replica", "8"]);
    missing.refused(2, &["no log of replica 8"]);

    let held = DeviceFile::open(&path, Duration::ZERO).unwrap();
    let in_use = run(["san", "verify", name]);
    in_use.refused(2, &["in use by another process"]);
    drop(held);

    OpenOptions::new().write(true).open(&path).unwrap().set_len(20 << 20).unwrap();
    let shrunk = run(["san", "verify", name]);
    shrunk.refused(2, &["it was made smaller"]);
}
