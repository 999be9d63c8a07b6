//! The messages of an owner, as bytes: a body for each kind.

use loadline_san_core::ids::{Epoch, Sequence};
use loadline_san_core::lease::Moment;
use loadline_san_core::message::{EntryOp, FromOwner, Payload, ToReplica};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::field::{FieldError, Wire, count, data_blocks, flag, number, span};
use crate::header::{
    ClusterId, DecodeError, Writer, empty, header_from_owner, same_count, whole, with_table,
};
use crate::kind::Kind;
use crate::part::{ClaimBytes, EntryBytes, JobBytes, PositionBytes, history, place};

/// The next entry: 40 bytes. The checksums of its data follow.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct EntryBody {
    /// Its ownership, and its number in it, from 1.
    pub position: PositionBytes,
    /// The last acknowledged number.
    pub commit_point: U64,
    /// What to do.
    pub entry: EntryBytes,
}

impl Wire for EntryBody {
    fn check(&self) -> Result<(), FieldError> {
        number("the number of an entry", self.position.sequence)?;
        self.position.check()?;
        count("a commit point", self.commit_point)?;
        self.entry.check()
    }
}

/// An entry outside of the sequence: 40 bytes. The checksums of its data follow.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct OutOfBandBody {
    /// Its number in the session, from 1.
    pub number: U64,
    /// Where it stands. Its number may be 0: a copy may be made before anything is acknowledged.
    pub position: PositionBytes,
    /// What to do.
    pub entry: EntryBytes,
}

impl Wire for OutOfBandBody {
    fn check(&self) -> Result<(), FieldError> {
        number("the number of an out-of-band entry", self.number)?;
        self.position.check()?;
        self.entry.check()
    }
}

/// The owner is alive, and requests a lease: 32 bytes.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct HeartbeatBody {
    /// The ownership of the commit point.
    pub ownership: U64,
    /// The last acknowledged number.
    pub commit_point: U64,
    /// When it was sent: nanoseconds of the owner's clock.
    pub asked_ns: U64,
    /// No replica has departed at a lower epoch.
    pub keep: U64,
}

impl Wire for HeartbeatBody {
    fn check(&self) -> Result<(), FieldError> {
        count("an ownership", self.ownership)?;
        count("a commit point", self.commit_point)?;
        count("an epoch", self.keep)
    }
}

/// What is in these blocks? 28 bytes.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ReadBody {
    /// Names the request: the answer carries the same value.
    pub job: JobBytes,
    /// How many: no more than an answer can have.
    pub blocks: U32,
    /// The first block, in the group.
    pub block: U64,
    /// 1 if it was sent before, else 0.
    pub again: U32,
}

impl Wire for ReadBody {
    fn check(&self) -> Result<(), FieldError> {
        let (block, blocks) = (self.block.get(), self.blocks.get());
        data_blocks("the blocks of a read", blocks)?;
        flag("whether a read was sent before", self.again)?;
        span(block, block.checked_add(u64::from(blocks)))
    }
}

/// What do these blocks hold? 24 bytes.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct MapBody {
    /// Names the request: the answer carries the same value.
    pub job: JobBytes,
    /// How many: at least one.
    pub blocks: U32,
    /// The first block, in the group.
    pub block: U64,
}

impl Wire for MapBody {
    fn check(&self) -> Result<(), FieldError> {
        let (block, blocks) = (self.block.get(), self.blocks.get());
        span(block, block.checked_add(u64::from(blocks)))
    }
}

/// What is in this entry of the log? 24 bytes.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct FetchBody {
    /// Names the request: the answer carries the same value.
    pub job: JobBytes,
    /// Its number in the log, from 1.
    pub number: U64,
    /// 1 if it was sent before, else 0.
    pub again: U32,
}

impl Wire for FetchBody {
    fn check(&self) -> Result<(), FieldError> {
        flag("whether a fetch was sent before", self.again)?;
        number("the number of an entry in a log", self.number)
    }
}

/// It is no member, and is to list what it may have: 20 bytes.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ReturnBody {
    /// The ownership.
    pub ownership: U64,
    /// The first entry that it will get, from 1.
    pub from: U64,
    /// 1 if it forgets everything that it has, else 0.
    pub empty: U32,
}

impl Wire for ReturnBody {
    fn check(&self) -> Result<(), FieldError> {
        count("an ownership", self.ownership)?;
        number("the first entry that a replica will get", self.from)?;
        flag("whether a replica forgets everything", self.empty)
    }
}

/// Which blocks have changed? 28 bytes.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ChangedBody {
    /// Names the request: the answer carries the same value.
    pub job: JobBytes,
    /// A block has changed if it was written under this epoch or a later one.
    pub since: U64,
    /// The first block of the group that the answer covers.
    pub from: U64,
}

impl Wire for ChangedBody {
    fn check(&self) -> Result<(), FieldError> {
        count("an epoch", self.since)?;
        place("the block to ask from", self.from.get())
    }
}

/// It opens a session: 8 bytes. The claims of the volume's history follow.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct HelloBody {
    /// What the replica had promised when it became a member; 0 if it is none.
    pub member_since: U64,
}

impl Wire for HelloBody {
    fn check(&self) -> Result<(), FieldError> {
        count("the epoch of a member", self.member_since)
    }
}

/// The owner opens a session, and requests a promise: 12 bytes. The claims of the volume's history follow.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SealBody {
    /// What the replica had promised when it became a member; 0 if it is none.
    pub member_since: U64,
    /// 1 if a person continues with the replica, whatever it has lost, else 0.
    pub salvage: U32,
}

impl Wire for SealBody {
    fn check(&self) -> Result<(), FieldError> {
        count("the epoch of a member", self.member_since)?;
        flag("whether a person goes on with a replica", self.salvage)
    }
}

/// A message of an owner, where it lies in a buffer.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "each is the message of that name in core")]
pub enum ToReplicaBody<'a> {
    Hello(&'a HelloBody, &'a [ClaimBytes]),
    Seal(&'a SealBody, &'a [ClaimBytes]),
    Entry(&'a EntryBody, &'a [U32]),
    OutOfBand(&'a OutOfBandBody, &'a [U32]),
    Heartbeat(&'a HeartbeatBody),
    Read(&'a ReadBody),
    Map(&'a MapBody),
    Fetch(&'a FetchBody),
    Return(&'a ReturnBody),
    Changed(&'a ChangedBody),
    Joined,
    Remember,
    Release,
    Probe,
}

impl<'a> ToReplicaBody<'a> {
    pub(crate) fn decode(kind: Kind, bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let bare = |body| empty(kind, bytes).map(|()| body);
        match kind {
            Kind::Hello => {
                let (body, claims) = with_table::<HelloBody, ClaimBytes>(kind, bytes)?;
                history(claims)?;
                Ok(Self::Hello(body, claims))
            }
            Kind::Seal => {
                let (body, claims) = with_table::<SealBody, ClaimBytes>(kind, bytes)?;
                history(claims)?;
                Ok(Self::Seal(body, claims))
            }
            Kind::Entry => {
                let (body, checksums) = with_table::<EntryBody, U32>(kind, bytes)?;
                same_count(kind, checksums.len(), body.entry.data_blocks())?;
                Ok(Self::Entry(body, checksums))
            }
            Kind::OutOfBand => {
                let (body, checksums) = with_table::<OutOfBandBody, U32>(kind, bytes)?;
                same_count(kind, checksums.len(), body.entry.data_blocks())?;
                Ok(Self::OutOfBand(body, checksums))
            }
            Kind::Heartbeat => whole(kind, bytes).map(Self::Heartbeat),
            Kind::Read => whole(kind, bytes).map(Self::Read),
            Kind::Map => whole(kind, bytes).map(Self::Map),
            Kind::Fetch => whole(kind, bytes).map(Self::Fetch),
            Kind::Return => whole(kind, bytes).map(Self::Return),
            Kind::Changed => whole(kind, bytes).map(Self::Changed),
            Kind::Joined => bare(Self::Joined),
            Kind::Remember => bare(Self::Remember),
            Kind::Release => bare(Self::Release),
            Kind::Probe => bare(Self::Probe),
            _ => Err(DecodeError::Kind { stated: kind.code() }),
        }
    }

    /// The checksums of the payload's blocks.
    pub fn checksums(&self) -> &'a [U32] {
        match self {
            Self::Entry(_, checksums) | Self::OutOfBand(_, checksums) => checksums,
            _ => &[],
        }
    }

    /// As core has it. If there is a payload, its handle is asked for; the data is to begin with its buffer.
    pub fn message<D>(&self, data: impl FnOnce() -> D) -> ToReplica<D> {
        match self {
            Self::Hello(body, claims) => ToReplica::Hello {
                member_since: Epoch(body.member_since.get()),
                // It was checked when it was decoded.
                history: history(claims).unwrap_or_default(),
            },
            Self::Seal(body, claims) => ToReplica::Seal {
                member_since: Epoch(body.member_since.get()),
                history: history(claims).unwrap_or_default(),
                salvage: body.salvage.get() == 1,
            },
            Self::Entry(body, _) => {
                let position = body.position.get();
                ToReplica::Entry {
                    ownership: position.ownership,
                    sequence: position.sequence,
                    commit_point: Sequence(body.commit_point.get()),
                    entry: body.entry.get(data),
                }
            }
            Self::OutOfBand(body, _) => ToReplica::OutOfBand {
                number: body.number.get(),
                position: body.position.get(),
                entry: body.entry.get(data),
            },
            Self::Heartbeat(body) => ToReplica::Heartbeat {
                ownership: Epoch(body.ownership.get()),
                commit_point: Sequence(body.commit_point.get()),
                asked: Moment(body.asked_ns.get()),
                keep: Epoch(body.keep.get()),
            },
            Self::Read(body) => ToReplica::Read {
                job: body.job.get(),
                block: body.block.get(),
                blocks: body.blocks.get(),
                again: body.again.get() == 1,
            },
            Self::Map(body) => {
                ToReplica::Map { job: body.job.get(), block: body.block.get(), blocks: body.blocks.get() }
            }
            Self::Fetch(body) => ToReplica::Fetch {
                job: body.job.get(),
                number: body.number.get(),
                again: body.again.get() == 1,
            },
            Self::Return(body) => ToReplica::Return {
                ownership: Epoch(body.ownership.get()),
                from: Sequence(body.from.get()),
                empty: body.empty == 1,
            },
            Self::Changed(body) => ToReplica::Changed {
                job: body.job.get(),
                since: Epoch(body.since.get()),
                from: body.from.get(),
            },
            Self::Joined => ToReplica::Joined,
            Self::Remember => ToReplica::Remember,
            Self::Release => ToReplica::Release,
            Self::Probe => ToReplica::Probe,
        }
    }
}

/// Adds the frame of a message to bytes. The checksums of the data are asked for, one for each block of the entry; the
/// blocks themselves are to be written after the frame. What it refuses leaves the bytes as they were.
pub fn encode_to_replica<'m, D>(
    cluster: ClusterId,
    from: &FromOwner,
    message: &'m ToReplica<D>,
    checksums: impl FnOnce(&'m Payload<D>) -> &'m [u32],
    out: &mut Vec<u8>,
) -> Result<(), FieldError> {
    Writer::frame(out, header_from_owner(cluster, from), |frame| match message {
        ToReplica::Hello { member_since, history } => {
            frame.part(&HelloBody { member_since: member_since.0.into() })?;
            history.claims().iter().try_for_each(|claim| frame.part(&ClaimBytes::from(claim)))?;
            Ok(Kind::Hello)
        }
        ToReplica::Seal { member_since, history, salvage } => {
            let salvage = u32::from(*salvage).into();
            frame.part(&SealBody { member_since: member_since.0.into(), salvage })?;
            history.claims().iter().try_for_each(|claim| frame.part(&ClaimBytes::from(claim)))?;
            Ok(Kind::Seal)
        }
        ToReplica::Entry { ownership, sequence, commit_point, entry } => {
            let position = PositionBytes { ownership: ownership.0.into(), sequence: sequence.0.into() };
            frame.part(&EntryBody { position, commit_point: commit_point.0.into(), entry: entry.into() })?;
            if let EntryOp::Data(payload) = &entry.op {
                frame.checksums(checksums(payload), entry.blocks as usize)?;
            }
            Ok(Kind::Entry)
        }
        ToReplica::OutOfBand { number, position, entry } => {
            let (number, position) = ((*number).into(), (*position).into());
            frame.part(&OutOfBandBody { number, position, entry: entry.into() })?;
            if let EntryOp::Data(payload) = &entry.op {
                frame.checksums(checksums(payload), entry.blocks as usize)?;
            }
            Ok(Kind::OutOfBand)
        }
        ToReplica::Heartbeat { ownership, commit_point, asked, keep } => {
            let (ownership, commit_point) = (ownership.0.into(), commit_point.0.into());
            let (asked_ns, keep) = (asked.0.into(), keep.0.into());
            frame.part(&HeartbeatBody { ownership, commit_point, asked_ns, keep })?;
            Ok(Kind::Heartbeat)
        }
        ToReplica::Read { job, block, blocks, again } => {
            let (block, blocks) = ((*block).into(), (*blocks).into());
            frame.part(&ReadBody { job: (*job).into(), block, blocks, again: u32::from(*again).into() })?;
            Ok(Kind::Read)
        }
        ToReplica::Map { job, block, blocks } => {
            let (block, blocks) = ((*block).into(), (*blocks).into());
            frame.part(&MapBody { job: (*job).into(), block, blocks })?;
            Ok(Kind::Map)
        }
        ToReplica::Fetch { job, number, again } => {
            let (number, again) = ((*number).into(), u32::from(*again).into());
            frame.part(&FetchBody { job: (*job).into(), number, again })?;
            Ok(Kind::Fetch)
        }
        ToReplica::Return { ownership, from, empty } => {
            let (ownership, from, empty) = (ownership.0.into(), from.0.into(), u32::from(*empty).into());
            frame.part(&ReturnBody { ownership, from, empty })?;
            Ok(Kind::Return)
        }
        ToReplica::Changed { job, since, from } => {
            let (since, from) = (since.0.into(), (*from).into());
            frame.part(&ChangedBody { job: (*job).into(), since, from })?;
            Ok(Kind::Changed)
        }
        ToReplica::Joined => Ok(Kind::Joined),
        ToReplica::Remember => Ok(Kind::Remember),
        ToReplica::Release => Ok(Kind::Release),
        ToReplica::Probe => Ok(Kind::Probe),
    })
}
