//! The `loadline` command.

mod exit;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::exit::Exit;

/// Measures block storage with a fleet of workers.
#[derive(Parser)]
#[command(version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {}

fn main() -> ExitCode {
    // clap prints usage errors itself and exits with 2, which is our code for them.
    let cli = Cli::parse();
    let exit: Exit = match cli.command {};
    #[allow(unreachable_code)]
    exit.into()
}
