//! `loadline san token`.

use std::path::PathBuf;

use loadline_base::units::TimeSpan;
use loadline_san_node::cluster;
use loadline_san_node::settings::NodeSettings;

use super::access::{self, LEAST_VALID};
use crate::output::{document, print_error};
use crate::process::exit::Exit;

/// Make a token by which one more node joins the cluster. The command runs on the host of a node.
///
/// Whoever has the token and reaches the configuration store can add a node until the token is used or expires. Treat it
/// like a password.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  \
    loadline san token --config /srv/loadline/node-1/node.toml --valid 1h --out token\n  \
    loadline san join etcd://10.0.0.1,10.0.0.2,10.0.0.3 --name node-2 --folder /srv/loadline --address 10.0.0.2 --token-file token")]
pub(super) struct Token {
    /// The node.toml of the node of this host.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// How long the token is valid.
    #[arg(long, value_name = "TIME", default_value = "1h")]
    valid: TimeSpan,
    /// Write the token to this file, which only its owner can read. The file must not exist. [default: print the token]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub(super) fn token(args: &Token) -> Exit {
    let settings = match NodeSettings::read(&args.config) {
        Ok(settings) => settings,
        Err(why) => return print_error(Exit::Usage, &why.to_string()),
    };
    if args.valid.0 < LEAST_VALID {
        return print_error(Exit::Usage, "--valid: give at least 1s");
    }
    if let Some(out) = args.out.as_ref().filter(|out| out.symlink_metadata().is_ok()) {
        return print_error(
            Exit::Usage,
            &format!("{}: it exists already: choose another name", out.display()),
        );
    }
    let token = match cluster::invite(&settings, args.valid.0) {
        Ok(token) => token.to_string(),
        Err(why) => return print_error(Exit::Usage, &why.to_string()),
    };
    let Some(out) = &args.out else {
        document(&token);
        return Exit::Done;
    };
    match access::write(out, &format!("{token}\n")) {
        Ok(()) => Exit::Done,
        Err(why) => print_error(Exit::Failed, &format!("{}: {why}", out.display())),
    }
}
