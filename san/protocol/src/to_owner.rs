//! The messages of a replica, as bytes: a body for each kind.

use std::ops::Range;

use loadline_san_core::lease::Moment;
use loadline_san_core::map::Map;
use loadline_san_core::message::{Content, Corrupt, FromReplica, Payload, SealReport, ToOwner};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::field::{FieldError, Wire, data_blocks, flag, require};
use crate::header::{
    ClusterId, DecodeError, MOST_MENTIONS, MOST_RANGES, Writer, empty, header_from_replica, same_count,
    whole, with_table,
};
use crate::kind::Kind;
use crate::part::{
    AllocatedBytes, JobBytes, MentionBytes, NOWHERE, PositionBytes, ProgressBytes, PromiseBytes, RangeBytes,
    place,
};

/// What a sealed replica has: 36 bytes. What its log has above its commit point follows.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SealedBody {
    /// Up to here all is acknowledged.
    pub commit_point: PositionBytes,
    /// Up to here its log has everything.
    pub end: PositionBytes,
    /// 1 if its device is full, else 0.
    pub full: U32,
}

impl Wire for SealedBody {
    fn check(&self) -> Result<(), FieldError> {
        flag("whether a device is full", self.full)?;
        self.commit_point.check()?;
        self.end.check()
    }
}

/// Answer to a heartbeat: 56 bytes.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct AliveBody {
    /// When it was asked: nanoseconds of the owner's clock, as the request has it.
    pub asked_ns: U64,
    /// 1 if it grants a lease, else 0.
    pub granted: U32,
    /// How far it is.
    pub progress: ProgressBytes,
}

impl Wire for AliveBody {
    fn check(&self) -> Result<(), FieldError> {
        flag("the grant of a lease", self.granted)?;
        self.progress.check()
    }
}

const HERE: u32 = 1;
const NOTHING: u32 = 2;
const CORRUPT: u32 = 3;
const SPARSE: u32 = 4;

/// What is in blocks: 16 bytes. The checksums of the data follow; and if it is sparse, 4 bytes for each 32 blocks or part of
/// them, whose bits, from the lowest on, say of each block whether it is a hole.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DataBody {
    /// The value of the request that this answers.
    pub job: JobBytes,
    /// 1 if it is the payload, 2 if it is nothing, 3 if the checksum does not match, 4 if it is the payload and has holes.
    pub content: U32,
}

impl Wire for DataBody {
    fn check(&self) -> Result<(), FieldError> {
        let holds = (HERE..=SPARSE).contains(&self.content.get());
        require(holds, "what is in blocks", self.content, "must be 1 to 4")
    }
}

/// Answer to a return: 16 bytes. The ranges follow.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ListedBody {
    /// It gets the entries after this one.
    pub after: PositionBytes,
}

impl Wire for ListedBody {
    fn check(&self) -> Result<(), FieldError> {
        self.after.check()
    }
}

/// Which blocks have changed: 20 bytes. The ranges follow.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ChangedIsBody {
    /// The value of the request that this answers.
    pub job: JobBytes,
    /// The block to ask on from; [`NOWHERE`] if these are all.
    pub next: U64,
}

impl Wire for ChangedIsBody {
    fn check(&self) -> Result<(), FieldError> {
        if self.next == NOWHERE { Ok(()) } else { place("the block to ask on from", self.next.get()) }
    }
}

/// What blocks hold: 20 bytes. The allocated ranges follow.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct MappedBody {
    /// The value of the request that this answers.
    pub job: JobBytes,
    /// The first block that is not described.
    pub until: U64,
}

impl Wire for MappedBody {
    fn check(&self) -> Result<(), FieldError> {
        place("the end of a map", self.until.get())
    }
}

/// Answer to a probe: 28 bytes.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ProbedBody {
    /// The owner that it follows.
    pub promise: PromiseBytes,
    /// Nanoseconds since it last granted a lease or was asked to be sealed.
    pub quiet_ns: U64,
}

impl Wire for ProbedBody {
    fn check(&self) -> Result<(), FieldError> {
        self.promise.check()
    }
}

/// A block that does not match its checksum: 8 bytes.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CorruptBody {
    /// Which, in the group.
    pub block: U64,
}

impl Wire for CorruptBody {
    fn check(&self) -> Result<(), FieldError> {
        place("the block that is corrupt", self.block.get())
    }
}

/// A message of a replica, where it lies in a buffer.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "each is the message of that name in core")]
pub enum ToOwnerBody<'a> {
    Welcome(&'a ProgressBytes),
    Sealed(&'a SealedBody, &'a [MentionBytes]),
    Durable(&'a ProgressBytes),
    Alive(&'a AliveBody),
    Data(&'a DataBody, &'a [U32]),
    Mapped(&'a MappedBody, &'a [AllocatedBytes]),
    Listed(&'a ListedBody, &'a [RangeBytes]),
    Changed(&'a ChangedIsBody, &'a [RangeBytes]),
    Refused(&'a PromiseBytes),
    Stranger,
    Failed,
    Damaged,
    Probed(&'a ProbedBody),
    Corrupt(&'a CorruptBody),
}

/// Blocks of data in a table of so many numbers, of which there is one for each block and one for each 32 of them.
fn blocks_of(table: usize) -> usize {
    table * 32 / 33
}

/// Runs of bits that are set.
fn holes_in(words: &[U32]) -> Vec<Range<u32>> {
    let bits =
        (0..words.len() as u32 * 32).filter(|bit| words[*bit as usize / 32].get() >> (bit % 32) & 1 == 1);
    let mut holes: Vec<Range<u32>> = Vec::new();
    for bit in bits {
        match holes.last_mut().filter(|last| last.end == bit) {
            Some(last) => last.end += 1,
            None => holes.push(bit..bit + 1),
        }
    }
    holes
}

fn hole_within(end: u32, blocks: usize) -> Result<(), FieldError> {
    require(end as usize <= blocks, "the end of a hole", end, "must not be beyond the blocks")
}

/// A bit for each of so many blocks, set in holes.
fn words_of(holes: &[Range<u32>], blocks: usize) -> Result<Vec<U32>, FieldError> {
    let mut words = vec![0u32; blocks.div_ceil(32)];
    for hole in holes {
        hole_within(hole.end, blocks)?;
        hole.clone().for_each(|bit| words[bit as usize / 32] |= 1 << (bit % 32));
    }
    Ok(words.into_iter().map(U32::new).collect())
}

fn mentions(count: usize) -> Result<(), FieldError> {
    require(count <= MOST_MENTIONS, "the entries of a report", count as u64, "must be at most 1048576")
}

fn ranges(count: usize) -> Result<(), FieldError> {
    require(count <= MOST_RANGES, "the ranges of a list", count as u64, "must be at most 65536")
}

impl<'a> ToOwnerBody<'a> {
    pub(crate) fn decode(kind: Kind, bytes: &'a [u8]) -> Result<Self, DecodeError> {
        match kind {
            Kind::Welcome => whole(kind, bytes).map(Self::Welcome),
            Kind::Sealed => {
                let (body, above) = with_table::<SealedBody, MentionBytes>(kind, bytes)?;
                mentions(above.len())?;
                Ok(Self::Sealed(body, above))
            }
            Kind::Durable => whole(kind, bytes).map(Self::Durable),
            Kind::Alive => whole(kind, bytes).map(Self::Alive),
            Kind::Data => {
                let (body, checksums) = with_table::<DataBody, U32>(kind, bytes)?;
                let blocks = blocks_of(checksums.len());
                match body.content.get() {
                    HERE => data_blocks("the blocks of an answer", checksums.len() as u64)?,
                    SPARSE => {
                        data_blocks("the blocks of an answer", blocks as u64)?;
                        same_count(kind, checksums.len(), (blocks + blocks.div_ceil(32)) as u32)?;
                        let end = holes_in(&checksums[blocks..]).last().map_or(0, |last| last.end);
                        hole_within(end, blocks)?;
                    }
                    _ => same_count(kind, checksums.len(), 0)?,
                }
                Ok(Self::Data(body, checksums))
            }
            Kind::Mapped => {
                let (body, list) = with_table::<MappedBody, AllocatedBytes>(kind, bytes)?;
                ranges(list.len())?;
                Ok(Self::Mapped(body, list))
            }
            Kind::Listed => {
                let (body, list) = with_table::<ListedBody, RangeBytes>(kind, bytes)?;
                ranges(list.len())?;
                Ok(Self::Listed(body, list))
            }
            Kind::ChangedIs => {
                let (body, list) = with_table::<ChangedIsBody, RangeBytes>(kind, bytes)?;
                ranges(list.len())?;
                Ok(Self::Changed(body, list))
            }
            Kind::Refused => whole(kind, bytes).map(Self::Refused),
            Kind::Stranger => empty(kind, bytes).map(|()| Self::Stranger),
            Kind::Failed => empty(kind, bytes).map(|()| Self::Failed),
            Kind::Damaged => empty(kind, bytes).map(|()| Self::Damaged),
            Kind::Probed => whole(kind, bytes).map(Self::Probed),
            Kind::Corrupt => whole(kind, bytes).map(Self::Corrupt),
            _ => Err(DecodeError::Kind { stated: kind.code() }),
        }
    }

    /// The checksums of the payload's blocks.
    pub fn checksums(&self) -> &'a [U32] {
        match self {
            Self::Data(body, table) if body.content == SPARSE => &table[..blocks_of(table.len())],
            Self::Data(_, checksums) => checksums,
            _ => &[],
        }
    }

    /// As core has it. If there is a payload, its handle is asked for; the data is to begin with its buffer.
    pub fn message<D>(&self, data: impl FnOnce() -> D) -> ToOwner<D> {
        match self {
            Self::Welcome(progress) => ToOwner::Welcome(progress.get()),
            Self::Sealed(body, above) => ToOwner::Sealed(SealReport {
                commit_point: body.commit_point.get(),
                end: body.end.get(),
                full: body.full == 1,
                above: above.iter().map(MentionBytes::get).collect(),
            }),
            Self::Durable(progress) => ToOwner::Durable(progress.get()),
            Self::Alive(body) => ToOwner::Alive {
                asked: Moment(body.asked_ns.get()),
                granted: body.granted == 1,
                progress: body.progress.get(),
            },
            Self::Data(body, table) => {
                let content = match body.content.get() {
                    HERE => Ok(Content::Data(Payload { data: data(), first: 0 })),
                    SPARSE => {
                        let holes = holes_in(&table[blocks_of(table.len())..]);
                        Ok(Content::Sparse(Payload { data: data(), first: 0 }, holes))
                    }
                    NOTHING => Ok(Content::Nothing),
                    // There is no other: it was checked when it was decoded.
                    _ => Err(Corrupt),
                };
                ToOwner::Data { job: body.job.get(), content }
            }
            Self::Mapped(body, list) => ToOwner::Mapped {
                job: body.job.get(),
                map: Map { ranges: list.iter().map(AllocatedBytes::get).collect(), until: body.until.get() },
            },
            Self::Listed(body, list) => ToOwner::Listed {
                after: body.after.get(),
                ranges: list.iter().map(RangeBytes::get).collect(),
            },
            Self::Changed(body, list) => ToOwner::Changed {
                job: body.job.get(),
                ranges: list.iter().map(RangeBytes::get).collect(),
                next: (body.next != NOWHERE).then_some(body.next.get()),
            },
            Self::Refused(promise) => ToOwner::Refused(promise.get()),
            Self::Stranger => ToOwner::Stranger,
            Self::Failed => ToOwner::Failed,
            Self::Damaged => ToOwner::Damaged,
            Self::Corrupt(body) => ToOwner::Corrupt { block: body.block.get() },
            Self::Probed(body) => {
                ToOwner::Probed { promise: body.promise.get(), quiet_ns: body.quiet_ns.get() }
            }
        }
    }
}

/// Adds the frame of a message to bytes. The checksums of the data are asked for, one for each block that is answered;
/// the blocks themselves are to be written after the frame. What it refuses leaves the bytes as they were.
pub fn encode_to_owner<'m, D>(
    cluster: ClusterId,
    from: &FromReplica,
    message: &'m ToOwner<D>,
    checksums: impl FnOnce(&'m Payload<D>) -> &'m [u32],
    out: &mut Vec<u8>,
) -> Result<(), FieldError> {
    Writer::frame(out, header_from_replica(cluster, from), |frame| match message {
        ToOwner::Welcome(progress) => {
            frame.part(&ProgressBytes::from(progress))?;
            Ok(Kind::Welcome)
        }
        ToOwner::Sealed(SealReport { commit_point, end, full, above }) => {
            mentions(above.len())?;
            let full = u32::from(*full).into();
            frame.part(&SealedBody { commit_point: (*commit_point).into(), end: (*end).into(), full })?;
            above.iter().try_for_each(|mention| frame.part(&MentionBytes::from(mention)))?;
            Ok(Kind::Sealed)
        }
        ToOwner::Durable(progress) => {
            frame.part(&ProgressBytes::from(progress))?;
            Ok(Kind::Durable)
        }
        ToOwner::Alive { asked, granted, progress } => {
            let (asked_ns, granted) = (asked.0.into(), u32::from(*granted).into());
            frame.part(&AliveBody { asked_ns, granted, progress: progress.into() })?;
            Ok(Kind::Alive)
        }
        ToOwner::Data { job, content } => {
            let code = match content {
                Ok(Content::Data(_)) => HERE,
                Ok(Content::Sparse(..)) => SPARSE,
                Ok(Content::Nothing) => NOTHING,
                Err(Corrupt) => CORRUPT,
            };
            frame.part(&DataBody { job: (*job).into(), content: code.into() })?;
            if let Ok(Content::Data(payload) | Content::Sparse(payload, _)) = content {
                let checksums = checksums(payload);
                frame.checksums(checksums, checksums.len())?;
                if let Ok(Content::Sparse(_, holes)) = content {
                    let words = words_of(holes, checksums.len())?;
                    words.iter().try_for_each(|word| frame.part(word))?;
                }
            }
            Ok(Kind::Data)
        }
        ToOwner::Mapped { job, map: Map { ranges: list, until } } => {
            ranges(list.len())?;
            place("the end of a map", *until)?;
            frame.part(&MappedBody { job: (*job).into(), until: (*until).into() })?;
            list.iter().try_for_each(|range| frame.part(&AllocatedBytes::from(range)))?;
            Ok(Kind::Mapped)
        }
        ToOwner::Listed { after, ranges: list } => {
            ranges(list.len())?;
            frame.part(&ListedBody { after: (*after).into() })?;
            list.iter().try_for_each(|range| frame.part(&RangeBytes::from(range)))?;
            Ok(Kind::Listed)
        }
        ToOwner::Changed { job, ranges: list, next } => {
            ranges(list.len())?;
            if let Some(next) = next {
                place("the block to ask on from", *next)?;
            }
            frame.part(&ChangedIsBody { job: (*job).into(), next: next.unwrap_or(NOWHERE).into() })?;
            list.iter().try_for_each(|range| frame.part(&RangeBytes::from(range)))?;
            Ok(Kind::ChangedIs)
        }
        ToOwner::Refused(promise) => {
            frame.part(&PromiseBytes::from(promise))?;
            Ok(Kind::Refused)
        }
        ToOwner::Stranger => Ok(Kind::Stranger),
        ToOwner::Failed => Ok(Kind::Failed),
        ToOwner::Damaged => Ok(Kind::Damaged),
        ToOwner::Corrupt { block } => {
            place("the block that is corrupt", *block)?;
            frame.part(&CorruptBody { block: (*block).into() })?;
            Ok(Kind::Corrupt)
        }
        ToOwner::Probed { promise, quiet_ns } => {
            frame.part(&ProbedBody { promise: promise.into(), quiet_ns: (*quiet_ns).into() })?;
            Ok(Kind::Probed)
        }
    })
}
