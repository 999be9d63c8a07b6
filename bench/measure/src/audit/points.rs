//! The audit of points that any tool states: what can be checked of figures alone, without their histograms.

use std::collections::BTreeMap;

use loadline_base::figures::{latency, listed, thousands};

use super::{Finding, FindingKind, LITTLE_TOLERANCE, Severity, is_carried};
use crate::point::{LatencyOf, Point, Stated};

/// IOPS × block size and throughput are two roundings of one count.
const THROUGHPUT_TOLERANCE: f64 = 0.01;
/// A stated percentage of the ceiling may be off by its own rounding and this share.
const PERCENT_TOLERANCE: f64 = 0.0005;
/// What a generator needs between an I/O that has completed and the next one in its place, microseconds. fio 3 takes 0.6 to 0.9, which
/// shows where storage answers in a few and one or two are outstanding.
const OWN_US: f64 = 1.0;
/// So many points of a group are named.
const MOST_NAMED: usize = 12;

/// What is wrong with one point.
struct Fault {
    kind: FindingKind,
    severity: Severity,
    /// What the fault is of: a load's name, or empty if it is the whole source's.
    of: String,
    /// Faults of one kind and one load that are told apart by this are several findings.
    variant: &'static str,
    expected: String,
    /// What was found, of this point alone.
    found: String,
    /// How bad, to choose the worst of a group: 0 is as it should be.
    badness: f64,
    cause: &'static str,
}

/// Faults of one kind, of one load, of one variant are one finding.
type Key = (FindingKind, String, &'static str);

/// The findings of points of one source. The same fault of several points is one finding, which names them and quotes
/// the worst.
pub fn audit(points: &[Point]) -> Vec<Finding> {
    let mut groups: BTreeMap<Key, Vec<(&Point, Fault)>> = BTreeMap::new();
    for point in points {
        for fault in faults(point) {
            groups.entry((fault.kind, fault.of.clone(), fault.variant)).or_default().push((point, fault));
        }
    }
    let mut totals: BTreeMap<&str, usize> = BTreeMap::new();
    points.iter().for_each(|point| *totals.entry(&point.profile).or_default() += 1);
    let mut findings: Vec<Finding> = groups
        .into_iter()
        .map(|((_, of, _), faults)| {
            gathered(&faults, totals.get(of.as_str()).copied().unwrap_or(points.len()))
        })
        .collect();
    findings.extend(two_variables(points));
    findings
}

/// What a point is of.
fn name(point: &Point) -> String {
    point.profile.clone()
}

/// Which point of its load it is.
fn which(point: &Point) -> String {
    let which = match (point.workers, point.repeat) {
        (Some(1), _) => "1 worker".into(),
        (Some(workers), _) => format!("{workers} workers"),
        (None, repeat) if repeat > 1 => format!("repeat {repeat}"),
        _ => point.place.clone(),
    };
    match &point.condition {
        Some(condition) => format!("{condition}, {which}"),
        None => which,
    }
}

fn gathered(faults: &[(&Point, Fault)], total: usize) -> Finding {
    let worst = faults.iter().max_by(|a, b| a.1.badness.total_cmp(&b.1.badness)).unwrap_or(&faults[0]);
    let (point, fault) = worst;
    let found = match faults.len() {
        1 => format!("at {}: {}", which(point), fault.found),
        all if all == total => {
            format!("none of {total} points so; farthest at {}: {}", which(point), fault.found)
        }
        some => {
            let points: Vec<&Point> = faults.iter().map(|(point, _)| *point).collect();
            format!(
                "{some} of {total} points otherwise ({}); farthest at {}: {}",
                these(&points),
                which(point),
                fault.found
            )
        }
    };
    Finding {
        severity: fault.severity,
        kind: fault.kind,
        expected: fault.expected.clone(),
        found,
        cause: fault.cause.into(),
    }
}

/// Which points they are: `4 to 9, 12 workers` where workers tell them apart.
fn these(points: &[&Point]) -> String {
    let plain = |point: &&Point| point.workers.filter(|_| point.condition.is_none());
    let workers: Option<Vec<u32>> = points.iter().map(plain).collect();
    let mut workers = workers.unwrap_or_default();
    workers.sort_unstable();
    let distinct = workers.windows(2).all(|pair| pair[0] < pair[1]);
    if workers.is_empty() || !distinct {
        return listed(&points.iter().map(|point| which(point)).collect::<Vec<_>>(), MOST_NAMED);
    }
    let runs: Vec<String> = workers
        .chunk_by(|a, b| a.saturating_add(1) == *b)
        .map(|run| match run {
            [one] => one.to_string(),
            [one, other] => format!("{one}, {other}"),
            [first, .., last] => format!("{first} to {last}"),
            [] => String::new(),
        })
        .collect();
    format!("{} workers", listed(&runs, MOST_NAMED))
}

fn faults(point: &Point) -> Vec<Fault> {
    let checks = [nothing, little, throughput, order, ceiling, stated_percent, rate, errors, lost];
    checks.into_iter().filter_map(|check| check(point)).collect()
}

fn doubt(kind: FindingKind, point: &Point, expected: String, found: String, cause: &'static str) -> Fault {
    let severity = Severity::Doubt;
    Fault { kind, severity, of: name(point), variant: "", expected, found, badness: 0.0, cause }
}

fn nothing(point: &Point) -> Option<Fault> {
    let zero = point.iops.is_some_and(|iops| iops.value == 0.0);
    zero.then(|| {
        let expected = format!("{}: I/Os that complete", name(point));
        let cause = "Nothing ran, or the storage failed every request: this point has no meaning.";
        doubt(FindingKind::NothingMeasured, point, expected, "none".into(), cause)
    })
}

/// Little's law. Several workers' means averaged without weights raise the product, by the ratio of the arithmetic to
/// the harmonic mean, and can never lower it.
fn little(point: &Point) -> Option<Fault> {
    let writes = point.write_percent;
    let of_all = match point.latency_of {
        LatencyOf::All => true,
        LatencyOf::Read => writes == Some(0.0),
        LatencyOf::Write => writes == Some(100.0),
    };
    let outstanding = point.outstanding.filter(|o| of_all && *o > 0.0 && point.rate_iops.is_none())?;
    let (iops, mean) = (point.iops?, point.mean_us?);
    if point.errors > 0 || point.lost_workers > 0 || iops.value == 0.0 {
        return None;
    }
    let product = iops.value * mean.value / 1e6;
    let rounding = (1.0 + iops.rounding()) * (1.0 + mean.rounding()) - 1.0;
    // With few I/Os the ones at the window's edges weigh in: at most one round of all outstanding.
    let edges = point.window_s.map_or(0.0, |window| outstanding / (iops.value * window));
    let off = product / outstanding - 1.0;
    // What the generator itself takes for each I/O, nothing of it is outstanding.
    let own = iops.value * OWN_US / 1e6 / outstanding;
    let off = if off < 0.0 { (off + own).min(0.0) } else { off };
    if off.abs() <= LITTLE_TOLERANCE.max(edges) + rounding {
        return None;
    }
    let many = point.workers.is_none_or(|workers| workers > 1) || point.averaged;
    let (direction, variant, cause) = match (off > 0.0, many) {
        (false, _) => (
            "less",
            "less",
            "That many were not outstanding: workers that ended early or did not all count, fewer threads or a lower \
             depth than stated, or a generator or a limit that held them back. Or latency was not measured where the \
             I/O was issued. Averaging over workers cannot explain it: that only raises the product.",
        ),
        (true, true) => (
            "more",
            "more, of several",
            "Usually the workers' mean latencies were averaged without weights, which counts the slow ones, that did \
             few I/Os, as much as the fast: the true mean is then outstanding ÷ IOPS. Or more was outstanding than is \
             stated.",
        ),
        (true, false) => (
            "more",
            "more, of one",
            "More was outstanding than is stated, or latency and IOPS are not of the same I/Os or the same time. One \
             worker has no average over workers that could explain it.",
        ),
    };
    let several = point.workers.filter(|workers| *workers > 1).map(f64::from);
    let expected = match several {
        Some(workers) => format!("what was outstanding, {} by each worker", thousands(outstanding / workers)),
        None => format!("the {} outstanding", thousands(outstanding)),
    };
    let kept = match several.filter(|_| off < 0.0) {
        Some(workers) => format!(", what {:.1} of {workers} workers keep", product / outstanding * workers),
        None => String::new(),
    };
    let fault = doubt(
        FindingKind::LittlesLaw,
        point,
        format!("{}: IOPS × mean latency to be {expected} (Little's law)", name(point)),
        format!(
            "{} × {} = {}, for {} outstanding ({:.0} % {direction}{kept})",
            thousands(iops.value),
            latency(mean.value),
            thousands(product),
            thousands(outstanding),
            100.0 * off.abs()
        ),
        cause,
    );
    Some(Fault { variant, badness: off.abs(), ..fault })
}

fn throughput(point: &Point) -> Option<Fault> {
    let (iops, stated, block) = (point.iops?, point.throughput.as_ref()?, point.block_bytes?);
    let computed = iops.value * block;
    let tolerance = THROUGHPUT_TOLERANCE + iops.rounding() + stated.bytes_per_s.rounding();
    let off = |unit_bytes: f64| {
        let value = stated.bytes_per_s.value / stated.unit_bytes * unit_bytes;
        if value > 0.0 { computed / value - 1.0 } else { f64::INFINITY }
    };
    if off(stated.unit_bytes).abs() <= tolerance || (computed == 0.0 && stated.bytes_per_s.value == 0.0) {
        return None;
    }
    let binary = [("kB/s", "KiB/s", 10), ("MB/s", "MiB/s", 20), ("GB/s", "GiB/s", 30)]
        .into_iter()
        .find(|(_, _, shift)| stated.unit_bytes == 10f64.powi(shift / 10 * 3))
        .filter(|(_, _, shift)| off(f64::from(1u32 << shift)).abs() <= tolerance);
    let found = format!(
        "{} × {} B = {:.4e} B/s, against {} {}",
        thousands(iops.value),
        thousands(block),
        computed,
        thousands(stated.bytes_per_s.value / stated.unit_bytes),
        stated.unit
    );
    if let Some((_, meant, _)) = binary {
        return Some(Fault {
            kind: FindingKind::Throughput,
            severity: Severity::Note,
            // A slip of the unit is one of the whole source.
            of: String::new(),
            variant: "",
            expected: format!("IOPS × block size to be the throughput in {}", stated.unit),
            found: format!("{found}: it is {meant}"),
            badness: 0.0,
            cause: "The unit is written decimal and counted binary, as many tools do.",
        });
    }
    let fault = doubt(
        FindingKind::Throughput,
        point,
        format!("{}: IOPS × block size to be the throughput", name(point)),
        found,
        "The block size differs from the stated one, or IOPS and throughput are of different times or directions.",
    );
    Some(Fault { badness: off(stated.unit_bytes).abs(), ..fault })
}

fn order(point: &Point) -> Option<Fault> {
    let mut known: Vec<(String, f64, f64)> = Vec::new();
    let mut add = |name: String, stated: Option<Stated>| {
        known.extend(stated.map(|stated| (name, stated.value, stated.half_digit)));
    };
    add("minimum".into(), point.min_us);
    let mut percentiles = point.percentiles_us.clone();
    percentiles.sort_by(|a, b| a.0.total_cmp(&b.0));
    percentiles.into_iter().for_each(|(percent, stated)| add(format!("p{percent}"), Some(stated)));
    add("maximum".into(), point.max_us);
    let falls = known.windows(2).find(|w| w[0].1 - w[0].2 > w[1].1 + w[1].2);
    let found = match (falls, point.mean_us, point.min_us, point.max_us) {
        (Some(pair), ..) => {
            format!("{} of {} before {} of {}", pair[0].0, latency(pair[0].1), pair[1].0, latency(pair[1].1))
        }
        (None, Some(mean), Some(min), _) if mean.value + mean.half_digit < min.value - min.half_digit => {
            format!("a mean of {} under a minimum of {}", latency(mean.value), latency(min.value))
        }
        (None, Some(mean), _, Some(max)) if mean.value - mean.half_digit > max.value + max.half_digit => {
            format!("a mean of {} over a maximum of {}", latency(mean.value), latency(max.value))
        }
        _ => return None,
    };
    let expected = format!(
        "{}: latencies to rise from minimum over the percentiles to maximum, the mean between",
        name(point)
    );
    let cause =
        "The figures were not taken from one histogram: averaged over workers, or of different times.";
    Some(doubt(FindingKind::Order, point, expected, found, cause))
}

/// What a point is of its ceiling (1 is all of it), in I/Os or bytes a second.
pub fn share_of_ceiling(point: &Point) -> Option<f64> {
    let share = |value: f64, ceiling: Option<Stated>| {
        ceiling.filter(|ceiling| ceiling.value > 0.0).map(|ceiling| value / ceiling.value)
    };
    let by_iops = point.iops.and_then(|iops| share(iops.value, point.ceiling_iops));
    let by_bytes =
        point.throughput.as_ref().and_then(|t| share(t.bytes_per_s.value, point.ceiling_bytes_per_s));
    by_iops.into_iter().chain(by_bytes).reduce(f64::max)
}

fn ceiling(point: &Point) -> Option<Fault> {
    let share = share_of_ceiling(point).filter(|share| *share > 1.0)?;
    let expected = format!("{}: no more than the ceiling", name(point));
    let cause = "Something answers that the ceiling does not count: a cache in memory (of the storage, the hypervisor or \
                 the guest), blocks that were never written, data that compress or repeat, or a ceiling that is too low.";
    let fault = doubt(FindingKind::Ceiling, point, expected, format!("{:.1} % of it", 100.0 * share), cause);
    Some(Fault { badness: share, ..fault })
}

fn stated_percent(point: &Point) -> Option<Fault> {
    let (share, stated) = (share_of_ceiling(point)?, point.stated_percent?);
    let percent = 100.0 * share;
    let off = (percent - stated.value).abs();
    (off > stated.half_digit + PERCENT_TOLERANCE * percent).then(|| Fault {
        kind: FindingKind::Ceiling,
        severity: Severity::Note,
        of: name(point),
        variant: "percent",
        expected: format!("{}: the stated {} % of the ceiling", name(point), stated.value),
        found: format!("{percent:.2} %, computed from the figures beside it"),
        badness: off,
        cause: "The stated share is rounded down, or was computed from figures other than the printed ones.",
    })
}

/// Whether what was offered was carried; a closed loop offers nothing.
pub fn carried(point: &Point) -> bool {
    let (Some(rate), Some(iops)) = (point.rate_iops, point.iops) else { return true };
    // How the I/Os of another's load arrive is not known: at random, they would vary most.
    let window_s = point.window_s.unwrap_or(f64::INFINITY).min(1e9);
    is_carried((iops.value + iops.half_digit) * window_s, rate * window_s, true)
}

fn rate(point: &Point) -> Option<Fault> {
    let (offered, iops) = (point.rate_iops?, point.iops?);
    (!carried(point)).then(|| {
        let expected = format!("{}: {} I/Os a second, as offered", name(point), thousands(offered));
        let cause = "The storage does not carry this rate; latencies then grow with the length of the run.";
        let found = format!("{} completed", thousands(iops.value));
        let badness = 1.0 - iops.value / offered;
        Fault { badness, ..doubt(FindingKind::RateNotMet, point, expected, found, cause) }
    })
}

fn errors(point: &Point) -> Option<Fault> {
    (point.errors > 0).then(|| {
        let expected = format!("{}: no errors", name(point));
        let cause = "Failed I/Os are fast, and the storage did not carry them: check the device's log.";
        let found = match point.errors {
            1 => "1 I/O failed".into(),
            errors => format!("{} I/Os failed", thousands(errors as f64)),
        };
        Fault { badness: point.errors as f64, ..doubt(FindingKind::Errors, point, expected, found, cause) }
    })
}

fn lost(point: &Point) -> Option<Fault> {
    (point.lost_workers > 0).then(|| {
        let expected = format!("{}: every worker to measure to the end", name(point));
        let cause = "The remaining workers then had the storage to themselves, so their figures are of a smaller load.";
        let found = format!("{} did not", point.lost_workers);
        let badness = f64::from(point.lost_workers);
        Fault { badness, ..doubt(FindingKind::LostWorkers, point, expected, found, cause) }
    })
}

/// Conditions that are put side by side should differ in one thing. With fewer nodes and the same number of workers,
/// each node also carries more of them.
fn two_variables(points: &[Point]) -> Vec<Finding> {
    let mut by_profile: BTreeMap<&str, Vec<&Point>> = BTreeMap::new();
    for point in points.iter().filter(|p| p.condition.is_some() && p.nodes.is_some() && p.workers.is_some()) {
        by_profile.entry(&point.profile).or_default().push(point);
    }
    let mut each: BTreeMap<Vec<(u32, u32)>, Vec<&str>> = BTreeMap::new();
    for (profile, points) in by_profile {
        let mut seen: Vec<(u32, u32)> = points
            .iter()
            .filter_map(|p| Some((p.nodes?, p.workers?)))
            .filter(|(nodes, _)| *nodes > 0)
            .collect();
        seen.sort_by(|a, b| b.cmp(a));
        seen.dedup();
        // Only where the nodes differ, and the workers on each of them with them, at one number of workers.
        let mut nodes_with: BTreeMap<u32, usize> = BTreeMap::new();
        seen.iter().for_each(|(_, workers)| *nodes_with.entry(*workers).or_default() += 1);
        let pairs: Vec<(u32, u32)> = seen.iter().copied().filter(|(_, w)| nodes_with[w] > 1).collect();
        if !pairs.is_empty() {
            each.entry(pairs).or_default().push(profile);
        }
    }
    each.into_iter()
        .map(|(pairs, profiles)| {
            let shown: Vec<String> = pairs
                .iter()
                .map(|(nodes, workers)| {
                    format!("{nodes} nodes with {} workers each", thousands(f64::from(*workers) / f64::from(*nodes)))
                })
                .collect();
            Finding::doubt(
                FindingKind::TwoVariables,
                format!("{}: conditions that differ in the nodes alone", listed(&profiles, MOST_NAMED)),
                listed(&shown, MOST_NAMED),
                "Both the storage and the load on each node changed: what a lost node costs cannot be told from what \
                 more workers a node bring. Hold the workers of a node constant in one series.",
            )
        })
        .collect()
}
