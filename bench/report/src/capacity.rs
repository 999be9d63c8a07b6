//! What was predicted of each load, what was measured, and what others have published, side by side.

use std::collections::BTreeMap;

use loadline_base::figures::thousands;
use loadline_measure::capacity::{Prediction, Range};
use loadline_measure::stats::median;
use loadline_study::name::Name;
use loadline_study::planned_step::{Purpose, Step};
use loadline_study::published::{PublishedFigure, names};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::columns::align;
use crate::rows::StepRow;

/// One load in one condition: predicted, measured, published. Changes are ratios to the first condition, or to the load `against`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CapacityRow {
    /// The load, without its condition.
    pub load: String,
    /// The condition, if the study has some.
    pub condition: Option<Name>,
    /// The load that changes are against, in the same condition; `null`: the same load in the first condition.
    pub against: Option<String>,
    /// Predicted I/Os a second, over the repeats; `null` if a node was not modelled.
    pub predicted: Option<Range>,
    /// The resource that was predicted to limit the load.
    pub binds: Option<String>,
    /// I/Os a second, the median of the repeats.
    pub measured: f64,
    /// What was measured, as a multiple of the upper end of what was predicted: of what the devices allow.
    pub of_predicted: Option<f64>,
    /// Whether what was measured is within what was predicted, or outside of it by 5 % at the most.
    pub is_within: Option<bool>,
    /// The predicted change: that of the lower ends and that of the upper ends, the smaller one first.
    pub predicted_change: Option<Range>,
    /// The measured change.
    pub measured_change: Option<f64>,
    /// The published change.
    pub published_change: Option<f64>,
    /// The published I/Os a second.
    pub published_iops: Option<f64>,
    /// Where it was published.
    pub source: Option<String>,
}

/// The loads of a study that are predicted, or of which something is published, in the order of the plan.
pub(crate) fn rows(plan: &[Step], published: &[PublishedFigure], steps: &[StepRow]) -> Vec<CapacityRow> {
    let mut labels: Vec<&str> = Vec::new();
    let mut measured: BTreeMap<&str, Vec<&StepRow>> = BTreeMap::new();
    for step in steps.iter().filter(|step| step.purpose == Purpose::Load) {
        let repeats = measured.entry(&step.label).or_default();
        if repeats.is_empty() {
            labels.push(&step.label);
        }
        repeats.push(step);
    }
    let mut rows: Vec<CapacityRow> = Vec::new();
    let mut all_names: Vec<Vec<String>> = Vec::new();
    for label in labels {
        let repeats = &measured[label];
        let condition = repeats[0].condition.clone();
        let table = plan.iter().find(|step| step.label == label).and_then(|step| step.table.as_ref());
        let all = names(label, condition.as_ref(), table);
        let load = condition.as_ref().and(all.get(1)).map_or(label, String::as_str).to_string();
        let figures: Vec<&PublishedFigure> =
            published.iter().filter(|figure| figure.is_of(&all, condition.as_ref())).collect();
        let predicted = range(repeats);
        let iops = median(&repeats.iter().map(|step| step.iops).collect::<Vec<f64>>()).unwrap_or_default();
        let whole = repeats.iter().find_map(|step| step.prediction.as_ref());
        let whole = whole.zip(predicted).map(|(one, iops)| Prediction { iops, ..one.clone() });
        let row = CapacityRow {
            binds: repeats.iter().find_map(|step| step.prediction.as_ref()).map(|one| one.binds.clone()),
            measured: iops,
            of_predicted: predicted.map(|range| iops / range.high),
            is_within: predicted.and(whole.as_ref()).map(|prediction| prediction.agrees(iops)),
            predicted_change: None,
            measured_change: None,
            against: figures.iter().find_map(|figure| figure.against.clone()),
            published_change: figures.iter().find_map(|figure| figure.change).map(|change| change.ratio()),
            published_iops: figures.iter().find_map(|figure| figure.iops),
            source: figures.first().map(|figure| figure.source.clone()),
            load,
            condition,
            predicted,
        };
        all_names.push(all);
        rows.push(row);
    }
    for n in 0..rows.len() {
        let row = &rows[n];
        let other = match &row.against {
            Some(load) => (0..rows.len()).find(|other| {
                let is_named = all_names[*other].iter().any(|name| name.eq_ignore_ascii_case(load));
                is_named && rows[*other].condition == row.condition
            }),
            None => rows[..n].iter().position(|first| first.load == row.load),
        };
        let Some(other) = other.map(|other| &rows[other]) else { continue };
        let predicted = row.predicted.zip(other.predicted).map(|(now, before)| change(now, before));
        let measured = row.measured / other.measured;
        (rows[n].predicted_change, rows[n].measured_change) = (predicted, Some(measured));
    }
    let is_told: Vec<String> = rows
        .iter()
        .filter(|row| row.predicted.is_some() || row.source.is_some())
        .flat_map(|row| [Some(row.load.clone()), row.against.clone()])
        .flatten()
        .collect();
    rows.retain(|row| is_told.iter().any(|load| load.eq_ignore_ascii_case(&row.load)));
    rows
}

/// How the ends changed, the smaller change first.
fn change(now: Range, before: Range) -> Range {
    let (low, high) = (now.low / before.low, now.high / before.high);
    Range { low: low.min(high), high: low.max(high) }
}

/// What all repeats were predicted to do: nodes may have had other copies in each.
fn range(repeats: &[&StepRow]) -> Option<Range> {
    let all = repeats.iter().map(|step| Some(step.prediction.as_ref()?.iops));
    let all: Vec<Range> = all.collect::<Option<_>>()?;
    all.into_iter().reduce(|a, b| Range { low: a.low.min(b.low), high: a.high.max(b.high) })
}

/// The titles of the table.
pub const TITLES: [&str; 9] = [
    "load",
    "condition",
    "predicted",
    "measured",
    "of upper end",
    "change predicted",
    "measured",
    "published",
    "limited by",
];

/// The cells of the table.
pub fn cells(rows: &[CapacityRow]) -> Vec<Vec<String>> {
    let change = |ratio: f64| format!("{:+.0} %", 100.0 * (ratio - 1.0));
    let none = || "-".to_string();
    let row = |row: &CapacityRow| {
        let predicted = row.predicted.map(|r| format!("{}..{}", thousands(r.low), thousands(r.high)));
        let outside = if row.is_within == Some(false) { " (outside)" } else { "" };
        let changes = row.predicted_change.map(|r| match (change(r.low), change(r.high)) {
            (low, high) if low == high => low,
            (low, high) => format!("{low}..{high}"),
        });
        let published = row
            .published_change
            .map(change)
            .or(row.published_iops.map(|iops| format!("{} IOPS", thousands(iops))));
        let load = match &row.against {
            Some(other) => format!("{} (against {other})", row.load),
            None => row.load.clone(),
        };
        vec![
            load,
            row.condition.as_ref().map_or_else(none, ToString::to_string),
            predicted.unwrap_or_else(none),
            format!("{}{outside}", thousands(row.measured)),
            row.of_predicted.map_or_else(none, |ratio| format!("{:.0} %", 100.0 * ratio)),
            changes.unwrap_or_else(none),
            row.measured_change.map_or_else(none, change),
            published.unwrap_or_else(none),
            row.binds.clone().unwrap_or_else(none),
        ]
    };
    rows.iter().map(row).collect()
}

/// What the figures of the table are, and who published what; empty without a table.
pub fn level(rows: &[CapacityRow]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut sources: Vec<&str> = rows.iter().filter_map(|row| row.source.as_deref()).collect();
    sources.sort_unstable();
    sources.dedup();
    let published = match sources.is_empty() {
        true => String::new(),
        false => format!(" Published: {}.", sources.join("; ")),
    };
    format!(
        "IOPS. Predicted from the models of the devices before each step, as an interval. Changes are against the first condition, or the load that is named.{published}"
    )
}

/// As aligned text; empty if nothing was predicted or published.
pub fn text(rows: &[CapacityRow]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut table = vec![TITLES.map(String::from).to_vec()];
    table.extend(cells(rows));
    format!("{}{}\n", align(&table, 0), level(rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(condition: &str, iops: f64, predicted: Option<(f64, f64)>) -> StepRow {
        let prediction = predicted.map(|(low, high)| Prediction {
            iops: Range { low, high },
            mean_us: None,
            binds: "the device of node-1".into(),
            low_if: String::new(),
            high_if: String::new(),
        });
        let label = format!("read-{condition}");
        StepRow { label, condition: condition.parse().ok(), iops, prediction, ..StepRow::none() }
    }

    fn figure(condition: &str, change: &str) -> PublishedFigure {
        let change = change.parse().ok();
        PublishedFigure {
            load: "READ".into(),
            condition: condition.parse().ok(),
            change,
            against: None,
            iops: None,
            source: "elsewhere".into(),
        }
    }

    #[test]
    fn what_is_predicted_measured_and_published_is_side_by_side() {
        let steps = [
            step("healthy", 100.0, Some((90.0, 110.0))),
            step("down", 60.0, Some((70.0, 80.0))),
            step("healthy", 104.0, Some((88.0, 110.0))),
        ];
        let rows = rows(&[], &[figure("down", "-21%")], &steps);
        assert_eq!(rows.len(), 2);
        let (healthy, down) = (&rows[0], &rows[1]);
        assert_eq!(
            (healthy.measured, healthy.predicted, healthy.is_within),
            (102.0, Some(Range { low: 88.0, high: 110.0 }), Some(true))
        );
        assert_eq!((healthy.measured_change, healthy.published_change), (None, None));
        assert_eq!((down.is_within, down.published_change), (Some(false), Some(0.79)));
        assert!((down.measured_change.unwrap() - 60.0 / 102.0).abs() < 1e-12);
        let change = down.predicted_change.unwrap();
        assert!(change.low == 80.0 / 110.0 && change.high == 70.0 / 88.0, "{change:?}");
        let text = text(&rows);
        assert!(
            text.contains("60 (outside)") && text.contains("-27 %..-20 %") && text.contains("-21 %"),
            "{text}"
        );
        assert!(text.contains("Published: elsewhere."), "{text}");
    }

    #[test]
    fn a_published_change_may_be_against_another_load() {
        let of = |label: &str, iops: f64, high: f64| {
            let prediction = step("", iops, Some((high / 2.0, high))).prediction;
            StepRow { label: label.into(), iops, prediction, ..StepRow::none() }
        };
        let steps = [of("writes", 60.0, 50.0), of("reads", 100.0, 100.0)];
        let published = PublishedFigure {
            load: "Writes".into(),
            against: Some("Reads".into()),
            condition: None,
            ..figure("down", "-40%")
        };
        let rows = rows(&[], &[published], &steps);
        assert_eq!((rows[0].measured_change, rows[0].published_change), (Some(0.6), Some(0.6)));
        assert_eq!(rows[0].predicted_change, Some(Range { low: 0.5, high: 0.5 }));
        assert_eq!((rows[1].measured_change, rows[1].against.as_ref()), (None, None));
        assert!(text(&rows).contains("writes (against Reads)"), "{}", text(&rows));
    }

    #[test]
    fn without_models_only_what_is_published_is_shown_and_without_both_nothing() {
        let steps = [step("healthy", 100.0, None), step("down", 60.0, None)];
        assert_eq!(rows(&[], &[], &steps), []);
        assert_eq!(text(&[]), "");
        let rows = rows(&[], &[figure("down", "-21%")], &steps);
        assert_eq!((rows.len(), rows[1].predicted, rows[1].of_predicted), (2, None, None));
    }
}
