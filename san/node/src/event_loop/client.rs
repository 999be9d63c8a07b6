//! A client's connection, once it has chosen a volume.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};

use loadline_san_core::ids::VolumeId;
use loadline_san_device::outbox::Outbox;
use loadline_san_export::nbd::session::Session;
use nix::errno::Errno;
use nix::libc;

/// Slices that are sent together at most.
const SLICES: usize = 128;

/// See the module.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) socket: OwnedFd,
    pub(super) session: Session,
    pub(super) volume: VolumeId,
    /// It is watched for what it says.
    pub(super) watched: bool,
    /// It is watched for room.
    pub(super) watched_for_room: bool,
    /// Its socket has no room.
    pub(super) blocked: bool,
    /// It asks for more than it may for now, and is not listened to.
    pub(super) paused: bool,
    /// Bytes that it takes, as they are counted.
    pub(super) taken: usize,
}

/// What has come of reading.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// So many bytes.
    Some(usize),
    /// Nothing for now.
    Nothing,
    /// The other side has closed it, or it is broken.
    End,
}

/// Reads what is there, as far as there is room for it.
pub(super) fn receive(socket: &OwnedFd, into: &mut [u8]) -> Received {
    // SAFETY: the memory is borrowed for the call, and as long as said.
    let got =
        unsafe { libc::recv(socket.as_raw_fd(), into.as_mut_ptr().cast(), into.len(), libc::MSG_DONTWAIT) };
    match usize::try_from(got) {
        Ok(0) => Received::End,
        Ok(bytes) => Received::Some(bytes),
        Err(_) => match Errno::last() {
            Errno::EAGAIN | Errno::EINTR => Received::Nothing,
            _ => Received::End,
        },
    }
}

/// Sends slices, as much as the socket has room for.
pub(super) fn send(socket: &OwnedFd, slices: &[IoSlice]) -> io::Result<usize> {
    // SAFETY: a header of zeroes is a valid one that refers to nothing.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    // An IoSlice is an iovec, by its documentation; the kernel only reads them.
    header.msg_iov = slices.as_ptr().cast_mut().cast();
    header.msg_iovlen = slices.len();
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the header refers to the slices, which are borrowed for the call, as is what they refer to.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &header, flags) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Sends what is there to be sent. Whether the socket has room for more. Fails if it is broken.
pub(super) fn send_all(socket: &OwnedFd, out: &mut Outbox) -> io::Result<bool> {
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

/// Whoever waits for it is told that it is over: the kernel keeps a watched socket open, and its other end with it.
pub(super) fn shut_down(socket: &OwnedFd) {
    // SAFETY: the descriptor is open, and owned here.
    unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_RDWR) };
}
