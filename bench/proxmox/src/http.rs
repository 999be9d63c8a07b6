//! One request to the API and its answer, over TLS, within a limit of time.
//!
//! It is a client of its own, and not that of the workspace, for two reasons: Proxmox VE gives its reason in the status line, which
//! other clients drop, and the certificate is checked by its fingerprint.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};

use crate::tls::Tls;

/// How long a connection may take to be there.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// The longest answer, bytes: a cluster of thousands of machines needs some MiB.
const LONGEST_ANSWER: usize = 64 << 20;
/// The longest head of an answer, bytes.
const LONGEST_HEAD: usize = 64 << 10;

/// An answer, whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// What the status line says behind the number.
    pub(crate) reason: String,
    pub(crate) body: Vec<u8>,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoAnswer {
    /// The API cannot be reached: nothing was sent.
    Unreachable(String),
    /// Its certificate is refused: nothing was sent.
    Untrusted(String),
    /// The request may have been carried out: the connection broke, or the answer is not whole, or it came too late.
    Broken(String),
}

/// Where the API is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Endpoint {
    /// Reads `https://HOST[:PORT]`; the port is 8006 if none is named.
    pub(crate) fn parse(api: &str) -> Result<Endpoint, String> {
        let wrong = || format!("{api:?} is no address of an API: write \"https://HOST:8006\"");
        let rest = api.strip_prefix("https://").ok_or_else(wrong)?;
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = match rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, port)) => (host, port.strip_prefix(':').or(port.is_empty().then_some("8006"))),
            None => rest.split_once(':').map_or((rest, Some("8006")), |(host, port)| (host, Some(port))),
        };
        let port = port.and_then(|port| port.parse().ok()).ok_or_else(wrong)?;
        let is_host =
            !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || "-._:".contains(c));
        is_host.then(|| Endpoint { host: host.into(), port }).ok_or_else(wrong)
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// Sends a request and reads its answer, all within `limit`. `head` are the request line and its headers, without `Host`.
pub(crate) fn exchange(
    endpoint: &Endpoint,
    tls: &Tls,
    head: &str,
    body: &str,
    limit: Duration,
) -> Result<Answer, NoAnswer> {
    let deadline = Instant::now() + limit;
    let stream = connect(endpoint, deadline)?;
    let unreachable = |e: &dyn std::fmt::Display| NoAnswer::Unreachable(e.to_string());
    let name = ServerName::try_from(endpoint.host.clone()).map_err(|e| unreachable(&e))?;
    let tls = tls.connection();
    let connection = ClientConnection::new(tls.config.clone(), name).map_err(|e| unreachable(&e))?;
    let mut stream = StreamOwned::new(connection, Timed { stream, deadline });
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock).map_err(|e| match tls.refusal() {
            Some(why) => NoAnswer::Untrusted(why),
            None => NoAnswer::Unreachable(format!("it does not answer as HTTPS does: {}", late(&e, limit))),
        })?;
    }
    let broken = |e: io::Error| NoAnswer::Broken(late(&e, limit));
    let request = format!(
        "{head}Host: {endpoint}\r\nConnection: close\r\nAccept: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).and_then(|()| stream.flush()).map_err(broken)?;
    read_answer(&mut stream).map_err(broken)
}

fn late(error: &io::Error, limit: Duration) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => format!("no whole answer within {limit:?}"),
        _ => error.to_string(),
    }
}

fn connect(endpoint: &Endpoint, deadline: Instant) -> Result<TcpStream, NoAnswer> {
    let mut why = "there is no address of this name".to_string();
    let addresses = (endpoint.host.as_str(), endpoint.port)
        .to_socket_addrs()
        .map_err(|e| NoAnswer::Unreachable(format!("its name is not known: {e}")))?;
    for address in addresses {
        let left = deadline.saturating_duration_since(Instant::now()).min(CONNECT_LIMIT);
        match TcpStream::connect_timeout(&address, left.max(Duration::from_millis(1))) {
            Ok(stream) => return Ok(stream),
            Err(e) => why = format!("{address}: {e}"),
        }
    }
    Err(NoAnswer::Unreachable(why))
}

/// A connection all of whose reads and writes end at one moment.
struct Timed {
    stream: TcpStream,
    deadline: Instant,
}

impl Timed {
    fn left(&self) -> io::Result<Option<Duration>> {
        match self.deadline.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
            left => Ok(Some(left)),
        }
    }
}

impl Read for Timed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(into)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

fn half(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, format!("the answer is not whole: {what}"))
}

/// Reads a whole answer of HTTP/1.1.
pub(crate) fn read_answer(stream: &mut impl Read) -> io::Result<Answer> {
    let mut input = Buffered { stream, bytes: Vec::new(), at: 0 };
    let line = input.line()?;
    let mut words = line.splitn(3, ' ');
    let status = words
        .next()
        .filter(|word| word.starts_with("HTTP/1."))
        .and_then(|_| words.next()?.parse().ok())
        .ok_or_else(|| io::Error::other(format!("the answer is not HTTP: {line:.80?}")))?;
    let reason = words.next().unwrap_or_default().trim().to_string();
    let (mut length, mut is_chunked) = (None, false);
    loop {
        let line = input.line()?;
        if line.is_empty() {
            break;
        }
        let Some((name, value)) = line.split_once(':') else { continue };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse::<usize>().ok(),
            "transfer-encoding" => is_chunked = value.to_ascii_lowercase().contains("chunked"),
            _ => {}
        }
    }
    let body = match (is_chunked, length) {
        (true, _) => {
            let mut body = Vec::new();
            loop {
                let line = input.line()?;
                let size = line.split(';').next().unwrap_or_default().trim();
                let size = usize::from_str_radix(size, 16).map_err(|_| half("a part has no length"))?;
                body.extend(input.exactly(size)?);
                if size == 0 {
                    break body;
                }
                input.line()?;
                if body.len() > LONGEST_ANSWER {
                    return Err(io::Error::other("the answer is too long"));
                }
            }
        }
        (false, Some(length)) => input.exactly(length)?,
        (false, None) => input.rest()?,
    };
    Ok(Answer { status, reason, body })
}

/// Bytes that were read, and those that were taken of them.
struct Buffered<'a, S> {
    stream: &'a mut S,
    bytes: Vec<u8>,
    at: usize,
}

impl<S: Read> Buffered<'_, S> {
    fn more(&mut self) -> io::Result<usize> {
        let mut part = [0; 16 << 10];
        let count = self.stream.read(&mut part)?;
        self.bytes.extend_from_slice(&part[..count]);
        match self.bytes.len() > LONGEST_ANSWER {
            true => Err(io::Error::other("the answer is too long")),
            false => Ok(count),
        }
    }

    fn line(&mut self) -> io::Result<String> {
        loop {
            let left = &self.bytes[self.at..];
            if let Some(end) = left.iter().position(|byte| *byte == b'\n') {
                let line = String::from_utf8_lossy(&left[..end]).trim_end_matches('\r').to_string();
                self.at += end + 1;
                return Ok(line);
            }
            if left.len() > LONGEST_HEAD {
                return Err(io::Error::other("the head of the answer is too long"));
            }
            if self.more()? == 0 {
                return Err(half("its head ends early"));
            }
        }
    }

    fn exactly(&mut self, count: usize) -> io::Result<Vec<u8>> {
        if count > LONGEST_ANSWER {
            return Err(io::Error::other("the answer is too long"));
        }
        while self.bytes.len() - self.at < count {
            if self.more()? == 0 {
                let got = self.bytes.len() - self.at;
                return Err(half(&format!("{got} bytes of {count} came")));
            }
        }
        let taken = self.bytes[self.at..self.at + count].to_vec();
        self.at += count;
        Ok(taken)
    }

    /// All until the other side has said that nothing more comes: an end without that is an error of the connection.
    fn rest(&mut self) -> io::Result<Vec<u8>> {
        while self.more()? > 0 {}
        Ok(self.bytes.split_off(self.at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::Digest;

    fn read(text: &str) -> Result<Answer, String> {
        read_answer(&mut text.as_bytes()).map_err(|e| e.to_string())
    }

    #[test]
    fn an_answer_has_its_reason_and_its_body_however_it_is_sent() {
        let reason =
            "HTTP/1.1 500 VM 101 already exists on node 'pve1'\r\nContent-Length: 13\r\n\r\n{\"data\":null}";
        let answer = read(reason).unwrap();
        assert_eq!((answer.status, answer.reason.as_str()), (500, "VM 101 already exists on node 'pve1'"));
        assert_eq!(answer.body, b"{\"data\":null}");
        let parts =
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{\"d\r\n5;x\r\nata\":\r\n0\r\n\r\n";
        assert_eq!(read(parts).unwrap().body, b"{\"data\":");
        assert_eq!(read("HTTP/1.1 200\r\n\r\nabc").unwrap().body, b"abc");
    }

    #[test]
    fn half_an_answer_is_none() {
        for (text, part) in [
            ("", "its head ends early"),
            ("HTTP/1.1 200 OK\r\nContent-Le", "its head ends early"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{\"da", "4 bytes of 10"),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nabc", "3 bytes of 9"),
            ("SSH-2.0-OpenSSH\r\n", "is not HTTP"),
        ] {
            let why = read(text).unwrap_err();
            assert!(why.contains(part), "{text:?}: {why}");
        }
    }

    /// Takes this many connections, each of which `serve` gets with its number.
    fn listening(count: usize, serve: impl Fn(usize, TcpStream) + Send + 'static) -> Endpoint {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || (0..count).for_each(|number| serve(number, listener.accept().unwrap().0)));
        Endpoint { host: "127.0.0.1".into(), port }
    }

    fn server_of(made: &rcgen::CertifiedKey<rcgen::KeyPair>) -> std::sync::Arc<rustls::ServerConfig> {
        let key = rustls::pki_types::PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_no_client_auth();
        config.with_single_cert(vec![made.cert.der().clone()], key).unwrap().into()
    }

    #[test]
    fn a_certificate_that_one_connection_refused_says_nothing_of_the_next_ones() {
        let make = || rcgen::generate_simple_self_signed(["pve1".to_string()]).unwrap();
        let (right, wrong) = (make(), make());
        let pinned = sha2::Sha256::digest(right.cert.der());
        let pinned: String = pinned.iter().map(|byte| format!("{byte:02x}")).collect();
        let tls = Tls::new(Some(crate::tls::Fingerprint::parse(&pinned).unwrap())).unwrap();
        let servers = [Some(server_of(&wrong)), None, Some(server_of(&right))];
        let endpoint = listening(3, move |number, stream| {
            // The second one ends at once, as that of an API does which is being started again.
            let Some(config) = servers[number].clone() else { return };
            let connection = rustls::ServerConnection::new(config).unwrap();
            let mut stream = StreamOwned::new(connection, stream);
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
            stream.conn.send_close_notify();
            let _ = stream.flush();
        });
        let ask = || exchange(&endpoint, &tls, "GET / HTTP/1.1\r\n", "", Duration::from_secs(10));
        assert!(matches!(ask(), Err(NoAnswer::Untrusted(_))));
        let ended = ask();
        assert!(matches!(ended, Err(NoAnswer::Unreachable(_))), "{ended:?}");
        assert_eq!(ask().unwrap().body, b"ok");
    }

    #[test]
    fn an_address_has_a_host_and_a_port() {
        let read = |text: &str| Endpoint::parse(text).map(|endpoint| endpoint.to_string());
        assert_eq!(read("https://pve1"), Ok("pve1:8006".into()));
        assert_eq!(read("https://10.0.0.1:443/"), Ok("10.0.0.1:443".into()));
        assert_eq!(read("https://[fd00::1]:8006"), Ok("[fd00::1]:8006".into()));
        for wrong in
            ["", "pve1:8006", "http://pve1:8006", "https://", "https://a:b", "https://a/b", "https://u@a"]
        {
            assert!(read(wrong).unwrap_err().contains("https://HOST:8006"), "{wrong}");
        }
    }
}
