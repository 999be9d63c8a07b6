//! Errors of virtual machines, by what the caller does next.

use thiserror::Error;

/// What kind of trouble it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// It cannot be done as asked, or this host lacks something: exit code 2.
    Usage,
    /// It was begun and failed: exit code 1.
    Failed,
    /// The same, and the next attempt should succeed.
    Again,
}

/// An error: one clear message, which says what, where and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct GuestError {
    /// What kind of trouble it is.
    pub kind: ErrorKind,
    /// What was attempted, on what, what happened, and what to do.
    pub message: String,
}

impl GuestError {
    /// Something cannot be done as asked.
    pub fn usage(message: impl Into<String>) -> GuestError {
        GuestError { kind: ErrorKind::Usage, message: message.into() }
    }

    /// Something failed.
    pub fn failed(message: impl Into<String>) -> GuestError {
        GuestError { kind: ErrorKind::Failed, message: message.into() }
    }
}
