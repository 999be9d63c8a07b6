//! What was issued and what was acknowledged, for each unit of a disk, in a memory-mapped file that outlives the
//! process: a killed worker's last stores are in the page cache all the same.
//!
//! ```text
//! header (4096 bytes): magic 8, id 8, unit 8, disk size 8
//! entries: 8 bytes each: bit 63 in flight, bits 32..62 generation issued, bit 31 reported as bad,
//!          bits 0..30 generation acknowledged
//! ```

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag, posix_fallocate};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

use crate::error::LoadError;
use crate::target::FileIdentity;

const MAGIC: u64 = u64::from_le_bytes(*b"LLjrnl01");
const HEADER: usize = 4096;
const IN_FLIGHT: u64 = 1 << 63;
const REPORTED: u64 = 1 << 31;
const ONE_ISSUED: u64 = 1 << 32;
/// A unit is written at most so often under one journal.
const MOST_GENERATIONS: u32 = (1 << 31) - 1;

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

    pub(super) fn issued(self) -> u32 {
        ((self.0 & !IN_FLIGHT) >> 32) as u32
    }

    pub(super) fn acknowledged(self) -> u32 {
        (self.0 & !REPORTED) as u32
    }

    pub(super) fn in_flight(self) -> bool {
        self.0 & IN_FLIGHT != 0
    }

    pub(super) fn never_issued(self) -> bool {
        self.issued() == 0
    }

    /// Whether nothing was written, acknowledged or claimed between the two.
    pub(super) fn same_writes(self, other: Entry) -> bool {
        self.0 & !REPORTED == other.0 & !REPORTED
    }

    /// A write without a known outcome may have left anything between the old content and the new.
    pub(super) fn outcome_unknown(self) -> bool {
        self.issued() > self.acknowledged()
    }

    /// Whether no sequence of writes leads to these bits.
    fn is_impossible(self) -> bool {
        self.acknowledged() > self.issued() || (self.issued() == 0 && self.0 != 0)
    }
}

/// Why a unit cannot be claimed for a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Another write to it is in flight.
    InFlight,
    /// It was written as often as the journal can count.
    Exhausted,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refused::InFlight => "a write to it is in flight",
            Refused::Exhausted => {
                "its journal has counted as many writes to it as it can: begin a new journal, with a new fill"
            }
        })
    }
}

/// What becomes of the marks at units that were reported as bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reported {
    /// They stay: what was reported is in a report that this one is added to, and is not counted again.
    Keep,
    /// They go: a bad unit is reported anew.
    Forget,
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
    _lock: Flock<File>,
}

// SAFETY: the mapping is shared memory of atomics, owned by this value.
unsafe impl Send for Journal {}
// SAFETY: every access goes through atomics.
unsafe impl Sync for Journal {}

impl Journal {
    /// Opens the journal of a disk of `size` bytes, or makes it where none is. Claims of a process that died are
    /// dropped: their writes have an unknown outcome.
    pub(crate) fn open(
        path: &Path,
        unit: usize,
        size: u64,
        reported: Reported,
    ) -> Result<Journal, LoadError> {
        let error = |what: String| LoadError::usage(format!("journal {}: {what}", path.display()));
        let failed =
            |e: &dyn std::fmt::Display| LoadError::failed(format!("journal {}: {e}", path.display()));
        let open = |new| OpenOptions::new().read(true).write(true).create_new(new).mode(0o600).open(path);
        let (file, made) = match open(true) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => (open(false), false),
            other => (other, true),
        };
        let file = file.map_err(|e| error(format!("{e}; name a place that can be written to")))?;
        let lock =
            Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, _)| error(IN_USE.into()))?;
        let entries = usize::try_from(size / unit as u64).map_err(|e| failed(&e))?;
        let length = HEADER + entries * 8;
        let found = lock.metadata().map_err(|e| failed(&e))?.len();
        let fresh = found == 0;
        if fresh {
            reserve(&lock, length as u64).map_err(|e| {
                // Half a journal would be taken for something else.
                let _ = if made { std::fs::remove_file(path) } else { lock.set_len(0) };
                match e {
                    Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG => error(no_room(length as u64, size, e)),
                    _ => failed(&e.desc()),
                }
            })?;
        } else if found != length as u64 && found != shared_length(length as u64) {
            return Err(error(other_disk(found, size, unit, length as u64)));
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
                    0 => "the file is not a journal, and is not changed; name another file".into(),
                    _ => format!(
                        "the journal is for a disk or a unit of {found} bytes, but this one has {value} bytes; name another \
                         file"
                    ),
                }));
            }
        }
        journal.id = journal.word(1).load(Ordering::Relaxed);
        if !fresh {
            journal.settle(reported).map_err(|unit| {
                error(format!(
                    "the journal is damaged: its entry for the unit at byte {} is impossible; restore the journal, or begin \
                     with a new journal and a new fill",
                    unit as u64 * journal.unit as u64
                ))
            })?;
        }
        Ok(journal)
    }

    /// Drops the claims of the process that used it before, and the marks that are to go. The error is the first unit whose
    /// entry is damaged. Only what changes is stored, so that a large journal stays clean and cheap to open.
    pub(super) fn settle(&self, reported: Reported) -> Result<(), usize> {
        let gone = match reported {
            Reported::Keep => IN_FLIGHT,
            Reported::Forget => IN_FLIGHT | REPORTED,
        };
        for index in 0..self.entries {
            let cell = self.cell(index);
            let entry = Entry(cell.load(Ordering::Relaxed));
            if entry.is_impossible() {
                return Err(index);
            }
            if entry.bits() & gone != 0 {
                cell.fetch_and(!gone, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Which unit a journal that exists was made for. `None` if there is none yet. It is mapped, since the memory of a virtual
    /// machine's device cannot be read in another way.
    pub(crate) fn unit_of(path: &Path) -> Option<usize> {
        let file = File::open(path).ok()?;
        let length = NonZeroUsize::new(HEADER)?;
        if file.metadata().ok()?.len() < HEADER as u64 {
            return None;
        }
        // SAFETY: a new mapping of a part of the file that is there; no journal is ever shortened.
        let map = unsafe { mmap(None, length, ProtFlags::PROT_READ, MapFlags::MAP_SHARED, &file, 0) }.ok()?;
        let words = map.cast::<AtomicU64>();
        // SAFETY: both words lie in the mapping, which is aligned to a page and ends below.
        let [magic, unit] = [0, 2].map(|word| unsafe { words.add(word).as_ref() }.load(Ordering::Acquire));
        // SAFETY: it was mapped above, and nothing refers to it any more.
        let _ = unsafe { munmap(map, HEADER) };
        (magic == MAGIC && unit > 0).then_some(unit as usize)
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

    /// Claims a unit for a write of the next generation.
    pub(super) fn claim(&self, unit: usize) -> Result<(), Refused> {
        let cell = self.cell(unit);
        let mut bits = cell.load(Ordering::Acquire);
        loop {
            let entry = Entry(bits);
            if entry.in_flight() {
                return Err(Refused::InFlight);
            }
            if entry.issued() == MOST_GENERATIONS {
                return Err(Refused::Exhausted);
            }
            let next = (bits + ONE_ISSUED) | IN_FLIGHT;
            match cell.compare_exchange_weak(bits, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(()),
                // A reader's mark, or another writer's claim.
                Err(found) => bits = found,
            }
        }
    }

    /// Takes a claim back whose write was never issued. Its generation was never on the disk, so that it is free
    /// again: used up, it would look like a write of unknown outcome.
    pub(super) fn unclaim(&self, unit: usize) {
        self.cell(unit).fetch_sub(IN_FLIGHT + ONE_ISSUED, Ordering::AcqRel);
    }

    /// Ends a claim: what was issued is acknowledged, or has an unknown outcome.
    pub(super) fn release(&self, unit: usize, acknowledged: bool) {
        let ended = |bits: u64| {
            let entry = Entry(bits);
            let generation = if acknowledged { entry.issued() } else { entry.acknowledged() };
            let kept = bits & REPORTED | u64::from(entry.issued()) << 32;
            entry.in_flight().then_some(kept | u64::from(generation))
        };
        let result = self.cell(unit).fetch_update(Ordering::AcqRel, Ordering::Acquire, ended);
        debug_assert!(result.is_ok(), "only a claimed unit is released");
    }

    /// This generation was read: nothing older may be read any more.
    pub(super) fn seen(&self, unit: usize, generation: u32) {
        let seen = |bits: u64| {
            let entry = Entry(bits);
            // While a write is in flight, its acknowledgement will say more.
            let news =
                !entry.in_flight() && entry.acknowledged() < generation && generation <= entry.issued();
            news.then_some(bits - u64::from(entry.acknowledged()) + u64::from(generation))
        };
        // Mostly it is nothing new.
        let _ = self.cell(unit).fetch_update(Ordering::AcqRel, Ordering::Acquire, seen);
    }

    /// Marks a unit as reported. `true` the first time.
    pub(super) fn report(&self, unit: usize) -> bool {
        self.cell(unit).fetch_or(REPORTED, Ordering::AcqRel) & REPORTED == 0
    }

    /// Sets an entry's bits, as damage or many years would.
    #[cfg(test)]
    pub(super) fn force(&self, unit: usize, bits: u64) {
        self.cell(unit).store(bits, Ordering::Release);
    }
}

/// The length that a journal of `length` bytes has where a virtual machine has it as memory: such memory is a power of two,
/// and at least 1 MiB.
fn shared_length(length: u64) -> u64 {
    length.next_power_of_two().max(1 << 20)
}

/// Makes the file of a journal ready to be memory of a virtual machine, which then opens it as the journal of a disk of `size`
/// bytes: gives it its room, and the length that such memory has. What is in it stays. Returns the file, locked against other users
/// of the journal for as long as it is open.
pub fn share_journal(path: &Path, unit: usize, size: u64) -> Result<Flock<File>, LoadError> {
    let error = |what: String| LoadError::usage(format!("journal {}: {what}", path.display()));
    let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
    let file = open.map_err(|e| error(format!("{e}; name a place that can be written to")))?;
    let file = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, _)| error(IN_USE.into()))?;
    let unit = Journal::unit_of(path).unwrap_or(unit);
    let length = HEADER as u64 + size / unit as u64 * 8;
    let found = file.metadata().map_err(|e| error(e.to_string()))?.len();
    if found != 0 && found != length && found != shared_length(length) {
        return Err(error(other_disk(found, size, unit, length)));
    }
    reserve(&file, shared_length(length)).map_err(|e| {
        // As it was: of another length it would be no journal of this disk.
        let _ = file.set_len(found);
        error(no_room(shared_length(length), size, e))
    })?;
    Ok(file)
}

const IN_USE: &str = "another process uses the journal; wait until that process ends, or name another file";

fn other_disk(found: u64, size: u64, unit: usize, length: u64) -> String {
    format!(
        "it is not a journal of this disk ({found} bytes long; a disk of {size} bytes in units of {unit} has {length}); name another \
         file"
    )
}

fn no_room(length: u64, size: u64, why: Errno) -> String {
    format!(
        "there is no room for the {} MiB that a disk of {} MiB needs ({}): name another place with --journal, or free some",
        length.div_ceil(1 << 20),
        size >> 20,
        why.desc()
    )
}

/// Gives the file its length, with room for all of it: a store to a page that has none would kill the process.
fn reserve(file: &File, length: u64) -> Result<(), Errno> {
    loop {
        match posix_fallocate(file, 0, length as i64) {
            Err(Errno::EINTR) => {}
            // Not every C library stands in for a file system that cannot reserve.
            Err(Errno::EOPNOTSUPP) => return write_zeros(file, length),
            other => return other,
        }
    }
}

fn write_zeros(file: &File, length: u64) -> Result<(), Errno> {
    use std::os::unix::fs::FileExt;
    let zeros = vec![0; 1 << 20];
    // What is there stays.
    let mut at = file.metadata().map_err(|e| e.raw_os_error().map_or(Errno::EIO, Errno::from_raw))?.len();
    while at < length {
        let piece = (length - at).min(zeros.len() as u64);
        file.write_all_at(&zeros[..piece as usize], at)
            .map_err(|e| e.raw_os_error().map_or(Errno::EIO, Errno::from_raw))?;
        at += piece;
    }
    Ok(())
}

/// Makes an empty file for a private journal, in this folder: a new one, under a name that cannot
/// be guessed, so that no file that was left or placed there is taken for it. Says which file it is.
pub fn temporary_journal(folder: &Path) -> Result<(PathBuf, FileIdentity), LoadError> {
    let place = |e: io::Error| {
        LoadError::usage(format!(
            "no temporary journal can be made in {}: {e}; name a place with --journal, or set TMPDIR",
            folder.display()
        ))
    };
    let path = folder.join(format!("loadline-{:016x}.journal", random_id().map_err(place)?));
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .custom_flags(OFlag::O_NOFOLLOW.bits())
        .mode(0o600)
        .open(&path)
        .map_err(place)?;
    let metadata = file.metadata().map_err(place)?;
    Ok((path, FileIdentity::of(&metadata)))
}

impl Drop for Journal {
    fn drop(&mut self) {
        // SAFETY: map and length are what mmap returned; no reference into it outlives self.
        unsafe { munmap(self.map.cast(), self.length.get()) }.expect("unmapping what was mapped");
    }
}

/// An id that no other journal has.
fn random_id() -> io::Result<u64> {
    use std::io::Read;
    let mut bytes = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}
