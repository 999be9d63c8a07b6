//! The store as a SQLite file, for clusters whose nodes share a machine.

mod watch;

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, TransactionBehavior, params};

use super::identity::Identity;
use super::watch::Watch;
use super::{Change, ConfigError, ConfigStore, Stored};

/// In the header of the file: it is ours.
const APPLICATION: u32 = 0x4c4c_7361;
const FORMAT: u32 = 1;
/// How long a change waits for one of another process.
const BUSY: Duration = Duration::from_secs(3);

/// A connection to the file of a cluster's configuration.
#[derive(Debug)]
pub struct SqliteStore {
    connection: Connection,
    path: PathBuf,
    /// The files that were opened: the database, its log, and the index of that.
    files: Vec<Identity>,
}

/// What SQLite appends to the name of a database. All three files stay as they are while the database is open.
const FILES: [&str; 3] = ["", "-wal", "-shm"];

impl SqliteStore {
    /// Makes an empty one. Nothing may be there.
    pub fn create(path: &Path) -> Result<SqliteStore, ConfigError> {
        let shown = path.display().to_string();
        // Only the process that creates the file continues.
        match std::fs::File::create_new(path) {
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                return Err(ConfigError::Exists(shown));
            }
            Err(error) => return Err(ConfigError::Unavailable(format!("{shown}: {error}"))),
        }
        let before = Identity::of(path);
        let connection = connect(path)?;
        connection
            .execute_batch(&format!(
                "BEGIN IMMEDIATE;
                 CREATE TABLE entry (key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL) WITHOUT ROWID;
                 CREATE TABLE revision (number INTEGER NOT NULL);
                 INSERT INTO revision VALUES (0);
                 PRAGMA application_id = {APPLICATION};
                 PRAGMA user_version = {FORMAT};
                 COMMIT;"
            ))
            .map_err(failed)?;
        SqliteStore::opened(connection, path, before)
    }

    /// Opens one that is there.
    pub fn open(path: &Path) -> Result<SqliteStore, ConfigError> {
        let shown = path.display().to_string();
        if !path.exists() {
            return Err(ConfigError::Missing(shown));
        }
        let before = Identity::of(path);
        let connection = connect(path)?;
        let number = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, u32>(0));
        match number("application_id") {
            Ok(APPLICATION) => {}
            Ok(_) => return Err(ConfigError::NotOurs(shown)),
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::NotADatabase) => {
                return Err(ConfigError::NotOurs(shown));
            }
            Err(error) => return Err(failed(error)),
        }
        match number("user_version").map_err(failed)? {
            FORMAT => SqliteStore::opened(connection, path, before),
            found => Err(ConfigError::Format { path: shown, found, ours: FORMAT }),
        }
    }
}

impl SqliteStore {
    /// `before`: what was at the path before it was opened. Only if that is still there, it is what was opened.
    fn opened(connection: Connection, path: &Path, before: Identity) -> Result<SqliteStore, ConfigError> {
        let identity = |end: &str| Identity::of(&with_end(path, end));
        let files = vec![before, identity(FILES[1]), identity(FILES[2])];
        let store = SqliteStore { connection, path: path.to_owned(), files };
        store.check()?;
        Ok(store)
    }

    /// Fails if a file is not the one that was opened.
    fn check(&self) -> Result<(), ConfigError> {
        is_same(&self.path, &self.files)
    }
}

/// Fails if a file of the database at `path` is not the one that was `opened`.
fn is_same(path: &Path, opened: &[Identity]) -> Result<(), ConfigError> {
    for (end, opened) in FILES.iter().zip(opened) {
        let path = with_end(path, end);
        if let Some(what) = opened.differs(Identity::of(&path)) {
            return Err(ConfigError::Replaced { path: path.display().to_string(), what });
        }
    }
    Ok(())
}

/// The last process that closes a database writes its log into the file, and removes the log. If another file was put in place meanwhile,
/// into the same inode, that would be mixed with what was there: then the log is left, and belongs to nothing.
impl Drop for SqliteStore {
    fn drop(&mut self) {
        if let Err(why) = self.check() {
            tracing::error!(
                "{why}. Changes that were only in the write-ahead log (-wal) are not copied into a database file; they remain \
                 in the old log"
            );
            let _ = self.connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
        }
    }
}

fn with_end(path: &Path, end: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(end);
    path.into()
}

fn connect(path: &Path) -> Result<Connection, ConfigError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(failed)?;
    connection.busy_timeout(BUSY).map_err(failed)?;
    // Readers do not wait for a writer that was stopped; and what was committed survives a loss of power.
    let set = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;";
    match connection.execute_batch(set) {
        Ok(()) => Ok(connection),
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::NotADatabase) => {
            Err(ConfigError::NotOurs(path.display().to_string()))
        }
        Err(error) => Err(failed(error)),
    }
}

/// The error for one of SQLite: the file is busy or its disk fails, or the file can be reached and refuses.
fn failed(error: rusqlite::Error) -> ConfigError {
    let help = match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => "make room in the file system of the store's file",
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => {
            "let the user of the node write the store's file and the folder of the file"
        }
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            "the store's file is damaged: stop all nodes and restore a backup of the configuration"
        }
        _ => return ConfigError::Unavailable(error.to_string()),
    };
    ConfigError::Refused(format!("{error}: {help}"))
}

impl ConfigStore for SqliteStore {
    fn get(&mut self, key: &str) -> Result<Option<Stored>, ConfigError> {
        self.check()?;
        let mut query = self
            .connection
            .prepare_cached("SELECT value, version FROM entry WHERE key = ?1")
            .map_err(failed)?;
        let stored = |row: &rusqlite::Row| Ok(Stored { value: row.get(0)?, version: row.get(1)? });
        query.query_row([key], stored).optional().map_err(failed)
    }

    fn list(&mut self, prefix: &str) -> Result<(u64, Vec<(String, Stored)>), ConfigError> {
        self.check()?;
        // What is read within a transaction is of one moment.
        let transaction = self.connection.transaction().map_err(failed)?;
        let revision =
            transaction.query_row("SELECT number FROM revision", [], |row| row.get(0)).map_err(failed)?;
        let mut query = transaction
            .prepare_cached(
                "SELECT key, value, version FROM entry WHERE substr(key, 1, length(?1)) = ?1 ORDER BY key",
            )
            .map_err(failed)?;
        let stored =
            |row: &rusqlite::Row| Ok((row.get(0)?, Stored { value: row.get(1)?, version: row.get(2)? }));
        let rows = query.query_map([prefix], stored).map_err(failed)?;
        Ok((revision, rows.collect::<Result<_, _>>().map_err(failed)?))
    }

    fn commit(&mut self, changes: &[Change]) -> Result<bool, ConfigError> {
        self.check()?;
        let transaction =
            self.connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        let made = || -> rusqlite::Result<bool> {
            let mut version = transaction.prepare_cached("SELECT version FROM entry WHERE key = ?1")?;
            for change in changes {
                let is = version.query_row([&change.key], |row| row.get::<_, u64>(0)).optional()?;
                if is != change.expected {
                    return Ok(false);
                }
            }
            transaction.execute("UPDATE revision SET number = number + 1", [])?;
            let next: u64 = transaction.query_row("SELECT number FROM revision", [], |row| row.get(0))?;
            for Change { key, value, .. } in changes {
                match value {
                    Some(value) => transaction.execute(
                        "INSERT OR REPLACE INTO entry (key, value, version) VALUES (?1, ?2, ?3)",
                        params![key, value, next],
                    )?,
                    None => transaction.execute("DELETE FROM entry WHERE key = ?1", [key])?,
                };
            }
            Ok(true)
        };
        let made = made().map_err(failed)?;
        if made {
            transaction.commit().map_err(failed)?;
            // If the file was replaced meanwhile, the change is in one that no other node opens.
            self.check()?;
        }
        Ok(made)
    }

    fn revision(&mut self) -> Result<u64, ConfigError> {
        self.check()?;
        let mut query = self.connection.prepare_cached("SELECT number FROM revision").map_err(failed)?;
        query.query_row([], |row| row.get(0)).map_err(failed)
    }

    fn watch(&self) -> Result<Box<dyn Watch>, ConfigError> {
        Ok(Box::new(watch::SqliteWatch::open(&self.path, &self.files)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::conformance::{Place, conforms};

    fn put(key: &str, expected: Option<u64>, value: &str) -> Change {
        Change { key: key.into(), expected, value: Some(value.as_bytes().to_vec()) }
    }

    /// A file in a folder of its own.
    struct File(tempfile::TempDir);

    impl File {
        fn path(&self) -> PathBuf {
            self.0.path().join("cluster.db")
        }
    }

    impl Place for File {
        fn connect(&self) -> Box<dyn ConfigStore> {
            Box::new(SqliteStore::open(&self.path()).unwrap())
        }

        fn backup(&self) -> Box<dyn FnOnce()> {
            let path = self.path();
            let content = std::fs::read(&path).unwrap();
            Box::new(move || std::fs::write(path, content).unwrap())
        }
    }

    #[test]
    fn it_does_what_every_store_must() {
        conforms(|| {
            let file = File(tempfile::tempdir().expect("there is room"));
            SqliteStore::create(&file.path()).expect("it is new");
            file
        });
    }

    #[test]
    fn a_file_that_was_deleted_or_replaced_is_not_used() {
        let folder = tempfile::tempdir().expect("there is room");
        let path = |name: &str| folder.path().join(name);
        let refused = |store: &mut SqliteStore, named: &str| {
            let answers = [
                store.get("a").err(),
                store.list("").err(),
                store.revision().err(),
                store.commit(&[put("b", None, "y")]).err(),
            ];
            for answer in answers {
                let Some(ConfigError::Replaced { path, what }) = answer else { panic!("{answer:?}") };
                assert!(path.ends_with(named) && what.contains("deleted") | what.contains("replaced"));
            }
        };
        let mut store = SqliteStore::create(&path("cluster.db")).unwrap();
        assert!(store.commit(&[put("a", None, "x")]).unwrap());
        for end in FILES {
            let (there, away) = (path(&format!("cluster.db{end}")), path("away"));
            std::fs::rename(&there, &away).unwrap();
            refused(&mut store, &format!("cluster.db{end}"));
            std::fs::copy(&away, &there).unwrap();
            refused(&mut store, &format!("cluster.db{end}"));
            // It is used again when it is there again.
            std::fs::rename(&away, &there).unwrap();
            assert_eq!(store.get("a").unwrap().unwrap().value, b"x");
        }
        assert_eq!(store.get("b").unwrap(), None, "nothing was done meanwhile");
    }

    #[test]
    fn what_was_put_into_the_same_file_is_not_mixed_with_the_log_of_what_was_there() {
        let folder = tempfile::tempdir().expect("there is room");
        let path = |end: &str| folder.path().join(format!("cluster.db{end}"));
        let backup = folder.path().join("backup");
        let mut store = SqliteStore::create(&path("")).unwrap();
        let many = |value: &str, store: &mut SqliteStore| {
            for key in 0..200 {
                let key = format!("key/{key}");
                let expected = store.get(&key).unwrap().map(|stored| stored.version);
                assert!(store.commit(&[put(&key, expected, &value.repeat(100))]).unwrap());
            }
        };
        many("old", &mut store);
        drop(store);
        std::fs::copy(path(""), &backup).unwrap();
        let mut store = SqliteStore::open(&path("")).unwrap();
        let revision = store.revision().unwrap();
        many("new", &mut store);
        // As the docs describe it, but under a node that runs; the file stays the same one.
        std::fs::remove_file(path("-wal")).unwrap();
        std::fs::remove_file(path("-shm")).unwrap();
        std::fs::copy(&backup, path("")).unwrap();
        assert!(matches!(store.revision(), Err(ConfigError::Replaced { .. })));
        drop(store);
        assert_eq!(std::fs::read(path("")).unwrap(), std::fs::read(&backup).unwrap());
        assert_eq!(SqliteStore::open(&path("")).unwrap().revision().unwrap(), revision);
    }

    #[test]
    fn a_file_that_has_no_room_refuses_and_is_not_silent() {
        let folder = tempfile::tempdir().expect("there is room");
        let mut store = SqliteStore::create(&folder.path().join("cluster.db")).unwrap();
        let limit = |store: &SqliteStore, pages: u32| {
            store.connection.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(())).unwrap();
        };
        limit(&store, 1);
        let large = "x".repeat(100_000);
        let refused = store.commit(&[put("a", None, &large)]).unwrap_err();
        assert!(matches!(&refused, ConfigError::Refused(why) if why.contains("make room")), "{refused}");
        assert!(!refused.is_silence());
        assert_eq!(store.get("a").unwrap(), None);
        limit(&store, 1_000_000);
        assert!(store.commit(&[put("a", None, &large)]).unwrap());
    }

    #[test]
    fn what_is_no_cluster_is_refused_and_nothing_overwritten() {
        let folder = tempfile::tempdir().expect("there is room");
        let path = folder.path().join("file");
        assert!(matches!(SqliteStore::open(&path), Err(ConfigError::Missing(_))));
        std::fs::write(
            &path,
            "some text that is long enough to be looked at as a header of something else, and then more",
        )
        .unwrap();
        assert!(matches!(SqliteStore::open(&path), Err(ConfigError::NotOurs(_))));
        assert!(matches!(SqliteStore::create(&path), Err(ConfigError::Exists(_))));
        let other = folder.path().join("other.db");
        Connection::open(&other).unwrap().execute_batch("CREATE TABLE t (x)").unwrap();
        assert!(matches!(SqliteStore::open(&other), Err(ConfigError::NotOurs(_))));
        let newer = folder.path().join("newer.db");
        let store = SqliteStore::create(&newer).unwrap();
        store.connection.execute_batch("PRAGMA user_version = 9").unwrap();
        assert!(matches!(SqliteStore::open(&newer), Err(ConfigError::Format { found: 9, .. })));
    }
}
