//! Runs that `loadline run` measured: the console reads their folders, keeps an index of them, and adds what people note.
//!
//! ```text
//! run folders ─ scan ─▶ entry ─▶ index ─▶ query ─▶ pages
//!      ▲                                    │
//!      └────────── notes.json ◀─────────────┘
//! ```
//!
//! | module | idea |
//! | --- | --- |
//! | [`row`] | what a page gets of runs |
//! | [`notes`] | tags and a note, in the run's own folder |
//! | `stamp` | whether a run's folder has changed |
//! | [`entry`] | what the index has of a run |
//! | [`index`] | the index: a file that can be made anew at any time |
//! | [`query`] | what is read from the index |
//! | `scan` | brings the index up to date |

pub mod entry;
pub mod index;
pub mod notes;
pub mod query;
pub mod row;
mod scan;
mod stamp;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use loadline_report::baseline::course::bands;
use loadline_report::compare::text::legend_before_now;
use loadline_report::compare::{Comparison, Figure, Run};
use loadline_study::StudyError;
use rusqlite::Connection;

use index::{Index, IndexFault};
use query::Wanted;
use row::{ComparisonView, FolderRow, Notes, RunDetail, RunStanding, RunsView, TrendPoint, TrendView};
use scan::Scanner;
use stamp::Stamp;

/// The time from one scan to the next.
const PAUSE: Duration = Duration::from_secs(2);
/// Or so many times what the scan took, but no longer than [`LONGEST_PAUSE`].
const TIMES: u32 = 20;
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Why something is not done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such run.
    NotFound(String),
    /// The request cannot be carried out.
    Usage(String),
    /// A later try may succeed.
    Later(String),
    /// It failed.
    Failed(String),
}

/// The runs in some folders. Clones are the same runs. Every call reads files, and may wait for some seconds: it is none for a thread that
/// must go on.
#[derive(Debug, Clone)]
pub struct Runs(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    folders: Vec<PathBuf>,
    /// The file of the index; `None`: it is in memory.
    file: Option<PathBuf>,
    state: Mutex<State>,
    unread: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    /// `None` until it is open.
    index: Option<Index>,
    /// What a query found wrong with the index, so that it is made anew.
    damage: Option<String>,
    /// Of each folder that was listed, why it cannot be.
    listed: BTreeMap<PathBuf, Option<String>>,
    /// What people should know of the index, in a sentence.
    about_index: Option<String>,
    /// Why the last scan did not end.
    about_scan: Option<String>,
}

impl Runs {
    /// The runs in these folders, with an index in the folder `place`, or in memory. The folders need not be there. Nothing is read yet.
    pub fn new(folders: Vec<PathBuf>, place: Option<PathBuf>) -> Runs {
        let mut absolute: Vec<PathBuf> = Vec::new();
        for folder in folders {
            let folder = folder.canonicalize().or_else(|_| std::path::absolute(&folder)).unwrap_or(folder);
            if !absolute.contains(&folder) {
                absolute.push(folder);
            }
        }
        let file = place.map(|place| place.join(index::FILE));
        let (state, unread) = (Mutex::default(), AtomicUsize::new(0));
        Runs(Arc::new(Inner { folders: absolute, file, state, unread }))
    }

    /// Reads the folders again and again in a thread, until the process ends.
    ///
    /// # Errors
    /// The system starts no further thread.
    pub fn follow(&self) -> std::io::Result<()> {
        let runs = self.clone();
        std::thread::Builder::new().name("runs".into()).spawn(move || {
            let mut scanner = Scanner::default();
            loop {
                let begun = Instant::now();
                runs.survive(&mut scanner, Runs::turn);
                std::thread::sleep((begun.elapsed() * TIMES).clamp(PAUSE, LONGEST_PAUSE));
            }
        })?;
        Ok(())
    }

    /// Does one scan. If that panics, which is a bug, the page reports it, and the next scan begins anew.
    fn survive(&self, scanner: &mut Scanner, turn: impl FnOnce(&Runs, &mut Scanner)) {
        // What a panic leaves is whole: the scanner is made anew, and a change of the index that has not ended is undone.
        let Err(panic) = catch_unwind(AssertUnwindSafe(|| turn(self, scanner))) else { return };
        *scanner = Scanner::default();
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let why = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("it does not say why");
        self.state().about_scan = Some(format!(
            "The list may be out of date: reading the runs has failed, which is a bug of Loadline ({why}). The console tries again."
        ));
    }

    /// One scan. Opens the index before it if it is not open, or was found damaged.
    fn turn(&self, scanner: &mut Scanner) {
        let (open, damage) = {
            let mut state = self.state();
            let damage = state.damage.take();
            if damage.is_some() {
                state.index = None;
            }
            (state.index.clone(), damage)
        };
        let index = match open {
            Some(index) => index,
            // Where there is nothing to be kept, no file is made.
            None if !self.0.folders.iter().any(|folder| folder.is_dir()) => {
                self.0.folders.iter().for_each(|folder| drop(scan::list(folder, self)));
                return;
            }
            None => {
                let (index, about) = self.open(damage);
                let mut state = self.state();
                state.about_index = about.or(state.about_index.take());
                let Some(index) = index else { return };
                state.index = Some(index.clone());
                *scanner = Scanner::default();
                index
            }
        };
        let ended = scanner.scan(&self.0.folders, &index, self);
        let mut state = self.state();
        state.about_scan = match ended {
            Ok(()) => None,
            Err(IndexFault::Damaged(why)) => {
                state.damage = Some(why);
                None
            }
            Err(why) => Some(format!(
                "The list may be out of date: the index cannot be written ({why}). The console tries again."
            )),
        };
    }

    /// Opens the index, and what people should know of it. An index that cannot be used is made in memory.
    fn open(&self, damage: Option<String>) -> (Option<Index>, Option<String>) {
        let in_memory = |why: Option<String>| match Index::in_memory() {
            Ok(index) => (Some(index), why),
            Err(e) => {
                (None, Some(format!("There is no list of runs: an index cannot be made in memory ({e}).")))
            }
        };
        let Some(file) = &self.0.file else { return in_memory(None) };
        match Index::open(file, damage) {
            Ok((index, None)) => (Some(index), None),
            Ok((index, Some(why))) => {
                let path = file.display();
                (
                    Some(index),
                    Some(format!(
                        "The index {path} was damaged ({why}). The console makes it anew from the run folders. Nothing is lost."
                    )),
                )
            }
            Err(why) => in_memory(Some(format!(
                "The index {} cannot be used ({why}). The console keeps the index in memory, and reads all runs again when it starts.",
                file.display()
            ))),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something while every call waits.
    #[cfg(test)]
    pub(crate) fn held<T>(&self, work: impl FnOnce() -> T) -> T {
        let _state = self.state();
        work()
    }

    /// The folders that can be listed, as JSON: runs of others are not shown.
    fn folders(&self) -> String {
        let state = self.state();
        let can_be_listed = |folder: &&PathBuf| !matches!(state.listed.get(*folder), Some(Some(_)));
        let folders = self.0.folders.iter().filter(can_be_listed).map(|of| of.display().to_string());
        serde_json::to_string(&folders.collect::<Vec<String>>()).expect("it is texts")
    }

    /// Asks the index.
    fn ask<T>(&self, query: impl FnOnce(&Connection, &str) -> Result<T, IndexFault>) -> Result<T, Refusal> {
        let index = self.state().index.clone();
        let Some(index) = index else {
            return Err(Refusal::Later("the index of runs is not open yet".into()));
        };
        let folders = self.folders();
        let answer = query(&index.reads(), &folders);
        answer.map_err(|why| self.refuse(why))
    }

    fn refuse(&self, why: IndexFault) -> Refusal {
        match why {
            IndexFault::Busy => Refusal::Later("another program holds the index of runs: try again".into()),
            IndexFault::Damaged(why) => {
                let message = format!("the index of runs is damaged ({why}): the console makes it anew");
                self.state().damage = Some(why);
                Refusal::Later(message)
            }
            IndexFault::Failed(why) => Refusal::Failed(format!("the index of runs cannot be read: {why}")),
        }
    }

    /// A page of the list.
    pub fn page(&self, wanted: &Wanted) -> Result<RunsView, Refusal> {
        let is_open = self.state().index.is_some();
        let (total, runs, studies, tags) = match is_open {
            false => Default::default(),
            true => self.ask(|index, folders| {
                let (total, runs) = query::page(index, folders, wanted)?;
                let (studies, tags) = query::names(index, folders)?;
                Ok((total, runs, studies, tags))
            })?,
        };
        let state = self.state();
        let fault = |folder: &PathBuf| state.listed.get(folder).cloned().flatten();
        let folders =
            self.0.folders.iter().map(|of| FolderRow { path: of.display().to_string(), fault: fault(of) });
        let folders = folders.collect();
        let notices = state.about_index.iter().chain(&state.about_scan).cloned().collect();
        Ok(RunsView {
            total,
            runs,
            studies,
            tags,
            folders,
            unread: self.0.unread.load(Ordering::Relaxed),
            notices,
        })
    }

    /// The run with this id.
    pub fn detail(&self, id: &str) -> Result<RunDetail, Refusal> {
        self.ask(|index, folders| query::detail(index, folders, id))?.ok_or_else(|| not_found(id))
    }

    /// The folder of the run with this id; `None` if there is no such run, or the index cannot be read at this moment.
    pub fn find(&self, id: &str) -> Option<PathBuf> {
        self.ask(|index, folders| query::find(index, folders, id)).ok().flatten()
    }

    /// The first of the folders, in which new runs are; `None` if there is none.
    pub fn first_folder(&self) -> Option<PathBuf> {
        self.0.folders.first().cloned()
    }

    fn folder(&self, id: &str) -> Result<PathBuf, Refusal> {
        self.ask(|index, folders| query::find(index, folders, id))?.ok_or_else(|| not_found(id))
    }

    /// Replaces the tags and the note of a run. The last writer wins.
    pub fn set_notes(&self, id: &str, notes: Notes) -> Result<RunDetail, Refusal> {
        let notes = notes::checked(notes).map_err(|why| Refusal::Usage(format!("the request {why}")))?;
        let path = self.folder(id)?;
        if !path.is_dir() {
            return Err(not_found(id));
        }
        notes::write(&path, &notes).map_err(Refusal::Usage)?;
        // The index follows at once. If another console holds it, the next scan finds what is new.
        let index = self.state().index.clone();
        if let (Some(index), Some(stamp), Some(folder)) = (index, Stamp::of(&path), path.parent()) {
            match scan::read_notes(&index, &folder.display().to_string(), &path, &stamp) {
                Ok(_) | Err(IndexFault::Busy) => {}
                Err(why) => return Err(self.refuse(why)),
            }
        }
        let mut detail = self.detail(id)?;
        entry::set_notes(&mut detail.run, Ok(notes));
        Ok(detail)
    }

    /// Compares two runs, as `loadline compare` does: reads both folders.
    pub fn compare(&self, base: &str, new: &str) -> Result<ComparisonView, Refusal> {
        let open = |name: &str, id: &str| {
            let folder = self.folder(id)?;
            Run::open(&folder).map_err(|e| Refusal::Usage(format!("{name}: {}", e.message)))
        };
        let (base, new) = (open("base", base)?, open("new", new)?);
        let comparison =
            Comparison::of(&base, &new, 0.0).map_err(|StudyError { message, .. }| Refusal::Usage(message))?;
        let sentences = comparison.sentences();
        let legend = legend_before_now(&comparison);
        let mut names = base.report.names;
        names.extend(new.report.names);
        Ok(ComparisonView { comparison, sentences, legend, names })
    }

    /// A figure of a load over the runs of a study. Without a load, of the first that has figures.
    pub fn trend(
        &self,
        study: &str,
        load: Option<(String, String)>,
        figure: Figure,
    ) -> Result<TrendView, Refusal> {
        let loads = self.ask(|index, folders| query::loads(index, folders, study))?;
        let first = loads.first().map(|first| (first.load.clone(), first.condition.clone()));
        let (load, condition) = load.or(first).unwrap_or_default();
        let course = self.ask(|index, folders| query::course(index, folders, (study, &load, &condition)))?;
        let last = course.first().map(|(_, _, likeness)| likeness.clone());
        let mut points: Vec<(TrendPoint, String)> = Vec::new();
        for (run, figures, likeness) in course.into_iter().rev() {
            let Some(value) = figures.figure(figure).filter(|_| run.standing != RunStanding::InProgress)
            else {
                continue;
            };
            let point = TrendPoint {
                id: run.id,
                begun: run.begun,
                loadline: run.loadline,
                value,
                repeats: figures.repeats,
                doubtful: figures.doubtful,
                is_like_last: Some(&likeness) == last.as_ref(),
                band: None,
                is_outside: None,
            };
            points.push((point, likeness));
        }
        let figures: Vec<(&str, f64)> =
            points.iter().map(|(point, likeness)| (likeness.as_str(), point.value.median)).collect();
        let bands = bands(&figures);
        let points = points.into_iter().zip(bands).map(|((mut point, _), band)| {
            point.is_outside = band.map(|band| !band.contains(point.value.median));
            point.band = band;
            point
        });
        Ok(TrendView { study: study.to_owned(), load, condition, figure, loads, points: points.collect() })
    }
}

impl scan::Report for Runs {
    fn listed(&self, folder: &Path, fault: Option<String>) {
        self.state().listed.insert(folder.to_owned(), fault);
    }

    fn unread(&self, runs: usize) {
        self.0.unread.store(runs, Ordering::Relaxed);
    }
}

fn not_found(id: &str) -> Refusal {
    Refusal::NotFound(format!(
        "there is no run {id:?}: its folder is gone, or the console has not read it yet"
    ))
}
