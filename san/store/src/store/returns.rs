//! A replica returns: what its log has above the commit point is listed and dropped, or everything is.

use loadline_san_core::ids::Position;
use loadline_san_core::range_set::RangeSet;
use loadline_san_core::rule::{Rule, left_out};
use loadline_san_protocol::state::{Tail, Truncation};

use crate::io::Data;
use crate::store::{Current, Store, needs_place};

impl<D: Data> Store<D> {
    pub(crate) fn begin_return(&mut self, after: Position, empty: bool) {
        let (commit_point, next) = (self.known.commit_point, self.log.next());
        let mut truncation = None;
        if empty {
            self.meta.state.content += 1;
            self.meta.state.tail = Tail { at: self.log.head(), number: next };
            self.meta.state.truncations.clear();
            self.meta.state.holes.clear();
            self.meta.clear_side();
        } else {
            if !left_out(Rule::C1) {
                let above = self.log.above(commit_point).map(|(_, record)| record.range());
                self.meta.add_to_list(above);
            }
            let dropped = Truncation { below: next, above: commit_point };
            let truncations = &mut self.meta.state.truncations;
            truncations.retain(|drop| drop.above != commit_point && drop.below > self.log.front());
            truncations.push(dropped);
            truncation = Some(dropped);
        }
        (self.meta.state.end, self.meta.state.end_before) = (after, next);
        let change = self.changed();
        self.current = Current::Return { change, truncation };
    }

    /// A return is durable: what it dropped is forgotten.
    pub(crate) fn returned(&mut self, truncation: Option<Truncation>) {
        match truncation {
            Some(Truncation { below, above }) => {
                let dropped = self.log.above(above).filter(|(number, _)| *number < below);
                let dropped: Vec<_> = dropped.map(|(_, record)| *record).collect();
                self.log.drop_above(above, below);
                for record in dropped.iter().filter(|record| needs_place(record.kind)) {
                    for extent in self.extents.extents_of(record.range()) {
                        self.extents.release(extent);
                    }
                }
            }
            None => {
                let next = self.log.next();
                self.log.free(next, |_, _| {});
                self.held.free(next);
                self.extents.clear();
                self.cache.clear();
                self.content = self.meta.state.content;
                self.corrupt_blocks = RangeSet::default();
                // Of one that was found damaged: a start would find the slots as bad as before.
                let corrupt = self.extents.give_up_corrupt(u64::MAX);
                self.scrub.write_again(corrupt, self.extents.per_chunk());
            }
        }
        self.rebuild_index();
        self.destage.go_on();
    }
}
