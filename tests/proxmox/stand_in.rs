//! A stand-in for the API of Proxmox VE: HTTPS with a certificate of its own, one answer for each connection.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

use super::cluster::Cluster;
use super::place::Place;

/// What is sent.
pub(crate) enum Reply {
    /// A status, its reason, and a body.
    Whole(u16, String, String),
    /// The head, and half of the body that it promises.
    Half(String),
    /// Nothing, for so long.
    Slow(Duration),
}

impl Reply {
    pub(crate) fn data(answer: &Value) -> Reply {
        Reply::Whole(200, "OK".into(), answer.to_string())
    }

    pub(crate) fn error(status: u16, reason: &str) -> Reply {
        Reply::Whole(status, reason.into(), json!({"data": null}).to_string())
    }
}

/// A request.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) parameters: BTreeMap<String, String>,
    pub(crate) authorization: String,
}

/// The API of a cluster. Dropping it ends it, and its machines.
pub(crate) struct StandIn {
    pub(crate) address: SocketAddr,
    /// The SHA-256 of its certificate, in hexadecimal digits.
    pub(crate) fingerprint: String,
    cluster: Arc<Mutex<Cluster>>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl StandIn {
    /// Starts it on the controller's machine of these hosts.
    pub(crate) fn start(place: &Arc<Place>) -> StandIn {
        let made = rcgen::generate_simple_self_signed(["pve1".to_string()]).unwrap();
        let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        let cluster = Arc::new(Mutex::new(Cluster::new(place.clone())));
        let ends = Arc::<AtomicBool>::default();
        let (send, bound) = std::sync::mpsc::channel();
        let (serving, ending, hosts, config) =
            (cluster.clone(), ends.clone(), place.clone(), Arc::new(config));
        let thread = std::thread::spawn(move || {
            hosts.network.enter(0).unwrap();
            let listener = TcpListener::bind((crate::netns::address(0), 0)).unwrap();
            send.send(listener.local_addr().unwrap()).unwrap();
            listener.set_nonblocking(true).unwrap();
            while !ending.load(Ordering::Relaxed) {
                let Ok((stream, _)) = listener.accept() else {
                    std::thread::sleep(Duration::from_millis(5));
                    continue;
                };
                let (cluster, config, ending) = (serving.clone(), config.clone(), ending.clone());
                std::thread::spawn(move || serve(stream, config, &cluster, &ending));
            }
        });
        StandIn {
            address: bound.recv().unwrap(),
            fingerprint: sha256(made.cert.der()),
            cluster,
            ends,
            thread: Some(thread),
        }
    }

    /// The cluster behind it.
    pub(crate) fn cluster(&self) -> MutexGuard<'_, Cluster> {
        self.cluster.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
        self.cluster().end();
    }
}

fn sha256(bytes: &[u8]) -> String {
    let mut child =
        Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("coreutils");
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    let output = child.wait_with_output().unwrap();
    String::from_utf8(output.stdout).unwrap().split_whitespace().next().unwrap().into()
}

fn serve(stream: TcpStream, config: Arc<ServerConfig>, cluster: &Mutex<Cluster>, ends: &AtomicBool) {
    let _ = stream.set_read_timeout(Some(Duration::from_secs(20)));
    let mut stream = StreamOwned::new(ServerConnection::new(config).unwrap(), stream);
    let Some(request) = read(&mut stream) else { return };
    let reply = cluster.lock().unwrap_or_else(PoisonError::into_inner).answer(request);
    let (status, reason, body, sent) = match reply {
        Reply::Slow(time) => {
            let until = Instant::now() + time;
            while Instant::now() < until && !ends.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(20));
            }
            return;
        }
        Reply::Half(body) => (200, "OK".to_string(), body.clone(), body.len() / 2),
        Reply::Whole(status, reason, body) => (status, reason, body.clone(), body.len()),
    };
    let head = format!(
        "HTTP/1.1 {status} {reason}\r\nCache-Control: max-age=0\r\nConnection: close\r\nServer: pve-api-daemon/3.0\r\n\
         Content-Length: {}\r\nContent-Type: application/json;charset=UTF-8\r\n\r\n",
        body.len()
    );
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body.as_bytes()[..sent]));
    stream.conn.send_close_notify();
    let _ = stream.flush();
}

fn read(stream: &mut impl Read) -> Option<Request> {
    let mut bytes = Vec::new();
    let mut part = [0; 8192];
    let (head, begin) = loop {
        let count = stream.read(&mut part).ok().filter(|count| *count > 0)?;
        bytes.extend_from_slice(&part[..count]);
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break (String::from_utf8(bytes[..end].to_vec()).ok()?, end + 4);
        }
    };
    let header = |name: &str| {
        head.lines()
            .filter_map(|line| line.split_once(": "))
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    };
    let length: usize = header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    while bytes.len() < begin + length {
        let count = stream.read(&mut part).ok().filter(|count| *count > 0)?;
        bytes.extend_from_slice(&part[..count]);
    }
    let mut words = head.lines().next()?.split(' ');
    let (method, target) = (words.next()?, words.next()?);
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let body = String::from_utf8(bytes[begin..].to_vec()).ok()?;
    let pairs = [query, body.as_str()].join("&");
    let pairs = pairs.split('&').filter_map(|pair| pair.split_once('='));
    Some(Request {
        method: method.into(),
        path: path.strip_prefix("/api2/json")?.split('/').map(decoded).collect::<Vec<_>>().join("/"),
        parameters: pairs.map(|(name, value)| (decoded(name), decoded(value))).collect(),
        authorization: header("authorization").unwrap_or_default().into(),
    })
}

/// What `%XX` and `+` stand for.
pub(crate) fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut out, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        match bytes[at] {
            b'%' => {
                out.push(u8::from_str_radix(&text[at + 1..at + 3], 16).unwrap());
                at += 2;
            }
            b'+' => out.push(b' '),
            other => out.push(other),
        }
        at += 1;
    }
    String::from_utf8(out).unwrap()
}
