//! What a person sees whose browser opens an address of the console that has no page: the reason, and where to go on. Programs get JSON.

use axum::extract::{Request, State};
use axum::http::header::{ACCEPT, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::{Console, Fault};

/// What a browser may do with the page: show its text.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);
const STYLE: &str = "body { font: 1rem/1.5 system-ui, sans-serif; max-width: 44rem; margin: 3rem auto; padding: 0 1rem; color-scheme: light dark }";

/// Answers a browser with a page in place of a [`Fault`].
pub(super) async fn for_browsers(State(console): State<Console>, request: Request, next: Next) -> Response {
    let accepted = request.headers().get_all(ACCEPT).into_iter().filter_map(|value| value.to_str().ok());
    let wants_page = accepted.into_iter().any(|value| value.contains("text/html"));
    let is_page = *request.method() == Method::GET && !request.uri().path().starts_with("/api/");
    let answer = next.run(request).await;
    match answer.extensions().get::<Fault>() {
        Some(fault) if wants_page && is_page => page(answer.status(), fault, console.view().lists_runs),
        _ => answer,
    }
}

fn page(status: StatusCode, fault: &Fault, lists_runs: bool) -> Response {
    let (title, links): (&str, &[(&str, &str)]) = match (status, lists_runs) {
        (StatusCode::UNAUTHORIZED, _) => ("Sign in", &[("/#/sign-in", "Sign in")]),
        (_, true) => {
            ("There is no such page", &[("/#/runs", "All runs in the console"), ("/", "The console")])
        }
        (_, false) => ("There is no such page", &[("/", "The console")]),
    };
    let links: String =
        links.iter().map(|(to, text)| format!("<p><a href=\"{to}\">{text}</a></p>")).collect();
    let text = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\"><title>{title} · \
         Loadline console</title><style>{STYLE}</style><main><h1>{title}</h1><p>{}</p>{links}</main></html>",
        sentence(&fault.message)
    );
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (CONTENT_SECURITY_POLICY, POLICY),
    ];
    (status, headers, text).into_response()
}

/// A message as a sentence, and as text of HTML.
fn sentence(message: &str) -> String {
    let mut chars = message.chars();
    let first = chars.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    let text =
        format!("{first}{}", chars.as_str()).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    if text.ends_with(['.', '!', '?']) { text } else { format!("{text}.") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_a_sentence_and_no_markup() {
        assert_eq!(sentence("there is no <b> & c"), "There is no &lt;b&gt; &amp; c.");
        assert_eq!(sentence("Sign in."), "Sign in.");
    }
}
