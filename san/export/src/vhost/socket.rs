//! A front-end's socket, looked at before it is read: a message is only read when all of it is there, and its answer has room.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, send};

/// Bytes of the body of a message that has a number.
const BODY: usize = 8;
/// The flags of a message that asks for an answer, and of one that is an answer, with the protocol's version.
const NEEDS_ANSWER: u32 = 1 << 3;
const IS_ANSWER: u32 = 1 << 2 | 1;

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

/// Takes the message that sets the eventfd for news of the log of written memory (`SET_LOG_FD`), of which all is there, with a body of this
/// length, and answers it if the front-end asks for that and `answers` are negotiated. Returns the descriptor that came with it.
pub(super) fn take_log_bell(socket: &OwnedFd, length: usize, answers: bool) -> io::Result<Option<File>> {
    let mut bytes = [0; HEADER + BODY];
    let mut space = nix::cmsg_space!([RawFd; 1]);
    let length = HEADER + length.min(BODY);
    let mut slices = [io::IoSliceMut::new(&mut bytes[..length])];
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
    let got = recvmsg::<()>(socket.as_raw_fd(), &mut slices, Some(&mut space), flags)?;
    let fds = got.cmsgs()?.flat_map(|part| match part {
        ControlMessageOwned::ScmRights(fds) => fds,
        _ => Vec::new(),
    });
    // SAFETY: the kernel has just given them, to this message; each is owned once.
    let mut files = fds.map(|fd| unsafe { File::from_raw_fd(fd) }).collect::<Vec<_>>();
    if got.bytes != length {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message is shorter than it states"));
    }
    let flags = u32::from_le_bytes(bytes[4..8].try_into().expect("four bytes"));
    if answers && flags & NEEDS_ANSWER != 0 {
        let done = [&bytes[..4], &IS_ANSWER.to_le_bytes(), &(BODY as u32).to_le_bytes(), &[0; BODY]].concat();
        send(socket.as_raw_fd(), &done, MsgFlags::MSG_NOSIGNAL)?;
    }
    Ok(files.pop())
}
