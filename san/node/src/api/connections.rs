//! The connections of a node's API, which end before the node does.

use std::time::Duration;

use tokio::sync::watch;

/// The connections of one node's API.
#[derive(Debug, Default)]
pub(crate) struct Connections(watch::Sender<bool>);

impl Connections {
    /// A connection is one of these until it drops what this returns.
    pub(crate) fn enter(&self) -> Connected {
        Connected(self.0.subscribe())
    }

    /// Each connection ends when the request that it has begun is answered. Waits for that. Whether all have ended in time.
    pub(crate) async fn end(&self, within: Duration) -> bool {
        self.0.send_replace(true);
        tokio::time::timeout(within, self.0.closed()).await.is_ok()
    }
}

/// A connection of the API.
pub(crate) struct Connected(watch::Receiver<bool>);

impl Connected {
    /// Until it is to end.
    pub(crate) async fn is_to_end(&mut self) {
        if self.0.wait_for(|ends| *ends).await.is_err() {
            // The node is gone, so it does not order that any more.
            std::future::pending().await
        }
    }
}
