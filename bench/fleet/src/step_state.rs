//! The state of one step: which workers measure, which are away, and what each has measured so far.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use loadline_base::clock::Nanos;
use loadline_base::figures::counted;
use loadline_load::host::Inventory;
use loadline_load::{Job, VerifyReport};
use loadline_measure::audit::{Finding, FindingKind};
use loadline_measure::interval::EncodedInterval;
use tokio::time::Instant;

use crate::event::{Loss, LossReason};
use crate::identity::WorkerId;
use crate::live::Live;
use crate::outcome::WorkerOutcome;
use crate::wire::Measured;

/// Records that come later than this after the end of their second have fallen behind.
const BEHIND_LIMIT: Nanos = Nanos(5_000_000_000);
/// How long after the load, and after waiting for its last I/Os, a worker may take to report that it has ended. On a disk
/// that stalls, its collector gives up after 10 s, and then it waits 10 s for its threads: a worker that reports how it
/// ended must not be called hung.
const DONE_LIMIT: Nanos = Nanos(25_000_000_000);

/// The instants of a step, on the controller's clock.
pub(crate) struct Schedule {
    /// When the measured window begins.
    pub(crate) window: Nanos,
    /// When the last load is offered.
    pub(crate) load_ends: Nanos,
    /// When the last worker must have reported its end.
    pub(crate) over: Nanos,
}

impl Schedule {
    pub(crate) fn new(start: Nanos, jobs: &BTreeMap<WorkerId, Job>) -> Option<Schedule> {
        let job = jobs.values().next()?;
        let drain = jobs.values().map(|j| j.drain).max()?;
        let window = start + Nanos::from(job.warm_up.0);
        let load_ends = window + Nanos::from(job.measure.0) + Nanos::from(job.cool_down.0);
        Some(Schedule { window, load_ends, over: load_ends + Nanos::from(drain.0) + DONE_LIMIT })
    }

    /// Whether a record of this second has fallen behind. Once the load has ended, what is waited for may come
    /// when it comes.
    fn is_behind(&self, second: i64, now: Nanos) -> bool {
        let ends = i128::from(self.window.0) + (i128::from(second) + 1) * i128::from(Nanos::SECOND.0);
        now < self.load_ends && i128::from(now.0) > ends + i128::from(BEHIND_LIMIT.0)
    }
}

/// A running step.
pub(crate) struct Step<'a> {
    pub(crate) jobs: &'a BTreeMap<WorkerId, Job>,
    pub(crate) schedule: Schedule,
    pub(crate) outcomes: BTreeMap<WorkerId, WorkerOutcome>,
    /// Workers that have not ended, and the numbers of their orders.
    pub(crate) running: BTreeMap<WorkerId, u64>,
    /// Workers that were killed on purpose and are not started again yet.
    pub(crate) out: BTreeSet<WorkerId>,
    /// Those that are being started again.
    pub(crate) successors: BTreeMap<WorkerId, Successor>,
    /// What the killed workers had measured and verified.
    pub(crate) before: BTreeMap<WorkerId, Before>,
    /// Workers that have done their part: a later loss does not count in this step.
    pub(crate) ended: BTreeSet<WorkerId>,
    /// Workers that are to be given up at the end of the step.
    pub(crate) useless: BTreeSet<WorkerId>,
    /// Workers whose process still holds I/Os or threads of this step, and their disks' locks with them.
    pub(crate) tainted: BTreeSet<WorkerId>,
    /// The first worker whose load was ended by a stop condition, and by which.
    pub(crate) stopped_by: Option<(WorkerId, String)>,
    pub(crate) live: Live,
    /// The inventory of each host, as far as it was reported.
    pub(crate) hosts: BTreeMap<String, Inventory>,
}

/// A worker that is started again in the place of one that was killed.
pub(crate) struct Successor {
    pub(crate) job: Job,
    /// The number of the order to prepare, once it is there.
    pub(crate) task: Option<u64>,
    pub(crate) since: Instant,
    /// How long after its launch it must have joined.
    pub(crate) joins_within: Duration,
}

/// What the killed worker had measured and verified.
#[derive(Default)]
pub(crate) struct Before {
    pub(crate) completed: u64,
    pub(crate) errors: u64,
    pub(crate) verify: Option<VerifyReport>,
}

impl Step<'_> {
    /// A step that has just begun: no worker measures yet.
    pub(crate) fn new(jobs: &BTreeMap<WorkerId, Job>, schedule: Schedule, live: Live) -> Step<'_> {
        Step {
            jobs,
            live,
            schedule,
            outcomes: BTreeMap::new(),
            running: BTreeMap::new(),
            out: BTreeSet::new(),
            successors: BTreeMap::new(),
            before: BTreeMap::new(),
            ended: BTreeSet::new(),
            useless: BTreeSet::new(),
            tainted: BTreeSet::new(),
            stopped_by: None,
            hosts: BTreeMap::new(),
        }
    }

    /// Whether no worker measures any more, nor will.
    pub(crate) fn is_over(&self, now: Nanos) -> bool {
        let is_awaited = !self.successors.is_empty() || !self.out.is_empty();
        self.running.is_empty() && (!is_awaited || now > self.schedule.load_ends)
    }

    /// Takes all busy workers, successors included, out of the step.
    pub(crate) fn busy(&mut self) -> BTreeSet<WorkerId> {
        let successors = std::mem::take(&mut self.successors).into_keys();
        std::mem::take(&mut self.running).into_keys().chain(successors).collect()
    }

    /// Adds a record to its worker's window; or returns why the worker is to be given up.
    pub(crate) fn count(
        &mut self,
        id: &WorkerId,
        encoded: &EncodedInterval,
        now: Nanos,
    ) -> Result<(), (LossReason, String)> {
        let garbled = |why: String| (LossReason::Garbled, format!("what it measured cannot be read: {why}"));
        if self.schedule.is_behind(encoded.second, now) {
            let seconds = BEHIND_LIMIT.as_secs();
            let why = format!(
                "its records of second {} came more than {seconds} s late: its host or its network is overloaded",
                encoded.second
            );
            return Err((LossReason::FellBehind, why));
        }
        if self.jobs.get(id).is_none_or(|job| encoded.disk as usize >= job.disks.len()) {
            return Err(garbled(format!("it has no disk {}", encoded.disk)));
        }
        let interval = encoded.decode().map_err(|e| garbled(e.to_string()))?;
        if interval.read.censored + interval.write.censored > 0 {
            self.tainted.insert(id.clone());
        }
        if let Some(outcome) = self.outcomes.get_mut(id) {
            outcome.window.add(&interval);
        }
        self.live.add(id, &interval);
        Ok(())
    }

    /// Takes the final report of a worker. Returns which stop condition ended its load before its time, if one did.
    pub(crate) fn end(&mut self, id: &WorkerId, measured: Measured) -> Option<String> {
        self.running.remove(id);
        let outcome = self.outcomes.get_mut(id)?;
        let Measured {
            began_late_ns,
            cpu,
            host_cpu,
            findings,
            engine,
            verify,
            completed,
            errors,
            stop_condition,
        } = measured;
        (outcome.cpu, outcome.host_cpu, outcome.verify) = (Some(cpu), host_cpu, verify);
        outcome.began_late = Some(Nanos(began_late_ns));
        // Threads that hang in the kernel.
        if findings.iter().any(|finding| finding.kind == FindingKind::Censored) {
            self.tainted.insert(id.clone());
        }
        (outcome.findings, outcome.engine) = (findings, Some(engine));
        let before = self.before.remove(id).unwrap_or_default();
        if let Some(earlier) = before.verify {
            outcome.verify.get_or_insert_default().merge(earlier);
        }
        let arrived = (
            outcome.window.completed().saturating_sub(before.completed),
            outcome.window.errors().saturating_sub(before.errors),
        );
        if stop_condition.is_none() && arrived != (completed, errors) {
            outcome.findings.push(Finding::doubt(
                FindingKind::MissingIntervals,
                format!(
                    "the {} and {} that worker {id} counted in the window",
                    counted(completed, "I/O"),
                    counted(errors, "error")
                ),
                format!(
                    "{} and {} in the records that it sent",
                    counted(arrived.0, "I/O"),
                    counted(arrived.1, "error")
                ),
                "Records were lost between worker and controller: this is a bug of Loadline.",
            ));
        }
        if stop_condition.is_none() {
            self.ended.insert(id.clone());
        }
        stop_condition
    }

    /// Notes that a worker does not measure to the end.
    pub(crate) fn lose(&mut self, id: &WorkerId, loss: Loss, useless: bool) {
        if useless {
            self.useless.insert(id.clone());
        }
        if let Some(outcome) = self.outcomes.get_mut(id)
            && !self.ended.contains(id)
            && outcome.lost.is_none()
        {
            outcome.lost = Some(loss);
        }
        self.running.remove(id);
        self.successors.remove(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loadline_base::units::ByteSize;
    use loadline_load::{Disk, Target, WritePermission};
    use loadline_profile::Profile;

    fn jobs() -> BTreeMap<WorkerId, Job> {
        let disk = Disk { target: Target::Null(ByteSize::GIB), writes: WritePermission::Refused };
        let job = Job::new(vec![disk], Profile::default());
        ["a", "b"].map(|id| (WorkerId(id.into()), job.clone())).into()
    }

    #[test]
    fn a_worker_that_left_ios_or_threads_behind_is_known() {
        use loadline_load::CpuTime;
        use loadline_measure::interval::{Interval, Phase};

        let jobs = jobs();
        let (a, b) = (WorkerId("a".into()), WorkerId("b".into()));
        let schedule = Schedule::new(Nanos(0), &jobs).unwrap();
        let mut step = Step::new(&jobs, schedule, Live::new(Nanos(0), 5, 30, 0));
        step.outcomes = jobs.keys().map(|id| (id.clone(), outcome(id))).collect();
        // After the window too: what holds a disk holds it, whenever it was issued.
        let mut interval = Interval::new(31, Phase::CoolDown, 0);
        interval.read.response.record(Nanos::SECOND);
        step.count(&a, &interval.encode(), Nanos(0)).unwrap();
        assert!(step.tainted.is_empty());
        interval.read.censored = 1;
        step.count(&a, &interval.encode(), Nanos(0)).unwrap();
        assert_eq!(step.tainted, [a].into());
        let stuck = Finding::doubt(FindingKind::Censored, "threads to end", "1 hangs", "The disk is stuck.");
        let measured = Measured {
            began_late_ns: 0,
            cpu: CpuTime::default(),
            host_cpu: None,
            findings: vec![stuck],
            engine: "io_uring".into(),
            verify: None,
            completed: 0,
            errors: 0,
            stop_condition: None,
        };
        assert_eq!(step.end(&b, measured), None);
        assert!(step.tainted.contains(&b));
        assert!(step.outcomes[&b].lost.is_none(), "it did its part all the same");
    }

    fn outcome(id: &WorkerId) -> WorkerOutcome {
        use crate::identity::WorkerInfo;
        let text = String::new;
        let info = WorkerInfo { id: id.clone(), node: text(), host: text(), pid: 0, version: text() };
        WorkerOutcome::begun(info, Nanos(30 * Nanos::SECOND.0))
    }

    #[test]
    fn records_five_seconds_late_are_behind_and_what_is_waited_for_after_the_load_is_not() {
        let schedule = Schedule::new(Nanos(0), &jobs()).unwrap();
        let at = |s: u64| Nanos(s * 1_000_000_000);
        assert_eq!((schedule.window, schedule.load_ends), (at(5), at(35)));
        assert!(!schedule.is_behind(0, at(11)), "it ended at 6 s");
        assert!(schedule.is_behind(0, Nanos(at(11).0 + 1)));
        assert!(!schedule.is_behind(0, at(36)));
        assert!(schedule.is_behind(i64::MIN, at(1)) && !schedule.is_behind(i64::MAX, at(1)));
    }
}
