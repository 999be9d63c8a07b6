//! A store that may move to another place while nodes use it: for example from a SQLite file to an etcd.
//!
//! A move begins with one commit that writes the new URL under the key `moved`. Every commit expects that key to be absent, so from then on
//! nothing changes in the old store. What is read is used only if `moved` was still absent afterwards: a node that read an old record there,
//! while others have changed it in the new store, would take the store for one that went back. Then everything is copied, the key `cluster`
//! last: with it the new store is complete, and nodes use it.
//!
//! Revisions and versions of the new store are raised by the last revision of the old one. So they continue to grow, and a version that was
//! read in the old store is that of no value in the new one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::url::StoreUrl;
use super::watch::Watch;
use super::{Change, ConfigError, ConfigStore, MOST_CHANGES, Stored};

/// The key with the URL of the store that a configuration has moved to.
pub(super) const MOVED: &str = "moved";
/// The key of a store that is being filled: the id of the cluster that moves to it.
const FILLING: &str = "filling";
/// The key that is copied last.
const CLUSTER: &str = "cluster";
/// How often a configuration may have moved before it is opened.
const MOST_MOVES: usize = 8;

/// Opens the store at a URL, without following it anywhere.
type Open = fn(&StoreUrl) -> Result<Box<dyn ConfigStore>, ConfigError>;
/// Is called with the new URL when the store has moved.
pub(super) type OnMove = Box<dyn FnMut(&StoreUrl) + Send>;

/// A store that is followed to where it moves.
pub(super) struct Following {
    inner: Box<dyn ConfigStore>,
    open: Open,
    on_move: OnMove,
    /// What revisions and versions of `inner` are raised by.
    base: u64,
    /// The watch of the store that was moved to, until the thread that waits takes it.
    watch: Arc<Mutex<Option<Box<dyn Watch>>>>,
}

impl Following {
    /// Opens the store at this URL, or the one that it has moved to.
    pub(super) fn open(url: &StoreUrl, open: Open, on_move: OnMove) -> Result<Following, ConfigError> {
        let mut store =
            Following { inner: open(url)?, open, on_move, base: 0, watch: Arc::new(Mutex::new(None)) };
        for _ in 0..MOST_MOVES {
            if !store.follow()? {
                return Ok(store);
            }
        }
        Err(ConfigError::Contended)
    }

    /// Goes to the store that this one has moved to. Whether it has moved.
    fn follow(&mut self) -> Result<bool, ConfigError> {
        let Some(stored) = self.inner.get(MOVED)? else { return Ok(false) };
        let broken = |why: String| ConfigError::Broken { key: MOVED.into(), why };
        let text = String::from_utf8(stored.value).map_err(|why| broken(why.to_string()))?;
        let to: StoreUrl = text.parse().map_err(broken)?;
        let mut next = match (self.open)(&to) {
            Err(ConfigError::Missing(_)) => return Err(moving(&to)),
            next => next?,
        };
        if next.get(CLUSTER)?.is_none() {
            return Err(moving(&to));
        }
        // The last of them: every commit since expects that nothing has moved.
        let last = self.inner.revision()?;
        *self.watch.lock().unwrap_or_else(PoisonError::into_inner) = Some(next.watch()?);
        (self.inner, self.base) = (next, self.base + last);
        tracing::info!("the configuration has moved to {to}");
        (self.on_move)(&to);
        Ok(true)
    }

    /// Reads something, of the store that the configuration is in when it was read.
    fn read<T>(
        &mut self,
        read: impl Fn(&mut dyn ConfigStore) -> Result<T, ConfigError>,
    ) -> Result<T, ConfigError> {
        for _ in 0..MOST_MOVES {
            let found = read(&mut *self.inner)?;
            if !self.follow()? {
                return Ok(found);
            }
        }
        Err(ConfigError::Contended)
    }

    fn raised(&self, stored: Stored) -> Stored {
        Stored { version: stored.version + self.base, ..stored }
    }
}

fn moving(to: &StoreUrl) -> ConfigError {
    ConfigError::Unavailable(format!(
        "it is being moved to {to}, which is not complete; if 'loadline san move-store' does not run any more, run it again"
    ))
}

impl ConfigStore for Following {
    fn get(&mut self, key: &str) -> Result<Option<Stored>, ConfigError> {
        let found = self.read(|store| store.get(key))?;
        Ok(found.map(|stored| self.raised(stored)))
    }

    fn list(&mut self, prefix: &str) -> Result<(u64, Vec<(String, Stored)>), ConfigError> {
        let (revision, listed) = self.read(|store| store.list(prefix))?;
        let listed = listed.into_iter().map(|(key, stored)| (key, self.raised(stored))).collect();
        Ok((revision + self.base, listed))
    }

    fn commit(&mut self, changes: &[Change]) -> Result<bool, ConfigError> {
        if changes.len() > MOST_CHANGES {
            return Err(ConfigError::TooLarge(changes.len()));
        }
        let mut own = Vec::with_capacity(changes.len() + 1);
        for change in changes {
            let expected = match change.expected.map(|version| version.checked_sub(self.base)) {
                // It was read before the store moved.
                Some(None) => return Ok(false),
                Some(expected) => expected,
                None => None,
            };
            own.push(Change { expected, ..change.clone() });
        }
        own.push(Change { key: MOVED.into(), expected: None, value: None });
        if self.inner.commit(&own)? {
            return Ok(true);
        }
        self.follow()?;
        Ok(false)
    }

    fn revision(&mut self) -> Result<u64, ConfigError> {
        let revision = self.read(|store| store.revision())?;
        Ok(revision + self.base)
    }

    fn watch(&self) -> Result<Box<dyn Watch>, ConfigError> {
        Ok(Box::new(FollowingWatch { inner: self.inner.watch()?, next: Arc::clone(&self.watch) }))
    }
}

struct FollowingWatch {
    inner: Box<dyn Watch>,
    next: Arc<Mutex<Option<Box<dyn Watch>>>>,
}

impl Watch for FollowingWatch {
    fn wait(&mut self, limit: Duration) -> bool {
        if let Some(next) = self.next.lock().unwrap_or_else(PoisonError::into_inner).take() {
            self.inner = next;
            return true;
        }
        self.inner.wait(limit)
    }
}

/// Moves the configuration from one store to a new one, while nodes use it. A move that was cut short continues when it is begun again
/// with the same two stores. Returns how many keys the configuration has.
pub(super) fn move_store(
    old: &mut dyn ConfigStore,
    to: &StoreUrl,
    create: impl Fn(&StoreUrl) -> Result<Box<dyn ConfigStore>, ConfigError>,
    open: Open,
) -> Result<usize, ConfigError> {
    let url = to.to_string().into_bytes();
    let Some(cluster) = old.get(CLUSTER)? else {
        return Err(ConfigError::Missing("the old configuration store".into()));
    };
    let moved = old.get(MOVED)?;
    if let Some(moved) = &moved
        && moved.value != url
    {
        return Err(ConfigError::Exists(format!(
            "a move to {}",
            String::from_utf8_lossy(&moved.value).escape_debug()
        )));
    }
    let filling = || Change { key: FILLING.into(), expected: None, value: Some(cluster.value.clone()) };
    let mut new = match create(to) {
        Ok(mut new) => {
            new.commit(&[filling()])?;
            new
        }
        Err(ConfigError::Exists(shown)) => {
            let mut new = open(to)?;
            // Only what an earlier try has made: a store of this cluster, which is not complete, or is what nodes use already.
            let id = |value: &[u8]| -> Option<String> {
                let value: serde_json::Value = serde_json::from_slice(value).ok()?;
                value["id"].as_str().map(str::to_owned)
            };
            let (part, whole) = (new.get(FILLING)?, new.get(CLUSTER)?);
            let of = part.as_ref().or(whole.as_ref().filter(|_| moved.is_some()));
            let is_ours = of.is_some_and(|of| id(&of.value).is_some() && id(&of.value) == id(&cluster.value));
            let is_new = part.is_none() && whole.is_none() && new.list("")?.1.is_empty();
            if !is_ours && !is_new {
                return Err(ConfigError::Exists(shown));
            }
            if is_new {
                new.commit(&[filling()])?;
            } else if part.is_none() {
                return Ok(new.list("")?.1.len());
            }
            new
        }
        Err(why) => return Err(why),
    };
    if moved.is_none() {
        let mark = Change { key: MOVED.into(), expected: None, value: Some(url) };
        if !old.commit(&[mark])? {
            return Err(ConfigError::Contended);
        }
    }
    // From here on nothing changes in the old store.
    let (_, entries) = old.list("")?;
    let there: BTreeMap<String, Stored> = new.list("")?.1.into_iter().collect();
    let count = entries.len() - 1;
    let made = |(key, stored): (String, Stored)| Change { key, expected: None, value: Some(stored.value) };
    let rest: Vec<Change> = entries
        .into_iter()
        .filter(|(key, _)| !matches!(key.as_str(), MOVED | CLUSTER) && !there.contains_key(key))
        .map(made)
        .collect();
    // Each part expects that the store is still being filled. After another process has completed it, nodes change it, and nothing is
    // to be made anew that they have removed.
    for part in rest.chunks(MOST_CHANGES - 1) {
        let Some(still) = new.get(FILLING)? else { return Err(ConfigError::Contended) };
        let same = Change { key: FILLING.into(), expected: Some(still.version), value: Some(still.value) };
        let step: Vec<Change> = std::iter::once(same).chain(part.iter().cloned()).collect();
        if !new.commit(&step)? {
            return Err(ConfigError::Contended);
        }
    }
    let Some(filling) = new.get(FILLING)?.map(|stored| stored.version) else {
        return Err(ConfigError::Contended);
    };
    let last = [
        Change { key: CLUSTER.into(), expected: None, value: Some(cluster.value) },
        Change { key: FILLING.into(), expected: Some(filling), value: None },
    ];
    match new.commit(&last)? {
        true => Ok(count),
        false => Err(ConfigError::Contended),
    }
}

#[cfg(test)]
mod tests;
