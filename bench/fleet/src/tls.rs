//! The encrypted connection between a worker and its controller: TLS 1.3, and nothing that a person has to set up.
//!
//! The controller makes its certificate when it starts, and no worker trusts it: the handshake alone proves neither side.
//! It gives keys that only its two ends have, and the [channel binding](channel_binding), a value that is different on
//! every connection and the same at its two ends. Both sides then prove the token over that value ([`crate::token`]).
//! Sessions are never resumed and no data is sent before the handshake is over, so every connection has its own keys.

use std::io;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::version::TLS13;
use rustls::{
    AlertDescription, ClientConfig, ConnectionCommon, DigitallySignedStruct, Error, ServerConfig,
    SignatureScheme,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use crate::error::FleetError;
use crate::token::Digits;

/// What the channel binding is derived with, beside the keys of the connection (RFC 8446, 7.5). It changes when the proofs
/// that cover the channel binding change.
const BINDING_LABEL: &[u8] = b"EXPORTER-loadline-worker/1";
/// The name in the controller's certificate. It is never checked, nor sent by a worker.
const CONTROLLER_NAME: &str = "loadline-controller";
/// The first byte of a TLS connection: a record of a handshake.
const FIRST_BYTE: u8 = 22;

/// What is encrypted: a connection over a network, or the way out of a virtual machine.
pub(crate) trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}
pub(crate) type Stream = Box<dyn Connection>;

/// One end of an encrypted connection.
pub(crate) type EncryptedStream = TlsStream<Stream>;

/// The configuration of a controller's end, with a certificate that is made for it.
pub fn controller_config() -> Result<Arc<ServerConfig>, FleetError> {
    let failed = |e: &dyn std::fmt::Display| {
        FleetError::failed(format!("cannot make a certificate for the connections of workers: {e}"))
    };
    let made = rcgen::generate_simple_self_signed([CONTROLLER_NAME.to_string()]).map_err(|e| failed(&e))?;
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .expect("ring has what TLS 1.3 needs")
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .map_err(|e| failed(&e))?;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// The configuration of a worker's end: it takes any certificate.
pub fn worker_config() -> Arc<ClientConfig> {
    let provider = provider();
    let mut config = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])
        .expect("ring has what TLS 1.3 needs")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    Arc::new(config)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// The name that a worker's end is made with.
pub fn controller_name() -> ServerName<'static> {
    ServerName::try_from(CONTROLLER_NAME).expect("a valid name")
}

/// The channel binding of a connection whose handshake is over: equal at its two ends, and at no other connection's
/// (RFC 9266 has the reasons).
pub fn channel_binding<Data>(connection: &ConnectionCommon<Data>) -> Result<Digits, Error> {
    connection.export_keying_material([0; Digits::LEN], BINDING_LABEL, None).map(Digits::from)
}

/// Does the handshake of a controller's end. There is no limit of time: the caller sets one.
pub(crate) async fn accept(
    acceptor: &TlsAcceptor,
    stream: TcpStream,
) -> io::Result<(EncryptedStream, Digits)> {
    let stream = acceptor.accept(Box::new(stream) as Stream).await?;
    let binding = channel_binding(stream.get_ref().1).map_err(io::Error::other)?;
    Ok((stream.into(), binding))
}

/// Does the handshake of a worker's end. There is no limit of time: the caller sets one.
pub(crate) async fn connect(
    connector: &TlsConnector,
    stream: Stream,
) -> io::Result<(EncryptedStream, Digits)> {
    let stream = connector.connect(controller_name(), stream).await?;
    let binding = channel_binding(stream.get_ref().1).map_err(io::Error::other)?;
    Ok((stream.into(), binding))
}

/// Whether a connection begins as TLS does, once its first byte is there. `None`: it ended before.
pub(crate) async fn begins(stream: &TcpStream) -> io::Result<Option<bool>> {
    let mut first = [0];
    let read = stream.peek(&mut first).await?;
    Ok((read > 0).then_some(first == [FIRST_BYTE]))
}

/// What an error of a connection means if TLS found it, for people. `None`: the connection broke below TLS.
pub(crate) fn meaning(error: &io::Error) -> Option<String> {
    let error = error.get_ref()?.downcast_ref::<Error>()?;
    Some(match error {
        Error::DecryptError => "a message was changed on the way".into(),
        Error::AlertReceived(AlertDescription::BadRecordMac | AlertDescription::DecryptError) => {
            "the other side reports that a message was changed on the way".into()
        }
        other => format!("TLS: {other}"),
    })
}

/// Takes any certificate whose key signed the handshake. What it is worth is decided by the proofs of the token.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
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
        verify_tls13_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
