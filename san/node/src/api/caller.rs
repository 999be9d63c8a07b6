//! What is known of a caller of the API, and what its connection has proved.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::node::Entered;

/// What is known of a caller from its connection.
#[derive(Debug, Clone)]
pub(super) enum Caller {
    /// It is on this machine.
    Local,
    /// It is elsewhere, and has this certificate, if it has one.
    Remote {
        /// Its address.
        address: IpAddr,
        /// The fingerprint of its certificate, which the cluster's authority has issued.
        certificate: Option<String>,
        /// What its connection has proved: if that is revoked, the connection ends.
        proofs: Arc<Proofs>,
    },
}

/// What a connection from elsewhere has proved so far: the fingerprint of its certificate, if that was one of an access or of a node, and
/// the SHA-256 of the token of its last request.
#[derive(Debug)]
pub(super) struct Proofs(Mutex<Proved>);

#[derive(Debug)]
struct Proved {
    certificate: Option<String>,
    token: Option<String>,
    /// Its place among connections that have proved nothing.
    entered: Option<Entered>,
}

impl Proofs {
    /// Of a connection that has this place, which it gives back when something is proved; with the fingerprint of its certificate, if that
    /// is one of an access or of a node.
    pub(super) fn new(certificate: Option<String>, entered: Entered) -> Arc<Proofs> {
        let entered = Some(entered).filter(|_| certificate.is_none());
        Arc::new(Proofs(Mutex::new(Proved { certificate, token: None, entered })))
    }

    fn proved(&self) -> MutexGuard<'_, Proved> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request was let in by the certificate with this fingerprint: it is one of an access or of a node now, if it was none before.
    pub(super) fn has_certificate(&self, certificate: &str) {
        let mut proved = self.proved();
        if proved.certificate.is_none() {
            (proved.certificate, proved.entered) = (Some(certificate.to_owned()), None);
        }
    }

    /// A request was let in by a token with this SHA-256.
    pub(super) fn has_token(&self, token: String) {
        let mut proved = self.proved();
        (proved.token, proved.entered) = (Some(token), None);
    }

    /// Whether this holds of each proof.
    pub(super) fn all(&self, holds: impl Fn(&str) -> bool) -> bool {
        let proved = self.proved();
        [&proved.certificate, &proved.token].into_iter().flatten().all(|proof| holds(proof))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Unproved;

    #[test]
    fn a_certificate_that_becomes_known_later_is_a_proof_and_the_connection_is_not_displaced() {
        let proofs = Proofs::new(None, Unproved::default().api.enter(IpAddr::from([10, 0, 0, 1]).into()).0);
        assert!(proofs.proved().entered.is_some() && proofs.all(|_| false), "nothing is proved");
        proofs.has_certificate("ab");
        assert!(proofs.proved().entered.is_none());
        assert!(proofs.all(|proof| proof == "ab") && !proofs.all(|_| false), "it ends when that is revoked");
    }
}
