//! The file that durable writes are measured on: made for that, and removed again.

use std::path::{Path, PathBuf};

use loadline_base::units::ByteSize;
use loadline_load::target::{make_file, remove_file};
use loadline_load::{FileIdentity, LoadError};

/// How large it is.
pub const SIZE: ByteSize = ByteSize(32 << 20);

/// A file that was made to be written to.
#[derive(Debug, Clone)]
pub struct Scratch {
    /// Where it is.
    pub file: PathBuf,
    /// Which file it is: no other is written to.
    pub identity: FileIdentity,
}

/// Where the file of this process lies in a folder.
pub fn place(folder: &Path) -> PathBuf {
    folder.join(format!("loadline-doctor-{}.img", std::process::id()))
}

/// A scratch file that is removed when this is dropped.
#[derive(Debug)]
pub struct Removed(Scratch);

impl Removed {
    /// Makes it in a folder, which must exist.
    pub fn make(folder: &Path) -> Result<Removed, LoadError> {
        let file = place(folder);
        let identity = make_file(&file, SIZE)?;
        Ok(Removed(Scratch { file, identity }))
    }

    /// The file.
    pub fn scratch(&self) -> &Scratch {
        &self.0
    }
}

impl Drop for Removed {
    fn drop(&mut self) {
        // What cannot be removed stays under a name that says whose it is.
        let _ = remove_file(&self.0.file, self.0.identity);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_gone_afterwards_and_needs_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let made = Removed::make(folder.path()).unwrap();
        assert!(made.scratch().file.exists());
        assert!(Removed::make(folder.path()).is_err(), "another process of this number would be told");
        drop(made);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        let why = Removed::make(Path::new("/nowhere/at/all")).unwrap_err();
        assert!(why.message.contains("/nowhere/at/all does not exist"), "{why}");
    }
}
