//! A front-end's memory: regions that it shares by descriptors.

use std::cell::Cell;
use std::fs::File;
use std::iter::FusedIterator;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::stat::{SFlag, fstat};
use nix::sys::statfs::{HUGETLBFS_MAGIC, fstatfs};
use vm_memory::guest_memory::{GuestMemoryBackendSliceIterator, GuestMemorySliceIterator};
use vm_memory::mmap::MmapRegion;
use vm_memory::{
    FileOffset, GuestAddress, GuestMemory, GuestMemoryBackend, GuestMemoryError, GuestMemoryMmap,
    GuestRegionMmap, Permissions, VolatileSlice,
};

use super::guard::Guard;

/// The most regions of one front-end.
pub(super) const MOST_REGIONS: usize = 64;

/// What was mapped before, and requests still refer to, at most so often.
const MOST_FORMER: usize = 16;

/// Regions that are mapped together. Requests keep those that they began with.
///
/// It is looked up several times for each request, nearly always in the region of the time before: that is tried first.
#[derive(Debug)]
pub(super) struct Mapped {
    // Dropped in this order: what is not mapped any more must not be guarded.
    guards: Vec<Rc<Guard>>,
    memory: GuestMemoryMmap,
    flat: Vec<Flat>,
    /// The one that was used last.
    last: Cell<usize>,
}

/// A region, as what is needed to find something in it.
#[derive(Debug, Clone, Copy)]
struct Flat {
    guest: u64,
    bytes: u64,
    start: *mut u8,
}

impl Flat {
    fn find(&self, address: u64, bytes: usize) -> Option<*mut u8> {
        let within = address.wrapping_sub(self.guest);
        let fits = within < self.bytes && bytes as u64 <= self.bytes - within;
        // SAFETY: it is within the region, which is mapped as long as its owner is there.
        fits.then(|| unsafe { self.start.add(within as usize) })
    }
}

/// Bytes of a front-end's memory, one after the other: valid as long as what they were found in is mapped. They may change at
/// any time, so they are only copied, byte by byte.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    pub(super) start: *mut u8,
    pub(super) bytes: usize,
}

impl Span {
    /// As memory that may change at any time.
    ///
    /// # Safety
    /// What it was found in is mapped, for as long as the slice is used.
    pub(super) unsafe fn slice<'a>(&self) -> VolatileSlice<'a> {
        // SAFETY: as the caller promises.
        unsafe { VolatileSlice::new(self.start, self.bytes) }
    }
}

impl Mapped {
    fn new(regions: &[Region]) -> Result<Mapped, Reason> {
        let all = regions.iter().map(|region| Arc::clone(&region.mapped)).collect();
        let memory = GuestMemoryMmap::from_arc_regions(all)
            .map_err(|error| format!("its memory is not taken: {error}"))?;
        let flat = regions.iter().map(|region| Flat {
            guest: region.place.guest,
            bytes: region.place.bytes,
            start: region.mapped.as_ptr(),
        });
        let guards = regions.iter().map(|region| Rc::clone(&region.guard)).collect();
        Ok(Mapped { memory, flat: flat.collect(), last: Cell::new(0), guards })
    }

    /// Bytes that lie in one region.
    pub(super) fn find(&self, address: u64, bytes: usize) -> Option<Span> {
        let of = |start| Span { start, bytes };
        if let Some(start) = self.flat[self.last.get()].find(address, bytes) {
            return Some(of(start));
        }
        let at = self.flat.iter().position(|flat| flat.find(address, bytes).is_some())?;
        self.last.set(at);
        self.flat[at].find(address, bytes).map(of)
    }

    /// The guest's address of a byte that was found here.
    pub(super) fn guest_address(&self, at: *const u8) -> Option<u64> {
        self.flat.iter().find_map(|flat| {
            let within = (at as usize).checked_sub(flat.start as usize)? as u64;
            (within < flat.bytes).then_some(flat.guest + within)
        })
    }

    /// Adds bytes, in as many regions as they lie in. False if they do not.
    pub(super) fn find_all(&self, address: u64, bytes: usize, spans: &mut Vec<Span>) -> bool {
        if let Some(span) = self.find(address, bytes) {
            spans.push(span);
            return true;
        }
        let before = spans.len();
        // Regions have a page at least, so that these are not many more than pages.
        for slice in GuestMemoryBackend::get_slices(&self.memory, GuestAddress(address), bytes) {
            let Ok(slice) = slice else {
                spans.truncate(before);
                return false;
            };
            spans.push(Span { start: slice.ptr_guard_mut().as_ptr(), bytes: slice.len() });
        }
        true
    }
}

/// Slices of what was looked up.
pub(super) enum Slices<'a> {
    One(Option<VolatileSlice<'a>>),
    Several(GuestMemoryBackendSliceIterator<'a, GuestMemoryMmap>),
}

impl<'a> Iterator for Slices<'a> {
    type Item = Result<VolatileSlice<'a>, GuestMemoryError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Slices::One(one) => one.take().map(Ok),
            Slices::Several(several) => several.next(),
        }
    }
}

impl FusedIterator for Slices<'_> {}
impl<'a> GuestMemorySliceIterator<'a, ()> for Slices<'a> {}

impl GuestMemory for Mapped {
    type PhysicalMemory = GuestMemoryMmap;
    type Bitmap = ();

    fn check_range(&self, address: GuestAddress, bytes: usize, _: Permissions) -> bool {
        GuestMemoryBackend::check_range(&self.memory, address, bytes)
    }

    fn get_slices<'a>(
        &'a self,
        address: GuestAddress,
        bytes: usize,
        _: Permissions,
    ) -> Result<impl GuestMemorySliceIterator<'a, ()>, GuestMemoryError> {
        Ok(match self.find(address.0, bytes) {
            // SAFETY: it is mapped as long as this is.
            Some(span) => Slices::One(Some(unsafe { span.slice() })),
            None => Slices::Several(GuestMemoryBackend::get_slices(&self.memory, address, bytes)),
        })
    }
}

impl Mapped {
    /// Some of it has gone away.
    pub(super) fn is_lost(&self) -> bool {
        self.guards.iter().any(|guard| guard.is_lost())
    }
}

/// Where a region is to be, as a front-end states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// Address by which descriptors name it.
    pub(super) guest: u64,
    /// Address by which messages name it.
    pub(super) user: u64,
    pub(super) bytes: u64,
    /// Where it begins in its file.
    pub(super) offset: u64,
}

#[derive(Debug, Clone)]
struct Region {
    place: Place,
    // Dropped in this order: what is not mapped any more must not be guarded.
    guard: Rc<Guard>,
    mapped: Arc<GuestRegionMmap>,
}

/// All that a front-end shares.
#[derive(Debug, Default)]
pub(super) struct Memory {
    regions: Vec<Region>,
    mapped: Option<Rc<Mapped>>,
    /// What was mapped before, as long as requests refer to it.
    former: Vec<Weak<Mapped>>,
    /// What is a file on a disk: a machine may have one as memory, and no disk is read into it. It is not mapped, since whoever touches
    /// such a page waits for its disk. A request whose data lies there fails.
    aside: Vec<Place>,
}

/// Why memory is not taken.
pub(super) type Reason = String;

impl Memory {
    /// What is mapped now.
    pub(super) fn mapped(&self) -> Option<&Rc<Mapped>> {
        self.mapped.as_ref()
    }

    /// Adds a region. Nothing is changed if it cannot be.
    pub(super) fn add(&mut self, place: Place, file: File) -> Result<(), Reason> {
        if self.regions.len() + self.aside.len() >= MOST_REGIONS {
            return Err(format!("it shares more than {MOST_REGIONS} regions of memory"));
        }
        if is_on_disk(&file) {
            self.aside.push(place);
            return Ok(());
        }
        let mut regions = self.regions.clone();
        regions.push(Region::new(place, file)?);
        self.become_these(regions)
    }

    /// Has these and no others. Nothing is changed if that cannot be.
    pub(super) fn replace(&mut self, places: Vec<(Place, File)>) -> Result<(), Reason> {
        if places.len() > MOST_REGIONS {
            return Err(format!("it shares more than {MOST_REGIONS} regions of memory"));
        }
        let (on_disk, memory): (Vec<_>, Vec<_>) = places.into_iter().partition(|(_, file)| is_on_disk(file));
        let regions = memory.into_iter().map(|(place, file)| Region::new(place, file));
        self.become_these(regions.collect::<Result<_, _>>()?)?;
        self.aside = on_disk.into_iter().map(|(place, _)| place).collect();
        Ok(())
    }

    /// Removes a region, wherever in its file it is.
    pub(super) fn remove(&mut self, place: Place) -> Result<(), Reason> {
        let same = |is: Place| (is.guest, is.user, is.bytes) == (place.guest, place.user, place.bytes);
        if let Some(at) = self.aside.iter().position(|aside| same(*aside)) {
            self.aside.remove(at);
            return Ok(());
        }
        let at = self.regions.iter().position(|region| same(region.place));
        let at = at.ok_or("it takes back memory that it did not share")?;
        let mut regions = self.regions.clone();
        regions.remove(at);
        self.become_these(regions)
    }

    /// What a message's address is for descriptors.
    pub(super) fn guest_address(&self, user: u64) -> Option<GuestAddress> {
        self.regions.iter().find_map(|region| {
            let within = user.checked_sub(region.place.user).filter(|within| *within < region.place.bytes)?;
            Some(GuestAddress(region.place.guest + within))
        })
    }

    fn become_these(&mut self, mut regions: Vec<Region>) -> Result<(), Reason> {
        regions.sort_by_key(|region| region.place.user);
        let overlap = |pair: &[Region]| pair[0].place.user + pair[0].place.bytes > pair[1].place.user;
        if regions.windows(2).any(overlap) {
            return Err("it shares memory twice under the same of its addresses".into());
        }
        regions.sort_by_key(|region| region.place.guest);
        let mapped = match regions.is_empty() {
            true => None,
            false => Some(Rc::new(Mapped::new(&regions)?)),
        };
        self.former.retain(|former| former.strong_count() > 0);
        if self.former.len() >= MOST_FORMER {
            return Err("it changes its memory again and again while requests refer to it".into());
        }
        self.former.extend(self.mapped.iter().map(Rc::downgrade));
        (self.regions, self.mapped) = (regions, mapped);
        Ok(())
    }
}

/// Whether it is a regular file, and not memory (memfd, /dev/shm, hugetlbfs).
fn is_on_disk(file: &File) -> bool {
    let regular = fstat(file)
        .is_ok_and(|stat| SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFREG);
    regular && fcntl(file, FcntlArg::F_GET_SEALS).is_err()
}

/// Whether a file may be mapped: it is memory (no other program is asked for its pages), as long as it is to be, and of whole
/// pages if these are huge. (What else is mapped of it could not be replaced when it goes away.)
pub(super) fn check(file: &File, offset: u64, bytes: u64) -> Result<(), Reason> {
    // BlockRequest first: only memory can answer that, and nothing waits for it.
    if fcntl(file, FcntlArg::F_GET_SEALS).is_err() {
        return Err("what it shares is no memory: only memfd, /dev/shm and hugetlbfs are taken".into());
    }
    let stat = fstat(file).map_err(|error| format!("memory that it shares cannot be checked: {error}"))?;
    if offset.checked_add(bytes).is_none_or(|end| end > stat.st_size as u64) {
        return Err("it shares memory that is longer than the file behind it".into());
    }
    let huge = fstatfs(file).is_ok_and(|fs| fs.filesystem_type() == HUGETLBFS_MAGIC);
    let page = stat.st_blksize as u64;
    if huge && !(offset.is_multiple_of(page) && bytes.is_multiple_of(page)) {
        return Err(format!("it shares memory that is not of whole huge pages, which have {page} bytes"));
    }
    Ok(())
}

impl Region {
    fn new(place: Place, file: File) -> Result<Region, Reason> {
        let ends = place.user.checked_add(place.bytes).and(place.guest.checked_add(place.bytes));
        let bytes = usize::try_from(place.bytes).ok().filter(|bytes| *bytes > 0).zip(ends);
        let (bytes, _) = bytes.ok_or("it shares memory of no length, or beyond all addresses")?;
        check(&file, place.offset, place.bytes)?;
        let mapped = MmapRegion::from_file(FileOffset::new(file, place.offset), bytes)
            .map_err(|error| format!("memory that it shares cannot be mapped: {error}"))?;
        let guard = Guard::new(mapped.as_ptr(), bytes).map_err(|error| error.to_string())?;
        let mapped = GuestRegionMmap::new(mapped, GuestAddress(place.guest));
        let mapped = mapped.ok_or("it shares memory beyond all addresses")?;
        Ok(Region { place, mapped: Arc::new(mapped), guard: Rc::new(guard) })
    }
}
