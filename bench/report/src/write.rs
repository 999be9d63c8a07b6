//! All forms of a report, into the run's folder.

use std::fs;
use std::path::PathBuf;

use loadline_study::folder::sealed::write_durably;
use loadline_study::{RunFolder, StudyError};

use crate::compare::Comparison;
use crate::report::Report;
use crate::{csv, json, markdown, page};

/// Writes `report/report.html`, `report/steps.csv`, `report/report.json` and `report/report.md` into a run's folder, over
/// what is there. `baseline` is what the page compares with.
pub fn files(
    report: &Report,
    run: &RunFolder,
    baseline: Option<Comparison>,
) -> Result<Vec<PathBuf>, StudyError> {
    let folder = run.path().join("report");
    fs::create_dir_all(&folder)
        .map_err(|e| StudyError::failed(format!("cannot make {}: {e}", folder.display())))?;
    [
        ("report.html", page::document(run, report, baseline)?),
        ("steps.csv", csv::steps(report)),
        ("report.json", json::document(report)),
        ("report.md", markdown::page(report)),
    ]
    .into_iter()
    .map(|(name, text)| {
        let path = folder.join(name);
        write_durably(&path, text.as_bytes()).map(|()| path)
    })
    .collect()
}
