//! A client of NBD with TLS that verifies what it reads.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use loadline_base::nbd::{OPTION_MAGIC, Request, command, get_u32, get_u64, handshake, option, reply};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

const BLOCK: usize = 4096;
/// The port of NBD.
pub(super) const PORT: u16 = 10809;
/// How long an answer may take.
const LIMIT: Duration = Duration::from_secs(30);

/// A connection that has chosen a volume.
pub(super) struct Client(StreamOwned<ClientConnection, TcpStream>);

/// Reads what the server says first, and asks for TLS. Whether the server agrees.
pub(super) fn start_tls(stream: &mut TcpStream) -> io::Result<bool> {
    stream.read_exact(&mut [0; 18])?;
    let mut asked = u32::from(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES).to_be_bytes().to_vec();
    asked.extend(OPTION_MAGIC.to_be_bytes());
    asked.extend(option::STARTTLS.to_be_bytes());
    asked.extend([0; 4]);
    stream.write_all(&asked)?;
    let mut head = [0; 20];
    stream.read_exact(&mut head)?;
    Ok(get_u32(&head, 12) == reply::ACK)
}

/// What a client trusts and has: the folder that `san access add` wrote.
fn config(folder: &Path) -> Result<ClientConfig, String> {
    let failed = |what: &str, why: &dyn std::fmt::Display| format!("{}/{what}: {why}", folder.display());
    let read =
        |what: &str| CertificateDer::from_pem_file(folder.join(what)).map_err(|error| failed(what, &error));
    let mut roots = RootCertStore::empty();
    roots.add(read("ca-cert.pem")?).map_err(|error| failed("ca-cert.pem", &error))?;
    let key = PrivateKeyDer::from_pem_file(folder.join("client-key.pem"))
        .map_err(|error| failed("client-key.pem", &error))?;
    ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![read("client-cert.pem")?], key)
        .map_err(|error| error.to_string())
}

/// What a block has after its write of this number.
fn content(block: u64, write: u64) -> Vec<u8> {
    [block.to_le_bytes(), write.to_le_bytes()].concat().repeat(BLOCK / 16)
}

impl Client {
    pub(super) fn connect(address: Ipv4Addr, volume: &str, folder: &Path) -> Result<Client, String> {
        let config = config(folder)?;
        Client::choose(address, volume, config).map_err(|error| format!("NBD with TLS at {address}: {error}"))
    }

    fn choose(address: Ipv4Addr, volume: &str, config: ClientConfig) -> io::Result<Client> {
        let mut stream = TcpStream::connect((address, PORT))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LIMIT))?;
        if !start_tls(&mut stream)? {
            return Err(io::Error::other("TLS is not offered"));
        }
        let connection = ClientConnection::new(Arc::new(config), ServerName::from(IpAddr::from(address)));
        let mut stream = StreamOwned::new(connection.map_err(io::Error::other)?, stream);
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
                reply::ACK => return Ok(Client(stream)),
                reply::INFO => {}
                _ => return Err(io::Error::other(String::from_utf8_lossy(&data).into_owned())),
            }
        }
    }

    fn ask(&mut self, command: u16, block: u64, data: &[u8], into: &mut [u8]) -> io::Result<()> {
        let (offset, length) = (block * BLOCK as u64, data.len().max(into.len()) as u32);
        let request = Request { flags: 0, command, cookie: block, offset, length };
        self.0.write_all(&[&request.encode(), data].concat())?;
        let mut head = [0; 16];
        self.0.read_exact(&mut head)?;
        if get_u64(&head, 8) != block || get_u32(&head, 4) != 0 {
            return Err(io::Error::other(format!("a request was answered with error {}", get_u32(&head, 4))));
        }
        self.0.read_exact(into)
    }

    /// Writes and reads in turn, each time another one of these blocks, until it is to end. How long each request took. Fails if what is
    /// read is not what was written.
    pub(super) fn work(
        mut self,
        first: u64,
        blocks: u64,
        ended: &AtomicBool,
    ) -> Result<Vec<Duration>, String> {
        let failed = |error: io::Error| format!("the client was not served: {error}");
        let (mut latencies, mut written, mut state) = (Vec::new(), BTreeMap::new(), first | 1);
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            first + state % blocks
        };
        let mut read = vec![0; BLOCK];
        for number in 1.. {
            if ended.load(Ordering::Relaxed) {
                break;
            }
            let block = random();
            let begun = Instant::now();
            self.ask(command::WRITE, block, &content(block, number), &mut []).map_err(failed)?;
            latencies.push(begun.elapsed());
            written.insert(block, number);
            // The next block from a place at random on that was written in this run.
            let from = random();
            let next = written.range(from..).next().or_else(|| written.iter().next());
            let (&block, &number) = next.expect("one was written");
            let begun = Instant::now();
            self.ask(command::READ, block, &[], &mut read).map_err(failed)?;
            latencies.push(begun.elapsed());
            if read != content(block, number) {
                return Err(format!("FAILED: block {block} is not what was written"));
            }
        }
        Ok(latencies)
    }
}
