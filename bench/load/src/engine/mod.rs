//! The engines, which hand I/Os to the kernel, or to a server. Seven engines, one shape:
//!
//! ```text
//!            push(slot, I/O) … push … wait(at least n, at most t) … reap → (slot, result) …
//!   uring    a ring of this thread      the kernel
//!   pool     a queue                    threads with pread and pwrite, where io_uring is refused
//!   nbd      a ring and a connection     an NBD server
//!   iscsi    a ring and a connection     an iSCSI target
//!   vhost    a queue in shared memory    a vhost-user-blk server
//!   rbd      a call for each I/O       librbd: a Ceph cluster
//!   null     a list                     none: what is pushed has completed
//! ```
//!
//! An engine has `slots` places, each with memory for one read and, in a mixed load, one write; a slot holds one
//! I/O at a time.

pub(crate) mod iscsi;
pub(crate) mod nbd;
pub(crate) mod null;
pub(crate) mod pool;
pub(crate) mod rbd;
mod stream;
pub(crate) mod uring;
pub(crate) mod vhost;

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use loadline_base::buffer::AlignedBuffer;
use loadline_base::spin::Seen;
use nix::errno::Errno;
use nix::poll::{PollFd, ppoll};
use nix::sys::time::TimeSpec;

/// What an I/O does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    /// `fdatasync`: moves nothing and is in no figure.
    Flush,
}

/// One I/O.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Io {
    pub(crate) slot: u32,
    pub(crate) kind: Kind,
    pub(crate) offset: u64,
    /// Bytes, at most a slot's; none of a flush.
    pub(crate) length: u32,
}

/// The longest that is slept at once.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// Sleeps until one of these is ready, at most for `limit`; maybe for less. Not by `poll`, which knows milliseconds only: what is
/// paced would be late by half of one.
fn sleep_for(ready: &mut [PollFd], limit: Duration) -> io::Result<()> {
    match ppoll(ready, Some(TimeSpec::from_duration(limit.min(LONGEST_SLEEP))), None) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// A thread polls for answers of a server on this host for so long before it sleeps, even if other threads want its CPU.
const POLL_ALONE: Duration = Duration::from_micros(12);
/// While no other thread needs the CPU it polls for this long: a disk behind the server may take that long, and without
/// a wake-up the next request reaches the disk sooner.
const POLL_WHILE_IDLE: Duration = Duration::from_millis(1);

/// What a poll for completions has seen, by how many there were before it and are now.
fn seen(before: usize, now: usize, want: usize) -> Seen {
    match now {
        enough if enough >= want => Seen::All,
        same if same == before => Seen::Nothing,
        _ => Seen::Some,
    }
}

/// One thread's way to one disk.
pub(crate) trait Engine {
    /// Begins an I/O in a free slot. It may be handed over only by the next `submit` or `wait`.
    fn push(&mut self, io: Io) -> io::Result<()>;

    /// Hands over what was pushed, without waiting.
    fn submit(&mut self) -> io::Result<()>;

    /// Hands over what was pushed, and waits until about `want` I/Os have completed, at most for `limit`.
    fn wait(&mut self, want: usize, limit: Duration) -> io::Result<()>;

    /// Takes one completed I/O: its slot, and the bytes moved or `-errno`.
    fn reap(&mut self) -> Option<(u32, i32)>;

    /// The memory of the slots.
    fn memory(&mut self) -> &mut Memory;

    /// Whether the kernel refused a feature that the engine requested: an I/O then costs more CPU.
    fn is_hindered(&self) -> bool {
        false
    }

    /// CPU time in which it polled for completions, before sleeping for them, and saw none.
    fn polled(&self) -> Duration {
        Duration::ZERO
    }
}

/// The memory of an engine's slots: one region for reads, one for writes, so that what was read is never written
/// back (the content of written data is the profile's choice).
pub(crate) struct Memory {
    block: usize,
    read: Option<AlignedBuffer>,
    write: Option<AlignedBuffer>,
    /// What the regions are mapped from, in their order, if others may map them too.
    files: Vec<OwnedFd>,
}

impl Memory {
    /// Memory for `slots` I/Os of `block` bytes.
    pub(crate) fn new(block: usize, slots: usize, reads: bool, writes: bool) -> io::Result<Memory> {
        let region = |wanted: bool| {
            let bytes = block.checked_mul(slots).ok_or(io::ErrorKind::OutOfMemory)?;
            if wanted { AlignedBuffer::new(bytes).map(Some) } else { Ok(None) }
        };
        Ok(Memory { block, read: region(reads)?, write: region(writes)?, files: Vec::new() })
    }

    /// The same, that a server may map.
    pub(crate) fn new_shared(block: usize, slots: usize, reads: bool, writes: bool) -> io::Result<Memory> {
        let mut files = Vec::new();
        let mut region = |wanted: bool| {
            let bytes = block.checked_mul(slots).ok_or(io::ErrorKind::OutOfMemory)?;
            let made = if wanted { Some(AlignedBuffer::shared(bytes)?) } else { None };
            io::Result::Ok(made.map(|(buffer, file)| {
                files.push(file);
                buffer
            }))
        };
        let (read, write) = (region(reads)?, region(writes)?);
        Ok(Memory { block, read, write, files })
    }

    /// The regions that a server may map, with what they are mapped from.
    pub(crate) fn shared(&self) -> impl Iterator<Item = (&AlignedBuffer, &OwnedFd)> {
        self.regions().zip(&self.files)
    }

    /// The regions, reads first.
    pub(crate) fn regions(&self) -> impl Iterator<Item = &AlignedBuffer> {
        self.read.iter().chain(&self.write)
    }

    /// All memory for writes, to be given its first content.
    pub(crate) fn write_region(&mut self) -> Option<&mut [u8]> {
        self.write.as_mut().map(AlignedBuffer::as_mut_slice)
    }

    /// Where a slot's I/O of this kind has its data. Valid as long as this memory.
    pub(crate) fn address(&self, slot: u32, kind: Kind) -> *mut u8 {
        let region = match kind {
            Kind::Read => self.read.as_ref(),
            Kind::Write | Kind::Flush => self.write.as_ref(),
        };
        let region = region.expect("memory was made for every kind of I/O in the load");
        let offset = slot as usize * self.block;
        assert!(offset + self.block <= region.len(), "a slot of this engine");
        // SAFETY: offset lies within the region, as just checked.
        unsafe { region.as_ptr().add(offset) }
    }

    /// A slot's data. Only while the slot has no I/O in flight.
    pub(crate) fn slot(&mut self, slot: u32, kind: Kind) -> &mut [u8] {
        let address = self.address(slot, kind);
        // SAFETY: the block lies within the region (checked by address); &mut self makes this the only reference,
        // and the caller asks only for slots that the kernel is not using.
        unsafe { std::slice::from_raw_parts_mut(address, self.block) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::poll::PollFlags;
    use nix::sys::eventfd::EventFd;
    use std::os::fd::AsFd;
    use std::time::Instant;

    #[test]
    fn a_wait_for_less_than_a_millisecond_is_not_one_for_a_millisecond() {
        let never = EventFd::new().unwrap();
        // Another process may have the CPU now and then.
        let slept = (0..100).map(|_| {
            let begun = Instant::now();
            sleep_for(&mut [PollFd::new(never.as_fd(), PollFlags::POLLIN)], Duration::from_micros(100))
                .unwrap();
            begun.elapsed()
        });
        let least = slept.min().unwrap();
        assert!(least >= Duration::from_micros(100) && least < Duration::from_millis(1), "{least:?}");
    }
}
