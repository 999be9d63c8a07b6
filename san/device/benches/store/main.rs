//! `./dev bench san-store`: a replica on a device, in one thread.
//!
//! Beside it, in turn, `loadline bench` on a file of its own in the same folder: the program is named by `LOADLINE`, and
//! without it these rows are left out. `LOADLINE_BENCH_MEMORY` and `LOADLINE_BENCH_DISK` name the folders; otherwise
//! `/dev/shm` and the temporary folder.

mod drivers;
mod run;

use std::hint::black_box;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use loadline_san_device::direct::Direct;
use loadline_san_device::file::{DeviceFile, Devices};
use loadline_san_device::pool::{Class, Pool};
use loadline_san_device::uring::{Uring, UringOptions};
use loadline_san_store::io::Address;
use loadline_san_store::store::Settings;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use drivers::{Counted, Instantly, Nothing, Ringed, Thin};
use run::{Driver, GROUP, OUTSTANDING, Run, VOLUME, make, reopen};

const GIB: u64 = 1 << 30;
const BLOCK: u64 = 4096;
/// Blocks of the volume that is read and written: 1 GiB.
const BLOCKS: u64 = GIB / BLOCK;
const PAIRS: usize = 5;
const TIME: Duration = Duration::from_secs(3);

/// Destaging all the time, and only when it must; with more in memory than is usual.
const EAGER: Settings = Settings {
    spare: 1024,
    is_promised: false,
    extents: u64::MAX,
    scrub: 0,
    low: 0,
    begin: u64::MAX,
    high: 60,
    round: 16 << 20,
    at_once: 8,
    held: 128 << 20,
    recall: 4 << 20,
    when_idle: true,
    together: 256,
    ranges: 1024,
};
const LAZY: Settings = Settings { low: 100, high: 100, when_idle: false, ..EAGER };

fn main() {
    let only: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let wanted = |name: &str| only.is_empty() || only.iter().any(|word| name.contains(word.as_str()));
    println!("one thread, 4 KiB and {OUTSTANDING} outstanding unless said; medians\n");
    let parts: [(&str, fn()); 7] = [
        ("bookkeeping", bookkeeping),
        ("copy", copy_and_checksum),
        ("memory", in_memory),
        ("disk", on_disk),
        ("amplification", amplification),
        ("held", memory_held),
        ("full", full_log),
    ];
    for (name, part) in parts {
        if wanted(name) {
            part();
        }
    }
    if wanted("replay") {
        replay();
    }
}

fn row(what: &str, figure: &str, verdict: &str) {
    println!("{what:<58} {figure:>24}  {verdict}");
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// What is wanted, and whether it is met.
fn at_least(is: f64, wanted: f64) -> String {
    format!("wanted at least {wanted}{}", if is >= wanted { "" } else { ": NOT MET" })
}

fn at_most(is: f64, wanted: f64) -> String {
    format!("wanted at most {wanted}{}", if is <= wanted { "" } else { ": NOT MET" })
}

/// Writes of one block each, anywhere; how many a second.
fn writes<R: Driver>(run: &mut Run<R>, time: Duration, mut data: impl FnMut(u64) -> R::Data) -> f64 {
    let (began, first) = (Instant::now(), run.entries_reported());
    while began.elapsed() < time {
        while run.outstanding() < OUTSTANDING {
            let block = run.random(BLOCKS);
            let data = data(block);
            run.write(block, 1, data);
        }
        run.turn(true);
    }
    (run.entries_reported() - first) as f64 / began.elapsed().as_secs_f64()
}

fn bookkeeping() {
    let mut disk = Thin::new(8 * GIB);
    make(&mut disk, BLOCKS, GIB / 4);
    let mut rates = Vec::new();
    for _ in 0..PAIRS {
        let (store, found) = reopen::<Nothing>(&mut disk, EAGER);
        let mut run = Run::new(store, &found, Instantly::default());
        writes(&mut run, TIME / 6, |_| Nothing);
        rates.push(writes(&mut run, TIME / 3, |_| Nothing));
    }
    let rate = median(rates);
    row(
        "writes through log and destage, a device that takes no time",
        &format!("{rate:.0}/s"),
        &at_least(rate, 500_000.0),
    );
}

fn copy_and_checksum() {
    let pool = pool();
    let source = vec![0x5a; 64 << 20];
    let mut at = 0;
    let mut ns = |checksum: bool| {
        let began = Instant::now();
        for block in 0..20_000u64 {
            at = (at + 7 * 4096) % (source.len() - 4096);
            let mut buffer = pool.take(1).expect("there is memory");
            buffer.bytes_mut().copy_from_slice(&source[at..at + 4096]);
            black_box(&buffer);
            if checksum {
                black_box(buffer.freeze(|_| Address { volume: VOLUME, group: GROUP, block }));
            }
        }
        began.elapsed().as_nanos() as f64 / 20_000.0
    };
    let (copy, both) =
        (median((0..9).map(|_| ns(false)).collect()), median((0..9).map(|_| ns(true)).collect()));
    row("beside it: a copy of 4 KiB from cold memory", &format!("{copy:.0} ns"), "");
    row("beside it: its CRC32C", &format!("{:.0} ns", both - copy), "");
}

fn pool() -> Pool {
    let classes = [(1, 40_000), (4, 512), (16, 256), (64, 128), (256, 16)];
    let classes = classes.map(|(blocks, buffers)| Class { blocks, buffers });
    Pool::new(&classes).expect("there is memory")
}

/// What is written: copied from the client's memory, and summed, as an owner does it.
fn from_client(pool: &Pool, client: &[u8], block: u64) -> loadline_san_device::pool::Blocks {
    let mut buffer = pool.take(1).expect("there is memory");
    // As many buffers as there are requests outstanding, as with the peer.
    let at = (block % OUTSTANDING) as usize * 4096;
    buffer.bytes_mut().copy_from_slice(&client[at..at + 4096]);
    buffer.freeze(|_| Address { volume: VOLUME, group: GROUP, block })
}

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn folder(variable: &str, otherwise: PathBuf) -> Folder {
    let parent = std::env::var_os(variable).map_or(otherwise, PathBuf::from);
    let path = parent.join(format!("loadline-store-{}", std::process::id()));
    std::fs::create_dir_all(&path).expect("a folder can be made");
    Folder(path)
}

fn memory_folder() -> Folder {
    folder("LOADLINE_BENCH_MEMORY", PathBuf::from("/dev/shm"))
}

fn device(path: &Path, bytes: u64, blocks: u64, log_bytes: u64) -> Devices {
    let log = DeviceFile::create(path, bytes).expect("a file can be made");
    let mut devices = Devices { log, capacity: None };
    make(&mut devices, blocks, log_bytes);
    devices
}

/// I/Os a second of `loadline bench` on a file in this folder.
fn peer(folder: &Path, profile: &str) -> Option<f64> {
    let program = std::env::var_os("LOADLINE")?;
    let file = folder.join("peer");
    let seconds = format!("{}s", TIME.as_secs());
    let output = Command::new(program)
        .args([
            "bench",
            "--create",
            "1GiB",
            "--warm-up",
            "1s",
            "--json",
            "-",
            "--profile",
            profile,
            "--for",
            &seconds,
        ])
        .arg(&file)
        .output()
        .expect("the program runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("it is text");
    let total = &text[text.find("\"total\"").expect("it has a total")..];
    let iops = &total[total.find("\"iops\":").expect("it has iops") + 7..];
    iops[..iops.find(',').expect("there is more")].trim().parse().ok()
}

/// Writes every block, and destages it.
fn fill<R: Driver>(run: &mut Run<R>, blocks: u64, mut data: impl FnMut(u64, u32) -> R::Data) {
    for first in (0..blocks).step_by(64) {
        while run.outstanding() >= 8 {
            run.turn(true);
        }
        let data = data(first, 64);
        run.write(first, 64, data);
    }
    run.destage();
}

fn many(pool: &Pool, client: &[u8], first: u64, blocks: u32) -> loadline_san_device::pool::Blocks {
    let mut buffer = pool.take(blocks).expect("there is memory");
    for (at, place) in buffer.bytes_mut().chunks_exact_mut(4096).enumerate() {
        let from = ((first as usize + at) * 4096) % client.len();
        place.copy_from_slice(&client[from..from + 4096]);
    }
    buffer.freeze(|index| Address { volume: VOLUME, group: GROUP, block: first + u64::from(index) })
}

fn client() -> Vec<u8> {
    let mut random = 1u64;
    let next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 56) as u8
    };
    std::iter::repeat_with(next).take(16 << 20).collect()
}

fn reads<R: Driver>(run: &mut Run<R>, outstanding: u64, time: Duration) -> f64 {
    let (began, first) = (Instant::now(), run.answers);
    while began.elapsed() < time {
        for _ in 0..64 {
            while run.outstanding() < outstanding {
                let block = run.random(BLOCKS);
                run.read(block, 1);
            }
            run.turn(true);
        }
    }
    let rate = (run.answers - first) as f64 / began.elapsed().as_secs_f64();
    run.settle();
    rate
}

/// A row for pairs of ours and the peer's.
fn pairs(what: &str, values: &[(f64, Option<f64>)], wanted: f64) {
    let ours = median(values.iter().map(|value| value.0).collect());
    let ratios: Option<Vec<f64>> = values.iter().map(|value| value.1.map(|peer| value.0 / peer)).collect();
    let Some(ratios) = ratios else {
        row(what, &format!("{ours:.0}/s"), "no peer: LOADLINE names no program");
        return;
    };
    let peers = median(values.iter().filter_map(|value| value.1).collect());
    let ratio = ours / peers;
    let range = ratios.iter().fold((f64::MAX, 0f64), |(least, most), r| (least.min(*r), most.max(*r)));
    let figure = format!("{ours:.0}/s of {peers:.0}/s");
    let verdict = format!("{ratio:.2} ({:.2}..{:.2}), {}", range.0, range.1, at_least(ratio, wanted));
    row(what, &figure, &verdict);
}

/// Keeps this thread, and what it starts, on one CPU, or lets them have all that there were.
struct OneCpu(CpuSet);

impl OneCpu {
    fn new() -> OneCpu {
        let all = sched_getaffinity(Pid::from_raw(0)).expect("a thread knows its CPUs");
        let this = OneCpu(all);
        this.take_one();
        this
    }

    fn take_one(&self) {
        let last = (0..CpuSet::count()).rev().find(|cpu| self.0.is_set(*cpu) == Ok(true));
        let mut one = CpuSet::new();
        one.set(last.expect("it runs somewhere")).expect("it was in the other");
        sched_setaffinity(Pid::from_raw(0), &one).expect("one of those that it has");
    }

    fn with_all<T>(&self, does: impl FnOnce() -> T) -> T {
        sched_setaffinity(Pid::from_raw(0), &self.0).expect("it had them");
        let result = does();
        self.take_one();
        result
    }
}

impl Drop for OneCpu {
    fn drop(&mut self) {
        let _ = sched_setaffinity(Pid::from_raw(0), &self.0);
    }
}

/// Both on one CPU: a file in memory has no queue, and the peer's io_uring would have a thread of the kernel copy its data on
/// another CPU. What it does with that is said beside it.
fn in_memory() {
    let folder = memory_folder();
    let cpu = OneCpu::new();
    let client = client();
    let pool = pool();
    let mut rows = [const { Vec::new() }; 3];
    let (mut free_reads, mut free_writes) = (Vec::new(), Vec::new());
    let mut devices = device(&folder.0.join("store"), 3 * GIB, BLOCKS, GIB);
    for _ in 0..PAIRS {
        let (store, found) = reopen(&mut devices, EAGER);
        let mut run = Run::new(store, &found, Counted::new(Direct::new(devices, pool.clone())));
        fill(&mut run, BLOCKS, |first, blocks| many(&pool, &client, first, blocks));
        let read = reads(&mut run, OUTSTANDING, TIME);
        rows[0].push((read, peer(&folder.0, "B4-T1-O32-W0-PR")));
        free_reads.extend(cpu.with_all(|| peer(&folder.0, "B4-T1-O32-W0-PR")));
        // So long that the log is as full as it will be, and as much is destaged as is written.
        writes(&mut run, TIME, |block| from_client(&pool, &client, block));
        let steady = writes(&mut run, TIME, |block| from_client(&pool, &client, block));
        rows[2].push((steady, peer(&folder.0, "B4-T1-O32-W100-PR")));
        free_writes.extend(cpu.with_all(|| peer(&folder.0, "B4-T1-O32-W100-PR")));
        run.destage();
        devices = run.driver.into_direct().into_devices();
        // The log has room for so many, and nothing is destaged meanwhile.
        let (store, found) = reopen(&mut devices, LAZY);
        let mut run = Run::new(store, &found, Counted::new(Direct::new(devices, pool.clone())));
        let rate = writes(&mut run, Duration::from_millis(250), |block| from_client(&pool, &client, block));
        assert!(run.store.fill().log_used < GIB * 9 / 10, "the log had room");
        rows[1].push((rate, rows[2].last().expect("it was measured").1));
        run.settle();
        devices = run.driver.into_direct().into_devices();
    }
    pairs("in memory: reads", &rows[0], 0.7);
    pairs("in memory: writes, the log has room", &rows[1], 0.8);
    pairs("in memory: writes, destaged all the time", &rows[2], 0.4);
    for (what, free) in [("reads", free_reads), ("writes", free_writes)] {
        if !free.is_empty() {
            row(
                &format!("beside it: the peer's {what}, with a CPU more"),
                &format!("{:.0}/s", median(free)),
                "",
            );
        }
    }
}

fn on_disk() {
    let folder = folder("LOADLINE_BENCH_DISK", std::env::temp_dir());
    let client = client();
    let pool = pool();
    let mut devices = device(&folder.0.join("store"), 2 * GIB, BLOCKS, GIB / 4);
    let (store, found) = reopen(&mut devices, EAGER);
    let mut ring = Uring::new(UringOptions::default(), pool.clone()).expect("io_uring is allowed here");
    let index = ring.add(devices.log.as_fd(), None).expect("there is room");
    let mut run = Run::new(store, &found, Ringed { ring, store: index });
    fill(&mut run, BLOCKS, |first, blocks| many(&pool, &client, first, blocks));
    let mut rows = [const { Vec::new() }; 2];
    // As long as the peer warms up.
    reads(&mut run, 32, Duration::from_secs(1));
    for _ in 0..PAIRS {
        rows[0].push((reads(&mut run, 32, TIME), peer(&folder.0, "B4-T1-O32-W0-PR")));
        rows[1].push((reads(&mut run, 1, TIME), peer(&folder.0, "B4-T1-O1-W0-PR")));
    }
    pairs("on a disk: reads", &rows[0], 0.95);
    pairs("on a disk: reads, 1 outstanding", &rows[1], 0.95);
    let rate = writes(&mut run, TIME, |block| from_client(&pool, &client, block));
    row("on a disk: durable writes, destaged all the time", &format!("{rate:.0}/s"), "");
}

fn amplification() {
    let folder = memory_folder();
    let client = client();
    let pool = pool();
    let mut devices = device(&folder.0.join("store"), 3 * GIB, BLOCKS, GIB / 2);
    let settings = Settings { low: 60, high: 80, ..EAGER };
    for (what, blocks, random, most) in [
        ("written for each byte: sequential, 128 KiB", 32, false, 2.1),
        ("written for each byte: sequential, 8 KiB", 2, false, 2.1),
        ("written for each byte: random", 1, true, 2.5),
    ] {
        let (store, found) = reopen(&mut devices, settings);
        let mut run = Run::new(store, &found, Counted::new(Direct::new(devices, pool.clone())));
        let (before, mut bytes, mut next) = (run.driver.written, 0, 0);
        while bytes < 2 * GIB {
            while run.outstanding() < OUTSTANDING {
                let block = if random { run.random(BLOCKS) } else { next };
                next = (next + u64::from(blocks)) % BLOCKS;
                let data = many(&pool, &client, block, blocks);
                run.write(block, blocks, data);
                bytes += u64::from(blocks) * BLOCK;
            }
            run.turn(true);
        }
        run.destage();
        let ratio = (run.driver.written - before) as f64 / bytes as f64;
        row(what, &format!("{ratio:.3}"), &at_most(ratio, most));
        devices = run.driver.into_direct().into_devices();
    }
}

/// Resident memory of this process, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    status.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("it is a number") * 4096
}

fn memory_held() {
    let data = 32 * GIB;
    let mut disk = Thin::new(data + 4 * GIB);
    make(&mut disk, data / BLOCK, GIB / 4);
    let (store, found) = reopen::<Nothing>(&mut disk, EAGER);
    let mut run = Run::new(store, &found, Instantly::default());
    // What does not grow with the data is there after a part of it.
    let (part, all) = (data / BLOCK / 8, data / BLOCK);
    fill(&mut run, part, |_, _| Nothing);
    let before = resident();
    fill(&mut run, all, |_, _| Nothing);
    let each = (resident() - before) as f64 / ((all - part) * BLOCK) as f64 * 1024.0;
    row("memory for each TiB of data", &format!("{each:.2} GiB"), &at_most(each, 2.5));
}

fn replay() {
    let folder = memory_folder();
    let client = client();
    let pool = pool();
    let log = GIB + (64 << 20);
    let mut devices = device(&folder.0.join("store"), 4 * GIB, BLOCKS, log);
    let (store, found) = reopen(&mut devices, LAZY);
    let mut run = Run::new(store, &found, Counted::new(Direct::new(devices, pool.clone())));
    run.keep_all();
    while run.store.fill().log_used < GIB {
        while run.outstanding() < OUTSTANDING {
            let block = run.random(BLOCKS);
            let data = from_client(&pool, &client, block);
            run.write(block, 1, data);
        }
        run.turn(true);
    }
    run.settle();
    let used = run.store.fill().log_used as f64 / GIB as f64;
    let mut devices = run.driver.into_direct().into_devices();
    let mut times = Vec::new();
    for _ in 0..PAIRS {
        let began = Instant::now();
        black_box(reopen::<loadline_san_device::pool::Blocks>(&mut devices, LAZY));
        times.push(began.elapsed().as_secs_f64());
    }
    let time = median(times);
    row(
        &format!("replay of a log with {used:.2} GiB in 4-KiB entries"),
        &format!("{time:.2} s"),
        &at_most(time, 3.0),
    );
}

/// The log is full all the time, on a disk that is slower than it.
fn full_log() {
    let folder = folder("LOADLINE_BENCH_DISK", std::env::temp_dir());
    let client = client();
    let pool = pool();
    let mut devices = device(&folder.0.join("store"), 2 * GIB, BLOCKS, GIB / 4);
    let (store, found) = reopen(&mut devices, Settings { low: 30, high: 70, ..EAGER });
    let mut ring = Uring::new(UringOptions::default(), pool.clone()).expect("io_uring is allowed here");
    let index = ring.add(devices.log.as_fd(), None).expect("there is room");
    let mut run = Run::new(store, &found, Ringed { ring, store: index });
    fill(&mut run, BLOCKS, |first, blocks| many(&pool, &client, first, blocks));
    // Until it is as full as it will be; then second by second.
    writes(&mut run, TIME * 7, |block| from_client(&pool, &client, block));
    let fill = run.store.fill();
    let seconds: Vec<f64> = (0..20)
        .map(|_| writes(&mut run, Duration::from_secs(1), |block| from_client(&pool, &client, block)))
        .collect();
    let mean = seconds.iter().sum::<f64>() / seconds.len() as f64;
    let slowest = seconds.iter().copied().fold(f64::MAX, f64::min);
    let full = format!("the log is filled to {} %", fill.log_used * 100 / fill.log_bytes);
    row("on a disk, with a full log: writes, which wait for destaging", &format!("{mean:.0}/s"), &full);
    row(
        "the same: the slowest of 20 seconds, as a share of the mean",
        &format!("{:.2}", slowest / mean),
        &at_least(slowest / mean, 0.5),
    );
}
