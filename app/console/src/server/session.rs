//! Signing in and out, and who one is.

use std::time::{Duration, Instant};

use axum::extract::{ConnectInfo, Extension, State};
use axum::http::StatusCode;
use axum::http::header::SET_COOKIE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::guard::{Guard, SIGN_IN, SIGN_OUT, refused};
use super::said::Said;
use super::{Console, fault};
use crate::access::role::Role;
use crate::access::sessions::LIFE;
use crate::access::{Caller, Peer};

/// What one signs in with.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SignIn {
    /// A key, or that of the link that the console has printed. Without one, the certificate of the connection counts.
    #[serde(default)]
    key: Option<String>,
}

/// A person who uses the console.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Who {
    /// Its name.
    pub name: String,
    /// What it may do.
    pub role: Role,
}

/// Who sends this, and what is possible.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SessionView {
    /// Who it is, if that is proved.
    pub who: Option<Who>,
    /// It has signed in, and can sign out.
    pub signed_in: bool,
    /// It may see what the console shows.
    pub sees: bool,
    /// How one can sign in, for people.
    pub how: String,
}

/// A session that has begun. Its cookie is in the head of the answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SignedIn {
    /// The secret of the page, for the header `X-Loadline-CSRF` of each request that changes something.
    pub csrf: String,
    /// The session, as `GET` shows it.
    pub session: SessionView,
}

fn view(guard: &Guard, caller: Option<&Caller>) -> SessionView {
    let who = caller.map(|caller| Who { name: caller.holder.name.clone(), role: caller.holder.role });
    SessionView {
        sees: who.is_some() || guard.access.viewing_is_free(),
        who,
        signed_in: caller.is_some_and(|caller| caller.session.is_some()),
        how: guard.access.how_to_sign_in().into(),
    }
}

/// The routes of sessions.
pub(super) fn routes(guard: Guard) -> Router<Console> {
    let show = async |State(guard): State<Guard>, caller: Option<Extension<Caller>>| {
        Json(view(&guard, caller.map(|Extension(caller)| caller).as_ref()))
    };
    let router = Router::new().route(SIGN_IN, get(show).post(sign_in)).route(SIGN_OUT, post(sign_out));
    router.with_state(guard)
}

async fn sign_in(
    State(guard): State<Guard>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Said(given): Said<SignIn>,
) -> Response {
    let now = Instant::now();
    let holder = match given.key {
        Some(key) => guard.access.try_key(&peer, key.trim(), now).map_err(refused),
        None => guard.access.holder_of_certificate(&peer).ok_or_else(|| {
            fault(StatusCode::UNAUTHORIZED, &format!("there is no key. {}", guard.access.how_to_sign_in()))
        }),
    };
    let holder = match holder {
        Ok(holder) => holder,
        Err(answer) => return answer,
    };
    let begun = guard.access.begin(holder, now);
    let caller = guard.access.caller_of_cookie(&peer, begun.cookie.text(), now);
    let answer = SignedIn { csrf: begun.csrf.text().into(), session: view(&guard, caller.as_ref()) };
    ([(SET_COOKIE, guard.set_cookie(begun.cookie.text(), LIFE))], Json(answer)).into_response()
}

async fn sign_out(State(guard): State<Guard>, Extension(caller): Extension<Caller>) -> Response {
    guard.access.end(&caller);
    ([(SET_COOKIE, guard.set_cookie("", Duration::ZERO))], Json(())).into_response()
}
