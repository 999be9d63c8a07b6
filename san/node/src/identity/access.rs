//! People and programs that use the API beyond this machine: each has a name, a role, and a certificate or a token of its own.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use super::authority::{Authority, Issued, Subject};
use super::files::{bundle, pem};
use super::{IdentityError, fingerprint, hexadecimal, now, random_bytes};

/// What every token of the API begins with.
const PREFIX: &str = "loadline-api-";

/// What one may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Use volumes as a client whose connection is protected, and nothing of the API.
    Client,
    /// Look at everything, and change nothing.
    Viewer,
    /// Look at everything, and change everything that the API changes.
    Operator,
}

impl Role {
    /// The name of it.
    pub fn name(self) -> &'static str {
        match self {
            Role::Client => "client",
            Role::Viewer => "viewer",
            Role::Operator => "operator",
        }
    }

    /// The role of this name.
    pub fn of_name(name: &str) -> Option<Role> {
        [Role::Client, Role::Viewer, Role::Operator].into_iter().find(|role| role.name() == name)
    }
}

/// What the configuration keeps of an access, under `access/<name>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Access {
    /// What it may do.
    pub role: Role,
    /// The fingerprint of its certificate, or the SHA-256 of its token: 64 hexadecimal digits.
    pub proof: String,
    /// When it ends, in seconds since 1970.
    pub expires: u64,
}

impl Access {
    /// Whether it has ended.
    pub fn has_expired(&self) -> bool {
        self.expires <= now()
    }
}

/// What proves an access, for its owner.
#[derive(Debug)]
pub enum Proof {
    /// A certificate.
    Certificate(ClientCertificate),
    /// A token.
    Token(String),
}

/// A certificate for a client, as PEM.
#[derive(Debug)]
pub struct ClientCertificate {
    issued: Issued,
    /// The certificate of the cluster's authority.
    pub authority: String,
}

impl ClientCertificate {
    /// All of it, as one file.
    pub fn bundle(&self) -> String {
        format!("{}{}", bundle(&self.issued), self.authority)
    }

    /// The certificate.
    pub fn certificate(&self) -> String {
        pem("CERTIFICATE", &self.issued.certificate)
    }

    /// Its key.
    pub fn key(&self) -> String {
        pem("PRIVATE KEY", self.issued.key.secret_der())
    }
}

/// A new access with a certificate: what the configuration is to keep, and what its owner gets.
pub fn by_certificate(
    authority: &Authority,
    name: &str,
    role: Role,
    life: Duration,
) -> Result<(Access, Proof), IdentityError> {
    let issued = authority.issue(&Subject::Client(name.into()), life)?;
    let access = Access { role, proof: fingerprint(&issued.certificate), expires: issued.expires };
    let authority = pem("CERTIFICATE", authority.certificate());
    Ok((access, Proof::Certificate(ClientCertificate { issued, authority })))
}

/// A new access with a token: what the configuration is to keep, and the token for its owner.
pub fn by_token(role: Role, life: Duration) -> (Access, Proof) {
    let token = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(random_bytes::<32>()));
    let access = Access { role, proof: proof_of(&token), expires: now() + life.as_secs() };
    (access, Proof::Token(token))
}

/// What the configuration knows a token by.
pub fn proof_of(token: &str) -> String {
    hexadecimal(digest(&SHA256, token.as_bytes()).as_ref())
}
