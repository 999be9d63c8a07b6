//! An initiator of the tests: PDUs as bytes, a login, and a target with a small volume in memory at the other end of a socket.
#![allow(dead_code, reason = "each test program uses its own part")]

use std::cell::RefCell;
use std::io::{Read, Write};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use loadline_base::crc::crc32c;
use loadline_base::iscsi::{HEADER, Header, IMMEDIATE, NO_TAG, field, flag, opcode, padding};
use loadline_base::scsi::operation;
use loadline_san_core::lease::Moment;
use loadline_san_core::map::{Held, Map};
use loadline_san_core::message::{Content, Payload};
use loadline_san_core::volume::Failure;
use loadline_san_device::pool::{BLOCK_BYTES, Blocks, Class, Pool};
use loadline_san_export::block::{BlockRequest, Operation};
use loadline_san_export::iscsi::connection::Connection;
use loadline_san_export::iscsi::negotiated::Negotiated;
use loadline_san_export::iscsi::parameters::Parameters;
use loadline_san_export::login::Chosen;
use loadline_san_export::scsi::reservations::Reservations;
use loadline_san_export::scsi::task::Change;
use loadline_san_export::scsi::unit::{About, AccessState, Port, SharedUnit, Unit};
use loadline_san_export::session::{Next, Receiving, Session as _, SessionEnd};
use loadline_san_transport::channel::Channel;

/// Blocks of the volume.
pub(crate) const BLOCKS: usize = 1024;
/// Bytes of the volume.
pub(crate) const BYTES: usize = BLOCKS * BLOCK_BYTES;
/// The name of the initiator.
pub(crate) const INITIATOR: &str = "iqn.2003-01.org.example:host";

/// A pool for a few requests.
pub(crate) fn pool() -> Pool {
    Pool::new(&[Class { blocks: 1, buffers: 256 }, Class { blocks: 16, buffers: 64 }])
        .expect("there is memory")
}

/// A unit with the volume.
pub(crate) fn unit() -> SharedUnit {
    let about = About {
        cluster: 7,
        volume: 1,
        name: "vol".into(),
        bytes: BYTES as u64,
        most: 4 << 20,
        ports: vec![Port { group: 1, state: AccessState::ActiveOptimized }],
        here: 1,
    };
    Rc::new(RefCell::new(Unit::new(about, Reservations::default())))
}

/// What an initiator of these parameters has negotiated.
pub(crate) fn negotiated(parameters: Parameters, isid: u8) -> Negotiated {
    Negotiated {
        initiator: INITIATOR.into(),
        isid: [0, 0, 0, 0, 0, isid],
        connection: 0,
        command_number: 1,
        status_number: 1,
        parameters,
    }
}

/// A PDU that was received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) header: Header,
    pub(crate) data: Vec<u8>,
}

impl Received {
    pub(crate) fn opcode(&self) -> u8 {
        self.header.opcode()
    }

    /// The status of a response, and the sense key and code that it says.
    pub(crate) fn status(&self) -> (u8, Option<(u8, u8, u8)>) {
        let sense =
            self.data.get(2..).filter(|sense| self.opcode() == opcode::SCSI_RESPONSE && sense.len() >= 14);
        (self.header.0[3], sense.map(|sense| (sense[2] & 15, sense[12], sense[13])))
    }
}

/// PDUs as bytes, with the digests of these parameters.
pub(crate) fn encode(parameters: &Parameters, mut header: Header, data: &[u8]) -> Vec<u8> {
    header.set_data_bytes(data.len());
    let mut bytes = header.0.to_vec();
    if parameters.header_digest {
        bytes.extend(crc32c(&header.0).to_le_bytes());
    }
    let mut padded = data.to_vec();
    padded.resize(data.len() + padding(data.len()), 0);
    if parameters.data_digest && !data.is_empty() {
        let crc = crc32c(&padded);
        padded.extend(crc.to_le_bytes());
    }
    bytes.extend(padded);
    bytes
}

/// Takes the PDUs that are there; each digest is checked.
pub(crate) fn decode(parameters: &Parameters, bytes: &mut Vec<u8>) -> Vec<Received> {
    let mut received = Vec::new();
    while let Some(header) = bytes.first_chunk::<HEADER>().map(|header| Header(*header)) {
        let from = HEADER + if parameters.header_digest { 4 } else { 0 };
        let length = header.data_bytes();
        let padded = length + padding(length);
        let end = from + padded + if parameters.data_digest && length > 0 { 4 } else { 0 };
        if bytes.len() < end {
            break;
        }
        assert!(length <= parameters.sends as usize, "{length} bytes of data");
        if parameters.header_digest {
            assert_eq!(bytes[HEADER..from], crc32c(&header.0).to_le_bytes());
        }
        if parameters.data_digest && length > 0 {
            assert_eq!(bytes[from + padded..end], crc32c(&bytes[from..from + padded]).to_le_bytes());
        }
        received.push(Received { header, data: bytes[from..from + length].to_vec() });
        bytes.drain(..end);
    }
    received
}

/// A SCSI command: READ or WRITE of the flags say who sends how many bytes.
pub(crate) fn command(cdb: &[u8], flags: u8, tag: u32, number: u32, expected: u32) -> Header {
    let mut header = Header::new(opcode::SCSI_COMMAND, flag::FINAL | flags | 1);
    header.set_u32(field::TASK_TAG, tag);
    header.set_u32(field::EXPECTED_LENGTH, expected);
    header.set_u32(field::COMMAND_NUMBER, number);
    header.0[32..32 + cdb.len()].copy_from_slice(cdb);
    header
}

/// Data behind a command.
pub(crate) fn data_out(tag: u32, transfer: u32, number: u32, offset: u32, is_final: bool) -> Header {
    let mut header = Header::new(opcode::DATA_OUT, if is_final { flag::FINAL } else { 0 });
    header.set_u32(field::TASK_TAG, tag);
    header.set_u32(field::TRANSFER_TAG, transfer);
    header.set_u32(field::DATA_NUMBER, number);
    header.set_u32(field::OFFSET, offset);
    header
}

/// A function of task management, delivered immediately.
pub(crate) fn management(function: u8, tag: u32, referenced: u32, number: u32) -> Header {
    let mut header = Header::new(opcode::TASK_MANAGEMENT | IMMEDIATE, flag::FINAL | function);
    header.set_u32(field::TASK_TAG, tag);
    header.set_u32(field::REFERENCED_TAG, referenced);
    header.set_u32(field::COMMAND_NUMBER, number);
    header
}

/// A command of 16 bytes about so many sectors.
pub(crate) fn cdb16(code: u8, sector: u64, sectors: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = code;
    cdb[2..10].copy_from_slice(&sector.to_be_bytes());
    cdb[10..14].copy_from_slice(&sectors.to_be_bytes());
    cdb
}

/// The volume.
pub(crate) struct Volume {
    pub(crate) bytes: Vec<u8>,
    held: Vec<Held>,
    pool: Pool,
}

impl Volume {
    pub(crate) fn new(pool: &Pool) -> Volume {
        Volume { bytes: vec![0; BYTES], held: vec![Held::Nothing; BLOCKS], pool: pool.clone() }
    }

    /// Carries out a request; what is read comes in parts of so many blocks, the last first.
    pub(crate) fn carry_out(
        &mut self,
        connection: &mut Connection,
        asked: BlockRequest,
        part: usize,
    ) -> Result<(), SessionEnd> {
        let from = asked.sector as usize * 512;
        let range = from..from + asked.sectors as usize * 512;
        let blocks = from / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES);
        match asked.operation {
            Operation::Read => {
                for start in blocks.clone().step_by(part).rev() {
                    let some = start..(start + part).min(blocks.end);
                    let (at, count) = ((start - blocks.start) as u64, some.len() as u32);
                    connection.fill(asked.slot, at, count, self.content(some));
                }
            }
            Operation::Map => {
                let mut map = Map::from(0);
                for held in &self.held[blocks] {
                    assert!(map.describe(map.until + 1, *held, BLOCKS));
                }
                connection.map(asked.slot, map);
            }
            Operation::Write(data) => {
                assert_eq!(data.blocks() as usize, range.len().div_ceil(BLOCK_BYTES), "as many as it writes");
                self.bytes[range.clone()].copy_from_slice(&data.bytes()[..range.len()]);
                self.held[blocks].fill(Held::Data);
            }
            Operation::WriteZeroes => {
                self.bytes[range].fill(0);
                self.held[blocks].fill(Held::Data);
            }
            Operation::Trim => {
                let whole = from.div_ceil(BLOCK_BYTES)..range.end / BLOCK_BYTES;
                if !whole.is_empty() {
                    self.bytes[whole.start * BLOCK_BYTES..whole.end * BLOCK_BYTES].fill(0);
                    self.held[whole].fill(Held::Nothing);
                }
            }
            Operation::Flush => {}
        }
        connection.complete(asked.slot, Ok(()))
    }

    fn content(&self, blocks: Range<usize>) -> Content<Blocks> {
        if self.held[blocks.clone()].iter().all(|held| *held == Held::Nothing) {
            return Content::Nothing;
        }
        // It lies behind a block of something else.
        let mut buffer = self.pool.take(blocks.len() as u32 + 1).expect("there is memory");
        let bytes = &self.bytes[blocks.start * BLOCK_BYTES..blocks.end * BLOCK_BYTES];
        buffer.some_mut(1, blocks.len() as u32).copy_from_slice(bytes);
        Content::Data(Payload { data: buffer.freeze_without(), first: 1 })
    }
}

/// A session with its initiator's end.
pub(crate) struct Target {
    pub(crate) connection: Option<Connection>,
    pub(crate) pool: Pool,
    pub(crate) parameters: Parameters,
    far: UnixStream,
    /// Bytes that were sent and are no whole PDU.
    bytes: Vec<u8>,
    /// Requests that are not carried out.
    pub(crate) requests: Vec<BlockRequest>,
    /// Changes of the configuration that are not made.
    pub(crate) changes: Vec<(u32, Change)>,
    pub(crate) number: u32,
    /// There is memory for commands.
    pub(crate) has_memory: bool,
}

impl Target {
    /// A session of its own unit.
    pub(crate) fn new(parameters: Parameters) -> Target {
        Target::of(&unit(), parameters, 1)
    }

    /// A session of this unit; the initiator has this identifier.
    pub(crate) fn of(unit: &SharedUnit, parameters: Parameters, isid: u8) -> Target {
        Target::at(unit, parameters, isid, true)
    }

    /// The same, at a node that serves the volume or not.
    pub(crate) fn at(unit: &SharedUnit, parameters: Parameters, isid: u8, is_serving: bool) -> Target {
        let (near, far) = UnixStream::pair().expect("a pair of sockets");
        near.set_nonblocking(true).expect("it does not block");
        far.set_nonblocking(true).expect("it does not block");
        let negotiated = negotiated(parameters.clone(), isid).encode();
        let chosen = Chosen { negotiated, rest: Vec::new() };
        let channel = Channel::plain(OwnedFd::from(near));
        let connection = Connection::new(channel, "vol", &chosen, unit.clone(), is_serving)
            .expect("it is of this version");
        let (bytes, requests, changes) = (Vec::new(), Vec::new(), Vec::new());
        Target {
            connection: Some(connection),
            pool: pool(),
            parameters,
            far,
            bytes,
            requests,
            changes,
            number: 1,
            has_memory: true,
        }
    }

    /// The number of the next command.
    pub(crate) fn next(&mut self) -> u32 {
        self.number += 1;
        self.number - 1
    }

    pub(crate) fn connection(&mut self) -> &mut Connection {
        self.connection.as_mut().expect("the session has not ended")
    }

    /// Sends bytes, as many as the socket takes. How many.
    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) -> usize {
        self.far.write(bytes).unwrap_or(0)
    }

    /// Sends a PDU, and gives the session a turn for each part that the socket takes.
    pub(crate) fn send(&mut self, header: Header, data: &[u8]) {
        let bytes = encode(&self.parameters, header, data);
        self.send_all(&bytes);
    }

    /// The same, for bytes.
    pub(crate) fn send_all(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let sent = self.send_bytes(bytes);
            bytes = &bytes[sent..];
            self.turn().expect("the session goes on");
        }
    }

    /// The session receives and sends, until it has no more to do. What it requests is kept.
    pub(crate) fn turn(&mut self) -> Result<(), SessionEnd> {
        for _ in 0..100_000 {
            let Some(connection) = &mut self.connection else { return Ok(()) };
            let mut from = Receiving {
                pool: &self.pool,
                now: Moment(0),
                accepts: self.has_memory,
                is_ready: true,
                requests: &mut self.requests,
            };
            let received = connection.receive(&mut from);
            connection.take_changes(&mut self.changes);
            let sent = received.and_then(|next| Ok((next, connection.send(true, |_| {})?)));
            match sent {
                Err(end) => {
                    self.read();
                    self.connection = None;
                    return Err(end);
                }
                Ok((next, sent)) => {
                    let more = next == Next::More || self.connection().wants_turn() || sent.is_full;
                    self.read();
                    if !more {
                        return Ok(());
                    }
                }
            }
        }
        panic!("it never comes to rest");
    }

    /// The session receives, and its socket takes nothing that it sends.
    pub(crate) fn receive_only(&mut self) -> Result<(), SessionEnd> {
        let Some(connection) = &mut self.connection else { return Ok(()) };
        let mut from = Receiving {
            pool: &self.pool,
            now: Moment(0),
            accepts: self.has_memory,
            is_ready: true,
            requests: &mut self.requests,
        };
        connection.receive(&mut from)?;
        connection.send(false, |_| {}).map(drop)
    }

    fn read(&mut self) {
        let mut some = [0; 65536];
        while let Ok(read) = self.far.read(&mut some)
            && read > 0
        {
            self.bytes.extend_from_slice(&some[..read]);
        }
    }

    /// What the session has sent.
    pub(crate) fn received(&mut self) -> Vec<Received> {
        self.read();
        decode(&self.parameters, &mut self.bytes)
    }

    /// Carries out what is requested, until nothing is.
    pub(crate) fn work(&mut self, volume: &mut Volume) {
        while !self.requests.is_empty() {
            for request in std::mem::take(&mut self.requests) {
                volume.carry_out(self.connection(), request, 3).expect("the session goes on");
            }
            self.turn().expect("the session goes on");
        }
    }

    /// Sends a command without data of the initiator's, carries it out, and returns what comes.
    pub(crate) fn ask(&mut self, volume: &mut Volume, cdb: &[u8], flags: u8, expected: u32) -> Vec<Received> {
        let number = self.next();
        self.send(command(cdb, flags, number, number, expected), &[]);
        self.work(volume);
        self.received()
    }

    /// Takes the unit attentions of a new session.
    pub(crate) fn get_ready(&mut self, volume: &mut Volume) {
        for _ in 0..8 {
            let answer = self.ask(volume, &[operation::TEST_UNIT_READY, 0, 0, 0, 0, 0], 0, 0);
            if answer[0].status().0 == 0 {
                return;
            }
        }
        panic!("the unit does not get ready");
    }
}

/// The tag of the transfer that a request for data names, and what it asks for.
pub(crate) fn wanted(of: &Received) -> (u32, u32, u32) {
    assert_eq!(of.opcode(), opcode::R2T, "{of:?}");
    (of.header.u32(field::TRANSFER_TAG), of.header.u32(field::OFFSET), of.header.u32(field::DESIRED_LENGTH))
}

/// The flags of a command that reads, and of one that writes.
pub(crate) const READ: u8 = flag::READ;
pub(crate) const WRITE: u8 = flag::WRITE;

/// No transfer.
pub(crate) const UNSOLICITED: u32 = NO_TAG;

/// A failure, for tests of errors.
pub(crate) const FAILS: Failure = Failure::Corrupt;

impl Target {
    /// The initiator's end is closed.
    pub(crate) fn close(&mut self) {
        self.far.shutdown(std::net::Shutdown::Both).expect("it is open");
    }
}

/// What open-iscsi agrees on.
pub(crate) fn usual() -> Parameters {
    Parameters {
        sends: 256 << 10,
        receives: 256 << 10,
        initial_r2t: false,
        first_burst: 256 << 10,
        burst: 1 << 20,
        ..Parameters::default()
    }
}

pub(crate) fn ready(parameters: Parameters) -> (Target, Volume) {
    let mut target = Target::new(parameters);
    let mut volume = Volume::new(&target.pool);
    target.get_ready(&mut volume);
    (target, volume)
}

/// Bytes that differ from sector to sector.
pub(crate) fn pattern(bytes: usize, seed: u8) -> Vec<u8> {
    (0..bytes).map(|at| (at / 512) as u8 ^ (at as u8).wrapping_mul(seed | 1)).collect()
}

pub(crate) fn status(received: &[Received]) -> (u8, Option<(u8, u8, u8)>) {
    let last = received.last().expect("it is answered");
    assert!(matches!(last.opcode(), opcode::SCSI_RESPONSE | opcode::DATA_IN), "{last:?}");
    last.status()
}

pub(crate) const GOOD: (u8, Option<(u8, u8, u8)>) = (0, None);

/// Writes with all data in the command.
pub(crate) fn write(target: &mut Target, volume: &mut Volume, sector: u64, data: &[u8]) -> Vec<Received> {
    let number = target.next();
    let cdb = cdb16(operation::WRITE_16, sector, data.len() as u32 / 512);
    target.send(command(&cdb, WRITE, number, number, data.len() as u32), data);
    target.work(volume);
    target.received()
}
