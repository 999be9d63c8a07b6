//! A real process with a store on a real device is killed, again and again, while it writes. What it had reported as durable is found.

#[path = "../benches/store/drivers.rs"]
#[allow(dead_code, reason = "the benchmark uses more of it")]
mod drivers;
#[path = "../benches/store/run.rs"]
#[allow(dead_code, reason = "the benchmark uses more of it")]
mod run;

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use drivers::{Counted, Ringed};
use loadline_san_core::ids::Epoch;
use loadline_san_device::direct::Direct;
use loadline_san_device::file::{DeviceFile, Devices};
use loadline_san_device::pool::{Blocks, Class, Pool};
use loadline_san_device::uring::{Uring, UringOptions};
use loadline_san_store::io::{Address, Area, Disk, Sector};
use loadline_san_store::read::BlockSource;
use loadline_san_store::store::Settings;
use run::{Driver, GROUP, Run, VOLUME, make, reopen};

/// Blocks that are written in turn.
const BLOCKS: u64 = 3_000;
/// Names the device, in the process that is to be killed.
const CHILD: &str = "LOADLINE_TEST_DEVICE";
const PATIENCE: Duration = Duration::from_secs(20);
/// The log is small: it is full, and destaged, all the time.
const SETTINGS: Settings = Settings {
    low: 10,
    begin: u64::MAX,
    high: 40,
    round: 1 << 20,
    at_once: 4,
    held: 1 << 20,
    recall: 64 << 10,
    when_idle: true,
    spare: 8,
    extents: u64::MAX,
    scrub: 1 << 20,
    together: 64,
    ranges: 64,
    is_promised: false,
};

fn devices(path: &Path) -> Devices {
    Devices { log: DeviceFile::open(path, PATIENCE).expect("it can be opened"), capacity: None }
}

fn pool() -> Pool {
    let classes = [(1, 512), (4, 64), (16, 64), (64, 64)];
    Pool::new(&classes.map(|(blocks, buffers)| Class { blocks, buffers })).expect("there is memory")
}

/// Entry n, from 1, writes block n, in turn, full of n. Reports each that is durable.
fn write_for_ever<R: Driver<Data = Blocks>>(run: &mut Run<R>, pool: &Pool, mut number: u64) {
    let mut output = std::io::stdout().lock();
    let first = number;
    loop {
        while run.outstanding() < 24 {
            let block = number % BLOCKS;
            let mut data = pool.take(1).expect("there is memory");
            data.bytes_mut().chunks_exact_mut(8).for_each(|part| part.copy_from_slice(&number.to_le_bytes()));
            run.write(block, 1, data.freeze(|_| Address { volume: VOLUME, group: GROUP, block }));
            number += 1;
        }
        let before = run.reported;
        run.turn(true);
        if run.reported > before && writeln!(output, "{}", first + run.entries_reported() - 1).is_err() {
            return;
        }
    }
}

/// The process that is to be killed; nothing, in the test itself.
#[test]
fn child() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let mut devices = devices(Path::new(&path));
    let in_memory = devices.are_in_memory();
    let (store, found) = reopen::<Blocks>(&mut devices, SETTINGS);
    let pool = pool();
    // The opening entry has number 1.
    let next = found.end.sequence.0.max(1);
    if in_memory {
        let mut run = Run::new(store, &found, Counted::new(Direct::new(devices, pool.clone())));
        write_for_ever(&mut run, &pool, next);
    } else {
        let mut ring = Uring::new(UringOptions::default(), pool.clone()).expect("io_uring is allowed here");
        let store_number = ring.add(devices.log.as_fd(), None).expect("there is room");
        let mut run = Run::new(store, &found, Ringed { ring, store: store_number });
        write_for_ever(&mut run, &pool, next);
    }
}

/// Runs the process until it has reported so much, kills it, and checks the device.
fn kill_and_look(path: &Path, lines: usize) {
    let mut child = Command::new(std::env::current_exe().expect("this is a program"))
        .args(["--exact", "child", "--nocapture", "--test-threads", "1"])
        .env(CHILD, path)
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut reported = 0;
    let output = BufReader::new(child.stdout.take().expect("it is piped"));
    let numbers = output.lines().map_while(Result::ok).filter_map(|line| line.parse::<u64>().ok());
    for number in numbers.take(lines) {
        reported = number;
    }
    child.kill().expect("it runs");
    // Its last writes may be on their way yet: the next waits for the lock.
    let mut devices = devices(path);
    child.wait().expect("it was started");
    assert!(reported > 0, "it has reported something");
    let (store, found) = reopen::<Blocks>(&mut devices, SETTINGS);
    assert_eq!(found.end.ownership, Epoch(1));
    let last = found.end.sequence.0 - 1;
    assert!(last >= reported, "{reported} entries were durable, and {last} are found");
    for block in 0..BLOCKS {
        // The newest entry of this block, of those that are there.
        let expected = if last < block { 0 } else { last - (last - block) % BLOCKS };
        let is = match store.look_up(block) {
            BlockSource::Data { area, at, .. } => {
                let mut sectors = Sector::zeroes(8);
                devices.read(area, at, &mut sectors).expect("it can be read");
                let bytes = Sector::bytes(&sectors);
                let first = u64::from_le_bytes(bytes[..8].try_into().expect("eight"));
                let all = bytes.chunks_exact(8).all(|part| part == first.to_le_bytes());
                assert!(all, "block {block} is one value");
                first
            }
            _ => 0,
        };
        assert_eq!(is, expected, "block {block}, of {last} entries, {reported} of them reported");
    }
    let checked = store.check(&mut devices, |_, _| true).expect("it can be read");
    assert_eq!(checked.corrupt, [0u64; 0], "{checked:?}");
}

fn lives(folder: &Path) {
    let folder = tempfile::tempdir_in(folder).expect("a folder can be made");
    let path: PathBuf = folder.path().join("device");
    let log = DeviceFile::create(&path, 160 << 20).expect("a file can be made");
    let mut devices = Devices { log, capacity: None };
    assert!(devices.bytes(Area::Log) > 0);
    make(&mut devices, BLOCKS, 1);
    drop(devices);
    for lines in [1, 400, 20, 1500, 3, 700] {
        kill_and_look(&path, lines);
    }
}

#[test]
fn what_was_told_survives_kill_9_on_a_disk() {
    lives(&std::env::temp_dir());
}

#[test]
fn what_was_told_survives_kill_9_in_memory() {
    lives(Path::new("/dev/shm"));
}
