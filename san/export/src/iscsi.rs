//! The target's side of iSCSI (RFC 7143): each volume is a target with one logical unit, LUN 0.
//!
//! ```text
//!  bytes ─▶ login: who, which volume, what is agreed on ─▶ session ─▶ commands ─▶ `scsi` ─▶ requests of the volume
//!             └─▶ discovery: which volumes are there?         ▲   │
//!                                                      answers┘   └─▶ bytes
//! ```
//!
//! Bytes are not trusted: whatever they are, they do not make it panic, nor keep more memory than is stated here. A session has one
//! connection and error recovery level 0: what is lost on the way ends the connection.
//!
//! | module | idea |
//! | --- | --- |
//! | [`name`] | how targets are named |
//! | [`login`] | an initiator logs in to a volume, or to look for volumes |
//! | `authentication` | which initiators are let in, and how they prove their names |
//! | [`parameters`] | what the two ends agree on |
//! | [`negotiated`] | what a login hands to the session |
//! | `discovery`, `text` | sessions that look for volumes; texts of sessions |
//! | `session`, `error` | PDUs in and out, and what each is for; why sessions end |
//! | `liveness` | how long an initiator, and what its commands need, is waited for |
//! | `tasks`, `slot` | the commands of a session, and one of them |
//! | `transfer`, `answer` | their data from the initiator, their answers to it |
//! | `management` | task management |
//! | `reader`, `sender`, `numbers`, `pdu` | PDUs as bytes, with digests and numbers |
//! | [`connection`] | the session at its socket |

mod answer;
mod authentication;
pub mod connection;
mod discovery;
mod error;
mod liveness;
pub mod login;
mod management;
pub mod name;
pub mod negotiated;
mod numbers;
pub mod parameters;
mod pdu;
mod reader;
mod sender;
mod session;
mod slot;
mod tasks;
mod text;
mod transfer;

use std::net::SocketAddr;

use crate::ways::Ways;

/// The URI of a volume, as libiscsi has them: QEMU takes it, too. By a unix socket nothing but this project speaks iSCSI.
pub(crate) fn ways(volume: &str, address: Option<SocketAddr>) -> Ways {
    let network = address.map(|address| format!("iscsi://{address}/{}/0", name::name_of(volume)));
    Ways { network, local: None }
}
