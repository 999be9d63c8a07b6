//! `loadline demo`: the built-in study, `studies/quick.toml`.

use std::path::PathBuf;

use crate::process::exit::Exit;
use crate::study::run;

/// The study.
const STUDY: &str = include_str!("../../../../studies/quick.toml");

/// Demonstrate Loadline in about two minutes: a cluster of four nodes on this machine loses two nodes, one after the other,
/// and gets both back.
///
/// A fleet of workers loads the cluster and checks every block. Then the report shows, as tables and as a page, how
/// the cluster performed. The demo needs no root, needs some gigabytes of space while it runs, and leaves only the
/// results.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  loadline demo\n  loadline demo --out /tmp/demo")]
pub(crate) struct Args {
    /// The run's folder. It must be new or empty. [default: runs/quick-DATE-TIME]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print every step, its length and the space that it needs, and exit without measuring.
    #[arg(long)]
    plan: bool,
    /// Print the result as JSON, for programs, in place of the table.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Exit {
    run::run(run::Args::of_text(STUDY, args.out, args.plan, args.json))
}
