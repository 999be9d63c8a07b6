//! `loadline demo`: the built-in study, `studies/quick.toml`.

use std::path::PathBuf;

use crate::process::exit::Exit;
use crate::study::run;

/// The study.
const STUDY: &str = include_str!("../../../../studies/quick.toml");

/// Show what it is about, in some two minutes: a cluster of four nodes on this machine loses two, one after the other, and gets them back.
///
/// A fleet of workers loads the cluster and checks every block; then the report says what became of it, as tables and as a
/// page. It needs no root, some gigabytes of space for as long as it runs, and leaves nothing but the results.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  loadline demo\n  loadline demo --out /tmp/demo")]
pub(crate) struct Args {
    /// The run's folder, which is new or empty. Not given, runs/quick-DATE-TIME.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print every step, its length and the space it needs, and do nothing.
    #[arg(long)]
    plan: bool,
    /// Print the result as JSON, for programs, in place of the table.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Exit {
    run::run(run::Args::of_text(STUDY, args.out, args.plan, args.json))
}
