//! What the console answers.
//!
//! | module | idea |
//! | --- | --- |
//! | [`actions`] | actions on a cluster |
//! | [`clusters`] | the clusters that the console follows |
//! | `connection` | connections, within limits |
//! | `guard` | who may send a request |
//! | `page` | a page, and what a browser lets it do |
//! | `past` | what they did in the last 24 hours |
//! | `plain` | what a browser gets in place of a fault |
//! | `run` | the page of one run |
//! | [`runs`] | the runs of the console's folders |
//! | `said` | the content of a request |
//! | [`session`] | signing in and out |
//! | `sse` | server-sent events to one page |
//! | `studies` | studies that the console starts |
//! | [`tls`] | the console's certificate |

pub mod actions;
pub mod clusters;
mod connection;
mod guard;
mod page;
mod past;
mod plain;
mod run;
pub mod runs;
mod said;
pub mod session;
mod sse;
mod studies;
pub mod tls;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use axum::extract::{DefaultBodyLimit, Request};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use loadline_packed::unpack;
use loadline_san_node::api::browsers::{Names, refuse_foreign_pages};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

use crate::access::Access;
use crate::following::{Following, Place};
use crate::runs::Runs;
use crate::studies::Studies;
use guard::Guard;
use page::Page;
use run::WatchedRuns;
use tls::Tls;

/// Streams of pages at once.
const MOST_STREAMS: usize = 200;
/// The console's page.
static PAGE: LazyLock<Page> =
    LazyLock::new(|| Page::new(unpack(include_bytes!(concat!(env!("OUT_DIR"), "/console.html")))));
/// What a browser may do with an answer that is no page: nothing.
const NOTHING: HeaderValue = HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'");

/// What went wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Fault {
    /// For people.
    pub message: String,
}

/// The console.
#[derive(Debug, Clone)]
pub struct Console {
    /// By name. All who wait for a change of the channel are woken when a cluster is added, or has ended.
    clusters: Arc<watch::Sender<BTreeMap<String, Following>>>,
    access: Arc<Access>,
    streams: Arc<Semaphore>,
    runs: Runs,
    comparisons: Arc<Semaphore>,
    /// A run that has a page though it is in no folder of runs: its id, and its folder.
    own: Option<(String, PathBuf)>,
    watched: WatchedRuns,
    studies: Studies,
    /// Places of actions that are carried out.
    actions: Arc<Semaphore>,
}

impl Console {
    /// A console of these clusters, whose names differ, and of these runs, for those who have access.
    pub fn new(clusters: Vec<Following>, runs: Runs, access: Access) -> Console {
        let studies = Studies::new(runs.first_folder());
        let clusters = clusters.into_iter().map(|of| (of.name().to_owned(), of)).collect();
        Console {
            clusters: Arc::new(watch::Sender::new(clusters)),
            access: Arc::new(access),
            streams: Arc::new(Semaphore::new(MOST_STREAMS)),
            runs,
            comparisons: Arc::new(Semaphore::new(runs::MOST_COMPARISONS)),
            own: None,
            watched: WatchedRuns::default(),
            studies,
            actions: Arc::new(Semaphore::new(actions::MOST_ACTIONS)),
        }
    }

    /// The same console, with a page for the run of this id in this folder too.
    pub fn with_run(self, id: &str, folder: &Path) -> Console {
        Console { own: Some((id.to_owned(), folder.to_path_buf())), ..self }
    }

    /// Follows one more cluster. One of the same name is not followed any more.
    ///
    /// # Errors
    /// The system starts no further thread.
    pub fn follow(&self, place: Place) -> std::io::Result<()> {
        let following = Following::start(place)?;
        self.clusters.send_modify(|clusters| {
            clusters.insert(following.name().to_owned(), following);
        });
        Ok(())
    }

    /// The cluster of this name was stopped, as was intended: its page says so, and `why`, a sentence for people.
    pub fn end_cluster(&self, name: &str, why: &str) {
        self.clusters.send_modify(|clusters| {
            if let Some(following) = clusters.get(name) {
                following.end(why);
            }
        });
    }

    /// Whether a page shows a run at this moment.
    pub fn is_watched(&self) -> bool {
        self.watched.is_any()
    }

    /// Answers, until the future is dropped; with TLS, if there is some. `names` are the names of hosts by which browsers may ask, besides
    /// addresses and the machine's own name.
    pub async fn serve(
        self,
        listener: TcpListener,
        tls: Option<Tls>,
        names: &[String],
    ) -> std::io::Result<()> {
        let port = listener.local_addr()?.port();
        let router = self.router(port, tls.is_some(), names);
        connection::serve(listener, tls, router).await
    }

    fn router(self, port: u16, is_protected: bool, names: &[String]) -> Router {
        let advice = "Use the address of the console, or start it with --name and this name";
        let names = Names::new(names, advice);
        let guard = Guard::new(Arc::clone(&self.access), port, is_protected);
        Router::new()
            .route("/", get(async || PAGE.answer()))
            .route("/api/openapi.json", get(description))
            .route("/api/console", get(clusters::console))
            .route("/api/clusters", get(clusters::clusters))
            .route("/api/clusters/{name}/stream", get(clusters::stream))
            .route("/api/clusters/{name}/volumes", get(clusters::volumes))
            .route("/api/clusters/{name}/actions/preview", post(actions::show))
            .route("/api/clusters/{name}/actions", post(actions::act))
            .route("/api/runs", get(runs::page))
            .route("/api/runs/{id}", get(runs::detail))
            .route("/api/runs/{id}/notes", runs::notes())
            .route("/api/compare", get(runs::compare))
            .route("/api/trend", get(runs::trend))
            .route("/runs/{id}", get(run::forward))
            .route("/runs/{id}/report/report.html", get(run::page))
            .route("/runs/{id}/{*file}", get(run::file))
            .route("/api/runs/{id}/stream", get(run::stream))
            .route("/api/runs/{id}/stop", post(run::stop))
            .merge(past::routes())
            .merge(studies::routes())
            .merge(session::routes(guard.clone()))
            .fallback(async || fault(StatusCode::NOT_FOUND, "there is no such page"))
            .layer(DefaultBodyLimit::max(said::LONGEST))
            .layer(from_fn_with_state(guard, guard::guard))
            .layer(from_fn_with_state(self.clone(), plain::for_browsers))
            .layer(from_fn(harden))
            .layer(from_fn_with_state(names, refuse_foreign_pages))
            .with_state(self)
    }

    /// The cluster of this name; the error lists those that there are.
    fn cluster(&self, name: &str) -> Result<Following, String> {
        let clusters = self.clusters.borrow();
        let known = || {
            let names: Vec<&str> = clusters.keys().map(String::as_str).collect();
            format!("there is no cluster of this name; there are: {}", names.join(", "))
        };
        clusters.get(name).cloned().ok_or_else(known)
    }

    /// The folder of a run. A thread of its own asks the index, which may let it wait.
    async fn run(&self, id: &str) -> Result<PathBuf, String> {
        if let Some((_, folder)) = self.own.as_ref().filter(|(own, _)| own == id) {
            return Ok(folder.clone());
        }
        if let Some(folder) = self.studies.find(id) {
            return Ok(folder);
        }
        let (runs, id) = (self.runs.clone(), id.to_owned());
        let found = tokio::task::spawn_blocking(move || runs.find(&id)).await;
        found.ok().flatten().ok_or_else(|| "there is no run of this id here: its folder was moved or removed, or it is in none of the console's folders of runs".to_owned())
    }
}

fn fault(status: StatusCode, message: &str) -> Response {
    let fault = Fault { message: message.into() };
    let mut answer = (status, Json(&fault)).into_response();
    answer.extensions_mut().insert(fault);
    answer
}

/// What every answer says to a browser.
async fn harden(request: Request, next: Next) -> Response {
    let mut answer = next.run(request).await;
    let headers = answer.headers_mut();
    headers.entry(CONTENT_SECURITY_POLICY).or_insert(NOTHING);
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    answer
}

async fn description() -> Response {
    let description = unpack(include_bytes!(concat!(env!("OUT_DIR"), "/console.openapi.json")));
    ([(CONTENT_TYPE, "application/json")], description).into_response()
}

#[cfg(test)]
mod tests;
