//! Levels of a series and the cliffs between them: a write buffer that is full, a cache that is warm.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::stats::{median, noise};

/// A level has at least so many samples: fewer are a stall or a spike, which the figures of stalls show.
const SHORTEST: usize = 5;
/// Two levels that differ by less than this share of the higher one are one.
const SMALLEST: f64 = 0.20;
/// Noise below this share of the median is taken to be this much: figures of equal samples have no noise, and the
/// smallest wobble would be a level.
const LEAST_NOISE: f64 = 0.01;
/// What another level costs, in units of ln(n): the Bayesian information criterion's 2 for place and height, and as much
/// again because seconds of one series are not independent.
const PENALTY: f64 = 4.0;
/// A series longer than this is examined in groups of samples: the search is quadratic at worst.
const LONGEST: usize = 4096;

/// A stretch of a series with one level.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Level {
    /// Its first sample.
    pub from: usize,
    /// The first sample after it.
    pub to: usize,
    /// The median of its samples, in the series' unit.
    pub level: f64,
}

/// The levels of a series of equally long samples, in order, without gaps; none of an empty series.
///
/// Optimal partitioning with pruning (PELT; Killick, Fearnhead, Eckley 2012), with the cost of a normal mean: the sum of
/// squares around it, ÷ σ². σ is estimated from second differences, so the levels themselves are not taken for noise.
/// Neighbours that differ by less than 20 % are then made one.
pub fn levels(series: &[f64]) -> Vec<Level> {
    let group = series.len().div_ceil(LONGEST).max(1);
    let samples: Vec<f64> =
        series.chunks(group).map(|chunk| chunk.iter().sum::<f64>() / chunk.len() as f64).collect();
    let Some(middle) = median(&samples) else { return Vec::new() };
    // Of a series that is zero for the most part, of what the rest is.
    let largest = samples.iter().fold(0.0, |largest: f64, sample| largest.max(sample.abs()));
    let scale = if middle == 0.0 { largest } else { middle.abs() };
    let least = LEAST_NOISE * scale.max(1e-300);
    let sigma = noise(&samples).unwrap_or(0.0).max(least);
    let mut bounds = partition(&samples, sigma);
    merge(&samples, &mut bounds);
    let level = |pair: &[usize]| Level {
        from: pair[0] * group,
        to: (pair[1] * group).min(series.len()),
        level: median(&samples[pair[0]..pair[1]]).unwrap_or_default(),
    };
    bounds.windows(2).map(level).collect()
}

/// The bounds of the best partition, 0 and the length among them.
fn partition(samples: &[f64], sigma: f64) -> Vec<usize> {
    let n = samples.len();
    // Prefix sums around the median, so that no digits are lost on a high level.
    let middle = median(samples).unwrap_or_default();
    let (mut sums, mut squares) = (vec![0.0], vec![0.0]);
    for (at, sample) in samples.iter().enumerate() {
        let z = (sample - middle) / sigma;
        sums.push(sums[at] + z);
        squares.push(squares[at] + z * z);
    }
    let cost = |from: usize, to: usize| {
        let sum: f64 = sums[to] - sums[from];
        (squares[to] - squares[from] - sum * sum / (to - from) as f64).max(0.0)
    };
    let penalty = PENALTY * (n.max(2) as f64).ln();
    let mut best = vec![f64::INFINITY; n + 1];
    let mut last = vec![0usize; n + 1];
    best[0] = -penalty;
    let mut candidates = vec![0usize];
    for to in SHORTEST..=n {
        let arrived = to - SHORTEST;
        if arrived >= SHORTEST {
            candidates.push(arrived);
        }
        for &from in &candidates {
            let total = best[from] + cost(from, to) + penalty;
            if total < best[to] {
                (best[to], last[to]) = (total, from);
            }
        }
        candidates.retain(|from| best[*from] + cost(*from, to) <= best[to]);
    }
    let mut bounds = vec![n];
    let mut at = n;
    while at > 0 {
        at = last[at];
        bounds.push(at);
    }
    bounds.reverse();
    bounds
}

/// Takes bounds away until all neighbours differ enough, the smallest difference first.
fn merge(samples: &[f64], bounds: &mut Vec<usize>) {
    loop {
        let heights: Vec<f64> =
            bounds.windows(2).map(|w| median(&samples[w[0]..w[1]]).unwrap_or_default()).collect();
        let apart = |w: &[f64]| (w[0] - w[1]).abs() / w[0].abs().max(w[1].abs()).max(f64::MIN_POSITIVE);
        let nearest = heights
            .windows(2)
            .map(apart)
            .enumerate()
            .filter(|(_, apart)| *apart < SMALLEST)
            .min_by(|a, b| a.1.total_cmp(&b.1));
        match nearest {
            Some((at, _)) => drop(bounds.remove(at + 1)),
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Wobbles by ±`share`.
    fn shaken(level: f64, count: usize, share: f64) -> Vec<f64> {
        let wobble = [0.3, -0.9, 0.7, -0.2, 1.0, -0.6, 0.1, -1.0, 0.5, 0.9, -0.4];
        wobble.into_iter().cycle().take(count).map(|w| level * (1.0 + share * w)).collect()
    }

    #[test]
    fn a_write_buffer_that_fills_is_a_cliff_with_its_time_and_its_levels() {
        let series = [shaken(100.0, 40, 0.1), shaken(35.0, 60, 0.1)].concat();
        let found = levels(&series);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].to.abs_diff(40) <= 1);
        assert!((found[0].level / 100.0 - 1.0).abs() < 0.05 && (found[1].level / 35.0 - 1.0).abs() < 0.05);
    }

    #[test]
    fn noise_a_spike_and_equal_samples_are_one_level() {
        assert_eq!(levels(&shaken(100.0, 200, 0.15)).len(), 1);
        assert_eq!(levels(&[7.0; 50]), [Level { from: 0, to: 50, level: 7.0 }]);
        let mut spiked = shaken(100.0, 60, 0.05);
        spiked[30] = 0.0;
        assert_eq!(levels(&spiked).len(), 1);
        assert_eq!(levels(&[]), []);
        assert_eq!(levels(&[5.0]), [Level { from: 0, to: 1, level: 5.0 }]);
        assert_eq!(levels(&[0.0; 30]).len(), 1);
        let outage = [vec![10_000.0; 40], vec![0.0; 60]].concat();
        assert_eq!(levels(&outage).len(), 2, "an outage of more than half of the window");
    }

    #[test]
    fn a_change_of_a_tenth_is_not_told_as_a_cliff() {
        assert_eq!(levels(&[shaken(100.0, 50, 0.01), shaken(90.0, 50, 0.01)].concat()).len(), 1);
    }

    #[test]
    fn a_long_series_is_grouped_and_its_places_are_those_of_the_series() {
        let series = [shaken(100.0, 9_000, 0.1), shaken(20.0, 1_000, 0.1)].concat();
        let found = levels(&series);
        assert_eq!(found.len(), 2);
        assert!(found[0].to.abs_diff(9_000) <= 6 && found[1].to == 10_000, "{found:?}");
    }

    proptest! {
        #[test]
        fn levels_cover_any_series_without_gaps(series in prop::collection::vec(0.0..1e9f64, 1..200)) {
            let found = levels(&series);
            prop_assert_eq!((found[0].from, found[found.len() - 1].to), (0, series.len()));
            prop_assert!(found.windows(2).all(|w| w[0].to == w[1].from));
        }
    }
}
