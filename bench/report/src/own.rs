//! Single files that Loadline wrote, as measured points: `loadline bench --json`, and a step's `result.json`.

use std::path::Path;
use std::time::Duration;

use loadline_base::clock::Nanos;
use loadline_load::engine_alone;
use loadline_load::result::{BenchResult, FORMAT};
use loadline_measure::audit::{Finding, FindingKind};
use loadline_measure::point::{Point, SeriesPoint, Stated, Throughput};
use loadline_measure::summary::{LatencySummary, PERCENTILES};
use loadline_measure::window::{Figures, OperationFigures, Window, WindowSecond};
use loadline_profile::Profile;
use loadline_study::StudyError;
use loadline_study::folder::result::StepResult;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::orientation::Orientation;
use crate::orientation::subject;
use crate::points::point;

/// The longest window whose seconds are added up again, seconds: a day.
const LONGEST_S: f64 = 86_400.0;

/// What `loadline bench --json` writes: a result, and what it compares with.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct BenchDocument {
    /// The result.
    #[serde(flatten)]
    pub result: BenchResult,
    /// What the load compares with: orientation, not a verdict. Files of earlier versions have none.
    pub orientation: Orientation,
}

impl BenchDocument {
    /// A result with what it compares with.
    pub fn of(result: BenchResult) -> BenchDocument {
        let orientation = subject::of_bench(&result);
        BenchDocument { result, orientation }
    }
}

/// What one file holds.
#[derive(Debug, Clone)]
pub struct Own {
    /// What it is, in words.
    pub kind: &'static str,
    /// What was measured.
    pub point: Point,
    /// Everything that the result states of the load but how much of it there was, and what such a curve is called.
    /// `None` for a step, whose run is the curve.
    pub alike: Option<(String, String)>,
    /// What was found when it was measured, and what a reader should know of the file.
    pub findings: Vec<Finding>,
}

/// What is read before a file is trusted.
#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    format: Value,
    #[serde(default)]
    version: Value,
}

/// Reads a file of ours; `None` if it is none. The error is one of usage: what is wrong with the file, and what to do.
pub fn read(path: &Path, text: &str) -> Option<Result<Own, StudyError>> {
    let place = path.display();
    let fault = |what: String| Some(Err(StudyError::usage(format!("{place}: {what}"))));
    let head: Head = match serde_json::from_str(text) {
        Ok(head) => head,
        // Another tool's, or one of ours that was cut off; ours says so in its first lines.
        Err(_) if is_beginning_of_ours(text) => {
            return fault(
                "a file of Loadline that is truncated or was changed: copy it anew, or measure again".into(),
            );
        }
        Err(_) => return None,
    };
    let by = head.version.as_str().filter(|version| version.starts_with("loadline "));
    match (&head.format, by) {
        (Value::Number(format), Some(by)) => match format.as_u64() {
            Some(format) if format == u64::from(FORMAT) => Some(bench(path, text)),
            _ => fault(format!(
                "a result of {by}, in version {format} of its form; this Loadline ({}) reads version {FORMAT}: read it \
                 with the one that wrote it",
                env!("CARGO_PKG_VERSION")
            )),
        },
        (Value::String(format), _) if format == "loadline-step" => Some(step(path, text)),
        (Value::String(format), _) if format.starts_with("loadline-") => fault(format!(
            "a file of Loadline ({}) with no measured points of its own: give the run's folder, or results of \
             loadline bench --json",
            format.chars().take(40).filter(|c| !c.is_control()).collect::<String>()
        )),
        _ => None,
    }
}

/// Whether text begins as our files do.
fn is_beginning_of_ours(text: &str) -> bool {
    let begin: String = text.chars().take(200).filter(|c| !c.is_whitespace()).collect();
    begin.starts_with("{\"format\":\"loadline-") || begin.contains(",\"version\":\"loadline")
}

fn step(path: &Path, text: &str) -> Result<Own, StudyError> {
    let result = StepResult::parse(path, text.to_string())?;
    let mut findings = result.findings.clone();
    findings.push(Finding::note(
        FindingKind::Adjusted,
        "a run's folder",
        format!("step {} of the run {} alone", result.step.number, result.run_id),
        "Its folder says how many disks each worker has, and so what was outstanding in all. Give the folder to see all steps.",
    ));
    let mut point = point(&result, None);
    point.place = format!("{}, {}", path.display(), point.place);
    Ok(Own { kind: "step of a run of Loadline", point, alike: None, findings })
}

fn bench(path: &Path, text: &str) -> Result<Own, StudyError> {
    let place = path.display();
    let result: BenchResult = serde_json::from_str(text).map_err(|e| {
        StudyError::usage(format!(
            "{place}: it says that it is a result of loadline bench, and cannot be read as one ({e}): give it as it was \
             written"
        ))
    })?;
    if let Some(what) = impossible(&result.figures) {
        return Err(StudyError::usage(format!(
            "{place}: {what}, which no result has: it was changed. Give it as it was written"
        )));
    }
    let BenchResult { profile, figures, targets, .. } = &result;
    let total = &figures.total;
    let exact = |value: Option<f64>| value.map(Stated::exact);
    let percentile = |(name, beyond): &(&str, u64)| {
        let value = total.latency_us.percentile(name)?;
        Some((100.0 - *beyond as f64 / 1e4, Stated::exact(value)))
    };
    let window = again(&result);
    let series = |(second, at): (WindowSecond, u32)| SeriesPoint {
        at_s: f64::from(at),
        iops: second.iops(),
        mean_us: second.mean_us,
    };
    let each = f64::from(profile.threads) * f64::from(profile.outstanding);
    let closed = profile.rate.is_none();
    let point = Point {
        place: place.to_string(),
        profile: profile.label(),
        workers: Some(1),
        block_bytes: Some(profile.block_size.0 as f64),
        write_percent: Some(f64::from(profile.write_percent)),
        outstanding: closed.then_some(each * targets.len() as f64),
        rate_iops: profile.rate.map(|offered| offered.rate.iops(profile.block_size)),
        window_s: Some(figures.window_s),
        iops: Some(Stated::exact(total.iops)),
        throughput: Some(Throughput {
            bytes_per_s: Stated::exact(total.bytes_per_s),
            unit: "B/s".into(),
            unit_bytes: 1.0,
        }),
        mean_us: exact(total.latency_us.mean),
        min_us: exact(total.latency_us.min),
        max_us: exact(total.latency_us.max),
        percentiles_us: PERCENTILES.iter().filter_map(percentile).collect(),
        errors: figures.errors,
        series: window.iter().flat_map(Window::seconds).zip(1..).map(series).collect(),
        ..Point::default()
    };
    let changed = window.and_then(|window| changed(figures, &window.figures(), &point.place));
    let (alike, mut findings) = (alike(&result), result.findings);
    findings.extend(changed);
    Ok(Own { kind: "Loadline bench", point, alike: Some(alike), findings })
}

/// The window as its recorded seconds make it anew. `None` if it has no whole seconds, or a second cannot be read.
fn again(result: &BenchResult) -> Option<Window> {
    let length = result.figures.window_s;
    if length.fract() != 0.0 || !(1.0..=LONGEST_S).contains(&length) {
        return None;
    }
    let mut window = Window::new(Nanos::from(Duration::from_secs(length as u64)));
    for second in &result.seconds {
        window.add(&second.decode().ok()?);
    }
    Some(window)
}

/// That the figures are not what the recorded seconds add up to.
fn changed(stated: &Figures, again: &Figures, place: &str) -> Option<Finding> {
    let near = |a: f64, b: f64| (a - b).abs() <= 1e-6 * a.abs().max(b.abs());
    let same = |a: Option<f64>, b: Option<f64>| match (a, b) {
        (Some(a), Some(b)) => near(a, b),
        (a, b) => a.is_none() && b.is_none(),
    };
    let (a, b) = (&stated.total, &again.total);
    let whole = near(a.iops, b.iops)
        && near(a.bytes_per_s, b.bytes_per_s)
        && same(a.latency_us.mean, b.latency_us.mean)
        && same(a.latency_us.p99, b.latency_us.p99);
    (!whole).then(|| {
        Finding::doubt(
            FindingKind::MissingIntervals,
            format!("figures in {place} that its recorded seconds add up to: {:.1} IOPS", b.iops),
            format!("{:.1} IOPS, and other bytes or latencies than those seconds have", a.iops),
            "The file was changed, or seconds are missing from it. Give it as loadline bench wrote it.",
        )
    })
}

/// Everything but depth, rate, seed and time; and the name of such a curve.
fn alike(result: &BenchResult) -> (String, String) {
    let paced = result.profile.rate.map(|offered| offered.arrival);
    let profile = Profile { outstanding: 1, rate: None, ..result.profile.clone() };
    let load = serde_json::to_string(&profile).unwrap_or_default();
    let parts =
        (load, paced, &result.targets, engine_alone(&result.engine), &result.version, &result.inventory.host);
    (format!("{parts:?}"), result.profile.family())
}

/// A figure that a measurement cannot have come to.
fn impossible(figures: &Figures) -> Option<String> {
    let of = |latency: &LatencySummary| {
        let LatencySummary { mean, min, max, p50, p90, p95, p99, p99_9, p99_99, p99_999, deepest: _ } =
            latency;
        [*mean, *min, *max, *p50, *p90, *p95, *p99, *p99_9, *p99_99, *p99_999]
    };
    let side = |figures: &OperationFigures| {
        let mut all = vec![figures.iops, figures.bytes_per_s];
        all.extend(of(&figures.latency_us).into_iter().flatten());
        all
    };
    let mut all: Vec<f64> =
        [&figures.total, &figures.read, &figures.write].into_iter().flat_map(side).collect();
    all.push(figures.window_s);
    let bad = all.into_iter().find(|value| !(0.0..=1e18).contains(value))?;
    Some(format!("a figure of {bad}"))
}
