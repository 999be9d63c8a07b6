//! A large cluster that is none: one process that answers as the API of each node of a cluster, with figures that change each second.
//!
//! `./dev bench console` measures the console with it. Each node listens on an address of its own, 127.77.X.Y, and answers what the console
//! asks of a node: `GET /v1/status`, and `GET /v1/stream`. Figures are made from the second and the number of the volume alone.
//!
//! ```sh
//! cargo run -p loadline-console --example large_cluster -- --nodes 100 --volumes 1000
//! loadline console large=127.77.0.1:7477
//! ```

#[path = "large_cluster/history.rs"]
mod history;
#[path = "large_cluster/world.rs"]
mod world;

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::State;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use futures_core::Stream;
use tokio::net::TcpListener;
use tokio::sync::{broadcast, mpsc};
use world::World;

const SECOND: Duration = Duration::from_secs(1);
/// Samples that a follower may be behind.
const BEHIND: usize = 4;

/// One node: its number, and its samples as JSON.
#[derive(Clone)]
struct Node {
    world: Arc<World>,
    number: usize,
    samples: broadcast::Sender<Arc<str>>,
}

fn wall_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

async fn status(State(node): State<Node>) -> Response {
    Json(node.world.status(node.number, wall_ms() / 1000)).into_response()
}

/// What one follower gets.
struct Events(mpsc::Receiver<Event>);

impl Stream for Events {
    type Item = Result<Event, Infallible>;
    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|event| event.map(Ok))
    }
}

async fn stream(State(node): State<Node>) -> Response {
    let (send, events) = mpsc::channel(BEHIND);
    let mut samples = node.samples.subscribe();
    tokio::spawn(async move {
        let hello = serde_json::to_string(&node.world.hello(node.number)).expect("it is texts and numbers");
        if send.send(Event::default().event("hello").data(hello)).await.is_err() {
            return;
        }
        let mut lines = 0;
        loop {
            let event = match samples.recv().await {
                Err(broadcast::error::RecvError::Closed) => return,
                Err(broadcast::error::RecvError::Lagged(_)) => continue,
                Ok(sample) => Event::default().event("sample").data(&*sample),
            };
            // A line of the log, of each node once in a while.
            let line = node.world.line(node.number, wall_ms(), lines + 1).map(|line| {
                lines += 1;
                let line = serde_json::to_string(&line).expect("it is texts and numbers");
                Event::default().event("log").id(format!("1-{lines}")).data(line)
            });
            for event in [Some(event), line].into_iter().flatten() {
                if send.send(event).await.is_err() {
                    return;
                }
            }
        }
    });
    Sse::new(Events(events)).into_response()
}

/// Takes a sample each second, at a moment of the second that is the node's own.
async fn sample(node: Node) {
    tokio::time::sleep(SECOND.mul_f64(node.number as f64 / node.world.nodes as f64)).await;
    let mut each = tokio::time::interval(SECOND);
    for number in 1.. {
        each.tick().await;
        let sample = serde_json::to_string(&node.world.sample(node.number, number, wall_ms()));
        // An error says that no one follows.
        let _ = node.samples.send(sample.expect("it is texts and numbers").into());
    }
}

/// The value of an option of the command line.
fn option(name: &str, default: usize) -> usize {
    let mut arguments = std::env::args().skip_while(|of| of != name);
    match (arguments.next(), arguments.next()) {
        (None, _) => default,
        (Some(_), value) => {
            value.and_then(|of| of.parse().ok()).unwrap_or_else(|| panic!("{name} takes a number"))
        }
    }
}

fn main() {
    let world = Arc::new(World {
        nodes: option("--nodes", 100),
        volumes: option("--volumes", 1000),
        port: option("--port", 7477) as u16,
    });
    if std::env::args().any(|of| of == "--history") {
        history::measure(&world);
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("it starts");
    runtime.block_on(async {
        for number in 0..world.nodes {
            let address = SocketAddr::from((Ipv4Addr::from(world.address(number)), world.port));
            let listener = TcpListener::bind(address).await.unwrap_or_else(|why| panic!("{address}: {why}"));
            let node = Node { world: Arc::clone(&world), number, samples: broadcast::Sender::new(BEHIND) };
            tokio::spawn(sample(node.clone()));
            let routes = Router::new().route("/v1/status", get(status)).route("/v1/stream", get(stream));
            tokio::spawn(async move { axum::serve(listener, routes.with_state(node)).await });
        }
        println!("{}:{}", Ipv4Addr::from(world.address(0)), world.port);
        std::future::pending::<()>().await;
    });
}
