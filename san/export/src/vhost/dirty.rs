//! The log of a guest's memory that this process writes: a bitmap that the front-end shares while its guest is migrated, with a bit for each
//! page of 4 KiB. A page whose bit is set is sent to the destination again ("Migration" in the vhost-user protocol).
//!
//! A bit is set after the page was written. If it were set before, the front-end could take the bit and send the page between the two, and
//! the destination would never get what was written.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

use nix::libc;

use super::guard::Guard;
use super::memory::{Mapped, Reason, check};

/// Bytes of a page of the log, whatever the pages of the host.
const PAGE: u64 = 4096;
/// The most bytes of a log: of a guest with 4 TiB.
const MOST_BYTES: u64 = 128 << 20;

/// A page that has no bit in the log: the front-end shares memory that its log does not cover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Beyond;

/// The log, as the front-end shares it. The front-end may change any of it at any time: it can harm its own guest only.
#[derive(Debug)]
pub(super) struct DirtyLog {
    start: NonNull<u8>,
    bytes: usize,
    guard: Option<Guard>,
    /// A bit was set since this was last taken.
    news: Cell<bool>,
}

impl DirtyLog {
    /// Maps so many bytes of a file, from this offset on.
    pub(super) fn map(file: &File, offset: u64, bytes: u64) -> Result<DirtyLog, Reason> {
        if bytes == 0 || bytes > MOST_BYTES {
            return Err(format!(
                "the log of memory that is written has {bytes} bytes, and may have 1 to {MOST_BYTES}"
            ));
        }
        check(file, offset, bytes)?;
        let failed =
            |error: io::Error| format!("the log of memory that is written cannot be mapped: {error}");
        let bytes = bytes as usize;
        // SAFETY: a new mapping of an open file at an address of the kernel's choice aliases nothing here.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                offset as libc::off_t,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(failed(io::Error::last_os_error()));
        }
        let start =
            NonNull::new(start.cast::<u8>()).ok_or_else(|| failed(io::ErrorKind::OutOfMemory.into()))?;
        let guard = Guard::new(start.as_ptr(), bytes).map_err(|error| {
            // SAFETY: it was just mapped, and nothing refers to it.
            unsafe { libc::munmap(start.as_ptr().cast(), bytes) };
            failed(error)
        })?;
        Ok(DirtyLog { start, bytes, guard: Some(guard), news: Cell::new(false) })
    }

    /// So many bytes of the guest's memory were written, from this address of the guest on. If a page has no bit, the others have theirs
    /// all the same.
    pub(super) fn mark(&self, guest: u64, bytes: usize) -> Result<(), Beyond> {
        if bytes == 0 {
            return Ok(());
        }
        self.news.set(true);
        let last = guest.checked_add(bytes as u64 - 1).ok_or(Beyond)? / PAGE;
        for page in guest / PAGE..=last {
            self.byte(page / 8).ok_or(Beyond)?.fetch_or(1 << (page % 8), Ordering::AcqRel);
        }
        Ok(())
    }

    /// The same, by where it lies in what is mapped.
    pub(super) fn mark_at(&self, mapped: &Mapped, start: *const u8, bytes: usize) -> Result<(), Beyond> {
        self.mark(mapped.guest_address(start).ok_or(Beyond)?, bytes)
    }

    /// Whether a bit was set since this was called last.
    pub(super) fn take_news(&self) -> bool {
        self.news.take()
    }

    /// The memory of the log has gone away.
    pub(super) fn is_lost(&self) -> bool {
        self.guard.as_ref().is_some_and(Guard::is_lost)
    }

    fn byte(&self, at: u64) -> Option<&AtomicU8> {
        let at = usize::try_from(at).ok().filter(|at| *at < self.bytes)?;
        // SAFETY: the byte lies within what is mapped as long as this lives, and both sides change it by atomic operations only.
        Some(unsafe { AtomicU8::from_ptr(self.start.as_ptr().add(at)) })
    }
}

impl Drop for DirtyLog {
    fn drop(&mut self) {
        // First: what is not mapped any more must not be guarded.
        self.guard = None;
        // SAFETY: the mapping is this one's, and nothing refers to it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    fn log(bytes: u64) -> (DirtyLog, File) {
        let (_, file) = loadline_base::buffer::AlignedBuffer::shared(4096).unwrap();
        let file = File::from(file);
        (DirtyLog::map(&file, 0, bytes).unwrap(), file)
    }

    #[test]
    fn each_page_that_is_touched_has_its_bit_and_no_other() {
        let (log, file) = log(4);
        log.mark(4095, 2).unwrap();
        log.mark(9 * PAGE, 4096).unwrap();
        log.mark(20 * PAGE, 0).unwrap();
        assert!(log.take_news());
        assert!(!log.take_news());
        let mut bytes = [0; 4];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, [0b11, 0b10, 0, 0]);
    }

    #[test]
    fn a_page_without_a_bit_is_an_error_and_touches_nothing() {
        let (log, file) = log(4);
        assert_eq!(log.mark(31 * PAGE, 4097), Err(Beyond));
        assert_eq!(log.mark(u64::MAX, 2), Err(Beyond));
        assert_eq!(log.mark(1 << 60, 1), Err(Beyond));
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, [0, 0, 0, 0x80, 0, 0, 0, 0]);
        for (offset, bytes) in [(0, 0), (0, 4097), (4096, 1), (0, MOST_BYTES + 1), (u64::MAX, 2)] {
            assert!(DirtyLog::map(&file, offset, bytes).is_err(), "{offset} {bytes}");
        }
    }
}
