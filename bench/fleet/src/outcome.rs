//! What an operation of the fleet came to, worker by worker.

use std::collections::BTreeMap;

use loadline_base::clock::Nanos;
use loadline_load::host::Inventory;
use loadline_load::{CpuTime, VerifyReport};
use loadline_measure::audit::Finding;
use loadline_measure::window::Window;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::event::Loss;
use crate::identity::{WorkerId, WorkerInfo};

/// The CPUs of a worker's host during the measured window, by everything that ran there.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostCpu {
    /// CPUs of the host that are online.
    pub cpus: u32,
    /// How many CPUs' time the worker may use of them: those that it is bound to, or less by a quota; `null` in
    /// results of versions that did not state it.
    #[serde(default)]
    pub allowed: Option<f64>,
    /// Share of their time that was used (0 to 1).
    pub busy: f64,
    /// Share of their time that the hypervisor gave to others (0 to 1).
    pub steal: f64,
}

/// What one worker measured.
#[derive(Debug, Clone)]
pub struct WorkerOutcome {
    /// The worker. If it never joined, host and version are empty.
    pub worker: WorkerInfo,
    /// What arrived of its measured window, all its disks merged; of a lost worker, what came before it was lost.
    pub window: Window,
    /// How far its start may have been from the agreed instant, by the uncertainty of clocks; `None` of a worker that
    /// could not begin.
    pub clock_error: Option<Nanos>,
    /// How long after the agreed instant it began, by its own clock; `None` of a lost worker.
    pub began_late: Option<Nanos>,
    /// CPU time of its process in the window; `None` of a lost worker.
    pub cpu: Option<CpuTime>,
    /// Its host's CPUs in the window; `None` of a lost worker, or if the host does not report them.
    pub host_cpu: Option<HostCpu>,
    /// What a reader of its figures should know. That it was lost is not among them, but in `lost`.
    pub findings: Vec<Finding>,
    /// Which engine ran, in words; `None` of a lost worker.
    pub engine: Option<String>,
    /// What the checks of blocks found, if verifying; of a lost worker, the bad blocks that it had reported.
    pub verify: Option<VerifyReport>,
    /// Why it does not count as a success, if it does not.
    pub lost: Option<Loss>,
}

impl WorkerOutcome {
    /// Of a worker that is about to measure for so long: nothing is known yet.
    pub(crate) fn begun(worker: WorkerInfo, length: Nanos) -> WorkerOutcome {
        WorkerOutcome {
            worker,
            window: Window::new(length),
            clock_error: None,
            began_late: None,
            cpu: None,
            host_cpu: None,
            findings: Vec::new(),
            engine: None,
            verify: None,
            lost: None,
        }
    }
}

/// What a measurement of the fleet came to.
#[derive(Debug, Clone)]
pub struct StepOutcome {
    /// The agreed instant at which warm-up began, in milliseconds since 1970 (UTC).
    pub start_unix_ms: u64,
    /// Every worker that was given a job, the lost ones included.
    pub workers: BTreeMap<WorkerId, WorkerOutcome>,
    /// What each host is, by its name, with what is below its workers' disks: as far as the worker that watches it
    /// told.
    pub hosts: BTreeMap<String, Inventory>,
}

impl StepOutcome {
    /// The workers that did not finish, and why.
    pub fn lost(&self) -> impl Iterator<Item = (&WorkerId, &Loss)> {
        self.workers.iter().filter_map(|(id, outcome)| Some((id, outcome.lost.as_ref()?)))
    }
}

/// What each worker's part of an operation came to.
pub type PerWorker<T> = BTreeMap<WorkerId, Result<T, Loss>>;
