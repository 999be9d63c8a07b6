//! One measured point as any tool states it: of a run of ours, or of a file of another's. What a source does not
//! say is `None`, and never guessed.

use loadline_base::histogram::LatencyHistogram;

/// A figure as a source states it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stated {
    /// The figure.
    pub value: f64,
    /// Half of what its last digit counts, in its own unit: `1.22` may stand for anything from 1.215 to 1.225. 0 where
    /// nothing was rounded away.
    pub half_digit: f64,
}

impl Stated {
    /// A figure with nothing rounded away.
    pub fn exact(value: f64) -> Stated {
        Stated { value, half_digit: 0.0 }
    }

    /// Decimal text, such as `1.22` or `26834060`, with a decimal point and no grouping; an exponent is understood.
    /// `None` if it is not a finite number, or negative.
    ///
    /// Whole numbers are taken to the last digit that is there: `1300` may be 1299.5 to 1300.5.
    pub fn parse(text: &str) -> Option<Stated> {
        let value: f64 = text.parse().ok().filter(|v: &f64| v.is_finite() && *v >= 0.0)?;
        // Rust reads "inf", "nan" and "+1" too; figures are digits.
        if !text.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
            return None;
        }
        let (digits, exponent) = match text.split_once(['e', 'E']) {
            Some((digits, exponent)) => (digits, exponent.parse::<i32>().ok()?),
            None => (text, 0),
        };
        let decimals = digits.split_once('.').map_or(0, |(_, after)| after.len());
        let last = exponent.checked_sub(i32::try_from(decimals).ok()?)?;
        Some(Stated { value, half_digit: 0.5 * 10f64.powi(last) })
    }

    /// The same figure in another unit: `milliseconds.scaled(1000.0)` is microseconds.
    pub fn scaled(self, factor: f64) -> Stated {
        Stated { value: self.value * factor, half_digit: self.half_digit * factor }
    }

    /// The share (0 to 1) that rounding may have taken from it or added to it; 1 for a zero that was rounded.
    pub fn rounding(self) -> f64 {
        if self.half_digit == 0.0 { 0.0 } else { (self.half_digit / self.value.abs()).min(1.0) }
    }
}

/// Bytes a second, and how the source wrote them.
#[derive(Debug, Clone, PartialEq)]
pub struct Throughput {
    /// Bytes a second, if the source's unit is what it says.
    pub bytes_per_s: Stated,
    /// The unit as the source writes it: `MB/s`, `MiB/s`.
    pub unit: String,
    /// Bytes in one of that unit.
    pub unit_bytes: f64,
}

/// Which I/Os the latencies of a source are of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LatencyOf {
    /// Of reads and writes together.
    #[default]
    All,
    /// Of reads only.
    Read,
    /// Of writes only.
    Write,
}

/// One second, or one other regular part, of a series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SeriesPoint {
    /// Seconds from the beginning of the measured window to the end of this part.
    pub at_s: f64,
    /// I/Os a second in it.
    pub iops: f64,
    /// Mean latency in it, microseconds; `None` if nothing completed or the source does not say.
    pub mean_us: Option<f64>,
}

/// One measured point: a load on a number of workers, and what came out.
#[derive(Debug, Clone, Default)]
pub struct Point {
    /// Where it stands: file, and the line, job or step in it.
    pub place: String,
    /// The load, as the source calls it.
    pub profile: String,
    /// What a sweep of it is called, where the profile's own name says how much was outstanding or offered; `None`:
    /// the same as `profile`.
    pub family: Option<String>,
    /// In what state the storage was, such as `healthy` or `one-node-down`.
    pub condition: Option<String>,
    /// Which measurement of the same thing it is, from 1; 0 if the source has none repeated.
    pub repeat: u32,
    /// Workers (virtual machines, processes) that put the load on.
    pub workers: Option<u32>,
    /// Nodes that were up.
    pub nodes: Option<u32>,
    /// Bytes of each I/O.
    pub block_bytes: Option<f64>,
    /// Percent of the I/Os that are writes.
    pub write_percent: Option<f64>,
    /// I/Os kept outstanding, over all workers, if the load was a closed loop.
    pub outstanding: Option<f64>,
    /// I/Os a second offered, over all workers, if the load was rate-driven.
    pub rate_iops: Option<f64>,
    /// Length of the measured window, seconds.
    pub window_s: Option<f64>,
    /// I/Os a second.
    pub iops: Option<Stated>,
    /// Bytes a second.
    pub throughput: Option<Throughput>,
    /// Which I/Os the latencies that follow are of.
    pub latency_of: LatencyOf,
    /// Mean latency, microseconds.
    pub mean_us: Option<Stated>,
    /// Smallest latency, microseconds.
    pub min_us: Option<Stated>,
    /// Largest latency, microseconds.
    pub max_us: Option<Stated>,
    /// Percentiles: the percent (0 to 100), and the latency that so many of the I/Os do not exceed, microseconds.
    pub percentiles_us: Vec<(f64, Stated)>,
    /// How many I/Os the latencies are of.
    pub samples: Option<u64>,
    /// Whether the latencies may be plain averages over several workers or disks, as tools that only have each one's
    /// summary make them.
    pub averaged: bool,
    /// All latencies, where the source has them.
    pub histogram: Option<LatencyHistogram>,
    /// I/Os that failed.
    pub errors: u64,
    /// Workers that reported nothing, or ended early.
    pub lost_workers: u32,
    /// The most that the storage could do, I/Os a second, as the source states or as it was measured.
    pub ceiling_iops: Option<Stated>,
    /// The same in bytes a second.
    pub ceiling_bytes_per_s: Option<Stated>,
    /// Percent of the ceiling, as the source states it.
    pub stated_percent: Option<Stated>,
    /// The window's parts, in order; empty if the source has none.
    pub series: Vec<SeriesPoint>,
}

impl Point {
    /// What the points of one sweep have in common.
    pub fn family(&self) -> &str {
        self.family.as_deref().unwrap_or(&self.profile)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_knows_what_its_last_digit_counts() {
        for (text, value, half) in
            [("1.22", 1.22, 0.005), ("146", 146.0, 0.5), ("0.430", 0.43, 0.0005), ("1.5e3", 1500.0, 50.0)]
        {
            let stated = Stated::parse(text).unwrap();
            assert_eq!(stated.value, value);
            assert!((stated.half_digit / half - 1.0).abs() < 1e-12, "{text}: {stated:?}");
        }
        assert!((Stated::parse("0.50").unwrap().rounding() - 0.01).abs() < 1e-12);
        assert_eq!(Stated::exact(7.0).rounding(), 0.0);
        assert_eq!(Stated::parse("0").unwrap().rounding(), 1.0);
    }

    #[test]
    fn what_is_no_plain_figure_is_not_read() {
        for text in ["", "1,22", "-1", "+1", "inf", "nan", "1.2.3", "12 ms", "1e999", "e5", "1e"] {
            assert_eq!(Stated::parse(text), None, "{text}");
        }
    }
}
