//! What a node costs that has a hundred attached volumes without clients.

use std::time::Duration;

use super::cluster::Cluster;
use super::{Setting, met, resident_mib, share_of_core};

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
    let process = cluster.processes()[0];
    let share = share_of_core(&[process], LOOK);
    let mib = resident_mib(process)?;
    println!("CPU: {share:.2} % of a core; wanted under 1 %: {}", met(share < 1.0));
    println!("memory: {mib:.0} MiB; wanted under 200 MiB: {}\n", met(mib < 200.0));
    Ok(())
}
