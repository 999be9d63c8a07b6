//! The page of one run: what it came to so far, and what it does at this second. When it ends, the page is its report.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{Read, Take};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, LOCATION};
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use loadline_report::page::live_document;
use loadline_study::live::{LiveRun, request_stop};
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::page::Page;
use super::sse::{BEHIND, Messages, READS, event};
use super::{Console, fault};
use crate::watched_run::{Sent, WatchedRun};

/// The page of a run.
static PAGE: LazyLock<Page> = LazyLock::new(|| Page::new(live_document()));
/// Files of a run that its page links to, and what they are.
const FILES: [(&str, &str); 6] = [
    ("report/report.json", "application/json"),
    ("report/steps.csv", "text/csv; charset=utf-8"),
    ("report/report.md", "text/plain; charset=utf-8"),
    ("run.json", "application/json"),
    ("study.toml", "text/plain; charset=utf-8"),
    ("events.jsonl", "text/plain; charset=utf-8"),
];
/// A longer file is not sent, bytes.
const LONGEST: u64 = 1 << 30;
/// Bytes of a file that are read at once.
const PART: u64 = 256 << 10;

/// The runs that pages watch at this moment.
#[derive(Debug, Clone, Default)]
pub(super) struct WatchedRuns(Arc<Mutex<BTreeMap<PathBuf, Weak<WatchedRun>>>>);

impl WatchedRuns {
    /// Whether a page watches one.
    pub(super) fn is_any(&self) -> bool {
        let runs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        runs.values().any(|run| run.strong_count() > 0)
    }

    fn of(&self, path: &std::path::Path) -> std::io::Result<Arc<WatchedRun>> {
        let mut runs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        runs.retain(|_, run| run.strong_count() > 0);
        if let Some(run) = runs.get(path).and_then(Weak::upgrade) {
            return Ok(run);
        }
        let run = WatchedRun::start(path)?;
        runs.insert(path.to_path_buf(), Arc::downgrade(&run));
        Ok(run)
    }
}

/// Where the page is: files that it links to are beside it.
pub(super) async fn forward(Path(id): Path<String>) -> Response {
    let Ok(to) = format!("/runs/{}/report/report.html", escaped(&id)).parse::<axum::http::HeaderValue>()
    else {
        return fault(StatusCode::NOT_FOUND, "a run has no such id");
    };
    (StatusCode::TEMPORARY_REDIRECT, [(LOCATION, to)]).into_response()
}

/// An id as a part of an address.
fn escaped(id: &str) -> String {
    let keep = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    id.bytes()
        .map(|byte| if keep(byte) { (byte as char).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

pub(super) async fn page(State(console): State<Console>, Path(id): Path<String>) -> Response {
    match console.run(&id).await {
        Ok(_) => PAGE.answer(),
        Err(why) => fault(StatusCode::NOT_FOUND, &why),
    }
}

pub(super) async fn file(
    State(console): State<Console>,
    Path((id, name)): Path<(String, String)>,
) -> Response {
    let folder = match console.run(&id).await {
        Ok(folder) => folder,
        Err(why) => return fault(StatusCode::NOT_FOUND, &why),
    };
    let Some((name, kind)) = FILES.into_iter().find(|(file, _)| *file == name) else {
        return fault(StatusCode::NOT_FOUND, "the page of a run has no such file");
    };
    let opened = tokio::task::spawn_blocking(move || {
        let file = open_inside(&folder, name)?;
        let length = file.metadata()?.len();
        if length > LONGEST {
            return Err(std::io::Error::other("it is too long to be sent"));
        }
        // What is added meanwhile is not sent.
        Ok((length, read_part(file.take(length))?))
    });
    match opened.await.map_err(std::io::Error::other).flatten() {
        Ok((length, first)) => {
            let head = [(CONTENT_TYPE, kind.to_owned()), (CONTENT_LENGTH, length.to_string())];
            (head, Body::from_stream(Parts::new(first))).into_response()
        }
        Err(e) => fault(StatusCode::NOT_FOUND, &format!("{name} of this run cannot be read: {e}")),
    }
}

/// Opens a regular file of a run's folder, which may be of another user: a link there could lead to files that are only the console's to
/// read, and a pipe would wait for its other end.
fn open_inside(folder: &std::path::Path, name: &str) -> std::io::Result<File> {
    let mut at = File::open(folder)?;
    let mut parts = name.split('/').peekable();
    while let Some(part) = parts.next() {
        let kind = if parts.peek().is_some() { OFlag::O_DIRECTORY } else { OFlag::O_NONBLOCK };
        let flags = kind | OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        at = openat(&at, part, flags, Mode::empty())?.into();
    }
    match at.metadata()?.is_file() {
        true => Ok(at),
        false => Err(std::io::Error::other("it is no regular file")),
    }
}

/// A file, and the part of it that was read last. The part is empty at the end.
type FilePart = (Take<File>, Vec<u8>);

fn read_part(mut file: Take<File>) -> std::io::Result<FilePart> {
    let mut part = Vec::new();
    (&mut file).take(PART).read_to_end(&mut part)?;
    Ok((file, part))
}

/// A file that is read as it is sent, so that no answer holds more of it than a part or two.
struct Parts {
    read: Option<Vec<u8>>,
    reading: JoinHandle<std::io::Result<FilePart>>,
}

impl Parts {
    fn new((file, first): FilePart) -> Parts {
        Parts { read: Some(first), reading: tokio::task::spawn_blocking(move || read_part(file)) }
    }
}

impl Stream for Parts {
    type Item = std::io::Result<Vec<u8>>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let part = match self.read.take() {
            Some(first) => first,
            None => {
                let read = std::task::ready!(Pin::new(&mut self.reading).poll(context));
                match read.map_err(std::io::Error::other).flatten() {
                    Ok((file, part)) => {
                        self.reading = tokio::task::spawn_blocking(move || read_part(file));
                        part
                    }
                    Err(e) => return Poll::Ready(Some(Err(e))),
                }
            }
        };
        Poll::Ready((!part.is_empty()).then_some(Ok(part)))
    }
}

pub(super) async fn stream(
    State(console): State<Console>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Response {
    let folder = match console.run(&id).await {
        Ok(folder) => folder,
        Err(why) => return fault(StatusCode::NOT_FOUND, &why),
    };
    let Ok(place) = console.streams.clone().try_acquire_owned() else {
        return fault(StatusCode::SERVICE_UNAVAILABLE, "too many pages are open: close one");
    };
    let run = match console.watched.of(&folder) {
        Ok(run) => run,
        Err(e) => return fault(StatusCode::SERVICE_UNAVAILABLE, &format!("cannot start a thread: {e}")),
    };
    let seen = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse::<usize>().ok());
    let (send, rest) = mpsc::channel(BEHIND);
    tokio::spawn(pass_on(run, console, seen.unwrap_or(0), send));
    Messages::new(VecDeque::new(), rest, place).answer()
}

/// A message. Its id is the number of steps that a page has with it, so that a page that comes back gets each step once.
fn event_of(sent: &Sent) -> Event {
    let event = Event::default().data(&*sent.json);
    sent.steps.map_or(event.clone(), |steps| event.id(steps.to_string()))
}

/// Passes messages on to a page that has so many steps, until it is closed or does not read. One that is too far behind goes on with what
/// is known. Also sends what the console has pages of, at first and whenever that changes.
async fn pass_on(run: Arc<WatchedRun>, console: Console, mut steps: usize, send: mpsc::Sender<Event>) {
    let mut clusters = console.clusters.subscribe();
    clusters.mark_changed();
    loop {
        let (first, mut news) = run.subscribe(steps);
        for sent in first {
            if !pass(&sent, &mut steps, &send).await {
                return;
            }
        }
        loop {
            let next = tokio::select! {
                next = news.recv() => next,
                Ok(()) = clusters.changed() => {
                    if !hand_over(event("console", &console.view()), &send).await {
                        return;
                    }
                    continue;
                }
                () = send.closed() => return,
            };
            match next {
                Ok(sent) => {
                    if !pass(&sent, &mut steps, &send).await {
                        return;
                    }
                }
                Err(RecvError::Lagged(_)) => break,
                Err(RecvError::Closed) => return,
            }
        }
    }
}

/// Sends a message, unless it is a step that the page has. Returns whether the page still reads.
async fn pass(sent: &Sent, steps: &mut usize, send: &mpsc::Sender<Event>) -> bool {
    if sent.steps.is_some_and(|step| step <= *steps) {
        return true;
    }
    let is_sent = hand_over(event_of(sent), send).await;
    *steps = sent.steps.unwrap_or(*steps);
    is_sent
}

/// Sends an event. Returns whether the page still reads.
async fn hand_over(event: Event, send: &mpsc::Sender<Event>) -> bool {
    matches!(tokio::time::timeout(READS, send.send(event)).await, Ok(Ok(())))
}

pub(super) async fn stop(State(console): State<Console>, Path(id): Path<String>) -> Response {
    let folder = match console.run(&id).await {
        Ok(folder) => folder,
        Err(why) => return fault(StatusCode::NOT_FOUND, &why),
    };
    let asked = tokio::task::spawn_blocking(move || {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        match LiveRun::read(&folder) {
            Ok(Some(live)) if live.is_current(now) => {}
            Ok(_) => {
                let why = "no process works on this run: there is nothing to end";
                return Err((StatusCode::CONFLICT, why.to_owned()));
            }
            Err(e) => return Err((StatusCode::CONFLICT, e.message)),
        }
        request_stop(&folder).map_err(|e| (StatusCode::INTERNAL_SERVER_ERROR, e.message))
    });
    match asked.await {
        Ok(Ok(())) => StatusCode::ACCEPTED.into_response(),
        Ok(Err((status, why))) => fault(status, &why),
        Err(_) => fault(StatusCode::INTERNAL_SERVER_ERROR, "the console could not do that"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::time::Duration;

    use super::*;
    use crate::access::Access;
    use crate::runs::Runs;
    use crate::runs::tests::measure_repeats;

    #[test]
    fn a_file_is_of_the_runs_folder_and_no_link_or_pipe() {
        let (place, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = |name: &str| place.path().join(name);
        std::fs::create_dir(path("report")).unwrap();
        std::fs::write(path("report/report.md"), "text").unwrap();
        assert!(open_inside(place.path(), "report/report.md").is_ok());
        std::fs::write(other.path().join("report.json"), "secret").unwrap();
        symlink(other.path().join("report.json"), path("run.json")).unwrap();
        assert!(open_inside(place.path(), "run.json").is_err(), "a link to a file of another folder");
        std::fs::rename(path("report"), path("before")).unwrap();
        symlink(other.path(), path("report")).unwrap();
        assert!(open_inside(place.path(), "report/report.json").is_err(), "by a link to another folder");
        nix::unistd::mkfifo(&path("study.toml"), Mode::S_IRWXU).unwrap();
        assert!(open_inside(place.path(), "study.toml").is_err());
        symlink(place.path(), other.path().join("run")).unwrap();
        std::fs::write(path("events.jsonl"), "{}").unwrap();
        assert!(
            open_inside(&other.path().join("run"), "events.jsonl").is_ok(),
            "the run itself may be a link"
        );
    }

    #[test]
    fn a_file_of_several_parts_is_sent_whole() {
        let place = tempfile::NamedTempFile::new().unwrap();
        let text: Vec<u8> = (0..PART as usize * 5 / 2).map(|n| n as u8).collect();
        std::fs::write(place.path(), &text).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        for length in [0, 1, PART, text.len() as u64] {
            let sent = runtime.block_on(async {
                let first = read_part(File::open(place.path()).unwrap().take(length)).unwrap();
                axum::body::to_bytes(Body::from_stream(Parts::new(first)), usize::MAX).await.unwrap()
            });
            assert_eq!(sent, text[..length as usize]);
        }
    }

    /// How many messages a page gets that has so many steps, and reads only once the whole run is known.
    fn received(path: &std::path::Path, steps: usize, all: usize) -> usize {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let run = WatchedRun::start(path).unwrap();
            let (send, mut rest) = mpsc::channel(BEHIND);
            let access = Access::local("root".into(), None, None).0;
            let console = Console::new(Vec::new(), Runs::new(Vec::new(), None), access);
            tokio::spawn(pass_on(run.clone(), console, steps, send));
            while run.subscribe(0).0.len() < all {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let mut count = 0;
            while let Ok(Some(_)) = tokio::time::timeout(Duration::from_millis(900), rest.recv()).await {
                count += 1;
            }
            count
        })
    }

    #[test]
    fn a_page_that_is_behind_or_comes_back_gets_each_step_once_and_all_of_them() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("run");
        drop(measure_repeats(&path, "s", 100, 1000.0, true));
        // All steps, the run, that no process works on it, and what the console has pages of.
        assert_eq!(received(&path, 0, 102), 103);
        assert_eq!(received(&path, 70, 102), 33);
    }
}
