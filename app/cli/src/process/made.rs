//! Files made for a command: they go when it ends, however it ends.
//!
//! They are known to the whole process, so that they also go when a second Ctrl-C ends it on the spot.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use loadline_base::units::ByteSize;
use loadline_load::target::{make_file, remove_file};
use loadline_load::{FileIdentity, LoadError, Verify};

use crate::output::eprint_line;

static FILES: Mutex<Vec<MadeFile>> = Mutex::new(Vec::new());
/// Folders that go with all that is in them.
static FOLDERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

struct MadeFile {
    path: PathBuf,
    /// Which file it is: any other in its place stays.
    identity: FileIdentity,
}

impl MadeFile {
    fn remove(self) {
        if let Err(error) = remove_file(&self.path, self.identity) {
            eprint_line!("loadline: {error}");
        }
    }
}

/// The files of one command. Dropping it removes them.
pub(crate) struct Made;

impl Made {
    /// Makes a file as a disk.
    pub(crate) fn disk(&mut self, path: &Path, size: ByteSize) -> Result<FileIdentity, LoadError> {
        // Held meanwhile: a file that is made is known.
        let mut files = files();
        let identity = make_file(path, size)?;
        files.push(MadeFile { path: path.to_path_buf(), identity });
        Ok(identity)
    }

    /// One journal for each of `targets`: those named, or temporary ones. `new_disks`: the targets are made as new
    /// files, of which no journal can know yet.
    pub(crate) fn journals(
        &mut self,
        named: &[PathBuf],
        targets: usize,
        new_disks: bool,
    ) -> Result<Verify, LoadError> {
        if named.is_empty() {
            let folder = std::env::temp_dir();
            let journals = (0..targets).map(|_| self.temporary_journal(&folder)).collect::<Result<_, _>>()?;
            return Ok(Verify { journals });
        }
        if named.len() != targets {
            return Err(LoadError::usage(format!(
                "{targets} targets need {targets} --journal options, but {} are given",
                named.len()
            )));
        }
        if let Some(known) = named.iter().find(|path| new_disks && path.exists()) {
            return Err(LoadError::usage(format!(
                "journal {} exists already, but --create needs a new journal for the new file: name a file that does not exist",
                known.display()
            )));
        }
        Ok(Verify { journals: named.to_vec() })
    }

    fn temporary_journal(&mut self, folder: &Path) -> Result<PathBuf, LoadError> {
        // Held meanwhile, as above.
        let mut files = files();
        let (path, identity) = loadline_load::temporary_journal(folder)?;
        files.push(MadeFile { path: path.clone(), identity });
        Ok(path)
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        files().drain(..).for_each(MadeFile::remove);
    }
}

/// A folder for as long as a command runs. Dropping it removes it with all that is in it.
pub(crate) struct PassingFolder(PathBuf);

impl PassingFolder {
    /// It need not be there yet; a process that makes it later makes it for this command alone.
    pub(crate) fn new(path: PathBuf) -> PassingFolder {
        FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).push(path.clone());
        PassingFolder(path)
    }
}

impl PassingFolder {
    /// The folder stays, with all that is in it.
    pub(crate) fn keep(self) {
        FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).retain(|folder| *folder != self.0);
        std::mem::forget(self);
    }
}

impl Drop for PassingFolder {
    fn drop(&mut self) {
        FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).retain(|folder| *folder != self.0);
        remove_folder(&self.0);
    }
}

fn remove_folder(path: &Path) {
    if path.exists()
        && let Err(why) = std::fs::remove_dir_all(path)
    {
        eprint_line!("loadline: {}: {why}", path.display());
    }
}

/// Removes everything now, and lets nothing more be made: the process is about to end.
pub(crate) fn remove_for_good() {
    let mut files = files();
    files.drain(..).for_each(MadeFile::remove);
    std::mem::forget(files);
    let folders = FOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
    folders.iter().for_each(|folder| remove_folder(folder));
    std::mem::forget(folders);
}

fn files() -> MutexGuard<'static, Vec<MadeFile>> {
    FILES.lock().unwrap_or_else(PoisonError::into_inner)
}
