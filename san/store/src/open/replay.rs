//! Reading a log that was left: where it ends, and whether it has lost something.
//!
//! A record that does not verify ends the log: it was being written when the process died. But if a later record says that
//! this one had been durable, or that its entry was acknowledged, it is corrupt, and the replica is damaged and not
//! shorter. So the ring beyond the end is searched for such records, up to the tail.

use loadline_san_core::layout::BLOCK;
use loadline_san_core::rule::{Rule, left_out};
use loadline_san_protocol::log::{
    Expected, LogFault, LogHeader, LogRecord, MAGIC, MOST_HEADER, Recorded, SECTOR, block_crc, decode,
};
use loadline_san_protocol::state::{Hole, MOST_HOLES, ReplicaState};
use thiserror::Error;
use zerocopy::{FromBytes, IntoBytes};

use crate::io::{Area, Data, Disk, IoFault, Sector};
use crate::log::{Kind, Log, Record};
use crate::open::{Damage, OpenError};
use crate::store::append::in_memory;
use crate::store::{Identity, Store};

/// Sectors that are read at once: 4 MiB.
const WINDOW: u64 = 8192;

/// Why a place of the ring has no record that continues the log.
#[derive(Debug, Error)]
pub(crate) enum ReplayFault {
    #[error("{0}")]
    Header(#[from] LogFault),
    #[error("record {found} is where record {expected} is expected")]
    Number { found: u64, expected: u64 },
    #[error("record {0} is longer than its log")]
    Long(u64),
    #[error("record {number} changes blocks {start} to {end} of a group of {blocks}")]
    Outside { number: u64, start: u64, end: u64, blocks: u64 },
    #[error(
        "the data of record {number} at block {block} has checksum {is:#010x} instead of {stated:#010x}: it is torn, or the device has changed it"
    )]
    Data { number: u64, block: u64, stated: u32, is: u32 },
    #[error("{0}")]
    Io(String),
}

/// The ring, read through a window.
#[derive(Debug)]
pub(crate) struct Ring {
    /// On the device.
    at: u64,
    bytes: u64,
    window: Vec<Sector>,
    /// Where in the ring the window begins.
    from: u64,
    /// Up to here something cannot be read: windows are small.
    careful: u64,
}

impl Ring {
    pub(crate) fn new(at: u64, bytes: u64) -> Ring {
        Ring { at, bytes, window: Vec::new(), from: 0, careful: 0 }
    }

    /// So many bytes from here on, which do not go beyond the ring's end.
    fn read(&mut self, disk: &mut impl Disk, at: u64, bytes: u64) -> Result<&[u8], IoFault> {
        let sector = SECTOR as u64;
        let held = self.from..self.from + self.window.len() as u64 * sector;
        if at < held.start || at + bytes > held.end {
            let window = if at < self.careful { 1 } else { WINDOW };
            let sectors = (bytes / sector).max(window).min((self.bytes - at) / sector);
            self.window.resize(sectors as usize, Sector::ZERO);
            self.from = at;
            let read = disk.read(Area::Log, self.at + at, &mut self.window);
            if read.is_err() {
                // A sector further on may be what cannot be read: it is come to soon enough.
                self.careful = at + sectors * sector;
                self.window.truncate((bytes / sector) as usize);
                let again = disk.read(Area::Log, self.at + at, &mut self.window);
                again.inspect_err(|_| self.window.clear())?;
            }
        }
        let start = (at - self.from) as usize;
        Ok(&self.window.as_bytes()[start..start + bytes as usize])
    }
}

/// What is known of a log before it is read.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    pub(crate) id: Identity,
    pub(crate) state: &'a ReplicaState,
    pub(crate) ring: Ring,
}

impl Reader<'_> {
    /// Of which generations the record of this number may be: the last from its first record on, and earlier ones before
    /// (rule R5).
    fn expected(&self, number: u64, generation: u64) -> Expected {
        let last = self.state.generation;
        let generations = match number >= self.state.first {
            _ if left_out(Rule::R5) => 0..=u64::MAX,
            true => last..=last,
            false => generation..=last.saturating_sub(1),
        };
        let key = self.state.key;
        Expected { replica: self.id.replica, group: self.id.group, key, generations }
    }

    /// The record of this number, if it is here and whole, with the checksums of its data.
    pub(crate) fn record(
        &mut self,
        disk: &mut impl Disk,
        at: u64,
        number: u64,
        generation: u64,
    ) -> Result<(LogRecord, Vec<u32>), ReplayFault> {
        let expected = self.expected(number, generation);
        let (record, sums, header, length) = self.header(disk, at, &expected)?;
        if record.number != number {
            return Err(ReplayFault::Number { found: record.number, expected: number });
        }
        if length > self.ring.bytes - at {
            return Err(ReplayFault::Long(number));
        }
        if let Recorded::Entry(change) = &record.what {
            let range = change.entry.range();
            if range.end > self.state.blocks {
                let (start, end, blocks) = (range.start, range.end, self.state.blocks);
                return Err(ReplayFault::Outside { number, start, end, blocks });
            }
            let io = |fault: IoFault| ReplayFault::Io(fault.to_string());
            let id = self.id;
            let data = self.ring.read(disk, at + header, length - header).map_err(io)?;
            for ((block, stated), data) in (range.start..).zip(&sums).zip(data.chunks_exact(BLOCK as usize)) {
                let is = block_crc(id.volume, id.group, block, data);
                if is != *stated && !left_out(Rule::DSum) {
                    return Err(ReplayFault::Data { number, block, stated: *stated, is });
                }
            }
        }
        Ok((record, sums))
    }

    /// The header at a place: what it says, the checksums, its length, and that of the record.
    fn header(
        &mut self,
        disk: &mut impl Disk,
        at: u64,
        expected: &Expected,
    ) -> Result<(LogRecord, Vec<u32>, u64, u64), ReplayFault> {
        let io = |fault: IoFault| ReplayFault::Io(fault.to_string());
        let left = (self.ring.bytes - at).min(MOST_HEADER as u64);
        let mut bytes = SECTOR as u64;
        loop {
            let found = self.ring.read(disk, at, bytes).map_err(io)?;
            match decode(found, expected) {
                Err(LogFault::TooShort { needed, .. }) if bytes < needed as u64 && needed as u64 <= left => {
                    bytes = needed as u64;
                }
                Err(fault) => return Err(fault.into()),
                Ok(view) => {
                    let sums = view.checksums.iter().map(|sum| sum.get()).collect();
                    let length = u64::from(view.header.length.get());
                    return Ok((view.record(), sums, view.header.header_length() as u64, length));
                }
            }
        }
    }

    /// The next record that can be read beyond one that cannot, if that, or one beyond it, shows that this one had been
    /// durable or acknowledged. Its number and place.
    fn beyond(
        &mut self,
        disk: &mut impl Disk,
        log: &Log,
        generation: u64,
        end: loadline_san_core::ids::Position,
    ) -> Option<(u64, u64)> {
        if left_out(Rule::DCorrupt) {
            return None;
        }
        let (number, sector) = (log.next(), SECTOR as u64);
        let mut first = None;
        let mut covered = self.state.durable >= number;
        let mut at = log.head();
        let all = (self.ring.bytes - log.used()) / sector;
        for _ in 0..all {
            let here = at;
            at = (at + sector) % self.ring.bytes;
            let Ok(bytes) = self.ring.read(disk, here, sector) else { continue };
            let Ok((header, _)) = LogHeader::ref_from_prefix(bytes) else { continue };
            let found = header.number.get();
            if header.magic != MAGIC || header.replica != self.id.replica.0 || found <= number {
                continue;
            }
            let expected = self.expected(found, generation);
            let Ok((record, ..)) = self.header(disk, here, &expected) else { continue };
            first = first.or(Some((found, here)));
            covered |= record.synced >= number || record.commit_point > end;
            if covered {
                break;
            }
        }
        first.filter(|_| covered)
    }
}

/// Reads the log of a store that is being opened.
pub(crate) fn replay<D: Data>(
    store: &mut Store<D>,
    disk: &mut impl Disk,
    damage: &mut Vec<Damage>,
) -> Result<(), OpenError> {
    let state = store.meta.state.clone();
    let ring = Ring::new(store.places.ring_at, store.places.ring);
    let mut reader = Reader { id: store.id, state: &state, ring };
    let mut generation = 0;
    let mut given_up = state.holes.clone();
    let fault = loop {
        let (number, at) = (store.log.next(), store.log.head());
        if let Some(hole) = given_up.iter().find(|hole| hole.from == number).copied() {
            skip(&mut store.log, hole);
            continue;
        }
        let fault = match reader.record(disk, at, number, generation) {
            Ok((record, sums)) => {
                generation = record.generation;
                let epoch = if left_out(Rule::R8) { store.known.epoch } else { record.epoch };
                store.known.raise(record.commit_point, epoch);
                let in_memory = in_memory(&record.what);
                if !store.log.fits(&in_memory) {
                    break ReplayFault::Long(number);
                }
                store.log.push(in_memory, sums.into_iter());
                continue;
            }
            Err(fault) => fault,
        };
        let Some((to, at)) = reader.beyond(disk, &store.log, generation, store.end()) else { break fault };
        damage.push(Damage::Log { from: number, to: to - 1, fault: fault.to_string() });
        if given_up.len() == MOST_HOLES {
            break fault;
        }
        given_up.push(Hole { from: number, to, at });
    };
    for drop in &state.truncations {
        store.log.drop_above(drop.above, drop.below);
    }
    let end = store.log.next() - 1;
    store.log.durable = end;
    let (was, fault) = (state.durable, fault.to_string());
    if was > end {
        damage.push(Damage::Short { end, was, fault });
    } else if store.known.commit_point > store.end() {
        damage.push(Damage::BelowCommitPoint {
            end: store.end(),
            commit_point: store.known.commit_point,
            fault,
        });
    }
    // They are given up for good when a person orders a recovery.
    store.meta.state.holes = given_up;
    Ok(())
}

fn skip(log: &mut Log, hole: Hole) {
    for _ in hole.from..hole.to {
        let position = loadline_san_core::ids::Position::START;
        log.push(Record::new(Kind::Hole, position, false, 0, 0), std::iter::empty());
    }
    log.skip_to(hole.at);
}
