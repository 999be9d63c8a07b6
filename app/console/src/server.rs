//! What the console answers: the page, and the clusters that it follows.
//!
//! A page opens one stream for the cluster that it shows. The stream begins with the past that the page asks for and lacks, and goes on
//! with each second. All pages get the same bytes of a second.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::{Path, Query, Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_core::Stream;
use loadline_packed::unpack;
use loadline_san_node::api::browsers::{Names, refuse_foreign_pages};
use ring::digest::{SHA256, digest};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::following::{Following, Second};
use crate::past::PastView;
use crate::view::{EventRow, Now, VolumeRow};

/// Streams of pages at once.
const MOST_STREAMS: usize = 200;
/// Messages that a page may be behind.
const BEHIND: usize = 8;
/// How long a page may not read.
const READS: Duration = Duration::from_secs(30);
/// Volumes of an answer at most.
const MOST_VOLUMES: usize = 200;
/// Events that a page gets of the time before.
const PAST_EVENTS: usize = 500;
/// Seconds of the past that a page gets if it does not say how many.
const PAST: u64 = 15 * 60;

/// The page, and what a browser lets it do: it runs its own script and no other one, loads nothing from elsewhere, and asks no other host.
static PAGE: LazyLock<(String, HeaderValue)> = LazyLock::new(|| {
    let page = unpack(include_bytes!(concat!(env!("OUT_DIR"), "/console.html")));
    let script = page.split_once(SCRIPT).and_then(|(_, rest)| rest.split_once("</script>"));
    let script = script.map_or("", |(script, _)| script);
    let hash = STANDARD.encode(digest(&SHA256, script.as_bytes()));
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{hash}'; style-src 'unsafe-inline'; img-src data: blob:; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'"
    );
    (page, HeaderValue::try_from(policy).expect("it is ASCII"))
});
/// How the page's only script begins.
const SCRIPT: &str = "<script type=\"module\">";

/// One message of the stream of a cluster. Its name is that of the event, and its content the data.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// First: what the cluster did before.
    Past(PastView),
    /// Then: what happened before, the newest first.
    Events(Vec<EventRow>),
    /// Each second.
    Now(Box<Now>),
}

/// A cluster, in the list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ClusterRow {
    /// What people call it.
    pub name: String,
}

/// Volumes of a cluster: a part of all that match.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct VolumesView {
    /// How many match.
    pub total: usize,
    /// Those that were asked for.
    pub volumes: Vec<VolumeRow>,
}

/// What went wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Fault {
    /// For people.
    pub message: String,
}

/// The console.
#[derive(Debug, Clone)]
pub struct Console {
    clusters: Arc<BTreeMap<String, Following>>,
    streams: Arc<Semaphore>,
}

impl Console {
    /// A console of these clusters, whose names differ.
    pub fn new(clusters: Vec<Following>) -> Console {
        let clusters = clusters.into_iter().map(|of| (of.name().to_owned(), of)).collect();
        Console { clusters: Arc::new(clusters), streams: Arc::new(Semaphore::new(MOST_STREAMS)) }
    }

    /// Listens on this machine alone.
    ///
    /// # Errors
    /// The port is in use, or may not be used.
    pub async fn listen(port: u16) -> std::io::Result<TcpListener> {
        TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await
    }

    /// Answers, until the future is dropped.
    pub async fn serve(self, listener: TcpListener) -> std::io::Result<()> {
        axum::serve(listener, self.router()).await
    }

    fn router(self) -> Router {
        let names = Names::new(&[], "Use http://127.0.0.1 with the console's port");
        Router::new()
            .route("/", get(page))
            .route("/api/openapi.json", get(description))
            .route("/api/clusters", get(clusters))
            .route("/api/clusters/{name}/stream", get(stream))
            .route("/api/clusters/{name}/volumes", get(volumes))
            .fallback(async || fault(StatusCode::NOT_FOUND, "there is no such page"))
            .layer(from_fn(harden))
            .layer(from_fn_with_state(names, refuse_foreign_pages))
            .with_state(self)
    }

    fn cluster(&self, name: &str) -> Result<&Following, String> {
        let known = || {
            let names: Vec<&str> = self.clusters.keys().map(String::as_str).collect();
            format!("there is no cluster of this name; there are: {}", names.join(", "))
        };
        self.clusters.get(name).ok_or_else(known)
    }
}

fn fault(status: StatusCode, message: &str) -> Response {
    (status, Json(Fault { message: message.into() })).into_response()
}

/// What every answer says to a browser.
async fn harden(request: Request, next: Next) -> Response {
    let mut answer = next.run(request).await;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, PAGE.1.clone());
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    answer
}

async fn description() -> Response {
    let description = unpack(include_bytes!(concat!(env!("OUT_DIR"), "/console.openapi.json")));
    ([(CONTENT_TYPE, "application/json")], description).into_response()
}

async fn page() -> Response {
    ([(CONTENT_TYPE, "text/html; charset=utf-8")], PAGE.0.as_str()).into_response()
}

async fn clusters(State(console): State<Console>) -> Json<Vec<ClusterRow>> {
    Json(console.clusters.keys().map(|name| ClusterRow { name: name.clone() }).collect())
}

/// Which volumes are wanted.
#[derive(Debug, Default, Deserialize)]
struct Wanted {
    /// Those whose name contains this.
    #[serde(default)]
    search: String,
    /// From this one on.
    #[serde(default)]
    from: usize,
    /// So many.
    count: Option<usize>,
}

async fn volumes(
    State(console): State<Console>,
    Path(name): Path<String>,
    Query(wanted): Query<Wanted>,
) -> Response {
    let following = match console.cluster(&name) {
        Ok(following) => following,
        Err(why) => return fault(StatusCode::NOT_FOUND, &why),
    };
    let cluster = following.cluster();
    let Some(status) = cluster.status() else {
        return fault(StatusCode::SERVICE_UNAVAILABLE, "no node of the cluster has answered yet");
    };
    let mut rows = cluster.volume_rows(status);
    rows.retain(|row| row.name.contains(&wanted.search));
    let total = rows.len();
    let count = wanted.count.unwrap_or(MOST_VOLUMES).min(MOST_VOLUMES);
    let volumes = rows.into_iter().skip(wanted.from).take(count).collect();
    Json(VolumesView { total, volumes }).into_response()
}

/// What a page wants of the past.
#[derive(Debug, Default, Deserialize)]
struct Since {
    /// So many seconds.
    past: Option<u64>,
}

/// Messages to one page.
struct Messages {
    first: VecDeque<Event>,
    rest: mpsc::Receiver<Event>,
    _place: OwnedSemaphorePermit,
}

impl Stream for Messages {
    type Item = Result<Event, Infallible>;
    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(first) = self.first.pop_front() {
            return Poll::Ready(Some(Ok(first)));
        }
        self.rest.poll_recv(context).map(|event| event.map(Ok))
    }
}

fn event(name: &str, content: &impl Serialize) -> Event {
    Event::default().event(name).data(serde_json::to_string(content).expect("it is numbers and texts"))
}

fn of_second(second: &Second) -> Event {
    Event::default().event("now").id(second.now.at.to_string()).data(&*second.json)
}

async fn stream(
    State(console): State<Console>,
    Path(name): Path<String>,
    Query(since): Query<Since>,
    headers: HeaderMap,
) -> Response {
    let following = match console.cluster(&name) {
        Ok(following) => following.clone(),
        Err(why) => return fault(StatusCode::NOT_FOUND, &why),
    };
    let Ok(place) = console.streams.try_acquire_owned() else {
        return fault(StatusCode::SERVICE_UNAVAILABLE, "too many pages are open: close one");
    };
    let (latest, seconds) = following.watch();
    let last = latest.as_ref().map_or(0, |second| second.now.at);
    let seen = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse::<u64>().ok());
    let begin = last.saturating_sub(since.past.unwrap_or(PAST)).max(seen.map_or(0, |seen| seen + 1));
    let mut first = VecDeque::new();
    first.push_back(event("past", &following.past().view(begin, last)));
    first.push_back(event("events", &following.cluster().last_events(PAST_EVENTS)));
    first.extend(latest.iter().map(of_second));
    let (send, rest) = mpsc::channel(BEHIND);
    tokio::spawn(forward(following, seconds, last, send));
    Sse::new(Messages { first, rest, _place: place }).keep_alive(KeepAlive::new()).into_response()
}

/// Sends the seconds to a page, until it is closed or does not read. One that was behind gets what it has missed.
async fn forward(
    following: Following,
    mut seconds: tokio::sync::broadcast::Receiver<Second>,
    mut last: u64,
    send: mpsc::Sender<Event>,
) {
    use tokio::sync::broadcast::error::RecvError;
    loop {
        let next = tokio::select! {
            next = seconds.recv() => next,
            () = send.closed() => return,
        };
        let events = match next {
            Err(RecvError::Closed) => return,
            Err(RecvError::Lagged(_)) => continue,
            Ok(second) if second.now.at <= last => continue,
            Ok(second) => {
                let missed = (second.now.at > last + 1 && last > 0)
                    .then(|| event("past", &following.past().view(last + 1, second.now.at - 1)));
                last = second.now.at;
                missed.into_iter().chain([of_second(&second)])
            }
        };
        for event in events {
            if !matches!(tokio::time::timeout(READS, send.send(event)).await, Ok(Ok(()))) {
                return;
            }
        }
    }
}
