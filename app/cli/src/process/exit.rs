//! The exit codes.

use loadline_load::error::ErrorKind;
use nix::libc;

/// How a command ended. Of several, the first that applies in this order wins: usage, failed, missed, findings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
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
    /// The exit code of a program that was run in a virtual machine.
    Program(u8),
}

impl Exit {
    /// Ends the process with this code, at once. Threads of a library may still work for storage that does not answer (librbd):
    /// what the library registered to run at exit would free what they use, and the process would end by a signal. Standard
    /// output must be flushed before ([`crate::output::finish`]).
    pub(crate) fn end(self) -> ! {
        let code = match self {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::Findings => 3,
            Exit::Missed => 99,
            Exit::Interrupted => 130,
            Exit::Program(code) => code.into(),
        };
        // SAFETY: the call has no requirement, and nothing of this process runs after it.
        unsafe { libc::_exit(code) }
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
