//! What a round of destaging leaves on the device: the slots of extents with their stamps and tombstones, and the tail of the log.

use loadline_san_core::ids::Epoch;
use loadline_san_core::rule::{Rule, left_out};
use loadline_san_protocol::slot::{self, Holder};
use loadline_san_protocol::state::Tail;

use super::{EARLY, FAST, Phase, SLOW};
use crate::extents::Place;
use crate::io::{Data, Sector};
use crate::log::Kind;
use crate::store::{Store, needs_place};

impl<D: Data> Store<D> {
    /// The epoch that an extent is stamped with: the replica's, and not that of what is destaged (rule R2).
    pub(crate) fn stamp_of(&self, place: Place, epoch: Epoch) -> Epoch {
        if !left_out(Rule::R2) {
            return epoch;
        }
        let extent = self.extents.at(place).slot.extent;
        let of = self.destage.pairs.iter().filter(|pair| pair.0 == extent);
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
        for (extent, number) in &self.destage.pairs {
            let record = self.log.get(*number).expect("it is in the round");
            if needs_place(record.kind) {
                self.extents.release(*extent);
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
        round.doublings = match round.ticks {
            ..=FAST if round.bytes >= EARLY << round.doublings => (round.doublings + 1).min(8),
            ticks if ticks > SLOW => round.doublings.saturating_sub(1),
            _ => round.doublings,
        };
        (round.earned, round.phase) = (0, Phase::Idle);
        self.destage.rounds += 1;
    }
}
