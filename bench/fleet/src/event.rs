//! What a fleet reports while it works: workers that join and are lost, progress, each second's figures.

use loadline_load::VerifyReport;
use loadline_load::host::HostSecond;
use loadline_measure::interval::{EncodedInterval, Phase};
use loadline_measure::summary::LatencySummary;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::copies::ProgramCopies;
use crate::identity::{WorkerId, WorkerInfo};

/// Takes the fleet's events, in their order, on a thread of its own: it may block (a slow disk under the run's
/// folder) without disturbing the workers. All events of an operation are taken before the operation returns.
pub type EventSink = Box<dyn FnMut(FleetEvent) + Send>;

/// Why a worker was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LossReason {
    /// Its process ended, or its connection broke.
    Died,
    /// It sent nothing for five seconds, or made no progress for too long.
    Hung,
    /// What it measured came more than five seconds late.
    FellBehind,
    /// It refused its job as it was asked: usage or configuration. The worker itself goes on.
    Refused,
    /// Its job failed. The worker itself goes on.
    Failed,
    /// A stated limit (`stop_if`) ended its load before its time. The worker itself goes on.
    #[serde(rename = "braked")]
    StopCondition,
    /// It was not there when the operation began, and did not come back in time.
    Absent,
    /// It sent what cannot be read.
    Garbled,
}

/// A worker that did not do what it was asked: which, why, and when.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Loss {
    /// What kind of loss it is.
    pub reason: LossReason,
    /// What happened, and the last lines that the worker printed if there are any.
    pub message: String,
    /// When, in milliseconds since 1970 (UTC).
    pub unix_ms: u64,
    /// When, in seconds since the agreed instant of start; negative before it. `null` outside a measurement.
    pub after_s: Option<f64>,
}

/// The long operations that report progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Writing every disk once.
    Fill,
    /// Reading and checking every block.
    Scan,
}

/// One second of the whole fleet while it measures, for watching: what had arrived when the second was shown, and
/// not the result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LiveSecond {
    /// Which second; 0 is the first one of the measured window, warm-up is negative.
    pub second: i64,
    /// The phase that it lies in.
    pub phase: Phase,
    /// Workers whose records are in it.
    pub workers: u32,
    /// I/Os that completed in it.
    pub iops: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// I/Os that failed in it.
    pub errors: u64,
    /// Response times of the I/Os that completed in it, microseconds.
    pub latency_us: LatencySummary,
    /// The age of the oldest I/O of any worker that was outstanding at its end, microseconds; 0 if none was.
    pub oldest_us: u64,
    /// How many I/Os had each response time: eight classes for each power of ten, the first from 1 microsecond on (what was faster is in it
    /// too), without the zeros at the end.
    pub classes: Vec<u32>,
    /// The workers with the longest waits, the worst first: at most [`LiveSecond::WORST`].
    pub worst: Vec<WorkerSecond>,
}

impl LiveSecond {
    /// Workers that a second names at most.
    pub const WORST: usize = 10;
}

/// What one worker did in a second, for watching.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerSecond {
    /// The worker.
    pub worker: WorkerId,
    /// I/Os that completed.
    pub iops: u64,
    /// I/Os that failed.
    pub errors: u64,
    /// The mean of the response times, microseconds; 0 if none completed.
    pub mean_us: u64,
    /// The longest response time, microseconds; 0 if none completed.
    pub max_us: u64,
    /// The age of the oldest I/O that was outstanding at the end of the second, microseconds; 0 if none was.
    pub oldest_us: u64,
}

impl WorkerSecond {
    /// The longest that an I/O has waited, completed or not, microseconds.
    pub fn longest_us(&self) -> u64 {
        self.max_us.max(self.oldest_us)
    }
}

/// What happens in a fleet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum FleetEvent {
    /// The controller listens; workers can join from now on.
    Listening {
        /// Where: what a worker is given with `--join`, unless it reaches this host by another address.
        address: std::net::SocketAddr,
    },
    /// The program is copied to hosts. It is for watching, and is not recorded.
    #[serde(skip)]
    Copying(ProgramCopies),
    /// A message for people, about hosts that are made or deleted. It is for watching, and is not recorded.
    #[serde(skip)]
    Notice(String),
    /// A worker joined for the first time.
    Joined {
        /// The worker.
        worker: WorkerInfo,
    },
    /// A worker that was lost is back: started anew, or joined again under its name.
    Restarted {
        /// The worker, with its new process.
        worker: WorkerInfo,
    },
    /// A connection to the controller's port was refused. Many of them are reported ever more
    /// rarely; `count` tells how many there were.
    Rejected {
        /// Their address.
        from: String,
        /// Why the connection was refused.
        why: String,
        /// How many were refused so far, this one included.
        count: u64,
    },
    /// A worker was lost, or could not do its part of an operation.
    Lost {
        /// The worker. If it never joined, host and version are empty.
        worker: WorkerInfo,
        /// Why and when.
        loss: Loss,
    },
    /// A worker was killed on purpose while it measures: its host is gone. It is not lost as long as it may be started again.
    Killed {
        /// The worker.
        worker: WorkerInfo,
        /// When, in seconds since the agreed instant of start.
        after_s: f64,
    },
    /// A long operation went on.
    Progress {
        /// The worker that reports.
        worker: WorkerId,
        /// What it does.
        operation: Operation,
        /// Bytes done.
        done: u64,
        /// Bytes in all.
        total: u64,
    },
    /// All workers are ready, and the instant of start is agreed.
    Starting {
        /// Workers that take part.
        workers: u32,
        /// The instant at which warm-up begins, in milliseconds since 1970 (UTC).
        unix_ms: u64,
    },
    /// A second of the whole fleet, for watching.
    Second(LiveSecond),
    /// A record of one worker's disk: what the run's folder keeps.
    Interval {
        /// The worker that measured.
        worker: WorkerId,
        /// The record, already checked.
        interval: Box<EncodedInterval>,
    },
    /// What a host did in a second, by everything that ran there: what the run's folder keeps.
    HostSecond {
        /// The host's name.
        host: String,
        /// What it did.
        second: Box<HostSecond>,
    },
    /// A worker found bad blocks while it measures: so far in this step, in all.
    BadBlocks {
        /// The worker that found them.
        worker: WorkerId,
        /// What it found.
        report: VerifyReport,
    },
    /// The event sink was so slow that events had to be dropped: the run's folder has gaps. The figures of the
    /// operation have none.
    Dropped {
        /// How many events.
        events: u64,
    },
}
