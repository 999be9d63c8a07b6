//! Connections by TLS, and users of etcd.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use super::*;

/// An authority of certificates, in a folder.
struct Authority {
    folder: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new(folder: &Path, name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = folder.join(name);
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("ca.pem"), issuer.pem()).unwrap();
        Authority { folder, issuer }
    }

    fn certificate(&self) -> PathBuf {
        self.folder.join("ca.pem")
    }

    /// Makes a certificate and its key, for this address.
    fn sign(&self, name: &str, address: &str) -> [PathBuf; 2] {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![address.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let files = [self.folder.join(format!("{name}.pem")), self.folder.join(format!("{name}.key"))];
        std::fs::write(&files[0], certificate.pem()).unwrap();
        std::fs::write(&files[1], key.serialize_pem()).unwrap();
        files
    }
}

#[test]
fn tls_connects_clients_and_members_that_prove_who_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let (ours, theirs) = (Authority::new(folder.path(), "ours"), Authority::new(folder.path(), "theirs"));
    let [cert, key] = ours.sign("server", "127.0.0.1");
    let [client, client_key] = ours.sign("client", "client");
    let [stranger, stranger_key] = theirs.sign("client", "client");
    let server = Server::with_tls([&cert, &key], [ours.certificate(), client.clone(), client_key.clone()]);
    let url = |options: &[(&str, &Path)]| {
        let options: Vec<String> =
            options.iter().map(|(name, file)| format!("{name}={}", file.display())).collect();
        format!("{}/x?{}", server.endpoint(0), options.join("&")).parse::<EtcdAddress>().unwrap()
    };
    let (ca, foreign) = (ours.certificate(), theirs.certificate());
    let right = url(&[("ca", &ca), ("cert", &client), ("key", &client_key)]);
    let mut store = EtcdStore::create(&right).unwrap();
    assert!(store.commit(&[put("a", None, "x")]).unwrap());
    let mut watch = store.watch().unwrap();
    assert!(store.commit(&[put("b", None, "x")]).unwrap());
    assert!(watch.wait(Duration::from_secs(5)));
    for (wrong, named) in [
        (url(&[("ca", &foreign), ("cert", &client), ("key", &client_key)]), "certificate"),
        (url(&[("ca", &ca), ("cert", &stranger), ("key", &stranger_key)]), ""),
        (url(&[("ca", &ca)]), ""),
        (address(&server.endpoint(0), "x"), ""),
        (url(&[("ca", Path::new("/nowhere"))]), "/nowhere"),
        (url(&[("ca", &key)]), ""),
    ] {
        let Err(ConfigError::Unavailable(why)) = EtcdStore::open(&wrong) else { panic!("{wrong} is let in") };
        assert!(why.contains(named), "{wrong}: {why}");
    }
}

#[test]
fn a_user_of_etcd_proves_itself_and_may_do_what_its_role_allows() {
    let server = Server::start(1);
    let folder = tempfile::tempdir().unwrap();
    let etcdctl = |arguments: &[&str]| {
        assert!(
            server.etcdctl(&[&["--endpoints", &server.endpoint(0)][..], arguments].concat()),
            "{arguments:?}"
        );
    };
    etcdctl(&["user", "add", "root:secret"]);
    etcdctl(&["user", "grant-role", "root", "root"]);
    etcdctl(&["role", "add", "reader"]);
    etcdctl(&["role", "grant-permission", "reader", "--prefix=true", "read", "x/"]);
    etcdctl(&["user", "add", "guest:guest"]);
    etcdctl(&["user", "grant-role", "guest", "reader"]);
    let etcdctl_as_root = |arguments: &[&str]| etcdctl(&[&["--user", "root:secret"][..], arguments].concat());
    let as_user = |name: &str, password: &str| {
        let file = folder.path().join(format!("{name}-{password}"));
        std::fs::write(&file, format!("{password}\n")).unwrap();
        let text = format!("{}/x?user={name}&password-file={}", server.endpoint(0), file.display());
        text.parse::<EtcdAddress>().unwrap()
    };
    let Err(why) = EtcdStore::create(&as_user("root", "secret")) else {
        panic!("an etcd without users accepts one")
    };
    assert!(
        matches!(&why, ConfigError::Refused(text) if text.contains("whether authentication is enabled")),
        "{why}"
    );
    etcdctl(&["auth", "enable"]);
    let mut store = EtcdStore::create(&as_user("root", "secret")).unwrap();
    assert!(store.commit(&[put("a", None, "x")]).unwrap());
    let mut guest = EtcdStore::open(&as_user("guest", "guest")).unwrap();
    assert!(guest.get("a").unwrap().is_some());
    let refused = guest.commit(&[put("b", None, "x")]).unwrap_err();
    assert!(
        matches!(&refused, ConfigError::Refused(why) if why.contains("does not let this user")),
        "{refused}"
    );
    assert_eq!(guest.get("b").unwrap(), None);
    // A user that may not even read.
    etcdctl_as_root(&["user", "add", "stranger:x"]);
    let Err(why) = EtcdStore::open(&as_user("stranger", "x")) else { panic!("it may read nothing") };
    assert!(matches!(&why, ConfigError::Refused(text) if text.contains("Grant a role")), "{why}");
    for wrong in [as_user("root", "wrong"), as_user("nobody", "x"), address(&server.endpoint(0), "x")] {
        let Err(ConfigError::Refused(why)) = EtcdStore::open(&wrong) else { panic!("{wrong} is let in") };
        assert!(why.contains("authentication") || why.contains("user name is empty"), "{why}");
    }
}
