//! What happens to a volume, and what it wants done: its events and actions, and what goes with them.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use crate::ids::{Epoch, NodeId, ProposalId, ReplicaId};
use crate::layout::GroupIndex;
use crate::map::Map;
use crate::message::{Content, FromOwner, FromReplica, Job, ToOwner, ToReplica};
use crate::record::{Record, RecordError};
use crate::swap::{Answer, WentBack};

/// A client's request, by the name that its export gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// The most requests that a volume has at once, at work or waiting. Exports have far lower bounds of their own.
pub const MOST_REQUESTS: usize = 65_536;

/// The most allocated ranges that one [`Action::Map`] describes.
pub const MOST_MAPPED: usize = 2048;

/// Sectors in a block. A sector has 512 bytes.
pub const SECTORS: u64 = 8;

/// The operation that a client requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestOp<D> {
    /// Return the data of the sectors.
    Read,
    /// Tell what the blocks of its sectors hold, as far as the copies know without reading them. → [`Action::Map`]
    Map,
    /// Write this: sector by sector, from the first of the request on.
    Write(D),
    /// Make it read as zeroes; the space that it has stays its own.
    WriteZeroes,
    /// Make it read as zeroes, and give the space back. What does not fill a block is left as it is.
    Trim,
    /// All that was acknowledged before is durable. It has no sectors.
    Flush,
}

/// A client's request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request<D> {
    /// The id by which the request is completed.
    pub id: RequestId,
    /// The operation.
    pub op: RequestOp<D>,
    /// The first sector.
    pub sector: u64,
    /// The number of sectors, 0 for a flush.
    pub sectors: u32,
}

/// Why a request was not carried out. Whether a write that failed is on the volume is not known, unless said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Failure {
    /// This node does not own the volume any more: its clients' sessions end.
    #[error("this node does not own the volume any more: connect to the node that does")]
    Deposed,
    /// It is not attached here.
    #[error("the volume is not attached at this node: attach it first")]
    NotAttached,
    /// There are [`MOST_REQUESTS`] already. Nothing was done.
    #[error("the volume has {MOST_REQUESTS} requests waiting: ask again when some have been answered")]
    TooMany,
    /// It writes more at once than the volume's logs are made for. Nothing was done.
    #[error(
        "the write is longer than the volume's logs take at once: write less at once, or make a volume with a larger log"
    )]
    TooLong,
    /// It goes beyond the end. Nothing was done.
    #[error("the request goes beyond the end of the volume")]
    OutOfRange,
    /// A device that has a copy of these blocks has room for nothing more. Of zeroes, a part may have been written.
    #[error(
        "a device that holds a copy is full: trim what is not needed, remove volumes from that device, or move the copy to a larger one"
    )]
    NoSpace,
    /// No copy in sync has the data that its checksum was made of.
    #[error("no copy of these blocks matches its checksum: restore them from a backup, or write them anew")]
    Corrupt,
}

/// A command of an operator for a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeCommand {
    /// A new, empty replica is to become a member. It is durable on its device.
    Add {
        /// The group.
        group: GroupIndex,
        /// The replica.
        replica: ReplicaId,
        /// The node that has the replica.
        home: NodeId,
    },
    /// A replica that has departed will not come back.
    Forget {
        /// The group.
        group: GroupIndex,
        /// The replica.
        replica: ReplicaId,
    },
    /// A member is to leave for good: its node is being emptied, or its device replaced.
    Remove {
        /// The group.
        group: GroupIndex,
        /// The replica.
        replica: ReplicaId,
        /// The one in whose favour it leaves, which must be in sync and answer; if none is named, any other.
        instead: Option<ReplicaId>,
    },
    /// The volume is to have so many blocks. The replicas of groups that are new are durable on their devices.
    Grow {
        /// The new size of the volume, in blocks.
        blocks: u64,
        /// The replicas of each new group.
        added: Vec<Vec<(ReplicaId, NodeId)>>,
    },
    /// These are what is left, whatever they have missed. Only where the volume is not active. With none named, the sets stay
    /// as they are, and only a store that went back in time is taken for what it is now.
    Recover {
        /// The record, as the store holds it now.
        record: Box<Record>,
        /// What is left of groups.
        survivors: BTreeMap<GroupIndex, ReplicaId>,
        /// Replicas have promised epochs up to this one, as far as the person knows: the record goes above it.
        promised: Epoch,
    },
}

/// What happens to a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event<D> {
    /// Clients are to come, and it is to be owned here. They ask for nothing before they are let in.
    /// → [`Action::Attached`]
    Attach,
    /// An attach was ordered here. Everything that clients have asked for until now is dropped and never carried out again
    /// (rule T13), and the volume is claimed anew for clients that are to come. The node has disconnected those that are
    /// here. → [`Action::Attached`]
    Fence,
    /// The client that asked for this has gone. If it has not begun, it is never carried out (rule T13), and completed as
    /// failed.
    Cancel(RequestId),
    /// Its clients have gone. What they asked for is dropped.
    Detach,
    /// It is to be taken over if no node serves it.
    Watch(bool),
    /// A client asks.
    Request(Request<D>),
    /// A replica says something.
    Message(FromReplica, ToOwner<D>),
    /// The configuration store was asked what the record is; this is it. `asked_at` as in the action.
    Seen(Record, Epoch),
    /// The configuration store answered a proposal.
    Swapped(ProposalId, Answer, Epoch),
    /// What [`Action::Merge`] asked for, in this ownership.
    Merged(Epoch, Job, D),
    /// A person decides.
    Command(VolumeCommand),
    /// The process of another node has ended, as far as is known: its address has refused connections for a while. Its replicas
    /// are not waited for as those are that have fallen silent. If that is an error, they come back as any that was away.
    Ended(NodeId),
    /// One runs there again: it takes connections.
    Started(NodeId),
    /// A node that was asked runs, and reaches these: each of the two receives what the other sends.
    Reaches(NodeId, BTreeSet<NodeId>),
    /// A node that was asked had time to answer, and the store, which was read after that, has no answer.
    Silent(NodeId),
    /// Some time has passed: to come every [`Times::tick_ns`], or nearly so.
    Wake,
}

/// What a volume wants done, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action<D> {
    /// A message to a replica.
    Send {
        /// The node that has the replica.
        to: NodeId,
        /// What it names.
        header: FromOwner,
        /// What it says.
        message: ToReplica<D>,
    },
    /// Read the record from the configuration store.
    ReadRecord {
        /// To be told with the answer: what is known when this is asked.
        asked_at: Epoch,
    },
    /// Ask the configuration store to make this the record, if it is at this epoch.
    Propose {
        /// The record.
        record: Box<Record>,
        /// What it replaces. To be told with the answer.
        replaces: Epoch,
    },
    /// Ask nodes through the configuration store whether they run, and which of each other they reach. → [`Event::Reaches`] or
    /// [`Event::Silent`] for each; none while the store is away.
    QueryNodes {
        /// The nodes that are asked.
        nodes: Vec<NodeId>,
        /// How long they have to answer once the question is in the store, nanoseconds.
        within_ns: u64,
    },
    /// A part of what a client reads: whole blocks. It may come again with other content before the completion.
    Fill {
        /// The request that reads.
        request: RequestId,
        /// Where it belongs, in blocks from the one with the request's first sector.
        at: u64,
        /// How many blocks.
        blocks: u32,
        /// What is there.
        content: Content<D>,
    },
    /// What the blocks hold that a client asks about. Its blocks are counted from the one with the request's first sector. It
    /// describes at least that one, and has at most [`MOST_MAPPED`] ranges. It may come again with another content before the
    /// completion.
    Map {
        /// The request.
        request: RequestId,
        /// What the blocks hold.
        map: Map,
    },
    /// Make whole blocks of what a client writes and what is around it. → [`Event::Merged`]
    ///
    /// Of a write: all its blocks. Of zeroes: its first block if `head` is given, then its last if `tail` is.
    ///
    /// The request may have ended when that is done, and even the ownership: then the blocks are not used.
    Merge {
        /// To be told with the answer.
        ownership: Epoch,
        /// The job that waits for the blocks. It is to be given back with the answer.
        job: Job,
        /// What is written.
        request: Request<D>,
        /// The block with its first sector, if it does not fill that.
        head: Option<Content<D>>,
        /// The block with its last sector, if that is another and it does not fill it.
        tail: Option<Content<D>>,
    },
    /// All clients that were announced may ask from now on.
    Attached,
    /// It is attached elsewhere: the sessions of its clients here are to be closed.
    Detached,
    /// A request has ended.
    Complete(RequestId, Result<(), Failure>),
    /// The result of a command: the record has it, it was refused, or the result is unknown.
    Done(Result<(), CommandError>),
}

/// Why a command was not carried out. It changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CommandError {
    /// Another node owns it, or none.
    #[error("this node does not own the volume: ask the one that does")]
    NotOwner,
    /// It is in use here.
    #[error("the volume is active here: detach it first, if what is left of it is not what should be")]
    Active,
    /// Without it, no replica answers.
    #[error("no other replica of its group answers beside {0}: wait until another is in sync and reachable")]
    Needed(ReplicaId),
    /// Another node has taken the volume over. Whether the change was made is to be seen in its record.
    #[error(
        "another node has taken the volume over: look at the volume, and repeat the command there if it was not carried out"
    )]
    Superseded,
    /// Another change has not been decided yet.
    #[error("another change of the volume is under way: try again")]
    Busy,
    /// It makes no sense.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The store's record cannot be.
    #[error(transparent)]
    Broken(#[from] WentBack),
}

/// How long things take. All in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// Between two [`Event::Wake`].
    pub tick_ns: u64,
    /// Between heartbeats to a member: several in the length of a lease.
    pub heartbeat_ns: u64,
    /// What has not been answered for so long is asked again.
    pub resend_ns: u64,
    /// A member that has said nothing for so long is removed.
    pub silent_ns: u64,
    /// A member that answers, but does not do for so long what it was told, is removed: its device may hang. Longer than
    /// any device takes.
    pub stalled_ns: u64,
    /// A swap that stays undecided for so long makes an owner step down, if it stands in the way.
    pub undecided_ns: u64,
    /// A takeover waits so long for members that do not answer, if others do: longer than a lease.
    pub seal_ns: u64,
    /// A volume for which no member has granted a lease for so long, nor was asked to be sealed, is taken over.
    pub quiet_ns: u64,
    /// Nodes that are asked through the configuration store have so long to answer (rule S1): they look there now and then.
    pub answer_ns: u64,
    /// The same, if they have more than half of a group's members. That they have all failed at once is less likely than that the
    /// node which asks is cut off, and without them it acknowledges no write unless the volume allows that.
    pub most_answer_ns: u64,
}

impl Times {
    /// What goes with leases of this length.
    pub const fn of_lease(lease_ns: u64) -> Times {
        Times {
            tick_ns: lease_ns / 16,
            heartbeat_ns: lease_ns / 4,
            resend_ns: lease_ns / 4,
            silent_ns: lease_ns,
            stalled_ns: 4 * lease_ns,
            undecided_ns: 2 * lease_ns,
            seal_ns: lease_ns * 3 / 2,
            quiet_ns: 2 * lease_ns,
            answer_ns: lease_ns * 3 / 2,
            most_answer_ns: lease_ns * 4,
        }
    }
}

/// What a volume does, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Status {
    /// Not owned here.
    Watching,
    /// A takeover waits for its first swap.
    Claiming,
    /// It waits for members to be sealed: of some group there may be none.
    Sealing,
    /// It makes them equal.
    Equalizing,
    /// It waits for its second swap.
    Activating,
    /// It serves.
    Active,
    /// It serves, and a swap is undecided.
    Changing,
    /// The configuration store went back in time. Nothing is done until a person decides.
    Blocked,
}
