//! The events of a volume and the actions that it returns, with their types.

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
    /// Return what the blocks of these sectors hold, as far as the copies know without reading them. → [`Action::Map`]
    Map,
    /// Write this data: sector by sector, from the first sector of the request on.
    Write(D),
    /// Make the sectors read as zeroes. Their space stays allocated.
    WriteZeroes,
    /// Make the sectors read as zeroes, and free their space. Sectors that do not fill a block are left as they are.
    Trim,
    /// Complete when all writes that were acknowledged before are durable. A flush has no sectors.
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

/// Why a request was not carried out. Unless the variant says that nothing was done, a failed write may be on the volume or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Failure {
    /// This node does not own the volume any more: its clients' sessions end.
    #[error("this node does not own the volume any more: connect to the node that does")]
    Deposed,
    /// The volume is not attached at this node.
    #[error("the volume is not attached at this node: attach it first")]
    NotAttached,
    /// There are [`MOST_REQUESTS`] already. Nothing was done.
    #[error("the volume has {MOST_REQUESTS} requests waiting: send it again when some have been answered")]
    TooMany,
    /// The request writes more at once than the volume's logs allow. Nothing was done.
    #[error(
        "the write is longer than the volume's logs take at once: write less at once, or make a volume with a larger log"
    )]
    TooLong,
    /// The request goes beyond the end of the volume. Nothing was done.
    #[error("the request goes beyond the end of the volume")]
    OutOfRange,
    /// A device that has a copy of these blocks is full. A part of a request that writes zeroes may have been done.
    #[error(
        "a device that holds a copy is full: trim what is not needed, remove volumes from that device, or move the copy to a larger one"
    )]
    NoSpace,
    /// No copy in sync has data that matches its checksum.
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
        /// The replica that replaces it, which must be in sync and answer. `None`: any other member.
        instead: Option<ReplicaId>,
    },
    /// The volume is to have so many blocks. The replicas of groups that are new are durable on their devices.
    Grow {
        /// The new size of the volume, in blocks.
        blocks: u64,
        /// The replicas of each new group.
        added: Vec<Vec<(ReplicaId, NodeId)>>,
    },
    /// Continue with these survivors, whatever they have missed. Allowed only where the volume is not active. Without
    /// survivors the sets stay as they are, and only a configuration store that went back in time is accepted as it is.
    Recover {
        /// The record, as the store holds it now.
        record: Box<Record>,
        /// The survivors of groups.
        survivors: BTreeMap<GroupIndex, ReplicaId>,
        /// Replicas have promised epochs up to this one, as far as the person knows: the record goes above it.
        promised: Epoch,
    },
}

/// What happens to a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event<D> {
    /// Clients are announced, and this node is to own the volume. The clients send no requests
    /// before they are let in. → [`Action::Attached`]
    Attach,
    /// An attach was ordered here. All requests of clients until now are dropped and never carried out (rule T13), and the
    /// volume is claimed again for clients that come. The node has disconnected the present clients. →
    /// [`Action::Attached`]
    Fence,
    /// The client of this request has gone. If the request has not begun, it is never carried out (rule T13), and
    /// completed as failed.
    Cancel(RequestId),
    /// The volume's clients have gone. Their requests are dropped.
    Detach,
    /// The volume is to be taken over if no node serves it.
    Watch(bool),
    /// A request of a client.
    Request(Request<D>),
    /// A message of a replica.
    Message(FromReplica, ToOwner<D>),
    /// The answer of the configuration store to a read of the record. `asked_at` as in the action.
    Seen(Record, Epoch),
    /// The configuration store answered a proposal.
    Swapped(ProposalId, Answer, Epoch),
    /// The result of [`Action::Merge`], in this ownership.
    Merged(Epoch, Job, D),
    /// A command of an operator.
    Command(VolumeCommand),
    /// The process of another node has ended, as far as is known: its address has refused connections for a while. Or it ends by order,
    /// soon, and still answers. The volume does not wait for its replicas as for silent ones. After a false positive, the replicas return like any that were away.
    Ended(NodeId),
    /// A process runs on that node again: it accepts connections.
    Started(NodeId),
    /// A node that was asked runs and reaches these nodes, in both directions.
    Reaches(NodeId, BTreeSet<NodeId>),
    /// A node that was asked did not answer in time: the store was read after that, and has no answer.
    Silent(NodeId),
    /// Of what is in flight, so many per cent are to be copies to returning replicas, whatever clients request: less than 100.
    Reserve(u32),
    /// Some time has passed: to come every [`Times::tick_ns`], or nearly so.
    Wake,
}

/// The actions of a volume, to be carried out in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action<D> {
    /// A message to a replica.
    Send {
        /// The node that has the replica.
        to: NodeId,
        /// The addresses and numbers of the message.
        header: FromOwner,
        /// The message.
        message: ToReplica<D>,
    },
    /// Read the record from the configuration store.
    ReadRecord {
        /// The epoch that is known when the request is sent. The answer carries it back.
        asked_at: Epoch,
    },
    /// Replace the record in the configuration store by this one, if its epoch is still the stated one.
    Propose {
        /// The record.
        record: Box<Record>,
        /// The epoch of the record that is replaced. The answer carries it back.
        replaces: Epoch,
    },
    /// Ask nodes through the configuration store whether they run, and which of each other they reach. → [`Event::Reaches`] or
    /// [`Event::Silent`] for each; none while the store is away.
    QueryNodes {
        /// The nodes to ask.
        nodes: Vec<NodeId>,
        /// How long they have to answer once the question is in the store, nanoseconds.
        within_ns: u64,
    },
    /// A part of a client's read, in whole blocks. It may be sent again with other content before the completion.
    Fill {
        /// The client's read.
        request: RequestId,
        /// Where the part begins, in blocks from the one with the request's first sector.
        at: u64,
        /// The number of blocks.
        blocks: u32,
        /// What is there.
        content: Content<D>,
    },
    /// What the blocks of a client's request hold, counted from the block with the request's first sector. The map describes
    /// at least that block, and has at most [`MOST_MAPPED`] ranges. It may be sent again with other content before the
    /// completion.
    Map {
        /// The request.
        request: RequestId,
        /// What the blocks hold.
        map: Map,
    },
    /// Make whole blocks of a client's data and the bytes around it. → [`Event::Merged`]
    ///
    /// For a write: all its blocks. For zeroes: the first block if `head` is given, then the last if `tail` is.
    ///
    /// The request, and even the ownership, may have ended when that is done. Then the blocks are not used.
    Merge {
        /// The ownership of the job. The answer carries it back.
        ownership: Epoch,
        /// The job that waits for the blocks. The answer carries it back.
        job: Job,
        /// The operation of the client, with its data.
        request: Request<D>,
        /// The present content of the block with the first sector, if the request does not fill that block.
        head: Option<Content<D>>,
        /// The present content of the block with the last sector, if that is another block and the request does not fill it.
        tail: Option<Content<D>>,
    },
    /// All announced clients may send requests from now on.
    Attached,
    /// The volume is attached elsewhere: close the connections of its clients here.
    Detached,
    /// A request has ended, with this result.
    Complete(RequestId, Result<(), Failure>),
    /// The result of a command: the record has it, it was refused, or the result is unknown.
    Done(Result<(), CommandError>),
}

/// Why a command was not carried out. It changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CommandError {
    /// Another node owns the volume, or none does.
    #[error("this node does not own the volume: run the command at the node that does")]
    NotOwner,
    /// The volume is in use at this node.
    #[error("the volume is active here: to continue with other copies, detach it first")]
    Active,
    /// No other replica of the group answers.
    #[error(
        "no other copy of the same data answers beside {0}: wait until another copy is in sync and reachable"
    )]
    Needed(ReplicaId),
    /// Another node has taken the volume over. Its record shows whether the change was made.
    #[error(
        "another node has taken the volume over: check the volume, and repeat the command there if it was not carried out"
    )]
    Superseded,
    /// Another change has not been decided yet.
    #[error("another change of the volume is under way: try again")]
    Busy,
    /// The command contradicts the record.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The record in the configuration store is impossible.
    #[error(transparent)]
    Broken(#[from] WentBack),
}

/// How long things take. All in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// The time between two [`Event::Wake`].
    pub tick_ns: u64,
    /// The time between heartbeats to a member: several in the length of a lease.
    pub heartbeat_ns: u64,
    /// A request without an answer for this long is sent again.
    pub resend_ns: u64,
    /// A member from which nothing has arrived for this long is removed.
    pub silent_ns: u64,
    /// A member that answers, but for this long does not carry out its requests, is removed: its device may hang. Longer
    /// than any device takes.
    pub stalled_ns: u64,
    /// If a swap that delays requests stays undecided for this long, the owner steps down.
    pub undecided_ns: u64,
    /// A takeover waits this long for members that do not answer, if others do: longer than a lease.
    pub seal_ns: u64,
    /// A volume is taken over if for this long no member has granted a lease or was asked to be sealed.
    pub quiet_ns: u64,
    /// Nodes that are asked through the configuration store have this long to answer (rule S1): they poll it now and then.
    pub answer_ns: u64,
    /// The same, if they have more than half of a group's members. That they have all failed at once is less likely than that the
    /// node which asks is cut off, and without them it acknowledges no write unless the volume allows that.
    pub most_answer_ns: u64,
}

impl Times {
    /// The times that fit leases of this length.
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

/// What this node does with a volume, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Status {
    /// This node does not own the volume.
    Watching,
    /// A takeover waits for its first swap.
    Claiming,
    /// It waits until members are sealed; some group may have none that answers.
    Sealing,
    /// It makes the members equal.
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
