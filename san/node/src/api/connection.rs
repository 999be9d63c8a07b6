//! One connection to the API: its requests are answered within limits of size and time, whoever sends them.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::extract::Request;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};

use super::caller::Caller;
use super::connections::Connected;

/// How long the head of a request may take, from the moment at which one may come: also how long a connection may be idle.
const HEAD: Duration = Duration::from_secs(20);
/// Bytes of a request's head at most. [`LONGEST_URL`](super::LONGEST_URL) of them are the URL's.
const LONGEST_HEAD: usize = 64 << 10;
/// Header lines of a request at most.
const MOST_HEADERS: usize = 64;
/// How long a connection takes requests. A program that goes on connects again.
const TAKES: Duration = Duration::from_secs(600);
/// How long the last request of a connection may take from then on: longer than any does whose caller reads the answer.
const ENDS: Duration = Duration::from_secs(60);

/// Answers the requests of a connection until it ends.
pub(super) async fn serve(
    connected: Connected,
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    api: Router,
    caller: Caller,
) {
    serve_within(HEAD, connected, io, api, caller).await;
}

async fn serve_within(
    head: Duration,
    mut connected: Connected,
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    api: Router,
    caller: Caller,
) {
    let api = TowerToHyperService::new(api);
    let answer = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(caller.clone()));
        let answered = api.call(request);
        async move { Ok::<Response, Infallible>(answered.await.unwrap_or_else(|never| match never {})) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head)
        .max_header_size(LONGEST_HEAD)
        .max_buf_size(LONGEST_HEAD)
        .max_headers(MOST_HEADERS)
        .serve_connection(TokioIo::new(io), answer);
    tokio::pin!(connection);
    // An error is one of the other side.
    tokio::select! {
        _ = &mut connection => return,
        () = tokio::time::sleep(TAKES) => {}
        () = connected.is_to_end() => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = tokio::time::timeout(ENDS, connection).await;
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    use super::*;
    use crate::api::connections::Connections;

    const SHORT: Duration = Duration::from_millis(300);

    /// The caller's end of a connection that is served.
    fn connect() -> DuplexStream {
        connect_to(&Connections::default(), Duration::ZERO)
    }

    /// The same, to an API that takes this long for an answer.
    fn connect_to(connections: &Connections, takes: Duration) -> DuplexStream {
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let answer = async move || {
            tokio::time::sleep(takes).await;
            "it is answered"
        };
        let api = Router::new().route("/", get(answer));
        tokio::spawn(serve_within(SHORT, connections.enter(), theirs, api, Caller::Local));
        ours
    }

    async fn answer(mut stream: DuplexStream) -> String {
        let mut answer = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut answer)).await;
        read.expect("it ends").expect("it can be read");
        String::from_utf8(answer).expect("it is text")
    }

    fn run(work: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work);
    }

    #[test]
    fn a_head_that_does_not_come_to_its_end_ends_the_connection() {
        run(async {
            let begun = Instant::now();
            let mut stream = connect();
            stream.write_all(b"GET / HTTP/1.1\r\nHost: lo").await.unwrap();
            assert!(!answer(stream).await.contains("200"));
            assert!(begun.elapsed() >= SHORT);
            // One that sends a byte now and then, and so is never idle.
            let mut stream = connect();
            let begun = Instant::now();
            while stream.write_all(b"x").await.is_ok() {
                assert!(begun.elapsed() < Duration::from_secs(10), "it is closed");
                tokio::time::sleep(SHORT / 20).await;
            }
            // One that sends nothing.
            assert_eq!(answer(connect()).await, "");
        });
    }

    #[test]
    fn a_node_that_ends_answers_what_it_was_asked_before() {
        run(async {
            let connections = Connections::default();
            assert!(connections.end(SHORT).await, "there is none");
            let connections = Connections::default();
            let mut asks = connect_to(&connections, SHORT);
            asks.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
            let idle = connect_to(&connections, SHORT);
            tokio::time::sleep(SHORT / 3).await;
            assert!(connections.end(Duration::from_secs(10)).await);
            assert!(answer(asks).await.contains("it is answered"));
            assert_eq!(answer(idle).await, "");
            // One that takes longer than the node waits.
            let connections = Connections::default();
            let mut asks = connect_to(&connections, Duration::from_secs(100));
            asks.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
            tokio::time::sleep(SHORT / 3).await;
            assert!(!connections.end(SHORT).await);
        });
    }

    #[test]
    fn a_head_that_is_too_long_is_refused_and_one_that_is_not_is_answered() {
        run(async {
            for (bytes, status) in [(10, "200"), (50_000, "200"), (80_000, "431")] {
                let mut stream = connect();
                let lines = format!("X-Long: {}\r\n", "x".repeat(bytes));
                let head = format!("GET / HTTP/1.1\r\nHost: localhost\r\n{lines}Connection: close\r\n\r\n");
                stream.write_all(head.as_bytes()).await.unwrap();
                let answer = answer(stream).await;
                assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{bytes}: {answer}");
            }
        });
    }
}
