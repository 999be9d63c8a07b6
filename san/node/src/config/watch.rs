//! Notifies the tasks of a node when the configuration may have changed.
//!
//! A notice is a hint: it may come for nothing, and none may come for a change. So each task also reads the configuration without a
//! notice, after a while.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use loadline_base::limits::STACK;
use tokio::sync::watch;

/// How long a store is waited for before it is looked whether the thread is to end.
const TURN: Duration = Duration::from_millis(100);

/// A connection to a store by which a thread waits for changes, of this process and of others.
pub trait Watch: Send {
    /// Returns when something may have changed since the last call, or after `limit` at the latest. Whether something may have
    /// changed; true also while the store fails, so that a reader finds out how.
    fn wait(&mut self, limit: Duration) -> bool;
}

/// The thread that waits for changes.
#[derive(Debug)]
pub(super) struct Watcher {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// What a task waits for notices with.
#[derive(Debug, Clone)]
pub struct Changes(watch::Receiver<u64>);

impl Changes {
    /// Waits for a notice that came since the last one was taken, for so long at most. Whether one came.
    pub async fn within(&mut self, limit: Duration) -> bool {
        matches!(tokio::time::timeout(limit, self.next()).await, Ok(()))
    }

    /// Waits for a notice that came since the last one was taken: for ever, if the thread has ended.
    pub async fn next(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

impl Watcher {
    /// Starts the thread.
    pub(super) fn start(mut watch: Box<dyn Watch>) -> std::io::Result<(Watcher, Changes)> {
        let (notices, changes) = watch::channel(0);
        let ends = Arc::new(AtomicBool::new(false));
        let is_to_end = Arc::clone(&ends);
        let wait = move || {
            while !is_to_end.load(Ordering::Relaxed) {
                if watch.wait(TURN) {
                    notices.send_modify(|count| *count += 1);
                }
            }
        };
        let thread = std::thread::Builder::new().name("config-watch".into()).stack_size(STACK).spawn(wait)?;
        Ok((Watcher { ends, thread: Some(thread) }, Changes(changes)))
    }
}

/// The thread has ended, and its connection is closed, when this is dropped.
impl Drop for Watcher {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
