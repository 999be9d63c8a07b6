//! A folder in memory, for tests that write many small files: on a disk, most of their time is waiting for it.

use std::path::Path;

use tempfile::TempDir;

/// A folder of its own, which is removed when it is dropped. On a disk if this machine has no place in memory for files.
pub(crate) fn folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.expect("there is room")
}
