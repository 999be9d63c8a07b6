//! Machines boot in turns: as many at once as the host has processors, so that each boots as fast as it would alone.

use std::fs::{self, File};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};

use crate::error::GuestError;

const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A turn, which ends when it is dropped, or with the process.
#[derive(Debug)]
pub struct Turn {
    _lock: Flock<File>,
}

/// Waits for a turn among the processes that use this folder, which is made.
pub fn wait(folder: &Path, limit: Duration) -> Result<Turn, GuestError> {
    let failed = |e: std::io::Error| {
        GuestError::usage(format!(
            "the turns of virtual machines cannot be kept in {}: {e}",
            folder.display()
        ))
    };
    fs::create_dir_all(folder).map_err(failed)?;
    let at_once = thread::available_parallelism().map_or(1, usize::from);
    let deadline = Instant::now() + limit;
    loop {
        for number in 0..at_once {
            let path = folder.join(format!("boot-{number}"));
            let file = File::options().write(true).create(true).truncate(false).open(path).map_err(failed)?;
            if let Ok(lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                return Ok(Turn { _lock: lock });
            }
        }
        if Instant::now() > deadline {
            return Err(GuestError::failed(format!(
                "other virtual machines were still booting after {limit:?}"
            )));
        }
        thread::sleep(LOOK_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_turns_as_processors_and_a_turn_that_ends_is_free() {
        let folder = tempfile::tempdir().unwrap();
        let at_once = thread::available_parallelism().map_or(1, usize::from);
        let mut turns: Vec<Turn> =
            (0..at_once).map(|_| wait(folder.path(), Duration::ZERO).unwrap()).collect();
        let error = wait(folder.path(), Duration::from_millis(50)).unwrap_err();
        assert!(error.message.contains("still booting"), "{error}");
        turns.pop();
        wait(folder.path(), Duration::ZERO).unwrap();
    }
}
