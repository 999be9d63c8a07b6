//! How a store is made, and how a process that starts finds it again.
//!
//! ```text
//! page ─▶ slots ─▶ log, from its tail ─▶ index ─▶ sync ─▶ generation raised ─▶ serves
//! ```
//!
//! Nothing is reported or served before it is synced: what a kill has left readable need not be durable (rule R4). And
//! the log's generation is raised, durably, before anything is appended: what a former life has left beyond the end is
//! never taken for a continuation (rule R5).

mod replay;

use std::sync::{Arc, Mutex};

use loadline_san_core::ids::{Epoch, Position, ReplicaId};
use loadline_san_core::message::Promise;
use loadline_san_core::rule::{Rule, left_out};
use loadline_san_core::store::DurableState;
use loadline_san_protocol::device::{DeviceId, DiskFault};
use loadline_san_protocol::slot::{self, Holder};
use loadline_san_protocol::state::{ReplicaState, Side, Tail};
use thiserror::Error;

use crate::extents::Extents;
use crate::held::Held;
use crate::io::{Area, Data, Disk, IoFault, Sector, read_what_can_be};
use crate::log::{Log, record_length};
use crate::open::replay::replay;
use crate::replica_meta::{MetaError, Places, ReplicaMeta};
use crate::space::{Space, SpaceError};
use crate::store::{Health, Identity, Known, Settings, Store, needs_place};

/// The parameters of a new replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewReplica {
    /// The volume, the group and the id of the replica.
    pub id: Identity,
    /// Blocks of its group, at most.
    pub blocks: u64,
    /// Bytes of its log, with its metadata. It gets whole chunks of the device.
    pub log_bytes: u64,
    /// Blocks of data that an owner will have in flight for this group at any time: written, and not acknowledged. All of
    /// them may be in the log, of several owners that have died one after the other, and cannot be destaged.
    pub most_in_flight: u32,
    /// Random bits that a guest cannot know.
    pub key: u64,
    /// The owner that it follows.
    pub promise: Promise,
}

/// Why a replica cannot be made or opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The device cannot be used.
    #[error(transparent)]
    Space(#[from] SpaceError),
    /// An I/O on the device has failed.
    #[error(transparent)]
    Io(#[from] IoFault),
    /// The log would be too small for what may be in flight.
    #[error("a log of {bytes} bytes is too small for {blocks} blocks in flight: it needs at least {needed}")]
    SmallLog {
        /// The size that the log would have, bytes.
        bytes: u64,
        /// Blocks in flight.
        blocks: u32,
        /// The size that the log needs, bytes.
        needed: u64,
    },
    /// The replica is not on this device.
    #[error("{0} is not on this device")]
    Unknown(ReplicaId),
    /// The metadata of the replica is gone.
    #[error("the metadata of {replica} cannot be used: {why}")]
    Lost {
        /// The replica whose metadata is lost.
        replica: ReplicaId,
        /// What is wrong with the metadata.
        why: String,
    },
    /// The page belongs to another replica.
    #[error("{ours:?} is expected, and its place on the device has {found:?}")]
    Other {
        /// The identity on the device.
        found: Identity,
        /// The identity that was expected.
        ours: Identity,
    },
    /// A chunk of its extents is missing.
    #[error(
        "there are {missing} places too few for the extents that the log of {replica} has data for: a chunk is missing"
    )]
    NoRoom {
        /// The replica whose extents do not fit.
        replica: ReplicaId,
        /// The number of missing places.
        missing: u64,
    },
    /// The other device is not the one of this replica.
    #[error(
        "the extents of {replica} are on device {found}, and this is {is}: use the device that it was made on"
    )]
    OtherCapacity {
        /// The replica that was to be opened.
        replica: ReplicaId,
        /// The device that the replica's page names.
        found: DeviceId,
        /// The device that was opened.
        is: DeviceId,
    },
}

impl OpenError {
    /// The device that has to be replaced, or mended, before the replica can be opened.
    pub fn area(&self) -> Area {
        match self {
            OpenError::Io(fault) | OpenError::Space(SpaceError::Io(fault)) => fault.area(),
            OpenError::NoRoom { .. } | OpenError::OtherCapacity { .. } => Area::Capacity,
            _ => Area::Log,
        }
    }
}

/// The least size of a log, as a multiple of what is in flight: the entries of the old owner, those that make copies
/// equal, and those of the new owner; and once more for the end of the ring, because a record is in one piece.
const LEAST_IN_FLIGHT: u64 = 6;

/// Makes an empty replica, which is durable when this returns. `log` and `capacity` are the beginnings of the two
/// devices, or the same one twice.
pub fn create(
    disk: &mut impl Disk,
    log: &mut Space,
    capacity: DeviceId,
    new: &NewReplica,
) -> Result<(), OpenError> {
    let chunk = log.superblock().chunk_bytes;
    let places = Places::new(0, new.log_bytes.max(1).next_multiple_of(chunk));
    // At worst each block is an entry of its own.
    let needed = LEAST_IN_FLIGHT * u64::from(new.most_in_flight.max(1)) * record_length(1);
    if places.ring < needed {
        return Err(OpenError::SmallLog { bytes: places.ring, blocks: new.most_in_flight, needed });
    }
    let state = ReplicaState {
        version: 1,
        volume: new.id.volume,
        group: new.id.group,
        replica: new.id.replica,
        blocks: new.blocks,
        key: new.key,
        capacity,
        promise: new.promise,
        commit_point: Position::START,
        epoch: Epoch(0),
        generation: 0,
        first: 1,
        tail: Tail { at: 0, number: 1 },
        durable: 0,
        end: Position::START,
        end_before: 1,
        truncations: Vec::new(),
        holes: Vec::new(),
        content: 0,
        side: Side::default(),
    };
    let mut failed = None;
    let taken = log.take_log(disk, (new.id.replica, new.key), new.log_bytes, |disk, at, bytes| {
        match ReplicaMeta::create(disk, Places::new(at, bytes), &state) {
            Ok(()) => Ok(()),
            Err(MetaError::Io(fault)) => Err(SpaceError::Io(fault)),
            Err(other) => {
                failed = Some(other);
                Err(SpaceError::NotEmpty)
            }
        }
    });
    if let Some(why) = failed {
        return Err(OpenError::Lost { replica: new.id.replica, why: why.to_string() });
    }
    Ok(taken?)
}

/// Whether a replica on this device was ever promised to an owner, or written to.
pub fn was_used(disk: &mut impl Disk, log: &Space, replica: ReplicaId) -> Result<bool, OpenError> {
    let Some((start, bytes)) = log.log_of(replica) else { return Ok(false) };
    match ReplicaMeta::load(disk, Places::new(start, bytes)) {
        Ok((meta, _)) => Ok(meta.state.promise.epoch > Epoch(0) || meta.state.generation > 0),
        Err(MetaError::Io(fault)) => Err(fault.into()),
        Err(why) => Err(OpenError::Lost { replica, why: why.to_string() }),
    }
}

/// Whether a replica on this device was ever promised to an owner. Only then can it have data of clients: a replica accepts an entry only
/// from the owner that it is promised to. Opening a replica does not change that. `false` if the replica is not there, or is incomplete.
pub fn was_promised(disk: &mut impl Disk, log: &Space, replica: ReplicaId) -> Result<bool, OpenError> {
    let Some((start, bytes)) = log.log_of(replica) else { return Ok(false) };
    match ReplicaMeta::load(disk, Places::new(start, bytes)) {
        Ok((meta, _)) => {
            let of = &meta.state;
            let none =
                of.promise.epoch == Epoch(0) && of.epoch == Epoch(0) && of.commit_point == Position::START;
            Ok(of.replica == replica && !none)
        }
        Err(MetaError::Io(fault)) => Err(fault.into()),
        Err(why) => Err(OpenError::Lost { replica, why: why.to_string() }),
    }
}

/// What is wrong with a replica that was opened. The replica is not used, unless a person continues with it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Damage {
    /// Records of its log that were durable cannot be read.
    #[error("records {from} to {to} of its log were durable and cannot be read: {fault}")]
    Log {
        /// The number of the first such record.
        from: u64,
        /// The number of the last such record.
        to: u64,
        /// Why the first record cannot be read.
        fault: String,
    },
    /// The log ends before records that were durable.
    #[error("its log ends with record {end}, and {was} was durable: {fault}")]
    Short {
        /// The last record of the log.
        end: u64,
        /// The last record that was durable.
        was: u64,
        /// Why the next record cannot be read.
        fault: String,
    },
    /// The log ends before the replica's commit point.
    #[error("its log ends at {end}, and it had everything up to {commit_point}: {fault}")]
    BelowCommitPoint {
        /// The last entry of the log.
        end: Position,
        /// The commit point.
        commit_point: Position,
        /// Why the next record cannot be read.
        fault: String,
    },
    /// The list of blocks to copy, or the tombstones, cannot be read.
    #[error("its list of what is to be copied to it: {0}")]
    List(String),
    /// A slot of an extent cannot be read.
    #[error("slot {slot} in chunk {chunk}: {fault}")]
    Slot {
        /// The chunk of the device.
        chunk: u32,
        /// The number of the slot in its chunk.
        slot: u32,
        /// What is wrong with the slot.
        fault: String,
    },
    /// Two slots have the same extent.
    #[error("extent {0} has two slots")]
    TwoSlots(u64),
}

/// Opens a replica. The caller has opened its devices, and no other process has them open.
///
/// A damaged replica is opened too, with the reasons: it can only be salvaged or emptied.
pub fn open<D: Data>(
    disk: &mut impl Disk,
    log: &Arc<Mutex<Space>>,
    capacity: &Arc<Mutex<Space>>,
    replica: ReplicaId,
    settings: Settings,
) -> Result<(Store<D>, DurableState, Vec<Damage>), OpenError> {
    let (mut store, found, damage) = open_read_only(disk, log, capacity, replica, settings)?;
    if !left_out(Rule::R4) {
        disk.sync(Area::Log)?;
        disk.sync(Area::Capacity)?;
    }
    if found.damaged {
        store.health = Health::Damaged;
    } else {
        store.begin_generation();
        store.meta.write_now(disk)?;
    }
    Ok((store, found, damage))
}

/// As [`open`], for inspection only: nothing is written, and no command may be submitted to the store.
pub fn open_read_only<D: Data>(
    disk: &mut impl Disk,
    log: &Arc<Mutex<Space>>,
    capacity: &Arc<Mutex<Space>>,
    replica: ReplicaId,
    settings: Settings,
) -> Result<(Store<D>, DurableState, Vec<Damage>), OpenError> {
    let found = log.lock().expect("no holder panics").log_of(replica);
    let (start, bytes) = found.ok_or(OpenError::Unknown(replica))?;
    let places = Places::new(start, bytes);
    let mut damage = Vec::new();
    let (meta, lost) = ReplicaMeta::load(disk, places).map_err(|error| match error {
        MetaError::Io(fault) => OpenError::Io(fault),
        other => OpenError::Lost { replica, why: other.to_string() },
    })?;
    damage.extend(lost.map(|fault| Damage::List(fault.to_string())));
    let state = &meta.state;
    let id = Identity { volume: state.volume, group: state.group, replica: state.replica };
    if id.replica != replica {
        return Err(OpenError::Other { found: id, ours: Identity { replica, ..id } });
    }
    if state.tail.at >= places.ring {
        let why = format!("its log begins at byte {} of a ring of {}", state.tail.at, places.ring);
        return Err(OpenError::Lost { replica, why });
    }
    let is = capacity.lock().expect("no holder panics").device();
    if state.capacity != is {
        return Err(OpenError::OtherCapacity { replica, found: state.capacity, is });
    }
    let extents = load_extents(disk, capacity, (replica, state.key), state.content, &mut damage)?;
    let known = Known {
        commit_point: state.commit_point,
        acknowledged: state.commit_point,
        epoch: state.epoch.max(state.promise.epoch),
    };
    let empty = Log::new(places.ring, state.tail.number, state.tail.at);
    let space = Arc::clone(capacity);
    let mut store = Store::new(id, settings, places, space, empty, extents, meta, known);
    replay(&mut store, disk, &mut damage)?;
    store.held = Held::of_none(store.log.front(), store.log.next());
    store.rebuild_index();
    store.reserve_all()?;
    let mut found = DurableState {
        promise: store.meta.state.promise,
        commit_point: store.known.commit_point,
        epoch: store.known.epoch,
        end: store.end(),
        damaged: !damage.is_empty(),
    };
    found.epoch = found.epoch.max(found.promise.epoch);
    Ok((store, found, damage))
}

fn load_extents(
    disk: &mut impl Disk,
    capacity: &Arc<Mutex<Space>>,
    (replica, key): (ReplicaId, u64),
    content: u64,
    damage: &mut Vec<Damage>,
) -> Result<Extents, OpenError> {
    let space = capacity.lock().expect("no holder panics");
    let device = *space.superblock();
    let mut extents = Extents::new(device);
    for chunk in space.extents_of(replica, key) {
        let mut sectors = Sector::zeroes(device.extents_in_chunk() as usize);
        let unreadable = read_what_can_be(disk, Area::Capacity, device.slot_at(chunk, 0), &mut sectors)?;
        let mut faults: Vec<(u32, DiskFault)> = Vec::new();
        let slots = (0..).zip(&sectors).map(|(at, sector)| {
            let of = Holder { replica, content, at: device.slot_at(chunk, at) };
            if unreadable.binary_search(&(at as usize)).is_ok() {
                faults.push((at, DiskFault::Unreadable));
                return Err(());
            }
            if *sector == Sector::ZERO {
                // Each was written when the chunk was taken.
                faults.push((at, DiskFault::Blank));
                return Err(());
            }
            slot::decode(&sector.0, of, device.extent_blocks).map_err(|fault| faults.push((at, fault)))
        });
        let doubles = extents.load_chunk(chunk, slots);
        let of_slot =
            |(slot, fault): (u32, DiskFault)| Damage::Slot { chunk, slot, fault: fault.to_string() };
        damage.extend(faults.into_iter().map(of_slot));
        damage.extend(doubles.into_iter().map(Damage::TwoSlots));
    }
    extents.sort_free();
    Ok(extents)
}

impl<D: Data> Store<D> {
    /// Gives a place to every extent for which the log has data. It had one before, in a chunk of the replica.
    fn reserve_all(&mut self) -> Result<(), OpenError> {
        let needs = self.log.iter().filter(|(_, record)| record.counts() && needs_place(record.kind));
        for (_, record) in needs {
            let missing = self.extents.missing(record.range());
            if missing > self.extents.free() {
                // It had one whose slot cannot be read, and is damaged: a person who continues with the replica gives that up.
                let most = missing - self.extents.free();
                let corrupt = self.extents.give_up_corrupt(most);
                self.scrub.write_again(corrupt, self.extents.per_chunk());
            }
            if missing > self.extents.free() {
                let missing = missing - self.extents.free();
                return Err(OpenError::NoRoom { replica: self.id.replica, missing });
            }
            self.extents.reserve(record.range());
        }
        Ok(())
    }

    /// Begins a new generation of the log, to which everything belongs that the store reports from now on.
    pub(crate) fn begin_generation(&mut self) {
        let state = &mut self.meta.state;
        state.generation += 1;
        state.first = self.log.next();
        self.changed();
    }

    /// The last entry of the unbroken sequence.
    pub(crate) fn end(&self) -> Position {
        let state = &self.meta.state;
        self.log.last_of_sequence(state.end_before..u64::MAX).unwrap_or(state.end)
    }
}
