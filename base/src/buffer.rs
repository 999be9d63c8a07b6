//! Page-aligned memory for direct I/O.

use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use nix::unistd::ftruncate;

/// A zeroed region of memory, aligned to a page, that never moves and is given back when dropped.
#[derive(Debug)]
pub struct AlignedBuffer {
    start: NonNull<u8>,
    len: NonZeroUsize,
}

// SAFETY: the region is owned by this value alone, like the memory of a Box<[u8]>.
unsafe impl Send for AlignedBuffer {}

impl AlignedBuffer {
    /// `len` zeroed bytes. Fails where the kernel has no memory to give, or for a length of zero.
    pub fn new(len: usize) -> std::io::Result<Self> {
        let len = NonZeroUsize::new(len)
            .ok_or_else(|| std::io::Error::new(std::io::ErrorKind::InvalidInput, "a buffer of no bytes"))?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new private anonymous mapping at an address of the kernel's choice aliases nothing.
        let start = unsafe { mmap_anonymous(None, len, protection, MapFlags::MAP_PRIVATE) }?;
        Ok(AlignedBuffer { start: start.cast(), len })
    }

    /// The same, in memory that another process may map by this descriptor.
    pub fn shared(len: usize) -> std::io::Result<(Self, OwnedFd)> {
        let bytes = NonZeroUsize::new(len)
            .ok_or_else(|| std::io::Error::new(std::io::ErrorKind::InvalidInput, "a buffer of no bytes"))?;
        let file = memfd_create("loadline", MFdFlags::MFD_CLOEXEC)?;
        ftruncate(&file, len as i64)?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping of a new file at an address of the kernel's choice aliases nothing here.
        let start = unsafe { mmap(None, bytes, protection, MapFlags::MAP_SHARED, &file, 0) }?;
        Ok((AlignedBuffer { start: start.cast(), len: bytes }, file))
    }

    /// Asks the kernel for huge pages, for a region that is used all over: its addresses are looked up faster then. Where
    /// there are none, nothing changes.
    pub fn want_huge_pages(&self) {
        // SAFETY: the region is mapped, and is this value's; the advice changes nothing of its contents.
        let _ = unsafe { madvise(self.start.cast(), self.len.get(), MmapAdvise::MADV_HUGEPAGE) };
    }

    /// Gives its memory back to the system until it is used again. It holds zeroes from then on.
    ///
    /// # Safety
    /// Nothing refers to any of it, and the kernel does no I/O with it.
    pub unsafe fn forget(&self) {
        // SAFETY: the region is mapped, and is this value's; and no reference to what changes exists, as the caller says.
        let _ = unsafe { madvise(self.start.cast(), self.len.get(), MmapAdvise::MADV_DONTNEED) };
    }

    /// Its first byte; valid for [`len`](Self::len) bytes until this value is dropped.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Its length in bytes, never 0.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len.get()
    }

    /// The bytes. Not to be called while the kernel writes into the buffer.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the mapping is readable, len bytes long and initialised (zeroed by the kernel).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len.get()) }
    }

    /// The bytes, to write to. Not to be called while the kernel reads or writes the buffer.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and &mut self makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len.get()) }
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        // SAFETY: start and len are what mmap returned, and nothing refers to the region any more.
        unsafe { munmap(self.start.cast(), self.len.get()) }.expect("unmapping what was mapped");
    }
}
