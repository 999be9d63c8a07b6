//! What each node and each volume did in the last 24 hours, in bounded memory.
//!
//! Of a node each second is kept. Of a volume each second of the last 15 minutes is kept, and each ten seconds of the last 24 hours: the mean
//! of its figures, and its worst p99. So a node takes 1.0 MB, and a volume 0.11 MB.

use std::collections::BTreeMap;

use super::series::{Figures, PART_COLUMNS, Series, together};
use super::{MOST_ROWS, PastView, SECONDS};
use crate::figures::Rates;

/// The seconds of a volume that are kept each: a little more than 15 minutes, since a page asks for them a moment later.
const FINE: usize = 16 * 60;
/// The seconds of a row of a volume that is older.
const COARSE: u32 = 10;
/// Nodes and volumes that have a past. What is added to a cluster beyond them has none.
const MOST_NODES: usize = 128;
const MOST_VOLUMES: usize = 1500;

/// A volume: its last seconds, and its day.
#[derive(Debug)]
struct VolumePast {
    fine: Series,
    coarse: Series,
}

/// The past of all nodes and volumes of a cluster, by name.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    nodes: BTreeMap<String, Series>,
    volumes: BTreeMap<String, VolumePast>,
}

/// The figures of a second; `None` is not known.
fn figures(rates: Option<&Rates>) -> Figures {
    let Some(of) = rates else { return [-1.0; PART_COLUMNS.len()] };
    let p99 = |latency: &Option<crate::latency::Latency>| latency.map_or(-1.0, |of| of.p99);
    let of =
        [of.reads, of.writes, of.read_bytes, of.write_bytes, p99(&of.read_latency), p99(&of.write_latency)];
    of.map(|of| of as f32)
}

impl VolumePast {
    fn new() -> VolumePast {
        VolumePast { fine: Series::new(1, FINE), coarse: Series::new(COARSE, SECONDS / COARSE as usize) }
    }

    fn add(&mut self, second: u32, figures: Figures) {
        let before = self.fine.end();
        // Once a second of the next row comes, the row before is complete.
        if before > 0 && second / COARSE > (before - 1) / COARSE {
            let (at, row) = self.last_row();
            self.coarse.add(at, row);
        }
        self.fine.add(second, figures);
    }

    /// The row of the last second: its first second, and its figures so far.
    fn last_row(&self) -> (u32, Figures) {
        let at = (self.fine.end() - 1) / COARSE * COARSE;
        let rows: Vec<Figures> = self.fine.rows(at, at + COARSE - 1).map(|(_, row)| row).collect();
        (at, together(&rows))
    }

    /// The rows from one second to another, and the seconds that each stands for.
    fn rows(&self, from: u32, to: u32, step: u32) -> (u32, Vec<(u32, Figures)>) {
        let has_each_second = !self.fine.is_full() || from >= self.fine.begin();
        if has_each_second && step < COARSE {
            return (self.fine.step(), self.fine.rows(from, to).collect());
        }
        let mut rows: Vec<_> = self.coarse.rows(from, to).collect();
        let (at, last) = self.last_row();
        if at <= to && at >= from / COARSE * COARSE && rows.last().is_none_or(|(before, _)| *before < at) {
            rows.push((at, last));
        }
        (COARSE, rows)
    }
}

impl Parts {
    /// Adds a second of these nodes and volumes. Each that is not among them has been removed, and has no past any more.
    pub(crate) fn add<'n>(
        &mut self,
        second: u32,
        nodes: impl Iterator<Item = (&'n str, Option<&'n Rates>)>,
        volumes: impl Iterator<Item = (&'n str, Option<&'n Rates>)>,
    ) {
        let mut before = std::mem::take(&mut self.nodes);
        for (name, rates) in nodes.take(MOST_NODES) {
            let (name, mut past) =
                before.remove_entry(name).unwrap_or_else(|| (name.to_owned(), Series::new(1, SECONDS)));
            past.add(second, figures(rates));
            self.nodes.insert(name, past);
        }
        let mut before = std::mem::take(&mut self.volumes);
        for (name, rates) in volumes.take(MOST_VOLUMES) {
            let (name, mut past) =
                before.remove_entry(name).unwrap_or_else(|| (name.to_owned(), VolumePast::new()));
            past.add(second, figures(rates));
            self.volumes.insert(name, past);
        }
    }

    /// What a node did from one second to another, both included, in rows of so many seconds at least; `None` if it has no past.
    pub(crate) fn node(&self, name: &str, (from, to): (u32, u32), step: u32) -> Option<PastView> {
        let past = self.nodes.get(name)?;
        Some(view(past.step(), past.rows(from, to).collect(), (from, to), step))
    }

    /// The same of a volume. If seconds are wanted of which none are kept, all rows have ten seconds.
    pub(crate) fn volume(&self, name: &str, (from, to): (u32, u32), step: u32) -> Option<PastView> {
        let (each, rows) = self.volumes.get(name)?.rows(from, to, step);
        Some(view(each, rows, (from, to), step))
    }
}

/// Rows that each have so many seconds, in rows of `step` seconds at least, and in [`MOST_ROWS`] at most.
fn view(each: u32, rows: Vec<(u32, Figures)>, (from, to): (u32, u32), step: u32) -> PastView {
    let span = to.saturating_sub(from) + 1;
    let step = step.max(span.div_ceil(MOST_ROWS as u32)).max(1).next_multiple_of(each);
    let mut view = PastView { columns: PART_COLUMNS.to_vec(), step, at: Vec::new(), rows: Vec::new() };
    for group in rows.chunk_by(|(one, _), (other, _)| one / step == other / step) {
        let figures: Vec<Figures> = group.iter().map(|(_, row)| *row).collect();
        view.at.push(group[0].0 / step * step);
        view.rows.push(together(&figures).to_vec());
    }
    view
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::Latency;

    fn rates(reads: f64, p99: f64) -> Rates {
        let read_latency = Some(Latency { mean: 1.0, p50: 1.0, p99, p999: p99 });
        Rates { reads, read_latency, ..Rates::default() }
    }

    /// A cluster of one node and one volume, over these seconds. In each seventh second it is not known what they did.
    fn past(seconds: std::ops::Range<u32>) -> Parts {
        let mut parts = Parts::default();
        for second in seconds {
            let rates = rates(f64::from(second % 10), if second % 100 == 42 { 900.0 } else { 100.0 });
            let rates = (second % 7 != 0).then_some(&rates);
            parts.add(second, [("n", rates)].into_iter(), [("v", rates)].into_iter());
        }
        parts
    }

    #[test]
    fn each_second_of_a_node_is_kept_for_a_day() {
        let parts = past(0..SECONDS as u32 + 50);
        let view = parts.node("n", (50, 55), 1).unwrap();
        assert_eq!((view.step, view.at), (1, vec![50, 51, 52, 53, 54, 55]));
        let reads: Vec<f32> = view.rows.iter().map(|row| row[0]).collect();
        assert_eq!(reads, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(parts.node("n", (49, 49), 1).unwrap().rows.len(), 0, "that was a day ago");
        assert_eq!(parts.node("n", (56, 56), 1).unwrap().rows, [[-1.0; 6]], "that is not known");
        let day = parts.node("n", (50, SECONDS as u32 + 49), 1).unwrap();
        assert!(day.step == 48 && day.rows.len() <= MOST_ROWS + 1, "{} rows", day.rows.len());
        assert!(day.rows.iter().any(|row| row[4] > 890.0), "the worst latency is not hidden");
        assert_eq!(parts.node("other", (0, 9), 1), None);
    }

    #[test]
    fn of_a_volume_the_last_seconds_are_kept_and_ten_seconds_at_a_time_of_the_day() {
        let parts = past(0..2000);
        let view = parts.volume("v", (1990, 1999), 1).unwrap();
        assert_eq!((view.step, view.rows.len(), view.rows[1][0]), (1, 10, 1.0));
        // Begins before the first second that is kept.
        let view = parts.volume("v", (1030, 1999), 1).unwrap();
        assert_eq!((view.step, view.at[0], *view.at.last().unwrap(), view.rows.len()), (10, 1030, 1990, 97));
        assert_eq!(view.rows[1][4], 900.0, "the worst of 1040 to 1049");
        let known: Vec<u32> = (1040..1050).filter(|of| of % 7 != 0).map(|of| of % 10).collect();
        let mean = known.iter().sum::<u32>() as f32 / known.len() as f32;
        assert!((view.rows[1][0] - mean).abs() < 0.01, "{} and not {mean}", view.rows[1][0]);
        // A row that is not complete yet is there too.
        let view = past(0..2003).volume("v", (1000, 2010), 10).unwrap();
        assert_eq!(
            (view.at.last(), view.rows.last().unwrap()[0]),
            (Some(&2000), 0.5),
            "the mean of 0 and 1: 2002 is not known"
        );
    }

    #[test]
    fn a_volume_that_is_new_has_each_second_that_there_was() {
        let view = past(100..130).volume("v", (0, 129), 1).unwrap();
        assert_eq!((view.step, view.rows.len()), (1, 30));
    }

    #[test]
    fn what_was_removed_has_no_past_and_what_comes_back_begins_anew() {
        let mut parts = past(100..130);
        parts.add(130, [].into_iter(), [("w", None)].into_iter());
        assert_eq!((parts.node("n", (0, 200), 1), parts.volume("v", (0, 200), 1)), (None, None));
        assert_eq!(parts.volume("w", (0, 200), 1).unwrap().rows, [[-1.0; 6]]);
    }

    #[test]
    fn more_volumes_than_are_kept_have_no_past_and_take_no_memory() {
        let names: Vec<String> = (0..MOST_VOLUMES + 5).map(|of| format!("{of:05}")).collect();
        let mut parts = Parts::default();
        parts.add(1, [].into_iter(), names.iter().map(|of| (of.as_str(), None)));
        assert_eq!(parts.volumes.len(), MOST_VOLUMES);
        assert_eq!(parts.volume(names.last().unwrap(), (0, 9), 1), None);
    }
}
