//! `loadline san init`.

use loadline_base::units::TimeSpan;
use loadline_san_node::cluster::{self, Common};
use loadline_san_node::config::url::StoreUrl;

use crate::output::{complain, say};
use crate::process::exit::Exit;

/// Make a cluster without nodes: the store of its configuration, which all its nodes use.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  loadline san init /srv/loadline/cluster.db")]
pub(super) struct Init {
    /// Where the configuration is to be: sqlite:PATH, or only the path of a file that does not exist yet. All nodes of such a
    /// cluster run on this machine.
    cluster: StoreUrl,
    /// How long a node that says nothing is waited for: leases have this length. Shorter ones make for shorter stalls when a
    /// node dies, and for more false alarms.
    #[arg(long, value_name = "TIME", default_value = "600ms")]
    lease: TimeSpan,
    /// Threads of the data path of each node. A volume belongs to one of them, so that several volumes use as many cores.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    loops: u32,
    /// How much may be promised to volumes of each device, per cent of what it has: space is taken only by what is written.
    /// Above 100, writes fail when a device has no more room, whatever the size of a volume.
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
        return complain(Exit::Usage, "--overcommit: 100 to 10000 per cent are possible");
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
