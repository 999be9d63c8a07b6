//! How long a run still takes: the phases of the steps that are left, and what steps take beyond their phases so far.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::file::Phases;

/// The time that is left of a run, from what it has shown.
#[derive(Debug, Clone, Default)]
pub struct TimeLeft {
    /// The length of each phase of a step: warm-up, window, cool-down, seconds.
    phases: [u64; 3],
    complete: usize,
    planned: usize,
    /// When the load of the step that runs began, or is to begin.
    began: Option<Instant>,
    /// When the step that runs was begun.
    since: Option<Instant>,
    /// What the complete steps of this process took beyond their phases: starting, waiting, writing down.
    beside: Duration,
    measured: u32,
}

impl TimeLeft {
    /// The run begins, or goes on, with so many of the planned steps complete.
    pub fn begin(&mut self, phases: &Phases, complete: usize, planned: usize) {
        self.phases = [phases.warm_up, phases.measure, phases.cool_down].map(|span| span.0.as_secs());
        (self.complete, self.planned) = (complete, planned);
    }

    /// A step of so many begins. Searches add steps as they go.
    pub fn begin_step(&mut self, planned: usize) {
        self.planned = self.planned.max(planned);
        (self.since, self.began) = (Some(Instant::now()), None);
    }

    /// A warm-up of unknown length begins.
    pub fn begin_warm_up(&mut self) {
        self.began = None;
    }

    /// The load begins at this moment, milliseconds since 1970 (UTC).
    pub fn begin_load(&mut self, unix_ms: u64) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.began = Some(Instant::now() + Duration::from_millis(unix_ms).saturating_sub(now));
    }

    /// The step that runs is complete.
    pub fn end_step(&mut self) {
        self.complete += 1;
        self.began = None;
        if let Some(since) = self.since.take() {
            self.beside += since.elapsed().saturating_sub(Duration::from_secs(self.step_seconds()));
            self.measured += 1;
        }
    }

    /// Steps that are complete, and all that are planned so far.
    pub fn steps(&self) -> (usize, usize) {
        (self.complete, self.planned)
    }

    /// The length of each phase of a step, seconds: warm-up, window, cool-down.
    pub fn phases(&self) -> [u64; 3] {
        self.phases
    }

    /// Seconds of load done and in all, over all steps.
    pub fn seconds(&self) -> (u64, u64) {
        let each = self.step_seconds();
        let now = self.began.map_or(0, |began| began.elapsed().as_secs().min(each));
        (self.complete as u64 * each + now, self.planned as u64 * each)
    }

    /// The time that is left, seconds.
    pub fn left_s(&self) -> u64 {
        let (done, total) = self.seconds();
        let steps = u32::try_from(self.planned.saturating_sub(self.complete)).unwrap_or(u32::MAX);
        let each = self.beside.checked_div(self.measured).unwrap_or_default();
        total.saturating_sub(done) + each.saturating_mul(steps).as_secs()
    }

    fn step_seconds(&self) -> u64 {
        self.phases.iter().sum()
    }
}
