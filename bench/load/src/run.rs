//! A job, prepared and run: threads, phases, the stream of intervals, the outcome.

use std::sync::atomic::AtomicBool;

use loadline_base::clock::Nanos;
use loadline_measure::audit::Finding;
use loadline_measure::interval::Interval;
use loadline_measure::window::Window;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::LoadError;
use crate::job::Job;

/// CPU time of the whole process in the measured window, its io_uring kernel workers included.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CpuTime {
    /// In user space, seconds.
    pub user_s: f64,
    /// In the kernel, seconds.
    pub system_s: f64,
}

/// What checking the blocks found.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VerifyReport {
    /// Blocks whose content was checked, by reads of the load and by the scan.
    pub checked: u64,
    /// Blocks that are older than what was acknowledged: acknowledged writes lost.
    pub lost: u64,
    /// Blocks whose checksum is wrong.
    pub corrupt: u64,
    /// Blocks that were written for another place, by another run, or never.
    pub foreign: u64,
    /// Blocks that could not be judged, since a write to them was in flight while they were read.
    pub unjudged: u64,
    /// The first of the bad blocks, in words; at most twenty.
    pub examples: Vec<String>,
}

impl VerifyReport {
    /// Blocks that are not what they should be.
    pub fn bad(&self) -> u64 {
        self.lost + self.corrupt + self.foreign
    }
}

/// What a job came to.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Everything measured in the window, all disks merged.
    pub window: Window,
    /// CPU time in the window.
    pub cpu: CpuTime,
    /// What a reader should know, the audit's findings not included.
    pub findings: Vec<Finding>,
    /// Which engine ran, in words (`io_uring`, `threads`, `null`).
    pub engine: String,
    /// What the checks of blocks found, if verifying.
    pub verify: Option<VerifyReport>,
}

/// A job whose disks are open and whose memory is there.
pub struct Prepared {}

/// Opens and checks everything: whatever can be refused is refused here, before any I/O.
pub fn prepare(_job: &Job) -> Result<Prepared, LoadError> {
    Err(LoadError::failed("being written"))
}

impl Prepared {
    /// Writes the working set of every disk once. `progress` gets the bytes done and the bytes in all, several
    /// times a second.
    pub fn fill(&mut self, _stop: &AtomicBool, _progress: &mut dyn FnMut(u64, u64)) -> Result<(), LoadError> {
        Err(LoadError::failed("being written"))
    }

    /// Runs the job: warm-up begins at `start`, on this host's monotonic clock. About once a second, shortly
    /// after a second ends, `sink` gets what was recorded, one record for each disk and phase (records of one
    /// second may come in several parts, to be added). Set `stop` to end it early: then the outcome is an error
    /// of kind `Interrupted`.
    pub fn run(
        self,
        _start: Nanos,
        _stop: &AtomicBool,
        _sink: &mut dyn FnMut(Vec<Interval>),
    ) -> Result<Outcome, LoadError> {
        Err(LoadError::failed("being written"))
    }

    /// Reads every block that the journals know and checks it: the full scan after a verified run, and the
    /// judge of a dead worker's writes.
    pub fn scan(
        &mut self,
        _stop: &AtomicBool,
        _progress: &mut dyn FnMut(u64, u64),
    ) -> Result<VerifyReport, LoadError> {
        Err(LoadError::failed("being written"))
    }
}
