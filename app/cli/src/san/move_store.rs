//! `loadline san move-store`.

use loadline_san_node::config::{self, url::StoreUrl};

use crate::output::text::counted;
use crate::output::{print_error, print_line};
use crate::process::exit::Exit;

/// Move the configuration of a cluster to a new store, while its nodes and volumes are in use.
///
/// The nodes use the new store within seconds, and write the new URL into their node.toml. If the command is interrupted,
/// nothing can be changed in the cluster until the command has run again.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  loadline san move-store /srv/loadline/cluster.db etcd://10.0.0.1,10.0.0.2,10.0.0.3"
)]
pub(super) struct MoveStore {
    /// The configuration store that the cluster uses.
    from: StoreUrl,
    /// The new configuration store, which must be empty. The nodes must reach it.
    to: StoreUrl,
}

pub(super) fn move_store(args: &MoveStore) -> Exit {
    match config::move_store(&args.from.clone().absolute(), &args.to.clone().absolute()) {
        Ok(keys) => {
            print_line!("the configuration ({}) is in {}", counted(keys as u64, "key"), args.to);
            print_line!("keep {} until every node has written the new URL into its node.toml", args.from);
            Exit::Done
        }
        Err(why) => print_error(Exit::Usage, &why.to_string()),
    }
}
