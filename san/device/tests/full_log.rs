//! A log that fills up before a slower device of extents, in virtual time: writers have the log's speed within the buffer, get the speed
//! of destaging gradually, and never wait for long.
//!
//! `cargo test -p loadline-san-device --test full_log -- --ignored --nocapture` prints what happens in each second.

#[path = "full_log/world.rs"]
mod world;

use std::time::Duration;

use loadline_base::device_model::{DeviceModel, Speed};
use loadline_base::units::{ByteSize, TimeSpan};
use loadline_san_store::store::Settings;
use loadline_san_store::store::throttle::WriteLimit;

use world::{CHUNK, EXTENT, MS, SECOND, Seen, Shape, World};

const GIB: u64 = 1 << 30;
const SEED: u64 = 1;
/// Bytes that a write of a block takes in the log.
const RECORD: u64 = 4096 + 512;

fn device(iops: u64, mib: u64, latency_us: u64) -> DeviceModel {
    let latency = TimeSpan(Duration::from_micros(latency_us));
    let speed = Speed { iops, per_second: ByteSize(mib << 20), latency, p99: None };
    DeviceModel {
        name: "of the test".into(),
        source: String::new(),
        read: speed,
        write: speed,
        flush: TimeSpan::ZERO,
        cache: None,
    }
}

/// A log of 1 GiB, and a volume of 64 GiB that is written at random.
fn shape(log: DeviceModel, capacity: Option<DeviceModel>) -> Shape {
    let settings = Settings { scrub: 0, ..Settings::default() };
    Shape { log, capacity, log_bytes: GIB, blocks: 64 * GIB / 4096, depth: 32, settings }
}

fn fast_log() -> DeviceModel {
    device(50_000, 500, 20)
}

fn two_devices() -> Shape {
    shape(fast_log(), Some(device(5_000, 200, 200)))
}

fn one_device() -> Shape {
    shape(device(750, 100, 1000), None)
}

fn very_slow() -> Shape {
    shape(fast_log(), Some(device(200, 100, 4000)))
}

fn faster_than_the_log() -> Shape {
    shape(device(5_000, 200, 200), Some(device(50_000, 500, 20)))
}

/// Random writes a second that destaging can sustain if the device of the extents is never idle. A write costs that device one write of a
/// block, and its share of what its round costs: all slots of each chunk, in one write a chunk. If the device has the log too, the write costs
/// its share of a read of 64 records, and of an append of as many records as half of the writes that destaging has outstanding.
fn sustainable(shape: &Shape) -> f64 {
    let of = |model: Duration| model.as_secs_f64();
    let capacity = shape.capacity.as_ref().unwrap_or(&shape.log);
    let records = shape.settings.round.min(shape.log_bytes / 4) / RECORD;
    let slots = CHUNK / (u64::from(EXTENT) * 4096 + 512);
    let chunks = (shape.blocks / u64::from(EXTENT)).div_ceil(slots).min(records);
    let mut each = of(capacity.write.cost(4096));
    each += of(capacity.write.cost(slots * 512)) * chunks as f64 / records as f64;
    if shape.capacity.is_none() {
        each += of(shape.log.read.cost(64 * RECORD)) / 64.0 + of(shape.log.write.cost(16 * RECORD)) / 16.0;
    }
    1.0 / each
}

/// Fills the log, and then goes on for so long; what was seen of both.
fn fill_and_go_on(shape: Shape, fill_s: u64, slow_s: u64) -> (Seen, Seen, World) {
    println!("seed {SEED}");
    let mut world = World::new(shape, SEED);
    let filling = world.write_for(fill_s * SECOND);
    let slow = world.write_for(slow_s * SECOND);
    (filling, slow, world)
}

/// What is wanted of writers that the log slows down.
fn is_smooth(filling: &Seen, slow: &Seen, sustainable: f64) {
    assert!(slow.rate() >= 0.95 * sustainable, "{:.0} writes/s of {sustainable:.0}", slow.rate());
    let (busy, gap) = (slow.capacity_busy(), filling.longest_gap_ns.max(slow.longest_gap_ns));
    assert!(busy >= 0.95, "the device is idle for {:.3} of the time", 1.0 - busy);
    assert!(gap < 100 * MS, "no completion for {} ms", gap / MS);
    let (p999, mean) = (slow.quantile_ns(0.999) as f64, slow.mean_ns());
    assert!(p999 <= 3.0 * mean, "p99.9 is {:.1} ms, and the mean {:.1} ms", p999 / 1e6, mean / 1e6);
}

#[test]
fn past_the_buffer_writers_get_what_the_device_of_the_extents_sustains() {
    let shape = two_devices();
    let sustainable = sustainable(&shape);
    let (filling, slow, world) = fill_and_go_on(shape, 40, 20);
    is_smooth(&filling, &slow, sustainable);
    assert_eq!(world.store.fill().limit, WriteLimit::Destaging);
}

#[test]
fn within_the_buffer_writers_have_the_speed_of_the_log() {
    let buffer = |world: &World| world.store.fill().log_used > GIB / 2;
    let mut world = World::new(two_devices(), SEED);
    let burst = world.write_until(60 * SECOND, buffer);
    assert_eq!(world.store.fill().limit, WriteLimit::Nothing);
    let mut alone = two_devices();
    alone.settings = Settings { low: 100, begin: u64::MAX, high: 100, when_idle: false, ..alone.settings };
    let mut world = World::new(alone, SEED);
    let log = world.write_until(60 * SECOND, buffer);
    assert_eq!(log.asked.data.count, 0, "nothing is destaged meanwhile");
    assert!(burst.rate() >= 0.95 * log.rate(), "{:.0} of {:.0} writes/s", burst.rate(), log.rate());
    assert!(burst.rate() >= 0.95 * 50_000.0);
}

#[test]
fn one_device_for_log_and_extents_does_what_it_can() {
    let shape = one_device();
    let sustainable = sustainable(&shape);
    let (filling, slow, _) = fill_and_go_on(shape, 600, 200);
    is_smooth(&filling, &slow, sustainable);
}

#[test]
fn a_very_slow_device_slows_writers_down_as_smoothly() {
    let shape = very_slow();
    let sustainable = sustainable(&shape);
    let (filling, slow, _) = fill_and_go_on(shape, 900, 300);
    is_smooth(&filling, &slow, sustainable);
}

#[test]
fn a_device_that_is_faster_than_the_log_does_not_slow_writers_down() {
    let shape = faster_than_the_log();
    // What is appended is read again.
    let log = shape.log.write.per_second.0 as f64 / (2 * RECORD) as f64;
    let (_, later, world) = fill_and_go_on(shape, 20, 10);
    assert_eq!(world.store.fill().limit, WriteLimit::Nothing);
    assert!(later.rate() >= 0.85 * log, "{:.0} of {log:.0} writes/s", later.rate());
    assert!(later.longest_gap_ns < 100 * MS);
}

#[test]
fn an_append_waits_for_a_few_writes_of_a_round_and_for_one_read_of_the_scrub() {
    // A round brings half of the blocks of each extent, scattered, and most of what the scrub comes by is in the log.
    let settings = Settings { low: 0, begin: 0, ..Settings::default() };
    let slow = shape(device(2_000, 160, 200), None);
    let (_, seen, world) =
        fill_and_go_on(Shape { log_bytes: 64 << 20, blocks: 4096, depth: 1, settings, ..slow }, 20, 20);
    assert_eq!(world.store.fill().limit, WriteLimit::Nothing);
    assert!(seen.asked.data.count > 1000 && world.store.scrubbed().passes > 1);
    let p999 = seen.quantile_ns(0.999) as f64 / 1e6;
    println!("{:.0} writes/s, p99.9 {p999:.1} ms", seen.rate());
    assert!(seen.rate() >= 1000.0, "{:.0} writes/s of 1,430 without a round and a scrub", seen.rate());
    assert!(p999 <= 6.0, "p99.9 is {p999:.1} ms, and a write takes the device 0.5 ms");
}

#[test]
fn a_scrub_reads_what_the_log_has_only_if_somebody_asks_for_it() {
    let settings = Settings { low: 100, begin: u64::MAX, high: 100, when_idle: false, ..Settings::default() };
    let all_in_log = Shape { log_bytes: 64 << 20, blocks: 512, settings, ..shape(fast_log(), None) };
    let mut world = World::new(all_in_log, SEED);
    world.write_until(60 * SECOND, |world| world.store.fill().log_used > 32 << 20);
    let mut scrubbed = |with_log| {
        world.store.scrub_with_log(with_log);
        let before = world.store.scrubbed().bytes;
        world.write_for(SECOND);
        world.store.scrubbed().bytes - before
    };
    assert_eq!(scrubbed(false), 0);
    assert!(scrubbed(true) >= 512 * 4096, "all of the volume");
    assert_eq!(scrubbed(false), 0);
}

#[test]
fn a_takeover_does_not_wait_for_a_round_of_what_is_committed() {
    let (_, _, mut world) = fill_and_go_on(very_slow(), 200, 1);
    assert!(world.store.is_destaging());
    assert!(world.is_reported_above_at_once(), "the round takes a minute");
}

fn print(what: &str, seen: &Seen, ring: u64) {
    let ms = |ns: f64| ns / 1e6;
    println!(
        "{what}: {:.0} s, {:.0} writes/s, longest gap {:.1} ms, mean {:.2} ms, p99.9 {:.2} ms",
        seen.ns as f64 / 1e9,
        seen.rate(),
        ms(seen.longest_gap_ns as f64),
        ms(seen.mean_ns()),
        ms(seen.quantile_ns(0.999) as f64),
    );
    for (name, ios) in seen.asked.named() {
        let (rate, busy) = (ios.count as f64 * 1e9 / seen.ns as f64, ios.busy_ns as f64 / seen.ns as f64);
        println!("   {name:<10} {rate:>8.0}/s, its device is busy with it for {busy:.3} of the time");
    }
    for (second, tenths) in seen.tenths.chunks(10).enumerate() {
        let writes: u64 = tenths.iter().map(|tenth| tenth.writes).sum();
        let least = tenths.iter().map(|tenth| tenth.writes).min().unwrap_or(0);
        let log = tenths.last().map_or(0, |tenth| tenth.log_used) * 100 / ring;
        println!("   {second:>4} s {writes:>7} writes, {least:>6} in the slowest tenth, log {log:>3} %");
    }
}

#[test]
#[ignore = "it asserts nothing: it prints what a developer wants to see"]
fn time_line() {
    let small = |log_bytes| Shape { log_bytes, ..two_devices() };
    for (what, shape, seconds) in [
        ("two devices, 5,000 writes/s", two_devices(), 40),
        ("one device, 750 I/Os a second", one_device(), 400),
        ("extents on a device of 200 writes/s", very_slow(), 400),
        ("extents on a device that is faster than the log", faster_than_the_log(), 20),
        ("two devices, a log of 256 MiB", small(256 << 20), 20),
        ("two devices, a log of 32 MiB", small(32 << 20), 20),
    ] {
        let (ring, sustainable) = (shape.log_bytes, sustainable(&shape));
        println!("\n{what}: {sustainable:.0} writes/s can be sustained");
        let mut world = World::new(shape, SEED);
        print("filling", &world.write_for(seconds * SECOND), ring);
        print("then", &world.write_for(seconds * SECOND), ring);
    }
}
