//! Descriptors that are watched with the devices: sockets, and whatever else wakes the thread.

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;

use loadline_base::ring::{opcode, squeue, types};
use nix::libc;

use super::{MOST_TRIES, Uring};

/// In `user_data`: it is no request's.
pub(super) const WATCHED: u64 = 1 << 63;
/// And it is room that is waited for.
const ROOM: u64 = 1 << 62;
/// It is not delivered to any key: that something is not watched any more, or that a bell was rung.
const QUIET: u64 = 1 << 61;

/// A bell was rung, for this key.
const BELL: u64 = 1 << 60;
/// Bells of a key that are not rung yet, at most: an eventfd takes them at once, unless the other side has filled it.
const MOST_BELLS: u32 = 64;

/// What rings an eventfd. Static: the kernel may read it at any time.
static ONE: u64 = 1;

/// What a descriptor is watched for. An error or the other end's end is reported to both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum For {
    /// Something to be read.
    Input,
    /// Room to write.
    Room,
}

impl Uring {
    /// Watches a descriptor until there is what it is watched for: then [`ready`](Self::ready) gives its key, once. Keys are
    /// the caller's; a key that is given twice comes twice. The descriptor is kept open by the kernel until then, so a caller that
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

    /// Adds one to an eventfd, for this key. It never waits, whatever the descriptor's owner does to it: the kernel does
    /// that, and if it has waited for too many, this fails. The descriptor is to be open until the next
    /// [`submit`](Self::submit).
    pub fn ring_bell(&mut self, fd: RawFd, key: u32) -> io::Result<()> {
        if self.bells.get(&key).is_some_and(|waiting| *waiting >= MOST_BELLS) {
            // They may have been rung long ago: the caller has not reaped their completions.
            self.reap_bells()?;
        }
        let waiting = self.bells.entry(key).or_insert(0);
        if *waiting >= MOST_BELLS {
            return Err(io::Error::other("the eventfd takes no more notifications"));
        }
        *waiting += 1;
        let entry = opcode::Write::new(types::Fd(fd), (&raw const ONE).cast(), 8).build();
        self.push_watched(entry.user_data(WATCHED | QUIET | BELL | u64::from(key)))
    }

    /// Reaps the completions of bells; other completions stay where they are.
    fn reap_bells(&mut self) -> io::Result<()> {
        self.submit()?;
        self.ring.poll()?;
        self.reaped.extend(self.ring.completions());
        let is_bell = |data: u64| data & WATCHED != 0 && data & BELL != 0;
        let (bells, others) = self.reaped.drain(..).partition(|(data, _)| is_bell(*data));
        self.reaped = others;
        let bells: VecDeque<(u64, i32)> = bells;
        for (data, result) in bells {
            self.is_watched(data, result);
        }
        Ok(())
    }

    /// Bells of this key that are not rung yet need not be.
    pub fn forget_bells(&mut self, key: u32) -> io::Result<()> {
        if !self.bells.contains_key(&key) {
            return Ok(());
        }
        let which = types::CancelBuilder::user_data(WATCHED | QUIET | BELL | u64::from(key)).all();
        self.push_watched(opcode::AsyncCancel2::new(which).build().user_data(WATCHED | QUIET))
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
        if watched
            && data & BELL != 0
            && let Some(waiting) = self.bells.get_mut(&(data as u32))
        {
            *waiting -= 1;
            if *waiting == 0 {
                self.bells.remove(&(data as u32));
            }
        }
        if watched && data & QUIET == 0 && result != -libc::ECANCELED {
            self.ready.push_back((data as u32, if data & ROOM == 0 { For::Input } else { For::Room }));
        }
        watched
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::{Class, Pool};
    use crate::uring::UringOptions;
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    use nix::sys::eventfd::{EfdFlags, EventFd};
    use std::os::fd::{AsFd, AsRawFd};
    use std::time::Duration;

    #[test]
    fn a_bell_that_takes_notifications_is_rung_however_long_completions_are_not_reaped() {
        let pool = Pool::new(&[Class { blocks: 1, buffers: 1 }]).unwrap();
        let mut uring = Uring::new(UringOptions::default(), pool).unwrap();
        let bell = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap();
        let fd = bell.as_fd().as_raw_fd();
        for _ in 0..1_000 {
            uring.ring_bell(fd, 7).unwrap();
            uring.submit().unwrap();
        }
        assert_eq!(bell.read().unwrap(), 1_000);
    }

    #[test]
    fn a_bell_that_takes_nothing_is_not_waited_for_nor_kept() {
        let pool = Pool::new(&[Class { blocks: 1, buffers: 1 }]).unwrap();
        let mut uring = Uring::new(UringOptions::default(), pool).unwrap();
        let bell = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap();
        let fd = bell.as_fd().as_raw_fd();
        uring.ring_bell(fd, 7).unwrap();
        uring.submit().unwrap();
        assert_eq!(bell.read().unwrap(), 1, "it is rung");
        // Full, and one that waits: as a front-end may make it.
        bell.write(u64::MAX - 1).unwrap();
        fcntl(&bell, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
        let rung = (0..200).take_while(|_| uring.ring_bell(fd, 7).and_then(|()| uring.submit()).is_ok());
        assert!((60..=64).contains(&rung.count()));
        uring.ring_bell(fd, 8).unwrap();
        uring.forget_bells(7).unwrap();
        uring.forget_bells(8).unwrap();
        for _ in 0..100 {
            uring.wait(Duration::from_millis(10)).unwrap();
            if uring.bells.is_empty() {
                return;
            }
        }
        panic!("{:?} are still to be rung", uring.bells);
    }
}
