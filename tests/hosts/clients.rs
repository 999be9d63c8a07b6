//! Clients: threads that write, read, close in the middle and connect again, each at the node of its own host; and the log of all
//! that they did, on one clock.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use loadline_base::nbd::{Request, command, get_u32, get_u64};

use super::netns::{self, Network};
use super::script::{Random, Volume};
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

/// Why there is no answer.
pub(crate) enum Failed {
    Error(u32),
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

    fn send(&mut self, command: u16, block: u64, data: &[u8]) -> Result<(), Failed> {
        self.cookie += 1;
        let offset = block * BLOCK as u64;
        let request = Request { flags: 0, command, cookie: self.cookie, offset, length: BLOCK as u32 };
        self.stream.write_all(&[&request.encode(), data].concat()).map_err(|_| Failed::Lost)
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

    fn answer(&mut self, into: &mut [u8], goes_on: &dyn Fn() -> bool) -> Result<(), Failed> {
        let mut head = [0; 16];
        self.receive(&mut head, goes_on)?;
        assert_eq!(get_u64(&head, 8), self.cookie, "the node answers what was asked");
        match get_u32(&head, 4) {
            0 => self.receive(into, goes_on),
            error => Err(Failed::Error(error)),
        }
    }

    fn write(&mut self, at: u64, block: u64, value: u64, goes_on: &dyn Fn() -> bool) -> Result<(), Failed> {
        self.send(command::WRITE, at, &content(block, value))?;
        self.answer(&mut [], goes_on)
    }

    /// The value of a block.
    pub(crate) fn read(&mut self, at: u64, block: u64, goes_on: &dyn Fn() -> bool) -> Result<u64, Failed> {
        let mut bytes = [0; BLOCK];
        self.send(command::READ, at, &[])?;
        self.answer(&mut bytes, goes_on)?;
        Ok(value(block, &bytes))
    }
}

/// Where a block of the clients is on a volume: they are spread over all of it.
pub(crate) fn place(volume: &Volume, block: u64) -> u64 {
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
    /// It waits for every answer.
    Patient,
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
    /// Starts a patient and an impatient client at each host, for each volume, and a remote one at the last host.
    pub(crate) fn start(
        network: &Arc<Network>,
        hosts: usize,
        volumes: &[Volume],
        seed: u64,
        clock: Clock,
    ) -> Clients {
        let (stop, log) = (Arc::new(AtomicBool::new(false)), Log::default());
        let mut threads = Vec::new();
        let local = (0..hosts).flat_map(|host| [(host, Manner::Patient), (host, Manner::Impatient)]);
        for (host, manner) in local.chain([(hosts - 1, Manner::Remote)]) {
            for (number, volume) in volumes.iter().enumerate() {
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
        for _ in 0..self.random.within(20, 400) {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let block = self.random.within(0, BLOCKS - 1);
            let writes = self.random.one_in(2);
            let impatient = self.manner != Manner::Patient;
            if impatient && writes && self.random.one_in(40) {
                return self.leave_at_once(connection);
            }
            // Up to three seconds: so some leave while a link is cut, and some just after.
            let patience = impatient.then(|| self.random.within(10, 3_000) * 1_000);
            let invoked = self.clock.now();
            // A client that is to stop leaves too.
            let (clock, stop) = (self.clock, self.stop.clone());
            let goes_on = || {
                !stop.load(Ordering::Relaxed)
                    && patience.is_none_or(|patience| clock.now() < invoked + patience)
            };
            let wait = patience.map_or(POLL, |patience| Duration::from_micros(patience).min(POLL));
            if connection.stream.set_read_timeout(Some(wait)).is_err() {
                return;
            }
            let at = place(&self.volume, block);
            let (action, result) = if writes {
                let value = self.value();
                (Action::Write(value), connection.write(at, block, value, &goes_on))
            } else {
                match connection.read(at, block, &goes_on) {
                    Ok(value) => (Action::Read(value), Ok(())),
                    Err(failed) => (Action::Read(0), Err(failed)),
                }
            };
            let (to, answered) = ((connection.node, connection.begun), self.clock.now());
            match result {
                Ok(()) => self.note(to, block, action, invoked, answered, Outcome::Done),
                Err(failed) => {
                    drop(connection);
                    let outcome = match failed {
                        Failed::Error(error) => Outcome::Error(error),
                        Failed::Lost => Outcome::Lost,
                        Failed::Late => Outcome::Left,
                    };
                    return self.note(to, block, action, invoked, self.clock.now(), outcome);
                }
            }
            std::thread::sleep(Duration::from_micros(self.random.within(2_000, 10_000)));
        }
    }

    /// Sends writes and closes, before any of them can be answered.
    fn leave_at_once(&mut self, mut connection: Connection) {
        let invoked = self.clock.now();
        let writes: Vec<(u64, u64)> = (0..self.random.within(1, 4))
            .map(|_| (self.random.within(0, BLOCKS - 1), self.value()))
            .collect();
        for (block, value) in &writes {
            let _ = connection.send(command::WRITE, place(&self.volume, *block), &content(*block, *value));
        }
        let to = (connection.node, connection.begun);
        drop(connection);
        let closed = self.clock.now();
        for (block, value) in writes {
            self.note(to, block, Action::Write(value), invoked, closed, Outcome::Left);
        }
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
