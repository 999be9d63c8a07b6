//! What is measured, and what can be done to it.
//!
//! The virtual SAN is met here as a stranger's storage would be: by its commands, its HTTP API and its block protocols.
//!
//! | module | idea |
//! | --- | --- |
//! | [`fault`] | what can happen to a node |
//! | [`cluster`] | a cluster of the virtual SAN: given volumes, asked how it is |
//! | [`started`] | a cluster that this process starts on this machine |
//! | [`running`] | a cluster that ran before, found by its API |
//! | [`node_commands`] | the commands by which nodes of such a cluster are harmed and brought back |
//! | `harm` | its nodes harmed, and brought back |
//! | `filler`, `filler_name` | what is free on a node's device, taken and given back |
//! | [`health`] | how well a cluster is |
//! | [`counters`] | what its nodes count themselves, to be held against what workers measured |
//! | [`external`] | storage of others: the user's commands, or a person, cause faults in it |
//! | [`network`] | a network with a bandwidth between the nodes of a cluster on this machine |
//! | [`placement`] | where its volumes are |
//! | [`volume_limit`] | how much the clients of its volumes may do a second |
//! | [`storage`] | either of the two |
//! | `noted` | the faults of a cluster that ran before, written down before they are caused |
//! | `destination` | how a machine that is migrated reaches its volumes |
//! | `takeover` | where volumes are served whose node is gone |
//! | `command`, `prompt` | a command of the user's is run; a person is asked |
//! | [`error`] | what can go wrong, and which exit code that is |

mod api;
pub mod cluster;
mod command;
pub mod counters;
mod destination;
pub mod device_models;
pub mod error;
pub mod external;
#[cfg(test)]
mod external_tests;
pub mod fault;
mod filler;
mod filler_name;
mod harm;
pub mod health;
pub mod network;
pub mod node_commands;
mod node_state;
mod noted;
pub mod placement;
mod process;
mod prompt;
pub mod running;
pub mod started;
pub mod storage;
mod takeover;
pub mod volume_limit;

pub use api::KeepsUp;
pub use cluster::{Cluster, Disk, ModelledDevice, VolumeSpec};
pub use counters::{Counters, NodeCounters};
pub use error::TargetError;
pub use external::{External, ExternalSpec};
pub use fault::{Fault, FaultKind};
pub use health::Health;
pub use loadline_api_client::ApiAddress;
pub use loadline_cgroup::{CpuPeriods, Limits};
pub use network::{NodeNetwork, Traffic};
pub use node_commands::NodeCommands;
pub use placement::PlacedVolume;
pub use prompt::terminal_prompt;
pub use running::{FoundCluster, RunningSpec};
pub use started::ClusterSpec;
pub use storage::Storage;
pub use volume_limit::LimitOfVolume;
