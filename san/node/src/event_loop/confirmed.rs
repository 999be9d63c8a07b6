//! Whether the host at the other end of a TCP connection confirms what it is sent.
//!
//! TCP itself gives up after many minutes, or by `TCP_USER_TIMEOUT`, which also ends connections whose other end confirms
//! everything and does not read. This counts only data that the other host has not confirmed.

use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use nix::libc;

/// A connection is ended if its other host has confirmed nothing for so long of what it was sent.
pub(crate) const LIMIT: Duration = Duration::from_secs(4);

/// Bytes of the kernel's `struct tcp_info` that are read, and where the segments in it are that are not confirmed, and the bytes that
/// are (`linux/tcp.h`; the structure only grows).
const INFO: usize = 128;
const UNACKED: usize = 24;
const BYTES_ACKED: usize = 120;

/// Detects a host that no longer acknowledges TCP data that was sent to it.
#[derive(Debug, Default)]
pub(crate) struct Confirmed {
    /// The bytes that were confirmed, and since when it was so many, while more are not.
    waits: Option<(u64, Instant)>,
}

impl Confirmed {
    /// Whether the other host still confirms. To be called several times within [`LIMIT`].
    pub(crate) fn is_so(&mut self, socket: &impl AsFd) -> bool {
        let Some((unconfirmed, confirmed)) = read_counters(socket) else { return true };
        self.judge(unconfirmed, confirmed, Instant::now())
    }

    fn judge(&mut self, unconfirmed: u32, confirmed: u64, now: Instant) -> bool {
        if unconfirmed == 0 {
            self.waits = None;
            return true;
        }
        match self.waits {
            Some((before, since)) if before == confirmed => now.saturating_duration_since(since) < LIMIT,
            _ => {
                self.waits = Some((confirmed, now));
                true
            }
        }
    }
}

/// Segments that are not confirmed, and bytes that are. `None` if it is no TCP connection.
fn read_counters(socket: &impl AsFd) -> Option<(u32, u64)> {
    let mut info = [0u8; INFO];
    let mut length = INFO as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to the array, which is borrowed for the call.
    let got = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if got != 0 || (length as usize) < INFO {
        return None;
    }
    let unconfirmed = u32::from_ne_bytes(info[UNACKED..UNACKED + 4].try_into().expect("four bytes"));
    let confirmed = u64::from_ne_bytes(info[BYTES_ACKED..BYTES_ACKED + 8].try_into().expect("eight bytes"));
    Some((unconfirmed, confirmed))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn it_is_ended_when_nothing_is_confirmed_for_as_long_as_the_limit() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut confirmed = Confirmed::default();
        // Unconfirmed segments, confirmed bytes, milliseconds, and whether the connection goes on.
        let samples = [
            (0, 100, 0, true),
            (0, 100, 9000, true),
            (1, 100, 9500, true),
            (1, 100, 13_400, true),
            (2, 101, 13_450, true),
            (2, 101, 17_400, true),
            (0, 105, 17_440, true),
            (3, 105, 17_460, true),
            (3, 105, 21_459, true),
            (3, 105, 21_460, false),
        ];
        for (unconfirmed, bytes, ms, goes_on) in samples {
            assert_eq!(confirmed.judge(unconfirmed, bytes, at(ms)), goes_on, "at {ms} ms");
        }
    }

    #[test]
    fn what_is_confirmed_and_not_read_is_no_reason() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let _other = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        // As much as the sockets take.
        while stream.write(&[0; 65536]).is_ok() {}
        let begun = Instant::now();
        while read_counters(&stream).unwrap().0 > 0 {
            assert!(begun.elapsed() < Duration::from_secs(5), "all that was sent is confirmed");
            std::thread::sleep(Duration::from_millis(5));
        }
        let (_, confirmed) = read_counters(&stream).unwrap();
        assert!(confirmed > 0);
        let (local, _other) = UnixStream::pair().unwrap();
        assert_eq!(read_counters(&local), None);
    }
}
