//! Invitations and identities that are used twice, late, elsewhere, or in copies.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cluster::{self, Common, JoinError, Made};
use crate::config;
use crate::config::catalog::{Catalog, Node, Transport};
use crate::config::url::StoreUrl;
use crate::identity::access::{Proof, Role, proof_of};
use crate::identity::files::{Identity, read_bundle};
use crate::identity::fingerprint;
use crate::identity::token::Token;
use crate::settings::NodeSettings;

const HOUR: Duration = Duration::from_secs(3600);

/// A cluster in a folder of its own.
struct Trial {
    folder: tempfile::TempDir,
    made: Made,
}

impl Trial {
    fn new(transport: Transport, token_life: Duration) -> Trial {
        let folder = tempfile::tempdir().unwrap();
        let common = Common { transport, ..Common::default() };
        let made = cluster::init(&store(folder.path()), common, token_life).unwrap();
        Trial { folder, made }
    }

    fn token(&self) -> Token {
        self.made.token.clone().expect("a protected cluster has a first token")
    }

    fn settings(&self, name: &str) -> NodeSettings {
        NodeSettings {
            name: name.into(),
            cluster: store(self.folder.path()),
            folder: self.folder.path().join(name),
            spin_us: None,
            client_wait_s: None,
            api_names: Vec::new(),
            test_faults: false,
        }
    }

    fn join(&self, name: &str, number: u8, token: Option<&Token>) -> Result<PathBuf, JoinError> {
        self.join_at(name, [127, 0, 0, number], token)
    }

    fn join_at(&self, name: &str, address: [u8; 4], token: Option<&Token>) -> Result<PathBuf, JoinError> {
        let at = |port: u16| SocketAddr::from((address, port));
        let node = Node {
            name: name.into(),
            api: at(1),
            peer: at(2),
            endpoints: Default::default(),
            incarnation: 0,
            certificates: Vec::new(),
            draining: false,
            maintenance: false,
            stopping: false,
            keeps: Default::default(),
        };
        cluster::join(self.settings(name), node, token)
    }

    fn catalog(&self) -> Catalog {
        cluster::read(&store(self.folder.path())).unwrap()
    }
}

fn store(folder: &Path) -> StoreUrl {
    folder.join("cluster.db").as_path().into()
}

fn why(joined: Result<PathBuf, JoinError>) -> String {
    joined.expect_err("it is refused").to_string()
}

#[test]
fn a_token_adds_one_node() {
    let trial = Trial::new(Transport::Encrypted, HOUR);
    let token = trial.token().to_string().parse().unwrap();
    trial.join("a", 1, Some(&token)).unwrap();
    assert!(why(trial.join("b", 2, Some(&token))).contains("was used already"));
    let second = cluster::invite(&trial.settings("a"), HOUR).unwrap();
    trial.join("b", 2, Some(&second)).unwrap();
    let catalog = trial.catalog();
    for name in ["a", "b"] {
        let identity = Identity::read(&trial.folder.path().join(name), &trial.made.id).unwrap();
        let (_, node) = catalog.node(name).unwrap();
        assert_eq!(node.certificates, [fingerprint(&identity.own.certificate)]);
    }
}

#[test]
fn a_token_that_is_late_foreign_or_changed_adds_no_node() {
    let trial = Trial::new(Transport::Encrypted, Duration::ZERO);
    assert!(why(trial.join("a", 1, Some(&trial.token()))).contains("has expired"));
    let trial = Trial::new(Transport::Encrypted, HOUR);
    let other = Trial::new(Transport::Encrypted, HOUR);
    assert!(why(trial.join("a", 1, Some(&other.token()))).contains("is of cluster"));
    assert!(why(trial.join("a", 1, None)).contains("joins with a token"));
    let text = trial.token().to_string();
    for at in [20, text.len() / 2, text.len() - 2] {
        let mut changed = text.clone().into_bytes();
        changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
        // A changed token is another cluster's, has another id or another end, or does not open what is sealed.
        let changed: Token = String::from_utf8(changed).unwrap().parse().unwrap();
        assert!(trial.join("a", 1, Some(&changed)).is_err(), "changed at {at}");
    }
    for wrong in ["", "loadline-join-", "loadline-join-AAAA", &text[1..], &format!("{text}A")] {
        let read: Result<Token, String> = wrong.parse();
        assert!(read.is_err(), "{wrong}");
    }
    assert!(trial.catalog().nodes.is_empty());
    trial.join("a", 1, Some(&trial.token())).expect("what was refused has not used it up");
}

#[test]
fn an_address_that_the_host_does_not_have_uses_up_no_token() {
    let trial = Trial::new(Transport::Encrypted, HOUR);
    // An address for documentation, which no host has; every address; a group of hosts.
    for address in [[192, 0, 2, 1], [0, 0, 0, 0], [224, 0, 0, 1]] {
        let refused = why(trial.join_at("a", address, Some(&trial.token())));
        assert!(
            refused.contains("cannot use the address") && refused.contains("a token is still valid"),
            "{refused}"
        );
    }
    assert!(trial.catalog().nodes.is_empty());
    trial.join("a", 1, Some(&trial.token())).expect("the token is still valid");
}

#[test]
fn a_join_whose_answer_was_lost_is_repeated() {
    let trial = Trial::new(Transport::Encrypted, HOUR);
    let file = trial.join("a", 1, Some(&trial.token())).unwrap();
    // As if the process had ended before it wrote this.
    std::fs::remove_file(&file).unwrap();
    assert_eq!(trial.join("a", 1, Some(&trial.token())).unwrap(), file);
    assert!(file.exists());
    // Another folder is not that node.
    std::fs::rename(trial.folder.path().join("a"), trial.folder.path().join("old")).unwrap();
    assert!(matches!(trial.join("a", 1, Some(&trial.token())), Err(JoinError::Taken(_))));
}

#[test]
fn an_open_cluster_stays_on_its_machine() {
    let trial = Trial::new(Transport::Open, HOUR);
    assert!(trial.made.token.is_none());
    assert!(why(trial.join_at("a", [10, 0, 0, 1], None)).contains("an address that other machines reach"));
    let other = Trial::new(Transport::Encrypted, HOUR);
    assert!(why(trial.join("a", 1, Some(&other.token()))).contains("it has neither tokens nor accesses"));
}

#[test]
fn the_configuration_has_the_key_of_the_authority_only_sealed() {
    let trial = Trial::new(Transport::Encrypted, HOUR);
    trial.join("a", 1, Some(&trial.token())).unwrap();
    cluster::invite(&trial.settings("a"), HOUR).unwrap();
    let identity = Identity::read(&trial.folder.path().join("a"), &trial.made.id).unwrap();
    let key = identity.authority.key();
    let text = {
        use base64::Engine;
        base64::engine::general_purpose::STANDARD.encode(key)
    };
    let mut opened = config::open(&store(trial.folder.path())).unwrap();
    for (name, stored) in opened.list("").unwrap().1 {
        let has = |part: &[u8]| stored.value.windows(part.len()).any(|window| window == part);
        assert!(!has(&key[36..]) && !has(&text.as_bytes()[48..]), "{name}");
    }
}

#[test]
fn files_with_keys_are_for_their_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let trial = Trial::new(Transport::Encrypted, HOUR);
    trial.join("a", 1, Some(&trial.token())).unwrap();
    for (file, mode) in [("cluster-ca.key", 0o600), ("node.pem", 0o600), ("cluster-ca.pem", 0o644)] {
        let path = trial.folder.path().join("a/identity").join(file);
        assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, mode, "{file}");
    }
}

#[test]
fn a_node_that_was_removed_makes_no_tokens_and_gives_no_access() {
    let trial = Trial::new(Transport::Encrypted, HOUR);
    trial.join("a", 1, Some(&trial.token())).unwrap();
    let settings = trial.settings("a");
    let proof = cluster::give_access(&settings, "alice", Role::Viewer, HOUR, true).unwrap();
    let Proof::Token(token) = proof else { panic!("it was to be a token") };
    assert_eq!(trial.catalog().accesses["alice"].0.proof, proof_of(&token));
    let proof = cluster::give_access(&settings, "bob", Role::Operator, HOUR, false).unwrap();
    let Proof::Certificate(certificate) = proof else { panic!("it was to be a certificate") };
    let path = trial.folder.path().join("bob.pem");
    std::fs::write(&path, certificate.bundle()).unwrap();
    let bundle = read_bundle(&path).unwrap();
    assert_eq!(trial.catalog().accesses["bob"].0.proof, fingerprint(&bundle.certificate));
    assert!(cluster::give_access(&settings, "bob", Role::Viewer, HOUR, true).is_err(), "the name is taken");
    assert!(cluster::revoke_access(&settings, "bob").unwrap());
    assert!(!cluster::revoke_access(&settings, "bob").unwrap());
    let mut opened = config::open(&store(trial.folder.path())).unwrap();
    let (id, _) = trial.catalog().node("a").map(|(id, node)| (id, node.clone())).unwrap();
    let version = opened.get(&format!("node/{id}")).unwrap().unwrap().version;
    let gone = config::Change { key: format!("node/{id}"), expected: Some(version), value: None };
    assert!(opened.commit(&[gone]).unwrap());
    let refused = cluster::invite(&settings, HOUR).expect_err("it is no node any more").to_string();
    assert!(refused.contains("was removed"), "{refused}");
    assert!(cluster::give_access(&settings, "carol", Role::Viewer, HOUR, true).is_err());
}

#[test]
fn tokens_that_have_expired_are_removed_from_the_configuration() {
    let trial = Trial::new(Transport::Encrypted, HOUR);
    trial.join("a", 1, Some(&trial.token())).unwrap();
    let tokens = || config::open(&store(trial.folder.path())).unwrap().list("token/").unwrap().1.len();
    cluster::invite(&trial.settings("a"), Duration::ZERO).unwrap();
    assert_eq!(tokens(), 1);
    cluster::invite(&trial.settings("a"), HOUR).unwrap();
    assert_eq!(tokens(), 1, "the expired one is gone");
}
