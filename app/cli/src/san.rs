//! `loadline san`: clusters of the virtual SAN, and what lies on their devices.

mod access;
mod dev;
mod init;
mod inspect;
mod join;
mod move_store;
mod probe;
mod protection;
mod reserve;
mod serve;
mod service;
mod status;
mod support;
mod token;
mod trace;

use crate::process::exit::Exit;

pub(crate) use status::{copies_in_sync, health, print_nodes, print_volumes};

/// The virtual SAN: make clusters, run their nodes, check and print the contents of devices.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Init(init::Init),
    Join(join::Join),
    Token(token::Token),
    Access(access::Args),
    Serve(serve::Serve),
    Service(service::Service),
    Status(status::Status),
    Support(support::Support),
    Trace(trace::Trace),
    Reserve(reserve::Reserving),
    MoveStore(move_store::MoveStore),
    Dev(dev::Dev),
    /// Check a device that no node has open: the device's table, and the log, the slots and every block of each
    /// replica.
    ///
    /// The command writes nothing. Exit code 1 if a replica is damaged, or a block does not match its checksum.
    #[command(after_help = "Examples:\n  \
        loadline san verify /dev/nvme1n1\n  \
        loadline san verify /dev/nvme1n1 --capacity /dev/sdb --replica 7 --json")]
    Verify(inspect::Device),
    /// Print the contents of a device that no node has open: the device's table, and the metadata, the log and the
    /// extents of each replica. The command writes nothing.
    #[command(after_help = "Examples:\n  \
        loadline san dump /dev/nvme1n1 | less\n  \
        loadline san dump /dev/nvme1n1 --replica 7 --json > replica-7.json")]
    Dump(inspect::Device),
}

pub(crate) fn run(args: Args) -> Exit {
    match args.command {
        Command::Init(args) => init::init(&args),
        Command::Join(args) => join::join(&args),
        Command::Token(args) => token::token(&args),
        Command::Access(args) => access::access(&args),
        Command::Serve(args) => serve::serve(&args),
        Command::Service(args) => service::service(&args),
        Command::Status(args) => status::status(&args),
        Command::Support(args) => support::support(&args),
        Command::Trace(args) => trace::trace(&args),
        Command::Reserve(args) => reserve::reserve(&args),
        Command::MoveStore(args) => move_store::move_store(&args),
        Command::Dev(args) => dev::dev(&args),
        Command::Verify(device) => inspect::report(&device, false),
        Command::Dump(device) => inspect::report(&device, true),
    }
}
