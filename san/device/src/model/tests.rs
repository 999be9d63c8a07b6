use std::time::Duration;

use loadline_base::device_model::WriteCache;
use loadline_base::units::{ByteSize, TimeSpan};

use super::*;

const US: u64 = 1000;
const MS: u64 = 1000 * US;
const BEGIN: Moment = Moment(1 << 40);

fn span(us: u64) -> TimeSpan {
    TimeSpan(Duration::from_micros(us))
}

/// 10,000 reads or 5,000 writes a second.
fn model(cache: Option<WriteCache>) -> DeviceModel {
    let speed =
        |iops, latency| Speed { iops, per_second: ByteSize(400 << 20), latency: span(latency), p99: None };
    DeviceModel {
        name: "a drive".into(),
        source: String::new(),
        read: speed(10_000, 50),
        write: speed(5_000, 80),
        flush: span(300),
        cache,
    }
}

fn device(cache: Option<WriteCache>) -> ModelledDevice {
    ModelledDevice::new(model(cache), DeviceId(7))
}

const WRITE: Work = Work::Write { bytes: 4096, durable: false };
const DURABLE: Work = Work::Write { bytes: 4096, durable: true };

#[test]
fn an_idle_device_takes_its_cost_and_its_latency() {
    for (work, us) in [
        (Work::Read(4096), 100 + 50),
        (WRITE, 200 + 80),
        (DURABLE, 200 + 80 + 300),
        (Work::Flush, 300),
        (Work::Read(400 << 20), 1_000_000 + 50),
    ] {
        assert_eq!(device(None).begin(BEGIN, work).since(BEGIN), us * US, "{work:?}");
    }
}

#[test]
fn what_arrives_at_once_completes_at_the_rate_of_the_model_and_reads_and_writes_share_it() {
    let device = device(None);
    let last = (0..1000).map(|_| device.begin(BEGIN, Work::Read(4096))).max().unwrap();
    assert_eq!(last.since(BEGIN), 100 * MS + 50 * US);
    // 1000 reads and 500 writes: each kind has half of the time.
    let later = BEGIN.after(1000 * MS);
    let mixed =
        (0..1000).flat_map(|index| [Some(Work::Read(4096)), (index % 2 == 0).then_some(WRITE)]).flatten();
    let last = mixed.map(|work| device.begin(later, work)).max().unwrap();
    assert_eq!(last.since(later) / MS, 200);
}

#[test]
fn a_cache_takes_a_burst_and_then_the_device_sets_the_pace() {
    // It holds 100 writes, which the device writes in 20 ms.
    let cache = WriteCache { size: ByteSize(400 << 10), latency: span(20), volatile: false };
    let device = device(Some(cache));
    let took: Vec<u64> = (0..300).map(|_| device.begin(BEGIN, DURABLE).since(BEGIN)).collect();
    assert!(took[..100].iter().all(|ns| *ns == 20 * US), "{took:?}");
    assert_eq!(took[299], 40 * MS + 20 * US, "200 writes later");
    // It is empty again when the device had the time.
    let later = BEGIN.after(60 * MS);
    assert_eq!(device.begin(later, WRITE).since(later), 20 * US);
}

#[test]
fn a_flush_waits_for_a_volatile_cache_and_for_no_other() {
    for (volatile, us) in [(true, 10 * 200 + 300), (false, 300)] {
        let device = device(Some(WriteCache { size: ByteSize(8 << 20), latency: span(20), volatile }));
        (0..10).for_each(|_| _ = device.begin(BEGIN, WRITE));
        assert_eq!(device.begin(BEGIN, Work::Flush).since(BEGIN), us * US, "{volatile}");
    }
}

#[test]
fn latencies_spread_as_the_model_says_and_the_same_in_each_run() {
    let mut spread = model(None);
    spread.read.p99 = Some(span(200));
    let drawn = |id| {
        let device = ModelledDevice::new(spread.clone(), DeviceId(id));
        let one = |index| {
            let begins = BEGIN.after(index * MS);
            device.begin(begins, Work::Read(4096)).since(begins) - 100 * US
        };
        (0..20_000).map(one).collect::<Vec<u64>>()
    };
    let (mut one, again, other) = (drawn(1), drawn(1), drawn(2));
    assert!(one == again && one != other);
    one.sort_unstable();
    let (median, p99) = (one[10_000] as f64 / 50e3, one[19_800] as f64 / 200e3);
    assert!((0.97..1.03).contains(&median) && (0.93..1.07).contains(&p99), "{median} {p99}");
}

#[test]
fn what_the_machine_adds_is_counted() {
    let device = device(None);
    let due = device.begin(BEGIN, Work::Read(4096));
    device.completed(BEGIN, due, due.after(30 * US));
    device.completed(BEGIN, due, due);
    assert_eq!(device.lateness(), Lateness { ios: 2, modelled_ns: 300 * US, late_ns: 30 * US });
}
