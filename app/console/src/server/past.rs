//! What the console answers about the past: of a cluster, of a node, of a volume.

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Deserialize;

use super::{Console, fault};
use crate::past::{Part, SECONDS};

/// Seconds that are answered if the query does not say how many.
const DEFAULT: u64 = 15 * 60;

/// Which seconds are wanted.
#[derive(Debug, Default, Deserialize)]
struct Range {
    /// The first one: seconds since 1970. Without it, the last one is the last that is kept.
    from: Option<u64>,
    /// How many: a day at most.
    seconds: Option<u64>,
    /// The seconds of a row, at least.
    step: Option<u32>,
}

/// The routes of the past.
pub(super) fn routes() -> Router<Console> {
    Router::new()
        .route("/api/clusters/{name}/past", get(cluster))
        .route("/api/clusters/{name}/nodes/{node}/past", get(node))
        .route("/api/clusters/{name}/volumes/{volume}/past", get(volume))
}

async fn cluster(state: State<Console>, Path(name): Path<String>, range: Query<Range>) -> Response {
    answer(&state, &name, Part::Cluster, &range)
}

async fn node(state: State<Console>, path: Path<(String, String)>, range: Query<Range>) -> Response {
    answer(&state, &path.0.0, Part::Node(&path.0.1), &range)
}

async fn volume(state: State<Console>, path: Path<(String, String)>, range: Query<Range>) -> Response {
    answer(&state, &path.0.0, Part::Volume(&path.0.1), &range)
}

fn answer(console: &Console, name: &str, part: Part<'_>, range: &Range) -> Response {
    let following = match console.cluster(name) {
        Ok(following) => following,
        Err(why) => return fault(StatusCode::NOT_FOUND, &why),
    };
    let last = following.latest().map_or(0, |second| second.now.at);
    let range = between(range, last);
    let step = range.2;
    match following.past().of(part, (range.0, range.1), step) {
        Some(view) => Json(view).into_response(),
        None => fault(StatusCode::NOT_FOUND, &missing(part)),
    }
}

/// The first and the last second, and the seconds of a row, if `last` is the last second that is kept.
fn between(range: &Range, last: u64) -> (u64, u64, u32) {
    let seconds = range.seconds.unwrap_or(DEFAULT).clamp(1, SECONDS as u64);
    let from = range.from.unwrap_or((last + 1).saturating_sub(seconds));
    (from, from.saturating_add(seconds - 1), range.step.unwrap_or(1).clamp(1, SECONDS as u32))
}

fn missing(part: Part<'_>) -> String {
    match part {
        Part::Cluster => "nothing is kept of the cluster".into(),
        Part::Node(name) => format!(
            "nothing is kept of a node '{name}': the cluster has none of this name, or too many nodes"
        ),
        Part::Volume(name) => {
            format!(
                "nothing is kept of a volume '{name}': the cluster has none of this name, or too many volumes"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_ends_with_the_last_second_unless_it_says_where_it_begins_and_is_a_day_at_most() {
        let range = |from, seconds, step| Range { from, seconds, step };
        assert_eq!(between(&Range::default(), 10_000), (9101, 10_000, 1));
        assert_eq!(between(&range(Some(50), Some(10), Some(5)), 10_000), (50, 59, 5));
        assert_eq!(between(&range(None, Some(u64::MAX), Some(0)), 200_000), (113_601, 200_000, 1));
        assert_eq!(between(&range(None, Some(0), None), 0), (0, 0, 1));
        assert_eq!(between(&range(Some(u64::MAX), None, None), 0).1, u64::MAX);
    }
}
