//! The verdict: what the cluster carries, in one sentence, and what limits it.

use loadline_base::figures::{latency, thousands};
use loadline_measure::audit::FindingKind;
use loadline_study::plan::Purpose;
use loadline_study::searches::{SearchOver, SearchResult};
use loadline_study::success::Decision;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rows::StepRow;

/// From this share of its ceiling on, a part is said to limit a load.
const AT_ITS_LIMIT: f64 = 0.9;

/// What a run decides.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Verdict {
    /// Whether every criterion of the study is met; `null` if it has none, or they are not decided yet.
    pub met: Option<bool>,
    /// What it carries, in sentences: the criteria, the searches, or else the most that was measured.
    pub carries: Vec<String>,
    /// What limits it, as far as it was measured, in a sentence; `null` if nothing was measured.
    pub limited_by: Option<String>,
}

impl Verdict {
    /// Of a run's steps, what its searches came to, and how its criteria are met.
    pub(crate) fn of(steps: &[StepRow], searches: &[SearchResult], criteria: &[Decision]) -> Verdict {
        let searches = || searches.iter().zip(1u32..);
        let mut carries: Vec<String> =
            searches().filter_map(|(search, number)| searched(steps, number, search)).collect();
        if carries.is_empty() {
            carries.extend(most(steps).map(|step| {
                let deepest = step.latency_us.deepest_value();
                let at = deepest.map(|(name, value)| format!(" at {name} {}", latency(value)));
                format!(
                    "The most that was measured: {} IOPS of {}{}{}",
                    thousands(step.iops),
                    step.label,
                    at.unwrap_or_default(),
                    if step.is_doubtful() { ", which is doubtful" } else { "" }
                )
            }));
        }
        let held: Vec<Option<bool>> = criteria.iter().map(|decision| decision.held).collect();
        let met = match held.as_slice() {
            [] => None,
            held if held.contains(&Some(false)) => Some(false),
            held if held.contains(&None) => None,
            _ => Some(true),
        };
        let missed = criteria.iter().filter(|decision| decision.held == Some(false));
        let misses = missed.map(|missed| format!("Missed: {}: {}", missed.criterion, missed.found));
        carries.splice(0..0, misses);
        if met == Some(true) {
            let all: Vec<&str> = criteria.iter().map(|decision| decision.criterion.as_str()).collect();
            carries.insert(0, format!("Every criterion is met: {}", all.join("; ")));
        }
        // What broke first says what limits; where no search found that, the largest load does.
        let border = searches().find_map(|(search, number)| border(steps, number, search));
        Verdict { met, carries, limited_by: border.or_else(|| most(steps)).map(limit) }
    }
}

/// As lines for a terminal, with a title; empty if nothing was measured.
pub fn text(verdict: &Verdict) -> String {
    let sentences: Vec<&String> = verdict.carries.iter().chain(&verdict.limited_by).collect();
    if sentences.is_empty() {
        return String::new();
    }
    format!("verdict:\n{}", sentences.iter().map(|sentence| format!("  {sentence}\n")).collect::<String>())
}

/// What a search that has ended says about the cluster.
fn searched(steps: &[StepRow], number: u32, search: &SearchResult) -> Option<String> {
    let within = format!("{} <= {}", search.percentile, latency(search.limit_us));
    if !search.done {
        return None;
    }
    if !search.is_decided() {
        return Some(format!("{}: what it carries within {within} is not decided", search.label));
    }
    let at_held = measured_at(steps, number, search.held);
    let doubt = if at_held.into_iter().any(StepRow::is_doubtful) { ", which is doubtful" } else { "" };
    let Some(held) = search.held else {
        return Some(format!("{}: not even the least load keeps {within}", search.label));
    };
    let iops = search.iops.map(|iops| format!("{} IOPS", thousands(iops))).unwrap_or_default();
    Some(match (search.over, search.missed) {
        (SearchOver::WorkersPerNode, Some(missed)) => format!(
            "Fits {held:.0} workers a node of {} within {within} ({iops}){doubt}; {missed:.0} are too many",
            search.label
        ),
        (SearchOver::WorkersPerNode, None) => format!(
            "Fits at least {held:.0} workers a node of {} within {within} ({iops}){doubt}; no more were asked for",
            search.label
        ),
        (_, Some(_)) => format!("Carries {iops} of {} within {within}{doubt}", search.label),
        (_, None) => format!("Carries at least {iops} of {} within {within}{doubt}", search.label),
    })
}

/// The steps that a search measured at this load, in what it varied.
fn measured_at(steps: &[StepRow], number: u32, at: Option<f64>) -> Vec<&StepRow> {
    let is = |step: &&StepRow| match step.purpose {
        Purpose::Search { search, load } => search == number && Some(load) == at,
        _ => false,
    };
    steps.iter().filter(is).collect()
}

/// The last step at the least load that missed a search's limit; of one that missed none, at the most that held.
fn border<'a>(steps: &'a [StepRow], number: u32, search: &SearchResult) -> Option<&'a StepRow> {
    let at = search.missed.or(search.held).filter(|_| search.done);
    measured_at(steps, number, at).pop()
}

/// The load that carried the most, among those that nothing makes doubtful if there are such.
fn most(steps: &[StepRow]) -> Option<&StepRow> {
    let loads = steps.iter().filter(|step| step.purpose != Purpose::Ceiling && step.iops > 0.0);
    loads.max_by(|a, b| b.is_doubtful().cmp(&a.is_doubtful()).then(a.iops.total_cmp(&b.iops)))
}

/// What limits this load, as far as it was measured.
fn limit(step: &StepRow) -> String {
    let percent = |share: f64| format!("{:.0} %", 100.0 * share);
    let found = |kind| step.findings.iter().any(|finding| finding.kind == kind);
    let at_limit = |share: Option<f64>| share.filter(|share| *share >= AT_ITS_LIMIT);
    if found(FindingKind::GeneratorBound) {
        return format!("limited by the load generator, not by the storage ({})", step.label);
    }
    if let Some(share) = at_limit(step.of_ceiling) {
        return format!(
            "limited by the devices: {} of their measured ceiling ({})",
            percent(share),
            step.label
        );
    }
    if let Some(share) = at_limit(step.of_network) {
        return format!(
            "limited by the network between the nodes: {} of its slowest link ({})",
            percent(share),
            step.label
        );
    }
    if let Some(share) = at_limit(step.host_busy) {
        return format!("limited by the hosts' CPUs: {} busy ({})", percent(share), step.label);
    }
    let known: Vec<String> = [
        ("the devices' ceiling", step.of_ceiling),
        ("the slowest link", step.of_network),
        ("the busiest host's CPUs", step.host_busy),
    ]
    .into_iter()
    .filter_map(|(what, share)| share.map(|share| format!("{} of {what}", percent(share))))
    .collect();
    match known.is_empty() {
        true => {
            format!("what limits it is not known: neither ceilings nor CPUs were measured ({})", step.label)
        }
        false => format!("what limits it was not found: it used {} ({})", known.join(", "), step.label),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(held: Option<f64>, missed: Option<f64>, over: SearchOver) -> SearchResult {
        SearchResult {
            label: "B4".into(),
            over,
            percentile: "p99".into(),
            limit_us: 2_000.0,
            done: true,
            held,
            missed,
            iops: held.map(|held| held * 0.99),
            latency_us: Some(900.0),
            steps: 12,
            found: String::new(),
        }
    }

    #[test]
    fn a_search_says_what_fits_and_what_is_too_much() {
        let said = |held, missed, over| searched(&[], 1, &search(held, missed, over)).unwrap();
        let workers = SearchOver::WorkersPerNode;
        assert_eq!(
            said(Some(3.0), Some(4.0), workers),
            "Fits 3 workers a node of B4 within p99 <= 2.00 ms (3.0 IOPS); 4 are too many"
        );
        assert!(said(Some(3.0), None, workers).starts_with("Fits at least 3"));
        assert_eq!(
            said(Some(10_000.0), Some(10_400.0), SearchOver::Rate),
            "Carries 9,900 IOPS of B4 within p99 <= 2.00 ms"
        );
        assert!(said(None, Some(10.0), SearchOver::Rate).contains("not even the least load"));
        assert!(said(None, None, SearchOver::Rate).contains("not decided"));
        let going_on = SearchResult { done: false, ..search(None, None, workers) };
        assert_eq!(searched(&[], 1, &going_on), None);
    }
}
