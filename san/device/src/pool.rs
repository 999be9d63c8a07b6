//! Memory for blocks: page-aligned, each block with its checksum, taken and given back without allocating.
//!
//! A [`Pool`] has a region of memory for each size of buffers, all made at the beginning. A buffer is taken as
//! [`BlocksMut`], which is the only handle to it and may be written through; frozen, it is a [`Blocks`], of which there may
//! be many, and through which nothing is written. The last handle gives the buffer back. A buffer for which there is no room
//! gets memory of its own, which is slow, and is counted: see [`Pool::statistics`]. A pool may have a spare region too:
//! for buffers of one size when those of its class are all taken. It is given back to the system when it is not used.
//!
//! # Why this is sound
//! - A slot is on its region's free list exactly while its count of references is 0. [`Pool::take`] takes it off the list
//!   and counts one; each clone counts one more, each drop one less, and the drop that comes to 0 puts it back. So no two
//!   live buffers have the same slot, and slots do not overlap.
//! - Bytes are written only through `&mut BlocksMut`, or by the owner of a whole `BlocksMut` through its pointer. `BlocksMut`
//!   is not `Clone`, so then there is no `&[u8]` of the buffer. Freezing consumes it.
//! - Regions are never unmapped, moved or made into a `&mut [u8]` of more than one slot before the pool is dropped, and
//!   every handle keeps the pool alive.
//! - All memory is zeroed by the system when it is made, so it is always initialised.
//! - Counts and lists are in cells, so neither `Pool` nor its handles are `Send` or `Sync`.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::rc::Rc;

use loadline_base::buffer::AlignedBuffer;
use loadline_san_core::layout::BLOCK;
use loadline_san_protocol::log::block_crc;
use loadline_san_store::io::{Address, Data};

/// Bytes of a block, as a length of memory.
pub const BLOCK_BYTES: usize = BLOCK as usize;

/// A pool is short when its buffers with memory of their own come to so many bytes.
const MOST_OWN: usize = 32 << 20;

/// Buffers of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Class {
    /// Blocks of 4 KiB of each.
    pub blocks: u32,
    /// How many there are.
    pub buffers: u32,
}

/// What a pool did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Buffers that were taken so far.
    pub taken: u64,
    /// Those of them that got memory of their own: they were larger than every class, or there were too many of their size.
    /// It should be next to none.
    pub on_their_own: u64,
}

/// Memory for the buffers of one thread. Clones are the same pool.
#[derive(Clone)]
pub struct Pool(Rc<Inner>);

struct Inner {
    /// From the smallest class to the largest; and the spare one, if there is one, at the end.
    regions: Box<[Region]>,
    spare: Option<Spare>,
    statistics: Cell<Statistics>,
    /// Bytes of the buffers that have memory of their own.
    own: Cell<usize>,
}

struct Region {
    class: Class,
    memory: AlignedBuffer,
    /// Slots without references. It has room for all of them.
    free: RefCell<Vec<u32>>,
    /// For each slot.
    references: Box<[Cell<u32>]>,
    /// For each block.
    checksums: Box<[Cell<u32>]>,
}

/// What is known of the spare region.
struct Spare {
    /// Its index.
    region: usize,
    use_of_it: Cell<Use>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// The system has its memory.
    None,
    /// It was used since the last check.
    Lately,
    /// It was not, and the system does not have it back.
    Before,
}

/// The memory of a buffer for which the pool had no room.
struct Own {
    memory: AlignedBuffer,
    checksums: Box<[Cell<u32>]>,
    pool: Rc<Inner>,
}

impl Drop for Own {
    fn drop(&mut self) {
        self.pool.own.set(self.pool.own.get() - self.memory.len());
    }
}

/// Where a buffer's memory is.
enum Home {
    Slot {
        pool: Rc<Inner>,
        region: u32,
        slot: u32,
    },
    Own(Rc<Own>),
    /// Memory of another owner (see `direct_read`): only the checksums are here.
    Elsewhere(Rc<[Cell<u32>]>),
}

/// Consecutive blocks of 4 KiB, and the checksum of each. Clones are the same blocks, which do not change any more.
pub struct Blocks {
    /// The first byte. Valid as long as `home` is.
    start: NonNull<u8>,
    blocks: u32,
    home: Home,
}

/// Consecutive blocks of 4 KiB to which there is no other reference, so that they may be written to. They hold anything: what was
/// there before, for one.
#[derive(Debug)]
pub struct BlocksMut(Blocks);

/// Not as many checksums were given as there are blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "{blocks} blocks came with {}{given} checksums, and need one each: the sender is at fault, report it",
    if given > blocks { "at least " } else { "" }
)]
pub struct WrongCount {
    /// Blocks of the buffer.
    pub blocks: u32,
    /// Checksums that were given.
    pub given: u32,
}

impl Pool {
    /// A pool with these buffers. Fails where the system has no memory to give, and for a class without blocks or without
    /// buffers. The memory is taken from the system when it is first touched.
    pub fn new(classes: &[Class]) -> io::Result<Pool> {
        Pool::of(classes, None)
    }

    /// The same, with more buffers of the size of one class, which are used when those of the class are taken. Their memory is
    /// not registered with io_uring, and goes back to the system when it is not used: see [`let_go`](Self::let_go).
    pub fn with_spare(classes: &[Class], spare: Class) -> io::Result<Pool> {
        assert!(
            classes.iter().any(|class| class.blocks == spare.blocks),
            "the spare class has the size of another"
        );
        Pool::of(classes, Some(spare))
    }

    fn of(classes: &[Class], spare: Option<Class>) -> io::Result<Pool> {
        let mut classes = classes.to_vec();
        classes.sort_by_key(|class| class.blocks);
        let mut regions = classes.iter().copied().map(Region::new).collect::<io::Result<Vec<Region>>>()?;
        regions.iter().for_each(|region| region.memory.want_huge_pages());
        if let Some(spare) = spare {
            // Its pages come when they are needed: to find a huge one then may take milliseconds.
            regions.push(Region::new(spare)?);
        }
        let spare = spare.map(|_| Spare { region: classes.len(), use_of_it: Cell::new(Use::None) });
        Ok(Pool(Rc::new(Inner {
            regions: regions.into(),
            spare,
            statistics: Cell::default(),
            own: Cell::default(),
        })))
    }

    /// A buffer of so many blocks, which hold anything. Fails for none, or if there is no room in the pool and the system has
    /// no memory to give.
    pub fn take(&self, blocks: u32) -> io::Result<BlocksMut> {
        if blocks == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a buffer of no blocks"));
        }
        let mut statistics = self.0.statistics.get();
        statistics.taken += 1;
        let taken = match self.0.take_slot(blocks) {
            Some((index, slot)) => {
                let region = &self.0.regions[index];
                region.references[slot as usize].set(1);
                let home = Home::Slot { pool: Rc::clone(&self.0), region: index as u32, slot };
                Blocks { start: region.start_of(slot), blocks, home }
            }
            None => {
                statistics.on_their_own += 1;
                let memory = AlignedBuffer::new(blocks as usize * BLOCK_BYTES)?;
                let start = NonNull::new(memory.as_ptr()).ok_or(io::ErrorKind::OutOfMemory)?;
                self.0.own.set(self.0.own.get() + memory.len());
                let own = Own { memory, checksums: cells(blocks as usize), pool: Rc::clone(&self.0) };
                Blocks { start, blocks, home: Home::Own(Rc::new(own)) }
            }
        };
        self.0.statistics.set(statistics);
        Ok(BlocksMut(taken))
    }

    /// A buffer that holds these bytes. Fails if they are not whole blocks, and as [`take`](Self::take) does.
    pub fn take_filled(&self, from: &[u8]) -> io::Result<BlocksMut> {
        let blocks =
            u32::try_from(from.len() / BLOCK_BYTES).ok().filter(|_| from.len().is_multiple_of(BLOCK_BYTES));
        let blocks = blocks
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "bytes that are no whole blocks"))?;
        let mut taken = self.take(blocks)?;
        taken.bytes_mut().copy_from_slice(from);
        Ok(taken)
    }

    /// Whether of some class less than a quarter is free, or much has memory of its own: a holder that keeps buffers only to be faster does
    /// not take another.
    pub fn is_short(&self) -> bool {
        if self.0.own.get() >= MOST_OWN {
            return true;
        }
        let spare = self.0.spare_region();
        self.0.classes().iter().any(|region| {
            let more = spare.filter(|spare| spare.class.blocks == region.class.blocks);
            let (free, all) =
                [Some(region), more].into_iter().flatten().fold((0, 0), |(free, all), region| {
                    (free + region.free.borrow().len(), all + region.class.buffers as usize)
                });
            free < all / 4
        })
    }

    /// Gives the spare memory back to the system, if it was not used since the last call. To be called now and then.
    pub fn let_go(&self) {
        let (Some(spare), Some(region)) = (&self.0.spare, self.0.spare_region()) else { return };
        let is_free = region.free.borrow().len() == region.class.buffers as usize;
        match spare.use_of_it.get() {
            Use::Lately => spare.use_of_it.set(Use::Before),
            Use::Before if is_free => {
                // SAFETY: all of its slots are free, so that there is no handle to any, and the kernel has none either, since
                // a request in flight keeps a handle. What is there next are zeroes.
                unsafe { region.memory.forget() };
                spare.use_of_it.set(Use::None);
            }
            Use::Before | Use::None => {}
        }
    }

    /// What it did so far.
    pub fn statistics(&self) -> Statistics {
        self.0.statistics.get()
    }

    /// The classes from the smallest to the largest, and the spare one, each with how many of its buffers are unreferenced.
    pub fn free(&self) -> impl Iterator<Item = (Class, usize)> + '_ {
        self.0.regions.iter().map(|region| (region.class, region.free.borrow().len()))
    }

    /// The memory of the classes, by which it is registered: first byte and length in bytes. It stays mapped until the last of
    /// the pool's clones and buffers is dropped.
    pub(crate) fn regions(&self) -> impl Iterator<Item = (*mut u8, usize)> + '_ {
        self.0.classes().iter().map(|region| (region.memory.as_ptr(), region.memory.len()))
    }

    /// The index in [`regions`](Self::regions) of the one that these bytes are in, if they are in one.
    pub(crate) fn region_of(&self, start: *const u8, bytes: usize) -> Option<u16> {
        let within = |region: &Region| {
            let from = (start as usize).checked_sub(region.memory.as_ptr() as usize);
            from.and_then(|from| from.checked_add(bytes)).is_some_and(|end| end <= region.memory.len())
        };
        self.0.classes().iter().position(within).and_then(|index| u16::try_from(index).ok())
    }
}

impl Inner {
    /// The regions but for the spare one.
    fn classes(&self) -> &[Region] {
        &self.regions[..self.spare.as_ref().map_or(self.regions.len(), |spare| spare.region)]
    }

    fn spare_region(&self) -> Option<&Region> {
        self.spare.as_ref().map(|spare| &self.regions[spare.region])
    }

    /// A free slot for so many blocks, and its region.
    fn take_slot(&self, blocks: u32) -> Option<(usize, u32)> {
        let fitting = self.classes().iter().position(|region| region.class.blocks >= blocks)?;
        let class = self.regions[fitting].class;
        if let Some(slot) = self.regions[fitting].free.borrow_mut().pop() {
            return Some((fitting, slot));
        }
        let spare =
            self.spare.as_ref().filter(|spare| self.regions[spare.region].class.blocks == class.blocks)?;
        let slot = self.regions[spare.region].free.borrow_mut().pop()?;
        spare.use_of_it.set(Use::Lately);
        Some((spare.region, slot))
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.free()).finish()
    }
}

impl Region {
    fn new(class: Class) -> io::Result<Region> {
        let blocks = class.blocks as usize * class.buffers as usize;
        let bytes = blocks.checked_mul(BLOCK_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
        let memory = AlignedBuffer::new(bytes)?;
        Ok(Region {
            class,
            memory,
            // The last is taken first: what was given back just now is still in the CPU's cache.
            free: RefCell::new((0..class.buffers).rev().collect()),
            references: cells(class.buffers as usize),
            checksums: cells(blocks),
        })
    }

    fn start_of(&self, slot: u32) -> NonNull<u8> {
        assert!(slot < self.class.buffers, "a slot of this region");
        let offset = slot as usize * self.class.blocks as usize * BLOCK_BYTES;
        // SAFETY: the region is as long as all its slots, and this is one of them, so the sum stays within the mapping; which
        // does not begin at 0.
        unsafe { NonNull::new_unchecked(self.memory.as_ptr().add(offset)) }
    }
}

fn cells(count: usize) -> Box<[Cell<u32>]> {
    (0..count).map(|_| Cell::new(0)).collect()
}

impl Blocks {
    /// Blocks that were read to the memory of a waiting request, with their checksums.
    pub(crate) fn elsewhere(checksums: impl Iterator<Item = u32>) -> Blocks {
        let sums: Rc<[Cell<u32>]> = checksums.map(Cell::new).collect();
        let blocks = u32::try_from(sums.len()).expect("as many as are read at once");
        Blocks { start: NonNull::dangling(), blocks, home: Home::Elsewhere(sums) }
    }

    /// The blocks were read into the memory of a waiting request, so their bytes are not available here.
    pub fn are_elsewhere(&self) -> bool {
        matches!(self.home, Home::Elsewhere(_))
    }

    /// How many they are, never 0.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// The bytes of all of them.
    ///
    /// # Panics
    /// If they are [elsewhere](Self::are_elsewhere).
    pub fn bytes(&self) -> &[u8] {
        assert!(!self.are_elsewhere(), "what was read into the memory of a client is read nowhere else");
        // SAFETY: the memory is mapped and initialised, has that length, and is kept by `home`. Nothing writes to it while this is
        // borrowed: see the module. (A BlocksMut lends it from itself.)
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.blocks as usize * BLOCK_BYTES) }
    }

    /// The bytes of one. Panics if there are not so many.
    pub fn block(&self, index: u32) -> &[u8] {
        &self.bytes()[range(index, 1)]
    }

    /// The first byte, for I/O: valid for reading as long as any handle to this buffer lives.
    pub fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// The checksums, in the order of the blocks.
    pub fn checksums(&self) -> impl ExactSizeIterator<Item = u32> + '_ {
        self.sums().iter().map(Cell::get)
    }

    /// How many handles there are to this buffer.
    pub fn handles(&self) -> usize {
        match &self.home {
            Home::Slot { pool, region, slot } => {
                pool.regions[*region as usize].references[*slot as usize].get() as usize
            }
            Home::Own(own) => Rc::strong_count(own),
            Home::Elsewhere(sums) => Rc::strong_count(sums),
        }
    }

    fn sums(&self) -> &[Cell<u32>] {
        match &self.home {
            Home::Slot { pool, region, slot } => {
                let region = &pool.regions[*region as usize];
                let first = *slot as usize * region.class.blocks as usize;
                &region.checksums[first..first + self.blocks as usize]
            }
            Home::Own(own) => &own.checksums,
            Home::Elsewhere(sums) => sums,
        }
    }
}

/// Where so many blocks are in a buffer, in bytes.
fn range(first: u32, blocks: u32) -> Range<usize> {
    let first = first as usize * BLOCK_BYTES;
    first..first + blocks as usize * BLOCK_BYTES
}

pub(crate) fn sum(bytes: &[u8], of: Address) -> u32 {
    block_crc(of.volume, of.group, of.block, bytes)
}

impl Clone for Blocks {
    fn clone(&self) -> Blocks {
        let home = match &self.home {
            Home::Slot { pool, region, slot } => {
                let references = &pool.regions[*region as usize].references[*slot as usize];
                // A count that went round would free what is in use.
                references.set(references.get().checked_add(1).expect("less than 2^32 handles to a buffer"));
                Home::Slot { pool: Rc::clone(pool), region: *region, slot: *slot }
            }
            Home::Own(own) => Home::Own(Rc::clone(own)),
            Home::Elsewhere(sums) => Home::Elsewhere(Rc::clone(sums)),
        };
        Blocks { start: self.start, blocks: self.blocks, home }
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        if let Home::Slot { pool, region, slot } = &self.home {
            let region = &pool.regions[*region as usize];
            let references = &region.references[*slot as usize];
            references.set(references.get() - 1);
            if references.get() == 0 {
                region.free.borrow_mut().push(*slot);
            }
        }
    }
}

impl Data for Blocks {
    fn checksum(&self, index: u32, _: Address) -> u32 {
        self.sums()[index as usize].get()
    }

    fn is_here(&self) -> bool {
        !self.are_elsewhere()
    }

    fn take_checksum(&mut self, index: u32, of: Address) -> u32 {
        if self.are_elsewhere() {
            // It was taken of what was read, where it lay.
            return self.sums()[index as usize].get();
        }
        let crc = sum(self.block(index), of);
        self.sums()[index as usize].set(crc);
        crc
    }
}

impl fmt::Debug for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blocks").field("blocks", &self.blocks).field("handles", &self.handles()).finish()
    }
}

impl fmt::Debug for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Own").field("bytes", &self.memory.len()).finish()
    }
}

impl BlocksMut {
    /// How many they are, never 0.
    pub fn blocks(&self) -> u32 {
        self.0.blocks
    }

    /// The bytes of all of them.
    pub fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    /// The bytes of all of them, to write to.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for Blocks::bytes; and this is the only handle, borrowed for as long as the bytes are.
        unsafe { std::slice::from_raw_parts_mut(self.0.start.as_ptr(), self.0.blocks as usize * BLOCK_BYTES) }
    }

    /// The bytes of so many of them, to write to. Panics if there are not so many.
    pub fn some_mut(&mut self, first: u32, blocks: u32) -> &mut [u8] {
        &mut self.bytes_mut()[range(first, blocks)]
    }

    /// The first byte, for I/O: valid for writing as long as this lives and is neither frozen nor borrowed.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.start.as_ptr()
    }

    /// To be shared: with checksums that are taken now, where the data comes to be.
    pub fn freeze(self, mut of: impl FnMut(u32) -> Address) -> Blocks {
        for (index, cell) in (0..).zip(self.0.sums()) {
            cell.set(sum(self.0.block(index), of(index)));
        }
        self.0
    }

    /// To be shared: with checksums that came with the data. The caller has verified them, or will.
    pub fn freeze_with(self, checksums: impl IntoIterator<Item = u32>) -> Result<Blocks, WrongCount> {
        let mut cells = self.0.sums().iter();
        let mut given = 0;
        for crc in checksums {
            given += 1;
            let Some(cell) = cells.next() else {
                return Err(WrongCount { blocks: self.0.blocks, given });
            };
            cell.set(crc);
        }
        if given < self.0.blocks {
            return Err(WrongCount { blocks: self.0.blocks, given });
        }
        Ok(self.0)
    }

    /// To be shared: without checksums (they are 0), which the reader takes ([`Data::take_checksum`]).
    pub fn freeze_without(self) -> Blocks {
        self.0.sums().iter().for_each(|cell| cell.set(0));
        self.0
    }
}

#[cfg(test)]
mod tests;
