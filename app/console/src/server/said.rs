//! The content of a request, as JSON.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;

use super::fault;

/// How long the content of a request may take to be received, once its head was.
const BODY: Duration = Duration::from_secs(20);
/// Bytes of it at most.
pub(super) const LONGEST: usize = 64 << 10;

/// What was said. What is no JSON of this type is answered with status 400, and why.
pub(super) struct Said<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Said<T> {
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Said<T>, Response> {
        let wrong =
            |why: &str| fault(StatusCode::BAD_REQUEST, &format!("the request cannot be parsed: {why}"));
        let bytes = match tokio::time::timeout(BODY, Bytes::from_request(request, state)).await {
            Err(_) => return Err(wrong(&format!("it was not received within {} s", BODY.as_secs()))),
            Ok(Err(why)) => return Err(why.into_response()),
            Ok(Ok(bytes)) => bytes,
        };
        serde_json::from_slice(&bytes).map(Said).map_err(|why| wrong(&why.to_string()))
    }
}
