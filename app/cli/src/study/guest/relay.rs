//! The machine's way to a volume by NBD, whichever nodes live: a socket that is in no folder, from which each connection is led to a node
//! that answers. QEMU connects again when a connection ends, and sends again what was not answered.
//!
//! A node may still carry out a request of an ended connection for some seconds (docs/how-to/attach-a-client.md). A later write of the
//! machine must not be overtaken by it. So the next connection waits for that time. And the volume may be another one's by then: what the
//! machine sends again would be written beside the new client. So each connection after the first asks whether the machine may still use it.

mod answers;

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt};

use answers::{Answers, Limits, Nonsense};

/// How long a request without an answer can still be carried out after its connection has ended: the longest of the cases that
/// docs/how-to/attach-a-client.md lists.
const QUIET: Duration = Duration::from_secs(6);
/// How long a node may take to accept a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// How long a node may take. A volume that waits for copies takes longer: then the machine's requests are sent to the next node, where they
/// wait too.
const LIMITS: Limits = Limits { any: Duration::from_secs(10), each: Duration::from_secs(60) };
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
    /// A connection was led to a node.
    has_led: bool,
}

/// Whether the machine may still use the volume; `None`: that is not known now.
pub(super) type MayUse = dyn Fn() -> Option<bool> + Send + Sync;

/// A relay, for one process. Its threads end with this process.
#[derive(Debug)]
pub(super) struct Relay {
    /// The name of the socket, in the abstract namespace of Linux.
    pub(super) name: String,
}

impl Relay {
    /// Listens for the process with this id, and leads its connections to these nodes: to the first one that answers, and after a loss to
    /// the one behind it.
    pub(super) fn start(all: Vec<SocketAddr>, client: u32, may_use: Arc<MayUse>) -> io::Result<Relay> {
        Relay::start_with(all, client, may_use, LIMITS)
    }

    fn start_with(
        all: Vec<SocketAddr>,
        client: u32,
        may_use: Arc<MayUse>,
        limits: Limits,
    ) -> io::Result<Relay> {
        let mut random = [0; 8];
        std::fs::File::open("/dev/urandom")?.read_exact(&mut random)?;
        let name = format!("loadline-{}-{:016x}", std::process::id(), u64::from_ne_bytes(random));
        let address = std::os::unix::net::SocketAddr::from_abstract_name(&name)?;
        let listener = UnixListener::bind_addr(&address)?;
        let nodes = Arc::new(Mutex::new(Nodes { all, next: 0, lost: None, has_led: false }));
        let accept = move || {
            for stream in listener.incoming().flatten() {
                // A socket without a folder has no permissions: any user could connect.
                if !is_of(&stream, client) {
                    continue;
                }
                let (nodes, may_use) = (Arc::clone(&nodes), Arc::clone(&may_use));
                let work = move || lead(stream, &nodes, &*may_use, limits);
                let _ = thread::Builder::new().name("relay".into()).spawn(work);
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
fn lead(client: UnixStream, nodes: &Mutex<Nodes>, may_use: &MayUse, limits: Limits) {
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
        // As late as it can be asked. The client tries again if that is not known.
        if nodes.has_led && may_use() != Some(true) {
            break;
        }
        nodes.has_led = true;
        match pass(&client, node, limits) {
            Ok(Ended::ByClient) => nodes.next = at,
            Ok(Ended::BeforeRequests) => {}
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
    /// By the node, before it was sent a request: it carries nothing out afterwards.
    BeforeRequests,
}

/// Passes bytes in both directions until a side ends, or the node does not answer in time.
fn pass(client: &UnixStream, node: TcpStream, limits: Limits) -> io::Result<Ended> {
    node.set_nodelay(true)?;
    setsockopt(&node.as_fd(), sockopt::KeepAlive, &true)?;
    setsockopt(&node.as_fd(), sockopt::TcpKeepIdle, &1)?;
    setsockopt(&node.as_fd(), sockopt::TcpKeepInterval, &1)?;
    setsockopt(&node.as_fd(), sockopt::TcpUserTimeout, &(HOST_LIMIT.as_millis() as u32))?;
    let answers = Mutex::new(Answers::of_new(Instant::now()));
    let answers = || answers.lock().unwrap_or_else(PoisonError::into_inner);
    let (client_ended, over) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let sent = copy(client, &node, |bytes| answers().sends(bytes, Instant::now()));
            if sent.is_ok() && !over.load(Ordering::Relaxed) {
                client_ended.store(true, Ordering::Relaxed);
            }
            over.store(true, Ordering::Relaxed);
            let _ = node.shutdown(Shutdown::Both);
        });
        scope.spawn(|| {
            let _ = copy(&node, client, |bytes| answers().receives(bytes, Instant::now()));
            over.store(true, Ordering::Relaxed);
            let _ = client.shutdown(Shutdown::Both);
        });
        while !over.load(Ordering::Relaxed) {
            if answers().are_late(Instant::now(), limits) {
                over.store(true, Ordering::Relaxed);
            } else {
                thread::sleep(POLL);
            }
        }
        let _ = node.shutdown(Shutdown::Both);
        let _ = client.shutdown(Shutdown::Both);
    });
    Ok(match client_ended.load(Ordering::Relaxed) {
        true => Ended::ByClient,
        false if answers().have_requests() => Ended::ByNode,
        false => Ended::BeforeRequests,
    })
}

/// Copies bytes until the end of what is read. `passes` gets them before they are written. The error is that of the side that is written to,
/// or that the bytes are not NBD.
fn copy(
    mut from: impl Read,
    mut to: impl Write,
    mut passes: impl FnMut(&[u8]) -> Result<(), Nonsense>,
) -> io::Result<()> {
    let mut bytes = vec![0; PIECE];
    loop {
        match from.read(&mut bytes) {
            Ok(0) => return Ok(()),
            Ok(read) => {
                passes(&bytes[..read]).map_err(|Nonsense| io::ErrorKind::InvalidData)?;
                to.write_all(&bytes[..read])?;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loadline_base::nbd::{INIT_MAGIC, OPTION_MAGIC, Request, command, simple_reply};
    use std::net::TcpListener;

    const SHORT: Limits = Limits { any: Duration::from_millis(600), each: Duration::from_secs(3) };

    fn start(nodes: Vec<SocketAddr>) -> Relay {
        Relay::start_with(nodes, std::process::id(), Arc::new(|| Some(true)), SHORT).unwrap()
    }

    fn dial(relay: &Relay) -> UnixStream {
        let address = std::os::unix::net::SocketAddr::from_abstract_name(&relay.name).unwrap();
        let stream = UnixStream::connect_addr(&address).unwrap();
        stream.set_read_timeout(Some(QUIET * 3)).unwrap();
        stream
    }

    /// A node that treats each connection so, on a thread of its own, and closes it after that.
    fn node(treats: fn(TcpStream) -> io::Result<()>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                thread::spawn(move || treats(stream));
            }
        });
        address
    }

    /// What a server says first, with this number as its flags, and the client's answer.
    fn greet(mut stream: &TcpStream, number: u8) -> io::Result<()> {
        stream.write_all(
            &[&INIT_MAGIC.to_be_bytes()[..], &OPTION_MAGIC.to_be_bytes(), &[0, number]].concat(),
        )?;
        stream.read_exact(&mut [0; 4])
    }

    /// The number of the node that has greeted a client.
    fn greeted(mut stream: &UnixStream) -> u8 {
        let mut bytes = [0; 18];
        stream.read_exact(&mut bytes).unwrap();
        stream.write_all(&[0; 4]).unwrap();
        bytes[17]
    }

    fn request(mut stream: &UnixStream) {
        let request = Request { flags: 0, command: command::FLUSH, cookie: 7, offset: 0, length: 0 };
        stream.write_all(&request.encode()).unwrap();
    }

    fn answers_all(mut stream: TcpStream) -> io::Result<()> {
        greet(&stream, 2)?;
        loop {
            let mut head = [0; Request::BYTES];
            stream.read_exact(&mut head)?;
            let cookie = Request::decode(&head).expect("a request").cookie;
            stream.write_all(&simple_reply(0, cookie))?;
        }
    }

    fn is_answered(mut stream: &UnixStream) {
        request(stream);
        let mut reply = [0; 16];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply, simple_reply(0, 7));
    }

    #[test]
    fn after_a_loss_the_next_node_is_asked_when_nothing_old_can_be_carried_out_any_more() {
        let ends = node(|mut stream| {
            greet(&stream, 1)?;
            stream.read_exact(&mut [0; Request::BYTES])
        });
        let relay = start(vec![ends, node(answers_all)]);
        let first = dial(&relay);
        assert_eq!(greeted(&first), 1);
        request(&first);
        assert_eq!((&first).read(&mut [0]).unwrap(), 0, "the node's end is the client's");
        let lost = Instant::now();
        let second = dial(&relay);
        assert_eq!(greeted(&second), 2);
        assert!(lost.elapsed() > QUIET - Duration::from_secs(1), "{:?}", lost.elapsed());
        is_answered(&second);
        drop(second);
        // A client that has ended by itself waits for nothing.
        let again = Instant::now();
        assert_eq!(greeted(&dial(&relay)), 2);
        assert!(again.elapsed() < QUIET / 2, "{:?}", again.elapsed());
    }

    #[test]
    fn a_node_that_accepts_and_says_nothing_is_given_up_and_the_next_one_is_asked_at_once() {
        let relay = start(vec![node(|mut stream| stream.read_exact(&mut [0])), node(answers_all)]);
        let begun = Instant::now();
        assert_eq!(dial(&relay).read(&mut [0]).unwrap(), 0, "its connection ends");
        let second = dial(&relay);
        assert_eq!(greeted(&second), 2);
        is_answered(&second);
        assert!(begun.elapsed() < QUIET / 2, "it was sent no request: {:?}", begun.elapsed());
        // One that answers, and has nothing to answer, stays.
        thread::sleep(SHORT.any * 2);
        is_answered(&second);
    }

    #[test]
    fn a_node_that_sends_a_byte_now_and_then_is_given_up() {
        fn dribble(mut stream: TcpStream, bytes: &[u8]) -> io::Result<()> {
            for byte in bytes {
                stream.write_all(&[*byte])?;
                thread::sleep(SHORT.any / 4);
            }
            Ok(())
        }
        let greets_slowly = node(|stream| dribble(stream, &INIT_MAGIC.to_be_bytes()));
        let answers_slowly = node(|mut stream| {
            greet(&stream, 1)?;
            stream.read_exact(&mut [0; Request::BYTES])?;
            dribble(stream, &simple_reply(0, 7))
        });
        let relay = start(vec![greets_slowly, answers_slowly, node(answers_all)]);
        let ends = |mut stream: &UnixStream| {
            let begun = Instant::now();
            while stream.read(&mut [0]).unwrap() > 0 {}
            assert!(begun.elapsed() < SHORT.any * 2, "{:?}", begun.elapsed());
        };
        ends(&dial(&relay));
        let second = dial(&relay);
        assert_eq!(greeted(&second), 1);
        request(&second);
        ends(&second);
        assert_eq!(greeted(&dial(&relay)), 2);
    }

    #[test]
    fn a_machine_connects_again_only_while_it_may_use_the_volume() {
        let may_use = Arc::new(Mutex::new(Some(true)));
        let asked = Arc::clone(&may_use);
        let nodes = vec![node(answers_all)];
        let relay =
            Relay::start_with(nodes, std::process::id(), Arc::new(move || *asked.lock().unwrap()), SHORT)
                .unwrap();
        for (now, is_led) in [(Some(true), true), (None, false), (Some(true), true), (Some(false), false)] {
            *may_use.lock().unwrap() = now;
            let mut stream = dial(&relay);
            match is_led {
                true => assert_eq!(greeted(&stream), 2),
                false => assert_eq!(stream.read(&mut [0]).unwrap(), 0, "{now:?}"),
            }
        }
    }

    #[test]
    fn a_node_that_does_not_accept_is_left_out_and_another_process_is_refused() {
        let dead = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let relay = start(vec![dead, node(answers_all)]);
        assert_eq!(greeted(&dial(&relay)), 2);
        let relay = Relay::start(vec![node(answers_all)], 1, Arc::new(|| Some(true))).unwrap();
        assert_eq!(dial(&relay).read(&mut [0]).unwrap(), 0);
    }
}
