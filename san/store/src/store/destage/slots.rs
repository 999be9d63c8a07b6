//! What a round of destaging leaves on the device: the slots of extents with their stamps and tombstones, and the tail of the log.

use loadline_san_core::ids::Epoch;
use loadline_san_core::layout::BLOCK;
use loadline_san_core::rule::{Rule, left_out};
use loadline_san_protocol::log::SECTOR;
use loadline_san_protocol::slot::{self, Holder};
use loadline_san_protocol::state::Tail;

use super::{Destage, Phase, cost_of_blocks, extent_of};
use crate::extents::Place;
use crate::io::{Area, Data, IoRequest, Part, Sector};
use crate::log::Kind;
use crate::store::{Action, Purpose, Store, needs_place};

/// The most slots in one write.
const MOST_SLOTS: u32 = 256;
/// Slots between two that change are written along with them, as they are, if there are fewer than this.
const MOST_APART: u32 = 4;
/// The same while writers are slowed down: a slow device takes about as long for 32 KiB as for 512 bytes.
const MOST_APART_SLOW: u32 = 64;

impl<D: Data> Store<D> {
    /// The epoch that an extent is stamped with: the replica's, and not that of what is destaged (rule R2).
    pub(crate) fn stamp_of(&self, place: Place, epoch: Epoch) -> Epoch {
        if !left_out(Rule::R2) {
            return epoch;
        }
        let extent = self.extents.at(place).slot.extent;
        let of = self.destage.pairs.iter().filter(|pair| extent_of(pair.0) == extent);
        let births = of.filter_map(|pair| self.log.get(pair.1)).map(|record| record.position.ownership);
        births.max().unwrap_or(epoch)
    }

    /// The slot of a place, as it is to be on the device.
    pub(crate) fn encoded_slot(&self, place: Place) -> Sector {
        let (replica, content) = (self.id.replica, self.meta.state.content);
        let extent = self.extents.at(place);
        let holder = Holder { replica, content, at: self.extents.slot_at(place) };
        let mut sector = Sector::ZERO;
        slot::encode(extent.stored.then_some(&extent.slot), holder, &mut sector.0);
        sector
    }

    /// A freed extent leaves a trace (rule R3).
    pub(crate) fn bury(&mut self, extent: u64, stamp: Epoch) {
        if !left_out(Rule::R3) {
            self.meta.bury(extent, stamp);
        }
    }

    /// A write or a sync of a round is done.
    pub(crate) fn destage_wrote(&mut self) {
        self.destage.out -= 1;
    }

    /// So many slots of a round were written.
    pub(crate) fn destage_wrote_slots(&mut self, slots: usize) {
        self.earn_for(cost_of(slots));
        self.destage_wrote();
    }

    /// The log begins after the round, once that is durable.
    pub(crate) fn move_tail(&mut self) {
        let below = self.destage.below;
        let commit_point = self.meta.state.commit_point;
        let state = &mut self.meta.state;
        state.tail = Tail { at: self.log.place_of(below), number: below };
        if let Some(last) = self.log.last_of_sequence(state.end_before.max(self.log.front())..below) {
            state.end = last;
        }
        state.end_before = state.end_before.max(below);
        state.truncations.retain(|drop| drop.below > below);
        state.holes.retain(|hole| hole.to > below);
        self.destage.change = self.changed();
        if left_out(Rule::DCommitPoint) {
            self.meta.state.commit_point = commit_point;
        }
    }

    /// The log does not have the round's records any more.
    pub(crate) fn end_round(&mut self) {
        for (key, number) in &self.destage.pairs {
            let record = self.log.get(*number).expect("it is in the round");
            if needs_place(record.kind) {
                self.extents.release(extent_of(*key));
            }
        }
        for place in &self.destage.touched {
            self.extents.free_if_empty(*place);
        }
        let index = &mut self.index;
        self.held.free(self.destage.below);
        self.log.free(self.destage.below, |number, record| {
            if record.counts() {
                index.remove(record.range(), number, record.kind == Kind::Data);
            }
        });
        self.earn(self.destage.bytes - self.destage.earned);
        let round = &mut self.destage;
        (round.earned, round.phase) = (0, Phase::Idle);
        round.rounds += 1;
        round.freed += round.bytes;
    }

    /// The slots of all extents that were touched are as they are to be written.
    pub(super) fn change_slots(&mut self) {
        let stamp = self.known.epoch;
        for extent in std::mem::take(&mut self.destage.trimmed) {
            // Another copy may have it, and this trim is the only trace of its end.
            self.bury(extent, stamp);
        }
        let mut touched = std::mem::take(&mut self.destage.touched);
        touched.sort_unstable();
        // One may be in several slices.
        touched.dedup();
        for place in &touched {
            let stamp = self.stamp_of(*place, stamp);
            let extent = self.extents.at_mut(*place);
            extent.slot.stamp = stamp;
            extent.stored = !extent.slot.is_empty();
            let (stored, number) = (extent.stored, extent.slot.extent);
            if stored {
                self.meta.dig_up(number);
            } else {
                self.bury(number, stamp);
            }
        }
        let left = self.destage.bytes - self.destage.earned;
        let cost = if self.is_slowing() { self.cost_of_slots(&touched) } else { touched.len() as u64 };
        self.destage.worth = left / cost.max(1);
        (self.destage.touched, self.destage.next_slot) = (touched, 0);
    }

    /// Writes the slots that are next, those that are near in one write: no more at once than else, since appends wait behind
    /// them. Whether there are more.
    pub(super) fn write_slots(&mut self, out: &mut Vec<Action<D>>) -> bool {
        let at_once = self.at_once();
        let touched = std::mem::take(&mut self.destage.touched);
        while self.destage.next_slot < touched.len() && self.destage.out < at_once {
            let rest = &touched[self.destage.next_slot..];
            let count = self.near(rest);
            let (first, last) = (rest[0], rest[count - 1]);
            self.destage.next_slot += count;
            let mut writing = self.memory.writing(Area::Capacity, self.extents.slot_at(first), false);
            for place in first..=last {
                let sector = self.encoded_slot(place);
                writing.bytes.push(sector);
            }
            writing.parts.push(Part::Bytes(last - first + 1));
            self.destage.out += 1;
            self.destage.dirty = true;
            self.request_io(Purpose::RoundSlots(last - first + 1), IoRequest::Write(writing), out);
        }
        self.destage.touched = touched;
        self.destage.next_slot < self.destage.touched.len()
    }

    /// How many of these places, which rise, have their slots written in one write.
    fn near(&self, places: &[Place]) -> usize {
        let (first, apart) = (places[0], self.destage.apart);
        let near = |two: &&[Place]| {
            two[1] - first < MOST_SLOTS
                && two[1] - two[0] <= apart
                && self.extents.are_together(two[0], two[1])
        };
        1 + places.windows(2).take_while(near).count()
    }

    /// What it costs the device to write the slots of these places, which rise.
    fn cost_of_slots(&self, mut places: &[Place]) -> u64 {
        let mut cost = 0;
        while !places.is_empty() {
            let (these, others) = places.split_at(self.near(places));
            cost += cost_of((these[these.len() - 1] - these[0] + 1) as usize);
            places = others;
        }
        cost
    }

    /// What the writes cost the device that a round takes which was just chosen, about: one for each extent, and its slots. It is not
    /// reckoned closely while no writer pays.
    pub(super) fn expected_cost(&mut self) -> u64 {
        let slowing = self.is_slowing();
        self.destage.apart = if slowing { MOST_APART_SLOW } else { MOST_APART };
        let extents = || self.destage.pairs.chunk_by(|one, next| one.0 == next.0);
        let mut cost = extents().map(|same| cost_of_blocks(same.len())).sum::<u64>();
        if slowing {
            let mut places =
                Vec::from_iter(extents().filter_map(|same| self.extents.place(extent_of(same[0].0))));
            places.sort_unstable();
            places.dedup();
            cost += self.cost_of_slots(&places);
        } else {
            cost *= 2;
        }
        cost.max(1)
    }
}

/// About what a write of so many slots costs a device.
fn cost_of(slots: usize) -> u64 {
    cost_of_blocks(slots * SECTOR / BLOCK as usize)
}

impl Destage {
    /// The round ends, and the log keeps what it has.
    pub(super) fn give_up(&mut self) {
        (self.earned, self.phase) = (0, Phase::Idle);
        self.rounds += 1;
    }
}
