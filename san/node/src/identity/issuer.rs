//! Certificates of clients are verified so that the reason for which one is refused can be relied on.
//!
//! rustls checks the dates of a certificate before it checks which authority has issued the certificate. So a stranger could have it refused
//! for its dates, and a node would take the stranger for a node whose clock is wrong.

use std::sync::Arc;
use std::time::Duration;

use rustls::CertificateError::{Expired, ExpiredContext, NotValidYet, NotValidYetContext, UnknownIssuer};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

/// Verifies as another verifier does. If that one refuses a certificate for its dates, then the certificate is valid at other times.
#[derive(Debug)]
pub(super) struct IssuerFirst(pub(super) Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for IssuerFirst {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let refused = match self.0.verify_client_cert(certificate, intermediates, now) {
            Ok(verified) => return Ok(verified),
            Err(refused) => refused,
        };
        let valid = match &refused {
            Error::InvalidCertificate(ExpiredContext { not_after, .. }) => *not_after,
            Error::InvalidCertificate(NotValidYetContext { not_before, .. }) => *not_before,
            // It does not say when the certificate is valid.
            Error::InvalidCertificate(Expired | NotValidYet) => {
                return Err(Error::InvalidCertificate(UnknownIssuer));
            }
            _ => return Err(refused),
        };
        let valid = UnixTime::since_unix_epoch(Duration::from_secs(valid.as_secs()));
        self.0.verify_client_cert(certificate, intermediates, valid).and(Err(refused))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }

    fn offer_client_auth(&self) -> bool {
        self.0.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.0.client_auth_mandatory()
    }

    fn requires_raw_public_keys(&self) -> bool {
        self.0.requires_raw_public_keys()
    }
}

#[cfg(test)]
mod tests {
    use rustls::RootCertStore;
    use rustls::server::WebPkiClientVerifier;

    use super::super::authority::{Authority, Subject};
    use super::super::trust::provider;
    use super::*;

    #[test]
    fn a_certificate_is_refused_for_its_dates_only_if_the_authority_has_issued_it() {
        let (authority, stranger) = (Authority::make("1").unwrap(), Authority::make("1").unwrap());
        let mut roots = RootCertStore::empty();
        roots.add(authority.certificate().clone()).unwrap();
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
        let verifier = IssuerFirst(verifier.build().unwrap());
        let why = |by: &Authority, off: i64| {
            let life = Duration::from_secs(3600);
            let own = by.issue(&Subject::Client("a".into()), life).unwrap();
            let now = UnixTime::since_unix_epoch(Duration::from_secs(own.expires.strict_add_signed(off)));
            verifier.verify_client_cert(&own.certificate, &[], now).map(drop)
        };
        assert!(why(&authority, -60).is_ok());
        let of_clocks = |why: &Result<(), Error>| {
            matches!(why, Err(Error::InvalidCertificate(ExpiredContext { .. } | NotValidYetContext { .. })))
        };
        for off in [86_400, -30 * 86_400] {
            let (known, unknown) = (why(&authority, off), why(&stranger, off));
            assert!(of_clocks(&known), "{known:?}");
            assert!(unknown.is_err() && !of_clocks(&unknown), "{unknown:?}");
        }
    }
}
