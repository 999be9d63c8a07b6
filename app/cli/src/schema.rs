//! `loadline schema`: JSON Schemas of what is written and read.

use crate::exit::Exit;
use crate::out;

/// Print the JSON Schema of a file.
///
/// An editor completes and checks a study with it: put `#:schema PATH` into the study's first line.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  loadline schema study > study.schema.json")]
pub(crate) struct Args {
    /// Of which file.
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
    /// `report.json`, which is also what `loadline run --json` prints without a baseline.
    Report,
    /// The messages that the page of a report is made of.
    Page,
    /// What `loadline analyze --json` prints.
    Analysis,
    /// What `loadline compare --json` prints.
    Compare,
    /// What `loadline run --baseline --json` prints.
    Gate,
    /// A result that `loadline run --baseline` keeps.
    Kept,
    /// What `loadline doctor --json` prints.
    Doctor,
}

pub(crate) fn run(args: Args) -> Exit {
    let schema = match args.what {
        What::Bench => loadline_study::json_schema::of::<loadline_load::result::BenchResult>(),
        What::Study => loadline_study::schema::study(),
        What::Run => loadline_study::schema::run(),
        What::Step => loadline_study::schema::step(),
        What::Second => loadline_study::schema::second(),
        What::Report => loadline_report::json::schema(),
        What::Page => loadline_report::page::schema(),
        What::Analysis => loadline_study::json_schema::of::<loadline_report::analysis::Analyses>(),
        What::Compare => loadline_study::json_schema::of::<loadline_report::compare::Comparison>(),
        What::Gate => loadline_study::json_schema::of::<loadline_report::baseline::Gate>(),
        What::Kept => loadline_study::json_schema::of::<loadline_report::baseline::Kept>(),
        What::Doctor => loadline_study::json_schema::of::<loadline_doctor::Report>(),
    };
    let text = loadline_study::json_schema::text(&schema);
    out::document(&text);
    Exit::Done
}

#[cfg(test)]
mod tests {
    /// To bring it up to date: `loadline schema bench > docs/reference/bench-result.schema.json`.
    #[test]
    fn the_published_schema_of_a_bench_result_is_current() {
        let published = include_str!("../../../docs/reference/bench-result.schema.json");
        let current = loadline_study::json_schema::text(&loadline_study::json_schema::of::<
            loadline_load::result::BenchResult,
        >());
        assert!(published == current, "docs/reference/bench-result.schema.json is out of date");
    }

    /// To bring it up to date: `loadline schema page > docs/reference/report-page.schema.json`. The page's own types are
    /// made of it when it is built.
    #[test]
    fn the_published_schema_of_the_page_is_current() {
        let published = include_str!("../../../docs/reference/report-page.schema.json");
        let current = loadline_study::json_schema::text(&loadline_report::page::schema());
        assert!(published == current, "docs/reference/report-page.schema.json is out of date");
    }
}
