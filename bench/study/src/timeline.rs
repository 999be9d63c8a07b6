//! The timeline of a window in which things are done to the storage: how it was before, how long nothing came back, how it is
//! with a node less, what coming back costs, and when every copy is there again.

use std::collections::BTreeMap;

use loadline_base::histogram::LatencyHistogram;
use loadline_fleet::WorkerId;
use loadline_measure::difference::{Ratio, ratio};
use loadline_measure::summary::LatencySummary;
use loadline_target::Fault;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::migrations::MigratedMachine;
use crate::trace::Trace;

/// A stretch is cut into so many parts at the most, whose IOPS are compared.
const PARTS: usize = 10;
/// A worker reports a second at the latest so long after its end: when its turn comes.
const UNTOLD_S: f64 = 0.95;
/// A plateau is reached at this share of it.
const REACHED: f64 = 0.95;

/// A stretch of whole seconds of the window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stretch {
    /// Its first second.
    pub from_s: u64,
    /// The second after its last one.
    pub to_s: u64,
    /// I/Os that completed in it, a second.
    pub iops: f64,
    /// Bytes that they moved, a second.
    pub bytes_per_s: f64,
    /// Their response times, microseconds.
    pub latency_us: LatencySummary,
    /// Its IOPS as a multiple of those before the first fault, over parts of both: up to ten each, of at least a second. Parts
    /// of one window are not independent as repeats are. `null` in the baseline itself.
    pub iops_ratio: Option<Ratio>,
    /// Its 99th percentile as a multiple of that before the first fault; `null` if either has too few I/Os for one.
    pub p99_ratio: Option<f64>,
}

/// A worker whose host was gone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Moved {
    /// The worker whose host was gone.
    pub worker: WorkerId,
    /// The nodes that own its volumes now; empty if no node took them over in the window.
    pub to: Vec<String>,
    /// From the fault until it was started again, seconds; `null` if it was not.
    pub started_s: Option<f64>,
    /// From the fault until its first I/O completed, seconds: how long it was out; `null` if none did.
    pub out_s: Option<f64>,
}

/// Something that was done to the storage, and what followed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// What was done, and to which node.
    pub fault: Fault,
    /// When it was to be done, seconds from the beginning of the window.
    pub planned_s: f64,
    /// When it was begun.
    pub at_s: f64,
    /// How long doing it took, seconds.
    pub took_s: f64,
    /// Why it was not done; `null` if it was.
    pub failed: Option<String>,
    /// From the fault until the storage reported that a volume lacks a copy or is not served, seconds; `null` if it did not.
    pub detected_s: Option<f64>,
    /// The longest time until the next fault in which one worker that stayed completed nothing, milliseconds: the longest stall;
    /// `null` if none stayed.
    pub stall_ms: Option<u64>,
    /// The worker with that stall.
    pub stalled: Option<WorkerId>,
    /// The same of the whole fleet: no worker completed anything.
    pub fleet_stall_ms: u64,
    /// I/Os that failed until the next fault.
    pub errors: u64,
    /// Workers whose host was gone with the node.
    pub moved: Vec<Moved>,
    /// Machines that were migrated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub migrated: Vec<MigratedMachine>,
    /// Whether a person ordered it while the run was in progress, and not the study.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_hand: bool,
    /// Of a return: the most bytes that were seen to be left to be copied.
    pub resync_bytes: Option<u64>,
    /// Of a return: from it until every copy was in sync, seconds; `null` if that was not before the next fault.
    pub redundant_s: Option<f64>,
    /// Of a return: until every copy was in sync. What coming back costs.
    pub resync: Option<Stretch>,
    /// The later half of what is left until the next fault, once workers that were gone are back, and every copy after a return.
    pub plateau: Option<Stretch>,
    /// From the fault until the first of two seconds, each with 95 % of the plateau's IOPS, seconds.
    pub plateau_after_s: Option<f64>,
}

/// A window in which things were done to the storage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Timeline {
    /// Before the first fault; `null` if there is no whole second before it.
    pub baseline: Option<Stretch>,
    /// What was done, in the order of time.
    pub events: Vec<Event>,
}

/// What was seen at the storage of one fault.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DoneFault {
    pub(crate) fault: Fault,
    pub(crate) planned_s: f64,
    pub(crate) at_s: f64,
    pub(crate) took_s: f64,
    pub(crate) failed: Option<String>,
    pub(crate) detected_s: Option<f64>,
    pub(crate) moved: Vec<Moved>,
    pub(crate) migrated: Vec<MigratedMachine>,
    pub(crate) by_hand: bool,
    pub(crate) resync_bytes: Option<u64>,
    pub(crate) redundant_s: Option<f64>,
}

impl Timeline {
    /// Of a window of so many seconds.
    pub(crate) fn of(trace: &Trace, mut happened: Vec<DoneFault>, window_s: u64) -> Timeline {
        let window = window_s as f64;
        for event in &mut happened {
            if event.at_s >= window {
                // A person, or a command, took longer than there was time.
                event.failed.get_or_insert("it was done after the window had ended".into());
            }
            event.at_s = event.at_s.clamp(0.0, window);
        }
        let end_before = |next: Option<&DoneFault>| match next {
            None => End { at_s: window, reported_s: window, leaving: Vec::new() },
            Some(next) if next.moved.is_empty() => {
                End { at_s: next.at_s, reported_s: next.at_s, leaving: Vec::new() }
            }
            // What workers that leave then had not reported yet is not known: it is no stall, and no lower level.
            Some(next) => End {
                at_s: next.at_s,
                reported_s: (next.at_s - UNTOLD_S).floor().max(0.0),
                leaving: next.moved.iter().map(|moved| moved.worker.clone()).collect(),
            },
        };
        // What was not done ends nothing.
        let done_from = |from: usize| {
            let is_done = |event: &&DoneFault| event.failed.is_none() || !event.migrated.is_empty();
            happened.iter().skip(from).find(is_done)
        };
        let baseline = stretch(trace, 0.0, end_before(done_from(0)).reported_s, None);
        let ends: Vec<End> = (1..=happened.len()).map(|next| end_before(done_from(next))).collect();
        // Workers that are out, and until when: their stall says nothing of the storage.
        let mut out: BTreeMap<WorkerId, f64> = BTreeMap::new();
        let events = happened.into_iter().zip(ends).map(|(happened, end)| {
            out.retain(|_, back| *back > happened.at_s);
            for moved in &happened.moved {
                let back = back_at(trace, &happened, moved).unwrap_or(f64::INFINITY);
                out.insert(moved.worker.clone(), back);
            }
            event(trace, happened, &end, baseline.as_ref(), &out)
        });
        let events = events.collect();
        Timeline { baseline, events }
    }
}

/// When a worker that was gone completed something again, seconds from the beginning of the window.
fn back_at(trace: &Trace, happened: &DoneFault, moved: &Moved) -> Option<f64> {
    let started = happened.at_s + moved.started_s?;
    let first = trace.workers.get(&moved.worker)?.first_from((started * 1e3) as u64)?;
    Some(first as f64 / 1e3)
}

/// Until when an event is followed.
struct End {
    /// The next event, or the window's end, seconds.
    at_s: f64,
    /// Until when every worker has reported.
    reported_s: f64,
    /// The workers that are gone with the next event.
    leaving: Vec<WorkerId>,
}

fn event(
    trace: &Trace,
    mut happened: DoneFault,
    until: &End,
    baseline: Option<&Stretch>,
    out: &BTreeMap<WorkerId, f64>,
) -> Event {
    let backs: Vec<Option<f64>> =
        happened.moved.iter().map(|moved| back_at(trace, &happened, moved)).collect();
    for (moved, back) in happened.moved.iter_mut().zip(&backs) {
        moved.out_s = back.map(|back| back - happened.at_s);
    }
    let DoneFault {
        fault,
        planned_s,
        at_s,
        took_s,
        failed,
        detected_s,
        moved,
        migrated,
        by_hand,
        resync_bytes,
        redundant_s,
    } = happened;
    let (end, reported) = (until.at_s.max(at_s), until.reported_s.max(at_s));
    let (from_ms, to_ms, reported_ms) = ((at_s * 1e3) as u64, (end * 1e3) as u64, (reported * 1e3) as u64);
    let stayed = trace.workers.iter().filter(|(worker, _)| !out.contains_key(worker));
    let stall = stayed
        .map(|(worker, completions)| {
            let to_ms = if until.leaving.contains(worker) { reported_ms } else { to_ms };
            (completions.longest_stall_between(from_ms, to_ms), worker)
        })
        .max_by_key(|(stall, _)| *stall);
    let mut fleet = loadline_measure::stall::Completions::default();
    trace.workers.values().for_each(|completions| fleet.merge(completions));
    let of_span = |from: f64, to: f64| stretch(trace, from, to, baseline);
    let is_return = fault.what == loadline_target::FaultKind::Return;
    let resync_ends = redundant_s.map_or(reported, |redundant| at_s + redundant).min(reported);
    let resync = is_return.then(|| of_span(at_s.floor(), resync_ends.ceil().min(reported))).flatten();
    // A second in which it was still returning, or a worker was out, does not count as afterwards.
    let known = match is_return {
        true => redundant_s.map(|redundant| at_s + redundant),
        false => Some(at_s + detected_s.unwrap_or(0.0)),
    };
    let settled = known.map(|known| out.values().copied().fold(known, f64::max)).filter(|at| *at < reported);
    let plateau = settled.and_then(|settled| of_span(settled + (reported - settled) / 2.0, reported));
    let plateau_after_s = plateau.as_ref().and_then(|plateau| {
        let level = REACHED * plateau.iops;
        let reached = |second: i64| trace.seconds.get(&second).is_some_and(|one| one.ios as f64 >= level);
        // One second alone may be chance, and the first one may be from before.
        let second =
            (at_s.ceil() as i64..reported as i64).find(|second| reached(*second) && reached(second + 1))?;
        Some(second as f64 - at_s)
    });
    // A second belongs to the event in which it began.
    let seconds = at_s.floor() as i64..(end.floor() as i64).max(at_s.floor() as i64);
    let errors = trace.seconds.range(seconds).map(|(_, second)| second.errors);
    Event {
        fault,
        planned_s,
        at_s,
        took_s,
        failed,
        detected_s,
        stall_ms: stall.map(|(stall, _)| stall),
        stalled: stall.filter(|(stall, _)| *stall > 0).map(|(_, worker)| worker.clone()),
        fleet_stall_ms: fleet.longest_stall_between(from_ms, to_ms),
        errors: errors.sum(),
        moved,
        migrated,
        by_hand,
        resync_bytes,
        redundant_s,
        resync,
        plateau,
        plateau_after_s,
    }
}

/// The whole seconds between two moments; `None` if there is none.
fn stretch(trace: &Trace, from: f64, to: f64, baseline: Option<&Stretch>) -> Option<Stretch> {
    let (from, to) = (from.max(0.0).ceil() as u64, to.max(0.0).floor() as u64);
    let seconds = to.checked_sub(from).filter(|seconds| *seconds > 0)?;
    let mut response = LatencyHistogram::new();
    let (mut ios, mut bytes) = (0u64, 0u64);
    for (_, second) in trace.seconds.range(from as i64..to as i64) {
        response.merge(&second.response());
        (ios, bytes) = (ios.saturating_add(second.ios), bytes.saturating_add(second.bytes));
    }
    let latency_us = LatencySummary::of(&response);
    let parts = |from: u64, to: u64| parts(trace, from, to);
    let iops_ratio = baseline.and_then(|base| ratio(&parts(base.from_s, base.to_s), &parts(from, to)));
    let p99_ratio = baseline.and_then(|base| Some(latency_us.p99? / base.latency_us.p99?));
    Some(Stretch {
        from_s: from,
        to_s: to,
        iops: ios as f64 / seconds as f64,
        bytes_per_s: bytes as f64 / seconds as f64,
        latency_us,
        iops_ratio,
        p99_ratio,
    })
}

/// The IOPS of up to [`PARTS`] equal parts.
fn parts(trace: &Trace, from: u64, to: u64) -> Vec<f64> {
    let seconds = (to - from) as usize;
    let count = seconds.min(PARTS);
    let bound = |part: usize| from + (part * seconds / count) as u64;
    let iops = |part: usize| {
        let (begin, end) = (bound(part), bound(part + 1));
        let ios: u64 = trace.seconds.range(begin as i64..end as i64).map(|(_, second)| second.ios).sum();
        ios as f64 / (end - begin) as f64
    };
    (0..count).map(iops).collect()
}

#[cfg(test)]
mod tests {
    use loadline_base::clock::Nanos as Time;
    use loadline_measure::interval::{Interval, Phase};
    use loadline_target::FaultKind;

    use super::*;

    const MS: u64 = 1_000_000;

    /// A worker that completes `iops` reads of `us` microseconds in a second, evenly, in those milliseconds of it.
    fn second(trace: &mut Trace, worker: &str, at: i64, iops: u64, us: u64, millis: std::ops::Range<u64>) {
        let mut interval = Interval::new(at, Phase::Measure, 0);
        interval.read.response.record_many(Time(us * 1_000), iops);
        interval.read.bytes = iops * 4096;
        millis.for_each(|ms| interval.completions.set(Time(ms * MS)));
        trace.add(&WorkerId(worker.into()), &interval.encode());
    }

    fn happened(what: FaultKind, at_s: f64) -> DoneFault {
        DoneFault {
            fault: Fault::of(what, "b"),
            planned_s: at_s.floor(),
            at_s,
            took_s: 0.01,
            failed: None,
            detected_s: None,
            moved: Vec::new(),
            migrated: Vec::new(),
            by_hand: false,
            resync_bytes: None,
            redundant_s: None,
        }
    }

    /// Ten seconds of two workers, 10,000 reads of 100 us each; then b is gone with its node, and a stalls for 0.6 s, is back at
    /// once, slower; b goes on elsewhere from 12.5 s on; at 20 s the node is back, and every copy at 24 s.
    fn story() -> Timeline {
        let mut trace = Trace::default();
        for at in 0..40 {
            let us = if (20..24).contains(&at) { 300 } else { 100 };
            let a = if at == 10 { 400..1000 } else { 0..1000 };
            let iops = if !(10..24).contains(&at) { 10_000 } else { 8_000 };
            // It stalls from 9.8 s on; what is before the fault is none of it.
            second(&mut trace, "a", at, iops, us, if at == 9 { 0..800 } else { a });
            match at {
                0..10 | 13.. => second(&mut trace, "b", at, iops, us, 0..1000),
                12 => second(&mut trace, "b", at, 4_000, us, 500..1000),
                _ => {}
            }
        }
        let moved = |worker: &str| Moved {
            worker: WorkerId(worker.into()),
            to: vec!["a".into()],
            started_s: Some(2.25),
            out_s: None,
        };
        let kill =
            DoneFault { moved: vec![moved("b")], detected_s: Some(0.5), ..happened(FaultKind::Kill, 10.0) };
        let back =
            DoneFault { redundant_s: Some(4.0), resync_bytes: Some(5), ..happened(FaultKind::Return, 20.0) };
        Timeline::of(&trace, vec![kill, back], 40)
    }

    #[test]
    fn each_part_of_the_story_has_its_figures() {
        let Timeline { baseline, events } = story();
        let baseline = baseline.unwrap();
        assert_eq!(
            (baseline.from_s, baseline.to_s, baseline.iops),
            (0, 9, 20_000.0),
            "what b did last it did not tell"
        );
        let [kill, back] = &events[..] else { panic!("{events:?}") };
        assert_eq!(
            (kill.stall_ms, kill.stalled.as_ref().unwrap().0.as_str()),
            (Some(400), "a"),
            "from the fault on"
        );
        assert_eq!(kill.moved[0].out_s, Some(2.5));
        let plateau = kill.plateau.as_ref().unwrap();
        assert_eq!(
            (plateau.from_s, plateau.to_s, plateau.iops),
            (17, 20, 16_000.0),
            "the later half of 12.5 to 20"
        );
        assert_eq!(kill.plateau_after_s, Some(3.0), "from second 13 on");
        assert!((plateau.iops_ratio.unwrap().estimate - 0.8).abs() < 1e-9);
        let resync = back.resync.as_ref().unwrap();
        assert_eq!((resync.from_s, resync.to_s, resync.p99_ratio.map(f64::round)), (20, 24, Some(3.0)));
        let plateau = back.plateau.as_ref().unwrap();
        assert_eq!((plateau.from_s, plateau.to_s, plateau.iops), (32, 40, 20_000.0));
        let ratio = plateau.iops_ratio.unwrap();
        assert_eq!((ratio.estimate, ratio.low, ratio.high), (1.0, Some(1.0), Some(1.0)));
    }

    #[test]
    fn what_a_worker_had_not_told_when_it_was_killed_is_no_stall_and_no_lower_level() {
        let mut trace = Trace::default();
        for at in 0..30 {
            second(&mut trace, "a", at, 10_000, 100, 0..1000);
            // It was killed at 20.02 s, and has reported the seconds to 18.
            if at < 19 {
                second(&mut trace, "b", at, 10_000, 100, 0..1000);
            }
        }
        let gone = Moved { worker: WorkerId("b".into()), to: Vec::new(), started_s: None, out_s: None };
        let slow = happened(FaultKind::Cut, 10.0);
        let kill = DoneFault { moved: vec![gone], ..happened(FaultKind::Kill, 20.02) };
        let Timeline { events, .. } = Timeline::of(&trace, vec![slow, kill], 30);
        assert_eq!((events[0].stall_ms, events[1].stall_ms), (Some(0), Some(0)), "{events:?}");
        let plateau = events[0].plateau.as_ref().unwrap();
        assert_eq!((plateau.from_s, plateau.to_s, plateau.iops), (15, 19, 20_000.0));
    }

    #[test]
    fn what_was_done_after_the_window_was_not_done_in_it() {
        let mut trace = Trace::default();
        (0..6).for_each(|at| second(&mut trace, "a", at, 1000, 100, 0..1000));
        let late = happened(FaultKind::Kill, 9.5);
        let Timeline { baseline, events } = Timeline::of(&trace, vec![late], 6);
        assert_eq!(baseline.unwrap().to_s, 6, "nothing was done in it");
        assert!(events[0].failed.as_ref().unwrap().contains("after the window"), "{events:?}");
    }

    #[test]
    fn a_worker_that_has_come_back_is_judged_again_and_where_none_stayed_there_is_no_stall() {
        let mut trace = Trace::default();
        for at in 0..40 {
            if !(10..13).contains(&at) {
                // It stalls for 0.7 s when the node comes back.
                let millis = if at == 20 { 700..1000 } else { 0..1000 };
                second(&mut trace, "b", at, 10_000, 100, millis);
            }
        }
        let moved = Moved { worker: WorkerId("b".into()), to: Vec::new(), started_s: Some(2.9), out_s: None };
        let kill = DoneFault { moved: vec![moved], ..happened(FaultKind::Kill, 10.0) };
        let back = happened(FaultKind::Return, 20.0);
        let Timeline { events, .. } = Timeline::of(&trace, vec![kill, back], 40);
        assert_eq!((events[0].stall_ms, events[1].stall_ms), (None, Some(700)), "{events:?}");
        assert_eq!(events[0].moved[0].out_s, Some(3.0));
    }

    #[test]
    fn what_did_not_come_to_an_end_has_no_figure() {
        let mut trace = Trace::default();
        (0..6).for_each(|at| second(&mut trace, "a", at, 1000, 100, 0..1000));
        let gone = Moved { worker: WorkerId("b".into()), to: Vec::new(), started_s: None, out_s: None };
        let kill = DoneFault { moved: vec![gone], ..happened(FaultKind::Kill, 0.5) };
        let back = happened(FaultKind::Return, 4.5);
        let Timeline { baseline, events } = Timeline::of(&trace, vec![kill, back], 6);
        assert_eq!(baseline, None, "no whole second before it");
        assert_eq!(events[0].moved[0].out_s, None);
        assert_eq!((events[1].redundant_s, &events[1].plateau), (None, &None));
        assert!(events[1].resync.is_some());
    }
}
