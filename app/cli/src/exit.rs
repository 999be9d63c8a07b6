//! The exit codes, and the one way an error reaches a person.

use std::process::ExitCode;

use crate::out::tell;

/// How a command ended. Of several, the first that applies in this order wins: usage, failed, missed, findings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// 0: done.
    Done,
    /// 1: the run failed.
    Failed,
    /// 2: usage or configuration: nothing was begun.
    Usage,
    /// 3: done, with findings that make a figure doubtful.
    Findings,
    /// 99: a stated limit was missed.
    Missed,
    /// 130: Ctrl-C.
    Interrupted,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(match exit {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::Findings => 3,
            Exit::Missed => 99,
            Exit::Interrupted => 130,
        })
    }
}

/// Prints an error the one way errors are printed, and hands its exit code on.
pub(crate) fn complain(exit: Exit, message: &str) -> Exit {
    tell!("loadline: {message}");
    exit
}
