//! The store against a real etcd: the suite that every store must pass, and what only an etcd does.

mod doubling;
mod proof;
mod proxy;
mod server;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::*;
use crate::cluster;
use crate::config::catalog;
use crate::config::conformance::{Place, conforms};
use crate::config::url::StoreUrl;
use crate::settings::NodeSettings;
use doubling::Doubling;
use proxy::Proxy;
use server::Server;

fn put(key: &str, expected: Option<u64>, value: &str) -> Change {
    Change { key: key.into(), expected, value: Some(value.as_bytes().to_vec()) }
}

fn address(endpoints: &str, prefix: &str) -> EtcdAddress {
    format!("{endpoints}/{prefix}").parse().unwrap()
}

/// A prefix of its own in an etcd that tests share.
struct Prefix {
    server: Arc<Server>,
    endpoints: String,
    prefix: String,
}

impl Place for Prefix {
    fn connect(&self) -> Box<dyn ConfigStore> {
        Box::new(EtcdStore::open(&address(&self.endpoints, &self.prefix)).unwrap())
    }

    fn backup(&self) -> Box<dyn FnOnce()> {
        let (restore, server) = (self.server.backup(), Arc::clone(&self.server));
        Box::new(move || restore(&server))
    }
}

/// Makes places, each with a new prefix.
fn places(server: &Arc<Server>, endpoints: String) -> impl Fn() -> Prefix {
    let (server, made) = (Arc::clone(server), AtomicUsize::new(0));
    move || {
        let prefix = format!("suite/{}", made.fetch_add(1, Ordering::Relaxed));
        EtcdStore::create(&address(&endpoints, &prefix)).unwrap();
        Prefix { server: Arc::clone(&server), endpoints: endpoints.clone(), prefix }
    }
}

#[test]
fn it_does_what_every_store_must() {
    let server = Arc::new(Server::start(1));
    conforms(places(&server, server.endpoints()));
}

#[test]
fn it_does_so_with_three_members_and_through_a_network_that_delays_answers() {
    let server = Arc::new(Server::start(3));
    let proxies: Vec<Proxy> = (0..3).map(|member| Proxy::start(server.endpoint(member))).collect();
    proxies.iter().for_each(|proxy| proxy.delay(Duration::from_millis(3)));
    let endpoints: Vec<&str> = proxies.iter().map(Proxy::endpoint).collect();
    crate::config::conformance::conforms_but_for_backups(places(&server, endpoints.join(",")));
}

#[test]
fn it_does_so_when_each_transaction_is_sent_twice_and_the_first_answer_is_lost() {
    let server = Arc::new(Server::start(1));
    let doubling = Doubling::start(server.endpoint(0));
    crate::config::conformance::conforms_but_for_backups(places(&server, doubling.endpoint().to_owned()));
    assert!(doubling.count() > 100, "{} were sent twice", doubling.count());
}

#[test]
fn a_commit_whose_answer_is_lost_is_of_unknown_outcome_and_is_not_sent_again() {
    let server = Server::start(1);
    let proxy = Proxy::start(server.endpoint(0));
    let mut store = EtcdStore::create(&address(proxy.endpoint(), "x")).unwrap();
    assert!(store.commit(&[put("count", None, "0")]).unwrap());
    for round in 1..=10 {
        let was = store.get("count").unwrap().unwrap();
        proxy.cut_next_answer();
        let answer = store.commit(&[put("count", Some(was.version), &round.to_string())]);
        assert!(matches!(answer, Err(ConfigError::Unavailable(_))), "{answer:?}");
        // The store can be read at once, and shows whether the commit was made.
        let is = store.get("count").unwrap().unwrap();
        let made = is.version != was.version;
        assert_eq!(made, is.value == round.to_string().as_bytes());
        if !made {
            assert!(store.commit(&[put("count", Some(was.version), &round.to_string())]).unwrap());
        }
    }
}

#[test]
fn members_that_die_or_are_silent_are_left_for_others() {
    let server = Server::start(3);
    let mut store = EtcdStore::create(&address(&server.endpoints(), "x")).unwrap();
    let mut watch = store.watch().unwrap();
    let mut made = 0;
    let mut change = |store: &mut EtcdStore| {
        // A commit that was under way may be of unknown outcome, once.
        let begun = Instant::now();
        for attempt in 0.. {
            let Ok(found) = store.get("a") else { continue };
            match store.commit(&[put("a", found.map(|found| found.version), "x")]) {
                Ok(true) => break,
                answer => assert!(attempt < 3, "{answer:?}"),
            }
        }
        made += 1;
        begun.elapsed()
    };
    let notices = |watch: &mut dyn Watch| {
        let noticed = watch.wait(Duration::from_secs(10));
        while watch.wait(Duration::from_millis(200)) {}
        noticed
    };
    change(&mut store);
    assert!(notices(&mut *watch));
    for member in 0..3 {
        server.kill(member);
        let took = change(&mut store);
        assert!(took < Duration::from_secs(8), "a member that is dead is left: {took:?}");
        assert!(notices(&mut *watch), "the watch too");
        server.restart(member);
    }
    for member in 0..3 {
        server.signal(member, Signal::SIGSTOP);
        let took = change(&mut store);
        assert!(took < Duration::from_secs(15), "a member that is silent is left: {took:?}");
        assert!(notices(&mut *watch));
        server.signal(member, Signal::SIGCONT);
    }
    // Two of three are gone: nothing can be read or changed, and each call fails within its limit.
    server.kill(0);
    server.kill(1);
    let begun = Instant::now();
    let Err(ConfigError::Unavailable(why)) = store.get("a") else { panic!("there is no majority") };
    assert!(begun.elapsed() < LIMIT + Duration::from_secs(1), "{:?}", begun.elapsed());
    assert!(why.contains(&server.endpoint(0)) && why.contains(&server.endpoint(2)), "{why}");
    server.restart(0);
    server.restart(1);
    change(&mut store);
}

#[test]
fn an_etcd_that_was_restored_or_is_another_one_is_not_used() {
    let server = Server::start(1);
    let at = address(&server.endpoints(), "x");
    let mut store = EtcdStore::create(&at).unwrap();
    assert!(store.commit(&[put("a", None, "old")]).unwrap());
    let restore = server.backup();
    let was = store.get("a").unwrap().unwrap().version;
    assert!(store.commit(&[put("a", Some(was), "new")]).unwrap());
    restore(&server);
    for _ in 0..3 {
        let Err(why) = store.get("a") else { panic!("it is an older copy") };
        assert!(why.to_string().contains("another etcd"), "{why}");
        assert!(store.commit(&[put("b", None, "x")]).is_err());
    }
    // Not one that goes by the same id, either.
    let mut store = EtcdStore::open(&at).unwrap();
    let same = server.backup();
    assert!(store.commit(&[put("c", None, "x")]).unwrap());
    same(&server);
    assert!(store.get("c").unwrap_err().to_string().contains("went back"));
    assert!(store.commit(&[put("d", None, "x")]).is_err());
    // A new process uses what is there.
    assert_eq!(EtcdStore::open(&at).unwrap().get("a").unwrap().unwrap().value, b"old");
    assert_eq!(EtcdStore::open(&at).unwrap().get("b").unwrap(), None, "nothing was done meanwhile");
}

/// Others use the same etcd: their changes do not raise the revision of the configuration, and do not hide that an older copy was put back.
#[test]
fn keys_of_others_do_not_count() {
    let server = Server::start(1);
    let at = address(&server.endpoints(), "x");
    let mut store = EtcdStore::create(&at).unwrap();
    let others = |count: usize| {
        for number in 0..count {
            let key = format!("other/{number}");
            assert!(server.etcdctl(&["--endpoints", &server.endpoint(0), "put", &key, "x"]));
        }
    };
    assert!(store.commit(&[put("a", None, "1"), put("b", None, "1")]).unwrap());
    let mut last = store.revision().unwrap();
    for kind in 0..4 {
        others(3);
        assert_eq!((store.revision().unwrap(), store.list("a").unwrap().0), (last, last));
        let version = |store: &mut EtcdStore, key: &str| store.get(key).unwrap().map(|stored| stored.version);
        let (a, b) = (version(&mut store, "a"), version(&mut store, "b"));
        let gone = |key: &str, expected| Change { key: key.into(), expected, value: None };
        let changes = match kind {
            0 => vec![put("a", a, "2")],
            // What goes is the newest, or not.
            1 => vec![gone("a", a)],
            2 => vec![put("c", None, "1"), gone("b", b)],
            _ => vec![gone("c", version(&mut store, "c"))],
        };
        assert!(store.commit(&changes).unwrap());
        let now = if kind % 2 == 0 { store.revision().unwrap() } else { store.list("").unwrap().0 };
        assert!(now > last, "{kind}: {now} after {last}");
        assert_eq!(store.revision().unwrap(), now);
        last = now;
    }
    // An older copy of the same id, whose revision has grown above all that was seen.
    assert!(store.commit(&[put("a", None, "old")]).unwrap());
    server.backup()(&server);
    let mut store = EtcdStore::open(&at).unwrap();
    let same = server.backup();
    let was = store.get("a").unwrap().unwrap().version;
    assert!(store.commit(&[put("a", Some(was), "new")]).unwrap());
    store.revision().unwrap();
    same(&server);
    others(10);
    assert!(matches!(store.revision(), Err(ConfigError::WentBack { .. })));
    assert!(matches!(store.get("a"), Err(ConfigError::WentBack { .. })));
    let refused = store.commit(&[put("d", None, "x")]);
    assert!(matches!(refused, Err(ConfigError::WentBack { .. })), "{refused:?}");
    let mut reader = EtcdStore::open(&at).unwrap();
    assert_eq!(reader.get("d").unwrap(), None, "nothing is sent to it");
}

#[test]
fn members_of_two_etcds_are_refused() {
    let (one, other) = (Server::start(1), Server::start(1));
    EtcdStore::create(&address(&one.endpoint(0), "x")).unwrap();
    let both = format!("{},{}", one.endpoint(0), other.endpoint(0));
    for opened in [EtcdStore::open(&address(&both, "x")), EtcdStore::create(&address(&both, "y"))] {
        assert!(matches!(opened, Err(ConfigError::OtherEtcd { .. })), "{opened:?}");
    }
    other.kill(0);
    EtcdStore::open(&address(&both, "x")).expect("a member that does not answer is passed over");
}

#[test]
fn more_keys_than_an_answer_has_are_listed_at_one_revision() {
    let server = Server::start(1);
    let mut store = EtcdStore::create(&address(&server.endpoints(), "x")).unwrap();
    for part in 0..11 {
        let changes: Vec<Change> =
            (0..100).map(|key| put(&format!("key/{part:02}{key:02}"), None, "x")).collect();
        assert!(store.commit(&changes).unwrap());
    }
    let (revision, listed) = store.list("key/").unwrap();
    assert_eq!((listed.len(), revision), (1100, store.revision().unwrap()));
    assert!(listed.is_sorted_by(|one, next| one.0 < next.0), "none comes twice");
}

#[test]
fn what_is_no_cluster_is_refused_and_nothing_overwritten() {
    let server = Server::start(1);
    let at = |prefix: &str| address(&server.endpoints(), prefix);
    assert!(matches!(EtcdStore::open(&at("x")), Err(ConfigError::Missing(_))));
    EtcdStore::create(&at("x")).unwrap();
    assert!(matches!(EtcdStore::create(&at("x")), Err(ConfigError::Exists(_))));
    EtcdStore::create(&at("x/y")).unwrap();
    let set = |key: &str, value: &str| {
        assert!(server.etcdctl(&["--endpoints", &server.endpoints(), "put", key, value]))
    };
    set("other/data/thing", "x");
    assert!(matches!(EtcdStore::create(&at("other")), Err(ConfigError::Exists(_))));
    set("strange/format", "a text");
    assert!(matches!(EtcdStore::open(&at("strange")), Err(ConfigError::NotOurs(_))));
    set("newer/format", "9");
    assert!(matches!(EtcdStore::open(&at("newer")), Err(ConfigError::Format { found: 9, .. })));
    let nothing = EtcdStore::open(&address(&format!("127.0.0.1:{}", server::free_port()), "x"));
    let Err(ConfigError::Unavailable(why)) = nothing else { panic!("nothing listens there") };
    assert!(why.contains("refused"), "{why}");
}

#[test]
fn a_full_etcd_is_named_with_the_command_that_helps() {
    let server = Server::with(1, &["--quota-backend-bytes", "4194304"]);
    let mut store = EtcdStore::create(&address(&server.endpoints(), "x")).unwrap();
    let large = "x".repeat(500_000);
    // One key is changed again and again: etcd keeps its history.
    let (mut fault, mut expected) = (None, None);
    for _ in 0..40 {
        match store.commit(&[put("large", expected, &large)]) {
            Ok(made) => assert!(made),
            Err(why) => {
                fault = Some(why);
                break;
            }
        }
        expected = store.get("large").unwrap().map(|stored| stored.version);
    }
    let why = fault.expect("it is full");
    assert!(matches!(why, ConfigError::Refused(_)) && !why.is_silence(), "it answers: {why}");
    let why = why.to_string();
    assert!(why.contains("quota") && why.contains("etcdctl alarm disarm"), "{why}");
    let read = store.get("large").unwrap().map(|stored| stored.version);
    assert_eq!(read, expected, "it can be read, and the change was not made");
    // The commands that are named help.
    let etcdctl = |words: &[&str]| {
        assert!(server.etcdctl(&[&["--endpoints", &server.endpoint(0)][..], words].concat()), "{words:?}");
    };
    etcdctl(&["compact", &store.get("large").unwrap().unwrap().version.to_string()]);
    etcdctl(&["defrag", "--cluster"]);
    etcdctl(&["alarm", "disarm"]);
    assert!(store.commit(&[put("small", None, "x")]).unwrap());
}

#[test]
fn a_watch_that_is_silent_is_made_anew() {
    let server = Server::start(1);
    let proxy = Proxy::start(server.endpoint(0));
    let mut store = EtcdStore::create(&address(&server.endpoints(), "x")).unwrap();
    let through = EtcdStore::open(&address(proxy.endpoint(), "x")).unwrap();
    let mut watch = through.watch().unwrap();
    proxy.silence(true);
    assert!(store.commit(&[put("a", None, "x")]).unwrap());
    assert!(!watch.wait(Duration::from_secs(1)));
    proxy.silence(false);
    assert!(watch.wait(Duration::from_secs(15)), "what it did not see is noticed when it is made anew");
}

#[test]
fn what_was_compacted_does_not_stop_a_watch() {
    let server = Server::start(1);
    let proxy = Proxy::start(server.endpoint(0));
    let mut store = EtcdStore::create(&address(&server.endpoints(), "x")).unwrap();
    let through = EtcdStore::open(&address(proxy.endpoint(), "x")).unwrap();
    let mut watch = through.watch().unwrap();
    proxy.silence(true);
    let mut expected = None;
    for _ in 0..20 {
        assert!(store.commit(&[put("a", expected, "x")]).unwrap());
        expected = store.get("a").unwrap().map(|stored| stored.version);
    }
    let revision = store.revision().unwrap().to_string();
    assert!(server.etcdctl(&["--endpoints", &server.endpoints(), "compact", &revision]));
    proxy.silence(false);
    assert!(watch.wait(Duration::from_secs(15)));
    while watch.wait(Duration::from_secs(1)) {}
    assert!(store.commit(&[put("a", expected, "y")]).unwrap());
    assert!(watch.wait(Duration::from_secs(5)), "later changes are noticed");
}

/// Several connections count together, while answers are lost again and again: each addition is made once.
#[test]
fn no_addition_is_made_twice_or_lost_while_answers_are_lost() {
    const EACH: u64 = 25;
    let server = Server::start(1);
    let direct = address(&server.endpoints(), "x");
    let mut store = EtcdStore::create(&direct).unwrap();
    assert!(store.commit(&[put("count", None, "0")]).unwrap());
    let proxy = Arc::new(Mutex::new(Proxy::start(server.endpoint(0))));
    let at = address(proxy.lock().unwrap().endpoint(), "x");
    // All are open before the first answer is lost: an opening whose answer is lost fails.
    let stores: Vec<EtcdStore> = (0..3).map(|_| EtcdStore::open(&at).unwrap()).collect();
    let threads: Vec<_> = stores
        .into_iter()
        .enumerate()
        .map(|(thread, mut store)| {
            let proxy = Arc::clone(&proxy);
            std::thread::spawn(move || {
                for turn in 0..EACH {
                    // Once: after a lost answer, a commit begins with a read.
                    let mut cuts = turn % 3 == 0;
                    // Each addition has an id, by which its outcome is found: as each proposal of a record has.
                    let id = format!("added/{thread}/{turn}");
                    loop {
                        if let Ok(Some(_)) = store.get(&id) {
                            break;
                        }
                        let Ok(Some(stored)) = store.get("count") else { continue };
                        let is: u64 = String::from_utf8(stored.value).unwrap().parse().unwrap();
                        if std::mem::take(&mut cuts) {
                            proxy.lock().unwrap().cut_next_answer();
                        }
                        let next = put("count", Some(stored.version), &(is + 1).to_string());
                        let _ = store.commit(&[next, put(&id, None, "done")]);
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(store.get("count").unwrap().unwrap().value, (3 * EACH).to_string().into_bytes());
}

#[test]
fn a_copy_of_a_transaction_that_arrives_late_changes_nothing() {
    let server = Server::start(1);
    let at = address(&server.endpoints(), "x");
    let mut store = EtcdStore::create(&at).unwrap();
    assert!(store.commit(&[put("a", None, "1")]).unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut raw = runtime.block_on(etcd_client::Client::connect([server.endpoint(0)], None)).unwrap();
    let commits = etcd_client::GetOptions::new().with_prefix();
    let found = runtime.block_on(raw.get("x/commits/", Some(commits))).unwrap();
    let [last] = found.kvs() else { panic!("one client has committed: {found:?}") };
    // What the store sends next. A proxy keeps a copy.
    let access = Change { key: at.data_key("access/x"), expected: None, value: Some(b"valid".to_vec()) };
    let version = last.mod_revision() as u64;
    let held = members::transaction(&[access], last.key_str().unwrap(), version, "life/2");
    assert!(store.commit(&[put("access/x", None, "valid")]).unwrap());
    let stored = store.get("access/x").unwrap().unwrap();
    let gone = Change { key: "access/x".into(), expected: Some(stored.version), value: None };
    assert!(store.commit(&[gone]).unwrap());
    // The key is as it was before, and the copy arrives.
    assert!(!runtime.block_on(raw.txn(held)).unwrap().succeeded());
    assert_eq!(store.get("access/x").unwrap(), None);
    assert!(store.commit(&[put("b", None, "1")]).unwrap());
}

/// An etcd that a URL names by another address than a loopback one may be on another machine. A cluster whose connections are open is not joined
/// there, also if its configuration has moved there.
#[test]
fn an_open_cluster_is_joined_only_where_its_store_is_on_this_machine() {
    let server = Server::start(1);
    let port = server.endpoint(0).rsplit_once(':').unwrap().1.to_owned();
    let url = |host: &str| format!("etcd://{host}:{port}/x").parse::<StoreUrl>().unwrap();
    let folder = tempfile::tempdir().unwrap();
    cluster::init(&url("127.0.0.1"), cluster::Common::default(), Duration::from_secs(60)).unwrap();
    let join = |store: &StoreUrl, name: &str, host: u8| {
        let at = |port: u16| std::net::SocketAddr::from(([127, 0, 0, host], port));
        let node = catalog::Node {
            name: name.into(),
            api: at(1),
            peer: at(2),
            endpoints: std::collections::BTreeMap::new(),
            incarnation: 0,
            certificates: Vec::new(),
            draining: false,
            maintenance: false,
            stopping: false,
            keeps: Default::default(),
        };
        let settings = NodeSettings {
            name: name.into(),
            cluster: store.clone(),
            folder: folder.path().join(name),
            spin_us: None,
            client_wait_s: None,
            api_names: Vec::new(),
            test_faults: false,
        };
        cluster::join(settings, node, None)
    };
    // The system takes this address for one of this machine; other URLs of this kind are not on it.
    let elsewhere = url("0.0.0.0");
    let moved = StoreUrl::Sqlite(folder.path().join("moved.db"));
    let mut old = crate::config::create(&moved).unwrap();
    assert!(old.commit(&[put("moved", None, &elsewhere.to_string())]).unwrap());
    for store in [&elsewhere, &moved] {
        let why = join(store, "refused", 2).expect_err("it may be elsewhere").to_string();
        assert!(why.contains(&format!("the etcd member 0.0.0.0:{port} is not named by a loopback")), "{why}");
        assert!(why.contains("the connections of this cluster are open"), "{why}");
    }
    assert!(cluster::read(&url("127.0.0.1")).unwrap().nodes.is_empty());
    join(&url("127.0.0.1"), "joined", 3).unwrap();
}
