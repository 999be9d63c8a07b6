//! The request in a chain of descriptors (virtio 1.2, 5.2.6): a header, data, and a byte for the result, split over
//! descriptors in any way.

use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP, VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_FLUSH,
    VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT, VIRTIO_BLK_T_WRITE_ZEROES,
    VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP,
};
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Bytes, GuestAddress};

use super::memory::{Mapped, Span};

/// Bytes of a sector, the unit of the header.
pub(super) const SECTOR: u64 = 512;
/// The most bytes that are read or written by one request.
pub(super) const MOST_DATA: usize = 32 << 20;
/// The most sectors that are discarded, or turned to zeroes, by one.
pub(super) const MOST_ZEROED: u32 = 1 << 22;
const HEADER: usize = 16;
const SEGMENT: usize = 16;
/// Room for so many pieces is kept for the next request.
const KEPT: usize = 64;
/// Bytes of a descriptor.
const DESCRIPTOR: u64 = 16;
/// More descriptors than that no request needs.
const MOST_OF_CHAIN: u64 = 2048;
/// Bytes of what a disk is called.
pub(super) const ID: usize = 20;

/// What came of a request.
pub(super) mod status {
    pub(in crate::vhost) const OK: u8 = super::VIRTIO_BLK_S_OK as u8;
    pub(in crate::vhost) const IO: u8 = super::VIRTIO_BLK_S_IOERR as u8;
    pub(in crate::vhost) const UNSUPPORTED: u8 = super::VIRTIO_BLK_S_UNSUPP as u8;
}

/// A chain of descriptors, from its head on. (The one of the virtio-queue crate begins only with what the queue has next, which
/// what was begun in a former life is not; and does not distinguish a broken chain from one that ends.)
#[derive(Debug)]
pub(super) struct Chain<'m> {
    memory: &'m Mapped,
    table: GuestAddress,
    /// Descriptors of the table.
    size: u32,
    next: Option<u16>,
    /// Descriptors that may follow: a longer chain goes in circles.
    left: u32,
    indirect: bool,
}

impl<'m> Chain<'m> {
    /// The chain with this head, in a table of so many descriptors.
    pub(super) fn new(memory: &'m Mapped, table: GuestAddress, size: u16, head: u16) -> Chain<'m> {
        Chain { memory, table, size: size.into(), next: Some(head), left: size.into(), indirect: false }
    }

    fn step(&mut self) -> Result<Option<Descriptor>, NoChain> {
        let Some(index) = self.next else { return Ok(None) };
        if u32::from(index) >= self.size {
            return Err(NoChain("a chain leaves its table of descriptors"));
        }
        self.left = self.left.checked_sub(1).ok_or(NoChain("a chain of descriptors goes in circles"))?;
        let at = self.table.0.wrapping_add(u64::from(index) * DESCRIPTOR);
        let span = self.memory.find(at, DESCRIPTOR as usize);
        let span = span.ok_or(NoChain("descriptors lie outside of the memory that is shared"))?;
        // SAFETY: what it was found in is borrowed.
        let read = unsafe { span.slice() }.read_obj::<Descriptor>(0);
        let descriptor = read.map_err(|_| NoChain("a descriptor cannot be read"))?;
        if !descriptor.refers_to_indirect_table() {
            self.next = descriptor.has_next().then(|| descriptor.next());
            return Ok(Some(descriptor));
        }
        let bytes = u64::from(descriptor.len());
        if self.indirect || descriptor.has_next() || bytes == 0 || !bytes.is_multiple_of(DESCRIPTOR) {
            return Err(NoChain("a table of descriptors within a chain is not as it should be"));
        }
        if bytes / DESCRIPTOR > MOST_OF_CHAIN {
            return Err(NoChain("a chain has more descriptors than any request needs"));
        }
        (self.table, self.indirect, self.next) = (descriptor.addr(), true, Some(0));
        (self.size, self.left) = ((bytes / DESCRIPTOR) as u32, (bytes / DESCRIPTOR) as u32);
        self.step()
    }
}

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    Read,
    Write,
    Flush,
    Discard,
    WriteZeroes { unmap: bool },
    Id,
}

/// A request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Parsed {
    pub(super) verb: Verb,
    pub(super) sector: u64,
    pub(super) sectors: u32,
}

/// Where a request's answer goes, and its data is.
#[derive(Debug)]
pub(super) struct Place {
    /// The byte for what came of it.
    pub(super) status: *mut u8,
    /// Data, to be read or written.
    pub(super) data: Vec<Span>,
    /// Bytes of it.
    pub(super) length: usize,
    /// Used while a chain is taken apart.
    found: Vec<Span>,
    pieces: usize,
}

/// A broken chain: there is no place for an answer, and the connection ends.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NoChain(pub(super) &'static str);

impl Verb {
    /// It changes what is on the disk.
    pub(super) fn changes(self) -> bool {
        matches!(self, Verb::Write | Verb::Discard | Verb::WriteZeroes { .. })
    }
}

impl Place {
    /// Pieces of memory, and descriptors, that it took to find it.
    pub(super) fn pieces(&self) -> usize {
        self.pieces
    }

    /// It is not used for now: what was needed for a long request is given back.
    pub(super) fn done(&mut self) {
        self.data.clear();
        self.data.shrink_to(KEPT);
        self.found.shrink_to(KEPT);
    }

    pub(super) fn new() -> Place {
        Place { status: std::ptr::null_mut(), data: Vec::new(), length: 0, found: Vec::new(), pieces: 0 }
    }

    /// Takes a chain apart; on a disk of so many sectors. What is asked, or the status with which it fails.
    pub(super) fn read(&mut self, mut chain: Chain, sectors: u64) -> Result<Result<Parsed, u8>, NoChain> {
        self.data.clear();
        (self.status, self.length, self.pieces) = (std::ptr::null_mut(), 0, 0);
        let mut head = [0; HEADER + SEGMENT];
        // Bytes that were read into it; readable ones in all, and those behind the header.
        let (mut headed, mut readable) = (0, 0);
        let mut writable = false;
        // All that is to be read or written was found; and the last of it.
        let (mut reached, mut last_reached) = (true, false);
        while let Some(descriptor) = chain.step()? {
            let length = descriptor.len() as usize;
            if descriptor.is_write_only() {
                writable = true;
            } else if writable {
                return Err(NoChain("a chain has something to be read behind what is to be written"));
            }
            if length == 0 {
                continue;
            }
            last_reached = false;
            self.pieces += 1;
            if self.data.len() as u64 > MOST_OF_CHAIN {
                return Err(NoChain("a chain refers to more pieces of memory than any request needs"));
            }
            let before = self.data.len();
            if !chain.memory.find_all(descriptor.addr().0, length, &mut self.data) {
                reached = false;
                continue;
            }
            last_reached = true;
            self.pieces += self.data.len() - before;
            if writable {
                self.length += length;
                continue;
            }
            self.found.clear();
            self.found.extend(self.data.drain(before..));
            for span in &self.found {
                // Only of requests without data of their own is more of it looked at than the header.
                let wanted = (head.len() - headed).min(span.bytes);
                // SAFETY: what it was found in is borrowed by the chain.
                unsafe { span.slice() }.copy_to(&mut head[headed..headed + wanted]);
                headed += wanted;
                let of_header = HEADER.saturating_sub(readable).min(span.bytes);
                readable += span.bytes;
                if of_header < span.bytes {
                    // SAFETY: less than its length, so that it stays within the slice.
                    let start = unsafe { span.start.add(of_header) };
                    self.data.push(Span { start, bytes: span.bytes - of_header });
                    self.length += span.bytes - of_header;
                }
            }
        }
        let read = readable.saturating_sub(HEADER);
        if !writable {
            return Err(NoChain("a chain has no place for what came of it"));
        }
        // The last byte to be written is for that; what is left of writable memory is for data.
        let last = self.data.last_mut().filter(|_| self.length > read && last_reached);
        let Some(last) = last else {
            return Err(NoChain(
                "a chain's place for what came of it lies outside of the memory that is shared",
            ));
        };
        last.bytes -= 1;
        self.length -= 1;
        // SAFETY: it was the last of its bytes.
        self.status = unsafe { last.start.add(last.bytes) };
        if last.bytes == 0 {
            self.data.pop();
        }
        if !reached || headed < HEADER {
            return Ok(Err(status::IO));
        }
        let parsed = self.parse(&head[..headed], read, sectors);
        if !matches!(parsed, Ok(Parsed { verb: Verb::Read | Verb::Write | Verb::Id, .. })) {
            // What else comes with it takes nothing.
            self.data.clear();
            self.length = 0;
        }
        Ok(parsed)
    }

    /// `read`: bytes of data that are to be written to the disk; the others are to be read.
    fn parse(&mut self, head: &[u8], read: usize, sectors: u64) -> Result<Parsed, u8> {
        let number = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
        let long = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
        let (kind, sector) = (number(0), long(8));
        let write = self.length - read;
        let (verb, in_both) = match kind {
            VIRTIO_BLK_T_IN => (Verb::Read, read > 0),
            VIRTIO_BLK_T_OUT => (Verb::Write, write > 0),
            VIRTIO_BLK_T_FLUSH => return Ok(Parsed { verb: Verb::Flush, sector: 0, sectors: 0 }),
            VIRTIO_BLK_T_GET_ID => {
                let fits = read == 0 && write >= ID;
                let parsed = Parsed { verb: Verb::Id, sector: 0, sectors: 0 };
                return if fits { Ok(parsed) } else { Err(status::IO) };
            }
            VIRTIO_BLK_T_DISCARD | VIRTIO_BLK_T_WRITE_ZEROES => {
                // One segment is the most that the configuration allows.
                if read != SEGMENT || head.len() < HEADER + SEGMENT {
                    return Err(status::IO);
                }
                let (sector, sectors_asked, flags) = (long(HEADER), number(HEADER + 8), number(HEADER + 12));
                let unmap = flags & VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP != 0;
                let unknown = flags & !VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP != 0;
                if unknown || kind == VIRTIO_BLK_T_DISCARD && unmap {
                    return Err(status::UNSUPPORTED);
                }
                if sectors_asked > MOST_ZEROED {
                    return Err(status::IO);
                }
                let verb =
                    if kind == VIRTIO_BLK_T_DISCARD { Verb::Discard } else { Verb::WriteZeroes { unmap } };
                return within(verb, sector, sectors_asked, sectors);
            }
            _ => return Err(status::UNSUPPORTED),
        };
        let bytes = self.length as u64;
        if in_both || bytes == 0 || self.length > MOST_DATA || !bytes.is_multiple_of(SECTOR) {
            return Err(status::IO);
        }
        within(verb, sector, (bytes / SECTOR) as u32, sectors)
    }
}

fn within(verb: Verb, sector: u64, sectors: u32, of: u64) -> Result<Parsed, u8> {
    let ends = sector.checked_add(sectors.into()).is_some_and(|end| end <= of);
    if ends && sectors > 0 { Ok(Parsed { verb, sector, sectors }) } else { Err(status::IO) }
}
