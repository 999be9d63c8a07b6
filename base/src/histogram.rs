//! The one latency histogram: log-linear, at most 1 % relative error, from 1 ns to over two hours, mergeable.
//!
//! Counts are kept by [`hdrhistogram`], so every HdrHistogram tool reads what is written. Beside them stand the
//! exact sum, smallest and largest value, so that means carry no bucketing error (Little's law is checked with
//! them) and the extremes are what was measured.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::clock::Nanos;

/// The largest latency told apart: 2^43 ns, about 2 h 26 min. Larger ones are counted there; `max` stays exact.
pub const LARGEST: Nanos = Nanos(1 << 43);
/// Two significant digits: 128 buckets to each power of two, so at most 0.8 % relative error.
const SIGNIFICANT_DIGITS: u8 = 2;
/// A valid encoding of a histogram of this shape is far smaller; what is larger is not read.
const LONGEST_ENCODING: usize = 1 << 20;

/// Latencies of many I/Os.
#[derive(Debug, Clone)]
pub struct LatencyHistogram {
    /// Made with the first sample: most records of a second have no writes, or no reads.
    counts: Option<Histogram<u64>>,
    sum: u128,
    min: Nanos,
    max: Nanos,
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self::new()
    }
}

impl LatencyHistogram {
    /// An empty histogram. It takes about 37 KiB from its first sample on.
    pub const fn new() -> Self {
        LatencyHistogram { counts: None, sum: 0, min: Nanos(u64::MAX), max: Nanos(0) }
    }

    fn counts_mut(&mut self) -> &mut Histogram<u64> {
        self.counts.get_or_insert_with(empty_counts)
    }

    /// Counts one I/O. Allocates nothing but for the first.
    #[inline]
    pub fn record(&mut self, latency: Nanos) {
        self.counts_mut().saturating_record(latency.0);
        self.sum += u128::from(latency.0);
        self.min = self.min.min(latency);
        self.max = self.max.max(latency);
    }

    /// Counts so many I/Os that took the same.
    pub fn record_many(&mut self, latency: Nanos, count: u64) {
        if count > 0 {
            self.counts_mut().saturating_record_n(latency.0, count);
            self.sum += u128::from(latency.0) * u128::from(count);
            self.min = self.min.min(latency);
            self.max = self.max.max(latency);
        }
    }

    /// Adds another histogram's counts: the result is the histogram of all samples of both.
    pub fn merge(&mut self, other: &LatencyHistogram) {
        let Some(theirs) = other.counts.as_ref().filter(|_| !other.is_empty()) else { return };
        self.counts_mut().add(theirs).expect("all latency histograms have one shape");
        self.sum += other.sum;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// Back to empty, keeping the memory.
    pub fn clear(&mut self) {
        if let Some(counts) = &mut self.counts {
            counts.reset();
        }
        (self.sum, self.min, self.max) = (0, Nanos(u64::MAX), Nanos(0));
    }

    /// How many I/Os were counted.
    pub fn count(&self) -> u64 {
        self.counts.as_ref().map_or(0, Histogram::len)
    }

    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// The exact sum of all latencies, in nanoseconds.
    pub fn sum_ns(&self) -> u128 {
        self.sum
    }

    /// The exact mean, in nanoseconds. `None` if empty.
    pub fn mean_ns(&self) -> Option<f64> {
        (!self.is_empty()).then(|| self.sum as f64 / self.count() as f64)
    }

    /// The exact smallest latency. `None` if empty.
    pub fn min(&self) -> Option<Nanos> {
        (!self.is_empty()).then_some(self.min)
    }

    /// The exact largest latency. `None` if empty.
    pub fn max(&self) -> Option<Nanos> {
        (!self.is_empty()).then_some(self.max)
    }

    /// The smallest recorded value that at least the share `q` (0 to 1) of the I/Os do not exceed, at most 1 %
    /// too high. `None` if empty. Whether enough samples lie beyond it is the caller's question.
    pub fn quantile(&self, q: f64) -> Option<Nanos> {
        assert!((0.0..=1.0).contains(&q), "a quantile lies between 0 and 1");
        let counts = self.counts.as_ref().filter(|_| !self.is_empty())?;
        Some(Nanos(counts.value_at_quantile(q)).clamp(self.min, self.max))
    }

    /// How many I/Os took longer than `limit`; those within 1 % of it may fall on either side.
    pub fn count_above(&self, limit: Nanos) -> u64 {
        match &self.counts {
            Some(counts) if limit < LARGEST => counts.len() - counts.count_between(0, limit.0),
            _ => 0,
        }
    }

    /// The occupied buckets: the highest value of each, and its count.
    pub fn buckets(&self) -> impl Iterator<Item = (Nanos, u64)> + '_ {
        self.counts
            .iter()
            .flat_map(Histogram::iter_recorded)
            .map(|b| (Nanos(b.value_iterated_to()), b.count_at_value()))
    }

    /// The form that is stored and sent.
    pub fn encode(&self) -> EncodedHistogram {
        let mut bytes = Vec::new();
        let none = self.counts.is_none().then(empty_counts);
        let counts = self.counts.as_ref().or(none.as_ref()).expect("one of the two");
        V2DeflateSerializer::new().serialize(counts, &mut bytes).expect("writing to memory");
        EncodedHistogram {
            count: self.count(),
            sum_ns: self.sum as f64,
            min_ns: self.min().unwrap_or_default().0,
            max_ns: self.max().unwrap_or_default().0,
            hdr_v2: STANDARD.encode(bytes),
        }
    }
}

fn empty_counts() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LARGEST.0, SIGNIFICANT_DIGITS).expect("valid bounds")
}

impl PartialEq for LatencyHistogram {
    /// Equal counts, sum and extremes; an unused histogram equals a cleared one.
    fn eq(&self, other: &Self) -> bool {
        let same_counts = match (&self.counts, &other.counts) {
            (Some(mine), Some(theirs)) => mine == theirs,
            _ => self.is_empty() && other.is_empty(),
        };
        same_counts && (self.sum, self.min, self.max) == (other.sum, other.min, other.max)
    }
}

/// A histogram as it is stored and sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EncodedHistogram {
    /// I/Os counted.
    pub count: u64,
    /// Exact sum of all latencies, nanoseconds.
    pub sum_ns: f64,
    /// Smallest latency, nanoseconds; 0 if empty.
    pub min_ns: u64,
    /// Largest latency, nanoseconds; 0 if empty.
    pub max_ns: u64,
    /// The counts by nanoseconds, in HdrHistogram's V2 compressed form, in base64.
    pub hdr_v2: String,
}

/// Bytes that are not a latency histogram.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("not a latency histogram: {0}")]
pub struct HistogramError(String);

impl HistogramError {
    /// An error that says `what` is wrong.
    pub fn new(what: &str) -> Self {
        HistogramError(what.to_string())
    }
}

impl EncodedHistogram {
    /// The histogram, checked: a shape of ours, and a count and extremes that agree with it.
    pub fn decode(&self) -> Result<LatencyHistogram, HistogramError> {
        let error = HistogramError::new;
        if self.hdr_v2.len() > LONGEST_ENCODING {
            return Err(error("it is too long"));
        }
        let bytes = STANDARD.decode(&self.hdr_v2).map_err(|_| error("its base64 is broken"))?;
        let read: Histogram<u64> =
            Deserializer::new().deserialize(&mut bytes.as_slice()).map_err(|e| error(&e.to_string()))?;
        if read.high() > LARGEST.0 || read.sigfig() != SIGNIFICANT_DIGITS {
            return Err(error("its bounds are not ours"));
        }
        let mut counts = empty_counts();
        counts.add(&read).map_err(|e| error(&e.to_string()))?;
        if counts.len() != self.count {
            return Err(error("its count does not agree with its buckets"));
        }
        if counts.is_empty() {
            return Ok(LatencyHistogram::new());
        }
        let (min, max) = (Nanos(self.min_ns), Nanos(self.max_ns));
        let possible =
            (self.min_ns as f64 * self.count as f64 * 0.999, self.max_ns as f64 * self.count as f64 * 1.001);
        let same_bucket = |a: u64, b: u64| counts.equivalent(a.min(LARGEST.0), b);
        if min > max
            || !(possible.0..=possible.1).contains(&self.sum_ns)
            || !same_bucket(self.min_ns, counts.min())
            || !same_bucket(self.max_ns, counts.max())
        {
            return Err(error("its sum or extremes do not agree with its buckets"));
        }
        Ok(LatencyHistogram { counts: Some(counts), sum: self.sum_ns as u128, min, max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(samples: &[u64]) -> LatencyHistogram {
        let mut histogram = LatencyHistogram::new();
        samples.iter().for_each(|&ns| histogram.record(Nanos(ns)));
        histogram
    }

    #[test]
    fn a_stall_of_an_hour_is_a_number_and_not_an_overflow() {
        let hour = 3_600_000_000_000;
        let histogram = of(&[100, hour]);
        let p100 = histogram.quantile(1.0).unwrap().0 as f64;
        assert!((p100 / hour as f64 - 1.0).abs() < 0.01);
        assert_eq!(histogram.max(), Some(Nanos(hour)));
        assert_eq!(
            of(&[u64::MAX / 2]).max(),
            Some(Nanos(u64::MAX / 2)),
            "even beyond the range, max is exact"
        );
    }

    #[test]
    fn an_empty_histogram_has_no_figures() {
        let empty = LatencyHistogram::new();
        assert_eq!((empty.count(), empty.mean_ns(), empty.min(), empty.max()), (0, None, None, None));
        assert_eq!(empty.quantile(0.5), None);
        assert_eq!(empty.encode().decode(), Ok(empty));
    }

    #[test]
    fn a_tampered_encoding_is_refused() {
        let good = of(&[1_000, 2_000, 3_000]).encode();
        for broken in [
            EncodedHistogram { count: 4, ..good.clone() },
            EncodedHistogram { max_ns: 1_000_000, ..good.clone() },
            EncodedHistogram { sum_ns: 1.0, ..good.clone() },
            EncodedHistogram { hdr_v2: good.hdr_v2[..good.hdr_v2.len() - 8].to_string(), ..good.clone() },
            EncodedHistogram { hdr_v2: "no base64".into(), ..good.clone() },
        ] {
            assert!(broken.decode().is_err(), "{broken:?}");
        }
    }

    proptest! {
        #[test]
        fn merged_histograms_equal_the_histogram_of_all_samples(
            a in prop::collection::vec(0..LARGEST.0, 0..200),
            b in prop::collection::vec(0..LARGEST.0, 0..200),
        ) {
            let mut merged = of(&a);
            merged.merge(&of(&b));
            prop_assert_eq!(&merged, &of(&[a, b].concat()));
            prop_assert_eq!(merged.encode().decode().unwrap().encode(), merged.encode());
        }

        #[test]
        fn a_quantile_is_at_most_one_percent_off(mut samples in prop::collection::vec(100..LARGEST.0, 1..300), q in 0.0..=1.0f64) {
            let histogram = of(&samples);
            samples.sort_unstable();
            let rank = ((q * samples.len() as f64).ceil() as usize).clamp(1, samples.len());
            let exact = samples[rank - 1] as f64;
            let found = histogram.quantile(q).unwrap().0 as f64;
            prop_assert!((found / exact - 1.0).abs() <= 0.01, "{} for {}", found, exact);
        }

        #[test]
        fn no_bytes_panic_the_decoder(text in "[A-Za-z0-9+/]{0,300}={0,2}", count: u64, sum_ns: f64, min_ns: u64, max_ns: u64) {
            let _ = EncodedHistogram { count, sum_ns, min_ns, max_ns, hdr_v2: text }.decode();
        }
    }
}
