//! fio's JSON and JSON+ (`--output-format=json` and `json+`), alone or of client and server, of fio 3 and fio 2.
//!
//! fio 2 states latencies in microseconds (`lat`, `clat`) and bandwidth in KiB a second, numbers the bins of JSON+, and before
//! 2.2 counts no I/Os. Its percentiles are of completion latency only.
//!
//! Each job of `jobs` (or of `client_stats`) is one point, over reads and writes together, since Little's law holds
//! of both together: IOPS and bytes add up, means weigh by their I/Os. So do the entries of the processes of one job,
//! which fio writes for `numjobs` without `group_reporting`: same result, name, group and host, and same load. Jobs of
//! one name that do not put on the same load have what distinguishes them in [`Point::family`]: `x, 4 KiB`.
//! Latencies are `lat_ns`, from submission to
//! completion. Percentiles are never averaged: they are those of the only direction that did I/O, or come from the
//! merged bins of JSON+. What is outstanding follows from the options: `iodepth` × processes, one for each
//! process of a synchronous engine, and not known under a rate, think time or syncs.
//!
//! The entry `All clients` repeats the others and is left out, and so are the intermediate states that
//! `--status-interval` writes before the final one. What stands before an object are warnings.

mod apart;
mod figures;
mod load;
mod states;

use std::collections::{BTreeSet, HashMap};

use loadline_measure::audit::{Finding, FindingKind};
use loadline_measure::point::{Point, Stated, Throughput};
use serde_json::{Deserializer, Value};

use crate::curves::Alike;
use crate::numbers::{deep_enough, is_figure, shallow};
use crate::text::{counted, kept, shown};
use crate::{ImportError, Imported};
use figures::Figures;
use load::{JobOptions, Load, Processes};

/// More results than one file holds.
const MOST_RESULTS: usize = 10_000;
/// More jobs than fio runs in one file's results.
const MOST_JOBS: usize = 100_000;
/// A job has about 40 objects in JSON; what has more than this in all would not fit into memory.
const MOST_OBJECTS: usize = 1_000_000;

/// Reads fio's JSON.
pub(crate) fn read(file: &str, text: &str) -> Result<Imported, ImportError> {
    if text.bytes().filter(|byte| *byte == b'{').count() > MOST_OBJECTS {
        let problem = format!("more than {MOST_OBJECTS} objects");
        return Err(ImportError::new(file, problem, "split the file"));
    }
    let objects = objects(file, text)?;
    let mut reader = Reader { file, several: objects.values.len() > 1, ..Reader::default() };
    let mut findings = Vec::new();
    if let Some(first) = &objects.first_skipped {
        findings.push(Finding::note(
            FindingKind::Adjusted,
            "JSON and nothing else",
            format!(
                "{} passed over; the first is \"{}\"",
                counted(objects.skipped, "other line", "other lines"),
                shown(first)
            ),
            "fio writes warnings there when its output is redirected together with its errors; they may matter.",
        ));
    }
    let superseded = states::superseded(&objects.values);
    if !superseded.is_empty() {
        findings.push(Finding::note(
            FindingKind::Adjusted,
            "one result for each run",
            format!(
                "{} of runs whose later state follows",
                counted(superseded.len(), "intermediate state", "intermediate states")
            ),
            "fio writes them with --status-interval. Each counts from the beginning, so only the last is kept.",
        ));
    }
    for (at, object) in objects.values.iter().enumerate() {
        if !superseded.contains(&at) {
            reader.result(at, object)?;
        }
    }
    if reader.points.is_empty() {
        return Err(ImportError::new(
            file,
            "this JSON has no \"jobs\" and no \"client_stats\", as fio's results have, and is no result of Loadline",
            "give what loadline bench --json or fio --output-format=json+ wrote, or CSV",
        ));
    }
    apart::distinguish(&mut reader.points, &reader.options);
    if let Some(problem) = objects.cut {
        findings.push(Finding::doubt(
            FindingKind::MissingIntervals,
            "a file that ends after a complete result",
            problem,
            "fio was stopped while it wrote, or the copy is incomplete. The complete results before it were read.",
        ));
    }
    findings.append(&mut reader.findings());
    let format = match (reader.old, reader.bins) {
        (true, _) => "fio 2 JSON",
        (false, true) => "fio JSON+",
        (false, false) => "fio JSON",
    };
    Ok(Imported { format, points: reader.points, alike: reader.alike, findings })
}

/// A file's JSON objects, and what else is in it.
#[derive(Default)]
struct Objects {
    values: Vec<Value>,
    skipped: usize,
    first_skipped: Option<String>,
    /// How it ends too early.
    cut: Option<String>,
}

fn objects(file: &str, text: &str) -> Result<Objects, ImportError> {
    let mut found = Objects::default();
    let (mut rest, mut line) = (text, 1_usize);
    while !rest.is_empty() {
        if !rest.trim_start_matches([' ', '\t', '\r']).starts_with('{') {
            let (skipped, after) = rest.split_once('\n').unwrap_or((rest, ""));
            if !skipped.trim().is_empty() {
                found.skipped += 1;
                found.first_skipped.get_or_insert_with(|| skipped.trim().to_string());
            }
            (rest, line) = (after, line + 1);
            continue;
        }
        if found.values.len() >= MOST_RESULTS {
            let problem = format!("more than {MOST_RESULTS} results");
            return Err(ImportError::new(file, problem, "split the file"));
        }
        let mut stream = Deserializer::from_str(rest).into_iter::<Value>();
        match stream.next() {
            Some(Ok(value)) => {
                let (object, after) = rest.split_at_checked(stream.byte_offset()).unwrap_or((rest, ""));
                line += object.matches('\n').count();
                rest = after;
                found.values.push(value);
            }
            Some(Err(error)) if error.is_eof() => {
                let problem =
                    format!("it ends in the middle: the object that begins in line {line} has no end");
                if found.values.is_empty() {
                    return Err(ImportError::new(file, problem, "copy it anew, or run fio to its end"));
                }
                found.cut = Some(problem);
                break;
            }
            Some(Err(error)) => {
                let place = format!("{file}, line {}", line.saturating_add(error.line()).saturating_sub(1));
                return Err(ImportError::new(
                    place,
                    format!("this is no JSON ({error})"),
                    "give the file as it was written",
                ));
            }
            None => break,
        }
    }
    Ok(found)
}

/// The entries of a result that are jobs of their own.
fn entries(result: &Value) -> impl Iterator<Item = &Value> {
    let of = |key| result.get(key).and_then(Value::as_array).into_iter().flatten();
    let clients = of("client_stats").filter(|entry| text_of(entry, "jobname") != "All clients");
    of("jobs").chain(clients)
}

fn text_of<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// What distinguishes the jobs of a result; those of `numjobs` share it.
fn identity(entry: &Value) -> String {
    let part = |key| entry.get(key).filter(|v| !v.is_array() && !v.is_object()).map(Value::to_string);
    [part("jobname"), part("groupid"), part("hostname"), part("port")]
        .map(Option::unwrap_or_default)
        .join("\x1f")
}

/// What is collected while results are read.
#[derive(Default)]
struct Reader<'a> {
    file: &'a str,
    several: bool,
    points: Vec<Point>,
    /// What each point's options ask for, and the host that it ran on.
    options: Vec<(JobOptions, Option<String>)>,
    /// What each point shares with others of its curve.
    alike: Vec<Option<Alike>>,
    entries: usize,
    bins: bool,
    /// Percentiles left out for want of samples.
    shallow: usize,
    /// Percentiles are of completion latency, without submission.
    completion: bool,
    trims: usize,
    bad_bins: usize,
    /// Whether anything is of fio 2.
    old: bool,
    /// Jobs whose bins are numbered, as fio 2 does.
    old_bins: usize,
    /// Why what is outstanding is not known, each once.
    open: BTreeSet<&'static str>,
    doubts: Vec<Finding>,
}

/// Runtimes of one load that differ by more than this ratio are reported in a note.
const TELLING: f64 = 1.05;

/// An entry of a result.
struct Entry<'a> {
    place: String,
    value: &'a Value,
}

impl Reader<'_> {
    fn result(&mut self, at: usize, result: &Value) -> Result<(), ImportError> {
        let mut file = self.file.to_string();
        if self.several {
            file.push_str(&format!(", result {}", at + 1));
        }
        let mut places: HashMap<(String, JobOptions), usize> = HashMap::new();
        let mut jobs: Vec<Vec<(usize, &Value)>> = Vec::new();
        for (number, entry) in entries(result).enumerate() {
            self.entries += 1;
            if self.entries > MOST_JOBS {
                let problem = format!("more than {MOST_JOBS} jobs");
                return Err(ImportError::new(self.file, problem, "split the file"));
            }
            let place = *places.entry((identity(entry), JobOptions::of(result, entry))).or_insert(jobs.len());
            match jobs.get_mut(place) {
                Some(job) => job.push((number + 1, entry)),
                None => jobs.push(vec![(number + 1, entry)]),
            }
        }
        // Jobs that ran at the same time are no places of one curve.
        let (_, later) = jobs.split_at(jobs.len().min(1));
        let in_turn = later.iter().flatten().all(|(_, job)| load::waits(result, job));
        for job in jobs {
            let (Some((first, entry)), Some((last, _))) = (job.first(), job.last()) else { continue };
            let of = |numbers: String| {
                let mut place = format!("{file}, {numbers} \"{}\"", shown(text_of(entry, "jobname")));
                if let Some(host) = entry.get("hostname").and_then(Value::as_str) {
                    place.push_str(&format!(" on {}", shown(host)));
                }
                place
            };
            let place = of(match job.len() {
                1 => format!("job {first}"),
                count if last - first + 1 == count => format!("jobs {first} to {last}"),
                count => format!("{count} of jobs {first} to {last}"),
            });
            let each = job.iter().map(|(number, value)| Entry { place: of(format!("job {number}")), value });
            let point = self.job(place, result, each.collect())?;
            let known = in_turn && (point.outstanding.is_some() || point.rate_iops.is_some());
            self.alike.push(known.then(|| load::alike(result, entry)).flatten());
            self.points.push(point);
            let host = entry.get("hostname").and_then(Value::as_str).map(shown);
            self.options.push((JobOptions::of(result, entry), host));
        }
        Ok(())
    }

    /// One job, of which each process may have an entry of its own.
    fn job(&mut self, place: String, result: &Value, entries: Vec<Entry>) -> Result<Point, ImportError> {
        let alike = u32::try_from(entries.len()).unwrap_or(u32::MAX);
        let mut point = Point { place, ..Point::default() };
        let (mut loads, mut active, mut all) = (Vec::new(), Vec::new(), Vec::new());
        for Entry { place, value } in &entries {
            let figures = Figures::of(place, value)?;
            let load = Load::of(result, value, alike, &figures);
            let processes = match load.processes {
                Processes::Known(processes) => Some(processes),
                Processes::Mixed => None,
            };
            self.open.extend(load.open);
            self.trims += usize::from(figures.trimmed);
            let idle = figures.ios() == 0 && !figures.trimmed;
            let lost = if idle { self.idle(place, processes) } else { 0 };
            let failed = self.errors(place, value, &mut point.errors);
            point.lost_workers = point.lost_workers.saturating_add(lost.max(failed));
            point.profile = kept(text_of(value, "jobname"));
            // Each of several entries is of one process, however long it ran.
            point.workers = if alike > 1 { Some(alike) } else { processes };
            let rates = (load.rate_iops, load.outstanding);
            if figures.ios() > 0 || alike == 1 {
                active.push((load.block_bytes, load.write_percent, load.rate_iops));
            }
            loads.push(rates);
            all.push(figures);
        }
        let figures = Figures::together(all);
        point.outstanding = loads.iter().map(|(_, outstanding)| *outstanding).sum();
        if figures.trimmed && point.outstanding.take().is_some() {
            self.open.insert("it trims as well, and trims are outstanding too");
        }
        if let Some((block, writes, rate)) = active.first() {
            let same = active.iter().all(|(other, ..)| other == block);
            point.block_bytes = block.filter(|_| same);
            let same = active.iter().all(|(_, other, _)| other == writes);
            let measured = 100.0 * figures.writes as f64 / (figures.reads as f64 + figures.writes as f64);
            point.write_percent = if same { *writes } else { Some(measured).filter(|m| is_figure(*m)) };
            // A process that did nothing was to keep the rate of the others.
            let known = active.iter().all(|(.., other)| other == rate);
            point.rate_iops = rate.filter(|_| known).map(|rate| rate * entries.len() as f64);
        }
        if figures.ios() == 0 {
            return Ok(point);
        }
        point.window_s = figures.seconds().filter(|seconds| *seconds > 0.0);
        let (iops, bytes_per_s) = figures.rates();
        if let Some((shortest, longest)) = figures.differ().filter(|(short, long)| *long > short * TELLING) {
            self.doubts.push(Finding::doubt(
                FindingKind::Adjusted,
                format!("all of {} to run for as long", point.place),
                format!("runtimes from {shortest:.1} s to {longest:.1} s"),
                "Its figures are what was done, over the longest: for a part of it the load was smaller than stated.",
            ));
            point.outstanding = None;
        }
        let half_digits = figures.half_digits();
        point.iops = Some(Stated { value: iops, half_digit: half_digits.0 });
        point.throughput = Some(Throughput {
            bytes_per_s: Stated { value: bytes_per_s, half_digit: half_digits.1 },
            unit: "bytes/s".into(),
            unit_bytes: 1.0,
        });
        point.samples = Some(figures.ios());
        let us = |ns: Option<f64>| ns.map(|ns| Stated::exact(ns / 1e3));
        (point.mean_us, point.min_us, point.max_us) =
            (us(figures.mean()), us(figures.min()), us(figures.max()));
        self.distribution(&figures, &mut point);
        Ok(point)
    }

    /// Histogram and percentiles.
    fn distribution(&mut self, figures: &Figures, point: &mut Point) {
        self.old |= figures.old;
        self.old_bins += usize::from(figures.old_bins);
        self.bins |= figures.has_bins();
        point.histogram = figures.histogram();
        self.bad_bins += usize::from(figures.has_bins() && point.histogram.is_none());
        let (min, max) = (figures.min().unwrap_or(0.0), figures.max().unwrap_or(f64::INFINITY));
        for (percent, ns, half) in figures.percentiles(point.histogram.as_ref()) {
            if !deep_enough(figures.ios(), percent) {
                self.shallow += 1;
            } else if ns >= min {
                // The middle of a bucket may lie beyond the largest latency.
                let stated = Stated { value: ns.min(max) / 1e3, half_digit: half / 1e3 };
                point.percentiles_us.push((percent, stated));
            }
        }
        point.percentiles_us.sort_by(|a, b| a.0.total_cmp(&b.0));
        self.completion |= figures.completion() && !point.percentiles_us.is_empty();
    }

    /// Counts an entry's errors; returns how many workers were lost by them.
    fn errors(&mut self, place: &str, job: &Value, errors: &mut u64) -> u32 {
        let code = job.get("error").and_then(Value::as_i64).unwrap_or(0);
        let total = job.get("total_err").and_then(Value::as_u64).unwrap_or(0);
        if code == 0 && total == 0 {
            return 0;
        }
        *errors = errors.saturating_add(total.max(1));
        let found = match total {
            0 => format!("{place} ended with error {code}"),
            1 => format!("1 I/O failed in {place}"),
            total => format!("{total} I/Os failed in {place}"),
        };
        let cause = "Failed I/Os are in no figure; error 5 is an I/O error, 28 no space. See the kernel log.";
        self.doubts.push(Finding::doubt(FindingKind::Errors, "no errors", found, cause));
        // Without continue_on_error a job ends with its first error, whose code this is.
        u32::from(total == 0)
    }

    /// An entry without I/O; returns how many workers were lost.
    fn idle(&mut self, place: &str, processes: Option<u32>) -> u32 {
        self.doubts.push(Finding::doubt(
            FindingKind::LostWorkers,
            "I/O of each job",
            format!("{place} reported nothing"),
            "It failed to start, or was stopped before its first I/O completed. See fio's errors.",
        ));
        processes.unwrap_or(1).max(1)
    }

    fn findings(&mut self) -> Vec<Finding> {
        let mut findings = std::mem::take(&mut self.doubts);
        let mut note = |expected: &str, found: String, cause: &str| {
            findings.push(Finding::note(FindingKind::Adjusted, expected, found, cause));
        };
        if self.trims > 0 {
            let found = counted(self.trims, "job that trims", "jobs that trim") + " as well";
            note("reads and writes", found, "Trims move no data; they are in no figure here.");
        }
        if self.completion {
            note(
                "percentiles of total latency",
                "percentiles of completion latency, from when the kernel had the request".into(),
                "fio gives no others unless lat_percentiles=1 is set; those below the smallest total latency are left \
                 out. Mean and extremes are of total latency.",
            );
        }
        if self.bins {
            let found =
                "bins, each named by the nanoseconds in its middle, of 64 to each power of two".to_string();
            note("each latency", found, "Histograms and what is taken from them may be off by 0.8 %.");
        }
        if self.old {
            note(
                "latencies in nanoseconds",
                "microseconds, as fio 2 writes them".into(),
                "Means have two decimals; percentiles and extremes are whole microseconds.",
            );
        }
        if self.old_bins > 0 {
            let jobs = counted(self.old_bins, "job", "jobs");
            note(
                "bins named by their latency",
                format!("numbered ones in {jobs}, as fio 2 writes them"),
                "They are left out: of mixed reads and writes there are no percentiles. Measure with fio 3.",
            );
        }
        if self.bad_bins > 0 {
            let jobs = counted(self.bad_bins, "job", "jobs");
            let found = format!("bins of {jobs} that do not add up to their I/Os");
            note(
                "all I/Os in the bins of JSON+",
                found,
                "They are left out, and percentiles that need them.",
            );
        }
        for reason in std::mem::take(&mut self.open) {
            let found = format!("a job of which that is not known: {reason}");
            note("the number of I/Os outstanding", found, "Little's law cannot be checked for it.");
        }
        findings.extend(shallow(self.shallow));
        findings
    }
}

/// A number of JSON that may be kept as a figure.
fn figure(value: Option<&Value>) -> Option<f64> {
    value.and_then(Value::as_f64).filter(|value| is_figure(*value))
}
