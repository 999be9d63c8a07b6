//! What a process knows of its store: whether it answers, and whether it continues what was read of it before.
//!
//! Everything that a node asks of its store passes through here, in one thread. So what is read is compared with what was read before, in the
//! order of the reads. If an older copy of the store was put back, its revision is lower at first, but grows with each commit. What remains is
//! what each key has: a value that changed since it was read has a version above every revision and version that had been read by then. A
//! version that is neither that of the last reading of its key nor above those is of another history. This also holds for a key that was
//! removed and made again: its new version is above all earlier ones. And a key that this process has changed has a version above all that
//! it had read before.
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

/// Keys that are remembered beyond those of the last listing of all keys. Of further ones, only that listing is known.
const MOST_BEYOND_LISTING: usize = 10_000;

/// What was read of a key last, or is known since this process changed it.
#[derive(Debug, Clone, Copy)]
struct Known {
    /// Its version. `None` if it was absent, or this process has changed it since.
    version: Option<u64>,
    /// The highest revision or version that was read by then. Whatever is committed to the key later has a higher version.
    floor: u64,
}

/// A store of which each read is compared with earlier ones.
pub(super) struct Continuing {
    inner: Box<dyn ConfigStore>,
    health: StoreHealth,
    /// The highest revision that was read.
    newest: u64,
    /// The highest revision or version that was read. It is above `newest` if a value was read after the last revision.
    highest: u64,
    /// The `highest` at the last listing of all keys: what is known of a key that `known` does not have.
    listed_at: u64,
    /// Keys of the last listing of all keys, and [`MOST_BEYOND_LISTING`] others that were read or changed since.
    known: BTreeMap<String, Known>,
    /// Keys that `known` may have.
    most_known: usize,
}

impl Continuing {
    pub(super) fn new(inner: Box<dyn ConfigStore>, health: StoreHealth) -> Continuing {
        Continuing {
            inner,
            health,
            newest: 0,
            highest: 0,
            listed_at: 0,
            known: BTreeMap::new(),
            most_known: MOST_BEYOND_LISTING,
        }
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
        self.highest = self.highest.max(is);
        if is < was { Err(ConfigError::WentBack { was, is }) } else { Ok(()) }
    }

    /// Fails if a key cannot have this version after what is known of the key. Remembers how high it is.
    fn is_known_or_later(&mut self, key: &str, version: u64) -> Result<(), ConfigError> {
        let unlisted = Known { version: None, floor: self.listed_at };
        let known = self.known.get(key).copied().unwrap_or(unlisted);
        self.highest = self.highest.max(version);
        if version > known.floor || known.version == Some(version) {
            return Ok(());
        }
        Err(ConfigError::WentBack { was: known.floor, is: version })
    }

    /// Remembers what was read of a key just now, or that this process has changed it.
    fn remember(&mut self, key: &str, version: Option<u64>) {
        let now = Known { version, floor: self.highest };
        let is_full = self.known.len() >= self.most_known;
        match self.known.get_mut(key) {
            Some(known) => *known = now,
            None if is_full => {}
            None => _ = self.known.insert(key.to_owned(), now),
        }
    }

    /// Compares a key, as it was read just now, with what is known of it.
    fn compare(&mut self, key: &str, version: Option<u64>) -> Result<(), ConfigError> {
        if let Some(version) = version {
            self.is_known_or_later(key, version)?;
        }
        self.remember(key, version);
        Ok(())
    }

    /// Compares all keys that begin so, as they were at this revision, with what is known of them.
    fn compare_all(
        &mut self,
        prefix: &str,
        revision: u64,
        listed: &[(String, Stored)],
    ) -> Result<(), ConfigError> {
        self.is_no_lower(revision)?;
        listed.iter().try_for_each(|(key, stored)| self.is_known_or_later(key, stored.version))?;
        let floor = self.highest;
        if prefix.is_empty() {
            self.listed_at = floor;
            self.known.clear();
            self.most_known = listed.len() + MOST_BEYOND_LISTING;
        }
        // Those that are not listed are absent.
        let under_prefix = self.known.range_mut(prefix.to_owned()..);
        let under_prefix = under_prefix.take_while(|(key, _)| key.starts_with(prefix));
        under_prefix.for_each(|(_, known)| *known = Known { version: None, floor });
        listed.iter().for_each(|(key, stored)| self.remember(key, Some(stored.version)));
        Ok(())
    }
}

impl ConfigStore for Continuing {
    fn get(&mut self, key: &str) -> Result<Option<Stored>, ConfigError> {
        self.ask(
            |store| store.get(key),
            |known, found| known.compare(key, found.as_ref().map(|found| found.version)),
        )
    }

    fn list(&mut self, prefix: &str) -> Result<(u64, Vec<(String, Stored)>), ConfigError> {
        self.ask(
            |store| store.list(prefix),
            |known, (revision, listed)| known.compare_all(prefix, *revision, listed),
        )
    }

    fn commit(&mut self, changes: &[Change]) -> Result<bool, ConfigError> {
        self.ask(
            |store| store.commit(changes),
            |known, made| {
                // A commit that failed, or whose outcome is unknown, shows nothing.
                if *made {
                    changes.iter().for_each(|change| known.remember(&change.key, None));
                }
                Ok(())
            },
        )
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
