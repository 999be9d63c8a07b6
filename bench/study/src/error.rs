//! Errors of a study, by what the caller does next.

use std::path::Path;

use loadline_load::error::ErrorKind;
use thiserror::Error;

/// An error of a study: one clear message, which says what, where and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct StudyError {
    /// What kind of trouble it is, and so which exit code.
    pub kind: ErrorKind,
    /// What was attempted, on what, what happened, and what to do.
    pub message: String,
}

impl StudyError {
    /// Something cannot be done as asked: nothing was begun.
    pub fn usage(message: impl Into<String>) -> StudyError {
        StudyError { kind: ErrorKind::Usage, message: message.into() }
    }

    /// Something was begun and failed.
    pub fn failed(message: impl Into<String>) -> StudyError {
        StudyError { kind: ErrorKind::Failed, message: message.into() }
    }

    /// The run was interrupted on request.
    pub fn interrupted() -> StudyError {
        StudyError { kind: ErrorKind::Interrupted, message: "stopped before it was done".into() }
    }

    /// `action` on `path` did not work.
    pub(crate) fn io(action: &str, path: &Path, error: &std::io::Error) -> StudyError {
        StudyError::failed(format!("cannot {action} {}: {error}", path.display()))
    }
}

impl From<loadline_load::LoadError> for StudyError {
    fn from(error: loadline_load::LoadError) -> StudyError {
        StudyError { kind: error.kind, message: error.message }
    }
}
