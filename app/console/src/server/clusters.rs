//! The clusters that the console follows.
//!
//! A page opens one stream for the cluster that it shows. The stream begins with the past that the page asks for and lacks, and goes on
//! with each second. All pages get the same bytes of a second.

use std::collections::VecDeque;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::sse::{BEHIND, Messages, READS, event};
use super::{Console, fault};
use crate::following::{Following, Second};
use crate::past::PastView;
use crate::view::{EventRow, Now, VolumeRow};

/// Volumes of an answer at most.
const MOST_VOLUMES: usize = 200;
/// Events that a page gets of the time before.
const PAST_EVENTS: usize = 500;
/// Seconds of the past that a page gets if it does not say how many.
const PAST: u64 = 15 * 60;

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
    /// The API of one of its nodes.
    pub api: String,
    /// It was stopped, as was intended: the console keeps what it did.
    pub ended: bool,
}

/// What the console has pages of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ConsoleView {
    /// The clusters that are followed.
    pub clusters: Vec<ClusterRow>,
    /// The id of the run whose console it is (`loadline run --console`). The clusters are those of this run then.
    pub run: Option<String>,
    /// It has folders of runs, and so a list of runs.
    pub lists_runs: bool,
}

/// Volumes of a cluster: a part of all that match.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct VolumesView {
    /// How many match.
    pub total: usize,
    /// Those that were asked for.
    pub volumes: Vec<VolumeRow>,
}

impl Console {
    /// What it has pages of.
    pub(super) fn view(&self) -> ConsoleView {
        let row = |(name, of): (&String, &Following)| ClusterRow {
            name: name.clone(),
            api: of.place().api.to_string(),
            ended: of.has_ended(),
        };
        let clusters = self.clusters.borrow().iter().map(row).collect();
        let run = self.own.as_ref().map(|(id, _)| id.clone());
        ConsoleView { clusters, run, lists_runs: self.runs.first_folder().is_some() }
    }
}

pub(super) async fn console(State(console): State<Console>) -> Json<ConsoleView> {
    Json(console.view())
}

pub(super) async fn clusters(State(console): State<Console>) -> Json<Vec<ClusterRow>> {
    Json(console.view().clusters)
}

/// Which volumes are wanted.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Wanted {
    /// Those whose name contains this.
    #[serde(default)]
    search: String,
    /// From this one on.
    #[serde(default)]
    from: usize,
    /// So many.
    count: Option<usize>,
}

pub(super) async fn volumes(
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
pub(super) struct Since {
    /// So many seconds.
    past: Option<u64>,
}

fn of_second(second: &Second) -> Event {
    Event::default().event("now").id(second.now.at.to_string()).data(&*second.json)
}

pub(super) async fn stream(
    State(console): State<Console>,
    Path(name): Path<String>,
    Query(since): Query<Since>,
    headers: HeaderMap,
) -> Response {
    let following = match console.cluster(&name) {
        Ok(following) => following,
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
    Messages::new(first, rest, place).answer()
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
                let has_missed = second.now.at > last + 1 && last > 0;
                let missed = has_missed.then(|| {
                    [
                        event("past", &following.past().view(last + 1, second.now.at - 1)),
                        event("events", &following.cluster().last_events(PAST_EVENTS)),
                    ]
                });
                last = second.now.at;
                missed.into_iter().flatten().chain([of_second(&second)])
            }
        };
        for event in events {
            if !matches!(tokio::time::timeout(READS, send.send(event)).await, Ok(Ok(()))) {
                return;
            }
        }
    }
}
