//! What a cluster did in the last 24 hours, with each of its nodes and volumes.
//!
//! | module | idea |
//! | --- | --- |
//! | `code` | a figure in 16 bits |
//! | `series` | rows at equal distances in time, in bounded memory |
//! | `parts` | the past of each node and each volume |

mod code;
mod parts;
mod series;

use std::collections::VecDeque;

use schemars::JsonSchema;
use serde::Serialize;

use crate::cluster::Cluster;
use crate::view::Now;
use parts::Parts;

/// Seconds that are kept.
pub const SECONDS: usize = 24 * 3600;
/// Rows of an answer at most. Of a longer time each row is the worst of several seconds in latency, and their mean in everything else.
const MOST_ROWS: usize = 1800;

/// What a row has, in this order. Latencies are microseconds, and -1 if there were no requests; everything else is a second's. In a second
/// for which no node reported everything but `missing` is -1.
pub const COLUMNS: [&str; 17] = [
    "reads",
    "writes",
    "read_bytes",
    "write_bytes",
    "read_mean",
    "read_p50",
    "read_p99",
    "read_p999",
    "write_mean",
    "write_p50",
    "write_p99",
    "write_p999",
    "log_bytes",
    "destage_bytes",
    "resync_bytes",
    "scrub_bytes",
    "missing",
];
/// The columns of latencies.
const LATENCIES: std::ops::Range<usize> = 4..12;

type Row = [f32; COLUMNS.len()];

/// What a cluster did.
#[derive(Debug, Default)]
pub struct Past {
    /// Its seconds, the oldest first. A second that is not there was not seen: the console did not run, or slept.
    total: VecDeque<(u32, Row)>,
    parts: Parts,
}

/// What a past is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part<'n> {
    /// The whole cluster.
    Cluster,
    /// The node of this name.
    Node(&'n str),
    /// The volume of this name.
    Volume(&'n str),
}

/// Rows of the past, as a page gets them.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct PastView {
    /// What each row has after its time.
    pub columns: Vec<&'static str>,
    /// Seconds that a row stands for.
    pub step: u32,
    /// The first second of each row: seconds since 1970.
    pub at: Vec<u32>,
    /// Its figures.
    pub rows: Vec<Vec<f32>>,
}

impl Past {
    /// Keeps a second of a cluster, and of all its nodes and volumes. One that is not later than the last one is not kept: the clock was set
    /// back.
    pub fn add(&mut self, now: &Now, cluster: &Cluster) {
        let at = now.at as u32;
        if self.total.back().is_some_and(|(last, _)| *last >= at) {
            return;
        }
        let nodes = now.nodes.iter().map(|node| (node.name.as_str(), node.rates.as_ref()));
        self.parts.add(at, nodes, cluster.volume_rates());
        let total = now.total.unwrap_or_default();
        let latency = |of: &Option<crate::latency::Latency>| {
            of.map_or([-1.0; 4], |of| [of.mean, of.p50, of.p99, of.p999])
        };
        let mut row = [0.0; COLUMNS.len()];
        let firsts = [total.reads, total.writes, total.read_bytes, total.write_bytes];
        let lasts = [
            total.log_bytes,
            total.destage_bytes,
            total.resync_bytes,
            total.scrub_bytes,
            now.missing.len() as f64,
        ];
        let all = firsts
            .into_iter()
            .chain(latency(&total.read_latency))
            .chain(latency(&total.write_latency))
            .chain(lasts);
        row.iter_mut().zip(all).for_each(|(to, of)| *to = of as f32);
        if !now.is_reported() {
            row[..COLUMNS.len() - 1].fill(-1.0);
        }
        self.total.push_back((at, row));
        if self.total.len() > SECONDS {
            self.total.pop_front();
        }
    }

    /// What that part of the cluster did from `from` to `to`, both included, in rows of so many seconds at least, and in 1,800 rows at most.
    /// `None` if there is no such node or volume, or if it is beyond those that have a past.
    pub fn of(&self, part: Part<'_>, (from, to): (u64, u64), step: u32) -> Option<PastView> {
        let in_32_bits = |second: u64| second.min(u64::from(u32::MAX - 1)) as u32;
        let range = (in_32_bits(from), in_32_bits(to));
        match part {
            Part::Cluster => Some(self.in_rows(from, to, step)),
            Part::Node(name) => self.parts.node(name, range, step),
            Part::Volume(name) => self.parts.volume(name, range, step),
        }
    }

    /// What the cluster did from `from` to `to`, both included, in 1,800 rows at most.
    pub fn view(&self, from: u64, to: u64) -> PastView {
        self.in_rows(from, to, 1)
    }

    fn in_rows(&self, from: u64, to: u64, step: u32) -> PastView {
        let begin = self.total.partition_point(|(at, _)| u64::from(*at) < from);
        let end = self.total.partition_point(|(at, _)| u64::from(*at) <= to);
        let kept: Vec<&(u32, Row)> = self.total.range(begin..end.max(begin)).collect();
        let span =
            kept.first().zip(kept.last()).map_or(0, |((first, _), (last, _))| (last - first) as usize + 1);
        let step = (span.div_ceil(MOST_ROWS).max(1) as u32).max(step);
        let mut view = PastView { columns: COLUMNS.to_vec(), step, at: Vec::new(), rows: Vec::new() };
        for group in kept.chunk_by(|(one, _), (other, _)| one / step == other / step) {
            view.at.push(group[0].0 / step * step);
            let of = |column: usize| group.iter().map(move |(_, row)| row[column]);
            let row = (0..COLUMNS.len()).map(|column| match LATENCIES.contains(&column) {
                true => of(column).fold(-1.0, f32::max),
                // The mean of the seconds that are known.
                false => {
                    let known: Vec<f32> = of(column).filter(|value| *value >= 0.0).collect();
                    if known.is_empty() { -1.0 } else { known.iter().sum::<f32>() / known.len() as f32 }
                }
            });
            view.rows.push(row.collect());
        }
        view
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::figures::Rates;
    use crate::latency::Latency;
    use crate::view::{NodeRow, Reports};

    /// A second in which the only node reports.
    fn second_of(second: u64) -> Now {
        let mut now = Cluster::default().tick(Instant::now(), second * 1000);
        now.nodes = vec![NodeRow::unreported("a", Reports::Now)];
        now.total = Some(Rates::default());
        now
    }

    fn past(seconds: std::ops::Range<u64>) -> Past {
        let mut past = Past::default();
        for second in seconds {
            let mut now = second_of(second);
            let total = now.total.as_mut().unwrap();
            total.reads = second as f64;
            let p99 = if second % 10 == 3 { 900.0 } else { 100.0 };
            total.read_latency = (second % 2 == 1).then_some(Latency { mean: 1.0, p50: 1.0, p99, p999: 1.0 });
            past.add(&now, &Cluster::default());
        }
        past
    }

    #[test]
    fn seconds_are_answered_as_they_were_and_those_without_requests_have_no_latency() {
        let view = past(10..20).view(12, 14);
        assert_eq!((view.step, view.at.as_slice()), (1, [12, 13, 14].as_slice()));
        assert_eq!(
            view.rows.iter().map(|row| (row[0], row[6])).collect::<Vec<_>>(),
            [(12.0, -1.0), (13.0, 900.0), (14.0, -1.0)]
        );
        assert_eq!(past(10..20).view(30, 40).rows.len(), 0);
        assert_eq!(past(10..20).view(40, 30).rows.len(), 0);
    }

    #[test]
    fn a_long_time_is_answered_in_few_rows_that_hide_no_latency() {
        let view = past(0..4000).view(0, u64::MAX);
        assert_eq!((view.step, view.rows.len()), (3, 1334));
        assert_eq!(view.rows[1][0], 4.0, "the mean of 3, 4 and 5");
        assert_eq!(view.rows[1][6], 900.0, "the worst");
    }

    #[test]
    fn a_day_is_kept_and_a_clock_that_goes_back_adds_nothing() {
        let mut past = past(0..SECONDS as u64 + 5);
        assert_eq!((past.total.len(), past.total[0].0), (SECONDS, 5));
        past.add(&second_of(1), &Cluster::default());
        assert_eq!(past.total.len(), SECONDS);
    }

    #[test]
    fn a_second_for_which_no_node_reported_is_not_0() {
        let mut past = past(0..2000);
        past.add(&Cluster::default().tick(Instant::now(), 2_000_000), &Cluster::default());
        assert_eq!(past.view(2000, 2000).rows[0][..4], [-1.0; 4]);
        let view = past.view(0, 2000);
        assert_eq!((view.step, view.rows.last().map(|row| row[0])), (2, Some(-1.0)));
        past.add(&second_of(2001), &Cluster::default());
        assert_eq!(past.view(0, 2001).rows.last().map(|row| row[0]), Some(0.0), "the mean of what is known");
    }
}
