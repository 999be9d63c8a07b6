//! Changes that are too many for one commit, in steps each of which is safe to be the last.
//!
//! All steps of a long change have a *guard*: the key of what the change is about, a volume or a node. A step is made only if the guard is
//! there, and writes it again, so that no step is made together with one of another process that removes it.
//!
//! A step has one commit. The thread of the store does one step at a time for a caller ([`Config::in_steps`](super::service::Config::in_steps)),
//! so a long change delays other callers by one step, and ends with a step if its caller has gone.

use super::{Change, ConfigError, ConfigStore, MOST_CHANGES};

/// How often a step that lost against another change is tried.
pub const TRIES: usize = 16;

/// What became of a long change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Made {
    /// All of it was made.
    All,
    /// Nothing was made, because another change came first: read the configuration again.
    Nothing,
    /// The guard is gone, or is to go: the steps before stay as they are.
    Stopped,
}

/// Whether a long change is complete after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step<T> {
    /// It needs at least one more step.
    More,
    /// It is complete, with this result.
    Done(T),
}

/// Makes all steps of a change, one after the other.
pub fn all<T>(
    store: &mut dyn ConfigStore,
    mut step: impl FnMut(&mut dyn ConfigStore) -> Result<Step<T>, ConfigError>,
) -> Result<T, ConfigError> {
    loop {
        if let Step::Done(made) = step(store)? {
            return Ok(made);
        }
    }
}

/// A change that makes or changes the guard, and then the rest.
#[derive(Debug)]
pub struct Extend {
    first: Vec<Change>,
    rest: Vec<Change>,
    guard: String,
    goes_on: fn(&[u8]) -> bool,
    tries: usize,
}

impl Extend {
    /// `first` has the change of the guard. `goes_on` decides by a later value of the guard whether the rest is still to be made.
    pub fn new(
        mut first: Vec<Change>,
        mut rest: Vec<Change>,
        guard: String,
        goes_on: fn(&[u8]) -> bool,
    ) -> Extend {
        let fit = rest.len().min(MOST_CHANGES - first.len());
        first.extend(rest.drain(..fit));
        Extend { first, rest, guard, goes_on, tries: 0 }
    }

    /// Makes the next step. An error leaves the steps before it; whether this one was made is not known then.
    pub fn step(&mut self, store: &mut dyn ConfigStore) -> Result<Step<Made>, ConfigError> {
        if !self.first.is_empty() {
            if !store.commit(&std::mem::take(&mut self.first))? {
                return Ok(Step::Done(Made::Nothing));
            }
        } else {
            let Some(stored) = store.get(&self.guard)?.filter(|stored| (self.goes_on)(&stored.value)) else {
                return Ok(Step::Done(Made::Stopped));
            };
            let same =
                Change { key: self.guard.clone(), expected: Some(stored.version), value: Some(stored.value) };
            let mut step = vec![same];
            let count = self.rest.len().min(MOST_CHANGES - 1);
            step.extend(self.rest[..count].iter().cloned());
            if store.commit(&step)? {
                self.rest.drain(..count);
                self.tries = 0;
            } else {
                self.tries += 1;
                if self.tries == TRIES {
                    return Err(ConfigError::Contended);
                }
            }
        }
        Ok(if self.rest.is_empty() { Step::Done(Made::All) } else { Step::More })
    }
}

/// A change that removes the guard at the end.
#[derive(Debug)]
pub struct Shrink {
    to_go: Change,
    rest: Vec<Change>,
    last: Vec<Change>,
    made: Made,
}

impl Shrink {
    /// Makes `rest`, and then `last`, which removes the guard. `to_go` is the guard at the moment of the first step if there are several: its
    /// new value marks it for removal, so that no process begins anything with it.
    pub fn new(to_go: Change, rest: Vec<Change>, last: Vec<Change>) -> Shrink {
        Shrink { to_go, rest, last, made: Made::Nothing }
    }

    /// All changes, if they fit in one commit and no step was made.
    pub fn at_once(self) -> Option<Vec<Change>> {
        let fits = self.made == Made::Nothing && self.rest.len() + self.last.len() <= MOST_CHANGES;
        fits.then(|| [self.last, self.rest].concat())
    }

    /// Makes the next step. An error leaves the steps before it; whether this one was made is not known then.
    pub fn step(&mut self, store: &mut dyn ConfigStore) -> Result<Step<Made>, ConfigError> {
        if self.rest.len() + self.last.len() <= MOST_CHANGES {
            let mut step = std::mem::take(&mut self.last);
            step.append(&mut self.rest);
            for change in step.iter_mut().filter(|change| change.key == self.to_go.key) {
                change.expected = self.to_go.expected;
            }
            return Ok(Step::Done(if store.commit(&step)? { Made::All } else { self.made }));
        }
        let count = self.rest.len().min(MOST_CHANGES - 1);
        let step: Vec<Change> = std::iter::once(self.to_go.clone()).chain(self.rest.drain(..count)).collect();
        if !store.commit(&step)? {
            return Ok(Step::Done(self.made));
        }
        self.made = Made::Stopped;
        self.to_go.expected = store.get(&self.to_go.key)?.map(|stored| stored.version);
        Ok(Step::More)
    }
}

/// Changes that do not depend on each other, in as many commits as they need.
#[derive(Debug)]
pub struct Each(Vec<Change>);

impl Each {
    /// Changes of which each is safe alone. No two have the same key.
    pub fn new(changes: Vec<Change>) -> Each {
        Each(changes)
    }

    /// Makes the next step. Its result is whether all were made: if not, read the configuration again.
    pub fn step(&mut self, store: &mut dyn ConfigStore) -> Result<Step<bool>, ConfigError> {
        let count = self.0.len().min(MOST_CHANGES);
        if count > 0 && !store.commit(&self.0[..count])? {
            return Ok(Step::Done(false));
        }
        self.0.drain(..count);
        Ok(if self.0.is_empty() { Step::Done(true) } else { Step::More })
    }
}

/// Makes changes of which each is safe alone, without a break. Whether all were made: if not, read the configuration again.
pub fn each(store: &mut dyn ConfigStore, changes: Vec<Change>) -> Result<bool, ConfigError> {
    let mut each = Each::new(changes);
    all(store, |store| each.step(store))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::memory::MemoryStore;

    fn put(key: String, expected: Option<u64>, value: &str) -> Change {
        Change { key, expected, value: Some(value.as_bytes().to_vec()) }
    }

    fn many(expected: Option<u64>, count: usize) -> Vec<Change> {
        (0..count).map(|id| put(format!("replica/{id}"), expected, "x")).collect()
    }

    fn count(store: &mut MemoryStore) -> usize {
        store.list("replica/").unwrap().1.len()
    }

    fn extend(
        store: &mut MemoryStore,
        first: Vec<Change>,
        rest: Vec<Change>,
        goes_on: fn(&[u8]) -> bool,
    ) -> Made {
        let mut change = Extend::new(first, rest, "volume/1".into(), goes_on);
        all(store, |store| change.step(store)).unwrap()
    }

    #[test]
    fn a_long_change_is_made_in_steps_and_a_short_one_at_once() {
        for (replicas, commits) in [(10, 1), (MOST_CHANGES - 1, 1), (MOST_CHANGES, 2), (1000, 9)] {
            let mut store = MemoryStore::default();
            let first = vec![put("volume/1".into(), None, "creating")];
            let made = extend(&mut store, first, many(None, replicas), |_| true);
            assert_eq!((made, count(&mut store)), (Made::All, replicas));
            assert_eq!(store.revision().unwrap(), commits, "{replicas} replicas");
        }
    }

    #[test]
    fn what_came_first_is_seen_and_nothing_is_made() {
        let mut store = MemoryStore::default();
        assert!(store.commit(&[put("volume/1".into(), None, "x")]).unwrap());
        let first = vec![put("volume/1".into(), None, "creating")];
        assert_eq!(extend(&mut store, first, many(None, 500), |_| true), Made::Nothing);
        assert_eq!(count(&mut store), 0);
    }

    #[test]
    fn nothing_more_is_made_for_what_is_to_go() {
        let mut store = MemoryStore::default();
        let first = vec![put("volume/1".into(), None, "to go")];
        let made = extend(&mut store, first, many(None, 500), |value| value != b"to go");
        assert_eq!((made, count(&mut store)), (Made::Stopped, MOST_CHANGES - 1));
    }

    #[test]
    fn what_goes_in_steps_is_marked_with_the_first_and_removed_with_the_last() {
        for replicas in [10, MOST_CHANGES, 500] {
            let mut store = MemoryStore::default();
            let first = vec![put("volume/1".into(), None, "ready")];
            extend(&mut store, first, many(None, replicas), |_| true);
            let (_, listed) = store.list("replica/").unwrap();
            let rest = listed
                .into_iter()
                .map(|(key, stored)| Change { key, expected: Some(stored.version), value: None })
                .collect();
            let version = store.get("volume/1").unwrap().unwrap().version;
            let to_go = put("volume/1".into(), Some(version), "to go");
            let gone = Change { key: "volume/1".into(), expected: Some(version), value: None };
            let mut change = Shrink::new(to_go, rest, vec![gone]);
            assert_eq!(all(&mut store, |store| change.step(store)).unwrap(), Made::All);
            assert_eq!(store.list("").unwrap().1, []);
        }
    }
}
