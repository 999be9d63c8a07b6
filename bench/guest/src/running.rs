//! The contract of a running machine, whatever started it.

use std::fmt::Debug;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use crate::bus::Bus;
use crate::error::GuestError;
use crate::link::Link;
use crate::machine::Machine;
use crate::monitor::Monitor;
use crate::qmp::QmpError;

nix::ioctl_read_bad!(
    /// Bytes that were sent and not read.
    unread,
    nix::libc::TIOCOUTQ,
    nix::libc::c_int
);

/// Whether the other end has read all that was written to this one.
pub fn all_read(stream: &UnixStream) -> io::Result<bool> {
    let mut bytes = 0;
    // SAFETY: the descriptor is open, and `bytes` is the integer that this request writes.
    unsafe { unread(stream.as_raw_fd(), &raw mut bytes) }?;
    Ok(bytes == 0)
}

/// A machine that was started. Dropping it ends the machine, and leaves nothing of it.
pub(crate) trait Running: Debug + Send {
    /// Our end of the machine's serial port.
    fn control(&self) -> &UnixStream;

    /// The way to attach its devices: those of a machine like this. Called once.
    fn bus(&mut self, machine: &Machine) -> Result<Box<dyn Bus>, QmpError>;

    /// The way to order something of the machine while it runs. Called once.
    fn monitor(&self) -> Result<Monitor, GuestError>;

    /// The process id of QEMU.
    fn process(&self) -> u32;

    /// The way to the other host on which it runs; `None`: it runs here.
    fn link(&self) -> Option<Arc<dyn Link>> {
        None
    }

    /// Whether QEMU has read all that was written to our end of the machine's serial port.
    fn has_read(&self) -> io::Result<bool> {
        all_read(self.control())
    }

    /// How it ended, in words; `None`: it has not within `limit`.
    fn ended(&mut self, limit: Duration) -> Option<String>;

    /// What its console, and what started it, printed last: a few lines in one, or nothing.
    fn last_words(&mut self) -> String;

    /// Ends it at once, and waits until it is gone.
    fn end(&mut self);

    /// The machine has booted: what it was started from is not needed any more.
    fn booted(&mut self) {}
}
