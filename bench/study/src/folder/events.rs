//! `events.jsonl`: what happened, one JSON object a line, in the order of time. A crash may tear the last line.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use loadline_fleet::FleetEvent;
use schemars::JsonSchema;
use serde::Serialize;

use crate::error::StudyError;
use crate::name::Name;
use crate::network::MeasuredLink;
use crate::when::When;

/// How far back the end of the line before the last one is searched, bytes.
const LONGEST_LINE: u64 = 1 << 20;

/// What happens in a run, beside what its fleet reports.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum RunEvent {
    /// The run began.
    RunBegan {
        /// Its id.
        run_id: String,
        /// The version of Loadline.
        loadline: String,
    },
    /// A controller went on with the run.
    RunResumed {
        /// Steps that were complete.
        complete: u32,
    },
    /// Files were made.
    FilesMade {
        /// The number of files.
        files: u32,
    },
    /// The network between the nodes was measured.
    NetworkMeasured {
        /// From each node to the next.
        links: Vec<MeasuredLink>,
    },
    /// The study's own cluster is in a condition.
    ConditionEntered {
        /// The name of the condition.
        condition: Name,
        /// The repeat, from 1 on.
        repeat: u32,
        /// How long that took, seconds.
        seconds: f64,
        /// Nodes that answer; `null` of external storage, as the next two.
        nodes_alive: Option<usize>,
        /// Volumes that lack a copy.
        degraded: Option<usize>,
        /// Bytes that are still to be copied, as far as it is known.
        left_bytes: Option<u64>,
    },
    /// Writing the disks once began.
    FillBegan,
    /// Writing the disks once is done.
    FillDone,
    /// Warming up until the load is steady began.
    WarmUpBegan {
        /// The step before which it is.
        step: u32,
        /// How long it may last, seconds.
        limit_s: u64,
    },
    /// Warming up ended.
    WarmUpEnded {
        /// The step before which it is.
        step: u32,
        /// How long it was, seconds.
        seconds: u64,
        /// Whether the load was steady.
        steady: bool,
    },
    /// A step began.
    StepBegan {
        /// Its number.
        step: u32,
        /// Its load.
        label: String,
        /// The repeat, from 1 on.
        repeat: u32,
    },
    /// A step is complete.
    StepComplete {
        /// Its number.
        step: u32,
        /// I/Os a second of the fleet.
        iops: f64,
        /// I/Os that failed.
        errors: u64,
        /// Workers lost in it.
        lost: u32,
    },
    /// The run ended before it was done.
    RunStopped {
        /// Why the run ended.
        why: String,
    },
    /// Every step is complete.
    RunFinished,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Event<'a> {
    Run(&'a RunEvent),
    Fleet(&'a FleetEvent),
}

#[derive(Serialize)]
struct Line<'a> {
    at: When,
    #[serde(flatten)]
    event: Event<'a>,
}

/// The file, open to be added to.
#[derive(Debug)]
pub struct EventLog {
    path: PathBuf,
    file: File,
}

impl EventLog {
    /// Opens it; a torn last line is cut off.
    pub(crate) fn open(path: &Path) -> Result<EventLog, StudyError> {
        let failed = |e: std::io::Error| StudyError::io("open", path, &e);
        let mut options = OpenOptions::new();
        let mut file =
            options.read(true).write(true).create(true).truncate(false).open(path).map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        let from = length.saturating_sub(LONGEST_LINE);
        let mut tail = Vec::new();
        file.seek(SeekFrom::Start(from)).and_then(|_| file.read_to_end(&mut tail)).map_err(failed)?;
        let whole = tail.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at as u64 + 1);
        file.set_len(from + whole).and_then(|()| file.seek(SeekFrom::End(0))).map_err(failed)?;
        Ok(EventLog { path: path.to_path_buf(), file })
    }

    /// Another handle on the same file, for another thread.
    pub(crate) fn try_clone(&self) -> Result<EventLog, StudyError> {
        let file = self.file.try_clone().map_err(|e| StudyError::io("open", &self.path, &e))?;
        Ok(EventLog { path: self.path.clone(), file })
    }

    /// Adds what happened in the run.
    pub fn run(&mut self, event: &RunEvent) -> Result<(), StudyError> {
        self.add(Event::Run(event))
    }

    /// Adds what the fleet reported.
    pub fn fleet(&mut self, event: &FleetEvent) -> Result<(), StudyError> {
        self.add(Event::Fleet(event))
    }

    fn add(&mut self, event: Event<'_>) -> Result<(), StudyError> {
        let failed = |e: std::io::Error| StudyError::io("write", &self.path, &e);
        let mut line = serde_json::to_vec(&Line { at: When::now(), event }).map_err(|e| failed(e.into()))?;
        line.push(b'\n');
        // In one write, so that lines of two handles do not mix.
        self.file.write_all(&line).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_last_line_is_cut_off_and_the_log_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.jsonl");
        let mut log = EventLog::open(&path).unwrap();
        log.run(&RunEvent::FillBegan).unwrap();
        log.run(&RunEvent::FilesMade { files: 4 }).unwrap();
        let whole = std::fs::read(&path).unwrap();
        let first = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
        for length in first..whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            EventLog::open(&path).unwrap().run(&RunEvent::RunFinished).unwrap();
            let text = std::fs::read_to_string(&path).unwrap();
            let events: Vec<String> = text
                .lines()
                .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["event"].to_string())
                .collect();
            assert_eq!(events, ["\"fill_began\"", "\"run_finished\""], "cut at {length}");
        }
    }
}
