//! A connection to an NBD server, up to the point where requests may follow. The protocol is `doc/proto.md` of
//! <https://github.com/NetworkBlockDevice/nbd>.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use loadline_base::nbd::{
    INIT_MAGIC, MOST_DATA, OPTION_MAGIC, OPTION_REPLY_MAGIC, get_u16, get_u32, get_u64, handshake, info,
    option, reply, transmission,
};

use super::uri::{NbdUri, Server};
use crate::error::LoadError;
use crate::handshake::{HandshakeSocket, LIMIT, connect_tcp};

/// The longest reply to an option that is listened to.
const MOST_REPLY: u32 = 64 << 10;
/// The most replies to one option.
const MOST_REPLIES: usize = 64;

/// The properties of a disk, as its server reports them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Export {
    /// The size of the export, in bytes.
    pub bytes: u64,
    /// Flags of [`transmission`].
    flags: u16,
    /// Offsets and lengths are multiples of this.
    pub least: u32,
    /// The longest request.
    pub most: u32,
}

impl Export {
    /// One of so many bytes, with these flags and whatever lengths.
    #[cfg(test)]
    pub(crate) fn of_flags(bytes: u64, flags: u16) -> Export {
        Export { bytes, flags, least: 1, most: u32::MAX }
    }

    fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Why a load cannot be put on it, if it cannot.
    pub(crate) fn objection(&self, write: bool, through: bool, connections: u32) -> Option<&'static str> {
        if write && self.has(transmission::READ_ONLY) {
            Some("its server exports the disk read-only: use a profile that only reads (W0)")
        } else if write && through && !self.has(transmission::SEND_FUA) {
            Some("its server has no durable writes (FUA): leave out write-through")
        } else if write && connections > 1 && !self.has(transmission::CAN_MULTI_CONN) {
            Some(
                "its server does not promise that several connections see the same disk, and each thread has \
                 one: use one thread (T1)",
            )
        } else {
            None
        }
    }

    /// Whether it can be asked to make all durable. If not, all is when it is answered, or never.
    pub(crate) fn flushes(&self) -> bool {
        self.has(transmission::SEND_FLUSH)
    }
}

/// Connects, and chooses the disk. Reads and writes of what is returned have no limit.
pub fn connect(uri: &NbdUri) -> Result<(OwnedFd, Export), LoadError> {
    let failed = |why: String| LoadError::usage(format!("{uri}: {why}"));
    let reached = match &uri.server {
        Server::Tcp(host, port) => connect_tcp(host, *port).map(OwnedFd::from),
        Server::Unix(path) => UnixStream::connect(path).map(OwnedFd::from),
    };
    let socket = reached.map_err(|why| {
        failed(format!(
            "the server cannot be reached there ({why}): check the address, and that the server runs and listens there"
        ))
    })?;
    let mut handshake = HandshakeSocket::new(socket, LIMIT);
    let export = choose(&mut handshake, &uri.export).map_err(|why| match why.kind() {
        io::ErrorKind::UnexpectedEof => {
            failed("the server closed the connection before it described the disk".into())
        }
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            failed(format!("the server does not answer within {} s", LIMIT.as_secs()))
        }
        _ => failed(why.to_string()),
    })?;
    let socket = handshake.end().map_err(|why| failed(why.to_string()))?;
    Ok((socket, export))
}

fn no_nbd(what: &str) -> io::Error {
    io::Error::other(format!("{what}: the program that listens there is not a server of this protocol"))
}

/// The handshake: fixed newstyle, simple replies.
fn choose(handshake: &mut HandshakeSocket, name: &str) -> io::Result<Export> {
    let hello: [u8; 18] = handshake.read()?;
    if get_u64(&hello, 0) != INIT_MAGIC {
        return Err(no_nbd("it does not begin as one"));
    }
    let flags = get_u16(&hello, 16);
    if get_u64(&hello, 8) != OPTION_MAGIC || flags & handshake::FIXED_NEWSTYLE == 0 {
        return Err(io::Error::other(
            "the server uses the old form of the protocol, which has no export names",
        ));
    }
    let mine = u32::from(handshake::FIXED_NEWSTYLE) | u32::from(flags & handshake::NO_ZEROES);
    let mut said = mine.to_be_bytes().to_vec();
    said.extend(OPTION_MAGIC.to_be_bytes());
    said.extend(option::GO.to_be_bytes());
    said.extend((name.len() as u32 + 8).to_be_bytes());
    said.extend((name.len() as u32).to_be_bytes());
    said.extend(name.as_bytes());
    said.extend(1u16.to_be_bytes());
    said.extend(info::BLOCK_SIZE.to_be_bytes());
    handshake.write(&said)?;
    let (mut export_info, mut sizes) = (None, (1, MOST_DATA));
    for _ in 0..MOST_REPLIES {
        let head: [u8; 20] = handshake.read()?;
        let (kind, length) = (get_u32(&head, 12), get_u32(&head, 16));
        if get_u64(&head, 0) != OPTION_REPLY_MAGIC || get_u32(&head, 8) != option::GO || length > MOST_REPLY {
            return Err(no_nbd("its answer is none"));
        }
        let mut about = vec![0; length as usize];
        handshake.fill(&mut about)?;
        match kind {
            reply::ACK => {
                let (bytes, flags) =
                    export_info.ok_or_else(|| no_nbd("it does not tell how large the disk is"))?;
                let (least, most) = sizes;
                return Ok(Export { bytes, flags, least, most });
            }
            reply::INFO if about.len() == 12 && get_u16(&about, 0) == info::EXPORT => {
                export_info = Some((get_u64(&about, 2), get_u16(&about, 10)));
            }
            reply::INFO if about.len() == 14 && get_u16(&about, 0) == info::BLOCK_SIZE => {
                let (least, most) = (get_u32(&about, 2), get_u32(&about, 10));
                if !least.is_power_of_two() || most < least {
                    return Err(no_nbd("its block sizes cannot be"));
                }
                sizes = (least, most);
            }
            reply::INFO => {}
            refused if refused & (1 << 31) != 0 => {
                let why = String::from_utf8_lossy(&about);
                let why = if why.is_empty() {
                    String::new()
                } else {
                    format!(": it says \"{}\"", why.escape_debug())
                };
                return Err(io::Error::other(match refused {
                    reply::ERR_UNKNOWN => format!("the server has no export \"{name}\"{why}"),
                    reply::ERR_UNSUP => "the server is too old: it has no NBD_OPT_GO".into(),
                    reply::ERR_SHUTDOWN => format!("the server cannot serve it now{why}"),
                    reply::ERR_TLS_REQD => "the server requires TLS, which Loadline does not support".into(),
                    _ => format!("the server refuses it with error {}{why}", refused & !(1 << 31)),
                }));
            }
            _ => return Err(no_nbd("its answer is none")),
        }
    }
    Err(no_nbd("it goes on and on"))
}
