//! More room for extents: a chunk of the device at a time.
//!
//! ```text
//! taken, in memory ─▶ slots emptied ─▶ first entry of the table ─▶ second ─▶ places
//! ```

use loadline_san_core::rule::{Rule, left_out};
use loadline_san_protocol::device::PAGE;
use loadline_san_protocol::log::SECTOR;
use loadline_san_protocol::slot::{self, Holder};

use crate::io::{Area, Ask, Data, Part, Sector};
use crate::store::{Action, Purpose, Store};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Growth {
    /// Places that somebody waits for.
    wanted: u64,
    under_way: Option<(u32, Step)>,
    /// The device had no chunk left, when it was last asked.
    full: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Slots,
    Entry(usize),
}

impl Growth {
    /// So many places are needed.
    pub(crate) fn want(&mut self, places: u64) {
        self.wanted = places;
    }

    /// Whether somebody waits, and the device has nothing left.
    pub(crate) fn is_stuck(&self) -> bool {
        self.full && self.wanted > 0
    }
}

impl<D: Data> Store<D> {
    /// Takes a chunk if few places are left.
    pub(crate) fn run_growth(&mut self, out: &mut Vec<Action<D>>) {
        let few = u64::from(self.extents.per_chunk() / 8).max(1);
        if self.growth.under_way.is_some() || self.extents.free() >= self.growth.wanted.max(few) {
            return;
        }
        if self.growth.wanted == 0 && self.extents.chunks() == 0 {
            // A replica that nobody has written to has nothing but its log.
            return;
        }
        let taken = self.space.lock().expect("nobody panics with it").take(self.id.replica);
        self.growth.full = taken.is_none();
        let Some(chunk) = taken else { return };
        if left_out(Rule::DChunk) {
            self.extents.add_chunk(chunk);
        }
        let step = if left_out(Rule::DSlots) { Step::Entry(0) } else { Step::Slots };
        self.growth.under_way = Some((chunk, step));
        self.write_growth(out);
    }

    fn write_growth(&mut self, out: &mut Vec<Action<D>>) {
        let Some((chunk, step)) = self.growth.under_way else { return };
        let mut writing = self.memory.writing(Area::Capacity, 0, true);
        {
            let space = self.space.lock().expect("nobody panics with it");
            match step {
                Step::Slots => {
                    let bytes = (self.extents.per_chunk() as usize * SECTOR).next_multiple_of(PAGE);
                    writing.at = space.superblock().slot_at(chunk, 0);
                    writing.bytes.resize(bytes / SECTOR, Sector::ZERO);
                    for (number, sector) in (0..self.extents.per_chunk()).zip(&mut writing.bytes) {
                        let at = space.superblock().slot_at(chunk, number);
                        let content = self.keep.state.content;
                        let holder = Holder { replica: self.id.replica, content, at };
                        slot::encode(None, holder, &mut sector.0);
                    }
                }
                Step::Entry(copy) => {
                    let (at, entry) = space.entry(chunk, self.id.replica);
                    writing.at = at[copy];
                    writing.bytes.push(entry);
                }
            }
        }
        writing.parts.push(Part::Bytes(writing.bytes.len() as u32));
        self.ask(Purpose::Growth, Ask::Write(writing), out);
    }

    /// What was written is durable.
    pub(crate) fn growth_wrote(&mut self, out: &mut Vec<Action<D>>) {
        let (chunk, step) = self.growth.under_way.expect("it was asked for");
        let next = match step {
            Step::Slots => Step::Entry(0),
            Step::Entry(0) => Step::Entry(1),
            Step::Entry(_) => {
                self.growth.under_way = None;
                self.growth.wanted = 0;
                if !left_out(Rule::DChunk) {
                    self.extents.add_chunk(chunk);
                }
                return;
            }
        };
        self.growth.under_way = Some((chunk, next));
        self.write_growth(out);
    }
}
