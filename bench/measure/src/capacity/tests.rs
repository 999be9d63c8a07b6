use std::time::Duration;

use loadline_base::device_model::Speed;
use loadline_base::units::{ByteSize, TimeSpan};
use proptest::prelude::*;

use super::*;

const NONE: Software = Software { read_s: 0.0, write_s: 0.0, most_iops: None };

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

fn nodes(count: usize) -> BTreeMap<String, DeviceModel> {
    (1..=count).map(|n| (format!("node-{n}"), model(1_500, 1_000))).collect()
}

fn load(write_share: f64) -> Load {
    Load {
        block: 4096,
        write_share,
        is_random: true,
        working_set: 128 << 20,
        log: 32 << 20,
        seconds: 1e6,
        is_scattered: false,
    }
}

/// A volume of the first of these nodes, with copies on all of them.
fn volume(copies: &[usize], outstanding: f64) -> Volume {
    let copies: Vec<String> = copies.iter().map(|n| format!("node-{n}")).collect();
    Volume { owner: copies[0].clone(), stripes: vec![copies], outstanding, most_iops: None }
}

fn of(nodes: &BTreeMap<String, DeviceModel>, load: Load, volumes: &[Volume]) -> Prediction {
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
    near(found.iops.low, found.iops.high);
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
    near(found.iops.low, 4.0 * 32.0 / (32.0 / 1_500.0 + 300e-6));
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
        let faster: BTreeMap<String, DeviceModel> = (1..=4).map(|n| (format!("node-{n}"), model(3_000, 2_000))).collect();
        let better = of(&faster, load, &volumes);
        prop_assert!(better.iops.high >= found.iops.high * (1.0 - 1e-9) , "{:?} {:?}", found, better);
    }
}
