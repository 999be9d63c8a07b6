//! Clients: threads that write, read, close in the middle and connect again, each at the node of its own host; and the log of all
//! that they did, on one clock.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use loadline_base::nbd::{Request, command, get_u32, get_u64};

use super::netns::{self, Network};
use super::script::{Random, Script, Volume};
use crate::nodes::client::Nbd;

pub(crate) const BLOCK: usize = 4096;
/// Blocks of each volume that clients use.
pub(crate) const BLOCKS: u64 = 24;
/// A block that holds no single write as a whole.
pub(crate) const TORN: u64 = u64::MAX;
/// How long a handshake may take until the client tries again.
const HANDSHAKE: Duration = Duration::from_secs(1);
/// After how long a client that could not connect tries again.
const AGAIN: Duration = Duration::from_millis(100);
/// How often a client that waits sees whether it is to stop.
const POLL: Duration = Duration::from_millis(200);

/// Microseconds since the run began, on the clock that all hosts share.
pub(crate) type Micros = u64;

/// A clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Clock {
        Clock(Instant::now())
    }

    pub(crate) fn now(&self) -> Micros {
        self.0.elapsed().as_micros() as Micros
    }
}

/// What an operation did. A value stands for one write of one block; 0 is a block that was never written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Write(u64),
    /// The value that was read, if the read was answered.
    Read(u64),
}

/// How an operation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It was answered, and well.
    Done,
    /// It was answered with this error of NBD.
    Error(u32),
    /// The node closed the connection.
    Lost,
    /// The client closed the connection.
    Left,
}

/// An operation of a client.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Op {
    pub(crate) client: usize,
    /// Where the client is.
    pub(crate) host: usize,
    /// The host of the node that it is connected to.
    pub(crate) node: usize,
    pub(crate) volume: usize,
    pub(crate) block: u64,
    pub(crate) action: Action,
    /// When the client began to connect.
    pub(crate) connected: Micros,
    pub(crate) invoked: Micros,
    /// When it was answered; otherwise, when the client's side of the connection was closed.
    pub(crate) ended: Micros,
    pub(crate) outcome: Outcome,
}

/// What clients append to.
pub(crate) type Log = Arc<Mutex<Vec<Op>>>;

/// A connection to a volume.
pub(crate) struct Connection {
    stream: TcpStream,
    cookie: u64,
    node: usize,
    pub(crate) begun: Micros,
}

/// Requests without an answer, by their cookies: the block of each, and what is done with it.
type Open = BTreeMap<u64, (u64, Action)>;

/// Why there is no answer.
enum Failed {
    /// The node closed the connection.
    Lost,
    /// The time is over.
    Late,
}

impl Connection {
    /// Connects to the node of a host, from the network that the calling thread is in.
    pub(crate) fn open(node: usize, volume: &Volume, clock: Clock) -> io::Result<Connection> {
        let begun = clock.now();
        let Nbd(stream) = Nbd::connect_within(netns::address(node), &volume.name, HANDSHAKE)?;
        Ok(Connection { stream, cookie: 0, node, begun })
    }

    /// Sends requests, each for a block at its place. They are open then, under their cookies.
    fn send(&mut self, volume: &Volume, asked: &[(u64, Action)], open: &mut Open) -> Result<(), Failed> {
        let mut bytes = Vec::new();
        for (block, action) in asked {
            self.cookie += 1;
            let (command, data) = match action {
                Action::Write(value) => (command::WRITE, Some(content(*block, *value))),
                Action::Read(_) => (command::READ, None),
            };
            let (cookie, offset) = (self.cookie, place(volume, *block) * BLOCK as u64);
            bytes.extend(Request { flags: 0, command, cookie, offset, length: BLOCK as u32 }.encode());
            bytes.extend(data.iter().flatten());
            open.insert(cookie, (*block, *action));
        }
        self.stream.write_all(&bytes).map_err(|_| Failed::Lost)
    }

    /// Reads all of it, if that comes while `goes_on`.
    fn receive(&mut self, into: &mut [u8], goes_on: &dyn Fn() -> bool) -> Result<(), Failed> {
        let mut got = 0;
        while got < into.len() {
            match self.stream.read(&mut into[got..]) {
                Ok(0) => return Err(Failed::Lost),
                Ok(bytes) => got += bytes,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if !goes_on() {
                        return Err(Failed::Late);
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(Failed::Lost),
            }
        }
        Ok(())
    }

    /// Receives the answer to a request that is open, and closes that.
    fn answer(
        &mut self,
        open: &mut Open,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<(u64, Action, Outcome), Failed> {
        let mut head = [0; 16];
        self.receive(&mut head, goes_on)?;
        let cookie = get_u64(&head, 8);
        let (block, mut action) = *open.get(&cookie).expect("the node answers what was asked");
        let outcome = match get_u32(&head, 4) {
            0 => Outcome::Done,
            error => Outcome::Error(error),
        };
        if let (Action::Read(read), Outcome::Done) = (&mut action, outcome) {
            let mut bytes = [0; BLOCK];
            self.receive(&mut bytes, goes_on)?;
            *read = value(block, &bytes);
        }
        open.remove(&cookie);
        Ok((block, action, outcome))
    }

    /// The value of a block, if it is read without an error.
    pub(crate) fn read(&mut self, volume: &Volume, block: u64, goes_on: &dyn Fn() -> bool) -> Option<u64> {
        let mut open = Open::new();
        self.send(volume, &[(block, Action::Read(0))], &mut open).ok()?;
        match self.answer(&mut open, goes_on) {
            Ok((_, Action::Read(value), Outcome::Done)) => Some(value),
            _ => None,
        }
    }
}

/// Where a block of the clients is on a volume: they are spread over all of it.
fn place(volume: &Volume, block: u64) -> u64 {
    block * ((volume.mib as u64 * 256 - 1) / BLOCKS) + block % 3
}

fn content(block: u64, value: u64) -> [u8; BLOCK] {
    let mut bytes = [0; BLOCK];
    for pair in bytes.chunks_exact_mut(16) {
        pair[..8].copy_from_slice(&block.to_le_bytes());
        pair[8..].copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

fn value(block: u64, bytes: &[u8; BLOCK]) -> u64 {
    if bytes.iter().all(|byte| *byte == 0) {
        return 0;
    }
    let value = u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes"));
    if *bytes == content(block, value) { value } else { TORN }
}

/// How a client behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// It waits for every answer, and leaves after some requests.
    Patient,
    /// It waits for every answer, and never leaves.
    Steady,
    /// It often leaves before the answer comes.
    Impatient,
    /// It does too, and connects to any node but that of its own host.
    Remote,
}

/// All clients of a script.
pub(crate) struct Clients {
    threads: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    pub(crate) log: Log,
}

impl Clients {
    /// Starts a patient and an impatient client at each host, for each volume, and a remote one at the last host; or two steady ones at
    /// each host, if the script wants that.
    pub(crate) fn start(network: &Arc<Network>, script: &Script, clock: Clock) -> Clients {
        let (hosts, seed) = (script.nodes, script.seed);
        let (stop, log) = (Arc::new(AtomicBool::new(false)), Log::default());
        let mut threads = Vec::new();
        let local = match script.steady {
            true => [Manner::Steady, Manner::Steady],
            false => [Manner::Patient, Manner::Impatient],
        };
        let remote = (!script.steady).then_some((hosts - 1, Manner::Remote));
        for (host, manner) in (0..hosts).flat_map(|host| local.map(|manner| (host, manner))).chain(remote) {
            for (number, volume) in script.volumes.iter().enumerate() {
                let id = threads.len();
                let mut client = Client {
                    id,
                    host,
                    hosts,
                    volume: volume.clone(),
                    number,
                    manner,
                    random: Random::new(seed ^ ((id as u64 + 1) << 32)),
                    writes: 0,
                    clock,
                    stop: stop.clone(),
                    log: log.clone(),
                };
                let network = network.clone();
                threads.push(std::thread::spawn(move || {
                    network.enter(host).expect("the namespace is there, and this is root");
                    client.run();
                }));
            }
        }
        Clients { threads, stop, log }
    }

    /// Ends them: operations that have no answer are left.
    pub(crate) fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().expect("clients do not panic");
        }
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

struct Client {
    id: usize,
    host: usize,
    hosts: usize,
    volume: Volume,
    number: usize,
    manner: Manner,
    random: Random,
    writes: u64,
    clock: Clock,
    stop: Arc<AtomicBool>,
    log: Log,
}

impl Client {
    fn run(&mut self) {
        while !self.stop.load(Ordering::Relaxed) {
            let node = match self.manner {
                Manner::Remote => self.random.within(0, self.hosts as u64 - 2) as usize,
                _ => self.host,
            };
            match Connection::open(node, &self.volume, self.clock) {
                Ok(connection) => self.serve(connection),
                Err(_) => std::thread::sleep(AGAIN),
            }
        }
    }

    /// Uses a connection until it ends.
    fn serve(&mut self, mut connection: Connection) {
        let exchanges = match self.manner {
            Manner::Steady => u64::MAX,
            _ => self.random.within(20, 400),
        };
        for _ in 0..exchanges {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let writes = self.random.one_in(2);
            let impatient = matches!(self.manner, Manner::Impatient | Manner::Remote);
            // Several of those that leave may be on their way when they do.
            let requests = if impatient && writes { self.random.within(1, 4) } else { 1 };
            let action = |client: &mut Client| match writes {
                true => Action::Write(client.value()),
                false => Action::Read(0),
            };
            let asked: Vec<(u64, Action)> =
                (0..requests).map(|_| (self.random.within(0, BLOCKS - 1), action(self))).collect();
            // Up to three seconds: so some leave while a link is cut, and some just after. Some leave before any answer can come.
            let patience = match (impatient, writes && self.random.one_in(40)) {
                (true, true) => Some(0),
                (true, false) => Some(self.random.within(10, 3_000) * 1_000),
                (false, _) => None,
            };
            match self.exchange(connection, &asked, patience) {
                Some(goes_on) => connection = goes_on,
                None => return,
            }
            std::thread::sleep(Duration::from_micros(self.random.within(2_000, 10_000)));
        }
    }

    /// Sends requests, waits for their answers for so long, or without end, and takes down how each ended. The connection, if it goes
    /// on.
    fn exchange(
        &mut self,
        mut connection: Connection,
        asked: &[(u64, Action)],
        patience: Option<Micros>,
    ) -> Option<Connection> {
        let invoked = self.clock.now();
        // A client that is to stop leaves too.
        let goes_on = || {
            !self.stop.load(Ordering::Relaxed)
                && patience.is_none_or(|patience| self.clock.now() < invoked + patience)
        };
        let wait = patience.map_or(POLL, |patience| Duration::from_micros(patience.max(1)).min(POLL));
        connection.stream.set_read_timeout(Some(wait)).ok()?;
        let (mut open, to) = (Open::new(), (connection.node, connection.begun));
        let mut result = connection.send(&self.volume, asked, &mut open);
        if patience == Some(0) {
            result = Err(Failed::Late);
        }
        while result.is_ok() && !open.is_empty() {
            result = match connection.answer(&mut open, &goes_on) {
                Ok((block, action, outcome)) => {
                    self.note(to, block, action, invoked, self.clock.now(), outcome);
                    if outcome == Outcome::Done { Ok(()) } else { Err(Failed::Late) }
                }
                Err(failed) => Err(failed),
            };
        }
        let outcome = match result {
            Ok(()) => return Some(connection),
            Err(Failed::Lost) => Outcome::Lost,
            Err(Failed::Late) => Outcome::Left,
        };
        drop(connection);
        let closed = self.clock.now();
        for (block, action) in open.into_values() {
            self.note(to, block, action, invoked, closed, outcome);
        }
        None
    }

    /// A value that no other write has.
    fn value(&mut self) -> u64 {
        self.writes += 1;
        (self.id as u64 + 1) << 32 | self.writes
    }

    fn note(
        &self,
        (node, connected): (usize, Micros),
        block: u64,
        action: Action,
        invoked: Micros,
        ended: Micros,
        outcome: Outcome,
    ) {
        let (client, host, volume) = (self.id, self.host, self.number);
        let op = Op { client, host, node, volume, block, action, connected, invoked, ended, outcome };
        self.log.lock().expect("no client panics with it").push(op);
    }
}
