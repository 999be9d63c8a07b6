//! What the tests of all formats share.
#![allow(dead_code)]

use std::path::{Path, PathBuf};

use loadline_import::{ImportError, Imported, Options, read};
use loadline_measure::audit::{FindingKind, Severity};

pub(crate) fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

pub(crate) fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(data().join(name)).unwrap()
}

pub(crate) fn sample(name: &str) -> Imported {
    text(name, &bytes(name)).unwrap()
}

pub(crate) fn text(name: &str, bytes: &[u8]) -> Result<Imported, ImportError> {
    read(Path::new(name), bytes, &Options::default())
}

pub(crate) fn error(name: &str, content: &str) -> ImportError {
    text(name, content.as_bytes()).unwrap_err()
}

/// The findings of a file: kind and severity of each finding.
pub(crate) fn findings(imported: &Imported) -> Vec<(FindingKind, Severity)> {
    imported.findings.iter().map(|finding| (finding.kind, finding.severity)).collect()
}

#[track_caller]
pub(crate) fn near(found: f64, expected: f64) {
    assert!((found - expected).abs() <= 1e-9 * expected.abs(), "{found} is not {expected}");
}
