//! All forms of a report, into the run's folder.

use std::fs;
use std::path::{Path, PathBuf};

use loadline_study::StudyError;
use loadline_study::folder::sealed::write_durably;

use crate::report::Report;
use crate::{csv, json, markdown};

/// Writes `report/steps.csv`, `report/report.json` and `report/report.md` into a run's folder, over what is there.
pub fn files(report: &Report, run: &Path) -> Result<Vec<PathBuf>, StudyError> {
    let folder = run.join("report");
    fs::create_dir_all(&folder)
        .map_err(|e| StudyError::failed(format!("cannot make {}: {e}", folder.display())))?;
    [
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
