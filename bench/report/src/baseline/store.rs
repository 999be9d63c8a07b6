//! Where results are kept. Every store holds the same files: a folder for each baseline, with a file for each kept
//! result and one that names the pinned result. One file implements each store, and all are held to the same tests.

use std::collections::BTreeSet;

use loadline_study::StudyError;

use crate::baseline::kept::{PINNED_FILE, is_kept};
use crate::baseline::name::BaselineName;

/// When a result that is added becomes the pinned one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pin {
    /// If nothing else is kept under this name at that moment.
    IfFirst,
    /// In any case.
    Always,
}

/// A result that is to be kept.
#[derive(Debug, Clone)]
pub struct Addition {
    /// The name of the result's file in the store.
    pub file: String,
    /// The text of its file.
    pub text: String,
    /// When it becomes the pinned one.
    pub pin: Pin,
}

/// What became of an addition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Added {
    /// Whether the result was not kept before.
    pub is_new: bool,
    /// Whether it became the pinned one.
    pub is_pinned: bool,
}

/// The result that an addition pins, given the files that are kept before it; `None` if what is pinned stays so.
///
/// Where results are kept and none is pinned (a crash between the two files of a first result, or the file that says so
/// was moved away), the oldest one was compared with until now: it is pinned, so that no later addition changes that.
pub(super) fn pins(files: &BTreeSet<String>, addition: &Addition) -> Option<String> {
    let oldest = files.iter().find(|file| is_kept(file));
    match (addition.pin, files.contains(PINNED_FILE), oldest) {
        (Pin::Always, _, _) | (Pin::IfFirst, false, None) => Some(addition.file.clone()),
        (Pin::IfFirst, false, Some(oldest)) => Some(oldest.clone()),
        (Pin::IfFirst, true, _) => None,
    }
}

/// Keeps results.
pub trait BaselineStore {
    /// Checks, before anything is measured, that results can be read, and if `writes` that one can be added. It changes
    /// no kept result. The error is one of usage.
    fn check(&self, baseline: &BaselineName, writes: bool) -> Result<(), StudyError>;

    /// The files that are kept under this name; none if nothing was ever kept.
    fn files(&self, baseline: &BaselineName) -> Result<BTreeSet<String>, StudyError>;

    /// The text of one of these files.
    fn read(&self, baseline: &BaselineName, file: &str) -> Result<String, StudyError>;

    /// Adds a result, as a whole or not at all. If results are kept and none is pinned, the oldest of them is pinned. A file that is there stays as it is; another process that adds a result
    /// at the same moment loses nothing.
    fn add(&self, baseline: &BaselineName, addition: &Addition) -> Result<Added, StudyError>;

    /// What messages call a file of a baseline.
    fn place(&self, baseline: &BaselineName, file: &str) -> String;
}
