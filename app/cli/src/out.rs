//! What is printed, and the one way an error reaches a person. A reader that has gone (`loadline … | head`) is no
//! reason to fail, and none to panic, which would leave files behind; a disk that is full under a redirected output is
//! one to say so.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};
use std::sync::OnceLock;

use crate::exit::Exit;

/// Why standard output could not be written, once it could not.
static FAILED: OnceLock<String> = OnceLock::new();

/// Prints a line on standard output.
macro_rules! say {
    () => { $crate::out::write(b"\n") };
    ($($text:tt)*) => { $crate::out::line(format_args!($($text)*)) };
}

/// Prints a line on standard error.
macro_rules! tell {
    ($($text:tt)*) => { $crate::out::error_line(format_args!($($text)*)) };
}

pub(crate) use {say, tell};

pub(crate) fn line(text: Arguments<'_>) {
    write(format!("{text}\n").as_bytes());
}

pub(crate) fn error_line(text: Arguments<'_>) {
    // There is nobody left to be told if this fails.
    let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// Prints this on standard output, as it is.
pub(crate) fn write(bytes: &[u8]) {
    note(io::stdout().write_all(bytes));
}

/// Prints an error the one way errors are printed, and hands its exit code on.
pub(crate) fn complain(exit: Exit, message: &str) -> Exit {
    tell!("loadline: {message}");
    exit
}

/// How a command ends that would end so: failed, if what it printed is not where it should be.
pub(crate) fn finish(exit: Exit) -> Exit {
    note(io::stdout().flush());
    match (FAILED.get(), exit) {
        // Nothing of it was asked to be kept, or something worse was said already.
        (None, _) | (_, Exit::Usage | Exit::Failed | Exit::Interrupted) => exit,
        (Some(why), _) => complain(Exit::Failed, &format!("standard output cannot be written: {why}")),
    }
}

fn note(result: io::Result<()>) {
    if let Err(error) = result
        && error.kind() != ErrorKind::BrokenPipe
    {
        let _ = FAILED.set(error.to_string());
    }
}
