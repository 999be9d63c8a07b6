//! A run as it is at this second: a small file in its folder, for pages and programs that watch.
//!
//! The process that runs the study writes [`FILE`] each second, whole, by a rename, and removes it when it ends. A reader that finds an
//! old one knows that the process ended without a word, or that its machine is too busy. No figure of a result comes from it. To end a run
//! as Ctrl-C does, a program makes an empty file [`STOP`] in the folder.

mod writer;

use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;

use loadline_fleet::WorkerSecond;
use loadline_measure::interval::Phase;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::StudyError;
use crate::folder::regular;
use crate::name::Name;

pub(crate) use writer::LiveFile;

/// The file's name in a run's folder.
pub const FILE: &str = "live.json";
/// The file that asks the run to end.
pub const STOP: &str = "stop";
/// Seconds that the file holds at most: the last ones.
pub const SECONDS: usize = 120;
/// Warnings that the file holds at most: the last ones.
pub const WARNINGS: usize = 100;
/// A file that is older than this is of a process that does not go on, milliseconds.
pub const STALE_MS: u64 = 10_000;
/// A longer file was not written by us, bytes.
const LONGEST: u64 = 4 << 20;

/// What a run does at this second.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LiveRun {
    /// When it was written, milliseconds since 1970 (UTC).
    pub at: u64,
    /// When this process began or went on with the run, milliseconds since 1970 (UTC).
    pub since: u64,
    /// What it does.
    pub doing: Doing,
    /// Steps that are complete.
    pub complete: usize,
    /// Steps that are planned so far. Searches add steps.
    pub planned: usize,
    /// About how long the planned steps still take, seconds.
    pub left_s: u64,
    /// Workers of the fleet that are there.
    pub workers: u32,
    /// The last seconds with load, the oldest first: at most [`SECONDS`].
    pub seconds: Vec<LivePoint>,
    /// The workers that waited longest in the last second, the worst first.
    pub worst: Vec<WorkerSecond>,
    /// What a person should know, the oldest first: at most [`WARNINGS`].
    pub warnings: Vec<LiveWarning>,
}

/// What a run does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Doing {
    /// It starts or ends something: a cluster, a fleet, a condition, the report.
    Preparing,
    /// Workers must join before it goes on.
    Waiting {
        /// Where the run accepts them.
        listen: SocketAddr,
        /// How many must join.
        workers: u32,
    },
    /// Disks are written once.
    Filling {
        /// Bytes written.
        done: u64,
        /// Bytes to write.
        total: u64,
    },
    /// Every block is read and checked.
    Checking {
        /// Bytes read.
        done: u64,
        /// Bytes to read.
        total: u64,
    },
    /// A load warms up until it is steady.
    WarmingUp {
        /// The step that follows.
        step: LiveStep,
        /// How long it may last, seconds.
        limit_s: u64,
    },
    /// A step is measured.
    Measuring {
        /// The step.
        step: LiveStep,
        /// Its phase.
        phase: Phase,
    },
}

/// The step that a run is at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LiveStep {
    /// Its number, from 1.
    pub number: u32,
    /// Its load, as the report calls it.
    pub label: String,
    /// Its load in a few words, as people call it.
    pub load: String,
    /// Which measurement of this load it is, from 1.
    pub repeat: u32,
    /// The condition of the storage, if the study has conditions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<Name>,
    /// What the loads of one sweep have in common: the `family` of the curve that its point will be on; empty if it will be on none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub family: String,
}

/// One second of the fleet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LivePoint {
    /// When it was shown, seconds since 1970 (UTC).
    pub at: u64,
    /// The step that it is of.
    pub step: u32,
    /// Its phase.
    pub phase: Phase,
    /// I/Os that completed.
    pub iops: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// I/Os that failed.
    pub errors: u64,
    /// The median of the response times, microseconds, if there were enough I/Os.
    pub p50: Option<f64>,
    /// Their 90th percentile.
    pub p90: Option<f64>,
    /// Their 95th percentile.
    pub p95: Option<f64>,
    /// Their 99th percentile.
    pub p99: Option<f64>,
    /// Their 99.9th percentile.
    pub p99_9: Option<f64>,
    /// The age of the oldest I/O that was outstanding at the end of the second, microseconds; 0 if none was.
    pub oldest_us: u64,
    /// How many I/Os had each response time: eight classes for each power of ten, from 1 microsecond on.
    pub classes: Vec<u32>,
}

/// Something that a person should know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LiveWarning {
    /// When, milliseconds since 1970 (UTC).
    pub at: u64,
    /// Whether it makes a figure doubtful or wrong.
    pub is_doubt: bool,
    /// A sentence.
    pub text: String,
}

impl LiveRun {
    /// What the run in this folder does, or did last; `None` if no process works on it.
    ///
    /// # Errors
    /// The file cannot be read, or is of another version.
    pub fn read(folder: &Path) -> Result<Option<LiveRun>, StudyError> {
        let path = folder.join(FILE);
        let failed = |e: std::io::Error| StudyError::io("read", &path, &e);
        let file = match regular::open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(failed(e)),
        };
        let mut text = String::new();
        file.take(LONGEST).read_to_string(&mut text).map_err(failed)?;
        let broken = |e| StudyError::usage(format!("{} cannot be parsed: {e}", path.display()));
        serde_json::from_str(&text).map(Some).map_err(broken)
    }

    /// Whether the process that wrote it still goes on, at a moment in milliseconds since 1970 (UTC).
    pub fn is_current(&self, now_ms: u64) -> bool {
        // A moment that is still to come is of another clock: it says as little as an old one.
        now_ms.abs_diff(self.at) <= STALE_MS
    }
}

/// Asks the run in this folder to end within seconds, as Ctrl-C does. It can be resumed. A file of this name that is there stays as it is.
///
/// # Errors
/// The folder cannot be written.
pub fn request_stop(folder: &Path) -> Result<(), StudyError> {
    let path = folder.join(STOP);
    match std::fs::File::create_new(&path) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => Err(StudyError::io("write", &path, &e)),
        _ => Ok(()),
    }
}
