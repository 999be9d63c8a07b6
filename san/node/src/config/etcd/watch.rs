//! A watch of an etcd. It is a hint only: a watch at a member that is cut off may be silent for ever (etcd#8980, etcd#12534), so it is made
//! anew at another member when nothing comes, not even the progress that was asked for.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use etcd_client::{WatchOptions, WatchStream};
use tokio::time::{Instant, timeout, timeout_at};

use super::super::watch::Watch;
use super::address::EtcdAddress;
use super::members::connect;

/// How often a watch requests its progress.
const PROGRESS: Duration = Duration::from_secs(2);
/// How long a watch may be silent.
const SILENT: Duration = Duration::from_secs(6);
/// How long the making of a watch may take.
const MADE: Duration = Duration::from_secs(2);
/// How long after a member has failed the next one is tried.
const AGAIN: Duration = Duration::from_secs(1);

/// Receives the notices of a task that watches.
pub(super) struct EtcdWatch {
    notices: Receiver<()>,
}

impl Watch for EtcdWatch {
    fn wait(&mut self, limit: Duration) -> bool {
        match self.notices.recv_timeout(limit) {
            Ok(()) => {
                // Several at once are one.
                while self.notices.try_recv().is_ok() {}
                true
            }
            Err(RecvTimeoutError::Timeout) => false,
            // The store is closed, and so is this soon.
            Err(RecvTimeoutError::Disconnected) => {
                std::thread::sleep(limit);
                true
            }
        }
    }
}

/// Begins to watch what is changed after `revision`. To be called within the runtime of the store; ends when the returned watch, or the
/// runtime, has ended.
pub(super) fn start(address: EtcdAddress, member: usize, revision: u64) -> EtcdWatch {
    let (sender, notices) = channel();
    tokio::spawn(watch(address, member, revision, sender));
    EtcdWatch { notices }
}

async fn watch(address: EtcdAddress, mut member: usize, mut revision: u64, notices: Sender<()>) {
    let count = address.endpoints().len();
    // `send` fails when the watch was dropped.
    loop {
        if let Ok(stream) = begin(&address, &address.endpoints()[member % count], revision).await
            && !follow(stream, &mut revision, &notices).await
        {
            return;
        }
        // Something may have changed that this watch has not seen.
        if notices.send(()).is_err() {
            return;
        }
        member += 1;
        tokio::time::sleep(AGAIN).await;
    }
}

/// Makes a watch at a member, of all that is changed after `revision`.
async fn begin(address: &EtcdAddress, member: &str, revision: u64) -> Result<WatchStream, ()> {
    let client = connect(address, member).await.map_err(|_| ())?;
    let options = WatchOptions::new().with_prefix().with_start_revision(revision as i64 + 1);
    let made = timeout(MADE, client.watch_client().watch(address.data_key(""), Some(options))).await;
    made.map_err(|_| ())?.map_err(|_| ())
}

/// Gives notice of each change until the watch ends or is silent. False if the watch was dropped.
async fn follow(mut stream: WatchStream, revision: &mut u64, notices: &Sender<()>) -> bool {
    let (mut requested, mut received) = (Instant::now(), Instant::now());
    loop {
        match timeout_at(requested + PROGRESS, stream.message()).await {
            Ok(Ok(Some(answer))) => {
                received = Instant::now();
                // What is compacted is not to be had any more: begin with what is there now.
                let (header, compacted) =
                    (answer.header().map(|header| header.revision()), answer.compact_revision());
                *revision = header.unwrap_or(0).max(compacted).max(*revision as i64) as u64;
                if !answer.events().is_empty() && notices.send(()).is_err() {
                    return false;
                }
                if answer.canceled() {
                    return true;
                }
            }
            Ok(Ok(None) | Err(_)) => return true,
            Err(_) if received.elapsed() > SILENT => return true,
            Err(_) => {
                requested = Instant::now();
                if stream.request_progress().await.is_err() {
                    return true;
                }
            }
        }
    }
}
