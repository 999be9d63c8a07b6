//! One step in the shape of fio's JSON+ (`--output-format=json+`), for the tools that plot fio's results.
//!
//! The shape is fio's: its manual ("JSON output", "JSON+ output", "Interpreting the output") and what fio 3.33 writes.
//! The figures are Loadline's. The fleet is one job, as with fio's `group_reporting`: counts are added, and percentiles
//! are of the merged histograms. What is said differently than a reader of fio's files might think:
//!
//! - `total_ios`, `io_bytes`, `iops` and `bw` are of the I/Os that *completed* in the window. Latencies are of those that
//!   were *intended* in it, however late they completed: their `N` is a few more or less than `total_ios`, and those
//!   that never completed count with their age.
//! - `lat_ns` is the response time: completed − intended. `clat_ns` is completed − issued. In a closed loop they are the
//!   same. Of a load at a rate, service times are kept of reads and writes together: they stand as `clat_ns` where
//!   only one of the two did I/O; of a mix `clat_ns` is empty (`N` is 0), because they cannot be told apart. Both have
//!   percentiles and bins, as fio writes them with `clat_percentiles=1` and `lat_percentiles=1`.
//! - `slat_ns` is empty: the time of the submission alone is not measured.
//! - A percentile is left out unless at least 100 samples lie on either side of it.
//! - Bins are fio's own, 64 to each power of two, each named by its middle. As in fio the last stands for all above 17 s.
//! - `stddev` of latencies and the shares `latency_ns`, `latency_us` and `latency_ms` come from the histograms: within 1 %.
//! - The samples of `iops_min`, `bw_min` and so on are the seconds of the window, not fio's half seconds; of a window
//!   longer than a day, those of its first day. There are none (0 of them) where a run has no seconds, or where
//!   their bytes are not as many as their I/Os have: then it is not known whether reads or writes moved them.
//! - `numjobs` counts the threads of all disks of all workers, and `job_runtime` the windows of those that finished.
//!   `usr_cpu` and `sys_cpu` are percent of one CPU for each of these, as fio divides them.
//! - `rate_iops` and `rate` are of one such thread, in each direction, and need not be whole.
//! - `ioengine` is left out where workers used different ones. The other options are as in the fio job that is printed of
//!   the profile ([`loadline_profile::fio`]), without what only a comment can say there.
//! - `elapsed` is the window alone. `total_err` is left out if no I/O failed; `first_error` always, for its code is not
//!   kept. So are what fio counts of its process (`ctx`, `majf`, `minf`), of its queue (`iodepth_level`, ...), of
//!   syncs and of disks.
//! - What makes the step doubtful is named in the job's option `description`.

use std::collections::BTreeSet;

use loadline_base::clock::Nanos;
use loadline_base::figures::listed;
use loadline_base::histogram::{EncodedHistogram, LatencyHistogram};
use loadline_base::units::Rate;
use loadline_measure::audit::Severity;
use loadline_measure::summary::is_deep_enough;
use loadline_measure::window::{OperationFigures, WindowSecond};
use loadline_profile::{Invocation, Profile, fio};
use loadline_study::folder::result::StepResult;
use loadline_study::planned_step::Purpose;
use loadline_study::when::When;
use loadline_study::{RunFolder, Study, StudyError};
use serde::{Serialize, Serializer};

/// The most steps that are named if the requested one does not exist.
const MOST_NAMED: usize = 12;
/// The percentiles that fio gives unless told otherwise, and the deepest of ours: how many samples in a million lie below.
const PERCENTILES: [u64; 18] = [
    10_000, 50_000, 100_000, 200_000, 300_000, 400_000, 500_000, 600_000, 700_000, 800_000, 900_000, 950_000,
    990_000, 995_000, 999_000, 999_500, 999_900, 999_990,
];
/// Latencies below `1 << EXACT_BITS` nanoseconds have a bin each; above, each power of two has half as many bins.
const EXACT_BITS: u32 = 7;
/// The last of fio's bins ends before this, nanoseconds: 29 groups of 64 bins. A tool that knows only fio's bins may wait
/// forever for one above (`fio_jsonplus_clat2csv` of fio 3.33 does).
const END_OF_BINS: u64 = 1 << 34;
/// The upper ends, exclusive, of the classes of `latency_ns`, `latency_us` and `latency_ms`, each in its unit.
const CLASSES: [u64; 10] = [2, 4, 10, 20, 50, 100, 250, 500, 750, 1000];

/// Names and what they stand for, in their order.
type Named<T> = Vec<(String, T)>;

/// What fio would have written of a step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Document {
    #[serde(rename = "fio version")]
    version: String,
    /// When the step was complete, seconds since 1970.
    timestamp: u64,
    timestamp_ms: u64,
    /// As C's `ctime` writes it, in UTC.
    time: String,
    #[serde(rename = "global options", serialize_with = "as_map")]
    global_options: Named<String>,
    jobs: [Job; 1],
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Job {
    jobname: String,
    groupid: u32,
    error: i32,
    #[serde(skip_serializing_if = "is_zero")]
    total_err: u64,
    eta: u64,
    /// Seconds.
    elapsed: u64,
    #[serde(rename = "job options", serialize_with = "as_map")]
    options: Named<String>,
    read: Section,
    write: Section,
    trim: Section,
    /// Milliseconds, of all processes together.
    job_runtime: u64,
    usr_cpu: f64,
    sys_cpu: f64,
    #[serde(serialize_with = "as_map")]
    latency_ns: Named<f64>,
    #[serde(serialize_with = "as_map")]
    latency_us: Named<f64>,
    #[serde(serialize_with = "as_map")]
    latency_ms: Named<f64>,
    latency_depth: u32,
    latency_target: u64,
    latency_percentile: f64,
    latency_window: u64,
}

/// One direction. `bw` and what begins with it is in KiB/s, but for `bw_bytes`, and for `bw_agg`, percent.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
struct Section {
    io_bytes: u64,
    io_kbytes: u64,
    bw_bytes: u64,
    bw: u64,
    iops: f64,
    /// Milliseconds.
    runtime: u64,
    total_ios: u64,
    short_ios: u64,
    drop_ios: u64,
    slat_ns: Latency,
    clat_ns: Latency,
    lat_ns: Latency,
    bw_min: u64,
    bw_max: u64,
    bw_agg: f64,
    bw_mean: f64,
    bw_dev: f64,
    bw_samples: usize,
    iops_min: u64,
    iops_max: u64,
    iops_mean: f64,
    iops_stddev: f64,
    iops_samples: usize,
}

/// Nanoseconds.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
struct Latency {
    min: u64,
    max: u64,
    mean: f64,
    stddev: f64,
    #[serde(rename = "N")]
    count: u64,
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "as_map")]
    percentile: Named<u64>,
    /// Never empty where it is: tools take the first.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "as_map")]
    bins: Vec<(u64, u64)>,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Pairs as an object, in their order.
fn as_map<K: Serialize, V: Serialize, S: Serializer>(pairs: &[(K, V)], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(pairs.iter().map(|(key, value)| (key, value)))
}

/// The result of the step of this number; the error of one that is not asked for, is not there or is not complete names
/// those that are.
pub fn step(folder: &RunFolder, number: Option<u32>) -> Result<StepResult, StudyError> {
    let asked = folder.plan.steps.iter().find(|step| Some(step.number) == number);
    if let Some(step) = asked
        && let Some(result) = folder.result(step)?
    {
        return Ok(result);
    }
    let mut complete = Vec::new();
    for step in &folder.plan.steps {
        if folder.result(step)?.is_some() {
            complete.push(format!("{} ({}, repeat {})", step.number, step.label, step.repeat));
        }
    }
    let problem = match (number, asked) {
        (None, _) => "--format fio is of one step".to_string(),
        (Some(number), Some(_)) => format!("--step {number}: this step is not complete"),
        (Some(number), None) => format!("--step {number}: this run has no such step"),
    };
    let advice = match complete.as_slice() {
        [] => "No step of it is complete yet".to_string(),
        complete => format!("Give --step with one of {}", listed(complete, MOST_NAMED)),
    };
    Err(StudyError::usage(format!("{problem}. {advice}")))
}

/// A step of a study as fio would have written it. The error says what in the step's file is not as it should be.
pub fn document(study: &Study, result: &StepResult) -> Result<Document, StudyError> {
    let place = Place(result);
    let window_s = result.figures.window_s;
    if !(window_s > 0.0 && window_s.is_finite()) {
        return Err(place.error(&format!("figures.window_s is {window_s}: a window has a length")));
    }
    let (timestamp_ms, time) = moment(&result.ended)
        .ok_or_else(|| place.error("\"ended\" is no moment such as 2026-01-31T12:00:00.000Z"))?;
    let histograms = &result.histograms;
    let read = place.histogram("read", histograms.read.as_ref())?;
    let write = place.histogram("write", histograms.write.as_ref())?;
    let service = place.histogram("service", histograms.service.as_ref())?;
    let profile = &result.step.profile;
    let completion = |mine: &LatencyHistogram, other: &LatencyHistogram| {
        Latency::of(match profile.rate {
            None => mine,
            Some(_) if other.is_empty() && !mine.is_empty() => &service,
            Some(_) => &NONE,
        })
    };
    let (reads, writes) = Seconds::of(result);
    let section =
        |figures: &OperationFigures, mine: &LatencyHistogram, other: &LatencyHistogram, seconds: Seconds| {
            let section =
                Section { clat_ns: completion(mine, other), lat_ns: Latency::of(mine), ..Section::default() };
            section.with(figures, window_s).with_samples(seconds)
        };
    let finished = result.workers.iter().filter(|worker| worker.lost.is_none());
    let runtimes_s =
        processes(study, result, finished.map(|worker| worker.worker.node.as_str())) as f64 * window_s;
    let percent = |seconds: f64| finite(100.0 * seconds / runtimes_s);
    let all = [&read, &write];
    let job = Job {
        jobname: result.step.label.clone(),
        groupid: 0,
        error: 0,
        total_err: result.figures.errors,
        eta: 0,
        elapsed: window_s.ceil() as u64,
        options: options(study, result, &place)?,
        read: section(&result.figures.read, &read, &write, reads),
        write: section(&result.figures.write, &write, &read, writes),
        trim: Section::default(),
        job_runtime: (1e3 * runtimes_s).round() as u64,
        usr_cpu: percent(result.cpu.user_s),
        sys_cpu: percent(result.cpu.system_s),
        latency_ns: classes(&all, 1, 0),
        latency_us: classes(&all, 1_000, 1),
        latency_ms: classes(&all, 1_000_000, 1),
        latency_depth: profile.outstanding,
        // What fio writes where no latency_target is set.
        latency_target: 0,
        latency_percentile: 100.0,
        latency_window: 0,
    };
    Ok(Document {
        version: format!("loadline-{}", env!("CARGO_PKG_VERSION")),
        timestamp: timestamp_ms / 1000,
        timestamp_ms,
        time,
        global_options: Vec::new(),
        jobs: [job],
    })
}

impl Document {
    /// As text, with a line feed at its end.
    pub fn text(&self) -> String {
        // Every key is text or a whole number and every figure finite: it cannot fail.
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }
}

static NONE: LatencyHistogram = LatencyHistogram::new();

/// Where in a run's folder a result is.
struct Place<'a>(&'a StepResult);

impl Place<'_> {
    fn error(&self, problem: &str) -> StudyError {
        StudyError::usage(format!(
            "steps/{}/result.json: {problem}. Move the step's folder out of the run's folder; `loadline run --resume` then measures this step again",
            self.0.step.folder
        ))
    }

    fn histogram(
        &self,
        name: &str,
        encoded: Option<&EncodedHistogram>,
    ) -> Result<LatencyHistogram, StudyError> {
        let Some(encoded) = encoded else { return Ok(LatencyHistogram::new()) };
        encoded.decode().map_err(|error| self.error(&format!("histograms.{name}: {error}")))
    }
}

/// What cannot be divided is 0, as fio writes it.
fn finite(value: f64) -> f64 {
    if value.is_finite() { value } else { 0.0 }
}

impl Section {
    fn with(self, figures: &OperationFigures, window_s: f64) -> Section {
        let whole = |per_second: f64| (per_second * window_s).round() as u64;
        let (total_ios, io_bytes) = (whole(figures.iops), whole(figures.bytes_per_s));
        // fio has no runtime of a direction that did no I/O.
        let active = total_ios > 0 || self.lat_ns.count > 0;
        let bw_bytes = figures.bytes_per_s.round() as u64;
        Section {
            io_bytes,
            io_kbytes: io_bytes / 1024,
            bw_bytes,
            bw: bw_bytes / 1024,
            iops: figures.iops,
            runtime: if active { (1e3 * window_s).round() as u64 } else { 0 },
            total_ios,
            ..self
        }
    }

    fn with_samples(self, seconds: Seconds) -> Section {
        let (iops, bw) = (Samples::of(&seconds.ios), Samples::of(&seconds.kib));
        Section {
            bw_min: bw.min as u64,
            bw_max: bw.max as u64,
            // Of the group's bandwidth in this direction, which is all this job's.
            bw_agg: if bw.max > 0.0 { 100.0 } else { 0.0 },
            bw_mean: bw.mean,
            bw_dev: bw.deviation,
            bw_samples: bw.count,
            iops_min: iops.min as u64,
            iops_max: iops.max as u64,
            iops_mean: iops.mean,
            iops_stddev: iops.deviation,
            iops_samples: iops.count,
            ..self
        }
    }
}

/// What one direction did in each second: I/Os, and KiB, if that is known of it. Empty if it did nothing.
#[derive(Default)]
struct Seconds {
    ios: Vec<f64>,
    kib: Vec<f64>,
}

impl Seconds {
    /// Of the reads and of the writes.
    fn of(result: &StepResult) -> (Seconds, Seconds) {
        let block = result.step.profile.block_size.bytes();
        let whole = |second: &WindowSecond| {
            second.reads.saturating_add(second.writes).saturating_mul(block) == second.bytes
        };
        let known = result.seconds.iter().all(whole);
        let of = |ios: fn(&WindowSecond) -> u64| {
            if result.seconds.iter().all(|second| ios(second) == 0) {
                return Seconds::default();
            }
            let each = || result.seconds.iter().map(|second| ios(second) as f64);
            let kib = |ios: f64| ios * block as f64 / 1024.0;
            Seconds { ios: each().collect(), kib: each().filter(|_| known).map(kib).collect() }
        };
        (of(|second| second.reads), of(|second| second.writes))
    }
}

/// Samples that all count the same.
#[derive(Default)]
struct Samples {
    count: usize,
    min: f64,
    max: f64,
    mean: f64,
    /// Of a sample of the population, as fio divides it: by one less than their number. 0 of one.
    deviation: f64,
}

impl Samples {
    fn of(values: &[f64]) -> Samples {
        if values.is_empty() {
            return Samples::default();
        }
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
        Samples {
            count: values.len(),
            min: values.iter().copied().fold(f64::INFINITY, f64::min),
            max: values.iter().copied().fold(0.0, f64::max),
            mean,
            deviation: (squares / (count - 1.0).max(1.0)).sqrt(),
        }
    }
}

impl Latency {
    fn of(histogram: &LatencyHistogram) -> Latency {
        let (Some(min), Some(max), Some(mean)) = (histogram.min(), histogram.max(), histogram.mean_ns())
        else {
            return Latency::default();
        };
        let count = histogram.count();
        let deep =
            PERCENTILES.iter().filter(|below| is_deep_enough(count, (**below).min(1_000_000 - **below)));
        let percentile = |below: &u64| {
            // As the report computes it, so that both print the same.
            let share = 1.0 - (1_000_000 - below) as f64 / 1e6;
            Some((format!("{:.6}", *below as f64 / 1e4), histogram.quantile(share)?.0))
        };
        Latency {
            min: min.0,
            max: max.0,
            mean,
            stddev: deviation(histogram),
            count,
            percentile: deep.filter_map(percentile).collect(),
            bins: bins(histogram),
        }
    }
}

/// The buckets, each with its highest latency, which no I/O in it can have exceeded: where all took the same, exactly that.
fn buckets(histogram: &LatencyHistogram) -> impl Iterator<Item = (u64, u64)> + '_ {
    let (min, max) = (histogram.min().unwrap_or(Nanos(0)), histogram.max().unwrap_or(Nanos(u64::MAX)));
    histogram.buckets().map(move |(latency, count)| (latency.max(min).min(max).0, count))
}

/// The standard deviation, nanoseconds, about the mean of the buckets: what all of them are too high cancels out.
fn deviation(histogram: &LatencyHistogram) -> f64 {
    let count = histogram.count() as f64;
    let sum = buckets(histogram).map(|(ns, count)| ns as f64 * count as f64).sum::<f64>();
    let mean = sum / count;
    let squares =
        buckets(histogram).map(|(ns, count)| (ns as f64 - mean).powi(2) * count as f64).sum::<f64>();
    finite((squares / (count - 1.0).max(1.0)).sqrt())
}

/// fio's bins: nanoseconds in the middle of each, and its count. Each bucket of ours lies in one of them.
fn bins(histogram: &LatencyHistogram) -> Vec<(u64, u64)> {
    let mut bins: Vec<(u64, u64)> = Vec::new();
    for (ns, count) in histogram.buckets() {
        let name = bin(ns.0);
        match bins.last_mut().filter(|(last, _)| *last == name) {
            Some((_, counted)) => *counted = counted.saturating_add(count),
            None => bins.push((name, count)),
        }
    }
    bins
}

/// The middle of the bin of a latency, nanoseconds.
fn bin(ns: u64) -> u64 {
    let ns = ns.min(END_OF_BINS - 1);
    match ns.checked_ilog2().unwrap_or(0) {
        bits if bits < EXACT_BITS => ns,
        bits => {
            let width = bits + 1 - EXACT_BITS;
            (ns >> width << width) + (1 << width >> 1)
        }
    }
}

/// What percent of all I/Os took how long, in a unit of so many nanoseconds; `from` is the least that belongs to it. The
/// longest unit has what is longer still.
fn classes(all: &[&LatencyHistogram], unit: u64, from: u64) -> Named<f64> {
    let longest = unit == 1_000_000;
    let total = all.iter().fold(0_u64, |sum, histogram| sum.saturating_add(histogram.count()));
    let mut ends: Vec<u64> = CLASSES.to_vec();
    ends.extend(longest.then_some(2000));
    let mut counts = vec![0_u64; ends.len() + usize::from(longest)];
    for (ns, count) in all.iter().flat_map(|histogram| buckets(histogram)) {
        let value = ns / unit;
        let class = ends.iter().filter(|end| value >= **end).count();
        if let Some(counted) = counts.get_mut(class).filter(|_| value >= from) {
            *counted = counted.saturating_add(count);
        }
    }
    let names = ends.iter().map(u64::to_string).chain(longest.then(|| ">=2000".to_string()));
    let percent = |count: u64| if total > 0 { 100.0 * count as f64 / total as f64 } else { 0.0 };
    names.zip(counts.into_iter().map(percent)).collect()
}

/// Threads on all disks of workers on these nodes: fio's processes.
fn processes<'a>(study: &Study, result: &StepResult, nodes: impl Iterator<Item = &'a str>) -> u64 {
    let disks = nodes.map(|name| match result.step.purpose {
        // Below the fleet: the devices of the worker's node, or a file.
        Purpose::Ceiling => (study.ceilings.node.iter().filter(|node| node.name == name))
            .map(|node| node.devices.len() as u64 + u64::from(node.folder.is_some()))
            .sum(),
        _ => u64::from(study.fleet.disks_per_worker),
    });
    disks.fold(0_u64, u64::saturating_add).saturating_mul(u64::from(result.step.profile.threads))
}

/// The step as a fio job would ask for it.
fn options(study: &Study, result: &StepResult, place: &Place<'_>) -> Result<Named<String>, StudyError> {
    let profile = &result.step.profile;
    let printed = fio::print_job(&Invocation::of(profile.clone()))
        .map_err(|error| place.error(&format!("its profile cannot be told as a fio job: {error}")))?;
    let workers = &result.workers;
    let processes = processes(study, result, workers.iter().map(|worker| worker.worker.node.as_str()));
    let mut engines = workers.iter().filter_map(|worker| worker.engine.as_deref());
    let engine = engines.next().filter(|first| engines.all(|other| other == *first));
    let mut options = vec![("description".to_string(), description(study, result))];
    // The job's common section; after it come its jobs, which are for files that are not known here.
    let common = printed.text.lines().skip(1).map_while(|line| line.split_once('='));
    for (key, value) in common {
        let (key, value) = match key {
            "numjobs" => (key, Some(processes.to_string())),
            "ioengine" => (key, engine.map(str::to_string)),
            "rwmixwrite" => ("rwmixread", Some((100 - profile.write_percent.min(100)).to_string())),
            // Printed for a thread of one disk of one worker; the rate is of all of its disks.
            "rate_iops" | "rate" => (key, rate(profile, workers.len() as f64, processes.max(1) as f64)),
            _ => (key, Some(value.to_string())),
        };
        options.extend(value.map(|value| (key.to_string(), value)));
    }
    let rest = [
        ("time_based", "1".to_string()),
        ("runtime", format!("{}s", result.figures.window_s)),
        ("clat_percentiles", "1".to_string()),
        ("lat_percentiles", "1".to_string()),
    ];
    options.extend(rest.map(|(key, value)| (key.to_string(), value)));
    Ok(options)
}

/// What the step is, and the kinds of what makes it doubtful: there is no other place for them in fio's JSON.
fn description(study: &Study, result: &StepResult) -> String {
    let step = &result.step;
    let doubts = result.findings.iter().filter(|finding| finding.severity == Severity::Doubt);
    let kinds: BTreeSet<String> = doubts
        .filter_map(|finding| Some(serde_json::to_value(finding.kind).ok()?.as_str()?.to_string()))
        .collect();
    let mut text =
        format!("study {}, step {}, repeat {}; measured by loadline", study.name, step.number, step.repeat);
    if !kinds.is_empty() {
        text.push_str(&format!("; doubtful: {}", kinds.into_iter().collect::<Vec<_>>().join(", ")));
    }
    text
}

/// The rate of one of all processes of these workers: as fio takes it, of each direction that does I/O.
fn rate(profile: &Profile, workers: f64, processes: f64) -> Option<String> {
    let (Rate::Iops(total) | Rate::BytesPerSecond(total)) = profile.rate?.rate;
    let each = total * workers / processes;
    let share = |percent: u8| each * f64::from(percent) / 100.0;
    Some(match profile.write_percent.min(100) {
        0 | 100 => each.to_string(),
        writes => format!("{},{}", share(100 - writes), share(writes)),
    })
}

/// A moment in milliseconds since 1970, and as `ctime` writes it; `None` if it is none.
fn moment(when: &When) -> Option<(u64, String)> {
    const MONTHS: [(&str, u64); 12] = [
        ("Jan", 31),
        ("Feb", 28),
        ("Mar", 31),
        ("Apr", 30),
        ("May", 31),
        ("Jun", 30),
        ("Jul", 31),
        ("Aug", 31),
        ("Sep", 30),
        ("Oct", 31),
        ("Nov", 30),
        ("Dec", 31),
    ];
    // 1970-01-01 was a Thursday.
    const WEEKDAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    /// Days from the first of January of year 1 to that of 1970.
    const BEFORE_1970: u64 = 719_162;
    let text = when.as_str().strip_suffix('Z')?;
    let parts: Option<Vec<u64>> = text.split(['-', 'T', ':', '.']).map(|part| part.parse().ok()).collect();
    let [year, month, day, hour, minute, second, millis] = *parts? else { return None };
    let before = MONTHS.get(..usize::try_from(month).ok()?.checked_sub(1)?)?;
    let (name, length) = MONTHS.get(before.len())?;
    let leap = u64::from(year % 4 == 0 && (year % 100 != 0 || year % 400 == 0));
    let longest = length + if month == 2 { leap } else { 0 };
    let valid = (1970..=9999).contains(&year) && (1..=longest).contains(&day);
    if !valid || hour > 23 || minute > 59 || second > 59 || millis > 999 {
        return None;
    }
    let years = year - 1;
    let in_year =
        before.iter().map(|(_, length)| length).sum::<u64>() + if month > 2 { leap } else { 0 } + day - 1;
    let days = years * 365 + years / 4 - years / 100 + years / 400 + in_year - BEFORE_1970;
    let weekday = WEEKDAYS.get((days % 7) as usize)?;
    let ms = (((days * 24 + hour) * 60 + minute) * 60 + second) * 1000 + millis;
    Some((ms, format!("{weekday} {name} {day:>2} {hour:02}:{minute:02}:{second:02} {year}")))
}

#[cfg(test)]
mod tests;
