//! Results that are kept in a folder. A file appears by a rename once it is on the disk.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use loadline_study::StudyError;
use loadline_study::folder::sealed::{sync_folder, write_durably};

use crate::baseline::kept::{PINNED_FILE, pinned_text};
use crate::baseline::name::BaselineName;
use crate::baseline::store::{Added, Addition, BaselineStore, pins};

/// A file that is longer was not written by us.
const LONGEST_FILE: u64 = 64 << 20;

/// A folder with a folder for each baseline.
#[derive(Debug)]
pub struct FolderStore {
    path: PathBuf,
}

impl FolderStore {
    /// At this path, which need not exist.
    pub fn new(path: impl Into<PathBuf>) -> FolderStore {
        FolderStore { path: path.into() }
    }

    fn of(&self, baseline: &BaselineName) -> PathBuf {
        self.path.join(baseline.as_str())
    }
}

impl BaselineStore for FolderStore {
    fn check(&self, baseline: &BaselineName, writes: bool) -> Result<(), StudyError> {
        let folder = self.of(baseline);
        for path in [&self.path, &folder] {
            match fs::metadata(path) {
                Ok(metadata) if metadata.is_dir() => {
                    fs::read_dir(path).map_err(|e| refused(path, &format!("cannot be read: {e}")))?;
                }
                Ok(_) => return Err(refused(path, "is a file, and a folder is needed there")),
                Err(e) if e.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(path).is_err() => {}
                Err(e) => return Err(refused(path, &format!("cannot be used: {e}"))),
            }
        }
        if !writes {
            return Ok(());
        }
        // Nothing is made before there is a result: the nearest folder that is there must take it.
        let absolute = std::path::absolute(&folder).map_err(|e| refused(&folder, &e.to_string()))?;
        let nearest = absolute.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
        use nix::unistd::{AccessFlags, eaccess};
        eaccess(nearest, AccessFlags::W_OK | AccessFlags::X_OK).map_err(|e| {
            refused(
                &folder,
                &format!("cannot be written: no file can be made in {}: {}", nearest.display(), e.desc()),
            )
        })
    }

    fn files(&self, baseline: &BaselineName) -> Result<BTreeSet<String>, StudyError> {
        let folder = self.of(baseline);
        let failed = |e: io::Error| refused(&folder, &format!("cannot be read: {e}"));
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
            Err(e) => return Err(failed(e)),
        };
        let mut files = BTreeSet::new();
        for entry in entries {
            let entry = entry.map_err(failed)?;
            files.extend(entry.file_name().into_string().ok());
        }
        Ok(files)
    }

    fn read(&self, baseline: &BaselineName, file: &str) -> Result<String, StudyError> {
        let path = self.of(baseline).join(file);
        let failed = |what: &str| StudyError::usage(format!("{} {what}", path.display()));
        let unreadable = |e: io::Error| failed(&format!("cannot be read: {e}"));
        // To open a pipe waits for its other end, and a device may have no end.
        if !fs::metadata(&path).map_err(unreadable)?.is_file() {
            return Err(failed("is no regular file: Loadline did not write it. Move it away"));
        }
        let mut bytes = Vec::new();
        let file = File::open(&path).map_err(unreadable)?;
        let length = file.take(LONGEST_FILE + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        if length as u64 > LONGEST_FILE {
            return Err(failed("is far too long: Loadline did not write it. Move it away"));
        }
        // What is no text is refused as damaged where it is parsed.
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn add(&self, baseline: &BaselineName, addition: &Addition) -> Result<Added, StudyError> {
        let folder = self.of(baseline);
        let failed = |e: io::Error| StudyError::failed(format!("cannot write {}: {e}", folder.display()));
        fs::create_dir_all(&folder).map_err(failed)?;
        // Two processes that both add the first result must not both pin theirs. Where the file system has no locks, the
        // later one is pinned.
        let lock = File::open(&folder).map_err(failed)?;
        let _ = lock.lock();
        let files = self.files(baseline)?;
        let is_new = !files.contains(&addition.file);
        if is_new {
            write_durably(&folder.join(&addition.file), addition.text.as_bytes())?;
        }
        let pinned = pins(&files, addition);
        if let Some(pinned) = &pinned {
            write_durably(&folder.join(PINNED_FILE), pinned_text(pinned).as_bytes())?;
        }
        let is_pinned = pinned.as_ref() == Some(&addition.file);
        sync_folder(&self.path)?;
        Ok(Added { is_new, is_pinned })
    }

    fn place(&self, baseline: &BaselineName, file: &str) -> String {
        self.of(baseline).join(file).display().to_string()
    }
}

fn refused(path: &Path, why: &str) -> StudyError {
    StudyError::usage(format!("baselines: {} {why}. Give another folder with --baselines", path.display()))
}
