//! `loadline san init`.

use loadline_base::units::TimeSpan;
use loadline_san_node::cluster::{self, Common};
use loadline_san_node::config::url::StoreUrl;

use crate::output::{complain, say};
use crate::process::exit::Exit;

/// Make a cluster without nodes: the configuration store that all nodes of the cluster use.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  loadline san init /srv/loadline/cluster.db")]
pub(super) struct Init {
    /// Where the configuration store is made: sqlite:PATH, or only the path of a file that does not exist yet. All
    /// nodes of the cluster run on this machine.
    cluster: StoreUrl,
    /// The length of a lease. A node that is silent for this long is excluded. A shorter lease shortens the stall when
    /// a node dies, and causes more false positives.
    #[arg(long, value_name = "TIME", default_value = "600ms")]
    lease: TimeSpan,
    /// Threads of the data path (loops) on each node. Each volume belongs to one loop, so several volumes can use
    /// several cores.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    loops: u32,
    /// How much space may be provisioned to volumes on each device, in percent of the device's space. A volume uses
    /// space only when it is written. Above 100, a device can become full, and writes then fail even if the volume is
    /// not full.
    #[arg(long, value_name = "PERCENT", default_value_t = 100)]
    overcommit: u32,
}

pub(super) fn init(args: &Init) -> Exit {
    let lease_ms = args.lease.0.as_millis() as u64;
    if !(100..=60_000).contains(&lease_ms) {
        return complain(Exit::Usage, "--lease: 100ms to 60s are possible");
    }
    if !(1..=64).contains(&args.loops) {
        return complain(Exit::Usage, "--loops: 1 to 64 are possible");
    }
    if !(100..=10_000).contains(&args.overcommit) {
        return complain(Exit::Usage, "--overcommit: give 100 to 10000 percent");
    }
    let (loops, overcommit) = (args.loops, args.overcommit);
    match cluster::init(&args.cluster, Common { lease_ms, loops, overcommit }) {
        Ok(id) => {
            say!("cluster {id} is made, in {}", args.cluster);
            say!("next: loadline san join {} --name node-1 --folder FOLDER", args.cluster);
            Exit::Done
        }
        Err(why) => complain(Exit::Usage, &why.to_string()),
    }
}
