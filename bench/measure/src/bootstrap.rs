//! Intervals of figures that are computed from several loads' repeats, such as a load line of a sweep: by resampling
//! whole repeats.
//!
//! Workers share one storage and single I/Os even more, so neither are independent; whole repeats are what was drawn.
//! For a single median [`crate::spread`] has an interval whose level is exact, where a bootstrap of six would cover
//! 93 % and of three 76 %; for a ratio of two sides [`crate::difference`] has one.

use rand_core::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::spread::REPEATS_FOR_A_LEVEL;

/// How often the repeats are drawn anew.
const DRAWS: usize = 1000;
/// The same repeats give the same interval.
const SEED: u64 = 0x10ad_11e0;
/// An interval of draws of which fewer than this share has the figure would speak of those draws only.
const ENOUGH: f64 = 0.95;

/// The 95 % percentile interval (Efron 1979) of what `figure` computes. Group `i` has `sizes[i]` repeats; `figure` is
/// given for each group the numbers of the repeats that were drawn from it, with replacement, and returns `None` where
/// those have no such figure. `None` if a group has fewer than six repeats, or if more than one of twenty draws has no
/// figure.
pub fn interval(sizes: &[usize], figure: impl Fn(&[Vec<usize>]) -> Option<f64>) -> Option<(f64, f64)> {
    if sizes.is_empty() || sizes.iter().any(|size| *size < REPEATS_FOR_A_LEVEL) {
        return None;
    }
    let mut random = Xoshiro256PlusPlus::seed_from_u64(SEED);
    let mut draw = |size: usize| -> Vec<usize> {
        // The remainder's bias is under size ÷ 2^64.
        (0..size).map(|_| (random.next_u64() % size as u64) as usize).collect()
    };
    let mut figures: Vec<f64> = (0..DRAWS)
        .filter_map(|_| figure(&sizes.iter().map(|size| draw(*size)).collect::<Vec<_>>()))
        .filter(|figure| figure.is_finite())
        .collect();
    if (figures.len() as f64) < ENOUGH * DRAWS as f64 {
        return None;
    }
    figures.sort_by(f64::total_cmp);
    let outside = figures.len() * 25 / 1000;
    Some((figures[outside], figures[figures.len() - 1 - outside]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::mean;

    #[test]
    fn the_interval_of_a_mean_is_about_two_standard_errors_to_either_side() {
        let values: Vec<f64> = (0..100u32).map(|i| f64::from(i % 10)).collect();
        let drawn = |groups: &[Vec<usize>]| mean(&groups[0].iter().map(|i| values[*i]).collect::<Vec<_>>());
        let (low, high) = interval(&[values.len()], drawn).unwrap();
        // Deviation 2.872 of one, 0.287 of the mean of a hundred.
        assert!((low - (4.5 - 0.563)).abs() < 0.1 && (high - (4.5 + 0.563)).abs() < 0.1, "{low} {high}");
        assert_eq!(interval(&[values.len()], drawn), Some((low, high)), "the same again");
    }

    #[test]
    fn fewer_than_six_repeats_have_no_interval_and_neither_has_a_figure_that_is_often_missing() {
        assert_eq!(interval(&[6, 5], |_| Some(1.0)), None);
        assert_eq!(interval(&[], |_| Some(1.0)), None);
        assert_eq!(interval(&[6], |groups| (groups[0][0] == 0).then_some(1.0)), None);
        assert_eq!(interval(&[6], |_| Some(f64::NAN)), None);
        assert_eq!(interval(&[6], |_| Some(3.0)), Some((3.0, 3.0)));
    }
}
