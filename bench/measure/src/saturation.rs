//! A series that grows by adding workers: where it saturates, and what comes after.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::stats::t_995;

/// Fewer points than this have no bend that could be told from noise.
const FEWEST: usize = 6;
/// So many points are tried as the bend.
const MOST_BENDS: usize = 500;
/// A change over all points after the bend that is smaller than this share of the peak is flat, however sure it is.
const MATERIAL: f64 = 0.05;

/// Where a series is going.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Trend {
    /// More workers carry more.
    Rising,
    /// More workers carry no more, as far as the noise lets one see.
    Flat,
    /// More workers carry less.
    Falling,
}

/// What a growing series came to.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Saturation {
    /// The most I/Os a second that were seen.
    pub peak: f64,
    /// At how many workers.
    pub peak_at: f64,
    /// From about how many workers on it grows otherwise than before; `null` if it goes on as it began, or the series
    /// is too short to tell.
    pub bend: Option<f64>,
    /// Where it goes after the bend, or over all of the series if it has none; `null` if it is too short to tell.
    pub after: Option<Trend>,
    /// What each further worker adds before the bend, as a share of the peak; `null` without one.
    pub before: Option<f64>,
    /// What each further worker then adds or takes, as a share of the peak; `null` likewise.
    pub slope: Option<f64>,
    /// The noise: the deviation of the points around the fitted line, as a share of the peak; `null` likewise.
    pub noise: Option<f64>,
}

/// What became of a series of (workers, I/Os a second), ascending in the first; `None` of none.
///
/// A line with one bend, y = a + b·min(x, k) + c·max(0, x − k), is fitted by least squares for each k that is a point;
/// it is preferred to the straight line if it is better by the Bayesian information criterion,
/// n·ln(RSS) + p·ln(n), with two parameters more (Hinkley 1971; Schwarz 1978). The trend after it is what c says: its
/// interval with the residuals' deviation must leave out zero, and c over all points after the bend must change the
/// series by at least 5 % of its peak, else it is flat. The interval is that of 99 %, because k was chosen to suit the
/// points: so a series that is flat is told so in 95 of 100.
pub fn saturation(points: &[(f64, f64)]) -> Option<Saturation> {
    let (peak_at, peak) =
        points.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.total_cmp(&a.0)))?;
    let unknown =
        Saturation { peak, peak_at, bend: None, after: None, before: None, slope: None, noise: None };
    if points.len() < FEWEST || peak <= 0.0 {
        return Some(unknown);
    }
    // With y in peaks, numbers are near 1 whatever the unit.
    let (x, y): (Vec<f64>, Vec<f64>) = points.iter().map(|p| (p.0, p.1 / peak)).unzip();
    let Some(straight) = fit(&x, &y, None) else { return Some(unknown) };
    // Of a very long series not every point is tried as the bend: that would take its square.
    let bent = (2..x.len() - 2)
        .step_by(x.len().div_ceil(MOST_BENDS))
        .filter_map(|at| Some((x[at], fit(&x, &y, Some(x[at]))?)))
        .min_by(|a, b| a.1.rss.total_cmp(&b.1.rss));
    let n = x.len() as f64;
    // Below a millionth of the peak a deviation is rounding.
    let badness = |rss: f64| n * (rss / n).max(1e-12).ln();
    let better = bent.filter(|(_, fit)| badness(fit.rss) + 2.0 * n.ln() < badness(straight.rss));
    let (bend, fit, parameters) = match better {
        Some((bend, fit)) => (Some(bend), fit, 4),
        None => (None, straight, 2),
    };
    let deviation = (fit.rss / (n - f64::from(parameters))).sqrt();
    let span = x[x.len() - 1] - bend.unwrap_or(x[0]);
    let sure = fit.slope.abs() > t_995(x.len() - parameters as usize) * deviation * fit.slope_error;
    let after = match fit.slope * span {
        _ if !sure => Trend::Flat,
        change if change >= MATERIAL => Trend::Rising,
        change if change <= -MATERIAL => Trend::Falling,
        _ => Trend::Flat,
    };
    let before = bend.and(Some(fit.before));
    Some(Saturation {
        bend,
        after: Some(after),
        before,
        slope: Some(fit.slope),
        noise: Some(deviation),
        ..unknown
    })
}

/// A fitted line.
#[derive(Debug, Clone, Copy)]
struct Fit {
    /// Sum of the squares of the residuals.
    rss: f64,
    /// Slope before the bend; 0 without one.
    before: f64,
    /// Slope after the bend, or of the whole line.
    slope: f64,
    /// Its standard error, in deviations of a point.
    slope_error: f64,
}

/// Least squares of y on 1, min(x, k) and max(0, x − k), or on 1 and x without a bend. `None` if the points do not
/// determine it.
fn fit(x: &[f64], y: &[f64], bend: Option<f64>) -> Option<Fit> {
    // Centred at the bend the columns are nearly orthogonal.
    let columns: Vec<[f64; 3]> = x
        .iter()
        .map(|x| match bend {
            Some(k) => [1.0, (x - k).min(0.0), (x - k).max(0.0)],
            None => [1.0, 0.0, *x],
        })
        .collect();
    let used: &[usize] = if bend.is_some() { &[0, 1, 2] } else { &[0, 2] };
    let dot = |i: usize, j: usize| columns.iter().map(|c| c[i] * c[j]).sum::<f64>();
    let mut matrix: Vec<Vec<f64>> = used
        .iter()
        .map(|i| {
            let right = columns.iter().zip(y).map(|(c, y)| c[*i] * y).sum::<f64>();
            // The last column makes the last column of the inverse come out beside the solution.
            let unit = f64::from(u8::from(*i == 2));
            used.iter().map(|j| dot(*i, *j)).chain([right, unit]).collect()
        })
        .collect();
    solve(&mut matrix)?;
    let size = used.len();
    let solution = |i: usize| matrix[i][size];
    let value = |c: &[f64; 3]| used.iter().enumerate().map(|(at, i)| solution(at) * c[*i]).sum::<f64>();
    let rss = columns.iter().zip(y).map(|(c, y)| (y - value(c)).powi(2)).sum();
    let variance = matrix[size - 1][size + 1];
    let before = if bend.is_some() { solution(1) } else { 0.0 };
    Some(Fit { rss, before, slope: solution(size - 1), slope_error: variance.max(0.0).sqrt() })
}

/// Gauss and Jordan with the largest pivot: the left square becomes the identity. `None` if it is singular.
fn solve(matrix: &mut [Vec<f64>]) -> Option<()> {
    for at in 0..matrix.len() {
        let largest =
            (at..matrix.len()).max_by(|a, b| matrix[*a][at].abs().total_cmp(&matrix[*b][at].abs()))?;
        matrix.swap(at, largest);
        let pivot = matrix[at][at];
        if pivot.abs() < 1e-12 {
            return None;
        }
        matrix[at].iter_mut().for_each(|value| *value /= pivot);
        let row = matrix[at].clone();
        for (other, target) in matrix.iter_mut().enumerate() {
            if other != at {
                let factor = target[at];
                target.iter_mut().zip(&row).for_each(|(value, pivot)| *value -= factor * pivot);
            }
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn series(f: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
        (1..=20).map(|i| (f64::from(i), f(f64::from(i)))).collect()
    }

    /// A little deterministic noise, ±`share`.
    fn shaken(points: Vec<(f64, f64)>, share: f64) -> Vec<(f64, f64)> {
        let wobble = [0.3, -0.9, 0.7, -0.2, 1.0, -0.6, 0.1, -1.0, 0.5];
        points
            .into_iter()
            .zip(wobble.into_iter().cycle())
            .map(|((x, y), w)| (x, y * (1.0 + share * w)))
            .collect()
    }

    #[test]
    fn rising_flat_and_falling_are_told_apart() {
        let up_then = |after: f64| move |x: f64| x.min(8.0) * 10.0 + (x - 8.0).max(0.0) * after;
        for (after, trend) in [(0.0, Trend::Flat), (-3.0, Trend::Falling), (4.0, Trend::Rising)] {
            let found = saturation(&shaken(series(up_then(after)), 0.02)).unwrap();
            assert_eq!(found.after, Some(trend), "{after}: {found:?}");
            assert!((found.bend.unwrap() - 8.0).abs() <= 2.0, "{found:?}");
        }
        let straight = saturation(&shaken(series(|x| 5.0 * x), 0.02)).unwrap();
        assert_eq!((straight.bend, straight.after), (None, Some(Trend::Rising)), "{straight:?}");
    }

    #[test]
    fn an_exact_bend_is_found_exactly() {
        let found = saturation(&series(|x| x.min(11.0) * 100.0)).unwrap();
        assert_eq!(
            (found.peak, found.peak_at, found.bend),
            (1100.0, 11.0, Some(11.0)),
            "the first of equals"
        );
        assert!(found.noise.unwrap() < 1e-6 && found.slope.unwrap().abs() < 1e-9);
    }

    #[test]
    fn too_short_a_series_has_a_peak_and_nothing_else() {
        let short = saturation(&[(1.0, 5.0), (2.0, 9.0), (3.0, 7.0)]).unwrap();
        assert_eq!((short.peak, short.peak_at, short.after, short.bend), (9.0, 2.0, None, None));
        assert_eq!(saturation(&[]), None);
        assert_eq!(saturation(&[(1.0, 0.0); 8]).unwrap().after, None, "nothing was measured");
        let equal = saturation(&series(|_| 7.0)).unwrap();
        assert_eq!((equal.after, equal.bend), (Some(Trend::Flat), None));
        assert_eq!(saturation(&[(3.0, 1.0); 8]).unwrap().after, None, "one number of workers is no growth");
    }

    proptest! {
        #[test]
        fn neither_unit_nor_any_series_matters(values in prop::collection::vec(0.0..1e9f64, 0..30), scale in -10i32..20) {
            let points: Vec<(f64, f64)> = (1..).map(f64::from).zip(values).collect();
            let scaled: Vec<(f64, f64)> = points.iter().map(|p| (p.0, p.1 * 2f64.powi(scale))).collect();
            let (one, other) = (saturation(&points), saturation(&scaled));
            prop_assert_eq!(one.and_then(|s| s.bend), other.and_then(|s| s.bend));
            prop_assert_eq!(one.and_then(|s| s.after), other.and_then(|s| s.after));
        }
    }
}
