//! Checking a stopped replica, without changing anything.

use std::ops::Range;

use loadline_san_core::ids::Epoch;
use loadline_san_core::layout::BLOCK;
use loadline_san_protocol::log::{SECTOR, block_crc};
use loadline_san_protocol::slot::BlockState;
use loadline_san_protocol::state::ReplicaState;

use crate::io::{Area, Data, Disk, IoFault, Sector};
use crate::log::Kind;
use crate::store::{Store, merged};

/// A disk that is only read: what would be mended on it is not written.
#[derive(Debug)]
pub struct ReadOnly<D>(pub D);

impl<D: Disk> Disk for ReadOnly<D> {
    fn bytes(&self, area: Area) -> u64 {
        self.0.bytes(area)
    }

    fn read(&mut self, area: Area, at: u64, into: &mut [Sector]) -> Result<(), IoFault> {
        self.0.read(area, at, into)
    }

    fn write(&mut self, _: Area, _: u64, _: &[Sector]) -> Result<(), IoFault> {
        Ok(())
    }

    fn sync(&mut self, _: Area) -> Result<(), IoFault> {
        Ok(())
    }
}

/// A record of the log, as it is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Logged {
    /// The number of the record.
    pub number: u64,
    /// Where on the log's device, in bytes.
    pub at: u64,
    /// What it is: `open`, `data`, `zeroes`, `trim`, `commit point`, `wrap`, or `hole`, which cannot be read.
    pub kind: &'static str,
    /// It is the next of its ownership.
    pub sequenced: bool,
    /// A return has dropped it.
    pub dropped: bool,
    /// Where its entry stands among all of the group.
    pub position: loadline_san_core::ids::Position,
    /// The first of its blocks.
    pub block: u64,
    /// The number of blocks.
    pub blocks: u32,
}

/// An extent that the device has, as it is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Which of the group.
    pub extent: u64,
    /// The epoch under which the extent was last written.
    pub stamp: Epoch,
    /// Where on the capacity device its slot is, in bytes.
    pub slot_at: u64,
    /// Where on it its data is.
    pub at: u64,
    /// The number of blocks with data.
    pub data: u32,
    /// The number of blocks that are stored as zeroes.
    pub zeroes: u32,
}

/// What a check of all blocks found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checked {
    /// Blocks of extents that were read.
    pub blocks: u64,
    /// Of these, those that do not match their checksums, or cannot be read: in rising order of places.
    pub corrupt: Vec<u64>,
    /// Blocks of extents that the log has newer: they may be half written, and are not judged.
    pub shadowed: u64,
}

impl<D: Data> Store<D> {
    /// The metadata of the replica.
    pub fn state(&self) -> &ReplicaState {
        &self.meta.state
    }

    /// Extents that were freed and have left a trace, with their stamps.
    pub fn tombstones(&self) -> impl Iterator<Item = (Range<u64>, Epoch)> {
        self.meta.tombstones().iter().map(|(extents, stamp)| (extents.clone(), *stamp))
    }

    /// All records of its log.
    pub fn records(&self) -> impl Iterator<Item = Logged> {
        self.log.iter().map(|(number, record)| Logged {
            number,
            at: self.ring_at(record.at),
            kind: match record.kind {
                Kind::Open => "open",
                Kind::Data => "data",
                Kind::Zeroes => "zeroes",
                Kind::Trim => "trim",
                Kind::CommitPoint => "commit point",
                Kind::Wrap => "wrap",
                Kind::Hole => "hole",
            },
            sequenced: record.sequenced,
            dropped: record.dropped,
            position: record.position,
            block: record.block,
            blocks: record.blocks,
        })
    }

    /// All extents that the device has.
    pub fn held(&self) -> impl Iterator<Item = Held> {
        self.extents.places().filter_map(|place| {
            let extent = self.extents.at(place);
            let count = |state| (0..64).filter(|block| extent.slot.state(*block) == state).count() as u32;
            extent.stored.then(|| Held {
                extent: extent.slot.extent,
                stamp: extent.slot.stamp,
                slot_at: self.extents.slot_at(place),
                at: self.extents.block_at(place, 0),
                data: count(BlockState::Data),
                zeroes: count(BlockState::Zeroes),
            })
        })
    }

    /// Reads all blocks of all extents. Calls `go_on` after each extent with how many are done, of how many, and stops when it
    /// returns false.
    pub fn check(
        &self,
        disk: &mut impl Disk,
        mut go_on: impl FnMut(u64, u64) -> bool,
    ) -> Result<Checked, IoFault> {
        let mut checked = Checked::default();
        let all = self.extents.places().filter(|place| self.extents.at(*place).stored).count() as u64;
        let size = self.extents.blocks();
        let mut sectors = Sector::zeroes(size as usize * BLOCK as usize / SECTOR);
        let logged: Vec<Range<u64>> =
            merged(self.log.iter().map(|(_, record)| record.range())).iter().collect();
        let in_log = |block: u64| {
            let next = logged.partition_point(|range| range.end <= block);
            logged.get(next).is_some_and(|range| range.contains(&block))
        };
        let stored = self.extents.places().filter(|place| self.extents.at(*place).stored);
        for (done, place) in (0..).zip(stored) {
            if !go_on(done, all) {
                break;
            }
            let extent = self.extents.at(place);
            let whole = disk.read(Area::Capacity, self.extents.block_at(place, 0), &mut sectors).is_ok();
            for within in (0..size as u32).filter(|block| extent.slot.state(*block) == BlockState::Data) {
                let block = extent.slot.extent * size + u64::from(within);
                if in_log(block) {
                    checked.shadowed += 1;
                    continue;
                }
                let from = within as usize * (BLOCK as usize / SECTOR);
                let one = &mut sectors[from..from + BLOCK as usize / SECTOR];
                let readable =
                    whole || disk.read(Area::Capacity, self.extents.block_at(place, within), one).is_ok();
                let is = block_crc(self.id.volume, self.id.group, block, Sector::bytes(one));
                checked.blocks += 1;
                if !readable || is != extent.slot.checksums[within as usize] {
                    checked.corrupt.push(block);
                }
            }
        }
        Ok(checked)
    }
}
