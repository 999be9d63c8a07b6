//! An invitation for one node: a token. It has a secret that opens the cluster's authority, which the configuration has sealed under the
//! token's id. The node that joins removes it in the same change that adds the node, so it is used once.
//!
//! Whoever has the token and can read the configuration can join until the token is used or has expired; and whoever also has a copy of
//! the configuration from before that can open the authority in it. That alone opens no node: nodes take only connections of nodes that
//! the configuration names.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use std::time::Duration;

use super::authority::Authority;
use super::{IdentityError, hexadecimal, now, random_bytes};
use crate::config::catalog::change;
use crate::config::{Change, ConfigError, ConfigStore};

/// What every token begins with.
const PREFIX: &str = "loadline-join-";
/// Bytes of a token: its id, when it ends, the cluster, and the secret.
const BYTES: usize = 8 + 8 + 16 + 32;

/// What the configuration keeps of a token, under `token/<id>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Invitation {
    /// When it ends, in seconds since 1970.
    pub expires: u64,
    /// The authority, sealed with the token's secret: base64.
    pub sealed: String,
}

/// A token.
#[derive(Clone)]
pub struct Token {
    id: [u8; 8],
    expires: u64,
    cluster: u128,
    secret: [u8; 32],
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Token").field("id", &hexadecimal(&self.id)).finish_non_exhaustive()
    }
}

impl std::fmt::Display for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut bytes = Vec::with_capacity(BYTES);
        bytes.extend_from_slice(&self.id);
        bytes.extend_from_slice(&self.expires.to_be_bytes());
        bytes.extend_from_slice(&self.cluster.to_be_bytes());
        bytes.extend_from_slice(&self.secret);
        write!(f, "{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes))
    }
}

impl std::str::FromStr for Token {
    type Err = String;

    fn from_str(text: &str) -> Result<Token, String> {
        let none = || {
            format!(
                "a token begins with {PREFIX} and has {} characters: copy all of it",
                PREFIX.len() + BYTES.div_ceil(3) * 4 - 2
            )
        };
        let bytes = text.trim().strip_prefix(PREFIX).and_then(|text| URL_SAFE_NO_PAD.decode(text).ok());
        let bytes: [u8; BYTES] = bytes.and_then(|bytes| bytes.try_into().ok()).ok_or_else(none)?;
        Ok(Token {
            id: bytes[..8].try_into().expect("eight bytes"),
            expires: u64::from_be_bytes(bytes[8..16].try_into().expect("eight bytes")),
            cluster: u128::from_be_bytes(bytes[16..32].try_into().expect("sixteen bytes")),
            secret: bytes[32..].try_into().expect("32 bytes"),
        })
    }
}

fn refused(why: impl Into<String>) -> IdentityError {
    IdentityError::Token(why.into())
}

impl Token {
    /// Where the configuration keeps it.
    pub fn key(&self) -> String {
        format!("token/{}", hexadecimal(&self.id))
    }

    /// A new one, for this cluster, with what the configuration is to keep of it.
    pub fn make(cluster: &str, authority: &Authority, life: Duration) -> (Token, Change) {
        let number = u128::from_str_radix(cluster, 16).expect("a cluster's id is a number");
        let expires = now() + life.as_secs();
        let token = Token { id: random_bytes(), expires, cluster: number, secret: random_bytes() };
        let certificate = authority.certificate();
        let mut sealed = (certificate.len() as u32).to_be_bytes().to_vec();
        sealed.extend_from_slice(certificate);
        sealed.extend_from_slice(authority.key());
        let (key, aad) = token.seal();
        // The secret is used for this one message.
        key.seal_in_place_append_tag(Nonce::assume_unique_for_key([0; 12]), Aad::from(aad), &mut sealed)
            .expect("it is short");
        let sealed = base64::engine::general_purpose::STANDARD.encode(sealed);
        let change = change(token.key(), None, &Invitation { expires, sealed });
        (token, change)
    }

    fn seal(&self) -> (LessSafeKey, Vec<u8>) {
        let key = UnboundKey::new(&AES_256_GCM, &self.secret).expect("it has the length of a key");
        let mut aad = b"Loadline join".to_vec();
        aad.extend_from_slice(&self.id);
        aad.extend_from_slice(&self.expires.to_be_bytes());
        aad.extend_from_slice(&self.cluster.to_be_bytes());
        (LessSafeKey::new(key), aad)
    }

    /// Opens the authority of the cluster whose configuration this is, and the change that uses the token up.
    pub fn open(
        &self,
        store: &mut dyn ConfigStore,
        cluster: &str,
    ) -> Result<Result<(Authority, Change), IdentityError>, ConfigError> {
        if u128::from_str_radix(cluster, 16) != Ok(self.cluster) {
            return Ok(Err(refused(format!(
                "the token is of cluster {:032x}, and the configuration of cluster {cluster}",
                self.cluster
            ))));
        }
        if self.expires <= now() {
            return Ok(Err(refused(
                "by the clock of this host the token has expired: 'loadline san token' makes a new one on a node of the cluster",
            )));
        }
        let Some(stored) = store.get(&self.key())? else {
            return Ok(Err(refused(
                "the token was used already, or was revoked, or has expired: each token adds one node, and 'loadline san token' \
                 makes a new one on a node of the cluster",
            )));
        };
        let opened = serde_json::from_slice::<Invitation>(&stored.value)
            .ok()
            .and_then(|invitation| base64::engine::general_purpose::STANDARD.decode(invitation.sealed).ok())
            .and_then(|mut sealed| {
                let (key, aad) = self.seal();
                let open =
                    key.open_in_place(Nonce::assume_unique_for_key([0; 12]), Aad::from(aad), &mut sealed);
                let plain = open.ok()?;
                let (length, rest) = plain.split_first_chunk::<4>()?;
                let (certificate, key) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
                Authority::from_parts(cluster, CertificateDer::from(certificate.to_vec()), key).ok()
            });
        let used = Change { key: self.key(), expected: Some(stored.version), value: None };
        Ok(opened.map(|authority| (authority, used)).ok_or_else(|| {
            refused("the token does not open what the configuration has of it: copy all of the token")
        }))
    }
}

/// The changes that remove tokens which have expired.
pub fn expired(store: &mut dyn ConfigStore) -> Result<Vec<Change>, ConfigError> {
    let now = now();
    let listed = store.list("token/")?.1.into_iter();
    let gone = listed.filter(|(_, stored)| {
        serde_json::from_slice::<Invitation>(&stored.value)
            .map_or(true, |invitation| invitation.expires <= now)
    });
    Ok(gone.map(|(key, stored)| Change { key, expected: Some(stored.version), value: None }).collect())
}
