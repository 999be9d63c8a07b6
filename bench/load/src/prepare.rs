//! A job made ready: disks open, engine found, journals open; filling and scanning the disks.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use loadline_base::limits::without_io_uring;
use loadline_base::units::ByteSize;
use loadline_measure::audit::{Finding, FindingKind};
use loadline_profile::Profile;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use crate::address::Space;
use crate::data::Stamp;
use crate::engine::Memory;
use crate::engine::iscsi::IscsiEngine;
use crate::engine::nbd::NbdEngine;
use crate::engine::null::NullEngine;
use crate::engine::pool::{MOST_THREADS, PoolEngine};
use crate::engine::rbd::RbdEngine;
use crate::engine::uring::{self, UringEngine, Waiting};
use crate::engine::vhost::VhostEngine;
use crate::error::LoadError;
use crate::iscsi;
use crate::job::{Engine, Job};
use crate::memory;
use crate::nbd::connect;
use crate::open::{self, OpenDisk, Transport};
use crate::outcome::{Scan, VerifyReport};
use crate::sweep::{self, Task};
use crate::target::Target;
use crate::verify::{BadBlocks, Journal, Reported, Verifier};

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
    Prepared::open(job, Purpose::Load)
}

/// Like [`prepare`], for a job whose disks are to be filled: they are opened for writing in any case.
pub fn prepare_to_fill(job: &Job) -> Result<Prepared, LoadError> {
    Prepared::open(job, Purpose::Fill)
}

/// Like [`prepare`], for a job whose disks are only read, to scan them: past the page cache, whatever the profile
/// says, since it is the storage that is judged. Every bad block is reported.
pub fn prepare_to_scan(job: &Job) -> Result<Prepared, LoadError> {
    Prepared::open(job, Purpose::Scan(Reported::Forget))
}

/// Like [`prepare_to_scan`], for a caller with the report of a load that this process ran last under the same journals, and
/// adds that of the scan to it: bad blocks that the load reported are not counted again.
pub fn prepare_to_scan_after_load(job: &Job) -> Result<Prepared, LoadError> {
    Prepared::open(job, Purpose::Scan(Reported::Keep))
}

/// What the disks are opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Load,
    Fill,
    Scan(Reported),
}

impl Purpose {
    /// The profile that the disks have to take.
    fn profile(self, job: &Job) -> Profile {
        let profile = job.profile.clone();
        match self {
            Purpose::Load | Purpose::Fill => profile,
            // Smaller blocks, which the page cache takes and direct I/O may not, are scanned several at once.
            Purpose::Scan(_) if verify_unit(job) < sweep::GRANULE => Profile {
                direct: true,
                block_size: ByteSize(sweep::GRANULE as u64),
                alignment: None,
                base_offset: ByteSize(0),
                ..profile
            },
            Purpose::Scan(_) => Profile { direct: true, ..profile },
        }
    }
}

/// Sweeps one disk, by its index.
type SweepOne<'a> =
    dyn Fn(&Prepared, usize, &AtomicU64, &AtomicBool, &mut VerifyReport) -> Result<(), LoadError> + Sync + 'a;

impl Prepared {
    /// What it will have found while it runs: kept by a caller that must know even if the load does not end.
    pub fn bad_blocks(&self) -> BadBlocks {
        BadBlocks(self.disks.iter().filter_map(|disk| disk.verifier.clone()).collect())
    }

    /// The targets and the sizes of their disks, bytes.
    pub fn sizes(&self) -> Vec<(String, u64)> {
        let targets = self.job.disks.iter().map(|disk| disk.target.to_string());
        targets.zip(self.disks.iter().map(|disk| disk.open.size.0)).collect()
    }

    fn open(job: &Job, purpose: Purpose) -> Result<Prepared, LoadError> {
        job.validate()?;
        let write = purpose == Purpose::Fill || (purpose == Purpose::Load && job.writes());
        let mut findings = Vec::new();
        let engine = choose_engine(job, &mut findings)?;
        let profile = &job.profile;
        let needed = memory_needed(job);
        let (available, place) = memory::available();
        if needed > available {
            return Err(LoadError::usage(format!(
                "{} I/Os of {} outstanding need {} MiB of memory, and {} MiB are free {place}: use fewer \
                 outstanding",
                job.outstanding(),
                profile.block_size,
                needed >> 20,
                available >> 20
            )));
        }
        let mut disks = Vec::new();
        for (index, disk) in job.disks.iter().enumerate() {
            let open = open::open(disk, &purpose.profile(job), write)?;
            let space = Arc::new(Space::new(profile, open.size, &open.name)?);
            if let (Purpose::Scan(_), false, Transport::File(file)) = (purpose, open.direct, &open.transport)
            {
                findings.push(leave_the_cache(file, &open.name));
            } else if open.transport.is_served() && purpose == Purpose::Load && profile.write_percent < 100 {
                findings.push(Finding::note(
                    FindingKind::UnwrittenReads,
                    format!("{} to be written before it is read, and read from the storage", open.name),
                    "its server does not report whether that is so",
                    "What was never written, or is in the server's memory, is read faster: fill the disk (--fill), and make it \
                     larger than that memory.",
                ));
            } else if profile.direct && !open.direct {
                findings.push(not_direct(&open.name));
            } else if !open.direct && purpose == Purpose::Load {
                findings.push(Finding::doubt(
                    FindingKind::NotDirect,
                    format!("the storage below {} to answer", open.name),
                    "the profile uses the page cache, which answers instead of the storage",
                    "These are figures of memory as long as it has room. Bypass it: direct = true of a profile, direct=1 of fio, \
                     -Sh of DISKSPD.",
                ));
            }
            let verifier = match &job.verify {
                None => None,
                Some(_) if matches!(open.transport, Transport::Null) => {
                    return Err(LoadError::usage(
                        "the null target stores no data, so no data can be verified",
                    ));
                }
                Some(verify) => {
                    let path = &verify.journals[index];
                    let unit = Journal::unit_of(path).unwrap_or_else(|| verify_unit(job));
                    check_unit(job, unit)?;
                    let reported = match purpose {
                        Purpose::Load | Purpose::Fill => Reported::Forget,
                        Purpose::Scan(reported) => reported,
                    };
                    let journal = Journal::open(path, unit, open.size.0, reported)?;
                    Some(Arc::new(Verifier::new(journal, open.name.clone())))
                }
            };
            disks.push(PreparedDisk { open, space, verifier });
        }
        Ok(Prepared { job: job.clone(), disks, writable: write, engine, findings })
    }

    /// What a reader of the figures should know, as far as opening the disks has shown.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Writes the working set of every disk once, with the profile's data. `progress` gets the bytes done and the
    /// bytes in all, several times a second.
    pub fn fill(&mut self, stop: &AtomicBool, progress: &mut dyn FnMut(u64, u64)) -> Result<(), LoadError> {
        assert!(self.writable, "filling needs a job prepared to fill");
        let total = self.disks.iter().map(|d| d.space.length).sum();
        let swept = self.sweep_all(total, stop, progress, &|this, index, done, stop, _| {
            let disk = &this.disks[index];
            let mut engine = this.sweep_engine(disk, false, true)?;
            sweep::prepare_memory(&mut *engine, this.job.profile.data, this.job.seed ^ index as u64);
            let stamp =
                Stamp::new(this.job.profile.data, this.job.seed.wrapping_add(u64::MAX - index as u64));
            let task = Task::Fill { stamp, verifier: disk.verifier.as_deref() };
            let mut pieces = sweep::pieces(disk.space.base, disk.space.length);
            sweep::sweep(&mut *engine, &disk.open.name, &mut pieces, task, done, stop)?;
            // Only of what this connection wrote is it certain that its flush makes it durable.
            match disk.open.transport.is_served() {
                true => sweep::flush(&mut *engine, &disk.open.name),
                false => Ok(()),
            }
        });
        swept.into_report()?;
        for disk in &mut self.disks {
            if let Transport::File(file) = &disk.open.transport {
                nix::unistd::fsync(file).map_err(|e| {
                    LoadError::failed(format!("filling {} failed: {}", disk.open.name, e.desc()))
                })?;
            }
            disk.open.unwritten = ByteSize(0);
        }
        Ok(())
    }

    /// Reads every block that the journals know and checks it: the full scan after a verified run, and the
    /// judge of a dead worker's writes. What was found stands, also where it did not come to the end.
    pub fn scan(&mut self, stop: &AtomicBool, progress: &mut dyn FnMut(u64, u64)) -> Scan {
        let verifiers = self.disks.iter().filter_map(|d| d.verifier.as_ref());
        let runs = verifiers.flat_map(|v| v.issued_runs(sweep::CHUNK, sweep::GRANULE));
        let total = runs.map(|(_, length)| length as u64).sum();
        self.sweep_all(total, stop, progress, &|this, index, done, stop, report| {
            let disk = &this.disks[index];
            let verifier = disk.verifier.as_ref().ok_or_else(|| LoadError::usage("a scan needs journals"))?;
            let mut engine = this.sweep_engine(disk, true, false)?;
            let known = vec![Vec::new(); sweep::DEPTH];
            let mut pieces = verifier.issued_runs(sweep::CHUNK, sweep::GRANULE);
            let task = Task::Scan { verifier, report, known };
            sweep::sweep(&mut *engine, &disk.open.name, &mut pieces, task, done, stop)
        })
    }

    /// Runs one sweep for each disk, all at once, and reports their progress. A disk that fails stops no other.
    fn sweep_all(
        &self,
        total: u64,
        stop: &AtomicBool,
        progress: &mut dyn FnMut(u64, u64),
        one: &SweepOne<'_>,
    ) -> Scan {
        let done = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.disks.len())
                .map(|i| {
                    scope.spawn({
                        let done = &done;
                        move || {
                            let mut report = VerifyReport::default();
                            let result = one(self, i, done, stop, &mut report);
                            (report, result)
                        }
                    })
                })
                .collect();
            while threads.iter().any(|t| !t.is_finished()) {
                progress(done.load(Ordering::Relaxed), total);
                std::thread::sleep(Duration::from_millis(100));
            }
            progress(done.load(Ordering::Relaxed), total);
            let mut all = Scan { report: VerifyReport::default(), incomplete: None };
            for thread in threads {
                let (report, result) = thread.join().unwrap_or_else(|_| {
                    (VerifyReport::default(), Err(LoadError::failed("a thread of the generator panicked")))
                });
                all.report.merge(report);
                all.incomplete = all.incomplete.or(result.err());
            }
            all
        })
    }

    fn sweep_engine(
        &self,
        disk: &PreparedDisk,
        reads: bool,
        writes: bool,
    ) -> Result<Box<dyn crate::engine::Engine>, LoadError> {
        let error = |e: io::Error| LoadError::failed(format!("{}: no engine: {e}", disk.open.name));
        if let Transport::Vhost(vhost) = &disk.open.transport {
            let memory = Memory::new_shared(sweep::CHUNK, sweep::DEPTH, reads, writes).map_err(error)?;
            let made = VhostEngine::new(Arc::clone(vhost), memory, sweep::DEPTH, Waiting::Sleeps);
            return Ok(Box::new(made.map_err(error)?));
        }
        let memory = Memory::new(sweep::CHUNK, sweep::DEPTH, reads, writes).map_err(error)?;
        let file = match &disk.open.transport {
            Transport::Null => return Ok(Box::new(NullEngine::new(memory, sweep::DEPTH))),
            Transport::File(file) => Arc::clone(file),
            Transport::Vhost(_) => unreachable!("it was just looked at"),
            Transport::Rbd(rbd) => {
                let made = RbdEngine::new(Arc::clone(rbd), memory, sweep::DEPTH, false);
                return Ok(Box::new(made.map_err(error)?));
            }
            Transport::Iscsi(uri) => {
                let connected = iscsi::connect(uri)?;
                let most = connected.session.unit.most;
                if most < sweep::CHUNK as u64 {
                    return Err(LoadError::usage(format!(
                        "{}: its target takes at most {} at once, and what fills or scans a disk moves {}",
                        disk.open.name,
                        ByteSize(most),
                        ByteSize(sweep::CHUNK as u64)
                    )));
                }
                let made = IscsiEngine::new(connected, memory, sweep::DEPTH, false, Waiting::Sleeps);
                return Ok(Box::new(made.map_err(error)?));
            }
            Transport::Nbd(uri) => {
                let connected = connect::connect(uri)?;
                let made = NbdEngine::new(connected, memory, sweep::DEPTH, false, Waiting::Sleeps);
                return Ok(Box::new(made.map_err(error)?));
            }
        };
        Ok(match self.engine {
            Chosen::Uring => Box::new(
                UringEngine::new(file, memory, sweep::DEPTH, disk.open.in_memory, Waiting::Sleeps)
                    .map_err(error)?,
            ),
            Chosen::Threads => Box::new(PoolEngine::new(file, memory, sweep::DEPTH).map_err(error)?),
        })
    }
}

/// Finds an engine that works here, by trying.
fn choose_engine(job: &Job, findings: &mut Vec<Finding>) -> Result<Chosen, LoadError> {
    let by_ring = job.disks.iter().find(|disk| matches!(disk.target, Target::Nbd(_) | Target::Iscsi(_)));
    let refused = match job.engine {
        Engine::Threads => None,
        Engine::Auto | Engine::IoUring => match uring::try_whole() {
            Ok(()) => return Ok(Chosen::Uring),
            Err(e) => Some(e),
        },
    };
    if let Some(refused) = refused {
        if job.engine == Engine::IoUring {
            return Err(LoadError::usage(format!(
                "io_uring is refused here ({refused}): {}; or use --engine auto or threads",
                without_io_uring(&refused)
            )));
        }
        if let Some(disk) = by_ring {
            return Err(LoadError::usage(format!(
                "{}: such a disk needs io_uring, which is refused here ({refused}): {}",
                disk.target,
                without_io_uring(&refused)
            )));
        }
        findings.push(Finding::note(
            FindingKind::Fallback,
            "io_uring",
            format!("it is refused here ({refused}), so threads issue the I/O"),
            format!("Threads cost more CPU for each I/O. To have io_uring: {}.", without_io_uring(&refused)),
        ));
    }
    if let (Engine::Threads, Some(disk)) = (job.engine, by_ring) {
        return Err(LoadError::usage(format!(
            "{}: such a disk is reached by io_uring only: leave out --engine",
            disk.target
        )));
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

/// Empties the page cache of a file that is to be judged and takes no direct I/O, as far as the kernel does it, and
/// says that it may not have.
fn leave_the_cache(file: &OwnedFd, name: &str) -> Finding {
    // Only what was written back can be dropped. Neither has to succeed: the finding stands in any case.
    let _ = nix::unistd::fdatasync(file);
    let _ = posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
    Finding::doubt(
        FindingKind::NotDirect,
        format!("every block of {name} to be read from the storage"),
        "its file system refuses direct I/O, so the page cache may have answered",
        "A write that never reached the storage can look fine. Use a file system with direct I/O, or a block device.",
    )
}

/// The largest unit, up to 4 KiB, that every block of the profile is made of.
/// The bytes of a disk that one entry of its journal stands for, if the journal is made for this job: a power of two.
pub fn verify_unit(job: &Job) -> usize {
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

/// I/O on a disk of this name goes through the page cache, since its file system has no other way.
pub(crate) fn not_direct(name: &str) -> Finding {
    Finding::doubt(
        FindingKind::NotDirect,
        format!("direct I/O on {name}"),
        "its file system refuses it, so I/O goes through the page cache",
        "Figures may be those of memory. Use a file system with direct I/O, or a block device.",
    )
}

/// Bytes for all outstanding I/Os: a slot has memory for a read, for a write, or for both (see `Memory`).
fn memory_needed(job: &Job) -> u64 {
    let regions = u64::from(job.profile.write_percent < 100) + u64::from(job.profile.write_percent > 0);
    job.outstanding().saturating_mul(job.profile.block_size.0).saturating_mul(regions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Verify;
    use crate::{Disk, Target, WritePermission, target};

    /// A scan of a file of a mebibyte, for a load that may use the page cache.
    fn prepared_to_scan(folder: &std::path::Path, block: u64) -> Prepared {
        let path = folder.join("disk");
        let made = target::make_file(&path, ByteSize::MIB).unwrap();
        let disk = Disk { target: Target::Path(path), writes: WritePermission::Made(made) };
        let profile = Profile { direct: false, block_size: ByteSize(block), ..Profile::default() };
        let mut job = Job::new(vec![disk], profile);
        job.verify = Some(Verify { journals: vec![folder.join("journal")] });
        prepare_to_scan(&job).unwrap()
    }

    #[test]
    fn a_scan_is_direct_whatever_the_profile_says() {
        for block in [4096, 512] {
            let folder = tempfile::tempdir().unwrap();
            let prepared = prepared_to_scan(folder.path(), block);
            let is_reported = prepared.findings().iter().any(|f| f.kind == FindingKind::NotDirect);
            assert!(prepared.disks[0].open.direct || is_reported, "blocks of {block}");
        }
    }

    #[test]
    fn what_a_scan_found_before_it_failed_stands() {
        let folder = tempfile::tempdir().unwrap();
        let mut prepared = prepared_to_scan(folder.path(), 4096);
        let verifier = prepared.disks[0].verifier.clone().unwrap();
        verifier.begin_write(0, 8192).unwrap();
        verifier.end_write(0, 8192, true);
        let scan = prepared.scan(&AtomicBool::new(false), &mut |_, _| {});
        assert_eq!((scan.report.lost, scan.incomplete.clone()), (2, None));
        let failed = Some(LoadError::failed("gone"));
        let report = Scan { incomplete: failed.clone(), ..scan }.into_report().unwrap();
        assert!(report.examples.last().unwrap().contains("incomplete: gone"));
        Scan { report: VerifyReport::default(), incomplete: failed }.into_report().unwrap_err();
        let scan = prepared.scan(&AtomicBool::new(true), &mut |_, _| {});
        assert!(scan.incomplete.is_some(), "it was stopped");
    }

    #[test]
    fn a_mixed_load_needs_memory_for_reads_and_for_writes() {
        let needed = |write_percent| {
            let profile = Profile { write_percent, threads: 2, outstanding: 8, ..Profile::default() };
            memory_needed(&Job::new(Vec::new(), profile))
        };
        // No disk yet: nothing is outstanding.
        assert_eq!(needed(50), 0);
        let disk = |_| crate::Disk {
            target: crate::Target::Null(ByteSize::GIB),
            writes: crate::WritePermission::Refused,
        };
        let needed = |write_percent| {
            let profile = Profile { write_percent, threads: 2, outstanding: 8, ..Profile::default() };
            memory_needed(&Job::new((0..3).map(disk).collect(), profile)) / Profile::default().block_size.0
        };
        assert_eq!([needed(0), needed(30), needed(100)], [48, 96, 48]);
    }
}
