//! vdbench's `flatfile.html`: columns of blank-separated words under a header, after comments that begin with `*`.
//!
//! Each run (`RD=`) has a row for each interval and one whose `Interval` is `avg_2-5`, over the intervals from the second to
//! the fifth: that row is a point, and those intervals are its series. How long an interval is follows from the times of
//! its rows. `rate` is what was carried and `reqrate` what was requested, of which 999977 and more (9999988) mean as much as
//! possible; `MB/sec` counts 1024 × 1024 bytes, and response times are milliseconds. `xfersize`, `threads`, `rdpct`, `seekpct`, …
//! are what was requested, `n/a` where workloads differ. Of file systems (`Read_rate`, `Write_rate`) reads and writes
//! together are the I/Os; operations on files and directories are passed over, and so are rows that format storage.
//!
//! `threads` are of each storage definition, of which there may be several and whose number the file does not say: so what was
//! outstanding is not known. There are no percentiles.
//!
//! Source: vdbench's `Flat.java` and `Report.java` (50407), its documentation, and published files of 5.04.07.

use std::collections::{BTreeSet, HashMap};

use loadline_measure::audit::{Finding, FindingKind};
use loadline_measure::point::{Point, SeriesPoint, Stated, Throughput};

use crate::numbers::{is_figure, number, scaled, whole};
use crate::text::{counted, kept, shown};
use crate::{ImportError, Imported};

/// More rows than any file has that is read.
const MOST_ROWS: usize = 500_000;
/// From this rate on as much as possible was requested.
const UNLIMITED: f64 = 999_977.0;
/// Half of what the last of the four decimals counts.
const HALF_DIGIT: f64 = 0.000_05;
const MIB: f64 = 1_048_576.0;

/// Whether a file's first line is of a page of vdbench.
pub(crate) fn is_page(first: &str) -> bool {
    first.starts_with('<') && first.contains("Vdbench")
}

/// Whether a line is the header of its columns.
pub(crate) fn is_header(line: &str) -> bool {
    let mut words = line.split_whitespace();
    let begins = ["tod", "timestamp", "Run", "Interval"];
    begins.iter().all(|name| words.next().is_some_and(|word| word.eq_ignore_ascii_case(name)))
}

/// Where each column is.
type Columns = HashMap<String, usize>;

/// One row.
struct Row<'a> {
    file: &'a str,
    line: usize,
    columns: &'a Columns,
    cells: Vec<&'a str>,
}

impl Row<'_> {
    fn text(&self, name: &str) -> Option<&str> {
        let cell = self.cells.get(*self.columns.get(name)?).copied()?;
        Some(cell).filter(|cell| !cell.eq_ignore_ascii_case("n/a"))
    }

    /// A figure; `None` if the column is not there or is `n/a`.
    fn figure(&self, name: &str) -> Result<Option<f64>, ImportError> {
        // Where workloads differ, older versions write -1.
        let Some(cell) = self.text(name).filter(|cell| !matches!(*cell, "-1" | "-1.0000")) else {
            return Ok(None);
        };
        number(cell).map(Some).ok_or_else(|| {
            let place = format!("{}, line {}, column \"{}\"", self.file, self.line, shown(name));
            let problem = format!("\"{}\" is no figure of 0 or above", shown(cell));
            ImportError::new(place, problem, "give flatfile.html as vdbench wrote it")
        })
    }

    fn stated(&self, name: &str, factor: f64) -> Result<Option<Stated>, ImportError> {
        let value = self.figure(name)?;
        Ok(value.and_then(|value| scaled(Stated { value, half_digit: HALF_DIGIT }, factor)))
    }

    /// Seconds since midnight.
    fn tod(&self) -> Option<f64> {
        let mut parts = self.text("tod")?.split(':').map(number);
        let (hours, minutes, seconds) = (parts.next()??, parts.next()??, parts.next()??);
        Some(3_600.0 * hours + 60.0 * minutes + seconds)
    }
}

/// An interval of a run.
struct Interval {
    number: u32,
    at: Option<f64>,
    iops: f64,
    mean_us: Option<f64>,
}

/// A run's name and what was requested of it that its point does not keep.
struct RunParameters {
    run: String,
    /// Threads, and percent of seeks, of read hits and of write hits.
    parts: [Option<f64>; 4],
}

/// What the parts of [`RunParameters`] are.
const PARTS: [(&str, &str); 4] =
    [("threads", "threads"), ("seekpct", "% seeks"), ("rhpct", "% read hits"), ("whpct", "% write hits")];

/// Reads a flat file.
pub(crate) fn read(file: &str, text: &str) -> Result<Imported, ImportError> {
    let mut columns: Columns = HashMap::new();
    let (mut points, mut parameters) = (Vec::new(), Vec::<RunParameters>::new());
    let mut intervals: Vec<Interval> = Vec::new();
    let (mut rows, mut odd, mut formats, mut files) = (0_usize, 0_usize, 0_usize, 0_usize);
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if is_header(line) {
            let names = line.split_whitespace().enumerate();
            columns = names.map(|(at, name)| (name.to_lowercase(), at)).collect();
            intervals.clear();
            continue;
        }
        if columns.is_empty() || line.is_empty() || line.starts_with(['*', '<']) {
            continue;
        }
        rows += 1;
        if rows > MOST_ROWS {
            let problem = format!("more than {MOST_ROWS} rows");
            return Err(ImportError::new(file, problem, "split the file"));
        }
        let cells: Vec<&str> = line.split_whitespace().collect();
        if cells.len() != columns.len() {
            odd += 1;
            continue;
        }
        let row = Row { file, line: at + 1, columns: &columns, cells };
        let (Some(run), Some(interval)) = (row.text("run"), row.text("interval")) else {
            odd += 1;
            continue;
        };
        if run == "SD_format" || run.starts_with("format_for_") {
            formats += usize::from(interval.starts_with("avg_"));
            continue;
        }
        let (iops, mean) = carried(&row)?;
        if let Some(number) = whole(interval) {
            if number == 1 {
                intervals.clear();
            }
            let mean_us = mean.map(|mean| mean.value);
            let iops = iops.map_or(0.0, |iops| iops.value);
            intervals.push(Interval { number, at: row.tod(), iops, mean_us });
            continue;
        }
        let Some((from, to)) = averaged(interval) else {
            odd += 1;
            continue;
        };
        files += usize::from(is_of_files(&columns));
        let mut point = point(&row, run, iops, mean)?;
        window(&mut point, &intervals, from, to);
        intervals.clear();
        let mut parts = [None; 4];
        for (part, (name, _)) in parts.iter_mut().zip(PARTS) {
            *part = row.figure(name)?;
        }
        parameters.push(RunParameters { run: run.to_string(), parts });
        points.push(point);
    }
    if columns.is_empty() {
        let problem = "this is a page of vdbench without columns of results";
        return Err(ImportError::new(file, problem, "give flatfile.html of the same output folder"));
    }
    if points.is_empty() {
        let problem = "no run has a row \"avg_…\", so that none was complete";
        return Err(ImportError::new(file, problem, "run vdbench to its end"));
    }
    name(&mut points, &parameters);
    let mut findings = Vec::new();
    if odd > 0 {
        findings.push(Finding::doubt(
            FindingKind::MissingIntervals,
            "a word in each row for each column",
            format!("{} with others, passed over", counted(odd, "row", "rows")),
            "The file was cut or changed. Give flatfile.html as vdbench wrote it.",
        ));
    }
    let mut note = |expected: &str, found: &str, cause: &str| {
        findings.push(Finding::note(FindingKind::Adjusted, expected, found, cause));
    };
    if formats > 0 {
        note(
            "runs that measure",
            "runs that format storage, passed over",
            "vdbench wrote its files before it measured.",
        );
    }
    if files > 0 {
        note(
            "reads and writes",
            "operations on files and directories as well, passed over",
            "IOPS and latencies are of reads and writes together.",
        );
    }
    note(
        "the number of I/Os outstanding",
        "threads of each storage definition, and not how many of these there are",
        "Little's law cannot be checked.",
    );
    note("percentiles", "none in flatfile.html", "Hold a limit to the mean: --limit 'mean <= 2ms'.");
    Ok(Imported { format: "vdbench flatfile", points, findings, ..Imported::default() })
}

/// `avg_2-5` is from the second interval to the fifth.
fn averaged(interval: &str) -> Option<(u32, u32)> {
    let (from, to) = interval.strip_prefix("avg_")?.split_once('-')?;
    Some((whole(from)?, whole(to)?)).filter(|(from, to)| from <= to)
}

fn is_of_files(columns: &Columns) -> bool {
    columns.contains_key("read_rate") && columns.contains_key("write_rate")
}

/// I/Os a second and their mean, microseconds.
fn carried(row: &Row) -> Result<(Option<Stated>, Option<Stated>), ImportError> {
    if !is_of_files(row.columns) {
        return Ok((row.stated("rate", 1.0)?, row.stated("resp", 1e3)?));
    }
    let (reads, writes) = (row.figure("read_rate")?, row.figure("write_rate")?);
    let (Some(reads), Some(writes)) = (reads, writes) else { return Ok((None, None)) };
    let all = Stated { value: reads + writes, half_digit: 2.0 * HALF_DIGIT };
    let mean = match (row.figure("read_resp")?, row.figure("write_resp")?) {
        (Some(read), Some(write)) if all.value > 0.0 => {
            let value = 1e3 * (reads * read + writes * write) / all.value;
            Some(Stated { value, half_digit: 1e3 * HALF_DIGIT }).filter(|mean| is_figure(mean.value))
        }
        _ => None,
    };
    Ok((Some(all).filter(|all| is_figure(all.value)), mean))
}

fn point(row: &Row, run: &str, iops: Option<Stated>, mean: Option<Stated>) -> Result<Point, ImportError> {
    let idle = iops.is_none_or(|iops| iops.value == 0.0);
    let of_files = is_of_files(row.columns);
    let percent = |value: Option<f64>| value.filter(|percent| *percent <= 100.0);
    let reads = percent(row.figure("rdpct")?).or(percent(row.figure("read%")?));
    let requested = row.figure("reqrate")?.filter(|rate| *rate > 0.0 && *rate < UNLIMITED && !of_files);
    let largest = match of_files {
        true => {
            let each = [row.stated("read_resp_max", 1e3)?, row.stated("write_resp_max", 1e3)?];
            each.into_iter().flatten().max_by(|a, b| a.value.total_cmp(&b.value))
        }
        false => row.stated("resp_max", 1e3)?,
    };
    let bytes = row.stated("mb/sec", MIB)?;
    Ok(Point {
        place: format!("{}, line {}, run {}", row.file, row.line, shown(run)),
        profile: kept(run),
        block_bytes: row.figure("xfersize")?.filter(|size| *size >= 1.0),
        write_percent: reads.map(|reads| 100.0 - reads),
        rate_iops: requested,
        iops,
        throughput: bytes.map(|bytes_per_s| Throughput {
            bytes_per_s,
            unit: "MiB/s".into(),
            unit_bytes: MIB,
        }),
        mean_us: mean.filter(|_| !idle),
        max_us: largest.filter(|_| !idle),
        ..Point::default()
    })
}

/// The window and its series, where it is known how long an interval is.
fn window(point: &mut Point, intervals: &[Interval], from: u32, to: u32) {
    let apart = |pair: &[Interval]| match pair {
        [a, b] if b.number == a.number.checked_add(1)? => {
            let seconds = b.at? - a.at?;
            // Past midnight the time of day begins anew.
            Some(if seconds < 0.0 { seconds + 86_400.0 } else { seconds })
        }
        _ => None,
    };
    let mut seconds: Vec<f64> = intervals.windows(2).filter_map(apart).collect();
    seconds.sort_by(f64::total_cmp);
    let middle = seconds.get(seconds.len() / 2).map(|seconds| seconds.round());
    let Some(length) = middle.filter(|length| *length >= 1.0) else { return };
    let count = f64::from(to - from) + 1.0;
    point.window_s = Some(count * length).filter(|window| is_figure(*window));
    let inside: Vec<&Interval> = intervals.iter().filter(|i| (from..=to).contains(&i.number)).collect();
    if inside.len() as f64 != count {
        return;
    }
    let part = |(interval, at): (&&Interval, u32)| SeriesPoint {
        at_s: f64::from(at) * length,
        iops: interval.iops,
        mean_us: interval.mean_us.filter(|_| interval.iops > 0.0),
    };
    point.series = inside.iter().zip(1..).map(part).collect();
}

/// Gives points of one run definition a family, which states what else distinguishes them. The runs of a curve have the share
/// of its maximum in their names: `rd1_(10%)`.
fn name(points: &mut [Point], parameters: &[RunParameters]) {
    let base = |run: &str| run.split("_(").next().unwrap_or(run).to_string();
    let varies = |part: usize| {
        let values: BTreeSet<Option<u64>> = parameters
            .iter()
            .map(|parameters| parameters.parts.get(part).copied().flatten().map(f64::to_bits))
            .collect();
        values.len() > 1
    };
    let varying: Vec<usize> = (0..PARTS.len()).filter(|part| varies(*part)).collect();
    for (point, parameters) in points.iter_mut().zip(parameters) {
        let mut family = base(&parameters.run);
        for part in &varying {
            let value = parameters.parts.get(*part).copied().flatten();
            if let (Some(value), Some((_, what))) = (value, PARTS.get(*part)) {
                family.push_str(&format!(", {value} {what}"));
            }
        }
        point.family = Some(kept(&family));
    }
}
