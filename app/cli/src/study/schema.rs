//! `loadline schema`: JSON Schemas of what is written and read.

use loadline_packed::unpack;

use crate::output;
use crate::process::exit::Exit;

/// Print the JSON Schema of a file.
///
/// With the schema an editor completes and checks a study: put `#:schema PATH` into the study's first line.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  loadline schema study > study.schema.json")]
pub(crate) struct Args {
    /// The file that the schema describes.
    #[arg(value_enum)]
    what: What,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum What {
    /// What `loadline bench --json` writes.
    Bench,
    /// A study file (TOML).
    Study,
    /// `run.json` of a run's folder.
    Run,
    /// `result.json` of a step.
    Step,
    /// A line of a step's `seconds.jsonl`.
    Second,
    /// `report.json`, which is also what `loadline run --json` prints.
    Report,
    /// The data that the page of a report shows.
    Page,
    /// What `loadline analyze --json` prints.
    Analysis,
    /// What `loadline compare --json` prints.
    Compare,
    /// What `loadline run --baseline NAME --json` prints.
    Gate,
    /// A kept result of a baseline.
    Kept,
    /// What `loadline doctor --json` prints.
    Doctor,
}

/// A published schema that the build script packed.
macro_rules! packed {
    ($name:literal) => {
        unpack(include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".schema.json")))
    };
}

impl What {
    /// The published schema.
    fn text(self) -> String {
        match self {
            What::Bench => packed!("bench-result"),
            What::Study => loadline_study::json_schema::published_study(),
            What::Run => packed!("run"),
            What::Step => packed!("step"),
            What::Second => packed!("second"),
            What::Report => packed!("report"),
            What::Page => packed!("report-page"),
            What::Analysis => packed!("analysis"),
            What::Compare => packed!("comparison"),
            What::Gate => packed!("gate"),
            What::Kept => packed!("kept"),
            What::Doctor => packed!("doctor"),
        }
    }
}

pub(crate) fn run(args: Args) -> Exit {
    output::document(&args.what.text());
    Exit::Done
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;
    use loadline_study::json_schema::{of, of_sealed, text};
    use loadline_study::schema;

    use super::*;

    /// The page's own types are made of its schema when it is built.
    #[test]
    fn each_published_schema_is_current() {
        let published = What::value_variants().iter().map(|what| {
            let (name, current) = match what {
                What::Bench => ("bench-result", of::<loadline_report::own::BenchDocument>()),
                What::Study => ("study", schema::study()),
                What::Run => ("run", schema::run()),
                What::Step => ("step", schema::step()),
                What::Second => ("second", schema::second()),
                What::Report => ("report", loadline_report::json::schema()),
                What::Page => ("report-page", loadline_report::page::schema()),
                What::Analysis => ("analysis", of::<loadline_report::analysis::Analyses>()),
                What::Compare => ("comparison", of::<loadline_report::compare::Comparison>()),
                What::Gate => ("gate", of::<loadline_report::baseline::Gate>()),
                What::Kept => ("kept", of_sealed::<loadline_report::baseline::KeptResult>()),
                What::Doctor => ("doctor", of::<loadline_doctor::DoctorReport>()),
            };
            let (file, current) = (format!("../../docs/reference/{name}.schema.json"), text(&current));
            assert_eq!(loadline_packed::is_current(env!("CARGO_MANIFEST_DIR"), &file, &current), Ok(()));
            (what.text(), current)
        });
        // All files are looked at before what the program carries, which is older if one was written just now.
        for (printed, current) in published.collect::<Vec<_>>() {
            assert!(
                printed == current,
                "the program carries another schema than is published: build it anew"
            );
        }
    }
}
