//! `loadline node`: nodes of a cluster, emptied and removed.

use loadline_san_node::node::manage::{Drain, StatusView};

use crate::cluster::client::{Api, escaped, print_json};
use crate::cluster::moves::{self, Wait};
use crate::output::say;
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
    /// Empty a node: its copies go to others, one of each volume at a time, and nothing new comes to it.
    ///
    /// Also for a node that will never come back: what it had is made again from the other copies. What is attached there
    /// stays attached.
    #[command(after_help = "Examples:\n  \
        loadline node drain node-3\n  \
        loadline node drain node-3 --stop")]
    Drain {
        /// Its name.
        name: String,
        /// It is not to be empty any more: what has not left stays, and new copies may come.
        #[arg(long)]
        stop: bool,
        #[command(flatten)]
        wait: Wait,
    },
    /// Remove a node that is empty from the cluster. Its process ends.
    Remove {
        /// Its name.
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
        Command::Remove { name, api } => api
            .delete(&format!("/v1/nodes/{}", escaped(&name)))
            .map(|(): ()| api.done(&format!("node {name} is not in the cluster any more"))),
    };
    done.unwrap_or_else(|why| why.complain())
}

fn drain(name: &str, stop: bool, wait: &Wait) -> Result<Exit, crate::cluster::client::Failed> {
    let (): () = wait.api.post(&format!("/v1/nodes/{}/drain", escaped(name)), Drain { stop })?;
    if stop {
        say!("node {name} is used again");
        return Ok(Exit::Done);
    }
    let done = moves::wait(wait, &format!("node {name} is emptied"), |_, replica| replica.node == name)?;
    if done == Exit::Done {
        say!("next, if it is to go for good: loadline node remove {name}");
    }
    Ok(done)
}
