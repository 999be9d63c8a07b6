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
    kind: SchemaKind,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum SchemaKind {
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

impl SchemaKind {
    /// The published schema.
    fn text(self) -> String {
        match self {
            SchemaKind::Bench => packed!("bench-result"),
            SchemaKind::Study => loadline_study::json_schema::published_study(),
            SchemaKind::Run => packed!("run"),
            SchemaKind::Step => packed!("step"),
            SchemaKind::Second => packed!("second"),
            SchemaKind::Report => packed!("report"),
            SchemaKind::Page => packed!("report-page"),
            SchemaKind::Analysis => packed!("analysis"),
            SchemaKind::Compare => packed!("comparison"),
            SchemaKind::Gate => packed!("gate"),
            SchemaKind::Kept => packed!("kept"),
            SchemaKind::Doctor => packed!("doctor"),
        }
    }
}

pub(crate) fn run(args: Args) -> Exit {
    output::document(&args.kind.text());
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
        let published = SchemaKind::value_variants().iter().map(|kind| {
            let (name, current) = match kind {
                SchemaKind::Bench => ("bench-result", of::<loadline_report::own::BenchDocument>()),
                SchemaKind::Study => ("study", schema::study()),
                SchemaKind::Run => ("run", schema::run()),
                SchemaKind::Step => ("step", schema::step()),
                SchemaKind::Second => ("second", schema::second()),
                SchemaKind::Report => ("report", loadline_report::json::schema()),
                SchemaKind::Page => ("report-page", loadline_report::page::schema()),
                SchemaKind::Analysis => ("analysis", of::<loadline_report::analysis::Analyses>()),
                SchemaKind::Compare => ("comparison", of::<loadline_report::compare::Comparison>()),
                SchemaKind::Gate => ("gate", of::<loadline_report::baseline::Gate>()),
                SchemaKind::Kept => ("kept", of_sealed::<loadline_report::baseline::KeptResult>()),
                SchemaKind::Doctor => ("doctor", of::<loadline_doctor::DoctorReport>()),
            };
            let (file, current) = (format!("../../docs/reference/{name}.schema.json"), text(&current));
            assert_eq!(loadline_packed::is_current(env!("CARGO_MANIFEST_DIR"), &file, &current), Ok(()));
            (kind.text(), current)
        });
        // All files are read before the copies in the program, which are older if a file was written just now.
        for (printed, current) in published.collect::<Vec<_>>() {
            assert!(
                printed == current,
                "the program carries another schema than is published: build it anew"
            );
        }
    }
}
