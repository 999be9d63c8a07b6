//! `loadline san token`.

use std::path::PathBuf;

use loadline_base::units::TimeSpan;
use loadline_san_node::cluster;
use loadline_san_node::settings::NodeSettings;

use crate::output::{document, print_error};
use crate::process::exit::Exit;

/// Make a token by which one more node joins the cluster. The command runs on the host of a node.
///
/// Whoever has the token and reaches the configuration store can add a node until the token is used or expires. Treat it
/// like a password.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  \
    loadline san token --config /srv/loadline/node-1/node.toml --valid 1h > token\n  \
    loadline san join etcd://10.0.0.1,10.0.0.2,10.0.0.3 --name node-2 --folder /srv/loadline --address 10.0.0.2 --token-file token")]
pub(super) struct Token {
    /// The node.toml of the node of this host.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// How long the token is valid.
    #[arg(long, value_name = "TIME", default_value = "1h")]
    valid: TimeSpan,
}

pub(super) fn token(args: &Token) -> Exit {
    let settings = match NodeSettings::read(&args.config) {
        Ok(settings) => settings,
        Err(why) => return print_error(Exit::Usage, &why.to_string()),
    };
    match cluster::invite(&settings, args.valid.0) {
        Ok(token) => {
            document(&token.to_string());
            Exit::Done
        }
        Err(why) => print_error(Exit::Usage, &why.to_string()),
    }
}
