//! Clusters of many nodes and volumes: what a fault costs the configuration store, how long volumes are not served, how long they are not
//! redundant, and how that grows.
//!
//! ```text
//!  client of each volume ─▶ volume ─┬─ messages ─▶ replica ─▶ store on a simulated disk
//!                                   └─ calls, one at a time a node ─▶ configuration store
//! ```
//!
//! Volumes, replicas, records, leases, placement and stores are the real ones. Volumes are tiny: the work for a volume is measured, and
//! not the work for its data. Nodes do what a node's control path does (`san/node`) as far as it calls the configuration store; that is
//! a model here, and so are the times that a call takes. The world of [`crate::world`] has one volume with clients that ask for
//! everything, disks that fail, and messages that are lost: it shows that the protocol is right, and this one what it costs.
//!
//! | module | idea |
//! | --- | --- |
//! | `world` | nodes, volumes, the network, what happens |
//! | `world::process` | a node's process and its state machines |
//! | `world::config` | calls of the configuration store, counted |
//! | `world::reach` | nodes ask each other through it whether they run |
//! | `world::client` | the client of a volume |
//! | `world::moving` | copies are made anew elsewhere |
//! | `faults` | what goes wrong, and what is checked |
//! | [`figures`] | what was measured |
//! | [`mod@print`] | tables |

mod faults;
pub mod figures;
pub mod print;
#[cfg(test)]
mod tests;
mod world;

use loadline_san_core::rule::{Rule, leave_out};
use serde::Serialize;

use self::faults::CAUSES;
pub use self::faults::MOST_WRITES;
use self::figures::{Attach, Fault, Measured, Steady, seconds};
pub use self::world::config::{BYTES_A_SECOND, COMMIT, READ};
use self::world::{Traffic, World};
use crate::time::{MS, Time};

/// Clusters have at least so many nodes: a copy that is made elsewhere needs one without a copy of the volume.
pub const LEAST_NODES: usize = 4;
/// Each of so many volumes at the most.
pub const MOST_VOLUMES: usize = 10_000;

/// How long all volumes may take until they are attached.
const ATTACH: Time = 300_000 * MS;
/// What was asked for has ended after this time.
const QUIET: Time = 5_000 * MS;
/// How long nothing happens while that is measured.
const STEADY: Time = 6_000 * MS;

/// A cluster to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Cluster {
    /// How many nodes, each with one device.
    pub nodes: usize,
    /// How many volumes, each owned by a node in its turn.
    pub volumes: usize,
    /// Copies of each volume.
    pub copies: usize,
    /// The seed.
    pub seed: u64,
}

/// Measures a cluster with each fault, with all rules of the protocol, or with one left out.
pub fn measure(cluster: Cluster, left_out: Option<Rule>) -> Measured {
    leave_out(left_out);
    let mut world = World::new(cluster);
    let (attach, steady) = settle(&mut world);
    let mut faults = Vec::new();
    for cause in CAUSES {
        let cause = cause(&world);
        faults.push(world.fault(cause));
    }
    measured(world, attach, steady, faults)
}

fn measured(world: World, attach: Attach, steady: Steady, faults: Vec<Fault>) -> Measured {
    Measured { cluster: world.cluster, attach, steady, faults, violations: world.violations }
}

/// Lets all volumes be attached, and measures what a cluster costs when nothing happens.
fn settle(world: &mut World) -> (Attach, Steady) {
    if !world.run_until(ATTACH, World::is_well) {
        world.violations.push(format!("not all volumes are attached after {} s", seconds(ATTACH)));
    }
    let attach = Attach { served_s: seconds(world.now), writes: world.load.records };
    world.writes = false;
    world.run_for(QUIET);
    world.begin_phase();
    world.traffic = Some(vec![Traffic::default(); world.cluster.nodes]);
    world.run_for(STEADY);
    let traffic = world.traffic.take().unwrap_or_default();
    let steady = Steady::of(world, &traffic);
    if steady.commits > 0 {
        world
            .violations
            .push(format!("{} writes to the configuration store while nothing happens", steady.commits));
    }
    world.writes = true;
    (attach, steady)
}
