//! The verdict: what the cluster carries, in a sentence each, and what limits it.

use std::collections::BTreeMap;

use loadline_base::figures::{latency, listed, thousands};
use loadline_measure::audit::FindingKind;
use loadline_measure::difference::Change;
use loadline_study::planned_step::Purpose;
use loadline_study::searches::{SearchOver, SearchResult};
use loadline_study::success::Decision;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::closed_loop::ClosedLoop;
use crate::conditions::ConditionRow;
use crate::rows::{LoadRow, StepRow};

/// From this share of its ceiling on, a part is said to limit a load.
const AT_ITS_LIMIT: f64 = 0.9;
/// So many loads are named where nothing was searched.
const MOST_NAMED: usize = 4;
/// The most loads that the verdict names side by side.
const MOST_BESIDE: usize = 12;

/// What a run decides.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Verdict {
    /// Whether every criterion of the study is met; `null` if it has none, or they are not decided yet.
    pub met: Option<bool>,
    /// Whether the criteria are met, but one of them in a closed loop only: a load with a rate misses it.
    pub closed_loop_only: bool,
    /// What it carries, in sentences: the criteria, the searches, or else the most that was measured.
    pub carries: Vec<String>,
    /// Where a closed loop flatters the verdict, with both figures.
    pub closed_loop: Vec<ClosedLoop>,
    /// What limits it, in a few words: that of the first search, or else of the largest load; `null` if nothing was measured.
    pub limit: Option<String>,
    /// What limits it, as far as it was measured, in sentences: one for each search, or else for the largest load.
    pub limited_by: Vec<String>,
    /// What a reader should know beside it, in sentences: what the storage counted itself, what else changes with a condition.
    pub beside: Vec<String>,
}

/// What limits a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Limit {
    Generator,
    /// It did more than a part can do.
    Beyond,
    Devices,
    Network,
    Cpus,
    NotFound,
    NotKnown,
}

impl Verdict {
    /// Of a run's steps and loads, what its searches came to, how its criteria are met, and what is side by side.
    pub(crate) fn of(
        steps: &[StepRow],
        loads: &[LoadRow],
        searches: &[SearchResult],
        criteria: &[Decision],
        conditions: &[ConditionRow],
    ) -> Verdict {
        let met = match criteria.iter().map(|decision| decision.held).collect::<Vec<_>>().as_slice() {
            [] => None,
            held if held.contains(&Some(false)) => Some(false),
            held if held.contains(&None) => None,
            _ => Some(true),
        };
        let mut verdict = Verdict { met, ..Verdict::default() };
        if met == Some(true) {
            let (only, all): (Vec<&Decision>, Vec<&Decision>) =
                criteria.iter().partition(|decision| decision.open_loop_missed.is_some());
            verdict.closed_loop_only = !only.is_empty();
            verdict.closed_loop.extend(only.iter().filter_map(|decision| ClosedLoop::of_criterion(decision)));
            let all: Vec<&str> = all.iter().map(|decision| decision.criterion.as_str()).collect();
            if only.is_empty() {
                verdict.carries.push(format!("Every criterion is met: {}", all.join("; ")));
            } else if !all.is_empty() {
                verdict.carries.push(format!("Met: {}", all.join("; ")));
            }
            verdict.carries.extend(only.into_iter().map(met_in_a_closed_loop));
        }
        let missed = criteria.iter().filter(|decision| decision.held == Some(false));
        verdict
            .carries
            .extend(missed.map(|missed| format!("Missed: {}: {}", missed.criterion, missed.found)));
        let ended = searches.iter().zip(1u32..).filter(|(search, _)| search.done);
        let ended: Vec<(&SearchResult, u32)> = ended.collect();
        for (search, number) in &ended {
            verdict.carries.push(searched(steps, *number, search));
            let flattered = ClosedLoop::of_search(steps, search);
            verdict.carries.extend(flattered.as_ref().map(ClosedLoop::sentence));
            verdict.closed_loop.extend(flattered);
        }
        for (search, number) in &ended {
            let measured = at_the_limit(steps, *number, search);
            verdict.limit = verdict.limit.or_else(|| in_short(&measured));
            verdict.limited_by.extend(because(&measured));
        }
        // The same load in another condition is named beside it. How the load grows with workers is stated elsewhere.
        let whole = conditions.iter().filter(|row| row.workers.is_none());
        verdict.carries.extend(whole.take(MOST_BESIDE).filter_map(side_by_side));
        if ended.is_empty() {
            let most = most(steps, loads);
            if conditions.is_empty() {
                verdict.carries.extend(most.iter().take(MOST_NAMED).map(|load| measured(steps, load)));
                if most.len() > MOST_NAMED {
                    verdict.carries.push(format!("{} more loads are below", most.len() - MOST_NAMED));
                }
            }
            // Of a study whose windows all have faults, those windows.
            let harmed = || steps.iter().filter(|step| step.timeline.is_some()).collect::<Vec<_>>();
            let largest = most.first().map(|load| of_label(steps, &load.label));
            let largest = largest.or_else(|| Some(harmed()).filter(|all| !all.is_empty()));
            verdict.limit = largest.as_deref().and_then(in_short);
            verdict.limited_by.extend(largest.and_then(|steps| because(&steps)));
        }
        verdict
    }
}

/// Of a criterion that no load with a rate meets: what was measured, and why both are true.
fn met_in_a_closed_loop(decision: &Decision) -> String {
    format!(
        "Met in a closed loop only: {}: {}; with a rate it is missed: {}. In a closed loop a slow I/O delays the next one; \
         clients with a rate of their own wait instead",
        decision.criterion,
        decision.found,
        decision.open_loop_missed.as_deref().unwrap_or_default()
    )
}

/// One load in each of its conditions.
fn side_by_side(row: &ConditionRow) -> Option<String> {
    let (first, others) = row.conditions.split_first()?;
    let others = others.iter().map(|one| {
        let Some(ratio) = one.iops_ratio else { return format!("{}: not known", one.name) };
        let percent = |ratio: f64| match (100.0 * (ratio - 1.0)).round() {
            0.0 => "0 %".to_string(),
            percent => format!("{percent:+.0} %"),
        };
        let sure = match (ratio.change(), ratio.low, ratio.high) {
            (Change::NotShown, Some(low), Some(high)) => {
                format!(", no change shown ({} to {})", percent(low), percent(high))
            }
            (_, Some(low), Some(high)) => format!(" ({} to {})", percent(low), percent(high)),
            _ => String::new(),
        };
        let doubt = if one.doubtful > 0 { ", which is doubtful" } else { "" };
        format!("{}: {}{sure}{doubt}", one.name, percent(ratio.estimate))
    });
    let others: Vec<String> = others.collect();
    let iops = thousands(first.iops?.median);
    Some(format!("{}: {iops} IOPS {}; {}", row.load, first.name, others.join("; ")))
}

/// As lines for a terminal, with a title; empty if nothing was measured.
pub fn text(verdict: &Verdict) -> String {
    let all = verdict.carries.iter().chain(&verdict.limited_by).chain(&verdict.beside);
    let sentences: Vec<&String> = all.collect();
    if sentences.is_empty() {
        return String::new();
    }
    format!("verdict:\n{}", sentences.iter().map(|sentence| format!("  {sentence}\n")).collect::<String>())
}

/// What a search that has ended says about the cluster.
fn searched(steps: &[StepRow], number: u32, search: &SearchResult) -> String {
    let within = format!("{} <= {}", search.percentile, latency(search.limit_us));
    let doubtful = |at| measured_at(steps, number, at).into_iter().any(StepRow::is_doubtful);
    let doubt = match (doubtful(search.held), doubtful(search.missed)) {
        (false, false) => String::new(),
        (true, false) => ", which is doubtful".into(),
        (false, true) => ", but that more is too much is doubtful".into(),
        (true, true) => ", which is doubtful, and so is that more is too much".into(),
    };
    let (Some(held), Some(_)) = (search.held, search.latency_us) else {
        // What the search itself found says it best: nothing held, it is undecided, or I/Os were too few.
        return format!("{}: {}{doubt}", search.label, search.found);
    };
    let iops = search.iops.map(|iops| format!("{} IOPS", thousands(iops))).unwrap_or_default();
    match (search.over, search.missed) {
        (SearchOver::WorkersPerNode, Some(missed)) => format!(
            "Fits {held:.0} workers a node of {} within {within} ({iops}); {missed:.0} are too many{doubt}",
            search.label
        ),
        (SearchOver::WorkersPerNode, None) => format!(
            "Fits at least {held:.0} workers a node of {} within {within} ({iops}){doubt}; no more were asked for",
            search.label
        ),
        (_, Some(_)) => format!("Carries {iops} of {} within {within}{doubt}", search.label),
        (_, None) => format!("Carries at least {iops} of {} within {within}{doubt}", search.label),
    }
}

/// The steps that a search measured at this load, in what it varied.
pub(crate) fn measured_at(steps: &[StepRow], number: u32, at: Option<f64>) -> Vec<&StepRow> {
    let is = |step: &&StepRow| match step.purpose {
        Purpose::Search { search, load } => search == number && Some(load) == at,
        _ => false,
    };
    steps.iter().filter(is).collect()
}

/// The measurements that show what limits at the end of what a search found: of those at the least load that missed, those that missed;
/// if everything held, those at the most that was tried.
fn at_the_limit<'a>(steps: &'a [StepRow], number: u32, search: &SearchResult) -> Vec<&'a StepRow> {
    if search.missed.is_none() {
        return measured_at(steps, number, search.held);
    }
    let mut missed = measured_at(steps, number, search.missed);
    missed.retain(|step| {
        let value = step.latency_us.percentile(&search.percentile).or(step.latency_us.max);
        step.errors > 0 || step.lost_workers > 0 || value.is_none_or(|value| value > search.limit_us)
    });
    // None of them was too slow: the rate was not carried.
    if missed.is_empty() {
        missed = measured_at(steps, number, search.missed);
    }
    missed
}

/// The measurements of a load that is measured for its own sake.
pub(crate) fn of_label<'a>(steps: &'a [StepRow], label: &str) -> Vec<&'a StepRow> {
    steps.iter().filter(|step| step.label == label && step.purpose == Purpose::Load).collect()
}

/// The largest load of each family, the largest first: by medians, of those that nothing makes doubtful where there are
/// such.
pub(crate) fn most<'a>(steps: &[StepRow], loads: &'a [LoadRow]) -> Vec<&'a LoadRow> {
    let mut families: BTreeMap<&str, &LoadRow> = BTreeMap::new();
    let iops = |load: &LoadRow| load.iops.map_or(0.0, |iops| iops.median);
    for load in loads.iter().filter(|load| iops(load) > 0.0) {
        // A window in which things were done to the storage says nothing of the most; its timeline says what it says.
        let Some(step) = of_label(steps, &load.label).pop().filter(|step| step.timeline.is_none()) else {
            continue;
        };
        let best =
            families.entry(if step.family.is_empty() { &step.label } else { &step.family }).or_insert(load);
        let rank = |load: &LoadRow| (load.doubtful == 0, iops(load));
        if rank(load) > rank(best) {
            *best = load;
        }
    }
    let mut most: Vec<&LoadRow> = families.into_values().collect();
    most.sort_by(|a, b| iops(b).total_cmp(&iops(a)));
    most
}

fn measured(steps: &[StepRow], load: &LoadRow) -> String {
    let iops = load.iops.map_or(0.0, |iops| iops.median);
    let at = match (load.p99_us, of_label(steps, &load.label).as_slice()) {
        (Some(p99), _) => format!(" at p99 {}", latency(p99.median)),
        (None, [one]) => one
            .latency_us
            .deepest_value()
            .map(|(name, value)| format!(" at {name} {}", latency(value)))
            .unwrap_or_default(),
        _ => String::new(),
    };
    let repeats = if load.repeats > 1 { format!(" (median of {})", load.repeats) } else { String::new() };
    let doubt = if load.doubtful > 0 { ", which is doubtful" } else { "" };
    format!("The most that was measured of {}: {} IOPS{at}{repeats}{doubt}", load.label, thousands(iops))
}

/// What limits these measurements of one load, in a few words; `None` if there are none.
fn in_short(steps: &[&StepRow]) -> Option<String> {
    let limits: Vec<Limit> = steps.iter().map(|step| limit(step)).collect();
    let first = *limits.first()?;
    if limits.iter().any(|limit| *limit != first) {
        return Some("Not clear".into());
    }
    let words = match first {
        Limit::Generator => "The load generator",
        Limit::Beyond => "Not clear",
        Limit::Devices => "The devices",
        Limit::Network => "The network",
        Limit::Cpus => "The CPUs",
        Limit::NotFound => "Not found",
        Limit::NotKnown => "Not known",
    };
    Some(words.into())
}

/// What limits these measurements of one load, in a sentence; `None` if there are none.
fn because(steps: &[&StepRow]) -> Option<String> {
    let limits: Vec<Limit> = steps.iter().map(|step| limit(step)).collect();
    let (first, label) = (*limits.first()?, &steps.first()?.label);
    if limits.iter().any(|limit| *limit != first) {
        return Some(format!("what limits it is not clear: the measurements disagree ({label})"));
    }
    // Of the parts that it used most.
    let most = |share: fn(&StepRow) -> Option<f64>| {
        steps
            .iter()
            .filter_map(|step| share(step))
            .reduce(f64::max)
            .map(|share| format!("{:.0} %", 100.0 * share))
    };
    let devices = most(|step| step.of_ceiling);
    let network = most(|step| step.of_network);
    let cpus = most(|step| step.host_busy);
    let own_network = steps.iter().filter_map(|step| busiest(step)).max_by(|a, b| a.0.total_cmp(&b.0));
    let of = |share: &Option<String>| share.clone().unwrap_or_default();
    Some(match first {
        Limit::Generator => format!("limited by the load generator, not by the storage ({label})"),
        Limit::Beyond => format!(
            "what limits it is not clear: it did more than was measured of a part (devices {}, network {}), so that a \
             cache answered, or the ceiling was measured too low ({label})",
            devices.as_deref().unwrap_or("not measured"),
            network.as_deref().unwrap_or("not measured")
        ),
        Limit::Devices => {
            format!("limited by the devices: {} of their measured ceiling ({label})", of(&devices))
        }
        Limit::Network => match own_network {
            Some((share, who)) => {
                let share = format!("{:.0} %", 100.0 * share);
                format!("limited by the network of the nodes: {who} {share} of its bandwidth ({label})")
            }
            None => format!(
                "limited by the network between the nodes: {} of its slowest link ({label})",
                of(&network)
            ),
        },
        Limit::Cpus => format!("limited by the hosts' CPUs: {} busy ({label})", of(&cpus)),
        Limit::NotFound => {
            let parts = [
                ("the devices' ceiling", devices),
                ("the slowest link", network),
                ("the busiest host's CPUs", cpus),
            ];
            let used: Vec<String> = (parts.into_iter())
                .filter_map(|(what, share)| Some(format!("{} of {what}", share?)))
                .collect();
            format!("what limits it was not found: it used {} ({label})", listed(&used, used.len()))
        }
        Limit::NotKnown => {
            format!("what limits it is not known: neither ceilings nor CPUs were measured ({label})")
        }
    })
}

/// What share of its bandwidth the busiest node used, and words for it, where nodes have a network of their own.
fn busiest(step: &StepRow) -> Option<(f64, String)> {
    step.network.as_ref()?.shares().into_iter().next()
}

fn limit(step: &StepRow) -> Limit {
    let shares = [step.of_ceiling, step.of_network];
    let at_limit = |share: Option<f64>| share.is_some_and(|share| share >= AT_ITS_LIMIT);
    if step.findings.iter().any(|finding| finding.kind == FindingKind::GeneratorBound) {
        Limit::Generator
    } else if shares.iter().flatten().any(|share| *share > 1.0) {
        Limit::Beyond
    } else if at_limit(step.of_ceiling) {
        Limit::Devices
    } else if at_limit(step.of_network) || at_limit(busiest(step).map(|(share, _)| share)) {
        Limit::Network
    } else if at_limit(step.host_busy) {
        Limit::Cpus
    } else if shares.iter().flatten().chain(&step.host_busy).next().is_some() {
        Limit::NotFound
    } else {
        Limit::NotKnown
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conditions::Condition;
    use loadline_measure::audit::Finding;
    use loadline_measure::difference::Ratio;
    use loadline_measure::spread::Spread;
    use loadline_study::node_network::{NetworkUse, NodeTraffic};

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
            latency_us: held.map(|_| 900.0),
            steps: 12,
            found: "what the search says".into(),
        }
    }

    fn step(purpose: Purpose, iops: f64, p99: f64) -> StepRow {
        let mut step = StepRow::none();
        (step.label, step.purpose, step.iops, step.latency_us.p99) = ("B4".into(), purpose, iops, Some(p99));
        step
    }

    fn probe(load: f64, p99: f64) -> StepRow {
        step(Purpose::Search { search: 1, load }, load, p99)
    }

    fn generator() -> Finding {
        Finding::doubt(FindingKind::GeneratorBound, "", "", "")
    }

    #[test]
    fn a_search_says_what_fits_and_what_is_too_much() {
        let said = |held, missed, over| searched(&[], 1, &search(held, missed, over));
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
        for nothing in [said(None, Some(10.0), SearchOver::Rate), said(None, None, SearchOver::Rate)] {
            assert_eq!(nothing, "B4: what the search says");
        }
        let shallow = SearchResult { latency_us: None, ..search(Some(3.0), Some(4.0), workers) };
        assert_eq!(searched(&[], 1, &shallow), "B4: what the search says", "it says that I/Os were too few");
    }

    #[test]
    fn a_load_is_told_in_each_condition_against_the_first() {
        let condition = |name: &str, ratio: Option<Ratio>| Condition {
            name: name.into(),
            repeats: 6,
            doubtful: 0,
            iops: Spread::of(&[1_000.0]),
            p99_us: None,
            iops_ratio: ratio,
            p99_ratio: None,
        };
        let ratio = |estimate, low, high| Some(Ratio { estimate, low, high });
        let row = ConditionRow {
            workers: None,
            load: "B4".into(),
            name: "4K".into(),
            over: "condition".into(),
            conditions: vec![
                condition("healthy", None),
                condition("one-down", ratio(0.64, Some(0.6), Some(0.7))),
                condition("back", ratio(1.01, Some(0.97), Some(1.04))),
                condition("once", ratio(0.9, None, None)),
            ],
        };
        assert_eq!(
            side_by_side(&row).unwrap(),
            "B4: 1,000 IOPS healthy; one-down: -36 % (-40 % to -30 %); back: +1 %, no change shown (-3 % to +4 %); once: -10 %"
        );
    }

    #[test]
    fn a_criterion_that_a_rate_misses_is_met_in_a_closed_loop_only() {
        let decided = |open_loop_missed: Option<&str>| Decision {
            criterion: "fleet >= 5 IOPS of 4K".into(),
            held: Some(true),
            found: "6 IOPS (B4)".into(),
            open_loop_missed: open_loop_missed.map(Into::into),
        };
        let of = |criteria: &[Decision]| Verdict::of(&[], &[], &[], criteria, &[]);
        let met = of(&[decided(None)]);
        assert!(met.met == Some(true) && !met.closed_loop_only);
        assert_eq!(met.carries, ["Every criterion is met: fleet >= 5 IOPS of 4K"]);
        let only = of(&[decided(None), decided(Some("of 5 IOPS offered (B4), 4 IOPS were reached"))]);
        assert!(only.met == Some(true) && only.closed_loop_only);
        assert_eq!(only.carries[0], "Met: fleet >= 5 IOPS of 4K");
        let says = "Met in a closed loop only: fleet >= 5 IOPS of 4K: 6 IOPS (B4); with a rate it is missed: of 5 IOPS offered";
        assert!(only.carries[1].starts_with(says), "{only:?}");
    }

    #[test]
    fn a_doubt_at_either_end_is_told() {
        let mut steps = vec![probe(10.0, 900.0), probe(11.0, 3_000.0)];
        let found = search(Some(10.0), Some(11.0), SearchOver::Rate);
        steps[1].findings.push(generator());
        assert!(searched(&steps, 1, &found).ends_with("but that more is too much is doubtful"));
        steps[0].findings.push(generator());
        assert!(searched(&steps, 1, &found).contains("which is doubtful, and so"));
    }

    #[test]
    fn what_limits_is_said_of_the_measurements_that_missed() {
        let found = search(Some(10.0), Some(11.0), SearchOver::Rate);
        // Three at the load that missed: two were too slow, with the CPUs full; the one that held was bound by the generator.
        let mut steps = vec![probe(11.0, 3_000.0), probe(11.0, 54_000.0), probe(11.0, 600.0)];
        steps[2].findings.push(generator());
        (steps[0].host_busy, steps[1].host_busy) = (Some(0.96), Some(0.97));
        assert_eq!(
            because(&at_the_limit(&steps, 1, &found)).unwrap(),
            "limited by the hosts' CPUs: 97 % busy (B4)"
        );
        steps[0].findings.push(generator());
        assert!(because(&at_the_limit(&steps, 1, &found)).unwrap().contains("disagree"));
    }

    #[test]
    fn more_than_a_ceiling_is_no_limit_but_a_cache() {
        let mut one = step(Purpose::Load, 1_000.0, 1.0);
        (one.of_ceiling, one.host_busy) = (Some(1.5), Some(0.2));
        let said = because(&[&one]).unwrap();
        assert!(said.contains("devices 150 %") && said.contains("cache"), "{said}");
        one.of_ceiling = Some(0.95);
        assert_eq!(because(&[&one]).unwrap(), "limited by the devices: 95 % of their measured ceiling (B4)");
        let sent = |bytes| NodeTraffic { sent_bytes_per_s: bytes, received_bytes_per_s: 1.0 };
        let nodes = [("a".to_string(), sent(10.0)), ("b".to_string(), sent(95.0))].into();
        let full = NetworkUse { limit_bytes_per_s: 100, seconds: 10.0, nodes };
        (one.of_ceiling, one.host_busy, one.network) = (None, Some(1.0), Some(full));
        assert_eq!(
            because(&[&one]).unwrap(),
            "limited by the network of the nodes: b sent 95 % of its bandwidth (B4)",
            "and not by CPUs that others use"
        );
        (one.of_ceiling, one.host_busy, one.network) = (Some(0.5), Some(0.2), None);
        assert!(
            because(&[&one])
                .unwrap()
                .contains("50 % of the devices' ceiling, 20 % of the busiest host's CPUs")
        );
        assert_eq!(because(&[]), None);
    }
}
