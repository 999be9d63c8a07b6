//! A job, prepared and run: threads, phases, the stream of intervals, the outcome.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use loadline_base::clock::{Nanos, wake_on_time};
use loadline_base::ring::{Ring, RingOptions};
use loadline_base::units::ByteSize;
use loadline_measure::audit::{Finding, FindingKind};
use loadline_measure::interval::{Interval, Phase};
use loadline_measure::window::Window;
use nix::sys::resource::{UsageWho, getrusage};
use rand_core::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::address::{Addresses, Space};
use crate::brake::Watch;
use crate::data::{self, Stamp};
use crate::engine::Memory;
use crate::engine::null::NullEngine;
use crate::engine::pool::{MOST_THREADS, PoolEngine};
use crate::engine::uring::UringEngine;
use crate::error::LoadError;
use crate::issuer::{Issuer, IssuerReport, Setting};
use crate::job::{Engine, Job};
use crate::pace::Schedule;
use crate::record::Timetable;
use crate::sweep::{self, Task};
use crate::target::{self, OpenDisk};
use crate::verify::{Journal, Verifier};

/// CPU time of the whole process in the measured window, its io_uring kernel workers included.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CpuTime {
    /// In user space, seconds.
    pub user_s: f64,
    /// In the kernel, seconds.
    pub system_s: f64,
}

/// How many bad blocks are described in words.
pub(crate) const MOST_EXAMPLES: usize = 20;

/// What checking the blocks found.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VerifyReport {
    /// Blocks whose content was checked, by reads of the load and by the scan.
    pub checked: u64,
    /// Blocks that are older than what was acknowledged: acknowledged writes lost.
    pub lost: u64,
    /// Blocks whose checksum is wrong.
    pub corrupt: u64,
    /// Blocks that were written for another place, by another run, or never.
    pub foreign: u64,
    /// Blocks that could not be judged, since a write to them was in flight while they were read.
    pub unjudged: u64,
    /// The first of the bad blocks, in words; at most twenty.
    pub examples: Vec<String>,
}

impl VerifyReport {
    /// Blocks that are not what they should be.
    pub fn bad(&self) -> u64 {
        self.lost + self.corrupt + self.foreign
    }

    /// Adds what another check found.
    pub fn merge(&mut self, other: VerifyReport) {
        self.checked += other.checked;
        self.lost += other.lost;
        self.corrupt += other.corrupt;
        self.foreign += other.foreign;
        self.unjudged += other.unjudged;
        let room = MOST_EXAMPLES.saturating_sub(self.examples.len());
        self.examples.extend(other.examples.into_iter().take(room));
    }
}

/// What a job came to.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Everything measured in the window, all disks merged.
    pub window: Window,
    /// CPU time in the window.
    pub cpu: CpuTime,
    /// What a reader should know, the audit's findings not included.
    pub findings: Vec<Finding>,
    /// Which engine ran, in words (`io_uring`, `threads`, `null`).
    pub engine: String,
    /// What the checks of blocks found, if verifying.
    pub verify: Option<VerifyReport>,
    /// Why the brake ended it, if it did: then the window is shorter than asked.
    pub braked: Option<String>,
}

/// Completions are recorded at most this long after their second ended; then a second's records are handed on.
const GRACE: Nanos = Nanos(200_000_000);
/// How long the threads may take to end once told to.
const END_LIMIT: Nanos = Nanos(10_000_000_000);
/// From this many outstanding on, one wait on a file in memory collects several completions.
const COLLECT_FROM: u32 = 16;

/// A job whose disks are open.
pub struct Prepared {
    job: Job,
    disks: Vec<PreparedDisk>,
    /// Whether the disks were opened for writing.
    writable: bool,
    engine: Chosen,
    findings: Vec<Finding>,
}

struct PreparedDisk {
    open: OpenDisk,
    space: Arc<Space>,
    verifier: Option<Arc<Verifier>>,
}

/// The engine that was found to work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Chosen {
    Uring,
    Threads,
}

/// Opens and checks everything: whatever can be refused is refused here, before any I/O. The disks are opened for
/// writing only if the job's profile writes.
pub fn prepare(job: &Job) -> Result<Prepared, LoadError> {
    Prepared::open(job, job.writes())
}

/// Like [`prepare`], for a job whose disks are to be filled: they are opened for writing in any case.
pub fn prepare_to_fill(job: &Job) -> Result<Prepared, LoadError> {
    Prepared::open(job, true)
}

/// Like [`prepare`], for a job whose disks are only read: to scan them.
pub fn prepare_to_scan(job: &Job) -> Result<Prepared, LoadError> {
    Prepared::open(job, false)
}

impl Prepared {
    fn open(job: &Job, write: bool) -> Result<Prepared, LoadError> {
        job.validate()?;
        let mut findings = Vec::new();
        let engine = choose_engine(job, &mut findings)?;
        let profile = &job.profile;
        let needed = job.outstanding() * profile.block_size.0;
        let available = available_memory();
        if needed > available {
            return Err(LoadError::usage(format!(
                "{} I/Os of {} outstanding need {} MiB of memory, and {} MiB are free: use fewer outstanding",
                job.outstanding(),
                profile.block_size,
                needed >> 20,
                available >> 20
            )));
        }
        let mut disks = Vec::new();
        for (index, disk) in job.disks.iter().enumerate() {
            let open = target::open(disk, profile, write)?;
            let space = Arc::new(Space::new(profile, open.size, &open.name)?);
            if profile.direct && !open.direct {
                findings.push(Finding::doubt(
                    FindingKind::NotDirect,
                    format!("direct I/O on {}", open.name),
                    "its file system refuses it, so I/O goes through the page cache",
                    "Figures may be those of memory. Use a file system with direct I/O, or a block device.",
                ));
            }
            let verifier = match &job.verify {
                None => None,
                Some(_) if open.file.is_none() => {
                    return Err(LoadError::usage(
                        "the null target keeps nothing, so nothing can be verified",
                    ));
                }
                Some(verify) => {
                    let path = &verify.journals[index];
                    let unit = Journal::unit_of(path).unwrap_or_else(|| verify_unit(job));
                    check_unit(job, unit)?;
                    let journal = Journal::open(path, unit, open.size.0)?;
                    Some(Arc::new(Verifier::new(journal, open.name.clone())))
                }
            };
            disks.push(PreparedDisk { open, space, verifier });
        }
        Ok(Prepared { job: job.clone(), disks, writable: write, engine, findings })
    }

    /// Writes the working set of every disk once, with the profile's data. `progress` gets the bytes done and the
    /// bytes in all, several times a second.
    pub fn fill(&mut self, stop: &AtomicBool, progress: &mut dyn FnMut(u64, u64)) -> Result<(), LoadError> {
        assert!(self.writable, "filling needs a job prepared to fill");
        let total = self.disks.iter().map(|d| d.space.length).sum();
        self.sweep_all(total, stop, progress, &|this, index, done, stop| {
            let disk = &this.disks[index];
            let mut engine = this.sweep_engine(disk, false, true)?;
            sweep::prepare_memory(&mut *engine, this.job.profile.data, this.job.seed ^ index as u64);
            let stamp =
                Stamp::new(this.job.profile.data, this.job.seed.wrapping_add(u64::MAX - index as u64));
            let task = Task::Fill { stamp, verifier: disk.verifier.as_deref() };
            let mut pieces = sweep::pieces(disk.space.base, disk.space.length);
            sweep::sweep(&mut *engine, &disk.open.name, &mut pieces, task, done, stop)?;
            Ok(VerifyReport::default())
        })?;
        for disk in &mut self.disks {
            if let Some(file) = &disk.open.file {
                nix::unistd::fsync(file).map_err(|e| {
                    LoadError::failed(format!("filling {} failed: {}", disk.open.name, e.desc()))
                })?;
                disk.open.unwritten = ByteSize(0);
            }
        }
        Ok(())
    }

    /// Reads every block that the journals know and checks it: the full scan after a verified run, and the
    /// judge of a dead worker's writes.
    pub fn scan(
        &mut self,
        stop: &AtomicBool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<VerifyReport, LoadError> {
        let runs: Vec<Vec<(u64, usize)>> = self
            .disks
            .iter()
            .map(|d| d.verifier.as_ref().map(|v| v.issued_runs(sweep::CHUNK)).unwrap_or_default())
            .collect();
        let total = runs.iter().flatten().map(|(_, length)| *length as u64).sum();
        self.sweep_all(total, stop, progress, &|this, index, done, stop| {
            let disk = &this.disks[index];
            let verifier = disk.verifier.as_ref().ok_or_else(|| LoadError::usage("a scan needs journals"))?;
            let mut engine = this.sweep_engine(disk, true, false)?;
            let mut report = VerifyReport::default();
            let known = vec![Vec::new(); sweep::DEPTH];
            let task = Task::Scan { verifier, report: &mut report, known };
            let mut pieces = runs[index].iter().copied();
            sweep::sweep(&mut *engine, &disk.open.name, &mut pieces, task, done, stop)?;
            Ok(report)
        })
    }

    /// Runs one sweep for each disk, all at once, and reports their progress.
    fn sweep_all(
        &self,
        total: u64,
        stop: &AtomicBool,
        progress: &mut dyn FnMut(u64, u64),
        one: &(dyn Fn(&Prepared, usize, &AtomicU64, &AtomicBool) -> Result<VerifyReport, LoadError> + Sync),
    ) -> Result<VerifyReport, LoadError> {
        let done = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.disks.len())
                .map(|i| {
                    scope.spawn({
                        let done = &done;
                        move || one(self, i, done, stop)
                    })
                })
                .collect();
            while threads.iter().any(|t| !t.is_finished()) {
                progress(done.load(Ordering::Relaxed), total);
                std::thread::sleep(Duration::from_millis(100));
            }
            progress(done.load(Ordering::Relaxed), total);
            let mut all = VerifyReport::default();
            for thread in threads {
                let report =
                    thread.join().map_err(|_| LoadError::failed("a thread of the generator panicked"))??;
                all.merge(report);
            }
            Ok(all)
        })
    }

    fn sweep_engine(
        &self,
        disk: &PreparedDisk,
        reads: bool,
        writes: bool,
    ) -> Result<Box<dyn crate::engine::Engine>, LoadError> {
        let error = |e: io::Error| LoadError::failed(format!("{}: no engine: {e}", disk.open.name));
        let memory = Memory::new(sweep::CHUNK, sweep::DEPTH, reads, writes).map_err(error)?;
        let Some(file) = &disk.open.file else { return Ok(Box::new(NullEngine::new(memory, sweep::DEPTH))) };
        let file = Arc::clone(file);
        Ok(match self.engine {
            Chosen::Uring => Box::new(
                UringEngine::new(file, memory, sweep::DEPTH, disk.open.in_memory, false).map_err(error)?,
            ),
            Chosen::Threads => Box::new(PoolEngine::new(file, memory, sweep::DEPTH).map_err(error)?),
        })
    }

    /// Runs the job: warm-up begins at `start`, on this host's monotonic clock. About once a second, shortly
    /// after a second ends, `sink` gets what was recorded, one record for each disk and phase (records of one
    /// second may come in several parts, to be added). Set `stop` to end it early: then the result is an error
    /// of kind `Interrupted`.
    pub fn run(
        mut self,
        start: Nanos,
        stop: &AtomicBool,
        sink: &mut dyn FnMut(Vec<Interval>),
    ) -> Result<Outcome, LoadError> {
        assert!(self.writable || !self.job.writes(), "a job that writes is prepared for it");
        self.note_unwritten();
        let job = &self.job;
        let open = start + Nanos::from(job.warm_up.0);
        let close = open + Nanos::from(job.measure.0);
        let end = close + Nanos::from(job.cool_down.0);
        let timetable = Timetable { begin: start, open, close, end };
        let halt = Arc::new(AtomicBool::new(false));
        let oldest = Arc::new(Watch::new(&job.stop_if));
        let (send, receive) = mpsc::channel();
        let threads = self.start_threads(timetable, &halt, &oldest, &send)?;
        drop(send);
        let late = Nanos::now().since(start);
        if late > GRACE {
            self.findings.push(Finding::doubt(
                FindingKind::Adjusted,
                "the load to begin at the agreed moment",
                format!("its threads were ready {:.1} s later", late.as_secs()),
                "The host is overloaded, or the I/Os outstanding take very much memory.",
            ));
        }
        let mut collector = Collector {
            timetable,
            window: Window::new(Nanos::from(job.measure.0)),
            pending: BTreeMap::new(),
            marks: [None, None],
            receive,
            watch: oldest,
            sink,
        };
        let give_up = end + Nanos::from(job.drain.0) + END_LIMIT;
        let braked = collector.collect(stop, &halt, give_up);
        halt.store(true, Ordering::Relaxed);
        let reports = join(threads, Nanos::now() + END_LIMIT)?;
        if stop.load(Ordering::Relaxed) {
            return Err(LoadError::interrupted());
        }
        if braked.is_none() {
            collector.take_rest();
        }
        let cpu = collector.cpu();
        self.outcome(collector.window, cpu, reports, braked)
    }

    fn outcome(
        self,
        window: Window,
        cpu: CpuTime,
        reports: Vec<IssuerReport>,
        braked: Option<(u64, String)>,
    ) -> Result<Outcome, LoadError> {
        let mut findings = self.findings;
        let mut verify = self.job.verify.is_some().then(VerifyReport::default);
        let mut first_error = None;
        for report in reports {
            first_error = first_error.or(report.first_error);
            if let Some(all) = &mut verify {
                all.merge(report.verify);
            }
        }
        if let Some(error) = first_error {
            findings.push(Finding::note(
                FindingKind::Errors,
                "every I/O to succeed",
                format!("the first that failed: {error}"),
                "The kernel log usually says more about the device.",
            ));
        }
        let mut window = window;
        let braked = match braked {
            None => None,
            Some((0, why)) => {
                return Err(LoadError::limit(format!("stopped before anything was measured: {why}")));
            }
            Some((seconds, why)) => {
                window.cut(Nanos(seconds * Nanos::SECOND.0));
                findings.push(Finding::doubt(
                    FindingKind::Stopped,
                    format!("a window of {}", self.job.measure),
                    format!("it was stopped after {seconds} s: {why}"),
                    "The stated limit (--stop-if) was passed; the figures are those until then.",
                ));
                Some(why)
            }
        };
        let engine = match (self.disks.iter().all(|d| d.open.file.is_none()), self.engine) {
            (true, _) => "null",
            (false, Chosen::Uring) => "io_uring",
            (false, Chosen::Threads) => "threads",
        };
        Ok(Outcome { window, cpu, findings, engine: engine.into(), verify, braked })
    }

    fn note_unwritten(&mut self) {
        for disk in &self.disks {
            let most_written = disk.open.size.0.saturating_sub(disk.open.unwritten.0);
            if self.job.profile.write_percent < 100 && most_written < disk.space.length / 100 * 99 {
                self.findings.push(Finding::doubt(
                    FindingKind::UnwrittenReads,
                    format!("{} to be written before it is read", disk.open.name),
                    format!(
                        "{:.0} % of it has no data",
                        100.0 * disk.open.unwritten.0 as f64 / disk.open.size.0 as f64
                    ),
                    "Reading a block that was never written costs almost nothing. Fill it first (--fill).",
                ));
            }
        }
    }

    fn start_threads(
        &self,
        timetable: Timetable,
        halt: &Arc<AtomicBool>,
        watch: &Arc<Watch>,
        send: &Sender<Interval>,
    ) -> Result<Vec<JoinHandle<io::Result<IssuerReport>>>, LoadError> {
        let profile = &self.job.profile;
        let per_disk = profile.threads as usize;
        let threads = self.disks.len() * per_disk;
        let (ready_send, ready) = mpsc::channel::<io::Result<()>>();
        let mut handles = Vec::with_capacity(threads);
        for (disk_index, disk) in self.disks.iter().enumerate() {
            let shared = Arc::new(AtomicU64::new(0));
            for thread in 0..per_disk {
                let index = disk_index * per_disk + thread;
                let seed = self.job.seed.wrapping_add((index as u64 + 1).wrapping_mul(0xD134_2543_DE82_EF95));
                let schedule = profile.rate.as_ref().map(|offered| {
                    let iops = offered.rate.iops(profile.block_size);
                    Schedule::new(timetable.begin, iops, offered.arrival, (index, threads), self.job.seed)
                });
                let collect = if disk.open.in_memory
                    && profile.outstanding >= COLLECT_FROM
                    && profile.rate.is_none()
                    && !self.job.poll
                {
                    4
                } else {
                    1
                };
                let setting = Setting {
                    disk: disk_index as u32,
                    slots: profile.outstanding as usize,
                    write_percent: profile.write_percent,
                    flush_every: profile.flush_every,
                    block: profile.block_size.0 as usize,
                    timetable,
                    drain: Nanos::from(self.job.drain.0),
                    collect,
                    poll: self.job.poll,
                    addresses: Addresses::new(Arc::clone(&disk.space), profile.pattern, Arc::clone(&shared)),
                    schedule,
                    stamp: Stamp::new(profile.data, seed),
                    verifier: disk.verifier.clone(),
                    rng: Xoshiro256PlusPlus::seed_from_u64(seed),
                    watch: Arc::clone(watch),
                };
                let making = Making {
                    setting,
                    file: disk.open.file.clone(),
                    in_memory: disk.open.in_memory,
                    engine: self.engine,
                    data: profile.data,
                    seed,
                    reads: profile.write_percent < 100,
                };
                let (halt, send, ready) = (Arc::clone(halt), send.clone(), ready_send.clone());
                let handle = std::thread::Builder::new()
                    .name(format!("load-{disk_index}-{thread}"))
                    .stack_size(256 << 10)
                    .spawn(move || making.run(&halt, send, &ready))
                    .map_err(|e| {
                        LoadError::failed(format!("thread {index} of {threads} cannot be made: {e}"))
                    })?;
                handles.push(handle);
            }
        }
        drop(ready_send);
        for _ in 0..threads {
            let failed = match ready.recv_timeout(Duration::from_secs(60)) {
                Ok(Ok(())) => continue,
                Ok(Err(e)) => e.to_string(),
                Err(_) => "it was not ready within a minute".into(),
            };
            halt.store(true, Ordering::Relaxed);
            return Err(LoadError::failed(format!("a thread of the generator could not begin: {failed}")));
        }
        Ok(handles)
    }
}

/// What a thread makes itself from: a ring belongs to the thread that made it.
struct Making {
    setting: Setting,
    file: Option<Arc<std::os::fd::OwnedFd>>,
    in_memory: bool,
    engine: Chosen,
    data: loadline_profile::Data,
    seed: u64,
    reads: bool,
}

impl Making {
    fn run(
        self,
        halt: &AtomicBool,
        send: Sender<Interval>,
        ready: &Sender<io::Result<()>>,
    ) -> io::Result<IssuerReport> {
        wake_on_time();
        let slots = self.setting.slots;
        let make_memory = || {
            let writes = self.setting.write_percent > 0;
            let mut memory = Memory::new(self.setting.block, slots, self.reads, writes)?;
            if let Some(region) = memory.write_region() {
                data::fill(region, self.data, self.seed);
            }
            Ok(memory)
        };
        // An engine is made and its readiness told, or the reason why not.
        let told = |made: io::Result<()>| ready.send(made).is_ok();
        macro_rules! run_with {
            ($engine:expr) => {
                match $engine {
                    Ok(engine) => {
                        told(Ok(()));
                        Issuer::new(engine, self.setting, send).run(halt)
                    }
                    Err(e) => {
                        told(Err(e));
                        Ok(IssuerReport::default())
                    }
                }
            };
        }
        let memory = make_memory();
        match (&self.file, self.engine) {
            (None, _) => run_with!(memory.map(|m| NullEngine::new(m, slots))),
            (Some(file), Chosen::Uring) => run_with!(memory.and_then(|m| {
                UringEngine::new(Arc::clone(file), m, slots, self.in_memory, self.setting.poll)
            })),
            (Some(file), Chosen::Threads) => {
                run_with!(memory.and_then(|m| PoolEngine::new(Arc::clone(file), m, slots)))
            }
        }
    }
}

/// Gathers the threads' records while they run.
struct Collector<'a> {
    timetable: Timetable,
    window: Window,
    /// By second, disk and phase.
    pending: BTreeMap<(i64, u32, Phase), Interval>,
    /// CPU time when the window opened and closed.
    marks: [Option<CpuTime>; 2],
    receive: Receiver<Interval>,
    watch: Arc<Watch>,
    sink: &'a mut dyn FnMut(Vec<Interval>),
}

impl Collector<'_> {
    /// Until every thread has ended, or a stop. Returns why the brake ended it, and how many whole seconds of
    /// the window there are then.
    fn collect(&mut self, stop: &AtomicBool, halt: &AtomicBool, give_up: Nanos) -> Option<(u64, String)> {
        let mut second_over = self.timetable.begin + Nanos::SECOND + GRACE;
        loop {
            let now = Nanos::now();
            if stop.load(Ordering::Relaxed) || now > give_up {
                return None;
            }
            for (mark, moment) in self.marks.iter_mut().zip([self.timetable.open, self.timetable.close]) {
                if mark.is_none() && now >= moment {
                    *mark = Some(cpu_time());
                }
            }
            if now >= second_over {
                let second = (second_over.0 as i64 - GRACE.0 as i64 - self.timetable.open.0 as i64)
                    / Nanos::SECOND.0 as i64
                    - 1;
                second_over = second_over + Nanos::SECOND;
                if let Some(why) = self.hand_on(second, now) {
                    halt.store(true, Ordering::Relaxed);
                    let length = (self.window.length().0 / Nanos::SECOND.0) as i64;
                    return Some(((second + 1).clamp(0, length) as u64, why));
                }
            }
            let mut wake = second_over.min(now + Nanos(100 * Nanos::MILLISECOND.0));
            for (mark, moment) in self.marks.iter().zip([self.timetable.open, self.timetable.close]) {
                if mark.is_none() {
                    wake = wake.min(moment);
                }
            }
            match self.receive.recv_timeout(Duration::from(wake.since(now))) {
                Ok(interval) => self.take(&interval),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    fn take(&mut self, interval: &Interval) {
        self.pending
            .entry((interval.second, interval.disk, interval.phase))
            .or_insert_with(|| Interval::new(interval.second, interval.phase, interval.disk))
            .merge(interval);
    }

    /// Hands on what was recorded up to this second. Says why the load should end, if it should.
    fn hand_on(&mut self, second: i64, now: Nanos) -> Option<String> {
        let later = self.pending.split_off(&(second + 1, 0, Phase::WarmUp));
        let over: Vec<Interval> = std::mem::replace(&mut self.pending, later).into_values().collect();
        over.iter().for_each(|i| self.window.add(i));
        let why = self.watch.judge(&over, now);
        (self.sink)(over);
        why
    }

    fn take_rest(&mut self) {
        while let Ok(interval) = self.receive.try_recv() {
            self.take(&interval);
        }
        self.hand_on(i64::MAX - 1, Nanos::now());
    }

    fn cpu(&self) -> CpuTime {
        match self.marks {
            [Some(open), close] => {
                let close = close.unwrap_or_else(cpu_time);
                CpuTime { user_s: close.user_s - open.user_s, system_s: close.system_s - open.system_s }
            }
            _ => CpuTime::default(),
        }
    }
}

fn join(
    threads: Vec<JoinHandle<io::Result<IssuerReport>>>,
    limit: Nanos,
) -> Result<Vec<IssuerReport>, LoadError> {
    let mut reports = Vec::new();
    for thread in threads {
        while !thread.is_finished() {
            if Nanos::now() > limit {
                return Err(LoadError::failed(
                    "a thread of the generator hangs in the kernel: the disk is stuck",
                ));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let report = thread.join().map_err(|_| LoadError::failed("a thread of the generator panicked"))?;
        reports.push(report.map_err(|e| LoadError::failed(format!("the generator failed: {e}")))?);
    }
    Ok(reports)
}

/// CPU time of this process so far. The kernel counts io_uring's workers as its threads.
fn cpu_time() -> CpuTime {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("the process itself can always be asked for");
    let seconds = |t: nix::sys::time::TimeVal| t.tv_sec() as f64 + t.tv_usec() as f64 / 1e6;
    CpuTime { user_s: seconds(usage.user_time()), system_s: seconds(usage.system_time()) }
}

/// Finds an engine that works here, by trying.
fn choose_engine(job: &Job, findings: &mut Vec<Finding>) -> Result<Chosen, LoadError> {
    let refused = match job.engine {
        Engine::Threads => None,
        Engine::Auto | Engine::IoUring => match Ring::new(RingOptions { entries: 8, deferred: true }) {
            Ok(_) => return Ok(Chosen::Uring),
            Err(e) => Some(e),
        },
    };
    if let Some(refused) = refused {
        if job.engine == Engine::IoUring {
            return Err(LoadError::usage(format!(
                "io_uring is refused here ({refused}): allow it (sysctl kernel.io_uring_disabled=0; in a container, \
                 a seccomp profile with io_uring), or use --engine auto or threads"
            )));
        }
        findings.push(Finding::note(
            FindingKind::Fallback,
            "io_uring",
            format!("it is refused here ({refused}), so threads issue the I/O"),
            "Threads cost more CPU for each I/O. Containers allow io_uring by their seccomp profile.",
        ));
    }
    if job.profile.outstanding as usize > MOST_THREADS {
        return Err(LoadError::usage(format!(
            "the thread engine needs a thread for each of {} outstanding, and {MOST_THREADS} is the most: use fewer \
             outstanding",
            job.profile.outstanding
        )));
    }
    Ok(Chosen::Threads)
}

/// The largest unit, up to 4 KiB, that every block of the profile is made of.
fn verify_unit(job: &Job) -> usize {
    let profile = &job.profile;
    let parts = [profile.block_size.0, profile.alignment.map_or(0, |a| a.0), profile.base_offset.0, 4096];
    1 << parts.iter().filter(|p| **p > 0).map(|p| p.trailing_zeros()).min().unwrap_or(12)
}

fn check_unit(job: &Job, unit: usize) -> Result<(), LoadError> {
    let fits = verify_unit(job).is_multiple_of(unit);
    if unit >= 512 && fits {
        return Ok(());
    }
    Err(LoadError::usage(format!(
        "blocks of {} cannot be verified in units of {}: use a block size and alignment that are multiples of it",
        job.profile.block_size,
        ByteSize(unit.max(512) as u64)
    )))
}

/// Memory that can be had without swapping, bytes; a lot, where the kernel does not say.
fn available_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"));
    line.and_then(|l| l.trim().strip_suffix("kB")?.trim().parse::<u64>().ok())
        .map_or(u64::MAX, |kib| kib * 1024)
}
