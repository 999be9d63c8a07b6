//! A volume's record as bytes, for the configuration store.
//!
//! ```text
//! head │ claims: epoch, owner │ homes: replica, node │ groups: counts, recovered │ in sync: replica, since │ departed: replica, epoch, had
//! ```
//!
//! The last two are those of the first group, then those of the second, and so on. All lists rise, so a record has one
//! form as bytes. Magic, checksum, length and version stay where they are in every version, so that a program believes
//! what a newer one wrote to be newer, and not damaged.

use std::collections::{BTreeMap, BTreeSet};

use loadline_san_core::ids::{Epoch, Incarnation, NodeId, Owner, ProposalId, ReplicaId};
use loadline_san_core::layout::{Layout, LayoutError, MOST_BLOCKS};
use loadline_san_core::record::{Departed, Group, Record, RecordState};
use thiserror::Error;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::field::{FieldError, Wire, count, require};
use crate::part::{ClaimBytes, PositionBytes, history};

/// The version of records that this program writes. There is no other yet.
pub const RECORD_VERSION: u16 = 1;
/// What a record begins with.
pub const MAGIC: [u8; 8] = *b"LLvolume";
/// The most bytes of a record: etcd takes no request above 1.5 MiB unless told otherwise ("System limits").
pub const MOST_RECORD: usize = 1 << 20;

const TAKING_OVER: u16 = 1;
const ACTIVE: u16 = 2;
/// Where the checksum begins to count: behind itself.
const COVERED: usize = 12;

/// What a record of every version begins with: 18 bytes.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Begin {
    magic: [u8; 8],
    crc: U32,
    /// Bytes of all.
    length: U32,
    version: U16,
}

/// What a record of this version begins with: 136 bytes.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Head {
    begin: Begin,
    /// 1 takes over, 2 is active.
    state: U16,
    epoch: U64,
    by_node: U32,
    by_incarnation: U64,
    proposal: U64,
    owner_node: U32,
    owner_incarnation: U64,
    attachment: U64,
    fence: U64,
    lease_ns: U64,
    blocks: U64,
    stripes: U32,
    /// Of one stripe, the size of a group.
    unit_blocks: U64,
    group_blocks: U64,
    least: U32,
    claims: U32,
    homes: U32,
    groups: U32,
    in_sync: U32,
    departed: U32,
}

const HEAD: usize = size_of::<Head>();
const _: () = assert!(HEAD == 136 && MOST_RECORD == 1_048_576);

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Home {
    replica: U64,
    node: U32,
}

/// How many replicas of a group are in which list, and what is known of the group.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Counts {
    in_sync: U32,
    departed: U32,
    /// The epoch of its last recovery by force; 0 if there was none.
    recovered: U64,
}

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Member {
    replica: U64,
    /// What it had promised when it became one; 0 if that is not known.
    since: U64,
}

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DepartedBytes {
    replica: U64,
    epoch: U64,
    /// It had everything up to here.
    had: PositionBytes,
}

/// Why bytes are no record that can be used, or a record cannot be written.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RecordFault {
    /// It ends too early.
    #[error(
        "a volume's record has {got} bytes, and needs {needed}: it was cut; restore it from a backup of the store"
    )]
    Truncated {
        /// Bytes that it needs, as far as is known.
        needed: usize,
        /// Bytes that are there.
        got: usize,
    },
    /// It is something else.
    #[error(
        "this is no record of a volume: the key in the store is used by something else; find out by what"
    )]
    NotARecord,
    /// It has changed.
    #[error(
        "a volume's record states checksum {stated:#010x}, and has {is:#010x}: restore it from a backup of the store"
    )]
    Corrupt {
        /// The value that is stored.
        stated: u32,
        /// What it has.
        is: u32,
    },
    /// This program is too old for it.
    #[error(
        "a volume's record of version {stated} was written by a newer Loadline, and this one knows {ours}: upgrade this node"
    )]
    Newer {
        /// The value that is stored.
        stated: u16,
        /// What this program knows.
        ours: u16,
    },
    /// A length that the counts contradict.
    #[error("a volume's record states {stated} bytes, and its counts {right}: report it, with the record")]
    Length {
        /// Bytes that the record states, or that there are.
        stated: u64,
        /// Bytes, by the counts.
        right: u64,
    },
    /// A value that cannot be.
    #[error("in a volume's record, {0}: report it, with the record")]
    Field(#[from] FieldError),
    /// A layout that cannot be.
    #[error("in a volume's record: {0}: report it, with the record")]
    Layout(#[from] LayoutError),
    /// It breaks what every record keeps.
    #[error("a volume's record cannot be: {0}: report it, with the record")]
    Broken(String),
}

/// A record as bytes. What cannot be read is not written.
pub fn encode(record: &Record) -> Result<Vec<u8>, RecordFault> {
    record.broken().map_or(Ok(()), |why| Err(RecordFault::Broken(why)))?;
    let layout = &record.layout;
    let all = |of: fn(&Group) -> usize| record.groups.iter().map(of).sum::<usize>();
    let (in_sync, departed) = (all(|g| g.in_sync.len()), all(|g| g.departed.len()));
    let claims = record.history.claims();
    let length = HEAD
        + claims.len() * size_of::<ClaimBytes>()
        + record.homes.len() * size_of::<Home>()
        + record.groups.len() * size_of::<Counts>()
        + in_sync * size_of::<Member>()
        + departed * size_of::<DepartedBytes>();
    check_length(length)?;
    // What is in a record is no more than its length, which fits.
    let short = |count: usize| U32::new(count as u32);
    let mut head = Head {
        begin: Begin {
            magic: MAGIC,
            length: short(length),
            version: RECORD_VERSION.into(),
            ..Begin::new_zeroed()
        },
        state: match record.state {
            RecordState::TakingOver => TAKING_OVER,
            RecordState::Active => ACTIVE,
        }
        .into(),
        epoch: record.epoch.0.into(),
        by_node: record.made_by.by.node.0.into(),
        by_incarnation: record.made_by.by.incarnation.0.into(),
        proposal: record.made_by.number.into(),
        owner_node: record.owner.node.0.into(),
        owner_incarnation: record.owner.incarnation.0.into(),
        attachment: record.attachment.into(),
        fence: record.fence.into(),
        lease_ns: record.lease_ns.into(),
        blocks: record.blocks.into(),
        stripes: layout.stripes().into(),
        unit_blocks: layout.unit().into(),
        group_blocks: layout.group().into(),
        least: record.least.into(),
        claims: short(claims.len()),
        homes: short(record.homes.len()),
        groups: short(record.groups.len()),
        in_sync: short(in_sync),
        departed: short(departed),
    };
    head.check()?;
    let mut out = Vec::with_capacity(length);
    out.extend_from_slice(head.as_bytes());
    for claim in claims.iter().map(ClaimBytes::from) {
        claim.check()?;
        out.extend_from_slice(claim.as_bytes());
    }
    for (replica, node) in &record.homes {
        out.extend_from_slice(Home { replica: replica.0.into(), node: node.0.into() }.as_bytes());
    }
    for Group { in_sync, departed, recovered, .. } in &record.groups {
        let (in_sync, departed) = (short(in_sync.len()), short(departed.len()));
        let counts = Counts { in_sync, departed, recovered: recovered.0.into() };
        out.extend_from_slice(counts.as_bytes());
    }
    for group in &record.groups {
        for replica in &group.in_sync {
            let since = group.member_since(*replica).0.into();
            out.extend_from_slice(Member { replica: replica.0.into(), since }.as_bytes());
        }
    }
    for (replica, Departed { epoch, had }) in record.groups.iter().flat_map(|group| &group.departed) {
        let (replica, epoch, had) = (replica.0.into(), epoch.0.into(), PositionBytes::from(*had));
        had.check()?;
        out.extend_from_slice(DepartedBytes { replica, epoch, had }.as_bytes());
    }
    head.begin.crc = loadline_base::crc::crc32c(&out[COVERED..]).into();
    out[..HEAD].copy_from_slice(head.as_bytes());
    Ok(out)
}

/// The record that these bytes are, all of them.
pub fn decode(bytes: &[u8]) -> Result<Record, RecordFault> {
    let got = bytes.len();
    let truncated = |needed| RecordFault::Truncated { needed, got };
    let (begin, _) = Begin::ref_from_prefix(bytes).map_err(|_| truncated(size_of::<Begin>()))?;
    if begin.magic != MAGIC {
        return Err(RecordFault::NotARecord);
    }
    let length = begin.length.get() as usize;
    let holds = length >= size_of::<Begin>();
    require(holds, "the length", begin.length, "must be at least 18")?;
    let covered = bytes.get(COVERED..length).ok_or(truncated(length))?;
    let (stated, is) = (begin.crc.get(), loadline_base::crc::crc32c(covered));
    if stated != is {
        return Err(RecordFault::Corrupt { stated, is });
    }
    let version = begin.version.get();
    if version > RECORD_VERSION {
        return Err(RecordFault::Newer { stated: version, ours: RECORD_VERSION });
    }
    check_length(length)?;
    let (head, rest) = Head::ref_from_prefix(bytes).map_err(|_| truncated(HEAD))?;
    head.check()?;
    let many = |count: U32, size: usize| u64::from(count.get()) * size as u64;
    let right = HEAD as u64
        + many(head.claims, size_of::<ClaimBytes>())
        + many(head.homes, size_of::<Home>())
        + many(head.groups, size_of::<Counts>())
        + many(head.in_sync, size_of::<Member>())
        + many(head.departed, size_of::<DepartedBytes>());
    if right != got as u64 || length != got {
        return Err(RecordFault::Length { stated: got as u64, right });
    }
    let (claims, rest) = table::<ClaimBytes>(rest, head.claims).ok_or(truncated(length))?;
    let (homes, rest) = table::<Home>(rest, head.homes).ok_or(truncated(length))?;
    let (groups, rest) = table::<Counts>(rest, head.groups).ok_or(truncated(length))?;
    let (in_sync, rest) = table::<Member>(rest, head.in_sync).ok_or(truncated(length))?;
    let (departed, _) = table::<DepartedBytes>(rest, head.departed).ok_or(truncated(length))?;
    rising("a replica with a home", homes.iter().map(|home| home.replica))?;

    let record = Record {
        epoch: Epoch(head.epoch.get()),
        made_by: ProposalId { by: owner(head.by_node, head.by_incarnation), number: head.proposal.get() },
        owner: owner(head.owner_node, head.owner_incarnation),
        state: if head.state.get() == ACTIVE { RecordState::Active } else { RecordState::TakingOver },
        attachment: head.attachment.get(),
        fence: head.fence.get(),
        lease_ns: head.lease_ns.get(),
        blocks: head.blocks.get(),
        layout: Layout::new(head.stripes.get(), head.unit_blocks.get(), head.group_blocks.get())?,
        least: head.least.get(),
        history: history(claims)?,
        homes: homes.iter().map(|h| (ReplicaId(h.replica.get()), NodeId(h.node.get()))).collect(),
        groups: split(groups, in_sync, departed)?,
    };
    record.broken().map_or(Ok(record), |why| Err(RecordFault::Broken(why)))
}

fn owner(node: U32, incarnation: U64) -> Owner {
    Owner { node: NodeId(node.get()), incarnation: Incarnation(incarnation.get()) }
}

impl DepartedBytes {
    fn get(&self) -> Departed {
        Departed { epoch: Epoch(self.epoch.get()), had: self.had.get() }
    }
}

impl Head {
    fn check(&self) -> Result<(), FieldError> {
        require(self.begin.version == RECORD_VERSION, "the version", self.begin.version, "must be 1")?;
        let state = self.state.get();
        require((TAKING_OVER..=ACTIVE).contains(&state), "the state", state, "must be 1 or 2")?;
        count("the epoch", self.epoch)?;
        count("the number of the attachment", self.attachment)?;
        count("the number of the fence", self.fence)?;
        count("the number of the proposal", self.proposal)?;
        require(self.blocks <= MOST_BLOCKS, "the size in blocks", self.blocks, "must be at most 2^44")?;
        let whole = self.stripes != 1 || self.unit_blocks == self.group_blocks;
        require(whole, "the unit of one stripe", self.unit_blocks, "must be the size of a group")
    }
}

fn check_length(length: usize) -> Result<(), FieldError> {
    let rule = "must be 136 to 1048576: the volume has too many groups";
    require((HEAD..=MOST_RECORD).contains(&length), "the length", length as u64, rule)
}

fn table<T: FromBytes + KnownLayout + Immutable + Unaligned>(
    bytes: &[u8],
    count: U32,
) -> Option<(&[T], &[u8])> {
    <[T]>::ref_from_prefix_with_elems(bytes, count.get() as usize).ok()
}

/// Each is above the one before.
fn rising(what: &'static str, replicas: impl Iterator<Item = U64> + Clone) -> Result<(), FieldError> {
    for (one, next) in replicas.clone().zip(replicas.skip(1)) {
        require(one < next, what, next, "must be above the one before it")?;
    }
    Ok(())
}

/// Deals the lists to the groups.
fn split(
    groups: &[Counts],
    in_sync: &[Member],
    departed: &[DepartedBytes],
) -> Result<Vec<Group>, FieldError> {
    let (mut members, mut gone) = (in_sync, departed);
    let mut out = Vec::with_capacity(groups.len());
    for counts in groups {
        let few = |count: U32| FieldError {
            what: "the replicas of a group",
            value: count.into(),
            rule: "must be no more than the record has left",
        };
        let here = members.split_off(..counts.in_sync.get() as usize).ok_or(few(counts.in_sync))?;
        let away = gone.split_off(..counts.departed.get() as usize).ok_or(few(counts.departed))?;
        rising("a replica in sync", here.iter().map(|one| one.replica))?;
        rising("a replica that departed", away.iter().map(|one| one.replica))?;
        let in_sync: BTreeSet<_> = here.iter().map(|one| ReplicaId(one.replica.get())).collect();
        away.iter().try_for_each(|one| one.had.check())?;
        let departed: BTreeMap<_, _> =
            away.iter().map(|one| (ReplicaId(one.replica.get()), one.get())).collect();
        let known = here.iter().filter(|one| one.since.get() > 0);
        let since = known.map(|one| (ReplicaId(one.replica.get()), Epoch(one.since.get()))).collect();
        out.push(Group { in_sync, since, departed, recovered: Epoch(counts.recovered.get()) });
    }
    let left = members.len() + gone.len();
    require(left == 0, "the number of replicas in no group", left as u64, "must be 0")?;
    Ok(out)
}
