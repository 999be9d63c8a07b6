//! Stores that move while they are used.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::*;
use crate::config::conformance::{Place, conforms};
use crate::config::continuing::{Continuing, StoreHealth};
use crate::config::{self, catalog, open_here};

fn put(key: &str, expected: Option<u64>, value: &str) -> Change {
    Change { key: key.into(), expected, value: Some(value.as_bytes().to_vec()) }
}

fn url(path: &Path) -> StoreUrl {
    StoreUrl::Sqlite(path.to_owned())
}

/// A cluster's configuration in a file, with so many keys.
fn cluster(path: &Path, keys: u32) {
    let mut store = config::create(&url(path)).unwrap();
    let cluster = catalog::Cluster {
        reserve: catalog::Reserve::default(),
        id: "c1".into(),
        next_id: 1,
        lease_ms: 600,
        loops: 1,
        overcommit: 100,
        transport: catalog::Transport::Open,
        certificate_s: 86400,
    };
    assert!(store.commit(&[catalog::change("cluster", None, &cluster)]).unwrap());
    for key in 0..keys {
        assert!(store.commit(&[put(&format!("key/{key}"), None, "0")]).unwrap());
    }
}

fn moved(from: &Path, to: &Path) -> Result<usize, ConfigError> {
    move_store(&mut *open_here(&url(from))?, &url(to), config::create, open_here)
}

/// A store that was moved to: its revisions and versions are raised.
struct Raised(tempfile::TempDir);

impl Raised {
    fn path(&self) -> PathBuf {
        self.0.path().join("new.db")
    }
}

impl Place for Raised {
    fn connect(&self) -> Box<dyn ConfigStore> {
        let inner = open_here(&url(&self.path())).unwrap();
        let watch = Arc::new(Mutex::new(None));
        Box::new(Following { inner, open: open_here, on_move: Box::new(|_| {}), base: 1000, watch })
    }

    fn backup(&self) -> Box<dyn FnOnce()> {
        let path = self.path();
        let content = std::fs::read(&path).unwrap();
        Box::new(move || std::fs::write(path, content).unwrap())
    }
}

#[test]
fn it_does_what_every_store_must() {
    conforms(|| {
        let place = Raised(tempfile::tempdir().unwrap());
        config::create(&url(&place.path())).unwrap();
        place
    });
}

/// Connections count while the store moves: no addition is lost or made twice, and revisions and versions only grow.
#[test]
fn nothing_is_lost_while_a_store_moves_under_its_users() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    cluster(&path("a.db"), 300);
    assert!(open_here(&url(&path("a.db"))).unwrap().commit(&[put("count", None, "0")]).unwrap());
    let connect = || Following::open(&url(&path("a.db")), open_here, Box::new(|_| {})).unwrap();
    let (begun, ended, added) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let (mut store, begun, ended, added) = (connect(), &begun, &ended, &added);
            scope.spawn(move || {
                let (mut revision, mut version) = (0, 0);
                for turn in 0.. {
                    loop {
                        // While the new store is being filled, nothing can be read or changed.
                        let Ok(is) = store.revision() else { continue };
                        assert!(is >= revision, "{is} after {revision}");
                        let Ok(Some(stored)) = store.get("count") else { continue };
                        assert!(stored.version >= version, "{} after {version}", stored.version);
                        (revision, version) = (is, stored.version);
                        let next = String::from_utf8(stored.value).unwrap().parse::<u64>().unwrap() + 1;
                        if matches!(
                            store.commit(&[put("count", Some(stored.version), &next.to_string())]),
                            Ok(true)
                        ) {
                            break;
                        }
                    }
                    added.fetch_add(1, Ordering::Relaxed);
                    begun.store(turn > 5, Ordering::Relaxed);
                    if ended.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
        }
        while !begun.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        for (from, to) in [("a.db", "b.db"), ("b.db", "c.db")] {
            // On a machine under load, the others leave the file to this one too late. A move continues when it is begun again.
            while let Err(why) = moved(&path(from), &path(to)) {
                assert!(matches!(why, ConfigError::Unavailable(_)), "{why}");
            }
        }
        ended.store(true, Ordering::Relaxed);
    });
    let added = added.into_inner();
    assert_eq!(connect().get("count").unwrap().unwrap().value, added.to_string().into_bytes());
    let old = open_here(&url(&path("a.db"))).unwrap().get("count").unwrap().unwrap();
    assert_ne!(old.value, added.to_string().into_bytes(), "the later ones are in the new store");
}

#[test]
fn what_was_read_before_a_move_changes_nothing_after_it() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (folder.path().join("a.db"), folder.path().join("b.db"));
    cluster(&a, 1);
    let mut store = Following::open(&url(&a), open_here, Box::new(|_| {})).unwrap();
    let before = store.get("key/0").unwrap().unwrap();
    let mut watch = store.watch().unwrap();
    moved(&a, &b).unwrap();
    // In the new store its version may be any number, also this one.
    assert!(!store.commit(&[put("key/0", Some(before.version), "late")]).unwrap());
    let now = store.get("key/0").unwrap().unwrap();
    assert!(now.version > before.version && now.value == before.value);
    assert!(!store.commit(&[put("key/0", Some(before.version), "late")]).unwrap());
    assert!(store.commit(&[put("key/0", Some(now.version), "new")]).unwrap());
    // The watch is one of the new store.
    while watch.wait(Duration::from_millis(200)) {}
    let mut other = Following::open(&url(&a), open_here, Box::new(|_| {})).unwrap();
    assert!(other.commit(&[put("key/9", None, "x")]).unwrap());
    assert!(watch.wait(Duration::from_secs(5)));
    assert_eq!(
        open_here(&url(&a)).unwrap().get("key/0").unwrap().unwrap().value,
        b"0",
        "the old one stays as it was"
    );
}

#[test]
fn a_move_that_was_cut_short_is_waited_for_and_continues() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| -> PathBuf { folder.path().join(name) };
    cluster(&path("a.db"), 300);
    // It ends after the mark, and after a part of the copy.
    let mut old = open_here(&url(&path("a.db"))).unwrap();
    let cluster_value = old.get("cluster").unwrap().unwrap().value;
    let mut new = config::create(&url(&path("b.db"))).unwrap();
    let filling = Change { key: FILLING.into(), expected: None, value: Some(cluster_value) };
    assert!(new.commit(&[filling, put("key/0", None, "0")]).unwrap());
    drop(new);
    assert!(old.commit(&[put(MOVED, None, &url(&path("b.db")).to_string())]).unwrap());
    let opened = Following::open(&url(&path("a.db")), open_here, Box::new(|_| {}));
    let Err(ConfigError::Unavailable(why)) = opened else { panic!("it is not complete") };
    assert!(why.contains("move-store"), "{why}");
    // Not to another place, and not over what is another cluster's.
    cluster(&path("other.db"), 1);
    assert!(matches!(moved(&path("a.db"), &path("other.db")), Err(ConfigError::Exists(_))));
    assert!(matches!(moved(&path("a.db"), &path("c.db")), Err(ConfigError::Exists(_))));
    for _ in 0..2 {
        assert_eq!(moved(&path("a.db"), &path("b.db")).unwrap(), 301, "again is no error");
    }
    let to = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&to);
    let on_move: OnMove = Box::new(move |url| seen.lock().unwrap().push(url.to_string()));
    let mut store = Following::open(&url(&path("a.db")), open_here, on_move).unwrap();
    assert_eq!(*to.lock().unwrap(), [url(&path("b.db")).to_string()]);
    assert_eq!(store.list("key/").unwrap().1.len(), 300);
    assert_eq!(store.get(FILLING).unwrap(), None);
}

#[test]
fn a_store_that_moves_is_not_taken_for_one_that_went_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    cluster(&path("0.db"), 3);
    let connect = || Following::open(&url(&path("0.db")), open_here, Box::new(|_| {})).unwrap();
    let mut store = Continuing::new(Box::new(connect()), StoreHealth::default());
    let version =
        |store: &mut dyn ConfigStore, key: &str| store.get(key).unwrap().map(|stored| stored.version);
    store.list("").unwrap();
    for round in 0..3 {
        let mut other = connect();
        for (by, key) in [(&mut store as &mut dyn ConfigStore, "key/0"), (&mut other, "key/1")] {
            let expected = version(by, key);
            assert!(by.commit(&[put(key, expected, "1")]).unwrap());
        }
        let gone = Change { key: "key/2".into(), expected: version(&mut other, "key/2"), value: None };
        assert!(other.commit(&[gone]).unwrap());
        version(&mut store, "key/1");
        moved(&path(&format!("{round}.db")), &path(&format!("{}.db", round + 1))).unwrap();
        // The first commit finds the move only.
        assert!((0..2).any(|_| other.commit(&[put("key/2", None, "1")]).unwrap()));
        (0..3).for_each(|key| assert!(version(&mut store, &format!("key/{key}")).is_some()));
        store.list("key/").unwrap();
        store.list("").unwrap();
    }
}

#[test]
fn a_change_of_too_many_keys_is_refused_before_the_store_is_asked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    cluster(&path, 0);
    let mut store = Following::open(&url(&path), open_here, Box::new(|_| {})).unwrap();
    let many: Vec<Change> = (0..=MOST_CHANGES).map(|key| put(&format!("key/{key}"), None, "0")).collect();
    let why = store.commit(&many).unwrap_err();
    assert!(matches!(why, ConfigError::TooLarge(keys) if keys == many.len()), "{why}");
    assert_eq!(store.list("key/").unwrap().1, []);
    assert!(store.commit(&many[1..]).unwrap());
}
