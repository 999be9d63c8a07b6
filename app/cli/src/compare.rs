//! `loadline compare`: two runs, and which loads became faster or slower.

mod file;

use std::path::{Path, PathBuf};

use loadline_report::compare::{self, Comparison, Outcome, Run, junit, markdown, text};
use loadline_study::StudyError;

use crate::exit::Exit;
use crate::out::{self, complain, tell};
use file::Place;

/// Compare two runs: say of each load whether B is faster or slower than A, or that no difference is shown.
///
/// A is the baseline, B the candidate. Loads are matched by name and compared over whole repeats, with 95 % confidence
/// intervals, which take four repeats a side: a difference within the noise is never called one. IOPS decide; of a load
/// with a rate, p99 does, or the mean where a repeat has too few I/Os for a p99.
///
/// Differences of configuration come first: the study, the fleet, its hosts and their disks. Both runs are only read.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    loadline compare runs/before runs/after\n  \
    loadline compare runs/main runs/branch --junit compare.xml --markdown compare.md\n  \
    loadline compare runs/main runs/branch --allow-slower 3    3 % slower is not worth a failed build\n  \
    loadline compare runs/main runs/branch --json | jq '.loads[] | [.label, .verdict]'\n\n\
    Exit codes: 0 no load is slower; 99 a load is slower; 3 none is, but that is doubtful: the runs are\n\
    of different versions, on more or fewer disks, or unfinished; or loads are doubtful, not the same, on\n\
    one side only, have too few repeats to tell, or vary too much to show the allowed slowness; 2 usage;\n\
    1 a file could not be written. The first that applies of 2, 1, 99, 3.")]
pub(crate) struct Args {
    /// Folder of the run that is the baseline.
    #[arg(value_name = "A")]
    a: PathBuf,
    /// Folder of the run that is the candidate.
    #[arg(value_name = "B")]
    b: PathBuf,
    /// A load fails the comparison only if its whole interval is more than so many percent slower.
    #[arg(long, value_name = "PERCENT", default_value = "0", value_parser = percent)]
    allow_slower: f64,
    /// Print the comparison as JSON, for programs, in place of the table.
    #[arg(long)]
    json: bool,
    /// Write JUnit XML there: a test case for each load. An earlier such file is written over, nothing else.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Write a page of Markdown there, such as a CI's summary. An earlier such file is written over, nothing else.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

pub(crate) fn run(args: Args) -> Exit {
    let outcome = places(&args).and_then(|places| Ok((places, compared(&args)?)));
    let (places, comparison) = match outcome {
        Ok(outcome) => outcome,
        Err(error) => return complain(error.kind.into(), &error.message),
    };
    match args.json {
        true => out::document(&compare::document(&comparison)),
        false => out::write(text::page(&comparison).as_bytes()),
    }
    let mut exit = match comparison.outcome() {
        Outcome::Fine => Exit::Done,
        Outcome::Doubtful => Exit::Findings,
        Outcome::Slower => Exit::Missed,
    };
    for (place, page) in places {
        match place.write(&page(&comparison)) {
            Ok(()) => tell!("wrote {place}"),
            Err(error) => exit = complain(Exit::Failed, &error.message),
        }
    }
    exit
}

/// What a file is made of.
type Page = fn(&Comparison) -> String;

/// Where files go, looked at before anything is read.
fn places(args: &Args) -> Result<Vec<(Place, Page)>, StudyError> {
    let asked: [(&str, &Option<PathBuf>, &'static str, Page); 2] = [
        ("--junit", &args.junit, junit::HEAD, junit::document),
        ("--markdown", &args.markdown, markdown::HEAD, markdown::page),
    ];
    let mut places: Vec<(Place, Page)> = Vec::new();
    for (option, path, head, page) in asked {
        let Some(path) = path else { continue };
        let place = Place::check(option, path, head)?;
        if places.iter().any(|(other, _)| other.is_same(&place)) {
            return Err(StudyError::usage(format!(
                "{option} {place} is named twice: give each its own file"
            )));
        }
        places.push((place, page));
    }
    Ok(places)
}

fn compared(args: &Args) -> Result<Comparison, StudyError> {
    let open = |name: &str, path: &Path| {
        Run::open(path).map_err(|e| StudyError { message: format!("{name}: {}", e.message), ..e })
    };
    Comparison::of(&open("A", &args.a)?, &open("B", &args.b)?, args.allow_slower)
}

fn percent(text: &str) -> Result<f64, String> {
    let number: Result<f64, _> = text.trim().trim_end_matches('%').trim().parse();
    match number {
        Ok(percent) if (0.0..=1000.0).contains(&percent) => Ok(percent),
        _ => Err("give percent from 0 to 1000, such as 5".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_is_a_number_that_makes_sense() {
        assert_eq!(percent("5"), Ok(5.0));
        assert_eq!(percent("2.5%"), Ok(2.5));
        for text in ["", "-1", "nan", "inf", "five", "1001"] {
            assert!(percent(text).is_err(), "{text}");
        }
    }
}
