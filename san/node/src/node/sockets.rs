//! How connections are watched over, and cut.

use std::os::fd::{AsFd, AsRawFd};

use nix::libc;
use nix::sys::socket::{setsockopt, sockopt};

/// A host that sends nothing is asked by TCP whether it is there, after the first number of seconds, then after each of the second,
/// and is given up when so many questions in a row were not answered.
const CLOSELY: [u32; 3] = [2, 1, 3];
const NODES: [u32; 3] = [10, 10, 3];
/// A connection of a node is given up if what it was sent is not confirmed for so long, milliseconds.
const NODES_MS: u32 = 40_000;

/// Has TCP end the connection of a client, or of a client that is forwarded to its owner, whose other end is gone: within 5 s while nothing
/// is sent to it. While something is, the [`Confirmed`](crate::event_loop::confirmed::Confirmed) of the connection finds it out.
pub(super) fn watch_closely(socket: &impl AsFd) -> nix::Result<()> {
    keep_alive(socket, CLOSELY)
}

/// Has TCP end the connection of a node that is gone.
pub(super) fn watch_node(socket: &impl AsFd) -> nix::Result<()> {
    keep_alive(socket, NODES)?;
    setsockopt(socket, sockopt::TcpUserTimeout, &NODES_MS)
}

fn keep_alive(socket: &impl AsFd, [idle, interval, count]: [u32; 3]) -> nix::Result<()> {
    setsockopt(socket, sockopt::KeepAlive, &true)?;
    setsockopt(socket, sockopt::TcpKeepIdle, &idle)?;
    setsockopt(socket, sockopt::TcpKeepInterval, &interval)?;
    setsockopt(socket, sockopt::TcpKeepCount, &count)
}

/// Closes a connection so that what was sent and is not confirmed is dropped, here and in the kernel, and the other side sees
/// a reset.
pub(super) fn abort(socket: impl AsFd) {
    let at_once = libc::linger { l_onoff: 1, l_linger: 0 };
    // If it is no connection any more, there is nothing to drop.
    let _ = setsockopt(&socket, sockopt::Linger, &at_once);
    drop(socket);
}

/// Whether the other side has closed the connection, as far as this host's kernel knows. What it sent before may still be there
/// to be read.
pub(crate) fn is_closed(socket: &impl AsFd) -> bool {
    let mut polled = libc::pollfd { fd: socket.as_fd().as_raw_fd(), events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: the structure is one, and borrowed for the call, which does not wait.
    let count = unsafe { libc::poll(&raw mut polled, 1, 0) };
    count == 1 && polled.revents & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0
}

/// Bytes that were sent and are not confirmed, or not sent yet.
#[cfg(test)]
pub(super) fn unsent(socket: &impl AsFd) -> libc::c_int {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the request writes one int, which is borrowed for the call.
    let got = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if got == 0 { bytes } else { 0 }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one, listener.accept().unwrap().0)
    }

    #[test]
    fn who_has_closed_is_seen_before_all_that_it_sent_is_read() {
        let (ours, mut theirs) = pair();
        theirs.write_all(&[7; 1000]).unwrap();
        assert!(!is_closed(&ours));
        drop(theirs);
        let begun = std::time::Instant::now();
        while !is_closed(&ours) {
            assert!(begun.elapsed() < std::time::Duration::from_secs(5), "it is seen");
            std::thread::yield_now();
        }
    }

    /// Closes a connection without a message to the other side, as if the message were lost. Whether this process may do that.
    fn vanish(socket: TcpStream) -> bool {
        let on: libc::c_int = 1;
        // SAFETY: the call reads one int, which is borrowed for it.
        let done = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_REPAIR,
                (&raw const on).cast(),
                size_of_val(&on) as libc::socklen_t,
            )
        };
        done == 0
    }

    #[test]
    fn a_connection_whose_other_end_has_vanished_ends_although_nothing_is_sent() {
        let (mut ours, theirs) = pair();
        watch_closely(&ours).unwrap();
        if !vanish(theirs) {
            return eprintln!("not tested: it needs the right to administer the network");
        }
        ours.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
        let error = ours.read(&mut [0]).expect_err("nothing is sent");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }

    #[test]
    fn what_is_aborted_is_reset_and_not_delivered_to_the_end() {
        let (ours, mut theirs) = pair();
        ours.set_nonblocking(true).unwrap();
        // More than the other side's kernel takes while no program reads there.
        while (&ours).write(&[7; 65536]).is_ok() {}
        let waits = unsent(&ours);
        assert!(waits > 0);
        abort(ours);
        let mut got = Vec::new();
        let ended = theirs.read_to_end(&mut got);
        assert_eq!(ended.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    }
}
