//! What a process knows of its store: whether it answers, and whether it continues what was read of it before.
//!
//! Everything that a node asks of its store passes through here, in one thread. So what is read is compared with what was read before, in the
//! order of the reads. If an older copy of the store was put back, its revision is lower at first, but grows with each commit. What remains is a
//! value whose version is not above the revision of an earlier listing, although that listing does not have it.
//!
//! Once such a read is found, nothing is read or changed until the process ends: whatever the revision is then, the store may hold another
//! history, and a record that replaces one of it would be decided by what this process knows of the lost one.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::watch::Watch;
use super::{Change, ConfigError, ConfigStore, Stored};

/// How the store does, as its thread finds out. Clones are the same one.
#[derive(Debug, Clone, Default)]
pub struct StoreHealth(Arc<Mutex<Found>>);

#[derive(Debug, Default)]
struct Found {
    /// When the first operation began that the store has not answered, or the first after its last answer. `None` if it has answered all.
    unanswered: Option<Instant>,
    /// An older copy was put back: the revision that was seen, and the one that showed it.
    went_back: Option<(u64, u64)>,
}

impl StoreHealth {
    fn found(&self) -> MutexGuard<'_, Found> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For how long the store has not answered what it was asked. Zero if it has answered everything, however long ago that was.
    pub fn silence(&self) -> Duration {
        self.found().unanswered.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// The error with which all operations end, if an older copy of the store was put back.
    pub fn went_back(&self) -> Option<ConfigError> {
        self.found().went_back.map(|(was, is)| ConfigError::WentBack { was, is })
    }

    /// Waits for work that asks the store, as long as the store answers. `None` once the store has not answered for so long.
    ///
    /// Only the store counts. Work that waits for its turn behind other operations, or behind anything else, is waited for.
    pub async fn while_it_answers<T>(&self, limit: Duration, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        loop {
            let left = limit.saturating_sub(self.silence());
            if left.is_zero() {
                return None;
            }
            if let Ok(done) = tokio::time::timeout(left, &mut work).await {
                return Some(done);
            }
        }
    }

    fn begins(&self) {
        self.found().unanswered.get_or_insert_with(Instant::now);
    }

    /// An operation has ended, with this error if it failed.
    fn ends(&self, error: Option<&ConfigError>) {
        if !error.is_some_and(ConfigError::is_silence) {
            self.found().unanswered = None;
        }
        if let Some(why @ ConfigError::WentBack { was, is }) = error {
            self.found().went_back = Some((*was, *is));
            tracing::error!("{why}");
        }
    }
}

/// A store of which each read is compared with earlier ones.
pub(super) struct Continuing {
    inner: Box<dyn ConfigStore>,
    health: StoreHealth,
    /// The highest revision that was read.
    newest: u64,
    /// The revision of the last listing of all keys, and the version of each key then.
    listed: (u64, BTreeMap<String, u64>),
}

impl Continuing {
    pub(super) fn new(inner: Box<dyn ConfigStore>, health: StoreHealth) -> Continuing {
        Continuing { inner, health, newest: 0, listed: (0, BTreeMap::new()) }
    }

    /// Asks the store for something, unless an older copy was put back, and compares the answer with what is known.
    fn ask<T>(
        &mut self,
        ask: impl FnOnce(&mut dyn ConfigStore) -> Result<T, ConfigError>,
        compare: impl FnOnce(&mut Continuing, &T) -> Result<(), ConfigError>,
    ) -> Result<T, ConfigError> {
        if let Some(why) = self.health.went_back() {
            return Err(why);
        }
        self.health.begins();
        let answer = ask(&mut *self.inner);
        let answer = answer.and_then(|answer| compare(self, &answer).map(|()| answer));
        self.health.ends(answer.as_ref().err());
        answer
    }

    /// Fails if a revision is lower than one that was read before.
    fn is_no_lower(&mut self, is: u64) -> Result<(), ConfigError> {
        let was = self.newest;
        self.newest = was.max(is);
        if is < was { Err(ConfigError::WentBack { was, is }) } else { Ok(()) }
    }

    /// Fails if the last listing of all keys would have this version of a key, and does not.
    fn is_known_or_later(&self, key: &str, version: u64) -> Result<(), ConfigError> {
        let (at, versions) = &self.listed;
        if version > *at || versions.get(key) == Some(&version) {
            return Ok(());
        }
        Err(ConfigError::WentBack { was: *at, is: version })
    }
}

impl ConfigStore for Continuing {
    fn get(&mut self, key: &str) -> Result<Option<Stored>, ConfigError> {
        self.ask(
            |store| store.get(key),
            |known, found| found.as_ref().map_or(Ok(()), |found| known.is_known_or_later(key, found.version)),
        )
    }

    fn list(&mut self, prefix: &str) -> Result<(u64, Vec<(String, Stored)>), ConfigError> {
        self.ask(
            |store| store.list(prefix),
            |known, (revision, listed)| {
                known.is_no_lower(*revision)?;
                listed.iter().try_for_each(|(key, stored)| known.is_known_or_later(key, stored.version))?;
                if prefix.is_empty() {
                    let versions = listed.iter().map(|(key, stored)| (key.clone(), stored.version));
                    known.listed = (*revision, versions.collect());
                }
                Ok(())
            },
        )
    }

    fn commit(&mut self, changes: &[Change]) -> Result<bool, ConfigError> {
        self.ask(|store| store.commit(changes), |_, _| Ok(()))
    }

    fn revision(&mut self) -> Result<u64, ConfigError> {
        self.ask(|store| store.revision(), |known, revision| known.is_no_lower(*revision))
    }

    fn watch(&self) -> Result<Box<dyn Watch>, ConfigError> {
        self.inner.watch()
    }
}

#[cfg(test)]
mod tests;
