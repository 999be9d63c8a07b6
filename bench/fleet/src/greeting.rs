//! The beginning of a connection to the controller's port: TLS, a worker's hello, and the proofs of the token.

use std::time::Duration;

use tokio::io::{AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::frame::{self, FrameError, FrameReader, parse};
use crate::inbound::Refusal;
use crate::tls::{self, EncryptedStream};
use crate::wire::{AnyHello, Digits, Hello, LONGEST_HELLO, PROTOCOL, Proven, Side, ToController, ToWorker};

/// How long a new connection may take to prove that it knows the token, from being accepted.
const PROOF_LIMIT: Duration = Duration::from_secs(5);
/// How long a refusal may take to be sent.
pub(crate) const REFUSAL_LIMIT: Duration = Duration::from_secs(1);

/// A connection that has proved that it knows the token.
pub(crate) struct Greeted {
    pub(crate) hello: Hello,
    pub(crate) reader: FrameReader<ReadHalf<EncryptedStream>>,
    pub(crate) writer: WriteHalf<EncryptedStream>,
}

/// Lets a new connection prove within [`PROOF_LIMIT`] that it knows the token, or returns why it is refused.
pub(crate) async fn greet(stream: TcpStream, tls: &TlsAcceptor, token: &str) -> Result<Greeted, String> {
    let late = |_| Err(format!("it did not prove within {PROOF_LIMIT:?} that it has the token"));
    timeout(PROOF_LIMIT, prove(stream, tls, token)).await.unwrap_or_else(late)
}

async fn prove(stream: TcpStream, tls: &TlsAcceptor, token: &str) -> Result<Greeted, String> {
    let broken = |e: std::io::Error| format!("the connection broke: {e}");
    stream.set_nodelay(true).map_err(broken)?;
    match tls::begins(&stream).await.map_err(broken)? {
        Some(true) => {}
        Some(false) => return Err(dismiss(stream).await),
        None => return Err("it connected and left without a word".into()),
    }
    let (stream, channel) = tls::accept(tls, stream).await.map_err(|e| {
        let why = tls::meaning(&e).unwrap_or_else(|| e.to_string());
        format!("the handshake of its encrypted connection failed: {why}")
    })?;
    let (reader, mut writer) = split(stream);
    let mut reader = FrameReader::new(reader, LONGEST_HELLO);
    match introduce(&mut reader, &mut writer, channel, token).await {
        Ok(hello) => Ok(Greeted { hello, reader, writer }),
        Err(Unproved { why, tell }) => {
            if tell {
                refuse(&mut writer, Refusal { why: why.clone(), retry: false }).await;
            }
            Err(why)
        }
    }
}

/// Why a connection has not proved that it knows the token.
struct Unproved {
    why: String,
    /// Whether the reason is sent to it: it speaks frames, and is still connected.
    tell: bool,
}

/// The hello of a connection that has proved that it knows the token.
async fn introduce(
    reader: &mut FrameReader<ReadHalf<EncryptedStream>>,
    writer: &mut WriteHalf<EncryptedStream>,
    channel: Digits,
    token: &str,
) -> Result<Hello, Unproved> {
    let silent = |why: String| Unproved { why, tell: false };
    let told = |why: String| Unproved { why, tell: true };
    let frame = reader.next().await.map_err(|e| silent(e.to_string()))?;
    let frame = frame.ok_or_else(|| silent("it connected and left without a word".into()))?;
    let hello = check(&frame).map_err(told)?;
    let controller = Digits::random().map_err(|e| told(e.message))?;
    let proven = Proven { channel, worker: hello.nonce, controller };
    let challenge = ToWorker::Challenge { nonce: controller, proof: proven.proof(token, Side::Controller) };
    frame::send(writer, &challenge).await.map_err(|e| silent(e.to_string()))?;
    let wrong = "its token is not the token of this fleet: give the worker the --token of the controller";
    match reader.next().await {
        // A worker leaves at this point when the controller's proof does not fit its own token.
        Ok(None) | Err(FrameError::Broken(_)) => Err(silent(format!(
            "it closed the connection when it had to prove that it has the token; probably {wrong}"
        ))),
        Err(e) => Err(silent(e.to_string())),
        Ok(Some(frame)) => match parse(&frame) {
            Ok(ToController::Proof { proof }) if proven.is_proof(token, Side::Worker, &proof) => Ok(hello),
            Ok(ToController::Proof { .. }) => Err(told(wrong.into())),
            _ => Err(told("its second message does not prove that it has the token".into())),
        },
    }
}

/// The hello in the first frame of a connection, if it speaks this protocol.
fn check(frame: &[u8]) -> Result<Hello, String> {
    let any: AnyHello = parse(frame).map_err(|_| "its first message is not a worker's hello".to_string())?;
    if any.hello.protocol != PROTOCOL {
        return Err(two_versions(&any));
    }
    match parse(frame) {
        Ok(ToController::Hello(hello)) => Ok(hello),
        Ok(_) => Err("its first message is not a worker's hello".into()),
        Err(e) => Err(e.to_string()),
    }
}

fn two_versions(any: &AnyHello) -> String {
    format!(
        "it speaks version {} of the protocol, and this controller version {PROTOCOL}: use the same version of loadline for \
         both",
        any.hello.protocol
    )
}

/// Reads the first frame of a connection that is not encrypted, answers that it is refused, and returns why. A worker of
/// a version before encryption gets an answer that it understands; nothing else is ever done on such a connection.
async fn dismiss(stream: TcpStream) -> String {
    let (reader, mut writer) = split(stream);
    let why = match FrameReader::new(reader, LONGEST_HELLO).next().await {
        Err(e) => return e.to_string(),
        Ok(None) => return "it connected and left without a word".into(),
        Ok(Some(frame)) => match parse::<AnyHello>(&frame) {
            Ok(any) if any.hello.protocol != PROTOCOL => two_versions(&any),
            _ => "its connection is not encrypted, and a worker's is".into(),
        },
    };
    refuse(&mut writer, Refusal { why: why.clone(), retry: false }).await;
    why
}

/// Sends a refusal and ends the sending half, within [`REFUSAL_LIMIT`].
pub(crate) async fn refuse(writer: &mut (impl AsyncWrite + Unpin), refusal: Refusal) {
    let Refusal { why, retry } = refusal;
    let refused = ToWorker::Refused { protocol: PROTOCOL, why, retry };
    // A peer that does not read this message changes nothing.
    let _ = timeout(REFUSAL_LIMIT, async {
        frame::send(writer, &refused).await?;
        writer.shutdown().await.map_err(FrameError::from)
    })
    .await;
}
