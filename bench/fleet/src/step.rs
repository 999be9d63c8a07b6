//! A measurement: all workers prepare, start at one instant, and send records until each reports its end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use loadline_base::clock::Nanos;
use loadline_base::units::TimeSpan;
use loadline_load::{Job, Target};
use tokio::time::Instant;

use crate::clock_offset::KnownClock;
use crate::controller::{Controller, ControllerEvent, unix_ms};
use crate::error::{ErrorKind, FleetError};
use crate::event::{FleetEvent, LossReason};
use crate::identity::WorkerId;
use crate::live::Live;
use crate::mid_step::MidStepChanges;
use crate::operation::{SHORT_ORDER, failure};
use crate::outcome::{StepOutcome, WorkerOutcome};
use crate::step_state::{Schedule, Step};
use crate::wire::{Reply, WorkerOrder};

/// From sending the order to start until the start: the order must reach every worker meanwhile, on busy CPUs.
const START_LEAD: Nanos = Nanos::SECOND;
/// A second's records are ready in every worker this long after its end; then the workers take turns in sending
/// them, so that they do not all at one moment take the CPU from the load.
const FIRST_TURN: Nanos = Nanos(200_000_000);
/// From the first worker's turn until the last one's.
const TURNS: Nanos = Nanos(700_000_000);
/// The most targets that are inspected on one host: what is reported of them fits into a message many times.
const MOST_WATCHED: usize = 256;
/// How often limits are checked, and complete seconds are shown.
const POLL_EVERY: Duration = Duration::from_millis(250);

/// Checks the jobs of one step.
fn validate(jobs: &BTreeMap<WorkerId, Job>) -> Result<(), FleetError> {
    let Some((first, one)) = jobs.iter().next() else {
        return Err(FleetError::usage("there is nothing to measure: no worker has a job"));
    };
    for (id, job) in jobs {
        job.validate().map_err(|e| FleetError { message: format!("worker {id}: {e}"), kind: e.kind })?;
        if (job.warm_up, job.measure, job.cool_down) != (one.warm_up, one.measure, one.cool_down) {
            return Err(FleetError::usage(format!(
                "workers {first} and {id} would not measure at the same time: give both the same warm-up, window and \
                 cool-down"
            )));
        }
        // Far beyond any use, and far from overflowing an instant.
        if job.drain > TimeSpan::seconds(100 * 86_400) {
            return Err(FleetError::usage(format!(
                "worker {id}: waiting {} for I/Os is too long: at most 100 days are possible",
                job.drain
            )));
        }
    }
    Ok(())
}

/// What is known best of each system's clock.
fn best_clocks<'a>(clocks: impl Iterator<Item = &'a KnownClock>) -> BTreeMap<String, KnownClock> {
    let mut best: BTreeMap<String, KnownClock> = BTreeMap::new();
    for clock in clocks.filter(|clock| !clock.system.is_empty()) {
        let known = best.entry(clock.system.clone()).or_insert_with(|| clock.clone());
        if clock.error_ns < known.error_ns {
            known.clone_from(clock);
        }
    }
    best
}

impl Controller {
    /// One worker of each host, the first that is there or else one that is brought back, and the targets of all
    /// workers on that host: it watches the host. If it is lost, the host is not watched for the rest of the step.
    fn watchers(
        &self,
        jobs: &BTreeMap<WorkerId, Job>,
        may_go: &BTreeSet<WorkerId>,
    ) -> BTreeMap<WorkerId, Vec<Target>> {
        let mut hosts: BTreeMap<String, (WorkerId, Vec<Target>)> = BTreeMap::new();
        let (stay, go): (Vec<_>, Vec<_>) = jobs.iter().partition(|(id, _)| !may_go.contains(id));
        let (there, gone): (Vec<_>, Vec<_>) =
            stay.into_iter().chain(go).partition(|(id, _)| self.absent(id).is_none());
        for (id, job) in there.into_iter().chain(gone) {
            let (_, targets) = hosts.entry(self.info(id).host).or_insert_with(|| (id.clone(), Vec::new()));
            let room = MOST_WATCHED.saturating_sub(targets.len());
            targets.extend(job.disks.iter().take(room).map(|disk| disk.target.clone()));
        }
        hosts.into_values().collect()
    }

    /// Runs the jobs, all from one agreed instant.
    pub(crate) async fn measure(
        &mut self,
        jobs: &BTreeMap<WorkerId, Job>,
        changes: Option<MidStepChanges>,
    ) -> Result<StepOutcome, FleetError> {
        validate(jobs)?;
        self.bring_home().await;
        let may_go = changes.as_ref().map_or(BTreeSet::new(), |changes| changes.may_go.clone());
        let mut watchers = self.watchers(jobs, &may_go);
        let mut threads: BTreeMap<String, u32> = BTreeMap::new();
        for (id, job) in jobs {
            let on_host = threads.entry(self.info(id).host).or_default();
            *on_host = on_host.saturating_add(job.load_threads());
        }
        let order = |(id, job): (&WorkerId, &Job)| {
            let neighbours = threads[&self.info(id).host].saturating_sub(job.load_threads());
            let job = Box::new(Job { neighbours, ..job.clone() });
            (id.clone(), WorkerOrder::Prepare { job, watch: watchers.remove(id) })
        };
        let orders = jobs.iter().map(order).collect();
        let prepared = self
            .carry_out(orders, SHORT_ORDER, None, |reply| match reply {
                Reply::Prepared { clock, host } => Some((clock, host)),
                _ => None,
            })
            .await?;
        let ready = prepared.values().filter(|r| r.is_ok()).count();
        let start = Nanos::now() + START_LEAD;
        let start_unix_ms = unix_ms() + START_LEAD.0 / Nanos::MILLISECOND.0;
        let schedule = Schedule::new(start, jobs).ok_or_else(|| FleetError::usage("no worker has a job"))?;
        // If no worker could begin, nothing starts: the outcome states why of each.
        if ready > 0 {
            self.zero = Some(start);
            let workers = ready as u32;
            self.events.emit(FleetEvent::Starting { workers, unix_ms: start_unix_ms });
        }

        let one = &jobs.values().next().ok_or_else(|| FleetError::usage("no worker has a job"))?;
        let (warm_up, measure, cool_down) =
            (one.warm_up.0.as_secs(), one.measure.0.as_secs(), one.cool_down.0.as_secs());
        let live = Live::new(schedule.window, warm_up, measure, cool_down);
        let mut step = Step::new(jobs, schedule, live);
        let best = best_clocks(prepared.values().filter_map(|r| r.as_ref().ok()).map(|(clock, _)| clock));
        for (rank, (id, prepared)) in (0..).zip(prepared) {
            let mut outcome = WorkerOutcome::begun(self.info(&id), Nanos::from(one.measure.0));
            let mut better = None;
            match prepared {
                Err(loss) => outcome.lost = Some(loss),
                Ok((clock, host)) => {
                    better = best.get(&clock.system).filter(|best| best.agrees_with(&clock)).cloned();
                    outcome.clock_error = Some(Nanos(better.as_ref().unwrap_or(&clock).error_ns));
                    step.hosts.extend(host.map(|host| (outcome.worker.host.clone(), *host)));
                }
            }
            let ready = outcome.lost.is_none();
            step.outcomes.insert(id.clone(), outcome);
            if ready {
                let hold_back = FIRST_TURN + Nanos(TURNS.0 * rank / jobs.len() as u64);
                match self.order(&id, WorkerOrder::Run { start, hold_back, late: false, clock: better }) {
                    Some(task) => drop(step.running.insert(id, task)),
                    // It was lost between the two orders; its name and the reason are reported when its connection ends.
                    None => {
                        let why = self.absent(&id).unwrap_or_else(|| "it does not take orders".into());
                        let loss = self.report_loss(&id, LossReason::Hung, why);
                        step.lose(&id, loss, true);
                    }
                }
            }
        }
        self.mid_step = changes.map(|changes| changes.orders);
        self.follow(&mut step).await?;
        self.mid_step = None;
        Ok(StepOutcome { start_unix_ms, workers: step.outcomes, hosts: step.hosts })
    }

    /// Takes what the workers report until all have ended or are lost.
    async fn follow(&mut self, step: &mut Step<'_>) -> Result<(), FleetError> {
        while !step.is_over(Nanos::now()) {
            let happening = self.next(Instant::now() + POLL_EVERY).await;
            let now = Nanos::now();
            match happening {
                ControllerEvent::Reply { id, task, reply } if step.running.get(&id) == Some(&task) => {
                    self.handle_reply(step, id, reply, now);
                }
                ControllerEvent::Reply { id, task, reply } => {
                    self.handle_successor_reply(step, &id, task, reply)
                }
                ControllerEvent::Joined(id) => self.welcome_successor(step, &id),
                ControllerEvent::MidStep(change) => self.change(step, change).await,
                ControllerEvent::Tick => {}
                ControllerEvent::Lost(id, loss) => step.lose(&id, loss, true),
                ControllerEvent::Cancelled => {
                    self.stop_work(step.busy()).await;
                    return Err(FleetError::interrupted());
                }
            }
            if let Some((id, why)) = step.stopped_by.take() {
                // What one worker finds too slow, the others must not go on to load.
                self.stop_work(step.busy()).await;
                self.retire(&step.useless).await;
                return Err(FleetError {
                    kind: ErrorKind::Limit,
                    message: format!(
                        "worker {id} passed a limit of stop_if, and the load of all workers was ended: {why}"
                    ),
                });
            }
            self.check_successors(step).await;
            for second in step.live.due(now) {
                self.events.emit(FleetEvent::Second(second));
            }
            if now > step.schedule.over {
                for id in step.running.keys().cloned().collect::<Vec<_>>() {
                    let why = "it did not end in time after its load".to_string();
                    let loss = self.report_loss(&id, LossReason::Hung, why);
                    step.lose(&id, loss, true);
                }
            }
        }
        self.count_out(step);
        for second in step.live.ended(Nanos::now()) {
            self.events.emit(FleetEvent::Second(second));
        }
        // A new process holds nothing. One that joined is not ours to start anew: it stays as it is.
        let ours = |id: &WorkerId| self.members.get(id).is_some_and(|member| member.is_launched);
        step.useless.extend(step.tainted.iter().filter(|id| ours(id)).cloned());
        self.retire(&step.useless).await;
        Ok(())
    }

    /// Takes one reply of a worker that runs.
    fn handle_reply(&mut self, step: &mut Step<'_>, id: WorkerId, reply: Reply, now: Nanos) {
        let lost = match reply {
            Reply::Intervals(intervals) => {
                let mut result = Ok(());
                for interval in intervals {
                    result = result.and(step.count(&id, &interval, now));
                    if result.is_ok() {
                        let worker = id.clone();
                        self.events.emit(FleetEvent::Interval { worker, interval: Box::new(interval) });
                    }
                }
                result.map_err(|(reason, why)| (reason, why, true))
            }
            Reply::Measured(measured) => match step.end(&id, *measured) {
                None => Ok(()),
                Some(why) => Err((LossReason::StopCondition, why, false)),
            },
            Reply::Failed { kind, message } => {
                let (reason, why) = failure(kind, message);
                // What it did not end in order, its process may still hold.
                step.tainted.insert(id.clone());
                Err((reason, why, false))
            }
            Reply::HostSecond(second) => {
                let host = self.info(&id).host;
                self.events.emit(FleetEvent::HostSecond { host, second });
                Ok(())
            }
            Reply::Found(report) => {
                self.events.emit(FleetEvent::BadBlocks { worker: id.clone(), report: (*report).clone() });
                // If it is lost, this is what is known; if it ends, it says so again.
                step.outcomes.get_mut(&id).into_iter().for_each(|o| o.verify = Some((*report).clone()));
                Ok(())
            }
            Reply::Progress { .. } => Ok(()),
            _ => Err((LossReason::Garbled, "the worker's reply does not match its order".to_string(), true)),
        };
        if let Err((reason, why, useless)) = lost {
            if reason == LossReason::StopCondition {
                step.stopped_by.get_or_insert((id.clone(), why.clone()));
            }
            let loss = self.report_loss(&id, reason, why);
            if useless {
                // It still loads the storage that the others are measured on.
                self.send_stop(&id);
            }
            step.lose(&id, loss, useless);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loadline_base::units::ByteSize;
    use loadline_load::{Disk, WritePermission};
    use loadline_profile::Profile;

    fn jobs() -> BTreeMap<WorkerId, Job> {
        let disk = Disk { target: Target::Null(ByteSize::GIB), writes: WritePermission::Refused };
        let job = Job::new(vec![disk], Profile::default());
        ["a", "b"].map(|id| (WorkerId(id.into()), job.clone())).into()
    }

    #[test]
    fn workers_with_one_clock_use_what_one_of_them_knows_best_if_it_can_be_true_for_both() {
        let clock =
            |system: &str, offset_ns, error_ns| KnownClock { system: system.into(), offset_ns, error_ns };
        let all = [clock("a", 100, 50), clock("a", 90, 10), clock("b", 7, 5), clock("", 0, 1)];
        let best = best_clocks(all.iter());
        assert_eq!(best.values().cloned().collect::<Vec<_>>(), [all[1].clone(), all[2].clone()]);
        assert!(all[1].agrees_with(&all[0]) && !all[1].agrees_with(&all[2]));
        assert!(!all[1].agrees_with(&clock("a", 1000, 50)), "it is another clock, whatever it is called");
    }

    #[test]
    fn all_workers_must_measure_at_the_same_time() {
        let mut jobs = jobs();
        assert_eq!(validate(&jobs), Ok(()));
        jobs.values_mut().next().unwrap().measure = TimeSpan::seconds(7);
        assert!(validate(&jobs).unwrap_err().message.contains("same warm-up"));
        assert!(validate(&BTreeMap::new()).is_err());
    }
}
