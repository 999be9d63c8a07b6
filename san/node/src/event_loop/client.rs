//! A client's connection, once it has chosen a volume.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd};

use loadline_san_core::ids::VolumeId;
use loadline_san_core::map::Map;
use loadline_san_core::message::Content;
use loadline_san_core::volume::Failure;
use loadline_san_device::outbox::Outbox;
use loadline_san_device::pool::Blocks;
use loadline_san_export::nbd::session::Session;
use loadline_san_export::vhost::session as vhost;
use nix::errno::Errno;
use nix::libc;

use super::confirmed::Confirmed;
use super::order::SessionId;
use super::unread::Unread;

/// Slices that are sent together at most.
const SLICES: usize = 128;

/// How a client asks.
#[derive(Debug)]
pub(super) enum Way {
    /// By NBD, at a socket.
    Nbd(OwnedFd, Box<Session>),
    /// By memory that it shares.
    Vhost(Box<vhost::Session>),
}

/// What messages about a client say, and what it depends on.
#[derive(Debug)]
pub(super) struct Who {
    /// Where it is.
    pub(super) from: String,
    /// The name of its volume.
    pub(super) name: String,
    /// The session by which another node forwards it.
    pub(super) session: Option<SessionId>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) way: Way,
    pub(super) who: Who,
    /// Whether its host confirms what it is sent.
    pub(super) confirmed: Confirmed,
    pub(super) volume: VolumeId,
    /// It is watched for what it says.
    pub(super) watched: bool,
    /// It is read next, whether or not something comes.
    pub(super) next: bool,
    /// It is watched for room.
    pub(super) watched_for_room: bool,
    /// Its socket has no room.
    pub(super) blocked: bool,
    /// It asks for more than it may for now, and is not listened to.
    pub(super) paused: bool,
    /// Bytes that it takes, as they are counted.
    pub(super) taken: usize,
    /// Its queues are looked at, if it has some.
    pub(super) looked_at: bool,
    /// There is something in them, and it is in the list of those that are to be read.
    pub(super) listed: bool,
    /// It is to be listened to again a little later.
    pub(super) late: bool,
    /// How often it was found to have taken its leave and closed its direction, with requests that are at work.
    pub(super) leaves: u32,
    /// What it was told and has not read.
    pub(super) unread: Unread,
    /// The keys of its queues.
    pub(super) kicks: Vec<Option<u32>>,
}

impl Client {
    pub(super) fn new(way: Way, volume: VolumeId, who: Who) -> Client {
        let (watched, watched_for_room, blocked, paused, taken) = (false, false, false, false, 0);
        let unread = match &way {
            Way::Nbd(socket, _) => Unread::new(socket),
            Way::Vhost(_) => Unread::default(),
        };
        Client {
            way,
            who,
            confirmed: Confirmed::default(),
            unread,
            volume,
            watched,
            watched_for_room,
            blocked,
            paused,
            taken,
            next: false,
            looked_at: false,
            listed: false,
            late: false,
            leaves: 0,
            kicks: Vec::new(),
        }
    }

    pub(super) fn socket(&self) -> &OwnedFd {
        match &self.way {
            Way::Nbd(socket, _) => socket,
            Way::Vhost(session) => session.socket(),
        }
    }

    /// A part of what it reads.
    pub(super) fn fill(&mut self, slot: u32, at: u64, blocks: u32, content: Content<Blocks>) {
        match &mut self.way {
            Way::Nbd(_, session) => session.fill(slot, at, blocks, content),
            Way::Vhost(session) => session.fill(slot, at, blocks, &content),
        }
    }

    /// What blocks hold that it asks about.
    pub(super) fn map(&mut self, slot: u32, map: Map) {
        match &mut self.way {
            Way::Nbd(_, session) => session.map(slot, map),
            Way::Vhost(_) => unreachable!("a virtual machine cannot ask for that"),
        }
    }

    /// What it asked is complete. Fails if it is to be disconnected.
    pub(super) fn complete(
        &mut self,
        slot: u32,
        result: Result<(), Failure>,
    ) -> Result<(), vhost::SessionError> {
        match &mut self.way {
            Way::Nbd(_, session) => {
                session.complete(slot, result);
                Ok(())
            }
            Way::Vhost(session) => session.complete(slot, result),
        }
    }

    /// Bytes that what it asked for takes, and what it was not sent.
    pub(super) fn takes(&self) -> usize {
        match &self.way {
            Way::Nbd(_, session) => session.taken(),
            Way::Vhost(session) => session.taken(),
        }
    }

    /// Whether it may ask for more.
    pub(super) fn wants_more(&self) -> bool {
        match &self.way {
            Way::Nbd(_, session) => session.wants_bytes(),
            Way::Vhost(session) => session.wants_requests(),
        }
    }
}

/// What has come of reading.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// So many bytes.
    Some(usize),
    /// Nothing for now.
    Nothing,
    /// The other side has closed it, or reset it.
    End,
    /// It is broken: an error of the system.
    Broken(Errno),
}

/// Reads what is there, as far as there is room for it.
pub(super) fn receive(socket: &OwnedFd, into: &mut [u8]) -> Received {
    // SAFETY: the memory is borrowed for the call, and as long as said.
    let got =
        unsafe { libc::recv(socket.as_raw_fd(), into.as_mut_ptr().cast(), into.len(), libc::MSG_DONTWAIT) };
    received(got)
}

/// The same, to several places one after the other.
pub(super) fn receive_to(socket: &OwnedFd, spaces: &mut [IoSliceMut]) -> Received {
    if let [space] = spaces {
        return receive(socket, space);
    }
    // SAFETY: a header of zeroes is a valid one that refers to nothing.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    // An IoSliceMut is an iovec, by its documentation.
    header.msg_iov = spaces.as_mut_ptr().cast();
    header.msg_iovlen = spaces.len();
    // SAFETY: the header refers to the spaces, which are borrowed for the call, as is what they refer to.
    received(unsafe { libc::recvmsg(socket.as_raw_fd(), &mut header, libc::MSG_DONTWAIT) })
}

/// What a call says of it.
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

/// Throws away what has come and was not read. A connection that is closed with something unread is reset, and its other side, which may
/// have closed only its own direction (libnbd does after its farewell), takes that for a failure.
pub(super) fn throw_away(socket: &OwnedFd) {
    let mut scratch = [0u8; 16 << 10];
    // As much as a socket holds at the most: who goes on sending is reset.
    for _ in 0..1024 {
        // SAFETY: the buffer is as long as is said, and borrowed for the call.
        let got = unsafe {
            libc::recv(socket.as_raw_fd(), scratch.as_mut_ptr().cast(), scratch.len(), libc::MSG_DONTWAIT)
        };
        if got <= 0 {
            return;
        }
    }
}

/// Whoever waits for it is told that it is over: the kernel keeps a watched socket open, and its other end with it.
pub(super) fn shut_down(socket: &OwnedFd) {
    // SAFETY: the descriptor is open, and owned here.
    unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_RDWR) };
}
