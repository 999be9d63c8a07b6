//! elbencho's CSV of results (`--csvfile`): a row for each phase.
//!
//! Phases that read or write blocks are points; others (`MKDIRS`, `STAT`, `RMFILES`, …) do no I/O and are left out. Figures
//! are of `[last]`, from the beginning to the end of the slowest thread; where they differ much from `[first]`, when the
//! fastest had ended, what was outstanding is not known. `IOPS`, `MiB/s` and latencies (microseconds) are whole numbers with
//! the rest cut off. `threads` are of each host, `IO depth` of each thread: together they were outstanding. With mixed
//! reads and writes the reads have columns of their own (`rwmix read …`), and both together are the point. There are no
//! percentiles.
//!
//! A limit of the rate is in the command line alone (`--limitread`, `--limitwrite`), which newer versions write.
//!
//! Source: elbencho's `Statistics.cpp`, `ProgArgs.cpp` and its description of the CSV file, versions 1.0 to 3.1.

use std::collections::{BTreeSet, HashMap};

use csv::{ReaderBuilder, StringRecord, Trim};
use loadline_measure::audit::{Finding, FindingKind};
use loadline_measure::point::{Point, Stated, Throughput};

use crate::numbers::{is_figure, number, scaled};
use crate::text::{counted, kept, shown};
use crate::{ImportError, Imported};

/// More rows than any file has that is read.
const MOST_ROWS: usize = 200_000;
/// `[first]` and `[last]` that differ by more than this ratio are reported in a note.
const TELLING: f64 = 1.05;
const MIB: f64 = 1_048_576.0;
/// What distinguishes loads besides operation, block size and offsets, where it varies.
const PARTS: [&str; 7] = ["path type", "paths", "dirs", "files", "file size", "direct IO", "random aligned"];

/// Whether a line is the header of its table.
pub(crate) fn is_header(line: &str) -> bool {
    let names: Vec<&str> = line.split(',').map(|name| name.trim().trim_matches('"')).collect();
    names.first() == Some(&"ISO date") && names.contains(&"operation") && names.contains(&"IOPS [last]")
}

/// One row.
struct Row<'a> {
    file: &'a str,
    line: u64,
    columns: &'a HashMap<String, usize>,
    cells: &'a StringRecord,
}

impl Row<'_> {
    /// A cell; `None` if it is empty or its column is not there.
    fn text(&self, name: &str) -> Option<&str> {
        self.cells.get(*self.columns.get(name)?).filter(|cell| !cell.is_empty())
    }

    fn figure(&self, name: &str) -> Result<Option<f64>, ImportError> {
        let Some(cell) = self.text(name) else { return Ok(None) };
        number(cell).map(Some).ok_or_else(|| {
            let place = format!("{}, line {}, column \"{name}\"", self.file, self.line);
            let problem = format!("\"{}\" is no number of 0 or above", shown(cell));
            ImportError::new(place, problem, "give the file as elbencho wrote it")
        })
    }

    /// A whole number whose rest was cut off.
    fn stated(&self, name: &str, factor: f64) -> Result<Option<Stated>, ImportError> {
        let value = self.figure(name)?;
        Ok(value.and_then(|value| scaled(Stated { value, half_digit: 1.0 }, factor)))
    }
}

/// What reads or writes came to.
#[derive(Debug, Clone, Copy, Default)]
struct Side {
    first: Option<f64>,
    iops: Option<Stated>,
    bytes: Option<Stated>,
    ios: Option<f64>,
    min_us: Option<Stated>,
    mean_us: Option<Stated>,
    max_us: Option<Stated>,
}

impl Side {
    fn of(row: &Row, begin: &str) -> Result<Side, ImportError> {
        let named = |name: &str| format!("{begin}{name}");
        Ok(Side {
            first: row.figure(&named("IOPS [first]"))?,
            iops: row.stated(&named("IOPS [last]"), 1.0)?,
            bytes: row.stated(&named("MiB/s [last]"), MIB)?,
            ios: row.figure(&named("IOs [last]"))?.or(row.figure(&named("I/Os [last]"))?),
            min_us: row.stated(&named("IO lat us [min]"), 1.0)?,
            mean_us: row.stated(&named("IO lat us [avg]"), 1.0)?,
            max_us: row.stated(&named("IO lat us [max]"), 1.0)?,
        })
    }
}

/// Reads a result.
pub(crate) fn read(file: &str, text: &str) -> Result<Imported, ImportError> {
    let mut reader =
        ReaderBuilder::new().has_headers(false).flexible(true).trim(Trim::All).from_reader(text.as_bytes());
    let mut columns: HashMap<String, usize> = HashMap::new();
    let mut notes = Notes::default();
    let (mut points, mut parts) = (Vec::new(), Vec::<[Option<String>; PARTS.len()]>::new());
    let mut width = 0;
    for record in reader.records() {
        let record = record.map_err(|error| {
            let line = error.position().map_or(0, csv::Position::line);
            let place = format!("{file}, line {line}");
            ImportError::new(place, shown(&error.to_string()), "give the file as elbencho wrote it")
        })?;
        let line = record.position().map_or(0, csv::Position::line);
        // Each run of some versions adds a header.
        if record.get(0) == Some("ISO date") {
            columns = record.iter().enumerate().map(|(at, name)| (name.to_string(), at)).collect();
            width = record.len();
            continue;
        }
        if record.iter().all(str::is_empty) {
            continue;
        }
        if record.len() != width {
            let problem = format!("{} under {width} columns", counted(record.len(), "field", "fields"));
            let advice = "results of two versions of elbencho in one file? Give each its own";
            return Err(ImportError::new(format!("{file}, line {line}"), problem, advice));
        }
        if points.len() >= MOST_ROWS {
            return Err(ImportError::new(file, format!("more than {MOST_ROWS} rows"), "split the file"));
        }
        let row = Row { file, line, columns: &columns, cells: &record };
        match point(&row, &mut notes)? {
            Some(point) => {
                points.push(point);
                parts.push(PARTS.map(|name| row.text(name).map(shown)));
            }
            None => notes.without_io += 1,
        }
    }
    if points.is_empty() {
        let problem = "no row states IOPS: no phase read or wrote blocks";
        return Err(ImportError::new(file, problem, "measure with elbencho --read or --write"));
    }
    tell_apart(&mut points, &parts);
    Ok(Imported { format: "elbencho CSV", points, findings: notes.findings(), ..Imported::default() })
}

fn point(row: &Row, notes: &mut Notes) -> Result<Option<Point>, ImportError> {
    let (main, mixed) = (Side::of(row, "")?, Side::of(row, "rwmix read ")?);
    let both = main.iops.is_some() && mixed.iops.is_some();
    let Some(iops) = sum(main.iops, mixed.iops) else { return Ok(None) };
    let operation = row.text("operation").unwrap_or_default();
    let place = format!("{}, line {}, {}", row.file, row.line, shown(operation));
    let block = row.figure("block size")?.filter(|block| *block >= 1.0);
    let write_percent = match (both, operation) {
        // With mixed reads and writes the main columns are of the writes.
        (true, _) => main.iops.map(|writes| 100.0 * writes.value / iops.value).filter(|p| *p <= 100.0),
        (false, "READ") => Some(0.0),
        (false, "WRITE") => Some(100.0),
        _ => None,
    };
    let offsets = row.figure("random")?.map(|random| if random > 0.0 { "random" } else { "sequential" });
    let mut named = vec![
        row.text("label").map(kept),
        Some(shown(operation)),
        block.map(|block| format!("{} KiB", block / 1024.0)),
        offsets.map(String::from),
    ];
    let hosts = row.figure("hosts")?.unwrap_or(1.0).max(1.0);
    let each = row.figure("threads")?.zip(row.figure("IO depth")?.map(|depth| depth.max(1.0)));
    let outstanding = each.map(|(threads, depth)| hosts * threads * depth);
    let command = row.text("command").unwrap_or_default();
    let limited = ["--limitread", "--limitwrite"].iter().any(|option| command.contains(option));
    notes.limited += usize::from(limited);
    let first = main.first.unwrap_or(0.0) + mixed.first.unwrap_or(0.0);
    let uneven = first > 0.0 && (first / iops.value.max(1.0)).max(iops.value / first) > TELLING;
    if uneven {
        notes.doubts.push(Finding::doubt(
            FindingKind::Adjusted,
            format!("all threads of {place} to do I/O to its end"),
            format!("{first} IOPS when the first had ended, and {} at the end", iops.value),
            "For a part of it the load was smaller than stated. Limit it by time (--timelimit with --infloop).",
        ));
    }
    if limited || uneven {
        // Nothing else distinguishes their depths, and other depths are no repeats.
        named.push(each.map(|(threads, depth)| format!("{threads} threads, depth {depth}")));
    }
    let errors = row.figure("errors total")?.unwrap_or(0.0);
    if errors > 0.0 {
        notes.doubts.push(Finding::doubt(
            FindingKind::Errors,
            "no errors",
            format!("{errors} operations failed in {place}"),
            "Failed operations are among the I/Os. See elbencho's output.",
        ));
    }
    let samples = match both {
        true => main.ios.zip(mixed.ios).map(|(writes, reads)| writes + reads),
        false => main.ios.or(mixed.ios),
    };
    Ok(Some(Point {
        profile: named.into_iter().flatten().collect::<Vec<_>>().join(", "),
        place,
        workers: Some(hosts as u32).filter(|hosts| *hosts > 0 && *hosts < u32::MAX),
        block_bytes: block,
        write_percent,
        outstanding: outstanding.filter(|sum| is_figure(*sum) && *sum > 0.0 && !limited && !uneven),
        window_s: row.figure("time ms [last]")?.map(|ms| ms / 1e3).filter(|seconds| *seconds > 0.0),
        iops: Some(iops),
        throughput: sum(main.bytes, mixed.bytes).map(|bytes_per_s| Throughput {
            bytes_per_s,
            unit: "MiB/s".into(),
            unit_bytes: MIB,
        }),
        mean_us: match both {
            true => mean(&main, &mixed),
            false => main.mean_us.or(mixed.mean_us),
        },
        min_us: outer(main.min_us, mixed.min_us, both, |a, b| a < b),
        max_us: outer(main.max_us, mixed.max_us, both, |a, b| a > b),
        samples: samples.map(|samples| samples as u64),
        errors: errors as u64,
        ..Point::default()
    }))
}

/// Of both together, if both are there, or of the one that is.
fn sum(a: Option<Stated>, b: Option<Stated>) -> Option<Stated> {
    match (a, b) {
        (Some(a), Some(b)) => {
            let all = Stated { value: a.value + b.value, half_digit: a.half_digit + b.half_digit };
            Some(all).filter(|all| is_figure(all.value))
        }
        (a, b) => a.or(b),
    }
}

/// The mean over writes and reads, weighed by how many there were a second.
fn mean(a: &Side, b: &Side) -> Option<Stated> {
    let (of_a, of_b) = (a.iops?.value, b.iops?.value);
    let mix = |a: f64, b: f64| (a * of_a + b * of_b) / (of_a + of_b);
    let (mean_a, mean_b) = (a.mean_us?, b.mean_us?);
    let mean = Stated {
        value: mix(mean_a.value, mean_b.value),
        half_digit: mix(mean_a.half_digit, mean_b.half_digit),
    };
    Some(mean).filter(|mean| is_figure(mean.value))
}

/// The smaller or the larger of two; with `both`, none unless both are stated.
fn outer(a: Option<Stated>, b: Option<Stated>, both: bool, first: fn(f64, f64) -> bool) -> Option<Stated> {
    match (a, b) {
        (Some(a), Some(b)) => Some(if first(a.value, b.value) { a } else { b }),
        (a, b) => a.or(b).filter(|_| !both),
    }
}

/// Adds what varies to the names of loads.
fn tell_apart(points: &mut [Point], parts: &[[Option<String>; PARTS.len()]]) {
    for (at, name) in PARTS.iter().enumerate() {
        let values: BTreeSet<&Option<String>> = parts.iter().filter_map(|parts| parts.get(at)).collect();
        if values.len() < 2 {
            continue;
        }
        for (point, parts) in points.iter_mut().zip(parts) {
            if let Some(Some(value)) = parts.get(at) {
                point.profile.push_str(&format!(", {name} {value}"));
            }
        }
    }
}

/// Findings that hold for all rows, stated once.
#[derive(Debug, Default)]
struct Notes {
    doubts: Vec<Finding>,
    without_io: usize,
    limited: usize,
}

impl Notes {
    fn findings(self) -> Vec<Finding> {
        let mut findings = self.doubts;
        let mut note = |expected: &str, found: String, cause: &str| {
            findings.push(Finding::note(FindingKind::Adjusted, expected, found, cause));
        };
        if self.without_io > 0 {
            let rows = counted(self.without_io, "row", "rows");
            note(
                "phases that read or write blocks",
                format!("{rows} of others, passed over"),
                "Operations on files and directories are no I/Os.",
            );
        }
        if self.limited > 0 {
            let rows = counted(self.limited, "row", "rows");
            note(
                "as much outstanding as threads and depth allow",
                format!("a limit of the rate in {rows}"),
                "What was outstanding is not known, so that Little's law is not checked.",
            );
        }
        note(
            "percentiles",
            "none in elbencho's CSV".into(),
            "Hold a limit to the mean: --limit 'mean <= 2ms'.",
        );
        findings
    }
}
