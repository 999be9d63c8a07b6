//! A connection to a server, up to the point where requests may follow: calls that wait, with one time limit for all of them.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send, setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};

/// How long a server may take to accept a connection, and then to let a client in.
pub(crate) const LIMIT: Duration = Duration::from_secs(10);

/// Connects to the first address of the host that accepts a connection.
pub(crate) fn connect_tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, LIMIT) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The socket of a handshake, all of which has one time limit. A call that passes it fails with `WouldBlock` or `TimedOut`; if the
/// server closes the connection, with `UnexpectedEof`.
pub(crate) struct HandshakeSocket {
    socket: OwnedFd,
    until: Instant,
}

impl HandshakeSocket {
    pub(crate) fn new(socket: OwnedFd, limit: Duration) -> HandshakeSocket {
        HandshakeSocket { socket, until: Instant::now() + limit }
    }

    /// What is left of the limit, for the call that follows.
    fn left(&self) -> io::Result<TimeVal> {
        let left = self.until.saturating_duration_since(Instant::now());
        // None at all would be taken for no limit.
        match left.as_micros() {
            0 => Err(io::ErrorKind::TimedOut.into()),
            micros => Ok(TimeVal::microseconds(micros as i64)),
        }
    }

    /// Whether some of the limit is left.
    pub(crate) fn has_time(&self) -> bool {
        self.left().is_ok()
    }

    pub(crate) fn read<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn fill(&mut self, mut bytes: &mut [u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            setsockopt(&self.socket, sockopt::ReceiveTimeout, &self.left()?)?;
            match recv(self.socket.as_raw_fd(), bytes, MsgFlags::empty()) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => bytes = &mut bytes[read..],
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    pub(crate) fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            setsockopt(&self.socket, sockopt::SendTimeout, &self.left()?)?;
            match send(self.socket.as_raw_fd(), bytes, MsgFlags::MSG_NOSIGNAL) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Calls on the returned socket have no limit.
    pub(crate) fn end(self) -> io::Result<OwnedFd> {
        setsockopt(&self.socket, sockopt::ReceiveTimeout, &TimeVal::new(0, 0))?;
        setsockopt(&self.socket, sockopt::SendTimeout, &TimeVal::new(0, 0))?;
        Ok(self.socket)
    }
}
