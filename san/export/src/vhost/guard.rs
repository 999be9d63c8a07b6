//! Memory that another process has shared can go away: the file behind it is made shorter, and a process that touches it is killed
//! (SIGBUS). Not we: the stretch is replaced by empty memory, and marked as lost, so that the front-end is disconnected.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use nix::libc;

/// Stretches that are guarded at the same time. More cannot be mapped.
const MOST: usize = 4096;

/// A stretch of addresses. Free while its end is 0.
struct Entry {
    taken: AtomicBool,
    start: AtomicUsize,
    end: AtomicUsize,
    lost: AtomicBool,
}

static ENTRIES: [Entry; MOST] = [const {
    Entry {
        taken: AtomicBool::new(false),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        lost: AtomicBool::new(false),
    }
}; MOST];

/// What dealt with the signal before.
static BEFORE: Before = Before(std::cell::UnsafeCell::new(MaybeUninit::zeroed()));
struct Before(std::cell::UnsafeCell<MaybeUninit<libc::sigaction>>);
// SAFETY: it is written once, within `install`, before the handler can run (which `install` makes the handler), and only read
// afterwards.
unsafe impl Sync for Before {}

static INSTALLED: Once = Once::new();

/// As long as this lives, a stretch of memory may go away.
#[derive(Debug)]
pub(super) struct Guard(usize);

impl Guard {
    /// Guards what is mapped there. Fails if too much is guarded already.
    pub(super) fn new(start: *mut u8, bytes: usize) -> io::Result<Guard> {
        INSTALLED.call_once(install);
        let free = ENTRIES.iter().position(|entry| !entry.taken.swap(true, Ordering::AcqRel));
        let index =
            free.ok_or_else(|| io::Error::other("too many regions of memory are shared with this node"))?;
        let entry = &ENTRIES[index];
        entry.lost.store(false, Ordering::Relaxed);
        entry.start.store(start as usize, Ordering::Relaxed);
        // Only now it counts.
        entry.end.store(start as usize + bytes, Ordering::Release);
        Ok(Guard(index))
    }

    /// It has gone away: what is there now is empty.
    pub(super) fn is_lost(&self) -> bool {
        ENTRIES[self.0].lost.load(Ordering::Relaxed)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let entry = &ENTRIES[self.0];
        entry.end.store(0, Ordering::Release);
        entry.taken.store(false, Ordering::Release);
    }
}

fn install() {
    // SAFETY: an action of zeroes is a valid one (the default, with no flags).
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = handle;
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler does only what a signal's handler may do (see there). What was there before is asked for first, so
    // that it is written before the handler can run.
    unsafe {
        libc::sigaction(libc::SIGBUS, ptr::null(), (*BEFORE.0.get()).as_mut_ptr());
        libc::sigaction(libc::SIGBUS, &action, ptr::null_mut());
    }
}

/// Only system calls and atomics: all of it may be done in a signal's handler. (mmap is not in POSIX's list of such calls; on
/// Linux it is a system call like others, and the C library's wrapper takes no lock.)
extern "C" fn handle(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid one, with an address, for this signal.
    let address = unsafe { (*info).si_addr() } as usize;
    // SAFETY: errno is this thread's own.
    let errno = unsafe { *libc::__errno_location() };
    for entry in &ENTRIES {
        let end = entry.end.load(Ordering::Acquire);
        let start = entry.start.load(Ordering::Acquire);
        // It may have become another one's between the two.
        if end != entry.end.load(Ordering::Acquire) {
            continue;
        }
        if (start..end).contains(&address) {
            // SAFETY: the stretch is one that a Guard's owner has mapped, so no other memory is replaced. Code that uses it knows
            // that its content may change at any time.
            let mapped = unsafe {
                libc::mmap(
                    start as *mut libc::c_void,
                    end - start,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                    -1,
                    0,
                )
            };
            if mapped != libc::MAP_FAILED {
                entry.lost.store(true, Ordering::Relaxed);
                // SAFETY: as above.
                unsafe { *libc::__errno_location() = errno };
                return;
            }
        }
    }
    // Something else: what was done about it before is done when the fault comes again.
    // SAFETY: it was written before this became the handler.
    unsafe { libc::sigaction(libc::SIGBUS, (*BEFORE.0.get()).as_ptr(), ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use loadline_base::buffer::AlignedBuffer;

    #[test]
    fn memory_that_goes_away_is_empty_and_known_to_be_lost() {
        let (mut memory, file) = AlignedBuffer::shared(8192).unwrap();
        let guard = Guard::new(memory.as_ptr(), memory.len()).unwrap();
        memory.as_mut_slice().fill(7);
        assert!(!guard.is_lost());
        nix::unistd::ftruncate(&file, 0).unwrap();
        // SAFETY: within the buffer; what becomes of it is what is tested.
        let read = unsafe { std::ptr::read_volatile(memory.as_ptr().add(5000)) };
        assert_eq!(read, 0);
        assert!(guard.is_lost());
        // SAFETY: as above.
        unsafe { std::ptr::write_volatile(memory.as_ptr().add(1), 1) };
        drop(guard);
        let other = Guard::new(memory.as_ptr(), 1).unwrap();
        assert!(!other.is_lost(), "another one in its place begins anew");
    }
}
