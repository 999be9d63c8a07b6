//! Whether a run's folder has changed since it was read, by the times of its files.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use loadline_study::folder::lock::is_in_use;

use crate::runs::notes;

/// Files of a run that change when it goes on.
const OF_RUN: [&str; 3] = ["run.json", "events.jsonl", "steps"];

/// What a run's folder looked like. A folder with the same stamp has the same content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamp {
    /// Of the files that the run writes, and whether a process works in its folder.
    pub run: String,
    /// Of the file with tags and a note.
    pub notes: String,
}

impl Stamp {
    /// What the stamp of a run ends with while a process works in its folder.
    pub const IN_USE: &str = "in use";

    /// The stamp of a folder; `None` if it is no folder of a run. A folder that cannot be searched counts as one of a run.
    pub fn of(folder: &Path) -> Option<Stamp> {
        let [manifest, events, steps] = OF_RUN.map(|name| of_file(&folder.join(name)));
        let is_in_use = is_in_use(folder);
        // What has the rest and no manifest has lost it, unless it is being made at this moment.
        let has_lost = steps != MISSING && of_file(&folder.join("study.toml")) != MISSING && !is_in_use;
        if manifest == MISSING && !has_lost {
            return None;
        }
        let run = format!("{manifest} {events} {steps} {}", if is_in_use { Stamp::IN_USE } else { "" });
        Some(Stamp { run, notes: of_file(&folder.join(notes::FILE)) })
    }
}

const MISSING: &str = "-";

/// Size, inode and the time of the last change: of the content, the name or the permissions.
fn of_file(path: &Path) -> String {
    match fs::metadata(path) {
        Ok(of) => format!("{}:{}:{}.{}", of.len(), of.ino(), of.ctime(), of.ctime_nsec()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => MISSING.into(),
        Err(e) => e.kind().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_one_of_a_run_if_it_has_a_manifest_or_has_lost_it() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Stamp::of(folder.path()), None);
        fs::write(folder.path().join("study.toml"), "").unwrap();
        assert_eq!(Stamp::of(folder.path()), None);
        fs::create_dir(folder.path().join("steps")).unwrap();
        assert!(Stamp::of(folder.path()).is_some(), "it has lost its manifest");
        let lost = Stamp::of(folder.path());
        fs::write(folder.path().join("run.json"), "{}").unwrap();
        let whole = Stamp::of(folder.path()).unwrap();
        assert_ne!(lost.as_ref(), Some(&whole));
        assert_eq!(Stamp::of(folder.path()), Some(whole.clone()), "nothing has changed");
        fs::write(folder.path().join(notes::FILE), "{}").unwrap();
        let noted = Stamp::of(folder.path()).unwrap();
        assert!(noted.run == whole.run && noted.notes != whole.notes);
    }
}
