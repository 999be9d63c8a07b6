//! Data of the newest records, in memory still: it need not be read again to be destaged.

use std::collections::VecDeque;

use loadline_san_core::layout::BLOCK;
use loadline_san_core::message::Payload;

/// See the module. Records are counted on; of the oldest there is nothing.
#[derive(Debug)]
pub(crate) struct Held<D> {
    /// From record `front` on: its data, and how many blocks.
    records: VecDeque<Option<(Payload<D>, u32)>>,
    front: u64,
    bytes: u64,
}

impl<D: Clone> Held<D> {
    /// Nothing, and the next record has this number.
    pub(crate) fn new(next: u64) -> Held<D> {
        Held { records: VecDeque::new(), front: next, bytes: 0 }
    }

    /// The next record. Of the oldest so much is let go that there are not more than so many bytes.
    pub(crate) fn push(&mut self, data: Option<(Payload<D>, u32)>, most: u64) {
        self.bytes += bytes_of(&data);
        self.records.push_back(data);
        while self.bytes > most {
            self.pop();
        }
    }

    fn pop(&mut self) {
        let gone = self.records.pop_front().expect("what has bytes is there");
        self.bytes -= bytes_of(&gone);
        self.front += 1;
    }

    /// Records below this one are not needed.
    pub(crate) fn free(&mut self, below: u64) {
        while self.front < below && !self.records.is_empty() {
            self.pop();
        }
        self.front = self.front.max(below);
    }

    /// The data of a record, from its first block on.
    pub(crate) fn get(&self, number: u64) -> Option<&Payload<D>> {
        let at = usize::try_from(number.checked_sub(self.front)?).ok()?;
        self.records.get(at)?.as_ref().map(|(payload, _)| payload)
    }
}

fn bytes_of<D>(data: &Option<(Payload<D>, u32)>) -> u64 {
    data.as_ref().map_or(0, |(_, blocks)| u64::from(*blocks) * BLOCK)
}
