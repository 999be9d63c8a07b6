//! The cluster's own certificate authority. Every node has its key: a node has the data of the cluster anyway, and by the key it renews its
//! certificate without another node.

use std::net::IpAddr;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType, date_time_ymd,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use super::{IdentityError, now};

/// How long an authority is valid.
const AUTHORITY: Duration = Duration::from_secs(20 * 365 * 86400);
/// Certificates are valid from so long before they are made: clocks of hosts differ.
pub(crate) const BEFORE: u64 = 86400;

/// A certificate with its key.
#[derive(Debug)]
pub struct Issued {
    /// The certificate.
    pub certificate: CertificateDer<'static>,
    /// Its key.
    pub key: PrivateKeyDer<'static>,
    /// When it ends, in seconds since 1970.
    pub expires: u64,
}

impl Clone for Issued {
    fn clone(&self) -> Issued {
        Issued { certificate: self.certificate.clone(), key: self.key.clone_key(), expires: self.expires }
    }
}

/// What a certificate is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// A node, by its id, with the addresses and names by which clients call it.
    Node {
        /// The id.
        id: u32,
        /// Addresses.
        addresses: Vec<IpAddr>,
        /// Names of its host.
        names: Vec<String>,
    },
    /// A person or a program that uses the API, by its name.
    Client(String),
}

/// The authority of a cluster.
pub struct Authority {
    cluster: String,
    certificate: CertificateDer<'static>,
    key: KeyPair,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}

fn made(error: rcgen::Error) -> IdentityError {
    IdentityError::Made(error.to_string())
}

/// The name by which nodes call a node in a handshake. It is no name of DNS.
pub fn node_name(cluster: &str, id: u32) -> String {
    format!("node-{id}.{cluster}.loadline")
}

/// What the certificate of an authority has, but for its key.
fn own_params(cluster: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, format!("Loadline cluster {cluster}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

impl Authority {
    /// A new one, for a cluster.
    pub fn make(cluster: &str) -> Result<Authority, IdentityError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(made)?;
        let mut params = own_params(cluster);
        let (epoch, now) = (date_time_ymd(1970, 1, 1), now());
        params.not_before = epoch + Duration::from_secs(now.saturating_sub(BEFORE));
        params.not_after = epoch + Duration::from_secs(now) + AUTHORITY;
        let certificate = params.self_signed(&key).map_err(made)?.der().clone();
        Ok(Authority { cluster: cluster.into(), certificate, key })
    }

    /// One that was made before.
    pub fn from_parts(
        cluster: &str,
        certificate: CertificateDer<'static>,
        key: &[u8],
    ) -> Result<Authority, IdentityError> {
        let key = PrivatePkcs8KeyDer::from(key);
        let key = KeyPair::from_pkcs8_der_and_sign_algo(&key, &PKCS_ECDSA_P256_SHA256).map_err(made)?;
        Ok(Authority { cluster: cluster.into(), certificate, key })
    }

    /// Its certificate: whatever trusts the cluster trusts this.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// Its key, as PKCS #8.
    pub fn key(&self) -> &[u8] {
        self.key.serialized_der()
    }

    /// Issues a certificate, with a new key.
    pub fn issue(&self, subject: &Subject, life: Duration) -> Result<Issued, IdentityError> {
        let mut params = CertificateParams::default();
        let dns = |name: &str| Ok::<_, IdentityError>(SanType::DnsName(name.try_into().map_err(made)?));
        match subject {
            Subject::Node { id, addresses, names } => {
                let name = node_name(&self.cluster, *id);
                params.subject_alt_names.push(dns(&name)?);
                params.subject_alt_names.extend(addresses.iter().map(|address| SanType::IpAddress(*address)));
                for name in names {
                    params.subject_alt_names.push(dns(name)?);
                }
                params.distinguished_name.push(DnType::CommonName, format!("node-{id}"));
                params.extended_key_usages =
                    vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
            }
            Subject::Client(name) => {
                params.distinguished_name.push(DnType::CommonName, name.as_str());
                params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
            }
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        let expires = now() + life.as_secs();
        let epoch = date_time_ymd(1970, 1, 1);
        params.not_before = epoch + Duration::from_secs(now().saturating_sub(BEFORE));
        params.not_after = epoch + Duration::from_secs(expires);
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(made)?;
        let own = own_params(&self.cluster);
        let certificate =
            params.signed_by(&key, &Issuer::from_params(&own, &self.key)).map_err(made)?.der().clone();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        Ok(Issued { certificate, key, expires })
    }
}
