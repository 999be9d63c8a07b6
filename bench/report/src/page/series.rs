//! What the page shows of one complete step beside its row in the report: its seconds, its workers, its percentiles.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};

use loadline_base::histogram::{EncodedHistogram, LatencyHistogram};
use loadline_measure::heat::HeatMap;
use loadline_measure::stats::median;
use loadline_measure::summary::SAMPLES_BEYOND;
use loadline_study::folder::regular;
use loadline_study::folder::result::StepResult;
use loadline_study::folder::series::{HOST, HostLine};
use loadline_study::planned_step::Step;
use loadline_study::when::When;
use loadline_study::{RunFolder, StudyError};
use schemars::JsonSchema;
use serde::Serialize;

use crate::page::tenths::{Tenths, tenths};
use crate::page::workers::{Straggler, WorkerRow, stragglers};

/// Points of a curve of percentiles in each power of ten of what lies beyond.
const POINTS_PER_DECADE: i32 = 8;
/// Columns of all steps' heat maps together, about: a screen has fewer dots.
const MOST_COLUMNS: usize = 3_000;
/// Columns that each step's heat map has all the same.
const FEWEST_COLUMNS: usize = 30;
/// Seconds of all hosts of a step together, about.
const MOST_HOST_SECONDS: usize = 20_000;
/// The most that is read of a step's `host.jsonl`.
const MOST_HOST_BYTES: u64 = 256 << 20;
/// The longest line of it that is read.
const LONGEST_LINE: u64 = 1 << 20;

/// One complete step over its window.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StepSeries {
    /// The step's number.
    pub step: u32,
    /// Its folder, relative to the run's: its raw files are there.
    pub folder: String,
    /// The raw files, and how many bytes each has.
    pub files: BTreeMap<String, u64>,
    /// When its warm-up began.
    pub began: When,
    /// Seconds of warm-up before the window.
    pub warm_up_s: f64,
    /// The length of its window, seconds.
    pub window_s: f64,
    /// The seconds of the window.
    pub seconds: Seconds,
    /// What completed in each tenth of a second, if something was done to the storage in the window; else `null`, and in runs of versions
    /// that did not count it.
    pub tenths: Option<Tenths>,
    /// How many I/Os took how long, over the window, to two digits, and of a large run in longer columns than in its
    /// `result.json`; `null` in results of versions that did not keep it.
    pub heat: Option<HeatMap>,
    /// What each host did, by its name, second by second; empty where no host told, or its file is gone.
    pub hosts: BTreeMap<String, HostSeries>,
    /// Percentiles of the fleet's reads: the share of the I/Os that took longer (1 to 0), and how long that is, in
    /// microseconds. It ends where fewer than 100 I/Os lie beyond.
    pub read: Vec<(f64, f64)>,
    /// The same of its writes.
    pub write: Vec<(f64, f64)>,
    /// Each worker.
    pub workers: Vec<WorkerRow>,
    /// The workers that stand out.
    pub stragglers: Vec<Straggler>,
    /// What could not be read, in sentences.
    pub notices: Vec<String>,
}

/// Seconds of a window, each a column: what is in the same place is of the same second.
#[derive(Debug, Clone, PartialEq, Default, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Seconds {
    /// Reads that succeeded.
    pub reads: Vec<u64>,
    /// Writes that succeeded.
    pub writes: Vec<u64>,
    /// Bytes that both moved.
    pub bytes: Vec<u64>,
    /// I/Os that failed.
    pub errors: Vec<u64>,
    /// Mean response time, microseconds to three decimals; `null` if nothing completed.
    pub mean_us: Vec<Option<f64>>,
}

/// What one host did, each a column; shares are of 0 to 1, to a hundredth. Of a long step on many hosts several seconds
/// are one, with the largest of each.
#[derive(Debug, Clone, PartialEq, Default, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostSeries {
    /// The second, from the beginning of the window; negative in warm-up.
    pub second: Vec<i64>,
    /// CPU time in user space and the kernel.
    pub busy: Vec<f64>,
    /// CPU time given to others by the hypervisor.
    pub steal: Vec<f64>,
    /// Some task waited for a CPU; `null` where the kernel does not tell.
    pub cpu_pressure: Vec<Option<f64>>,
    /// Some task waited for I/O.
    pub io_pressure: Vec<Option<f64>>,
    /// Some task waited for memory.
    pub memory_pressure: Vec<Option<f64>>,
}

impl StepSeries {
    /// Of a complete step.
    pub fn of(folder: &RunFolder, step: &Step, result: StepResult) -> Result<StepSeries, StudyError> {
        // What all steps together may have, so that the page of a large run stays small.
        let columns = (MOST_COLUMNS / folder.plan.steps.len().max(1)).max(FEWEST_COLUMNS);
        let mut notices = Vec::new();
        let (mut hosts, why) = hosts(folder, step);
        notices.extend(why);
        let (tenths, why) = match &result.timeline {
            Some(_) => tenths(folder, step, result.figures.window_s),
            None => (None, None),
        };
        notices.extend(why);
        let most = (MOST_HOST_SECONDS / hosts.len().max(1)).max(FEWEST_COLUMNS);
        hosts.values_mut().for_each(|host| host.thin(most));
        let nines = |histogram: &Option<EncodedHistogram>, what: &str| match histogram {
            None => Ok(Vec::new()),
            Some(encoded) => encoded.decode().map(|histogram| nines(&histogram)).map_err(|e| {
                let path = folder.step_path(step).join("result.json");
                StudyError::failed(format!("{}: histograms.{what}: {e}", path.display()))
            }),
        };
        let workers: Vec<WorkerRow> = result.workers.iter().map(WorkerRow::of).collect();
        let mut seconds = Seconds::default();
        for second in &result.seconds {
            seconds.reads.push(second.reads);
            seconds.writes.push(second.writes);
            seconds.bytes.push(second.bytes);
            seconds.errors.push(second.errors);
            seconds.mean_us.push(second.mean_us.map(|mean| (mean * 1_000.0).round() / 1_000.0));
        }
        Ok(StepSeries {
            step: step.number,
            folder: format!("steps/{}", step.folder),
            files: result.series,
            began: result.began,
            warm_up_s: folder.manifest.study.phases.warm_up.0.as_secs_f64(),
            window_s: result.figures.window_s,
            seconds,
            tenths,
            heat: result.heat.map(|heat| coarse(&heat, columns)),
            hosts,
            read: nines(&result.histograms.read, "read")?,
            write: nines(&result.histograms.write, "write")?,
            stragglers: stragglers(&workers),
            workers,
            notices,
        })
    }
}

/// The curve of percentiles: as deep as 100 samples lie beyond, and the largest value is none of it.
fn nines(histogram: &LatencyHistogram) -> Vec<(f64, f64)> {
    let mut curve = Vec::new();
    for at in 0.. {
        let beyond = 10f64.powf(-f64::from(at) / f64::from(POINTS_PER_DECADE));
        if beyond * (histogram.count() as f64) < SAMPLES_BEYOND as f64 {
            break;
        }
        let value = histogram.quantile(1.0 - beyond);
        curve.extend(value.map(|value| (beyond, value.as_micros())));
    }
    curve
}

/// A heat map of no more than so many columns, with counts to two digits: its colours show no more.
fn coarse(heat: &HeatMap, columns: usize) -> HeatMap {
    let at_once = heat.columns.len().div_ceil(columns).max(1);
    let mut found = HeatMap { span_s: heat.span_s * at_once as u64, columns: Vec::new() };
    for several in heat.columns.chunks(at_once) {
        let mut bands: BTreeMap<u8, u64> = BTreeMap::new();
        for (band, count) in several.iter().flatten() {
            let sum = bands.entry(*band).or_default();
            *sum = sum.saturating_add(*count);
        }
        found.columns.push(bands.into_iter().map(|(band, count)| (band, two_digits(count))).collect());
    }
    found
}

fn two_digits(count: u64) -> u64 {
    let unit = 10u64.pow(count.max(1).ilog10().saturating_sub(1));
    (count.saturating_add(unit / 2) / unit).saturating_mul(unit)
}

/// What the hosts did, as far as it can be read; why no further, in a sentence.
fn hosts(folder: &RunFolder, step: &Step) -> (BTreeMap<String, HostSeries>, Option<String>) {
    let path = folder.step_path(step).join(HOST);
    let failed = |why: &dyn std::fmt::Display| {
        Some(format!(
            "{} cannot be read to its end ({why}): what the hosts did is shown as far as it can",
            path.display()
        ))
    };
    let mut hosts: BTreeMap<String, HostSeries> = BTreeMap::new();
    let file = match regular::open(&path) {
        Ok(file) => file,
        // Runs of versions that did not look at hosts.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return (hosts, None),
        Err(e) => return (hosts, failed(&e)),
    };
    let mut reader = BufReader::new(file.take(MOST_HOST_BYTES));
    let mut line = Vec::new();
    loop {
        line.clear();
        match reader.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line) {
            Ok(0) => return (hosts, None),
            Ok(_) => {}
            Err(e) => return (hosts, failed(&e)),
        }
        let line: HostLine = match serde_json::from_slice(&line) {
            Ok(line) => line,
            Err(e) => return (hosts, failed(&e)),
        };
        let host = hosts.entry(line.host).or_default();
        let did = line.did;
        let pressure = did.pressure;
        host.second.push(did.second);
        host.busy.push(rounded(did.cpu.user + did.cpu.system));
        host.steal.push(rounded(did.cpu.steal));
        host.cpu_pressure.push(pressure.map(|p| rounded(p.cpu_some)));
        host.io_pressure.push(pressure.map(|p| rounded(p.io_some)));
        host.memory_pressure.push(pressure.map(|p| rounded(p.memory_some)));
    }
}

/// The share of a second of a step's window in which some task waited for a CPU: of the host where that was most, the median over its
/// seconds. `None` where no kernel told. (That tasks wait for I/O is what a load is.)
pub(crate) fn cpu_pressure(folder: &RunFolder, step: &Step) -> Option<f64> {
    let (hosts, _) = hosts(folder, step);
    let medians = hosts.values().filter_map(|host| {
        let in_window = host.second.iter().zip(&host.cpu_pressure).filter(|(second, _)| **second >= 0);
        median(&in_window.filter_map(|(_, share)| *share).collect::<Vec<_>>())
    });
    medians.reduce(f64::max)
}

impl HostSeries {
    /// Keeps no more than so many seconds, each the largest of several: a chart has fewer dots, and a short spike must
    /// show.
    fn thin(&mut self, most: usize) {
        let several = self.second.len().div_ceil(most).max(1);
        if several == 1 {
            return;
        }
        self.second = self.second.chunks(several).map(|part| part[0]).collect();
        let largest = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
        for column in [&mut self.busy, &mut self.steal] {
            *column = column.chunks(several).map(largest).collect();
        }
        let known = |values: &[Option<f64>]| values.iter().copied().flatten().reduce(f64::max);
        for column in [&mut self.cpu_pressure, &mut self.io_pressure, &mut self.memory_pressure] {
            *column = column.chunks(several).map(known).collect();
        }
    }
}

/// To a percent, for a chart: no figure comes from it.
fn rounded(share: f64) -> f64 {
    (share * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use loadline_base::clock::Nanos;

    #[test]
    fn a_curve_of_percentiles_ends_where_a_hundred_samples_lie_beyond() {
        let mut histogram = LatencyHistogram::new();
        (1..=10_000u64).for_each(|i| histogram.record(Nanos(i * 1_000)));
        let curve = nines(&histogram);
        assert_eq!(curve.len(), 2 * POINTS_PER_DECADE as usize + 1, "two nines");
        let (beyond, p99) = curve[2 * POINTS_PER_DECADE as usize];
        assert!((beyond - 0.01).abs() < 1e-12 && (p99 / 9_900.0 - 1.0).abs() < 0.01, "{p99}");
        assert!(nines(&LatencyHistogram::new()).is_empty());
    }

    #[test]
    fn a_spike_of_a_host_is_seen_in_a_thinned_series() {
        let mut host =
            HostSeries { second: (0..100).collect(), busy: vec![0.1; 100], ..HostSeries::default() };
        (host.steal, host.cpu_pressure) = (vec![0.0; 100], vec![None; 100]);
        (host.io_pressure, host.memory_pressure) = (vec![Some(0.2); 100], vec![None; 100]);
        host.busy[57] = 0.9;
        host.thin(30);
        assert_eq!((host.second.len(), host.second[14], host.busy[14]), (25, 56, 0.9));
        assert_eq!((host.io_pressure[3], host.cpu_pressure[3]), (Some(0.2), None));
    }

    #[test]
    fn a_heat_map_of_many_columns_is_told_in_fewer_and_keeps_all_ios() {
        let columns = (0..100).map(|i| vec![(40, 100), (i as u8, 1)]).collect();
        let found = coarse(&HeatMap { span_s: 2, columns }, 30);
        assert_eq!((found.span_s, found.columns.len()), (8, 25));
        assert_eq!(found.columns[0], [(0, 1), (1, 1), (2, 1), (3, 1), (40, 400)]);
        assert_eq!([0, 7, 99, 149, 994, 996].map(two_digits), [0, 7, 99, 150, 990, 1_000]);
        assert_eq!(two_digits(u64::MAX) % 10u64.pow(18), 0);
    }
}
