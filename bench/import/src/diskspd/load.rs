//! The load of a time span of DISKSPD, as a result's profile or its text states it.
//!
//! Outstanding are, summed over the targets, `RequestCount` (2 by default) × `ThreadsPerFile` (1 by default). Where
//! the time span itself has a `ThreadCount` (`-F`), each of those threads serves every target: then it is the sum of
//! the targets' `RequestCount` × `ThreadCount`, or with a `RequestCount` of the time span (`-O`), which counts for all
//! targets of a thread together, that × `ThreadCount`. `Throughput` (`-g`) counts for each thread and target, in bytes
//! a millisecond or with `unit="IOPS"`; with it, or with `ThinkTime`, the load is no closed loop.

use loadline_base::units::ByteSize;
use loadline_measure::audit::{Finding, FindingKind};
use loadline_measure::point::Point;
use loadline_profile::{Pattern, Profile};
use roxmltree::Node;

use crate::ImportError;
use crate::curves::Alike;
use crate::numbers::is_figure;
use crate::text::counted;
use crate::xml::{child, children, number_in, place, text_in, whole_in};

/// One target.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Target {
    /// Bytes of each I/O, above 0.
    pub(super) block: f64,
    /// I/Os that each thread keeps outstanding on it.
    pub(super) requests: f64,
    /// Threads of its own.
    pub(super) threads: f64,
    /// 0 to 100.
    pub(super) write_percent: f64,
    /// `None` if no name states it.
    pub(super) pattern: Option<Pattern>,
    /// Offered to it, I/Os a second of each thread.
    pub(super) rate: Option<f64>,
    pub(super) thinks: bool,
}

/// What a time span asks for.
#[derive(Debug, Clone, Default)]
pub(super) struct Span {
    pub(super) targets: Vec<Target>,
    /// Threads that serve every target (`-F`).
    pub(super) fixed: Option<f64>,
    /// I/Os outstanding on all targets of a thread together (`-O`).
    pub(super) shared: Option<f64>,
    /// Everything that is stated of it but depth, rate, times and the seed: what it shares with others of its curve.
    pub(super) stated: String,
}

/// Reads what a time span of a profile asks for.
pub(super) fn span(file: &str, span: Node) -> Result<Span, ImportError> {
    let targets = child(span, "Targets").into_iter().flat_map(|targets| children(targets, "Target"));
    Ok(Span {
        targets: targets.map(|target| read(file, target)).collect::<Result<_, _>>()?,
        fixed: number_in(file, span, "ThreadCount")?.filter(|threads| *threads > 0.0),
        shared: number_in(file, span, "RequestCount")?.filter(|requests| *requests > 0.0),
        stated: stated(span),
    })
}

/// Elements that say how much of a load there is, and when.
const NOT_THE_LOAD: [&str; 7] =
    ["RequestCount", "Throughput", "Duration", "Warmup", "Cooldown", "RandSeed", "IoBucketDuration"];

fn stated(span: Node) -> String {
    let leaves =
        span.descendants().filter(|node| node.is_element() && !node.children().any(|c| c.is_element()));
    let leaves = leaves.filter(|leaf| !NOT_THE_LOAD.contains(&leaf.tag_name().name()));
    let pair = |leaf: Node| format!("{}={}", leaf.tag_name().name(), leaf.text().unwrap_or_default().trim());
    leaves.map(pair).collect::<Vec<_>>().join("\x1f")
}

/// A point that states a load, and what it shares with others of its curve. `place` is where the load is stated.
pub(super) fn point(span: &Span, place: &str, findings: &mut Vec<Finding>) -> (Point, Option<Alike>) {
    let Span { targets, fixed, shared, stated } = span;
    let mut point = Point { place: place.to_string(), workers: Some(1), ..Point::default() };
    let Some(first) = targets.first() else { return (point, None) };
    let same = |of: fn(&Target) -> f64| targets.iter().all(|t| of(t) == of(first)).then(|| of(first));
    point.block_bytes = same(|target| target.block);
    point.write_percent = same(|target| target.write_percent);
    let sum = |of: &dyn Fn(&Target) -> f64| targets.iter().map(of).sum::<f64>();
    let threads = |target: &Target| fixed.unwrap_or(target.threads);
    let outstanding = match (*fixed, *shared) {
        (Some(threads), Some(requests)) => threads * requests,
        _ => sum(&|target| target.requests * threads(target)),
    };
    let limited = targets.iter().filter(|target| target.rate.is_some()).count();
    if limited == targets.len() {
        let rate = sum(&|target| target.rate.unwrap_or(0.0) * threads(target));
        point.rate_iops = Some(rate).filter(|rate| is_figure(*rate) && *rate > 0.0);
    } else if limited == 0 && !targets.iter().any(|target| target.thinks) {
        point.outstanding = Some(outstanding).filter(|sum| is_figure(*sum) && *sum > 0.0);
    }
    let named = named(targets, *fixed, *shared);
    point.profile = named.as_ref().and_then(Profile::name).unwrap_or_else(|| {
        let block = point.block_bytes.map_or("mixed blocks".into(), |b| format!("{} KiB", b / 1024.0));
        let writes =
            point.write_percent.map_or("mixed writes".into(), |percent| format!("{percent} % writes"));
        let mut name = format!("{block}, {writes}, {}", counted(targets.len(), "target", "targets"));
        if point.outstanding.is_none() && point.rate_iops.is_none() {
            // Nothing else distinguishes their depths, and other depths are no repeats.
            name.push_str(&format!(", at most {outstanding} outstanding"));
        }
        name
    });
    if point.block_bytes.is_none()
        || point.write_percent.is_none()
        || (limited > 0 && limited < targets.len())
    {
        findings.push(Finding::note(
            FindingKind::Adjusted,
            "targets of one load",
            format!("targets with different block sizes, shares of writes or limits in {place}"),
            "They are one point; what differs is not stated of it.",
        ));
    }
    let alike = named.map(|profile| Alike {
        key: format!("{} {} {} {stated}", profile.family(), profile.threads, limited > 0),
        label: profile.family(),
    });
    (point, alike)
}

fn read(file: &str, target: Node) -> Result<Target, ImportError> {
    let of = |name: &str, unless_said: f64| number_in(file, target, name).map(|n| n.unwrap_or(unless_said));
    let wrong = |problem: String| {
        let advice = "give the XML as DISKSPD takes it or wrote it";
        ImportError::new(place(file, target), problem, advice)
    };
    let block = of("BlockSize", 65536.0)?;
    if block < 1.0 {
        return Err(wrong(format!("a <BlockSize> of {block}")));
    }
    let write_percent = of("WriteRatio", 0.0)?;
    if write_percent > 100.0 {
        return Err(wrong(format!("a <WriteRatio> of {write_percent} %")));
    }
    let random = text_in(target, "Random").is_some() && number_in(file, target, "Random")? != Some(0.0);
    let share = whole_in(file, target, "RandomRatio")?.unwrap_or(100);
    let pattern = match (random, u8::try_from(share).ok()) {
        (true, Some(share)) if share < 100 => Pattern::Mixed { random_percent: share },
        (true, _) => Pattern::Random,
        _ if text_in(target, "InterlockedSequential") == Some("true") => Pattern::SequentialInterleaved,
        _ => Pattern::Sequential,
    };
    let pattern = Some(pattern);
    let limit = of("Throughput", 0.0)?;
    let in_iops = child(target, "Throughput").and_then(|limit| limit.attribute("unit"));
    let rate = match in_iops {
        Some(unit) if unit.eq_ignore_ascii_case("iops") => limit,
        _ => limit * 1e3 / block,
    };
    Ok(Target {
        block,
        requests: of("RequestCount", 2.0)?,
        threads: of("ThreadsPerFile", 1.0)?,
        write_percent,
        pattern,
        rate: Some(rate).filter(|rate| *rate > 0.0),
        thinks: of("ThinkTime", 0.0)? > 0.0,
    })
}

/// The load as a profile, if all targets have the same and a name states it.
fn named(targets: &[Target], fixed: Option<f64>, shared: Option<f64>) -> Option<Profile> {
    let first = targets.first().filter(|first| targets.iter().all(|target| target == *first))?;
    if shared.is_some() || first.rate.is_some() || first.thinks {
        return None;
    }
    let count = |value: f64| (value.fract() == 0.0 && value <= 1e9).then_some(value as u64);
    let profile = Profile {
        block_size: ByteSize(count(first.block)?),
        threads: u32::try_from(count(fixed.unwrap_or(first.threads))?).ok()?,
        outstanding: u32::try_from(count(first.requests)?).ok()?,
        write_percent: u8::try_from(count(first.write_percent)?).ok()?,
        pattern: first.pattern?,
        ..Profile::default()
    };
    profile.name().is_some().then_some(profile)
}
