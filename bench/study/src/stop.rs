//! Stopping: what a study waits for ends at once when it is told to stop.

use std::future::pending;

use tokio::sync::watch;

use crate::error::StudyError;

/// What `work` comes to, unless `stop` turns true first: then it is dropped.
pub(crate) async fn or_stop<T>(
    stop: &mut watch::Receiver<bool>,
    work: impl Future<Output = T>,
) -> Result<T, StudyError> {
    let stopped = async {
        if stop.wait_for(|stop| *stop).await.is_err() {
            // Nobody is left who could stop it.
            pending::<()>().await;
        }
    };
    tokio::select! {
        biased;
        () = stopped => Err(StudyError::interrupted()),
        done = work => Ok(done),
    }
}
