//! One connection between a keeper and a receiver.

use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use loadline_guest::Wanted;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::frame::{self, FrameError, FrameReader, parse};
use crate::tls::{self, EncryptedStream};
use crate::wire::{Digits, LONGEST_HELLO, Proven, Side};

/// How long a connection may take until both sides have proved themselves: less than a link may be silent.
const PROOF_LIMIT: Duration = Duration::from_secs(4);
/// The longest message, bytes.
const LONGEST: usize = 64 << 10;
/// Bytes that are passed on at once.
const PIECE: usize = 64 << 10;

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Purpose {
    /// Orders to the receiver, and a new QEMU.
    Link,
    /// The machine's serial port.
    Control,
    /// Orders about its devices.
    Orders,
    /// Orders about the machine.
    MoreOrders,
    /// By which the machine comes.
    Incoming,
    /// By which the machine leaves again: QEMU gets its end with the next order about the machine.
    Departure,
}

/// The first message of the keeper.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Hello {
    version: String,
    purpose: Purpose,
    /// Which QEMU of the receiver, as [`FromReceiver::Waits`] says it.
    machine: u32,
    nonce: Digits,
}

/// The receiver's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Challenge {
    Prove { nonce: Digits, proof: Digits },
    Refused(String),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Proof {
    proof: Digits,
}

/// A message of the keeper over the link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum ToReceiver {
    /// Start a QEMU that waits for this machine. The first message. Answered with `waits` or `refused`.
    Begin(Wanted),
    /// Has QEMU read so many bytes of the serial port? Answered with `read`.
    HasRead { bytes: u64 },
    /// The process stands still for so long. Answered with `paused`.
    Pause { ms: u64 },
    /// What did it print last? Answered with `words`.
    LastWords,
    /// End it. Answered with `ended`.
    End,
    /// The keeper is there.
    Alive,
}

/// A message of the receiver over the link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum FromReceiver {
    /// QEMU waits: its number among those of the receiver.
    Waits { machine: u32 },
    /// This host cannot continue the machine.
    Refused(String),
    /// Whether the bytes are read.
    Read(bool),
    /// It goes on; or why it did not stand still.
    Paused(Result<(), String>),
    /// What it printed last.
    Words(String),
    /// It has ended.
    Ended { how: String, words: String },
    /// The receiver is there.
    Alive,
}

/// The answer to a connection for bytes: from then on there are only bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Opened {
    /// Its number in QEMU, if the connection has one.
    Number(Option<RawFd>),
    Refused(String),
}

/// What was passed on by a connection.
#[derive(Debug, Default)]
pub(super) struct Passed {
    /// Bytes that were read from the local end, counted before they are sent.
    pub(super) taken: AtomicU64,
    /// Bytes that were written to the local end.
    pub(super) given: AtomicU64,
    /// The local end had no more bytes, and all were sent.
    pub(super) out_ended: Notify,
    /// The other side had no more bytes, and all were written to the local end.
    pub(super) back_ended: Notify,
}

/// A connection whose two sides have proved themselves.
pub(super) struct Channel {
    pub(super) purpose: Purpose,
    pub(super) machine: u32,
    pub(super) reader: FrameReader<ReadHalf<EncryptedStream>>,
    pub(super) writer: WriteHalf<EncryptedStream>,
}

impl Channel {
    /// Dials a receiver.
    pub(super) async fn dial(
        tls: &TlsConnector,
        address: SocketAddr,
        key: &str,
        purpose: Purpose,
        machine: u32,
    ) -> Result<Channel, String> {
        let dialled = async {
            let stream = TcpStream::connect(address).await.map_err(|e| unreached(address, &e.to_string()))?;
            stream.set_nodelay(true).map_err(|e| e.to_string())?;
            let (stream, channel) = tls::connect(tls, Box::new(stream))
                .await
                .map_err(|e| tls::meaning(&e).unwrap_or(e.to_string()))?;
            let (reader, mut writer) = split(stream);
            let mut reader = FrameReader::new(reader, LONGEST_HELLO);
            let nonce = Digits::random().map_err(|e| e.message)?;
            let hello = Hello { version: env!("CARGO_PKG_VERSION").into(), purpose, machine, nonce };
            frame::send(&mut writer, &hello).await.map_err(|e| e.to_string())?;
            let (controller, proof) = match next(&mut reader).await? {
                Challenge::Prove { nonce, proof } => (nonce, proof),
                Challenge::Refused(why) => return Err(why),
            };
            let proven = Proven { channel, worker: nonce, controller };
            if !proven.is_proof(key, Side::Controller, &proof) {
                return Err(format!(
                    "the program that listens at {address} is not the receiver of this migration"
                ));
            }
            let proof = Proof { proof: proven.proof(key, Side::Worker) };
            frame::send(&mut writer, &proof).await.map_err(|e| e.to_string())?;
            reader.allow(LONGEST);
            Ok(Channel { purpose, machine, reader, writer })
        };
        let result = timeout(PROOF_LIMIT, dialled).await;
        let late = || Err(unreached(address, &format!("it did not answer within {PROOF_LIMIT:?}")));
        result.unwrap_or_else(|_| late())
    }

    /// Lets a new connection prove itself.
    pub(super) async fn greet(tls: &TlsAcceptor, stream: TcpStream, key: &str) -> Result<Channel, String> {
        let greeted = async {
            stream.set_nodelay(true).map_err(|e| e.to_string())?;
            let (stream, channel) = tls::accept(tls, stream).await.map_err(|e| e.to_string())?;
            let (reader, mut writer) = split(stream);
            let mut reader = FrameReader::new(reader, LONGEST_HELLO);
            let hello: Hello = next(&mut reader).await?;
            let own = env!("CARGO_PKG_VERSION");
            if hello.version != own {
                let why = format!("the keeper is Loadline {}, and the receiver {own}", hello.version);
                let _ = frame::send(&mut writer, &Challenge::Refused(why.clone())).await;
                return Err(why);
            }
            let nonce = Digits::random().map_err(|e| e.message)?;
            let proven = Proven { channel, worker: hello.nonce, controller: nonce };
            let challenge = Challenge::Prove { nonce, proof: proven.proof(key, Side::Controller) };
            frame::send(&mut writer, &challenge).await.map_err(|e| e.to_string())?;
            let Proof { proof } = next(&mut reader).await?;
            if !proven.is_proof(key, Side::Worker, &proof) {
                return Err("it does not know the key of this migration".into());
            }
            reader.allow(LONGEST);
            Ok(Channel { purpose: hello.purpose, machine: hello.machine, reader, writer })
        };
        timeout(PROOF_LIMIT, greeted).await.unwrap_or_else(|_| Err("it did not prove itself in time".into()))
    }

    /// The next message.
    pub(super) async fn next<M: for<'de> Deserialize<'de>>(&mut self) -> Result<M, String> {
        next(&mut self.reader).await
    }

    /// Sends a message.
    pub(super) async fn send(&mut self, message: &impl Serialize) -> Result<(), FrameError> {
        frame::send(&mut self.writer, message).await
    }

    /// Passes bytes on in both directions until both have ended, also if one ends in an error: what the other has still to pass on
    /// arrives.
    pub(super) async fn pass(self, local: UnixStream, passed: Arc<Passed>) -> io::Result<()> {
        local.set_nonblocking(true)?;
        let (from_local, to_local) = tokio::net::UnixStream::from_std(local)?.into_split();
        let (from_there, first) = self.reader.into_parts();
        let out = async {
            let result = pump(from_local, self.writer, Vec::new(), &passed.taken, &AtomicU64::new(0)).await;
            passed.out_ended.notify_one();
            result
        };
        let back = async {
            let result = pump(from_there, to_local, first, &AtomicU64::new(0), &passed.given).await;
            passed.back_ended.notify_one();
            result
        };
        let (out, back) = tokio::join!(out, back);
        out.and(back)
    }
}

async fn next<M: for<'de> Deserialize<'de>>(
    reader: &mut FrameReader<ReadHalf<EncryptedStream>>,
) -> Result<M, String> {
    let frame = reader.next().await.map_err(|e| e.to_string())?;
    let frame = frame.ok_or_else(|| "it closed the connection".to_string())?;
    parse(&frame).map_err(|e| e.to_string())
}

fn unreached(address: SocketAddr, why: &str) -> String {
    format!(
        "the other host is not reached at {address}: {why}; hosts between which machines are migrated must reach each other"
    )
}

/// Passes bytes on until the end, beginning with `first`, and passes the end on too.
async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    first: Vec<u8>,
    taken: &AtomicU64,
    given: &AtomicU64,
) -> io::Result<()> {
    let mut bytes = vec![0; PIECE];
    let mut ready = first;
    let result = loop {
        if !ready.is_empty() {
            if let Err(e) = to.write_all(&ready).await {
                break Err(e);
            }
            if let Err(e) = to.flush().await {
                break Err(e);
            }
            given.fetch_add(ready.len() as u64, Ordering::SeqCst);
        }
        let read = match from.read(&mut bytes).await {
            Ok(0) => break Ok(()),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => break Ok(()),
            Err(e) => break Err(e),
            Ok(read) => read,
        };
        // Without a wait between the two: whoever sees that nothing is left to be read sees all of it counted.
        taken.fetch_add(read as u64, Ordering::SeqCst);
        ready.clear();
        ready.extend_from_slice(&bytes[..read]);
    };
    let _ = to.shutdown().await;
    result
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use tokio::net::TcpListener;

    use super::*;
    use crate::tls::{controller_config, worker_config};

    /// The two ends of a connection that one side dials with this key and the other expects with that one.
    async fn ends(dialled: &str, expected: &str) -> (Result<Channel, String>, Result<Channel, String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = TlsAcceptor::from(controller_config().unwrap());
        let connector = TlsConnector::from(worker_config());
        let accepted = async {
            let (stream, _) = listener.accept().await.unwrap();
            Channel::greet(&acceptor, stream, expected).await
        };
        tokio::join!(Channel::dial(&connector, address, dialled, Purpose::Control, 7), accepted)
    }

    #[tokio::test]
    async fn a_side_without_the_key_is_refused_by_the_other() {
        let (dialled, accepted) = ends("the key of one migration", "the key of another one").await;
        let error = dialled.err().unwrap();
        assert!(
            error.contains("is not the receiver of this migration") && error.contains("127.0.0.1"),
            "{error}"
        );
        assert!(accepted.is_err(), "it left without a proof");
        // Bytes that are no TLS, and silence, end in an error too.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut stranger = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let acceptor = TlsAcceptor::from(controller_config().unwrap());
        assert!(Channel::greet(&acceptor, stream, "the key of one migration").await.is_err());
    }

    #[tokio::test]
    async fn bytes_are_passed_on_in_both_directions_to_the_last_one_and_counted() {
        let key = "the key of this migration";
        let (dialled, accepted) = ends(key, key).await;
        let (dialled, mut accepted) = (dialled.unwrap(), accepted.unwrap());
        assert_eq!((accepted.purpose, accepted.machine), (Purpose::Control, 7));
        let (mut here, passed_here) = UnixStream::pair().unwrap();
        let (mut there, passed_there) = UnixStream::pair().unwrap();
        // What comes at once after the answer is not lost: QEMU speaks first.
        there.write_all(b"first").unwrap();
        accepted.send(&Opened::Number(Some(3))).await.unwrap();
        let counted = [Arc::<Passed>::default(), Arc::default()];
        let [at_here, at_there] = counted.clone();
        let passing = tokio::spawn(async move {
            let there = accepted.pass(passed_there, at_there);
            let here = async {
                let mut dialled = dialled;
                let opened: Opened = dialled.next().await.unwrap();
                assert_eq!(opened, Opened::Number(Some(3)));
                dialled.pass(passed_here, at_here).await
            };
            let (here, there) = tokio::join!(here, there);
            here.and(there).unwrap();
        });
        let told = tokio::task::spawn_blocking(move || {
            let mut greeting = [0; 5];
            here.read_exact(&mut greeting).unwrap();
            assert_eq!(&greeting, b"first");
            let long = vec![9; 3 * PIECE + 1];
            here.write_all(&long).unwrap();
            here.shutdown(std::net::Shutdown::Write).unwrap();
            let mut arrived = Vec::new();
            there.read_to_end(&mut arrived).unwrap();
            assert!(arrived == long, "{} bytes of {}", arrived.len(), long.len());
            there.write_all(b"last").unwrap();
            drop(there);
            let mut last = Vec::new();
            here.read_to_end(&mut last).unwrap();
            assert_eq!(last, b"last");
        });
        told.await.unwrap();
        passing.await.unwrap();
        let bytes =
            |passed: &Passed| (passed.taken.load(Ordering::SeqCst), passed.given.load(Ordering::SeqCst));
        let sent = 3 * PIECE as u64 + 1;
        assert_eq!([bytes(&counted[0]), bytes(&counted[1])], [(sent, 9), (9, sent)]);
    }
}
