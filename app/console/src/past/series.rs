//! Rows of figures at equal distances in time, in bounded memory: what is kept of one node or one volume.

use std::collections::VecDeque;

use super::code::{NONE, decode, encode};

/// What a row has, in this order. Latencies are microseconds; everything else is a second's.
pub(super) const PART_COLUMNS: [&str; 6] =
    ["reads", "writes", "read_bytes", "write_bytes", "read_p99", "write_p99"];
/// The columns of latencies.
const LATENCIES: std::ops::Range<usize> = 4..6;

/// Figures of one time; -1 is none.
pub(crate) type Figures = [f32; PART_COLUMNS.len()];
type Row = [u16; PART_COLUMNS.len()];

/// Rows of one distance in time: row `n` is of the seconds from `(first + n) * step` on. Times of which nothing is known have rows without
/// figures, so that no row needs a time.
#[derive(Debug)]
pub(crate) struct Series {
    step: u32,
    kept: usize,
    first: u32,
    rows: VecDeque<Row>,
}

impl Series {
    /// A series that keeps so many rows of so many seconds. Its memory is reserved now, and used as rows come.
    pub(crate) fn new(step: u32, kept: usize) -> Series {
        Series { step, kept, first: 0, rows: VecDeque::with_capacity(kept) }
    }

    /// The seconds that a row stands for.
    pub(crate) fn step(&self) -> u32 {
        self.step
    }

    /// The first second that is kept.
    pub(crate) fn begin(&self) -> u32 {
        self.first * self.step
    }

    /// The first second after what is kept.
    pub(crate) fn end(&self) -> u32 {
        (self.first + self.rows.len() as u32) * self.step
    }

    /// Whether older rows were dropped.
    pub(crate) fn is_full(&self) -> bool {
        self.rows.len() >= self.kept
    }

    /// Adds the row of the time that this second is in. A time that has a row already, or is earlier, is left as it is.
    pub(crate) fn add(&mut self, second: u32, figures: Figures) {
        let slot = second / self.step;
        let next = self.first + self.rows.len() as u32;
        if self.rows.is_empty() || slot.saturating_sub(next) as usize >= self.kept {
            self.rows.clear();
            self.first = slot;
        } else if slot < next {
            return;
        } else {
            for _ in next..slot {
                self.push([NONE; PART_COLUMNS.len()]);
            }
        }
        self.push(figures.map(|of| encode(f64::from(of))));
    }

    fn push(&mut self, row: Row) {
        if self.is_full() {
            self.rows.pop_front();
            self.first += 1;
        }
        self.rows.push_back(row);
    }

    /// The rows of these seconds, each with its first second.
    pub(crate) fn rows(&self, from: u32, to: u32) -> impl Iterator<Item = (u32, Figures)> + '_ {
        let begin = (from / self.step).saturating_sub(self.first) as usize;
        let end = ((to / self.step + 1).saturating_sub(self.first) as usize).min(self.rows.len());
        let at = move |n: usize| (self.first + n as u32) * self.step;
        (begin..end).map(move |n| (at(n), self.rows[n].map(decode)))
    }
}

/// Several rows as one: the mean of the figures that are known, and the worst latency.
pub(crate) fn together(rows: &[Figures]) -> Figures {
    std::array::from_fn(|column| {
        let known = rows.iter().map(|row| row[column]).filter(|value| *value >= 0.0);
        if LATENCIES.contains(&column) {
            return known.fold(-1.0, f32::max);
        }
        let (sum, count) = known.fold((0.0, 0), |(sum, count), value| (sum + value, count + 1));
        if count == 0 { -1.0 } else { sum / count as f32 }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(value: f32) -> Figures {
        [value; PART_COLUMNS.len()]
    }

    fn shown(series: &Series, from: u32, to: u32) -> Vec<(u32, f32)> {
        series.rows(from, to).map(|(at, row)| (at, row[0])).collect()
    }

    #[test]
    fn a_time_without_a_row_is_a_gap_and_takes_no_other_rows_place() {
        let mut series = Series::new(1, 100);
        series.add(10, row(1.0));
        series.add(13, row(4.0));
        series.add(13, row(9.0));
        series.add(11, row(9.0));
        assert_eq!(shown(&series, 0, 99), [(10, 1.0), (11, -1.0), (12, -1.0), (13, 4.0)]);
        assert_eq!(shown(&series, 12, 12), [(12, -1.0)]);
        assert_eq!((shown(&series, 14, 20).len(), shown(&series, 0, 9).len()), (0, 0));
    }

    #[test]
    fn only_so_many_rows_are_kept_also_after_a_long_sleep() {
        let mut series = Series::new(10, 6);
        (0..100).for_each(|second| series.add(second, row(second as f32)));
        assert_eq!(shown(&series, 0, 999), [40, 50, 60, 70, 80, 90].map(|of| (of, of as f32)));
        let capacity = series.rows.capacity();
        series.add(130, row(1.0));
        assert_eq!(shown(&series, 0, 999)[2..], [(100, -1.0), (110, -1.0), (120, -1.0), (130, 1.0)]);
        series.add(4_000_000, row(2.0));
        assert_eq!(shown(&series, 0, u32::MAX - 10), [(4_000_000, 2.0)]);
        assert_eq!(series.rows.capacity(), capacity);
    }

    #[test]
    fn rows_together_hide_no_latency_and_nothing_unknown_counts_as_0() {
        let rows = [[2.0, -1.0, 0.0, 0.0, 100.0, -1.0], [4.0, -1.0, 0.0, -1.0, 900.0, -1.0]];
        assert_eq!(together(&rows), [3.0, -1.0, 0.0, 0.0, 900.0, -1.0]);
    }
}
