//! Anything that can lie on a device, as strategies; and its formats, for the fuzzer.

use loadline_san_core::ids::{Epoch, ReplicaId, VolumeId};
use loadline_san_core::layout::{GroupIndex, MOST_BLOCKS};
use loadline_san_protocol::ClusterId;
use loadline_san_protocol::device::{
    ChunkUse, DeviceId, DiskFault, MOST_CHUNK_BYTES, MOST_DEVICE_BYTES, MOST_EXTENT_BLOCKS, PAGE, Role,
    Superblock, decode_use, encode_use,
};
use loadline_san_protocol::field::MOST_COUNT;
use loadline_san_protocol::log::SECTOR;
use loadline_san_protocol::slot::{self, BlockState, Holder, Slot};
use loadline_san_protocol::state::{
    Hole, MOST_HOLES, MOST_TRUNCATIONS, ReplicaState, Side, Tail, Tombstone, Truncation, decode_side,
    encode_side, side_crc, side_length,
};
use proptest::collection::vec;
use proptest::prelude::*;

use super::{counts, numbers, positions, promises};

pub(crate) const DEVICE: DeviceId = DeviceId(0xd1);
pub(crate) const CHUNK: u32 = 6;
pub(crate) const HOLDER: Holder = Holder { replica: ReplicaId(77), content: 3, at: 0x5200 };
const PAGE_BYTES: u64 = PAGE as u64;
/// Of the extents whose slots the fuzzer reads.
const EXTENT_BLOCKS: u32 = 40;

/// Devices of every size, divided in every way. Of some, not all is used.
pub(crate) fn superblocks() -> impl Strategy<Value = Superblock> {
    let most = MOST_CHUNK_BYTES / PAGE_BYTES;
    let chunk = (1..=MOST_EXTENT_BLOCKS).prop_flat_map(move |extent| {
        let least = 1 + u64::from(extent);
        let pages = prop_oneof![Just(least), Just(most), least..least + 200, least..=most];
        (Just(extent), pages)
    });
    let chunks = prop_oneof![1..40u64, 1..=1u64 << 33];
    (any::<(u128, u64)>(), chunk, chunks, any::<u64>(), any::<(bool, u32)>()).prop_map(
        |((cluster, device), (extent, pages), chunks, odd, (spare, fewer))| {
            let chunk_bytes = pages * PAGE_BYTES;
            // Each chunk has two sectors in the tables, which have up to seven more each.
            let least = 4 * PAGE_BYTES + chunk_bytes;
            let bytes = (chunks.saturating_mul(chunk_bytes + 1024)).saturating_add(odd % (2 * chunk_bytes));
            let bytes = bytes.clamp(least, MOST_DEVICE_BYTES);
            let (cluster, device) = (ClusterId(cluster), DeviceId(device));
            let mut made = Superblock::fit(cluster, device, bytes, chunk_bytes, extent).expect("it fits");
            if spare {
                made.chunks -= fewer % made.chunks;
            }
            made
        },
    )
}

pub(crate) fn uses() -> impl Strategy<Value = Option<ChunkUse>> {
    let log = (any::<[u64; 2]>(), 1..=u32::MAX, any::<u32>()).prop_map(|([replica, key], of, index)| {
        ChunkUse { replica: ReplicaId(replica), key, role: Role::Log, index: index % of, of }
    });
    let capacity = any::<[u64; 2]>().prop_map(|[replica, key]| {
        let (replica, role) = (ReplicaId(replica), Role::Capacity);
        ChunkUse { replica, key, role, index: 0, of: 0 }
    });
    prop_oneof![Just(None), log.prop_map(Some), capacity.prop_map(Some)]
}

/// Bytes of a ring.
fn places() -> impl Strategy<Value = u64> {
    counts().prop_map(|at| at / 512 * 512)
}

fn holes() -> impl Strategy<Value = Vec<Hole>> {
    // Of each: its distance to the one before, its length.
    let all = vec((0..1u64 << 50, 1..1u64 << 50, places()), 0..=MOST_HOLES);
    prop_oneof![Just(Vec::new()).boxed(), all.prop_map(laid_out).boxed()]
}

fn laid_out(all: Vec<(u64, u64, u64)>) -> Vec<Hole> {
    let mut last = 1;
    let lay = |(distance, length, at)| {
        let from = last + distance;
        last = from + length;
        Hole { from, to: last, at }
    };
    all.into_iter().map(lay).collect()
}

pub(crate) fn states() -> impl Strategy<Value = ReplicaState> {
    let truncations = (numbers(), positions()).prop_map(|(below, above)| Truncation { below, above }).boxed();
    let truncations = prop_oneof![vec(truncations.clone(), 0..4), vec(truncations, 0..=MOST_TRUNCATIONS)];
    let ids = any::<(u64, u32, u64, u64, u64)>();
    let sides = (counts(), sides()).prop_map(|(version, side)| Side { version, ..side.side() });
    let numbered = (numbers(), counts(), numbers(), counts(), counts(), counts());
    let log = (places(), numbers(), positions(), positions(), counts());
    (ids, 1..=MOST_BLOCKS, promises(), numbered, log, truncations, holes(), sides).prop_map(
        |(ids, blocks, promise, numbered, log, truncations, holes, side)| {
            let (volume, group, replica, key, capacity) = ids;
            let (version, generation, first, durable, end_before, content) = numbered;
            let (at, number, commit_point, end, epoch) = log;
            ReplicaState {
                version,
                volume: VolumeId(volume),
                group: GroupIndex(group),
                replica: ReplicaId(replica),
                blocks,
                key,
                capacity: DeviceId(capacity),
                promise,
                commit_point,
                epoch: Epoch(epoch),
                generation,
                first,
                tail: Tail { at, number },
                durable,
                end,
                end_before,
                truncations,
                holes,
                content,
                side,
            }
        },
    )
}

/// The side pages.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SideLists {
    pub(crate) ranges: Vec<std::ops::Range<u64>>,
    pub(crate) tombstones: Vec<Tombstone>,
}

impl SideLists {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        encode_side(&self.ranges, &self.tombstones).expect("it can be written")
    }

    /// The facts about it in the replica's page.
    pub(crate) fn side(&self) -> Side {
        let (ranges, tombstones) = (self.ranges.len() as u32, self.tombstones.len() as u32);
        Side { version: 1, ranges, tombstones, crc: side_crc(&self.bytes()) }
    }
}

pub(crate) fn sides() -> impl Strategy<Value = SideLists> {
    // Of each: its distance to the one before, its length.
    let far = || prop_oneof![0..3u64, 0..1u64 << 36];
    let ranges = vec((far(), far()), 0..40);
    let tombstones = vec((far(), far(), counts()), 0..40);
    (ranges, tombstones, any::<(bool, bool)>()).prop_map(|(ranges, tombstones, (list, dead))| {
        let mut last = 0;
        let mut lay = |(distance, length): (u64, u64), gap| {
            let start = last + distance + gap;
            last = start + length + 1;
            start..last
        };
        let ranges: Vec<_> = ranges.into_iter().map(|one| lay(one, 1)).collect();
        let tombstone = |(distance, length, stamp)| {
            let (extents, stamp) = (lay((distance, length), 0), Epoch(stamp));
            Tombstone { extents, stamp }
        };
        let tombstones: Vec<_> = tombstones.into_iter().map(tombstone).collect();
        let ranges = if list { ranges } else { Vec::new() };
        let tombstones = if dead { tombstones } else { Vec::new() };
        SideLists { ranges, tombstones }
    })
}

/// Slots of extents with so many blocks.
pub(crate) fn slots(blocks: u32) -> impl Strategy<Value = Slot> {
    let state = prop_oneof![Just(BlockState::Nothing), Just(BlockState::Data), Just(BlockState::Zeroes)];
    let all = vec((state, any::<u32>()), blocks as usize);
    (0..MOST_BLOCKS, 0..=MOST_COUNT, all).prop_map(|(extent, stamp, all)| {
        let mut slot = Slot { stamp: Epoch(stamp), ..Slot::new(extent) };
        for (block, (state, checksum)) in (0..).zip(all) {
            slot.set(block, state, checksum);
        }
        slot
    })
}

/// The sector of a slot. Whatever was in the buffer is gone.
pub(crate) fn sector(slot: Option<&Slot>, of: Holder) -> [u8; SECTOR] {
    let mut out = [0xee; SECTOR];
    slot::encode(slot, of, &mut out);
    out
}

/// A format, for the fuzzer. The side pages have before them what the page has of them: version 8, ranges 4,
/// tombstones 4, checksum 4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lain {
    Superblock,
    Use,
    State,
    Side,
    Slot,
}

const SAID: usize = 20;

impl Lain {
    pub(crate) const ALL: [Lain; 5] = [Lain::Superblock, Lain::Use, Lain::State, Lain::Side, Lain::Slot];

    /// The least number of bytes that its decoder reads.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Lain::Superblock | Lain::State => PAGE,
            Lain::Use | Lain::Slot => SECTOR,
            Lain::Side => SAID,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Lain::Superblock => "superblock",
            Lain::Use => "chunk",
            Lain::State => "page",
            Lain::Side => "side",
            Lain::Slot => "slot",
        }
    }

    /// What can lie there.
    pub(crate) fn some(self) -> BoxedStrategy<Vec<u8>> {
        match self {
            Lain::Superblock => superblocks().prop_map(|s| s.encode().expect("it fits").to_vec()).boxed(),
            Lain::Use => {
                let encode = |used: Option<ChunkUse>| encode_use(used.as_ref(), DEVICE, CHUNK);
                uses().prop_map(move |used| encode(used).expect("it can be").to_vec()).boxed()
            }
            Lain::State => states().prop_map(|s| s.encode().expect("it can be").to_vec()).boxed(),
            Lain::Side => sides().prop_map(|lists| stated(&lists.side(), &lists.bytes())).boxed(),
            Lain::Slot => {
                let slots = prop::option::weighted(0.8, slots(EXTENT_BLOCKS));
                slots.prop_map(|slot| sector(slot.as_ref(), HOLDER).to_vec()).boxed()
            }
        }
    }

    /// Makes the checksum right. What is blank stays so.
    pub(crate) fn mend(self, bytes: &mut [u8]) {
        if bytes.len() < self.bytes() || bytes.iter().all(|byte| *byte == 0) {
            return;
        }
        let (at, covered) = match self {
            Lain::Side => {
                let Side { ranges, tombstones, .. } = side(bytes);
                let length = side_length(ranges, tombstones) as usize;
                (SAID - 4, SAID..(SAID + length).min(bytes.len()))
            }
            _ => (8, 12..self.bytes()),
        };
        let crc = loadline_base::crc::crc32c(&bytes[covered]);
        bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    }

    /// What the decoder says. What it takes must encode to the same bytes.
    pub(crate) fn judge(self, bytes: &[u8]) -> String {
        let name = self.name();
        match self.decoded(bytes) {
            Ok(Some(encoded)) => {
                let whole = &bytes[..encoded.len()];
                assert_eq!(encoded, whole);
                name.into()
            }
            Ok(None) => {
                let blank = bytes[..SECTOR].iter().all(|byte| *byte == 0);
                format!("{name} {}", if blank { "blank" } else { "free" })
            }
            Err(fault) => {
                assert!(!fault.to_string().is_empty());
                format!("{name} error {}", fault_name(&fault))
            }
        }
    }

    /// What was decoded, encoded again. None: nothing was there to be decoded.
    fn decoded(self, bytes: &[u8]) -> Result<Option<Vec<u8>>, DiskFault> {
        Ok(match self {
            Lain::Superblock => Some(Superblock::decode(bytes)?.encode()?.to_vec()),
            Lain::Use => match decode_use(bytes, DEVICE, CHUNK)? {
                Some(used) => Some(encode_use(Some(&used), DEVICE, CHUNK)?.to_vec()),
                None => None,
            },
            Lain::State => Some(ReplicaState::decode(bytes)?.encode()?.to_vec()),
            Lain::Side if bytes.len() < SAID => {
                return Err(DiskFault::Short { what: "the page", needed: SAID, got: bytes.len() });
            }
            Lain::Side => {
                let side = side(bytes);
                let (ranges, tombstones) = decode_side(&bytes[SAID..], &side)?;
                Some(stated(&side, &encode_side(&ranges, &tombstones)?))
            }
            Lain::Slot => {
                slot::decode(bytes, HOLDER, EXTENT_BLOCKS)?.map(|slot| sector(Some(&slot), HOLDER).to_vec())
            }
        })
    }
}

/// What the fuzzer reads as that which the page says.
fn side(bytes: &[u8]) -> Side {
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let version = u64::from(word(0)) | u64::from(word(4)) << 32;
    Side { version, ranges: word(8), tombstones: word(12), crc: word(16) }
}

fn stated(side: &Side, bytes: &[u8]) -> Vec<u8> {
    let mut out = side.version.to_le_bytes().to_vec();
    [side.ranges, side.tombstones, side.crc].iter().for_each(|word| out.extend(word.to_le_bytes()));
    out.extend_from_slice(bytes);
    out
}

fn fault_name(fault: &DiskFault) -> String {
    match fault {
        DiskFault::Field(error) => return format!("Field: {}", error.what),
        DiskFault::Short { .. } => "Short",
        DiskFault::Blank => "Blank",
        DiskFault::NotOurs => "NotOurs",
        DiskFault::Torn { .. } => "Torn",
        DiskFault::Newer { .. } => "Newer",
        DiskFault::Older { .. } => "Older",
        DiskFault::Other { .. } => "Other",
        DiskFault::Unreadable => "Unreadable",
    }
    .into()
}

/// Every outcome that a run of the fuzzer must have had.
pub(crate) fn every_outcome() -> Vec<String> {
    let faults = [
        "superblock: Short Blank NotOurs Torn Newer Older",
        "chunk: Short NotOurs Torn Newer Older Other",
        "page: Short Blank NotOurs Torn Newer",
        "side: Short Torn",
        "slot: Short NotOurs Torn Newer",
    ];
    let fields = [
        "superblock: the version",
        "superblock: the blocks of an extent",
        "superblock: the bytes of a chunk",
        "superblock: the bytes of a device",
        "superblock: the number of chunks",
        "superblock: a byte behind the fields",
        "chunk: the version",
        "chunk: the role of a chunk",
        "chunk: the chunks of a log",
        "chunk: the index of a chunk of a log",
        "chunk: the replica of a free chunk",
        "chunk: the index of a chunk of no log",
        "chunk: the chunks of a log that is none",
        "chunk: a byte behind the fields",
        "page: the version",
        "page: the number of truncations",
        "page: the number of holes",
        "page: how often a page was written",
        "page: the blocks of a group",
        "page: the epoch of a promise",
        "page: an ownership",
        "page: a sequence number",
        "page: the epoch of the commit point",
        "page: the generation",
        "page: the first number of a generation",
        "page: the place of the tail",
        "page: the number at the tail",
        "page: the number known to be durable",
        "page: the number that the end is before",
        "page: the content",
        "page: the version of the side pages",
        "page: the ranges in the side pages",
        "page: the tombstones in the side pages",
        "page: the checksum of empty side pages",
        "page: the number below which records were dropped",
        "page: the first number of a hole",
        "page: the number behind a hole",
        "page: the place behind a hole",
        "page: a byte behind the fields",
        "side: the version of the side pages",
        "side: the ranges in the side pages",
        "side: the tombstones in the side pages",
        "side: the end of a range of blocks",
        "side: the start of a range of blocks",
        "side: the end of a tombstone",
        "side: the start of a tombstone",
        "side: the stamp of a tombstone",
        "side: a byte behind the fields",
        "slot: the version",
        "slot: the kind of a slot",
        "slot: the extent of a free slot",
        "slot: the stamp of a free slot",
        "slot: the states of a free slot",
        "slot: the extent of a slot",
        "slot: the content of a slot",
        "slot: the stamp of a slot",
        "slot: a block whose state is 3",
        "slot: the checksum of a block without data",
        "slot: the states of the blocks behind an extent",
        "slot: a byte behind the fields",
    ];
    let split = |line: &'static str| line.split_once(": ").expect("a format and more");
    let none = ["chunk blank", "chunk free", "slot blank", "slot free"].map(String::from);
    (Lain::ALL.iter().map(|one| one.name().into()))
        .chain(none)
        .chain(faults.into_iter().flat_map(|line| {
            let (of, names) = split(line);
            names.split(' ').map(move |name| format!("{of} error {name}"))
        }))
        .chain(fields.into_iter().map(|line| {
            let (of, what) = split(line);
            format!("{of} error Field: {what}")
        }))
        .collect()
}
