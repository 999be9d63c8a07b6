//! Stores that go back, that hang, and that are slow.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::config::conformance::{Place, conforms};
use crate::config::memory::MemoryStore;

fn put(key: &str, expected: Option<u64>, value: &str) -> Change {
    Change { key: key.into(), expected, value: Some(value.as_bytes().to_vec()) }
}

fn continuing(store: &MemoryStore) -> Continuing {
    Continuing::new(Box::new(store.clone()), StoreHealth::default())
}

struct Compared(MemoryStore);

impl Place for Compared {
    fn connect(&self) -> Box<dyn ConfigStore> {
        Box::new(continuing(&self.0))
    }

    fn backup(&self) -> Box<dyn FnOnce()> {
        Box::new(self.0.backup())
    }
}

#[test]
fn it_does_what_every_store_must() {
    conforms(|| Compared(MemoryStore::default()));
}

/// Sets a key, whatever it was.
fn set(store: &mut dyn ConfigStore, key: &str, value: &str) {
    let expected = store.get(key).unwrap().map(|stored| stored.version);
    assert!(store.commit(&[put(key, expected, value)]).unwrap());
}

type Read = fn(&mut Continuing) -> Option<ConfigError>;

const LIST: Read = |store| store.list("").err();
const LIST_SOME: Read = |store| store.list("b").err();
const GET: Read = |store| store.get("b").err();
const REVISION: Read = |store| store.revision().err();

/// A process knows the store at revision 3: `a` of the first commit, `b` of the third. A copy of revision 2 is put back and gets more commits,
/// each with one of these keys.
fn put_back(later: &[&str]) -> (MemoryStore, Continuing) {
    let mut other = MemoryStore::default();
    set(&mut other, "a", "1");
    set(&mut other, "b", "1");
    let restore = other.backup();
    set(&mut other, "b", "2");
    let mut known = continuing(&other);
    known.list("").unwrap();
    restore();
    later.iter().for_each(|key| set(&mut other, key, "later"));
    (other, known)
}

#[test]
fn an_older_copy_is_found_by_each_read_that_shows_it_and_nothing_is_changed_from_then_on() {
    let shown: [(&[&str], &[Read], &[Read]); 3] = [
        (&[], &[LIST, LIST_SOME, GET, REVISION], &[]),
        // The revision is the same again, and higher.
        (&["c"], &[LIST, LIST_SOME, GET], &[REVISION]),
        (&["c", "d", "e"], &[LIST, LIST_SOME, GET], &[REVISION]),
    ];
    for (later, finds, does_not) in shown {
        for read in does_not {
            assert!(read(&mut put_back(later).1).is_none(), "it cannot know");
        }
        for (number, read) in finds.iter().enumerate() {
            let (mut other, mut known) = put_back(later);
            let found = read(&mut known);
            assert!(matches!(found, Some(ConfigError::WentBack { .. })), "{later:?} {number}: {found:?}");
            assert!(known.health.went_back().is_some());
            // Not even if the newer copy is put back: what was changed in the older one meanwhile is not known.
            set(&mut other, "b", "3");
            for again in [
                known.commit(&[put("x", None, "1")]).err(),
                LIST(&mut known),
                GET(&mut known),
                REVISION(&mut known),
            ] {
                assert!(matches!(again, Some(ConfigError::WentBack { .. })), "{again:?}");
            }
            assert_eq!(other.get("x").unwrap(), None);
            assert_eq!(known.health.silence(), Duration::ZERO, "it answers");
        }
    }
}

#[test]
fn a_key_that_had_been_removed_shows_an_older_copy() {
    let mut other = MemoryStore::default();
    set(&mut other, "a", "1");
    let restore = other.backup();
    assert!(other.commit(&[Change { key: "a".into(), expected: Some(1), value: None }]).unwrap());
    let mut known = continuing(&other);
    known.list("").unwrap();
    restore();
    (0..3).for_each(|number| set(&mut other, &format!("c/{number}"), "later"));
    assert!(matches!(known.get("a"), Err(ConfigError::WentBack { was: 2, is: 1 })));
}

/// After this process has listed all keys at revision 2, others and this process do more. Then the copy of revision 2 is put back, and others
/// make these changes in it, each of one key. What the process reads of `b` then must show that the store went back.
fn is_found_after(more: impl Fn(&mut MemoryStore, &mut Continuing), later: &[&str], read: Read) {
    let mut other = MemoryStore::default();
    set(&mut other, "a", "1");
    set(&mut other, "b", "1");
    let restore = other.backup();
    let mut known = continuing(&other);
    known.list("").unwrap();
    more(&mut other, &mut known);
    restore();
    later.iter().for_each(|key| set(&mut other, key, "later"));
    let found = read(&mut known);
    assert!(matches!(found, Some(ConfigError::WentBack { .. })), "{later:?}: {found:?}");
    assert!(known.health.went_back().is_some());
}

#[test]
fn a_key_that_is_older_than_it_was_read_since_the_last_listing_shows_an_older_copy() {
    // The later version was read alone, or with others. The older one is that of the listing.
    is_found_after(
        |other, known| {
            set(other, "b", "2");
            assert_eq!(known.get("b").unwrap().unwrap().version, 3);
        },
        &[],
        GET,
    );
    is_found_after(
        |other, known| {
            set(other, "b", "2");
            known.list("b").unwrap();
        },
        &["c", "c"],
        GET,
    );
    is_found_after(
        |other, known| {
            set(other, "b", "2");
            known.get("b").unwrap();
        },
        &["c", "c"],
        LIST_SOME,
    );
}

#[test]
fn a_version_that_others_cannot_have_made_since_the_last_reading_shows_an_older_copy() {
    let is_unchanged = |known: &mut Continuing| {
        assert_eq!(known.revision().unwrap(), 4);
        assert_eq!(known.get("b").unwrap().unwrap().version, 2);
    };
    // The version is above the listing, but at revision 4 the key did not have it.
    is_found_after(
        |other, known| {
            set(other, "c", "1");
            set(other, "d", "1");
            is_unchanged(known);
        },
        &["b"],
        GET,
    );
    // Nor did it when it was absent at revision 5.
    is_found_after(
        |other, known| {
            set(other, "c", "1");
            set(other, "d", "1");
            assert!(other.commit(&[Change { key: "b".into(), expected: Some(2), value: None }]).unwrap());
            assert_eq!(known.revision().unwrap(), 5);
            known.list("b").unwrap();
        },
        &["b"],
        GET,
    );
}

#[test]
fn a_key_that_this_process_has_changed_does_not_have_its_former_version_again() {
    for value in [Some(b"mine".to_vec()), None] {
        is_found_after(
            |_, known| {
                let change = Change { key: "b".into(), expected: Some(2), value: value.clone() };
                assert!(known.commit(&[change]).unwrap());
            },
            &["c"],
            GET,
        );
    }
}

#[test]
fn a_key_that_is_removed_and_made_again_is_no_older_copy() {
    let mut other = MemoryStore::default();
    set(&mut other, "b", "1");
    let mut known = continuing(&other);
    known.list("").unwrap();
    for round in 0..20 {
        let reads = [GET, LIST_SOME, REVISION, LIST];
        for read in &reads[..round % 5] {
            assert!(read(&mut known).is_none());
        }
        // By others or by this process, with and without a reading between.
        let by: &mut dyn ConfigStore = if round % 2 == 0 { &mut known } else { &mut other };
        let version = by.get("b").unwrap().unwrap().version;
        assert!(by.commit(&[Change { key: "b".into(), expected: Some(version), value: None }]).unwrap());
        if round % 3 == 0 {
            assert_eq!(known.get("b").unwrap(), None);
        }
        assert!(other.commit(&[put("b", None, "again")]).unwrap());
        assert!(GET(&mut known).is_none() && LIST_SOME(&mut known).is_none(), "{round}");
    }
    // A change that is not made shows nothing.
    assert!(!known.commit(&[put("b", None, "mine")]).unwrap());
    assert!(GET(&mut known).is_none());
}

#[test]
fn what_is_remembered_has_a_bound_and_is_less_after_a_listing() {
    let mut other = MemoryStore::default();
    set(&mut other, "a", "1");
    let mut known = continuing(&other);
    known.list("").unwrap();
    for number in 0..MOST_BEYOND_LISTING + 10 {
        assert_eq!(known.get(&format!("absent/{number}")).unwrap(), None);
    }
    assert_eq!(known.known.len(), MOST_BEYOND_LISTING + 1);
    // What is not remembered is no older copy, and what was listed is compared as before.
    let key = format!("absent/{}", MOST_BEYOND_LISTING + 5);
    set(&mut other, &key, "1");
    assert_eq!(known.get(&key).unwrap().unwrap().version, 2);
    let restore = other.backup();
    set(&mut other, "a", "2");
    known.get("a").unwrap();
    restore();
    assert!(matches!(known.get("a"), Err(ConfigError::WentBack { was: 3, is: 1 })));
    let mut known = continuing(&other);
    (0..10).for_each(|number| assert_eq!(known.get(&format!("absent/{number}")).unwrap(), None));
    known.list("").unwrap();
    assert_eq!(known.known.keys().collect::<Vec<_>>(), ["a", &key]);
}

#[test]
fn a_store_that_others_change_is_no_older_copy() {
    let mut other = MemoryStore::default();
    let mut known = continuing(&other);
    for round in 0..5 {
        set(&mut other, "a", "x");
        set(&mut other, &format!("b/{round}"), "x");
        known.list("b/").unwrap();
        known.get("a").unwrap();
        let listed = known.list("").unwrap();
        let gone = Change { key: "a".into(), expected: Some(listed.1[0].1.version), value: None };
        assert!(other.commit(&[gone]).unwrap());
        assert_eq!(known.get("a").unwrap(), None);
        set(&mut known, "c", "x");
        known.get("c").unwrap();
    }
    assert!(known.health.went_back().is_none());
}

/// A store that does not answer as long as it is away.
struct Away(MemoryStore, Arc<AtomicBool>);

impl Away {
    fn asked(&self) -> Result<(), ConfigError> {
        match self.1.load(Ordering::Relaxed) {
            true => Err(ConfigError::Unavailable("it is away".into())),
            false => Ok(()),
        }
    }
}

impl ConfigStore for Away {
    fn get(&mut self, key: &str) -> Result<Option<Stored>, ConfigError> {
        self.asked()?;
        self.0.get(key)
    }

    fn list(&mut self, prefix: &str) -> Result<(u64, Vec<(String, Stored)>), ConfigError> {
        self.asked()?;
        self.0.list(prefix)
    }

    fn commit(&mut self, changes: &[Change]) -> Result<bool, ConfigError> {
        self.asked()?;
        self.0.commit(changes)
    }

    fn revision(&mut self) -> Result<u64, ConfigError> {
        self.asked()?;
        self.0.revision()
    }

    fn watch(&self) -> Result<Box<dyn Watch>, ConfigError> {
        self.0.watch()
    }
}

#[test]
fn a_store_is_silent_from_the_first_operation_that_it_does_not_answer_until_it_answers_one() {
    let away = Arc::new(AtomicBool::new(false));
    let health = StoreHealth::default();
    let mut store = Continuing::new(Box::new(Away(MemoryStore::default(), away.clone())), health.clone());
    set(&mut store, "a", "1");
    // A refused commit is an answer.
    assert!(!store.commit(&[put("a", None, "2")]).unwrap());
    assert_eq!(health.silence(), Duration::ZERO, "nothing was asked that it has not answered");
    away.store(true, Ordering::Relaxed);
    let before = Instant::now();
    let mut last = Duration::ZERO;
    for ask in [LIST, GET, REVISION, |store: &mut Continuing| store.commit(&[put("b", None, "1")]).err()] {
        assert!(matches!(ask(&mut store), Some(ConfigError::Unavailable(_))));
        let silence = health.silence();
        assert!(silence > last && silence <= before.elapsed(), "{silence:?} after {last:?}");
        last = silence;
    }
    away.store(false, Ordering::Relaxed);
    assert!(GET(&mut store).is_none());
    assert_eq!((health.silence(), health.went_back().is_some()), (Duration::ZERO, false));
}

#[test]
fn a_store_that_answers_with_a_refusal_or_something_else_is_not_silent() {
    let replaced = ConfigError::Replaced { path: "/x".into(), what: "was deleted" };
    let other = ConfigError::OtherEtcd { member: "a:1".into(), was: 1, is: 2 };
    for (why, stops_all) in [
        (ConfigError::Refused("permission denied".into()), true),
        (ConfigError::TooLarge(121), false),
        (replaced, true),
        (other, true),
        (ConfigError::Busy(Duration::from_secs(10)), false),
        (ConfigError::Contended, false),
        (ConfigError::Broken { key: "a".into(), why: "x".into() }, false),
    ] {
        let health = StoreHealth::default();
        health.begins();
        health.ends(Some(&ConfigError::Unavailable("it is away".into())));
        health.begins();
        health.ends(Some(&why));
        assert_eq!(health.silence(), Duration::ZERO, "{why}");
        assert_eq!((why.is_silence(), why.stops_all()), (false, stops_all), "{why}");
    }
}

/// Waits for work that takes so long, as long as the store is not silent for 100 ms. Whether it was done, and how long that took.
fn wait(health: &StoreHealth, work: Duration) -> (bool, Duration) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let begun = Instant::now();
    let done = runtime.block_on(async {
        health.while_it_answers(Duration::from_millis(100), tokio::time::sleep(work)).await
    });
    (done.is_some(), begun.elapsed())
}

const LONG: Duration = Duration::from_secs(20);

#[test]
fn work_is_waited_for_as_long_as_the_store_answers() {
    let health = StoreHealth::default();
    let work = Duration::from_millis(300);
    assert!(wait(&health, work).0, "the store was asked for nothing: the work waits for something else");
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                health.begins();
                std::thread::sleep(Duration::from_millis(2));
                health.ends(None);
            }
        });
        let (done, _) = wait(&health, work);
        ended.store(true, Ordering::Relaxed);
        assert!(done, "others are answered: the work waits for its turn");
    });
}

#[test]
fn a_store_that_hangs_or_fails_is_not_waited_for() {
    let (hangs, fails) = (StoreHealth::default(), StoreHealth::default());
    hangs.begins();
    let (done, took) = wait(&hangs, LONG);
    assert!(!done && took < LONG / 4, "{took:?}");
    // It is known to be silent: not even the limit is waited for.
    let begun = Instant::now();
    let (done, _) = wait(&hangs, LONG);
    assert!(!done && begun.elapsed() < Duration::from_millis(90), "{:?}", begun.elapsed());
    fails.begins();
    fails.ends(Some(&ConfigError::Unavailable("it is away".into())));
    fails.begins();
    let (done, took) = wait(&fails, LONG);
    assert!(!done && took < LONG / 4, "{took:?}");
}
