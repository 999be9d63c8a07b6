//! One figure of a load over many runs, each beside the noise of the runs before it. Pure.

use std::collections::BTreeMap;

use crate::baseline::history::MOST_RESULTS;
use crate::baseline::trend::BetweenRuns;

/// The noise before each run, in the order of `runs`: the oldest run first, each with the text that says how it was measured
/// ([`RunRecord::likeness`](crate::compare::RunRecord::likeness)) and the figure, in any unit.
///
/// The band of a run is the range of the [`MOST_RESULTS`] runs of the same text that come before it: the smallest and the largest of
/// them. `None` with fewer than five. The run itself is not in its band, so that it can lie outside of it. If nothing changed, the run
/// after a band of n runs lies outside with a chance of 2 ÷ (n + 1): [`BetweenRuns`] says why, and names the source. After a change the
/// band contains figures from before it and from after it, until the older ones are more than [`MOST_RESULTS`] runs ago.
pub fn bands<'a>(runs: &[(&'a str, f64)]) -> Vec<Option<BetweenRuns>> {
    let mut before: BTreeMap<&'a str, Vec<f64>> = BTreeMap::new();
    let mut bands = Vec::with_capacity(runs.len());
    for (likeness, value) in runs {
        let values = before.entry(likeness).or_default();
        bands.push(BetweenRuns::of(&values[values.len().saturating_sub(MOST_RESULTS)..]));
        values.push(*value);
    }
    bands
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(runs: &[(&str, f64)]) -> Vec<Option<(f64, f64)>> {
        bands(runs).into_iter().map(|band| band.map(|band| (band.low, band.high))).collect()
    }

    #[test]
    fn a_run_is_not_in_its_own_band_and_a_change_is_outside() {
        let runs: Vec<(&str, f64)> =
            [3.0, 1.0, 2.0, 5.0, 4.0, 9.0, 9.5].into_iter().map(|value| ("x", value)).collect();
        assert_eq!(ends(&runs), [None, None, None, None, None, Some((1.0, 5.0)), Some((1.0, 9.0))]);
        let band = bands(&runs)[5].unwrap();
        assert!(!band.contains(9.0));
        assert!((band.chance_within - 4.0 / 6.0).abs() < 1e-12);
    }

    #[test]
    fn a_band_is_of_runs_that_were_measured_alike_and_forgets_the_oldest() {
        let mut runs = vec![("x", 100.0)];
        runs.extend([("y", 7.0); 4]);
        runs.extend((0..MOST_RESULTS).map(|n| ("x", n as f64)));
        runs.push(("y", 8.0));
        runs.push(("x", 0.0));
        let found = ends(&runs);
        assert_eq!(found[runs.len() - 2], None, "y has four");
        assert_eq!(found[runs.len() - 3], Some((0.0, 100.0)));
        assert_eq!(found[runs.len() - 1], Some((0.0, MOST_RESULTS as f64 - 1.0)), "100 is too long ago");
        assert_eq!(bands(&[]), []);
    }
}
