//! Waits for changes of the database by other connections, of this process and of others.
//!
//! SQLite reports a change by a number that only a query reads (`PRAGMA data_version`). The query takes some 60 us, so it does not run all the time: the
//! kernel reports writes to SQLite's log (inotify), and only then the number is read, several times, since SQLite changes it some time
//! after it has written to the log. Without a report the number is read now and then, because a report may be missing: reports are
//! limited for each user.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::super::ConfigError;
use super::super::identity::Identity;
use super::super::watch::Watch;
use super::{failed, is_same};

/// The time between two checks without a report.
const CHECKED: Duration = Duration::from_millis(200);
/// The same, if the kernel does not report writes.
const UNREPORTED: Duration = Duration::from_millis(25);
/// The time from a report to the second check. Each further one comes after twice the time.
const SOON: Duration = Duration::from_millis(1);

/// A connection that only checks whether others change the database.
pub(super) struct SqliteWatch {
    connection: Connection,
    path: PathBuf,
    /// The files that the store has opened.
    files: Vec<Identity>,
    /// The version of the data that was seen last; `None` if it could not be read.
    seen: Option<i64>,
    /// Reports of writes to the log; `None` if the kernel gives none.
    reports: Option<Inotify>,
    /// The longest time between two checks.
    longest: Duration,
    /// The time from the last check to the next one.
    interval: Duration,
    checked: Instant,
    /// When the files were last found to be those that were opened.
    identified: Instant,
}

impl SqliteWatch {
    /// Watches the database at this path, whose files are these.
    pub(super) fn open(path: &Path, files: &[Identity]) -> Result<SqliteWatch, ConfigError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags).map_err(failed)?;
        // What a store does when it is closed, it alone does: it knows whether the file is still the one that was opened.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(failed)?;
        let reports = reports(path).ok();
        let longest = if reports.is_some() { CHECKED } else { UNREPORTED };
        let now = Instant::now();
        let mut watch = SqliteWatch {
            connection,
            path: path.into(),
            files: files.to_vec(),
            seen: None,
            reports,
            longest,
            interval: longest,
            checked: now,
            identified: now,
        };
        watch.seen = watch.version();
        Ok(watch)
    }

    /// A number that changes when another connection changes the database (`PRAGMA data_version`). `None` if it cannot be read, or the
    /// files are found not to be those that were opened.
    fn version(&mut self) -> Option<i64> {
        self.checked = Instant::now();
        if self.seen.is_none() || self.checked - self.identified >= CHECKED {
            is_same(&self.path, &self.files).ok()?;
            self.identified = self.checked;
        }
        let mut query = self.connection.prepare_cached("PRAGMA data_version").ok()?;
        query.query_row([], |row| row.get(0)).ok()
    }

    /// Waits for so long, or until the kernel reports a write. Then the next check is due.
    fn sleep(&mut self, time: Duration) {
        let Some(reports) = &self.reports else { return std::thread::sleep(time) };
        // Whole milliseconds, and not zero: a wait that is a little too long delays a hint.
        let limit = PollTimeout::try_from(time.as_millis().max(1)).unwrap_or(PollTimeout::MAX);
        let mut files = [PollFd::new(reports.as_fd(), PollFlags::POLLIN)];
        if matches!(poll(&mut files, limit), Ok(1..)) {
            // What the reports say is known: something was written. If they cannot be read, there are no more of them.
            if reports.read_events().is_err() {
                self.reports = None;
                self.longest = UNREPORTED;
            }
            self.interval = Duration::ZERO;
        }
    }
}

/// Reports of the kernel when the log of a database is written.
fn reports(path: &Path) -> nix::Result<Inotify> {
    let reports = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    reports.add_watch(Path::new(&log), AddWatchFlags::IN_MODIFY)?;
    Ok(reports)
}

impl Watch for SqliteWatch {
    fn wait(&mut self, limit: Duration) -> bool {
        let begun = Instant::now();
        loop {
            if self.checked.elapsed() >= self.interval {
                self.interval = (self.interval * 2).clamp(SOON, self.longest);
                let version = self.version();
                if version != self.seen {
                    self.seen = version;
                    return true;
                }
            }
            let left = limit.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return false;
            }
            self.sleep(left.min(self.interval.saturating_sub(self.checked.elapsed())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ConfigStore;
    use crate::config::sqlite::SqliteStore;

    fn change(store: &mut SqliteStore, key: &str) {
        let change = super::super::super::Change { key: key.into(), expected: None, value: Some(vec![1]) };
        assert!(store.commit(&[change]).unwrap());
    }

    #[test]
    fn a_change_is_noticed_by_the_kernels_report() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cluster.db");
        let mut store = SqliteStore::create(&path).unwrap();
        let mut watch = SqliteWatch::open(&path, &store.files).unwrap();
        // Without a report it would be noticed in an hour.
        (watch.longest, watch.interval) = (Duration::from_secs(3600), Duration::from_secs(3600));
        assert!(!watch.wait(Duration::from_millis(10)));
        for key in ["one", "two", "three"] {
            change(&mut store, key);
            assert!(watch.wait(Duration::from_secs(20)), "{key} is noticed");
        }
    }

    #[test]
    fn a_change_is_noticed_without_reports() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cluster.db");
        let mut store = SqliteStore::create(&path).unwrap();
        let mut watch = SqliteWatch::open(&path, &store.files).unwrap();
        (watch.reports, watch.longest) = (None, UNREPORTED);
        assert!(!watch.wait(Duration::from_millis(10)));
        change(&mut store, "one");
        assert!(watch.wait(Duration::from_secs(20)));
    }
}
