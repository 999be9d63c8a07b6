//! Waiting that ends at once on a request to stop.

use std::future::pending;

use tokio::sync::watch;

use crate::error::FleetError;

/// What `work` comes to, unless `stop` turns true first: then it is dropped, and that is an interruption.
pub async fn or_stop<T>(
    stop: &mut watch::Receiver<bool>,
    work: impl Future<Output = T>,
) -> Result<T, FleetError> {
    let stopped = async {
        if stop.wait_for(|stop| *stop).await.is_err() {
            // There is no sender left that could stop it.
            pending::<()>().await;
        }
    };
    tokio::select! {
        biased;
        () = stopped => Err(FleetError::interrupted()),
        done = work => Ok(done),
    }
}
