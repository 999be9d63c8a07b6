//! `loadline compare`: two runs, and which loads became faster or slower.

mod file;
pub(crate) mod judge;

use std::path::{Path, PathBuf};

use loadline_report::compare::{self, Comparison, Run, junit, markdown, text};
use loadline_study::StudyError;

use crate::output::{self, print_error};
use crate::process::exit::Exit;
use judge::{JudgeArgs, exit_of, write};

/// Compare two runs: report for each load that B is faster than A, that B is slower, or that no difference is shown.
///
/// A is the baseline, B the candidate. Loads are matched by name and compared over whole repeats, with 95 % confidence
/// intervals, which need at least four repeats of each run. About 5 % of the loads that did not change are called
/// faster or slower. IOPS decide. For a load with a rate, p99 decides, or the mean if a repeat has too few I/Os for a
/// p99.
///
/// The output begins with the differences of configuration: the study, the fleet, its hosts and their disks. The
/// command only reads both runs.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    loadline compare runs/before runs/after\n  \
    loadline compare runs/main runs/branch --junit compare.xml --markdown compare.md\n  \
    loadline compare runs/main runs/branch --allow-slower 3    3 % slower is not worth a failed build\n  \
    loadline compare runs/main runs/branch --json | jq '.loads[] | [.label, .verdict]'\n\n\
    Exit codes: 0 no load is shown to be slower; 99 a load is slower; 3 no load is shown to be slower, but\n\
    the comparison is doubtful: the runs have different versions, CPUs, numbers of disks or ways of\n\
    measuring, or are unfinished; or a load is doubtful, differs between the runs, is in one run only, has\n\
    too few repeats, or may be slower by more than --allow-slower allows; 2 usage; 1 a file could not be\n\
    written. If several codes apply, the exit code is the first of 2, 1, 99, 3.")]
pub(crate) struct Args {
    /// Folder of the run that is the baseline.
    #[arg(value_name = "A")]
    a: PathBuf,
    /// Folder of the run that is the candidate.
    #[arg(value_name = "B")]
    b: PathBuf,
    /// Print the comparison as JSON, for programs, in place of the table.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    judge: JudgeArgs,
}

pub(crate) fn run(args: Args) -> Exit {
    let pages = args.judge.pages((junit::HEAD, junit::document), (markdown::HEAD, markdown::page));
    let outcome = pages.and_then(|pages| Ok((pages, compared(&args)?)));
    let (pages, comparison) = match outcome {
        Ok(outcome) => outcome,
        Err(error) => return print_error(error.kind.into(), &error.message),
    };
    match args.json {
        true => output::document(&compare::document(&comparison)),
        false => output::write(text::page(&comparison).as_bytes()),
    }
    match write(&pages, &comparison) {
        Ok(()) => exit_of(comparison.outcome()),
        Err(exit) => exit,
    }
}

fn compared(args: &Args) -> Result<Comparison, StudyError> {
    let open = |name: &str, path: &Path| {
        Run::open(path).map_err(|e| StudyError { message: format!("{name}: {}", e.message), ..e })
    };
    Comparison::of(&open("A", &args.a)?, &open("B", &args.b)?, args.judge.allowed())
}
