//! Identities in a cluster: certificates, and what proves an invitation.
//!
//! ```text
//!  authority ── issues ──▶ certificate of a node ── its fingerprint ──▶ configuration (node/<id>)
//!      │                                                                    │
//!      └─ sealed in a token, by which one node joins        checked in every handshake, and again whenever it changes
//! ```
//!
//! A connection of a node is taken if two things hold: the cluster's authority issued its certificate, and the configuration names that
//! certificate's fingerprint for a node. So a node that is removed is cut off by the change that removes it, and a stolen key of the
//! authority alone opens nothing.
//!
//! | module | idea |
//! | --- | --- |
//! | [`authority`] | the cluster's own certificate authority |
//! | [`files`] | what a node keeps of it in its folder |
//! | [`token`] | an invitation for one node |
//! | [`access`] | people and programs that use the API |
//! | [`accesses`] | all that the configuration names at a moment |
//! | [`trust`] | what TLS is to accept |

pub mod access;
pub mod accesses;
pub mod authority;
pub mod files;
mod issuer;
pub mod token;
pub mod trust;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ring::digest::{SHA256, digest};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::time_provider::TimeProvider;
use thiserror::Error;

/// Why there is no identity, or an invitation is none.
#[derive(Debug, Error)]
pub enum IdentityError {
    /// A file of an identity.
    #[error("{path}: {error}")]
    File {
        /// The path of the file.
        path: std::path::PathBuf,
        /// What is wrong with it.
        error: String,
    },
    /// A token that is no token of this cluster now.
    #[error("{0}")]
    Token(String),
    /// Certificates cannot be made.
    #[error("a certificate cannot be made: {0}")]
    Made(String),
}

/// An address of a node that other machines reach, in a cluster whose connections are open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "{0} is an address that other machines reach, and the nodes of this cluster do not prove their identity, since it was made for one \
     machine: make a cluster with 'loadline san init --transport encrypted', or use addresses of this machine (127.0.0.1)"
)]
pub struct OpenToOthers(SocketAddr);

impl OpenToOthers {
    /// Fails if one of these is an address that other machines reach.
    pub(crate) fn check(addresses: &[SocketAddr]) -> Result<(), OpenToOthers> {
        match addresses.iter().find(|address| !address.ip().is_loopback()) {
            Some(address) => Err(OpenToOthers(*address)),
            None => Ok(()),
        }
    }
}

/// The fingerprint of a certificate: the SHA-256 of its DER, as 64 hexadecimal digits.
pub fn fingerprint(certificate: &CertificateDer<'_>) -> String {
    hexadecimal(digest(&SHA256, certificate).as_ref())
}

/// Bytes as hexadecimal digits.
pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Seconds since 1970, by this host's clock.
pub(crate) fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    now.saturating_add_signed(CLOCK_OFF.load(Ordering::Relaxed))
}

/// By how many seconds this process takes its host's clock to be wrong: a fault on purpose.
static CLOCK_OFF: AtomicI64 = AtomicI64::new(0);

/// From now on this process takes its host's clock for one that is wrong by so many seconds.
pub(crate) fn set_clock_off(seconds: i64) {
    CLOCK_OFF.store(seconds, Ordering::Relaxed);
}

/// The clock by which certificates are checked.
#[derive(Debug)]
struct Clock;

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_secs(now())))
    }
}

/// The clock by which certificates are checked.
pub(crate) fn clock() -> Arc<dyn TimeProvider> {
    Arc::new(Clock)
}

/// Random bytes of the system.
///
/// # Panics
/// If the system has none.
pub(crate) fn random_bytes<const N: usize>() -> [u8; N] {
    use ring::rand::{SecureRandom, SystemRandom};
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).expect("the system has random bytes");
    bytes
}
