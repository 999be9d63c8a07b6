//! The certificate of the console, and the authority of its clients' certificates.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

/// The files of TLS, each PEM.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The console's certificate, and those of the authorities between it and one that clients know.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authorities of clients' certificates.
    pub clients: Option<PathBuf>,
    /// Whether a client may come without a certificate.
    pub clients_may_have_none: bool,
}

/// TLS, as connections use it.
#[derive(Clone)]
pub struct Tls {
    pub(crate) acceptor: TlsAcceptor,
    /// The names of hosts in the console's certificate.
    pub names: Vec<String>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tls({:?})", self.names)
    }
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// A file cannot be read, is no PEM of what it should have, or the key is not that of the certificate, or other users may read it. The
    /// message is for people and has nothing of the key.
    pub fn read(files: &TlsFiles) -> Result<Tls, String> {
        let certificates = certificates(&files.certificate)?;
        let names = names(&certificates[0]);
        let provider: Arc<CryptoProvider> = ring::default_provider().into();
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|why| why.to_string())?;
        let builder = match &files.clients {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let failed = |why: String| format!("{}: {why}", path.display());
                let mut roots = RootCertStore::empty();
                for authority in self::certificates(path)? {
                    roots.add(authority).map_err(|why| failed(why.to_string()))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
                let verifier = match files.clients_may_have_none {
                    true => verifier.allow_unauthenticated(),
                    false => verifier,
                };
                builder.with_client_cert_verifier(verifier.build().map_err(|why| failed(why.to_string()))?)
            }
        };
        let mut config = builder.with_single_cert(certificates, key(&files.key)?).map_err(|why| {
            let (certificate, key) = (files.certificate.display(), files.key.display());
            format!("{key} is not the key of the certificate in {certificate}: {why}")
        })?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        // A session that is resumed would go on with a certificate that has expired since.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Tls { acceptor: TlsAcceptor::from(Arc::new(config)), names })
    }
}

/// The certificates of a file: at least one.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let shown = path.display();
    let all: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(path).map_err(|why| format!("{shown}: {why}"))?.collect();
    let all = all.map_err(|why| format!("{shown} is no PEM file of certificates: {why}"))?;
    match all.is_empty() {
        true => {
            Err(format!("{shown} has no certificate: a PEM file with a block BEGIN CERTIFICATE is needed"))
        }
        false => Ok(all),
    }
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let shown = path.display();
    let about = std::fs::metadata(path).map_err(|why| format!("{shown}: {why}"))?;
    if about.mode() & 0o007 != 0 {
        return Err(format!(
            "other users may read or change {shown}, which has a key: run 'chmod 600 {shown}'"
        ));
    }
    PrivateKeyDer::from_pem_file(path).map_err(|why| match why {
        rustls::pki_types::pem::Error::NoItemsFound => {
            format!("{shown} has no key: a PEM file with a block BEGIN PRIVATE KEY is needed")
        }
        rustls::pki_types::pem::Error::Io(why) => format!("{shown}: {why}"),
        _ => format!("{shown} is no PEM file of a key"),
    })
}

/// The names of hosts that a certificate is for. A name with a `*` is none of one host.
fn names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok(certificate) = webpki::EndEntityCert::try_from(certificate) else { return Vec::new() };
    certificate.valid_dns_names().filter(|name| !name.contains('*')).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn write(path: &Path, text: &str, mode: u32) {
        std::fs::write(path, text).expect("there is room");
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("it is ours");
    }

    #[test]
    fn names_come_from_the_certificate_and_files_that_are_wrong_are_named() {
        let folder = tempfile::tempdir().expect("there is room");
        let [certificate, key, other] =
            ["cert.pem", "key.pem", "other.pem"].map(|name| folder.path().join(name));
        let hosts = ["console.example".to_owned(), "*.example".to_owned(), "10.0.0.1".to_owned()];
        let made = rcgen::generate_simple_self_signed(hosts).expect("it can be made");
        write(&certificate, &made.cert.pem(), 0o644);
        write(&key, &made.signing_key.serialize_pem(), 0o600);
        let files = TlsFiles {
            certificate: certificate.clone(),
            key: key.clone(),
            clients: Some(certificate.clone()),
            clients_may_have_none: true,
        };
        assert_eq!(Tls::read(&files).expect("they fit").names, ["console.example"]);
        let refused = |files: &TlsFiles| Tls::read(files).expect_err("it is refused");
        write(&key, &made.signing_key.serialize_pem(), 0o644);
        assert!(refused(&files).contains("chmod 600"));
        write(&key, &made.signing_key.serialize_pem(), 0o600);
        let another = rcgen::generate_simple_self_signed(["a".to_owned()]).expect("it can be made");
        for (text, says) in [
            (another.signing_key.serialize_pem(), "is not the key of the certificate"),
            (made.cert.pem(), "has no key"),
            ("-----BEGIN PRIVATE KEY-----\n!\n-----END PRIVATE KEY-----\n".into(), "is no PEM file of a key"),
            (String::new(), "has no key"),
        ] {
            write(&other, &text, 0o600);
            let why = refused(&TlsFiles { key: other.clone(), ..files.clone() });
            assert!(why.contains(says) && why.contains("other.pem"), "{why}");
        }
        for (text, says) in [
            ("", "has no certificate"),
            ("-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n", "is no PEM file"),
            ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "certificate"),
        ] {
            write(&other, text, 0o600);
            let why = refused(&TlsFiles { certificate: other.clone(), ..files.clone() });
            assert!(why.contains(says), "{why}");
            let why = refused(&TlsFiles { clients: Some(other.clone()), ..files.clone() });
            assert!(why.contains("other.pem"), "{why}");
        }
        let missing = TlsFiles { certificate: folder.path().join("none.pem"), ..files.clone() };
        assert!(refused(&missing).contains("none.pem"));
    }
}
