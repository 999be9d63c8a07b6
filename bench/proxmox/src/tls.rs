//! Which certificate the API may have: the one whose fingerprint the study pins, or one that an authority of this system signed.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::version::TLS13;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use sha2::{Digest, Sha256};

use crate::error::ProxmoxError;

/// Where systems keep the authorities that they trust.
const BUNDLES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"];

/// The SHA-256 of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// Reads 64 hexadecimal digits, with colons or without. The error says what is wrong.
    pub(crate) fn parse(text: &str) -> Result<Fingerprint, String> {
        let digits: Vec<u8> = text.bytes().filter(|c| *c != b':').collect();
        let wrong = || {
            "it must be the SHA-256 of the certificate: 64 hexadecimal digits, as 'openssl x509 -noout -fingerprint -sha256 -in \
             /etc/pve/local/pve-ssl.pem' prints on the node"
                .to_string()
        };
        if digits.len() != 64 {
            return Err(wrong());
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| wrong())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| wrong())?;
        }
        Ok(Fingerprint(bytes))
    }

    fn of(certificate: &CertificateDer<'_>) -> Fingerprint {
        Fingerprint(Sha256::digest(certificate.as_ref()).into())
    }
}

impl std::fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            let colon = if index == 0 { "" } else { ":" };
            write!(f, "{colon}{byte:02X}")?;
        }
        Ok(())
    }
}

/// Which certificates are accepted.
#[derive(Clone)]
pub(crate) struct Tls {
    expected: Arc<Expected>,
    provider: Arc<CryptoProvider>,
}

/// What one connection needs, and what it saw of a certificate that it refused.
pub(crate) struct ConnectionTls {
    pub(crate) config: Arc<ClientConfig>,
    verifier: Arc<Verifier>,
}

impl Tls {
    /// For a certificate with this fingerprint, or without one for certificates that this system trusts.
    pub(crate) fn new(pinned: Option<Fingerprint>) -> Result<Tls, ProxmoxError> {
        let provider = Arc::new(ring::default_provider());
        let failed = |e: rustls::client::VerifierBuilderError| {
            ProxmoxError::failed(format!("the authorities of this system: {e}"))
        };
        let signed = || WebPkiServerVerifier::builder_with_provider(system_roots().into(), provider.clone());
        let expected = match pinned {
            Some(fingerprint) => Expected::Pinned(fingerprint),
            None if system_roots().is_empty() => Expected::Nothing,
            None => Expected::Signed(signed().build().map_err(failed)?),
        };
        Ok(Tls { expected: Arc::new(expected), provider })
    }

    /// For one connection: what one has refused says nothing of another, and each one checks the certificate.
    pub(crate) fn connection(&self) -> ConnectionTls {
        let (expected, provider) = (self.expected.clone(), self.provider.clone());
        let verifier = Arc::new(Verifier { expected, provider, refused: Mutex::default() });
        let config = ClientConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&TLS13])
            .expect("ring has what TLS 1.3 needs")
            .dangerous()
            .with_custom_certificate_verifier(verifier.clone())
            .with_no_client_auth();
        ConnectionTls { config: Arc::new(config), verifier }
    }
}

impl ConnectionTls {
    /// Why the certificate was refused, in words that say what to do; `None` if it was not.
    pub(crate) fn refusal(&self) -> Option<String> {
        let refused = self.verifier.refused.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (found, why) = refused?;
        let mut words = match &*self.verifier.expected {
            Expected::Pinned(pinned) => {
                format!("its certificate has the fingerprint {found}, and the study pins {pinned}")
            }
            Expected::Signed(_) => format!("its certificate is not trusted by this system ({why})"),
            Expected::Nothing => "this system has no list of authorities (ca-certificates)".into(),
        };
        let _ = write!(
            words,
            ". If 'openssl x509 -noout -fingerprint -sha256 -in /etc/pve/local/pve-ssl.pem' on the node (or pveproxy-ssl.pem, if there is \
             one) prints {found}, write fingerprint = \"{found}\" in [fleet.proxmox]; otherwise another machine answers in its place"
        );
        Some(words)
    }
}

fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let named = std::env::var_os("SSL_CERT_FILE");
    let file =
        named.as_deref().map(Path::new).or_else(|| BUNDLES.iter().map(Path::new).find(|path| path.is_file()));
    let certificates = file.and_then(|file| CertificateDer::pem_file_iter(file).ok());
    // What cannot be read of the list is trusted by nothing.
    roots.add_parsable_certificates(certificates.into_iter().flatten().flatten());
    roots
}

/// What is accepted.
#[derive(Debug)]
enum Expected {
    Pinned(Fingerprint),
    Signed(Arc<WebPkiServerVerifier>),
    Nothing,
}

#[derive(Debug)]
struct Verifier {
    expected: Arc<Expected>,
    provider: Arc<CryptoProvider>,
    /// The certificate that was refused, and why.
    refused: Mutex<Option<(Fingerprint, String)>>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let found = Fingerprint::of(end_entity);
        let verified = match &*self.expected {
            // The pin stands for the whole chain, the name and the dates: it is this one certificate.
            Expected::Pinned(pinned) if *pinned == found => Ok(ServerCertVerified::assertion()),
            Expected::Pinned(_) => {
                Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
            }
            Expected::Signed(verifier) => {
                verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
            }
            Expected::Nothing => Err(Error::InvalidCertificate(CertificateError::UnknownIssuer)),
        };
        if let Err(error) = &verified {
            *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some((found, error.to_string()));
        }
        verified
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("only TLS 1.3 is spoken".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_read_with_colons_and_without() {
        let text = "AB".repeat(32);
        let with_colons = Fingerprint::parse(&text).unwrap().to_string();
        assert_eq!(with_colons.len(), 95);
        assert_eq!(Fingerprint::parse(&with_colons.to_lowercase()), Fingerprint::parse(&text));
        for wrong in ["", "AB", &"AG".repeat(32), &"AB".repeat(20), &"é".repeat(32)] {
            assert!(Fingerprint::parse(wrong).unwrap_err().contains("64 hexadecimal digits"), "{wrong}");
        }
    }
}
