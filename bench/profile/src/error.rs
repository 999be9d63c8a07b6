//! What was wrong with a profile: where, what, and what to do.

use thiserror::Error;

/// Why a profile could not be read, checked or printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The text does not follow its notation.
    Syntax,
    /// The text is sound, but asks for something that Loadline does not do.
    Unsupported,
    /// A value is outside its range, or two values contradict each other.
    Rule,
}

/// A profile that cannot be used. Reads as one sentence: where, what, what to do.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{place}: {problem}; {advice}")]
pub struct ProfileError {
    /// What kind of fault it is.
    pub kind: ErrorKind,
    /// Where: a character of a name, a flag's position, a section and line, or a field.
    pub place: String,
    /// What is wrong there.
    pub problem: String,
    /// What to do instead.
    pub advice: String,
}

impl ProfileError {
    pub(crate) fn syntax(
        place: impl Into<String>,
        problem: impl Into<String>,
        advice: impl Into<String>,
    ) -> ProfileError {
        ProfileError {
            kind: ErrorKind::Syntax,
            place: place.into(),
            problem: problem.into(),
            advice: advice.into(),
        }
    }

    pub(crate) fn unsupported(
        place: impl Into<String>,
        problem: impl Into<String>,
        advice: impl Into<String>,
    ) -> ProfileError {
        ProfileError { kind: ErrorKind::Unsupported, ..ProfileError::syntax(place, problem, advice) }
    }

    pub(crate) fn rule(
        place: impl Into<String>,
        problem: impl Into<String>,
        advice: impl Into<String>,
    ) -> ProfileError {
        ProfileError { kind: ErrorKind::Rule, ..ProfileError::syntax(place, problem, advice) }
    }
}
