//! What an NBD client says and understands, once it has chosen a disk.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;

use loadline_base::nbd::{
    Request, SIMPLE_REPLY_BYTES, SIMPLE_REPLY_MAGIC, command, command_flag, get_u32, get_u64,
};
use nix::libc;

use super::stream::{Missing, Protocol, SLICES, StreamEngine};
use super::uring::Waiting;
use super::{Io, Kind, Memory};
use crate::nbd::connect::Export;

#[derive(Debug, Clone, Copy)]
struct Slot {
    kind: Kind,
    length: u32,
    in_flight: bool,
    /// How often it was used: a reply that comes twice is told from the next one.
    turn: u32,
}

/// An NBD server's disk.
pub(crate) type NbdEngine = StreamEngine<NbdProtocol>;

pub(crate) struct NbdProtocol {
    heads: Vec<[u8; Request::BYTES]>,
    slots: Vec<Slot>,
    /// Writes are durable when they are answered.
    through: bool,
    /// The server supports flush.
    flushes: bool,
    /// What is to be sent when the kernel has sent what it has.
    queue: VecDeque<libc::iovec>,
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
        let idle = Slot { kind: Kind::Read, length: 0, in_flight: false, turn: 0 };
        let protocol = NbdProtocol {
            heads: vec![[0; Request::BYTES]; slots],
            slots: vec![idle; slots],
            through,
            flushes: export.flushes(),
            queue: VecDeque::new(),
            filling: None,
            in_flight: 0,
            done: VecDeque::with_capacity(slots),
        };
        StreamEngine::over(socket, protocol, memory, waiting)
    }
}

impl NbdProtocol {
    /// The head of a reply is there.
    fn reply(&mut self, head: &[u8]) -> io::Result<()> {
        let (magic, error, cookie) = (get_u32(head, 0), get_u32(head, 4), get_u64(head, 8));
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
    fn filled_to(&mut self, slot: u32, filled: usize) {
        let length = self.slots[slot as usize].length;
        if filled < length as usize {
            self.filling = Some((slot, filled));
            return;
        }
        self.filling = None;
        self.complete(slot, length as i32);
    }
}

// SAFETY: slices refer to slots and to the heads, whose vector never grows.
unsafe impl Protocol for NbdProtocol {
    const SERVER: &'static str = "NBD server";

    fn push(&mut self, io: Io, memory: &Memory) {
        let slot = &mut self.slots[io.slot as usize];
        assert!(!slot.in_flight, "a slot has one I/O at a time");
        *slot = Slot { kind: io.kind, length: io.length, in_flight: true, turn: slot.turn.wrapping_add(1) };
        self.in_flight += 1;
        if io.kind == Kind::Flush && !self.flushes {
            self.complete(io.slot, 0);
            return;
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
        let head = &mut self.heads[io.slot as usize];
        *head = request.encode();
        self.queue.push_back(libc::iovec { iov_base: head.as_mut_ptr().cast(), iov_len: head.len() });
        if io.kind == Kind::Write {
            let base = memory.address(io.slot, Kind::Write);
            self.queue.push_back(libc::iovec { iov_base: base.cast(), iov_len: io.length as usize });
        }
    }

    fn queued(&self) -> usize {
        self.queue.len()
    }

    fn gather(&mut self, _memory: &mut Memory, slices: &mut Vec<libc::iovec>) {
        let count = self.queue.len().min(SLICES);
        slices.extend(self.queue.drain(..count));
    }

    fn expects(&self) -> bool {
        self.in_flight > 0
    }

    fn missing(&self) -> Option<Missing> {
        let (slot, from) = self.filling?;
        Some(Missing { slot, from, bytes: self.slots[slot as usize].length as usize - from })
    }

    fn filled(&mut self, _memory: &mut Memory, bytes: usize) -> io::Result<()> {
        if let Some((slot, filled)) = self.filling {
            self.filled_to(slot, filled + bytes);
        }
        Ok(())
    }

    fn take(&mut self, memory: &mut Memory, received: &[u8]) -> io::Result<usize> {
        let mut rest = received;
        loop {
            if let Some(Missing { slot, from, bytes }) = self.missing() {
                let (some, behind) = rest.split_at(bytes.min(rest.len()));
                memory.slot(slot, Kind::Read)[from..from + some.len()].copy_from_slice(some);
                rest = behind;
                self.filled_to(slot, from + some.len());
                if self.filling.is_some() {
                    break;
                }
            }
            let Some((head, behind)) = rest.split_at_checked(SIMPLE_REPLY_BYTES) else { break };
            rest = behind;
            self.reply(head)?;
        }
        Ok(received.len() - rest.len())
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn done(&mut self) -> &mut VecDeque<(u32, i32)> {
        &mut self.done
    }

    fn good_bye(&mut self) -> Option<Vec<u8>> {
        let request = Request { flags: 0, command: command::DISC, cookie: 0, offset: 0, length: 0 };
        self.queue.is_empty().then(|| request.encode().to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Engine as _;
    use loadline_base::nbd::transmission;
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
    use std::io::Read as _;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

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
