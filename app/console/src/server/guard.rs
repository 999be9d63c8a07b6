//! Which requests are let through: one layer over all routes, so that a route that is added later is guarded too.
//!
//! - A GET needs a proof, unless everyone may see. GET changes nothing.
//! - Everything else needs the cookie of a session and the secret of its page in the header `X-Loadline-CSRF`, or a key as
//!   `Authorization: Bearer KEY`, which no page of another site can add; the role operator; JSON as its content type; and, from a browser,
//!   a page of the console itself.
//! - Signing in needs all but the session.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, BodyDataStream, Bytes};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, COOKIE, HOST, ORIGIN, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use futures_core::Stream;

use super::fault;
use crate::access::role::Role;
use crate::access::secret::Digest;
use crate::access::{Access, Caller, Peer, Refused};

/// The header with the secret of a session's page.
pub(super) const CSRF: &str = "x-loadline-csrf";
/// Where one signs in, and asks who one is.
pub(super) const SIGN_IN: &str = "/api/session";
/// Where one signs out.
pub(super) const SIGN_OUT: &str = "/api/session/end";

/// What the layer decides by.
#[derive(Debug, Clone)]
pub(super) struct Guard {
    pub(super) access: Arc<Access>,
    /// The name of the session's cookie.
    pub(super) cookie: Arc<str>,
    /// Whether browsers use TLS.
    pub(super) is_protected: bool,
}

impl Guard {
    /// That of a console at this port.
    pub(super) fn new(access: Arc<Access>, port: u16, is_protected: bool) -> Guard {
        // Consoles at several ports of a host share its cookies. A browser takes a cookie of the name __Host- by TLS alone.
        let prefix = if is_protected { "__Host-" } else { "" };
        Guard { access, cookie: format!("{prefix}loadline-{port}").into(), is_protected }
    }

    /// The lines that give a browser the cookie, or take it away.
    pub(super) fn set_cookie(&self, value: &str, life: Duration) -> HeaderValue {
        let secure = if self.is_protected { "; Secure" } else { "" };
        let (name, seconds) = (&self.cookie, life.as_secs());
        let line = format!("{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}");
        HeaderValue::try_from(line).expect("it is ASCII")
    }

    /// The sender of a request, if it has a proof. The error is the answer to a wrong proof.
    fn caller(&self, peer: &Peer, headers: &HeaderMap) -> Result<Option<Caller>, Box<Response>> {
        let now = Instant::now();
        if let Some(given) = headers.get(AUTHORIZATION) {
            let key = given.to_str().ok().and_then(|text| text.strip_prefix("Bearer ")).unwrap_or("");
            let holder = self.access.try_key(peer, key.trim(), now);
            return holder
                .map(|holder| Some(Caller { holder, session: None }))
                .map_err(|why| Box::new(refused(why)));
        }
        let lines = headers.get_all(COOKIE).into_iter().filter_map(|line| line.to_str().ok());
        let mut pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
        let cookie = pairs.find(|(name, _)| *name == &*self.cookie).map(|(_, value)| value);
        if let Some(caller) = cookie.and_then(|cookie| self.access.caller_of_cookie(peer, cookie, now)) {
            return Ok(Some(caller));
        }
        let holder = self.access.holder_of_certificate(peer);
        Ok(holder.map(|holder| Caller { holder, session: None }))
    }

    /// Why something that is no GET is not carried out, before its sender is looked up.
    fn is_foreign(&self, headers: &HeaderMap, is_by_cookie: bool) -> Option<Response> {
        let of = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
        let kind = of(CONTENT_TYPE.as_str()).unwrap_or("").split(';').next().unwrap_or("").trim();
        if !kind.eq_ignore_ascii_case("application/json") {
            let message =
                "the content of the request must be JSON: send the header Content-Type: application/json";
            return Some(fault(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
        }
        let scheme = if self.is_protected { "https" } else { "http" };
        let own = of(HOST.as_str()).map(|host| format!("{scheme}://{host}"));
        let is_own = match of(ORIGIN.as_str()) {
            Some(origin) => own.is_some_and(|own| own.eq_ignore_ascii_case(origin)),
            None => !is_by_cookie,
        };
        let is_of_page = of("sec-fetch-site").is_none_or(|site| site == "same-origin");
        (!is_own || !is_of_page).then(|| {
            fault(
                StatusCode::FORBIDDEN,
                "the request does not come from a page of this console: only these may act",
            )
        })
    }

    /// Why this request is not carried out.
    fn refusal(&self, request: &Request, caller: Option<&Caller>) -> Option<Response> {
        let (path, headers) = (request.uri().path(), request.headers());
        if matches!(*request.method(), Method::GET | Method::HEAD) {
            let is_open = self.access.viewing_is_free() || path == "/" || path == SIGN_IN;
            return (caller.is_none() && !is_open)
                .then(|| unauthorized(&format!("sign in to see this. {}", self.access.how_to_sign_in())));
        }
        let is_by_cookie = caller.is_some_and(|caller| caller.session.is_some());
        if let Some(foreign) = self.is_foreign(headers, is_by_cookie) {
            return Some(foreign);
        }
        if path == SIGN_IN && *request.method() == Method::POST {
            return None;
        }
        let has_bearer = headers.contains_key(AUTHORIZATION);
        let Some(caller) = caller.filter(|caller| caller.session.is_some() || has_bearer) else {
            return Some(unauthorized(&format!("sign in to act. {}", self.access.how_to_sign_in())));
        };
        if let Some(session) = &caller.session {
            let sent = headers.get(CSRF).and_then(|value| value.to_str().ok());
            if sent.is_none_or(|sent| Digest::of(sent) != session.csrf) {
                let message =
                    "the request does not have the secret of the session's page: sign out, and sign in again";
                return Some(fault(StatusCode::FORBIDDEN, message));
            }
        }
        let (least, role) = (least(path), caller.holder.role);
        (role < least).then(|| {
            fault(StatusCode::FORBIDDEN, &format!("a {role} may not do this: it needs the role {least}"))
        })
    }
}

/// What one must be for a request that is no GET.
fn least(path: &str) -> Role {
    if path == SIGN_OUT { Role::Viewer } else { Role::Operator }
}

fn unauthorized(message: &str) -> Response {
    let mut answer = fault(StatusCode::UNAUTHORIZED, message);
    answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    answer
}

/// The answer to a key that is not taken.
pub(super) fn refused(why: Refused) -> Response {
    match why {
        Refused::Wrong => {
            unauthorized("the key is wrong, or was removed, or the console was started again since")
        }
        Refused::TooMany(wait) => {
            let seconds = wait.as_secs() + 1;
            let message = format!("too many wrong keys were sent: try again in {seconds} s");
            let mut answer = fault(StatusCode::TOO_MANY_REQUESTS, &message);
            answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
            answer
        }
    }
}

/// Lets a request through if its sender may do that. Handlers get the [`Caller`], if there is one.
pub(super) async fn guard(
    State(guard): State<Guard>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    mut request: Request,
    next: Next,
) -> Response {
    let caller = match guard.caller(&peer, request.headers()) {
        Ok(caller) => caller,
        Err(answer) => return *answer,
    };
    if let Some(refusal) = guard.refusal(&request, caller.as_ref()) {
        return refusal;
    }
    let Some(caller) = caller else { return next.run(request).await };
    request.extensions_mut().insert(caller.clone());
    let answer = next.run(request).await;
    let kind = answer.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    if !kind.is_some_and(|kind| kind.starts_with("text/event-stream")) || guard.access.viewing_is_free() {
        return answer;
    }
    answer.map(|body| {
        Body::from_stream(WhileLetIn { body: body.into_data_stream(), access: guard.access, peer, caller })
    })
}

/// A stream that ends when its receiver is let in no more.
struct WhileLetIn {
    body: BodyDataStream,
    access: Arc<Access>,
    peer: Peer,
    caller: Caller,
}

impl Stream for WhileLetIn {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = std::task::ready!(Pin::new(&mut self.body).poll_next(context));
        let is_let_in = self.access.is_let_in(&self.peer, &self.caller, Instant::now());
        Poll::Ready(next.filter(|_| is_let_in))
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// Chunks without an end.
    struct Chunks;

    impl Stream for Chunks {
        type Item = Result<Bytes, Infallible>;

        fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
            Poll::Ready(Some(Ok(Bytes::from_static(b"data: 1\n\n"))))
        }
    }

    #[test]
    fn a_stream_ends_with_the_session_that_has_begun_it() {
        let (access, link) = Access::local("root".into(), None, None);
        let (access, peer, now) = (Arc::new(access), Peer::default(), Instant::now());
        let holder = access.try_key(&peer, link.text(), now).expect("it is the link's");
        let begun = access.begin(holder, now);
        let caller = access.caller_of_cookie(&peer, begun.cookie.text(), now).expect("it has begun");
        let body = Body::from_stream(Chunks).into_data_stream();
        let mut stream = WhileLetIn { body, access: Arc::clone(&access), peer, caller: caller.clone() };
        let mut next = || Pin::new(&mut stream).poll_next(&mut Context::from_waker(std::task::Waker::noop()));
        assert!(matches!(next(), Poll::Ready(Some(Ok(_)))));
        access.end(&caller);
        assert!(matches!(next(), Poll::Ready(None)));
    }
}
