//! Changes that are too many for one commit, in steps each of which is safe to be the last.
//!
//! All steps of a long change have a *guard*: the key of what the change is about, a volume or a node. A step is made only if the guard is
//! there, and writes it again, so that no step is made together with one of another process that removes it.

use super::{Change, ConfigError, ConfigStore, MOST_CHANGES};

/// How often a step that lost against another change is tried.
const TRIES: usize = 16;

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

/// Makes `first`, which makes or changes the guard, and then `rest`. `goes_on` decides by a later value of the guard whether the rest is
/// still to be made.
pub fn extend(
    store: &mut dyn ConfigStore,
    mut first: Vec<Change>,
    rest: Vec<Change>,
    guard: &str,
    goes_on: impl Fn(&[u8]) -> bool,
) -> Result<Made, ConfigError> {
    let mut rest = rest.into_iter();
    first.extend(rest.by_ref().take(MOST_CHANGES - first.len()));
    if !store.commit(&first)? {
        return Ok(Made::Nothing);
    }
    let rest: Vec<Change> = rest.collect();
    for part in rest.chunks(MOST_CHANGES - 1) {
        let mut tries = 0..TRIES;
        loop {
            if tries.next().is_none() {
                return Err(ConfigError::Contended);
            }
            let Some(stored) = store.get(guard)?.filter(|stored| goes_on(&stored.value)) else {
                return Ok(Made::Stopped);
            };
            let same =
                Change { key: guard.into(), expected: Some(stored.version), value: Some(stored.value) };
            let step: Vec<Change> = std::iter::once(same).chain(part.iter().cloned()).collect();
            if store.commit(&step)? {
                break;
            }
        }
    }
    Ok(Made::All)
}

/// Makes `rest`, and then `last`, which removes the guard. `to_go` is the guard at the moment of the first step if there are several: its
/// new value marks it for removal, so that no process begins anything with it.
pub fn shrink(
    store: &mut dyn ConfigStore,
    to_go: Change,
    rest: Vec<Change>,
    mut last: Vec<Change>,
) -> Result<Made, ConfigError> {
    if rest.len() + last.len() <= MOST_CHANGES {
        last.extend(rest);
        return Ok(if store.commit(&last)? { Made::All } else { Made::Nothing });
    }
    let (guard, mut expected) = (to_go.key.clone(), to_go.expected);
    let mut made = Made::Nothing;
    for part in rest.chunks(MOST_CHANGES - 1) {
        let mark = Change { expected, ..to_go.clone() };
        let step: Vec<Change> = std::iter::once(mark).chain(part.iter().cloned()).collect();
        if !store.commit(&step)? {
            return Ok(made);
        }
        made = Made::Stopped;
        expected = store.get(&guard)?.map(|stored| stored.version);
    }
    for change in last.iter_mut().filter(|change| change.key == guard) {
        change.expected = expected;
    }
    Ok(if store.commit(&last)? { Made::All } else { Made::Stopped })
}

/// Makes changes that do not depend on each other, in as many commits as they need. Whether all were made: if not, read the
/// configuration again.
pub fn each(store: &mut dyn ConfigStore, changes: &[Change]) -> Result<bool, ConfigError> {
    for part in changes.chunks(MOST_CHANGES) {
        if !store.commit(part)? {
            return Ok(false);
        }
    }
    Ok(true)
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

    #[test]
    fn a_long_change_is_made_in_steps_and_a_short_one_at_once() {
        for (replicas, commits) in [(10, 1), (MOST_CHANGES - 1, 1), (MOST_CHANGES, 2), (1000, 9)] {
            let mut store = MemoryStore::default();
            let first = vec![put("volume/1".into(), None, "creating")];
            let made = extend(&mut store, first, many(None, replicas), "volume/1", |_| true);
            assert_eq!((made.unwrap(), count(&mut store)), (Made::All, replicas));
            assert_eq!(store.revision().unwrap(), commits, "{replicas} replicas");
        }
    }

    #[test]
    fn what_came_first_is_seen_and_nothing_is_made() {
        let mut store = MemoryStore::default();
        assert!(store.commit(&[put("volume/1".into(), None, "x")]).unwrap());
        let first = vec![put("volume/1".into(), None, "creating")];
        assert_eq!(extend(&mut store, first, many(None, 500), "volume/1", |_| true).unwrap(), Made::Nothing);
        assert_eq!(count(&mut store), 0);
    }

    #[test]
    fn nothing_more_is_made_for_what_is_to_go() {
        let mut store = MemoryStore::default();
        let first = vec![put("volume/1".into(), None, "to go")];
        let made = extend(&mut store, first, many(None, 500), "volume/1", |value| value != b"to go");
        assert_eq!((made.unwrap(), count(&mut store)), (Made::Stopped, MOST_CHANGES - 1));
    }

    #[test]
    fn what_goes_in_steps_is_marked_with_the_first_and_removed_with_the_last() {
        for replicas in [10, MOST_CHANGES, 500] {
            let mut store = MemoryStore::default();
            let first = vec![put("volume/1".into(), None, "ready")];
            extend(&mut store, first, many(None, replicas), "volume/1", |_| true).unwrap();
            let (_, listed) = store.list("replica/").unwrap();
            let rest = listed
                .into_iter()
                .map(|(key, stored)| Change { key, expected: Some(stored.version), value: None })
                .collect();
            let version = store.get("volume/1").unwrap().unwrap().version;
            let to_go = put("volume/1".into(), Some(version), "to go");
            let gone = Change { key: "volume/1".into(), expected: Some(version), value: None };
            assert_eq!(shrink(&mut store, to_go, rest, vec![gone]).unwrap(), Made::All);
            assert_eq!(store.list("").unwrap().1, []);
        }
    }
}
