//! A replica's store on a simulated disk, with every fault.
//!
//! ```text
//! submit ─▶ loadline-san-store ─▶ asks ─▶ step: one is done, in any order ─▶ completions
//!                                             │
//!                                             ▼
//!                                  SimDisk: sectors, written and durable
//! ```
//!
//! The simulator may let the process die ([`Store::kill`]) or cut the power ([`Store::power_loss`]) between any two steps.
//! What is written is readable at once, and survives a kill; only what is synced survives a loss of power for certain.

mod blocks;
mod corruption;
mod devices;
mod disk;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::{Arc, Mutex};

use loadline_san_core::ids::{Epoch, Incarnation, NodeId, Owner, Position, ReplicaId};
use loadline_san_core::layout::{BLOCK, GroupIndex};
use loadline_san_core::message::{Mention, Promise};
use loadline_san_core::store::{Command, Completion, DurableState};
use loadline_san_protocol::device::{DeviceId, Superblock};
use loadline_san_protocol::log::SECTOR;
use loadline_san_protocol::slot::{self, Holder};
use loadline_san_protocol::{ClusterId, state};
use loadline_san_store::io::{Address, Area, Data as _, Disk, IoRequest, Sector, Token};
use loadline_san_store::open::{Damage, NewReplica, create, open};
use loadline_san_store::read;
use loadline_san_store::space::Space;
use loadline_san_store::store::{Action, Identity, Settings};

pub use self::blocks::{Block, Blocks, ZERO};
pub use self::disk::SimDisk;
use crate::rng::Rng;
use crate::settings::{self, VOLUME};

/// What is simulated here runs on disks of its own.
pub(crate) type Real = loadline_san_store::store::Store<Blocks>;

const CLUSTER: ClusterId = ClusterId(0x10ad);
/// Blocks of an extent. Few, so that extents are allocated and freed.
const EXTENT: u32 = 4;
/// Extents of a chunk.
const CHUNK: u64 = 8;
/// Bytes of a chunk: a page of slots, and the extents.
const CHUNK_BYTES: u64 = 4096 + CHUNK * EXTENT as u64 * BLOCK;
/// Blocks of data that one owner has in flight for a group, at most.
pub(crate) const MOST_IN_FLIGHT: u32 = 25;

/// A replica's store, on a disk that survives the process. Faults are injected by its methods.
#[derive(Debug)]
pub struct Store {
    replica: ReplicaId,
    disk: SimDisk,
    health: Health,
    process: Option<Process>,
    /// What a start would find, while no process runs: all that is written, and all that is durable.
    asleep: Option<Box<[Real; 2]>>,
    /// The promise that the store last reported as durable.
    promise: Promise,
    /// The promise that is durable when the store has reported that it is emptied.
    discards: Option<Promise>,
    /// Something is corrupt.
    was_corrupted: bool,
    /// Its device was full.
    was_full: bool,
    /// A process has opened it: the one that made it was the first.
    was_opened: bool,
    /// Of two devices, the one that is much slower.
    slow: Option<Area>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Health {
    Well,
    /// The next write or sync fails; of this device, if one is named.
    FailsNext(Option<Area>),
    /// A start has found that something is lost: it does nothing until it is salvaged or emptied.
    Damaged,
    /// A write or a sync has failed. The process may not have received the failure yet.
    Dead,
}

/// What is gone when the process dies.
#[derive(Debug)]
struct Process {
    store: Real,
    /// What the device has been asked for, and when.
    submitted: Vec<(Token, IoRequest<Blocks>, u64)>,
    damaged: bool,
    failure_reported: bool,
}

/// Small, so that everything happens often.
pub(crate) const SETTINGS: Settings = Settings {
    low: 40,
    begin: 12 << 10,
    high: 80,
    round: 32 << 10,
    at_once: 4,
    held: 48 << 10,
    recall: 12 << 10,
    when_idle: false,
    spare: SPARE,
    is_promised: false,
    extents: u64::MAX,
    scrub: 64 << 10,
    together: 8,
    ranges: 2,
};
/// Extents that an owner's writes in flight may need, of a volume that does not fit on its devices.
pub(crate) const SPARE: u64 = 4;

/// Opens what is on a disk.
pub(crate) fn open_disk<D: Disk>(
    disk: &mut D,
    two: bool,
    replica: ReplicaId,
    settings: Settings,
) -> Result<(Real, DurableState, Vec<Damage>), String> {
    let space = |disk: &mut D, area| match Space::load(disk, area, Some(CLUSTER)) {
        Ok(space) => Ok(Arc::new(Mutex::new(space))),
        Err(why) => Err(why.to_string()),
    };
    let log = space(disk, Area::Log)?;
    let capacity = if two { space(disk, Area::Capacity)? } else { Arc::clone(&log) };
    open(disk, &log, &capacity, replica, settings).map_err(|why| why.to_string())
}

fn opened(disk: &mut SimDisk, replica: ReplicaId) -> (Real, DurableState) {
    let two = disk.is_two();
    let (mut store, found, _) =
        open_disk(disk, two, replica, SETTINGS).expect("the metadata of a replica is whole");
    if two {
        store.change_cache(devices::cache_of(disk));
    }
    (store, found)
}

/// Where the first chunk of a device is, in bytes: there are fewer than eight times as many.
pub(crate) fn first_chunk() -> u64 {
    4 * 4096
}

/// The store of a new replica, which has promised nothing yet.
pub(crate) fn new_store(replica: ReplicaId, tight: bool) -> Store {
    let no_owner = Owner { node: NodeId(0), incarnation: Incarnation(0) };
    Store::new(replica, settings::Settings::GROUP, Promise { epoch: Epoch(0), owner: no_owner }, tight)
}

/// A device, or two, with an empty replica of so many blocks, for all of which there is room. It is durable.
pub(crate) fn format(
    replica: ReplicaId,
    two: bool,
    blocks: u64,
    promise: Promise,
    most_in_flight: u32,
) -> SimDisk {
    let chunks = blocks.div_ceil(u64::from(EXTENT) * CHUNK) + 2;
    format_with(replica, two, blocks, promise, most_in_flight, chunks)
}

/// The same, with room for so many chunks of extents.
pub(crate) fn format_with(
    replica: ReplicaId,
    two: bool,
    blocks: u64,
    promise: Promise,
    most_in_flight: u32,
    chunks: u64,
) -> SimDisk {
    // As small as it may be, so that it is full now and then, and its ring ends often.
    let log_chunks = (u64::from(most_in_flight) * 6 * 4608 + 100_000).div_ceil(CHUNK_BYTES);
    let id = Identity { volume: VOLUME, group: GroupIndex(0), replica };
    let bytes_of = |chunks: u64| 64 * 1024 + chunks * CHUNK_BYTES;
    let bytes = bytes_of(log_chunks + chunks);
    let mut disk = SimDisk::new(bytes, two);
    let mut prepare = |area, device, bytes| {
        let superblock = Superblock::fit(CLUSTER, device, bytes, CHUNK_BYTES, EXTENT);
        Space::format(&mut disk, area, superblock.expect("it fits"), false).expect("the device is empty")
    };
    let mut log = prepare(Area::Log, DeviceId(1), bytes);
    if two {
        prepare(Area::Capacity, DeviceId(2), bytes_of(chunks));
    }
    let new = NewReplica {
        id,
        blocks,
        log_bytes: log_chunks * CHUNK_BYTES,
        most_in_flight,
        key: 0x5eed ^ replica.0,
        promise,
    };
    let capacity = DeviceId(if two { 2 } else { 1 });
    create(&mut disk, &mut log, capacity, &new).expect("there is room");
    disk
}

impl Store {
    /// A formatted store for so many blocks, empty and durable. It is to be opened. If it is tight, its device has room
    /// for a part of them.
    pub fn new(replica: ReplicaId, blocks: u64, promise: Promise, tight: bool) -> Store {
        let two = replica.0.is_multiple_of(2);
        let disk = match tight {
            true => format_with(replica, two, blocks, promise, MOST_IN_FLIGHT, 1),
            false => format(replica, two, blocks, promise, MOST_IN_FLIGHT),
        };
        let mut store = Store {
            replica,
            disk,
            health: Health::Well,
            process: None,
            asleep: None,
            promise,
            discards: None,
            was_corrupted: false,
            was_full: false,
            was_opened: false,
            slow: None,
        };
        store.fall_asleep();
        store
    }

    /// No process has opened it yet.
    pub fn is_new(&self) -> bool {
        !self.was_opened
    }

    /// A process starts: it reads the log, and syncs it (rule R4).
    ///
    /// # Panics
    /// If another has it open.
    pub fn open(&mut self) -> DurableState {
        assert!(self.process.is_none(), "a process has it open");
        let (store, mut found) = opened(&mut self.disk, self.replica);
        self.health = match self.health {
            Health::FailsNext(_) | Health::Dead => {
                found.damaged = true;
                Health::Dead
            }
            Health::Well | Health::Damaged if found.damaged => Health::Damaged,
            Health::Well | Health::Damaged => Health::Well,
        };
        (self.asleep, self.was_opened) = (None, true);
        (self.promise, self.discards) = (found.promise, None);
        self.process = Some(Process {
            store,
            submitted: Vec::new(),
            damaged: found.damaged,
            failure_reported: found.damaged,
        });
        found
    }

    /// Takes a command. It is carried out by [`step`](Self::step).
    ///
    /// # Panics
    /// If the store is not open, or has no such blocks.
    pub fn submit(&mut self, command: Command<Blocks>) {
        let blocks = self.blocks();
        let process = self.process.as_mut().expect("commands come from a process");
        match &command {
            Command::Append { entry, .. } => {
                assert!(entry.range().end <= blocks, "{:?} is outside", entry.range())
            }
            Command::Read { block, blocks: of, .. } | Command::Map { block, blocks: of, .. } => {
                assert!(block + u64::from(*of) <= blocks, "{block} and {of} more is outside");
            }
            Command::Salvage if process.damaged => {
                process.damaged = false;
                self.health = Health::Well;
            }
            Command::Discard { promise, .. } if self.health == Health::Damaged => {
                process.damaged = false;
                (self.health, self.discards) = (Health::Well, Some(*promise));
            }
            // It is tried, and the device does not do it.
            Command::Discard { .. } => process.failure_reported = false,
            _ => {}
        }
        if !self.is_dead() {
            let process = self.process.as_mut().expect("it is there");
            process.store.submit(command);
        }
    }

    /// Does the next small step of what is asked for. False if there is nothing to do.
    pub fn step(&mut self, rng: &mut Rng, out: &mut Vec<Completion<Blocks>>) -> bool {
        let Some(process) = &mut self.process else { return false };
        if matches!(self.health, Health::Dead | Health::Damaged) {
            let tells = !std::mem::replace(&mut process.failure_reported, true);
            if tells {
                out.push(Completion::Failed);
            }
            return tells;
        }
        let mut actions = Vec::new();
        let mut done = false;
        if !process.submitted.is_empty() {
            // A device with deep queues does any of them next.
            let next = devices::next(&process.submitted, self.slow, rng);
            let (token, request, moment) = process.submitted.swap_remove(next);
            let fails = match (self.health, devices::written(&request)) {
                (Health::FailsNext(device), Some(area)) => device.is_none_or(|device| device == area),
                _ => false,
            };
            let answer = if fails { SimDisk::refuse(request) } else { self.disk.carry_out(request, moment) };
            process.store.done(token, answer, &mut actions);
            if fails {
                self.health = Health::Dead;
            }
            done = true;
        }
        process.store.run(&mut actions);
        done |= !actions.is_empty();
        let moment = self.disk.moment();
        for action in actions {
            match action {
                Action::Submit(token, request) => process.submitted.push((token, request, moment)),
                Action::Complete(completion) => {
                    match &completion {
                        Completion::Promised(promise) => self.promise = *promise,
                        Completion::Listed(_) => self.promise = self.discards.take().unwrap_or(self.promise),
                        Completion::Failed => process.failure_reported = true,
                        Completion::Full(true) => self.was_full = true,
                        _ => {}
                    }
                    out.push(completion);
                }
            }
        }
        done
    }

    /// Time passes: what is acknowledged is destaged, and an idle log gets its closing record. Whether there is something
    /// to do by steps.
    pub fn tick(&mut self, rng: &mut Rng, destages: bool) -> bool {
        if self.is_dead() {
            return false;
        }
        let Some(process) = &mut self.process else { return false };
        match rng.below(6) {
            0 if destages => process.store.destage_soon(),
            1 => process.store.tick(),
            _ => return false,
        }
        true
    }

    /// The process dies. What is written stays; of what it had asked for, all, some, or parts may be written yet, before
    /// another process has the device.
    pub fn kill(&mut self, rng: &mut Rng) {
        let Some(process) = self.process.take() else { return };
        if self.health == Health::Well {
            for (_, request, _) in process.submitted {
                if let IoRequest::Write(writing) = request {
                    match rng.below(3) {
                        0 => {}
                        1 => self.disk.land(&writing, false, || true),
                        _ => self.disk.land(&writing, false, || !rng.chance(4)),
                    }
                }
            }
        }
        self.fall_asleep();
    }

    /// The power fails: the process dies, and of all that is not synced a part is lost.
    pub fn power_loss(&mut self, rng: &mut Rng) {
        self.kill(rng);
        self.disk.power_loss(rng);
        self.fall_asleep();
    }

    fn fall_asleep(&mut self) {
        let mut written = self.disk.as_written();
        let mut durable = written.clone();
        durable.lose(|| true);
        let found = |disk: &mut SimDisk| opened(disk, self.replica).0;
        self.asleep = Some(Box::new([found(&mut written), found(&mut durable)]));
    }

    /// A copy of what is on its devices.
    pub(crate) fn backup(&self) -> SimDisk {
        self.disk.clone()
    }

    /// A copy is put in the place of what is on its devices.
    ///
    /// # Panics
    /// If a process has it open.
    pub(crate) fn put_back(&mut self, copy: SimDisk) {
        assert!(self.process.is_none(), "no process has it open");
        (self.disk, self.health) = (copy, Health::Well);
        let (_, found) = opened(&mut self.disk.clone(), self.replica);
        self.promise = found.promise;
        self.fall_asleep();
    }

    /// Whether its device has ever been full.
    pub fn was_full(&self) -> bool {
        self.was_full
    }

    /// The device is well again, which a start of the process finds.
    pub fn revive(&mut self) {
        self.health = Health::Well;
    }

    /// Whether a write or a sync has failed, or a start has found that something is lost.
    pub fn is_dead(&self) -> bool {
        matches!(self.health, Health::Dead | Health::Damaged)
    }

    /// Whether it was found damaged, and is being emptied.
    pub fn discards(&self) -> bool {
        self.discards.is_some()
    }

    /// Whether a start has found that something is lost, and it was not salvaged or emptied since.
    pub fn is_damaged(&self) -> bool {
        self.health == Health::Damaged
    }

    /// Whether nothing is queued. There may be something to destage.
    pub fn is_idle(&self) -> bool {
        self.process
            .as_ref()
            .is_none_or(|process| process.store.is_idle() && (!self.is_dead() || process.failure_reported))
    }

    /// The store as it is, or as a start would find it.
    fn seen(&self, durable: bool) -> &Real {
        match (&self.process, &self.asleep) {
            (Some(process), _) => &process.store,
            (None, Some(asleep)) => &asleep[usize::from(durable)],
            (None, None) => unreachable!("it is open or asleep"),
        }
    }

    /// What a read of this block would return if all that is corrupt in the log were given up.
    pub fn value_without_corruption(&self, block: u64) -> Option<Block> {
        let mut disk = self.disk.clone();
        let (store, _) = opened(&mut disk, self.replica);
        value(&store, &disk, block, false)
    }

    /// Whether a block matches its checksum.
    pub fn is_whole(&self, block: u64) -> bool {
        match self.seen(false).look_up(block) {
            read::BlockSource::Data { area, at, checksum } => {
                self.disk.is_whole(area, at, 8) && self.matches(area, at, block, checksum)
            }
            _ => true,
        }
    }

    /// Whether what was written there is what was to be written: corruption may have been copied from elsewhere.
    fn matches(&self, area: Area, at: u64, block: u64, checksum: u32) -> bool {
        let of = self.seen(false).identity();
        let of = Address { volume: of.volume, group: of.group, block };
        Blocks::new(vec![self.disk.block(area, at, false)]).checksum(0, of) == checksum
    }

    /// Whether some of what it had is corrupt, and may have been copied.
    pub fn was_corrupted(&self) -> bool {
        self.was_corrupted
    }

    /// Whether some block does not match its checksum.
    pub fn is_corrupt(&self) -> bool {
        self.has_corrupt_log() || (0..self.blocks()).any(|block| !self.is_whole(block))
    }

    /// Whether a start would find it damaged: a record of its log is corrupt, or a slot.
    pub fn has_corrupt_log(&self) -> bool {
        let store = self.seen(false);
        if store.slots().any(|at| !self.disk.is_whole(Area::Capacity, at, 1)) {
            return true;
        }
        let is_corrupt = |entry: Mention| {
            let (at, bytes) = store.record_at(entry.number).expect("it is in the log");
            !self.disk.is_whole(Area::Log, at, bytes as usize / SECTOR)
        };
        store.entries().any(is_corrupt)
    }

    /// Blocks of its group.
    pub fn blocks(&self) -> u64 {
        self.seen(false).blocks()
    }

    /// What a read of this block would return now, if nothing was corrupted. `None` where nothing is allocated: it reads as
    /// zeroes.
    pub fn value(&self, block: u64) -> Option<Block> {
        value(self.seen(false), &self.disk, block, false)
    }

    /// The same, after a loss of power that takes all that is not synced.
    pub fn durable_value(&self, block: u64) -> Option<Block> {
        value(self.seen(true), &self.disk, block, true)
    }

    /// The epoch that the extent of this block is stamped with. `None` if it has neither data nor a tombstone.
    pub fn stamp(&self, block: u64) -> Option<Epoch> {
        self.seen(false).stamp(block)
    }

    /// What is in the log, in its order.
    pub fn log(&self) -> impl Iterator<Item = Mention> {
        self.seen(false).entries()
    }

    /// The owner that the replica follows, durably.
    pub fn durable_promise(&self) -> Promise {
        self.promise
    }

    /// The commit point that the store last reported to the process, or that a start would find.
    pub fn commit_point(&self) -> Position {
        self.seen(false).commit_point()
    }

    /// What is to be copied to it, since entries of its log were dropped.
    pub fn list(&self) -> Vec<Range<u64>> {
        self.seen(false).list().collect()
    }

    /// The device loses what it had reported as durable: the last entry, and the first extent. If it lies well, nothing on it shows
    /// that there was more; otherwise the commit point does.
    pub fn lose_last(&mut self, lies_well: bool) {
        assert!(self.process.is_none(), "no process has it open");
        let (store, found) = opened(&mut self.disk.clone(), self.replica);
        let last = store.entries().find(|entry| entry.position == found.end);
        let end = Position {
            sequence: loadline_san_core::ids::Sequence(found.end.sequence.0.saturating_sub(1)),
            ..found.end
        };
        let pages = self.pages();
        let mut state = pages.1;
        if lies_well {
            state.commit_point = state.commit_point.min(end);
        } else {
            state.commit_point = found.end;
        }
        // It and what came after it, which may have commit points that show it; if it is destaged, all that there is.
        let first = last.as_ref().map_or(state.tail.number, |last| last.number);
        let mut number = first;
        while let Some((at, _)) = store.record_at(number) {
            self.disk.write(Area::Log, at, &[Sector::ZERO]).expect("it is simulated");
            number += 1;
        }
        state.durable = state.durable.min(first - 1);
        for held in store.held().filter(|held| held.extent == 0) {
            let (replica, content) = (self.replica, state.content);
            let mut free = Sector::ZERO;
            slot::encode(None, Holder { replica, content, at: held.slot_at }, &mut free.0);
            self.disk.write(Area::Capacity, held.slot_at, &[free]).expect("it is simulated");
        }
        if last.is_none() {
            state.end = end;
        }
        let page = state.encode().expect("it was read");
        let sectors = Sector::of(&page);
        for copy in 0..2 {
            self.disk
                .write(Area::Log, pages.0 + copy * page.len() as u64, &sectors)
                .expect("it is simulated");
        }
        self.fall_asleep();
    }

    /// Where the metadata of the replica is, and what that is.
    fn pages(&mut self) -> (u64, state::ReplicaState) {
        let space = Space::load(&mut self.disk, Area::Log, Some(CLUSTER)).expect("the device is well");
        let (at, _) = space.log_of(self.replica).expect("it is here");
        let mut page = Sector::zeroes(4096 / SECTOR);
        self.disk.read(Area::Log, at, &mut page).expect("it is simulated");
        (at, state::ReplicaState::decode(Sector::bytes(&page)).expect("it is whole"))
    }
}

fn value(store: &Real, disk: &SimDisk, block: u64, durable: bool) -> Option<Block> {
    match store.look_up(block) {
        read::BlockSource::Nothing => None,
        read::BlockSource::Zeroes => Some(ZERO),
        read::BlockSource::Data { area, at, .. } => Some(disk.block(area, at, durable)),
    }
}
