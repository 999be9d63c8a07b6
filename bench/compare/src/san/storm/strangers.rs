//! Strangers: connections without a certificate that stop inside a handshake, send rubbish, or are refused at the end of a handshake.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::libc;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme};

use super::client;

/// Connections in each second.
pub(super) const BURST: u64 = 1000;
/// Connections that are open at a time.
pub(super) const AT_A_TIME: usize = THREADS * OF_A_THREAD;
const THREADS: usize = 8;
const OF_A_THREAD: usize = 4;
/// How long a stranger waits for an answer.
const LIMIT: Duration = Duration::from_millis(500);
/// The ports of other nodes and of the API.
const NODES: u16 = 7401;
const API: u16 = 7400;

/// Threads that open connections, until they are ended.
pub(super) struct Strangers {
    ended: Arc<AtomicBool>,
    opened: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Strangers {
    pub(super) fn start(address: Ipv4Addr) -> Strangers {
        let (ended, opened) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let begun = Instant::now();
        let config = Arc::new(config());
        let thread = |_| {
            let (ended, opened, config) = (ended.clone(), opened.clone(), config.clone());
            std::thread::spawn(move || {
                run_when_idle();
                let mut open = std::collections::VecDeque::new();
                while !ended.load(Ordering::Relaxed) {
                    let number = opened.fetch_add(1, Ordering::Relaxed);
                    // Those of a second are opened as fast as they can be.
                    let due = begun + Duration::from_secs(number / BURST);
                    while !ended.load(Ordering::Relaxed) && Instant::now() < due {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    // One that is refused at once is a connection all the same.
                    open.extend(connect(address, number, &config).ok());
                    if open.len() > OF_A_THREAD {
                        open.pop_front();
                    }
                }
            })
        };
        let threads = (0..THREADS).map(thread).collect();
        Strangers { ended, opened, threads }
    }

    /// Ends them. How many connections they have opened.
    pub(super) fn end(self) -> u64 {
        self.ended.store(true, Ordering::Relaxed);
        for thread in self.threads {
            let _ = thread.join();
        }
        self.opened.load(Ordering::Relaxed)
    }
}

/// The calling thread runs only while a processor has nothing else to do: strangers would be on other hosts, and are to cost what the node
/// does for them and not what they do themselves.
fn run_when_idle() {
    // SAFETY: all zeros is a value of the type.
    let none: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: the call reads its arguments alone: 0 is the calling thread, and the reference is valid for the call.
    let _ = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const none) };
}

/// Opens a connection, and does what strangers of this number do.
fn connect(address: Ipv4Addr, number: u64, config: &Arc<ClientConfig>) -> io::Result<TcpStream> {
    let port = [client::PORT, NODES, client::PORT, NODES, API][(number % 5) as usize];
    let mut stream = TcpStream::connect((address, port))?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    if port == API {
        let text: &[u8] =
            if number.is_multiple_of(2) { b"GET /v1/status HTTP/1.1\r\nHost: lo" } else { &[0xa5; 1000] };
        stream.write_all(text)?;
        return Ok(stream);
    }
    if port == client::PORT && !client::start_tls(&mut stream)? {
        return Err(io::Error::other("TLS is not offered"));
    }
    let name = ServerName::from(IpAddr::from(address));
    let mut tls = ClientConnection::new(config.clone(), name).map_err(io::Error::other)?;
    match number / 5 % 3 {
        // Half of a first message.
        0 => {
            let mut hello = Vec::new();
            tls.write_tls(&mut hello)?;
            stream.write_all(&hello[..hello.len() / 2])?;
        }
        // All of it: the node computes its answer, and gets rubbish.
        1 => {
            tls.write_tls(&mut stream)?;
            tls.read_tls(&mut stream)?;
            stream.write_all(&[0xa5; 300])?;
        }
        // A whole handshake, without a certificate.
        _ => {
            while tls.is_handshaking() {
                tls.complete_io(&mut stream)?;
            }
        }
    }
    Ok(stream)
}

/// How a stranger connects: it has no certificate, and believes any node.
fn config() -> ClientConfig {
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Believes(ring::default_provider())))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"loadline-encrypted/1".to_vec()];
    config
}

/// Takes any certificate: what a stranger learns is worth nothing to it.
#[derive(Debug)]
struct Believes(CryptoProvider);

impl ServerCertVerifier for Believes {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
