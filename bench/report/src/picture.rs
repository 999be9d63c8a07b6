//! A load line as a picture of characters: latency over IOPS, the limit across it, and the most within the limit.

use loadline_base::figures::{latency, thousands};
use loadline_measure::analysis::{Analysis, Group, LatencyLimit};
use loadline_measure::audit::FindingKind;
use loadline_study::plan::Purpose;

use crate::report::Report;

/// Columns and rows of the plot, without its axes.
const COLUMNS: usize = 62;
const ROWS: usize = 11;
/// A latency beyond the limit by more than this factor is drawn at the upper edge, so that one that is very long does not
/// press all others into one row.
const MOST_ABOVE: f64 = 30.0;

/// So many loads of an analysis are drawn: more would push its table out of sight.
const MOST_DRAWN: usize = 4;

/// A measurement in the picture.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Mark {
    /// I/Os a second, or bytes where `in_bytes` is set.
    amount: f64,
    /// Microseconds; infinite where the limit was missed whatever the latency says.
    latency_us: f64,
    held: bool,
}

/// What is drawn.
#[derive(Debug, Clone, PartialEq)]
struct Picture<'a> {
    load: &'a str,
    /// The percentile's name, or `mean`.
    figure: &'a str,
    limit_us: f64,
    /// The most within the limit, in the unit of the marks.
    line: Option<f64>,
    in_bytes: bool,
    marks: Vec<Mark>,
}

/// A picture for each search of a run that has found a load line; empty if there is none.
pub fn of_report(report: &Report) -> String {
    let mut text = String::new();
    for (search, number) in report.searches.iter().zip(1u32..) {
        let probes = report
            .steps
            .iter()
            .filter(|step| matches!(step.purpose, Purpose::Search { search, .. } if search == number));
        let marks = probes.filter_map(|step| {
            let value = step.latency_us.percentile(&search.percentile)?;
            let is_carried = step.findings.iter().all(|finding| finding.kind != FindingKind::RateNotMet);
            let held = value <= search.limit_us && is_carried && step.errors == 0 && step.lost_workers == 0;
            Some(Mark { amount: step.iops, latency_us: value, held })
        });
        let picture = Picture {
            load: &search.label,
            figure: &search.percentile,
            limit_us: search.limit_us,
            line: search.iops,
            in_bytes: false,
            marks: marks.collect(),
        };
        text.push_str(&picture.draw());
    }
    text
}

/// A picture for each of the first loads of an analysis that have a load line at `limit`; empty if there is none.
pub fn of_analysis(analysis: &Analysis, limit: &LatencyLimit) -> String {
    let figure = limit.percentile.map_or("mean".to_string(), |percent| format!("p{percent}"));
    let of = |group: &Group| {
        let words = [Some(&group.profile), group.condition.as_ref(), group.at.as_ref()];
        let load = words.into_iter().flatten().map(String::as_str).collect::<Vec<_>>().join(", ");
        let marks = group.curve.iter().map(|place| Mark {
            amount: place.amount,
            latency_us: place.latency_us.unwrap_or(f64::INFINITY),
            held: place.held,
        });
        let picture = Picture {
            load: &load,
            figure: &figure,
            limit_us: limit.limit_us,
            line: Some(group.load_line.as_ref()?.held),
            in_bytes: group.in_bytes,
            marks: marks.collect(),
        };
        Some(picture.draw())
    };
    analysis.groups.iter().filter_map(of).take(MOST_DRAWN).collect()
}

impl Picture<'_> {
    /// With a title above and an axis below; empty if there are fewer than two measurements, or no load line.
    fn draw(&self) -> String {
        let Some(line) = self.line.filter(|_| self.marks.len() >= 2) else { return String::new() };
        let most = self.marks.iter().map(|mark| mark.amount).fold(line, f64::max);
        let highest = (self.limit_us * MOST_ABOVE).max(1.0);
        let latencies = self.marks.iter().map(|mark| mark.latency_us.clamp(0.1, highest));
        let (low, high) = latencies
            .fold((self.limit_us, self.limit_us), |(low, high), value| (low.min(value), high.max(value)));
        // The limit is in the picture with room above it, also if everything is within.
        let (low, high) = ((low / 1.2).ln(), (high * 1.2).ln());
        let column = |amount: f64| ((amount / most) * (COLUMNS - 1) as f64).round() as usize;
        let row = |value: f64| {
            let share = (value.clamp(0.1, highest).ln() - low) / (high - low);
            ROWS - 1 - (share * (ROWS - 1) as f64).round() as usize
        };
        let mut grid = vec![vec![' '; COLUMNS]; ROWS];
        let limit_row = row(self.limit_us);
        grid[limit_row].iter_mut().step_by(2).for_each(|cell| *cell = '-');
        grid.iter_mut().for_each(|cells| cells[column(line)] = '|');
        for mark in &self.marks {
            let cell = &mut grid[row(mark.latency_us)][column(mark.amount)];
            *cell = match (*cell, mark.held) {
                ('x', _) | (_, false) => 'x',
                _ => 'o',
            };
        }
        let limit = latency(self.limit_us);
        let mut text = format!("{}: {} (o within {limit}, x not)\n", self.load, self.figure);
        for (at, cells) in grid.iter().enumerate() {
            let label = match at {
                at if at == limit_row => limit.clone(),
                0 if limit_row > 1 => latency(high.exp()),
                at if at == ROWS - 1 && limit_row < ROWS - 2 => latency(low.exp()),
                _ => String::new(),
            };
            let cells: String = cells.iter().collect();
            text.push_str(&format!("{}\n", format!("{label:>10} |{cells}").trim_end()));
        }
        text.push_str(&format!("{:>10} +{}\n", "", "-".repeat(COLUMNS)));
        text.push_str(&self.axis(line, column(line), most));
        text
    }

    /// The figures below the plot: zero and the most that was measured, and the load line below its mark.
    fn axis(&self, line: f64, column: usize, most: f64) -> String {
        let (amount, unit) = match self.in_bytes {
            true => (1e-6, "MB/s"),
            false => (1.0, "IOPS"),
        };
        let last = format!("{} {unit}", thousands(most * amount));
        let at_line = format!("load line {} {unit}", thousands(line * amount));
        let start = column.saturating_sub(at_line.len() / 2).min(COLUMNS.saturating_sub(at_line.len()));
        format!("{:>12}0{last:>width$}\n{:>12}{:>start$}{at_line}\n", "", "", "", width = COLUMNS - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(amount: f64, latency_us: f64) -> Mark {
        Mark { amount, latency_us, held: latency_us <= 2_000.0 }
    }

    fn picture(line: f64, marks: Vec<Mark>) -> String {
        Picture { load: "reads", figure: "p99", limit_us: 2_000.0, line: Some(line), in_bytes: false, marks }
            .draw()
    }

    /// Of a drawn picture: where a character stands, as (row, column) of the plot.
    fn places(text: &str, wanted: char) -> Vec<(usize, usize)> {
        let rows = text.lines().skip(1).take(ROWS).enumerate();
        rows.flat_map(|(row, line)| {
            let cells: Vec<char> = line.chars().skip(12).collect();
            let found = cells.into_iter().enumerate().filter(move |(_, c)| *c == wanted);
            found.map(move |(column, _)| (row, column)).collect::<Vec<_>>()
        })
        .collect()
    }

    #[test]
    fn what_is_within_the_limit_stands_below_it_and_left_of_the_line() {
        let text =
            picture(6_000.0, vec![mark(1_000.0, 300.0), mark(6_000.0, 1_500.0), mark(8_000.0, 9_000.0)]);
        let limit = places(&text, '-')[0].0;
        let (held, missed) = (places(&text, 'o'), places(&text, 'x'));
        assert_eq!((held.len(), missed.len()), (2, 1), "{text}");
        assert!(held.iter().all(|(row, _)| *row > limit) && missed[0].0 < limit, "{text}");
        let line = places(&text, '|')[0].1;
        assert!(missed[0].1 > line && held.iter().all(|(_, column)| *column <= line), "{text}");
        assert_eq!(missed[0].1, COLUMNS - 1, "the most is at the right edge");
        assert!(text.contains("load line 6,000 IOPS") && text.contains("8,000 IOPS"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }

    #[test]
    fn one_that_is_very_slow_does_not_press_the_others_together() {
        let text = picture(6_000.0, vec![mark(1_000.0, 300.0), mark(6_000.0, 1_500.0), mark(8_000.0, 3e9)]);
        assert_eq!(places(&text, 'x')[0].0, 0, "{text}");
        let rows: Vec<usize> = places(&text, 'o').into_iter().map(|(row, _)| row).collect();
        assert!(rows[1].abs_diff(rows[0]) >= 2, "{text}");
        let missed = picture(1.0, vec![mark(1.0, 10.0), mark(2.0, f64::INFINITY)]);
        assert_eq!(places(&missed, 'x')[0].0, 0, "{missed}");
    }

    #[test]
    fn without_a_line_or_with_one_measurement_nothing_is_drawn() {
        assert_eq!(picture(6_000.0, vec![mark(6_000.0, 1_500.0)]), "");
        let marks = vec![mark(1.0, 1.0); 3];
        let none = Picture { load: "x", figure: "p99", limit_us: 1.0, line: None, in_bytes: false, marks };
        assert_eq!(none.draw(), "");
    }

    proptest::proptest! {
        #[test]
        fn no_figures_break_it(line in 0.0f64..1e9, marks in proptest::collection::vec((0.0f64..1e9, 0.0f64..1e12), 0..9)) {
            let marks = marks.into_iter().map(|(amount, latency)| mark(amount, latency)).collect();
            picture(line, marks);
        }
    }
}
