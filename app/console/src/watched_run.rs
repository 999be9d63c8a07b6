//! A run that pages watch: a thread reads its folder each second, and all its pages get the same messages.
//!
//! The folder is all that is read: the run may be of any process, and may be finished. The thread ends when no page watches any more.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use loadline_report::Report;
use loadline_report::page::{Course, Message, Place};
use loadline_study::live::LiveRun;
use loadline_study::{RunFolder, StudyError};
use tokio::sync::broadcast;

/// The time from one look at the folder to the next.
const EACH: Duration = Duration::from_millis(500);
/// Messages that one page may be behind before it begins anew.
const BEHIND: usize = 64;

/// A message to pages.
#[derive(Debug, Clone)]
pub struct Sent {
    /// How many steps a page has with it, if it is a step.
    pub steps: Option<usize>,
    /// The message as JSON.
    pub json: Arc<str>,
}

/// A run that is watched. It is read as long as this exists.
#[derive(Debug)]
pub struct WatchedRun {
    path: PathBuf,
    known: Mutex<Known>,
    news: broadcast::Sender<Sent>,
}

/// What a page that comes later gets first.
#[derive(Debug, Default)]
struct Known {
    steps: Vec<Arc<str>>,
    run: Option<Arc<str>>,
    live: Option<Arc<str>>,
    unreadable: Option<Arc<str>>,
}

impl WatchedRun {
    /// Watches the run in this folder.
    ///
    /// # Errors
    /// The system starts no further thread.
    pub fn start(path: &Path) -> std::io::Result<Arc<WatchedRun>> {
        let run = Arc::new(WatchedRun {
            path: path.to_path_buf(),
            known: Mutex::default(),
            news: broadcast::Sender::new(BEHIND),
        });
        let watched = Arc::downgrade(&run);
        std::thread::Builder::new().name("run".into()).spawn(move || watch(&watched))?;
        Ok(run)
    }

    /// What is known after so many steps, and what follows.
    pub fn subscribe(&self, steps: usize) -> (Vec<Sent>, broadcast::Receiver<Sent>) {
        let known = self.known();
        let of = |json: &Arc<str>| Sent { steps: None, json: json.clone() };
        let step = |(n, json): (usize, &Arc<str>)| Sent { steps: Some(n + 1), json: json.clone() };
        let mut first: Vec<Sent> = known.steps.iter().enumerate().skip(steps).map(step).collect();
        first.extend([&known.run, &known.live, &known.unreadable].into_iter().flatten().map(of));
        (first, self.news.subscribe())
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, message: &Message) {
        let json: Arc<str> = serde_json::to_string(message).expect("it is numbers and texts").into();
        let mut known = self.known();
        let steps = match message {
            Message::Step(_) => {
                known.steps.push(json.clone());
                Some(known.steps.len())
            }
            Message::Run(_) => {
                (known.run, known.unreadable) = (Some(json.clone()), None);
                None
            }
            Message::Live(_) => {
                known.live = Some(json.clone());
                None
            }
            Message::Unreadable(_) => {
                known.unreadable = Some(json.clone());
                None
            }
        };
        // An error says that no one watches at this moment.
        let _ = self.news.send(Sent { steps, json });
    }
}

/// Reads the folder until no page watches.
fn watch(watched: &Weak<WatchedRun>) {
    let mut reader = Reader::default();
    while let Some(run) = watched.upgrade() {
        reader.read(&run);
        drop(run);
        std::thread::sleep(EACH);
    }
}

/// What was read of a folder so far.
#[derive(Default)]
struct Reader {
    course: Course,
    /// What the folder looked like when it was read.
    seen: Option<Signature>,
    live: Option<LiveRun>,
    unreadable: Option<String>,
    begun: bool,
}

/// What of a folder changes when a step is complete, or the run.
type Signature = (Option<SystemTime>, usize);

impl Reader {
    fn read(&mut self, run: &WatchedRun) {
        match self.try_read(run) {
            Ok(()) => self.unreadable = None,
            Err(why) => {
                // It is read anew as soon as that is possible.
                self.seen = None;
                if self.unreadable.as_ref() != Some(&why) {
                    run.send(&Message::Unreadable(why.clone()));
                    self.unreadable = Some(why);
                }
            }
        }
    }

    fn try_read(&mut self, run: &WatchedRun) -> Result<(), String> {
        let said = |e: StudyError| e.message;
        if !run.path.join("run.json").exists() {
            return Err(format!("the folder {} is not there any more, or is no run", run.path.display()));
        }
        let live = LiveRun::read(&run.path).map_err(said)?;
        let live = live.filter(|live| live.is_current(wall_ms()));
        let found = signature(&run.path);
        if self.seen != Some(found) {
            let folder = RunFolder::open(&run.path).map_err(said)?;
            let mut send = |message| {
                run.send(&message);
                Ok(())
            };
            self.course.send(&folder, &mut send).map_err(said)?;
            let report = Report::of(&folder).map_err(said)?;
            let mut message = self.course.run(&folder, &report, None);
            if let Message::Run(run) = &mut message {
                run.place = Some(Place::of(&folder));
            }
            run.send(&message);
            self.seen = Some(found);
        }
        if !self.begun || self.live != live {
            self.begun = true;
            run.send(&Message::Live(live.clone().map(Box::new)));
            self.live = live;
        }
        Ok(())
    }
}

/// When the manifest was written, and how many steps are complete.
fn signature(path: &Path) -> Signature {
    let written = std::fs::metadata(path.join("run.json")).and_then(|of| of.modified()).ok();
    let steps = std::fs::read_dir(path.join("steps")).into_iter().flatten().flatten();
    (written, steps.filter(|step| step.path().join("result.json").exists()).count())
}

fn wall_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

#[cfg(test)]
mod tests {
    use loadline_study::resume::Resume;

    use super::*;
    use crate::runs::tests::measure_repeats;

    #[test]
    fn a_run_says_where_it_is_and_how_it_is_continued_from_any_folder() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("my run");
        let mut owned = measure_repeats(&path, "s", 1, 1000.0, false);
        let options = " --baseline slower".to_string();
        owned.folder.manifest.resume = Some(Resume { options, current_folder: "/srv".into() });
        owned.save().unwrap();
        let path = owned.folder.path().display().to_string();
        drop(owned);
        let run = WatchedRun::start(Path::new(&path)).unwrap();
        let sent = loop {
            let (sent, _) = run.subscribe(0);
            let found = sent.iter().find(|sent| sent.json.starts_with("{\"run\""));
            if let Some(found) = found {
                break serde_json::from_str::<serde_json::Value>(&found.json).unwrap();
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let resume = format!("loadline run --resume '{path}' --baseline slower");
        let place = serde_json::json!({ "path": path, "resume": resume, "resume_in": "/srv" });
        assert_eq!(sent["run"]["place"], place);
    }
}
