//! HCIBench's `…-res.txt`: what it writes beside a result's directory, of vdbench or fio in many virtual machines.
//!
//! Each block between lines of `=` is one point. The load is in the file's name alone, in words such as
//! `fio-8vmdk-100ws-4k-70rdpct-100randompct-4threads-<time>-res.txt`: disks of each machine, percent of each disk used,
//! block size, percent of reads, percent of random I/O, threads of each disk, which are the I/Os outstanding on it.
//! A limit on the rate (HCIBench's I/O rate) is neither in the name nor in the text.
//!
//! `IOPS` and `THROUGHPUT` are sums over the machines. Latencies are averages of each machine's mean, without weights;
//! what is called 95 % is an average of each machine's percentile with fio, and mean + 1.645 standard deviations with
//! vdbench: neither is a percentile of the I/Os, and none is kept.
//!
//! Where a file has blocks of several datastores (`Datastore =`, `StorageClass =`), theirs is each point's condition.
//!
//! Source: HCIBench's `parseFioResult.rb`, `parseVdbResult.rb` and `parseK8sFioResult.rb`.

use std::path::Path;

use loadline_measure::audit::{Finding, FindingKind};
use loadline_measure::point::{LatencyOf, Point, Stated, Throughput};

use crate::numbers::{is_figure, parse, size, whole};
use crate::text::{kept, shown};
use crate::{ImportError, Imported, Options};

/// More blocks than any result has.
const MOST_BLOCKS: usize = 10_000;

/// `KEY = value`.
fn pair(line: &str) -> Option<(&str, &str)> {
    line.split_once('=').map(|(key, value)| (key.trim(), value.trim())).filter(|(key, _)| !key.is_empty())
}

/// Whether lines are of a result of HCIBench.
pub(crate) fn is_result(lines: &[&str]) -> bool {
    let has = |wanted: &str| lines.iter().filter_map(|line| pair(line)).any(|(key, _)| key == wanted);
    let ended = |line: &&str| line.contains("finished testing early");
    (has("VMs") || has("PODS")) && (has("IOPS") || has("THROUGHPUT")) || lines.iter().any(ended)
}

/// What the file's name states.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
struct Load {
    disks: Option<f64>,
    block_bytes: Option<f64>,
    read_percent: Option<f64>,
    threads: Option<f64>,
}

fn load(name: &str) -> Load {
    let mut load = Load::default();
    for word in name.to_ascii_lowercase().split('-') {
        let before = |unit: &str| word.strip_suffix(unit).and_then(whole::<u32>).map(f64::from);
        if let Some(disks) = before("vmdk") {
            load.disks = Some(disks);
        } else if let Some(percent) = before("rdpct").filter(|percent| *percent <= 100.0) {
            load.read_percent = Some(percent);
        } else if let Some(threads) = before("threads").or_else(|| before("thread")) {
            load.threads = Some(threads);
        } else if word.ends_with(['k', 'm'])
            && let Some(block) = size(word)
        {
            load.block_bytes = Some(block);
        }
    }
    load
}

/// One block of the text.
#[derive(Debug, Default)]
struct Block {
    point: Point,
    read: Option<Stated>,
    write: Option<Stated>,
    percentiles: bool,
    job: Option<String>,
    datastore: Option<String>,
}

/// Reads a result.
pub(crate) fn read(file: &str, name: &Path, text: &str, options: &Options) -> Result<Imported, ImportError> {
    let stem = name.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let stem = stem.strip_suffix("-res.txt").unwrap_or(&stem);
    let load = load(stem);
    let mut reader = Reader { file, ..Reader::default() };
    for (at, line) in text.lines().enumerate() {
        reader.line(at + 1, line.trim())?;
    }
    reader.close();
    let mut findings = std::mem::take(&mut reader.findings);
    let mut points = Vec::new();
    let percentiles = reader.blocks.iter().any(|block| block.percentiles);
    let mut jobs: Vec<&str> = reader.blocks.iter().filter_map(|block| block.job.as_deref()).collect();
    jobs.sort_unstable();
    jobs.dedup();
    let several = jobs.len() > 1;
    let mut datastores: Vec<Option<&str>> =
        reader.blocks.iter().map(|block| block.datastore.as_deref()).collect();
    datastores.sort_unstable();
    datastores.dedup();
    let apart = datastores.len() > 1;
    for mut block in reader.blocks {
        // On another datastore it is no repeat, and more machines there are no growth.
        block.point.condition = block.datastore.take().filter(|_| apart);
        // The name's disks and threads are of all jobs together; how they are shared among them it does not say.
        let load = if several { Load { threads: None, ..load } } else { load };
        points.push(finish(block, stem, &load, options));
    }
    if points.is_empty() {
        return Err(ImportError::new(
            file,
            "no virtual machine finished its test, so that it has no results",
            "see the result files of the machines for why, and test again",
        ));
    }
    let mut note = |expected: &str, found: &str, cause: &str| {
        findings.push(Finding::note(FindingKind::Adjusted, expected, found, cause));
    };
    note(
        "latencies over all I/Os",
        "averages of each machine's mean, without weights",
        "A machine with few I/Os counts as much as one with many. Little's law holds only roughly.",
    );
    if percentiles {
        note(
            "a percentile over all I/Os",
            "an average of each machine's (fio), or a guess from mean and deviation (vdbench)",
            "That is no percentile of anything, and is left out. Take it from each machine's JSON+ instead.",
        );
    }
    if several {
        note(
            "one job in each machine",
            "several, which the file's name does not distinguish",
            "What each kept outstanding is not known, so that Little's law cannot be checked.",
        );
    } else if load.threads.is_none() || load.disks.is_none() {
        note(
            "a name such as fio-8vmdk-100ws-4k-70rdpct-100randompct-4threads-1600171421-res.txt",
            "one that does not say disks and threads",
            "The load is in the name alone. Rename the file as HCIBench named it, or give --outstanding-per-worker.",
        );
    }
    Ok(Imported { format: "HCIBench result", points, findings, ..Imported::default() })
}

/// A block with what the file's name states of it.
fn finish(block: Block, stem: &str, load: &Load, options: &Options) -> Point {
    let mut point = block.point;
    point.profile = match &block.job {
        Some(job) if !stem.is_empty() => kept(&format!("{job}, {stem}")),
        _ => kept(stem),
    };
    point.block_bytes = load.block_bytes;
    point.write_percent = load.read_percent.map(|reads| 100.0 - reads);
    let each = load.disks.zip(load.threads).map(|(disks, threads)| disks * threads);
    let named = each.zip(point.workers).map(|(each, workers)| each * f64::from(workers));
    point.outstanding =
        named.or_else(|| options.outstanding(point.workers)).filter(|sum| is_figure(*sum) && *sum > 0.0);
    point.averaged = true;
    if point.mean_us.is_none() {
        // fio's summary has no mean over both; weighed with the share that was requested, it is one.
        (point.mean_us, point.latency_of) = match (load.read_percent, block.read, block.write) {
            (Some(100.0), read, _) => (read, LatencyOf::Read),
            (Some(0.0), _, write) => (write, LatencyOf::Write),
            (Some(percent), Some(read), Some(write)) => {
                let mix = |read: f64, write: f64| (percent * read + (100.0 - percent) * write) / 100.0;
                let value = mix(read.value, write.value);
                (Some(Stated { value, half_digit: mix(read.half_digit, write.half_digit) }), LatencyOf::All)
            }
            _ => (None, LatencyOf::All),
        };
    }
    point
}

#[derive(Default)]
struct Reader<'a> {
    file: &'a str,
    open: Option<Block>,
    blocks: Vec<Block>,
    job: Option<String>,
    /// Where the blocks that follow were measured.
    datastore: Option<String>,
    /// Machines that ended early, stated before the blocks that they are missing from.
    lost: u32,
    findings: Vec<Finding>,
}

impl Reader<'_> {
    fn line(&mut self, number: usize, line: &str) -> Result<(), ImportError> {
        if line.len() >= 5 && line.bytes().all(|byte| byte == b'=') {
            self.close();
            return Ok(());
        }
        if let Some(lost) = early(line) {
            self.lost(lost, line);
            return Ok(());
        }
        let Some((key, value)) = pair(line) else { return Ok(()) };
        match key {
            // The finding about machines that ended early holds for one datastore.
            "Datastore" | "StorageClass" => {
                self.close();
                self.lost = 0;
                self.datastore = Some(kept(value)).filter(|name| !name.is_empty());
            }
            "JOB_NAME" => {
                self.close();
                self.job = Some(shown(value));
            }
            "VMs" | "PODS" => {
                self.close();
                if self.blocks.len() >= MOST_BLOCKS {
                    let problem = format!("more than {MOST_BLOCKS} results");
                    return Err(ImportError::new(self.file, problem, "split the file"));
                }
                let workers = whole(value).ok_or_else(|| self.bad(number, key, value, "a whole number"))?;
                let place = format!("{}, line {number}", self.file);
                let point =
                    Point { place, workers: Some(workers), lost_workers: self.lost, ..Point::default() };
                let (job, datastore) = (self.job.take(), self.datastore.clone());
                self.open = Some(Block { point, job, datastore, ..Block::default() });
            }
            _ => self.figure(number, key, value)?,
        }
        Ok(())
    }

    fn figure(&mut self, number: usize, key: &str, value: &str) -> Result<(), ImportError> {
        let (unit, factor) = match key {
            "IOPS" => ("IO/S", 1.0),
            "THROUGHPUT" => ("MB/s", 1e6),
            "LATENCY" | "R_LATENCY" | "W_LATENCY" => ("ms", 1e3),
            _ => {
                if let Some(block) = self.open.as_mut().filter(|_| key.contains("tile")) {
                    block.percentiles = true;
                }
                return Ok(());
            }
        };
        let (digits, written) = value.split_once(char::is_whitespace).unwrap_or((value, ""));
        let stated = parse(digits, factor).filter(|_| written.trim().eq_ignore_ascii_case(unit));
        let expected = format!("a number and {unit}");
        let stated = stated.ok_or_else(|| self.bad(number, key, value, &expected))?;
        let Some(block) = &mut self.open else { return Ok(()) };
        match key {
            "IOPS" => block.point.iops = Some(stated),
            "THROUGHPUT" => {
                let unit = "MB/s".to_string();
                block.point.throughput = Some(Throughput { bytes_per_s: stated, unit, unit_bytes: factor });
            }
            "LATENCY" => block.point.mean_us = Some(stated),
            "R_LATENCY" => block.read = Some(stated),
            _ => block.write = Some(stated),
        }
        Ok(())
    }

    fn bad(&self, number: usize, key: &str, value: &str, expected: &str) -> ImportError {
        let place = format!("{}, line {number}", self.file);
        let problem = format!("{key} is \"{}\", not {expected}", shown(value));
        ImportError::new(place, problem, "give the text as HCIBench wrote it")
    }

    fn close(&mut self) {
        self.blocks.extend(self.open.take());
    }

    /// Of fio's summary this stands before a block, of vdbench's after it.
    fn lost(&mut self, early: Early, line: &str) {
        match early {
            Early::Before(lost) => self.lost = lost,
            Early::After(lost) => {
                self.close();
                if let Some(block) = self.blocks.last_mut() {
                    block.point.lost_workers = lost;
                }
            }
        }
        let finding = Finding::doubt(
            FindingKind::LostWorkers,
            "results of all machines",
            format!("\"{}\"", shown(line)),
            "The figures are of the others alone. See the named result files for what happened to these.",
        );
        if !self.findings.contains(&finding) {
            self.findings.push(finding);
        }
    }
}

/// How many machines are missing from the next block, or from the last.
enum Early {
    Before(u32),
    After(u32),
}

fn early(line: &str) -> Option<Early> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words.as_slice() {
        ["There", "are", lost, "VMs" | "pods", rest @ ..] if rest.contains(&"early,") => {
            whole(lost).map(Early::Before)
        }
        ["Testing", "is", "done,", finished, "out", "of", all, ..] => {
            whole::<u32>(all)?.checked_sub(whole(finished)?).map(Early::After)
        }
        _ => None,
    }
}
