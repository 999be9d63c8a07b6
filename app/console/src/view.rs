//! What the page gets of a cluster, each second.

use loadline_san_node::node::manage::Health;
use schemars::JsonSchema;
use serde::Serialize;

use crate::figures::Rates;
use crate::full::Full;

/// How a cluster is, as a whole: the worst of its parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Overall {
    /// All nodes report, and all volumes are healthy.
    Healthy,
    /// Copies are missing, and are coming back.
    Resyncing,
    /// Copies, nodes or devices are missing.
    Degraded,
    /// It is not known.
    Unknown,
    /// A volume is not served.
    Waiting,
    /// A person has to decide about a volume.
    Blocked,
    /// It was stopped, as was intended: it has no nodes any more.
    Ended,
}

impl From<Health> for Overall {
    fn from(health: Health) -> Overall {
        match health {
            Health::Healthy => Overall::Healthy,
            Health::Resyncing => Overall::Resyncing,
            Health::Degraded => Overall::Degraded,
            Health::Unknown => Overall::Unknown,
            Health::Waiting => Overall::Waiting,
            Health::Blocked => Overall::Blocked,
        }
    }
}

/// Whether a node reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reports {
    /// It has sent a sample for this second.
    Now,
    /// It was not reached yet.
    NotYet,
    /// Its sample for this second has not come yet: it is a moment late.
    Late,
    /// It does not, so that nothing is known of it.
    UnknownSince {
        /// Since when: milliseconds since 1970, by the console's clock.
        at_ms: u64,
        /// The reason: why the stream ended, or could not be opened.
        why: String,
    },
    /// It does not, and has not since the console began to follow it: since when it does not, is not known.
    NeverReached {
        /// When the console has first failed to reach it: milliseconds since 1970, by the console's clock.
        since_ms: u64,
        /// The reason: why the stream could not be opened.
        why: String,
    },
}

/// A node in this second.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct NodeRow {
    /// Its name.
    pub name: String,
    /// Whether it reports. If it does not, it has no figures.
    pub reports: Reports,
    /// What it did.
    pub rates: Option<Rates>,
    /// Processors that its process used.
    pub cpu: Option<f64>,
    /// Resident memory of its process, bytes.
    pub memory: Option<u64>,
    /// Connections of clients.
    pub clients: Option<usize>,
    /// The fullest log of its replicas, as a share of its size.
    pub log_fill: Option<f64>,
    /// Replicas whose log slows writes down.
    pub slowed: Option<usize>,
    /// Volumes that it serves.
    pub volumes: Option<usize>,
    /// It takes no new replicas.
    pub draining: bool,
    /// It is in maintenance: it takes no new replicas, and other nodes serve its volumes.
    pub maintenance: bool,
    /// Its process ends by order.
    pub stopping: bool,
    /// The difference of its clock to the console's, seconds, if it is more than one second.
    pub clock_off: Option<f64>,
    /// What is wrong with it, if anything.
    pub fault: Option<String>,
}

impl NodeRow {
    /// A node of which there are no figures.
    pub fn unreported(name: &str, reports: Reports) -> NodeRow {
        NodeRow {
            name: name.into(),
            reports,
            rates: None,
            cpu: None,
            memory: None,
            clients: None,
            log_fill: None,
            slowed: None,
            volumes: None,
            draining: false,
            maintenance: false,
            stopping: false,
            clock_off: None,
            fault: None,
        }
    }
}

/// A resync of one copy.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ResyncRow {
    /// The volume.
    pub volume: String,
    /// The node that gets the data.
    pub node: String,
    /// Everything is copied, and not only what has changed; if it is known.
    pub full: Option<bool>,
    /// Bytes that are left.
    pub left: u64,
    /// The share that is done. It never goes back in one resync.
    pub done: f64,
}

/// A volume in this second.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct VolumeRow {
    /// Its name.
    pub name: String,
    /// How well it is; nothing while it is being made, or removed.
    pub health: Option<Overall>,
    /// Bytes.
    pub bytes: u64,
    /// Copies that it is to have.
    pub copies: u32,
    /// Copies in sync, of the group that has the fewest.
    pub in_sync: u32,
    /// Stripes.
    pub stripes: u32,
    /// The node that owns it.
    pub owner: Option<String>,
    /// Where it is attached.
    pub attached: Option<String>,
    /// What its clients did, if its owner reports.
    pub rates: Option<Rates>,
    /// Requests without an answer.
    pub unanswered: Option<usize>,
    /// Its clients may do no more a second than its limit.
    pub limited: bool,
    /// The first part of the note, for a row of a table.
    pub reason: Option<String>,
    /// What people should know.
    pub note: Option<String>,
}

/// I/Os of one kind on a device.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Flow {
    /// How many in this second.
    pub ios: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How long they took in the mean, microseconds; nothing if there were none.
    pub mean_us: Option<f64>,
}

/// A device.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct DeviceRow {
    /// Its number.
    pub id: u32,
    /// Its node.
    pub node: String,
    /// Where it is there.
    pub path: String,
    /// `log`, `capacity` or `both`.
    pub role: String,
    /// Bytes for replicas.
    pub bytes: u64,
    /// Bytes that are promised.
    pub promised: u64,
    /// Bytes that are taken, if its node reports.
    pub taken: Option<u64>,
    /// Its reads; nothing if its node does not report.
    pub reads: Option<Flow>,
    /// Its writes; nothing if its node does not report.
    pub writes: Option<Flow>,
    /// Failed I/Os in this second.
    pub errors: Option<u64>,
    /// I/Os that have failed since the console follows its node.
    pub errors_so_far: u64,
    /// Corrupt blocks that reads and the scrub have found in replicas with their data here, since the console follows its node.
    pub corrupt_so_far: u64,
    /// When it is full; nothing if its node does not report what is taken.
    pub full: Option<Full>,
    /// What it is a model of.
    pub model: Option<String>,
    /// Why it is not used.
    pub fault: Option<String>,
}

/// The device that is full first.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct NextFull {
    /// Its number.
    pub device: u32,
    /// Its node.
    pub node: String,
    /// Seconds until it is full; 0 if it is.
    pub seconds: f64,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct EventRow {
    /// One more than that of the event before.
    pub number: u64,
    /// When, by the console's clock: seconds since 1970.
    pub at: u64,
    /// The node that reports it; nothing of what the console has found.
    pub from: Option<String>,
    /// `error`, `warning` or `info`.
    pub level: String,
    /// What happened, for people.
    pub message: String,
    /// The volume that it is about, if it is about one.
    pub volume: Option<String>,
    /// The device that it is about.
    pub device: Option<String>,
    /// The node that it is about.
    pub node: Option<String>,
}

/// A cluster in one second.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Now {
    /// The second: seconds since 1970, by the console's clock.
    pub at: u64,
    /// The id of the cluster, if a node has answered so far.
    pub cluster: Option<String>,
    /// A node has answered so far: volumes and devices are known, also that there are none.
    pub known: bool,
    /// How it is as a whole.
    pub overall: Overall,
    /// Why it is not better, a sentence each: the age of an old status, nodes, the configuration store, devices, volumes; of each of these
    /// kinds the worst first. The first eight.
    pub why: Vec<String>,
    /// How many such sentences there are.
    pub why_total: usize,
    /// What all nodes did together that report. The figures of others are missing in it. Nothing if no node has reported for this second.
    pub total: Option<Rates>,
    /// Nodes whose figures are missing in the total.
    pub missing: Vec<String>,
    /// Processors that the processes of the nodes used that report; nothing if none does.
    pub cpu: Option<f64>,
    /// All nodes, by name.
    pub nodes: Vec<NodeRow>,
    /// The volumes with the worst latency, and those that are not healthy: at most [`MOST_VOLUMES`].
    pub volumes: Vec<VolumeRow>,
    /// How many volumes there are.
    pub volumes_total: usize,
    /// Bytes of all volumes, each once.
    pub volume_bytes: u64,
    /// The devices with a fault, those with failed I/Os or corrupt blocks, and those with the longest I/Os: at most [`MOST_DEVICES`].
    pub devices: Vec<DeviceRow>,
    /// How many devices there are.
    pub devices_total: usize,
    /// Bytes of all devices of which it is known how much is taken, bytes of them that are promised, and bytes that are taken.
    pub space: [u64; 3],
    /// Devices of which it is not known how much is taken: their nodes do not report.
    pub space_unknown: usize,
    /// The device that is full first, of those that grow or are full.
    pub next_full: Option<NextFull>,
    /// Resyncs that are under way, the one with most left first: at most [`MOST_RESYNCS`].
    pub resyncs: Vec<ResyncRow>,
    /// How many there are.
    pub resyncs_total: usize,
    /// Bytes that are left to copy, in all resyncs.
    pub resync_left: u64,
    /// Seconds that the copying still takes at the mean rate of the last ten seconds; nothing if nothing was copied in them.
    pub resync_seconds: Option<f64>,
    /// What happened since the second before.
    pub events: Vec<EventRow>,
}

/// Volumes in [`Now`].
pub const MOST_VOLUMES: usize = 50;
/// Devices in [`Now`].
pub const MOST_DEVICES: usize = 50;
/// Resyncs in [`Now`].
pub const MOST_RESYNCS: usize = 20;

impl Now {
    /// A second of a cluster without nodes, volumes and devices.
    pub(crate) fn empty(at: u64, cluster: Option<String>) -> Now {
        Now {
            at,
            cluster,
            known: false,
            overall: Overall::Healthy,
            why: Vec::new(),
            why_total: 0,
            total: None,
            missing: Vec::new(),
            cpu: None,
            nodes: Vec::new(),
            volumes: Vec::new(),
            volumes_total: 0,
            volume_bytes: 0,
            devices: Vec::new(),
            devices_total: 0,
            space: [0; 3],
            space_unknown: 0,
            next_full: None,
            resyncs: Vec::new(),
            resyncs_total: 0,
            resync_left: 0,
            resync_seconds: None,
            events: Vec::new(),
        }
    }

    /// Whether a node has reported for this second. If none has, nothing is known of what the cluster did in it: the total is not 0.
    pub fn is_reported(&self) -> bool {
        self.total.is_some()
    }
}
