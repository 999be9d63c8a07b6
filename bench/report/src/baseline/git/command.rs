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

/// What git's own programs set for those that they start, such as hooks: with these git would use another repository than
/// that of the folder.
const OTHER_REPOSITORY: [&str; 7] = [
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_DIR",
    "GIT_INDEX_FILE",
    "GIT_NAMESPACE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_WORK_TREE",
];

/// `git`, in the repository of the current folder.
fn program() -> Command {
    let mut command = Command::new("git");
    for name in OTHER_REPOSITORY {
        command.env_remove(name);
    }
    command
}

/// Runs `git` in the current folder. Returns what it printed.
pub(super) fn git(words: &[&str], input: &[u8]) -> Result<Vec<u8>, Fault> {
    let mut command = program();
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
    let mut command = program();
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
    Err(Fault::Ended(match reason(&String::from_utf8_lossy(&output.stderr)) {
        "" => format!("git ended with {}", output.status),
        line => format!("git: {line}"),
    }))
}

/// The line of a message that says why: the first that begins with `fatal:` or `error:`, else the first. Hints and warnings
/// may stand before it.
fn reason(message: &str) -> &str {
    let lines = || message.lines().map(str::trim).filter(|line| !line.is_empty());
    let stated = |prefix: &str| lines().find_map(|line| line.strip_prefix(prefix));
    stated("fatal:").or_else(|| stated("error:")).or_else(|| lines().next()).unwrap_or_default().trim()
}

/// The error of something that cannot be done as asked.
pub(super) fn refused(reference: &str, why: &str) -> StudyError {
    StudyError::usage(format!("baselines: git:{reference}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_the_line_that_states_an_error() {
        for (message, expected) in [
            ("hint: x\nwarning: y\nfatal: no\n", "no"),
            ("warning: y\nerror: cannot lock ref\nhint: z\n", "cannot lock ref"),
            ("\nplain\nmore\n", "plain"),
            ("error: first\nfatal: last", "last"),
            ("", ""),
        ] {
            assert_eq!(reason(message), expected, "{message}");
        }
    }

    #[test]
    fn the_repository_is_that_of_the_folder_even_in_a_hook() {
        let command = program();
        let removed: Vec<_> = command.get_envs().filter(|(_, value)| value.is_none()).collect();
        for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
            assert!(removed.iter().any(|(removed, _)| *removed == name), "{name}");
        }
    }
}
