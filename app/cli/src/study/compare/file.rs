//! Where a page is written: nothing is overwritten but an earlier one, and that only by a whole one.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use loadline_study::StudyError;

use crate::output::result_file::replace;

/// A regular file, or one that is not there yet.
#[derive(Debug)]
pub(crate) struct Place {
    option: &'static str,
    /// Its folder's true path and its name; links to files are resolved.
    path: PathBuf,
    head: &'static str,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.display().fmt(f)
    }
}

impl Place {
    /// Checks that the file which `option` names can be written, and that nothing is lost by it but an earlier page:
    /// one that begins with `head`. The error is one of usage.
    pub(crate) fn check(option: &'static str, path: &Path, head: &'static str) -> Result<Place, StudyError> {
        let refuse = |why: &str| StudyError::usage(format!("{option} {} {why}", path.display()));
        let resolved = match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => return Err(refuse("is a directory: name a file in it")),
            Ok(metadata) if !metadata.is_file() => return Err(refuse("is no regular file: name one")),
            Ok(metadata) => {
                if metadata.len() > 0 && !begins_with(path, head) {
                    let why = "exists, and was not written by this option: it is not overwritten. Name another \
                               file, or move it away";
                    return Err(refuse(why));
                }
                fs::canonicalize(path).map_err(|e| refuse(&format!("cannot be checked: {e}")))?
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                if fs::symlink_metadata(path).is_ok() {
                    return Err(refuse("is a link that leads nowhere: name a file"));
                }
                let name = path.file_name().ok_or_else(|| refuse("names no file"))?;
                let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
                let folder = fs::canonicalize(folder).map_err(|e| {
                    refuse(&format!("cannot be made: its folder: {e}. Make the folder first"))
                })?;
                folder.join(name)
            }
            Err(e) => return Err(refuse(&format!("cannot be checked: {e}"))),
        };
        let folder = resolved.parent().unwrap_or(Path::new("/"));
        nix::unistd::eaccess(folder, nix::unistd::AccessFlags::W_OK | nix::unistd::AccessFlags::X_OK)
            .map_err(|e| {
                refuse(&format!("cannot be made in {}: {}; name another place", folder.display(), e.desc()))
            })?;
        Ok(Place { option, path: resolved, head })
    }

    /// Whether it is the same file.
    pub(crate) fn is_same(&self, other: &Place) -> bool {
        self.path == other.path
    }

    /// Removes the earlier page, if there is one. The file was checked to be one.
    pub(crate) fn remove_earlier(&self) -> Result<(), StudyError> {
        match fs::remove_file(&self.path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                let (option, path) = (self.option, self.path.display());
                let why =
                    format!("{option} {path}: the earlier page cannot be removed: {e}. Name another file");
                Err(StudyError::usage(why))
            }
            _ => Ok(()),
        }
    }

    /// Writes the page; the file is there as a whole, or as it was before.
    pub(crate) fn write(&self, page: &str) -> Result<(), StudyError> {
        debug_assert!(page.starts_with(self.head), "it would not be known again");
        replace(&self.path, page).map_err(|e| {
            let (option, path) = (self.option, self.path.display());
            StudyError::failed(format!("{option} {path} cannot be written: {e}. Name another place"))
        })
    }
}

fn begins_with(path: &Path, head: &str) -> bool {
    let mut begin = vec![0; head.len()];
    File::open(path).and_then(|mut file| file.read_exact(&mut begin)).is_ok() && begin == head.as_bytes()
}
