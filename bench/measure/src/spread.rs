//! What the repeats of one load say. Whole repeats are compared, never single I/Os or workers: those share one
//! storage and are not independent.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// From so many repeats on, the range covers the median with 95 % confidence.
pub const REPEATS_FOR_A_LEVEL: usize = 6;
const LEVEL: f64 = 0.95;

/// A figure over the repeats of one load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Spread {
    /// The median of the repeats.
    pub median: f64,
    /// Lower end: of the confidence interval, or of the range if there are too few repeats for one.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// How sure it is that the true median lies between, at least: 0.95. `null` with fewer than six repeats, or if one
    /// of them lost workers: then `low` and `high` are the smallest and the largest value, without a level.
    pub level: Option<f64>,
}

impl Spread {
    /// The median and the range of one figure of each repeat, without a level; `None` if there is none.
    pub fn range_of(figures: &[f64]) -> Option<Spread> {
        let finite = || figures.iter().copied().filter(|figure| figure.is_finite());
        let (low, high) = (finite().reduce(f64::min)?, finite().reduce(f64::max)?);
        Spread::of(figures).map(|spread| Spread { low, high, level: None, ..spread })
    }

    /// The spread of one figure of each repeat; `None` if there is none.
    pub fn of(figures: &[f64]) -> Option<Spread> {
        let mut sorted: Vec<f64> = figures.iter().copied().filter(|figure| figure.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        let (Some(first), Some(last)) = (sorted.first().copied(), sorted.last().copied()) else {
            return None;
        };
        let median = if count % 2 == 1 {
            sorted[count / 2]
        } else {
            (sorted[count / 2 - 1] + sorted[count / 2]) / 2.0
        };
        Some(match cut(count) {
            None => Spread { median, low: first, high: last, level: None },
            Some(cut) => {
                Spread { median, low: sorted[cut], high: sorted[count - 1 - cut], level: Some(LEVEL) }
            }
        })
    }
}

/// How many of the smallest and of the largest values lie outside of the interval. The median of a distribution is
/// below a sample with probability one half, whatever the distribution: so the chance that fewer than `cut + 1` of
/// the samples lie on one side of it is binomial, and the interval holds exactly, without resampling.
fn cut(count: usize) -> Option<usize> {
    if count < REPEATS_FOR_A_LEVEL {
        return None;
    }
    let outside = (1.0 - LEVEL) / 2.0;
    let (mut term, mut tail, mut cut) = (0.5f64.powi(i32::try_from(count).unwrap_or(i32::MAX)), 0.0, 0);
    for k in 0..count / 2 {
        tail += term;
        if tail > outside {
            break;
        }
        cut = k;
        term *= (count - k) as f64 / (k + 1) as f64;
    }
    Some(cut)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upto(n: u32) -> Vec<f64> {
        (1..=n).map(f64::from).collect()
    }

    #[test]
    fn fewer_than_six_repeats_have_a_range_and_no_level() {
        let spread = Spread::of(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!(spread, Spread { median: 2.0, low: 1.0, high: 3.0, level: None });
        assert_eq!(Spread::of(&upto(5)).unwrap().level, None);
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn where_no_level_is_honest_there_is_the_range() {
        let spread = Spread::range_of(&upto(9)).unwrap();
        assert_eq!(spread, Spread { median: 5.0, low: 1.0, high: 9.0, level: None });
        assert_eq!(Spread::range_of(&[]), None);
    }

    #[test]
    fn six_repeats_or_more_have_a_confidence_interval() {
        // Tables of the sign test: the interval of 6 is the range, of 9 it leaves out one value at each end.
        for (count, low, high) in
            [(6, 1.0, 6.0), (8, 1.0, 8.0), (9, 2.0, 8.0), (12, 3.0, 10.0), (20, 6.0, 15.0)]
        {
            let spread = Spread::of(&upto(count)).unwrap();
            assert_eq!((spread.low, spread.high, spread.level), (low, high, Some(0.95)), "{count}");
        }
    }
}
