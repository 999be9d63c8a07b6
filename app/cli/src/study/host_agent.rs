//! `loadline host-agent`: what a controller runs on a host that it reaches by SSH.

use loadline_fleet::run_host_agent;

use crate::output::print_error;
use crate::process::exit::Exit;

/// Start and end the workers of a fleet on this host, as the controller at the other end of standard input asks. The controller
/// starts this command by SSH; it is of no other use.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// What each line of the answers begins with.
    marker: String,
}

pub(crate) fn run(args: Args) -> Exit {
    match run_host_agent(&args.marker) {
        Ok(()) => Exit::Done,
        Err(error) => print_error(error.kind.into(), &error.message),
    }
}
