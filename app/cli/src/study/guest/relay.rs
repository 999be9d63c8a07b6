//! The machine's way to a volume by NBD, whichever nodes live: a socket that is in no folder, from which each connection is led to a node
//! that answers. QEMU connects again when a connection ends, and sends again what was not answered.
//!
//! A node may still carry out a request of an ended connection for some seconds (docs/how-to/attach-a-client.md). A later write of the
//! machine must not be overtaken by it. So the next connection waits for that time.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt};

/// How long a request without an answer can still be carried out after its connection has ended: the longest of the cases that
/// docs/how-to/attach-a-client.md lists.
const QUIET: Duration = Duration::from_secs(6);
/// How long a node may take to accept a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// How long a node may send nothing after it was sent something. A volume that waits for copies takes longer: then the machine's requests
/// are sent to the next node, where they wait too.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// How long a host may be silent before its connection counts as ended.
const HOST_LIMIT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(100);
const PIECE: usize = 256 << 10;

/// The nodes, and which of them is asked next.
#[derive(Debug)]
struct Nodes {
    all: Vec<SocketAddr>,
    next: usize,
    /// When a connection to a node was lost last.
    lost: Option<Instant>,
}

/// A relay, for one process. Its threads end with this process.
#[derive(Debug)]
pub(super) struct Relay {
    /// The name of the socket, in the abstract namespace of Linux.
    pub(super) name: String,
}

impl Relay {
    /// Listens for the process with this id, and leads its connections to these nodes: to the first one that answers, and after a loss to
    /// the one behind it.
    pub(super) fn start(all: Vec<SocketAddr>, client: u32) -> io::Result<Relay> {
        let mut random = [0; 8];
        std::fs::File::open("/dev/urandom")?.read_exact(&mut random)?;
        let name = format!("loadline-{}-{:016x}", std::process::id(), u64::from_ne_bytes(random));
        let address = std::os::unix::net::SocketAddr::from_abstract_name(&name)?;
        let listener = UnixListener::bind_addr(&address)?;
        let nodes = Arc::new(Mutex::new(Nodes { all, next: 0, lost: None }));
        let accept = move || {
            for stream in listener.incoming().flatten() {
                // A socket without a folder has no permissions: any user could connect.
                if !is_of(&stream, client) {
                    continue;
                }
                let nodes = Arc::clone(&nodes);
                let _ = thread::Builder::new().name("relay".into()).spawn(move || lead(stream, &nodes));
            }
        };
        thread::Builder::new().name("relay".into()).spawn(accept)?;
        Ok(Relay { name })
    }
}

fn is_of(stream: &UnixStream, process: u32) -> bool {
    nix::sys::socket::getsockopt(stream, sockopt::PeerCredentials)
        .is_ok_and(|peer| u32::try_from(peer.pid()).is_ok_and(|peer| peer == process))
}

/// Leads one connection to a node, until it ends on either side.
fn lead(client: UnixStream, nodes: &Mutex<Nodes>) {
    // One connection at a time: the next one must not be earlier at a node than the end of this one.
    let mut nodes = nodes.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(lost) = nodes.lost {
        thread::sleep((lost + QUIET).saturating_duration_since(Instant::now()));
    }
    let count = nodes.all.len();
    for _ in 0..count {
        let at = nodes.next;
        nodes.next = (at + 1) % count;
        let Ok(node) = TcpStream::connect_timeout(&nodes.all[at], CONNECT_LIMIT) else { continue };
        match pass(&client, node) {
            Ok(Ended::ByClient) => nodes.next = at,
            Ok(Ended::ByNode) | Err(_) => nodes.lost = Some(Instant::now()),
        }
        break;
    }
    let _ = client.shutdown(Shutdown::Both);
}

/// Which side ended a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    ByClient,
    ByNode,
}

/// Passes bytes in both directions until a side ends, or the node stops to answer.
fn pass(client: &UnixStream, node: TcpStream) -> io::Result<Ended> {
    node.set_nodelay(true)?;
    setsockopt(&node.as_fd(), sockopt::KeepAlive, &true)?;
    setsockopt(&node.as_fd(), sockopt::TcpKeepIdle, &1)?;
    setsockopt(&node.as_fd(), sockopt::TcpKeepInterval, &1)?;
    setsockopt(&node.as_fd(), sockopt::TcpUserTimeout, &(HOST_LIMIT.as_millis() as u32))?;
    let began = Instant::now();
    // Milliseconds from `began`, and one more, at which the node was sent something first that it has not answered; 0: nothing.
    let waits_since = AtomicU64::new(0);
    let (client_ended, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let now = || began.elapsed().as_millis() as u64 + 1;
    thread::scope(|scope| {
        scope.spawn(|| {
            let sent = copy(client, &node, || {
                let _ = waits_since.compare_exchange(0, now(), Ordering::Relaxed, Ordering::Relaxed);
            });
            if sent.is_ok() && !over.load(Ordering::Relaxed) {
                client_ended.store(true, Ordering::Relaxed);
            }
            over.store(true, Ordering::Relaxed);
            let _ = node.shutdown(Shutdown::Both);
        });
        scope.spawn(|| {
            let _ = copy(&node, client, || waits_since.store(0, Ordering::Relaxed));
            over.store(true, Ordering::Relaxed);
            let _ = client.shutdown(Shutdown::Both);
        });
        while !over.load(Ordering::Relaxed) {
            let since = waits_since.load(Ordering::Relaxed);
            if since != 0 && now() - since.min(now()) > ANSWER_LIMIT.as_millis() as u64 {
                over.store(true, Ordering::Relaxed);
                let _ = node.shutdown(Shutdown::Both);
                let _ = client.shutdown(Shutdown::Both);
            }
            thread::sleep(POLL);
        }
        let _ = node.shutdown(Shutdown::Both);
        let _ = client.shutdown(Shutdown::Both);
    });
    Ok(if client_ended.load(Ordering::Relaxed) { Ended::ByClient } else { Ended::ByNode })
}

/// Copies bytes until the end of what is read. The error is that of the side that is written to.
fn copy(mut from: impl Read, mut to: impl Write, mut passed: impl FnMut()) -> io::Result<()> {
    let mut bytes = vec![0; PIECE];
    loop {
        match from.read(&mut bytes) {
            Ok(0) => return Ok(()),
            Ok(read) => {
                to.write_all(&bytes[..read])?;
                passed();
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn dial(relay: &Relay) -> UnixStream {
        let address = std::os::unix::net::SocketAddr::from_abstract_name(&relay.name).unwrap();
        let stream = UnixStream::connect_addr(&address).unwrap();
        stream.set_read_timeout(Some(QUIET * 3)).unwrap();
        stream
    }

    /// A node that sends its name to each client, and ends at once if it says so.
    fn node(name: &'static [u8], stays: bool) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let mut open = Vec::new();
            for mut stream in listener.incoming().flatten() {
                stream.write_all(name).unwrap();
                if stays {
                    open.push(stream);
                }
            }
        });
        address
    }

    fn all_of(mut stream: &UnixStream, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn after_a_loss_the_next_node_is_asked_when_nothing_old_can_be_carried_out_any_more() {
        let relay = Relay::start(vec![node(b"1", false), node(b"2", true)], std::process::id()).unwrap();
        let first = dial(&relay);
        assert_eq!(all_of(&first, 1), b"1");
        assert_eq!((&first).read(&mut [0]).unwrap(), 0, "the node's end is the client's");
        let lost = Instant::now();
        assert_eq!(all_of(&dial(&relay), 1), b"2");
        assert!(lost.elapsed() > QUIET - Duration::from_secs(1), "{:?}", lost.elapsed());
        // A client that has ended by itself waits for nothing.
        let again = Instant::now();
        assert_eq!(all_of(&dial(&relay), 1), b"2");
        assert!(again.elapsed() < QUIET / 2, "{:?}", again.elapsed());
    }

    #[test]
    fn a_node_that_does_not_answer_a_connection_is_left_out_and_another_process_is_refused() {
        let dead = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let relay = Relay::start(vec![dead, node(b"2", true)], std::process::id()).unwrap();
        assert_eq!(all_of(&dial(&relay), 1), b"2");
        let relay = Relay::start(vec![node(b"1", true)], 1).unwrap();
        assert_eq!(dial(&relay).read(&mut [0]).unwrap(), 0);
    }
}
