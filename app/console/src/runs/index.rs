//! The index of runs: a SQLite file that holds nothing that is not in the run folders, so that it can be made anew at any time. Several
//! consoles may use one file at once.

use std::collections::HashMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, TransactionBehavior, params};
use serde::Serialize;

use crate::runs::entry::Entry;
use crate::runs::row::RunRow;
use crate::runs::stamp::Stamp;

/// The name of the file. The number is that of what the file holds: a console with another number has a file of its own.
pub const FILE: &str = "runs-1.sqlite";
/// How long another console may keep this one from the file.
const BUSY: Duration = Duration::from_secs(3);

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS runs (
        path BLOB PRIMARY KEY, id TEXT NOT NULL UNIQUE, folder TEXT NOT NULL, stamp TEXT NOT NULL, notes_stamp TEXT NOT NULL,
        study TEXT, begun TEXT NOT NULL, found TEXT NOT NULL, noted TEXT NOT NULL, row TEXT NOT NULL, tiles TEXT NOT NULL
    );
    CREATE INDEX IF NOT EXISTS runs_by_time ON runs (folder, begun, id);
    CREATE TABLE IF NOT EXISTS tags (path BLOB NOT NULL, tag TEXT NOT NULL, PRIMARY KEY (path, tag)) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS figures (
        path BLOB NOT NULL, number INTEGER NOT NULL, load TEXT NOT NULL, condition TEXT NOT NULL, name TEXT NOT NULL,
        figures TEXT NOT NULL, likeness TEXT NOT NULL, PRIMARY KEY (path, number)
    ) WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS figures_of_load ON figures (load, condition);
";

/// What keeps the index from answering.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IndexFault {
    /// Another console holds the file. A later try may succeed.
    Busy,
    /// The file is damaged: it has to be made anew.
    Damaged(String),
    /// The file cannot be used.
    Failed(String),
}

impl From<rusqlite::Error> for IndexFault {
    fn from(error: rusqlite::Error) -> IndexFault {
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => IndexFault::Busy,
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                IndexFault::Damaged(error.to_string())
            }
            // A table or a column that is not there, or a value of another type.
            Some(ErrorCode::Unknown) | None => IndexFault::Damaged(error.to_string()),
            Some(_) => IndexFault::Failed(error.to_string()),
        }
    }
}

impl std::fmt::Display for IndexFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            IndexFault::Busy => f.write_str("another program holds it"),
            IndexFault::Damaged(why) | IndexFault::Failed(why) => f.write_str(why),
        }
    }
}

/// An open index. Clones share its connections.
#[derive(Debug, Clone)]
pub struct Index {
    reads: Arc<Mutex<Connection>>,
    /// In memory the same connection. In a file another one, so that a write that waits does not keep readers waiting.
    writes: Arc<Mutex<Connection>>,
}

impl Index {
    /// Opens the index in this file, or makes it, with its folder. A file that is damaged, or was found to be (`damaged` says how), is
    /// removed and made anew: then the second value says what was wrong. Another console that has the removed file open goes on with it.
    pub fn open(file: &Path, damaged: Option<String>) -> Result<(Index, Option<String>), IndexFault> {
        let failed = |e: std::io::Error| IndexFault::Failed(e.to_string());
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(file.parent().unwrap_or(file))
            .map_err(failed)?;
        match damaged.map_or_else(|| Index::connect(file), |why| Err(IndexFault::Damaged(why))) {
            Err(IndexFault::Damaged(why)) => {
                for name in [file.to_path_buf(), beside(file, "-wal"), beside(file, "-shm")] {
                    match fs::remove_file(&name) {
                        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(failed(e)),
                        _ => {}
                    }
                }
                Ok((Index::connect(file)?, Some(why)))
            }
            opened => Ok((opened?, None)),
        }
    }

    /// An index that is gone with the process.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn in_memory() -> Result<Index, IndexFault> {
        let connection = Connection::open_in_memory()?;
        connection.execute_batch(TABLES)?;
        let connection = Arc::new(Mutex::new(connection));
        Ok(Index { reads: connection.clone(), writes: connection })
    }

    fn connect(file: &Path) -> Result<Index, IndexFault> {
        let writes = connection(file)?;
        let check: String = writes.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
        if check != "ok" {
            return Err(IndexFault::Damaged(check));
        }
        writes.execute_batch(TABLES)?;
        // What has tables of these names and other columns is no index of ours.
        writes.prepare(
            "SELECT path, id, folder, stamp, notes_stamp, study, begun, found, noted, row, tiles FROM runs",
        )?;
        writes.prepare("SELECT path, number, load, condition, name, figures, likeness FROM figures")?;
        writes.prepare("SELECT path, tag FROM tags")?;
        let reads = connection(file)?;
        Ok(Index { reads: Arc::new(Mutex::new(reads)), writes: Arc::new(Mutex::new(writes)) })
    }

    /// The connection for queries. A query waits for at most some seconds.
    pub fn reads(&self) -> MutexGuard<'_, Connection> {
        self.reads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn writes(&self) -> MutexGuard<'_, Connection> {
        self.writes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The stamp of each run in this folder, by the path of the run.
    pub fn stamps(&self, folder: &str) -> Result<HashMap<PathBuf, Stamp>, IndexFault> {
        let reads = self.reads();
        let mut query =
            reads.prepare_cached("SELECT path, stamp, notes_stamp FROM runs WHERE folder = ?1")?;
        let rows = query.query_map([folder], |row| {
            let path: Vec<u8> = row.get(0)?;
            Ok((
                PathBuf::from(std::ffi::OsStr::from_bytes(&path)),
                Stamp { run: row.get(1)?, notes: row.get(2)? },
            ))
        })?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    /// Adds the run at `path`, which is in `folder`, or replaces what the index has of it.
    pub fn put(&self, folder: &str, path: &Path, stamp: &Stamp, entry: &Entry) -> Result<(), IndexFault> {
        let mut writes = self.writes();
        let change = writes.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let (row, bytes) = (&entry.row, path.as_os_str().as_bytes());
        change.execute("DELETE FROM figures WHERE path = ?1", [bytes])?;
        change.execute(
            "INSERT OR REPLACE INTO runs (path, id, folder, stamp, notes_stamp, study, begun, found, noted, row, tiles)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
            params![
                bytes,
                row.id,
                folder,
                stamp.run,
                stamp.notes,
                row.study,
                row.begun.as_str(),
                found(entry),
                noted(row),
                json(row),
                json(&entry.tiles)
            ],
        )?;
        for (number, (figures, likeness)) in entry.figures.iter().enumerate() {
            change.execute(
                "INSERT INTO figures (path, number, load, condition, name, figures, likeness) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                params![
                    bytes,
                    number as i64,
                    figures.load,
                    figures.condition,
                    figures.name,
                    json(figures),
                    crate::runs::entry::short_hash(likeness.as_bytes())
                ],
            )?;
        }
        put_tags(&change, bytes, row)?;
        Ok(change.commit()?)
    }

    /// Replaces the tags and the note of a run that is in the index.
    pub fn put_notes(&self, path: &Path, stamp: &Stamp, row: &RunRow) -> Result<(), IndexFault> {
        let mut writes = self.writes();
        let change = writes.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let bytes = path.as_os_str().as_bytes();
        change.execute(
            "UPDATE runs SET notes_stamp = ?2, noted = ?3, row = ?4 WHERE path = ?1",
            params![bytes, stamp.notes, noted(row), json(row)],
        )?;
        put_tags(&change, bytes, row)?;
        Ok(change.commit()?)
    }

    /// Removes runs.
    pub fn remove<'a>(&self, paths: impl IntoIterator<Item = &'a PathBuf>) -> Result<(), IndexFault> {
        let mut writes = self.writes();
        let change = writes.transaction_with_behavior(TransactionBehavior::Immediate)?;
        for path in paths {
            let bytes = path.as_os_str().as_bytes();
            change.execute("DELETE FROM runs WHERE path = ?1", [bytes])?;
            change.execute("DELETE FROM figures WHERE path = ?1", [bytes])?;
            change.execute("DELETE FROM tags WHERE path = ?1", [bytes])?;
        }
        Ok(change.commit()?)
    }
}

fn connection(file: &Path) -> Result<Connection, IndexFault> {
    let connection = Connection::open(file)?;
    connection.busy_timeout(BUSY)?;
    // Where a file system has no shared memory, another mode stays in force.
    let _: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    connection.execute_batch("PRAGMA synchronous = NORMAL")?;
    Ok(connection)
}

fn beside(file: &Path, ending: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

fn put_tags(connection: &Connection, path: &[u8], row: &RunRow) -> Result<(), IndexFault> {
    connection.execute("DELETE FROM tags WHERE path = ?1", [path])?;
    for tag in &row.tags {
        connection.execute("INSERT OR IGNORE INTO tags (path, tag) VALUES (?1, ?2)", params![path, tag])?;
    }
    Ok(())
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("it is numbers and texts")
}

/// All that a search of people looks at, in small letters, without tags and note.
fn found(entry: &Entry) -> String {
    let row = &entry.row;
    let words = [&row.study, &row.run_id, &row.measured_on, &row.loadline, &row.commit, &row.fault];
    let mut text: Vec<&str> = words.into_iter().flatten().map(String::as_str).collect();
    text.push(row.path.rsplit('/').next().unwrap_or_default());
    text.extend(row.answer.iter().map(|answer| answer.headline.as_str()));
    text.extend(entry.figures.iter().flat_map(|(of, _)| [of.label.as_str(), of.name.as_str()]));
    text.join("\n").to_lowercase()
}

fn noted(row: &RunRow) -> String {
    format!("{}\n{}", row.tags.join("\n"), row.note).to_lowercase()
}
