//! What a caller of the API may do. A viewer only reads: it may GET. An operator may do everything.

use std::time::{Duration, Instant};

use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;

use super::caller::Caller;
use super::refusal;
use crate::identity::access::{Role, proof_of};
use crate::node::Node;
use crate::node::refusals::EPISODE;

/// How long a caller waits for the configuration to be read that has an access which this node does not know.
const READ: Duration = Duration::from_millis(3500);

/// Lets a request through if its caller may do it.
pub(super) async fn refuse_strangers(
    State(node): State<Node>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    request: Request,
    next: Next,
) -> Response {
    let Caller::Remote { address, certificate, proofs } = caller else { return next.run(request).await };
    let now = Instant::now();
    let token = bearer(request.headers());
    let roles = || {
        let by_certificate = node.role_of(certificate.as_deref(), None);
        (by_certificate, by_certificate.or_else(|| node.role_of(None, token)))
    };
    let (mut by_certificate, mut role) = roles();
    // Others at the same address, or in the same network of IPv6, do not shut a caller out that has an access.
    if role.is_none() && node.state().refusals.are_many(address, now) {
        let seconds = EPISODE.as_secs();
        let message = format!("too many requests of {address} were refused: try again in {seconds} s");
        return refusal(StatusCode::TOO_MANY_REQUESTS, message);
    }
    if role.is_none() && (certificate.is_some() || token.is_some()) {
        // It may have been made a moment ago.
        node.refresh_within(READ).await;
        (by_certificate, role) = roles();
    }
    let needed = if request.method() == Method::GET { Role::Viewer } else { Role::Operator };
    let (status, message) = match role {
        Some(role) if role >= needed => {
            // What lets it in may not have been known when the connection was made.
            match (by_certificate.and(certificate.as_deref()), token) {
                (Some(certificate), _) => proofs.has_certificate(certificate),
                (None, Some(token)) => proofs.has_token(proof_of(token)),
                (None, None) => {}
            }
            return next.run(request).await;
        }
        Some(role) => (
            StatusCode::FORBIDDEN,
            format!("a {} may not do this: it needs the role {}", role.name(), needed.name()),
        ),
        None => {
            let what = match (certificate.is_some(), token.is_some()) {
                (_, true) => "the token is not one of this cluster, or has expired, or was revoked",
                (true, false) => {
                    "the certificate's access was revoked, or has expired, or its node was removed"
                }
                (false, false) => "this needs an access",
            };
            let help = "'loadline san access add' on the host of a node makes one, for --access";
            (StatusCode::UNAUTHORIZED, format!("{what}: {help}"))
        }
    };
    node.state().refusals.add(address, now);
    node.count_refused("the API", address, &message);
    refusal(status, message)
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    headers.get(AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ").map(str::trim)
}

impl Node {
    /// What the owner of a certificate, or of a token, may do at this moment.
    pub(crate) fn role_of(&self, certificate: Option<&str>, token: Option<&str>) -> Option<Role> {
        let state = self.state();
        let is_node = |proof: &str| {
            state.catalog.nodes.values().any(|(node, _)| node.certificates.iter().any(|of| of == proof))
        };
        if certificate.is_some_and(is_node) {
            return Some(Role::Operator);
        }
        let token = token.map(proof_of);
        let proofs = [certificate, token.as_deref()];
        let mut accesses = state.catalog.accesses.values().map(|(access, _)| access);
        let access = accesses.find(|access| proofs.contains(&Some(access.proof.as_str())))?;
        (!access.has_expired()).then_some(access.role)
    }
}
