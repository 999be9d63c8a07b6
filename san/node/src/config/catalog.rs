//! What is kept under which key.
//!
//! | key | value |
//! | --- | --- |
//! | `cluster` | [`Cluster`] |
//! | `node/<id>` | [`Node`] |
//! | `device/<id>` | [`Device`] |
//! | `volume/<id>` | [`Volume`] |
//! | `name/<name>` | the id of the volume that has it |
//! | `replica/<id>` | [`Replica`] |
//! | `plan/<volume>` | the [`Plan`] of a command that makes this volume, or makes it larger |
//! | `maker/<node>` | [`Maker`]: changed every few seconds while commands with plans run at this node |
//! | `token/<id>` | an [`Invitation`](crate::identity::token::Invitation) |
//! | `access/<name>` | an [`Access`] to the API |
//! | `reservation/<volume>` | the [`Reservations`] of its logical unit |
//! | `record/<id>` | the record of a volume, as [`loadline_san_protocol::record`] writes it |
//!
//! All but the last are JSON. Ids are never used again.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use loadline_base::device_model::DeviceModel;
use loadline_san_core::placement;
use loadline_san_core::record::Record;
use loadline_san_export::front_ends::Protocol;
use loadline_san_export::login::Initiator;
use loadline_san_export::scsi::reservations::Reservations;
use loadline_san_protocol::record;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Change, ConfigError, ConfigStore, Stored};
use crate::identity::access::Access;
use crate::unusable::Unusable;

/// The cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// 32 hexadecimal digits.
    pub id: String,
    /// The next id of anything.
    pub next_id: u64,
    /// Length of the leases of volumes that are made, milliseconds.
    pub lease_ms: u64,
    /// Threads of the data path of each node: a volume belongs to the same one everywhere.
    pub loops: u32,
    /// How much may be promised of a device, per cent of what it has: space is taken only by what is written.
    pub overcommit: u32,
    /// What resyncs and scrubs get, whatever clients do.
    #[serde(default)]
    pub reserve: Reserve,
    /// How connections between nodes are protected.
    #[serde(default)]
    pub transport: Transport,
    /// How long the certificate of a node is valid, seconds.
    #[serde(default = "certificate_s")]
    pub certificate_s: u64,
}

/// What resyncs and scrubs get at the least, whatever clients do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reserve {
    /// Per cent of what a volume has in flight that are copies to a returning copy, at most 90, and not more than 256 copies of 64 KiB; 0: four copies
    /// at a time.
    #[serde(default)]
    pub resync_percent: u32,
    /// Bytes a second that each node scrubs; if nothing is given, 2 MiB for each thread of its data path.
    #[serde(default)]
    pub scrub_bytes_per_s: Option<u64>,
}

/// How long the certificate of a node is valid if nothing else is chosen: 90 days, in seconds.
pub fn certificate_s() -> u64 {
    90 * 86400
}

/// How connections between nodes are protected.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// They are not: all nodes are on one machine.
    #[default]
    Open,
    /// Both nodes prove their identity, and everything is encrypted.
    Encrypted,
    /// Both nodes prove their identity, and a change of anything is noticed; but everyone on the network between them can read it.
    Authenticated,
}

impl Transport {
    /// The name of it.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Open => "open",
            Transport::Encrypted => "encrypted",
            Transport::Authenticated => "authenticated",
        }
    }
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// The name of the node, unique in the cluster.
    pub name: String,
    /// Where its API is.
    pub api: SocketAddr,
    /// Where other nodes connect to it.
    pub peer: SocketAddr,
    /// Where clients connect to it, by the [name](Protocol::name) of their protocol.
    pub endpoints: BTreeMap<String, SocketAddr>,
    /// How often its process has started.
    pub incarnation: u64,
    /// The fingerprints of its certificates: one, and while it is renewed the next one too. None in a cluster whose connections are open.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub certificates: Vec<String>,
    /// New replicas do not come here, and those that are here leave.
    #[serde(default)]
    pub draining: bool,
    /// New replicas do not come here, and other nodes own its volumes: a person is about to stop it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub maintenance: bool,
    /// This life of its process ends by order, soon: other nodes treat it as one that has ended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopping: bool,
    /// Volumes that a life of its process has left to the next one, which may not own them yet: their clients share memory with the node.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub keeps: BTreeSet<u64>,
}

impl Node {
    /// Where clients of a protocol connect to it over the network; `None` if they cannot.
    pub fn endpoint(&self, protocol: Protocol) -> Option<SocketAddr> {
        self.endpoints.get(protocol.name()).copied()
    }

    /// All addresses that are its own.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        [self.api, self.peer].into_iter().chain(self.endpoints.values().copied()).collect()
    }
}

/// A device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// The node that has it.
    pub node: u32,
    /// Where it is there.
    pub path: PathBuf,
    /// Bytes that it has for replicas.
    pub bytes: u64,
    /// What it has of replicas.
    #[serde(default)]
    pub role: Role,
    /// How long it took to make a block durable when it was added, microseconds: the median of some.
    #[serde(default)]
    pub write_us: u64,
    /// New replicas do not come here, and those that are here leave.
    #[serde(default)]
    pub draining: bool,
    /// They go to this device, of the same node.
    #[serde(default)]
    pub replaced_by: Option<u32>,
    /// It behaves as this says, whatever is behind it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<DeviceModel>,
}

/// What a device has of replicas.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Their data and their logs.
    #[default]
    Both,
    /// Logs of copies whose data is on capacity devices of the same node.
    Log,
    /// Data of copies whose logs are on log devices of the same node.
    Capacity,
}

impl Role {
    /// The name of it.
    pub fn name(self) -> &'static str {
        match self {
            Role::Both => "both",
            Role::Log => "log",
            Role::Capacity => "capacity",
        }
    }
}

impl From<Role> for placement::Role {
    fn from(role: Role) -> placement::Role {
        match role {
            Role::Both => placement::Role::Both,
            Role::Log => placement::Role::Log,
            Role::Capacity => placement::Role::Capacity,
        }
    }
}

/// A volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Volume {
    /// The name of the volume, unique in the cluster.
    pub name: String,
    /// Copies that it is to have.
    pub copies: u32,
    /// Copies that must be in sync for a write to begin.
    pub least: u32,
    /// Groups that are written side by side.
    pub stripes: u32,
    /// Blocks of a stripe unit.
    pub unit_blocks: u64,
    /// Blocks of a group at most.
    pub group_blocks: u64,
    /// Its size, in blocks of 4 KiB.
    pub blocks: u64,
    /// Length of its leases, milliseconds.
    pub lease_ms: u64,
    /// Bytes of the log of each replica.
    pub log_bytes: u64,
    /// Bytes of the read cache of each replica whose extents are on a capacity device.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cache_bytes: u64,
    /// Where it is, or was last, attached; nowhere: no node serves it.
    pub attached: Option<u32>,
    /// Which of its sockets it has at that node.
    #[serde(default, skip_serializing_if = "SocketPlace::is_first")]
    pub socket: SocketPlace,
    /// The key with which it was attached there, if it was attached for a while only: by this it is known from every other attachment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attach_key: Option<String>,
    /// The fence of the record when the cluster itself moved it to where it is attached: that node takes it over while the record has
    /// this fence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handed_at: Option<u64>,
    /// Clients over the network are let in only by TLS, with a certificate.
    #[serde(default)]
    pub requires_tls: bool,
    /// Initiators that may use it by iSCSI from beyond a node's own machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub initiators: Vec<Initiator>,
    /// How much its clients may do a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    /// What is being done with it.
    pub state: VolumeState,
}

impl Volume {
    /// The volume, attached at this node, or nowhere. It keeps its socket if it stays where it was. It is the same attachment, unless it
    /// is attached nowhere.
    pub fn attached_at(&self, node: Option<u32>) -> Volume {
        let socket = if node == self.attached { self.socket } else { SocketPlace::First };
        let attach_key = self.attach_key.clone().filter(|_| node.is_some());
        Volume { attached: node, socket, attach_key, handed_at: None, ..self.clone() }
    }
}

/// Which of the two sockets of its own a volume has at a node. Two attachments of a volume, of which one waits, may be at one node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SocketPlace {
    /// The usual one.
    #[default]
    First,
    /// Where an attachment waited while the first one was in use.
    Second,
}

impl SocketPlace {
    /// Whether it is the usual one.
    pub fn is_first(&self) -> bool {
        *self == SocketPlace::First
    }
}

fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

/// How much the clients of a volume may do a second, all together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limit {
    /// Requests.
    pub iops: Option<u64>,
    /// Bytes of reads and writes.
    pub bytes_per_s: Option<u64>,
    /// How much of the time before they may catch up, milliseconds.
    pub burst_ms: u64,
}

/// What is being done with a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VolumeState {
    /// Its replicas are being made.
    Creating,
    /// It is there.
    Ready,
    /// Its replicas are being removed, and it cannot be attached.
    Deleting,
}

impl VolumeState {
    /// Whether the volume of a stored value may get more replicas: it is there, and is not being deleted.
    pub fn may_grow(stored: &[u8]) -> bool {
        serde_json::from_slice(stored).is_ok_and(|volume: Volume| volume.state != VolumeState::Deleting)
    }
}

/// A replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Replica {
    /// The id of the volume.
    pub volume: u64,
    /// Of which of its groups.
    pub group: u32,
    /// Blocks that its group has at most.
    pub blocks: u64,
    /// The node that has it.
    pub node: u32,
    /// The device that has its extents.
    pub device: u32,
    /// The device that has its log: the same, or a log device of its node.
    pub log_device: u32,
    /// Bytes of its log.
    pub log_bytes: u64,
    /// Random bits that no writer of data knows. By them a device distinguishes it from another one that had its id, before the
    /// configuration was restored from an older copy.
    pub key: u64,
    /// What is being done with it.
    pub state: ReplicaState,
    /// Why its node does not make it; or why it stays, if it is to leave or to be removed.
    #[serde(default)]
    pub refused: Option<String>,
    /// Why it cannot be used, as its node has found.
    #[serde(default)]
    pub unusable: Option<Unusable>,
    /// The replica in whose stead it is made.
    #[serde(default)]
    pub instead_of: Option<u64>,
    /// It is to leave, for a device of this node.
    #[serde(default)]
    pub leave_to: Option<u32>,
    /// One of its devices has failed and is replaced, and there is no room for another copy beside what it has on the other device. So it is
    /// no member of its volume any more, what it has is removed, and its entry stays until another is there in its stead.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gives_way: bool,
    /// It is removed only if it was never promised to an owner: what a command has left is taken back, and no command has ordered the removal
    /// of data. In a configuration that was restored from an older copy, the command may have completed since, and clients have written.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unless_used: bool,
}

impl Replica {
    /// Whether a part of it is on this device.
    pub fn is_on(&self, device: u32) -> bool {
        self.device == device || self.log_device == device
    }

    /// Why a node does not make a replica that is on its device already, and that was used.
    pub const USED_BEFORE: &str = "its device already holds this replica, and the replica was used: an older copy of the configuration was \
                                   put back. Put the newer configuration back";

    /// Whether its node has found that it was made and used before.
    pub fn was_used_before(&self) -> bool {
        self.state == ReplicaState::Wanted && self.refused.as_deref() == Some(Replica::USED_BEFORE)
    }

    /// The replica of a volume that a command removes: its node removes it, whatever it has.
    pub fn dropped(&self) -> Replica {
        Replica {
            state: ReplicaState::Dropping,
            refused: None,
            gives_way: false,
            unless_used: false,
            ..self.clone()
        }
    }

    /// The replica that an interrupted command has left: its node removes it if it was never promised to an owner. Otherwise it stays, and
    /// `refused` has the reason.
    pub fn taken_back(&self) -> Replica {
        Replica { unless_used: true, ..self.dropped() }
    }

    /// Why the replica stays, although it is to be removed.
    pub fn kept(&self) -> Option<&str> {
        self.refused.as_deref().filter(|_| self.state == ReplicaState::Dropping && self.unless_used)
    }
}

/// What is being done with a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplicaState {
    /// Its node is to make it.
    Wanted,
    /// It is on its device.
    Ready,
    /// Its node is to remove it.
    Dropping,
}

/// What a command is to make of a volume. It is there from the first commit on until all is made. A node that finds one whose command does
/// not run any more takes back what was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The node that carries out the command.
    pub node: u32,
    /// The incarnation of its process that does.
    #[serde(default)]
    pub incarnation: u64,
    /// Replicas that later commits make. Their devices have promised room for them already.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replicas: Vec<PlannedReplica>,
    /// Of a command that makes a volume larger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub growth: Option<Growth>,
}

/// A command that makes a volume larger. It writes its plan before it orders anything, and no other such command plans as long as the plan is
/// there. So of a growth, either the order is given or it is taken back: both change the plan, and each expects it as it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Growth {
    /// An id that only this command has.
    pub command: u64,
    /// Whether the volume's owner may have been ordered to change the record.
    pub ordered: bool,
}

/// A node shows by changes of this that commands with plans run there, whatever other nodes reach of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Maker {
    /// The incarnation of the node's process.
    pub incarnation: u64,
}

/// A replica that a later commit makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedReplica {
    /// Its id.
    pub id: u64,
    /// Of which group of the volume.
    pub group: u32,
    /// The device that is to have its extents.
    pub device: u32,
    /// The device that is to have its log.
    pub log_device: u32,
}

/// All of it, as it was at one moment; with the version of each.
#[derive(Debug, Clone, Default)]
pub struct Catalog {
    /// When that was: a later one has a higher revision.
    pub revision: u64,
    /// The version of each key.
    pub versions: Arc<BTreeMap<String, u64>>,
    /// The cluster.
    pub cluster: Option<(Cluster, u64)>,
    /// Nodes by id.
    pub nodes: BTreeMap<u32, (Node, u64)>,
    /// Devices by id.
    pub devices: BTreeMap<u32, (Device, u64)>,
    /// Volumes by id.
    pub volumes: BTreeMap<u64, (Volume, u64)>,
    /// Replicas by id.
    pub replicas: BTreeMap<u64, (Replica, u64)>,
    /// Plans of commands by the volume.
    pub plans: BTreeMap<u64, (Plan, u64)>,
    /// The version of the [`Maker`] of each node that has one.
    pub makers: BTreeMap<u32, u64>,
    /// Persistent reservations by the volume.
    pub reservations: BTreeMap<u64, (Reservations, u64)>,
    /// Records of volumes, as they are kept.
    pub records: BTreeMap<u64, Stored>,
    /// Accesses to the API by name.
    pub accesses: BTreeMap<String, (Access, u64)>,
}

impl Catalog {
    /// Whether a node is in maintenance.
    pub fn in_maintenance(&self, node: u32) -> bool {
        self.nodes.get(&node).is_some_and(|(node, _)| node.maintenance)
    }

    /// The record of a volume, if it has one that can be read.
    pub fn record(&self, volume: u64) -> Option<Record> {
        record::decode(&self.records.get(&volume)?.value).ok()
    }

    /// Reads all of it.
    pub fn read(store: &mut dyn ConfigStore) -> Result<Catalog, ConfigError> {
        let (revision, listed) = store.list("")?;
        let versions = listed.iter().map(|(key, stored)| (key.clone(), stored.version)).collect();
        let mut catalog = Catalog { revision, versions: Arc::new(versions), ..Catalog::default() };
        for (key, stored) in listed {
            let broken = || ConfigError::Broken { key: key.clone(), why: "it is no id".into() };
            let (kind, id) = key.split_once('/').unwrap_or((&key, "0"));
            let name = id;
            let id = || id.parse::<u64>().map_err(|_| broken());
            match kind {
                "cluster" => catalog.cluster = Some(parse(&key, &stored)?),
                "node" => _ = catalog.nodes.insert(id()? as u32, parse(&key, &stored)?),
                "device" => _ = catalog.devices.insert(id()? as u32, parse(&key, &stored)?),
                "volume" => _ = catalog.volumes.insert(id()?, parse(&key, &stored)?),
                "replica" => _ = catalog.replicas.insert(id()?, parse(&key, &stored)?),
                "plan" => _ = catalog.plans.insert(id()?, parse(&key, &stored)?),
                "maker" => _ = catalog.makers.insert(id()? as u32, stored.version),
                "access" => _ = catalog.accesses.insert(name.into(), parse(&key, &stored)?),
                "reservation" => _ = catalog.reservations.insert(id()?, parse(&key, &stored)?),
                "record" => _ = catalog.records.insert(id()?, stored),
                _ => {}
            }
        }
        Ok(catalog)
    }

    /// The volume of this name.
    pub fn volume(&self, name: &str) -> Option<(u64, &Volume)> {
        self.volumes
            .iter()
            .find(|(_, (volume, _))| volume.name == name)
            .map(|(id, (volume, _))| (*id, volume))
    }

    /// The node of this name.
    pub fn node(&self, name: &str) -> Option<(u32, &Node)> {
        self.nodes.iter().find(|(_, (node, _))| node.name == name).map(|(id, (node, _))| (*id, node))
    }

    /// Whether devices are promised no more than they have, so that each replica finds the places that it was promised.
    pub fn promises_once(&self) -> bool {
        self.cluster.as_ref().is_some_and(|(cluster, _)| cluster.overcommit <= 100)
    }

    /// So many new ids, with the change that takes them.
    ///
    /// # Panics
    /// If there is no cluster.
    pub fn take_ids(&self, count: u64) -> (std::ops::Range<u64>, Change) {
        let (cluster, version) = self.cluster.clone().expect("a cluster has been made");
        let first = cluster.next_id;
        let next = Cluster { next_id: first + count, ..cluster };
        (first..first + count, change("cluster", Some(version), &next))
    }
}

fn parse<T: DeserializeOwned>(key: &str, stored: &Stored) -> Result<(T, u64), ConfigError> {
    let value = serde_json::from_slice(&stored.value)
        .map_err(|why| ConfigError::Broken { key: key.into(), why: why.to_string() })?;
    Ok((value, stored.version))
}

/// A change of a key to this.
pub fn change<T: Serialize>(key: impl Into<String>, expected: Option<u64>, value: &T) -> Change {
    let value = serde_json::to_vec(value).expect("what is kept can be written as JSON");
    Change { key: key.into(), expected, value: Some(value) }
}
