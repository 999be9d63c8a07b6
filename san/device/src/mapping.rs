//! A device in memory, mapped: 4 KiB of it are copied in 0.3 us, where a system call takes 1.2 us.
//!
//! What is touched of a mapping must be there, or the process is killed (SIGBUS). A file in memory may have holes, and there
//! may be no memory to fill them. So a stretch of it is made to be there first, by a call that can fail, when enough was
//! written to it; until then it is written, and read, by calls. The file is locked, so that no process that respects locks makes it
//! shorter; a process that does so all the same kills this one, which is as if the machine had failed.

use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::Arc;

use nix::libc::{self, iovec};

use crate::file::DeviceFile;
use crate::huge::{Region, StretchState, allocate};

/// It is made to be there in stretches of so many bytes.
const STRETCH: u64 = 2 << 20;

/// Once so many bytes were to be written to a stretch it is worth its memory: a volume without clients writes less to each, and
/// has several.
const BUSY: u32 = 256 << 10;

/// After a huge page that took long, or that the kernel refused, so many stretches are left in small pages.
const LEFT_SMALL: u32 = 64;

/// What has one translation, and what is fetched at once.
const PAGE: usize = 4096;
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// A file in memory, mapped and locked for this process. Only stretches that are known to be allocated are accessed by the
/// mapping.
#[derive(Debug)]
pub(crate) struct Mapping {
    region: Arc<Region>,
    bytes: u64,
    /// Stretches that are known to be there, all of each.
    there: Box<[bool]>,
    /// Bytes of the writes that touched each of the others.
    asked: Box<[u32]>,
    /// Stretches that are still to be left in small pages.
    left_small: u32,
    /// Something was written past the cache, and nothing is in order with it yet.
    unsettled: bool,
}

impl Mapping {
    /// Maps a device that is in memory. `None` if that cannot be: then it is used by calls.
    pub(crate) fn new(file: &DeviceFile) -> Option<Mapping> {
        let bytes = file.bytes();
        let length = usize::try_from(bytes).ok().filter(|length| *length > 0 && file.is_in_memory())?;
        let stretches = bytes.div_ceil(STRETCH) as usize;
        let (there, asked) = (vec![false; stretches].into(), vec![0; stretches].into());
        let (handle, start) = (file.handle().ok()?, mapped(file, length)?);
        // SAFETY: it was mapped just now, and nothing else knows where.
        let region = unsafe { Region::new(handle, start, length, STRETCH) };
        Some(Mapping { region, bytes, there, asked, left_small: 0, unsettled: false })
    }

    /// Fills this from a byte on, if all of that is there.
    pub(crate) fn read(&mut self, file: &DeviceFile, at: u64, into: &mut [u8]) -> bool {
        self.settle();
        let Some(stretches) = self.stretches(at, into.len()) else { return false };
        for stretch in stretches {
            if !self.there[stretch] && !self.is_there(file, stretch) {
                return false;
            }
        }
        // SAFETY: the range lies within the mapping, and all of it is there, as was just found. There is no reference to
        // what is mapped: this thread is the only one that uses it for this replica, whose chunks are its own; and `into` is
        // other memory.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.region.start().as_ptr().add(at as usize),
                into.as_mut_ptr(),
                into.len(),
            );
        }
        true
    }

    /// Blocks of it from a byte on, to be looked at where they are, if all of that is there.
    pub(crate) fn blocks(&mut self, file: &DeviceFile, at: u64, blocks: u32) -> Option<&[u8]> {
        self.settle();
        let length = blocks as usize * crate::pool::BLOCK_BYTES;
        for stretch in self.stretches(at, length)? {
            if !self.there[stretch] && !self.is_there(file, stretch) {
                return None;
            }
        }
        // SAFETY: as in `read`; and while the slice lives, this is borrowed, so that nothing writes to it: this thread is the only
        // one that uses these chunks.
        Some(unsafe { std::slice::from_raw_parts(self.region.start().as_ptr().add(at as usize), length) })
    }

    /// Looks at a page of it every so often from a byte on, where that is known to be there: what is done there next finds it
    /// in the CPU's cache, and its translation too. Several such misses overlap; those of copies, one after the other, do not.
    pub(crate) fn touch(&self, at: u64, length: usize) {
        let Some(stretches) = self.stretches(at, length) else { return };
        if self.unsettled || !stretches.into_iter().all(|stretch| self.there[stretch]) {
            return;
        }
        for at in (at..at + length as u64).step_by(PAGE) {
            // SAFETY: the byte lies within the mapping, and is there; nothing else writes to it, see `read`.
            let _ = unsafe { std::ptr::read_volatile(self.region.start().as_ptr().add(at as usize)) };
        }
    }

    /// Asks the CPU to fetch all of a range, if that is short: 4 KiB are read 1.2 times as fast, what else is done with them
    /// counted in. What is longer it fetches by itself.
    pub(crate) fn fetch(&self, at: u64, length: usize) {
        if length > PAGE || at.checked_add(length as u64).is_none_or(|end| end > self.bytes) {
            return;
        }
        #[cfg(target_arch = "x86_64")]
        for line in (at..at + length as u64).step_by(LINE) {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: it is a hint, which faults nowhere; and the address lies within the mapping.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(self.region.start().as_ptr().add(line as usize).cast()) };
        }
    }

    /// Writes what these vectors refer to, one after the other, from a byte on. False if it is to be done by a call.
    ///
    /// # Safety
    /// Each vector refers to memory that may be read, and that does not change during the call.
    pub(crate) unsafe fn write(&mut self, file: &DeviceFile, at: u64, vectors: &[iovec]) -> bool {
        let length: usize = vectors.iter().map(|vector| vector.iov_len).sum();
        let Some(stretches) = self.stretches(at, length) else { return false };
        for stretch in stretches {
            if !self.there[stretch] && !self.make_there(file, stretch, length) {
                return false;
            }
        }
        let mut at = at as usize;
        self.unsettled = true;
        for vector in vectors {
            // SAFETY: the source is readable, as the caller says; the target lies within the mapping, since all lengths
            // together do, and is there. They do not overlap: what is mapped is in no vector, which are of buffers.
            unsafe {
                let target = self.region.start().as_ptr().add(at);
                // A reader on this thread settles it first. A place that is written twice before that keeps the second: a CPU
                // keeps its own writes to one address in their order, past the cache or not, and a thread that is moved to
                // another CPU has settled on the way (its switch is an interrupt and locked instructions).
                copy_past_cache(vector.iov_base.cast::<u8>(), target, vector.iov_len);
            }
            at += vector.iov_len;
        }
        true
    }

    /// All that was written past the cache is in order with what this thread does next. (Where nothing goes past it, that is
    /// so already; what tells others of a write is then what makes them see it.)
    pub(crate) fn settle(&mut self) {
        if std::mem::take(&mut self.unsettled) {
            // SAFETY: every x86-64 has the instruction.
            #[cfg(target_arch = "x86_64")]
            unsafe {
                std::arch::x86_64::_mm_sfence();
            }
        }
    }

    /// The stretches that a range touches. `None` if it is not all within the device.
    fn stretches(&self, at: u64, length: usize) -> Option<std::ops::RangeInclusive<usize>> {
        let end = at.checked_add(length as u64).filter(|end| *end <= self.bytes && length > 0)?;
        Some((at / STRETCH) as usize..=((end - 1) / STRETCH) as usize)
    }

    fn range(&self, stretch: usize) -> (i64, i64) {
        let from = stretch as u64 * STRETCH;
        (from as i64, (from + STRETCH).min(self.bytes) as i64)
    }

    /// Whether the file has no hole in this stretch.
    fn is_there(&mut self, file: &DeviceFile, stretch: usize) -> bool {
        let (from, to) = self.range(stretch);
        // SAFETY: it takes an open descriptor and touches no memory. The file's position moves, which has no effect: all
        // I/O states its place.
        let hole = unsafe { libc::lseek(file.as_fd().as_raw_fd(), from, libc::SEEK_HOLE) };
        self.there[stretch] = hole >= to;
        self.there[stretch]
    }

    /// Makes all of a stretch be there, to which so many bytes are to be written: as one huge page, if the system has some, which
    /// another thread sees to. False until that is done, if it cannot be, or if little was written there by now.
    fn make_there(&mut self, file: &DeviceFile, stretch: usize, length: usize) -> bool {
        let asked = &mut self.asked[stretch];
        *asked = asked.saturating_add(length as u32);
        if *asked < BUSY {
            return false;
        }
        match self.region.take(stretch) {
            StretchState::Requested => return false,
            StretchState::Missing => {
                // There may be room for what is written all the same: the call finds out. It is tried again after as much.
                self.asked[stretch] = 0;
                return false;
            }
            done @ (StretchState::There | StretchState::ThereSlowly) => {
                if done == StretchState::ThereSlowly {
                    self.left_small = LEFT_SMALL;
                }
                self.there[stretch] = true;
                return true;
            }
            StretchState::Idle => {}
        }
        let (from, to) = self.range(stretch);
        if to - from == STRETCH as i64 && system_page() == PAGE {
            match self.left_small {
                0 => {
                    if !self.region.ask(stretch) {
                        self.asked[stretch] = 0;
                    }
                    return false;
                }
                left => self.left_small = left - 1,
            }
        }
        self.there[stretch] = allocate(file.as_fd(), from as u64, to - from);
        if !self.there[stretch] {
            self.asked[stretch] = 0;
        }
        self.there[stretch]
    }
}

/// Bytes of a page of the system: 4 KiB, or more on some CPUs, whose huge pages are no stretches.
fn system_page() -> usize {
    // SAFETY: it only asks.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(PAGE)
}

/// Maps so much of a file that is in memory, from a multiple of [`STRETCH`] on: only so a stretch can be a huge page.
fn mapped(file: &DeviceFile, length: usize) -> Option<NonNull<u8>> {
    let stretch = STRETCH as usize;
    let reserved = length.checked_next_multiple_of(stretch)?.checked_add(stretch)?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping, at a place that the system chooses; it disturbs no other memory.
    let around = unsafe { libc::mmap(std::ptr::null_mut(), reserved, libc::PROT_NONE, flags, -1, 0) };
    if around == libc::MAP_FAILED {
        return None;
    }
    let skipped = around.align_offset(stretch);
    let start = around.wrapping_add(skipped);
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
    // SAFETY: what it takes the place of is a part of what was just reserved, to which nothing refers; the file is open. Then
    // what is left of that is given back, before it and behind it: whole pages, none of which is of the file.
    unsafe {
        if libc::mmap(start, length, protection, flags, file.as_fd().as_raw_fd(), 0) == libc::MAP_FAILED {
            // What was reserved may be gone in part, and something else mapped there: it is left, which costs addresses.
            return None;
        }
        let used = length.next_multiple_of(system_page());
        if skipped > 0 {
            libc::munmap(around, skipped);
        }
        libc::munmap(start.wrapping_add(used), reserved - skipped - used);
    }
    NonNull::new(start.cast())
}

/// Copies without bringing the target into the CPU's cache, where no read needs it soon: what is there stays, and the CPU
/// need not fetch first what is written over. 4 KiB that were not in the cache took half the time. Other CPUs see it in order
/// with other writes only once that is [settled](Mapping::settle); a process that is killed loses none of it.
///
/// # Safety
/// As of [`std::ptr::copy_nonoverlapping`]; and nothing reads the target until that is settled.
unsafe fn copy_past_cache(from: *const u8, to: *mut u8, length: usize) {
    #[cfg(target_arch = "x86_64")]
    if to.align_offset(LINE) == 0 && length.is_multiple_of(LINE) && std::is_x86_feature_detected!("avx") {
        // SAFETY: as the caller says; the CPU has the instructions, and the target is aligned as they need it.
        unsafe { stream(from, to, length) };
        return;
    }
    // SAFETY: as the caller says.
    unsafe { std::ptr::copy_nonoverlapping(from, to, length) };
}

/// Copies whole lines past the cache. With half of a line at once 4 KiB took 0.7 to 1.0 of the time that they took with a
/// quarter (by themselves, to random and to following places); all of it at once was no faster.
///
/// # Safety
/// As of [`std::ptr::copy_nonoverlapping`]; the target is aligned to a [`LINE`], and the length a multiple of it.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn stream(from: *const u8, to: *mut u8, length: usize) {
    use std::arch::x86_64::{__m256i, _mm256_loadu_si256, _mm256_stream_si256};
    for at in (0..length).step_by(LINE) {
        // SAFETY: both lie within what the caller promises, and so does the alignment of the target.
        unsafe {
            let (from, to) = (from.add(at).cast::<__m256i>(), to.add(at).cast::<__m256i>());
            let (first, second) = (_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1)));
            _mm256_stream_si256(to, first);
            _mm256_stream_si256(to.add(1), second);
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.settle();
    }
}
