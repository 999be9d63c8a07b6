//! The handshake of a connection: it proves both sides to each other, and gives the keys. rustls does it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use loadline_base::figures::moment;
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedStatus};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, CommonState, ExtractedSecrets, PeerIncompatible,
    ServerConfig,
};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::helpers::{Helpers, Precedence};
use crate::keys::Protection;
use crate::records::{RecordError, Records, Renewal, alert};
use crate::stream::Stream;

/// The protocol of ALPN (RFC 7301) by which nodes agree that their connection is encrypted.
pub const ENCRYPTED: &[u8] = b"loadline-encrypted/1";
/// The protocol by which they agree that it is only authenticated. The handshake proves the choice, as all that it says.
pub const AUTHENTICATED: &[u8] = b"loadline-authenticated/1";

/// The alert that a certificate has expired, or is not valid yet (RFC 8446, 6).
const CERTIFICATE_EXPIRED: u8 = 45;
/// Bytes of a handshake that are received and not handled: a certificate chain is far shorter.
const MOST_INCOMING: usize = 64 << 10;

/// How long it is waited for that a side which is refused has read why.
const TELLS: Duration = Duration::from_millis(200);

/// Why there is no connection.
#[derive(Debug, Error)]
pub enum HandshakeError {
    /// The connection.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The other side has closed it.
    #[error("the other side has closed the connection during the handshake")]
    Closed,
    /// The other side, or its certificate, is refused.
    #[error("{}", tls(.0))]
    Tls(rustls::Error),
    /// More handshakes are begun than this host computes.
    #[error("more handshakes wait than this node can compute")]
    Overloaded,
    /// It sends more than a handshake has.
    #[error("the other side sends more than a handshake has")]
    TooLong,
}

impl HandshakeError {
    /// Whether the clocks of the two hosts disagree on the validity of a certificate: on that of the other side, as this side has found; or,
    /// as the other side says, on that of this side.
    pub fn is_of_clocks(&self) -> bool {
        use rustls::Error::AlertReceived;
        match self {
            HandshakeError::Tls(AlertReceived(alert)) => *alert == AlertDescription::CertificateExpired,
            // The other side has looked at this side's certificate when the handshake was done here.
            HandshakeError::Io(error) => {
                let alert = error.get_ref().and_then(|inner| inner.downcast_ref());
                matches!(alert, Some(RecordError::Alert(number)) if *number == CERTIFICATE_EXPIRED)
            }
            _ => self.is_of_this_clock(),
        }
    }

    /// Whether the certificate of the other side is not valid by the clock of this host.
    pub fn is_of_this_clock(&self) -> bool {
        use rustls::Error::InvalidCertificate;
        match self {
            HandshakeError::Tls(InvalidCertificate(why)) => matches!(
                why,
                CertificateError::Expired
                    | CertificateError::ExpiredContext { .. }
                    | CertificateError::NotValidYet
                    | CertificateError::NotValidYetContext { .. }
            ),
            _ => false,
        }
    }
}

/// What a failure of TLS means, for people.
fn tls(error: &rustls::Error) -> String {
    match error {
        rustls::Error::AlertReceived(description) => {
            format!("the other side refuses the connection: {}", alert((*description).into()))
        }
        rustls::Error::NoCertificatesPresented => "the other side has no certificate".into(),
        rustls::Error::InvalidCertificate(why) => certificate(why),
        rustls::Error::InvalidMessage(_) | rustls::Error::InappropriateMessage { .. } => {
            "the other side does not speak TLS: it does not protect its connections, or is no node".into()
        }
        rustls::Error::NoApplicationProtocol => {
            "the other side speaks another protocol, or protects its connections in another way".into()
        }
        rustls::Error::PeerIncompatible(
            PeerIncompatible::SupportedVersionsExtensionRequired
            | PeerIncompatible::Tls13RequiredForQuic
            | PeerIncompatible::Tls12NotOffered
            | PeerIncompatible::Tls12NotOfferedOrEnabled
            | PeerIncompatible::ServerDoesNotSupportTls12Or13
            | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig,
        ) => "the other side does not offer TLS 1.3".into(),
        other => format!("TLS: {other}"),
    }
}

fn certificate(why: &CertificateError) -> String {
    match why {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "its certificate was not issued by this cluster".into()
        }
        CertificateError::ExpiredContext { time, not_after } => format!(
            "its certificate was valid until {}, and the clock of this host says {}: check the clocks of both hosts",
            moment(not_after.as_secs()),
            moment(time.as_secs())
        ),
        CertificateError::NotValidYetContext { time, not_before } => format!(
            "its certificate is valid from {}, and the clock of this host says {}: check the clocks of both hosts",
            moment(not_before.as_secs()),
            moment(time.as_secs())
        ),
        CertificateError::Expired => {
            "by the clock of this host its certificate has expired: check the clocks of both hosts".into()
        }
        CertificateError::NotValidYet => {
            "by the clock of this host its certificate is not valid yet: check the clocks of both hosts"
                .into()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "its certificate is of another node or address".into()
        }
        other => format!("its certificate is refused: {other}"),
    }
}

/// What a handshake has proved.
#[derive(Debug)]
pub struct Proved {
    /// The certificate of the other side, if it has one. Its chain was verified as the configuration says.
    pub certificate: Option<CertificateDer<'static>>,
    /// The protocol that was agreed on by ALPN.
    pub protocol: Option<Vec<u8>>,
}

/// Does the handshake of the side that has connected. There is no limit of time: the caller sets one.
pub async fn connect<T: AsyncRead + AsyncWrite + Unpin>(
    io: T,
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
) -> Result<(Stream<T>, Proved), HandshakeError> {
    let connection = UnbufferedClientConnection::new(config, name).map_err(HandshakeError::Tls)?;
    shake_hands(io, connection, None).await
}

/// The same; the helpers compute it.
pub async fn connect_with<T: AsyncRead + AsyncWrite + Unpin>(
    helpers: &Helpers,
    io: T,
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
) -> Result<(Stream<T>, Proved), HandshakeError> {
    let connection = UnbufferedClientConnection::new(config, name).map_err(HandshakeError::Tls)?;
    shake_hands(io, connection, Some((helpers, Precedence::Own))).await
}

/// Does the handshake of the side that was connected to. There is no limit of time: the caller sets one.
pub async fn accept<T: AsyncRead + AsyncWrite + Unpin>(
    io: T,
    config: Arc<ServerConfig>,
) -> Result<(Stream<T>, Proved), HandshakeError> {
    let connection = UnbufferedServerConnection::new(config).map_err(HandshakeError::Tls)?;
    shake_hands(io, connection, None).await
}

/// The same; the helpers compute it, in the order of this precedence.
pub async fn accept_with<T: AsyncRead + AsyncWrite + Unpin>(
    (helpers, precedence): (&Helpers, Precedence),
    io: T,
    config: Arc<ServerConfig>,
) -> Result<(Stream<T>, Proved), HandshakeError> {
    let connection = UnbufferedServerConnection::new(config).map_err(HandshakeError::Tls)?;
    shake_hands(io, connection, Some((helpers, precedence))).await
}

/// What both kinds of connections of rustls do, and what it has no trait for.
trait Side {
    type Data;
    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;
    fn common(&self) -> &CommonState;
    fn finish(self) -> Result<(ExtractedSecrets, Renewal), rustls::Error>;
}

macro_rules! side {
    ($connection:ty, $data:ty, $renewal:path) => {
        impl Side for $connection {
            type Data = $data;
            fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, $data> {
                self.process_tls_records(incoming)
            }
            fn common(&self) -> &CommonState {
                self
            }
            fn finish(self) -> Result<(ExtractedSecrets, Renewal), rustls::Error> {
                let (secrets, connection) = self.dangerous_into_kernel_connection()?;
                Ok((secrets, $renewal(connection)))
            }
        }
    };
}
side!(UnbufferedClientConnection, rustls::client::ClientConnectionData, Renewal::Client);
side!(UnbufferedServerConnection, rustls::server::ServerConnectionData, Renewal::Server);

/// What has to be done next.
enum Step {
    Again,
    Send,
    Receive,
    Done,
}

/// A handshake, and what was received and is to be sent.
struct Hands<S> {
    side: S,
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
    /// What the other side has sent after it.
    data: Vec<u8>,
}

impl<S: Side> Hands<S> {
    fn step(&mut self) -> Result<Step, rustls::Error> {
        step(&mut self.side, &mut self.incoming, &mut self.outgoing, &mut self.data)
    }

    /// Steps until something is to be sent or received.
    fn steps(&mut self) -> Result<Step, rustls::Error> {
        loop {
            match self.step() {
                Ok(Step::Again) => {}
                other => return other,
            }
        }
    }
}

async fn shake_hands<T: AsyncRead + AsyncWrite + Unpin>(
    mut io: T,
    side: impl Side + Send + 'static,
    helpers: Option<(&Helpers, Precedence)>,
) -> Result<(Stream<T>, Proved), HandshakeError> {
    let mut hands = Hands { side, incoming: Vec::new(), outgoing: Vec::new(), data: Vec::new() };
    let mut unsent = None;
    loop {
        let stepped;
        (hands, stepped) = match helpers {
            Some((helpers, precedence)) => {
                let computed = helpers.compute(precedence, move || {
                    let stepped = hands.steps();
                    (hands, stepped)
                });
                computed.await.ok_or(HandshakeError::Overloaded)?
            }
            None => {
                let stepped = hands.steps();
                (hands, stepped)
            }
        };
        match stepped {
            Ok(Step::Again) => {}
            Ok(Step::Send) => {
                // If it is not taken, the other side may have said why before it has closed.
                if unsent.is_none() {
                    unsent = send(&mut io, &hands.outgoing).await.err();
                }
                hands.outgoing.clear();
            }
            Ok(Step::Receive) => {
                if hands.incoming.len() >= MOST_INCOMING {
                    return Err(HandshakeError::TooLong);
                }
                match (io.read_buf(&mut hands.incoming).await, unsent.take()) {
                    (Ok(0), None) => return Err(HandshakeError::Closed),
                    (Ok(0) | Err(_), Some(error)) | (Err(error), None) => return Err(error.into()),
                    (Ok(_), before) => unsent = before,
                }
            }
            Ok(Step::Done) => break,
            Err(error) => {
                // The other side is told why: what it has sent is read, since a connection that is closed with something unread is
                // reset, and what was sent is lost with it.
                // This gives the alert which waits, if one does, and what waits before it. After the alert rustls would handle the same
                // bytes again, and it panics rather than send a second alert: so nothing is asked for after what may be one.
                let may_be_alert = |record: &[u8]| matches!(record.first(), Some(21 | 23) | None);
                loop {
                    let from = hands.outgoing.len();
                    let stepped = hands.step();
                    if !matches!(stepped, Ok(Step::Again)) || may_be_alert(&hands.outgoing[from..]) {
                        break;
                    }
                }
                let tells = async {
                    send(&mut io, &hands.outgoing).await?;
                    io.shutdown().await?;
                    let mut rest = [0; 1024];
                    while io.read(&mut rest).await? > 0 {}
                    Ok::<_, io::Error>(())
                };
                let _ = tokio::time::timeout(TELLS, tells).await;
                return Err(HandshakeError::Tls(error));
            }
        }
    }
    let Hands { side, incoming, data, .. } = hands;
    let proved = Proved {
        certificate: side
            .common()
            .peer_certificates()
            .and_then(|chain| chain.first())
            .cloned()
            .map(CertificateDer::into_owned),
        protocol: side.common().alpn_protocol().map(<[u8]>::to_vec),
    };
    let protection = match proved.protocol.as_deref() {
        Some(AUTHENTICATED) => Protection::Authenticated,
        _ => Protection::Encrypted,
    };
    let (secrets, renewal) = side.finish().map_err(HandshakeError::Tls)?;
    let records = Records::new(secrets, renewal, protection, (&data, &incoming));
    Ok((Stream::new(io, records), proved))
}

async fn send(io: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    io.write_all(bytes).await?;
    io.flush().await
}

/// Handles what was received, as far as that goes.
fn step<S: Side>(
    side: &mut S,
    incoming: &mut Vec<u8>,
    outgoing: &mut Vec<u8>,
    data: &mut Vec<u8>,
) -> Result<Step, rustls::Error> {
    let UnbufferedStatus { discard, state, .. } = side.process(incoming);
    let mut handled = discard;
    let state = match state {
        Ok(state) => state,
        Err(error) => {
            incoming.drain(..handled);
            return Err(error);
        }
    };
    let step = match state {
        ConnectionState::EncodeTlsData(mut message) => {
            let from = outgoing.len();
            let length = match message.encode(&mut []) {
                Err(EncodeError::InsufficientSize(needed)) => needed.required_size,
                Ok(_) | Err(EncodeError::AlreadyEncoded) => 0,
            };
            outgoing.resize(from + length, 0);
            if length > 0 && message.encode(&mut outgoing[from..]).is_err() {
                return Err(rustls::Error::General("a message of the handshake cannot be written".into()));
            }
            Step::Again
        }
        ConnectionState::TransmitTlsData(messages) => {
            messages.done();
            Step::Send
        }
        ConnectionState::BlockedHandshake => Step::Receive,
        ConnectionState::ReadTraffic(mut records) => {
            while let Some(record) = records.next_record() {
                let record = record?;
                handled += record.discard;
                data.extend_from_slice(record.payload);
            }
            Step::Again
        }
        ConnectionState::WriteTraffic(_) => Step::Done,
        _ => return Err(rustls::Error::General("the other side has ended the connection".into())),
    };
    incoming.drain(..handled);
    Ok(step)
}
