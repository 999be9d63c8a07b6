//! What tests of this module share: a unit with three nodes, initiators, random numbers, and a small volume in memory.

use std::hash::{BuildHasher, RandomState};

use loadline_base::scsi::{Sense, Status};
use loadline_san_core::map::{Held, Map};
use loadline_san_core::message::{Content, Payload};
use loadline_san_core::volume::Failure;
use loadline_san_device::pool::{BLOCK_BYTES, Blocks, Class, Pool};

use super::SECTOR;
use super::reservations::Reservations;
use super::task::{Answer, ChangeFailed, Command, DataIn, Fill, Step, Task};
use super::unit::{About, AccessState, NexusId, NexusName, Port, Unit};
use crate::block::Operation;

/// Blocks of 4 KiB of the volume.
pub(super) const BLOCKS: usize = 64;

pub(super) fn about() -> About {
    let port = |group, state| Port { group, state };
    About {
        cluster: 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef,
        volume: 42,
        name: "data".to_owned(),
        bytes: (BLOCKS * BLOCK_BYTES) as u64,
        most: 1 << 16,
        ports: vec![
            port(1, AccessState::ActiveOptimized),
            port(2, AccessState::Standby),
            port(3, AccessState::Unavailable),
        ],
        here: 1,
    }
}

pub(super) fn nexus(number: u32) -> NexusId {
    NexusId(number)
}

/// An initiator at a target port group.
pub(super) fn name(initiator: u8, group: u16) -> NexusName {
    NexusName {
        initiator: format!("iqn.2026-01.example:{initiator}"),
        isid: [0x80, 0, 0, 0, 0, initiator],
        group,
    }
}

pub(super) fn pool() -> Pool {
    Pool::new(&[Class { blocks: 1, buffers: 64 }, Class { blocks: 17, buffers: 32 }]).unwrap()
}

/// Parts of what is read: each the first block and how many, of bytes that begin with block 0. Blocks that are holes are not filled.
pub(super) fn filled(pool: &Pool, bytes: &[u8], parts: &[(u64, u32)], holes: &[u64]) -> Vec<Fill> {
    let fill = |(at, blocks): &(u64, u32)| {
        let content = if holes.contains(at) {
            Content::Nothing
        } else {
            // There is a block before it in its buffer.
            let mut data = pool.take(*blocks + 1).unwrap();
            let from = *at as usize * BLOCK_BYTES;
            let length = *blocks as usize * BLOCK_BYTES;
            data.bytes_mut().fill(0xee);
            data.bytes_mut()[BLOCK_BYTES..].copy_from_slice(&bytes[from..from + length]);
            Content::Data(Payload { data: data.freeze_without(), first: 1 })
        };
        Fill { at: *at, blocks: *blocks, content }
    };
    parts.iter().map(fill).collect()
}

/// Random numbers that a seed determines (xorshift64*).
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn any_seed() -> u64 {
        RandomState::new().hash_one(0)
    }

    pub(super) fn new(seed: u64) -> Random {
        Random(seed | 1)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 16) % limit
    }

    pub(super) fn any<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }
}

/// A volume in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Disk {
    pub(super) bytes: Vec<u8>,
    pub(super) held: Vec<Held>,
}

/// What a block step gave.
pub(super) type Given = (Result<(), Failure>, Vec<Fill>, Option<Map>);

impl Disk {
    pub(super) fn new() -> Disk {
        Disk { bytes: vec![0; BLOCKS * BLOCK_BYTES], held: vec![Held::Nothing; BLOCKS] }
    }

    pub(super) fn carry_out(
        &mut self,
        pool: &Pool,
        operation: Operation,
        sector: u64,
        sectors: u32,
    ) -> Given {
        let (from, length) = (sector as usize * SECTOR as usize, sectors as usize * SECTOR as usize);
        assert!(from + length <= self.bytes.len(), "beyond the end: {operation:?} {sector} {sectors}");
        let blocks = from / BLOCK_BYTES..(from + length).div_ceil(BLOCK_BYTES);
        let (mut read, mut described) = (Vec::new(), None);
        match operation {
            Operation::Flush => {}
            _ if sectors == 0 => panic!("a request for nothing: {operation:?}"),
            Operation::Write(data) => {
                self.bytes[from..from + length].copy_from_slice(&data.bytes()[..length]);
                self.held[blocks].fill(Held::Data);
            }
            Operation::WriteZeroes => {
                self.bytes[from..from + length].fill(0);
                for block in blocks {
                    let all = self.bytes[block * BLOCK_BYTES..][..BLOCK_BYTES].iter().all(|byte| *byte == 0);
                    self.held[block] = if all { Held::Zeroes } else { Held::Data };
                }
            }
            Operation::Trim => {
                for block in from.div_ceil(BLOCK_BYTES)..(from + length) / BLOCK_BYTES {
                    self.bytes[block * BLOCK_BYTES..][..BLOCK_BYTES].fill(0);
                    self.held[block] = Held::Nothing;
                }
            }
            Operation::Read => {
                let first = blocks.start;
                let holes: Vec<u64> = blocks
                    .clone()
                    .filter(|block| self.held[*block] == Held::Nothing)
                    .map(|block| (block - first) as u64)
                    .collect();
                let parts: Vec<(u64, u32)> = (0..blocks.len() as u64).map(|at| (at, 1)).collect();
                read = filled(pool, &self.bytes[first * BLOCK_BYTES..], &parts, &holes);
            }
            Operation::Map => {
                let mut map = Map::from(0);
                for (at, block) in (1..).zip(blocks) {
                    map.describe(at, self.held[block], usize::MAX);
                }
                described = Some(map);
            }
        }
        (Ok(()), read, described)
    }
}

/// The bytes of an extent in parts that were read.
pub(super) fn bytes_of(read: &[Fill], sector: u64, bytes: usize) -> Vec<u8> {
    let mut all = Vec::new();
    for fill in read {
        let length = fill.blocks as usize * BLOCK_BYTES;
        match &fill.content {
            Content::Nothing => all.extend(vec![0; length]),
            Content::Data(Payload { data, first }) | Content::Sparse(Payload { data, first }, _) => {
                let from = *first as usize * BLOCK_BYTES;
                all.extend_from_slice(&Blocks::bytes(data)[from..from + length]);
            }
        }
    }
    let skip = sector as usize * SECTOR as usize % BLOCK_BYTES;
    all[skip..skip + bytes].to_vec()
}

/// One session at a volume whose steps are carried out at once.
#[derive(Debug)]
pub(super) struct Bench {
    pub(super) unit: Unit,
    pub(super) disk: Disk,
    pub(super) pool: Pool,
    pub(super) nexus: NexusId,
}

/// How a command ended, with its data.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) status: Status,
    pub(super) sense: Option<Sense>,
    pub(super) data: Vec<u8>,
    pub(super) transfer: u64,
}

impl Bench {
    /// With a session that was told that it is new.
    pub(super) fn new() -> Bench {
        let mut unit = Unit::new(about(), Reservations::default());
        let nexus = unit.enter_now(name(1, 1));
        unit.activate(nexus);
        let mut bench = Bench { unit, disk: Disk::new(), pool: pool(), nexus };
        assert_eq!(bench.run(&[0; 6], &[], 0).sense.unwrap().code, (0x29, 0x00));
        bench
    }

    /// Another session that was told that it is new.
    pub(super) fn enter(&mut self, name: NexusName) -> NexusId {
        let nexus = self.unit.enter_now(name);
        self.unit.activate(nexus);
        assert_eq!(self.run_by(nexus, &[0; 6], &[], 0).sense.unwrap().code, (0x29, 0x00));
        nexus
    }

    pub(super) fn run(&mut self, cdb: &[u8], out: &[u8], data_in: u32) -> Ended {
        self.run_by(self.nexus, cdb, out, data_in)
    }

    pub(super) fn run_by(&mut self, nexus: NexusId, cdb: &[u8], out: &[u8], data_in: u32) -> Ended {
        let command = command(cdb, out.len() as u32, data_in, 1);
        let (task, step) = Task::begin(&mut self.unit, nexus, &command);
        self.finish(task, step, out)
    }

    pub(super) fn finish(&mut self, mut task: Task, mut step: Step, out: &[u8]) -> Ended {
        let mut last = None;
        loop {
            step = match step {
                Step::Data(bytes) => {
                    assert!(bytes > 0 && bytes <= out.len());
                    let mut data = self.pool.take(bytes.div_ceil(BLOCK_BYTES) as u32).unwrap();
                    data.bytes_mut()[..bytes].copy_from_slice(&out[..bytes]);
                    task.data(&mut self.unit, &self.pool, data)
                }
                Step::Block { operation, sector, sectors } => {
                    let (result, read, map) = self.disk.carry_out(&self.pool, operation, sector, sectors);
                    let step = task.carried_out(&mut self.unit, &self.pool, result, &read, map);
                    last = Some((read, sector));
                    step
                }
                Step::Change(super::task::Change::Activate(_)) => {
                    task.changed(&mut self.unit, Err(ChangeFailed::Unavailable))
                }
                Step::Change(_) => task.changed(&mut self.unit, Ok(())),
                Step::Wait => panic!("nothing is in the way of {task:?}"),
                Step::Done(answer) => {
                    task.end(&mut self.unit);
                    return ended(answer, last.as_ref());
                }
            };
        }
    }
}

/// How a task ended whose last block step gave this.
pub(super) fn ended(answer: Answer, last: Option<&(Vec<Fill>, u64)>) -> Ended {
    let data = match answer.data {
        DataIn::Nothing => Vec::new(),
        DataIn::Bytes(bytes) => bytes,
        DataIn::Read { bytes } => {
            let (read, sector) = last.expect("it has read");
            bytes_of(read, *sector, bytes)
        }
    };
    Ended { status: answer.status, sense: answer.sense, data, transfer: answer.transfer }
}

pub(super) fn command(cdb: &[u8], data_out: u32, data_in: u32, ticket: u32) -> Command {
    let mut all = [0; 16];
    all[..cdb.len()].copy_from_slice(cdb);
    Command { cdb: all, data_out, data_in, ticket }
}
