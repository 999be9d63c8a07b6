//! Errors of this crate, by what the caller does next.

use thiserror::Error;

/// What kind of trouble it is; it decides the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The options are wrong, or the cluster refuses them: a person has to change one of the two.
    Usage,
    /// Something failed.
    Failed,
    /// It was stopped on request.
    Interrupted,
}

/// An error: one clear message, which says what, where and what to do. No message contains the secret of a token.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct ProxmoxError {
    /// What kind of trouble it is.
    pub kind: ErrorKind,
    /// What was attempted, on what, what happened, and what to do.
    pub message: String,
}

impl ProxmoxError {
    /// Something cannot be done as asked.
    pub fn usage(message: impl Into<String>) -> ProxmoxError {
        ProxmoxError { kind: ErrorKind::Usage, message: message.into() }
    }

    /// Something failed.
    pub fn failed(message: impl Into<String>) -> ProxmoxError {
        ProxmoxError { kind: ErrorKind::Failed, message: message.into() }
    }

    /// It was stopped on request.
    pub fn interrupted() -> ProxmoxError {
        ProxmoxError {
            kind: ErrorKind::Interrupted,
            message: "stopped before all machines were there".into(),
        }
    }

    /// The same error, of this machine.
    pub(crate) fn of(self, what: &str) -> ProxmoxError {
        ProxmoxError { message: format!("{what}: {}", self.message), ..self }
    }
}
