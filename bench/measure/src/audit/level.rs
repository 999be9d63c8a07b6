//! Whether a window was one thing: its level changed, or nothing completed for a while. One figure for both says nothing.

use loadline_base::figures::{listed, thousands};

use super::{Finding, FindingKind};
use crate::change::levels;

/// A time without a completion that is shorter is left to the percentiles.
const SHORTEST_STALL_MS: u64 = 1_000;
/// A time without a completion is a stall if it is so many times what lies between two completions on average. By chance, of arrivals
/// at random, that comes once in e^12: about 160,000 I/Os.
const TIMES_BETWEEN: f64 = 12.0;

/// What is to be said of a window that nothing was done to: that its level changed, or that nothing completed for long.
///
/// `iops` has the completions of each second, `longest_stall_ms` is the longest time without one.
pub fn disturbed(iops: &[f64], longest_stall_ms: u64) -> Vec<Finding> {
    let Some(stall) = stall(iops, longest_stall_ms) else { return level_change(iops).into_iter().collect() };
    // A stall is no level: its seconds have that of the one before, or after.
    let first = iops.iter().copied().find(|iops| *iops > 0.0).unwrap_or_default();
    let carried: Vec<f64> = iops
        .iter()
        .scan(first, |last, iops| {
            *last = if *iops > 0.0 { *iops } else { *last };
            Some(*last)
        })
        .collect();
    level_change(&carried).into_iter().chain([stall]).collect()
}

/// That the level changed in the middle of the window: a write buffer was full, or a cache warm.
fn level_change(iops: &[f64]) -> Option<Finding> {
    let found = levels(iops);
    let shown: Vec<String> = found
        .windows(2)
        .map(|pair| {
            let (from, to) = (thousands(pair[0].level), thousands(pair[1].level));
            format!("after {} s from {from} to {to} IOPS", pair[0].to)
        })
        .collect();
    (!shown.is_empty()).then(|| {
        Finding::doubt(
            FindingKind::LevelChange,
            "one level of IOPS over the window",
            listed(&shown, 4),
            "A write buffer or cache that is full, work in the background, or another user of the host. The window's figures \
             are of neither level: warm up longer (--warm-up; [phases.steady] of a study), and look at the series.",
        )
    })
}

/// That nothing completed for long, between completions.
fn stall(iops: &[f64], longest_ms: u64) -> Option<Finding> {
    let completed: f64 = iops.iter().sum();
    let window_ms = iops.len() as f64 * 1e3;
    let stalled = longest_ms >= SHORTEST_STALL_MS
        && completed > 0.0
        && longest_ms as f64 >= TIMES_BETWEEN * window_ms / completed;
    stalled.then(|| {
        Finding::doubt(
            FindingKind::Stall,
            "I/Os that complete all the time",
            format!("none for {:.1} s of {} s", longest_ms as f64 / 1e3, iops.len()),
            "The storage did not answer, or the machine of the load stood still. The figures are means over that time \
             and the rest: see the seconds of the result, and measure again.",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(iops: &[f64], stall_ms: u64) -> Vec<FindingKind> {
        disturbed(iops, stall_ms).iter().map(|finding| finding.kind).collect()
    }

    #[test]
    fn a_window_of_two_levels_is_said() {
        let series = [vec![4000.0; 12], vec![1000.0; 10]].concat();
        let found = disturbed(&series, 2);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].kind, FindingKind::LevelChange);
        assert_eq!(found[0].found, "after 12 s from 4,000 to 1,000 IOPS");
        assert_eq!(kinds(&[1000.0; 22], 2), []);
    }

    #[test]
    fn seconds_without_a_completion_are_said_unless_so_few_were_due() {
        let mut series = vec![1000.0; 20];
        series[7..10].fill(0.0);
        assert_eq!(kinds(&series, 3000), [FindingKind::Stall]);
        assert_eq!(kinds(&[1000.0; 20], 900), [], "the percentiles tell");
        series[10..].fill(200.0);
        assert_eq!(kinds(&series, 3000), [FindingKind::LevelChange, FindingKind::Stall]);
        assert_eq!(kinds(&[0.5; 20], 4000), [], "one in two seconds");
        assert_eq!(kinds(&[0.0; 20], 20_000), [], "that nothing completed at all is another finding");
    }
}
