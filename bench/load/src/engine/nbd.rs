//! An NBD server's disk: one connection for each thread, one ring for what it sends and receives.
//!
//! All that is to be said at once goes into one `sendmsg`, all that has come is received at once, and one system call
//! does both: an I/O of a batch costs little more than its bytes.

use std::collections::VecDeque;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use loadline_base::nbd::{
    Request, SIMPLE_REPLY_BYTES, SIMPLE_REPLY_MAGIC, command, command_flag, get_u32, get_u64,
};
use loadline_base::ring::{Ring, RingOptions, opcode, types};
use loadline_base::spin::{Seen, Spins};
use nix::libc;

use super::uring::Waiting;
use super::{Engine, Io, Kind, Memory, POLL_ALONE, POLL_WHILE_IDLE};
use crate::nbd::connect::Export;

/// Replies are received into so much at once.
const STAGE: usize = 256 << 10;
/// Of data that is longer than this, the rest is received where it belongs.
const DIRECT: usize = 16 << 10;
/// So many slices are sent before others follow.
const MANY: usize = 32;
/// Slices that are sent at once: the kernel takes no more.
const SLICES: usize = 1024;
/// How long dropping an engine waits for the kernel to be done with its memory.
const DROP_LIMIT: Duration = Duration::from_millis(100);

const SENT: u64 = 1;
const RECEIVED: u64 = 2;

#[derive(Debug, Clone, Copy)]
struct Slot {
    kind: Kind,
    length: u32,
    in_flight: bool,
    /// How often it was used: a reply that comes twice is told from the next one.
    turn: u32,
}

/// What the kernel reads or writes while the ring has requests. It stays where it is as long as these are not done.
struct Shared {
    memory: Memory,
    heads: Vec<[u8; Request::BYTES]>,
    header: libc::msghdr,
    slices: Vec<libc::iovec>,
    stage: Vec<u8>,
}

pub(crate) struct NbdEngine {
    ring: ManuallyDrop<Ring>,
    socket: OwnedFd,
    /// Leaked if the kernel may yet use it at the end.
    shared: ManuallyDrop<Box<Shared>>,
    slots: Vec<Slot>,
    /// Writes are durable when they are answered.
    through: bool,
    /// The server supports flush.
    flushes: bool,
    poll: bool,
    spins: Spins,
    /// What is to be sent when the kernel has sent what it has.
    queue: VecDeque<libc::iovec>,
    sending: bool,
    receiving: bool,
    /// Bytes that were received into the stage and not parsed yet.
    start: usize,
    end: usize,
    /// The slot whose data is being received, and how much of it is there.
    filling: Option<(u32, usize)>,
    in_flight: usize,
    done: VecDeque<(u32, i32)>,
}

impl NbdEngine {
    /// An engine for `slots` I/Os over this connection to this disk. `through`: writes are durable when they are answered.
    pub(crate) fn new(
        (socket, export): (OwnedFd, Export),
        memory: Memory,
        slots: usize,
        through: bool,
        waiting: Waiting,
    ) -> io::Result<NbdEngine> {
        let poll = waiting == Waiting::Spins;
        let ring = Ring::new(RingOptions { entries: 8, deferred: !poll })?;
        ring.register_files(&[socket.as_raw_fd()])?;
        // SAFETY: a header of zeroes is a valid one that refers to nothing.
        let header: libc::msghdr = unsafe { std::mem::zeroed() };
        let shared = Shared {
            memory,
            heads: vec![[0; Request::BYTES]; slots],
            header,
            slices: Vec::with_capacity(SLICES),
            stage: vec![0; STAGE],
        };
        let idle = Slot { kind: Kind::Read, length: 0, in_flight: false, turn: 0 };
        Ok(NbdEngine {
            ring: ManuallyDrop::new(ring),
            socket,
            shared: ManuallyDrop::new(Box::new(shared)),
            slots: vec![idle; slots],
            through,
            flushes: export.flushes(),
            poll,
            spins: Spins::new(waiting == Waiting::SpinsFirst),
            queue: VecDeque::new(),
            sending: false,
            receiving: false,
            start: 0,
            end: 0,
            filling: None,
            in_flight: 0,
            done: VecDeque::with_capacity(slots),
        })
    }

    /// Queues what is to be sent, and that something is to be received, if the kernel has neither.
    fn prepare(&mut self) -> io::Result<()> {
        if !self.sending && !self.queue.is_empty() {
            let shared = &mut **self.shared;
            shared.slices.clear();
            let count = self.queue.len().min(SLICES);
            shared.slices.extend(self.queue.drain(..count));
            self.send_slices(0)?;
        }
        if !self.receiving && self.in_flight > 0 {
            let shared = &mut **self.shared;
            let (into, length) = match self.filling {
                Some((slot, filled)) if self.slots[slot as usize].length as usize - filled >= DIRECT => {
                    let left = self.slots[slot as usize].length as usize - filled;
                    (shared.memory.slot(slot, Kind::Read)[filled..].as_mut_ptr(), left)
                }
                _ => {
                    if self.start > 0 {
                        shared.stage.copy_within(self.start..self.end, 0);
                        (self.start, self.end) = (0, self.end - self.start);
                    }
                    (shared.stage[self.end..].as_mut_ptr(), STAGE - self.end)
                }
            };
            let receive = opcode::Recv::new(types::Fixed(0), into, length as u32).build().user_data(RECEIVED);
            // SAFETY: the memory belongs to what is shared, and is kept until the completion is seen (see drop); nothing
            // else uses it until then: what is staged is read only between two receptions, and the data of a
            // read is its slot's alone until it is answered.
            self.receiving = unsafe { self.ring.push(&receive) };
            assert!(self.receiving, "a queue of eight has room for two");
        }
        Ok(())
    }

    /// Sends the slices from this one on.
    fn send_slices(&mut self, first: usize) -> io::Result<()> {
        let shared = &mut **self.shared;
        shared.header.msg_iov = shared.slices[first..].as_mut_ptr();
        shared.header.msg_iovlen = shared.slices.len() - first;
        let flags = (libc::MSG_NOSIGNAL | libc::MSG_WAITALL) as u32;
        let send = opcode::SendMsg::new(types::Fixed(0), &raw const shared.header).flags(flags).build();
        // SAFETY: header, slices and all that these refer to belong to what is shared, and are kept until the completion
        // is seen (see drop). None of it is changed until then: a head is its slot's, which is used again when it was
        // answered. (A server that answers what it has not received gets something else; that is all.)
        self.sending = unsafe { self.ring.push(&send.user_data(SENT)) };
        assert!(self.sending, "a queue of eight has room for two");
        Ok(())
    }

    /// Polls for answers for a while, before sleeping for them: a server on this host would have to wake this thread for each
    /// part of them, and that costs it more than to answer.
    fn poll(&mut self, want: usize, limit: Duration) -> io::Result<()> {
        self.ring.submit()?;
        let mut spins = std::mem::take(&mut self.spins);
        let found = spins.poll_while_idle(POLL_ALONE, POLL_WHILE_IDLE, limit, || {
            self.ring.poll()?;
            let something = self.collect()?;
            if self.done.len() >= want {
                return Ok(Seen::All);
            }
            if !something {
                return Ok(Seen::Nothing);
            }
            self.prepare()?;
            self.ring.submit()?;
            Ok(Seen::Some)
        });
        self.spins = spins;
        found
    }

    /// Takes what the kernel has done. Whether it has done anything.
    fn collect(&mut self) -> io::Result<bool> {
        let mut seen = [(0, 0); 2];
        let mut count = 0;
        for completion in self.ring.completions() {
            seen[count] = completion;
            count += 1;
        }
        for (what, result) in &seen[..count] {
            match *what {
                SENT => self.sent(*result)?,
                _ => self.received(*result)?,
            }
        }
        Ok(count > 0)
    }

    fn sent(&mut self, result: i32) -> io::Result<()> {
        self.sending = false;
        let mut left = match result {
            again if again == -libc::EINTR || again == -libc::EAGAIN => 0,
            failed if failed < 0 => return Err(lost(io::Error::from_raw_os_error(-failed))),
            sent => sent as usize,
        };
        let slices = &mut self.shared.slices;
        let mut first = 0;
        while first < slices.len() && left >= slices[first].iov_len {
            left -= slices[first].iov_len;
            first += 1;
        }
        if first < slices.len() {
            // A signal has cut it short.
            let slice = &mut slices[first];
            // SAFETY: less than its length was sent, so that this is within what it refers to.
            slice.iov_base = unsafe { slice.iov_base.cast::<u8>().add(left) }.cast();
            slice.iov_len -= left;
            self.send_slices(first)?;
        }
        Ok(())
    }

    fn received(&mut self, result: i32) -> io::Result<()> {
        self.receiving = false;
        let bytes = match result {
            again if again == -libc::EINTR || again == -libc::EAGAIN => return Ok(()),
            0 => return Err(lost(io::ErrorKind::UnexpectedEof.into())),
            failed if failed < 0 => return Err(lost(io::Error::from_raw_os_error(-failed))),
            bytes => bytes as usize,
        };
        if let Some((slot, filled)) = self.filling
            && self.slots[slot as usize].length as usize - filled >= DIRECT
        {
            self.filled(slot, filled + bytes);
            return Ok(());
        }
        self.end += bytes;
        loop {
            if let Some((slot, filled)) = self.filling {
                let some = (self.slots[slot as usize].length as usize - filled).min(self.end - self.start);
                let Shared { memory, stage, .. } = &mut **self.shared;
                let into = &mut memory.slot(slot, Kind::Read)[filled..filled + some];
                into.copy_from_slice(&stage[self.start..self.start + some]);
                self.start += some;
                self.filled(slot, filled + some);
                if self.filling.is_some() {
                    return Ok(());
                }
            }
            if self.end - self.start < SIMPLE_REPLY_BYTES {
                return Ok(());
            }
            self.reply()?;
        }
    }

    /// The head of a reply is there.
    fn reply(&mut self) -> io::Result<()> {
        let head = &self.shared.stage[self.start..self.start + SIMPLE_REPLY_BYTES];
        let (magic, error, cookie) = (get_u32(head, 0), get_u32(head, 4), get_u64(head, 8));
        self.start += SIMPLE_REPLY_BYTES;
        let (slot, turn) = (cookie as u32, (cookie >> 32) as u32);
        let of = self.slots.get_mut(slot as usize).filter(|slot| slot.in_flight && slot.turn == turn);
        let Some(of) = of.filter(|_| magic == SIMPLE_REPLY_MAGIC) else {
            return Err(io::Error::other(
                "the NBD server answered a request that was not sent: the server is broken",
            ));
        };
        if error > 0 {
            // The protocol's numbers are those of Linux.
            self.complete(slot, -(error.min(4095) as i32));
        } else if of.kind == Kind::Read && of.length > 0 {
            self.filling = Some((slot, 0));
        } else {
            let length = of.length as i32;
            self.complete(slot, length);
        }
        Ok(())
    }

    fn complete(&mut self, slot: u32, result: i32) {
        self.slots[slot as usize].in_flight = false;
        self.in_flight -= 1;
        self.done.push_back((slot, result));
    }

    /// So much of a read is there.
    fn filled(&mut self, slot: u32, filled: usize) {
        let length = self.slots[slot as usize].length;
        if filled < length as usize {
            self.filling = Some((slot, filled));
            return;
        }
        self.filling = None;
        self.complete(slot, length as i32);
    }
}

fn lost(why: io::Error) -> io::Error {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    match why.kind() {
        UnexpectedEof | ConnectionReset | BrokenPipe => io::Error::new(
            UnexpectedEof,
            "the NBD server closed the connection: the server's log has the reason",
        ),
        kind => io::Error::new(kind, format!("the connection to the NBD server broke: {why}")),
    }
}

impl Engine for NbdEngine {
    fn push(&mut self, io: Io) -> io::Result<()> {
        let slot = &mut self.slots[io.slot as usize];
        assert!(!slot.in_flight, "a slot has one I/O at a time");
        *slot = Slot { kind: io.kind, length: io.length, in_flight: true, turn: slot.turn.wrapping_add(1) };
        self.in_flight += 1;
        if io.kind == Kind::Flush && !self.flushes {
            self.complete(io.slot, 0);
            return Ok(());
        }
        let (command, flags) = match io.kind {
            Kind::Read => (command::READ, 0),
            Kind::Write if self.through => (command::WRITE, command_flag::FUA),
            Kind::Write => (command::WRITE, 0),
            Kind::Flush => (command::FLUSH, 0),
        };
        let cookie = u64::from(slot.turn) << 32 | u64::from(io.slot);
        let offset = if io.kind == Kind::Flush { 0 } else { io.offset };
        let request = Request { flags, command, cookie, offset, length: io.length };
        let head = &mut self.shared.heads[io.slot as usize];
        *head = request.encode();
        self.queue.push_back(libc::iovec { iov_base: head.as_mut_ptr().cast(), iov_len: head.len() });
        if io.kind == Kind::Write {
            let base = self.shared.memory.address(io.slot, Kind::Write);
            self.queue.push_back(libc::iovec { iov_base: base.cast(), iov_len: io.length as usize });
        }
        Ok(())
    }

    fn submit(&mut self) -> io::Result<()> {
        // A wait follows soon, and hands over as many as there are: each message wakes the server.
        if self.queue.len() < MANY {
            return Ok(());
        }
        self.prepare()?;
        self.ring.submit()
    }

    fn wait(&mut self, want: usize, limit: Duration) -> io::Result<()> {
        let until = Instant::now() + limit;
        self.prepare()?;
        if self.poll {
            // The caller comes again at once.
            self.ring.poll()?;
            self.collect()?;
            return Ok(());
        }
        if self.done.len() >= want {
            // Of what is done already there is nothing to be seen.
            return self.ring.submit();
        }
        if want <= self.done.len() + self.in_flight && self.spins.worth_it() {
            self.poll(want, limit)?;
            self.prepare()?;
        }
        while self.done.len() < want {
            let left = until.saturating_duration_since(Instant::now());
            self.ring.wait(1, Some(left))?;
            self.collect()?;
            self.prepare()?;
            if left.is_zero() {
                break;
            }
        }
        Ok(())
    }

    fn reap(&mut self) -> Option<(u32, i32)> {
        self.done.pop_front()
    }

    fn memory(&mut self) -> &mut Memory {
        &mut self.shared.memory
    }

    fn polled(&self) -> Duration {
        self.spins.waited()
    }
}

impl Drop for NbdEngine {
    fn drop(&mut self) {
        if !self.sending && self.queue.is_empty() {
            let good_bye = Request { flags: 0, command: command::DISC, cookie: 0, offset: 0, length: 0 };
            let flags = nix::sys::socket::MsgFlags::MSG_DONTWAIT | nix::sys::socket::MsgFlags::MSG_NOSIGNAL;
            let _ = nix::sys::socket::send(self.socket.as_raw_fd(), &good_bye.encode(), flags);
        }
        // What the kernel waits for ends by it.
        let _ = nix::sys::socket::shutdown(self.socket.as_raw_fd(), nix::sys::socket::Shutdown::Both);
        let until = Instant::now() + DROP_LIMIT;
        while (self.sending || self.receiving) && Instant::now() < until {
            let _ = self.ring.wait(1, Some(DROP_LIMIT));
            for (what, _) in self.ring.completions() {
                if what == SENT {
                    self.sending = false;
                } else {
                    self.receiving = false;
                }
            }
        }
        // SAFETY: neither is used again; the ring goes first, then what its requests refer to.
        unsafe { ManuallyDrop::drop(&mut self.ring) };
        if !self.sending && !self.receiving {
            // SAFETY: the ring has no requests, so that the kernel uses none of it.
            unsafe { ManuallyDrop::drop(&mut self.shared) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loadline_base::nbd::transmission;
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
    use std::io::Read as _;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_request_is_on_its_way_after_a_wait_that_finds_enough_done_already() {
        let (ours, server) =
            socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC).unwrap();
        let memory = Memory::new(4096, 2, true, false).unwrap();
        // It makes nothing durable: a flush is done at once.
        let export = Export::of_flags(1 << 20, transmission::HAS_FLAGS);
        let mut engine = NbdEngine::new((ours, export), memory, 2, false, Waiting::Sleeps).unwrap();
        engine.push(Io { slot: 0, kind: Kind::Flush, offset: 0, length: 0 }).unwrap();
        engine.push(Io { slot: 1, kind: Kind::Read, offset: 4096, length: 4096 }).unwrap();
        engine.wait(1, Duration::from_secs(1)).unwrap();
        assert_eq!((engine.reap(), engine.reap()), (Some((0, 0)), None));
        let mut server = UnixStream::from(server);
        server.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut request = [0; Request::BYTES];
        server.read_exact(&mut request).expect("it was sent");
        assert_eq!(Request::decode(&request).map(|request| request.offset), Some(4096));
    }
}
