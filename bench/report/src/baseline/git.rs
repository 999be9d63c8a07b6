//! Results that are kept on a git ref: each is a commit, whose tree holds all that is kept. Only objects and this one ref
//! are written, never the work tree, the index or HEAD. A commit is made on the tip that was read, and the ref moves only
//! if it still is there; otherwise the addition is made again on the new tip.

mod command;
mod tree;

use std::collections::BTreeSet;
use std::time::Duration;

use loadline_study::StudyError;

use crate::baseline::kept::{PINNED_FILE, pinned_text};
use crate::baseline::name::BaselineName;
use crate::baseline::store::{Added, Addition, BaselineStore, pins};

pub use command::commit_of;
use command::{Fault, git, git_line, refused};
use tree::{Entry, Tree};

/// The file that says that a ref was made by Loadline.
const MARKER: &str = "loadline-baselines.txt";
const MARKER_TEXT: &str = "Results that `loadline run --baseline` keeps. Each commit adds one.\n";
/// Folders below `refs/` that git's own commands write, and some of which it reads as something else.
const OF_GIT: [&str; 9] =
    ["bisect", "notes", "original", "prefetch", "remotes", "replace", "rewritten", "stash", "tags"];
/// How often an addition is made again because another process moved the ref.
const ATTEMPTS: u32 = 20;
/// How often a check is made again for the same reason.
const CHECKS: u32 = 5;
/// The longest pause before the next attempt.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// A ref of the repository of the current folder.
#[derive(Debug)]
pub struct GitStore {
    /// Its full name, such as `refs/loadline/baselines`.
    reference: String,
}

impl GitStore {
    /// A ref by its full name, or a branch by its own. The error is one of usage: no git, no repository, a name that git
    /// refuses, a branch that is checked out.
    pub fn open(given: &str) -> Result<GitStore, StudyError> {
        let here = |fault: Fault| {
            let why = fault.why();
            refused(given, &format!("{why}. Run in a git repository, or name a folder with --baselines"))
        };
        git(&["rev-parse", "--git-dir"], b"").map_err(here)?;
        let is_full = given.starts_with("refs/");
        let reference = if is_full { given.to_string() } else { format!("refs/heads/{given}") };
        let is_name = match is_full {
            true => git(&["check-ref-format", &reference], b"").is_ok(),
            false => git_line(&["check-ref-format", "--branch", given], b"").is_ok_and(|name| name == given),
        };
        if !is_name {
            let advice =
                "git does not accept this name. Give a branch, or a ref such as refs/loadline/baselines";
            return Err(refused(given, advice));
        }
        let is_of_git = |name: &&str| {
            reference.strip_prefix("refs/").and_then(|rest| rest.split('/').next()) == Some(name)
        };
        if OF_GIT.iter().any(is_of_git) {
            let advice = "git itself writes there (fetch, tag, stash, notes, replace, bisect, rebase). Give a branch, or a \
                          ref such as refs/loadline/baselines";
            return Err(refused(given, advice));
        }
        let trees = git_line(&["worktree", "list", "--porcelain"], b"").map_err(here)?;
        let is_checked_out = trees.lines().any(|line| line.strip_prefix("branch ") == Some(&reference));
        // A branch without a commit is checked out too, and no work tree says so.
        let head = git_line(&["symbolic-ref", "--quiet", "HEAD"], b"");
        if is_checked_out || head.is_ok_and(|head| head == reference) {
            let why = "this branch is checked out, and results would change it below the work tree. Give another \
                       branch, or a ref such as refs/loadline/baselines";
            return Err(refused(given, why));
        }
        Ok(GitStore { reference })
    }

    /// The commit that the ref is at; `None` if there is no such ref.
    fn tip(&self) -> Result<Option<String>, Fault> {
        let known = git_line(&["for-each-ref", "--format=%(refname) %(objectname)", &self.reference], b"")?;
        // A ref that is a folder of refs lists those.
        let exact = known.lines().find_map(|line| line.strip_prefix(&self.reference)?.strip_prefix(' '));
        Ok(exact.map(str::to_string))
    }

    /// The same, with the error of something that cannot be done as asked.
    fn known_tip(&self) -> Result<Option<String>, StudyError> {
        self.tip().map_err(|fault| refused(&self.reference, &fault.why()))
    }

    /// The tree of a commit of ours.
    fn tree(&self, tip: &str) -> Result<Tree, StudyError> {
        let tree = Tree::read(&format!("{tip}^{{tree}}"));
        let tree = tree.map_err(|fault| refused(&self.reference, &fault.why()))?;
        if tree.find(MARKER).is_none() {
            let why = format!(
                "it exists and has no file {MARKER}: Loadline did not make it, and does not write there. Give another ref"
            );
            return Err(refused(&self.reference, &why));
        }
        Ok(tree)
    }

    /// The files of a baseline in a tree.
    fn below(&self, tree: &Tree, baseline: &BaselineName) -> Result<Tree, StudyError> {
        match tree.find(baseline.as_str()) {
            None if !tree.has_other(baseline.as_str()) => Ok(Tree::default()),
            Some(entry) if entry.is_folder() => {
                Tree::read(&entry.hash).map_err(|fault| refused(&self.reference, &fault.why()))
            }
            _ => {
                let why =
                    format!("{baseline} is no folder there. Give another --baseline NAME, or another ref");
                Err(refused(&self.reference, &why))
            }
        }
    }

    /// A tree with nothing but what says that it is ours.
    fn empty() -> Result<Tree, Fault> {
        let mut tree = Tree::default();
        tree.put(Entry::file(MARKER, MARKER_TEXT.as_bytes())?);
        Ok(tree)
    }

    /// An update of the ref as far as it goes without one: objects can be written, and the ref can be locked.
    fn check_update(&self) -> Result<(), Fault> {
        let (tree, tip) = (Self::empty()?.write()?, self.tip()?);
        // No ref leads to this commit. That it can be made shows that git accepts the committer, and the time.
        let commit = commit(&tree, tip.as_deref(), "Results that are kept\n")?;
        let change = match tip {
            Some(tip) => format!("update {} {commit} {tip}\n", self.reference),
            None => format!("create {} {commit}\n", self.reference),
        };
        git(&["update-ref", "--stdin"], format!("start\n{change}prepare\nabort\n").as_bytes()).map(drop)
    }

    /// One attempt to add a result to what is at `tip`.
    fn attempt(
        &self,
        tip: Option<&str>,
        baseline: &BaselineName,
        addition: &Addition,
    ) -> Result<Attempt, StudyError> {
        let failed = |fault: Fault| failed(&self.reference, &fault.why());
        let mut root = match tip {
            Some(tip) => self.tree(tip)?,
            None => Self::empty().map_err(failed)?,
        };
        let mut files = self.below(&root, baseline)?;
        let is_new = files.find(&addition.file).is_none();
        let pinned = pins(&files.names().map(str::to_string).collect(), addition);
        let is_pinned = pinned.as_ref() == Some(&addition.file);
        if is_new {
            files.put(Entry::file(&addition.file, addition.text.as_bytes()).map_err(failed)?);
        }
        if let Some(pinned) = &pinned {
            files.put(Entry::file(PINNED_FILE, pinned_text(pinned).as_bytes()).map_err(failed)?);
        }
        let folder = Entry::folder(baseline.as_str(), &files).map_err(failed)?;
        if root.find(baseline.as_str()) == Some(&folder) {
            // The run is kept, and pinned if that is requested.
            return Ok(Attempt::Done(Added { is_new, is_pinned }));
        }
        root.put(folder);
        let tree = root.write().map_err(failed)?;
        let what = if is_pinned { "keep and pin" } else { "keep" };
        let message = format!("{baseline}: {what} {}\n", addition.file);
        let commit = commit(&tree, tip, &message).map_err(failed)?;
        // The old value "" says that there must be no such ref.
        let words = ["update-ref", "-m", message.trim(), &self.reference, &commit, tip.unwrap_or_default()];
        match git(&words, b"") {
            Ok(_) => Ok(Attempt::Done(Added { is_new, is_pinned })),
            Err(fault) => Ok(Attempt::NotMoved(fault)),
        }
    }
}

/// What became of an attempt.
enum Attempt {
    Done(Added),
    /// The ref did not move: another process moved it, is about to, or it cannot be written.
    NotMoved(Fault),
}

impl BaselineStore for GitStore {
    fn check(&self, baseline: &BaselineName, writes: bool) -> Result<(), StudyError> {
        if let Some(tip) = &self.known_tip()? {
            self.below(&self.tree(tip)?, baseline)?;
        }
        if !writes {
            return Ok(());
        }
        let mut last = None;
        for attempt in 0..CHECKS {
            match self.check_update() {
                Ok(()) => return Ok(()),
                // Another process may have moved the ref, or be about to.
                Err(fault) => last = Some(fault),
            }
            pause(attempt);
        }
        let why = last.map(|fault: Fault| fault.why()).unwrap_or_default();
        Err(refused(&self.reference, &format!("cannot be written: {why}")))
    }

    fn files(&self, baseline: &BaselineName) -> Result<BTreeSet<String>, StudyError> {
        let Some(tip) = self.known_tip()? else { return Ok(BTreeSet::new()) };
        let files = self.below(&self.tree(&tip)?, baseline)?;
        Ok(files.names().map(str::to_string).collect())
    }

    fn read(&self, baseline: &BaselineName, file: &str) -> Result<String, StudyError> {
        let object = format!("{}:{baseline}/{file}", self.reference);
        let bytes = git(&["cat-file", "blob", &object], b"");
        let bytes = bytes
            .map_err(|fault| refused(&self.reference, &format!("{baseline}/{file}: {}", fault.why())))?;
        // What is no text is refused as damaged where it is parsed.
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn add(&self, baseline: &BaselineName, addition: &Addition) -> Result<Added, StudyError> {
        let mut last = None;
        for attempt in 0..ATTEMPTS {
            let tip = self.tip().map_err(|fault| failed(&self.reference, &fault.why()))?;
            match self.attempt(tip.as_deref(), baseline, addition)? {
                Attempt::Done(added) => return Ok(added),
                Attempt::NotMoved(fault) => last = Some(fault),
            }
            pause(attempt);
        }
        let why = last.map(|fault| fault.why()).unwrap_or_default();
        Err(failed(&self.reference, &format!("the ref could not be moved in {ATTEMPTS} attempts: {why}")))
    }

    fn place(&self, baseline: &BaselineName, file: &str) -> String {
        format!("{}:{baseline}/{file}", self.reference)
    }
}

/// Waits before the next attempt. Processes that met wait for different times.
fn pause(attempt: u32) {
    let spread = u64::from(std::process::id() % 7 + 3);
    std::thread::sleep(Duration::from_millis(spread * u64::from(attempt + 1)).min(LONGEST_PAUSE));
}

/// Makes a commit on another, or one without a parent.
fn commit(tree: &str, parent: Option<&str>, message: &str) -> Result<String, Fault> {
    let parent: Vec<&str> = parent.iter().flat_map(|parent| ["-p", parent]).collect();
    git_line(&[&["commit-tree", tree], parent.as_slice()].concat(), message.as_bytes())
}

fn failed(reference: &str, why: &str) -> StudyError {
    StudyError::failed(format!("baselines: git:{reference} cannot be written: {why}"))
}
