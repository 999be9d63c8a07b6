//! The exit codes.

use std::process::ExitCode;

use loadline_load::error::ErrorKind;

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

/// How an error ends the program.
impl From<ErrorKind> for Exit {
    fn from(kind: ErrorKind) -> Exit {
        match kind {
            ErrorKind::Usage => Exit::Usage,
            ErrorKind::Failed => Exit::Failed,
            ErrorKind::Limit => Exit::Missed,
            ErrorKind::Interrupted => Exit::Interrupted,
        }
    }
}
