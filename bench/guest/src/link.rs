//! The way to a QEMU on another host.

use std::fmt::Debug;
use std::io;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::error::GuestError;

/// The way to a QEMU on another host, beside its own connections. Every call returns within a few seconds.
pub trait Link: Debug + Send + Sync {
    /// Whether QEMU has read all that was written to our end of its serial port.
    fn has_read(&self) -> io::Result<bool>;

    /// Has the process stand still for so long. Returns when it goes on.
    fn pause(&self, length: Duration) -> Result<(), GuestError>;

    /// A connection by which QEMU can send the machine away: it has the other end, which `getfd` names. No order about the machine may be on
    /// its way.
    fn departure(&self) -> Result<UnixStream, GuestError>;

    /// How it ended, in words; `None`: it has not within `limit`.
    fn ended(&self, limit: Duration) -> Option<String>;

    /// What it printed last: a few lines in one, or nothing.
    fn last_words(&self) -> String;

    /// Ends it at once, and waits until it is gone; it is gone within seconds, too, if the other host does not answer any more.
    fn end(&self);
}
