//! Connections that are attacked, and those with another implementation of TLS.

mod attacks;
mod handshakes;
mod peers;

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::DuplexStream;

use crate::handshake::{self, AUTHENTICATED, ENCRYPTED, HandshakeError};
use crate::keys::Protection;
use crate::stream::Stream;

/// An authority.
struct Authority {
    params: CertificateParams,
    key: KeyPair,
    certificate: CertificateDer<'static>,
}

/// A certificate with its key.
struct Own(CertificateDer<'static>, PrivateKeyDer<'static>);

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().der().clone();
        Authority { params, key, certificate }
    }

    /// A certificate for a name, valid from and until these years.
    fn issue(&self, name: &str, from: i32, until: i32) -> Own {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_before = date_time_ymd(from, 1, 1);
        params.not_after = date_time_ymd(until, 1, 1);
        let key = KeyPair::generate().unwrap();
        let issuer = Issuer::from_params(&self.params, &self.key);
        let certificate = params.signed_by(&key, &issuer).unwrap().der().clone();
        Own(certificate, PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())))
    }

    fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        Arc::new(roots)
    }

    fn server(&self, own: Own, protocols: &[&[u8]]) -> ServerConfig {
        let provider = Arc::new(ring::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(self.roots(), provider.clone()).build().unwrap();
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![own.0], own.1)
            .unwrap();
        config.enable_secret_extraction = true;
        config.send_tls13_tickets = 0;
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        config
    }

    fn client(&self, own: Option<Own>, protocols: &[&[u8]]) -> ClientConfig {
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_root_certificates(self.roots());
        let mut config = match own {
            Some(own) => builder.with_client_auth_cert(vec![own.0], own.1).unwrap(),
            None => builder.with_no_client_auth(),
        };
        config.enable_secret_extraction = true;
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        config
    }
}

fn name(name: &'static str) -> ServerName<'static> {
    ServerName::try_from(name).unwrap()
}

pub(crate) fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        tokio::time::timeout(std::time::Duration::from_secs(20), future).await.expect("it comes to an end")
    })
}

type Shaken = Result<(Stream<DuplexStream>, handshake::Proved), HandshakeError>;

/// Both ends of a connection.
async fn shake(client: ClientConfig, server: ServerConfig, called: &'static str) -> (Shaken, Shaken) {
    let (ours, theirs) = tokio::io::duplex(1 << 20);
    tokio::join!(
        handshake::connect(ours, Arc::new(client), name(called)),
        handshake::accept(theirs, Arc::new(server))
    )
}

/// A connection of two that trust each other.
async fn pair(protection: Protection) -> (Stream<DuplexStream>, Stream<DuplexStream>) {
    let authority = Authority::new();
    let protocol = match protection {
        Protection::Encrypted => ENCRYPTED,
        Protection::Authenticated => AUTHENTICATED,
    };
    let server = authority.server(authority.issue("b", 2020, 2090), &[protocol]);
    let client = authority.client(Some(authority.issue("a", 2020, 2090)), &[protocol]);
    let (ours, theirs) = shake(client, server, "b").await;
    (ours.unwrap().0, theirs.unwrap().0)
}

const BOTH: [Protection; 2] = [Protection::Encrypted, Protection::Authenticated];
