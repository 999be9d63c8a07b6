//! What was issued and what was acknowledged, for each unit of a disk, in a memory-mapped file that outlives the
//! process: a killed worker's last stores are in the page cache all the same.
//!
//! ```text
//! header (4096 bytes): magic 8, id 8, unit 8, disk size 8
//! entries: 8 bytes each: bit 63 in flight, bits 32..62 generation issued, bits 0..31 generation acknowledged
//! ```

use std::fs::OpenOptions;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

use crate::error::LoadError;

const MAGIC: u64 = u64::from_le_bytes(*b"LLjrnl01");
const HEADER: usize = 4096;
const IN_FLIGHT: u64 = 1 << 63;

/// What the journal knows of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry(u64);

impl Entry {
    pub(super) fn from_bits(bits: u64) -> Entry {
        Entry(bits)
    }

    pub(super) fn bits(self) -> u64 {
        self.0
    }

    fn new(issued: u32, acknowledged: u32) -> Entry {
        assert!(issued < 1 << 31, "a unit is written at most 2^31 times under one journal");
        Entry(u64::from(issued) << 32 | u64::from(acknowledged))
    }

    pub(super) fn issued(self) -> u32 {
        ((self.0 & !IN_FLIGHT) >> 32) as u32
    }

    pub(super) fn acknowledged(self) -> u32 {
        self.0 as u32
    }

    pub(super) fn in_flight(self) -> bool {
        self.0 & IN_FLIGHT != 0
    }

    pub(super) fn never_issued(self) -> bool {
        self.0 == 0
    }
}

/// An entry in the mapped file.
pub(super) struct EntryCell<'a>(&'a AtomicU64);

impl EntryCell<'_> {
    pub(super) fn load(&self, order: Ordering) -> Entry {
        Entry(self.0.load(order))
    }
}

/// The journal of one disk. One process uses it at a time (a lock on the file says so).
pub(crate) struct Journal {
    map: NonNull<AtomicU64>,
    length: NonZeroUsize,
    unit: usize,
    entries: usize,
    id: u64,
    _lock: Flock<std::fs::File>,
}

// SAFETY: the mapping is shared memory of atomics, owned by this value.
unsafe impl Send for Journal {}
// SAFETY: every access goes through atomics.
unsafe impl Sync for Journal {}

impl Journal {
    /// Opens the journal of a disk of `size` bytes, or makes it where none is. Claims of a process that died are
    /// dropped: their writes have an unknown outcome.
    pub(crate) fn open(path: &Path, unit: usize, size: u64) -> Result<Journal, LoadError> {
        let error = |what: String| LoadError::usage(format!("journal {}: {what}", path.display()));
        let failed =
            |e: &dyn std::fmt::Display| LoadError::failed(format!("journal {}: {e}", path.display()));
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(|e| error(format!("{e}; name a place that can be written to")))?;
        let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock)
            .map_err(|(_, _)| error("another process is using it; wait for it, or name another".into()))?;
        let entries = usize::try_from(size / unit as u64).map_err(|e| failed(&e))?;
        let length = HEADER + entries * 8;
        let found = lock.metadata().map_err(|e| failed(&e))?.len();
        if found == 0 {
            lock.set_len(length as u64).map_err(|e| failed(&e))?;
        } else if found != length as u64 {
            return Err(error(format!(
                "it is not a journal of this disk ({found} bytes long; a disk of {size} bytes in units of {unit} has \
                 {length}); name another file"
            )));
        }
        let length = NonZeroUsize::new(length).ok_or_else(|| failed(&"a disk of no size"))?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new shared mapping of a file that this process holds the lock of; nothing of ours shortens it.
        let map = unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, &*lock, 0) }
            .map_err(|e| failed(&e))?
            .cast::<AtomicU64>();
        let mut journal = Journal { map, length, unit, entries, id: 0, _lock: lock };
        let expected = [MAGIC, 0, unit as u64, size];
        if journal.word(0).load(Ordering::Relaxed) == 0 {
            let id = random_id().map_err(|e| failed(&e))?;
            for (i, value) in [0, id, unit as u64, size].into_iter().enumerate() {
                journal.word(i).store(value, Ordering::Relaxed);
            }
            // Last: a journal whose maker died before this is made anew.
            journal.word(0).store(MAGIC, Ordering::Release);
        }
        for (i, value) in expected.into_iter().enumerate() {
            let found = journal.word(i).load(Ordering::Relaxed);
            if i != 1 && found != value {
                return Err(error(match i {
                    0 => "it is something else, and is left alone; name another file".into(),
                    _ => format!(
                        "it is of a disk or unit of {found} bytes, and this is {value}; name another file"
                    ),
                }));
            }
        }
        journal.id = journal.word(1).load(Ordering::Relaxed);
        for index in 0..entries {
            journal.cell(index).fetch_and(!IN_FLIGHT, Ordering::Relaxed);
        }
        Ok(journal)
    }

    /// Which unit a journal that exists was made for. `None` if there is none yet.
    pub(crate) fn unit_of(path: &Path) -> Option<usize> {
        use std::io::Read;
        let mut header = [0u8; 24];
        std::fs::File::open(path).ok()?.read_exact(&mut header).ok()?;
        let word = |i: usize| u64::from_le_bytes(header[i * 8..i * 8 + 8].try_into().expect("eight bytes"));
        (word(0) == MAGIC).then(|| word(2) as usize)
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index * 8 + 8 <= self.length.get());
        // SAFETY: the index lies within the mapping, which lives as long as self and is aligned to a page.
        unsafe { self.map.add(index).as_ref() }
    }

    fn cell(&self, unit: usize) -> &AtomicU64 {
        assert!(unit < self.entries, "a unit of this disk");
        self.word(HEADER / 8 + unit)
    }

    pub(super) fn entry(&self, unit: usize) -> EntryCell<'_> {
        EntryCell(self.cell(unit))
    }

    pub(crate) fn unit(&self) -> usize {
        self.unit
    }

    pub(super) fn len(&self) -> usize {
        self.entries
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// The units of a block.
    pub(super) fn units(&self, offset: u64, length: usize) -> Range<usize> {
        let (first, unaligned) = ((offset / self.unit as u64) as usize, offset % self.unit as u64);
        assert!(unaligned == 0 && length.is_multiple_of(self.unit), "verified blocks are whole units");
        first..first + length / self.unit
    }

    /// Claims a unit for a write of the next generation. `false` if a write is in flight.
    pub(super) fn claim(&self, unit: usize) -> bool {
        let cell = self.cell(unit);
        let entry = Entry(cell.load(Ordering::Acquire));
        let next = Entry::new(entry.issued() + 1, entry.acknowledged()).bits() | IN_FLIGHT;
        !entry.in_flight()
            && cell.compare_exchange(entry.bits(), next, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Takes a claim back whose write was never issued. The generation is used up: it was never on the disk.
    pub(super) fn unclaim(&self, unit: usize) {
        self.cell(unit).fetch_and(!IN_FLIGHT, Ordering::AcqRel);
    }

    /// Ends a claim: what was issued is acknowledged, or has an unknown outcome.
    pub(super) fn release(&self, unit: usize, acknowledged: bool) {
        let cell = self.cell(unit);
        let entry = Entry(cell.load(Ordering::Acquire));
        assert!(entry.in_flight(), "only a claimed unit is released");
        let acknowledged = if acknowledged { entry.issued() } else { entry.acknowledged() };
        // Only the claim's holder changes an entry in flight.
        cell.store(Entry::new(entry.issued(), acknowledged).bits(), Ordering::Release);
    }

    /// This generation was read: nothing older may be read any more.
    pub(super) fn seen(&self, unit: usize, generation: u32) {
        let cell = self.cell(unit);
        let entry = Entry(cell.load(Ordering::Acquire));
        if !entry.in_flight() && entry.acknowledged() < generation {
            let seen = Entry::new(entry.issued(), generation).bits();
            // If a write claims it meanwhile, that write's acknowledgement says more.
            let _ = cell.compare_exchange(entry.bits(), seen, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        // SAFETY: map and length are what mmap returned; no reference into it outlives self.
        unsafe { munmap(self.map.cast(), self.length.get()) }.expect("unmapping what was mapped");
    }
}

/// An id that no other journal has.
fn random_id() -> std::io::Result<u64> {
    use std::io::Read;
    let mut bytes = [0; 8];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}
