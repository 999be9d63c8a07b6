//! DISKSPD's text, which it prints unless told otherwise; of one run or of several that were appended to one file.
//!
//! `Command Line:` begins a run. Below `Input parameters:` each `timespan:` states its targets, and each `Results for
//! timespan` has tables of all I/O, of reads and of writes, a row for each thread and target and a `total:` row, whose
//! columns depend on the options: `AvgLat` and `LatStdDev` (milliseconds) with `-L`, `IopsStdDev` with `-D`. Figures of I/O are
//! taken from `Total IO`, and checked against the rows. With several targets there is a table of percentiles for each, and
//! the last one is over all; `3-nines` are 99.9 %. `Totals:` at the end repeats and is left out.
//!
//! The tables of CPUs, with several processor groups, sockets or core types more columns, are passed over. Sizes are
//! bytes up to 2.1 (`65536`), and have a unit since (`64KiB`). A limit (`-g`) is in the text of newer versions; of others it
//! is taken from the command line. Text has no series.
//!
//! Source: DISKSPD's own `ResultParser.cpp`, `Common.cpp` and their unit tests, versions 2.0 to 2.2.

mod input;
mod table;

use loadline_measure::audit::{Finding, FindingKind};
use loadline_measure::point::{Point, Stated, Throughput};

use super::load;
use crate::numbers::{deep_enough, is_figure, parse, shallow};
use crate::text::{counted, shown};
use crate::{ImportError, Imported};
use input::Input;
use table::{Chart, Section};

/// More time spans than one file holds.
const MOST_SPANS: usize = 10_000;

/// Whether lines are of DISKSPD's text.
pub(crate) fn is_result(lines: &[&str]) -> bool {
    let has = |begin: &str| lines.iter().any(|line| line.starts_with(begin));
    has("Results for timespan ") || (has("Input parameters:") && has("timespan:"))
}

/// What one time span came to.
#[derive(Debug, Default)]
struct Block {
    /// The line that it begins in.
    line: usize,
    /// Its number in its run, from 1.
    number: usize,
    seconds: Option<Stated>,
    threads: Option<f64>,
    requests: Option<f64>,
    interrupted: bool,
    total: Section,
    read: Section,
    write: Section,
    percentiles: Chart,
}

/// One run of DISKSPD.
#[derive(Debug, Default)]
struct Run {
    input: Input,
    blocks: Vec<Block>,
}

/// Which table the next rows are of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Part {
    #[default]
    None,
    Total,
    Read,
    Write,
    Percentiles,
}

/// Reads a result.
pub(crate) fn read(file: &str, text: &str) -> Result<Imported, ImportError> {
    let runs = runs(file, text)?;
    let mut notes = Notes::default();
    let mut imported = Imported { format: "DISKSPD text", ..Imported::default() };
    let several = runs.len() > 1;
    for (at, run) in runs.iter().enumerate() {
        let declared = run.input.spans.len();
        if declared > 0 && run.blocks.len() < declared {
            notes.doubts.push(Finding::doubt(
                FindingKind::MissingIntervals,
                format!("results of {}", counted(declared, "time span", "time spans")),
                format!("{} of them in run {} of {file}", run.blocks.len(), at + 1),
                "DISKSPD was stopped, or the file was cut.",
            ));
        }
        for block in &run.blocks {
            let run_place = if several { format!(", run {}", at + 1) } else { String::new() };
            let place = format!("{file}{run_place}, line {}, time span {}", block.line, block.number);
            let span = run.input.span(block.number, block.threads, block.requests);
            let (mut point, alike) = match &span {
                Some(span) => load::point(span, &place, &mut notes.doubts),
                None => (Point { workers: Some(1), place: place.clone(), ..Point::default() }, None),
            };
            if span.is_none() {
                notes.unknown += 1;
            } else if run.input.may_be_limited() && point.outstanding.take().is_some() {
                notes.open += 1;
            }
            block.measure(&mut point, &mut notes)?;
            imported.points.push(point);
            imported.alike.push(alike);
        }
    }
    if imported.points.is_empty() {
        let problem = "it has the parameters of DISKSPD and no results";
        return Err(ImportError::new(file, problem, "give what DISKSPD printed to its end, or -Rxml"));
    }
    imported.findings = notes.findings();
    Ok(imported)
}

fn runs(file: &str, text: &str) -> Result<Vec<Run>, ImportError> {
    let mut runs: Vec<Run> = Vec::new();
    let (mut part, mut spans) = (Part::None, 0_usize);
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        let after = |begin: &str| line.strip_prefix(begin).map(str::trim);
        let fresh = runs.last().is_none_or(|run| !run.blocks.is_empty());
        if let Some(command) = after("Command Line:") {
            runs.push(Run { input: Input::of(command), ..Run::default() });
            part = Part::None;
            continue;
        }
        if after("Input parameters:").is_some() && fresh {
            runs.push(Run::default());
            continue;
        }
        if let Some(number) = after("Results for timespan") {
            spans += 1;
            if spans > MOST_SPANS {
                let problem = format!("more than {MOST_SPANS} time spans");
                return Err(ImportError::new(file, problem, "split the file"));
            }
            if runs.is_empty() {
                runs.push(Run::default());
            }
            let number = number.trim_end_matches(':').trim().parse().unwrap_or(1);
            if let Some(run) = runs.last_mut() {
                run.blocks.push(Block { line: at + 1, number, ..Block::default() });
            }
            part = Part::None;
            continue;
        }
        let Some(run) = runs.last_mut() else { continue };
        match run.blocks.last_mut() {
            None => run.input.line(line),
            Some(block) => block.line(file, at + 1, line, &mut part)?,
        }
    }
    Ok(runs)
}

impl Block {
    fn line(&mut self, file: &str, at: usize, line: &str, part: &mut Part) -> Result<(), ImportError> {
        let place = || format!("{file}, line {at}");
        let value = |begin: &str| line.strip_prefix(begin).map(str::trim);
        match line {
            "Total IO" => *part = Part::Total,
            "Read IO" => *part = Part::Read,
            "Write IO" => *part = Part::Write,
            "Totals:" => *part = Part::None,
            _ if line.starts_with("%-ile") => {
                *part = Part::Percentiles;
                // One for each target, and the last one over all.
                self.percentiles = Chart::headed(line);
            }
            _ if line.starts_with("thread |") && !line.contains("I/Os") => *part = Part::None,
            _ if line.starts_with("The test was interrupted before") => self.interrupted = true,
            _ => {
                if let Some(text) = value("actual test time:") {
                    let seconds = parse(text.trim_end_matches('s'), 1.0);
                    self.seconds = Some(seconds.filter(|s| s.value > 0.0).ok_or_else(|| {
                        let problem = format!("the test time is \"{}\", not seconds above 0", shown(text));
                        ImportError::new(place(), problem, "give what DISKSPD printed, unchanged")
                    })?);
                } else if let Some(text) = value("thread count:") {
                    self.threads = crate::numbers::number(text);
                } else if let Some(text) = value("request count:") {
                    self.requests = crate::numbers::number(text);
                } else {
                    match part {
                        Part::None => {}
                        Part::Total => self.total.line(&place(), line)?,
                        Part::Read => self.read.line(&place(), line)?,
                        Part::Write => self.write.line(&place(), line)?,
                        Part::Percentiles => self.percentiles.line(&place(), line)?,
                    }
                }
            }
        }
        Ok(())
    }

    /// Takes the figures.
    fn measure(&self, point: &mut Point, notes: &mut Notes) -> Result<(), ImportError> {
        if self.interrupted {
            point.lost_workers = 1;
            notes.doubts.push(Finding::doubt(
                FindingKind::LostWorkers,
                "a measurement",
                format!("in {} DISKSPD reports that it was interrupted before it began", point.place),
                "Run it again.",
            ));
            return Ok(());
        }
        let (Some(time), Some(total)) = (self.seconds, &self.total.total) else {
            point.lost_workers = 1;
            notes.doubts.push(Finding::doubt(
                FindingKind::MissingIntervals,
                "a test time, and a row \"total:\" below \"Total IO\"",
                format!("neither or one of them in {}", point.place),
                "DISKSPD was stopped, or the file was cut. No figure is taken from this time span.",
            ));
            return Ok(());
        };
        point.window_s = Some(time.value);
        point.samples = Some(total.ios);
        point.iops = Some(total.iops);
        let bytes = total.bytes as f64 / time.value;
        point.throughput = Some(Throughput {
            // The count is exact; the time is rounded to hundredths of a second.
            bytes_per_s: Stated { value: bytes, half_digit: bytes * time.rounding() },
            unit: "bytes/s".into(),
            unit_bytes: 1.0,
        })
        .filter(|throughput| is_figure(throughput.bytes_per_s.value));
        if point.write_percent.is_none() && total.ios > 0 {
            let writes = self.write.total.as_ref().map(|writes| writes.ios as f64);
            point.write_percent =
                writes.map(|writes| 100.0 * writes / total.ios as f64).filter(|percent| *percent <= 100.0);
        }
        notes.doubts.extend(self.contradiction(total, time, &point.place));
        let idle = self.total.rows.iter().filter(|row| row.ios == 0).count();
        if idle > 0 {
            let rows = self.total.rows.len();
            point.lost_workers = u32::from(idle == rows);
            notes.doubts.push(Finding::doubt(
                FindingKind::LostWorkers,
                format!("I/O of {}", counted(rows, "thread and target", "threads and targets")),
                format!("{idle} did none in {}", point.place),
                "They could not open their target, failed, or were held back. See DISKSPD's messages.",
            ));
        }
        notes.deviations += usize::from(self.total.has_deviation());
        if total.ios == 0 {
            return Ok(());
        }
        point.mean_us = total.mean_us;
        notes.silent += usize::from(total.mean_us.is_none());
        point.min_us = self.percentiles.min_us;
        point.max_us = self.percentiles.max_us;
        for (percent, value) in &self.percentiles.percentiles_us {
            if deep_enough(total.ios, *percent) {
                point.percentiles_us.push((*percent, *value));
            } else {
                notes.shallow += 1;
            }
        }
        point.percentiles_us.sort_by(|a, b| a.0.total_cmp(&b.0));
        Ok(())
    }

    /// That the rows do not add up: the file was changed, or lines are missing.
    fn contradiction(&self, total: &table::Row, time: Stated, place: &str) -> Option<Finding> {
        let sum = |rows: &[table::Row]| rows.iter().fold(0_u64, |sum, row| sum.saturating_add(row.ios));
        let sides = self.read.total.as_ref().zip(self.write.total.as_ref());
        let rate = total.ios as f64 / time.value;
        let rounded = total.iops.half_digit + rate * time.rounding() + 1e-9 * rate;
        let found = if !self.total.rows.is_empty() && sum(&self.total.rows) != total.ios {
            format!("{} I/Os in the rows, and {} in all", sum(&self.total.rows), total.ios)
        } else if sides.is_some_and(|(reads, writes)| reads.ios.saturating_add(writes.ios) != total.ios) {
            format!("reads and writes that are not the {} I/Os in all", total.ios)
        } else if (rate - total.iops.value).abs() > rounded {
            format!("{} I/Os in {} s, and {} a second", total.ios, time.value, total.iops.value)
        } else {
            return None;
        };
        Some(Finding::doubt(
            FindingKind::MissingIntervals,
            format!("figures in {place} that agree with each other"),
            found,
            "The file was changed, or lines are missing. Give what DISKSPD printed, unchanged.",
        ))
    }
}

/// Findings that hold for all time spans, stated once.
#[derive(Debug, Default)]
struct Notes {
    doubts: Vec<Finding>,
    /// Time spans without latencies.
    silent: usize,
    /// Time spans of which the load is not stated.
    unknown: usize,
    /// Time spans of which it is not known whether their rate was limited.
    open: usize,
    /// Time spans with the deviation of IOPS.
    deviations: usize,
    /// Percentiles left out for want of samples.
    shallow: usize,
}

impl Notes {
    fn findings(self) -> Vec<Finding> {
        let mut findings = self.doubts;
        let spans = |count: usize| counted(count, "time span", "time spans");
        let mut note = |count: usize, expected: &str, found: String, cause: &str| {
            if count > 0 {
                findings.push(Finding::note(FindingKind::Adjusted, expected, found, cause));
            }
        };
        let found = format!("none in {}", spans(self.silent));
        note(self.silent, "latencies", found, "DISKSPD measures them with -L.");
        let found = format!("none for {}", spans(self.unknown));
        note(
            self.unknown,
            "input parameters, which say the load",
            found,
            "Block size and depth are not known. Give all that DISKSPD printed.",
        );
        let found = format!("{} of an XML profile (-X), which may limit the rate", spans(self.open));
        note(
            self.open,
            "the number of I/Os outstanding",
            found,
            "The text does not say it, so that Little's law is not checked. -Rxml has it.",
        );
        let found = format!("only their deviation in {}", spans(self.deviations));
        note(
            self.deviations,
            "IOPS of each interval (-D)",
            found,
            "Whether the load was steady cannot be told. -Rxml has the series.",
        );
        findings.extend(shallow(self.shallow));
        findings
    }
}
