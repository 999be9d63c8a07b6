//! The QEMU on this host that waits for a machine of another host, and then runs it: its keeper stays where the machine was started.

use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::elsewhere::Wanted;
use crate::error::GuestError;
use crate::image::Image;
use crate::qemu::{Acceleration, Origin, Process, Qemu};
use crate::qmp::hand_over;
use crate::running::Running;

/// A QEMU for a machine of another host. It dies with the thread that started it, and dropping it kills it.
#[derive(Debug)]
pub struct Arrival {
    process: Process,
}

/// Our ends of its connections.
#[derive(Debug)]
pub struct ArrivalStreams {
    /// The machine's serial port.
    pub control: UnixStream,
    /// Orders about its devices.
    pub orders: UnixStream,
    /// Orders about the machine.
    pub more_orders: UnixStream,
    /// By which the machine comes, and its number in QEMU.
    pub incoming: (UnixStream, RawFd),
}

impl Arrival {
    /// Starts it. An error if this host has not what the machine needs.
    pub fn start(
        wanted: &Wanted,
        qemu: &Qemu,
        image: &Image,
        acceleration: Acceleration,
    ) -> Result<(Arrival, ArrivalStreams), GuestError> {
        let failed = |e: io::Error| GuestError::failed(format!("the connections of QEMU: {e}"));
        let origin = Origin {
            qemu: qemu.clone(),
            machine: wanted.machine.clone(),
            image: image.clone(),
            acceleration,
            shell: false,
        };
        wanted.check(&Wanted::of(&origin))?;
        let (incoming, its_incoming) = UnixStream::pair().map_err(failed)?;
        let process = Process::start(&origin, Some(OwnedFd::from(its_incoming)))?;
        let [control, orders, more_orders] = process.streams().map_err(failed)?;
        let incoming = (incoming, process.incoming.unwrap_or_default());
        Ok((Arrival { process }, ArrivalStreams { control, orders, more_orders, incoming }))
    }

    /// A connection by which QEMU can send the machine away: it gets the other end with the next order about the machine, and names it by
    /// `getfd`. No such order may be on its way.
    pub fn departure(&self) -> io::Result<UnixStream> {
        let (ours, its) = UnixStream::pair()?;
        let [_, _, orders] = self.process.streams()?;
        // Between orders, an empty line is none.
        hand_over(&orders, b"\n", its.as_fd())?;
        Ok(ours)
    }

    /// Whether QEMU has read all that was written to the machine's serial port.
    pub fn has_read(&self) -> io::Result<bool> {
        self.process.has_read()
    }

    /// Has it stand still, or with `goes_on` go on. Not to be called once [`ended`](Self::ended) has said how it ended.
    pub fn stand_still(&self, goes_on: bool) -> nix::Result<()> {
        // It is our child, and not waited for: the number is no other process's. Linux has no process ids beyond 2^22.
        let process = Pid::from_raw(self.process.process() as i32);
        kill(process, if goes_on { Signal::SIGCONT } else { Signal::SIGSTOP })
    }

    /// Ends it at once, and waits until it is gone. What it said can still be read.
    pub fn end(&mut self) {
        self.process.end();
    }

    /// How it ended, in words; `None`: it has not within `limit`.
    pub fn ended(&mut self, limit: Duration) -> Option<String> {
        self.process.ended(limit)
    }

    /// What it printed last: a few lines in one, or nothing.
    pub fn last_words(&mut self) -> String {
        self.process.last_words()
    }
}
