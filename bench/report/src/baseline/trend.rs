//! The kept results of each load beside a new run, and the noise between runs. Pure.

use loadline_measure::stats::median;
use loadline_study::when::When;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::baseline::history::History;
use crate::baseline::kept::KeptResult;
use crate::compare::configuration::unlike;
use crate::compare::record::LoadRecord;
use crate::compare::{Comparison, Constant, Figure};

/// From so many kept results on, the noise between runs is stated.
pub const RESULTS_FOR_A_RANGE: usize = 5;
/// Bars span at least this share of the median, so that noise does not look like a change.
const LEAST_SPAN: f64 = 0.1;
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// One load in the kept results and in this run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Trend {
    /// The load.
    pub label: String,
    /// The figure that decides the comparison; without one IOPS, and of a load with a rate p99, or the mean if this run has no
    /// p99.
    pub figure: Figure,
    /// Of the results that were kept last the pinned one, and those that were compared with it; the oldest first. A result is
    /// left out if the load was slower in it by more than was allowed, if another load has the name or the figure is not
    /// there, or if it is of other CPUs, disks, targets or workers, or was measured in another way.
    pub results: Vec<TrendResult>,
    /// The median of the kept results; `null` if there are none.
    pub median: Option<f64>,
    /// The noise between runs; `null` with fewer than five kept results.
    pub between_runs: Option<BetweenRuns>,
    /// This run: the median of its repeats; `null` if a repeat does not have the figure.
    pub this_run: Option<f64>,
    /// Whether this run lies outside of the range of the kept results; `null` without a range or without a figure.
    pub is_outside: Option<bool>,
}

/// A kept result of a load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TrendResult {
    /// The run's id.
    pub run_id: String,
    /// When the run began.
    pub begun: When,
    /// The commit that was checked out; `null` if the study was in no work tree of git.
    pub commit: Option<String>,
    /// The median of the run's repeats.
    pub value: f64,
    /// Whether a repeat lost workers, had errors, or has another finding that makes a figure doubtful.
    pub is_doubtful: bool,
}

/// The range of earlier results: from the smallest to the largest of n. It assumes nothing about how runs are distributed: if nothing
/// changed, every order of the results and a further run is equally likely, so the further run is the smallest or the largest of n + 1
/// with a chance of 2 ÷ (n + 1), and lies within the range with a chance of (n − 1) ÷ (n + 1).
///
/// This is the distribution-free prediction interval for one further observation: Hahn and Meeker, *Statistical Intervals* (Wiley, 1991),
/// chapter 5.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BetweenRuns {
    /// The smallest result.
    pub low: f64,
    /// The largest result.
    pub high: f64,
    /// The chance that a further run lies within, if nothing changed (0 to 1).
    pub chance_within: f64,
}

impl Trend {
    /// Every load of `this` beside the results that were kept last. `comparison` is that of `this` with the pinned result.
    pub fn all(history: &History, this: &KeptResult, comparison: Option<&Comparison>) -> Vec<Trend> {
        let pinned = history.pinned.as_ref().map(KeptResult::file);
        let is_like = |kept: &&KeptResult| {
            let is_of_pin = Some(kept.file()) == pinned || pinned.is_some() && kept.compared_with == pinned;
            kept.file() != this.file()
                && is_of_pin
                && kept.run.disks == this.run.disks
                && unlike(&kept.run, &this.run, Constant::System).is_empty()
        };
        let like: Vec<&KeptResult> = history.recent.iter().filter(is_like).collect();
        let trend = |load: &LoadRecord| {
            let decides = comparison.and_then(|comparison| {
                comparison.loads.iter().find(|compared| compared.label == load.label)?.decided_by
            });
            let is_slower =
                |kept: &&&KeptResult| Some(kept.file()) != pinned && kept.slower.contains(&load.label);
            let kept: Vec<&KeptResult> = like.iter().filter(|kept| !is_slower(kept)).copied().collect();
            Trend::of(&kept, load, decides)
        };
        this.run.loads.iter().map(trend).collect()
    }

    fn of(kept: &[&KeptResult], this: &LoadRecord, decides: Option<Figure>) -> Trend {
        let figure = decides.unwrap_or(match (this.has_rate, this.median(Figure::P99Us)) {
            (false, _) => Figure::Iops,
            (true, Some(_)) => Figure::P99Us,
            (true, None) => Figure::MeanUs,
        });
        let result = |kept: &&KeptResult| {
            let load = kept.run.load(&this.label).filter(|load| load.keys == this.keys)?;
            Some(TrendResult {
                run_id: kept.run.run_id.clone(),
                begun: kept.run.begun.clone(),
                commit: kept.commit.clone(),
                value: load.median(figure)?,
                is_doubtful: load.doubtful > 0,
            })
        };
        let results: Vec<TrendResult> = kept.iter().filter_map(result).collect();
        let values: Vec<f64> = results.iter().map(|result| result.value).collect();
        let (between_runs, this_run) = (BetweenRuns::of(&values), this.median(figure));
        let is_outside = between_runs.zip(this_run).map(|(range, value)| !range.contains(value));
        let label = this.label.clone();
        Trend { label, figure, median: median(&values), results, between_runs, this_run, is_outside }
    }

    /// A bar for each kept result; after a space one for this run, if it has the figure.
    pub fn bars(&self) -> String {
        let kept: Vec<f64> = self.results.iter().map(|result| result.value).collect();
        let all = || kept.iter().copied().chain(self.this_run);
        let low = all().fold(f64::INFINITY, f64::min);
        let high = all().fold(f64::NEG_INFINITY, f64::max);
        let least = LEAST_SPAN * self.median.or(self.this_run).unwrap_or_default();
        let span = (high - low).max(least);
        let bottom = f64::midpoint(low, high) - span / 2.0;
        let bar = |value: &f64| {
            // A span of nothing is one of zeros: the lowest bar.
            let share = if span > 0.0 { (value - bottom) / span } else { 0.0 };
            BARS[((share * BARS.len() as f64) as usize).min(BARS.len() - 1)]
        };
        let mut bars: String = kept.iter().map(bar).collect();
        if let Some(value) = &self.this_run {
            bars.extend([' ', bar(value)].iter().skip(usize::from(kept.is_empty())));
        }
        bars
    }
}

impl BetweenRuns {
    /// Of so many results; `None` of fewer than [`RESULTS_FOR_A_RANGE`].
    pub fn of(values: &[f64]) -> Option<BetweenRuns> {
        if values.len() < RESULTS_FOR_A_RANGE {
            return None;
        }
        let count = values.len() as f64;
        Some(BetweenRuns {
            low: values.iter().copied().reduce(f64::min)?,
            high: values.iter().copied().reduce(f64::max)?,
            chance_within: (count - 1.0) / (count + 1.0),
        })
    }

    /// Whether a value lies within.
    pub fn contains(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trend(values: &[f64], this_run: Option<f64>) -> Trend {
        let result = |value: &f64| TrendResult {
            run_id: "r".into(),
            begun: When::now(),
            commit: None,
            value: *value,
            is_doubtful: false,
        };
        Trend {
            label: "x".into(),
            figure: Figure::Iops,
            results: values.iter().map(result).collect(),
            median: median(values),
            between_runs: BetweenRuns::of(values),
            this_run,
            is_outside: None,
        }
    }

    #[test]
    fn noise_looks_flat_and_a_change_does_not() {
        let noise = trend(&[100.0, 101.0, 99.0, 100.0], Some(100.5));
        assert!(noise.bars().chars().all(|bar| " ▄▅".contains(bar)), "{}", noise.bars());
        assert_eq!(trend(&[100.0, 100.0, 50.0], Some(75.0)).bars(), "██▁ ▅");
        assert_eq!(trend(&[], Some(75.0)).bars(), "▅");
        assert_eq!(trend(&[75.0], None).bars(), "▅");
        assert_eq!(trend(&[0.0, 0.0], Some(0.0)).bars(), "▁▁ ▁");
        assert_eq!(trend(&[], None).bars(), "");
    }

    #[test]
    fn a_range_takes_five_results_and_says_how_often_chance_leaves_it() {
        assert_eq!(BetweenRuns::of(&[1.0, 2.0, 3.0, 4.0]), None);
        let range = BetweenRuns::of(&[3.0, 1.0, 2.0, 5.0, 4.0]).unwrap();
        assert_eq!((range.low, range.high), (1.0, 5.0));
        assert!((range.chance_within - 4.0 / 6.0).abs() < 1e-12);
        assert!(range.contains(5.0) && !range.contains(5.1) && !range.contains(0.9));
    }
}
