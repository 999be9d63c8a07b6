//! Steady state, after the SNIA Solid State Storage Performance Test Specification.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::stats::{line, mean};

/// The number of rounds that decide: the last ones.
pub const ROUNDS: usize = 5;
/// The largest of them less the smallest is at most this share of their mean.
pub const RANGE_LIMIT: f64 = 0.20;
/// The straight line through them rises or falls over all of them by at most this share of their mean.
pub const SLOPE_LIMIT: f64 = 0.10;

/// How steady the last five rounds of a series are.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Steadiness {
    /// Mean of the five rounds, in the series' own unit.
    pub mean: f64,
    /// (Largest − smallest) ÷ mean.
    pub range: f64,
    /// What the least-squares line rises (positive) or falls from the first of the five to the last, ÷ mean.
    pub slope: f64,
    /// Whether both are within their limits.
    pub steady: bool,
}

/// How steady the last five of these rounds are; `None` if there are fewer, or their mean is not positive: where
/// nothing is done, nothing is steady.
///
/// SNIA PTS 2.0, "steady state": over the measurement window, max(y) − min(y) is no more than 20 % of ave(y), and
/// max − min of the linear fit's values no more than 10 % of it. The window is the last five rounds. The
/// specification looks at the variable that is tracked, here IOPS of a round.
pub fn steadiness(rounds: &[f64]) -> Option<Steadiness> {
    let last = rounds.len().checked_sub(ROUNDS).map(|from| &rounds[from..])?;
    let mean = mean(last).filter(|m| *m > 0.0 && m.is_finite())?;
    let largest = last.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let smallest = last.iter().copied().fold(f64::INFINITY, f64::min);
    let points: Vec<(f64, f64)> = (0u8..).map(f64::from).zip(last.iter().copied()).collect();
    let range = (largest - smallest) / mean;
    let slope = line(&points)?.slope * (ROUNDS - 1) as f64 / mean;
    // Written so that what is not a number is not steady.
    let steady = range <= RANGE_LIMIT && slope.abs() <= SLOPE_LIMIT;
    Some(Steadiness { mean, range, slope, steady })
}

/// The means of `count` equal parts of a series, in order: what a round did, from its seconds. Samples that do not fill
/// a part at the beginning are left out. `None` if there are fewer samples than parts.
pub fn rounds(samples: &[f64], count: usize) -> Option<Vec<f64>> {
    let each = samples.len().checked_div(count).filter(|each| *each > 0)?;
    samples[samples.len() - each * count..].chunks(each).map(mean).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flat_series_is_steady_and_one_that_fills_a_buffer_is_not() {
        let flat = steadiness(&[900.0, 100.0, 102.0, 99.0, 101.0, 98.0]).unwrap();
        assert!(flat.steady, "only the last five count: {flat:?}");
        assert!(!steadiness(&[100.0, 90.0, 80.0, 75.0, 70.0]).unwrap().steady);
    }

    #[test]
    fn the_limits_are_those_of_the_specification() {
        // A line from 95 to 105 rises by exactly 10 % of its mean.
        let line = |from: f64, by: f64| (0..5).map(|i| from + by * f64::from(i)).collect::<Vec<_>>();
        assert!(steadiness(&line(95.0, 2.5)).unwrap().steady);
        let steeper = steadiness(&line(94.9, 2.55)).unwrap();
        assert!(!steeper.steady && steeper.range < 0.2 && steeper.slope > 0.1);
        // 20 % from the highest to the lowest, without any slope.
        assert!(steadiness(&[100.0, 90.0, 100.0, 110.0, 100.0, 90.0, 100.0][..5]).unwrap().range <= 0.2);
        let wide = steadiness(&[100.0, 111.0, 89.0, 111.0, 100.0]).unwrap();
        assert!(!wide.steady && wide.slope.abs() < 0.1);
    }

    #[test]
    fn too_few_rounds_or_none_that_did_anything_say_nothing() {
        assert_eq!(steadiness(&[1.0; 4]), None);
        assert_eq!(steadiness(&[0.0; 5]), None);
        assert!(steadiness(&[7.0; 5]).unwrap().steady, "all equal");
        assert!(steadiness(&[f64::NAN; 5]).is_none());
    }

    #[test]
    fn a_round_is_the_mean_of_its_seconds() {
        assert_eq!(rounds(&[9.0, 1.0, 3.0, 5.0, 7.0], 2), Some(vec![2.0, 6.0]));
        assert_eq!(rounds(&[1.0], 2), None);
        assert_eq!(rounds(&[1.0], 0), None);
    }
}
