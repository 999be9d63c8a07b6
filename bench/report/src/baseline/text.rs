//! A run beside its baseline as aligned text: the comparison, then a line for each load with what the comparison could
//! have shown and the trend.

use std::collections::BTreeMap;

use loadline_base::figures::{latency, thousands};

use crate::baseline::gate::{Gate, KeptAs, RunName};
use crate::baseline::trend::{BetweenRuns, RESULTS_FOR_A_RANGE, Trend};
use crate::columns::align;
use crate::compare::Figure;
use crate::compare::configuration::printable;
use crate::compare::load::{Load, share};
use crate::compare::text::page as comparison_page;

/// So much of a commit's name is printed.
const COMMIT: usize = 12;

/// The whole text.
pub fn page(gate: &Gate) -> String {
    let mut page = format!("{}\n", printable(&title(gate)));
    if let Some(comparison) = &gate.comparison {
        page.push_str(&format!("\n{}", comparison_page(comparison)));
    }
    page.push_str(&format!("\n{}", align(&rows(gate), 0)));
    for sentence in sentences(gate) {
        page.push_str(&format!("{}\n", printable(&sentence)));
    }
    page
}

/// Which baseline, and which result is pinned.
pub(super) fn title(gate: &Gate) -> String {
    let pinned = match (&gate.pinned, &gate.comparison) {
        (Some(pinned), _) => format!("pinned is {}", run(pinned)),
        (None, _) if gate.kept == KeptAs::Pinned => "this run is the pinned result".into(),
        (None, _) => "no result is kept to compare with".into(),
    };
    format!("baseline {}: {pinned}", gate.baseline)
}

/// A run by its date, its commit and its place.
fn run(run: &RunName) -> String {
    let commit: String = run.commit.iter().flat_map(|commit| commit.chars().take(COMMIT)).collect();
    let commit = if commit.is_empty() { String::new() } else { format!(", commit {commit}") };
    format!("{} of {}{commit}", run.place, date(run.begun.as_str()))
}

/// `2026-01-31` of a moment.
fn date(moment: &str) -> &str {
    moment.split('T').next().unwrap_or(moment)
}

/// The table of loads, its titles first.
pub(super) fn rows(gate: &Gate) -> Vec<Vec<String>> {
    let titles =
        ["load", "figure", "detectable", "kept", "trend", "median", "range between runs", "this run"];
    let mut rows = vec![titles.map(String::from).to_vec()];
    rows.extend(gate.trend.iter().map(|trend| row(trend, detectable(gate, trend))));
    rows
}

fn row(trend: &Trend, detectable: String) -> Vec<String> {
    let show = |value: Option<f64>| value.map_or("-".into(), |value| show(trend.figure, value));
    let outside = if trend.is_outside == Some(true) { " (outside)" } else { "" };
    let range = trend
        .between_runs
        .map_or("-".into(), |range| format!("{}..{}", show(Some(range.low)), show(Some(range.high))));
    vec![
        printable(&trend.label),
        trend.figure.name().into(),
        detectable,
        trend.results.len().to_string(),
        trend.bars(),
        show(trend.median),
        range,
        format!("{}{outside}", show(trend.this_run)),
    ]
}

fn show(figure: Figure, value: f64) -> String {
    match figure {
        Figure::Iops => thousands(value),
        Figure::MeanUs | Figure::P99Us => latency(value),
    }
}

/// The detectable slowdown of a load that was judged, if it is one of the figure of its row.
fn detectable(gate: &Gate, trend: &Trend) -> String {
    let loads = gate.comparison.iter().flat_map(|comparison| &comparison.loads);
    let judged = |load: &&Load| {
        load.label == trend.label && load.verdict.is_judged() && load.decided_by == Some(trend.figure)
    };
    let percent = loads.filter(judged).find_map(|load| load.detectable_percent);
    percent.map_or("-".into(), share)
}

/// What a reader should know of the table and of the history, in sentences.
pub(super) fn sentences(gate: &Gate) -> Vec<String> {
    let mut sentences = Vec::new();
    if gate.comparison.is_some() {
        sentences.push(
            "Detectable: if a load is slower by this much, 9 of 10 comparisons whose repeats vary as much find it."
                .to_string(),
        );
    }
    sentences.extend(about_trend(gate));
    sentences.extend(gate.notes.iter().cloned());
    let (baseline, file) = (&gate.baseline, gate.kept_in.as_deref().unwrap_or("-"));
    sentences.push(match gate.kept {
        KeptAs::NotKept => match &gate.not_kept_because {
            Some(because) => format!("This run is not kept in the baseline {baseline}: {because}."),
            None => format!("This run is not kept in the baseline {baseline}."),
        },
        KeptAs::Kept => format!(
            "This run is kept in the baseline {baseline}: {file}. Later runs are compared with the pinned result."
        ),
        KeptAs::Pinned => format!(
            "This run is the pinned result of the baseline {baseline}: {file}. Later runs are compared with it."
        ),
    });
    sentences
}

/// What the bars are, and which loads lie outside of the range.
fn about_trend(gate: &Gate) -> Vec<String> {
    let Some(longest) = gate.trend.iter().max_by_key(|trend| trend.results.len()) else { return Vec::new() };
    let (Some(first), Some(last)) = (longest.results.first(), longest.results.last()) else {
        return Vec::new();
    };
    let count = longest.results.len();
    let is_longest = |trend: &Trend| trend.results.len() == count;
    let results = match gate.trend.iter().all(is_longest) {
        true if count == 1 => "the kept result".into(),
        true => format!("the last {count} kept results"),
        false => format!("the last kept results, at most {count} of a load"),
    };
    let dates = match (date(first.begun.as_str()), date(last.begun.as_str())) {
        (first, last) if first == last => format!("of {first}"),
        (first, last) => format!("{first} to {last}"),
    };
    let mut sentences = vec![format!(
        "Trend: {results}, {dates}, then this run; the bars span a tenth of the median at least."
    )];
    // The chance depends on the number of results, which is not the same for every load.
    let ranges: BTreeMap<usize, BetweenRuns> =
        gate.trend.iter().filter_map(|trend| Some((trend.results.len(), trend.between_runs?))).collect();
    for (count, range) in ranges.iter().rev() {
        sentences.push(format!(
            "Range between runs: if nothing changed, {:.0} % of further runs lie within the range of {count} kept results.",
            100.0 * range.chance_within
        ));
    }
    if gate.trend.iter().any(|trend| trend.between_runs.is_none()) {
        sentences.push(format!(
            "The range between runs is given from {RESULTS_FOR_A_RANGE} kept results on: it shows the noise between \
             runs, which repeats within one run do not show."
        ));
    }
    for trend in &gate.trend {
        let doubtful = trend.results.iter().filter(|result| result.is_doubtful).count();
        if doubtful > 0 {
            sentences.push(format!(
                "doubtful: {}: {doubtful} of {} kept results have findings that make a figure doubtful.",
                trend.label,
                trend.results.len()
            ));
        }
    }
    for trend in gate.trend.iter().filter(|trend| trend.is_outside == Some(true)) {
        let chance = trend.between_runs.map_or(0.0, |range| 100.0 * (1.0 - range.chance_within));
        let side = match (trend.this_run, trend.between_runs) {
            (Some(value), Some(range)) if value < range.low => "below",
            _ => "above",
        };
        sentences.push(format!(
            "{}: this run lies {side} the range of {} kept results. If nothing changed, chance alone puts {chance:.0} \
             % of runs outside of it.",
            trend.label,
            trend.results.len()
        ));
    }
    sentences
}
