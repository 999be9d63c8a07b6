//! What a node keeps of its identity, in the folder `identity` of its own:
//!
//! | file | what | for whom |
//! | --- | --- | --- |
//! | `cluster-ca.pem` | the certificate of the cluster's authority | anyone; clients check the node's certificate by it |
//! | `cluster-ca.key` | the authority's key | this node |
//! | `node.pem` | the node's certificate and its key | this node |
//! | `replaced` | fingerprints of the certificates that it had before, a line each | this node |

use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use base64::Engine;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::IdentityError;
use super::authority::{Authority, Issued};

/// The folder, in that of the node.
const FOLDER: &str = "identity";
/// Replaced certificates that are remembered: with renewals after 60 days each, those of forty years.
const MOST_REPLACED: usize = 256;
/// Before the moment at which a certificate ends, in the file that has it.
const EXPIRES: &str = "expires (seconds since 1970): ";

/// A node's identity.
#[derive(Debug)]
pub struct Identity {
    /// The authority of its cluster.
    pub authority: Authority,
    /// Its own certificate.
    pub own: Issued,
}

/// Where the certificate of the cluster's authority is, in the folder of a node.
pub fn authority_file(folder: &Path) -> PathBuf {
    folder.join(FOLDER).join("cluster-ca.pem")
}

/// Where a node's own certificate is, in the folder of the node.
pub fn own_file(folder: &Path) -> PathBuf {
    folder.join(FOLDER).join("node.pem")
}

fn key_file(folder: &Path) -> PathBuf {
    folder.join(FOLDER).join("cluster-ca.key")
}

fn failed(path: &Path) -> impl Fn(String) -> IdentityError {
    let path = path.to_owned();
    move |error| IdentityError::File { path: path.clone(), error }
}

/// Bytes as a block of PEM (RFC 7468).
pub(super) fn pem(kind: &str, der: &[u8]) -> String {
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let lines: Vec<&str> =
        text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).expect("base64 is ASCII")).collect();
    format!("-----BEGIN {kind}-----\n{}\n-----END {kind}-----\n", lines.join("\n"))
}

/// Writes a file in one step: it is the old one or the new one, whenever the host fails.
pub(super) fn write(path: &Path, mode: u32, text: &str) -> Result<(), IdentityError> {
    let new = path.with_extension("new");
    let written = (|| {
        let _ = std::fs::remove_file(&new);
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&new, path)?;
        if let Some(folder) = path.parent() {
            std::fs::File::open(folder)?.sync_all()?;
        }
        Ok(())
    })();
    written.map_err(|error: std::io::Error| failed(path)(error.to_string()))
}

impl Identity {
    /// Reads the identity of the node whose folder this is.
    pub fn read(folder: &Path, cluster: &str) -> Result<Identity, IdentityError> {
        let read = |path: &Path| std::fs::read(path).map_err(|error| failed(path)(error.to_string()));
        let (path, key_path) = (authority_file(folder), key_file(folder));
        let certificate = CertificateDer::from_pem_slice(&read(&path)?)
            .map_err(|error| failed(&path)(format!("it has no certificate: {error}")))?;
        let key = PrivateKeyDer::from_pem_slice(&read(&key_path)?)
            .map_err(|error| failed(&key_path)(format!("it has no key: {error}")))?;
        let authority = Authority::from_parts(cluster, certificate, key.secret_der())
            .map_err(|error| failed(&key_path)(error.to_string()))?;
        Ok(Identity { authority, own: read_own(folder)? })
    }

    /// Writes it to the folder of the node.
    pub fn write(&self, folder: &Path) -> Result<(), IdentityError> {
        let inner = folder.join(FOLDER);
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(&inner)
            .map_err(|error| failed(&inner)(error.to_string()))?;
        write(&authority_file(folder), 0o644, &pem("CERTIFICATE", self.authority.certificate()))?;
        write(&key_file(folder), 0o600, &pem("PRIVATE KEY", self.authority.key()))?;
        write_own(folder, &self.own)
    }
}

/// Notes that a node's certificate with this fingerprint is replaced. A configuration that was restored from an older copy may still name
/// it.
pub fn note_replaced(folder: &Path, certificate: &str) -> Result<(), IdentityError> {
    let path = folder.join(FOLDER).join("replaced");
    let before = std::fs::read_to_string(&path).unwrap_or_default();
    let mut lines: Vec<&str> = before.lines().filter(|line| *line != certificate).collect();
    lines.push(certificate);
    let from = lines.len().saturating_sub(MOST_REPLACED);
    write(&path, 0o600, &(lines[from..].join("\n") + "\n"))
}

/// Whether a node had the certificate with this fingerprint before.
pub fn was_replaced(folder: &Path, certificate: &str) -> bool {
    let noted = std::fs::read_to_string(folder.join(FOLDER).join("replaced")).unwrap_or_default();
    noted.lines().any(|line| line == certificate)
}

/// Writes a node's own certificate to the folder of the node.
pub fn write_own(folder: &Path, own: &Issued) -> Result<(), IdentityError> {
    write(&own_file(folder), 0o600, &bundle(own))
}

/// A certificate with its key, as a file has them.
pub(super) fn bundle(issued: &Issued) -> String {
    let expires = issued.expires;
    let (certificate, key) =
        (pem("CERTIFICATE", &issued.certificate), pem("PRIVATE KEY", issued.key.secret_der()));
    format!("{EXPIRES}{expires}\n{certificate}{key}")
}

fn read_own(folder: &Path) -> Result<Issued, IdentityError> {
    read_bundle(&own_file(folder))
}

/// Reads a certificate with its key.
pub fn read_bundle(path: &Path) -> Result<Issued, IdentityError> {
    let failed = failed(path);
    let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    let expires = text.lines().find_map(|line| line.strip_prefix(EXPIRES)).and_then(|text| text.parse().ok());
    let expires = expires.ok_or_else(|| failed(format!("it is no file that 'loadline san access add' writes for the API (it has no line '{EXPIRES}'). A file with a token is for curl and such programs")))?;
    let certificate = CertificateDer::from_pem_slice(text.as_bytes())
        .map_err(|error| failed(format!("it has no certificate: {error}")))?;
    let key = PrivateKeyDer::from_pem_slice(text.as_bytes())
        .map_err(|error| failed(format!("it has no key: {error}")))?;
    Ok(Issued { certificate, key, expires })
}
