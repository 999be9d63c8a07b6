use std::time::Duration;

use loadline_base::device_model::Speed;
use loadline_base::units::{ByteSize, TimeSpan};
use proptest::prelude::*;

use super::*;

const NONE: Software = Software::NONE;
/// What 40 reads of the scrub a second leave of 1,500.
const BESIDE_SCRUB: f64 = 1.0 - 40.0 / 1_500.0;

fn model(reads: u64, writes: u64) -> DeviceModel {
    let speed = |iops, us| Speed {
        iops,
        per_second: ByteSize(1 << 30),
        latency: TimeSpan(Duration::from_micros(us)),
        p99: None,
    };
    DeviceModel {
        name: "a drive".into(),
        source: String::new(),
        read: speed(reads, 300),
        write: speed(writes, 200),
        flush: TimeSpan::ZERO,
        cache: None,
    }
}

/// A node with one device.
fn one(capacity: DeviceModel) -> NodeDevices {
    NodeDevices { capacity, log: None }
}

fn nodes(count: usize) -> BTreeMap<String, NodeDevices> {
    (1..=count).map(|n| (format!("node-{n}"), one(model(1_500, 1_000)))).collect()
}

fn load(write_share: f64) -> Load {
    Load {
        block: 4096,
        write_share,
        is_random: true,
        working_set: 128 << 20,
        log: 32 << 20,
        seconds: 1e6,
        warm_up: 0.0,
        is_scattered: false,
    }
}

/// A volume of the first of these nodes, with copies on all of them.
fn volume(copies: &[usize], outstanding: f64) -> Volume {
    let copies: Vec<String> = copies.iter().map(|n| format!("node-{n}")).collect();
    Volume { owner: copies[0].clone(), stripes: vec![copies], outstanding, most_iops: None }
}

fn of(nodes: &BTreeMap<String, NodeDevices>, load: Load, volumes: &[Volume]) -> Prediction {
    predict(nodes, &load, volumes, NONE).unwrap()
}

fn near(found: f64, wanted: f64) {
    assert!((found / wanted - 1.0).abs() < 1e-3, "{found} is not {wanted}");
}

#[test]
fn one_read_at_a_time_takes_its_cost_and_its_latency() {
    let found = of(&nodes(1), load(0.0), &[volume(&[1], 1.0)]);
    // 1/1500 s and 300 us.
    near(found.iops.high, 1.0 / (1.0 / 1_500.0 + 300e-6));
    near(found.iops.low, 1.0 / (1.0 / 1_500.0 / BESIDE_SCRUB + 300e-6));
    near(found.mean_us.unwrap().low, 966.67);
    assert!(found.binds.contains("outstanding"), "{}", found.binds);
}

#[test]
fn reads_of_many_are_what_the_owners_devices_carry_and_a_lost_node_takes_its_share() {
    let healthy: Vec<Volume> =
        [[1, 2, 3], [2, 3, 4], [3, 4, 1], [4, 1, 2]].map(|copies| volume(&copies, 32.0)).into();
    let found = of(&nodes(4), load(0.0), &healthy);
    near(found.iops.high, 6_000.0);
    // 32 in front of each, and the latency.
    near(found.iops.low, 4.0 * 32.0 / (32.0 / 1_500.0 / BESIDE_SCRUB + 300e-6));
    assert_eq!(found.binds, "the devices of node-1, node-2, node-3, node-4");
    // node-4 is gone: node-1 serves its volume too, and is the busiest.
    let down: Vec<Volume> =
        [&[1, 2, 3][..], &[2, 3], &[3, 1], &[1, 2]].map(|copies| volume(copies, 32.0)).into();
    let found = of(&nodes(4), load(0.0), &down);
    near(found.iops.high, 4_500.0);
}

#[test]
fn the_busiest_node_binds_its_volumes_and_no_others() {
    // Two volumes at node-1, one at node-2 that is far from full.
    let volumes = [volume(&[1], 32.0), volume(&[1], 32.0), volume(&[2], 1.0)];
    let found = of(&nodes(2), load(0.0), &volumes);
    near(found.iops.high, 1_500.0 + 1.0 / (1.0 / 1_500.0 + 300e-6));
    assert_eq!(found.binds, "the device of node-1");
}

#[test]
fn a_write_costs_every_copy_an_append_and_later_its_place() {
    let one = of(&nodes(3), load(1.0), &[volume(&[1, 2, 3], 1.0)]);
    // In the long run: an append and a destage of each write on each device, by one writer 1 ms and 200 us after another.
    assert!(one.iops.high <= 1.0 / 1.2e-3 && one.iops.high > 0.45 / 1e-3, "{one:?}");
    let all: Vec<Volume> =
        [[1, 2, 3], [2, 3, 4], [3, 4, 1], [4, 1, 2]].map(|copies| volume(&copies, 32.0)).into();
    let found = of(&nodes(4), load(1.0), &all);
    // Of 4,000 device writes a second three copies, each destaged by a write of its own but for what merges, and appends of 32.
    assert!(found.iops.high < 4_000.0 / 3.0 * 1.25 && found.iops.low > 4_000.0 / 3.0 / 2.2, "{found:?}");
    assert!(found.binds.contains("appends to logs") && found.binds.contains("destaging"), "{}", found.binds);
    // A burst that the log takes: no destaging.
    let burst = of(&nodes(4), Load { seconds: 1.0, log: 1 << 30, ..load(1.0) }, &all);
    assert!(burst.iops.high > 3.0 * found.iops.high, "{burst:?}");
    assert!(burst.high_if.contains(" 0 % of what is written destaged"), "{}", burst.high_if);
    // A few large writes: while the log is full, each waits for what is destaged of all copies at its device.
    let large = Load { block: 512 << 10, is_random: false, ..load(1.0) };
    let few: Vec<Volume> = all.iter().map(|volume| Volume { outstanding: 2.0, ..volume.clone() }).collect();
    let full = of(&nodes(4), large, &few);
    let not = of(&nodes(4), Load { log: 1 << 40, seconds: 100.0, ..large }, &few);
    assert!(full.iops.low < not.iops.low && full.iops.high <= not.iops.high, "{full:?} {not:?}");
    // With every volume on the same two nodes, half of the devices and two copies of three.
    let two: Vec<Volume> = (0..4).map(|_| volume(&[1, 2], 32.0)).collect();
    near(of(&nodes(4), load(1.0), &two).iops.high, found.iops.high * 0.75);
}

/// A log device of 10,000 writes a second before a capacity device of 100 reads or writes, without latencies.
fn hybrid(count: usize) -> BTreeMap<String, NodeDevices> {
    let instant = |iops| {
        let mut model = model(iops, iops);
        model.read.latency = TimeSpan::ZERO;
        model.write.latency = TimeSpan::ZERO;
        model
    };
    let of = |n| (format!("node-{n}"), NodeDevices { capacity: instant(100), log: Some(instant(10_000)) });
    (1..=count).map(of).collect()
}

#[test]
fn a_log_device_takes_a_burst_and_then_writes_are_what_the_capacity_device_destages() {
    let far = Load { working_set: 1 << 50, warm_up: 1e5, ..load(1.0) };
    let one = [volume(&[1], 1.0)];
    // A burst that the log takes: one append after the other, 0.1 ms each.
    let burst = Load { seconds: 0.3, warm_up: 0.1, ..far };
    let found = of(&hybrid(1), burst, &one);
    near(found.iops.high, 10_000.0);
    near(found.iops.low, 10_000.0);
    // Eight at a time: one append takes all of them, and each waits for the one before too; with two volumes at the device, for two of each.
    let shorter = Load { seconds: 0.03, ..burst };
    near(of(&hybrid(1), shorter, &[volume(&[1], 8.0)]).iops.low, 8.0 / 2e-4);
    let two = [volume(&[1], 8.0), volume(&[1], 8.0)];
    near(of(&hybrid(1), shorter, &two).iops.low, 16.0 / 4e-4);
    // Past it each write is destaged by one of the 100 writes a second, at the least with a tenth for slots beside 40 reads of
    // the scrub.
    let found = of(&hybrid(1), far, &one);
    near(found.iops.high, 100.0);
    near(found.iops.low, 60.0 / 1.1);
    assert_eq!(found.binds, "the capacity device of node-1 (destaging 100 %)");
    // Two copies on three nodes: 300 writes a second for two of each.
    let three = [[1, 2], [2, 3], [3, 1]].map(|copies| volume(&copies, 8.0));
    near(of(&hybrid(3), far, &three).iops.high, 150.0);
    // A window that begins when the log may still have room: at the most, what the log takes and what is destaged meanwhile.
    let some = Load { seconds: 100.0, warm_up: 0.0, ..far };
    let records = 28.0 * 1024.0 * 1024.0 / 4608.0;
    near(of(&hybrid(1), some, &one).iops.high, 100.0 + records / 100.0);
}

#[test]
fn a_large_log_slows_writers_down_for_so_long_that_it_still_takes_writes_in_the_window() {
    // Of a log of 1 GiB writers fill 544 MiB in about 13 s. From there on the price p of a write rises by dp/dt = E / span (1 / p - 1), with
    // E = 100 records a second and a span of 173 MiB: -p - ln(1 - p) = E t / span, so p = 0.43 after 47 s. Writers get E / p.
    let large = Load { working_set: 1 << 50, log: 1 << 30, warm_up: 60.0, seconds: 80.0, ..load(1.0) };
    let one = [volume(&[1], 32.0)];
    assert!(of(&hybrid(1), large, &one).iops.high >= 100.0 / 0.45);
    near(of(&hybrid(1), Load { warm_up: 1e5, seconds: 1e5 + 20.0, ..large }, &one).iops.high, 100.0);
}

#[test]
fn what_is_written_over_in_the_log_is_not_destaged() {
    // 8 MiB in a log of 32 MiB, so 2,048 places and records of 4,608 bytes. The log has 62.5 % and half a MiB at the most, 4,665 records:
    // exp(-4,665 / 2,048) = 0.1025 of the writes are destaged, of 1,820 in a round 187, in 170 runs.
    let inside = Load { working_set: 8 << 20, warm_up: 1e5, ..load(1.0) };
    let found = of(&hybrid(1), inside, &[volume(&[1], 32.0)]);
    near(found.iops.high, 1_073.4);
    // At the least it has 55 %, 4,005 records: exp(-4,005 / 2,048) = 0.1415, and 1.068 times as much for the order in a round.
    near(found.iops.low, 60.0 / 1.1 / 0.151_07);
    assert!(found.high_if.contains(" 10 % of what is written destaged"), "{}", found.high_if);
    assert!(found.low_if.contains(" 15 % of what is written destaged"), "{}", found.low_if);
    // In a working set that is a small part of the log, the log device binds: 32 records in an append of 147,456 bytes.
    let small = Load { working_set: 1 << 20, ..inside };
    let found = of(&hybrid(1), small, &[volume(&[1], 32.0)]);
    near(found.iops.high, 32.0 * f64::from(1 << 30) / (32.0 * 4_608.0));
    assert_eq!(found.binds, "the log device of node-1 (appends to logs 100 %)");
    // The same block again and again in order: all of it is written over before, if the log has more than all.
    let again = Load { is_random: false, ..inside };
    near(
        of(&hybrid(1), again, &[volume(&[1], 32.0)]).iops.high,
        32.0 * f64::from(1 << 30) / (32.0 * 4_608.0),
    );
}

#[test]
fn reads_come_from_the_capacity_device_but_for_what_the_log_has() {
    let one = [volume(&[1], 32.0)];
    // 28 of 2,800 MiB may be in the log: 1 % more reads.
    let wide = Load { working_set: 2_800 << 20, ..load(0.0) };
    let found = of(&hybrid(1), wide, &one);
    near(found.iops.high, 100.0 / 0.99);
    near(found.iops.low, 60.0);
    assert_eq!(found.binds, "the capacity device of node-1");
    // All may be there, or nothing.
    let found = of(&hybrid(1), Load { working_set: 28 << 20, ..wide }, &one);
    near(found.iops.high, 10_000.0);
    near(found.iops.low, 60.0);
    // Beside writes that are destaged: 0.7 reads and 0.3 writes of 10 ms each, the appends elsewhere.
    let mixed = Load { working_set: 1 << 50, warm_up: 1e6, seconds: 1e7, ..load(0.3) };
    near(of(&hybrid(1), mixed, &one).iops.high, 100.0);
}

#[test]
fn rates_limits_and_the_machine_are_ends_of_their_own() {
    let limited = Volume { most_iops: Some(100.0), ..volume(&[1], 32.0) };
    let found = of(&nodes(1), load(0.0), &[limited]);
    assert_eq!((found.iops.low, found.iops.high, found.mean_us), (100.0, 100.0, None));
    assert!(found.binds.contains("the limit"), "{}", found.binds);
    let machine = Software { most_iops: Some(700.0), ..NONE };
    let found = predict(&nodes(1), &load(0.0), &[volume(&[1], 32.0)], machine).unwrap();
    assert!(found.iops.high == 700.0 && found.binds.contains("the machine"), "{found:?}");
}

#[test]
fn nothing_is_predicted_of_what_is_not_known() {
    let none = |volumes: &[Volume]| predict(&nodes(1), &load(0.5), volumes, NONE).is_none();
    assert!(none(&[]));
    assert!(none(&[volume(&[2], 1.0)]), "its node has no model");
    assert!(none(&[Volume { stripes: vec![vec![]], ..volume(&[1], 1.0) }]), "it has no copy");
}

#[test]
fn how_far_a_figure_is_outside() {
    let found = of(&nodes(4), load(0.0), &[volume(&[1], 32.0)]);
    let Range { low, high } = found.iops;
    assert_eq!(found.departure(f64::midpoint(low, high)), 1.0);
    near(found.departure(low / 2.0), 0.5);
    near(found.departure(high * 3.0), 3.0);
    assert!(found.agrees(low * 0.96) && found.agrees(high * 1.04), "by the chance of a window");
    assert!(!found.agrees(low * 0.94) && !found.agrees(high * 1.06));
}

#[test]
fn a_record_has_a_sector_for_its_first_checksums_and_more_for_more() {
    // As protocol/src/log.rs has it.
    assert_eq!(costs::record_length(1), 4096 + 512);
    assert_eq!(costs::record_length(99), 99 * 4096 + 512);
    assert_eq!(costs::record_length(128), 128 * 4096 + 1024);
}

proptest! {
    /// The ends are in order, and more of any resource never lowers the upper one.
    #[test]
    fn the_lower_end_is_not_above_the_upper_one(
        outstanding in prop::collection::vec(1u32..64, 1..8),
        write_percent in 0u32..=100,
        block in prop::sample::select(vec![4096u64, 8192, 65536, 524288]),
        random in any::<bool>(),
        seconds in 1.0f64..1e4,
    ) {
        let volumes: Vec<Volume> = outstanding
            .iter()
            .enumerate()
            .map(|(n, depth)| volume(&[n % 4 + 1, (n + 1) % 4 + 1], f64::from(*depth)))
            .collect();
        let load = Load { block, is_random: random, seconds, ..load(f64::from(write_percent) / 100.0) };
        let found = of(&nodes(4), load, &volumes);
        prop_assert!(found.iops.low > 0.0 && found.iops.low <= found.iops.high, "{:?}", found);
        let faster: BTreeMap<String, NodeDevices> = (1..=4).map(|n| (format!("node-{n}"), one(model(3_000, 2_000)))).collect();
        let better = of(&faster, load, &volumes);
        prop_assert!(better.iops.high >= found.iops.high * (1.0 - 1e-9) , "{:?} {:?}", found, better);
    }

    /// With log devices: the ends are in order, faster devices and a larger log never lower the upper one, a larger working set never raises
    /// the upper one, nor the lower one of writes, and a longer warm-up, in which the logs fill, never raises the upper one.
    #[test]
    fn more_of_a_log_device_is_never_less(
        outstanding in 1u32..64,
        write_percent in 0u32..=100,
        block in prop::sample::select(vec![4096u64, 8192, 65536]),
        random in any::<bool>(),
        seconds in 1.0f64..1e3,
        set in 20u32..34,
        speed in 50u64..2_000,
    ) {
        let volumes: Vec<Volume> =
            (0..4).map(|n| volume(&[n % 4 + 1, (n + 1) % 4 + 1], f64::from(outstanding))).collect();
        let nodes = |capacity, log| -> BTreeMap<String, NodeDevices> {
            let devices = NodeDevices { capacity: model(capacity, capacity), log: Some(model(log, log)) };
            (1..=4).map(|n| (format!("node-{n}"), devices.clone())).collect()
        };
        let working_set = 1u64 << set;
        let load = Load { block, is_random: random, seconds, working_set, ..load(f64::from(write_percent) / 100.0) };
        let found = of(&nodes(speed, 10_000), load, &volumes);
        prop_assert!(found.iops.low > 0.0 && found.iops.low <= found.iops.high, "{:?}", found);
        let not_less = |better: &Prediction, than: &Prediction| better.iops.high >= than.iops.high * (1.0 - 1e-6);
        let faster = of(&nodes(2 * speed, 10_000), load, &volumes);
        prop_assert!(not_less(&faster, &found), "capacity {:?} {:?}", found, faster);
        let faster = of(&nodes(speed, 20_000), load, &volumes);
        prop_assert!(not_less(&faster, &found), "log {:?} {:?}", found, faster);
        let warm = of(&nodes(speed, 10_000), Load { warm_up: seconds / 2.0, ..load }, &volumes);
        prop_assert!(not_less(&found, &warm), "a warm-up {:?} {:?}", found, warm);
        let larger = of(&nodes(speed, 10_000), Load { log: 2 * load.log, ..load }, &volumes);
        prop_assert!(not_less(&larger, &found), "a larger log {:?} {:?}", found, larger);
        let wider = of(&nodes(speed, 10_000), Load { working_set: 2 * working_set, ..load }, &volumes);
        prop_assert!(not_less(&found, &wider), "a larger working set {:?} {:?}", found, wider);
        if write_percent == 100 {
            prop_assert!(found.iops.low >= wider.iops.low * (1.0 - 1e-6), "a larger working set {:?} {:?}", found, wider);
        }
    }
}
