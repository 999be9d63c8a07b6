//! The few estimators that the other modules share.

/// The median; of an even number of values the mean of the two in the middle. `None` of nothing. Values are finite.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len();
    match count {
        0 => None,
        _ if count % 2 == 1 => Some(sorted[count / 2]),
        _ => Some(sorted[count / 2 - 1].midpoint(sorted[count / 2])),
    }
}

/// The arithmetic mean; `None` of nothing.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The noise of a series whose level may drift: its standard deviation, estimated by the median absolute second
/// difference, in the series' own unit. For independent noise of deviation σ the residuals
/// x_i − (x_{i−1} + x_{i+1}) / 2 have deviation σ·√1.5, and the median of their absolute values is 0.6745 of that
/// (Hampel 1974 on the median absolute deviation; differences as in Gasser, Sroka, Jennen-Steinmetz 1986). A slope
/// cancels, and single steps and outliers do not reach the median. `None` with fewer than three values.
pub fn noise(series: &[f64]) -> Option<f64> {
    let residuals: Vec<f64> = series.windows(3).map(|w| (w[1] - w[0].midpoint(w[2])).abs()).collect();
    median(&residuals).map(|m| m / (0.674_489_750_196_081_7 * 1.5f64.sqrt()))
}

/// A straight line through points, by least squares.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Line {
    /// Its value at the mean of x.
    pub middle: f64,
    /// The mean of x.
    pub mean_x: f64,
    /// Change of y for one of x.
    pub slope: f64,
}

/// The least-squares line; `None` of fewer than two different x.
pub fn line(points: &[(f64, f64)]) -> Option<Line> {
    let n = points.len() as f64;
    let (mean_x, middle) =
        (points.iter().map(|p| p.0).sum::<f64>() / n, points.iter().map(|p| p.1).sum::<f64>() / n);
    let sxx: f64 = points.iter().map(|p| (p.0 - mean_x).powi(2)).sum();
    let sxy: f64 = points.iter().map(|p| (p.0 - mean_x) * (p.1 - middle)).sum();
    (sxx > 0.0).then(|| Line { middle, mean_x, slope: sxy / sxx })
}

/// The 99.5 % quantile of Student's t distribution: half the width, in standard errors, of a 99 % interval whose
/// deviation is estimated with so many degrees of freedom. From 31 on by the first term of its expansion around the
/// normal quantile (Abramowitz and Stegun 26.7.5), less than 0.5 % off.
pub fn t_995(degrees: usize) -> f64 {
    const TABLE: [f64; 30] = [
        63.656_741, 9.924_843, 5.840_909, 4.604_095, 4.032_143, 3.707_428, 3.499_483, 3.355_387, 3.249_836,
        3.169_273, 3.105_807, 3.054_540, 3.012_276, 2.976_843, 2.946_713, 2.920_782, 2.898_231, 2.878_440,
        2.860_935, 2.845_340, 2.831_360, 2.818_756, 2.807_336, 2.796_940, 2.787_436, 2.778_715, 2.770_683,
        2.763_262, 2.756_386, 2.749_996,
    ];
    const NORMAL: f64 = 2.575_829_304;
    match degrees {
        0 => f64::INFINITY,
        1..=30 => TABLE[degrees - 1],
        _ => NORMAL + (NORMAL.powi(3) + NORMAL) / (4.0 * degrees as f64),
    }
}

/// Pool adjacent violators: the non-decreasing sequence that is nearest to `values` in the sense of least squares
/// (Barlow, Bartholomew, Bremner, Brunk 1972).
pub fn isotonic(values: &[f64]) -> Vec<f64> {
    // Blocks of neighbours that share one value: their sum and how many.
    let mut blocks: Vec<(f64, usize)> = Vec::new();
    for &value in values {
        blocks.push((value, 1));
        while let [.., (a, n), (b, m)] = blocks[..]
            && a / n as f64 > b / m as f64
        {
            blocks.truncate(blocks.len() - 2);
            blocks.push((a + b, n + m));
        }
    }
    blocks.into_iter().flat_map(|(sum, count)| std::iter::repeat_n(sum / count as f64, count)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn medians_means_and_lines_of_small_sets_are_what_one_computes_by_hand() {
        assert_eq!(
            (median(&[]), median(&[3.0, 1.0, 2.0]), median(&[4.0, 1.0])),
            (None, Some(2.0), Some(2.5))
        );
        assert_eq!((mean(&[]), mean(&[1.0, 2.0, 6.0])), (None, Some(3.0)));
        let through = line(&[(1.0, 3.0), (2.0, 5.0), (3.0, 7.0)]).unwrap();
        assert_eq!((through.slope, through.middle, through.mean_x), (2.0, 5.0, 2.0));
        assert_eq!(line(&[(1.0, 1.0), (1.0, 2.0)]), None);
    }

    #[test]
    fn a_slope_and_a_step_are_not_noise() {
        let ramp: Vec<f64> = (0..50).map(|i| 100.0 + 3.0 * f64::from(i)).collect();
        assert!(noise(&ramp).unwrap() < 1e-9);
        let step: Vec<f64> = (0..50).map(|i| if i < 25 { 1.0 } else { 9.0 }).collect();
        assert_eq!(noise(&step), Some(0.0));
        assert_eq!(noise(&[1.0, 2.0]), None);
    }

    #[test]
    fn what_decreases_is_pooled() {
        assert_eq!(isotonic(&[1.0, 3.0, 2.0, 4.0]), [1.0, 2.5, 2.5, 4.0]);
        assert_eq!(isotonic(&[3.0, 2.0, 1.0]), [2.0, 2.0, 2.0]);
    }

    proptest! {
        #[test]
        fn pooling_keeps_order_and_sum(values in prop::collection::vec(0.0..1e6f64, 1..40)) {
            let pooled = isotonic(&values);
            prop_assert_eq!(pooled.len(), values.len());
            prop_assert!(pooled.windows(2).all(|w| w[0] <= w[1] + 1e-6));
            let (a, b): (f64, f64) = (values.iter().sum(), pooled.iter().sum());
            prop_assert!((a - b).abs() <= 1e-6 * a.max(1.0));
        }
    }
}
