//! Machines that are migrated to other hosts of the fleet.
//!
//! The keeper of a machine stays on the host where the machine was started, and with it the worker's connection to the controller. On the
//! other host, a receiver runs the QEMU that continues the machine: a process of this program, which that host's agent starts. It
//! listens at the address of its host for as long as it has a keeper, or waits for one.
//!
//! The keeper dials the receiver once for each connection of QEMU, and once for orders to the receiver (the link). Every connection is TLS
//! 1.3, over whose channel binding both sides prove that they know a key which the controller has made for this one migration
//! ([`crate::token`]). If the link ends, or is silent for 5 s, the machine is ended: a keeper that is gone has no machine.
//!
//! | module | idea |
//! | --- | --- |
//! | `channel` | one connection: its purpose, its proof, its messages, bytes passed on |
//! | `receiver` | the process on the other host |
//! | `way` | the keeper's way to it |

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

mod channel;
mod receiver;
mod way;

pub use receiver::run_receiver;

pub(crate) use way::Way;

/// Where a receiver waits for a keeper.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Receiver {
    /// Its address.
    pub(crate) address: SocketAddr,
    /// What the two prove to each other that they know.
    pub(crate) key: String,
}
