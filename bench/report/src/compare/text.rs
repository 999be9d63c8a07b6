//! A comparison as aligned text, for a terminal of 120 columns where labels allow it.

use loadline_base::figures::thousands;

use crate::columns::align;
use crate::compare::configuration::printable;
use crate::compare::figure::Figure;
use crate::compare::load::{Load, Verdict, interval, multiple};
use crate::compare::{Comparison, Difference, Side};
use crate::table::Unit;

/// The figures of a load, a line for each.
const FIGURES: [Figure; 3] = [Figure::Iops, Figure::MeanUs, Figure::P99Us];

/// The runs, what differs between them, the table of loads, and what a reader should know of them.
pub fn page(comparison: &Comparison) -> String {
    let mut page = String::new();
    for (name, side) in [("A", &comparison.runs.a), ("B", &comparison.runs.b)] {
        page.push_str(&format!("{name}  {}\n", run(side)));
    }
    page.push('\n');
    for doubt in &comparison.doubts {
        page.push_str(&format!("doubtful: {}.\n", printable(doubt)));
    }
    page.push_str(&match comparison.configuration.is_empty() {
        true => format!("{SAME_CONFIGURATION}\n\n"),
        false => "Configuration, A -> B:\n".to_string(),
    });
    comparison
        .configuration
        .iter()
        .for_each(|difference| page.push_str(&format!("  {}\n", difference.line())));
    if !comparison.configuration.is_empty() {
        page.push('\n');
    }
    page.push_str(&align(&rows(comparison), 0));
    page.push_str(&format!("{}\n\n", legend(comparison)));
    for sentence in comparison.sentences() {
        page.push_str(&format!("{}\n", printable(&sentence)));
    }
    page
}

/// What is said if nothing differs.
pub(super) const SAME_CONFIGURATION: &str = "No difference of configuration.";

/// One of the runs, in a line.
pub(super) fn run(side: &Side) -> String {
    format!(
        "{}: study {}, begun {}, Loadline {}, {} of {} steps",
        printable(&side.folder),
        printable(&side.study),
        side.begun.as_str(),
        printable(&side.loadline),
        side.complete,
        side.planned
    )
}

/// A difference of configuration as what it is, in A, and in B.
pub(super) fn differences(all: &[Difference]) -> impl Iterator<Item = String> + '_ {
    all.iter().map(Difference::line)
}

/// The table of loads, its titles first.
pub(super) fn rows(comparison: &Comparison) -> Vec<Vec<String>> {
    let unit = unit(comparison);
    let titles = ["load", "n of A", "n of B", "figure", "A", "B", "B ÷ A", "95 % interval", "result"];
    let mut rows = vec![titles.map(String::from).to_vec()];
    rows.extend(comparison.loads.iter().flat_map(|load| lines(load, unit)));
    rows
}

/// The lines of one load. The word for it stands on the line of the figure that decides, or on the first.
fn lines(load: &Load, unit: Unit) -> impl Iterator<Item = Vec<String>> + '_ {
    let decides = load.decided_by.unwrap_or(Figure::Iops);
    FIGURES.into_iter().map(move |figure| {
        let compared = load.figure(figure);
        let first = figure == Figure::Iops;
        let show = |value: Option<f64>| match (figure, value) {
            (Figure::Iops, Some(iops)) => thousands(iops),
            (_, value) => unit.show(value),
        };
        let repeats = |count: usize, doubtful: usize| match (first, doubtful) {
            (false, _) => String::new(),
            (true, 0) => count.to_string(),
            (true, _) => format!("{count} ({doubtful} doubtful)"),
        };
        vec![
            if first { printable(&load.label) } else { String::new() },
            repeats(load.repeats.a, load.doubtful.a),
            repeats(load.repeats.b, load.doubtful.b),
            match figure {
                Figure::Iops => "IOPS".to_string(),
                Figure::MeanUs => format!("mean {}", unit.name()),
                Figure::P99Us => format!("p99 {}", unit.name()),
            },
            show(compared.a),
            show(compared.b),
            compared.ratio.map_or("-".into(), |ratio| multiple(ratio.estimate)),
            compared.ratio.and_then(|ratio| interval(&ratio)).unwrap_or("-".into()),
            if figure == decides { load.verdict.word().to_string() } else { String::new() },
        ]
    })
}

/// One unit for the whole table, so that rows can be compared: as the table of a run chooses it.
fn unit(comparison: &Comparison) -> Unit {
    let latencies = |load: &Load| [load.mean_us.a, load.mean_us.b, load.p99_us.a, load.p99_us.b];
    let largest = comparison.loads.iter().flat_map(latencies).flatten().fold(0.0, f64::max);
    if largest < 10_000.0 { Unit::Micro } else { Unit::Milli }
}

/// What the columns are, and what decides.
pub(super) fn legend(comparison: &Comparison) -> String {
    worded(comparison, "A and B", "B ÷ A")
}

/// The same for a table whose columns are called *before*, *now* and *change*.
pub fn legend_before_now(comparison: &Comparison) -> String {
    worded(comparison, "The figures before and now", "the change")
}

fn worded(comparison: &Comparison, sides: &str, ratio: &str) -> String {
    let mut legend = format!(
        "{sides} are medians of the repeats; {ratio} is over whole repeats: the median of all pairs, which need not be the quotient of \
         the two medians. IOPS decide; of a load with a rate, p99 does, or the mean where a repeat has no p99."
    );
    if comparison.loads.iter().any(|load| load.verdict == Verdict::TooFewRepeats) {
        legend.push_str(" No interval: fewer than four repeats a side.");
    }
    legend
}
