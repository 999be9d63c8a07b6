//! The verdict in three short texts, which come before everything else: the answer, how sure it is, and what limits it.

use std::collections::BTreeMap;

use loadline_base::figures::{counted, latency, thousands};
use loadline_measure::analysis::Group;
use loadline_measure::difference::{Change, Ratio};
use loadline_measure::saturation::{Saturation, Trend};
use loadline_study::searches::{SearchOver, SearchResult};
use loadline_study::success::Decision;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::capacity::CapacityRow;
use crate::conditions::{Condition, ConditionRow};
use crate::faults::{self, FaultsRow};
use crate::kind::StudyKind;
use crate::names::named;
use crate::rows::{LoadRow, StepRow, verified};
use crate::validity::{Check, Standing};
use crate::verdict::{Verdict, measured_at, most, of_label};

/// The most sentences of a tile.
const MOST: usize = 3;

/// How a tile is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Tone {
    /// What was asked for is so.
    Good,
    /// Doubtful, or so with a reservation.
    Amber,
    /// What was asked for is not so, or data were lost.
    Bad,
    /// A figure without a judgement.
    #[default]
    Plain,
}

/// One of the three texts.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tile {
    /// What it is about: `Answer`, `How sure`, `What limits it`.
    pub title: String,
    /// The shortest form of what it says.
    pub headline: String,
    /// The rest, in sentences without a full stop.
    pub sentences: Vec<String>,
    /// How it is meant.
    pub tone: Tone,
}

/// The verdict in three short texts.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tiles {
    /// The answer to the study's question.
    pub answer: Tile,
    /// Whether the answer can be believed.
    pub sure: Tile,
    /// What limits the result.
    pub limits: Tile,
}

/// The parts of a report that the tiles are made of; each is the report's field of that name.
pub(crate) struct Parts<'a> {
    pub(crate) steps: &'a [StepRow],
    pub(crate) loads: &'a [LoadRow],
    pub(crate) searches: &'a [SearchResult],
    pub(crate) criteria: &'a [Decision],
    pub(crate) conditions: &'a [ConditionRow],
    pub(crate) faults: &'a [FaultsRow],
    pub(crate) sweeps: &'a [Group],
    pub(crate) capacity: &'a [CapacityRow],
    pub(crate) verdict: &'a Verdict,
    pub(crate) validity: &'a [Check],
    pub(crate) names: &'a BTreeMap<String, String>,
    pub(crate) kind: StudyKind,
}

impl Tiles {
    /// Of a report that has everything else.
    pub(crate) fn of(report: &Parts<'_>) -> Tiles {
        Tiles { answer: answer(report), sure: sure(report), limits: limits(report) }
    }

    /// The three of them, in the order in which they are read.
    pub fn all(&self) -> [&Tile; 3] {
        [&self.answer, &self.sure, &self.limits]
    }

    /// As lines for a terminal.
    pub fn text(&self) -> String {
        let width = self.all().iter().map(|tile| tile.title.len()).max().unwrap_or(0);
        let line = |tile: &&Tile| {
            let rest: String = tile.sentences.iter().map(|one| format!("{:width$}  {one}\n", "")).collect();
            format!("{:width$}  {}\n{rest}", tile.title.to_lowercase(), tile.headline)
        };
        self.all().iter().map(line).collect()
    }
}

fn tile(title: &str, headline: impl Into<String>, tone: Tone, mut sentences: Vec<String>) -> Tile {
    sentences.truncate(MOST);
    Tile { title: title.into(), headline: headline.into(), sentences, tone }
}

fn answer(report: &Parts<'_>) -> Tile {
    let title = "Answer";
    if verified(report.steps).is_some_and(|verified| verified.bad() > 0) {
        let lost = report.verdict.carries.iter().filter(|sentence| sentence.starts_with("DATA WERE LOST"));
        return tile(title, "Data were lost", Tone::Bad, lost.cloned().collect());
    }
    criteria(report)
        .or_else(|| searched(report))
        .or_else(|| match report.kind {
            StudyKind::Faults => stalls(report),
            StudyKind::Conditions => changed(report),
            StudyKind::Policies | StudyKind::Growth => grown(report),
            StudyKind::Latency => None,
        })
        .or_else(|| largest(report))
        .map(|found| Tile { title: title.into(), ..found })
        .unwrap_or_else(|| tile(title, "Nothing was measured yet", Tone::Plain, Vec::new()))
}

/// Amber if any of these measurements is doubtful.
fn doubt<'a>(mut steps: impl Iterator<Item = &'a StepRow>, otherwise: Tone) -> Tone {
    if steps.any(StepRow::is_doubtful) { Tone::Amber } else { otherwise }
}

/// Whether the study's criteria are met; `None` if it has none, or they are not decided.
fn criteria(report: &Parts<'_>) -> Option<Tile> {
    let verdict = &report.verdict;
    let all = report.criteria.len();
    let missed = report.criteria.iter().filter(|one| one.held == Some(false)).count();
    let flattered = !verdict.closed_loop.is_empty();
    let good = if flattered { Tone::Amber } else { Tone::Good };
    let (headline, tone) = match (verdict.met?, verdict.closed_loop_only) {
        (true, false) if all == 1 => ("The criterion is met".to_string(), good),
        (true, false) => (format!("All {all} criteria are met"), good),
        (true, true) => ("Met in a closed loop only".into(), Tone::Amber),
        (false, _) if all == 1 => ("The criterion is missed".into(), Tone::Bad),
        (false, _) => (format!("{missed} of {all} criteria are missed"), Tone::Bad),
    };
    let of_search = searched(report).map(|found| format!("The search found: {}", found.headline));
    let order = |held: Option<bool>| report.criteria.iter().filter(move |one| one.held == held);
    let sentences = order(Some(false))
        .chain(order(None))
        .chain(order(Some(true)))
        .map(|one| format!("{}: {}", one.criterion, with_names(report.names, &one.found)));
    let sentences = sentences.take(MOST - 1).chain(of_search).collect();
    Some(tile("", headline, tone, sentences))
}

/// The load line or capacity that the first search found; the others follow in sentences.
fn searched(report: &Parts<'_>) -> Option<Tile> {
    let ended: Vec<_> = report.searches.iter().zip(1u32..).filter(|(search, _)| search.done).collect();
    let (first, number) = ended.first()?;
    let within = format!("{} <= {}", first.percentile, latency(first.limit_us));
    let headline = match (first.held, first.iops, first.over) {
        (Some(held), _, SearchOver::WorkersPerNode) => {
            format!("{held:.0} workers a node within {within}")
        }
        (Some(_), Some(iops), _) => format!("{} IOPS within {within}", thousands(iops)),
        _ => format!("No load line within {within}"),
    };
    let doubtful = [first.held, first.missed]
        .into_iter()
        .flat_map(|at| measured_at(report.steps, *number, at))
        .any(StepRow::is_doubtful);
    let mut sentences: Vec<String> = ended
        .iter()
        .map(|(search, _)| format!("{}: {}", named(report.names, &search.label), search.found))
        .collect();
    if doubtful {
        sentences.push("The measurements at this load are doubtful".into());
    }
    let tone = if doubtful || !report.verdict.closed_loop.is_empty() { Tone::Amber } else { Tone::Plain };
    Some(tile("", headline, tone, sentences))
}

/// The longest stall of all faults, and what each event cost.
fn stalls(report: &Parts<'_>) -> Option<Tile> {
    let events: Vec<_> = report.faults.iter().flat_map(|row| &row.events).collect();
    let longest = events.iter().filter_map(|event| event.stall_ms).map(|stall| stall.median).reduce(f64::max);
    let headline = match longest {
        Some(ms) if ms < 1e3 => format!("Longest stall: {ms:.0} ms"),
        Some(ms) => format!("Longest stall: {:.1} s", ms / 1e3),
        None => format!("{}, and no worker that stayed", counted(events.len() as u64, "fault")),
    };
    let failed: u64 = events.iter().map(|event| event.errors).sum();
    let tone = if failed > 0 { Tone::Amber } else { Tone::Plain };
    let tone = doubt(report.steps.iter().filter(|step| step.timeline.is_some()), tone);
    (!events.is_empty()).then(|| tile("", headline, tone, events.into_iter().map(faults::sentence).collect()))
}

/// `-25 %`, with the interval if there is one.
fn percent(ratio: f64) -> String {
    match (100.0 * (ratio - 1.0)).round() {
        0.0 => "0 %".to_string(),
        percent => format!("{percent:+.0} %"),
    }
}

/// The largest change of IOPS in any condition, and the range of the changes in each.
fn changed(report: &Parts<'_>) -> Option<Tile> {
    let rows: Vec<&ConditionRow> = report.conditions.iter().filter(|row| row.workers.is_none()).collect();
    let over = &rows.first()?.over;
    let rows: Vec<&ConditionRow> = rows.into_iter().filter(|row| row.over == *over).collect();
    let others = || rows.iter().flat_map(|row| row.conditions.iter().skip(1).map(move |one| (*row, one)));
    let ratios = || others().filter_map(|(row, one)| Some((row, one, one.iops_ratio?)));
    let far = |ratio: &Ratio| ratio.estimate.ln().abs();
    let (row, worst, ratio) = ratios().max_by(|a, b| far(&a.2).total_cmp(&far(&b.2)))?;
    let sure = if ratio.change() == Change::NotShown { ", not shown to differ" } else { "" };
    let headline = format!("{} IOPS at the most: {}{sure}", percent(ratio.estimate), worst.name);
    let mut names: Vec<&str> = Vec::new();
    for (_, one) in others() {
        if !names.contains(&one.name.as_str()) {
            names.push(&one.name);
        }
    }
    let range = |name: &str, of: fn(&Condition) -> Option<f64>| {
        let all: Vec<f64> =
            others().filter(|(_, one)| one.name == name).filter_map(|(_, one)| of(one)).collect();
        let low = all.iter().copied().reduce(f64::min)?;
        let high = all.iter().copied().reduce(f64::max)?;
        let (low, high) = (percent(low), percent(high));
        Some(if low == high { low } else { format!("{low} to {high}") })
    };
    let first = &row.conditions[0];
    let mut sentences: Vec<String> = names
        .iter()
        .filter_map(|name| {
            let iops = range(name, |one| Some(one.iops_ratio?.estimate))?;
            let p99 = range(name, |one| Some(one.p99_ratio?.estimate));
            Some(match p99 {
                Some(p99) => format!("{name}: {iops} IOPS, p99 {p99}"),
                None => format!("{name}: {iops} IOPS"),
            })
        })
        .collect();
    sentences.truncate(MOST - 1);
    if let Some((before, after)) = first.iops.zip(worst.iops) {
        sentences.insert(
            0,
            format!(
                "{}: {} IOPS {}, {} {}",
                row.name,
                thousands(before.median),
                first.name,
                thousands(after.median),
                worst.name
            ),
        );
    }
    let tone = if first.doubtful + worst.doubtful > 0 { Tone::Amber } else { Tone::Plain };
    Some(tile("", headline, tone, sentences))
}

/// The highest peak of all that grows with workers, and the peaks of the others.
fn grown(report: &Parts<'_>) -> Option<Tile> {
    let mut peaks: Vec<_> =
        report.sweeps.iter().filter_map(|group| Some((group, group.saturation.as_ref()?))).collect();
    peaks.sort_by(|a, b| b.1.peak.total_cmp(&a.1.peak));
    let (group, highest) = peaks.first()?;
    let workers =
        |count: f64| if count == 1.0 { "1 worker".to_string() } else { format!("{count:.0} workers") };
    let headline = format!("{} IOPS with {}", thousands(highest.peak), workers(highest.peak_at));
    let sentence = |(group, found): &(&Group, &Saturation)| {
        let at = group.at.as_ref().map(|at| format!(", {at}")).unwrap_or_default();
        let after = match (found.after, found.bend) {
            (None, _) => "too few points for a trend".to_string(),
            (Some(trend), None) => format!("{} to the end", trend_word(trend)),
            (Some(trend), Some(bend)) => format!("{} from {} on", trend_word(trend), workers(bend)),
        };
        format!(
            "{}{at}: {} IOPS with {}, {after}",
            named(report.names, &group.profile),
            thousands(found.peak),
            workers(found.peak_at)
        )
    };
    let tone = doubt(
        report
            .steps
            .iter()
            .filter(|step| step.family == group.profile && step.workers as f64 == highest.peak_at),
        Tone::Plain,
    );
    Some(tile("", headline, tone, peaks.iter().map(sentence).collect()))
}

fn trend_word(trend: Trend) -> &'static str {
    match trend {
        Trend::Rising => "rising",
        Trend::Flat => "flat",
        Trend::Falling => "falling",
    }
}

/// The largest load of each family.
fn largest(report: &Parts<'_>) -> Option<Tile> {
    let most = most(report.steps, report.loads);
    let first = most.first()?;
    let iops = |load: &LoadRow| thousands(load.iops.map_or(0.0, |iops| iops.median));
    let sentence = |load: &&LoadRow| {
        let p99 = load.p99_us.map(|p99| format!(" at p99 {}", latency(p99.median))).unwrap_or_default();
        let doubt = if load.doubtful > 0 { ", doubtful" } else { "" };
        format!("{}: {} IOPS{p99}{doubt}", named(report.names, &load.label), iops(load))
    };
    let tone = doubt(of_label(report.steps, &first.label).into_iter(), Tone::Plain);
    Some(tile("", format!("{} IOPS at the most", iops(first)), tone, most.iter().map(sentence).collect()))
}

/// Whether the figures can be believed: the checks that are not sound, the doubtful ones first.
fn sure(report: &Parts<'_>) -> Tile {
    if report.steps.is_empty() {
        return tile("How sure", "Not known yet", Tone::Plain, vec!["no step is complete".into()]);
    }
    let of = |standing: Standing| report.validity.iter().filter(move |check| check.standing == standing);
    let (doubtful, open, all) =
        (of(Standing::Doubtful).count(), of(Standing::Open).count(), report.validity.len());
    let (headline, tone) = match (doubtful, open) {
        (0, 0) => (format!("Sound: all {all} checks"), Tone::Good),
        (0, open) => (format!("Open: {open} of {all} checks"), Tone::Plain),
        (doubtful, _) => (format!("Doubtful: {doubtful} of {all} checks"), Tone::Amber),
    };
    let sentence = |check: &Check| format!("{}: {}", check.name, check.found);
    let mut sentences: Vec<String> = of(Standing::Doubtful).chain(of(Standing::Open)).map(sentence).collect();
    if closed_loop_alone(report) {
        sentences.insert(
            0,
            "loop: the criteria were judged in a closed loop alone, which may flatter them: no load with a rate was measured".into(),
        );
    }
    tile("How sure", headline, tone, sentences)
}

/// Whether criteria are met, and no load with a rate was measured that could have missed them.
fn closed_loop_alone(report: &Parts<'_>) -> bool {
    report.verdict.met == Some(true)
        && report.criteria.iter().any(|one| one.criterion.contains(" under "))
        && report.steps.iter().all(|step| step.rate_iops.is_none())
}

/// What limits the result, as far as it was measured.
fn limits(report: &Parts<'_>) -> Tile {
    let verdict = &report.verdict;
    let headline = verdict.limit.clone().unwrap_or_else(|| "Not known".into());
    let is_doubtful = ["The load generator", "Not clear"].contains(&headline.as_str());
    let tone = if is_doubtful { Tone::Amber } else { Tone::Plain };
    let mut sentences: Vec<String> =
        verdict.limited_by.iter().map(|one| capital(&with_names(report.names, one))).collect();
    let predicted = report.capacity.iter().find_map(|row| row.binds.as_ref());
    sentences.extend(predicted.map(|binds| format!("Predicted to limit it: {binds}")));
    tile("What limits it", headline, tone, sentences)
}

/// The text with the names of loads whose codes stand in it in brackets.
fn with_names(names: &BTreeMap<String, String>, text: &str) -> String {
    let mut found = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('(') {
        let Some((inside, behind)) = after.split_once(')') else { break };
        found.push_str(&format!("{before}({})", named(names, inside)));
        rest = behind;
    }
    found + rest
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |first| first.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_loads_in_brackets_are_replaced_by_their_names_and_nothing_else_is() {
        let names: BTreeMap<String, String> =
            [("B4".into(), "4K random read, 2,000 IOPS from each worker".into())].into();
        assert_eq!(
            with_names(&names, "99 % busy (B4), not (B8"),
            "99 % busy (4K random read, 2,000 IOPS from each worker), not (B8"
        );
    }

    #[test]
    fn a_tile_is_short_and_its_text_has_the_headline_first() {
        let sentences = ["a", "b", "c", "d"].map(String::from).to_vec();
        let one = tile("How sure", "Open: 1 of 2 checks", Tone::Plain, sentences);
        assert_eq!(one.sentences.len(), MOST);
        let tiles = Tiles {
            answer: Tile { title: "Answer".into(), ..Tile::default() },
            sure: one,
            ..Tiles::default()
        };
        assert!(tiles.text().contains("how sure  Open: 1 of 2 checks\n          a\n"), "{}", tiles.text());
    }

    #[test]
    fn changes_are_in_percent() {
        assert_eq!([0.75, 1.0, 1.5, 0.999].map(percent), ["-25 %", "0 %", "+50 %", "0 %"]);
    }
}
