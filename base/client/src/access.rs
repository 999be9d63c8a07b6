//! The file that proves an access, as TLS takes it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

/// Where a node's own certificate is, in the folder of the node: it is an access too.
pub(crate) fn own_file(folder: &Path) -> PathBuf {
    folder.join("identity").join("node.pem")
}

/// What TLS is to prove, and to accept.
pub(crate) fn tls(access: Option<&Path>) -> Result<TlsConfig, String> {
    let Some(path) = access else {
        return Err("a node at an https address wants an access: name its file with --access or LOADLINE_ACCESS. 'loadline san access add' on \
                    the host of a node makes one; there, the node's own identity/node.pem is one too"
            .into());
    };
    let failed = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
    let text = std::fs::read(path).map_err(|why| failed(&why))?;
    let own = CertificateDer::from_pem_slice(&text).map_err(|_| {
        failed(&"it is no file that 'loadline san access add' writes for the API (it has no certificate). A file with a token is for curl and such programs")
    })?;
    let key = PrivateKey::from_pem(&text).map_err(|why| failed(&why))?;
    let authority = authority(path)?;
    let certificate = |der: &CertificateDer<'_>| Certificate::from_der(der.as_ref()).to_owned();
    Ok(TlsConfig::builder()
        .client_cert(Some(ClientCert::new_with_certs(&[certificate(&own)], key)))
        .root_certs(RootCerts::new_with_certs(&[certificate(&authority)]))
        .unversioned_rustls_crypto_provider(Arc::new(ring::default_provider()))
        .build())
}

/// The authority of the cluster: the second certificate of an access's file; that of a node's own identity is in a file beside it.
fn authority(path: &Path) -> Result<CertificateDer<'static>, String> {
    let beside = path.with_file_name("cluster-ca.pem");
    let second = CertificateDer::pem_file_iter(path).ok().and_then(|mut all| all.nth(1)).and_then(Result::ok);
    match second {
        Some(certificate) => Ok(certificate),
        None => CertificateDer::from_pem_file(&beside).map_err(|_| {
            format!(
                "{} has no certificate of the cluster's authority, and {} is not there: use a file that 'loadline san access add' has written",
                path.display(),
                beside.display()
            )
        }),
    }
}
