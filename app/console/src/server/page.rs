//! A page of the console, and what a browser lets it do.

use axum::http::HeaderValue;
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{SHA256, digest};

/// How the only script of a page begins.
const SCRIPT: &str = "<script type=\"module\">";

/// A page with one script. A browser runs that script and no other one, loads nothing from elsewhere, and asks no other host.
#[derive(Debug, Clone)]
pub(crate) struct Page {
    text: String,
    policy: HeaderValue,
}

impl Page {
    /// The page whose HTML is `text`, with the policy that allows its script.
    pub(crate) fn new(text: String) -> Page {
        let script = text.split_once(SCRIPT).and_then(|(_, rest)| rest.split_once("</script>"));
        let script = script.map_or("", |(script, _)| script);
        let hash = STANDARD.encode(digest(&SHA256, script.as_bytes()));
        let policy = format!(
            "default-src 'none'; script-src 'sha256-{hash}'; style-src 'unsafe-inline'; img-src data: blob:; connect-src 'self'; base-uri 'none'; \
             form-action 'none'; frame-ancestors 'none'"
        );
        Page { text, policy: HeaderValue::try_from(policy).expect("it is ASCII") }
    }

    /// The answer with the page.
    pub(crate) fn answer(&self) -> Response {
        let headers = [
            (CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
            (CONTENT_SECURITY_POLICY, self.policy.clone()),
        ];
        (headers, self.text.clone()).into_response()
    }
}
