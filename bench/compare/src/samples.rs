//! Figures of many tries: their median, 95th percentile and the largest.

/// Measured values in ascending order, in whatever unit the caller adds them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    pub(crate) fn add(&mut self, value: f64) {
        let at = self.0.partition_point(|known| *known <= value);
        self.0.insert(at, value);
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// The smallest value that this share of all does not exceed.
    pub(crate) fn at(&self, share: f64) -> Option<f64> {
        let rank = (share * self.0.len() as f64).ceil() as usize;
        self.0.get(rank.saturating_sub(1)).copied()
    }

    pub(crate) fn max(&self) -> Option<f64> {
        self.0.last().copied()
    }

    /// Median, 95th percentile and the largest.
    pub(crate) fn three(&self) -> [String; 3] {
        let show = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.2}"));
        [show(self.at(0.5)), show(self.at(0.95)), show(self.max())]
    }

    /// The median and the range.
    pub(crate) fn range(&self, show: impl Fn(f64) -> String) -> String {
        match (loadline_measure::stats::median(&self.0), self.0.first(), self.0.last()) {
            (Some(median), Some(low), Some(high)) if low == high => show(median),
            (Some(median), Some(low), Some(high)) => {
                format!("{} ({}..{})", show(median), show(*low), show(*high))
            }
            _ => "-".into(),
        }
    }

    pub(crate) fn median(&self) -> Option<f64> {
        loadline_measure::stats::median(&self.0)
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Samples {
        let mut samples = Samples::default();
        values.into_iter().for_each(|value| samples.add(value));
        samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_seen() {
        let samples: Samples = (1..=30).rev().map(f64::from).collect();
        assert_eq!((samples.at(0.5), samples.at(0.95), samples.max()), (Some(15.0), Some(29.0), Some(30.0)));
        assert_eq!(samples.three(), ["15.00", "29.00", "30.00"]);
        assert_eq!(Samples::default().three(), ["-", "-", "-"]);
    }
}
