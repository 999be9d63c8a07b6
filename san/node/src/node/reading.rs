//! The configuration is read now, rather than soon: for a command, or for a connection that is to be let in.
//!
//! However many tasks ask for that, one reads at a time, and each task waits for two reads at most: the one that is under way, and one that
//! began after the task came. A read that fails is the answer for all tasks that came before it failed. A connection waits for a limited
//! time only.

use std::time::{Duration, Instant};

use super::Node;
use crate::config::ConfigError;
use crate::config::catalog::Catalog;

/// How long a connection waits for a store that did not answer when it was asked last.
const AWAY: Duration = Duration::from_millis(200);

/// How the last read ended that is known to have ended.
#[derive(Debug)]
enum Last {
    /// It began then, and the configuration was read.
    Read(Instant),
    /// It failed then.
    Failed(Instant, ConfigError),
}

/// Reads of the configuration that tasks share.
#[derive(Debug, Default)]
pub(super) struct Reading(tokio::sync::Mutex<Option<Last>>);

impl Reading {
    /// Calls `read`, unless a read that another task has made answers for this one, too.
    async fn share<F: Future<Output = Result<(), ConfigError>>>(
        &self,
        read: impl FnOnce() -> F,
    ) -> Result<(), ConfigError> {
        let came = Instant::now();
        let mut last = self.0.lock().await;
        match &*last {
            Some(Last::Read(begun)) if *begun >= came => return Ok(()),
            Some(Last::Failed(ended, why)) if *ended >= came => return Err(why.clone()),
            _ => {}
        }
        let begun = Instant::now();
        let result = read().await;
        *last = Some(match &result {
            Ok(()) => Last::Read(begun),
            Err(why) => Last::Failed(Instant::now(), why.clone()),
        });
        result
    }
}

impl Node {
    /// Reads the configuration, or waits for another task that does. It takes as long as the store may take to answer: what lets a
    /// connection in uses [`Node::refresh_within`].
    pub(in crate::node) async fn refresh(&self) -> Result<(), ConfigError> {
        self.0.reading.share(|| self.read_configuration()).await
    }

    /// Reads the configuration if the store answers within this time, or within [`AWAY`] if it did not answer when it was asked last. Returns
    /// whether it did: if not, what was known before is all that is known.
    pub(crate) async fn refresh_within(&self, limit: Duration) -> bool {
        let is_away = self.state().store.fault().is_some();
        let limit = if is_away { limit.min(AWAY) } else { limit };
        matches!(tokio::time::timeout(limit, self.refresh()).await, Ok(Ok(())))
    }

    async fn read_configuration(&self) -> Result<(), ConfigError> {
        let known = self.state().catalog.revision;
        let news = self.config().call(move |store| match store.revision()? {
            same if same == known => Ok(None),
            _ => Catalog::read(store).map(Some),
        });
        let news = news.await?;
        self.state().store.learn_outcome(None);
        if let Some(catalog) = news {
            self.learn(catalog);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn run<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime
            .block_on(async { tokio::time::timeout(Duration::from_secs(20), work).await.expect("in time") })
    }

    #[test]
    fn a_read_that_fails_answers_all_that_came_before_it_failed_and_none_that_comes_later() {
        run(async {
            let (reading, reads) = (Reading::default(), Cell::new(0));
            let fails = || async {
                reads.set(reads.get() + 1);
                // All others come meanwhile.
                tokio::task::yield_now().await;
                Err(ConfigError::Unavailable(format!("read {}", reads.get())))
            };
            let (first, second, third) =
                tokio::join!(reading.share(fails), reading.share(fails), reading.share(fails));
            for result in [first, second, third] {
                assert!(result.unwrap_err().to_string().ends_with("read 1"));
            }
            assert!(reading.share(fails).await.unwrap_err().to_string().ends_with("read 2"));
        });
    }

    #[test]
    fn a_read_that_succeeds_answers_only_those_that_came_before_it_began() {
        run(async {
            let (reading, reads) = (Reading::default(), Cell::new(0));
            let succeeds = || async {
                reads.set(reads.get() + 1);
                tokio::task::yield_now().await;
                Ok(())
            };
            let (first, second, third) =
                tokio::join!(reading.share(succeeds), reading.share(succeeds), reading.share(succeeds));
            assert!(first.is_ok() && second.is_ok() && third.is_ok());
            assert_eq!(reads.get(), 2, "the one under way, and one for all that came during it");
        });
    }

    #[test]
    fn a_task_that_gives_up_leaves_the_others_their_turn() {
        run(async {
            let reading = Reading::default();
            let hangs = std::future::pending::<Result<(), ConfigError>>;
            let limited = tokio::time::timeout(Duration::ZERO, reading.share(hangs));
            assert!(limited.await.is_err());
            assert!(reading.share(|| async { Ok(()) }).await.is_ok());
        });
    }
}
