//! One row as a point.

use loadline_measure::point::{LatencyOf, Point, Throughput};

use super::columns::{Column, Of};
use crate::numbers::{is_figure, number, parse, whole};
use crate::words::{Named, named};
use crate::{Options, text};

/// What the cells of a row state.
#[derive(Debug, Default)]
pub(super) struct Row {
    point: Point,
    block_bytes: Option<f64>,
    threads: Option<f64>,
    outstanding: Option<f64>,
    per_thread: Option<f64>,
    /// fio's depth: of one thread if the number of threads is not stated.
    iodepth: Option<f64>,
    per_worker: Option<f64>,
    read_percent: Option<f64>,
    write_percent: Option<f64>,
}

const NUMBER: &str = "a number";
const WHOLE: &str = "a whole number";
const SOME: &str = "a whole number above 0";

/// What is wrong with a cell that was refused.
pub(super) fn wrong(cell: &str, expected: &str) -> String {
    let digits = cell.strip_prefix('-').unwrap_or(cell);
    let digit = digits.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    let whole = digits.bytes().all(|byte| byte.is_ascii_digit());
    match cell.parse::<f64>().ok().filter(|_| digit) {
        Some(value) if value < 0.0 => "is negative".into(),
        // A number that was refused as one is out of bounds.
        Some(value)
            if !is_figure(value)
                || expected == NUMBER
                || (whole && expected == WHOLE)
                || (whole && expected == SOME && value > 0.0) =>
        {
            "is too large".into()
        }
        _ => format!("is not {expected}"),
    }
}

impl Row {
    /// Takes a cell that is not empty; the error is what was expected of it.
    pub(super) fn take(&mut self, column: &Column, cell: &str) -> Result<(), &'static str> {
        let stated = |factor: f64| parse(cell, factor).ok_or(NUMBER);
        let figure = || number(cell).ok_or(NUMBER);
        let count = || whole::<u32>(cell).ok_or(WHOLE);
        let some = || whole::<u32>(cell).filter(|count| *count > 0).ok_or(SOME);
        let percent = || number(cell).filter(|p| *p <= 100.0).ok_or("a percentage, 0 to 100");
        let positive = || number(cell).filter(|p| *p > 0.0).ok_or("a number above 0");
        let point = &mut self.point;
        match column {
            Column::Workers => point.workers = Some(some()?),
            Column::Nodes => point.nodes = Some(some()?),
            Column::Profile => point.profile = cell.to_string(),
            Column::Condition => point.condition = Some(text::kept(cell)),
            Column::Repeat => point.repeat = count()?,
            Column::Block(bytes) => {
                let size = positive()? * bytes;
                self.block_bytes = Some(Some(size).filter(|size| is_figure(*size)).ok_or(NUMBER)?);
            }
            Column::Threads => self.threads = Some(positive()?),
            Column::Outstanding => self.outstanding = Some(positive()?),
            Column::OutstandingPerThread => self.per_thread = Some(positive()?),
            Column::IoDepth => self.iodepth = Some(positive()?),
            Column::OutstandingPerWorker => self.per_worker = Some(positive()?),
            Column::ReadPercent => self.read_percent = Some(percent()?),
            Column::WritePercent => self.write_percent = Some(percent()?),
            Column::Seconds => point.window_s = Some(positive()?),
            Column::RateIops => point.rate_iops = Some(figure()?),
            Column::Iops => point.iops = Some(stated(1.0)?),
            Column::Throughput { unit, bytes } => {
                point.throughput = Some(Throughput {
                    bytes_per_s: stated(*bytes)?,
                    unit: (*unit).to_string(),
                    unit_bytes: *bytes,
                });
            }
            Column::Latency(Of::Mean, us) => point.mean_us = Some(stated(*us)?),
            Column::Latency(Of::Min, us) => point.min_us = Some(stated(*us)?),
            Column::Latency(Of::Max, us) => point.max_us = Some(stated(*us)?),
            Column::Latency(Of::Percentile(percent), us) => {
                point.percentiles_us.push((*percent, stated(*us)?));
            }
            Column::LatencyOf => {
                point.latency_of = match cell.to_ascii_lowercase().as_str() {
                    "read" | "reads" => LatencyOf::Read,
                    "write" | "writes" => LatencyOf::Write,
                    "all" | "total" => LatencyOf::All,
                    _ => return Err("read, write or all"),
                };
            }
            Column::Errors => point.errors = whole(cell).ok_or(WHOLE)?,
            Column::LostWorkers => point.lost_workers = count()?,
            Column::CeilingIops => point.ceiling_iops = Some(stated(1.0)?),
            Column::CeilingThroughput(bytes) => point.ceiling_bytes_per_s = Some(stated(*bytes)?),
            Column::StatedPercent => point.stated_percent = Some(stated(1.0)?),
            Column::Pattern | Column::Copies | Column::Unknown(_) => {}
        }
        Ok(())
    }

    /// The point, and each column that contradicts the load's name or another column, with what was found.
    pub(super) fn point(self, place: String, options: &Options) -> (Point, Vec<(&'static str, String)>) {
        let mut point = self.point;
        point.place = place;
        point.percentiles_us.sort_by(|a, b| a.0.total_cmp(&b.0));
        let name = named(&point.profile);
        let mut odd = Vec::new();
        let mut either = |column: &'static str, cell: Option<f64>, named: Option<f64>| {
            if let (Some(cell), Some(named)) = (cell, named)
                && !alike(cell, named)
            {
                odd.push((column, format!("{cell} in the column, and {named} by the name")));
            }
            cell.or(named)
        };
        let writes = self.write_percent.or(self.read_percent.map(|reads| 100.0 - reads));
        point.block_bytes = either("block size", self.block_bytes, name.block_bytes);
        point.write_percent = either("write percent", writes, name.write_percent);
        let threads = either("threads", self.threads, name.threads);
        let per_thread = either("outstanding", self.per_thread.or(self.iodepth), name.per_thread);
        if let (Some(reads), Some(writes)) = (self.read_percent, self.write_percent)
            && !alike(reads + writes, 100.0)
        {
            odd.push(("read percent", format!("{reads} % reads and {writes} % writes in one row")));
        }
        let threads = threads.or(self.iodepth.map(|_| 1.0));
        let workers = point.workers.map(f64::from);
        let each = self.per_worker.or(threads.zip(per_thread).map(|(threads, each)| threads * each));
        let computed = each.zip(workers).map(|(each, workers)| each * workers);
        if let (Some(outstanding), Some(computed)) = (self.outstanding, computed)
            && !alike(outstanding, computed)
        {
            odd.push(("outstanding", format!("{outstanding} in all, and {computed} over all workers")));
        }
        if point.rate_iops.is_none() {
            point.outstanding = self
                .outstanding
                .or(computed)
                .or_else(|| options.outstanding(point.workers))
                .filter(|outstanding| is_figure(*outstanding) && *outstanding > 0.0);
        }
        if point.profile.is_empty() {
            point.profile = described(&point, &name);
        }
        point.profile = text::kept(&point.profile);
        (point, odd)
    }
}

/// Equal but for the rounding of the computer.
fn alike(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-6 * a.abs().max(b.abs())
}

/// A load without a name, by what is known of it.
fn described(point: &Point, name: &Named) -> String {
    let block = point.block_bytes.or(name.block_bytes).map(|bytes| format!("{} KiB", bytes / 1024.0));
    let writes = point.write_percent.map(|percent| format!("{percent} % writes"));
    let parts: Vec<String> = block.into_iter().chain(writes).collect();
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use loadline_measure::point::Stated;

    #[test]
    fn a_figure_keeps_how_it_was_rounded() {
        let mut row = Row::default();
        row.take(&Column::Latency(Of::Mean, 1e3), "0.50").unwrap();
        let (point, _) = row.point("here".into(), &Options::default());
        let mean = point.mean_us.unwrap();
        assert_eq!(mean.value, 500.0);
        assert!((mean.half_digit - 5.0).abs() < 1e-9);
        assert!(mean != Stated::exact(500.0));
    }
}
