//! The tables in DISKSPD's text.

use loadline_measure::point::Stated;

use crate::ImportError;
use crate::numbers::{parse, whole};
use crate::text::shown;

/// More rows of threads and targets than any run has.
const MOST_ROWS: usize = 1_000_000;

/// One row of a table of I/O.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) bytes: u64,
    pub(super) ios: u64,
    /// I/Os a second, as stated.
    pub(super) iops: Stated,
    /// Mean latency, microseconds; `None` without `-L`.
    pub(super) mean_us: Option<Stated>,
}

/// A table of I/O: all, reads or writes.
#[derive(Debug, Default)]
pub(super) struct Section {
    columns: Vec<String>,
    pub(super) rows: Vec<Row>,
    pub(super) total: Option<Row>,
}

impl Section {
    /// Takes a line of it; the error is of a cell that is no figure.
    pub(super) fn line(&mut self, place: &str, line: &str) -> Result<(), ImportError> {
        if line.starts_with("thread |") {
            self.columns = line.split('|').map(|name| name.trim().to_lowercase()).collect();
            return Ok(());
        }
        if let Some(cells) = line.strip_prefix("total:").filter(|cells| !cells.is_empty()) {
            self.total = Some(self.row(place, cells)?);
            return Ok(());
        }
        let Some((thread, cells)) = line.split_once('|') else { return Ok(()) };
        if whole::<u64>(thread).is_some() && self.rows.len() < MOST_ROWS {
            let row = self.row(place, cells)?;
            self.rows.push(row);
        }
        Ok(())
    }

    /// Whether it has the deviation of IOPS (`-D`).
    pub(super) fn has_deviation(&self) -> bool {
        self.columns.iter().any(|name| name == "iopsstddev")
    }

    fn row(&self, place: &str, cells: &str) -> Result<Row, ImportError> {
        let cells: Vec<&str> = cells.split('|').map(str::trim).collect();
        let refuse = |column: &str, cell: &str| {
            let problem = format!("\"{}\" below \"{column}\" is no figure of 0 or above", shown(cell));
            ImportError::new(place, problem, "give what DISKSPD printed, unchanged")
        };
        // Without the first column, which is the thread's number.
        let of = |column: &str| {
            let at = self.columns.iter().skip(1).position(|name| name == column)?;
            cells.get(at).copied()
        };
        let count = |column: &str| {
            let cell = of(column).unwrap_or_default();
            whole::<u64>(cell).ok_or_else(|| refuse(column, cell))
        };
        let iops = of("i/o per s").unwrap_or_default();
        let (bytes, ios) = (count("bytes")?, count("i/os")?);
        // Of no I/O there is no mean: some versions write 0, others what the division by 0 gave.
        let mean = of("avglat").filter(|cell| ios > 0 && !cell.eq_ignore_ascii_case("n/a"));
        Ok(Row {
            bytes,
            ios,
            iops: parse(iops, 1.0).ok_or_else(|| refuse("I/O per s", iops))?,
            mean_us: mean.map(|cell| parse(cell, 1e3).ok_or_else(|| refuse("AvgLat", cell))).transpose()?,
        })
    }
}

/// A table of percentiles, of which the column `Total (ms)` is taken.
#[derive(Debug, Default)]
pub(super) struct Chart {
    total: Option<usize>,
    pub(super) min_us: Option<Stated>,
    pub(super) max_us: Option<Stated>,
    pub(super) percentiles_us: Vec<(f64, Stated)>,
}

impl Chart {
    /// With these columns.
    pub(super) fn headed(line: &str) -> Chart {
        let total = line.split('|').position(|name| name.trim() == "Total (ms)");
        Chart { total, ..Chart::default() }
    }

    /// Takes a line of it.
    pub(super) fn line(&mut self, place: &str, line: &str) -> Result<(), ImportError> {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let cell = self.total.and_then(|at| cells.get(at)).copied();
        let (Some(name), Some(cell)) = (cells.first(), cell) else { return Ok(()) };
        let percent = percent(name);
        if !matches!(*name, "min" | "max") && percent.is_none() || cell.eq_ignore_ascii_case("n/a") {
            return Ok(());
        }
        let value = parse(cell, 1e3).ok_or_else(|| {
            let problem = format!("\"{}\" at \"{}\" is no latency", shown(cell), shown(name));
            ImportError::new(place, problem, "give what DISKSPD printed, unchanged")
        })?;
        match percent {
            Some(percent) => self.percentiles_us.push((percent, value)),
            None if *name == "min" => self.min_us = Some(value),
            None => self.max_us = Some(value),
        }
        Ok(())
    }
}

/// `25th` is 25, `3-nines` is 99.9.
fn percent(name: &str) -> Option<f64> {
    if let Some(nines) = name.strip_suffix("-nines") {
        let nines = whole::<u8>(nines).filter(|nines| (2..=12).contains(nines))?;
        // Of digits, so that it is the number which those digits name.
        return format!("99.{}", "9".repeat(usize::from(nines) - 2)).parse().ok();
    }
    let digits = ["th", "st", "nd", "rd"].into_iter().find_map(|ending| name.strip_suffix(ending))?;
    whole::<u8>(digits).filter(|percent| (1..100).contains(percent)).map(f64::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nines_are_percent() {
        assert_eq!(
            (percent("25th"), percent("3-nines"), percent("2-nines")),
            (Some(25.0), Some(99.9), Some(99.0))
        );
        assert_eq!((percent("9-nines"), percent("0th"), percent("total:")), (Some(99.9999999), None, None));
    }
}
