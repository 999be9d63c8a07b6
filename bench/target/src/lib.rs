//! What is measured, and what can be done to it.
//!
//! The virtual SAN is met here as a stranger's storage would be: by its commands, its HTTP API and its block protocols.
//!
//! | module | idea |
//! | --- | --- |
//! | [`fault`] | what can happen to a node |
//! | [`cluster`] | a cluster of the virtual SAN on this machine: started, given volumes, harmed, healed, stopped |
//! | [`health`] | how well a cluster is |
//! | [`error`] | what can go wrong, and which exit code that is |

mod api;
pub mod cluster;
pub mod error;
pub mod fault;
pub mod health;
mod process;

pub use cluster::{Cluster, ClusterSpec, Disk, VolumeSpec};
pub use error::TargetError;
pub use fault::{Fault, FaultKind};
pub use health::Health;
