//! The system's `git`, one command at a time.

use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use loadline_study::StudyError;

/// What `git` wrote when it failed.
#[derive(Debug)]
pub(super) enum Fault {
    /// It cannot be started.
    NotThere(io::Error),
    /// It ended with an error.
    Ended(String),
}

impl Fault {
    /// The reason, in one line.
    pub(super) fn why(&self) -> String {
        match self {
            Fault::NotThere(e) if e.kind() == io::ErrorKind::NotFound => {
                "git is not installed here, or not on the PATH".into()
            }
            Fault::NotThere(e) => format!("git cannot be started: {e}"),
            Fault::Ended(message) => message.clone(),
        }
    }
}

/// Runs `git` in the current folder. Returns what it printed.
pub(super) fn git(words: &[&str], input: &[u8]) -> Result<Vec<u8>, Fault> {
    let mut command = Command::new("git");
    // Commits need a name; that of the environment goes before these (GIT_AUTHOR_NAME and the like).
    command.args(["-c", "user.name=Loadline", "-c", "user.email=loadline@localhost"]);
    output(command.args(words), input)
}

/// The same, as one line of text.
pub(super) fn git_line(words: &[&str], input: &[u8]) -> Result<String, Fault> {
    git(words, input).map(|bytes| String::from_utf8_lossy(&bytes).trim().to_string())
}

/// The commit that is checked out in the work tree of a folder; `None` if it is in none.
pub fn commit_of(folder: &Path) -> Option<String> {
    let mut command = Command::new("git");
    command.arg("-C").arg(folder).args(["rev-parse", "--verify", "--quiet", "HEAD^{commit}"]);
    let commit = String::from_utf8(output(&mut command, b"").ok()?).ok()?.trim().to_string();
    (!commit.is_empty()).then_some(commit)
}

fn output(command: &mut Command, input: &[u8]) -> Result<Vec<u8>, Fault> {
    let mut child = command
        .env("LC_ALL", "C")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(Fault::NotThere)?;
    // Every command that gets input reads all of it before it prints; one that fails early says why itself.
    if let Some(mut stdin) = child.stdin.take() {
        let _ = stdin.write_all(input);
    }
    let output = child.wait_with_output().map_err(Fault::NotThere)?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let message = String::from_utf8_lossy(&output.stderr);
    let line = message.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    Err(Fault::Ended(match line {
        "" => format!("git ended with {}", output.status),
        line => format!("git: {}", line.trim_start_matches("fatal: ")),
    }))
}

/// The error of something that cannot be done as asked.
pub(super) fn refused(reference: &str, why: &str) -> StudyError {
    StudyError::usage(format!("baselines: git:{reference}: {why}"))
}
