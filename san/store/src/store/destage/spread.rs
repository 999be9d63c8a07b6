//! Writes of a round to the places of its extents.
//!
//! An extent of scattered blocks is many small writes. They go to the device as few at a time as the round may have there: with all
//! of them in its queue, a slow device would let clients' reads and appends wait for the whole extent.

use std::collections::VecDeque;

use crate::io::{Area, Data, IoRequest, Part, Writing};
use crate::store::{Action, Purpose, Store};

/// The writes of works that were begun.
#[derive(Debug)]
pub(crate) struct Spreads<D> {
    /// Those that wait to be asked of the device, each with its work.
    waiting: VecDeque<(u32, Writing<D>)>,
    /// Those that the device has.
    at_device: usize,
}

impl<D> Default for Spreads<D> {
    fn default() -> Spreads<D> {
        Spreads { waiting: VecDeque::new(), at_device: 0 }
    }
}

impl<D: Data> Store<D> {
    /// Writes the blocks of an extent to their places, adjacent ones in one write: what was read of them, in
    /// their order, or what is in memory still.
    pub(super) fn spread(
        &mut self,
        index: u32,
        blocks: &[(u32, u32, u64)],
        read: Option<&D>,
        out: &mut Vec<Action<D>>,
    ) {
        let (extent, place) =
            (self.destage.works[index as usize].extent, self.destage.works[index as usize].place);
        let first_block = extent * self.extents.blocks();
        let mut from = 0;
        while from < blocks.len() {
            let run = (from + 1..=blocks.len())
                .find(|to| blocks.get(*to).is_none_or(|next| next.0 != blocks[to - 1].0 + 1))
                .expect("the last ends a run");
            let at = self.extents.block_at(place, blocks[from].0);
            let mut writing = self.memory.writing(Area::Capacity, at, false);
            match read {
                Some(data) => {
                    let count = (run - from) as u32;
                    writing.parts.push(Part::Data { data: data.clone(), first: from as u32, blocks: count });
                }
                None => {
                    for same in blocks[from..run].chunk_by(|one, next| one.2 == next.2) {
                        let (within, _, number) = same[0];
                        let record = self.log.get(number).expect("it is in the round");
                        let held = self.held.get(number).expect("it was looked whether it is there");
                        let first = held.first + (first_block + u64::from(within) - record.block) as u32;
                        let (data, blocks) = (held.data.clone(), same.len() as u32);
                        writing.parts.push(Part::Data { data, first, blocks });
                    }
                }
            }
            self.destage.works[index as usize].writes += 1;
            self.destage.out += 1;
            self.spreads.waiting.push_back((index, writing));
            from = run;
        }
        self.destage.dirty = true;
        self.write_spreads(out);
    }

    /// A part of an extent was written.
    pub(crate) fn spread_done(&mut self, index: u32, out: &mut Vec<Action<D>>) {
        self.destage.out -= 1;
        self.spreads.at_device -= 1;
        let work = &mut self.destage.works[index as usize];
        work.writes -= 1;
        if work.writes == 0 {
            self.end_work(index);
        }
        self.write_spreads(out);
    }

    /// Asks the device for writes that wait, as many as it gets at once.
    fn write_spreads(&mut self, out: &mut Vec<Action<D>>) {
        while self.spreads.at_device < self.at_once()
            && let Some((index, writing)) = self.spreads.waiting.pop_front()
        {
            self.spreads.at_device += 1;
            self.request_io(Purpose::Spread(index), IoRequest::Write(writing), out);
        }
    }
}
