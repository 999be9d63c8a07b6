//! `loadline san init`.

use loadline_base::units::TimeSpan;
use loadline_san_node::cluster::{self, Common};
use loadline_san_node::config::url::StoreUrl;

use crate::output::{complain, say};
use crate::process::exit::Exit;

/// Make a cluster without nodes: the configuration store that all nodes of the cluster use.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    loadline san init /srv/loadline/cluster.db\n  \
    loadline san init etcd://10.0.0.1,10.0.0.2,10.0.0.3/rack-7\n\n\
    An etcd needs version 3.4 or newer. The URL of an etcd is etcd://HOST:PORT,HOST:PORT,.../PREFIX?OPTIONS. The port is \
    2379 and the prefix of the cluster's keys is loadline, unless the URL names others. Options, joined by &: ca=FILE (the \
    authority of etcd's certificates: connections use TLS), cert=FILE and key=FILE (a client certificate), user=NAME and \
    password-file=FILE (a user of etcd).")]
pub(super) struct Init {
    /// Where the configuration store is made: the path of a SQLite file that does not exist yet, if all nodes run on
    /// this machine, or etcd://HOST,HOST,HOST.
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
