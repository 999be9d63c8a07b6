//! The figures that are printed of a histogram, and the depth gate.

use loadline_base::clock::Nanos;
use loadline_base::histogram::LatencyHistogram;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A percentile is honest only with at least this many samples beyond it.
pub const SAMPLES_BEYOND: u64 = 100;

/// The percentiles that are printed: their names, and how many samples in a million lie beyond each.
pub const PERCENTILES: [(&str, u64); 7] = [
    ("p50", 500_000),
    ("p90", 100_000),
    ("p95", 50_000),
    ("p99", 10_000),
    ("p99.9", 1_000),
    ("p99.99", 100),
    ("p99.999", 10),
];

/// Whether `count` samples carry a percentile with `beyond` samples in a million beyond it.
pub fn is_deep_enough(count: u64, beyond: u64) -> bool {
    u128::from(count) * u128::from(beyond) >= u128::from(SAMPLES_BEYOND) * 1_000_000
}

/// Latencies in microseconds. Every key is always there; `null` where there were too few samples.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LatencySummary {
    /// Exact mean.
    pub mean: Option<f64>,
    /// Smallest.
    pub min: Option<f64>,
    /// Largest.
    pub max: Option<f64>,
    /// Median.
    pub p50: Option<f64>,
    /// 90 % took no longer.
    pub p90: Option<f64>,
    /// 95 % took no longer.
    pub p95: Option<f64>,
    /// 99 % took no longer.
    pub p99: Option<f64>,
    /// 99.9 % took no longer.
    #[serde(rename = "p99.9")]
    pub p99_9: Option<f64>,
    /// 99.99 % took no longer.
    #[serde(rename = "p99.99")]
    pub p99_99: Option<f64>,
    /// 99.999 % took no longer.
    #[serde(rename = "p99.999")]
    pub p99_999: Option<f64>,
    /// The deepest percentile with at least 100 samples beyond it, by name.
    pub deepest: Option<String>,
}

impl LatencySummary {
    /// The figures of a histogram.
    pub fn of(histogram: &LatencyHistogram) -> LatencySummary {
        let count = histogram.count();
        let micros = |n: Option<Nanos>| n.map(Nanos::as_micros);
        let at = |i: usize| {
            let beyond = PERCENTILES[i].1;
            let quantile = 1.0 - beyond as f64 / 1e6;
            is_deep_enough(count, beyond).then(|| micros(histogram.quantile(quantile))).flatten()
        };
        LatencySummary {
            mean: histogram.mean_ns().map(|ns| ns / 1e3),
            min: micros(histogram.min()),
            max: micros(histogram.max()),
            p50: at(0),
            p90: at(1),
            p95: at(2),
            p99: at(3),
            p99_9: at(4),
            p99_99: at(5),
            p99_999: at(6),
            deepest: PERCENTILES
                .iter()
                .rev()
                .find(|(_, beyond)| is_deep_enough(count, *beyond))
                .map(|(name, _)| name.to_string()),
        }
    }

    /// A percentile by its name (`p99.9`). `None` if unknown or not deep enough.
    pub fn percentile(&self, name: &str) -> Option<f64> {
        match name {
            "p50" => self.p50,
            "p90" => self.p90,
            "p95" => self.p95,
            "p99" => self.p99,
            "p99.9" => self.p99_9,
            "p99.99" => self.p99_99,
            "p99.999" => self.p99_999,
            _ => None,
        }
    }

    /// The deepest honest percentile: its name and value.
    pub fn deepest_value(&self) -> Option<(&str, f64)> {
        let name = self.deepest.as_deref()?;
        Some((name, self.percentile(name)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uniform(count: u64) -> LatencyHistogram {
        let mut histogram = LatencyHistogram::new();
        (1..=count).for_each(|i| histogram.record(Nanos(i * 1000)));
        histogram
    }

    #[test]
    fn a_percentile_needs_a_hundred_samples_beyond_it() {
        let summary = LatencySummary::of(&uniform(9_999));
        assert_eq!((summary.p99, summary.deepest.as_deref()), (None, Some("p95")));
        let summary = LatencySummary::of(&uniform(10_000));
        assert!((summary.p99.unwrap() / 9_900.0 - 1.0).abs() < 0.01);
        assert_eq!(summary.deepest_value().unwrap().0, "p99");
        assert!(is_deep_enough(10_000_000, 10) && !is_deep_enough(9_999_999, 10));
    }

    #[test]
    fn too_few_samples_still_have_a_mean_and_extremes() {
        let summary = LatencySummary::of(&uniform(3));
        assert_eq!((summary.mean, summary.min, summary.max), (Some(2.0), Some(1.0), Some(3.0)));
        assert_eq!((summary.p50, summary.deepest), (None, None));
    }

    #[test]
    fn every_key_is_there_and_null_where_there_is_no_honest_figure() {
        let json = serde_json::to_value(LatencySummary::of(&LatencyHistogram::new())).unwrap();
        for (name, _) in PERCENTILES {
            assert!(json[name].is_null() && json.get(name).is_some(), "{name}");
        }
    }
}
