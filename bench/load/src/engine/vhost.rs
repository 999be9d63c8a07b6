//! A vhost-user-blk server's disk: requests and answers in memory that both sides see, one queue for each thread.

use std::collections::VecDeque;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use loadline_base::spin::Spins;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::uring::Waiting;
use super::{Engine, Io, Kind, Memory, POLL_ALONE, POLL_WHILE_IDLE, seen};
use crate::vhost::{Queue, VhostDisk};

/// How long dropping an engine waits for the server to be done with its memory.
const DROP_LIMIT: Duration = Duration::from_millis(100);
/// After so many polls without a completion, the thread checks that the server is there.
const QUIET: u32 = 1 << 14;
/// So many requests are made known before others follow.
const MANY: usize = 8;

pub(crate) struct VhostEngine {
    disk: Arc<VhostDisk>,
    /// Given back at the end.
    queue: ManuallyDrop<Queue>,
    /// Leaked if the server may yet use it at the end.
    memory: ManuallyDrop<Memory>,
    /// What each slot's I/O moves.
    lengths: Vec<u32>,
    in_flight: usize,
    /// Requests of which the server was not notified.
    pushed: usize,
    done: VecDeque<(u32, i32)>,
    poll: bool,
    /// Polls in a row without a completion.
    quiet: u32,
    spins: Spins,
}

impl VhostEngine {
    /// An engine for `slots` I/Os on this disk, whose memory others may map.
    pub(crate) fn new(
        disk: Arc<VhostDisk>,
        memory: Memory,
        slots: usize,
        waiting: Waiting,
    ) -> io::Result<VhostEngine> {
        let queue = disk.take_queue()?;
        let mut engine = VhostEngine {
            disk,
            queue: ManuallyDrop::new(queue),
            memory: ManuallyDrop::new(memory),
            lengths: vec![0; slots],
            in_flight: 0,
            pushed: 0,
            done: VecDeque::with_capacity(slots),
            poll: waiting == Waiting::Spins,
            quiet: 0,
            spins: Spins::new(waiting == Waiting::SpinsFirst),
        };
        // What was mapped is unmapped by dropping the engine.
        engine.disk.map(&mut engine.memory)?;
        Ok(engine)
    }

    fn collect(&mut self) {
        let before = self.done.len();
        let lengths = &self.lengths;
        self.done.extend(self.queue.blk.completions().map(|done| {
            let moved = lengths[done.context as usize] as i32;
            (done.context, if done.ret < 0 { done.ret } else { moved })
        }));
        self.in_flight -= self.done.len() - before;
    }

    fn check_server(&self) -> io::Result<()> {
        let mut socket = [PollFd::new(self.disk.socket(), PollFlags::empty())];
        let polled = poll(&mut socket, PollTimeout::ZERO);
        let is_gone = polled.is_ok() && socket[0].revents().is_some_and(is_gone);
        if is_gone { Err(gone()) } else { Ok(()) }
    }

    /// Sleeps until the server says that something is done, or has gone.
    fn sleep(&mut self, limit: Duration) -> io::Result<()> {
        self.queue.blk.set_used_notif_enabled(true);
        if !self.queue.blk.completions().has_next() {
            let mut both = [
                PollFd::new(self.queue.completed.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.disk.socket(), PollFlags::empty()),
            ];
            super::sleep_for(&mut both, limit)?;
            let (readiness, state) = (both[0].revents(), both[1].revents());
            if readiness.is_some_and(|readiness| readiness.contains(PollFlags::POLLIN)) {
                self.queue.completed.read()?;
            } else if state.is_some_and(is_gone) {
                return Err(gone());
            }
        }
        // Completions are polled for; the server need not notify.
        self.queue.blk.set_used_notif_enabled(false);
        Ok(())
    }
}

fn is_gone(state: PollFlags) -> bool {
    state.intersects(PollFlags::POLLHUP | PollFlags::POLLERR)
}

fn gone() -> io::Error {
    let why = "the vhost-user server closed the connection: the server's log has the reason";
    io::Error::new(io::ErrorKind::UnexpectedEof, why)
}

impl Engine for VhostEngine {
    fn push(&mut self, io: Io) -> io::Result<()> {
        self.lengths[io.slot as usize] = io.length;
        if io.kind == Kind::Flush && !self.disk.flushes {
            self.done.push_back((io.slot, 0));
            return Ok(());
        }
        let length = io.length as usize;
        let queue = &mut self.queue.blk;
        match io.kind {
            Kind::Flush => queue.flush(io.slot)?,
            Kind::Read => {
                let into = self.memory.address(io.slot, Kind::Read);
                // SAFETY: the memory belongs to this engine and is kept until its I/Os are seen (see drop), and a slot has
                // one I/O at a time, which the caller's list of free slots keeps true.
                unsafe { queue.read_raw(io.offset, into, length, io.slot) }?;
            }
            Kind::Write => {
                let from = self.memory.address(io.slot, Kind::Write);
                // SAFETY: as above.
                unsafe { queue.write_raw(io.offset, from, length, io.slot) }?;
            }
        }
        self.in_flight += 1;
        self.pushed += 1;
        Ok(())
    }

    fn submit(&mut self) -> io::Result<()> {
        // A wait follows soon.
        if self.pushed < MANY { Ok(()) } else { self.notify() }
    }

    fn wait(&mut self, want: usize, limit: Duration) -> io::Result<()> {
        self.notify()?;
        self.collect();
        if self.poll {
            self.quiet = if self.done.is_empty() { self.quiet + 1 } else { 0 };
            // The server may have gone.
            return if self.quiet % QUIET == QUIET - 1 { self.check_server() } else { Ok(()) };
        }
        let want = want.min(self.done.len() + self.in_flight);
        let begin = Instant::now();
        if self.done.len() < want && self.spins.worth_it() {
            let mut spins = std::mem::take(&mut self.spins);
            let found = spins.poll_while_idle(POLL_ALONE, POLL_WHILE_IDLE, limit, || {
                let before = self.done.len();
                self.collect();
                Ok(seen(before, self.done.len(), want))
            });
            self.spins = spins;
            found?;
        }
        while self.done.is_empty() {
            let left = limit.saturating_sub(begin.elapsed());
            if left.is_zero() {
                break;
            }
            self.sleep(left)?;
            self.collect();
        }
        Ok(())
    }

    fn reap(&mut self) -> Option<(u32, i32)> {
        self.done.pop_front()
    }

    fn memory(&mut self) -> &mut Memory {
        &mut self.memory
    }

    fn polled(&self) -> Duration {
        self.spins.waited()
    }
}

impl VhostEngine {
    /// Notifies the server of pushed requests, if it has requested notifications.
    fn notify(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.pushed) > 0 && self.queue.blk.avail_notif_needed() {
            self.queue.notify()?;
        }
        Ok(())
    }
}

impl Drop for VhostEngine {
    fn drop(&mut self) {
        let until = Instant::now() + DROP_LIMIT;
        while self.in_flight > 0 && Instant::now() < until {
            if self.notify().is_err() || self.sleep(DROP_LIMIT).is_err() {
                break;
            }
            self.collect();
        }
        // SAFETY: neither is used again.
        let (queue, memory) =
            unsafe { (ManuallyDrop::take(&mut self.queue), ManuallyDrop::take(&mut self.memory)) };
        if self.in_flight == 0 {
            self.disk.unmap(&memory);
            self.disk.give_back(queue);
        } else {
            // The server may yet write to it, and the next thread that uses the queue would get completions of I/Os that are not its own.
            std::mem::forget(memory);
        }
    }
}
