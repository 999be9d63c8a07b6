//! The one io_uring wrapper: one thread, one ring, completions handled by the thread that submits.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring};
use nix::libc;

pub use io_uring::{opcode, squeue, types};

/// How a ring is made.
#[derive(Debug, Clone, Copy)]
pub struct RingOptions {
    /// Submission queue entries; the completion queue has twice as many.
    pub entries: u32,
    /// Completions are handled only inside [`Ring::wait`] and [`Ring::poll`] (`IORING_SETUP_DEFER_TASKRUN`,
    /// Linux 6.1). It saves interrupts of the submitting thread. Older kernels do without.
    pub deferred: bool,
}

/// One io_uring, used by one thread.
pub struct Ring {
    ring: IoUring,
    /// The kernel says in memory that is shared with it whether entering it would handle anything.
    tells: bool,
}

impl Ring {
    /// A ring as `options` say. Fails with the kernel's error where io_uring is missing or refused (containers
    /// often refuse it with `EPERM`; `kernel.io_uring_disabled` can too).
    pub fn new(options: RingOptions) -> io::Result<Ring> {
        let mut builder = IoUring::builder();
        builder.dontfork();
        if options.deferred {
            let mut deferred = builder.clone();
            deferred.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
            match deferred.build(options.entries) {
                Ok(ring) => return Ok(Ring { ring, tells: true }),
                // EINVAL: a kernel older than 6.1 does not know the flags.
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(Ring { ring: builder.build(options.entries)?, tells: false })
    }

    /// Registers files; requests then name them by index, which saves a reference count on each.
    pub fn register_files(&self, files: &[RawFd]) -> io::Result<()> {
        self.ring.submitter().register_files(files)
    }

    /// Puts other files where registered ones are, or nothing (-1), from this index on. Requests that are in flight keep the
    /// file that they began with.
    pub fn update_files(&self, first: u32, files: &[RawFd]) -> io::Result<()> {
        match self.ring.submitter().register_files_update(first, files)? {
            put if put == files.len() => Ok(()),
            put => Err(io::Error::other(format!("only {put} of {} files were registered", files.len()))),
        }
    }

    /// Registers memory for the fixed-buffer operations. Fails with `ENOMEM` above the locked-memory limit.
    ///
    /// # Safety
    /// The memory must stay mapped until this ring is dropped.
    pub unsafe fn register_buffers(&self, buffers: &[libc::iovec]) -> io::Result<()> {
        // SAFETY: the caller keeps the memory mapped.
        unsafe { self.ring.submitter().register_buffers(buffers) }
    }

    /// Bounds the kernel threads that run what cannot complete at once: `bounded` for files and block devices.
    pub fn limit_kernel_workers(&self, bounded: u32, unbounded: u32) -> io::Result<()> {
        self.ring.submitter().register_iowq_max_workers(&mut [bounded, unbounded])
    }

    /// Queues a request; the kernel sees it at the next submission. `false` if the queue is full.
    ///
    /// # Safety
    /// What the request refers to (memory, files) must stay valid until its completion has been seen.
    #[must_use]
    pub unsafe fn push(&mut self, request: &squeue::Entry) -> bool {
        // SAFETY: the caller keeps what it refers to valid.
        unsafe { self.ring.submission().push(request) }.is_ok()
    }

    /// Hands queued requests to the kernel, without waiting. Does not enter the kernel if there are none.
    pub fn submit(&mut self) -> io::Result<()> {
        if self.ring.submission().is_empty() {
            return Ok(());
        }
        match self.ring.submit() {
            Ok(_) => Ok(()),
            Err(e) => passing(e),
        }
    }

    /// Hands queued requests to the kernel and waits for `want` completions, or until `limit` has passed.
    pub fn wait(&self, want: usize, limit: Option<Duration>) -> io::Result<()> {
        let result = match limit {
            None => self.ring.submitter().submit_and_wait(want),
            Some(limit) => {
                let limit = Timespec::new().sec(limit.as_secs()).nsec(limit.subsec_nanos());
                self.ring.submitter().submit_with_args(want, &SubmitArgs::new().timespec(&limit))
            }
        };
        result.map(|_| ()).or_else(passing)
    }

    /// Hands queued requests to the kernel and sleeps for `least`, whatever completes; then on until something has completed,
    /// or until `limit` has passed. A kernel older than 6.12 waits for the first completion at once, as [`wait`](Self::wait).
    /// How exact the time is is the thread's timer slack, 50 us unless it is set.
    pub fn gather(&self, least: Duration, limit: Duration) -> io::Result<()> {
        let parameters = self.ring.params();
        if !parameters.is_feature_min_timeout() {
            return self.wait(1, Some(limit));
        }
        let times = Timespec::new().sec(limit.as_secs()).nsec(limit.subsec_nanos());
        let least = u32::try_from(least.min(limit).as_micros()).unwrap_or(u32::MAX);
        let arguments = SubmitArgs::new().min_wait_usec(least).timespec(&times);
        // As many as there is room for: nothing less ends the first sleep early.
        let all = parameters.cq_entries() as usize;
        self.ring.submitter().submit_with_args(all, &arguments).map(|_| ()).or_else(passing)
    }

    /// Hands queued requests to the kernel and handles what has completed, without waiting. Unlike
    /// [`submit`](Self::submit) it enters the kernel for that, too, which a deferred ring needs; not if there is neither.
    pub fn poll(&mut self) -> io::Result<()> {
        let submission = self.ring.submission();
        let queued = submission.len() as u32;
        if queued == 0 && self.tells && !submission.taskrun() && !submission.cq_overflow() {
            return Ok(());
        }
        drop(submission);
        // SAFETY: no argument is passed to the kernel with these flags.
        let result =
            unsafe { self.ring.submitter().enter::<()>(queued, 0, EnterFlags::GETEVENTS.bits(), None) };
        result.map(|_| ()).or_else(passing)
    }

    /// The completions that have arrived: each request's `user_data`, and its result (a length, or `-errno`).
    pub fn completions(&mut self) -> impl Iterator<Item = (u64, i32)> + '_ {
        self.ring.completion().map(|c| (c.user_data(), c.result()))
    }
}

impl AsRawFd for Ring {
    /// To be polled: it is readable when there are completions, or what a deferred ring would handle.
    fn as_raw_fd(&self) -> RawFd {
        self.ring.as_raw_fd()
    }
}

/// Errors after which the caller handles completions and tries again.
fn passing(error: io::Error) -> io::Result<()> {
    match error.raw_os_error() {
        Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(()),
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::time::Instant;

    #[test]
    fn a_wait_ends_at_its_limit() {
        let Ok(ring) = Ring::new(RingOptions { entries: 4, deferred: true }) else {
            eprintln!("io_uring is refused here; the generator's thread engine is used and tested instead");
            return;
        };
        let begin = Instant::now();
        ring.wait(1, Some(Duration::from_millis(20))).unwrap();
        assert!(begin.elapsed() >= Duration::from_millis(20));
    }

    #[test]
    fn what_completes_does_not_end_a_sleep_that_gathers() {
        let Ok(mut ring) = Ring::new(RingOptions { entries: 4, deferred: true }) else { return };
        if !ring.ring.params().is_feature_min_timeout() {
            eprintln!("this kernel cannot gather, and is not asked to");
            return;
        }
        let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let poll = opcode::PollAdd::new(types::Fd(ours.as_raw_fd()), libc::POLLIN as u32);
        // SAFETY: the socket is open until its request has completed, which is waited for below.
        assert!(unsafe { ring.push(&poll.build().user_data(7)) });
        let begin = Instant::now();
        let soon = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(2));
            theirs.write_all(b"!").map(|()| theirs)
        });
        ring.gather(Duration::from_millis(30), Duration::from_secs(5)).unwrap();
        assert!(begin.elapsed() >= Duration::from_millis(30), "it slept for {:?}", begin.elapsed());
        assert!(begin.elapsed() < Duration::from_secs(5), "it slept for {:?}", begin.elapsed());
        let _theirs = soon.join().unwrap().unwrap();
        assert_eq!(ring.completions().map(|(data, _)| data).collect::<Vec<_>>(), [7]);
        // Nothing has: then on until something has, or the limit.
        let begin = Instant::now();
        ring.gather(Duration::from_millis(1), Duration::from_millis(20)).unwrap();
        assert!(begin.elapsed() >= Duration::from_millis(20));
    }

    #[test]
    fn a_request_comes_back_with_its_user_data() {
        let Ok(mut ring) = Ring::new(RingOptions { entries: 4, deferred: true }) else { return };
        let request = opcode::Nop::new().build().user_data(7);
        // SAFETY: a Nop refers to nothing.
        assert!(unsafe { ring.push(&request) });
        ring.wait(1, Some(Duration::from_secs(5))).unwrap();
        assert_eq!(ring.completions().collect::<Vec<_>>(), [(7, 0)]);
    }
}
