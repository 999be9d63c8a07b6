//! Everything that can be encoded is decoded to what it was; and bytes that were changed on the way are refused.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{CLUSTER, KEY, Logged, Message, logged, messages, records};
use loadline_san_core::history::{Claim, History};
use loadline_san_core::ids::{
    Epoch, Incarnation, NodeId, Owner, Position, ProposalId, ReplicaId, Sequence, VolumeId,
};
use loadline_san_core::layout::{GroupIndex, Layout, MOST_BLOCKS};
use loadline_san_core::map::{Allocated, Map};
use loadline_san_core::message::{
    Content, Entry, EntryOp, FromOwner, FromReplica, Job, Mention, Payload, SealReport, ToOwner, ToReplica,
};
use loadline_san_core::record::{Departed, Group, Record, RecordState};
use loadline_san_protocol::field::{MOST_COUNT, MOST_DATA_BLOCKS};
use loadline_san_protocol::header::{HEADER, MOST_FRAME, MOST_MENTIONS, MOST_PAYLOAD, MOST_RANGES};
use loadline_san_protocol::log::{
    Change, Expected, LogFault, LogRecord, MOST_HEADER, Recorded, SECTOR, block_crc,
};
use loadline_san_protocol::record::RecordFault;
use loadline_san_protocol::{ClusterId, DecodeError, decode, log, needed, record};
use proptest::prelude::*;

const REPLICA: ReplicaId = ReplicaId(77);
const GROUP: GroupIndex = GroupIndex(3);
/// Bytes of a frame that say how long it is.
const BEGIN: usize = 16;

fn expected() -> Expected {
    Expected { replica: REPLICA, group: GROUP, key: KEY, generations: 5..=6 }
}

/// Calls it with each single bit changed.
fn each_flip(bytes: &[u8], mut judge: impl FnMut(&[u8], usize)) {
    let mut changed = bytes.to_vec();
    for bit in 0..bytes.len() * 8 {
        changed[bit / 8] ^= 1 << (bit % 8);
        judge(&changed, bit);
        changed[bit / 8] ^= 1 << (bit % 8);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_message_comes_back_as_it_was(message in messages()) {
        let bytes = message.bytes();
        let frame = decode(&bytes, CLUSTER).unwrap();
        prop_assert_eq!(frame.length(), bytes.len());
        prop_assert_eq!(needed(&bytes[..BEGIN]), Ok(Some(bytes.len())));
        prop_assert_eq!(Message::of(&frame), message);
    }

    #[test]
    fn frames_follow_each_other(one in messages(), next in messages(), odd in 0..8usize) {
        let mut bytes = vec![0; odd];
        one.encode(&mut bytes).unwrap();
        let length = bytes.len() - odd;
        next.encode(&mut bytes).unwrap();
        let first = decode(&bytes[odd..], CLUSTER).unwrap();
        prop_assert_eq!(first.length(), length);
        prop_assert_eq!(Message::of(&first), one);
        let second = decode(&bytes[odd + length..], CLUSTER).unwrap();
        prop_assert_eq!(Message::of(&second), next);
    }

    #[test]
    fn a_frame_that_was_cut_says_what_is_missing(message in messages()) {
        let bytes = message.bytes();
        for got in 0..bytes.len() {
            let wanted = if got < BEGIN { HEADER } else { bytes.len() };
            let error = decode(&bytes[..got], CLUSTER).unwrap_err();
            prop_assert_eq!(error, DecodeError::TooShort { needed: wanted, got });
            prop_assert_eq!(needed(&bytes[..got]), Ok((got >= BEGIN).then_some(bytes.len())));
        }
    }

    #[test]
    fn a_record_comes_back_as_it_was(record in records()) {
        let bytes = record::encode(&record).unwrap();
        prop_assert_eq!(record::decode(&bytes), Ok(record));
    }

    #[test]
    fn a_log_record_comes_back_as_it_was(logged in logged(REPLICA, GROUP, 5), data in 0..3usize) {
        let mut bytes = logged.bytes();
        let length = bytes.len();
        prop_assert!(length.is_multiple_of(SECTOR) && length <= MOST_HEADER);
        bytes.resize(length + data * 4096, 0xdd);
        let view = log::decode(&bytes, &expected()).unwrap();
        prop_assert_eq!(view.header.header_length(), length);
        prop_assert_eq!(view.header.length.get() as usize, length + logged.checksums.len() * 4096);
        let checksums = view.checksums.iter().map(|c| c.get()).collect();
        prop_assert_eq!(Logged { record: view.record(), checksums }, logged);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn a_bit_that_changed_in_a_frame_is_seen(message in messages()) {
        each_flip(&message.bytes(), |bytes, bit| {
            let found = decode(bytes, CLUSTER);
            assert!(found.is_err(), "bit {bit} changed: {found:?}");
        });
    }

    #[test]
    fn a_bit_that_changed_in_a_record_is_seen(record in records()) {
        each_flip(&record::encode(&record).unwrap(), |bytes, bit| {
            let found = record::decode(bytes);
            assert!(found.is_err(), "bit {bit} changed: {found:?}");
        });
    }

    #[test]
    fn a_record_that_was_cut_is_seen(record in records()) {
        let bytes = record::encode(&record).unwrap();
        for got in 0..bytes.len() {
            let cut = matches!(record::decode(&bytes[..got]), Err(RecordFault::Truncated { .. }));
            prop_assert!(cut, "at {}", got);
        }
        let more = [bytes, vec![0]].concat();
        let longer = matches!(record::decode(&more), Err(RecordFault::Length { .. }));
        prop_assert!(longer);
    }

    #[test]
    fn a_bit_that_changed_in_a_log_header_is_seen(logged in logged(REPLICA, GROUP, 6)) {
        let bytes = logged.bytes();
        each_flip(&bytes, |bytes, bit| {
            let found = log::decode(bytes, &expected()).map(|view| view.record());
            let right = if bit < 64 { found == Err(LogFault::NotARecord) } else { torn(&found) };
            assert!(right, "bit {bit} changed: {found:?}");
        });
        for got in 0..bytes.len() {
            let needed = if got < SECTOR { SECTOR } else { bytes.len() };
            let error = log::decode(&bytes[..got], &expected()).unwrap_err();
            prop_assert_eq!(error, LogFault::TooShort { needed, got });
        }
    }
}

fn torn<T>(found: &Result<T, LogFault>) -> bool {
    matches!(found, Err(LogFault::Torn { .. }))
}

fn from_owner(epoch: u64) -> FromOwner {
    let owner = Owner { node: NodeId(1), incarnation: Incarnation(2) };
    let (volume, process) = (VolumeId(7), Incarnation(3));
    FromOwner { volume, replica: REPLICA, owner, epoch: Epoch(epoch), session: 4, process }
}

fn hello() -> Vec<u8> {
    Message::ToReplica(
        from_owner(9),
        ToReplica::Hello { member_since: Epoch(7), history: History::default() },
    )
    .bytes()
}

#[test]
fn what_is_not_for_us_says_why() {
    let bytes = hello();
    let other = ClusterId(1);
    let error = decode(&bytes, other).unwrap_err();
    assert_eq!(error, DecodeError::Cluster { stated: CLUSTER, ours: other });
    assert!(error.to_string().contains("cluster 0123456789abcdef0011223344556677"), "{error}");

    let mut newer = bytes.clone();
    newer[4] = 2;
    let error = decode(&newer, CLUSTER).unwrap_err();
    assert_eq!(error, DecodeError::Version { stated: 2, ours: 1 });
    assert_eq!(needed(&newer), Err(error));
    assert!(error.to_string().contains("upgrade the older node"), "{error}");

    let stranger = b"GET / HTTP/1.1\r\n";
    assert_eq!(needed(stranger), Err(DecodeError::NotOurs { stated: u32::from_le_bytes(*b"GET ") }));
}

#[test]
fn a_hostile_length_is_refused_before_anything_is_read() {
    for (at, most) in [(8, MOST_FRAME - HEADER), (12, MOST_PAYLOAD as usize)] {
        for length in [most as u32 + 1, u32::MAX] {
            let mut bytes = hello();
            bytes[at..at + 4].copy_from_slice(&length.to_le_bytes());
            let error = decode(&bytes, CLUSTER).unwrap_err();
            assert!(
                matches!(error, DecodeError::Field(field) if field.value == u64::from(length)),
                "{error}"
            );
            assert_eq!(needed(&bytes), Err(error));
        }
    }
}

#[test]
fn what_could_not_be_read_is_not_written() {
    let refused = |message: ToReplica<Vec<u32>>| {
        let mut out = vec![1, 2, 3];
        let error = Message::ToReplica(from_owner(9), message).encode(&mut out).unwrap_err();
        assert_eq!(out, [1, 2, 3], "what was there stays, and nothing is added");
        error
    };
    let entry = |block, blocks, op| ToReplica::Entry {
        ownership: Epoch(1),
        sequence: Sequence(1),
        commit_point: Sequence(0),
        entry: Entry { block, blocks, op },
    };
    let data = |blocks| EntryOp::Data(Payload { data: vec![0; blocks], first: 0 });
    refused(entry(0, 1, EntryOp::Open));
    refused(entry(1, 0, EntryOp::Open));
    refused(entry(0, 0, EntryOp::Zeroes));
    refused(entry(MOST_BLOCKS, 1, EntryOp::Trim));
    refused(entry(u64::MAX, 1, EntryOp::Trim));
    refused(entry(0, 2, data(1)));
    refused(entry(0, MOST_DATA_BLOCKS + 1, data(MOST_DATA_BLOCKS as usize + 1)));
    refused(ToReplica::Return { ownership: Epoch(1), from: Sequence(0), empty: false });
    let job = Job { slot: 0, turn: 0, part: 0 };
    refused(ToReplica::Read { job, block: 0, blocks: 0, again: false });
    refused(ToReplica::Read { job, block: 0, blocks: MOST_DATA_BLOCKS + 1, again: false });
    refused(ToReplica::Map { job, block: 0, blocks: 0 });
    refused(ToReplica::Map { job, block: MOST_BLOCKS, blocks: 1 });
    refused(ToReplica::Fetch { job, number: MOST_COUNT + 1, again: false });
    let sequence = Sequence(0);
    let open = Entry { block: 0, blocks: 0, op: EntryOp::Open };
    refused(ToReplica::Entry { ownership: Epoch(1), sequence, commit_point: sequence, entry: open });

    let mut out = Vec::new();
    let hello = Message::ToReplica(
        from_owner(MOST_COUNT + 1),
        ToReplica::Hello { member_since: Epoch(0), history: History::default() },
    );
    assert_eq!(hello.encode(&mut out).unwrap_err().what, "an epoch");
}

/// A message with so many of something.
type Make<'a> = &'a dyn Fn(usize) -> ToOwner<Vec<u32>>;

#[test]
fn the_longest_messages_fit_and_longer_ones_are_refused() {
    let owner = Owner { node: NodeId(1), incarnation: Incarnation(2) };
    let claim = Claim { first: Incarnation(1), ..Claim::of(Epoch(7), owner) };
    let history = History::of(vec![claim]).unwrap();
    let seal = ToReplica::Seal { member_since: Epoch(5), history, salvage: true };
    assert_eq!(hex(&Message::ToReplica(from_owner(9), seal).bytes()), SEAL);

    let FromOwner { volume, replica, owner, session, process, .. } = from_owner(0);
    let from = FromReplica { volume, replica, process, owner, session };
    let mention = Mention {
        number: 1,
        position: Position::START,
        entry: Entry { block: 0, blocks: 1, op: EntryOp::Zeroes },
    };
    let report = |count| {
        let above = vec![mention.clone(); count];
        ToOwner::Sealed(SealReport {
            commit_point: Position::START,
            end: Position::START,
            full: false,
            above,
        })
    };
    let list = |count| ToOwner::Listed { after: Position::START, ranges: vec![1..2; count] };
    let answer = |count| ToOwner::Data {
        job: Job { slot: 1, turn: 1, part: 1 },
        content: Ok(Content::Data(Payload { data: vec![5; count], first: 0 })),
    };
    let map = |count| ToOwner::Mapped {
        job: Job { slot: 1, turn: 1, part: 1 },
        map: Map { ranges: vec![Allocated { blocks: 1..2, zeroes: true }; count], until: 2 },
    };
    let makes: [(Make<'_>, usize); 4] = [
        (&report, MOST_MENTIONS),
        (&list, MOST_RANGES),
        (&map, MOST_RANGES),
        (&answer, MOST_DATA_BLOCKS as usize),
    ];
    for (make, most) in makes {
        let message = Message::ToOwner(from, make(most));
        let bytes = message.bytes();
        assert!(bytes.len() <= MOST_FRAME);
        assert_eq!(Message::of(&decode(&bytes, CLUSTER).unwrap()), message);
        Message::ToOwner(from, make(most + 1)).encode(&mut Vec::new()).unwrap_err();
    }
}

/// Bytes as text, without the zeroes at the end.
fn hex(bytes: &[u8]) -> String {
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    text.trim_end_matches('0').to_owned()
}

/// A change of a format raises its version, and then this.
#[test]
fn the_formats_do_not_change_unseen() {
    let entry = ToReplica::Entry {
        ownership: Epoch(8),
        sequence: Sequence(5),
        commit_point: Sequence(4),
        entry: Entry { block: 6, blocks: 1, op: EntryOp::Data(Payload { data: vec![0xabcd], first: 0 }) },
    };
    let frame = Message::ToReplica(from_owner(9), entry).bytes();
    assert_eq!(hex(&frame), FRAME);

    let FromOwner { volume, replica, owner, session, process, .. } = from_owner(0);
    let from = FromReplica { volume, replica, process, owner, session };
    let job = Job { slot: 3, turn: 2, part: 1 };
    let map = ToReplica::Map { job, block: 6, blocks: 9 };
    assert_eq!(hex(&Message::ToReplica(from_owner(9), map).bytes()), MAP);
    let ranges = vec![Allocated { blocks: 7..8, zeroes: false }, Allocated { blocks: 8..9, zeroes: true }];
    let mapped = ToOwner::Mapped { job, map: Map { ranges, until: 12 } };
    assert_eq!(hex(&Message::ToOwner(from, mapped).bytes()), MAPPED);

    let position = Position { ownership: Epoch(8), sequence: Sequence(5) };
    let entry = Entry { block: 6, blocks: 1, op: EntryOp::Data(Payload { data: (), first: 0 }) };
    let record = LogRecord {
        replica: REPLICA,
        group: GROUP,
        generation: 5,
        number: 12,
        synced: 11,
        commit_point: Position { ownership: Epoch(8), sequence: Sequence(4) },
        epoch: Epoch(9),
        what: Recorded::Entry(Change { position, sequenced: true, entry }),
    };
    assert_eq!(hex(&Logged { record, checksums: vec![0xabcd] }.bytes()), LOGGED);

    let by = Owner { node: NodeId(1), incarnation: Incarnation(2) };
    let departed = Departed { epoch: Epoch(6), had: position };
    let group = Group {
        in_sync: BTreeSet::from([ReplicaId(77)]),
        since: BTreeMap::from([(ReplicaId(77), Epoch(5))]),
        departed: BTreeMap::from([(ReplicaId(78), departed)]),
        recovered: Epoch(4),
    };
    let record = Record {
        epoch: Epoch(9),
        made_by: ProposalId { by, number: 3 },
        owner: by,
        state: RecordState::Active,
        attachment: 1,
        fence: 1,
        lease_ns: 2_000_000_000,
        blocks: 100,
        layout: Layout::new(1, 256, 256).unwrap(),
        least: 1,
        history: History::of(vec![Claim::of(Epoch(7), by)]).unwrap(),
        homes: BTreeMap::from([(ReplicaId(77), NodeId(1)), (ReplicaId(78), NodeId(2))]),
        groups: vec![group],
    };
    assert_eq!(hex(&record::encode(&record).unwrap()), RECORD);
}

const FRAME: &str = "4c4c736e010003002c000000001000007766554433221100efcdab896745230107000000000000004d00000000000000\
    0200000000000000090000000000000004000000000000000300000000000000010000000ec9d4000800000000000000\
    0500000000000000040000000000000006000000000000000100000002000000cdab";
const SEAL: &str = "4c4c736e0100020028000000000000007766554433221100efcdab896745230107000000000000004d00000000000000\
                    0200000000000000090000000000000004000000000000000300000000000000010000000f93dbe60500000000000000\
                    0100000007000000000000000100000000000000020000000000000001";
const MAP: &str = "4c4c736e01000d0018000000000000007766554433221100efcdab896745230107000000000000004d00000000000000\
    02000000000000000900000000000000040000000000000003000000000000000100000010526b910300000002000000\
    010000000900000006";
const MAPPED: &str = "4c4c736e01000e013c000000000000007766554433221100efcdab896745230107000000000000004d00000000000000\
    020000000000000000000000000000000400000000000000030000000000000001000000c92b1c7a0300000002000000\
    010000000c00000000000000070000000000000008000000000000000100000008000000000000000900000000000000\
    02";
const LOGGED: &str = "4c4c6c6f67726563eed8746c0100010000120000000000004d0000000000000005000000000000000c00000000000000\
    0b0000000000000008000000000000000400000000000000090000000000000008000000000000000500000000000000\
    0600000000000000010000000200000003000000cdab";
const RECORD: &str = "4c4c766f6c756d65d265d67dfc0000000100020009000000000000000100000002000000000000000300000000000000\
                    010000000200000000000000010000000000000001000000000000000094357700000000640000000000000001000000\
                    000100000000000000010000000000000100000001000000020000000100000001000000010000000700000000000000\
                    02000000000000000200000000000000010000004d00000000000000010000004e000000000000000200000001000000\
                    0100000004000000000000004d0000000000000005000000000000004e00000000000000060000000000000008000000\
                    0000000005";

#[test]
fn the_checksum_of_a_block_knows_its_place() {
    let data = [7; 4096];
    let here = block_crc(VolumeId(1), GROUP, 5, &data);
    // Made from CRC32C's definition alone, in one piece: the format does not change unseen.
    let mut all = Vec::new();
    all.extend_from_slice(&1u64.to_le_bytes());
    all.extend_from_slice(&3u32.to_le_bytes());
    all.extend_from_slice(&5u64.to_le_bytes());
    all.extend_from_slice(&data);
    let mut crc = !0u32;
    for byte in all {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    assert_eq!(here, !crc);
    assert_ne!(here, block_crc(VolumeId(2), GROUP, 5, &data));
    assert_ne!(here, block_crc(VolumeId(1), GroupIndex(4), 5, &data));
    assert_ne!(here, block_crc(VolumeId(1), GROUP, 6, &data));
}
