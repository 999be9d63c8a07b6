//! A stand-in for a fleet, in tests: it makes real files, measures made-up I/Os, and fails where a test orders it.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use loadline_base::clock::Nanos;
use loadline_base::units::ByteSize;
use loadline_fleet::{
    EventSink, FleetError, FleetEvent, LiveSecond, Loss, LossReason, NetworkPath, NetworkPathSpeed,
    PerWorker, StepOutcome, WorkerId, WorkerInfo, WorkerOutcome,
};
use loadline_load::error::ErrorKind;
use loadline_load::host::Inventory;
use loadline_load::target::{make_file, remove_file};
use loadline_load::{CpuTime, StopIf, VerifyReport};
use loadline_load::{FileIdentity, Job, WritePermission};
use loadline_measure::interval::{Interval, Phase};
use loadline_measure::summary::LatencySummary;
use loadline_measure::window::Window;
use rand_core::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use tokio::sync::Notify;

use crate::workers::Workers;

/// What was done, for a test to check.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) fills: usize,
    /// The workers that filled, in all fills.
    pub(crate) filled: Vec<String>,
    /// The block size of each measurement that came to an end.
    pub(crate) measured: Vec<u64>,
    /// The workers of each such measurement.
    pub(crate) workers: Vec<Vec<String>>,
    /// How far each fill wrote: where it began, and what it covered.
    pub(crate) fill_extents: Vec<(u64, String)>,
    /// Every disk that was filled, and whether its job had stop conditions.
    pub(crate) filled_disks: Vec<String>,
    /// The workers of each measurement that was begun.
    pub(crate) begun: Vec<usize>,
    /// Seeds of all jobs that were measured.
    pub(crate) seeds: BTreeSet<u64>,
    /// The disks of each worker in the last measurement.
    pub(crate) disks: BTreeMap<String, Vec<String>>,
    /// The stop conditions in the last measurement.
    pub(crate) stop_if: Vec<StopIf>,
    /// What every disk that was measured may be written to for.
    pub(crate) permissions: Vec<WritePermission>,
    /// Workers that scanned, and whose journals.
    pub(crate) scans: Vec<(String, PathBuf)>,
    /// Links that were measured, and how many measurements of load there were before.
    pub(crate) links: Vec<(NetworkPath, usize)>,
}

/// What it does wrong.
#[derive(Debug, Clone, Default)]
pub(crate) struct Orders {
    /// Never ends the measurement with this place, from 0 on.
    pub(crate) hang_at: Option<usize>,
    /// Told when it hangs.
    pub(crate) hangs: Arc<Notify>,
    /// Loses this worker in every measurement, for this reason.
    pub(crate) lose: Option<(String, LossReason)>,
    /// Does that from the measurement with this place on.
    pub(crate) lose_from: usize,
    /// Loses every worker in so many measurements, from this place on.
    pub(crate) lose_all: Option<(usize, usize)>,
    /// Loses the first worker in so many fills.
    pub(crate) die_in_fills: usize,
    /// Ends the first measurement by a stop condition.
    pub(crate) stop_condition: bool,
    /// For so many seconds of a measurement IOPS rise.
    pub(crate) unsteady_s: u64,
    /// All workers together may offer so many I/Os a second before they are slow.
    pub(crate) carries: Option<f64>,
    /// That is so of the thousand of each worker in a closed loop too.
    pub(crate) carries_workers: bool,
    /// What all workers offer comes to one queue.
    pub(crate) queue: Option<Queue>,
    /// Tells that the first worker is lost, with bad blocks, in the measurement with this place, after three seconds.
    pub(crate) lose_in_warm_up: Option<usize>,
    /// Cannot scan its own disks.
    pub(crate) cannot_scan: Option<String>,
    /// Blocks that every scan finds lost.
    pub(crate) bad_blocks: u64,
    /// Cannot remove its files.
    pub(crate) cannot_remove: Option<String>,
    /// No worker reaches this one.
    pub(crate) unreachable: Option<String>,
    /// Does not remove files at the end: as if the process had ended before.
    pub(crate) crash_at_the_end: bool,
}

/// Servers with one queue, to which I/Os come at random: what they make of a load is known from theory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Queue {
    pub(crate) servers: usize,
    pub(crate) service_s: f64,
    /// Whether service times are exponential, with this mean; otherwise they are all equal.
    pub(crate) exponential: bool,
}

impl Queue {
    /// How long each I/O takes of a load of so many a second, for so many seconds, in the order of arrival.
    fn responses(self, iops: f64, seconds: f64, seed: u64) -> Vec<f64> {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut exponential = |mean: f64| -> f64 {
            let share: f64 = (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
            -mean * (1.0 - share).ln()
        };
        let mut free = vec![0.0f64; self.servers];
        let (mut now, mut all) = (0.0, Vec::new());
        loop {
            now += exponential(1.0 / iops);
            if now > seconds {
                return all;
            }
            let service = if self.exponential { exponential(self.service_s) } else { self.service_s };
            let next = free.iter_mut().min_by(|a, b| a.total_cmp(b)).expect("there is a server");
            *next = next.max(now) + service;
            all.push(*next - now);
        }
    }
}

pub(crate) struct StandIn {
    pub(crate) names: Vec<&'static str>,
    pub(crate) orders: Orders,
    pub(crate) seen: Arc<Mutex<Seen>>,
    pub(crate) sink: EventSink,
}

pub(crate) fn info(name: &str) -> WorkerInfo {
    let host = nix::unistd::gethostname().unwrap().to_string_lossy().into_owned();
    let node = name.split('/').next().unwrap_or_default().into();
    WorkerInfo { id: WorkerId(name.into()), node, host, pid: 7, version: "0.0.0".into() }
}

pub(crate) fn loss(reason: LossReason) -> Loss {
    Loss { reason, message: "it was told to".into(), unix_ms: 1, after_s: Some(0.5) }
}

/// A second of a disk: so many reads of half a millisecond, evenly spread; or slow ones.
fn second(number: i64, phase: Phase, disk: u32, (reads, slow): (u64, bool)) -> Interval {
    let mut interval = Interval::new(number, phase, disk);
    let latency = if slow { 50_000_000 } else { 500_000 };
    for i in 0..reads {
        interval.read.response.record(Nanos(latency + i));
        interval.read.bytes += 4096;
        interval.completions.set(Nanos(i * 1_000_000_000 / reads));
    }
    interval
}

/// What one worker of so many does: 1000 reads a second, or its rate; slow beyond what all may do together.
fn behaviour(orders: &Orders, job: &Job, workers: usize) -> (u64, bool) {
    let rate = job.profile.rate.map(|offered| offered.rate.iops(job.profile.block_size));
    let slow = orders.carries.is_some_and(|most| {
        let offered = rate.unwrap_or(0.0) * workers as f64;
        offered > most || (rate.is_none() && workers as f64 * 1000.0 > most && orders.carries_workers)
    });
    (rate.map_or(1000, |rate| rate.round() as u64), slow)
}

impl Workers for StandIn {
    fn workers(&self) -> Vec<WorkerInfo> {
        self.names.iter().map(|name| info(name)).collect()
    }

    async fn place(&mut self, _: &BTreeMap<WorkerId, String>) -> Result<(), FleetError> {
        Ok(())
    }

    async fn make_files(
        &mut self,
        files: &BTreeMap<WorkerId, Vec<(PathBuf, ByteSize)>>,
    ) -> Result<BTreeMap<WorkerId, Vec<FileIdentity>>, FleetError> {
        let make = |(path, size): &(PathBuf, ByteSize)| make_file(path, *size).map_err(FleetError::from);
        files
            .iter()
            .map(|(id, files)| Ok((id.clone(), files.iter().map(make).collect::<Result<_, _>>()?)))
            .collect()
    }

    async fn remove_files(
        &mut self,
        files: &BTreeMap<WorkerId, Vec<(PathBuf, FileIdentity)>>,
    ) -> Result<PerWorker<()>, FleetError> {
        if self.orders.crash_at_the_end {
            return Err(FleetError::failed("as if the process had ended"));
        }
        let mut outcomes: PerWorker<()> = BTreeMap::new();
        for (id, files) in files {
            if self.orders.cannot_remove.as_ref() == Some(&id.0) {
                outcomes.insert(id.clone(), Err(loss(LossReason::Absent)));
                continue;
            }
            for (path, identity) in files {
                remove_file(path, *identity)?;
            }
            outcomes.insert(id.clone(), Ok(()));
        }
        Ok(outcomes)
    }

    async fn fill(&mut self, jobs: &BTreeMap<WorkerId, Job>) -> Result<PerWorker<()>, FleetError> {
        let mut seen = self.seen.lock().unwrap();
        seen.fills += 1;
        seen.filled.extend(jobs.keys().map(|id| id.0.clone()));
        let disks = jobs.values().flat_map(|job| job.disks.iter().map(|disk| disk.target.to_string()));
        seen.filled_disks.extend(disks);
        let one = jobs.values().next().map(|job| &job.profile);
        seen.fill_extents.extend(one.map(|p| (p.base_offset.0, format!("{:?}", p.working_set))));
        let dies = seen.fills <= self.orders.die_in_fills;
        let first = self.names[0];
        let result = |id: &WorkerId| if dies && id.0 == first { Err(loss(LossReason::Died)) } else { Ok(()) };
        Ok(jobs.keys().map(|id| (id.clone(), result(id))).collect())
    }

    async fn measure(
        &mut self,
        jobs: &BTreeMap<WorkerId, Job>,
        _: Option<loadline_fleet::MidStepChanges>,
    ) -> Result<StepOutcome, FleetError> {
        (self.sink)(FleetEvent::Starting { workers: jobs.len() as u32, unix_ms: 1_700_000_000_000 });
        let place = self.seen.lock().unwrap().measured.len();
        self.seen.lock().unwrap().begun.push(jobs.len());
        if self.orders.stop_condition {
            let report = VerifyReport { lost: self.orders.bad_blocks, ..VerifyReport::default() };
            let worker = WorkerId(self.names[0].into());
            (self.sink)(FleetEvent::BadBlocks { worker, report });
            return Err(FleetError {
                kind: ErrorKind::Limit,
                message: "a stop condition ended the load".into(),
            });
        }
        let all = self.orders.lose_all.is_some_and(|(from, count)| (from..from + count).contains(&place));
        let mut workers = BTreeMap::new();
        for (id, job) in jobs {
            self.seen.lock().unwrap().stop_if.clone_from(&job.stop_if);
            let disks = job.disks.iter().map(|disk| disk.target.to_string()).collect();
            self.seen.lock().unwrap().disks.insert(id.0.clone(), disks);
            let permissions = job.disks.iter().map(|disk| disk.writes.clone());
            self.seen.lock().unwrap().permissions.extend(permissions);
            let mut window = Window::new(job.measure.0.into());
            if let Some(queue) = self.orders.queue {
                let offered = behaviour(&self.orders, job, jobs.len()).0 as f64 * jobs.len() as f64;
                // One queue for all: each worker has every so manieth I/O of the same.
                let all = queue.responses(offered, job.measure.0.as_secs() as f64, place as u64);
                let mine = all.iter().skip(workers.len()).step_by(jobs.len());
                let seconds = job.measure.0.as_secs() as usize;
                let each = all.len() / jobs.len() / seconds + 1;
                let mine: Vec<f64> = mine.copied().collect();
                for (number, latencies) in mine.chunks(each).enumerate() {
                    let mut interval = Interval::new(number as i64, Phase::Measure, 0);
                    for (i, latency) in latencies.iter().enumerate() {
                        interval.read.response.record(Nanos((latency * 1e9) as u64));
                        interval.read.bytes += 4096;
                        interval.completions.set(Nanos(i as u64 * 1_000_000_000 / each as u64));
                    }
                    window.add(&interval);
                    (self.sink)(FleetEvent::Interval {
                        worker: id.clone(),
                        interval: Box::new(interval.encode()),
                    });
                }
            }
            let made_up = self.orders.queue.is_none();
            let warm_up = job.warm_up.0.as_secs() as i64;
            for number in (-warm_up..job.measure.0.as_secs() as i64).filter(|_| made_up) {
                let phase = if number < 0 { Phase::WarmUp } else { Phase::Measure };
                for disk in 0..job.disks.len() as u32 {
                    let interval = second(number, phase, disk, behaviour(&self.orders, job, jobs.len()));
                    window.add(&interval);
                    (self.sink)(FleetEvent::Interval {
                        worker: id.clone(),
                        interval: Box::new(interval.encode()),
                    });
                }
            }
            let one = self.orders.lose.as_ref().filter(|(name, _)| *name == id.0);
            let one = one.filter(|_| place >= self.orders.lose_from).map(|(_, reason)| *reason);
            let lost = one.or(all.then_some(LossReason::Died)).map(loss);
            let alive = lost.is_none();
            workers.insert(
                id.clone(),
                WorkerOutcome {
                    worker: info(&id.0),
                    window,
                    clock_error: Some(Nanos(0)),
                    began_late: alive.then_some(Nanos(0)),
                    cpu: alive.then_some(CpuTime { user_s: 0.25, system_s: 0.25, polling_s: 0.0 }),
                    host_cpu: None,
                    findings: Vec::new(),
                    engine: alive.then(|| "io_uring".to_string()),
                    verify: job
                        .verify
                        .as_ref()
                        .map(|_| VerifyReport { checked: 10, ..VerifyReport::default() }),
                    lost,
                },
            );
        }
        let seconds = jobs.values().next().map_or(0, |job| job.measure.0.as_secs()) as i64;
        for second in 0..seconds {
            // Rising for so long, then flat.
            let rising = self.orders.unsteady_s.saturating_sub(second as u64);
            (self.sink)(FleetEvent::Second(LiveSecond {
                second,
                phase: Phase::Measure,
                workers: jobs.len() as u32,
                iops: (1000 * jobs.len() as u64).saturating_sub(20 * rising),
                bytes: 0,
                errors: 0,
                latency_us: LatencySummary::default(),
                oldest_us: 0,
                classes: Vec::new(),
                worst: Vec::new(),
            }));
            if Some(place) == self.orders.lose_in_warm_up && second == 3 {
                let worker = WorkerId(self.names[0].into());
                (self.sink)(FleetEvent::Lost { worker: info(&worker.0), loss: loss(LossReason::Died) });
                (self.sink)(FleetEvent::BadBlocks {
                    worker,
                    report: VerifyReport { lost: 2, checked: 2, ..VerifyReport::default() },
                });
            }
            // A caller that waits for the load to be steady ends it here.
            tokio::task::yield_now().await;
        }
        if self.orders.hang_at == Some(place) {
            self.orders.hangs.notify_one();
            pending::<()>().await;
        }
        let mut seen = self.seen.lock().unwrap();
        seen.seeds.extend(jobs.values().map(|job| job.seed));
        seen.measured.extend(jobs.values().next().map(|job| job.profile.block_size.0));
        seen.workers.push(jobs.keys().map(|id| id.0.clone()).collect());
        let host = info("").host;
        (self.sink)(FleetEvent::HostSecond { host: host.clone(), second: Box::default() });
        let hosts = BTreeMap::from([(host, Inventory::default())]);
        Ok(StepOutcome { start_unix_ms: 1_700_000_000_000, workers, hosts })
    }

    async fn scan(&mut self, jobs: &BTreeMap<WorkerId, Job>) -> Result<PerWorker<VerifyReport>, FleetError> {
        let scan = |(id, job): (&WorkerId, &Job)| {
            if self.orders.cannot_scan.as_deref() == Some(id.0.as_str()) {
                return (id.clone(), Err(loss(LossReason::Absent)));
            }
            let journals = &job.verify.as_ref().unwrap().journals;
            self.seen.lock().unwrap().scans.push((id.0.clone(), journals[0].clone()));
            let bad = self.orders.bad_blocks;
            (id.clone(), Ok(VerifyReport { checked: 100, lost: bad, ..VerifyReport::default() }))
        };
        Ok(jobs.iter().map(scan).collect())
    }

    async fn measure_path(
        &mut self,
        link: &NetworkPath,
    ) -> Result<Result<NetworkPathSpeed, String>, FleetError> {
        let mut seen = self.seen.lock().unwrap();
        let before = seen.measured.len();
        seen.links.push((link.clone(), before));
        if self.orders.unreachable.as_ref() == Some(&link.to.0) {
            return Ok(Err("192.0.2.1:9: no route to host".into()));
        }
        Ok(Ok(NetworkPathSpeed { round_trip_us: 50.0, bytes_per_s: 1e6 * seen.links.len() as f64 }))
    }
}
