//! A front-end's socket, looked at before it is read: a message is only read when all of it is there, and its answer has room.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::libc;

/// Bytes of a message's header.
pub(super) const HEADER: usize = 12;

/// Bytes that are there of a message's header; none if the other side has gone, `None` if there is nothing.
pub(super) fn peek(socket: &OwnedFd, head: &mut [u8; HEADER]) -> io::Result<Option<usize>> {
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: the memory is borrowed for the call, and has this length.
    let got = unsafe { libc::recv(socket.as_raw_fd(), head.as_mut_ptr().cast(), HEADER, flags) };
    match usize::try_from(got) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(_) => match Errno::last() {
            Errno::EAGAIN | Errno::EINTR => Ok(None),
            Errno::ECONNRESET => Ok(Some(0)),
            error => Err(error.into()),
        },
    }
}

/// Bytes that can be read without waiting.
pub(super) fn waiting(socket: &OwnedFd) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: it writes an integer to the given place.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::FIONREAD, &raw mut bytes) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(bytes.max(0) as usize) }
}

/// Whether an answer has room, which is shorter than what the kernel wants to have free before it reports room.
pub(super) fn has_room(socket: &OwnedFd) -> io::Result<bool> {
    let mut poll = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    // SAFETY: one entry, borrowed for the call, which does not wait.
    let ready = unsafe { libc::poll(&raw mut poll, 1, 0) };
    if ready < 0 && Errno::last() != Errno::EINTR {
        return Err(io::Error::last_os_error());
    }
    Ok(poll.revents != 0)
}
