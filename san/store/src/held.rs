//! Data of records that is in memory until it is destaged: it need not be read again for that.
//!
//! What there is no room for when it comes is not kept: to let go of older data for it would mean that, under a steady load,
//! all of it is let go before it is destaged.

use std::collections::VecDeque;
use std::ops::Range;

use loadline_san_core::layout::BLOCK;
use loadline_san_core::message::Payload;

/// The data of the log's latest records, up to a limit of bytes. Records are numbered without a gap.
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

    /// Records from this number on and below another are there, of which none is in memory.
    pub(crate) fn of_none(front: u64, next: u64) -> Held<D> {
        let records = std::iter::repeat_with(|| None).take((next - front) as usize).collect();
        Held { records, front, bytes: 0 }
    }

    /// The next record. Its data is kept, unless there would be more than so many bytes.
    pub(crate) fn push(&mut self, data: Option<(Payload<D>, u32)>, most: u64) {
        let bytes = bytes_of(&data);
        let kept = data.filter(|_| self.bytes + bytes <= most);
        self.bytes += bytes_of(&kept);
        self.records.push_back(kept);
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

    /// The data of a record is in memory again.
    pub(crate) fn put(&mut self, number: u64, payload: Payload<D>, blocks: u32) {
        let at = number.checked_sub(self.front).and_then(|at| usize::try_from(at).ok());
        if let Some(record) = at.and_then(|at| self.records.get_mut(at)).filter(|record| record.is_none()) {
            *record = Some((payload, blocks));
            self.bytes += u64::from(blocks) * BLOCK;
        }
    }

    /// The data of these records is not needed any more. The records stay.
    pub(crate) fn let_go(&mut self, numbers: Range<u64>) {
        let place = |number: u64| (number.saturating_sub(self.front) as usize).min(self.records.len());
        for record in self.records.range_mut(place(numbers.start)..place(numbers.end)) {
            self.bytes -= bytes_of(record);
            *record = None;
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_there_is_no_room_for_is_not_kept_and_older_data_stays() {
        let data = |block: u32, blocks| Some((Payload { data: block, first: 0 }, blocks));
        let mut held = Held::new(7);
        let most = 3 * BLOCK;
        for (record, given) in (7..).zip([data(1, 2), None, data(3, 2), data(4, 1)]) {
            held.push(given, most);
            assert_eq!(held.get(record).is_some(), [7, 10].contains(&record), "record {record}");
        }
        assert_eq!(held.get(7).map(|payload| payload.data), Some(1));
        held.put(8, data(6, 1).expect("it is some").0, 1);
        assert_eq!(held.get(8).map(|payload| payload.data), Some(6), "it was read again");
        held.let_go(8..9);
        assert_eq!((held.get(8).is_some(), held.bytes), (false, 3 * BLOCK));
        held.free(8);
        held.push(data(5, 2), most);
        assert_eq!((held.get(7).is_some(), held.get(11).is_some()), (false, true), "room is used again");
    }
}
