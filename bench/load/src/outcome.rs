//! What a job comes to.

use std::fmt;
use std::ops::AddAssign;

use loadline_base::clock::Nanos;
use loadline_base::figures::counted;
use loadline_measure::audit::{Finding, FindingKind};
use loadline_measure::window::Window;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::LoadError;

/// CPU time of the whole process in the measured window, its io_uring kernel workers included.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CpuTime {
    /// In user space, seconds.
    pub user_s: f64,
    /// In the kernel, seconds.
    pub system_s: f64,
    /// Of both, what its load threads spent polling for completions that had not come, before sleeping for them, seconds:
    /// time in which they could have done more.
    #[serde(default)]
    pub polling_s: f64,
}

impl AddAssign for CpuTime {
    fn add_assign(&mut self, other: CpuTime) {
        self.user_s += other.user_s;
        self.system_s += other.system_s;
        self.polling_s += other.polling_s;
    }
}

impl CpuTime {
    /// CPU time that was used, whatever for.
    pub fn used_s(&self) -> f64 {
        self.user_s + self.system_s
    }

    /// CPU time that the load took: without what was spent polling for completions. (That is taken by the wall clock, so
    /// that it may come to slightly more than the kernel counts.)
    pub fn working_s(&self) -> f64 {
        (self.used_s() - self.polling_s).max(0.0)
    }
}

/// How many bad blocks are described in words.
pub(crate) const MOST_EXAMPLES: usize = 20;

/// What checking the blocks found. Each bad block is counted once, however often it was read.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VerifyReport {
    /// How many blocks were read and checked, by reads of the load and by the scan; each time counts.
    pub checked: u64,
    /// Blocks that are older than what was acknowledged: acknowledged writes lost.
    pub lost: u64,
    /// Blocks whose checksum is wrong.
    pub corrupt: u64,
    /// Blocks that were written for another place, by another run, or never.
    pub foreign: u64,
    /// Blocks that the scan could not read.
    #[serde(default)]
    pub unreadable: u64,
    /// Of those checked, how many could not be judged, since a write to them was in flight while they were read, or
    /// had no known outcome.
    pub unjudged: u64,
    /// The first of the bad blocks, in words; at most twenty.
    pub examples: Vec<String>,
}

impl fmt::Display for VerifyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} checked, {} lost, {} corrupt, {} foreign, {} unreadable, {} not judged (a write was in flight, \
             or of unknown outcome)",
            counted(self.checked, "block"),
            self.lost,
            self.corrupt,
            self.foreign,
            self.unreadable,
            self.unjudged
        )
    }
}

impl VerifyReport {
    /// A check that judged nothing has proved nothing.
    pub fn nothing_judged(&self) -> Option<Finding> {
        (self.bad() == 0 && self.checked == self.unjudged).then(|| {
            let found = match self.checked {
                0 => "no write was ever issued or acknowledged with this journal, so no block was checked".into(),
                n => format!("none: the last write to each of the {n} checked blocks has an unknown outcome"),
            };
            Finding::doubt(
                FindingKind::Integrity,
                "blocks that can be checked",
                found,
                "Only what was written with --verify is checked: use --fill or a profile that writes, and the journal \
                 of the run that wrote.",
            )
        })
    }

    /// Blocks that are not what they should be.
    pub fn bad(&self) -> u64 {
        [self.corrupt, self.foreign, self.unreadable].into_iter().fold(self.lost, u64::saturating_add)
    }

    /// Adds what another check found.
    pub fn merge(&mut self, other: VerifyReport) {
        // Reports come from other hosts too: what one makes up must not end the program that adds it.
        self.checked = self.checked.saturating_add(other.checked);
        self.lost = self.lost.saturating_add(other.lost);
        self.corrupt = self.corrupt.saturating_add(other.corrupt);
        self.foreign = self.foreign.saturating_add(other.foreign);
        self.unreadable = self.unreadable.saturating_add(other.unreadable);
        self.unjudged = self.unjudged.saturating_add(other.unjudged);
        let room = MOST_EXAMPLES.saturating_sub(self.examples.len());
        self.examples.extend(other.examples.into_iter().take(room));
    }
}

/// What a scan came to.
#[derive(Debug, Clone)]
pub struct Scan {
    /// What was found, as far as it came.
    pub report: VerifyReport,
    /// Why it did not come to the end, if it did not.
    pub incomplete: Option<LoadError>,
}

impl Scan {
    /// The report. Of an incomplete scan, it is one only if it found bad blocks: that it found none says nothing.
    pub fn into_report(self) -> Result<VerifyReport, LoadError> {
        match self.incomplete {
            Some(error) if self.report.bad() == 0 => Err(error),
            Some(error) => {
                let mut report = self.report;
                report.examples.truncate(MOST_EXAMPLES - 1);
                report.examples.push(format!("and the scan is incomplete: {error}"));
                Ok(report)
            }
            None => Ok(self.report),
        }
    }
}

/// What is added to the name of an engine whose threads polled for completions for a while before they slept (closed loop,
/// a file in memory or a server on this host, CPUs to spare). It may use all of a CPU, and finds completions sooner than one that sleeps.
pub(crate) const POLLING: &str = ", polling before sleeping";

/// The engine alone: whether it polled for completions before it slept depends on what else the host did.
pub fn engine_alone(engine: &str) -> &str {
    engine.strip_suffix(POLLING).unwrap_or(engine)
}

/// What a job came to.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Everything measured in the window, all disks merged.
    pub window: Window,
    /// How long after the agreed moment the last of its threads began.
    pub began_late: Nanos,
    /// CPU time in the window.
    pub cpu: CpuTime,
    /// What a reader should know, the audit's findings not included.
    pub findings: Vec<Finding>,
    /// Which engine ran, in words: `io_uring`, `vhost-user`, `librbd`, `threads`, `null`; and `, polling
    /// before sleeping` if they did.
    pub engine: String,
    /// What the checks of blocks found, if verifying.
    pub verify: Option<VerifyReport>,
    /// The stop condition that ended it, if one did: then the window is shorter than asked.
    pub stop_condition: Option<String>,
    /// Why it ended before its time otherwise, if it did (a stop, or a thread that failed): then the window is what there was of
    /// it, in whole seconds.
    pub ended_early: Option<LoadError>,
}

impl Outcome {
    /// The outcome, if the load did not end before its time; for callers that need all of it.
    pub fn whole(self) -> Result<Outcome, LoadError> {
        match self.ended_early {
            Some(error) => Err(error),
            None => Ok(self),
        }
    }
}
