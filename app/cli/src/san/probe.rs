//! `loadline san status --probe`: one read of each attached volume, by NBD, through the node that owns it.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use loadline_base::nbd::{OPTION_MAGIC, Request, command, get_u32, handshake, option, reply};
use loadline_san_node::node::manage::StatusView;
use serde::Serialize;

/// How long a probe may take, from the connection to the data.
const LIMIT: Duration = Duration::from_secs(4);
/// Volumes that are probed at once.
const AT_ONCE: usize = 16;
/// The protocol by which blocks are read.
const NBD: &str = "nbd";
const BLOCK: u32 = 4096;
/// The server's answers to an option are shorter.
const LONGEST: u32 = 64 << 10;

/// What came of one read.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Probe {
    /// The volume.
    pub(super) volume: String,
    /// The node that was asked: the owner.
    pub(super) node: Option<String>,
    /// How long it took to connect and read, in milliseconds, if that succeeded.
    pub(super) milliseconds: Option<f64>,
    /// What failed.
    pub(super) failed: Option<String>,
}

/// Reads one block of each volume that is attached.
pub(super) fn probe(status: &StatusView) -> Vec<Probe> {
    let attached = status.volumes.iter().filter(|volume| volume.attached.is_some() && volume.bytes > 0);
    let mut probes: Vec<(Probe, Option<SocketAddr>)> = Vec::new();
    for volume in attached {
        let node = status.nodes.iter().find(|node| Some(&node.name) == volume.owner.as_ref());
        let address = node.and_then(|node| node.endpoints.get(NBD)?.parse().ok());
        let failed = address.is_none().then(|| "no node owns it".to_owned());
        let (volume, node) = (volume.name.clone(), volume.owner.clone());
        probes.push((Probe { volume, node, milliseconds: None, failed }, address));
    }
    let (next, probes) = (AtomicUsize::new(0), Mutex::new(probes));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some((volume, address)) = ({
                        let probes = probes.lock().expect("no thread panics with it");
                        probes.get(index).map(|(probe, address)| (probe.volume.clone(), *address))
                    }) else {
                        return;
                    };
                    let Some(address) = address else { continue };
                    let begun = Instant::now();
                    let read = read(address, &volume);
                    let probe = &mut probes.lock().expect("no thread panics with it")[index].0;
                    match read {
                        Ok(()) => probe.milliseconds = Some(begun.elapsed().as_secs_f64() * 1000.0),
                        Err(why) => probe.failed = Some(why),
                    }
                }
            });
        }
    });
    let probes = probes.into_inner().expect("no thread panicked");
    probes.into_iter().map(|(probe, _)| probe).collect()
}

/// One connection, whose every wait ends at the same moment.
struct Connection {
    stream: Arc<TcpStream>,
    until: Instant,
}

impl Connection {
    fn left(&self) -> io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }

    fn receive(&mut self, mut into: &mut [u8]) -> io::Result<()> {
        while !into.is_empty() {
            self.stream.set_read_timeout(Some(self.left()?))?;
            match (&*self.stream).read(into)? {
                0 => return Err(io::Error::other("the node has closed the connection")),
                read => into = &mut into[read..],
            }
        }
        Ok(())
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        (&*self.stream).write_all(bytes)
    }
}

fn read(address: SocketAddr, volume: &str) -> Result<(), String> {
    let until = Instant::now() + LIMIT;
    let read = || -> io::Result<()> {
        let stream = Arc::new(TcpStream::connect_timeout(&address, LIMIT)?);
        let mut connection = Connection { stream, until };
        let mut hello = [0; 18];
        connection.receive(&mut hello)?;
        let flags = u32::from(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES);
        let mut request = flags.to_be_bytes().to_vec();
        request.extend(OPTION_MAGIC.to_be_bytes());
        request.extend(option::GO.to_be_bytes());
        request.extend((volume.len() as u32 + 6).to_be_bytes());
        request.extend((volume.len() as u32).to_be_bytes());
        request.extend(volume.as_bytes());
        request.extend([0; 2]);
        connection.send(&request)?;
        loop {
            let mut head = [0; 20];
            connection.receive(&mut head)?;
            let mut data = vec![0; get_u32(&head, 16).min(LONGEST) as usize];
            connection.receive(&mut data)?;
            match get_u32(&head, 12) {
                reply::ACK => break,
                reply::INFO => {}
                _ => return Err(io::Error::other(String::from_utf8_lossy(&data).into_owned())),
            }
        }
        let ask = |command, length| Request { flags: 0, command, cookie: 1, offset: 0, length };
        connection.send(&ask(command::READ, BLOCK).encode())?;
        let mut head = [0; 16];
        connection.receive(&mut head)?;
        match get_u32(&head, 4) {
            0 => connection.receive(&mut [0; BLOCK as usize])?,
            error => return Err(io::Error::other(format!("the read failed with error {error}"))),
        }
        connection.send(&ask(command::DISC, 0).encode())
    };
    read().map_err(|why| match why.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
            format!("no answer within {} s", LIMIT.as_secs())
        }
        _ => why.to_string(),
    })
}
