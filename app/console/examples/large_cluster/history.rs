//! How much memory a day of the large cluster takes in the console: a day is passed through it, without waiting for it.

use std::time::{Duration, Instant};

use loadline_console::cluster::Cluster;
use loadline_console::follower::News;
use loadline_console::past::Past;

use crate::world::World;

/// Seconds of a day, and some more.
const DAY: u64 = 24 * 3600 + 60;
/// Seconds since 1970 at which the day begins.
const BEGIN: u64 = 1_700_000_000;
/// Seconds that are computed in full; those after them repeat the last one, and are only kept.
const COMPUTED: u64 = 60;

/// Resident memory of this process, MiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it is there");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("it is a number") / 1024
}

/// Prints the resident memory before and after a day, and how long a second took.
pub(crate) fn measure(world: &World) {
    let (mut cluster, mut past, begun) = (Cluster::default(), Past::default(), Instant::now());
    cluster.learn_status(Ok(world.status(0, BEGIN)), begun);
    let mut took = Duration::ZERO;
    let mut last = None;
    for second in 0..COMPUTED {
        let (now, wall_ms) = (begun + Duration::from_secs(second), (BEGIN + second) * 1000);
        for node in 0..world.nodes {
            let name = world.node_name(node);
            for followed in world.followed(node, BEGIN + second) {
                cluster.learn(&name, News::Followed(followed), now, wall_ms);
            }
        }
        let at = Instant::now();
        let view = cluster.tick(now, wall_ms);
        past.add(&view, &cluster);
        took += at.elapsed();
        last = Some(view);
    }
    let (before, mut view) = (resident(), last.expect("there were some"));
    for second in COMPUTED..DAY {
        view.at = BEGIN + second;
        past.add(&view, &cluster);
    }
    println!(
        "a day of {} nodes and {} volumes: resident memory grows by {} MiB from its first minute to its end; a second takes {:.1} ms",
        world.nodes,
        world.volumes,
        resident() - before,
        took.as_secs_f64() * 1e3 / COMPUTED as f64
    );
}
