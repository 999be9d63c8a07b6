//! What a worker and its controller share, and how each proves to the other that it has it.
//!
//! The token never travels. Each side proves that it knows the token by an HMAC-SHA256, keyed with the token, of a
//! label of its own, the channel binding of the encrypted connection ([`crate::tls`]) and a nonce of each side. A program
//! in the middle, which has one encrypted connection to each side, has two bindings, so a proof that it forwards is
//! refused. Bindings and nonces are never used again, so a proof of an earlier connection is refused. The labels keep
//! one side's proof from being sent back as the other's. The controller proves itself first: a worker obeys no process
//! that merely listens at the right address.

use std::fmt::Write;
use std::fs::File;
use std::io::Read;

use hmac::{Hmac, KeyInit, Mac};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use crate::error::FleetError;

/// Random bytes in a token: 16 cannot be guessed.
const RANDOM_BYTES: usize = 16;
/// Bytes of a nonce, and of a proof.
const LEN: usize = Digits::LEN;

/// Bytes of a token: a shorter one can be guessed by a program that gets a proof of it.
const BYTES: std::ops::RangeInclusive<usize> = 16..=512;

/// Fails, with an error of kind `Usage`, if a token is too short or too long.
pub fn check_token(token: &str) -> Result<(), FleetError> {
    match token.len() {
        length if BYTES.contains(&length) => Ok(()),
        length => Err(FleetError::usage(format!(
            "the token has {length} bytes, and a token of a fleet has 16 to 512 bytes: use one that cannot be guessed, such as that of \
             'openssl rand -hex 32', or leave it out for a random one"
        ))),
    }
}

/// 32 bytes, which travel as 64 hexadecimal digits: a nonce, a channel binding or a proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct Digits([u8; LEN]);

impl Digits {
    /// How many bytes.
    pub(crate) const LEN: usize = 32;

    /// A nonce: bytes that were never sent before.
    pub fn random() -> Result<Digits, FleetError> {
        Ok(Digits(random_bytes("a nonce")?))
    }

    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8; LEN] {
        &self.0
    }
}

impl From<[u8; LEN]> for Digits {
    fn from(bytes: [u8; LEN]) -> Digits {
        Digits(bytes)
    }
}

impl From<Digits> for String {
    fn from(digits: Digits) -> String {
        hexadecimal(&digits.0)
    }
}

impl TryFrom<String> for Digits {
    type Error = String;

    fn try_from(text: String) -> Result<Digits, String> {
        let wrong = || format!("not {} hexadecimal digits", 2 * LEN);
        let digits: Option<Vec<u32>> = text.chars().take(2 * LEN + 1).map(|c| c.to_digit(16)).collect();
        let digits = digits.filter(|digits| digits.len() == 2 * LEN).ok_or_else(wrong)?;
        let mut bytes = [0; LEN];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = (pair[0] << 4 | pair[1]) as u8;
        }
        Ok(Digits(bytes))
    }
}

/// The side that proves that it knows the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The controller, to a worker that has sent its hello.
    Controller,
    /// The worker, to a controller that has proved itself.
    Worker,
}

/// What the proofs of one connection cover beside the label of their side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proven {
    /// The channel binding of the encrypted connection ([`crate::tls::channel_binding`]).
    pub channel: Digits,
    /// The nonce in the worker's hello.
    pub worker: Digits,
    /// The nonce in the controller's challenge.
    pub controller: Digits,
}

impl Proven {
    fn mac(&self, token: &str, side: Side) -> Hmac<Sha256> {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(token.as_bytes()).expect("HMAC takes keys of any length");
        let (label, first, second) = match side {
            Side::Controller => ("loadline controller", &self.worker, &self.controller),
            Side::Worker => ("loadline worker", &self.controller, &self.worker),
        };
        mac.update(label.as_bytes());
        mac.update(&self.channel.0);
        mac.update(&first.0);
        mac.update(&second.0);
        mac
    }

    /// One side's proof that it knows the token.
    pub fn proof(&self, token: &str, side: Side) -> Digits {
        Digits(self.mac(token, side).finalize().into_bytes().into())
    }

    /// Whether what a side has sent proves that it knows the token; the time that the check takes reveals nothing.
    pub fn is_proof(&self, token: &str, side: Side, proof: &Digits) -> bool {
        self.mac(token, side).verify_slice(&proof.0).is_ok()
    }
}

fn random_bytes<const N: usize>(what: &str) -> Result<[u8; N], FleetError> {
    let mut bytes = [0; N];
    File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut bytes)).map_err(|e| {
        FleetError::failed(format!(
            "cannot read /dev/urandom for {what}: {e}; see that it is there and readable"
        ))
    })?;
    Ok(bytes)
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to memory");
        text
    })
}

/// A random token, which cannot be guessed.
pub fn random_token() -> Result<String, FleetError> {
    Ok(hexadecimal(&random_bytes::<RANDOM_BYTES>("a token")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROVEN: Proven =
        Proven { channel: Digits([9; LEN]), worker: Digits([1; LEN]), controller: Digits([2; LEN]) };

    #[test]
    fn a_proof_is_the_hmac_of_the_label_the_channel_binding_and_both_nonces() {
        // From another implementation (Python's hmac and hashlib).
        assert_eq!(
            String::from(PROVEN.proof("secret-token", Side::Controller)),
            "37aa79a8ee7258e20112b4e18f0320b914a0fa954fd9e007956b7f6ed999d640"
        );
        assert_eq!(
            String::from(PROVEN.proof("secret-token", Side::Worker)),
            "f9a12df0c27a9672f01f88d7070798bc644007e8b6d789397afa283ceae6b0ed"
        );
    }

    #[test]
    fn only_the_whole_token_proves_anything_and_only_on_one_connection_and_side() {
        let proof = PROVEN.proof("secret", Side::Controller);
        assert!(PROVEN.is_proof("secret", Side::Controller, &proof));
        assert!(!PROVEN.is_proof("secret", Side::Worker, &proof), "sent back to the side that made it");
        for wrong in ["", "secre", "secrets", "Secret"] {
            assert!(!PROVEN.is_proof(wrong, Side::Controller, &proof), "{wrong}");
        }
        let another = Proven { channel: Digits([3; LEN]), ..PROVEN };
        assert!(!another.is_proof("secret", Side::Controller, &proof));
        let another = Proven { worker: Digits([3; LEN]), ..PROVEN };
        assert!(!another.is_proof("secret", Side::Controller, &proof));
        let another = Proven { controller: Digits([3; LEN]), ..PROVEN };
        assert!(!another.is_proof("secret", Side::Controller, &proof));
    }

    #[test]
    fn digits_come_back_from_the_wire_and_nothing_else_is_taken_for_them() {
        let nonce = Digits::random().unwrap();
        let text = serde_json::to_string(&nonce).unwrap();
        assert_eq!(serde_json::from_str::<Digits>(&text).unwrap(), nonce);
        for wrong in ["", "00", &"0".repeat(63), &"0".repeat(65), &"g".repeat(64), &"é".repeat(32)] {
            assert!(Digits::try_from(wrong.to_string()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn two_random_tokens_differ() {
        let (a, b) = (random_token().unwrap(), random_token().unwrap());
        assert!(a != b && a.len() == 2 * RANDOM_BYTES);
        assert_ne!(Digits::random().unwrap(), Digits::random().unwrap());
    }
}
