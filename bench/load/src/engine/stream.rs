//! A connection to a server: one for each thread, one ring for what it sends and receives.
//!
//! All that is to be said at once goes into one `sendmsg`, all that has come is received at once, and one system call
//! does both: an I/O of a batch costs little more than its bytes. What the bytes mean is the protocol's part.

use std::collections::VecDeque;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use loadline_base::ring::{Ring, RingOptions, opcode, types};
use loadline_base::spin::{Seen, Spins};
use nix::libc;
use nix::sys::socket::{MsgFlags, Shutdown, send, shutdown};

use super::uring::Waiting;
use super::{Engine, Io, Kind, Memory, POLL_ALONE, POLL_WHILE_IDLE};

/// Replies are received into so much at once.
const STAGE: usize = 256 << 10;
/// Of data that is longer than this, the rest is received where it belongs.
const DIRECT: usize = 16 << 10;
/// So many slices are sent before others follow.
const MANY: usize = 32;
/// Slices that are sent at once: the kernel takes no more.
pub(super) const SLICES: usize = 1024;
/// How long dropping an engine waits for the kernel to be done with its memory.
const DROP_LIMIT: Duration = Duration::from_millis(100);

const SENT: u64 = 1;
const RECEIVED: u64 = 2;

/// Where the rest of a read's data belongs, which is the next that the server sends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Missing {
    pub(crate) slot: u32,
    /// Bytes of the slot that are there.
    pub(crate) from: usize,
    /// Bytes that follow: at least one, all within the slot.
    pub(crate) bytes: usize,
}

/// The part of an engine that knows the protocol: it turns I/Os into bytes, and bytes into completions. It does no I/O itself.
///
/// # Safety
/// The slices that [`gather`](Self::gather) adds refer to the memory of slots, or to memory on the heap that the implementor
/// neither frees nor moves as long as it lives.
pub(crate) unsafe trait Protocol {
    /// What the server is called in messages, such as `NBD server`.
    const SERVER: &'static str;

    /// Begins an I/O in a free slot.
    fn push(&mut self, io: Io, memory: &Memory);

    /// How many slices wait to be sent, about.
    fn queued(&self) -> usize;

    /// Adds what is to be sent next to the empty slices, at most [`SLICES`]. Only called when all that it added before was sent.
    fn gather(&mut self, memory: &mut Memory, slices: &mut Vec<libc::iovec>);

    /// When it has something to send, even if nothing else happens.
    fn due(&self) -> Option<Instant> {
        None
    }

    /// Whether the server may send anything now.
    fn expects(&self) -> bool;

    /// The data that comes next, if it is known where it belongs.
    fn missing(&self) -> Option<Missing>;

    /// So many of the missing bytes were received where they belong.
    fn filled(&mut self, memory: &mut Memory, bytes: usize) -> io::Result<()>;

    /// Takes what was received, from its beginning: all that is complete. Returns how many bytes that is. All of it if data is
    /// [`missing`](Self::missing) then; and what it leaves is less than what fits into the stage.
    fn take(&mut self, memory: &mut Memory, received: &[u8]) -> io::Result<usize>;

    /// I/Os that have not completed.
    fn in_flight(&self) -> usize;

    /// I/Os that have completed and were not taken yet.
    fn done(&mut self) -> &mut VecDeque<(u32, i32)>;

    /// What is sent before the connection is closed; `None` if it would come in the middle of something else.
    fn good_bye(&mut self) -> Option<Vec<u8>>;
}

/// What the kernel reads or writes while the ring has requests. It stays where it is as long as these are not done.
struct Shared<P> {
    protocol: P,
    memory: Memory,
    header: libc::msghdr,
    slices: Vec<libc::iovec>,
    stage: Vec<u8>,
}

/// What the kernel has been asked to receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Receiving {
    Nothing,
    /// Into the stage.
    Staged,
    /// Into the memory of a slot.
    Missing,
}

pub(crate) struct StreamEngine<P: Protocol> {
    ring: ManuallyDrop<Ring>,
    socket: OwnedFd,
    /// Leaked if the kernel may yet use it at the end.
    shared: ManuallyDrop<Box<Shared<P>>>,
    poll: bool,
    spins: Spins,
    sending: bool,
    receiving: Receiving,
    /// Bytes that were received into the stage and not taken yet.
    start: usize,
    end: usize,
}

impl<P: Protocol> StreamEngine<P> {
    /// An engine over this connection.
    pub(super) fn over(
        socket: OwnedFd,
        protocol: P,
        memory: Memory,
        waiting: Waiting,
    ) -> io::Result<StreamEngine<P>> {
        let poll = waiting == Waiting::Spins;
        let ring = Ring::new(RingOptions { entries: 8, deferred: !poll })?;
        ring.register_files(&[socket.as_raw_fd()])?;
        // SAFETY: a header of zeroes is a valid one that refers to nothing.
        let header: libc::msghdr = unsafe { std::mem::zeroed() };
        let (slices, stage) = (Vec::with_capacity(SLICES), vec![0; STAGE]);
        let shared = Shared { protocol, memory, header, slices, stage };
        Ok(StreamEngine {
            ring: ManuallyDrop::new(ring),
            socket,
            shared: ManuallyDrop::new(Box::new(shared)),
            poll,
            spins: Spins::new(waiting == Waiting::SpinsFirst),
            sending: false,
            receiving: Receiving::Nothing,
            start: 0,
            end: 0,
        })
    }

    /// Queues what is to be sent, and that something is to be received, if the kernel has neither.
    fn prepare(&mut self) {
        if !self.sending {
            let Shared { protocol, memory, slices, .. } = &mut **self.shared;
            slices.clear();
            protocol.gather(memory, slices);
            if !slices.is_empty() {
                self.send_slices(0);
            }
        }
        if self.receiving == Receiving::Nothing && self.shared.protocol.expects() {
            let (start, end) = (self.start, self.end);
            let Shared { protocol, memory, stage, .. } = &mut **self.shared;
            let missing = protocol.missing().filter(|missing| missing.bytes >= DIRECT && start == end);
            let (into, length) = match missing {
                Some(Missing { slot, from, bytes }) => {
                    self.receiving = Receiving::Missing;
                    (memory.slot(slot, Kind::Read)[from..from + bytes].as_mut_ptr(), bytes)
                }
                None => {
                    if start > 0 {
                        stage.copy_within(start..end, 0);
                        (self.start, self.end) = (0, end - start);
                    }
                    self.receiving = Receiving::Staged;
                    (stage[self.end..].as_mut_ptr(), STAGE - self.end)
                }
            };
            let receive = opcode::Recv::new(types::Fixed(0), into, length as u32).build().user_data(RECEIVED);
            // SAFETY: the memory belongs to what is shared, and is kept until the completion is seen (see drop); nothing
            // else uses it until then: what is staged is read only between two receptions, and the data of a
            // read is its slot's alone until it is answered.
            let pushed = unsafe { self.ring.push(&receive) };
            assert!(pushed, "a queue of eight has room for two");
        }
    }

    /// Sends the slices from this one on.
    fn send_slices(&mut self, first: usize) {
        let shared = &mut **self.shared;
        shared.header.msg_iov = shared.slices[first..].as_mut_ptr();
        shared.header.msg_iovlen = shared.slices.len() - first;
        let flags = (libc::MSG_NOSIGNAL | libc::MSG_WAITALL) as u32;
        let send = opcode::SendMsg::new(types::Fixed(0), &raw const shared.header).flags(flags).build();
        // SAFETY: header, slices and all that these refer to belong to what is shared (see `Protocol`), and are kept until the
        // completion is seen (see drop). The header and the slices are not changed until then. What they refer to is a slot's,
        // which is used again when its I/O was answered. (A server that answers what it has not received gets something else;
        // that is all.)
        self.sending = unsafe { self.ring.push(&send.user_data(SENT)) };
        assert!(self.sending, "a queue of eight has room for two");
    }

    /// Polls for answers for a while, before sleeping for them: a server on this host would have to wake this thread for each
    /// part of them, and that costs it more than to answer.
    fn poll(&mut self, want: usize, limit: Duration) -> io::Result<()> {
        self.ring.submit()?;
        let mut spins = std::mem::take(&mut self.spins);
        let found = spins.poll_while_idle(POLL_ALONE, POLL_WHILE_IDLE, limit, || {
            self.ring.poll()?;
            let something = self.collect()?;
            if self.done() >= want {
                return Ok(Seen::All);
            }
            if !something {
                return Ok(Seen::Nothing);
            }
            self.prepare();
            self.ring.submit()?;
            Ok(Seen::Some)
        });
        self.spins = spins;
        found
    }

    fn done(&mut self) -> usize {
        self.shared.protocol.done().len()
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
            failed if failed < 0 => return Err(lost::<P>(io::Error::from_raw_os_error(-failed))),
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
            self.send_slices(first);
        }
        Ok(())
    }

    fn received(&mut self, result: i32) -> io::Result<()> {
        let into = std::mem::replace(&mut self.receiving, Receiving::Nothing);
        let bytes = match result {
            again if again == -libc::EINTR || again == -libc::EAGAIN => return Ok(()),
            0 => return Err(lost::<P>(io::ErrorKind::UnexpectedEof.into())),
            failed if failed < 0 => return Err(lost::<P>(io::Error::from_raw_os_error(-failed))),
            bytes => bytes as usize,
        };
        let Shared { protocol, memory, stage, .. } = &mut **self.shared;
        if into == Receiving::Missing {
            return protocol.filled(memory, bytes);
        }
        self.end += bytes;
        self.start += protocol.take(memory, &stage[self.start..self.end])?;
        Ok(())
    }
}

fn lost<P: Protocol>(why: io::Error) -> io::Error {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    let server = P::SERVER;
    match why.kind() {
        UnexpectedEof | ConnectionReset | BrokenPipe => io::Error::new(
            UnexpectedEof,
            format!("the {server} closed the connection: the server's log has the reason"),
        ),
        kind => io::Error::new(kind, format!("the connection to the {server} broke: {why}")),
    }
}

impl<P: Protocol> Engine for StreamEngine<P> {
    fn push(&mut self, io: Io) -> io::Result<()> {
        let Shared { protocol, memory, .. } = &mut **self.shared;
        protocol.push(io, memory);
        Ok(())
    }

    fn submit(&mut self) -> io::Result<()> {
        // A wait follows soon, and hands over as many as there are: each message wakes the server.
        if self.shared.protocol.queued() < MANY {
            return Ok(());
        }
        self.prepare();
        self.ring.submit()
    }

    fn wait(&mut self, want: usize, limit: Duration) -> io::Result<()> {
        let until = Instant::now() + limit;
        self.prepare();
        if self.poll {
            // The caller comes again at once.
            self.ring.poll()?;
            self.collect()?;
            return Ok(());
        }
        if self.done() >= want {
            // Of what is done already there is nothing to be seen.
            return self.ring.submit();
        }
        if want <= self.done() + self.shared.protocol.in_flight() && self.spins.worth_it() {
            self.poll(want, limit)?;
            self.prepare();
        }
        while self.done() < want {
            let now = Instant::now();
            let left = until.saturating_duration_since(now);
            let due = self.shared.protocol.due().map_or(left, |due| due.saturating_duration_since(now));
            self.ring.wait(1, Some(left.min(due)))?;
            self.collect()?;
            self.prepare();
            if left.is_zero() {
                break;
            }
        }
        Ok(())
    }

    fn reap(&mut self) -> Option<(u32, i32)> {
        self.shared.protocol.done().pop_front()
    }

    fn memory(&mut self) -> &mut Memory {
        &mut self.shared.memory
    }

    fn polled(&self) -> Duration {
        self.spins.waited()
    }
}

impl<P: Protocol> Drop for StreamEngine<P> {
    fn drop(&mut self) {
        if !self.sending
            && let Some(good_bye) = self.shared.protocol.good_bye()
        {
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            let _ = send(self.socket.as_raw_fd(), &good_bye, flags);
        }
        // What the kernel waits for ends by it.
        let _ = shutdown(self.socket.as_raw_fd(), Shutdown::Both);
        let until = Instant::now() + DROP_LIMIT;
        while (self.sending || self.receiving != Receiving::Nothing) && Instant::now() < until {
            let _ = self.ring.wait(1, Some(DROP_LIMIT));
            for (what, _) in self.ring.completions() {
                if what == SENT {
                    self.sending = false;
                } else {
                    self.receiving = Receiving::Nothing;
                }
            }
        }
        // SAFETY: neither is used again; the ring goes first, then what its requests refer to.
        unsafe { ManuallyDrop::drop(&mut self.ring) };
        if !self.sending && self.receiving == Receiving::Nothing {
            // SAFETY: the ring has no requests, so that the kernel uses none of it.
            unsafe { ManuallyDrop::drop(&mut self.shared) };
        }
    }
}
