//! A session with an iSCSI target, up to the point where requests may follow. It has one connection.

use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};

use nix::sys::socket::{MsgFlags, send};

use super::channel::{Channel, Numbers, logout};
use super::login::{Entered, Parameters, Who, log_in};
use super::unit::{Asking, Unit};
use super::uri::{IscsiUri, portal};
use crate::error::LoadError;
use crate::handshake::{HandshakeSocket, LIMIT, connect_tcp};

/// The portals that are tried: the one that is named, and one that it names.
const MOST_PORTALS: u32 = 2;

/// A session in which requests may follow, and its connection, which waits without a limit.
pub(crate) struct Connected {
    pub(crate) socket: OwnedFd,
    pub(crate) session: Session,
}

impl Connected {
    /// Ends a session in which no request was sent, and returns what its unit is.
    pub(crate) fn into_unit(self) -> Unit {
        let Session { numbers, parameters, unit, .. } = self.session;
        let bytes = logout(&numbers, parameters.header_digest);
        // The target notices in any case that the connection ends.
        let _ = send(self.socket.as_raw_fd(), &bytes, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL);
        unit
    }
}

/// What requests need to know of their session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Session {
    pub(crate) numbers: Numbers,
    pub(crate) parameters: Parameters,
    /// The bytes by which the target knows the unit.
    pub(crate) lun: [u8; 8],
    pub(crate) unit: Unit,
}

/// Logs in, and asks the unit what it is. Each call makes a session of its own.
pub(crate) fn connect(uri: &IscsiUri) -> Result<Connected, LoadError> {
    let failed = |why: String| LoadError::usage(format!("{uri}: {why}"));
    let secret = uri.read_secret()?;
    let initiator = uri.initiator_name();
    let who = Who {
        initiator: &initiator,
        isid: isid().map_err(|why| failed(format!("a session cannot be given a number: {why}")))?,
        target: &uri.target,
        digest: uri.digest,
        chap: uri.user.as_deref().zip(secret.as_deref()),
    };
    let (mut host, mut port) = (uri.host.clone(), uri.port);
    for _ in 0..MOST_PORTALS {
        let name = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(&host);
        let stream = connect_tcp(name, port).map_err(|why| {
            failed(format!(
                "the target cannot be reached at {host}:{port} ({why}): check the address, and that the target runs and listens \
                 there"
            ))
        })?;
        let channel = Channel::new(HandshakeSocket::new(OwnedFd::from(stream), LIMIT));
        let said = |why: io::Error| match why.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                failed(format!(
                    "the target closed the connection to {host}:{port} before it described its unit ({why})"
                ))
            }
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                failed(format!("the target at {host}:{port} does not answer within {} s", LIMIT.as_secs()))
            }
            _ => failed(why.to_string()),
        };
        match enter(channel, &who, uri.lun).map_err(said)? {
            Ok(connected) => return Ok(connected),
            Err(address) => {
                // The number of a portal group may follow.
                let place = address.split_once(',').map_or(&*address, |(place, _)| place);
                (host, port) = portal(place).map_err(|_| {
                    failed(format!(
                        "the target is said to be at \"{}\", which is no portal",
                        address.escape_debug()
                    ))
                })?;
            }
        }
    }
    Err(failed(format!("the portal that it was redirected to redirects it again, to {host}:{port}")))
}

/// The session, or the address of the portal where it is to be made.
fn enter(mut channel: Channel, who: &Who<'_>, lun: u16) -> io::Result<Result<Connected, String>> {
    let (parameters, numbers) = match log_in(&mut channel, who)? {
        Entered::In(parameters, numbers) => (parameters, numbers),
        Entered::Elsewhere(address) => return Ok(Err(address)),
    };
    let mut asking = Asking::new(&mut channel, numbers, lun);
    let unit = Unit::ask(&mut asking)?;
    let (numbers, lun) = asking.end();
    let session = Session { numbers, parameters, lun, unit };
    Ok(Ok(Connected { socket: channel.end()?, session }))
}

/// A number by which the target tells this session from all others of this initiator: a random one for the process, and a count.
fn isid() -> io::Result<[u8; 6]> {
    static PROCESS: OnceLock<[u8; 5]> = OnceLock::new();
    static COUNT: AtomicU16 = AtomicU16::new(0);
    if PROCESS.get().is_none() {
        let mut random = [0; 5];
        std::fs::File::open("/dev/urandom")?.read_exact(&mut random)?;
        // Two threads may come here at once: what was set first holds.
        let _ = PROCESS.set(random);
    }
    let [a, b, c, high, low] = *PROCESS.get().expect("it was just set");
    let first = u16::from_be_bytes([high, low]);
    let [high, low] = first.wrapping_add(COUNT.fetch_add(1, Ordering::Relaxed)).to_be_bytes();
    // The first byte says that the three that follow are random (RFC 7143, 11.12.5).
    Ok([0x80, a, b, c, high, low])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_sessions_of_a_process_have_the_same_number() {
        let all: std::collections::HashSet<_> = (0..1000).map(|_| isid().unwrap()).collect();
        assert_eq!(all.len(), 1000);
        assert!(all.iter().all(|isid| isid[0] == 0x80));
    }
}
