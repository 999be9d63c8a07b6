//! A thread for each node, which follows the stream of the node and connects again whenever the stream ends.
//!
//! A node that dies costs its own thread a wait, and nothing else: no list waits for it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use loadline_api_client::ApiAddress;
use loadline_san_node::node::manage::Followed;

/// A node sends a sample each second. One that sends nothing for so long does not answer.
const SILENT: Duration = Duration::from_secs(4);
/// The time from the end of a stream to the next try, at first, and at most.
const AGAIN: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(2)];
/// The stack of the thread.
const STACK: usize = 256 << 10;

/// What a follower of a node reports.
#[derive(Debug)]
pub enum News {
    /// The node has sent this.
    Followed(Followed),
    /// The node does not answer, and why.
    Silent(String),
}

/// A thread that follows a node. It ends when this is dropped, at its next event.
#[derive(Debug)]
pub struct Follower {
    ends: Arc<AtomicBool>,
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
    }
}

impl Follower {
    /// Follows the node with this API, and reports what it sends.
    ///
    /// # Errors
    /// The system starts no further thread.
    pub fn start(
        api: ApiAddress,
        access: Option<PathBuf>,
        mut report: impl FnMut(News) + Send + 'static,
    ) -> std::io::Result<Follower> {
        let ends = Arc::new(AtomicBool::new(false));
        let is_to_end = Arc::clone(&ends);
        let run = move || {
            let (mut last, mut pause) = (None, AGAIN[0]);
            while !is_to_end.load(Ordering::Relaxed) {
                let mut has_sent = false;
                let why = match api.follow(access.as_deref(), "/v1/stream", last.as_deref(), SILENT) {
                    Err(why) => shown(&why),
                    Ok(mut events) => loop {
                        match events.receive() {
                            Ok(None) => break "its stream has ended".into(),
                            Err(why) => break shown(&why),
                            Ok(Some(event)) => {
                                if is_to_end.load(Ordering::Relaxed) {
                                    return;
                                }
                                let content = format!("{{\"{}\":{}}}", event.name, event.data);
                                match serde_json::from_str(&content) {
                                    Ok(followed) => report(News::Followed(followed)),
                                    Err(why) => break format!("it sends what is not understood: {why}"),
                                }
                                last = event.id.or(last);
                                has_sent = true;
                            }
                        }
                    },
                };
                report(News::Silent(why));
                pause = if has_sent { AGAIN[0] } else { (pause * 2).min(AGAIN[1]) };
                std::thread::sleep(pause);
            }
        };
        std::thread::Builder::new().name("follower".into()).stack_size(STACK).spawn(run)?;
        Ok(Follower { ends })
    }
}

/// Why a node does not answer, without what is for programmers only.
pub(crate) fn shown(why: &str) -> String {
    let why = why.strip_prefix("io: ").unwrap_or(why);
    match why.split_once(" (os error") {
        Some((why, _)) => why.to_lowercase(),
        None => why.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_an_error_of_the_system_is_left_out() {
        assert_eq!(shown("io: Connection refused (os error 111)"), "connection refused");
        assert_eq!(shown("its stream has ended"), "its stream has ended");
    }
}
