//! What can go wrong with a target.

use std::fmt;
use std::path::Path;

use loadline_cgroup::GroupError;
pub use loadline_load::error::ErrorKind;

/// Why something could not be done to a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetError {
    /// What kind of error: it decides the exit code.
    pub kind: ErrorKind,
    /// What was attempted, on what, and what to do.
    pub message: String,
}

impl TargetError {
    /// It cannot be done as asked.
    pub fn usage(message: impl Into<String>) -> TargetError {
        TargetError { kind: ErrorKind::Usage, message: message.into() }
    }

    /// It was begun and failed.
    pub fn failed(message: impl Into<String>) -> TargetError {
        TargetError { kind: ErrorKind::Failed, message: message.into() }
    }

    /// It was stopped.
    pub(crate) fn interrupted() -> TargetError {
        TargetError { kind: ErrorKind::Interrupted, message: "interrupted".into() }
    }

    pub(crate) fn io(what: &str, path: &Path, error: &std::io::Error) -> TargetError {
        TargetError::failed(format!("cannot {what} {}: {error}", path.display()))
    }
}

impl fmt::Display for TargetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for TargetError {}

impl From<GroupError> for TargetError {
    fn from(error: GroupError) -> TargetError {
        match error {
            GroupError::Usage(message) => TargetError::usage(message),
            GroupError::Failed(message) => TargetError::failed(message),
        }
    }
}
