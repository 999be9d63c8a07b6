//! The metadata of a replica: its page, twice, and its side pages (lists that do not fit in the page).
//!
//! ```text
//! log chunks │ page │ page again │ side, even │ side, odd │ ring … │
//! ```
//!
//! A change is made in memory, and written some time later, with all others until then: first the side pages, to the
//! half that does not count, then one page, then the other. When both are durable the change is. So a page that is torn
//! or corrupt loses nothing that was reported.

use std::ops::Range;

use loadline_san_core::ids::Epoch;
use loadline_san_core::range_set::{RangeSet, coarse};
use loadline_san_core::rule::{Rule, left_out};
use loadline_san_protocol::device::{DiskFault, PAGE};
use loadline_san_protocol::log::SECTOR;
use loadline_san_protocol::state::{
    MOST_LISTED, MOST_TOMBSTONES, ReplicaState, Side, Tombstone, decode_side, encode_side, side_crc,
    side_length,
};
use rangemap::RangeMap;

use crate::io::{Area, Disk, IoFault, Part, Sector, Writing, read_what_can_be};

/// Where everything is in the chunks of a log, in bytes of the device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Places {
    start: u64,
    /// Bytes of one half of the side pages.
    half: u64,
    /// Where the ring begins, and how long it is.
    pub(crate) ring_at: u64,
    pub(crate) ring: u64,
}

impl Places {
    /// Of a log of so many bytes from here on. A sixteenth of it, and not more than is ever needed, is for each half.
    pub(crate) fn new(start: u64, bytes: u64) -> Places {
        let needed = side_length(MOST_LISTED, MOST_TOMBSTONES).next_multiple_of(PAGE as u64);
        let half = (bytes / 16).next_multiple_of(PAGE as u64).min(needed);
        let ring_at = start + 2 * PAGE as u64 + 2 * half;
        Places { start, half, ring_at, ring: (start + bytes).saturating_sub(ring_at) }
    }

    fn page(&self, copy: u64) -> u64 {
        self.start + copy * PAGE as u64
    }

    fn out_of_band(&self, version: u64) -> u64 {
        self.start + 2 * PAGE as u64 + version % 2 * self.half
    }

    /// How many ranges, and tombstones, the side pages may hold: some of each.
    fn most(&self) -> (usize, usize) {
        let of = |bytes: u64, most: u32| ((self.half / 2 / bytes) as usize).min(most as usize);
        (of(16, MOST_LISTED), of(24, MOST_TOMBSTONES))
    }
}

/// The metadata of one replica: its state page, the list of blocks to resync and the tombstones, in memory and in flight to the
/// device.
#[derive(Debug)]
pub(crate) struct ReplicaMeta {
    places: Places,
    /// As it is to be written.
    pub(crate) state: ReplicaState,
    /// What is to be copied to the replica, since it has dropped what its log had.
    list: RangeSet,
    /// Extents that were freed, with their stamps.
    tombstones: RangeMap<u64, Epoch>,
    side_changed: bool,
    /// Changes are counted. Those up to `durable` are.
    changes: u64,
    durable: u64,
    flight: Option<Flight>,
    /// What is being written.
    page: Vec<Sector>,
    out_of_band: Vec<Sector>,
}

#[derive(Debug)]
struct Flight {
    /// The change that it makes durable.
    change: u64,
    step: Step,
    /// It was handed out.
    out: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    OutOfBand,
    First,
    Second,
}

/// Why nothing can be known of a replica.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MetaError {
    #[error(transparent)]
    Io(#[from] IoFault),
    #[error("{0}")]
    Page(DiskFault),
    #[error("its two pages are {0} versions apart, and were written one after the other")]
    Apart(u64),
}

impl ReplicaMeta {
    /// What is kept of a new replica, durably when it returns.
    pub(crate) fn create(
        disk: &mut impl Disk,
        places: Places,
        state: &ReplicaState,
    ) -> Result<(), MetaError> {
        let page = state.encode().map_err(|fault| MetaError::Page(DiskFault::Field(fault)))?;
        for copy in 0..2 {
            disk.write(Area::Log, places.page(copy), &Sector::of(&page))?;
        }
        Ok(())
    }

    /// What is found; and why the list or the tombstones are lost, if they are.
    pub(crate) fn load(
        disk: &mut impl Disk,
        places: Places,
    ) -> Result<(ReplicaMeta, Option<DiskFault>), MetaError> {
        let mut pages = Sector::zeroes(2 * PAGE / SECTOR);
        let unreadable = read_what_can_be(disk, Area::Log, places.page(0), &mut pages)?;
        let (first, second) = Sector::bytes(&pages).split_at(PAGE);
        let decoded = |copy: usize, page| match unreadable.iter().any(|at| at * SECTOR / PAGE == copy) {
            true => Err(DiskFault::Unreadable),
            false => ReplicaState::decode(page),
        };
        let state = match (decoded(0, first), decoded(1, second)) {
            (Ok(one), Ok(other)) if one.version.abs_diff(other.version) > 1 => {
                return Err(MetaError::Apart(one.version.abs_diff(other.version)));
            }
            (Ok(one), Ok(other)) => {
                if one.version > other.version {
                    one
                } else {
                    other
                }
            }
            (Err(newer @ DiskFault::Newer { .. }), _) | (_, Err(newer @ DiskFault::Newer { .. })) => {
                return Err(MetaError::Page(newer));
            }
            (Ok(state), Err(_)) | (Err(_), Ok(state)) => state,
            (Err(fault), Err(_)) => return Err(MetaError::Page(fault)),
        };
        // What follows is written over the one and then the other: both must be whole, and this one, before. It is not touched
        // where it is.
        let page = state.encode().map_err(|fault| MetaError::Page(DiskFault::Field(fault)))?;
        for (copy, is) in [(0, first), (1, second)] {
            if is != page {
                disk.write(Area::Log, places.page(copy), &Sector::of(&page))?;
            }
        }
        let mut meta = ReplicaMeta {
            places,
            list: RangeSet::default(),
            tombstones: RangeMap::new(),
            side_changed: false,
            changes: 0,
            durable: 0,
            flight: None,
            page: Vec::new(),
            out_of_band: Vec::new(),
            state,
        };
        let lost = meta.load_side(disk)?;
        Ok((meta, lost))
    }

    fn load_side(&mut self, disk: &mut impl Disk) -> Result<Option<DiskFault>, MetaError> {
        let side = self.state.side;
        let bytes = side_length(side.ranges, side.tombstones);
        if bytes > self.places.half {
            let got = self.places.half as usize;
            return Ok(Some(DiskFault::Short {
                what: "the side pages of a replica",
                needed: bytes as usize,
                got,
            }));
        }
        let mut out_of_band = Sector::zeroes(bytes as usize / SECTOR);
        let at = self.places.out_of_band(side.version);
        if !read_what_can_be(disk, Area::Log, at, &mut out_of_band)?.is_empty() {
            return Ok(Some(DiskFault::Unreadable));
        }
        Ok(match decode_side(Sector::bytes(&out_of_band), &side) {
            Ok((ranges, tombstones)) => {
                ranges.into_iter().for_each(|range| self.list.insert(range));
                tombstones.into_iter().for_each(|one| self.tombstones.insert(one.extents, one.stamp));
                None
            }
            Err(fault) => Some(fault),
        })
    }

    /// Writes it at once, durably.
    pub(crate) fn write_now(&mut self, disk: &mut impl Disk) -> Result<(), IoFault> {
        self.changed();
        while let Some(writing) = self.write::<()>() {
            disk.write(writing.area, writing.at, &writing.bytes)?;
            self.wrote();
        }
        Ok(())
    }

    /// What is to be copied.
    pub(crate) fn list(&self) -> &RangeSet {
        &self.list
    }

    /// Extents that were freed and have left a trace, with their stamps.
    pub(crate) fn tombstones(&self) -> &RangeMap<u64, Epoch> {
        &self.tombstones
    }

    /// These are to be copied too.
    pub(crate) fn add_to_list(&mut self, ranges: impl Iterator<Item = Range<u64>>) {
        ranges.for_each(|range| self.list.insert(range));
        let most = self.places.most().0;
        if self.list.iter().count() > most {
            let ranges = self.list.iter().collect();
            self.list = RangeSet::default();
            coarse(ranges, most).into_iter().for_each(|range| self.list.insert(range));
        }
        self.side_changed = true;
    }

    /// Nothing is to be copied any more.
    pub(crate) fn forget_list(&mut self) {
        self.side_changed |= !self.list.is_empty();
        self.list = RangeSet::default();
    }

    /// An extent was freed under this stamp.
    pub(crate) fn bury(&mut self, extent: u64, stamp: Epoch) {
        self.tombstones.insert(extent..extent + 1, stamp);
        self.side_changed = true;
    }

    /// An extent is there again.
    pub(crate) fn dig_up(&mut self, extent: u64) {
        if self.tombstones.contains_key(&extent) {
            self.tombstones.remove(extent..extent + 1);
            self.side_changed = true;
        }
    }

    /// Traces of what was freed before this epoch are not needed.
    pub(crate) fn forget_tombstones(&mut self, below: Epoch) {
        let old = |(range, stamp): (&Range<u64>, &Epoch)| (*stamp < below).then(|| range.clone());
        let gone: Vec<Range<u64>> = self.tombstones.iter().filter_map(old).collect();
        self.side_changed |= !gone.is_empty();
        gone.into_iter().for_each(|range| self.tombstones.remove(range));
    }

    /// Everything in the side pages is forgotten.
    pub(crate) fn clear_side(&mut self) {
        // Also if it is empty here: what is on the device may be unreadable.
        self.side_changed = true;
        self.forget_list();
        self.forget_tombstones(Epoch(u64::MAX));
    }

    /// Something was changed that is to be written. Which change it is, to ask whether it is durable.
    pub(crate) fn changed(&mut self) -> u64 {
        self.changes += 1;
        self.changes
    }

    /// Whether a change, and all before, are durable.
    pub(crate) fn is_durable(&self, change: u64) -> bool {
        self.durable >= change
    }

    /// The next write, if there is one to be made. [`wrote`](Self::wrote) reports that it is durable.
    pub(crate) fn write<D>(&mut self) -> Option<Writing<D>> {
        if self.flight.is_none() && self.changes != self.durable {
            self.begin();
        }
        let flight = self.flight.as_mut().filter(|flight| !flight.out)?;
        flight.out = true;
        let (at, from) = match flight.step {
            Step::OutOfBand => (self.places.out_of_band(self.state.side.version), &self.out_of_band),
            Step::First => (self.places.page(0), &self.page),
            Step::Second => (self.places.page(1), &self.page),
        };
        let bytes = from.clone();
        let parts = vec![Part::Bytes(bytes.len() as u32)];
        Some(Writing { area: Area::Log, at, bytes, parts, durable: true })
    }

    fn begin(&mut self) {
        let mut step = Step::First;
        if std::mem::take(&mut self.side_changed) {
            let ranges: Vec<Range<u64>> = self.list.iter().collect();
            let tombstones = self.tombstones_to_keep();
            let bytes = encode_side(&ranges, &tombstones).expect("the side pages were checked");
            self.state.side = Side {
                version: self.state.side.version + 1,
                ranges: ranges.len() as u32,
                tombstones: tombstones.len() as u32,
                crc: side_crc(&bytes),
            };
            self.out_of_band = Sector::of(&bytes);
            if !self.out_of_band.is_empty() {
                step = Step::OutOfBand;
            }
        }
        self.state.version += 1;
        self.page = Sector::of(&self.state.encode().expect("the metadata of a replica was checked"));
        self.flight = Some(Flight { change: self.changes, step, out: false });
    }

    /// Where there are too many, neighbours become one, with the later stamp: more is copied then, and nothing is missed.
    fn tombstones_to_keep(&mut self) -> Vec<Tombstone> {
        let all = self.tombstones.iter();
        let mut all: Vec<Tombstone> =
            all.map(|(extents, stamp)| Tombstone { extents: extents.clone(), stamp: *stamp }).collect();
        let most = self.places.most().1;
        while all.len() > most {
            let pairs = all.chunks(2).map(|pair| Tombstone {
                extents: pair[0].extents.start..pair[pair.len() - 1].extents.end,
                stamp: pair.iter().map(|one| one.stamp).max().expect("there is one"),
            });
            all = pairs.collect();
        }
        all
    }

    /// A write that was asked for is durable.
    pub(crate) fn wrote(&mut self) {
        let flight = self.flight.as_mut().expect("it was asked for");
        flight.out = false;
        flight.step = match flight.step {
            Step::OutOfBand => Step::First,
            Step::First if !left_out(Rule::DPages) => Step::Second,
            Step::First | Step::Second => {
                self.durable = flight.change;
                self.flight = None;
                return;
            }
        };
    }
}
