//! Anything that can be encoded, as strategies: messages, records, log headers. The data of a payload is the checksums of
//! its blocks.
#![allow(dead_code, reason = "each test uses a part of it")]

pub(crate) mod disk;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use loadline_san_core::history::{Claim, History, MOST_CLAIMS};
use loadline_san_core::ids::{
    Epoch, Incarnation, NodeId, Owner, Position, ProposalId, ReplicaId, Sequence, VolumeId,
};
use loadline_san_core::layout::{GroupIndex, Layout, MOST_BLOCKS};
use loadline_san_core::lease::Moment;
use loadline_san_core::map::{Allocated, Map};
use loadline_san_core::message::*;
use loadline_san_core::record::{Departed, Group, Record, RecordState};
use loadline_san_protocol::field::MOST_COUNT;
use loadline_san_protocol::log::{Change, LogRecord, Recorded};
use loadline_san_protocol::{Body, ClusterId, FieldError, Frame, encode_to_owner, encode_to_replica, log};
use proptest::collection::vec;
use proptest::prelude::*;

pub(crate) const CLUSTER: ClusterId = ClusterId(0x0123_4567_89ab_cdef_0011_2233_4455_6677);

/// Of the log.
pub(crate) const KEY: u64 = 0x1122_3344_5566_7788;

/// A message of either direction.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Message {
    ToReplica(FromOwner, ToReplica<Vec<u32>>),
    ToOwner(FromReplica, ToOwner<Vec<u32>>),
}

impl Message {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) -> Result<(), FieldError> {
        match self {
            Message::ToReplica(from, message) => encode_to_replica(CLUSTER, from, message, |p| &p.data, out),
            Message::ToOwner(from, message) => encode_to_owner(CLUSTER, from, message, |p| &p.data, out),
        }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode(&mut out).expect("it can be encoded");
        out
    }

    pub(crate) fn of(frame: &Frame<'_>) -> Message {
        let data = |checksums: &[zerocopy::little_endian::U32]| checksums.iter().map(|c| c.get()).collect();
        match &frame.body {
            Body::ToReplica(from, body) => Message::ToReplica(*from, body.message(|| data(body.checksums()))),
            Body::ToOwner(from, body) => Message::ToOwner(*from, body.message(|| data(body.checksums()))),
        }
    }
}

pub(crate) fn counts() -> BoxedStrategy<u64> {
    prop_oneof![Just(0), Just(MOST_COUNT), 0..1000u64, 0..=MOST_COUNT].boxed()
}

pub(crate) fn numbers() -> BoxedStrategy<u64> {
    prop_oneof![Just(1), Just(MOST_COUNT), 1..1000u64, 1..=MOST_COUNT].boxed()
}

fn owners() -> impl Strategy<Value = Owner> {
    any::<(u32, u64)>().prop_map(|(n, i)| Owner { node: NodeId(n), incarnation: Incarnation(i) })
}

fn positions() -> impl Strategy<Value = Position> {
    (counts(), counts()).prop_map(|(o, s)| Position { ownership: Epoch(o), sequence: Sequence(s) })
}

fn jobs() -> impl Strategy<Value = Job> {
    any::<(u32, u32, u32)>().prop_map(|(slot, turn, part)| Job { slot, turn, part })
}

fn promises() -> impl Strategy<Value = Promise> {
    (counts(), owners()).prop_map(|(epoch, owner)| Promise { epoch: Epoch(epoch), owner })
}

/// So many blocks at the most, somewhere.
fn ranges(most: u64) -> impl Strategy<Value = Range<u64>> {
    let lengths = prop_oneof![1..=most, 1..=most.min(9)];
    (lengths, any::<u64>()).prop_map(|(length, at)| {
        let start = at % (MOST_BLOCKS - length + 1);
        start..start + length
    })
}

fn checksums() -> impl Strategy<Value = Vec<u32>> {
    prop_oneof![9 => vec(any::<u32>(), 1..9), 1 => vec(any::<u32>(), 90..300)]
}

pub(crate) fn entries() -> BoxedStrategy<Entry<Vec<u32>>> {
    let without = (ranges(u64::from(u32::MAX)), any::<bool>()).prop_map(|(range, trim)| {
        let op = if trim { EntryOp::Trim } else { EntryOp::Zeroes };
        Entry { block: range.start, blocks: (range.end - range.start) as u32, op }
    });
    let data = (checksums(), any::<u64>()).prop_map(|(data, at)| {
        let blocks = data.len() as u32;
        let block = at % (MOST_BLOCKS - u64::from(blocks) + 1);
        Entry { block, blocks, op: EntryOp::Data(Payload { data, first: 0 }) }
    });
    let open = Just(Entry { block: 0, blocks: 0, op: EntryOp::Open });
    prop_oneof![1 => open, 2 => without, 3 => data].boxed()
}

pub(crate) fn stripped(entry: &Entry<Vec<u32>>) -> Entry<()> {
    let op = match entry.op {
        EntryOp::Open => EntryOp::Open,
        EntryOp::Data(_) => EntryOp::Data(Payload { data: (), first: 0 }),
        EntryOp::Zeroes => EntryOp::Zeroes,
        EntryOp::Trim => EntryOp::Trim,
    };
    Entry { block: entry.block, blocks: entry.blocks, op }
}

fn mentions() -> impl Strategy<Value = Mention> {
    (numbers(), positions(), entries()).prop_map(|(number, position, entry)| Mention {
        number,
        position,
        entry: stripped(&entry),
    })
}

fn progresses() -> impl Strategy<Value = Progress> {
    (counts(), counts(), counts(), counts(), counts(), any::<(bool, bool, bool)>()).prop_map(
        |(ownership, received, durable, out_of_band_received, out_of_band_durable, (returned, gap, full))| {
            Progress {
                ownership: Epoch(ownership),
                received: Sequence(received),
                durable: Sequence(durable),
                out_of_band_received,
                out_of_band_durable,
                returned,
                gap,
                full,
            }
        },
    )
}

fn histories() -> impl Strategy<Value = History> {
    let some = |most: usize| prop::collection::btree_map(counts(), owners(), 0..=most);
    // Few, for the most part: what is damaged should be something else, too.
    let claims = prop_oneof![7 => some(3), 1 => some(MOST_CLAIMS)];
    claims.prop_map(|claims| {
        let claims = claims.into_iter().map(|(epoch, owner)| Claim::of(Epoch(epoch), owner));
        History::of(claims.collect()).expect("they rise")
    })
}

fn to_replica() -> impl Strategy<Value = ToReplica<Vec<u32>>> {
    let blocks = ranges(8192).prop_map(|range| (range.start, (range.end - range.start) as u32));
    prop_oneof![
        (0..MOST_COUNT, histories())
            .prop_map(|(epoch, history)| ToReplica::Hello { member_since: Epoch(epoch), history }),
        (0..MOST_COUNT, histories(), any::<bool>()).prop_map(|(epoch, history, salvage)| ToReplica::Seal {
            member_since: Epoch(epoch),
            history,
            salvage
        }),
        (counts(), numbers(), counts(), entries()).prop_map(|(o, s, m, entry)| ToReplica::Entry {
            ownership: Epoch(o),
            sequence: Sequence(s),
            commit_point: Sequence(m),
            entry
        }),
        (numbers(), positions(), entries()).prop_map(|(number, position, entry)| ToReplica::OutOfBand {
            number,
            position,
            entry
        }),
        (counts(), counts(), any::<u64>(), counts()).prop_map(|(o, m, asked, keep)| ToReplica::Heartbeat {
            ownership: Epoch(o),
            commit_point: Sequence(m),
            asked: Moment(asked),
            keep: Epoch(keep),
        }),
        (jobs(), blocks, any::<bool>()).prop_map(|(job, (block, blocks), again)| ToReplica::Read {
            job,
            block,
            blocks,
            again
        }),
        (jobs(), ranges(u64::from(u32::MAX))).prop_map(|(job, range)| ToReplica::Map {
            job,
            block: range.start,
            blocks: (range.end - range.start) as u32,
        }),
        (jobs(), numbers(), any::<bool>()).prop_map(|(job, number, again)| ToReplica::Fetch {
            job,
            number,
            again
        }),
        (counts(), numbers(), any::<bool>()).prop_map(|(o, from, empty)| ToReplica::Return {
            ownership: Epoch(o),
            from: Sequence(from),
            empty
        }),
        (jobs(), counts(), 0..=MOST_BLOCKS).prop_map(|(job, since, from)| ToReplica::Changed {
            job,
            since: Epoch(since),
            from
        }),
        Just(ToReplica::Joined),
        Just(ToReplica::Remember),
        Just(ToReplica::Release),
        Just(ToReplica::Probe),
    ]
}

fn to_owner() -> impl Strategy<Value = ToOwner<Vec<u32>>> {
    let lists = || vec(ranges(MOST_BLOCKS), 0..9);
    let contents = prop_oneof![
        checksums().prop_map(|data| Ok(Content::Data(Payload { data, first: 0 }))),
        (checksums(), any::<Vec<bool>>()).prop_map(|(data, holes)| {
            let holes = (0..data.len() as u32).filter(|at| holes.get(*at as usize) == Some(&true));
            // No two touch.
            let holes = holes.filter(|at| at % 2 == 0).map(|at| at..at + 1).collect();
            Ok(Content::Sparse(Payload { data, first: 0 }, holes))
        }),
        Just(Ok(Content::Nothing)),
        Just(Err(Corrupt)),
    ];
    prop_oneof![
        progresses().prop_map(ToOwner::Welcome),
        (positions(), positions(), any::<bool>(), vec(mentions(), 0..9)).prop_map(
            |(commit_point, end, full, above)| ToOwner::Sealed(SealReport { commit_point, end, full, above })
        ),
        progresses().prop_map(ToOwner::Durable),
        (any::<u64>(), any::<bool>(), progresses()).prop_map(|(asked, granted, progress)| {
            ToOwner::Alive { asked: Moment(asked), granted, progress }
        }),
        (jobs(), contents).prop_map(|(job, content)| ToOwner::Data { job, content }),
        (jobs(), vec((ranges(MOST_BLOCKS), any::<bool>()), 0..9), 0..=MOST_BLOCKS).prop_map(
            |(job, ranges, until)| {
                let ranges =
                    ranges.into_iter().map(|(blocks, zeroes)| Allocated { blocks, zeroes }).collect();
                ToOwner::Mapped { job, map: Map { ranges, until } }
            }
        ),
        (positions(), lists()).prop_map(|(after, ranges)| ToOwner::Listed { after, ranges }),
        (jobs(), lists(), prop::option::of(0..=MOST_BLOCKS))
            .prop_map(|(job, ranges, next)| ToOwner::Changed { job, ranges, next }),
        promises().prop_map(ToOwner::Refused),
        Just(ToOwner::Stranger),
        Just(ToOwner::Failed),
        Just(ToOwner::Damaged),
        ranges(1).prop_map(|range| ToOwner::Corrupt { block: range.start }),
        (promises(), any::<u64>()).prop_map(|(promise, quiet_ns)| ToOwner::Probed { promise, quiet_ns }),
    ]
}

/// Every message of both directions.
pub(crate) fn messages() -> impl Strategy<Value = Message> {
    let down = (any::<(u64, u64)>(), owners(), counts(), any::<(u64, u64)>(), to_replica()).prop_map(
        |((volume, replica), owner, epoch, (session, process), message)| {
            let (volume, replica) = (VolumeId(volume), ReplicaId(replica));
            let (epoch, process) = (Epoch(epoch), Incarnation(process));
            Message::ToReplica(FromOwner { volume, replica, owner, epoch, session, process }, message)
        },
    );
    let up = (any::<(u64, u64)>(), owners(), any::<(u64, u64)>(), to_owner()).prop_map(
        |((volume, replica), owner, (session, process), message)| {
            let (volume, replica) = (VolumeId(volume), ReplicaId(replica));
            let process = Incarnation(process);
            Message::ToOwner(FromReplica { volume, replica, process, owner, session }, message)
        },
    );
    prop_oneof![down, up]
}

fn layouts() -> impl Strategy<Value = Layout> {
    (1..=12u32, 1..1000u64, 1..1000u64).prop_map(|(stripes, unit, units)| {
        // The unit of one stripe does not matter, and is not kept.
        let unit = if stripes == 1 { unit * units } else { unit };
        let group = if stripes == 1 { unit } else { unit * units };
        Layout::new(stripes, unit, group).expect("such a layout")
    })
}

/// Records that are not broken.
pub(crate) fn records() -> impl Strategy<Value = Record> {
    let proposals = (owners(), counts()).prop_map(|(by, number)| ProposalId { by, number });
    // Of each replica: whether it is in sync, its distance to the one before, its node, when it departed, what it had.
    let replicas = vec((any::<bool>(), 1..1u64 << 40, any::<u32>(), counts(), positions()), 1..4);
    let sized = (layouts(), 0..30u64, any::<u64>()).prop_map(|(layout, spans, more)| {
        let span = layout.blocks_in(GroupIndex(0), u64::MAX) * u64::from(layout.groups(1).unwrap());
        (layout, (spans * span + more % span) % (3 * span))
    });
    let heads = (counts(), proposals, owners(), any::<bool>(), counts(), any::<(u64, u32)>());
    let all = (heads, sized, vec(replicas, 40), any::<bool>(), histories());
    all.prop_map(|(head, (layout, blocks), all, spare, history)| {
        let (epoch, made_by, owner, active, attachment, (lease_ns, least)) = head;
        let count = layout.groups(blocks).expect("a small volume") as usize;
        let (mut homes, mut last) = (BTreeMap::new(), 0u64);
        let mut groups = Vec::new();
        for replicas in all.iter().take(count) {
            let (mut in_sync, mut since, mut departed) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
            for (sync, distance, node, left, had) in replicas {
                last += distance;
                homes.insert(ReplicaId(last), NodeId(*node));
                if *sync || in_sync.is_empty() {
                    in_sync.insert(ReplicaId(last));
                    if left % 2 == 1 && epoch > 0 {
                        since.insert(ReplicaId(last), Epoch(1 + left % epoch));
                    }
                } else {
                    let epoch = Epoch(left % (epoch + 1));
                    departed.insert(ReplicaId(last), Departed { epoch, had: *had });
                }
            }
            let recovered = Epoch(replicas[0].3 % (epoch + 1));
            groups.push(Group { in_sync, since, departed, recovered });
        }
        if spare {
            homes.insert(ReplicaId(u64::MAX), NodeId(0));
        }
        let state = if active { RecordState::Active } else { RecordState::TakingOver };
        let epoch = Epoch(epoch);
        let fence = attachment / 2;
        Record {
            epoch,
            made_by,
            owner,
            state,
            attachment,
            fence,
            lease_ns,
            blocks,
            layout,
            least,
            history: History::of(
                history.claims().iter().filter(|claim| claim.epoch <= epoch).copied().collect(),
            )
            .expect("they rise"),
            homes,
            groups,
        }
    })
}

/// A log record and the checksums of its data.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Logged {
    pub(crate) record: LogRecord,
    pub(crate) checksums: Vec<u32>,
}

impl Logged {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = vec![0xee; log::header_length(self.checksums.len())];
        log::encode(&self.record, KEY, self.checksums.iter().copied(), &mut out).expect("it can be written");
        out
    }
}

/// Records of this replica, group, and generation.
pub(crate) fn logged(
    replica: ReplicaId,
    group: GroupIndex,
    generation: u64,
) -> impl Strategy<Value = Logged> {
    let changes = (positions(), any::<bool>(), entries());
    let heads = (numbers(), any::<u64>(), positions(), counts());
    let records = (heads, any::<bool>(), prop::option::weighted(0.8, changes));
    records.prop_map(move |((number, synced, commit_point, epoch), wraps, change)| {
        let mut checksums = Vec::new();
        let what = match change {
            Some((mut position, sequenced, entry)) => {
                if let EntryOp::Data(payload) = &entry.op {
                    checksums.clone_from(&payload.data);
                }
                if sequenced {
                    position.sequence.0 = position.sequence.0.max(1);
                }
                Recorded::Entry(Change { position, sequenced, entry: stripped(&entry) })
            }
            None if wraps => Recorded::Wrap,
            None => Recorded::CommitPoint,
        };
        let (epoch, synced) = (Epoch(epoch), synced % number);
        let record = LogRecord { replica, group, generation, number, synced, commit_point, epoch, what };
        Logged { record, checksums }
    })
}
