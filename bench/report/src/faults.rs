//! What was done to the storage in the windows of each load, and what followed, over its repeats.

use loadline_base::figures::thousands;
use loadline_measure::difference::{Change, Ratio, ratio};
use loadline_measure::spread::Spread;
use loadline_study::timeline::{Event, Stretch, Timeline};
use loadline_target::FaultKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::columns::align;
use crate::rows::StepRow;

/// One load and what was done to the storage in its windows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FaultsRow {
    /// The load.
    pub load: String,
    /// Complete repeats in which everything was done.
    pub repeats: usize,
    /// I/Os a second before the first fault, over the repeats.
    pub baseline_iops: Option<Spread>,
    /// 99th percentile of the response times before the first fault, microseconds.
    pub baseline_p99_us: Option<Spread>,
    /// What was done, in the order of time.
    pub events: Vec<FaultRow>,
}

/// One thing that was done to the storage, over the repeats of a load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FaultRow {
    /// What was done, in words.
    pub what: String,
    /// Whether a node came back.
    pub is_return: bool,
    /// When it was to be done, seconds from the beginning of the window.
    pub at_s: f64,
    /// The longest time in which one worker that stayed completed nothing, milliseconds.
    pub stall_ms: Option<Spread>,
    /// The longest time in which no worker completed an I/O, milliseconds.
    pub fleet_stall_ms: Option<Spread>,
    /// Until the storage said so, seconds; `null` if it did not in every repeat.
    pub detected_s: Option<Spread>,
    /// Workers whose host was gone with the node, in one repeat.
    pub moved: usize,
    /// How long the last of them was out, seconds; `null` if one did not come back.
    pub out_s: Option<Spread>,
    /// Machines that were migrated, in one repeat.
    #[serde(default, skip_serializing_if = "is_none")]
    pub migrated: usize,
    /// The longest time for which one of them stood still, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub downtime_ms: Option<Spread>,
    /// I/Os that failed until the next fault, in all repeats.
    pub errors: u64,
    /// I/Os a second afterwards, as a multiple of those before the first fault: over repeats, or with one over parts of its
    /// window.
    pub iops_ratio: Option<Ratio>,
    /// The 99th percentile afterwards, as a multiple of that before the first fault.
    pub p99_ratio: Option<Spread>,
    /// Until 95 % of the IOPS afterwards were there, seconds.
    pub reached_s: Option<Spread>,
    /// Of a return: until every copy was in sync, seconds; `null` if that was not so in every repeat.
    pub redundant_s: Option<Spread>,
    /// Of a return: the most bytes that were seen to be left to be copied.
    pub resync_bytes: Option<Spread>,
    /// Of a return: I/Os a second until every copy was in sync, as a multiple of those before the first fault.
    pub resync_iops_ratio: Option<Ratio>,
    /// Of a return: the 99th percentile meanwhile, as a multiple of that before the first fault.
    pub resync_p99_ratio: Option<Spread>,
}

/// The loads in whose windows something was done.
pub(crate) fn rows(steps: &[StepRow]) -> Vec<FaultsRow> {
    let mut loads: Vec<(&str, Vec<&Timeline>)> = Vec::new();
    for step in steps {
        let Some(timeline) = &step.timeline else { continue };
        match loads.iter_mut().find(|(load, _)| *load == step.label) {
            Some((_, repeats)) => repeats.push(timeline),
            None => loads.push((&step.label, vec![timeline])),
        }
    }
    loads.into_iter().map(|(load, repeats)| row(load, &repeats)).collect()
}

fn row(load: &str, repeats: &[&Timeline]) -> FaultsRow {
    // A repeat in which something was not done is another experiment.
    let is_planned = |timeline: &&&Timeline| timeline.events.iter().all(|event| !event.by_hand);
    let planned: Vec<&Timeline> = repeats.iter().filter(is_planned).copied().collect();
    // So is one in which people have acted.
    let repeats = if planned.is_empty() { repeats } else { &planned };
    let most = repeats.iter().map(|timeline| timeline.events.len()).max().unwrap_or(0);
    let is_whole = |timeline: &&&Timeline| {
        timeline.events.len() == most && timeline.events.iter().all(|event| event.failed.is_none())
    };
    let repeats: Vec<&Timeline> = repeats.iter().filter(is_whole).copied().collect();
    let base = |figure: fn(&Stretch) -> Option<f64>| {
        repeats.iter().map(|timeline| figure(timeline.baseline.as_ref()?)).collect::<Option<Vec<f64>>>()
    };
    let baseline = base(|stretch| Some(stretch.iops));
    let event = |at: usize| {
        let events: Vec<&Event> = repeats.iter().map(|timeline| &timeline.events[at]).collect();
        fault(&events, baseline.as_deref())
    };
    FaultsRow {
        load: load.to_string(),
        repeats: repeats.len(),
        baseline_iops: baseline.as_deref().and_then(Spread::of),
        baseline_p99_us: base(|stretch| stretch.latency_us.p99).and_then(|all| Spread::of(&all)),
        events: if repeats.is_empty() { Vec::new() } else { (0..most).map(event).collect() },
    }
}

/// One event, of each repeat; there is at least one.
fn fault(events: &[&Event], baseline: Option<&[f64]>) -> FaultRow {
    // Of all repeats or of none: some of them would be the lucky ones.
    let over = |figure: &dyn Fn(&Event) -> Option<f64>| {
        let all: Option<Vec<f64>> = events.iter().map(|event| figure(event)).collect();
        all.and_then(|all| Spread::of(&all))
    };
    let against = |part: fn(&Event) -> Option<&Stretch>| match events {
        [only] => part(only)?.iops_ratio,
        _ => {
            let all: Option<Vec<f64>> = events.iter().map(|event| Some(part(event)?.iops)).collect();
            ratio(baseline?, &all?)
        }
    };
    let out = |event: &Event| {
        let all: Option<Vec<f64>> = event.moved.iter().map(|moved| moved.out_s).collect();
        all?.into_iter().reduce(f64::max)
    };
    let first = events[0];
    FaultRow {
        what: first.fault.to_string(),
        is_return: first.fault.what == FaultKind::Return,
        at_s: first.planned_s,
        stall_ms: over(&|event| event.stall_ms.map(|stall| stall as f64)),
        fleet_stall_ms: over(&|event| Some(event.fleet_stall_ms as f64)),
        detected_s: over(&|event| event.detected_s),
        moved: first.moved.len(),
        out_s: over(&out),
        migrated: first.migrated.len(),
        downtime_ms: over(&|event| event.migrated.iter().map(|machine| machine.downtime_ms).reduce(f64::max)),
        errors: events.iter().map(|event| event.errors).sum(),
        iops_ratio: against(|event| event.plateau.as_ref()),
        p99_ratio: over(&|event| event.plateau.as_ref()?.p99_ratio),
        reached_s: over(&|event| event.plateau_after_s),
        redundant_s: over(&|event| event.redundant_s),
        resync_bytes: over(&|event| Some(event.resync_bytes? as f64)),
        resync_iops_ratio: against(|event| event.resync.as_ref()),
        resync_p99_ratio: over(&|event| event.resync.as_ref()?.p99_ratio),
    }
}

/// What the faults of a load came to, in a sentence for each load.
pub(crate) fn sentences(rows: &[FaultsRow]) -> Vec<String> {
    let of_row = |row: &FaultsRow| {
        let events: Vec<String> = row.events.iter().map(sentence).collect();
        (!events.is_empty()).then(|| format!("{}: {}", row.load, events.join("; ")))
    };
    rows.iter().filter_map(of_row).collect()
}

/// What one event came to.
pub(crate) fn sentence(event: &FaultRow) -> String {
    let mut parts = Vec::new();
    if let Some(stall) = event.stall_ms {
        parts.push(format!("longest stall {} s", seconds(stall.median / 1e3)));
    }
    if event.moved > 0 {
        parts.push(match event.out_s {
            Some(out) => format!("{} out for {} s", workers(event.moved), seconds(out.median)),
            None => format!("not all of {} came back", workers(event.moved)),
        });
    }
    if let Some(downtime) = event.downtime_ms {
        parts.push(format!(
            "{} stood still for up to {} ms",
            if event.migrated == 1 {
                "its machine".into()
            } else {
                format!("its {} machines", event.migrated)
            },
            thousands(downtime.median.ceil())
        ));
    }
    if event.is_return {
        parts.push(match event.redundant_s {
            Some(redundant) => format!("every copy in sync after {} s", seconds(redundant.median)),
            None => "not every copy in sync before the end".into(),
        });
    }
    if let Some(ratio) = event.iops_ratio {
        let percent = |ratio: f64| format!("{:+.0} %", 100.0 * (ratio - 1.0));
        parts.push(match (ratio.change(), ratio.low.zip(ratio.high)) {
            (Change::NotShown, Some((low, high))) => {
                format!("then no change of IOPS shown ({} to {})", percent(low), percent(high))
            }
            (_, Some((low, high))) => {
                format!("then {} IOPS ({} to {})", percent(ratio.estimate), percent(low), percent(high))
            }
            _ => format!("then {} IOPS", percent(ratio.estimate)),
        });
    }
    if event.errors > 0 {
        parts.push(match event.errors {
            1 => "1 I/O failed".into(),
            errors => format!("{} I/Os failed", thousands(errors as f64)),
        });
    }
    format!("{}: {}", event.what, parts.join(", "))
}

fn is_none(count: &usize) -> bool {
    *count == 0
}

fn workers(count: usize) -> String {
    if count == 1 { "its worker".into() } else { format!("its {count} workers") }
}

/// Seconds with the digits that count.
fn seconds(value: f64) -> String {
    if value < 10.0 { format!("{value:.2}") } else { format!("{value:.0}") }
}

/// Titles of the table.
pub(crate) const TITLES: [&str; 12] = [
    "load",
    "at s",
    "what",
    "longest stall ms",
    "all silent ms",
    "noticed s",
    "workers out s",
    "in sync s",
    "left MB",
    "IOPS meanwhile",
    "IOPS then",
    "p99 then",
];

/// The table, a row for each thing that was done.
pub(crate) fn cells(rows: &[FaultsRow]) -> Vec<Vec<String>> {
    let all = rows.iter().flat_map(|row| row.events.iter().map(move |event| (row, event)));
    all.map(|(row, event)| {
        let figure = |spread: Option<Spread>, show: fn(f64) -> String| {
            spread.map_or("-".into(), |one| show(one.median))
        };
        let times = |ratio: Option<Ratio>| ratio.map_or("-".into(), |ratio| multiple(ratio.estimate));
        let whole = |value: f64| thousands(value);
        vec![
            row.load.clone(),
            seconds(event.at_s),
            event.what.clone(),
            figure(event.stall_ms, whole),
            figure(event.fleet_stall_ms, whole),
            figure(event.detected_s, seconds),
            figure(event.out_s, seconds),
            figure(event.redundant_s, seconds),
            figure(event.resync_bytes, |bytes| format!("{:.1}", bytes / 1e6)),
            times(event.resync_iops_ratio),
            times(event.iops_ratio),
            figure(event.p99_ratio, multiple),
        ]
    })
    .collect()
}

fn multiple(value: f64) -> String {
    format!("{value:.2} x")
}

/// The same as lines for a terminal, with a title; empty if nothing was done.
pub fn text(rows: &[FaultsRow]) -> String {
    let cells = cells(rows);
    if cells.is_empty() {
        return String::new();
    }
    let titles = TITLES.map(String::from).to_vec();
    let rows: Vec<Vec<String>> = std::iter::once(titles).chain(cells).collect();
    format!("what was done to the storage, and what followed:\n{}", align(&rows, 0))
}
