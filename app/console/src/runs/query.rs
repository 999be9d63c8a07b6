//! What is read from the index: a page of the list, a run, a figure over many runs.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rusqlite::{Connection, OptionalExtension, params, params_from_iter};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::runs::index::IndexFault;
use crate::runs::row::{LoadFigures, RunDetail, RunRow, TrendLoad};

/// Runs of an answer if the page does not say how many.
const SOME_RUNS: usize = 50;
/// Runs of an answer at most.
const MOST_RUNS: usize = 200;
/// Words of a search at most; further ones are ignored.
const MOST_WORDS: usize = 8;
/// Studies, tags or loads of an answer at most.
const MOST_NAMES: i64 = 500;
/// Runs of a trend at most.
pub const MOST_POINTS: i64 = 500;

/// Which runs are wanted.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Wanted {
    /// Those that contain each of these words, in small letters or capitals.
    #[serde(default)]
    pub search: String,
    /// Those with this tag; empty: all.
    #[serde(default)]
    pub tag: String,
    /// Those of this study; empty: all.
    #[serde(default)]
    pub study: String,
    /// From this one on.
    #[serde(default)]
    pub from: usize,
    /// So many.
    pub count: Option<usize>,
}

/// Runs of the trend of a load, the latest first: each with the figures of the load, and what says how they were measured.
pub type Course = Vec<(RunRow, LoadFigures, String)>;

/// `folders` is a JSON array of the folders whose runs count.
const IN_FOLDERS: &str = "runs.folder IN (SELECT value FROM json_each(?1))";

/// How many runs match, and those that are wanted of them, the latest first.
pub fn page(
    connection: &Connection,
    folders: &str,
    wanted: &Wanted,
) -> Result<(usize, Vec<RunRow>), IndexFault> {
    let words: Vec<String> =
        wanted.search.to_lowercase().split_whitespace().take(MOST_WORDS).map(str::to_owned).collect();
    // The numbers of the words' parameters follow the three that are always there.
    let with_words: String = (0..words.len())
        .map(|n| format!(" AND instr(runs.found || char(10) || runs.noted, ?{}) > 0", n + 4))
        .collect();
    let matches = format!(
        "FROM runs WHERE {IN_FOLDERS} AND (?2 = '' OR runs.study = ?2)
         AND (?3 = '' OR EXISTS (SELECT 1 FROM tags WHERE tags.path = runs.path AND tags.tag = ?3)){with_words}"
    );
    let mut values = vec![folders.to_owned(), wanted.study.clone(), wanted.tag.clone()];
    values.extend(words);
    let count: i64 = connection
        .prepare_cached(&format!("SELECT count(*) {matches}"))?
        .query_row(params_from_iter(&values), |row| row.get(0))?;
    let limit = wanted.count.unwrap_or(SOME_RUNS).min(MOST_RUNS);
    let from = i64::try_from(wanted.from).unwrap_or(i64::MAX);
    let last = values.len();
    let mut query = connection.prepare_cached(&format!(
        "SELECT runs.row {matches} ORDER BY runs.begun DESC, runs.id LIMIT CAST(?{} AS INTEGER) OFFSET CAST(?{} AS INTEGER)",
        last + 1,
        last + 2
    ))?;
    values.extend([limit.to_string(), from.to_string()]);
    let rows = query.query_map(params_from_iter(&values), |row| row.get::<_, String>(0))?;
    let rows = rows.map(|text| of_json(&text?)).collect::<Result<_, _>>()?;
    Ok((usize::try_from(count).unwrap_or_default(), rows))
}

/// The names of all studies, and all tags.
pub fn names(connection: &Connection, folders: &str) -> Result<(Vec<String>, Vec<String>), IndexFault> {
    let studies = format!(
        "SELECT DISTINCT runs.study FROM runs WHERE {IN_FOLDERS} AND runs.study IS NOT NULL ORDER BY 1 LIMIT ?2"
    );
    let tags = format!(
        "SELECT DISTINCT tags.tag FROM tags JOIN runs ON runs.path = tags.path WHERE {IN_FOLDERS} ORDER BY 1 LIMIT ?2"
    );
    let all = |query: &str| -> Result<Vec<String>, IndexFault> {
        let mut query = connection.prepare_cached(query)?;
        let names = query.query_map(params![folders, MOST_NAMES], |row| row.get(0))?;
        Ok(names.collect::<rusqlite::Result<_>>()?)
    };
    Ok((all(&studies)?, all(&tags)?))
}

/// The folder of the run with this id.
pub fn find(connection: &Connection, folders: &str, id: &str) -> Result<Option<PathBuf>, IndexFault> {
    let query = format!("SELECT path FROM runs WHERE {IN_FOLDERS} AND runs.id = ?2");
    let found =
        connection.prepare_cached(&query)?.query_row(params![folders, id], |row| row.get::<_, Vec<u8>>(0));
    Ok(found.optional()?.map(|bytes| PathBuf::from(OsStr::from_bytes(&bytes))))
}

/// The run with this id, with its figures.
pub fn detail(connection: &Connection, folders: &str, id: &str) -> Result<Option<RunDetail>, IndexFault> {
    let query = format!("SELECT path, row, tiles FROM runs WHERE {IN_FOLDERS} AND runs.id = ?2");
    let found = connection
        .prepare_cached(&query)?
        .query_row(params![folders, id], |row| {
            Ok((row.get::<_, Vec<u8>>(0)?, row.get::<_, String>(1)?, row.get::<_, String>(2)?))
        })
        .optional()?;
    let Some((path, row, tiles)) = found else { return Ok(None) };
    let mut query =
        connection.prepare_cached("SELECT figures FROM figures WHERE path = ?1 ORDER BY number")?;
    let loads = query.query_map([path], |row| row.get::<_, String>(0))?;
    let loads = loads.map(|text| of_json(&text?)).collect::<Result<_, _>>()?;
    Ok(Some(RunDetail { run: of_json(&row)?, tiles: of_json(&tiles)?, loads }))
}

/// The loads of a study that have figures.
pub fn loads(connection: &Connection, folders: &str, study: &str) -> Result<Vec<TrendLoad>, IndexFault> {
    let query = format!(
        "SELECT figures.load, figures.condition, max(figures.name) FROM figures JOIN runs ON runs.path = figures.path
         WHERE {IN_FOLDERS} AND runs.study = ?2 GROUP BY 1, 2 ORDER BY min(figures.number) LIMIT ?3"
    );
    let mut query = connection.prepare_cached(&query)?;
    let loads = query.query_map(params![folders, study, MOST_NAMES], |row| {
        Ok(TrendLoad { load: row.get(0)?, condition: row.get(1)?, name: row.get(2)? })
    })?;
    Ok(loads.collect::<rusqlite::Result<_>>()?)
}

/// The last runs of a study that have this load in this condition, [`MOST_POINTS`] at most.
pub fn course(
    connection: &Connection,
    folders: &str,
    (study, load, condition): (&str, &str, &str),
) -> Result<Course, IndexFault> {
    let query = format!(
        "SELECT runs.row, figures.figures, figures.likeness FROM figures JOIN runs ON runs.path = figures.path
         WHERE {IN_FOLDERS} AND runs.study = ?2 AND figures.load = ?3 AND figures.condition = ?4
         ORDER BY runs.begun DESC, runs.id LIMIT ?5"
    );
    let mut query = connection.prepare_cached(&query)?;
    let rows = query.query_map(params![folders, study, load, condition, MOST_POINTS], |row| {
        Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get::<_, String>(2)?))
    })?;
    let mut course = Vec::new();
    for row in rows {
        let (run, figures, likeness) = row?;
        course.push((of_json(&run)?, of_json(&figures)?, likeness));
    }
    Ok(course)
}

/// What the index keeps as JSON. What is not understood was damaged.
fn of_json<T: DeserializeOwned>(text: &str) -> Result<T, IndexFault> {
    serde_json::from_str(text).map_err(|e| IndexFault::Damaged(e.to_string()))
}
