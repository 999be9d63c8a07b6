//! What a node costs that has a hundred attached volumes without clients.

use std::time::Duration;

use super::cluster::Cluster;
use super::{Setting, cpu_of};

const VOLUMES: u32 = 100;
/// The length of the measurement.
const LOOK: Duration = Duration::from_secs(20);

pub(super) fn measure(setting: &Setting<'_>) -> Result<(), String> {
    println!("a node with {VOLUMES} attached volumes that no client uses\n");
    // Sparse: of each volume there is a log, of which next to nothing is written.
    let cluster = Cluster::start(&setting.context.program, setting.memory, 1, 64 << 10)?;
    for volume in 1..=VOLUMES {
        let name = format!("disk-{volume}");
        cluster.loadline(&["volume", "create", &name, "--size", "64MiB", "--copies", "1"])?;
        cluster.loadline(&["volume", "attach", &name])?;
    }
    std::thread::sleep(Duration::from_secs(5));
    let processes = cluster.processes();
    let before = cpu_of(&processes);
    std::thread::sleep(LOOK);
    let share = (cpu_of(&processes) - before) / LOOK.as_secs_f64() * 100.0;
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", processes[0])).map_err(|e| e.to_string())?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: u64 = resident.and_then(|text| text.split_whitespace().next()?.parse().ok()).unwrap_or(0);
    let met = |met: bool| if met { "met" } else { "NOT MET" };
    println!("CPU: {share:.2} % of a core; wanted under 1 %: {}", met(share < 1.0));
    println!("memory: {} MiB; wanted under 200 MiB: {}\n", kib >> 10, met(kib >> 10 < 200));
    Ok(())
}
