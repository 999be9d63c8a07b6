//! A job made ready: disks open, engine found, journals open; filling and scanning the disks.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use loadline_base::ring::{Ring, RingOptions};
use loadline_base::units::ByteSize;
use loadline_measure::audit::{Finding, FindingKind};

use crate::address::Space;
use crate::data::Stamp;
use crate::engine::Memory;
use crate::engine::null::NullEngine;
use crate::engine::pool::{MOST_THREADS, PoolEngine};
use crate::engine::uring::UringEngine;
use crate::error::LoadError;
use crate::job::{Engine, Job};
use crate::outcome::VerifyReport;
use crate::sweep::{self, Task};
use crate::target::{self, OpenDisk};
use crate::verify::{Journal, Verifier};

/// A job whose disks are open.
pub struct Prepared {
    pub(crate) job: Job,
    pub(crate) disks: Vec<PreparedDisk>,
    /// Whether the disks were opened for writing.
    pub(crate) writable: bool,
    pub(crate) engine: Chosen,
    pub(crate) findings: Vec<Finding>,
}

pub(crate) struct PreparedDisk {
    pub(crate) open: OpenDisk,
    pub(crate) space: Arc<Space>,
    pub(crate) verifier: Option<Arc<Verifier>>,
}

/// The engine that was found to work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Chosen {
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

/// Sweeps one disk, by its index.
type SweepOne<'a> =
    dyn Fn(&Prepared, usize, &AtomicU64, &AtomicBool) -> Result<VerifyReport, LoadError> + Sync + 'a;

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
        one: &SweepOne<'_>,
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
