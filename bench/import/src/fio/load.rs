//! What load a job put on, by its options.
//!
//! - Entries of one job (`numjobs` without `group_reporting`) are of one process each, and run together.
//! - Any other entry stands for one process, unless several were merged into it (`group_reporting`). fio does not say that
//!   in its JSON when it was asked for on the command line, but `job_runtime` is the sum over the merged processes
//!   while `runtime` is the longest: their quotient counts them. If it is the job's `numjobs`, they are those. If it is
//!   more, different jobs were merged, and the options are of one of them only: then nothing is taken from them.
//! - Outstanding are `iodepth` × processes. Synchronous engines keep one, whatever `iodepth` states.
//! - With a rate, think time, syncs between the I/Os or a depth that fio varies, fewer are outstanding than that.
//!
//! Source: fio's manual (HOWTO), and the output of fio 3.33.

use std::collections::BTreeMap;

use serde_json::Value;

use super::figures::Figures;
use crate::curves::Alike;
use crate::numbers::{size, whole};
use crate::text::shown;

/// Engines that return only when an I/O is complete.
const SYNCHRONOUS: [&str; 13] = [
    "sync", "psync", "vsync", "pvsync", "pvsync2", "mmap", "splice", "net", "libpmem", "dev-dax", "gfapi",
    "libhdfs", "mtd",
];

/// Options under which fewer I/Os than the depth are outstanding, and why.
const OPEN: [(&str, &str); 12] = [
    ("rate", "it was driven by a rate"),
    ("rate_iops", "it was driven by a rate"),
    ("thinktime", "it pauses between I/Os (thinktime)"),
    ("fsync", "it waits for syncs between I/Os"),
    ("fdatasync", "it waits for syncs between I/Os"),
    ("sync_file_range", "it waits for syncs between I/Os"),
    ("iodepth_low", "fio lets its depth fall and rise (iodepth_low)"),
    ("iodepth_batch_complete_min", "fio lets its depth fall and rise (iodepth_batch_complete_min)"),
    ("iodepth_batch_complete", "fio lets its depth fall and rise (iodepth_batch_complete)"),
    ("latency_target", "fio searches for its depth (latency_target)"),
    ("flow", "it waits for other jobs (flow)"),
    ("read_iolog", "it replays a log"),
];

/// How many processes an entry stands for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Processes {
    Known(u32),
    /// Of different jobs, or they did not run all the time.
    Mixed,
}

/// A job's load.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) processes: Processes,
    pub(super) block_bytes: Option<f64>,
    pub(super) write_percent: Option<f64>,
    pub(super) outstanding: Option<f64>,
    pub(super) rate_iops: Option<f64>,
    /// Why what is outstanding is not known.
    pub(super) open: Option<&'static str>,
}

/// The options of a job, its own before the global ones.
struct Set<'a> {
    own: Option<&'a Value>,
    global: Option<&'a Value>,
}

impl<'a> Set<'a> {
    fn of(result: &'a Value, job: &'a Value) -> Set<'a> {
        Set { own: job.get("job options"), global: result.get("global options") }
    }

    fn get(&self, key: &str) -> Option<&'a str> {
        let of = |set: Option<&'a Value>| set.and_then(|set| set.get(key)?.as_str());
        of(self.own).or(of(self.global))
    }

    fn stated(&self) -> bool {
        self.own.is_some() || self.global.is_some()
    }
}

impl Load {
    /// `alike` entries of the result are of the same job.
    pub(super) fn of(result: &Value, job: &Value, alike: u32, figures: &Figures) -> Load {
        let options = Set::of(result, job);
        let measured = match (figures.reads as f64, figures.writes as f64) {
            (0.0, 0.0) => None,
            (reads, writes) => Some(100.0 * writes / (reads + writes)),
        };
        let processes = processes(&options, alike, figures.runtimes);
        let mut load = Load {
            processes,
            block_bytes: None,
            write_percent: measured,
            outstanding: None,
            rate_iops: None,
            open: None,
        };
        // Without options and without fio 3's sum of the runtimes, nothing counts the processes.
        if !options.stated() && figures.runtimes.is_none() {
            load.processes = Processes::Mixed;
            load.open = Some("the result has no options");
            return load;
        }
        let Processes::Known(processes) = processes else {
            load.open = Some(
                "processes of different jobs, or that ended at different times, are merged into it (group_reporting)",
            );
            return load;
        };
        if !options.stated() {
            load.open = Some("the result has no options");
            return load;
        }
        load.write_percent = write_percent(&options).or(measured);
        load.block_bytes = block(&options, figures);
        load.open = open(&options);
        if load.open.is_some() {
            load.rate_iops = rate(&options, figures).map(|rate| rate * f64::from(processes));
            return load;
        }
        let depth = options.get("iodepth").map_or(Some(1), whole::<u32>).filter(|depth| *depth > 0);
        let depth = match options.get("ioengine") {
            Some(engine) if SYNCHRONOUS.contains(&engine) => Some(1),
            // fio's own choice is synchronous on Linux, and is not so on every system.
            None if depth != Some(1) => {
                load.open = Some("an iodepth is given and no ioengine, whose default depends on the system");
                return load;
            }
            _ => depth,
        };
        match depth {
            Some(depth) => load.outstanding = Some(f64::from(depth) * f64::from(processes)),
            None => load.open = Some("its iodepth cannot be read"),
        }
        load
    }
}

fn processes(options: &Set, alike: u32, runtimes: Option<f64>) -> Processes {
    let jobs = options.get("numjobs").map_or(Some(1), whole::<u32>).filter(|jobs| *jobs > 0);
    let Some(jobs) = jobs else { return Processes::Mixed };
    // Entries of their own, one for each process.
    let expected = if alike > 1 { 1 } else { jobs };
    match runtimes {
        None => Processes::Known(expected),
        Some(count) => {
            let of = |expected: u32| {
                let expected = f64::from(expected);
                // Processes that end earlier than others make it less; more can only be other jobs.
                count <= expected + 0.5 && count >= 0.85 * expected
            };
            match () {
                () if of(expected) => Processes::Known(expected),
                // Of numjobs, one remained, as where others are of another client.
                () if of(1) => Processes::Known(1),
                () => Processes::Mixed,
            }
        }
    }
}

/// What distinguishes loads of one name, as the options request it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct JobOptions {
    /// Size, kind and mix of the I/Os.
    pub(super) parts: [Option<String>; 3],
}

impl JobOptions {
    /// Reads it; nothing is known where there are no options.
    pub(super) fn of(result: &Value, job: &Value) -> JobOptions {
        let options = Set::of(result, job);
        if !options.stated() {
            return JobOptions::default();
        }
        let kib = |text: &str| match size(text) {
            Some(bytes) => format!("{} KiB", bytes / 1024.0),
            None => shown(text),
        };
        let ranges = ["bsrange", "blocksize_range", "bssplit"].into_iter().find_map(|key| options.get(key));
        let blocks = ranges.map_or_else(|| kib(options.get("bs").unwrap_or("4k")), shown);
        let kind = options.get("rw").or(options.get("readwrite")).unwrap_or("read");
        let mixed = kind.contains("rw") || kind.contains("readwrite");
        let mix = write_percent(&options).filter(|_| mixed).map(|percent| format!("{percent} % writes"));
        JobOptions { parts: [Some(blocks), Some(shown(kind)), mix] }
    }
}

/// Options that say nothing of the load but how much of it there is: depth and rate. And names, times and what is written
/// beside the result.
const NOT_THE_LOAD: [&str; 14] = [
    "name",
    "description",
    "iodepth",
    "rate_iops",
    "runtime",
    "time_based",
    "timeout",
    "stonewall",
    "wait_for_previous",
    "output",
    "output-format",
    "status-interval",
    "group_reporting",
    "per_job_logs",
];

/// Whether a job waits for those before it to end.
pub(super) fn waits(result: &Value, job: &Value) -> bool {
    let options = Set::of(result, job);
    ["stonewall", "wait_for_previous"]
        .iter()
        .any(|key| options.get(key).is_some_and(|value| !matches!(value, "0")))
}

/// What a job shares with others of its curve: fio's version, the host, and every option but [`NOT_THE_LOAD`]. `None` if
/// there are no options.
pub(super) fn alike(result: &Value, job: &Value) -> Option<Alike> {
    let options = Set::of(result, job);
    if !options.stated() {
        return None;
    }
    let mut all: BTreeMap<&str, &str> = BTreeMap::new();
    for set in [options.global, options.own].into_iter().flatten() {
        let stated = set.as_object().into_iter().flatten();
        all.extend(stated.filter_map(|(key, value)| Some((key.as_str(), value.as_str()?))));
    }
    let beside = |key: &str| NOT_THE_LOAD.contains(&key) || key.starts_with("log_") || key.ends_with("_log");
    all.retain(|key, _| !beside(key));
    let of = |value: &Value, key: &str| value.get(key).map(Value::to_string).unwrap_or_default();
    let key = format!("{}\x1f{}\x1f{all:?}", of(result, "fio version"), of(job, "hostname"));
    let label = JobOptions::of(result, job).parts.into_iter().flatten().collect::<Vec<_>>().join(", ");
    Some(Alike { key, label })
}

fn open(options: &Set) -> Option<&'static str> {
    let set = |key: &str| options.get(key).is_some_and(|value| !matches!(value, "" | "0"));
    OPEN.iter().find(|(key, _)| set(key)).map(|(_, reason)| *reason)
}

fn write_percent(options: &Set) -> Option<f64> {
    // "randrw:8" names how many I/Os follow each offset.
    let kind = options.get("rw")?.split(':').next()?;
    match kind {
        "read" | "randread" => Some(0.0),
        "write" | "randwrite" => Some(100.0),
        "rw" | "readwrite" | "randrw" => {
            let percent = |key| options.get(key).map(|text| whole::<u8>(text).filter(|p| *p <= 100));
            match (percent("rwmixread"), percent("rwmixwrite")) {
                (Some(reads), None) => reads.map(|reads| 100.0 - f64::from(reads)),
                (None, Some(writes)) => writes.map(f64::from),
                (None, None) => Some(50.0),
                (Some(_), Some(_)) => None,
            }
        }
        _ => None,
    }
}

fn block(options: &Set, figures: &Figures) -> Option<f64> {
    let other = ["bsrange", "bssplit", "bs_unaligned", "kb_base", "blocksize_range"];
    if other.iter().any(|key| options.get(key).is_some()) {
        return None;
    }
    let text = options.get("bs").unwrap_or("4k");
    let mut each = text.split(',');
    let (reads, writes) = (each.next(), each.next());
    let (reads, writes) = (size(reads?)?, writes.map_or_else(|| size(reads?), size)?);
    match (figures.reads > 0, figures.writes > 0) {
        (true, false) => Some(reads),
        (false, true) => Some(writes),
        _ => (reads == writes).then_some(reads),
    }
}

/// I/Os a second of each process, if it is one plain number and one direction did I/O: it holds of each direction.
fn rate(options: &Set, figures: &Figures) -> Option<f64> {
    let one = (figures.reads > 0) != (figures.writes > 0);
    let set = options.get("rate").is_none() && options.get("thinktime").is_none();
    options.get("rate_iops").and_then(whole::<u32>).filter(|rate| one && set && *rate > 0).map(f64::from)
}
