//! Whether a vhost-user disk has a server. QEMU waits for one without a limit, and its machine stands still meanwhile.

use std::os::fd::AsRawFd;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};

/// How long a server may take to be there: one that is being started, or a volume that is being attached.
pub(crate) const LIMIT: Duration = Duration::from_secs(10);
const POLL_EVERY: Duration = Duration::from_millis(20);

/// Waits until a process has this socket. The error is in words. Nothing is sent to the server, and no connection is made, since some
/// servers take one client.
pub(crate) fn is_there(path: &Path, limit: Duration) -> Result<(), String> {
    let why = |e: Errno| format!("its socket cannot be used: {}", e.desc());
    let address = UnixAddr::new(path).map_err(why)?;
    let until = Instant::now() + limit;
    loop {
        // A connection of another type is refused, and before that the kernel looks for the process.
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let other = socket(AddressFamily::Unix, SockType::Datagram, flags, None).map_err(why)?;
        let gone = match connect(other.as_raw_fd(), &address) {
            Err(Errno::ECONNREFUSED) => "its server is gone, and has left its socket",
            Err(Errno::ENOENT) => "its server is gone",
            // What else may be wrong, QEMU says, which may be another user.
            _ => return Ok(()),
        };
        if Instant::now() >= until {
            return Err(format!("{gone}: start the server again"));
        }
        thread::sleep(POLL_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_server_that_is_gone_is_named_and_one_that_is_there_or_comes_notices_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let is_now = || is_there(&path, Duration::ZERO);
        assert!(is_now().unwrap_err().contains("is gone: start"));
        let waits = thread::spawn({
            let path = path.clone();
            move || is_there(&path, Duration::from_secs(60))
        });
        let server = UnixListener::bind(&path).unwrap();
        server.set_nonblocking(true).unwrap();
        assert_eq!((is_now(), waits.join().unwrap()), (Ok(()), Ok(())));
        assert_eq!(server.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        drop(server);
        assert!(is_now().unwrap_err().contains("has left its socket"));
        assert!(is_there(Path::new(&"x".repeat(200)), LIMIT).unwrap_err().contains("cannot be used"));
    }
}
