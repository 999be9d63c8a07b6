//! What measured points came to, as text: the findings, and a row for each load.

use loadline_base::figures::{latency, thousands};
use loadline_measure::analysis::{Analysis, Axis, Group, Held, LatencyLimit, Options};
use loadline_measure::audit::Severity;
use loadline_measure::curve::LoadLine;
use loadline_measure::saturation::{Saturation, Trend};
use schemars::JsonSchema;
use serde::Serialize;

use crate::columns::align;

/// What one source came to, for programs.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct SourceAnalysis {
    /// The file or run folder; of several files that are one curve, all of them, separated by commas.
    pub source: String,
    /// What it was taken for.
    pub kind: String,
    /// How many measured points it has.
    pub points: usize,
    /// Each load in each condition, and the findings.
    #[serde(flatten)]
    pub analysis: Analysis,
}

/// The analysis of several sources, for programs.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Analyses {
    /// `loadline-analysis`.
    pub format: &'static str,
    /// Version of this format.
    pub version: u64,
    /// The limit of the load lines, as it was stated; `null` if none was.
    pub limit: Option<String>,
    /// The ceilings that were stated, such as `26400000iops`.
    pub ceilings: Vec<String>,
    /// Each source, in the order in which they were named.
    pub sources: Vec<SourceAnalysis>,
}

impl Analyses {
    /// Of these sources, with what was stated beside them.
    pub fn new(sources: Vec<SourceAnalysis>, options: &Options) -> Analyses {
        Analyses {
            format: "loadline-analysis",
            version: 1,
            limit: options.limit.as_ref().map(ToString::to_string),
            ceilings: options.ceilings.iter().map(ToString::to_string).collect(),
            sources,
        }
    }
}

/// One source on a terminal, with the load lines at `limit`, or for single points whether they are within it.
pub fn text(source: &SourceAnalysis, limit: Option<&LatencyLimit>) -> String {
    let SourceAnalysis { source: name, kind, points, analysis } = source;
    let mut names: Vec<(&String, &Option<String>)> =
        analysis.groups.iter().map(|group| (&group.profile, &group.condition)).collect();
    names.dedup();
    let loads = names.len();
    let mut text = format!(
        "{name}: {kind}, {points} {} of {} {}\n",
        counted(*points, "point"),
        loads,
        counted(loads, "load")
    );
    if !analysis.findings.is_empty() {
        text.push('\n');
    }
    for finding in &analysis.findings {
        text.push_str(&format!("{finding}\n"));
    }
    let groups = &analysis.groups;
    let with_condition = groups.iter().any(|group| group.condition.is_some());
    let grown = groups.iter().any(|group| group.saturation.is_some());
    let of_ceiling = groups.iter().any(|group| group.of_ceiling.is_some());
    let swept = groups.iter().any(|group| group.axis.is_some());
    let mut titles = vec!["profile"];
    titles.extend(with_condition.then_some("condition"));
    titles.extend(["points", "most"]);
    titles.extend(with_condition.then_some("change"));
    if grown {
        titles.extend(["at workers", "goes on", "noise"]);
    }
    titles.extend(swept.then_some("knee"));
    titles.extend(limit.map(|_| if swept { "load line" } else { "within limit" }));
    titles.extend(of_ceiling.then_some("of ceiling"));
    let mut rows = vec![titles.into_iter().map(String::from).collect::<Vec<_>>()];
    for group in groups {
        let mut row = vec![match &group.at {
            Some(at) => format!("{}, {at}", group.profile),
            None => group.profile.clone(),
        }];
        row.extend(with_condition.then(|| group.condition.clone().unwrap_or_default()));
        row.push(group.points.to_string());
        row.push(group.most.map_or("-".into(), |most| amount(most, group.in_bytes)));
        let change =
            group.against_first.map_or("-".into(), |ratio| format!("{:+.0} %", 100.0 * (ratio - 1.0)));
        row.extend(with_condition.then_some(change));
        if grown {
            row.extend(growth(group.saturation.as_ref()));
        }
        row.extend(swept.then(|| group.knee.map_or("-".into(), |knee| amount(knee, group.in_bytes))));
        row.extend(limit.map(|_| load_line(group)));
        let share = group.of_ceiling.map_or("-".into(), |share| format!("{:.1} %", 100.0 * share));
        row.extend(of_ceiling.then_some(share));
        rows.push(row);
    }
    text.push_str(&format!("\n{}", align(&rows, 0)));
    if let Some(limit) = limit.filter(|_| groups.iter().any(|group| group.axis.is_none())) {
        text.push_str(&format!(
            "A load line needs one load at several depths, rates or numbers of workers. Single points are only held to \
             {limit}.\n"
        ));
    }
    text
}

/// Whether anything makes a figure doubtful.
pub fn is_doubtful(analysis: &Analysis) -> bool {
    analysis.findings.iter().any(|finding| finding.severity == Severity::Doubt)
}

fn counted(count: usize, what: &str) -> String {
    if count == 1 { what.to_string() } else { format!("{what}s") }
}

fn amount(value: f64, in_bytes: bool) -> String {
    if in_bytes { format!("{} MB/s", thousands(value / 1e6)) } else { thousands(value) }
}

/// Where the peak is, what comes after, noise.
fn growth(saturation: Option<&Saturation>) -> [String; 3] {
    let Some(found) = saturation else { return ["-", "-", "-"].map(String::from) };
    let after = match (found.after, found.bend) {
        (None, _) => "too few points".to_string(),
        (Some(trend), None) => word(trend).to_string(),
        (Some(Trend::Rising), Some(bend)) => match (found.before, found.slope) {
            (Some(before), Some(slope)) if before > slope => format!("rising, slower from {bend:.0} on"),
            (Some(before), Some(_)) if before > 0.0 => format!("rising, faster from {bend:.0} on"),
            _ => format!("rising from {bend:.0} on"),
        },
        (Some(trend), Some(bend)) => format!("{} from {bend:.0} on", word(trend)),
    };
    let noise = found.noise.map_or("-".into(), |noise| format!("{:.0} %", 100.0 * noise));
    [thousands(found.peak_at), after, noise]
}

fn word(trend: Trend) -> &'static str {
    match trend {
        Trend::Rising => "rising",
        Trend::Flat => "flat",
        Trend::Falling => "falling",
    }
}

/// Whether points in which nothing varies are within the limit.
fn held(held: Option<Held>) -> String {
    match held {
        None => "not stated".into(),
        Some(Held { latency_us: None, .. }) => "no: errors, lost workers or rate not met".into(),
        Some(Held { within, latency_us: Some(us) }) => {
            format!("{}: {}", if within { "yes" } else { "no" }, latency(us))
        }
    }
}

fn load_line(group: &Group) -> String {
    let Some(line) = &group.load_line else {
        return match (group.axis, group.judged) {
            (None, _) => held(group.held),
            (Some(_), 0) => "not stated".into(),
            (Some(_), _) => "none".into(),
        };
    };
    let LoadLine { held, missed, low, high, .. } = line;
    let at = match (group.axis, group.load_at_line) {
        (Some(Axis::Workers), Some(load)) => format!(" at {load:.0} workers"),
        (Some(Axis::Outstanding), Some(load)) => format!(" at {load:.0} outstanding"),
        _ => String::new(),
    };
    let to = match (group.axis, group.held_to) {
        (Some(Axis::Workers | Axis::Outstanding), Some(last)) if Some(last) != group.load_at_line => {
            format!(", held to {last:.0}")
        }
        _ => String::new(),
    };
    let at = format!("{at}{to}");
    let bracket = match (missed, group.unjudged) {
        (Some(missed), _) => format!(", missed at {}", amount(*missed, group.in_bytes)),
        (None, 0) => ", not missed".into(),
        (None, unjudged) => format!(", not missed ({unjudged} not judged)"),
    };
    let interval = match (low, high) {
        (Some(low), Some(high)) => {
            format!(" [{}..{}]", amount(*low, group.in_bytes), amount(*high, group.in_bytes))
        }
        _ => String::new(),
    };
    format!("{}{at}{bracket}{interval}", amount(*held, group.in_bytes))
}
