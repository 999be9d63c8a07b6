//! What lies on a device comes back as it was; what has changed there is refused; and nothing lies where something else
//! does.

mod common;

use std::ops::Range;

use common::CLUSTER;
use common::disk::{CHUNK, DEVICE, HOLDER, SideLists, sector, sides, slots, states, superblocks, uses};
use loadline_san_core::ids::{Epoch, Incarnation, NodeId, Owner, Position, ReplicaId, Sequence, VolumeId};
use loadline_san_core::layout::{GroupIndex, MOST_BLOCKS};
use loadline_san_core::message::Promise;
use loadline_san_protocol::device::{
    ChunkUse, DeviceId, DiskFault, MOST_CHUNK_BYTES, MOST_DEVICE_BYTES, PAGE, Role, Superblock, decode_use,
    encode_use,
};
use loadline_san_protocol::field::MOST_COUNT;
use loadline_san_protocol::log::SECTOR;
use loadline_san_protocol::slot::{self, BlockState, Holder, Slot};
use loadline_san_protocol::state::{
    Hole, MOST_HOLES, MOST_LISTED, MOST_TOMBSTONES, MOST_TRUNCATIONS, ReplicaState, Side, Tail, Tombstone,
    Truncation, decode_side, encode_side, side_crc, side_length,
};
use proptest::prelude::*;

/// Makes the checksum right again.
fn mend(bytes: &mut [u8]) {
    let crc = loadline_base::crc::crc32c(&bytes[12..]);
    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
}

fn is_short(fault: &DiskFault, wanted: usize, there: usize) -> bool {
    matches!(fault, DiskFault::Short { needed, got, .. } if (*needed, *got) == (wanted, there))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_superblock_comes_back_as_it_was(superblock in superblocks()) {
        let bytes = superblock.encode().unwrap();
        prop_assert_eq!(Superblock::decode(&bytes), Ok(superblock));
    }

    #[test]
    fn the_use_of_a_chunk_comes_back_as_it_was(used in uses(), chunk in any::<u32>()) {
        let bytes = encode_use(used.as_ref(), DEVICE, chunk).unwrap();
        prop_assert_eq!(decode_use(&bytes, DEVICE, chunk), Ok(used));
        let fault = DiskFault::Other { stated: DEVICE, stated_chunk: chunk, ours: DEVICE, our_chunk: chunk ^ 1 };
        prop_assert_eq!(decode_use(&bytes, DEVICE, chunk ^ 1), Err(fault));
        let ours = DeviceId(1);
        let fault = DiskFault::Other { stated: DEVICE, stated_chunk: chunk, ours, our_chunk: chunk };
        prop_assert_eq!(decode_use(&bytes, ours, chunk), Err(fault));
    }

    #[test]
    fn what_all_blocks_of_a_slot_have_is_what_each_has(
        runs in prop::collection::vec((0..3usize, 1..64u32), 1..6), start in 0..64u32, count in 1..=64u32,
    ) {
        let states = [BlockState::Nothing, BlockState::Data, BlockState::Zeroes];
        let each = runs.iter().flat_map(|(state, blocks)| std::iter::repeat_n(states[*state], *blocks as usize));
        let mut slot = Slot::new(0);
        (0..64).zip(each).for_each(|(block, state)| slot.set(block, state, 7));
        let range = start..(start + count).min(64);
        let first = slot.state(start);
        let same = range.clone().all(|block| slot.state(block) == first);
        prop_assert_eq!(slot.state_of_all(range), same.then_some(first));
    }

    #[test]
    fn a_page_comes_back_as_it_was(state in states()) {
        let bytes = state.encode().unwrap();
        prop_assert_eq!(ReplicaState::decode(&bytes), Ok(state));
    }

    #[test]
    fn side_pages_come_back_as_they_were(lists in sides(), more in 0..600usize) {
        let (mut bytes, side) = (lists.bytes(), lists.side());
        let length = side_length(side.ranges, side.tombstones);
        prop_assert_eq!(bytes.len() as u64, length);
        prop_assert!(length.is_multiple_of(512));
        prop_assert_eq!(length == 0, lists.ranges.is_empty() && lists.tombstones.is_empty());
        bytes.resize(bytes.len() + more, 0xdd);
        let (ranges, tombstones) = decode_side(&bytes, &side).unwrap();
        prop_assert_eq!(SideLists { ranges, tombstones }, lists);
        for got in 0..length as usize {
            let fault = decode_side(&bytes[..got], &side).unwrap_err();
            prop_assert!(is_short(&fault, length as usize, got), "{}", fault);
        }
    }

    #[test]
    fn a_slot_comes_back_as_it_was(
        (blocks, slot) in (1..=64u32).prop_flat_map(|blocks| (Just(blocks), slots(blocks))),
    ) {
        let bytes = sector(Some(&slot), HOLDER);
        prop_assert_eq!(slot::decode(&bytes, HOLDER, blocks), Ok(Some(slot)));
        prop_assert_eq!(slot::decode(&bytes, HOLDER, 64), Ok(Some(slot)));
        // It is refused for any other replica and in any other place, and does not count for a replica that has forgotten it.
        let other = Holder { replica: ReplicaId(78), ..HOLDER };
        let elsewhere = Holder { at: HOLDER.at + 512, ..HOLDER };
        for (holder, what) in [(other, "the replica of a slot"), (elsewhere, "the place of a slot")] {
            let fault = slot::decode(&bytes, holder, blocks).unwrap_err();
            prop_assert!(matches!(fault, DiskFault::Field(field) if field.what == what), "{}", fault);
        }
        let later = Holder { content: HOLDER.content + 1, ..HOLDER };
        prop_assert_eq!(slot::decode(&bytes, later, blocks), Ok(None));
        let earlier = Holder { content: HOLDER.content - 1, ..HOLDER };
        let fault = slot::decode(&bytes, earlier, blocks).unwrap_err();
        let right = matches!(fault, DiskFault::Field(field) if field.what == "the content of a slot");
        prop_assert!(right, "{}", fault);
    }

    #[test]
    fn nothing_overlaps(superblock in superblocks()) {
        let all = everything(&superblock);
        prop_assert!(all.iter().all(|one| one.end <= superblock.bytes));
        let apart = all.windows(2).all(|pair| pair[0].end <= pair[1].start);
        prop_assert!(apart, "{:?} has {:?}", superblock, all);
        // Pages at least are written to chunks and extents.
        prop_assert!(superblock.chunk_at(superblock.chunks - 1).is_multiple_of(4096));
        prop_assert!(superblock.extent_at(0, superblock.extents_in_chunk() - 1).is_multiple_of(4096));
        // Another chunk would not fit, nor another extent.
        let Superblock { cluster, device, bytes, chunk_bytes, extent_blocks, .. } = superblock;
        let fit = Superblock::fit(cluster, device, bytes, chunk_bytes, extent_blocks).unwrap();
        let more = fit.chunks.checked_add(1).map(|chunks| Superblock { chunks, ..fit });
        prop_assert!(more.is_none_or(|more| more.encode().is_err()));
        let extents = u64::from(superblock.extents_in_chunk()) + 1;
        let used = (extents * 512).next_multiple_of(4096) + extents * superblock.extent_bytes();
        prop_assert!(used > chunk_bytes);
    }

    #[test]
    fn any_division_is_taken_or_refused(
        (bytes, chunk) in any::<(u64, u64)>(), low in 0..64u32, pages in any::<bool>(), blocks in 0..70u32,
    ) {
        let (bytes, chunk) = (bytes >> low, chunk >> (low / 2 + 24));
        let chunk = if pages { chunk / 4096 * 4096 } else { chunk };
        if let Ok(fit) = Superblock::fit(CLUSTER, DEVICE, bytes, chunk, blocks) {
            prop_assert_eq!(Superblock::decode(&fit.encode().unwrap()), Ok(fit));
        }
    }
}

/// All that a device has, in the order in which it lies there; of many chunks and extents, some.
fn everything(superblock: &Superblock) -> Vec<Range<u64>> {
    let some = |count: u32| -> Vec<u32> {
        let few = count.min(20);
        let mut all: Vec<u32> = (0..few).chain(count - few..count).collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    let length = |at: u64, bytes: u64| at..at + bytes;
    let mut all = vec![0..4096, 4096..8192];
    for copy in 0..2 {
        all.push(length(superblock.table_at(copy), u64::from(superblock.chunks) * 512));
    }
    for chunk in some(superblock.chunks) {
        let extents = some(superblock.extents_in_chunk());
        all.extend(extents.iter().map(|slot| length(superblock.slot_at(chunk, *slot), 512)));
        let extent = |slot: &u32| length(superblock.extent_at(chunk, *slot), superblock.extent_bytes());
        all.extend(extents.iter().map(extent));
        let end = superblock.chunk_at(chunk) + superblock.chunk_bytes;
        assert!(all.last().is_some_and(|last| last.end <= end), "an extent leaves its chunk");
        all.push(end..end);
    }
    all
}

/// With each single bit changed, it is refused: as something else, or as torn.
fn each_flip<T: std::fmt::Debug>(bytes: &[u8], decode: impl Fn(&[u8]) -> Result<T, DiskFault>) {
    let mut changed = bytes.to_vec();
    for bit in 0..bytes.len() * 8 {
        changed[bit / 8] ^= 1 << (bit % 8);
        let found = decode(&changed);
        let right = match &found {
            Err(DiskFault::NotOurs) => bit < 64,
            Err(DiskFault::Torn { .. }) => bit >= 64,
            _ => false,
        };
        assert!(right, "bit {bit} changed: {found:?}");
        changed[bit / 8] ^= 1 << (bit % 8);
    }
}

/// What is the same of every format: cut short, something else, newer.
fn as_every_format<T: std::fmt::Debug>(bytes: &[u8], decode: impl Fn(&[u8]) -> Result<T, DiskFault>) {
    decode(bytes).unwrap();
    for got in 0..bytes.len() {
        let fault = decode(&bytes[..got]).unwrap_err();
        assert!(is_short(&fault, bytes.len(), got), "{fault}");
    }
    let other = vec![0x5a; bytes.len()];
    assert_eq!(decode(&other).unwrap_err(), DiskFault::NotOurs);
    // A newer one may have anything behind its version.
    let mut newer = bytes.to_vec();
    newer[12] += 1;
    newer[14..].fill(0xff);
    mend(&mut newer);
    let fault = decode(&newer).unwrap_err();
    let is_newer = |stated: u16, ours: u16| stated == ours + 1 && ours == u16::from(bytes[12]);
    assert!(matches!(fault, DiskFault::Newer { stated, ours, .. } if is_newer(stated, ours)), "{fault}");
    assert!(fault.to_string().contains("upgrade this node"), "{fault}");
    // Nor does this program read an older one.
    if bytes[12] > 1 {
        let mut older = bytes.to_vec();
        older[12] = 1;
        mend(&mut older);
        let fault = decode(&older).unwrap_err();
        assert!(matches!(fault, DiskFault::Older { stated: 1, .. }), "{fault}");
        assert!(fault.to_string().contains("use the older program"), "{fault}");
    }
    newer[20] = 0;
    let fault = decode(&newer).unwrap_err();
    assert!(matches!(fault, DiskFault::Torn { .. }), "{fault}");
    // There never was a version 0, nor is anything behind the fields.
    for (at, value) in [(12, 0), (bytes.len() - 1, 1)] {
        let mut wrong = bytes.to_vec();
        wrong[at] = value;
        mend(&mut wrong);
        let fault = decode(&wrong).unwrap_err();
        assert!(matches!(fault, DiskFault::Field(_)), "{fault}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2))]

    #[test]
    fn a_bit_that_changed_in_a_page_is_seen(superblock in superblocks(), state in states()) {
        each_flip(&superblock.encode().unwrap(), Superblock::decode);
        each_flip(&state.encode().unwrap(), ReplicaState::decode);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(50))]

    #[test]
    fn a_bit_that_changed_in_a_sector_is_seen(used in uses(), slot in prop::option::of(slots(40))) {
        each_flip(&encode_use(used.as_ref(), DEVICE, CHUNK).unwrap(), |b| decode_use(b, DEVICE, CHUNK));
        each_flip(&sector(slot.as_ref(), HOLDER), |bytes| slot::decode(bytes, HOLDER, 40));
    }

    #[test]
    fn a_changed_bit_of_the_side_pages_is_found(lists in sides()) {
        let (mut bytes, side) = (lists.bytes(), lists.side());
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            let found = decode_side(&bytes, &side);
            prop_assert!(matches!(found, Err(DiskFault::Torn { .. })), "bit {} changed: {:?}", bit, found);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

fn superblock() -> Superblock {
    Superblock::fit(CLUSTER, DEVICE, 10 << 30, 64 << 20, 64).unwrap()
}

fn log_use() -> ChunkUse {
    ChunkUse { replica: ReplicaId(77), key: 0xfeed, role: Role::Log, index: 2, of: 4 }
}

fn state() -> ReplicaState {
    let at = |ownership, sequence| Position { ownership: Epoch(ownership), sequence: Sequence(sequence) };
    ReplicaState {
        version: 12,
        volume: VolumeId(7),
        group: GroupIndex(3),
        replica: ReplicaId(77),
        blocks: 1000,
        key: 0x0123_4567_89ab_cdef,
        capacity: DEVICE,
        promise: Promise { epoch: Epoch(9), owner: Owner { node: NodeId(1), incarnation: Incarnation(2) } },
        commit_point: at(8, 4),
        epoch: Epoch(9),
        generation: 5,
        first: 300,
        tail: Tail { at: 1024, number: 200 },
        durable: 310,
        end: at(8, 3),
        end_before: 200,
        truncations: vec![Truncation { below: 255, above: at(7, 6) }],
        holes: vec![Hole { from: 255, to: 256, at: 512 }, Hole { from: 256, to: 260, at: 0 }],
        content: 3,
        side: Side { version: 1, ranges: 2, tombstones: 1, crc: 0xabcd },
    }
}

fn used_slot() -> Slot {
    let mut slot = Slot { stamp: Epoch(9), ..Slot::new(5) };
    slot.set(0, BlockState::Data, 0xabcd);
    slot.set(2, BlockState::Zeroes, 0xffff);
    slot
}

#[test]
fn every_format_tells_what_it_cannot_take() {
    as_every_format(&superblock().encode().unwrap(), Superblock::decode);
    as_every_format(&encode_use(Some(&log_use()), DEVICE, CHUNK).unwrap(), |b| decode_use(b, DEVICE, CHUNK));
    as_every_format(&state().encode().unwrap(), ReplicaState::decode);
    as_every_format(&sector(Some(&used_slot()), HOLDER), |bytes| slot::decode(bytes, HOLDER, 64));
    as_every_format(&sector(None, HOLDER), |bytes| slot::decode(bytes, HOLDER, 64));
}

#[test]
fn zeroes_are_blank() {
    let page = [0; PAGE];
    assert_eq!(Superblock::decode(&page), Err(DiskFault::Blank));
    assert_eq!(ReplicaState::decode(&page), Err(DiskFault::Blank));
    assert_eq!(decode_use(&page, DEVICE, CHUNK), Ok(None));
    assert_eq!(slot::decode(&page, HOLDER, 64), Ok(None));
    assert_eq!(encode_side(&[], &[]), Ok(Vec::new()));
    assert_eq!(side_crc(&[]), 0);
    assert_eq!(side_length(0, 0), 0);
    assert_eq!(decode_side(&[], &Side::default()), Ok((Vec::new(), Vec::new())));
}

#[test]
fn free_is_free() {
    let bytes = encode_use(None, DEVICE, CHUNK).unwrap();
    assert_ne!(bytes, [0; SECTOR], "it is not the same as never written");
    assert_eq!(decode_use(&bytes, DEVICE, CHUNK), Ok(None));
    assert_eq!(slot::decode(&sector(None, HOLDER), HOLDER, 64), Ok(None));
    // It was freed in a time of which the replica knows nothing.
    let later = Holder { content: HOLDER.content + 1, ..HOLDER };
    slot::decode(&sector(None, later), HOLDER, 64).unwrap_err();
}

#[test]
fn a_slot_has_what_was_set() {
    let mut slot = used_slot();
    let all = |slot: &Slot| [0, 1, 2, 63].map(|block| slot.state(block));
    assert_eq!(all(&slot), [BlockState::Data, BlockState::Nothing, BlockState::Zeroes, BlockState::Nothing]);
    assert_eq!((slot.checksums[0], slot.checksums[2]), (0xabcd, 0), "zeroes have no checksum");
    slot.set(63, BlockState::Data, 5);
    slot.set(0, BlockState::Zeroes, 6);
    slot.set(2, BlockState::Nothing, 7);
    assert_eq!(all(&slot), [BlockState::Zeroes, BlockState::Nothing, BlockState::Nothing, BlockState::Data]);
    assert_eq!(slot.checksums.iter().sum::<u32>(), 5);
    assert!(!slot.is_empty());
    for block in [0, 63] {
        slot.set(block, BlockState::Nothing, 1);
    }
    assert!(slot.is_empty());
    assert_eq!(slot, Slot { stamp: Epoch(9), ..Slot::new(5) });
}

#[test]
fn slots_that_cannot_be_are_refused() {
    let refused = |slot: &Slot, blocks| match slot::decode(&sector(Some(slot), HOLDER), HOLDER, blocks) {
        Err(DiskFault::Field(field)) => field.what,
        found => panic!("{found:?}"),
    };
    let good = used_slot();
    assert_eq!(refused(&Slot { states: 3 << 8, ..good }, 64), "a block whose state is 3");
    assert_eq!(
        refused(&Slot { states: 3 << 126, checksums: [0; 64], ..good }, 64),
        "a block whose state is 3"
    );
    assert_eq!(refused(&Slot { states: 0, ..good }, 64), "the checksum of a block without data");
    assert_eq!(refused(&Slot { stamp: Epoch(MOST_COUNT + 1), ..good }, 64), "the stamp of a slot");
    assert_eq!(refused(&Slot { extent: MOST_BLOCKS, ..good }, 64), "the extent of a slot");
    assert_eq!(refused(&good, 2), "the states of the blocks behind an extent");
    assert_eq!(slot::decode(&sector(Some(&good), HOLDER), HOLDER, 3), Ok(Some(good)));
}

#[test]
fn devices_that_cannot_be_divided_are_refused() {
    let good = superblock();
    let refused = |bytes, chunk_bytes, extent_blocks| {
        let error = Superblock::fit(CLUSTER, DEVICE, bytes, chunk_bytes, extent_blocks).unwrap_err();
        let chunks = 1;
        let made = Superblock { bytes, chunk_bytes, extent_blocks, chunks, ..good };
        assert_eq!(made.encode().unwrap_err(), error);
        error.to_string()
    };
    let least = 4 * 4096 + 8192;
    Superblock::fit(CLUSTER, DEVICE, least, 8192, 1).unwrap();
    let small = "must hold at least one chunk: take smaller chunks, or a larger device";
    assert_eq!(refused(least - 1, 8192, 1), format!("the bytes of a device is {}, and {small}", least - 1));
    assert!(refused(0, 8192, 1).contains(small));
    assert!(refused(MOST_DEVICE_BYTES + 1, 8192, 1).contains("must be at most 2^62"));
    assert!(refused(least, 8191, 1).contains("must be a multiple of 4096"));
    assert!(refused(u64::MAX, MOST_CHUNK_BYTES + 4096, 1).contains("at most 2^40"));
    assert!(refused(least, 4096, 1).contains("must hold at least one extent"));
    assert!(refused(least, 0, 1).contains("must hold at least one extent"));
    assert!(refused(1 << 40, 64 * 4096, 64).contains("must hold at least one extent"));
    assert!(refused(least, 8192, 0).contains("must be 1 to 64"));
    assert!(refused(1 << 40, 1 << 30, 65).contains("must be 1 to 64"));

    for chunks in [0, good.chunks + 1, u32::MAX] {
        let error = Superblock { chunks, ..good }.encode().unwrap_err();
        assert_eq!(error.what, "the number of chunks");
    }
    let largest = Superblock::fit(CLUSTER, DEVICE, MOST_DEVICE_BYTES, 8192, 1).unwrap();
    assert_eq!(largest.chunks, u32::MAX);
    let largest = Superblock::fit(CLUSTER, DEVICE, MOST_DEVICE_BYTES, MOST_CHUNK_BYTES, 64).unwrap();
    assert_eq!(largest.chunk_at(largest.chunks - 1) % 4096, 0);
}

#[test]
fn uses_that_cannot_be_are_refused() {
    let refused = |used: ChunkUse| encode_use(Some(&used), DEVICE, CHUNK).unwrap_err().what;
    let good = log_use();
    assert_eq!(refused(ChunkUse { index: 4, ..good }), "the index of a chunk of a log");
    assert_eq!(refused(ChunkUse { index: 0, of: 0, ..good }), "the chunks of a log");
    let role = Role::Capacity;
    assert_eq!(refused(ChunkUse { role, index: 0, ..good }), "the chunks of a log that is none");
    assert_eq!(refused(ChunkUse { role, of: 0, ..good }), "the index of a chunk of no log");
}

#[test]
fn pages_that_cannot_be_are_refused() {
    let refused = |change: &dyn Fn(&mut ReplicaState)| {
        let mut state = state();
        change(&mut state);
        state.encode().unwrap_err().what
    };
    let over = MOST_COUNT + 1;
    let drop = state().truncations[0];
    assert_eq!(refused(&|s| s.version = 0), "how often a page was written");
    assert_eq!(refused(&|s| s.blocks = 0), "the blocks of a group");
    assert_eq!(refused(&|s| s.blocks = MOST_BLOCKS + 1), "the blocks of a group");
    assert_eq!(refused(&|s| s.promise.epoch.0 = over), "the epoch of a promise");
    assert_eq!(refused(&|s| s.commit_point.ownership.0 = over), "an ownership");
    assert_eq!(refused(&|s| s.epoch.0 = over), "the epoch of the commit point");
    assert_eq!(refused(&|s| s.generation = over), "the generation");
    assert_eq!(refused(&|s| s.first = 0), "the first number of a generation");
    assert_eq!(refused(&|s| s.tail.at = 100), "the place of the tail");
    assert_eq!(refused(&|s| s.tail.at = 1 << 63), "the place of the tail");
    assert_eq!(refused(&|s| s.tail.number = 0), "the number at the tail");
    assert_eq!(refused(&|s| s.durable = over), "the number known to be durable");
    assert_eq!(refused(&|s| s.end.sequence.0 = over), "a sequence number");
    assert_eq!(refused(&|s| s.end_before = over), "the number that the end is before");
    assert_eq!(refused(&|s| s.content = over), "the content");
    assert_eq!(refused(&|s| s.truncations = vec![drop; MOST_TRUNCATIONS + 1]), "the number of truncations");
    assert_eq!(refused(&|s| s.truncations = vec![drop; 256]), "the number of truncations");
    assert_eq!(refused(&|s| s.truncations[0].below = 0), "the number below which records were dropped");
    assert_eq!(refused(&|s| s.truncations[0].above.sequence.0 = over), "a sequence number");
    assert_eq!(refused(&|s| s.holes[0].from = 0), "the first number of a hole");
    assert_eq!(refused(&|s| s.holes[0].to = 255), "the number behind a hole");
    assert_eq!(refused(&|s| s.holes[0].to = 257), "the first number of a hole");
    assert_eq!(refused(&|s| s.holes[1].to = over), "the number behind a hole");
    assert_eq!(refused(&|s| s.holes[0].at = 511), "the place behind a hole");
    assert_eq!(refused(&|s| s.holes.reverse()), "the first number of a hole");
    assert_eq!(refused(&|s| s.side.version = over), "the version of the side pages");
    assert_eq!(refused(&|s| s.side.ranges = MOST_LISTED + 1), "the ranges in the side pages");
    assert_eq!(refused(&|s| s.side.tombstones = u32::MAX), "the tombstones in the side pages");
    let nothing = Side { crc: 1, ..Side::default() };
    assert_eq!(refused(&|s| s.side = nothing), "the checksum of empty side pages");

    let mut most = state();
    most.truncations = vec![drop; MOST_TRUNCATIONS];
    let hole = |at: u64| Hole { from: 2 * at + 1, to: 2 * at + 2, at: 512 * at };
    most.holes = (0..=MOST_HOLES as u64).map(hole).collect();
    assert_eq!(most.encode().unwrap_err().what, "the number of holes");
    most.holes.pop();
    assert_eq!(ReplicaState::decode(&most.encode().unwrap()), Ok(most));
}

#[test]
fn side_pages_that_cannot_be_are_refused() {
    let listed = |ranges: &[Range<u64>]| encode_side(ranges, &[]).unwrap_err().what;
    assert_eq!(listed(&[Range { start: 5, end: 5 }]), "the end of a range of blocks");
    assert_eq!(listed(&[0..1, 2..MOST_BLOCKS + 1]), "the end of a range of blocks");
    // These are one.
    assert_eq!(listed(&[0..5, 5..6]), "the start of a range of blocks");
    assert_eq!(listed(&[256..257, 1..2]), "the start of a range of blocks");
    let ranges: Vec<_> = (0..=u64::from(MOST_LISTED)).map(|at| 2 * at..2 * at + 1).collect();
    assert_eq!(listed(&ranges), "the ranges in the side pages");

    let dead = |extents, stamp| Tombstone { extents, stamp: Epoch(stamp) };
    let buried = |tombstones: &[Tombstone]| encode_side(&[], tombstones).unwrap_err().what;
    assert_eq!(buried(&[dead(3..3, 1)]), "the end of a tombstone");
    assert_eq!(buried(&[dead(0..MOST_BLOCKS + 1, 1)]), "the end of a tombstone");
    assert_eq!(buried(&[dead(0..1, MOST_COUNT + 1)]), "the stamp of a tombstone");
    assert_eq!(buried(&[dead(0..3, 1), dead(2..4, 1)]), "the start of a tombstone");
    // These were trimmed at different times.
    encode_side(&[], &[dead(0..3, 1), dead(3..4, 2)]).unwrap();
    let many: Vec<_> = (0..=u64::from(MOST_TOMBSTONES)).map(|at| dead(at..at + 1, 1)).collect();
    assert_eq!(buried(&many), "the tombstones in the side pages");

    let most = SideLists { ranges: ranges[1..].to_vec(), tombstones: many[1..].to_vec() };
    let (bytes, side) = (most.bytes(), most.side());
    assert_eq!(bytes.len(), 640 << 10);
    assert_eq!(decode_side(&bytes, &side), Ok((most.ranges, most.tombstones)));
    // What the page says is not believed.
    let hostile = Side { ranges: u32::MAX, tombstones: u32::MAX, ..side };
    let fault = decode_side(&bytes, &hostile).unwrap_err();
    assert!(matches!(fault, DiskFault::Field(_)), "{fault}");
    // Nothing is behind the fields.
    let mut bytes = encode_side(&[1..2, 3..4], &[]).unwrap();
    bytes[511] = 1;
    let side = Side { version: 1, ranges: 2, tombstones: 0, crc: side_crc(&bytes) };
    let fault = decode_side(&bytes, &side).unwrap_err();
    assert!(fault.to_string().contains("a byte behind the fields is 1"), "{fault}");
}

#[test]
fn faults_say_what_and_what_to_do() {
    let bytes = encode_use(None, DEVICE, CHUNK).unwrap();
    let text = decode_use(&bytes, DeviceId(0xd2), 7).unwrap_err().to_string();
    assert!(text.contains("chunk 6 of device d00000000000000d1"), "{text}");
    assert!(text.contains("chunk 7 of d00000000000000d2"), "{text}");
    let text = ReplicaState::decode(&bytes).unwrap_err().to_string();
    assert_eq!(text, "the page of a replica ends after 512 bytes, and needs 4096: read more");
}

/// Bytes as text, without the zeroes at the end.
fn hex(bytes: &[u8]) -> String {
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    text.trim_end_matches('0').to_owned()
}

/// A change of a format raises its version, and then this.
#[test]
fn the_formats_do_not_change_unseen() {
    assert_eq!(hex(&superblock().encode().unwrap()), SUPERBLOCK);
    assert_eq!(hex(&encode_use(Some(&log_use()), DEVICE, CHUNK).unwrap()), USED);
    assert_eq!(hex(&state().encode().unwrap()), STATE);
    let dead = Tombstone { extents: 7..9, stamp: Epoch(6) };
    assert_eq!(hex(&encode_side(&[1..3, 4..5], &[dead]).unwrap()), SIDE);
    assert_eq!(hex(&sector(Some(&used_slot()), HOLDER)), SLOT);
}

const SUPERBLOCK: &str = "\
    4c4c64657669636548db5aec02007766554433221100efcdab8967452301d10000000000000000000080020000000000\
    0004000000009f0000004";
const USED: &str = "\
    4c4c6368756e6b73d5e32e0802000100d1000000000000004d00000000000000060000000200000004000000edfe";
const STATE: &str = "\
    4c4c7273746174652699cdf3010001020c0000000000000007000000000000004d0000000000000003000000e8030000\
    00000000efcdab8967452301d10000000000000009000000000000000200000000000000010000000800000000000000\
    0400000000000000090000000000000005000000000000002c010000000000000004000000000000c800000000000000\
    360100000000000008000000000000000300000000000000c80000000000000003000000000000000100000000000000\
    0200000001000000cdab0000ff0000000000000007000000000000000600000000000000ff0000000000000000010000\
    00000000000200000000000000010000000000000401";
const SIDE: &str = "\
    010000000000000003000000000000000400000000000000050000000000000007000000000000000900000000000000\
    06";
const SLOT: &str = "\
    4c4c657874656e741c698ee8010001004d00000000000000030000000000000000520000000000000500000000000000\
    090000000000000021000000000000000000000000000000cdab";
