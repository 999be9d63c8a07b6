//! A simulated disk: sectors that are written, and what of them a loss of power leaves.
//!
//! Data is kept as values, and the metadata of a store as bytes. What is corrupt lies over what was written, so that an
//! oracle can still see that.

use std::collections::BTreeMap;
use std::io;

use loadline_san_core::layout::BLOCK;
use loadline_san_protocol::log::SECTOR;
use loadline_san_store::io::{Area, Disk, Done, IoFault, IoRequest, Part, Piece, Reading, Sector, Writing};

use super::blocks::{Block, Blocks, ZERO, bytes_of};
use crate::rng::Rng;

/// What is in a sector.
#[derive(Debug, Clone, PartialEq)]
enum Content {
    /// A value of data.
    Value(u64),
    Bytes(Box<Sector>),
}

const EMPTY: Content = Content::Value(0);

impl Content {
    fn bytes(&self) -> [u8; SECTOR] {
        match self {
            Content::Value(value) => bytes_of(*value),
            Content::Bytes(sector) => sector.0,
        }
    }

    /// The sector as data. Bytes that are no data become a value that was never written.
    fn value(&self) -> u64 {
        match self {
            Content::Value(value) => *value,
            Content::Bytes(sector) => {
                let first = u64::from_le_bytes(sector.0[..8].try_into().expect("it has eight"));
                if sector.0 == bytes_of(first) { first } else { !first }
            }
        }
    }
}

/// One device.
#[derive(Debug, Clone)]
struct Device {
    sectors: Vec<Content>,
    /// Sectors that were written and not synced since: what they had, durably, and which write was the last.
    unsynced: BTreeMap<usize, (Content, u64)>,
    /// What these hold since they were corrupted.
    corrupt: BTreeMap<usize, Content>,
}

/// One or two devices. See the module.
#[derive(Debug, Clone)]
pub struct SimDisk {
    log: Device,
    capacity: Option<Device>,
    /// Writes are counted.
    writes: u64,
}

impl Device {
    fn new(bytes: u64) -> Device {
        let sectors = vec![EMPTY; bytes as usize / SECTOR];
        Device { sectors, unsynced: BTreeMap::new(), corrupt: BTreeMap::new() }
    }

    fn put(&mut self, at: usize, content: Content, durable: bool, write: u64) {
        self.corrupt.remove(&at);
        let before = std::mem::replace(&mut self.sectors[at], content);
        if durable {
            self.unsynced.remove(&at);
        } else {
            self.unsynced.entry(at).or_insert((before, 0)).1 = write;
        }
    }

    fn get(&self, at: usize) -> &Content {
        self.corrupt.get(&at).unwrap_or(&self.sectors[at])
    }
}

impl SimDisk {
    /// Devices of so many bytes: one, or two.
    pub fn new(bytes: u64, two: bool) -> SimDisk {
        SimDisk { log: Device::new(bytes), capacity: two.then(|| Device::new(bytes)), writes: 0 }
    }

    /// Whether log and extents are on devices of their own.
    pub fn is_two(&self) -> bool {
        self.capacity.is_some()
    }

    fn device(&self, area: Area) -> &Device {
        match (&self.capacity, area) {
            (Some(capacity), Area::Capacity) => capacity,
            _ => &self.log,
        }
    }

    fn device_mut(&mut self, area: Area) -> &mut Device {
        match (&mut self.capacity, area) {
            (Some(capacity), Area::Capacity) => capacity,
            _ => &mut self.log,
        }
    }

    /// How many writes there were: to name a moment.
    pub fn moment(&self) -> u64 {
        self.writes
    }

    /// What a write would bring to each sector, in their order.
    fn contents(writing: &Writing<Blocks>) -> Vec<Content> {
        let mut contents = Vec::new();
        let mut bytes = writing.bytes.iter();
        for part in &writing.parts {
            match part {
                Part::Bytes(sectors) => {
                    let sectors = bytes.by_ref().take(*sectors as usize);
                    contents.extend(sectors.map(|sector| Content::Bytes(Box::new(*sector))));
                }
                Part::Data { data, first, blocks } => {
                    let blocks = &data[*first as usize..(*first + *blocks) as usize];
                    contents.extend(blocks.iter().flatten().map(|value| Content::Value(*value)));
                }
            }
        }
        contents
    }

    /// Writes what passes, of the sectors of a write.
    pub fn land(&mut self, writing: &Writing<Blocks>, durable: bool, mut passes: impl FnMut() -> bool) {
        self.writes += 1;
        let write = self.writes;
        let first = writing.at as usize / SECTOR;
        let device = self.device_mut(writing.area);
        for (at, content) in (first..).zip(SimDisk::contents(writing)) {
            if passes() {
                device.put(at, content, durable, write);
            }
        }
    }

    /// What was written up to this moment becomes durable.
    pub fn sync_until(&mut self, area: Area, moment: u64) {
        self.device_mut(area).unsynced.retain(|_, (_, write)| *write > moment);
    }

    /// The data of blocks from this byte on, as it is read.
    fn data(&self, area: Area, at: u64, blocks: u32) -> impl Iterator<Item = Block> {
        let (device, first) = (self.device(area), at as usize / SECTOR);
        (0..blocks as usize).map(move |block| {
            let at = first + block * (BLOCK as usize / SECTOR);
            std::array::from_fn(|sector| device.get(at + sector).value())
        })
    }

    fn read_pieces(&self, reading: &Reading) -> Blocks {
        let mut blocks = vec![ZERO; reading.blocks as usize];
        for piece in &reading.pieces {
            let data = self.data(piece.area, piece.at, piece.blocks);
            for (place, block) in blocks[piece.first as usize..].iter_mut().zip(data) {
                *place = block;
            }
        }
        // What a store keeps of its own it may read too.
        let is_bytes = |piece: &Piece| {
            let first = piece.at as usize / SECTOR;
            (first..first + 8).any(|at| matches!(self.device(piece.area).get(at), Content::Bytes(_)))
        };
        if reading.blocks == 1
            && let Some(piece) = reading.pieces.first().filter(|piece| is_bytes(piece))
        {
            let mut bytes = [0; 8 * SECTOR];
            for (at, into) in (piece.at as usize / SECTOR..).zip(bytes.chunks_exact_mut(SECTOR)) {
                into.copy_from_slice(&self.device(piece.area).get(at).bytes());
            }
            return Blocks::of_bytes(blocks[0], bytes);
        }
        Blocks::new(blocks)
    }

    /// Does what is asked. A sync was asked for at a moment: what was written later is not what it is about.
    pub fn carry_out(&mut self, request: IoRequest<Blocks>, moment: u64) -> Done<Blocks> {
        match request {
            IoRequest::Read(reading) => {
                let data = self.read_pieces(&reading);
                Done::Read(reading, Ok(data))
            }
            IoRequest::Write(writing) => {
                self.land(&writing, writing.durable, || true);
                Done::Wrote(writing, Ok(()))
            }
            IoRequest::Sync(area) => {
                self.sync_until(area, moment);
                Done::Synced(area, Ok(()))
            }
        }
    }

    /// Does not do what is asked.
    pub fn refuse(request: IoRequest<Blocks>) -> Done<Blocks> {
        let fault = |area, at| IoFault::Failed { area, at, error: io::Error::other("it is simulated") };
        match request {
            IoRequest::Read(reading) => {
                let (area, at) =
                    reading.pieces.first().map_or((Area::Log, 0), |piece| (piece.area, piece.at));
                Done::Read(reading, Err(fault(area, at)))
            }
            IoRequest::Write(writing) => {
                let fault = fault(writing.area, writing.at);
                Done::Wrote(writing, Err(fault))
            }
            IoRequest::Sync(area) => Done::Synced(area, Err(fault(area, 0))),
        }
    }

    /// Of what is not synced each sector is lost or not; or, of two devices, one loses all and the other nothing.
    pub fn power_loss(&mut self, rng: &mut Rng) {
        match rng.below(4) {
            0 if self.is_two() => self.lose_of(|area| area == Area::Log),
            1 if self.is_two() => self.lose_of(|area| area == Area::Capacity),
            _ => self.lose(|| rng.chance(2)),
        }
    }

    /// Of what is not synced each sector is lost for which this returns true.
    pub fn lose(&mut self, mut is_lost: impl FnMut() -> bool) {
        self.lose_of(|_| is_lost());
    }

    /// The same, by the device that the sector is on.
    fn lose_of(&mut self, mut is_lost: impl FnMut(Area) -> bool) {
        let capacity = self.capacity.as_mut().map(|device| (Area::Capacity, device));
        for (area, device) in [Some((Area::Log, &mut self.log)), capacity].into_iter().flatten() {
            for (at, (before, _)) in std::mem::take(&mut device.unsynced) {
                if is_lost(area) {
                    device.sectors[at] = before;
                    device.corrupt.remove(&at);
                }
            }
        }
    }

    /// A sector is corrupted.
    pub fn corrupt_at(&mut self, area: Area, at: u64) {
        let sector = at as usize / SECTOR;
        let device = self.device_mut(area);
        let corrupt = match &device.sectors[sector] {
            Content::Value(value) => Content::Value(!value),
            Content::Bytes(bytes) => {
                let mut bytes = bytes.clone();
                bytes.0[20] ^= 4;
                Content::Bytes(bytes)
            }
        };
        device.corrupt.insert(sector, corrupt);
    }

    /// The device has this in a sector, whatever was written to it.
    pub fn overwrite(&mut self, area: Area, at: u64, with: Sector) {
        self.device_mut(area).corrupt.insert(at as usize / SECTOR, Content::Bytes(Box::new(with)));
    }

    /// Whether the sectors from this byte on, so many, are as they were written.
    pub fn is_whole(&self, area: Area, at: u64, sectors: usize) -> bool {
        let first = at as usize / SECTOR;
        self.device(area).corrupt.range(first..first + sectors).next().is_none()
    }

    /// Without what is corrupt.
    pub fn as_written(&self) -> SimDisk {
        let mut disk = self.clone();
        disk.log.corrupt.clear();
        disk.capacity.iter_mut().for_each(|device| device.corrupt.clear());
        disk
    }

    /// Fills what is free from this byte on with data that another program has left there.
    pub fn soil(&mut self, from: u64, rng: &mut Rng) {
        for device in [Some(&mut self.log), self.capacity.as_mut()].into_iter().flatten() {
            for content in &mut device.sectors[from as usize / SECTOR..] {
                if *content == EMPTY {
                    *content = Content::Value(rng.bits());
                }
            }
        }
    }

    /// A block as it is read, with what is corrupt of it.
    pub fn as_read(&self, area: Area, at: u64) -> Block {
        self.data(area, at, 1).next().expect("there is one")
    }

    /// A block as it was written, or as all that is not synced being lost leaves it.
    pub fn block(&self, area: Area, at: u64, durable: bool) -> Block {
        let (device, first) = (self.device(area), at as usize / SECTOR);
        std::array::from_fn(|sector| {
            let at = first + sector;
            match device.unsynced.get(&at) {
                Some((before, _)) if durable => before.value(),
                _ => device.sectors[at].value(),
            }
        })
    }
}

impl Disk for SimDisk {
    fn bytes(&self, area: Area) -> u64 {
        (self.device(area).sectors.len() * SECTOR) as u64
    }

    fn read(&mut self, area: Area, at: u64, into: &mut [Sector]) -> Result<(), IoFault> {
        let device = self.device(area);
        for (at, sector) in (at as usize / SECTOR..).zip(into) {
            sector.0 = device.get(at).bytes();
        }
        Ok(())
    }

    fn write(&mut self, area: Area, at: u64, from: &[Sector]) -> Result<(), IoFault> {
        self.writes += 1;
        let write = self.writes;
        let device = self.device_mut(area);
        for (at, sector) in (at as usize / SECTOR..).zip(from) {
            device.put(at, Content::Bytes(Box::new(*sector)), true, write);
        }
        Ok(())
    }

    fn sync(&mut self, area: Area) -> Result<(), IoFault> {
        self.device_mut(area).unsynced.clear();
        Ok(())
    }
}
