//! How many I/Os took how long, over time: what a heat map shows. Coarse in both, so that it stays small beside the
//! histograms, from which every figure comes.

use loadline_base::clock::Nanos;
use loadline_base::histogram::LatencyHistogram;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Bands in each power of ten of latency.
pub const BANDS_PER_DECADE: u32 = 8;
/// Columns of a map at the most: what is longer has several seconds in each.
pub const MOST_COLUMNS: u64 = 600;

/// I/Os by the time in which they completed and by response time.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HeatMap {
    /// Seconds in each column.
    pub span_s: u64,
    /// The columns, from the beginning of the window: the bands with I/Os in them, ascending, and how many. Band b holds
    /// response times from 10^(b/8) to 10^((b+1)/8) nanoseconds.
    pub columns: Vec<Vec<(u8, u64)>>,
}

impl HeatMap {
    /// An empty one of a window of so many seconds.
    pub fn new(seconds: u64) -> HeatMap {
        let span_s = seconds.div_ceil(MOST_COLUMNS).max(1);
        HeatMap { span_s, columns: vec![Vec::new(); seconds.div_ceil(span_s) as usize] }
    }

    /// Adds what completed in a second of the window; what lies outside of it is not of it.
    pub fn add(&mut self, second: u64, response: &LatencyHistogram) {
        let Some(column) = usize::try_from(second / self.span_s).ok().and_then(|at| self.columns.get_mut(at))
        else {
            return;
        };
        for (latency, count) in response.buckets() {
            put(column, band_of(latency), count);
        }
    }

    /// Adds another one's counts, of the same window.
    pub fn merge(&mut self, other: &HeatMap) {
        assert_eq!(
            (self.span_s, self.columns.len()),
            (other.span_s, other.columns.len()),
            "maps of two windows are not one"
        );
        for (column, theirs) in self.columns.iter_mut().zip(&other.columns) {
            theirs.iter().for_each(|(band, count)| put(column, *band, *count));
        }
    }

    /// Shortens it to so many seconds.
    pub fn cut(&mut self, seconds: u64) {
        self.columns.truncate(seconds.div_ceil(self.span_s) as usize);
    }
}

/// Adds to a band of a column.
fn put(column: &mut Vec<(u8, u64)>, band: u8, count: u64) {
    match column.binary_search_by_key(&band, |(known, _)| *known) {
        Ok(at) => column[at].1 = column[at].1.saturating_add(count),
        Err(at) => column.insert(at, (band, count)),
    }
}

/// The band in which a latency lies; below a nanosecond it is the first.
fn band_of(latency: Nanos) -> u8 {
    // The longest that a histogram holds, an hour, is in band 100.
    ((latency.0.max(1) as f64).log10() * f64::from(BANDS_PER_DECADE)) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_io_is_in_the_column_of_its_second_and_the_band_of_its_latency() {
        let mut response = LatencyHistogram::new();
        response.record_many(Nanos(100_000), 3);
        response.record(Nanos(3_600_000_000_000));
        let mut map = HeatMap::new(2);
        map.add(1, &response);
        map.add(1, &response);
        map.add(2, &response);
        assert_eq!(map.columns, [vec![], vec![(40, 6), (100, 2)]], "10^(40/8) ns are 100 us");
        let mut both = HeatMap::new(2);
        both.add(0, &response);
        both.merge(&map);
        assert_eq!(both.columns[0], [(40, 3), (100, 1)]);
        assert_eq!(both.columns[1], map.columns[1]);
        both.cut(1);
        assert_eq!(both.columns.len(), 1);
    }

    #[test]
    fn a_long_window_has_columns_of_several_seconds() {
        let mut response = LatencyHistogram::new();
        response.record(Nanos(1_000));
        let mut map = HeatMap::new(86_401);
        assert_eq!((map.span_s, map.columns.len()), (145, 596));
        (0..86_401).for_each(|second| map.add(second, &response));
        assert_eq!(map.columns.iter().flatten().map(|(_, count)| count).sum::<u64>(), 86_401);
    }
}
