//! `loadline compare`: two runs, and which loads became faster or slower.

mod file;
pub(crate) mod judge;

use std::path::{Path, PathBuf};

use loadline_report::compare::{self, Comparison, Run, junit, markdown, text};
use loadline_study::StudyError;

use crate::output::{self, complain};
use crate::process::exit::Exit;
use judge::{JudgeArgs, exit_of, write};

/// Compare two runs: say of each load whether B is faster or slower than A, or that no difference is shown.
///
/// A is the baseline, B the candidate. Loads are matched by name and compared over whole repeats, with 95 % confidence
/// intervals, which take four repeats a side: of loads that did not change, about 5 % are called faster or slower. IOPS decide; of a load
/// with a rate, p99 does, or the mean where a repeat has too few I/Os for a p99.
///
/// Differences of configuration come first: the study, the fleet, its hosts and their disks. Both runs are only read.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    loadline compare runs/before runs/after\n  \
    loadline compare runs/main runs/branch --junit compare.xml --markdown compare.md\n  \
    loadline compare runs/main runs/branch --allow-slower 3    3 % slower is not worth a failed build\n  \
    loadline compare runs/main runs/branch --json | jq '.loads[] | [.label, .verdict]'\n\n\
    Exit codes: 0 no load is shown to be slower; 99 a load is slower; 3 none is, but that is doubtful:\n\
    the runs are of different versions, on other CPUs, on more or fewer disks, measured in another way, or\n\
    unfinished; or loads are doubtful, not the same, on one side only, have too few repeats to tell, or may\n\
    be slower by more than is allowed; 2 usage; 1 a file could not be written. The first that applies of\n\
    2, 1, 99, 3.")]
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
        Err(error) => return complain(error.kind.into(), &error.message),
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
