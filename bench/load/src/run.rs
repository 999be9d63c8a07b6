//! A job run: its threads, from the agreed moment to the outcome.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use loadline_base::clock::{Nanos, wake_on_time};
use loadline_measure::audit::{Finding, FindingKind};
use loadline_measure::interval::Interval;
use loadline_measure::window::Window;
use rand_core::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::address::Addresses;
use crate::brake::Watch;
use crate::collect::{Collector, GRACE};
use crate::data::{self, Stamp};
use crate::engine::Memory;
use crate::engine::null::NullEngine;
use crate::engine::pool::PoolEngine;
use crate::engine::uring::UringEngine;
use crate::error::LoadError;
use crate::issuer::{Issuer, IssuerReport, Setting};
use crate::outcome::{CpuTime, Outcome, VerifyReport};
use crate::pace::Schedule;
use crate::prepare::{Chosen, Prepared};
use crate::record::Timetable;

/// How long the threads may take to end once told to.
const END_LIMIT: Nanos = Nanos(10_000_000_000);
/// How long the threads may take to be ready.
const READY_LIMIT: Duration = Duration::from_secs(60);
/// From this many outstanding on, one wait on a file in memory collects several completions.
const COLLECT_FROM: u32 = 16;

impl Prepared {
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
            let failed = match ready.recv_timeout(READY_LIMIT) {
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
    file: Option<Arc<OwnedFd>>,
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
