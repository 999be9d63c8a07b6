//! What a job comes to.

use loadline_measure::audit::Finding;
use loadline_measure::window::Window;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// CPU time of the whole process in the measured window, its io_uring kernel workers included.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CpuTime {
    /// In user space, seconds.
    pub user_s: f64,
    /// In the kernel, seconds.
    pub system_s: f64,
}

/// How many bad blocks are described in words.
pub(crate) const MOST_EXAMPLES: usize = 20;

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

    /// Adds what another check found.
    pub fn merge(&mut self, other: VerifyReport) {
        self.checked += other.checked;
        self.lost += other.lost;
        self.corrupt += other.corrupt;
        self.foreign += other.foreign;
        self.unjudged += other.unjudged;
        let room = MOST_EXAMPLES.saturating_sub(self.examples.len());
        self.examples.extend(other.examples.into_iter().take(room));
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
    /// Why the brake ended it, if it did: then the window is shorter than asked.
    pub braked: Option<String>,
}
