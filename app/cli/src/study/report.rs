//! `loadline report`: a run's folder, finished or not, as a table and as files.

use std::path::{Path, PathBuf};

use loadline_report::compare::text as compare_text;
use loadline_report::compare::{Comparison, Run};
use loadline_report::{
    Report, capacity, faults, findings, fio, goals, json, orientation, picture, table, verdict, write,
};
use loadline_study::{RunFolder, StudyError};

use crate::output::{self, print_error, print_line};
use crate::process::exit::Exit;

/// Print what a run measured, and write it as a page, CSV, JSON and Markdown.
///
/// The files go to `report/` in the run's folder: `report.html`, one offline page with charts, `steps.csv`,
/// `report.json` and `report.md`. For a run that is not finished, the report shows the complete steps and lists the
/// missing ones. Exit code 0, whatever the exit code of the run was; 3 if the result of a step is damaged (the report
/// names that step and shows the others); 2 if the folder cannot be read.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  loadline report runs/files-20260131-120000\n  \
    loadline report runs/files-20260131-120000 --baseline runs/files-20260130-120000\n  \
    loadline report runs/files-20260131-120000 --format fio --step 3 > step.json")]
pub(crate) struct Args {
    /// The run's folder.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Print the report as JSON, for programs, in place of the table.
    #[arg(long)]
    json: bool,
    /// Write no files: only print.
    #[arg(long)]
    no_files: bool,
    /// Report which loads became faster or slower than in this earlier run, on the terminal and on the page.
    #[arg(long, value_name = "DIR")]
    baseline: Option<PathBuf>,
    /// Print one step in another tool's format, in place of the table, and write no files.
    #[arg(long, value_enum, conflicts_with_all = ["json", "baseline"])]
    format: Option<Format>,
    /// The number of the step that --format prints.
    #[arg(long, value_name = "N", requires = "format")]
    step: Option<u32>,
}

/// What a step is printed as.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Format {
    /// As fio's JSON+, for tools that plot it: percentiles and bins of lat_ns are of response times.
    Fio,
}

pub(crate) fn run(args: Args) -> Exit {
    if let Some(Format::Fio) = args.format {
        let document = RunFolder::open(&args.folder).and_then(|folder| {
            let result = fio::step(&folder, args.step)?;
            fio::document(&folder.manifest.study, &result)
        });
        return match document {
            Ok(document) => {
                output::document(&document.text());
                Exit::Done
            }
            Err(error) => print_error(error.kind.into(), &error.message),
        };
    }
    let outcome = RunFolder::open(&args.folder).and_then(|folder| {
        let report = Report::of(&folder)?;
        let baseline =
            args.baseline.as_deref().map(|baseline| compared(baseline, &args.folder)).transpose()?;
        let compared = baseline.as_ref().map(compare_text::page);
        let files = if args.no_files { Vec::new() } else { write::files(&report, &folder, baseline)? };
        Ok((report, compared, files))
    });
    let (report, compared, files) = match outcome {
        Ok(outcome) => outcome,
        Err(error) => return print_error(error.kind.into(), &error.message),
    };
    let exit = if report.unreadable > 0 { Exit::Findings } else { Exit::Done };
    if args.json {
        output::document(&json::document(&report));
        return exit;
    }
    print(&report);
    if let Some(compared) = compared {
        output::write(format!("\ncompared with the run that --baseline names (A):\n\n{compared}").as_bytes());
    }
    if !files.is_empty() {
        print_line!();
    }
    files.iter().for_each(|path| print_line!("wrote {}", path.display()));
    exit
}

/// What became of an earlier run's loads.
fn compared(baseline: &Path, run: &Path) -> Result<Comparison, StudyError> {
    let before =
        Run::open(baseline).map_err(|e| StudyError { message: format!("--baseline: {}", e.message), ..e })?;
    Comparison::of(&before, &Run::open(run)?, 0.0)
}

/// Prints the tables and the findings on standard output.
pub(crate) fn print(report: &Report) {
    // The answer comes first.
    if let Some(asks) = &report.asks {
        print_line!("asked: {asks}");
    }
    output::write(format!("{}\n", report.tiles.text()).as_bytes());
    output::write(table::steps(report).as_bytes());
    let names = table::names(report);
    if !names.is_empty() {
        output::write(format!("\n{names}").as_bytes());
    }
    let loads = table::loads(report);
    if !loads.is_empty() {
        output::write(format!("\n{loads}").as_bytes());
    }
    let capacity = capacity::text(&report.capacity);
    if !capacity.is_empty() {
        output::write(format!("\n{capacity}").as_bytes());
    }
    let faults = faults::text(&report.faults);
    if !faults.is_empty() {
        output::write(format!("\n{faults}").as_bytes());
    }
    let verdict = verdict::text(&report.verdict);
    if !verdict.is_empty() {
        output::write(format!("\n{verdict}").as_bytes());
    }
    let pictures = picture::of_report(report);
    if !pictures.is_empty() {
        output::write(format!("\n{pictures}").as_bytes());
    }
    let goals = goals::text(report);
    if !goals.is_empty() {
        output::write(format!("\n{goals}").as_bytes());
    }
    let verified = table::verified(report);
    if !verified.is_empty() {
        output::write(format!("\n{verified}").as_bytes());
    }
    let sentences = findings::sentences(report);
    if !sentences.is_empty() {
        print_line!();
    }
    sentences.iter().for_each(|sentence| print_line!("{sentence}"));
    // Last: it is no finding.
    let orientation = orientation::text(&report.orientation);
    if !orientation.is_empty() {
        output::write(format!("\n{orientation}").as_bytes());
    }
}
