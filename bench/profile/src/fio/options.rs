//! What the options of one section say about the load.

use loadline_base::units::{ByteSize, TimeSpan};

use super::others;
use super::syntax::Entry;
use super::values::KbBase;
use crate::{Extent, HotSpot, ProfileError};

/// A stated rate, for reads and for writes of each clone.
#[derive(Debug, Clone)]
pub(super) struct Limit {
    pub(super) each: [Option<u64>; 2],
    pub(super) in_iops: bool,
    pub(super) entry: Entry,
}

/// Reads and writes: which there are, and whether they are random.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Direction {
    pub(super) reads: bool,
    pub(super) writes: bool,
    pub(super) random: bool,
}

/// The options of a section with fio's defaults; a later option overrides an earlier one.
#[derive(Debug)]
pub(super) struct Options {
    pub(super) direction: Direction,
    /// Bytes that a sequential job skips after each block.
    pub(super) skip: Option<u64>,
    pub(super) block: ByteSize,
    pub(super) alignment: Option<ByteSize>,
    pub(super) depth: u32,
    pub(super) clones: u32,
    pub(super) waits_for_each: bool,
    pub(super) engine: String,
    pub(super) size: Option<Extent>,
    pub(super) amount: Option<Entry>,
    pub(super) file_size: Option<ByteSize>,
    pub(super) offset: ByteSize,
    pub(super) files: Vec<String>,
    pub(super) directory: Option<String>,
    pub(super) runtime: Option<TimeSpan>,
    pub(super) ramp: Option<TimeSpan>,
    pub(super) time_based: bool,
    pub(super) direct: bool,
    pub(super) write_percent: u8,
    pub(super) rate: Option<Limit>,
    pub(super) rate_iops: Option<Limit>,
    pub(super) poisson: bool,
    pub(super) zones: Vec<HotSpot>,
    pub(super) random_percent: Option<u8>,
    pub(super) random_map: bool,
    pub(super) seed: Option<u64>,
    pub(super) zero_buffers: bool,
    pub(super) counting_pattern: bool,
    pub(super) compress_percent: u8,
    pub(super) refill: bool,
    pub(super) flush: Option<u32>,
    pub(super) data_flush: Option<u32>,
    pub(super) write_through: bool,
    pub(super) alone: bool,
    /// What the job is called in fio's report, where that is not its section's name.
    pub(super) name: Option<String>,
    /// The option that forbids writes.
    read_only: Option<Entry>,
    pub(super) notes: Vec<String>,
    base: KbBase,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            direction: Direction { reads: true, writes: false, random: false },
            skip: None,
            block: ByteSize::kib(4),
            alignment: None,
            depth: 1,
            clones: 1,
            waits_for_each: true,
            engine: "psync".into(),
            size: None,
            amount: None,
            file_size: None,
            offset: ByteSize(0),
            files: Vec::new(),
            directory: None,
            runtime: None,
            ramp: None,
            time_based: false,
            direct: false,
            write_percent: 50,
            rate: None,
            rate_iops: None,
            poisson: false,
            zones: Vec::new(),
            random_percent: None,
            random_map: true,
            seed: None,
            zero_buffers: false,
            counting_pattern: false,
            compress_percent: 0,
            refill: false,
            flush: None,
            data_flush: None,
            write_through: false,
            alone: false,
            name: None,
            read_only: None,
            notes: Vec::new(),
            base: KbBase::default(),
        }
    }
}

impl Options {
    pub(super) fn set(&mut self, entry: &Entry) -> Result<(), ProfileError> {
        let key = entry.key.to_ascii_lowercase();
        let base = self.base;
        match key.as_str() {
            "rw" | "readwrite" => self.direction(entry)?,
            "bs" | "blocksize" => self.block = block(entry, base)?,
            "ba" | "blockalign" => self.alignment = Some(entry.size(base)?),
            "iodepth" => self.depth = at_least_one(entry)?,
            "numjobs" => self.clones = at_least_one(entry)?,
            "ioengine" => self.engine(entry)?,
            "size" => self.size = Some(entry.extent(base)?),
            "io_size" | "io_limit" => {
                entry.extent(base)?;
                self.amount = Some(entry.clone());
            }
            "filesize" => self.file_size = Some(entry.size(base)?),
            "offset" => self.offset = entry.size(base)?,
            "filename" => self.files = file_names(entry)?,
            "directory" => self.directory = Some(directory(entry)?),
            "runtime" | "timeout" => self.runtime = Some(entry.time()?),
            "ramp_time" => self.ramp = Some(entry.time()?),
            "time_based" => self.time_based = entry.switch()?,
            "direct" => self.direct = with_value(entry)?.switch()?,
            "buffered" => self.direct = !with_value(entry)?.switch()?,
            "rwmixwrite" => self.write_percent = entry.percent()?,
            "rwmixread" => self.write_percent = 100 - entry.percent()?,
            "rate" => {
                self.rate =
                    Some(Limit { each: entry.reads_and_writes(base)?, in_iops: false, entry: entry.clone() });
            }
            "rate_iops" => {
                self.rate_iops =
                    Some(Limit { each: entry.reads_and_writes(base)?, in_iops: true, entry: entry.clone() });
            }
            "rate_process" => {
                self.poisson = match entry.text()? {
                    "linear" => false,
                    "poisson" => true,
                    _ => {
                        return Err(entry
                            .syntax(format!("{} is no process", entry.shown()), "write linear or poisson"));
                    }
                };
            }
            "random_distribution" => self.distribution(entry)?,
            "percentage_random" => self.random_percent = Some(entry.percent()?),
            "norandommap" => self.random_map = !entry.switch()?,
            "randseed" => self.seed = Some(entry.seed()?),
            "zero_buffers" => self.zero_buffers = entry.switch()?,
            "refill_buffers" => self.refill = entry.switch()?,
            "buffer_compress_percentage" => self.compress_percent = entry.percent()?,
            "buffer_pattern" => self.pattern(entry)?,
            "fsync" => self.flush = Some(entry.number()?).filter(|writes| *writes > 0),
            "fdatasync" => self.data_flush = Some(entry.number()?).filter(|writes| *writes > 0),
            "sync" => self.sync(entry)?,
            "stonewall" | "wait_for_previous" => {
                self.alone = true;
                self.notes.push(format!("{} lets fio wait for the jobs before this one", entry.shown()));
            }
            "kb_base" => {
                self.base = match entry.text()? {
                    "1024" => KbBase::Binary,
                    "1000" => KbBase::Decimal,
                    _ => {
                        return Err(
                            entry.syntax(format!("{} is no base", entry.shown()), "write 1024 or 1000")
                        );
                    }
                };
            }
            "name" => self.name = Some(entry.text()?.to_string()),
            "readonly" => {
                self.read_only = Some(entry.clone()).filter(|_| entry.switch().unwrap_or(true));
                self.notes.push(format!("{} only makes fio refuse jobs that write", entry.shown()));
            }
            key => self.other(entry, key)?,
        }
        Ok(())
    }

    /// Checks that the options fit together as fio requires, once all of them are set.
    pub(super) fn check(&self) -> Result<(), ProfileError> {
        match &self.read_only {
            Some(entry) if self.direction.writes => {
                let problem = format!("{} with a job that writes, which fio refuses", entry.shown());
                Err(entry.syntax(problem, "leave it out, or use rw=read or rw=randread"))
            }
            _ => Ok(()),
        }
    }

    /// Notes how fio ends a job: Loadline measures for a time, and fio may also stop at an amount.
    pub(super) fn ending(&mut self) {
        if let Some(amount) = self.amount.take() {
            self.notes.push(format!(
                "{} ends fio's job at an amount; Loadline measures for a time",
                amount.shown()
            ));
        }
        let note = match (self.runtime, self.time_based) {
            (Some(_), true) => return,
            (Some(_), false) => {
                "without time_based fio stops before runtime once each clone has done its size; Loadline goes on"
            }
            (None, _) => {
                "without runtime fio stops once each clone has done its size; Loadline measures for a time"
            }
        };
        self.notes.push(note.into());
    }

    /// Options without a counterpart: fine where they change nothing, said where they change only fio's ways.
    fn other(&mut self, entry: &Entry, key: &str) -> Result<(), ProfileError> {
        let value = entry.value.as_deref().unwrap_or("1");
        let means_nothing = match key {
            "loops"
            | "nrfiles"
            | "iodepth_batch"
            | "iodepth_batch_submit"
            | "iodepth_batch_complete_min"
            | "iodepth_batch_complete"
            | "iodepth_batch_complete_max" => value == "1",
            "offset_increment"
            | "thinktime"
            | "startdelay"
            | "start_delay"
            | "dedupe_percentage"
            | "verify"
            | "do_verify"
            | "prio"
            | "prioclass"
            | "fill_device"
            | "experimental_verify"
            | "pre_read" => value == "0",
            "zonemode" => value == "none",
            "io_submit_mode" => value == "inline",
            "file_service_type" => value == "roundrobin",
            _ => false,
        };
        if means_nothing {
            return Ok(());
        }
        if let Some(reason) = others::harmless(key) {
            self.notes.push(format!("{} {reason}", entry.shown()));
            return Ok(());
        }
        Err(entry.unsupported(format!("the option {} is not supported", entry.shown()), others::advice(key)))
    }

    fn direction(&mut self, entry: &Entry) -> Result<(), ProfileError> {
        let (name, postfix) = match entry.text()?.split_once(':') {
            Some((name, postfix)) => (name, Some(postfix)),
            None => (entry.text()?, None),
        };
        let (reads, writes, random) = match name {
            "read" => (true, false, false),
            "write" => (false, true, false),
            "rw" | "readwrite" => (true, true, false),
            "randread" => (true, false, true),
            "randwrite" => (false, true, true),
            "randrw" => (true, true, true),
            "trim" | "randtrim" | "trimwrite" | "randtrimwrite" => {
                let advice = "Loadline reads and writes; use read, write, rw, randread, randwrite or randrw";
                return Err(entry.unsupported(format!("{} discards blocks", entry.shown()), advice));
            }
            _ => {
                let advice = "write read, write, rw, randread, randwrite or randrw";
                return Err(entry.syntax(format!("{} is no direction", entry.shown()), advice));
            }
        };
        self.direction = Direction { reads, writes, random };
        self.skip = None;
        if let Some(postfix) = postfix {
            let part = Entry { value: Some(postfix.to_string()), ..entry.clone() };
            let skip = part.size(self.base).ok().filter(|_| !random);
            let skip = skip.ok_or_else(|| {
                entry.unsupported(
                    format!("{} issues several I/Os at once in one place, or runs backwards", entry.shown()),
                    "leave out what follows the colon; after a sequential direction it may be a size to skip, as in read:4k",
                )
            })?;
            self.skip = Some(skip.bytes());
        }
        Ok(())
    }

    fn engine(&mut self, entry: &Entry) -> Result<(), ProfileError> {
        let name = entry.text()?;
        self.waits_for_each = match name {
            "io_uring" | "libaio" | "posixaio" | "windowsaio" | "solarisaio" => false,
            "sync" | "psync" | "vsync" | "pvsync" | "pvsync2" => true,
            _ => {
                return Err(entry.unsupported(
                    format!("{} does not read and write a block device or file in the ordinary way", entry.shown()),
                    "use io_uring, libaio, posixaio or psync, and give other storage to Loadline as a disk URI",
                ));
            }
        };
        self.engine = name.to_string();
        Ok(())
    }

    fn distribution(&mut self, entry: &Entry) -> Result<(), ProfileError> {
        let text = entry.text()?;
        self.zones = match text.split_once(':') {
            None if text == "random" => Vec::new(),
            Some(("zoned", zones)) => entry.zones(zones, false, self.base)?,
            Some(("zoned_abs", zones)) => entry.zones(zones, true, self.base)?,
            _ => {
                return Err(entry.unsupported(
                    format!("{} is not supported", entry.shown()),
                    "write random, or say where the I/O goes with zoned:60/10:30/20:10/70",
                ));
            }
        };
        Ok(())
    }

    fn pattern(&mut self, entry: &Entry) -> Result<(), ProfileError> {
        if !entry.text()?.eq_ignore_ascii_case(&super::print::counting_pattern()) {
            return Err(entry.unsupported(
                format!("{} repeats a pattern of its own", entry.shown()),
                "choose random, compressible (buffer_compress_percentage) or zero data (zero_buffers), or the bytes \
                 0x000102 to ff",
            ));
        }
        self.counting_pattern = true;
        Ok(())
    }

    fn sync(&mut self, entry: &Entry) -> Result<(), ProfileError> {
        self.write_through = match entry.text()? {
            "none" | "0" => false,
            "dsync" => true,
            "sync" | "1" => {
                self.notes.push(format!(
                    "{} (O_SYNC) also makes a file's times durable; Loadline uses O_DSYNC, which leaves those out",
                    entry.shown()
                ));
                true
            }
            _ => {
                return Err(
                    entry.syntax(format!("{} is no mode", entry.shown()), "write none, sync or dsync")
                );
            }
        };
        Ok(())
    }
}

fn at_least_one(entry: &Entry) -> Result<u32, ProfileError> {
    match entry.number()? {
        0 => Err(entry.syntax(format!("{} is too small", entry.shown()), "give at least 1")),
        number => Ok(number),
    }
}

/// `bs=4k`, and `bs=4k,4k` for reads and writes as long as both are the same.
fn block(entry: &Entry, base: KbBase) -> Result<ByteSize, ProfileError> {
    let mut sizes = entry
        .text()?
        .split(',')
        .filter(|part| !part.is_empty())
        .map(|part| Entry { value: Some(part.to_string()), ..entry.clone() }.size(base));
    let Some(first) = sizes.next().transpose()? else {
        return Err(entry.syntax(format!("{} is not a size", entry.shown()), "write a size such as 64k"));
    };
    for other in sizes {
        if other? != first {
            let problem = format!("{} gives reads and writes different sizes", entry.shown());
            return Err(entry.unsupported(problem, "give one size, or a job for reads and one for writes"));
        }
    }
    Ok(first)
}

/// fio requires a value for these, although it is 0 or 1.
fn with_value(entry: &Entry) -> Result<&Entry, ProfileError> {
    entry.text().map(|_| entry)
}

const MOST_FILES: usize = 4096;

/// Names separated by colons; a colon within a name has a backslash before it.
fn file_names(entry: &Entry) -> Result<Vec<String>, ProfileError> {
    let mut names = vec![String::new()];
    let mut chars = entry.text()?.chars().peekable();
    while let Some(c) = chars.next() {
        let literal = if c == '\\' { chars.next_if_eq(&':') } else { None };
        match (literal, c, names.last_mut()) {
            (None, ':', _) => names.push(String::new()),
            (literal, c, Some(name)) => name.push(literal.unwrap_or(c)),
            (_, _, None) => {}
        }
    }
    names.retain(|name| !name.is_empty());
    if names.is_empty() || names.len() > MOST_FILES || names.iter().any(|name| name == "-") {
        let problem = format!("{} names no file, too many, or standard input", entry.shown());
        return Err(entry
            .syntax(problem, format!("name 1 to {MOST_FILES} files or devices, with colons between them")));
    }
    Ok(names)
}

fn directory(entry: &Entry) -> Result<String, ProfileError> {
    let text = entry.text()?;
    if text.contains(':') {
        let problem = format!("{} spreads the files over several directories", entry.shown());
        return Err(entry.unsupported(problem, "name each file with filename"));
    }
    Ok(text.to_string())
}
