//! What every configuration store must do. A store's own tests run [`conforms`] on it; whatever else they show is about what only
//! that kind of store can do.

use std::time::{Duration, Instant};

use super::{Change, ConfigStore, Stored};

/// A store that the suite uses. Each is new and empty.
pub(crate) trait Place {
    /// A new connection to the store.
    fn connect(&self) -> Box<dyn ConfigStore>;

    /// Makes a copy of what is kept now. The returned function puts the copy in place of what is kept then, as a person does who
    /// restores a backup: no connection is open.
    fn backup(&self) -> Box<dyn FnOnce()>;
}

/// Holds a kind of store to all of it. `place` makes a new, empty store of that kind.
pub(crate) fn conforms<P: Place>(place: impl Fn() -> P) {
    conforms_but_for_backups(&place);
    a_store_that_went_back_shows_it(&place());
}

/// Holds it to all that needs no backup.
pub(crate) fn conforms_but_for_backups<P: Place>(place: impl Fn() -> P) {
    all_changes_are_made_or_none(&place());
    a_version_never_comes_again(&place());
    keys_are_listed_by_their_beginning_and_in_order(&place());
    values_and_commits_may_be_large(&place());
    a_list_is_of_one_moment(&place());
    no_update_of_several_connections_is_lost(&place());
    a_change_is_noticed(&place());
    what_is_kept_outlives_its_connections(&place());
}

fn put(key: &str, expected: Option<u64>, value: &str) -> Change {
    Change { key: key.into(), expected, value: Some(value.as_bytes().to_vec()) }
}

fn remove(key: &str, expected: u64) -> Change {
    Change { key: key.into(), expected: Some(expected), value: None }
}

fn version(store: &mut dyn ConfigStore, key: &str) -> Option<u64> {
    store.get(key).unwrap().map(|stored| stored.version)
}

fn all_changes_are_made_or_none(place: &impl Place) {
    let (mut one, mut other) = (place.connect(), place.connect());
    assert_eq!(one.list("").unwrap().1, []);
    assert!(one.commit(&[put("a/1", None, "x"), put("a/2", None, "y")]).unwrap());
    let revision = one.revision().unwrap();
    for changes in [
        [put("a/3", None, "z"), put("a/1", None, "w")],
        [put("a/3", None, "z"), remove("a/4", 1)],
        [put("a/1", version(&mut *one, "a/1"), "w"), put("a/2", Some(u64::MAX >> 1), "w")],
    ] {
        assert!(!other.commit(&changes).unwrap(), "{changes:?}");
    }
    let (listed_at, listed) = other.list("a/").unwrap();
    assert_eq!(
        (listed_at, one.revision().unwrap()),
        (revision, revision),
        "a refused commit changes nothing"
    );
    let values: Vec<_> = listed.iter().map(|(key, stored)| (key.as_str(), stored.value.as_slice())).collect();
    assert_eq!(values, [("a/1", &b"x"[..]), ("a/2", b"y")]);
}

fn a_version_never_comes_again(place: &impl Place) {
    let (mut one, mut other) = (place.connect(), place.connect());
    let (mut versions, mut expected) = (Vec::new(), None);
    for round in 0..6 {
        let before = one.revision().unwrap();
        assert!(other.commit(&[put("a", expected, "same")]).unwrap(), "{round}");
        assert!(!one.commit(&[put("a", expected, "late")]).unwrap(), "its version has passed");
        let Some(Stored { value, version }) = one.get("a").unwrap() else { panic!("it was made") };
        assert_eq!(value, b"same");
        assert!(one.revision().unwrap() > before);
        versions.push(version);
        expected = Some(version);
        if round % 2 == 1 {
            assert!(one.commit(&[remove("a", version)]).unwrap());
            assert!(!other.commit(&[remove("a", version)]).unwrap());
            assert_eq!(other.get("a").unwrap(), None);
            expected = None;
        }
    }
    assert!(versions.windows(2).all(|pair| pair[0] < pair[1]), "{versions:?}");
}

fn keys_are_listed_by_their_beginning_and_in_order(place: &impl Place) {
    let mut store = place.connect();
    let keys = ["a%/1", "a/10", "a/2", "a_/1", "b/1", "record/1", "record/2", "é/1"];
    let changes: Vec<Change> = keys.iter().rev().map(|key| put(key, None, key)).collect();
    assert!(store.commit(&changes).unwrap());
    for prefix in ["", "a", "a/", "a%", "a_", "record/", "é", "z"] {
        let listed: Vec<String> = store.list(prefix).unwrap().1.into_iter().map(|(key, _)| key).collect();
        let expected: Vec<&str> = keys.into_iter().filter(|key| key.starts_with(prefix)).collect();
        assert_eq!(listed, expected, "{prefix}");
    }
}

/// A record of a volume with many groups, and all replicas of a large volume in one change.
fn values_and_commits_may_be_large(place: &impl Place) {
    let mut store = place.connect();
    let bytes: Vec<u8> = (0..300_000u32).map(|number| (number * 7) as u8).collect();
    let large = Change { key: "record/1".into(), expected: None, value: Some(bytes.clone()) };
    assert!(store.commit(&[large]).unwrap());
    assert_eq!(store.get("record/1").unwrap().unwrap().value, bytes);
    let many: Vec<Change> = (0..100).map(|id| put(&format!("replica/{id}"), None, "wanted")).collect();
    assert!(store.commit(&many).unwrap());
    assert_eq!(store.list("replica/").unwrap().1.len(), 100);
}

/// Two keys always change together; no list ever shows one without the other.
fn a_list_is_of_one_moment(place: &impl Place) {
    let (mut writer, mut reader) = (place.connect(), place.connect());
    assert!(writer.commit(&[put("pair/1", None, "0"), put("pair/2", None, "0")]).unwrap());
    let writes = std::thread::spawn(move || {
        for round in 1..100 {
            let changes =
                ["pair/1", "pair/2"].map(|key| put(key, version(&mut *writer, key), &round.to_string()));
            assert!(writer.commit(&changes).unwrap());
        }
    });
    let mut last = 0;
    while !writes.is_finished() {
        let (revision, pair) = reader.list("pair/").unwrap();
        assert_eq!(pair[0].1, pair[1].1);
        assert!(revision >= last, "a connection never sees an older state after a newer one");
        last = revision;
    }
    writes.join().unwrap();
}

fn no_update_of_several_connections_is_lost(place: &impl Place) {
    const EACH: u64 = 40;
    let mut store = place.connect();
    assert!(store.commit(&[put("count", None, "0")]).unwrap());
    let connections: Vec<_> = (0..4).map(|_| place.connect()).collect();
    let count = |store: &mut dyn ConfigStore| {
        let stored = store.get("count").unwrap().unwrap();
        (String::from_utf8(stored.value).unwrap().parse::<u64>().unwrap(), stored.version)
    };
    let threads: Vec<_> = connections
        .into_iter()
        .map(|mut store| {
            std::thread::spawn(move || {
                for _ in 0..EACH {
                    loop {
                        let (is, version) = count(&mut *store);
                        if store.commit(&[put("count", Some(version), &(is + 1).to_string())]).unwrap() {
                            break;
                        }
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(count(&mut *store).0, 4 * EACH);
}

fn a_change_is_noticed(place: &impl Place) {
    let (mut one, mut other) = (place.connect(), place.connect());
    assert!(one.commit(&[put("a", None, "x")]).unwrap());
    let mut watch = one.watch().unwrap();
    while watch.wait(Duration::from_millis(200)) {
        // What was before may be noticed, and no more than that.
    }
    let begun = Instant::now();
    assert!(!watch.wait(Duration::from_millis(100)), "nothing has changed");
    assert!(begun.elapsed() >= Duration::from_millis(100), "it waits");
    for (connection, key) in [(&mut other, "b"), (&mut one, "c")] {
        assert!(connection.commit(&[put(key, None, "x")]).unwrap());
        assert!(watch.wait(Duration::from_secs(5)), "whichever connection makes the change");
        while watch.wait(Duration::from_millis(100)) {}
    }
    let late = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        assert!(other.commit(&[put("d", None, "x")]).unwrap());
    });
    let begun = Instant::now();
    let noticed = watch.wait(Duration::from_secs(10));
    assert!(noticed && begun.elapsed() < Duration::from_secs(5), "it does not wait for the limit");
    late.join().unwrap();
}

fn what_is_kept_outlives_its_connections(place: &impl Place) {
    let mut store = place.connect();
    assert!(store.commit(&[put("a", None, "x")]).unwrap());
    let (revision, stored) = (store.revision().unwrap(), store.get("a").unwrap());
    drop(store);
    let mut store = place.connect();
    assert_eq!((store.revision().unwrap(), store.get("a").unwrap()), (revision, stored));
}

fn a_store_that_went_back_shows_it(place: &impl Place) {
    let mut store = place.connect();
    assert!(store.commit(&[put("a", None, "x")]).unwrap());
    let revision = store.revision().unwrap();
    drop(store);
    let restore = place.backup();
    let mut store = place.connect();
    let expected = version(&mut *store, "a");
    assert!(store.commit(&[put("a", expected, "y")]).unwrap());
    let later = store.revision().unwrap();
    drop(store);
    restore();
    let mut store = place.connect();
    let (is, listed) = store.list("a").unwrap();
    assert_eq!((is, listed[0].1.value.as_slice()), (revision, &b"x"[..]));
    assert!(is < later, "a node that has seen the later revision knows that this is an older copy");
}
