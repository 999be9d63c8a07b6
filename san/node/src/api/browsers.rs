//! Requests that a browser sends for a page of another site are refused.
//!
//! A person who manages a cluster also visits other sites. A page there can make the browser send requests to a server on this machine or in
//! this network: to its address (the browser then names the page's site as `Origin`), or to a name of the site that resolves to that
//! address since a moment ago (DNS rebinding; the request then names the site as `Host`). So a request must name the server by an address or
//! by one of its names, and must not come from another origin. A node and the console are such servers.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::Response;

use super::refusal;
use crate::strangers::shown;

/// Characters of a host or an origin that are repeated in an answer.
const LONGEST_SHOWN: usize = 100;

/// The names of a server besides its addresses, and what one can do whom it refuses.
#[derive(Debug, Clone)]
pub struct Names {
    names: Arc<[String]>,
    advice: &'static str,
}

impl Names {
    /// `localhost`, the name of this machine, and these names. `advice` is a sentence without a full stop.
    pub fn new(listed: &[String], advice: &'static str) -> Names {
        let machine = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
        let names = listed.iter().cloned().chain(machine).chain(["localhost".to_owned()]);
        Names { names: names.collect(), advice }
    }

    /// Whether this is an address, or a name of the node; without the port that may stand behind it.
    fn has(&self, host: &str) -> bool {
        let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, _)) => return address.parse::<Ipv6Addr>().is_ok(),
            None => host.rsplit_once(':').map_or(host, |(name, _)| name),
        };
        name.parse::<IpAddr>().is_ok() || self.names.iter().any(|own| own.eq_ignore_ascii_case(name))
    }
}

/// Answers a request that may be of a page of another site with status 403. Nothing of it is carried out.
pub async fn refuse_foreign_pages(State(names): State<Names>, request: Request, next: Next) -> Response {
    match foreign(&names, request.uri(), request.headers()) {
        Some(why) => refusal(StatusCode::FORBIDDEN, why),
        None => next.run(request).await,
    }
}

/// Why a request is not carried out, if it may be of a page of another site.
fn foreign(names: &Names, uri: &Uri, headers: &HeaderMap) -> Option<String> {
    let mut hosts: Vec<&str> = uri.authority().map(|authority| authority.as_str()).into_iter().collect();
    for host in headers.get_all(HOST) {
        hosts.push(host.to_str().unwrap_or("?"));
    }
    if let Some(host) = hosts.iter().find(|host| !names.has(host)) {
        return Some(format!(
            "the request names the host \"{}\", which is not a name of this server. {}",
            shown(host, LONGEST_SHOWN),
            names.advice
        ));
    }
    let origin = headers.get(ORIGIN)?.to_str().unwrap_or("?");
    let from = origin.split_once("://").map(|(_, host)| host);
    if from.is_some_and(|from| hosts.iter().any(|host| host.eq_ignore_ascii_case(from))) {
        return None;
    }
    Some(format!(
        "the request comes from a page of another site (\"{}\"): only pages of this server may use its API",
        shown(origin, LONGEST_SHOWN)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(uri: &str, headers: &[(&str, &str)]) -> Option<String> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(axum::http::HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
        }
        foreign(&Names::new(&["san-1.example".into()], "Use its address"), &uri.parse().unwrap(), &map)
    }

    #[test]
    fn an_address_or_a_name_of_the_node_is_let_in() {
        for host in [
            "127.0.0.1:7400",
            "10.0.0.7",
            "[::1]:7400",
            "[fd00::1]",
            "localhost:7400",
            "LocalHost",
            "san-1.example:7400",
        ] {
            assert_eq!(judge("/v1/status", &[("host", host)]), None, "{host}");
        }
        assert_eq!(judge("/v1/status", &[]), None, "browsers always name a host");
    }

    #[test]
    fn a_name_that_is_not_the_nodes_is_refused() {
        for host in [
            "evil.example:7400",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example:7400",
            "[evil]:1",
            "",
            "san-1.example.evil",
        ] {
            let why =
                judge("/v1/status", &[("host", host)]).unwrap_or_else(|| panic!("\"{host}\" is let in"));
            assert!(why.contains("Use its address"), "{why}");
        }
        let two = [("host", "127.0.0.1"), ("host", "evil.example")];
        assert!(judge("/v1/status", &two).is_some(), "every one counts");
        assert!(judge("http://evil.example/v1/status", &[("host", "127.0.0.1")]).is_some(), "in the URL too");
    }

    #[test]
    fn only_a_page_of_the_node_itself_may_send_requests() {
        let from = |origin: &str| judge("/v1/status", &[("host", "127.0.0.1:7400"), ("origin", origin)]);
        assert_eq!(from("http://127.0.0.1:7400"), None);
        for origin in
            ["http://evil.example", "null", "http://127.0.0.1:8080", "http://127.0.0.1", "127.0.0.1:7400"]
        {
            assert!(from(origin).is_some_and(|why| why.contains("another site")), "{origin}");
        }
    }
}
