//! What TLS is to accept: TLS 1.3 alone, with certificates of the cluster's authority. Nothing is resumed, so each connection proves both
//! sides anew.

use std::sync::Arc;

use loadline_san_transport::handshake::{AUTHENTICATED, ENCRYPTED};
use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use super::authority::{Issued, node_name};
use super::files::Identity;
use super::issuer::IssuerFirst;
use super::{IdentityError, clock};
use crate::config::catalog::Transport;

/// What a node accepts from other nodes, how it connects to them, and what it accepts from clients.
#[derive(Debug, Clone)]
pub struct Trust {
    /// Connections that other nodes make: with a certificate.
    pub from_nodes: Arc<ServerConfig>,
    /// Connections to other nodes.
    pub to_nodes: Arc<ClientConfig>,
    /// Connections to the API of other nodes.
    pub to_apis: Arc<ClientConfig>,
    /// The API: with a certificate, or without one and with a token.
    pub api: Arc<ServerConfig>,
    /// Clients of volumes: with a certificate.
    pub clients: Arc<ServerConfig>,
    cluster: String,
}

fn made(error: impl std::fmt::Display) -> IdentityError {
    IdentityError::Made(error.to_string())
}

/// The algorithms: those of ring.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// The algorithms between nodes: AES-128-GCM alone, which the records of an event loop are made for.
fn of_nodes() -> Arc<CryptoProvider> {
    let cipher_suites = vec![ring::cipher_suite::TLS13_AES_128_GCM_SHA256];
    Arc::new(CryptoProvider { cipher_suites, ..ring::default_provider() })
}

fn roots(authority: &CertificateDer<'static>) -> Result<Arc<RootCertStore>, IdentityError> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.clone()).map_err(made)?;
    Ok(Arc::new(roots))
}

/// How a client connects that trusts this authority, with its own certificate if it has one.
pub fn client(
    authority: &CertificateDer<'static>,
    own: Option<Issued>,
    provider: Arc<CryptoProvider>,
) -> Result<ClientConfig, IdentityError> {
    let builder = ClientConfig::builder_with_details(provider, clock())
        .with_protocol_versions(&[&TLS13])
        .map_err(made)?;
    let builder = builder.with_root_certificates(roots(authority)?);
    let mut config = match own {
        Some(own) => builder.with_client_auth_cert(vec![own.certificate], own.key).map_err(made)?,
        None => builder.with_no_client_auth(),
    };
    config.resumption = Resumption::disabled();
    config.enable_secret_extraction = true;
    Ok(config)
}

/// Which clients must have a certificate.
enum Certificates {
    Required,
    Optional,
}

fn server(
    identity: &Identity,
    certificates: &Certificates,
    provider: Arc<CryptoProvider>,
) -> Result<ServerConfig, IdentityError> {
    let roots = roots(identity.authority.certificate())?;
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone());
    let builder = ServerConfig::builder_with_details(provider, clock())
        .with_protocol_versions(&[&TLS13])
        .map_err(made)?;
    let verifier = match certificates {
        Certificates::Required => verifier,
        Certificates::Optional => verifier.allow_unauthenticated(),
    };
    let builder = builder.with_client_cert_verifier(Arc::new(IssuerFirst(verifier.build().map_err(made)?)));
    let own = identity.own.clone();
    let mut config = builder.with_single_cert(vec![own.certificate], own.key).map_err(made)?;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.enable_secret_extraction = true;
    Ok(config)
}

impl Trust {
    /// Of a node with this identity, in a cluster whose nodes protect their connections so.
    ///
    /// # Panics
    /// If they are not protected.
    pub fn new(identity: &Identity, cluster: &str, transport: Transport) -> Result<Trust, IdentityError> {
        let protocol = match transport {
            Transport::Encrypted => ENCRYPTED,
            Transport::Authenticated => AUTHENTICATED,
            Transport::Open => unreachable!("an open cluster has no identities"),
        };
        let mut from_nodes = server(identity, &Certificates::Required, of_nodes())?;
        from_nodes.alpn_protocols = vec![protocol.to_vec()];
        let mut to_nodes = client(identity.authority.certificate(), Some(identity.own.clone()), of_nodes())?;
        let to_apis = to_nodes.clone();
        to_nodes.alpn_protocols = vec![protocol.to_vec()];
        let mut api = server(identity, &Certificates::Optional, provider())?;
        api.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Trust {
            from_nodes: Arc::new(from_nodes),
            to_nodes: Arc::new(to_nodes),
            to_apis: Arc::new(to_apis),
            api: Arc::new(api),
            clients: Arc::new(server(identity, &Certificates::Required, provider())?),
            cluster: cluster.into(),
        })
    }

    /// The protocol by which nodes agree how their connections are protected.
    pub fn protocol(&self) -> &[u8] {
        &self.from_nodes.alpn_protocols[0]
    }

    /// How a node is called in a handshake.
    pub fn name_of(&self, node: u32) -> ServerName<'static> {
        ServerName::try_from(node_name(&self.cluster, node)).expect("the name of a node is one of DNS")
    }
}
