//! Scrubbing all extents, at a bounded rate: corruption is found while another copy can mend it.
//!
//! ```text
//! tick ─▶ budget ─┬─▶ the next extent ─▶ reads and checks it ─▶ not whole: block by block ─▶ reported ─▶ its owner writes it anew
//!                 └─▶ the next slots ──▶ reads them ──────────▶ not as in memory: written again
//! ```
//!
//! Blocks whose newest data is in the log are scrubbed only if a person asks for a scrub: there they are scattered, and to read them all the
//! time takes most of a slow device. They are destaged when nothing else is to be done. What their extents have is not read any more.

use loadline_san_core::layout::BLOCK;
use loadline_san_core::store::Completion;
use loadline_san_protocol::log::{SECTOR, block_crc};
use zerocopy::IntoBytes;

use crate::extents::Place;
use crate::io::{Area, Data, IoRequest, Part, Piece, Reading, Sector};
use crate::store::{Action, Purpose, Store};

/// Slots that are read at once: those in a block.
const SLOTS: u32 = (BLOCK / SECTOR as u64) as u32;
/// Places that are passed over at once, while none has an extent.
const MOST_PASSED: u32 = 4096;

/// The results of scrubbing the extents, since the store was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scrubbed {
    /// How often all were checked.
    pub passes: u64,
    /// Bytes that were checked.
    pub bytes: u64,
    /// Blocks that were found not to match their checksums, as often as they were found.
    pub corrupt: u64,
    /// Slots that were written again.
    pub slots: u64,
}

/// The state of scrubbing: how far the pass has come, and how many bytes it may read now.
#[derive(Debug, Default)]
pub(crate) struct Scrub {
    /// The place that is checked next, and whether its slot was.
    next: Place,
    slots_seen: bool,
    /// Bytes that may be read.
    budget: u64,
    /// Blocks of an extent that is not whole, which are checked one by one.
    suspects: Vec<u64>,
    /// Places whose slots are to be written again before anything else is done.
    slots: Vec<Place>,
    /// Something was asked for, and has not come.
    waits: bool,
    /// How many rounds of destaging had ended when slots were asked for.
    rounds: u64,
    /// A pass has ended, and the next has to wait.
    rests: bool,
    /// What the log has is checked too.
    with_log: bool,
    pub(crate) scrubbed: Scrubbed,
}

impl Scrub {
    /// Time has passed: so many bytes more may be read. Nothing is saved up for long.
    pub(crate) fn earn(&mut self, bytes: u64, extent: u64) {
        self.budget = (self.budget + bytes).min(bytes.max(extent));
        self.rests = bytes == 0;
    }

    /// Whether what the log has is checked too.
    pub(crate) fn with_log(&mut self, with_log: bool) {
        self.with_log = with_log;
    }

    /// The next that is checked is the first.
    pub(crate) fn begin_anew(&mut self) {
        (self.next, self.slots_seen) = (0, false);
    }

    /// The slots of these places are not as they are to be.
    pub(crate) fn write_again(&mut self, places: Vec<Place>, per_chunk: u32) {
        let first = |place: Place| place - place % per_chunk % SLOTS;
        self.slots.extend(places.into_iter().map(first));
        self.slots.dedup();
    }
}

impl<D: Data> Store<D> {
    /// Begins the next read, if it may.
    pub(crate) fn run_scrub(&mut self, out: &mut Vec<Action<D>>) {
        for _ in 0..MOST_PASSED {
            if self.scrub.waits {
                return;
            }
            if self.destage.is_quiet()
                && let Some(place) = self.scrub.slots.pop()
            {
                let sectors = self.slots_from(place);
                self.write_slots_again(place, &sectors, out);
                continue;
            }
            if let Some(block) = self.scrub.suspects.pop() {
                self.scrub_blocks(block, 1, out);
                continue;
            }
            let size = self.extents.blocks();
            if self.scrub.rests || self.scrub.budget < size * BLOCK {
                return;
            }
            let place = self.scrub.next;
            if place >= self.extents.all_places() {
                self.scrub.next = 0;
                self.scrub.rests = true;
                self.scrub.scrubbed.passes += u64::from(place > 0);
                return;
            }
            let within = place % self.extents.per_chunk();
            if within.is_multiple_of(SLOTS) && !std::mem::replace(&mut self.scrub.slots_seen, true) {
                self.read_slots(place, out);
                continue;
            }
            self.scrub.slots_seen = false;
            self.scrub.next += 1;
            let extent = self.extents.at(place);
            if extent.stored {
                let first = extent.slot.extent * size;
                let blocks = size.min(self.meta.state.blocks.saturating_sub(first));
                self.scrub.budget -= size * BLOCK;
                let checked = (first..first + blocks).filter(|block| !self.is_left_to_destaging(*block));
                self.scrub.scrubbed.bytes += checked.count() as u64 * BLOCK;
                self.scrub_blocks(first, blocks as u32, out);
            }
        }
    }

    /// The log has this block anew, and the scrub leaves out what the log has.
    pub(crate) fn is_left_to_destaging(&self, block: u64) -> bool {
        !self.scrub.with_log && self.index.newest(block).is_some()
    }

    fn scrub_blocks(&mut self, first: u64, blocks: u32, out: &mut Vec<Action<D>>) {
        self.scrub.waits = true;
        self.read_to_check(first, blocks, out);
    }

    /// These blocks were read, and are whole or not.
    pub(crate) fn checked(&mut self, first: u64, blocks: u32, whole: bool, out: &mut Vec<Action<D>>) {
        self.scrub.waits = false;
        if whole {
            return;
        }
        if blocks > 1 {
            self.scrub.suspects.extend(first..first + u64::from(blocks));
            return;
        }
        // What is on the list is brought again. A return may have dropped what it was being destaged with.
        if self.meta.list().iter().any(|listed| listed.contains(&first)) {
            return;
        }
        self.scrub.scrubbed.corrupt += 1;
        self.found_corrupt(first..first + 1);
        out.push(Action::Complete(Completion::Corrupt { block: first }));
    }

    /// Places whose slots are in one block with that of this place, which is the first.
    fn neighbours(&self, place: Place) -> std::ops::Range<Place> {
        let left = self.extents.per_chunk() - place % self.extents.per_chunk();
        place..place + left.min(SLOTS)
    }

    /// Reads the slots of a place and of its neighbours, if they are to be on the device as they are in memory.
    fn read_slots(&mut self, place: Place, out: &mut Vec<Action<D>>) {
        if !self.destage.is_quiet() || self.neighbours(place).any(|place| self.extents.is_corrupt(place)) {
            // Some other time.
            return;
        }
        (self.scrub.waits, self.scrub.rounds) = (true, self.destage.rounds());
        // A store in which nothing is has slots too.
        self.scrub.budget = self.scrub.budget.saturating_sub(BLOCK);
        let mut pieces = self.memory.pieces();
        pieces.push(Piece { area: Area::Capacity, at: self.extents.slot_at(place), first: 0, blocks: 1 });
        self.request_io(Purpose::Slots(place), IoRequest::Read(Reading { blocks: 1, pieces }), out);
    }

    /// Slots were read, or could not be.
    pub(crate) fn slots_read(&mut self, place: Place, data: Option<D>, out: &mut Vec<Action<D>>) {
        self.scrub.waits = false;
        if !self.destage.is_quiet() || self.destage.rounds() != self.scrub.rounds {
            return;
        }
        let sectors = self.slots_from(place);
        let address = self.address(0);
        let expected = block_crc(address.volume, address.group, 0, sectors.as_bytes());
        if data.is_some_and(|mut data| data.take_checksum(0, address) == expected) {
            return;
        }
        self.write_slots_again(place, &sectors, out);
    }

    /// The slots from a place on, as they are to be on the device.
    fn slots_from(&self, place: Place) -> Vec<Sector> {
        let mut sectors = Sector::zeroes(SLOTS as usize);
        for (sector, place) in sectors.iter_mut().zip(self.neighbours(place)) {
            *sector = self.encoded_slot(place);
        }
        sectors
    }

    /// Whether slots wait to be written again, or are being written.
    pub(crate) fn has_slots_to_write(&self) -> bool {
        !self.scrub.slots.is_empty() || self.destage.is_mending()
    }

    fn write_slots_again(&mut self, place: Place, sectors: &[Sector], out: &mut Vec<Action<D>>) {
        // No other job writes these slots meanwhile: two writes of one slot could land in any order.
        self.destage.mend(true);
        self.scrub.waits = true;
        self.scrub.scrubbed.slots += self.neighbours(place).len() as u64;
        let mut writing = self.memory.writing(Area::Capacity, self.extents.slot_at(place), true);
        writing.bytes.extend_from_slice(sectors);
        writing.parts.push(Part::Bytes(SLOTS));
        self.request_io(Purpose::Mend, IoRequest::Write(writing), out);
    }

    /// Slots were written again.
    pub(crate) fn slots_mended(&mut self) {
        self.scrub.waits = false;
        self.destage.mend(false);
    }
}
