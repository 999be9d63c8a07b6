//! Tables: one measured point a row.
//!
//! Separated by commas, semicolons or tabs, with a header that states what each column is and in which unit. Case does
//! not matter; blanks and hyphens in a name count as underscores, round and square brackets as nothing, and `/s` as
//! `_per_s`, so that `Throughput (MB/s)` is `throughput_mb_per_s`.
//!
//! | column | what it states |
//! | --- | --- |
//! | `workers`, `vms`, `vms_total`, `vm_count` | workers that put the load on |
//! | `nodes`, `nodes_up` | nodes that were up |
//! | `profile`, `load`, `workload` | the load: `B4-T2-O32-W0-PR`, or words such as `4k-randwrite` |
//! | `condition` | state of the storage, such as `healthy` |
//! | `repeat` | which measurement of the same thing, from 1 |
//! | `block_kib`, `block_bytes` | size of each I/O |
//! | `threads` | threads of each worker |
//! | `outstanding` | I/Os outstanding over all workers |
//! | `outstanding_per_worker`, `outstanding_per_thread` | I/Os outstanding on each worker, or each of its threads |
//! | `iodepth` | the same as `outstanding_per_thread`, with one thread where `threads` is not there |
//! | `read_pct`, `read_percent`, `write_pct`, `write_percent` | share of reads or writes |
//! | `seconds` | length of the measured window |
//! | `rate_iops` | I/Os a second offered in all; then the load was no closed loop |
//! | `iops` | I/Os a second |
//! | `mb_per_s`, `mib_per_s`, … | throughput: `bytes`, `kb`, `mb`, `gb` (decimal), `kib`, `mib`, `gib` (binary) |
//! | `latency_us`, `mean_us`, `avg_us`, … | mean latency; `ns`, `us`, `ms` or `s` |
//! | `min_us`, `max_us`, `p50_us`, `p99.9_us`, `p99_9_us`, … | extremes and percentiles, in the same units |
//! | `latency_of` | whose latencies: `read`, `write` or `all` |
//! | `errors`, `lost_workers` | I/Os that failed; workers that ended early |
//! | `theoretical_iops`, `ceiling_iops`, `theoretical_gb_per_s`, … | the most that the storage could do |
//! | `stated_percent` | percent of that, as the source states it |
//! | `pattern`, `copies` | what distinguishes rows of one load |
//!
//! Rows of one load that differ in block size, share of writes, `latency_of`, `pattern` or `copies` are different
//! loads; so are those that are alike but for a column that is not kept or not known. What distinguishes them is in
//! [`Point::family`]: `x, pattern random`. Tables in which nothing of that varies keep the plain names.
//!
//! Throughput may have `throughput_` in front. `Kb`, `Mb` and `Gb`, with a small b alone, are refused: to the letter they
//! are bits, and often bytes are meant. An empty cell states nothing. One disk a worker is assumed where a
//! profile's name states threads and outstanding I/Os, so that a worker has threads × outstanding of them.

mod apart;
mod columns;
mod row;
mod thousands;

use std::collections::BTreeMap;

use csv::{ReaderBuilder, StringRecord, Trim};
use loadline_base::figures::listed;
use loadline_measure::audit::{Finding, FindingKind};
use loadline_measure::point::Point;

use crate::text::{counted, shown};
use crate::{ImportError, Imported, Options};
use columns::{Column, Refused};

/// More columns than any table of results has.
const MOST_COLUMNS: usize = 1_000;
/// More rows than any table of results has.
const MOST_ROWS: usize = 200_000;
/// Contradictions are named up to here; a table that has more is wrong throughout.
const MOST_CONTRADICTIONS: usize = 20;

/// Whether a line is the header of a table with results.
pub(crate) fn is_header(line: &str) -> bool {
    let separator = char::from(separator(line));
    line.split(separator).any(|name| {
        let column = columns::column(name.trim().trim_matches('"'));
        matches!(column, Ok(Column::Iops | Column::Throughput { .. }) | Err(_))
    })
}

/// The separator that spreadsheets state in a line of its own, before the header: `sep=;`.
pub(crate) fn stated_separator(line: &str) -> Option<u8> {
    let stated = line.trim().trim_matches('"').strip_prefix("sep=")?;
    [b',', b';', b'\t'].into_iter().find(|byte| stated.as_bytes() == [*byte])
}

/// The separator that the header has most of.
fn separator(header: &str) -> u8 {
    let count = |byte: u8| header.bytes().filter(|b| *b == byte).count();
    [b',', b';', b'\t'].into_iter().rev().max_by_key(|byte| count(*byte)).unwrap_or(b',')
}

/// Reads a table.
pub(crate) fn read(file: &str, text: &str, options: &Options) -> Result<Imported, ImportError> {
    let line =
        |text: &'_ str| text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().to_string();
    let stated = stated_separator(&line(text));
    // From the end of that line on, so that lines are counted as they are in the file.
    let text = match stated {
        Some(_) => {
            text.find("sep=").and_then(|at| text.get(at + text.get(at..)?.find('\n')?..)).unwrap_or_default()
        }
        None => text,
    };
    let separator = stated.unwrap_or_else(|| separator(&line(text)));
    let mut reader = ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .trim(Trim::All)
        .delimiter(separator)
        .from_reader(text.as_bytes());
    let mut records = reader.records();
    let broken = |error: csv::Error| {
        let line = error.position().map_or(0, csv::Position::line);
        ImportError::new(format!("{file}, line {line}"), error.to_string(), "save the table as CSV anew")
    };
    let names = match records.next() {
        Some(record) => record.map_err(broken)?,
        None => return Err(ImportError::new(file, "it is empty", "give a table with a header and rows")),
    };
    let columns = known_columns(file, &names)?;
    let mut table = Table { file, columns: &columns, names: &names, options, findings: Vec::new() };
    let mut cells = apart::Cells::of(&columns, &names);
    let mut grouped = thousands::Grouped::of(&columns, separator);
    let mut lines = Lines { text, at: 0, line: 1 };
    let mut points = Vec::new();
    for record in records {
        let record = record.map_err(broken)?;
        if record.iter().all(str::is_empty) {
            continue;
        }
        if points.len() >= MOST_ROWS {
            let problem = format!("more than {MOST_ROWS} rows");
            return Err(ImportError::new(
                file,
                problem,
                "give a row for each measured point, not each interval",
            ));
        }
        let begin = record.position().and_then(|position| usize::try_from(position.byte()).ok());
        points.push(table.point(lines.of(begin.unwrap_or(0)), &record)?);
        cells.take(&record);
        grouped.take(&record);
    }
    let mut findings = unknown_columns(&columns).into_iter().collect::<Vec<_>>();
    findings.append(&mut table.findings);
    if points.is_empty() {
        return Err(ImportError::new(file, "it has a header and no rows", "give a table with measured rows"));
    }
    findings.extend(grouped.findings(&names));
    findings.extend(cells.tell_apart(&mut points));
    findings.extend(match columns.contains(&Column::Repeat) {
        true => same_repeats(&points),
        false => number_repeats(&mut points),
    });
    Ok(Imported { format: "CSV", points, findings, ..Imported::default() })
}

/// Rows that state the same load, and the same repeat.
fn same_load(points: &[Point]) -> Vec<Vec<usize>> {
    let bits = |value: Option<f64>| value.map(f64::to_bits);
    let mut same: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for (row, point) in points.iter().enumerate() {
        let load = (&point.profile, &point.family, &point.condition);
        let place =
            (point.workers, point.nodes, bits(point.outstanding), bits(point.rate_iops), point.repeat);
        same.entry((load, place)).or_default().push(row);
    }
    same.into_values().filter(|rows| rows.len() > 1).collect()
}

/// That rows state the same repeat of the same load: one of them is another load, or was measured another time.
fn same_repeats(points: &[Point]) -> Option<Finding> {
    let same = same_load(points);
    let first = same.first()?;
    let places: Vec<&str> =
        first.iter().filter_map(|row| points.get(*row)).map(|point| point.place.as_str()).collect();
    let rows: usize = same.iter().map(Vec::len).sum();
    Some(Finding::doubt(
        FindingKind::Adjusted,
        "each repeat of a load in one row",
        format!("{rows} rows that state the same repeat as another, such as {}", listed(&places, 4)),
        "Their median is used as if these rows were repeats. Number the rows in the column `repeat`, or add a column with the difference.",
    ))
}

/// Rows that state the same load are taken as repeats of one measurement.
fn number_repeats(points: &mut [Point]) -> Option<Finding> {
    let same = same_load(points);
    let mut repeated = 0;
    for rows in same {
        repeated += rows.len();
        for (repeat, row) in (1..).zip(rows) {
            if let Some(point) = points.get_mut(row) {
                point.repeat = repeat;
            }
        }
    }
    (repeated > 0).then(|| {
        Finding::note(
            FindingKind::Adjusted,
            "one row for each load, condition and number of workers, or a column `repeat`",
            format!("{repeated} rows that state the same load as another"),
            "These rows count as repeats 1, 2, … in their order. Add a column `repeat`, or a column with the difference.",
        )
    })
}

fn known_columns(file: &str, names: &StringRecord) -> Result<Vec<Column>, ImportError> {
    let place = format!("{file}, header");
    if names.len() > MOST_COLUMNS {
        let problem = format!("{} columns", names.len());
        return Err(ImportError::new(place, problem, format!("give at most {MOST_COLUMNS}")));
    }
    let mut columns: Vec<Column> = Vec::new();
    for (at, name) in names.iter().enumerate() {
        let column = columns::column(name).map_err(|Refused { problem, advice }| {
            ImportError::new(&place, format!("the column \"{}\" {problem}", shown(name)), advice)
        })?;
        let twice = columns.iter().position(|other| other.same_as(&column));
        if let Some(other) = twice.and_then(|other| names.get(other)) {
            let problem = format!(
                "columns \"{}\" and \"{}\" (number {}) state the same",
                shown(other),
                shown(name),
                at + 1
            );
            return Err(ImportError::new(place, problem, "leave one of them out"));
        }
        columns.push(column);
    }
    if !columns.iter().any(|column| matches!(column, Column::Iops | Column::Throughput { .. })) {
        return Err(ImportError::new(
            place,
            "no column states IOPS or throughput",
            "name one of them iops, mb_per_s, mib_per_s, gb_per_s or gib_per_s",
        ));
    }
    Ok(columns)
}

fn unknown_columns(columns: &[Column]) -> Option<Finding> {
    let unknown: Vec<&str> = columns
        .iter()
        .filter_map(|column| match column {
            Column::Unknown(name) => Some(name.as_str()),
            _ => None,
        })
        .collect();
    let more = unknown.len().saturating_sub(20);
    let mut listed: Vec<String> =
        unknown.iter().take(20).map(|name| format!("\"{}\"", shown(name))).collect();
    if more > 0 {
        listed.push(format!("and {more} more"));
    }
    (!unknown.is_empty()).then(|| {
        Finding::note(
            FindingKind::Adjusted,
            "columns whose names are known",
            format!("others, which are passed over: {}", listed.join(", ")),
            "If one of these columns states a relevant figure, give the column a known name with its unit.",
        )
    })
}

/// Which line a record stands in. The parser's own count is of where it began to look, which is before blank lines
/// and before the end of a line of Windows.
struct Lines<'a> {
    text: &'a str,
    at: usize,
    line: usize,
}

impl Lines<'_> {
    /// The line of the first text from `begin` on; the calls go forward.
    fn of(&mut self, begin: usize) -> usize {
        let rest = self.text.get(begin..).unwrap_or_default();
        let begin = begin + rest.len() - rest.trim_start_matches(['\r', '\n']).len();
        let passed = self.text.get(self.at..begin).unwrap_or_default();
        self.line += passed.bytes().filter(|byte| *byte == b'\n').count();
        self.at = self.at.max(begin);
        self.line
    }
}

/// The table while it is read.
struct Table<'a> {
    file: &'a str,
    columns: &'a [Column],
    names: &'a StringRecord,
    options: &'a Options,
    /// Contradictions, each named once.
    findings: Vec<Finding>,
}

impl Table<'_> {
    fn point(&mut self, line: usize, record: &StringRecord) -> Result<Point, ImportError> {
        let place = format!("{}, line {line}", self.file);
        if record.len() != self.columns.len() {
            return Err(ImportError::new(
                place,
                format!(
                    "{} under {}",
                    counted(record.len(), "field", "fields"),
                    counted(self.columns.len(), "column", "columns")
                ),
                "write one field for each column; decimals need a point, since a comma separates fields",
            ));
        }
        let mut row = row::Row::default();
        let cells = self.columns.iter().zip(self.names).zip(record);
        for ((column, name), cell) in cells {
            if cell.is_empty() {
                continue;
            }
            row.take(column, cell).map_err(|expected| {
                let place = format!("{place}, column \"{}\"", shown(name));
                let problem = format!("\"{}\" {}", shown(cell), row::wrong(cell, expected));
                let advice = match cell.contains(',') {
                    true => "write decimals with a point and no grouping, such as 1234.5",
                    false => "write digits and a decimal point, or leave the cell empty",
                };
                ImportError::new(place, problem, advice)
            })?;
        }
        let (point, contradictions) = row.point(place, self.options);
        for (column, found) in contradictions {
            let finding = Finding::doubt(
                FindingKind::Adjusted,
                format!("the column {column} to state what the load \"{}\" states", shown(&point.profile)),
                found,
                "One of the two is not what was measured; the column was taken. Correct the wrong one.",
            );
            if !self.findings.contains(&finding) && self.findings.len() < MOST_CONTRADICTIONS {
                self.findings.push(finding);
            }
        }
        if point.iops.is_none() && point.throughput.is_none() {
            let finding = Finding::note(
                FindingKind::Adjusted,
                "IOPS or throughput in each row",
                format!("neither in {}", point.place),
                "The row does not state how much was done.",
            );
            if self.findings.len() < MOST_CONTRADICTIONS {
                self.findings.push(finding);
            }
        }
        Ok(point)
    }
}
