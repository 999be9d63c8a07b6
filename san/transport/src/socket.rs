//! Calls on sockets that do not wait.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd};

use loadline_san_device::outbox::Outbox;
use nix::errno::Errno;
use nix::libc;

/// Slices that are sent together at most.
const SLICES: usize = 128;

/// What has come of receiving.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received {
    /// So many bytes.
    Some(usize),
    /// Nothing for now.
    Nothing,
    /// The other side has closed the connection, or reset it.
    End,
    /// The connection is broken.
    Broken(Errno),
}

/// Reads what is there, as far as there is room for it.
pub fn receive(socket: &impl AsFd, into: &mut [u8]) -> Received {
    // SAFETY: the memory is borrowed for the call, and has this length.
    let got = unsafe {
        libc::recv(socket.as_fd().as_raw_fd(), into.as_mut_ptr().cast(), into.len(), libc::MSG_DONTWAIT)
    };
    received(got)
}

/// The same, to several places one after the other.
pub fn receive_to(socket: &impl AsFd, spaces: &mut [IoSliceMut]) -> Received {
    if let [space] = spaces {
        return receive(socket, space);
    }
    // SAFETY: a header of zeroes is a valid one that refers to nothing.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    // An IoSliceMut is an iovec, by its documentation.
    header.msg_iov = spaces.as_mut_ptr().cast();
    header.msg_iovlen = spaces.len();
    // SAFETY: the header refers to the spaces, which are borrowed for the call, as is what they refer to.
    received(unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &mut header, libc::MSG_DONTWAIT) })
}

/// The result of a call.
fn received(got: isize) -> Received {
    match usize::try_from(got) {
        Ok(0) => Received::End,
        Ok(bytes) => Received::Some(bytes),
        Err(_) => match Errno::last() {
            Errno::EAGAIN | Errno::EINTR => Received::Nothing,
            Errno::ECONNRESET | Errno::EPIPE => Received::End,
            error => Received::Broken(error),
        },
    }
}

/// Sends slices, as much as the socket has room for.
pub fn send(socket: &impl AsFd, slices: &[IoSlice]) -> io::Result<usize> {
    // SAFETY: a header of zeroes is a valid one that refers to nothing.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    // An IoSlice is an iovec, by its documentation; the kernel only reads them.
    header.msg_iov = slices.as_ptr().cast_mut().cast();
    header.msg_iovlen = slices.len();
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the header refers to the slices, which are borrowed for the call, as is what they refer to.
    let sent = unsafe { libc::sendmsg(socket.as_fd().as_raw_fd(), &header, flags) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Sends what is there to be sent. Whether the socket has room for more. Fails if it is broken.
pub fn send_all(socket: &impl AsFd, out: &mut Outbox) -> io::Result<bool> {
    while out.bytes() > 0 {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let used = out.slices(&mut slices);
        match send(socket, &slices[..used]) {
            Ok(sent) => out.sent(sent),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => return Ok(false),
                io::ErrorKind::Interrupted => {}
                _ => return Err(error),
            },
        }
    }
    Ok(true)
}

/// Throws away what has come and was not read. A connection that is closed with something unread is reset, and its other side, which may
/// have closed only its own direction (libnbd does after its farewell), takes that for a failure.
pub fn throw_away(socket: &impl AsFd) {
    let mut scratch = [0u8; 16 << 10];
    // As much as a socket holds at the most: a client that goes on sending is reset.
    for _ in 0..1024 {
        // SAFETY: the buffer has this length, and is borrowed for the call.
        let got = unsafe {
            libc::recv(
                socket.as_fd().as_raw_fd(),
                scratch.as_mut_ptr().cast(),
                scratch.len(),
                libc::MSG_DONTWAIT,
            )
        };
        if got <= 0 {
            return;
        }
    }
}

/// A thread that waits for it is woken: the kernel keeps a watched socket open, and its other end with it.
pub fn shut_down(socket: &impl AsFd) {
    // SAFETY: the descriptor is open, and owned here.
    unsafe { libc::shutdown(socket.as_fd().as_raw_fd(), libc::SHUT_RDWR) };
}
