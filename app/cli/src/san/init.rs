//! `loadline san init`.

use std::path::Path;
use std::time::Duration;

use loadline_base::units::TimeSpan;
use loadline_san_node::cluster::{self, Common, Made};
use loadline_san_node::config::catalog::{Transport, certificate_s};
use loadline_san_node::config::url::StoreUrl;

use super::protection::Protection;
use crate::output::{print_error, print_line};
use crate::process::exit::Exit;

/// Make a cluster without nodes: the configuration store that all nodes of the cluster use.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    loadline san init /srv/loadline/cluster.db\n  \
    loadline san init etcd://10.0.0.1,10.0.0.2,10.0.0.3/rack-7\n  \
    loadline san init etcd://10.0.0.1,10.0.0.2,10.0.0.3/rack-7 --transport authenticated\n\n\
    A cluster whose nodes are on several hosts has a certificate authority of its own: the command prints a token, by which \
    the first node joins. Nodes on several hosts always authenticate each other; --transport open is refused if the etcd is not named by loopback addresses.\n\n\
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
    /// How connections between nodes are protected. [default: encrypted if the configuration store is an etcd, and open
    /// if it is a file]
    #[arg(long, value_name = "KIND")]
    transport: Option<Protection>,
    /// How long the certificate of a node is valid. A node renews its certificate when a third of this time is left.
    #[arg(long, value_name = "TIME", default_value_t = TimeSpan(Duration::from_secs(certificate_s())))]
    certificates: TimeSpan,
    /// How long the first node has to join: how long the token that this command prints is valid.
    #[arg(long, value_name = "TIME", default_value = "24h")]
    token_valid: TimeSpan,
}

pub(super) fn init(args: &Init) -> Exit {
    let lease_ms = args.lease.0.as_millis() as u64;
    if !(100..=60_000).contains(&lease_ms) {
        return print_error(Exit::Usage, "--lease: give 100ms to 60s");
    }
    if !(1..=64).contains(&args.loops) {
        return print_error(Exit::Usage, "--loops: give 1 to 64");
    }
    if !(100..=10_000).contains(&args.overcommit) {
        return print_error(Exit::Usage, "--overcommit: give 100 to 10000 percent");
    }
    let certificates = args.certificates.0;
    if !(Duration::from_secs(60)..=Duration::from_secs(10 * 365 * 86400)).contains(&certificates) {
        return print_error(Exit::Usage, "--certificates: give 1min to 3650d");
    }
    let default = if args.cluster.is_remote() { Transport::Encrypted } else { Transport::Open };
    let transport = args.transport.map_or(default, Protection::transport);
    let (loops, overcommit) = (args.loops, args.overcommit);
    let common = Common { lease_ms, loops, overcommit, transport, certificates };
    let folder = match &args.cluster {
        StoreUrl::Sqlite(file) => file.parent().filter(|folder| *folder != Path::new("") && !folder.is_dir()),
        StoreUrl::Etcd(_) => None,
    };
    if let Some(folder) = folder {
        let folder = folder.display();
        return print_error(
            Exit::Usage,
            &format!(
                "the folder {folder} does not exist: make it ('mkdir -p {folder}'), or name another one"
            ),
        );
    }
    match cluster::init(&args.cluster, common, args.token_valid.0) {
        Ok(Made { id, token }) => {
            print_line!("cluster {id} is made, in {}", args.cluster);
            if transport == Transport::Open {
                print_line!(
                    "connections between its nodes are open: all nodes must run on this machine, at addresses such as 127.0.0.1"
                );
            }
            // In the environment: every user of the host can read a command line.
            let token = token.map_or(String::new(), |token| format!("LOADLINE_JOIN_TOKEN={token} "));
            let store = args.cluster.to_string();
            // A shell takes the ? and the & of the options of an etcd for itself.
            let store = if store.contains(['?', '&', ' ']) { format!("'{store}'") } else { store };
            let address = if args.cluster.is_remote() { " --address ADDRESS_OF_THIS_HOST" } else { "" };
            print_line!("next: {token}loadline san join {store} --name node-1 --folder FOLDER{address}");
            Exit::Done
        }
        Err(why) => print_error(Exit::Usage, &why.to_string()),
    }
}
