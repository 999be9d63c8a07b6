//! What a cluster of three nodes costs that has many volumes: to make and attach them, to show them, to keep them, to start.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::cluster::Cluster;
use super::{Setting, share_of_core};

const NODES: u8 = 3;
const COUNTS: [u32; 3] = [10, 100, 300];
/// How long the cluster settles before the measurement, and how long the measurement is.
const SETTLES: Duration = Duration::from_secs(8);
const LOOK: Duration = Duration::from_secs(30);
/// How long all volumes may take to be served after a start.
const LIMIT: Duration = Duration::from_secs(120);

pub(super) fn measure(setting: &Setting<'_>) -> Result<(), String> {
    println!("three nodes with many volumes of 100 MiB that no client uses, two copies, logs of 32 MiB\n");
    println!(
        "volumes  made, attached  taken of a device each  status  idle CPU of a node  all serve after a kill"
    );
    for count in COUNTS {
        let row = one(setting, count)?;
        println!("{row}");
    }
    println!(
        "\nwanted: 100 in under 20 s; under 48 MiB; under 0.2 s; under 1 % of a core; within 5 s + 10 ms a volume\n"
    );
    Ok(())
}

/// The figures of a cluster with so many volumes.
fn one(setting: &Setting<'_>, count: u32) -> Result<String, String> {
    // Sparse: next to nothing of it is written. The size of its chunks follows from the size of the device.
    let mib = if count <= 10 { 4 << 10 } else { u64::from(count) * 300 };
    let mut cluster = Cluster::start(&setting.context.program, setting.memory, NODES, mib)?;
    let begun = Instant::now();
    let names = format!("disk-{{001..{count:03}}}");
    cluster.loadline(&["volume", "create", &names, "--size", "100MiB", "--log", "32MiB", "--attach"])?;
    let made = begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    let status = shown(&cluster)?;
    let took = begun.elapsed().as_secs_f64();
    let devices = status["devices"].as_array().ok_or("no devices")?;
    let sum = |key: &str| devices.iter().filter_map(|device| device[key].as_u64()).sum::<u64>();
    let taken = sum("taken") as f64 / sum("replicas").max(1) as f64 / f64::from(1 << 20);
    std::thread::sleep(SETTLES);
    let idle = share_of_core(&cluster.processes(), LOOK) / f64::from(NODES);
    (1..=NODES).for_each(|node| _ = cluster.kill(node));
    let begun = Instant::now();
    (1..=NODES).try_for_each(|node| cluster.start_node(node))?;
    loop {
        let status = shown(&cluster)?;
        let volumes = status["volumes"].as_array().ok_or("no volumes")?;
        if volumes.iter().filter(|volume| volume["health"] == "healthy").count() == count as usize {
            break;
        }
        if begun.elapsed() > LIMIT {
            return Err(format!("of {count} volumes not all serve: {status}"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let serve = begun.elapsed().as_secs_f64();
    Ok(format!("{count:7}  {made:12.2} s  {taken:18.0} MiB  {took:4.2} s  {idle:16.2} %  {serve:20.2} s"))
}

/// The status. Its exit code says how healthy the cluster is, which is not asked here.
fn shown(cluster: &Cluster) -> Result<Value, String> {
    let shown = cluster.shown(&["san", "status", "--json"])?;
    serde_json::from_str(&shown).map_err(|e| format!("{e}: {shown}"))
}
