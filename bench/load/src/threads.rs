//! The threads of a running job: made, made ready, ended.
//!
//! They are never joined: a thread that ends with I/O stuck in the kernel is kept there by the kernel, and joining
//! it would hang this one too. Each says by a channel that it has ended, and what it has to report.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::time::Duration;

use loadline_base::clock::{Nanos, wake_on_time};
use loadline_measure::interval::Interval;
use rand_core::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::address::Addresses;
use crate::data::{self, Stamp};
use crate::engine::iscsi::IscsiEngine;
use crate::engine::nbd::NbdEngine;
use crate::engine::null::NullEngine;
use crate::engine::pool::PoolEngine;
use crate::engine::rbd::RbdEngine;
use crate::engine::uring::{UringEngine, Waiting};
use crate::engine::vhost::VhostEngine;
use crate::engine::{Engine as _, Memory};
use crate::error::LoadError;
use crate::halt::Halt;
use crate::iscsi;
use crate::issuer::{Issuer, IssuerReport, Setting};
use crate::job::Job;
use crate::nbd::connect;
use crate::open::Transport;
use crate::pace::Schedule;
use crate::prepare::{Chosen, Prepared, PreparedDisk};
use crate::record::Timetable;
use crate::stop_condition::Watch;

/// How long the threads may take to end after a stop.
pub(crate) const END_LIMIT: Nanos = Nanos(10_000_000_000);
/// How long the threads may take to be ready.
const READY_LIMIT: Duration = Duration::from_secs(60);
/// On a file in memory, one wait collects a quarter of what is outstanding, at the most so many completions.
const COLLECT_AT_MOST: u32 = 8;

/// The threads of one job.
pub(crate) struct Threads {
    count: usize,
    /// How many have an engine that is hindered.
    pub(crate) hindered: usize,
    /// For each, the nanoseconds of CPU in which it polled for completions and saw none, so far.
    pub(crate) polled: Vec<Arc<AtomicU64>>,
    halt: Arc<Halt>,
    reports: Receiver<io::Result<IssuerReport>>,
}

impl Threads {
    /// Makes a job's threads and waits until all are ready. If one cannot be, the others end again.
    pub(crate) fn start(
        prepared: &Prepared,
        timetable: Timetable,
        watch: &Arc<Watch>,
        send: Sender<Interval>,
    ) -> Result<Threads, LoadError> {
        let total = prepared.disks.len() * prepared.job.profile.threads as usize;
        let (report, reports) = mpsc::sync_channel(total);
        let (ready_send, ready) = mpsc::sync_channel(total);
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let halt = Arc::<Halt>::default();
        let mut threads = Threads { count: 0, hindered: 0, polled: Vec::new(), halt, reports };
        for (disk_index, disk) in prepared.disks.iter().enumerate() {
            let shared = Arc::new(AtomicU64::new(0));
            // A server on this host answers as fast as a file in memory; and it takes a CPU too. (Several servers behind
            // it, the nodes of a cluster on one host, take more, and nothing here knows of them: a thread that finds nothing
            // polls less.)
            let soon = disk.open.in_memory || disk.open.transport.is_served_here();
            let waiting = waiting(&prepared.job, soon, cpus);
            for thread in 0..prepared.job.profile.threads as usize {
                let index = disk_index * prepared.job.profile.threads as usize + thread;
                let number = (disk_index, index, total);
                let making = Making::new(prepared, disk, number, waiting, &shared, timetable, watch);
                threads.polled.push(Arc::clone(&making.setting.polled));
                let (halt, send) = (Arc::clone(&threads.halt), send.clone());
                let (report, ready) = (report.clone(), ready_send.clone());
                let made = std::thread::Builder::new()
                    .name(format!("load-{disk_index}-{thread}"))
                    .stack_size(256 << 10)
                    .spawn(move || {
                        let result = making.run(&halt, send, &ready);
                        if result.is_err() {
                            // Without it the load is not what was asked: the others need not go on.
                            halt.tell();
                        }
                        let _ = report.send(result);
                    });
                if let Err(e) = made {
                    let _ = threads.end();
                    return Err(LoadError::failed(format!("thread {index} of {total} cannot be made: {e}")));
                }
                threads.count += 1;
            }
        }
        for _ in 0..total {
            let failed = match ready.recv_timeout(READY_LIMIT) {
                Ok(Ok(hindered)) => {
                    threads.hindered += usize::from(hindered);
                    continue;
                }
                Ok(Err(e)) => format!("{e}"),
                Err(_) => "it was not ready within a minute".into(),
            };
            let _ = threads.end();
            return Err(LoadError::failed(format!("a thread of the generator could not begin: {failed}")));
        }
        Ok(threads)
    }

    /// Told, it ends them at once.
    pub(crate) fn halt(&self) -> &Halt {
        &self.halt
    }

    /// Ends them, and returns what became of them.
    pub(crate) fn end(self) -> Ended {
        self.halt.tell();
        let limit = Nanos::now() + END_LIMIT;
        let mut ended =
            Ended { reports: Vec::with_capacity(self.count), failed: Vec::new(), stuck: self.count };
        while ended.stuck > 0 {
            match self.reports.recv_timeout(Duration::from(limit.since(Nanos::now()))) {
                Ok(Ok(report)) => ended.reports.push(report),
                Ok(Err(error)) => ended.failed.push(error.to_string()),
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => {
                    ended
                        .failed
                        .extend((0..ended.stuck).map(|_| "a thread of the generator panicked".to_owned()));
                    ended.stuck = 0;
                    break;
                }
            }
            ended.stuck -= 1;
        }
        ended
    }
}

/// What became of the threads of a job.
pub(crate) struct Ended {
    /// Of those that came to their end.
    pub(crate) reports: Vec<IssuerReport>,
    /// Why others did not: their connection ended, for example.
    pub(crate) failed: Vec<String>,
    /// How many hang in the kernel.
    pub(crate) stuck: usize,
}

/// What a thread makes itself from: a ring belongs to the thread that made it.
struct Making {
    setting: Setting,
    transport: Transport,
    in_memory: bool,
    waiting: Waiting,
    engine: Chosen,
    data: loadline_profile::Data,
    seed: u64,
    reads: bool,
    through: bool,
}

impl Making {
    fn new(
        prepared: &Prepared,
        disk: &PreparedDisk,
        (disk_index, index, threads): (usize, usize, usize),
        waiting: Waiting,
        shared: &Arc<AtomicU64>,
        timetable: Timetable,
        watch: &Arc<Watch>,
    ) -> Making {
        let (job, profile) = (&prepared.job, &prepared.job.profile);
        let seed = job.seed.wrapping_add((index as u64 + 1).wrapping_mul(0xD134_2543_DE82_EF95));
        let schedule = profile.rate.as_ref().map(|offered| {
            let iops = offered.rate.iops(profile.block_size);
            Schedule::new(timetable.begin, iops, offered.arrival, (index, threads), job.seed)
        });
        let collects = disk.open.in_memory && schedule.is_none() && !job.poll;
        let collect = if collects { (profile.outstanding / 4).clamp(1, COLLECT_AT_MOST) } else { 1 };
        let setting = Setting {
            disk: disk_index as u32,
            slots: profile.outstanding as usize,
            write_percent: profile.write_percent,
            flush_every: profile.flush_every,
            block: profile.block_size.0 as usize,
            timetable,
            drain: Nanos::from(job.drain.0),
            collect: collect as usize,
            poll: job.poll,
            polled: Arc::default(),
            addresses: Addresses::new(Arc::clone(&disk.space), profile.pattern, Arc::clone(shared)),
            schedule,
            stamp: Stamp::new(profile.data, seed),
            verifier: disk.verifier.clone(),
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
            watch: Arc::clone(watch),
        };
        Making {
            setting,
            transport: disk.open.transport.clone(),
            in_memory: disk.open.in_memory,
            waiting,
            engine: prepared.engine,
            data: profile.data,
            seed,
            reads: profile.write_percent < 100,
            through: profile.write_through,
        }
    }

    fn run(
        self,
        halt: &Halt,
        send: Sender<Interval>,
        ready: &SyncSender<io::Result<bool>>,
    ) -> io::Result<IssuerReport> {
        wake_on_time();
        let slots = self.setting.slots;
        let make_memory = || {
            let writes = self.setting.write_percent > 0;
            let make =
                if matches!(self.transport, Transport::Vhost(_)) { Memory::new_shared } else { Memory::new };
            let mut memory = make(self.setting.block, slots, self.reads, writes)?;
            if let Some(region) = memory.write_region() {
                data::fill(region, self.setting.block, self.data, self.seed);
            }
            Ok(memory)
        };
        // Makes an engine, and reports that it is ready, or why it could not be made.
        let report = |made: io::Result<bool>| ready.send(made).is_ok();
        macro_rules! run_with {
            ($engine:expr) => {
                match $engine {
                    Ok(engine) => {
                        report(Ok(engine.is_hindered()));
                        Issuer::new(engine, self.setting, send).run(halt)
                    }
                    Err(e) => {
                        report(Err(e));
                        Ok(IssuerReport::default())
                    }
                }
            };
        }
        let memory = make_memory();
        match (&self.transport, self.engine) {
            (Transport::Nbd(uri), _) => run_with!(memory.and_then(|m| {
                let connected = connect::connect(uri).map_err(io::Error::other)?;
                NbdEngine::new(connected, m, slots, self.through, self.waiting)
            })),
            (Transport::Iscsi(uri), _) => run_with!(memory.and_then(|m| {
                let connected = iscsi::connect(uri).map_err(io::Error::other)?;
                IscsiEngine::new(connected, m, slots, self.through, self.waiting)
            })),
            (Transport::Vhost(disk), _) => {
                run_with!(memory.and_then(|m| VhostEngine::new(Arc::clone(disk), m, slots, self.waiting)))
            }
            (Transport::Rbd(disk), _) => run_with!(memory.and_then(|m| {
                RbdEngine::new(Arc::clone(disk), m, slots, self.waiting == Waiting::Spins)
            })),
            (Transport::Null, _) => run_with!(memory.map(|m| NullEngine::new(m, slots))),
            (Transport::File(file), Chosen::Uring) => run_with!(memory.and_then(|m| {
                UringEngine::new(Arc::clone(file), m, slots, self.in_memory, self.waiting)
            })),
            (Transport::File(file), Chosen::Threads) => {
                run_with!(memory.and_then(|m| PoolEngine::new(Arc::clone(file), m, slots)))
            }
        }
    }
}

/// How a job's threads wait. On a file in memory each has a kernel worker at its side, which needs a CPU too. A load
/// with a rate has better to do: it sleeps until the next I/O is due.
fn waiting(job: &Job, in_memory: bool, cpus: usize) -> Waiting {
    let threads = u64::from(job.load_threads()) + u64::from(job.neighbours);
    match (job.poll, in_memory) {
        (true, _) => Waiting::Spins,
        (false, true) if job.profile.rate.is_none() && threads * 2 <= cpus as u64 => Waiting::SpinsFirst,
        _ => Waiting::Sleeps,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::{Disk, Target, WritePermission};
    use loadline_profile::{Arrival, OfferedRate, Profile};

    #[test]
    fn a_thread_polls_before_it_sleeps_only_where_it_and_its_kernel_worker_have_a_cpu_each() {
        let disk = Disk { target: Target::Path("disk".into()), writes: WritePermission::Refused };
        let mut job = Job::new(vec![disk], Profile { threads: 2, ..Profile::default() });
        assert_eq!(waiting(&job, true, 4), Waiting::SpinsFirst);
        assert_eq!(waiting(&job, true, 3), Waiting::Sleeps, "its own threads take them");
        assert_eq!(waiting(&job, false, 4), Waiting::Sleeps, "a disk takes too long");
        let paced = Job { profile: "B4-T2-O4-W0-PR".parse().unwrap(), ..job.clone() };
        assert_eq!(waiting(&paced, true, 4), Waiting::SpinsFirst);
        let rate = Some(OfferedRate { rate: "100iops".parse().unwrap(), arrival: Arrival::Uniform });
        let paced = Job { profile: Profile { rate, ..paced.profile }, ..job.clone() };
        assert_eq!(waiting(&paced, true, 4), Waiting::Sleeps, "it would be late for the next I/O");
        job.neighbours = 1;
        assert_eq!(waiting(&job, true, 4), Waiting::Sleeps, "other workers of this host take them");
        job.poll = true;
        assert_eq!(waiting(&job, true, 4), Waiting::Spins, "as it was told");
    }
}
