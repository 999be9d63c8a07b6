//! The API over HTTP: JSON in, JSON out.
//!
//! | request | what |
//! | --- | --- |
//! | `GET /metrics` | what is counted, for Prometheus |
//! | `GET /v1/status` | [`StatusView`](crate::node::manage::StatusView) |
//! | `GET /v1/local` | [`LocalView`](crate::node::manage::LocalView): what this node reports of itself, for others |
//! | `GET /v1/support` | [`SupportView`](crate::node::manage::SupportView): what a support archive has of this node |
//! | `POST /v1/volumes` | [`CreateVolume`] |
//! | `POST /v1/volume-batch` | [`CreateVolumes`] → each [`MadeVolume`](crate::node::manage::MadeVolume) |
//! | `GET /v1/volumes/{name}` | [`VolumeView`](crate::node::manage::VolumeView) |
//! | `DELETE /v1/volumes/{name}` | |
//! | `POST /v1/volumes/{name}/attach` | [`Attach`] → [`Use`](crate::node::manage::Use) |
//! | `POST /v1/volumes/{name}/detach` | [`Detach`] → [`ClientsView`](crate::node::manage::ClientsView) |
//! | `POST /v1/volumes/{name}/resize` | [`Resize`] |
//! | `POST /v1/volumes/{name}/recover` | [`Recover`] |
//! | `POST /v1/volumes/{name}/move` | [`Move`] |
//! | `POST /v1/volumes/{name}/scrub` | of the copies at this node |
//! | `GET /v1/volumes/{name}/scrub` | each [`ScrubView`](crate::node::manage::ScrubView) of this node |
//! | `POST /v1/volumes/{name}/tls` | [`RequireTls`] |
//! | `POST /v1/volumes/{name}/initiators` | [`LetInitiator`] → [`InitiatorLetIn`](crate::node::manage::InitiatorLetIn) |
//! | `POST /v1/volumes/{name}/initiators/end` | [`EndInitiator`] |
//! | `POST /v1/volumes/{name}/cache` | [`CacheVolume`] |
//! | `POST /v1/volumes/{name}/limit` | [`LimitVolume`] |
//! | `POST /v1/volumes/{name}/trace` | [`TraceRequests`] → [`TraceView`](crate::node::manage::TraceView) |
//! | `POST /v1/devices` | [`AddDevice`] → the device's id |
//! | `POST /v1/devices/{id}/replace` | [`AddDevice`] → the new device's id |
//! | `POST /v1/nodes/{name}/drain` | [`Drain`] |
//! | `POST /v1/nodes/{name}/maintenance` | [`Maintain`] |
//! | `POST /v1/nodes/{name}/restart` | the node hands its volumes over and starts again → the incarnation of the process that ends |
//! | `POST /v1/nodes/{name}/renew` | |
//! | `DELETE /v1/nodes/{name}` | |
//! | `POST /v1/reserve` | [`Reserve`] |
//! | `POST /v1/test-faults` | [`TestFault`], in clusters for development |
//! | `DELETE /v1/test-faults` | |
//! | `GET /v1/openapi.json` | all of this, for programs |
//!
//! A request that a browser may have sent for a page of another site is refused (`browsers`), and one of a caller that may not do it
//! (`roles`). Where callers come from: `listener`; what is known of them:
//! `caller`.
//!
//! What fails is answered with a [`Fault`]: also a path or a method that there is not, a URL that is too long or that is not UTF-8,
//! and a body that is not JSON. Only what is no request of HTTP at all is answered by the HTTP server itself, with a status and no
//! body.

pub mod browsers;
mod caller;
mod connection;
pub(crate) mod connections;
mod listener;
mod roles;
mod stream;

use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use loadline_packed::unpack;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::catalog::Reserve;
use crate::node::Node;
use crate::node::manage::{
    AddDevice, CacheVolume, CreateVolume, CreateVolumes, Drain, EndInitiator, ErrorKind, LetInitiator,
    LimitVolume, Maintain, ManageError, Move, Recover, RequireTls, Resize, TestFault, TraceRequests,
};

pub use crate::node::manage::CLUSTER_HEADER;

/// Bytes of a URL at most: names have 64.
const LONGEST_URL: usize = 8 << 10;

/// How long the content of a request may take to be received, once its head was.
const BODY: Duration = Duration::from_secs(20);

/// Where a volume is to be attached.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Attach {
    /// The node; where it was last, or has most of it, if none is named.
    #[serde(default)]
    pub node: Option<String>,
    /// The attachment waits beside the present one, and takes over when its client starts: the destination of a live migration.
    #[serde(default)]
    pub when_started: bool,
    /// A temporary attachment, with this key: 1 to 64 letters, digits and `-`, which no other attachment has. The request is refused if the
    /// volume is attached. Not with `when_started`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// How a volume is to be detached.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Detach {
    /// Its clients are cut off.
    #[serde(default)]
    pub force: bool,
    /// Only the attachment with this key ends. If the volume has none with it, nothing is done: another attach was ordered meanwhile, or the
    /// volume was detached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// What went wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Fault {
    /// Of which kind it is.
    pub kind: ErrorKind,
    /// For people.
    pub message: String,
    /// The API of the node that does what was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api: Option<SocketAddr>,
}

impl IntoResponse for ManageError {
    fn into_response(self) -> Response {
        let status = match self.kind() {
            ErrorKind::Unknown => StatusCode::NOT_FOUND,
            ErrorKind::Wrong => StatusCode::BAD_REQUEST,
            ErrorKind::Conflict => StatusCode::CONFLICT,
            ErrorKind::NoRoom => StatusCode::INSUFFICIENT_STORAGE,
            ErrorKind::Elsewhere => StatusCode::MISDIRECTED_REQUEST,
            ErrorKind::Late | ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        };
        let api = if let ManageError::Elsewhere { api, .. } = &self { Some(*api) } else { None };
        (status, Json(Fault { kind: self.kind(), message: self.to_string(), api })).into_response()
    }
}

/// All of the API, for callers that may call it.
fn service(node: &Node) -> Router {
    let advice = "Use the node's address, or list the name under api_names in the node's node.toml";
    let names = browsers::Names::new(node.api_names(), advice);
    router(node.clone())
        .layer(axum::middleware::from_fn_with_state(node.clone(), roles::refuse_strangers))
        .layer(axum::middleware::from_fn_with_state(names, browsers::refuse_foreign_pages))
}

fn router(node: Node) -> Router {
    Router::new()
        .route(
            "/metrics",
            get(async |State(node): State<Node>| {
                let kind = [(CONTENT_TYPE, "text/plain; version=0.0.4")];
                node.metrics().await.map(|page| (kind, page))
            }),
        )
        .route("/v1/status", get(async |State(node): State<Node>| node.status().await.map(Json)))
        .route("/v1/local", get(async |State(node): State<Node>| Json(node.local().await)))
        .route("/v1/stream", get(stream::follow))
        .route("/v1/support", get(async |State(node): State<Node>| Json(node.support())))
        .route(
            "/v1/volumes",
            post(async |State(node): State<Node>, Said(wanted): Said<CreateVolume>| {
                node.create_volume(wanted).await.map(Json)
            }),
        )
        .route(
            "/v1/volume-batch",
            post(async |State(node): State<Node>, Said(wanted): Said<CreateVolumes>| {
                node.create_volumes(wanted).await.map(Json)
            }),
        )
        .route(
            "/v1/volumes/{name}",
            get(async |State(node): State<Node>, Path(name): Path<String>| {
                node.show_volume(&name).await.map(Json)
            })
            .delete(async |State(node): State<Node>, Path(name): Path<String>| {
                node.delete_volume(&name).await.map(Json)
            }),
        )
        .route(
            "/v1/volumes/{name}/attach",
            post(async |State(node): State<Node>, Path(name): Path<String>, Said(attach): Said<Attach>| {
                let Attach { node: at, when_started, key } = attach;
                match (when_started, key) {
                    (true, Some(_)) => Err(ManageError::Wrong(
                        "an attachment that waits until its client starts has no key: leave out 'key' or 'when_started'".into(),
                    )),
                    (true, None) => node.attach_volume_when_started(&name, at.as_deref()).await,
                    (false, key) => node.attach_and_report(&name, at.as_deref(), key.as_deref()).await,
                }
                .map(Json)
            }),
        )
        .route(
            "/v1/volumes/{name}/detach",
            post(async |State(node): State<Node>, Path(name): Path<String>, Said(detach): Said<Detach>| {
                node.detach_volume(&name, detach.force, detach.key.as_deref()).await.map(Json)
            }),
        )
        .route(
            "/v1/volumes/{name}/resize",
            post(async |State(node): State<Node>, Path(name): Path<String>, Said(resize): Said<Resize>| {
                node.resize_volume(&name, resize).await.map(Json)
            }),
        )
        .route(
            "/v1/volumes/{name}/recover",
            post(async |State(node): State<Node>, Path(name): Path<String>, Said(recover): Said<Recover>| {
                node.recover_volume(&name, recover).await.map(Json)
            }),
        )
        .route(
            "/v1/volumes/{name}/move",
            post(async |State(node): State<Node>, Path(name): Path<String>, Said(to): Said<Move>| {
                node.move_volume(&name, to).await.map(Json)
            }),
        )
        .route(
            "/v1/volumes/{name}/scrub",
            post(async |State(node): State<Node>, Path(name): Path<String>| {
                node.scrub_volume(&name).await.map(Json)
            })
            .get(async |State(node): State<Node>, Path(name): Path<String>| {
                node.scrubs(&name).await.map(Json)
            }),
        )
        .route(
            "/v1/volumes/{name}/tls",
            post(async |State(node): State<Node>, Path(name): Path<String>, Said(tls): Said<RequireTls>| {
                node.require_tls(&name, tls).await.map(Json)
            }),
        )
        .route(
            "/v1/volumes/{name}/initiators",
            post(async |State(node): State<Node>, Path(name): Path<String>, Said(of): Said<LetInitiator>| {
                node.let_initiator(&name, of).await.map(Json)
            }),
        )
        .route(
            "/v1/volumes/{name}/initiators/end",
            post(async |State(node): State<Node>, Path(name): Path<String>, Said(of): Said<EndInitiator>| {
                node.end_initiator(&name, of).await.map(Json)
            }),
        )
        .route(
            "/v1/volumes/{name}/cache",
            post(
                async |State(node): State<Node>, Path(name): Path<String>, Said(cache): Said<CacheVolume>| {
                    node.cache_volume(&name, cache).await.map(Json)
                },
            ),
        )
        .route(
            "/v1/volumes/{name}/limit",
            post(
                async |State(node): State<Node>, Path(name): Path<String>, Said(limit): Said<LimitVolume>| {
                    node.limit_volume(&name, limit).await.map(Json)
                },
            ),
        )
        .route(
            "/v1/volumes/{name}/trace",
            post(
                async |State(node): State<Node>, Path(name): Path<String>, Said(of): Said<TraceRequests>| {
                    node.trace_volume(&name, of).await.map(Json)
                },
            ),
        )
        .route(
            "/v1/devices/{id}/replace",
            post(async |State(node): State<Node>, Path(id): Path<u32>, Said(with): Said<AddDevice>| {
                node.replace_device(id, with).await.map(Json)
            }),
        )
        .route(
            "/v1/nodes/{name}/maintenance",
            post(async |State(node): State<Node>, Path(name): Path<String>, Said(wanted): Said<Maintain>| {
                node.maintain_node(&name, wanted).await.map(Json)
            }),
        )
        .route(
            "/v1/nodes/{name}/drain",
            post(async |State(node): State<Node>, Path(name): Path<String>, Said(drain): Said<Drain>| {
                node.drain_node(&name, drain).await.map(Json)
            }),
        )
        .route(
            "/v1/nodes/{name}/restart",
            post(async |State(node): State<Node>, Path(name): Path<String>| {
                node.restart_node(&name).await.map(Json)
            }),
        )
        .route(
            "/v1/nodes/{name}/renew",
            post(async |State(node): State<Node>, Path(name): Path<String>| {
                node.renew_node(&name).await.map(Json)
            }),
        )
        .route(
            "/v1/nodes/{name}",
            delete(async |State(node): State<Node>, Path(name): Path<String>| {
                node.remove_node(&name).await.map(Json)
            }),
        )
        .route(
            "/v1/devices",
            post(async |State(node): State<Node>, Said(add): Said<AddDevice>| {
                node.add_device(add).await.map(Json)
            }),
        )
        .route(
            "/v1/reserve",
            post(async |State(node): State<Node>, Said(reserve): Said<Reserve>| {
                node.reserve(reserve).await.map(Json)
            }),
        )
        .route(
            "/v1/test-faults",
            post(async |State(node): State<Node>, Said(fault): Said<TestFault>| {
                node.test_fault(fault).await.map(Json)
            })
            .delete(async |State(node): State<Node>| node.no_test_faults().await.map(Json)),
        )
        .route("/v1/openapi.json", get(async || ([(CONTENT_TYPE, "application/json")], description())))
        .fallback(async |uri: Uri| ManageError::Unknown {
            kind: "request",
            name: uri.path().into(),
            are: "are those that /v1/openapi.json describes".into(),
        })
        .method_not_allowed_fallback(async |method: Method, uri: Uri| {
            let message = format!(
                "{method} is not supported for {}: /v1/openapi.json lists the supported methods",
                uri.path()
            );
            refusal(StatusCode::METHOD_NOT_ALLOWED, message)
        })
        .layer(axum::middleware::from_fn(short_urls))
        .layer(axum::middleware::from_fn_with_state(node.clone(), name_cluster))
        .with_state(node)
}

/// Adds the cluster's id to every answer, so that a client can tell a person which cluster has answered.
async fn name_cluster(State(node): State<Node>, request: Request, next: Next) -> Response {
    let mut answer = next.run(request).await;
    if let Ok(cluster) = HeaderValue::from_str(&node.cluster_id().to_string()) {
        answer.headers_mut().insert(CLUSTER_HEADER, cluster);
    }
    answer
}

/// Refuses URLs that are too long.
async fn short_urls(request: Request, next: Next) -> Response {
    let length = request.uri().path_and_query().map_or(0, |url| url.as_str().len());
    if length > LONGEST_URL {
        let message = format!("the URL has {length} bytes, but at most {LONGEST_URL} bytes are allowed");
        return refusal(StatusCode::URI_TOO_LONG, message);
    }
    next.run(request).await
}

/// The published description of this API, as JSON.
fn description() -> String {
    unpack(include_bytes!(concat!(env!("OUT_DIR"), "/api.openapi.json")))
}

/// The answer to a request that cannot be, which no method of [`Node`] was asked.
fn refusal(status: StatusCode, message: String) -> Response {
    (status, Json(Fault { kind: ErrorKind::Wrong, message, api: None })).into_response()
}

/// The variable part of a URL's path.
struct Path<T>(T);

impl<T: serde::de::DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = ManageError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Path<T>, ManageError> {
        match axum::extract::Path::from_request_parts(parts, state).await {
            Ok(axum::extract::Path(part)) => Ok(Path(part)),
            Err(why) => Err(ManageError::Wrong(format!("the URL is not understood: {}", why.body_text()))),
        }
    }
}

/// What was said, as JSON. What is none is answered as all that cannot be is.
struct Said<T>(T);

impl<T: serde::de::DeserializeOwned, S: Send + Sync> FromRequest<S> for Said<T> {
    type Rejection = ManageError;

    async fn from_request(request: Request, state: &S) -> Result<Said<T>, ManageError> {
        let wrong = |why: String| ManageError::Wrong(format!("the request cannot be parsed: {why}"));
        let bytes = tokio::time::timeout(BODY, Bytes::from_request(request, state)).await;
        let late = |_| wrong(format!("it was not received within {} s", BODY.as_secs()));
        let bytes = bytes.map_err(late)?.map_err(|why| wrong(why.body_text()))?;
        serde_json::from_slice(&bytes).map(Said).map_err(|why| wrong(why.to_string()))
    }
}
