//! Which process works in a run's folder: a lock that the kernel removes with the process.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::error::StudyError;
use crate::folder::regular;

/// Its name in the run's folder.
pub(super) const LOCK: &str = "lock";
/// How often the lock is tried: another program may hold it for a moment, to see whether the run is in progress.
const TRIES: u32 = 5;
/// The time between two tries.
const PAUSE: Duration = Duration::from_millis(20);

/// Two controllers never work in one folder. The lock ends with the process, however the process ends.
///
/// The error names the process that works in the folder.
pub(crate) fn lock(folder: &Path) -> Result<Flock<File>, StudyError> {
    let path = folder.join(LOCK);
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(|e| StudyError::io("open", &path, &e))?;
    for left in (0..TRIES).rev() {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(mut lock) => {
                // For the message below only; the lock itself is the kernel's.
                let _ = lock
                    .set_len(0)
                    .and_then(|()| lock.rewind())
                    .and_then(|()| writeln!(lock, "{}", std::process::id()));
                return Ok(lock);
            }
            Err((returned, Errno::EWOULDBLOCK)) if left > 0 => {
                file = returned;
                std::thread::sleep(PAUSE);
            }
            Err((mut returned, Errno::EWOULDBLOCK)) => {
                let mut holder = String::new();
                let _ = returned.read_to_string(&mut holder);
                return Err(StudyError::usage(format!(
                    "another loadline works in {} (process {}): wait until that process ends, or stop it",
                    folder.display(),
                    holder.trim()
                )));
            }
            Err((_, errno)) => return Err(StudyError::io("lock", &path, &errno.into())),
        }
    }
    unreachable!("the last try returns")
}

/// Whether a process works in the run's folder at this moment. It holds the lock itself for some microseconds, shared with other callers,
/// and changes no file. `false` if there is no lock, or the lock cannot be read.
pub fn is_in_use(folder: &Path) -> bool {
    let path = folder.join(LOCK);
    let Ok(file) = regular::open(&path) else { return false };
    matches!(Flock::lock(file, FlockArg::LockSharedNonblock), Err((_, Errno::EWOULDBLOCK)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_in_use_while_a_process_has_its_lock_and_a_look_at_it_keeps_no_process_out() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!is_in_use(folder.path()), "there is no lock");
        let held = lock(folder.path()).unwrap();
        assert!(is_in_use(folder.path()));
        let refused = lock(folder.path()).unwrap_err().message;
        assert!(refused.contains(&format!("process {}", std::process::id())), "{refused}");
        drop(held);
        assert!(!is_in_use(folder.path()));
        // A look takes the lock for a moment: a process that begins in that moment tries again.
        let looking = File::open(folder.path().join(LOCK)).unwrap();
        let looking = Flock::lock(looking, FlockArg::LockSharedNonblock).unwrap();
        let ends = std::thread::spawn(move || {
            std::thread::sleep(PAUSE);
            drop(looking);
        });
        lock(folder.path()).unwrap();
        ends.join().unwrap();
    }
}
