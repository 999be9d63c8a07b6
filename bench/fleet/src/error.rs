//! Errors of a fleet, by what the caller does next.

use loadline_cgroup::GroupError;
use loadline_load::LoadError;
pub use loadline_load::error::ErrorKind;
use thiserror::Error;

/// An error of the fleet: one clear message, which says what, where and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct FleetError {
    /// What kind of trouble it is; it decides the exit code.
    pub kind: ErrorKind,
    /// What was attempted, on what, what happened, and what to do.
    pub message: String,
}

impl FleetError {
    /// Something cannot be done as asked.
    pub fn usage(message: impl Into<String>) -> FleetError {
        FleetError { kind: ErrorKind::Usage, message: message.into() }
    }

    /// Something failed.
    pub fn failed(message: impl Into<String>) -> FleetError {
        FleetError { kind: ErrorKind::Failed, message: message.into() }
    }

    /// The operation was interrupted on request.
    pub fn interrupted() -> FleetError {
        FleetError { kind: ErrorKind::Interrupted, message: "stopped before there was a result".into() }
    }
}

impl From<LoadError> for FleetError {
    fn from(error: LoadError) -> FleetError {
        FleetError { kind: error.kind, message: error.message }
    }
}

impl From<GroupError> for FleetError {
    fn from(error: GroupError) -> FleetError {
        match error {
            GroupError::Usage(message) => FleetError::usage(message),
            GroupError::Failed(message) => FleetError::failed(message),
        }
    }
}
