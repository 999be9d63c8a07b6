//! A client of NBD that writes, remembers what was acknowledged, connects again, and reads it back.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use loadline_base::nbd::{OPTION_MAGIC, Request, command, get_u32, get_u64, handshake, option, reply};

const BLOCK: usize = 4096;
/// Blocks that each writer has for itself.
const OWN: u64 = 256;
/// No two runs write the same.
static RUNS: AtomicU64 = AtomicU64::new(1);

/// A connection that has chosen a volume.
pub(crate) struct Nbd<S = TcpStream>(pub(crate) S);

impl Nbd {
    pub(crate) fn connect(address: Ipv4Addr, volume: &str) -> io::Result<Nbd> {
        Nbd::connect_within(address, volume, Duration::from_secs(4))
    }

    /// The same; each answer of the handshake may take so long.
    pub(crate) fn connect_within(address: Ipv4Addr, volume: &str, limit: Duration) -> io::Result<Nbd> {
        let address = SocketAddr::from((address, 10809));
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(limit))?;
        greet(&mut stream)?;
        Nbd::choose(stream, volume)
    }
}

/// Reads what the server says first, and answers it.
pub(super) fn greet(stream: &mut TcpStream) -> io::Result<()> {
    stream.read_exact(&mut [0; 18])?;
    stream.write_all(&u32::from(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES).to_be_bytes())
}

impl<S: Read + Write> Nbd<S> {
    /// Chooses a volume, by a connection whose greeting is done.
    pub(super) fn choose(mut stream: S, volume: &str) -> io::Result<Nbd<S>> {
        let mut asked = OPTION_MAGIC.to_be_bytes().to_vec();
        asked.extend(option::GO.to_be_bytes());
        asked.extend((volume.len() as u32 + 6).to_be_bytes());
        asked.extend((volume.len() as u32).to_be_bytes());
        asked.extend(volume.as_bytes());
        asked.extend([0; 2]);
        stream.write_all(&asked)?;
        loop {
            let mut head = [0; 20];
            stream.read_exact(&mut head)?;
            let mut data = vec![0; get_u32(&head, 16) as usize];
            stream.read_exact(&mut data)?;
            match get_u32(&head, 12) {
                reply::ACK => return Ok(Nbd(stream)),
                reply::INFO => {}
                _ => return Err(io::Error::other(String::from_utf8_lossy(&data).into_owned())),
            }
        }
    }

    fn ask(&mut self, command: u16, block: u64, data: &[u8], into: &mut [u8]) -> io::Result<()> {
        let length = data.len().max(into.len()) as u32;
        let request = Request { flags: 0, command, cookie: block, offset: block * BLOCK as u64, length };
        self.0.write_all(&[&request.encode(), data].concat())?;
        let mut head = [0; 16];
        self.0.read_exact(&mut head)?;
        assert_eq!(get_u64(&head, 8), block, "it answers what was asked");
        match get_u32(&head, 4) {
            0 => self.0.read_exact(into),
            error => Err(io::Error::other(format!("error {error}"))),
        }
    }

    /// Writes a block full of this byte.
    pub(crate) fn write(&mut self, block: u64, byte: u8) -> io::Result<()> {
        self.ask(command::WRITE, block, &[byte; BLOCK], &mut [])
    }

    /// The byte of which a block is full.
    pub(crate) fn read(&mut self, block: u64) -> io::Result<u8> {
        let mut bytes = [0; BLOCK];
        self.ask(command::READ, block, &[], &mut bytes)?;
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a block is written as a whole");
        Ok(bytes[0])
    }
}

impl Nbd {
    /// Sends a write, and does not wait for its answer.
    pub(crate) fn send_write(&mut self, block: u64, byte: u8) {
        let (offset, length) = (block * BLOCK as u64, BLOCK as u32);
        let request = Request { flags: 0, command: command::WRITE, cookie: block, offset, length };
        self.0.write_all(&[&request.encode()[..], &[byte; BLOCK]].concat()).expect("it has room");
    }

    /// Announces its end.
    pub(crate) fn leave(mut self) {
        let request = Request { flags: 0, command: command::DISC, cookie: 0, offset: 0, length: 0 };
        self.0.write_all(&request.encode()).expect("it has room");
    }

    /// How long an answer may take.
    pub(crate) fn wait_for(&self, limit: Duration) {
        self.0.set_read_timeout(Some(limit)).expect("it may be so long");
    }
}

/// Writes so many MiB at once, and reads the last block of them back. What became of the write; that the connection goes on is
/// checked.
pub(crate) fn write_at_once(address: Ipv4Addr, volume: &str, mib: usize) -> io::Result<()> {
    let mut nbd = Nbd::connect(address, volume)?;
    let written = nbd.ask(command::WRITE, 0, &vec![9; mib << 20], &mut []);
    let mut block = [0; BLOCK];
    nbd.ask(command::READ, (mib as u64 * 256) - 1, &[], &mut block).expect("it serves on");
    assert_eq!(block, [if written.is_ok() { 9 } else { 0 }; BLOCK], "it is written, or it is not");
    written
}

/// Connects and reads a block. How long that took.
pub(crate) fn read_once(address: Ipv4Addr, volume: &str) -> io::Result<Duration> {
    let begun = Instant::now();
    Nbd::connect(address, volume)?.ask(command::READ, 0, &[], &mut [0; BLOCK])?;
    Ok(begun.elapsed())
}

/// So many connections that say nothing.
pub(crate) fn silent(addresses: &[Ipv4Addr], count: usize) -> Vec<TcpStream> {
    // The usual limit is 1024, and other tests run beside this one.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).expect("there is a limit");
    setrlimit(Resource::RLIMIT_NOFILE, most, most).expect("it may be raised so far");
    let connect = |number: usize| TcpStream::connect((addresses[number % addresses.len()], 10809));
    (0..count).map(|number| connect(number).expect("the door is open")).collect()
}

/// Sends to every listener bytes that no client or node sends.
pub(crate) fn misbehave(addresses: &[Ipv4Addr], volume: &str) {
    for address in addresses {
        // Something else, at the doors of clients, nodes and programs.
        for port in [10809, 7401, 7400] {
            let mut stream = TcpStream::connect((*address, port)).expect("the door is open");
            let _ = stream.write_all(&[0xa5; 10_000]);
        }
        // A node of another cluster, and one that goes on with garbage.
        let mut preamble = [0; 40];
        preamble[..8].copy_from_slice(b"LLpeer\0\x01");
        let mut stream = TcpStream::connect((*address, 7401)).expect("the door is open");
        let _ = stream.write_all(&[&preamble[..], &[7; 1000]].concat());
        // Requests that lie: too long, half, of nothing, behind the end, of no kind; and data that does not come.
        let offset = u64::MAX - 4096;
        let lies = [
            Request { flags: 0, command: command::WRITE, cookie: 1, offset: 0, length: u32::MAX },
            Request { flags: 0, command: command::READ, cookie: 2, offset: 0, length: u32::MAX },
            Request { flags: 0, command: command::READ, cookie: 3, offset, length: 8192 },
            Request { flags: 0xffff, command: 77, cookie: 4, offset: 1, length: 0 },
            Request { flags: 0, command: command::TRIM, cookie: 5, offset: 0, length: u32::MAX },
            Request { flags: 0, command: command::WRITE, cookie: 6, offset: 12 << 20, length: 1 << 20 },
        ];
        for lie in lies {
            let mut nbd = connect(&[*address], volume);
            let _ = nbd.0.write_all(&lie.encode());
            let _ = nbd.0.write_all(&[1; 100]);
        }
        let mut nbd = connect(&[*address], volume);
        let _ = nbd.0.write_all(&lies[1].encode()[..20]);
        let _ = nbd.0.write_all(&[0xff; 500]);
        // One that asks for much and takes none of it.
        let mut nbd = connect(&[*address], volume);
        let read = Request { flags: 0, command: command::READ, cookie: 7, offset: 0, length: 8 << 20 };
        let many: Vec<u8> = (0..100).flat_map(|_| read.encode()).collect();
        let _ = nbd.0.write_all(&many);
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// A client that asks for more than it may, and takes none of it; it goes on asking.
pub(crate) fn one_that_does_not_read(addresses: &[Ipv4Addr], volume: &str) -> TcpStream {
    let mut nbd = connect(addresses, volume);
    let read = Request { flags: 0, command: command::READ, cookie: 7, offset: 0, length: 1 << 20 };
    let many = read.encode().repeat(1_000_000);
    // As many as the sockets take, beyond what the server takes.
    nbd.0.set_write_timeout(Some(Duration::from_millis(300))).expect("it may be so long");
    nbd.0.write_all(&many).expect_err("it does not take all of them");
    nbd.0
}

/// So many connections with as many flushes as each may have, all behind a write that takes longer than to send them.
pub(crate) fn many_behind_one(addresses: &[Ipv4Addr], volume: &str, connections: usize) {
    let mut all: Vec<Nbd> = (0..connections).map(|_| connect(addresses, volume)).collect();
    let mut large = connect(addresses, volume);
    // Its first and last blocks are not whole, so that it has more blocks than are written at once.
    let length = (32 << 20) - 1024;
    let write = Request { flags: 0, command: command::WRITE, cookie: 1, offset: 512, length };
    let data = vec![0xa5; length as usize];
    let flush = Request { flags: 0, command: command::FLUSH, cookie: 2, offset: 0, length: 0 };
    let flushes: Vec<u8> = (0..256).flat_map(|_| flush.encode()).collect();
    large.0.write_all(&[&write.encode()[..], &data].concat()).expect("it is taken");
    for nbd in &mut all {
        nbd.0.write_all(&flushes).expect("they are taken");
    }
    for nbd in all.iter_mut().chain([&mut large]) {
        nbd.0.set_read_timeout(Some(Duration::from_secs(30))).expect("it may be so long");
        let mut head = [0; 16];
        nbd.0.read_exact(&mut head).expect("it is answered");
        assert_eq!(get_u32(&head, 4), 0, "and well");
    }
}

/// Asks for so many blocks at once, which may be more than it may, and gets them all. The connection goes on.
pub(crate) fn many_reads(addresses: &[Ipv4Addr], volume: &str, reads: u64) -> impl Sized + use<> {
    let mut nbd = connect(addresses, volume);
    let read = |cookie| {
        let (command, offset, length) = (command::READ, cookie % OWN * BLOCK as u64, BLOCK as u32);
        Request { flags: 0, command, cookie, offset, length }.encode()
    };
    let asked: Vec<u8> = (0..reads).flat_map(read).collect();
    nbd.0.write_all(&asked).expect("they are taken");
    let mut answer = [0; 16 + BLOCK];
    for _ in 0..reads {
        nbd.0.read_exact(&mut answer).expect("it is answered");
        assert_eq!(get_u32(&answer, 4), 0, "and well");
    }
    nbd
}

/// Writes MiB after MiB, one at a time.
pub(crate) struct Filler {
    nbd: std::cell::RefCell<Nbd>,
    addresses: Vec<Ipv4Addr>,
    volume: String,
}

const MIB: usize = 1 << 20;
const BLOCKS_OF_MIB: u64 = (MIB / BLOCK) as u64;

impl Filler {
    pub(crate) fn new(addresses: &[Ipv4Addr], volume: &str) -> Filler {
        let nbd = connect(addresses, volume);
        nbd.0.set_read_timeout(Some(Duration::from_secs(30))).expect("it may be so long");
        Filler { nbd: nbd.into(), addresses: addresses.into(), volume: volume.into() }
    }

    /// By a new connection.
    pub(crate) fn again(self) -> Filler {
        Filler::new(&self.addresses, &self.volume)
    }

    pub(crate) fn write(&mut self, mib: u64) -> io::Result<()> {
        self.nbd.borrow_mut().ask(command::WRITE, mib * BLOCKS_OF_MIB, &content_of_mib(mib), &mut [])
    }

    /// Writes until a write is refused because no room is left. Returns how many were written.
    pub(crate) fn fill(&mut self, most: u64) -> u64 {
        for mib in 0..most {
            if let Err(why) = self.write(mib) {
                assert!(why.to_string().contains("error 28"), "there is no room: {why}");
                return mib;
            }
        }
        panic!("{most} MiB were written, and there is no end")
    }

    pub(crate) fn trim(&mut self, from: u64, to: u64) {
        for mib in from..to {
            let (cookie, offset) = (mib * BLOCKS_OF_MIB, mib * MIB as u64);
            let request = Request { flags: 0, command: command::TRIM, cookie, offset, length: MIB as u32 };
            let nbd = self.nbd.get_mut();
            nbd.0.write_all(&request.encode()).expect("it is taken");
            let mut head = [0; 16];
            nbd.0.read_exact(&mut head).expect("it is answered");
            assert_eq!(get_u32(&head, 4), 0, "it is done");
        }
    }

    /// These are as they were written.
    pub(crate) fn check_from(&self, from: u64, to: u64) {
        let mut bytes = vec![0; MIB];
        for mib in from..to {
            let read = self.nbd.borrow_mut().ask(command::READ, mib * BLOCKS_OF_MIB, &[], &mut bytes);
            read.expect("it is served");
            assert!(bytes == content_of_mib(mib), "MiB {mib}");
        }
    }

    pub(crate) fn check(&self, to: u64) {
        self.check_from(0, to);
    }

    /// The same, of all that was read at once.
    pub(crate) fn check_at_once(&self, to: u64) {
        let mut bytes = vec![0; to as usize * MIB];
        self.nbd.borrow_mut().ask(command::READ, 0, &[], &mut bytes).expect("it is served");
        for (mib, bytes) in (0..to).zip(bytes.chunks(MIB)) {
            assert!(bytes == content_of_mib(mib), "MiB {mib}");
        }
    }
}

/// What is written: unlike anything else that is. Bytes are not made one by one: tests are not optimised.
fn content(block: u64, number: u64) -> Vec<u8> {
    [block.to_le_bytes(), number.to_le_bytes()].concat().repeat(BLOCK / 16)
}

/// What a `Filler` writes to a MiB.
fn content_of_mib(mib: u64) -> Vec<u8> {
    (0..BLOCKS_OF_MIB).map(|block| content(mib, block)).collect::<Vec<_>>().concat()
}

/// Of each block, the last write that was acknowledged, and the last that was begun.
#[derive(Default)]
pub(crate) struct Journal(BTreeMap<u64, (u64, u64)>);

impl Journal {
    /// What is read is the last write that was acknowledged, or one that was begun after it.
    pub(crate) fn check(&self, addresses: &[Ipv4Addr], volume: &str) {
        assert!(!self.0.is_empty(), "something was written");
        let mut nbd = connect(addresses, volume);
        for (block, (acknowledged, begun)) in &self.0 {
            let mut bytes = vec![0; BLOCK];
            nbd.ask(command::READ, *block, &[], &mut bytes).expect("it is served");
            let is = u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes"));
            assert!(
                (*acknowledged..=*begun).contains(&is) && (is == 0 || bytes == content(*block, is)),
                "block {block} has write {is}, and {acknowledged} was acknowledged, {begun} begun"
            );
        }
    }
}

/// Connects to any of these that serves the volume.
pub(crate) fn connect(addresses: &[Ipv4Addr], volume: &str) -> Nbd {
    let begun = Instant::now();
    loop {
        for address in addresses {
            if let Ok(nbd) = Nbd::connect(*address, volume) {
                return nbd;
            }
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "volume {volume} is served by a node");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Threads that write, each to blocks of its own.
pub(crate) struct Writers {
    threads: Vec<std::thread::JoinHandle<()>>,
    journal: Arc<Mutex<Journal>>,
    done: Arc<AtomicU64>,
}

impl Writers {
    pub(crate) fn start(
        addresses: &[Ipv4Addr],
        volume: &str,
        threads: u64,
        stop: Arc<AtomicBool>,
    ) -> Writers {
        let (journal, done) = (Arc::new(Mutex::new(Journal::default())), Arc::new(AtomicU64::new(0)));
        let start = |thread: u64| {
            let (addresses, volume) = (addresses.to_vec(), volume.to_owned());
            let (journal, done, stop) = (journal.clone(), done.clone(), stop.clone());
            std::thread::spawn(move || write(thread, &addresses, &volume, &journal, &done, &stop))
        };
        Writers { threads: (0..threads).map(start).collect(), journal, done }
    }

    /// Waits until so many more writes are acknowledged.
    pub(crate) fn wait_for(&self, writes: u64) {
        let (from, begun) = (self.done.load(Ordering::Relaxed), Instant::now());
        while self.done.load(Ordering::Relaxed) < from + writes {
            assert!(begun.elapsed() < Duration::from_secs(30), "writes go on");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// How many writes were acknowledged, counted on.
    pub(crate) fn done(&self) -> Arc<AtomicU64> {
        self.done.clone()
    }

    pub(crate) fn join(self) -> Journal {
        for thread in self.threads {
            thread.join().expect("what it reads is what it wrote");
        }
        std::mem::take(&mut self.journal.lock().expect("no thread panics with it"))
    }
}

/// Does something while the threads of a scope go on, and tells them to stop at its end, also when it panics: the scope would wait for
/// them for ever.
pub(crate) fn meanwhile<T>(stop: &AtomicBool, does: impl FnOnce() -> T) -> T {
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(does));
    stop.store(true, Ordering::Relaxed);
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Writes and reads back until it is to stop.
fn write(
    thread: u64,
    addresses: &[Ipv4Addr],
    volume: &str,
    journal: &Mutex<Journal>,
    done: &AtomicU64,
    stop: &AtomicBool,
) {
    let mut nbd = connect(addresses, volume);
    let mut number = RUNS.fetch_add(1, Ordering::Relaxed) * 1_000_000;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let block = thread * OWN + number * 7 % OWN;
        let last = {
            let mut journal = journal.lock().expect("no thread panics with it");
            let entry = journal.0.entry(block).or_default();
            entry.1 = number;
            *entry
        };
        match nbd.ask(command::WRITE, block, &content(block, number), &mut []) {
            Ok(()) => {
                journal.lock().expect("no thread panics with it").0.insert(block, (number, number));
                done.fetch_add(1, Ordering::Relaxed);
            }
            // Whether it was written is not known.
            Err(_) => nbd = connect(addresses, volume),
        }
        // What was written is read, never what was there before.
        let mut bytes = vec![0; BLOCK];
        match nbd.ask(command::READ, block, &[], &mut bytes) {
            Ok(()) => {
                let is = u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes"));
                let journal = journal.lock().expect("no thread panics with it");
                let (acknowledged, begun) = journal.0[&block];
                assert!(
                    (acknowledged..=begun).contains(&is),
                    "block {block} has write {is}; {acknowledged} was acknowledged, {begun} begun, before: {last:?}"
                );
            }
            Err(_) => nbd = connect(addresses, volume),
        }
    }
}
