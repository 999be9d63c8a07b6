//! `loadline fleet`: workers of runs that are in progress, and machines that runs have left.

mod clean;
mod moving;

use crate::process::exit::Exit;

/// Act on the workers of a run that is in progress, and on what runs have left.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Move(moving::MoveArgs),
    Clean(clean::CleanArgs),
}

pub(crate) fn run(args: Args) -> Exit {
    match args.command {
        Command::Move(args) => moving::run(args),
        Command::Clean(args) => clean::run(args),
    }
}
