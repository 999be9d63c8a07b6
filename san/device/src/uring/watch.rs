//! Descriptors that are watched beside the devices: sockets, and whatever else wakes the thread.

use std::io;
use std::os::fd::RawFd;

use loadline_base::ring::{opcode, squeue, types};
use nix::libc;

use super::{MOST_TRIES, Uring};

/// In `user_data`: it is no request's.
pub(super) const WATCHED: u64 = 1 << 63;
/// And it is room that is waited for.
const ROOM: u64 = 1 << 62;
/// It tells nobody anything: that something is not watched any more, or that a bell was rung.
const QUIET: u64 = 1 << 61;

/// What rings an eventfd. Static: the kernel may look at it at any time.
static ONE: u64 = 1;

/// What a descriptor is watched for. An error or the other end's end is told to both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum For {
    /// Something to be read.
    Input,
    /// Room to write.
    Room,
}

impl Uring {
    /// Watches a descriptor until there is what it is watched for: then [`ready`](Self::ready) gives its key, once. Keys are
    /// the caller's; a key that is given twice comes twice. The descriptor is kept open by the kernel until then, so who
    /// closes it shuts it down before. Fails if the queue stays full.
    pub fn watch(&mut self, fd: RawFd, key: u32, what: For) -> io::Result<()> {
        let (events, room) = match what {
            For::Input => (libc::POLLIN | libc::POLLRDHUP, 0),
            For::Room => (libc::POLLOUT, ROOM),
        };
        let entry = opcode::PollAdd::new(types::Fd(fd), events as u32).build();
        self.push_watched(entry.user_data(WATCHED | room | u64::from(key)))
    }

    /// What is watched by this key for something to be read is not any more.
    pub fn unwatch(&mut self, key: u32) -> io::Result<()> {
        let which = types::CancelBuilder::user_data(WATCHED | u64::from(key)).all();
        self.push_watched(opcode::AsyncCancel2::new(which).build().user_data(WATCHED | QUIET))
    }

    /// Adds one to an eventfd. It never waits, whatever the descriptor's owner does to it: the kernel does that. The descriptor
    /// is to be open until the next [`submit`](Self::submit).
    pub fn ring_bell(&mut self, fd: RawFd) -> io::Result<()> {
        let entry = opcode::Write::new(types::Fd(fd), (&raw const ONE).cast(), 8).build();
        self.push_watched(entry.user_data(WATCHED | QUIET))
    }

    fn push_watched(&mut self, entry: squeue::Entry) -> io::Result<()> {
        for _ in 0..MOST_TRIES {
            // SAFETY: the entry refers to no memory, or to a static, and the kernel takes a reference of the file.
            if unsafe { self.ring.push(&entry) } {
                self.watching += 1;
                self.queued += 1;
                return Ok(());
            }
            self.submit()?;
            self.ring.poll()?;
            self.reaped.extend(self.ring.completions());
        }
        Err(io::Error::other("the submission queue stays full"))
    }

    /// The key of a watched descriptor about which there is something to know. `None` until there is one.
    pub fn ready(&mut self) -> Option<(u32, For)> {
        self.ready.pop_front()
    }

    /// A watched descriptor has something, if this completion is one's.
    pub(super) fn is_watched(&mut self, data: u64, result: i32) -> bool {
        let watched = data & WATCHED != 0;
        if watched {
            self.watching -= 1;
        }
        if watched && data & QUIET == 0 && result != -libc::ECANCELED {
            self.ready.push_back((data as u32, if data & ROOM == 0 { For::Input } else { For::Room }));
        }
        watched
    }
}
