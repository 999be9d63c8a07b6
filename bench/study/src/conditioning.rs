//! What is done to the disks before a step: they are filled, and the load is put on them until it is steady.

use std::collections::BTreeMap;
use std::future::pending;

use loadline_fleet::{Loss, LossReason, PerWorker, WorkerId};
use loadline_load::Job;

use crate::error::StudyError;
use crate::folder::events::RunEvent;
use crate::planned_step::{Purpose, Step};
use crate::progress::Update;
use crate::runner::Runner;
use crate::settle::{Settling, WarmUp};
use crate::workers::Workers;
use loadline_fleet::or_stop;

impl<W: Workers> Runner<'_, W> {
    /// Writes once all that the profiles use, unless that was done, or as much as the lowest level of filling asks for.
    pub(crate) async fn fill(&mut self) -> Result<(), StudyError> {
        let folder = &self.owned.folder;
        let scratch = folder.manifest.files.iter().any(|file| file.ceiling);
        if !(folder.plan.fill || scratch) || folder.manifest.filled || self.is_measured() {
            return Ok(());
        }
        let lowest = self.owned.folder.plan.loads().find_map(|step| step.fill_level);
        self.write_once(lowest.map(|level| (0.0, level))).await?;
        self.owned.folder.manifest.filled = true;
        self.owned.folder.manifest.filled_percent = lowest;
        self.owned.save()
    }

    /// Writes on, from the level that is filled to the one that a step asks for.
    pub(crate) async fn fill_to(&mut self, step: &Step) -> Result<(), StudyError> {
        let filled = self.owned.folder.manifest.filled_percent;
        let (Some(level), Some(filled)) = (step.fill_level, filled) else { return Ok(()) };
        if filled > level {
            return Err(StudyError::usage(format!(
                "step {} ({}) measures disks that are {level} % full, but the disks are already {filled} % full, and a run \
                 never empties them. Run the study anew",
                step.number, step.label
            )));
        }
        if filled == level {
            return Ok(());
        }
        self.write_once(Some((filled, level))).await?;
        self.owned.folder.manifest.filled_percent = Some(level);
        self.owned.save()
    }

    async fn write_once(&mut self, level: Option<(f64, f64)>) -> Result<(), StudyError> {
        self.unlimit_volumes().await?;
        self.owned.events.run(&RunEvent::FillBegan)?;
        for jobs in self.jobs().fill(level)? {
            self.shared.lock().begin_sweep();
            let mut done = or_stop(&mut self.stop, self.workers.fill(&jobs)).await??;
            // A worker that was lost is brought back, once: what it had written is written again.
            let again: BTreeMap<WorkerId, Job> = jobs
                .into_iter()
                .filter(|(worker, _)| done.get(worker).is_some_and(|r| r.as_ref().is_err_and(was_lost)))
                .collect();
            if !again.is_empty() {
                let notice = match again.len() {
                    1 => "1 worker was lost while it filled its disks: filling again".to_owned(),
                    lost => format!("{lost} workers were lost while they filled their disks: filling again"),
                };
                self.shared.lock().show(Update::Notice(&notice));
                done.extend(or_stop(&mut self.stop, self.workers.fill(&again)).await??);
            }
            self.shared.lock().check()?;
            refusals(&done)?;
        }
        self.owned.events.run(&RunEvent::FillDone)
    }

    /// Warms up until the load is steady, or as long as the study allows, unless the step before was of the same sweep.
    pub(crate) async fn warm_up(&mut self, step: &Step) -> Result<Option<WarmUp>, StudyError> {
        let steady = self.owned.folder.manifest.study.phases.steady;
        let Some(goal) = steady.filter(|_| step.purpose != Purpose::Ceiling) else { return Ok(None) };
        if let Some((before, warm_up)) = &self.warm
            && before.warm_up_key() == step.warm_up_key()
            && warm_up.lost_workers == 0
        {
            return Ok(Some(warm_up.clone()));
        }
        self.warm = None;
        let limit_s = goal.limit.0.as_secs();
        self.owned.events.run(&RunEvent::WarmUpBegan { step: step.number, limit_s })?;
        let jobs = self.jobs().settling(step, goal.limit)?;
        let mut steady = {
            let mut recorder = self.shared.lock();
            recorder.show(Update::WarmingUp { step, limit: goal.limit.0 });
            recorder.begin_warm_up(Settling::new(goal.round_s(), limit_s))
        };
        let is_steady = async {
            if steady.wait_for(|steady| *steady).await.is_err() {
                pending::<()>().await;
            }
        };
        let measured = or_stop(&mut self.stop, async {
            tokio::select! {
                biased;
                () = is_steady => None,
                done = self.workers.measure(&jobs, None) => Some(done),
            }
        })
        .await;
        let settling = self.shared.lock().end_warm_up();
        if let Some(outcome) = measured? {
            self.accept(step, &outcome?)?;
        }
        self.shared.lock().check()?;
        let Some(mut settling) = settling else { return Ok(None) };
        self.found_before.extend(std::mem::take(&mut settling.bad).into_values());
        let warm_up = settling.outcome(step.number);
        let WarmUp { seconds, steady, .. } = warm_up;
        self.owned.events.run(&RunEvent::WarmUpEnded { step: step.number, seconds, steady })?;
        self.warm = Some((step.clone(), warm_up.clone()));
        Ok(Some(warm_up))
    }
}

/// An operation that every worker must do: the first that did not is the error.
fn refusals<T>(outcomes: &PerWorker<T>) -> Result<(), StudyError> {
    let lost = outcomes.iter().find_map(|(worker, outcome)| Some((worker, outcome.as_ref().err()?)));
    match lost {
        None => Ok(()),
        Some((worker, loss)) => {
            let message = format!("worker {worker}: {}", loss.message);
            Err(match loss.reason {
                LossReason::Refused => StudyError::usage(message),
                _ => StudyError::failed(message),
            })
        }
    }
}

/// Whether the worker itself is gone, and not only its job.
fn was_lost(loss: &Loss) -> bool {
    match loss.reason {
        LossReason::Died
        | LossReason::Hung
        | LossReason::FellBehind
        | LossReason::Absent
        | LossReason::Garbled => true,
        LossReason::Refused | LossReason::Failed | LossReason::StopCondition => false,
    }
}
