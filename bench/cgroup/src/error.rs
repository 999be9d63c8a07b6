//! What can go wrong with control groups.

use std::fmt;

/// Why a limit could not be set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupError {
    /// The limit cannot be set as asked: the figure is impossible, or this user may not make groups.
    Usage(String),
    /// The system could not be read, or refused what it had granted before.
    Failed(String),
}

impl fmt::Display for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GroupError::Usage(message) | GroupError::Failed(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for GroupError {}
