//! Actions on a cluster: what they will do, and that they are done.

use std::time::Instant;

use axum::Json;
use axum::extract::{Extension, Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use super::said::Said;
use super::{Console, fault};
use crate::access::Caller;
use crate::action::Action;
use crate::carry_out::{self, Carried, Undone};
use crate::following::Following;
use crate::preview::preview;
use crate::scrubbing;

/// Actions at once.
pub(super) const MOST_ACTIONS: usize = 16;

/// What an action will do.
pub(super) async fn show(
    State(console): State<Console>,
    Path(name): Path<String>,
    Said(action): Said<Action>,
) -> Response {
    let following = match console.cluster(&name) {
        Ok(following) => following,
        Err(why) => return fault(StatusCode::NOT_FOUND, &why),
    };
    match following.cluster().status_of(Instant::now()) {
        Ok(status) => Json(preview(status, &action)).into_response(),
        Err(why) => fault(StatusCode::SERVICE_UNAVAILABLE, &why),
    }
}

/// What a person has seen of an action.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Seen {
    /// [`Preview::shown`](crate::preview::Preview::shown), if there was a preview.
    shown: Option<String>,
}

/// Carries an action out. It goes on if the one who sent it is gone.
pub(super) async fn act(
    State(console): State<Console>,
    Path(name): Path<String>,
    Query(Seen { shown }): Query<Seen>,
    Extension(caller): Extension<Caller>,
    Said(action): Said<Action>,
) -> Response {
    let following = match console.cluster(&name) {
        Ok(following) => following.clone(),
        Err(why) => return fault(StatusCode::NOT_FOUND, &why),
    };
    let Ok(place) = console.actions.try_acquire_owned() else {
        return fault(
            StatusCode::SERVICE_UNAVAILABLE,
            "too many actions are under way: try again in a moment",
        );
    };
    let done = tokio::task::spawn_blocking(move || {
        let _place = place;
        carry_out(&following, (&action, shown.as_deref()), &caller)
    });
    match done.await {
        Ok(Ok(done)) => Json(done).into_response(),
        Ok(Err(undone)) => {
            let status = match undone {
                Undone::Refused(_) => StatusCode::CONFLICT,
                Undone::Unreachable(_) => StatusCode::SERVICE_UNAVAILABLE,
                Undone::Unknown(_) => StatusCode::GATEWAY_TIMEOUT,
            };
            fault(status, undone.why())
        }
        Err(_) => fault(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the console failed: it is not known whether this was done",
        ),
    }
}

/// Carries an action out. What was done, and what may have been, is an event.
fn carry_out(
    following: &Following,
    (action, shown): (&Action, Option<&str>),
    caller: &Caller,
) -> Result<carry_out::Done, Undone> {
    let by = format!("by {} ({})", caller.holder.name, caller.holder.role);
    match carry_out::carry_out(following.place(), &following.known(), (action, shown)) {
        Ok(Carried { done, scrubs, not_begun, status }) => {
            // What is shown, and what the next action will do, is how things are now.
            if let Some(status) = status {
                following.learn(status);
            }
            following.note("info", format!("{}, {by}", done.message), action);
            if !scrubs.is_empty() {
                follow_scrub(following.clone(), action.clone(), scrubs, not_begun);
            }
            Ok(done)
        }
        Err(undone) => {
            if let Undone::Unknown(why) = &undone {
                following.note("warning", format!("{}, {by}: {why}", action.title()), action);
            }
            Err(undone)
        }
    }
}

/// The end of a scrub is an event too. If there is no thread for it, it is none.
fn follow_scrub(
    following: Following,
    action: Action,
    nodes: Vec<(String, carry_out::NodeApi)>,
    not_begun: Vec<(String, String)>,
) {
    let run = move || {
        let volume = action.volume().unwrap_or_default();
        let path = format!("/v1/volumes/{}/scrub", loadline_api_client::escaped(volume));
        let (is_wrong, found) = scrubbing::wait(volume, &path, &nodes, not_begun);
        following.note(if is_wrong { "warning" } else { "info" }, found, &action);
    };
    let _ = std::thread::Builder::new().name("scrub".into()).spawn(run);
}
