//! What the control path has an event loop do, and what the loop reports.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use loadline_san_core::ids::{Epoch, Incarnation, NodeId, ProposalId, ReplicaId, VolumeId};
use loadline_san_core::layout::Layout;
use loadline_san_core::record::Record;
use loadline_san_core::replica;
use loadline_san_core::swap::Answer;
use loadline_san_core::volume::{self, CommandError, ReturnProgress, view};
use loadline_san_device::file::Devices;
use loadline_san_export::front_ends::Protocol;
use loadline_san_export::login::Chosen;
use loadline_san_export::scsi::reservations::Reservations;
use loadline_san_export::scsi::task::{Change, ChangeFailed};
use loadline_san_export::scsi::unit::{About, Unserved};
use loadline_san_store::cache::{CacheCounts, Region};
use loadline_san_store::space::Space;
use loadline_san_store::store::{Identity, Settings};
use loadline_san_transport::channel::Channel;

use super::counts::{BackEnd, FrontEnd};
use super::peer_sender::{ProvedPeer, Unproved};
use super::tracer::TraceOrder;
use crate::config::catalog::Limit;
use crate::identity::accesses::Accesses;
use crate::unusable::Unusable;

/// A replica that is on a device, to be opened.
#[derive(Debug)]
pub struct OpenReplica {
    /// The volume, the group and the id of the replica.
    pub id: Identity,
    /// The random bits that it was made with.
    pub key: u64,
    /// Length of its volume's leases, nanoseconds.
    pub lease_ns: u64,
    /// Where it is.
    pub devices: Devices,
    /// What the log's device begins with.
    pub log: Arc<Mutex<Space>>,
    /// What the capacity's device begins with: the same, if there is one device.
    pub capacity: Arc<Mutex<Space>>,
    /// How its store behaves.
    pub settings: Settings,
    /// This process has made it, and opens it for the first time (rule L6).
    pub is_new: bool,
    /// The life of this process.
    pub process: Incarnation,
}

/// A volume that this node serves, watches, or has replicas of.
#[derive(Debug, Clone, Copy)]
pub struct OpenVolume {
    /// The id of the volume.
    pub id: VolumeId,
    /// Where its blocks are.
    pub layout: Layout,
    /// Length of its leases, nanoseconds.
    pub lease_ns: u64,
    /// It is to be taken over if no node serves it.
    pub watch: bool,
    /// Blocks that may be in flight for it: what its logs are made for ([`most_in_flight`](super::most_in_flight)).
    pub most_in_flight: u64,
}

/// A session of a node that forwards clients with the node that owns their volumes. Numbers of one process only grow, and
/// incarnations of one node do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionId {
    /// The node that forwards.
    pub node: NodeId,
    /// The incarnation of its process.
    pub incarnation: Incarnation,
    /// The number of the session.
    pub number: u32,
}

/// A client that has chosen a volume.
#[derive(Debug)]
pub struct NewClient {
    /// Its connection, which does not block.
    pub channel: Channel,
    /// The volume.
    pub volume: VolumeId,
    /// The name of the volume, for messages.
    pub name: String,
    /// Where the client is, for messages.
    pub from: String,
    /// The size of the volume that the client was sent, in bytes.
    pub bytes: u64,
    /// The fence of the volume's record when the client chose the volume. A client with a lower one than the record's is
    /// disconnected.
    pub fence: u64,
    /// The session by which another node forwards the client.
    pub session: Option<SessionId>,
    /// The protocol that the client uses.
    pub protocol: Protocol,
    /// What it has chosen, beside the volume.
    pub chosen: Chosen,
    /// The fingerprint of the certificate by which it was let in. `None` if it needs none, or another node has let it in.
    pub certificate: Option<String>,
    /// The initiator of iSCSI as which it was let in, if it came from beyond this machine, and the number of its naming.
    pub initiator: Option<(String, u64)>,
}

/// A command of the control path to a loop.
#[derive(Debug)]
pub enum LoopCommand {
    /// Open this replica. → [`LoopEvent::Opened`]
    OpenReplica(Box<OpenReplica>),
    /// Give this replica up. → [`LoopEvent::Closed`]
    CloseReplica(ReplicaId),
    /// The volume has so many extents in the group of this replica now.
    Resize(ReplicaId, u64),
    /// Serve or watch this volume.
    OpenVolume(OpenVolume),
    /// It is gone.
    CloseVolume(VolumeId),
    /// It is to be taken over if no node serves it, or not.
    Watch(VolumeId, bool),
    /// It is to be owned here, whichever node owns it. → [`LoopEvent::Attached`]
    Attach(VolumeId),
    /// An attach was ordered at this node: all connections of the volume's clients end, nothing that they asked for is carried
    /// out any more, and the volume is to be owned here. → [`LoopEvent::Attached`]
    Fence(VolumeId),
    /// An attach was ordered elsewhere: if this node still claims the volume, it gives that up.
    GiveWay(VolumeId),
    /// Clients have come. They are let in if this node owns the volume; otherwise nothing is done. → [`LoopEvent::Attached`]
    Admit(VolumeId),
    /// The configuration names these: clients that were let in by a certificate or as an initiator which may not use the volume any more
    /// are disconnected.
    Accesses(Arc<Accesses>),
    /// The volume is handed over to another node, which waits for it: it is not served here any more, and its clients are disconnected.
    /// → [`LoopEvent::Detached`]
    HandOver(VolumeId),
    /// This life of another node's process ends by order, soon: it counts as ended, although it still answers.
    Ends(NodeId),
    /// That life of the other node's process is over: what runs there is another one, and takes a connection of its own.
    EndedSo(NodeId),
    /// The connections that are forwarded by this session end.
    EndSession(SessionId),
    /// Its clients are disconnected, and it is not owned here any more. → [`LoopEvent::Detached`]
    Detach(VolumeId),
    /// The next attachment of the volume is a new one: no lost client of an earlier one is reported for it.
    NoClients(VolumeId),
    /// Something that a person decides, by a number that no other order has. With an epoch, it is carried out only if the last claim of the
    /// volume's record is of that epoch. → [`LoopEvent::CommandDone`]
    Volume(VolumeId, u64, volume::VolumeCommand, Option<Epoch>),
    /// The record of a volume as the configuration has it, without a question of the volume.
    Record(VolumeId, Box<Record>),
    /// The configuration store was asked for the record.
    Seen(VolumeId, Box<Record>, Epoch),
    /// It was asked for a swap.
    Swapped(VolumeId, ProposalId, Answer, Epoch),
    /// A node that was asked runs, and reaches these; or it did not answer in time.
    Reaches(NodeId, Option<BTreeSet<NodeId>>),
    /// A client comes.
    Client(Box<NewClient>),
    /// A client comes by the socket of the attachment of this number, which waits until the client starts (rule H1). Then another attach is to
    /// be ordered here, which lets the client in. → [`LoopEvent::WaitingStarted`], [`LoopEvent::WaitingLetIn`],
    /// [`LoopEvent::WaitingGone`]
    WaitingClient(Box<NewClient>, u64),
    /// The client of a volume that waits is disconnected, for this reason. → [`LoopEvent::WaitingGone`]
    EndWaiting(VolumeId, &'static str),
    /// A volume has this logical unit with these reservations, and their version in the configuration; with the number by which the loop
    /// has asked for them before they were read ([`LoopEvent::UnitWanted`]).
    Unit(VolumeId, Box<About>, Box<(Reservations, u64)>, Option<u64>),
    /// It has none any more.
    NoUnit(VolumeId),
    /// The change of this number, which this client of a unit wanted, was made or not.
    UnitChanged(u32, u32, Result<(), ChangeFailed>),
    /// Another node, with its name, is here. It is connected to, now and whenever the connection breaks.
    Peer {
        /// The node.
        node: NodeId,
        /// Its name.
        name: String,
        /// Where it listens for other nodes.
        address: SocketAddr,
        /// The fingerprints of its certificates: connections that were proved by others end.
        certificates: Vec<String>,
    },
    /// The handshake of the attempt of this number to connect to a node was done, or has failed.
    Proved(NodeId, u64, Result<ProvedPeer, String>),
    /// It is no part of the cluster any more.
    NoPeer(NodeId),
    /// Another node has connected.
    AcceptPeer {
        /// The connection, which does not block.
        channel: Channel,
        /// The node.
        from: NodeId,
        /// The fingerprint of its certificate, if the connection is protected.
        certificate: Option<String>,
    },
    /// This device has this fault, on purpose.
    Fault(u32, DeviceFault),
    /// Messages to this node and of it are dropped on purpose.
    Drop(NodeId),
    /// There are no faults on purpose any more.
    NoFaults,
    /// The read cache of a replica is to be here; nowhere if it has no chunks. → [`LoopEvent::CacheGivenBack`], for where it was
    Cache(ReplicaId, Region),
    /// Scrub all of these replicas, as fast as their devices permit.
    Scrub(Vec<ReplicaId>),
    /// What resyncs get of what volumes have in flight, per cent; and bytes of extents that all stores of this loop scrub in each tick, if that was chosen.
    Reserve(u32, Option<u64>),
    /// The clients of a volume may do so much a second.
    Limit(VolumeId, Option<Limit>),
    /// Follow requests of a volume that this node owns.
    Trace(VolumeId, TraceOrder),
    /// Report the state of the loop. → [`LoopEvent::State`]
    ReportState,
    /// No more is to be done.
    Stop,
}

/// An event that a loop reports to the control path.
#[derive(Debug)]
pub enum LoopEvent {
    /// A replica was opened, or why not.
    Opened(ReplicaId, Result<(), NotOpened>),
    /// A replica that is open cannot be used, or can be again: why.
    Unusable(ReplicaId, Option<Unusable>),
    /// The read cache of a replica is not where it was any more.
    CacheGivenBack(ReplicaId),
    /// A replica was given up, and its device is not used for it any more.
    Closed(ReplicaId),
    /// Read the record of a volume. The epoch that is known now is to be given back with the answer.
    ReadRecord(VolumeId, Epoch),
    /// Ask these nodes, through the configuration store, whether they run and which nodes they reach. They have so many nanoseconds
    /// to answer. → [`LoopCommand::Reaches`]
    QueryNodes(Vec<NodeId>, u64),
    /// Do the handshake of a connection to this node. → [`LoopCommand::Proved`]
    Prove(NodeId, Unproved),
    /// Make this the record, if it is at this epoch.
    Propose(VolumeId, Box<Record>, Epoch),
    /// The clients of a volume are let in here.
    Attached(VolumeId),
    /// It is attached elsewhere, or not any more: its clients here are gone.
    Detached(VolumeId),
    /// The client that waits by the attachment of this number has started.
    WaitingStarted(VolumeId, u64),
    /// It is let in, and is a client like others.
    WaitingLetIn(VolumeId, u64),
    /// It is gone, and was not let in.
    WaitingGone(VolumeId, u64),
    /// This node owns the volume, and the reservations of its logical unit are to be read (rule U1). They are asked for by this number.
    /// → [`LoopCommand::Unit`]
    UnitWanted(VolumeId, u64),
    /// These initiators may not reach the volume by any path, since half a second ago at most.
    UnitUnserved(VolumeId, Vec<Unserved>),
    /// This client of a volume's logical unit wants this change, by this number. → [`LoopCommand::UnitChanged`]
    UnitChange(VolumeId, u32, u32, Box<Change>),
    /// A volume is blocked, and why; or it is not any more.
    Blocked(VolumeId, Option<String>),
    /// The order with this number was carried out, or not.
    CommandDone(u64, Result<(), CommandError>),
    /// How it is.
    State(Box<LoopState>),
    /// It has ended.
    Ended,
}

/// Why a replica was not opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotOpened {
    /// What is wrong.
    pub why: String,
    /// The device that cannot be used, or on which what it keeps of the replica cannot be used: it is to be replaced.
    pub failed: Option<u32>,
}

/// How a loop is.
#[derive(Debug, Clone, Default)]
pub struct LoopState {
    /// Volumes, with what they do here.
    pub volumes: Vec<VolumeState>,
    /// Connections of clients.
    pub clients: usize,
    /// The replicas that are open in the loop.
    pub replicas: Vec<ReplicaState>,
    /// The initiator of each session of a logical unit, with the volume, and whether it reaches the volume here.
    pub initiators: Vec<(VolumeId, String, bool)>,
    /// The initiators that have lost such sessions a moment ago by which they reached the volume, with the volume.
    pub lost_initiators: Vec<(VolumeId, String)>,
    /// The version of the reservations that each logical unit obeys: each of its commands began when this one was known, or a later one.
    pub obeyed: Vec<(VolumeId, u64)>,
    /// Replicas of which a scrub was requested.
    pub scrubs: Vec<(ReplicaId, Scrub)>,
}

/// A fault of a device, on purpose.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceFault {
    /// It does nothing that it is asked.
    pub fails: bool,
    /// It takes so much longer, nanoseconds.
    pub slow_ns: u64,
}

impl DeviceFault {
    /// What it has that has this fault and another.
    pub(crate) fn and(self, other: DeviceFault) -> DeviceFault {
        DeviceFault { fails: self.fails || other.fails, slow_ns: self.slow_ns.max(other.slow_ns) }
    }
}

/// The progress of a scrub of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scrub {
    /// Bytes that are in its extents, about.
    pub bytes: u64,
    /// Bytes that were checked.
    pub done: u64,
    /// Blocks that did not match their checksums.
    pub corrupt: u64,
    /// All were checked.
    pub ended: bool,
}

/// How a volume is at this node.
#[derive(Debug, Clone)]
pub struct VolumeState {
    /// The id of the volume.
    pub id: VolumeId,
    /// Its clients here.
    pub clients: usize,
    /// Of these, those that reach the volume at this node only: by memory that they share with it.
    pub bound: usize,
    /// Nanoseconds since the last client left without announcing it; or, if that is later, since this node took the volume over. `None`: no
    /// client may come back.
    pub lost_ns: Option<u64>,
    /// Requests that are not answered.
    pub unanswered: usize,
    /// Blocks that were copied to replicas that came back, since this node serves it.
    pub copied: u64,
    /// How far replicas are that are coming back.
    pub returning: Vec<ReturnProgress>,
    /// What this node reports of it at this moment.
    pub view: view::View,
    /// What its clients here have asked.
    pub front_end: FrontEnd,
}

/// How a replica is.
#[derive(Debug, Clone)]
pub struct ReplicaState {
    /// The id of the replica.
    pub id: ReplicaId,
    /// What it has asked of its log.
    pub log: BackEnd,
    /// What it has asked of its extents.
    pub capacity: BackEnd,
    /// Bytes that its log has room for.
    pub log_bytes: u64,
    /// Bytes of it that are not destaged.
    pub log_used: u64,
    /// Bytes of it that were destaged and freed.
    pub destaged: u64,
    /// Writers get the speed of the extents' device, because the log fills up.
    pub slowed: bool,
    /// How long writes have waited because the log filled up: the time in which one waited or more, in nanoseconds.
    pub log_wait_ns: u64,
    /// Extents that have a place.
    pub extents: u64,
    /// Its device has no more room.
    pub full: bool,
    /// It does nothing any more.
    pub failed: bool,
    /// It was found damaged, and has not been emptied.
    pub damaged: bool,
    /// What it reports at this moment.
    pub view: replica::view::View,
    /// Bytes that were checked.
    pub scrubbed: u64,
    /// Blocks that did not match their checksums, as often as they were found.
    pub corrupt: u64,
    /// Slots that were written again.
    pub repaired: u64,
    /// What its read cache has done.
    pub cache: CacheCounts,
}
