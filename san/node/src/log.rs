//! Lines of a node's log, on standard error. A node goes on when nobody reads it any more.

use std::fmt::Arguments;
use std::io::Write;

/// Logs a line.
macro_rules! log {
    ($($text:tt)*) => { $crate::log::line(format_args!($($text)*)) };
}

pub(crate) use log;

pub(crate) fn line(text: Arguments<'_>) {
    let _ = std::io::stderr().write_all(format!("loadline: {text}\n").as_bytes());
}
