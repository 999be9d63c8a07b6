//! Those who follow a node: a sample each second of what it does, and the lines of its log, without being asked for either.
//!
//! All followers get the same samples, so that a further one costs the data path nothing. Nothing is sampled while no one follows.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc};
use tokio::time::MissedTickBehavior;

use super::ManageError;
use super::sample::{Counted, Sample, since};
use crate::event_loop::latencies::FINE_BOUNDS_NS;
use crate::metrics::{cpu_seconds, resident_bytes};
use crate::node::Node;
use crate::recent::{self, LogLine};

/// The time from one sample to the next.
const EACH: Duration = Duration::from_secs(1);
/// How long the threads of the data path may take for one.
const LOOPS: Duration = Duration::from_millis(700);
/// Followers at once. Each of them is a connection.
const MOST: usize = 64;
/// Samples that a follower may be behind. It misses those before.
const BEHIND: usize = 4;
/// How long a stream lasts: a little less than a connection of the API may. It ends right after a sample, so that one who connects again
/// at once misses none.
const LASTS: Duration = Duration::from_secs(590);
/// How long a follower may not read.
const READS: Duration = Duration::from_secs(30);

/// What a follower gets first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Hello {
    /// The name of the node.
    pub node: String,
    /// The id of its cluster.
    pub cluster: String,
    /// The life of its process: a larger number for each later one. Numbers of lines belong to one life.
    pub incarnation: u64,
    /// The version of its program.
    pub version: String,
    /// The upper bounds of the classes of latencies, nanoseconds. What took longer is in one more class.
    pub bounds_ns: Vec<u64>,
}

/// One message of the stream. In the stream its name is that of the event, and its content the data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Followed {
    /// The first message: whom one follows.
    Hello(Hello),
    /// Each second: what the node did.
    Sample(Box<Sample>),
    /// A line of its log, as it is written. Those that are kept come first.
    Log(LogLine),
}

/// What is sent to one follower: the name of the event, its id, and its content as JSON.
pub(crate) type Sent = (&'static str, Option<String>, Arc<str>);

/// From where on a follower wants lines of the log: those after this number of this life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct After {
    incarnation: u64,
    number: u64,
}

impl After {
    /// As the id of an event has it: `INCARNATION-NUMBER`.
    pub(crate) fn of_id(id: &str) -> Option<After> {
        let (incarnation, number) = id.split_once('-')?;
        Some(After { incarnation: incarnation.parse().ok()?, number: number.parse().ok()? })
    }
}

/// The samples, for all followers.
#[derive(Debug)]
pub(crate) struct Samples {
    to_all: broadcast::Sender<Arc<str>>,
    /// A task takes them.
    are_taken: Mutex<bool>,
}

impl Default for Samples {
    fn default() -> Samples {
        Samples { to_all: broadcast::Sender::new(BEHIND), are_taken: Mutex::new(false) }
    }
}

impl Samples {
    /// A further follower, if there are not too many; and whether a task is to be started that takes samples.
    fn join(&self) -> Option<(broadcast::Receiver<Arc<str>>, bool)> {
        let mut are_taken = self.are_taken.lock().unwrap_or_else(PoisonError::into_inner);
        if self.to_all.receiver_count() >= MOST {
            return None;
        }
        let starts = !std::mem::replace(&mut *are_taken, true);
        Some((self.to_all.subscribe(), starts))
    }

    /// Whether no one follows: then the task that takes samples ends.
    fn are_unwanted(&self) -> bool {
        let mut are_taken = self.are_taken.lock().unwrap_or_else(PoisonError::into_inner);
        *are_taken = self.to_all.receiver_count() > 0;
        !*are_taken
    }
}

fn json(content: &impl Serialize) -> Arc<str> {
    serde_json::to_string(content).expect("it is numbers and texts").into()
}

impl Node {
    /// What this node does from now on. The receiver gets nothing more once the node's API ends.
    pub(crate) fn add_follower(&self, after: Option<After>) -> Result<mpsc::Receiver<Sent>, ManageError> {
        let Some((samples, starts)) = self.samples().join() else {
            return Err(ManageError::TimedOut(format!(
                "{MOST} connections follow this node already: end one, or try again later"
            )));
        };
        if starts {
            tokio::spawn(self.clone().take_samples());
        }
        let (send, receive) = mpsc::channel(BEHIND);
        let this = self.clone();
        tokio::spawn(async move {
            let mut connected = this.api_connections().enter();
            tokio::select! {
                _ = this.send_all(&send, samples, after) => {}
                () = connected.is_to_end() => {}
                () = send.closed() => {}
            }
        });
        Ok(receive)
    }

    /// Sends until the stream has lasted long enough, or the follower does not read any more: `None`.
    async fn send_all(
        &self,
        send: &mpsc::Sender<Sent>,
        mut samples: broadcast::Receiver<Arc<str>>,
        after: Option<After>,
    ) -> Option<()> {
        let give = async |sent| tokio::time::timeout(READS, send.send(sent)).await.ok()?.ok();
        let incarnation = self.incarnation();
        let hello = Hello {
            node: self.name().into(),
            cluster: self.cluster_id().to_string(),
            incarnation,
            version: env!("CARGO_PKG_VERSION").into(),
            bounds_ns: FINE_BOUNDS_NS.to_vec(),
        };
        give(("hello", None, json(&hello))).await?;
        let until = Instant::now() + LASTS;
        let mut newest = recent::newest();
        let mut last = after.filter(|after| after.incarnation == incarnation).map_or(0, |after| after.number);
        loop {
            newest.mark_unchanged();
            for line in recent::after(last) {
                last = line.number;
                give(("log", Some(format!("{incarnation}-{last}")), json(&line))).await?;
            }
            tokio::select! {
                sample = samples.recv() => match sample {
                    Ok(sample) => {
                        give(("sample", None, sample)).await?;
                        if Instant::now() >= until {
                            return None;
                        }
                    }
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return None,
                },
                changed = newest.changed() => changed.ok()?,
            }
        }
    }

    /// Takes a sample each second, as long as someone follows.
    async fn take_samples(self) {
        let mut connected = self.api_connections().enter();
        let mut counted = Counted::default();
        since(&mut counted, &self.fresh_loops(LOOPS).await, &self.state().catalog);
        let (mut last, mut cpu) = (Instant::now(), cpu_seconds());
        let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + EACH, EACH);
        // Samples of all nodes stay a second apart, so that one who adds them up gets one of each for each second.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        for number in 1.. {
            tokio::select! {
                _ = ticks.tick() => {}
                () = connected.is_to_end() => return,
            }
            if self.samples().are_unwanted() {
                return;
            }
            let loops = self.fresh_loops(LOOPS).await;
            let catalog = self.state().catalog.clone();
            let mut sample = since(&mut counted, &loops, &catalog);
            let now = Instant::now();
            let used = cpu_seconds();
            sample.number = number;
            sample.at_ms =
                SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
            sample.covers_us = now.duration_since(last).as_micros() as u64;
            sample.cpu_us = ((used - cpu).max(0.0) * 1e6) as u64;
            sample.memory = resident_bytes();
            (last, cpu) = (now, used);
            // An error says that no one follows any more.
            let _ = self.samples().to_all.send(json(&sample));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_asked_for_after_an_id_of_the_stream() {
        assert_eq!(After::of_id("17-4"), Some(After { incarnation: 17, number: 4 }));
        for wrong in ["", "17", "17-", "-4", "a-4", "17-4-2"] {
            assert_eq!(After::of_id(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn samples_are_taken_while_someone_follows_and_by_one_task() {
        let samples = Samples::default();
        let (first, starts) = samples.join().unwrap();
        assert!(starts && !samples.are_unwanted());
        let (second, starts) = samples.join().unwrap();
        assert!(!starts);
        drop((first, second));
        assert!(samples.are_unwanted(), "the task ends");
        let (_third, starts) = samples.join().unwrap();
        assert!(starts, "and another one begins");
        let followers: Vec<_> = (1..MOST).map(|_| samples.join().unwrap()).collect();
        assert!(samples.join().is_none());
        drop(followers);
        assert!(samples.join().is_some());
    }
}
