//! Brings the index up to date with the run folders.

use std::collections::HashMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::runs::entry::{Entry, set_notes};
use crate::runs::index::{Index, IndexFault};
use crate::runs::notes;
use crate::runs::query;
use crate::runs::stamp::Stamp;

/// A run that goes on is read again after this time at the earliest.
const AGAIN: Duration = Duration::from_secs(5);
/// Or after so many times what it took to read it.
const TIMES: u32 = 20;

/// Looks for changes in folders of runs.
#[derive(Debug, Default)]
pub(super) struct Scanner {
    /// Runs that went on when they were read: when they are read again at the earliest.
    waits: HashMap<PathBuf, Instant>,
}

/// What a scan reports while it goes on.
pub(super) trait Report {
    /// A folder of runs was listed, or cannot be: then the text says why.
    fn listed(&self, folder: &Path, fault: Option<String>);
    /// So many runs are still to be read.
    fn unread(&self, runs: usize);
}

impl Scanner {
    /// Reads each run that is new or has changed, and removes runs that are gone. A folder that cannot be listed keeps its runs in the index.
    pub(super) fn scan(
        &mut self,
        folders: &[PathBuf],
        index: &Index,
        report: &dyn Report,
    ) -> Result<(), IndexFault> {
        let mut changed: Vec<(&PathBuf, PathBuf, Stamp, bool)> = Vec::new();
        for folder in folders {
            let Some(paths) = list(folder, report) else { continue };
            let mut known = index.stamps(&folder.display().to_string())?;
            for path in paths {
                let Some(stamp) = Stamp::of(&path) else { continue };
                let (is_same_run, is_same) = match known.remove(&path) {
                    Some(before) => (before.run == stamp.run, before == stamp),
                    None => (false, false),
                };
                let waits = self.waits.get(&path).is_some_and(|until| Instant::now() < *until);
                if !is_same && (is_same_run || !waits) {
                    changed.push((folder, path, stamp, is_same_run));
                }
            }
            if !known.is_empty() {
                index.remove(known.keys())?;
                self.waits.retain(|path, _| !known.contains_key(path));
            }
        }
        let all = changed.len();
        for (done, (folder, path, stamp, is_same_run)) in changed.into_iter().enumerate() {
            report.unread(all - done);
            let folder = folder.display().to_string();
            if is_same_run && read_notes(index, &folder, &path, &stamp)? {
                continue;
            }
            let begun = Instant::now();
            let is_in_use = stamp.run.ends_with(Stamp::IN_USE);
            let entry = Entry::read(&path, is_in_use);
            self.waits.remove(&path);
            if is_in_use {
                self.waits.insert(path.clone(), Instant::now() + AGAIN.max(begun.elapsed() * TIMES));
            }
            index.put(&folder, &path, &stamp, &entry)?;
        }
        report.unread(0);
        Ok(())
    }
}

/// Reads the notes of a run that has not changed otherwise. `false` if the run is not in the index.
pub(super) fn read_notes(
    index: &Index,
    folder: &str,
    path: &Path,
    stamp: &Stamp,
) -> Result<bool, IndexFault> {
    let folders = serde_json::to_string(&[folder]).expect("it is a text");
    let known = query::detail(&index.reads(), &folders, &crate::runs::entry::id_of(path))?;
    let Some(mut run) = known.map(|known| known.run) else { return Ok(false) };
    set_notes(&mut run, notes::read(path));
    index.put_notes(path, stamp, &run)?;
    Ok(true)
}

/// The folders in this one, or `None`; and reports whether it can be listed.
pub(super) fn list(folder: &Path, report: &dyn Report) -> Option<Vec<PathBuf>> {
    let (paths, fault) = match listed(folder) {
        Ok(paths) => (Some(paths), None),
        Err(e) if e.kind() == ErrorKind::NotFound => (None, Some("there is no such folder yet".into())),
        Err(e) => (None, Some(e.to_string())),
    };
    report.listed(folder, fault);
    paths
}

/// The folders in this one. Links to folders are among them.
fn listed(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            paths.push(path);
        }
    }
    Ok(paths)
}
