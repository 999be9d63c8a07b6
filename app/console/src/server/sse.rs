//! Server-sent events to one page.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

/// Messages that a page may be behind.
pub(crate) const BEHIND: usize = 8;
/// How long a page may not read.
pub(crate) const READS: Duration = Duration::from_secs(30);

/// Messages to one page.
pub(crate) struct Messages {
    first: VecDeque<Event>,
    rest: mpsc::Receiver<Event>,
    _place: OwnedSemaphorePermit,
}

impl Stream for Messages {
    type Item = Result<Event, Infallible>;
    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(first) = self.first.pop_front() {
            return Poll::Ready(Some(Ok(first)));
        }
        self.rest.poll_recv(context).map(|event| event.map(Ok))
    }
}

/// An event with this name, whose data are the content as JSON.
pub(crate) fn event(name: &str, content: &impl Serialize) -> Event {
    Event::default().event(name).data(serde_json::to_string(content).expect("it is numbers and texts"))
}

impl Messages {
    /// `first`, then what `rest` receives until its sender is gone. The page keeps its place among the streams until then.
    pub(crate) fn new(
        first: VecDeque<Event>,
        rest: mpsc::Receiver<Event>,
        place: OwnedSemaphorePermit,
    ) -> Messages {
        Messages { first, rest, _place: place }
    }

    /// The answer that sends them.
    pub(crate) fn answer(self) -> Response {
        Sse::new(self).keep_alive(KeepAlive::new()).into_response()
    }
}
