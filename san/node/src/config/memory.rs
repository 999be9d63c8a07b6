//! A store in the memory of a test: the fast double of the others, held to the same suite.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::watch::Watch;
use super::{Change, ConfigError, ConfigStore, MOST_CHANGES, Stored};

/// What is kept, and its revision.
#[derive(Debug, Clone, Default)]
struct Content {
    entries: BTreeMap<String, Stored>,
    revision: u64,
}

/// A store in memory. Clones are connections to the same store.
#[derive(Debug, Clone, Default)]
pub(crate) struct MemoryStore(Arc<(Mutex<Content>, Condvar)>);

impl MemoryStore {
    fn with<T>(&self, then: impl FnOnce(&mut Content) -> T) -> T {
        then(&mut self.0.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What makes the store as it is now again.
    pub(crate) fn backup(&self) -> impl FnOnce() + use<> {
        let (content, store) = (self.with(|content| content.clone()), self.clone());
        move || store.with(|now| *now = content)
    }
}

impl ConfigStore for MemoryStore {
    fn get(&mut self, key: &str) -> Result<Option<Stored>, ConfigError> {
        Ok(self.with(|content| content.entries.get(key).cloned()))
    }

    fn list(&mut self, prefix: &str) -> Result<(u64, Vec<(String, Stored)>), ConfigError> {
        Ok(self.with(|content| {
            let entries = content.entries.iter().filter(|(key, _)| key.starts_with(prefix));
            (content.revision, entries.map(|(key, stored)| (key.clone(), stored.clone())).collect())
        }))
    }

    fn commit(&mut self, changes: &[Change]) -> Result<bool, ConfigError> {
        assert!(
            changes.len() <= MOST_CHANGES,
            "a commit has at most {MOST_CHANGES} changes, and not {}",
            changes.len()
        );
        let made = self.with(|content| {
            let version = |key: &str| content.entries.get(key).map(|stored| stored.version);
            if changes.iter().any(|change| version(&change.key) != change.expected) {
                return false;
            }
            content.revision += 1;
            for Change { key, value, .. } in changes {
                match value.clone() {
                    Some(value) => {
                        content.entries.insert(key.clone(), Stored { value, version: content.revision });
                    }
                    None => _ = content.entries.remove(key),
                }
            }
            true
        });
        self.0.1.notify_all();
        Ok(made)
    }

    fn revision(&mut self) -> Result<u64, ConfigError> {
        Ok(self.with(|content| content.revision))
    }

    fn watch(&self) -> Result<Box<dyn Watch>, ConfigError> {
        Ok(Box::new(MemoryWatch { store: self.clone(), seen: self.with(|content| content.revision) }))
    }
}

struct MemoryWatch {
    store: MemoryStore,
    seen: u64,
}

impl Watch for MemoryWatch {
    fn wait(&mut self, limit: Duration) -> bool {
        let (content, changed) = &*self.store.0;
        let content = content.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = self.seen;
        let waited = changed.wait_timeout_while(content, limit, |content| content.revision == seen);
        self.seen = waited.unwrap_or_else(PoisonError::into_inner).0.revision;
        self.seen != seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::conformance::{Place, conforms};

    impl Place for MemoryStore {
        fn connect(&self) -> Box<dyn ConfigStore> {
            Box::new(self.clone())
        }

        fn backup(&self) -> Box<dyn FnOnce()> {
            Box::new(MemoryStore::backup(self))
        }
    }

    #[test]
    fn it_does_what_every_store_must() {
        conforms(MemoryStore::default);
    }
}
