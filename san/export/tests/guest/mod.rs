//! A front-end by hand: its memory, its queue, its messages; and a disk for the session that serves it.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::fs::File;
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use loadline_base::buffer::AlignedBuffer;
use loadline_san_core::lease::Moment;
use loadline_san_core::message::{Content, Payload};
use loadline_san_core::volume::Failure;
use loadline_san_device::pool::{Class, Pool};
use loadline_san_export::block::{BlockRequest, Operation};
use loadline_san_export::session::{Attachment, Session as _, SessionEnd};
use loadline_san_export::vhost::session::{Listened, Session, SessionError};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, recv, sendmsg, socketpair,
};

pub(crate) const BYTES: usize = 1 << 20;
pub(crate) const GUEST: u64 = 0x10_0000;
pub(crate) const USER: u64 = 0x7f00_0000_0000;
pub(crate) const TABLE: usize = 0;
pub(crate) const AVAILABLE: usize = 0x1000;
pub(crate) const USED: usize = 0x2000;
pub(crate) const HEADERS: usize = 0x3000;
pub(crate) const STATUS: usize = 0x5000;
pub(crate) const TABLES: usize = 0x8000;
pub(crate) const DATA: usize = 0x2_0000;
pub(crate) const SIZE: u16 = 64;
pub(crate) const DISK: usize = 128 << 10;

pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;
pub(crate) const INDIRECT: u16 = 4;

/// What messages are called.
pub(crate) mod say {
    pub(crate) const GET_FEATURES: u32 = 1;
    pub(crate) const SET_FEATURES: u32 = 2;
    pub(crate) const SET_MEM_TABLE: u32 = 5;
    pub(crate) const SET_LOG_BASE: u32 = 6;
    pub(crate) const SET_LOG_FD: u32 = 7;
    pub(crate) const SET_VRING_NUM: u32 = 8;
    pub(crate) const SET_VRING_ADDR: u32 = 9;
    pub(crate) const SET_VRING_BASE: u32 = 10;
    pub(crate) const GET_VRING_BASE: u32 = 11;
    pub(crate) const SET_VRING_KICK: u32 = 12;
    pub(crate) const SET_VRING_CALL: u32 = 13;
    pub(crate) const GET_PROTOCOL_FEATURES: u32 = 15;
    pub(crate) const SET_PROTOCOL_FEATURES: u32 = 16;
    pub(crate) const SET_VRING_ENABLE: u32 = 18;
    pub(crate) const GET_CONFIG: u32 = 24;
    pub(crate) const GET_INFLIGHT_FD: u32 = 31;
    pub(crate) const SET_INFLIGHT_FD: u32 = 32;
    pub(crate) const RESET_DEVICE: u32 = 34;
    pub(crate) const ADD_MEM_REG: u32 = 37;
    pub(crate) const REM_MEM_REG: u32 = 38;
}

pub(crate) const EVENT_IDX: u64 = 1 << 29;
pub(crate) const FEATURES: u64 = 1 << 32 | 1 << 30 | 1 << 28;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Descriptor {
    pub(crate) at: u64,
    pub(crate) bytes: u32,
    pub(crate) flags: u16,
    pub(crate) next: u16,
}

/// The memory of a guest; it outlives a session.
pub(crate) struct Memory {
    pub(crate) buffer: AlignedBuffer,
    pub(crate) file: OwnedFd,
    /// What the guest has put into its queue.
    pub(crate) available: u16,
    seen: u16,
}

impl Memory {
    pub(crate) fn new() -> Memory {
        let (buffer, file) = AlignedBuffer::shared(BYTES).unwrap();
        Memory { buffer, file, available: 0, seen: 0 }
    }

    pub(crate) fn put(&mut self, at: usize, bytes: &[u8]) {
        self.buffer.as_mut_slice()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub(crate) fn get(&self, at: usize, bytes: usize) -> &[u8] {
        &self.buffer.as_slice()[at..at + bytes]
    }

    pub(crate) fn get_u16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.get(at, 2).try_into().unwrap())
    }

    pub(crate) fn describe(&mut self, table: usize, index: u16, is: Descriptor) {
        let at = table + 16 * usize::from(index);
        self.put(at, &is.at.to_le_bytes());
        self.put(at + 8, &is.bytes.to_le_bytes());
        self.put(at + 12, &is.flags.to_le_bytes());
        self.put(at + 14, &is.next.to_le_bytes());
    }

    /// A chain in a table, from this descriptor on, of pieces that are written to or not.
    pub(crate) fn chain(&mut self, table: usize, first: u16, pieces: &[(usize, u32, bool)]) {
        for (n, (at, bytes, write)) in (0..).zip(pieces) {
            let last = usize::from(n) + 1 == pieces.len();
            let flags = if *write { WRITE } else { 0 } | if last { 0 } else { NEXT };
            let at = GUEST + *at as u64;
            self.describe(table, first + n, Descriptor { at, bytes: *bytes, flags, next: first + n + 1 });
        }
    }

    /// Puts a head into the queue.
    pub(crate) fn offer(&mut self, head: u16) {
        self.put(AVAILABLE + 4 + 2 * usize::from(self.available % SIZE), &head.to_le_bytes());
        self.available = self.available.wrapping_add(1);
        let available = self.available;
        self.put(AVAILABLE + 2, &available.to_le_bytes());
    }

    pub(crate) fn header(&mut self, at: usize, kind: u32, sector: u64) {
        self.put(at, &kind.to_le_bytes());
        self.put(at + 4, &[0; 4]);
        self.put(at + 8, &sector.to_le_bytes());
    }

    /// Heads that were answered since the last time, and how many bytes were written.
    pub(crate) fn answered(&mut self) -> Vec<(u16, u32)> {
        let used = self.get_u16(USED + 2);
        let mut heads = Vec::new();
        while self.seen != used {
            let at = USED + 4 + 8 * usize::from(self.seen % SIZE);
            let number = |at| u32::from_le_bytes(self.get(at, 4).try_into().unwrap());
            heads.push((number(at) as u16, number(at + 4)));
            self.seen = self.seen.wrapping_add(1);
        }
        heads
    }
}

/// A front-end that is connected, and what serves it.
pub(crate) struct Guest {
    pub(crate) memory: Memory,
    pub(crate) session: Session,
    pub(crate) socket: OwnedFd,
    pub(crate) kick: EventFd,
    pub(crate) call: EventFd,
    pub(crate) pool: Pool,
    pub(crate) disk: Vec<u8>,
    pub(crate) now: Moment,
}

pub(crate) fn attachment(number: u64, alone_since: u64) -> Attachment {
    Attachment { cluster: 7, volume: 3, number, alone_since }
}

pub(crate) fn eventfd() -> EventFd {
    EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap()
}

impl Guest {
    /// One that has sent nothing yet.
    pub(crate) fn silent(memory: Memory, attachment: Attachment) -> Guest {
        let (socket, other) =
            socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC).unwrap();
        let session = Session::new(other, DISK as u64, "disk", attachment).unwrap();
        let pool = Pool::new(&[Class { blocks: 1, buffers: 64 }, Class { blocks: 64, buffers: 8 }]).unwrap();
        let disk = (0..DISK).map(|n| (n / 512 * 7 + n) as u8).collect();
        Guest { memory, session, socket, kick: eventfd(), call: eventfd(), pool, disk, now: Moment(1) }
    }

    /// One whose queue runs.
    pub(crate) fn new(features: u64) -> Guest {
        let mut guest = Guest::silent(Memory::new(), attachment(1, 1));
        guest.set_up(features);
        guest.run_queue();
        guest
    }

    pub(crate) fn set_up(&mut self, features: u64) {
        self.tell(say::SET_FEATURES, &(FEATURES | features).to_le_bytes(), &[]);
        let protocol = u64::from_le_bytes(self.ask(say::GET_PROTOCOL_FEATURES, &[])[..8].try_into().unwrap());
        // No answers to what asks for nothing.
        self.tell(say::SET_PROTOCOL_FEATURES, &(protocol & !8).to_le_bytes(), &[]);
        let region = region(GUEST, BYTES as u64, USER, 0);
        let file = self.memory.file.as_raw_fd();
        self.tell(say::SET_MEM_TABLE, &[1_u64.to_le_bytes().to_vec(), region].concat(), &[file]);
    }

    pub(crate) fn run_queue(&mut self) {
        self.tell(say::SET_VRING_NUM, &state(0, SIZE.into()), &[]);
        self.tell(say::SET_VRING_BASE, &state(0, 0), &[]);
        let places = places(0, USER + TABLE as u64, USER + USED as u64, USER + AVAILABLE as u64);
        self.tell(say::SET_VRING_ADDR, &places, &[]);
        self.tell(say::SET_VRING_CALL, &0_u64.to_le_bytes(), &[self.call.as_fd().as_raw_fd()]);
        self.tell(say::SET_VRING_KICK, &0_u64.to_le_bytes(), &[self.kick.as_fd().as_raw_fd()]);
        self.tell(say::SET_VRING_ENABLE, &state(0, 1), &[]);
    }

    pub(crate) fn send(&self, bytes: &[u8], files: &[RawFd]) {
        let rights = [ControlMessage::ScmRights(files)];
        let control = if files.is_empty() { &rights[..0] } else { &rights[..] };
        let sent =
            sendmsg::<()>(self.socket.as_raw_fd(), &[IoSlice::new(bytes)], control, MsgFlags::empty(), None);
        assert_eq!(sent.unwrap(), bytes.len());
    }

    pub(crate) fn listen(&mut self) -> Result<Listened, SessionError> {
        self.session.listen(self.now)
    }

    /// Sends a message, and has the session receive it.
    pub(crate) fn try_tell(
        &mut self,
        what: u32,
        body: &[u8],
        files: &[RawFd],
    ) -> Result<Listened, SessionError> {
        self.send(&message(what, body), files);
        self.listen()
    }

    pub(crate) fn tell(&mut self, what: u32, body: &[u8], files: &[RawFd]) {
        assert_eq!(self.try_tell(what, body, files).unwrap(), Listened::Watch, "{what}");
    }

    pub(crate) fn answer(&self) -> Option<Vec<u8>> {
        let mut bytes = [0; 4096];
        let got = recv(self.socket.as_raw_fd(), &mut bytes, MsgFlags::MSG_DONTWAIT).ok()?;
        Some(bytes[12..got].to_vec())
    }

    pub(crate) fn ask(&mut self, what: u32, body: &[u8]) -> Vec<u8> {
        self.tell(what, body, &[]);
        self.answer().expect("it is answered")
    }

    pub(crate) fn take(&mut self) -> Result<Vec<BlockRequest>, SessionError> {
        let mut asked = Vec::new();
        self.session.take(&self.pool, &mut asked).map(|()| asked)
    }

    /// Takes what is in the queue, and does it.
    pub(crate) fn serve(&mut self) -> Result<usize, SessionEnd> {
        let asked = self.take().map_err(|why| SessionEnd::Protocol(why.to_string()))?;
        let count = asked.len();
        for asked in asked {
            self.carry_out(&asked);
            self.session.complete(asked.slot, Ok(()))?;
        }
        self.tell_all();
        Ok(count)
    }

    /// Rings the bells that are to be rung.
    pub(crate) fn tell_all(&mut self) {
        let mut bells = Vec::new();
        self.session.send(true, |fd| bells.push(fd)).expect("it sends nothing by itself");
        for fd in bells {
            // SAFETY: it is open, as the session promises, and is given back at once.
            let bell =
                std::mem::ManuallyDrop::new(unsafe { <File as std::os::fd::FromRawFd>::from_raw_fd(fd) });
            std::io::Write::write_all(&mut &*bell, &1_u64.to_ne_bytes()).unwrap();
        }
    }

    pub(crate) fn fail(&mut self, asked: &BlockRequest, why: Failure) {
        self.session.complete(asked.slot, Err(why)).unwrap();
    }

    pub(crate) fn carry_out(&mut self, asked: &BlockRequest) {
        let from = asked.sector as usize * 512;
        let place = from..from + asked.sectors as usize * 512;
        match &asked.operation {
            Operation::Read => {
                let (first, end) = (place.start / 4096, place.end.div_ceil(4096));
                // In parts of a block, and some of them twice.
                for block in (first..end).chain(first..end.min(first + 1)) {
                    let bytes = &self.disk[block * 4096..(block + 1) * 4096];
                    let at = (block - first) as u64;
                    let content = match bytes.iter().all(|byte| *byte == 0) {
                        true => Content::Nothing,
                        false => {
                            let data = self.pool.take_filled(bytes).unwrap().freeze_without();
                            Content::Data(Payload { data, first: 0 })
                        }
                    };
                    self.session.fill(asked.slot, at, 1, content);
                }
            }
            Operation::Write(data) => self.disk[place.clone()].copy_from_slice(&data.bytes()[..place.len()]),
            Operation::WriteZeroes | Operation::Trim => self.disk[place].fill(0),
            Operation::Map => unreachable!("a guest cannot ask for that"),
            Operation::Flush => assert_eq!(asked.sectors, 0),
        }
    }
}

pub(crate) fn message(what: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = what.to_le_bytes().to_vec();
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend((body.len() as u32).to_le_bytes());
    bytes.extend(body);
    bytes
}

pub(crate) fn state(index: u32, number: u32) -> Vec<u8> {
    [index.to_le_bytes(), number.to_le_bytes()].concat()
}

pub(crate) fn places(index: u32, table: u64, used: u64, available: u64) -> Vec<u8> {
    let mut bytes = state(index, 0);
    [table, used, available, 0].iter().for_each(|at| bytes.extend(at.to_le_bytes()));
    bytes
}

pub(crate) fn region(guest: u64, bytes: u64, user: u64, offset: u64) -> Vec<u8> {
    [guest, bytes, user, offset].iter().flat_map(|part| part.to_le_bytes()).collect()
}

pub(crate) fn one_region(guest: u64, bytes: u64, user: u64, offset: u64) -> Vec<u8> {
    [0_u64.to_le_bytes().to_vec(), region(guest, bytes, user, offset)].concat()
}

/// Asks for memory in which requests in flight are kept, as a front-end does.
pub(crate) fn inflight(guest: &mut Guest, queues: u16, size: u16) -> (Vec<u8>, File) {
    use nix::sys::socket::{ControlMessageOwned, recvmsg};
    let mut wanted = vec![0; 16];
    wanted.extend(queues.to_le_bytes());
    wanted.extend(size.to_le_bytes());
    wanted.extend([0; 4]);
    guest.tell(say::GET_INFLIGHT_FD, &wanted, &[]);
    let mut bytes = [0; 64];
    let mut space = nix::cmsg_space!([RawFd; 1]);
    let mut slices = [std::io::IoSliceMut::new(&mut bytes)];
    let got = recvmsg::<()>(guest.socket.as_raw_fd(), &mut slices, Some(&mut space), MsgFlags::MSG_DONTWAIT)
        .unwrap();
    let fd = got.cmsgs().unwrap().find_map(|part| match part {
        ControlMessageOwned::ScmRights(fds) => fds.first().copied(),
        _ => None,
    });
    let length = got.bytes;
    // SAFETY: the kernel has just given it, to this message.
    let file =
        unsafe { <File as std::os::fd::FromRawFd>::from_raw_fd(fd.expect("a descriptor comes with it")) };
    (bytes[12..length].to_vec(), file)
}

pub(crate) const IN: u32 = 0;
pub(crate) const OUT: u32 = 1;
pub(crate) const FLUSH: u32 = 4;
pub(crate) const GET_ID: u32 = 8;
pub(crate) const DISCARD: u32 = 11;
pub(crate) const WRITE_ZEROES: u32 = 13;

/// A request of one piece of data at `DATA`, as drivers make them, with the head 3 × `number`.
pub(crate) fn request(guest: &mut Guest, number: u16, kind: u32, sector: u64, data: u32) {
    let (header, status) = (HEADERS + 16 * usize::from(number), STATUS + usize::from(number));
    let place = DATA + 0x1_0000 * usize::from(number);
    guest.memory.header(header, kind, sector);
    guest.memory.put(status, &[0xff]);
    let mut pieces = vec![(header, 16, false)];
    if data > 0 {
        pieces.push((place, data, kind == IN || kind == GET_ID));
    }
    pieces.push((status, 1, true));
    guest.memory.chain(TABLE, 3 * number, &pieces);
    guest.memory.offer(3 * number);
}
