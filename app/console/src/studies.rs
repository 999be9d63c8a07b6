//! Studies that the console starts: a file beside the runs, and a process that runs it.
//!
//! The process is in a process group of its own and has no pipe to the console, so that the run goes on when the console ends. While the
//! console lives, a thread waits for the process. Everything else that the console knows of the run is in the run's folder.
//!
//! | module | idea |
//! | --- | --- |
//! | [`draft`] | the study that answers make, and what its start needs |
//! | `files` | the files beside a run: the study, and what the process said |

pub mod draft;
mod files;
#[cfg(test)]
mod tests;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use loadline_question::Draft;
use schemars::JsonSchema;
use serde::Serialize;

use crate::runs::entry::id_of;
use files::Files;

/// How long a start waits for the run to begin.
const BEGINS: Duration = Duration::from_secs(20);
/// The time from one check whether it has begun to the next.
const POLL: Duration = Duration::from_millis(50);

/// A run that has begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Begun {
    /// The id of the run.
    pub id: String,
    /// The path of its page.
    pub page: String,
}

/// The run that the console started last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct StartedView {
    /// The id of the run.
    pub id: String,
    /// The name of its folder.
    pub name: String,
    /// Whether its folder is there. Until then the run checks its storage and its hosts.
    pub has_begun: bool,
    /// Whether the process goes on.
    pub in_progress: bool,
    /// The exit code of the process; `null` if it goes on, or a signal ended it.
    pub exit_code: Option<i32>,
    /// What the process said, if it has ended without a result.
    pub message: Option<String>,
}

/// Why a study is not started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotStarted {
    /// It is not possible now. Nothing has changed.
    Refused(String),
    /// The run has ended before it began to measure.
    Ended(String),
    /// The process goes on, and its run has not begun yet.
    Late(String),
    /// Its files or its process cannot be made.
    Failed(String),
}

impl NotStarted {
    /// A sentence for people.
    pub fn why(&self) -> &str {
        match self {
            NotStarted::Refused(why)
            | NotStarted::Ended(why)
            | NotStarted::Late(why)
            | NotStarted::Failed(why) => why,
        }
    }
}

/// Studies that this console starts, one at a time. Clones are the same.
#[derive(Debug, Clone)]
pub struct Studies(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    program: Result<PathBuf, String>,
    folder: Option<PathBuf>,
    begins: Duration,
    last: Mutex<Option<Started>>,
}

/// A run that was started.
#[derive(Debug, Clone)]
struct Started {
    id: String,
    files: Files,
    end: Option<End>,
}

/// How a process ended.
#[derive(Debug, Clone)]
struct End {
    code: Option<i32>,
    message: String,
}

impl Studies {
    /// Starts studies with this same program, and keeps their runs in `folder`, which need not be there. Without a folder it starts none.
    pub fn new(folder: Option<PathBuf>) -> Studies {
        let program = std::env::current_exe().map_err(|e| e.to_string());
        Studies::with(program, folder, BEGINS)
    }

    fn with(program: Result<PathBuf, String>, folder: Option<PathBuf>, begins: Duration) -> Studies {
        Studies(Arc::new(Inner { program, folder, begins, last: Mutex::default() }))
    }

    fn last(&self) -> MutexGuard<'_, Option<Started>> {
        self.0.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The folder of the run of this id, if it was started last and has begun. The index of runs may not have it yet.
    pub fn find(&self, id: &str) -> Option<PathBuf> {
        let started = self.last().clone().filter(|started| started.id == id)?;
        started.files.has_begun().then_some(started.files.run)
    }

    /// The run that was started last.
    pub fn view(&self) -> Option<StartedView> {
        let started = self.last().clone()?;
        let has_begun = started.files.has_begun();
        let end = started.end.as_ref();
        Some(StartedView {
            id: started.id,
            name: started.files.name,
            has_begun,
            in_progress: end.is_none(),
            exit_code: end.and_then(|end| end.code),
            message: end.filter(|end| !matches!(end.code, Some(0 | 3))).map(|end| end.message.clone()),
        })
    }

    /// Writes the study of this draft and starts its run, on behalf of `by`. Waits, up to 20 s, until the run has begun. It reads and writes
    /// files: it is none for a thread that must go on. The caller has checked that everything that the study needs is permitted.
    ///
    /// # Errors
    /// The run has not begun. A run that this console started and that has not ended is a reason.
    pub fn start(&self, draft: &Draft, by: &str) -> Result<Begun, NotStarted> {
        let Some(folder) = &self.0.folder else {
            return Err(NotStarted::Refused("this console has no folder of runs".into()));
        };
        let program = self.0.program.clone();
        let program = program
            .map_err(|why| NotStarted::Failed(format!("the path of this program is unknown: {why}")))?;
        let files = {
            // The lock is held until the run is noted: of two starts at once, one is refused.
            let mut last = self.last();
            if let Some(started) = last.as_ref().filter(|started| started.end.is_none()) {
                return Err(NotStarted::Refused(format!(
                    "the run {} that this console started is in progress: wait for its end, or stop it",
                    started.files.name
                )));
            }
            let files = Files::make(folder, &draft.name, &draft.text, by);
            let files = files.map_err(|why| NotStarted::Failed(format!("nothing is started: {why}")))?;
            let started = Started { id: id_of(&files.run), files: files.clone(), end: None };
            let before = last.replace(started);
            if let Err(why) = self.spawn(&program, &files, &draft.run_options) {
                *last = before;
                files.remove();
                return Err(NotStarted::Failed(format!("nothing is started: {why}")));
            }
            files
        };
        self.wait(&files)
    }

    /// Starts the process, and a thread that waits for its end. The arguments are separate words that no shell reads.
    fn spawn(&self, program: &Path, files: &Files, options: &[String]) -> std::io::Result<()> {
        let mut command = Command::new(program);
        command.arg("run").arg(&files.study).arg("--out").arg(&files.run).args(options);
        // This process has taken it from its environment.
        command.envs(loadline_proxmox::taken_variable());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(files.log()?).process_group(0);
        let (send, spawned) = std::sync::mpsc::channel();
        let (studies, files) = (self.clone(), files.clone());
        // The thread comes first: without one, no process is left that nothing waits for.
        std::thread::Builder::new().name("study".into()).spawn(move || {
            let mut child = match command.spawn() {
                Ok(child) => child,
                Err(e) => return drop(send.send(Err(e))),
            };
            drop(command);
            let _ = send.send(Ok(()));
            studies.ended(&files, child.wait());
        })?;
        spawned.recv().map_err(std::io::Error::other)?
    }

    /// Notes how the process ended.
    fn ended(&self, files: &Files, status: std::io::Result<ExitStatus>) {
        let code = status.as_ref().ok().and_then(ExitStatus::code);
        let how = match status {
            Ok(status) => status.to_string(),
            Err(e) => format!("its end is unknown: {e}"),
        };
        let message = files.said().unwrap_or(how);
        if let Some(started) = self.last().as_mut() {
            started.end = Some(End { code, message });
        }
    }

    /// Waits until the run has begun, or its process has ended.
    fn wait(&self, files: &Files) -> Result<Begun, NotStarted> {
        let until = Instant::now() + self.0.begins;
        loop {
            // A process that has ended may have begun a run before.
            let end = self.last().as_ref().and_then(|started| started.end.clone());
            if files.has_begun() {
                let id = id_of(&files.run);
                return Ok(Begun { page: format!("/runs/{id}"), id });
            }
            if let Some(End { code, message }) = end {
                files.remove();
                let code = code.map_or("a signal".into(), |code| format!("exit code {code}"));
                return Err(NotStarted::Ended(format!(
                    "the run ended before it began to measure ({code}): {message}"
                )));
            }
            if Instant::now() >= until {
                return Err(NotStarted::Late(format!(
                    "the run {} is still checking its storage and its hosts. It goes on, and is in the list of runs once it has begun",
                    files.name
                )));
            }
            std::thread::sleep(POLL);
        }
    }
}
