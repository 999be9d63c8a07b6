//! As aligned text, for a terminal of 120 columns where labels allow it.

use loadline_base::figures::{megabytes, thousands};

use crate::columns::align;
use crate::report::Report;
use crate::rows::{LoadRow, StepRow};
use loadline_measure::spread::Spread;

/// What latencies are printed in: one unit for a whole table, so that rows can be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Latencies are printed in microseconds.
    Micro,
    /// Latencies are printed in milliseconds.
    Milli,
}

impl Unit {
    /// Milliseconds as soon as one of them would take five digits in microseconds.
    pub fn of(report: &Report) -> Unit {
        let figures = |step: &StepRow| {
            let latency = &step.latency_us;
            [latency.mean, latency.p99, latency.deepest_value().map(|(_, value)| value)]
        };
        let largest = report.steps.iter().flat_map(figures).flatten().fold(0.0, f64::max);
        if largest < 10_000.0 { Unit::Micro } else { Unit::Milli }
    }

    /// `us` or `ms`.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Micro => "us",
            Unit::Milli => "ms",
        }
    }

    /// A latency of so many microseconds, in this unit, with three digits that count, or all before the point if
    /// those are more; `-` if there is none.
    pub fn show(self, micros: Option<f64>) -> String {
        let Some(micros) = micros else { return "-".into() };
        let figure = match self {
            Unit::Micro => micros,
            Unit::Milli => micros / 1e3,
        };
        // A nanosecond is the least that there is.
        let decimals = if figure > 0.0 { (2.0 - figure.log10().floor()).clamp(0.0, 6.0) } else { 0.0 };
        format!("{figure:.0$}", decimals as usize)
    }
}

/// The table of all complete steps.
pub fn steps(report: &Report) -> String {
    let unit = Unit::of(report);
    let latency = |name: &str| format!("{name} {}", unit.name());
    let mut rows = vec![vec![
        "step".into(),
        "profile".into(),
        "rep".into(),
        "IOPS".into(),
        "MB/s".into(),
        "CPU".into(),
        latency("mean"),
        latency("p50"),
        latency("p99"),
        latency("deepest"),
        "stall ms".into(),
        "worker stall".into(),
        "errors".into(),
        "lost".into(),
    ]];
    rows.extend(report.steps.iter().map(|step| step_cells(step, unit)));
    align(&rows, 1)
}

/// The cells of one step, in the order of the table's columns.
pub fn step_cells(step: &StepRow, unit: Unit) -> Vec<String> {
    let latency = &step.latency_us;
    let deepest = latency
        .deepest_value()
        .map_or("-".into(), |(name, value)| format!("{name} {}", unit.show(Some(value))));
    vec![
        step.step.to_string(),
        step.label.clone(),
        step.repeat.to_string(),
        thousands(step.iops),
        megabytes(step.bytes_per_s),
        // What lost workers used is not known.
        format!("{}{:.2}", if step.lost_workers > 0 { "≥" } else { "" }, step.cpu_cores),
        unit.show(latency.mean),
        unit.show(latency.p50),
        unit.show(latency.p99),
        deepest,
        thousands(step.longest_stall_ms as f64),
        step.longest_worker_stall_ms.map_or("-".into(), |ms| thousands(ms as f64)),
        thousands(step.errors as f64),
        step.lost_workers.to_string(),
    ]
}

/// The loads of the tables by the names that people use, a line each; empty if no load has a name that says more than its code.
pub fn names(report: &Report) -> String {
    let named = |load: &LoadRow| {
        let name = report.names.get(&load.label).filter(|name| **name != load.label)?;
        Some(vec![load.label.clone(), name.clone()])
    };
    let rows: Vec<Vec<String>> = report.loads.iter().filter_map(named).collect();
    // Both columns are text: the name stands to the right of the widest code.
    let width = rows.iter().map(|row| row[0].chars().count()).max().unwrap_or(0);
    rows.iter().map(|row| format!("{:<width$}  {}\n", row[0], row[1])).collect()
}

/// The table of all loads over their repeats; empty if nothing was repeated.
pub fn loads(report: &Report) -> String {
    if !report.has_repeats() {
        return String::new();
    }
    let unit = Unit::of(report);
    let mut rows = vec![load_titles(unit)];
    rows.extend(report.loads.iter().map(|load| load_cells(load, unit)));
    format!("{}{}\n", align(&rows, 0), level(report))
}

/// The titles of the table of loads.
pub fn load_titles(unit: Unit) -> Vec<String> {
    vec![
        "profile".into(),
        "n".into(),
        "IOPS".into(),
        "MB/s".into(),
        format!("mean {}", unit.name()),
        format!("p99 {}", unit.name()),
    ]
}

/// The cells of one load.
pub fn load_cells(load: &LoadRow, unit: Unit) -> Vec<String> {
    let spread = |spread: Option<Spread>, show: &dyn Fn(f64) -> String| match spread {
        None => "-".to_string(),
        Some(Spread { median, .. }) if load.repeats == 1 => show(median),
        Some(Spread { median, low, high, .. }) => format!("{} [{}..{}]", show(median), show(low), show(high)),
    };
    let latency = |figure| spread(figure, &|us| unit.show(Some(us)));
    vec![
        load.label.clone(),
        match load.doubtful {
            0 => load.repeats.to_string(),
            doubtful => format!("{} ({doubtful} doubtful)", load.repeats),
        },
        spread(load.iops, &thousands),
        spread(load.bytes_per_s, &megabytes),
        latency(load.mean_us),
        latency(load.p99_us),
    ]
}

/// What checking the blocks found in all steps, as a line; empty if nothing was verified.
pub fn verified(report: &Report) -> String {
    report.verified().map(|verified| format!("verified: {verified}\n")).unwrap_or_default()
}

/// What the brackets in the table of loads are.
pub fn level(report: &Report) -> &'static str {
    let with_level = |load: &LoadRow| load.iops.is_some_and(|iops| iops.level.is_some());
    match (report.loads.iter().any(with_level), report.loads.iter().all(with_level)) {
        (_, true) => "Median of the repeats, and its 95 % confidence interval.",
        (false, _) => {
            "Median and range of the repeats; no confidence level (fewer than six repeats, or lost workers)."
        }
        _ => {
            "Median of the repeats; in brackets its 95 % confidence interval if there are at least six repeats and none \
             lost workers, otherwise the range of the repeats, without a confidence level."
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short_and_exact_enough() {
        assert_eq!(
            [7.051, 83.25, 350.4, 7050.2].map(|us| Unit::Micro.show(Some(us))),
            ["7.05", "83.2", "350", "7050"]
        );
        assert_eq!(
            [0.0, 30.0, 83.25, 7050.0, 25_000_000.0].map(|us| Unit::Milli.show(Some(us))),
            ["0", "0.0300", "0.0833", "7.05", "25000"]
        );
        assert_eq!(Unit::Milli.show(None), "-");
    }
}
