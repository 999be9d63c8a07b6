//! What a job measured, of reads and writes.

use loadline_base::clock::Nanos;
use loadline_base::histogram::LatencyHistogram;
use serde_json::Value;

use super::figure;
use crate::ImportError;
use crate::numbers::number;

/// Larger nanoseconds and counts in a bin are no measurement: 2^53, over a hundred days, and what a double counts.
const LARGEST_BIN: u64 = 1 << 53;

/// Runtimes that differ by less than this share are one.
const SAME_RUNTIME: f64 = 0.001;

/// One direction that did I/O.
#[derive(Debug)]
pub(super) struct Side<'a> {
    ios: u64,
    iops: f64,
    bytes_per_s: f64,
    /// Half of what the last digit of IOPS counts, and of bytes a second.
    half_digits: (f64, f64),
    runtime_ms: Option<f64>,
    /// I/Os whose latencies are in the percentiles and bins: all of them, if that is not stated.
    sampled: u64,
    /// Total latency: mean, smallest, largest, nanoseconds.
    mean: Option<f64>,
    min: Option<f64>,
    max: Option<f64>,
    percentiles: Vec<(f64, f64)>,
    bins: Option<&'a serde_json::Map<String, Value>>,
    /// Percentiles and bins are of completion latency.
    completion: bool,
}

/// A job's directions that did I/O.
#[derive(Debug)]
pub(super) struct Figures<'a> {
    sides: Vec<Side<'a>>,
    pub(super) reads: u64,
    pub(super) writes: u64,
    pub(super) trimmed: bool,
    /// Sum of the runtimes of the processes in it, over the job's own runtime; fio 3.2 and newer.
    pub(super) runtimes: Option<f64>,
    /// Whether it is of fio 2.
    pub(super) old: bool,
    /// Whether bins of fio 2 were passed over, which are numbered and not named by latencies.
    pub(super) old_bins: bool,
}

impl<'a> Figures<'a> {
    /// Those of processes that ran together, as one.
    pub(super) fn together(each: impl IntoIterator<Item = Figures<'a>>) -> Figures<'a> {
        let mut all = Figures {
            sides: Vec::new(),
            reads: 0,
            writes: 0,
            trimmed: false,
            runtimes: None,
            old: false,
            old_bins: false,
        };
        for mut one in each {
            all.old |= one.old;
            all.old_bins |= one.old_bins;
            all.sides.append(&mut one.sides);
            all.reads = all.reads.saturating_add(one.reads);
            all.writes = all.writes.saturating_add(one.writes);
            all.trimmed |= one.trimmed;
        }
        all
    }

    /// Reads them; the error names what is missing.
    pub(super) fn of(place: &str, job: &'a Value) -> Result<Figures<'a>, ImportError> {
        let stated = |key: &str| ios_of(job.get(key)?);
        let ios = |key: &str| stated(key).unwrap_or(0);
        // With unified_rw_reporting reads and writes are counted together.
        let keys: &[&str] = if ios("mixed") > 0 { &["mixed"] } else { &["read", "write"] };
        let mut sides = Vec::new();
        for key in keys {
            if let Some(side) = job.get(key)
                && ios(key) > 0
            {
                sides.push(side_of(&format!("{place}, {key}"), side, ios(key))?);
            } else if job.get(key).is_some() && stated(key).is_none() {
                let place = format!("{place}, {key}");
                let advice = "give JSON of fio 2 or 3 as it was written";
                return Err(ImportError::new(place, "\"total_ios\" is no whole number", advice));
            }
        }
        let longest = sides.iter().filter_map(|side| side.runtime_ms).fold(0.0, f64::max);
        let runtimes = figure(job.get("job_runtime")).filter(|_| longest > 0.0).map(|sum| sum / longest);
        Ok(Figures {
            sides,
            reads: ios("read"),
            writes: ios("write"),
            trimmed: ios("trim") > 0,
            runtimes,
            old: keys.iter().filter_map(|key| job.get(key)).any(is_old),
            old_bins: keys.iter().any(|key| job.get(key).is_some_and(|side| is_old(side) && has_bins(side))),
        })
    }

    pub(super) fn ios(&self) -> u64 {
        self.sides.iter().fold(0, |sum, side| sum.saturating_add(side.ios))
    }

    /// I/Os and bytes a second. Each side states its own over its own runtime; where these differ, what was done is divided by the
    /// longest, as fio does with the processes of a group: added up, they would count a time in which some had ended already.
    pub(super) fn rates(&self) -> (f64, f64) {
        let over = |side: &Side, seconds: f64| side.runtime_ms.map_or(1.0, |ms| ms / 1e3 / seconds);
        let longest = self.seconds().filter(|_| self.differ().is_some());
        let share = |side: &Side| longest.map_or(1.0, |seconds| over(side, seconds));
        let sum = |of: fn(&Side) -> f64| self.sides.iter().map(|side| of(side) * share(side)).sum();
        (sum(|side| side.iops), sum(|side| side.bytes_per_s))
    }

    /// Half of what the last digit of the rates counts, I/Os and bytes a second.
    pub(super) fn half_digits(&self) -> (f64, f64) {
        self.sides
            .iter()
            .fold((0.0, 0.0), |sum, side| (sum.0 + side.half_digits.0, sum.1 + side.half_digits.1))
    }

    /// The shortest and the longest runtime, seconds, if they differ by more than [`SAME_RUNTIME`].
    pub(super) fn differ(&self) -> Option<(f64, f64)> {
        let seconds = self.sides.iter().map(|side| side.runtime_ms.map(|ms| ms / 1e3));
        let seconds = seconds.collect::<Option<Vec<f64>>>()?;
        let (shortest, longest) =
            (seconds.iter().copied().reduce(f64::min)?, seconds.iter().copied().reduce(f64::max)?);
        (longest > shortest * (1.0 + SAME_RUNTIME)).then_some((shortest, longest))
    }

    pub(super) fn seconds(&self) -> Option<f64> {
        self.sides.iter().filter_map(|side| side.runtime_ms).reduce(f64::max).map(|ms| ms / 1e3)
    }

    /// Over all I/Os, nanoseconds.
    pub(super) fn mean(&self) -> Option<f64> {
        let sum = self.sides.iter().map(|side| Some(side.mean? * side.ios as f64)).sum::<Option<f64>>()?;
        Some(sum / self.ios() as f64).filter(|mean| crate::numbers::is_figure(*mean))
    }

    pub(super) fn min(&self) -> Option<f64> {
        let each = self.sides.iter().map(|side| side.min).collect::<Option<Vec<_>>>()?;
        each.into_iter().reduce(f64::min)
    }

    pub(super) fn max(&self) -> Option<f64> {
        let each = self.sides.iter().map(|side| side.max).collect::<Option<Vec<_>>>()?;
        each.into_iter().reduce(f64::max)
    }

    pub(super) fn completion(&self) -> bool {
        self.sides.iter().any(|side| side.completion)
    }

    pub(super) fn has_bins(&self) -> bool {
        self.sides.iter().any(|side| side.bins.is_some())
    }

    /// All latencies, if each direction has bins that add up to the I/Os whose latencies it has. A bin is named by its middle, nanoseconds.
    pub(super) fn histogram(&self) -> Option<LatencyHistogram> {
        let mut histogram = LatencyHistogram::new();
        for side in &self.sides {
            let mut counted = 0_u64;
            for (ns, count) in side.bins? {
                let ns = crate::numbers::whole::<u64>(ns).filter(|ns| *ns <= LARGEST_BIN)?;
                let count = count.as_u64().filter(|count| *count <= LARGEST_BIN)?;
                counted = counted.checked_add(count)?;
                histogram.record_many(Nanos(ns), count);
            }
            if counted != side.sampled {
                return None;
            }
        }
        (!histogram.is_empty()).then_some(histogram)
    }

    /// Percent, nanoseconds, and by how many those may be off: as stated where one direction did I/O, of the merged
    /// histogram where both did. fio has 64 buckets to each power of two and names the middle; ours add as much.
    pub(super) fn percentiles(&self, histogram: Option<&LatencyHistogram>) -> Vec<(f64, f64, f64)> {
        match (self.sides.as_slice(), histogram) {
            ([side], _) => {
                // fio 2 writes whole microseconds.
                let least = if self.old { 500.0 } else { 0.0 };
                side.percentiles
                    .iter()
                    .map(|(percent, ns)| (*percent, *ns, (ns / 128.0).max(least)))
                    .collect()
            }
            ([side, ..], Some(histogram)) => {
                let each = side.percentiles.iter().filter_map(|(percent, _)| {
                    let ns = histogram.quantile(percent / 100.0)?.0 as f64;
                    Some((*percent, ns, ns / 64.0))
                });
                each.collect()
            }
            _ => Vec::new(),
        }
    }
}

/// Whether a direction is of fio 2, which states latencies in microseconds.
fn is_old(side: &Value) -> bool {
    (side.get("lat").is_some() || side.get("clat").is_some()) && side.get("lat_ns").is_none()
}

fn has_bins(side: &Value) -> bool {
    ["lat", "clat"].iter().any(|kind| side.get(kind).is_some_and(|latency| latency.get("bins").is_some()))
}

/// The I/Os of a direction. fio before 2.2 does not count them: they are what it did a second times its runtime.
fn ios_of(side: &Value) -> Option<u64> {
    let Some(stated) = side.get("total_ios") else {
        let (iops, ms) = (figure(side.get("iops"))?, figure(side.get("runtime"))?);
        let count = iops * ms / 1e3;
        return (is_old(side) && count <= LARGEST_BIN as f64).then_some(count.round() as u64);
    };
    stated.as_u64()
}

fn side_of<'a>(place: &str, side: &'a Value, ios: u64) -> Result<Side<'a>, ImportError> {
    let old = is_old(side);
    let (lat, clat, unit_ns) = if old { ("lat", "clat", 1e3) } else { ("lat_ns", "clat_ns", 1.0) };
    let needed = |key: &str| {
        figure(side.get(key)).ok_or_else(|| {
            let problem = format!("\"{key}\" is missing, or no number of 0 or above");
            ImportError::new(place, problem, "give JSON of fio 2 or 3 as it was written")
        })
    };
    let bytes_per_s = match side.get("bw_bytes") {
        Some(_) => needed("bw_bytes")?,
        None => needed("bw")? * 1024.0,
    };
    let total = side.get(lat);
    // Where latencies were not taken (disable_lat, gtod_reduce) their count is 0.
    let taken = total.and_then(|lat| lat.get("N")).is_none_or(|count| count.as_f64() != Some(0.0));
    let of =
        |key: &str| total.filter(|_| taken).and_then(|lat| figure(lat.get(key))).map(|value| value * unit_ns);
    let map = |kind: &str, key: &str| {
        side.get(kind).and_then(|lat| lat.get(key)?.as_object()).filter(|map| !map.is_empty())
    };
    let sampled = |kind: &str| side.get(kind).and_then(|lat| lat.get("N")?.as_u64());
    let completion = map(lat, "percentile").is_none() && map(lat, "bins").is_none();
    let kind = if completion { clat } else { lat };
    let stated = map(kind, "percentile").into_iter().flatten();
    let percentiles = stated.filter_map(|(percent, ns)| {
        let percent = number(percent).filter(|percent| *percent > 0.0 && *percent < 100.0)?;
        Some((
            percent,
            figure(Some(ns)).map(|value| value * unit_ns).filter(|ns| crate::numbers::is_figure(*ns))?,
        ))
    });
    let half_digits = match (old, side.get("total_ios").is_some()) {
        (false, _) => (0.0, 0.0),
        // Two decimals, and whole KiB a second; before fio 2.2 whole I/Os a second as well.
        (true, true) => (0.005, 1024.0),
        (true, false) => (1.0, 1024.0),
    };
    Ok(Side {
        ios,
        sampled: sampled(kind).unwrap_or(ios),
        iops: needed("iops")?,
        bytes_per_s,
        half_digits,
        runtime_ms: figure(side.get("runtime")),
        mean: of("mean"),
        min: of("min"),
        max: of("max"),
        percentiles: percentiles.collect(),
        // Those of fio 2 are numbered.
        bins: map(kind, "bins").filter(|_| !old),
        completion,
    })
}
