//! `loadline node`: nodes of a cluster, emptied and removed.

use loadline_san_node::node::manage::{Drain, StatusView};

use crate::cluster::client::{Api, escaped, print_json};
use crate::cluster::maintenance::{self, Maintenance};
use crate::cluster::moves::{self, Wait};
use crate::cluster::restart::{self, Restart};
use crate::output::print_line;
use crate::process::exit::Exit;

/// Nodes of a cluster.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// List nodes.
    List {
        #[command(flatten)]
        api: Api,
    },
    /// Empty a node: move its copies to other nodes, one copy of each volume at a time. The node receives no new
    /// copies.
    ///
    /// Use this command also for a node that will never come back: its copies are then rebuilt from the other copies.
    /// Volumes that are attached at the node stay attached there.
    #[command(after_help = "Examples:\n  \
        loadline node drain node-3\n  \
        loadline node drain node-3 --stop")]
    Drain {
        /// The name of the node.
        name: String,
        /// Stop the drain: copies that have not moved yet stay, and the node receives new copies again.
        #[arg(long)]
        stop: bool,
        #[command(flatten)]
        wait: Wait,
    },
    /// Begin or end the maintenance of a node: other nodes take its volumes over, and it receives no new copies. Its copies stay.
    ///
    /// Use this command before you stop a node or its machine. It is refused if clients of a volume would wait while the node is stopped. Clients
    /// over the network are disconnected when their volume moves, and connect to another node. A volume that virtual machines of the node's host use stays
    /// until they are stopped. The maintenance lasts, also over restarts of the node, until you end it with --stop.
    #[command(after_help = "Examples:\n  \
        loadline node maintenance node-3\n  \
        loadline node maintenance node-3 --stop")]
    Maintenance(Maintenance),
    /// Renew the certificate of a node, with a new key. Clients and volumes do not notice. Nodes renew their certificates
    /// by themselves in time.
    Renew {
        /// The name of the node.
        name: String,
        #[command(flatten)]
        api: Api,
    },
    /// Restart nodes one after the other: each hands its volumes over, restarts its process, and is waited for until all copies of all
    /// volumes are in sync again.
    ///
    /// Use this command after an upgrade: a node that restarts runs the program that is then at the path by which it was started. Clients over the network are
    /// disconnected when their volume moves, and connect to another node; virtual machines of the node's host wait until it is back.
    #[command(after_help = "Examples:\n  \
        loadline node restart --all\n  \
        loadline node restart node-3 --leave-volumes")]
    Restart(Restart),
    /// Remove a node that is empty from the cluster. Its process ends.
    Remove {
        /// The name of the node.
        name: String,
        #[command(flatten)]
        api: Api,
    },
}

pub(crate) fn run(args: Args) -> Exit {
    let done = match args.command {
        Command::List { api } => api.get("/v1/status").map(|status: StatusView| match api.json {
            true => print_json(&status.nodes),
            false => {
                crate::san::print_nodes(&status.nodes);
                Exit::Done
            }
        }),
        Command::Drain { name, stop, wait } => drain(&name, stop, &wait),
        Command::Renew { name, api } => api
            .post(&format!("/v1/nodes/{}/renew", escaped(&name)), ())
            .map(|(): ()| api.done(&format!("the certificate of node {name} is renewed"))),
        Command::Maintenance(args) => maintenance::run(&args),
        Command::Restart(args) => restart::run(&args),
        Command::Remove { name, api } => api
            .delete(&format!("/v1/nodes/{}", escaped(&name)))
            .map(|(): ()| api.done(&format!("node {name} is removed from the cluster"))),
    };
    done.unwrap_or_else(|why| why.print_error())
}

fn drain(name: &str, stop: bool, wait: &Wait) -> Result<Exit, crate::cluster::client::Failed> {
    let (): () = wait.api.post(&format!("/v1/nodes/{}/drain", escaped(name)), Drain { stop })?;
    if stop {
        print_line!("node {name} is used again");
        return Ok(Exit::Done);
    }
    let done = moves::wait(wait, &format!("drain of node {name}"), |_, replica| replica.node == name)?;
    if done == Exit::Done {
        print_line!("next, to remove the node from the cluster: loadline node remove {name}");
    }
    Ok(done)
}
