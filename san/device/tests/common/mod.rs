//! What the tests of both ways of I/O share: devices in files, requests by chance, and what must become of them.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use loadline_san_core::ids::VolumeId;
use loadline_san_core::layout::GroupIndex;
use loadline_san_device::direct::Direct;
use loadline_san_device::file::{DeviceFile, Devices};
use loadline_san_device::pool::{BLOCK_BYTES, Blocks, Class, Pool};
use loadline_san_device::uring::{Uring, UringOptions};
use loadline_san_store::io::{
    Address, Area, Data, Done, IoRequest, Part, Piece, Reading, Sector, Token, Writing,
};
use rand_core::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

pub(crate) const SECTOR: usize = 512;
/// No test waits longer than this.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Where files can be: on a disk, and in memory if there is such a place.
pub(crate) fn places() -> Vec<PathBuf> {
    let memory = PathBuf::from("/dev/shm");
    std::iter::once(std::env::temp_dir()).chain(memory.is_dir().then_some(memory)).collect()
}

pub(crate) fn folder_in(place: &Path) -> tempfile::TempDir {
    tempfile::tempdir_in(place).unwrap()
}

pub(crate) fn pool() -> Pool {
    let class = |blocks, buffers| Class { blocks, buffers };
    Pool::new(&[class(1, 64), class(4, 32), class(16, 16), class(64, 2)]).unwrap()
}

/// New devices; `None` where the file system does no direct I/O, which is printed.
pub(crate) fn devices(folder: &Path, log: u64, capacity: Option<u64>) -> Option<Devices> {
    let create = |name: &str, bytes| match DeviceFile::create(&folder.join(name), bytes) {
        Ok(file) => Some(file),
        Err(error) => {
            eprintln!("not tested: {error}");
            None
        }
    };
    let capacity = match capacity {
        Some(bytes) => Some(create("capacity", bytes)?),
        None => None,
    };
    Some(Devices { log: create("log", log)?, capacity })
}

/// One of both ways of I/O.
pub(crate) enum Driver {
    Direct(Direct),
    Uring(Box<Uring>, u32, Devices),
}

impl Driver {
    pub(crate) fn uring(devices: Devices, pool: &Pool, in_flight: u32) -> Option<Driver> {
        match Uring::new(UringOptions { in_flight, stores: 2, ..UringOptions::default() }, pool.clone()) {
            Ok(mut uring) => {
                let capacity = devices.capacity.as_ref().map(AsFd::as_fd);
                let store = uring.add(devices.log.as_fd(), capacity).unwrap();
                Some(Driver::Uring(Box::new(uring), store, devices))
            }
            Err(error) => {
                eprintln!("not tested: {error}");
                None
            }
        }
    }

    /// Carries all of this out, and gives what became of it, in the order in which it was asked.
    pub(crate) fn all(&mut self, requests: Vec<IoRequest<Blocks>>) -> Vec<Done<Blocks>> {
        match self {
            Driver::Direct(direct) => requests.into_iter().map(|request| direct.carry_out(request)).collect(),
            Driver::Uring(uring, store, _) => {
                let count = requests.len();
                for (token, request) in (0..).zip(requests) {
                    uring.start(*store, Token(token), request);
                }
                let begin = Instant::now();
                let mut done = HashMap::new();
                while done.len() < count {
                    assert!(begin.elapsed() < LIMIT, "{} of {count} are done", done.len());
                    uring.wait(Duration::from_millis(100)).unwrap();
                    while let Some((of, token, what)) = uring.take() {
                        assert_eq!(of, *store);
                        assert!(done.insert(token, what).is_none(), "{token:?} is done twice");
                        assert_eq!(uring.not_taken(), count - done.len());
                    }
                }
                (0..count as u32).map(|token| done.remove(&Token(token)).unwrap()).collect()
            }
        }
    }

    pub(crate) fn one(&mut self, request: IoRequest<Blocks>) -> Done<Blocks> {
        self.all(vec![request]).remove(0)
    }
}

pub(crate) fn chance(seed: u64) -> Xoshiro256PlusPlus {
    Xoshiro256PlusPlus::seed_from_u64(seed)
}

/// A number below this.
pub(crate) fn below(chance: &mut impl Rng, limit: u64) -> u64 {
    chance.next_u64() % limit
}

pub(crate) fn at(block: u64) -> Address {
    Address { volume: VolumeId(3), group: GroupIndex(1), block }
}

/// Blocks of chance.
pub(crate) fn some_blocks(chance: &mut impl Rng, pool: &Pool, blocks: u32) -> Blocks {
    let mut taken = pool.take(blocks).unwrap();
    chance.fill_bytes(taken.bytes_mut());
    taken.freeze(|index| at(u64::from(index)))
}

/// A write of so many bytes at most, somewhere in `from..to`, of which all are multiples of sectors.
pub(crate) fn some_write(
    chance: &mut impl Rng,
    pool: &Pool,
    area: Area,
    (from, to): (u64, u64),
    spare: Option<Writing<Blocks>>,
) -> Writing<Blocks> {
    let mut writing = spare.unwrap_or(Writing { area, at: 0, bytes: vec![], parts: vec![], durable: false });
    writing.bytes.clear();
    writing.parts.clear();
    for _ in 0..1 + below(chance, 6) {
        if below(chance, 2) == 0 {
            let sectors = 1 + below(chance, 3);
            for _ in 0..sectors {
                let mut sector = Sector::ZERO;
                chance.fill_bytes(&mut sector.0);
                writing.bytes.push(sector);
            }
            writing.parts.push(Part::Bytes(sectors as u32));
        } else {
            let blocks = 1 + below(chance, 8) as u32;
            let data = some_blocks(chance, pool, blocks);
            let first = below(chance, u64::from(blocks)) as u32;
            let blocks = 1 + below(chance, u64::from(blocks - first)) as u32;
            writing.parts.push(Part::Data { data, first, blocks });
        }
    }
    while writing.length() > to - from {
        writing.parts.pop();
    }
    if writing.parts.is_empty() {
        writing.bytes.resize(1, Sector::ZERO);
        writing.parts.push(Part::Bytes(1));
    }
    let places = (to - from - writing.length()) / SECTOR as u64 + 1;
    (writing.area, writing.at) = (area, from + below(chance, places) * SECTOR as u64);
    writing.durable = below(chance, 4) == 0;
    writing
}

/// What a device has after this write.
pub(crate) fn apply(writing: &Writing<Blocks>, to: &mut [u8]) {
    let (mut at, mut sectors) = (writing.at as usize, writing.bytes.iter());
    let mut put = |bytes: &[u8]| {
        to[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    for part in &writing.parts {
        match part {
            Part::Bytes(count) => sectors.by_ref().take(*count as usize).for_each(|sector| put(&sector.0)),
            Part::Data { data, first, blocks } => (*first..first + blocks).for_each(|i| put(data.block(i))),
        }
    }
}

/// A read of several pieces of devices that are as long as that (in bytes), with gaps between.
pub(crate) fn some_read(chance: &mut impl Rng, log: u64, capacity: u64) -> Reading {
    let blocks = 1 + below(chance, 20) as u32;
    let (mut next, mut pieces) = (0, vec![]);
    while next < blocks && below(chance, 5) > 0 {
        let first = next + below(chance, 3) as u32;
        if first >= blocks {
            break;
        }
        let count = 1 + below(chance, u64::from(blocks - first).min(6)) as u32;
        let area = if below(chance, 2) == 0 { Area::Log } else { Area::Capacity };
        let length = if area == Area::Log { log } else { capacity };
        let places = (length - u64::from(count) * BLOCK_BYTES as u64) / SECTOR as u64 + 1;
        pieces.push(Piece { area, at: below(chance, places) * SECTOR as u64, first, blocks: count });
        next = first + count;
    }
    Reading { blocks, pieces }
}

/// What must have been read.
pub(crate) fn expected(reading: &Reading, log: &[u8], capacity: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; reading.blocks as usize * BLOCK_BYTES];
    for piece in &reading.pieces {
        let from = if piece.area == Area::Log { log } else { capacity };
        let (first, length) = (piece.first as usize * BLOCK_BYTES, piece.blocks as usize * BLOCK_BYTES);
        bytes[first..first + length].copy_from_slice(&from[piece.at as usize..][..length]);
    }
    bytes
}

/// It was read well, and as it must be.
pub(crate) fn check_read(done: Done<Blocks>, log: &[u8], capacity: &[u8]) -> Reading {
    let Done::Read(reading, result) = done else { panic!("a read comes back as {done:?}") };
    let mut blocks = result.unwrap();
    assert!(blocks.bytes() == expected(&reading, log, capacity), "{reading:?}");
    let last = blocks.blocks() - 1;
    let crc = blocks.take_checksum(last, at(9));
    assert_eq!(crc, loadline_san_protocol::log::block_crc(VolumeId(3), GroupIndex(1), 9, blocks.block(last)));
    reading
}
