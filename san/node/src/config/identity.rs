//! Whether a file is still the one that was opened.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What is at a path: the device and the number of a file's inode. `None` if there is nothing, or nothing that can be read.
///
/// No other file has the number of an inode while the file is open somewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity(Option<(u64, u64)>);

impl Identity {
    /// What is there now.
    pub(super) fn of(path: &Path) -> Identity {
        Identity(std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino())))
    }

    /// What has happened, if something else is there now. Where nothing was, anything may be.
    pub(super) fn differs(self, now: Identity) -> Option<&'static str> {
        match (self.0, now.0) {
            (None, _) => None,
            (Some(_), None) => Some("was deleted or moved away"),
            (Some(opened), Some(there)) => (opened != there).then_some("was replaced by another file"),
        }
    }
}
