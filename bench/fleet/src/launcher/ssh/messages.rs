//! The messages between the controller and the agent on a host: lines of JSON over the connection of `ssh`.
//!
//! The agent's lines begin with a marker that is made up for each connection, so that nothing else that a shell of the host prints is
//! taken for a message.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use loadline_base::units::ByteSize;
use loadline_guest::MachineOrder;
use loadline_load::Target;
use loadline_profile::Profile;
use serde::{Deserialize, Serialize};

use crate::elsewhere::Receiver;
use crate::identity::WorkerId;
use crate::node::NodeSpec;
use crate::orders::KeeperAnswer;
use crate::started::StartedMachine;

/// The controller sends something at least this often.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// An agent that receives nothing for so long ends itself and its workers.
pub(crate) const SILENCE_LIMIT: Duration = Duration::from_secs(15);
/// The longest line of either side, bytes.
pub(crate) const LONGEST_LINE: u64 = 8 << 20;

/// A message to the agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ToAgent {
    /// Get ready to start workers. Answered with `begun`, or `refused`.
    Begin {
        /// The name and the limits of the node.
        node: Box<NodeSpec>,
        /// How many workers it has.
        workers: u32,
        /// Where they reach the controller from the host.
        controller: SocketAddr,
        /// What they prove to have.
        token: String,
        /// The virtual machine that the host is, if its first worker is to report of its start.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        machine: Option<Box<StartedMachine>>,
    },
    /// Start a worker. Answered with `exited` when it ends, or could not be started.
    Launch(WorkerId),
    /// End these workers at once. Answered with `ended`.
    End(Vec<WorkerId>),
    /// Wait so long for the workers to end by themselves, end the others, remove everything, and end. Answered with `ended`.
    EndAll { wait: Duration },
    /// Do something about a machine. Answered with `answered` and this number.
    Order { number: u64, order: AgentOrder },
    /// Examine disks and folders. Answered with `inspected`.
    Inspect(HostQuestion),
    /// The controller is there.
    KeepAlive,
}

/// An order about the machine that a worker is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AgentOrder {
    /// Something is done to it. Answered with `done`.
    Machine { worker: WorkerId, order: MachineOrder },
    /// It is migrated to a node: of this host, or with `to` of another one. Answered with `migrated`.
    Migrate {
        worker: WorkerId,
        node: String,
        /// As in [`Migration`](crate::Migration).
        disks: Vec<(Target, Target)>,
        to: Option<Receiver>,
    },
    /// Have a process receive it from another host. Answered with `receives`.
    Receive { worker: WorkerId, key: String },
}

/// A message of the agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FromAgent {
    /// It is there.
    Ready {
        /// The version of the program.
        version: String,
        /// The name of the host.
        host: String,
        /// Tells this system from every other, until it starts again.
        boot: String,
        /// The address from which `ssh` connected.
        client: Option<IpAddr>,
    },
    /// Workers can be started.
    Begun,
    /// Workers cannot be started, in words.
    Refused(String),
    /// A worker ended, or could not be started.
    Exited { worker: WorkerId, message: String, usage: bool },
    /// These workers are gone.
    Ended,
    /// What came of an order.
    Answered { number: u64, answer: KeeperAnswer },
    /// What was found.
    Inspected(HostAnswer),
}

/// What is asked of a host before a run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct HostQuestion {
    /// The disks that will be measured there.
    pub disks: Vec<DiskQuestion>,
    /// The folders in which files will be made.
    pub folders: Vec<PathBuf>,
}

/// A disk that will be measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DiskQuestion {
    /// Which disk, by a name of the host.
    pub target: Target,
    /// One profile for each way in which it will be opened.
    pub profiles: Vec<Profile>,
    /// Whether it will be written to.
    pub writes: bool,
}

/// What a host answers.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct HostAnswer {
    /// The name of the host.
    pub host: String,
    /// Tells this system from every other: two nodes with the same are one host.
    pub boot: String,
    /// Each disk, in the order asked for; or why it cannot be measured.
    pub disks: Vec<Result<FoundDisk, String>>,
    /// The free space of each folder, in the order asked for; or why no file can be made there.
    pub folders: Vec<Result<ByteSize, String>>,
}

/// A disk that can be measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FoundDisk {
    /// Its size.
    pub size: ByteSize,
    /// Equal for two names of one disk of a host; `None` of a disk that the host does not have itself.
    pub identity: Option<(u64, u64)>,
}
