//! io_uring: one ring for each thread, a registered file, registered memory where the limit allows it.
//!
//! What profiling showed (kernel 6.18):
//! - A file in memory (tmpfs) never completes inline: each I/O goes to a kernel worker. One worker is enough for
//!   one thread's load, more only contend, so they are limited to one.
//! - Sleeping and being woken costs more than such an I/O itself: on the virtual machine of the profile 15 to 25 us of
//!   CPU and some 30 us of time. A file in memory answers sooner, so polling for a while before sleeping takes less
//!   time an I/O, and with few outstanding less CPU, as long as the thread and its worker have a CPU each. Polling too
//!   often contends with the worker, so each poll is preceded by a pause. Where it does not pay it is given up for a
//!   while.
//! - On disks, handing over a whole batch of completions at once settles into lockstep with the device: at most
//!   four at a time keep it busy. The caller does that.

use std::collections::VecDeque;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use loadline_base::ring::{Ring, RingOptions, opcode, types};
use loadline_base::spin::Spins;
use nix::libc;

use super::{Engine, Io, Kind, Memory, seen};

/// The kernel pins at most this much as one registered region.
const LARGEST_REGION: usize = 1 << 30;
/// How long to poll for a completion before sleeping.
const SPIN: Duration = Duration::from_micros(60);
/// How long, if several are waited for at once: the sleep is shared by them, so polling longer costs more than it saves.
const SPIN_FOR_SEVERAL: Duration = Duration::from_micros(12);
/// How long a request that does nothing may take.
const TRY_LIMIT: Duration = Duration::from_secs(1);
/// How long dropping an engine waits for I/Os in flight, before their memory is given up to them for good.
const DROP_LIMIT: Duration = Duration::from_millis(100);

/// How a thread waits for completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waiting {
    Sleeps,
    /// It polls for a while, and then sleeps.
    SpinsFirst,
    /// It never sleeps: the lowest latency, for a whole CPU.
    Spins,
}

pub(crate) struct UringEngine {
    ring: ManuallyDrop<Ring>,
    /// Leaked if I/Os are still in flight at the end: the kernel may yet write there.
    memory: ManuallyDrop<Memory>,
    /// Keeps the file open as long as the ring.
    _file: Arc<OwnedFd>,
    registered: bool,
    poll: bool,
    in_flight: usize,
    done: VecDeque<(u32, i32)>,
    spins: Spins,
}

/// Tries all that an engine needs of io_uring: what makes a ring may be allowed, and the rest of it refused (seccomp),
/// or missing (before Linux 5.11).
pub fn try_whole() -> io::Result<()> {
    let mut ring = Ring::new(RingOptions { entries: 8, deferred: true })?;
    let (reader, _writer) = io::pipe()?;
    ring.register_files(&[reader.as_raw_fd()])?;
    // SAFETY: a request that does nothing refers to nothing.
    if !unsafe { ring.push(&opcode::Nop::new().build().user_data(7)) } {
        return Err(io::Error::other("a new submission queue is full"));
    }
    ring.wait(1, Some(TRY_LIMIT))?;
    match ring.completions().next() {
        Some((7, 0)) => Ok(()),
        Some((_, errno)) if errno < 0 => Err(io::Error::from_raw_os_error(-errno)),
        _ => Err(io::Error::other("a request that does nothing does not complete")),
    }
}

impl UringEngine {
    /// A ring for `slots` I/Os. `in_memory`: the file lives in memory.
    pub(crate) fn new(
        file: Arc<OwnedFd>,
        memory: Memory,
        slots: usize,
        in_memory: bool,
        waiting: Waiting,
    ) -> io::Result<UringEngine> {
        let entries = u32::try_from(slots.clamp(8, 32_768)).map_err(|_| io::ErrorKind::InvalidInput)?;
        let poll = waiting == Waiting::Spins;
        // A spinning thread polls the queue itself; deferring would make it enter the kernel for each poll.
        let ring = Ring::new(RingOptions { entries: entries.next_power_of_two(), deferred: !poll })?;
        ring.register_files(&[file.as_raw_fd()])?;
        if in_memory {
            // Kernels before 5.15 have no limit: that costs speed, not correctness.
            let _ = ring.limit_kernel_workers(1, 1);
        }
        let regions: Vec<libc::iovec> =
            memory.regions().map(|r| libc::iovec { iov_base: r.as_ptr().cast(), iov_len: r.len() }).collect();
        let registered = regions.iter().all(|r| r.iov_len <= LARGEST_REGION)
            // SAFETY: the memory is dropped only after the ring (see drop), or never.
            // A refusal (ENOMEM: the locked-memory limit) costs speed, not correctness.
            && unsafe { ring.register_buffers(&regions) }.is_ok();
        Ok(UringEngine {
            ring: ManuallyDrop::new(ring),
            memory: ManuallyDrop::new(memory),
            _file: file,
            registered,
            poll,
            in_flight: 0,
            done: VecDeque::with_capacity(slots),
            spins: Spins::new(waiting == Waiting::SpinsFirst),
        })
    }

    /// Polls for completions for a while, before sleeping for them.
    fn spin(&mut self, want: usize, limit: Duration) -> io::Result<()> {
        self.ring.submit()?;
        let longest = if want > 1 { SPIN_FOR_SEVERAL } else { SPIN };
        let mut spins = std::mem::take(&mut self.spins);
        let found = spins.poll(longest, limit, || {
            self.ring.poll()?;
            let before = self.done.len();
            self.collect();
            Ok(seen(before, self.done.len(), want))
        });
        self.spins = spins;
        found
    }

    fn collect(&mut self) {
        let before = self.done.len();
        self.done.extend(self.ring.completions().map(|(slot, result)| (slot as u32, result)));
        self.in_flight -= self.done.len() - before;
    }
}

impl Engine for UringEngine {
    #[inline]
    fn push(&mut self, io: Io) -> io::Result<()> {
        let length = io.length;
        let file = types::Fixed(0);
        let request = match io.kind {
            Kind::Flush => opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build(),
            Kind::Read => {
                let address = self.memory.address(io.slot, Kind::Read);
                if self.registered {
                    opcode::ReadFixed::new(file, address, length, 0).offset(io.offset).build()
                } else {
                    opcode::Read::new(file, address, length).offset(io.offset).build()
                }
            }
            Kind::Write => {
                let address = self.memory.address(io.slot, Kind::Write);
                if self.registered {
                    let region = (self.memory.regions().count() - 1) as u16;
                    opcode::WriteFixed::new(file, address, length, region).offset(io.offset).build()
                } else {
                    opcode::Write::new(file, address, length).offset(io.offset).build()
                }
            }
        };
        let request = request.user_data(u64::from(io.slot));
        // SAFETY: the memory belongs to this engine and is kept until its I/Os are seen (see drop), and a slot has
        // one I/O at a time, which the caller's list of free slots keeps true.
        if !unsafe { self.ring.push(&request) } {
            self.ring.submit()?;
            // SAFETY: as above.
            if !unsafe { self.ring.push(&request) } {
                return Err(io::Error::other("the submission queue stays full"));
            }
        }
        self.in_flight += 1;
        Ok(())
    }

    fn submit(&mut self) -> io::Result<()> {
        self.ring.submit()
    }

    fn wait(&mut self, want: usize, limit: Duration) -> io::Result<()> {
        if self.poll {
            // What was pushed is handed over; the caller comes again at once if nothing has completed.
            self.ring.submit()?;
        } else {
            let mut left = limit;
            if self.in_flight >= want && self.spins.worth_it() {
                let begin = Instant::now();
                self.spin(want, limit)?;
                left = limit.saturating_sub(begin.elapsed());
            }
            if self.done.is_empty() {
                self.ring.wait(want, Some(left))?;
            }
        }
        self.collect();
        Ok(())
    }

    #[inline]
    fn reap(&mut self) -> Option<(u32, i32)> {
        self.done.pop_front()
    }

    fn memory(&mut self) -> &mut Memory {
        &mut self.memory
    }

    fn is_hindered(&self) -> bool {
        !self.registered
    }

    fn polled(&self) -> Duration {
        self.spins.waited()
    }
}

impl Drop for UringEngine {
    fn drop(&mut self) {
        if self.in_flight > 0 {
            let _ = self.ring.wait(self.in_flight, Some(DROP_LIMIT));
            self.collect();
        }
        // SAFETY: neither is used again; the ring goes first, then the memory that it refers to.
        unsafe { ManuallyDrop::drop(&mut self.ring) };
        if self.in_flight == 0 {
            // SAFETY: no I/O is in flight, so the kernel uses none of it.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}
