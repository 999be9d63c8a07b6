//! What a check found, and how bad that is.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How bad it is; the worst is the greatest.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// It is as it should be.
    #[default]
    Ok,
    /// It is worth knowing, and no figure is worse for it.
    Note,
    /// It costs performance.
    Slow,
    /// Figures would be wrong, or data are at risk, or something does not run at all.
    Bad,
}

impl Severity {
    /// As it is printed: `ok`, `note`, `slow`, `bad`.
    pub fn word(self) -> &'static str {
        match self {
            Severity::Ok => "ok",
            Severity::Note => "note",
            Severity::Slow => "slow",
            Severity::Bad => "bad",
        }
    }
}

/// What one check found.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// The thing that was checked, such as `io_uring` or `nvme0n1: scheduler`.
    pub check: String,
    /// How bad it is.
    pub severity: Severity,
    /// What was found.
    pub found: String,
    /// What was expected; `null` of what is fine.
    pub expected: Option<String>,
    /// What it costs; `null` of what is fine.
    pub costs: Option<String>,
    /// How to mend it, in words; `null` where there is nothing to mend.
    pub mend: Option<String>,
    /// The command that does so, to be copied, where one does.
    pub run: Option<String>,
}

impl Check {
    fn new(severity: Severity, check: impl Into<String>, found: impl Into<String>) -> Check {
        Check { check: check.into(), severity, found: found.into(), ..Check::default() }
    }

    /// It is fine.
    pub fn ok(check: impl Into<String>, found: impl Into<String>) -> Check {
        Check::new(Severity::Ok, check, found)
    }

    /// It is worth knowing.
    pub fn note(check: impl Into<String>, found: impl Into<String>) -> Check {
        Check::new(Severity::Note, check, found)
    }

    /// It costs performance.
    pub fn slow(check: impl Into<String>, found: impl Into<String>) -> Check {
        Check::new(Severity::Slow, check, found)
    }

    /// Figures or data are at risk.
    pub fn bad(check: impl Into<String>, found: impl Into<String>) -> Check {
        Check::new(Severity::Bad, check, found)
    }

    /// Says what was expected.
    pub fn expected(self, expected: impl Into<String>) -> Check {
        Check { expected: Some(expected.into()), ..self }
    }

    /// Says what it costs.
    pub fn costs(self, costs: impl Into<String>) -> Check {
        Check { costs: Some(costs.into()), ..self }
    }

    /// Says how to mend it.
    pub fn mend(self, mend: impl Into<String>) -> Check {
        Check { mend: Some(mend.into()), ..self }
    }

    /// Gives the command that mends it.
    pub fn run(self, command: impl Into<String>) -> Check {
        Check { run: Some(command.into()), ..self }
    }

    /// Whether it is worse than a note.
    pub fn is_finding(&self) -> bool {
        self.severity > Severity::Note
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_is_the_greatest_and_a_note_is_no_finding() {
        let worst = [Severity::Note, Severity::Bad, Severity::Ok, Severity::Slow].into_iter().max();
        assert_eq!(worst, Some(Severity::Bad));
        assert!(Check::slow("a", "b").is_finding() && Check::bad("a", "b").is_finding());
        assert!(!Check::note("a", "b").is_finding() && !Check::ok("a", "b").is_finding());
    }
}
