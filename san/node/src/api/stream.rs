//! `GET /v1/stream`: server-sent events for those who follow this node (`node/manage/follow`).
//!
//! A stream ends after ten minutes, as each connection of the API: a follower connects again, and names the last event that it has received,
//! as browsers do.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, Sse};
use futures_core::Stream;
use tokio::sync::mpsc::Receiver;

use crate::node::Node;
use crate::node::manage::ManageError;
use crate::node::manage::follow::{After, Sent};

/// What is sent, as it comes.
struct Events(Receiver<Sent>);

impl Stream for Events {
    type Item = Result<Event, Infallible>;
    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|sent| {
            let (name, id, content) = sent?;
            let event = Event::default().event(name).data(&*content);
            Some(Ok(match id {
                Some(id) => event.id(id),
                None => event,
            }))
        })
    }
}

/// Answers a follower.
pub(super) async fn follow(
    State(node): State<Node>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, ManageError> {
    let after = headers.get("last-event-id").and_then(|id| After::of_id(id.to_str().ok()?));
    Ok(Sse::new(Events(node.add_follower(after)?)))
}
