//! The runs of the console's folders.

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, put};
use loadline_report::compare::Figure;
use serde::{Deserialize, Serialize};

use super::{Console, fault};
use crate::runs::query::Wanted;
use crate::runs::row::Notes;
use crate::runs::{Refusal, Runs};

/// Bytes of a body at most.
const MOST_BODY: usize = 64 << 10;
/// Comparisons at once: each reads two run folders.
pub(super) const MOST_COMPARISONS: usize = 2;

/// Answers with what `work` returns. It reads files, so that a thread of its own does it.
async fn answer<T: Serialize + Send + 'static>(
    runs: Runs,
    work: impl FnOnce(&Runs) -> Result<T, Refusal> + Send + 'static,
) -> Response {
    match tokio::task::spawn_blocking(move || work(&runs)).await {
        Ok(Ok(content)) => Json(content).into_response(),
        Ok(Err(Refusal::NotFound(why))) => fault(StatusCode::NOT_FOUND, &why),
        Ok(Err(Refusal::Usage(why))) => fault(StatusCode::BAD_REQUEST, &why),
        Ok(Err(Refusal::Later(why))) => fault(StatusCode::SERVICE_UNAVAILABLE, &why),
        Ok(Err(Refusal::Failed(why))) => fault(StatusCode::INTERNAL_SERVER_ERROR, &why),
        Err(_) => fault(StatusCode::INTERNAL_SERVER_ERROR, "the console could not do that"),
    }
}

/// What the query asks for.
type Asked<T> = Result<Query<T>, QueryRejection>;

fn refuse(rejection: QueryRejection) -> Response {
    fault(StatusCode::BAD_REQUEST, &rejection.body_text())
}

pub(super) async fn page(State(console): State<Console>, wanted: Asked<Wanted>) -> Response {
    match wanted {
        Ok(Query(wanted)) => answer(console.runs, move |runs| runs.page(&wanted)).await,
        Err(rejection) => refuse(rejection),
    }
}

pub(super) async fn detail(State(console): State<Console>, Path(id): Path<String>) -> Response {
    answer(console.runs, move |runs| runs.detail(&id)).await
}

/// Tags and a note, which replace those of a run. The content type must be that of JSON, so that no form of another site can send them.
pub(super) fn notes() -> MethodRouter<Console> {
    put(
        async |State(console): State<Console>,
               Path(id): Path<String>,
               notes: Result<Json<Notes>, JsonRejection>| {
            match notes {
                Ok(Json(notes)) => answer(console.runs, move |runs| runs.set_notes(&id, notes)).await,
                Err(rejection) => fault(rejection.status(), &rejection.body_text()),
            }
        },
    )
    .layer(DefaultBodyLimit::max(MOST_BODY))
}

/// Which runs are compared.
#[derive(Debug, Deserialize)]
pub(super) struct Pair {
    base: String,
    new: String,
}

pub(super) async fn compare(State(console): State<Console>, pair: Asked<Pair>) -> Response {
    let Pair { base, new } = match pair {
        Ok(Query(pair)) => pair,
        Err(rejection) => return refuse(rejection),
    };
    let Ok(place) = console.comparisons.try_acquire_owned() else {
        return fault(
            StatusCode::SERVICE_UNAVAILABLE,
            "the console compares other runs at this moment: try again",
        );
    };
    answer(console.runs, move |runs| {
        let _place = place;
        runs.compare(&base, &new)
    })
    .await
}

/// Which trend is wanted.
#[derive(Debug, Deserialize)]
pub(super) struct Line {
    study: String,
    load: Option<String>,
    #[serde(default)]
    condition: String,
    figure: Option<Figure>,
}

pub(super) async fn trend(State(console): State<Console>, line: Asked<Line>) -> Response {
    match line {
        Ok(Query(Line { study, load, condition, figure })) => {
            let load = load.map(|load| (load, condition));
            answer(console.runs, move |runs| runs.trend(&study, load, figure.unwrap_or(Figure::Iops))).await
        }
        Err(rejection) => refuse(rejection),
    }
}
