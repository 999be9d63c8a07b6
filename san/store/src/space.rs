//! A device: what it begins with, and which replica has which of its chunks.
//!
//! ```text
//! │ superblock │ again │ table of chunks │ again │ chunk 0 │ chunk 1 │ …
//! ```
//!
//! A log takes consecutive chunks from the front, once. Extents take one at a time from the back, when they need it: so
//! volumes are thin. All that is here is on the control path.

use std::collections::{BTreeMap, BTreeSet};

use loadline_san_core::ids::ReplicaId;
use loadline_san_protocol::device::{
    ChunkUse, DeviceId, DiskFault, PAGE, Role, Superblock, decode_use, encode_use,
};
use loadline_san_protocol::log::SECTOR;
use loadline_san_protocol::{ClusterId, FieldError};
use thiserror::Error;

use crate::cache::Region;
use crate::io::{Area, Disk, IoFault, Sector, read_what_can_be};

/// Why a device cannot be used.
#[derive(Debug, Error)]
pub enum SpaceError {
    /// An I/O on the device has failed.
    #[error(transparent)]
    Io(#[from] IoFault),
    /// The device has other data.
    #[error("the device is not empty: it is not overwritten; erase its first MiB if nothing on it is needed")]
    NotEmpty,
    /// The size or layout of the device is not possible.
    #[error("the device does not fit: {0}")]
    Field(#[from] FieldError),
    /// The device was never prepared, or both copies of its first page are gone.
    #[error("the first pages of the device: {0}")]
    Superblock(DiskFault),
    /// The device belongs to another cluster.
    #[error(
        "the device belongs to cluster {found:032x}, and this is {ours:032x}: another cluster may need what is on it"
    )]
    OtherCluster {
        /// The cluster on the device.
        found: u128,
        /// What was expected.
        ours: u128,
    },
    /// It was longer.
    #[error(
        "the device has {is} bytes, and had {was} when it was prepared: it was made smaller, and has lost what was there"
    )]
    Shrunk {
        /// What it has.
        is: u64,
        /// What it had.
        was: u64,
    },
    /// Both copies of a sector of its table are gone.
    #[error("both copies of entry {chunk} of the device's table: {fault}")]
    Table {
        /// The number of the chunk that the entry is of.
        chunk: u32,
        /// What is wrong with the copies.
        fault: DiskFault,
    },
    /// The replica is there already.
    #[error("{0} is on this device already")]
    Exists(ReplicaId),
    /// There is not enough room in one piece.
    #[error(
        "there are not {needed} free chunks of {chunk_bytes} bytes in a row: {free} are free; use a smaller log, or another device"
    )]
    NoRoom {
        /// How many chunks are needed.
        needed: u32,
        /// Bytes of one.
        chunk_bytes: u64,
        /// How many are free, anywhere.
        free: u32,
    },
}

/// The superblock and the chunk table of one device. Its methods do I/O at once: use them on the control path only.
#[derive(Debug)]
pub struct Space {
    superblock: Superblock,
    /// Of each chunk.
    uses: Vec<Option<ChunkUse>>,
    /// Set aside while what it held is being given back, or before its entry is written.
    free: u32,
    /// Chunks that read caches have. Nothing on the device says so, since a cache does not outlive the process.
    lent: BTreeSet<u32>,
}

impl Space {
    /// Prepares an empty device. One whose beginning has any byte that is not zero is refused, unless `overwrite` is set:
    /// nothing on it is needed then.
    pub fn format(
        disk: &mut impl Disk,
        area: Area,
        superblock: Superblock,
        overwrite: bool,
    ) -> Result<Space, SpaceError> {
        let begins = superblock.chunk_at(0);
        let looked = begins.next_multiple_of(1 << 20).min(disk.bytes(area)) / SECTOR as u64;
        let mut first = Sector::zeroes(looked as usize);
        disk.read(area, 0, &mut first)?;
        if !overwrite && first.iter().any(|sector| *sector != Sector::ZERO) {
            return Err(SpaceError::NotEmpty);
        }
        let page = Sector::of(&superblock.encode()?);
        // What an older device had there must not be taken for ours, whenever this is cut short.
        disk.write(area, 0, &Sector::zeroes(2 * PAGE / SECTOR))?;
        disk.write(area, 2 * PAGE as u64, &Sector::zeroes((begins as usize - 2 * PAGE) / SECTOR))?;
        disk.write(area, 0, &page)?;
        disk.write(area, PAGE as u64, &page)?;
        let uses = vec![None; superblock.chunks as usize];
        Ok(Space { superblock, uses, free: superblock.chunks, lent: BTreeSet::new() })
    }

    /// Reads what a device of this cluster begins with; of any, if none is named. What one of its two copies has lost is mended from the other.
    pub fn load(disk: &mut impl Disk, area: Area, cluster: Option<ClusterId>) -> Result<Space, SpaceError> {
        let mut pages = Sector::zeroes(2 * PAGE / SECTOR);
        let unreadable = read_what_can_be(disk, area, 0, &mut pages)?;
        let (first, second) = Sector::bytes(&pages).split_at(PAGE);
        let decoded = |copy: usize, page| match unreadable.iter().any(|at| at * SECTOR / PAGE == copy) {
            true => Err(DiskFault::Unreadable),
            false => Superblock::decode(page),
        };
        let superblock = match (decoded(0, first), decoded(1, second)) {
            (Ok(superblock), Ok(_)) => superblock,
            (Ok(superblock), Err(_)) => {
                disk.write(area, PAGE as u64, &Sector::of(first))?;
                superblock
            }
            (Err(newer @ DiskFault::Newer { .. }), _) => return Err(SpaceError::Superblock(newer)),
            (Err(_), Ok(superblock)) => {
                disk.write(area, 0, &Sector::of(second))?;
                superblock
            }
            (Err(fault), Err(_)) => return Err(SpaceError::Superblock(fault)),
        };
        if let Some(ours) = cluster.filter(|ours| *ours != superblock.cluster) {
            return Err(SpaceError::OtherCluster { found: superblock.cluster.0, ours: ours.0 });
        }
        let (is, was) = (disk.bytes(area), superblock.bytes);
        if is < was {
            return Err(SpaceError::Shrunk { is, was });
        }
        let mut space = Space { superblock, uses: Vec::new(), free: 0, lent: BTreeSet::new() };
        space.load_table(disk, area)?;
        Ok(space)
    }

    /// A copy of the table: of each sector what it has, if it can be read.
    fn load_copy(
        &self,
        disk: &mut impl Disk,
        area: Area,
        copy: u32,
    ) -> Result<Vec<Option<Sector>>, SpaceError> {
        let mut sectors = Sector::zeroes(self.superblock.chunks as usize);
        let unreadable = read_what_can_be(disk, area, self.superblock.table_at(copy), &mut sectors)?;
        let mut copy: Vec<Option<Sector>> = sectors.into_iter().map(Some).collect();
        unreadable.into_iter().for_each(|chunk| copy[chunk] = None);
        Ok(copy)
    }

    fn load_table(&mut self, disk: &mut impl Disk, area: Area) -> Result<(), SpaceError> {
        let chunks = self.superblock.chunks;
        let first = self.load_copy(disk, area, 0)?;
        let second = self.load_copy(disk, area, 1)?;
        for (chunk, (first, second)) in (0..chunks).zip(first.into_iter().zip(second)) {
            let decoded = |sector: Option<Sector>| match sector {
                None => Err(DiskFault::Unreadable),
                Some(sector) => decode_use(&sector.0, self.superblock.device, chunk),
            };
            let entry = match (decoded(first), decoded(second)) {
                // A chunk is used or free when both entries agree. Between the two its content does not count yet, or does not
                // count any more; the replica that has the chunk finds it empty.
                (Ok(one), Ok(other)) => one.or(other),
                (Ok(one), Err(fault)) | (Err(fault), Ok(one)) => {
                    if let DiskFault::Newer { .. } = fault {
                        return Err(SpaceError::Table { chunk, fault });
                    }
                    one
                }
                (Err(fault), Err(_)) => return Err(SpaceError::Table { chunk, fault }),
            };
            self.uses.push(entry);
            if first != second {
                // What one has lost, or did not come to have, is mended before the other can be lost.
                let entry = Sector(encode_use(entry.as_ref(), self.superblock.device, chunk)?);
                for (copy, is) in (0..).zip([first, second]) {
                    if is != Some(entry) {
                        let at = self.superblock.table_at(copy) + u64::from(chunk) * SECTOR as u64;
                        disk.write(area, at, &[entry])?;
                    }
                }
            }
        }
        // Of a log that was not taken to the end, or was given back, there is no first chunk.
        let firsts: Vec<ReplicaId> = self.replicas().collect();
        for of in &mut self.uses {
            *of = of.filter(|of| of.role == Role::Capacity || firsts.contains(&of.replica));
        }
        self.free = self.uses.iter().filter(|of| of.is_none()).count() as u32;
        Ok(())
    }

    /// What the device begins with.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Chunks without a user.
    pub fn free(&self) -> u32 {
        self.free
    }

    /// The user of each chunk.
    pub fn uses(&self) -> &[Option<ChunkUse>] {
        &self.uses
    }

    /// Replicas that have a log or extents here, with their keys.
    pub fn residents(&self) -> BTreeMap<ReplicaId, u64> {
        self.uses.iter().flatten().map(|of| (of.replica, of.key)).collect()
    }

    /// The key of the replica with this id that has a log or extents here; `None` if none has. A key other than the one that the
    /// configuration names is that of another replica, which had the id before the configuration was restored from an older copy.
    pub fn key_of(&self, replica: ReplicaId) -> Option<u64> {
        self.uses.iter().flatten().find(|of| of.replica == replica).map(|of| of.key)
    }

    /// Replicas whose logs are here.
    pub fn replicas(&self) -> impl Iterator<Item = ReplicaId> {
        let logs = self.uses.iter().flatten().filter(|of| of.role == Role::Log && of.index == 0);
        logs.map(|of| of.replica)
    }

    /// The device.
    pub(crate) fn device(&self) -> DeviceId {
        self.superblock.device
    }

    /// Where the log of a replica begins, in bytes, and how long it is. None if it is not here, or not whole.
    pub fn log_of(&self, replica: ReplicaId) -> Option<(u64, u64)> {
        let is_first = |of: &Option<ChunkUse>| {
            of.is_some_and(|of| of.replica == replica && of.role == Role::Log && of.index == 0)
        };
        let first = self.uses.iter().position(is_first)?;
        let ChunkUse { key, of, .. } = self.uses[first]?;
        let whole = (0..of).all(|index| {
            let expected = ChunkUse { replica, key, role: Role::Log, index, of };
            self.uses.get(first + index as usize) == Some(&Some(expected))
        });
        let bytes = u64::from(of) * self.superblock.chunk_bytes;
        whole.then(|| (self.superblock.chunk_at(first as u32), bytes))
    }

    /// Chunks with extents of a replica.
    pub(crate) fn extents_of(&self, replica: ReplicaId, key: u64) -> impl Iterator<Item = u32> {
        let of = (0..).zip(&self.uses).filter_map(|(chunk, of)| of.as_ref().map(|of| (chunk, of)));
        of.filter(move |(_, of)| **of == Space::capacity(replica, key)).map(|(chunk, _)| chunk)
    }

    /// Takes chunks for a log, in a row: where it begins, in bytes, and how long it is. What must be there first is written
    /// by `prepare`, before the log counts. All is durable when this returns.
    pub(crate) fn take_log<D: Disk>(
        &mut self,
        disk: &mut D,
        (replica, key): (ReplicaId, u64),
        bytes: u64,
        prepare: impl FnOnce(&mut D, u64, u64) -> Result<(), SpaceError>,
    ) -> Result<(), SpaceError> {
        if self.uses.iter().flatten().any(|of| of.replica == replica) {
            return Err(SpaceError::Exists(replica));
        }
        let chunk_bytes = self.superblock.chunk_bytes;
        let of = u32::try_from(bytes.div_ceil(chunk_bytes)).unwrap_or(u32::MAX).max(1);
        let is_free = |first: &usize| {
            let run = self.uses.get(*first..first.saturating_add(of as usize));
            let is_lent = self.lent.range(*first as u32..(*first as u32).saturating_add(of)).next().is_some();
            !is_lent && run.is_some_and(|run| run.iter().all(Option::is_none))
        };
        let Some(first) = (0..self.uses.len()).find(is_free) else {
            return Err(SpaceError::NoRoom { needed: of, chunk_bytes, free: self.free });
        };
        prepare(disk, self.superblock.chunk_at(first as u32), u64::from(of) * chunk_bytes)?;
        // The first chunk comes last: without it the others are free.
        for index in (0..of).rev() {
            let entry = ChunkUse { replica, key, role: Role::Log, index, of };
            self.set(disk, Area::Log, first as u32 + index, Some(entry))?;
        }
        Ok(())
    }

    /// Takes a chunk for extents, which is ours when its entries are durable. None if all are taken.
    pub(crate) fn take(&mut self, replica: ReplicaId, key: u64) -> Option<u32> {
        if self.free == 0 {
            return None;
        }
        let chunk = self.last_free()?;
        self.uses[chunk] = Some(Space::capacity(replica, key));
        self.free -= 1;
        Some(chunk as u32)
    }

    /// Takes so many chunks for a read cache, until they are given back or the process ends. `None` if there are not so many.
    pub fn lend(&mut self, chunks: u32) -> Option<Region> {
        if self.free < chunks {
            return None;
        }
        let is_free = |chunk: &usize| self.uses[*chunk].is_none() && !self.lent.contains(&(*chunk as u32));
        let found: Vec<u32> =
            (0..self.uses.len()).rev().filter(is_free).take(chunks as usize).map(|at| at as u32).collect();
        let starts = found.iter().map(|chunk| self.superblock.chunk_at(*chunk)).collect();
        self.lent.extend(found);
        self.free -= chunks;
        Some(Region { starts, chunk_bytes: self.superblock.chunk_bytes })
    }

    /// A read cache does not write there any more.
    pub fn give_back(&mut self, region: &Region) {
        let first = self.superblock.chunk_at(0);
        for start in &region.starts {
            let chunk = ((start - first) / self.superblock.chunk_bytes) as u32;
            self.free += u32::from(self.lent.remove(&chunk));
        }
    }

    /// Chunks that read caches have.
    pub fn lent(&self) -> usize {
        self.lent.len()
    }

    fn last_free(&self) -> Option<usize> {
        (0..self.uses.len()).rev().find(|at| self.uses[*at].is_none() && !self.lent.contains(&(*at as u32)))
    }

    fn capacity(replica: ReplicaId, key: u64) -> ChunkUse {
        ChunkUse { replica, key, role: Role::Capacity, index: 0, of: 0 }
    }

    /// Where the two entries of a chunk of extents are, in bytes, and what they hold.
    pub(crate) fn entry(&self, chunk: u32, replica: ReplicaId, key: u64) -> ([u64; 2], Sector) {
        let at = |copy| self.superblock.table_at(copy) + u64::from(chunk) * SECTOR as u64;
        let entry = encode_use(Some(&Space::capacity(replica, key)), self.superblock.device, chunk);
        ([at(0), at(1)], Sector(entry.expect("a chunk of extents can be encoded")))
    }

    /// Writes the entries of a chunk.
    fn set(
        &mut self,
        disk: &mut impl Disk,
        area: Area,
        chunk: u32,
        of: Option<ChunkUse>,
    ) -> Result<(), SpaceError> {
        let entry = Sector(encode_use(of.as_ref(), self.superblock.device, chunk)?);
        for copy in 0..2 {
            let at = self.superblock.table_at(copy) + u64::from(chunk) * SECTOR as u64;
            disk.write(area, at, &[entry])?;
        }
        let place = &mut self.uses[chunk as usize];
        self.free = self.free + u32::from(place.is_some()) - u32::from(of.is_some());
        *place = of;
        Ok(())
    }

    /// Gives back all that the replica with this id and key has on this device. Its store must not be open. It can be repeated.
    pub fn forget(
        &mut self,
        disk: &mut impl Disk,
        area: Area,
        replica: ReplicaId,
        key: u64,
    ) -> Result<(), SpaceError> {
        while self.forget_one(disk, area, replica, key)? {}
        Ok(())
    }

    /// Gives back one chunk of those. Returns whether there was one.
    pub fn forget_one(
        &mut self,
        disk: &mut impl Disk,
        area: Area,
        replica: ReplicaId,
        key: u64,
    ) -> Result<bool, SpaceError> {
        let is_its = |of: &Option<ChunkUse>| of.is_some_and(|of| of.replica == replica && of.key == key);
        // The first chunk of the log goes first: without it the replica is gone.
        let is_first =
            |of: &Option<ChunkUse>| is_its(of) && of.is_some_and(|of| of.role == Role::Log && of.index == 0);
        let found = self.uses.iter().position(is_first).or_else(|| self.uses.iter().position(is_its));
        match found {
            Some(chunk) => self.set(disk, area, chunk as u32, None).map(|()| true),
            None => Ok(false),
        }
    }
}
