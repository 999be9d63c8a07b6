//! A straight line through measured points, from which more is computed than was measured.

/// Slope and intercept by least squares, of two different points at least.
pub(crate) fn line_through(points: &[(f64, f64)]) -> (f64, f64) {
    let count = points.len() as f64;
    let mean_x = points.iter().map(|(x, _)| x).sum::<f64>() / count;
    let mean_y = points.iter().map(|(_, y)| y).sum::<f64>() / count;
    let above: f64 = points.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    let below: f64 = points.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    let slope = above / below;
    (slope, mean_y - slope * mean_x)
}

#[test]
fn points_on_a_line_give_that_line() {
    let (slope, intercept) = line_through(&[(16.0, 42.0), (64.0, 138.0), (256.0, 522.0)]);
    assert!((slope - 2.0).abs() < 1e-9 && (intercept - 10.0).abs() < 1e-9, "{slope} {intercept}");
}
