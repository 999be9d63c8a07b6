//! More room for extents: a chunk of the device at a time.
//!
//! ```text
//! taken, in memory ─▶ slots emptied ─▶ first entry of the table ─▶ second ─▶ places
//! ```

use std::collections::VecDeque;

use loadline_san_core::rule::{Rule, left_out};
use loadline_san_core::store::Completion;
use loadline_san_protocol::device::PAGE;
use loadline_san_protocol::log::SECTOR;
use loadline_san_protocol::slot::{self, Holder};

use crate::io::{Area, Data, IoRequest, Part, Sector};
use crate::store::{Action, Purpose, Store};

/// The state of growing: chunks that were taken from the device and whose places cannot be used yet.
#[derive(Debug, Default)]
pub(crate) struct Growth {
    /// Places that are waited for.
    wanted: u64,
    /// Chunks that were taken and have no places yet; the first is being written.
    coming: VecDeque<u32>,
    step: Option<Step>,
    /// Chunks that nothing had at the last tick, of a device that was not promised twice. Not known before the first.
    left: Option<u32>,
    /// The store has reported that the device is full.
    full: bool,
    /// When time last passed, there were fewer than are waited for; and how often in a row.
    stuck: bool,
    ticks: u32,
}

/// So many ticks something may wait for places that others give back, while nothing can be destaged: longer than a heartbeat, which
/// brings the commit point.
const MOST_STUCK: u32 = 50;

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

    /// Nothing waits for places.
    pub(crate) fn want_nothing(&mut self) {
        self.wanted = 0;
    }

    /// Whether there is room for no more than what is in flight, and the device has nothing left.
    pub(crate) fn is_full(&self) -> bool {
        self.full
    }
}

impl<D: Data> Store<D> {
    /// Takes chunks if few places are left, and reports if there are none. Before anything is taken that others would be
    /// missing, each has what its owners may have in flight; or the device has room for all that was promised. Then a replica has as
    /// many places free as it uses, so that an empty one takes nothing, and one that is being filled seldom waits.
    pub(crate) fn run_growth(&mut self, out: &mut Vec<Action<D>>) {
        let per_chunk = u64::from(self.extents.per_chunk());
        let spare = self.settings.spare.max(per_chunk / 8).min(self.missing());
        let ahead = if self.settings.is_promised { spare.min(self.extents.mapped()) } else { spare };
        let target = ahead.max(self.growth.wanted);
        let mut have = self.extents.free() + self.growth.coming.len() as u64 * per_chunk;
        while have < target {
            let (replica, key) = (self.id.replica, self.meta.state.key);
            let taken = self.space.lock().expect("no holder panics").take(replica, key);
            let Some(chunk) = taken else { break };
            if left_out(Rule::DChunk) {
                self.extents.add_chunk(chunk);
            }
            self.growth.coming.push_back(chunk);
            have += per_chunk;
        }
        let full = have < spare && have + self.places_left() < spare;
        if std::mem::replace(&mut self.growth.full, full) != full {
            out.push(Action::Complete(Completion::Full(full)));
        }
        self.growth.stuck &= have < self.growth.wanted;
        if self.growth.step.is_none() && !self.growth.coming.is_empty() {
            self.growth.step = Some(if left_out(Rule::DSlots) { Step::Entry(0) } else { Step::Slots });
            self.write_growth(out);
        }
    }

    /// Places for which the device has room beside those of this replica, if all of them may be counted on.
    fn places_left(&mut self) -> u64 {
        if !self.settings.is_promised {
            return 0;
        }
        let space = &self.space;
        let left = self.growth.left.get_or_insert_with(|| space.lock().expect("no holder panics").free());
        u64::from(*left) * u64::from(self.extents.per_chunk())
    }

    /// Time has passed. What waits for places may wait for what is trimmed in the log, and not acknowledged yet; but not for
    /// ever: all else waits behind it.
    pub(crate) fn growth_tick(&mut self) {
        // While another thread has the lock, what was known counts.
        if let Ok(space) = self.space.try_lock() {
            self.growth.left = Some(space.free());
        }
        let was = std::mem::replace(&mut self.growth.stuck, self.growth.wanted > 0);
        // A slow device may take longer for a round; and as nothing is appended meanwhile, there is a last one.
        self.growth.ticks = if was && !self.can_destage() { self.growth.ticks + 1 } else { 0 };
        if self.growth.ticks >= MOST_STUCK {
            self.fail(
                "the device is full, and more was written than its owner may have in flight".to_owned(),
            );
        }
    }

    /// The chunk that is being written, and how far it is.
    fn growing(&self) -> (u32, Step) {
        let chunk = self.growth.coming.front().expect("one was taken");
        (*chunk, self.growth.step.expect("it is being written"))
    }

    fn write_growth(&mut self, out: &mut Vec<Action<D>>) {
        let (chunk, step) = self.growing();
        let mut writing = self.memory.writing(Area::Capacity, 0, true);
        {
            let space = self.space.lock().expect("no holder panics");
            match step {
                Step::Slots => {
                    let bytes = (self.extents.per_chunk() as usize * SECTOR).next_multiple_of(PAGE);
                    writing.at = space.superblock().slot_at(chunk, 0);
                    writing.bytes.resize(bytes / SECTOR, Sector::ZERO);
                    for (number, sector) in (0..self.extents.per_chunk()).zip(&mut writing.bytes) {
                        let at = space.superblock().slot_at(chunk, number);
                        // Of two in a row the earlier reads as free; the later may not be known to a start yet.
                        let content = self.content;
                        let holder = Holder { replica: self.id.replica, content, at };
                        slot::encode(None, holder, &mut sector.0);
                    }
                }
                Step::Entry(copy) => {
                    let (at, entry) = space.entry(chunk, self.id.replica, self.meta.state.key);
                    writing.at = at[copy];
                    writing.bytes.push(entry);
                }
            }
        }
        writing.parts.push(Part::Bytes(writing.bytes.len() as u32));
        self.request_io(Purpose::Growth, IoRequest::Write(writing), out);
    }

    /// What was written is durable.
    pub(crate) fn growth_wrote(&mut self, out: &mut Vec<Action<D>>) {
        let (chunk, step) = self.growing();
        let next = match step {
            Step::Slots => Step::Entry(0),
            Step::Entry(0) => Step::Entry(1),
            Step::Entry(_) => {
                self.growth.coming.pop_front();
                self.growth.step = None;
                if !left_out(Rule::DChunk) {
                    self.extents.add_chunk(chunk);
                }
                return;
            }
        };
        self.growth.step = Some(next);
        self.write_growth(out);
    }
}
