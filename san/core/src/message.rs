//! The messages between an owner and a replica.
//!
//! Nothing is assumed of what carries the messages but that it does not change them: they may be lost, doubled, late, and
//! overtake each other. So each names what it belongs to:
//!
//! ```text
//! volume, replica ── epoch, owner ── session ────── process
//! which one         may it send     which of        which life of the
//!                   at all          its sessions    replica's process
//! ```
//!
//! An owner opens a session with `Hello` or `Seal` and gives it a number that is larger than all before. What comes in a
//! session that is not the last, or is meant for another life of the replica's process, is not taken: an order to
//! drop entries must not reach a process that has become a member since.

use std::ops::Range;

use crate::history::History;
pub use crate::ids::Promise;
use crate::ids::{Epoch, Incarnation, Owner, Position, ReplicaId, Sequence, VolumeId};
use crate::lease::Moment;
use crate::map::Map;

/// Data of consecutive blocks: a part of a buffer that core never reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload<D> {
    /// The buffer.
    pub data: D,
    /// The first block in it.
    pub first: u32,
}

/// The operation of an entry on its blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryOp<D> {
    /// Nothing: it begins the sequence of an ownership, or has the place of data in that of a replica that returns (rule C11).
    Open,
    /// They get this content.
    Data(Payload<D>),
    /// They read as zeroes; the space that they have stays theirs.
    Zeroes,
    /// They read as zeroes; their space is given back.
    Trim,
}

/// A change to consecutive blocks of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry<D> {
    /// The first, in the group.
    pub block: u64,
    /// How many. None in an opening entry.
    pub blocks: u32,
    /// The operation on these blocks.
    pub op: EntryOp<D>,
}

impl<D> Entry<D> {
    /// The blocks of the entry, in its group. The range is empty for an opening entry.
    pub fn range(&self) -> Range<u64> {
        self.block..self.block + u64::from(self.blocks)
    }
}

/// What is in consecutive blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content<D> {
    /// All blocks are in the payload.
    Data(Payload<D>),
    /// This; but some blocks of it have never been written, or were trimmed: they are zeroes in it. Which, counted from its
    /// first block, in rising order.
    Sparse(Payload<D>, Vec<Range<u32>>),
    /// None of them has ever been written, or all were trimmed: zeroes.
    Nothing,
}

impl<D> Content<D> {
    /// The same, whatever is behind its zeroes.
    pub fn filled(self) -> Content<D> {
        match self {
            Content::Sparse(payload, _) => Content::Data(payload),
            other => other,
        }
    }

    /// What gives so many blocks from this one on the same content; what was never written is not written by it either.
    pub fn entries(self, block: u64, blocks: u32) -> Vec<Entry<D>>
    where
        D: Clone,
    {
        let trim = |range: Range<u32>| Entry {
            block: block + u64::from(range.start),
            blocks: range.end - range.start,
            op: EntryOp::Trim,
        };
        let data = |payload: &Payload<D>, range: Range<u32>| Entry {
            block: block + u64::from(range.start),
            blocks: range.end - range.start,
            op: EntryOp::Data(Payload { data: payload.data.clone(), first: payload.first + range.start }),
        };
        match self {
            Content::Nothing => vec![trim(0..blocks)],
            Content::Data(payload) => vec![data(&payload, 0..blocks)],
            Content::Sparse(payload, holes) => {
                let (mut entries, mut at) = (Vec::new(), 0);
                // A request for fewer blocks gets no holes beyond them.
                let within = |hole: Range<u32>| hole.start.min(blocks)..hole.end.min(blocks);
                for hole in holes.into_iter().map(within).chain(std::iter::once(blocks..blocks)) {
                    if at < hole.start {
                        entries.push(data(&payload, at..hole.start));
                    }
                    at = hole.end;
                    if !hole.is_empty() {
                        entries.push(trim(hole));
                    }
                }
                entries
            }
        }
    }
}

/// A block's checksum does not match its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Corrupt;

/// The piece of the owner's work that a request serves. The answer carries the same value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Job {
    /// Its place in the owner's table of jobs.
    pub slot: u32,
    /// How often that place was used before.
    pub turn: u32,
    /// The part of the job, counted from 0.
    pub part: u32,
}

/// An entry of a replica's log, without its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mention {
    /// Its number in the log of that replica.
    pub number: u64,
    /// Where it stands among all entries of the group.
    pub position: Position,
    /// What it does.
    pub entry: Entry<()>,
}

/// The state of a sealed replica: its answer to `Seal`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealReport {
    /// All entries up to here are acknowledged, as far as the replica knows.
    pub commit_point: Position,
    /// Up to here its log has everything.
    pub end: Position,
    /// Its device has room for no more than what is in flight (rule W7).
    pub full: bool,
    /// What its log has above its commit point, in the order of the log.
    pub above: Vec<Mention>,
}

/// How far a replica is with what an owner sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The ownership that its log is in.
    pub ownership: Epoch,
    /// It has everything up to this entry of that ownership.
    pub received: Sequence,
    /// Durably up to this one.
    pub durable: Sequence,
    /// What it has received of the entries that are sent out of band in this session, by their number.
    pub out_of_band_received: u64,
    /// What is durable of the entries that are sent out of band in this session, by their number.
    pub out_of_band_durable: u64,
    /// The replica has returned in this session: its earlier reports are about entries that it has dropped since.
    pub returned: bool,
    /// Something came that was not the next: send again what comes after `received`.
    pub gap: bool,
    /// Its device has room for no more than what is in flight (rule W7).
    pub full: bool,
}

/// The addresses and numbers in every message of an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FromOwner {
    /// The volume.
    pub volume: VolumeId,
    /// The receiver.
    pub replica: ReplicaId,
    /// The sender.
    pub owner: Owner,
    /// The owner's epoch when it was sent.
    pub epoch: Epoch,
    /// Which of its sessions with this replica.
    pub session: u64,
    /// Which life of the replica's process it is meant for; 0 in what opens a session and salvages nothing.
    pub process: Incarnation,
}

/// A message of an owner, or of a node that is to become the owner, to a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToReplica<D> {
    /// Opens a session.
    Hello {
        /// The epoch that the replica had durably promised when it became a member of the record that the owner knows; 0 if
        /// it is no member. A replica that has promised less went back in time (rule R9).
        member_since: Epoch,
        /// The owners of the volume, by that record. A replica that has promised to follow another owner than this history has at
        /// the epoch of the promise refuses (rule R11).
        history: History,
    },
    /// Opens a session, and requests the promise to follow no owner of a lower epoch.
    Seal {
        /// As in `Hello`.
        member_since: Epoch,
        /// As in `Hello`.
        history: History,
        /// A person continues with this replica, whatever it has lost: it is to be used although its store is damaged. The
        /// order is for one life of its process, because another life may have lost more.
        salvage: bool,
    },
    /// The next entry.
    Entry {
        /// Which ownership its number counts in.
        ownership: Epoch,
        /// The entry's number in that ownership.
        sequence: Sequence,
        /// The last acknowledged one.
        commit_point: Sequence,
        /// What to do.
        entry: Entry<D>,
    },
    /// An entry outside of the sequence, which makes the replica equal to others. The order of the log decides between the two.
    OutOfBand {
        /// Its number in this session, from 1.
        number: u64,
        /// Of a takeover: the entry's own position. Of a copy: what was acknowledged when it was read.
        position: Position,
        /// What to do.
        entry: Entry<D>,
    },
    /// The owner is alive, and requests a lease.
    Heartbeat {
        /// The ownership of the commit point.
        ownership: Epoch,
        /// The last acknowledged one.
        commit_point: Sequence,
        /// When it was sent, by the owner's clock: the lease begins there.
        asked: Moment,
        /// No replica has departed at a lower epoch: of what was freed at one, no trace is needed (rule R3).
        keep: Epoch,
    },
    /// What is in these blocks?
    Read {
        /// Names the request: the answer carries the same value.
        job: Job,
        /// The first block, in the group.
        block: u64,
        /// The number of blocks.
        blocks: u32,
        /// It was sent before, and has no answer: if it is being carried out in this session, that will be the answer.
        again: bool,
    },
    /// What do these blocks hold, as far as is known without reading them?
    Map {
        /// Names the request: the answer carries the same value.
        job: Job,
        /// The first block, in the group.
        block: u64,
        /// The number of blocks, at least 1.
        blocks: u32,
    },
    /// What is in this entry of its log?
    Fetch {
        /// Names the request: the answer carries the same value.
        job: Job,
        /// Its number in the log.
        number: u64,
        /// It was sent before, and has no answer.
        again: bool,
    },
    /// The replica is no member. It must list the blocks that its log mentions above its commit point, and drop those
    /// entries. Then it gets this ownership's entries from here on.
    Return {
        /// The ownership.
        ownership: Epoch,
        /// The first entry that it will get.
        from: Sequence,
        /// The replica must drop everything that it has, and is copied in full. This is the only order that a replica
        /// with a damaged store accepts (rule C12).
        empty: bool,
    },
    /// Which blocks have changed since an epoch?
    Changed {
        /// Names the request: the answer carries the same value.
        job: Job,
        /// The epoch: a block has changed if it was written under this epoch or a later one.
        since: Epoch,
        /// The first block of the group that the answer covers.
        from: u64,
    },
    /// The replica is a member, and needs its list no more.
    Joined,
    /// The replica is to keep the epoch of this message durably (rule P5).
    Remember,
    /// The owner has stopped reading, and will request no more leases.
    Release,
    /// How long is it since the last lease was granted? Any node may ask, outside of sessions.
    Probe,
}

/// The addresses and numbers in every message of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FromReplica {
    /// The volume.
    pub volume: VolumeId,
    /// The sender.
    pub replica: ReplicaId,
    /// Which life of its process.
    pub process: Incarnation,
    /// The receiver.
    pub owner: Owner,
    /// The session of the message that it answers.
    pub session: u64,
}

/// A message of a replica to an owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToOwner<D> {
    /// The session is open.
    Welcome(Progress),
    /// The replica has promised, and reports what it has.
    Sealed(SealReport),
    /// Something has become durable, or is missing.
    Durable(Progress),
    /// Answer to a heartbeat.
    Alive {
        /// The time in the heartbeat that this answers, by the owner's clock.
        asked: Moment,
        /// Whether it grants a lease.
        granted: bool,
        /// How far it is.
        progress: Progress,
    },
    /// Answer to `Read` and `Fetch`.
    Data {
        /// The value of the request that this answers.
        job: Job,
        /// What is there.
        content: Result<Content<D>, Corrupt>,
    },
    /// Answer to `Map`.
    Mapped {
        /// The value of the request that this answers.
        job: Job,
        /// What the blocks hold: at least the first of them, and as many as the replica describes at once.
        map: Map,
    },
    /// Answer to `Return`.
    Listed {
        /// It gets the entries after this one.
        after: Position,
        /// Blocks that must be copied to it, whatever else is.
        ranges: Vec<Range<u64>>,
    },
    /// Answer to `Changed`.
    Changed {
        /// The value of the request that this answers.
        job: Job,
        /// Blocks, in rising order.
        ranges: Vec<Range<u64>>,
        /// The block at which the next request begins; `None` if these ranges are the last.
        next: Option<u64>,
    },
    /// The replica follows another owner, of a higher epoch or of another history (rule R11).
    Refused(Promise),
    /// The replica has no session with this number.
    Stranger,
    /// The replica's device has failed. The replica sends no other answer any more.
    Failed,
    /// The replica's store is damaged. The replica opens a session on `Hello`, and accepts no order in it but to return
    /// empty (rule C12). Outside of a session it accepts only the seal by which a person continues with this replica.
    Damaged,
    /// A block that no read has requested does not match its checksum.
    Corrupt {
        /// The block, in its group.
        block: u64,
    },
    /// Answer to `Probe`.
    Probed {
        /// The owner that it follows.
        promise: Promise,
        /// Nanoseconds since the replica last granted a lease or received a seal request, or else since it started.
        quiet_ns: u64,
    },
}
