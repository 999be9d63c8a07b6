//! The knee of a latency curve: where more load begins to cost more than it brings.

use crate::stats::isotonic;

/// How far the curve must turn back before a largest distance counts as a knee, in mean steps of x. The paper
/// recommends 1 for data that are at hand as a whole.
pub const SENSITIVITY: f64 = 1.0;
/// Fewer points than this have no shape.
const FEWEST: usize = 5;
/// A curve that stays so near to its chord is a straight line, with noise.
const STRAIGHT: f64 = 0.05;

/// The place in `points` (load or IOPS, latency; ascending in the first) where the curve has its knee; `None` if it
/// has none.
///
/// Kneedle (Satopää, Albrecht, Irwin, Raghavan: *Finding a "Kneedle" in a Haystack*, ICDCS workshops 2011), for a
/// convex, rising curve: smooth, normalise both axes to 0..1, take the distance below the chord D = x − y, and its
/// largest local maximum at which the distance afterwards falls below D_max − S × mean(Δx), where S is the
/// sensitivity. Smoothing is by isotonic regression, since latency does not fall with load. Past saturation a curve
/// folds back (more outstanding, fewer IOPS), so only the branch up to the peak is used. A largest distance under
/// 0.05 is a straight line, and straight lines have no knee.
pub fn knee(points: &[(f64, f64)], sensitivity: f64) -> Option<usize> {
    // Only where the load does rise, which ends at the peak: of the same IOPS the first counts.
    let mut branch: Vec<usize> = Vec::new();
    for index in 0..points.len() {
        if branch.last().is_none_or(|last| points[*last].0 < points[index].0) {
            branch.push(index);
        }
    }
    if branch.len() < FEWEST {
        return None;
    }
    let x: Vec<f64> = branch.iter().map(|i| points[*i].0).collect();
    let y = isotonic(&branch.iter().map(|i| points[*i].1).collect::<Vec<_>>());
    let (x, y) = (unit(&x)?, unit(&y)?);
    let distance: Vec<f64> = x.iter().zip(&y).map(|(x, y)| x - y).collect();
    let step = 1.0 / (x.len() - 1) as f64;
    let top = (1..distance.len() - 1)
        .filter(|&i| distance[i] >= distance[i - 1] && distance[i] >= distance[i + 1])
        .max_by(|a, b| distance[*a].total_cmp(&distance[*b]))?;
    let threshold = distance[top] - sensitivity * step;
    let turns_back = distance[top..].iter().any(|d| *d < threshold);
    (distance[top] >= STRAIGHT && turns_back).then(|| branch[top])
}

/// Scaled to 0..1; `None` if all values are the same.
fn unit(values: &[f64]) -> Option<Vec<f64>> {
    let (first, last) = (*values.first()?, *values.last()?);
    (last > first).then(|| values.iter().map(|v| (v - first) / (last - first)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Mean response time of an M/M/1 server over its load, up to `most`.
    fn queue(most: f64, count: u32) -> Vec<(f64, f64)> {
        (0..count).map(|i| most * f64::from(i) / f64::from(count - 1)).map(|x| (x, 1.0 / (1.0 - x))).collect()
    }

    #[test]
    fn the_knee_of_a_queue_is_where_its_slope_is_that_of_the_chord() {
        // d/dx 1/(1−x) = 1/(1−x)² equals the chord's slope 1/(1−a) at x = 1 − √(1−a).
        for most in [0.8, 0.9, 0.95, 0.99] {
            let points = queue(most, 400);
            let found = points[knee(&points, SENSITIVITY).unwrap()].0;
            let exact = 1.0 - (1.0 - most).sqrt();
            assert!((found - exact).abs() < most / 399.0, "{most}: {found} for {exact}");
        }
    }

    #[test]
    fn a_straight_line_a_short_series_and_equal_values_have_no_knee() {
        let straight: Vec<(f64, f64)> = (0..20).map(|i| (f64::from(i), 5.0 + f64::from(i))).collect();
        assert_eq!(knee(&straight, SENSITIVITY), None);
        assert_eq!(knee(&queue(0.9, 4), SENSITIVITY), None);
        assert_eq!(knee(&[(1.0, 1.0); 9], SENSITIVITY), None);
        assert_eq!(knee(&[], SENSITIVITY), None);
        let flat: Vec<(f64, f64)> = (0..9).map(|i| (f64::from(i), 2.0)).collect();
        assert_eq!(knee(&flat, SENSITIVITY), None);
    }

    #[test]
    fn what_comes_after_the_peak_does_not_move_the_knee() {
        let mut points = queue(0.95, 50);
        let before = knee(&points, SENSITIVITY).unwrap();
        points.extend([(0.94, 30.0), (0.92, 40.0), (0.90, 80.0)]);
        assert_eq!(knee(&points, SENSITIVITY), Some(before));
    }

    proptest! {
        #[test]
        fn units_do_not_matter(x in -10i32..20, y in -10i32..20, count in 10u32..60) {
            // Powers of two, since a rounding may decide between two neighbours that are equally far.
            let (scale_x, scale_y) = (2f64.powi(x), 2f64.powi(y));
            let points = queue(0.95, count);
            let scaled: Vec<(f64, f64)> = points.iter().map(|p| (p.0 * scale_x, p.1 * scale_y)).collect();
            prop_assert_eq!(knee(&points, SENSITIVITY), knee(&scaled, SENSITIVITY));
        }

        #[test]
        fn no_curve_makes_it_panic(values in prop::collection::vec((0.0..1e9f64, 0.0..1e9f64), 0..40)) {
            let mut points = values;
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            if let Some(at) = knee(&points, SENSITIVITY) {
                prop_assert!(at < points.len());
            }
        }
    }
}
