//! Errors, distinguished by what the caller does next.

use thiserror::Error;

/// What kind of trouble it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// What was asked cannot be done as asked: usage or configuration, exit code 2.
    Usage,
    /// It was begun and failed: exit code 1.
    Failed,
    /// A stated limit was passed before anything was measured: exit code 99.
    Limit,
    /// It was stopped before it had a result: exit code 130.
    Interrupted,
}

/// An error of the load generator: one clear message, which says what, where and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct LoadError {
    /// What kind of trouble it is.
    pub kind: ErrorKind,
    /// What was attempted, on what, what happened, and what to do.
    pub message: String,
}

impl LoadError {
    /// Something cannot be done as asked.
    pub fn usage(message: impl Into<String>) -> LoadError {
        LoadError { kind: ErrorKind::Usage, message: message.into() }
    }

    /// Something failed.
    pub fn failed(message: impl Into<String>) -> LoadError {
        LoadError { kind: ErrorKind::Failed, message: message.into() }
    }

    /// A stated limit was passed.
    pub fn limit(message: impl Into<String>) -> LoadError {
        LoadError { kind: ErrorKind::Limit, message: message.into() }
    }

    /// It was stopped.
    pub fn interrupted() -> LoadError {
        LoadError { kind: ErrorKind::Interrupted, message: "stopped before there was a result".into() }
    }
}
