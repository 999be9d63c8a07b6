//! The load line of a sweep that was measured: the most IOPS at which a latency stays within a limit.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::bootstrap::interval;
use crate::stats::median;

/// One load of a sweep: a value of each repeat.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Level {
    /// I/Os a second.
    pub iops: Vec<f64>,
    /// The latency that is limited (a percentile, or the mean), microseconds. Infinite where the limit was missed
    /// whatever the latency says, such as where an offered rate was not carried.
    pub latency_us: Vec<f64>,
}

/// The most IOPS within a limit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LoadLine {
    /// The place of the last load that was within the limit, among the levels of the sweep, from 0.
    pub last: usize,
    /// The place of the load that carried the most of those within the limit.
    pub at: usize,
    /// What it carried, I/Os a second: measured, and held.
    pub held: f64,
    /// I/Os a second at the next load, which was not; `null` if no load missed the limit: then it is at least `held`.
    pub missed: Option<f64>,
    /// Where between the two the latency crosses the limit, I/Os a second: linear in IOPS and the logarithm of latency.
    pub estimate: f64,
    /// Lower end of the 95 % bootstrap interval of the estimate over whole repeats; `null` with fewer than six.
    pub low: Option<f64>,
    /// Its upper end.
    pub high: Option<f64>,
}

/// The load line of a sweep whose levels are in the order of the load; `None` if no level holds the limit, or there is
/// none.
///
/// A level holds if the median of its repeats is within the limit. The border lies where the fewest levels contradict it,
/// by missing below or by holding beyond: so neither one lucky point beyond it nor one bad point far below it decides; of
/// several such borders it is the lowest.
pub fn load_line(levels: &[Level], limit_us: f64) -> Option<LoadLine> {
    let whole = |level: &Level| (0..level.iops.len().min(level.latency_us.len())).collect::<Vec<_>>();
    let all: Vec<Vec<usize>> = levels.iter().map(whole).collect();
    let Crossing { last, at, held, missed, estimate } = crossing(levels, &all, limit_us)?;
    let sizes: Vec<usize> = all.iter().map(Vec::len).collect();
    let drawn = |repeats: &[Vec<usize>]| crossing(levels, repeats, limit_us).map(|found| found.estimate);
    let (low, high) = missed.and_then(|_| interval(&sizes, drawn)).unzip();
    Some(LoadLine { last, at, held, missed, estimate, low, high })
}

struct Crossing {
    last: usize,
    at: usize,
    held: f64,
    missed: Option<f64>,
    estimate: f64,
}

fn crossing(levels: &[Level], repeats: &[Vec<usize>], limit_us: f64) -> Option<Crossing> {
    let of =
        |values: &[f64], chosen: &[usize]| median(&chosen.iter().map(|i| values[*i]).collect::<Vec<_>>());
    let points: Option<Vec<(f64, f64)>> = (levels.iter().zip(repeats))
        .map(|(level, chosen)| Some((of(&level.iops, chosen)?, of(&level.latency_us, chosen)?)))
        .collect();
    let points = points?;
    let holds = |place: usize| points[place].1 <= limit_us;
    let border = border(&(0..points.len()).map(holds).collect::<Vec<_>>());
    let last = (0..border).rev().find(|place| holds(*place))?;
    let within = (0..=last).filter(|place| holds(*place));
    let at = within.max_by(|a, b| points[*a].0.total_cmp(&points[*b].0).then(b.cmp(a)))?;
    let held = points[at].0;
    // The first beyond the border that did miss.
    let next = (border..points.len()).find(|place| !holds(*place)).map(|place| points[place]);
    let below = points[last].1;
    let estimate = match next {
        Some((missed, above)) if missed > held && above.is_finite() && above > below && below > 0.0 => {
            let share = (limit_us / below).ln() / (above / below).ln();
            held + (missed - held) * share.clamp(0.0, 1.0)
        }
        _ => held,
    };
    Some(Crossing { last, at, held, missed: next.map(|(iops, _)| iops), estimate })
}

/// How many levels lie below the border that the fewest contradict; the fewest of equals.
fn border(holds: &[bool]) -> usize {
    let mut wrong = holds.iter().filter(|holds| **holds).count();
    let (mut least, mut border) = (wrong, 0);
    for (place, holds) in holds.iter().enumerate() {
        if *holds {
            wrong -= 1
        } else {
            wrong += 1
        }
        if wrong < least {
            (least, border) = (wrong, place + 1);
        }
    }
    border
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(points: &[(f64, f64)]) -> Vec<Level> {
        points.iter().map(|p| Level { iops: vec![p.0], latency_us: vec![p.1] }).collect()
    }

    #[test]
    fn the_load_line_lies_between_the_last_load_that_holds_and_the_next() {
        let line = load_line(&levels(&[(100.0, 1.0), (200.0, 2.0), (300.0, 8.0)]), 4.0).unwrap();
        assert_eq!((line.held, line.missed, line.low), (200.0, Some(300.0), None));
        assert!((line.estimate - 250.0).abs() < 1e-9, "4 is half of the way from 2 to 8 by ratio");
    }

    #[test]
    fn where_every_load_holds_it_is_at_least_the_most_and_where_none_does_there_is_none() {
        let line = load_line(&levels(&[(100.0, 1.0), (200.0, 2.0)]), 4.0).unwrap();
        assert_eq!((line.held, line.missed, line.estimate), (200.0, None, 200.0));
        assert_eq!(load_line(&levels(&[(100.0, 5.0)]), 4.0), None);
        assert_eq!(load_line(&[], 4.0), None);
    }

    #[test]
    fn a_curve_that_folds_back_ends_at_its_peak_and_a_lucky_point_does_not_count() {
        let back = load_line(&levels(&[(100.0, 1.0), (300.0, 3.0), (250.0, 9.0)]), 4.0).unwrap();
        assert_eq!((back.held, back.estimate), (300.0, 300.0));
        let lucky =
            load_line(&levels(&[(100.0, 1.0), (200.0, 9.0), (300.0, 3.9), (400.0, 9.0)]), 4.0).unwrap();
        assert_eq!(lucky.missed, Some(200.0));
        let not_carried =
            load_line(&levels(&[(100.0, 1.0), (90.0, f64::INFINITY), (95.0, 1.0)]), 4.0).unwrap();
        assert_eq!((not_carried.held, not_carried.missed, not_carried.estimate), (100.0, Some(90.0), 100.0));
    }

    #[test]
    fn six_repeats_give_an_interval() {
        let noisy = |iops: f64, latency: f64| Level {
            iops: vec![iops; 6],
            latency_us: [0.9, 0.95, 1.0, 1.0, 1.05, 1.1].map(|f| latency * f).to_vec(),
        };
        let line = load_line(&[noisy(100.0, 1.0), noisy(200.0, 2.0), noisy(300.0, 8.0)], 4.0).unwrap();
        let (low, high) = (line.low.unwrap(), line.high.unwrap());
        assert!(low < line.estimate && line.estimate < high && low > 240.0 && high < 260.0, "{line:?}");
    }
}
